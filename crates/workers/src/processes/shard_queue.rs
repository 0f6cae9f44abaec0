//! A shard's entrance to the hall before the doors: requests of all shards wait here for a slot, first come, first served.
//!
//! ```text
//!   shard 0: Entrance ─ its queue ─ oldest ┐             ┌► Door 0: slots
//!   shard 1: Entrance ─ its queue ─ oldest ┤ the oldest  ┤
//!                                  of all ─┘  goes in    └► Door 1: slots
//! ```
//!
//! Each shard keeps its own queue and tells the others only when its oldest request came. A shard takes a slot only
//! when its oldest is the oldest of all, so nobody starves. Whoever makes room (a request comes out, a door opens),
//! and whoever finds room left after taking a slot, knocks for the shard with the oldest.
//!
//! No knock is lost: a shard says since when its oldest waits and looks for a free slot afterwards; whoever comes out
//! frees the slot first and looks for the oldest afterwards; all that in one total order. No shard locks or waits here.
//!
//! The price of one order for all: a shard that is busy while its oldest request is the oldest of all holds up the
//! others' requests until its turn ends, however many slots are free. So a shard with requests for processes must do
//! nothing in its turns that takes long: handlers and `--accept-workers` are not for a server with processes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use stilling_ring::Time;

use super::admission_queue::{AdmissionQueue, NO_REQUEST};
use super::permit::SlotPermit;
use super::process_slots::ProcessSlots;
use crate::counters::count;
use crate::queue_target::StandingQueueDetector;

/// Where in its shard's queue a request waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct AdmissionTicket {
    since: Time,
    number: u64,
}

/// What has become of a request that waited.
#[derive(Debug)]
pub enum AdmissionOutcome<Q> {
    /// It may be asked, with this permission.
    Admitted(SlotPermit, Q),
    /// It has waited too long, or too long in a queue that stands.
    Expired(Q),
}

/// A shard's way to the slots, and the queue before them.
#[derive(Debug)]
pub struct ShardAdmissionQueue<Q> {
    admission_queue: Arc<AdmissionQueue>,
    slots_by_process: Arc<[Arc<ProcessSlots>]>,
    number: usize,
    waiting: BTreeMap<AdmissionTicket, Q>,
    /// Requests so far.
    count: u64,
    standing: Option<StandingQueueDetector>,
}

impl<Q> ShardAdmissionQueue<Q> {
    pub(super) fn new(
        admission_queue: &Arc<AdmissionQueue>,
        slots_by_process: &Arc<[Arc<ProcessSlots>]>,
        number: usize,
    ) -> ShardAdmissionQueue<Q> {
        ShardAdmissionQueue {
            standing: admission_queue.limits.target.map(StandingQueueDetector::new),
            admission_queue: Arc::clone(admission_queue),
            slots_by_process: Arc::clone(slots_by_process),
            number,
            waiting: BTreeMap::new(),
            count: 0,
        }
    }

    /// Queues a request; [`call`](Self::poll_admission) says when its turn has come.
    ///
    /// # Errors
    /// The request comes back: as many wait as may.
    pub fn enqueue(&mut self, now: Time, what: Q) -> Result<AdmissionTicket, Q> {
        let before = self.admission_queue.queued.fetch_add(1, Relaxed);
        if before >= self.admission_queue.limits.queue_max as u64 {
            self.admission_queue.queued.fetch_sub(1, Relaxed);
            count(&self.admission_queue.tally.refused);
            return Err(what);
        }
        self.admission_queue.tally.queued_max.fetch_max(before + 1, Relaxed);
        self.count += 1;
        let ticket = AdmissionTicket { since: now, number: self.count };
        self.waiting.insert(ticket, what);
        if self.waiting.len() == 1 {
            self.publish_oldest();
        }
        Ok(ticket)
    }

    /// Queues a request that was taken before in vain at its old place, however many wait.
    pub fn requeue(&mut self, ticket: AdmissionTicket, what: Q) {
        self.admission_queue.queued.fetch_add(1, Relaxed);
        self.waiting.insert(ticket, what);
        self.publish_oldest();
    }

    /// Takes a request out of the queue that is not to be asked any more: it is answered otherwise, because it has
    /// waited too long or for another reason.
    pub fn withdraw(&mut self, ticket: AdmissionTicket, is_late: bool) -> Option<Q> {
        let what = self.waiting.remove(&ticket)?;
        self.admission_queue.queued.fetch_sub(1, Relaxed);
        if is_late {
            count(&self.admission_queue.tally.taken);
            count(&self.admission_queue.tally.expired);
        } else {
            count(&self.admission_queue.tally.cancelled);
        }
        self.publish_oldest();
        self.notify_next_shard();
        Some(what)
    }

