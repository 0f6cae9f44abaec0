//! Who owns a queued job of a lane: the worker that takes it or the shard that withdraws it.
//!
//! Each place of a lane's queue has one word. It holds the position of the job that waits there, shifted by one, and
//! becomes odd when the job is claimed. Worker and shard claim with one compare-and-swap, so exactly one of them gets
//! the job. Positions are 64-bit and never repeat, so an old position never matches a later job of the same place.

use stilling_ring::sync::{AtomicU64, Ordering};

/// No position, however shifted.
const UNUSED: u64 = u64::MAX;

/// Where in its lane's queue a job was put. Positions are 64-bit and never repeat within a lane.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LanePosition(pub(crate) u64);

impl LanePosition {
    pub(crate) fn new(position: u64) -> LanePosition {
        LanePosition(position)
    }
}

pub(crate) struct JobClaims {
    /// By position modulo their number, a power of two.
    slots: Box<[AtomicU64]>,
}

impl JobClaims {
    /// Claims for a queue of `capacity` places.
    pub(crate) fn new(capacity: usize) -> JobClaims {
        let slots = (0..capacity.next_power_of_two()).map(|_| AtomicU64::new(UNUSED)).collect();
        JobClaims { slots }
    }

    /// The lane: a job is about to be published at `position`, whose former job has been popped.
    pub(crate) fn open(&self, position: u64) {
        // The release store that publishes the job shows this to the worker.
        self.slot(position).store(position << 1, Ordering::Relaxed);
    }

    /// Claims the job at `position`. False: the other side has it. The worker claims before it pops, since the
    /// place is reused afterwards.
    pub(crate) fn claim(&self, position: u64) -> bool {
        let waiting = position << 1;
        let claimed = waiting | 1;
        self.slot(position).compare_exchange(waiting, claimed, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether the job at `position` is unclaimed.
    pub(crate) fn is_waiting(&self, position: u64) -> bool {
        self.slot(position).load(Ordering::Acquire) == position << 1
    }

    fn slot(&self, position: u64) -> &AtomicU64 {
        // The length is a power of two, and the cast keeps all bits that the mask keeps.
        &self.slots[position as usize & (self.slots.len() - 1)]
    }
}
