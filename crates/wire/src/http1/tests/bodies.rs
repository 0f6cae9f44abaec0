//! Bodies: sized and chunked, valid and malformed.

use super::{LIMITS, check};
use crate::http1::HttpLimits;

const CHUNKED: &str = "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
const HEAD: &str = "PUT / 1.1 host=a chunked keep";

#[test]
fn a_sized_body_ends_with_its_last_byte() {
    let check_sized = |length: &str, body: &str, expected: &str| {
        let bytes = format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}");
        check(bytes, &format!("PUT / 1.1 host=a{expected}"));
    };
    check_sized("0", "", " keep");
    check_sized("000", "", " keep");
    check_sized("5", "hello", " sized=5 keep; body hello; end");
    check_sized("005", "hello", " sized=5 keep; body hello; end");
    check_sized("5", "hel", " sized=5 keep; body hel; wait 0");
    check_sized("5", "", " sized=5 keep; wait 0");
    check_sized("2", "\r\nGET /b\r\n\r\n", " sized=2 keep; body \\r\\n; end; GET /b absent close");
    check_sized("0", "GET /b\r\n\r\n", " keep; GET /b absent close");
    let full = "x".repeat(100);
    check_sized("100", &full, &format!(" sized=100 keep; body {full}; end"));
    check("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n", "413 BodySize @48");
    check("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551615\r\n\r\n", "413 BodySize @65");
}

#[test]
fn a_chunked_body_is_decoded_without_its_framing() {
    let check_chunked =
        |body: &str, expected: &str| check(format!("{CHUNKED}{body}"), &format!("{HEAD}{expected}"));
    check_chunked("0\r\n\r\n", "; end");
    check_chunked("5\r\nhello\r\n0\r\n\r\n", "; body hello; end");
    check_chunked("A\r\n0123456789\r\n0\r\n\r\n", "; body 0123456789; end");
    check_chunked("a\r\n0123456789\r\n00\r\n\r\n", "; body 0123456789; end");
    check_chunked("0000000000000001\r\nx\r\n0\r\n\r\n", "; body x; end");
    check_chunked("1;a=b;c\r\nx\r\n0;\r\n\r\n", "; body x; end");
    check_chunked("1 \t;a=\"b c\"\r\nx\r\n0\r\n\r\n", "; body x; end");
    check_chunked("2\r\n\r\n\r\n0\r\n\r\n", "; body \\r\\n; end");
    check_chunked("0\r\nA: b\r\nB:\r\n\r\n", "; end");
    check_chunked("0\r\nContent-Length: 7\r\n\r\nGET /b\r\n\r\n", "; end; GET /b absent close");
    check_chunked("1\r\nx\r\n0\r\n\r\n\r\nGET /b\r\n\r\n", "; body x; end; GET /b absent close");
    check_chunked("3\r\nab", "; body ab; wait 0");
    check_chunked("0\r\n", "; wait 0");
    check_chunked("0\r\n\r", "; wait 0");
}

#[test]
fn broken_chunk_framing_is_rejected_at_its_byte() {
    let check_chunked =
        |body: &str, expected: &str| check(format!("{CHUNKED}{body}"), &format!("{HEAD}; {expected}"));
    check_chunked("\r\n", "400 ChunkSize @0");
    check_chunked(" 5\r\n", "400 ChunkSize @0");
    check_chunked("+5\r\n", "400 ChunkSize @0");
    check_chunked("-1\r\n", "400 ChunkSize @0");
    check_chunked(";a\r\n", "400 ChunkSize @0");
    check_chunked("g\r\n", "400 ChunkSize @0");
    check_chunked("0x5\r\n", "400 ChunkSize @1");
    check_chunked("5_0\r\n", "400 ChunkSize @1");
    check_chunked("5\n", "400 ChunkSize @1");
    check_chunked("5 \r\n", "400 ChunkSize @2");
    check_chunked("5 5\r\n", "400 ChunkSize @2");
    check_chunked("5\rx", "400 LineEnd @2");
    check_chunked("5;a\nhello", "400 ChunkExtension @3");
    check_chunked("5;\0", "400 ChunkExtension @2");
    check_chunked("5;a\rb\r\n", "400 LineEnd @4");
    check_chunked("00000000000000001\r\n", "400 ChunkSize @16");
    check_chunked("10000000000000000\r\n", "400 ChunkSize @16");
    check_chunked("FFFFFFFFFFFFFFFF\r\n", "413 BodySize @16");
    check_chunked("65\r\n", "413 BodySize @2");
    check_chunked("2\r\nabc", "body ab; 400 ChunkEnd @0");
    check_chunked("2\r\nab\n", "body ab; 400 ChunkEnd @0");
    check_chunked("2\r\nab\rx", "body ab; 400 ChunkEnd @1");
    check_chunked("0\r\n A: b\r\n\r\n", "400 FieldFolded @0");
    check_chunked("0\r\nA : b\r\n\r\n", "400 FieldName @1");
    check_chunked("0\r\nA: b\r\n\tc\r\n\r\n", "400 FieldFolded @6");
    check_chunked("0\r\nA: \0\r\n\r\n", "400 FieldValue @3");
    check_chunked("0\r\n\n", "400 FieldName @0");
    check_chunked("0\r\n\rx", "400 LineEnd @1");
    check_chunked("1\r\nx\r\n64\r\n", "body x; 413 BodySize @2");
    check_chunked("1\r\nx\r\nFFFFFFFFFFFFFFFF\r\n", "body x; 413 BodySize @16");
}

/// Row 4.32: the framing around chunks is bounded too.
#[test]
fn chunk_lines_and_trailers_are_bounded() {
    let check_chunked =
        |body: String, expected: &str| check(format!("{CHUNKED}{body}"), &format!("{HEAD}; {expected}"));
    check_chunked(format!("0;{}\r\n\r\n", "a".repeat(252)), "end");
    check_chunked(format!("0;{}\r\n\r\n", "a".repeat(253)), "400 ChunkLineSize @256");
    check_chunked(format!("0\r\n{}\r\n", "A: b\r\n".repeat(100)), "end");
    check_chunked(format!("0\r\n{}\r\n", "A: b\r\n".repeat(101)), "431 FieldCount @600");
}

#[test]
fn long_trailers_and_many_extensions_are_rejected_at_the_limit() {
    let limits = HttpLimits { body_size_max: 1000, ..LIMITS };
    let last = |body: String| {
        let bytes = format!("{CHUNKED}{body}").into_bytes();
        let cuts: Vec<usize> = (0..bytes.len()).step_by(7).collect();
        crate::http1::check::request_splits(&limits, &bytes, &cuts).pop().unwrap()
    };
    let fault = |seen| match seen {
        super::HttpObservation::Error(error) => Some((format!("{:?}", error.fault()), error.offset())),
        _ => None,
    };
    let trailers = |filler: usize| format!("0\r\nA: {}\r\n\r\n", "b".repeat(filler));
    assert_eq!(fault(last(trailers(4096 - 7))), None);
    assert_eq!(fault(last(trailers(4096 - 6))), Some(("TrailersSize".to_owned(), 4096)));
    let extensions = |lines: usize| format!("1;{}\r\nx\r\n", "a".repeat(128)).repeat(lines) + "0\r\n\r\n";
    assert_eq!(fault(last(extensions(128))), None);
    assert_eq!(fault(last(extensions(129))), Some(("ChunkLineSize".to_owned(), 2)));
}
