//! Listeners, their backlogs, and connection attempts.
//!
//! An attempt reaches its address after one latency. Without a listener it is refused. With a full backlog, TCP retries
//! after 1, 2, 4, … seconds, and a Unix socket fails at once. Several listeners at one address share its connections at
//! random, as SO_REUSEPORT does by hash. A deferring listener hands out a connection when its first bytes have arrived
//! or the deferral time has passed.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use stilling_ring::Time;

use super::peer::PeerKey;
use super::socket::SocketKind;
use super::stream::{ConnectionKind, ConnectionPhase, EndId};
use super::{Address, Network, NetworkEvent, NetworkState, SimSocket, SocketOwner};
use crate::faults::NetworkFault;

/// Retries at a full backlog before an attempt times out.
pub(super) const CONNECT_RETRIES_MAX: u8 = 6;

pub(super) struct SimListener {
    address: Address,
    pub(super) owner: SocketOwner,
    backlog: usize,
    defer: Option<Duration>,
    queue: VecDeque<u32>,
    closed: bool,
}

impl Network {
    /// A listening socket. Port 0 is replaced by a free port.
    ///
    /// `backlog`: connections waiting to be accepted. With `defer`, a connection is handed out only when it is readable
    /// or that time has passed.
    #[must_use]
    pub fn listen(&self, mut address: Address, backlog: usize, defer: Option<Duration>) -> SimSocket {
        let mut state = self.state();
        if let Address::Tcp(to) = &mut address
            && to.port() == 0
        {
            to.set_port(state.free_port());
        }
        let (queue, owner) = (VecDeque::new(), SocketOwner::Unowned);
        state.listeners.push(SimListener { address, owner, backlog, defer, queue, closed: false });
        SimSocket::new(self, SocketKind::Listener(state.listeners.len() as u32 - 1))
    }

    pub(crate) fn dial(&self, to: Address, from: Option<SocketAddr>) -> SimSocket {
        let connection = self.state().dial(to, from);
        SimSocket::new(self, SocketKind::End(EndId { connection, side: 0 }))
    }
}

impl NetworkState {
    fn dial(&mut self, to: Address, from: Option<SocketAddr>) -> u32 {
        let flavour = if matches!(to, Address::Tcp(_)) { ConnectionKind::Tcp } else { ConnectionKind::Unix };
        let from = match &to {
            Address::Tcp(to) => {
                let mut from = from.unwrap_or_else(|| SocketAddr::new(to.ip(), 0));
                if from.port() == 0 {
                    from.set_port(self.free_port());
                }
                Some(from)
            }
            Address::Unix(_) => None,
        };
        let other = if let Address::Tcp(to) = &to { Some(*to) } else { None };
        let connection = self.add_connection(flavour, Some(to));
        let ends = &mut self.connections[connection as usize].ends;
        (ends[0].address, ends[1].address) = (from, other);
        let span = if flavour == ConnectionKind::Tcp { self.latency() } else { Duration::ZERO };
        let attempt_connect = NetworkEvent::ConnectionAttempt { connection, attempt: 0 };
        if span.is_zero() {
            self.apply_event(attempt_connect);
        } else {
            self.schedule(self.now().after(span), attempt_connect);
        }
        for (fault, reset) in [(NetworkFault::Reset, true), (NetworkFault::HalfClose, false)] {
            let rate = self.faults.rate(fault);
            if rate > 0 && self.random.chance(rate) {
                let within = self.random.between(1, super::CONNECTION_FAULT_WITHIN.as_nanos() as u64);
                let at = self.now().after(span).after(Duration::from_nanos(within));
                self.schedule(at, NetworkEvent::ConnectionFault { connection, reset });
            }
        }
        connection
    }

