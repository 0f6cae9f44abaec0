//! The world's scheduler: clients, server, disks and operator, moment after moment.

use std::cell::RefCell;
use std::time::Duration;

use stilling_journal::disk::simulated::{Faults as DiskFaults, INPUT_OUTPUT, NO_SPACE, SimulatedDisk};
use stilling_ring::Time;

use super::client::{Client, Scene, Totals};
use super::disks::{self, Cut};
use super::harm::Harm;
use super::ledger::Ledger;
use super::message::ON_DISK;
use super::server::{self, HTTP, NATS, Plan, Server, Sockets};
use super::setting::{End, Life, Setting, Step, Trouble};
use super::{Events, Options, StreamsReport};
use crate::SplitMix64;
use crate::network::{Address, Network, PeerKey};
use crate::report::Report;

/// Rounds without the time moving. More: something spins.
const ROUNDS_AT_ONCE_MAX: u32 = 50_000;

/// How long the last life may take: a disk may hang to the end of the life before.
const LAST_LIFE_MAX: Duration = Duration::from_secs(400);

struct World {
    random: SplitMix64,
    network: Network,
    plan: Plan,
    addresses: (Address, Address),
    disks: Vec<SimulatedDisk>,
    ledgers: Vec<Ledger>,
    clients: Vec<Client>,
    /// The lives before the last, the next one at the end.
    lives: Vec<Life>,
    /// What happens to disks before the next server opens them.
    harms: Vec<Harm>,
    /// What the last of them has a disk refuse.
    refuses: Option<Harm>,
    phase: Phase,
    era: u32,
    totals: Totals,
    events: Events,
    changed: Vec<PeerKey>,
}

/// Where the server is.
enum Phase {
    /// None runs; the next one begins at that time, and is cut off at once if so decided.
    Down {
        until: Time,
        sockets: Option<Sockets>,
        cut_opened: Option<Cut>,
    },
    Serving(Server, Course),
    /// It has been asked to end.
    Draining {
        server: Server,
        since: Time,
        life: Option<Life>,
        sockets: Option<Sockets>,
    },
    Over,
}

/// What is to become of a server that serves.
struct Course {
    began: Time,
    /// None: the last life.
    life: Option<Life>,
    /// Troubles to come, the next one at the end.
    troubles: Vec<(Time, Trouble)>,
    /// When a disk has room again.
    room_at: Vec<Option<Time>>,
    /// When it ends.
    until: Time,
    has_frozen: bool,
    /// The last followers have come.
    is_checked: bool,
}

pub(super) fn play(
    seed: u64,
    options: &Options,
    keep: &RefCell<Option<Network>>,
) -> Result<StreamsReport, String> {
    let mut random = SplitMix64::new(seed);
    let Setting { network, plan, ledgers, clients, mut lives } = Setting::draw(&mut random, options.bias);
    let network = Network::new(random.bits(), network);
    *keep.borrow_mut() = Some(network.clone());
    if options.verbose {
        network.keep_text();
    }
    lives.reverse();
    let address = |text: &str| Address::Tcp(text.parse().expect("an address"));
    let mut world = World {
        random,
        network,
        plan,
        addresses: (address(NATS), address(HTTP)),
        disks: (0..ON_DISK).map(|_| SimulatedDisk::recording()).collect(),
        ledgers,
        clients,
        lives,
        harms: Vec::new(),
        refuses: None,
        phase: Phase::Down { until: Time::ZERO, sockets: None, cut_opened: None },
        era: 0,
        totals: Totals::default(),
        events: Events::default(),
        changed: Vec::new(),
    };
    while !matches!(world.phase, Phase::Over) {
        world.moment()?;
        world.advance()?;
    }
    world.report()
}

impl World {
    /// Everybody does what they can do now.
    fn moment(&mut self) -> Result<(), String> {
        for _ in 0..ROUNDS_AT_ONCE_MAX {
            let now = self.network.now();
            let mut any = self.operate(now)?;
            any |= self.step_clients(now)?;
            if let Phase::Serving(server, _) | Phase::Draining { server, .. } = &mut self.phase {
                any |= server.run(now, &mut self.random)?;
            }
            if !any || matches!(self.phase, Phase::Over) {
                return Ok(());
            }
        }
        Err("round after round, and no time passes".to_owned())
    }

    fn advance(&mut self) -> Result<(), String> {
        let server = match &self.phase {
            Phase::Down { until, .. } => Some(*until),
            Phase::Serving(server, course) => server.wakes_at().into_iter().chain(course.next()).min(),
            Phase::Draining { server, .. } => server.wakes_at().into_iter().chain(self.cut_at()).min(),
            Phase::Over => return Ok(()),
        };
        let clients = self.clients.iter().filter_map(Client::wake_at);
        let next = clients.chain(server).chain(self.network.next_event()).min();
        let Some(next) = next else { return Err(format!("everything waits: {}", self.unfinished())) };
        self.network.advance_to(next.max(self.network.now()));
        Ok(())
    }

