//! A request that has a slot of a process: what of it was sent, what of its response has come.
//!
//! Nothing here waits: the connection that has the request (`connection.rs`) calls when bytes have come or gone. What
//! becomes of a request that fails is decided in `pool.rs`.

use std::fmt;
use std::io::ErrorKind;
use std::time::Duration;

use stilling_engine::{Io, Recipient};
use stilling_ring::Time;
use stilling_wire::http1::{
    AnsweredMethod, BodyLength, HttpDecodeError, HttpFault, HttpLimits, ResponseDecoder, ResponseEvent,
    ResponseHead,
};
use stilling_workers::processes::{AdmissionTicket, SlotPermit};

use super::hop_by_hop::nominates_too_many;
use super::limits::{
    APP_HEAD_SIZE_MAX, APP_HEADERS_MAX, FLUSH_DELAY, INTERIM_MAX, OVERDUE_SLOT_MAX, PIECE_SIZE_MAX,
};
use super::message::{UpstreamEvent, UpstreamFailure};
use super::outbox::Outbox;
use super::request::UpstreamRequest;
use super::request_table::RequestId;
use super::response::ResponseBuilder;

/// What is taken of a response. Its body may have any length.
const LIMITS: HttpLimits =
    HttpLimits { head_size_max: APP_HEAD_SIZE_MAX, headers_max: APP_HEADERS_MAX, body_size_max: u64::MAX };

/// Why a request failed.
#[derive(Debug)]
pub(super) enum UpstreamError {
    /// There is no connection.
    ConnectFailed(ErrorKind),
    /// An idle connection was dead before anything of a response came.
    Stale {
        /// Nothing of the request had been taken either.
        nothing_sent: bool,
    },
    /// The deadline has passed.
    TimedOut,
    /// The process closed the connection, or the system did.
    Lost(ErrorKind),
    /// The process's bytes are not HTTP, or more than is taken.
    Invalid(HttpDecodeError),
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpstreamError::ConnectFailed(kind) => write!(f, "no connection: {kind}"),
            UpstreamError::Stale { .. } => f.write_str("a kept connection was closed instead of an answer"),
            UpstreamError::TimedOut => f.write_str("no answer in time"),
            UpstreamError::Lost(kind) => write!(f, "no answer: {kind}"),
            UpstreamError::Invalid(error) => write!(f, "an answer that is not HTTP: {error}"),
        }
    }
}

impl From<HttpDecodeError> for UpstreamError {
    fn from(error: HttpDecodeError) -> UpstreamError {
        match error.fault() {
            HttpFault::Truncated => UpstreamError::Lost(ErrorKind::UnexpectedEof),
            _ => UpstreamError::Invalid(error),
        }
    }
}

/// How much of the request the process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UploadState {
    /// So many bytes of the head and the body's beginning.
    First(usize),
    /// These, and so many bytes of the next piece of the body.
    Piece(usize),
    /// All that has come; the client has been asked for more.
    BodyWanted,
    /// All of it.
    Complete,
    /// The process answered before it had all, or reads no more.
    CutShort,
}

/// Whether a request goes on after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseProgress {
    /// More is to come.
    Continues,
    /// The response is complete.
    Done {
        /// The connection may carry another request.
        is_reusable: bool,
    },
}

/// A request in the queue.
pub(super) struct QueuedRequest {
    pub(super) request: Box<UpstreamRequest>,
    /// Its place in the queue.
    pub(super) ticket: AdmissionTicket,
}

/// A request that has a slot of a process.
pub(super) struct PendingRequest {
    pub(super) id: RequestId,
    pub(super) reply_to: Recipient,
    pub(super) request: Box<UpstreamRequest>,
    /// Its place in the queue, should it go back.
    pub(super) ticket: AdmissionTicket,
    /// Its slot.
    pub(super) permit: SlotPermit,
    /// When the process must have gone on with the request.
    pub(super) deadline: Time,
    /// How long the process may take for each step.
    timeout: Duration,
    /// Since when which life of the process refuses connections.
    pub(super) refused_since: Option<(u64, Time)>,
    /// It has not been sent a second time.
    pub(super) may_repeat: bool,
    /// A process may have taken it, or a part of it, before it died.
    pub(super) maybe_delivered: bool,
    upload: UploadState,
    /// A part of it has gone: what a later send finds of the connection says nothing of the whole.
    has_sent: bool,
    /// The piece of the body that is being sent, framed.
    piece: Vec<u8>,
    piece_is_last: bool,
    decoder: ResponseDecoder,
    /// Something has come back.
    has_received: bool,
    interims: u32,
    /// The response, once its head has come.
    response: Option<ResponseBuilder>,
    /// The process keeps the connection open behind the response.
    is_persistent: bool,
    /// The client has a piece of the response and has not asked for the next one.
    client_is_busy: bool,
    /// When what has come of a response of unknown length is flushed, if nothing else comes.
    flush_at: Option<Time>,
    /// The client has been told something: the request cannot be sent again.
    client_notified: bool,
}

