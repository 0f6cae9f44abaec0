//! Gates: what enters a stream, when a rejection leaves, and the state after a restart.

use stilling_hub::{
    ClientId, HubRequest, Ingress, Loss, Publication, PublishOutcome, RefusalReason, StreamCondition,
    StreamConfig, StreamGate,
};
use stilling_journal::disk::simulated::{DiskFaults, EIO, SimulatedDisk};
use stilling_journal::{Disk, Log};

use crate::fixture::{ABLE, ConnectionOutput, HubFixture, SEGMENTS, gate::test_gates, publish_with};
use crate::fixture_requests::{publication, publish, publish_for};

const ALICE: ClientId = ClientId { shard: 0, token: 1 };
const BOB: ClientId = ClientId { shard: 1, token: 2 };

fn all_gated(gate: &'static str) -> impl FnOnce(&mut Vec<StreamConfig>) {
    move |streams| streams.iter_mut().for_each(|stream| stream.gate = Some(gate.to_owned()))
}

fn gated() -> HubFixture {
    HubFixture::with(all_gated("test"))
}

fn reopened(disk: &SimulatedDisk) -> HubFixture {
    HubFixture::changed(disk, (8, 1 << 20), all_gated("test")).0
}

fn ticketed<'a>(subject: &'a str, payload: &'a str, ticket: u32) -> HubRequest<'a> {
    HubRequest::Publish(Publication { ticket: Some(ticket), ..publication(subject, payload) })
}

/// The state that the records on a disk produce.
fn state_on(disk: &SimulatedDisk) -> Result<Vec<u8>, String> {
    // The lock of the log that wrote it does not matter for reading.
    let files = disk.files();
    let copy = SimulatedDisk::with_files(files);
    let (log, _) = Log::open(copy, "disk", SEGMENTS).expect("it opens");
    let mut stream = StreamConfig::new("disk", ["disk.>"]);
    stream.gate = Some("test".to_owned());
    let mut gate = StreamGate::recover(&test_gates(), &stream, &log).expect("it can be read").expect("one");
    gate.state().map_err(|reason| reason.to_string())
}

fn snapshots(disk: &SimulatedDisk) -> Vec<String> {
    let files = disk.list().expect("it can be listed").into_iter().map(|entry| entry.name);
    files.filter(|name| name.ends_with(".snapshot")).collect()
}

/// Row 2.19, issue 13: a rejected message reaches no subscriber, gets no sequence, and its reason goes to its publisher
/// alone; accepted ones go on.
#[test]
fn a_rejection_goes_to_the_publisher_alone() {
    for subject in ["disk.a", "memory.a", "none.a"] {
        let mut fixture = gated();
        fixture.subscribe(BOB, ">", "1");
        fixture.subscribe(ALICE, "inbox.*", "2");
        fixture.ask_all(ALICE, &[publish_for(subject, "yes", "inbox.1")]);
        fixture.run_until_settled();
        fixture.received(BOB);
        fixture.received(ALICE);
        fixture.ask_all(ALICE, &[publish_for(subject, "no", "inbox.2")]);
        fixture.ask_all(BOB, &[ticketed(subject, "no", 7)]);
        fixture.run_until_settled();
        let stream = subject.split('.').next().expect("a token");
        let (alice, bob) = (fixture.received(ALICE), fixture.outputs(BOB));
        let reason = r#""error":{"code":422,"err_code":20422,"description":"not after 1 records"}"#;
        assert!(alice.starts_with("MSG inbox.2 2 ") && alice.contains(reason), "{alice}");
        // Bob subscribes to everything, also to Alice's inbox, but gets no record.
        let records = |output: &&ConnectionOutput| matches!(output, ConnectionOutput::Text(text) if text.contains(&format!("MSG {subject} ")));
        assert_eq!(bob.iter().filter(records).count(), 0, "{bob:?}");
        let own = ConnectionOutput::Rejection(7, "not after 1 records".to_owned());
        assert_eq!(bob.iter().filter(|output| **output == own).count(), 1, "{bob:?}");
        let counters = fixture.hub.counters();
        assert_eq!(counters.losses(Ingress::Nats, Loss::Rejected), 2);
        let of_stream = counters.streams.iter().find(|counters| counters.name == stream).expect("it is one");
        assert_eq!((of_stream.last.get(), of_stream.rejected.get()), (1, 2));
        fixture.ask_all(ALICE, &[publish_for(subject, "again", "inbox.3")]);
        fixture.run_until_settled();
        assert!(fixture.received(ALICE).contains("\"seq\":2"), "the next one gets the next sequence");
    }
}

