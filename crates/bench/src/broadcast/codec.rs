//! Common interface of the protocols: encoding of what clients send, form of what subscribers receive.
//!
//! A further protocol is a module with one implementation of [`BroadcastCodec`] and its arm in [`codec_for`]. If the server
//! chooses bytes of a delivery, such as a time, the first subscriber decodes it, and the others compare with its bytes.

use std::ops::Range;

use super::centrifugo::Centrifugo;
use super::frames::Framing;
use super::mqtt::Mqtt;
use super::nats::Nats;
use super::nats_websocket::NatsWebSocket;
use super::plan::{BroadcastPlan, BroadcastProtocol};
use super::redis::Redis;
use super::sse::Sse;
use super::websocket::{Json, Raw, WebSocket};

/// First number in subjects and subscription ids, so that all have the same number of digits.
const FIRST_NUMBER: u32 = 100_000;

/// What one subscriber subscribes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Subscription {
    pub(super) number: u32,
    pub(super) subject: String,
    pub(super) sid: u32,
    pub(super) payload_size: usize,
    /// Bytes of a delivery before its payload.
    pub(super) head: Vec<u8>,
}

impl Subscription {
    pub(super) fn new(plan: &BroadcastPlan, codec: &dyn BroadcastCodec, number: u32) -> Subscription {
        let subject = subject_of(plan, u64::from(number));
        let sid = if plan.distinct_sids { FIRST_NUMBER + number } else { 1 };
        let payload_size = plan.size as usize;
        let mut subscription = Subscription { number, subject, sid, payload_size, head: Vec::new() };
        let mut head = Vec::new();
        codec.push_delivery_head(&subscription, &mut head);
        subscription.head = head;
        subscription
    }
}

/// The subject of a message, or of the subscriber that receives it if there are several subjects.
pub(super) fn subject_of(plan: &BroadcastPlan, number: u64) -> String {
    match plan.subjects {
        None => plan.subject.clone(),
        Some(count) => format!("{}.{}", plan.subject, u64::from(FIRST_NUMBER) + number % u64::from(count)),
    }
}

/// The first item of a subscriber's input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReceivedItem {
    Delivery {
        size: usize,
        payload: Range<usize>,
        /// Sequence in the stream, if the protocol has one.
        sequence: Option<u64>,
    },
    /// Another valid item, such as a PING, with its answer.
    Control {
        size: usize,
        answer: &'static [u8],
    },
    Incomplete,
}

impl ReceivedItem {
    /// A delivery of a payload of `payload_size` bytes after `head_size` and before `tail_size` bytes, if it is complete.
    pub(super) fn delivery(
        input: &[u8],
        head_size: usize,
        payload_size: usize,
        tail_size: usize,
    ) -> ReceivedItem {
        let size = head_size + payload_size + tail_size;
        if input.len() < size {
            return ReceivedItem::Incomplete;
        }
        ReceivedItem::Delivery { size, payload: head_size..head_size + payload_size, sequence: None }
    }
}

/// How messages of a run are published. Errors are texts about the server.
pub(super) trait PublicationCodec {
    /// Encodes what a publishing connection sends first.
    fn open_publisher(&self, number: u16, out: &mut Vec<u8>);

    /// Size of the complete answer to the opening of a publisher; `None`: it is incomplete.
    fn publisher_opening_size(&self, input: &[u8]) -> Result<Option<usize>, String>;

    fn push_publication(&self, subject: &str, payload: &[u8], out: &mut Vec<u8>);

    /// Ends a batch of publications, which begins at `start` of `out`.
    fn finish_batch(&self, _start: usize, _out: &mut Vec<u8>) {}

    /// The answer to one publication that reached `receivers` subscribers; empty if there is none.
    fn publication_answer(&self, _receivers: u32) -> Vec<u8> {
        Vec::new()
    }

    /// Decodes the first item of a publisher's input that is no [`publication_answer`](Self::publication_answer).
    fn next_answer(&self, input: &[u8]) -> Result<ReceivedItem, String>;
}

/// What subscribers of a run send and receive. Errors are texts about the server.
pub(super) trait BroadcastCodec {
    /// The protocol of the publishers.
    fn publications(&self) -> &dyn PublicationCodec;

    /// Encodes what a subscribing connection sends first.
    fn open_subscriber(&self, subscription: &Subscription, out: &mut Vec<u8>);

    /// Size of the complete answer to the opening of a subscriber; `None`: it is incomplete.
    fn opening_size(&self, input: &[u8]) -> Result<Option<usize>, String>;

    /// WebSocket frames around what subscribers receive, from behind the first opening; `None`: no frames, or frames that
    /// the codec itself decodes.
    fn framing(&self) -> Option<Framing> {
        None
    }

    /// Encodes what a subscribing connection with [`framing`](Self::framing) sends after its opening.
    fn subscribe_in_frames(&self, _: &Subscription, _: &mut Vec<u8>) {}

