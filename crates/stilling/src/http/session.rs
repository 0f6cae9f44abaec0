//! One HTTP connection: reads requests in order, answers each, keeps the deadlines.

use std::time::Duration;

use stilling_engine::{CloseReason, Io, Session};
use stilling_ring::Time;
use stilling_wire::http1::{BodyLength, CONTINUE, DecodeError, Event, RequestDecoder, RequestHead, Status};
use stilling_workers::{JobContext, Outcome, Position, Refused};

use super::answer::{self, ANSWER_SIZE_MAX, Request};
use super::pages;
use super::route::Route;
use super::service::{HttpService, JobOutcome};

/// What the connection is waiting for; decides what its deadline means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
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
}

/// The state of one HTTP connection.
#[derive(Debug)]
pub struct HttpSession {
    decoder: RequestDecoder,
    waiting: Waiting,
    request: Request,
    /// When the body began, or the job was submitted.
    since: Time,
    /// Bytes of the body so far.
    body_received: u64,
    /// Which of the connection's jobs is the present one; a result with another number is late.
    job: u8,
    demo: bool,
}

const _: () = assert!(size_of::<HttpSession>() <= 104, "the HTTP session has grown");

impl HttpSession {
    pub(super) fn new(demo: bool) -> Self {
        HttpSession {
            decoder: RequestDecoder::default(),
            waiting: Waiting::FirstByte,
            request: Request::unreadable(),
            since: Time::ZERO,
            body_received: 0,
            job: 0,
            demo,
        }
    }

    fn head(&mut self, head: &RequestHead<'_>, io: &mut Io<'_, HttpService>) {
        self.request = Request::of(head, self.demo);
        if head.body == BodyLength::None {
            return self.answer(io);
        }
        if head.expect_continue {
            let refused = match self.request.route {
                Route::Refused(status) => Some(status),
                Route::OtherMethods { .. } => Some(Status::MethodNotAllowed),
                _ => None,
            };
            if let Some(status) = refused {
                // RFC 9110 §10.1.1: the final answer instead of 100; whether the body comes is unknown.
                self.request.persistent = false;
                answer::send_status(&self.request, status, io);
                return io.finish_lingering(CloseReason::Done);
            }
            // The loop in `received` keeps room for more than this.
            let _ = io.send(CONTINUE);
            io.service.counters.answers(Status::Continue).add(1);
        }
        self.waiting = Waiting::Body;
        self.since = io.now();
        self.body_received = 0;
    }

    /// Answers the request that is complete.
    fn answer(&mut self, io: &mut Io<'_, HttpService>) {
        let request = self.request;
        let persistent = match request.route {
            Route::Slow | Route::Panic if io.service.config.has_workers => return self.submit(io),
            Route::Fast | Route::Slow => answer::send_ok(&request, io),
            Route::Panic => answer::send_status(&request, Status::InternalServerError, io),
            Route::Status => pages::status(&request, io),
            Route::Metrics => pages::metrics(&request, io),
            Route::Live => answer::send(&request, Status::Ok, answer::TEXT, b"alive\n", io),
            Route::Ready if io.service.is_ready() => {
                answer::send(&request, Status::Ok, answer::TEXT, b"ready\n", io)
            }
            Route::Ready => answer::send_status(&request, Status::ServiceUnavailable, io),
            Route::Refused(status) => answer::send_status(&request, status, io),
            Route::OtherMethods { .. } => answer::send_status(&request, Status::MethodNotAllowed, io),
        };
        self.answered(persistent, io);
    }

    /// What comes after an answer: the next request, or the end.
    fn answered(&mut self, persistent: bool, io: &mut Io<'_, HttpService>) {
        self.waiting = Waiting::NextRequest;
        if persistent {
            let deadline = io.now().after(io.service.config.timeouts.idle);
            io.set_deadline(Some(deadline));
        } else {
            io.finish(CloseReason::Done);
        }
    }

