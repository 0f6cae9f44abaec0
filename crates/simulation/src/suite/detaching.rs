//! Promises about letting go of a socket: it stays open, nothing that was received is lost, and nothing is
//! said about it afterwards.

use stilling_engine::Token;
use stilling_engine::driver::{Driver, Event, Kind};

use super::receiving::keep_all_buffers;
use super::{News, Peer, Place, Rig, Socket, Stage, pattern};

/// What came of a connection from the moment it was asked for until its socket came.
struct Parting<R: Rig> {
    socket: Socket<R>,
    bytes: Vec<u8>,
    ended: bool,
    failed: bool,
}

/// Asks for the socket of `token` and takes in all news until it comes; there is no other connection.
fn part<R: Rig>(stage: &mut Stage<R>, token: Token) -> Parting<R> {
    stage.driver.detach(token);
    let (mut bytes, mut ended, mut failed) = (Vec::new(), false, false);
    loop {
        match stage.next_event() {
            Event::Detached { token: of, socket } => {
                let socket = socket.expect("descriptors are left");
                assert_eq!(of, token);
                return Parting { socket, bytes, ended, failed };
            }
            Event::Received { token: of, buffer, len } => {
                assert_eq!(of, token);
                bytes.extend_from_slice(&stage.driver.buffer(buffer)[..len as usize]);
                stage.driver.release(buffer);
            }
            Event::Ended { token: of } if of == token => ended = true,
            Event::Failed { token: of, .. } if of == token => failed = true,
            Event::Readable { .. } | Event::Writable { .. } | Event::ReceiveCancelled { .. } => {}
            event => panic!("unexpected: {event:?}"),
        }
    }
}

/// Whether the connection carries bytes both ways, and then closes it.
fn carries_on<R: Rig>(stage: &mut Stage<R>, socket: Socket<R>, peer: &mut R::Peer) {
    let token = stage.attach(socket, Kind::Stream);
    stage.peer_writes(peer, b"still there?");
    assert_eq!(stage.receive_bytes(token, 12), b"still there?");
    stage.send_whole(token, b"still here");
    stage.expect_at_peer(peer, b"still here");
    stage.driver.close(token);
    stage.expect(News::Closed(token));
    assert_eq!(stage.peer_reads(peer).expect("the end"), b"");
}

/// The slot of a source that was let go is another's, and the socket's news is nobody's.
fn nothing_is_left<R: Rig>(stage: &mut Stage<R>, token: Token, peer: &mut R::Peer) {
    let tenant = Token::new(token.index(), token.generation() + 1);
    let (socket, mut other) = stage.rig.pair();
    stage.driver.attach(tenant, socket.into(), Kind::Stream, false).expect("attach in the same slot");
    stage.driver.receive(tenant);
    stage.peer_writes(peer, b"not yours");
    stage.expect_silence();
    stage.peer_writes(&mut other, b"mine");
    stage.expect(News::Received(tenant, b"mine".to_vec()));
    stage.driver.close(tenant);
    stage.expect(News::Closed(tenant));
}

/// Rows 4.4, 4.5: a connection of which nothing is armed is given back, open and with what is in it.
pub fn a_detached_socket_carries_on<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    stage.peer_writes(&mut peer, b"unread");
    let parting = part(&mut stage, token);
    assert_eq!(parting.bytes, b"");
    let token = stage.attach(parting.socket, Kind::Stream);
    assert_eq!(stage.receive_bytes(token, 6), b"unread");
    let parting = part(&mut stage, token);
    carries_on(&mut stage, parting.socket, &mut peer);
}

/// Rows 4.4, 4.34: letting go while a receive or a wait is armed.
pub fn detach_takes_back_what_is_armed<R: Rig>() {
    let arms: [fn(&mut Stage<R>, Token); 4] = [
        |stage, token| stage.driver.receive(token),
        |stage, token| stage.driver.readable(token),
        |stage, token| {
            stage.driver.receive(token);
            stage.driver.cancel_receive(token);
        },
        |stage, token| {
            stage.driver.receive(token);
            stage.expect_silence();
            stage.driver.cancel_receive(token);
            stage.driver.writable(token);
        },
    ];
    for settles in [false, true] {
        for arm in arms {
            let mut stage = Stage::<R>::new();
            let (token, mut peer) = stage.connection();
            arm(&mut stage, token);
            if settles {
                stage.pass();
                stage.events.clear();
            }
            let parting = part(&mut stage, token);
            assert_eq!((parting.bytes, parting.ended, parting.failed), (Vec::new(), false, false));
            nothing_is_left(&mut stage, token, &mut peer);
            let token = stage.attach(parting.socket, Kind::Stream);
            assert_eq!(stage.receive_bytes(token, 9), b"not yours");
            let parting = part(&mut stage, token);
            carries_on(&mut stage, parting.socket, &mut peer);
        }
    }
}

