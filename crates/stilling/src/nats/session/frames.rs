//! The protocol over WebSocket: the bytes of a session inside binary frames (RFC 6455), in both directions.
//!
//! ```text
//!   frames ─▶ WebSocketDecoder ─▶ payload, unmasked ─▶ NatsSession::decode     what it leaves is held for the next frame
//!   frames ◀─ header + the same bytes as over TCP   ◀─ Framing
//! ```
//!
//! Frames and messages have no meaning: client frames may split or join protocol lines anywhere. As in nats-server, text
//! messages are accepted like binary ones.

use stilling_engine::{CloseReason, Io};
use stilling_hub::Payload;
use stilling_wire::websocket::limits::CONTROL_SIZE_MAX;
use stilling_wire::websocket::{
    CloseCode, MaskedPayload, Opcode, WebSocketDecoder, WebSocketEvent, WebSocketFrameHeader,
    WebSocketLimits, encode_close,
};

use super::{NatsContext, NatsSession, SLOW_CONSUMER};
use crate::hub::send_feed;
use crate::nats::NatsShard;
use crate::nats::limits::{FRAME_STEP, UNDECODED_MAX, UNDECODED_SHARD_MAX, WEBSOCKET_MESSAGE_SIZE_MAX};

/// Payloads are passed on as they arrive, never assembled.
const FRAME_LIMITS: WebSocketLimits =
    WebSocketLimits { message_size_max: WEBSOCKET_MESSAGE_SIZE_MAX, whole_size_max: 0 };

/// Bytes of the longest control frame of a server.
const CONTROL_FRAME_SIZE_MAX: usize = 2 + CONTROL_SIZE_MAX;

/// The last frames for a slow consumer: its error, and a close frame with code 1008, as in nats-server.
const SLOW_CONSUMER_FRAMES: &[u8] = b"\x82\x16-ERR 'Slow Consumer'\r\n\x88\x02\x03\xf0";

const _: () = assert!(SLOW_CONSUMER_FRAMES.len() == 2 + SLOW_CONSUMER.len() + 4);

/// The state of a WebSocket under a session.
#[derive(Debug)]
pub(super) struct WebSocketFrames {
    decoder: WebSocketDecoder,
    /// Unmasked bytes that the session has not consumed. Without capacity while there are none.
    undecoded: Vec<u8>,
    /// The code of the client's close frame.
    peer_close: Option<Option<CloseCode>>,
    /// A close frame was sent, or there was no room for it.
    is_closed: bool,
}

/// How bytes are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// As they are.
    Plain,
    /// In a binary frame.
    Framed,
}

impl Framing {
    fn header(self, length: usize) -> Option<WebSocketFrameHeader> {
        let length = length as u64;
        let header = WebSocketFrameHeader { opcode: Opcode::Binary, is_final: true, length, mask: None };
        (self == Framing::Framed).then_some(header)
    }

    /// Sends complete protocol lines. A slow consumer is disconnected before their first byte.
    #[inline]
    pub(super) fn send(self, first: &[u8], second: &[u8], io: &mut Io<'_>) {
        let length = first.len() + second.len();
        let header = self.header(length);
        if header.map_or(0, |header| header.size()) + length > io.room() {
            return io.end_slow_consumer();
        }
        // There is room.
        let _ = io.send_with(|out| {
            if let Some(header) = header {
                header.encode(out);
            }
            out.extend_from_slice(first);
            out.extend_from_slice(second);
        });
    }

