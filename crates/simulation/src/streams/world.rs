//! The world's scheduler: runs clients, server, disks and operator.

use std::cell::RefCell;
use std::time::Duration;

use stilling_journal::disk::simulated::{DiskFaults, EIO, ENOSPC, SimulatedDisk};
use stilling_ring::Time;

use super::client::{ClientTotals, StreamsClient, StreamsClientContext};
use super::damage::DiskDamage;
use super::disks::{self, ServerCrash};
use super::ledger::StreamLedger;
use super::message::ON_DISK;
use super::parameters::{DiskFailure, RestartStep, RunEnding, ServerRun, StreamsWorldParameters};
use super::server::{self, HTTP, ListeningSockets, NATS, ServerPlan, StreamsServer};
use super::{StreamsEventCounts, StreamsOptions, StreamsReport};
use crate::SplitMix64;
use crate::network::{Address, Network, PeerKey};
use crate::report::RunReport;

/// Rounds while time stands still; more count as spinning.
const ROUNDS_AT_ONCE_MAX: u32 = 50_000;

/// Longest time of the last run: a disk may hang until the end of the run before.
const LAST_RUN_MAX: Duration = Duration::from_secs(400);

struct StreamsWorld {
    random: SplitMix64,
    network: Network,
    plan: ServerPlan,
    addresses: (Address, Address),
    disks: Vec<SimulatedDisk>,
    ledgers: Vec<StreamLedger>,
    clients: Vec<StreamsClient>,
    /// Runs before the last, the next one at the end.
    server_runs: Vec<ServerRun>,
    damages: Vec<DiskDamage>,
    /// The last damage that makes a disk refuse operations.
    pending_damage: Option<DiskDamage>,
    phase: StreamsPhase,
    server_generation: u32,
    totals: ClientTotals,
    events: StreamsEventCounts,
    changed: Vec<PeerKey>,
}

enum StreamsPhase {
    /// No server runs; the next one starts at `until`, and may be cut off right after opening.
    Down {
        until: Time,
        sockets: Option<ListeningSockets>,
        crashed_opened: Option<ServerCrash>,
    },
    Serving(StreamsServer, RunProgress),
    /// Requested to end.
    Draining {
        server: StreamsServer,
        since: Time,
        server_run: Option<ServerRun>,
        sockets: Option<ListeningSockets>,
    },
    Over,
}

struct RunProgress {
    started_at: Time,
    /// `None`: the last run.
    server_run: Option<ServerRun>,
    /// Failures to come, the next one at the end.
    disk_failures: Vec<(Time, DiskFailure)>,
    /// Time at which a disk has room again.
    room_at: Vec<Option<Time>>,
    until: Time,
    has_frozen: bool,
    /// The final followers have started.
    is_checked: bool,
}

pub(super) fn play(
    seed: u64,
    options: &StreamsOptions,
    keep: &RefCell<Option<Network>>,
) -> Result<StreamsReport, String> {
    let mut random = SplitMix64::new(seed);
    let StreamsWorldParameters { network, plan, ledgers, clients, mut server_runs } =
        StreamsWorldParameters::draw(&mut random, options.bias);
    let network = Network::new(random.bits(), network);
    *keep.borrow_mut() = Some(network.clone());
    if options.verbose {
        network.record_text();
    }
    server_runs.reverse();
    let address = |text: &str| Address::Tcp(text.parse().expect("an address"));
    let mut world = StreamsWorld {
        random,
        network,
        plan,
        addresses: (address(NATS), address(HTTP)),
        disks: (0..ON_DISK).map(|_| SimulatedDisk::recording()).collect(),
        ledgers,
        clients,
        server_runs,
        damages: Vec::new(),
        pending_damage: None,
        phase: StreamsPhase::Down { until: Time::ZERO, sockets: None, crashed_opened: None },
        server_generation: 0,
        totals: ClientTotals::default(),
        events: StreamsEventCounts::default(),
        changed: Vec::new(),
    };
    while !matches!(world.phase, StreamsPhase::Over) {
        world.run_now()?;
        world.advance()?;
    }
    world.report()
}

