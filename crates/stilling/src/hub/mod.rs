//! Runs the hub inside the server, and connects it with the shards by mailboxes.
//!
//! ```text
//!   shard 0  session ─▶ Port ══ PublicationBatch ══▶ ┌ Runner ┐ ══ Batch ════▶ journal threads ─▶ disk
//!   shard 1  session ─▶ Port ══ PublicationBatch ══▶ │  Hub   │ ◀═ durable ═══
//!                    ◀─ Port ◀═ RoutedBatch ════════ └────────┘
//! ```
//!
//! On one or two cores shard 0 runs the hub at the end of each of its turns; with more the hub has its own thread.
//! Everything between them goes through mailboxes, in batches that are reused.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use stilling_wire::nats::Info;

mod closing;
mod control_request;
mod delayed_marks;
mod feed_output;
mod handle;
mod lazy_journal;
pub(crate) mod limits;
mod port;
mod prepared_streams;
mod queue_meter;
pub(crate) mod quiet_wait;
mod runner;
mod slow_subscription;
mod stepped;
mod stream_opener;
mod subscribe;
mod subscription_output;
#[cfg(test)]
pub(crate) mod testing;
mod wait_queue;

pub(crate) use closing::{ClosingHub, HubCloser};
pub(crate) use delayed_marks::DelayedMarks;
pub(crate) use feed_output::send_feed;
pub(crate) use handle::{HubHandle, HubHandleCounters};
pub(crate) use lazy_journal::LazyJournal;
pub(crate) use port::{HubMail, HubPort};
pub(crate) use prepared_streams::{HubEnvironment, PreparedStreams, RECORD_EXTRA_MAX, StreamFolder};
pub(crate) use runner::{Runner, StartGate, connect};
pub(crate) use stepped::SimulatedStore;
pub use stepped::{SharedDisks, SteppedHub, SteppedJournal, SteppedOpening, SteppedRelease, SteppedThreads};
pub(crate) use stream_opener::{OpeningThread, StreamStore};
pub(crate) use subscribe::{FilterStreams, StreamDirectory, SubscribeRequest};
pub(crate) use subscription_output::SubscriptionOutput;

/// The nats-server version that clients see; they may expect its features.
const NATS_VERSION: &str = "2.10.0";

/// Prefix of the hub's own subjects, which only NATS clients may publish to.
pub(crate) const RESERVED_SUBJECTS: &[u8] = b"$JS.";

/// The `go` field of INFO, which clients require.
const GO_VERSION: &str = "none";

/// INFO of the NATS listeners.
pub(crate) fn info(id: u64, auth_required: bool, payload_size_max: u32) -> Info<'static> {
    Info {
        server_id: format!("STILLING{id:016X}").into(),
        server_name: "stilling".into(),
        version: NATS_VERSION.into(),
        go: GO_VERSION.into(),
        proto: 1,
        headers: true,
        max_payload: i64::from(payload_size_max),
        jetstream: true,
        auth_required,
        ..Info::default()
    }
}

/// A number that clients cannot guess.
pub(crate) fn random_number() -> u64 {
    // The system seeds each state with its own key.
    RandomState::new().hash_one(0_u64)
}
