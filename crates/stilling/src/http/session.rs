//! One HTTP connection: reads requests in order, answers each, keeps the deadlines.

use std::io::Write;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::{CloseReason, Io};
use stilling_ring::Time;
use stilling_wire::http1::{BodyLength, CONTINUE, DecodeError, Event, RequestDecoder, RequestHead, Status};
use stilling_workers::{JobContext, Outcome, Position, Refused};

use super::answer::{self, ANSWER_ROOM, Terms};
use super::delegated::Delegate;
use super::forwarded::ForwardedRequest;
use super::job_input::{JobInput, Shared};
use super::kept_request::KeptRequest;
use super::pages;
use super::published::Published;
use super::request::Request;
use super::response::{Response, TEXT};
use super::route::{HttpEndpoint, Route};
use super::routes::Handler;
use super::sending::Sending;
use super::shard::{HttpContext, JobOutcome, Work};
use super::status_page;
use crate::upstream::limits::CLIENT_LOOK;
use crate::upstream::{RequestId, UpstreamEvent, nominates_too_many};

/// What the connection is waiting for; decides what its deadline means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// The first byte ever.
    FirstByte,
    /// The rest of a head.
    Head,
    /// The rest of a body.
    Body,
    /// The next request of a kept connection.
    NextRequest,
    /// A worker to take the job, or to finish it.
    Worker { position: Position },
    /// A worker to read the next piece of an answer that has begun.
    Piece { position: Position },
    /// Room in the workers' queue for that.
    QueueRoom,
    /// The client to take what was sent, so that the answer can go on.
    Room,
    /// A worker process to answer.
    Upstream,
    /// A worker process to go on with its response, or to take more of the body.
    UpstreamPart,
    /// Room on the way to the hub.
    HubRoom,
    /// The hub to say what became of what was published.
    Verdict,
}

/// What the connection keeps for a handler's request, outside of its slot.
#[derive(Debug)]
pub(super) enum Kept {
    Nothing,
    /// A request whose body is on the way.
    Request(Box<KeptRequest>),
    /// An answer that goes out bit by bit.
    Answer(Box<Sending>),
    /// What a worker is to do with the connection.
    Delegate(Delegate),
    /// What the job that waits for a worker needs.
    Job(JobInput),
    /// The id of a request that a worker process is to answer.
    Submitted(RequestId),
    /// A long request to a worker process, or its long response.
    Forwarded(Box<ForwardedRequest>),
    /// Messages that the hub has.
    Published(Box<Published>),
}

/// Whether the client has seen a part of the answer that a job is for. Then it cannot be told 503 any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    No,
    Yes,
}

/// The state of one HTTP connection.
#[derive(Debug)]
pub(crate) struct HttpSession {
    pub(super) decoder: RequestDecoder,
    pub(super) waiting: Waiting,
    pub(super) terms: Terms,
    pub(super) kept: Kept,
    /// When the body began, or the job was submitted.
    pub(super) since: Time,
    /// Bytes of the body so far.
    pub(super) body_received: u64,
    /// The ticket of the last publication. At most one is unanswered: a connection closes behind a late verdict.
    pub(super) publication: u32,
    /// The connection waits for room on the way to the hub.
    pub(super) asks_for_room: bool,
    /// Its publication is counted as one that waits.
    pub(super) is_publishing: bool,
    pub(super) endpoint: HttpEndpoint,
    /// Where the connection comes from, if a worker process or a handler is to know.
    pub(super) peer: Option<Box<IpAddr>>,
}

const _: () = assert!(size_of::<HttpSession>() <= 136, "the HTTP session has grown");

impl HttpSession {
    pub(crate) fn new(endpoint: HttpEndpoint) -> Self {
        HttpSession {
            decoder: RequestDecoder::default(),
            waiting: Waiting::FirstByte,
            terms: Terms::unreadable(),
            kept: Kept::Nothing,
            since: Time::ZERO,
            body_received: 0,
            publication: 0,
            asks_for_room: false,
            is_publishing: false,
            endpoint,
            peer: None,
        }
    }

    /// Remembers where the connection comes from.
    pub(crate) fn comes_from(&mut self, peer: Option<IpAddr>) {
        self.peer = peer.map(Box::new);
    }

