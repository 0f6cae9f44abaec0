//! The simulated network: sockets, the bytes between them, and virtual time.
//!
//! It models what a socket's user can observe, and nothing below: bytes in order, bounded buffers, delay, ends of
//! streams, resets, refusals, full backlogs. Shards meet it through [`SimDriver`](crate::SimDriver), simulated clients
//! through [`SimPeer`]. Everything runs in one thread; whoever runs the world moves the time.
//!
//! ```text
//!  Peer ── write ─▶ ┌ pipe: [on the wire, due at …] [arrived, unread] ┐ ─ receive ─▶ SimDriver ─▶ shard
//!       ◀─ read ─── └ pipe: [arrived, unread] [on the wire, due at …] ┘ ◀── send ───
//! ```
//!
//! Hazards: a socket is one of the network's own handles, so nothing inside the network may own one (dropping it would
//! re-enter). Maps with random order are forbidden here: a run must repeat.

mod datagram;
mod listener;
mod peer;
mod socket;
mod stream;

use std::cell::{RefCell, RefMut};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use stilling_ring::{Clock, ManualTime, Time};

use crate::SplitMix64;
use crate::faults::{FaultCounts, FaultRates, NetworkFault};
use crate::trace::Trace;

pub use peer::{PeerKey, SimDatagramPeer, SimPeer, SimPeerListener};
pub use socket::SimSocket;
pub(crate) use socket::SocketKind;
pub(crate) use stream::EndId;

/// What a network is made of.
#[derive(Clone, Copy, Debug)]
pub struct NetworkOptions {
    /// The shortest and the longest time something is on the wire. Unix sockets and pipes take none.
    pub latency: (Duration, Duration),
    /// Bytes one direction of a connection holds: sent, not yet read. Full: sends would block.
    pub buffer: usize,
    /// How often what goes wrong.
    pub faults: FaultRates,
}

impl Default for NetworkOptions {
    /// A kind network without delay, with 64 KiB per direction.
    fn default() -> Self {
        NetworkOptions {
            latency: (Duration::ZERO, Duration::ZERO),
            buffer: 64 << 10,
            faults: FaultRates::NONE,
        }
    }
}

/// Where a listener is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP endpoint.
    Tcp(SocketAddr),
    /// A path.
    Unix(PathBuf),
}

/// The longest time until a connection's own fault (reset, half-close) strikes.
pub const CONNECTION_FAULT_WITHIN: Duration = Duration::from_millis(50);

/// The longest time a fault puts something off.
pub const FAULT_DELAY_MAX: Duration = Duration::from_millis(2);

/// The simulated network; clones are the same network.
#[derive(Clone)]
pub struct Network(Rc<RefCell<NetworkState>>);

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Network")
    }
}

/// Who has to be told when a socket changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketOwner {
    Unowned,
    SimPeer(PeerKey),
    /// A connection in a listener's queue: whoever owns that listener.
    Listener(u32),
    SimSource {
        driver: u32,
        slot: u32,
    },
}

/// What the future holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NetworkEvent {
    /// Something that this side sent reaches the other.
    Arrival {
        connection: u32,
        side: u8,
    },
    /// A connection attempt reaches its listener, for the n-th time.
    ConnectionAttempt {
        connection: u32,
        attempt: u8,
    },
    ConnectionFault {
        connection: u32,
        reset: bool,
    },
    Datagram {
        number: u64,
    },
    /// A source (or nobody's) is to be looked at again.
    SourceCheck {
        driver: u32,
        slot: u32,
    },
}

pub(crate) struct NetworkState {
    clock: Clock,
    manual_time: ManualTime,
    pub(crate) random: SplitMix64,
    faults: FaultRates,
    counts: FaultCounts,
    options: NetworkOptions,
    schedule_queue: BinaryHeap<Reverse<(Time, u64, NetworkEvent)>>,
    scheduled: u64,
    connections: Vec<stream::SimConnection>,
    listeners: Vec<listener::SimListener>,
    datagrams: Vec<datagram::SimDatagramSocket>,
    in_flight: BTreeMap<u64, datagram::DatagramInFlight>,
    /// Slots to look at, per driver; a slot may stand there several times.
    dirty: Vec<Vec<u32>>,
    peers: u32,
    changed: Vec<PeerKey>,
    next_port: u16,
    activity: u64,
    trace: Trace,
}

