//! A small world in which connections move: two shards of the engine over one network, an echo session that asks for its
//! socket at random moments, and clients that know every byte they must get back.
//!
//! ```text
//!  clients ─ network ─┬─ shard 0 (listens) ─ on_detached ─▶ the road ─ adopt ─┐
//!                     └─ shard 1 (few slots) ◀───────────────────────────────┴─▶ either shard
//! ```
//!
//! Connections rest on the road for a while, as they do between two threads, and a full shard gives them back to it. If
//! anything were lost, doubled or misdirected on the way, an echo would be wrong or never come; at the end every slot is
//! free, every buffer and stash is back, and every connection of each shard has ended with one reason.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::counters::Counters;
use stilling_engine::{
    CloseReason, Config, Control, Detached, Io, Refusal, Refused, Service, Session, Shard,
};
use stilling_ring::{Time, Wake};

use crate::SplitMix64;
use crate::driver::SimDriver;
use crate::echo::{CLIENTS, Client, FAULTS_STOP, HANG_UP, WORLD_ENDS};
use crate::faults::Faults;
use crate::network::{Address, Network, Options, SimSocket};
use crate::report::{Failure, Report, attempt};

/// Turns of both shards without the time moving. More: they spin.
const TURNS_AT_ONCE_MAX: u32 = 10_000;

/// A world that went well.
#[derive(Clone, Debug)]
pub struct MovingReport {
    /// Hash, faults and end.
    pub report: Report,
    /// Connections that were adopted, by either shard.
    pub adopted: u64,
    /// Of those, through `Control`.
    pub through_control: u64,
    /// Times that a shard had no room for one, and gave it back.
    pub refused: u64,
    /// Bytes that had been received when their connection left.
    pub carried: u64,
    /// Connections that ended otherwise although they were to leave.
    pub ended_leaving: u64,
}

type Moving = Detached<SimSocket, Echo>;

/// Connections between shards.
#[derive(Default)]
struct Road {
    moving: VecDeque<(Time, Moving)>,
    report: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    carried: u64,
    ended_leaving: u64,
    refused: u64,
    through_control: u64,
}

/// The shared part of one shard's echoes.
struct Echoes {
    random: SplitMix64,
    road: Rc<RefCell<Road>>,
    /// Whether this one fetches from the road by itself, during its turn.
    fetches: bool,
    ends: bool,
}

/// Echoes; at random moments it asks for its socket.
struct Echo {
    /// The first byte has been seen.
    begun: bool,
    /// It has asked for its socket, in this shard.
    leaving: bool,
}

impl Echo {
    fn perhaps_leave(&mut self, io: &mut Io<'_>, service: &mut Echoes, per_mille: u16) {
        if service.random.chance(per_mille) && !io.is_finishing() {
            io.detach();
            self.leaving = true;
        }
    }
}

impl Session for Echo {
    type Service = Echoes;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut Echoes) {
        self.perhaps_leave(io, service, 50);
    }

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, service: &mut Echoes) -> usize {
        let most = bytes.len().min(io.room());
        let taken = match service.random.chance(300) {
            true => service.random.between(0, most as u64) as usize,
            false => most,
        };
        if taken > 0 {
            io.send(&bytes[..taken]).expect("there is room");
            if !std::mem::replace(&mut self.begun, true) && bytes[0] == HANG_UP {
                io.finish(CloseReason::Done);
            }
        }
        self.perhaps_leave(io, service, 200);
        if taken < bytes.len() {
            // Also while it leaves: what it asks for is not its own any more.
            io.again();
        }
        taken
    }

    fn ended(&mut self, io: &mut Io<'_>, service: &mut Echoes) {
        self.perhaps_leave(io, service, 100);
        io.finish(CloseReason::PeerClosed);
    }

    fn flushed(&mut self, io: &mut Io<'_>, service: &mut Echoes) {
        self.perhaps_leave(io, service, 100);
    }

    fn closed(&mut self, reason: CloseReason, service: &mut Echoes) {
        if self.leaving && reason != CloseReason::Detached {
            service.road.borrow_mut().report.ended_leaving += 1;
        }
        self.leaving = false;
    }
}

impl Service for Echoes {
    type Session = Echo;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> Echo {
        Echo { begun: false, leaving: false }
    }

    fn turn(&mut self, control: &mut Control<'_, Self>) -> Option<Time> {
        if self.ends {
            control.close_listeners();
        }
        if !self.fetches {
            return None;
        }
        let mut road = self.road.borrow_mut();
        while road.moving.front().is_some_and(|(ready, _)| *ready <= control.now) {
            let (ready, it) = road.moving.pop_front().expect("just seen");
            if let Err(Refused { refusal, connection }) = control.adopt(it) {
                assert_eq!(refusal, Refusal::Slots);
                road.report.refused += 1;
                road.moving.push_front((ready, connection));
                break;
            }
            road.report.through_control += 1;
        }
        None
    }
}

type EchoShard = Shard<SimDriver, Echoes>;

struct World {
    network: Network,
    random: SplitMix64,
    road: Rc<RefCell<Road>>,
    shards: [EchoShard; 2],
}