    /// A head is complete; `raw` are its bytes.
    fn head(&mut self, head: &RequestHead<'_>, raw: &[u8], io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let has_hub = cx.hub.is_some() || cx.has_left_hub;
        self.terms = Terms::of(head, Route::of(head, &cx.http.config, self.endpoint, has_hub));
        if self.terms.route == Route::App && nominates_too_many(head.headers()) {
            self.terms.route = Route::Refused(Status::BadRequest);
        }
        if self.terms.route == Route::Publish && !self.admit(head, io, cx) {
            return;
        }
        if head.body == BodyLength::None {
            return match self.terms.route {
                Route::App => self.forward(head, io, cx),
                _ => self.answer_without_body(head, raw, io, cx),
            };
        }
        if head.expect_continue {
            let refused = match self.terms.route {
                Route::Refused(status) => Some(status),
                Route::OtherMethods(_) => Some(Status::MethodNotAllowed),
                _ => None,
            };
            if let Some(status) = refused {
                // RFC 9110 §10.1.1: the final answer instead of 100; whether the body comes is unknown.
                self.terms.persistent = false;
                answer::send_status(&self.terms, status, io, cx);
                return io.finish_lingering(CloseReason::Done);
            }
        }
        if matches!(self.terms.route, Route::Handler(_) | Route::Publish) && !self.keep(raw, io, cx) {
            return;
        }
        if self.terms.route == Route::App && !self.begin_forward(head, io, cx) {
            return;
        }
        if head.expect_continue {
            // The loop in `received` keeps room for more than this.
            let _ = io.send(CONTINUE);
            cx.http.counters.count_answer(Status::Continue);
        }
        self.waiting = Waiting::Body;
        self.since = io.now();
        self.body_received = 0;
    }

    fn answer_without_body(
        &mut self,
        head: &RequestHead<'_>,
        raw: &[u8],
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) {
        if let Route::Handler(number) = self.terms.route {
            let routes = &cx.http.config.routes;
            if let Handler::Inline(answer) = routes.handler(number) {
                let request = Request::new(*head, b"", routes.patterns(), self.peer.as_deref().copied());
                let response = contained(&request, |request| answer(request));
                return self.respond_inline(response, io, cx);
            }
        }
        if matches!(self.terms.route, Route::Handler(_) | Route::Publish) && !self.keep(raw, io, cx) {
            return;
        }
        self.answer(io, cx);
    }

    /// Keeps the request for its handler. False: there is no room, and the client has been told.
    fn keep(&mut self, head: &[u8], io: &mut Io<'_>, cx: &mut HttpContext<'_>) -> bool {
        let http = &*cx.http;
        let peer = self.peer.as_deref().copied();
        match KeptRequest::new(head, peer, &http.counters, http.config.requests_held_max) {
            Some(request) => {
                self.kept = Kept::Request(request);
                true
            }
            None => {
                self.shed(io, cx);
                false
            }
        }
    }

    /// There is no memory for the request: the client is told, and what else it sends is discarded.
    pub(super) fn shed(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        cx.http.counters.requests_shed.add(1);
        self.terms.persistent = false;
        self.let_go(cx);
        answer::send_status(&self.terms, Status::ServiceUnavailable, io, cx);
        io.finish_lingering(CloseReason::Done);
    }

    fn body(&mut self, piece: &[u8], io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        if self.terms.route == Route::Publish {
            let now = io.now();
            cx.hub.iter_mut().for_each(|hub| hub.published = now);
        }
        self.body_received += piece.len() as u64;
        if self.terms.route == Route::App {
            return self.forward_body(piece, io, cx);
        }
        if let Kept::Request(request) = &mut self.kept
            && !request.push(piece, cx.http.config.requests_held_max)
        {
            self.shed(io, cx);
        }
    }

