//! Counters of the hub, readable by other threads.

use crate::encoding::SubscriberProtocol;
use crate::loss::Loss;
use crate::loss_counts::LossCounts;
use crate::publication_batch::Ingress;
use crate::stream_health::SharedHealth;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread changes and all threads may read.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Returns the number.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the number; called by its one writing thread.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Counters of the hub since its start, updated at the end of each turn.
#[derive(Debug, Default)]
pub struct HubCounters {
    /// Messages received.
    pub messages: Gauge,
    /// Bytes of their headers and payloads.
    pub bytes: Gauge,
    /// Publish outcomes and answers sent to publishers.
    pub publish_outcomes: Gauge,
    /// Duplicates: messages already in their stream.
    pub duplicates: Gauge,
    /// Messages without a stream and without subscribers.
    pub undelivered: Gauge,
    /// Filters and queue members registered by shards.
    pub registrations: Gauge,
    /// Registrations refused because there was no room.
    pub registrations_refused: Gauge,
    /// Connections currently parked because their stream is full.
    pub parked: Gauge,
    /// Requests that have ever been parked.
    pub parked_requests: Gauge,
    /// Bytes queued for shards that hold all their routed batches.
    pub queued: Gauge,
    /// Current consumers.
    pub consumers: Gauge,
    /// Subscriptions over WebSocket and SSE that catch up now.
    pub catch_ups: Gauge,
    /// Number of times that a record was offered to a consumer, sent or not: a measure of the cost of consumers.
    pub offered: Gauge,
    /// Steps that removed registrations and consumers of disconnected clients.
    pub cleanup_steps: Gauge,
    /// Matches of messages with registrations of disconnected clients before their removal.
    pub stale_matches: Gauge,
    /// Log lines dropped because the log was written too slowly; counted by the thread that runs the hub.
    pub log_lines_dropped: Gauge,
    /// Requests of the shards processed; like the four below counted by the thread that runs the hub.
    pub requests: Gauge,
    /// Most requests that waited for the hub at once.
    pub queue_length_max: Gauge,
    /// Requests with a measured wait for the hub: those handed over at the end of a shard's turn.
    pub requests_timed: Gauge,
    /// Nanoseconds that they waited together.
    pub queue_wait_ns: Gauge,
    /// Longest wait of one of them in nanoseconds.
    pub queue_wait_ns_max: Gauge,
    /// Counters of the shards, by number.
    pub shards: Vec<ShardCounters>,
    losses: [[Gauge; Loss::ALL.len()]; Ingress::ALL.len()],
    /// Counters of the streams, by number.
    pub streams: Vec<StreamCounters>,
}

/// Counters of one shard.
#[derive(Debug, Default)]
pub struct ShardCounters {
    /// Messages sent to subscriptions.
    pub delivered: Gauge,
    delivered_by: [Gauge; SubscriberProtocol::COUNT],
    /// Times that a subscription over WebSocket or SSE began to catch up because its client was too slow.
    pub fallen_behind: Gauge,
    /// Current subscriptions.
    pub subscriptions: Gauge,
    /// Current feeds, each one copy of the messages for several subscriptions.
    pub feeds: Gauge,
    /// Subscriptions that read a feed.
    pub feed_sharers: Gauge,
    /// Bytes of the memory for feeds, not counting messages longer than
    /// [`FEED_BLOCK_SIZE`](crate::limits::FEED_BLOCK_SIZE).
    pub feed_held_size: Gauge,
    /// Bytes that were encoded for feeds.
    pub feed_encoded_size: Gauge,
    /// Bytes that subscriptions were sent from feeds.
    pub feed_sent_size: Gauge,
    /// Requests made to the hub.
    pub requested: Gauge,
}

impl ShardCounters {
    /// Returns the messages sent to subscribers of a protocol.
    #[must_use]
    pub fn delivered_by(&self, protocol: SubscriberProtocol) -> u64 {
        self.delivered_by[protocol as usize].get()
    }

    pub(crate) fn set_delivered_by(&self, counts: [u64; SubscriberProtocol::COUNT]) {
        self.delivered_by.iter().zip(counts).for_each(|(gauge, count)| gauge.set(count));
    }
}

/// Sums over the feeds of all shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FeedTotals {
    /// Current feeds.
    pub feeds: u64,
    /// Subscriptions that read one.
    pub sharers: u64,
    /// Bytes of their memory.
    pub held_size: u64,
    /// Bytes that were encoded for feeds since the start.
    pub encoded_size: u64,
    /// Bytes that subscriptions were sent from feeds since the start.
    pub sent_size: u64,
}

