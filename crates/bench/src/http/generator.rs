//! One thread's load: opens connections, decides which request begins when, and counts.
//!
//! ```text
//!  Opening ──► Waiting ──► Running ──► Finishing ──► Leaving
//!  (connect)   (for the    (load)      (answers in   (close all)
//!               others) └► Holding ─────flight)─────►
//! ```
//!
//! In a closed loop a connection sends again by itself when an answer has come. In an open loop
//! requests wait in the backlog for a connection; connections wait in a row for a request; whoever
//! finds the other goes on.

mod client;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::driver::Destination;
use stilling_engine::{CloseReason, Control, Recipient, Service, Token};
use stilling_ring::{Clock, Time};
use stilling_wire::http1::{Limits, ReplyTo};

use self::client::Client;
use super::limits::CONNECTING_MAX;
use super::plan::{Length, Plan};
use super::rendezvous::Rendezvous;
use super::schedule::Backlog;
use super::seats::{Moment, Seats};
use super::tally::{Failure, Live, Tally};
use super::timeline::Timeline;

/// How long a seat rests after its connection was refused.
const REDIAL_PAUSE: Duration = Duration::from_millis(50);

/// How long a thread goes on without any connection while all attempts fail; then it gives up.
const REFUSED_PATIENCE: Duration = Duration::from_secs(3);

/// What the threads of a run share and none changes.
pub(crate) struct Task {
    pub(crate) plan: Plan,
    pub(crate) to: std::net::SocketAddr,
    /// The request's bytes.
    pub(crate) request: Vec<u8>,
    pub(crate) answered: ReplyTo,
    pub(crate) limits: Limits,
    pub(crate) expected_body: Vec<u8>,
    pub(crate) start: Rendezvous,
    pub(crate) live: Vec<Live>,
}

impl Task {
    /// How many of `total` fall to thread number `thread`.
    pub(crate) fn share(&self, total: u64, thread: u32) -> u64 {
        let threads = u64::from(self.plan.threads);
        total / threads + u64::from(u64::from(thread) < total % threads)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Opening,
    Waiting,
    Running,
    Finishing,
    Holding,
    Leaving,
}

pub(crate) struct Generator {
    task: Arc<Task>,
    thread: u32,
    clock: Clock,
    pub(crate) seats: Seats,
    pub(crate) tally: Tally,
    /// The number of this thread's first seat in the whole run.
    first_seat: u32,
    phase: Phase,
    now: Time,
    /// Seats whose connection is to be opened as soon as possible, or when a request needs one.
    to_dial: VecDeque<u32>,
    /// Seats that were refused a connection, and when to try again.
    resting: VecDeque<(Time, u32)>,
    connecting: u32,
    /// Seats whose first connection is neither open nor refused.
    untried: u32,
    /// Since when no connection could be opened.
    refused_since: Option<Time>,
    /// Requests that a closed loop may still begin; those of the warm-up do not count.
    budget: u64,
    /// The requests of an open loop.
    backlog: Option<Backlog>,
    /// The backlog has been looked at in this turn.
    looked: bool,
    /// Requests that begin earlier are warm-up.
    measured_from: Time,
    /// When no more requests begin, or holding ends.
    end: Option<Time>,
}

impl Generator {
    pub(crate) fn new(task: &Arc<Task>, thread: u32, clock: Clock) -> Self {
        let total = u64::from(task.plan.connections);
        // Bounded by the number of connections, which is a u32.
        let seats = task.share(total, thread) as u32;
        let first_seat = (0..thread).map(|earlier| task.share(total, earlier) as u32).sum();
        let now = clock.now();
        Generator {
            task: Arc::clone(task),
            thread,
            clock,
            seats: Seats::new(seats, task.plan.pipeline),
            tally: Tally::new(),
            first_seat,
            phase: Phase::Opening,
            now,
            to_dial: (0..seats).collect(),
            resting: VecDeque::with_capacity(seats as usize),
            connecting: 0,
            untried: if task.plan.keep_alive { seats } else { 0 },
            refused_since: None,
            budget: match task.plan.length {
                Length::Requests(total) => task.share(total, thread),
                Length::For(_) | Length::Hold(_) => u64::MAX,
            },
            backlog: None,
            looked: false,
            measured_from: now,
            end: None,
        }
    }

