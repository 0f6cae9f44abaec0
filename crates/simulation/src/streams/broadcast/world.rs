//! The world's scheduler: runs clients, server, disks and operator.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::time::Duration;

use stilling::settings::{SlowSubscribers, StreamConfig};
use stilling_journal::disk::simulated::{DiskFaults, EIO, SimulatedDisk};
use stilling_ring::Time;

use super::client::{BroadcastClient, BroadcastRole, BroadcastTask};
use super::ledger::BroadcastLedger;
use super::message::{GATED_DISK, ON_DISK};
use super::parameters::{self, BroadcastParameters, BroadcastRun, BroadcastRunEnd, ShardStall};
use super::{BroadcastReport, BroadcastTotals};
use crate::SplitMix64;
use crate::network::{Address, Network, PeerKey};
use crate::report::RunReport;
use crate::streams::damage::{AlteredDisk, DiskDamage};
use crate::streams::disks::{self, ServerCrash};
use crate::streams::server::{self, HTTP, NATS, ServerPlan, StreamsServer};

/// Rounds while time stands still; more count as spinning.
const ROUNDS_AT_ONCE_MAX: u32 = 50_000;

/// Longest time of the last run.
const LAST_RUN_MAX: Duration = Duration::from_secs(300);

/// Bytes that may wait for one connection, or for all of a shard, before one counts as slow (`docs/limits.md`): 15/16 of
/// 16 MiB, which are a quarter of `--max-output-held`.
const PENDING_MIN: usize = 15 * 1024 * 1024;

/// Bytes that a shard held before or after a turn in which it disconnected a slow consumer because of `--max-output-held`,
/// 64 MiB: at least so many, because the last connection held at most 16 MiB.
const HELD_MIN: u64 = 48 * 1024 * 1024;

/// Latest start of a client, in microseconds.
const START_MAX: u64 = 100_000;

/// The world as seen by one client during a step.
pub(super) struct BroadcastContext<'a> {
    pub(super) network: &'a Network,
    pub(super) now: Time,
    pub(super) nats: &'a Address,
    pub(super) http: &'a Address,
    pub(super) ledger: &'a mut BroadcastLedger,
    pub(super) random: &'a mut SplitMix64,
    pub(super) totals: &'a mut BroadcastTotals,
    /// Increases when a server starts and when it is requested to end.
    pub(super) generation: u32,
    /// Number of the server's run.
    pub(super) run: u32,
    /// A server accepts and has not been requested to end.
    pub(super) is_served: bool,
    /// All publishers are done; subscribers come up to date.
    pub(super) is_last_phase: bool,
    /// The server disconnects slow subscribers, or has little room for unsent output.
    pub(super) may_close_anyone: bool,
    /// The server has disconnected slow consumers.
    pub(super) has_slow_consumers: bool,
}

struct BroadcastWorld {
    random: SplitMix64,
    network: Network,
    plan: ServerPlan,
    nats: Address,
    http: Address,
    disks: Vec<SimulatedDisk>,
    ledger: BroadcastLedger,
    clients: Vec<BroadcastClient>,
    /// Runs before the last, the next one at the end.
    runs: Vec<BroadcastRun>,
    phase: BroadcastPhase,
    stage: LastStage,
    may_close_anyone: bool,
    /// This run of the server has disconnected a slow consumer.
    has_slow_consumers: bool,
    run: u32,
    generation: u32,
    totals: BroadcastTotals,
    changed: Vec<PeerKey>,
}

enum BroadcastPhase {
    Down {
        until: Time,
    },
    Serving(StreamsServer, RunProgress),
    /// Requested to end; `None`: for the last time.
    Draining(StreamsServer, Time, Option<BroadcastRun>),
    Over,
}

struct RunProgress {
    started_at: Time,
    /// `None`: the last run.
    run: Option<BroadcastRun>,
    /// Events of the gated disk that have been searched for a snapshot.
    recorded: usize,
}

/// Stages of the last run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastStage {
    /// Publishers publish.
    Publishing,
    /// Subscribers come up to date.
    CatchingUp,
    /// The last publishers publish to subscribers that are up to date.
    Following,
}

