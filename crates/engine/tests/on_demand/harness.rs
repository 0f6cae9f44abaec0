//! A shard of on-demand connections in a foreign event loop, turned by hand.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use stilling_engine::driver::{Destination, Driver, Wait};
use stilling_engine::net::{self, ListenOptions};
use stilling_engine::{CloseReason, Detached, Io, Service, Session, Shard, ShardConfig, Token};
use stilling_ring::{Clock, Wake};
use stilling_simulation::suite::system::SystemDriver;

/// Milliseconds after which a wait counts as hanging.
const HANG_MS: i32 = 20_000;

/// Milliseconds without an event that count as silence.
pub(crate) const SILENCE_MS: i32 = 20;

/// Turns in a row after which the loop counts as busy.
const TURNS_MAX: u32 = 100;

/// A call of a session. Connections are known by their tokens, those that were never open by their labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Opened(Token),
    Readable(Token),
    Writable(Token),
    ConnectFailed(u32, io::ErrorKind),
    Closed(u32, CloseReason),
}

/// What a session does when it is called, beside recording the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reaction {
    /// Awaits readability when opened.
    pub(crate) awaits: bool,
}

#[derive(Default)]
pub(crate) struct OwnerService {
    pub(crate) calls: Vec<Call>,
    pub(crate) reaction: Reaction,
    pub(crate) detached: Vec<Detached<OwnedFd, OwnerSession>>,
    /// The listeners that accepted, in the order of their connections.
    pub(crate) accepted_by: Vec<u32>,
}

/// A session with a label that survives its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnerSession {
    pub(crate) label: u32,
}

impl Service for OwnerService {
    type Session = OwnerSession;
    type Mail = ();

    fn accepted(&mut self, listener: u32) -> OwnerSession {
        self.accepted_by.push(listener);
        OwnerSession::default()
    }
}

impl Session for OwnerSession {
    type Service = OwnerService;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut OwnerService) {
        io.receive_on_demand();
        if service.reaction.awaits {
            io.await_readable();
        }
        service.calls.push(Call::Opened(io.token()));
    }

    fn received(&mut self, _: &[u8], _: &mut Io<'_>, _: &mut OwnerService) -> usize {
        panic!("an on-demand connection is not received from");
    }

    fn ended(&mut self, _: &mut Io<'_>, _: &mut OwnerService) {
        panic!("the end of an on-demand connection is found by its owner");
    }

    fn readable(&mut self, io: &mut Io<'_>, service: &mut OwnerService) {
        service.calls.push(Call::Readable(io.token()));
    }

    fn writable(&mut self, io: &mut Io<'_>, service: &mut OwnerService) {
        service.calls.push(Call::Writable(io.token()));
    }

    fn connect_failed(&mut self, error: &io::Error, service: &mut OwnerService) {
        service.calls.push(Call::ConnectFailed(self.label, error.kind()));
    }

    fn closed(&mut self, reason: CloseReason, service: &mut OwnerService) {
        service.calls.push(Call::Closed(self.label, reason));
    }
}

/// A shard and the address of its first listener.
pub(crate) struct OwnerLoop<S: SystemDriver> {
    pub(crate) shard: Shard<S::Driver, OwnerService>,
    pub(crate) address: SocketAddr,
    waitable: i32,
}

/// A listening socket on a free port, and its address. Its connections have small buffers.
pub(crate) fn listening_socket() -> (OwnedFd, SocketAddr) {
    let options = ListenOptions { send_buffer: Some(16 * 1024), ..ListenOptions::default() };
    let listener =
        net::listen_tcp("127.0.0.1:0".parse().expect("an address"), &options).expect("a free port");
    let address = net::local_addr(&listener).expect("it is bound");
    (listener, address)
}

#[allow(unsafe_code)]
fn polls_readable(waitable: i32, timeout_ms: i32) -> bool {
    let mut waiting = libc::pollfd { fd: waitable, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&raw mut waiting, 1, timeout_ms) == 1 }
}

impl<S: SystemDriver> OwnerLoop<S> {
    pub(crate) fn new() -> Self {
        Self::with_config(ShardConfig { capacity: 200, ..ShardConfig::default() })
    }

    pub(crate) fn with_config(config: ShardConfig) -> Self {
        net::raise_descriptor_limit();
        let mut driver = S::start().expect("this system grants the driver");
        let handle = driver.wake_handle();
        let wake = Arc::new(Wake::new(move || handle.wake()));
        let waitable = driver.waitable().expect("the driver has one");
        let service = OwnerService::default();
        let mut shard = Shard::new(driver, service, config, Clock::real(), wake, Arc::default());
        shard.on_detached(|service: &mut OwnerService, connection| service.detached.push(connection));
        let (listener, address) = listening_socket();
        assert_eq!(shard.listen(listener, false).expect("the first listener"), 0);
        let mut owner = OwnerLoop { shard, address, waitable };
        owner.settle();
        owner
    }

    pub(crate) fn turn(&mut self) {
        self.shard.turn(false).expect("the driver works");
    }

    /// Runs turns until the shard may wait, as a foreign loop does. Returns their number.
    pub(crate) fn settle(&mut self) -> u32 {
        let mut turns = 0;
        while self.shard.prepare_to_wait() == Wait::No {
            self.turn();
            turns += 1;
            assert!(turns < TURNS_MAX, "the shard never waits");
        }
        turns
    }