impl Network {
    /// A network in which everything is decided by `seed`.
    #[must_use]
    pub fn new(seed: u64, options: NetworkOptions) -> Self {
        let (clock, manual_time) = Clock::manual();
        Network(Rc::new(RefCell::new(NetworkState {
            clock,
            manual_time,
            random: SplitMix64::new(seed),
            faults: options.faults,
            counts: FaultCounts::default(),
            options,
            schedule_queue: BinaryHeap::new(),
            scheduled: 0,
            connections: Vec::new(),
            listeners: Vec::new(),
            datagrams: Vec::new(),
            in_flight: BTreeMap::new(),
            dirty: Vec::new(),
            peers: 0,
            changed: Vec::new(),
            next_port: 32_768,
            activity: 0,
            trace: Trace::default(),
        })))
    }

    /// The network's clock, to hand to the code under test.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.state().clock.clone()
    }

    /// What the clock says.
    #[must_use]
    pub fn now(&self) -> Time {
        self.state().now()
    }

    /// When the next thing happens by itself, if anything does; never earlier than now.
    #[must_use]
    pub fn next_event(&self) -> Option<Time> {
        let state = self.state();
        state.schedule_queue.peek().map(|Reverse((at, _, _))| (*at).max(state.now()))
    }

    /// Moves the time to `to` and lets everything happen that is due by then.
    pub fn advance_to(&self, to: Time) {
        self.state().advance_to(to);
    }

    /// From now on the network is kind; what was put off comes at once.
    pub fn stop_faults(&self) {
        self.state().faults = FaultRates::NONE;
    }

    /// How often each kind of trouble struck so far.
    #[must_use]
    pub fn fault_counts(&self) -> FaultCounts {
        self.state().counts
    }

    /// Rises whenever a driver does something or gives news. A world runs its shards until this stands still.
    #[must_use]
    pub fn activity(&self) -> u64 {
        self.state().activity
    }

    /// Appends the peers whose connections changed since the last call: each once, the oldest peer first.
    pub fn take_changed(&self, into: &mut Vec<PeerKey>) {
        let before = into.len();
        into.append(&mut self.state().changed);
        into[before..].sort_unstable();
        into.dedup();
    }

    /// The hash of all that happened so far.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.state().trace.hash()
    }

    /// Keeps the text of what happens from now on, at most [`LINES_MAX`](crate::trace::LINES_MAX) lines.
    pub fn keep_text(&self) {
        self.state().trace.keep_text();
    }

    /// The text kept so far.
    #[must_use]
    pub fn take_text(&self) -> Vec<String> {
        self.state().trace.take_lines()
    }

    /// A pipe: its reading end and its writing end.
    #[must_use]
    pub fn pipe(&self) -> (SimSocket, SimSocket) {
        let connection = self.state().add_connection(stream::ConnectionKind::Pipe, None);
        (self.end(connection, 1), self.end(connection, 0))
    }

    /// Two Unix stream sockets that are connected to each other.
    #[must_use]
    pub fn pair(&self) -> (SimSocket, SimSocket) {
        let connection = self.state().add_connection(stream::ConnectionKind::Unix, None);
        (self.end(connection, 0), self.end(connection, 1))
    }

    /// The handle of an end that nobody has one of.
    pub(crate) fn socket_of(&self, end: EndId) -> SimSocket {
        SimSocket::new(self, SocketKind::End(end))
    }

    fn end(&self, connection: u32, side: u8) -> SimSocket {
        self.socket_of(EndId { connection, side })
    }

    pub(crate) fn state(&self) -> RefMut<'_, NetworkState> {
        self.0.borrow_mut()
    }

    /// For destructors, which may run while a panic unwinds through the network.
    fn try_state(&self) -> Option<RefMut<'_, NetworkState>> {
        self.0.try_borrow_mut().ok()
    }
}

