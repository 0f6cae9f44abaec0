//! A shard that holds all its routed batches delays only its own deliveries.

use std::collections::VecDeque;

use stilling_hub::limits::DELIVERY_BATCH_SIZE;
use stilling_hub::{ClientId, HubRequest, PublicationBatch};
use stilling_journal::disk::simulated::SimulatedDisk;

use crate::fixture::{ABLE, HubFixture};
use crate::fixture_requests::{publication, publish, publish_for};

const ALICE: ClientId = ClientId { shard: 0, token: 1 };
const BOB: ClientId = ClientId { shard: 1, token: 2 };

const QUEUE_SIZE: usize = 4 * DELIVERY_BATCH_SIZE;

fn long() -> String {
    "x".repeat(DELIVERY_BATCH_SIZE)
}

/// Shards with one routed batch each. Both clients subscribe to `all.>`, and each to its own inbox.
fn fixture() -> HubFixture {
    let (mut fixture, _) =
        HubFixture::with_queues(&SimulatedDisk::new(), (8, 1), QUEUE_SIZE, (100, 0), |streams| {
            streams.truncate(3);
        });
    for (client, inbox) in [(ALICE, "alice.>"), (BOB, "bob.>")] {
        fixture.subscribe(client, "all.>", "1");
        fixture.subscribe(client, inbox, "2");
    }
    fixture
}

/// Fills the queue of BOB's shard up to its bound, while ALICE's shard takes everything at once.
fn fill_bobs_queue(fixture: &mut HubFixture) -> usize {
    let payload = long();
    let mut sent = 0;
    while fixture.ask(ALICE, ABLE, &[publish("bob.noise", &payload)]) == 1 {
        sent += 1;
        assert!(sent < 100, "the queue has no bound");
    }
    sent
}

/// Runs ALICE's shard but not BOB's. Returns ALICE's output.
fn receive_alice(fixture: &mut HubFixture) -> String {
    let mut received = String::new();
    for _ in 0..4 {
        let bobs = std::mem::take(&mut fixture.hub.shard_senders_mut().routed_batches[1]);
        received.push_str(&fixture.received(ALICE));
        fixture.hub.shard_senders_mut().routed_batches[1] = bobs;
        fixture.turn();
    }
    received
}

/// Runs BOB's shard until nothing waits for it. Returns BOB's output.
fn receive_bob(fixture: &mut HubFixture) -> String {
    while fixture.hub.has_unsent(1) || !fixture.hub.shard_senders().routed_batches[1].is_empty() {
        fixture.poll_shards();
        fixture.turn();
    }
    fixture.received(BOB)
}

