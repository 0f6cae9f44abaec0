//! The world's scheduler: runs clients, two servers, disks and the operator.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use stilling::parts::{
    PredecessorDrain, PredecessorEvent, PredecessorState, SharedDisks, Succession, SuccessionAction,
};
use stilling_journal::disk::simulated::{DiskFaults, EIO, ENOSPC, SimulatedDisk};
use stilling_ring::Time;

use super::drawing::{draw_network, draw_plan};
use super::server::SuccessionServer;
use super::{
    DiskCondition, HandoverSide, HandoverStep, JournalContent, SuccessionCase, SuccessionEventCounts,
    SuccessionReport,
};
use crate::SplitMix64;
use crate::network::{Address, Network, PeerKey};
use crate::report::RunReport;
use crate::streams::client::{ClientTotals, StreamsClient, StreamsClientContext};
use crate::streams::ledger::{RetentionBounds, StreamLedger};
use crate::streams::message::{ON_DISK, STREAMS};
use crate::streams::server::{HTTP, NATS, ServerPlan};

/// Rounds while time stands still; more count as spinning.
const ROUNDS_AT_ONCE_MAX: u32 = 50_000;

/// Longest virtual time of a world; its faults end long before.
const WORLD_MAX: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug)]
enum ScheduledEvent {
    /// A successor starts.
    StartSuccessor,
    /// The successor of this number receives an event.
    EventForSuccessor(u64, PredecessorEvent),
    /// The predecessor receives `ready`.
    Ready(u64),
    /// The predecessor receives `taken`.
    Taken(u64),
    Kill(HandoverSide),
    /// A server starts while no server has the listeners.
    Restart,
    DiskFailureBegins,
    DiskFailureEnds,
}

/// The serving server: the predecessor, during a hand-over.
struct PredecessorServer {
    server: SuccessionServer,
    predecessor_drain: Option<PredecessorDrain>,
    has_sealed: bool,
    /// Time at which its process ends, once only the process remains.
    ends_at: Option<Time>,
}

struct SuccessorServer {
    server: SuccessionServer,
    /// `None`: it was started while no server had the listeners, and receives no events.
    succession: Option<Succession>,
    number: u64,
    has_taken_over: bool,
    is_released: bool,
}

