//! A small world of subscribers to shared bytes. Messages are written into shared blocks and sent from there to some of
//! the subscribers; a block is refilled as soon as nothing refers to it. Sends stop short at any byte, and subscribers
//! read at different paces. Each must receive exactly its messages, and no output may keep a block after its turn.
//!
//! Observers send datagrams to a socket with two addresses and get answers and notifications at any time. Each datagram
//! names its observer and its source address: none may reach another observer or come from the other address.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;

use stilling_engine::driver::Datagram;
use stilling_engine::{
    BlockWriter, DatagramIo, DatagramPath, Io, Recipient, Service, Session, ShardConfig, ShardControl,
    SharedBlock, Time, Token,
};

use crate::SplitMix64;
use crate::faults::{FaultRates, NetworkFault};
use crate::network::{Network, NetworkOptions, SimDatagramPeer, SimPeer};
use crate::report::{SeedFailure, attempt};
use crate::single_shard::{SingleShard, read};

/// Blocks that messages are written into, and their size.
const BLOCKS: usize = 3;
const BLOCK_SIZE: usize = 16_000;
/// Bytes of the longest payload. Short payloads are copied, long ones are sent from their block.
const PAYLOAD_MAX: u64 = 3000;
/// Bytes of the output store: enough for all output of a world.
const BUDGET: usize = 16 << 20;
const STEPS: u32 = 80;
/// Rounds of reading after which a subscriber counts as waiting for ever.
const ROUNDS_MAX: u32 = 10_000;
/// Destination of the datagrams: a socket bound to all addresses, and two of these addresses.
const DATAGRAMS_TO: &str = "0.0.0.0:5683";
const LOCAL: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];
/// End of a message, like a line end.
const TAIL: &[u8] = b"\r\n";

/// Result of a world without failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharingReport {
    /// Deliveries: messages counted once per subscriber.
    pub delivered: u64,
    /// Blocks refilled.
    pub reused_blocks: u64,
    /// Attempts to refill a block that was still referenced.
    pub referenced: u64,
    /// Sends that stopped short.
    pub stopped_sends: u64,
    /// Datagrams received by observers.
    pub notifications: u64,
}

/// A message for a subscriber: its number, a payload and an end.
struct SharedMessage {
    number: [u8; 4],
    block: SharedBlock,
    payload: Range<usize>,
}

/// Mail for a subscriber, or for the observer of this number.
enum SharingMail {
    Message(SharedMessage),
    Notification(usize),
}

/// State shared by the sessions: tokens, and what is to be sent.
#[derive(Default)]
struct SharingService {
    tokens: Vec<Token>,
    mail: VecDeque<(Recipient, SharingMail)>,
    /// Datagram paths to the observers, by number.
    paths: Vec<Option<DatagramPath>>,
    /// Observers to be notified at the end of the turn.
    notifications: Vec<usize>,
}

/// Content of a notification: the observer's number, and the address it is sent from.
fn notification(number: usize, path: DatagramPath) -> String {
    format!("{number} from {}", path.local.map_or_else(String::new, |local| local.to_string()))
}

struct SharingSession;

impl Service for SharingService {
    type Session = SharingSession;
    type Mail = SharingMail;

    fn accepted(&mut self, _listener: u32) -> SharingSession {
        SharingSession
    }

    fn next_mail(&mut self) -> Option<(Recipient, SharingMail)> {
        self.mail.pop_front()
    }

    fn has_mail(&self) -> bool {
        !self.mail.is_empty()
    }

    fn datagram(&mut self, datagram: &Datagram<'_>, io: &mut DatagramIo<'_>) {
        let number = usize::from(datagram.payload[0]);
        self.paths[number] = Some(io.path());
        io.reply(notification(number, io.path()).as_bytes()).expect("there is room");
    }

    fn delivered(&mut self, mail: SharingMail, io: &mut DatagramIo<'_>) {
        let SharingMail::Notification(number) = mail else { unreachable!("messages are for connections") };
        io.reply(notification(number, io.path()).as_bytes()).expect("there is room");
    }

