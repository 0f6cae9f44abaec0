//! A connection that speaks the NATS client protocol.
//!
//! ```text
//!   bytes ─▶ decoder ─▶ request ─▶ port ═▶ hub            decodes only as much as there is room for
//!   bytes ◀─ outbox  ◀─ delivery ◀═ port ◀═ hub           encoded bytes; too many unread: a slow consumer
//! ```
//!
//! The session checks permissions; everything else is the hub's.

use std::net::IpAddr;

use stilling_engine::limits::SEND_MAX;
use stilling_engine::{CloseReason, Io, Token};
use stilling_hub::{
    ClientOptions, DeliveryItem, HubRequest, Ingress, Payload, Publication, SubscriptionLimit,
};
use stilling_ring::Time;
use stilling_wire::nats::{
    ClientDecoder, ClientEvent, Connect, NatsDecodeError, NatsFault, NatsLimits, OK, PING, PONG, PublishHead,
    encode_err,
};

use super::assembly::PublishAssembly;
use super::limits::{
    ASSEMBLY_MAX, ASSEMBLY_OVER_LIMIT_TIMEOUT, ASSEMBLY_RETRY, ASSEMBLY_TIMEOUT, AUTHENTICATION_TIMEOUT,
    BLOCKED_CHECK_INTERVAL, PENDING_MAX, PING_INTERVAL, PINGS_MAX,
};
use super::shard::{NatsContext, NatsShard};
use crate::hub::quiet_wait::QuietWait;
use crate::hub::{DelayedMarks, HubMail};
use crate::users::UserAccess;

mod ending;
mod frames;

use self::frames::{Framing, WebSocketFrames};

#[derive(Debug)]
pub(crate) struct NatsSession {
    decoder: ClientDecoder,
    client_options: ClientOptions,
    access: UserAccess,
    verbose: bool,
    /// The client requests errors for publications to invalid subjects.
    pedantic: bool,
    /// The index of its listener.
    listener: u16,
    /// The client's address, if the driver reports it.
    peer: Option<IpAddr>,
    /// The connection waits for room in the port, and has not been read since the last input.
    waits_for_room: bool,
    phase: NatsPhase,
    pings: u8,
    last_input: Time,
    /// An incomplete long message.
    assembly: Option<Box<PublishAssembly>>,
    /// Marks to report when the output has been sent.
    marks: DelayedMarks,
    /// The WebSocket that carries its bytes.
    frames: Option<Box<WebSocketFrames>>,
    /// No request has gone to the hub yet.
    is_new: bool,
    is_counted: bool,
    token: Token,
}

/// The phase of a connection.
///
/// ```text
///   Serving ──the server drains──▶ Draining ──silent──▶ AwaitingAcks ──all answered──▶ OutputEnded ──silent──▶ closed
///      └───────────────────the client ends───────────────────┴───────────────────────────────────────────────────▲
/// ```
#[derive(Clone, Copy, Debug)]
enum NatsPhase {
    Serving,
    /// INFO with `ldm` was sent. Input is read and answered until the client is silent.
    Draining(QuietWait),
    /// The connection is closed when all its publications are answered.
    AwaitingAcks(CloseReason),
    /// All output and its end were sent. Input that the client sends before it notices is still published, until the
    /// client is silent.
    OutputEnded(QuietWait),
    /// A slow consumer: nothing more is sent but the end.
    Disconnected,
}

/// The last line for a slow consumer, as in nats-server.
const SLOW_CONSUMER: &[u8] = b"-ERR 'Slow Consumer'\r\n";

impl NatsSession {
    pub(crate) fn new(listener: u32, peer: Option<IpAddr>) -> NatsSession {
        NatsSession {
            decoder: ClientDecoder::default(),
            client_options: ClientOptions::default(),
            access: UserAccess::Unauthenticated,
            verbose: false,
            pedantic: true,
            listener: u16::try_from(listener).unwrap_or(u16::MAX),
            peer,
            waits_for_room: false,
            phase: NatsPhase::Serving,
            pings: 0,
            last_input: Time::ZERO,
            assembly: None,
            marks: DelayedMarks::default(),
            frames: None,
            is_new: true,
            is_counted: false,
            token: Token::new(0, 0),
        }
    }

