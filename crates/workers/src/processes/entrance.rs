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

use super::door::Door;
use super::hall::{Hall, NOBODY};
use super::slot::Pass;
use crate::counters::count;
use crate::target::Standing;

/// Where in its shard's queue a request waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket {
    since: Time,
    number: u64,
}

/// What has become of a request that waited.
#[derive(Debug)]
pub enum Called<Q> {
    /// It may be asked, with this permission.
    In(Pass, Q),
    /// It has waited too long, or too long in a queue that stands.
    Expired(Q),
}

/// A shard's way to the slots, and the queue before them.
#[derive(Debug)]
pub struct Entrance<Q> {
    hall: Arc<Hall>,
    doors: Arc<[Arc<Door>]>,
    number: usize,
    waiting: BTreeMap<Ticket, Q>,
    /// Requests so far.
    count: u64,
    standing: Option<Standing>,
}

impl<Q> Entrance<Q> {
    pub(super) fn new(hall: &Arc<Hall>, doors: &Arc<[Arc<Door>]>, number: usize) -> Entrance<Q> {
        Entrance {
            standing: hall.limits.target.map(Standing::new),
            hall: Arc::clone(hall),
            doors: Arc::clone(doors),
            number,
            waiting: BTreeMap::new(),
            count: 0,
        }
    }

    /// Queues a request; [`call`](Self::call) says when its turn has come.
    ///
    /// # Errors
    /// The request comes back: as many wait as may.
    pub fn wait(&mut self, now: Time, what: Q) -> Result<Ticket, Q> {
        let before = self.hall.queued.fetch_add(1, Relaxed);
        if before >= self.hall.limits.queue_max as u64 {
            self.hall.queued.fetch_sub(1, Relaxed);
            count(&self.hall.tally.refused);
            return Err(what);
        }
        self.hall.tally.queued_max.fetch_max(before + 1, Relaxed);
        self.count += 1;
        let ticket = Ticket { since: now, number: self.count };
        self.waiting.insert(ticket, what);
        if self.waiting.len() == 1 {
            self.tell();
        }
        Ok(ticket)
    }

    /// Queues a request that was taken before in vain at its old place, however many wait.
    pub fn wait_again(&mut self, ticket: Ticket, what: Q) {
        self.hall.queued.fetch_add(1, Relaxed);
        self.waiting.insert(ticket, what);
        self.tell();
    }

    /// Takes a request out of the queue that is not to be asked any more: it is answered otherwise, because it has
    /// waited too long or for another reason.
    pub fn withdraw(&mut self, ticket: Ticket, is_late: bool) -> Option<Q> {
        let what = self.waiting.remove(&ticket)?;
        self.hall.queued.fetch_sub(1, Relaxed);
        if is_late {
            count(&self.hall.tally.taken);
            count(&self.hall.tally.expired);
        } else {
            count(&self.hall.tally.cancelled);
        }
        self.tell();
        self.pass_on();
        Some(what)
    }

    /// The next request of this shard whose turn it is, if one's is. `is_kept` tells of which processes the shard has
    /// a connection to use: of processes that are equally busy one of these is taken.
    pub fn call(&mut self, now: Time, is_kept: impl Fn(usize) -> bool) -> Option<Called<Q>> {
        let (ticket, _) = self.waiting.first_key_value()?;
        let since = ticket.since;
        if self.hall.first() != Some(self.number) {
            self.pass_on();
            return None;
        }
        let (door, life) = self.enter(is_kept)?;
        let (_, what) = self.waiting.pop_first()?;
        self.hall.queued.fetch_sub(1, Relaxed);
        self.tell();
        let tally = &self.hall.tally;
        count(&tally.taken);
        let waited = now.since(since);
        tally.wait_nanos.fetch_add(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        let service = tally.service_mean();
        let is_shed = self.standing.as_mut().is_some_and(|standing| standing.sheds(now, waited, service));
        if is_shed {
            count(&tally.shed);
        }
        if is_shed || waited > self.hall.limits.age_max {
            count(&tally.expired);
            // The knock that this leads to calls the next one.
            self.doors[door].come_out();
            return Some(Called::Expired(what));
        }
        self.pass_on();
        Some(Called::In(Pass::new(Arc::clone(&self.doors[door]), life, now), what))
    }

    /// Whether somebody has knocked since the last [`heed`](Self::heed): the last look before the shard sleeps.
    #[must_use]
    pub fn is_called(&self) -> bool {
        self.hall.places[self.number].knocked.load(SeqCst)
    }

    /// Whether somebody has knocked since the last call: then requests may be called, processes have come or gone, or
    /// connections are wanted.
    pub fn heed(&self) -> bool {
        self.is_called() && self.hall.places[self.number].knocked.swap(false, SeqCst)
    }

    /// How many shards have a slot of this process and no room for a connection, because others keep theirs: one of
    /// these should be closed for each.
    #[must_use]
    pub fn wanted(&self, process: usize) -> u32 {
        self.doors[process].claims()
    }

    /// The life of a process that takes requests now; 0: none does.
    #[must_use]
    pub fn life(&self, process: usize) -> u64 {
        self.doors[process].life()
    }

    /// Processes there are.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.doors.len()
    }

    /// Goes in at the door with the fewest inside.
    fn enter(&self, is_kept: impl Fn(usize) -> bool) -> Option<(usize, u64)> {
        loop {
            let open = self.doors.iter().enumerate().filter_map(|(at, door)| Some((door.load()?, at)));
            let (_, _, at) = open.map(|(load, at)| (load, !is_kept(at), at)).min()?;
            // Somebody may have been faster.
            if let Some(life) = self.doors[at].try_enter() {
                return Some((at, life));
            }
        }
    }

    /// Goes in at one door, without having waited.
    #[cfg(test)]
    pub(super) fn enter_at(&self, process: usize, now: Time) -> Option<Pass> {
        let door = &self.doors[process];
        let life = door.try_enter()?;
        count(&self.hall.tally.taken);
        Some(Pass::new(Arc::clone(door), life, now))
    }

    /// Tells the others since when the oldest waits.
    fn tell(&self) {
        let oldest = self.waiting.first_key_value().map_or(NOBODY, |(ticket, _)| ticket.since.as_nanos());
        let place = &self.hall.places[self.number];
        // Only this shard writes it.
        if place.oldest.load(Relaxed) != oldest {
            place.oldest.store(oldest, SeqCst);
        }
    }

    /// If there is room it may be another shard's turn now.
    fn pass_on(&self) {
        if let Some(first) = self.hall.first()
            && first != self.number
            && self.doors.iter().any(|door| door.load().is_some())
        {
            self.hall.places[first].knock();
        }
    }
}

impl<Q> Drop for Entrance<Q> {
    /// Whoever waited behind a shard that has ended goes on.
    fn drop(&mut self) {
        self.hall.queued.fetch_sub(self.waiting.len() as u64, Relaxed);
        self.waiting.clear();
        self.tell();
        self.pass_on();
    }
}
