//! The world of disk streams: sessions, shards, hub and journal over simulated disks, through several lives of the server.
//!
//! ```text
//!  publishers, posters ─ network ─ SimDriver ─ Shard ─┬ NatsSession, HttpSession ─ Port ─ Hub ─ Journal ─ SimulatedDisk
//!  listeners, followers ─                             └ another shard ─            ┘          └ Replay ─┘
//!                          server 1 ──╳── server 2 ──▶ seal ── server 3 …      over the same disks
//!                                   power, kill     restart, cut at any of its steps
//! ```
//!
//! Publishers send again what was not acknowledged; disks fail, fill up, hang and lose what was not synced. After each life
//! an audit compares what was acknowledged and seen with what the disks hold (`ledger`). Everything runs in one thread: each
//! shard sleeps as it really does, announced, and is woken by its driver alone; the journal's two workers do a step after a
//! time drawn from the seed.

#[cfg(test)]
mod assembly;
mod client;
mod damage;
mod disks;
mod ledger;
mod message;
mod parameters;
mod server;
pub mod succession;
mod wire;
mod world;

use std::cell::RefCell;

use crate::network::Network;
use crate::report::{RunReport, SeedFailure, attempt};

pub use client::ClientTotals;

/// What a world is biased to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScenarioBias {
    /// Power failures, kills, restarts and disk trouble.
    #[default]
    Mixed,
    /// Restarts under load alone, some of them cut at one of their steps.
    Restarts,
}

/// How to run a world.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamsOptions {
    /// What it is biased to.
    pub bias: ScenarioBias,
    /// Keep the text of the run; a failure then has it.
    pub verbose: bool,
}

/// What happened to the server of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamsEventCounts {
    /// Power failures while it served.
    pub power: u64,
    /// Kills while it served.
    pub kills: u64,
    /// Restarts that came to their end.
    pub restarts: u64,
    /// Restarts of which the old server was cut off before it had drained.
    pub crashed_draining: u64,
    /// Restarts of which the old server was cut off while it sealed its streams.
    pub crashed_sealing: u64,
    /// Restarts of which the new server was cut off when it had opened.
    pub crashed_opened: u64,
    /// Restarts of a server that had stored nothing.
    pub empty: u64,
    /// Disks that began to fail.
    pub failures: u64,
    /// Disks that ran full.
    pub full: u64,
    /// Disks that hung for a short time.
    pub short_hangs: u64,
    /// Disks that hung beyond the time after which the hub refuses.
    pub long_hangs: u64,
    /// Streams that were frozen.
    pub frozen: u64,
    /// Openings that failed because a disk could not be read, and came to their end later.
    pub unread_openings: u64,
    /// Openings that failed because a folder could not be listed, and came to their end later.
    pub unlisted_openings: u64,
    /// Sealed segments that were removed between two servers.
    pub removed_segments: u64,
    /// Sealed segments of which a bit was changed between two servers.
    pub flipped: u64,
    /// Records that were lost by that, each of them in a gap.
    pub lost: u64,
    /// Audits in which retention had removed records.
    pub removals: u64,
    /// Records in the streams at the end.
    pub records: u64,
    /// Marker records that audits read.
    pub markers: u64,
}

/// A world that went well.
#[derive(Clone, Debug)]
pub struct StreamsReport {
    /// Hash, faults and end.
    pub report: RunReport,
    /// What happened to clients.
    pub totals: ClientTotals,
    /// What happened to the server.
    pub events: StreamsEventCounts,
    /// The text of the run, if it was asked for.
    pub text: Vec<String>,
}

/// Runs the world of `seed`.
///
/// # Errors
/// Whatever did not hold.
pub fn run(seed: u64, options: &StreamsOptions) -> Result<StreamsReport, SeedFailure> {
    let network = RefCell::new(None);
    attempt(seed, || world::play(seed, options, &network)).map_err(|mut failure| {
        failure.text = network.borrow().as_ref().map(Network::take_text).unwrap_or_default();
        failure
    })
}
