//! Messages of the broadcast world: each identifies its publisher and proves that it is complete.

use super::decode::text_of;
use crate::SplitMix64;
use crate::streams::message::MessageName;
use crate::streams::wire::number_of;

/// Streams: without and with the gate `auction`, first two on disk, then two in memory.
pub(super) const STREAMS: [&str; 4] = ["events", "auction", "cache", "rounds"];

/// Number of streams on disk, which come first.
pub(super) const ON_DISK: usize = 2;

/// The stream on disk without a gate.
pub(super) const UNGATED_DISK: usize = 0;

/// The stream on disk with a gate.
pub(super) const GATED_DISK: usize = 1;

/// Publishers from this number on send long messages.
pub(super) const LONG_PUBLISHERS: u32 = 200;

/// Bytes of their payloads, which repeat a shorter one.
const LONG_PAYLOAD_MAX: usize = 7500;

/// Most bytes of an encoded message beside its subject and payload: headers, names, numbers and line ends.
const ENCODING_SIZE_MAX: usize = 200;

/// Separates the repetitions.
const SEPARATOR: u8 = b'|';

/// Lots per stream with a gate.
pub(super) const LOTS: usize = 2;

/// Closes among the messages for a lot that may be closed, per thousand.
const CLOSES: u16 = 40;

pub(super) fn is_gated(stream: usize) -> bool {
    stream % 2 == 1
}

/// A message that a client publishes, the same each time it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SentMessage {
    pub(super) subject: String,
    pub(super) payload: Vec<u8>,
    /// Lot and price of a message that the gate can accept.
    pub(super) lot: Option<LotMessage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LotMessage {
    pub(super) lot: usize,
    /// 0 in a close.
    pub(super) price: u64,
    pub(super) command: LotCommand,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LotCommand {
    Open,
    Bid,
    Close,
}

/// What is known about the lots of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownLots {
    pub(super) prices: [u64; LOTS],
    /// Open lots, if the stream has no message that closes one.
    pub(super) may_close: [bool; LOTS],
}

/// The record of a close, which the gate makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CloseRecord {
    pub(super) price: u64,
    /// The highest bid; `None` if there was none.
    pub(super) bid: Option<MessageName>,
    pub(super) bids: u64,
}

impl CloseRecord {
    /// The record with this payload; `None` for a payload of another one.
    pub(super) fn of(payload: &[u8]) -> Option<CloseRecord> {
        let text = std::str::from_utf8(payload).ok()?;
        let (price, bids) = (number_of(text, "price")?, number_of(text, "bids")?);
        let bidder = text_of(text, "bidder");
        let shown = bidder.map_or_else(String::new, |bidder| format!("\"bidder\":\"{bidder}\","));
        let is_whole = text == format!("{{\"price\":{price},{shown}\"bids\":{bids}}}");
        let bid = bidder.and_then(parse_name);
        (is_whole && bid.is_some() == bidder.is_some()).then_some(CloseRecord { price, bid, bids })
    }
}

impl SentMessage {
    /// Most bytes that a subscription is sent for it, in any format.
    pub(super) fn encoded_size_max(&self) -> usize {
        self.subject.len() + self.payload.len() + ENCODING_SIZE_MAX
    }

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

    /// A message for a stream with a gate: an opening, a bid near the price, a close, or one that the gate must reject.
    pub(super) fn for_gate(
        stream: usize,
        name: MessageName,
        lots: KnownLots,
        random: &mut SplitMix64,
    ) -> SentMessage {
        let lot = random.index(LOTS);
        let subject = |verb: &str| format!("{}.lot{lot}.{verb}", STREAMS[stream]);
        if lots.may_close[lot] && random.chance(CLOSES) {
            let message = LotMessage { lot, price: 0, command: LotCommand::Close };
            return SentMessage { subject: subject("close"), payload: b"{}".to_vec(), lot: Some(message) };
        }
        let price = (lots.prices[lot] + random.between(0, 6)).saturating_sub(2).max(1);
        let own = format!("{}-{}", name.publisher, name.message);
        let (verb, price_text, is_valid) = match random.below(10) {
            0 | 1 => ("open", price.to_string(), true),
            2 => ("bid", ["-5", "1.5", "\"ten\"", "null"][random.index(4)].to_owned(), false),
            3 => ("raise", price.to_string(), false),
            _ => ("bid", price.to_string(), true),
        };
        let (key, command) =
            if verb == "open" { ("title", LotCommand::Open) } else { ("bidder", LotCommand::Bid) };
        SentMessage {
            subject: subject(verb),
            payload: format!("{{\"price\":{price_text},\"{key}\":\"{own}\"}}").into_bytes(),
            lot: is_valid.then_some(LotMessage { lot, price, command }),
        }
    }
}

/// The name of the message with this payload in a stream, if it has one.
pub(super) fn name_of(stream: usize, payload: &[u8]) -> Option<MessageName> {
    if !is_gated(stream) {
        return MessageName::of(payload.split(|byte| *byte == SEPARATOR).next()?);
    }
    let text = std::str::from_utf8(payload).ok()?.strip_suffix("\"}")?;
    parse_name(text.rsplit_once('"')?.1)
}

/// The name of the message of a bidder or title.
fn parse_name(text: &str) -> Option<MessageName> {
    let (publisher, message) = text.split_once('-')?;
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
        let lots = KnownLots { prices: [10; LOTS], may_close: [false; LOTS] };
        for (stream, message) in (0..STREAMS.len()).flat_map(|stream| [(stream, 17), (stream, 18)]) {
            for publisher in (0..20).chain([LONG_PUBLISHERS]) {
                let name = MessageName { publisher, message };
                let sent = match is_gated(stream) {
                    true => SentMessage::for_gate(stream, name, lots, &mut random),
                    false => SentMessage::plain(stream, name),
                };
                assert_eq!(name_of(stream, &sent.payload), Some(name), "{sent:?}");
                assert!(matches(&format!("{}.>", STREAMS[stream]), &sent.subject), "{sent:?}");
            }
        }
        assert_eq!(name_of(1, b"{\"price\":1}"), None);
    }

    #[test]
    fn the_record_of_a_close_names_the_highest_bid() {
        let bid = Some(MessageName { publisher: 3, message: 17 });
        let of = |text: &str| CloseRecord::of(text.as_bytes());
        let expected = CloseRecord { price: 12, bid, bids: 4 };
        assert_eq!(of(r#"{"price":12,"bidder":"3-17","bids":4}"#), Some(expected));
        let without = CloseRecord { price: 12, bid: None, bids: 0 };
        assert_eq!(of(r#"{"price":12,"bids":0}"#), Some(without));
        for other in [r#"{"price":12,"bidder":"3-17"}"#, r#"{"price":12,"bidder":"ann","bids":4}"#, "{}"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn filters() {
        assert!(matches("a.*.c", "a.b.c") && matches("a.b", "a.b") && matches("a.>", "a.b.c"));
        assert!(!matches("a.*", "a.b.c") && !matches("a.>", "a") && !matches("a.b.c", "a.b"));
    }
}
