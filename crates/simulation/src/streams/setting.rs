//! How a world is set up: streams, sizes, speeds, lives and clients, drawn from the seed.

use std::time::{Duration, Instant};

use stilling::settings::{Durability, Retention, StreamConfig};
use stilling_journal::Limits as JournalLimits;
use stilling_ring::Time;

use super::Bias;
use super::client::Client;
use super::disks::Cut;
use super::harm::Harm;
use super::ledger::{Bounds, Ledger};
use super::message::{ON_DISK, STREAMS};
use super::server::Plan;
use crate::SplitMix64;
use crate::faults::{Fault, Faults};
use crate::network::Options as NetworkOptions;

/// The longest message with its headers.
const MESSAGE_SIZE_MAX: u32 = 8 * 1024;

/// How long the hub waits for a disk before it refuses.
const STALL: Duration = Duration::from_secs(15);

/// Everything that one seed decides beforehand.
pub(super) struct Setting {
    pub(super) network: NetworkOptions,
    pub(super) plan: Plan,
    pub(super) ledgers: Vec<Ledger>,
    pub(super) clients: Vec<Client>,
    /// The lives before the last.
    pub(super) lives: Vec<Life>,
}

/// One life of the server.
#[derive(Clone, Debug)]
pub(super) struct Life {
    /// It ends after so many acknowledgements in all, or after this time.
    pub(super) acknowledgements: u64,
    pub(super) span: Duration,
    pub(super) end: End,
    pub(super) troubles: Vec<(Duration, Trouble)>,
    /// What happens to disks before the next server opens them.
    pub(super) harms: Vec<Harm>,
    /// Until the next server begins.
    pub(super) pause: Duration,
    /// The next server's listeners are there already during that time.
    pub(super) listens_early: bool,
}

/// How a life ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Cut(Cut),
    /// In order, unless it is cut at a step.
    Restart(Option<(Step, Cut)>),
}

/// A step of a restart at which it may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// So long after the old server was asked to end.
    Draining(Duration),
    Sealing,
    /// The new server has opened the streams.
    Opened,
}

/// What happens to a disk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trouble {
    /// After so many writes some fail.
    WritesFail { disk: usize, after: u32, times: u32 },
    /// After so many writes some fail when they are synced.
    WritesNotSynced { disk: usize, after: u32, times: u32 },
    /// So many reads fail.
    ReadsFail { disk: usize, times: u32 },
    /// It cannot make durable which files there are.
    SyncFails { disk: usize },
    /// There is no room for new segments for a while.
    Full { disk: usize, span: Duration },
    /// The journal does not get an answer for a while.
    Hangs { span: Duration },
}

impl Trouble {
    pub(super) fn name(self) -> &'static str {
        match self {
            Trouble::WritesFail { .. } => "writes fail",
            Trouble::WritesNotSynced { .. } => "writes are not synced",
            Trouble::ReadsFail { .. } => "reads fail",
            Trouble::SyncFails { .. } => "sync fails",
            Trouble::Full { .. } => "full",
            Trouble::Hangs { .. } => "hangs",
        }
    }

    pub(super) fn is_long(span: Duration) -> bool {
        span > STALL
    }
}

fn millis(random: &mut SplitMix64, low: u64, high: u64) -> Duration {
    Duration::from_millis(random.between(low, high))
}

impl Setting {
    pub(super) fn draw(random: &mut SplitMix64, bias: Bias) -> Setting {
        let segment_size = random.between(4, 32) * 4096;
        let bounds: Vec<Bounds> = (0..ON_DISK).map(|_| draw_bounds(segment_size, random)).collect();
        let faults = if random.chance(400) { Faults::NONE } else { mild(random) };
        let network = NetworkOptions {
            latency: (Duration::from_micros(20), Duration::from_micros(random.between(20, 2000))),
            buffer: random.between(2000, 60_000) as usize,
            faults,
        };
        let plan = Plan {
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
            // Only spans of it matter.
            origin: Instant::now(),
        };
        let sizes = (segment_size, plan.journal.batch_size as u64);
        let ledgers =
            (0..ON_DISK).map(|number| Ledger::new(STREAMS[number], bounds[number], sizes)).collect();
        // In slow worlds records become old enough for retention, which looks once in a second.
        let pace = if random.chance(300) { millis(random, 100, 700) } else { millis(random, 1, 20) };
        let clients = draw_clients(pace, random);
        let lives = (1..=random.between(1, 4)).map(|number| Life::draw(number, bias, random)).collect();
        Setting { network, plan, ledgers, clients, lives }
    }
}

