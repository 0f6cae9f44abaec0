//! How long a publishing connection is read when the server drains: until it is silent, or has had its time.

use stilling_ring::Time;

use super::limits::DRAIN_QUIET;

/// When to check again a connection whose last bytes came at `heard` and that may be read until `until`. None: it is
/// silent, or its time is over. A connection that `waits` for room is not read, so its time does not pass.
pub(crate) fn looks_again(now: Time, heard: Time, waits: bool, until: Time) -> Option<Time> {
    if waits {
        return Some(now.after(DRAIN_QUIET));
    }
    let end = until.min(heard.after(DRAIN_QUIET));
    (now < end).then_some(end)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_that_talks_has_its_time_one_that_is_silent_ends_it_and_one_that_waits_loses_none() {
        let at = |ms| Time::ZERO.after(Duration::from_millis(ms));
        let quiet = DRAIN_QUIET.as_millis() as u64;
        assert_eq!(looks_again(at(1000), at(1000), false, at(5000)), Some(at(1000 + quiet)));
        assert_eq!(looks_again(at(1000 + quiet), at(1000), false, at(5000)), None, "it is silent");
        assert_eq!(looks_again(at(4999), at(4999), false, at(5000)), Some(at(5000)), "its time ends first");
        assert_eq!(looks_again(at(5000), at(5000), false, at(5000)), None, "it talks still");
        assert_eq!(looks_again(at(9000), at(1000), true, at(5000)), Some(at(9000 + quiet)), "it waits");
    }
}