/// "a rejection leaves after the sync that covers the state it was judged on". After a failed sync the
/// publisher learns that the stream is frozen, not the reason.
#[test]
fn a_rejection_waits_for_the_state_it_was_judged_on() {
    for fails in [false, true] {
        let disk = SimulatedDisk::new();
        let mut fixture = reopened(&disk);
        fixture.subscribe(ALICE, "inbox.*", "2");
        // At once: nothing waits for the disk.
        fixture.ask_all(ALICE, &[publish_for("disk.a", "no", "inbox.0")]);
        assert!(fixture.received(ALICE).contains("not after 0 records"));
        fixture.ask_all(
            ALICE,
            &[publish_for("disk.a", "one", "inbox.1"), publish_for("disk.a", "no", "inbox.2")],
        );
        // The first batch is with the journal; this record waits in the open one.
        fixture.ask_all(
            ALICE,
            &[publish_for("disk.a", "two", "inbox.3"), publish_for("disk.a", "no", "inbox.4")],
        );
        fixture.ask_all(BOB, &[ticketed("disk.a", "no", 9)]);
        fixture.turn();
        assert_eq!(
            (fixture.received(ALICE), fixture.outputs(BOB)),
            (String::new(), vec![]),
            "nothing is durable"
        );
        if fails {
            disk.fail(DiskFaults { writes: Some((0, EIO)), ..DiskFaults::default() });
        }
        fixture.run_until_settled();
        let (alice, bob) = (fixture.received(ALICE), fixture.outputs(BOB));
        let subjects: Vec<&str> = alice.split("MSG ").skip(1).map(|text| &text[..7]).collect();
        assert_eq!(subjects, ["inbox.1", "inbox.2", "inbox.3", "inbox.4"], "in order");
        let frozen = PublishOutcome::Refused(RefusalReason::Frozen { stream: 0 });
        if fails {
            assert!(!alice.contains("not after") && alice.matches("frozen").count() == 4, "{alice}");
            assert_eq!(bob, [ConnectionOutput::PublishOutcome(9, frozen)]);
        } else {
            assert!(
                alice.contains("not after 1 records") && alice.contains("not after 2 records"),
                "{alice}"
            );
            assert_eq!(bob, [ConnectionOutput::Rejection(9, "not after 2 records".to_owned())]);
        }
        assert!(fixture.hub.is_drained());
    }
}

/// A duplicate is not judged again, and the id of a rejected message is not remembered.
#[test]
fn the_id_of_a_rejected_message_is_not_remembered() {
    let id = "NATS/1.0\r\nNats-Msg-Id: q\r\n\r\n";
    for subject in ["disk.a", "memory.a"] {
        let mut fixture = gated();
        fixture.subscribe(ALICE, "inbox.*", "2");
        for (payload, expected) in [
            ("no", "not after 0 records"),
            ("no", "not after 0 records"),
            ("yes", "\"seq\":1}"),
            ("no", "\"seq\":1,\"duplicate\":true"),
        ] {
            fixture.ask_all(ALICE, &[publish_with(subject, payload, "inbox.1", id)]);
            fixture.run_until_settled();
            let answer = fixture.received(ALICE);
            assert!(answer.contains(expected), "{subject} {payload}: {answer}");
        }
    }
}

