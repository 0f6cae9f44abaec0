//! Parameters of a broadcast world: streams, sizes, speeds, server runs and clients, drawn from the seed.

use std::ops::Range;
use std::time::{Duration, Instant};

use stilling::settings::{Durability, Retention, SlowSubscribers, StreamConfig};
use stilling_journal::JournalLimits;

use super::message::{GATED_DISK, LONG_PUBLISHERS, LOTS, ON_DISK, STREAMS, UNGATED_DISK, is_gated};
use super::position::{StartPosition, SubscriberPosition};
use super::publisher::BroadcastPublisher;
use super::subscriber::{BroadcastSubscriber, SubscriberProtocol, draw_habits};
use crate::SplitMix64;
use crate::faults::FaultRates;
use crate::network::NetworkOptions;
use crate::streams::damage::DiskDamage;
use crate::streams::disks::ServerCrash;
use crate::streams::parameters::mild;
use crate::streams::server::ServerPlan;

/// When the worlds begin, in nanoseconds since 1970.
const STARTED_NS: u64 = 1_700_000_000_000_000_000;

/// Longest message with its headers, in bytes.
const MESSAGE_SIZE_MAX: u32 = 8 * 1024;

/// Bytes of a batch of a memory stream with retention, which keeps two.
const MEMORY_BATCH_SIZE: usize = 12 * 1024;

/// Worlds with long messages, per thousand: slow subscribers fall behind.
const LONG_WORLDS: u16 = 40;

/// Worlds with a kill during the write of a gate's snapshot, per thousand.
const SNAPSHOT_WORLDS: u16 = 50;

/// Makes the seed of what is drawn only in these worlds, so that the draws of all others do not depend on it.
const SNAPSHOT_SEED: u64 = 0x736e_6170_7368_6f74;

/// Most stalls of shards in one run.
const STALLS_MAX: usize = 8;

/// Publishers of the last phase.
pub(super) const LAST_PUBLISHERS: Range<u32> = 100..100 + STREAMS.len() as u32;

pub(super) struct BroadcastParameters {
    pub(super) network: NetworkOptions,
    pub(super) plan: ServerPlan,
    pub(super) has_retention: [bool; STREAMS.len()],
    /// Slow subscribers may skip records.
    pub(super) may_skip: bool,
    pub(super) publishers: Vec<BroadcastPublisher>,
    pub(super) subscribers: Vec<BroadcastSubscriber>,
    /// Runs of the server before the last.
    pub(super) runs: Vec<BroadcastRun>,
}

#[derive(Clone, Debug)]
pub(super) struct BroadcastRun {
    pub(super) span: Duration,
    pub(super) end: BroadcastRunEnd,
    /// The journal gets no completions for so long from that time on.
    pub(super) hang: Option<(Duration, Duration)>,
    /// Some writes of a disk fail from that time on.
    pub(super) failure: Option<(Duration, usize)>,
    /// A shard does not run for so long from that time on, then the next one.
    pub(super) stalls: Vec<ShardStall>,
    /// Time until the next server starts.
    pub(super) pause: Duration,
    /// Damage to a disk during that time.
    pub(super) damage: Option<DiskDamage>,
}

/// A shard whose thread does not run for a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardStall {
    pub(super) after: Duration,
    pub(super) span: Duration,
    pub(super) shard: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum BroadcastRunEnd {
    Crash(ServerCrash),
    /// Killed when the gated stream on disk has the first snapshot that no sync covers yet, or at the end of its span.
    KillInSnapshot,
    /// Drained and sealed in order, unless cut off so long after the request.
    Restart(Option<(Duration, ServerCrash)>),
}

impl BroadcastParameters {
    pub(super) fn draw(seed: u64, random: &mut SplitMix64) -> BroadcastParameters {
        let mut parameters = BroadcastParameters::draw_ordinary(random);
        let mut random = SplitMix64::new(seed ^ SNAPSHOT_SEED);
        if random.chance(SNAPSHOT_WORLDS) {
            parameters.kill_in_snapshot(&mut random);
        }
        parameters
    }

