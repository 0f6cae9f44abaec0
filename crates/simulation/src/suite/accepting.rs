//! Promises about listeners.

use stilling_engine::Token;
use stilling_engine::driver::{Driver, Kind};
use stilling_engine::limits::ACCEPTS_PER_TURN;

use super::{News, Peer, Place, Rig, Stage};

fn served<R: Rig>(place: Place) {
    let mut stage = Stage::<R>::new();
    let (listener, destination) = stage.listen(place);
    let mut peer = stage.rig.dial(&destination);
    let socket = stage.accepted(listener);
    let token = stage.attach(socket, Kind::Stream);
    stage.driver.receive(token);
    stage.peer_writes(&mut peer, b"question");
    stage.expect(News::Received(token, b"question".to_vec()));
    assert!(stage.send(token, b"answer", true).is_none());
    stage.expect(News::Closed(token));
    stage.expect_at_peer(&mut peer, b"answer");
    assert_eq!(stage.peer_reads(&mut peer).expect("the end"), b"");
    assert_eq!(stage.driver.buffers_lent(), 0);
    stage.expect_silence();
}

/// Row 5.1: the whole way of a short connection, the same on every driver.
pub fn a_request_is_received_answered_and_closed<R: Rig>() {
    served::<R>(Place::V4);
    served::<R>(Place::V6);
}

/// Row 5.1: Unix listeners are listeners.
pub fn a_unix_listener_accepts<R: Rig>() {
    served::<R>(Place::Unix);
}

/// Row 4.39: a client that came, spoke and left before accepting began is served.
pub fn an_early_connection_is_served<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (socket, destination) = stage.rig.listener(Place::V4);
    let mut peer = stage.rig.dial(&destination);
    stage.peer_writes(&mut peer, b"early");
    peer.shutdown();
    let (listener, token) = (stage.token(), stage.token());
    stage.driver.listen(listener, socket).expect("listen");
    stage.expect_silence();
    stage.driver.accept(listener);
    let socket = stage.accepted(listener);
    stage.driver.attach(token, socket, Kind::Stream, true).expect("attach");
    assert_eq!(stage.receive(token), News::Received(token, b"early".to_vec()));
    assert_eq!(stage.receive(token), News::Ended(token));
    stage.send_whole(token, b"served");
    stage.expect_at_peer(&mut peer, b"served");
}

/// Row 4.9: more clients at once than one turn accepts.
pub fn a_burst_beyond_one_turns_accepts_is_accepted_whole<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (socket, destination) = stage.rig.listener(Place::V4);
    let clients = ACCEPTS_PER_TURN + 40;
    let peers: Vec<_> = (0..clients).map(|_| stage.rig.dial(&destination)).collect();
    let listener = stage.token();
    stage.driver.listen(listener, socket).expect("listen");
    stage.driver.accept(listener);
    let accepted: Vec<_> = (0..clients).map(|_| stage.accepted(listener)).collect();
    stage.expect_silence();
    drop((peers, accepted));
}

/// Row 4.9: pausing stops the flow, accepting again lets everybody in that waited.
pub fn a_paused_listener_keeps_its_clients_waiting<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (listener, destination) = stage.listen(Place::V4);
    let first = stage.rig.dial(&destination);
    drop(stage.accepted(listener));
    stage.driver.pause_accept(listener);
    stage.expect(News::AcceptStopped(listener, false, 0));
    stage.driver.pause_accept(listener);
    let waiting = [stage.rig.dial(&destination), stage.rig.dial(&destination)];
    stage.expect_silence();
    stage.driver.accept(listener);
    for _ in &waiting {
        drop(stage.accepted(listener));
    }
    stage.expect_silence();
    drop(first);
}

/// Row 4.9: asking to accept while accepting changes nothing.
pub fn accepting_twice_is_accepting_once<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (listener, destination) = stage.listen(Place::V4);
    stage.driver.accept(listener);
    stage.expect_silence();
    stage.driver.accept(listener);
    let peer = stage.rig.dial(&destination);
    drop(stage.accepted(listener));
    stage.driver.pause_accept(listener);
    stage.expect(News::AcceptStopped(listener, false, 0));
    stage.expect_silence();
    drop(peer);
}