    /// When the server that drains is cut off.
    fn cut_at(&self) -> Option<Time> {
        let Phase::Draining { since, life: Some(life), .. } = &self.phase else { return None };
        match life.end {
            End::Restart(Some((Step::Draining(span), _))) => Some(since.after(span)),
            _ => None,
        }
    }

    /// What is done to server and disks. Returns whether anything was.
    fn operate(&mut self, now: Time) -> Result<bool, String> {
        match &mut self.phase {
            Phase::Down { until, .. } if *until <= now => self.start(now).map(|()| true),
            Phase::Serving(server, course) => {
                let mut any =
                    course.trouble(&self.network, server, &self.disks, &mut self.random, &mut self.events);
                let is_over = course.is_over(now, self.totals.acknowledged, &self.clients);
                if course.life.is_none() && is_over && !course.is_checked {
                    course.is_checked = true;
                    self.follow_to_the_end(now)?;
                    any = true;
                } else if is_over {
                    self.end(now)?;
                    any = true;
                } else if course.life.is_none() && now > course.began.after(LAST_LIFE_MAX) {
                    return Err(format!("the last life does not come to its end: {}", self.unfinished()));
                }
                Ok(any)
            }
            Phase::Draining { server, since, .. } => {
                let has_stopped = server.has_stopped();
                let is_late = now > since.after(LAST_LIFE_MAX);
                if self.cut_at().is_some_and(|at| at <= now) || has_stopped {
                    self.finish(now, has_stopped).map(|()| true)
                } else if is_late {
                    Err("the server does not come to its end".to_owned())
                } else {
                    Ok(false)
                }
            }
            Phase::Down { .. } | Phase::Over => Ok(false),
        }
    }

    /// A server begins.
    fn start(&mut self, now: Time) -> Result<(), String> {
        let Phase::Down { sockets, cut_opened, .. } = std::mem::replace(&mut self.phase, Phase::Over) else {
            return Ok(());
        };
        self.harm()?;
        for (ledger, disk) in self.ledgers.iter_mut().zip(&self.disks) {
            ledger.audit(disk)?;
        }
        let sockets = sockets.unwrap_or_else(|| server::listen(&self.network, self.plan.shards));
        let server = match Server::start(&self.plan, &self.network, &self.disks, sockets) {
            Ok(server) => server,
            Err((sockets, error)) => {
                self.take_unopened(&error)?;
                let until = now.after(Duration::from_micros(self.random.between(1, 300_000)));
                self.phase = Phase::Down { until, sockets: Some(sockets), cut_opened };
                return Ok(());
            }
        };
        self.refuses = None;
        self.era += 1;
        self.note("start");
        if let Some(how) = cut_opened {
            self.events.cut_opened += 1;
            let pause = Duration::from_micros(self.random.between(1, 100_000));
            self.cut(server, how, now.after(pause));
            return Ok(());
        }
        if self.lives.is_empty() {
            self.network.stop_faults();
        }
        let life = self.lives.pop();
        self.harms = life.as_ref().map_or_else(Vec::new, |life| life.harms.clone());
        let course = Course::new(life, now);
        self.phase = Phase::Serving(server, course);
        Ok(())
    }

    /// Disks come to harm between two servers. What one refuses is set last: a changed disk is a new one.
    fn harm(&mut self) -> Result<(), String> {
        let mut refuses = None;
        for harm in std::mem::take(&mut self.harms) {
            let number = harm.disk();
            if harm.faults().is_some() {
                refuses = Some(harm);
                continue;
            }
            let (disk, ledger) = (&self.disks[number], &mut self.ledgers[number]);
            // The state before it is checked on its own.
            ledger.audit(disk)?;
            if let Some(changed) = harm.change(disk, ledger, &mut self.random)? {
                self.disks[number] = changed;
                self.note(harm.name());
                match harm {
                    Harm::SegmentRemoved { .. } => self.events.removed_segments += 1,
                    _ => self.events.flipped += 1,
                }
            }
        }
        if let Some((harm, faults)) = refuses.and_then(|harm| Some((harm, harm.faults()?))) {
            self.note(harm.name());
            self.disks[harm.disk()].fail(faults);
            self.refuses = refuses;
        }
        Ok(())
    }