    /// The next request of this shard whose turn it is, if one's is. `has_connection` tells of which processes the shard has
    /// a connection to use: of processes that are equally busy one of these is taken.
    pub fn poll_admission(
        &mut self,
        now: Time,
        has_connection: impl Fn(usize) -> bool,
    ) -> Option<AdmissionOutcome<Q>> {
        let (ticket, _) = self.waiting.first_key_value()?;
        let since = ticket.since;
        if self.admission_queue.oldest_shard() != Some(self.number) {
            self.notify_next_shard();
            return None;
        }
        let (process, generation) = self.acquire_slot(has_connection)?;
        let (_, what) = self.waiting.pop_first()?;
        self.admission_queue.queued.fetch_sub(1, Relaxed);
        self.publish_oldest();
        let tally = &self.admission_queue.tally;
        count(&tally.taken);
        let waited = now.since(since);
        tally.wait_nanos.fetch_add(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        let service = tally.service_mean();
        let is_shed = self.standing.as_mut().is_some_and(|standing| standing.sheds(now, waited, service));
        if is_shed {
            count(&tally.shed);
        }
        if is_shed || waited > self.admission_queue.limits.age_max {
            count(&tally.expired);
            // The knock that this leads to calls the next one.
            self.slots_by_process[process].release_unused();
            return Some(AdmissionOutcome::Expired(what));
        }
        self.notify_next_shard();
        Some(AdmissionOutcome::Admitted(
            SlotPermit::new(Arc::clone(&self.slots_by_process[process]), generation, now),
            what,
        ))
    }

    /// Whether somebody has knocked since the last [`take_notification`](Self::take_notification): the last look before the shard sleeps.
    #[must_use]
    pub fn is_notified(&self) -> bool {
        self.admission_queue.shard_heads[self.number].notified.load(SeqCst)
    }

    /// Whether somebody has knocked since the last call: then requests may be called, processes have come or gone, or
    /// connections are wanted.
    pub fn take_notification(&self) -> bool {
        self.is_notified() && self.admission_queue.shard_heads[self.number].notified.swap(false, SeqCst)
    }

    /// How many shards have a slot of this process and no room for a connection, because others keep theirs: one of
    /// these should be closed for each.
    #[must_use]
    pub fn connection_claims(&self, process: usize) -> u32 {
        self.slots_by_process[process].claims()
    }

    /// The life of a process that takes requests now; 0: none does.
    #[must_use]
    pub fn generation(&self, process: usize) -> u64 {
        self.slots_by_process[process].generation()
    }

    /// Processes there are.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.slots_by_process.len()
    }

    /// Goes in at the door with the fewest inside.
    fn acquire_slot(&self, has_connection: impl Fn(usize) -> bool) -> Option<(usize, u64)> {
        loop {
            let open = self
                .slots_by_process
                .iter()
                .enumerate()
                .filter_map(|(at, process_slots)| Some((process_slots.occupancy()?, at)));
            let (_, _, at) = open.map(|(load, at)| (load, !has_connection(at), at)).min()?;
            // Somebody may have been faster.
            if let Some(generation) = self.slots_by_process[at].try_acquire() {
                return Some((at, generation));
            }
        }
    }

    /// Goes in at one door, without having waited.
    #[cfg(test)]
    pub(super) fn acquire_slot_of(&self, process: usize, now: Time) -> Option<SlotPermit> {
        let process_slots = &self.slots_by_process[process];
        let generation = process_slots.try_acquire()?;
        count(&self.admission_queue.tally.taken);
        Some(SlotPermit::new(Arc::clone(process_slots), generation, now))
    }

    /// Tells the others since when the oldest waits.
    fn publish_oldest(&self) {
        let oldest = self.waiting.first_key_value().map_or(NO_REQUEST, |(ticket, _)| ticket.since.as_nanos());
        let head = &self.admission_queue.shard_heads[self.number];
        // Only this shard writes it.
        if head.oldest.load(Relaxed) != oldest {
            head.oldest.store(oldest, SeqCst);
        }
    }

    /// If there is room it may be another shard's turn now.
    fn notify_next_shard(&self) {
        if let Some(first) = self.admission_queue.oldest_shard()
            && first != self.number
            && self.slots_by_process.iter().any(|process_slots| process_slots.occupancy().is_some())
        {
            self.admission_queue.shard_heads[first].notify();
        }
    }
}

impl<Q> Drop for ShardAdmissionQueue<Q> {
    /// Whoever waited behind a shard that has ended goes on.
    fn drop(&mut self) {
        self.admission_queue.queued.fetch_sub(self.waiting.len() as u64, Relaxed);
        self.waiting.clear();
        self.publish_oldest();
        self.notify_next_shard();
    }
}
