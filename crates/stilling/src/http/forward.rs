//! The session's side of a request that a worker process answers; the other side is `crate::upstream`.
//!
//! ```text
//!   head, body ─► UpstreamRequest ─► pool ─► UpstreamEvent::Response … Piece … last ─► client
//!                                    │ ▲
//!            UpstreamEvent::BodyWanted▼ │ ClientMessage::Body    (bodies longer than the first buffer)
//! ```
//!
//! The session buffers the body before it requests a slot, so a slow upload holds none. It requests more of the
//! response before the client has received the last piece, so a slow reader holds none. Both buffers are bounded
//! (`upstream::limits`). The rest of a longer body is received one piece at a time, as the process reads it, and the
//! rest of a longer response is requested one piece at a time, as the client reads it. Both hold the slot, so the
//! client must keep to `SLOT_RATE_MIN` meanwhile.

use std::time::Duration;

use stilling_engine::{CloseReason, Io};
use stilling_wire::http1::{RequestHead, Status};

use super::active_request::ActiveRequest;
use super::forwarded_request::ForwardedRequest;
use super::response_writer::{self, ResponseTerms};
use super::session::{HttpSession, HttpWait};
use super::shard::{HttpContext, Timeouts};
use crate::memory::MemoryReservation;
use crate::upstream::limits::{
    CLIENT_CHECK_INTERVAL, MEMORY_RESERVE_DIVISOR, PIECE_SIZE_MAX, RESPONSE_HELD_MAX, SLOT_RATE_MIN,
};
use crate::upstream::session_state::RequestSession;
use crate::upstream::{
    BodyFraming, ClientMessage, PoolIndex, RequestId, ResponsePiece, UpstreamEvent, UpstreamFailure,
    UpstreamHandle, UpstreamRequest, UpstreamResponse,
};

impl HttpSession {
    /// Submits a request without a body.
    pub(super) fn forward(
        &mut self,
        pool: PoolIndex,
        head: &RequestHead<'_>,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) {
        let mut request = self.upstream_request(pool, head, cx);
        match request.hold_head(cx.http.config.requests_held_max) {
            true => self.submit_forward(request, io, cx),
            false => self.shed(io, cx),
        }
    }

    /// Begins to buffer a request with a body. Without memory for it, answers 503 and returns false.
    pub(super) fn begin_forward(
        &mut self,
        pool: PoolIndex,
        head: &RequestHead<'_>,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) -> bool {
        let mut request = self.upstream_request(pool, head, cx);
        let has_room = request.hold_head(cx.http.config.requests_held_max);
        match has_room {
            true => {
                self.active_request = ActiveRequest::Forwarded(ForwardedRequest::new(Some(request), None));
            }
            false => self.shed(io, cx),
        }
        has_room
    }

    fn upstream_request(
        &self,
        pool: PoolIndex,
        head: &RequestHead<'_>,
        cx: &mut HttpContext<'_>,
    ) -> Box<UpstreamRequest> {
        let reservation = cx.http.counters.reserve_for_request();
        let peer = self.peer_address();
        let mut request = UpstreamRequest::new(pool, head, peer, cx.http.take_buffer(), reservation);
        if let Some(cookie) = cx.upstream.as_mut().and_then(|upstream| upstream.session_cookie(pool)) {
            request.set_session(RequestSession::of_cookies(head.headers(), &cookie, peer));
        }
        request
    }

    pub(super) fn forward_body(&mut self, piece: &[u8], io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let ActiveRequest::Forwarded(forwarded) = &mut self.active_request else { return };
        match &mut forwarded.request {
            Some(request) => {
                let max = cx.http.config.requests_held_max;
                if !request.push(piece, max) {
                    self.shed(io, cx);
                } else if !request.may_grow(max) {
                    let needs_whole_body =
                        |upstream: &mut UpstreamHandle<'_>| upstream.needs_whole_body(request);
                    match cx.upstream.as_mut().is_some_and(needs_whole_body) {
                        true if request.is_full() => self.refuse_forward(Status::ContentTooLarge, io, cx),
                        true => self.shed(io, cx),
                        false => self.submit_buffered(io, cx),
                    }
                }
            }
            None => {
                forwarded.body.extend_from_slice(piece);
                if forwarded.body.len() >= PIECE_SIZE_MAX {
                    self.send_forward_body(false, io, cx);
                }
            }
        }
    }

    pub(super) fn complete_forward_body(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let ActiveRequest::Forwarded(forwarded) = &mut self.active_request else { return };
        match &mut forwarded.request {
            Some(request) => {
                request.end_body();
                self.submit_buffered(io, cx);
            }
            None => self.send_forward_body(true, io, cx),
        }
    }

