//! What the tests stand on: servers in this process, raw peers, sources that do as they are told.
//!
//! Nothing waits for a span of time: it waits for what should happen, and [`HANG`] only decides when a
//! wait is called a failure.

mod peer;
mod served;
mod source;

use std::time::{Duration, Instant};

pub(crate) use peer::{Answer, Peer};
pub(crate) use served::Served;
pub(crate) use source::{Watched, feed, pattern};

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

/// A request without a body on a kept connection.
pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}
