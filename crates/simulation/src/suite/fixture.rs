//! Fixture of a contract test: a driver, its rig, and pending events.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use stilling_engine::Token;
use stilling_engine::driver::{
    Destination, Driver, DriverEvent, Gather, IncompleteSend, Outgoing, SourceKind, Wait,
};

use super::{AddressKind, DriverRig, Peer, RigAccepted, RigSocket};

/// Turns without events that prove silence.
const SILENT_TURNS: usize = 5;

/// Wait per turn: long enough to avoid a busy loop, short enough that the peer acts soon.
const TURN: Duration = Duration::from_millis(1);

/// An event with its content copied out and its buffer released.
#[derive(Debug, PartialEq)]
pub enum ObservedEvent {
    /// `Connected`.
    Connected(Token),
    /// `Received`, with the bytes.
    Received(Token, Vec<u8>),
    /// `Ended`.
    Ended(Token),
    /// `Failed`, with the kind of its error.
    Failed(Token, io::ErrorKind),
    /// `Readable`.
    Readable(Token),
    /// `Writable`.
    Writable(Token),
    /// `ReceiveCancelled`.
    ReceiveCancelled(Token),
    /// `Closed`.
    Closed(Token),
    /// `AcceptStopped`, with whether there was an error and the number of refused connections.
    AcceptStopped(Token, bool, u32),
    /// `Woken`.
    Woken,
}

/// A driver and its rig.
pub struct DriverFixture<R: DriverRig> {
    /// The driver under test. Declared first, so that it is dropped before its rig.
    pub driver: R::Driver,
    /// The rig.
    pub rig: R,
    /// Pending events.
    pub events: VecDeque<DriverEvent<RigSocket<R>, RigAccepted<R>>>,
    turn_events: Vec<DriverEvent<RigSocket<R>, RigAccepted<R>>>,
    incomplete_sends: Vec<IncompleteSend>,
    indices: u32,
}

impl<R: DriverRig> Default for DriverFixture<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: DriverRig> DriverFixture<R> {
    /// Creates a rig and its driver, without sockets.
    #[must_use]
    pub fn new() -> Self {
        let mut rig = R::new();
        let driver = rig.driver();
        DriverFixture {
            driver,
            rig,
            events: VecDeque::new(),
            turn_events: Vec::new(),
            incomplete_sends: Vec::new(),
            indices: 0,
        }
    }

    /// Returns an unused token.
    pub fn token(&mut self) -> Token {
        self.indices += 1;
        Token::new(self.indices - 1, 1)
    }

