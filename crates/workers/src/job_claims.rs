//! Ownership of a submitter's queued jobs: claimed by the worker that takes a job or by the shard that withdraws it.
//!
//! Each slot of a submitter's queue has one word. It holds the position of the waiting job, shifted by one, and becomes
//! odd when the job is claimed. Worker and shard claim with one compare-and-swap, so exactly one of them gets the job.
//! Positions are 64-bit and never repeat, so an old position never matches a later job in the same slot.

use stilling_ring::sync::{AtomicU64, Ordering};

/// Not a position, however shifted.
const UNUSED: u64 = u64::MAX;

/// Position of a job in its submitter's queue. Positions are 64-bit and never repeat within a submitter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct JobPosition(pub(crate) u64);

impl JobPosition {
    pub(crate) fn new(position: u64) -> JobPosition {
        JobPosition(position)
    }
}

pub(crate) struct JobClaims {
    /// Indexed by position modulo the length, a power of two.
    slots: Box<[AtomicU64]>,
}

impl JobClaims {
    pub(crate) fn new(capacity: usize) -> JobClaims {
        let slots = (0..capacity.next_power_of_two()).map(|_| AtomicU64::new(UNUSED)).collect();
        JobClaims { slots }
    }

    /// Called by the submitter before it publishes a job at `position`, after the slot's previous job was popped.
    pub(crate) fn mark_waiting(&self, position: u64) {
        // The release store that publishes the job makes this visible to the worker.
        self.slot(position).store(position << 1, Ordering::Relaxed);
    }

    /// Claims the job at `position`; false if the other side has claimed it. The worker claims before it pops, since
    /// the slot is reused afterwards.
    pub(crate) fn claim(&self, position: u64) -> bool {
        let waiting = position << 1;
        let claimed = waiting | 1;
        self.slot(position).compare_exchange(waiting, claimed, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(crate) fn is_waiting(&self, position: u64) -> bool {
        self.slot(position).load(Ordering::Acquire) == position << 1
    }

    fn slot(&self, position: u64) -> &AtomicU64 {
        // The length is a power of two, and the cast keeps all bits that the mask keeps.
        &self.slots[position as usize & (self.slots.len() - 1)]
    }
}
