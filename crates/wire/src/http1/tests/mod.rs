//! Accepted and rejected input, as tables through one [`check`], and as properties over generated input.

mod accepted;
mod bodies;
mod properties;
mod rejected;
mod responses;

use super::check::{self, HttpObservation};
use super::{BodyLength, HttpLimits, HttpVersion, RequestDecoder, RequestEvent};

/// Small enough for a table's rows to reach.
const LIMITS: HttpLimits = HttpLimits { head_size_max: 512, headers_max: 8, body_size_max: 100 };

/// One line per step: `GET /path ?query 1.1 host=a none keep`, `body hi`, `end`, `400 LineEnd @17`, `wait 3`.
fn describe(bytes: &[u8]) -> String {
    let (mut decoder, mut rest, mut lines) = (RequestDecoder::default(), bytes, Vec::new());
    loop {
        let step = match decoder.decode(&LIMITS, rest) {
            Ok(step) => step,
            Err(error) => {
                lines.push(format!("{} {:?} @{}", error.status().code(), error.fault(), error.offset()));
                return lines.join("; ");
            }
        };
        rest = &rest[step.consumed..];
        match step.event {
            RequestEvent::NeedMore => {
                if !rest.is_empty() || !decoder.is_idle() {
                    lines.push(format!("wait {}", rest.len()));
                }
                return lines.join("; ");
            }
            RequestEvent::Head(head) => lines.push(head_line(&head)),
            RequestEvent::Body(piece) => lines.push(format!("body {}", piece.escape_ascii())),
            RequestEvent::End => lines.push("end".to_owned()),
        }
    }
}

fn head_line(head: &super::RequestHead<'_>) -> String {
    let mut line = format!("{} {}", head.method.as_bytes().escape_ascii(), head.target.path.escape_ascii());
    if let Some(query) = head.target.query {
        line += &format!(" ?{}", query.escape_ascii());
    }
    line += match head.version {
        HttpVersion::Http10 => " 1.0",
        HttpVersion::Http11 => " 1.1",
        HttpVersion::Absent => " absent",
    };
    if let Some(host) = head.host {
        line += &format!(" host={}", host.escape_ascii());
    }
    match head.body {
        BodyLength::None => {}
        BodyLength::Sized(length) => line += &format!(" sized={length}"),
        BodyLength::Chunked => line += " chunked",
    }
    line += if head.persistent { " keep" } else { " close" };
    if head.http10_keep_alive {
        line += " say-so";
    }
    if head.expect_continue {
        line += " expect";
    }
    if let Some(protocol) = head.upgrade {
        line += &format!(" upgrade={}", protocol.escape_ascii());
    }
    line
}

/// Checks that the input decodes to `expected`, also byte by byte and with every single split.
fn check(bytes: impl AsRef<[u8]>, expected: &str) {
    let bytes = bytes.as_ref();
    assert_eq!(describe(bytes), expected, "input {}", bytes.escape_ascii());
    let each: Vec<usize> = (0..bytes.len()).collect();
    check::request_splits(&LIMITS, bytes, &each);
    for &cut in &each {
        check::request_splits(&LIMITS, bytes, &[cut]);
    }
    check::request_oracle(&LIMITS, bytes);
}

fn check_all(table: &[(&str, &str)]) {
    for (bytes, expected) in table {
        check(bytes, expected);
    }
}

/// Row 4.33: every pair of splits, on requests that together visit every state.
#[test]
fn a_request_cut_at_every_pair_of_places_is_the_same_request() {
    let requests: [&[u8]; 4] = [
        b"\r\nGET /a?b HTTP/1.1\r\nHost: a:1\r\nX:\t y \t\r\n\r\nGET / HTTP/1.0\r\n\r\n",
        b"PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET /b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost:\r\nTransfer-Encoding: chunked\r\n\r\n3 ;x=y\r\nabc\r\n0\r\nA: b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ];
    for bytes in requests {
        for first in 0..bytes.len() {
            for second in first..bytes.len() {
                let seen = check::request_splits(&LIMITS, bytes, &[first, second]);
                assert!(
                    seen.iter().any(|s| matches!(s, HttpObservation::Head(..) | HttpObservation::Error(_)))
                );
            }
        }
    }
}

#[test]
fn a_decoder_reports_its_position() {
    let mut decoder = RequestDecoder::default();
    assert!(decoder.is_idle() && !decoder.in_head() && !decoder.in_body());
    let mut feed = |bytes: &[u8]| {
        let step = decoder.decode(&LIMITS, bytes).unwrap();
        (step.consumed, decoder.is_idle(), decoder.in_head(), decoder.in_body())
    };
    assert_eq!(feed(b""), (0, true, false, false));
    assert_eq!(feed(b"\r\n"), (2, true, false, false));
    assert_eq!(feed(b"G"), (0, false, true, false));
    assert_eq!(feed(b"GET / HTTP/1.0\r\nContent-Length: 1\r\n\r\n"), (37, false, false, true));
    assert_eq!(feed(b"x"), (1, false, false, true));
    assert_eq!(feed(b""), (0, true, false, false));
}

#[test]
fn fields_are_found_without_case_and_in_order() {
    let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nX-One: 1\r\nx-one:\t2\t3 \r\nEmpty:\r\n\r\n";
    let step = RequestDecoder::default().decode(&LIMITS, bytes).unwrap();
    let RequestEvent::Head(head) = step.event else { panic!("the request is complete") };
    let fields: Vec<_> = head.headers().collect();
    let expected: [(&[u8], &[u8]); 4] =
        [(b"Host", b"a"), (b"X-One", b"1"), (b"x-one", b"2\t3"), (b"Empty", b"")];
    assert_eq!(fields, expected);
    assert_eq!(head.header("X-ONE"), Some(&b"1"[..]));
    assert_eq!(head.header("empty"), Some(&b""[..]));
    assert_eq!(head.header("absent"), None);
}
