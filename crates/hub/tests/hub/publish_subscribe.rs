//! Publish and subscribe without streams.

use stilling_hub::limits::DELIVERY_BATCH_SIZE;
use stilling_hub::{
    ClientOptions, DeliveryBatch, DeliveryItem, HubRequest, Now, Payload, Publication, PublicationBatch,
};
use stilling_ring::BlockWriter;

use crate::fixture::{ABLE, ConnectionOutput, HubFixture, ShardRequest, client, publish_with};
use crate::fixture_requests::{publication, publish, publish_for};

const ALICE: stilling_hub::ClientId = stilling_hub::ClientId { shard: 0, token: 1 };
const BOB: stilling_hub::ClientId = stilling_hub::ClientId { shard: 1, token: 1 };

/// Row 0.21 by subject: a message goes to every matching subscription once, in each shard.
#[test]
fn a_message_goes_to_every_matching_subscription() {
    let mut fixture = HubFixture::new();
    fixture.subscribe(ALICE, "a.*", "1");
    fixture.subscribe(ALICE, "a.b", "2");
    fixture.subscribe(BOB, ">", "9");
    fixture.ask_all(ALICE, &[publish("a.b", "one"), publish("a.c", "two"), publish("b", "three")]);
    let received = fixture.received(ALICE);
    assert!(
        received.contains("MSG a.b 1 3\r\none\r\n") && received.contains("MSG a.b 2 3\r\none\r\n"),
        "{received}"
    );
    assert!(received.ends_with("MSG a.c 1 3\r\ntwo\r\n"), "{received}");
    let expected = "MSG a.b 9 3\r\none\r\nMSG a.c 9 3\r\ntwo\r\nMSG b 9 5\r\nthree\r\n";
    assert_eq!(fixture.received(BOB), expected);
}

#[test]
fn a_queue_shares_its_messages_and_the_others_get_all() {
    let mut fixture = HubFixture::new();
    for (subscriber, sid) in [(ALICE, "1"), (BOB, "2")] {
        fixture.ask_all(
            subscriber,
            &[ShardRequest::Subscribe {
                filter: b"jobs",
                queue: b"workers",
                sid: sid.as_bytes(),
                format: None,
            }],
        );
    }
    fixture.subscribe(client(0, 5), "jobs", "7");
    for _ in 0..10 {
        fixture.ask_all(client(0, 6), &[publish("jobs", "x")]);
    }
    let count = |text: &str| text.matches("MSG").count();
    let (alice, bob) = (count(&fixture.received(ALICE)), count(&fixture.received(BOB)));
    assert_eq!((alice, bob, count(&fixture.received(client(0, 5)))), (5, 5, 10));
}

#[test]
fn a_request_without_subscribers_gets_no_responders_if_enabled() {
    let mut fixture = HubFixture::new();
    fixture.subscribe(ALICE, "inbox.*", "1");
    fixture.ask_all(ALICE, &[publish_for("nobody", "?", "inbox.1")]);
    assert_eq!(fixture.received(ALICE), "HMSG inbox.1 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n");
    fixture.ask(ALICE, ClientOptions::default(), &[publish_for("nobody", "?", "inbox.1")]);
    assert_eq!(fixture.received(ALICE), "");
}

#[test]
fn a_request_carries_its_reply_subject() {
    let mut fixture = HubFixture::new();
    fixture.subscribe(BOB, "service", "3");
    fixture.ask_all(ALICE, &[publish_for("service", "?", "inbox.1")]);
    assert_eq!(fixture.received(BOB), "MSG service 3 inbox.1 1\r\n?\r\n");
}

#[test]
fn headers_are_sent_to_clients_that_support_them() {
    let mut fixture = HubFixture::new();
    fixture.subscribe(ALICE, "a", "1");
    let old = [ShardRequest::Subscribe { filter: b"a", queue: b"", sid: b"2", format: None }];
    fixture.ask(BOB, ClientOptions::default(), &old);
    fixture.ask_all(ALICE, &[publish_with("a", "x", "", "NATS/1.0\r\nK: v\r\n\r\n")]);
    assert_eq!(fixture.received(ALICE), "HMSG a 1 18 19\r\nNATS/1.0\r\nK: v\r\n\r\nx\r\n");
    assert_eq!(fixture.received(BOB), "MSG a 2 1\r\nx\r\n");
}

#[test]
fn no_echo_suppresses_own_messages() {
    let mut fixture = HubFixture::new();
    fixture.subscribe(ALICE, "a", "1");
    fixture.ask(ALICE, ClientOptions { no_echo: true, ..ABLE }, &[publish("a", "x")]);
    assert_eq!(fixture.received(ALICE), "");
    fixture.ask_all(BOB, &[publish("a", "y")]);
    assert_eq!(fixture.received(ALICE), "MSG a 1 1\r\ny\r\n");
}

