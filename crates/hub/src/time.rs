//! The two clocks of the hub: one that may be set, for what is stored, and a steady one for spans.

use jiff::Timestamp;

/// A point in time by the calendar: nanoseconds of Unix time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct UnixNanos(u64);

impl UnixNanos {
    /// The first of January 1970.
    pub const EPOCH: UnixNanos = UnixNanos(0);

    /// The point so many nanoseconds after the epoch.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> UnixNanos {
        UnixNanos(nanos)
    }

    /// Nanoseconds since the epoch.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The point so many nanoseconds later, or the end of time if there is none.
    #[must_use]
    pub const fn after(self, span_ns: u64) -> UnixNanos {
        UnixNanos(self.0.saturating_add(span_ns))
    }

    /// Nanoseconds from `earlier` to here; 0 if that is later.
    #[must_use]
    pub const fn since(self, earlier: UnixNanos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A point in time by a clock that is never set: nanoseconds since an arbitrary moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct SteadyNanos(u64);

impl SteadyNanos {
    /// The arbitrary moment.
    pub const START: SteadyNanos = SteadyNanos(0);

    /// The point so many nanoseconds after the start.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> SteadyNanos {
        SteadyNanos(nanos)
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The point so many nanoseconds later, or the end of time if there is none.
    #[must_use]
    pub const fn after(self, span_ns: u64) -> SteadyNanos {
        SteadyNanos(self.0.saturating_add(span_ns))
    }

    /// Nanoseconds from `earlier` to here; 0 if that is later.
    #[must_use]
    pub const fn since(self, earlier: SteadyNanos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// What time it is. The calendar may be set, forward and back: what lasts so long, or comes so often, goes by the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// For what is stored and told.
    pub unix_ns: UnixNanos,
    /// For spans.
    pub steady_ns: SteadyNanos,
}

/// What the calendar of a simulation says when its steady clock starts: November 2023.
const SIMULATED_START_NS: UnixNanos = UnixNanos(1_700_000_000_000_000_000);

impl Now {
    /// What the clocks of a simulation say when so many nanoseconds have passed. They do not start at the same number, so one
    /// that is taken for the other is found.
    #[must_use]
    pub const fn simulated(nanos: u64) -> Now {
        Now { unix_ns: SIMULATED_START_NS.after(nanos), steady_ns: SteadyNanos(nanos) }
    }
}

/// A point in time as RFC 3339 has it.
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
