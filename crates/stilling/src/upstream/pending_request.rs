//! A request that has a slot of a process: the progress of its upload and of its response. `connection.rs` drives it,
//! and `pool.rs` handles its failure.

use std::fmt;
use std::io::ErrorKind;
use std::time::Duration;

use stilling_engine::{Io, Recipient};
use stilling_ring::Time;
use stilling_wire::frames::FrameError;
use stilling_wire::http1::{
    AnsweredMethod, BodyLength, HttpDecodeError, HttpFault, ResponseEvent, ResponseHead,
};
use stilling_workers::processes::{AdmissionTicket, SlotPermit};

use super::codec::{AppProtocol, ResponseCodec};
use super::hop_by_hop::has_too_many_connection_options;
use super::limits::{FLUSH_DELAY, INTERIM_MAX, OVERDUE_SLOT_MAX, PIECE_SIZE_MAX};
use super::message::{UpstreamEvent, UpstreamFailure};
use super::outbox::Outbox;
use super::request::UpstreamRequest;
use super::request_table::RequestId;
use super::response::ResponseBuilder;
use super::session_state::PoolSessions;

/// Why a request failed.
#[derive(Debug)]
pub(super) enum UpstreamError {
    ConnectFailed(ErrorKind),
    /// An idle connection was dead before anything of a response was received.
    Stale {
        nothing_sent: bool,
    },
    TimedOut,
    Lost(ErrorKind),
    /// The process's bytes are not HTTP, or exceed the limits.
    Invalid(HttpDecodeError),
    /// The process's bytes are no frame, or exceed the limits.
    InvalidFrame(FrameError),
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpstreamError::ConnectFailed(kind) => write!(f, "no connection: {kind}"),
            UpstreamError::Stale { .. } => f.write_str("a reused connection was closed without a response"),
            UpstreamError::TimedOut => f.write_str("no answer in time"),
            UpstreamError::Lost(kind) => write!(f, "no answer: {kind}"),
            UpstreamError::Invalid(error) => write!(f, "the response is not HTTP: {error}"),
            UpstreamError::InvalidFrame(error) => write!(f, "the response is no valid frame: {error}"),
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

impl From<FrameError> for UpstreamError {
    fn from(error: FrameError) -> UpstreamError {
        match error {
            FrameError::Truncated => UpstreamError::Lost(ErrorKind::UnexpectedEof),
            error => UpstreamError::InvalidFrame(error),
        }
    }
}

/// How much of the request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UploadState {
    /// This many bytes of the head and the first part of the body.
    First(usize),
    /// All earlier bytes, and this many of the current piece of the body.
    Piece(usize),
    /// All bytes received from the client so far; more were requested.
    BodyWanted,
    /// All of it.
    Complete,
    /// The process responded before it had received everything, or no longer reads.
    CutShort,
}

/// Whether a response continues after some bytes were received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseProgress {
    /// More is to come.
    Continues,
    /// The response is complete.
    Done { is_reusable: bool },
}

pub(super) struct QueuedRequest {
    pub(super) request: Box<UpstreamRequest>,
    pub(super) ticket: AdmissionTicket,
}

/// A request that has a slot of a process.
pub(super) struct PendingRequest {
    pub(super) id: RequestId,
    pub(super) reply_to: Recipient,
    pub(super) request: Box<UpstreamRequest>,
    /// Its position in the queue, in case it is requeued.
    pub(super) ticket: AdmissionTicket,
    pub(super) permit: SlotPermit,
    /// When the process's timeout for the current step ends.
    pub(super) deadline: Time,
    /// How long the process may take for each step.
    timeout: Duration,
    /// The generation of the process that refuses connections, and since when.
    pub(super) refused_since: Option<(u64, Time)>,
    /// It has not been sent a second time yet.
    pub(super) may_repeat: bool,
    /// A process may have received some of it before it died.
    pub(super) maybe_delivered: bool,
    upload: UploadState,
    /// Part of it was sent: an error of a later send does not mean that the process received nothing.
    has_sent: bool,
    /// The piece of the body that is being sent, framed.
    piece: Vec<u8>,
    piece_is_last: bool,
    decoder: ResponseCodec,
    has_received: bool,
    interims: u32,
    /// The response, once its head was received.
    response: Option<ResponseBuilder>,
    is_persistent: bool,
    /// The client has not requested another piece of the response.
    client_is_busy: bool,
    /// When the buffered part of a response of unknown length is flushed, if nothing else arrives.
    flush_at: Option<Time>,
    /// The client has received an event: the request cannot be sent again.
    client_notified: bool,
    /// The client has left, and the response is discarded.
    is_abandoned: bool,
}