    /// Answers the request that is complete.
    fn answer(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let terms = self.terms;
        let persistent = match terms.route {
            Route::Handler(number) => return self.handle(number, io, cx),
            Route::App => return self.forward_end(io, cx),
            Route::Publish => return self.publish(io, cx),
            Route::Slow | Route::Panic if cx.http.config.has_workers => {
                let (panics, span) = (terms.route == Route::Panic, cx.http.config.slow_duration);
                return self.submit(io, cx, move |context| {
                    assert!(!panics, "the demonstration of a panic in a job");
                    context.sleep(span);
                    JobOutcome(Work::Demo)
                });
            }
            Route::Fast | Route::Slow => return self.respond(Response::new(Status::Ok), io, cx),
            Route::Panic => answer::send_status(&terms, Status::InternalServerError, io, cx),
            Route::Status => {
                let now = io.now();
                return self.respond(status_page::answer(cx.http, now), io, cx);
            }
            Route::Metrics(format) => return self.respond(pages::metrics(cx.http, format), io, cx),
            Route::Live => answer::send(&terms, Status::Ok, TEXT, b"alive\n", io, cx),
            Route::Ready => pages::ready(&terms, io, cx),
            Route::Refused(status) => answer::send_status(&terms, status, io, cx),
            Route::OtherMethods(_) => answer::send_status(&terms, Status::MethodNotAllowed, io, cx),
        };
        self.answered(persistent, io, cx);
    }

    /// Gives the kept request to its handler.
    fn handle(&mut self, number: u16, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let Kept::Request(request) = std::mem::replace(&mut self.kept, Kept::Nothing) else {
            unreachable!("a handler's request is kept from its head on")
        };
        let config = &cx.http.config;
        let (routes, limits) = (&config.routes, config.limits);
        match routes.handler(number) {
            Handler::Worker(_) if config.has_workers => {
                let routes = Arc::clone(routes);
                let request = Shared::new(request);
                self.kept = Kept::Job(JobInput::Request(request.clone()));
                self.submit(io, cx, move |_| {
                    let request = request.take().expect("the request of a withdrawn job is not run");
                    let answer = routes.handler(number).answer();
                    let response = answer(&request.view(&limits, &routes));
                    JobOutcome(Work::Answer(Box::new(response.read_ahead())))
                });
            }
            handler => {
                // Without workers the shard does what they would.
                let is_workers = matches!(handler, Handler::Worker(_));
                let response = contained(&request.view(&limits, routes), |request| {
                    let response = handler.answer()(request);
                    if is_workers { response.read_ahead() } else { response }
                });
                self.respond_inline(response, io, cx);
            }
        }
    }

    /// What comes after an answer: the next request, or the end.
    pub(super) fn answered(&mut self, persistent: bool, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        self.kept = Kept::Nothing;
        self.waiting = Waiting::NextRequest;
        if persistent {
            // An answer that began before the server drains may have said that the connection persists.
            let draining = cx.http.is_draining();
            let patience = if draining { DRAIN_FIRST_BYTE } else { cx.http.config.timeouts.idle };
            let deadline = io.now().after(patience);
            io.set_deadline(Some(deadline));
        } else {
            io.finish(CloseReason::Done);
        }
    }

    /// Puts a job into the queue and stops reading until its result is there. `None`: the queue is full.
    pub(super) fn give<F>(
        &mut self,
        begun: Begun,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
        job: F,
    ) -> Option<Position>
    where
        F: FnOnce(&mut JobContext) -> JobOutcome + Send + 'static,
    {
        cx.http.counters.jobs.add(1);
        let ticket = io.token().bits();
        let submitted = match begun {
            Begun::No => cx.http.lane.submit(ticket, job),
            Begun::Yes => cx.http.lane.submit_lasting(ticket, job),
        };
        match submitted {
            Ok(position) => {
                self.since = io.now();
                io.pause();
                Some(position)
            }
            Err(Refused::Full(_) | Refused::Closed(_)) => {
                cx.http.counters.jobs_refused.add(1);
                None
            }
        }
    }

    /// Gives the request to a worker; or the shard does the work itself, if it may.
    fn submit<F>(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>, job: F)
    where
        F: FnOnce(&mut JobContext) -> JobOutcome + Send + 'static,
    {
        let job = match cx.http.lane.run_inline(job) {
            Ok(outcome) => {
                cx.http.counters.jobs.add(1);
                return self.work_is_done(outcome, io, cx);
            }
            Err(job) => job,
        };
        match self.give(Begun::No, io, cx, job) {
            Some(position) => {
                self.waiting = Waiting::Worker { position };
                self.wait_for_worker(position, io, cx);
            }
            None => {
                let persistent = answer::send_status(&self.terms, Status::ServiceUnavailable, io, cx);
                self.answered(persistent, io, cx);
            }
        }
    }