    fn turn(&mut self, control: &mut ShardControl<'_, Self>) -> Option<Time> {
        for number in self.notifications.drain(..) {
            if let Some(path) = self.paths[number] {
                control.send_datagram(&path, notification(number, path).as_bytes()).expect("there is room");
            }
        }
        None
    }
}

impl Session for SharingSession {
    type Service = SharingService;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut SharingService) {
        io.set_send_max(BUDGET);
        service.tokens.push(io.token());
    }

    fn received(&mut self, bytes: &[u8], _: &mut Io<'_>, _: &mut SharingService) -> usize {
        bytes.len()
    }

    fn delivered(&mut self, mail: SharingMail, io: &mut Io<'_>, _: &mut SharingService) {
        let SharingMail::Message(message) = mail else { unreachable!("notices are for observers") };
        io.send(&message.number).expect("there is room");
        io.send_shared(&message.block, message.payload).expect("there is room");
        io.send(TAIL).expect("there is room");
    }
}

struct SharingClient {
    peer: SimPeer,
    expected: Vec<u8>,
    read: usize,
    /// Most bytes per read; 0: reads nothing before the end.
    read_max: usize,
}

impl SharingClient {
    /// Reads at most `most` bytes and checks them.
    fn read(&mut self, most: usize) -> Result<(), String> {
        let (bytes, is_end) = read(&mut self.peer, most);
        let until = self.read + bytes.len();
        if self.expected.get(self.read..until) != Some(&bytes[..]) {
            let expected = self.expected.iter().skip(self.read);
            let right = std::iter::zip(&bytes, expected).take_while(|(one, other)| one == other).count();
            return Err(format!("a wrong byte behind {}", self.read + right));
        }
        self.read = until;
        if is_end { Err(format!("the end came after {until} bytes")) } else { Ok(()) }
    }
}

struct SharingWorld {
    single_shard: SingleShard<SharingService>,
    clients: Vec<SharingClient>,
    observers: Vec<SimDatagramPeer>,
    blocks: Vec<BlockWriter>,
    report: SharingReport,
}

/// Runs the world of `seed`.
///
/// # Errors
/// The failure found.
pub fn run(seed: u64) -> Result<SharingReport, SeedFailure> {
    attempt(seed, || SharingWorld::new(&mut SplitMix64::new(seed)).play(&mut SplitMix64::new(!seed)))
}

impl SharingWorld {
    fn new(random: &mut SplitMix64) -> Self {
        let mut rate = || random.between(0, 300) as u16;
        let faults = FaultRates::NONE
            .with(NetworkFault::ShortSend, rate())
            .with(NetworkFault::BlockedSend, rate() / 2);
        let buffer = random.between(2000, 20_000) as usize;
        let network =
            Network::new(random.bits(), NetworkOptions { buffer, faults, ..NetworkOptions::default() });
        let config = ShardConfig { capacity: 100, output_bytes_max: BUDGET, ..ShardConfig::default() };
        let mut single_shard = SingleShard::on_network(network, SharingService::default(), config);
        let clients = (0..random.between(2, 6))
            .map(|_| {
                let read_max = [0, 3000, usize::MAX][random.index(3)];
                SharingClient { peer: single_shard.client(), expected: Vec::new(), read: 0, read_max }
            })
            .collect();
        let blocks = (0..BLOCKS).map(|_| BlockWriter::new(BLOCK_SIZE)).collect();
        let socket = single_shard.network.bind(DATAGRAMS_TO.parse().expect("an address"));
        single_shard.shard.receive_datagrams(socket).expect("the driver accepts it");
        let observers: Vec<SimDatagramPeer> = (0..random.between(2, 4))
            .map(|number| {
                single_shard.network.bind_as_peer(SocketAddr::from(([10, 0, 1, number as u8], 5683)))
            })
            .collect();
        single_shard.service().paths = vec![None; observers.len()];
        SharingWorld { single_shard, clients, observers, blocks, report: SharingReport::default() }
    }

