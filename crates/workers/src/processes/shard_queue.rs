//! A shard's part of the admission queue: requests of all shards wait here for a slot, first in, first out.
//!
//! ```text
//!   shard 0: ShardAdmissionQueue ─ oldest ┐            ┌► ProcessSlots 0
//!   shard 1: ShardAdmissionQueue ─ oldest ┤ the oldest ┤
//!                                  of all ┘  acquires  └► ProcessSlots 1
//! ```
//!
//! Each shard keeps its own queue and publishes only the time of its oldest request. A shard acquires a slot only when
//! its oldest is the oldest of all, so no request starves. Freeing a slot, opening a process, and finding a free slot
//! after acquiring one notify the shard with the oldest request.
//!
//! No notification is lost: a shard publishes its oldest request and then checks for a free slot; a release frees the
//! slot and then looks up the oldest request; all in one total order. No shard locks or waits here.
//!
//! The cost of a common order: a busy shard with the oldest request delays the requests of all other shards until its
//! event-loop turn ends, however many slots are free. Event-loop turns must therefore be short: inline handlers and
//! `--accept-workers` do not fit a server with processes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use stilling_ring::Time;

use super::admission_queue::{AdmissionQueue, NO_REQUEST};
use super::permit::SlotPermit;
use super::process_slots::ProcessSlots;
use crate::counters::count;
use crate::queue_target::StandingQueueDetector;

/// A request's position in its shard's queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct AdmissionTicket {
    since: Time,
    number: u64,
}

/// A request in the queue, and since when it is there: later than its ticket if it was requeued.
#[derive(Debug)]
pub(super) struct WaitingRequest<Q> {
    pub(super) request: Q,
    pub(super) queued_at: Time,
}

/// Outcome of a queued request.
#[derive(Debug)]
pub enum AdmissionOutcome<Q> {
    /// The request may be sent, with this permit.
    Admitted(SlotPermit, Q),
    /// The request has waited too long, or too long in a standing queue.
    Expired(Q),
    /// With affinity: all processes belong to other clients, or the client has too many requests that wait.
    Refused(Q),
}

/// A shard's access to the slots, and the queue before them.
#[derive(Debug)]
pub struct ShardAdmissionQueue<Q> {
    pub(super) admission_queue: Arc<AdmissionQueue>,
    pub(super) slots_by_process: Arc<[Arc<ProcessSlots>]>,
    pub(super) number: usize,
    waiting: BTreeMap<AdmissionTicket, WaitingRequest<Q>>,
    count: u64,
    pub(super) standing: Option<StandingQueueDetector>,
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

    /// Queues a request; [`poll_admission`](Self::poll_admission) returns it when its turn has come.
    ///
    /// # Errors
    /// The request, when the queue is full.
    pub fn enqueue(&mut self, now: Time, request: Q) -> Result<AdmissionTicket, Q> {
        let Some(ticket) = self.count_queued(now) else { return Err(request) };
        self.waiting.insert(ticket, WaitingRequest { request, queued_at: now });
        if self.waiting.len() == 1 {
            self.publish_oldest();
        }
        Ok(ticket)
    }

    /// Counts a new request. `None`: the queue of all shards is full, and the request is rejected.
    pub(super) fn count_queued(&mut self, now: Time) -> Option<AdmissionTicket> {
        let before = self.admission_queue.queued.fetch_add(1, Relaxed);
        if before >= self.admission_queue.limits.queue_max as u64 {
            self.admission_queue.queued.fetch_sub(1, Relaxed);
            count(&self.admission_queue.tally.rejected);
            return None;
        }
        self.admission_queue.tally.queued_max.fetch_max(before + 1, Relaxed);
        Some(self.next_ticket(now))
    }

    pub(super) fn next_ticket(&mut self, now: Time) -> AdmissionTicket {
        self.count += 1;
        AdmissionTicket { since: now, number: self.count }
    }

    /// Queues an admitted request again at its old position, whatever the queue's length.
    pub fn requeue(&mut self, now: Time, ticket: AdmissionTicket, request: Q) {
        self.count_requeued();
        self.waiting.insert(ticket, WaitingRequest { request, queued_at: now });
        self.publish_oldest();
    }

    pub(super) fn count_requeued(&self) {
        let before = self.admission_queue.queued.fetch_add(1, Relaxed);
        self.admission_queue.tally.queued_max.fetch_max(before + 1, Relaxed);
    }

    /// Removes a request from the queue. `is_late`: counts as expired, otherwise as cancelled.
    pub fn withdraw(&mut self, ticket: AdmissionTicket, is_late: bool) -> Option<Q> {
        let WaitingRequest { request, .. } = self.waiting.remove(&ticket)?;
        self.count_withdrawn(is_late);
        self.publish_oldest();
        self.notify_next_shard();
        Some(request)
    }

    /// Counts a request that was removed from the queue.
    pub(super) fn count_withdrawn(&self, is_late: bool) {
        self.admission_queue.queued.fetch_sub(1, Relaxed);
        if is_late {
            count(&self.admission_queue.tally.taken);
            count(&self.admission_queue.tally.expired);
        } else {
            count(&self.admission_queue.tally.cancelled);
        }
    }

