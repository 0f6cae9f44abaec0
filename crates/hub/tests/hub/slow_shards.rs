//! Late shards: a stream's deliveries to them wait, and block only what must come after.

use std::time::Duration;

use stilling_hub::limits::{
    BATCHES_PER_STREAM_MAX, DISK_CHECK_EVERY_NS, DISK_STALL_TIMEOUT_NS, REFERENCES_CHECK_EVERY_NS,
};
use stilling_hub::{ClientId, Durability, HubRequest, PublicationBatch};
use stilling_journal::Batch;
use stilling_journal::disk::simulated::SimulatedDisk;

use crate::fixture::{ABLE, BATCH_SIZE, ConnectionOutput, HubFixture, publish_with, stream};
use crate::fixture_requests::{publish, publish_for};

const ALICE: ClientId = ClientId { shard: 0, token: 1 };
const BOB: ClientId = ClientId { shard: 1, token: 2 };
/// Subscribed to answers for requests of others.
const CAROL: ClientId = ClientId { shard: 1, token: 3 };

const ID: &str = "NATS/1.0\r\nNats-Msg-Id: q\r\n\r\n";

fn long() -> String {
    "x".repeat(270_000)
}

/// Two disk streams, and shards with one routed batch each. ALICE receives the answers, BOB the records of `disk`.
fn fixture(batches: usize) -> HubFixture {
    let (mut fixture, _) = HubFixture::changed(&SimulatedDisk::new(), (0, 1), |streams| {
        streams.push(stream("other", &["other.>"], Durability::Disk));
    });
    fixture.hub.storage_mut().idle = (0..batches).map(|_| Batch::new(1024 * 1024)).collect();
    fixture.subscribe(ALICE, "inbox.>", "1");
    fixture.subscribe(BOB, "disk.>", "1");
    fixture
}

/// Four records in a batch each, the last one acknowledged to `inbox.1`. BOB's shard has no room for the last one when
/// all are written: it holds one batch, one waits, and one is open.
fn publish_four(fixture: &mut HubFixture) {
    let payload = long();
    for _ in 0..3 {
        fixture.ask_all(ALICE, &[publish("disk.a", &payload)]);
    }
    fixture.ask_all(ALICE, &[publish_with("disk.a", &payload, "inbox.1", ID)]);
}

fn write(fixture: &mut HubFixture, batches: usize) {
    (0..batches).for_each(|_| fixture.hub.storage_mut().complete_write());
    fixture.turn();
}

