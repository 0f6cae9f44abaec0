//! A small world that tests the simulator: an echo server written against the driver contract, and clients that verify
//! every echoed byte. A driver that loses, duplicates or misdirects data or events causes a wrong or missing echo.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::Duration;

use stilling_engine::Token;
use stilling_engine::driver::{Driver, DriverEvent, Gather, IncompleteSend, Outgoing, SourceKind, Wait};
use stilling_ring::Time;

use crate::faults::FaultRates;
use crate::network::{Address, Network, NetworkOptions, SimPeer, SimSocket};
use crate::report::{RunReport, SeedFailure, attempt};
use crate::{SimDriver, SplitMix64};

const LISTENER: Token = Token::new(0, 0);
/// A message of this byte is echoed, then the server hangs up while it waits for more.
pub(crate) const HANG_UP: u8 = 0xff;
pub(crate) const CLIENTS: usize = 20;
/// Faults stop at this time; all clients must finish afterwards.
pub(crate) const FAULTS_STOP: Time = Time::from_nanos(40_000_000);
/// Clients not finished by this time count as waiting for ever.
pub(crate) const WORLD_ENDS: Time = Time::from_nanos(120_000_000_000);

struct EchoConnection {
    token: Token,
    reading: bool,
    ended: bool,
    closing: bool,
    /// Turn in which it was closed: events of the same turn may still follow.
    closed_in: u64,
    blocked: bool,
    /// The client requested the server to hang up.
    hang_up: bool,
    fresh: bool,
    out: VecDeque<u8>,
}

/// Echoes what it receives and closes when the peer has finished.
struct EchoServer {
    driver: SimDriver,
    connections: Vec<Option<EchoConnection>>,
    generation: u32,
    turns: u64,
    incomplete_sends: Vec<IncompleteSend>,
    events: Vec<DriverEvent<SimSocket>>,
}

impl EchoServer {
    fn new(network: &Network, listener: SimSocket, buffers: u16) -> Self {
        let mut driver = SimDriver::with_buffers(network, buffers);
        driver.listen(LISTENER, listener).expect("the slot is free");
        driver.accept(LISTENER);
        let (incomplete_sends, events) = (Vec::new(), Vec::new());
        EchoServer { driver, connections: vec![None], generation: 0, turns: 0, incomplete_sends, events }
    }

    fn turn(&mut self, now: Time) {
        self.turns += 1;
        let sending: Vec<(u32, Vec<u8>)> = self
            .connections
            .iter_mut()
            .flatten()
            .filter(|it| !it.closing && !it.blocked && !it.out.is_empty())
            .map(|it| (it.token.index(), it.out.drain(..).collect()))
            .collect();
        let outgoing = sending.iter().map(|(slot, bytes)| {
            let token = self.connections[*slot as usize].as_ref().expect("it is sending").token;
            Outgoing::stream(token, Gather::One(bytes), false)
        });
        self.driver
            .turn(now, Wait::No, outgoing, &mut self.incomplete_sends, &mut self.events)
            .expect("turns");
        for stop in std::mem::take(&mut self.incomplete_sends) {
            let (slot, bytes) = &sending[stop.position as usize];
            self.stopped(*slot, &bytes[stop.sent as usize..], stop.error.is_some());
        }
        for event in std::mem::take(&mut self.events) {
            self.handle(event);
        }
        for slot in 1..self.connections.len() {
            self.flush_output(slot);
        }
    }

    fn stopped(&mut self, slot: u32, rest: &[u8], failed: bool) {
        let it = self.connections[slot as usize].as_mut().expect("it was sending");
        if failed {
            return self.close(slot as usize);
        }
        it.out.extend(rest);
        it.blocked = true;
        self.driver.await_writable(it.token);
    }

    /// The connection of an event. A connection closed in an earlier turn may only get `Closed`.
    fn of(&mut self, token: Token) -> &mut EchoConnection {
        let it = self.connections[token.index() as usize].as_mut().expect("events only of attached sources");
        assert_eq!(it.token, token, "an event of an earlier source of the slot");
        assert!(!it.closing || it.closed_in == self.turns, "an event after close");
        it
    }

