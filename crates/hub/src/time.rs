//! The two clocks of the hub: calendar time for records, and a steady clock for spans.

use jiff::Timestamp;

/// A point in calendar time: nanoseconds of Unix time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct UnixNanos(u64);

impl UnixNanos {
    /// 1 January 1970.
    pub const EPOCH: UnixNanos = UnixNanos(0);

    /// Creates the point `nanos` nanoseconds after the epoch.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> UnixNanos {
        UnixNanos(nanos)
    }

    /// Returns the nanoseconds since the epoch.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the point `span_ns` nanoseconds later; saturates.
    #[must_use]
    pub const fn after(self, span_ns: u64) -> UnixNanos {
        UnixNanos(self.0.saturating_add(span_ns))
    }

    /// Returns the nanoseconds since `earlier`; 0 if that is later.
    #[must_use]
    pub const fn since(self, earlier: UnixNanos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A point in time of a clock that is never set: nanoseconds since an arbitrary start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct SteadyNanos(u64);

impl SteadyNanos {
    /// The arbitrary start.
    pub const START: SteadyNanos = SteadyNanos(0);

    /// Creates the point `nanos` nanoseconds after the start.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> SteadyNanos {
        SteadyNanos(nanos)
    }

    /// Returns the nanoseconds since the start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the point `span_ns` nanoseconds later; saturates.
    #[must_use]
    pub const fn after(self, span_ns: u64) -> SteadyNanos {
        SteadyNanos(self.0.saturating_add(span_ns))
    }

    /// Returns the nanoseconds since `earlier`; 0 if that is later.
    #[must_use]
    pub const fn since(self, earlier: SteadyNanos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The current time of both clocks. The calendar may be set forward and back: spans and intervals use the steady clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// Calendar time, for records and answers.
    pub unix_ns: UnixNanos,
    /// Steady time, for spans.
    pub steady_ns: SteadyNanos,
}

/// Calendar time of a simulation when its steady clock starts: November 2023.
const SIMULATED_START_NS: UnixNanos = UnixNanos(1_700_000_000_000_000_000);

impl Now {
    /// Returns the clocks of a simulation after `nanos` nanoseconds. They start at different numbers, which exposes
    /// code that confuses them.
    #[must_use]
    pub const fn simulated(nanos: u64) -> Now {
        Now { unix_ns: SIMULATED_START_NS.after(nanos), steady_ns: SteadyNanos(nanos) }
    }
}

pub(crate) fn rfc3339(unix_ns: UnixNanos) -> String {
    Timestamp::from_nanosecond(i128::from(unix_ns.as_nanos())).unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_stops_at_both_ends_of_time() {
        let (start, end) = (SteadyNanos::START, SteadyNanos::from_nanos(u64::MAX));
        assert_eq!((end.after(1), start.since(end), end.since(start)), (end, 0, u64::MAX));
        assert_eq!(start.after(7).since(start.after(3)), 4);
        let (epoch, end) = (UnixNanos::EPOCH, UnixNanos::from_nanos(u64::MAX));
        assert_eq!((end.after(1), epoch.since(end), end.since(epoch)), (end, 0, u64::MAX));
        let Now { unix_ns, steady_ns } = Now::simulated(5);
        assert_ne!(unix_ns.as_nanos(), steady_ns.as_nanos());
        assert_eq!(rfc3339(unix_ns), "2023-11-14T22:13:20.000000005Z");
    }
}
