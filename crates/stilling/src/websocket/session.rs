//! A WebSocket connection: frames, control frames, timeouts, and the close in either direction.

use stilling_engine::{CloseReason, Io};
use stilling_ring::Time;
use stilling_wire::websocket::{
    CloseCode, MaskedPayload, MessageKind, WebSocketDecoder, WebSocketEvent, WebSocketLimits,
};

use super::WebSocketPurpose;
use super::assembly::Assembly;
use super::echo::Echo;
use super::limits::{
    ASSEMBLY_MAX, ASSEMBLY_TIMEOUT, ECHO_BYTES_MAX, ECHO_MESSAGE_SIZE_MAX, ENVELOPE_SIZE_MAX, PENDING_MAX,
    PING_INTERVAL, PINGS_MAX, SCRATCH_KEPT_MAX,
};
use super::subscriber::Subscriber;
use crate::control_frames::{send_close, send_ping, send_pong};
use crate::hub::{HubHandle, HubMail};
use crate::lifecycle::Lifecycle;

/// The parts of its shard that a WebSocket session uses.
pub(crate) struct WebSocketContext<'a> {
    /// The hub; `None` when a successor has it.
    pub(crate) hub: Option<&'a mut HubHandle>,
    pub(crate) lifecycle: &'a Lifecycle,
    pub(crate) websocket: &'a mut WebSocketShard,
}

/// State that the WebSocket sessions of one shard share.
#[derive(Debug, Default)]
pub(crate) struct WebSocketShard {
    /// Bytes of memory of subscribers' incomplete messages.
    assembled_bytes: usize,
    /// Bytes of messages to the echo that are incomplete or unsent.
    echo_bytes: usize,
    /// Memory for whole messages.
    scratch: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct WebSocketSession {
    decoder: WebSocketDecoder,
    role: Role,
    /// An incomplete message.
    message: Option<Box<Assembly>>,
    /// Time limit of the frame that waits in the input for its rest, or [`NEVER`].
    frame_until: Time,
    phase: Phase,
    pings: u8,
    last_input: Time,
    /// The connection waits for room in the port, and has not been read since the last input.
    waits_for_room: bool,
}

#[derive(Debug)]
enum Role {
    Subscriber(Subscriber),
    Echo(Echo),
}

impl Role {
    /// The shard's bytes of incomplete messages in this role, and their maximum.
    fn budget<'a>(&self, shard: &'a mut WebSocketShard) -> (&'a mut usize, usize) {
        match self {
            Role::Subscriber(_) => (&mut shard.assembled_bytes, ASSEMBLY_MAX),
            Role::Echo(_) => (&mut shard.echo_bytes, ECHO_BYTES_MAX),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// The server drains: the connection is closed when all its publications are answered.
    AwaitingAcks,
    /// A close frame was sent, or the connection ends without one.
    Closed,
}

/// How the server closes a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct WebSocketClose {
    pub(super) code: CloseCode,
    pub(super) text: &'static str,
    pub(super) reason: CloseReason,
}

/// No time limit.
const NEVER: Time = Time::from_nanos(u64::MAX);

/// The close frame of a slow consumer: code 4008.
const SLOW_CONSUMER: &[u8] = &[0x88, 2, 0x0f, 0xa8];

impl WebSocketSession {
    /// Continues a connection after the opening handshake.
    pub(crate) fn open(
        purpose: &WebSocketPurpose,
        io: &mut Io<'_>,
        cx: &mut WebSocketContext<'_>,
    ) -> WebSocketSession {
        let role = match purpose {
            &WebSocketPurpose::Subscriber { access, may_publish, .. } => {
                Role::Subscriber(Subscriber::new(io.token(), access, may_publish))
            }
            WebSocketPurpose::Echo => Role::Echo(Echo::default()),
        };
        let mut session = WebSocketSession {
            decoder: WebSocketDecoder::of_client(),
            role,
            message: None,
            frame_until: NEVER,
            phase: Phase::Open,
            pings: 0,
            last_input: io.now(),
            waits_for_room: false,
        };
        session.start(purpose, io, cx);
        session
    }

    fn start(&mut self, purpose: &WebSocketPurpose, io: &mut Io<'_>, cx: &mut WebSocketContext<'_>) {
        io.set_send_max(PENDING_MAX);
        self.schedule(io);
        if let (Role::Subscriber(subscriber), WebSocketPurpose::Subscriber { request, .. }) =
            (&mut self.role, purpose)
        {
            let Some(hub) = cx.hub.as_deref_mut() else { return self.go_away(io, cx) };
            if !subscriber.subscribe(request, hub) {
                let text = "too many subscriptions: connect again later";
                let reason = CloseReason::Done;
                return self.close(WebSocketClose { code: CloseCode::TRY_AGAIN_LATER, text, reason }, io, cx);
            }
        }
        if cx.lifecycle.is_draining() {
            // The other connections may have been notified already.
            self.draining(io, cx);
        }
    }

