//! The batches handed to each shard, and the queues of full shards.

use super::*;
use crate::hash_key::HashKey;
use crate::limits::DELIVERY_BATCH_SIZE;
use crate::publication_batch::RegistrationId;
use crate::routed_batch::RoutedEntry;

#[derive(Debug)]
struct LimitedSenders {
    routed_batches: Vec<Vec<RoutedBatch>>,
    room: usize,
    gone: Option<usize>,
}

impl ShardSenders for LimitedSenders {
    fn swap(&mut self, shard: usize, routed_batch: &mut RoutedBatch) -> bool {
        if self.routed_batches[shard].len() >= self.room {
            return false;
        }
        self.routed_batches[shard].push(std::mem::take(routed_batch));
        true
    }

    fn has_ended(&self, shard: usize) -> bool {
        self.gone == Some(shard)
    }
}

const ALICE: ClientId = ClientId { shard: 0, token: 1 };
const BOB: ClientId = ClientId { shard: 1, token: 2 };
const QUEUE_SIZE: usize = 2 * DELIVERY_BATCH_SIZE;

fn id(number: u32) -> RegistrationId {
    RegistrationId { number, serial: 1 }
}

/// Creates a fan-out for two shards with `room` batches each; ALICE and, under the numbers `bobs`, BOB are registered
/// for `a`, BOB with a queue group per registration.
fn fan_out(room: usize, bobs: &[u32]) -> (FanOut<LimitedSenders>, Router) {
    let mut router = Router::new(HashKey(1, 2), std::iter::empty());
    router.register(ALICE, id(1), (b"a", b"")).expect("there is room");
    for &number in bobs {
        let queue = number.to_string();
        router.register(BOB, id(number), (b"a", queue.as_bytes())).expect("there is room");
    }
    (
        FanOut::new(
            LimitedSenders { routed_batches: vec![Vec::new(), Vec::new()], room, gone: None },
            2,
            QUEUE_SIZE,
        ),
        router,
    )
}

fn send(out: &mut FanOut<LimitedSenders>, router: &mut Router, payload: &[u8]) -> u32 {
    let mut found = Vec::new();
    router.find(b"a", &mut found);
    let message =
        OutboundMessage { subject: b"a", reply: b"", headers: b"", payload: payload.into(), position: None };
    out.send(router, &found, None, &message)
}

/// Outline of the batches handed to a shard: first letters of payloads with their registrations, and other entries.
fn outline(out: &mut FanOut<LimitedSenders>, shard: usize) -> Vec<String> {
    let mut outline = Vec::new();
    for mut routed_batch in out.shard_senders_mut().routed_batches[shard].drain(..) {
        while let Some(entry) = routed_batch.next() {
            outline.push(match entry {
                RoutedEntry::Message(entry) => {
                    let payload = routed_batch.parts(&entry).payload;
                    let letter = payload.bytes().first().map_or(' ', |byte| char::from(*byte));
                    let targets = routed_batch.targets(&entry).iter().map(|id| id.number.to_string());
                    format!("{letter} {}", targets.collect::<Vec<_>>().join(" "))
                }
                RoutedEntry::Bytes { start, end, .. } => {
                    String::from_utf8_lossy(routed_batch.part(start, end)).into_owned()
                }
                RoutedEntry::PublishOutcome { ticket, .. } => format!("outcome {ticket}"),
                RoutedEntry::Rejection { ticket, .. } => format!("rejection {ticket}"),
                RoutedEntry::Mark { mark, .. } => format!("mark {mark}"),
                RoutedEntry::Processed(processed) => format!("processed {processed}"),
                RoutedEntry::Refused(id) => format!("refused {}", id.number),
                RoutedEntry::Pause { .. } | RoutedEntry::Resume { .. } => "pause".to_owned(),
                RoutedEntry::Record { .. } => "record".to_owned(),
                RoutedEntry::Notice { .. } => "notice".to_owned(),
                RoutedEntry::Close { .. } => "close".to_owned(),
            });
            routed_batch.advance();
        }
    }
    outline
}

/// Lets a shard run until nothing waits for it. Returns the outline of everything handed out.
fn drain(out: &mut FanOut<LimitedSenders>, shard: usize) -> Vec<String> {
    let mut all = Vec::new();
    while out.has_batch_for(shard) || !out.shard_senders().routed_batches[shard].is_empty() {
        all.extend(outline(out, shard));
        out.begin_turn();
        out.flush();
    }
    all
}

