//! Promises about outgoing connections and ready-made pairs.

use std::io;
use std::net::SocketAddr;

use stilling_engine::driver::{Destination, Driver, Kind};

use super::{News, Peer, Place, Rig, Stage};

fn connected<R: Rig>(place: Place) {
    let mut stage = Stage::<R>::new();
    let (mut listener, destination) = stage.rig.peer_listener(place);
    let token = stage.token();
    stage.driver.connect(token, &destination).expect("a socket");
    stage.expect(News::Connected(token));
    let mut peer = accepted(&mut stage, &mut listener);
    stage.send_whole(token, b"ping");
    stage.expect_at_peer(&mut peer, b"ping");
    stage.peer_writes(&mut peer, b"pong");
    assert_eq!(stage.receive(token), News::Received(token, b"pong".to_vec()));
    stage.driver.writable(token);
    stage.expect(News::Writable(token));
    stage.driver.close(token);
    stage.expect(News::Closed(token));
}

fn accepted<R: Rig>(stage: &mut Stage<R>, listener: &mut R::PeerListener) -> R::Peer {
    loop {
        if let Some(peer) = stage.rig.peer_accept(listener) {
            return peer;
        }
        stage.pass();
    }
}

/// Row 5.1: connect, over both families.
pub fn a_connect_succeeds_and_carries_bytes<R: Rig>() {
    connected::<R>(Place::V4);
    connected::<R>(Place::V6);
}

/// Row 5.1: connect to a Unix socket.
pub fn a_connect_to_a_unix_socket_succeeds<R: Rig>() {
    connected::<R>(Place::Unix);
}

/// Row 4.34: nobody listens there.
pub fn a_connect_to_nobody_fails<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let check = |stage: &mut Stage<R>, place, kind| {
        let (token, vacant) = (stage.token(), stage.rig.vacant(place));
        stage.driver.connect(token, &vacant).expect("a socket");
        stage.expect(News::Failed(token, kind));
        stage.expect_silence();
        stage.driver.close(token);
        stage.expect(News::Closed(token));
    };
    check(&mut stage, Place::V4, io::ErrorKind::ConnectionRefused);
    check(&mut stage, Place::V6, io::ErrorKind::ConnectionRefused);
    check(&mut stage, Place::Unix, io::ErrorKind::NotFound);
}

/// Row 5.1: a connect from a named source address.
pub fn a_connect_comes_from_the_address_it_was_given<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (mut listener, destination) = stage.rig.peer_listener(Place::V4);
    let Destination::Tcp { to, .. } = destination else { panic!("{destination:?} is no TCP address") };
    let (token, from) = (stage.token(), SocketAddr::from(([127, 0, 0, 77], 0)));
    stage.driver.connect(token, &Destination::Tcp { to, from: Some(from) }).expect("a socket");
    stage.expect(News::Connected(token));
    let peer = accepted(&mut stage, &mut listener);
    assert_eq!(peer.remote_addr().expect("it has an address").ip(), from.ip());
}

/// Row 5.1: a Unix stream that somebody else connected.
pub fn a_unix_pair_carries_bytes_both_ways<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (socket, mut peer) = stage.rig.pair();
    let token = stage.attach(socket, Kind::Stream);
    stage.peer_writes(&mut peer, b"over");
    assert_eq!(stage.receive(token), News::Received(token, b"over".to_vec()));
    stage.send_whole(token, b"and out");
    stage.expect_at_peer(&mut peer, b"and out");
    let sent = stage.fill(token, 0);
    stage.driver.writable(token);
    stage.expect_silence();
    let bytes: Vec<u8> = (0..sent).map(super::pattern).collect();
    stage.expect_at_peer(&mut peer, &bytes);
    stage.expect(News::Writable(token));
    drop(peer);
    assert_eq!(stage.receive(token), News::Ended(token));
}
