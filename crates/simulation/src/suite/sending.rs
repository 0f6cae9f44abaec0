//! Contract tests for sending and for wakes.

use stilling_engine::Token;
use stilling_engine::driver::{Driver, Gather, Outgoing, SourceKind, Wait};

use super::{AddressKind, DriverFixture, DriverRig, ObservedEvent, Peer, pattern};

/// Row 4.36: a send stops short, `await_writable` completes when the peer reads, all bytes arrive in order.
pub fn a_peer_that_never_reads_stops_the_send<R: DriverRig>() {
    a_full_socket_stops_the_send::<R>(|_, _, _| {});
}

/// Row 4.36: the same after the peer has ended its direction: the wait completes only when there is room.
pub fn a_peer_that_has_ended_and_never_reads_stops_the_send<R: DriverRig>() {
    a_full_socket_stops_the_send::<R>(|fixture, token, peer| {
        peer.shutdown();
        assert_eq!(fixture.receive(token), ObservedEvent::Ended(token));
    });
}

fn a_full_socket_stops_the_send<R: DriverRig>(prepare: fn(&mut DriverFixture<R>, Token, &mut R::Peer)) {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    prepare(&mut fixture, token, &mut peer);
    let (mut sent, mut read) = (0, 0);
    for _ in 0..3 {
        sent = fixture.fill_up(token, sent);
        fixture.peer_reads_until_event(&mut peer, |byte| {
            assert_eq!(byte, pattern(read), "byte {read}");
            read += 1;
        });
        fixture.expect(ObservedEvent::Writable(token));
    }
    assert!(fixture.send(token, b"", true).is_none());
    fixture.expect(ObservedEvent::Closed(token));
    while read < sent {
        let bytes = fixture.peer_reads(&mut peer).expect("the peer reads");
        assert!(!bytes.is_empty(), "the end came after {read} of {sent} bytes");
        for byte in bytes {
            assert_eq!(byte, pattern(read), "byte {read}");
            read += 1;
        }
    }
    assert_eq!(fixture.peer_reads(&mut peer).expect("the end"), b"");
}

/// Row 4.36: a send with close that stops short leaves the connection open; the send that completes it closes after the
/// last byte.
pub fn closing_with_the_send_waits_for_all_bytes<R: DriverRig>() {
    close_behind_all_bytes::<R>(|_, _| {});
    // An armed receive must not delay the close.
    close_behind_all_bytes::<R>(R::Driver::receive);
}

fn close_behind_all_bytes<R: DriverRig>(arm: fn(&mut R::Driver, Token)) {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    arm(&mut fixture.driver, token);
    let bytes: Vec<u8> = (0..1 << 20).map(pattern).collect();
    let (mut sent, mut read, mut incomplete_sends) = (0, Vec::new(), 0);
    while let Some(stop) = fixture.send(token, &bytes[sent..], true) {
        assert!(stop.error.is_none(), "{stop:?}");
        assert!(fixture.events.is_empty(), "{:?} although it stopped short", fixture.events);
        (sent, incomplete_sends) = (sent + stop.sent as usize, incomplete_sends + 1);
        fixture.driver.await_writable(token);
        fixture.peer_reads_until_event(&mut peer, |byte| read.push(byte));
        fixture.expect(ObservedEvent::Writable(token));
    }
    assert!(incomplete_sends > 0, "the send never stopped, so nothing was tested");
    fixture.expect(ObservedEvent::Closed(token));
    while read.len() < bytes.len() {
        let more = fixture.peer_reads(&mut peer).expect("the peer reads");
        assert!(!more.is_empty(), "the end came after {} bytes", read.len());
        read.extend(more);
    }
    assert!(read == bytes, "the bytes arrived changed");
    assert_eq!(fixture.peer_reads(&mut peer).expect("the end"), b"");
    fixture.expect_silence();
}

/// Row 4.36: an empty send with close closes at once.
pub fn an_empty_send_with_close_closes<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    assert!(fixture.send(token, b"", true).is_none());
    fixture.expect(ObservedEvent::Closed(token));
    assert_eq!(fixture.peer_reads(&mut peer).expect("the end"), b"");
    fixture.expect_silence();
}

/// Row 5.1: one turn carries the receives, and one the answers, of many connections.
pub fn many_sources_in_one_turn<R: DriverRig>() {
    const CONNECTIONS: usize = 100;
    let mut fixture = DriverFixture::<R>::new();
    let (listener, destination) = fixture.listen(AddressKind::V4);
    let mut peers = Vec::new();
    let mut tokens = Vec::new();
    for at in 0..CONNECTIONS {
        let mut peer = fixture.rig.dial(&destination);
        let socket = fixture.accepted(listener);
        tokens.push(fixture.attach(socket, SourceKind::Stream));
        fixture.peer_writes(&mut peer, &[at as u8; 10]);
        peers.push(peer);
    }
    for token in &tokens {
        fixture.driver.receive(*token);
    }
    let mut received = [false; CONNECTIONS];
    for _ in 0..CONNECTIONS {
        let ObservedEvent::Received(token, bytes) = fixture.observed() else { panic!("expected bytes") };
        let at = tokens.iter().position(|known| *known == token).expect("a known token");
        assert_eq!(bytes, [at as u8; 10]);
        assert!(!std::mem::replace(&mut received[at], true), "connection {at} received twice");
    }
    let answers: Vec<_> = (0..CONNECTIONS).map(|at| [at as u8; 20]).collect();
    let outgoing: Vec<_> = std::iter::zip(&tokens, &answers)
        .map(|(token, bytes)| Outgoing::stream(*token, Gather::One(bytes), true))
        .collect();
    let incomplete_sends = fixture.turn(Wait::No, &outgoing);
    assert!(incomplete_sends.is_empty(), "{incomplete_sends:?}");
    for (peer, answer) in std::iter::zip(&mut peers, &answers) {
        fixture.expect_at_peer(peer, answer);
        assert_eq!(fixture.peer_reads(peer).expect("the end"), b"");
    }
    let mut closed: Vec<_> = tokens.iter().map(|_| fixture.observed()).collect();
    closed.sort_by_key(|observed| match observed {
        ObservedEvent::Closed(token) => *token,
        observed => panic!("expected Closed, got {observed:?}"),
    });
    assert_eq!(closed, tokens.into_iter().map(ObservedEvent::Closed).collect::<Vec<_>>());
}

/// Row 4.33: bytes from the peer still arrive after a shutdown.
pub fn shutdown_ends_our_direction_only<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    fixture.send_whole(token, b"that is all");
    fixture.driver.receive(token);
    fixture.driver.shutdown(token);
    fixture.expect_silence();
    fixture.expect_at_peer(&mut peer, b"that is all");
    assert_eq!(fixture.peer_reads(&mut peer).expect("the end"), b"");
    fixture.peer_writes(&mut peer, b"I see");
    fixture.expect(ObservedEvent::Received(token, b"I see".to_vec()));
    peer.shutdown();
    assert_eq!(fixture.receive(token), ObservedEvent::Ended(token));
}

/// Row 5.1: wakes may be merged but are never lost.
pub fn several_wakes_before_a_turn_are_one<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let wake = fixture.driver.wake_handle();
    for _ in 0..3 {
        wake.wake();
        wake.clone().wake();
        fixture.expect(ObservedEvent::Woken);
        fixture.expect_silence();
    }
}
