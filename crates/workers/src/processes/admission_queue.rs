//! The part of the admission queue shared by all shards: each shard's oldest request, and its wake.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use stilling_ring::Wake;

use crate::counters::{PoolCounters, PoolTally};
use crate::queue_target::QueueTarget;

use super::affinity::AffinityTally;

pub(super) const NO_REQUEST: u64 = u64::MAX;

/// Bounds of the requests that wait for a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueLimits {
    /// Maximum number of waiting requests in all shards together. More are rejected.
    pub queue_max: usize,
    /// Maximum wait. A request that waits longer expires.
    pub age_max: Duration,
    /// The target wait of a standing queue; see [`PoolLimits::queue_target`](crate::PoolLimits::queue_target).
    pub target: Option<QueueTarget>,
}

impl Default for QueueLimits {
    fn default() -> QueueLimits {
        let crate::PoolLimits { queue_max, age_max, queue_target, .. } = crate::PoolLimits::default();
        QueueLimits { queue_max, age_max, target: queue_target }
    }
}

#[derive(Debug)]
pub(super) struct AdmissionQueue {
    pub(super) limits: QueueLimits,
    pub(super) shard_heads: Vec<ShardHead>,
    pub(super) queued: AtomicU64,
    pub(super) tally: PoolTally,
    pub(super) affinity: AffinityTally,
}

#[derive(Debug)]
#[repr(align(128))]
pub(super) struct ShardHead {
    /// Enqueue time of its oldest request in nanoseconds, or [`NO_REQUEST`].
    pub(super) oldest: AtomicU64,
    /// The shard has a notification to handle.
    pub(super) notified: AtomicBool,
    wake: Arc<Wake>,
}

impl AdmissionQueue {
    pub(super) fn new(limits: QueueLimits, wakes: Vec<Arc<Wake>>) -> AdmissionQueue {
        let head =
            |wake| ShardHead { oldest: AtomicU64::new(NO_REQUEST), notified: AtomicBool::new(false), wake };
        let shard_heads = wakes.into_iter().map(head).collect();
        AdmissionQueue {
            limits,
            shard_heads,
            queued: AtomicU64::new(0),
            tally: PoolTally::default(),
            affinity: AffinityTally::default(),
        }
    }

    pub(super) fn notify_all_shards(&self) {
        self.shard_heads.iter().for_each(ShardHead::notify);
    }

    pub(super) fn notify_oldest(&self) {
        if let Some(first) = self.oldest_shard() {
            self.shard_heads[first].notify();
        }
    }

    pub(super) fn oldest_shard(&self) -> Option<usize> {
        let oldest = |(number, head): (usize, &ShardHead)| (head.oldest.load(SeqCst), number);
        let (oldest, number) = self.shard_heads.iter().enumerate().map(oldest).min()?;
        (oldest != NO_REQUEST).then_some(number)
    }

    pub(super) fn counters(&self) -> PoolCounters {
        self.tally.snapshot(self.queued.load(Relaxed), 0)
    }
}

impl ShardHead {
    pub(super) fn notify(&self) {
        // A shard with a pending notification will see this change, too.
        if !self.notified.swap(true, SeqCst) {
            self.wake.notify();
        }
    }
}
