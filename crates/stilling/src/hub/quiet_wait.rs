//! How long a draining server reads a publishing connection: until it is quiet, or its time is up.
//!
//! This publishes everything that the client sent before it could see the end. A connection is quiet after
//! [`DRAIN_QUIET`] without input; its time is [`DRAIN_READ_MAX`].

use stilling_ring::Time;

use super::limits::{DRAIN_QUIET, DRAIN_READ_MAX};

/// The final reading of a publishing connection, until it is quiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuietWait {
    /// Reading ends here at the latest.
    until: Time,
}

impl QuietWait {
    /// Begins at `now`, which counts as the time of the last input.
    pub(crate) fn begin(now: Time) -> QuietWait {
        QuietWait { until: now.after(DRAIN_READ_MAX) }
    }

    /// Time of the next check of a connection with its last input at `last_input`. `None`: it is quiet, or its time
    /// is up. A connection that `waits` for room is not read, so it is never quiet.
    pub(crate) fn next_check(self, now: Time, last_input: Time, waits: bool) -> Option<Time> {
        if waits {
            return Some(now.after(DRAIN_QUIET));
        }
        let end = self.until.min(last_input.after(DRAIN_QUIET));
        (now < end).then_some(end)
    }

    /// Time of the next check of a connection that is read from `now` on.
    pub(crate) fn check_after(self, now: Time) -> Time {
        self.until.min(now.after(DRAIN_QUIET))
    }

    /// Time of the next check of a connection that is not read because its peer does not read. `None`: its time is
    /// up.
    pub(crate) fn end_after(self, now: Time) -> Option<Time> {
        (now < self.until).then_some(self.until)
    }

    /// Extends the time by the span from the last input to `now`, in which the connection waited for room unread.
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
    fn time_without_room_extends_the_wait() {
        let mut wait = QuietWait::begin(at(0));
        let end = DRAIN_READ_MAX.as_millis() as u64;
        wait.extend(at(100), at(1100));
        assert_eq!((wait.end_after(at(end)), wait.end_after(at(end + 1000))), (Some(at(end + 1000)), None));
        assert_eq!(wait.check_after(at(end + 999)), at(end + 1000));
    }
}