    /// Sets the deadline for a job: while it waits for a worker, the client is looked for now and then.
    fn wait_for_worker(&self, position: Position, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let config = &cx.http.config;
        let done_by = self.since.after(config.timeouts.work);
        let deadline = if cx.http.lane.is_waiting(position) {
            let taken_by = self.since.after(config.queue_age_max.min(config.timeouts.work));
            taken_by.min(io.now().after(CLIENT_LOOK))
        } else {
            done_by
        };
        io.set_deadline(Some(deadline));
    }

    /// The job's deadline came: it is time to look for the client, or no worker has taken the job in time, or it has
    /// not been done in time.
    fn look_at_work(&mut self, position: Position, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let config = &cx.http.config;
        let age_max = config.queue_age_max.min(config.timeouts.work);
        let (taken_by, done_by) = (self.since.after(age_max), self.since.after(config.timeouts.work));
        if io.now() >= taken_by && self.withdraw_job(true, cx) {
            cx.http.counters.jobs_expired.add(1);
            return self.after_work(Status::ServiceUnavailable, io, cx);
        }
        if io.now() < done_by {
            if cx.http.lane.is_waiting(position) {
                io.look_for_peer();
            }
            return self.wait_for_worker(position, io, cx);
        }
        cx.http.counters.jobs_overdue.add(1);
        self.terms.persistent = false;
        answer::send_status(&self.terms, Status::ServiceUnavailable, io, cx);
        // Whatever becomes of the job, its result is late from now on.
        self.waiting = Waiting::NextRequest;
        io.finish_lingering(CloseReason::WorkTimeout);
    }

    /// Takes the present job out of the workers' queue and frees what it holds. False: there is none, or a worker has
    /// it.
    fn withdraw_job(&mut self, is_late: bool, cx: &mut HttpContext<'_>) -> bool {
        let (Waiting::Worker { position } | Waiting::Piece { position }) = self.waiting else { return false };
        let is_withdrawn = cx.http.lane.withdraw(position, is_late);
        if is_withdrawn && let Kept::Job(input) = std::mem::replace(&mut self.kept, Kept::Nothing) {
            input.release();
        }
        is_withdrawn
    }

    /// Answers a request that no worker has answered, and goes on reading.
    fn after_work(&mut self, status: Status, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let persistent = answer::send_status(&self.terms, status, io, cx);
        self.answered(persistent, io, cx);
        io.resume();
    }

    /// The result of the job that the request waits for.
    fn work_is_done(&mut self, outcome: Outcome<JobOutcome>, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        match outcome {
            Outcome::Done(JobOutcome(Work::Demo)) => {
                io.resume();
                self.respond(Response::new(Status::Ok), io, cx);
            }
            Outcome::Done(JobOutcome(Work::Answer(response))) => {
                io.resume();
                self.respond(*response, io, cx);
            }
            Outcome::Done(JobOutcome(Work::Piece(_) | Work::Delegated)) => {
                unreachable!("a piece or part comes when one is waited for, and nobody waits for a delegate")
            }
            Outcome::Panicked => self.after_work(Status::InternalServerError, io, cx),
            Outcome::Expired => {
                cx.http.counters.jobs_expired.add(1);
                self.after_work(Status::ServiceUnavailable, io, cx);
            }
        }
    }

    fn reject(&mut self, error: &DecodeError, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        self.let_go(cx);
        // In the service's own memory: a flood of garbage must not become a flood of allocations.
        let mut text = std::mem::take(&mut cx.http.scratch);
        text.clear();
        let _ = writeln!(text, "{error}");
        answer::send(&Terms::unreadable(), error.status(), TEXT, &text, io, cx);
        cx.http.scratch = text;
        io.finish_lingering(CloseReason::ProtocolError);
    }

    fn time_out(&mut self, reason: CloseReason, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        // Whoever waits for the rest of the body hears at once that it does not come.
        self.let_go(cx);
        answer::send_status(&Terms::unreadable(), Status::RequestTimeout, io, cx);
        io.finish_lingering(reason);
    }