pub(super) fn play(
    seed: u64,
    verbose: bool,
    keep: &RefCell<Option<Network>>,
) -> Result<BroadcastReport, String> {
    let mut random = SplitMix64::new(seed);
    let BroadcastParameters { network, plan, has_retention, may_skip, publishers, subscribers, mut runs } =
        BroadcastParameters::draw(seed, &mut random);
    let network = Network::new(random.bits(), network);
    *keep.borrow_mut() = Some(network.clone());
    if verbose {
        network.record_text();
    }
    runs.reverse();
    let publishers = publishers.into_iter().map(BroadcastTask::Publisher);
    let tasks = publishers.chain(subscribers.into_iter().map(BroadcastTask::Subscriber));
    let clients = tasks
        .map(|task| {
            let start = Time::ZERO.after(Duration::from_micros(random.below(START_MAX)));
            BroadcastClient::new(BroadcastRole::new(task), start)
        })
        .collect();
    let address = |text: &str| Address::Tcp(text.parse().expect("an address"));
    let has_policy = |stream: &StreamConfig| stream.slow_subscribers == SlowSubscribers::Disconnect;
    let may_close_anyone = plan.output_bytes_max.is_some() || plan.streams.iter().any(has_policy);
    let ledger = BroadcastLedger::new(has_retention, may_skip, plan.segment_size);
    let mut world = BroadcastWorld {
        random,
        network,
        plan,
        nats: address(NATS),
        http: address(HTTP),
        disks: (0..ON_DISK).map(|_| SimulatedDisk::recording()).collect(),
        ledger,
        clients,
        runs,
        phase: BroadcastPhase::Down { until: Time::ZERO },
        stage: LastStage::Publishing,
        may_close_anyone,
        has_slow_consumers: false,
        run: 0,
        generation: 0,
        totals: BroadcastTotals::default(),
        changed: Vec::new(),
    };
    while !matches!(world.phase, BroadcastPhase::Over) {
        world.run_now()?;
        world.advance()?;
    }
    world.report()
}

impl BroadcastWorld {
    /// Runs everything that is possible at this point in time.
    fn run_now(&mut self) -> Result<(), String> {
        for _ in 0..ROUNDS_AT_ONCE_MAX {
            let now = self.network.now();
            let mut any = self.step_server(now)?;
            any |= self.step_clients(now)?;
            if let BroadcastPhase::Serving(server, _) | BroadcastPhase::Draining(server, ..) = &mut self.phase
            {
                any |= server.run(now, &mut self.random)?;
                if let Some(held) = server.take_slow_consumer() {
                    self.check_slow_consumer(held)?;
                }
            }
            if !any || matches!(self.phase, BroadcastPhase::Over) {
                return Ok(());
            }
        }
        Err("too many rounds while time stands still".to_owned())
    }

    /// Checks that a shard which held so many bytes had to disconnect a slow consumer.
    fn check_slow_consumer(&mut self, held: u64) -> Result<(), String> {
        self.has_slow_consumers = true;
        if self.may_close_anyone {
            return Ok(());
        }
        let clients = std::mem::take(&mut self.clients);
        let context = self.context();
        let pending: Vec<usize> = clients.iter().map(|client| client.role.pending_max(&context)).collect();
        self.clients = clients;
        let is_one_full = pending.iter().any(|size| *size > PENDING_MIN);
        let all = pending.iter().sum::<usize>();
        if is_one_full || held >= HELD_MIN && all > PENDING_MIN {
            return Ok(());
        }
        Err(format!("a slow consumer was disconnected while {held} bytes were held; at most {all} waited"))
    }

    fn advance(&mut self) -> Result<(), String> {
        let server = match &self.phase {
            BroadcastPhase::Down { until } => Some(*until),
            BroadcastPhase::Serving(server, progress) => {
                server.wakes_at().into_iter().chain(progress.next()).min()
            }
            BroadcastPhase::Draining(server, since, run) => {
                let cut_at = run.as_ref().and_then(|run| run.cut_at(*since));
                server.wakes_at().into_iter().chain(cut_at).min()
            }
            BroadcastPhase::Over => return Ok(()),
        };
        let clients = self.clients.iter().filter_map(BroadcastClient::wake_at);
        let next = clients.chain(server).chain(self.network.next_event()).min();
        let Some(next) = next else {
            return Err(format!("deadlock, no event is scheduled: {}", self.unfinished()));
        };
        self.network.advance_to(next.max(self.network.now()));
        Ok(())
    }

