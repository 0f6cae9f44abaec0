//! Owned descriptors of the simulated network.

use std::net::SocketAddr;

use super::stream::EndId;
use super::{Address, Network, SocketOwner};

/// An owned socket or pipe end; dropping it closes it.
pub struct SimSocket {
    network: Network,
    kind: SocketKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketKind {
    End(EndId),
    Listener(u32),
    Datagram(u32),
}

impl SimSocket {
    pub(super) fn new(network: &Network, kind: SocketKind) -> Self {
        SimSocket { network: network.clone(), kind }
    }

    /// Address of a listener; `None` for other sockets.
    #[must_use]
    pub fn listening_at(&self) -> Option<Address> {
        match self.kind {
            SocketKind::Listener(listener) => Some(self.network.state().listener_address(listener)),
            SocketKind::End(_) | SocketKind::Datagram(_) => None,
        }
    }

    /// IP address and port of this end, if it has one.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self.kind {
            SocketKind::End(end) => self.address(end),
            SocketKind::Datagram(socket) => Some(self.network.state().datagram_address(socket)),
            SocketKind::Listener(_) => match self.listening_at() {
                Some(Address::Tcp(address)) => Some(address),
                _ => None,
            },
        }
    }

    /// IP address and port of the other end of a TCP connection.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        match self.kind {
            SocketKind::End(EndId { connection, side }) => self.address(EndId { connection, side: 1 - side }),
            SocketKind::Listener(_) | SocketKind::Datagram(_) => None,
        }
    }

    pub(crate) fn kind(&self) -> SocketKind {
        self.kind
    }

    pub(crate) fn set_owner(&self, owner: SocketOwner) {
        let mut state = self.network.state();
        match self.kind {
            SocketKind::End(end) => state.set_owner(end, owner),
            SocketKind::Listener(listener) => state.set_listener_owner(listener, owner),
            SocketKind::Datagram(socket) => state.set_datagram_owner(socket, owner),
        }
    }

    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    fn address(&self, end: EndId) -> Option<SocketAddr> {
        self.network.state().connections[end.connection as usize].ends[usize::from(end.side)].address
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        let Some(mut state) = self.network.try_state() else { return };
        match self.kind {
            SocketKind::End(end) => state.close(end),
            SocketKind::Listener(listener) => state.close_listener(listener),
            SocketKind::Datagram(socket) => state.close_datagram(socket),
        }
    }
}

impl std::fmt::Debug for SimSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimSocket({:?})", self.kind)
    }
}
