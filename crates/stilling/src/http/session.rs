//! One HTTP connection: decodes requests in order, answers each, applies the deadlines.

use std::io::Write;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::{CloseReason, Io};
use stilling_ring::Time;
use stilling_wire::http1::{
    BodyLength, CONTINUE, HttpDecodeError, RequestDecoder, RequestEvent, RequestHead, Status,
};
use stilling_workers::{JobContext, JobPosition, JobResult, SubmitError};

use super::active_request::ActiveRequest;
use super::buffered_request::BufferedRequest;
use super::job_input::{CancellableInput, JobInput};
use super::pages;
use super::peer::HttpPeer;
use super::request::Request;
use super::response::{Response, TEXT};
use super::response_writer::{self, RESPONSE_ROOM_MIN, ResponseTerms};
use super::route::{HttpEndpoint, Route};
use super::routes::Handler;
use super::shard::{HttpContext, JobOutcome, JobOutput};
use super::status_page;
use crate::upstream::limits::CLIENT_CHECK_INTERVAL;
use crate::upstream::{RequestId, UpstreamEvent, has_too_many_connection_options};

/// What the connection waits for, and so what its deadline means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpWait {
    /// The first byte of the connection.
    FirstByte,
    /// The rest of a head.
    Head,
    /// The rest of a body.
    Body,
    /// The next request of a persistent connection.
    NextRequest,
    /// A worker to take the job, or to finish it.
    Worker { position: JobPosition },
    /// A worker to read the next piece of a response that has begun.
    Piece { position: JobPosition },
    /// Room in the workers' queue for the job that reads the next piece.
    QueueRoom,
    /// The client to read, so that the response can continue.
    SendRoom,
    /// A worker process to answer.
    Upstream,
    /// A worker process to continue its response, or to accept more of the body.
    UpstreamProgress,
    /// Room in the queue to the hub.
    HubRoom,
    /// The outcome of published messages.
    PublishOutcome,
}

/// Whether part of the response has been sent. After that, 503 is no longer possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseStarted {
    No,
    Yes,
}

#[derive(Debug)]
pub(crate) struct HttpSession {
    pub(super) decoder: RequestDecoder,
    pub(super) waiting_for: HttpWait,
    pub(super) terms: ResponseTerms,
    pub(super) active_request: ActiveRequest,
    /// When the current wait began: of a body, a job, a forwarded request or a publication.
    pub(super) since: Time,
    pub(super) body_received: u64,
    /// The ticket of the last publication. At most one is pending: the connection closes if an outcome is late.
    pub(super) publication_ticket: u32,
    /// The connection is registered for a notification of room in the queue to the hub.
    pub(super) awaits_hub_room: bool,
    /// Its publication is counted in `HubHandle::pending_publications`.
    pub(super) is_publishing: bool,
    pub(super) endpoint: HttpEndpoint,
    /// The index of its listener.
    pub(super) listener: u16,
    /// The client's address, if worker processes or handlers need it.
    pub(super) peer: Option<Box<HttpPeer>>,
}

const _: () = assert!(size_of::<HttpSession>() <= 136, "the HTTP session has grown");

impl HttpSession {
    pub(crate) fn new(endpoint: HttpEndpoint, listener: u32) -> Self {
        HttpSession {
            decoder: RequestDecoder::default(),
            waiting_for: HttpWait::FirstByte,
            terms: ResponseTerms::unreadable(),
            active_request: ActiveRequest::Idle,
            since: Time::ZERO,
            body_received: 0,
            publication_ticket: 0,
            awaits_hub_room: false,
            is_publishing: false,
            endpoint,
            listener: u16::try_from(listener).unwrap_or(u16::MAX),
            peer: None,
        }
    }

    pub(crate) fn set_peer(&mut self, peer: Option<IpAddr>) {
        self.peer = peer.map(HttpPeer::new);
    }

