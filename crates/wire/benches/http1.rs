//! Time per head, compared with httparse, for requests of load generators and browsers. httparse only splits a head
//! into its parts; this decoder also checks host, framing, persistence and target.
//!
//! `cargo bench -p stilling-wire` prints the median of several rounds in nanoseconds. With a parser's and a case's name
//! (`-- ours small`) only that case runs, for external instruction counting.
#![allow(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::hint::black_box;
use std::time::Instant;

use stilling_wire::http1::{HttpLimits, RequestDecoder, RequestEvent};

const SMALL: &[u8] = b"GET /test/fast HTTP/1.1\r\nHost: 127.0.0.1:9000\r\n\r\n";
const ABSENT: &[u8] = b"GET /test/fast\r\n\r\n";
const AB: &[u8] = b"GET /test/fast HTTP/1.0\r\nConnection: Keep-Alive\r\nHost: 127.0.0.1:9000\r\n\
    User-Agent: ApacheBench/2.3\r\nAccept: */*\r\n\r\n";
const BROWSER: &[u8] = b"GET /status?from=17 HTTP/1.1\r\nHost: stilling.example:9000\r\nConnection: keep-alive\r\n\
    Cache-Control: max-age=0\r\nsec-ch-ua: \"Chromium\";v=\"130\", \"Not?A_Brand\";v=\"99\"\r\nsec-ch-ua-mobile: ?0\r\n\
    sec-ch-ua-platform: \"Linux\"\r\nUpgrade-Insecure-Requests: 1\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64) \
    AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 Safari/537.36\r\nAccept: text/html,application/xhtml+xml,\
    application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8\r\nSec-Fetch-Site: none\r\n\
    Sec-Fetch-Mode: navigate\r\nSec-Fetch-User: ?1\r\nSec-Fetch-Dest: document\r\n\
    Accept-Encoding: gzip, deflate, br, zstd\r\nAccept-Language: en-GB,en;q=0.9,de;q=0.8\r\n\
    Cookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\n\r\n";
const CASES: [(&str, &[u8], bool); 4] =
    [("small", SMALL, true), ("ab", AB, true), ("browser", BROWSER, true), ("absent", ABSENT, false)];

/// Requests per buffer, as sent by a pipelining client.
const PIPELINED: usize = 64;
const ROUNDS: usize = 11;
const BUFFERS: usize = 4000;

fn ours(buffer: &[u8]) -> usize {
    let (limits, mut decoder) = (HttpLimits::default(), RequestDecoder::default());
    let (mut at, mut persistent) = (0, 0);
    while at < buffer.len() {
        let step = decoder.decode(&limits, black_box(&buffer[at..])).expect("the request is valid");
        let RequestEvent::Head(head) = step.event else { panic!("the request is complete") };
        persistent += usize::from(head.persistent) + head.target.path.len();
        at += step.consumed;
    }
    persistent
}

fn httparse(buffer: &[u8]) -> usize {
    let (mut at, mut found) = (0, 0);
    while at < buffer.len() {
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut request = httparse::Request::new(&mut headers);
        let status = request.parse(black_box(&buffer[at..])).expect("the request is valid");
        found += request.headers.len() + request.path.map_or(0, str::len);
        at += status.unwrap();
    }
    found
}

fn nanoseconds(buffer: &[u8], decode: fn(&[u8]) -> usize) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..BUFFERS {
                black_box(decode(black_box(buffer)));
            }
            start.elapsed().as_nanos() as f64 / (BUFFERS * PIPELINED) as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let runs = |name: &str, case: &str| wanted.is_empty() || wanted == [name, case];
    for (case, request, for_both) in CASES {
        let buffer = request.repeat(PIPELINED);
        if runs("ours", case) {
            println!("{case:>8} {:>4} bytes: ours     {:7.1} ns", request.len(), nanoseconds(&buffer, ours));
        }
        if for_both && runs("httparse", case) {
            println!(
                "{case:>8} {:>4} bytes: httparse {:7.1} ns",
                request.len(),
                nanoseconds(&buffer, httparse)
            );
        }
    }
}
