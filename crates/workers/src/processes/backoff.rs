//! Delay before a process that exited is started again: none after a stable uptime, else doubled with each exit in a
//! row, up to a maximum. A program that cannot start must not consume the machine.

use std::time::Duration;

use super::limits::{BACKOFF_FIRST, BACKOFF_MAX, STABLE_UPTIME};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backoff {
    exits: u32,
}

impl Backoff {
    /// Returns the delay after an exit; `uptime` is the time during which the process was ready.
    pub(super) fn delay_after_exit(&mut self, uptime: Duration) -> Duration {
        if uptime >= STABLE_UPTIME {
            self.exits = 0;
            return Duration::ZERO;
        }
        let doublings = self.exits.min(31);
        self.exits = self.exits.saturating_add(1);
        BACKOFF_FIRST.saturating_mul(1 << doublings).min(BACKOFF_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 1.24: restart, but never in a tight loop.
    #[test]
    fn the_wait_doubles_up_to_its_maximum_and_a_long_run_resets_it() {
        let mut backoff = Backoff::default();
        let waits: Vec<u64> =
            (0..9).map(|_| backoff.delay_after_exit(Duration::ZERO).as_millis() as u64).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(backoff.delay_after_exit(STABLE_UPTIME), Duration::ZERO);
        assert_eq!(backoff.delay_after_exit(STABLE_UPTIME - Duration::from_nanos(1)), BACKOFF_FIRST);
        let mut old = Backoff { exits: u32::MAX };
        assert_eq!(old.delay_after_exit(Duration::ZERO), BACKOFF_MAX);
    }
}
