//! A small world of migrating connections: two engine shards over one network, an echo session that detaches its socket
//! at random times, and clients that verify every echoed byte.
//!
//! ```text
//!  clients ─ network ─┬─ shard 0 (listens) ─ on_detached ─▶ transfer queue ─ adopt ─┐
//!                     └─ shard 1 (few slots) ◀──────────────────────────────────────┴─▶ either shard
//! ```
//!
//! Connections stay in the transfer queue for a while, as between two threads; a full shard returns them to it. Lost,
//! duplicated or misdirected data causes a wrong or missing echo. At the end all slots are free, all buffers and
//! stashes are returned, and every connection of each shard has ended with one reason.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::counters::EngineCounters;
use stilling_engine::{
    AdoptError, AdoptErrorKind, CloseReason, Detached, Io, Service, Session, Shard, ShardConfig, ShardControl,
};
use stilling_ring::{Time, Wake};

use crate::SplitMix64;
use crate::driver::SimDriver;
use crate::echo::{CLIENTS, EchoClient, FAULTS_STOP, HANG_UP, WORLD_ENDS};
use crate::faults::FaultRates;
use crate::network::{Address, Network, NetworkOptions, SimSocket};
use crate::report::{RunReport, SeedFailure, attempt};

/// Turns of both shards while time stands still; more count as spinning.
const TURNS_AT_ONCE_MAX: u32 = 10_000;

/// Result of a world without failures.
#[derive(Clone, Debug)]
pub struct MigrationReport {
    /// Hash, faults and end.
    pub report: RunReport,
    /// Connections adopted by either shard.
    pub adopted: u64,
    /// Of `adopted`: through `ShardControl`.
    pub through_control: u64,
    /// Adoptions refused by a full shard.
    pub refused: u64,
    /// Bytes already received when their connection was detached.
    pub carried_bytes: u64,
    /// Connections that ended in another way while detaching.
    pub ended_detaching: u64,
}

type DetachedConnection = Detached<SimSocket, MigratingEchoSession>;

/// Connections between shards.
#[derive(Default)]
struct TransferQueue {
    moving: VecDeque<(Time, DetachedConnection)>,
    report: TransferCounts,
}

#[derive(Clone, Copy, Debug, Default)]
struct TransferCounts {
    carried_bytes: u64,
    ended_detaching: u64,
    refused: u64,
    through_control: u64,
}

/// State shared by one shard's echo sessions.
struct MigratingEchoService {
    random: SplitMix64,
    transfers: Rc<RefCell<TransferQueue>>,
    /// Whether the service fetches connections from the transfer queue during its turn.
    fetches: bool,
    ends: bool,
}

/// Echo session; detaches its socket at random times.
struct MigratingEchoSession {
    has_received: bool,
    is_detaching: bool,
}

impl MigratingEchoSession {
    fn detach_at_random(&mut self, io: &mut Io<'_>, service: &mut MigratingEchoService, per_mille: u16) {
        if service.random.chance(per_mille) && !io.is_finishing() {
            io.detach();
            self.is_detaching = true;
        }
    }
}

impl Session for MigratingEchoSession {
    type Service = MigratingEchoService;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut MigratingEchoService) {
        self.detach_at_random(io, service, 50);
    }

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, service: &mut MigratingEchoService) -> usize {
        let most = bytes.len().min(io.room());
        let taken = match service.random.chance(300) {
            true => service.random.between(0, most as u64) as usize,
            false => most,
        };
        if taken > 0 {
            io.send(&bytes[..taken]).expect("there is room");
            if !std::mem::replace(&mut self.has_received, true) && bytes[0] == HANG_UP {
                io.finish(CloseReason::Done);
            }
        }
        self.detach_at_random(io, service, 200);
        if taken < bytes.len() {
            // Also while detaching: the call must then have no effect.
            io.call_again();
        }
        taken
    }

    fn ended(&mut self, io: &mut Io<'_>, service: &mut MigratingEchoService) {
        self.detach_at_random(io, service, 100);
        io.finish(CloseReason::PeerClosed);
    }

    fn flushed(&mut self, io: &mut Io<'_>, service: &mut MigratingEchoService) {
        self.detach_at_random(io, service, 100);
    }

    fn closed(&mut self, reason: CloseReason, service: &mut MigratingEchoService) {
        if self.is_detaching && reason != CloseReason::Detached {
            service.transfers.borrow_mut().report.ended_detaching += 1;
        }
        self.is_detaching = false;
    }
}