    /// Connections that this thread has at once.
    pub(crate) fn connections(&self) -> u32 {
        self.seats.count()
    }

    /// Requests of the open loop that never began: no room in the backlog, waited too long.
    pub(crate) fn dropped(&self) -> (u64, u64) {
        self.backlog.as_ref().map_or((0, 0), |backlog| (backlog.full(), backlog.late()))
    }

    pub(crate) fn is_open_loop(&self) -> bool {
        self.task.plan.is_open_loop()
    }

    fn is_limited(&self) -> bool {
        matches!(self.task.plan.length, Length::Requests(_))
    }

    /// Takes the next request that is to begin now; returns its intended start.
    pub(crate) fn next_request(&mut self, now: Time) -> Option<Time> {
        self.now = self.now.max(now);
        if self.phase != Phase::Running {
            return None;
        }
        let intended = if let Some(backlog) = &mut self.backlog {
            backlog.take(now, self.task.plan.timeout)?
        } else if self.may_begin() {
            now
        } else {
            return None;
        };
        self.count_request(intended);
        Some(intended)
    }

    /// Whether a closed loop may begin a request, as far as the time is known.
    fn may_begin(&self) -> bool {
        self.phase == Phase::Running && self.budget > 0 && self.end.is_none_or(|end| self.now < end)
    }

    pub(crate) fn count_request(&mut self, intended: Time) {
        if intended >= self.measured_from {
            self.tally.requests += 1;
            if self.is_limited() && self.backlog.is_none() {
                self.budget -= 1;
            }
        }
        if let Some(timeline) = &mut self.tally.timeline {
            timeline.began(intended);
        }
    }

    /// An answer was right.
    pub(crate) fn succeeded(&mut self, moment: Moment, now: Time) {
        self.live().ok.add(1);
        if moment.intended < self.measured_from {
            return;
        }
        // The histogram's range is wider than any timeout; what is beyond counts as its end.
        self.tally.latency.saturating_record(now.since(moment.intended).as_nanos() as u64);
        if self.is_open_loop() {
            self.tally.service.saturating_record(now.since(moment.sent).as_nanos() as u64);
        }
        if let Some(timeline) = &mut self.tally.timeline {
            timeline.succeeded(moment.intended, now);
        }
        self.tally.ok += 1;
        self.tally.ok_in_window += u64::from(self.end.is_none_or(|end| now <= end));
        self.tally.last_done = now.since(self.measured_from).as_nanos() as u64;
    }

    /// An answer was 503.
    pub(crate) fn was_shed(&mut self, moment: Moment, now: Time) {
        self.live().shed.add(1);
        if let Some(timeline) = &mut self.tally.timeline {
            timeline.was_shed(moment.intended, now);
        }
        self.tally.shed += u64::from(moment.intended >= self.measured_from);
    }

    /// `count` requests, or a connection, failed.
    #[cold]
    pub(crate) fn failed(&mut self, failure: Failure, count: u64, words: impl FnOnce() -> String) {
        self.live().failures.add(count);
        self.tally.fail(failure, count, words);
    }

    fn live(&self) -> &Live {
        &self.task.live[self.thread as usize]
    }

    /// Forgets the requests in flight on a seat: they have failed.
    pub(crate) fn drop_in_flight(&mut self, seat: u32) {
        while self.seats.end(seat).is_some() {}
    }

    /// The server ends a connection in good order with requests in flight on it that it has not
    /// answered (RFC 9112 §9.3.2): they are sent again elsewhere.
    pub(crate) fn take_back(&mut self, seat: u32) {
        while let Some(moment) = self.seats.take_back(seat) {
            let measured = moment.intended >= self.measured_from;
            self.tally.requests -= u64::from(measured);
            if let Some(timeline) = &mut self.tally.timeline {
                timeline.taken_back(moment.intended);
            }
            if self.is_limited() && self.phase == Phase::Finishing {
                self.phase = Phase::Running;
            }
            match &mut self.backlog {
                Some(backlog) if self.phase == Phase::Running => backlog.put_back(moment.intended),
                Some(_) => self.tally.unsent += u64::from(measured),
                None => self.budget = self.budget.saturating_add(u64::from(measured)),
            }
        }
    }

