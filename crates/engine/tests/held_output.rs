//! Output held for peers that do not read at once, on the real drivers: how much a connection may hold, and which
//! connections are disconnected when the store is full.
#![cfg(target_os = "linux")]

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use socket2::{Domain, Socket, Type};
use stilling_engine::driver::Driver;
use stilling_engine::driver::poll::Poll;
use stilling_engine::driver::uring::Uring;
use stilling_engine::net::{self, ListenOptions};
use stilling_engine::{CloseReason, Io, Recipient, Service, Session, Shard, ShardConfig, Token};
use stilling_ring::{Clock, Wake};

const BUDGET: usize = 1 << 20;
const PIECE: usize = 4096;
/// Small buffers, so that the system holds little of the output.
const SYSTEM_BUFFER: usize = 4096;
/// Turns after which a test counts as hanging.
const TURNS_MAX: u32 = 1_000_000;

fn pattern(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}

/// Connections in the order of their acceptance, and the unsent bytes that each is to have.
#[derive(Default)]
struct FeederService {
    tokens: Vec<Token>,
    levels: Vec<usize>,
    /// The next connection to feed.
    next: usize,
    ends: Vec<(usize, CloseReason)>,
}

struct FeederSession {
    number: usize,
    sent: usize,
}

impl Service for FeederService {
    type Session = FeederSession;
    type Mail = usize;

    fn accepted(&mut self, _listener: u32) -> FeederSession {
        FeederSession { number: self.tokens.len(), sent: 0 }
    }

    fn next_mail(&mut self) -> Option<(Recipient, usize)> {
        let next = self.next;
        self.next += 1;
        Some(((*self.tokens.get(next)?).into(), self.levels[next]))
    }

    fn has_mail(&self) -> bool {
        self.next < self.tokens.len()
    }
}

impl Session for FeederSession {
    type Service = FeederService;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut FeederService) {
        io.set_send_max(BUDGET);
        let token = io.token();
        service.tokens.push(token);
        service.levels.push(0);
    }

    fn received(&mut self, bytes: &[u8], _: &mut Io<'_>, _: &mut FeederService) -> usize {
        bytes.len()
    }

    fn delivered(&mut self, level: usize, io: &mut Io<'_>, _: &mut FeederService) {
        // Output of this turn counts as unsent until its end.
        while !io.is_finishing() && BUDGET - io.room() + PIECE <= level {
            let piece: Vec<u8> = (self.sent..self.sent + PIECE).map(pattern).collect();
            io.send(&piece).expect("there is room");
            self.sent += PIECE;
        }
    }

    fn closed(&mut self, reason: CloseReason, service: &mut FeederService) {
        service.ends.push((self.number, reason));
    }
}

struct HeldOutputFixture<D: Driver> {
    shard: Shard<D, FeederService>,
    address: SocketAddr,
    turns: u32,
}

impl<D: Driver<Socket = OwnedFd>> HeldOutputFixture<D> {
    fn new(driver: D) -> Self {
        let handle = driver.wake_handle();
        let wake = Arc::new(Wake::new(move || handle.wake()));
        let config = ShardConfig { output_bytes_max: BUDGET, ..ShardConfig::default() };
        let mut shard =
            Shard::new(driver, FeederService::default(), config, Clock::real(), wake, Arc::default());
        let options = ListenOptions { send_buffer: Some(SYSTEM_BUFFER), ..ListenOptions::default() };
        let listener = net::listen_tcp("127.0.0.1:0".parse().expect("an address"), &options).expect("a port");
        let address = net::local_addr(&listener).expect("it is bound");
        shard.listen(listener, false).expect("there is room");
        HeldOutputFixture { shard, address, turns: 0 }
    }

    /// Fills all connections to their levels, and runs a turn.
    fn turn(&mut self) {
        self.shard.service().next = 0;
        self.shard.turn(false).expect("the driver works");
        self.turns += 1;
        assert!(self.turns < TURNS_MAX, "the test hangs: {:?}", self.shard.service().ends);
    }

    fn client(&mut self) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(SYSTEM_BUFFER).expect("a buffer can be small");
        socket.connect(&self.address.into()).expect("it listens");
        socket.set_nonblocking(true).expect("a socket takes options");
        let count = self.shard.service().tokens.len();
        while self.shard.service().tokens.len() == count {
            self.turn();
        }
        socket.into()
    }
}

/// Reads at most `max` available bytes, and checks them.
fn read(client: &mut TcpStream, max: usize, count: &mut usize) {
    let mut bytes = vec![0; max];
    match client.read(&mut bytes) {
        Ok(len) => {
            assert!(len > 0, "the connection was closed after {count} bytes");
            for byte in &bytes[..len] {
                assert_eq!(*byte, pattern(*count), "byte {count}");
                *count += 1;
            }
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        Err(error) => panic!("after {count} bytes: {error}"),
    }
}

/// Row 4.35: a connection that holds nearly its maximum, and continues to read, can continue to hold that much: the
/// bytes read make room.
fn a_reading_peer_may_hold_nearly_the_whole_budget<D: Driver<Socket = OwnedFd>>(driver: D) {
    let mut fixture = HeldOutputFixture::new(driver);
    let mut client = fixture.client();
    fixture.shard.service().levels[0] = BUDGET * 7 / 8;
    let mut count = 0;
    while count < 8 * BUDGET {
        fixture.turn();
        read(&mut client, 4 * PIECE, &mut count);
        assert_eq!(fixture.shard.service().ends, [], "{count} bytes were read");
    }
    assert_eq!(fixture.shard.held_bytes().1, BUDGET);
}

/// Row 4.35: connections that hold a quarter of their share are never disconnected because another one does not read.
fn a_quarter_of_the_share_is_safe<D: Driver<Socket = OwnedFd>>(driver: D) {
    const CONNECTIONS: usize = 8;
    let mut fixture = HeldOutputFixture::new(driver);
    let mut clients: Vec<TcpStream> = (0..CONNECTIONS).map(|_| fixture.client()).collect();
    fixture.shard.service().levels.fill(BUDGET / CONNECTIONS / 4);
    let unread = 3;
    let mut counts = [0; CONNECTIONS];
    while fixture.shard.service().ends.is_empty() {
        fixture.turn();
        let level = &mut fixture.shard.service().levels[unread];
        *level = (*level + PIECE).min(BUDGET);
    }
    assert_eq!(fixture.shard.service().ends, [(unread, CloseReason::SlowConsumer)]);
    for (number, (client, count)) in clients.iter_mut().zip(&mut counts).enumerate() {
        while number != unread && *count < BUDGET / 4 {
            fixture.turn();
            read(client, 4 * PIECE, count);
        }
    }
    assert_eq!(fixture.shard.service().ends, [(unread, CloseReason::SlowConsumer)]);
}

mod poll {
    use super::*;

    #[test]
    fn a_reading_peer_may_hold_nearly_the_whole_budget() {
        super::a_reading_peer_may_hold_nearly_the_whole_budget(Poll::new().expect("epoll"));
    }

    #[test]
    fn a_quarter_of_the_share_is_safe() {
        super::a_quarter_of_the_share_is_safe(Poll::new().expect("epoll"));
    }
}

mod uring {
    use super::*;

    #[test]
    fn a_reading_peer_may_hold_nearly_the_whole_budget() {
        super::a_reading_peer_may_hold_nearly_the_whole_budget(Uring::new().expect("io_uring"));
    }

    #[test]
    fn a_quarter_of_the_share_is_safe() {
        super::a_quarter_of_the_share_is_safe(Uring::new().expect("io_uring"));
    }
}
