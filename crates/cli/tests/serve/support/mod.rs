//! What the tests stand on: a server process that ends with its test, raw peers, the metrics.
//!
//! Nothing waits for a span of time: it waits for what should happen, and [`HANG`] only decides when
//! a wait is called a failure.

mod control;
mod metrics;
mod peer;
mod random;
mod server;
mod tool;

use std::time::{Duration, Instant};

pub(crate) use control::Control;
pub(crate) use metrics::{Metrics, Watcher};
pub(crate) use peer::Peer;
pub(crate) use random::Random;
pub(crate) use server::{Driver, Server, binary};
pub(crate) use tool::Tool;

/// After this, what has not happened is taken to never happen.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// The pause between two looks at a condition that nobody reports.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// Looks until `look` finds what it wants, and returns it.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < HANG, "it never happened: {what}");
        std::thread::park_timeout(BETWEEN_LOOKS);
    }
}
