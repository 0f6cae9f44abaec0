//! The driver suite's rig over the simulated network: the `sim` driver keeps the promises that the real ones keep.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use stilling_engine::driver::Destination;
use stilling_ring::Time;

use crate::driver::SimDriver;
use crate::network::{self, Address, Network, Options, SimSocket};
use crate::suite::{self, Place, Rig};

/// Questions about patience in one test before it counts as hanging.
const PATIENCE: u32 = 100_000;

/// A kind, immediate network and one driver. In the suite time stands still unless the driver waits.
#[derive(Debug)]
pub struct SimRig {
    network: Network,
    asked: std::cell::Cell<u32>,
    paths: u32,
}

impl SimRig {
    fn address(&mut self, place: Place) -> Address {
        match place {
            Place::V4 => Address::Tcp("127.0.0.1:0".parse().expect("an address")),
            Place::V6 => Address::Tcp("[::1]:0".parse().expect("an address")),
            Place::Unix => {
                self.paths += 1;
                Address::Unix(PathBuf::from(format!("/sim/{}", self.paths)))
            }
        }
    }

    fn ip_address(&mut self, place: Place) -> SocketAddr {
        match self.address(place) {
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

impl Rig for SimRig {
    type Driver = SimDriver;
    type Peer = network::Peer;
    type PeerListener = network::PeerListener;
    type DatagramPeer = network::DatagramPeer;

    fn new() -> Self {
        SimRig { network: Network::new(1, Options::default()), asked: 0.into(), paths: 0 }
    }

    fn driver(&mut self) -> SimDriver {
        SimDriver::new(&self.network)
    }

    fn now(&self) -> Time {
        self.network.now()
    }

    fn is_patient(&self) -> bool {
        self.asked.set(self.asked.get() + 1);
        self.asked.get() < PATIENCE
    }

    fn listener(&mut self, place: Place) -> (SimSocket, Destination) {
        let address = self.address(place);
        let socket = self.network.listen(address, 4096, None);
        let at = socket.listening_at().expect("it is a listener");
        (socket, destination(at))
    }

    fn dial(&mut self, to: &Destination) -> network::Peer {
        match to {
            Destination::Tcp { to, from } => self.network.connect(Address::Tcp(*to), *from),
            Destination::Unix(path) => self.network.connect(Address::Unix(path.clone()), None),
        }
    }

    fn peer_listener(&mut self, place: Place) -> (network::PeerListener, Destination) {
        let address = self.address(place);
        let listener = self.network.listen_as_peer(address);
        let at = listener.address();
        (listener, destination(at))
    }

    fn peer_accept(&mut self, listener: &mut network::PeerListener) -> Option<network::Peer> {
        listener.accept()
    }

    fn vacant(&mut self, place: Place) -> Destination {
        match place {
            // A port that was free a moment ago.
            Place::V4 | Place::V6 => self.peer_listener(place).1,
            Place::Unix => destination(self.address(place)),
        }
    }

    fn pair(&mut self) -> (SimSocket, network::Peer) {
        let (here, there) = self.network.pair();
        (here, network::Peer::new(there))
    }

    fn pipe_to_driver(&mut self) -> (SimSocket, network::Peer) {
        let (reader, writer) = self.network.pipe();
        (reader, network::Peer::new(writer))
    }

    fn pipe_from_driver(&mut self) -> (SimSocket, network::Peer) {
        let (reader, writer) = self.network.pipe();
        (writer, network::Peer::new(reader))
    }

    fn datagram_socket(&mut self, place: Place) -> (SimSocket, SocketAddr) {
        let address = self.ip_address(place);
        let socket = self.network.bind(address);
        let at = socket.local_addr().expect("it is bound");
        (socket, at)
    }

    fn datagram_socket_on_all(&mut self) -> (SimSocket, u16) {
        let socket = self.network.bind("0.0.0.0:0".parse().expect("an address"));
        let at = socket.local_addr().expect("it is bound");
        (socket, at.port())
    }

    fn datagram_peer(&mut self, place: Place) -> network::DatagramPeer {
        let address = self.ip_address(place);
        self.network.bind_as_peer(address)
    }
}

impl suite::Peer for network::Peer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        network::Peer::write(self, bytes)
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        network::Peer::read(self, into)
    }

    fn shutdown(&mut self) {
        network::Peer::shutdown(self);
    }

    fn reset(self) {
        network::Peer::reset(self);
    }

    fn remote_addr(&self) -> Option<SocketAddr> {
        network::Peer::remote_addr(self)
    }
}

impl suite::DatagramPeer for network::DatagramPeer {
    fn local_addr(&self) -> SocketAddr {
        network::DatagramPeer::local_addr(self)
    }

    fn send(&mut self, to: SocketAddr, payload: &[u8]) {
        network::DatagramPeer::send(self, to, payload).expect("it fits into a datagram");
    }

    fn receive(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        network::DatagramPeer::receive(self)
    }
}