    /// Sends a message with its payload in a shared block. A slow consumer is disconnected before its first byte.
    pub(super) fn send_message(self, line: &[u8], payload: Payload<'_>, end: &[u8], io: &mut Io<'_>) {
        let length = line.len() + payload.len() + end.len();
        let header = self.header(length);
        if header.map_or(0, |header| header.size()) + length > io.room() {
            return io.end_slow_consumer();
        }
        let begin = |out: &mut Vec<u8>| {
            if let Some(header) = header {
                header.encode(out);
            }
            out.extend_from_slice(line);
        };
        match payload.block() {
            Some((block, range)) if !io.is_output_blocked() => {
                let _ = io.send_with(begin);
                let _ = io.send_shared(block, range);
                let _ = io.send(end);
            }
            // Blocked output holds one copy of the message, complete or not at all.
            _ => {
                let _ = io.send_with(|out| {
                    begin(out);
                    out.extend_from_slice(payload.bytes());
                    out.extend_from_slice(end);
                });
            }
        }
    }

    /// Sends the messages of a feed, in one frame. Their bytes stay shared, also with connections without frames.
    pub(super) fn send_feed(self, messages: Payload<'_>, io: &mut Io<'_>) {
        match self {
            Framing::Plain => send_feed(messages, io),
            Framing::Framed => self.send_message(b"", messages, b"", io),
        }
    }
}

impl WebSocketFrames {
    pub(super) fn new() -> WebSocketFrames {
        WebSocketFrames {
            decoder: WebSocketDecoder::of_client(),
            undecoded: Vec::new(),
            peer_close: None,
            is_closed: false,
        }
    }

    /// Sends a close frame, once, unless the rest of another frame has to be sent first.
    fn close(&mut self, code: Option<CloseCode>, text: &str, io: &mut Io<'_>) {
        if !std::mem::replace(&mut self.is_closed, true) && io.room() >= CONTROL_FRAME_SIZE_MAX {
            let _ = io.send_with(|out| encode_close(out, code, text, None));
        }
    }

    /// Holds bytes that the session has not consumed, or returns false if the shard holds too many.
    fn hold(&mut self, masked: MaskedPayload<'_>, nats: &mut NatsShard) -> bool {
        let before = self.undecoded.capacity();
        masked.append_to(&mut self.undecoded);
        nats.undecoded_bytes += self.undecoded.capacity() - before;
        nats.undecoded_bytes <= UNDECODED_SHARD_MAX
    }

    /// Drops the first `consumed` of the held bytes, which the session has decoded meanwhile.
    fn put_back(&mut self, mut undecoded: Vec<u8>, consumed: usize, nats: &mut NatsShard) {
        if consumed >= undecoded.len() {
            nats.undecoded_bytes -= undecoded.capacity();
            return;
        }
        undecoded.drain(..consumed);
        self.undecoded = undecoded;
    }

    pub(super) fn release_memory(&mut self, nats: &mut NatsShard) {
        nats.undecoded_bytes -= std::mem::take(&mut self.undecoded).capacity();
    }
}

impl NatsSession {
    #[inline]
    pub(super) fn framing(&self) -> Framing {
        if self.frames.is_some() { Framing::Framed } else { Framing::Plain }
    }

    /// Decodes frames, and protocol lines in their payload, as long as the session reads.
    pub(super) fn received_frames(
        &mut self,
        bytes: &[u8],
        io: &mut Io<'_>,
        cx: &mut NatsContext<'_>,
    ) -> usize {
        self.decode_held(io, cx);
        let mut consumed = 0;
        while self.reads_frames(io) {
            let Some(frames) = self.frames.as_deref_mut() else { break };
            let end = bytes.len().min(consumed + FRAME_STEP);
            let step = match frames.decoder.decode(&FRAME_LIMITS, &bytes[consumed..end]) {
                Ok(step) => step,
                Err(error) => {
                    frames.close(Some(error.close_code()), error.reason(), io);
                    self.finish_lingering(CloseReason::ProtocolError, io, cx);
                    break;
                }
            };
            consumed += step.consumed;
            match step.event {
                WebSocketEvent::NeedMore if end == bytes.len() || step.consumed == 0 => return consumed,
                WebSocketEvent::Message { payload, .. } | WebSocketEvent::Piece(payload) => {
                    self.read_payload(payload, io, cx);
                }
                WebSocketEvent::Ping(payload) => send_pong(payload, io),
                WebSocketEvent::Close { code, .. } => {
                    frames.peer_close = Some(code);
                    self.ended(io, cx);
                }
                WebSocketEvent::NeedMore
                | WebSocketEvent::Pong(_)
                | WebSocketEvent::MessageStart { .. }
                | WebSocketEvent::MessageEnd => {}
            }
        }
        if io.is_finishing() { bytes.len() } else { consumed }
    }

