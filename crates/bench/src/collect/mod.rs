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

mod ack_window;
mod api;
mod buffer;
mod client_codec;
mod codec;
mod collect_run;
mod connection;
pub mod crash;
mod error;
mod lag_window;
pub mod limits;
mod monitor;
mod nats;
mod pattern;
mod per_message;
mod plan;
mod publisher;
mod received_file;
mod redis;
mod report;
mod run;
mod subscriber;
mod syslog;
mod tally;

pub use api::{JetStreamApi, ReplayedMessage, ReportedStreamState};
pub use error::{CollectError, InvalidCollectPlan};
pub use monitor::{CounterSource, Monitor, MonitoredCounters};
pub use pattern::{Pattern, PayloadId};
pub use plan::{CollectPlan, CollectProtocol, CollectStorage};
pub use report::{CollectParameters, CollectRunReport, MessageAccounting};
pub use run::{run, run_until};
pub use tally::{FailureRecord, MessageFailure};

pub use crate::statistics::LatencySummary;