struct SuccessionWorld {
    case: SuccessionCase,
    random: SplitMix64,
    network: Network,
    plan: ServerPlan,
    addresses: (Address, Address),
    disks: SharedDisks,
    ledgers: Vec<StreamLedger>,
    clients: Vec<StreamsClient>,
    predecessor_server: Option<PredecessorServer>,
    new: Option<SuccessorServer>,
    scheduled_events: BTreeMap<(Time, u64), ScheduledEvent>,
    scheduled: u64,
    /// Arrival time of the last event for a successor: later events arrive after it, as over one connection.
    message_at: Time,
    kill: Option<(HandoverSide, HandoverStep)>,
    hangs_until: Time,
    disk_faults: Option<DiskFaults>,
    successors: u64,
    server_generation: u32,
    phase: SuccessionPhase,
    totals: ClientTotals,
    events: SuccessionEventCounts,
    changed: Vec<PeerKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SuccessionPhase {
    Running,
    /// All messages are published; followers read everything.
    Following,
    Ending,
    Over,
}

pub(super) fn play(
    seed: u64,
    verbose: bool,
    keep: &RefCell<Option<Network>>,
) -> Result<SuccessionReport, String> {
    let case = SuccessionCase::of(seed);
    let mut random = SplitMix64::new(seed);
    let segment_size = random.between(4, 32) * 4096;
    let options = draw_network(&mut random);
    let network = Network::new(random.bits(), options);
    *keep.borrow_mut() = Some(network.clone());
    if verbose {
        network.record_text();
    }
    let plan = draw_plan(segment_size, &mut random);
    let sizes = (segment_size, plan.journal.batch_size as u64);
    let ledger = |number: usize| StreamLedger::new(STREAMS[number], RetentionBounds::default(), sizes);
    let address = |text: &str| Address::Tcp(text.parse().expect("an address"));
    let recording = (0..ON_DISK).map(|_| SimulatedDisk::recording()).collect();
    let mut world = SuccessionWorld {
        case,
        random,
        network,
        plan,
        addresses: (address(NATS), address(HTTP)),
        disks: SharedDisks::new(recording),
        ledgers: (0..ON_DISK).map(ledger).collect(),
        clients: Vec::new(),
        predecessor_server: None,
        new: None,
        scheduled_events: BTreeMap::new(),
        scheduled: 0,
        message_at: Time::ZERO,
        kill: case.kill,
        hangs_until: Time::ZERO,
        disk_faults: None,
        successors: 0,
        server_generation: 1,
        phase: SuccessionPhase::Running,
        totals: ClientTotals::default(),
        events: SuccessionEventCounts::default(),
        changed: Vec::new(),
    };
    world.begin()?;
    while world.phase != SuccessionPhase::Over {
        world.run_now()?;
        world.advance()?;
    }
    world.report()
}

impl SuccessionWorld {
    /// Starts the first server and the clients, and schedules the events.
    fn begin(&mut self) -> Result<(), String> {
        let mut server = self.start_server(PredecessorState::None)?;
        self.listen(&mut server)?;
        self.predecessor_server =
            Some(PredecessorServer { server, predecessor_drain: None, has_sealed: false, ends_at: None });
        let begins = self.span(100, 1500);
        self.schedule(begins, ScheduledEvent::StartSuccessor);
        if self.case.disk != DiskCondition::Healthy {
            let from = begins.saturating_sub(Duration::from_millis(100)) + self.span(0, 400);
            self.schedule(from, ScheduledEvent::DiskFailureBegins);
        }
        if self.case.content != JournalContent::Empty {
            let first = if self.case.content == JournalContent::Data { Duration::ZERO } else { begins };
            self.add_clients(first);
        }
        Ok(())
    }

    /// Adds publishers of all kinds that start soon after `from`, and subscribers.
    fn add_clients(&mut self, from: Duration) {
        let pace = if self.random.chance(500) { self.span(1, 20) } else { self.span(50, 300) };
        let start =
            |random: &mut SplitMix64| Time::ZERO.after(from + Duration::from_micros(random.below(200_000)));
        let random = &mut self.random;
        for number in 0..random.between(1, 4) as u32 {
            let at = start(random);
            self.clients.push(StreamsClient::publisher(number, at, pace, random));
        }
        for number in 0..random.below(3) as u32 {
            let at = start(random);
            self.clients.push(StreamsClient::poster(10 + number, at, pace, random));
        }
        for _ in 0..random.below(2) {
            let at = start(random);
            self.clients.push(StreamsClient::subscriber(at));
        }
    }

    fn span(&mut self, low_ms: u64, high_ms: u64) -> Duration {
        Duration::from_micros(self.random.between(low_ms * 1000 + 1, high_ms * 1000))
    }

    fn schedule(&mut self, after: Duration, event: ScheduledEvent) {
        self.scheduled += 1;
        self.scheduled_events.insert((self.network.now().after(after), self.scheduled), event);
    }

    /// Sends an event to the successor, after all earlier ones.
    fn send(&mut self, event: PredecessorEvent) {
        let Some(new) = &self.new else { return };
        let number = new.number;
        let after = self.span(0, 10);
        self.message_at = self.network.now().after(after).max(self.message_at.after(Duration::from_nanos(1)));
        self.scheduled += 1;
        self.scheduled_events
            .insert((self.message_at, self.scheduled), ScheduledEvent::EventForSuccessor(number, event));
    }

    /// Records a reached step and schedules the kill planned for it.
    fn handle_step_reached(&mut self, step: HandoverStep) {
        self.note(match step {
            HandoverStep::Ready => "ready",
            HandoverStep::TakenOver => "taken",
            HandoverStep::Sealing => "sealing",
            HandoverStep::Released => "released",
            HandoverStep::Opening => "opening",
        });
        if let Some((side, at)) = self.kill
            && at == step
        {
            self.kill = None;
            let most = if self.random.chance(500) { 2 } else { 60 };
            let after = if self.random.chance(200) { Duration::ZERO } else { self.span(0, most) };
            self.schedule(after, ScheduledEvent::Kill(side));
        }
    }

