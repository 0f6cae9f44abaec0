//! Outgoing connections.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener};

use stilling_engine::driver::{Destination, Wait};
use stilling_engine::{CloseReason, NO_FREE_SLOT, ShardConfig};
use stilling_simulation::suite::system::SystemDriver;

use crate::harness::{Call, OwnerLoop, OwnerSession, bounded, expect_read, reset, write};

fn to(address: SocketAddr) -> Destination {
    Destination::Tcp { to: address, from: None }
}

/// An address without a listener.
fn unused_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port")
}

/// A listener that accepts no more: connects to it stay pending.
fn full_listener() -> (socket2::Socket, SocketAddr, Vec<socket2::Socket>) {
    use socket2::{Domain, Socket, Type};
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a free port");
    listener.listen(0).expect("it listens");
    let address = listener.local_addr().expect("it is bound").as_socket().expect("an internet address");
    // The kernel queues one connection more than the backlog.
    let fillers = (0..2).map(|_| {
        let filler = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        filler.set_nonblocking(true).expect("a socket takes options");
        let _ = filler.connect(&address.into());
        filler
    });
    let fillers = fillers.collect();
    (listener, address, fillers)
}

/// Row 3.3.
pub(crate) fn a_connect_opens_an_on_demand_connection<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    owner.shard.service().reaction.awaits = true;
    for _ in 0..3 {
        let (token, mut peer) = owner.connected();
        owner.expect_silence();
        write(&mut peer, b"hello");
        owner.expect(Call::Readable(token));
        assert_eq!(owner.receive_all(token), b"hello");
        assert_eq!(owner.shard.send_now(token, b"hi").expect("there is room"), 2);
        expect_read(&mut peer, b"hi");
        assert_eq!(
            owner.shard.peer_address(token).expect("it has one"),
            peer.local_addr().expect("it has one")
        );
        assert_eq!(
            owner.shard.local_address(token).expect("it has one"),
            peer.peer_addr().expect("it has one")
        );
        owner.abort(token);
    }
    assert_eq!(owner.shard.counters().connected.get(), 3);
}

/// Row 3.30.
pub(crate) fn a_refused_connect_is_reported<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    for label in 0..3 {
        let token =
            owner.shard.connect(&to(unused_address()), OwnerSession { label }).expect("a slot is free");
        assert_eq!(owner.shard.prepare_to_wait(), Wait::No);
        assert_eq!(
            owner.shard.receive_now(token, &mut [0]).expect_err("not connected").kind(),
            io::ErrorKind::NotConnected
        );
        owner.expect(Call::ConnectFailed(label, io::ErrorKind::ConnectionRefused));
        owner.expect(Call::Closed(label, CloseReason::ConnectFailed));
        owner.expect_silence();
    }
    assert_eq!(owner.shard.open_connections(), 0);
}

pub(crate) fn a_connect_without_a_slot_returns_the_session<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::with_config(ShardConfig { capacity: 1, ..ShardConfig::default() });
    let (token, _peer) = owner.connected();
    for label in 1..4 {
        let error = owner.shard.connect(&to(unused_address()), OwnerSession { label });
        let error = error.expect_err("the only slot is in use");
        assert_eq!((error.error.kind(), error.session.label), (NO_FREE_SLOT, label));
    }
    owner.expect_silence();
    owner.abort(token);
    owner.connected();
}

/// A source address of another host: at once, or from the driver's next turn with direct descriptors.
pub(crate) fn a_foreign_source_address_is_an_error<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let from = Some("192.0.2.1:0".parse().expect("an address"));
    let foreign = Destination::Tcp { to: listener.local_addr().expect("it is bound"), from };
    for label in 0..3 {
        match owner.shard.connect(&foreign, OwnerSession { label }) {
            Err(error) => {
                assert_eq!(error.error.kind(), io::ErrorKind::AddrNotAvailable);
                assert_eq!(error.session.label, label);
            }
            Ok(_) => {
                owner.expect(Call::ConnectFailed(label, io::ErrorKind::AddrNotAvailable));
                owner.expect(Call::Closed(label, CloseReason::ConnectFailed));
            }
        }
        owner.expect_silence();
        assert_eq!(owner.shard.open_connections(), 0);
    }
    owner.connected();
}

/// A fixed source port serves one connection after another, though the system keeps the ends of earlier ones.
pub(crate) fn a_source_port_is_reused<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let from = Some(unused_address());
    for _ in 0..3 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let to = Destination::Tcp { to: listener.local_addr().expect("it is bound"), from };
        let token = owner.shard.connect(&to, OwnerSession::default()).expect("the address is local");
        owner.expect(Call::Opened(token));
        let mut peer = bounded(listener.accept().expect("a connection waits").0);
        assert_eq!(Some(peer.peer_addr().expect("it is connected")), from);
        // The side that ends first is the one that waits.
        owner.abort(token);
        assert_eq!(peer.read(&mut [0]).expect("the shard ended it"), 0);
    }
}

/// connect(2) rejects the address without sending anything.
pub(crate) fn an_unreachable_destination_is_an_error<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    // A broadcast address: EACCES without an option of the socket, or ENETUNREACH without a network.
    let unreachable = to("255.255.255.255:9".parse().expect("an address"));
    owner.shard.connect(&unreachable, OwnerSession { label: 7 }).expect("the socket is created");
    match owner.next_call() {
        Call::ConnectFailed(7, kind) => assert_ne!(kind, NO_FREE_SLOT),
        call => panic!("unexpected: {call:?}"),
    }
    owner.expect(Call::Closed(7, CloseReason::ConnectFailed));
    owner.expect_silence();
}

/// Connects that get no answer delay no other connection, and can be aborted.
pub(crate) fn pending_connects_disturb_nothing<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (_listener, address, _fillers) = full_listener();
    let connects: Vec<_> = (0..10)
        .map(|label| owner.shard.connect(&to(address), OwnerSession { label }).expect("a slot is free"))
        .collect();
    owner.expect_silence();
    let (token, mut peer) = owner.connected();
    for _ in 0..10 {
        write(&mut peer, b"ping");
        owner.with(token, |_, io| io.await_readable());
        owner.expect(Call::Readable(token));
        assert_eq!(owner.receive_all(token), b"ping");
    }
    for (label, token) in (0..).zip(connects) {
        owner.shard.abort(token, CloseReason::WorkTimeout);
        assert_eq!(owner.shard.prepare_to_wait(), Wait::No);
        owner.expect(Call::Closed(label, CloseReason::WorkTimeout));
    }
    owner.expect_silence();
    assert_eq!(owner.shard.open_connections(), 1);
    owner.shard.audit().expect("nothing waits in vain");
}

/// Row 3.30: the peer accepts and resets at once.
pub(crate) fn a_reset_while_connecting_is_reported<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    owner.shard.service().reaction.awaits = true;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let token = owner.shard.connect(&to(address), OwnerSession { label: 3 }).expect("a slot is free");
    owner.turn();
    reset(bounded(listener.accept().expect("a connection waits").0));
    match owner.next_call() {
        Call::Opened(of) => {
            assert_eq!(of, token);
            owner.expect(Call::Readable(token));
            let error = owner.shard.receive_now(token, &mut [0]).expect_err("it was reset");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            owner.shard.abort(token, CloseReason::PeerReset);
            owner.expect(Call::Closed(3, CloseReason::PeerReset));
        }
        call => {
            assert_eq!(call, Call::ConnectFailed(3, io::ErrorKind::ConnectionReset));
            owner.expect(Call::Closed(3, CloseReason::ConnectFailed));
        }
    }
    owner.expect_silence();
}
