//! Connections: two byte pipes between two ends, and how they end.
//!
//! TCP, Unix stream sockets and pipes differ in three ways: only TCP has latency; a write to a closed end is answered
//! by a reset over TCP and fails at once over the others; a pipe has only one direction. Bytes count against the pipe's
//! capacity from the write until the read, as if the kernel's two buffers were one. Closing an end with unread bytes
//! resets the connection and discards what is still on the wire, as in Linux: a server that closes too early destroys
//! its own answer.

use std::collections::VecDeque;
use std::io::Read as _;
use std::net::SocketAddr;
use std::time::Duration;

use stilling_ring::Time;

use super::{Address, NetworkEvent, NetworkState, SocketOwner};
use crate::faults::NetworkFault;

/// One end of a connection. Side 0 dialled (or writes, for a pipe), side 1 was accepted (or reads).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndId {
    pub(super) connection: u32,
    pub(super) side: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionKind {
    Tcp,
    Unix,
    Pipe,
}

pub(super) struct SimConnection {
    pub(super) flavour: ConnectionKind,
    pub(super) phase: ConnectionPhase,
    /// Destination dialled by side 0, while connecting.
    pub(super) destination: Option<Address>,
    pub(super) ends: [ConnectionEnd; 2],
    /// `pipes[n]` carries what side n writes.
    pub(super) pipes: [Pipe; 2],
    /// The network damaged the connection: the server is not responsible for its end.
    pub(super) damaged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionPhase {
    Connecting,
    /// In the listener's queue since this time, or accepted.
    Open(Time),
    /// Failed, with this errno.
    Refused(i32),
}

pub(super) struct ConnectionEnd {
    pub(super) owner: SocketOwner,
    pub(super) address: Option<SocketAddr>,
    closed: bool,
    /// The connection is reset; the errno is reported once.
    is_reset: bool,
    error: Option<i32>,
}

/// If an end closes within this time after a read, bytes may have arrived since that it does not know of: its event was
/// late or covered only part of them. A reset that such a close causes counts as damage by the network.
const CLOSE_RACE: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(super) struct Pipe {
    wire: VecDeque<(Time, Packet)>,
    arrived: VecDeque<u8>,
    read_at: Time,
    /// Bytes on the wire or arrived.
    held: usize,
    fin_sent: bool,
    fin_arrived: bool,
}

enum Packet {
    Bytes(Vec<u8>),
    Fin,
    Reset,
}

impl NetworkState {
    /// Adds a connection: open at once, or connecting to `destination`.
    pub(super) fn add_connection(&mut self, flavour: ConnectionKind, destination: Option<Address>) -> u32 {
        let end = || ConnectionEnd {
            owner: SocketOwner::Unowned,
            address: None,
            closed: false,
            is_reset: false,
            error: None,
        };
        let phase = if destination.is_some() {
            ConnectionPhase::Connecting
        } else {
            ConnectionPhase::Open(self.now())
        };
        self.connections.push(SimConnection {
            flavour,
            phase,
            destination,
            ends: [end(), end()],
            pipes: Default::default(),
            damaged: false,
        });
        self.connections.len() as u32 - 1
    }

    pub(crate) fn set_owner(&mut self, end: EndId, owner: SocketOwner) {
        self.end_mut(end).owner = owner;
    }

    /// Accepts bytes for the other end: at most `limit`, at least one. Errors are errnos, including `EAGAIN`.
    pub(crate) fn write(&mut self, end: EndId, bytes: &[u8], limit: usize) -> Result<usize, i32> {
        let room = self.options.buffer.saturating_sub(self.pipe_of(end).held);
        let connection = self.connection(end);
        let other_closed = connection.ends[usize::from(1 - end.side)].closed;
        match connection.phase {
            ConnectionPhase::Connecting => return Err(libc::EAGAIN),
            ConnectionPhase::Refused(errno) => return Err(errno),
            ConnectionPhase::Open(_) => {}
        }
        if let Some(errno) = connection.ends[usize::from(end.side)].error.take() {
            return Err(errno);
        }
        if connection.ends[usize::from(end.side)].is_reset || connection.pipes[usize::from(end.side)].fin_sent
        {
            return Err(libc::EPIPE);
        }
        if other_closed && connection.flavour != ConnectionKind::Tcp {
            return Err(libc::EPIPE);
        }
        let taken = bytes.len().min(room).min(limit);
        if taken == 0 {
            return if bytes.is_empty() { Ok(0) } else { Err(libc::EAGAIN) };
        }
        connection.pipes[usize::from(end.side)].held += taken;
        self.transmit(end, Packet::Bytes(bytes[..taken].to_vec()));
        Ok(taken)
    }

