//! Encodings of messages for subscribers over WebSocket, SSE and CoAP. The bytes depend on the format alone, so subscriptions
//! of one encoding class share them.

use std::io::Write;

use stilling_journal::GapCause;
use stilling_wire::message_object::{BINARY_PREFIX_SIZE, GapObject, MessageObject};
use stilling_wire::resume_position::EventId;
use stilling_wire::sse::{self, SseEvent};
use stilling_wire::websocket::{Opcode, WebSocketFrameHeader, encode_frame_around};

use crate::limits::ENCODED_MESSAGE_SIZE_MAX;
use crate::message::{OutboundMessage, RecordPosition};
use crate::resume::SubscriptionNotice;

/// Name of the event that reports that a requested position does not exist.
const RESET_EVENT: &str = "reset";

/// How a subscription's messages are encoded, if not for NATS.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MessageFormat {
    /// Events; the data is the message as a JSON object.
    SseJson,
    /// Events; the data is the payload.
    SseRaw,
    /// Text messages, each a JSON object.
    WebSocketJson,
    /// Binary messages: the sequence in eight bytes and the payload. Notices are text messages.
    WebSocketRaw,
    /// [`PayloadFrame`]s, for a reader in this process.
    PayloadFrames,
}

/// A message or a notice in the format [`PayloadFrames`](MessageFormat::PayloadFrames).
///
/// ```text
///   size: 4 bytes │ payload        CAUGHT_UP: 4 bytes
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PayloadFrame<'a> {
    /// The payload of a message.
    Payload(&'a [u8]),
    /// All records that were visible at the begin have been sent.
    CaughtUp,
}

impl<'a> PayloadFrame<'a> {
    /// In place of the size of a payload.
    const CAUGHT_UP: u32 = u32::MAX;

    /// Decodes the first frame of `bytes`. Returns it with the rest; `None` without a whole frame.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<(PayloadFrame<'a>, &'a [u8])> {
        let (size, rest) = bytes.split_first_chunk()?;
        let size = u32::from_le_bytes(*size);
        if size == PayloadFrame::CAUGHT_UP {
            return Some((PayloadFrame::CaughtUp, rest));
        }
        let (payload, rest) = rest.split_at_checked(size as usize)?;
        Some((PayloadFrame::Payload(payload), rest))
    }

    fn encode(self, out: &mut Vec<u8>) {
        match self {
            PayloadFrame::Payload(payload) => {
                // A message is far below 4 GiB.
                out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
                out.extend_from_slice(payload);
            }
            PayloadFrame::CaughtUp => out.extend_from_slice(&PayloadFrame::CAUGHT_UP.to_le_bytes()),
        }
    }
}

/// The protocol of subscribers that get another format than that of NATS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubscriberProtocol {
    /// Server-sent events.
    Sse,
    /// WebSocket.
    WebSocket,
    /// CoAP: observers of one filter in a shard share a subscription.
    Coap,
}

impl SubscriberProtocol {
    pub(crate) const COUNT: usize = 3;
}

/// Subscriptions of one class get the same bytes for a message, apart from a line before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EncodingClass {
    Nats { has_headers: bool },
    Format { format: MessageFormat, has_id: bool },
}

impl EncodingClass {
    pub(crate) const COUNT: usize = 12;

    #[inline]
    pub(crate) const fn index(self) -> usize {
        match self {
            EncodingClass::Nats { has_headers } => has_headers as usize,
            EncodingClass::Format { format, has_id } => 2 + 2 * format as usize + has_id as usize,
        }
    }
}

impl MessageFormat {
    /// Returns the protocol of its subscribers.
    pub(crate) const fn protocol(self) -> SubscriberProtocol {
        match self {
            MessageFormat::SseJson | MessageFormat::SseRaw => SubscriberProtocol::Sse,
            MessageFormat::WebSocketJson | MessageFormat::WebSocketRaw => SubscriberProtocol::WebSocket,
            MessageFormat::PayloadFrames => SubscriberProtocol::Coap,
        }
    }

