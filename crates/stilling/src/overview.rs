//! What the status page and the metrics look at: every shard's counters, the pool, the driver.

use std::sync::{Arc, OnceLock};

use stilling_engine::counters::{Counter, Counters};
use stilling_workers::Pool;

use crate::app::App;
use crate::http::{HttpCounters, JobOutcome};
use crate::hub::DeskCounters;

/// Everything that can be seen of a running server; shared by all threads.
pub struct Overview {
    /// The driver that runs: `uring`, `poll` or `sim`.
    pub driver: String,
    /// Why it is not the first choice.
    pub driver_fallback: Option<String>,
    /// Where the server listens, as URLs.
    pub listeners: Vec<String>,
    /// Connections each shard may have.
    pub capacity: u32,
    /// Worker threads at the start.
    pub workers: usize,
    /// Each shard's engine.
    pub engines: Vec<Arc<Counters>>,
    /// Each shard's HTTP sessions.
    pub http: Vec<Arc<HttpCounters>>,
    /// The worker pool.
    pub pool: Pool<JobOutcome>,
    /// The worker processes, if there are any.
    pub app: Option<Arc<App>>,
    /// The hub, once it runs, if there is one.
    pub hub: OnceLock<Arc<stilling_hub::Counters>>,
    /// Each shard's dealings with the hub; none without one.
    pub desks: Vec<Arc<DeskCounters>>,
}

impl Overview {
    /// What has become of requests for workers: of the processes, where there are any.
    pub fn work(&self) -> stilling_workers::Counters {
        self.app.as_ref().map_or_else(|| self.pool.counters(), |app| app.requests())
    }

    /// The sum of a counter over all shards' engines.
    pub fn engine(&self, counter: impl Fn(&Counters) -> &Counter) -> u64 {
        self.engines.iter().map(|counters| counter(counters).get()).sum()
    }

    /// The sum of a counter over all shards' HTTP sessions.
    pub fn http(&self, counter: impl Fn(&HttpCounters) -> &Counter) -> u64 {
        self.http.iter().map(|counters| counter(counters).get()).sum()
    }
}

impl std::fmt::Debug for Overview {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Overview").field("driver", &self.driver).finish_non_exhaustive()
    }
}