    fn draw_ordinary(random: &mut SplitMix64) -> BroadcastParameters {
        let has_retention = std::array::from_fn(|_| random.chance(250));
        let faults = if random.chance(500) { FaultRates::NONE } else { mild(random) };
        let network = NetworkOptions {
            latency: (Duration::from_micros(20), Duration::from_micros(random.between(20, 2000))),
            buffer: random.between(2000, 60_000) as usize,
            faults,
        };
        let segment_size = random.between(3, 16) * 4096;
        let policy = draw_policy(random);
        let catch_up_time = random.chance(150).then(|| Duration::from_millis(random.between(50, 2000)));
        let may_skip = policy == SlowSubscribers::Skip || catch_up_time.is_some();
        let is_long = random.chance(LONG_WORLDS);
        let plan = ServerPlan {
            streams: streams(has_retention, (policy, catch_up_time), segment_size, random),
            segment_size,
            journal: JournalLimits {
                batches: random.between(2, 10) as usize,
                batch_size: random.between(4, 12) as usize * 4096,
            },
            shards: if random.chance(600) { 1 } else { random.between(2, 3) as usize },
            buffers: random.between(4, 32) as u16,
            drain: Duration::from_millis(random.between(500, 4000)),
            disk_latency: Duration::from_micros(random.between(50, 8000)),
            memory_batch_size: has_retention.contains(&true).then_some(MEMORY_BATCH_SIZE),
            // Long messages need more: a subscriber over WebSocket that is disconnected before it is up to date begins again.
            output_bytes_max: (!is_long && random.chance(150))
                .then(|| random.between(1_000_000, 1_500_000) as usize),
            // Only differences to it matter.
            origin: Instant::now(),
        };
        let pace = Duration::from_millis(if is_long { 1 } else { random.between(1, 20) });
        // Gates accept only short messages.
        let stream = if is_long { 2 * random.index(2) } else { random.index(STREAMS.len()) };
        let publishers = match is_long {
            true => draw_long_publishers(stream, pace, random),
            false => draw_publishers(stream, pace, random),
        };
        let subscribers = draw_subscribers((stream, plan.shards), random);
        let run_count = random.below(if is_long { 2 } else { 4 });
        let mut runs: Vec<_> = (0..run_count).map(|_| BroadcastRun::draw(plan.shards, random)).collect();
        if random.chance(300) {
            end_by_kill_and_power_failure(&mut runs);
        }
        BroadcastParameters { network, plan, has_retention, may_skip, publishers, subscribers, runs }
    }

    /// Makes it a world in which a server is killed while it writes a gate's snapshot. Its successor removes the records
    /// that the snapshot includes, then the power fails.
    fn kill_in_snapshot(&mut self, random: &mut SplitMix64) {
        let BroadcastParameters { plan, has_retention, publishers, runs, .. } = self;
        // Records of one publication each fill a segment long before their bytes make a snapshot due.
        plan.segment_size = random.between(3, 5) * 4096;
        plan.streams[GATED_DISK].retention.bytes = plan.segment_size * random.between(1, 2);
        has_retention[GATED_DISK] = true;
        let pace = Duration::from_millis(random.between(1, 20));
        *publishers = (0..random.between(3, 5) as u32)
            .map(|number| {
                let total = random.between(60, 120) as u32;
                BroadcastPublisher::draw((number, GATED_DISK), total, pace, random)
            })
            .collect();
        let killed = BroadcastRun {
            span: Duration::from_secs(5),
            end: BroadcastRunEnd::KillInSnapshot,
            ..BroadcastRun::draw(plan.shards, random)
        };
        let failed = BroadcastRun {
            span: Duration::from_millis(random.between(5, 300)),
            end: BroadcastRunEnd::Crash(ServerCrash::Power),
            ..BroadcastRun::draw(plan.shards, random)
        };
        *runs = vec![killed, failed];
    }
}

fn streams(
    has_retention: [bool; STREAMS.len()],
    (slow_subscribers, catch_up_time): (SlowSubscribers, Option<Duration>),
    segment_size: u64,
    random: &mut SplitMix64,
) -> Vec<StreamConfig> {
    let stream = |(number, name): (usize, &&str)| {
        let is_on_disk = number < ON_DISK;
        let bytes = match (has_retention[number], is_on_disk) {
            (false, _) => 0,
            (true, true) => segment_size * random.between(2, 4),
            (true, false) => 1,
        };
        StreamConfig {
            durability: if is_on_disk { Durability::Disk } else { Durability::Memory },
            retention: Retention { bytes, records: None, age: None },
            message_size_max: MESSAGE_SIZE_MAX,
            slow_subscribers,
            catch_up_time,
            gate: is_gated(number).then(|| "auction".to_owned()),
            ..StreamConfig::new(*name, [format!("{name}.>")])
        }
    };
    STREAMS.iter().enumerate().map(stream).collect()
}

fn draw_policy(random: &mut SplitMix64) -> SlowSubscribers {
    match random.below(4) {
        0 => SlowSubscribers::Skip,
        1 => SlowSubscribers::Disconnect,
        _ => SlowSubscribers::CatchUp,
    }
}

/// Most publishers and subscribers use one stream, so that it has many records.
fn draw_stream(favourite: usize, random: &mut SplitMix64) -> usize {
    if random.chance(700) { favourite } else { random.index(STREAMS.len()) }
}

fn draw_publishers(favourite: usize, pace: Duration, random: &mut SplitMix64) -> Vec<BroadcastPublisher> {
    (0..random.between(2, 5) as u32)
        .map(|number| {
            let stream = draw_stream(favourite, random);
            let total = random.between(5, 80) as u32;
            BroadcastPublisher::draw((number, stream), total, pace, random)
        })
        .collect()
}

/// Publishers of many long messages to one stream.
fn draw_long_publishers(stream: usize, pace: Duration, random: &mut SplitMix64) -> Vec<BroadcastPublisher> {
    (LONG_PUBLISHERS..LONG_PUBLISHERS + random.between(4, 6) as u32)
        .map(|number| {
            let total = random.between(100, 200) as u32;
            BroadcastPublisher::draw((number, stream), total, pace, random)
        })
        .collect()
}

