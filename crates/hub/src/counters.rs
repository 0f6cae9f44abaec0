//! What the hub has done, to be read by other threads.

use crate::loss::Loss;
use crate::loss_counts::LossCounts;
use crate::publication_batch::Ingress;
use crate::stream_health::SharedHealth;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread changes and all may read.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// The number.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets it; for the one thread that changes it.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// What the hub has done since the start, as of its last turn.
#[derive(Debug, Default)]
pub struct HubCounters {
    /// Messages that came in.
    pub messages: Gauge,
    /// Bytes of their headers and payloads.
    pub bytes: Gauge,
    /// Acknowledgements and refusals sent to publishers.
    pub publish_outcomes: Gauge,
    /// Messages that were in their stream already.
    pub duplicates: Gauge,
    /// Messages that no stream wanted and nobody listened to.
    pub undelivered: Gauge,
    /// Filters and members of queues that shards have registered.
    pub registrations: Gauge,
    /// Registrations for which there was no room.
    pub registrations_refused: Gauge,
    /// Connections that are parked because their stream is full.
    pub parked: Gauge,
    /// Requests of such connections that have ever waited.
    pub parked_requests: Gauge,
    /// Bytes that wait for shards which have all their pieces of deliveries.
    pub queued: Gauge,
    /// Consumers that there are.
    pub consumers: Gauge,
    /// Times that a record was offered to a consumer, whether it was sent or not: what consumers cost.
    pub offered: Gauge,
    /// Steps in which the registrations and consumers of connections that have left were taken apart.
    pub left: Gauge,
    /// Times that a message would have matched a registration of a connection that has left and that was not removed yet.
    pub left_matches: Gauge,
    /// Log lines that were dropped because the log was written too slowly; counted by the hub's runner.
    pub log_lines_dropped: Gauge,
    /// What the shards have done, by their numbers.
    pub shards: Vec<ShardCounters>,
    losses: [[Gauge; Loss::ALL.len()]; Ingress::ALL.len()],
    /// The streams, by their numbers.
    pub streams: Vec<StreamCounters>,
}

/// What one shard has done with what the hub has handed to it.
#[derive(Debug, Default)]
pub struct ShardCounters {
    /// Messages sent to subscriptions.
    pub delivered: Gauge,
    /// Subscriptions that there are.
    pub subscriptions: Gauge,
}

/// One stream's state.
#[derive(Debug, Default)]
pub struct StreamCounters {
    /// Its name.
    pub name: String,
    /// The first sequence that is kept.
    pub first: Gauge,
    /// The last sequence that was given.
    pub last: Gauge,
    /// The last sequence that everybody may see.
    pub visible: Gauge,
    /// Messages that wait for the disk.
    pub pending: Gauge,
    /// The most that ever waited.
    pub pending_max: Gauge,
    /// Message ids in the de-duplication window.
    pub ids: Gauge,
    /// Message ids that were forgotten before their time because there were too many.
    pub ids_evicted: Gauge,
    /// Records that consumers did not get because retention had removed them.
    pub skipped_removed: Gauge,
    /// The same because their bytes are damaged.
    pub skipped_damaged: Gauge,
    /// 1 when it is frozen.
    pub frozen: Gauge,
    /// 1 while its folder is not open.
    pub closed: Gauge,
    /// 1 while it waits for room on its disk.
    pub waiting: Gauge,
    /// How often it has waited for room.
    pub waits: Gauge,
    /// Writes that failed and were done again in a new segment, or are to be.
    pub failed_writes: Gauge,
    /// Writes that took longer than a second.
    pub slow_writes: Gauge,
    /// Records that are not what was written, each counted once, by the first reader that came to it.
    pub damaged: Gauge,
    /// Sequences that writes cut off by crashes may have had, counted the same way.
    pub torn: Gauge,
    /// Reads that failed.
    pub read_failures: Gauge,
    /// Rounds of retention that could not remove everything.
    pub retention_failures: Gauge,
    /// The condition of its disk, and why it is so.
    pub health: SharedHealth,
}

impl HubCounters {
    pub(crate) fn new(names: impl Iterator<Item = String>, shards: usize) -> HubCounters {
        let streams = names.map(|name| StreamCounters { name, ..StreamCounters::default() }).collect();
        let shards = (0..shards).map(|_| ShardCounters::default()).collect();
        HubCounters { streams, shards, ..HubCounters::default() }
    }

    /// Messages sent to subscriptions.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.shards.iter().map(|shard| shard.delivered.get()).sum()
    }

    /// Subscriptions that there are.
    #[must_use]
    pub fn subscriptions(&self) -> u64 {
        self.shards.iter().map(|shard| shard.subscriptions.get()).sum()
    }

    /// How many messages that came by this door were lost for this reason.
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