    fn close(&mut self, slot: usize) {
        let it = self.connections[slot].as_mut().expect("it is open");
        (it.closing, it.closed_in) = (true, self.turns);
        self.driver.close(it.token);
    }

    fn handle(&mut self, event: DriverEvent<SimSocket>) {
        match event {
            DriverEvent::Accepted { socket, .. } => self.accepted(socket),
            DriverEvent::AcceptStopped { error, .. } => {
                match error.and_then(|error| error.raw_os_error()) {
                    Some(libc::EMFILE) => assert!(self.driver.refuse_one(LISTENER), "a client waits"),
                    other => assert_eq!(other, Some(libc::ENOMEM)),
                }
                self.driver.accept(LISTENER);
            }
            DriverEvent::Received { token, buffer, len } => {
                let bytes = self.driver.buffer(buffer)[..len as usize].to_vec();
                self.driver.release(buffer);
                let it = self.of(token);
                assert!(std::mem::take(&mut it.reading), "received without a request");
                it.hang_up |= std::mem::take(&mut it.fresh) && bytes[0] == HANG_UP;
                it.out.extend(bytes);
            }
            DriverEvent::Ended { token } => {
                let it = self.of(token);
                assert!(std::mem::take(&mut it.reading), "ended without a request");
                it.ended = true;
            }
            DriverEvent::Failed { token, .. } => {
                if !self.of(token).closing {
                    self.close(token.index() as usize);
                }
            }
            DriverEvent::Writable { token } => {
                let it = self.of(token);
                assert!(std::mem::take(&mut it.blocked), "writable without a request");
            }
            DriverEvent::Closed { token } => {
                let it = self.connections[token.index() as usize].take().expect("closed once");
                assert!(it.closing && it.token == token);
            }
            DriverEvent::Woken => {}
            other => panic!("unexpected event: {other:?}"),
        }
    }

    fn accepted(&mut self, socket: SimSocket) {
        let slot = self.connections.iter().skip(1).position(Option::is_none).map_or_else(
            || {
                self.connections.push(None);
                self.connections.len() - 1
            },
            |free| free + 1,
        );
        self.generation += 1;
        let token = Token::new(slot as u32, self.generation);
        if self.driver.attach(token, socket, SourceKind::Stream, self.generation.is_multiple_of(2)).is_err() {
            return;
        }
        self.connections[slot] = Some(EchoConnection {
            token,
            reading: false,
            ended: false,
            closing: false,
            closed_in: 0,
            blocked: false,
            hang_up: false,
            fresh: true,
            out: VecDeque::new(),
        });
    }

    fn flush_output(&mut self, slot: usize) {
        let Some(it) = self.connections[slot].as_mut().filter(|it| !it.closing) else { return };
        let done = it.ended || (it.hang_up && it.reading);
        if done && it.out.is_empty() {
            self.close(slot);
        } else if !it.ended && !it.reading && it.out.len() < 4096 {
            it.reading = true;
            self.driver.receive(it.token);
        }
    }
}

pub(crate) struct EchoClient {
    peer: Option<SimPeer>,
    message: Vec<u8>,
    written: usize,
    read: usize,
    shut: bool,
}

impl EchoClient {
    pub(crate) fn new(network: &Network, to: Address, random: &mut SplitMix64) -> Self {
        let rude = random.chance(300);
        let longest = if random.chance(200) { 40_000 } else { 300 };
        let len = random.between(1, longest);
        let mut message: Vec<u8> = (0..len).map(|_| random.bits() as u8).collect();
        message[0] = 0;
        if rude {
            message = vec![HANG_UP];
        }
        EchoClient { peer: Some(network.connect(to, None)), message, written: 0, read: 0, shut: rude }
    }

