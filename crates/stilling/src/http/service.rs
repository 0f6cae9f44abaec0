//! What the HTTP sessions of one shard share: limits, the lane to the workers, the date, counters.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::{CloseReason, Control, Service, Token};
use stilling_ring::Time;
use stilling_wire::http1::{Date, Limits};
use stilling_workers::{Completed, Lane, Outcome};

use super::answer::ReadyAnswer;
use super::counters::HttpCounters;
use super::response::Response;
use super::route::Door;
use super::routes::Routes;
use super::session::HttpSession;
use super::stream::Stream;
use crate::app::Said;
use crate::app::limits::{SPARE_BUFFERS_MAX, SPARE_SIZE_MAX};
use crate::lifecycle::{Lifecycle, Phase};
use crate::overview::Overview;

/// How long a client may take for what; see `docs/limits.md`.
#[derive(Clone, Debug)]
pub struct Timeouts {
    /// From the connection to its first byte.
    pub first_byte: Duration,
    /// From the first byte of a head to its last: for the whole head, however it trickles in.
    pub head: Duration,
    /// Before the rate of a body counts.
    pub body_grace: Duration,
    /// The least rate of a body after that, in bytes per second.
    pub body_rate_min: u64,
    /// Between two requests of a kept connection.
    pub idle: Duration,
    /// For a job to be taken and done. Then 503, and the connection closes.
    pub work: Duration,
    /// For requests in flight when the server drains.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            first_byte: Duration::from_secs(10),
            head: Duration::from_secs(10),
            body_grace: Duration::from_secs(10),
            body_rate_min: 1024,
            idle: Duration::from_secs(60),
            work: Duration::from_secs(60),
            drain: Duration::from_secs(30),
        }
    }
}

/// How a shard's HTTP service behaves.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// What the decoder accepts.
    pub limits: Limits,
    /// How long clients may take.
    pub timeouts: Timeouts,
    /// How long slow work takes.
    pub slow_duration: Duration,
    /// Whether there are workers; without, slow work is answered like fast.
    pub has_workers: bool,
    /// How long a job may wait for a worker; then 503.
    pub queue_age_max: Duration,
    /// What is answered at each listener.
    pub doors: Vec<Door>,
    /// What is answered beside the server's own pages.
    pub routes: Arc<Routes>,
    /// How long a client that a worker serves may take none of its bytes.
    pub write_timeout: Duration,
    /// Bytes of requests that may wait for their bodies or for workers, or be with workers; then 503.
    pub requests_held_max: usize,
    /// Bytes of handlers' answers that may wait for their clients; then 503.
    pub answers_held_max: usize,
    /// All but the server's own pages is answered by worker processes.
    pub has_app: bool,
}

/// How far the date may lag behind, so that not every request asks for the time.
const DATE_STALE_MAX: Duration = Duration::from_millis(50);

/// What a worker returns.
#[derive(Debug)]
pub struct JobOutcome(pub(super) Work);

/// What a worker has done.
#[derive(Debug)]
pub(super) enum Work {
    /// The demo routes' pretended work.
    Demo,
    /// A handler's answer.
    Answer(Box<Response>),
    /// The next piece of an answer.
    Piece(Box<Stream>),
    /// A connection was served that the shard does not have any more.
    Delegated,
    /// What a worker process answered, or wants.
    App(Said),
}

impl JobOutcome {
    /// What the job that asks a worker process says.
    pub(crate) fn app(said: Said) -> JobOutcome {
        JobOutcome(Work::App(said))
    }

    /// What such a job has said.
    #[cfg(test)]
    pub(crate) fn into_app(self) -> Said {
        match self.0 {
            Work::App(said) => said,
            other => panic!("not of a worker process: {other:?}"),
        }
    }
}

/// The shared part of one shard's HTTP sessions.
pub struct HttpService {
    pub(super) config: HttpConfig,
    pub(super) lane: Lane<JobOutcome>,
    pub(super) counters: Arc<HttpCounters>,
    pub(super) overview: Arc<Overview>,
    lifecycle: Arc<Lifecycle>,
    /// When the drain that has begun here ends.
    drain_deadline: Option<Time>,
    /// Whoever had not finished by then has been cut off.
    cut_off: bool,
    date: Date,
    /// The second for which `date` and the ready answers were made.
    second: u64,
    /// When the calendar is to be asked again.
    date_until: Time,
    ready: [ReadyAnswer; 2],
    /// Memory for short texts, kept so that nobody has to allocate any.
    pub(super) scratch: Vec<u8>,
    /// Buffers for requests to worker processes and their answers.
    spare: Vec<Vec<u8>>,
}

