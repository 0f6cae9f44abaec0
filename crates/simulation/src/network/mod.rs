//! The simulated network: sockets, the bytes between them, and virtual time.
//!
//! It models only what the user of a socket observes: bytes in order, bounded buffers, delay, ends of streams, resets,
//! refusals, full backlogs. Shards use it through [`SimDriver`](crate::SimDriver), simulated clients through
//! [`SimPeer`]. Everything runs in one thread; the world advances the time.
//!
//! ```text
//!  SimPeer ── write ─▶ ┌ pipe: [on the wire, due at …] [arrived, unread] ┐ ─ receive ─▶ SimDriver ─▶ shard
//!          ◀─ read ─── └ pipe: [arrived, unread] [on the wire, due at …] ┘ ◀── send ───
//! ```
//!
//! Hazards: a socket is a handle to the network, so nothing inside the network may own one (dropping it would
//! re-enter). Maps with random iteration order are forbidden: a run must be repeatable.

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

/// Options of a network.
#[derive(Clone, Copy, Debug)]
pub struct NetworkOptions {
    /// Shortest and longest transit time. Unix sockets and pipes take none.
    pub latency: (Duration, Duration),
    /// Bytes one direction of a connection holds: sent, not yet read. When full, sends block.
    pub buffer: usize,
    /// Rates of faults.
    pub faults: FaultRates,
}

impl Default for NetworkOptions {
    /// A network without faults and delay, with 64 KiB per direction.
    fn default() -> Self {
        NetworkOptions {
            latency: (Duration::ZERO, Duration::ZERO),
            buffer: 64 << 10,
            faults: FaultRates::NONE,
        }
    }
}

/// Address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP endpoint.
    Tcp(SocketAddr),
    /// A path.
    Unix(PathBuf),
}

/// Longest time until a connection's own fault (reset, half-close) strikes.
pub const CONNECTION_FAULT_WITHIN: Duration = Duration::from_millis(50);

/// Longest delay that a fault causes.
pub const FAULT_DELAY_MAX: Duration = Duration::from_millis(2);

/// The simulated network; clones refer to the same network.
#[derive(Clone)]
pub struct Network(Rc<RefCell<NetworkState>>);

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Network")
    }
}

/// Owner notified when a socket changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketOwner {
    Unowned,
    SimPeer(PeerKey),
    /// A connection in a listener's queue: notifies the owner of the listener.
    Listener(u32),
    SimSource {
        driver: u32,
        slot: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NetworkEvent {
    /// Packets sent by this side reach the other.
    Arrival {
        connection: u32,
        side: u8,
    },
    /// The n-th attempt of a connection reaches its listener.
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
    /// A source is checked again; an unused slot only causes a turn.
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
    /// Slots to check, per driver; may contain duplicates.
    dirty: Vec<Vec<u32>>,
    peers: u32,
    changed: Vec<PeerKey>,
    next_port: u16,
    activity: u64,
    trace: Trace,
}

impl Network {
    /// Creates a network with all behaviour decided by `seed`.
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

    /// The network's clock, for the code under test.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.state().clock.clone()
    }

    /// Current virtual time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.state().now()
    }

    /// Time of the next scheduled event, if any; never before now.
    #[must_use]
    pub fn next_event(&self) -> Option<Time> {
        let state = self.state();
        state.schedule_queue.peek().map(|Reverse((at, _, _))| (*at).max(state.now()))
    }

    /// Advances the time to `to` and runs all events due by then.
    pub fn advance_to(&self, to: Time) {
        self.state().advance_to(to);
    }

    /// Stops all faults from now on; delayed completions are delivered at once.
    pub fn stop_faults(&self) {
        self.state().faults = FaultRates::NONE;
    }

    /// Number of faults so far.
    #[must_use]
    pub fn fault_counts(&self) -> FaultCounts {
        self.state().counts
    }

    /// Number of driver actions and delivered events. A world runs its shards until the number stops rising.
    #[must_use]
    pub fn activity(&self) -> u64 {
        self.state().activity
    }

    /// Appends the peers with connection changes since the last call, each once, sorted by key.
    pub fn take_changed(&self, into: &mut Vec<PeerKey>) {
        let before = into.len();
        into.append(&mut self.state().changed);
        into[before..].sort_unstable();
        into.dedup();
    }

    /// Hash of all events so far.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.state().trace.hash()
    }

    /// Records the events as text from now on: the last [`LINES_MAX`](crate::trace::LINES_MAX) lines.
    pub fn record_text(&self) {
        self.state().trace.record_text();
    }

    /// Returns the recorded text and clears it.
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

    /// Two connected Unix stream sockets.
    #[must_use]
    pub fn pair(&self) -> (SimSocket, SimSocket) {
        let connection = self.state().add_connection(stream::ConnectionKind::Unix, None);
        (self.end(connection, 0), self.end(connection, 1))
    }

    /// Creates a handle for an end that has none.
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

    /// Draws whether this fault strikes now, and counts it if so.
    pub(crate) fn injects(&mut self, fault: NetworkFault) -> bool {
        let rate = self.faults.rate(fault);
        let injects = rate > 0 && self.random.chance(rate);
        if injects {
            self.counts.count(fault);
        }
        injects
    }

    /// Whether all fault rates are zero.
    pub(crate) fn has_no_faults(&self) -> bool {
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

    /// Draws the end of a delay that a fault causes.
    pub(crate) fn draw_delay_end(&mut self) -> Time {
        let span = self.random.between(1, FAULT_DELAY_MAX.as_nanos() as u64);
        self.now().after(Duration::from_nanos(span))
    }

    pub(crate) fn schedule_check(&mut self, at: Time, driver: u32, slot: u32) {
        self.schedule(at, NetworkEvent::SourceCheck { driver, slot });
    }

    pub(crate) fn advance_to(&mut self, to: Time) {
        while let Some(&Reverse((at, _, event))) = self.schedule_queue.peek() {
            if at > to {
                break;
            }
            self.schedule_queue.pop();
            self.manual_time.set(at);
            self.apply_event(event);
        }
        self.manual_time.set(to);
    }

    fn apply_event(&mut self, event: NetworkEvent) {
        match event {
            NetworkEvent::Arrival { connection, side } => self.arrive(connection, side),
            NetworkEvent::ConnectionAttempt { connection, attempt } => {
                self.attempt_connect(connection, attempt);
            }
            NetworkEvent::ConnectionFault { connection, reset } => self.apply_fault(connection, reset),
            NetworkEvent::Datagram { number } => self.deliver_datagram(number),
            NetworkEvent::SourceCheck { driver, slot } => self.dirty[driver as usize].push(slot),
        }
    }

    fn schedule(&mut self, at: Time, event: NetworkEvent) {
        self.scheduled += 1;
        self.schedule_queue.push(Reverse((at, self.scheduled, event)));
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

    /// Notifies the owner of a change.
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
