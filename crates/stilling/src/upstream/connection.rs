//! A connection to a process: an ordinary connection of the shard that carries one request after the other.
//!
//! When the client of a request has left, the connection is half-closed. A program with an event loop can notice that
//! and cancel the request; other programs have finished when they answer or close. Until then the request keeps its
//! slot, so that the next request waits in the server's queue and not inside the process.

use std::io::{self, ErrorKind};

use stilling_engine::counters::Counter;
use stilling_engine::{CloseReason, Io, Token};
use stilling_workers::processes::ConnectionPermit;

use super::codec::AppProtocol;
use super::message::ClientMessage;
use super::outbox::ConnectionCommand;
use super::pending_request::{AbandonedRequest, PendingRequest, ResponseProgress, UpstreamError};
use super::pool::{ConnectAttempt, UpstreamPool};
use super::request_table::PoolIndex;

/// The parts of its shard that the session of a connection to a worker process sees.
pub(crate) struct UpstreamContext<'a> {
    pub(crate) pool: &'a mut UpstreamPool,
    /// Counts abandoned requests that a process may still work on.
    pub(crate) abandoned_requests: &'a Counter,
    pub(crate) is_draining: bool,
}

pub(crate) struct UpstreamConnection {
    pool: PoolIndex,
    protocol: AppProtocol,
    process: usize,
    generation: u64,
    /// It has carried a request, or was idle: the process may have closed it for good reason.
    was_used: bool,
    token: Option<Token>,
    request: Option<Box<PendingRequest>>,
    /// An abandoned request that the process may still work on. Then `request` is `None`, and the connection carries no
    /// other.
    abandoned: Option<AbandonedRequest>,
    /// Counted by the pool as a connection with an abandoned request, until it is closed.
    is_counted: bool,
    /// Why the connection was not established.
    error: Option<ErrorKind>,
    /// A send failed before any of the request was sent, over a connection used before.
    nothing_sent: bool,
    /// Permits one connection to the process.
    connection_permit: Option<ConnectionPermit>,
}

impl std::fmt::Debug for UpstreamConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpstreamConnection").field("process", &self.process).finish_non_exhaustive()
    }
}

impl UpstreamConnection {
    pub(crate) fn new(attempt: ConnectAttempt) -> Box<UpstreamConnection> {
        let ConnectAttempt { request, connection_permit } = attempt;
        Box::new(UpstreamConnection {
            pool: request.id.pool,
            protocol: request.protocol(),
            process: request.permit.process(),
            generation: request.permit.generation(),
            // A stream is as old as its process.
            was_used: request.protocol() == AppProtocol::Frames,
            token: None,
            request: Some(request),
            abandoned: None,
            is_counted: false,
            error: None,
            nothing_sent: false,
            connection_permit: Some(connection_permit),
        })
    }

    /// The pool of the process.
    pub(crate) fn pool(&self) -> PoolIndex {
        self.pool
    }

    pub(crate) fn opened(&mut self, io: &mut Io<'_>, cx: &mut UpstreamContext<'_>) {
        let token = io.token();
        self.token = Some(token);
        let Some(request) = &mut self.request else { return self.become_idle(io, cx) };
        if cx.pool.connected(request.id, token) {
            request.begin(io, &mut cx.pool.outbox);
        } else {
            // Nothing of it has been sent.
            drop(self.request.take());
            self.become_idle(io, cx);
            let now = io.now();
            cx.pool.dispatch(now);
        }
    }

