//! One-way messages: publishers with a window of unacknowledged messages, subscribers that check deliveries, and crash
//! tests of the server.
//!
//! ```text
//! CollectPlan ─► create the stream ─► publishers, a thread for several connections ► CollectTally ─┐
//!                                  └─► subscribers, a thread each ─────────────────► CollectTally ─┴► CollectRunReport
//! ```
//!
//! Every result is verified. Each payload carries its client's number and its own counter, and is filled with a pattern
//! derived from both, so that a delivery is checked byte by byte. Each acknowledgement identifies the message by its
//! inbox and the stream by its name, and its sequence must rise. A lost or repeated acknowledgement, or one of another
//! stream or of an unsent message, is a failure with a name and never counts as a success.
//!
//! With acknowledgements, at most a window of messages is in flight, and latency runs from the write that carried a
//! message to the read that returned its acknowledgement. Without them, a message counts as sent when the kernel has
//! accepted it, and the difference to the server's messages is the loss.
//!
//! The generator shares its cores with the server. It therefore writes as many messages per call as there is room for,
//! reads acknowledgements in bulk, and drives several connections per thread.

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

pub(crate) use connection::connect;
pub(crate) use nats::connect as encode_nats_connect;
