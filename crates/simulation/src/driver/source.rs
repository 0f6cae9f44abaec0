//! State of each source, and checks of the shard's side of the contract.
//!
//! A source exists from `attach` (or `listen`, `connect`) until its `Closed` has been delivered. Every use of a token
//! goes through [`SimSources::live`], which panics on a stale, closed or closing token.

use stilling_engine::Token;
use stilling_engine::limits::PIECES_MAX;

use crate::network::{EndId, SimSocket, SocketKind, SocketOwner};

pub(super) fn contract_violation(token: Token, what: &str) -> ! {
    panic!("contract broken by the shard, token {token:?}: {what}")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArmedRead {
    No,
    Receive,
    Readable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimSourceKind {
    Listener { accepting: bool, stopping: bool },
    Stream { connecting: bool },
    Pipe,
    Datagram,
}

impl SimSourceKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            SimSourceKind::Listener { .. } => "listen",
            SimSourceKind::Stream { connecting: true } => "connect",
            SimSourceKind::Stream { connecting: false } => "attach stream",
            SimSourceKind::Pipe => "attach pipe",
            SimSourceKind::Datagram => "attach datagram",
        }
    }
}

#[derive(Debug)]
pub(super) struct SimSource {
    pub(super) token: Token,
    socket: Option<SimSocket>,
    pub(super) what: SimSourceKind,
    pub(super) armed: ArmedRead,
    /// What was armed last, completed or not.
    pub(super) last_armed: ArmedRead,
    pub(super) cancelling: bool,
    pub(super) writable: bool,
    /// The armed receive found no free buffer and has been counted.
    pub(super) starving: bool,
    /// The next receive is attempted at once.
    pub(super) expects_data: bool,
    /// `Failed` has been delivered, which completes everything armed.
    pub(super) failed: bool,
    /// The shard has closed it; only `Closed` may follow.
    pub(super) closing: bool,
    /// The shard detaches the socket; no further operation is allowed.
    pub(super) detaching: bool,
    /// Delayed completions; `Closed` and `Detached` wait for them.
    pub(super) in_flight: u32,
    sent_in: u64,
}

impl SimSource {
    pub(super) fn new(token: Token, socket: SimSocket, what: SimSourceKind) -> Self {
        let fits = matches!(
            (what, socket.kind()),
            (SimSourceKind::Listener { .. }, SocketKind::Listener(_))
                | (SimSourceKind::Stream { .. } | SimSourceKind::Pipe, SocketKind::End(_))
                | (SimSourceKind::Datagram, SocketKind::Datagram(_))
        );
        if !fits {
            contract_violation(token, "attached as the wrong kind of socket");
        }
        SimSource {
            token,
            socket: Some(socket),
            what,
            armed: ArmedRead::No,
            last_armed: ArmedRead::No,
            cancelling: false,
            writable: false,
            starving: false,
            expects_data: false,
            failed: false,
            closing: false,
            detaching: false,
            in_flight: 0,
            sent_in: 0,
        }
    }

    pub(super) fn socket_kind(&self) -> SocketKind {
        self.socket.as_ref().expect("a checked source still has its socket").kind()
    }

    /// Whether the socket has been closed or detached.
    pub(super) fn is_released(&self) -> bool {
        self.socket.is_none()
    }

    /// Takes the socket and disowns it, so that its changes mark no source.
    pub(super) fn take_socket(&mut self) -> Option<SimSocket> {
        let socket = self.socket.take()?;
        socket.set_owner(SocketOwner::Unowned);
        Some(socket)
    }

    pub(super) fn release_socket(&mut self) {
        self.socket = None;
    }

    pub(super) fn arm(&mut self, armed: ArmedRead) {
        match self.what {
            SimSourceKind::Listener { .. } => contract_violation(self.token, "a listener cannot receive"),
            SimSourceKind::Stream { connecting: true } => {
                contract_violation(self.token, "receive before it is connected")
            }
            SimSourceKind::Stream { .. } if self.failed => {
                contract_violation(self.token, "receive after it failed")
            }
            _ if self.armed != ArmedRead::No => {
                contract_violation(self.token, "a second receive while one is armed")
            }
            _ => (self.armed, self.last_armed, self.starving) = (armed, armed, false),
        }
    }

    /// Records that `Failed` is delivered: nothing follows it.
    pub(super) fn fail(&mut self) {
        (self.armed, self.cancelling, self.writable, self.failed) = (ArmedRead::No, false, false, true);
    }

    pub(super) fn arm_writable(&mut self) {
        if self.failed {
            // The shard sends before it processes the failure event.
            return;
        }
        if std::mem::replace(&mut self.writable, true) {
            contract_violation(self.token, "await_writable while one is armed");
        }
    }

    pub(super) fn begin_detach(&mut self) {
        let is_detachable = matches!(
            self.what,
            SimSourceKind::Stream { connecting: false } | SimSourceKind::Listener { accepting: false, .. }
        );
        if !is_detachable {
            contract_violation(
                self.token,
                "detach on a source that is no connected stream or paused listener",
            );
        }
        self.detaching = true;
    }

    pub(super) fn check_recv_now(&self) {
        if self.armed == ArmedRead::Receive {
            contract_violation(self.token, "recv_now while a receive is armed");
        }
        if !matches!(self.what, SimSourceKind::Stream { connecting: false } | SimSourceKind::Pipe) {
            contract_violation(self.token, "recv_now on a source that is not a connected stream");
        }
    }

