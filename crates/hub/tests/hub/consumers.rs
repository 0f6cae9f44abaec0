//! Consumers that follow a stream from a start position.

use stilling_hub::limits::{DELIVERY_BATCH_SIZE, MEMORY_TIME_STEP_NS};
use stilling_hub::{ClientId, HubRequest};
use stilling_journal::disk::simulated::SimulatedDisk;

use crate::fixture::{ConnectionOutput, HubFixture, ShardRequest};
use crate::fixture_requests::{publish, publish_for};

pub(crate) const READER: ClientId = ClientId { shard: 0, token: 1 };
pub(crate) const WRITER: ClientId = ClientId { shard: 1, token: 2 };

pub(crate) fn api_request(fixture: &mut HubFixture, subject: &str, payload: &str) -> String {
    fixture.ask_all(READER, &[publish_for(&format!("$JS.API.{subject}"), payload, "answers.1")]);
    fixture.run_until_settled();
    let received = fixture.received(READER);
    let at = received.find("answers.1").unwrap_or_else(|| panic!("no answer to {subject}: {received}"));
    received[at..].lines().nth(1).unwrap_or_default().to_owned()
}

pub(crate) fn fixture() -> HubFixture {
    let mut fixture = HubFixture::new();
    fixture.subscribe(READER, "answers.*", "1");
    fixture
}

pub(crate) fn fill(fixture: &mut HubFixture, stream: &str, range: std::ops::Range<u64>) {
    for number in range {
        fixture.ask_all(WRITER, &[publish(&format!("{stream}.n"), &number.to_string())]);
    }
    fixture.run_until_settled();
}