#[test]
fn a_shard_has_a_message_once_for_all_registrations_and_the_rest_in_order() {
    let (mut out, mut router) = fan_out(1, &[8, 9]);
    assert_eq!(send(&mut out, &mut router, b"x"), 3);
    out.outcome(BOB, 7, PublishOutcome::Forwarded { subscriptions: 2 });
    out.bytes(BOB, |out| out.extend_from_slice(b"PONG"));
    out.close(BOB);
    assert!(out.has_batch_for(0) && out.has_batch_for(1));
    out.flush();
    assert!(!out.has_batch_for(0) && !out.has_batch_for(1));
    assert_eq!(outline(&mut out, 0), ["x 1"]);
    assert_eq!(outline(&mut out, 1), ["x 8 9", "outcome 7", "PONG", "close"]);
}

#[test]
fn a_shard_without_room_is_noted_until_it_has_some() {
    let (mut out, mut router) = fan_out(0, &[9]);
    router.unregister(ALICE, id(1), None, false);
    router.register(ALICE, id(2), (b"b", b"")).expect("there is room");
    let payload = vec![b'x'; DELIVERY_BATCH_SIZE];
    assert!(out.has_room() && !out.has_room_again());
    send(&mut out, &mut router, &payload);
    assert!(!out.has_room() && out.has_room_for(&router, b"b") && !out.has_room_for(&router, b"a"));
    out.begin_turn();
    assert!(!out.has_room_again() && !out.has_regained_room(), "nothing has come back");
    out.shard_senders_mut().room = 1;
    out.flush();
    assert!(out.has_room_again(), "the hub is not to sleep");
    out.begin_turn();
    assert!(out.has_regained_room() && !out.has_room_again() && out.has_room());
    out.begin_turn();
    assert!(!out.has_regained_room());
}

/// Row "one client never pays for another": everything for a shard with room is handed out at once, and the queue of
/// the full shard keeps its order.
#[test]
fn a_full_shard_holds_up_what_goes_to_itself_alone_and_in_order() {
    let (mut out, mut router) = fan_out(2, &[8, 9]);
    let (mut alice, mut expected) = (Vec::new(), Vec::new());
    for letter in [b'p', b'q', b'r'] {
        assert_eq!(send(&mut out, &mut router, &vec![letter; DELIVERY_BATCH_SIZE]), 3);
        for to in [ALICE, BOB] {
            out.outcome(to, u32::from(letter), PublishOutcome::Forwarded { subscriptions: 3 });
            out.mark(SubscriberTarget::Single(to), letter.into());
            out.bytes(to, |out| out.extend_from_slice(b"PONG"));
        }
        out.flush();
        alice.extend(outline(&mut out, 0));
        let name = char::from(letter);
        let rest = [format!("outcome {letter}"), format!("mark {letter}"), "PONG".to_owned()];
        expected.extend([format!("{name} 8 9")].into_iter().chain(rest));
    }
    assert_eq!(alice.iter().filter(|what| what.ends_with(" 1")).count(), 3, "nothing waits");
    assert!(!out.has_batch_for(0) && out.has_batch_for(1));
    assert_eq!(drain(&mut out, 1), expected);
    assert_eq!(out.waiting_size(), 0);
}

/// A waiting message costs its shard its size once, and eight bytes per registration.
#[test]
fn a_message_waits_once_for_all_registrations_of_a_shard() {
    let bobs: Vec<_> = (10..60).collect();
    let (mut out, mut router) = fan_out(0, &bobs);
    router.unregister(ALICE, id(1), None, false);
    let payload = vec![b'x'; DELIVERY_BATCH_SIZE / 4];
    let mut sent = 0;
    while !out.is_over(1) {
        send(&mut out, &mut router, &payload);
        sent += 1;
    }
    let before = out.waiting_size();
    assert!(before < QUEUE_SIZE + DELIVERY_BATCH_SIZE + payload.len(), "{before} bytes");
    assert!(sent > 4, "a piece has the payload once");
    out.shard_senders_mut().room = 1;
    let got = drain(&mut out, 1);
    assert_eq!(got.len(), sent);
    assert!(got.iter().all(|message| message.split(' ').count() == 1 + 50), "{got:?}");
    assert_eq!(out.waiting_size(), 0);
}

#[test]
fn nothing_waits_for_a_shard_that_has_ended() {
    let (mut out, mut router) = fan_out(0, &[8, 9]);
    let payload = vec![b'x'; DELIVERY_BATCH_SIZE];
    while !out.is_over(1) {
        send(&mut out, &mut router, &payload);
    }
    out.shard_senders_mut().gone = Some(1);
    out.begin_turn();
    assert!(!out.is_over(1) && !out.has_batch_for(1) && !out.has_room());
    assert!(out.is_waiting(), "the other one is there");
}