    fn handle_head(&mut self, head: &RequestHead<'_>, raw: &[u8], io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let has_hub = cx.hub.is_some() || cx.hub_handed_over;
        self.terms = ResponseTerms::of(head, Route::of(head, &cx.http.config, self.endpoint, has_hub));
        if matches!(self.terms.route, Route::App(_)) && has_too_many_connection_options(head.headers()) {
            self.terms.route = Route::Refused(Status::BadRequest);
        }
        if self.terms.route == Route::Publish && !self.admit(head, io, cx) {
            return;
        }
        match self.terms.route {
            Route::Subscribe => return self.subscribe(head, io, cx),
            Route::Echo => return self.echo(head, io, cx),
            Route::Nats => return self.upgrade_to_nats(head, io, cx),
            Route::Auction => return self.send_auction_page(head, io, cx),
            _ => {}
        }
        if head.body == BodyLength::None {
            return match self.terms.route {
                Route::App(pool) => self.forward(pool, head, io, cx),
                _ => self.dispatch_without_body(head, raw, io, cx),
            };
        }
        if head.expect_continue {
            let refused = match self.terms.route {
                Route::Refused(status) => Some(status),
                Route::MethodNotAllowed(_) => Some(Status::MethodNotAllowed),
                _ => None,
            };
            if let Some(status) = refused {
                // RFC 9110 §10.1.1: the final response instead of 100; whether the body follows is unknown.
                self.terms.persistent = false;
                response_writer::send_status(&self.terms, status, io, cx);
                return io.finish_lingering(CloseReason::Done);
            }
        }
        if matches!(self.terms.route, Route::Handler(_) | Route::Publish) && !self.buffer_request(raw, io, cx)
        {
            return;
        }
        if let Route::App(pool) = self.terms.route
            && !self.begin_forward(pool, head, io, cx)
        {
            return;
        }
        if head.expect_continue {
            // `received` decodes only with `RESPONSE_ROOM_MIN` of room.
            let _ = io.send(CONTINUE);
            cx.http.counters.count_status(Status::Continue);
        }
        self.waiting_for = HttpWait::Body;
        self.since = io.now();
        self.body_received = 0;
    }

    fn dispatch_without_body(
        &mut self,
        head: &RequestHead<'_>,
        raw: &[u8],
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) {
        if let Route::Handler(number) = self.terms.route {
            let routes = &cx.http.config.routes;
            if let Handler::Inline(answer) = routes.handler(number) {
                let request = Request::new(*head, b"", routes.patterns(), self.peer_address());
                let response = catch_panic(&request, |request| answer(request));
                return self.respond_inline(response, io, cx);
            }
        }
        if matches!(self.terms.route, Route::Handler(_) | Route::Publish) && !self.buffer_request(raw, io, cx)
        {
            return;
        }
        self.dispatch(io, cx);
    }

    /// Buffers the request for its handler. Without memory for it, answers 503 and returns false.
    fn buffer_request(&mut self, head: &[u8], io: &mut Io<'_>, cx: &mut HttpContext<'_>) -> bool {
        let http = &*cx.http;
        let peer = self.peer_address();
        match BufferedRequest::new(head, peer, &http.counters, http.config.requests_held_max) {
            Some(request) => {
                self.active_request = ActiveRequest::Request(request);
                true
            }
            None => {
                self.shed(io, cx);
                false
            }
        }
    }

    /// Answers 503 because there is no memory for the request, and discards further input.
    pub(super) fn shed(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        cx.http.counters.requests_shed.add(1);
        self.terms.persistent = false;
        self.discard_request(cx);
        response_writer::send_status(&self.terms, Status::ServiceUnavailable, io, cx);
        io.finish_lingering(CloseReason::Done);
    }

    fn handle_body(&mut self, piece: &[u8], io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        if self.terms.route == Route::Publish {
            let now = io.now();
            cx.hub.iter_mut().for_each(|hub| hub.last_publish_input = now);
        }
        self.body_received += piece.len() as u64;
        if matches!(self.terms.route, Route::App(_)) {
            return self.forward_body(piece, io, cx);
        }
        if let ActiveRequest::Request(request) = &mut self.active_request
            && !request.push(piece, cx.http.config.requests_held_max)
        {
            self.shed(io, cx);
        }
    }