    /// Gives the request to a worker and stops reading until it is answered.
    fn submit(&mut self, io: &mut Io<'_, HttpService>) {
        io.service.counters.jobs.add(1);
        self.job = self.job.wrapping_add(1);
        let ticket = io.token().bits() | u64::from(self.job) << 56;
        let (panics, span) = (self.request.route == Route::Panic, io.service.config.slow_duration);
        let job = move |context: &mut JobContext| -> JobOutcome {
            assert!(!panics, "the demonstration of a panic in a job");
            context.sleep(span);
        };
        match io.service.lane.submit(ticket, job) {
            Ok(position) => {
                self.waiting = Waiting::Worker { position };
                self.since = io.now();
                let config = &io.service.config;
                let deadline = self.since.after(config.queue_age_max.min(config.timeouts.work));
                io.set_deadline(Some(deadline));
                io.pause();
            }
            Err(Refused::Full(_) | Refused::Closed(_)) => {
                io.service.counters.jobs_refused.add(1);
                let persistent = answer::send_status(&self.request, Status::ServiceUnavailable, io);
                self.answered(persistent, io);
            }
        }
    }

    /// The job's deadline came: no worker has taken it in time, or it has not been done in time.
    fn work_is_late(&mut self, position: Position, io: &mut Io<'_, HttpService>) {
        let done_by = self.since.after(io.service.config.timeouts.work);
        let overdue = io.now() >= done_by;
        let waits = io.service.lane.is_waiting(position);
        if !overdue && !waits {
            return io.set_deadline(Some(done_by));
        }
        // Whatever becomes of the job, its result is late from now on.
        self.job = self.job.wrapping_add(1);
        io.service.counters.jobs_expired.add(1);
        if waits {
            return self.after_work(Status::ServiceUnavailable, io);
        }
        self.request.persistent = false;
        answer::send_status(&self.request, Status::ServiceUnavailable, io);
        io.finish_lingering(CloseReason::WorkTimeout);
    }

    /// Answers a request that a worker had, and goes on reading.
    fn after_work(&mut self, status: Status, io: &mut Io<'_, HttpService>) {
        let request = self.request;
        let persistent = match status {
            Status::Ok => answer::send_ok(&request, io),
            _ => answer::send_status(&request, status, io),
        };
        self.answered(persistent, io);
        io.resume();
    }

    fn reject(&mut self, error: &DecodeError, io: &mut Io<'_, HttpService>) {
        let text = format!("{error}\n");
        answer::send(&Request::unreadable(), error.status(), answer::TEXT, text.as_bytes(), io);
        io.finish_lingering(CloseReason::ProtocolError);
    }

    fn time_out(&mut self, reason: CloseReason, io: &mut Io<'_, HttpService>) {
        answer::send_status(&Request::unreadable(), Status::RequestTimeout, io);
        io.finish_lingering(reason);
    }

    /// Sets the deadline for what the bytes seen so far leave open.
    fn keep_deadline(&mut self, io: &mut Io<'_, HttpService>) {
        let timeouts = &io.service.config.timeouts;
        if self.decoder.in_body() {
            let earned = Duration::from_secs(self.body_received / timeouts.body_rate_min.max(1));
            let deadline = self.since.after(timeouts.body_grace + earned);
            io.set_deadline(Some(deadline));
        } else if self.decoder.in_head() && self.waiting != Waiting::Head {
            self.waiting = Waiting::Head;
            let deadline = io.now().after(timeouts.head);
            io.set_deadline(Some(deadline));
        }
    }
}

impl Session for HttpSession {
    type Service = HttpService;

