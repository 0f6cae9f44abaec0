//! Overload of a pool of worker processes, as one shard sees it: which new requests are shed (rows 1.6–1.10).
//!
//! ```text
//!                        no worker free in time
//!                    no                      yes
//!   slow   no    Normal ◀──────────────▶ NoWorker
//!          yes   Slow   ◀──────────────▶ SlowAndNoWorker
//! ```
//!
//! Slow: the moving average of handling times exceeds the threshold. It decays with time as well, so the condition ends
//! although no request is handled. No worker: a request found no worker in time, within [`NO_WORKER_HOLD`]; an answer
//! ends the condition at once. Both are functions of the last events and of the time: there is no transition that could
//! be missed.
//!
//! An overloaded pool is still given as many requests as it has slots: its workers are never idle because of shedding,
//! and a request without others before it is always admitted and measures the pool again.

use std::time::Duration;

use stilling_ring::Time;

use super::limits::{HANDLING_TIME_HALF_LIFE, NO_WORKER_HOLD, SHED_REPLIES_PER_SECOND_MAX};

/// A new sample counts as this part of the average: 1 / 8, the weight that TCP gives round-trip times (RFC 6298 §2).
const SAMPLE_WEIGHT_SHIFT: u32 = 3;

/// The time in which shed replies are counted.
const SECOND: Duration = Duration::from_secs(1);

/// Least time between reports of a pool's state, per shard, and how long a pool has to be normal before the end of an
/// overload is reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The two conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverloadState {
    Normal,
    /// The average handling time exceeds the threshold.
    Slow,
    /// A request found no worker in time.
    NoWorker,
    SlowAndNoWorker,
}

impl OverloadState {
    /// The line in the log.
    pub(super) fn report(self) -> &'static str {
        match self {
            OverloadState::Normal => "CoAP: overload ended, new requests are admitted",
            OverloadState::Slow => "CoAP: overload, new requests are shed: answers are slow",
            OverloadState::NoWorker => "CoAP: overload, new requests are shed: no worker was free in time",
            OverloadState::SlowAndNoWorker => {
                "CoAP: overload, new requests are shed: answers are slow and no worker was free in time"
            }
        }
    }
}

/// What happens to a new request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Admitted,
    /// 4.29: its client has its share of the workers.
    TooMany,
    /// 5.03: the workers have enough requests.
    Unavailable,
}

/// The conditions of one pool.
#[derive(Clone, Debug)]
pub(super) struct Overload {
    slow_after: Duration,
    /// Requests that all processes work on at once.
    slots: usize,
    /// The average handling time at `updated`, in nanoseconds.
    average: u64,
    updated: Time,
    no_worker_since: Option<Time>,
}

impl Overload {
    pub(super) fn new(slots: usize, slow_after: Duration, now: Time) -> Overload {
        Overload { slow_after, slots: slots.max(1), average: 0, updated: now, no_worker_since: None }
    }

    /// The average handling time.
    fn average(&self, now: Time) -> Duration {
        let half_lives = now.since(self.updated).as_nanos() / HANDLING_TIME_HALF_LIFE.as_nanos();
        let shift = u32::try_from(half_lives).unwrap_or(u32::MAX);
        Duration::from_nanos(self.average.checked_shr(shift).unwrap_or(0))
    }

    pub(super) fn state(&self, now: Time) -> OverloadState {
        let is_slow = self.average(now) > self.slow_after;
        let has_no_worker = self.no_worker_since.is_some_and(|since| now.since(since) < NO_WORKER_HOLD);
        match (is_slow, has_no_worker) {
            (false, false) => OverloadState::Normal,
            (true, false) => OverloadState::Slow,
            (false, true) => OverloadState::NoWorker,
            (true, true) => OverloadState::SlowAndNoWorker,
        }
    }

    /// A worker answered a request `time` after its arrival.
    pub(super) fn handled(&mut self, time: Duration, now: Time) {
        self.add_sample(time, now);
        self.no_worker_since = None;
    }

    /// A request was not answered within `time`.
    pub(super) fn timed_out(&mut self, time: Duration, now: Time) {
        self.add_sample(time, now);
    }

