//! A small world of on-demand connections: the owner of a shard echoes. It waits for readiness, ignores waits
//! and requests them again, receives without a wait, and moves connections and the listener, at random. Every requested
//! call must come, no other may, and a reported connection has something to receive. Clients verify every echoed byte;
//! none may be refused.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::counters::EngineCounters;
use stilling_engine::driver::Wait;
use stilling_engine::{
    AdoptErrorKind, CloseReason, Detached, Io, Service, Session, Shard, ShardConfig, Token,
};
use stilling_ring::Wake;

use crate::echo::{CLIENTS, EchoClient, FAULTS_STOP, HANG_UP, WORLD_ENDS};
use crate::faults::FaultRates;
use crate::network::{Address, Network, NetworkOptions, SimSocket};
use crate::report::{RunReport, SeedFailure, attempt};
use crate::turns::TURNS_AT_ONCE_MAX;
use crate::{SimDriver, SplitMix64};

/// Bytes that the owner holds of a connection before it stops receiving.
const HELD_MAX: usize = 4096;

/// Result of a world without failures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnDemandReport {
    /// The run; `None` until it has ended.
    pub report: Option<RunReport>,
    /// Calls of `readable`.
    pub readable: u64,
    /// Calls of `writable`.
    pub writable: u64,
    /// Ignored waits that were requested again at once.
    pub requested_again: u64,
    /// Connections that were detached and adopted.
    pub moved: u64,
    /// Times that the listener was detached and added again.
    pub listener_moved: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnerCall {
    Opened(Token),
    Readable,
    Writable,
    Closed(CloseReason),
}

#[derive(Default)]
struct OwnerService {
    accepted: u32,
    /// Calls of sessions, with the numbers of their connections.
    calls: Vec<(u32, OwnerCall)>,
    detached: Vec<Detached<SimSocket, OwnerSession>>,
}

struct OwnerSession {
    number: u32,
}

impl Service for OwnerService {
    type Session = OwnerSession;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> OwnerSession {
        self.accepted += 1;
        OwnerSession { number: self.accepted }
    }
}

impl Session for OwnerSession {
    type Service = OwnerService;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut OwnerService) {
        io.receive_on_demand();
        service.calls.push((self.number, OwnerCall::Opened(io.token())));
    }

    fn received(&mut self, _: &[u8], _: &mut Io<'_>, _: &mut OwnerService) -> usize {
        panic!("an on-demand connection was received from");
    }

    fn readable(&mut self, _: &mut Io<'_>, service: &mut OwnerService) {
        service.calls.push((self.number, OwnerCall::Readable));
    }

    fn writable(&mut self, _: &mut Io<'_>, service: &mut OwnerService) {
        service.calls.push((self.number, OwnerCall::Writable));
    }

    fn closed(&mut self, reason: CloseReason, service: &mut OwnerService) {
        service.calls.push((self.number, OwnerCall::Closed(reason)));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnedState {
    Open,
    /// It is detached, to be adopted again.
    Moving,
    /// It is aborted.
    Leaving,
}

/// A connection as its owner sees it.
struct OwnedConnection {
    token: Token,
    state: OwnedState,
    /// Received and not sent yet.
    held: Vec<u8>,
    awaits_readable: bool,
    awaits_writable: bool,
    /// `readable` was called, and nothing was received since.
    is_readable: bool,
    hangs_up: bool,
    has_received: bool,
    has_ended: bool,
}

impl OwnedConnection {
    fn new(token: Token) -> Self {
        OwnedConnection {
            token,
            state: OwnedState::Open,
            held: Vec::new(),
            awaits_readable: false,
            awaits_writable: false,
            is_readable: false,
            hangs_up: false,
            has_received: false,
            has_ended: false,
        }
    }

    /// Records a call of its session. Returns whether that was requested.
    fn record(&mut self, call: OwnerCall) -> bool {
        match (call, self.state) {
            (OwnerCall::Opened(token), OwnedState::Moving) => {
                (self.token, self.state) = (token, OwnedState::Open);
                (self.awaits_readable, self.awaits_writable, self.is_readable) = (false, false, false);
                true
            }
            (OwnerCall::Readable, OwnedState::Open) => {
                self.is_readable = true;
                std::mem::take(&mut self.awaits_readable)
            }
            (OwnerCall::Writable, OwnedState::Open) => std::mem::take(&mut self.awaits_writable),
            (OwnerCall::Closed(_), OwnedState::Moving | OwnedState::Leaving) => true,
            _ => false,
        }
    }
}

type OwnedShard = Shard<SimDriver, OwnerService>;

/// The world's only listener, as the owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnedListener {
    Accepting(u32),
    /// It is detached, to be added again when the shard has released it.
    Moving(u32),
}

