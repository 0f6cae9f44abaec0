//! Streams as tables, and properties over generated ones.

use proptest::prelude::*;

use super::check::{decode, splits};
use super::{GAP_EVENT, HEARTBEAT, SseDecoder, SseEvent, SseLimits};
use super::{encode_comment, encode_message, encode_retry};
use crate::message_object::{GapObject, MessageObject};
use crate::resume_position::EventId;

const LIMITS: SseLimits = SseLimits { event_size_max: 60 };

/// One event as `id=1 event=a retry=5 data=x`.
fn describe(bytes: &[u8]) -> String {
    let (mut decoder, mut rest, mut lines) = (SseDecoder::default(), bytes, Vec::new());
    loop {
        let Ok(step) = decoder.decode(&LIMITS, rest) else {
            lines.push("too long".to_owned());
            return lines.join("; ");
        };
        rest = &rest[step.consumed..];
        let Some(event) = step.event else { return lines.join("; ") };
        let shown =
            |name: &str, value: Option<&[u8]>| value.map(|value| format!("{name}={}", value.escape_ascii()));
        let parts = [
            shown("id", event.id()),
            shown("event", event.event()),
            event.retry().map(|retry| format!("retry={retry}")),
            shown("data", event.data().as_deref()),
        ];
        lines.push(parts.into_iter().flatten().collect::<Vec<_>>().join(" "));
    }
}

#[track_caller]
fn check(bytes: impl AsRef<[u8]>, expected: &str) {
    let bytes = bytes.as_ref();
    assert_eq!(describe(bytes), expected, "{}", bytes.escape_ascii());
    for first in 0..bytes.len() {
        for second in first..bytes.len() {
            splits(&LIMITS, bytes, &[first, second]);
        }
    }
}

/// WHATWG HTML §9.2.6, with its examples.
#[test]
fn streams_are_read_as_the_standard_says() {
    check(b"data: YHOO\ndata: +2\ndata: 10\n\n", "data=YHOO\\n+2\\n10");
    check(
        b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
        "; id=1 data=first event; id= data=second event; data= third event",
    );
    check(b"data\n\ndata\ndata\n\ndata:", "data=; data=\\n");
    check(b"data:test\n\ndata: test\n\n", "data=test; data=test");
    check(b"event: a\nevent: b\ndata: x\nretry: 10\nretry: x1\n\n", "event=b retry=10 data=x");
    check(b"id: a\0b\ndata: x\nother: y\nDATA: z\n\n", "data=x");
    check(b"retry: 99999999999999999999\n\n", "");
    check(b"\xef\xbb\xbfdata: a\n\n", "data=a");
    check(b"\xef\xbbdata: a\n\n", "");
    check(b"\n\n\r\r\n\n", "");
}

#[test]
fn every_line_end_is_one() {
    check(b"data: a\r\ndata: b\r\n\r\ndata: c\r\n\r\n", "data=a\\nb; data=c");
    check(b"data: a\rdata: b\r\rdata: c\r\r", "data=a\\nb; data=c");
    check(b"data: a\r\n\ndata: b\n\r\ndata: c\r\r\ndata: d\n\n", "data=a; data=b; data=c; data=d");
    check(b"data: a\r\n\r", "data=a");
    check(b"data: a\r\n", "");
}

#[test]
fn an_event_above_the_limit_ends_the_stream() {
    check([b"data: ".as_slice(), &[b'x'; 53], b"\n\n"].concat(), &format!("data={}", "x".repeat(53)));
    check([b"data: a\n\ndata: ".as_slice(), &[b'x'; 54], b"\n\n"].concat(), "data=a; too long");
    check([b'x'; 61], "too long");
    check(b"data: a\n".repeat(8), "too long");
    check([b'\n'; 100], "");
}

