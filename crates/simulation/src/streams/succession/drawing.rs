//! Draws the network and the servers of a world from its seed.

use std::time::{Duration, Instant};

use crate::SplitMix64;
use crate::network::NetworkOptions;
use crate::streams::ledger::RetentionBounds;
use crate::streams::message::ON_DISK;
use crate::streams::parameters;
use crate::streams::server::ServerPlan;

pub(super) fn draw_network(random: &mut SplitMix64) -> NetworkOptions {
    let latency_max = Duration::from_micros(random.between(20, 2000));
    NetworkOptions {
        latency: (Duration::from_micros(20), latency_max),
        buffer: random.between(2000, 60_000) as usize,
        faults: if random.chance(500) { crate::faults::FaultRates::NONE } else { parameters::mild(random) },
    }
}

pub(super) fn draw_plan(segment_size: u64, random: &mut SplitMix64) -> ServerPlan {
    let bounds = vec![RetentionBounds::default(); ON_DISK];
    ServerPlan {
        streams: parameters::streams(&bounds),
        segment_size,
        journal: stilling_journal::JournalLimits {
            batches: random.between(2, 10) as usize,
            batch_size: random.between(4, 12) as usize * 4096,
        },
        shards: random.between(1, 3) as usize,
        buffers: random.between(4, 32) as u16,
        drain: Duration::from_millis(random.between(3000, 12_000)),
        disk_latency: Duration::from_micros(random.between(50, 8000)),
        memory_batch_size: None,
        output_bytes_max: None,
        origin: Instant::now(),
    }
}
