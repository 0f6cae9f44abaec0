//! The load of one thread: opens connections, schedules requests, counts results.
//!
//! ```text
//!  Opening ──► Waiting ─┬─► Running ──► Finishing ─┬─► Closing
//!  (connect)   (for the │   (load)      (answers   │   (close all)
//!               others) │               in flight) │
//!                       └─► Holding ───────────────┘
//!                           (idle connections)
//! ```
//!
//! In a closed loop a connection sends again when an answer arrives. In an open loop due requests wait in the backlog
//! for a connection, and ready connections wait in a queue for a request.

mod session;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::driver::Destination;
use stilling_engine::{CloseReason, Recipient, Service, ShardControl, Token};
use stilling_ring::{Clock, Time};
use stilling_wire::http1::{AnsweredMethod, HttpLimits};

use self::session::GeneratorSession;
use super::limits::CONNECTING_MAX;
use super::plan::{HttpPlan, RunLength};
use super::schedule::RequestBacklog;
use super::slots::{ConnectionSlots, RequestTimes};
use super::start_barrier::StartBarrier;
use super::tally::{HttpTally, LiveCounters, RequestFailure};
use super::timeline::Timeline;

/// Pause of a slot after a refused connection.
const REDIAL_PAUSE: Duration = Duration::from_millis(50);

/// Time without any connection while all attempts fail, after which the thread gives up.
const REFUSED_TIMEOUT: Duration = Duration::from_secs(3);

/// State shared by the threads of a run.
pub(crate) struct GeneratorShared {
    pub(crate) plan: HttpPlan,
    pub(crate) to: std::net::SocketAddr,
    pub(crate) request: Vec<u8>,
    pub(crate) reply_to: AnsweredMethod,
    pub(crate) limits: HttpLimits,
    pub(crate) expected_body: Vec<u8>,
    pub(crate) start: StartBarrier,
    pub(crate) live: Vec<LiveCounters>,
}