    /// Performs the I/O that is possible; true when finished.
    pub(crate) fn step(&mut self, random: &mut SplitMix64) -> Result<bool, String> {
        let Some(peer) = &mut self.peer else { return Ok(true) };
        match peer.connected() {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => return Err(format!("refused: {error}")),
        }
        if self.written < self.message.len() {
            let end = (self.written + random.between(1, 5000) as usize).min(self.message.len());
            match peer.write(&self.message[self.written..end]) {
                Ok(taken) => self.written += taken,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return self.end_if_damaged(&error.to_string()),
            }
        } else if !std::mem::replace(&mut self.shut, true) {
            peer.shutdown();
        }
        let mut into = [0; 3000];
        loop {
            match peer.read(&mut into) {
                Ok(0) if self.read == self.message.len() => {
                    self.peer = None;
                    return Ok(true);
                }
                Ok(0) => return self.end_if_damaged("the end came early"),
                Ok(len) => {
                    let expected = self.message.get(self.read..self.read + len);
                    if expected != Some(&into[..len]) {
                        return Err(format!("wrong echo at byte {}", self.read));
                    }
                    self.read += len;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return self.end_if_damaged(&error.to_string()),
            }
        }
    }

    /// Ends the client; an error unless the network damaged its connection.
    fn end_if_damaged(&mut self, why: &str) -> Result<bool, String> {
        let was_damaged = self.peer.take().is_some_and(|peer| peer.is_damaged());
        if was_damaged { Ok(true) } else { Err(format!("{why} after {} bytes", self.read)) }
    }
}

/// Runs the world of `seed`.
///
/// # Errors
/// If an echo is wrong or missing, or the driver contract is broken.
pub fn run(seed: u64, faults: FaultRates) -> Result<RunReport, SeedFailure> {
    attempt(seed, || play(seed, faults))
}

fn play(seed: u64, faults: FaultRates) -> Result<RunReport, String> {
    let mut random = SplitMix64::new(seed);
    let options = NetworkOptions {
        latency: (Duration::from_micros(20), Duration::from_micros(random.between(20, 2000))),
        buffer: random.between(100, 20_000) as usize,
        faults,
    };
    let network = Network::new(random.bits(), options);
    let listener = network.listen(Address::Tcp("10.0.0.1:80".parse().expect("an address")), 5, None);
    let address = listener.listening_at().expect("it listens");
    let mut echo = EchoServer::new(&network, listener, random.between(1, 8) as u16);
    let mut clients: Vec<EchoClient> = Vec::new();
    loop {
        if clients.len() < CLIENTS && random.chance(300) {
            clients.push(EchoClient::new(&network, address.clone(), &mut random));
        }
        let mut finished = clients.len() == CLIENTS;
        for (number, client) in clients.iter_mut().enumerate() {
            finished &= client.step(&mut random).map_err(|why| format!("client {number}: {why}"))?;
        }
        loop {
            let before = network.activity();
            echo.turn(network.now());
            if network.activity() == before {
                break;
            }
        }
        if finished && echo.connections.iter().all(Option::is_none) {
            break;
        }
        let pause = network.now().after(Duration::from_millis(1));
        let next = network.next_event().map_or(pause, |next| next.min(pause));
        network.advance_to(next);
        if network.now() > FAULTS_STOP {
            network.stop_faults();
        }
        if network.now() > WORLD_ENDS {
            return Err("a client waits for ever".to_owned());
        }
    }
    echo.driver.close(LISTENER);
    echo.driver
        .turn(network.now(), Wait::No, std::iter::empty(), &mut echo.incomplete_sends, &mut echo.events)
        .expect("turns");
    network.stop_faults();
    let at = network.now().after(Duration::from_secs(1));
    echo.driver
        .turn(at, Wait::No, std::iter::empty(), &mut echo.incomplete_sends, &mut echo.events)
        .expect("turns");
    echo.driver.assert_drained();
    Ok(RunReport { trace_hash: network.trace_hash(), faults: network.fault_counts(), until: network.now() })
}