impl PendingRequest {
    /// A request whose turn has come at `now`.
    pub(super) fn new(
        id: RequestId,
        reply_to: Recipient,
        queued: QueuedRequest,
        permit: SlotPermit,
        now: Time,
        timeout: Duration,
    ) -> Box<PendingRequest> {
        let QueuedRequest { request, ticket } = queued;
        Box::new(PendingRequest {
            id,
            reply_to,
            request,
            ticket,
            permit,
            deadline: now.after(timeout),
            timeout,
            refused_since: None,
            may_repeat: true,
            maybe_delivered: false,
            upload: UploadState::First(0),
            has_sent: false,
            piece: Vec::new(),
            piece_is_last: false,
            decoder: ResponseDecoder::default(),
            has_received: false,
            interims: 0,
            response: None,
            is_persistent: false,
            client_is_busy: false,
            flush_at: None,
            client_notified: false,
        })
    }

    /// Begins to send the request over an open connection, perhaps for the second time.
    pub(super) fn begin(&mut self, io: &mut Io<'_>, outbox: &mut Outbox) {
        self.upload = UploadState::First(0);
        self.decoder = ResponseDecoder::default();
        (self.has_sent, self.has_received, self.interims) = (false, false, 0);
        self.extend_deadline(io.now());
        self.send(io, outbox);
        self.set_deadline(io);
    }

    /// Whether all of the request is still there, and the client knows of nothing.
    pub(super) fn is_repeatable(&self) -> bool {
        self.response.is_none() && !self.client_notified
    }

    /// Whether the head of a response has come.
    pub(super) fn is_answered(&self) -> bool {
        self.response.is_some()
    }

    /// The error that the end of a connection means. `was_used`: the connection had been open before this request.
    pub(super) fn error_on_close(
        &self,
        kind: ErrorKind,
        was_used: bool,
        nothing_sent: bool,
    ) -> UpstreamError {
        if was_used && !self.has_received {
            UpstreamError::Stale { nothing_sent }
        } else {
            UpstreamError::Lost(kind)
        }
    }

    /// The client does not wait for the response any more.
    pub(super) fn abandon(self, io: &Io<'_>) -> AbandonedRequest {
        // If the client was using up the time, the process has all of its own.
        let until = if self.waits_for_client(io) { io.now().after(self.timeout) } else { self.deadline };
        self.into_abandoned(until)
    }

    /// The response did not come in time.
    pub(super) fn into_overdue(self, now: Time) -> AbandonedRequest {
        self.into_abandoned(now.after(OVERDUE_SLOT_MAX))
    }

    fn into_abandoned(self, until: Time) -> AbandonedRequest {
        let has_begun = self.is_answered();
        AbandonedRequest {
            has_begun,
            permit: self.permit,
            until,
            decoder: self.decoder,
            interims: self.interims,
        }
    }

    /// The event for the client of a request that has failed.
    pub(super) fn failure_event(&self, failure: UpstreamFailure) -> UpstreamEvent {
        let has_begun = self.response.as_ref().is_some_and(ResponseBuilder::has_begun);
        if has_begun { UpstreamEvent::Broken } else { UpstreamEvent::Failed(failure) }
    }

    /// The process has all its time again until it has to go on.
    fn extend_deadline(&mut self, now: Time) {
        self.deadline = now.after(self.timeout);
    }

    /// Whether the client uses up the time, and not the process.
    fn waits_for_client(&self, io: &Io<'_>) -> bool {
        self.upload == UploadState::BodyWanted && !self.is_answered() || io.is_paused()
    }

    /// Whether the process has used up its time. The engine reports no deadline while the process reads nothing.
    pub(super) fn is_late(&self, io: &Io<'_>) -> bool {
        !self.waits_for_client(io) && io.now() >= self.deadline
    }

    /// Sets the connection's deadline for whatever comes next.
    pub(super) fn set_deadline(&self, io: &mut Io<'_>) {
        let deadline = (!self.waits_for_client(io)).then_some(self.deadline);
        io.set_deadline(self.flush_at.into_iter().chain(deadline).min());
    }