    /// A session over WebSocket, after the opening handshake.
    pub(crate) fn over_websocket(listener: u32, peer: Option<IpAddr>) -> NatsSession {
        NatsSession { frames: Some(Box::new(WebSocketFrames::new())), ..NatsSession::new(listener, peer) }
    }

    pub(crate) fn is_over_websocket(&self) -> bool {
        self.frames.is_some()
    }

    pub(crate) fn opened(&mut self, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        let (now, token) = (io.now(), io.token());
        (self.last_input, self.token) = (now, token);
        io.set_send_max(PENDING_MAX);
        // The client may send all its requests before it reads the first response.
        io.keep_reading();
        let Some(hub) = cx.hub.as_deref_mut() else {
            // A successor has the hub; the client's next connection reaches it.
            return io.abort(CloseReason::Drained);
        };
        self.is_counted = true;
        hub.publisher_connections += 1;
        self.access = hub.users.initial_access();
        self.send_info(false, io, cx.nats);
        let wait =
            if self.access == UserAccess::Unauthenticated { AUTHENTICATION_TIMEOUT } else { PING_INTERVAL };
        io.set_deadline(Some(now.after(wait)));
        if cx.lifecycle.is_draining() {
            // The other connections may have been notified already.
            self.draining(io, cx);
        }
    }