    fn start_server(&mut self, predecessor: PredecessorState) -> Result<SuccessionServer, String> {
        SuccessionServer::start(&self.plan, &self.network, &self.disks, (self.case.hub, predecessor))
    }

    fn listen(&mut self, server: &mut SuccessionServer) -> Result<(), String> {
        // The number of a listener decides what it serves.
        server.listen(&self.network, &self.addresses.1)?;
        server.listen(&self.network, &self.addresses.0)
    }

    fn run_now(&mut self) -> Result<(), String> {
        for _ in 0..ROUNDS_AT_ONCE_MAX {
            let now = self.network.now();
            let mut any = self.run_due_event(now)?;
            any |= self.step_clients(now)?;
            for server in [
                self.predecessor_server.as_mut().map(|predecessor_server| &mut predecessor_server.server),
                self.new.as_mut().map(|new| &mut new.server),
            ]
            .into_iter()
            .flatten()
            {
                any |= server.run(now, self.hangs_until, &mut self.random)?;
            }
            any |= self.check_servers(now)?;
            if !any || self.phase == SuccessionPhase::Over {
                return Ok(());
            }
        }
        Err("too many rounds while time stands still".to_owned())
    }

    fn advance(&mut self) -> Result<(), String> {
        if self.phase == SuccessionPhase::Over {
            return Ok(());
        }
        let servers = [
            self.predecessor_server.as_ref().map(|predecessor_server| &predecessor_server.server),
            self.new.as_ref().map(|new| &new.server),
        ];
        let servers = servers.into_iter().flatten().filter_map(|server| server.wakes_at(self.hangs_until));
        let clients = self.clients.iter().filter_map(StreamsClient::wake_at);
        let end = self.predecessor_server.as_ref().and_then(|predecessor_server| predecessor_server.ends_at);
        let scheduled_events = self.scheduled_events.keys().next().map(|(at, _)| *at);
        let next =
            servers.chain(clients).chain(scheduled_events).chain(end).chain(self.network.next_event()).min();
        let Some(next) = next else {
            return Err(format!("deadlock, no event is scheduled: {}", self.unfinished()));
        };
        if next > Time::ZERO.after(WORLD_MAX) {
            return Err(format!("the world does not end: {}", self.unfinished()));
        }
        self.network.advance_to(next.max(self.network.now()));
        Ok(())
    }

    fn run_due_event(&mut self, now: Time) -> Result<bool, String> {
        let Some(entry) = self.scheduled_events.first_entry().filter(|entry| entry.key().0 <= now) else {
            return Ok(false);
        };
        match entry.remove() {
            ScheduledEvent::StartSuccessor => self.begin_succession()?,
            ScheduledEvent::EventForSuccessor(number, event) => {
                if self.new.as_ref().is_some_and(|new| new.number == number) {
                    self.deliver_to_successor(event)?;
                }
            }
            ScheduledEvent::Ready(number) => {
                if self.predecessor_server.is_some()
                    && self.new.as_ref().is_some_and(|new| new.number == number)
                {
                    self.send(PredecessorEvent::PathGranted);
                }
            }
            ScheduledEvent::Taken(number) => self.begin_predecessor_drain(number),
            ScheduledEvent::Kill(side) => self.kill(side, now)?,
            ScheduledEvent::Restart => self.restart()?,
            ScheduledEvent::DiskFailureBegins => self.begin_disk_failure(now),
            ScheduledEvent::DiskFailureEnds => {
                self.note("disk failure ends");
                self.disk_faults = None;
                self.set_faults();
            }
        }
        Ok(true)
    }

