//! Properties over generated input: random sequences of operation pieces, valid messages, and arbitrary bytes.

use proptest::prelude::*;

use super::super::check::{NatsObservation, client, client_oracle, client_splits, server, server_splits};
use super::super::{Headers, Msg, NatsLimits, Pub, SubjectLimits, encode_sub, encode_unsub};
use super::{LIMITS, describe};

/// Pieces that move a decoder into and out of every state.
const PIECES: &[&str] = &[
    "PUB ",
    "HPUB ",
    "SUB ",
    "UNSUB ",
    "PING",
    "PONG",
    "CONNECT ",
    "CONNECT {}\r\n",
    "pub\t",
    "MSG ",
    "HMSG ",
    "INFO ",
    "+OK",
    "-ERR ",
    "'x'",
    "{",
    "a",
    "a.b",
    "a..b",
    "*",
    "a.>",
    "\u{fc}",
    " ",
    "\t",
    "\r\n",
    "\r",
    "\n",
    "0",
    "5",
    "12",
    "60",
    "101",
    " 5\r\n",
    " 60\r\n",
    "hello",
    "hello\r\n",
    "PUB a 5\r\nhello\r\n",
    "PUB a..b 5\r\nhello\r\n",
    "PUB a 60\r\n",
    "PUB a. 60\r\n",
    "HPUB a 12 17\r\n",
    "NATS/1.0\r\n\r\n",
    "MSG a 1 5\r\nhello\r\n",
    "PING\r\n",
    "012345678901234567890123456789012345678901234567890123456789",
    "\0",
];

/// Small enough for valid operations to reach every bound.
const TIGHT: NatsLimits = NatsLimits {
    control_line_size_max: 20,
    payload_size_max: 10,
    whole_size_max: 16,
    subject: SubjectLimits { size_max: 8, tokens_max: 2 },
};

fn concatenated_pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        12 => proptest::sample::select(PIECES).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..4),
    ];
    proptest::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0..4096usize, 0..12)
}

#[derive(Clone, Debug)]
enum ValidOperation {
    Pub { subject: String, reply: Option<String>, has_headers: bool, payload: Vec<u8> },
    Sub { filter: String, queue: Option<String>, sid: u64 },
    Unsub { sid: u64, after: Option<u32> },
}

const HEADERS: &[u8] = b"NATS/1.0\r\nA: b\r\n\r\n";

impl ValidOperation {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Pub { subject, reply, has_headers, payload } => Pub {
                subject: subject.as_bytes(),
                reply: reply.as_ref().map(String::as_bytes),
                headers: if *has_headers { HEADERS } else { b"" },
                payload,
            }
            .encode(out),
            Self::Sub { filter, queue, sid } => {
                let queue = queue.as_ref().map(String::as_bytes);
                encode_sub(out, filter.as_bytes(), queue, sid.to_string().as_bytes());
            }
            Self::Unsub { sid, after } => encode_unsub(out, sid.to_string().as_bytes(), *after),
        }
    }

    fn expected_observation(&self) -> NatsObservation {
        match self {
            Self::Pub { subject, reply, has_headers, payload } => {
                let headers = if *has_headers { HEADERS } else { b"" };
                let body = [headers, payload].concat();
                let line = format!("{subject}  {reply:?} {} {}", headers.len(), body.len());
                NatsObservation::Message(line, body)
            }
            Self::Sub { filter, queue, sid } => {
                NatsObservation::Command(format!("SUB {filter} {queue:?} {sid}"))
            }
            Self::Unsub { sid, after } => NatsObservation::Command(format!("UNSUB {sid} {after:?}")),
        }
    }
}

