//! Controlled delay (CoDel) for queues. A queue that serves no job promptly during an interval is a standing queue; its
//! oldest jobs are shed.
//!
//! The measure is the shortest wait of an interval, not the length: a burst makes a queue long without harm. While the
//! shortest wait is above the target, each job that has waited more than twice the target is answered without being
//! run, until a job is served promptly. The workers stay busy, and their results are in time. Unlike in CoDel, jobs are
//! dropped by age on dequeue, without the square-root schedule.
//!
//! ```text
//!  wait  ▁▂▃▅▆▇█████▃▂▂▂▂▂▂▂▁▁     ▁ the target
//!        ├─ interval ┤├─ standing: waits above 2 × target are shed ─┤
//! ```

use std::time::Duration;

use stilling_ring::Time;

/// Lower bound of the automatic target.
const TARGET_MIN: Duration = Duration::from_millis(5);

/// Lower bound of the interval over which the shortest wait is measured.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Minimum length of an interval in targets, so that it covers several jobs of any duration.
const TARGETS_PER_INTERVAL: u32 = 4;

/// The wait to which a standing queue is reduced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueTarget {
    /// The average service time, at least 5 ms.
    Service,
    /// A fixed time.
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

#[derive(Debug)]
pub(crate) struct StandingQueueDetector {
    target: QueueTarget,
    interval_end: Time,
    shortest_wait: Duration,
    /// No job of the interval so far was served within the target.
    is_standing: bool,
}

impl StandingQueueDetector {
    pub(crate) fn new(target: QueueTarget) -> StandingQueueDetector {
        StandingQueueDetector {
            target,
            interval_end: Time::ZERO,
            shortest_wait: Duration::ZERO,
            is_standing: false,
        }
    }

    /// Whether a job taken now after waiting for `waited` is to be shed.
    pub(crate) fn should_shed(&mut self, now: Time, waited: Duration, service_mean: Duration) -> bool {
        let target = self.target.wait(service_mean);
        if now >= self.interval_end {
            let interval = INTERVAL_MIN.max(target.saturating_mul(TARGETS_PER_INTERVAL));
            // The last interval counts only if it ended recently.
            let is_recent = now.since(self.interval_end) < interval;
            self.is_standing = is_recent && self.shortest_wait > target;
            self.shortest_wait = waited;
            self.interval_end = now.after(interval);
        } else {
            self.shortest_wait = self.shortest_wait.min(waited);
            // A single prompt job ends the standing state: the rest of the queue is no older.
            self.is_standing &= self.shortest_wait > target;
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

    /// Takes a job every 10 ms in `from..to`, all after the same wait; returns how many are shed.
    fn shed(standing: &mut StandingQueueDetector, from: u64, to: u64, waited: u64) -> usize {
        let times = (from..to).step_by(10);
        times.filter(|now| standing.should_shed(at(*now), millis(waited), Duration::ZERO)).count()
    }

    #[test]
    fn a_short_burst_is_served_and_a_standing_queue_is_shed() {
        let mut standing = StandingQueueDetector::new(QueueTarget::Fixed(millis(5)));
        assert_eq!(shed(&mut standing, 1000, 1100, 50), 0, "the first interval only measures");
        assert_eq!(shed(&mut standing, 1100, 1200, 50), 10);
        assert_eq!(shed(&mut standing, 1200, 1300, 10), 0, "twice the target is still served");
        assert_eq!(shed(&mut standing, 1300, 1400, 11), 10);
        assert_eq!(shed(&mut standing, 1400, 1410, 5), 0);
        assert_eq!(shed(&mut standing, 1410, 1500, 50), 0, "one quick start ends it");
    }

    #[test]
    fn an_old_interval_sheds_no_job() {
        let mut standing = StandingQueueDetector::new(QueueTarget::Fixed(millis(5)));
        shed(&mut standing, 1000, 1100, 50);
        assert_eq!(shed(&mut standing, 1200, 1210, 50), 0);
    }

    #[test]
    fn jobs_longer_than_an_interval_lengthen_it() {
        let mut standing = StandingQueueDetector::new(QueueTarget::Service);
        let service = millis(1000);
        let mut should_shed =
            |second: u64, waited: u64| standing.should_shed(at(second * 1000), millis(waited), service);
        assert!(
            ![(10, 3000), (11, 3000), (12, 3000), (13, 3000)]
                .into_iter()
                .any(|(at, waited)| should_shed(at, waited))
        );
        assert!(should_shed(14, 3000));
        assert!(!should_shed(14, 2000), "within twice the mean");
        assert!(!should_shed(14, 900) && !should_shed(15, 3000));
    }

    #[test]
    fn short_jobs_keep_the_minimum_queue_target() {
        assert_eq!(QueueTarget::Service.wait(millis(1)), millis(5));
        assert_eq!(QueueTarget::Service.wait(millis(30)), millis(30));
        assert_eq!(QueueTarget::Fixed(millis(1)).wait(millis(30)), millis(1));
    }
}