    /// Sets the time of the last read to now, when the reader receives its event.
    pub(crate) fn set_read_time(&mut self, end: EndId) {
        let now = self.now();
        self.connection(end).pipes[usize::from(1 - end.side)].read_at = now;
    }

    /// Takes arrived bytes, at most `into.len()`; `Ok(0)` is the end.
    pub(crate) fn read(&mut self, end: EndId, into: &mut [u8]) -> Result<usize, i32> {
        let now = self.now();
        let connection = self.connection(end);
        let pipe = &mut connection.pipes[usize::from(1 - end.side)];
        if !pipe.arrived.is_empty() {
            pipe.read_at = now;
            let taken = pipe.arrived.len().min(into.len());
            pipe.arrived.read_exact(&mut into[..taken]).expect("that many bytes have arrived");
            pipe.held -= taken;
            let writer = connection.ends[usize::from(1 - end.side)].owner;
            self.mark(writer);
            return Ok(taken);
        }
        let fin = pipe.fin_arrived;
        let this = &mut connection.ends[usize::from(end.side)];
        match (connection.phase, this.error.take()) {
            (ConnectionPhase::Refused(errno), _) | (_, Some(errno)) => Err(errno),
            _ if this.is_reset || fin => Ok(0),
            _ => Err(libc::EAGAIN),
        }
    }

    pub(crate) fn arrived(&self, end: EndId) -> usize {
        self.connections[end.connection as usize].pipes[usize::from(1 - end.side)].arrived.len()
    }

    /// Whether a read returns bytes, the end or an error.
    pub(crate) fn is_readable(&self, end: EndId) -> bool {
        let connection = &self.connections[end.connection as usize];
        let this = &connection.ends[usize::from(end.side)];
        let pipe = &connection.pipes[usize::from(1 - end.side)];
        !pipe.arrived.is_empty()
            || pipe.fin_arrived
            || this.is_reset
            || this.error.is_some()
            || matches!(connection.phase, ConnectionPhase::Refused(_))
    }

    /// Whether this end was reset or has a pending error.
    pub(crate) fn is_hung_up(&self, end: EndId) -> bool {
        let this = &self.connections[end.connection as usize].ends[usize::from(end.side)];
        this.is_reset || this.error.is_some()
    }

    /// Whether a write succeeds (room for a third of the buffer) or returns an error.
    pub(crate) fn is_writable(&self, end: EndId) -> bool {
        let connection = &self.connections[end.connection as usize];
        let this = &connection.ends[usize::from(end.side)];
        let pipe = &connection.pipes[usize::from(end.side)];
        let gone =
            connection.ends[usize::from(1 - end.side)].closed && connection.flavour != ConnectionKind::Tcp;
        match connection.phase {
            ConnectionPhase::Connecting => false,
            ConnectionPhase::Refused(_) => true,
            ConnectionPhase::Open(_) => {
                let room = self.options.buffer.saturating_sub(pipe.held);
                gone || this.is_reset
                    || this.error.is_some()
                    || pipe.fin_sent
                    || room * 3 >= self.options.buffer
            }
        }
    }

    /// Whether the dialling end is usable: `None` while connecting, an errno if refused.
    pub(crate) fn connected(&self, end: EndId) -> Option<Result<(), i32>> {
        match self.connections[end.connection as usize].phase {
            ConnectionPhase::Connecting => None,
            ConnectionPhase::Open(_) => Some(Ok(())),
            ConnectionPhase::Refused(errno) => Some(Err(errno)),
        }
    }

    pub(crate) fn is_damaged(&self, end: EndId) -> bool {
        self.connections[end.connection as usize].damaged
    }

    pub(crate) fn set_damaged(&mut self, end: EndId) {
        self.connection(end).damaged = true;
    }

    /// Ends this end's direction; earlier writes still arrive.
    pub(crate) fn shutdown(&mut self, end: EndId) {
        let is_reset = self.end_mut(end).is_reset;
        let pipe = self.pipe_of(end);
        if !is_reset && !std::mem::replace(&mut pipe.fin_sent, true) {
            self.transmit(end, Packet::Fin);
        }
    }

    /// Closes this end. Unread bytes turn the close into a reset, which overtakes what has not arrived yet.
    pub(crate) fn close(&mut self, end: EndId) {
        let unread = self.arrived(end) > 0;
        let one_way = self.connection(end).flavour == ConnectionKind::Pipe;
        if std::mem::replace(&mut self.end_mut(end).closed, true) {
            return;
        }
        if unread && !one_way {
            let now = self.now();
            let connection = self.connection(end);
            let read_at = connection.pipes[usize::from(1 - end.side)].read_at;
            connection.damaged |= now < read_at.after(CLOSE_RACE);
            self.pipe_of(end).lose_wire();
            self.transmit(end, Packet::Reset);
        } else {
            self.shutdown(end);
        }
        self.abandon_end(end);
    }