    fn dispatch(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let terms = self.terms;
        let persistent = match terms.route {
            Route::Handler(number) => return self.handle(number, io, cx),
            Route::App(_) => return self.complete_forward_body(io, cx),
            Route::Publish => return self.publish(io, cx),
            Route::Subscribe | Route::Echo | Route::Auction | Route::Nats => {
                unreachable!("answered when the head is complete")
            }
            Route::Slow | Route::Panic if cx.http.config.has_workers => {
                let (panics, span) = (terms.route == Route::Panic, cx.http.config.slow_duration);
                return self.submit(io, cx, move |context| {
                    assert!(!panics, "the demonstration of a panic in a job");
                    context.sleep(span);
                    JobOutcome(JobOutput::Demo)
                });
            }
            Route::Fast | Route::Slow => return self.respond(Response::new(Status::Ok), io, cx),
            Route::Panic => response_writer::send_status(&terms, Status::InternalServerError, io, cx),
            Route::Status => {
                let now = io.now();
                return self.respond(status_page::render(cx.http, now), io, cx);
            }
            Route::Metrics(format) => return self.respond(pages::metrics(cx.http, format), io, cx),
            Route::Live => response_writer::send(&terms, Status::Ok, TEXT, b"alive\n", io, cx),
            Route::Ready => pages::ready(&terms, io, cx),
            Route::Refused(status) => response_writer::send_status(&terms, status, io, cx),
            Route::MethodNotAllowed(_) => {
                response_writer::send_status(&terms, Status::MethodNotAllowed, io, cx)
            }
        };
        self.finish_response(persistent, io, cx);
    }

    /// Runs the handler on the buffered request, or submits it to a worker.
    fn handle(&mut self, number: u16, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let ActiveRequest::Request(request) =
            std::mem::replace(&mut self.active_request, ActiveRequest::Idle)
        else {
            unreachable!("a handler's request is kept from its head on")
        };
        let config = &cx.http.config;
        let (routes, limits) = (&config.routes, config.limits);
        match routes.handler(number) {
            Handler::Worker(_) if config.has_workers => {
                let routes = Arc::clone(routes);
                let request = CancellableInput::new(request);
                self.active_request = ActiveRequest::Job(JobInput::Request(request.clone()));
                self.submit(io, cx, move |_| {
                    let request = request.take().expect("the request of a withdrawn job is not run");
                    let answer = routes.handler(number).answer();
                    let response = answer(&request.view(&limits, &routes));
                    JobOutcome(JobOutput::Response(Box::new(response.read_ahead())))
                });
            }
            handler => {
                // Without workers the shard runs their handlers.
                let is_workers = matches!(handler, Handler::Worker(_));
                let response = catch_panic(&request.view(&limits, routes), |request| {
                    let response = handler.answer()(request);
                    if is_workers { response.read_ahead() } else { response }
                });
                self.respond_inline(response, io, cx);
            }
        }
    }

    /// Ends the exchange: waits for the next request, or closes the connection.
    pub(super) fn finish_response(&mut self, persistent: bool, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        self.active_request = ActiveRequest::Idle;
        self.waiting_for = HttpWait::NextRequest;
        if persistent {
            // The response may have promised a persistent connection before the drain began.
            let draining = cx.http.is_draining();
            let timeout = if draining { DRAIN_FIRST_BYTE_TIMEOUT } else { cx.http.config.timeouts.idle };
            let deadline = io.now().after(timeout);
            io.set_deadline(Some(deadline));
        } else {
            io.finish(CloseReason::Done);
        }
    }

    /// Queues a job and pauses reading until its result arrives. `None`: the queue is full.
    pub(super) fn submit_job<F>(
        &mut self,
        response_started: ResponseStarted,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
        job: F,
    ) -> Option<JobPosition>
    where
        F: FnOnce(&mut JobContext) -> JobOutcome + Send + 'static,
    {
        cx.http.counters.jobs.add(1);
        let ticket = io.token().bits();
        let submitted = match response_started {
            ResponseStarted::No => cx.http.submitter.submit(ticket, job),
            ResponseStarted::Yes => cx.http.submitter.submit_continuation(ticket, job),
        };
        match submitted {
            Ok(position) => {
                self.since = io.now();
                io.pause();
                Some(position)
            }
            Err(SubmitError::Full(_) | SubmitError::Closed(_)) => {
                cx.http.counters.jobs_refused.add(1);
                None
            }
        }
    }

    fn submit<F>(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>, job: F)
    where
        F: FnOnce(&mut JobContext) -> JobOutcome + Send + 'static,
    {
        let job = match cx.http.submitter.run_inline(job) {
            Ok(outcome) => {
                cx.http.counters.jobs.add(1);
                return self.handle_job_outcome(outcome, io, cx);
            }
            Err(job) => job,
        };
        match self.submit_job(ResponseStarted::No, io, cx, job) {
            Some(position) => {
                self.waiting_for = HttpWait::Worker { position };
                self.wait_for_worker(position, io, cx);
            }
            None => {
                let persistent =
                    response_writer::send_status(&self.terms, Status::ServiceUnavailable, io, cx);
                self.finish_response(persistent, io, cx);
            }
        }
    }