    pub(crate) fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, cx: &mut UpstreamContext<'_>) -> usize {
        let Some(request) = &mut self.request else {
            match &mut self.abandoned {
                _ if bytes.is_empty() => {}
                Some(abandoned) => match abandoned.receive(bytes) {
                    Some(consumed) => return consumed,
                    // The process has finished; the rest of its response is discarded.
                    None => self.end_abandoned(io, cx),
                },
                // No request expects these bytes.
                None => {
                    self.replace_process("wrote to standard output without a request");
                    self.close(CloseReason::ProtocolError, io, cx);
                }
            }
            return bytes.len();
        };
        request.send(io, &mut cx.pool.outbox);
        match request.receive(bytes, io, &mut cx.pool.outbox, cx.pool.sessions.as_mut()) {
            Ok((consumed, ResponseProgress::Continues)) => consumed,
            Ok((_, ResponseProgress::Done { is_reusable })) => {
                self.finish_request(is_reusable, io, cx);
                bytes.len()
            }
            Err(error) => {
                self.fail(error, io, cx);
                bytes.len()
            }
        }
    }

    pub(crate) fn ended(&mut self, io: &mut Io<'_>, cx: &mut UpstreamContext<'_>) {
        if self.abandoned.is_some() {
            return self.end_abandoned(io, cx);
        }
        let Some(request) = &mut self.request else { return self.close(CloseReason::PeerClosed, io, cx) };
        match request.receive_end(self.was_used, &mut cx.pool.outbox) {
            Ok(()) => self.finish_request(false, io, cx),
            Err(error) => self.fail(error, io, cx),
        }
    }

    pub(crate) fn flushed(&mut self, io: &mut Io<'_>, cx: &mut UpstreamContext<'_>) {
        if let Some(request) = &mut self.request {
            request.send(io, &mut cx.pool.outbox);
            request.set_deadline(io);
        }
    }

    pub(crate) fn handle_command(
        &mut self,
        command: ConnectionCommand,
        io: &mut Io<'_>,
        cx: &mut UpstreamContext<'_>,
    ) {
        let token = io.token();
        match (command, &mut self.request) {
            (ConnectionCommand::Begin, _) => match cx.pool.take_assigned(token) {
                Some(request) => self.request.insert(request).begin(io, &mut cx.pool.outbox),
                // The client has left; the slot is free again.
                None => self.become_idle(io, cx),
            },
            (ConnectionCommand::Client(id, message), Some(request)) if request.id == id => match message {
                ClientMessage::PieceWanted => request.resume(io, &mut cx.pool.outbox),
                ClientMessage::Body { bytes, is_last } => {
                    request.send_body(bytes, is_last, io, &mut cx.pool.outbox);
                }
            },
            (ConnectionCommand::Abandon(id), Some(request)) if request.id == id => self.abandon(io, cx),
            (ConnectionCommand::CheckTimeout(id), Some(request))
                if request.id == id && request.is_late(io) =>
            {
                self.time_out(io, cx);
            }
            (ConnectionCommand::Close, None) => self.close(CloseReason::Done, io, cx),
            _ => {}
        }
    }

    pub(crate) fn deadline(&mut self, io: &mut Io<'_>, cx: &mut UpstreamContext<'_>) {
        if let Some(request) = &mut self.request {
            match request.deadline_reached(io, &mut cx.pool.outbox) {
                Ok(()) => {}
                Err(UpstreamError::TimedOut) => self.time_out(io, cx),
                Err(error) => self.fail(error, io, cx),
            }
        } else if let Some(abandoned) = self.abandoned.take() {
            match abandoned.deadline_reached(io.now()) {
                Some(abandoned) => self.keep_slot(abandoned, io),
                None => self.close(CloseReason::Done, io, cx),
            }
        }
    }

    pub(crate) fn draining(&mut self, io: &mut Io<'_>, cx: &mut UpstreamContext<'_>) {
        // An abandoned request keeps its slot during the drain, too, since other requests still wait for slots.
        if self.request.is_none() && self.abandoned.is_none() {
            self.close(CloseReason::Drained, io, cx);
        }
    }

    pub(crate) fn connect_failed(&mut self, error: &io::Error) {
        self.error = Some(error.kind());
    }

    pub(crate) fn send_error(&mut self, nothing_sent: bool) -> bool {
        let Some(request) = &mut self.request else { return false };
        let may_be_answered = request.is_cut_short(nothing_sent && self.was_used);
        self.nothing_sent = !may_be_answered;
        may_be_answered
    }

    pub(crate) fn closed(&mut self, reason: CloseReason, cx: &mut UpstreamContext<'_>) {
        let pool = &mut *cx.pool;
        if self.is_counted {
            pool.abandoned_request_closed();
        }
        if let Some(token) = self.token {
            pool.remove_idle(self.process, token);
            if let Some(request) = pool.take_assigned(token) {
                pool.fail(request, UpstreamError::Stale { nothing_sent: true });
            }
        }
        let Some(request) = self.request.take() else { return };
        let error = match reason {
            CloseReason::ConnectFailed => {
                UpstreamError::ConnectFailed(self.error.unwrap_or(ErrorKind::TimedOut))
            }
            CloseReason::WriteTimeout => UpstreamError::TimedOut,
            _ => request.error_on_close(ErrorKind::ConnectionReset, self.was_used, self.nothing_sent),
        };
        pool.fail(request, error);
    }

    fn fail(&mut self, error: UpstreamError, io: &mut Io<'_>, cx: &mut UpstreamContext<'_>) {
        if let Some(request) = self.request.take() {
            cx.pool.fail(request, error);
        }
        self.close(CloseReason::Done, io, cx);
    }

    fn finish_request(&mut self, is_reusable: bool, io: &mut Io<'_>, cx: &mut UpstreamContext<'_>) {
        let request = self.request.take();
        if std::mem::take(&mut self.is_counted) {
            cx.pool.abandoned_request_closed();
        }
        if !is_reusable {
            self.replace_process("answered before it had read the request, or wrote more than its answer");
        }
        if is_reusable {
            self.become_idle(io, cx);
        } else {
            self.close(CloseReason::Done, io, cx);
        }
        if let Some(request) = request {
            let now = io.now();
            cx.pool.finish(request, now);
        }
    }

    /// Handles that the client has left or received another response.
    fn abandon(&mut self, io: &mut Io<'_>, cx: &mut UpstreamContext<'_>) {
        if self.protocol == AppProtocol::Frames
            && let Some(request) = &mut self.request
        {
            request.discard_response(io);
            return self.count_abandoned(cx);
        }
        let Some(request) = self.request.take() else { return };
        if io.has_unsent() {
            // The process has only a part of the request, so it cannot work on it.
            drop(request);
            return self.close(CloseReason::Done, io, cx);
        }
        let abandoned = request.abandon(io);
        self.count_abandoned(cx);
        self.keep_slot(abandoned, io);
    }

    /// Handles that the process has not begun or continued its response in time.
    fn time_out(&mut self, io: &mut Io<'_>, cx: &mut UpstreamContext<'_>) {
        let may_work = |request: &PendingRequest| !request.is_answered() && !io.has_unsent();
        let Some(mut request) = self.request.take_if(|request| may_work(request)) else {
            return self.fail(UpstreamError::TimedOut, io, cx);
        };
        cx.pool.report_timeout(&request);
        let now = io.now();
        if request.permit.mark_overdue(now) {
            return self.close(CloseReason::Done, io, cx);
        }
        self.count_abandoned(cx);
        self.keep_slot(request.into_overdue(now), io);
    }

    fn count_abandoned(&mut self, cx: &mut UpstreamContext<'_>) {
        self.is_counted = true;
        cx.abandoned_requests.add(1);
        cx.pool.abandoned_request_opened();
    }

    /// Waits for the process to finish with an abandoned request.
    fn keep_slot(&mut self, abandoned: AbandonedRequest, io: &mut Io<'_>) {
        io.end_output();
        io.set_deadline(Some(abandoned.until()));
        self.abandoned = Some(abandoned);
        io.resume();
    }

    /// Frees the slot: the process has finished with the abandoned request.
    fn end_abandoned(&mut self, io: &mut Io<'_>, cx: &mut UpstreamContext<'_>) {
        self.close(CloseReason::Done, io, cx);
        if let Some(AbandonedRequest { permit, .. }) = self.abandoned.take() {
            let now = io.now();
            permit.mark_responsive();
            permit.release(now);
            cx.pool.dispatch(now);
        }
    }

    /// Waits for the next request, if there may be one.
    fn become_idle(&mut self, io: &mut Io<'_>, cx: &mut UpstreamContext<'_>) {
        // An idle connection may be closed by the process at any time, even if it has carried no request.
        self.was_used = true;
        io.set_deadline(None);
        io.resume();
        let (now, token) = (io.now(), io.token());
        let is_kept = !cx.is_draining && cx.pool.retain_connection(self.process, self.generation, token, now);
        if !is_kept {
            self.release_connection_permit();
            io.abort(CloseReason::Done);
        }
    }

    /// Requests that the process is replaced if it speaks frames: the next frame cannot be found.
    fn replace_process(&self, reason: &str) {
        if self.protocol == AppProtocol::Frames
            && let Some(connection_permit) = &self.connection_permit
        {
            connection_permit.print_line(reason);
            connection_permit.request_kill(self.generation);
        }
    }

    /// Permits another connection at once, before this one is closed. A stream must be closed before another shard
    /// receives from it.
    fn release_connection_permit(&mut self) {
        if self.protocol == AppProtocol::Http {
            self.connection_permit = None;
        }
    }

    fn close(&mut self, reason: CloseReason, io: &mut Io<'_>, cx: &mut UpstreamContext<'_>) {
        let token = io.token();
        cx.pool.remove_idle(self.process, token);
        self.release_connection_permit();
        io.abort(reason);
    }
}
