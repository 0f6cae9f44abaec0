//! Tests of the port.

use stilling_hub::limits::DELIVERY_BATCH_SIZE;
use stilling_hub::{HashKey, Ingress, Now, Payload, Publication};
use stilling_ring::BlockWriter;

use super::super::testing::hub_of_one_shard;
use super::*;

/// A port with one publication batch, and the hub's ends of its mailboxes.
struct PortFixture {
    port: HubPort,
    routed_batches: Sender<RoutedBatch>,
    handed_over: Receiver<PublicationBatch>,
    returned: Sender<PublicationBatch>,
    _emptied: Receiver<RoutedBatch>,
}

fn table() -> ShardSubscriptions {
    ShardSubscriptions::new(HashKey(1, 2), 8)
}

impl PortFixture {
    fn new() -> PortFixture {
        let (publication_batches, to_hub) = mailbox(1);
        let (mut returned, from_hub) = mailbox(1);
        let (routed_batches, to_shard) = mailbox(1);
        let (emptied, from_shard) = mailbox(8);
        let _ = returned.push(PublicationBatch::new());
        returned.publish();
        let hub = Arc::new(Wake::new(|| ()));
        let port = HubPort::new((publication_batches, from_hub), (to_shard, emptied), table(), hub);
        PortFixture { port, routed_batches, handed_over: to_hub, returned, _emptied: from_shard }
    }

    /// Delivers a routed batch. Returns the connections with mail.
    fn deliver(&mut self, write: impl FnOnce(&mut RoutedBatch)) -> Vec<(Token, HubMail)> {
        let mut routed_batch = RoutedBatch::new();
        write(&mut routed_batch);
        let _ = self.routed_batches.push(routed_batch);
        self.routed_batches.publish();
        assert!(self.port.has_mail());
        std::iter::from_fn(|| self.port.next_mail()).collect()
    }
}

const PARKED: u64 = 7;
const OTHER: u64 = 8;

#[test]
fn a_parked_connection_has_no_room_before_it_is_resumed_and_others_have() {
    let (parked, other) = (Token::from_bits(PARKED), Token::from_bits(OTHER));
    let mut fixture = PortFixture::new();
    assert!(fixture.port.has_room_for(parked));
    assert_eq!(fixture.deliver(|routed_batch| routed_batch.pause(PARKED)), []);
    assert!(!fixture.port.has_room_for(parked) && fixture.port.has_room_for(other));
    fixture.port.wait(parked);
    fixture.port.wait(other);
    assert_eq!(fixture.port.next_mail(), Some((other, HubMail::Room)), "the parked one is not in its way");
    assert!(fixture.port.next_mail().is_none() && !fixture.port.has_mail());
    assert_eq!(fixture.deliver(|routed_batch| routed_batch.resume(PARKED)), [(parked, HubMail::Room)]);
    assert!(fixture.port.has_room_for(parked) && fixture.port.parked.is_empty());
}

/// No state remains of a connection that did not wait, has left, or was parked after it had left.
#[test]
fn parked_connections_leave_no_state() {
    let parked = Token::from_bits(PARKED);
    let mut fixture = PortFixture::new();
    assert_eq!(fixture.deliver(|routed_batch| routed_batch.pause(PARKED)), []);
    assert_eq!(fixture.deliver(|routed_batch| routed_batch.resume(PARKED)), [], "it does not wait");
    fixture.port.disconnect(parked);
    let both = fixture.deliver(|routed_batch| {
        routed_batch.pause(PARKED);
        routed_batch.pause(OTHER);
        routed_batch.resume(PARKED);
        routed_batch.resume(OTHER);
    });
    assert_eq!(both, []);
    assert!(fixture.port.parked.is_empty() && fixture.port.waiting.is_empty());
}

/// A shard sleeps while its own publications are parked, although there is room for others.
#[test]
fn a_shard_that_waits_for_room_under_a_parked_token_has_no_mail() {
    let mut fixture = PortFixture::new();
    fixture.port.set_shard_waiters(std::iter::once(Token::from_bits(PARKED)));
    assert!(fixture.port.has_mail());
    fixture.deliver(|routed_batch| routed_batch.pause(PARKED));
    assert!(!fixture.port.has_mail());
    fixture.deliver(|routed_batch| routed_batch.resume(PARKED));
    assert!(fixture.port.has_mail());
}