    fn opened(&mut self, io: &mut Io<'_, HttpService>) {
        let draining = io.service.is_draining();
        let patience = if draining { DRAIN_FIRST_BYTE } else { io.service.config.timeouts.first_byte };
        let deadline = io.now().after(patience);
        io.set_deadline(Some(deadline));
    }

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_, HttpService>) -> usize {
        let limits = io.service.config.limits;
        let mut consumed = 0;
        // The end of a body is an event of its own, behind its last byte.
        while consumed < bytes.len() || self.decoder.in_body() {
            if io.room() < ANSWER_SIZE_MAX {
                io.again();
                break;
            }
            match self.decoder.decode(&limits, &bytes[consumed..]) {
                Ok(step) => {
                    consumed += step.consumed;
                    match step.event {
                        Event::NeedMore => break,
                        Event::Head(head) => self.head(&head, io),
                        Event::Body(piece) => self.body_received += piece.len() as u64,
                        Event::End => self.answer(io),
                    }
                }
                Err(error) => self.reject(&error, io),
            }
            if io.is_finishing() || io.is_paused() {
                return consumed;
            }
        }
        self.keep_deadline(io);
        consumed
    }

    fn ended(&mut self, io: &mut Io<'_, HttpService>) {
        if self.decoder.in_head() || self.decoder.in_body() {
            // The rest will never come, but the peer may still read.
            answer::send_status(&Request::unreadable(), Status::BadRequest, io);
            io.finish(CloseReason::ProtocolError);
        } else {
            io.finish(CloseReason::PeerClosed);
        }
    }

    fn drained(&mut self, io: &mut Io<'_, HttpService>) {
        // The peer was busy reading; its time starts anew.
        match self.waiting {
            Waiting::Worker { .. } => {}
            Waiting::Head => {
                let deadline = io.now().after(io.service.config.timeouts.head);
                io.set_deadline(Some(deadline));
            }
            Waiting::Body => self.keep_deadline(io),
            Waiting::NextRequest if io.service.is_draining() && !io.has_unread() => {
                io.finish(CloseReason::Drained);
            }
            Waiting::FirstByte | Waiting::NextRequest => {
                let deadline = io.now().after(io.service.config.timeouts.idle);
                io.set_deadline(Some(deadline));
            }
        }
    }

    fn delivered(&mut self, (job, outcome): (u8, Outcome<JobOutcome>), io: &mut Io<'_, HttpService>) {
        if job != self.job || !matches!(self.waiting, Waiting::Worker { .. }) {
            return io.service.counters.late_results.add(1);
        }
        let status = match outcome {
            Outcome::Done(()) => Status::Ok,
            Outcome::Panicked => Status::InternalServerError,
            Outcome::Expired => {
                io.service.counters.jobs_expired.add(1);
                Status::ServiceUnavailable
            }
        };
        self.after_work(status, io);
    }

    fn deadline(&mut self, io: &mut Io<'_, HttpService>) {
        match self.waiting {
            Waiting::FirstByte => io.abort(CloseReason::FirstByteTimeout),
            Waiting::NextRequest => io.finish(CloseReason::IdleTimeout),
            Waiting::Head => self.time_out(CloseReason::HeadTimeout, io),
            Waiting::Body => self.time_out(CloseReason::BodyTimeout, io),
            Waiting::Worker { position } => self.work_is_late(position, io),
        }
    }

    fn draining(&mut self, io: &mut Io<'_, HttpService>) {
        match self.waiting {
            // With answers held up or requests unread it goes on: `drained`, or the next answer, ends it.
            Waiting::NextRequest if self.decoder.is_idle() && !io.has_unsent() && !io.has_unread() => {
                io.finish(CloseReason::Drained);
            }
            // Its request may be on the way: a short wait for it, then the end.
            Waiting::FirstByte => {
                let deadline = io.now().after(DRAIN_FIRST_BYTE);
                io.set_deadline(Some(deadline));
            }
            // The answer says that the connection closes.
            _ => {}
        }
    }
}

/// How long a draining server waits for the first byte of a connection it has accepted.
const DRAIN_FIRST_BYTE: Duration = Duration::from_secs(1);