impl World {
    fn build(seed: u64, faults: Faults) -> (World, Address) {
        let mut random = SplitMix64::new(seed);
        let options = Options {
            latency: (Duration::from_micros(20), Duration::from_micros(random.between(20, 2000))),
            buffer: random.between(100, 20_000) as usize,
            faults,
        };
        let network = Network::new(random.bits(), options);
        let road = Rc::new(RefCell::new(Road::default()));
        let mut shards = [CLIENTS as u32, random.between(1, 6) as u32].map(|capacity| {
            let driver = SimDriver::with_buffers(&network, random.between(1, 8) as u16);
            let service = Echoes {
                random: SplitMix64::new(random.bits()),
                road: Rc::clone(&road),
                fetches: random.chance(500),
                ends: false,
            };
            let park_after = Duration::from_micros(random.between(100, 20_000));
            let config = Config { capacity, park_after, ..Config::default() };
            let wake = Arc::new(Wake::new(|| ()));
            let counters = Arc::new(Counters::default());
            let mut shard = Shard::new(driver, service, config, network.clock(), wake, counters);
            shard.on_detached(|service: &mut Echoes, it| {
                let mut road = service.road.borrow_mut();
                road.report.carried += it.unread.len() as u64;
                let rest = Duration::from_micros(service.random.between(0, 3000));
                let ready = it.socket.network().now().after(rest);
                road.moving.push_back((ready, it));
            });
            shard
        });
        let listener = network.listen(Address::Tcp("10.0.0.1:80".parse().expect("an address")), 5, None);
        let address = listener.listening_at().expect("it listens");
        shards[0].listen(listener, false).expect("the first listener");
        (World { network, random, road, shards }, address)
    }

    /// Turns both shards until nothing happens any more at this moment.
    fn settle(&mut self) -> Result<(), String> {
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
        Err("the shards spin: they turn and turn, and no time passes".to_owned())
    }

    /// Brings the connections that have rested to a shard drawn by lot.
    fn adopt(&mut self) -> Result<(), String> {
        let now = self.network.now();
        let waiting = self.road.borrow().moving.len();
        for _ in 0..waiting {
            let (ready, it) = self.road.borrow_mut().moving.pop_front().expect("counted");
            let shard = &mut self.shards[self.random.index(2)];
            let outcome = if ready > now || shard.service().fetches { Ok(it) } else { Err(it) };
            let back = match outcome {
                Ok(early) => Some(early),
                Err(it) => match shard.adopt(it) {
                    Ok(_) => None,
                    Err(Refused { refusal: Refusal::Slots, connection }) => {
                        self.road.borrow_mut().report.refused += 1;
                        Some(connection)
                    }
                    Err(Refused { refusal, .. }) => return Err(format!("not adopted: {refusal:?}")),
                },
            };
            if let Some(it) = back {
                self.road.borrow_mut().moving.push_back((ready, it));
            }
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.road.borrow().moving.is_empty() && self.shards.iter().all(|shard| shard.open() == 0)
    }

    /// Moves the time to the next moment at which something happens, a millisecond at most.
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
/// If an echo was wrong or never came, something was not given back, or somebody broke the driver's contract.
pub fn run(seed: u64, faults: Faults) -> Result<MovingReport, Failure> {
    attempt(seed, || play(seed, faults))
}

fn play(seed: u64, faults: Faults) -> Result<MovingReport, String> {
    let (mut world, address) = World::build(seed, faults);
    let mut clients: Vec<Client> = Vec::new();
    loop {
        if clients.len() < CLIENTS && world.random.chance(300) {
            clients.push(Client::new(&world.network, address.clone(), &mut world.random));
        }
        let mut finished = clients.len() == CLIENTS;
        for (number, client) in clients.iter_mut().enumerate() {
            finished &= client.step(&mut world.random).map_err(|why| format!("client {number}: {why}"))?;
        }
        world.settle()?;
        if finished && world.is_empty() {
            break;
        }
        world.wait();
        if world.network.now() > FAULTS_STOP {
            world.network.stop_faults();
        }
        if world.network.now() > WORLD_ENDS {
            return Err("somebody waits for ever".to_owned());
        }
    }
    world.network.stop_faults();
    for shard in &mut world.shards {
        shard.service().ends = true;
    }
    for _ in 0..10 {
        world.wait();
        world.settle()?;
    }
    let adopted = world.shards.iter_mut().map(check_shard).sum::<Result<u64, String>>()?;
    let Counts { carried, ended_leaving, refused, through_control } = world.road.borrow().report;
    let network = &world.network;
    let report =
        Report { trace_hash: network.trace_hash(), faults: network.fault_counts(), until: network.now() };
    Ok(MovingReport { report, adopted, through_control, refused, carried, ended_leaving })
}

/// Nothing is left in the shard, and whatever came has ended with one reason. Returns how many were adopted.
fn check_shard(shard: &mut EchoShard) -> Result<u64, String> {
    shard.driver().assert_drained();
    let counters = Arc::clone(shard.counters());
    let (came, went) = (counters.accepted.get() + counters.adopted.get(), counters.closed_total());
    match (shard.held(), came == went) {
        ((0, 0), true) => Ok(counters.adopted.get()),
        (held, _) => Err(format!("{came} connections came, {went} went; held: {held:?}")),
    }
}
