//! Contract tests for closing a source and reusing its slot.

use stilling_engine::Token;
use stilling_engine::driver::{Driver, DriverEvent, SourceKind};

use super::receiving::hold_all_buffers;
use super::{AddressKind, DriverFixture, DriverRig, ObservedEvent, Peer};

/// Closes `token`, expects exactly one `Closed`, then attaches another connection in its slot and expects that it
/// receives only its own events.
fn close_and_reuse<R: DriverRig>(fixture: &mut DriverFixture<R>, token: Token) {
    fixture.driver.close(token);
    fixture.expect(ObservedEvent::Closed(token));
    fixture.expect_silence();
    let reused = Token::new(token.index(), token.generation() + 1);
    let (socket, mut peer) = fixture.rig.pair();
    fixture.driver.attach(reused, socket.into(), SourceKind::Stream, false).expect("attach in the same slot");
    fixture.expect_silence();
    fixture.driver.receive(reused);
    fixture.expect_silence();
    fixture.peer_writes(&mut peer, b"mine");
    fixture.expect(ObservedEvent::Received(reused, b"mine".to_vec()));
    fixture.driver.close(reused);
    fixture.expect(ObservedEvent::Closed(reused));
}

/// Row 4.34: close while a receive is armed.
pub fn close_cancels_a_receive<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, _peer) = fixture.connection();
    fixture.driver.receive(token);
    fixture.expect_silence();
    close_and_reuse(&mut fixture, token);
    let (token, _peer) = fixture.connection();
    fixture.driver.receive(token);
    close_and_reuse(&mut fixture, token);
}

/// Row 4.34: close while waiting in `await_readable`.
pub fn close_cancels_a_readable<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, _peer) = fixture.connection();
    fixture.driver.await_readable(token);
    fixture.expect_silence();
    close_and_reuse(&mut fixture, token);
}

/// Row 4.34: close while a send is blocked, with a receive armed as well.
pub fn close_cancels_a_writable<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, _peer) = fixture.connection();
    fixture.driver.receive(token);
    fixture.fill_up(token, 0);
    close_and_reuse(&mut fixture, token);
}

/// Row 4.34: close while a connect is in progress.
pub fn close_cancels_a_connect<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    for address_kind in [AddressKind::V4, AddressKind::Unix] {
        let (_listener, destination) = fixture.rig.peer_listener(address_kind);
        let token = fixture.token();
        fixture.driver.connect(token, &destination).expect("a socket");
        close_and_reuse(&mut fixture, token);
        let (token, unused_destination) = (fixture.token(), fixture.rig.unused_destination(address_kind));
        fixture.driver.connect(token, &unused_destination).expect("a socket");
        close_and_reuse(&mut fixture, token);
    }
}

/// Row 4.34: bytes, an end or a reset pending for a closed source are not delivered.
pub fn close_discards_pending_events<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    for end in 0..3 {
        let (token, mut peer) = fixture.connection();
        fixture.driver.receive(token);
        fixture.expect_silence();
        match end {
            0 => fixture.peer_writes(&mut peer, b"too late"),
            1 => drop(peer),
            _ => peer.reset(),
        }
        close_and_reuse(&mut fixture, token);
        assert_eq!(fixture.driver.buffers_lent(), 0);
    }
}

/// Row 4.34: a receive waiting for a buffer is dropped with its source.
pub fn a_starved_receive_can_be_closed<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (holder, mut holder_peer) = fixture.connection();
    let (token, mut peer) = fixture.connection();
    let held = hold_all_buffers(&mut fixture, holder, &mut holder_peer);
    fixture.driver.receive(token);
    fixture.peer_writes(&mut peer, b"never seen");
    fixture.expect_silence();
    fixture.driver.close(token);
    fixture.expect(ObservedEvent::Closed(token));
    held.into_iter().for_each(|buffer| fixture.driver.release(buffer));
    fixture.expect_silence();
    assert_eq!(fixture.driver.buffers_lent(), 0);
}

/// Row 4.34: a source closed right after its shutdown does not affect the next source in its slot.
pub fn a_shutdown_does_not_reach_the_next_source_of_its_slot<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (listener, destination) = fixture.listen(AddressKind::V4);
    for _ in 0..50 {
        let mut peer = fixture.rig.dial(&destination);
        let socket = fixture.accepted(listener);
        let former = fixture.attach(socket, SourceKind::Stream);
        fixture.driver.shutdown(former);
        fixture.driver.close(former);
        let mut next_peer = fixture.rig.dial(&destination);
        let (mut socket, mut closed) = (None, false);
        while socket.is_none() || !closed {
            match fixture.next_event() {
                DriverEvent::Accepted { socket: next, .. } => socket = Some(next),
                DriverEvent::Closed { token } if token == former => closed = true,
                event => panic!("unexpected: {event:?}"),
            }
        }
        let reused = fixture.attach(socket.expect("it was accepted"), SourceKind::Stream);
        fixture.send_whole(reused, b"still open");
        fixture.expect_at_peer(&mut next_peer, b"still open");
        assert_eq!(fixture.peer_reads(&mut peer).expect("the end"), b"");
        fixture.driver.close(reused);
        fixture.expect(ObservedEvent::Closed(reused));
    }
}

/// Row 4.34: a close takes effect even without another turn: the peer sees the end.
pub fn a_close_without_another_turn_reaches_the_peer<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    fixture.driver.receive(token);
    fixture.expect_silence();
    fixture.driver.close(token);
    let DriverFixture { driver, rig, .. } = fixture;
    drop(driver);
    loop {
        match peer.read(&mut [0; 8]) {
            Ok(read) => break assert_eq!(read, 0),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        assert!(rig.is_within_limit(), "the peer never sees the end");
    }
}

/// Row 4.12: a reset is visible without receiving; a peer that only ended its sending direction does not count as gone.
pub fn a_reset_is_visible_without_a_receive_and_an_end_is_not<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    fixture.idle_turn();
    assert!(!fixture.driver.is_hung_up(token));
    peer.shutdown();
    fixture.driver.await_readable(token);
    fixture.expect(ObservedEvent::Readable(token));
    assert!(!fixture.driver.is_hung_up(token) && !fixture.driver.has_no_unread_input(token));
    fixture.driver.close(token);
    fixture.expect(ObservedEvent::Closed(token));
    let (token, peer) = fixture.connection();
    peer.reset();
    while !fixture.driver.is_hung_up(token) {
        fixture.idle_turn();
    }
    fixture.driver.close(token);
    fixture.expect(ObservedEvent::Closed(token));
}

/// Row 4.12: unread bytes are visible without receiving them.
pub fn unread_bytes_are_visible_without_a_receive<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    assert!(fixture.driver.has_no_unread_input(token));
    fixture.peer_writes(&mut peer, b"here");
    while fixture.driver.has_no_unread_input(token) {
        fixture.idle_turn();
    }
    assert!(!fixture.driver.is_hung_up(token));
    assert_eq!(fixture.receive(token), ObservedEvent::Received(token, b"here".to_vec()));
    assert!(fixture.driver.has_no_unread_input(token));
}
