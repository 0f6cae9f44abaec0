//! Affinity: each client has a process of its own, until it leaves, is idle for a time, or the process ends.
//!
//! ```text
//!                       process free                     slot free
//!   request ─► unassigned ─────────► waiting of the client ─────────► admitted
//!                │   ▲                        │
//!                │   └────────────────────────┘ the process has ended
//!                └─► refused: every process serves another client
//! ```
//!
//! A client's requests always come from the same shard, so each shard has the assignments of its clients. A process is
//! owned by one shard ([`ProcessSlots`](super::process_slots::ProcessSlots)), which alone acquires its slots: the
//! requests of different shards never compete for one slot. An assignment that has ended keeps its process until no
//! slot is in use.
//!
//! The requests of each client have a queue of their own, whether the client has a process or not. Its share is one
//! part in N of the pool's places with N processes: a client that floods takes no more places, and delays no other
//! client. While processes start or are replaced, more than N clients may wait. If their requests fill the queue of all
//! shards, it rejects further ones, also of a client within its share.
//!
//! A reload replaces each process by its successor, the process with the same position in the other set. The successor
//! goes to the client of the process: other clients cannot have it before that client has moved or left. The client's
//! next requests do not wait for those that the process still has, which may take as long as its drain: only then does
//! a client have requests in two processes.
//!
//! A request waits for a process only while one is starting, stopping or being replaced. No notification is lost: the
//! opening of a process, the end of an ownership and the move of a client notify all shards, the release of a slot
//! notifies the owner, and [`next_deadline`](AffinityQueue::next_deadline) is the time at which a client will have been
//! idle for too long.

use std::hash::Hash;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use stilling_ring::Time;

use super::PROCESS_SETS;
use super::shard_queue::{AdmissionOutcome, AdmissionTicket, ShardAdmissionQueue, WaitingRequest};
use crate::counters::count;
use unassigned_clients::{ClientQueue, UnassignedClients};

mod unassigned_clients;

/// A snapshot of the counters of a pool with affinity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AffinityCounters {
    /// Processes that belong to a client, now.
    pub assigned: u64,
    /// Requests refused because every process belonged to another client, or too many of the client waited.
    pub no_worker: u64,
}

#[derive(Debug, Default)]
pub(super) struct AffinityTally {
    assigned: AtomicU64,
    no_worker: AtomicU64,
}

impl AffinityTally {
    pub(super) fn snapshot(&self) -> AffinityCounters {
        AffinityCounters { assigned: self.assigned.load(Relaxed), no_worker: self.no_worker.load(Relaxed) }
    }
}

/// A shard's access to the slots of a pool with affinity, and its requests that wait. `C` identifies a client.
#[derive(Debug)]
pub struct AffinityQueue<C, Q> {
    /// Has no requests: they wait in the queues of their clients.
    shard_queue: ShardAdmissionQueue<Q>,
    unassigned: UnassignedClients<C, Q>,
    idle_timeout: Duration,
    /// Requests of one client that may wait.
    waiting_max: usize,
    /// Processes that serve at a time.
    processes: usize,
    /// At most one for each process.
    assignments: Vec<Assignment<C, Q>>,
    refused: Vec<Q>,
}

/// A process of a client.
#[derive(Debug)]
struct Assignment<C, Q> {
    client: C,
    process: usize,
    generation: u64,
    /// The process that a reload has replaced by this one, while it has requests of the client.
    former: Option<usize>,
    is_busy: bool,
    /// When it was busy for the last time.
    last_used: Time,
    /// The client has left, was idle for too long or has moved to another process, or the process has ended.
    has_ended: bool,
    waiting: ClientQueue<Q>,
}