struct OnDemandWorld {
    network: Network,
    random: SplitMix64,
    shard: OwnedShard,
    listener: OwnedListener,
    /// A full shard refuses accepted connections that have no slot when it releases the listener.
    moves_listener: bool,
    connections: BTreeMap<u32, OwnedConnection>,
    /// The owner does only what it is called for.
    is_calm: bool,
    report: OnDemandReport,
}

impl OnDemandWorld {
    fn build(seed: u64, faults: FaultRates) -> (OnDemandWorld, Address) {
        let mut random = SplitMix64::new(seed);
        let options = NetworkOptions {
            latency: (Duration::from_micros(20), Duration::from_micros(random.between(20, 2000))),
            buffer: random.between(100, 20_000) as usize,
            faults,
        };
        let network = Network::new(random.bits(), options);
        let moves_listener = random.chance(500);
        let capacity = if moves_listener { CLIENTS as u64 } else { random.between(1, CLIENTS as u64) } as u32;
        let config = ShardConfig { capacity, ..ShardConfig::default() };
        let (wake, counters) = (Arc::new(Wake::new(|| ())), Arc::new(EngineCounters::default()));
        let driver = SimDriver::with_buffers(&network, 1);
        let mut shard = Shard::new(driver, OwnerService::default(), config, network.clock(), wake, counters);
        shard.on_detached(|service: &mut OwnerService, connection| service.detached.push(connection));
        let listener = network.listen(Address::Tcp("10.0.0.1:80".parse().expect("an address")), 5, None);
        let address = listener.listening_at().expect("it listens");
        let listener = OwnedListener::Accepting(shard.listen(listener, false).expect("the first listener"));
        let world = OnDemandWorld {
            network,
            random,
            shard,
            listener,
            moves_listener,
            connections: BTreeMap::new(),
            is_calm: false,
            report: OnDemandReport::default(),
        };
        (world, address)
    }

    /// Turns as a foreign loop does, until the shard may wait.
    fn run_until_idle(&mut self) -> Result<(), String> {
        for _ in 0..TURNS_AT_ONCE_MAX {
            self.shard.turn(false).map_err(|error| error.to_string())?;
            self.shard.audit()?;
            self.record_calls()?;
            self.adopt()?;
            self.move_listener()?;
            self.act()?;
            if self.shard.prepare_to_wait() != Wait::No && !self.shard.driver().has_pending_events() {
                return Ok(());
            }
        }
        Err("the shard spins: too many turns while time stands still".to_owned())
    }

    fn record_calls(&mut self) -> Result<(), String> {
        for (number, call) in std::mem::take(&mut self.shard.service().calls) {
            self.report.readable += u64::from(call == OwnerCall::Readable);
            self.report.writable += u64::from(call == OwnerCall::Writable);
            let is_requested = match (self.connections.get_mut(&number), call) {
                (Some(it), call) => it.record(call),
                (None, OwnerCall::Opened(token)) => {
                    self.connections.insert(number, OwnedConnection::new(token));
                    true
                }
                // The driver could not attach its socket.
                (None, OwnerCall::Closed(reason)) => reason == CloseReason::SystemError,
                (None, _) => false,
            };
            if !is_requested {
                return Err(format!("connection {number}: {call:?} was not requested"));
            }
            if matches!(call, OwnerCall::Closed(reason) if reason != CloseReason::Detached) {
                self.connections.remove(&number);
            }
        }
        Ok(())
    }

