//! Remote ends: simulated clients, and the servers that a shard dials.
//!
//! A peer is a plain non-blocking socket. [`Network::take_changed`] lists the peers with changes, so that a world need
//! not poll them all.

use std::io;
use std::net::SocketAddr;

use super::socket::SocketKind;
use super::stream::EndId;
use crate::trace::hash_bytes;

use super::{Address, Network, SimSocket, SocketOwner};

/// Key of a peer in [`Network::take_changed`]; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerKey(pub(super) u32);

/// One end of a stream connection, used by the world. Dropping it closes it.
#[derive(Debug)]
pub struct SimPeer {
    socket: SimSocket,
    end: EndId,
    key: PeerKey,
}

/// A listener of the world, for connections that a shard dials.
#[derive(Debug)]
pub struct SimPeerListener {
    socket: SimSocket,
    number: u32,
}

/// A datagram socket of the world.
#[derive(Debug)]
pub struct SimDatagramPeer {
    socket: SimSocket,
    number: u32,
    key: PeerKey,
}

impl Drop for SimPeer {
    fn drop(&mut self) {
        if let Some(mut state) = self.socket.network().try_state() {
            state.note("peer", self.key.0, "close", 0, 0);
        }
    }
}

impl Network {
    /// Starts to connect to a listener, from the given address or any. [`SimPeer::connected`] returns the result.
    #[must_use]
    pub fn connect(&self, to: Address, from: Option<SocketAddr>) -> SimPeer {
        SimPeer::new(self.dial(to, from))
    }

    /// A listener for connections that a shard dials.
    #[must_use]
    pub fn listen_as_peer(&self, address: Address) -> SimPeerListener {
        let socket = self.listen(address, 4096, None);
        let SocketKind::Listener(number) = socket.kind() else { unreachable!("just made as a listener") };
        SimPeerListener { socket, number }
    }

    /// A bound datagram socket of the world.
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
    /// Wraps an end of a connection, such as one of [`Network::pair`].
    ///
    /// # Panics
    /// If the socket is not an end of a connection.
    #[must_use]
    pub fn new(socket: SimSocket) -> Self {
        let SocketKind::End(end) = socket.kind() else { panic!("{socket:?} is not an end of a connection") };
        let mut state = socket.network().state();
        let key = state.new_peer();
        state.set_owner(end, SocketOwner::SimPeer(key));
        state.note("peer", key.0, "open", u64::from(end.connection), u64::from(end.side));
        drop(state);
        SimPeer { socket, end, key }
    }

    /// Key in [`Network::take_changed`].
    #[must_use]
    pub fn key(&self) -> PeerKey {
        self.key
    }

    /// Local address.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.socket.local_addr()
    }

    /// Remote address; TCP only.
    #[must_use]
    pub fn remote_addr(&self) -> Option<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Whether it is connected: `Ok(false)` while connecting, an error if refused.
    pub fn connected(&self) -> io::Result<bool> {
        match self.socket.network().state().connected(self.end) {
            None => Ok(false),
            Some(Ok(())) => Ok(true),
            Some(Err(errno)) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Writes some of `bytes`; `WouldBlock` while connecting or when the connection is full.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.socket.network().state();
        let result = state.write(self.end, bytes, bytes.len());
        if let Ok(taken) = result {
            let hash = hash_bytes(&bytes[..taken]);
            state.note("peer", self.key.0, "write", taken as u64, hash);
        }
        result.map_err(io::Error::from_raw_os_error)
    }

    /// Reads some bytes; `Ok(0)` is the end of the stream, `WouldBlock` means that no bytes are available.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut state = self.socket.network().state();
        let result = state.read(self.end, into);
        if let Ok(taken) = result {
            let hash = hash_bytes(&into[..taken]);
            state.note("peer", self.key.0, "read", taken as u64, hash);
        }
        result.map_err(io::Error::from_raw_os_error)
    }

    /// Ends the sending direction.
    pub fn shutdown(&mut self) {
        let mut state = self.socket.network().state();
        state.shutdown(self.end);
        state.note("peer", self.key.0, "shutdown", 0, 0);
    }

    /// Closes with a reset; bytes written last may be lost.
    pub fn reset(self) {
        let mut state = self.socket.network().state();
        state.reset(self.end);
        state.note("peer", self.key.0, "reset", 0, 0);
    }

    /// Closes. Unread bytes cause a reset, as in Linux.
    pub fn close(self) {}

    /// Whether the network damaged the connection, so that the other end is not responsible for its outcome.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.socket.network().state().is_damaged(self.end)
    }
}

impl SimPeerListener {
    /// Listening address.
    #[must_use]
    pub fn address(&self) -> Address {
        self.socket.network().state().listener_address(self.number)
    }

    /// Accepts the next waiting connection, if any.
    #[must_use]
    pub fn accept(&self) -> Option<SimPeer> {
        let network = self.socket.network();
        let end = network.state().take_connection(self.number)?;
        Some(SimPeer::new(network.socket_of(end)))
    }
}

impl SimDatagramPeer {
    /// Key in [`Network::take_changed`].
    #[must_use]
    pub fn key(&self) -> PeerKey {
        self.key
    }

    /// Local address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.network().state().datagram_address(self.number)
    }

    /// Sends one datagram.
    pub fn send(&self, to: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let result = self.socket.network().state().send_datagram(self.number, None, to, payload);
        result.map_err(io::Error::from_raw_os_error)
    }

    /// Receives the next waiting datagram and its sender, if any.
    #[must_use]
    pub fn receive(&self) -> Option<(SocketAddr, Vec<u8>)> {
        let datagram = self.socket.network().state().take_datagram(self.number)?;
        Some((datagram.from, datagram.payload))
    }
}