fn valid_operation() -> impl Strategy<Value = ValidOperation> {
    let subject = "[a-z$_*]{2,4}(\\.[A-Z0-9>-]{2,3}){0,3}";
    let filter = "([a-z]{1,4}|\\*)(\\.([A-Z0-9]{1,3}|\\*)){0,3}(\\.>)?";
    prop_oneof![
        3 => (subject, proptest::option::of(subject), any::<bool>(), proptest::collection::vec(any::<u8>(), 0..80))
            .prop_map(|(subject, reply, has_headers, payload)| ValidOperation::Pub { subject, reply, has_headers, payload }),
        1 => (filter, proptest::option::of("[a-z]{1,5}"), any::<u64>())
            .prop_map(|(filter, queue, sid)| ValidOperation::Sub { filter, queue, sid }),
        1 => (any::<u64>(), proptest::option::of(1..999_999_999u32))
            .prop_map(|(sid, after)| ValidOperation::Unsub { sid, after }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_of_any_bytes_decodes_the_same_operations(bytes in concatenated_pieces(), cuts in cuts()) {
        client_splits(&LIMITS, &bytes, &cuts);
        client_splits(&TIGHT, &bytes, &cuts);
    }

    #[test]
    fn any_split_of_any_bytes_decodes_the_same_deliveries(bytes in concatenated_pieces(), cuts in cuts()) {
        server_splits(&LIMITS, &bytes, &cuts);
    }

    #[test]
    fn a_decoder_written_for_clarity_agrees(bytes in concatenated_pieces()) {
        client_oracle(&LIMITS, &bytes);
        client_oracle(&NatsLimits::default(), &bytes);
        client_oracle(&TIGHT, &bytes);
    }

    #[test]
    fn any_bytes_are_decoded_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..300), cuts in cuts()) {
        client_splits(&LIMITS, &bytes, &cuts);
        server_splits(&LIMITS, &bytes, &cuts);
        client_oracle(&LIMITS, &bytes);
        if let Ok(headers) = Headers::parse(&bytes) {
            prop_assert!(headers.iter().count() <= bytes.len());
        }
    }

    /// Consecutive encoded operations decode to their original parts.
    #[test]
    fn operations_come_out_as_written(all in proptest::collection::vec(valid_operation(), 1..6), cuts in cuts()) {
        let mut bytes = Vec::new();
        for one in &all {
            one.encode(&mut bytes);
        }
        let mut expected: Vec<NatsObservation> = all.iter().map(ValidOperation::expected_observation).collect();
        expected.push(NatsObservation::Waiting(0));
        prop_assert_eq!(client_splits(&LIMITS, &bytes, &cuts), expected);
        client_oracle(&LIMITS, &bytes);
        client_splits(&TIGHT, &bytes, &cuts);
        client_oracle(&TIGHT, &bytes);
    }

    #[test]
    fn deliveries_come_out_as_written(
        subject in "[a-z.]{1,20}",
        sid in any::<u64>(),
        reply in proptest::option::of("[a-z.]{1,20}"),
        has_headers: bool,
        payload in proptest::collection::vec(any::<u8>(), 0..80),
        cuts in cuts(),
    ) {
        let headers = if has_headers { HEADERS } else { b"" };
        let sid = sid.to_string();
        let mut bytes = Vec::new();
        let reply_bytes = reply.as_ref().map(String::as_bytes);
        Msg { subject: subject.as_bytes(), sid: sid.as_bytes(), reply: reply_bytes, headers, payload: &payload }
            .encode(&mut bytes);
        let body = [headers, &payload].concat();
        let line = format!("{subject} {sid} {reply:?} {} {}", headers.len(), body.len());
        prop_assert_eq!(server_splits(&LIMITS, &bytes, &cuts), [NatsObservation::Message(line, body), NatsObservation::Waiting(0)]);
    }
}

/// The longest line and the longest message returned whole, sent byte by byte: every byte is scanned at most twice.
#[test]
fn input_in_single_bytes_costs_linear_work() {
    let limits = NatsLimits::default();
    let blanks = " ".repeat(4000);
    for (bytes, events) in [
        (format!("PING{blanks}\r\n"), 1),
        (format!("PUB{blanks}a 12000\r\n{}\r\n", "\n".repeat(12_000)), 1),
        (format!("PUB a 20000\r\n{}\r\n", "\n".repeat(20_000)), 1),
        (format!("PUB a..b 20000\r\n{}\r\n", "\n".repeat(20_000)), 1),
        ("PUB a 1\r\nx\r\n".repeat(2000), 2000),
    ] {
        let each: Vec<usize> = (0..bytes.len()).collect();
        let (seen, work) = client(&limits, bytes.as_bytes(), &each);
        assert_eq!(seen.len(), events + 1, "{}", describe(&seen));
        assert!(work <= 2 * bytes.len() as u64, "{work} bytes looked at for {}", bytes.len());
    }
    let info = format!("INFO {{{}}}\r\n", " ".repeat(60_000));
    let each: Vec<usize> = (0..info.len()).collect();
    let (seen, work) = server(&NatsLimits::for_client(), info.as_bytes(), &each);
    assert_eq!(seen.len(), 2);
    assert!(work <= 2 * info.len() as u64);
}