impl StreamsWorld {
    /// Runs everything that is possible at this point in time.
    fn run_now(&mut self) -> Result<(), String> {
        for _ in 0..ROUNDS_AT_ONCE_MAX {
            let now = self.network.now();
            let mut any = self.step_server(now)?;
            any |= self.step_clients(now)?;
            if let StreamsPhase::Serving(server, _) | StreamsPhase::Draining { server, .. } = &mut self.phase
            {
                any |= server.run(now, &mut self.random)?;
            }
            if !any || matches!(self.phase, StreamsPhase::Over) {
                return Ok(());
            }
        }
        Err("too many rounds while time stands still".to_owned())
    }

    fn advance(&mut self) -> Result<(), String> {
        let server = match &self.phase {
            StreamsPhase::Down { until, .. } => Some(*until),
            StreamsPhase::Serving(server, progress) => {
                server.wakes_at().into_iter().chain(progress.next()).min()
            }
            StreamsPhase::Draining { server, .. } => server.wakes_at().into_iter().chain(self.cut_at()).min(),
            StreamsPhase::Over => return Ok(()),
        };
        let clients = self.clients.iter().filter_map(StreamsClient::wake_at);
        let next = clients.chain(server).chain(self.network.next_event()).min();
        let Some(next) = next else {
            return Err(format!("deadlock, no event is scheduled: {}", self.unfinished()));
        };
        self.network.advance_to(next.max(self.network.now()));
        Ok(())
    }

    /// Time at which the draining server is cut off.
    fn cut_at(&self) -> Option<Time> {
        let StreamsPhase::Draining { since, server_run: Some(server_run), .. } = &self.phase else {
            return None;
        };
        match server_run.end {
            RunEnding::Restart(Some((RestartStep::Draining(span), _))) => Some(since.after(span)),
            _ => None,
        }
    }

    /// Acts on server and disks. Returns whether there was anything to do.
    fn step_server(&mut self, now: Time) -> Result<bool, String> {
        match &mut self.phase {
            StreamsPhase::Down { until, .. } if *until <= now => self.start(now).map(|()| true),
            StreamsPhase::Serving(server, progress) => {
                let mut any = progress.step_disk_failures(
                    &self.network,
                    server,
                    &self.disks,
                    &mut self.random,
                    &mut self.events,
                );
                let is_over = progress.is_over(now, self.totals.acknowledged, &self.clients);
                if progress.server_run.is_none() && is_over && !progress.is_checked {
                    progress.is_checked = true;
                    self.start_final_followers(now)?;
                    any = true;
                } else if is_over {
                    self.end(now)?;
                    any = true;
                } else if progress.server_run.is_none() && now > progress.started_at.after(LAST_RUN_MAX) {
                    return Err(format!("the last run does not end: {}", self.unfinished()));
                }
                Ok(any)
            }
            StreamsPhase::Draining { server, since, .. } => {
                let has_stopped = server.has_stopped();
                let is_late = now > since.after(LAST_RUN_MAX);
                if self.cut_at().is_some_and(|at| at <= now) || has_stopped {
                    self.finish(now, has_stopped).map(|()| true)
                } else if is_late {
                    Err("the server does not stop".to_owned())
                } else {
                    Ok(false)
                }
            }
            StreamsPhase::Down { .. } | StreamsPhase::Over => Ok(false),
        }
    }

