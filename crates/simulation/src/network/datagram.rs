//! Datagrams: whole, delayed, reordered, duplicated or lost.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use super::socket::SocketKind;
use super::{Network, NetworkEvent, NetworkState, SimSocket, SocketOwner};
use crate::faults::NetworkFault;

/// Longest payload in bytes; a longer one fails with `EMSGSIZE`.
pub(super) const PAYLOAD_MAX: usize = 65_507;

/// Datagrams queued per socket; further ones are lost, as with a full socket buffer.
pub(super) const WAITING_MAX: usize = 1024;

pub(super) struct SimDatagramSocket {
    address: SocketAddr,
    owner: SocketOwner,
    waiting: VecDeque<ArrivedDatagram>,
    closed: bool,
}

pub(crate) struct ArrivedDatagram {
    pub(crate) from: SocketAddr,
    /// Destination address, if the socket is bound to all addresses.
    pub(crate) local: Option<IpAddr>,
    pub(crate) payload: Vec<u8>,
}

pub(super) struct DatagramInFlight {
    from: SocketAddr,
    to: SocketAddr,
    payload: Vec<u8>,
}

impl Network {
    /// A datagram socket bound to `address`; port 0 is replaced by a free port.
    #[must_use]
    pub fn bind(&self, mut address: SocketAddr) -> SimSocket {
        let mut state = self.state();
        if address.port() == 0 {
            address.set_port(state.free_port());
        }
        let (waiting, owner) = (VecDeque::new(), SocketOwner::Unowned);
        state.datagrams.push(SimDatagramSocket { address, owner, waiting, closed: false });
        SimSocket::new(self, SocketKind::Datagram(state.datagrams.len() as u32 - 1))
    }
}

impl SimDatagramSocket {
    fn is_at(&self, address: SocketAddr) -> bool {
        !self.closed && self.address == address
    }

    fn is_bound_to_any_at(&self, port: u16) -> bool {
        !self.closed && self.address.port() == port && self.address.ip().is_unspecified()
    }
}

impl NetworkState {
    /// Sends one datagram from the given local address or the socket's own. Delivery is not guaranteed.
    pub(crate) fn send_datagram(
        &mut self,
        socket: u32,
        local: Option<IpAddr>,
        to: SocketAddr,
        payload: &[u8],
    ) -> Result<(), i32> {
        if payload.len() > PAYLOAD_MAX {
            return Err(libc::EMSGSIZE);
        }
        let mut from = self.datagrams[socket as usize].address;
        if let Some(local) = local.filter(|local| local.is_ipv4() == to.is_ipv4()) {
            from.set_ip(local);
        }
        if self.injects(NetworkFault::DatagramLost) {
            return Ok(());
        }
        let copies = if self.injects(NetworkFault::DatagramTwice) { 2 } else { 1 };
        for _ in 0..copies {
            let number = self.scheduled;
            let span = self.latency();
            self.in_flight.insert(number, DatagramInFlight { from, to, payload: payload.to_vec() });
            self.schedule(self.now().after(span), NetworkEvent::Datagram { number });
        }
        let now = self.now();
        self.advance_to(now);
        Ok(())
    }

    pub(super) fn deliver_datagram(&mut self, number: u64) {
        let Some(DatagramInFlight { from, to, payload }) = self.in_flight.remove(&number) else { return };
        // A socket bound to the address itself takes precedence over one bound to all addresses.
        let exact = self.datagrams.iter().position(|socket| socket.is_at(to));
        let receiver =
            exact.or_else(|| self.datagrams.iter().position(|socket| socket.is_bound_to_any_at(to.port())));
        if let Some(receiver) = receiver
            && let socket = &mut self.datagrams[receiver]
            && socket.waiting.len() < WAITING_MAX
        {
            let local = socket.address.ip().is_unspecified().then_some(to.ip());
            socket.waiting.push_back(ArrivedDatagram { from, local, payload });
            let owner = socket.owner;
            self.mark(owner);
        }
    }

    pub(crate) fn take_datagram(&mut self, socket: u32) -> Option<ArrivedDatagram> {
        self.datagrams[socket as usize].waiting.pop_front()
    }

    pub(crate) fn has_datagram(&self, socket: u32) -> bool {
        !self.datagrams[socket as usize].waiting.is_empty()
    }

    pub(crate) fn set_datagram_owner(&mut self, socket: u32, owner: SocketOwner) {
        self.datagrams[socket as usize].owner = owner;
    }

    pub(super) fn close_datagram(&mut self, socket: u32) {
        let closed = &mut self.datagrams[socket as usize];
        (closed.closed, closed.owner) = (true, SocketOwner::Unowned);
        closed.waiting.clear();
    }

    pub(super) fn datagram_address(&self, socket: u32) -> SocketAddr {
        self.datagrams[socket as usize].address
    }
}
