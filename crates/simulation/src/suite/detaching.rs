//! Contract tests for detaching a socket: it stays open, received bytes are not lost, and no events follow.

use stilling_engine::Token;
use stilling_engine::driver::{Driver, DriverEvent, SourceKind};

use super::receiving::hold_all_buffers;
use super::{AddressKind, DriverFixture, DriverRig, ObservedEvent, Peer, RigSocket, pattern};

/// What was observed of a connection between the detach and the socket's arrival.
struct DetachedStream<R: DriverRig> {
    socket: RigSocket<R>,
    bytes: Vec<u8>,
    ended: bool,
    failed: bool,
}

/// Detaches the socket of `token` and records its events until the socket arrives; there is no other connection.
fn detach_stream<R: DriverRig>(fixture: &mut DriverFixture<R>, token: Token) -> DetachedStream<R> {
    fixture.driver.detach(token);
    let (mut bytes, mut ended, mut failed) = (Vec::new(), false, false);
    loop {
        match fixture.next_event() {
            DriverEvent::Detached { token: of, socket } => {
                let socket = socket.expect("descriptors are left");
                assert_eq!(of, token);
                return DetachedStream { socket, bytes, ended, failed };
            }
            DriverEvent::Received { token: of, buffer, len } => {
                assert_eq!(of, token);
                bytes.extend_from_slice(&fixture.driver.buffer(buffer)[..len as usize]);
                fixture.driver.release(buffer);
            }
            DriverEvent::Ended { token: of } if of == token => ended = true,
            DriverEvent::Failed { token: of, .. } if of == token => failed = true,
            DriverEvent::Readable { .. }
            | DriverEvent::Writable { .. }
            | DriverEvent::ReceiveCancelled { .. } => {}
            event => panic!("unexpected: {event:?}"),
        }
    }
}

/// Checks that the connection carries bytes both ways, then closes it.
fn assert_works<R: DriverRig>(fixture: &mut DriverFixture<R>, socket: RigSocket<R>, peer: &mut R::Peer) {
    let token = fixture.attach(socket, SourceKind::Stream);
    fixture.peer_writes(peer, b"still there?");
    assert_eq!(fixture.receive_bytes(token, 12), b"still there?");
    fixture.send_whole(token, b"still here");
    fixture.expect_at_peer(peer, b"still here");
    fixture.driver.close(token);
    fixture.expect(ObservedEvent::Closed(token));
    assert_eq!(fixture.peer_reads(peer).expect("the end"), b"");
}

/// Checks that the slot of a detached source is reusable and that events of the socket are not delivered.
fn assert_drained<R: DriverRig>(fixture: &mut DriverFixture<R>, token: Token, peer: &mut R::Peer) {
    let reused = Token::new(token.index(), token.generation() + 1);
    let (socket, mut other) = fixture.rig.pair();
    fixture.driver.attach(reused, socket.into(), SourceKind::Stream, false).expect("attach in the same slot");
    fixture.driver.receive(reused);
    fixture.peer_writes(peer, b"not yours");
    fixture.expect_silence();
    fixture.peer_writes(&mut other, b"mine");
    fixture.expect(ObservedEvent::Received(reused, b"mine".to_vec()));
    fixture.driver.close(reused);
    fixture.expect(ObservedEvent::Closed(reused));
}

/// Rows 4.4, 4.5: a connection with nothing armed is returned open, with its unread bytes.
pub fn a_detached_socket_still_works<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    fixture.peer_writes(&mut peer, b"unread");
    let detached = detach_stream(&mut fixture, token);
    assert_eq!(detached.bytes, b"");
    let token = fixture.attach(detached.socket, SourceKind::Stream);
    assert_eq!(fixture.receive_bytes(token, 6), b"unread");
    let detached = detach_stream(&mut fixture, token);
    assert_works(&mut fixture, detached.socket, &mut peer);
}

/// Rows 4.4, 4.34: detach while a receive or a wait is armed.
pub fn detach_cancels_armed_operations<R: DriverRig>() {
    let arms: [fn(&mut DriverFixture<R>, Token); 4] = [
        |fixture, token| fixture.driver.receive(token),
        |fixture, token| fixture.driver.await_readable(token),
        |fixture, token| {
            fixture.driver.receive(token);
            fixture.driver.cancel_receive(token);
        },
        |fixture, token| {
            fixture.driver.receive(token);
            fixture.expect_silence();
            fixture.driver.cancel_receive(token);
            fixture.driver.await_writable(token);
        },
    ];
    for runs_turn in [false, true] {
        for arm in arms {
            let mut fixture = DriverFixture::<R>::new();
            let (token, mut peer) = fixture.connection();
            arm(&mut fixture, token);
            if runs_turn {
                fixture.idle_turn();
                fixture.events.clear();
            }
            let detached = detach_stream(&mut fixture, token);
            assert_eq!((detached.bytes, detached.ended, detached.failed), (Vec::new(), false, false));
            assert_drained(&mut fixture, token, &mut peer);
            let token = fixture.attach(detached.socket, SourceKind::Stream);
            assert_eq!(fixture.receive_bytes(token, 9), b"not yours");
            let detached = detach_stream(&mut fixture, token);
            assert_works(&mut fixture, detached.socket, &mut peer);
        }
    }
}