impl<C: Copy + Eq + Hash, Q> AffinityQueue<C, Q> {
    /// Makes a queue of an empty one, for a pool of `processes`; a reload replaces all of them at once. A client
    /// without requests for `idle_timeout` loses its process.
    #[must_use]
    pub fn new(
        mut shard_queue: ShardAdmissionQueue<Q>,
        processes: usize,
        idle_timeout: Duration,
    ) -> AffinityQueue<C, Q> {
        // Without a target wait: requests wait only behind others of their client, which are bounded in number and age.
        shard_queue.standing = None;
        AffinityQueue {
            waiting_max: (shard_queue.admission_queue.limits.queue_max / processes.max(1)).max(1),
            processes,
            idle_timeout,
            shard_queue,
            unassigned: UnassignedClients::new(),
            assignments: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// The shard's notifications and its view of the processes.
    #[must_use]
    pub fn shard_queue(&self) -> &ShardAdmissionQueue<Q> {
        &self.shard_queue
    }

    /// Queues a request; [`poll_admission`](Self::poll_admission) returns it when its turn has come, or at once as
    /// refused if it is beyond the client's share of the queue.
    ///
    /// # Errors
    /// The request, when the queue of all shards is full and the request is within the client's share.
    pub fn enqueue(&mut self, now: Time, client: C, request: Q) -> Result<AdmissionTicket, Q> {
        let assigned = self.find(client);
        let waiting = match assigned {
            Some(at) => self.assignments[at].waiting.len(),
            None => self.unassigned.requests_of(client),
        };
        if waiting >= self.waiting_max {
            self.refuse(request);
            return Ok(self.shard_queue.next_ticket(now));
        }
        let Some(ticket) = self.shard_queue.count_queued(now) else { return Err(request) };
        self.insert(client, assigned, ticket, WaitingRequest { request, queued_at: now });
        Ok(ticket)
    }

    /// Queues an admitted request again at its old position, whatever the queue's length.
    pub fn requeue(&mut self, now: Time, ticket: AdmissionTicket, client: C, request: Q) {
        self.shard_queue.count_requeued();
        self.insert(client, self.find(client), ticket, WaitingRequest { request, queued_at: now });
    }

    fn insert(
        &mut self,
        client: C,
        assigned: Option<usize>,
        ticket: AdmissionTicket,
        waiting: WaitingRequest<Q>,
    ) {
        match assigned {
            Some(at) => _ = self.assignments[at].waiting.insert(ticket, waiting),
            None => self.unassigned.insert(client, ticket, waiting),
        }
    }

    /// Removes a client's request from the queue. `is_late`: counts as expired, otherwise as cancelled.
    pub fn withdraw(&mut self, client: C, ticket: AdmissionTicket, is_late: bool) -> Option<Q> {
        let mut of_client = self.assignments.iter_mut().filter(|assignment| assignment.client == client);
        let WaitingRequest { request, .. } = of_client
            .find_map(|assignment| assignment.waiting.remove(&ticket))
            .or_else(|| self.unassigned.remove(client, ticket))?;
        self.shard_queue.count_withdrawn(is_late);
        Some(request)
    }

    /// Ends the assignment of a client, which makes no more requests.
    pub fn client_left(&mut self, client: C) {
        if let Some(at) = self.find(client) {
            self.assignments[at].has_ended = true;
            self.shard_queue.slots_by_process[self.assignments[at].process].set_left();
        }
    }

    /// Returns the next request that can be sent or must be refused.
    pub fn poll_admission(&mut self, now: Time) -> Option<AdmissionOutcome<Q>> {
        self.update_assignments(now);
        self.assign_processes(now);
        if let Some(request) = self.refused.pop() {
            return Some(AdmissionOutcome::Refused(request));
        }
        self.admit_next(now)
    }

    /// When a client will have been idle for too long, at the earliest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let idle = self.assignments.iter().filter(|assignment| !assignment.is_busy && !assignment.has_ended);
        idle.map(|assignment| assignment.last_used.after(self.idle_timeout)).min()
    }

    fn find(&self, client: C) -> Option<usize> {
        self.assignments.iter().position(|assignment| !assignment.has_ended && assignment.client == client)
    }

    /// Ends and moves assignments, and frees the processes of those that have no requests.
    fn update_assignments(&mut self, now: Time) {
        let mut at = 0;
        while let Some(assignment) = self.assignments.get_mut(at) {
            let slots_by_process = &self.shard_queue.slots_by_process;
            let process_slots = &slots_by_process[assignment.process];
            assignment.former.take_if(|former| slots_by_process[*former].is_empty());
            let is_empty = process_slots.is_empty();
            let is_busy = !is_empty || !assignment.waiting.is_empty() || assignment.former.is_some();
            if is_busy || assignment.is_busy {
                (assignment.is_busy, assignment.last_used) = (is_busy, now);
            }
            if !assignment.has_ended {
                let generation = process_slots.generation();
                let is_moving = generation == 0 && process_slots.is_retired();
                if generation != 0 {
                    // Perhaps the next run, if the end of the former one has not been noticed.
                    assignment.generation = generation;
                }
                assignment.has_ended = generation == 0 && !is_moving
                    || !is_busy && now.since(assignment.last_used) >= self.idle_timeout;
                if assignment.has_ended {
                    process_slots.set_left();
                } else if is_moving {
                    self.move_to_successor(at, now);
                }
            }
            if !self.release_ended(at) {
                at += 1;
            }
        }
    }

    /// Removes an assignment that has ended, and frees its process, if it has no requests. Returns whether it is
    /// removed.
    fn release_ended(&mut self, at: usize) -> bool {
        let assignment = &mut self.assignments[at];
        if !assignment.has_ended {
            return false;
        }
        self.unassigned.append(assignment.client, &mut assignment.waiting);
        let process_slots = &self.shard_queue.slots_by_process[assignment.process];
        if !process_slots.is_empty() {
            return false;
        }
        self.shard_queue.admission_queue.affinity.assigned.fetch_sub(1, Relaxed);
        process_slots.disown();
        let Assignment { waiting, .. } = self.assignments.swap_remove(at);
        self.unassigned.recycle(waiting);
        true
    }

    /// Moves a client and its requests from a process that a reload has closed to the successor, or to another free
    /// process if the successor does not serve and requests wait. Otherwise the successor stays reserved for the
    /// client.
    fn move_to_successor(&mut self, at: usize, now: Time) {
        let Assignment { client, process, last_used, .. } = self.assignments[at];
        let successor = self.successor(process);
        let shard = self.shard_queue.number;
        let inherited = self.shard_queue.slots_by_process[successor].try_own(shard);
        let moved = inherited.map(|generation| (successor, generation)).or_else(|| {
            let is_waiting = !self.assignments[at].waiting.is_empty();
            is_waiting.then(|| self.own_free_process()).flatten()
        });
        let Some((process_after, generation)) = moved else { return };
        let waiting = std::mem::take(&mut self.assignments[at].waiting);
        self.add_assignment(client, (process_after, generation), waiting, now);
        if let Some(added) = self.assignments.last_mut() {
            (added.former, added.last_used) = (Some(process), last_used);
        }
        self.assignments[at].has_ended = true;
        // Also the requests of other shards that have waited for this decision go on.
        self.shard_queue.slots_by_process[process].set_left();
    }

    /// The process that replaces another one in a reload.
    fn successor(&self, process: usize) -> usize {
        (process + self.processes) % (PROCESS_SETS * self.processes)
    }

    /// Assigns processes to clients that have none, or refuses their requests.
    fn assign_processes(&mut self, now: Time) {
        while let Some(client) = self.unassigned.oldest() {
            if self.assign(client, now) {
                continue;
            }
            if self.is_any_process_changing() {
                return;
            }
            let mut requests = self.unassigned.take(client);
            while let Some((_, WaitingRequest { request, .. })) = requests.pop_first() {
                self.shard_queue.admission_queue.queued.fetch_sub(1, Relaxed);
                self.refuse(request);
            }
            self.unassigned.recycle(requests);
        }
    }

    /// Whether a process may become free soon: it starts, stops or is being replaced.
    fn is_any_process_changing(&self) -> bool {
        let slots = self.shard_queue.slots_by_process.iter();
        let serving =
            slots.filter(|process_slots| process_slots.is_owned() && process_slots.generation() != 0);
        serving.count() < self.processes
    }

    /// Assigns a free process to a client without one, which has requests. Returns false if none is free.
    fn assign(&mut self, client: C, now: Time) -> bool {
        debug_assert!(self.find(client).is_none(), "it has a process");
        let Some(owned) = self.own_free_process() else { return false };
        let waiting = self.unassigned.take(client);
        self.add_assignment(client, owned, waiting, now);
        true
    }

    /// Makes this shard the owner of a free process, one that is not reserved for the client of its predecessor.
    /// Returns the process and its generation.
    fn own_free_process(&self) -> Option<(usize, u64)> {
        let slots_by_process = &self.shard_queue.slots_by_process;
        let is_reserved = |process| slots_by_process[self.successor(process)].has_client();
        (0..slots_by_process.len()).find_map(|process| {
            let slots = &slots_by_process[process];
            // In this order: the predecessor of an open process has closed before, so it gets no client any more.
            let is_free = slots.generation() != 0 && !slots.is_owned() && !is_reserved(process);
            is_free.then(|| slots.try_own(self.shard_queue.number)).flatten().map(|run| (process, run))
        })
    }

    fn add_assignment(
        &mut self,
        client: C,
        (process, generation): (usize, u64),
        waiting: ClientQueue<Q>,
        now: Time,
    ) {
        self.shard_queue.admission_queue.affinity.assigned.fetch_add(1, Relaxed);
        self.assignments.push(Assignment {
            client,
            process,
            generation,
            former: None,
            is_busy: false,
            last_used: now,
            has_ended: false,
            waiting,
        });
    }

    /// Refuses a request that the queue does not count.
    fn refuse(&mut self, request: Q) {
        let admission_queue = &self.shard_queue.admission_queue;
        count(&admission_queue.tally.rejected);
        count(&admission_queue.affinity.no_worker);
        self.refused.push(request);
    }

    /// Admits a request to a free slot of its client's process.
    fn admit_next(&mut self, now: Time) -> Option<AdmissionOutcome<Q>> {
        for assignment in &mut self.assignments {
            if assignment.has_ended || assignment.waiting.is_empty() {
                continue;
            }
            let process_slots = &self.shard_queue.slots_by_process[assignment.process];
            // An attempt to acquire a slot of a closed process would notify this shard again.
            if process_slots.generation() != assignment.generation {
                continue;
            }
            let Some(generation) = process_slots.try_acquire() else { continue };
            if generation != assignment.generation {
                // The process has been replaced since. The resulting notification ends the assignment.
                process_slots.release_unused();
                continue;
            }
            let (ticket, waiting) = assignment.waiting.pop_first()?;
            let slot = (assignment.process, generation);
            return Some(self.shard_queue.admit(slot, ticket, waiting, now));
        }
        None
    }
}

impl<C, Q> Drop for AffinityQueue<C, Q> {
    /// Processes of an ended shard can serve other clients.
    fn drop(&mut self) {
        let assigned = self.assignments.iter().map(|assignment| assignment.waiting.len());
        let waiting = self.unassigned.requests() + assigned.sum::<usize>();
        self.shard_queue.admission_queue.queued.fetch_sub(waiting as u64, Relaxed);
        for assignment in &self.assignments {
            let process_slots = &self.shard_queue.slots_by_process[assignment.process];
            match process_slots.is_empty() {
                true => process_slots.disown(),
                false => process_slots.set_left(),
            }
        }
    }
}

#[cfg(test)]
mod tests;
