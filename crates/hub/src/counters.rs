//! What the hub has done, to be read by other threads.

use crate::intake::Door;
use crate::ledger::Ledger;
use crate::loss::Loss;
use crate::stream_health::SharedHealth;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread changes and all may read.
#[derive(Debug, Default)]
pub struct Figure(AtomicU64);

impl Figure {
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
pub struct Counters {
    /// Messages that came in.
    pub messages: Figure,
    /// Bytes of their headers and payloads.
    pub bytes: Figure,
    /// Acknowledgements and refusals sent to publishers.
    pub verdicts: Figure,
    /// Messages that were in their stream already.
    pub duplicates: Figure,
    /// Messages that no stream wanted and nobody listened to.
    pub unheard: Figure,
    /// Filters and members of queues that shards have registered.
    pub registrations: Figure,
    /// Registrations for which there was no room.
    pub registrations_refused: Figure,
    /// Connections that are parked because their stream is full.
    pub parked: Figure,
    /// Requests of such connections that have ever waited.
    pub parked_requests: Figure,
    /// Bytes that wait for shards which have all their pieces of deliveries.
    pub queued: Figure,
    /// Consumers that there are.
    pub consumers: Figure,
    /// Times that a record was offered to a consumer, whether it was sent or not: what consumers cost.
    pub offered: Figure,
    /// Steps in which the registrations and consumers of connections that have left were taken apart.
    pub left: Figure,
    /// Times that a message would have matched a registration of a connection that has left and that was not removed yet.
    pub left_matches: Figure,
    /// Log lines that were dropped because the log was written too slowly; counted by the hub's runner.
    pub log_lines_dropped: Figure,
    /// What the shards have done, by their numbers.
    pub shards: Vec<ShardCounters>,
    losses: [[Figure; Loss::ALL.len()]; Door::ALL.len()],
    /// The streams, by their numbers.
    pub streams: Vec<StreamCounters>,
}

/// What one shard has done with what the hub has handed to it.
#[derive(Debug, Default)]
pub struct ShardCounters {
    /// Messages sent to subscriptions.
    pub delivered: Figure,
    /// Subscriptions that there are.
    pub subscriptions: Figure,
}

/// One stream's state.
#[derive(Debug, Default)]
pub struct StreamCounters {
    /// Its name.
    pub name: String,
    /// The first sequence that is kept.
    pub first: Figure,
    /// The last sequence that was given.
    pub last: Figure,
    /// The last sequence that everybody may see.
    pub visible: Figure,
    /// Messages that wait for the disk.
    pub pending: Figure,
    /// The most that ever waited.
    pub pending_max: Figure,
    /// Message ids in the de-duplication window.
    pub ids: Figure,
    /// Message ids that were forgotten before their time because there were too many.
    pub ids_evicted: Figure,
    /// Records that consumers did not get because retention had removed them.
    pub passed_removed: Figure,
    /// The same because their bytes are damaged.
    pub passed_damaged: Figure,
    /// 1 when it is frozen.
    pub frozen: Figure,
    /// 1 while its folder is not open.
    pub closed: Figure,
    /// 1 while it waits for room on its disk.
    pub waiting: Figure,
    /// How often it has waited for room.
    pub waits: Figure,
    /// Writes that failed and were done again in a new segment, or are to be.
    pub failed_writes: Figure,
    /// Writes that took longer than a second.
    pub slow_writes: Figure,
    /// Records that are not what was written, each counted once, by the first reader that came to it.
    pub damaged: Figure,
    /// Sequences that writes cut off by crashes may have had, counted the same way.
    pub torn: Figure,
    /// Reads that failed.
    pub read_failures: Figure,
    /// Rounds of retention that could not remove everything.
    pub retention_failures: Figure,
    /// The condition of its disk, and why it is so.
    pub health: SharedHealth,
}

impl Counters {
    pub(crate) fn new(names: impl Iterator<Item = String>, shards: usize) -> Counters {
        let streams = names.map(|name| StreamCounters { name, ..StreamCounters::default() }).collect();
        let shards = (0..shards).map(|_| ShardCounters::default()).collect();
        Counters { streams, shards, ..Counters::default() }
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
    pub fn losses(&self, door: Door, loss: Loss) -> u64 {
        self.losses[door as usize][loss as usize].get()
    }

    pub(crate) fn set_losses(&self, ledger: &Ledger) {
        for door in Door::ALL {
            for loss in Loss::ALL {
                self.losses[door as usize][loss as usize].set(ledger.count(door, loss));
            }
        }
    }
}
