//! Subscriptions in other formats than NATS': catch-up from a position, and live records behind it.

use std::time::Duration;

use stilling_hub::limits::DELIVERY_BATCH_SIZE;
use stilling_hub::{
    CatchUpRequest, ClientId, HubRequest, MessageFormat, Retention, SlowSubscribers, StartFrom, StreamConfig,
};
use stilling_journal::disk::simulated::SimulatedDisk;

use crate::consumers::{READER, WRITER, fill};
use crate::fixture::slow_simulation::simulate_slow_subscribers;
use crate::fixture::{ABLE, ConnectionOutput, HubFixture, ShardRequest, client};
use crate::fixture_requests::publish;

fn number(stream: &str) -> u32 {
    ["disk", "memory", "none"].iter().position(|name| *name == stream).expect("a stream") as u32
}

fn subscribe(fixture: &mut HubFixture, reader: ClientId, stream: &str, from: StartFrom) {
    let filter = format!("{stream}.>");
    let (filter, stream) = (filter.as_bytes(), number(stream));
    let format = Some((MessageFormat::SseRaw, Some(stream)));
    let subscription = ShardRequest::Subscribe { filter, queue: b"", sid: b"", format };
    fixture.ask_all(reader, &[subscription]);
    fixture.ask_all(reader, &[HubRequest::CatchUp(CatchUpRequest { stream, filter, from })]);
}

/// Everything sent to a reader so far. Marks are reported as reached, until nothing more arrives.
fn take(fixture: &mut HubFixture, reader: ClientId) -> String {
    let mut all = String::new();
    loop {
        fixture.run_until_settled();
        let outputs = fixture.outputs(reader);
        if outputs.is_empty() {
            return all;
        }
        for output in outputs {
            match output {
                ConnectionOutput::Mark(mark) => fixture.ask_all(reader, &[HubRequest::MarkReached { mark }]),
                ConnectionOutput::Text(text) => all += &text,
                other => panic!("{other:?}"),
            }
        }
    }
}

/// The sequences of the messages, in order, each with its own number as payload.
#[track_caller]
fn sequences(text: &str) -> Vec<u64> {
    let events = text.split("\n\n").filter_map(|event| event.split_once("\ndata: "));
    let id = |id: &str| id.rsplit_once('-').and_then(|(_, id)| id.parse().ok()).unwrap_or(0);
    events
        .filter(|(first, _)| first.starts_with("id: "))
        .map(|(first, payload)| {
            assert_eq!(id(first).to_string(), payload, "{text}");
            id(first)
        })
        .collect()
}

/// Row 2.18: a subscriber that comes late gets everything from its position on, and then what is new.
#[test]
fn a_subscriber_reads_from_its_position_on_and_then_follows() {
    for stream in ["disk", "memory"] {
        for (from, first) in [
            (StartFrom::Sequence(0), 1),
            (StartFrom::Sequence(100), 100),
            (StartFrom::Sequence(501), 501),
            (StartFrom::New, 501),
        ] {
            let mut fixture = HubFixture::new();
            fill(&mut fixture, stream, 1..501);
            subscribe(&mut fixture, READER, stream, from);
            let expected: Vec<u64> = (first..501).collect();
            let text = take(&mut fixture, READER);
            assert_eq!(sequences(&text), expected, "{stream} {from:?}");
            assert!(text.ends_with("-500\n\n"), "the position comes behind: {text}");
            fill(&mut fixture, stream, 501..504);
            assert_eq!(sequences(&take(&mut fixture, READER)), [501, 502, 503]);
            assert_eq!(fixture.hub.counters().catch_ups.get(), 0);
        }
    }
}

/// Row 2.11: whenever a subscriber joins, between any two steps of the writer, it gets each record once.
#[test]
fn records_that_become_visible_during_the_catch_up_are_sent_once() {
    for stream in ["disk", "memory"] {
        for joins_at in 0..40 {
            let mut fixture = HubFixture::new();
            let mut received = String::new();
            for step in 0..80_u64 {
                if step == joins_at {
                    subscribe(&mut fixture, READER, stream, StartFrom::Sequence(1));
                }
                let number = step + 1;
                fixture.ask_all(WRITER, &[publish(&format!("{stream}.n"), &number.to_string())]);
                // The disk, the reader and the hub take turns in different rhythms.
                if step % 3 == 0 {
                    fixture.hub.storage_mut().write();
                }
                if step % 5 == 0 {
                    fixture.hub.storage_mut().serve_read();
                }
                fixture.turn();
                if step % 2 == 0 {
                    for output in fixture.outputs(READER) {
                        match output {
                            ConnectionOutput::Mark(mark) => {
                                fixture.ask_all(READER, &[HubRequest::MarkReached { mark }]);
                            }
                            ConnectionOutput::Text(text) => received += &text,
                            other => panic!("{other:?}"),
                        }
                    }
                }
            }
            received += &take(&mut fixture, READER);
            assert_eq!(sequences(&received), (1..=80).collect::<Vec<_>>(), "{stream}, joined at {joins_at}");
        }
    }
}

