//! Running the hub inside the server, and the mailboxes between it and the shards.
//!
//! ```text
//!   shard 0  session ─▶ Port ══ intakes ══▶ ┌ Runner ┐ ══ batches ══▶ journal threads ─▶ disk
//!   shard 1  session ─▶ Port ══ intakes ══▶ │  Hub   │ ◀═ durable ═══
//!                  ◀═ deliveries ══════════ └────────┘
//! ```
//!
//! On one or two cores the runner is turned by shard 0 at the end of its own turns; with more it has a thread. Everything
//! between the three goes through mailboxes, in pieces that go round.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use stilling_wire::nats::Info;

mod closing;
mod handle;
mod lazy_journal;
pub(crate) mod limits;
mod opened;
mod opening;
mod port;
pub(crate) mod quiet_wait;
mod runner;
mod stepped;
#[cfg(test)]
pub(crate) mod testing;
mod wait_queue;

pub(crate) use closing::{ClosingHub, HubCloser};
pub(crate) use handle::{HubHandle, HubHandleCounters};
pub(crate) use lazy_journal::LazyJournal;
pub(crate) use opened::{HubEnvironment, PreparedStreams, RECORD_EXTRA_MAX, StreamFolder};
pub(crate) use opening::{OpeningThread, StreamStore};
pub(crate) use port::{HubMail, Port};
pub(crate) use runner::{Runner, StartGate, connect};
pub(crate) use stepped::SimulatedStore;
pub use stepped::{SharedDisks, SteppedHub, SteppedJournal, SteppedOpening, SteppedRelease, SteppedThreads};

/// The version of nats-server whose features clients may expect.
const NATS_VERSION: &str = "2.10.0";

/// What begins the subjects of the hub itself, which only NATS clients may publish to.
pub(crate) const RESERVED_SUBJECTS: &[u8] = b"$JS.";

/// INFO's `go`, which clients expect to be there.
const NO_GO: &str = "none";

/// What the NATS listeners say of themselves.
pub(crate) fn info(id: u64, auth_required: bool, payload_size_max: u32) -> Info<'static> {
    Info {
        server_id: format!("STILLING{id:016X}").into(),
        server_name: "stilling".into(),
        version: NATS_VERSION.into(),
        go: NO_GO.into(),
        proto: 1,
        headers: true,
        max_payload: i64::from(payload_size_max),
        jetstream: true,
        auth_required,
        ..Info::default()
    }
}

/// A number that nobody outside can guess.
pub(crate) fn unpredictable() -> u64 {
    // Each state has a key of its own, from the system.
    RandomState::new().hash_one(0_u64)
}
