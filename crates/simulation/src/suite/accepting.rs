//! Contract tests for listeners.

use stilling_engine::Token;
use stilling_engine::driver::{Driver, SourceKind};
use stilling_engine::limits::ACCEPTS_PER_TURN;

use super::{AddressKind, DriverFixture, DriverRig, ObservedEvent, Peer};

fn served<R: DriverRig>(address_kind: AddressKind) {
    let mut fixture = DriverFixture::<R>::new();
    let (listener, destination) = fixture.listen(address_kind);
    let mut peer = fixture.rig.dial(&destination);
    let socket = fixture.accepted(listener);
    let token = fixture.attach(socket, SourceKind::Stream);
    fixture.driver.receive(token);
    fixture.peer_writes(&mut peer, b"question");
    fixture.expect(ObservedEvent::Received(token, b"question".to_vec()));
    assert!(fixture.send(token, b"answer", true).is_none());
    fixture.expect(ObservedEvent::Closed(token));
    fixture.expect_at_peer(&mut peer, b"answer");
    assert_eq!(fixture.peer_reads(&mut peer).expect("the end"), b"");
    assert_eq!(fixture.driver.buffers_lent(), 0);
    fixture.expect_silence();
}

/// Row 5.1: a short connection from accept to close, the same on every driver.
pub fn a_request_is_received_answered_and_closed<R: DriverRig>() {
    served::<R>(AddressKind::V4);
    served::<R>(AddressKind::V6);
}

/// Row 5.1: Unix listeners accept like TCP listeners.
pub fn a_unix_listener_accepts<R: DriverRig>() {
    served::<R>(AddressKind::Unix);
}

/// Row 4.39: a client that connected, sent and left before accepting began is served.
pub fn an_early_connection_is_served<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (socket, destination) = fixture.rig.listener(AddressKind::V4);
    let mut peer = fixture.rig.dial(&destination);
    fixture.peer_writes(&mut peer, b"early");
    peer.shutdown();
    let (listener, token) = (fixture.token(), fixture.token());
    fixture.driver.listen(listener, socket).expect("listen");
    fixture.expect_silence();
    fixture.driver.accept(listener);
    let socket = fixture.accepted(listener);
    fixture.driver.attach(token, socket, SourceKind::Stream, true).expect("attach");
    assert_eq!(fixture.receive(token), ObservedEvent::Received(token, b"early".to_vec()));
    assert_eq!(fixture.receive(token), ObservedEvent::Ended(token));
    fixture.send_whole(token, b"served");
    fixture.expect_at_peer(&mut peer, b"served");
}

/// Row 4.9: more clients at once than one turn accepts.
pub fn a_burst_beyond_one_turns_accepts_is_accepted_whole<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (socket, destination) = fixture.rig.listener(AddressKind::V4);
    let clients = ACCEPTS_PER_TURN + 40;
    let peers: Vec<_> = (0..clients).map(|_| fixture.rig.dial(&destination)).collect();
    let listener = fixture.token();
    fixture.driver.listen(listener, socket).expect("listen");
    fixture.driver.accept(listener);
    let accepted: Vec<_> = (0..clients).map(|_| fixture.accepted(listener)).collect();
    fixture.expect_silence();
    drop((peers, accepted));
}

/// Row 4.9: a pause stops accepting; accepting again admits all waiting clients.
pub fn a_paused_listener_keeps_its_clients_waiting<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (listener, destination) = fixture.listen(AddressKind::V4);
    let first = fixture.rig.dial(&destination);
    drop(fixture.accepted(listener));
    fixture.driver.pause_accept(listener);
    fixture.expect(ObservedEvent::AcceptStopped(listener, false, 0));
    fixture.driver.pause_accept(listener);
    let waiting = [fixture.rig.dial(&destination), fixture.rig.dial(&destination)];
    fixture.expect_silence();
    fixture.driver.accept(listener);
    for _ in &waiting {
        drop(fixture.accepted(listener));
    }
    fixture.expect_silence();
    drop(first);
}

/// Row 4.9: `accept` while accepting has no effect.
pub fn accepting_twice_is_accepting_once<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (listener, destination) = fixture.listen(AddressKind::V4);
    fixture.driver.accept(listener);
    fixture.expect_silence();
    fixture.driver.accept(listener);
    let peer = fixture.rig.dial(&destination);
    drop(fixture.accepted(listener));
    fixture.driver.pause_accept(listener);
    fixture.expect(ObservedEvent::AcceptStopped(listener, false, 0));
    fixture.expect_silence();
    drop(peer);
}

