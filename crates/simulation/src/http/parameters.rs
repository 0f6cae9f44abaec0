//! Parameters of a world: sizes, speeds, timeouts and clients, drawn from the seed.

use std::sync::Arc;
use std::time::Duration;

use stilling::http::Timeouts;
use stilling::parts::HttpConfig;
use stilling_engine::ShardConfig;
use stilling_ring::Time;
use stilling_wire::http1::HttpLimits;
use stilling_workers::PoolScaling;

use super::test_routes;
use crate::SplitMix64;
use crate::faults::FaultRates;
use crate::network::NetworkOptions;

/// Clients arrive within this time, in milliseconds.
pub(super) const ARRIVALS_MS: u64 = 400;

/// Everything that the seed decides in advance.
pub(super) struct HttpWorldParameters {
    pub(super) random: SplitMix64,
    pub(super) network: NetworkOptions,
    pub(super) shards: usize,
    pub(super) buffers: u16,
    pub(super) backlog: usize,
    pub(super) defer_accept: bool,
    pub(super) engine: ShardConfig,
    pub(super) http: HttpConfig,
    pub(super) pool: stilling_workers::PoolLimits,
    /// Rate of stuck jobs, per thousand.
    pub(super) stuck_rate: u16,
    pub(super) is_short_of_memory: bool,
    pub(super) has_nats_clients: bool,
    pub(super) faults_until: Time,
    /// Drain requested while clients are still busy.
    pub(super) early_end: Option<Time>,
}

fn millis(random: &mut SplitMix64, low: u64, high: u64) -> Duration {
    Duration::from_millis(random.between(low, high))
}

/// Lets the pool grow and shrink in some worlds, and the shards do some of the work in others.
fn elastic(mut pool: stilling_workers::PoolLimits, random: &mut SplitMix64) -> stilling_workers::PoolLimits {
    if pool.threads > 0 && random.chance(400) {
        pool.scaling = PoolScaling {
            free_threshold: random.between(1, 50) as u8,
            spawn_hunk: random.between(1, 50) as u8,
            spawn_factor: random.between(0, 90) as u8,
            threads_max: pool.threads + random.below(8) as usize,
            shrink_after: millis(random, 1, 200),
        };
    }
    if random.chance(100) {
        pool.inline_max = 1;
    }
    pool
}

impl HttpWorldParameters {
    pub(super) fn draw(random: &mut SplitMix64) -> Self {
        let kind = random.chance(100);
        let faults = if kind { FaultRates::NONE } else { FaultRates::draw(random) };
        let latency = (Duration::from_micros(20), Duration::from_micros(random.between(20, 3000)));
        let buffer = random.between(200, 20_000) as usize;
        let threads = random.below(5) as usize;
        let is_short_of_memory = random.chance(100);
        let engine = ShardConfig {
            capacity: random.between(3, 40) as u32,
            park_after: millis(random, 1, 100),
            write_timeout: millis(random, 300, 1000),
            linger_timeout: millis(random, 50, 500),
            accept_retry: millis(random, 1, 20),
            ..ShardConfig::default()
        };
        let store = random.between(16, 48) as usize * 1024;
        let engine = if is_short_of_memory {
            ShardConfig { input_bytes_max: store, output_bytes_max: store, ..engine }
        } else {
            engine
        };
        let queue_age_max = millis(random, 30, 2000);
        let http = HttpConfig {
            limits: HttpLimits::default(),
            timeouts: Timeouts {
                first_byte: millis(random, 500, 1500),
                head: millis(random, 2000, 4000),
                body_grace: millis(random, 1000, 2000),
                body_rate_min: 1024,
                idle: millis(random, 1000, 3000),
                work: millis(random, 200, 1000),
                drain: millis(random, 20, 2000),
            },
            slow_duration: millis(random, 1, 30),
            has_workers: threads > 0,
            queue_age_max,
            routes: Arc::new(test_routes::routes()),
            responses_held_max: 1 << 30,
            requests_held_max: if is_short_of_memory {
                random.between(2000, 10_000) as usize
            } else {
                1 << 20
            },
            write_timeout: engine.write_timeout,
            apps: Default::default(),
            auction_filters: Vec::new(),
        };
        let queue_max = random.between(1, 16) as usize;
        let limits = stilling_workers::PoolLimits::default();
        let queue_target = queue_max.is_multiple_of(3).then_some(stilling_workers::QueueTarget::Service);
        let pool = stilling_workers::PoolLimits {
            threads,
            queue_max,
            age_max: queue_age_max,
            queue_target,
            ..limits
        };
        let pool = elastic(pool, &mut random.fork());
        let faults_until_ms = random.between(200, 1500);
        let early_end = random.chance(150).then(|| Time::ZERO.after(millis(random, 1, ARRIVALS_MS + 100)));
        HttpWorldParameters {
            network: NetworkOptions { latency, buffer, faults },
            shards: if random.chance(300) { 2 } else { 1 },
            buffers: random.between(1, 16) as u16,
            backlog: random.between(4, 64) as usize,
            defer_accept: random.chance(300),
            engine,
            http,
            pool,
            has_nats_clients: !is_short_of_memory && random.chance(500),
            stuck_rate: if random.chance(150) { 50 } else { 0 },
            is_short_of_memory,
            faults_until: Time::ZERO.after(Duration::from_millis(faults_until_ms)),
            early_end,
            random: random.fork(),
        }
    }
}
