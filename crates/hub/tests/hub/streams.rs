//! Streams: kept records, visibility, and answers to publishers.

use std::io::ErrorKind;

use stilling_hub::limits::{PENDING_DEFAULT, REPLIES_SIZE_MAX};
use stilling_hub::{
    ClientId, ClientOptions, HubRequest, Ingress, Loss, Publication, PublishOutcome, RefusalReason,
    StreamCondition,
};
use stilling_journal::disk::simulated::{DiskFaults, EIO, SimulatedDisk};
use stilling_journal::limits::BLOCK_SIZE;
use stilling_journal::{Batch, Frozen, JournalAnswer, LogConfig};

use crate::fixture::{ABLE, BATCH_SIZE, ConnectionOutput, HubFixture, SteppedStorage, publish_with};
use crate::fixture_requests::{publication, publish, publish_for};

const ALICE: ClientId = ClientId { shard: 0, token: 1 };
const BOB: ClientId = ClientId { shard: 1, token: 2 };

fn ack(inbox: &str, json: &str) -> String {
    format!("MSG {inbox} 1 {}\r\n{json}\r\n", json.len())
}

/// Invariant 5: neither an acknowledgement nor the record itself leaves before the sync that covers it.
#[test]
fn nothing_is_seen_or_acknowledged_before_it_is_durable() {
    let mut fixture = HubFixture::new();
    fixture.subscribe(ALICE, "inbox.>", "1");
    fixture.subscribe(BOB, "disk.>", "2");
    fixture.ask_all(ALICE, &[publish_for("disk.a", "x", "inbox.1"), HubRequest::Barrier]);
    fixture.turn();
    assert_eq!((fixture.received(ALICE).as_str(), fixture.received(BOB).as_str()), ("PONG\r\n", ""));
    assert!(fixture.hub.storage_mut().write());
    assert_eq!((fixture.received(ALICE).as_str(), fixture.received(BOB).as_str()), ("", ""));
    fixture.turn();
    assert_eq!(fixture.received(ALICE), ack("inbox.1", r#"{"stream":"disk","seq":1}"#));
    assert_eq!(fixture.received(BOB), "MSG disk.a 2 inbox.1 1\r\nx\r\n");
}

#[test]
fn memory_and_nothing_are_acknowledged_at_once() {
    let mut fixture = HubFixture::new();
    fixture.subscribe(ALICE, "inbox.>", "1");
    fixture.subscribe(BOB, ">", "2");
    fixture.ask_all(ALICE, &[publish_for("memory.a", "x", "inbox.1"), publish_for("none.a", "y", "inbox.2")]);
    let expected =
        [ack("inbox.1", r#"{"stream":"memory","seq":1}"#), ack("inbox.2", r#"{"stream":"none","seq":1}"#)]
            .concat();
    assert_eq!(fixture.received(ALICE), expected);
    let received = fixture.received(BOB);
    assert!(received.contains("MSG memory.a 2 inbox.1 1\r\nx\r\n"), "{received}");
    assert!(received.contains("MSG none.a 2 inbox.2 1\r\ny\r\n"), "{received}");
}

/// Records from the disk keep their reply subject, and a publisher with `no_echo` does not get them.
#[test]
fn what_comes_from_the_disk_has_its_reply_subject_and_no_echo() {
    const SILENT: ClientOptions = ClientOptions { no_echo: true, ..ABLE };
    for subject in ["disk.a", "memory.a"] {
        let mut fixture = HubFixture::new();
        fixture.subscribe(ALICE, "*.a", "1");
        fixture.subscribe(BOB, "*.a", "2");
        // Acknowledgements of duplicates lie between those of records.
        let id = "NATS/1.0\r\nNats-Msg-Id: q\r\n\r\n";
        let own = [
            publish_with(subject, "1", "", id),
            publish_with(subject, "again", "inbox.1", id),
            publish_for(subject, "2", "inbox.2"),
            publish(subject, "3"),
        ];
        assert_eq!(fixture.ask(ALICE, SILENT, &own), own.len());
        fixture.ask_all(BOB, &[publish_for(subject, "4", "inbox.4"), publish(subject, "5")]);
        fixture.run_until_settled();
        let expected = format!("MSG {subject} 1 inbox.4 1\r\n4\r\nMSG {subject} 1 1\r\n5\r\n");
        assert_eq!(fixture.received(ALICE), expected);
        let received = fixture.received(BOB);
        let replies: Vec<_> = received.lines().filter(|line| line.contains("inbox")).collect();
        assert_eq!(replies, [format!("MSG {subject} 2 inbox.2 1"), format!("MSG {subject} 2 inbox.4 1")]);
        assert_eq!(received.matches(subject).count(), 5, "{received}");
    }
}

#[test]
fn a_message_sent_twice_is_kept_once_and_acknowledged_when_the_first_is_durable() {
    let mut fixture = HubFixture::new();
    fixture.subscribe(ALICE, "inbox.>", "1");
    let id = "NATS/1.0\r\nNats-Msg-Id: q\r\n\r\n";
    let twice = [publish_with("disk.a", "x", "inbox.1", id), publish_with("disk.a", "x", "inbox.2", id)];
    fixture.ask_all(ALICE, &twice);
    fixture.turn();
    assert_eq!(fixture.received(ALICE), "");
    fixture.run_until_settled();
    let duplicate = ack("inbox.2", r#"{"stream":"disk","seq":1,"duplicate":true}"#);
    assert_eq!(fixture.received(ALICE), ack("inbox.1", r#"{"stream":"disk","seq":1}"#) + &duplicate);
    // Much later, the answer comes at once.
    fixture.ask_all(ALICE, &twice[1..]);
    assert_eq!(fixture.received(ALICE), duplicate);
    assert_eq!(fixture.hub.counters().duplicates.get(), 2);
    assert_eq!(fixture.hub.counters().streams[0].last.get(), 1);
}

/// As in nats-server: an empty id is no id, neither now nor after a rebuild of the window.
#[test]
fn an_empty_message_id_makes_no_duplicates() {
    let disk = SimulatedDisk::new();
    let id = "NATS/1.0\r\nNats-Msg-Id:\r\n\r\n";
    for life in 0..2_u64 {
        let (mut fixture, _) = HubFixture::on(&disk, 8, 1 << 20);
        for subject in ["disk.a", "memory.a"] {
            fixture.ask_all(ALICE, &[publish_with(subject, "x", "", id), publish_with(subject, "y", "", id)]);
        }
        fixture.run_until_settled();
        let counters = fixture.hub.counters();
        assert_eq!(counters.duplicates.get(), 0);
        assert_eq!((counters.streams[0].last.get(), counters.streams[1].last.get()), (2 * (life + 1), 2));
    }
}

/// The first of several ids counts, before and after a restart.
#[test]
fn the_first_of_several_ids_counts_before_and_after_a_restart() {
    let disk = SimulatedDisk::new();
    let both = "NATS/1.0\r\nNats-Msg-Id: q\r\nNats-Msg-Id: r\r\n\r\n";
    for _ in 0..2 {
        let (mut fixture, _) = HubFixture::on(&disk, 8, 1 << 20);
        fixture.ask_all(ALICE, &[publish_with("disk.a", "x", "", both)]);
        fixture.ask_all(ALICE, &[publish_with("disk.a", "x", "", "NATS/1.0\r\nNats-Msg-Id: q\r\n\r\n")]);
        fixture.run_until_settled();
        assert_eq!(fixture.hub.counters().streams[0].last.get(), 1);
    }
}

/// A repeated message names the last sequence of its first attempt.
#[test]
fn a_message_sent_twice_is_known_although_its_condition_holds_no_more() {
    let mut fixture = HubFixture::new();
    fixture.subscribe(ALICE, "inbox.>", "1");
    let headers = "NATS/1.0\r\nNats-Expected-Last-Sequence: 0\r\nNats-Msg-Id: q\r\n\r\n";
    for _ in 0..2 {
        fixture.ask_all(ALICE, &[publish_with("disk.a", "x", "inbox.1", headers)]);
        fixture.run_until_settled();
    }
    let received = fixture.received(ALICE);
    assert!(received.ends_with("{\"stream\":\"disk\",\"seq\":1,\"duplicate\":true}\r\n"), "{received}");
}

/// Retention runs while the stream is in use.
#[test]
fn retention_runs_for_a_disk_stream() {
    let mut fixture = HubFixture::new();
    for _ in 0..3 {
        fixture.advance_time(1_000_000_000);
        fixture.turn();
    }
    assert_eq!(fixture.hub.storage_mut().retained, [0], "once in a round of the three streams");
    // For any setting of the calendar.
    fixture.set_back_ns = 3_600_000_000_000;
    for _ in 0..3 {
        fixture.advance_time(1_000_000_000);
        fixture.turn();
    }
    assert_eq!(fixture.hub.storage_mut().retained, [0, 0], "the calendar was set back");
}

#[test]
fn a_condition_that_does_not_hold_is_refused_with_what_holds() {
    let mut fixture = HubFixture::new();
    fixture.subscribe(ALICE, "inbox.>", "1");
    fixture.ask_all(ALICE, &[publish("disk.a", "x")]);
    for (name, value, expected) in [
        ("Nats-Expected-Last-Sequence", "7", r#""err_code":10071,"description":"wrong last sequence: 1""#),
        ("Nats-Expected-Last-Sequence", "x", r#""err_code":10071"#),
        ("Nats-Expected-Stream", "other", r#""err_code":10060"#),
        ("Nats-Expected-Last-Msg-Id", "q", r#""err_code":10052"#),
        ("Nats-Rollup", "all", r#""err_code":10052"#),
    ] {
        let headers = format!("NATS/1.0\r\n{name}: {value}\r\n\r\n");
        fixture.ask_all(ALICE, &[publish_with("disk.a", "y", "inbox.1", &headers)]);
        let received = fixture.received(ALICE);
        assert!(received.contains(expected), "{name}: {received}");
    }
    for (name, value) in [("Nats-Expected-Last-Sequence", "1"), ("Nats-Expected-Stream", "disk")] {
        let headers = format!("NATS/1.0\r\n{name}: {value}\r\n\r\n");
        fixture.ask_all(ALICE, &[publish_with("disk.a", "y", "inbox.1", &headers)]);
    }
    fixture.run_until_settled();
    let received = fixture.received(ALICE);
    assert!(received.contains(r#""seq":2}"#) && received.contains(r#""seq":3}"#), "{received}");
    assert_eq!(fixture.hub.counters().losses(Ingress::Nats, Loss::Condition), 5);
}

/// Row 0.14: after a disk failure nothing is acknowledged, every message is answered, and other streams continue.
#[test]
fn a_disk_failure_freezes_the_stream_and_is_reported() {
    let disk = SimulatedDisk::new();
    let (mut fixture, _) = HubFixture::on(&disk, 8, 1 << 20);
    fixture.subscribe(ALICE, "inbox.>", "1");
    fixture.subscribe(BOB, "disk.>", "2");
    fixture.ask_all(ALICE, &[publish_for("disk.a", "before", "inbox.0")]);
    fixture.run_until_settled();
    assert_eq!(fixture.received(ALICE), ack("inbox.0", r#"{"stream":"disk","seq":1}"#));
    disk.fail(DiskFaults { writes: Some((0, EIO)), ..DiskFaults::default() });
    fixture.ask_all(ALICE, &[publish_for("disk.a", "lost", "inbox.1")]);
    fixture.ask_all(ALICE, &[publish_for("disk.a", "lost", "inbox.2")]);
    fixture.run_until_settled();
    fixture.ask_all(
        ALICE,
        &[publish_for("disk.a", "after", "inbox.3"), publish_for("memory.a", "other", "inbox.4")],
    );
    fixture.run_until_settled();
    let received = fixture.received(ALICE);
    for inbox in ["inbox.1", "inbox.2", "inbox.3"] {
        let refused = format!("MSG {inbox} 1 ");
        let at = received.find(&refused).unwrap_or_else(|| panic!("{inbox}: {received}"));
        assert!(
            received[at..].lines().nth(1).is_some_and(|json| json.contains(r#""code":503"#)),
            "{received}"
        );
    }
    assert!(received.contains(r#"{"stream":"memory","seq":1}"#), "{received}");
    assert_eq!(fixture.received(BOB), "MSG disk.a 2 inbox.0 6\r\nbefore\r\n");
    let counters = fixture.hub.counters();
    assert_eq!((counters.losses(Ingress::Nats, Loss::Frozen), counters.streams[0].frozen.get()), (3, 1));
}

/// Invariant 5: the writer thread has ended: its outstanding batches are refused, and so are later messages.
#[test]
fn the_end_of_the_writer_thread_freezes_the_stream_and_is_reported() {
    let mut fixture = HubFixture::new();
    fixture.subscribe(ALICE, "inbox.>", "1");
    fixture.subscribe(BOB, "disk.>", "2");
    fixture.ask_all(ALICE, &[publish_for("disk.a", "with it", "inbox.1")]);
    fixture.ask_all(ALICE, &[publish_for("disk.a", "open still", "inbox.2"), publish("disk.a", "unasked")]);
    fixture.hub.storage_mut().kill_writer();
    fixture.turn();
    fixture.hub.storage_mut().kill_writer();
    fixture.turn();
    fixture.ask_all(ALICE, &[publish_for("disk.a", "after", "inbox.3")]);
    let received = fixture.received(ALICE);
    for inbox in ["inbox.1", "inbox.2", "inbox.3"] {
        let at = received.find(inbox).unwrap_or_else(|| panic!("{inbox}: {received}"));
        assert!(received[at..].lines().nth(1).is_some_and(|json| json.contains("it has died")), "{received}");
    }
    assert_eq!(fixture.received(BOB), "");
    let counters = fixture.hub.counters();
    assert_eq!((counters.losses(Ingress::Nats, Loss::Frozen), counters.streams[0].frozen.get()), (4, 1));
    assert_eq!(counters.streams[0].health.get().condition, StreamCondition::Frozen);
    assert!(fixture.hub.is_drained(), "a drain need not wait for it");
}

/// Each stream refuses messages over its own maximum, with the reason.
#[test]
fn each_stream_has_its_own_longest_message() {
    let mut fixture = HubFixture::with(|streams| streams[1].message_size_max = 20);
    fixture.subscribe(ALICE, "inbox.>", "1");
    let headers = "NATS/1.0\r\nA: b\r\n\r\n";
    let size = 20 - headers.len();
    for (inbox, headers, size) in
        [("inbox.1", "", 20), ("inbox.2", "", 21), ("inbox.3", headers, size), ("inbox.4", headers, size + 1)]
    {
        fixture.ask_all(ALICE, &[publish_with("memory.a", &"x".repeat(size), inbox, headers)]);
    }
    fixture.ask_all(ALICE, &[publish_for("disk.a", "longer than twenty bytes", "inbox.5")]);
    fixture.run_until_settled();
    let received = fixture.received(ALICE);
    let refused: Vec<bool> = (1..6)
        .map(|inbox| {
            let at = received.find(&format!("inbox.{inbox} ")).expect("an answer");
            received[at..].lines().nth(1).is_some_and(|json| json.contains(r#""err_code":10054"#))
        })
        .collect();
    assert_eq!(refused, [false, true, false, true, false], "{received}");
    fixture.ask_all(ALICE, &[publish_for("$JS.API.STREAM.INFO.memory", "", "inbox.6")]);
    assert!(fixture.received(ALICE).contains(r#""max_msg_size":20"#));
}

/// A client recognises by the creation time whether a stream is still the same: a memory stream is created with its
/// server, a disk stream with its directory.
#[test]
fn a_stream_reports_when_it_was_created() {
    const FIRST_NS: u64 = 1_600_000_000_000_000_000;
    let created = |fixture: &mut HubFixture, stream: &str| {
        fixture.subscribe(ALICE, "inbox.>", "1");
        fixture.ask_all(ALICE, &[publish_for(&format!("$JS.API.STREAM.INFO.{stream}"), "", "inbox.1")]);
        let received = fixture.received(ALICE);
        let (_, rest) = received.split_once(r#""created":""#).unwrap_or_else(|| panic!("{received}"));
        rest.split('"').next().unwrap_or_default().to_owned()
    };
    let disk = SimulatedDisk::new();
    let on = |disk: &SimulatedDisk, created_ns| {
        HubFixture::configured(disk, (8, 1 << 20), (8, created_ns), |_| ()).0
    };
    let mut fixture = on(&disk, FIRST_NS);
    assert_eq!(created(&mut fixture, "disk"), "2020-09-13T12:26:40Z", "before its first record");
    fixture.ask_all(ALICE, &[publish("disk.a", "x")]);
    fixture.run_until_settled();
    drop(fixture);
    let mut fixture = on(&SimulatedDisk::with_files(disk.files()), FIRST_NS + 3_000_000_000);
    assert_eq!(created(&mut fixture, "disk"), "2020-09-13T12:26:40Z", "after a restart");
    for stream in ["memory", "none"] {
        assert_eq!(created(&mut fixture, stream), "1970-01-01T00:00:00Z");
    }
    let mut fixture = on(&SimulatedDisk::new(), FIRST_NS + 3_000_000_000);
    assert_eq!(created(&mut fixture, "disk"), "2020-09-13T12:26:43Z", "another directory is another stream");
}

/// Stream info has the times of records, or none if they are unknown.
#[test]
fn stream_info_contains_only_known_facts() {
    const NONE: &str = "0001-01-01T00:00:00Z";
    let disk = SimulatedDisk::new();
    let state = |fixture: &mut HubFixture, stream: &str| {
        fixture.ask_all(ALICE, &[publish_for(&format!("$JS.API.STREAM.INFO.{stream}"), "", "inbox.1")]);
        let received = fixture.received(ALICE);
        let (_, state) = received.split_once(r#""state":{"#).unwrap_or_else(|| panic!("{received}"));
        assert!(received.contains(r#""duplicate_window":120000000000,"#), "{received}");
        let value = |name: &str| {
            let (_, rest) = state.split_once(&format!("\"{name}\":")).expect("it is reported");
            rest.split([',', '}']).next().unwrap_or_default().trim_matches('"').to_owned()
        };
        ["messages", "first_seq", "last_seq", "first_ts", "last_ts", "bytes"].map(value)
    };
    let (first, last) = ("2023-11-14T22:13:20Z", "2023-11-14T22:15:00Z");
    for life in 0..2 {
        let (mut fixture, _) = HubFixture::on(&disk, 8, 1 << 20);
        fixture.subscribe(ALICE, "inbox.>", "1");
        let of_disk =
            if life == 0 { ["0", "1", "0", NONE, NONE, "0"] } else { ["2", "1", "2", NONE, last, "0"] };
        assert_eq!(state(&mut fixture, "disk"), of_disk);
        for stream in ["memory", "none"] {
            assert_eq!(state(&mut fixture, stream), ["0", "1", "0", NONE, NONE, "0"]);
        }
        if life == 0 {
            for _ in 0..2 {
                fixture
                    .ask_all(ALICE, &["disk.a", "memory.a", "none.a"].map(|subject| publish(subject, "x")));
                fixture.run_until_settled();
                fixture.advance_time(100_000_000_000);
            }
            assert_eq!(state(&mut fixture, "disk"), ["2", "1", "2", NONE, last, "0"]);
            let [messages, from, to, oldest, newest, bytes] = state(&mut fixture, "memory");
            assert_eq!([messages, from, to, oldest, newest], ["2", "1", "2", first, last]);
            assert!(bytes.parse::<usize>().is_ok_and(|bytes| bytes > 2 * "memory.ax".len()), "{bytes}");
            assert_eq!(state(&mut fixture, "none"), ["0", "3", "2", NONE, last, "0"]);
        }
    }
}

#[test]
fn a_record_that_no_batch_takes_is_refused() {
    let mut fixture = HubFixture::new();
    fixture.subscribe(ALICE, "inbox.>", "1");
    let payload = "x".repeat(BATCH_SIZE);
    for subject in ["disk.a", "memory.a"] {
        fixture.ask_all(ALICE, &[publish_for(subject, &payload, "inbox.1")]);
        let received = fixture.received(ALICE);
        assert!(received.contains(r#""err_code":10054"#), "{subject}: {received}");
    }
    assert_eq!(fixture.hub.counters().losses(Ingress::Nats, Loss::TooLarge), 2);
}

/// When the disk has all batches, the publisher is parked, and nothing is lost or reordered.
#[test]
fn without_a_free_batch_a_publisher_is_parked_and_resumes_where_it_was() {
    let (mut fixture, _) = HubFixture::on(&SimulatedDisk::new(), 2, 1 << 20);
    fixture.subscribe(ALICE, "inbox.>", "1");
    let payload = "x".repeat(3000);
    let requests: Vec<_> = (0..12).map(|_| publish_for("disk.a", &payload, "inbox.1")).collect();
    assert!((1..12).contains(&fixture.send_until_parked(ALICE, &requests)));
    fixture.run_until_settled();
    assert_eq!((fixture.processed(), fixture.parked()), (12, 0));
    let received = fixture.received(ALICE);
    let mut before = 0;
    for sequence in 1..=12 {
        let ack = format!("\"seq\":{sequence}}}");
        assert_eq!(received.matches(&ack).count(), 1, "{sequence}");
        let at = received.find(&ack).expect("it is there");
        assert!(before < at, "{received}");
        before = at;
    }
}

#[test]
fn a_ticket_gets_an_outcome() {
    let mut fixture = HubFixture::new();
    let with = |subject, ticket| {
        HubRequest::Publish(Publication { ticket: Some(ticket), ..publication(subject, "x") })
    };
    fixture.ask_all(BOB, &[with("disk.a", 1), with("memory.a", 2), with("elsewhere", 3)]);
    let stored = |stream, sequence| PublishOutcome::Stored { stream, sequence, duplicate: false };
    let passed = PublishOutcome::Forwarded { subscriptions: 0 };
    assert_eq!(
        fixture.outputs(BOB),
        [ConnectionOutput::PublishOutcome(2, stored(1, 1)), ConnectionOutput::PublishOutcome(3, passed)]
    );
    fixture.run_until_settled();
    assert_eq!(fixture.outputs(BOB), [ConnectionOutput::PublishOutcome(1, stored(0, 1))]);
    let headers = b"NATS/1.0\r\nNats-Expected-Last-Sequence: 9\r\n\r\n";
    let wrong = Publication { ticket: Some(4), headers, ..publication("disk.a", "x") };
    fixture.ask_all(BOB, &[HubRequest::Publish(wrong)]);
    let refused = PublishOutcome::Refused(RefusalReason::WrongLastSequence { stream: 0, last: 1 });
    assert_eq!(fixture.outputs(BOB), [ConnectionOutput::PublishOutcome(4, refused)]);
}

#[test]
fn a_close_comes_after_all_pending_answers() {
    let mut fixture = HubFixture::new();
    fixture.subscribe(ALICE, "inbox.>", "1");
    fixture.ask_all(ALICE, &[publish_for("disk.a", "x", "inbox.1"), HubRequest::CloseAfterAcks]);
    fixture.turn();
    assert_eq!(fixture.outputs(ALICE), []);
    fixture.run_until_settled();
    let acknowledged = ConnectionOutput::Text(ack("inbox.1", r#"{"stream":"disk","seq":1}"#));
    assert_eq!(fixture.outputs(ALICE), [acknowledged, ConnectionOutput::Close]);
    // Without pending answers, at once.
    fixture.ask_all(BOB, &[HubRequest::CloseAfterAcks]);
    assert_eq!(fixture.outputs(BOB), [ConnectionOutput::Close]);
    assert!(fixture.hub.is_drained());
}

/// A memory stream keeps the newest records within its bytes.
#[test]
fn a_stream_in_memory_lets_the_oldest_go() {
    let mut fixture = HubFixture::new();
    let payload = "x".repeat(1000);
    for _ in 0..200_000 / 7 {
        fixture.ask_all(ALICE, &[publish("memory.a", &payload)]);
    }
    let stream = &fixture.hub.counters().streams[1];
    assert_eq!(stream.last.get(), 200_000 / 7);
    assert_eq!(stream.first.get(), 1, "all of it fits into 64 MiB");
    for _ in 0..60_000 {
        fixture.ask_all(ALICE, &[publish("memory.a", &payload)]);
    }
    let (first, last) = (stream.first.get(), stream.last.get());
    let kept = (last - first + 1) * 1000;
    assert!((50_000_000..=64 * 1024 * 1024).contains(&kept), "{first} to {last}");
}

/// Processes `count` copies of a request: first while the disk does nothing, until the publisher is parked, then while
/// it writes. Returns how many were processed before the parking.
fn take_all(fixture: &mut HubFixture, request: &HubRequest<'_>, count: usize) -> usize {
    let (requests, before) = (vec![*request; count], fixture.processed());
    let mut taken = fixture.ask(ALICE, ABLE, &requests);
    let first = fixture.processed() - before;
    assert_eq!(fixture.parked(), 1);
    while fixture.processed() - before < count {
        let done = fixture.processed();
        fixture.run_until_settled();
        taken += fixture.ask(ALICE, ABLE, &requests[taken..]);
        assert!(fixture.processed() > done, "the disk has written, and {done} of {count} are processed");
    }
    fixture.run_until_settled();
    first
}

/// Invariant 4: a hung disk stops publishers, whatever form of answer they request.
#[test]
fn answers_that_wait_for_the_disk_are_bounded_by_number_and_by_bytes() {
    let id = "NATS/1.0\r\nNats-Msg-Id: q\r\n\r\n";
    let long = format!("inbox.{}", "x".repeat(60_000));
    let pending_max = PENDING_DEFAULT as usize;
    let (many, some) = (pending_max + 1000, REPLIES_SIZE_MAX / long.len() + 100);
    for (request, count, most) in [
        (publish_with("disk.a", "", "i", id), many, pending_max),
        (publish_with("disk.a", "", &long, id), some, REPLIES_SIZE_MAX / long.len()),
        (publish_with("disk.a", "", &long, ""), some, REPLIES_SIZE_MAX / long.len()),
    ] {
        let mut fixture = HubFixture::new();
        // The batch is with the disk; duplicates wait for it.
        fixture.ask_all(ALICE, &[publish_with("disk.a", "", "", id)]);
        assert_eq!(take_all(&mut fixture, &request, count), most);
        let counters = fixture.hub.counters();
        assert_eq!(counters.publish_outcomes.get(), count as u64, "all are answered in the end");
        assert_eq!(counters.streams[0].pending.get(), 0);
    }
}

/// Row 0.29: messages without an answer wait for the disk like others: they are counted, with their maximum, bounded by
/// the stream's own limit, and none remains when the disk has written.
#[test]
fn messages_without_answers_are_pending_too_and_bounded() {
    const MOST: usize = 100;
    let disk = SimulatedDisk::new();
    let (mut fixture, _) =
        HubFixture::changed(&disk, (8, 1 << 20), |streams| streams[0].pending_max = MOST as u32);
    for request in [publish("disk.a", "x"), publish_for("disk.a", "x", "inbox.1")] {
        let before = fixture.hub.counters().streams[0].last.get();
        assert_eq!(take_all(&mut fixture, &request, 1000), MOST);
        let stream = &fixture.hub.counters().streams[0];
        assert_eq!((stream.pending.get(), stream.pending_peak.get()), (0, MOST as u64));
        assert_eq!(stream.last.get() - before, 1000, "all are stored in the end");
    }
    fixture.ask(ALICE, ABLE, &[publish("disk.a", "x"); 7]);
    assert_eq!(fixture.hub.counters().streams[0].pending.get(), 7);
}

impl SteppedStorage {
    /// Ends the writer thread; all its batches are lost with it.
    fn kill_writer(&mut self) {
        for at in 0..self.waiting.len().max(1) {
            let (stream, batch) =
                self.waiting.get(at).map_or((0, None), |(stream, batch, _)| (*stream, Some(batch)));
            let watermark = self.logs[stream as usize].durable();
            assert!(batch.is_none_or(|batch| batch.first() > watermark));
            let frozen = Frozen { reason: "it has died".into(), kind: ErrorKind::Other };
            self.answers
                .push_back((JournalAnswer::Frozen { stream, watermark, frozen, is_batch_lost: true }, None));
        }
        self.waiting.clear();
    }
}

/// Invariant 6: a burst is stored in batches that fit into the segments of its stream, so that retention, which removes
/// whole segments, leaves at least the bound less one segment.
#[test]
fn a_burst_is_stored_in_batches_that_fit_into_a_segment() {
    let segments = LogConfig::for_retention(Some(1024 * 1024)).segment_size as usize;
    let mut fixture = HubFixture::with(|streams| streams[0].retention.bytes = 1024 * 1024);
    fixture.hub.storage_mut().idle = (0..8).map(|_| Batch::new(1024 * 1024)).collect();
    let (short, long) = ("x".repeat(1000), "x".repeat(400_000));
    let mut requests = vec![publish("disk.a", &short); 600];
    // A record longer than a segment gets a batch of its own.
    requests.insert(300, publish("disk.a", &long));
    fixture.ask_all(ALICE, &requests);
    fixture.turn();
    let waiting = &fixture.hub.storage_mut().waiting;
    let sizes: Vec<_> = waiting.iter().map(|(_, batch, _)| (batch.count(), batch.size())).collect();
    assert!(sizes.iter().all(|(count, size)| *count == 1 || size + BLOCK_SIZE <= segments), "{sizes:?}");
    assert!(sizes.iter().any(|(count, size)| *count == 1 && *size > 400_000), "{sizes:?}");
    assert!(sizes.len() >= 4, "{sizes:?}");
    fixture.run_until_settled();
    assert_eq!(fixture.hub.storage_mut().outputs[0], 601);
}
