//! The world of hot restarts: predecessor and successor at the same time, over the same disks.
//!
//! ```text
//!  predecessor  serves ───────────┬ drains ─ hub settles ─ seals ─┬ released ─ ends
//!                          ready  │ taken                         │
//!  successor            ╶─ HTTP ──┴ NATS, publications wait ──────┴ opens ─ serves
//! ```
//!
//! Both run their own shards, hub, opening and journals step by step. Each world is one case of a matrix: where the hub is, what
//! the streams hold, which side is killed at which step, and what happens to the disks. The case follows from the seed alone,
//! so that as many seeds as there are cases cover all of them. What is acknowledged is compared with the disks when streams
//! are released, after each kill and at the end; and every publisher has to come to its end.
//!
//! The network has no listeners that two processes share: each server has its own at the same addresses, and what waits in the
//! queue of one that closes is reset.

mod server;
mod world;

use std::cell::RefCell;
use std::fmt;

use super::client::ClientTotals;
use crate::network::Network;
use crate::report::{RunReport, SeedFailure, attempt};

/// Where the hub runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HubLocation {
    /// At the end of the turns of the first shard.
    Shard,
    /// Beside the shards.
    Own,
}

/// What the streams hold when the hand-over begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JournalContent {
    /// Nothing, until it is over.
    Empty,
    /// What was published before; more comes all the time.
    Data,
    /// Nothing: the first publication comes during the hand-over.
    FirstDuring,
}

/// A side of the hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HandoverSide {
    /// The server that serves.
    Predecessor,
    /// The one that takes over.
    Successor,
}

/// A step of the hand-over, within which a side may be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HandoverStep {
    /// The successor has said that it is ready.
    Ready,
    /// The successor is the server.
    Taken,
    /// The predecessor's hub has come to its end, and the streams are being closed.
    Sealing,
    /// The predecessor has released the streams.
    Released,
    /// The successor opens them.
    Opening,
}

/// What happens to the disks during the hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskCondition {
    /// Nothing.
    Healthy,
    /// No step of a journal and no opening comes to its end for a while.
    Hung,
    /// There is no room for new segments for a while.
    Full,
    /// Some writes fail.
    WritesFail,
}

/// One case of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SuccessionCase {
    /// Where the hub runs, in all servers.
    pub hub: HubLocation,
    /// What the streams hold.
    pub held: JournalContent,
    /// Which side is killed, and when.
    pub kill: Option<(HandoverSide, HandoverStep)>,
    /// What happens to the disks.
    pub disk: DiskCondition,
}

const HUBS: [HubLocation; 2] = [HubLocation::Shard, HubLocation::Own];
const HELD: [JournalContent; 3] = [JournalContent::Empty, JournalContent::Data, JournalContent::FirstDuring];
const SIDES: [HandoverSide; 2] = [HandoverSide::Predecessor, HandoverSide::Successor];
const STEPS: [HandoverStep; 5] = [
    HandoverStep::Ready,
    HandoverStep::Taken,
    HandoverStep::Sealing,
    HandoverStep::Released,
    HandoverStep::Opening,
];
const DISKS: [DiskCondition; 4] =
    [DiskCondition::Healthy, DiskCondition::Hung, DiskCondition::Full, DiskCondition::WritesFail];

impl SuccessionCase {
    /// How many there are.
    pub const COUNT: u64 = (HUBS.len() * HELD.len() * (1 + SIDES.len() * STEPS.len()) * DISKS.len()) as u64;

    /// The case of a seed.
    #[must_use]
    pub fn of(seed: u64) -> SuccessionCase {
        let mut rest = (seed % SuccessionCase::COUNT) as usize;
        let mut draw = |count: usize| {
            let drawn = rest % count;
            rest /= count;
            drawn
        };
        let (hub, held) = (HUBS[draw(HUBS.len())], HELD[draw(HELD.len())]);
        let kill = draw(1 + SIDES.len() * STEPS.len()).checked_sub(1);
        let kill = kill.map(|kill| (SIDES[kill % SIDES.len()], STEPS[kill / SIDES.len()]));
        SuccessionCase { hub, held, kill, disk: DISKS[draw(DISKS.len())] }
    }
}

impl fmt::Display for SuccessionCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kill = self
            .kill
            .map_or_else(|| "no kill".to_owned(), |(side, step)| format!("{side:?} killed at {step:?}"));
        write!(f, "hub {:?}, streams {:?}, {kill}, disk {:?}", self.hub, self.held, self.disk)
    }
}

/// What happened in a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuccessionEventCounts {
    /// Servers that have said `ready`.
    pub ready: u64,
    /// Servers that took over from one that lived.
    pub taken: u64,
    /// Servers that took over from one that had ended before.
    pub took_over_after_end: u64,
    /// Predecessors that have released their streams.
    pub released: u64,
    /// Servers that were killed.
    pub killed: u64,
    /// Servers that were started where none had the listeners.
    pub restarts: u64,
    /// Restarts that could not open their streams at once.
    pub unopened: u64,
    /// Streams that were frozen.
    pub frozen: u64,
    /// Records in the streams at the end.
    pub records: u64,
}

/// A world that went well.
#[derive(Clone, Debug)]
pub struct SuccessionReport {
    /// The case that it was.
    pub case: SuccessionCase,
    /// Hash, faults and end.
    pub report: RunReport,
    /// What happened to clients.
    pub totals: ClientTotals,
    /// What happened to servers.
    pub events: SuccessionEventCounts,
    /// The text of the run, if it was asked for.
    pub text: Vec<String>,
}

/// Runs the world of `seed`.
///
/// # Errors
/// Whatever did not hold.
pub fn run(seed: u64, verbose: bool) -> Result<SuccessionReport, SeedFailure> {
    let network = RefCell::new(None);
    attempt(seed, || world::play(seed, verbose, &network)).map_err(|mut failure| {
        failure.why = format!("{}: {}", SuccessionCase::of(seed), failure.why);
        failure.text = network.borrow().as_ref().map(Network::take_text).unwrap_or_default();
        failure
    })
}