impl Service for MigratingEchoService {
    type Session = MigratingEchoSession;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> MigratingEchoSession {
        MigratingEchoSession { has_received: false, is_detaching: false }
    }

    fn turn(&mut self, control: &mut ShardControl<'_, Self>) -> Option<Time> {
        if self.ends {
            control.close_listeners();
        }
        if !self.fetches {
            return None;
        }
        let mut transfers = self.transfers.borrow_mut();
        while transfers.moving.front().is_some_and(|(ready, _)| *ready <= control.now) {
            let (ready, it) = transfers.moving.pop_front().expect("just seen");
            if let Err(AdoptError { error_kind, connection }) = control.adopt(it) {
                assert_eq!(error_kind, AdoptErrorKind::NoFreeSlot);
                transfers.report.refused += 1;
                transfers.moving.push_front((ready, connection));
                break;
            }
            transfers.report.through_control += 1;
        }
        None
    }
}

type MigrationShard = Shard<SimDriver, MigratingEchoService>;

struct MigrationWorld {
    network: Network,
    random: SplitMix64,
    transfers: Rc<RefCell<TransferQueue>>,
    shards: [MigrationShard; 2],
}

impl MigrationWorld {
    fn build(seed: u64, faults: FaultRates) -> (MigrationWorld, Address) {
        let mut random = SplitMix64::new(seed);
        let options = NetworkOptions {
            latency: (Duration::from_micros(20), Duration::from_micros(random.between(20, 2000))),
            buffer: random.between(100, 20_000) as usize,
            faults,
        };
        let network = Network::new(random.bits(), options);
        let transfers = Rc::new(RefCell::new(TransferQueue::default()));
        let mut shards = [CLIENTS as u32, random.between(1, 6) as u32].map(|capacity| {
            let driver = SimDriver::with_buffers(&network, random.between(1, 8) as u16);
            let service = MigratingEchoService {
                random: SplitMix64::new(random.bits()),
                transfers: Rc::clone(&transfers),
                fetches: random.chance(500),
                ends: false,
            };
            let park_after = Duration::from_micros(random.between(100, 20_000));
            let config = ShardConfig { capacity, park_after, ..ShardConfig::default() };
            let wake = Arc::new(Wake::new(|| ()));
            let counters = Arc::new(EngineCounters::default());
            let mut shard = Shard::new(driver, service, config, network.clock(), wake, counters);
            shard.on_detached(|service: &mut MigratingEchoService, it| {
                let mut transfers = service.transfers.borrow_mut();
                transfers.report.carried_bytes += it.unread.len() as u64;
                let rest = Duration::from_micros(service.random.between(0, 3000));
                let ready = it.socket.network().now().after(rest);
                transfers.moving.push_back((ready, it));
            });
            shard
        });
        let listener = network.listen(Address::Tcp("10.0.0.1:80".parse().expect("an address")), 5, None);
        let address = listener.listening_at().expect("it listens");
        shards[0].listen(listener, false).expect("the first listener");
        (MigrationWorld { network, random, transfers, shards }, address)
    }