    /// Sets the deadline for what the bytes seen so far leave open.
    pub(super) fn keep_deadline(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let timeouts = &cx.http.config.timeouts;
        if self.decoder.in_body() {
            let earned = Duration::from_secs(self.body_received / self.body_rate_min(timeouts));
            let deadline = self.since.after(timeouts.body_grace + earned);
            io.set_deadline(Some(deadline));
        } else if self.decoder.in_head() && self.waiting != Waiting::Head {
            self.waiting = Waiting::Head;
            let deadline = io.now().after(timeouts.head);
            io.set_deadline(Some(deadline));
        }
    }
}

/// Runs a handler in the shard; its panic costs its answer only.
fn contained(request: &Request<'_>, answer: impl Fn(&Request<'_>) -> Response) -> Option<Response> {
    // What it may leave half-done is its own; the shard lends it nothing but the request.
    catch_unwind(AssertUnwindSafe(|| answer(request))).ok()
}

/// What the shard tells it: see [`Session`](stilling_engine::Session).
impl HttpSession {
    pub(crate) fn opened(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let draining = cx.http.is_draining();
        let patience = if draining { DRAIN_FIRST_BYTE } else { cx.http.config.timeouts.first_byte };
        let deadline = io.now().after(patience);
        io.set_deadline(Some(deadline));
    }