    /// Passes on the received part of the body, after all input has been decoded.
    pub(super) fn forward_received_body(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        if let ActiveRequest::Forwarded(forwarded) = &self.active_request
            && forwarded.is_body_wanted
            && !forwarded.body.is_empty()
        {
            self.send_forward_body(false, io, cx);
        }
    }

    fn submit_buffered(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let ActiveRequest::Forwarded(forwarded) = &mut self.active_request else { return };
        // The minimum rate of slots counts time and bytes from here on.
        (forwarded.client_wait, self.body_received) = (Duration::ZERO, 0);
        if let Some(request) = forwarded.request.take() {
            self.submit_forward(request, io, cx);
        }
    }

    fn submit_forward(&mut self, request: Box<UpstreamRequest>, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        cx.http.counters.jobs.add(1);
        let (reply_to, now) = (io.token().into(), io.now());
        let submitted = cx.upstream.as_mut().map(|upstream| upstream.submit(reply_to, request, now));
        let Some(Ok(id)) = submitted else {
            cx.http.counters.jobs_refused.add(1);
            return self.refuse_forward(Status::ServiceUnavailable, io, cx);
        };
        self.since = now;
        if let Some(peer) = &mut self.peer {
            peer.upstream_client = Some(io.token());
        }
        match &mut self.active_request {
            ActiveRequest::Forwarded(forwarded) => forwarded.id = Some(id),
            active_request => *active_request = ActiveRequest::Submitted(id),
        }
        io.pause();
        self.wait_for_upstream(HttpWait::Upstream, io, cx);
    }

    fn wait_for_upstream(&mut self, waiting_for: HttpWait, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        self.waiting_for = waiting_for;
        let next_check = io.now().after(CLIENT_CHECK_INTERVAL);
        let queue_deadline = self.since.after(cx.http.config.queue_age_max);
        let is_queued = waiting_for == HttpWait::Upstream && queue_deadline > io.now();
        io.set_deadline(Some(if is_queued { next_check.min(queue_deadline) } else { next_check }));
    }

    /// The id of the current request, while a process may have it.
    pub(super) fn request_id(&self) -> Option<RequestId> {
        match &self.active_request {
            ActiveRequest::Submitted(id) => Some(*id),
            ActiveRequest::Forwarded(forwarded) => forwarded.id,
            _ => None,
        }
    }

    /// Checks that the client is still connected, and answers 503 if the request has waited too long in the queue.
    /// Once a process has it, the connection to the process applies the timeout.
    pub(super) fn check_forward(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let queue_deadline = self.since.after(cx.http.config.queue_age_max);
        if self.waiting_for == HttpWait::Upstream
            && io.now() >= queue_deadline
            && let Some((id, upstream)) = self.request_id().zip(cx.upstream.as_mut())
            && upstream.is_queued(id)
        {
            upstream.abandon(id, true);
            cx.http.counters.jobs_expired.add(1);
            return self.refuse_forward(Status::ServiceUnavailable, io, cx);
        }
        if let Some((id, upstream)) = self.request_id().zip(cx.upstream.as_mut()) {
            upstream.check_timeout(id);
        }
        io.check_peer();
        self.wait_for_upstream(self.waiting_for, io, cx);
    }

    /// Answers in place of a process.
    fn refuse_forward(&mut self, status: Status, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let is_cut_short = self.decoder.in_body();
        self.terms.persistent &= !is_cut_short;
        let persistent = response_writer::send_status(&self.terms, status, io, cx);
        self.finish_forward(persistent, is_cut_short, io, cx);
    }

    /// Ends the exchange after the last byte of the response was sent or queued.
    fn finish_forward(
        &mut self,
        persistent: bool,
        is_cut_short: bool,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) {
        self.active_request = ActiveRequest::Idle;
        if is_cut_short {
            // The client may still be sending a body that no process reads.
            io.resume();
            return io.finish_lingering(CloseReason::Done);
        }
        self.finish_response(persistent, io, cx);
        io.resume();
    }

    pub(super) fn handle_upstream_event(
        &mut self,
        event: UpstreamEvent,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) {
        match event {
            UpstreamEvent::Response(response) => self.begin_response(response, io, cx),
            UpstreamEvent::Piece(piece) => self.send_piece(piece, io, cx),
            UpstreamEvent::BodyWanted => self.resume_body(io, cx),
            UpstreamEvent::Expired => {
                cx.http.counters.jobs_expired.add(1);
                self.refuse_forward(Status::ServiceUnavailable, io, cx);
            }
            UpstreamEvent::Refused => {
                cx.http.counters.jobs_refused.add(1);
                self.refuse_forward(Status::ServiceUnavailable, io, cx);
            }
            UpstreamEvent::Failed(failure) => {
                let status = match failure {
                    UpstreamFailure::Unavailable => Status::ServiceUnavailable,
                    UpstreamFailure::BadGateway => Status::BadGateway,
                    UpstreamFailure::Timeout => Status::GatewayTimeout,
                };
                self.refuse_forward(status, io, cx);
            }
            UpstreamEvent::Aborted => io.abort(CloseReason::ResponseAborted),
        }
    }