/// The records of one message are consecutive in one batch; the acknowledgement names the last, which has the
/// message's headers and thus its id, also after a restart.
#[test]
fn several_records_of_a_message_are_consecutive() {
    let disk = SimulatedDisk::new();
    let mut fixture = reopened(&disk);
    let id = "NATS/1.0\r\nNats-Msg-Id: q\r\n\r\n";
    fixture.subscribe(BOB, "*.a.*", "1");
    fixture.subscribe(ALICE, "inbox.*", "2");
    for subject in ["disk.a", "memory.a", "none.a"] {
        fixture.ask_all(ALICE, &[publish_for(subject, "first", "inbox.1")]);
        fixture.ask_all(ALICE, &[publish_with(subject, "several x y z", "inbox.2", id)]);
        fixture.run_until_settled();
        let alice = fixture.received(ALICE);
        assert!(alice.contains("\"seq\":1}") && alice.contains("\"seq\":4}"), "{alice}");
        let bob = fixture.received(BOB);
        let lines: Vec<&str> = bob.lines().filter(|line| line.contains("MSG ")).collect();
        let expected = [format!("MSG {subject}.0 1 1"), format!("MSG {subject}.1 1 1")];
        assert_eq!(lines.len(), 3, "{subject}: {bob}");
        assert_eq!(lines[..2], expected);
        assert!(lines[2].starts_with(&format!("HMSG {subject}.2 1 inbox.2 ")), "{lines:?}");
        assert!(bob.contains("\r\nx\r\n") && bob.contains("\r\ny\r\n") && bob.ends_with("z\r\n"), "{bob}");
        fixture.ask_all(ALICE, &[publish_with(subject, "several x y z", "inbox.3", id)]);
        fixture.run_until_settled();
        assert!(fixture.received(ALICE).contains("\"seq\":4,\"duplicate\":true"));
    }
    drop(fixture);
    let mut fixture = reopened(&disk);
    fixture.subscribe(ALICE, "inbox.*", "2");
    fixture.ask_all(ALICE, &[publish_with("disk.a", "several x y z", "inbox.4", id)]);
    fixture.run_until_settled();
    let alice = fixture.received(ALICE);
    assert!(alice.contains("\"seq\":4,\"duplicate\":true"), "{alice}");
}

/// All or none: records that do not fit into the rest of a batch go into the next one together, and those that fit into
/// none are refused.
#[test]
fn records_that_fit_into_no_batch_are_refused_together() {
    let mut fixture = gated();
    fixture.subscribe(ALICE, "inbox.*", "2");
    let half = "h".repeat(3000);
    let filler = "f".repeat(5000);
    let requests = [
        publish_for("disk.a", "first", "inbox.1"),
        publish_for("disk.a", &filler, "inbox.2"),
        publish_for("disk.a", "several x", "inbox.3"),
    ];
    fixture.ask_all(ALICE, &requests);
    let two = format!("several {half} {half}");
    fixture.ask_all(ALICE, &[publish_for("disk.a", &two, "inbox.4")]);
    fixture.run_until_settled();
    let alice = fixture.received(ALICE);
    assert!(alice.contains("\"seq\":5}"), "{alice}");
    for subject in ["disk.a", "memory.a"] {
        let three = format!("several {half} {half} {half}");
        let long = format!("several {}", "l".repeat(9000));
        let refused = if subject == "disk.a" { &three } else { &long };
        let before = fixture.hub.counters().streams[usize::from(subject == "memory.a")].last.get();
        fixture.ask_all(ALICE, &[publish_for(subject, refused, "inbox.5")]);
        fixture.run_until_settled();
        let alice = fixture.received(ALICE);
        assert!(alice.contains("message size exceeds maximum allowed"), "{alice}");
        assert_eq!(fixture.hub.counters().streams[usize::from(subject == "memory.a")].last.get(), before);
    }
    assert!(fixture.hub.is_drained(), "no empty batch remains open");
}

/// A panic in `judge`, and a decision that cannot be carried out, cost one message.
#[test]
fn a_failure_of_judge_rejects_one_message() {
    let mut fixture = gated();
    fixture.subscribe(ALICE, "inbox.*", "2");
    for payload in ["judge panics", "foreign", "none"] {
        fixture.ask_all(ALICE, &[publish_for("disk.a", payload, "inbox.1")]);
        fixture.run_until_settled();
        let answer = fixture.received(ALICE);
        assert!(answer.contains("the gate failed on this message"), "{payload}: {answer}");
    }
    fixture.ask_all(ALICE, &[publish_for("disk.a", "yes", "inbox.2")]);
    fixture.run_until_settled();
    assert!(fixture.received(ALICE).contains("\"seq\":1}"));
    let counters = fixture.hub.counters();
    assert_eq!((counters.streams[0].gate_failures.get(), counters.streams[0].rejected.get()), (3, 3));
    fixture.turn();
    let line = fixture.hub.next_notice().expect("it is logged");
    assert!(line.starts_with("stream disk: the gate test failed"), "{line}");
    assert!(line.ends_with("judge panicked: on purpose"), "{line}");
}