#[test]
fn a_subscription_ends_at_its_maximum() {
    let mut fixture = HubFixture::new();
    fixture.subscribe(ALICE, "a", "1");
    fixture.subscribe(ALICE, "a", "2");
    fixture.ask_all(
        ALICE,
        &[
            ShardRequest::Unsubscribe { sid: b"1", after: Some(2) },
            publish("a", "x").into(),
            publish("a", "y").into(),
            publish("a", "z").into(),
            ShardRequest::Unsubscribe { sid: b"2", after: None },
            publish("a", "0").into(),
            ShardRequest::Unsubscribe { sid: b"none", after: None },
        ],
    );
    let received = fixture.received(ALICE);
    assert_eq!(
        (received.matches("MSG a 1 ").count(), received.matches("MSG a 2 ").count()),
        (2, 3),
        "{received}"
    );
    // The maximum is below the number already received: it ends at once.
    fixture.subscribe(ALICE, "a", "3");
    fixture.ask_all(
        ALICE,
        &[
            publish("a", "x").into(),
            ShardRequest::Unsubscribe { sid: b"3", after: Some(1) },
            publish("a", "y").into(),
        ],
    );
    assert_eq!(fixture.received(ALICE), "MSG a 3 1\r\nx\r\n");
}

#[test]
fn a_closed_connection_gets_nothing_and_holds_nothing() {
    let mut fixture = HubFixture::new();
    fixture.subscribe(ALICE, "a", "1");
    fixture.ask_all(ALICE, &[HubRequest::Disconnect, publish("a", "x")]);
    assert_eq!(fixture.received(ALICE), "");
    assert_eq!(fixture.hub.counters().subscriptions(), 0);
    assert_eq!(fixture.hub.counters().undelivered.get(), 1);
}

/// Clients' `flush()` relies on this.
#[test]
fn a_pong_follows_the_answers_to_everything_before_its_ping() {
    let mut fixture = HubFixture::new();
    fixture.subscribe(ALICE, "a", "1");
    fixture.ask_all(ALICE, &[publish("a", "x"), HubRequest::Barrier, publish("a", "y")]);
    assert_eq!(fixture.received(ALICE), "MSG a 1 1\r\nx\r\nPONG\r\nMSG a 1 1\r\ny\r\n");
}

#[test]
fn a_connection_has_no_more_subscriptions_than_it_may_have() {
    let mut fixture = HubFixture::new();
    for sid in 0..8 {
        fixture.subscribe(ALICE, "a", &sid.to_string());
    }
    fixture.subscribe(ALICE, "a", "8");
    assert_eq!(fixture.outputs(ALICE), [ConnectionOutput::SubscriptionLimit]);
    assert_eq!(fixture.hub.counters().subscriptions(), 8);
}

/// "The writer may wait for a shard's turn": nothing is dropped or repeated when a shard is late.
#[test]
fn without_room_the_hub_stops_and_resumes_where_it_was() {
    let (mut fixture, _) = HubFixture::on(&stilling_journal::disk::simulated::SimulatedDisk::new(), 8, 2);
    fixture.subscribe(BOB, "a", "1");
    let payload = "x".repeat(100_000);
    let requests: Vec<_> = (0..20).map(|_| publish("a", &payload)).collect();
    let mut publication_batch = stilling_hub::PublicationBatch::new();
    for request in &requests {
        publication_batch.push(ALICE.token, ABLE, request);
    }
    let (mut at, mut turns, mut count) = (0, 0, 0);
    while at < publication_batch.len() {
        at = fixture.hub.process_requests(0, &publication_batch, at, Now::simulated(1));
        fixture.hub.flush();
        count += fixture.received(BOB).matches("MSG").count();
        turns += 1;
    }
    fixture.hub.flush();
    count += fixture.received(BOB).matches("MSG").count();
    assert!(turns > 2, "{turns} turns: it never stopped");
    assert_eq!(count, 20);
}

/// Row 0.14: a shard may return a batch after work was deferred for it, and before full batches are handed out. Then no
/// wake-up follows, and the hub must continue on its own.
#[test]
fn deferred_work_resumes_by_itself_when_the_turn_ended_with_room() {
    let payload = "x".repeat(300_000);
    // In the middle of one message to many, in front of another one, and before answers of the disk.
    for subject in ["many", "a", "disk.a"] {
        let (mut fixture, _) = HubFixture::on(&stilling_journal::disk::simulated::SimulatedDisk::new(), 8, 0);
        for sid in ["1", "2", "3"] {
            fixture.subscribe(BOB, "many", sid);
        }
        fixture.subscribe(BOB, "a", "4");
        fixture.subscribe(BOB, "disk.a", "5");
        let publication =
            if subject == "disk.a" { publish(subject, "x") } else { publish(subject, &payload) };
        let mut publication_batch = stilling_hub::PublicationBatch::new();
        publication_batch.push(ALICE.token, ABLE, &publish("a", &payload));
        publication_batch.push(ALICE.token, ABLE, &publication);
        fixture.hub.shard_senders_mut().room = usize::from(subject == "many");
        fixture.hub.poll_storage(Now::simulated(1));
        let mut at = fixture.hub.process_requests(0, &publication_batch, 0, Now::simulated(1));
        if subject == "disk.a" {
            fixture.hub.shard_senders_mut().room = 1;
            at = fixture.hub.process_requests(0, &publication_batch, at, Now::simulated(1));
            fixture.hub.flush();
            fixture.ask(ALICE, ABLE, &[publish("a", &payload)]);
            fixture.hub.storage_mut().write();
            fixture.hub.poll_storage(Now::simulated(1));
        }
        fixture.hub.shard_senders_mut().room = 2;
        fixture.hub.flush();
        let mut received = fixture.received(BOB).len();
        // The unfinished message used the room.
        assert!(!fixture.hub.is_quiet() || subject == "many", "{subject}: it sleeps with what it could do");
        for _ in 0..10 {
            fixture.hub.poll_storage(Now::simulated(1));
            at = fixture.hub.process_requests(0, &publication_batch, at, Now::simulated(1));
            fixture.hub.flush();
            received += fixture.received(BOB).len();
        }
        assert!(
            fixture.hub.is_quiet() && fixture.hub.is_drained() && at == publication_batch.len(),
            "{subject}"
        );
        assert!(received > 300_000, "{subject}: {received} bytes");
    }
}

