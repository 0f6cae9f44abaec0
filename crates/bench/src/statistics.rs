//! Figures that every generator reports alike: how times are spread, and what the generator itself costs.

use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Nanoseconds of the longest latency that is told apart from longer ones: one hour.
const LATENCY_MAX: u64 = 3_600_000_000_000;

/// The finest step, in nanoseconds.
const LATENCY_STEP: u64 = 100;

/// Significant decimal digits of a latency.
const DIGITS: u8 = 3;

pub(crate) const NANOS_PER_MICRO: f64 = 1e3;

/// A distribution of times in microseconds; all 0 if there were none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencySummary {
    /// The shortest.
    pub min_us: f64,
    /// The median.
    pub p50_us: f64,
    /// Nine of ten are not longer.
    pub p90_us: f64,
    /// 99 of 100 are not longer.
    pub p99_us: f64,
    /// 999 of 1000 are not longer.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
    /// The mean.
    pub mean_us: f64,
}

impl LatencySummary {
    pub(crate) fn of(histogram: &Histogram<u64>) -> LatencySummary {
        if histogram.is_empty() {
            return LatencySummary::default();
        }
        let quantile = |q| histogram.value_at_quantile(q) as f64 / NANOS_PER_MICRO;
        LatencySummary {
            min_us: histogram.min() as f64 / NANOS_PER_MICRO,
            p50_us: quantile(0.5),
            p90_us: quantile(0.9),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: histogram.max() as f64 / NANOS_PER_MICRO,
            mean_us: histogram.mean() / NANOS_PER_MICRO,
        }
    }
}

/// A histogram of nanoseconds with memory fixed at the start.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(LATENCY_STEP, LATENCY_MAX, DIGITS).expect("the bounds are in order")
}

/// Processor time that this process has used so far, all threads, user and kernel.
pub(crate) fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // Both are small and not negative.
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
