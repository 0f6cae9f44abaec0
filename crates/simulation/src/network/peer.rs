//! The far side: simulated clients and the servers that a shard dials.
//!
//! A non-blocking socket with nothing else around it. A world asks [`Network::take_changed`] which peers have
//! something to look at, so that it does not have to ask them all.

use std::io;
use std::net::SocketAddr;

use super::socket::SocketKind;
use super::stream::EndId;
use crate::trace::hash_bytes;

use super::{Address, Network, SimSocket, SocketOwner};

/// Names a peer in [`Network::take_changed`]; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerKey(pub(super) u32);

/// One end of a stream connection, used by the world. Dropping it closes it.
#[derive(Debug)]
pub struct SimPeer {
    socket: SimSocket,
    end: EndId,
    key: PeerKey,
}

/// A listener of the world's, for what a shard dials.
#[derive(Debug)]
pub struct SimPeerListener {
    socket: SimSocket,
    number: u32,
}

/// A datagram socket of the world's.
#[derive(Debug)]
pub struct SimDatagramPeer {
    socket: SimSocket,
    number: u32,
    key: PeerKey,
}

impl Drop for SimPeer {
    fn drop(&mut self) {
        if let Some(mut state) = self.socket.network().try_state() {
            state.note("peer", self.key.0, "goes", 0, 0);
        }
    }
}

impl Network {
    /// Starts to connect to a listener, from the given address or any. The result shows in [`SimPeer::connected`].
    #[must_use]
    pub fn connect(&self, to: Address, from: Option<SocketAddr>) -> SimPeer {
        SimPeer::new(self.dial(to, from))
    }

    /// A listener for what a shard dials.
    #[must_use]
    pub fn listen_as_peer(&self, address: Address) -> SimPeerListener {
        let socket = self.listen(address, 4096, None);
        let SocketKind::Listener(number) = socket.kind() else { unreachable!("just made as a listener") };
        SimPeerListener { socket, number }
    }

    /// A bound datagram socket of the world's.
    #[must_use]
    pub fn bind_as_peer(&self, address: SocketAddr) -> SimDatagramPeer {
        let socket = self.bind(address);
        let SocketKind::Datagram(number) = socket.kind() else {
            unreachable!("just made as a datagram socket")
        };
        let key = self.state().new_peer();
        self.state().set_datagram_owner(number, SocketOwner::SimPeer(key));
        SimDatagramPeer { socket, number, key }
    }
}

impl SimPeer {
    /// Takes over an end of a connection, such as one of [`Network::pair`].
    ///
    /// # Panics
    /// If it is not an end of a connection.
    #[must_use]
    pub fn new(socket: SimSocket) -> Self {
        let SocketKind::End(end) = socket.kind() else { panic!("{socket:?} is not an end of a connection") };
        let mut state = socket.network().state();
        let key = state.new_peer();
        state.set_owner(end, SocketOwner::SimPeer(key));
        state.note("peer", key.0, "comes", u64::from(end.connection), u64::from(end.side));
        drop(state);
        SimPeer { socket, end, key }
    }

    /// Its name in [`Network::take_changed`].
    #[must_use]
    pub fn key(&self) -> PeerKey {
        self.key
    }

    /// Its own address.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.socket.local_addr()
    }

    /// The address of the other end; TCP only.
    #[must_use]
    pub fn remote_addr(&self) -> Option<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Whether it is connected: `Ok(false)` while it knocks, an error if it was refused.
    pub fn connected(&self) -> io::Result<bool> {
        match self.socket.network().state().connected(self.end) {
            None => Ok(false),
            Some(Ok(())) => Ok(true),
            Some(Err(errno)) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Writes some of `bytes`; `WouldBlock` while it knocks or the connection is full.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.socket.network().state();
        let result = state.write(self.end, bytes, bytes.len());
        if let Ok(taken) = result {
            let hash = hash_bytes(&bytes[..taken]);
            state.note("peer", self.key.0, "write", taken as u64, hash);
        }
        result.map_err(io::Error::from_raw_os_error)
    }

    /// Reads some bytes; `Ok(0)` is the end of the stream, `WouldBlock` means that nothing is there.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut state = self.socket.network().state();
        let result = state.read(self.end, into);
        if let Ok(taken) = result {
            let hash = hash_bytes(&into[..taken]);
            state.note("peer", self.key.0, "read", taken as u64, hash);
        }
        result.map_err(io::Error::from_raw_os_error)
    }

    /// Ends its sending direction.
    pub fn shutdown(&mut self) {
        let mut state = self.socket.network().state();
        state.shutdown(self.end);
        state.note("peer", self.key.0, "shutdown", 0, 0);
    }

    /// Closes with a reset: what it wrote last may never arrive.
    pub fn reset(self) {
        let mut state = self.socket.network().state();
        state.reset(self.end);
        state.note("peer", self.key.0, "reset", 0, 0);
    }

    /// Closes. Unread bytes make it a reset, as in Linux.
    pub fn close(self) {}

    /// Whether the network harmed the connection, so that nobody may blame the other end for how it went.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.socket.network().state().is_damaged(self.end)
    }
}

impl SimPeerListener {
    /// Where it is.
    #[must_use]
    pub fn address(&self) -> Address {
        self.socket.network().state().listener_address(self.number)
    }

    /// The next connection, if one waits.
    #[must_use]
    pub fn accept(&self) -> Option<SimPeer> {
        let network = self.socket.network();
        let end = network.state().take_connection(self.number)?;
        Some(SimPeer::new(network.socket_of(end)))
    }
}

impl SimDatagramPeer {
    /// Its name in [`Network::take_changed`].
    #[must_use]
    pub fn key(&self) -> PeerKey {
        self.key
    }

    /// Its own address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.network().state().datagram_address(self.number)
    }

    /// Sends one datagram.
    pub fn send(&self, to: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let result = self.socket.network().state().send_datagram(self.number, None, to, payload);
        result.map_err(io::Error::from_raw_os_error)
    }

    /// The next datagram and its sender, if one waits.
    #[must_use]
    pub fn receive(&self) -> Option<(SocketAddr, Vec<u8>)> {
        let datagram = self.socket.network().state().take_datagram(self.number)?;
        Some((datagram.from, datagram.payload))
    }
}
