//! The protocol over WebSocket: the bytes of a session inside binary frames (RFC 6455), in both directions.
//!
//! ```text
//!   frames ─▶ WebSocketDecoder ─▶ payload, unmasked ─▶ NatsSession::decode     the rest waits for the next frame
//!   frames ◀─ header + the same bytes as over TCP   ◀─ Framing
//! ```
//!
//! Frames and messages have no meaning: client frames may split or join protocol lines anywhere. As in nats-server, text
//! messages are accepted like binary ones.

use std::time::Duration;

use stilling_engine::{CloseReason, Io};
use stilling_hub::Payload;
use stilling_ring::Time;
use stilling_wire::websocket::{
    CloseCode, MaskedPayload, Opcode, WebSocketDecoder, WebSocketEvent, WebSocketFrameHeader, WebSocketLimits,
};

use super::{NatsContext, NatsPhase, NatsSession, SLOW_CONSUMER};
use crate::control_frames::{send_close, send_pong};
use crate::hub::send_feed;
use crate::nats::NatsShard;
use crate::nats::limits::{ASSEMBLY_TIMEOUT, FRAME_STEP, UNDECODED_MAX, WEBSOCKET_MESSAGE_SIZE_MAX};

/// Payloads are passed on as they arrive, never assembled.
const FRAME_LIMITS: WebSocketLimits =
    WebSocketLimits { message_size_max: WEBSOCKET_MESSAGE_SIZE_MAX, whole_size_max: 0 };

/// The last frames for a slow consumer: its error, and a close frame with code 1008, as in nats-server.
const SLOW_CONSUMER_FRAMES: &[u8] = b"\x82\x16-ERR 'Slow Consumer'\r\n\x88\x02\x03\xf0";

const _: () = assert!(SLOW_CONSUMER_FRAMES.len() == 2 + SLOW_CONSUMER.len() + 4);

