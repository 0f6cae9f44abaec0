//! Rig of the driver suite over the simulated network: checks the `sim` driver against the common driver contract.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use stilling_engine::driver::Destination;
use stilling_ring::Time;

use crate::driver::SimDriver;
use crate::network::{self, Address, Network, NetworkOptions, SimSocket};
use crate::suite::{self, AddressKind, DriverRig};

/// Timeout checks in one test before it counts as hanging.
const LIMIT_CHECKS_MAX: u32 = 100_000;

/// A network without faults or delay, and one driver. Time advances only while the driver waits.
#[derive(Debug)]
pub struct SimRig {
    network: Network,
    limit_checks: std::cell::Cell<u32>,
    paths: u32,
}

impl SimRig {
    fn address(&mut self, address_kind: AddressKind) -> Address {
        match address_kind {
            AddressKind::V4 => Address::Tcp("127.0.0.1:0".parse().expect("an address")),
            AddressKind::V6 => Address::Tcp("[::1]:0".parse().expect("an address")),
            AddressKind::Unix => {
                self.paths += 1;
                Address::Unix(PathBuf::from(format!("/sim/{}", self.paths)))
            }
        }
    }

    fn ip_address(&mut self, address_kind: AddressKind) -> SocketAddr {
        match self.address(address_kind) {
            Address::Tcp(address) => address,
            Address::Unix(path) => panic!("no datagram sockets at {}", path.display()),
        }
    }
}

fn destination(address: Address) -> Destination {
    match address {
        Address::Tcp(to) => Destination::Tcp { to, from: None },
        Address::Unix(path) => Destination::Unix(path),
    }
}

impl DriverRig for SimRig {
    type Driver = SimDriver;
    type Peer = network::SimPeer;
    type PeerListener = network::SimPeerListener;
    type DatagramPeer = network::SimDatagramPeer;

    fn new() -> Self {
        SimRig { network: Network::new(1, NetworkOptions::default()), limit_checks: 0.into(), paths: 0 }
    }

    fn driver(&mut self) -> SimDriver {
        SimDriver::new(&self.network)
    }

    fn now(&self) -> Time {
        self.network.now()
    }

    fn is_within_limit(&self) -> bool {
        self.limit_checks.set(self.limit_checks.get() + 1);
        self.limit_checks.get() < LIMIT_CHECKS_MAX
    }

    fn listener(&mut self, address_kind: AddressKind) -> (SimSocket, Destination) {
        let address = self.address(address_kind);
        let socket = self.network.listen(address, 4096, None);
        let at = socket.listening_at().expect("it is a listener");
        (socket, destination(at))
    }

    fn dial(&mut self, to: &Destination) -> network::SimPeer {
        match to {
            Destination::Tcp { to, from } => self.network.connect(Address::Tcp(*to), *from),
            Destination::Unix(path) => self.network.connect(Address::Unix(path.clone()), None),
        }
    }

    fn peer_listener(&mut self, address_kind: AddressKind) -> (network::SimPeerListener, Destination) {
        let address = self.address(address_kind);
        let listener = self.network.listen_as_peer(address);
        let at = listener.address();
        (listener, destination(at))
    }

    fn peer_accept(&mut self, listener: &mut network::SimPeerListener) -> Option<network::SimPeer> {
        listener.accept()
    }

    fn unused_destination(&mut self, address_kind: AddressKind) -> Destination {
        match address_kind {
            // A port that was free a moment ago.
            AddressKind::V4 | AddressKind::V6 => self.peer_listener(address_kind).1,
            AddressKind::Unix => destination(self.address(address_kind)),
        }
    }

    fn pair(&mut self) -> (SimSocket, network::SimPeer) {
        let (here, there) = self.network.pair();
        (here, network::SimPeer::new(there))
    }

    fn pipe_to_driver(&mut self) -> (SimSocket, network::SimPeer) {
        let (reader, writer) = self.network.pipe();
        (reader, network::SimPeer::new(writer))
    }

    fn pipe_from_driver(&mut self) -> (SimSocket, network::SimPeer) {
        let (reader, writer) = self.network.pipe();
        (writer, network::SimPeer::new(reader))
    }

    fn datagram_socket(&mut self, address_kind: AddressKind) -> (SimSocket, SocketAddr) {
        let address = self.ip_address(address_kind);
        let socket = self.network.bind(address);
        let at = socket.local_addr().expect("it is bound");
        (socket, at)
    }

    fn datagram_socket_on_all(&mut self) -> (SimSocket, u16) {
        let socket = self.network.bind("0.0.0.0:0".parse().expect("an address"));
        let at = socket.local_addr().expect("it is bound");
        (socket, at.port())
    }

    fn datagram_peer(&mut self, address_kind: AddressKind) -> network::SimDatagramPeer {
        let address = self.ip_address(address_kind);
        self.network.bind_as_peer(address)
    }
}

impl suite::Peer for network::SimPeer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        network::SimPeer::write(self, bytes)
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        network::SimPeer::read(self, into)
    }

    fn shutdown(&mut self) {
        network::SimPeer::shutdown(self);
    }

    fn reset(self) {
        network::SimPeer::reset(self);
    }

    fn remote_addr(&self) -> Option<SocketAddr> {
        network::SimPeer::remote_addr(self)
    }
}

impl suite::DatagramPeer for network::SimDatagramPeer {
    fn local_addr(&self) -> SocketAddr {
        network::SimDatagramPeer::local_addr(self)
    }

    fn send(&mut self, to: SocketAddr, payload: &[u8]) {
        network::SimDatagramPeer::send(self, to, payload).expect("it fits into a datagram");
    }

    fn receive(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        network::SimDatagramPeer::receive(self)
    }
}
