//! Encoder output, byte by byte, and decoded again.

use super::super::check::{self, NatsObservation};
use super::super::{
    BadHeader, BadHeaders, FLOW_CONTROL, HeaderStatus, Headers, IDLE_HEARTBEAT, Msg, NO_RESPONDERS,
    NatsLimits, OK, PING, PONG, Pub, encode_err, encode_headers, encode_sub, encode_unsub, strip_status,
};

#[test]
fn operations_are_written_to_the_byte() {
    let written = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::with_capacity(256);
        let place = out.as_ptr();
        write(&mut out);
        assert_eq!(out.as_ptr(), place, "the buffer must not move");
        String::from_utf8(out).unwrap()
    };
    let message = Pub { subject: b"a.b", reply: None, headers: b"", payload: b"hi" };
    assert_eq!(written(&|out| message.encode(out)), "PUB a.b 2\r\nhi\r\n");
    let message = Pub { reply: Some(b"r"), headers: b"NATS/1.0\r\n\r\n", ..message };
    assert_eq!(written(&|out| message.encode(out)), "HPUB a.b r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n");
    let message = Msg { subject: b"a.b", sid: b"7", reply: None, headers: b"", payload: b"" };
    assert_eq!(written(&|out| message.encode(out)), "MSG a.b 7 0\r\n\r\n");
    let message = Msg { reply: Some(b"r"), headers: NO_RESPONDERS, ..message };
    assert_eq!(written(&|out| message.encode(out)), "HMSG a.b 7 r 16 16\r\nNATS/1.0 503\r\n\r\n\r\n");
    assert_eq!(written(&|out| message.encode_line(out)), "HMSG a.b 7 r 16 16\r\n");
    assert_eq!(written(&|out| encode_sub(out, b"a.>", None, b"1")), "SUB a.> 1\r\n");
    assert_eq!(written(&|out| encode_sub(out, b"a.>", Some(b"q"), b"1")), "SUB a.> q 1\r\n");
    assert_eq!(written(&|out| encode_unsub(out, b"1", None)), "UNSUB 1\r\n");
    assert_eq!(written(&|out| encode_unsub(out, b"1", Some(5))), "UNSUB 1 5\r\n");
    assert_eq!(written(&|out| encode_err(out, "Slow Consumer")), "-ERR 'Slow Consumer'\r\n");
    let tricky = "Permissions Violation for Publish to \"a'\r\nPING\r\n\"";
    assert_eq!(
        written(&|out| encode_err(out, tricky)),
        "-ERR 'Permissions Violation for Publish to \"a   PING  \"'\r\n"
    );
    assert_eq!([PING, PONG, OK].concat(), b"PING\r\nPONG\r\n+OK\r\n");
}

#[test]
fn a_message_has_its_size_before_it_is_written() {
    for length in [0, 1, 9, 10, 99, 100, 1000, 65_536] {
        let payload = vec![b'x'; length];
        for headers in [&b""[..], NO_RESPONDERS, IDLE_HEARTBEAT, FLOW_CONTROL] {
            for reply in [None, Some(&b"inbox.1"[..])] {
                let message = Msg { subject: b"a.b", sid: b"12", reply, headers, payload: &payload };
                let mut out = Vec::new();
                message.encode(&mut out);
                assert_eq!(out.len(), message.size());
                let (seen, _) = check::server(&NatsLimits::default(), &out, &[]);
                assert!(
                    matches!(&seen[..], [NatsObservation::Message(..), NatsObservation::Waiting(0)]),
                    "{seen:?}"
                );
            }
        }
    }
}

#[test]
fn headers_are_found_with_regard_to_case_and_in_their_order() {
    let block = b"NATS/1.0\r\nA: 1\r\na:2\r\nB:\t x y \r\nA:3\r\nEmpty:\r\nno colon\r\nC:a:b\nc\r\n\r\n";
    let headers = Headers::parse(block).unwrap();
    let all: Vec<_> =
        headers.iter().map(|(name, value)| (str::from_utf8(name), str::from_utf8(value))).collect();
    let expected = [("A", "1"), ("a", "2"), ("B", "x y"), ("A", "3"), ("Empty", ""), ("C", "a:b\nc")];
    assert_eq!(all, expected.map(|(name, value)| (Ok(name), Ok(value))));
    assert_eq!(headers.into_iter().count(), 6);
    assert_eq!(headers.find("A"), Some(&b"1"[..]));
    assert_eq!(headers.find("a"), Some(&b"2"[..]));
    assert_eq!(headers.find("b"), None);
    assert_eq!(headers.status(), None);
}