/// Invariant 7: a message to very many connections blocks neither other publishers nor the end of the shard's
/// turn.
#[test]
fn a_turn_makes_some_deliveries_and_connections_that_wait_have_room_in_between() {
    const SUBSCRIPTIONS: usize = 100_000;
    let (mut port, mut runner, _) = hub_of_one_shard();
    for number in 0..SUBSCRIPTIONS {
        let (token, sid) = (Token::from_bits(100 + number as u64 / 1000), number.to_string());
        port.subscribe(token, ClientOptions::default(), (b"a", b"", sid.as_bytes())).expect("there is room");
    }
    port.flush();
    runner.turn(Now::simulated(0));
    while port.next_mail().is_some() {}
    port.flush();
    let publication = Publication {
        ingress: Ingress::Nats,
        subject: b"a",
        reply: b"",
        headers: b"",
        payload: b"x".into(),
        ticket: None,
    };
    for _ in 0..3 {
        port.push_request(
            Token::from_bits(OTHER),
            ClientOptions::default(),
            &HubRequest::Publish(publication),
        );
    }
    port.flush();
    runner.turn(Now::simulated(0));
    port.flush();
    let waiting = Token::from_bits(PARKED);
    let (mut delivered, mut turns) = (0, 0);
    while delivered < 3 * SUBSCRIPTIONS {
        assert!(port.has_mail(), "{delivered} are delivered");
        port.wait(waiting);
        let (mut rooms, mut lines) = (0, 0);
        while let Some((token, mail)) = port.next_mail() {
            if mail == HubMail::Room {
                assert_eq!(token, waiting);
                rooms += 1;
                port.wait(waiting);
                // Uses the room once per notification.
                if rooms > 2 * ROUTED_BATCHES {
                    break;
                }
            } else if let Some(DeliveryItem::Bytes(first, _)) =
                port.current.as_ref().and_then(DeliveryBatch::current)
            {
                lines += first.windows(4).filter(|four| four == b"MSG ").count();
            }
        }
        assert!(lines * 20 <= (ROUTED_BATCHES + 1) * DELIVERY_BATCH_SIZE, "{lines} in one turn");
        assert!(rooms >= 1, "it has a turn");
        delivered += lines;
        turns += 1;
        port.flush();
        runner.turn(Now::simulated(0));
    }
    assert_eq!(delivered, 3 * SUBSCRIPTIONS);
    assert!(turns > 1, "{turns}");
}

/// Delivered items release the memory of streams, even if no others follow.
#[test]
fn payloads_are_released_when_they_have_been_handed_out() {
    const SIZE: usize = stilling_hub::limits::SHARED_PAYLOAD_SIZE_MIN;
    let (mut port, mut runner, _) = hub_of_one_shard();
    let (subscriber, publisher) = (Token::from_bits(OTHER), Token::from_bits(PARKED));
    port.subscribe(subscriber, ClientOptions::default(), (b"a", b"", b"1")).expect("there is room");
    let mut block = BlockWriter::new(SIZE);
    let range = block.append(&[b'x'; SIZE]).expect("there is room");
    let payload = Payload::shared(block.shared(), range);
    let publication = Publication {
        ingress: Ingress::Nats,
        subject: b"a",
        reply: b"",
        headers: b"",
        payload,
        ticket: None,
    };
    port.push_request(publisher, ClientOptions::default(), &HubRequest::Publish(publication));
    port.flush();
    runner.turn(Now::simulated(0));
    assert_eq!(port.next_mail(), Some((subscriber, HubMail::Delivery)));
    assert!(block.is_shared(), "it is delivered from the block");
    assert_eq!(port.next_mail(), None);
    port.flush();
    runner.turn(Now::simulated(0));
    assert!(!block.is_shared());
}

/// A request made without room still reaches the hub, before any later request.
#[test]
fn a_request_without_a_batch_goes_into_the_next_batch() {
    let token = Token::from_bits(OTHER);
    let mut fixture = PortFixture::new();
    fixture.port.push_request(token, ClientOptions::default(), &HubRequest::Barrier);
    fixture.port.flush();
    let mut first = fixture.handed_over.pop().expect("it is handed over");
    assert!(!fixture.port.has_room() && fixture.port.has_sent_all());
    fixture.port.push_request_over_limit(token, ClientOptions::default(), &HubRequest::CancelPulls);
    fixture.port.flush();
    assert!(
        !fixture.port.has_sent_all() && !fixture.port.has_mail(),
        "the only publication batch is with the hub"
    );
    first.clear();
    let _ = fixture.returned.push(first);
    fixture.returned.publish();
    assert!(fixture.port.has_mail());
    fixture.port.push_request(token, ClientOptions::default(), &HubRequest::CloseAfterAcks);
    fixture.port.flush();
    assert!(fixture.port.has_sent_all());
    let next = fixture.handed_over.pop().expect("it is handed over");
    let requests: Vec<_> =
        (0..next.len()).filter_map(|at| next.get(at)).map(|(.., request)| request).collect();
    assert_eq!(requests, [HubRequest::CancelPulls, HubRequest::CloseAfterAcks]);
    assert!(fixture.handed_over.pop().is_none());
}