impl HttpService {
    /// The service of one shard.
    pub fn new(
        config: HttpConfig,
        lane: Lane<JobOutcome>,
        counters: Arc<HttpCounters>,
        overview: Arc<Overview>,
        lifecycle: Arc<Lifecycle>,
    ) -> Self {
        let mut scratch = Vec::with_capacity(256);
        let second = lifecycle.unix_seconds(Time::ZERO);
        let date = Date::from_unix_seconds(second);
        let ready = [false, true].map(|keep_alive_10| ReadyAnswer::new(&date, keep_alive_10, &mut scratch));
        HttpService {
            config,
            lane,
            counters,
            overview,
            lifecycle,
            drain_deadline: None,
            cut_off: false,
            date,
            second,
            date_until: Time::ZERO,
            ready,
            scratch,
            spare: Vec::new(),
        }
    }

    /// A buffer that may have been used before.
    pub(super) fn take_buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps a buffer for the next who needs one.
    pub(super) fn give_buffer(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS_MAX && (1..=SPARE_SIZE_MAX).contains(&buffer.capacity()) {
            self.spare.push(buffer);
        }
    }

    /// Whether the end has been asked for. Answers say so at once, also those of a shard that has not
    /// begun its drain yet.
    pub(super) fn is_draining(&self) -> bool {
        !self.is_ready()
    }

    /// The date now.
    pub(super) fn date(&mut self, now: Time) -> Date {
        self.refresh(now);
        self.date
    }

    /// The demo answer for a kept connection.
    pub(super) fn ready_answer(&mut self, now: Time, keep_alive_10: bool) -> &ReadyAnswer {
        self.refresh(now);
        &self.ready[usize::from(keep_alive_10)]
    }

    /// Whether the server is ready for more work.
    pub(super) fn is_ready(&self) -> bool {
        self.lifecycle.phase() == Phase::Running
    }

    fn refresh(&mut self, now: Time) {
        if now < self.date_until {
            return;
        }
        self.date_until = now.after(DATE_STALE_MAX);
        let second = self.lifecycle.unix_seconds(now);
        if second != self.second {
            self.second = second;
            self.date = Date::from_unix_seconds(second);
            self.ready = [false, true]
                .map(|keep_alive_10| ReadyAnswer::new(&self.date, keep_alive_10, &mut self.scratch));
        }
    }

    /// Follows the process through its life: running, draining, gone.
    fn follow_lifecycle(&mut self, control: &mut Control<'_, Self>) -> Option<Time> {
        let phase = self.lifecycle.phase();
        if phase == Phase::Running {
            return None;
        }
        let Some(deadline) = self.drain_deadline else {
            self.drain_deadline = Some(control.now.after(self.config.timeouts.drain));
            control.close_listeners();
            control.drain();
            // The listeners' last connections come in with the next turn.
            return Some(control.now);
        };
        if control.is_empty() {
            control.stop();
            return None;
        }
        if control.now >= deadline || phase == Phase::Stopping {
            if !std::mem::replace(&mut self.cut_off, true) {
                control.abort_all(CloseReason::DrainTimeout);
            }
            return None;
        }
        Some(deadline)
    }
}

impl Service for HttpService {
    type Session = HttpSession;
    type Mail = (u8, Outcome<JobOutcome>);

    fn accepted(&mut self, listener: u32) -> HttpSession {
        HttpSession::new(self.config.doors[listener as usize])
    }

    fn accepted_from(&mut self, listener: u32, peer: impl FnOnce() -> Option<IpAddr>) -> HttpSession {
        let mut session = self.accepted(listener);
        if self.config.has_app || self.config.routes.wants_peers() {
            session.comes_from(peer());
        }
        session
    }

    fn next_mail(&mut self) -> Option<(Token, Self::Mail)> {
        let Completed { ticket, outcome } = self.lane.next_result()?;
        Some((Token::from_bits(ticket), ((ticket >> 56) as u8, outcome)))
    }

    fn has_mail(&self) -> bool {
        self.lane.has_result()
    }

    fn turn(&mut self, control: &mut Control<'_, Self>) -> Option<Time> {
        self.lane.publish();
        self.follow_lifecycle(control)
    }
}