    pub(super) fn check_send_now(&self) {
        if !matches!(self.what, SimSourceKind::Stream { connecting: false } | SimSourceKind::Pipe) {
            contract_violation(self.token, "send_now on a source that is not a connected stream");
        }
    }

    pub(super) fn check_shutdown(&self) {
        if !matches!(self.what, SimSourceKind::Stream { connecting: false }) {
            contract_violation(self.token, "shutdown on a source that is not a connected stream");
        }
    }

    /// Checks a send in `turn`; returns whether it is a send of bytes (not a datagram).
    pub(super) fn check_send(&mut self, turn: u64, addressed: bool, pieces: usize) -> bool {
        if pieces > PIECES_MAX {
            contract_violation(self.token, "a send in too many pieces");
        }
        match (self.what, addressed) {
            (SimSourceKind::Datagram, true) if pieces > 1 => {
                contract_violation(self.token, "a datagram in several pieces")
            }
            (SimSourceKind::Datagram, true) => return false,
            (SimSourceKind::Stream { connecting: false } | SimSourceKind::Pipe, false) => {}
            (SimSourceKind::Datagram, false) => {
                contract_violation(self.token, "a datagram without an address")
            }
            (_, true) => contract_violation(self.token, "an address on a stream"),
            _ => contract_violation(self.token, "send on a source that is not a connected stream"),
        }
        if self.sent_in == turn {
            contract_violation(self.token, "two sends in one turn; they are not ordered");
        }
        self.sent_in = turn;
        true
    }
}

#[derive(Debug, Default)]
pub(super) struct SimSources {
    slots: Vec<SimSourceSlot>,
    in_use: usize,
}

#[derive(Debug, Default)]
struct SimSourceSlot {
    source: Option<SimSource>,
    last: Option<Token>,
}

impl SimSources {
    pub(super) fn add(&mut self, source: SimSource) -> u32 {
        let (token, index) = (source.token, source.token.index() as usize);
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, SimSourceSlot::default);
        }
        let slot = &mut self.slots[index];
        if let Some(current) = &slot.source {
            let why = if current.closing { "before the Closed of the slot's last source" } else { "twice" };
            contract_violation(token, &format!("attached {why} (occupied by {:?})", current.token));
        }
        if slot.last == Some(token) {
            contract_violation(token, "attached again without a new generation");
        }
        slot.last = Some(token);
        slot.source = Some(source);
        self.in_use += 1;
        token.index()
    }

    pub(super) fn set_owner(&mut self, slot: u32, driver: u32) {
        let source = self.slots[slot as usize].source.as_ref().and_then(|source| source.socket.as_ref());
        if let Some(socket) = source {
            socket.set_owner(SocketOwner::SimSource { driver, slot });
        }
    }

    /// The source of `token`, which must be attached and neither closing nor detaching.
    pub(super) fn live(&mut self, token: Token, what: &str) -> &mut SimSource {
        match self.of(token) {
            Some(source) if !source.closing && !source.detaching => {}
            Some(source) if source.detaching => {
                contract_violation(token, &format!("{what} after detaching it"))
            }
            Some(_) => contract_violation(token, &format!("{what} after closing it")),
            None => contract_violation(token, &format!("{what} although it is not attached")),
        }
        self.of(token).expect("just seen")
    }

    /// The accepting and stopping flags of a listener.
    pub(super) fn listener(&mut self, token: Token, what: &str) -> (&mut bool, &mut bool) {
        match &mut self.live(token, what).what {
            SimSourceKind::Listener { accepting, stopping } => (accepting, stopping),
            _ => contract_violation(token, &format!("{what} although it is no listener")),
        }
    }

    /// The number of a listener that is not accepting.
    pub(super) fn idle_listener(&mut self, token: Token, what: &str) -> u32 {
        if *self.listener(token, what).0 {
            contract_violation(token, &format!("{what} while it is accepting"));
        }
        self.live(token, what).socket_kind().listener()
    }

    /// The source of exactly this token, including a closing one.
    pub(super) fn of(&mut self, token: Token) -> Option<&mut SimSource> {
        self.at(token.index()).filter(|source| source.token == token)
    }

    pub(super) fn at(&mut self, slot: u32) -> Option<&mut SimSource> {
        self.slots.get_mut(slot as usize)?.source.as_mut()
    }

    pub(super) fn remove(&mut self, token: Token) {
        if let Some(slot) = self.slots.get_mut(token.index() as usize)
            && slot.source.take_if(|source| source.token == token).is_some()
        {
            self.in_use -= 1;
        }
    }

    pub(super) fn in_use(&self) -> usize {
        self.in_use
    }

    pub(super) fn any(&self) -> Option<Token> {
        self.slots.iter().find_map(|slot| Some(slot.source.as_ref()?.token))
    }
}

impl SocketKind {
    /// Panics unless it is an end of a connection.
    pub(super) fn end(self) -> EndId {
        match self {
            SocketKind::End(end) => end,
            other => unreachable!("{other:?} is not an end of a connection: checked when it was attached"),
        }
    }

    /// Panics unless it is a listener.
    pub(super) fn listener(self) -> u32 {
        match self {
            SocketKind::Listener(number) => number,
            other => unreachable!("{other:?} is no listener: checked when it was attached"),
        }
    }

    /// Panics unless it is a datagram socket.
    pub(super) fn datagram(self) -> u32 {
        match self {
            SocketKind::Datagram(number) => number,
            other => unreachable!("{other:?} is no datagram socket: checked when it was attached"),
        }
    }
}
