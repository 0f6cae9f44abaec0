//! Connects without any data, one after another.

use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::{FailureCount, TcpReport};
use crate::statistics::histogram;

/// Pause between two connects: some hundred arrive while a script blocks its server for half a second.
const PAUSE: Duration = Duration::from_millis(2);

/// Connects and closes again and again, for a time. Each connect counts as an exchange.
#[must_use]
pub fn connect(to: SocketAddr, span: Duration, timeout: Duration) -> TcpReport {
    let mut latencies = histogram();
    let mut failures = FailureCount::default();
    let mut connects = 0;
    let start = Instant::now();
    while start.elapsed() < span {
        let begin = Instant::now();
        match TcpStream::connect_timeout(&to, timeout) {
            Ok(_) => {
                connects += 1;
                latencies.saturating_record(begin.elapsed().as_nanos() as u64);
            }
            Err(error) => failures.add(format!("connect: {error}")),
        }
        thread::sleep(PAUSE);
    }
    let report = TcpReport::of(start.elapsed(), connects, 0, &latencies);
    TcpReport { failures: failures.count, evidence: failures.evidence, ..report }
}