    pub(crate) fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, cx: &mut HttpContext<'_>) -> usize {
        if self.waiting == Waiting::Room {
            self.go_on(io, cx);
            if self.is_busy(io) {
                return 0;
            }
        }
        let limits = cx.http.config.limits;
        let mut consumed = 0;
        // The end of a body is an event of its own, behind its last byte.
        while consumed < bytes.len() || self.decoder.in_body() {
            // Whoever asks on without reading is answered one by one when the store is scarce.
            if io.room() < ANSWER_ROOM || io.has_unsent() && io.spare_room() < ANSWER_ROOM {
                io.again();
                break;
            }
            let input = &bytes[consumed..];
            match self.decoder.decode(&limits, input) {
                Ok(step) => {
                    consumed += step.consumed;
                    match step.event {
                        Event::NeedMore => break,
                        Event::Head(head) => self.head(&head, &input[..step.consumed], io, cx),
                        Event::Body(piece) => self.body(piece, io, cx),
                        Event::End => self.answer(io, cx),
                    }
                }
                Err(error) => self.reject(&error, io, cx),
            }
            if self.is_busy(io) {
                return consumed;
            }
        }
        self.forward_what_came(io, cx);
        if !self.is_busy(io) {
            self.keep_deadline(io, cx);
        }
        consumed
    }

    pub(crate) fn ended(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        if self.decoder.in_head() || self.decoder.in_body() {
            // The rest will never come, but the peer may still read.
            self.let_go(cx);
            answer::send_status(&Terms::unreadable(), Status::BadRequest, io, cx);
            io.finish(CloseReason::ProtocolError);
        } else {
            io.finish(CloseReason::PeerClosed);
        }
    }

    pub(crate) fn flushed(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        // The peer was busy reading; its time starts anew.
        match self.waiting {
            Waiting::Worker { .. } | Waiting::Piece { .. } | Waiting::QueueRoom | Waiting::Room => {}
            Waiting::Upstream | Waiting::UpstreamPart | Waiting::HubRoom | Waiting::Verdict => {}
            Waiting::Head => {
                let deadline = io.now().after(cx.http.config.timeouts.head);
                io.set_deadline(Some(deadline));
            }
            Waiting::Body => {
                self.since = io.now();
                self.body_received = 0;
                self.keep_deadline(io, cx);
            }
            Waiting::NextRequest if cx.http.is_draining() && !io.has_unread() => {
                io.finish(CloseReason::Drained);
            }
            Waiting::FirstByte | Waiting::NextRequest => {
                let deadline = io.now().after(cx.http.config.timeouts.idle);
                io.set_deadline(Some(deadline));
            }
        }
    }

    /// A worker is through with the job that was queued at that position.
    pub(crate) fn job_done(
        &mut self,
        done: Position,
        outcome: Outcome<JobOutcome>,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) {
        match self.waiting {
            Waiting::Worker { position } if done == position => self.work_is_done(outcome, io, cx),
            Waiting::Piece { position } if done == position => self.piece_is_read(outcome, io, cx),
            _ => cx.http.counters.late_results.add(1),
        }
    }

    /// The worker processes' pool says something about a request, which may be an earlier one.
    pub(crate) fn upstream_event(
        &mut self,
        id: RequestId,
        event: UpstreamEvent,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) {
        if self.request_id() == Some(id) {
            self.forwarded(event, io, cx);
        }
    }

    /// The connection is gone, and with it the wish for an answer; unless it has only left the shard, with what is to
    /// become of it.
    pub(crate) fn closed(&mut self, reason: CloseReason, cx: &mut HttpContext<'_>) {
        self.end_publication(cx);
        if reason != CloseReason::Detached {
            self.let_go(cx);
        }
    }

    /// Forgets what is kept of the present request. Its job is cancelled if it has not begun; a process that has the
    /// request is told that its answer is not wanted.
    pub(super) fn let_go(&mut self, cx: &mut HttpContext<'_>) {
        self.withdraw_job(false, cx);
        let id = match std::mem::replace(&mut self.kept, Kept::Nothing) {
            Kept::Submitted(id) => Some(id),
            Kept::Forwarded(forwarded) => forwarded.id,
            Kept::Nothing
            | Kept::Request(_)
            | Kept::Answer(_)
            | Kept::Delegate(_)
            | Kept::Job(_)
            | Kept::Published(_) => None,
        };
        if let Some((id, upstream)) = id.zip(cx.upstream.as_mut()) {
            upstream.abandon(id, false);
        }
    }

    pub(crate) fn deadline(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        match self.waiting {
            // Its request may come in this moment, and is to meet an end in good order, not a reset.
            Waiting::FirstByte if cx.http.is_draining() => io.finish(CloseReason::Drained),
            Waiting::FirstByte => io.abort(CloseReason::FirstByteTimeout),
            Waiting::NextRequest if cx.http.is_draining() => io.finish(CloseReason::Drained),
            Waiting::NextRequest => io.finish(CloseReason::IdleTimeout),
            Waiting::Head => self.time_out(CloseReason::HeadTimeout, io, cx),
            Waiting::Body => self.time_out(CloseReason::BodyTimeout, io, cx),
            Waiting::Worker { position } => self.look_at_work(position, io, cx),
            Waiting::Piece { position } if io.now() < self.since.after(cx.http.config.timeouts.work) => {
                if cx.http.lane.is_waiting(position) {
                    io.look_for_peer();
                }
                self.wait_for_piece(position, io, cx);
            }
            Waiting::Piece { .. } => {
                cx.http.counters.jobs_overdue.add(1);
                io.abort(CloseReason::WorkTimeout);
            }
            Waiting::QueueRoom => {
                io.resume();
                self.go_on(io, cx);
            }
            Waiting::Upstream | Waiting::UpstreamPart => self.check_forward(io, cx),
            Waiting::HubRoom => self.room_is_late(io, cx),
            Waiting::Verdict => self.verdict_is_late(io, cx),
            Waiting::Room => {}
        }
    }

    pub(crate) fn draining(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        match self.waiting {
            // With requests unread it goes on: the next answer ends it. Answers that have not gone yet go
            // before the end.
            Waiting::NextRequest if self.decoder.is_idle() && !io.has_unread() => {
                io.finish(CloseReason::Drained);
            }
            // Its request may be on the way: a short wait for it, then the end.
            Waiting::FirstByte => {
                let deadline = io.now().after(DRAIN_FIRST_BYTE);
                io.set_deadline(Some(deadline));
            }
            Waiting::HubRoom | Waiting::Verdict if cx.http.hub_is_abandoned() => {
                self.abandon_publication(io, cx);
            }
            // The answer says that the connection closes.
            _ => {}
        }
    }
}

impl HttpSession {
    /// Whether the next request has to wait for the present one's answer.
    pub(super) fn is_busy(&self, io: &Io<'_>) -> bool {
        io.is_finishing() || io.is_paused() || self.waiting == Waiting::Room
    }
}

/// How long a draining server waits for the first byte of a connection it has accepted, and for the next
/// request of one that it has told to persist.
const DRAIN_FIRST_BYTE: Duration = Duration::from_secs(1);