/// A read may return records before the hub has the journal's answer about them, which follow live: each arrives once.
#[test]
fn records_that_are_durable_before_they_are_visible_are_sent_once() {
    let mut fixture = HubFixture::new();
    fill(&mut fixture, "disk", 1..4);
    subscribe(&mut fixture, READER, "disk", StartFrom::Sequence(1));
    fixture.ask_all(WRITER, &[publish("disk.n", "4")]);
    fixture.turn();
    assert!(fixture.hub.storage_mut().write());
    let answers = std::mem::take(&mut fixture.hub.storage_mut().answers);
    assert!(fixture.hub.storage_mut().serve_read());
    let mut received = take(&mut fixture, READER);
    fixture.hub.storage_mut().answers = answers;
    received += &take(&mut fixture, READER);
    assert_eq!(sequences(&received), [1, 2, 3, 4]);
}

#[test]
fn positions_of_another_epoch_and_ahead_are_reset() {
    let mut fixture = HubFixture::new();
    fill(&mut fixture, "memory", 1..4);
    for (from, cause, expected) in [
        (StartFrom::After { epoch: 1, sequence: 2 }, "epoch", vec![1, 2, 3]),
        (StartFrom::Sequence(9), "ahead", vec![]),
    ] {
        let reader = ClientId { token: READER.token + expected.len() as u64, ..READER };
        subscribe(&mut fixture, reader, "memory", from);
        let text = take(&mut fixture, reader);
        assert!(
            text.starts_with(&format!("event: reset\ndata: {{\"reset\":{{\"cause\":\"{cause}\"")),
            "{text}"
        );
        assert_eq!(sequences(&text), expected);
    }
}

/// A stream without storage has nothing to catch up with: what was missed is a gap.
#[test]
fn a_stream_that_keeps_nothing_reports_what_is_missed() {
    let mut fixture = HubFixture::new();
    fill(&mut fixture, "none", 1..6);
    subscribe(&mut fixture, READER, "none", StartFrom::Sequence(3));
    let text = take(&mut fixture, READER);
    assert!(text.starts_with("id: 0-2\n\nevent: gap\ndata: {\"gap\":{\"first\":3,\"last\":5,"), "{text}");
    fill(&mut fixture, "none", 6..8);
    assert_eq!(sequences(&take(&mut fixture, READER)), [6, 7]);
}

/// Invariant 7: a subscriber that has not sent its chunk costs nothing, and leaves nothing when it goes.
#[test]
fn a_subscriber_that_does_not_read_holds_one_chunk_and_leaves_nothing() {
    for stream in ["disk", "memory"] {
        let mut fixture = HubFixture::new();
        let payload = "x".repeat(4000);
        for _ in 0..200 {
            fixture.ask(WRITER, ABLE, &[publish(&format!("{stream}.n"), &payload)]);
            fixture.run_until_settled();
        }
        subscribe(&mut fixture, READER, stream, StartFrom::Sequence(1));
        fixture.run_until_settled();
        let outputs = fixture.outputs(READER);
        let size: usize = outputs
            .iter()
            .map(|output| if let ConnectionOutput::Text(text) = output { text.len() } else { 0 })
            .sum();
        assert!(size < 2 * DELIVERY_BATCH_SIZE, "{stream}: {size} bytes");
        assert!(fixture.hub.is_quiet(), "it waits for the mark");
        assert_eq!(fixture.hub.counters().catch_ups.get(), 1);
        fixture.ask_all(READER, &[HubRequest::Disconnect]);
        fixture.run_until_settled();
        assert_eq!(fixture.hub.counters().catch_ups.get(), 0);
        assert_eq!(fixture.hub.next_check_in(), None, "{stream}");
    }
}

/// A failed read is no gap: it is repeated.
#[test]
fn a_failed_read_is_repeated() {
    let mut fixture = HubFixture::new();
    fill(&mut fixture, "disk", 1..10);
    subscribe(&mut fixture, READER, "disk", StartFrom::Sequence(1));
    fixture.turn();
    fixture.hub.storage_mut().fail_read();
    fixture.turn();
    assert!(fixture.hub.next_check_in().is_some());
    fixture.advance_time(100_000_000);
    assert_eq!(sequences(&take(&mut fixture, READER)), (1..10).collect::<Vec<_>>());
}