    fn adopt(&mut self) -> Result<(), String> {
        for connection in std::mem::take(&mut self.shard.service().detached) {
            if !connection.unread.is_empty() {
                return Err("the shard has received".to_owned());
            }
            match self.shard.adopt(connection) {
                Ok(_) => self.report.moved += 1,
                Err(error) if error.error_kind == AdoptErrorKind::NoFreeSlot => {
                    self.shard.service().detached.push(error.connection);
                }
                Err(error) => return Err(format!("not adopted: {:?}", error.error_kind)),
            }
        }
        self.record_calls()
    }

    fn move_listener(&mut self) -> Result<(), String> {
        match self.listener {
            OwnedListener::Accepting(number) => {
                if self.moves_listener && !self.is_calm && self.random.chance(50) {
                    if !self.shard.detach_listener(number) {
                        return Err("the listener is not detached".to_owned());
                    }
                    self.listener = OwnedListener::Moving(number);
                }
            }
            OwnedListener::Moving(number) => {
                if let Some(socket) = self.shard.take_detached_listener(number) {
                    let number = self.shard.listen(socket, false).map_err(|error| error.to_string())?;
                    self.listener = OwnedListener::Accepting(number);
                    self.report.listener_moved += 1;
                }
            }
        }
        Ok(())
    }

    fn act(&mut self) -> Result<(), String> {
        let OnDemandWorld { random, shard, connections, is_calm, report, .. } = self;
        let mut owner = Owner { random, shard, is_calm: *is_calm, report };
        for (number, it) in connections.iter_mut().filter(|(_, it)| it.state == OwnedState::Open) {
            owner.act_on(it).map_err(|why| format!("connection {number}: {why}"))?;
        }
        Ok(())
    }

    /// Advances time to the next event, at most one millisecond.
    fn wait(&mut self) {
        let soon = self.network.now().after(Duration::from_millis(1));
        let next = [self.network.next_event(), self.shard.next_deadline()].into_iter().flatten().min();
        self.network.advance_to(next.map_or(soon, |next| next.min(soon)).max(self.network.now()));
    }
}

/// What acts on one connection.
struct Owner<'a> {
    random: &'a mut SplitMix64,
    shard: &'a mut OwnedShard,
    is_calm: bool,
    report: &'a mut OnDemandReport,
}