    pub(crate) fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, cx: &mut WebSocketContext<'_>) -> usize {
        (self.last_input, self.pings) = (io.now(), 0);
        let limits = self.limits(cx);
        let mut consumed = 0;
        while self.can_decode(io, cx) {
            let step = match self.decoder.decode(&limits, &bytes[consumed..]) {
                Ok(step) => step,
                Err(error) => {
                    let (code, text) = (error.close_code(), error.reason());
                    self.close(WebSocketClose { code, text, reason: CloseReason::ProtocolError }, io, cx);
                    return bytes.len();
                }
            };
            consumed += step.consumed;
            if step.event == WebSocketEvent::NeedMore {
                self.limit_frame(consumed < bytes.len(), io);
                return consumed;
            }
            self.frame_until = NEVER;
            self.handle_event(step.event, io, cx);
        }
        if self.phase == Phase::Closed { bytes.len() } else { consumed }
    }

    fn limits(&self, cx: &WebSocketContext<'_>) -> WebSocketLimits {
        let message_size_max = match &self.role {
            Role::Echo(_) => ECHO_MESSAGE_SIZE_MAX,
            Role::Subscriber(_) => {
                let payload_size_max = cx.hub.as_deref().map_or(0, |hub| hub.limits.payload_size_max);
                payload_size_max.saturating_mul(2).saturating_add(ENVELOPE_SIZE_MAX)
            }
        };
        WebSocketLimits { message_size_max, ..WebSocketLimits::default() }
    }

    /// Whether the next frame may be decoded now.
    fn can_decode(&mut self, io: &mut Io<'_>, cx: &mut WebSocketContext<'_>) -> bool {
        if self.phase != Phase::Open || io.is_finishing() {
            return false;
        }
        let subscriber = match &mut self.role {
            Role::Echo(echo) => return !echo.is_busy(),
            Role::Subscriber(subscriber) => subscriber,
        };
        let Some(hub) = cx.hub.as_deref_mut() else { return false };
        if subscriber.is_full() {
            io.pause();
            return false;
        }
        if hub.port.has_room_for(io.token()) {
            return true;
        }
        if !std::mem::replace(&mut self.waits_for_room, true) {
            hub.port.wait(io.token());
        }
        io.pause();
        false
    }

    fn handle_event(&mut self, event: WebSocketEvent<'_>, io: &mut Io<'_>, cx: &mut WebSocketContext<'_>) {
        match event {
            WebSocketEvent::NeedMore | WebSocketEvent::Pong(_) => {}
            WebSocketEvent::Message { kind, payload } => {
                let mut message = std::mem::take(&mut cx.websocket.scratch);
                payload.append_to(&mut message);
                self.handle_message(kind, &message, io, cx);
                message.clear();
                if message.capacity() <= SCRATCH_KEPT_MAX {
                    cx.websocket.scratch = message;
                }
            }
            WebSocketEvent::MessageStart { kind, .. } => {
                let until = io.now().after(ASSEMBLY_TIMEOUT);
                self.message = Some(Box::new(Assembly::new(kind, until)));
                self.schedule(io);
            }
            WebSocketEvent::Piece(piece) => self.add_piece(piece, io, cx),
            WebSocketEvent::MessageEnd => {
                if let Some(Assembly { kind, bytes, .. }) = self.take_assembly(cx) {
                    self.handle_message(kind, &bytes, io, cx);
                }
            }
            WebSocketEvent::Ping(payload) => send_pong(payload, io),
            WebSocketEvent::Close { code, .. } => {
                self.leave_hub(cx);
                self.phase = Phase::Closed;
                send_close(code, "", io);
                io.finish(CloseReason::PeerClosed);
            }
        }
    }

    fn add_piece(&mut self, piece: MaskedPayload<'_>, io: &mut Io<'_>, cx: &mut WebSocketContext<'_>) {
        let size_max = self.limits(cx).message_size_max;
        let Some(message) = &mut self.message else { return };
        let size_max = size_max as usize;
        if message.reserve(piece.len(), size_max, self.role.budget(cx.websocket)).is_err() {
            let text = "too many incomplete messages: connect again later";
            let reason = CloseReason::InputFull;
            return self.close(WebSocketClose { code: CloseCode::TRY_AGAIN_LATER, text, reason }, io, cx);
        }
        piece.append_to(&mut message.bytes);
    }

