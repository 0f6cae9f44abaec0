//! The observable state of a simulated server.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use stilling::Overview;
use stilling::parts::{HttpCounters, JobOutcome};
use stilling_engine::counters::EngineCounters;
use stilling_workers::Pool;

/// The state of a server with `shards` shards of `capacity` connections, and this pool of `workers` threads.
pub(crate) fn simulated(shards: usize, capacity: u32, pool: &Pool<JobOutcome>, workers: usize) -> Overview {
    Overview {
        started: SystemTime::UNIX_EPOCH,
        driver: "sim".to_owned(),
        driver_fallback: None,
        listeners: Vec::new(),
        receive_buffers: Vec::new(),
        not_opened: Vec::new(),
        capacity,
        workers,
        engines: (0..shards).map(|_| Arc::new(EngineCounters::default())).collect(),
        coap: (0..shards).map(|_| Arc::default()).collect(),
        http: (0..shards).map(|_| Arc::new(HttpCounters::default())).collect(),
        pool: pool.clone(),
        apps: Vec::new(),
        hub: OnceLock::new(),
        hub_handles: (0..shards).map(|_| Arc::default()).collect(),
        rates: Default::default(),
        volumes: Arc::default(),
        listen: Default::default(),
        packet_log: None,
    }
}
