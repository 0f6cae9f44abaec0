//! Listeners, their backlogs, and how connections come to be.
//!
//! An attempt knocks at the address after one latency. Nobody there: refused. Backlog full: TCP knocks again after
//! 1, 2, 4, … seconds, a Unix socket is told at once. Several listeners at one address share its connections by chance,
//! as SO_REUSEPORT does by hash. A deferring listener hands a connection out when its first bytes are there, or after
//! a while without.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use stilling_ring::Time;

use super::peer::PeerKey;
use super::socket::SocketKind;
use super::stream::{EndId, Flavour, Phase};
use super::{Address, Happening, Network, Owner, SimSocket, State};
use crate::faults::Fault;

/// How often an attempt knocks at a full backlog before it gives up.
pub(super) const KNOCKS_MAX: u8 = 6;

pub(super) struct Listener {
    address: Address,
    pub(super) owner: Owner,
    backlog: usize,
    defer: Option<Duration>,
    queue: VecDeque<u32>,
    closed: bool,
}

impl Network {
    /// A listening socket. Port 0 is replaced by a free port.
    ///
    /// `backlog`: connections that wait to be accepted; with `defer` a connection is only handed out when it can be read,
    /// or when that time has passed.
    #[must_use]
    pub fn listen(&self, mut address: Address, backlog: usize, defer: Option<Duration>) -> SimSocket {
        let mut state = self.state();
        if let Address::Tcp(to) = &mut address
            && to.port() == 0
        {
            to.set_port(state.free_port());
        }
        let (queue, owner) = (VecDeque::new(), Owner::Nobody);
        state.listeners.push(Listener { address, owner, backlog, defer, queue, closed: false });
        SimSocket::new(self, SocketKind::Listener(state.listeners.len() as u32 - 1))
    }

    /// Starts to connect from `from`, or from any address of its own.
    pub(crate) fn dial(&self, to: Address, from: Option<SocketAddr>) -> SimSocket {
        let connection = self.state().dial(to, from);
        SimSocket::new(self, SocketKind::End(EndId { connection, side: 0 }))
    }
}

impl State {
    fn dial(&mut self, to: Address, from: Option<SocketAddr>) -> u32 {
        let flavour = if matches!(to, Address::Tcp(_)) { Flavour::Tcp } else { Flavour::Unix };
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
        let span = if flavour == Flavour::Tcp { self.latency() } else { Duration::ZERO };
        let knock = Happening::Knock { connection, attempt: 0 };
        if span.is_zero() {
            self.happen(knock);
        } else {
            self.schedule(self.now().after(span), knock);
        }
        for (fault, reset) in [(Fault::Reset, true), (Fault::HalfClose, false)] {
            let rate = self.faults.rate(fault);
            if rate > 0 && self.random.chance(rate) {
                let within = self.random.between(1, super::STRIKE_WITHIN.as_nanos() as u64);
                let at = self.now().after(span).after(Duration::from_nanos(within));
                self.schedule(at, Happening::Strike { connection, reset });
            }
        }
        connection
    }

    /// The attempt reaches its address.
    pub(super) fn knock(&mut self, connection: u32, attempt: u8) {
        let now = self.now();
        let Some(destination) = self.connections[connection as usize].destination.clone() else { return };
        let open: Vec<u32> = (0..self.listeners.len() as u32)
            .filter(|&at| {
                let listener = &self.listeners[at as usize];
                !listener.closed && listener.address == destination
            })
            .collect();
        let phase = if open.is_empty() {
            // The path of a Unix listener stays behind when it is closed; an address never used has none.
            let unknown = !self.listeners.iter().any(|listener| listener.address == destination);
            let no_path = unknown && matches!(destination, Address::Unix(_));
            Phase::Refused(if no_path { libc::ENOENT } else { libc::ECONNREFUSED })
        } else {
            let chosen = open[self.random.index(open.len())];
            let listener = &mut self.listeners[chosen as usize];
            if listener.queue.len() < listener.backlog {
                listener.queue.push_back(connection);
                self.connections[connection as usize].ends[1].owner = Owner::Listener(chosen);
                if let Some(defer) = listener.defer
                    && let Owner::Source { driver, slot } = listener.owner
                {
                    self.nudge(now.after(defer), driver, slot);
                }
                self.mark(Owner::Listener(chosen));
                Phase::Open(now)
            } else if matches!(destination, Address::Unix(_)) {
                Phase::Refused(libc::EAGAIN)
            } else if attempt == KNOCKS_MAX {
                Phase::Refused(libc::ETIMEDOUT)
            } else {
                let again = now.after(Duration::from_secs(1 << attempt));
                self.schedule(again, Happening::Knock { connection, attempt: attempt + 1 });
                return;
            }
        };
        let knocked = &mut self.connections[connection as usize];
        knocked.destination = None;
        knocked.phase = phase;
        let owner = knocked.ends[0].owner;
        self.mark(owner);
    }

    /// The next connection that a listener can give.
    pub(crate) fn take_connection(&mut self, listener: u32) -> Option<EndId> {
        let now = self.now();
        let Listener { queue, defer, .. } = &self.listeners[listener as usize];
        let place = queue.iter().position(|&connection| {
            let end = EndId { connection, side: 1 };
            let Phase::Open(since) = self.connections[connection as usize].phase else { return false };
            defer.is_none_or(|defer| now >= since.after(defer) || self.is_readable(end))
        })?;
        let connection = self.listeners[listener as usize].queue.remove(place)?;
        self.connections[connection as usize].ends[1].owner = Owner::Nobody;
        Some(EndId { connection, side: 1 })
    }

    /// A connection was taken and cannot be given: it stays the next.
    pub(crate) fn put_back(&mut self, listener: u32, end: EndId) {
        self.listeners[listener as usize].queue.push_front(end.connection);
        self.connections[end.connection as usize].ends[1].owner = Owner::Listener(listener);
    }

    pub(crate) fn set_listener_owner(&mut self, listener: u32, owner: Owner) {
        self.listeners[listener as usize].owner = owner;
        let Listener { queue, defer: Some(defer), .. } = &self.listeners[listener as usize] else { return };
        let Owner::Source { driver, slot } = owner else { return };
        let waiting: Vec<Time> = queue
            .iter()
            .filter_map(|&connection| match self.connections[connection as usize].phase {
                Phase::Open(since) => Some(since.after(*defer)),
                Phase::Knocking | Phase::Refused(_) => None,
            })
            .collect();
        for at in waiting {
            self.nudge(at, driver, slot);
        }
    }

    /// Closing a listener resets what nobody has accepted.
    pub(super) fn close_listener(&mut self, listener: u32) {
        let closed = &mut self.listeners[listener as usize];
        closed.closed = true;
        closed.owner = Owner::Nobody;
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
