//! Points in time and the clocks they come from.
//!
//! Deadlines, ages and timers are points on one axis: nanoseconds since an arbitrary start. Code takes a [`Time`] as an
//! argument or reads a [`Clock`]: the machine's monotonic clock, or a manual one for the simulator and tests.
//!
//! The manual clock uses std's atomics also under loom: it carries a value, never an ordering between threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A point in time: nanoseconds since an arbitrary start. Range: 584 years; arithmetic saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// The arbitrary start.
    pub const ZERO: Time = Time(0);

    /// The point `nanos` nanoseconds after the start.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The point `span` later, saturating at the maximum.
    #[must_use]
    pub fn after(self, span: Duration) -> Time {
        Time(self.0.saturating_add(whole_nanos(span)))
    }

    /// The point `span` earlier, saturating at the start.
    #[must_use]
    pub fn before(self, span: Duration) -> Time {
        Time(self.0.saturating_sub(whole_nanos(span)))
    }

    /// The span since `earlier`; zero if `earlier` is later than `self`.
    #[must_use]
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A clock, real or manual. Cheap to clone and to read; all clones show the same time.
#[derive(Clone, Debug)]
pub struct Clock(ClockSource);

#[derive(Clone, Debug)]
enum ClockSource {
    Monotonic(Instant),
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's monotonic clock. All real clocks of a process have the same start.
    #[must_use]
    pub fn real() -> Clock {
        static START: OnceLock<Instant> = OnceLock::new();
        Clock(ClockSource::Monotonic(*START.get_or_init(Instant::now)))
    }

    /// A clock that advances only by its [`ManualTime`].
    #[must_use]
    pub fn manual() -> (Clock, ManualTime) {
        let nanos = Arc::new(AtomicU64::new(0));
        (Clock(ClockSource::Manual(Arc::clone(&nanos))), ManualTime(nanos))
    }

    /// Whether this clock is manual: a simulator or a test, where no thread may sleep in real time.
    #[must_use]
    pub fn is_manual(&self) -> bool {
        matches!(self.0, ClockSource::Manual(_))
    }

    /// The current time; never earlier than a time returned before.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Time {
        match &self.0 {
            ClockSource::Monotonic(start) => Time(whole_nanos(start.elapsed())),
            ClockSource::Manual(nanos) => Time(nanos.load(Ordering::Relaxed)),
        }
    }
}

/// Sets a manual [`Clock`]. Time only moves forward.
#[derive(Clone, Debug)]
pub struct ManualTime(Arc<AtomicU64>);

impl ManualTime {
    /// Moves the clock to `time`; no effect if it is already later.
    pub fn set(&self, time: Time) {
        self.0.fetch_max(time.0, Ordering::Relaxed);
    }

    /// Moves the clock `span` ahead.
    pub fn advance(&self, span: Duration) {
        self.set(self.now().after(span));
    }

    /// The current time of the clock.
    #[must_use]
    pub fn now(&self) -> Time {
        Time(self.0.load(Ordering::Relaxed))
    }
}

fn whole_nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_stops_at_both_ends_of_time() {
        let end = Time::from_nanos(u64::MAX);
        assert_eq!(end.after(Duration::from_nanos(1)), end);
        assert_eq!(Time::ZERO.after(Duration::MAX), end);
        assert_eq!(Time::ZERO.since(end), Duration::ZERO);
        assert_eq!(end.since(Time::ZERO).as_nanos(), u128::from(u64::MAX));
        assert_eq!(Time::ZERO.after(Duration::from_millis(3)).as_nanos(), 3_000_000);
    }

    #[test]
    fn a_manual_clock_advances_only_when_set() {
        let (clock, manual_time) = Clock::manual();
        let copy = clock.clone();
        assert!(copy.is_manual() && !Clock::real().is_manual());
        assert_eq!(clock.now(), Time::ZERO);
        manual_time.advance(Duration::from_secs(2));
        manual_time.set(Time::from_nanos(5));
        assert_eq!(copy.now(), Time::from_nanos(2_000_000_000));
        assert_eq!(clock.now(), manual_time.now());
    }

    #[test]
    fn real_clocks_share_one_start_and_never_go_back() {
        let first = Clock::real();
        let before = first.now();
        let between = Clock::real().now();
        let after = first.now();
        assert!(before <= between && between <= after);
    }
}
