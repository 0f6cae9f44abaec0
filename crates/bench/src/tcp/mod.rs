//! Generator for plain TCP servers that echo, read or write bytes: exchanges in a closed loop, a connection per exchange,
//! bulk data in one direction, connects alone, and connections held idle.
//!
//! Every byte is compared with the expected one.

mod bulk;
mod connection;
mod connects;
mod exchanges;
mod held;
#[cfg(test)]
mod tests;

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

pub use bulk::{BULK_PATTERN_SIZE, bulk_pattern, receive, send};
pub use connects::connect;
pub use exchanges::{EXCHANGE_SIZE_MAX, ExchangePlan, run};
pub use held::HeldConnections;

pub use crate::statistics::LatencySummary;

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TcpReport {
    /// Seconds from the first send to the last byte.
    pub elapsed_s: f64,
    /// Exchanges with the right answer, or connects.
    pub exchanges: u64,
    /// The same per second.
    pub rate_per_s: f64,
    /// Bytes in one direction.
    pub bytes: u64,
    /// Gigabits per second in one direction.
    pub gigabits_per_s: f64,
    /// Exchanges without the right answer, and connections that did not open.
    pub failures: u64,
    /// The first failure.
    pub evidence: Option<String>,
    /// Times from send to answer; with a connection per exchange, from connect(2). Or times of connect(2).
    pub latency: LatencySummary,
}

impl TcpReport {
    /// The report of a run without failures so far.
    fn of(elapsed: Duration, exchanges: u64, bytes: u64, latencies: &Histogram<u64>) -> TcpReport {
        let elapsed_s = elapsed.as_secs_f64();
        let per_second = |count: f64| if elapsed_s > 0.0 { count / elapsed_s } else { 0.0 };
        TcpReport {
            elapsed_s,
            exchanges,
            rate_per_s: per_second(exchanges as f64),
            bytes,
            gigabits_per_s: per_second(bytes as f64 * 8.0 / 1e9),
            failures: 0,
            evidence: None,
            latency: LatencySummary::of(latencies),
        }
    }
}

/// Failures of a run; the first one is kept as evidence.
#[derive(Debug, Default)]
struct FailureCount {
    count: u64,
    evidence: Option<String>,
}

impl FailureCount {
    fn add(&mut self, evidence: impl ToString) {
        self.count += 1;
        self.evidence.get_or_insert_with(|| evidence.to_string());
    }
}