    /// Waits as a foreign loop does, at most `timeout_ms`, and then runs turns until the shard may wait again. Returns
    /// whether the shard had an event.
    pub(crate) fn wait(&mut self, timeout_ms: i32) -> bool {
        let has_event = polls_readable(self.waitable, timeout_ms);
        if has_event {
            self.turn();
            self.settle();
        }
        has_event
    }

    /// Runs the loop until `condition` is true.
    pub(crate) fn run_until(&mut self, mut condition: impl FnMut(&mut Self) -> bool) {
        self.settle();
        while !condition(self) {
            assert!(self.wait(HANG_MS), "the shard has an event, but the descriptor is not readable");
        }
    }

    /// The next call of a session.
    #[track_caller]
    pub(crate) fn next_call(&mut self) -> Call {
        self.run_until(|owner| !owner.calls().is_empty());
        self.calls().remove(0)
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, call: Call) {
        assert_eq!(self.next_call(), call);
    }

    /// Runs the loop until it is silent. No session may be called meanwhile.
    #[track_caller]
    pub(crate) fn expect_silence(&mut self) {
        let mut rounds = 0;
        self.settle();
        while self.wait(SILENCE_MS) {
            rounds += 1;
            assert!(rounds < TURNS_MAX, "the loop is busy");
        }
        assert_eq!(*self.calls(), []);
    }

    pub(crate) fn calls(&mut self) -> &mut Vec<Call> {
        &mut self.shard.service().calls
    }

    /// Acts on an open connection.
    #[track_caller]
    pub(crate) fn with<R>(
        &mut self,
        token: Token,
        act: impl FnOnce(&mut OwnerSession, &mut Io<'_>) -> R,
    ) -> R {
        self.shard.with(token, act).unwrap_or_else(|| panic!("{token:?} is not open"))
    }

    /// An accepted connection and its client.
    pub(crate) fn connection(&mut self) -> (Token, TcpStream) {
        let client = client_of(self.address);
        match self.next_call() {
            Call::Opened(token) => (token, client),
            call => panic!("expected a connection, got {call:?}"),
        }
    }

    /// A connection to a listener of the test, and its peer.
    pub(crate) fn connected(&mut self) -> (Token, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let to = Destination::Tcp { to: listener.local_addr().expect("its address"), from: None };
        let token = self.shard.connect(&to, OwnerSession::default()).expect("there is a slot");
        self.expect(Call::Opened(token));
        (token, bounded(listener.accept().expect("a connection waits").0))
    }

    /// Receives what there is, with a short last read.
    pub(crate) fn receive_all(&mut self, token: Token) -> Vec<u8> {
        let (mut all, mut into) = (Vec::new(), [0; 4096]);
        loop {
            match self.shard.receive_now(token, &mut into) {
                Ok(0) => panic!("the stream has ended after {} bytes", all.len()),
                Ok(count) => {
                    all.extend(&into[..count]);
                    if count < into.len() {
                        return all;
                    }
                }
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    return all;
                }
            }
        }
    }

    /// Sends zeros until the system accepts no more. Returns their number.
    pub(crate) fn fill(&mut self, token: Token) -> usize {
        let chunk = [0; 64 * 1024];
        let mut sent = 0;
        loop {
            match self.shard.send_now(token, &chunk) {
                Ok(count) => sent += count,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    return sent;
                }
            }
        }
    }

    /// An accepted connection over a Unix socket, and its client. Unlike TCP, it makes room only when its peer reads.
    pub(crate) fn unix_connection(&mut self) -> (Token, UnixStream) {
        let directory = tempfile::tempdir().expect("a directory for the socket");
        let path = directory.path().join("socket");
        let listener = self.shard.listen(net::listen_unix(&path).expect("it listens"), false);
        let listener = listener.expect("there is room");
        self.settle();
        let client = UnixStream::connect(&path).expect("it listens");
        let Call::Opened(token) = self.next_call() else { panic!("a connection waits") };
        self.shard.close_listener(listener);
        self.settle();
        (token, client)
    }

    /// Ends a connection at once; one turn must suffice.
    pub(crate) fn abort(&mut self, token: Token) {
        self.shard.abort(token, CloseReason::Done);
        self.turn();
        self.expect(Call::Closed(0, CloseReason::Done));
    }
}

/// A socket whose reads end after a time, so that no test hangs.
pub(crate) fn bounded(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(Duration::from_millis(HANG_MS as u64))).expect("a socket takes options");
    stream.set_nodelay(true).expect("a socket takes options");
    stream
}

pub(crate) fn client_of(address: SocketAddr) -> TcpStream {
    bounded(TcpStream::connect(address).expect("it listens"))
}

pub(crate) fn write(client: &mut TcpStream, bytes: &[u8]) {
    client.write_all(bytes).expect("there is room");
}

#[track_caller]
pub(crate) fn expect_read(client: &mut TcpStream, bytes: &[u8]) {
    let mut read = vec![0; bytes.len()];
    client.read_exact(&mut read).expect("the shard sends");
    assert_eq!(read, bytes);
}

/// Whether the peer has the end of the stream or a reset now, without a wait.
pub(crate) fn is_ended_now(client: &mut TcpStream) -> bool {
    client.set_nonblocking(true).expect("a socket takes options");
    match client.read(&mut [0; 16]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}

/// Closes with a reset.
pub(crate) fn reset(client: TcpStream) {
    SockRef::from(&client).set_linger(Some(Duration::ZERO)).expect("a socket takes options");
}

/// Descriptors of this process.
pub(crate) fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}