    /// Starts a successor, which reports that it is ready.
    fn begin_succession(&mut self) -> Result<(), String> {
        self.promote();
        let is_free = self
            .predecessor_server
            .as_ref()
            .is_some_and(|predecessor_server| predecessor_server.predecessor_drain.is_none())
            && self.new.is_none();
        if !is_free {
            let later = self.span(50, 200);
            self.schedule(later, ScheduledEvent::StartSuccessor);
            return Ok(());
        }
        let mut server = self.start_server(PredecessorState::Running(|_| ()))?;
        Succession::begin(&server.lifecycle, false);
        let succession = Some(Succession::new(server.lifecycle.clone()));
        server.listen(&self.network, &self.addresses.1)?;
        self.successors += 1;
        self.server_generation += 1;
        self.events.ready += 1;
        let number = self.successors;
        self.new =
            Some(SuccessorServer { server, succession, number, has_taken_over: false, is_released: false });
        self.message_at = self.network.now();
        let ready = self.span(1, 40);
        self.schedule(ready, ScheduledEvent::Ready(number));
        self.handle_step_reached(HandoverStep::Ready);
        Ok(())
    }

    /// Delivers an event or the end of the predecessor to the successor.
    fn deliver_to_successor(&mut self, event: PredecessorEvent) -> Result<(), String> {
        let Some(new) = &mut self.new else { return Ok(()) };
        let Some(succession) = &mut new.succession else { return Ok(()) };
        match succession.receive(event) {
            SuccessionAction::TakeOver => {
                succession.path_taken();
                new.has_taken_over = true;
                new.server.listen(&self.network, &self.addresses.0)?;
                self.server_generation += 1;
                if event == PredecessorEvent::PathGranted {
                    self.events.taken_over += 1;
                    let after = self.span(0, 10);
                    let number = self.successors;
                    self.schedule(after, ScheduledEvent::Taken(number));
                    self.handle_step_reached(HandoverStep::TakenOver);
                } else {
                    self.events.took_over_after_end += 1;
                    return self.deliver_to_successor(event);
                }
            }
            SuccessionAction::Open => {
                new.is_released = true;
                self.handle_step_reached(HandoverStep::Opening);
            }
            SuccessionAction::Nothing => {}
            SuccessionAction::Fail => {
                return Err(format!("a successor received {event:?} at the wrong step"));
            }
        }
        Ok(())
    }

    /// Delivers `taken` to the predecessor, which drains if the successor is running.
    fn begin_predecessor_drain(&mut self, number: u64) {
        let is_running = self.new.as_ref().is_some_and(|new| new.number == number);
        if let Some(predecessor_server) = &mut self.predecessor_server
            && is_running
        {
            predecessor_server.predecessor_drain =
                Some(PredecessorDrain::begin(predecessor_server.server.lifecycle.clone()));
            self.server_generation += 1;
            self.note("drains");
        }
    }

    /// Checks what servers have reached by themselves. Returns whether anything changed.
    fn check_servers(&mut self, now: Time) -> Result<bool, String> {
        if self.check_predecessor(now)? {
            return Ok(true);
        }
        let is_handing_over = self.new.is_some()
            || self
                .predecessor_server
                .as_ref()
                .is_none_or(|predecessor_server| predecessor_server.predecessor_drain.is_some());
        match self.phase {
            SuccessionPhase::Running if !self.scheduled_events.is_empty() => Ok(false),
            SuccessionPhase::Running if is_handing_over => Ok(self.promote()),
            SuccessionPhase::Running if self.clients.is_empty() => {
                // The hand-over of empty streams is over.
                self.add_clients(Duration::from_nanos(now.as_nanos()));
                Ok(true)
            }
            SuccessionPhase::Running => {
                let frozen = self
                    .predecessor_server
                    .as_ref()
                    .map_or(0, |predecessor_server| predecessor_server.server.frozen());
                if frozen > 0 {
                    // The operator notices it and restarts.
                    self.events.frozen += frozen;
                    let after = self.span(10, 1000);
                    self.schedule(after, ScheduledEvent::StartSuccessor);
                    return Ok(true);
                }
                let is_done =
                    self.clients.iter().filter(|client| client.is_source()).all(StreamsClient::is_done);
                if is_done {
                    self.start_final_followers(now)?;
                }
                Ok(is_done)
            }
            SuccessionPhase::Following => {
                let is_done = self.clients.iter().all(StreamsClient::is_done);
                if is_done && let Some(predecessor_server) = &self.predecessor_server {
                    predecessor_server.server.lifecycle.end();
                    self.server_generation += 1;
                    self.phase = SuccessionPhase::Ending;
                }
                Ok(is_done)
            }
            SuccessionPhase::Ending => self.finish(),
            SuccessionPhase::Over => Ok(false),
        }
    }