    /// The streams could not be opened: that is in order if a disk refused to be read. Reads fail a limited number of times; a
    /// folder can be listed again.
    fn take_unopened(&mut self, error: &str) -> Result<(), String> {
        let Some(harm) = self.refuses.filter(|_| error.contains("cannot read")) else {
            return Err(error.to_owned());
        };
        self.note("not opened");
        match harm {
            Harm::ListFails { disk } => {
                self.events.unlisted_openings += 1;
                self.disks[disk].fail(DiskFaults::default());
            }
            _ => self.events.unread_openings += 1,
        }
        Ok(())
    }

    /// The server that serves ends, in one way or another.
    fn end(&mut self, now: Time) -> Result<(), String> {
        let Phase::Serving(server, course) = std::mem::replace(&mut self.phase, Phase::Over) else {
            return Ok(());
        };
        self.era += 1;
        self.events.frozen += server.frozen();
        for disk in &self.disks {
            // A disk that could make no files has room again; one whose writes fail goes on failing.
            if course.room_at.iter().any(Option::is_some) {
                disk.fail(DiskFaults::default());
            }
        }
        match course.life {
            Some(Life { end: End::Cut(how), pause, .. }) => {
                match how {
                    Cut::Power => self.events.power += 1,
                    Cut::Kill => self.events.kills += 1,
                }
                self.cut(server, how, now.after(pause));
            }
            life => {
                let is_early = life.as_ref().is_some_and(|life| life.listens_early);
                let sockets = is_early.then(|| server::listen(&self.network, self.plan.shards));
                server.end();
                self.note("end");
                self.phase = Phase::Draining { server, since: now, life, sockets };
            }
        }
        Ok(())
    }

    /// A server that drains has stopped, or is cut off.
    fn finish(&mut self, now: Time, has_stopped: bool) -> Result<(), String> {
        let Phase::Draining { mut server, life, sockets, .. } =
            std::mem::replace(&mut self.phase, Phase::Over)
        else {
            return Ok(());
        };
        self.era += 1;
        let cut = life.as_ref().and_then(|life| match life.end {
            End::Restart(cut) => cut,
            End::Cut(_) => None,
        });
        let until = now.after(life.as_ref().map_or(Duration::ZERO, |life| life.pause));
        if let Some((Step::Draining(_), how)) = cut
            && !has_stopped
        {
            self.events.cut_draining += 1;
            self.cut(server, how, until);
            return Ok(());
        }
        server.check_end()?;
        let (how, cut_opened) = match cut {
            Some((Step::Sealing, how)) => (Some(how), None),
            Some((Step::Opened, how)) => (None, Some(how)),
            _ => (None, None),
        };
        match how {
            Some(_) => self.events.cut_sealing += 1,
            None => self.events.restarts += u64::from(life.is_some()),
        }
        self.events.empty += u64::from(self.ledgers.iter().all(|ledger| ledger.records == 0));
        self.note(if how.is_some() { "cut while sealing" } else { "seal" });
        let at = server::instant(self.plan.origin, self.network.now());
        let journal = server.kill();
        self.disks = disks::seal(journal, &self.disks, (how, at), &mut self.random);
        self.heal();
        if life.is_none() {
            for (ledger, disk) in self.ledgers.iter_mut().zip(&self.disks) {
                ledger.audit(disk)?;
            }
            return Ok(());
        }
        self.phase = Phase::Down { until, sockets, cut_opened };
        Ok(())
    }

    fn note(&self, what: &str) {
        self.network.state().note("operator", self.era, what, 0, 0);
    }

    /// A server is cut off.
    fn cut(&mut self, server: Server, how: Cut, until: Time) {
        self.note(if how == Cut::Power { "power failure" } else { "kill" });
        let at = server::instant(self.plan.origin, self.network.now());
        let journal = server.kill();
        self.disks = disks::cut(journal, &self.disks, (how, at), &mut self.random);
        self.heal();
        self.phase = Phase::Down { until, sockets: None, cut_opened: None };
    }

    /// The disks have been mended.
    fn heal(&mut self) {
        self.disks.iter().for_each(|disk| disk.fail(DiskFaults::default()));
    }

    /// All has been published: followers read every stream from its beginning, and the others leave.
    fn follow_to_the_end(&mut self, now: Time) -> Result<(), String> {
        self.clients.iter_mut().for_each(Client::leave);
        for (number, (ledger, disk)) in self.ledgers.iter_mut().zip(&self.disks).enumerate() {
            ledger.audit(disk)?;
            if let Some(last) = ledger.last() {
                self.clients.push(Client::follower((self.clients.len(), number), now, Some(last)));
            }
        }
        Ok(())
    }