    /// Sends what there is to send and room for; asks for more when that has gone.
    pub(super) fn send(&mut self, io: &mut Io<'_>, outbox: &mut Outbox) {
        let (parts, sent) = match &mut self.upload {
            UploadState::First(sent) => ([&self.request.head[..], &self.request.body], sent),
            UploadState::Piece(sent) => ([&self.piece[..], &[]], sent),
            UploadState::BodyWanted | UploadState::Complete | UploadState::CutShort => return,
        };
        // There is room for more only when what was sent before has gone.
        self.has_sent |= *sent > 0 && io.room() > 0;
        let [first, second] = parts;
        let rest = [&first[(*sent).min(first.len())..], &second[sent.saturating_sub(first.len())..]];
        for part in rest {
            let part = &part[..part.len().min(io.room())];
            if !part.is_empty() {
                // There is room for as much.
                let _ = io.send(part);
                *sent += part.len();
            }
        }
        let is_sent = *sent == first.len() + second.len();
        let is_complete = match self.upload {
            UploadState::First(_) => !self.request.has_more,
            _ => self.piece_is_last,
        };
        if !is_sent || !is_complete && io.room() < PIECE_SIZE_MAX {
            return io.call_again();
        }
        self.piece.clear();
        // The process's time begins when it has everything.
        self.extend_deadline(io.now());
        self.upload = if is_complete { UploadState::Complete } else { UploadState::BodyWanted };
        if !is_complete {
            self.client_notified = true;
            self.send_event(UpstreamEvent::BodyWanted, outbox);
        }
    }

    /// The client has sent the next piece of the body.
    pub(super) fn send_body(&mut self, body: Vec<u8>, is_last: bool, io: &mut Io<'_>, outbox: &mut Outbox) {
        if self.upload != UploadState::BodyWanted {
            return;
        }
        self.piece_is_last = is_last;
        self.piece = match self.request.length {
            BodyLength::Chunked => encode_chunks(&body, is_last),
            _ => body,
        };
        self.upload = UploadState::Piece(0);
        self.extend_deadline(io.now());
        self.send(io, outbox);
        self.set_deadline(io);
    }

    /// A send has failed. Returns whether there may still be a response, since a process that closes early may have
    /// answered early; if not, nothing of the request was taken. `nothing_sent` is about that send alone.
    pub(super) fn is_cut_short(&mut self, nothing_sent: bool) -> bool {
        let may_be_answered = !nothing_sent || self.has_sent || self.client_notified;
        self.upload = UploadState::CutShort;
        may_be_answered
    }

    /// Takes the head of the final response. An upload that is not complete by then is cut short.
    fn begin_response(&mut self, head: &ResponseHead<'_>, now: Time) -> Result<(), UpstreamError> {
        if head.status == 101 || nominates_too_many(head.headers()) {
            // No client asked for another protocol.
            return Err(UpstreamError::Lost(ErrorKind::InvalidData));
        }
        self.permit.mark_responsive();
        self.is_persistent = head.persistent;
        if self.upload != UploadState::Complete {
            self.upload = UploadState::CutShort;
        }
        let out = std::mem::take(&mut self.request.head);
        let UpstreamRequest { is_head, accepts_chunked, .. } = *self.request;
        self.response = Some(ResponseBuilder::new(head, is_head, accepts_chunked, out));
        self.extend_deadline(now);
        Ok(())
    }