    /// Returns this shard's next request if it is its turn. `has_connection` reports whether the shard has a usable
    /// connection to a process: it breaks ties between equally busy processes.
    pub fn poll_admission(
        &mut self,
        now: Time,
        has_connection: impl Fn(usize) -> bool,
    ) -> Option<AdmissionOutcome<Q>> {
        if self.waiting.is_empty() {
            return None;
        }
        if self.admission_queue.oldest_shard() != Some(self.number) {
            self.notify_next_shard();
            return None;
        }
        let slot = self.acquire_slot(has_connection)?;
        let (ticket, waiting) = self.waiting.pop_first()?;
        self.publish_oldest();
        let outcome = self.admit(slot, ticket, waiting, now);
        if matches!(outcome, AdmissionOutcome::Admitted(..)) {
            self.notify_next_shard();
        }
        Some(outcome)
    }

    /// Decides about a request that waits no longer, and whose slot is acquired.
    pub(super) fn admit(
        &mut self,
        (process, generation): (usize, u64),
        ticket: AdmissionTicket,
        waiting: WaitingRequest<Q>,
        now: Time,
    ) -> AdmissionOutcome<Q> {
        let WaitingRequest { request, queued_at } = waiting;
        self.admission_queue.queued.fetch_sub(1, Relaxed);
        let tally = &self.admission_queue.tally;
        count(&tally.taken);
        let wait_nanos = u64::try_from(now.since(queued_at).as_nanos()).unwrap_or(u64::MAX);
        tally.wait_nanos.fetch_add(wait_nanos, Relaxed);
        // Its age includes the time with a slot.
        let waited = now.since(ticket.since);
        let service = tally.service_mean();
        let is_shed =
            self.standing.as_mut().is_some_and(|standing| standing.should_shed(now, waited, service));
        if is_shed {
            count(&tally.shed);
        }
        if is_shed || waited > self.admission_queue.limits.age_max {
            count(&tally.expired);
            // The resulting notification admits the next request.
            self.slots_by_process[process].release_unused();
            return AdmissionOutcome::Expired(request);
        }
        AdmissionOutcome::Admitted(
            SlotPermit::new(Arc::clone(&self.slots_by_process[process]), generation, now),
            request,
        )
    }

    /// Whether a notification arrived since the last [`take_notification`](Self::take_notification): the final check
    /// before the shard sleeps.
    #[must_use]
    pub fn is_notified(&self) -> bool {
        self.admission_queue.shard_heads[self.number].notified.load(SeqCst)
    }

    /// Whether a notification arrived since the last call: requests may be admitted, processes have opened or closed,
    /// or connections are claimed.
    pub fn take_notification(&self) -> bool {
        self.is_notified() && self.admission_queue.shard_heads[self.number].notified.swap(false, SeqCst)
    }

    /// Number of slots of this process that wait for a connection; the caller closes one idle connection for each.
    #[must_use]
    pub fn connection_claims(&self, process: usize) -> u32 {
        self.slots_by_process[process].claims()
    }

    /// Returns the generation of a process that accepts requests; 0: none.
    #[must_use]
    pub fn generation(&self, process: usize) -> u64 {
        self.slots_by_process[process].generation()
    }

    /// Returns the number of processes.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.slots_by_process.len()
    }

    /// Logs a line about the pool, after its name. Never blocks: without room in the log's pipe the line is dropped.
    pub fn print_line(&self, text: &str) {
        if let Some(first) = self.slots_by_process.first() {
            first.print_pool_line(text);
        }
    }

    /// Acquires a slot of the open process with the fewest in use.
    fn acquire_slot(&self, has_connection: impl Fn(usize) -> bool) -> Option<(usize, u64)> {
        loop {
            let open = self
                .slots_by_process
                .iter()
                .enumerate()
                .filter_map(|(at, process_slots)| Some((process_slots.occupancy()?, at)));
            let (_, _, at) = open.map(|(load, at)| (load, !has_connection(at), at)).min()?;
            // Another shard may have acquired the slot first.
            if let Some(generation) = self.slots_by_process[at].try_acquire() {
                return Some((at, generation));
            }
        }
    }

    #[cfg(test)]
    pub(super) fn acquire_slot_of(&self, process: usize, now: Time) -> Option<SlotPermit> {
        let process_slots = &self.slots_by_process[process];
        let generation = process_slots.try_acquire()?;
        count(&self.admission_queue.tally.taken);
        Some(SlotPermit::new(Arc::clone(process_slots), generation, now))
    }

    fn publish_oldest(&self) {
        let oldest = self.waiting.first_key_value().map_or(NO_REQUEST, |(ticket, _)| ticket.since.as_nanos());
        let head = &self.admission_queue.shard_heads[self.number];
        // Only this shard writes it.
        if head.oldest.load(Relaxed) != oldest {
            head.oldest.store(oldest, SeqCst);
        }
    }

    /// Notifies the shard with the oldest request, if a slot is free.
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
    /// Requests behind those of an ended shard can proceed.
    fn drop(&mut self) {
        self.admission_queue.queued.fetch_sub(self.waiting.len() as u64, Relaxed);
        self.waiting.clear();
        self.publish_oldest();
        self.notify_next_shard();
    }
}