    /// Turns both shards until nothing more happens at this point in time.
    fn run_until_idle(&mut self) -> Result<(), String> {
        for _ in 0..TURNS_AT_ONCE_MAX {
            let before = self.network.activity();
            self.adopt()?;
            for shard in &mut self.shards {
                shard.turn(false).map_err(|error| error.to_string())?;
                shard.audit()?;
            }
            if self.network.activity() == before {
                return Ok(());
            }
        }
        Err("the shards spin: too many turns while time stands still".to_owned())
    }

    /// Adopts each due connection on a random shard, unless that shard fetches its connections itself.
    fn adopt(&mut self) -> Result<(), String> {
        let now = self.network.now();
        let waiting = self.transfers.borrow().moving.len();
        for _ in 0..waiting {
            let (ready, it) = self.transfers.borrow_mut().moving.pop_front().expect("counted");
            let shard = &mut self.shards[self.random.index(2)];
            let outcome = if ready > now || shard.service().fetches { Ok(it) } else { Err(it) };
            let back = match outcome {
                Ok(early) => Some(early),
                Err(it) => match shard.adopt(it) {
                    Ok(_) => None,
                    Err(AdoptError { error_kind: AdoptErrorKind::NoFreeSlot, connection }) => {
                        self.transfers.borrow_mut().report.refused += 1;
                        Some(connection)
                    }
                    Err(AdoptError { error_kind, .. }) => return Err(format!("not adopted: {error_kind:?}")),
                },
            };
            if let Some(it) = back {
                self.transfers.borrow_mut().moving.push_back((ready, it));
            }
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.transfers.borrow().moving.is_empty()
            && self.shards.iter().all(|shard| shard.open_connections() == 0)
    }

    /// Advances time to the next event, at most one millisecond.
    fn wait(&mut self) {
        let mut next = self.network.now().after(Duration::from_millis(1));
        next = self.network.next_event().map_or(next, |event| event.min(next));
        for shard in &self.shards {
            next = shard.next_deadline().map_or(next, |deadline| deadline.min(next));
        }
        self.network.advance_to(next.max(self.network.now()));
    }
}

/// Runs the world of `seed`.
///
/// # Errors
/// If an echo is wrong or missing, a resource was not returned, or the driver contract is broken.
pub fn run(seed: u64, faults: FaultRates) -> Result<MigrationReport, SeedFailure> {
    attempt(seed, || play(seed, faults))
}

fn play(seed: u64, faults: FaultRates) -> Result<MigrationReport, String> {
    let (mut world, address) = MigrationWorld::build(seed, faults);
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
        if finished && world.is_empty() {
            break;
        }
        world.wait();
        if world.network.now() > FAULTS_STOP {
            world.network.stop_faults();
        }
        if world.network.now() > WORLD_ENDS {
            return Err("a client waits for ever".to_owned());
        }
    }
    world.network.stop_faults();
    for shard in &mut world.shards {
        shard.service().ends = true;
    }
    for _ in 0..10 {
        world.wait();
        world.run_until_idle()?;
    }
    let adopted = world.shards.iter_mut().map(check_shard).sum::<Result<u64, String>>()?;
    let TransferCounts { carried_bytes, ended_detaching, refused, through_control } =
        world.transfers.borrow().report;
    let network = &world.network;
    let report =
        RunReport { trace_hash: network.trace_hash(), faults: network.fault_counts(), until: network.now() };
    Ok(MigrationReport { report, adopted, through_control, refused, carried_bytes, ended_detaching })
}

/// Checks that the shard is empty and every connection ended with one reason. Returns the number of adopted
/// connections.
fn check_shard(shard: &mut MigrationShard) -> Result<u64, String> {
    shard.driver().assert_drained();
    let counters = Arc::clone(shard.counters());
    let (arrived, closed) = (counters.accepted.get() + counters.adopted.get(), counters.closed_total());
    match (shard.held_bytes(), arrived == closed) {
        ((0, 0), true) => Ok(counters.adopted.get()),
        (held, _) => Err(format!("{arrived} connections arrived, {closed} closed; held: {held:?}")),
    }
}
