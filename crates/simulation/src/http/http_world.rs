//! The world around the first shard: clients, workers, the second shard and the operator. It advances the time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stilling::Overview;
use stilling::parts::{JobOutcome, Lifecycle};
use stilling_ring::Time;
use stilling_workers::{FinishedJob, JobContext, Pool, PoolScaler};

use super::hostile::{HostileClient, HostileStyle};
use super::nats_clients::{NatsTally, SimNatsClient};
use super::parameters::HttpWorldParameters;
use super::well_behaved::{WellBehaved, WellBehavedStyle};
use super::{HttpClientContext, HttpSimShard};
use crate::network::{Address, Network, PeerKey};
use crate::turns::TURNS_AT_ONCE_MAX;

/// All clients must finish within this time after faults stop.
const STARVATION_TIMEOUT: Duration = Duration::from_secs(200);

/// Rate of thread starts refused by the system, per thousand.
const THREAD_REFUSED_RATE: u16 = 100;

const STUCK: Duration = Duration::from_secs(3);

#[allow(clippy::large_enum_variant, reason = "a handful per world")]
pub(super) enum HttpWorldClient {
    WellBehaved(WellBehaved),
    HostileClient(HostileClient),
    SimNatsClient(SimNatsClient),
}

pub(super) struct HttpWorld {
    parameters: HttpWorldParameters,
    network: Network,
    address: Address,
    hub_address: Address,
    clients: Vec<HttpWorldClient>,
    pub(super) nats_tally: NatsTally,
    /// The auditor has been added.
    is_audited: bool,
    pub(super) second: Option<HttpSimShard>,
    pub(super) pool: Pool<JobOutcome>,
    /// Completed jobs, with the time at which their results are delivered.
    working: Vec<(Time, FinishedJob<JobOutcome>)>,
    scaler: Option<PoolScaler<JobOutcome>>,
    /// Next scheduled check of the scaler, unless it is requested earlier.
    scaler_at: Option<Time>,
    lifecycle: Arc<Lifecycle>,
    pub(super) overview: Arc<Overview>,
    draining: bool,
    faults_stopped: bool,
    /// A worker has sent a result to the first shard since its last turn.
    has_mail_for_first_shard: bool,
    changed: Vec<PeerKey>,
    pub(super) answers: u64,
    pub(super) retries: u64,
    pub(super) broken: u64,
    idle_steps: u32,
}

impl HttpWorld {
    #[allow(clippy::too_many_arguments, reason = "a world has many parts")]
    pub(super) fn new(
        parameters: HttpWorldParameters,
        network: Network,
        (address, hub_address): (Address, Address),
        clients: Vec<HttpWorldClient>,
        second: Option<HttpSimShard>,
        pool: Pool<JobOutcome>,
        lifecycle: Arc<Lifecycle>,
        overview: Arc<Overview>,
    ) -> Self {
        let scaler = pool.scaler();
        HttpWorld {
            scaler,
            scaler_at: None,
            parameters,
            network,
            address,
            hub_address,
            clients,
            nats_tally: NatsTally::default(),
            is_audited: false,
            second,
            pool,
            working: Vec::new(),
            lifecycle,
            overview,
            draining: false,
            faults_stopped: false,
            has_mail_for_first_shard: false,
            changed: Vec::new(),
            answers: 0,
            retries: 0,
            broken: 0,
            idle_steps: 0,
        }
    }

    pub(super) fn network(&self) -> Network {
        self.network.clone()
    }

    pub(super) fn queue_max(&self) -> usize {
        self.parameters.pool.queue_max
    }

    pub(super) fn threads_max(&self) -> usize {
        let pool = &self.parameters.pool;
        if pool.scaling.is_enabled() { pool.scaling.threads_max } else { pool.threads }
    }

    /// Called while the first shard sleeps: advances the time to the next event, at most to `limit`, and runs it.
    /// Returns whether there was one.
    pub(super) fn advance(&mut self, limit: Option<Time>) -> Result<bool, String> {
        if std::mem::take(&mut self.has_mail_for_first_shard) {
            return Err("lost wake: the shard sleeps with a worker's result pending".to_owned());
        }
        let next = self.next_event_time();
        let reached = next.filter(|next| limit.is_none_or(|limit| *next <= limit));
        let Some(to) = reached.or(limit) else {
            return Err(format!("deadlock, no event is scheduled: {}", self.unfinished()));
        };
        self.idle_steps = if to > self.network.now() { 0 } else { self.idle_steps + 1 };
        if self.idle_steps > TURNS_AT_ONCE_MAX {
            return Err("too many steps while time stands still".to_owned());
        }
        self.network.advance_to(to);
        self.step_all()?;
        Ok(reached.is_some())
    }