    fn play(mut self, random: &mut SplitMix64) -> Result<SharingReport, String> {
        for _ in 0..STEPS {
            for _ in 0..random.between(0, 5) {
                self.publish(random);
            }
            for _ in 0..random.between(0, 3) {
                self.notify(random);
            }
            if random.chance(300) {
                let number = random.index(self.clients.len());
                let client = &mut self.clients[number];
                client.read(client.read_max).map_err(|why| format!("subscriber {number}: {why}"))?;
            }
            // After a single turn the messages are with the sessions, but not yet sent: the next step publishes while
            // blocks are in use.
            if random.chance(700) {
                self.single_shard.shard.turn(false).expect("turns");
            } else {
                self.single_shard.run_turns();
                self.check_blocks()?;
            }
            self.read_notifications()?;
        }
        self.single_shard.network.stop_faults();
        for round in 0.. {
            self.single_shard.run_turns();
            for (number, client) in self.clients.iter_mut().enumerate() {
                client.read(usize::MAX).map_err(|why| format!("subscriber {number}: {why}"))?;
            }
            if self.clients.iter().all(|client| client.read == client.expected.len()) {
                break;
            }
            if round == ROUNDS_MAX {
                return Err("a subscriber waits for ever".to_owned());
            }
        }
        self.check_blocks()?;
        self.read_notifications()?;
        let counters = self.single_shard.shard.counters();
        self.report.stopped_sends = counters.blocked_sends.get();
        let sent = counters.datagrams_sent.get() - counters.datagrams_dropped_total();
        if self.report.notifications != sent {
            return Err(format!("{} of {sent} notifications arrived", self.report.notifications));
        }
        self.clients.clear();
        self.single_shard.run_turns();
        match self.single_shard.shard.held_bytes() {
            (0, 0) => Ok(self.report),
            held => Err(format!("{held:?} bytes are held for no connection")),
        }
    }

    /// Writes a message into a block and sends it to some of the subscribers.
    fn publish(&mut self, random: &mut SplitMix64) {
        let block = &mut self.blocks[random.index(BLOCKS)];
        let size = random.between(1, PAYLOAD_MAX) as usize;
        if random.chance(300) || block.spare_len() < size {
            match block.reset() {
                true => self.report.reused_blocks += 1,
                false => self.report.referenced += 1,
            }
        }
        let factor = random.bits();
        let payload: Vec<u8> = (0..size as u64).map(|at| (factor.wrapping_mul(at | 1) >> 56) as u8).collect();
        let Some(range) = block.append(&payload) else { return };
        for (number, client) in self.clients.iter_mut().enumerate().filter(|_| random.chance(500)) {
            let service = self.single_shard.shard.service();
            let count = (self.report.delivered as u32).to_le_bytes();
            let message = SharedMessage { number: count, block: block.share(), payload: range.clone() };
            service.mail.push_back((service.tokens[number].into(), SharingMail::Message(message)));
            client.expected.extend([&count[..], &payload, TAIL].concat());
            self.report.delivered += 1;
        }
    }

    /// Sends a datagram from an observer to one of the two addresses, or schedules a notification for it.
    fn notify(&mut self, random: &mut SplitMix64) {
        let number = random.index(self.observers.len());
        let service = self.single_shard.shard.service();
        match (random.index(3), service.paths[number]) {
            (0, _) | (_, None) => {
                let to = SocketAddr::from((LOCAL[random.index(LOCAL.len())], 5683));
                self.observers[number].send(to, &[number as u8]).expect("it is short");
            }
            (1, Some(path)) => service.mail.push_back((path.into(), SharingMail::Notification(number))),
            (_, Some(_)) => service.notifications.push(number),
        }
    }

    /// Checks that each datagram received by an observer is meant for it and comes from the address it names.
    fn read_notifications(&mut self) -> Result<(), String> {
        for (number, observer) in self.observers.iter().enumerate() {
            while let Some((from, payload)) = observer.receive() {
                let expected = format!("{number} from {}", from.ip());
                if payload != expected.as_bytes() {
                    return Err(format!("expected `{expected}`, got `{}`", payload.escape_ascii()));
                }
                self.report.notifications += 1;
            }
        }
        Ok(())
    }

    /// Checks that nothing refers to a block after the turn, whatever the subscribers have read.
    fn check_blocks(&mut self) -> Result<(), String> {
        match self.blocks.iter_mut().position(|block| !block.reset()) {
            Some(at) => Err(format!("block {at} is still referenced after the turn")),
            None => Ok(()),
        }
    }
}
