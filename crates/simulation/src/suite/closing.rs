//! Promises about the end of a source and the next tenant of its slot.

use stilling_engine::Token;
use stilling_engine::driver::{Driver, Event, Kind};

use super::receiving::keep_all_buffers;
use super::{News, Peer, Place, Rig, Stage};

/// Closes `token`, demands one `Closed` and nothing else, then puts another connection into its slot
/// and demands that it hears only its own news.
fn close_and_reuse<R: Rig>(stage: &mut Stage<R>, token: Token) {
    stage.driver.close(token);
    stage.expect(News::Closed(token));
    stage.expect_silence();
    let tenant = Token::new(token.index(), token.generation() + 1);
    let (socket, mut peer) = stage.rig.pair();
    stage.driver.attach(tenant, socket.into(), Kind::Stream, false).expect("attach in the same slot");
    stage.expect_silence();
    stage.driver.receive(tenant);
    stage.expect_silence();
    stage.peer_writes(&mut peer, b"mine");
    stage.expect(News::Received(tenant, b"mine".to_vec()));
    stage.driver.close(tenant);
    stage.expect(News::Closed(tenant));
}

/// Row 4.34: close while a receive is armed.
pub fn close_takes_back_a_receive<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, _peer) = stage.connection();
    stage.driver.receive(token);
    stage.expect_silence();
    close_and_reuse(&mut stage, token);
    let (token, _peer) = stage.connection();
    stage.driver.receive(token);
    close_and_reuse(&mut stage, token);
}

/// Row 4.34: close while parked on `readable`.
pub fn close_takes_back_a_readable<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, _peer) = stage.connection();
    stage.driver.readable(token);
    stage.expect_silence();
    close_and_reuse(&mut stage, token);
}

/// Row 4.34: close while a send is blocked, with a receive armed as well.
pub fn close_takes_back_a_writable<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, _peer) = stage.connection();
    stage.driver.receive(token);
    stage.fill_up(token, 0);
    close_and_reuse(&mut stage, token);
}

/// Row 4.34: close while a connect is under way.
pub fn close_takes_back_a_connect<R: Rig>() {
    let mut stage = Stage::<R>::new();
    for place in [Place::V4, Place::Unix] {
        let (_listener, destination) = stage.rig.peer_listener(place);
        let token = stage.token();
        stage.driver.connect(token, &destination).expect("a socket");
        close_and_reuse(&mut stage, token);
        let (token, vacant) = (stage.token(), stage.rig.vacant(place));
        stage.driver.connect(token, &vacant).expect("a socket");
        close_and_reuse(&mut stage, token);
    }
}

/// Row 4.34: bytes, an end or a reset that wait for a closed source are nobody's.
pub fn close_while_news_is_waiting_hides_the_news<R: Rig>() {
    let mut stage = Stage::<R>::new();
    for end in 0..3 {
        let (token, mut peer) = stage.connection();
        stage.driver.receive(token);
        stage.expect_silence();
        match end {
            0 => stage.peer_writes(&mut peer, b"too late"),
            1 => drop(peer),
            _ => peer.reset(),
        }
        close_and_reuse(&mut stage, token);
        assert_eq!(stage.driver.buffers_lent(), 0);
    }
}

/// Row 4.34: a receive that waits for a buffer is forgotten with its source.
pub fn a_starved_receive_can_be_closed<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (keeper, mut keeping) = stage.connection();
    let (token, mut peer) = stage.connection();
    let kept = keep_all_buffers(&mut stage, keeper, &mut keeping);
    stage.driver.receive(token);
    stage.peer_writes(&mut peer, b"never seen");
    stage.expect_silence();
    stage.driver.close(token);
    stage.expect(News::Closed(token));
    kept.into_iter().for_each(|buffer| stage.driver.release(buffer));
    stage.expect_silence();
    assert_eq!(stage.driver.buffers_lent(), 0);
}

/// Row 4.34: a source that is closed right after the end of its direction does not take its successor along.
pub fn a_shutdown_does_not_reach_the_next_tenant<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (listener, destination) = stage.listen(Place::V4);
    for _ in 0..50 {
        let mut peer = stage.rig.dial(&destination);
        let socket = stage.accepted(listener);
        let former = stage.attach(socket, Kind::Stream);
        stage.driver.shutdown(former);
        stage.driver.close(former);
        let mut next_peer = stage.rig.dial(&destination);
        let (mut socket, mut closed) = (None, false);
        while socket.is_none() || !closed {
            match stage.next_event() {
                Event::Accepted { socket: next, .. } => socket = Some(next),
                Event::Closed { token } if token == former => closed = true,
                event => panic!("unexpected: {event:?}"),
            }
        }
        let tenant = stage.attach(socket.expect("it was accepted"), Kind::Stream);
        stage.send_whole(tenant, b"still open");
        stage.expect_at_peer(&mut next_peer, b"still open");
        assert_eq!(stage.peer_reads(&mut peer).expect("the end"), b"");
        stage.driver.close(tenant);
        stage.expect(News::Closed(tenant));
    }
}

/// Row 4.34: what was closed is closed even when no turn follows: the peer sees the end.
pub fn a_close_without_another_turn_reaches_the_peer<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    stage.driver.receive(token);
    stage.expect_silence();
    stage.driver.close(token);
    let Stage { driver, rig, .. } = stage;
    drop(driver);
    loop {
        match peer.read(&mut [0; 8]) {
            Ok(read) => break assert_eq!(read, 0),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        assert!(rig.is_patient(), "the peer never sees the end");
    }
}

/// Row 4.12: whether a peer is gone can be asked without receiving; one that has only ended its sending is not.
pub fn a_reset_shows_without_a_receive_and_an_end_does_not<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    stage.pass();
    assert!(!stage.driver.is_gone(token));
    peer.shutdown();
    stage.driver.readable(token);
    stage.expect(News::Readable(token));
    assert!(!stage.driver.is_gone(token) && !stage.driver.is_quiet(token));
    stage.driver.close(token);
    stage.expect(News::Closed(token));
    let (token, peer) = stage.connection();
    peer.reset();
    while !stage.driver.is_gone(token) {
        stage.pass();
    }
    stage.driver.close(token);
    stage.expect(News::Closed(token));
}

/// Row 4.12: whether bytes lie unread can be asked without taking them.
pub fn unread_bytes_show_without_being_taken<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    assert!(stage.driver.is_quiet(token));
    stage.peer_writes(&mut peer, b"here");
    while stage.driver.is_quiet(token) {
        stage.pass();
    }
    assert!(!stage.driver.is_gone(token));
    assert_eq!(stage.receive(token), News::Received(token, b"here".to_vec()));
    assert!(stage.driver.is_quiet(token));
}