    fn start(&mut self, now: Time) -> Result<(), String> {
        let StreamsPhase::Down { sockets, crashed_opened, .. } =
            std::mem::replace(&mut self.phase, StreamsPhase::Over)
        else {
            return Ok(());
        };
        self.damage()?;
        for (ledger, disk) in self.ledgers.iter_mut().zip(&self.disks) {
            ledger.audit(disk)?;
        }
        let sockets = sockets.unwrap_or_else(|| server::listen(&self.network, self.plan.shards));
        let server = match StreamsServer::start(&self.plan, &self.network, &self.disks, sockets) {
            Ok(server) => server,
            Err((sockets, error)) => {
                self.handle_open_failure(&error)?;
                let until = now.after(Duration::from_micros(self.random.between(1, 300_000)));
                self.phase = StreamsPhase::Down { until, sockets: Some(sockets), crashed_opened };
                return Ok(());
            }
        };
        self.pending_damage = None;
        self.server_generation += 1;
        self.note("start");
        if let Some(how) = crashed_opened {
            self.events.crashed_opened += 1;
            let pause = Duration::from_micros(self.random.between(1, 100_000));
            self.crash(server, how, now.after(pause));
            return Ok(());
        }
        if self.server_runs.is_empty() {
            self.network.stop_faults();
        }
        let server_run = self.server_runs.pop();
        self.damages = server_run.as_ref().map_or_else(Vec::new, |server_run| server_run.damages.clone());
        let progress = RunProgress::new(server_run, now);
        self.phase = StreamsPhase::Serving(server, progress);
        Ok(())
    }

    /// Damages disks between two servers. Faults are set last: a changed disk is a new object.
    fn damage(&mut self) -> Result<(), String> {
        let mut pending_damage = None;
        for damage in std::mem::take(&mut self.damages) {
            let number = damage.disk();
            if damage.faults().is_some() {
                pending_damage = Some(damage);
                continue;
            }
            let (disk, ledger) = (&self.disks[number], &mut self.ledgers[number]);
            ledger.audit(disk)?;
            if let Some(changed) = damage.change(disk, ledger, &mut self.random)? {
                self.disks[number] = changed;
                self.note(damage.name());
                match damage {
                    DiskDamage::SegmentRemoved { .. } => self.events.removed_segments += 1,
                    _ => self.events.flipped += 1,
                }
            }
        }
        if let Some((damage, faults)) = pending_damage.and_then(|damage| Some((damage, damage.faults()?))) {
            self.note(damage.name());
            self.disks[damage.disk()].fail(faults);
            self.pending_damage = pending_damage;
        }
        Ok(())
    }

    /// Handles a failed opening: acceptable if a disk refused reads. The number of failing reads is limited, and a
    /// folder can be listed again.
    fn handle_open_failure(&mut self, error: &str) -> Result<(), String> {
        let Some(damage) = self.pending_damage.filter(|_| error.contains("cannot read")) else {
            return Err(error.to_owned());
        };
        self.note("not opened");
        match damage {
            DiskDamage::ListFails { disk } => {
                self.events.unlisted_openings += 1;
                self.disks[disk].fail(DiskFaults::default());
            }
            _ => self.events.unread_openings += 1,
        }
        Ok(())
    }

    /// Ends the serving server as planned.
    fn end(&mut self, now: Time) -> Result<(), String> {
        let StreamsPhase::Serving(server, mut progress) =
            std::mem::replace(&mut self.phase, StreamsPhase::Over)
        else {
            return Ok(());
        };
        self.server_generation += 1;
        self.events.frozen += server.frozen();
        progress.end_full_disks(&self.disks, |_| true);
        match progress.server_run {
            Some(ServerRun { end: RunEnding::ServerCrash(how), pause, .. }) => {
                match how {
                    ServerCrash::Power => self.events.power += 1,
                    ServerCrash::Kill => self.events.kills += 1,
                }
                self.crash(server, how, now.after(pause));
            }
            server_run => {
                let is_early = server_run.as_ref().is_some_and(|server_run| server_run.listens_early);
                let sockets = is_early.then(|| server::listen(&self.network, self.plan.shards));
                server.end();
                self.note("end");
                self.phase = StreamsPhase::Draining { server, since: now, server_run, sockets };
            }
        }
        Ok(())
    }