    /// Resumes reading the body: the process is ready for more.
    fn resume_body(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let ActiveRequest::Forwarded(forwarded) = &mut self.active_request else { return };
        forwarded.is_body_wanted = true;
        // The time since the last piece does not count for the client: its wait continues where it stopped.
        self.waiting_for = HttpWait::Body;
        self.since = io.now().before(forwarded.client_wait);
        self.set_read_deadline(io, cx);
        io.resume();
    }

    fn send_forward_body(&mut self, is_last: bool, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let ActiveRequest::Forwarded(forwarded) = &mut self.active_request else { return };
        forwarded.is_body_wanted = false;
        forwarded.client_wait = io.now().since(self.since);
        let bytes = std::mem::take(&mut forwarded.body);
        self.send_upstream(ClientMessage::Body { bytes, is_last }, cx);
        io.pause();
        self.wait_for_upstream(HttpWait::UpstreamProgress, io, cx);
    }

    /// The minimum rate in bytes per second; at least `SLOT_RATE_MIN` while the request may hold a slot.
    pub(super) fn body_rate_min(&self, timeouts: &Timeouts) -> u64 {
        match &self.active_request {
            ActiveRequest::Forwarded(forwarded) if forwarded.id.is_some() => {
                timeouts.body_rate_min.max(SLOT_RATE_MIN)
            }
            _ => timeouts.body_rate_min.max(1),
        }
    }

    /// Sends the complete response, or its beginning.
    fn begin_response(&mut self, response: UpstreamResponse, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let UpstreamResponse { status, has_date, framing, head_len, piece } = response;
        // There is room for a head; a short body is sent with it.
        let fits = piece.bytes.len() + FRAMING_SIZE_MAX <= io.spare_room();
        let mut reservation = None;
        if !(fits && piece.is_last) {
            let next_piece_size = if piece.is_last { 0 } else { PIECE_SIZE_MAX };
            let (cost, max) = (piece.bytes.len() + next_piece_size, cx.http.config.responses_held_max);
            reservation = cx.http.counters.reserve_for_response(cost, max);
            if reservation.is_none() {
                cx.http.counters.responses_shed.add(1);
                self.discard_request(cx);
                return self.refuse_forward(Status::ServiceUnavailable, io, cx);
            }
        }
        cx.http.counters.count_app_response(status);
        let is_cut_short = self.decoder.in_body();
        let persistent =
            self.terms.persistent && framing != BodyFraming::Close && !is_cut_short && !cx.http.is_draining();
        self.terms.persistent = persistent;
        let date = cx.http.date(io.now());
        let terms = &self.terms;
        let body = &piece.bytes[piece.start..];
        let sent = io.send_with(|out| {
            out.extend_from_slice(&piece.bytes[..head_len]);
            end_head(out, (!has_date).then(|| &date.as_bytes()[..]), terms, framing);
            if fits {
                out.extend_from_slice(body);
            }
        });
        if sent.is_err() {
            // The engine closes the connection: the head did not fit.
            return;
        }
        if fits && piece.is_last {
            cx.http.recycle_buffer(piece.bytes);
            return self.finish_forward(persistent, is_cut_short, io, cx);
        }
        let start = if fits { piece.bytes.len() } else { piece.start };
        self.forwarded_mut().reservation = reservation;
        self.queue_piece(ResponsePiece { start, ..piece }, io, cx);
    }

    fn forwarded_mut(&mut self) -> &mut ForwardedRequest {
        if !matches!(self.active_request, ActiveRequest::Forwarded(_)) {
            self.active_request = ActiveRequest::Forwarded(ForwardedRequest::new(None, self.request_id()));
        }
        match &mut self.active_request {
            ActiveRequest::Forwarded(forwarded) => forwarded,
            _ => unreachable!("it was just set"),
        }
    }

    fn send_piece(&mut self, piece: ResponsePiece, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        if let Some(reservation) = &mut self.forwarded_mut().reservation {
            reservation.add(piece.bytes.len());
            if piece.is_last {
                reservation.release(PIECE_SIZE_MAX);
            }
        }
        self.queue_piece(piece, io, cx);
    }