    /// Closes this end with a reset; writes that have not arrived are lost.
    pub(crate) fn reset(&mut self, end: EndId) {
        if std::mem::replace(&mut self.end_mut(end).closed, true) {
            return;
        }
        self.pipe_of(end).lose_wire();
        self.transmit(end, Packet::Reset);
        self.abandon_end(end);
    }

    /// Releases a closed end and notifies the other.
    fn abandon_end(&mut self, end: EndId) {
        self.end_mut(end).owner = SocketOwner::Unowned;
        let connection = self.connection(end);
        connection.pipes[usize::from(1 - end.side)].arrived = VecDeque::new();
        if connection.ends.iter().all(|end| end.closed) {
            connection.pipes = Default::default();
            connection.pipes.iter_mut().for_each(|pipe| pipe.fin_sent = true);
        } else {
            let other = connection.ends[usize::from(1 - end.side)].owner;
            self.mark(other);
        }
    }

    fn transmit(&mut self, from: EndId, packet: Packet) {
        let now = self.now();
        let tcp = self.connection(from).flavour == ConnectionKind::Tcp;
        let due = if tcp {
            let span = self.latency();
            now.after(span)
        } else {
            now
        };
        let wire = &mut self.pipe_of(from).wire;
        let due = wire.back().map_or(due, |(before, _)| due.max(*before));
        wire.push_back((due, packet));
        if due == now {
            self.arrive(from.connection, from.side);
        } else {
            self.schedule(due, NetworkEvent::Arrival { connection: from.connection, side: from.side });
        }
    }

    /// Delivers all due packets sent by `side` to the other end.
    pub(super) fn arrive(&mut self, connection: u32, side: u8) {
        let now = self.now();
        let to = EndId { connection, side: 1 - side };
        loop {
            let wire = &mut self.connections[connection as usize].pipes[usize::from(side)].wire;
            match wire.front() {
                Some((due, _)) if *due <= now => {}
                _ => break,
            }
            let Some((_, packet)) = wire.pop_front() else { break };
            self.deliver(to, packet);
        }
    }

    fn deliver(&mut self, to: EndId, packet: Packet) {
        let connection = self.connection(to);
        let pipe = &mut connection.pipes[usize::from(1 - to.side)];
        let this = &mut connection.ends[usize::from(to.side)];
        if this.is_reset {
            return;
        }
        match packet {
            Packet::Bytes(_) if this.closed => {
                self.transmit(to, Packet::Reset);
                return;
            }
            Packet::Bytes(bytes) => pipe.arrived.extend(bytes),
            Packet::Fin => pipe.fin_arrived = true,
            Packet::Reset => {
                self.abort_connection(to);
                return;
            }
        }
        let owner = this.owner;
        self.mark(owner);
    }

    fn abort_connection(&mut self, end: EndId) {
        let discards = self.injects(NetworkFault::DiscardingReset);
        let connection = self.connection(end);
        connection.damaged |= discards;
        connection.pipes[usize::from(end.side)].lose_wire();
        if discards {
            let pipe = &mut connection.pipes[usize::from(1 - end.side)];
            pipe.held -= pipe.arrived.len();
            pipe.arrived.clear();
        }
        let this = &mut connection.ends[usize::from(end.side)];
        this.is_reset = true;
        this.error = Some(libc::ECONNRESET);
        let owner = this.owner;
        self.mark(owner);
    }

    /// Applies a connection's own fault: a reset for both ends, or the end of the dialling end's direction.
    pub(super) fn apply_fault(&mut self, connection: u32, reset: bool) {
        let faulted = &mut self.connections[connection as usize];
        if !matches!(faulted.phase, ConnectionPhase::Open(_))
            || faulted.ends.iter().any(|end| end.closed || end.is_reset)
        {
            return;
        }
        faulted.damaged = true;
        self.counts.count(if reset { NetworkFault::Reset } else { NetworkFault::HalfClose });
        self.note("fault", connection, if reset { "reset" } else { "half-close" }, u64::from(connection), 0);
        if reset {
            for side in [0, 1] {
                self.abort_connection(EndId { connection, side });
            }
        } else {
            self.shutdown(EndId { connection, side: 0 });
        }
    }

    fn connection(&mut self, end: EndId) -> &mut SimConnection {
        &mut self.connections[end.connection as usize]
    }

    fn end_mut(&mut self, end: EndId) -> &mut ConnectionEnd {
        &mut self.connection(end).ends[usize::from(end.side)]
    }

    fn pipe_of(&mut self, end: EndId) -> &mut Pipe {
        &mut self.connection(end).pipes[usize::from(end.side)]
    }
}

impl Pipe {
    /// Discards what has not arrived.
    fn lose_wire(&mut self) {
        self.wire.clear();
        self.held = self.arrived.len();
    }
}