    /// Handles a draining server that has stopped or is cut off.
    fn finish(&mut self, now: Time, has_stopped: bool) -> Result<(), String> {
        let StreamsPhase::Draining { mut server, server_run, sockets, .. } =
            std::mem::replace(&mut self.phase, StreamsPhase::Over)
        else {
            return Ok(());
        };
        self.server_generation += 1;
        let crash = server_run.as_ref().and_then(|server_run| match server_run.end {
            RunEnding::Restart(crash) => crash,
            RunEnding::ServerCrash(_) => None,
        });
        let until = now.after(server_run.as_ref().map_or(Duration::ZERO, |server_run| server_run.pause));
        if let Some((RestartStep::Draining(_), how)) = crash
            && !has_stopped
        {
            self.events.crashed_draining += 1;
            self.crash(server, how, until);
            return Ok(());
        }
        server.check_end()?;
        let (how, crashed_opened) = match crash {
            Some((RestartStep::Sealing, how)) => (Some(how), None),
            Some((RestartStep::Opened, how)) => (None, Some(how)),
            _ => (None, None),
        };
        match how {
            Some(_) => self.events.crashed_sealing += 1,
            None => self.events.restarts += u64::from(server_run.is_some()),
        }
        self.events.empty += u64::from(self.ledgers.iter().all(|ledger| ledger.records == 0));
        self.note(if how.is_some() { "cut while sealing" } else { "seal" });
        let at = server::instant(self.plan.origin, self.network.now());
        let journal = server.kill();
        self.disks = disks::seal(journal, &self.disks, (how, at), &mut self.random);
        self.repair_disks();
        if server_run.is_none() {
            for (ledger, disk) in self.ledgers.iter_mut().zip(&self.disks) {
                ledger.audit(disk)?;
            }
            return Ok(());
        }
        self.phase = StreamsPhase::Down { until, sockets, crashed_opened };
        Ok(())
    }

    fn note(&self, what: &str) {
        self.network.state().note("operator", self.server_generation, what, 0, 0);
    }

    fn crash(&mut self, server: StreamsServer, how: ServerCrash, until: Time) {
        self.note(if how == ServerCrash::Power { "power failure" } else { "kill" });
        let at = server::instant(self.plan.origin, self.network.now());
        let journal = server.kill();
        self.disks = disks::crash(journal, &self.disks, (how, at), &mut self.random);
        self.repair_disks();
        self.phase = StreamsPhase::Down { until, sockets: None, crashed_opened: None };
    }

    fn repair_disks(&mut self) {
        self.disks.iter().for_each(|disk| disk.fail(DiskFaults::default()));
    }

    /// Ends the other clients after all publications; followers then read every stream from its beginning.
    fn start_final_followers(&mut self, now: Time) -> Result<(), String> {
        self.clients.iter_mut().for_each(StreamsClient::stop);
        for (number, (ledger, disk)) in self.ledgers.iter_mut().zip(&self.disks).enumerate() {
            ledger.audit(disk)?;
            if let Some(last) = ledger.last() {
                self.clients.push(StreamsClient::follower((self.clients.len(), number), now, Some(last)));
            }
        }
        Ok(())
    }

    fn step_clients(&mut self, now: Time) -> Result<bool, String> {
        self.network.take_changed(&mut self.changed);
        let changed = std::mem::take(&mut self.changed);
        let is_served = matches!(self.phase, StreamsPhase::Serving(..));
        let mut any = false;
        for client in &mut self.clients {
            let is_due = client.wake_at().is_some_and(|at| at <= now);
            if !is_due && client.key().is_none_or(|key| changed.binary_search(&key).is_err()) {
                continue;
            }
            any = true;
            client.step(&mut StreamsClientContext {
                network: &self.network,
                now,
                nats: &self.addresses.0,
                http: &self.addresses.1,
                ledgers: &mut self.ledgers,
                random: &mut self.random,
                totals: &mut self.totals,
                server_generation: self.server_generation,
                is_served,
            })?;
        }
        self.changed = changed;
        self.changed.clear();
        Ok(any)
    }