/// Row 4.4: bytes that arrive while the receive is cancelled are delivered or stay in the socket; none are lost.
pub fn a_detach_that_races_with_data_loses_nothing<R: DriverRig>() {
    const ROUNDS: usize = 60;
    const CHUNK: usize = 700;
    let mut fixture = DriverFixture::<R>::new();
    let (mut token, mut peer) = fixture.connection();
    let mut received = Vec::new();
    for round in 0..ROUNDS {
        let chunk: Vec<u8> = (round * CHUNK..(round + 1) * CHUNK).map(pattern).collect();
        fixture.driver.receive(token);
        if round % 3 == 0 {
            fixture.idle_turn();
        }
        fixture.peer_writes(&mut peer, &chunk);
        if round % 3 == 1 {
            fixture.driver.cancel_receive(token);
        }
        let mut detached = detach_stream(&mut fixture, token);
        received.append(&mut detached.bytes);
        token = fixture.attach(detached.socket, SourceKind::Stream);
    }
    let rest = fixture.receive_bytes(token, ROUNDS * CHUNK - received.len());
    received.extend(rest);
    assert!(received.into_iter().eq((0..ROUNDS * CHUNK).map(pattern)), "bytes were lost or changed");
    assert_eq!(fixture.driver.buffers_lent(), 0);
}

/// Row 4.34: a reset by the peer during a detach is reported once, before or after it.
pub fn a_reset_while_detaching_is_reported_once<R: DriverRig>() {
    for waits in [false, true] {
        let mut fixture = DriverFixture::<R>::new();
        let (token, peer) = fixture.connection();
        fixture.driver.receive(token);
        if waits {
            fixture.expect_silence();
        }
        peer.reset();
        let detached = detach_stream(&mut fixture, token);
        let token = fixture.attach(detached.socket, SourceKind::Stream);
        match fixture.receive(token) {
            ObservedEvent::Failed(of, _) => assert!(of == token && !detached.failed, "reported twice"),
            observed => {
                assert!(
                    observed == ObservedEvent::Ended(token) && detached.failed,
                    "never reported: {observed:?}"
                );
            }
        }
    }
}

/// Row 4.33: a peer that has ended its sending direction is still answered after the detach.
pub fn a_half_closed_connection_can_be_detached<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    fixture.driver.receive(token);
    peer.shutdown();
    let detached = detach_stream(&mut fixture, token);
    let token = fixture.attach(detached.socket, SourceKind::Stream);
    assert_eq!(fixture.receive(token), ObservedEvent::Ended(token));
    fixture.send_whole(token, b"the answer");
    fixture.expect_at_peer(&mut peer, b"the answer");
}

/// Row 4.34: a receive waiting for a buffer is cancelled; its bytes stay in the socket.
pub fn a_starved_receive_can_be_detached<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (holder, mut holder_peer) = fixture.connection();
    let (token, mut peer) = fixture.connection();
    let held = hold_all_buffers(&mut fixture, holder, &mut holder_peer);
    fixture.driver.receive(token);
    fixture.peer_writes(&mut peer, b"later");
    fixture.expect_silence();
    let detached = detach_stream(&mut fixture, token);
    assert_eq!(detached.bytes, b"");
    held.into_iter().for_each(|buffer| fixture.driver.release(buffer));
    fixture.expect_silence();
    let token = fixture.attach(detached.socket, SourceKind::Stream);
    assert_eq!(fixture.receive_bytes(token, 5), b"later");
}

/// Row 4.4: a detached socket has one owner: the peer sees the end when it is dropped, also if the driver is gone
/// before.
pub fn a_detached_socket_has_one_owner<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    fixture.driver.receive(token);
    fixture.idle_turn();
    let DetachedStream { socket, .. } = detach_stream(&mut fixture, token);
    drop(socket);
    assert_eq!(fixture.peer_reads(&mut peer).expect("the end"), b"");
    let (token, mut peer) = fixture.connection();
    let DetachedStream { socket, .. } = detach_stream(&mut fixture, token);
    fixture.driver = fixture.rig.driver();
    assert_works(&mut fixture, socket, &mut peer);
}

/// Row 4.5: many sockets detached in one turn.
pub fn many_detach_in_one_turn<R: DriverRig>() {
    const CONNECTIONS: usize = 100;
    let mut fixture = DriverFixture::<R>::new();
    let (listener, destination) = fixture.listen(AddressKind::V4);
    let mut peers = Vec::new();
    let mut tokens = Vec::new();
    for at in 0..CONNECTIONS {
        peers.push(fixture.rig.dial(&destination));
        let socket = fixture.accepted(listener);
        let token = fixture.attach(socket, SourceKind::Stream);
        if at % 2 == 0 {
            fixture.driver.receive(token);
        }
        tokens.push(token);
    }
    fixture.idle_turn();
    tokens.iter().for_each(|token| fixture.driver.detach(*token));
    let mut sockets = Vec::new();
    while sockets.len() < CONNECTIONS {
        match fixture.next_event() {
            DriverEvent::Detached { token, socket } => {
                sockets.push((token, socket.expect("descriptors are left")));
            }
            DriverEvent::ReceiveCancelled { .. } => {}
            event => panic!("unexpected: {event:?}"),
        }
    }
    sockets.sort_by_key(|(token, _)| *token);
    for ((token, socket), (expected, peer)) in sockets.into_iter().zip(tokens.iter().zip(&mut peers)) {
        assert_eq!(token, *expected);
        assert_works(&mut fixture, socket, peer);
    }
}
