//! Decides on the backlog of one listener. Performs no I/O and reads no clock.

use crate::Time;
use crate::limits::BACKLOG_LOWER_AFTER;

/// The accept queue of a listener: connections with completed handshakes that wait to be accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptQueue {
    /// Connections in the queue.
    pub length: u32,
    /// Effective backlog: that of listen(2), at most `net.core.somaxconn`.
    pub max: u32,
}

/// State of the network namespace at a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenPressure {
    /// A SYN flood is on.
    pub is_flooded: bool,
    /// This listener dropped connection requests or completed connections because a queue was full.
    pub has_dropped: bool,
    /// Largest backlog that the system grants: `net.core.somaxconn`.
    pub backlog_max: u32,
}

/// State machine of one listener's backlog, fed with one sample per interval.
///
/// It doubles the backlog, up to the maximum, while the queue is at least three quarters full, has dropped connections,
/// or a SYN flood is on. It returns to the configured backlog when there was no such sign for
/// [`BACKLOG_LOWER_AFTER`] and at most half of that backlog is in use. The sampled backlog counts, not a remembered one,
/// so several processes may share a listener.
#[derive(Debug)]
pub struct BacklogControl {
    configured: u32,
    calm_since: Option<Time>,
}

impl BacklogControl {
    /// For a listener with this configured backlog.
    #[must_use]
    pub fn new(configured: u32) -> BacklogControl {
        BacklogControl { configured, calm_since: None }
    }

    /// The configured backlog.
    #[must_use]
    pub fn configured(&self) -> u32 {
        self.configured
    }

    /// Changes the configured backlog; a raised one stays raised until it is lowered to this.
    pub fn set_configured(&mut self, configured: u32) {
        self.configured = configured;
    }

    /// Takes a sample; returns the backlog to set, if it is to change.
    pub fn sample(&mut self, at: Time, queue: AcceptQueue, pressure: ListenPressure) -> Option<u32> {
        let AcceptQueue { length, max } = queue;
        let is_full = length > 0 && u64::from(length) * 4 >= u64::from(max) * 3;
        if is_full || pressure.has_dropped || pressure.is_flooded {
            self.calm_since = None;
            let raised = max.saturating_mul(2).max(1).min(pressure.backlog_max);
            return (raised > max).then_some(raised);
        }
        let base = self.configured.min(pressure.backlog_max);
        if max <= base {
            self.calm_since = None;
            return None;
        }
        let since = *self.calm_since.get_or_insert(at);
        if at.since(since) < BACKLOG_LOWER_AFTER || length > base / 2 {
            return None;
        }
        self.calm_since = None;
        Some(base)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::LISTEN_SAMPLE_INTERVAL;

    const BACKLOG_MAX: u32 = 4096;

    /// A listener as the system has it: the backlog takes effect at once.
    struct Listener {
        control: BacklogControl,
        now: Time,
        max: u32,
    }

    impl Listener {
        fn new(configured: u32) -> Listener {
            Listener { control: BacklogControl::new(configured), now: Time::ZERO, max: configured }
        }

        fn sample(&mut self, length: u32, is_flooded: bool, has_dropped: bool) -> Option<u32> {
            self.now = self.now.after(LISTEN_SAMPLE_INTERVAL);
            let pressure = ListenPressure { is_flooded, has_dropped, backlog_max: BACKLOG_MAX };
            let queue = AcceptQueue { length, max: self.max };
            let wanted = self.control.sample(self.now, queue, pressure);
            self.max = wanted.unwrap_or(self.max);
            wanted
        }

        /// Samples with this length until the backlog is lowered; returns their number.
        fn samples_until_lowered(&mut self, length: u32) -> Option<usize> {
            (1..1000).find(|_| self.sample(length, false, false).is_some())
        }
    }

    /// Row 3.9: a filling queue doubles the backlog up to the system's maximum; calm lowers it after the hold time.
    #[test]
    fn a_filling_queue_raises_the_backlog_and_calm_lowers_it() {
        let mut listener = Listener::new(128);
        assert_eq!(listener.sample(95, false, false), None);
        assert_eq!(listener.sample(96, false, false), Some(256));
        assert_eq!(listener.sample(96, false, false), None);
        for expected in [512, 1024, 2048, 4096] {
            assert_eq!(listener.sample(5, false, true), Some(expected), "it dropped connections");
        }
        assert_eq!(listener.sample(4096, true, true), None, "the system grants no more");
        assert_eq!(listener.samples_until_lowered(64), Some(21), "5 s and the sample that begins them");
        assert_eq!(listener.max, 128);
        assert_eq!(listener.samples_until_lowered(0), None);
    }

    #[test]
    fn a_flood_raises_the_backlog_of_an_empty_queue() {
        let mut listener = Listener::new(128);
        let raised: Vec<_> = (0..6).filter_map(|_| listener.sample(0, true, false)).collect();
        assert_eq!(raised, [256, 512, 1024, 2048, 4096]);
    }

    /// A lower backlog than the queue's length would drop connections.
    #[test]
    fn a_queue_in_use_is_not_cut() {
        let mut listener = Listener::new(128);
        listener.sample(128, false, true);
        listener.sample(200, false, true);
        assert_eq!((listener.max, listener.samples_until_lowered(65)), (512, None));
        assert_eq!(listener.samples_until_lowered(64), Some(1), "the hold time is over");
    }

    #[test]
    fn a_backlog_of_zero_and_one_beyond_the_maximum_are_legal() {
        let mut none = Listener::new(0);
        assert_eq!(none.sample(0, false, false), None);
        assert_eq!(none.sample(1, false, false), Some(1));
        assert_eq!(none.samples_until_lowered(0), Some(21));
        let mut most = Listener::new(u32::MAX);
        most.max = BACKLOG_MAX;
        assert_eq!(most.sample(BACKLOG_MAX, true, true), None);
        assert_eq!(most.samples_until_lowered(0), None);
    }

    /// Row 3.8: a new configured backlog is what the listener returns to; a predecessor's raised one is lowered too.
    #[test]
    fn the_backlog_returns_to_the_configured_one_at_that_time() {
        let mut listener = Listener::new(128);
        listener.max = 2048;
        listener.control.set_configured(256);
        assert_eq!((listener.samples_until_lowered(10), listener.max), (Some(21), 256));
    }

    proptest! {
        /// Whatever came before, calm leads to the configured backlog and keeps it; the backlog is never below the
        /// configured one, never above the maximum, and never lowered below the queue.
        #[test]
        fn no_history_sticks(
            configured in 0_u32..5000,
            history in prop::collection::vec((0_u32..5000, any::<bool>(), any::<bool>()), 0..200),
        ) {
            let mut listener = Listener::new(configured.min(BACKLOG_MAX));
            let base = listener.max;
            for (length, is_flooded, has_dropped) in history {
                let length = length.min(listener.max + 1);
                let before = listener.max;
                if let Some(wanted) = listener.sample(length, is_flooded, has_dropped) {
                    prop_assert!(wanted != before && wanted <= BACKLOG_MAX && wanted >= base);
                    prop_assert!(wanted > before || length <= wanted);
                }
            }
            for _ in 0..21 {
                listener.sample(base / 2, false, false);
            }
            // A queue that is full at half of its maximum: the maximum is 1.
            let ends = if base == 0 { 0 } else { base };
            prop_assert_eq!(listener.max, ends);
            prop_assert_eq!(listener.samples_until_lowered(0), None);
        }
    }
}