    /// Appends a message, or a notice that its bytes in this format exceed [`ENCODED_MESSAGE_SIZE_MAX`]. `has_id`: its
    /// subscribers can resume after it.
    pub(crate) fn encode(self, out: &mut Vec<u8>, message: &OutboundMessage<'_>, has_id: bool) {
        let start = out.len();
        self.encode_whole(out, message, has_id);
        if out.len() - start > ENCODED_MESSAGE_SIZE_MAX {
            out.truncate(start);
            out.shrink_to(ENCODED_MESSAGE_SIZE_MAX);
            if let Some(RecordPosition { epoch, sequence, .. }) = message.position.filter(|_| has_id) {
                let mut json = Vec::new();
                GapObject { first: sequence, last: sequence, cause: "size" }.encode(&mut json);
                // A client that resumes continues after it.
                let id = Some(EventId { epoch, sequence });
                self.encode_event(out, SseEvent { id, event: Some(sse::GAP_EVENT), data: &json });
            }
        }
    }

    fn encode_whole(self, out: &mut Vec<u8>, message: &OutboundMessage<'_>, has_id: bool) {
        let subject = String::from_utf8_lossy(message.subject);
        let position = message.position.as_ref();
        let object = MessageObject {
            sequence: position.map_or(0, |position| position.sequence),
            subject: &subject,
            time_ns: position.map_or(0, |position| position.time_ns.as_nanos()),
            payload: message.payload.bytes(),
        };
        let epoch = position.filter(|_| has_id).map(|position| position.epoch);
        match self {
            MessageFormat::SseJson => match epoch {
                Some(epoch) => sse::encode_message(out, epoch, &object),
                None => {
                    out.extend_from_slice(b"data: ");
                    object.encode(out);
                    out.extend_from_slice(b"\n\n");
                }
            },
            MessageFormat::SseRaw => {
                let id = epoch.map(|epoch| EventId { epoch, sequence: object.sequence });
                SseEvent { id, event: None, data: object.payload }.encode(out);
            }
            MessageFormat::WebSocketJson => encode_frame_around(out, Opcode::Text, |out| object.encode(out)),
            MessageFormat::WebSocketRaw => {
                let length = (BINARY_PREFIX_SIZE + object.payload.len()) as u64;
                WebSocketFrameHeader { opcode: Opcode::Binary, is_final: true, length, mask: None }
                    .encode(out);
                object.encode_binary(out);
            }
            MessageFormat::PayloadFrames => PayloadFrame::Payload(object.payload).encode(out),
        }
    }

