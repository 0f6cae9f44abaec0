//! The intended starts of an open loop's requests, and the backlog of due requests.
//!
//! The schedule is a pure function of the rate: request k of the whole run starts k/rate after the start, and thread t
//! of n sends those with k mod n = t. The backlog holds intended starts, never the current time, so a request that
//! starts late shows its delay.
//!
//! ```
//! use std::time::Duration;
//! use stilling_bench::http::{RateSchedule, RequestBacklog};
//! use stilling_ring::Time;
//!
//! // Ten requests per second, and one connection to a server that stalls for a second.
//! let mut backlog = RequestBacklog::new(RateSchedule::new(10.0, 0, 1), Time::ZERO, 11, 100);
//! let first = backlog.pop(Time::ZERO, Duration::MAX).unwrap();
//! let stall_ends = first.after(Duration::from_secs(1));
//! // Later answers are immediate, but the waiting counts.
//! let latencies: Vec<u128> = std::iter::from_fn(|| backlog.pop(stall_ends, Duration::MAX))
//!     .map(|intended| stall_ends.since(intended).as_millis())
//!     .collect();
//! assert_eq!(latencies, [900, 800, 700, 600, 500, 400, 300, 200, 100, 0]);
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use stilling_ring::Time;

const NANOS_PER_SECOND: f64 = 1e9;

/// A period of an open loop with a constant rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateStep {
    /// Requests per second.
    pub rate: f64,
    /// Length of the step.
    pub span: Duration,
}

/// The intended starts of one thread's requests, relative to the start of the run.
#[derive(Clone, Debug)]
pub struct RateSchedule {
    /// At least one; the last one has no end.
    segments: Vec<RateSegment>,
    thread: u64,
    threads: u64,
}

/// A step with its start and the requests before it.
#[derive(Clone, Copy, Debug)]
struct RateSegment {
    rate: f64,
    start: Duration,
    /// Requests of all threads before it, not rounded.
    before: f64,
}

impl RateSchedule {
    /// The share of thread number `thread` out of `threads` in `rate` requests per second.
    pub fn new(rate: f64, thread: u32, threads: u32) -> Self {
        RateSchedule::stepped(&[RateStep { rate, span: Duration::MAX }], thread, threads)
    }

    /// The share of thread number `thread` out of `threads` in consecutive steps. The rate of the last step continues
    /// beyond its end.
    ///
    /// # Panics
    /// Without steps.
    pub fn stepped(steps: &[RateStep], thread: u32, threads: u32) -> Self {
        assert!(!steps.is_empty(), "a schedule has at least one step");
        let (mut start, mut before) = (Duration::ZERO, 0.0);
        let segment = |step: &RateStep| {
            let segment = RateSegment { rate: step.rate, start, before };
            start = start.saturating_add(step.span);
            before += step.rate * step.span.as_secs_f64();
            segment
        };
        RateSchedule {
            segments: steps.iter().map(segment).collect(),
            thread: thread.into(),
            threads: threads.into(),
        }
    }

    /// Intended start of this thread's request number `k`.
    pub fn at(&self, k: u64) -> Duration {
        let position = (k * self.threads + self.thread) as f64;
        let begun = self.segments.partition_point(|segment| segment.before <= position);
        let segment = &self.segments[begun.saturating_sub(1)];
        // Exact to the nanosecond for the first hundred days.
        let into = (position - segment.before) * NANOS_PER_SECOND / segment.rate;
        segment.start + Duration::from_nanos(into as u64)
    }

    /// Number of this thread's requests that start before `span` is over.
    pub fn count_within(&self, span: Duration) -> u64 {
        let begun = self.segments.partition_point(|segment| segment.start < span);
        let segment = &self.segments[begun.saturating_sub(1)];
        let positions = segment.before + span.saturating_sub(segment.start).as_secs_f64() * segment.rate;
        // The division may be off by one in either direction; `at` decides.
        let mut count = (positions / self.threads as f64) as u64;
        while count > 0 && self.at(count - 1) >= span {
            count -= 1;
        }
        while self.at(count) < span {
            count += 1;
        }
        count
    }
}

