//! Parameters of a world: streams, sizes, speeds, server runs and clients, drawn from the seed.

use std::time::{Duration, Instant};

use stilling::settings::{Durability, Retention, StreamConfig};
use stilling_journal::JournalLimits;
use stilling_ring::Time;

use super::ScenarioBias;
use super::client::StreamsClient;
use super::damage::DiskDamage;
use super::disks::ServerCrash;
use super::ledger::{RetentionBounds, StreamLedger};
use super::message::{ON_DISK, STREAMS};
use super::server::ServerPlan;
use crate::SplitMix64;
use crate::faults::{FaultRates, NetworkFault};
use crate::network::NetworkOptions;

/// Longest message with its headers, in bytes.
const MESSAGE_SIZE_MAX: u32 = 8 * 1024;

/// The hub's stall timeout: it refuses publications when a disk takes longer.
const STALL: Duration = Duration::from_secs(15);

/// Everything that the seed decides in advance.
pub(super) struct StreamsWorldParameters {
    pub(super) network: NetworkOptions,
    pub(super) plan: ServerPlan,
    pub(super) ledgers: Vec<StreamLedger>,
    pub(super) clients: Vec<StreamsClient>,
    /// Runs of the server before the last.
    pub(super) server_runs: Vec<ServerRun>,
}

