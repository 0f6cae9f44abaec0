//! Disk errors: answers to publishers and readers, and reports to the operator.

use std::io;

use stilling_hub::limits::{
    BATCHES_PER_STREAM_MAX, DISK_CHECK_EVERY_NS, DISK_STALL_TIMEOUT_NS, NOTICE_EVERY_NS,
};
use stilling_hub::{ClientId, Durability, HubRequest, Ingress, Loss, StreamCondition};
use stilling_journal::disk::simulated::{DiskFaults, EIO, ENOSPC, SimulatedDisk};
use stilling_journal::{JournalAnswer, LogRetention, RemovedSegments};

use crate::consumers::{READER, api_request, create, fill};
use crate::fixture::{ABLE, ConnectionOutput, HubFixture, publish_with, stream};
use crate::fixture_requests::{publish, publish_for};

const ALICE: ClientId = ClientId { shard: 0, token: 1 };

fn notices(fixture: &mut HubFixture) -> Vec<String> {
    std::iter::from_fn(|| fixture.hub.next_notice()).collect()
}

fn condition(fixture: &HubFixture) -> StreamCondition {
    fixture.hub.counters().streams[0].health.get().condition
}

/// A full disk delays messages, and after the timeout they are refused with a retryable error; other streams continue.
/// With room again the stream resumes.
#[test]
fn a_stream_without_room_waits_refuses_and_continues() {
    let disk = SimulatedDisk::new();
    let (mut fixture, _) = HubFixture::on(&disk, 8, 1 << 20);
    fixture.subscribe(ALICE, "inbox.>", "1");
    fixture.hub.storage_mut().waits_for_room = true;
    disk.fail(DiskFaults { create: Some(ENOSPC), ..DiskFaults::default() });
    let id = "NATS/1.0\r\nNats-Msg-Id: q\r\n\r\n";
    fixture.ask_all(
        ALICE,
        &[publish_with("disk.a", "x", "inbox.1", id), publish_for("memory.a", "y", "inbox.2")],
    );
    fixture.run_until_settled();
    assert_eq!(fixture.received(ALICE).matches("MSG inbox").count(), 1, "memory alone");
    assert_eq!(condition(&fixture), StreamCondition::Waiting);
    let counters = fixture.hub.counters();
    assert_eq!((counters.streams[0].waiting.get(), counters.streams[0].frozen.get()), (1, 0));
    let lines = notices(&mut fixture);
    assert!(lines.len() == 1 && lines[0].starts_with("stream disk: waits for disk space"), "{lines:?}");
    assert!(lines[0].contains("free space on its volume"), "{lines:?}");
    // A closing connection waits for its answers as long as the hub does.
    fixture.ask_all(ALICE, &[HubRequest::CloseAfterAcks]);
    for _ in 0..DISK_STALL_TIMEOUT_NS / DISK_CHECK_EVERY_NS {
        assert!(!fixture.outputs(ALICE).contains(&ConnectionOutput::Close), "it is waited for");
        assert!(
            fixture.hub.next_check_in().is_some_and(|span| span.as_nanos() <= DISK_CHECK_EVERY_NS.into())
        );
        fixture.advance_time(DISK_CHECK_EVERY_NS);
        fixture.run_until_settled();
    }
    assert!(fixture.outputs(ALICE).contains(&ConnectionOutput::Close));
    // New and repeated messages are refused at once.
    let asked = [
        publish_for("disk.a", "new", "inbox.3"),
        publish_with("disk.a", "x", "inbox.4", id),
        publish_for("memory.a", "z", "inbox.5"),
    ];
    assert_eq!(fixture.ask(ALICE, ABLE, &asked), 3);
    let received = fixture.received(ALICE);
    assert_eq!(received.matches(r#""code":503,"err_code":10023,"description":"the disk is full"#).count(), 2);
    assert!(received.contains(r#"{"stream":"memory","seq":2}"#), "{received}");
    assert_eq!(counters.losses(Ingress::Nats, Loss::NoRoom), 2);
    assert!(notices(&mut fixture).is_empty(), "it is reported once");
    disk.fail(DiskFaults::default());
    fixture.run_until_settled();
    assert!(fixture.received(ALICE).contains(r#"MSG inbox.1 1 "#));
    assert_eq!((condition(&fixture), counters.streams[0].waiting.get()), (StreamCondition::Open, 0));
    let lines = notices(&mut fixture);
    assert!(lines.len() == 1 && lines[0].contains("is written again after 15.0 s"), "{lines:?}");
    fixture.ask_all(ALICE, &[publish_with("disk.a", "x", "inbox.6", id)]);
    fixture.run_until_settled();
    assert!(fixture.received(ALICE).contains(r#"{"stream":"disk","seq":1,"duplicate":true}"#));
}

/// A waiting stream cannot take another stream's batches or delay its messages.
#[test]
fn a_stream_without_room_leaves_batches_to_the_others() {
    let disk = SimulatedDisk::new();
    let (mut fixture, _) = HubFixture::changed(&disk, (BATCHES_PER_STREAM_MAX + 2, 1 << 20), |streams| {
        streams.push(stream("other", &["other.>"], Durability::Disk));
    });
    fixture.subscribe(ALICE, "inbox.>", "1");
    let payload = "x".repeat(6000);
    let mut asked: Vec<_> = (0..2 * BATCHES_PER_STREAM_MAX).map(|_| publish("disk.a", &payload)).collect();
    asked.push(publish_for("other.a", "y", "inbox.1"));
    let taken = fixture.send_until_parked(ALICE, &asked);
    assert_eq!(taken, BATCHES_PER_STREAM_MAX, "one record fits into a batch");
    let (reason, kind) = ("no space".into(), io::ErrorKind::StorageFull);
    fixture.hub.storage_mut().answers.push_back((JournalAnswer::Waiting { stream: 0, reason, kind }, None));
    fixture.turn();
    assert_eq!((fixture.processed(), fixture.parked()), (asked.len(), 0), "what has no room is refused");
    assert_eq!(fixture.hub.counters().losses(Ingress::Nats, Loss::NoRoom), BATCHES_PER_STREAM_MAX as u64);
    let storage = fixture.hub.storage_mut();
    let other = storage.waiting.iter().position(|(stream, ..)| *stream == 3).expect("it was handed over");
    storage.waiting.rotate_left(other);
    storage.complete_write();
    fixture.turn();
    assert!(fixture.received(ALICE).contains(r#"{"stream":"other","seq":1}"#));
}

/// A freeze is logged once, however many batches are refused, with its reason and remedy.
#[test]
fn a_freeze_is_reported_once() {
    let disk = SimulatedDisk::new();
    let (mut fixture, _) = HubFixture::on(&disk, 8, 1 << 20);
    fixture.ask_all(ALICE, &[publish("disk.a", "before")]);
    fixture.run_until_settled();
    assert!(notices(&mut fixture).is_empty());
    disk.fail(DiskFaults { writes: Some((0, EIO)), ..DiskFaults::default() });
    for _ in 0..3 {
        fixture.ask_all(ALICE, &[publish("disk.a", "lost")]);
        fixture.run_until_settled();
    }
    let lines = notices(&mut fixture);
    assert!(lines.len() == 1 && lines[0].starts_with("stream disk: is frozen"), "{lines:?}");
    assert!(lines[0].contains("restart the server"), "{lines:?}");
    let health = fixture.hub.counters().streams[0].health.get();
    assert!(health.condition == StreamCondition::Frozen && health.reason.is_some(), "{health:?}");
}

/// A failed write, the wait for room after it and the end of the wait are all logged, even if they come at once while
/// lines are limited.
#[test]
fn a_failed_write_a_wait_and_its_end_are_each_reported() {
    let mut fixture = HubFixture::new();
    for round in 0..2 {
        let (stream, kind) = (0, io::ErrorKind::StorageFull);
        let failed = JournalAnswer::WriteFailed { stream, reason: "writing segment-1: EIO".into() };
        let waiting = JournalAnswer::Waiting { stream, reason: "making segment-2: no space".into(), kind };
        for answer in [failed, waiting, JournalAnswer::Resumed { stream }] {
            fixture.hub.storage_mut().answers.push_back((answer, None));
        }
        fixture.turn();
        if round > 0 {
            assert!(notices(&mut fixture).is_empty(), "lines of one kind have a shortest distance");
            fixture.advance_time(NOTICE_EVERY_NS);
            fixture.turn();
        }
        let lines = notices(&mut fixture);
        assert_eq!(lines.len(), 2, "{lines:?}");
        let has = |parts: &[&str]| lines.iter().any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(has(&["a write failed: writing segment-1: EIO", "check its disk"]), "{lines:?}");
        assert!(has(&["is written again after", "of waiting for it", "segment-2: no space"]), "{lines:?}");
    }
    let counters = fixture.hub.counters();
    assert_eq!((counters.streams[0].failed_writes.get(), counters.streams[0].waits.get()), (2, 2));
    assert_eq!(condition(&fixture), StreamCondition::Open);
}

/// A write slower than a second is reported, and so is its end.
#[test]
fn a_slow_write_is_reported_with_its_end() {
    let mut fixture = HubFixture::new();
    fixture.ask_all(ALICE, &[publish("disk.a", "x")]);
    fixture.turn();
    assert!(fixture.hub.next_check_in().is_some_and(|span| span.as_nanos() <= DISK_CHECK_EVERY_NS.into()));
    fixture.advance_time(DISK_CHECK_EVERY_NS / 2);
    fixture.turn();
    assert!(notices(&mut fixture).is_empty() && condition(&fixture) == StreamCondition::Open);
    fixture.advance_time(DISK_CHECK_EVERY_NS / 2);
    fixture.turn();
    let lines = notices(&mut fixture);
    assert!(lines.len() == 1 && lines[0].contains("a write has not returned for 1.0 s"), "{lines:?}");
    assert_eq!(
        (condition(&fixture), fixture.hub.counters().streams[0].slow_writes.get()),
        (StreamCondition::Slow, 1)
    );
    fixture.advance_time(NOTICE_EVERY_NS);
    fixture.run_until_settled();
    assert_eq!(
        (condition(&fixture), fixture.hub.counters().streams[0].slow_writes.get()),
        (StreamCondition::Open, 1)
    );
    let lines = notices(&mut fixture);
    assert!(lines.len() == 1 && lines[0].contains("the slow write has returned after"), "{lines:?}");
}

/// Failed retention is reported and shown until it succeeds.
#[test]
fn retention_that_fails_is_reported() {
    let mut fixture = HubFixture::new();
    let retained = |fixture: &mut HubFixture, removed: io::Result<RemovedSegments>| {
        fixture
            .hub
            .storage_mut()
            .answers
            .push_back((JournalAnswer::Retained { stream: 0, removed, first: 1 }, None));
        fixture.turn();
        let health = fixture.hub.counters().streams[0].health.get();
        health.details().map(str::to_owned).collect::<Vec<_>>()
    };
    let lines = retained(&mut fixture, Err(io::Error::other("permission denied")));
    assert!(lines.len() == 1 && lines[0].contains("permission denied"), "{lines:?}");
    let lines = notices(&mut fixture);
    assert!(lines.len() == 1 && lines[0].contains("old records could not be removed"), "{lines:?}");
    assert_eq!(fixture.hub.counters().streams[0].retention_failures.get(), 1);
    assert!(retained(&mut fixture, Ok(RemovedSegments::default())).is_empty());
}

/// Returns everything sent to the reader, with marks answered, until nothing more arrives.
fn receive_all(fixture: &mut HubFixture) -> String {
    let mut received = String::new();
    loop {
        fixture.run_until_settled();
        let outputs = fixture.outputs(READER);
        if outputs.is_empty() {
            return received;
        }
        for outputs in outputs {
            match outputs {
                ConnectionOutput::Mark(mark) => fixture.ask_all(READER, &[HubRequest::MarkReached { mark }]),
                ConnectionOutput::Text(text) => received.push_str(&text),
                other => panic!("{other:?}"),
            }
        }
    }
}

fn gaps(received: &str) -> Vec<(u64, u64, String)> {
    let value = |part: &str, name: &str| {
        let (_, rest) = part.split_once(name)?;
        Some(rest.lines().next()?.trim_start_matches([':', ' ']).to_owned())
    };
    let number = |part: &str, name: &str| value(part, name)?.parse().ok();
    let of_part = |part: &str| {
        let first = number(part, "Stilling-Gap-First")?;
        Some((first, number(part, "Stilling-Gap-Last")?, value(part, "Stilling-Gap-Cause")?))
    };
    received.split("NATS/1.0 100 Idle Heartbeat\r\n").filter_map(of_part).collect()
}

/// Row 0.14: missing records are reported with their exact range, to consumers and to the operator.
#[test]
fn damage_is_reported_to_a_consumer_with_its_range() {
    let disk = SimulatedDisk::new();
    let (mut fixture, _) = HubFixture::on(&disk, 8, 1 << 20);
    for number in 0..100 {
        fill(&mut fixture, "disk", number * 5..number * 5 + 5);
    }
    let (name, content) = disk.files().into_iter().max_by_key(|(_, content)| content.len()).expect("a file");
    let at = content.windows(6).position(|bytes| bytes == b"disk.n").expect("a record") + 6;
    disk.change(&name, |content| content[at] ^= 1);
    fixture.subscribe(READER, "answers.*", "1");
    create(&mut fixture, "disk", r#""deliver_subject":"push","deliver_policy":"all""#);
    fixture.subscribe(READER, "push", "2");
    fixture.advance_time(100_000_000);
    let received = receive_all(&mut fixture);
    let sequence = |ack: &str| ack.split('.').nth(3).and_then(|word| word.parse().ok());
    let got: Vec<u64> = received.split("$JS.ACK.").skip(1).filter_map(sequence).collect();
    let gaps = gaps(&received);
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    let (first, last, cause) = &gaps[0];
    assert_eq!(cause, "damaged");
    let expected: Vec<u64> = (1..=500).filter(|sequence| !(first..=last).contains(&sequence)).collect();
    assert_eq!(got, expected);
    let counters = fixture.hub.counters();
    assert_eq!(counters.streams[0].damaged.get(), last - first + 1);
    let lines = notices(&mut fixture);
    assert!(lines.len() == 1 && lines[0].contains(&format!("records {first} to {last}")), "{lines:?}");
    assert_eq!(counters.streams[0].health.get().details().count(), 1);
    assert_eq!(condition(&fixture), StreamCondition::Open, "it is no reason to refuse messages");
    // The next consumer gets the same report, and the records count once.
    create(&mut fixture, "disk", r#""deliver_subject":"push.2","deliver_policy":"all""#);
    fixture.subscribe(READER, "push.2", "3");
    fixture.advance_time(NOTICE_EVERY_NS);
    let received = receive_all(&mut fixture);
    assert_eq!(self::gaps(&received), gaps);
    assert_eq!((counters.streams[0].damaged.get(), counters.streams[0].torn.get()), (last - first + 1, 0));
    assert!(notices(&mut fixture).is_empty(), "it is known");
}

/// A disk with 100 records of one batch each, every record with its number in a long payload.
fn long_records() -> SimulatedDisk {
    let disk = SimulatedDisk::new();
    let (mut fixture, _) = HubFixture::on(&disk, 8, 1 << 20);
    for number in 1..=100 {
        fixture.ask_all(ALICE, &[publish("disk.n", &format!("{number:07000}"))]);
        fixture.run_until_settled();
    }
    disk
}

/// Damages the record of [`long_records`] with this number.
fn damage(disk: &SimulatedDisk, number: u64) {
    let text = format!("{number:07000}");
    for (name, content) in disk.files() {
        if let Some(at) = content.windows(text.len()).position(|bytes| bytes == text.as_bytes()) {
            disk.change(&name, |content| content[at] ^= 1);
            return;
        }
    }
    panic!("no record {number}");
}

/// A gap after the record that stalls a consumer with flow control is reported when it continues.
#[test]
fn a_gap_behind_a_flow_control_request_is_reported_after_its_answer() {
    let disk = long_records();
    let begin = |fixture: &mut HubFixture| {
        fixture.subscribe(READER, "answers.*", "1");
        let config = r#""name":"p","deliver_subject":"push","deliver_policy":"all","flow_control":true,"idle_heartbeat":60000000000"#;
        create(fixture, "disk", config);
        fixture.subscribe(READER, "push", "2");
        fixture.advance_time(100_000_000);
        receive_all(fixture)
    };
    let records = |received: &str| received.matches("$JS.ACK.").count() as u64;
    let (mut fixture, _) = HubFixture::on(&disk, 8, 1 << 20);
    let received = begin(&mut fixture);
    let sent = records(&received);
    assert!(received.contains("FlowControl Request") && (2..99).contains(&sent), "{sent} records");
    drop(fixture);
    damage(&disk, sent + 1);
    let (mut fixture, _) = HubFixture::on(&disk, 8, 1 << 20);
    let received = begin(&mut fixture);
    assert_eq!((records(&received), gaps(&received)), (sent, vec![]));
    fixture.ask_all(READER, &[publish("$JS.FC.disk.p", "")]);
    let received = receive_all(&mut fixture);
    assert_eq!(gaps(&received), [(sent + 1, sent + 1, "damaged".to_owned())]);
    let gap = received.find("Stilling-Gap-First").expect("it is reported");
    assert!(
        received.find("$JS.ACK.").is_some_and(|record| gap < record),
        "it is reported before the next record"
    );
}

/// A gap after the record that satisfies a pull request is reported to the next request.
#[test]
fn a_gap_behind_a_request_is_reported_to_the_next_one() {
    let disk = long_records();
    damage(&disk, 6);
    let (mut fixture, _) = HubFixture::on(&disk, 8, 1 << 20);
    fixture.subscribe(READER, "answers.*", "1");
    fixture.subscribe(READER, "pulled", "2");
    create(&mut fixture, "disk", r#""name":"p","deliver_policy":"all","filter_subject":"disk.n""#);
    let mut pull = |batch: u32| {
        let next = format!(r#"{{"batch":{batch},"expires":60000000000,"idle_heartbeat":30000000000}}"#);
        fixture.ask_all(READER, &[publish_for("$JS.API.CONSUMER.MSG.NEXT.disk.p", &next, "pulled")]);
        receive_all(&mut fixture)
    };
    let received = pull(5);
    assert_eq!((received.matches("$JS.ACK.").count(), gaps(&received)), (5, vec![]));
    let received = pull(1);
    assert_eq!(gaps(&received), [(6, 6, "damaged".to_owned())]);
    assert!(received.contains("$JS.ACK.disk.p.1.7.6."), "{received}");
}

/// A torn end of a stream is reported to consumers although nothing was written after it.
#[test]
fn a_torn_end_is_reported_with_its_range() {
    let disk = long_records();
    damage(&disk, 100);
    let (mut fixture, recovery) = HubFixture::on(&disk, 8, 1 << 20);
    assert_eq!((recovery.last, recovery.next > 100), (99, true), "{recovery:?}");
    fixture.subscribe(READER, "answers.*", "1");
    create(&mut fixture, "disk", r#""deliver_subject":"push","deliver_policy":"all""#);
    fixture.subscribe(READER, "push", "2");
    fixture.advance_time(100_000_000);
    let received = receive_all(&mut fixture);
    assert_eq!(received.matches("$JS.ACK.").count(), 99);
    assert_eq!(gaps(&received), [(100, recovery.next - 1, "torn".to_owned())]);
    let stream = &fixture.hub.counters().streams[0];
    assert_eq!((stream.damaged.get(), stream.torn.get()), (0, recovery.next - 100));
    fixture.ask_all(ALICE, &[publish("disk.n", "behind")]);
    let received = receive_all(&mut fixture);
    assert!(received.contains("behind") && gaps(&received).is_empty(), "it is reported once: {received}");
}

/// A follower that fell behind gets a report of what retention removed; a new consumer does not.
#[test]
fn records_removed_before_a_follower_are_reported_with_their_range() {
    let mut fixture = HubFixture::with(|streams| streams[1].retention.bytes = 32 * 1024);
    fixture.subscribe(READER, "answers.*", "1");
    fixture.subscribe(READER, "pulled", "2");
    fill(&mut fixture, "memory", 1..11);
    create(&mut fixture, "memory", r#""name":"p","deliver_policy":"all""#);
    let pull = |fixture: &mut HubFixture, batch: &str| {
        let subject = "$JS.API.CONSUMER.MSG.NEXT.memory.p";
        fixture.ask_all(READER, &[publish_for(subject, batch, "pulled")]);
        receive_all(fixture)
    };
    let without_heartbeat = r#"{"batch":4,"expires":60000000000}"#;
    let with_heartbeat = r#"{"batch":4,"expires":60000000000,"idle_heartbeat":30000000000}"#;
    let received = pull(&mut fixture, with_heartbeat);
    assert!(received.contains("memory.n") && gaps(&received).is_empty(), "{received}");
    fill(&mut fixture, "memory", 11..3000);
    let received = pull(&mut fixture, with_heartbeat);
    let missed = gaps(&received);
    assert!(missed.len() == 1 && missed[0].0 == 5 && missed[0].2 == "removed", "{received}");
    let first = missed[0].1 + 1;
    assert!(received.contains(&format!("$JS.ACK.memory.p.1.{first}.5.")), "{received}");
    // Without heartbeats, a pulling client might take the status for an error.
    fill(&mut fixture, "memory", 3000..6000);
    let received = pull(&mut fixture, without_heartbeat);
    assert!(received.contains("memory.n") && gaps(&received).is_empty(), "{received}");
    create(&mut fixture, "memory", r#""deliver_subject":"push","deliver_policy":"all""#);
    fixture.subscribe(READER, "push", "3");
    fixture.advance_time(100_000_000);
    let received = receive_all(&mut fixture);
    assert!(
        received.contains("memory.n") && gaps(&received).is_empty(),
        "one that begins misses nothing: {received}"
    );
}

/// Row 0.14: a round of retention is answered only at its end. A consumer that reaches removed records earlier moves
/// the stream's first sequence: API and metrics report what can be read.
#[test]
fn a_reader_that_meets_removed_records_moves_the_first_sequence() {
    let disk = long_records();
    let (mut fixture, _) = HubFixture::on(&disk, 8, 1 << 20);
    fixture.subscribe(READER, "answers.*", "1");
    fixture.subscribe(READER, "pulled", "2");
    create(&mut fixture, "disk", r#""name":"p","deliver_policy":"all""#);
    let pull = |fixture: &mut HubFixture| {
        let next = r#"{"batch":2,"expires":60000000000,"idle_heartbeat":30000000000}"#;
        fixture.ask_all(READER, &[publish_for("$JS.API.CONSUMER.MSG.NEXT.disk.p", next, "pulled")]);
        receive_all(fixture)
    };
    assert!(pull(&mut fixture).contains("$JS.ACK.disk.p.1.2.2."));
    let counters = fixture.hub.counters();
    let keep = LogRetention { records: Some(50), ..LogRetention::default() };
    let log = &mut fixture.hub.storage_mut().logs[0];
    log.retain(&keep, 0, u64::MAX).expect("nothing refuses");
    let first = log.source().first().expect("there are records");
    assert!((3..=50).contains(&first), "{first}");
    assert_eq!(counters.streams[0].first.get(), 1, "the hub has no answer");
    // The gap is reported once, and the records after it are sent once.
    let received = pull(&mut fixture);
    assert_eq!(gaps(&received), [(3, first - 1, "removed".to_owned())]);
    assert_eq!(counters.streams[0].first.get(), first);
    let info = api_request(&mut fixture, "STREAM.INFO.disk", "");
    assert!(info.contains(&format!(r#""first_seq":{first}"#)), "{info}");
    assert!(notices(&mut fixture).is_empty() && counters.streams[0].read_failures.get() == 0);
}
