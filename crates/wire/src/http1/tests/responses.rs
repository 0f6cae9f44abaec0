//! Responses, decoded by a client.

use crate::http1::check::{response_oracle, response_splits};
use crate::http1::{
    AnsweredMethod, HttpDecodeError, HttpLimits, HttpVersion, InputEnd, ResponseBodyLength, ResponseDecoder,
    ResponseEvent,
};

const LIMITS: HttpLimits = HttpLimits { head_size_max: 256, headers_max: 4, body_size_max: 100 };

fn describe(answered: AnsweredMethod, mut rest: &[u8]) -> String {
    let (mut decoder, mut lines) = (ResponseDecoder::default(), Vec::new());
    let rejected = |e: HttpDecodeError| format!("{:?} @{}", e.fault(), e.offset());
    loop {
        let step = match decoder.decode(&LIMITS, answered, rest) {
            Ok(step) => step,
            Err(error) => {
                lines.push(rejected(error));
                return lines.join("; ");
            }
        };
        rest = &rest[step.consumed..];
        match step.event {
            ResponseEvent::NeedMore => break,
            ResponseEvent::Interim(head) => lines.push(format!("interim {}", head.status)),
            ResponseEvent::Head(head) => {
                let version = if head.version == HttpVersion::Http11 { "1.1" } else { "1.0" };
                let body = match head.body {
                    ResponseBodyLength::None => "none".to_owned(),
                    ResponseBodyLength::Sized(length) => length.to_string(),
                    ResponseBodyLength::Chunked => "chunked".to_owned(),
                    ResponseBodyLength::UntilClose => "until-close".to_owned(),
                };
                let kept = if head.persistent { "keep" } else { "close" };
                let reason = head.reason.escape_ascii();
                lines.push(format!("{version} {} '{reason}' {body} {kept}", head.status));
            }
            ResponseEvent::Body(piece) => lines.push(format!("body {}", piece.escape_ascii())),
            ResponseEvent::End => lines.push("end".to_owned()),
        }
    }
    match decoder.finish() {
        Ok(InputEnd::Idle) => {}
        Ok(InputEnd::End) => lines.push("finished".to_owned()),
        Err(error) => lines.push(rejected(error)),
    }
    lines.join("; ")
}

fn check_answering(answered: AnsweredMethod, bytes: &str, expected: &str) {
    let bytes = bytes.as_bytes();
    assert_eq!(describe(answered, bytes), expected, "input {}", bytes.escape_ascii());
    let each: Vec<usize> = (0..bytes.len()).collect();
    response_splits(&LIMITS, answered, bytes, &each);
    for &cut in &each {
        response_splits(&LIMITS, answered, bytes, &[cut]);
    }
    response_oracle(&LIMITS, bytes);
}

fn check(bytes: &str, expected: &str) {
    check_answering(AnsweredMethod::Other, bytes, expected);
}

/// Row 4.16: the client decoder reads the 57 bytes.
#[test]
fn responses_are_decoded_with_their_framing() {
    check("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", "1.1 200 'OK' none close");
    check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "1.1 200 'OK' 2 keep; body hi; end");
    check("HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n", "1.0 200 'OK' none keep");
    check("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", "1.0 200 'OK' none close");
    check("HTTP/1.1 404 Not Found\r\nContent-Length:0\r\n\r\n", "1.1 404 'Not Found' none keep");
    check("HTTP/1.1 200 \r\nContent-Length:0\r\n\r\n", "1.1 200 '' none keep");
    check("HTTP/1.1 200\r\nContent-Length:0\r\n\r\n", "1.1 200 '' none keep");
    check("HTTP/1.1 299 a\tb\r\nContent-Length:0\r\n\r\n", "1.1 299 'a\\tb' none keep");
    check("HTTP/1.7 200 OK\r\nContent-Length:0\r\n\r\n", "1.1 200 'OK' none keep");
    check(
        "HTTP/1.1 200 OK\r\nHost: a\r\nHost: b\r\nExpect: x\r\nContent-Length:0\r\n\r\n",
        "1.1 200 'OK' none keep",
    );
    check(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        "1.1 200 'OK' chunked keep; body hi; end",
    );
    let two = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".repeat(2);
    check(&two, "1.1 200 'OK' none keep; 1.1 200 'OK' none keep");
}

