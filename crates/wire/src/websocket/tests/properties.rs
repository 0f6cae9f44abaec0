//! Properties over generated input: random sequences of frame parts, valid messages, and arbitrary bytes.

use proptest::prelude::*;

use super::{LIMITS, TIGHT};
use crate::websocket::check::{WebSocketObservation, decode, oracle, splits};
use crate::websocket::{MessageKind, Opcode, WebSocketFrame, WebSocketLimits, WebSocketRole};

/// Parts that move a decoder into and out of every state.
const PARTS: &[&[u8]] = &[
    b"\x81",
    b"\x01",
    b"\x82",
    b"\x02",
    b"\x80",
    b"\x00",
    b"\x88",
    b"\x89",
    b"\x8a",
    b"\x09",
    b"\xc1",
    b"\x83",
    b"\x7e\0\x7e",
    b"\x7e\0\x03",
    b"\x7f\0\0\0\0\0\x01\0\0",
    b"\x7f\xff",
    b"\x05",
    b"\x03",
    b"\x85",
    b"\x83",
    b"\x37\xfa\x21\x3d",
    b"\0\0\0\0",
    b"hello",
    b"abc",
    b"\xc3",
    b"\xa9",
    b"\xf0\x9d",
    b"\x03\xe8",
    b"\x03\xee",
    b"\x81\x02hi",
    b"\x01\x02hi",
    b"\x00\x02hi",
    b"\x80\x02hi",
    b"\x02\x02\xff\xfe",
    b"\x89\x01p",
    b"\x88\x02\x03\xe8",
    b"\x81\x82\x37\xfa\x21\x3d\x5f\x93",
    b"\x01\x82\x37\xfa\x21\x3d\x5f\x93",
    b"\x80\x82\x37\xfa\x21\x3d\x5f\x93",
    b"\x89\x80\x37\xfa\x21\x3d",
    b"\x82\x8c\0\0\0\0",
    b"0123456789ab",
];

const ROLES: [WebSocketRole; 2] = [WebSocketRole::Client, WebSocketRole::Server];

fn concatenated_parts() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        12 => proptest::sample::select(PARTS).prop_map(<[u8]>::to_vec),
        1 => proptest::collection::vec(any::<u8>(), 0..4),
    ];
    proptest::collection::vec(part, 0..14).prop_map(|parts| parts.concat())
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0..4096usize, 0..12)
}

/// A message in fragments, each followed by pings.
#[derive(Clone, Debug)]
struct ValidMessage {
    is_text: bool,
    payload: Vec<u8>,
    cuts: Vec<usize>,
    pings: usize,
}

impl ValidMessage {
    fn encode(&self, mask: Option<[u8; 4]>, out: &mut Vec<u8>, seen: &mut Vec<WebSocketObservation>) {
        let mut ends: Vec<usize> = self.cuts.iter().map(|cut| cut % (self.payload.len() + 1)).collect();
        ends.push(self.payload.len());
        ends.sort_unstable();
        let mut start = 0;
        for (number, &end) in ends.iter().enumerate() {
            let first = if self.is_text { Opcode::Text } else { Opcode::Binary };
            let opcode = if number == 0 { first } else { Opcode::Continuation };
            let is_final = number + 1 == ends.len();
            WebSocketFrame { opcode, is_final, mask, payload: &self.payload[start..end] }.encode(out);
            start = end;
            if is_final {
                let kind = if self.is_text { MessageKind::Text } else { MessageKind::Binary };
                seen.push(WebSocketObservation::Message(kind, self.payload.clone()));
            }
            for _ in 0..self.pings {
                WebSocketFrame { mask, ..WebSocketFrame::ping(b"p") }.encode(out);
                seen.push(WebSocketObservation::Ping(b"p".to_vec()));
            }
        }
    }
}

fn valid_message() -> impl Strategy<Value = ValidMessage> {
    let payload = prop_oneof![
        "[a-zé€𐀀]{0,60}".prop_map(|text| (true, text.into_bytes())),
        proptest::collection::vec(any::<u8>(), 0..300).prop_map(|bytes| (false, bytes)),
    ];
    (payload, proptest::collection::vec(0..400usize, 0..4), 0..2usize)
        .prop_map(|((is_text, payload), cuts, pings)| ValidMessage { is_text, payload, cuts, pings })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_of_any_bytes_yields_the_same_events(bytes in concatenated_parts(), cuts in cuts()) {
        for sender in ROLES {
            splits(sender, &LIMITS, &bytes, &cuts);
            splits(sender, &TIGHT, &bytes, &cuts);
        }
    }

    #[test]
    fn a_decoder_written_for_clarity_agrees(bytes in concatenated_parts()) {
        for sender in ROLES {
            oracle(sender, &LIMITS, &bytes);
            oracle(sender, &TIGHT, &bytes);
            oracle(sender, &WebSocketLimits::default(), &bytes);
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..300), cuts in cuts()) {
        for sender in ROLES {
            splits(sender, &LIMITS, &bytes, &cuts);
            oracle(sender, &LIMITS, &bytes);
        }
    }

    /// Messages decode to what was encoded, whatever their fragments and the pings between them.
    #[test]
    fn messages_come_out_as_written(
        all in proptest::collection::vec(valid_message(), 1..5),
        mask in proptest::option::of(any::<[u8; 4]>()),
        cuts in cuts(),
    ) {
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for one in &all {
            one.encode(mask, &mut bytes, &mut expected);
        }
        expected.push(WebSocketObservation::Waiting(0));
        let sender = if mask.is_some() { WebSocketRole::Client } else { WebSocketRole::Server };
        prop_assert_eq!(splits(sender, &LIMITS, &bytes, &cuts), expected);
        oracle(sender, &LIMITS, &bytes);
        splits(sender, &TIGHT, &bytes, &cuts);
    }

    /// The error comes with the byte that makes the input invalid, in every split.
    #[test]
    fn an_error_comes_with_its_byte(bytes in concatenated_parts()) {
        let each: Vec<usize> = (0..bytes.len()).collect();
        for sender in ROLES {
            if let Some(end) = decode(sender, &LIMITS, &bytes, &each).failed_at {
                prop_assert!(decode(sender, &LIMITS, &bytes[..end], &[]).failed_at.is_some());
                prop_assert!(decode(sender, &LIMITS, &bytes[..end - 1], &[]).failed_at.is_none());
            }
        }
    }
}

/// A long text that waits to be returned whole, byte by byte: every byte is validated once.
#[test]
fn input_in_single_bytes_costs_linear_work() {
    let limits = WebSocketLimits { message_size_max: 1 << 20, whole_size_max: 1 << 20 };
    let text = "é".repeat(20_000);
    let mut bytes = Vec::new();
    WebSocketFrame::text(&text).masked([1, 2, 3, 4]).encode(&mut bytes);
    let each: Vec<usize> = (0..bytes.len()).collect();
    let decoded = decode(WebSocketRole::Client, &limits, &bytes, &each);
    assert_eq!(decoded.seen.len(), 2);
    assert_eq!(decoded.work, text.len() as u64);
}
