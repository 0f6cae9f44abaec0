//! The world of hot restarts: predecessor and successor at the same time, over the same disks.
//!
//! ```text
//!  predecessor  serves ───────────┬ drains ─ hub ends ─ seals ─┬ released ─ ends
//!                          ready  │ taken                      │
//!  successor            ╶─ HTTP ──┴ NATS, publications wait ───┴ opens ─ serves
//! ```
//!
//! Each runs its own shards, hub, opening and journals step by step. A world is one case of a matrix: location of the
//! hub, content of the streams, side killed and step of the kill, condition of the disks. The case follows from the
//! seed alone, so that as many seeds as cases cover all of them. Acknowledged messages are compared with the disks when
//! streams are released, after each kill and at the end, and every publisher must finish.
//!
//! The network has no listeners shared by two processes: each server has its own at the same addresses, and connections
//! in the queue of a closing listener are reset.

mod drawing;
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

/// Content of the streams when the hand-over begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JournalContent {
    /// Nothing until the hand-over has ended.
    Empty,
    /// Earlier publications; more arrive all the time.
    Data,
    /// Nothing: the first publication arrives during the hand-over.
    FirstDuring,
}

/// A side of the hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HandoverSide {
    /// The serving server.
    Predecessor,
    /// The server that takes over.
    Successor,
}

/// Step of the hand-over during which a side may be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HandoverStep {
    /// The successor has reported that it is ready.
    Ready,
    /// The successor has taken over.
    TakenOver,
    /// The predecessor's hub has ended, and the streams are being closed.
    Sealing,
    /// The predecessor has released the streams.
    Released,
    /// The successor opens the streams.
    Opening,
}

/// Condition of the disks during the hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskCondition {
    /// No faults.
    Healthy,
    /// Journal steps and openings do not complete for a while.
    Hung,
    /// No room for new segments for a while.
    Full,
    /// Some writes fail.
    WritesFail,
}

/// One case of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SuccessionCase {
    /// Where the hub runs, in all servers.
    pub hub: HubLocation,
    /// Content of the streams.
    pub content: JournalContent,
    /// Side that is killed, and the step of the kill.
    pub kill: Option<(HandoverSide, HandoverStep)>,
    /// Condition of the disks.
    pub disk: DiskCondition,
}

const HUBS: [HubLocation; 2] = [HubLocation::Shard, HubLocation::Own];
const CONTENTS: [JournalContent; 3] =
    [JournalContent::Empty, JournalContent::Data, JournalContent::FirstDuring];
const SIDES: [HandoverSide; 2] = [HandoverSide::Predecessor, HandoverSide::Successor];
const STEPS: [HandoverStep; 5] = [
    HandoverStep::Ready,
    HandoverStep::TakenOver,
    HandoverStep::Sealing,
    HandoverStep::Released,
    HandoverStep::Opening,
];
const DISKS: [DiskCondition; 4] =
    [DiskCondition::Healthy, DiskCondition::Hung, DiskCondition::Full, DiskCondition::WritesFail];

impl SuccessionCase {
    /// Number of cases.
    pub const COUNT: u64 =
        (HUBS.len() * CONTENTS.len() * (1 + SIDES.len() * STEPS.len()) * DISKS.len()) as u64;

    /// The case of a seed.
    #[must_use]
    pub fn of(seed: u64) -> SuccessionCase {
        let mut rest = (seed % SuccessionCase::COUNT) as usize;
        let mut draw = |count: usize| {
            let drawn = rest % count;
            rest /= count;
            drawn
        };
        let (hub, content) = (HUBS[draw(HUBS.len())], CONTENTS[draw(CONTENTS.len())]);
        let kill = draw(1 + SIDES.len() * STEPS.len()).checked_sub(1);
        let kill = kill.map(|kill| (SIDES[kill % SIDES.len()], STEPS[kill / SIDES.len()]));
        SuccessionCase { hub, content, kill, disk: DISKS[draw(DISKS.len())] }
    }
}

impl fmt::Display for SuccessionCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kill = self
            .kill
            .map_or_else(|| "no kill".to_owned(), |(side, step)| format!("{side:?} killed at {step:?}"));
        write!(f, "hub {:?}, streams {:?}, {kill}, disk {:?}", self.hub, self.content, self.disk)
    }
}

/// Events of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuccessionEventCounts {
    /// Servers that sent `ready`.
    pub ready: u64,
    /// Servers that took over from a running predecessor.
    pub taken_over: u64,
    /// Servers that took over after their predecessor had ended.
    pub took_over_after_end: u64,
    /// Predecessors that released their streams.
    pub released: u64,
    /// Servers killed.
    pub killed: u64,
    /// Servers started while no server had the listeners.
    pub restarts: u64,
    /// Restarts that could not open their streams at once.
    pub unopened: u64,
    /// Streams that were frozen.
    pub frozen: u64,
    /// Records in the streams at the end.
    pub records: u64,
}

/// Result of a world without failures.
#[derive(Clone, Debug)]
pub struct SuccessionReport {
    /// Case of the matrix.
    pub case: SuccessionCase,
    /// Hash, faults and end.
    pub report: RunReport,
    /// Counts of clients.
    pub totals: ClientTotals,
    /// Events of servers.
    pub events: SuccessionEventCounts,
    /// The events as text, if requested.
    pub text: Vec<String>,
}

/// Runs the world of `seed`.
///
/// # Errors
/// The failure found.
pub fn run(seed: u64, verbose: bool) -> Result<SuccessionReport, SeedFailure> {
    let network = RefCell::new(None);
    attempt(seed, || world::play(seed, verbose, &network)).map_err(|mut failure| {
        failure.why = format!("{}: {}", SuccessionCase::of(seed), failure.why);
        failure.text = network.borrow().as_ref().map(Network::take_text).unwrap_or_default();
        failure
    })
}
