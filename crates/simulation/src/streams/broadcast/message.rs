//! Messages of the broadcast world: each identifies its publisher and proves that it is complete.

use crate::SplitMix64;
use crate::streams::message::MessageName;

/// Streams: without and with the gate `auction`, first two on disk, then two in memory.
pub(super) const STREAMS: [&str; 4] = ["events", "auction", "cache", "rounds"];

/// Number of streams on disk, which come first.
pub(super) const ON_DISK: usize = 2;

/// The stream on disk without a gate.
pub(super) const UNGATED_DISK: usize = 0;

/// Publishers from this number on send long messages.
pub(super) const LONG_PUBLISHERS: u32 = 200;

/// Bytes of their payloads, which repeat a shorter one.
const LONG_PAYLOAD_MAX: usize = 7500;

/// Separates the repetitions.
const SEPARATOR: u8 = b'|';

/// Lots per stream with a gate.
pub(super) const LOTS: usize = 2;

pub(super) fn is_gated(stream: usize) -> bool {
    stream % 2 == 1
}

/// A message that a client publishes, the same each time it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SentMessage {
    pub(super) subject: String,
    pub(super) payload: Vec<u8>,
    /// Price and lot of a bid or an opening that the gate can accept.
    pub(super) lot: Option<LotMessage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LotMessage {
    pub(super) lot: usize,
    pub(super) price: u64,
    pub(super) is_open: bool,
}

impl SentMessage {
    /// A message for a stream without a gate.
    pub(super) fn plain(stream: usize, name: MessageName) -> SentMessage {
        let subject = format!("{}.{}", STREAMS[stream], name.publisher);
        let mut payload = name.payload();
        if name.publisher >= LONG_PUBLISHERS {
            let copy = payload.clone();
            while payload.len() + copy.len() < LONG_PAYLOAD_MAX {
                payload.push(SEPARATOR);
                payload.extend_from_slice(&copy);
            }
        }
        SentMessage { subject, payload, lot: None }
    }

    /// A message for a stream with a gate: an opening, a bid near `prices`, or one that the gate must reject.
    pub(super) fn for_gate(
        stream: usize,
        name: MessageName,
        prices: [u64; LOTS],
        random: &mut SplitMix64,
    ) -> SentMessage {
        let lot = random.index(LOTS);
        let price = (prices[lot] + random.between(0, 6)).saturating_sub(2).max(1);
        let own = format!("{}-{}", name.publisher, name.message);
        let (verb, price_text, is_valid) = match random.below(10) {
            0 | 1 => ("open", price.to_string(), true),
            2 => ("bid", ["-5", "1.5", "\"ten\"", "null"][random.index(4)].to_owned(), false),
            3 => ("raise", price.to_string(), false),
            _ => ("bid", price.to_string(), true),
        };
        let key = if verb == "open" { "title" } else { "bidder" };
        SentMessage {
            subject: format!("{}.lot{lot}.{verb}", STREAMS[stream]),
            payload: format!("{{\"price\":{price_text},\"{key}\":\"{own}\"}}").into_bytes(),
            lot: is_valid.then_some(LotMessage { lot, price, is_open: verb == "open" }),
        }
    }
}

/// The name of the message with this payload in a stream, if it has one.
pub(super) fn name_of(stream: usize, payload: &[u8]) -> Option<MessageName> {
    if !is_gated(stream) {
        return MessageName::of(payload.split(|byte| *byte == SEPARATOR).next()?);
    }
    let text = std::str::from_utf8(payload).ok()?.strip_suffix("\"}")?;
    let (publisher, message) = text.rsplit_once('"')?.1.split_once('-')?;
    Some(MessageName { publisher: publisher.parse().ok()?, message: message.parse().ok()? })
}

/// Whether a filter with the wildcards of NATS matches a subject.
pub(super) fn matches(filter: &str, subject: &str) -> bool {
    let mut subject = subject.split('.');
    for token in filter.split('.') {
        match (token, subject.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (token, Some(other)) if token == other => {}
            _ => return false,
        }
    }
    subject.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_names_its_message() {
        let mut random = SplitMix64::new(1);
        for (stream, message) in (0..STREAMS.len()).flat_map(|stream| [(stream, 17), (stream, 18)]) {
            for publisher in (0..20).chain([LONG_PUBLISHERS]) {
                let name = MessageName { publisher, message };
                let sent = match is_gated(stream) {
                    true => SentMessage::for_gate(stream, name, [10; LOTS], &mut random),
                    false => SentMessage::plain(stream, name),
                };
                assert_eq!(name_of(stream, &sent.payload), Some(name), "{sent:?}");
                assert!(matches(&format!("{}.>", STREAMS[stream]), &sent.subject), "{sent:?}");
            }
        }
        assert_eq!(name_of(1, b"{\"price\":1}"), None);
    }

    #[test]
    fn filters() {
        assert!(matches("a.*.c", "a.b.c") && matches("a.b", "a.b") && matches("a.>", "a.b.c"));
        assert!(!matches("a.*", "a.b.c") && !matches("a.>", "a") && !matches("a.b.c", "a.b"));
    }
}