/// Batches in use by deliveries are free when the shards have sent these: the disk is not involved, and the hub
/// continues without a request.
#[test]
fn a_stream_without_a_batch_that_is_not_referred_to_waits_for_shards_and_not_for_the_disk() {
    let mut fixture = fixture(2);
    fixture.hub.shard_senders_mut().room = 1 << 20;
    let references: Vec<_> = fixture.hub.storage_mut().idle.iter_mut().map(Batch::share).collect();
    let requests = [publish_for("disk.a", "x", "inbox.1"), publish_for("memory.a", "y", "inbox.2")];
    assert_eq!(fixture.send_until_parked(ALICE, &requests), 0);
    assert!(fixture.hub.is_quiet());
    for _ in 0..=DISK_STALL_TIMEOUT_NS / DISK_CHECK_EVERY_NS {
        fixture.advance_time(DISK_CHECK_EVERY_NS);
        fixture.turn();
        assert_eq!((fixture.processed(), fixture.parked()), (0, 1), "it waits");
        let span = fixture.hub.next_check_in().expect("it looks");
        assert!(span.as_nanos() <= REFERENCES_CHECK_EVERY_NS.into());
    }
    drop(references);
    assert!(!fixture.hub.is_quiet());
    fixture.turn();
    assert_eq!((fixture.processed(), fixture.parked()), (2, 0));
    fixture.run_until_settled();
    let received = fixture.received(ALICE);
    assert!(received.contains(r#"{"stream":"disk","seq":1}"#) && !received.contains("error"), "{received}");
    assert!(fixture.hub.is_quiet());
}

/// Invariant 7: a stream without room for its records does not delay another stream's answers to connections with room.
#[test]
fn a_stream_whose_records_find_no_room_does_not_hold_up_the_answers_of_another() {
    let mut fixture = fixture(8);
    publish_four(&mut fixture);
    fixture.ask_all(ALICE, &[publish_for("other.a", "x", "inbox.2")]);
    write(&mut fixture, 5);
    let received = fixture.received(ALICE);
    assert!(
        received.contains(r#"{"stream":"other","seq":1}"#) && !received.contains("inbox.1"),
        "{received}"
    );
    assert!(!fixture.hub.is_drained());
    fixture.turn();
    let received = fixture.received(ALICE);
    assert!(
        received.contains("MSG inbox.1 ") && received.contains(r#"{"stream":"disk","seq":4}"#),
        "{received}"
    );
    fixture.turn();
    fixture.poll_shards();
    fixture.turn();
    assert_eq!(fixture.received(BOB).matches("MSG disk.a").count(), 4);
    assert!(fixture.hub.is_drained());
}

/// Requests are processed while a release waits for room; only the answer to a duplicate comes after the first answer.
#[test]
fn the_hub_continues_during_a_release_and_keeps_the_order_of_answers() {
    let mut fixture = fixture(8);
    publish_four(&mut fixture);
    write(&mut fixture, 4);
    // BOB's shard returns a batch after the hub has tried to continue the release, and before it processes requests.
    assert_eq!(fixture.received(ALICE), "");
    let payload = long();
    let again = publish_with("disk.a", &payload, "inbox.3", ID);
    fixture.hub.shard_senders_mut().late = 1;
    fixture.ask_all(ALICE, &[publish_for("memory.a", "x", "inbox.2"), again, HubRequest::Barrier]);
    let received = fixture.received(ALICE);
    assert!(
        received.contains(r#"{"stream":"memory","seq":1}"#) && received.ends_with("PONG\r\n"),
        "{received}"
    );
    assert!(!received.contains("inbox.1") && !received.contains("inbox.3"), "{received}");
    fixture.turn();
    let received = fixture.received(ALICE);
    let at = |inbox: &str| received.find(inbox).unwrap_or_else(|| panic!("{inbox}: {received}"));
    assert!(at("inbox.1") < at("inbox.3"), "{received}");
    assert!(received.ends_with("{\"stream\":\"disk\",\"seq\":4,\"duplicate\":true}\r\n"), "{received}");
    let counters = fixture.hub.counters();
    assert_eq!((counters.duplicates.get(), counters.streams[0].pending.get()), (1, 0));
}

#[test]
fn a_connection_closes_behind_answers_that_wait_for_room() {
    let mut fixture = fixture(8);
    publish_four(&mut fixture);
    write(&mut fixture, 4);
    fixture.poll_shards();
    fixture.hub.shard_senders_mut().late = 1;
    fixture.ask_all(ALICE, &[HubRequest::CloseAfterAcks]);
    assert_eq!(fixture.outputs(ALICE), []);
    fixture.turn();
    let outputs = fixture.outputs(ALICE);
    assert!(
        matches!(outputs.as_slice(), [ConnectionOutput::Text(text), ConnectionOutput::Close] if text.contains("inbox.1")),
        "{outputs:?}"
    );
}

/// Written batches that wait for a shard do not count as a hung disk: publications wait and are not refused.
#[test]
fn a_release_that_waits_for_a_shard_is_no_disk_that_hangs() {
    let mut fixture = fixture(4);
    fixture.subscribe(BOB, "noise", "2");
    publish_four(&mut fixture);
    let noise = long();
    for _ in 0..3 {
        fixture.ask_all(ALICE, &[publish("noise", &noise)]);
    }
    write(&mut fixture, 4);
    fixture.ask_all(ALICE, &[publish_for("disk.a", "x", "inbox.2")]);
    assert_eq!(fixture.parked(), 1, "all batches wait");
    let is_long = |span: Duration| span.as_nanos() > u128::from(DISK_CHECK_EVERY_NS);
    assert!(fixture.hub.next_check_in().is_none_or(is_long), "no disk is waited for");
    for _ in 0..8 {
        fixture.turn();
        fixture.poll_shards();
    }
    write(&mut fixture, 1);
    assert!(fixture.received(ALICE).ends_with("{\"stream\":\"disk\",\"seq\":5}\r\n"));
}

/// Written batches that wait for a shard count against their stream's share. Its publishers are parked although the
/// disk has nothing to write, and the remaining batches go to other streams.
#[test]
fn batches_that_wait_for_a_shard_count_against_the_share_of_their_stream() {
    const LEFT: usize = 8;
    let mut fixture = fixture(0);
    fixture.hub.storage_mut().idle =
        (0..BATCHES_PER_STREAM_MAX + LEFT).map(|_| Batch::new(BATCH_SIZE)).collect();
    fixture.subscribe(BOB, "noise", "2");
    let (noise, payload) = (long(), "x".repeat(6000));
    fixture.ask_all(ALICE, &vec![publish("disk.a", &payload); BATCHES_PER_STREAM_MAX]);
    for _ in 0..3 {
        fixture.ask_all(ALICE, &[publish("noise", &noise)]);
    }
    // The last batch is handed over when the others are written.
    write(&mut fixture, BATCHES_PER_STREAM_MAX - 1);
    write(&mut fixture, 1);
    let visible = || fixture.hub.counters().streams[0].visible.get();
    assert!(visible() <= 1, "{}", visible());
    assert!(fixture.hub.storage_mut().waiting.is_empty());
    // BOB's shard returns a batch after the hub has tried to continue the releases, and before it processes requests.
    fixture.poll_shards();
    fixture.hub.shard_senders_mut().late = 1;
    let mut publication_batch = PublicationBatch::new();
    for token in 100..100 + LEFT as u64 {
        publication_batch.push(token, ABLE, &publish("disk.a", &payload));
    }
    publication_batch.push(ALICE.token, ABLE, &publish_for("other.a", &payload, "inbox.1"));
    let now = fixture.now();
    assert_eq!(fixture.hub.process_requests(0, &publication_batch, 0, now), LEFT + 1);
    fixture.hub.flush();
    assert_eq!(fixture.parked(), LEFT, "the share of the stream is used up");
    let waiting: Vec<_> = fixture.hub.storage_mut().waiting.iter().map(|(stream, ..)| *stream).collect();
    assert_eq!(waiting, [3], "the other stream has a batch");
    // Its shard takes one batch per turn.
    let mut received = String::new();
    while !fixture.hub.is_drained() {
        while !fixture.hub.storage_mut().waiting.is_empty() {
            fixture.hub.storage_mut().complete_write();
        }
        fixture.turn();
        received.push_str(&fixture.received(BOB));
    }
    assert_eq!(received.matches("MSG disk.a").count(), BATCHES_PER_STREAM_MAX + LEFT);
    assert!(fixture.received(ALICE).contains(r#"{"stream":"other","seq":1}"#));
    assert_eq!(fixture.parked(), 0);
}

/// A subscription does not get records acknowledged before it, although other answers of their batch wait for room.
#[test]
fn a_record_that_was_passed_over_is_not_sent_to_a_later_subscription() {
    let mut fixture = fixture(8);
    fixture.ask_all(ALICE, &[publish("other.first", "x")]);
    fixture.ask_all(ALICE, &[publish_for("other.a", "x", "inbox.2")]);
    fixture.subscribe(CAROL, "late.>", "1");
    fixture.ask_all(BOB, &[publish_for("other.b", "x", "late.3")]);
    publish_four(&mut fixture);
    // The two records after the first one form the last batch.
    write(&mut fixture, 1);
    write(&mut fixture, 5);
    let received = fixture.received(ALICE);
    assert!(received.contains("inbox.2") && !fixture.received(CAROL).contains("late.3"), "{received}");
    // Both releases wait, and the subscription does not.
    fixture.hub.shard_senders_mut().late = u32::MAX;
    fixture.subscribe(ALICE, "other.>", "2");
    fixture.hub.shard_senders_mut().late = 0;
    for _ in 0..4 {
        fixture.turn();
        fixture.poll_shards();
    }
    let received = fixture.received(ALICE);
    assert!(fixture.received(CAROL).contains("late.3") && !received.contains("MSG other."), "{received}");
}
