//! The world of disk streams: sessions, shards, hub and journal over simulated disks, through several runs of the
//! server.
//!
//! ```text
//! publishers, posters ─ network ─ SimDriver ─ Shard ─┬ NatsSession, HttpSession ─ Port ─ Hub ─ Journal ─ SimulatedDisk
//! subscribers, followers ─                           └ another shard ─            ┘          └ Replay ─┘
//!                         server 1 ──╳── server 2 ──▶ seal ── server 3 …      over the same disks
//!                                  power, kill     restart, cut at any of its steps
//! ```
//!
//! Publishers resend unacknowledged messages; disks fail, fill up, hang and lose unsynced data. After each run an audit
//! compares acknowledged and received messages with the disks (`ledger`). Everything runs in one thread: each shard
//! announces its sleep, as in production, and only its driver wakes it; each of the journal's two workers runs its
//! steps at times drawn from the seed.

#[cfg(test)]
mod assembly;
pub mod broadcast;
mod client;
mod damage;
mod disks;
mod ledger;
mod message;
mod parameters;
mod publication_queue;
mod server;
mod stepped_client;
pub mod succession;
mod wire;
mod world;

use std::cell::RefCell;

use crate::network::Network;
use crate::report::{RunReport, SeedFailure, attempt};

pub use client::ClientTotals;

/// Bias of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScenarioBias {
    /// Power failures, kills, restarts and disk faults.
    #[default]
    Mixed,
    /// Only restarts under load, some of them cut off at one of their steps.
    Restarts,
}

/// Options of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamsOptions {
    /// Bias of the world.
    pub bias: ScenarioBias,
    /// Record the events as text; a failure then contains them.
    pub verbose: bool,
}

/// Events of the server of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamsEventCounts {
    /// Power failures while it served.
    pub power: u64,
    /// Kills while it served.
    pub kills: u64,
    /// Completed restarts.
    pub restarts: u64,
    /// Restarts with the old server cut off before it had drained.
    pub crashed_draining: u64,
    /// Restarts with the old server cut off while sealing its streams.
    pub crashed_sealing: u64,
    /// Restarts with the new server cut off after opening.
    pub crashed_opened: u64,
    /// Restarts of a server that had stored nothing.
    pub empty: u64,
    /// Disks that began to fail.
    pub failures: u64,
    /// Disks that ran full.
    pub full: u64,
    /// Disks that hung for a short time.
    pub short_hangs: u64,
    /// Disks that hung beyond the hub's stall timeout.
    pub long_hangs: u64,
    /// Streams that were frozen.
    pub frozen: u64,
    /// Openings that failed because a disk could not be read, and succeeded later.
    pub unread_openings: u64,
    /// Openings that failed because a folder could not be listed, and succeeded later.
    pub unlisted_openings: u64,
    /// Sealed segments removed between two servers.
    pub removed_segments: u64,
    /// Sealed segments with a bit flipped between two servers.
    pub flipped: u64,
    /// Records lost by such damage, each in a gap.
    pub lost: u64,
    /// Audits in which retention had removed records.
    pub removals: u64,
    /// Records in the streams at the end.
    pub records: u64,
    /// Marker records read by audits.
    pub markers: u64,
}

/// Result of a world without failures.
#[derive(Clone, Debug)]
pub struct StreamsReport {
    /// Hash, faults and end.
    pub report: RunReport,
    /// Counts of clients.
    pub totals: ClientTotals,
    /// Events of the server.
    pub events: StreamsEventCounts,
    /// The events as text, if requested.
    pub text: Vec<String>,
}

/// Runs the world of `seed`.
///
/// # Errors
/// The failure found.
pub fn run(seed: u64, options: &StreamsOptions) -> Result<StreamsReport, SeedFailure> {
    let network = RefCell::new(None);
    attempt(seed, || world::play(seed, options, &network)).map_err(|mut failure| {
        failure.text = network.borrow().as_ref().map(Network::take_text).unwrap_or_default();
        failure
    })
}