/// A fixture in which some readers follow the subjects of a stream, more than share a feed if there are several.
fn followed(stream: &str, readers: u64, change: fn(&mut Vec<StreamConfig>)) -> (HubFixture, Vec<ClientId>) {
    let (mut fixture, _) = HubFixture::changed(&SimulatedDisk::new(), (8, 1 << 20), change);
    let readers: Vec<_> = (0..readers).map(|number| client(READER.shard, 200 + number)).collect();
    for &reader in &readers {
        subscribe(&mut fixture, reader, stream, StartFrom::New);
        take(&mut fixture, reader);
    }
    fill(&mut fixture, stream, 1..4);
    readers.iter().for_each(|&reader| assert_eq!(sequences(&take(&mut fixture, reader)), [1, 2, 3]));
    let shares_feed = fixture.hub.counters().feeds().sharers == readers.len() as u64;
    assert_eq!(shares_feed, readers.len() > 1);
    (fixture, readers)
}

/// The feeds, and the subscriptions that read one.
fn sharers(fixture: &HubFixture) -> (u64, u64) {
    let feeds = fixture.hub.counters().feeds();
    (feeds.feeds, feeds.sharers)
}

/// A reader's client is too slow: returns the sequence to continue with.
fn fall_behind(fixture: &mut HubFixture, reader: ClientId) -> Option<u64> {
    fixture.tables[reader.shard as usize].fall_behind(reader.token)
}

fn continue_behind(fixture: &mut HubFixture, reader: ClientId, stream: &str, next: u64) {
    let (filter, from) = (format!("{stream}.>"), StartFrom::Behind { next });
    let request = CatchUpRequest { stream: number(stream), filter: filter.as_bytes(), from };
    fixture.ask_all(reader, &[HubRequest::CatchUp(request)]);
}

/// Row 2.18: slow subscribers, alone or with a feed, continue with the record that follows the last one they were sent,
/// whenever they fall behind and for however long; the others miss nothing.
#[test]
fn slow_subscribers_continue_where_they_stopped() {
    for seed in 0..1000 {
        simulate_slow_subscribers(seed).unwrap_or_else(|wrong| panic!("{wrong}"));
    }
}

/// Row 2.18: a subscriber that has caught up shares the feed of the others again.
#[test]
fn a_slow_subscriber_returns_to_its_feed() {
    let (mut fixture, readers) = followed("memory", 20, |_| ());
    let next = fall_behind(&mut fixture, readers[0]).expect("it is live");
    assert_eq!(fall_behind(&mut fixture, readers[0]), None, "it is behind already");
    fill(&mut fixture, "memory", 4..9);
    assert_eq!(sharers(&fixture), (1, 19));
    continue_behind(&mut fixture, readers[0], "memory", next);
    assert_eq!(sequences(&take(&mut fixture, readers[0])), [4, 5, 6, 7, 8]);
    fill(&mut fixture, "memory", 9..11);
    assert_eq!(sequences(&take(&mut fixture, readers[0])), [9, 10]);
    assert_eq!(sharers(&fixture), (1, 20));
    assert_eq!(fixture.hub.counters().fallen_behind(), 1);
}

/// Row 2.18: what retention removes while a subscriber is behind is a gap with its exact range.
#[test]
fn a_slow_subscriber_that_retention_passes_is_told_the_gap() {
    let keep_little = |streams: &mut Vec<StreamConfig>| {
        streams[1].retention = Retention { bytes: 64 * 1024, records: None, age: None }
    };
    let (mut fixture, readers) = followed("memory", 1, keep_little);
    let next = fall_behind(&mut fixture, readers[0]).expect("it is live");
    fill(&mut fixture, "memory", 4..10_000);
    continue_behind(&mut fixture, readers[0], "memory", next);
    let text = take(&mut fixture, readers[0]);
    let received = sequences(&text);
    let first = *received.first().expect("the newest are kept");
    let gap = format!("{{\"gap\":{{\"first\":4,\"last\":{},\"cause\":\"removed\"}}}}", first - 1);
    assert!(first > 4 && text.starts_with(&format!("event: gap\ndata: {gap}\n\n")), "{first}");
    assert_eq!(received, (first..10_000).collect::<Vec<_>>());
}