    fn unfinished(&self) -> String {
        let clients = self.clients.iter().filter(|client| !client.is_done());
        let texts: Vec<String> = clients.map(|client| client.failure_message("is not finished")).collect();
        texts.join("\n")
    }

    fn report(mut self) -> Result<StreamsReport, String> {
        for ledger in &self.ledgers {
            self.events.lost += ledger.lost();
            self.events.removals += ledger.removals;
            self.events.records += ledger.records;
            self.events.markers += ledger.markers;
        }
        Ok(StreamsReport {
            report: RunReport {
                trace_hash: self.network.trace_hash(),
                faults: self.network.fault_counts(),
                until: self.network.now(),
            },
            totals: self.totals,
            events: self.events,
            text: self.network.take_text(),
        })
    }
}

impl RunProgress {
    fn new(server_run: Option<ServerRun>, now: Time) -> RunProgress {
        let disk_failures = server_run.iter().flat_map(|server_run| &server_run.disk_failures);
        let mut disk_failures: Vec<(Time, DiskFailure)> = disk_failures
            .map(|(after, step_disk_failures)| (now.after(*after), *step_disk_failures))
            .collect();
        disk_failures.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        let until = server_run.as_ref().map_or(now, |server_run| now.after(server_run.span));
        RunProgress {
            started_at: now,
            server_run,
            disk_failures,
            room_at: vec![None; ON_DISK],
            until,
            has_frozen: false,
            is_checked: false,
        }
    }

    fn next(&self) -> Option<Time> {
        let until = self.server_run.is_some().then_some(self.until);
        let step_disk_failures = self.disk_failures.last().map(|(at, _)| *at);
        self.room_at.iter().copied().flatten().chain(until).chain(step_disk_failures).min()
    }

    fn is_over(&self, now: Time, acknowledged: u64, clients: &[StreamsClient]) -> bool {
        match &self.server_run {
            Some(server_run) => {
                now >= self.until
                    || acknowledged >= server_run.acknowledgements && server_run.acknowledgements > 0
            }
            None if self.is_checked => clients.iter().all(StreamsClient::is_done),
            None => clients.iter().filter(|client| client.is_source()).all(StreamsClient::is_done),
        }
    }

    /// Starts and ends disk failures. Returns whether anything happened.
    fn step_disk_failures(
        &mut self,
        network: &Network,
        server: &mut StreamsServer,
        disks: &[SimulatedDisk],
        random: &mut SplitMix64,
        events: &mut StreamsEventCounts,
    ) -> bool {
        let now = network.now();
        let mut any = self.end_full_disks(disks, |at| at <= now);
        while let Some((_, disk_failure)) = self.disk_failures.pop_if(|(at, _)| *at <= now) {
            any = true;
            network.state().note("operator", 0, disk_failure.name(), 0, 0);
            self.begin_disk_failure(disk_failure, now, server, disks, events);
        }
        if !self.has_frozen && self.server_run.is_some() && server.frozen() > 0 {
            // The operator notices it and restarts.
            self.has_frozen = true;
            self.until = self.until.min(now.after(Duration::from_millis(random.between(10, 3000))));
            any = true;
        }
        any
    }

    /// Gives room to the full disks whose `room_at` is due; other failures continue. Returns whether there were any.
    fn end_full_disks(&mut self, disks: &[SimulatedDisk], is_due: impl Fn(Time) -> bool) -> bool {
        let mut any = false;
        for (disk, room_at) in disks.iter().zip(&mut self.room_at) {
            if room_at.take_if(|at| is_due(*at)).is_some() {
                disk.fail(DiskFaults::default());
                any = true;
            }
        }
        any
    }