    /// Whether the next frame may be decoded: the session reads, and has consumed the bytes of earlier ones.
    fn reads_frames(&self, io: &Io<'_>) -> bool {
        let held = self.frames.as_deref().map_or(0, |frames| frames.undecoded.len());
        !io.is_paused() && !io.is_finishing() && held <= UNDECODED_MAX
    }

    fn read_payload(&mut self, payload: MaskedPayload<'_>, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        let Some(frames) = self.frames.as_deref_mut() else { return };
        if !frames.undecoded.is_empty() {
            if frames.hold(payload, cx.nats) {
                self.decode_held(io, cx);
            } else {
                self.refuse_held(io, cx);
            }
            return;
        }
        // Not in place: other threads may refer to the block that the input is in.
        let mut unmasked = std::mem::take(&mut cx.nats.unmasked);
        unmasked.clear();
        payload.append_to(&mut unmasked);
        let consumed = self.decode(&unmasked, io, cx);
        cx.nats.unmasked = unmasked;
        if consumed < payload.len()
            && let Some(frames) = self.frames.as_deref_mut()
            && !frames.hold(payload.after(consumed), cx.nats)
        {
            self.refuse_held(io, cx);
        }
    }

    /// Continues with the bytes that earlier frames have left.
    fn decode_held(&mut self, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        let Some(frames) = self.frames.as_deref_mut().filter(|frames| !frames.undecoded.is_empty()) else {
            return;
        };
        if io.is_paused() || io.is_finishing() {
            return;
        }
        let undecoded = std::mem::take(&mut frames.undecoded);
        let consumed = self.decode(&undecoded, io, cx);
        if let Some(frames) = self.frames.as_deref_mut() {
            frames.put_back(undecoded, consumed, cx.nats);
        }
    }

    /// Closes the connection: the shard holds too many bytes of incomplete protocol lines.
    fn refuse_held(&mut self, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        if let Some(frames) = self.frames.as_deref_mut() {
            let text = "too many incomplete messages: connect again later";
            frames.close(Some(CloseCode::TRY_AGAIN_LATER), text, io);
        }
        self.finish_lingering(CloseReason::InputFull, io, cx);
    }

    /// Sends the close frame for an end with `reason`, over WebSocket, unless one was sent.
    pub(super) fn close_frames(&mut self, reason: CloseReason, io: &mut Io<'_>) {
        let Some(frames) = self.frames.as_deref_mut() else { return };
        match (reason, frames.peer_close) {
            (_, Some(code)) => frames.close(code, "", io),
            // The client is gone without a close frame.
            (CloseReason::PeerClosed, None) => {}
            (CloseReason::Drained, None) => {
                frames.close(Some(CloseCode::GOING_AWAY), "the server ends: connect again", io);
            }
            (CloseReason::ProtocolError, None) => frames.close(Some(CloseCode::PROTOCOL_ERROR), "", io),
            // -ERR has the reason.
            _ => frames.close(Some(CloseCode::POLICY_VIOLATION), "", io),
        }
    }

    /// Whether the client sends nothing more.
    pub(super) fn has_peer_ended(&self, io: &Io<'_>) -> bool {
        io.peer_ended() || self.frames.as_deref().is_some_and(|frames| frames.peer_close.is_some())
    }

    /// The last bytes for a slow consumer.
    pub(super) fn slow_consumer_message(&self) -> &'static [u8] {
        match self.framing() {
            Framing::Plain => SLOW_CONSUMER,
            Framing::Framed => SLOW_CONSUMER_FRAMES,
        }
    }
}