/// The state of a WebSocket under a session.
#[derive(Debug)]
pub(super) struct WebSocketFrames {
    decoder: WebSocketDecoder,
    /// Unmasked bytes that the session has not consumed. Without capacity while there are none.
    undecoded: Vec<u8>,
    /// The deadline for more bytes that let the session consume some of them.
    undecoded_until: Time,
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
        let append = |out: &mut Vec<u8>| {
            out.extend_from_slice(first);
            out.extend_from_slice(second);
        };
        self.send_with(first.len() + second.len(), append, io);
    }

    /// The same, for lines of `length` bytes that `append` appends.
    #[inline]
    pub(super) fn send_with(self, length: usize, append: impl FnOnce(&mut Vec<u8>), io: &mut Io<'_>) {
        let header = self.header(length);
        if header.map_or(0, |header| header.size()) + length > io.room() {
            return io.end_slow_consumer();
        }
        // There is room.
        let _ = io.send_with(|out| {
            if let Some(header) = header {
                header.encode(out);
            }
            append(out);
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

    /// Sends the messages of a feed, in one frame. Their bytes stay shared, also with connections without
    /// frames; blocked output holds a copy.
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
            undecoded_until: Time::ZERO,
            peer_close: None,
            is_closed: false,
        }
    }

    /// Sends a close frame, once; omitted without room for a control frame.
    fn close(&mut self, code: Option<CloseCode>, text: &str, io: &mut Io<'_>) {
        if !std::mem::replace(&mut self.is_closed, true) {
            send_close(code, text, io);
        }
    }

    /// Adds bytes that the session has not consumed.
    fn add_undecoded(&mut self, masked: MaskedPayload<'_>, now: Time, nats: &mut NatsShard) {
        let before = self.undecoded.capacity();
        if self.undecoded.is_empty() {
            self.undecoded_until = now.after(ASSEMBLY_TIMEOUT);
        }
        masked.append_to(&mut self.undecoded);
        nats.undecoded.replace(before, self.undecoded.capacity());
    }

    /// Keeps the bytes after the first `consumed`, in memory of their size. Their timeout restarts if the session has
    /// consumed some.
    fn keep_rest(&mut self, undecoded: Vec<u8>, consumed: usize, now: Time, nats: &mut NatsShard) {
        if consumed == 0 {
            self.undecoded = undecoded;
            return;
        }
        self.undecoded_until = now.after(ASSEMBLY_TIMEOUT);
        self.undecoded = undecoded.get(consumed..).unwrap_or_default().to_vec();
        nats.undecoded.replace(undecoded.capacity(), self.undecoded.capacity());
    }

    /// Extends the timeout by the span in which the client was not read.
    pub(super) fn extend_timeout(&mut self, span: Duration) {
        self.undecoded_until = self.undecoded_until.after(span);
    }

    /// Restarts the timeout.
    pub(super) fn restart_timeout(&mut self, now: Time) {
        self.undecoded_until = now.after(ASSEMBLY_TIMEOUT);
    }

    pub(super) fn release_memory(&mut self, nats: &mut NatsShard) {
        nats.undecoded.replace(std::mem::take(&mut self.undecoded).capacity(), 0);
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
        self.decode_undecoded(io, cx);
        let mut consumed = 0;
        while self.can_decode_frame(io, cx) {
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

    /// Whether the next frame may be decoded: the session reads, has consumed the bytes of earlier ones, and has room for
    /// more, so that the input of a waiting client stays in its socket.
    fn can_decode_frame(&mut self, io: &mut Io<'_>, cx: &mut NatsContext<'_>) -> bool {
        let undecoded = self.frames.as_deref().map_or(0, |frames| frames.undecoded.len());
        if io.is_paused() || io.is_finishing() || undecoded > UNDECODED_MAX {
            return false;
        }
        // Before the hub starts, the first lines decide.
        (self.is_new && !cx.lifecycle.hub_has_started()) || self.can_decode(b"", io, cx)
    }

    fn read_payload(&mut self, payload: MaskedPayload<'_>, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        let Some(frames) = self.frames.as_deref_mut() else { return };
        if !frames.undecoded.is_empty() {
            frames.add_undecoded(payload, io.now(), cx.nats);
            return self.decode_undecoded(io, cx);
        }
        // Not in place: other threads may refer to the block that the input is in.
        let mut unmasked = std::mem::take(&mut cx.nats.unmasked);
        unmasked.clear();
        payload.append_to(&mut unmasked);
        let consumed = self.decode(&unmasked, io, cx);
        cx.nats.unmasked = unmasked;
        if consumed < payload.len()
            && let Some(frames) = self.frames.as_deref_mut()
        {
            frames.add_undecoded(payload.after(consumed), io.now(), cx.nats);
            self.limit_undecoded(io, cx);
        }
    }

    /// Continues with the bytes that earlier frames have left.
    fn decode_undecoded(&mut self, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        let Some(frames) = self.frames.as_deref_mut().filter(|frames| !frames.undecoded.is_empty()) else {
            return;
        };
        if io.is_paused() || io.is_finishing() {
            return;
        }
        let undecoded = std::mem::take(&mut frames.undecoded);
        let consumed = self.decode(&undecoded, io, cx);
        if let Some(frames) = self.frames.as_deref_mut() {
            frames.keep_rest(undecoded, consumed, io.now(), cx.nats);
        }
        self.limit_undecoded(io, cx);
    }

    /// The deadline of an incomplete line, while the session serves.
    pub(super) fn undecoded_until(&self) -> Option<Time> {
        let frames = self.frames.as_deref().filter(|frames| !frames.undecoded.is_empty())?;
        matches!(self.phase, NatsPhase::Serving).then_some(frames.undecoded_until)
    }

    /// Has an incomplete line checked at its deadline, or closes the connection if the shard holds too many bytes of such
    /// lines. A client that the server makes wait is not closed.
    fn limit_undecoded(&mut self, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        let has_undecoded = self.frames.as_deref().is_some_and(|frames| !frames.undecoded.is_empty());
        if has_undecoded && cx.nats.undecoded.is_exceeded() && !io.is_paused() && !io.is_finishing() {
            return self.refuse_undecoded(io, cx);
        }
        if let Some(until) = self.undecoded_until() {
            io.set_deadline(Some(io.deadline().map_or(until, |deadline| deadline.min(until))));
        }
    }

    /// Closes the connection: the shard holds too many bytes of incomplete protocol lines.
    fn refuse_undecoded(&mut self, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
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

    /// Row 2.18: undecoded bytes are counted by the memory that they occupy, and released with the connection.
    #[test]
    fn undecoded_bytes_are_counted_until_they_are_decoded_or_released() {
        let mut nats = NatsShard::default();
        let now = Time::ZERO;
        let mut frames = [WebSocketFrames::new(), WebSocketFrames::new()];
        for round in 1..200 {
            for frames in &mut frames {
                let bytes = vec![b'x'; round * 7];
                with_payload(&bytes, |payload| frames.add_undecoded(payload, now, &mut nats));
            }
            let occupied: usize = frames.iter().map(|frames| frames.undecoded.capacity()).sum();
            assert_eq!(nats.undecoded.used, occupied);
            // The session decodes all but a few bytes; every third time, all.
            let [first, _] = &mut frames;
            let undecoded = std::mem::take(&mut first.undecoded);
            let rest = if round % 3 == 0 { 0 } else { 5 };
            let consumed = undecoded.len() - rest;
            first.keep_rest(undecoded, consumed, now, &mut nats);
            assert_eq!((first.undecoded.len(), first.undecoded.capacity()), (rest, rest));
        }
        frames.iter_mut().for_each(|frames| frames.release_memory(&mut nats));
        assert_eq!(nats.undecoded.used, 0);
    }

    /// Only progress of the session restarts the timeout of undecoded bytes.
    #[test]
    fn the_timeout_of_undecoded_bytes_runs_until_some_are_consumed() {
        let mut nats = NatsShard::default();
        let mut frames = WebSocketFrames::new();
        let (begin, later) = (Time::ZERO, Time::ZERO.after(ASSEMBLY_TIMEOUT / 2));
        for now in [begin, later] {
            with_payload(b"PUB a", |payload| frames.add_undecoded(payload, now, &mut nats));
        }
        for (consumed, expected) in [(0, begin), (3, later)] {
            let undecoded = std::mem::take(&mut frames.undecoded);
            frames.keep_rest(undecoded, consumed, later, &mut nats);
            assert_eq!(frames.undecoded_until, expected.after(ASSEMBLY_TIMEOUT));
        }
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
