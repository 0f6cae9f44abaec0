//! Controlled delay: a queue in which nobody is served at once for a while is a standing queue, and shortening it
//! costs nothing but the work that its clients have stopped waiting for.
//!
//! A queue may be long for a moment without harm, so its length says little. What counts is the shortest wait of
//! an interval: while that stays above the target, every job that has waited twice the target is answered unrun,
//! until one is served quickly again. The workers stay busy all the while, and what they do is in time. This is
//! CoDel in the form that suits requests (jobs are dropped when they are taken, by their age, without its square
//! root).
//!
//! ```text
//!  wait  ▁▂▃▅▆▇█████▃▂▂▂▂▂▂▁▁     ▁ the target
//!        ├─ interval ┤├─ standing: what waited 2 × target is shed ─┤
//! ```

use std::time::Duration;

use stilling_ring::Time;

/// The least target by itself, and the least interval is twenty of them.
const TARGET_MIN: Duration = Duration::from_millis(5);

/// The least interval over which the shortest wait is taken.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Targets that an interval has at least, so that several jobs are taken in it however long they are.
const TARGETS_PER_INTERVAL: u32 = 4;

/// The wait that a queue should come back to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueTarget {
    /// As long as a job takes on average, and at least 5 ms.
    Service,
    /// This long.
    Fixed(Duration),
}

impl QueueTarget {
    fn wait(self, service_mean: Duration) -> Duration {
        match self {
            QueueTarget::Service => service_mean.max(TARGET_MIN),
            QueueTarget::Fixed(wait) => wait,
        }
    }
}

/// What the taking of jobs has shown so far.
#[derive(Debug)]
pub(crate) struct StandingQueueDetector {
    target: QueueTarget,
    interval_end: Time,
    /// The shortest wait of the interval.
    least: Duration,
    /// No job of the interval before this one was served within the target.
    is_standing: bool,
}

impl StandingQueueDetector {
    pub(crate) fn new(target: QueueTarget) -> StandingQueueDetector {
        StandingQueueDetector { target, interval_end: Time::ZERO, least: Duration::ZERO, is_standing: false }
    }

    /// Whether a job that is taken now, after waiting so long, is to be shed.
    pub(crate) fn sheds(&mut self, now: Time, waited: Duration, service_mean: Duration) -> bool {
        let target = self.target.wait(service_mean);
        if now >= self.interval_end {
            let interval = INTERVAL_MIN.max(target.saturating_mul(TARGETS_PER_INTERVAL));
            // What an interval showed that is long over says nothing about now.
            let is_recent = now.since(self.interval_end) < interval;
            self.is_standing = is_recent && self.least > target;
            self.least = waited;
            self.interval_end = now.after(interval);
        } else {
            self.least = self.least.min(waited);
            // One quick start ends it: the rest of the queue is no older.
            self.is_standing &= self.least > target;
        }
        self.is_standing && waited > target.saturating_mul(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn at(at: u64) -> Time {
        Time::ZERO.after(millis(at))
    }

    /// Takes a job every 10 ms in `from..to`, all after the same wait; how many are shed.
    fn shed(standing: &mut StandingQueueDetector, from: u64, to: u64, waited: u64) -> usize {
        let times = (from..to).step_by(10);
        times.filter(|now| standing.sheds(at(*now), millis(waited), Duration::ZERO)).count()
    }

    #[test]
    fn a_short_crowd_is_served_and_a_standing_queue_is_cut() {
        let mut standing = StandingQueueDetector::new(QueueTarget::Fixed(millis(5)));
        assert_eq!(shed(&mut standing, 1000, 1100, 50), 0, "the first interval only looks");
        assert_eq!(shed(&mut standing, 1100, 1200, 50), 10);
        assert_eq!(shed(&mut standing, 1200, 1300, 10), 0, "twice the target is still served");
        assert_eq!(shed(&mut standing, 1300, 1400, 11), 10);
        assert_eq!(shed(&mut standing, 1400, 1410, 5), 0);
        assert_eq!(shed(&mut standing, 1410, 1500, 50), 0, "one quick start ends it");
    }

    #[test]
    fn what_was_seen_long_ago_sheds_nobody() {
        let mut standing = StandingQueueDetector::new(QueueTarget::Fixed(millis(5)));
        shed(&mut standing, 1000, 1100, 50);
        assert_eq!(shed(&mut standing, 1200, 1210, 50), 0);
    }

    #[test]
    fn jobs_longer_than_an_interval_lengthen_it() {
        let mut standing = StandingQueueDetector::new(QueueTarget::Service);
        let service = millis(1000);
        let mut sheds = |second: u64, waited: u64| standing.sheds(at(second * 1000), millis(waited), service);
        assert!(
            ![(10, 3000), (11, 3000), (12, 3000), (13, 3000)]
                .into_iter()
                .any(|(at, waited)| sheds(at, waited))
        );
        assert!(sheds(14, 3000));
        assert!(!sheds(14, 2000), "within twice the mean");
        assert!(!sheds(14, 900) && !sheds(15, 3000));
    }

    #[test]
    fn short_jobs_do_not_make_an_impatient_queue() {
        assert_eq!(QueueTarget::Service.wait(millis(1)), millis(5));
        assert_eq!(QueueTarget::Service.wait(millis(30)), millis(30));
        assert_eq!(QueueTarget::Fixed(millis(1)).wait(millis(30)), millis(1));
    }
}