    /// Sets the deadline for a job. While the job is queued, the client's connection is checked at intervals.
    fn wait_for_worker(&self, position: JobPosition, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let config = &cx.http.config;
        let finish_deadline = self.since.after(config.timeouts.work);
        let deadline = if cx.http.submitter.is_waiting(position) {
            let start_deadline = self.since.after(config.queue_age_max.min(config.timeouts.work));
            start_deadline.min(io.now().after(CLIENT_CHECK_INTERVAL))
        } else {
            finish_deadline
        };
        io.set_deadline(Some(deadline));
    }

    /// Handles the deadline of a job: checks the client's connection, or answers 503 if no worker took the job in
    /// time or it is not done in time.
    fn check_job(&mut self, position: JobPosition, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let config = &cx.http.config;
        let age_max = config.queue_age_max.min(config.timeouts.work);
        let (start_deadline, finish_deadline) =
            (self.since.after(age_max), self.since.after(config.timeouts.work));
        if io.now() >= start_deadline && self.withdraw_job(true, cx) {
            cx.http.counters.jobs_expired.add(1);
            return self.respond_and_resume(Status::ServiceUnavailable, io, cx);
        }
        if io.now() < finish_deadline {
            if cx.http.submitter.is_waiting(position) {
                io.check_peer();
            }
            return self.wait_for_worker(position, io, cx);
        }
        cx.http.counters.jobs_overdue.add(1);
        self.terms.persistent = false;
        response_writer::send_status(&self.terms, Status::ServiceUnavailable, io, cx);
        // The result of the job is late from now on.
        self.waiting_for = HttpWait::NextRequest;
        io.finish_lingering(CloseReason::WorkTimeout);
    }

    /// Withdraws the current job from the workers' queue and frees its data. Returns false if there is none, or a
    /// worker has it.
    fn withdraw_job(&mut self, is_late: bool, cx: &mut HttpContext<'_>) -> bool {
        let (HttpWait::Worker { position } | HttpWait::Piece { position }) = self.waiting_for else {
            return false;
        };
        let is_withdrawn = cx.http.submitter.withdraw(position, is_late);
        if is_withdrawn
            && let ActiveRequest::Job(input) =
                std::mem::replace(&mut self.active_request, ActiveRequest::Idle)
        {
            input.release();
        }
        is_withdrawn
    }

    fn respond_and_resume(&mut self, status: Status, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let persistent = response_writer::send_status(&self.terms, status, io, cx);
        self.finish_response(persistent, io, cx);
        io.resume();
    }

    fn handle_job_outcome(
        &mut self,
        outcome: JobResult<JobOutcome>,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) {
        match outcome {
            JobResult::Done(JobOutcome(JobOutput::Demo)) => {
                io.resume();
                self.respond(Response::new(Status::Ok), io, cx);
            }
            JobResult::Done(JobOutcome(JobOutput::Response(response))) => {
                io.resume();
                self.respond(*response, io, cx);
            }
            JobResult::Done(JobOutcome(JobOutput::Piece(_) | JobOutput::DelegatedConnection)) => {
                unreachable!("no request waits for a piece or a delegated connection in this state")
            }
            JobResult::Panicked => self.respond_and_resume(Status::InternalServerError, io, cx),
            JobResult::Expired => {
                cx.http.counters.jobs_expired.add(1);
                self.respond_and_resume(Status::ServiceUnavailable, io, cx);
            }
        }
    }

    fn reject(&mut self, error: &HttpDecodeError, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        self.discard_request(cx);
        // The scratch buffer avoids an allocation per invalid request.
        let mut text = std::mem::take(&mut cx.http.scratch);
        text.clear();
        let _ = writeln!(text, "{error}");
        response_writer::send(&ResponseTerms::unreadable(), error.status(), TEXT, &text, io, cx);
        cx.http.scratch = text;
        io.finish_lingering(CloseReason::ProtocolError);
    }

    fn time_out(&mut self, reason: CloseReason, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        // A process that waits for the rest of the body is notified at once.
        self.discard_request(cx);
        response_writer::send_status(&ResponseTerms::unreadable(), Status::RequestTimeout, io, cx);
        io.finish_lingering(reason);
    }