/// Publishers of the last phase: one per stream.
pub(super) fn last_publishers(random: &mut SplitMix64) -> Vec<BroadcastPublisher> {
    LAST_PUBLISHERS
        .zip(0..STREAMS.len())
        .map(|(number, stream)| {
            BroadcastPublisher::draw((number, stream), 3, Duration::from_millis(1), random)
        })
        .collect()
}

fn draw_subscribers(
    (favourite, shards): (usize, usize),
    random: &mut SplitMix64,
) -> Vec<BroadcastSubscriber> {
    let mut subscribers = Vec::new();
    for _ in 0..random.between(2, 6) {
        let stream = draw_stream(favourite, random);
        let filter = draw_filter(stream, random);
        add_subscriber(&mut subscribers, (draw_protocol(random), stream, &filter), random);
    }
    if random.chance(500) {
        // Enough of one kind to share a feed.
        let (protocol, filter) = (draw_protocol(random), draw_filter(favourite, random));
        for _ in 0..shards as u64 * random.between(8, 12) {
            add_subscriber(&mut subscribers, (protocol, favourite, &filter), random);
        }
    }
    subscribers
}

fn add_subscriber(
    subscribers: &mut Vec<BroadcastSubscriber>,
    (protocol, stream, filter): (SubscriberProtocol, usize, &str),
    random: &mut SplitMix64,
) {
    let start = match random.below(4) {
        0 => StartPosition::New,
        1 => StartPosition::Sequence(random.between(1, 40)),
        2 => StartPosition::Time(STARTED_NS + random.below(3_000_000_000)),
        _ => StartPosition::All,
    };
    let position = SubscriberPosition::new(subscribers.len(), (stream, filter), start);
    let (pace, stay) = draw_habits(random);
    let has_second = protocol == SubscriberProtocol::Nats && random.chance(500);
    let second_filter = has_second.then(|| match random.chance(500) {
        true => filter.to_owned(),
        false => draw_filter(stream, random),
    });
    subscribers.push(BroadcastSubscriber::new(protocol, position, pace, stay, second_filter));
}

fn draw_protocol(random: &mut SplitMix64) -> SubscriberProtocol {
    let is_json = random.chance(500);
    match random.below(8) {
        0..3 => SubscriberProtocol::Sse { is_json },
        3..6 => SubscriberProtocol::WebSocket { is_json },
        6 => SubscriberProtocol::Nats,
        _ => SubscriberProtocol::Consumer,
    }
}

fn draw_filter(stream: usize, random: &mut SplitMix64) -> String {
    let name = STREAMS[stream];
    match (random.below(4), is_gated(stream)) {
        (0, true) => format!("{name}.lot{}.*", random.index(LOTS)),
        (1, true) => format!("{name}.*.bid"),
        (0, false) => format!("{name}.{}", random.below(3)),
        _ => format!("{name}.>"),
    }
}

/// Damage to a stream without a gate: the state of a gate would be unknown.
fn draw_damage(random: &mut SplitMix64) -> DiskDamage {
    match random.chance(500) {
        true => DiskDamage::SegmentRemoved { disk: UNGATED_DISK },
        false => DiskDamage::BitFlipped { disk: UNGATED_DISK },
    }
}

/// Ends two servers in a row so that the second one builds on what the first one left without a sync.
fn end_by_kill_and_power_failure(runs: &mut [BroadcastRun]) {
    if let [.., killed, failed] = runs {
        killed.end = BroadcastRunEnd::Crash(ServerCrash::Kill);
        failed.end = BroadcastRunEnd::Crash(ServerCrash::Power);
    }
}

impl BroadcastRun {
    fn draw(shards: usize, random: &mut SplitMix64) -> BroadcastRun {
        let span = if random.chance(300) { random.between(1, 60) } else { random.between(20, 1500) };
        let crash = if random.chance(600) { ServerCrash::Power } else { ServerCrash::Kill };
        let micros = |random: &mut SplitMix64, most| Duration::from_micros(random.between(1, most));
        let end = match random.below(10) {
            0..6 => BroadcastRunEnd::Crash(crash),
            6..9 => BroadcastRunEnd::Restart(None),
            _ => BroadcastRunEnd::Restart(Some((micros(random, 300_000), crash))),
        };
        let hang = random.chance(200).then(|| (micros(random, 200_000), micros(random, 1_000_000)));
        let failure = random.chance(150).then(|| (micros(random, 200_000), random.index(ON_DISK)));
        let mut stalls = Vec::new();
        while stalls.len() < STALLS_MAX && random.chance(600) {
            let (after, span) = (micros(random, 500_000), micros(random, 50_000));
            stalls.push(ShardStall { after, span, shard: random.index(shards) });
        }
        stalls.sort_by_key(|stall| std::cmp::Reverse(stall.after));
        let (span, pause) = (Duration::from_millis(span), micros(random, 200_000));
        let damage = random.chance(250).then(|| draw_damage(random));
        BroadcastRun { span, end, hang, failure, stalls, pause, damage }
    }
}