    /// Checks whether the predecessor has reached a further step.
    fn check_predecessor(&mut self, now: Time) -> Result<bool, String> {
        let Some(predecessor_server) = &mut self.predecessor_server else { return Ok(false) };
        let Some(predecessor_drain) = &mut predecessor_server.predecessor_drain else { return Ok(false) };
        if predecessor_server.server.is_sealing()
            && !std::mem::replace(&mut predecessor_server.has_sealed, true)
        {
            self.handle_step_reached(HandoverStep::Sealing);
            return Ok(true);
        }
        if predecessor_drain.poll_released() {
            self.events.released += 1;
            self.audit()?;
            self.send(PredecessorEvent::Released);
            self.handle_step_reached(HandoverStep::Released);
            return Ok(true);
        }
        if predecessor_server.ends_at.is_none()
            && predecessor_server.server.has_stopped()
            && predecessor_server.server.has_released()
        {
            predecessor_server.server.check_end()?;
            let span = Duration::from_micros(self.random.below(100_000));
            predecessor_server.ends_at = Some(now.after(span));
        }
        if predecessor_server.ends_at.is_some_and(|at| at <= now) {
            self.predecessor_server = None;
            self.note("predecessor ends");
            self.send(PredecessorEvent::Ended);
            return Ok(true);
        }
        Ok(false)
    }

    /// Makes a successor that has completed the hand-over the current server. Returns whether there was one.
    fn promote(&mut self) -> bool {
        let is_over =
            |new: &SuccessorServer| new.is_released && !new.server.is_opening() && new.server.has_streams();
        if self.predecessor_server.is_some() || !self.new.as_ref().is_some_and(is_over) {
            return false;
        }
        let new = self.new.take();
        self.predecessor_server = new.map(|new| PredecessorServer {
            server: new.server,
            predecessor_drain: None,
            has_sealed: false,
            ends_at: None,
        });
        self.predecessor_server.is_some()
    }

    fn kill(&mut self, side: HandoverSide, now: Time) -> Result<(), String> {
        let server = match side {
            HandoverSide::Predecessor => {
                self.predecessor_server.take().map(|predecessor_server| predecessor_server.server)
            }
            HandoverSide::Successor => self.new.take().map(|new| new.server),
        };
        let Some(server) = server else { return Ok(()) };
        self.note(if side == HandoverSide::Predecessor {
            "predecessor is killed"
        } else {
            "successor is killed"
        });
        self.events.killed += 1;
        self.server_generation += 1;
        let had_streams = server.has_streams();
        server.kill(&self.disks, now, &mut self.random);
        self.set_faults();
        if had_streams {
            self.audit()?;
        }
        let pause = self.span(20, 500);
        match side {
            HandoverSide::Predecessor if self.new.is_some() => self.send(PredecessorEvent::Ended),
            HandoverSide::Successor
                if self
                    .predecessor_server
                    .as_ref()
                    .is_some_and(|predecessor_server| predecessor_server.predecessor_drain.is_none()) =>
            {
                self.schedule(pause, ScheduledEvent::StartSuccessor);
            }
            _ => self.schedule(pause, ScheduledEvent::Restart),
        }
        Ok(())
    }

