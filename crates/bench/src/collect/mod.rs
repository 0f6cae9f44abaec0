//! One-way messages: publishers that keep a window of messages unacknowledged, subscribers that read along, and the
//! question what a server still has after it was killed.
//!
//! ```text
//!  Plan ─► make the stream ─► publishers, a thread for several connections ──► Tally ─┐
//!                        └──► subscribers, a thread each ─────────────────────► Tally ─┴► Report
//! ```
//!
//! Nothing is believed. Each payload carries its client's number and its own counter and is filled with a pattern that
//! belongs to both, so that a delivery is checked byte by byte. Each acknowledgement names the message by its inbox,
//! the stream by its name, and a sequence that must rise; one that is lost, comes twice, belongs to another stream or
//! to a message that was never sent is a failure with a name and never counts as a success.
//!
//! Who waits for acknowledgements has at most a window of messages in flight, and its latency runs from the write that
//! carried a message to the read that brought its acknowledgement. Who does not wait is told nothing: such a message
//! counts as sent when the system has taken it, and the difference to what the server has is the loss.
//!
//! The generator shares its cores with the server. It therefore writes as many messages with one call as there is room
//! for, reads acknowledgements in bulk, and drives several connections with one thread.

mod acks;
mod api;
mod buffer;
mod codec;
mod connection;
pub mod crash;
mod error;
mod file;
mod lead;
pub mod limits;
mod nats;
mod pattern;
mod per_message;
mod plan;
mod publisher;
mod redis;
mod report;
mod run;
mod server_side;
mod shared;
mod speech;
mod subscriber;
mod syslog;
mod tally;

pub use api::{Api, Stored, StreamState};
pub use error::{BadPlan, CollectError};
pub use pattern::{Mark, Pattern};
pub use plan::{Plan, Protocol, Storage};
pub use report::{Accounting, Parameters, Report};
pub use run::{run, run_until};
pub use server_side::{Figures, Monitor, ServerSide};
pub use tally::{Failure, Said};

pub use crate::figures::Spread;