/// State of one stream.
#[derive(Debug, Default)]
pub struct StreamCounters {
    /// Name of the stream.
    pub name: String,
    /// First sequence kept.
    pub first: Gauge,
    /// Last sequence assigned.
    pub last: Gauge,
    /// Last visible sequence.
    pub visible: Gauge,
    /// Messages that wait for the disk.
    pub pending: Gauge,
    /// Maximum of [`pending`](Self::pending) so far.
    pub pending_peak: Gauge,
    /// Message ids in the de-duplication window.
    pub ids: Gauge,
    /// Message ids forgotten early because there were too many.
    pub ids_evicted: Gauge,
    /// Messages accepted by the gate.
    pub accepted: Gauge,
    /// Messages rejected by the gate.
    pub rejected: Gauge,
    /// Panics and invalid decisions of the gate.
    pub gate_failures: Gauge,
    /// Sequence of the last durable snapshot of the gate's state; 0: none.
    pub gate_snapshot: Gauge,
    /// Snapshots of the gate's state that could not be written.
    pub gate_snapshot_failures: Gauge,
    /// Records that consumers missed because retention had removed them.
    pub skipped_removed: Gauge,
    /// Records that consumers missed because their bytes are damaged.
    pub skipped_damaged: Gauge,
    /// Sequences that subscriptions over WebSocket and SSE skipped because their clients were too slow.
    pub skipped_slow: Gauge,
    /// 1 while the stream is frozen.
    pub frozen: Gauge,
    /// 1 while the stream's directory is not open.
    pub closed: Gauge,
    /// 1 while the stream waits for room on its disk.
    pub waiting: Gauge,
    /// Times that the stream waited for room on its disk.
    pub waits: Gauge,
    /// Failed writes that were or will be repeated in a new segment.
    pub failed_writes: Gauge,
    /// Writes that took longer than a second.
    pub slow_writes: Gauge,
    /// Damaged records, each counted once, by the first reader that reaches it.
    pub damaged: Gauge,
    /// Records possibly lost in last writes that a crash interrupted, each counted once.
    pub torn: Gauge,
    /// Failed reads.
    pub read_failures: Gauge,
    /// Rounds of retention that could not remove everything.
    pub retention_failures: Gauge,
    /// Condition of the stream's disk, and its reason.
    pub health: SharedHealth,
}

impl HubCounters {
    pub(crate) fn new(names: impl Iterator<Item = String>, shards: usize) -> HubCounters {
        let streams = names.map(|name| StreamCounters { name, ..StreamCounters::default() }).collect();
        let shards = (0..shards).map(|_| ShardCounters::default()).collect();
        HubCounters { streams, shards, ..HubCounters::default() }
    }

    /// Returns the messages sent to subscriptions of all shards.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.shards.iter().map(|shard| shard.delivered.get()).sum()
    }

    /// Returns the sums over the feeds of all shards.
    #[must_use]
    pub fn feeds(&self) -> FeedTotals {
        let sum =
            |gauge: fn(&ShardCounters) -> &Gauge| self.shards.iter().map(|shard| gauge(shard).get()).sum();
        FeedTotals {
            feeds: sum(|shard| &shard.feeds),
            sharers: sum(|shard| &shard.feed_sharers),
            held_size: sum(|shard| &shard.feed_held_size),
            encoded_size: sum(|shard| &shard.feed_encoded_size),
            sent_size: sum(|shard| &shard.feed_sent_size),
        }
    }

    /// Returns how often subscriptions of all shards began to catch up because their clients were too slow.
    #[must_use]
    pub fn fallen_behind(&self) -> u64 {
        self.shards.iter().map(|shard| shard.fallen_behind.get()).sum()
    }

    /// Returns the requests that wait for the hub.
    #[must_use]
    pub fn queue_length(&self) -> u64 {
        let requested: u64 = self.shards.iter().map(|shard| shard.requested.get()).sum();
        requested.saturating_sub(self.requests.get())
    }

    /// Returns the current subscriptions of all shards.
    #[must_use]
    pub fn subscriptions(&self) -> u64 {
        self.shards.iter().map(|shard| shard.subscriptions.get()).sum()
    }

    /// Returns the messages that entered through `ingress` and were lost for this reason.
    #[must_use]
    pub fn losses(&self, ingress: Ingress, loss: Loss) -> u64 {
        self.losses[ingress as usize][loss as usize].get()
    }

    pub(crate) fn set_losses(&self, loss_counts: &LossCounts) {
        for ingress in Ingress::ALL {
            for loss in Loss::ALL {
                self.losses[ingress as usize][loss as usize].set(loss_counts.count(ingress, loss));
            }
        }
    }
}