    /// Called after a turn of the first shard: the rest of the world acts at the same time.
    pub(super) fn after_turn(&mut self) -> Result<(), String> {
        self.has_mail_for_first_shard = false;
        self.step_all()
    }

    pub(super) fn is_done(&self) -> bool {
        self.clients.iter().all(HttpWorldClient::is_done)
            && self.working.is_empty()
            && self.pool.counters().queued == 0
    }

    fn next_event_time(&self) -> Option<Time> {
        let clients = self.clients.iter().filter_map(HttpWorldClient::wake_at);
        let work = self.working.iter().map(|(at, _)| *at);
        let second = self.second.as_ref().filter(|shard| !shard.is_stopped());
        let others = [
            self.network.next_event(),
            second.and_then(HttpSimShard::next_deadline),
            self.next_scheduled(),
            self.scaler_at,
        ];
        let next = clients.chain(work).chain(others.into_iter().flatten()).min()?;
        Some(next.max(self.network.now()))
    }

    /// Time of the next scheduled change: the end of faults or the early drain.
    fn next_scheduled(&self) -> Option<Time> {
        let faults_stopped = (!self.faults_stopped).then_some(self.parameters.faults_until);
        let end = self.parameters.early_end.filter(|_| !self.draining);
        [faults_stopped, end].into_iter().flatten().min()
    }

    /// Runs everything that is possible at this point in time.
    fn step_all(&mut self) -> Result<(), String> {
        for _ in 0..TURNS_AT_ONCE_MAX {
            let before = self.network.activity();
            self.apply_schedule()?;
            let stepped = self.step_clients()?;
            let worked = self.work();
            if let Some(second) = self.second.as_mut().filter(|shard| !shard.is_stopped()) {
                second.turn(false).map_err(|error| error.to_string())?;
                second.audit()?;
                if second.is_stopped() {
                    second.service().leave_hub();
                }
            }
            if !stepped && !worked && self.network.activity() == before {
                return Ok(());
            }
        }
        Err("the second shard spins: too many turns while time stands still".to_owned())
    }

    fn apply_schedule(&mut self) -> Result<(), String> {
        let now = self.network.now();
        if now >= self.parameters.faults_until && !std::mem::replace(&mut self.faults_stopped, true) {
            self.network.stop_faults();
        }
        let is_idle = self.clients.iter().all(HttpWorldClient::is_done);
        if is_idle
            && self.parameters.has_nats_clients
            && !self.draining
            && !std::mem::replace(&mut self.is_audited, true)
        {
            self.clients.push(HttpWorldClient::SimNatsClient(SimNatsClient::auditor(now)));
        }
        let early = self.parameters.early_end.is_some_and(|at| now >= at);
        if !self.draining && (early || self.clients.iter().all(HttpWorldClient::is_done)) {
            self.draining = true;
            self.lifecycle.end();
        }
        if now > self.parameters.faults_until.after(STARVATION_TIMEOUT) {
            return Err(format!("a client starves: {}", self.unfinished()));
        }
        Ok(())
    }

    /// Steps the clients with changes; returns whether there were any.
    fn step_clients(&mut self) -> Result<bool, String> {
        let now = self.network.now();
        self.network.take_changed(&mut self.changed);
        let changed = std::mem::take(&mut self.changed);
        let mut any = false;
        for client in &mut self.clients {
            let due = client.wake_at().is_some_and(|at| at <= now);
            if !due && client.key().is_none_or(|key| changed.binary_search(&key).is_err()) {
                continue;
            }
            any = true;
            let mut client_context = HttpClientContext {
                network: &self.network,
                now,
                address: &self.address,
                hub_address: &self.hub_address,
                nats_tally: &mut self.nats_tally,
                random: &mut self.parameters.random,
                draining: self.draining,
                is_short_of_memory: self.parameters.is_short_of_memory,
                has_workers: self.parameters.pool.threads > 0,
                answers: 0,
                retries: 0,
                broken: 0,
            };
            match client {
                HttpWorldClient::WellBehaved(client) => client.step(&mut client_context)?,
                HttpWorldClient::HostileClient(client) => client.step(&mut client_context)?,
                HttpWorldClient::SimNatsClient(client) => client.step(&mut client_context)?,
            }
            self.answers += client_context.answers;
            self.retries += client_context.retries;
            self.broken += client_context.broken;
        }
        self.changed = changed;
        self.changed.clear();
        Ok(any)
    }