    /// Appends a notice.
    pub(crate) fn encode_notice(self, out: &mut Vec<u8>, notice: &SubscriptionNotice) {
        if self == MessageFormat::PayloadFrames {
            if matches!(notice, SubscriptionNotice::CaughtUp { .. }) {
                PayloadFrame::CaughtUp.encode(out);
            }
            return;
        }
        let (event, mut json) = (notice_event(notice), Vec::new());
        match *notice {
            SubscriptionNotice::Gap(gap) => {
                GapObject { first: gap.first, last: gap.last, cause: cause_name(gap.cause) }
                    .encode(&mut json);
            }
            SubscriptionNotice::Skipped { first, last } => {
                GapObject { first, last, cause: "slow" }.encode(&mut json);
            }
            SubscriptionNotice::Reset { cause, epoch, next } => {
                let cause = cause.name();
                // Writing to a vector does not fail.
                let _ = write!(json, r#"{{"reset":{{"cause":"{cause}","epoch":"{epoch}","next":{next}}}}}"#);
            }
            SubscriptionNotice::Started { epoch, after: sequence }
            | SubscriptionNotice::CaughtUp { epoch, through: sequence } => {
                let id = EventId { epoch, sequence };
                if self.protocol() == SubscriberProtocol::Sse {
                    // An event without data only sets the id, from which a client resumes.
                    let _ = write!(out, "id: {id}\n\n");
                    return;
                }
                let is_start = matches!(notice, SubscriptionNotice::Started { .. });
                let name = if is_start { "start" } else { "position" };
                let _ = write!(json, r#"{{"{name}":"{id}"}}"#);
            }
            SubscriptionNotice::Refused | SubscriptionNotice::Disconnected => return,
        }
        self.encode_event(out, SseEvent { id: None, event, data: &json });
    }

    /// Appends an event, over WebSocket its data.
    fn encode_event(self, out: &mut Vec<u8>, event: SseEvent<'_>) {
        match self {
            MessageFormat::SseJson | MessageFormat::SseRaw => event.encode(out),
            MessageFormat::WebSocketJson | MessageFormat::WebSocketRaw => {
                encode_frame_around(out, Opcode::Text, |out| out.extend_from_slice(event.data));
            }
            // Its reader needs the newest message only.
            MessageFormat::PayloadFrames => {}
        }
    }
}

fn notice_event(notice: &SubscriptionNotice) -> Option<&'static str> {
    match notice {
        SubscriptionNotice::Gap(_) | SubscriptionNotice::Skipped { .. } => Some(sse::GAP_EVENT),
        SubscriptionNotice::Reset { .. } => Some(RESET_EVENT),
        SubscriptionNotice::Started { .. }
        | SubscriptionNotice::CaughtUp { .. }
        | SubscriptionNotice::Refused
        | SubscriptionNotice::Disconnected => None,
    }
}

fn cause_name(cause: GapCause) -> &'static str {
    match cause {
        GapCause::Removed => "removed",
        GapCause::Damaged => "damaged",
        GapCause::Torn => "torn",
    }
}

#[cfg(test)]
mod tests {
    use stilling_journal::Gap;

    use super::*;
    use crate::resume::ResetCause;
    use crate::time::UnixNanos;

    const TEXTUAL: [MessageFormat; 4] = [
        MessageFormat::SseJson,
        MessageFormat::SseRaw,
        MessageFormat::WebSocketJson,
        MessageFormat::WebSocketRaw,
    ];

