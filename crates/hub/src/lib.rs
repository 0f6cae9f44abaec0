//! Subjects, streams, subscriptions and acknowledgements: one writer, one total order.
//!
//! The hub is a passive state machine without sockets, threads or clocks. Shards fill [`PublicationBatch`]es; the
//! caller runs [`Hub::process_requests`], [`Hub::poll_storage`] and [`Hub::flush`]; [`RoutedBatch`]es go back to the
//! shards through [`ShardSenders`], and a shard's [`ShardSubscriptions`] turns them into [`DeliveryBatch`]es for its
//! connections. Records go to the journal through [`Storage`].
//!
//! - **Nothing of a disk stream is visible or acknowledged before it is durable**, and nothing of it after a failed
//!   sync.
//! - **The hub never waits.** Without room for deliveries or without a free batch it stops between two requests. A
//!   shard whose publication batches are all in the hub stops reading publishers.
//! - **A [`Gate`] decides** what enters its stream. Only stored records change its state, live and on replay.
//! - **Every queue is bounded**: see [`limits`].
#![forbid(unsafe_code)]

mod catch_ups;
mod clients;
mod consumers;
mod counted_ranges;
mod counters;
mod dedup;
mod deliveries;
mod disk_stall;
mod encoding;
mod fan_out;
mod filter_tree;
mod free_list;
mod gate;
mod hash_key;
mod health_log;
mod hub;
pub mod limits;
mod loss;
mod loss_counts;
mod loss_tracking;
mod match_cache;
mod message;
mod parked;
mod payload;
mod publication_batch;
mod publish_outcome;
mod pull;
mod recovered_stream;
mod registrations;
mod resume;
mod reused_vec;
mod routed_batch;
mod router;
mod shard_subscriptions;
mod short_bytes;
mod storage;
mod stream;
mod stream_health;
mod stream_writer;
mod streams;
mod time;

pub use counters::{FeedTotals, Gauge, HubCounters, ShardCounters, StreamCounters};
pub use deliveries::{DeliveryBatch, DeliveryItem, MessagesWithSid};
pub use encoding::{MessageFormat, PayloadFrame, SubscriberProtocol};
pub use fan_out::ShardSenders;
pub use filter_tree::FilterTree;
pub use gate::{
    AuctionGate, Gate, GateMessage, GateRecord, GateRecords, GateRegistry, RejectReason, StatelessGate,
    StreamGate, Verdict,
};
pub use hash_key::HashKey;
pub use hub::{Hub, HubConfig, describe};
pub use loss::Loss;
pub use loss_counts::LossCounts;
pub use payload::Payload;
pub use publication_batch::{
    ClientId, ClientOptions, HubRequest, Ingress, InterestChange, LossReport, Publication, PublicationBatch,
    RegistrationId,
};
pub use publish_outcome::{PublishOutcome, RefusalReason};
pub use recovered_stream::RecoveredStream;
pub use registrations::overlap as filters_overlap;
pub use resume::{CatchUpRequest, ResetCause, StartFrom, SubscriptionNotice};
pub use routed_batch::RoutedBatch;
pub use shard_subscriptions::{ShardSubscriptions, SubscriptionLimit};
pub use storage::{JournalStorage, Storage, StreamOpening};
pub use stream::{Durability, ResumePoint, Retention, SlowSubscribers, StreamConfig};
pub use stream_health::{SharedHealth, StreamCondition, StreamHealth};
pub use time::{Now, SteadyNanos, UnixNanos};