    fn work(&mut self) -> bool {
        let now = self.network.now();
        let mut any = false;
        while let Some(place) = self.working.iter().position(|(at, _)| *at <= now) {
            let (_, finished) = self.working.remove(place);
            self.has_mail_for_first_shard |= finished.submitter() == 0;
            finished.deliver();
            any = true;
        }
        loop {
            any |= self.run_scaler(now);
            if self.working.len() as u64 >= self.pool.counters().threads {
                break;
            }
            let Some(job) = self.pool.take_job() else { break };
            let mut context = JobContext::simulated();
            let finished = job.run(&mut context);
            let random = &mut self.parameters.random;
            let slept = context.take_slept();
            // A job that did not sleep (it expired or panicked) cannot be stuck.
            let stuck = !slept.is_zero() && random.chance(self.parameters.stuck_rate);
            let extra =
                Duration::from_micros(random.between(1, 500)) + if stuck { STUCK } else { Duration::ZERO };
            self.working.push((now.after(slept + extra), finished));
            any = true;
        }
        // Idle workers may end if the pool is larger than its target.
        while self.pool.counters().threads > self.working.len() as u64 && self.pool.retire() {}
        any
    }

    /// Runs the scaler, with thread starts that sometimes fail; returns whether it had work.
    fn run_scaler(&mut self, now: Time) -> bool {
        let Some(scaler) = &mut self.scaler else { return false };
        if !scaler.is_scale_requested() && self.scaler_at.is_none_or(|at| at > now) {
            return false;
        }
        let random = &mut self.parameters.random;
        self.scaler_at = scaler.scale(|| match random.chance(THREAD_REFUSED_RATE) {
            true => Err(std::io::ErrorKind::WouldBlock.into()),
            false => Ok(()),
        });
        true
    }

    pub(super) fn unfinished(&self) -> String {
        let mut names = Vec::new();
        for client in self.clients.iter().filter(|client| !client.is_done()) {
            names.push(match client {
                HttpWorldClient::WellBehaved(client) => client.failure_message("is not finished"),
                HttpWorldClient::HostileClient(client) => format!("{:?}", client.style),
                HttpWorldClient::SimNatsClient(client) => client.failure_message("is not finished"),
            });
        }
        let (jobs, draining) = (self.working.len(), self.draining);
        format!("draining: {draining}, jobs running: {jobs}, clients:\n{}", names.join("\n"))
    }

    pub(super) fn styles(&self) -> (BTreeMap<WellBehavedStyle, u32>, BTreeMap<HostileStyle, u32>) {
        let (mut styles, mut hostile_styles) = (BTreeMap::new(), BTreeMap::new());
        for client in &self.clients {
            match client {
                HttpWorldClient::WellBehaved(client) => *styles.entry(client.style).or_default() += 1,
                HttpWorldClient::HostileClient(client) => {
                    *hostile_styles.entry(client.style).or_default() += 1;
                }
                HttpWorldClient::SimNatsClient(_) => {}
            }
        }
        (styles, hostile_styles)
    }
}

impl HttpWorldClient {
    fn key(&self) -> Option<PeerKey> {
        match self {
            HttpWorldClient::WellBehaved(client) => client.key(),
            HttpWorldClient::HostileClient(client) => client.key(),
            HttpWorldClient::SimNatsClient(client) => client.key(),
        }
    }

    fn wake_at(&self) -> Option<Time> {
        match self {
            HttpWorldClient::WellBehaved(client) => client.wake_at(),
            HttpWorldClient::HostileClient(client) => client.wake_at(),
            HttpWorldClient::SimNatsClient(client) => client.wake_at(),
        }
    }

    fn is_done(&self) -> bool {
        match self {
            HttpWorldClient::WellBehaved(client) => client.is_done(),
            HttpWorldClient::HostileClient(client) => client.is_done(),
            HttpWorldClient::SimNatsClient(client) => client.is_done(),
        }
    }
}