/// Row 4.34: a listener closed while accepting reports one `Closed`, and its slot is free.
pub fn a_closed_listener_reports_it_once<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (listener, destination) = fixture.listen(AddressKind::V4);
    fixture.expect_silence();
    let peer = fixture.rig.dial(&destination);
    fixture.driver.close(listener);
    // The earlier client may have been accepted inside the driver; it is discarded.
    fixture.expect(ObservedEvent::Closed(listener));
    let (socket, destination) = fixture.rig.listener(AddressKind::V4);
    let reused = Token::new(listener.index(), listener.generation() + 1);
    fixture.driver.listen(reused, socket).expect("listen in the same slot");
    fixture.driver.accept(reused);
    fixture.expect_silence();
    let next = fixture.rig.dial(&destination);
    drop(fixture.accepted(reused));
    drop((peer, next));
}

/// Row 4.9: a pause revoked before it takes effect is still completed, and accepting continues.
pub fn a_revoked_pause_completes_and_accepting_continues<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (listener, destination) = fixture.listen(AddressKind::V4);
    for round in 0..2 {
        fixture.expect_silence();
        fixture.driver.pause_accept(listener);
        fixture.driver.accept(listener);
        if round == 1 {
            // Also if it is the second pause.
            fixture.driver.pause_accept(listener);
            fixture.driver.accept(listener);
        }
        fixture.expect(ObservedEvent::AcceptStopped(listener, false, 0));
        let peer = fixture.rig.dial(&destination);
        drop(fixture.accepted(listener));
        drop(peer);
    }
    fixture.driver.pause_accept(listener);
    fixture.expect(ObservedEvent::AcceptStopped(listener, false, 0));
    let waiting = fixture.rig.dial(&destination);
    fixture.expect_silence();
    drop(waiting);
}

/// Row 4.9: an accept paused before it takes effect is completed as if it had begun.
pub fn an_accept_paused_at_once_completes<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (socket, destination) = fixture.rig.listener(AddressKind::V4);
    let listener = fixture.token();
    fixture.driver.listen(listener, socket).expect("listen");
    fixture.driver.accept(listener);
    fixture.driver.pause_accept(listener);
    fixture.expect(ObservedEvent::AcceptStopped(listener, false, 0));
    let waiting = fixture.rig.dial(&destination);
    fixture.expect_silence();
    fixture.driver.accept(listener);
    drop(fixture.accepted(listener));
    drop(waiting);
}

/// Row 4.37: clients waiting at a paused listener can be accepted before it is closed.
pub fn waiting_clients_can_be_accepted_at_once<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (listener, destination) = fixture.listen(AddressKind::V4);
    fixture.driver.pause_accept(listener);
    fixture.expect(ObservedEvent::AcceptStopped(listener, false, 0));
    assert!(fixture.driver.accept_now(listener).expect("it can accept").is_none(), "no client waits");
    let mut peer = fixture.rig.dial(&destination);
    let socket = loop {
        match fixture.driver.accept_now(listener).expect("it can accept") {
            Some(socket) => break socket,
            None => fixture.idle_turn(),
        }
    };
    fixture.driver.close(listener);
    let token = fixture.attach(socket, SourceKind::Stream);
    fixture.expect(ObservedEvent::Closed(listener));
    fixture.driver.receive(token);
    fixture.peer_writes(&mut peer, b"question");
    fixture.expect(ObservedEvent::Received(token, b"question".to_vec()));
    fixture.send_whole(token, b"answer");
    fixture.expect_at_peer(&mut peer, b"answer");
}

/// Row 3.27: a client can be refused without a slot; other clients are not affected.
pub fn the_oldest_waiting_client_can_be_refused<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (socket, destination) = fixture.rig.listener(AddressKind::V4);
    let listener = fixture.token();
    fixture.driver.listen(listener, socket).expect("listen");
    assert!(!fixture.driver.refuse_one(listener), "no client waits");
    let mut oldest = fixture.rig.dial(&destination);
    let mut next = fixture.rig.dial(&destination);
    assert!(fixture.driver.refuse_one(listener));
    // An end or a reset: the client has sent nothing that could be lost.
    let end = fixture.peer_reads(&mut oldest).unwrap_or_default();
    assert_eq!(end, b"");
    fixture.driver.accept(listener);
    let socket = fixture.accepted(listener);
    let token = fixture.attach(socket, SourceKind::Stream);
    fixture.peer_writes(&mut next, b"here");
    assert_eq!(fixture.receive(token), ObservedEvent::Received(token, b"here".to_vec()));
    assert!(!fixture.driver.refuse_one(listener), "no client waits any more");
}