impl NetworkState {
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Whether trouble of this kind strikes now; counted if so.
    pub(crate) fn strikes(&mut self, fault: NetworkFault) -> bool {
        let rate = self.faults.rate(fault);
        let strikes = rate > 0 && self.random.chance(rate);
        if strikes {
            self.counts.count(fault);
        }
        strikes
    }

    /// Whether anything may go wrong at all.
    pub(crate) fn is_kind(&self) -> bool {
        self.faults == FaultRates::NONE
    }

    pub(crate) fn add_driver(&mut self) -> u32 {
        self.dirty.push(Vec::new());
        self.dirty.len() as u32 - 1
    }

    pub(crate) fn take_dirty(&mut self, driver: u32, into: &mut Vec<u32>) {
        into.append(&mut self.dirty[driver as usize]);
    }

    pub(crate) fn is_dirty(&self, driver: u32) -> bool {
        !self.dirty[driver as usize].is_empty()
    }

    pub(crate) fn acted(&mut self) {
        self.activity += 1;
    }

    pub(crate) fn note(&mut self, actor: &str, number: u32, what: &str, subject: u64, detail: u64) {
        let now = self.now();
        self.trace.note(now, actor, u64::from(number), what, subject, detail);
    }

    /// A point in time that a fault puts something off to.
    pub(crate) fn put_off(&mut self) -> Time {
        let span = self.random.between(1, FAULT_DELAY_MAX.as_nanos() as u64);
        self.now().after(Duration::from_nanos(span))
    }

    /// Has the slot looked at again at `at`.
    pub(crate) fn nudge(&mut self, at: Time, driver: u32, slot: u32) {
        self.schedule(at, NetworkEvent::SourceCheck { driver, slot });
    }

    pub(crate) fn advance_to(&mut self, to: Time) {
        while let Some(&Reverse((at, _, happening))) = self.schedule_queue.peek() {
            if at > to {
                break;
            }
            self.schedule_queue.pop();
            self.manual_time.set(at);
            self.happen(happening);
        }
        self.manual_time.set(to);
    }

    fn happen(&mut self, happening: NetworkEvent) {
        match happening {
            NetworkEvent::Arrival { connection, side } => self.arrive(connection, side),
            NetworkEvent::ConnectionAttempt { connection, attempt } => {
                self.attempt_connect(connection, attempt);
            }
            NetworkEvent::ConnectionFault { connection, reset } => self.apply_fault(connection, reset),
            NetworkEvent::Datagram { number } => self.deliver_datagram(number),
            NetworkEvent::SourceCheck { driver, slot } => self.dirty[driver as usize].push(slot),
        }
    }

    fn schedule(&mut self, at: Time, happening: NetworkEvent) {
        self.scheduled += 1;
        self.schedule_queue.push(Reverse((at, self.scheduled, happening)));
    }

    fn latency(&mut self) -> Duration {
        let (low, high) = self.options.latency;
        Duration::from_nanos(self.random.between(low.as_nanos() as u64, high.as_nanos() as u64))
    }

    fn new_peer(&mut self) -> PeerKey {
        self.peers += 1;
        PeerKey(self.peers)
    }

    fn free_port(&mut self) -> u16 {
        self.next_port = if self.next_port == u16::MAX { 32_768 } else { self.next_port + 1 };
        self.next_port
    }

    /// Tells the owner that there is something to look at.
    fn mark(&mut self, owner: SocketOwner) {
        match owner {
            SocketOwner::Unowned => {}
            SocketOwner::SimPeer(key) => self.mark_peer(key),
            SocketOwner::Listener(listener) => {
                let owner = self.listeners[listener as usize].owner;
                debug_assert!(!matches!(owner, SocketOwner::Listener(_)));
                self.mark(owner);
            }
            SocketOwner::SimSource { driver, slot } => self.dirty[driver as usize].push(slot),
        }
    }
}