    pub(super) fn attempt_connect(&mut self, connection: u32, attempt: u8) {
        let now = self.now();
        let Some(destination) = self.connections[connection as usize].destination.clone() else { return };
        let open: Vec<u32> = (0..self.listeners.len() as u32)
            .filter(|&at| {
                let listener = &self.listeners[at as usize];
                !listener.closed && listener.address == destination
            })
            .collect();
        let phase = if open.is_empty() {
            // The path of a closed Unix listener remains; an address never used has no path.
            let unknown = !self.listeners.iter().any(|listener| listener.address == destination);
            let no_path = unknown && matches!(destination, Address::Unix(_));
            ConnectionPhase::Refused(if no_path { libc::ENOENT } else { libc::ECONNREFUSED })
        } else {
            let chosen = open[self.random.index(open.len())];
            let listener = &mut self.listeners[chosen as usize];
            if listener.queue.len() < listener.backlog {
                listener.queue.push_back(connection);
                self.connections[connection as usize].ends[1].owner = SocketOwner::Listener(chosen);
                if let Some(defer) = listener.defer
                    && let SocketOwner::SimSource { driver, slot } = listener.owner
                {
                    self.schedule_check(now.after(defer), driver, slot);
                }
                self.mark(SocketOwner::Listener(chosen));
                ConnectionPhase::Open(now)
            } else if matches!(destination, Address::Unix(_)) {
                ConnectionPhase::Refused(libc::EAGAIN)
            } else if attempt == CONNECT_RETRIES_MAX {
                ConnectionPhase::Refused(libc::ETIMEDOUT)
            } else {
                let again = now.after(Duration::from_secs(1 << attempt));
                self.schedule(again, NetworkEvent::ConnectionAttempt { connection, attempt: attempt + 1 });
                return;
            }
        };
        let attempted = &mut self.connections[connection as usize];
        attempted.destination = None;
        attempted.phase = phase;
        let owner = attempted.ends[0].owner;
        self.mark(owner);
    }

    /// Takes the next connection that the listener can hand out.
    pub(crate) fn take_connection(&mut self, listener: u32) -> Option<EndId> {
        let now = self.now();
        let SimListener { queue, defer, .. } = &self.listeners[listener as usize];
        let index = queue.iter().position(|&connection| {
            let end = EndId { connection, side: 1 };
            let ConnectionPhase::Open(since) = self.connections[connection as usize].phase else {
                return false;
            };
            defer.is_none_or(|defer| now >= since.after(defer) || self.is_readable(end))
        })?;
        let connection = self.listeners[listener as usize].queue.remove(index)?;
        self.connections[connection as usize].ends[1].owner = SocketOwner::Unowned;
        Some(EndId { connection, side: 1 })
    }

    /// Puts a connection that could not be accepted back at the head of the queue.
    pub(crate) fn requeue_connection(&mut self, listener: u32, end: EndId) {
        self.listeners[listener as usize].queue.push_front(end.connection);
        self.connections[end.connection as usize].ends[1].owner = SocketOwner::Listener(listener);
    }

    pub(crate) fn set_listener_owner(&mut self, listener: u32, owner: SocketOwner) {
        self.listeners[listener as usize].owner = owner;
        let SimListener { queue, defer: Some(defer), .. } = &self.listeners[listener as usize] else {
            return;
        };
        let SocketOwner::SimSource { driver, slot } = owner else { return };
        let waiting: Vec<Time> = queue
            .iter()
            .filter_map(|&connection| match self.connections[connection as usize].phase {
                ConnectionPhase::Open(since) => Some(since.after(*defer)),
                ConnectionPhase::Connecting | ConnectionPhase::Refused(_) => None,
            })
            .collect();
        for at in waiting {
            self.schedule_check(at, driver, slot);
        }
    }

    /// Closes a listener and resets its unaccepted connections.
    pub(super) fn close_listener(&mut self, listener: u32) {
        let closed = &mut self.listeners[listener as usize];
        closed.closed = true;
        closed.owner = SocketOwner::Unowned;
        for connection in std::mem::take(&mut closed.queue) {
            self.reset(EndId { connection, side: 1 });
        }
    }

    pub(super) fn listener_address(&self, listener: u32) -> Address {
        self.listeners[listener as usize].address.clone()
    }

    pub(super) fn mark_peer(&mut self, key: PeerKey) {
        if self.changed.last() != Some(&key) {
            self.changed.push(key);
        }
    }
}