impl PendingRequest {
    /// A request that was given a slot at `now`.
    pub(super) fn new(
        id: RequestId,
        reply_to: Recipient,
        queued: QueuedRequest,
        permit: SlotPermit,
        now: Time,
        timeout: Duration,
    ) -> Box<PendingRequest> {
        let QueuedRequest { request, ticket } = queued;
        let decoder = ResponseCodec::new(request.number);
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
            decoder,
            has_received: false,
            interims: 0,
            response: None,
            is_persistent: false,
            client_is_busy: false,
            flush_at: None,
            client_notified: false,
            is_abandoned: false,
        })
    }

    /// Begins to send the request over an open connection, possibly for the second time.
    pub(super) fn begin(&mut self, io: &mut Io<'_>, outbox: &mut Outbox) {
        self.upload = UploadState::First(0);
        self.decoder = ResponseCodec::new(self.request.number);
        (self.has_sent, self.has_received, self.interims) = (false, false, 0);
        self.extend_deadline(io.now());
        self.send(io, outbox);
        self.set_deadline(io);
    }

    /// Whether the request can be sent again: it is still complete, and the client has received no event.
    pub(super) fn is_repeatable(&self) -> bool {
        self.response.is_none() && !self.client_notified
    }

    pub(super) fn is_answered(&self) -> bool {
        self.response.is_some()
    }

    pub(super) fn protocol(&self) -> AppProtocol {
        self.decoder.protocol()
    }

    /// Discards the response from now on, because the client has left. The request is still sent whole and the response
    /// received whole: the process can then be used for the next request.
    pub(super) fn discard_response(&mut self, io: &mut Io<'_>) {
        if self.waits_for_client(io) {
            self.extend_deadline(io.now());
        }
        (self.is_abandoned, self.client_is_busy, self.flush_at) = (true, false, None);
        io.resume();
        self.set_deadline(io);
    }

    /// The error of a request whose connection has ended. `was_used`: the connection had been open before the request.
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

    pub(super) fn abandon(self, io: &Io<'_>) -> AbandonedRequest {
        // If the request was waiting for the client, the process gets its full timeout.
        let until = if self.waits_for_client(io) { io.now().after(self.timeout) } else { self.deadline };
        self.into_abandoned(until)
    }

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
        if has_begun { UpstreamEvent::Aborted } else { UpstreamEvent::Failed(failure) }
    }

    /// Restarts the process's timeout for the next step.
    fn extend_deadline(&mut self, now: Time) {
        self.deadline = now.after(self.timeout);
    }

    /// Whether the request waits for the client, not for the process.
    fn waits_for_client(&self, io: &Io<'_>) -> bool {
        self.upload == UploadState::BodyWanted && !self.is_answered() || io.is_paused()
    }

    /// Whether the process's timeout has passed. The engine reports no deadline while the output is blocked.
    pub(super) fn is_late(&self, io: &Io<'_>) -> bool {
        !self.waits_for_client(io) && io.now() >= self.deadline
    }

    pub(super) fn set_deadline(&self, io: &mut Io<'_>) {
        let deadline = (!self.waits_for_client(io)).then_some(self.deadline);
        io.set_deadline(self.flush_at.into_iter().chain(deadline).min());
    }

    /// Sends as much as there is room for, and requests more of the body when everything was sent.
    pub(super) fn send(&mut self, io: &mut Io<'_>, outbox: &mut Outbox) {
        let (parts, sent) = match &mut self.upload {
            UploadState::First(sent) => ([&self.request.head[..], &self.request.body], sent),
            UploadState::Piece(sent) => ([&self.piece[..], &[]], sent),
            UploadState::BodyWanted | UploadState::Complete | UploadState::CutShort => return,
        };
        // There is room for more only after the earlier bytes were sent.
        self.has_sent |= *sent > 0 && io.room() > 0;
        let [first, second] = parts;
        let rest = [&first[(*sent).min(first.len())..], &second[sent.saturating_sub(first.len())..]];
        for part in rest {
            let part = &part[..part.len().min(io.room())];
            if !part.is_empty() {
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
        // The process's timeout begins when everything was sent.
        self.extend_deadline(io.now());
        self.upload = if is_complete { UploadState::Complete } else { UploadState::BodyWanted };
        if !is_complete {
            self.client_notified = true;
            self.send_event(UpstreamEvent::BodyWanted, outbox);
        }
    }

    /// Sends the client's next piece of the body.
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

    /// Handles a failed send. Returns whether a response may still arrive, because the process may have answered before
    /// it stopped reading; if not, none of the request was sent. `nothing_sent` refers to this send alone.
    pub(super) fn is_cut_short(&mut self, nothing_sent: bool) -> bool {
        let may_be_answered = !nothing_sent || self.has_sent || self.client_notified;
        self.upload = UploadState::CutShort;
        may_be_answered
    }

    /// Handles the head of the final response. An incomplete upload is cut short.
    fn begin_response(
        &mut self,
        head: &ResponseHead<'_>,
        sessions: Option<&mut PoolSessions>,
        now: Time,
    ) -> Result<(), UpstreamError> {
        if head.status == 101 || has_too_many_connection_options(head.headers()) {
            // No client requested another protocol.
            return Err(UpstreamError::Lost(ErrorKind::InvalidData));
        }
        self.permit.mark_responsive();
        self.is_persistent = head.persistent;
        if self.upload != UploadState::Complete {
            self.upload = UploadState::CutShort;
        }
        let out = std::mem::take(&mut self.request.head);
        let UpstreamRequest { is_head, accepts_chunked, .. } = *self.request;
        let session_field = sessions.and_then(|sessions| sessions.store(&self.request.session, head, now));
        let fields = session_field.as_deref().unwrap_or_default();
        self.response = Some(ResponseBuilder::new(head, fields, is_head, accepts_chunked, out));
        self.extend_deadline(now);
        Ok(())
    }

    /// Decodes received bytes of the response and passes it on. Returns how many bytes are consumed.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        io: &mut Io<'_>,
        outbox: &mut Outbox,
        mut sessions: Option<&mut PoolSessions>,
    ) -> Result<(usize, ResponseProgress), UpstreamError> {
        let answered = if self.request.is_head { AnsweredMethod::Head } else { AnsweredMethod::Other };
        let mut at = 0;
        self.has_received |= !bytes.is_empty();
        loop {
            let room =
                self.response.as_ref().map_or(usize::MAX, |response| PIECE_SIZE_MAX - response.body_len());
            if room == 0 && !self.flush(false, outbox) {
                // The client must request the next piece first.
                io.pause();
                self.set_deadline(io);
                return Ok((at, ResponseProgress::Continues));
            }
            let input = &bytes[at..];
            let input = &input[..input.len().min(if room == 0 { PIECE_SIZE_MAX } else { room })];
            let step = self.decoder.decode(answered, input)?;
            at += step.consumed;
            match step.event {
                ResponseEvent::Head(head) => {
                    self.begin_response(&head, sessions.as_deref_mut(), io.now())?;
                }
                ResponseEvent::Interim(_) => {
                    self.interims += 1;
                    if self.interims > INTERIM_MAX {
                        return Err(UpstreamError::Lost(ErrorKind::InvalidData));
                    }
                    continue;
                }
                // Only a frame that answers HEAD.
                ResponseEvent::Body(_) if self.request.is_head => {}
                ResponseEvent::Body(piece) => match &mut self.response {
                    Some(response) => response.push(piece),
                    None => return Err(UpstreamError::Lost(ErrorKind::InvalidData)),
                },
                ResponseEvent::End => {}
                ResponseEvent::NeedMore => break,
            }
            if !self.decoder.in_body() {
                self.flush(true, outbox);
                // Bytes after a response belong to no request.
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

    /// Handles that the process has closed the connection.
    pub(super) fn receive_end(&mut self, was_used: bool, outbox: &mut Outbox) -> Result<(), UpstreamError> {
        if !self.is_answered() {
            return Err(self.error_on_close(ErrorKind::UnexpectedEof, was_used, false));
        }
        self.decoder.finish()?;
        self.flush(true, outbox);
        Ok(())
    }

    /// Continues after the client has requested the next piece of the response.
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

    /// Handles the connection's deadline: flushes buffered bytes, or fails if the process is late.
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

    /// Schedules the flush of a response of unknown length, since its next part may arrive late.
    fn schedule_flush(&mut self, now: Time) {
        let Some(response) = &self.response else { return };
        let has_unflushed = !response.has_length() && (response.body_len() > 0 || !response.has_begun());
        self.flush_at = match self.flush_at {
            _ if !has_unflushed || self.client_is_busy => None,
            Some(at) => Some(at),
            None => Some(now.after(FLUSH_DELAY)),
        };
    }

    /// Sends the buffered part of the response to the client. False: the client has not requested it.
    fn flush(&mut self, is_last: bool, outbox: &mut Outbox) -> bool {
        let Some(response) = &mut self.response else { return false };
        if self.client_is_busy && !is_last {
            return false;
        }
        let event = response.take_piece(is_last);
        (self.client_is_busy, self.flush_at) = (!self.is_abandoned, None);
        self.client_notified = true;
        self.send_event(event, outbox);
        true
    }

    fn send_event(&self, event: UpstreamEvent, outbox: &mut Outbox) {
        if !self.is_abandoned {
            outbox.send_event(self.reply_to, self.id, event);
        }
    }
}

/// A request that the process may still work on although its client has left or was answered 504. It keeps its slot
/// until the process sends a response or closes the connection: otherwise the next request would wait inside a
/// single-threaded process.
pub(super) struct AbandonedRequest {
    pub(super) permit: SlotPermit,
    /// The response had begun, so the process makes progress.
    has_begun: bool,
    /// The process's deadline, or the end of the time for which an overdue request keeps its slot.
    until: Time,
    /// Distinguishes interim responses from the final one, after which the process has finished.
    decoder: ResponseCodec,
    interims: u32,
}

impl AbandonedRequest {
    /// When [`deadline_reached`](Self::deadline_reached) must be called.
    pub(super) fn until(&self) -> Time {
        self.until
    }

    /// Decodes received bytes. `None`: the process has finished with the request, or violated the protocol.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while !self.has_begun {
            // The bytes after a head do not matter.
            let step = self.decoder.decode(AnsweredMethod::Other, &bytes[at..]).ok()?;
            at += step.consumed;
            match step.event {
                ResponseEvent::Interim(_) if self.interims < INTERIM_MAX => self.interims += 1,
                ResponseEvent::NeedMore => return Some(at),
                _ => return None,
            }
        }
        None
    }

    /// Handles the deadline. `None`: the slot is free, or the process is to be killed.
    pub(super) fn deadline_reached(self, now: Time) -> Option<AbandonedRequest> {
        let AbandonedRequest { mut permit, has_begun, .. } = self;
        let is_over = has_begun || permit.is_overdue() || permit.mark_overdue(now);
        (!is_over).then(|| AbandonedRequest { permit, until: now.after(OVERDUE_SLOT_MAX), ..self })
    }
}

/// A piece of a body as a chunk (RFC 9112 §7.1), followed by the last chunk if `is_last`.
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