#[test]
fn what_a_server_sends() {
    let mut out = Vec::new();
    let id = Some(EventId { epoch: 3, sequence: 17 });
    SseEvent { id, event: None, data: b"a\nb\r\nc\rd\n" }.encode(&mut out);
    assert_eq!(out, b"id: 3-17\ndata: a\ndata: b\ndata: c\ndata: d\ndata: \n\n");
    check(&out, "id=3-17 data=a\\nb\\nc\\nd\\n");
    out.clear();
    SseEvent { id: None, event: Some("a\r\nb"), data: b"" }.encode(&mut out);
    assert_eq!(out, b"event: a  b\ndata: \n\n");
    out.clear();
    encode_retry(&mut out, 1500);
    encode_comment(&mut out, "hello\nworld");
    out.extend_from_slice(HEARTBEAT);
    assert_eq!(out, b"retry: 1500\n\n: hello world\n\n:\n\n");
    check(&out, "retry=1500; ; ");
    out.clear();
    let mut gap = Vec::new();
    GapObject { first: 5, last: 9, cause: "skipped" }.encode(&mut gap);
    SseEvent { id: None, event: Some(GAP_EVENT), data: &gap }.encode(&mut out);
    assert_eq!(out, b"event: gap\ndata: {\"gap\":{\"first\":5,\"last\":9,\"cause\":\"skipped\"}}\n\n");
}

/// Row 2.4: an event is the same for all subscribers, and its data is one line, whatever the payload.
#[test]
fn a_message_is_one_event() {
    let mut out = Vec::new();
    let message = MessageObject { sequence: 17, subject: "a", time_ns: 1, payload: b"{\n\"x\": 1\r\n}" };
    encode_message(&mut out, 3, &message);
    let expected = "id: 3-17\ndata: {\"seq\":17,\"subject\":\"a\",\"time\":\"1970-01-01T00:00:00.000000001Z\",\
        \"data\":{ \"x\": 1  }}\n\n";
    assert_eq!(str::from_utf8(&out), Ok(expected));
}

const PARTS: &[&str] = &[
    "data",
    "data: ",
    "data:x",
    "id: 3-1",
    "event: a",
    "retry: 5",
    ":",
    ": c",
    " ",
    "\n",
    "\n\n",
    "\r",
    "\r\n",
    "\r\n\r\n",
    "\u{feff}",
    "x",
    "\0",
    "0123456789",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_of_any_stream_yields_the_same_events(
        parts in proptest::collection::vec(proptest::sample::select(PARTS), 0..16),
        cuts in proptest::collection::vec(0..400usize, 0..8),
    ) {
        let bytes = parts.concat().into_bytes();
        splits(&LIMITS, &bytes, &cuts);
        splits(&SseLimits { event_size_max: 9 }, &bytes, &cuts);
    }

    #[test]
    fn any_bytes_are_decoded_or_rejected(
        bytes in proptest::collection::vec(any::<u8>(), 0..100),
        cuts in proptest::collection::vec(0..400usize, 0..8),
    ) {
        splits(&LIMITS, &bytes, &cuts);
    }

    #[test]
    fn events_come_out_as_written(
        all in proptest::collection::vec((any::<u64>(), "[a-z]{0,3}", "[a-z\u{e9}:\n ]{0,40}"), 1..5),
        cuts in proptest::collection::vec(0..400usize, 0..8),
    ) {
        let mut bytes = Vec::new();
        for (sequence, event, data) in &all {
            let id = Some(EventId { epoch: 1, sequence: *sequence });
            SseEvent { id, event: Some(event), data: data.as_bytes() }.encode(&mut bytes);
        }
        let (seen, failed, _) = decode(&SseLimits::default(), &bytes, &cuts);
        prop_assert!(!failed);
        prop_assert_eq!(seen.len(), all.len());
        for (seen, (sequence, event, data)) in seen.iter().zip(&all) {
            prop_assert_eq!(seen.data.as_deref(), Some(data.as_bytes()));
            prop_assert_eq!(&seen.fields[0].1, &format!("1-{sequence}").into_bytes());
            prop_assert_eq!(&seen.fields[1].1[..], event.as_bytes());
        }
    }
}
