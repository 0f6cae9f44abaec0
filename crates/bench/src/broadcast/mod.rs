//! Broadcast: few publishers, many subscribers, every delivered byte verified; and auctions in which every client
//! answers every bid.
//!
//! ```text
//!              ┌─► publishers ─► server ─► subscribers ─┐
//!   window ────┤        │                       │ compare
//!              └────────┴─► expected bytes ◄────┘ all of them: the window opens
//! ```
//!
//! One thread with one epoll loop drives all connections, because the generator shares its cores with the server. A
//! payload is a function of publisher and counter, so the bytes of every delivery are known before they arrive: each is
//! encoded once into a ring, and a subscriber's input is compared with the ring, whole reads at a time. Bytes that only
//! the server knows, such as times, are verified at the first subscriber and compared at all others. Input that differs
//! is decoded, and the difference is reported by its kind: missing, repeated, late, never sent, wrong.
//!
//! A publisher sends half a window at a time, as soon as every subscriber has received the half before the last; the
//! latency runs from the write of such a batch to its last delivery. With a window of one message it is the latency of
//! a message to the last subscriber.

mod auction;
mod centrifugo;
mod codec;
mod connection;
mod disturbance;
mod error;
mod expected;
mod frames;
mod learned;
pub mod limits;
mod mqtt;
mod nats;
mod nats_websocket;
mod plan;
mod poller;
mod publisher;
mod record;
mod redis;
mod report;
mod resumed_items;
mod resuming;
mod run;
mod server_memory;
mod slow_web_reader;
mod sse;
mod subscriber;
mod tally;
mod thrash;
mod websocket;

pub use disturbance::DisturbanceReport;
pub use error::{BroadcastError, InvalidBroadcastPlan};
pub use plan::{BroadcastPlan, BroadcastProtocol, DisturbancePlan, ResumingPlan, ThrashPlan};
pub use report::{BroadcastParameters, BroadcastReport, LoadFigures, ThrashParameters, ThrashReport};
pub use resuming::ResumingReport;
pub use run::{run, run_until};
pub use server_memory::ServerMemory;
pub use tally::DeliveryFailure;
pub use thrash::{run as thrash, run_until as thrash_until};

pub use crate::statistics::LatencySummary;