    /// A request found no worker.
    pub(super) fn no_worker(&mut self, now: Time) {
        self.no_worker_since = Some(now);
    }

    fn add_sample(&mut self, time: Duration, now: Time) {
        let average = self.average(now).as_nanos() as u64;
        let sample = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (rest, part) = (average >> SAMPLE_WEIGHT_SHIFT, sample >> SAMPLE_WEIGHT_SHIFT);
        (self.average, self.updated) = ((average - rest).saturating_add(part), now);
    }

    /// Decides about a new request. `open`: the requests that the pool has of this shard; `client_open`: those of them
    /// that are the client's; `clients`: the clients that have some.
    pub(super) fn admit(&self, open: usize, client_open: usize, clients: usize, now: Time) -> Admission {
        if self.state(now) == OverloadState::Normal {
            return Admission::Admitted;
        }
        let clients = clients + usize::from(client_open == 0);
        // The shares together are at least all slots.
        if client_open >= self.slots.div_ceil(clients.max(1)) {
            return Admission::TooMany;
        }
        if open < self.slots { Admission::Admitted } else { Admission::Unavailable }
    }
}

/// The reports of a pool's state: one when it has changed, at most one per [`REPORT_INTERVAL`]. Under a load that
/// exceeds its capacity a pool alternates between its states; that is one overload.
#[derive(Clone, Copy, Debug)]
pub(super) struct OverloadReports {
    /// The state in the last report.
    last: OverloadState,
    next_at: Time,
    /// When the pool was last seen overloaded.
    overloaded_at: Time,
}

impl OverloadReports {
    pub(super) fn new(now: Time) -> OverloadReports {
        OverloadReports { last: OverloadState::Normal, next_at: now, overloaded_at: now }
    }

    /// Whether the state is to be reported now. It then counts as reported.
    pub(super) fn is_due(&mut self, state: OverloadState, now: Time) -> bool {
        let is_over = state == OverloadState::Normal;
        if !is_over {
            self.overloaded_at = now;
        }
        let due_at = if is_over { self.end_at() } else { self.next_at };
        if state == self.last || now < due_at {
            return false;
        }
        (self.last, self.next_at) = (state, now.after(REPORT_INTERVAL));
        true
    }

    /// When the end of an overload may be reported.
    fn end_at(&self) -> Time {
        self.next_at.max(self.overloaded_at.after(REPORT_INTERVAL))
    }

    /// When to check the state next, although nothing happens: overload ends with time.
    pub(super) fn next_check(&self) -> Option<Time> {
        (self.last != OverloadState::Normal).then(|| self.end_at())
    }
}

/// Limits the replies to shed requests of a shard: beyond it new requests get none (row 1.10).
#[derive(Clone, Copy, Debug)]
pub(super) struct ShedReplies {
    second: Time,
    count: u32,
}

impl ShedReplies {
    pub(super) fn new(now: Time) -> ShedReplies {
        ShedReplies { second: now, count: 0 }
    }