#[derive(Clone, Debug)]
pub(super) struct ServerRun {
    /// Ends after this many acknowledgements in total, or after `span`.
    pub(super) acknowledgements: u64,
    pub(super) span: Duration,
    pub(super) end: RunEnding,
    pub(super) disk_failures: Vec<(Duration, DiskFailure)>,
    /// Damage to disks before the next server opens them.
    pub(super) damages: Vec<DiskDamage>,
    /// Time until the next server starts.
    pub(super) pause: Duration,
    /// The next server's listeners already exist during `pause`.
    pub(super) listens_early: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum RunEnding {
    ServerCrash(ServerCrash),
    /// In order, unless cut off at a step.
    Restart(Option<(RestartStep, ServerCrash)>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartStep {
    /// This long after the old server was requested to end.
    Draining(Duration),
    Sealing,
    /// The new server has opened the streams.
    Opened,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum DiskFailure {
    /// After `after` writes, `times` writes fail.
    WritesFail { disk: usize, after: u32, times: u32 },
    /// After `after` writes, the sync of `times` writes fails.
    WritesNotSynced { disk: usize, after: u32, times: u32 },
    /// `times` reads fail.
    ReadsFail { disk: usize, times: u32 },
    /// Directory changes cannot be made durable.
    SyncFails { disk: usize },
    /// No room for new segments during `span`.
    Full { disk: usize, span: Duration },
    /// The journal gets no completions during `span`.
    Hangs { span: Duration },
}

impl DiskFailure {
    pub(super) fn name(self) -> &'static str {
        match self {
            DiskFailure::WritesFail { .. } => "writes fail",
            DiskFailure::WritesNotSynced { .. } => "writes are not synced",
            DiskFailure::ReadsFail { .. } => "reads fail",
            DiskFailure::SyncFails { .. } => "sync fails",
            DiskFailure::Full { .. } => "full",
            DiskFailure::Hangs { .. } => "hangs",
        }
    }

    pub(super) fn is_long(span: Duration) -> bool {
        span > STALL
    }
}

fn millis(random: &mut SplitMix64, low: u64, high: u64) -> Duration {
    Duration::from_millis(random.between(low, high))
}

impl StreamsWorldParameters {
    pub(super) fn draw(random: &mut SplitMix64, bias: ScenarioBias) -> StreamsWorldParameters {
        let segment_size = random.between(4, 32) * 4096;
        let bounds: Vec<RetentionBounds> = (0..ON_DISK).map(|_| draw_bounds(segment_size, random)).collect();
        let faults = if random.chance(400) { FaultRates::NONE } else { mild(random) };
        let network = NetworkOptions {
            latency: (Duration::from_micros(20), Duration::from_micros(random.between(20, 2000))),
            buffer: random.between(2000, 60_000) as usize,
            faults,
        };
        let plan = ServerPlan {
            streams: streams(&bounds),
            segment_size,
            journal: JournalLimits {
                batches: random.between(2, 10) as usize,
                batch_size: random.between(4, 12) as usize * 4096,
            },
            shards: random.between(1, 3) as usize,
            buffers: random.between(4, 32) as u16,
            drain: millis(random, 500, 4000),
            disk_latency: Duration::from_micros(random.between(50, 8000)),
            memory_batch_size: None,
            output_bytes_max: None,
            // Only differences to it matter.
            origin: Instant::now(),
        };
        let sizes = (segment_size, plan.journal.batch_size as u64);
        let ledgers =
            (0..ON_DISK).map(|number| StreamLedger::new(STREAMS[number], bounds[number], sizes)).collect();
        // In slow worlds records become old enough for retention, which runs once per second.
        let pace = if random.chance(300) { millis(random, 100, 700) } else { millis(random, 1, 20) };
        let clients = draw_clients(pace, random);
        let server_runs =
            (1..=random.between(1, 4)).map(|number| ServerRun::draw(number, bias, random)).collect();
        StreamsWorldParameters { network, plan, ledgers, clients, server_runs }
    }
}

fn draw_bounds(segment_size: u64, random: &mut SplitMix64) -> RetentionBounds {
    match random.below(4) {
        0 => RetentionBounds::default(),
        1 => RetentionBounds { bytes: None, records: Some(random.between(5, 100)) },
        2 => RetentionBounds {
            bytes: Some(segment_size * random.between(2, 6)),
            records: Some(random.between(5, 100)),
        },
        _ => RetentionBounds { bytes: Some(segment_size * random.between(2, 6)), records: None },
    }
}

/// Faults of the network, rare enough to allow progress.
pub(super) fn mild(random: &mut SplitMix64) -> FaultRates {
    let drawn = FaultRates::draw(random);
    NetworkFault::ALL.into_iter().fold(drawn, |faults, fault| faults.with(fault, drawn.rate(fault) / 2))
}

pub(super) fn streams(bounds: &[RetentionBounds]) -> Vec<StreamConfig> {
    let stream = |(number, name): (usize, &&str)| {
        let stream = StreamConfig::new(*name, [format!("{name}.>")]);
        let RetentionBounds { bytes, records } = bounds.get(number).copied().unwrap_or_default();
        StreamConfig {
            durability: match number {
                0 | 1 => Durability::Disk,
                2 => Durability::Memory,
                _ => Durability::None,
            },
            retention: Retention { bytes: bytes.unwrap_or(0), records, age: None },
            message_size_max: MESSAGE_SIZE_MAX,
            ..stream
        }
    };
    STREAMS.iter().enumerate().map(stream).collect()
}

fn draw_clients(pace: Duration, random: &mut SplitMix64) -> Vec<StreamsClient> {
    let mut clients = Vec::new();
    let mut number = 0;
    let start = |random: &mut SplitMix64| {
        // Some worlds begin with empty streams: the first publication arrives during the first hand-over.
        Time::ZERO.after(Duration::from_micros(random.below(30_000)))
    };
    for _ in 0..random.between(1, 5) {
        let at = start(random);
        clients.push(StreamsClient::publisher(number, at, pace, random));
        number += 1;
    }
    for _ in 0..random.below(4) {
        let at = start(random);
        clients.push(StreamsClient::poster(number, at, pace, random));
        number += 1;
    }
    for _ in 0..random.below(3) {
        clients.push(StreamsClient::subscriber(start(random)));
    }
    for _ in 0..random.below(3) {
        let stream = random.index(ON_DISK);
        clients.push(StreamsClient::follower((clients.len(), stream), start(random), None));
    }
    clients
}

impl ServerRun {
    fn draw(number: u64, bias: ScenarioBias, random: &mut SplitMix64) -> ServerRun {
        let span = if random.chance(300) { millis(random, 1, 60) } else { millis(random, 20, 20_000) };
        let cut = if random.chance(600) { ServerCrash::Power } else { ServerCrash::Kill };
        let end = match bias {
            ScenarioBias::Mixed if random.chance(600) => RunEnding::ServerCrash(cut),
            ScenarioBias::Mixed | ScenarioBias::Restarts => {
                RunEnding::Restart(draw_step(random).map(|step| (step, cut)))
            }
        };
        let mut disk_failures = Vec::new();
        while bias == ScenarioBias::Mixed && random.chance(350) {
            let at = Duration::from_micros(random.below(200_000));
            disk_failures.push((at, draw_disk_failure(random)));
        }
        let mut damages = Vec::new();
        while bias == ScenarioBias::Mixed && random.chance(350) {
            damages.push(draw_damage(random));
        }
        ServerRun {
            damages,
            acknowledgements: random.between(0, 60 * number),
            span,
            end,
            disk_failures,
            pause: Duration::from_micros(random.between(1, 300_000)),
            listens_early: random.chance(500),
        }
    }
}

fn draw_step(random: &mut SplitMix64) -> Option<RestartStep> {
    match random.below(6) {
        0 => Some(RestartStep::Draining(Duration::from_micros(random.between(1, 400_000)))),
        1 => Some(RestartStep::Sealing),
        2 => Some(RestartStep::Opened),
        _ => None,
    }
}

fn draw_disk_failure(random: &mut SplitMix64) -> DiskFailure {
    let disk = random.index(ON_DISK);
    let times = if random.chance(500) { 1 } else { random.between(1, 1000) as u32 };
    let after = random.below(4) as u32;
    match random.below(8) {
        0 => DiskFailure::WritesFail { disk, after, times },
        1 => DiskFailure::WritesNotSynced { disk, after, times },
        2 => DiskFailure::ReadsFail { disk, times: times.min(20) },
        3 => DiskFailure::SyncFails { disk },
        4 => DiskFailure::Full { disk, span: millis(random, 1, 2000) },
        5 => DiskFailure::Hangs { span: millis(random, 16_000, 40_000) },
        _ => DiskFailure::Hangs { span: millis(random, 1, 2000) },
    }
}

fn draw_damage(random: &mut SplitMix64) -> DiskDamage {
    let disk = random.index(ON_DISK);
    match random.below(4) {
        0 => DiskDamage::SegmentRemoved { disk },
        1 => DiskDamage::BitFlipped { disk },
        2 => DiskDamage::ListFails { disk },
        _ => {
            let (after, times) = (random.below(12) as u32, random.between(1, 8) as u32);
            DiskDamage::ReadsFail { disk, after, times }
        }
    }
}