#[test]
fn a_member_of_a_queue_ends_with_its_last_message() {
    let (mut out, mut router) = fan_out(1, &[1, 2, 3]);
    router.unregister(BOB, id(1), Some(1), false);
    let mut found = Vec::new();
    router.find(b"a", &mut found);
    assert_eq!(send(&mut out, &mut router, b"x"), 4);
    assert_eq!(router.registrations(), 3);
    let short =
        OutboundMessage { subject: b"a", reply: b"", headers: b"", payload: b"y".into(), position: None };
    let excluded = |client| Some(MessageSender { client, no_echo: true, position: None });
    assert_eq!(out.send(&mut router, &found, excluded(ALICE), &short), 2);
    assert_eq!(out.send(&mut router, &found, excluded(BOB), &short), 1);
    assert_eq!(out.send_to_subject(&mut router, b"nothing", &short), None);
    assert!(out.send_to_subject(&mut router, b"a", &short).is_some());
}

#[test]
fn what_the_first_leaves_behind_waits_before_the_others() {
    let (mut out, _) = fan_out(1, &[]);
    let message =
        OutboundMessage { subject: b"a", reply: b"r", headers: b"h", payload: b"x".into(), position: None };
    let ended = || VecDeque::new();
    assert!(out.take_unsent().is_none());
    out.queue_statuses(ended());
    out.mark(SubscriberTarget::Single(ALICE), 9);
    assert!(out.has_unfinished() && !out.has_batch_for(0), "the mark waits, too");
    let (first, others) = out.take_unsent().expect("statuses");
    assert!(matches!(first, UnsentItem::Statuses(_)));
    let dispatch = MessageDispatch { number: 5, excluded: None, position: Some((0, 7)) };
    out.unsent.push_back(UnsentItem::of_message(dispatch, &message, &[3]));
    assert!(!out.put_back(others), "it is not sent to its end");
    let (first, others) = out.take_unsent().expect("the rest of it");
    let UnsentItem::Message { dispatch: of, message: kept, to } = first else { panic!("a message is first") };
    assert_eq!((of, kept.message(), to), (dispatch, message, vec![3]));
    assert!(out.put_back(others));
    assert!(matches!(out.take_unsent(), Some((UnsentItem::Mark { mark: 9, .. }, _))));
    out.mark(SubscriberTarget::Single(ALICE), 10);
    assert!(!out.has_unfinished() && out.has_batch_for(0), "nothing waits any more");
}

/// A message in the order of its shard's requests carries its position for this shard alone, also after waiting.
#[test]
fn a_message_carries_the_position_of_its_publisher() {
    let (mut out, mut router) = fan_out(2, &[]);
    router.register(ClientId { shard: 1, token: 9 }, id(2), (b"a", b"")).expect("there is room");
    let mut found = Vec::new();
    router.find(b"a", &mut found);
    let message =
        OutboundMessage { subject: b"a", reply: b"", headers: b"", payload: b"x".into(), position: None };
    let from = MessageSender { client: ALICE, no_echo: false, position: Some(3) };
    out.set_processed(0, 100);
    out.set_processed(1, 200);
    out.send(&mut router, &found, Some(from), &message);
    out.send(&mut router, &found, Some(MessageSender { position: None, ..from }), &message);
    out.mark(SubscriberTarget::Single(ALICE), 9);
    // The next message waits behind unfinished work.
    out.queue_statuses(VecDeque::new());
    out.send(&mut router, &found, Some(from), &message);
    let (_, mut others) = out.take_unsent().expect("statuses");
    let Some(UnsentItem::Message { dispatch, message: kept, to }) = others.pop_front() else {
        panic!("it waits")
    };
    out.send_to_all(&mut router, &dispatch, &kept.message(), &to);
    out.flush();
    for (shard, expected) in [(0, [3, 100, 3]), (1, [200; 3])] {
        let mut processed = Vec::new();
        for mut routed_batch in out.shard_senders_mut().routed_batches[shard].drain(..) {
            while let Some(entry) = routed_batch.next() {
                if let RoutedEntry::Message(entry) = entry {
                    processed.push(entry.processed);
                }
                routed_batch.advance();
            }
        }
        assert_eq!(processed, expected, "shard {shard}");
    }
}