    fn take_assembly(&mut self, cx: &mut WebSocketContext<'_>) -> Option<Assembly> {
        let message = *self.message.take()?;
        *self.role.budget(cx.websocket).0 -= message.size();
        Some(message)
    }

    fn handle_message(
        &mut self,
        kind: MessageKind,
        message: &[u8],
        io: &mut Io<'_>,
        cx: &mut WebSocketContext<'_>,
    ) {
        match (&mut self.role, kind) {
            (Role::Echo(echo), kind) => {
                if !echo.send(kind, message, &mut cx.websocket.echo_bytes, io) {
                    let text = "too many messages wait to be read: connect again later";
                    let reason = CloseReason::InputFull;
                    self.close(WebSocketClose { code: CloseCode::TRY_AGAIN_LATER, text, reason }, io, cx);
                }
            }
            (Role::Subscriber(subscriber), MessageKind::Text) => {
                if let Some(hub) = cx.hub.as_deref_mut() {
                    subscriber.publish(message, io, hub);
                }
            }
            (Role::Subscriber(_), MessageKind::Binary) => {
                let text = "expected text messages";
                let reason = CloseReason::ProtocolError;
                self.close(WebSocketClose { code: CloseCode::UNSUPPORTED_DATA, text, reason }, io, cx);
            }
        }
    }

    /// The peer has ended the connection without a close frame.
    pub(crate) fn ended(&mut self, io: &mut Io<'_>, cx: &mut WebSocketContext<'_>) {
        self.leave_hub(cx);
        self.phase = Phase::Closed;
        io.finish(CloseReason::PeerClosed);
    }

    pub(crate) fn flushed(&mut self, io: &mut Io<'_>, cx: &mut WebSocketContext<'_>) {
        // The client was not read while its output was blocked.
        self.restart_time_limits(io.now());
        if let (Role::Subscriber(subscriber), Some(hub)) = (&mut self.role, cx.hub.as_deref_mut()) {
            subscriber.flushed(io, hub);
        }
    }

    pub(crate) fn offer_sent(&mut self, count: usize, io: &mut Io<'_>, cx: &mut WebSocketContext<'_>) {
        if let Role::Echo(echo) = &mut self.role {
            echo.offer_sent(count, &mut cx.websocket.echo_bytes, io);
        }
    }

    pub(crate) fn delivered(&mut self, mail: HubMail, io: &mut Io<'_>, cx: &mut WebSocketContext<'_>) {
        if mail == HubMail::Room {
            if std::mem::take(&mut self.waits_for_room) {
                self.resume_reading(io);
            }
            return;
        }
        let Some(hub) = cx.hub.as_deref_mut() else { return };
        let Some(deliveries) = hub.port.take_current() else { return };
        let (mut close, mut has_regained_room) = (None, false);
        if let Some(delivery) = deliveries.current()
            && let Role::Subscriber(subscriber) = &mut self.role
            && self.phase != Phase::Closed
        {
            let was_full = subscriber.is_full();
            close = subscriber.receive(delivery, io, hub);
            has_regained_room = was_full && !subscriber.is_full();
        }
        hub.port.put_back(deliveries);
        if let Some(close) = close {
            self.close(close, io, cx);
        } else if has_regained_room {
            self.resume_reading(io);
        }
    }

    /// Reads the client again after a wait of the server. A draining connection is not read any more.
    fn resume_reading(&mut self, io: &mut Io<'_>) {
        if self.phase == Phase::Open {
            self.last_input = io.now();
            self.restart_time_limits(io.now());
            io.resume();
        }
    }

    /// Limits the time in which the rest of a frame arrives, from its first byte on.
    fn limit_frame(&mut self, is_incomplete: bool, io: &mut Io<'_>) {
        if !is_incomplete {
            self.frame_until = NEVER;
        } else if self.frame_until == NEVER {
            self.frame_until = io.now().after(ASSEMBLY_TIMEOUT);
            self.schedule(io);
        }
    }

    /// Restarts the time limits of an incomplete message: its client was not read.
    fn restart_time_limits(&mut self, now: Time) {
        let until = now.after(ASSEMBLY_TIMEOUT);
        if self.frame_until != NEVER {
            self.frame_until = until;
        }
        if let Some(message) = &mut self.message {
            message.until = until;
        }
    }