    /// Runs one turn; appends its events to `events` and returns its incomplete sends.
    pub fn turn(&mut self, wait: Wait, outgoing: &[Outgoing<'_>]) -> Vec<IncompleteSend> {
        assert!(self.rig.is_within_limit(), "timeout; pending events: {:?}", self.events);
        let now = self.rig.now();
        let outcome = self.driver.turn(
            now,
            wait,
            outgoing.iter().copied(),
            &mut self.incomplete_sends,
            &mut self.turn_events,
        );
        outcome.expect("a turn");
        self.events.extend(self.turn_events.drain(..));
        std::mem::take(&mut self.incomplete_sends)
    }

    /// Runs a turn that sends nothing and waits a little.
    pub fn idle_turn(&mut self) {
        let soon = self.rig.now().after(TURN);
        let incomplete_sends = self.turn(Wait::Until(soon), &[]);
        assert!(incomplete_sends.is_empty(), "stops without sends: {incomplete_sends:?}");
    }

    /// Returns the next event, turning the driver if necessary.
    pub fn next_event(&mut self) -> DriverEvent<RigSocket<R>, RigAccepted<R>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            self.idle_turn();
        }
    }

    /// Returns the next event as an [`ObservedEvent`]; not for accepted connections, datagrams and sockets.
    pub fn observed(&mut self) -> ObservedEvent {
        match self.next_event() {
            DriverEvent::Connected { token } => ObservedEvent::Connected(token),
            DriverEvent::Received { token, buffer, len } => {
                let bytes = self.driver.buffer(buffer)[..len as usize].to_vec();
                self.driver.release(buffer);
                ObservedEvent::Received(token, bytes)
            }
            DriverEvent::Ended { token } => ObservedEvent::Ended(token),
            DriverEvent::Failed { token, error } => ObservedEvent::Failed(token, error.kind()),
            DriverEvent::Readable { token } => ObservedEvent::Readable(token),
            DriverEvent::Writable { token } => ObservedEvent::Writable(token),
            DriverEvent::ReceiveCancelled { token } => ObservedEvent::ReceiveCancelled(token),
            DriverEvent::Closed { token } => ObservedEvent::Closed(token),
            DriverEvent::AcceptStopped { listener, error, refused } => {
                ObservedEvent::AcceptStopped(listener, error.is_some(), refused)
            }
            DriverEvent::Woken => ObservedEvent::Woken,
            event @ (DriverEvent::Accepted { .. }
            | DriverEvent::Datagram { .. }
            | DriverEvent::Detached { .. }) => {
                panic!("unexpected: {event:?}")
            }
        }
    }

    /// Expects exactly this event next.
    #[track_caller]
    pub fn expect(&mut self, observed: ObservedEvent) {
        assert_eq!(self.observed(), observed);
    }

    /// Expects no events, now and for some turns.
    #[track_caller]
    pub fn expect_silence(&mut self) {
        for _ in 0..SILENT_TURNS {
            self.idle_turn();
            assert!(self.events.is_empty(), "unexpected: {:?}", self.events);
        }
    }

    /// Returns an accepting listener.
    pub fn listen(&mut self, address_kind: AddressKind) -> (Token, Destination) {
        let (socket, destination) = self.rig.listener(address_kind);
        let listener = self.token();
        self.driver.listen(listener, socket).expect("listen");
        self.driver.accept(listener);
        (listener, destination)
    }

    /// Returns the next event, which must be a connection of `listener`.
    #[track_caller]
    pub fn accepted(&mut self, listener: Token) -> RigAccepted<R> {
        match self.next_event() {
            DriverEvent::Accepted { listener: of, socket } if of == listener => socket,
            event => panic!("expected a connection, got {event:?}"),
        }
    }

    /// Attaches a stream under a new token.
    pub fn attach(&mut self, socket: impl Into<RigAccepted<R>>, kind: SourceKind) -> Token {
        let token = self.token();
        self.driver.attach(token, socket.into(), kind, false).expect("attach");
        token
    }

    /// Returns an accepted and attached TCP connection with its peer.
    pub fn connection(&mut self) -> (Token, R::Peer) {
        let (listener, destination) = self.listen(AddressKind::V4);
        let peer = self.rig.dial(&destination);
        let socket = self.accepted(listener);
        self.driver.close(listener);
        self.expect(ObservedEvent::Closed(listener));
        (self.attach(socket, SourceKind::Stream), peer)
    }

    /// Writes all bytes from the peer, turning the driver while there is no room.
    pub fn peer_writes(&mut self, peer: &mut R::Peer, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match peer.write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.idle_turn(),
                Err(error) => panic!("the peer cannot write: {error}"),
            }
        }
    }

    /// Reads at the peer, turning the driver until bytes or the end (no bytes) arrive.
    pub fn peer_reads(&mut self, peer: &mut R::Peer) -> io::Result<Vec<u8>> {
        let mut into = [0; 16 * 1024];
        loop {
            match peer.read(&mut into) {
                Ok(read) => return Ok(into[..read].to_vec()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.idle_turn(),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads available bytes at the peer until the driver has events.
    pub fn peer_reads_until_event(&mut self, peer: &mut R::Peer, mut each: impl FnMut(u8)) {
        let mut into = [0; 16 * 1024];
        while self.events.is_empty() {
            match peer.read(&mut into) {
                Ok(read) => {
                    assert!(read > 0, "the end came too early");
                    into[..read].iter().copied().for_each(&mut each);
                }
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            self.idle_turn();
        }
    }

    /// Expects exactly `bytes` as the next bytes at the peer.
    #[track_caller]
    pub fn expect_at_peer(&mut self, peer: &mut R::Peer, bytes: &[u8]) {
        let mut read = Vec::new();
        while read.len() < bytes.len() {
            let more = self.peer_reads(peer).expect("the peer reads");
            assert!(!more.is_empty(), "the end came after {} bytes", read.len());
            read.extend(more);
        }
        assert_eq!(read, bytes);
    }

    /// Sends on a stream or pipe; returns the stop of an incomplete send.
    pub fn send(&mut self, token: Token, bytes: &[u8], close: bool) -> Option<IncompleteSend> {
        self.send_gather(token, Gather::One(bytes), close)
    }

    /// Sends bytes in several pieces, like [`send`](Self::send).
    pub fn send_gather(&mut self, token: Token, bytes: Gather<'_>, close: bool) -> Option<IncompleteSend> {
        let mut incomplete_sends = self.turn(Wait::No, &[Outgoing::stream(token, bytes, close)]);
        assert!(
            incomplete_sends.len() <= 1 && incomplete_sends.iter().all(|stop| stop.position == 0),
            "{incomplete_sends:?}"
        );
        incomplete_sends.pop()
    }

    /// Sends bytes that must be accepted whole.
    #[track_caller]
    pub fn send_whole(&mut self, token: Token, bytes: &[u8]) {
        let stop = self.send(token, bytes, false);
        assert!(stop.is_none(), "{stop:?}");
    }

    /// Sends the suite's pattern from `sent` on until a send stops short; returns the position.
    pub fn fill(&mut self, token: Token, mut sent: usize) -> usize {
        loop {
            let bytes: Vec<u8> = (sent..sent + 64 * 1024).map(super::pattern).collect();
            match self.send(token, &bytes, false) {
                None => sent += bytes.len(),
                Some(stop) => {
                    assert!(stop.error.is_none(), "{stop:?}");
                    assert!((stop.sent as usize) < bytes.len(), "{stop:?}");
                    return sent + stop.sent as usize;
                }
            }
        }
    }

    /// Sends until the connection stays blocked, and leaves `await_writable` armed. A system that moves bytes to the
    /// peer in the background may make room again for a while.
    pub fn fill_up(&mut self, token: Token, mut sent: usize) -> usize {
        loop {
            sent = self.fill(token, sent);
            self.driver.await_writable(token);
            for _ in 0..4 * SILENT_TURNS {
                if self.events.is_empty() {
                    self.idle_turn();
                }
            }
            if self.events.is_empty() {
                return sent;
            }
            self.expect(ObservedEvent::Writable(token));
        }
    }

    /// Receives once.
    pub fn receive(&mut self, token: Token) -> ObservedEvent {
        self.driver.receive(token);
        self.observed()
    }

    /// Receives `len` bytes.
    #[track_caller]
    pub fn receive_bytes(&mut self, token: Token, len: usize) -> Vec<u8> {
        let mut received = Vec::new();
        while received.len() < len {
            match self.receive(token) {
                ObservedEvent::Received(from, bytes) if from == token => received.extend(bytes),
                observed => panic!("expected bytes after {}, got {observed:?}", received.len()),
            }
        }
        received
    }
}
