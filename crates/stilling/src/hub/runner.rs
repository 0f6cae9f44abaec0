//! Runs the hub: carries intakes in and deliveries out, turn by turn, on a thread of its own or in shard 0.

use std::sync::Arc;
use std::time::Duration;

use stilling_hub::limits::{DELIVERIES, INTAKES, SUBSCRIPTIONS_PER_CLIENT_MAX};
use stilling_hub::{HashKey, Hub, Intake, Now, Outlets, Routed, ShardTable, SteadyNanos, Storage};
use stilling_ring::{Receiver, Sender, Wake, mailbox};

use super::limits::{HUB_WAIT_MAX, OPEN_LOOK};
use super::port::Port;
use crate::lifecycle::{Lifecycle, Stage};
use crate::log::Log;

/// Where deliveries go, and come back from.
pub(crate) struct Mailboxes {
    ways: Vec<Way>,
}

struct Way {
    pieces: Sender<Routed>,
    emptied: Receiver<Routed>,
    wake: Arc<Wake>,
}

impl Outlets for Mailboxes {
    fn swap(&mut self, shard: usize, piece: &mut Routed) -> bool {
        let way = &mut self.ways[shard];
        let Some(empty) = way.emptied.pop() else { return false };
        // There is a place for every piece there is.
        let _ = way.pieces.push(std::mem::replace(piece, empty));
        true
    }

    fn is_gone(&self, shard: usize) -> bool {
        self.ways[shard].emptied.is_closed()
    }
}

/// What comes from one shard.
struct Inlet {
    intakes: Receiver<Intake>,
    returned: Sender<Intake>,
    /// The intake that is being dealt with, and how far.
    current: Option<(Intake, usize)>,
}

/// The hub and its mailboxes.
pub(crate) struct Runner<S: Storage> {
    hub: Hub<S, Mailboxes>,
    inlets: Vec<Inlet>,
    /// Which shard is the first of the next turn.
    first: usize,
    /// The hub does not take anything yet.
    gate: Option<StartGate<S>>,
    log: Option<Log>,
}

/// What keeps a hub from beginning: streams that the server before this one has not released yet.
pub(crate) struct StartGate<S> {
    pub(crate) lifecycle: Arc<Lifecycle>,
    /// Whether the storage has come to something.
    pub(crate) is_open: fn(&S) -> bool,
    /// Has the storage refuse instead of waiting: the hub begins without it.
    pub(crate) give_up: fn(&mut S),
    /// Since when this process is the server.
    pub(crate) since_ns: Option<SteadyNanos>,
}

impl<S> StartGate<S> {
    fn opens(&mut self, storage: &mut S, now_ns: SteadyNanos) -> bool {
        if (self.is_open)(storage) {
            return true;
        }
        if !self.lifecycle.has_reached(Stage::Alone) {
            return false;
        }
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        if u128::from(now_ns.since(since_ns)) < HUB_WAIT_MAX.as_nanos() {
            return false;
        }
        (self.give_up)(storage);
        true
    }
}

/// The mailboxes between a hub and its shards: each shard's port, and what the runner is made of.
pub(crate) fn connect(shards: &[Arc<Wake>], hub: &Arc<Wake>, key: HashKey) -> (Vec<Port>, Mailboxes, Inlets) {
    let mut ports = Vec::new();
    let (mut ways, mut inlets) = (Vec::new(), Vec::new());
    for wake in shards {
        let (intakes, to_hub) = mailbox(INTAKES);
        let (mut returned, from_hub) = mailbox(INTAKES);
        let (pieces, to_shard) = mailbox(DELIVERIES);
        let (mut emptied, from_shard) = mailbox(DELIVERIES);
        for _ in 0..INTAKES {
            let _ = returned.push(Intake::new());
        }
        returned.publish();
        for _ in 0..DELIVERIES {
            let _ = emptied.push(Routed::new());
        }
        emptied.publish();
        let table = ShardTable::new(key, SUBSCRIPTIONS_PER_CLIENT_MAX);
        ports.push(Port::new((intakes, from_hub), (to_shard, emptied), table, Arc::clone(hub)));
        ways.push(Way { pieces, emptied: from_shard, wake: Arc::clone(wake) });
        inlets.push(Inlet { intakes: to_hub, returned, current: None });
    }
    (ports, Mailboxes { ways }, Inlets(inlets))
}

/// The runner's ends of what comes from the shards.
pub(crate) struct Inlets(Vec<Inlet>);

impl<S: Storage> Runner<S> {
    pub(crate) fn new(hub: Hub<S, Mailboxes>, Inlets(inlets): Inlets, log: Option<Log>) -> Runner<S> {
        Runner { hub, inlets, first: 0, gate: None, log }
    }