    /// Acts on server and disks. Returns whether there was anything to do.
    fn step_server(&mut self, now: Time) -> Result<bool, String> {
        match &mut self.phase {
            BroadcastPhase::Down { until } if *until <= now => self.start(now).map(|()| true),
            BroadcastPhase::Serving(server, progress) => {
                let Some(run) = &mut progress.run else {
                    if now > progress.started_at.after(LAST_RUN_MAX) {
                        return Err(format!("the last run does not end: {}", self.unfinished()));
                    }
                    return self.step_last_run(now);
                };
                let any = run.step_faults(progress.started_at, now, server, &self.disks);
                if let BroadcastRunEnd::KillInSnapshot = run.end {
                    let disk = &self.disks[GATED_DISK];
                    let recorded = std::mem::replace(&mut progress.recorded, disk.recorded());
                    if let Some(points) = disks::unsynced_snapshot(disk, recorded) {
                        return self.kill_in_snapshot(now, points).map(|()| true);
                    }
                }
                let is_over = now >= progress.started_at.after(run.span);
                if is_over {
                    self.end(now)?;
                }
                Ok(any || is_over)
            }
            BroadcastPhase::Draining(server, since, run) => {
                let has_stopped = server.has_stopped();
                let is_cut = run.as_ref().and_then(|run| run.cut_at(*since)).is_some_and(|at| at <= now);
                if is_cut || has_stopped {
                    self.finish(now, has_stopped).map(|()| true)
                } else if now > since.after(LAST_RUN_MAX) {
                    Err("the server does not stop".to_owned())
                } else {
                    Ok(false)
                }
            }
            BroadcastPhase::Down { .. } | BroadcastPhase::Over => Ok(false),
        }
    }

    fn start(&mut self, now: Time) -> Result<(), String> {
        self.audit()?;
        self.run += 1;
        self.has_slow_consumers = false;
        self.ledger.begin_run(self.run);
        let sockets = server::listen(&self.network, self.plan.shards);
        let server = StreamsServer::start(&self.plan, &self.network, &self.disks, sockets);
        let server = server.map_err(|(_, error)| error)?;
        self.generation += 1;
        self.note("start");
        if self.runs.is_empty() {
            self.network.stop_faults();
        }
        let recorded = self.disks[GATED_DISK].recorded();
        let progress = RunProgress { started_at: now, run: self.runs.pop(), recorded };
        self.phase = BroadcastPhase::Serving(server, progress);
        Ok(())
    }

    fn audit(&mut self) -> Result<(), String> {
        for (stream, disk) in self.disks.iter().enumerate() {
            self.ledger.audit(stream, disk)?;
        }
        Ok(())
    }

    /// Advances the last run through its stages.
    fn step_last_run(&mut self, now: Time) -> Result<bool, String> {
        let is_publisher = |client: &&BroadcastClient| client.role.is_publisher();
        if !self.clients.iter().filter(is_publisher).all(BroadcastClient::is_done) {
            return Ok(false);
        }
        if self.stage != LastStage::Publishing && !self.are_up_to_date() {
            return Ok(false);
        }
        match self.stage {
            LastStage::Publishing => {
                self.stage = LastStage::CatchingUp;
                self.clients.iter_mut().for_each(|client| client.wake(now));
            }
            LastStage::CatchingUp => {
                self.stage = LastStage::Following;
                for client in &mut self.clients {
                    if let BroadcastTask::Subscriber(subscriber) = &mut client.role.task {
                        subscriber.expect_last();
                    }
                }
                let last = parameters::last_publishers(&mut self.random);
                let role = |publisher| BroadcastRole::new(BroadcastTask::Publisher(publisher));
                let clients = last.into_iter().map(|publisher| BroadcastClient::new(role(publisher), now));
                self.clients.extend(clients);
            }
            LastStage::Following => self.end(now)?,
        }
        Ok(true)
    }

    fn are_up_to_date(&mut self) -> bool {
        let mut clients = std::mem::take(&mut self.clients);
        let context = self.context();
        let are_up_to_date = clients.iter().all(|client| client.role.is_up_to_date(&context));
        std::mem::swap(&mut self.clients, &mut clients);
        are_up_to_date
    }