#[test]
fn a_body_until_the_end_of_input_is_ended_by_it() {
    check("HTTP/1.1 200 OK\r\n\r\nhello", "1.1 200 'OK' until-close close; body hello; finished");
    check("HTTP/1.0 200 OK\r\n\r\n", "1.0 200 'OK' until-close close; finished");
}

#[test]
fn some_responses_never_have_a_body() {
    let sized = "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n";
    check_answering(AnsweredMethod::Head, sized, "1.1 200 'OK' none keep");
    check_answering(
        AnsweredMethod::Head,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "1.1 200 'OK' none keep",
    );
    check_answering(AnsweredMethod::Head, "HTTP/1.1 200 OK\r\n\r\n", "1.1 200 'OK' none keep");
    check("HTTP/1.1 204 No Content\r\n\r\n", "1.1 204 'No Content' none keep");
    check("HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", "1.1 304 'Not Modified' none keep");
    check(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: a\r\n\r\n",
        "1.1 101 'Switching Protocols' none keep",
    );
    let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx";
    check(interim, "interim 100; interim 103; 1.1 200 'OK' 1 keep; body x; end");
}

#[test]
fn broken_responses_are_rejected() {
    check("HTTP/1.1 99 a\r\n", "StatusLine @9");
    check("HTTP/1.1 099 a\r\n", "StatusLine @9");
    check("HTTP/1.1 600 a\r\n", "StatusLine @9");
    check("HTTP/1.1 20 OK\r\n", "StatusLine @11");
    check("HTTP/1.1 2000\r\n", "StatusLine @12");
    check("HTTP/1.1  200 OK\r\n", "StatusLine @9");
    check("HTTP/2.0 200 OK\r\n", "StatusLine @5");
    check("http/1.1 200 OK\r\n", "StatusLine @0");
    check("ICY 200 OK\r\n", "StatusLine @0");
    check("\r\nHTTP/1.1 200 OK\r\n\r\n", "StatusLine @0");
    check("HTTP/1.1 200 OK\n", "StatusLine @15");
    check("HTTP/1.1 200 O\0K\r\n", "StatusLine @14");
    check("HTTP/1.1 200 OK\rA", "LineEnd @16");
    check("HTTP/1.1 200 OK\r\n A: b\r\n\r\n", "FieldFolded @17");
    check("HTTP/1.1 200 OK\r\nA: b\n\r\n", "FieldValue @21");
    check("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", "ContentLengthRepeated @51");
    check("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "ContentLength @32");
    check("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "LengthConflict @54");
    check("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "TransferUnknown @35");
    check("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "TransferVersion @35");
    check("HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n", "BodySize @40");
    check(&format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(5)), "FieldCount @41");
    check(&format!("HTTP/1.1 200 {}", "x".repeat(300)), "HeadSize @256");
}

#[test]
fn input_that_ends_inside_a_response_is_an_error() {
    check("H", "Truncated @0");
    check("HTTP/1.1 200 OK\r\nA", "Truncated @0");
    check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nh", "1.1 200 'OK' 2 keep; body h; Truncated @0");
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n";
    check(chunked, "1.1 200 'OK' chunked keep; body x; Truncated @0");
}

#[test]
fn a_client_decoder_reports_its_position() {
    let mut decoder = ResponseDecoder::default();
    let mut feed = |bytes: &[u8]| {
        let step = decoder.decode(&LIMITS, AnsweredMethod::Other, bytes).unwrap();
        (step.consumed, decoder.is_idle(), decoder.in_head(), decoder.in_body())
    };
    assert_eq!(feed(b""), (0, true, false, false));
    assert_eq!(feed(b"H"), (0, false, true, false));
    assert_eq!(feed(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"), (38, false, false, true));
    assert_eq!(feed(b"x"), (1, false, false, true));
    assert_eq!(feed(b""), (0, true, false, false));
}
