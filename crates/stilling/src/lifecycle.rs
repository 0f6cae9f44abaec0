//! The life of the process: running, draining, stopping; and what time it is for people.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use stilling_ring::{Time, Wake};

/// Where the process is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Work is welcome.
    Running,
    /// Nothing new is accepted; requests in flight finish.
    Draining,
    /// What has not finished is cut off.
    Stopping,
}

/// What time it is in the world outside.
#[derive(Clone, Copy, Debug)]
pub enum Calendar {
    /// The system's.
    System,
    /// That many seconds after the epoch at `Time::ZERO`: for the simulator.
    From(u64),
}

/// Shared by all shards and the signal handler.
#[derive(Debug)]
pub struct Lifecycle {
    /// Requests to end so far: the first drains, the second stops.
    requests: Arc<AtomicU32>,
    wakes: Vec<Arc<Wake>>,
    calendar: Calendar,
}

impl Lifecycle {
    /// A running process whose shards hear of changes through `wakes`.
    pub fn new(wakes: Vec<Arc<Wake>>, calendar: Calendar) -> Self {
        Lifecycle { requests: Arc::default(), wakes, calendar }
    }

    /// The phase.
    pub fn phase(&self) -> Phase {
        match self.requests.load(Ordering::Acquire) {
            0 => Phase::Running,
            1 => Phase::Draining,
            _ => Phase::Stopping,
        }
    }

    /// The number of requests to end so far, for a signal handler to count on.
    pub fn requests(&self) -> &Arc<AtomicU32> {
        &self.requests
    }

    /// Asks for the end: politely the first time. Safe in a signal handler.
    pub fn end(&self) {
        self.requests.fetch_add(1, Ordering::AcqRel);
        for wake in &self.wakes {
            wake.force();
        }
    }

    /// Seconds since 1970.
    pub fn unix_seconds(&self, now: Time) -> u64 {
        match self.calendar {
            Calendar::System => {
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
            }
            Calendar::From(start) => start + now.as_nanos() / 1_000_000_000,
        }
    }
}
