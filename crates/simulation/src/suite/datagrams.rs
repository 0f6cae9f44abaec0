//! Contract tests for datagram sockets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use stilling_engine::Token;
use stilling_engine::driver::{
    BufferId, Destination, Driver, DriverEvent, Gather, Outgoing, SourceKind, Wait,
};
use stilling_engine::limits::{RECEIVE_BUFFER_SIZE, RECEIVE_BUFFERS};

use super::{AddressKind, DatagramPeer, DriverFixture, DriverRig, ObservedEvent, pattern};

/// A receiving datagram socket and its address.
fn open<R: DriverRig>(fixture: &mut DriverFixture<R>, address_kind: AddressKind) -> (Token, SocketAddr) {
    let (socket, address) = fixture.rig.datagram_socket(address_kind);
    let token = fixture.attach(socket, SourceKind::Datagram);
    fixture.driver.receive(token);
    (token, address)
}

/// The buffer of the next event, which must be a datagram.
#[track_caller]
fn lent<R: DriverRig>(fixture: &mut DriverFixture<R>, token: Token) -> BufferId {
    match fixture.next_event() {
        DriverEvent::Datagram { token: of, buffer } if of == token => buffer,
        event => panic!("expected a datagram, got {event:?}"),
    }
}

/// The next datagram: its sender, its payload, and whether it was truncated.
#[track_caller]
fn received_datagram<R: DriverRig>(
    fixture: &mut DriverFixture<R>,
    token: Token,
) -> (SocketAddr, Vec<u8>, bool) {
    let buffer = lent(fixture, token);
    let datagram = fixture.driver.datagram(buffer);
    let copy = (datagram.from, datagram.payload.to_vec(), datagram.truncated);
    fixture.driver.release(buffer);
    copy
}

fn received_datagram_at<R: DriverRig>(
    fixture: &mut DriverFixture<R>,
    peer: &mut R::DatagramPeer,
) -> (SocketAddr, Vec<u8>) {
    loop {
        if let Some(datagram) = peer.receive() {
            return datagram;
        }
        fixture.idle_turn();
    }
}

fn echo_datagrams<R: DriverRig>(address_kind: AddressKind) {
    const DATAGRAMS: usize = 100;
    let mut fixture = DriverFixture::<R>::new();
    let (token, address) = open(&mut fixture, address_kind);
    let mut peers = [fixture.rig.datagram_peer(address_kind), fixture.rig.datagram_peer(address_kind)];
    let payload = |at: usize| -> Vec<u8> { (at..at + 1 + 7 * at).map(pattern).collect() };
    for at in 0..DATAGRAMS {
        peers[at % 2].send(address, &payload(at));
    }
    let mut next = [0, 1];
    for _ in 0..DATAGRAMS {
        let (from, bytes, truncated) = received_datagram(&mut fixture, token);
        let sender = peers.iter().position(|peer| peer.local_addr() == from).expect("a known sender");
        assert_eq!((bytes, truncated), (payload(next[sender]), false));
        next[sender] += 2;
    }
    let answers: Vec<_> = (0..DATAGRAMS).map(payload).collect();
    let outgoing: Vec<_> = answers
        .iter()
        .enumerate()
        .map(|(at, bytes)| Outgoing {
            token,
            bytes: Gather::One(bytes),
            to: Some(peers[at % 2].local_addr()),
            from: None,
            close: false,
        })
        .collect();
    let incomplete_sends = fixture.turn(Wait::No, &outgoing);
    assert!(incomplete_sends.is_empty(), "{incomplete_sends:?}");
    for (at, answer) in answers.into_iter().enumerate() {
        assert_eq!(received_datagram_at(&mut fixture, &mut peers[at % 2]), (address, answer));
    }
    assert_eq!(fixture.driver.buffers_lent(), 0);
    fixture.expect_silence();
}

/// Row 5.1: a batch of datagrams in and out, none lost, none mixed up.
pub fn datagrams_over_ipv4_keep_their_addresses<R: DriverRig>() {
    echo_datagrams::<R>(AddressKind::V4);
}

/// Row 5.1: the same over IPv6.
pub fn datagrams_over_ipv6_keep_their_addresses<R: DriverRig>() {
    echo_datagrams::<R>(AddressKind::V6);
}

/// Row 4.34: a datagram longer than a buffer is marked as truncated.
pub fn a_long_datagram_is_cut_and_marked<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, address) = open(&mut fixture, AddressKind::V4);
    let mut peer = fixture.rig.datagram_peer(AddressKind::V4);
    let long: Vec<u8> = (0..RECEIVE_BUFFER_SIZE + 1).map(pattern).collect();
    peer.send(address, &long);
    peer.send(address, b"short");
    let (from, bytes, truncated) = received_datagram(&mut fixture, token);
    assert_eq!((from, truncated), (peer.local_addr(), true));
    assert!(bytes.len() > RECEIVE_BUFFER_SIZE / 2, "only {} bytes came", bytes.len());
    assert!(long.starts_with(&bytes), "the bytes arrived changed");
    assert_eq!(received_datagram(&mut fixture, token), (peer.local_addr(), b"short".to_vec(), false));
}