fn draw_bounds(segment_size: u64, random: &mut SplitMix64) -> Bounds {
    match random.below(4) {
        0 => Bounds::default(),
        1 => Bounds { bytes: None, records: Some(random.between(5, 100)) },
        2 => {
            Bounds { bytes: Some(segment_size * random.between(2, 6)), records: Some(random.between(5, 100)) }
        }
        _ => Bounds { bytes: Some(segment_size * random.between(2, 6)), records: None },
    }
}

/// Faults of the network that are seldom enough for work to get done.
pub(super) fn mild(random: &mut SplitMix64) -> Faults {
    let drawn = Faults::draw(random);
    Fault::ALL.into_iter().fold(drawn, |faults, fault| faults.with(fault, drawn.rate(fault) / 2))
}

pub(super) fn streams(bounds: &[Bounds]) -> Vec<StreamConfig> {
    let stream = |(number, name): (usize, &&str)| {
        let stream = StreamConfig::new(*name, [format!("{name}.>")]);
        let Bounds { bytes, records } = bounds.get(number).copied().unwrap_or_default();
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

fn draw_clients(pace: Duration, random: &mut SplitMix64) -> Vec<Client> {
    let mut clients = Vec::new();
    let mut number = 0;
    let start = |random: &mut SplitMix64| {
        // Some worlds begin with nothing stored: the first publication comes during the first hand-over.
        Time::ZERO.after(Duration::from_micros(random.below(30_000)))
    };
    for _ in 0..random.between(1, 5) {
        let at = start(random);
        clients.push(Client::publisher(number, at, pace, random));
        number += 1;
    }
    for _ in 0..random.below(4) {
        let at = start(random);
        clients.push(Client::poster(number, at, pace, random));
        number += 1;
    }
    for _ in 0..random.below(3) {
        clients.push(Client::listener(start(random)));
    }
    for _ in 0..random.below(3) {
        let stream = random.index(ON_DISK);
        clients.push(Client::follower((clients.len(), stream), start(random), None));
    }
    clients
}

impl Life {
    fn draw(number: u64, bias: Bias, random: &mut SplitMix64) -> Life {
        let span = if random.chance(300) { millis(random, 1, 60) } else { millis(random, 20, 20_000) };
        let cut = if random.chance(600) { Cut::Power } else { Cut::Kill };
        let end = match bias {
            Bias::Mixed if random.chance(600) => End::Cut(cut),
            Bias::Mixed | Bias::Restarts => End::Restart(draw_step(random).map(|step| (step, cut))),
        };
        let mut troubles = Vec::new();
        while bias == Bias::Mixed && random.chance(350) {
            let at = Duration::from_micros(random.below(200_000));
            troubles.push((at, draw_trouble(random)));
        }
        let mut harms = Vec::new();
        while bias == Bias::Mixed && random.chance(350) {
            harms.push(draw_harm(random));
        }
        Life {
            harms,
            acknowledgements: random.between(0, 60 * number),
            span,
            end,
            troubles,
            pause: Duration::from_micros(random.between(1, 300_000)),
            listens_early: random.chance(500),
        }
    }
}

fn draw_step(random: &mut SplitMix64) -> Option<Step> {
    match random.below(6) {
        0 => Some(Step::Draining(Duration::from_micros(random.between(1, 400_000)))),
        1 => Some(Step::Sealing),
        2 => Some(Step::Opened),
        _ => None,
    }
}

fn draw_trouble(random: &mut SplitMix64) -> Trouble {
    let disk = random.index(ON_DISK);
    let times = if random.chance(500) { 1 } else { random.between(1, 1000) as u32 };
    let after = random.below(4) as u32;
    match random.below(8) {
        0 => Trouble::WritesFail { disk, after, times },
        1 => Trouble::WritesNotSynced { disk, after, times },
        2 => Trouble::ReadsFail { disk, times: times.min(20) },
        3 => Trouble::SyncFails { disk },
        4 => Trouble::Full { disk, span: millis(random, 1, 2000) },
        5 => Trouble::Hangs { span: millis(random, 16_000, 40_000) },
        _ => Trouble::Hangs { span: millis(random, 1, 2000) },
    }
}

fn draw_harm(random: &mut SplitMix64) -> Harm {
    let disk = random.index(ON_DISK);
    match random.below(4) {
        0 => Harm::SegmentRemoved { disk },
        1 => Harm::ByteFlipped { disk },
        2 => Harm::ListFails { disk },
        _ => {
            let (after, times) = (random.below(12) as u32, random.between(1, 8) as u32);
            Harm::ReadsFail { disk, after, times }
        }
    }
}