    /// The same, for a hub that takes nothing before the gate opens.
    pub(crate) fn behind(self, gate: StartGate<S>) -> Runner<S> {
        Runner { gate: Some(gate), ..self }
    }

    /// Does what there is to do now.
    pub(crate) fn turn(&mut self, now: Now) {
        if let Some(gate) = &mut self.gate {
            if !gate.opens(self.hub.storage_mut(), now.steady_ns) {
                return;
            }
            gate.lifecycle.hub_begins();
            self.gate = None;
        }
        self.hub.absorb(now);
        let count = self.inlets.len();
        // At most what the shards can have handed over when it began, so that one that is turned by a shard comes to its end.
        for round in 0..INTAKES {
            let mut has_moved = false;
            for at in 0..count {
                let number = (self.first + round + at) % count;
                has_moved |= self.take_from(number, now);
            }
            if !has_moved {
                break;
            }
        }
        self.first = (self.first + 1) % count.max(1);
        self.hub.flush();
        while let Some(line) = self.hub.next_notice() {
            if let Some(log) = &mut self.log {
                log.line(line);
                self.hub.counters().log_lines_dropped.set(log.dropped());
            }
        }
        for (inlet, way) in self.inlets.iter_mut().zip(&mut self.hub.outlets_mut().ways) {
            let has_returned = inlet.returned.publish();
            if way.pieces.publish() || has_returned {
                way.wake.notify();
            }
        }
    }

    /// Deals with one intake of a shard. Returns whether it came to its end.
    fn take_from(&mut self, shard: usize, now: Now) -> bool {
        let inlet = &mut self.inlets[shard];
        let Some((mut intake, at)) = inlet.current.take().or_else(|| Some((inlet.intakes.pop()?, 0))) else {
            return false;
        };
        let at = self.hub.take(shard, &intake, at, now);
        let inlet = &mut self.inlets[shard];
        if at < intake.len() {
            inlet.current = Some((intake, at));
            return false;
        }
        intake.clear();
        // There is a place for every intake there is.
        let _ = inlet.returned.push(intake);
        true
    }

    /// Whether there is nothing to do until somebody wakes the hub; asked after [`Wake::park`], it misses nothing.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_stuck = |inlet: &Inlet| inlet.current.is_some() || inlet.intakes.is_empty();
        if self.gate.is_some() {
            return self.hub.is_quiet();
        }
        let is_full = |(shard, way): (usize, &Way)| way.emptied.is_empty() || !self.hub.has_unsent(shard);
        let ways = &self.hub.outlets().ways;
        self.hub.is_quiet() && self.inlets.iter().all(is_stuck) && ways.iter().enumerate().all(is_full)
    }

    /// How long it may sleep although nobody wakes it.
    pub(crate) fn looks_again_in(&self) -> Option<Duration> {
        if self.gate.is_some() {
            return Some(OPEN_LOOK);
        }
        self.hub.looks_again_in()
    }

    /// Whether nothing that was asked for will ever be done, or has to be.
    fn is_abandoned(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.lifecycle.hub_is_abandoned())
    }

    /// Whether all shards are gone, and all that they had asked for is done and durable.
    pub(crate) fn is_done(&self) -> bool {
        let is_gone =
            |inlet: &Inlet| inlet.current.is_none() && inlet.intakes.is_closed() && inlet.intakes.is_empty();
        self.is_abandoned() || self.gate.is_none() && self.inlets.iter().all(is_gone) && self.hub.is_settled()
    }

    /// The same without the shard that turns it.
    pub(crate) fn is_done_but_for(&self, shard: usize) -> bool {
        let is_gone = |(number, inlet): (usize, &Inlet)| {
            // Asked first: what is there afterwards is all there will be.
            inlet.current.is_none()
                && (number == shard || inlet.intakes.is_closed())
                && inlet.intakes.is_empty()
        };
        self.is_abandoned()
            || self.gate.is_none() && self.inlets.iter().enumerate().all(is_gone) && self.hub.is_settled()
    }

    /// Runs the hub on this thread until all shards are gone.
    pub(crate) fn run(&mut self, wake: &Wake, now: impl Fn() -> Now) {
        loop {
            self.turn(now());
            if !self.is_quiet() {
                continue;
            }
            if self.is_done() {
                return;
            }
            wake.park();
            if self.is_quiet() && !self.is_done() {
                match self.looks_again_in() {
                    Some(span) => std::thread::park_timeout(span),
                    None => std::thread::park(),
                }
            }
            wake.unpark();
        }
    }
}

#[cfg(test)]
mod tests;