#[test]
fn a_full_shard_delays_no_delivery_and_no_answer_to_another() {
    let mut fixture = fixture();
    let payload = long();
    let before = fixture.hub.counters().delivered();
    // One batch is with BOB's shard, one is open, others wait.
    for _ in 0..3 {
        fixture.ask_all(ALICE, &[publish("bob.noise", &payload)]);
    }
    assert!(fixture.hub.counters().queued.get() >= DELIVERY_BATCH_SIZE as u64 && fixture.hub.is_quiet());
    fixture.ask_all(
        ALICE,
        &[publish("all.a", "one"), publish_for("memory.a", "two", "alice.1"), HubRequest::Barrier],
    );
    fixture.ask_all(ALICE, &[publish_for("disk.a", "three", "alice.2")]);
    fixture.hub.storage_mut().write();
    let received = receive_alice(&mut fixture);
    let at = |text: &str| received.find(text).unwrap_or_else(|| panic!("{text}: {received}"));
    assert!(at("MSG all.a 1 3\r\none") < at(r#"{"stream":"memory","seq":1}"#), "{received}");
    assert!(at(r#"{"stream":"memory","seq":1}"#) < at("PONG"), "{received}");
    assert!(at("PONG") < at(r#"{"stream":"disk","seq":1}"#), "{received}");
    // Everything is counted when sent, and BOB receives it in order.
    let text = receive_bob(&mut fixture);
    assert!(text.ends_with("MSG all.a 1 3\r\none\r\n") && text.matches("MSG bob.noise").count() == 3);
    assert_eq!(fixture.hub.counters().delivered() - before, 3 + 2 + 2);
    assert_eq!(fixture.hub.counters().queued.get(), 0);
    assert!(fixture.hub.is_drained() && fixture.hub.is_quiet());
}

/// With a queue at its bound, deliveries to other shards and disk streams continue; what would add to the queue waits.
#[test]
fn a_queue_at_its_bound_stops_what_would_add_to_it_and_nothing_else() {
    let mut fixture = fixture();
    let sent = fill_bobs_queue(&mut fixture);
    let queued = fixture.hub.counters().queued.get() as usize;
    assert!((QUEUE_SIZE..QUEUE_SIZE + 2 * DELIVERY_BATCH_SIZE).contains(&queued), "{queued} bytes");
    for (to, request) in [
        (ALICE, publish("all.a", "x")),
        (ALICE, publish_for("memory.a", "x", "bob.1")),
        (ALICE, publish_for("$JS.API.INFO", "", "bob.1")),
        (BOB, publish("alice.a", "x")),
    ] {
        assert_eq!(fixture.ask(to, ABLE, &[request]), 0, "{request:?}");
    }
    assert_eq!(fixture.hub.counters().queued.get() as usize, queued);
    fixture.ask_all(
        ALICE,
        &[publish("alice.a", "1"), publish_for("memory.a", "2", "alice.1"), HubRequest::Barrier],
    );
    fixture
        .ask_all(ALICE, &[publish_for("disk.a", "3", "alice.2"), publish_for("$JS.API.INFO", "", "alice.3")]);
    fixture.ask_all(BOB, &[HubRequest::Barrier]);
    fixture.hub.storage_mut().write();
    let received = receive_alice(&mut fixture);
    for text in ["MSG alice.a", "MSG alice.1", "PONG", "MSG alice.2", "MSG alice.3"] {
        assert!(received.contains(text), "{text}: {received}");
    }
    assert!(fixture.hub.is_quiet(), "it waits for BOB's shard alone");
    let text = receive_bob(&mut fixture);
    assert_eq!((text.matches("MSG bob.noise").count(), text.ends_with("PONG\r\n")), (sent, true));
    fixture.ask_all(ALICE, &[publish("all.a", "x")]);
    assert!(fixture.received(BOB).contains("MSG all.a"));
}

/// Answers to a shard's own connections are not blocked by what others send to it: they keep their place in its queue.
#[test]
fn a_stream_keeps_acknowledging_beside_a_queue_at_its_bound() {
    let mut fixture = fixture();
    fixture.ask_all(BOB, &[publish_for("disk.a", "1", "bob.1")]);
    fixture.ask_all(ALICE, &[publish_for("disk.a", "2", "alice.1")]);
    fixture.ask_all(ALICE, &[publish_for("disk.a", "3", "alice.2")]);
    fill_bobs_queue(&mut fixture);
    while fixture.hub.storage_mut().write() {
        fixture.turn();
    }
    let received = receive_alice(&mut fixture);
    assert!(received.contains("MSG alice.1") && received.contains("MSG alice.2"), "{received}");
    assert!(receive_bob(&mut fixture).ends_with("{\"stream\":\"disk\",\"seq\":1}\r\n"));
}

/// Records of a disk stream wait while a queue is at its bound, and are sent afterwards.
#[test]
fn records_wait_for_a_queue_at_its_bound_and_come_in_order() {
    let mut fixture = fixture();
    fixture.subscribe(BOB, "disk.>", "3");
    fill_bobs_queue(&mut fixture);
    for number in ["1", "2", "3"] {
        fixture.ask_all(ALICE, &[publish_for("disk.a", number, "alice.1")]);
    }
    while fixture.hub.storage_mut().write() {
        fixture.turn();
    }
    assert_eq!(receive_alice(&mut fixture), "", "nothing is acknowledged before it was sent");
    let text = receive_bob(&mut fixture);
    let records: Vec<_> =
        text.split("MSG disk.a 3 ").skip(1).filter_map(|line| line.lines().nth(1)).collect();
    assert_eq!(records, ["1", "2", "3"]);
    assert_eq!(receive_alice(&mut fixture).matches("MSG alice.1").count(), 3);
    assert!(fixture.hub.is_drained());
}

/// A consumer that is behind waits for the shard that it sends to; a consumer of another shard does not.
#[test]
fn a_consumer_waits_for_its_own_shard_alone() {
    let mut fixture = fixture();
    for number in 0..3 {
        fixture.ask_all(ALICE, &[publish("memory.a", &number.to_string())]);
    }
    let payload = long();
    for _ in 0..3 {
        fixture.ask_all(ALICE, &[publish("bob.noise", &payload)]);
    }
    for (client, name, deliver) in [(BOB, "b", "bob.push"), (ALICE, "a", "alice.push")] {
        let config = format!(
            r#"{{"stream_name":"memory","config":{{"ack_policy":"none","name":"{name}","deliver_policy":"all","deliver_subject":"{deliver}"}}}}"#
        );
        fixture.ask_all(client, &[publish_for("$JS.API.CONSUMER.CREATE.memory", &config, "nobody")]);
    }
    let queued = fixture.hub.counters().queued.get();
    let received = receive_alice(&mut fixture);
    assert_eq!(received.matches("MSG memory.a 2 ").count(), 3, "{received}");
    assert_eq!(fixture.hub.counters().queued.get(), queued, "a consumer adds to no queue");
    assert!(fixture.hub.is_quiet());
    let text = receive_bob(&mut fixture);
    assert_eq!((text.matches("MSG bob.noise").count(), text.matches("MSG memory.a 2 ").count()), (3, 3));
}

/// A waiting publication blocks the later requests of its shard; other shards continue.
#[test]
fn waiting_work_resumes_where_it_stopped() {
    let mut fixture = fixture();
    fill_bobs_queue(&mut fixture);
    let mut publication_batch = PublicationBatch::new();
    for request in [publish("alice.a", "1"), publish("all.a", "2"), HubRequest::Barrier] {
        fixture.tables[0].push(&mut publication_batch, ALICE.token, ABLE, &request);
    }
    let last = HubRequest::Publish(publication("alice.a", "3"));
    fixture.tables[0].push(&mut publication_batch, ALICE.token, ABLE, &last);
    let mut at = fixture.hub.process_requests(0, &publication_batch, 0, fixture.now());
    fixture.hub.flush();
    assert_eq!(at, 1);
    assert_eq!(receive_alice(&mut fixture), "MSG alice.a 2 1\r\n1\r\n");
    fixture.hub.shard_senders_mut().routed_batches[1] = VecDeque::new();
    while at < publication_batch.len() {
        fixture.turn();
        at = fixture.hub.process_requests(0, &publication_batch, at, fixture.now());
        fixture.hub.flush();
        fixture.hub.shard_senders_mut().routed_batches[1].clear();
    }
    assert_eq!(receive_alice(&mut fixture), "MSG all.a 1 1\r\n2\r\nPONG\r\nMSG alice.a 2 1\r\n3\r\n");
}