    pub(super) fn set_read_deadline(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let timeouts = &cx.http.config.timeouts;
        if self.decoder.in_body() {
            let earned = Duration::from_secs(self.body_received / self.body_rate_min(timeouts));
            let deadline = self.since.after(timeouts.body_grace + earned);
            io.set_deadline(Some(deadline));
        } else if self.decoder.in_head() && self.waiting_for != HttpWait::Head {
            self.waiting_for = HttpWait::Head;
            let deadline = io.now().after(timeouts.head);
            io.set_deadline(Some(deadline));
        }
    }
}

/// Runs a handler in the shard. `None`: it panicked.
fn catch_panic(request: &Request<'_>, answer: impl Fn(&Request<'_>) -> Response) -> Option<Response> {
    // Unwind safe: the shard lends the handler nothing but the request, so no shared state is left half-done.
    catch_unwind(AssertUnwindSafe(|| answer(request))).ok()
}

/// Callbacks of the shard: see [`Session`](stilling_engine::Session).
impl HttpSession {
    pub(crate) fn opened(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let draining = cx.http.is_draining();
        let timeout = if draining { DRAIN_FIRST_BYTE_TIMEOUT } else { cx.http.config.timeouts.first_byte };
        let deadline = io.now().after(timeout);
        io.set_deadline(Some(deadline));
    }