impl Owner<'_> {
    /// Whether to do something that is to be done in any case when the world is calm.
    fn does(&mut self, chance: u16) -> bool {
        self.is_calm || self.random.chance(chance)
    }

    /// Whether to do something that is not necessary.
    fn does_more(&mut self, chance: u16) -> bool {
        !self.is_calm && self.random.chance(chance)
    }

    fn act_on(&mut self, it: &mut OwnedConnection) -> Result<(), String> {
        let receives = if it.is_readable { self.does(700) } else { self.does_more(50) };
        if receives && !it.has_ended && it.held.len() < HELD_MAX {
            self.receive(it)?;
        }
        let sends = if it.awaits_writable { self.does_more(30) } else { self.does(700) };
        if sends && it.state == OwnedState::Open && !it.held.is_empty() {
            self.send(it)?;
        }
        if it.state != OwnedState::Open {
            return Ok(());
        }
        let is_done = it.has_ended || (it.hangs_up && it.has_received);
        if is_done && it.held.is_empty() {
            self.abort(it);
        } else if self.does_more(20) {
            it.state = OwnedState::Moving;
            self.with(it, |_, io| io.detach())?;
        } else {
            self.change_waits(it)?;
        }
        Ok(())
    }

    fn receive(&mut self, it: &mut OwnedConnection) -> Result<(), String> {
        let mut into = vec![0; self.random.between(1, 2000) as usize];
        let is_reported = std::mem::take(&mut it.is_readable);
        match self.shard.receive_now(it.token, &mut into) {
            Ok(0) => it.has_ended = true,
            Ok(count) => {
                it.hangs_up |= !std::mem::replace(&mut it.has_received, true) && into[0] == HANG_UP;
                it.held.extend(&into[..count]);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if is_reported {
                    return Err("it is readable, but there is nothing to receive".to_owned());
                }
            }
            Err(_) => self.abort(it),
        }
        Ok(())
    }

    fn send(&mut self, it: &mut OwnedConnection) -> Result<(), String> {
        match self.shard.send_now(it.token, &it.held) {
            Ok(count) => drop(it.held.drain(..count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                it.awaits_writable = true;
                self.with(it, |_, io| io.await_writable())?;
            }
            Err(_) => self.abort(it),
        }
        Ok(())
    }

    fn change_waits(&mut self, it: &mut OwnedConnection) -> Result<(), String> {
        if it.awaits_writable && self.does_more(50) {
            it.awaits_writable = false;
            self.with(it, |_, io| io.ignore_writable())?;
        }
        if it.awaits_readable && self.does_more(200) {
            it.awaits_readable = self.random.chance(700);
            self.report.requested_again += u64::from(it.awaits_readable);
            let again = it.awaits_readable;
            self.with(it, |_, io| {
                io.ignore_readable();
                if again {
                    io.await_readable();
                }
            })?;
        } else if !it.awaits_readable && !it.is_readable && !it.has_ended && self.does(700) {
            it.awaits_readable = true;
            self.with(it, |_, io| io.await_readable())?;
        }
        Ok(())
    }

    fn with(
        &mut self,
        it: &OwnedConnection,
        act: impl FnOnce(&mut OwnerSession, &mut Io<'_>),
    ) -> Result<(), String> {
        self.shard.with(it.token, act).ok_or_else(|| "it is not open".to_owned())
    }

    fn abort(&mut self, it: &mut OwnedConnection) {
        it.state = OwnedState::Leaving;
        self.shard.abort(it.token, CloseReason::Done);
    }
}

/// Runs the world of `seed`.
///
/// # Errors
/// If an echo is wrong or missing, a call of a session is missing or was not requested, or a resource was not returned.
pub fn run(seed: u64, faults: FaultRates) -> Result<OnDemandReport, SeedFailure> {
    attempt(seed, || play(seed, faults))
}

fn play(seed: u64, faults: FaultRates) -> Result<OnDemandReport, String> {
    let (mut world, address) = OnDemandWorld::build(seed, faults);
    let mut clients: Vec<EchoClient> = Vec::new();
    loop {
        if clients.len() < CLIENTS && world.random.chance(300) {
            clients.push(EchoClient::new(&world.network, address.clone(), &mut world.random));
        }
        let mut finished = clients.len() == CLIENTS;
        for (number, client) in clients.iter_mut().enumerate() {
            finished &= client.step(&mut world.random).map_err(|why| format!("client {number}: {why}"))?;
        }
        world.run_until_idle()?;
        if finished && world.shard.open_connections() == 0 && world.connections.is_empty() {
            break;
        }
        world.wait();
        if world.network.now() > FAULTS_STOP {
            world.network.stop_faults();
            world.is_calm = true;
        }
        if world.network.now() > WORLD_ENDS {
            return Err("a client waits for ever".to_owned());
        }
    }
    world.network.stop_faults();
    world.is_calm = true;
    while let OwnedListener::Moving(_) = world.listener {
        world.wait();
        world.run_until_idle()?;
    }
    let OwnedListener::Accepting(listener) = world.listener else { unreachable!("it has moved") };
    world.shard.close_listener(listener);
    for _ in 0..10 {
        world.wait();
        world.run_until_idle()?;
    }
    world.check_drained()?;
    let report = RunReport {
        trace_hash: world.network.trace_hash(),
        faults: world.network.fault_counts(),
        until: world.network.now(),
    };
    Ok(OnDemandReport { report: Some(report), ..world.report })
}

impl OnDemandWorld {
    /// Checks that everything was returned, and every connection ended with one reason.
    fn check_drained(&mut self) -> Result<(), String> {
        self.shard.driver().assert_drained();
        let counters = Arc::clone(self.shard.counters());
        let (arrived, closed) = (counters.accepted.get() + counters.adopted.get(), counters.closed_total());
        match (self.shard.held_bytes(), arrived == closed + counters.refused_full.get()) {
            ((0, 0), true) => Ok(()),
            (held, _) => Err(format!("{arrived} connections arrived, {closed} closed; held: {held:?}")),
        }
    }
}