/// Answers a ping, unless the client does not read: only the latest ping needs an answer (RFC 6455 §5.5.3).
fn send_pong(payload: MaskedPayload<'_>, io: &mut Io<'_>) {
    let length = payload.len() as u64;
    let header = WebSocketFrameHeader { opcode: Opcode::Pong, is_final: true, length, mask: None };
    if io.room() >= CONTROL_FRAME_SIZE_MAX {
        let _ = io.send_with(|out| {
            header.encode(out);
            payload.append_to(out);
        });
    }
}

#[cfg(test)]
mod tests {
    use stilling_wire::websocket::WebSocketFrame;

    use super::*;

    /// Passes the payload of a masked frame with `bytes` to `handle`.
    fn with_payload<T>(bytes: &[u8], handle: impl FnOnce(MaskedPayload<'_>) -> T) -> T {
        let mut frame = Vec::new();
        WebSocketFrame::binary(bytes).masked([7, 5, 3, 1]).encode(&mut frame);
        let step = WebSocketDecoder::of_client().decode(&FRAME_LIMITS, &frame).expect("a frame");
        let WebSocketEvent::Message { payload, .. } = step.event else { panic!("{step:?}") };
        handle(payload)
    }

    /// Row 2.18: held bytes are counted by the memory that they occupy, and released with the connection.
    #[test]
    fn held_bytes_are_counted_until_they_are_decoded_or_released() {
        let mut nats = NatsShard::default();
        let mut frames = [WebSocketFrames::new(), WebSocketFrames::new()];
        for round in 1..200 {
            for frames in &mut frames {
                assert!(with_payload(&vec![b'x'; round * 7], |payload| frames.hold(payload, &mut nats)));
            }
            let occupied: usize = frames.iter().map(|frames| frames.undecoded.capacity()).sum();
            assert_eq!(nats.undecoded_bytes, occupied);
            // The session decodes all but a few bytes; every third time, all.
            let [first, _] = &mut frames;
            let undecoded = std::mem::take(&mut first.undecoded);
            let rest = if round % 3 == 0 { 0 } else { 5 };
            let consumed = undecoded.len() - rest;
            first.put_back(undecoded, consumed, &mut nats);
            assert_eq!((first.undecoded.len(), first.undecoded.capacity() == 0), (rest, rest == 0));
        }
        frames.iter_mut().for_each(|frames| frames.release_memory(&mut nats));
        assert_eq!(nats.undecoded_bytes, 0);
    }

    #[test]
    fn a_shard_that_holds_too_much_refuses_more_and_accepts_again() {
        let mut nats = NatsShard::default();
        nats.undecoded_bytes = UNDECODED_SHARD_MAX - 64;
        let (mut first, mut second) = (WebSocketFrames::new(), WebSocketFrames::new());
        assert!(with_payload(&[b'x'; 10], |payload| first.hold(payload, &mut nats)));
        assert!(!with_payload(&[b'x'; 1000], |payload| second.hold(payload, &mut nats)));
        second.release_memory(&mut nats);
        assert!(with_payload(&[b'x'; 10], |payload| second.hold(payload, &mut nats)));
    }

    #[test]
    fn the_last_frames_of_a_slow_consumer_are_frames_of_a_server() {
        let mut decoder = WebSocketDecoder::of_server();
        let limits = WebSocketLimits::for_client();
        let step = decoder.decode(&limits, SLOW_CONSUMER_FRAMES).expect("a frame");
        let WebSocketEvent::Message { payload, .. } = step.event else { panic!("{step:?}") };
        assert_eq!(payload.unmasked(), Some(SLOW_CONSUMER));
        let close = decoder.decode(&limits, &SLOW_CONSUMER_FRAMES[step.consumed..]).expect("a frame").event;
        assert!(matches!(close, WebSocketEvent::Close { code: Some(CloseCode::POLICY_VIOLATION), .. }));
    }
}