/// Row 4.34: a listener closed while it accepts ends in one `Closed`, and its slot is free.
pub fn a_closed_listener_says_so_once<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (listener, destination) = stage.listen(Place::V4);
    stage.expect_silence();
    let peer = stage.rig.dial(&destination);
    stage.driver.close(listener);
    // The client that came before may have been accepted inside; it is nobody's now.
    stage.expect(News::Closed(listener));
    let (socket, destination) = stage.rig.listener(Place::V4);
    let tenant = Token::new(listener.index(), listener.generation() + 1);
    stage.driver.listen(tenant, socket).expect("listen in the same slot");
    stage.driver.accept(tenant);
    stage.expect_silence();
    let next = stage.rig.dial(&destination);
    drop(stage.accepted(tenant));
    drop((peer, next));
}

/// Row 4.9: a pause that is taken back before anybody could carry it out is answered all the same, and
/// accepting goes on.
pub fn a_pause_taken_back_at_once_is_answered_and_accepting_goes_on<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (listener, destination) = stage.listen(Place::V4);
    for round in 0..2 {
        stage.expect_silence();
        stage.driver.pause_accept(listener);
        stage.driver.accept(listener);
        if round == 1 {
            // Also when it is the second one.
            stage.driver.pause_accept(listener);
            stage.driver.accept(listener);
        }
        stage.expect(News::AcceptStopped(listener, false, 0));
        let peer = stage.rig.dial(&destination);
        drop(stage.accepted(listener));
        drop(peer);
    }
    stage.driver.pause_accept(listener);
    stage.expect(News::AcceptStopped(listener, false, 0));
    let waiting = stage.rig.dial(&destination);
    stage.expect_silence();
    drop(waiting);
}

/// Row 4.9: accepting that is paused before anybody could begin is answered as if it had begun.
pub fn accepting_paused_at_once_is_answered<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (socket, destination) = stage.rig.listener(Place::V4);
    let listener = stage.token();
    stage.driver.listen(listener, socket).expect("listen");
    stage.driver.accept(listener);
    stage.driver.pause_accept(listener);
    stage.expect(News::AcceptStopped(listener, false, 0));
    let waiting = stage.rig.dial(&destination);
    stage.expect_silence();
    stage.driver.accept(listener);
    drop(stage.accepted(listener));
    drop(waiting);
}

/// Row 4.37: who waits at a listener that accepts no more can be let in before it is closed.
pub fn who_waits_can_be_accepted_at_once<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (listener, destination) = stage.listen(Place::V4);
    stage.driver.pause_accept(listener);
    stage.expect(News::AcceptStopped(listener, false, 0));
    assert!(stage.driver.accept_now(listener).expect("it can accept").is_none(), "nobody waits");
    let mut peer = stage.rig.dial(&destination);
    let socket = loop {
        match stage.driver.accept_now(listener).expect("it can accept") {
            Some(socket) => break socket,
            None => stage.pass(),
        }
    };
    stage.driver.close(listener);
    let token = stage.attach(socket, Kind::Stream);
    stage.expect(News::Closed(listener));
    stage.driver.receive(token);
    stage.peer_writes(&mut peer, b"question");
    stage.expect(News::Received(token, b"question".to_vec()));
    stage.send_whole(token, b"answer");
    stage.expect_at_peer(&mut peer, b"answer");
}

/// Row 3.27: a client can be turned away without a slot for it; nobody else is harmed.
pub fn the_oldest_waiting_client_can_be_refused<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (socket, destination) = stage.rig.listener(Place::V4);
    let listener = stage.token();
    stage.driver.listen(listener, socket).expect("listen");
    assert!(!stage.driver.refuse_one(listener), "nobody waits");
    let mut oldest = stage.rig.dial(&destination);
    let mut next = stage.rig.dial(&destination);
    assert!(stage.driver.refuse_one(listener));
    // An end or a reset: the client has said nothing that could have been lost.
    let end = stage.peer_reads(&mut oldest).unwrap_or_default();
    assert_eq!(end, b"");
    stage.driver.accept(listener);
    let socket = stage.accepted(listener);
    let token = stage.attach(socket, Kind::Stream);
    stage.peer_writes(&mut next, b"here");
    assert_eq!(stage.receive(token), News::Received(token, b"here".to_vec()));
    assert!(!stage.driver.refuse_one(listener), "nobody waits any more");
}