/// After a panic in `apply` the state is unknown: the stream is frozen with the reason, also after a restart,
/// and reading goes on. The record itself is durable and acknowledged.
#[test]
fn a_panic_in_apply_freezes_the_stream() {
    let disk = SimulatedDisk::new();
    let mut fixture = reopened(&disk);
    fixture.subscribe(ALICE, "inbox.*", "2");
    let requests =
        [publish_for("disk.a", "apply panics", "inbox.1"), publish_for("disk.a", "yes", "inbox.2")];
    fixture.ask_all(ALICE, &requests);
    fixture.run_until_settled();
    for round in 0..2 {
        let alice = fixture.received(ALICE);
        assert_eq!(alice.contains("\"seq\":1}"), round == 0, "{alice}");
        assert!(
            alice.contains("the stream is frozen until the next start: the gate test: apply panicked"),
            "{alice}"
        );
        fixture.turn();
        let counters = fixture.hub.counters();
        let health = counters.streams[0].health.get();
        assert_eq!((health.condition, counters.streams[0].frozen.get()), (StreamCondition::Frozen, 1));
        let reason = health.reason.expect("it is visible");
        assert!(reason.contains("at record 1, so its state is unknown: on purpose"), "{reason}");
        fixture.ask_all(ALICE, &[publish_for("memory.a", "yes", "inbox.3")]);
        fixture.run_until_settled();
        assert!(fixture.received(ALICE).contains("\"seq\":1}"), "other streams go on");
        drop(fixture);
        fixture = reopened(&disk);
        fixture.subscribe(ALICE, "inbox.*", "2");
        fixture.ask_all(ALICE, &[publish_for("disk.a", "yes", "inbox.2")]);
        fixture.run_until_settled();
    }
}

/// Publishes messages of all kinds, each settled before the next.
fn publish_mixed(fixture: &mut HubFixture, round: u32) {
    for number in 0..600 {
        let payload = format!("{round} {number} {}", "x".repeat(2000));
        let word = match number % 5 {
            0 => "no",
            1 => "several a b",
            _ => payload.as_str(),
        };
        fixture.ask_all(ALICE, &[publish("disk.a", word)]);
        fixture.advance_time(7_000_000);
        fixture.run_until_settled();
    }
}

fn small(streams: &mut Vec<StreamConfig>) {
    all_gated("test")(streams);
    // A snapshot per 128 KiB of records.
    streams[0].retention.bytes = 1 << 20;
}

/// "after kill -9 the state is exactly what the journal says (snapshot + replay, bit for bit)". A stream with
/// snapshots and retention has the same state as one that keeps all its records and has no snapshot.
#[test]
fn the_state_after_a_crash_is_that_of_the_records() {
    let (disk, whole) = (SimulatedDisk::new(), SimulatedDisk::new());
    for round in 0..4 {
        for (disk, change) in [
            (&disk, small as fn(&mut Vec<StreamConfig>)),
            (&whole, |streams| {
                all_gated("test")(streams);
            }),
        ] {
            let (mut fixture, _) = HubFixture::changed(disk, (8, 1 << 20), change);
            fixture.now_ns += 3_600_000_000_000 * u64::from(round);
            fixture.hub.storage_mut().removes_records = true;
            publish_mixed(&mut fixture, round);
            assert_eq!(fixture.hub.counters().streams[0].rejected.get(), 120);
            // Killed here: nothing more is written.
        }
        assert_eq!((snapshots(&disk).len(), snapshots(&whole).len()), (1, 0));
        let state = state_on(&disk).expect("it is known");
        assert_eq!(state, state_on(&whole).expect("it is known"), "round {round}");
        let records = u64::from_le_bytes(state[..8].try_into().expect("eight bytes"));
        assert_eq!(records, 600 * u64::from(round + 1), "120 of 600 are rejected, 120 give two records");
    }
    assert!(first_record(&disk) > 1 && first_record(&whole) == 1, "retention has removed records of one");
}

/// A clean end writes the state, so that a start replays nothing.
#[test]
fn a_clean_end_writes_the_state() {
    let disk = SimulatedDisk::new();
    let mut fixture = reopened(&disk);
    for _ in 0..2 {
        fixture.ask_all(ALICE, &[publish("disk.a", "yes")]);
        fixture.run_until_settled();
        fixture.hub.write_final_snapshots();
        fixture.run_until_settled();
    }
    assert_eq!(fixture.hub.counters().streams[0].gate_snapshot.get(), 2);
    assert_eq!(snapshots(&disk), ["00000000000000000002.snapshot"]);
    let state = state_on(&disk).expect("it is known");
    drop(fixture);
    let (log, _) = Log::open(disk, "disk", SEGMENTS).expect("it opens");
    let found = log.find_snapshot("test").expect("it can be read");
    assert_eq!(found.usable.map(|snapshot| snapshot.state), Some(state));
}