    #[test]
    fn payload_frames_are_decoded_one_by_one() {
        let frames = [PayloadFrame::Payload(b"21.5"), PayloadFrame::CaughtUp, PayloadFrame::Payload(b"")];
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.encode(&mut bytes));
        let mut rest = &bytes[..];
        for expected in frames {
            let (frame, next) = PayloadFrame::decode(rest).expect("a frame");
            assert_eq!(frame, expected);
            rest = next;
        }
        assert_eq!(PayloadFrame::decode(rest), None);
        assert_eq!(PayloadFrame::decode(&bytes[..7]), None, "a part of a frame");
    }

    fn text(encode: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        encode(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn every_class_has_an_index_of_its_own() {
        let formats = TEXTUAL
            .into_iter()
            .chain([MessageFormat::PayloadFrames])
            .flat_map(|format| [false, true].map(|has_id| EncodingClass::Format { format, has_id }));
        let nats = [false, true].map(|has_headers| EncodingClass::Nats { has_headers });
        let indices: Vec<_> = nats.into_iter().chain(formats).map(EncodingClass::index).collect();
        assert_eq!(indices, (0..EncodingClass::COUNT).collect::<Vec<_>>());
    }

    #[test]
    fn a_record_has_an_id_only_where_a_subscriber_can_resume() {
        let time_ns = UnixNanos::from_nanos(1_769_860_800_000_000_000);
        let position = RecordPosition { stream: 0, epoch: 3, sequence: 17, time_ns };
        let record = OutboundMessage {
            subject: b"a.b",
            reply: b"",
            headers: b"",
            payload: b"1".as_slice().into(),
            position: Some(position),
        };
        let plain = OutboundMessage { position: None, ..record };
        let object = r#"{"seq":17,"subject":"a.b","time":"2026-01-31T12:00:00.000000000Z","data":1}"#;
        let [sse, raw, json, binary] = TEXTUAL;
        assert_eq!(text(|out| sse.encode(out, &record, true)), format!("id: 3-17\ndata: {object}\n\n"));
        assert_eq!(text(|out| sse.encode(out, &record, false)), format!("data: {object}\n\n"));
        assert_eq!(text(|out| sse.encode(out, &plain, false)), "data: {\"subject\":\"a.b\",\"data\":1}\n\n");
        assert_eq!(text(|out| raw.encode(out, &record, true)), "id: 3-17\ndata: 1\n\n");
        let mut frame = Vec::new();
        json.encode(&mut frame, &record, true);
        assert_eq!(frame, [&[0x81, object.len() as u8], object.as_bytes()].concat());
        let mut frame = Vec::new();
        binary.encode(&mut frame, &record, true);
        assert_eq!(frame, b"\x82\x09\0\0\0\0\0\0\0\x111");
    }

    /// Row 2.18: a record that is too long in a format is a gap, so that it does not end its subscribers again and again. A client
    /// over SSE resumes after it.
    #[test]
    fn a_message_that_is_too_long_in_a_format_is_a_gap() {
        let lines = vec![b'\n'; ENCODED_MESSAGE_SIZE_MAX / 7 + 1];
        let time_ns = UnixNanos::from_nanos(1);
        let position = RecordPosition { stream: 0, epoch: 3, sequence: 17, time_ns };
        let record = OutboundMessage {
            subject: b"a",
            reply: b"",
            headers: b"",
            payload: lines.as_slice().into(),
            position: Some(position),
        };
        let gap = text(|out| MessageFormat::SseRaw.encode(out, &record, true));
        assert_eq!(
            gap,
            "id: 3-17\nevent: gap\ndata: {\"gap\":{\"first\":17,\"last\":17,\"cause\":\"size\"}}\n\n"
        );
        assert_eq!(text(|out| MessageFormat::SseRaw.encode(out, &record, false)), "", "it has no sequence");
        let mut raw = Vec::new();
        MessageFormat::WebSocketRaw.encode(&mut raw, &record, true);
        assert!(raw.len() > lines.len() && raw.len() < ENCODED_MESSAGE_SIZE_MAX);
    }

    /// Row 2.18: a subscriber that missed something is told the exact range.
    #[test]
    fn notices_are_events_and_text_messages() {
        let gap = SubscriptionNotice::Gap(Gap { first: 2, last: 5, cause: GapCause::Removed });
        let reset = SubscriptionNotice::Reset { cause: ResetCause::Ahead, epoch: 3, next: 6 };
        let caught_up = SubscriptionNotice::CaughtUp { epoch: 3, through: 5 };
        let notice = |format: MessageFormat, notice| text(|out| format.encode_notice(out, &notice));
        let object = r#"{"gap":{"first":2,"last":5,"cause":"removed"}}"#;
        assert_eq!(notice(MessageFormat::SseRaw, gap), format!("event: gap\ndata: {object}\n\n"));
        let frame = format!("\u{fffd}{}{object}", char::from(object.len() as u8));
        assert_eq!(notice(MessageFormat::WebSocketRaw, gap), frame);
        let object = r#"{"reset":{"cause":"ahead","epoch":"3","next":6}}"#;
        assert_eq!(notice(MessageFormat::SseJson, reset), format!("event: reset\ndata: {object}\n\n"));
        assert_eq!(notice(MessageFormat::SseJson, caught_up), "id: 3-5\n\n");
        let started = SubscriptionNotice::Started { epoch: 3, after: 0 };
        assert_eq!(notice(MessageFormat::SseRaw, started), "id: 3-0\n\n");
        let frame = "\u{fffd}\u{f}{\"start\":\"3-0\"}";
        assert_eq!(notice(MessageFormat::WebSocketRaw, started), frame);
        let frame = "\u{fffd}\u{12}{\"position\":\"3-5\"}";
        assert_eq!(notice(MessageFormat::WebSocketJson, caught_up), frame);
    }
}