    /// A connection is open.
    pub(crate) fn connected(&mut self, seat: u32, token: Token) {
        self.connecting -= 1;
        self.refused_since = None;
        self.seats.open(seat, token);
        self.note_tried(seat);
    }

    /// A connection is closed, or did not come about.
    pub(crate) fn gone(&mut self, seat: u32, reason: CloseReason, was_open: bool) {
        let owed = self.seats.in_flight(seat);
        let failure = match reason {
            _ if self.phase == Phase::Leaving => None,
            _ if !was_open => Some(Failure::ConnectFailed),
            CloseReason::PeerReset => Some(Failure::Reset),
            _ if owed == 0 => None,
            CloseReason::WriteTimeout => Some(Failure::Timeout),
            _ => Some(Failure::Local),
        };
        if let Some(failure) = failure {
            self.drop_in_flight(seat);
            self.failed(failure, owed.max(1).into(), || match failure {
                Failure::ConnectFailed => "a connection could not be opened".to_owned(),
                Failure::Reset => "the server reset a connection".to_owned(),
                Failure::Timeout => "the server did not take a request".to_owned(),
                _ => format!("a connection ended: {}", reason.name()),
            });
        }
        self.seats.vacate(seat);
        if !was_open {
            self.connecting -= 1;
            self.note_tried(seat);
        }
        if self.task.plan.holds() {
            return;
        }
        if was_open {
            self.to_dial.push_back(seat);
        } else {
            self.refused_since.get_or_insert(self.now);
            self.resting.push_back((self.now.after(REDIAL_PAUSE), seat));
        }
    }

    fn note_tried(&mut self, seat: u32) {
        if self.task.plan.keep_alive {
            self.untried -= u32::from(self.seats.note_tried(seat));
        }
    }

    /// The common start is past: makes the schedule.
    fn begin(&mut self, start: Time) {
        let plan = &self.task.plan;
        self.measured_from = start.after(plan.warmup);
        self.phase = Phase::Running;
        match plan.length {
            Length::Hold(span) => {
                self.phase = Phase::Holding;
                self.end = Some(start.after(span));
                self.live().holding.set(1);
                return;
            }
            Length::For(span) => self.end = Some(self.measured_from.after(span)),
            Length::Requests(_) => {}
        }
        let Some(schedule) = plan.schedule(self.thread, plan.threads) else { return };
        let count = match plan.length {
            Length::Requests(total) => {
                let warmup = plan.schedule(0, 1).map_or(0, |all| all.count_within(plan.warmup));
                self.task.share(warmup + total, self.thread)
            }
            Length::For(span) | Length::Hold(span) => schedule.count_within(plan.warmup + span),
        };
        if !plan.steps.is_empty() {
            self.tally.timeline = Some(Timeline::new(&plan.steps, start));
        }
        self.backlog = Some(Backlog::new(schedule, start, count, plan.backlog_max as usize));
    }

    /// Goes from phase to phase as far as possible.
    fn advance(&mut self, control: &mut Control<'_, Self>) {
        let now = control.now;
        if self.task.start.is_called_off() && self.phase != Phase::Leaving {
            self.leave(control);
        }
        if self.phase == Phase::Opening && self.untried == 0 && self.seats.in_flight_total() == 0 {
            self.phase = Phase::Waiting;
            self.task.start.arrive(now);
        }
        if self.phase == Phase::Waiting
            && let Some(start) = self.task.start.passed()
        {
            self.begin(start);
        }
        if self.phase == Phase::Running {
            if let Some(backlog) = &mut self.backlog {
                backlog.drop_late(now, self.task.plan.timeout);
            }
            if self.is_over(control.open) {
                self.phase = Phase::Finishing;
                if let Some(backlog) = &mut self.backlog {
                    self.tally.unsent += backlog.close();
                } else if self.is_limited() {
                    self.tally.unsent += std::mem::take(&mut self.budget);
                }
            }
        }
        match self.phase {
            // A connection per request is watched until the server has closed it.
            Phase::Finishing
                if self.seats.in_flight_total() == 0 && (self.task.plan.keep_alive || control.open == 0) =>
            {
                self.leave(control);
            }
            Phase::Holding if self.end.is_some_and(|end| now >= end) => {
                self.tally.held = control.open.into();
                self.leave(control);
            }
            Phase::Leaving if control.open == 0 => control.stop(),
            _ => {}
        }
    }