/// The due requests of one thread that have not started.
#[derive(Debug)]
pub struct RequestBacklog {
    schedule: RateSchedule,
    start: Time,
    /// Number of scheduled requests.
    next: u64,
    count: u64,
    waiting: VecDeque<Time>,
    waiting_max: usize,
    overflowed: u64,
    expired: u64,
}

impl RequestBacklog {
    /// Creates an empty backlog for a run that starts at `start` with `count` requests, with room for `waiting_max`
    /// waiting ones.
    pub fn new(schedule: RateSchedule, start: Time, count: u64, waiting_max: usize) -> Self {
        RequestBacklog {
            schedule,
            start,
            next: 0,
            count,
            waiting: VecDeque::with_capacity(waiting_max),
            waiting_max,
            overflowed: 0,
            expired: 0,
        }
    }

    /// Due time of the next unscheduled request; `None` when all are scheduled.
    pub fn next_due(&self) -> Option<Time> {
        (self.next < self.count).then(|| self.start.after(self.schedule.at(self.next)))
    }

    /// Adds all requests due at `now`. Without room the latest are dropped and counted: dropping the oldest would hide
    /// the longest waits.
    pub fn admit_due(&mut self, now: Time) {
        while let Some(due) = self.next_due()
            && due <= now
        {
            self.next += 1;
            if self.waiting.len() < self.waiting_max {
                self.waiting.push_back(due);
            } else {
                self.overflowed += 1;
            }
        }
    }

    /// Takes the intended start of the next request at `now`. Requests that have waited longer than `timeout` are
    /// dropped and counted.
    pub fn pop(&mut self, now: Time, timeout: Duration) -> Option<Time> {
        self.admit_due(now);
        self.drop_expired(now, timeout);
        self.waiting.pop_front()
    }

    /// Drops and counts requests that have waited longer than `timeout`.
    pub fn drop_expired(&mut self, now: Time, timeout: Duration) {
        while self.waiting.front().is_some_and(|due| now.since(*due) > timeout) {
            self.waiting.pop_front();
            self.expired += 1;
        }
    }

    /// Puts back a request that was taken but could not start.
    pub fn put_back(&mut self, intended: Time) {
        self.waiting.push_front(intended);
    }

    /// Returns whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns whether every request is scheduled and none waits.
    pub fn is_over(&self) -> bool {
        self.next == self.count && self.waiting.is_empty()
    }

    /// Requests dropped without room.
    pub fn overflowed(&self) -> u64 {
        self.overflowed
    }

    /// Requests that waited too long.
    pub fn expired(&self) -> u64 {
        self.expired
    }

