//! Subscriptions in other formats than NATS': catch-up from a position, and live records behind it.

use stilling_hub::limits::DELIVERY_BATCH_SIZE;
use stilling_hub::{CatchUpRequest, ClientId, HubRequest, MessageFormat, StartFrom};

use crate::consumers::{READER, WRITER, fill};
use crate::fixture::{ABLE, ConnectionOutput, HubFixture, ShardRequest};
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
    assert!(text.starts_with("event: gap\ndata: {\"gap\":{\"first\":3,\"last\":5,"), "{text}");
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
