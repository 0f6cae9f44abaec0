//! The world around the shard: clients, processes, the stranger and the operator. It advances the time.

use std::sync::Arc;
use std::time::Duration;

use stilling::Overview;
use stilling::parts::Lifecycle;
use stilling_ring::Time;
use stilling_workers::processes::SimulatedProcesses;

use super::CoapTotals;
use super::client::{CoapClientContext, CoapWorldClient};
use super::ledger::Ledger;
use super::observer::{ObserverContext, SimulatedObserver};
use super::parameters::CoapWorldParameters;
use super::process::{ProcessContext, SimulatedProcess};
use crate::network::{Network, SimDatagramPeer};
use crate::turns::TURNS_AT_ONCE_MAX;

/// Time from the end of faults until their consequences have ended: processes have been started again, and slots whose
/// requests were overdue are free.
const CALM_AFTER: Duration = Duration::from_secs(200);

/// Longest work of a process once faults have stopped, in milliseconds: less than any timeout.
const CALM_WORK_MS_MAX: u64 = 500;

/// All clients must have their last answer within this time of calm.
const STARVATION_TIMEOUT: Duration = Duration::from_secs(6000);

/// Bytes of a stranger's datagram at most.
const STRANGE_SIZE_MAX: u64 = 80;
/// Longest pause between two of them, in milliseconds.
const STRANGE_PAUSE_MS_MAX: u64 = 3000;

/// What the world acts with.
pub(super) struct CoapWorldParts {
    pub(super) clients: Vec<CoapWorldClient>,
    pub(super) observers: Vec<SimulatedObserver>,
    pub(super) processes: Vec<SimulatedProcess>,
    pub(super) slots: SimulatedProcesses,
    pub(super) lifecycle: Arc<Lifecycle>,
    pub(super) overview: Arc<Overview>,
}

/// Sends random bytes.
struct Stranger {
    peer: SimDatagramPeer,
    remaining: u32,
    next_at: Time,
}

pub(super) struct CoapWorld {
    parameters: CoapWorldParameters,
    network: Network,
    pub(super) parts: CoapWorldParts,
    stranger: Stranger,
    pub(super) ledger: Ledger,
    pub(super) totals: CoapTotals,
    has_stopped_faults: bool,
    is_draining: bool,
    idle_steps: u32,
}

impl CoapWorld {
    pub(super) fn new(parameters: CoapWorldParameters, network: Network, parts: CoapWorldParts) -> CoapWorld {
        let peer = network.bind_as_peer("127.0.0.1:9".parse().expect("an address"));
        let stranger = Stranger { peer, remaining: parameters.strange_datagrams, next_at: Time::ZERO };
        CoapWorld {
            ledger: Ledger::new(parameters.change_interval_ms),
            parameters,
            network,
            parts,
            stranger,
            totals: CoapTotals::default(),
            has_stopped_faults: false,
            is_draining: false,
            idle_steps: 0,
        }
    }

    pub(super) fn network(&self) -> Network {
        self.network.clone()
    }

    /// Called while the shard sleeps: advances the time to the next event, at most to `limit`, and runs it. Returns
    /// whether there was one.
    pub(super) fn advance(&mut self, limit: Option<Time>) -> Result<bool, String> {
        // A process gets at once what the shard has sent in this turn.
        if self.step()? {
            return Ok(true);
        }
        let next = self.next_event();
        let reached = next.filter(|next| limit.is_none_or(|limit| *next <= limit));
        let Some(to) = reached.or(limit) else {
            return Err(format!("deadlock, no event is scheduled: {}", self.unfinished()));
        };
        self.idle_steps = if to > self.network.now() { 0 } else { self.idle_steps + 1 };
        if self.idle_steps > TURNS_AT_ONCE_MAX {
            return Err(format!("too many steps while time stands still: {}", self.unfinished()));
        }
        self.network.advance_to(to);
        self.step()?;
        Ok(reached.is_some())
    }

    fn next_event(&self) -> Option<Time> {
        let CoapWorldParts { clients, observers, processes, .. } = &self.parts;
        let stranger = (self.stranger.remaining > 0).then_some(self.stranger.next_at);
        let others = [self.network.next_event(), self.next_scheduled(), self.ledger.changes_at(), stranger];
        let clients = clients.iter().filter(|_| !self.is_draining).filter_map(CoapWorldClient::wake_at);
        let observers = observers.iter().filter(|_| !self.is_draining);
        let observers = observers.filter_map(|observer| observer.wake_at(!self.has_stopped_faults));
        let processes = processes.iter().filter_map(SimulatedProcess::wake_at);
        let next = clients.chain(observers).chain(processes).chain(others.into_iter().flatten()).min()?;
        Some(next.max(self.network.now()))
    }

