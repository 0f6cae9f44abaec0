//! Time per publication of a busy client, many in one buffer, and per encoded delivery.
//!
//! `cargo bench -p stilling-wire --bench nats` prints the median of several rounds in nanoseconds. With a case's name
//! (`-- short`) only that case runs, for external instruction counting.
#![allow(clippy::print_stdout, reason = "a benchmark reports on standard output")]

use std::hint::black_box;
use std::time::Instant;

use stilling_wire::nats::{ClientDecoder, ClientEvent, Msg, NatsLimits, Pub, encode_headers};

/// Publications per buffer.
const BURST: usize = 128;
const ROUNDS: usize = 11;
const BUFFERS: usize = 2000;

fn decode(limits: &NatsLimits, buffer: &[u8]) -> usize {
    let (mut decoder, mut at, mut bytes) = (ClientDecoder::default(), 0, 0);
    loop {
        let step = decoder.decode(limits, black_box(&buffer[at..])).expect("the operations are good");
        at += step.consumed;
        match step.event {
            ClientEvent::Publish(message) => {
                bytes += message.payload.len() + message.subject.as_bytes().len();
            }
            _ => return bytes,
        }
    }
}

fn nanoseconds(mut work: impl FnMut()) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..BUFFERS {
                work();
            }
            start.elapsed().as_nanos() as f64 / (BUFFERS * BURST) as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let runs = |case: &str| wanted.is_empty() || wanted == [case];
    let mut headers = Vec::new();
    encode_headers(&mut headers, None, &[("Nats-Msg-Id", "0123456789abcdef")]).expect("the header is good");
    let (small, large) = ([b'x'; 128], [b'x'; 4096]);
    let reply = Some(&b"_INBOX.nuid0123456789abcdef.12345678"[..]);
    let cases = [
        ("short", Pub { subject: b"a.b", reply: None, headers: b"", payload: &small }),
        ("plain", Pub { subject: b"events.sensor.17", reply: None, headers: b"", payload: &small }),
        ("reply", Pub { subject: b"events.sensor.17", reply, headers: b"", payload: &small }),
        ("headers", Pub { subject: b"events.sensor.17", reply, headers: &headers, payload: &small }),
        ("large", Pub { subject: b"events.sensor.17", reply, headers: b"", payload: &large }),
    ];
    let limits = NatsLimits::default();
    for (case, message) in cases {
        if runs(case) {
            let mut one = Vec::new();
            message.encode(&mut one);
            let buffer = one.repeat(BURST);
            let time = nanoseconds(|| {
                black_box(decode(&limits, black_box(&buffer)));
            });
            println!("{case:>8} {:>4} bytes: decode {time:7.1} ns", one.len());
        }
    }
    if runs("deliver") {
        let message =
            Msg { subject: b"events.sensor.17", sid: b"7", reply: None, headers: b"", payload: &small };
        let mut out = Vec::with_capacity(BURST * message.size());
        let time = nanoseconds(|| {
            out.clear();
            for _ in 0..BURST {
                black_box(&message).encode(&mut out);
            }
            black_box(&out);
        });
        println!(" deliver {:>4} bytes: encode {time:7.1} ns", message.size());
    }
}