    fn queue_piece(&mut self, piece: ResponsePiece, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let forwarded = self.forwarded_mut();
        forwarded.next_piece_due = !piece.is_last;
        if piece.is_last {
            // The response is complete, and the slot is free.
            forwarded.id = None;
        }
        forwarded.pieces.push_back(piece);
        if forwarded.pieces.len() == 1 {
            self.resume_forwarded_response(io, cx);
        } else {
            self.request_next_piece(cx);
        }
    }

    /// Requests the next piece of the response, if no piece is unsent or more may be held.
    fn request_next_piece(&mut self, cx: &mut HttpContext<'_>) {
        let max = cx.http.config.responses_held_max / MEMORY_RESERVE_DIVISOR;
        let ActiveRequest::Forwarded(forwarded) = &mut self.active_request else { return };
        let may_grow = |reservation: &MemoryReservation| {
            reservation.bytes() < RESPONSE_HELD_MAX as u64 && reservation.has_room(PIECE_SIZE_MAX, max)
        };
        let has_room = forwarded.pieces.is_empty() || forwarded.reservation.as_ref().is_some_and(may_grow);
        if has_room && std::mem::take(&mut forwarded.next_piece_due) {
            self.send_upstream(ClientMessage::PieceWanted, cx);
        }
    }

    fn send_upstream(&self, message: ClientMessage, cx: &mut HttpContext<'_>) {
        if let Some((id, upstream)) = self.request_id().zip(cx.upstream.as_mut()) {
            upstream.send(id, message);
        }
    }

    pub(super) fn forward_bytes_sent(&mut self, count: usize, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        if let ActiveRequest::Forwarded(forwarded) = &mut self.active_request
            && let Some(piece) = forwarded.pieces.front_mut()
        {
            piece.start += count;
            forwarded.sent_bytes += count as u64;
            forwarded.send_duration += io.now().since(forwarded.offered_at);
            // As for bodies: the minimum rate bounds how long a slow reader holds its slot.
            let (sent_bytes, send_duration) = (forwarded.sent_bytes, forwarded.send_duration);
            let timeouts = &cx.http.config.timeouts;
            let earned = Duration::from_secs(sent_bytes / self.body_rate_min(timeouts));
            if send_duration > timeouts.body_grace + earned {
                return io.abort(CloseReason::WriteTimeout);
            }
            self.resume_forwarded_response(io, cx);
        }
    }

    /// Continues a response: sends its pieces, or offers the first one that does not fit to the engine.
    pub(super) fn resume_forwarded_response(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        loop {
            let ActiveRequest::Forwarded(forwarded) = &mut self.active_request else { return };
            let Some(piece) = forwarded.pieces.front_mut() else { break };
            let rest = &piece.bytes[piece.start..];
            if rest.len() > io.spare_room() {
                // The bytes stay here until the client takes them: the shard's output store is not for long
                // responses.
                io.offer(rest);
                forwarded.offered_at = io.now();
                self.waiting_for = HttpWait::SendRoom;
                // The engine applies the write timeout to offered bytes.
                io.set_deadline(None);
                return self.request_next_piece(cx);
            }
            if !rest.is_empty() {
                let _ = io.send(rest);
            }
            let Some(piece) = forwarded.pieces.pop_front() else { return };
            if let Some(reservation) = &mut forwarded.reservation {
                reservation.release(piece.bytes.len());
            }
            cx.http.recycle_buffer(piece.bytes);
            if piece.is_last {
                let is_cut_short = self.decoder.in_body();
                return self.finish_forward(self.terms.persistent, is_cut_short, io, cx);
            }
            self.request_next_piece(cx);
        }
        io.pause();
        self.wait_for_upstream(HttpWait::UpstreamProgress, io, cx);
    }
}

/// Bytes that the date, connection and framing fields may add to the head of a process's response.
const FRAMING_SIZE_MAX: usize = 256;

/// Appends the fields that the process's head lacks, and the empty line.
#[inline]
fn end_head(out: &mut Vec<u8>, date: Option<&[u8]>, terms: &ResponseTerms, framing: BodyFraming) {
    if let Some(date) = date {
        for part in [&b"Date: "[..], date, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    match (terms.persistent, terms.keep_alive_10) {
        (false, _) => out.extend_from_slice(b"Connection: close\r\n"),
        (true, true) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        (true, false) => {}
    }
    match framing {
        BodyFraming::Length(length) => {
            out.extend_from_slice(b"Content-Length: ");
            out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        BodyFraming::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        BodyFraming::Close | BodyFraming::Bodiless => {}
    }
    out.extend_from_slice(b"\r\n");
}
