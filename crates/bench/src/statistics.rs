//! Statistics that all generators report: distributions of times, and the generator's own CPU time.

use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Maximum recorded latency in nanoseconds: one hour.
const LATENCY_MAX: u64 = 3_600_000_000_000;

/// Resolution in nanoseconds.
const LATENCY_STEP: u64 = 100;

/// Significant decimal digits of a latency.
const DIGITS: u8 = 3;

pub(crate) const NANOS_PER_MICRO: f64 = 1e3;

/// A distribution of times in microseconds; all 0 if it is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencySummary {
    /// Minimum.
    pub min_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Maximum.
    pub max_us: f64,
    /// Mean.
    pub mean_us: f64,
    /// Standard deviation.
    pub stdev_us: f64,
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
            stdev_us: histogram.stdev() / NANOS_PER_MICRO,
        }
    }
}

/// A histogram of nanoseconds with memory allocated at the start.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(LATENCY_STEP, LATENCY_MAX, DIGITS).expect("the bounds are in order")
}

/// CPU time of this process so far: all threads, user and kernel.
pub(crate) fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // Both are small and not negative.
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