    /// Size of the complete answer to [`subscribe_in_frames`](Self::subscribe_in_frames), frames included.
    fn framed_opening_size(&self, _: &[u8]) -> Result<Option<usize>, String> {
        Ok(Some(0))
    }

    /// Whether all bytes of a delivery are known before it arrives.
    fn has_known_deliveries(&self) -> bool {
        true
    }

    /// Encodes a delivery up to its payload. Must have the same size for all subscriptions of a run. Without known
    /// deliveries it is empty.
    fn push_delivery_head(&self, _: &Subscription, _: &mut Vec<u8>) {}

    /// Bytes of a delivery after its payload; without known deliveries, none.
    fn delivery_tail(&self) -> &'static [u8] {
        b""
    }

    /// Decodes the first item of a subscriber's input. No other item begins with the first byte of a delivery.
    fn next_item(&self, subscription: &Subscription, input: &[u8]) -> Result<ReceivedItem, String>;
}

pub(super) fn codec_for(plan: &BroadcastPlan) -> Box<dyn BroadcastCodec> {
    match plan.protocol {
        BroadcastProtocol::Nats => Box::new(Nats),
        BroadcastProtocol::NatsWebSocket => Box::new(NatsWebSocket),
        BroadcastProtocol::Centrifugo => Box::new(Centrifugo),
        BroadcastProtocol::Redis => Box::new(Redis),
        BroadcastProtocol::Mqtt => Box::new(Mqtt),
        BroadcastProtocol::Sse => Box::new(Sse),
        BroadcastProtocol::WebSocketRaw => Box::new(WebSocket(Raw)),
        BroadcastProtocol::WebSocketJson => Box::new(WebSocket(Json)),
    }
}

/// The first line of `input` without its CR LF, and its size; `None`: it is incomplete.
pub(super) fn line(input: &[u8]) -> Option<(&[u8], usize)> {
    let end = input.windows(2).position(|pair| pair == b"\r\n")?;
    Some((&input[..end], end + 2))
}

/// A short part of unexpected input for a message.
pub(super) fn shown(input: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(&input[..input.len().min(80)]))
}

/// Decodes an item at the start of `input` that either begins with `head` and is a delivery, or is decoded by `other`.
pub(super) fn delivery_or(
    subscription: &Subscription,
    tail: &[u8],
    input: &[u8],
    other: impl FnOnce(&[u8]) -> Result<ReceivedItem, String>,
) -> Result<ReceivedItem, String> {
    let head = &subscription.head;
    if !input.starts_with(head) {
        // An item of another kind differs in its first byte.
        return if head.starts_with(input) { Ok(ReceivedItem::Incomplete) } else { other(input) };
    }
    let item = ReceivedItem::delivery(input, head.len(), subscription.payload_size, tail.len());
    match &item {
        ReceivedItem::Delivery { size, payload, .. } if input[payload.end..*size] != *tail => {
            Err(format!("a payload without its end: {}", shown(&input[payload.end..])))
        }
        _ => Ok(item),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Checks that a codec decodes its own deliveries, whole and in parts, and its own answers.
    pub(in crate::broadcast) fn check_codec(codec: &dyn BroadcastCodec, protocol: BroadcastProtocol) {
        let plan = BroadcastPlan { protocol, size: 16, ..BroadcastPlan::new(([127, 0, 0, 1], 9).into()) };
        let subscription = Subscription::new(&plan, codec, 7);
        let payload = b"0123456789abcdef";
        let mut delivery = subscription.head.clone();
        delivery.extend_from_slice(payload);
        delivery.extend_from_slice(codec.delivery_tail());
        let head = subscription.head.len();
        let expected =
            ReceivedItem::Delivery { size: delivery.len(), payload: head..head + 16, sequence: None };
        let twice = delivery.repeat(2);
        assert_eq!(codec.next_item(&subscription, &twice), Ok(expected));
        for size in 0..delivery.len() {
            let item = codec.next_item(&subscription, &delivery[..size]);
            assert_eq!(item, Ok(ReceivedItem::Incomplete), "{size} bytes of {}", shown(&delivery));
        }
        if !codec.delivery_tail().is_empty() {
            let last = delivery.len() - 1;
            delivery[last] = b'x';
            assert!(codec.next_item(&subscription, &delivery).is_err());
        }
    }

    #[test]
    fn subjects_of_messages_return_to_their_subscriber() {
        let plan = BroadcastPlan { subjects: Some(3), ..BroadcastPlan::new(([127, 0, 0, 1], 9).into()) };
        let subscription = Subscription::new(&plan, &*codec_for(&plan), 2);
        assert_eq!(subscription.subject, "bench.100002");
        assert_eq!([subject_of(&plan, 2), subject_of(&plan, 5)], ["bench.100002", "bench.100002"]);
        assert_eq!(subject_of(&BroadcastPlan { subjects: None, ..plan }, 5), "bench");
    }
}