    pub(crate) fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, cx: &mut HttpContext<'_>) -> usize {
        if self.waiting_for == HttpWait::SendRoom {
            self.resume_response(io, cx);
            if self.is_busy(io) {
                return 0;
            }
        }
        let limits = cx.http.config.limits;
        let mut consumed = 0;
        // The end of a body is a separate event, after its last byte.
        while consumed < bytes.len() || self.decoder.in_body() {
            // A client that pipelines without reading gets one response at a time when the output store is scarce.
            if io.room() < RESPONSE_ROOM_MIN || io.has_unsent() && io.spare_room() < RESPONSE_ROOM_MIN {
                io.call_again();
                break;
            }
            let input = &bytes[consumed..];
            match self.decoder.decode(&limits, input) {
                Ok(step) => {
                    consumed += step.consumed;
                    match step.event {
                        RequestEvent::NeedMore => break,
                        RequestEvent::Head(head) => self.handle_head(&head, &input[..step.consumed], io, cx),
                        RequestEvent::Body(piece) => self.handle_body(piece, io, cx),
                        RequestEvent::End => self.dispatch(io, cx),
                    }
                }
                Err(error) => self.reject(&error, io, cx),
            }
            if self.is_busy(io) {
                return consumed;
            }
        }
        self.forward_received_body(io, cx);
        if !self.is_busy(io) {
            self.set_read_deadline(io, cx);
        }
        consumed
    }

    pub(crate) fn ended(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        if self.decoder.in_head() || self.decoder.in_body() {
            // The rest cannot arrive, but the peer may still read.
            self.discard_request(cx);
            response_writer::send_status(&ResponseTerms::unreadable(), Status::BadRequest, io, cx);
            io.finish(CloseReason::ProtocolError);
        } else {
            io.finish(CloseReason::PeerClosed);
        }
    }

    pub(crate) fn flushed(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        // Time in which the peer was reading output does not count: its deadline starts anew.
        match self.waiting_for {
            HttpWait::Worker { .. } | HttpWait::Piece { .. } | HttpWait::QueueRoom | HttpWait::SendRoom => {}
            HttpWait::Upstream
            | HttpWait::UpstreamProgress
            | HttpWait::HubRoom
            | HttpWait::PublishOutcome => {}
            HttpWait::Head => {
                let deadline = io.now().after(cx.http.config.timeouts.head);
                io.set_deadline(Some(deadline));
            }
            HttpWait::Body => {
                self.since = io.now();
                self.body_received = 0;
                self.set_read_deadline(io, cx);
            }
            HttpWait::NextRequest if cx.http.is_draining() && !io.has_unread() => {
                io.finish(CloseReason::Drained);
            }
            HttpWait::FirstByte | HttpWait::NextRequest => {
                let deadline = io.now().after(cx.http.config.timeouts.idle);
                io.set_deadline(Some(deadline));
            }
        }
    }

    /// Handles the result of the job that was queued at position `done`.
    pub(crate) fn job_done(
        &mut self,
        done: JobPosition,
        outcome: JobResult<JobOutcome>,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) {
        match self.waiting_for {
            HttpWait::Worker { position } if done == position => self.handle_job_outcome(outcome, io, cx),
            HttpWait::Piece { position } if done == position => self.handle_piece(outcome, io, cx),
            _ => cx.http.counters.late_results.add(1),
        }
    }

    /// Handles an event of a request to a worker process. Events of earlier requests are ignored.
    pub(crate) fn upstream_event(
        &mut self,
        id: RequestId,
        event: UpstreamEvent,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) {
        if self.request_id() == Some(id) {
            self.handle_upstream_event(event, io, cx);
        }
    }

    /// Discards the request of a closed connection. A detached connection still needs its delegate.
    pub(crate) fn closed(&mut self, reason: CloseReason, cx: &mut HttpContext<'_>) {
        self.uncount_publication(cx);
        if reason != CloseReason::Detached {
            self.discard_request(cx);
        }
        self.leave_upstream(cx);
    }

    /// Discards the data of the current request. A queued job is cancelled; a request that a process has is
    /// abandoned.
    pub(super) fn discard_request(&mut self, cx: &mut HttpContext<'_>) {
        self.withdraw_job(false, cx);
        let id = match std::mem::replace(&mut self.active_request, ActiveRequest::Idle) {
            ActiveRequest::Submitted(id) => Some(id),
            ActiveRequest::Forwarded(forwarded) => forwarded.id,
            ActiveRequest::Idle
            | ActiveRequest::Request(_)
            | ActiveRequest::Response(_)
            | ActiveRequest::Delegate(_)
            | ActiveRequest::Job(_)
            | ActiveRequest::PendingPublication(_)
            | ActiveRequest::Switch(_) => None,
        };
        if let Some((id, upstream)) = id.zip(cx.upstream.as_mut()) {
            upstream.abandon(id, false);
        }
    }

    pub(crate) fn deadline(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        match self.waiting_for {
            // A request may arrive at this moment and must meet an orderly close, not a reset.
            HttpWait::FirstByte if cx.http.is_draining() => io.finish(CloseReason::Drained),
            HttpWait::FirstByte => io.abort(CloseReason::FirstByteTimeout),
            HttpWait::NextRequest if cx.http.is_draining() => io.finish(CloseReason::Drained),
            HttpWait::NextRequest => io.finish(CloseReason::IdleTimeout),
            HttpWait::Head => self.time_out(CloseReason::HeadTimeout, io, cx),
            HttpWait::Body => self.time_out(CloseReason::BodyTimeout, io, cx),
            HttpWait::Worker { position } => self.check_job(position, io, cx),
            HttpWait::Piece { position } if io.now() < self.since.after(cx.http.config.timeouts.work) => {
                if cx.http.submitter.is_waiting(position) {
                    io.check_peer();
                }
                self.wait_for_piece(position, io, cx);
            }
            HttpWait::Piece { .. } => {
                cx.http.counters.jobs_overdue.add(1);
                io.abort(CloseReason::WorkTimeout);
            }
            HttpWait::QueueRoom => {
                io.resume();
                self.resume_response(io, cx);
            }
            HttpWait::Upstream | HttpWait::UpstreamProgress => self.check_forward(io, cx),
            HttpWait::HubRoom => self.hub_room_timed_out(io, cx),
            HttpWait::PublishOutcome => self.publish_outcome_timed_out(io, cx),
            HttpWait::SendRoom => {}
        }
    }

    pub(crate) fn draining(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        match self.waiting_for {
            // With unread requests it continues, and the next response closes it. `finish` sends unsent responses
            // first.
            HttpWait::NextRequest if self.decoder.is_idle() && !io.has_unread() => {
                io.finish(CloseReason::Drained);
            }
            // A request may be on its way.
            HttpWait::FirstByte => {
                let deadline = io.now().after(DRAIN_FIRST_BYTE_TIMEOUT);
                io.set_deadline(Some(deadline));
            }
            HttpWait::HubRoom | HttpWait::PublishOutcome if cx.http.hub_is_abandoned() => {
                self.abandon_publication(io, cx);
            }
            // The next response announces the close.
            _ => {}
        }
    }
}

impl HttpSession {
    /// Whether the next request must wait for the response to the current one.
    pub(super) fn is_busy(&self, io: &Io<'_>) -> bool {
        io.is_finishing()
            || io.is_paused()
            || self.waiting_for == HttpWait::SendRoom
            || matches!(self.active_request, ActiveRequest::Switch(_))
    }
}

/// How long a draining server waits for the first byte of an accepted connection, and for the next request of a
/// connection whose last response promised to persist.
const DRAIN_FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(1);