/// Returns everything pushed to the subscription `push`, and reports it as sent to the hub, until nothing more arrives.
pub(crate) fn take(fixture: &mut HubFixture) -> Vec<(u64, String)> {
    let mut all = Vec::new();
    loop {
        fixture.run_until_settled();
        let outputs = fixture.outputs(READER);
        if outputs.is_empty() {
            return all;
        }
        for outputs in outputs {
            match outputs {
                ConnectionOutput::Mark(mark) => fixture.ask_all(READER, &[HubRequest::MarkReached { mark }]),
                ConnectionOutput::Text(text) => {
                    let mut lines = text.split("\r\n");
                    while let Some(line) = lines.next() {
                        let Some(ack) = line.split(' ').find(|word| word.starts_with("$JS.ACK.")) else {
                            continue;
                        };
                        let sequence = ack.split('.').nth(5).and_then(|word| word.parse().ok());
                        let payload = lines.next().unwrap_or_default().to_owned();
                        all.push((sequence.expect("a sequence"), payload));
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

pub(crate) fn create(fixture: &mut HubFixture, stream: &str, config: &str) -> String {
    let payload = format!(r#"{{"stream_name":"{stream}","config":{{"ack_policy":"none",{config}}}}}"#);
    api_request(fixture, &format!("CONSUMER.CREATE.{stream}"), &payload)
}

#[test]
fn stored_records_arrive_from_the_requested_position_then_new_ones() {
    for stream in ["disk", "memory"] {
        let mut fixture = fixture();
        fill(&mut fixture, stream, 1..501);
        let config = r#""deliver_subject":"push","deliver_policy":"by_start_sequence","opt_start_seq":100"#;
        let answer = create(&mut fixture, stream, config);
        assert!(answer.contains(r#""num_pending":401"#), "{answer}");
        assert_eq!(take(&mut fixture), [], "no subscriber yet");
        fixture.subscribe(READER, "push", "2");
        fixture.advance_time(100_000_000);
        let expected: Vec<_> = (100..501).map(|number| (number, number.to_string())).collect();
        assert_eq!(take(&mut fixture), expected, "{stream}");
        fill(&mut fixture, stream, 501..504);
        let expected: Vec<_> = (501..504).map(|number| (number, number.to_string())).collect();
        assert_eq!(take(&mut fixture), expected, "{stream}");
    }
}

/// The pending count of a message includes later ones of its batch, although they become visible together.
#[test]
fn each_message_carries_its_pending_count() {
    for stream in ["disk", "memory"] {
        let mut fixture = fixture();
        fixture.subscribe(READER, "push", "2");
        create(&mut fixture, stream, r#""deliver_subject":"push","deliver_policy":"new""#);
        fixture.advance_time(100_000_000);
        fixture.run_until_settled();
        let subject = format!("{stream}.n");
        let all: Vec<_> = (0..5).map(|_| publish(&subject, "x")).collect();
        fixture.ask_all(WRITER, &all);
        fixture.run_until_settled();
        let received = fixture.received(READER);
        let acks = received.split([' ', '\r']).filter(|word| word.starts_with("$JS.ACK."));
        let pending: Vec<_> = acks.filter_map(|ack| ack.rsplit('.').next()).collect();
        // In memory each message is sent before the next one arrives.
        let expected = if stream == "disk" { ["4", "3", "2", "1", "0"] } else { ["0"; 5] };
        assert_eq!(pending, expected, "{stream}");
    }
}

/// A memory stream knows the time of each record, not only that of its batch.
#[test]
fn records_in_memory_are_found_by_their_time() {
    let mut fixture = HubFixture::with(|streams| streams[1].retention.bytes = 32 * 1024);
    fixture.subscribe(READER, "answers.*", "1");
    for number in 0..2000_u64 {
        // Retention removes most of the oldest records.
        fixture.ask_all(WRITER, &[publish("memory.n", &format!("{}", fixture.now_ns))]);
        fixture.advance_time(if number % 10 == 0 { 7_000_000_000 } else { 1000 });
    }
    let start_ns = fixture.now_ns - 5 * 7_000_000_000;
    let start = jiff::Timestamp::from_nanosecond(i128::from(start_ns)).expect("a time");
    let config =
        format!(r#""deliver_subject":"push","deliver_policy":"by_start_time","opt_start_time":"{start}""#);
    create(&mut fixture, "memory", &config);
    fixture.subscribe(READER, "push", "2");
    fixture.advance_time(100_000_000);
    fixture.run_until_settled();
    let received = fixture.received(READER);
    let mut count = 0;
    let mut lines = received.lines();
    while let Some(line) = lines.next() {
        let Some(ack) = line.split(' ').find(|word| word.starts_with("$JS.ACK.")) else { continue };
        let told_ns: u64 = ack.split('.').nth(7).and_then(|word| word.parse().ok()).expect("a time");
        let came_ns: u64 = lines.next().and_then(|payload| payload.parse().ok()).expect("a time");
        assert!(came_ns.abs_diff(told_ns) < MEMORY_TIME_STEP_NS, "{line}");
        assert!(came_ns >= start_ns - MEMORY_TIME_STEP_NS, "{line}");
        count += 1;
    }
    assert!((40..60).contains(&count), "{count} records");
}

/// As in nats-server, a consumer continues with what exists; the records that it missed are counted.
#[test]
fn what_consumers_pass_over_is_counted() {
    let mut fixture = HubFixture::with(|streams| streams[1].retention.bytes = 32 * 1024);
    fixture.subscribe(READER, "answers.*", "1");
    fixture.subscribe(READER, "pulled", "2");
    fill(&mut fixture, "memory", 1..11);
    create(&mut fixture, "memory", r#""name":"p","deliver_policy":"all""#);
    let pull = |fixture: &mut HubFixture| {
        let subject = "$JS.API.CONSUMER.MSG.NEXT.memory.p";
        fixture.ask_all(READER, &[publish_for(subject, r#"{"batch":4}"#, "pulled")]);
        take(fixture).first().expect("a record").0
    };
    assert_eq!(pull(&mut fixture), 1);
    fill(&mut fixture, "memory", 11..3000);
    let counters = fixture.hub.counters();
    assert_eq!(counters.streams[1].skipped_removed.get(), 0, "not missed yet");
    let next = pull(&mut fixture);
    assert!(next > 5, "the oldest have gone");
    fixture.turn();
    assert_eq!(counters.streams[1].skipped_removed.get(), next - 5);
    assert_eq!(pull(&mut fixture), next + 4);
    // A consumer that starts with the oldest record has missed nothing.
    create(&mut fixture, "memory", r#""deliver_subject":"push","deliver_policy":"all""#);
    fixture.subscribe(READER, "push", "3");
    fixture.advance_time(100_000_000);
    assert!(!take(&mut fixture).is_empty());
    assert_eq!(counters.streams[1].skipped_removed.get(), next - 5);
    assert_eq!(counters.streams[1].skipped_damaged.get(), 0);
}

/// Damaged records that a consumer missed are counted.
#[test]
fn what_is_damaged_before_a_consumer_is_counted() {
    let disk = SimulatedDisk::new();
    let (mut fixture, _) = HubFixture::on(&disk, 8, 1 << 20);
    fixture.subscribe(READER, "answers.*", "1");
    for number in 0..100 {
        fill(&mut fixture, "disk", number * 5..number * 5 + 5);
    }
    let (name, content) = disk.files().into_iter().max_by_key(|(_, content)| content.len()).expect("a file");
    let at = content.windows(6).position(|bytes| bytes == b"disk.n").expect("a record") + 6;
    disk.change(&name, |content| content[at] ^= 1);
    create(&mut fixture, "disk", r#""deliver_subject":"push","deliver_policy":"all""#);
    fixture.subscribe(READER, "push", "2");
    fixture.advance_time(100_000_000);
    let got = take(&mut fixture).len() as u64;
    fixture.turn();
    let damaged = fixture.hub.counters().streams[0].skipped_damaged.get();
    assert!(damaged > 0);
    assert_eq!(got + damaged, 500);
}

/// For any interleaving of reads and writes each record arrives once, in order.
#[test]
fn a_consumer_that_catches_up_misses_nothing_and_gets_nothing_twice() {
    for stride in 1..20_u64 {
        let mut fixture = fixture();
        fill(&mut fixture, "disk", 1..40);
        create(&mut fixture, "disk", r#""deliver_subject":"push","deliver_policy":"all""#);
        fixture.subscribe(READER, "push", "2");
        fixture.advance_time(100_000_000);
        let mut got = Vec::new();
        for number in 40..400 {
            fixture.ask_all(WRITER, &[publish("disk.n", &number.to_string())]);
            // Disk, reader and hub run at different speeds.
            let reads = number % (stride + 3) == 0;
            let reads_first = number % 2 == 0;
            if reads && reads_first {
                fixture.hub.storage_mut().serve_read();
            }
            if number % stride == 0 {
                fixture.hub.storage_mut().write();
            }
            if reads && !reads_first {
                fixture.hub.storage_mut().serve_read();
            }
            fixture.turn();
            if number % (stride + 7) == 0 {
                got.extend(take(&mut fixture));
            }
        }
        got.extend(take(&mut fixture));
        let expected: Vec<_> = (1..400).map(|number| (number, number.to_string())).collect();
        assert_eq!(got, expected, "stride {stride}");
    }
}

/// One chunk is in flight, however far behind the consumer is.
#[test]
fn what_is_behind_goes_out_only_as_fast_as_it_leaves() {
    let mut fixture = fixture();
    let payload = "x".repeat(5000);
    for _ in 0..300 {
        fixture.ask_all(WRITER, &[publish("disk.n", &payload)]);
        fixture.run_until_settled();
    }
    create(&mut fixture, "disk", r#""deliver_subject":"push","deliver_policy":"all""#);
    fixture.subscribe(READER, "push", "2");
    fixture.advance_time(100_000_000);
    fixture.run_until_settled();
    let outputs = fixture.outputs(READER);
    let size: usize = outputs
        .iter()
        .map(|outputs| if let ConnectionOutput::Text(text) = outputs { text.len() } else { 0 })
        .sum();
    assert!((200_000..300_000).contains(&size), "{size} bytes");
    assert_eq!(outputs.iter().filter(|outputs| matches!(outputs, ConnectionOutput::Mark(_))).count(), 1);
    fixture.advance_time(1_000_000_000);
    fixture.run_until_settled();
    assert_eq!(fixture.outputs(READER), [], "more came before that had left");
}

#[test]
fn a_filter_leaves_out_the_others() {
    let mut fixture = fixture();
    for number in 0..20 {
        let subject = if number % 5 == 0 { "disk.five" } else { "disk.other" };
        fixture.ask_all(WRITER, &[publish(subject, &number.to_string())]);
    }
    fixture.run_until_settled();
    create(
        &mut fixture,
        "disk",
        r#""deliver_subject":"push","deliver_policy":"all","filter_subject":"disk.five""#,
    );
    fixture.subscribe(READER, "push", "2");
    fixture.advance_time(100_000_000);
    let payloads: Vec<_> = take(&mut fixture).into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(payloads, ["0", "5", "10", "15"]);
    fixture.ask_all(WRITER, &[publish("disk.other", "x"), publish("disk.five", "y")]);
    let payloads: Vec<_> = take(&mut fixture).into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(payloads, ["y"]);
}

#[test]
fn pull_requests_are_served_and_end() {
    let mut fixture = fixture();
    fill(&mut fixture, "disk", 1..11);
    fixture.subscribe(READER, "pulled", "2");
    create(&mut fixture, "disk", r#""name":"p","deliver_policy":"all""#);
    let pull = |fixture: &mut HubFixture, what: &str| {
        fixture.ask_all(READER, &[publish_for("$JS.API.CONSUMER.MSG.NEXT.disk.p", what, "pulled")]);
    };
    pull(&mut fixture, r#"{"batch":4}"#);
    assert_eq!(take(&mut fixture).len(), 4);
    pull(&mut fixture, r#"{"batch":100,"expires":1000000000}"#);
    let got = take(&mut fixture);
    assert_eq!((got.len(), got[0].0, got[5].0), (6, 5, 10));
    // The request is still open: new records arrive.
    fill(&mut fixture, "disk", 11..12);
    assert_eq!(take(&mut fixture), [(11, "11".to_owned())]);
    fixture.advance_time(2_000_000_000);
    fixture.run_until_settled();
    assert!(fixture.received(READER).contains("408 Request Timeout"));
    pull(&mut fixture, r#"{"batch":1,"no_wait":true}"#);
    fixture.run_until_settled();
    assert!(fixture.received(READER).contains("404 No Messages"));
    // Clients take this status as a sign to create their consumer again.
    fixture.ask_all(READER, &[publish_for("$JS.API.CONSUMER.MSG.NEXT.disk.gone", "", "pulled")]);
    fixture.run_until_settled();
    let received = fixture.received(READER);
    assert!(received.contains("NATS/1.0 503\r\n"), "{received}");
}

#[test]
fn an_idle_consumer_sends_heartbeats_and_expires_without_subscribers() {
    let mut fixture = fixture();
    fixture.subscribe(READER, "push", "2");
    create(&mut fixture, "disk", r#""name":"c","deliver_subject":"push","idle_heartbeat":1000000000"#);
    take(&mut fixture);
    fixture.advance_time(1_100_000_000);
    fixture.run_until_settled();
    let received = fixture.received(READER);
    assert!(
        received.contains("100 Idle Heartbeat") && received.contains("Nats-Last-Stream: 0"),
        "{received}"
    );
    fixture.ask_all(READER, &[ShardRequest::Unsubscribe { sid: b"2", after: None }]);
    fixture.advance_time(4_000_000_000);
    fixture.run_until_settled();
    assert!(api_request(&mut fixture, "CONSUMER.INFO.disk.c", "").contains(r#""name":"c""#));
    fixture.advance_time(6_000_000_000);
    fixture.run_until_settled();
    assert!(api_request(&mut fixture, "CONSUMER.INFO.disk.c", "").contains("consumer not found"));
    assert_eq!(fixture.hub.counters().consumers.get(), 0);
}

/// No mark will be answered: the consumer waits for its next subscriber, or expires.
#[test]
fn a_client_that_is_gone_in_the_middle_of_a_replay_leaves_no_consumer_behind() {
    let mut fixture = fixture();
    fill(&mut fixture, "disk", 1..100);
    create(&mut fixture, "disk", r#""name":"c","deliver_subject":"push","deliver_policy":"all""#);
    let other = ClientId { shard: 1, token: 7 };
    fixture.subscribe(other, "push", "2");
    fixture.advance_time(100_000_000);
    fixture.run_until_settled();
    assert!(fixture.outputs(other).iter().any(|outputs| matches!(outputs, ConnectionOutput::Mark(_))));
    fixture.ask_all(other, &[HubRequest::Disconnect]);
    fixture.subscribe(READER, "push", "2");
    fill(&mut fixture, "disk", 100..103);
    fixture.advance_time(100_000_000);
    let expected: Vec<_> = (100..103).map(|number| (number, number.to_string())).collect();
    assert_eq!(take(&mut fixture), expected);
    fixture.ask_all(READER, &[ShardRequest::Unsubscribe { sid: b"2", after: None }]);
    for _ in 0..2 {
        fixture.advance_time(6_000_000_000);
        fixture.run_until_settled();
    }
    assert_eq!(fixture.hub.counters().consumers.get(), 0);
}

/// As in nats-server: a consumer created behind the last reported sequence misses nothing and repeats nothing.
#[test]
fn an_idle_consumer_reports_the_sequence_before_its_first() {
    for stream in ["disk", "memory"] {
        let mut fixture = fixture();
        fill(&mut fixture, stream, 1..8);
        for (policy, expected) in [
            (r#""deliver_policy":"new""#, 7),
            (r#""deliver_policy":"last""#, 6),
            (r#""deliver_policy":"all""#, 0),
            (r#""deliver_policy":"by_start_sequence","opt_start_seq":5"#, 4),
        ] {
            let config = format!(r#""name":"c","deliver_subject":"push",{policy}"#);
            let expected = format!(r#""stream_seq":{expected}"#);
            let delivered = |answer: &str| {
                let (_, rest) = answer.split_once(r#""delivered":{"#).expect("what was delivered");
                rest.split('}').next().unwrap_or_default().to_owned()
            };
            let answer = create(&mut fixture, stream, &config);
            assert!(delivered(&answer).contains(&expected), "{policy}: {answer}");
            let answer = api_request(&mut fixture, &format!("CONSUMER.INFO.{stream}.c"), "");
            assert!(delivered(&answer).contains(&expected), "{policy}: {answer}");
            api_request(&mut fixture, &format!("CONSUMER.DELETE.{stream}.c"), "");
        }
    }
}

/// "Each record once, in order": records that one subscriber did not receive go to the next one: in the middle of a
/// chunk, after a subscription with a maximum, and after a disconnect while the rest has no room.
#[test]
fn undelivered_records_of_a_chunk_go_to_the_next_subscriber() {
    for stream in ["disk", "memory"] {
        let mut fixture = fixture();
        fill(&mut fixture, stream, 1..101);
        create(&mut fixture, stream, r#""deliver_subject":"push","deliver_policy":"all""#);
        fixture.subscribe(READER, "push", "2");
        fixture.ask_all(READER, &[ShardRequest::Unsubscribe { sid: b"2", after: Some(30) }]);
        fixture.advance_time(100_000_000);
        let mut got = take(&mut fixture);
        assert_eq!(got.len(), 30, "{stream}");
        fixture.subscribe(READER, "push", "3");
        fixture.advance_time(100_000_000);
        got.extend(take(&mut fixture));
        let expected: Vec<_> = (1..101).map(|number| (number, number.to_string())).collect();
        assert_eq!(got, expected, "{stream}");
    }
}

#[test]
fn records_without_room_survive_the_connection_that_left() {
    let (mut fixture, _) = HubFixture::on(&SimulatedDisk::new(), 8, 1);
    fixture.subscribe(READER, "answers.*", "1");
    let payload = "x".repeat(1000);
    for _ in 0..800 {
        fixture.ask_all(WRITER, &[publish("disk.n", &payload)]);
        fixture.run_until_settled();
    }
    create(&mut fixture, "disk", r#""name":"c","deliver_subject":"push","deliver_policy":"all""#);
    let other = ClientId { shard: 0, token: 7 };
    fixture.subscribe(other, "push", "2");
    fixture.advance_time(100_000_000);
    fixture.subscribe(other, "noise", "3");
    fixture.received(READER);
    // The shard does not run: it holds one batch, another is nearly full, and the rest of a chunk waits.
    let noise = "z".repeat(200_000);
    for _ in 0..2 {
        fixture.ask_all(WRITER, &[publish("noise", &noise)]);
    }
    fixture.run_until_settled();
    let received = fixture.received(other).matches("$JS.ACK.").count() as u64;
    fixture.ask_all(other, &[HubRequest::Disconnect]);
    fixture.run_until_settled();
    fixture.poll_shards();
    fixture.subscribe(READER, "push", "3");
    fixture.advance_time(100_000_000);
    let got = take(&mut fixture);
    let sequences: Vec<_> = got.into_iter().map(|(sequence, _)| sequence).collect();
    // Only what its shard holds is lost with the connection.
    let last = sequences.first().expect("there are some") - 1;
    assert!((received.max(10)..200).contains(&last), "{last} of a chunk of about 250");
    let expected: Vec<_> = (last + 1..801).collect();
    assert_eq!(sequences, expected, "{last} were sent before");
}

/// As in nats-server, deleting a consumer ends its open pull requests with a status.
#[test]
fn deleting_a_consumer_ends_its_pull_requests() {
    let mut fixture = fixture();
    fixture.subscribe(READER, "pulled.*", "2");
    create(&mut fixture, "disk", r#""name":"p""#);
    for reply in ["pulled.1", "pulled.2"] {
        let subject = "$JS.API.CONSUMER.MSG.NEXT.disk.p";
        fixture.ask_all(READER, &[publish_for(subject, r#"{"batch":5,"expires":9000000000}"#, reply)]);
    }
    fixture.run_until_settled();
    assert_eq!(fixture.received(READER), "");
    fixture.ask_all(READER, &[publish_for("$JS.API.CONSUMER.DELETE.disk.p", "", "answers.1")]);
    let received = fixture.received(READER);
    let status = "NATS/1.0 409 Consumer Deleted\r\nNats-Pending-Messages: 5\r\nNats-Pending-Bytes: 0\r\n\r\n";
    assert_eq!(received.matches(status).count(), 2, "{received}");
    assert!(received.contains("pulled.1") && received.contains("pulled.2"), "{received}");
    assert!(received.contains(r#""success":true"#), "{received}");
}

/// A consumer without matches in a long stream reads it in parts, and others run in between.
#[test]
fn a_filter_that_takes_nothing_of_a_long_stream_comes_to_its_end() {
    let mut fixture = fixture();
    let payload = "x".repeat(4000);
    for _ in 0..10_000 {
        fixture.ask_all(WRITER, &[publish("memory.other", &payload)]);
    }
    create(&mut fixture, "memory", r#""deliver_subject":"push","filter_subject":"memory.this""#);
    fixture.subscribe(READER, "push", "2");
    fixture.advance_time(100_000_000);
    let mut turns = 0;
    while {
        fixture.turn();
        !fixture.hub.is_quiet()
    } {
        turns += 1;
    }
    assert!(turns > 100, "40 MB in {turns} turns");
    fixture.ask_all(WRITER, &[publish("memory.this", "y")]);
    let payloads: Vec<_> = take(&mut fixture).into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(payloads, ["y"]);
}

/// Intervals and timeouts hold although the calendar is set back.
#[test]
fn consumer_timers_ignore_a_calendar_that_is_set_back() {
    let mut fixture = fixture();
    fixture.subscribe(READER, "push", "2");
    fixture.subscribe(READER, "pulled", "3");
    create(&mut fixture, "disk", r#""name":"c","deliver_subject":"push","idle_heartbeat":1000000000"#);
    create(&mut fixture, "disk", r#""name":"p""#);
    let pull = r#"{"batch":1,"expires":2000000000}"#;
    fixture.ask_all(READER, &[publish_for("$JS.API.CONSUMER.MSG.NEXT.disk.p", pull, "pulled")]);
    take(&mut fixture);
    fixture.set_back_ns = 3_600_000_000_000;
    fixture.advance_time(1_100_000_000);
    fixture.run_until_settled();
    let received = fixture.received(READER);
    assert!(received.contains("100 Idle Heartbeat") && !received.contains("408"), "{received}");
    fixture.advance_time(1_000_000_000);
    fixture.run_until_settled();
    assert!(fixture.received(READER).contains("408 Request Timeout"));
    assert!(api_request(&mut fixture, "CONSUMER.INFO.disk.p", "").contains(r#""name":"p""#));
    for _ in 0..6 {
        fixture.advance_time(1_000_000_000);
        fixture.run_until_settled();
    }
    assert!(api_request(&mut fixture, "CONSUMER.INFO.disk.p", "").contains("consumer not found"));
    // Records have calendar time.
    fixture.ask_all(WRITER, &[publish("memory.n", "x")]);
    let outputs =
        jiff::Timestamp::from_nanosecond(i128::from(fixture.now_ns - fixture.set_back_ns)).expect("a time");
    let message = api_request(&mut fixture, "STREAM.MSG.GET.memory", r#"{"seq":1}"#);
    assert!(message.contains(&format!(r#""time":"{outputs}""#)), "{message}");
}

/// A follower without a subscriber for a moment continues where it was.
#[test]
fn a_returning_subscriber_gets_the_records_in_between() {
    for stream in ["disk", "memory"] {
        let mut fixture = fixture();
        fixture.subscribe(READER, "push", "2");
        create(&mut fixture, stream, r#""deliver_subject":"push""#);
        fill(&mut fixture, stream, 1..3);
        assert_eq!(take(&mut fixture).len(), 2);
        fixture.ask_all(READER, &[ShardRequest::Unsubscribe { sid: b"2", after: None }]);
        fixture.advance_time(100_000_000);
        fill(&mut fixture, stream, 3..6);
        assert_eq!(take(&mut fixture), []);
        fixture.subscribe(READER, "push", "3");
        fixture.advance_time(100_000_000);
        let got: Vec<_> = take(&mut fixture).into_iter().map(|(sequence, _)| sequence).collect();
        assert_eq!(got, [3, 4, 5], "{stream}");
        fill(&mut fixture, stream, 6..7);
        assert_eq!(take(&mut fixture).len(), 1, "{stream}");
    }
}

/// A failed read does not move a consumer that starts at a time back to the first record.
#[test]
fn a_consumer_that_begins_at_a_time_does_so_also_when_reading_has_failed() {
    let mut fixture = fixture();
    fill(&mut fixture, "disk", 1..10);
    fixture.advance_time(60_000_000_000);
    let start = jiff::Timestamp::from_nanosecond(i128::from(fixture.now_ns)).expect("a time");
    fill(&mut fixture, "disk", 10..12);
    fixture.subscribe(READER, "push", "2");
    let config = format!(
        r#"{{"config":{{"ack_policy":"none","deliver_subject":"push",
            "deliver_policy":"by_start_time","opt_start_time":"{start}"}}}}"#
    );
    fixture.ask_all(READER, &[publish_for("$JS.API.CONSUMER.CREATE.disk", &config, "answers.1")]);
    fixture.hub.storage_mut().fail_read();
    fixture.turn();
    fixture.advance_time(100_000_000);
    let got: Vec<_> = take(&mut fixture).into_iter().map(|(sequence, _)| sequence).collect();
    assert_eq!(got, [10, 11]);
}

/// The messages of a chunk must be sent before more is read, also when its rest waited for room and has another target;
/// a disconnected client is not waited for.
#[test]
fn a_chunk_that_waited_for_room_is_waited_for_as_any_other() {
    for leaves in [false, true] {
        let (mut fixture, _) = HubFixture::on(&SimulatedDisk::new(), 8, 1);
        fixture.subscribe(READER, "push", "2");
        fixture.subscribe(READER, "plain", "3");
        let payload = "x".repeat(8000);
        fixture.ask_all(WRITER, &[publish("memory.this", &payload)]);
        for number in 0..5 {
            fixture.ask_all(WRITER, &[publish("memory.other", &number.to_string())]);
        }
        // The shard holds its one batch, and the next one is almost full.
        let rest = "x".repeat(DELIVERY_BATCH_SIZE - 1000);
        fixture.ask_all(WRITER, &[publish("plain", "x")]);
        fixture.ask_all(WRITER, &[publish("plain", &rest)]);
        let config =
            r#"{"config":{"ack_policy":"none","deliver_subject":"push","filter_subject":"memory.this"}}"#;
        fixture.ask_all(READER, &[publish("$JS.API.CONSUMER.CREATE.memory", config)]);
        fixture.turn();
        fixture.turn();
        let is_mark = |outputs: &ConnectionOutput| matches!(outputs, ConnectionOutput::Mark(_));
        let mut outputs = fixture.outputs(READER);
        assert!(!outputs.iter().any(is_mark), "it waits for room");
        let subscriber = if leaves { ClientId { shard: 0, token: 9 } } else { READER };
        if leaves {
            fixture.ask_all(READER, &[HubRequest::Disconnect]);
            fixture.subscribe(subscriber, "push", "1");
        }
        for _ in 0..3 {
            fixture.turn();
            outputs.extend(fixture.outputs(READER));
        }
        assert_eq!(outputs.iter().any(is_mark), !leaves);
        for mark in outputs
            .iter()
            .filter_map(|outputs| if let ConnectionOutput::Mark(mark) = outputs { Some(*mark) } else { None })
        {
            fixture.ask_all(READER, &[HubRequest::MarkReached { mark }]);
        }
        fixture.advance_time(100_000_000);
        fixture.turn();
        fixture.ask_all(WRITER, &[publish("memory.this", "y")]);
        fixture.turn();
        let received = fixture.received(subscriber);
        assert!(received.ends_with("\r\ny\r\n"), "{received}");
    }
}

/// The hub is idle after the last consumer is removed, even if consumers were queued.
#[test]
fn when_the_last_consumer_goes_nothing_is_left_to_do() {
    let mut fixture = fixture();
    fill(&mut fixture, "memory", 1..10);
    fixture.subscribe(READER, "push", "2");
    let config = r#""deliver_subject":"push","name":"short","filter_subject":"memory.nothing""#;
    let payload = format!(r#"{{"stream_name":"memory","config":{{"ack_policy":"none",{config}}}}}"#);
    let ask = |subject| publish_for(subject, &payload, "answers.1");
    for _ in 0..3 {
        fixture.ask_all(
            READER,
            &[ask("$JS.API.CONSUMER.CREATE.memory.short"), ask("$JS.API.CONSUMER.DELETE.memory.short")],
        );
        fixture.turn();
        let received = fixture.received(READER);
        assert!(received.contains(r#""success":true"#), "{received}");
        assert!(fixture.hub.is_quiet(), "no consumer is queued");
    }
}