#[test]
fn a_status_is_in_the_first_line() {
    let status = |block: &'static [u8]| Headers::parse(block).map(|headers| headers.status());
    let line = |code, description: &'static str| {
        Ok(Some(HeaderStatus { code, description: description.as_bytes() }))
    };
    assert_eq!(status(NO_RESPONDERS), line(503, ""));
    assert_eq!(status(IDLE_HEARTBEAT), line(100, "Idle Heartbeat"));
    assert_eq!(status(FLOW_CONTROL), line(100, "FlowControl Request"));
    assert_eq!(status(b"NATS/1.0  404  No Messages \r\n\r\n"), line(404, "No Messages"));
    assert_eq!(status(b"NATS/1.0 \r\n\r\n"), Ok(None));
    assert_eq!(
        status(b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 5\r\n\r\n"),
        line(100, "Idle Heartbeat")
    );
    for bad in [
        &b""[..],
        b"NATS/1.0",
        b"NATS/1.0\r\n",
        b"NATS/1.0\r\nA: b\r\n",
        b"\r\n\r\n",
        b"NATS/1.1\r\n\r\n",
        b"NATS/1.0x\r\n\r\n",
        b"NATS/1.0 5\r\n\r\n",
        b"NATS/1.0 5031\r\n\r\n",
        b"NATS/1.0 50x\r\n\r\n",
        b"A: b\r\n\r\n",
    ] {
        assert_eq!(Headers::parse(bad), Err(BadHeaders), "{}", bad.escape_ascii());
    }
}

#[test]
fn headers_round_trip_and_breaking_bytes_are_rejected() {
    let mut out = Vec::new();
    let status = HeaderStatus { code: 409, description: b"Consumer Deleted" };
    encode_headers(&mut out, Some(status), &[("Nats-Msg-Id", "a b"), ("X", "")]).unwrap();
    assert_eq!(out, b"NATS/1.0 409 Consumer Deleted\r\nNats-Msg-Id: a b\r\nX: \r\n\r\n");
    let headers = Headers::parse(&out).unwrap();
    assert_eq!(headers.status(), Some(status));
    assert_eq!(headers.find("Nats-Msg-Id"), Some(&b"a b"[..]));
    out.clear();
    encode_headers(&mut out, None, &[]).unwrap();
    assert_eq!(out, b"NATS/1.0\r\n\r\n");
    let rejected = |status: Option<HeaderStatus<'_>>, fields: &[(&str, &str)], index| {
        let mut out = b"before".to_vec();
        assert_eq!(encode_headers(&mut out, status, fields), Err(BadHeader { index }));
        assert_eq!(out, b"before");
    };
    rejected(None, &[("A", "b"), ("", "c")], Some(1));
    rejected(None, &[("A:", "b")], Some(0));
    rejected(None, &[("A b", "c")], Some(0));
    rejected(None, &[("A", "b\r\nC: d")], Some(0));
    rejected(None, &[("A", "b\n")], Some(0));
    rejected(Some(HeaderStatus { code: 99, description: b"" }), &[], None);
    rejected(Some(HeaderStatus { code: 1000, description: b"" }), &[], None);
    rejected(Some(HeaderStatus { code: 100, description: b"a\r" }), &[], None);
}

#[test]
fn a_status_is_parsed_from_a_header_block_only() {
    for (block, expected) in [
        ("NATS/1.0\r\na: b\r\n\r\n", "NATS/1.0\r\na: b\r\n\r\n"),
        ("NATS/1.0\r\n\r\n", "NATS/1.0\r\n\r\n"),
        ("NATS/1.0 100 Idle Heartbeat\r\na: b\r\nc:d\r\n\r\n", "NATS/1.0\r\na: b\r\nc:d\r\n\r\n"),
        ("NATS/1.0 409 Consumer Deleted\r\n\r\n", ""),
        ("NATS/1.0 503\r\n", ""),
        ("NATS/1.0409\r\na: b\r\n\r\n", "NATS/1.0\r\na: b\r\n\r\n"),
        ("NATS/1.0\t4\r\na: b\r\n\r\n", "NATS/1.0\r\na: b\r\n\r\n"),
        ("NATS/1.0 409\na: b\r\nc: d\r\n\r\n", "NATS/1.0\r\nc: d\r\n\r\n"),
        ("NATS/1.0 409", ""),
        ("NATS/1.0 \r\na: b\r\n\r\n", "NATS/1.0\r\na: b\r\n\r\n"),
        ("other\r\n\r\n", "other\r\n\r\n"),
        ("", ""),
    ] {
        let mut scratch = b"before".to_vec();
        let stripped = strip_status(block.as_bytes(), &mut scratch);
        assert_eq!(str::from_utf8(stripped), Ok(expected), "{block:?}");
        assert!(
            Headers::parse(stripped).is_ok_and(|headers| headers.status().is_none())
                == expected.starts_with("NATS")
        );
    }
}