    fn context(&mut self) -> BroadcastContext<'_> {
        BroadcastContext {
            network: &self.network,
            now: self.network.now(),
            nats: &self.nats,
            http: &self.http,
            ledger: &mut self.ledger,
            random: &mut self.random,
            totals: &mut self.totals,
            generation: self.generation,
            run: self.run,
            is_served: matches!(self.phase, BroadcastPhase::Serving(..)),
            is_last_phase: self.stage != LastStage::Publishing,
            may_close_anyone: self.may_close_anyone,
            has_slow_consumers: self.has_slow_consumers,
        }
    }

    /// Ends the serving server as planned.
    fn end(&mut self, now: Time) -> Result<(), String> {
        let BroadcastPhase::Serving(server, progress) =
            std::mem::replace(&mut self.phase, BroadcastPhase::Over)
        else {
            return Ok(());
        };
        self.generation += 1;
        self.totals.fallen_behind += server.fallen_behind();
        let how = match progress.run.as_ref().map(|run| run.end) {
            Some(BroadcastRunEnd::Crash(how)) => how,
            Some(BroadcastRunEnd::KillInSnapshot) => ServerCrash::Kill,
            Some(BroadcastRunEnd::Restart(_)) | None => {
                server.end();
                self.note("end");
                self.phase = BroadcastPhase::Draining(server, now, progress.run);
                return Ok(());
            }
        };
        match how {
            ServerCrash::Power => self.totals.power += 1,
            ServerCrash::Kill => self.totals.kills += 1,
        }
        self.crash(server, how, now.after(progress.pause()));
        self.damage(progress.damage())
    }

    /// Kills the serving server at one of these points of the gated disk.
    fn kill_in_snapshot(&mut self, now: Time, points: RangeInclusive<usize>) -> Result<(), String> {
        let BroadcastPhase::Serving(server, progress) =
            std::mem::replace(&mut self.phase, BroadcastPhase::Over)
        else {
            return Ok(());
        };
        self.generation += 1;
        self.totals.snapshot_kills += 1;
        self.totals.fallen_behind += server.fallen_behind();
        self.note("kill in a snapshot");
        let point = self.random.between(*points.start() as u64, *points.end() as u64) as usize;
        self.disks = disks::kill_at(server.kill(), &self.disks, (GATED_DISK, point));
        self.repair_disks();
        self.phase = BroadcastPhase::Down { until: now.after(progress.pause()) };
        self.damage(progress.damage())
    }

    /// Handles a draining server that has stopped or is cut off.
    fn finish(&mut self, now: Time, has_stopped: bool) -> Result<(), String> {
        let BroadcastPhase::Draining(mut server, _, run) =
            std::mem::replace(&mut self.phase, BroadcastPhase::Over)
        else {
            return Ok(());
        };
        self.generation += 1;
        let until = now.after(run.as_ref().map_or(Duration::ZERO, |run| run.pause));
        let damage = run.as_ref().and_then(|run| run.damage);
        if let Some(BroadcastRun { end: BroadcastRunEnd::Restart(Some((_, how))), .. }) = run
            && !has_stopped
        {
            self.totals.crashed_draining += 1;
            self.crash(server, how, until);
            return self.damage(damage);
        }
        server.check_end()?;
        self.note("seal");
        let at = server::instant(self.plan.origin, self.network.now());
        self.disks = disks::seal(server.kill(), &self.disks, (None, at), &mut self.random);
        self.repair_disks();
        if run.is_none() {
            return Ok(());
        }
        self.totals.restarts += 1;
        self.phase = BroadcastPhase::Down { until };
        self.damage(damage)
    }

    /// Damages a disk while no server runs.
    fn damage(&mut self, damage: Option<DiskDamage>) -> Result<(), String> {
        let Some(damage) = damage else { return Ok(()) };
        let number = damage.disk();
        self.ledger.audit(number, &self.disks[number])?;
        if let Some(AlteredDisk { disk, .. }) = damage.alter(&self.disks[number], &mut self.random) {
            self.note(damage.name());
            self.totals.lost += self.ledger.lose(number, &disk)?;
            self.disks[number] = disk;
        }
        Ok(())
    }

    fn crash(&mut self, server: StreamsServer, how: ServerCrash, until: Time) {
        self.note(if how == ServerCrash::Power { "power failure" } else { "kill" });
        let at = server::instant(self.plan.origin, self.network.now());
        self.disks = disks::crash(server.kill(), &self.disks, (how, at), &mut self.random);
        self.repair_disks();
        self.phase = BroadcastPhase::Down { until };
    }

    fn repair_disks(&mut self) {
        self.disks.iter().for_each(|disk| disk.fail(DiskFaults::default()));
    }

    fn note(&self, what: &str) {
        self.network.state().note("operator", self.generation, what, 0, 0);
    }

    fn step_clients(&mut self, now: Time) -> Result<bool, String> {
        self.network.take_changed(&mut self.changed);
        let changed = std::mem::take(&mut self.changed);
        let mut clients = std::mem::take(&mut self.clients);
        let mut context = self.context();
        let mut any = false;
        for client in &mut clients {
            let is_due = client.wake_at().is_some_and(|at| at <= now);
            if is_due || client.key().is_some_and(|key| changed.binary_search(&key).is_ok()) {
                any = true;
                client.step(&mut context)?;
            }
        }
        self.clients = clients;
        self.changed = changed;
        self.changed.clear();
        Ok(any)
    }

    fn unfinished(&mut self) -> String {
        let clients = std::mem::take(&mut self.clients);
        let context = self.context();
        let is_unfinished =
            |client: &&BroadcastClient| !client.is_done() && !client.role.is_up_to_date(&context);
        let texts: Vec<String> = clients
            .iter()
            .filter(is_unfinished)
            .map(|client| client.failure_message("is not finished"))
            .collect();
        texts.join("\n")
    }

    /// Compares everything at the end.
    fn report(mut self) -> Result<BroadcastReport, String> {
        let mut clients = std::mem::take(&mut self.clients);
        let mut context = self.context();
        clients.iter_mut().for_each(|client| client.finish(&mut context));
        self.audit()?;
        self.ledger.finish()?;
        for client in &clients {
            if let BroadcastTask::Subscriber(subscriber) = &client.role.task {
                let position = subscriber.position();
                self.totals.delivered += position.delivered;
                self.totals.missing += position.missing;
                self.totals.resets += position.resets;
                self.totals.skipped += position.skipped;
                self.totals.damaged += position.damaged;
            }
        }
        self.totals.removals = self.ledger.removals;
        self.totals.closes = self.ledger.acknowledged_closes;
        Ok(BroadcastReport {
            report: RunReport {
                trace_hash: self.network.trace_hash(),
                faults: self.network.fault_counts(),
                until: self.network.now(),
            },
            totals: self.totals,
            text: self.network.take_text(),
        })
    }
}

