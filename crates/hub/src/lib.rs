//! Subjects, streams, subscriptions and acknowledgements: one writer, one total order.
//!
//! The hub is a passive state machine. Shards hand it [`Intake`]s, whoever runs it calls [`Hub::take`], [`Hub::absorb`] and
//! [`Hub::flush`], and [`Routed`] pieces go back to the shards through [`Outlets`]; a shard's [`ShardTable`] makes
//! [`Deliveries`] for its connections of them. What is to be kept goes through
//! [`Storage`] to the journal. It knows no sockets, threads or clocks.
//!
//! - **Nothing of a stream on disk is seen or acknowledged before it is durable**, and nothing of it after a failed sync.
//! - **The hub never waits.** Without room for more deliveries, or without a free batch, it stops between two requests; so
//!   shards that read too much find their intakes with the hub, and stop reading those who publish.
//! - **Bounded**: see [`limits`].
#![forbid(unsafe_code)]

mod clients;
mod consumers;
mod counters;
mod dedup;
mod deliveries;
mod fan_out;
mod health;
mod hub;
mod intake;
mod interest;
mod key;
mod ledger;
pub mod limits;
mod loss;
mod losses;
mod match_cache;
mod message;
mod parked;
mod payload;
mod pull;
mod ranges;
mod recovered;
mod registrations;
mod routed;
mod router;
mod shard_table;
mod short_bytes;
mod stall;
mod storage;
mod stream;
mod stream_health;
mod stream_writer;
mod streams;
mod time;

pub use counters::{Counters, Figure, ShardCounters, StreamCounters};
pub use deliveries::{Deliveries, Delivery, Refusal, Verdict};
pub use fan_out::Outlets;
pub use hub::{Hub, HubConfig, describe};
pub use intake::{Client, Door, Intake, InterestChange, Lost, Publication, RegistrationId, Request, Traits};
pub use interest::Interest;
pub use key::HashKey;
pub use ledger::Ledger;
pub use loss::Loss;
pub use payload::Payload;
pub use recovered::Recovered;
pub use routed::Routed;
pub use shard_table::{ShardTable, TooMany};
pub use storage::{Opening, Storage, Threads};
pub use stream::{Durability, Resumed, Retention, StreamConfig};
pub use stream_health::{Condition, SharedHealth, StreamHealth};
pub use time::{Now, SteadyNanos, UnixNanos};
