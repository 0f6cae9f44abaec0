//! Contract tests for outgoing connections and ready-made pairs.

use std::io;
use std::net::SocketAddr;

use stilling_engine::driver::{Destination, Driver, SourceKind};

use super::{AddressKind, DriverFixture, DriverRig, ObservedEvent, Peer};

fn connected<R: DriverRig>(address_kind: AddressKind) {
    let mut fixture = DriverFixture::<R>::new();
    let (mut listener, destination) = fixture.rig.peer_listener(address_kind);
    let token = fixture.token();
    fixture.driver.connect(token, &destination).expect("a socket");
    fixture.expect(ObservedEvent::Connected(token));
    let mut peer = accepted(&mut fixture, &mut listener);
    fixture.send_whole(token, b"ping");
    fixture.expect_at_peer(&mut peer, b"ping");
    fixture.peer_writes(&mut peer, b"pong");
    assert_eq!(fixture.receive(token), ObservedEvent::Received(token, b"pong".to_vec()));
    fixture.driver.await_writable(token);
    fixture.expect(ObservedEvent::Writable(token));
    fixture.driver.close(token);
    fixture.expect(ObservedEvent::Closed(token));
}

fn accepted<R: DriverRig>(fixture: &mut DriverFixture<R>, listener: &mut R::PeerListener) -> R::Peer {
    loop {
        if let Some(peer) = fixture.rig.peer_accept(listener) {
            return peer;
        }
        fixture.idle_turn();
    }
}

/// Row 5.1: connect, over both families.
pub fn a_connect_succeeds_and_carries_bytes<R: DriverRig>() {
    connected::<R>(AddressKind::V4);
    connected::<R>(AddressKind::V6);
}

/// Row 5.1: connect to a Unix socket.
pub fn a_connect_to_a_unix_socket_succeeds<R: DriverRig>() {
    connected::<R>(AddressKind::Unix);
}

/// Row 4.34: connect without a listener.
pub fn a_connect_without_a_listener_fails<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let check = |fixture: &mut DriverFixture<R>, address_kind, kind| {
        let (token, unused_destination) = (fixture.token(), fixture.rig.unused_destination(address_kind));
        fixture.driver.connect(token, &unused_destination).expect("a socket");
        fixture.expect(ObservedEvent::Failed(token, kind));
        fixture.expect_silence();
        fixture.driver.close(token);
        fixture.expect(ObservedEvent::Closed(token));
    };
    check(&mut fixture, AddressKind::V4, io::ErrorKind::ConnectionRefused);
    check(&mut fixture, AddressKind::V6, io::ErrorKind::ConnectionRefused);
    check(&mut fixture, AddressKind::Unix, io::ErrorKind::NotFound);
}

/// Row 5.1: connect from a given source address.
pub fn a_connect_comes_from_the_address_it_was_given<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (mut listener, destination) = fixture.rig.peer_listener(AddressKind::V4);
    let Destination::Tcp { to, .. } = destination else { panic!("{destination:?} is no TCP address") };
    let (token, from) = (fixture.token(), SocketAddr::from(([127, 0, 0, 77], 0)));
    fixture.driver.connect(token, &Destination::Tcp { to, from: Some(from) }).expect("a socket");
    fixture.expect(ObservedEvent::Connected(token));
    let peer = accepted(&mut fixture, &mut listener);
    assert_eq!(peer.remote_addr().expect("it has an address").ip(), from.ip());
}

/// Row 5.1: a Unix stream that was connected elsewhere.
pub fn a_unix_pair_carries_bytes_both_ways<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (socket, mut peer) = fixture.rig.pair();
    let token = fixture.attach(socket, SourceKind::Stream);
    fixture.peer_writes(&mut peer, b"over");
    assert_eq!(fixture.receive(token), ObservedEvent::Received(token, b"over".to_vec()));
    fixture.send_whole(token, b"and out");
    fixture.expect_at_peer(&mut peer, b"and out");
    let sent = fixture.fill(token, 0);
    fixture.driver.await_writable(token);
    fixture.expect_silence();
    let bytes: Vec<u8> = (0..sent).map(super::pattern).collect();
    fixture.expect_at_peer(&mut peer, &bytes);
    fixture.expect(ObservedEvent::Writable(token));
    drop(peer);
    assert_eq!(fixture.receive(token), ObservedEvent::Ended(token));
}