/// Row 4.4: bytes that come while the receive is taken back are given or stay, and are never lost.
pub fn a_detach_that_races_with_data_loses_nothing<R: Rig>() {
    const ROUNDS: usize = 60;
    const CHUNK: usize = 700;
    let mut stage = Stage::<R>::new();
    let (mut token, mut peer) = stage.connection();
    let mut received = Vec::new();
    for round in 0..ROUNDS {
        let chunk: Vec<u8> = (round * CHUNK..(round + 1) * CHUNK).map(pattern).collect();
        stage.driver.receive(token);
        if round % 3 == 0 {
            stage.pass();
        }
        stage.peer_writes(&mut peer, &chunk);
        if round % 3 == 1 {
            stage.driver.cancel_receive(token);
        }
        let mut parting = part(&mut stage, token);
        received.append(&mut parting.bytes);
        token = stage.attach(parting.socket, Kind::Stream);
    }
    let rest = stage.receive_bytes(token, ROUNDS * CHUNK - received.len());
    received.extend(rest);
    assert!(received.into_iter().eq((0..ROUNDS * CHUNK).map(pattern)), "bytes were lost or changed");
    assert_eq!(stage.driver.buffers_lent(), 0);
}

/// Row 4.34: a peer that resets meanwhile is told once, before or after.
pub fn a_reset_while_detaching_is_told_once<R: Rig>() {
    for waits in [false, true] {
        let mut stage = Stage::<R>::new();
        let (token, peer) = stage.connection();
        stage.driver.receive(token);
        if waits {
            stage.expect_silence();
        }
        peer.reset();
        let parting = part(&mut stage, token);
        let token = stage.attach(parting.socket, Kind::Stream);
        match stage.receive(token) {
            News::Failed(of, _) => assert!(of == token && !parting.failed, "told twice"),
            news => assert!(news == News::Ended(token) && parting.failed, "never told: {news:?}"),
        }
    }
}

/// Row 4.33: a peer that has finished sending is still answered after the hand-over.
pub fn a_half_closed_connection_can_be_detached<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    stage.driver.receive(token);
    peer.shutdown();
    let parting = part(&mut stage, token);
    let token = stage.attach(parting.socket, Kind::Stream);
    assert_eq!(stage.receive(token), News::Ended(token));
    stage.send_whole(token, b"the answer");
    stage.expect_at_peer(&mut peer, b"the answer");
}

/// Row 4.34: a receive that waits for a buffer is taken back; its bytes stay in the socket.
pub fn a_starved_receive_can_be_detached<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (keeper, mut keeping) = stage.connection();
    let (token, mut peer) = stage.connection();
    let kept = keep_all_buffers(&mut stage, keeper, &mut keeping);
    stage.driver.receive(token);
    stage.peer_writes(&mut peer, b"later");
    stage.expect_silence();
    let parting = part(&mut stage, token);
    assert_eq!(parting.bytes, b"");
    kept.into_iter().for_each(|buffer| stage.driver.release(buffer));
    stage.expect_silence();
    let token = stage.attach(parting.socket, Kind::Stream);
    assert_eq!(stage.receive_bytes(token, 5), b"later");
}

/// Row 4.4: who has the socket has it alone: the peer sees the end when it is dropped, and the driver may
/// be gone before.
pub fn a_detached_socket_is_its_owners_alone<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    stage.driver.receive(token);
    stage.pass();
    let Parting { socket, .. } = part(&mut stage, token);
    drop(socket);
    assert_eq!(stage.peer_reads(&mut peer).expect("the end"), b"");
    let (token, mut peer) = stage.connection();
    let Parting { socket, .. } = part(&mut stage, token);
    stage.driver = stage.rig.driver();
    carries_on(&mut stage, socket, &mut peer);
}

/// Row 4.5: many leave in one turn.
pub fn many_detach_in_one_turn<R: Rig>() {
    const CONNECTIONS: usize = 100;
    let mut stage = Stage::<R>::new();
    let (listener, destination) = stage.listen(Place::V4);
    let mut peers = Vec::new();
    let mut tokens = Vec::new();
    for at in 0..CONNECTIONS {
        peers.push(stage.rig.dial(&destination));
        let socket = stage.accepted(listener);
        let token = stage.attach(socket, Kind::Stream);
        if at % 2 == 0 {
            stage.driver.receive(token);
        }
        tokens.push(token);
    }
    stage.pass();
    tokens.iter().for_each(|token| stage.driver.detach(*token));
    let mut sockets = Vec::new();
    while sockets.len() < CONNECTIONS {
        match stage.next_event() {
            Event::Detached { token, socket } => {
                sockets.push((token, socket.expect("descriptors are left")));
            }
            Event::ReceiveCancelled { .. } => {}
            event => panic!("unexpected: {event:?}"),
        }
    }
    sockets.sort_by_key(|(token, _)| *token);
    for ((token, socket), (expected, peer)) in sockets.into_iter().zip(tokens.iter().zip(&mut peers)) {
        assert_eq!(token, *expected);
        carries_on(&mut stage, socket, peer);
    }
}
