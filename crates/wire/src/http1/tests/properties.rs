//! Properties over generated input: random sequences of request pieces, valid requests, and arbitrary bytes.

use proptest::prelude::*;

use super::{HttpLimits, LIMITS, RequestDecoder, RequestEvent};
use crate::http1::check::{
    HttpObservation, request_oracle, request_splits, requests, response_oracle, response_splits,
};
use crate::http1::{AnsweredMethod, Persistence, ResponseEncoder, Status};

/// Pieces that move a decoder into and out of every state.
const PIECES: &[&str] = &[
    "GET ",
    "PUT ",
    "OPTIONS ",
    "CONNECT ",
    "/",
    "/a?b",
    "*",
    "a:1",
    "http://a/",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    " HTTP/1.7\r\n",
    " HTTP/2.0\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n",
    "PUT / HTTP/1.1\r\nHost: a\r\n",
    "\r\n",
    "\r\n\r\n",
    "\r",
    "\n",
    " ",
    "\t",
    ":",
    ",",
    "\0",
    "\x7f",
    "\u{fc}",
    "Host: a\r\n",
    "A: b\r\n",
    "A:\r\n",
    "X-Long-Name:  long value \t\r\n",
    "Connection: close\r\n",
    "Connection: keep-alive, upgrade\r\n",
    "Upgrade: websocket\r\n",
    "Expect: 100-continue\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: 0\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip\r\n",
    "hello",
    "5\r\nhello\r\n",
    "1;a=b\r\nx\r\n",
    "0\r\n\r\n",
    "0\r\nA: b\r\n\r\n",
    "GET /old\r\n\r\n",
    "ffffffffffffffff",
];
const REPLY_PIECES: &[&str] = &[
    "HTTP/1.1 ",
    "HTTP/1.0 ",
    "200",
    " OK\r\n",
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.1 204 No Content\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "\r\n",
    "\r",
    "\n",
    "A: b\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: 0\r\n",
    "Transfer-Encoding: chunked\r\n",
    "hello",
    "5\r\nhello\r\n",
    "0\r\n\r\n",
    "Connection: close\r\n",
    " ",
    "x",
    "\0",
    "HTTP/1.1 600\r\n",
    "HTTP/1.7 200\r\n",
];

fn concatenated_pieces(pieces: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        12 => proptest::sample::select(pieces).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..4),
    ];
    proptest::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0..4096usize, 0..12)
}

type ValidRequest = (String, String, Vec<(String, String)>, Option<(bool, Vec<u8>)>);

fn valid_request() -> impl Strategy<Value = ValidRequest> {
    let fields = proptest::collection::vec(
        ("X-[A-Za-z0-9!#$%&'*+.^_`|~-]{0,12}", "([!-~]([ -~\t]{0,20}[!-~])?)?"),
        0..6,
    );
    let body = proptest::option::of((any::<bool>(), proptest::collection::vec(any::<u8>(), 1..100)));
    ("[A-Z]{1,9}", "/[!-\"$-~]{0,30}", fields, body)
        .prop_filter("CONNECT has a target of its own", |(method, ..)| method != "CONNECT")
}

