//! What all shards and doors share of the queue before the doors: the oldest request of each shard, and whom to wake.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use stilling_ring::Wake;

use crate::counters::{PoolCounters, PoolTally};
use crate::queue_target::QueueTarget;

/// Nobody waits.
pub(super) const NO_REQUEST: u64 = u64::MAX;

/// What bounds the requests that wait for a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueLimits {
    /// How many may wait, in all shards together. More are refused.
    pub queue_max: usize,
    /// How long one may wait. One that is taken later is given up.
    pub age_max: Duration,
    /// The wait that a standing queue is cut to; see [`PoolLimits::queue_target`](crate::PoolLimits::queue_target).
    pub target: Option<QueueTarget>,
}

impl Default for QueueLimits {
    /// As a pool's.
    fn default() -> QueueLimits {
        let crate::PoolLimits { queue_max, age_max, queue_target, .. } = crate::PoolLimits::default();
        QueueLimits { queue_max, age_max, target: queue_target }
    }
}

/// What all shards and doors share.
#[derive(Debug)]
pub(super) struct AdmissionQueue {
    pub(super) limits: QueueLimits,
    pub(super) shard_heads: Vec<ShardHead>,
    pub(super) queued: AtomicU64,
    pub(super) tally: PoolTally,
}

/// What a shard lets the others see.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct ShardHead {
    /// Since when its oldest request waits.
    pub(super) oldest: AtomicU64,
    /// It is to look again.
    pub(super) notified: AtomicBool,
    wake: Arc<Wake>,
}

impl AdmissionQueue {
    pub(super) fn new(limits: QueueLimits, wakes: Vec<Arc<Wake>>) -> AdmissionQueue {
        let head =
            |wake| ShardHead { oldest: AtomicU64::new(NO_REQUEST), notified: AtomicBool::new(false), wake };
        let shard_heads = wakes.into_iter().map(head).collect();
        AdmissionQueue { limits, shard_heads, queued: AtomicU64::new(0), tally: PoolTally::default() }
    }

    /// Something has changed that any shard may wait for.
    pub(super) fn notify_all_shards(&self) {
        self.shard_heads.iter().for_each(ShardHead::notify);
    }

    /// There is room: whoever has waited for the longest is to look.
    pub(super) fn notify_oldest(&self) {
        if let Some(first) = self.oldest_shard() {
            self.shard_heads[first].notify();
        }
    }

    /// The shard whose oldest request is the oldest of all.
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
        // Who has been told and has not looked yet will see this, too.
        if !self.notified.swap(true, SeqCst) {
            self.wake.notify();
        }
    }
}