/// Row 4.34: a datagram without payload has a sender.
pub fn an_empty_datagram_is_a_datagram<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, address) = open(&mut fixture, AddressKind::V4);
    let mut peer = fixture.rig.datagram_peer(AddressKind::V4);
    peer.send(address, b"");
    assert_eq!(received_datagram(&mut fixture, token), (peer.local_addr(), Vec::new(), false));
    let to = Some(peer.local_addr());
    let bytes = Gather::One(b"");
    let incomplete_sends = fixture.turn(Wait::No, &[Outgoing { token, bytes, to, from: None, close: false }]);
    assert!(incomplete_sends.is_empty(), "{incomplete_sends:?}");
    assert_eq!(received_datagram_at(&mut fixture, &mut peer), (address, Vec::new()));
}

/// Row 4.34: "port unreachable" does not stop the socket.
pub fn a_datagram_to_a_closed_port_does_not_stop_the_socket<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, address) = open(&mut fixture, AddressKind::V4);
    let mut peer = fixture.rig.datagram_peer(AddressKind::V4);
    let Destination::Tcp { to: unused, .. } = fixture.rig.unused_destination(AddressKind::V4) else {
        panic!("an unused destination has an address")
    };
    for round in 0..3 {
        let bytes = Gather::One(b"?");
        fixture.turn(Wait::No, &[Outgoing { token, bytes, to: Some(unused), from: None, close: false }]);
        fixture.expect_silence();
        peer.send(address, &[round]);
        assert_eq!(received_datagram(&mut fixture, token), (peer.local_addr(), vec![round], false));
    }
}

/// Row 4.34: datagrams without a free buffer stay in the socket.
pub fn datagrams_without_a_buffer_wait_in_the_socket<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, address) = open(&mut fixture, AddressKind::V4);
    let mut peer = fixture.rig.datagram_peer(AddressKind::V4);
    let mut held = Vec::new();
    while held.len() < RECEIVE_BUFFERS as usize {
        peer.send(address, &(held.len() as u32).to_be_bytes());
        held.push(lent(&mut fixture, token));
    }
    for late in 0..20_u8 {
        peer.send(address, &[late]);
    }
    fixture.expect_silence();
    assert!(fixture.driver.counters().starved >= 1);
    for (at, buffer) in held.iter().enumerate() {
        assert_eq!(fixture.driver.datagram(*buffer).payload, (at as u32).to_be_bytes());
    }
    // One buffer at a time: the socket repeatedly runs out.
    for late in 0..3 {
        fixture.driver.release(held.pop().expect("many are held"));
        held.push(lent(&mut fixture, token));
        assert_eq!(fixture.driver.datagram(held[held.len() - 1]).payload, [late]);
        fixture.expect_silence();
    }
    held.into_iter().for_each(|buffer| fixture.driver.release(buffer));
    for late in 3..20 {
        assert_eq!(received_datagram(&mut fixture, token).1, [late]);
    }
    assert_eq!(fixture.driver.buffers_lent(), 0);
}

/// Row 4.34: close stops a datagram socket from receiving.
pub fn a_closed_datagram_socket_is_silent<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, address) = open(&mut fixture, AddressKind::V4);
    fixture.expect_silence();
    let mut peer = fixture.rig.datagram_peer(AddressKind::V4);
    peer.send(address, b"too late");
    fixture.driver.close(token);
    fixture.expect(ObservedEvent::Closed(token));
    fixture.expect_silence();
    assert_eq!(fixture.driver.buffers_lent(), 0);
}

/// Row 5.1: on a machine with several addresses, an answer leaves from the address the request was sent to; an
/// unsolicited datagram can leave from any of them.
pub fn a_datagram_can_be_sent_from_the_address_of_a_received_one<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (socket, port) = fixture.rig.datagram_socket_on_all();
    let token = fixture.attach(socket, SourceKind::Datagram);
    fixture.driver.receive(token);
    let mut peer = fixture.rig.datagram_peer(AddressKind::V4);
    let locals = [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2)].map(IpAddr::from);
    for local in locals {
        peer.send((local, port).into(), b"question");
        let buffer = lent(&mut fixture, token);
        let datagram = fixture.driver.datagram(buffer);
        assert_eq!((datagram.from, datagram.local), (peer.local_addr(), Some(local)));
        assert_eq!(datagram.payload, b"question");
        fixture.driver.release(buffer);
    }
    let to = Some(peer.local_addr());
    let notifications = locals.map(|local| Outgoing {
        token,
        bytes: Gather::One(b"notice"),
        to,
        from: Some(local),
        close: false,
    });
    let incomplete_sends = fixture.turn(Wait::No, &notifications);
    assert!(incomplete_sends.is_empty(), "{incomplete_sends:?}");
    for local in locals {
        let from = SocketAddr::from((local, port));
        assert_eq!(received_datagram_at(&mut fixture, &mut peer), (from, b"notice".to_vec()));
    }
    let (bound, address) = open(&mut fixture, AddressKind::V4);
    peer.send(address, b"question");
    let buffer = lent(&mut fixture, bound);
    assert_eq!(fixture.driver.datagram(buffer).local, None, "there is only one address to answer from");
    fixture.driver.release(buffer);
}