    /// Replaces the faults of a disk, also the lack of room.
    fn replace_faults(&mut self, disks: &[SimulatedDisk], disk: usize, faults: DiskFaults) {
        disks[disk].fail(faults);
        self.room_at[disk] = None;
    }

    fn begin_disk_failure(
        &mut self,
        step_disk_failures: DiskFailure,
        now: Time,
        server: &mut StreamsServer,
        disks: &[SimulatedDisk],
        events: &mut StreamsEventCounts,
    ) {
        match step_disk_failures {
            DiskFailure::WritesFail { disk, after, times } => {
                events.failures += 1;
                let (writes, writes_max) = (Some((after, EIO)), Some(times));
                self.replace_faults(disks, disk, DiskFaults { writes, writes_max, ..DiskFaults::default() });
            }
            DiskFailure::WritesNotSynced { disk, after, times } => {
                events.failures += 1;
                let (syncs, writes_max) = (Some((after, EIO)), Some(times));
                self.replace_faults(disks, disk, DiskFaults { syncs, writes_max, ..DiskFaults::default() });
            }
            DiskFailure::ReadsFail { disk, times } => {
                events.failures += 1;
                let reads = Some((0, times, EIO));
                self.replace_faults(disks, disk, DiskFaults { reads, ..DiskFaults::default() });
            }
            DiskFailure::SyncFails { disk } => {
                events.failures += 1;
                self.replace_faults(disks, disk, DiskFaults { sync: Some(EIO), ..DiskFaults::default() });
            }
            DiskFailure::Full { disk, span } => {
                events.full += 1;
                self.replace_faults(
                    disks,
                    disk,
                    DiskFaults { create: Some(ENOSPC), ..DiskFaults::default() },
                );
                self.room_at[disk] = Some(now.after(span));
            }
            DiskFailure::Hangs { span } => {
                match DiskFailure::is_long(span) {
                    true => events.long_hangs += 1,
                    false => events.short_hangs += 1,
                }
                server.hangs_until = now.after(span);
                self.until = self.until.max(server.hangs_until);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use stilling_journal::disk::{Disk as _, DiskFile as _};

    use super::*;

    const ROOM_AT: Time = Time::from_nanos(1000);

    fn full() -> DiskFaults {
        DiskFaults { create: Some(ENOSPC), ..DiskFaults::default() }
    }

    fn failing_writes() -> DiskFaults {
        DiskFaults { writes: Some((0, EIO)), ..DiskFaults::default() }
    }

    fn progress_and_disks() -> (RunProgress, Vec<SimulatedDisk>) {
        (RunProgress::new(None, Time::ZERO), (0..ON_DISK).map(|_| SimulatedDisk::new()).collect())
    }

    fn writes_fail(disk: &SimulatedDisk) -> bool {
        let mut file = disk.create("file", 4096).expect("the disk has room");
        file.write_durable(0, &mut [IoSlice::new(&[0; 512])]).is_err()
    }

    #[test]
    fn room_on_a_full_disk_leaves_the_faults_of_other_disks() {
        let (mut progress, disks) = progress_and_disks();
        progress.replace_faults(&disks, 0, full());
        progress.room_at[0] = Some(ROOM_AT);
        progress.replace_faults(&disks, 1, failing_writes());
        assert!(!progress.end_full_disks(&disks, |at| at < ROOM_AT));
        assert!(disks[0].create("early", 4096).is_err());
        assert!(progress.end_full_disks(&disks, |_| true));
        assert!(!writes_fail(&disks[0]) && writes_fail(&disks[1]));
    }

    #[test]
    fn room_on_a_full_disk_leaves_a_fault_that_began_later() {
        let (mut progress, disks) = progress_and_disks();
        progress.replace_faults(&disks, 0, full());
        progress.room_at[0] = Some(ROOM_AT);
        progress.replace_faults(&disks, 0, failing_writes());
        assert!(!progress.end_full_disks(&disks, |at| at <= ROOM_AT));
        assert!(writes_fail(&disks[0]));
    }
}