    /// Starts a server while none accepts. If a predecessor still has the streams, it waits for their locks.
    fn restart(&mut self) -> Result<(), String> {
        match self.start_server(PredecessorState::Ending(|_| ())) {
            Ok(mut server) => {
                self.listen(&mut server)?;
                self.events.restarts += 1;
                self.server_generation += 1;
                self.note("restart");
                self.successors += 1;
                let number = self.successors;
                self.new = Some(SuccessorServer {
                    server,
                    succession: None,
                    number,
                    has_taken_over: true,
                    is_released: true,
                });
            }
            Err(error) if self.disk_faults.is_some() => {
                self.note(&error);
                self.events.unopened += 1;
                let later = self.span(100, 1000);
                self.schedule(later, ScheduledEvent::Restart);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn begin_disk_failure(&mut self, now: Time) {
        self.note("disk failure begins");
        let spans = if self.random.chance(500) { (1, 2000) } else { (2000, 25_000) };
        let span = self.span(spans.0, spans.1);
        match self.case.disk {
            DiskCondition::Healthy => {}
            DiskCondition::Hung => self.hangs_until = now.after(span),
            DiskCondition::Full => {
                self.disk_faults = Some(DiskFaults { create: Some(ENOSPC), ..DiskFaults::default() });
            }
            DiskCondition::WritesFail => {
                let after = self.random.below(4) as u32;
                let times = self.random.between(1, 20) as u32;
                let (writes, writes_max) = (Some((after, EIO)), Some(times));
                self.disk_faults = Some(DiskFaults { writes, writes_max, ..DiskFaults::default() });
            }
        }
        self.set_faults();
        self.schedule(span, ScheduledEvent::DiskFailureEnds);
    }

    /// Applies the current faults to all disks, after a crash replaced disks or a fault began or ended.
    fn set_faults(&mut self) {
        let faults = self.disk_faults.unwrap_or_default();
        self.disks.all().iter().for_each(|disk| disk.fail(faults));
    }

    fn audit(&mut self) -> Result<(), String> {
        let disks = self.disks.all();
        self.ledgers.iter_mut().zip(&disks).try_for_each(|(ledger, disk)| ledger.audit(disk))
    }

    /// Ends the other clients after all publications; followers then read every stream from its beginning.
    fn start_final_followers(&mut self, now: Time) -> Result<(), String> {
        self.audit()?;
        self.clients.iter_mut().for_each(StreamsClient::stop);
        for (number, ledger) in self.ledgers.iter().enumerate() {
            if let Some(last) = ledger.last() {
                self.clients.push(StreamsClient::follower((self.clients.len(), number), now, Some(last)));
            }
        }
        self.phase = SuccessionPhase::Following;
        Ok(())
    }

    /// Ends the last server in order.
    fn finish(&mut self) -> Result<bool, String> {
        let Some(predecessor_server) = &mut self.predecessor_server else {
            return Err("no server is left".to_owned());
        };
        if !(predecessor_server.server.has_stopped() && predecessor_server.server.has_released()) {
            return Ok(false);
        }
        predecessor_server.server.check_end()?;
        self.predecessor_server = None;
        self.audit()?;
        self.phase = SuccessionPhase::Over;
        Ok(true)
    }

    fn step_clients(&mut self, now: Time) -> Result<bool, String> {
        self.network.take_changed(&mut self.changed);
        let changed = std::mem::take(&mut self.changed);
        let serves_old = self
            .predecessor_server
            .as_ref()
            .is_some_and(|predecessor_server| predecessor_server.predecessor_drain.is_none());
        let serves_new = self.new.as_ref().is_some_and(|new| new.has_taken_over);
        let is_served = self.phase != SuccessionPhase::Ending && (serves_old || serves_new);
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

    fn note(&self, what: &str) {
        self.network.state().note("operator", self.server_generation, what, 0, 0);
    }

    fn unfinished(&mut self) -> String {
        let clients = self.clients.iter().filter(|client| !client.is_done());
        let texts: Vec<String> = clients.map(|client| client.failure_message("is not finished")).collect();
        let servers = (
            self.predecessor_server.as_mut().map(|predecessor_server| predecessor_server.server.describe()),
            self.new.as_mut().map(|new| new.server.describe()),
        );
        format!(
            "{:?}, servers {servers:#?}, scheduled {:?}\n{}",
            self.phase,
            self.scheduled_events,
            texts.join("\n")
        )
    }

    fn report(mut self) -> Result<SuccessionReport, String> {
        self.events.records = self.ledgers.iter().map(|ledger| ledger.records).sum();
        Ok(SuccessionReport {
            case: self.case,
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