/// Design, section 4: the hub moves references. A payload in a shared block reaches every shard as the same range of
/// the same block, and the block is released when all have sent it.
#[test]
fn a_payload_in_a_block_reaches_all_shards_without_a_copy() {
    let mut fixture = HubFixture::new();
    for (to, sid) in [(ALICE, "1"), (ALICE, "2"), (BOB, "9")] {
        fixture.subscribe(to, "a", sid);
    }
    fixture.poll_shards();
    let mut writer = BlockWriter::new(8192);
    writer.append(b"PUB a 4096\r\n").expect("there is room");
    let range = writer.append(&[b'x'; 4096]).expect("there is room");
    let payload = Payload::shared(writer.shared(), range.clone());
    fixture.ask_all(ALICE, &[HubRequest::Publish(Publication { payload, ..publication("a", "") })]);
    let mut lines = Vec::new();
    for shard in 0..2 {
        let mut routed_batch =
            fixture.hub.shard_senders_mut().routed_batches[shard].pop_front().expect("a piece");
        let mut deliveries = DeliveryBatch::new();
        assert!(fixture.tables[shard].expand(&mut routed_batch, &mut deliveries));
        drop(routed_batch);
        while deliveries.advance().is_some() {
            let Some(DeliveryItem::Message(line, payload, end)) = deliveries.current() else {
                panic!("{:?} is no shared message", deliveries.current());
            };
            let (block, at) = payload.block().expect("it lies in one");
            assert!(block.is_same(writer.shared()) && at == range);
            assert!(std::ptr::eq(payload.bytes(), writer.bytes(range.clone())));
            assert_eq!(end, b"\r\n");
            lines.push(String::from_utf8(line.to_vec()).expect("text"));
        }
        assert!(!writer.reset(), "a piece has it still");
    }
    lines.sort();
    assert_eq!(lines, ["MSG a 1 4096\r\n", "MSG a 2 4096\r\n", "MSG a 9 4096\r\n"]);
    assert!(writer.reset());
}

/// Design, section 4: references wait for a full shard, in order with everything else.
#[test]
fn payloads_in_blocks_wait_for_a_full_shard_in_their_order() {
    const COUNT: usize = 12;
    let mut fixture = HubFixture::new();
    fixture.hub.shard_senders_mut().room = 1;
    for sid in ["1", "2", "3"] {
        fixture.subscribe(BOB, "a", sid);
        fixture.poll_shards();
    }
    let mut writer = BlockWriter::new(COUNT * DELIVERY_BATCH_SIZE);
    let mut publication_batch = PublicationBatch::new();
    let mut expected = String::new();
    for number in 0..COUNT {
        let text = format!("{number:02}").repeat(DELIVERY_BATCH_SIZE / 4);
        let range = writer.append(text.as_bytes()).expect("there is room");
        let payload =
            if number % 3 == 2 { text.as_bytes().into() } else { Payload::shared(writer.shared(), range) };
        let message = Publication { payload, ..publication("a", "") };
        publication_batch.push(ALICE.token, ABLE, &HubRequest::Publish(message));
        for sid in 1..4 {
            expected.push_str(&format!("MSG a {sid} {}\r\n{text}\r\n", text.len()));
        }
    }
    let (mut at, mut received, mut waits) = (0, String::new(), 0);
    while received.len() < expected.len() {
        fixture.hub.poll_storage(fixture.now());
        at = fixture.hub.process_requests(0, &publication_batch, at, fixture.now());
        fixture.hub.flush();
        waits += u32::from(at < COUNT);
        let more = fixture.received(BOB);
        assert!(!more.is_empty(), "nothing came behind {} bytes", received.len());
        received.push_str(&more);
    }
    assert!(received == expected && waits > 3, "{waits} waits");
    assert!(!writer.reset(), "the intake has it still");
    publication_batch.clear();
    assert!(writer.reset());
}