fn encode_request((method, target, fields, body): &ValidRequest, chunk_size: usize) -> Vec<u8> {
    let mut bytes = format!("{method} {target} HTTP/1.1\r\nHost: a\r\n").into_bytes();
    for (name, value) in fields {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    match body {
        None => bytes.extend_from_slice(b"\r\n"),
        Some((false, body)) => {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
            bytes.extend_from_slice(body);
        }
        Some((true, body)) => {
            bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            for chunk in body.chunks(chunk_size) {
                bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                bytes.extend_from_slice(chunk);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Row 4.33: every split of the bytes gives the same events, for linear work.
    #[test]
    fn any_split_of_any_bytes_decodes_the_same_requests(bytes in concatenated_pieces(PIECES), cuts in cuts()) {
        request_splits(&LIMITS, &bytes, &cuts);
    }

    /// Row 4.33: a second parser agrees, except where a listed rule is stricter.
    #[test]
    fn a_second_parser_agrees_about_requests(bytes in concatenated_pieces(PIECES)) {
        request_oracle(&HttpLimits::default(), &bytes);
    }

    /// Rows 4.15 and 4.33: consecutive valid requests decode to their original parts.
    #[test]
    fn valid_requests_come_out_as_written(
        all in proptest::collection::vec(valid_request(), 1..4),
        chunk_size in 1..40usize,
        cuts in cuts(),
    ) {
        let bytes: Vec<u8> = all.iter().flat_map(|one| encode_request(one, chunk_size)).collect();
        let mut seen = request_splits(&HttpLimits::default(), &bytes, &cuts).into_iter();
        for (_, _, fields, body) in &all {
            let Some(HttpObservation::Head(_, decoded_fields)) = seen.next() else { panic!("a head is due") };
            let sent = fields.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec()));
            let framing = usize::from(body.is_some());
            prop_assert!(decoded_fields[1..decoded_fields.len() - framing].iter().cloned().eq(sent));
            if let Some((_, body)) = body {
                prop_assert_eq!(seen.next(), Some(HttpObservation::Body(body.clone())));
                prop_assert_eq!(seen.next(), Some(HttpObservation::End));
            }
        }
        prop_assert_eq!(seen.next(), Some(HttpObservation::Waiting(0)));
        let mut rest = &bytes[..];
        for (method, target, ..) in &all {
            let mut decoder = RequestDecoder::default();
            let step = decoder.decode(&HttpLimits::default(), rest).unwrap();
            let RequestEvent::Head(head) = step.event else { panic!("a head is due") };
            prop_assert_eq!(head.method.as_bytes(), method.as_bytes());
            prop_assert_eq!(head.target.raw, target.as_bytes());
            let mut parts = target.splitn(2, '?');
            prop_assert_eq!(Some(head.target.path), parts.next().map(str::as_bytes));
            prop_assert_eq!(head.target.query, parts.next().map(str::as_bytes));
            rest = &rest[step.consumed..];
            while decoder.in_body() {
                rest = &rest[decoder.decode(&HttpLimits::default(), rest).unwrap().consumed..];
            }
        }
    }

    #[test]
    fn any_split_of_any_bytes_decodes_the_same_responses(bytes in concatenated_pieces(REPLY_PIECES), cuts in cuts(), head: bool) {
        let answered = if head { AnsweredMethod::Head } else { AnsweredMethod::Other };
        response_splits(&LIMITS, answered, &bytes, &cuts);
    }

    #[test]
    fn a_second_parser_agrees_about_responses(bytes in concatenated_pieces(REPLY_PIECES)) {
        response_oracle(&HttpLimits::default(), &bytes);
    }

    /// Row 4.16: both this parser and a second one read encoded responses.
    #[test]
    fn replies_come_out_as_written(
        status in proptest::sample::select(Status::ALL),
        length in proptest::option::of(0..100u64),
        value in "[ -~]{0,30}",
        close: bool,
    ) {
        let connection = if close { Persistence::Close } else { Persistence::Implicit };
        let extra = [("X-A", value.as_str())];
        let reply = ResponseEncoder { connection, content_length: length, extra: &extra, ..ResponseEncoder::new(status) };
        let mut bytes = Vec::new();
        reply.encode(&mut bytes).unwrap();
        let HttpObservation::Head(_, fields) = response_splits(&LIMITS, AnsweredMethod::Head, &bytes, &[20]).swap_remove(0) else {
            panic!("a head is due")
        };
        prop_assert!(fields.contains(&(b"X-A".to_vec(), value.trim_matches(' ').as_bytes().to_vec())));
        response_oracle(&LIMITS, &bytes);
    }
}

/// Row 4.33: every byte of the longest head, sent byte by byte, is scanned at most twice.
#[test]
fn a_head_in_single_bytes_costs_linear_work() {
    let filler = "b".repeat(16 * 1024 - 40);
    for bytes in [
        format!("GET / HTTP/1.1\r\nHost: a\r\nA: {filler}\r\n\r\n"),
        format!("GET /{filler} HTTP/1.1\r\nHost: a\r\n\r\n"),
    ] {
        let each: Vec<usize> = (0..bytes.len()).collect();
        let (seen, work) = requests(&HttpLimits::default(), bytes.as_bytes(), &each);
        assert!(matches!(seen[..], [HttpObservation::Head(..), HttpObservation::Waiting(0)]));
        assert!(work <= 2 * bytes.len() as u64, "{work} bytes looked at for {}", bytes.len());
    }
}