/// Row 2.18: with the policy `skip` a slow subscriber continues at the newest record, and is told what it missed.
#[test]
fn a_slow_subscriber_skips_where_the_stream_says_so() {
    let skip = |streams: &mut Vec<StreamConfig>| {
        streams.iter_mut().for_each(|stream| stream.slow_subscribers = SlowSubscribers::Skip);
    };
    for (stream, count) in [("disk", 1), ("memory", 20)] {
        let (mut fixture, readers) = followed(stream, count, skip);
        let next = fall_behind(&mut fixture, readers[0]).expect("it is live");
        fill(&mut fixture, stream, 4..9);
        continue_behind(&mut fixture, readers[0], stream, next);
        let text = take(&mut fixture, readers[0]);
        let notice = "event: gap\ndata: {\"gap\":{\"first\":4,\"last\":8,\"cause\":\"slow\"}}\n\nid: ";
        assert!(text.starts_with(notice) && text.ends_with("-8\n\n"), "{text}");
        fill(&mut fixture, stream, 9..11);
        assert_eq!(sequences(&take(&mut fixture, readers[0])), [9, 10]);
        assert_eq!(fixture.hub.counters().streams[number(stream) as usize].skipped_slow.get(), 5);
        // Nothing was published meanwhile: nothing is missed.
        let next = fall_behind(&mut fixture, readers[0]).expect("it is live");
        continue_behind(&mut fixture, readers[0], stream, next);
        let text = take(&mut fixture, readers[0]);
        assert!(text.starts_with("id: ") && text.ends_with("-10\n\n"), "{text}");
    }
}

/// Row 2.18: a subscriber that reads more slowly than its stream grows skips after the time that the stream allows; a
/// late one that gains does not.
#[test]
fn a_subscriber_that_does_not_gain_skips_after_a_time() {
    const TIME: Duration = Duration::from_secs(10);
    let limited = |streams: &mut Vec<StreamConfig>| streams[1].catch_up_time = Some(TIME);
    for (published_per_second, is_slower) in [(5000, true), (10, false)] {
        let (mut fixture, _) = HubFixture::changed(&SimulatedDisk::new(), (8, 1 << 20), limited);
        fill(&mut fixture, "memory", 1..10_001);
        subscribe(&mut fixture, READER, "memory", StartFrom::Sequence(1));
        let (mut text, mut last) = (String::new(), 10_000);
        for _ in 0..30 {
            // One chunk per second.
            fixture.run_until_settled();
            for output in fixture.outputs(READER) {
                match output {
                    ConnectionOutput::Mark(mark) => {
                        fixture.ask_all(READER, &[HubRequest::MarkReached { mark }]);
                    }
                    ConnectionOutput::Text(more) => text += &more,
                    other => panic!("{other:?}"),
                }
            }
            fixture.advance_time(1_000_000_000);
            fill(&mut fixture, "memory", last + 1..last + 1 + published_per_second);
            last += published_per_second;
        }
        text += &take(&mut fixture, READER);
        let received = sequences(&text);
        let missed = fixture.hub.counters().streams[1].skipped_slow.get();
        assert_eq!(missed > 0, is_slower, "{missed}");
        assert_eq!(received.len() as u64 + missed, last);
        assert_eq!(text.matches("\"cause\":\"slow\"").count() as u64, u64::from(is_slower));
    }
}

/// Row 2.18: where the stream disconnects slow subscribers, one that does not gain in time is disconnected instead, after
/// everything that was sent to it.
#[test]
fn a_subscriber_that_does_not_gain_is_disconnected_if_its_stream_says_so() {
    let limited = |streams: &mut Vec<StreamConfig>| {
        streams[1].catch_up_time = Some(Duration::from_secs(3));
        streams[1].slow_subscribers = SlowSubscribers::Disconnect;
    };
    let (mut fixture, _) = HubFixture::changed(&SimulatedDisk::new(), (8, 1 << 20), limited);
    fill(&mut fixture, "memory", 1..10_001);
    subscribe(&mut fixture, READER, "memory", StartFrom::Sequence(1));
    let (mut text, mut last, mut is_disconnected) = (String::new(), 10_000, false);
    for _ in 0..30 {
        fixture.run_until_settled();
        for output in fixture.outputs(READER) {
            assert!(!is_disconnected, "{output:?}");
            match output {
                ConnectionOutput::Mark(mark) => {
                    fixture.ask_all(READER, &[HubRequest::MarkReached { mark }]);
                }
                ConnectionOutput::Text(more) => text += &more,
                ConnectionOutput::SlowConsumer => is_disconnected = true,
                other => panic!("{other:?}"),
            }
        }
        fixture.advance_time(1_000_000_000);
        fill(&mut fixture, "memory", last + 1..last + 5_001);
        last += 5_000;
    }
    assert!(is_disconnected);
    assert_eq!(sequences(&text), (1..=sequences(&text).len() as u64).collect::<Vec<_>>(), "no gap before");
    assert_eq!(fixture.hub.counters().streams[1].skipped_slow.get(), 0);
}