    /// The end of faults, or the early drain.
    fn next_scheduled(&self) -> Option<Time> {
        let faults = (!self.has_stopped_faults).then_some(self.parameters.faults_until);
        let end = self.parameters.early_end.filter(|_| !self.is_draining);
        faults.into_iter().chain(end).min()
    }

    /// Runs everything that is possible at this point in time. Returns whether there was anything.
    pub(super) fn step(&mut self) -> Result<bool, String> {
        for round in 0..TURNS_AT_ONCE_MAX {
            self.apply_schedule()?;
            self.step_stranger();
            let stepped = self.step_clients()? | self.step_observers()?;
            if !self.step_processes()? && !stepped {
                return Ok(round > 0);
            }
        }
        Err(format!("the world spins: {}", self.unfinished()))
    }

    fn apply_schedule(&mut self) -> Result<(), String> {
        let now = self.network.now();
        self.ledger.step(now, &mut self.parameters.random);
        if now >= self.parameters.faults_until && !std::mem::replace(&mut self.has_stopped_faults, true) {
            self.network.stop_faults();
            self.ledger.stop_changes();
            self.parameters.misbehaviour = 0;
            self.parameters.work_ms_max = self.parameters.work_ms_max.min(CALM_WORK_MS_MAX);
        }
        let is_early = self.parameters.early_end.is_some_and(|at| now >= at);
        let CoapWorldParts { clients, observers, .. } = &self.parts;
        let is_done =
            clients.iter().all(CoapWorldClient::is_done) && observers.iter().all(SimulatedObserver::is_done);
        if !self.is_draining && (is_early || is_done) {
            self.is_draining = true;
            self.parts.lifecycle.end();
        }
        if !self.is_draining && now > self.calm_from().after(STARVATION_TIMEOUT) {
            return Err(format!("a client starves: {}", self.unfinished()));
        }
        Ok(())
    }

    fn calm_from(&self) -> Time {
        self.parameters.faults_until.after(CALM_AFTER)
    }

    fn step_stranger(&mut self) {
        let (now, random) = (self.network.now(), &mut self.parameters.random);
        while self.stranger.peer.receive().is_some() {}
        if self.stranger.remaining > 0 && self.stranger.next_at <= now {
            let mut bytes: Vec<u8> =
                (0..random.below(STRANGE_SIZE_MAX)).map(|_| random.bits() as u8).collect();
            if let Some(first) = bytes.first_mut().filter(|_| random.chance(700)) {
                // The right version: more than the header is decoded.
                *first = 0x40 | *first & 0x3f;
            }
            let server = ([10, 0, 0, 1], 5683).into();
            // A short datagram is never refused.
            let _ = self.stranger.peer.send(server, &bytes);
            self.stranger.remaining -= 1;
            self.stranger.next_at = now.after(Duration::from_millis(random.between(1, STRANGE_PAUSE_MS_MAX)));
        }
    }

    fn step_clients(&mut self) -> Result<bool, String> {
        let calm_from = self.calm_from();
        let mut context = CoapClientContext {
            now: self.network.now(),
            ledger: &self.ledger,
            totals: &mut self.totals,
            calm_from,
        };
        let mut any = false;
        for client in self.parts.clients.iter_mut().filter(|_| !self.is_draining) {
            any |= client.step(&mut context)?;
        }
        Ok(any)
    }

    fn step_observers(&mut self) -> Result<bool, String> {
        let now = self.network.now();
        let is_calm = now >= self.calm_from();
        let has_faults = !self.has_stopped_faults;
        let mut context = ObserverContext { now, totals: &mut self.totals, has_faults, is_calm };
        let mut any = false;
        for observer in self.parts.observers.iter_mut().filter(|_| !self.is_draining) {
            any |= observer.step(&mut context)?;
        }
        Ok(any)
    }

    fn step_processes(&mut self) -> Result<bool, String> {
        let CoapWorldParts { processes, slots, .. } = &mut self.parts;
        let mut context = ProcessContext {
            now: self.network.now(),
            network: &self.network,
            slots,
            ledger: &mut self.ledger,
            random: &mut self.parameters.random,
            misbehaviour: self.parameters.misbehaviour,
            work_ms_max: self.parameters.work_ms_max,
            deaths: &mut self.totals.deaths,
        };
        let mut any = false;
        for process in processes {
            any |= process.step(&mut context)?;
        }
        Ok(any)
    }

    pub(super) fn unfinished(&self) -> String {
        let clients = self.parts.clients.iter().filter(|client| !client.is_done());
        let observers = self.parts.observers.iter().filter(|observer| !observer.is_done());
        let clients = clients.map(CoapWorldClient::describe);
        let clients: Vec<String> = clients.chain(observers.map(SimulatedObserver::describe)).collect();
        let requests = self.parts.slots.requests();
        format!("{requests:?}\n{}", clients.join("\n"))
    }
}