    pub(crate) fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, cx: &mut NatsContext<'_>) -> usize {
        self.last_input = io.now();
        match self.framing() {
            Framing::Plain => self.decode(bytes, io, cx),
            Framing::Framed => self.received_frames(bytes, io, cx),
        }
    }

    /// Decodes protocol lines. Returns the number of consumed bytes.
    fn decode(&mut self, bytes: &[u8], io: &mut Io<'_>, cx: &mut NatsContext<'_>) -> usize {
        let mut consumed = 0;
        loop {
            if !self.can_decode(&bytes[consumed..], io, cx) {
                return consumed;
            }
            let limits = cx.hub.as_deref().map_or_else(NatsLimits::default, |hub| hub.limits);
            let step = match self.decoder.decode(&limits, &bytes[consumed..]) {
                Ok(step) => step,
                Err(error) => {
                    self.fail(&error, io, cx);
                    return bytes.len();
                }
            };
            consumed += step.consumed;
            if step.event == ClientEvent::NeedMore {
                return consumed;
            }
            if !self.handle_event(step.event, io, cx) {
                return bytes.len();
            }
        }
    }

    /// Whether the next request may be decoded now.
    fn can_decode(&mut self, rest: &[u8], io: &mut Io<'_>, cx: &mut NatsContext<'_>) -> bool {
        let token = io.token();
        if self.is_new && !cx.lifecycle.hub_has_started() && self.decoder.is_idle() && is_handshake(rest) {
            return true;
        }
        let Some(hub) = cx.hub.as_deref_mut() else { return false };
        if self.access == UserAccess::Unauthenticated {
            // Until the client has authenticated, which has a deadline, nothing goes to the hub.
            return true;
        }
        if !hub.port.has_room_for(token) {
            if !std::mem::replace(&mut self.waits_for_room, true) {
                hub.port.wait(token);
            }
            io.pause();
            return false;
        }
        let Some(assembly) = self.assembly.as_deref_mut() else { return true };
        let growth = assembly.growth();
        if assembly.regain_time(token, growth, cx.nats) {
            let until = assembly.until;
            self.schedule_check(until, io);
            return true;
        }
        if growth == 0
            || cx.nats.assembled_bytes + growth <= ASSEMBLY_MAX
            || cx.nats.over_limit == Some(token)
        {
            return true;
        }
        if cx.nats.over_limit.is_none() {
            // The connections that wait for room may be those that occupy it: one at a time may exceed the limit.
            cx.nats.over_limit = Some(token);
            assembly.until = assembly.until.min(io.now().after(ASSEMBLY_OVER_LIMIT_TIMEOUT));
            let until = assembly.until;
            self.schedule_check(until, io);
            return true;
        }
        io.pause();
        self.schedule_check(io.now().after(ASSEMBLY_RETRY), io);
        false
    }

    /// Sets the next deadline, or that of an incomplete line if it is earlier. A draining connection is checked soon in
    /// any case.
    fn schedule_check(&self, at: Time, io: &mut Io<'_>) {
        let at = self.undecoded_until().map_or(at, |until| at.min(until));
        let at = match self.phase {
            NatsPhase::Serving | NatsPhase::AwaitingAcks(_) | NatsPhase::Disconnected => at,
            NatsPhase::Draining(wait) | NatsPhase::OutputEnded(wait) => at.min(wait.check_after(io.now())),
        };
        io.set_deadline(Some(at));
    }

    /// Handles a decoded event. Returns whether the connection continues.
    fn handle_event(&mut self, event: ClientEvent<'_>, io: &mut Io<'_>, cx: &mut NatsContext<'_>) -> bool {
        match event {
            ClientEvent::NeedMore => {}
            ClientEvent::Connect(json) => return self.connect(json, io, cx),
            ClientEvent::Pong => self.pings = 0,
            ClientEvent::Piece(piece) => self.add_piece(piece, cx),
            ClientEvent::PublishEnd => self.end_assembly(io, cx),
            _ if self.access == UserAccess::Unauthenticated => return self.reject(io, cx),
            ClientEvent::Rejected(error) => self.refuse(&error, io, cx),
            ClientEvent::Publish(message) => {
                let reply = message.reply.map_or(&b""[..], |reply| reply.as_bytes());
                let publication = Publication {
                    ingress: Ingress::Nats,
                    subject: message.subject.as_bytes(),
                    reply,
                    headers: message.headers,
                    payload: message.payload.into(),
                    ticket: None,
                };
                if self.may_publish(publication.subject, io, cx) {
                    self.publish(publication, io, cx);
                }
            }
            ClientEvent::PublishStart(head) => self.begin_assembly(&head, io, cx),
            ClientEvent::Subscribe(subscribe) => {
                let filter = subscribe.filter.as_bytes();
                let is_permitted =
                    cx.hub.as_deref().is_some_and(|hub| hub.users.may_subscribe(self.access, filter));
                if is_permitted {
                    let queue = subscribe.queue.unwrap_or(b"");
                    return self.subscribe((filter, queue, subscribe.sid), io, cx);
                } else {
                    self.send_violation("Subscription", filter, io);
                }
            }
            ClientEvent::Unsubscribe { sid, after } => {
                if let Some(hub) = cx.hub.as_deref_mut() {
                    hub.port.unsubscribe(io.token(), sid, after);
                }
                self.send_ok(io);
            }
            // Answered before the hub begins: clients disconnect without a PONG to their first PING. There is no
            // earlier request that it could overtake.
            ClientEvent::Ping if self.is_new && !cx.lifecycle.hub_has_started() => self.send_bytes(PONG, io),
            ClientEvent::Ping => self.send_request(&HubRequest::Barrier, io, cx),
        }
        true
    }

    /// Pushes a message to the hub, a long payload by reference. `can_decode` has made sure of room.
    #[inline]
    fn publish(&mut self, publication: Publication<'_>, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        let token = io.token();
        self.is_new = false;
        if let Some(hub) = cx.hub.as_deref_mut() {
            let shared = match publication.payload.block() {
                None => io.share(publication.payload.bytes()),
                Some(_) => None,
            };
            let payload = shared.map_or(publication.payload, |(block, range)| Payload::shared(block, range));
            hub.port.push_request(
                token,
                self.client_options,
                &HubRequest::Publish(Publication { payload, ..publication }),
            );
        }
        self.send_ok(io);
    }

    /// Pushes a request to the hub. `can_decode` has made sure of room.
    #[inline]
    fn send_request(&mut self, request: &HubRequest<'_>, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        let token = io.token();
        if matches!(self.phase, NatsPhase::OutputEnded(_)) && !matches!(request, HubRequest::Publish(_)) {
            // The response could not be sent.
            return;
        }
        self.is_new = false;
        if let Some(hub) = cx.hub.as_deref_mut() {
            hub.port.push_request(token, self.client_options, request);
        }
        if self.verbose && !matches!(request, HubRequest::Barrier) {
            self.send_bytes(OK, io);
        }
    }

    /// Subscribes to a filter, as a member of a queue group if that has a name. Returns whether the connection
    /// continues.
    fn subscribe(
        &mut self,
        subscription: (&[u8], &[u8], &[u8]),
        io: &mut Io<'_>,
        cx: &mut NatsContext<'_>,
    ) -> bool {
        self.is_new = false;
        if matches!(self.phase, NatsPhase::OutputEnded(_)) {
            // It has left the hub, and receives nothing more.
            return true;
        }
        let Some(hub) = cx.hub.as_deref_mut() else { return false };
        match hub.port.subscribe(io.token(), self.client_options, subscription) {
            Ok(()) => self.send_ok(io),
            Err(exceeded) => {
                self.send_error("maximum subscriptions exceeded", io);
                if exceeded == SubscriptionLimit::PerClient {
                    self.finish_after_acks(CloseReason::ProtocolError, io, cx);
                    return false;
                }
            }
        }
        true
    }

    /// Sends +OK to a verbose client, if output is still possible.
    fn send_ok(&mut self, io: &mut Io<'_>) {
        if self.verbose && !self.is_output_ended() {
            self.send_bytes(OK, io);
        }
    }

    fn connect(&mut self, json: &[u8], io: &mut Io<'_>, cx: &mut NatsContext<'_>) -> bool {
        let connect = match Connect::parse(json) {
            Ok(connect) => connect,
            Err(error) => {
                self.fail(&error, io, cx);
                return false;
            }
        };
        let Some(hub) = cx.hub.as_deref() else { return false };
        self.access = hub.users.authenticate(&connect);
        if self.access == UserAccess::Unauthenticated {
            return self.reject(io, cx);
        }
        (self.verbose, self.pedantic) = (connect.verbose, connect.pedantic);
        self.client_options = ClientOptions {
            headers: connect.headers,
            no_responders: connect.no_responders,
            no_echo: !connect.echo,
        };
        self.schedule_check(io.now().after(PING_INTERVAL), io);
        if self.verbose {
            self.send_bytes(OK, io);
        }
        true
    }

    fn may_publish(&mut self, subject: &[u8], io: &mut Io<'_>, cx: &mut NatsContext<'_>) -> bool {
        if self.access == UserAccess::Everything {
            return true;
        }
        let is_permitted = cx.hub.as_deref().is_some_and(|hub| hub.users.may_publish(self.access, subject));
        if !is_permitted {
            self.send_violation("Publish", subject, io);
        }
        is_permitted
    }

    fn begin_assembly(&mut self, head: &PublishHead<'_>, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        let is_refused = !self.may_publish(head.subject.as_bytes(), io, cx);
        self.assembly = Some(Box::new(PublishAssembly::new(head, is_refused, io.now())));
        self.schedule_check(io.now().after(ASSEMBLY_TIMEOUT), io);
    }

    fn add_piece(&mut self, piece: &[u8], cx: &mut NatsContext<'_>) {
        if let Some(assembly) = self.assembly.as_deref_mut() {
            assembly.add(piece, cx.nats);
        }
    }

    fn end_assembly(&mut self, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        let Some(mut assembly) = self.assembly.take() else { return };
        self.schedule_check(io.now().after(PING_INTERVAL), io);
        assembly.release_memory(self.token, cx.nats);
        if !assembly.is_refused {
            let body = assembly.take_body();
            self.publish(assembly.publication(&body), io, cx);
        }
    }

    /// Handles the end of input; pending publications are still answered.
    pub(crate) fn ended(&mut self, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        match self.phase {
            NatsPhase::Serving => self.finish_after_acks(CloseReason::PeerClosed, io, cx),
            NatsPhase::Draining(_) => self.finish_after_acks(CloseReason::Drained, io, cx),
            NatsPhase::AwaitingAcks(_) | NatsPhase::Disconnected => {}
            NatsPhase::OutputEnded(_) => self.finish(CloseReason::Drained, io, cx),
        }
    }

    pub(crate) fn flushed(&mut self, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        if let Some(frames) = self.frames.as_deref_mut() {
            // The client may not have been read while its output was blocked.
            frames.restart_timeout(io.now());
        }
        for mark in self.marks.take() {
            self.report_mark(mark, io, cx);
        }
    }

    fn report_mark(&mut self, mark: u64, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        let token = io.token();
        if let Some(hub) = cx.hub.as_deref_mut() {
            hub.port.report_mark(token, mark);
        }
    }

    pub(crate) fn delivered(&mut self, mail: HubMail, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        match mail {
            HubMail::Room => self.end_room_wait(io),
            HubMail::Delivery => {
                let Some(mut deliveries) = cx.hub.as_deref_mut().and_then(|hub| hub.port.take_current())
                else {
                    return;
                };
                let before = io.room();
                while let Some(delivery) = deliveries.current() {
                    self.send_delivery(delivery, io, cx);
                    // Other connections get their turn after as much as one call may send.
                    let is_enough = before.saturating_sub(io.room()) >= SEND_MAX || io.is_finishing();
                    if is_enough || !deliveries.advance_message() {
                        break;
                    }
                }
                if let Some(hub) = cx.hub.as_deref_mut() {
                    hub.port.put_back(deliveries);
                }
            }
        }
    }

    /// Resumes reading when there is room in the port again. The client was not read meanwhile, so its timeouts are
    /// extended.
    fn end_room_wait(&mut self, io: &mut Io<'_>) {
        if !std::mem::take(&mut self.waits_for_room) {
            return;
        }
        let now = io.now();
        let last_input = std::mem::replace(&mut self.last_input, now);
        if let NatsPhase::Draining(quiet) | NatsPhase::OutputEnded(quiet) = &mut self.phase {
            quiet.extend(last_input, now);
        }
        if let Some(assembly) = self.assembly.as_deref_mut() {
            assembly.extend(now.since(last_input));
        }
        if let Some(frames) = self.frames.as_deref_mut() {
            frames.extend_timeout(now.since(last_input));
        }
        self.schedule_check(
            self.assembly.as_deref().map_or(now.after(PING_INTERVAL), |assembly| assembly.until),
            io,
        );
        self.resume(io);
    }

    fn resume(&mut self, io: &mut Io<'_>) {
        if !matches!(self.phase, NatsPhase::AwaitingAcks(_)) {
            io.resume();
        }
    }

    fn send_delivery(&mut self, delivery: DeliveryItem<'_>, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        match delivery {
            // Nothing more can be sent.
            DeliveryItem::Mark(mark) if self.is_output_ended() => self.report_mark(mark, io, cx),
            DeliveryItem::Bytes(..)
            | DeliveryItem::Message(..)
            | DeliveryItem::Feed(_)
            | DeliveryItem::FeedWithSid(_)
                if self.is_output_ended() => {}
            DeliveryItem::Bytes(first, second) => self.framing().send(first, second, io),
            DeliveryItem::FeedWithSid(messages) => {
                self.framing().send_with(messages.size(), |out| messages.append_to(out), io);
            }
            DeliveryItem::Message(line, payload, end) => {
                self.framing().send_message(line, payload, end, io);
            }
            DeliveryItem::Feed(messages) => self.framing().send_feed(messages, io),
            DeliveryItem::Mark(mark) if io.is_output_blocked() => self.marks.push(mark),
            DeliveryItem::Mark(mark) => self.report_mark(mark, io, cx),
            DeliveryItem::Close => self.handle_acks_done(io, cx),
            DeliveryItem::PublishOutcome { .. }
            | DeliveryItem::Refused
            | DeliveryItem::SlowConsumer
            | DeliveryItem::Rejection { .. }
            | DeliveryItem::Pause
            | DeliveryItem::Resume => {}
        }
    }

    fn is_output_ended(&self) -> bool {
        matches!(self.phase, NatsPhase::OutputEnded(_) | NatsPhase::Disconnected)
    }

    pub(crate) fn deadline(&mut self, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        let now = io.now();
        if let NatsPhase::Draining(wait) | NatsPhase::OutputEnded(wait) = self.phase {
            return self.continue_draining(wait, io, cx);
        }
        if self.access == UserAccess::Unauthenticated {
            self.count_unauthorized(cx);
            self.send_error("Authentication Timeout", io);
            return self.finish_lingering(CloseReason::FirstByteTimeout, io, cx);
        }
        if self.waits_for_room {
            // The client's input is unread: it can neither be silent nor late.
            return io.set_deadline(Some(now.after(PING_INTERVAL)));
        }
        // A peer that is not read because it does not read is subject to the write timeout only.
        let is_input_blocked = io.is_input_blocked();
        if !is_input_blocked && self.undecoded_until().is_some_and(|until| now >= until) {
            self.send_error("Message Timeout", io);
            return self.finish_lingering(CloseReason::BodyTimeout, io, cx);
        }
        if let Some(assembly) = self.assembly.as_deref_mut().filter(|_| !is_input_blocked) {
            if assembly.is_overdue(self.token, now, cx.nats) {
                self.send_error("Message Timeout", io);
                return self.finish_lingering(CloseReason::BodyTimeout, io, cx);
            }
            let until = assembly.until;
            self.schedule_check(until, io);
            return self.resume(io);
        }
        if io.is_output_blocked() {
            return io.set_deadline(Some(now.after(BLOCKED_CHECK_INTERVAL)));
        }
        let due = self.last_input.after(PING_INTERVAL);
        if now < due {
            self.pings = 0;
            return self.schedule_check(due, io);
        }
        if self.pings >= PINGS_MAX {
            self.send_error("Stale Connection", io);
            return self.finish(CloseReason::IdleTimeout, io, cx);
        }
        self.pings += 1;
        self.send_bytes(PING, io);
        self.schedule_check(now.after(PING_INTERVAL), io);
    }

    /// Sends INFO; `ldm`: the server is about to stop.
    fn send_info(&mut self, ldm: bool, io: &mut Io<'_>, nats: &mut NatsShard) {
        let scratch = nats.encode_info(ldm, self.token, (self.listener, self.peer));
        self.send_bytes(scratch, io);
    }

    fn send_bytes(&mut self, bytes: &[u8], io: &mut Io<'_>) {
        if !self.is_output_ended() {
            self.framing().send(bytes, b"", io);
        }
    }

    fn send_error(&mut self, text: &str, io: &mut Io<'_>) {
        let mut line = Vec::with_capacity(text.len() + 16);
        encode_err(&mut line, text);
        self.send_bytes(&line, io);
    }

    fn send_violation(&mut self, what: &str, subject: &[u8], io: &mut Io<'_>) {
        let subject = String::from_utf8_lossy(subject);
        self.send_error(&format!("Permissions Violation for {what} to \"{subject}\""), io);
    }

    /// Answers an invalid operation. As in nats-server, a publication to an invalid subject is dropped silently unless
    /// the client is pedantic: clients close permanently after such an error.
    fn refuse(&mut self, error: &NatsDecodeError, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        let is_publication = matches!(error.fault(), NatsFault::PublishSubject | NatsFault::ReplySubject);
        if is_publication && let Some(hub) = cx.hub.as_deref() {
            hub.counters.publications_invalid.add(1);
        }
        if !is_publication || self.pedantic {
            self.send_error(error.text(), io);
        } else if self.verbose {
            self.send_bytes(OK, io);
        }
    }

    fn fail(&mut self, error: &NatsDecodeError, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        self.send_error(error.text(), io);
        self.finish_lingering(CloseReason::ProtocolError, io, cx);
    }

    fn count_unauthorized(&self, cx: &mut NatsContext<'_>) {
        if let Some(hub) = cx.hub.as_deref() {
            hub.counters.unauthorized.add(1);
        }
    }

    fn reject(&mut self, io: &mut Io<'_>, cx: &mut NatsContext<'_>) -> bool {
        self.access = UserAccess::Unauthenticated;
        self.count_unauthorized(cx);
        self.send_error("Authorization Violation", io);
        self.finish_lingering(CloseReason::Forbidden, io, cx);
        false
    }
}

/// Whether the bytes begin with an operation that needs no hub, as far as received.
fn is_handshake(bytes: &[u8]) -> bool {
    [&b"CONNECT"[..], b"PING", b"PONG"].into_iter().any(|operation| {
        let size = operation.len().min(bytes.len());
        size > 1 && bytes[..size].eq_ignore_ascii_case(&operation[..size])
    })
}
