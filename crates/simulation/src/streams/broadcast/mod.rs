//! The world of broadcast: subscribers over SSE, WebSocket and NATS that are slow, leave, return and resume, while
//! publishers publish to streams on disk and in memory, with and without the gate `auction`, and servers crash or
//! restart and segments on disk are damaged between them.
//!
//! Shards, sessions, hub and journal are those of [`streams`](super). The `ledger` compares what each subscriber was
//! sent with what was published: delivered and reported gaps are everything in its filter, each record once and in
//! order, nothing that was not durable, and nothing that its gate rejected.

mod client;
mod decode;
mod ledger;
mod lots;
mod message;
mod parameters;
mod position;
mod publisher;
mod subscriber;
mod world;

use std::cell::RefCell;

use crate::network::Network;
use crate::report::{RunReport, SeedFailure, attempt};

/// Counts of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BroadcastTotals {
    /// Messages stored.
    pub acknowledged: u64,
    /// Of `acknowledged`: duplicates of stored messages.
    pub duplicates: u64,
    /// Messages rejected by a gate.
    pub rejected: u64,
    /// Auctions closed.
    pub closes: u64,
    /// Publications refused and sent again.
    pub refused: u64,
    /// Records delivered to subscribers that know their sequences.
    pub delivered: u64,
    /// Sequences reported to them as gaps.
    pub missing: u64,
    /// Resets.
    pub resets: u64,
    /// Gaps because a subscriber was slow.
    pub skipped: u64,
    /// Gaps because records were damaged.
    pub damaged: u64,
    /// Records lost by damaged segments.
    pub lost: u64,
    /// Subscriptions that caught up again because they were slow.
    pub fallen_behind: u64,
    /// Connections made.
    pub connections: u64,
    /// Connections that flapping subscribers ended.
    pub departures: u64,
    /// Connections that ended otherwise.
    pub ends: u64,
    /// Power failures.
    pub power: u64,
    /// Kills.
    pub kills: u64,
    /// Kills while a gate's snapshot was not durable.
    pub snapshot_kills: u64,
    /// Completed restarts.
    pub restarts: u64,
    /// Servers cut off while they drained.
    pub crashed_draining: u64,
    /// Audits that found removed records.
    pub removals: u64,
}

/// Result of a world without failures.
#[derive(Clone, Debug)]
pub struct BroadcastReport {
    /// Hash, faults and end.
    pub report: RunReport,
    /// Counts.
    pub totals: BroadcastTotals,
    /// The events as text, if requested.
    pub text: Vec<String>,
}

/// Runs the world of `seed`.
///
/// # Errors
/// The failure found.
pub fn run(seed: u64, verbose: bool) -> Result<BroadcastReport, SeedFailure> {
    let network = RefCell::new(None);
    attempt(seed, || world::play(seed, verbose, &network)).map_err(|mut failure| {
        failure.text = network.borrow().as_ref().map(Network::take_text).unwrap_or_default();
        failure
    })
}
