//! How long a publishing connection is read when the server drains: until it is quiet, or has had its time.
//!
//! What it had sent before it could know of the end is published that way. It is quiet when it has sent nothing for
//! [`DRAIN_QUIET`]; its time is [`DRAIN_READ_MAX`].

use stilling_ring::Time;

use super::limits::{DRAIN_QUIET, DRAIN_READ_MAX};

/// The last part of a publishing connection's life, in which it is read until it is quiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuietWait {
    /// It is read no longer than that.
    until: Time,
}

impl QuietWait {
    /// Begins at `now`, which counts as the time of the last input.
    pub(crate) fn begin(now: Time) -> QuietWait {
        QuietWait { until: now.after(DRAIN_READ_MAX) }
    }

    /// When to check again a connection whose last input came at `last_input`. `None`: it is quiet, or has had its time. A
    /// connection that `waits` for room is not read, and is not quiet however long that takes.
    pub(crate) fn next_check(self, now: Time, last_input: Time, waits: bool) -> Option<Time> {
        if waits {
            return Some(now.after(DRAIN_QUIET));
        }
        let end = self.until.min(last_input.after(DRAIN_QUIET));
        (now < end).then_some(end)
    }

    /// When to check again a connection whose input is not shown before `now`, or that is asked something then.
    pub(crate) fn check_after(self, now: Time) -> Time {
        self.until.min(now.after(DRAIN_QUIET))
    }

    /// When to check again a connection whose input is held back because its peer does not read. `None`: it has had its
    /// time.
    pub(crate) fn end_after(self, now: Time) -> Option<Time> {
        (now < self.until).then_some(self.until)
    }

    /// There is room again at `now`: the time since the last input, in which it was not read, does not count.
    pub(crate) fn extend(&mut self, last_input: Time, now: Time) {
        self.until = self.until.after(now.since(last_input));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO.after(Duration::from_millis(ms))
    }

    #[test]
    fn input_prolongs_it_silence_ends_it_and_waiting_for_room_does_not() {
        let quiet = DRAIN_QUIET.as_millis() as u64;
        let wait = QuietWait { until: at(5000) };
        assert_eq!(wait.next_check(at(1000), at(1000), false), Some(at(1000 + quiet)));
        assert_eq!(wait.next_check(at(1000 + quiet), at(1000), false), None, "it is quiet");
        assert_eq!(wait.next_check(at(4999), at(4999), false), Some(at(5000)), "its time ends first");
        assert_eq!(wait.next_check(at(5000), at(5000), false), None, "it still sends");
        assert_eq!(wait.next_check(at(9000), at(1000), true), Some(at(9000 + quiet)), "it waits");
    }

    #[test]
    fn time_without_room_is_given_back() {
        let mut wait = QuietWait::begin(at(0));
        let end = DRAIN_READ_MAX.as_millis() as u64;
        wait.extend(at(100), at(1100));
        assert_eq!((wait.end_after(at(end)), wait.end_after(at(end + 1000))), (Some(at(end + 1000)), None));
        assert_eq!(wait.check_after(at(end + 999)), at(end + 1000));
    }
}