    /// Ends the schedule. Returns the number of requests that have not started, due or not.
    pub fn close(&mut self) -> u64 {
        let left = self.count - self.next + self.waiting.len() as u64;
        self.next = self.count;
        self.waiting.clear();
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_nanos(5_000);

    fn backlog(rate: f64, count: u64, waiting_max: usize) -> RequestBacklog {
        RequestBacklog::new(RateSchedule::new(rate, 0, 1), START, count, waiting_max)
    }

    fn at(millis: u64) -> Time {
        START.after(Duration::from_millis(millis))
    }

    #[test]
    fn the_threads_together_send_exactly_the_rate_evenly() {
        let rate = 3000.0;
        let threads = 7;
        let mut all: Vec<Duration> = (0..threads)
            .flat_map(|thread| (0..100).map(move |k| RateSchedule::new(rate, thread, threads).at(k)))
            .collect();
        all.sort();
        for (k, due) in all.iter().enumerate() {
            assert_eq!(due.as_nanos(), k as u128 * 1_000_000_000 / 3000);
        }
    }

    #[test]
    fn a_long_run_does_not_drift() {
        let day = 24 * 3600;
        assert_eq!(RateSchedule::new(100_000.0, 0, 1).at(day * 100_000), Duration::from_secs(day));
    }

    #[test]
    fn a_span_has_exactly_the_requests_that_begin_in_it() {
        for (rate, threads, span_ms, total) in [(1000.0, 1, 1000, 1000), (3.0, 2, 1000, 3), (0.1, 3, 1, 1)] {
            let span = Duration::from_millis(span_ms);
            let count = |thread| RateSchedule::new(rate, thread, threads).count_within(span);
            assert_eq!((0..threads).map(count).sum::<u64>(), total, "{rate}/s on {threads} threads");
        }
    }

    #[test]
    fn steps_follow_each_other_without_a_gap_or_a_burst() {
        let millis = Duration::from_millis;
        let steps = [
            RateStep { rate: 10.0, span: millis(250) },
            RateStep { rate: 1000.0, span: millis(10) },
            RateStep { rate: 10.0, span: millis(300) },
        ];
        let all = RateSchedule::stepped(&steps, 0, 1);
        assert_eq!([0, 1, 2].map(|k| all.at(k)), [millis(0), millis(100), millis(200)]);
        // Half of the next request's time has passed at the old rate; the other half passes at the new one.
        assert_eq!([3, 4, 12].map(|k| all.at(k).as_micros()), [250_500, 251_500, 259_500]);
        assert_eq!([13, 14].map(|k| all.at(k).as_millis()), [310, 410]);
        assert_eq!([250, 260, 560].map(|end| all.count_within(millis(end))), [3, 13, 16]);
        let mut shares: Vec<_> = (0..3)
            .flat_map(|thread| {
                let share = RateSchedule::stepped(&steps, thread, 3);
                (0..share.count_within(millis(560))).map(move |k| share.at(k)).collect::<Vec<_>>()
            })
            .collect();
        shares.sort();
        assert_eq!(shares, (0..16).map(|k| all.at(k)).collect::<Vec<_>>());
    }

    #[test]
    fn nothing_begins_before_its_time() {
        let mut backlog = backlog(1000.0, 100, 10);
        assert_eq!(backlog.pop(at(0), Duration::MAX), Some(START));
        assert_eq!(backlog.pop(at(0), Duration::MAX), None);
        assert_eq!(backlog.next_due(), Some(at(1)));
        assert_eq!(backlog.pop(at(1), Duration::MAX), Some(at(1)));
    }

    #[test]
    fn a_full_backlog_drops_the_latest_and_counts_them() {
        let mut backlog = backlog(1000.0, 10, 4);
        let kept: Vec<_> = std::iter::from_fn(|| backlog.pop(at(100), Duration::MAX)).collect();
        assert_eq!(kept, [at(0), at(1), at(2), at(3)]);
        assert_eq!((backlog.overflowed(), backlog.expired(), backlog.is_over()), (6, 0, true));
    }

    #[test]
    fn the_oldest_requests_expire_first() {
        let mut backlog = backlog(1000.0, 10, 100);
        assert_eq!(backlog.pop(at(9), Duration::from_millis(5)), Some(at(4)));
        assert_eq!(backlog.expired(), 4);
    }

    #[test]
    fn every_scheduled_request_is_started_or_counted() {
        let mut backlog = backlog(1000.0, 100, 5);
        let mut taken = 0;
        for millis in [0, 3, 20, 21, 40] {
            for _ in 0..3 {
                taken += u64::from(backlog.pop(at(millis), Duration::from_millis(10)).is_some());
            }
        }
        let unsent = backlog.close();
        assert_eq!(taken + unsent + backlog.overflowed() + backlog.expired(), 100);
        assert!(unsent > 0 && backlog.overflowed() > 0 && backlog.expired() > 0 && backlog.is_over());
    }

    #[test]
    fn what_is_put_back_is_the_next_to_begin() {
        let mut backlog = backlog(1000.0, 100, 5);
        let first = backlog.pop(at(1), Duration::MAX).unwrap();
        backlog.put_back(first);
        assert_eq!(backlog.pop(at(1), Duration::MAX), Some(first));
    }
}