impl RunProgress {
    /// Time until the next server starts.
    fn pause(&self) -> Duration {
        self.run.as_ref().map_or(Duration::ZERO, |run| run.pause)
    }

    /// Damage to a disk during that time.
    fn damage(&self) -> Option<DiskDamage> {
        self.run.as_ref().and_then(|run| run.damage)
    }

    fn next(&self) -> Option<Time> {
        let run = self.run.as_ref()?;
        let hang = run.hang.map(|(after, _)| after);
        let failure = run.failure.map(|(after, _)| after);
        let stall = run.stalls.last().map(|stall| stall.after);
        let next = hang.into_iter().chain(failure).chain(stall).chain([run.span]).min()?;
        Some(self.started_at.after(next))
    }
}

impl BroadcastRun {
    /// Time at which the draining server is cut off.
    fn cut_at(&self, since: Time) -> Option<Time> {
        match self.end {
            BroadcastRunEnd::Restart(Some((span, _))) => Some(since.after(span)),
            BroadcastRunEnd::Restart(None) | BroadcastRunEnd::Crash(_) | BroadcastRunEnd::KillInSnapshot => {
                None
            }
        }
    }

    /// Begins the faults that are due. Returns whether there were any.
    fn step_faults(
        &mut self,
        started_at: Time,
        now: Time,
        server: &mut StreamsServer,
        disks: &[SimulatedDisk],
    ) -> bool {
        let is_due = |after: Duration| started_at.after(after) <= now;
        let hang = self.hang.take_if(|(after, _)| is_due(*after));
        if let Some((_, span)) = hang {
            server.hangs_until = now.after(span);
        }
        let failure = self.failure.take_if(|(after, _)| is_due(*after));
        if let Some((_, disk)) = failure {
            disks[disk].fail(DiskFaults {
                writes: Some((0, EIO)),
                writes_max: Some(1),
                ..DiskFaults::default()
            });
        }
        let stall = self.stalls.pop_if(|stall| is_due(stall.after));
        if let Some(ShardStall { span, shard, .. }) = stall {
            server.stalled = Some((shard, now.after(span)));
        }
        hang.is_some() || failure.is_some() || stall.is_some()
    }
}