impl GeneratorShared {
    pub(crate) fn share(&self, total: u64, thread: u32) -> u64 {
        let threads = u64::from(self.plan.threads);
        total / threads + u64::from(u64::from(thread) < total % threads)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GeneratorPhase {
    Opening,
    Waiting,
    Running,
    Finishing,
    Holding,
    Closing,
}

pub(crate) struct LoadGenerator {
    shared: Arc<GeneratorShared>,
    thread: u32,
    clock: Clock,
    pub(crate) slots: ConnectionSlots,
    pub(crate) tally: HttpTally,
    /// Number of this thread's first slot in the whole run.
    first_slot: u32,
    phase: GeneratorPhase,
    now: Time,
    /// Slots to connect as soon as possible, or when a request needs one.
    dial_queue: VecDeque<u32>,
    /// Slots with a refused connection, and the time of the next attempt.
    redial_queue: VecDeque<(Time, u32)>,
    connecting: u32,
    /// Slots that still await the outcome of their first connection attempt.
    untried: u32,
    /// Start of the current period in which no connection could be opened.
    refused_since: Option<Time>,
    /// Requests that a closed loop may still start, without those of the warm-up.
    budget: u64,
    backlog: Option<RequestBacklog>,
    backlog_filled: bool,
    /// Requests before this time are warm-up.
    measured_from: Time,
    /// Time after which no more requests start, or holding ends.
    end: Option<Time>,
}

impl LoadGenerator {
    pub(crate) fn new(shared: &Arc<GeneratorShared>, thread: u32, clock: Clock) -> Self {
        let total = u64::from(shared.plan.connections);
        // Bounded by the number of connections, which is a u32.
        let slots = shared.share(total, thread) as u32;
        let first_slot = (0..thread).map(|earlier| shared.share(total, earlier) as u32).sum();
        let now = clock.now();
        LoadGenerator {
            shared: Arc::clone(shared),
            thread,
            clock,
            slots: ConnectionSlots::new(slots, shared.plan.pipeline),
            tally: HttpTally::new(),
            first_slot,
            phase: GeneratorPhase::Opening,
            now,
            dial_queue: (0..slots).collect(),
            redial_queue: VecDeque::with_capacity(slots as usize),
            connecting: 0,
            untried: if shared.plan.keep_alive { slots } else { 0 },
            refused_since: None,
            budget: match shared.plan.length {
                RunLength::Requests(total) => shared.share(total, thread),
                RunLength::Duration(_) | RunLength::Hold(_) => u64::MAX,
            },
            backlog: None,
            backlog_filled: false,
            measured_from: now,
            end: None,
        }
    }

    pub(crate) fn connections(&self) -> u32 {
        self.slots.count()
    }

    /// Requests of the open loop that never started: backlog full, waited too long.
    pub(crate) fn dropped(&self) -> (u64, u64) {
        self.backlog.as_ref().map_or((0, 0), |backlog| (backlog.overflowed(), backlog.expired()))
    }

    pub(crate) fn is_open_loop(&self) -> bool {
        self.shared.plan.is_open_loop()
    }

    fn is_limited(&self) -> bool {
        matches!(self.shared.plan.length, RunLength::Requests(_))
    }

    /// Takes the next request to start now; returns its intended start.
    pub(crate) fn next_request(&mut self, now: Time) -> Option<Time> {
        self.now = self.now.max(now);
        if self.phase != GeneratorPhase::Running {
            return None;
        }
        let intended = if let Some(backlog) = &mut self.backlog {
            backlog.pop(now, self.shared.plan.timeout)?
        } else if self.may_begin() {
            now
        } else {
            return None;
        };
        self.count_request(intended);
        Some(intended)
    }

    /// Returns whether a closed loop may start a request.
    fn may_begin(&self) -> bool {
        self.phase == GeneratorPhase::Running && self.budget > 0 && self.end.is_none_or(|end| self.now < end)
    }

    pub(crate) fn count_request(&mut self, intended: Time) {
        if intended >= self.measured_from {
            self.tally.requests += 1;
            if self.is_limited() && self.backlog.is_none() {
                self.budget -= 1;
            }
        }
        if let Some(timeline) = &mut self.tally.timeline {
            timeline.record_started(intended);
        }
    }

    pub(crate) fn record_success(&mut self, times: RequestTimes, now: Time) {
        self.live().ok.add(1);
        if times.intended < self.measured_from {
            return;
        }
        // The histogram covers more than any timeout; larger values count as its maximum.
        self.tally.latency.saturating_record(now.since(times.intended).as_nanos() as u64);
        if self.is_open_loop() {
            self.tally.service.saturating_record(now.since(times.sent).as_nanos() as u64);
        }
        if let Some(timeline) = &mut self.tally.timeline {
            timeline.record_success(times.intended, now);
        }
        self.tally.ok += 1;
        self.tally.ok_in_window += u64::from(self.end.is_none_or(|end| now <= end));
        self.tally.last_done = now.since(self.measured_from).as_nanos() as u64;
    }

    pub(crate) fn record_shed(&mut self, times: RequestTimes, now: Time) {
        self.live().shed.add(1);
        if let Some(timeline) = &mut self.tally.timeline {
            timeline.record_shed(times.intended, now);
        }
        self.tally.shed += u64::from(times.intended >= self.measured_from);
    }

    /// Records `count` failed requests, or a failed connection.
    #[cold]
    pub(crate) fn record_failure(
        &mut self,
        failure: RequestFailure,
        count: u64,
        detail: impl FnOnce() -> String,
    ) {
        self.live().failures.add(count);
        self.tally.fail(failure, count, detail);
    }

    fn live(&self) -> &LiveCounters {
        &self.shared.live[self.thread as usize]
    }

    /// Discards the requests in flight of a slot after their failure is recorded.
    pub(crate) fn drop_in_flight(&mut self, slot: u32) {
        while self.slots.end(slot).is_some() {}
    }

    /// Requeues the requests in flight of a connection that the server closes in order (RFC 9112 §9.3.2): they are sent
    /// again on another one.
    pub(crate) fn requeue(&mut self, slot: u32) {
        while let Some(times) = self.slots.requeue(slot) {
            let measured = times.intended >= self.measured_from;
            self.tally.requests -= u64::from(measured);
            if let Some(timeline) = &mut self.tally.timeline {
                timeline.record_requeued(times.intended);
            }
            if self.is_limited() && self.phase == GeneratorPhase::Finishing {
                self.phase = GeneratorPhase::Running;
            }
            match &mut self.backlog {
                Some(backlog) if self.phase == GeneratorPhase::Running => backlog.put_back(times.intended),
                Some(_) => self.tally.unsent += u64::from(measured),
                None => self.budget = self.budget.saturating_add(u64::from(measured)),
            }
        }
    }

    pub(crate) fn handle_connected(&mut self, slot: u32, token: Token) {
        self.connecting -= 1;
        self.refused_since = None;
        self.slots.open(slot, token);
        self.record_attempt(slot);
    }

    pub(crate) fn handle_closed(&mut self, slot: u32, reason: CloseReason, was_open: bool) {
        let owed = self.slots.in_flight(slot);
        let failure = match reason {
            _ if self.phase == GeneratorPhase::Closing => None,
            _ if !was_open => Some(RequestFailure::ConnectFailed),
            CloseReason::PeerReset => Some(RequestFailure::Reset),
            _ if owed == 0 => None,
            CloseReason::WriteTimeout => Some(RequestFailure::Timeout),
            _ => Some(RequestFailure::Local),
        };
        if let Some(failure) = failure {
            self.drop_in_flight(slot);
            self.record_failure(failure, owed.max(1).into(), || match failure {
                RequestFailure::ConnectFailed => "a connection could not be opened".to_owned(),
                RequestFailure::Reset => "the server reset a connection".to_owned(),
                RequestFailure::Timeout => "the server did not read a request in time".to_owned(),
                _ => format!("a connection ended: {}", reason.name()),
            });
        }
        self.slots.mark_empty(slot);
        if !was_open {
            self.connecting -= 1;
            self.record_attempt(slot);
        }
        if self.shared.plan.holds() {
            return;
        }
        if was_open {
            self.dial_queue.push_back(slot);
        } else {
            self.refused_since.get_or_insert(self.now);
            self.redial_queue.push_back((self.now.after(REDIAL_PAUSE), slot));
        }
    }

    fn record_attempt(&mut self, slot: u32) {
        if self.shared.plan.keep_alive {
            self.untried -= u32::from(self.slots.record_attempt(slot));
        }
    }

    fn begin(&mut self, start: Time) {
        let plan = &self.shared.plan;
        self.measured_from = start.after(plan.warmup);
        self.phase = GeneratorPhase::Running;
        match plan.length {
            RunLength::Hold(span) => {
                self.phase = GeneratorPhase::Holding;
                self.end = Some(start.after(span));
                self.live().holding.set(1);
                return;
            }
            RunLength::Duration(span) => self.end = Some(self.measured_from.after(span)),
            RunLength::Requests(_) => {}
        }
        let Some(schedule) = plan.schedule(self.thread, plan.threads) else { return };
        let count = match plan.length {
            RunLength::Requests(total) => {
                let warmup = plan.schedule(0, 1).map_or(0, |all| all.count_within(plan.warmup));
                self.shared.share(warmup + total, self.thread)
            }
            RunLength::Duration(span) | RunLength::Hold(span) => schedule.count_within(plan.warmup + span),
        };
        if !plan.steps.is_empty() {
            self.tally.timeline = Some(Timeline::new(&plan.steps, start));
        }
        self.backlog = Some(RequestBacklog::new(schedule, start, count, plan.backlog_max as usize));
    }

    /// Advances through the phases as far as possible.
    fn advance(&mut self, control: &mut ShardControl<'_, Self>) {
        let now = control.now;
        if self.shared.start.is_cancelled() && self.phase != GeneratorPhase::Closing {
            self.close_all(control);
        }
        if self.phase == GeneratorPhase::Opening && self.untried == 0 && self.slots.in_flight_total() == 0 {
            self.phase = GeneratorPhase::Waiting;
            self.shared.start.arrive(now);
        }
        if self.phase == GeneratorPhase::Waiting
            && let Some(start) = self.shared.start.start_time()
        {
            self.begin(start);
        }
        if self.phase == GeneratorPhase::Running {
            if let Some(backlog) = &mut self.backlog {
                backlog.drop_expired(now, self.shared.plan.timeout);
            }
            if self.is_over(control.open) {
                self.phase = GeneratorPhase::Finishing;
                if let Some(backlog) = &mut self.backlog {
                    self.tally.unsent += backlog.close();
                } else if self.is_limited() {
                    self.tally.unsent += std::mem::take(&mut self.budget);
                }
            }
        }
        match self.phase {
            // A connection per request stays open until the server closes it.
            GeneratorPhase::Finishing
                if self.slots.in_flight_total() == 0
                    && (self.shared.plan.keep_alive || control.open == 0) =>
            {
                self.close_all(control);
            }
            GeneratorPhase::Holding if self.end.is_some_and(|end| now >= end) => {
                self.tally.held = control.open.into();
                self.close_all(control);
            }
            GeneratorPhase::Closing if control.open == 0 => control.stop(),
            _ => {}
        }
    }

    /// Returns whether no more requests start. Requests due at the end of an open loop still start if a connection is
    /// free.
    fn is_over(&self, open: u32) -> bool {
        let ended = self.end.is_some_and(|end| self.now >= end);
        let over = match &self.backlog {
            Some(backlog) => backlog.is_over() || (ended && !self.can_begin()),
            None => self.budget == 0 || ended,
        };
        let unreachable = self
            .refused_since
            .is_some_and(|since| open == self.connecting && self.now.since(since) >= REFUSED_TIMEOUT);
        over || unreachable
    }

    /// Returns whether a due request would find a connection.
    fn can_begin(&self) -> bool {
        if self.shared.plan.keep_alive {
            self.slots.has_ready()
        } else {
            !self.dial_queue.is_empty() && self.connecting < CONNECTING_MAX
        }
    }

    fn close_all(&mut self, control: &mut ShardControl<'_, Self>) {
        self.phase = GeneratorPhase::Closing;
        self.dial_queue.clear();
        self.redial_queue.clear();
        control.abort_all(CloseReason::Done);
        if control.open == 0 {
            control.stop();
        }
    }

    fn dial(&mut self, control: &mut ShardControl<'_, Self>) {
        while self.redial_queue.front().is_some_and(|(due, _)| *due <= self.now) {
            self.dial_queue.extend(self.redial_queue.pop_front().map(|(_, slot)| slot));
        }
        if matches!(self.phase, GeneratorPhase::Finishing | GeneratorPhase::Holding | GeneratorPhase::Closing)
        {
            return;
        }
        while self.connecting < CONNECTING_MAX && !self.dial_queue.is_empty() {
            let mut times = None;
            if !self.shared.plan.keep_alive {
                let Some(intended) = self.next_request(self.now) else { break };
                times = Some(RequestTimes { intended, sent: self.now });
            }
            let Some(slot) = self.dial_queue.pop_front() else { break };
            if let Some(times) = times {
                self.slots.begin(slot, times);
            } else if self.phase == GeneratorPhase::Running {
                self.tally.reconnects += 1;
            }
            self.slots.mark_connecting(slot);
            self.connecting += 1;
            let from = self.shared.plan.sources.map(|sources| sources.of(self.first_slot + slot));
            control.connect(
                Destination::Tcp { to: self.shared.to, from },
                GeneratorSession::new(&self.shared, slot),
            );
        }
    }

    /// Time of the next action that no connection event triggers.
    fn deadline(&self) -> Option<Time> {
        let redial_at = self.redial_queue.front().map(|(due, _)| *due);
        match self.phase {
            GeneratorPhase::Opening | GeneratorPhase::Waiting => redial_at,
            GeneratorPhase::Running => {
                let due =
                    self.backlog.as_ref().filter(|_| self.can_begin()).and_then(RequestBacklog::next_due);
                [redial_at, due, self.end].into_iter().flatten().min()
            }
            GeneratorPhase::Holding => self.end,
            GeneratorPhase::Finishing | GeneratorPhase::Closing => None,
        }
    }
}

impl Service for LoadGenerator {
    type Session = GeneratorSession;
    /// A hint that a request may be available.
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> GeneratorSession {
        unreachable!("a generator listens nowhere")
    }

    fn next_mail(&mut self) -> Option<(Recipient, ())> {
        if !self.shared.plan.keep_alive || self.phase != GeneratorPhase::Running {
            return None;
        }
        if let Some(backlog) = &mut self.backlog {
            if !std::mem::replace(&mut self.backlog_filled, true) {
                backlog.admit_due(self.clock.now());
            }
            if backlog.is_empty() {
                return None;
            }
        } else if !self.may_begin() {
            return None;
        }
        self.slots.next_ready().map(|(_, token)| (token.into(), ()))
    }

    fn has_mail(&self) -> bool {
        let wanted = match &self.backlog {
            Some(backlog) => !backlog.is_empty() || backlog.next_due().is_some_and(|due| due <= self.now),
            None => self.may_begin(),
        };
        wanted
            && self.shared.plan.keep_alive
            && self.phase == GeneratorPhase::Running
            && self.slots.has_ready()
    }

    fn turn(&mut self, control: &mut ShardControl<'_, Self>) -> Option<Time> {
        self.now = control.now;
        self.backlog_filled = false;
        self.advance(control);
        self.dial(control);
        if self.phase != GeneratorPhase::Closing {
            // Not while closing: the last published number is the one before the connections were closed.
            self.live().open.set(u64::from(control.open - self.connecting.min(control.open)));
        }
        self.deadline()
    }
}