    /// Whether no more requests begin. What is due at the end of an open loop still begins if a
    /// connection is free for it.
    fn is_over(&self, open: u32) -> bool {
        let ended = self.end.is_some_and(|end| self.now >= end);
        let over = match &self.backlog {
            Some(backlog) => backlog.is_over() || (ended && !self.can_begin()),
            None => self.budget == 0 || ended,
        };
        let unreachable = self
            .refused_since
            .is_some_and(|since| open == self.connecting && self.now.since(since) >= REFUSED_PATIENCE);
        over || unreachable
    }

    /// Whether a request that is due would find a connection.
    fn can_begin(&self) -> bool {
        if self.task.plan.keep_alive {
            self.seats.has_row()
        } else {
            !self.to_dial.is_empty() && self.connecting < CONNECTING_MAX
        }
    }

    fn leave(&mut self, control: &mut Control<'_, Self>) {
        self.phase = Phase::Leaving;
        self.to_dial.clear();
        self.resting.clear();
        control.abort_all(CloseReason::Done);
        if control.open == 0 {
            control.stop();
        }
    }

    /// Opens the connections that are wanted.
    fn dial(&mut self, control: &mut Control<'_, Self>) {
        while self.resting.front().is_some_and(|(due, _)| *due <= self.now) {
            self.to_dial.extend(self.resting.pop_front().map(|(_, seat)| seat));
        }
        if matches!(self.phase, Phase::Finishing | Phase::Holding | Phase::Leaving) {
            return;
        }
        while self.connecting < CONNECTING_MAX && !self.to_dial.is_empty() {
            let mut moment = None;
            if !self.task.plan.keep_alive {
                let Some(intended) = self.next_request(self.now) else { break };
                moment = Some(Moment { intended, sent: self.now });
            }
            let Some(seat) = self.to_dial.pop_front() else { break };
            if let Some(moment) = moment {
                self.seats.begin(seat, moment);
            } else if self.phase == Phase::Running {
                self.tally.reconnects += 1;
            }
            self.seats.take(seat);
            self.connecting += 1;
            let from = self.task.plan.sources.map(|sources| sources.of(self.first_seat + seat));
            control.connect(Destination::Tcp { to: self.task.to, from }, Client::new(&self.task, seat));
        }
    }

    /// When something is to be done that no connection will call for.
    fn deadline(&self) -> Option<Time> {
        let rested = self.resting.front().map(|(due, _)| *due);
        match self.phase {
            Phase::Opening | Phase::Waiting => rested,
            Phase::Running => {
                let due = self.backlog.as_ref().filter(|_| self.can_begin()).and_then(Backlog::next_due);
                [rested, due, self.end].into_iter().flatten().min()
            }
            Phase::Holding => self.end,
            Phase::Finishing | Phase::Leaving => None,
        }
    }
}

impl Service for Generator {
    type Session = Client;
    /// "There may be a request for you."
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> Client {
        unreachable!("a generator listens nowhere")
    }

    fn next_mail(&mut self) -> Option<(Recipient, ())> {
        if !self.task.plan.keep_alive || self.phase != Phase::Running {
            return None;
        }
        if let Some(backlog) = &mut self.backlog {
            if !std::mem::replace(&mut self.looked, true) {
                backlog.look(self.clock.now());
            }
            if backlog.is_empty() {
                return None;
            }
        } else if !self.may_begin() {
            return None;
        }
        self.seats.next_in_row().map(|(_, token)| (token.into(), ()))
    }

    fn has_mail(&self) -> bool {
        let wanted = match &self.backlog {
            Some(backlog) => !backlog.is_empty() || backlog.next_due().is_some_and(|due| due <= self.now),
            None => self.may_begin(),
        };
        wanted && self.task.plan.keep_alive && self.phase == Phase::Running && self.seats.has_row()
    }

    fn turn(&mut self, control: &mut Control<'_, Self>) -> Option<Time> {
        self.now = control.now;
        self.looked = false;
        self.advance(control);
        self.dial(control);
        if self.phase != Phase::Leaving {
            // Whoever looks afterwards sees what was open before all was closed.
            self.live().open.set(u64::from(control.open - self.connecting.min(control.open)));
        }
        self.deadline()
    }
}