    /// Takes what has come of the response and passes it on. Returns how many bytes are done with.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        io: &mut Io<'_>,
        outbox: &mut Outbox,
    ) -> Result<(usize, ResponseProgress), UpstreamError> {
        let answered = if self.request.is_head { AnsweredMethod::Head } else { AnsweredMethod::Other };
        let mut at = 0;
        self.has_received |= !bytes.is_empty();
        loop {
            let room =
                self.response.as_ref().map_or(usize::MAX, |response| PIECE_SIZE_MAX - response.body_len());
            if room == 0 && !self.flush(false, outbox) {
                // The client comes first.
                io.pause();
                self.set_deadline(io);
                return Ok((at, ResponseProgress::Continues));
            }
            let input = &bytes[at..];
            let input = &input[..input.len().min(if room == 0 { PIECE_SIZE_MAX } else { room })];
            let step = self.decoder.decode(&LIMITS, answered, input)?;
            at += step.consumed;
            match step.event {
                ResponseEvent::Head(head) => self.begin_response(&head, io.now())?,
                ResponseEvent::Interim(_) => {
                    self.interims += 1;
                    if self.interims > INTERIM_MAX {
                        return Err(UpstreamError::Lost(ErrorKind::InvalidData));
                    }
                    continue;
                }
                ResponseEvent::Body(piece) => match &mut self.response {
                    Some(response) => response.push(piece),
                    None => return Err(UpstreamError::Lost(ErrorKind::InvalidData)),
                },
                ResponseEvent::End => {}
                ResponseEvent::NeedMore => break,
            }
            if !self.decoder.in_body() {
                self.flush(true, outbox);
                // Bytes behind a response belong to none.
                let is_reusable =
                    self.is_persistent && at == bytes.len() && self.upload == UploadState::Complete;
                return Ok((at, ResponseProgress::Done { is_reusable }));
            }
        }
        if self.is_answered() && !bytes.is_empty() {
            self.permit.mark_responsive();
            self.extend_deadline(io.now());
        }
        self.schedule_flush(io.now());
        self.set_deadline(io);
        Ok((at, ResponseProgress::Continues))
    }

    /// The process has closed the connection.
    pub(super) fn receive_end(&mut self, was_used: bool, outbox: &mut Outbox) -> Result<(), UpstreamError> {
        if !self.is_answered() {
            return Err(self.error_on_close(ErrorKind::UnexpectedEof, was_used, false));
        }
        self.decoder.finish()?;
        self.flush(true, outbox);
        Ok(())
    }

    /// The client can take the next piece of the response.
    pub(super) fn resume(&mut self, io: &mut Io<'_>, outbox: &mut Outbox) {
        self.client_is_busy = false;
        self.extend_deadline(io.now());
        if self.response.as_ref().is_some_and(|response| response.body_len() >= PIECE_SIZE_MAX) {
            self.flush(false, outbox);
        }
        self.schedule_flush(io.now());
        io.resume();
        self.set_deadline(io);
    }

    /// The connection's deadline has come: either what has come is flushed, or the process is late.
    pub(super) fn deadline_reached(
        &mut self,
        io: &mut Io<'_>,
        outbox: &mut Outbox,
    ) -> Result<(), UpstreamError> {
        if self.flush_at.is_some_and(|at| io.now() >= at) {
            self.flush(false, outbox);
        } else if self.is_late(io) {
            return Err(UpstreamError::TimedOut);
        }
        self.set_deadline(io);
        Ok(())
    }

    /// A response of unknown length is not held back for long: its next part may never come.
    fn schedule_flush(&mut self, now: Time) {
        let Some(response) = &self.response else { return };
        let has_news = !response.has_length() && (response.body_len() > 0 || !response.has_begun());
        self.flush_at = match self.flush_at {
            _ if !has_news || self.client_is_busy => None,
            Some(at) => Some(at),
            None => Some(now.after(FLUSH_DELAY)),
        };
    }

    /// Gives the client what has come of the response. False: the client is busy with the piece before.
    fn flush(&mut self, is_last: bool, outbox: &mut Outbox) -> bool {
        let Some(response) = &mut self.response else { return false };
        if self.client_is_busy && !is_last {
            return false;
        }
        let event = response.take_piece(is_last);
        (self.client_is_busy, self.flush_at) = (true, None);
        self.client_notified = true;
        self.send_event(event, outbox);
        true
    }

    fn send_event(&self, event: UpstreamEvent, outbox: &mut Outbox) {
        outbox.send_event(self.reply_to, self.id, event);
    }
}

/// A request that the process may still work on although no client waits for its response. It keeps its slot until the
/// process sends or closes something: the next request would wait inside a process that does one thing at a time.
pub(super) struct AbandonedRequest {
    pub(super) permit: SlotPermit,
    /// The response had begun: the process lives.
    has_begun: bool,
    /// Until when it keeps its slot, or until when the process has its time for it.
    until: Time,
    /// Tells an interim response from one that shows that the process has finished.
    decoder: ResponseDecoder,
    interims: u32,
}

impl AbandonedRequest {
    /// When [`deadline_reached`](Self::deadline_reached) is to be called.
    pub(super) fn until(&self) -> Time {
        self.until
    }

    /// Takes what has come. `None`: the process has finished with the request, or broken the protocol.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while !self.has_begun {
            // What follows a head does not matter.
            let step = self.decoder.decode(&LIMITS, AnsweredMethod::Other, &bytes[at..]).ok()?;
            at += step.consumed;
            match step.event {
                ResponseEvent::Interim(_) if self.interims < INTERIM_MAX => self.interims += 1,
                ResponseEvent::NeedMore => return Some(at),
                _ => return None,
            }
        }
        None
    }

    /// Its time is over. `None`: its slot is free, or the process is condemned.
    pub(super) fn deadline_reached(self, now: Time) -> Option<AbandonedRequest> {
        let AbandonedRequest { mut permit, has_begun, .. } = self;
        let is_over = has_begun || permit.is_overdue() || permit.mark_overdue(now);
        (!is_over).then(|| AbandonedRequest { permit, until: now.after(OVERDUE_SLOT_MAX), ..self })
    }
}

/// A piece of a body as a chunk (RFC 9112 §7.1), and the last one behind it.
fn encode_chunks(body: &[u8], is_last: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 32);
    if !body.is_empty() {
        out.extend_from_slice(format!("{:x}\r\n", body.len()).as_bytes());
        out.extend_from_slice(body);
        out.extend_from_slice(b"\r\n");
    }
    if is_last {
        out.extend_from_slice(b"0\r\n\r\n");
    }
    out
}