fn first_record(disk: &SimulatedDisk) -> u64 {
    let copy = SimulatedDisk::with_files(disk.files());
    let (log, _) = Log::open(copy, "disk", SEGMENTS).expect("it opens");
    log.source().first().expect("there are records")
}

/// Nothing is removed that the last durable snapshot does not include.
#[test]
fn retention_never_passes_the_last_durable_snapshot() {
    let disk = SimulatedDisk::new();
    let (mut fixture, _) = HubFixture::changed(&disk, (8, 1 << 20), small);
    fixture.hub.storage_mut().removes_records = true;
    fixture.hub.storage_mut().has_room_for_snapshots = false;
    publish_mixed(&mut fixture, 0);
    let counters = fixture.hub.counters();
    let kept = || (counters.streams[0].first.get(), counters.streams[0].gate_snapshot.get());
    assert_eq!(kept(), (1, 0), "there is no snapshot");
    fixture.hub.storage_mut().has_room_for_snapshots = true;
    for round in 1..4 {
        publish_mixed(&mut fixture, round);
        let (first, snapshot) = kept();
        assert!(1 < first && first <= snapshot + 1, "{first} {snapshot}");
    }
    assert!(state_on(&disk).is_ok());
}

/// The state needs records that retention removed before the gate was configured: the stream refuses messages and says
/// why, instead of deciding on a wrong state.
#[test]
fn a_gate_without_its_first_records_freezes_the_stream() {
    let disk = SimulatedDisk::new();
    let (mut fixture, _) =
        HubFixture::changed(&disk, (8, 1 << 20), |streams| streams[0].retention.bytes = 1 << 20);
    fixture.hub.storage_mut().removes_records = true;
    let payload = "x".repeat(4000);
    for _ in 0..600 {
        fixture.ask_all(ALICE, &[publish("disk.a", &payload)]);
        fixture.advance_time(20_000_000);
        fixture.run_until_settled();
    }
    assert!(fixture.hub.counters().streams[0].first.get() > 1);
    drop(fixture);
    let mut fixture = reopened(&disk);
    fixture.turn();
    let counters = fixture.hub.counters();
    let health = counters.streams[0].health.get();
    let reason = health.reason.expect("it is visible").to_string();
    assert!(
        reason.contains("the gate test: records 1 to") && reason.contains("have been removed"),
        "{reason}"
    );
    assert_eq!(counters.streams[0].frozen.get(), 1);
    // Without a state there is nothing to know.
    drop(fixture);
    let (mut fixture, _) = HubFixture::changed(&disk, (8, 1 << 20), all_gated("accept-all"));
    fixture.ask_all(ALICE, &[ticketed("disk.a", "x", 3)]);
    fixture.run_until_settled();
    assert!(matches!(
        fixture.outputs(ALICE)[..],
        [ConnectionOutput::PublishOutcome(3, PublishOutcome::Stored { stream: 0, .. })]
    ));
}

/// A stream whose gate is not registered refuses messages.
#[test]
fn a_stream_with_an_unknown_gate_is_frozen() {
    let mut fixture = HubFixture::with(all_gated("missing"));
    fixture.ask_all(ALICE, &[ticketed("memory.a", "x", 3)]);
    fixture.turn();
    let frozen = PublishOutcome::Refused(RefusalReason::Frozen { stream: 1 });
    assert_eq!(fixture.outputs(ALICE), [ConnectionOutput::PublishOutcome(3, frozen)]);
    let health = fixture.hub.counters().streams[1].health.get();
    assert!(health.reason.expect("it is visible").contains("there is no gate `missing`"));
}

/// Rejections that wait for the disk are bounded like other answers: their connection is parked.
#[test]
fn rejections_that_wait_for_the_disk_are_bounded() {
    let mut fixture = HubFixture::with(|streams| {
        all_gated("test")(streams);
        streams[0].pending_max = 3;
    });
    fixture.subscribe(ALICE, "inbox.*", "2");
    let requests: Vec<_> =
        ["yes", "no", "no", "no", "no"].map(|word| publish_for("disk.a", word, "inbox.1")).to_vec();
    assert_eq!(fixture.ask(ALICE, ABLE, &requests), 5, "parked requests count as processed");
    assert_eq!(fixture.parked(), 1);
    fixture.run_until_settled();
    let alice = fixture.received(ALICE);
    assert_eq!((alice.matches("not after 1 records").count(), fixture.parked()), (4, 0), "{alice}");
    assert_eq!(fixture.hub.counters().losses(Ingress::Nats, Loss::Rejected), 4, "each is counted once");
}
