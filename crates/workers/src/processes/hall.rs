//! What all shards and doors share of the queue before the doors: the oldest request of each shard, and whom to wake.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use stilling_ring::Wake;

use crate::counters::{Counters, Tally};
use crate::target::QueueTarget;

/// Nobody waits.
pub(super) const NOBODY: u64 = u64::MAX;

/// What bounds the requests that wait for a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueLimits {
    /// How many may wait, in all shards together. More are refused.
    pub queue_max: usize,
    /// How long one may wait. One that is taken later is given up.
    pub age_max: Duration,
    /// The wait that a standing queue is cut to; see [`Limits::queue_target`](crate::Limits::queue_target).
    pub target: Option<QueueTarget>,
}

impl Default for QueueLimits {
    /// As a pool's.
    fn default() -> QueueLimits {
        let crate::Limits { queue_max, age_max, queue_target, .. } = crate::Limits::default();
        QueueLimits { queue_max, age_max, target: queue_target }
    }
}

/// What all shards and doors share.
#[derive(Debug)]
pub(super) struct Hall {
    pub(super) limits: QueueLimits,
    pub(super) places: Vec<Place>,
    pub(super) queued: AtomicU64,
    pub(super) tally: Tally,
}

/// What a shard lets the others see.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Place {
    /// Since when its oldest request waits.
    pub(super) oldest: AtomicU64,
    /// It is to look again.
    pub(super) knocked: AtomicBool,
    wake: Arc<Wake>,
}

impl Hall {
    pub(super) fn new(limits: QueueLimits, wakes: Vec<Arc<Wake>>) -> Hall {
        let place = |wake| Place { oldest: AtomicU64::new(NOBODY), knocked: AtomicBool::new(false), wake };
        let places = wakes.into_iter().map(place).collect();
        Hall { limits, places, queued: AtomicU64::new(0), tally: Tally::default() }
    }

    /// Something has changed that any shard may wait for.
    pub(super) fn knock_for_all(&self) {
        self.places.iter().for_each(Place::knock);
    }

    /// There is room: whoever has waited for the longest is to look.
    pub(super) fn knock_for_oldest(&self) {
        if let Some(first) = self.first() {
            self.places[first].knock();
        }
    }

    /// The shard whose oldest request is the oldest of all.
    pub(super) fn first(&self) -> Option<usize> {
        let oldest = |(number, place): (usize, &Place)| (place.oldest.load(SeqCst), number);
        let (oldest, number) = self.places.iter().enumerate().map(oldest).min()?;
        (oldest != NOBODY).then_some(number)
    }

    pub(super) fn counters(&self) -> Counters {
        self.tally.snapshot(self.queued.load(Relaxed), 0)
    }
}

impl Place {
    pub(super) fn knock(&self) {
        // Who has been told and has not looked yet will see this, too.
        if !self.knocked.swap(true, SeqCst) {
            self.wake.notify();
        }
    }
}