    /// Whether one more reply may be sent; it then counts.
    pub(super) fn take(&mut self, now: Time) -> bool {
        if now.since(self.second) >= SECOND {
            *self = ShedReplies::new(now);
        }
        self.count += 1;
        self.count <= SHED_REPLIES_PER_SECOND_MAX
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const SLOW_AFTER: Duration = Duration::from_secs(2);
    const SLOTS: usize = 3;

    #[derive(Clone, Copy, Debug)]
    enum Event {
        HandledFast,
        HandledSlowly,
        TimedOut,
        NoWorker,
        Wait(u64),
    }

    const EVENTS: [Event; 6] = [
        Event::HandledFast,
        Event::HandledSlowly,
        Event::TimedOut,
        Event::NoWorker,
        Event::Wait(500),
        Event::Wait(60_000),
    ];

    fn apply(overload: &mut Overload, now: &mut Time, event: Event) {
        match event {
            Event::HandledFast => overload.handled(Duration::from_millis(1), *now),
            Event::HandledSlowly => overload.handled(Duration::from_secs(60), *now),
            Event::TimedOut => overload.timed_out(Duration::from_secs(60), *now),
            Event::NoWorker => overload.no_worker(*now),
            Event::Wait(millis) => *now = now.after(Duration::from_millis(millis)),
        }
    }

    fn start() -> Time {
        Time::ZERO.after(Duration::from_secs(1000))
    }

    /// What must hold after any sequence of events.
    fn check(overload: &Overload, now: Time, events: &[Event]) {
        assert_eq!(overload.admit(0, 0, 0, now), Admission::Admitted, "an idle pool is probed: {events:?}");
        let is_open = overload.admit(SLOTS, 0, 1, now) == Admission::Admitted;
        assert_eq!(is_open, overload.state(now) == OverloadState::Normal, "{events:?}");
        // Without another event.
        let later = now.after(Duration::from_secs(30));
        assert_eq!(overload.state(later), OverloadState::Normal, "it ends by itself: {events:?}");
        // The pool is free again: fast answers end both conditions, however they began.
        let mut freed = overload.clone();
        for _ in 0..64 {
            freed.handled(Duration::from_millis(1), now);
        }
        assert_eq!(freed.state(now), OverloadState::Normal, "fast answers end it: {events:?}");
    }

    /// Row 1.9: after every sequence of up to six events, over both conditions, the pool is probed, and both
    /// conditions end with time as well as with answers.
    #[test]
    fn no_sequence_of_events_makes_it_stick() {
        let mut seen = Vec::new();
        let mut stack = vec![(Overload::new(SLOTS, SLOW_AFTER, start()), start(), Vec::new())];
        while let Some((overload, now, events)) = stack.pop() {
            check(&overload, now, &events);
            let state = overload.state(now);
            if !seen.contains(&state) {
                seen.push(state);
            }
            if events.len() == 6 {
                continue;
            }
            for event in EVENTS {
                let (mut next, mut later) = (overload.clone(), now);
                apply(&mut next, &mut later, event);
                let events = events.iter().copied().chain([event]).collect();
                stack.push((next, later, events));
            }
        }
        assert_eq!(seen.len(), 4, "all states are reached: {seen:?}");
    }

    /// Row 1.9: both conditions at once, then a worker is free.
    #[test]
    fn both_conditions_end_one_after_the_other() {
        let (mut overload, now) = (Overload::new(SLOTS, SLOW_AFTER, start()), start());
        overload.handled(Duration::from_secs(60), now);
        overload.no_worker(now);
        assert_eq!(overload.state(now), OverloadState::SlowAndNoWorker);
        overload.handled(Duration::from_millis(1), now);
        assert_eq!(overload.state(now), OverloadState::Slow);
        for _ in 0..64 {
            overload.handled(Duration::from_millis(1), now);
        }
        assert_eq!(overload.state(now), OverloadState::Normal);
    }

    /// Row 1.8: the threshold decides, and one slow request among many fast ones does not exceed it.
    #[test]
    fn the_average_of_handling_times_is_compared_with_the_threshold() {
        let (mut overload, now) = (Overload::new(SLOTS, SLOW_AFTER, start()), start());
        overload.handled(Duration::from_secs(10), now);
        assert_eq!(overload.state(now), OverloadState::Normal);
        for _ in 0..64 {
            overload.handled(Duration::from_secs(3), now);
        }
        assert_eq!(overload.state(now), OverloadState::Slow);
        for _ in 0..64 {
            overload.handled(Duration::from_secs(1), now);
        }
        assert_eq!(overload.state(now), OverloadState::Normal);
    }

    /// Row 1.2: an overloaded pool has as many requests as slots, shared between the clients.
    #[test]
    fn all_slots_are_used_while_it_sheds() {
        let (mut overload, now) = (Overload::new(SLOTS, SLOW_AFTER, start()), start());
        overload.no_worker(now);
        assert_eq!(overload.admit(2, 2, 1, now), Admission::Admitted);
        assert_eq!(overload.admit(3, 3, 1, now), Admission::TooMany);
        assert_eq!(overload.admit(2, 1, 2, now), Admission::Admitted);
        assert_eq!(overload.admit(2, 2, 2, now), Admission::TooMany);
        assert_eq!(overload.admit(3, 0, 2, now), Admission::Unavailable);
        for clients in 1..10 {
            assert!(SLOTS.div_ceil(clients) * clients >= SLOTS);
        }
    }

    /// Requests of different clients that are answered within 60 seconds, and the longest time of one. They arrive at
    /// `load` times the rate that the workers can handle.
    fn simulate(load: u32) -> (u32, Duration) {
        const HANDLING: Duration = Duration::from_millis(100);
        const QUEUE_AGE_MAX: Duration = Duration::from_millis(500);
        const STEP: Duration = Duration::from_millis(1);
        let (mut overload, mut now) = (Overload::new(SLOTS, SLOW_AFTER, start()), start());
        let mut queue = VecDeque::new();
        // Arrival and end of the requests that workers have.
        let mut working: Vec<(Time, Time)> = Vec::new();
        let (mut answered, mut longest, mut due) = (0, Duration::ZERO, 0);
        while now.since(start()) < Duration::from_secs(60) {
            now = now.after(STEP);
            due += load * SLOTS as u32;
            while due >= 100 {
                due -= 100;
                let open = queue.len() + working.len();
                if overload.admit(open, 0, open, now) == Admission::Admitted {
                    queue.push_back(now);
                }
            }
            working.retain(|(arrived, end)| {
                let is_answered = now >= *end;
                if is_answered {
                    let time = now.since(*arrived);
                    overload.handled(time, now);
                    (answered, longest) = (answered + 1, longest.max(time));
                }
                !is_answered
            });
            while queue.front().is_some_and(|arrived| now.since(*arrived) > QUEUE_AGE_MAX) {
                queue.pop_front();
                overload.no_worker(now);
            }
            while working.len() < SLOTS
                && let Some(arrived) = queue.pop_front()
            {
                working.push((arrived, now.after(HANDLING)));
            }
        }
        (answered, longest)
    }

    /// Row 1.2: the goodput at 2, 5 and 10 times the workers' capacity is at least 90 % of that at the capacity, and the
    /// time of an admitted request stays bounded by the queue's.
    #[test]
    fn goodput_stays_under_overload() {
        let (peak, _) = simulate(1);
        assert!(peak > 1500, "{peak}");
        for load in [2, 5, 10] {
            let (answered, longest) = simulate(load);
            assert!(answered * 10 >= peak * 9, "{load}: {answered} of {peak}");
            assert!(longest <= Duration::from_millis(601), "{load}: {longest:?}");
        }
    }

    /// A pool that alternates between its states has one overload, with few reports; its end is reported once the pool
    /// was normal for a time, although no request arrives.
    #[test]
    fn changes_of_the_state_are_reported_once_and_at_intervals() {
        let (mut reports, mut now) = (OverloadReports::new(start()), start());
        assert!(!reports.is_due(OverloadState::Normal, now));
        assert_eq!(reports.next_check(), None);
        assert!(reports.is_due(OverloadState::NoWorker, now));
        // It changes every millisecond for a minute.
        let states = [OverloadState::Slow, OverloadState::NoWorker, OverloadState::Normal];
        let mut reported = Vec::new();
        for millisecond in 0..60_000 {
            now = now.after(Duration::from_millis(1));
            let state = states[millisecond % 3];
            reported.extend(reports.is_due(state, now).then_some(state));
        }
        assert!(reported.len() <= 6 && !reported.contains(&OverloadState::Normal), "{reported:?}");
        let check = reports.next_check().expect("its end is to be reported");
        assert!(check > now && check <= now.after(REPORT_INTERVAL));
        assert!(reports.is_due(OverloadState::Normal, check));
        assert_eq!(reports.next_check(), None);
    }

    /// Row 1.10: replies to shed requests are limited in each second.
    #[test]
    fn shed_replies_are_limited() {
        let (mut replies, now) = (ShedReplies::new(start()), start());
        let sent = (0..2 * SHED_REPLIES_PER_SECOND_MAX).filter(|_| replies.take(now)).count();
        assert_eq!(sent, SHED_REPLIES_PER_SECOND_MAX as usize);
        assert!(replies.take(now.after(SECOND)));
    }
}