    /// The time limit of an incomplete message, or [`NEVER`].
    fn message_until(&self) -> Time {
        let in_pieces = self.message.as_ref().map_or(NEVER, |message| message.until);
        in_pieces.min(self.frame_until)
    }

    /// Sets the deadline: of an incomplete message, or of the next ping.
    fn schedule(&self, io: &mut Io<'_>) {
        let ping = io.now().after(PING_INTERVAL);
        io.set_deadline(Some(self.message_until().min(ping)));
    }

    pub(crate) fn deadline(&mut self, io: &mut Io<'_>, cx: &mut WebSocketContext<'_>) {
        let now = io.now();
        if self.phase != Phase::Open {
            return;
        }
        if io.is_paused() {
            // Its input is unread: it can neither be silent nor late.
            self.restart_time_limits(now);
            return self.schedule(io);
        }
        if now >= self.message_until() {
            let text = "a message did not arrive in time";
            let reason = CloseReason::BodyTimeout;
            return self.close(WebSocketClose { code: CloseCode::POLICY_VIOLATION, text, reason }, io, cx);
        }
        if now >= self.last_input.after(PING_INTERVAL) {
            if self.pings >= PINGS_MAX {
                let text = "pings were not answered";
                let reason = CloseReason::IdleTimeout;
                return self.close(
                    WebSocketClose { code: CloseCode::POLICY_VIOLATION, text, reason },
                    io,
                    cx,
                );
            }
            self.pings += 1;
            send_ping(io);
        }
        self.schedule(io);
    }

    pub(crate) fn draining(&mut self, io: &mut Io<'_>, cx: &mut WebSocketContext<'_>) {
        if self.phase != Phase::Open {
            return;
        }
        match (&self.role, cx.hub.as_deref_mut()) {
            (Role::Subscriber(_), Some(hub)) if !cx.lifecycle.hub_is_abandoned() => {
                self.phase = Phase::AwaitingAcks;
                // Later messages are not published. The client sends them again, with their ids.
                io.pause();
                hub.port.close_after_acks(io.token());
            }
            _ => self.go_away(io, cx),
        }
    }

    fn go_away(&mut self, io: &mut Io<'_>, cx: &mut WebSocketContext<'_>) {
        let text = "the server ends: connect again";
        let reason = CloseReason::Drained;
        self.close(WebSocketClose { code: CloseCode::GOING_AWAY, text, reason }, io, cx);
    }

    fn close(&mut self, close: WebSocketClose, io: &mut Io<'_>, cx: &mut WebSocketContext<'_>) {
        let WebSocketClose { code, text, reason } = close;
        self.leave_hub(cx);
        if std::mem::replace(&mut self.phase, Phase::Closed) == Phase::Closed {
            return;
        }
        send_close(Some(code), text, io);
        io.finish_lingering(reason);
    }

    /// Leaves the hub and releases the memory of an incomplete or echoed message. Idempotent.
    fn leave_hub(&mut self, cx: &mut WebSocketContext<'_>) {
        self.take_assembly(cx);
        if let Role::Echo(echo) = &mut self.role {
            echo.discard(&mut cx.websocket.echo_bytes);
        }
        if let (Role::Subscriber(subscriber), Some(hub)) = (&mut self.role, cx.hub.as_deref_mut()) {
            subscriber.leave_hub(hub);
        }
    }

    /// Ends the session of a slow consumer. Returns its last frame.
    pub(crate) fn slow_consumer(&mut self, cx: &mut WebSocketContext<'_>) -> &'static [u8] {
        if let Some(hub) = cx.hub.as_deref_mut() {
            hub.counters.slow_consumers.add(1);
        }
        self.leave_hub(cx);
        self.phase = Phase::Closed;
        SLOW_CONSUMER
    }

    pub(crate) fn closed(&mut self, reason: CloseReason, cx: &mut WebSocketContext<'_>) {
        if let Some(hub) = cx.hub.as_deref_mut()
            && reason == CloseReason::WriteTimeout
        {
            hub.counters.slow_consumers.add(1);
        }
        self.leave_hub(cx);
    }
}

/// Bytes of the frame of a server that `bytes` begin with, as far as its header is there.
pub(crate) fn frame_len(bytes: &[u8]) -> Option<usize> {
    let length = match bytes.get(1)? {
        126 => usize::from(u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?)) + 2,
        127 => usize::try_from(u64::from_be_bytes(*bytes.get(2..)?.first_chunk()?)).ok()?.checked_add(8)?,
        length => usize::from(*length),
    };
    length.checked_add(2)
}