    fn step_clients(&mut self, now: Time) -> Result<bool, String> {
        self.network.take_changed(&mut self.changed);
        let changed = std::mem::take(&mut self.changed);
        let is_served = matches!(self.phase, Phase::Serving(..));
        let mut any = false;
        for client in &mut self.clients {
            let is_due = client.wake_at().is_some_and(|at| at <= now);
            if !is_due && client.key().is_none_or(|key| changed.binary_search(&key).is_err()) {
                continue;
            }
            any = true;
            client.step(&mut Scene {
                network: &self.network,
                now,
                nats: &self.addresses.0,
                http: &self.addresses.1,
                ledgers: &mut self.ledgers,
                random: &mut self.random,
                totals: &mut self.totals,
                era: self.era,
                is_served,
            })?;
        }
        self.changed = changed;
        self.changed.clear();
        Ok(any)
    }

    fn unfinished(&self) -> String {
        let clients = self.clients.iter().filter(|client| !client.is_done());
        let texts: Vec<String> = clients.map(|client| client.complaint("is not finished")).collect();
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
            report: Report {
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

impl Course {
    fn new(life: Option<Life>, now: Time) -> Course {
        let troubles = life.iter().flat_map(|life| &life.troubles);
        let mut troubles: Vec<(Time, Trouble)> =
            troubles.map(|(after, trouble)| (now.after(*after), *trouble)).collect();
        troubles.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        let until = life.as_ref().map_or(now, |life| now.after(life.span));
        Course {
            began: now,
            life,
            troubles,
            room_at: vec![None; ON_DISK],
            until,
            has_frozen: false,
            is_checked: false,
        }
    }

    /// When something happens next.
    fn next(&self) -> Option<Time> {
        let until = self.life.is_some().then_some(self.until);
        let trouble = self.troubles.last().map(|(at, _)| *at);
        self.room_at.iter().copied().flatten().chain(until).chain(trouble).min()
    }

    fn is_over(&self, now: Time, acknowledged: u64, clients: &[Client]) -> bool {
        match &self.life {
            Some(life) => {
                now >= self.until || acknowledged >= life.acknowledgements && life.acknowledgements > 0
            }
            None if self.is_checked => clients.iter().all(Client::is_done),
            None => clients.iter().filter(|client| client.is_source()).all(Client::is_done),
        }
    }

    /// Disks get into trouble and out of it. Returns whether anything happened.
    fn trouble(
        &mut self,
        network: &Network,
        server: &mut Server,
        disks: &[SimulatedDisk],
        random: &mut SplitMix64,
        events: &mut Events,
    ) -> bool {
        let now = network.now();
        let mut any = false;
        for (disk, room_at) in disks.iter().zip(&mut self.room_at) {
            if room_at.is_some_and(|at| at <= now) {
                *room_at = None;
                disk.fail(DiskFaults::default());
                any = true;
            }
        }
        while let Some((_, trouble)) = self.troubles.pop_if(|(at, _)| *at <= now) {
            any = true;
            network.state().note("operator", 0, trouble.name(), 0, 0);
            self.begin_trouble(trouble, now, server, disks, events);
        }
        if !self.has_frozen && self.life.is_some() && server.frozen() > 0 {
            // The operator sees it and restarts.
            self.has_frozen = true;
            self.until = self.until.min(now.after(Duration::from_millis(random.between(10, 3000))));
            any = true;
        }
        any
    }

    fn begin_trouble(
        &mut self,
        trouble: Trouble,
        now: Time,
        server: &mut Server,
        disks: &[SimulatedDisk],
        events: &mut Events,
    ) {
        match trouble {
            Trouble::WritesFail { disk, after, times } => {
                events.failures += 1;
                let (writes, writes_max) = (Some((after, INPUT_OUTPUT)), Some(times));
                disks[disk].fail(DiskFaults { writes, writes_max, ..DiskFaults::default() });
            }
            Trouble::WritesNotSynced { disk, after, times } => {
                events.failures += 1;
                let (syncs, writes_max) = (Some((after, INPUT_OUTPUT)), Some(times));
                disks[disk].fail(DiskFaults { syncs, writes_max, ..DiskFaults::default() });
            }
            Trouble::ReadsFail { disk, times } => {
                events.failures += 1;
                let reads = Some((0, times, INPUT_OUTPUT));
                disks[disk].fail(DiskFaults { reads, ..DiskFaults::default() });
            }
            Trouble::SyncFails { disk } => {
                events.failures += 1;
                disks[disk].fail(DiskFaults { sync: Some(INPUT_OUTPUT), ..DiskFaults::default() });
            }
            Trouble::Full { disk, span } => {
                events.full += 1;
                disks[disk].fail(DiskFaults { create: Some(NO_SPACE), ..DiskFaults::default() });
                self.room_at[disk] = Some(now.after(span));
            }
            Trouble::Hangs { span } => {
                match Trouble::is_long(span) {
                    true => events.long_hangs += 1,
                    false => events.short_hangs += 1,
                }
                server.hangs_until = now.after(span);
                self.until = self.until.max(server.hangs_until);
            }
        }
    }
}
