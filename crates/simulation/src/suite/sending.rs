//! Promises about the writing side, and about wakes.

use stilling_engine::Token;
use stilling_engine::driver::{Driver, Gather, Kind, Outgoing, Wait};

use super::{News, Peer, Place, Rig, Stage, pattern};

/// Row 4.36: a send stops short, `writable` comes when the peer reads, every byte arrives in order.
pub fn a_peer_that_never_reads_stops_the_send<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    let (mut sent, mut read) = (0, 0);
    for _ in 0..3 {
        sent = stage.fill_up(token, sent);
        stage.peer_reads_until_news(&mut peer, |byte| {
            assert_eq!(byte, pattern(read), "byte {read}");
            read += 1;
        });
        stage.expect(News::Writable(token));
    }
    assert!(stage.send(token, b"", true).is_none());
    stage.expect(News::Closed(token));
    while read < sent {
        let bytes = stage.peer_reads(&mut peer).expect("the peer reads");
        assert!(!bytes.is_empty(), "the end came after {read} of {sent} bytes");
        for byte in bytes {
            assert_eq!(byte, pattern(read), "byte {read}");
            read += 1;
        }
    }
    assert_eq!(stage.peer_reads(&mut peer).expect("the end"), b"");
}

/// Row 4.36: a send with close that stops short leaves the connection open; the one that ends it
/// closes it behind the last byte.
pub fn closing_with_the_send_waits_for_all_bytes<R: Rig>() {
    close_behind_all_bytes::<R>(|_, _| {});
    // Something armed for reading must not be in the way of the close.
    close_behind_all_bytes::<R>(R::Driver::receive);
}

fn close_behind_all_bytes<R: Rig>(arm: fn(&mut R::Driver, Token)) {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    arm(&mut stage.driver, token);
    let bytes: Vec<u8> = (0..1 << 20).map(pattern).collect();
    let (mut sent, mut read, mut stops) = (0, Vec::new(), 0);
    while let Some(stop) = stage.send(token, &bytes[sent..], true) {
        assert!(stop.error.is_none(), "{stop:?}");
        assert!(stage.events.is_empty(), "{:?} although it stopped short", stage.events);
        (sent, stops) = (sent + stop.sent as usize, stops + 1);
        stage.driver.writable(token);
        stage.peer_reads_until_news(&mut peer, |byte| read.push(byte));
        stage.expect(News::Writable(token));
    }
    assert!(stops > 0, "the send never stopped, so nothing was tested");
    stage.expect(News::Closed(token));
    while read.len() < bytes.len() {
        let more = stage.peer_reads(&mut peer).expect("the peer reads");
        assert!(!more.is_empty(), "the end came after {} bytes", read.len());
        read.extend(more);
    }
    assert!(read == bytes, "the bytes arrived changed");
    assert_eq!(stage.peer_reads(&mut peer).expect("the end"), b"");
    stage.expect_silence();
}

/// Row 4.36: nothing to send is sent at once.
pub fn an_empty_send_with_close_closes<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    assert!(stage.send(token, b"", true).is_none());
    stage.expect(News::Closed(token));
    assert_eq!(stage.peer_reads(&mut peer).expect("the end"), b"");
    stage.expect_silence();
}

/// Row 5.1: one turn carries the receives, and one the answers, of many connections.
pub fn many_sources_in_one_turn<R: Rig>() {
    const CONNECTIONS: usize = 100;
    let mut stage = Stage::<R>::new();
    let (listener, destination) = stage.listen(Place::V4);
    let mut peers = Vec::new();
    let mut tokens = Vec::new();
    for at in 0..CONNECTIONS {
        let mut peer = stage.rig.dial(&destination);
        let socket = stage.accepted(listener);
        tokens.push(stage.attach(socket, Kind::Stream));
        stage.peer_writes(&mut peer, &[at as u8; 10]);
        peers.push(peer);
    }
    for token in &tokens {
        stage.driver.receive(*token);
    }
    let mut heard = [false; CONNECTIONS];
    for _ in 0..CONNECTIONS {
        let News::Received(token, bytes) = stage.news() else { panic!("expected bytes") };
        let at = tokens.iter().position(|known| *known == token).expect("a known token");
        assert_eq!(bytes, [at as u8; 10]);
        assert!(!std::mem::replace(&mut heard[at], true), "connection {at} was heard twice");
    }
    let answers: Vec<_> = (0..CONNECTIONS).map(|at| [at as u8; 20]).collect();
    let outgoing: Vec<_> = std::iter::zip(&tokens, &answers)
        .map(|(token, bytes)| Outgoing::stream(*token, Gather::One(bytes), true))
        .collect();
    let stops = stage.turn(Wait::No, &outgoing);
    assert!(stops.is_empty(), "{stops:?}");
    for (peer, answer) in std::iter::zip(&mut peers, &answers) {
        stage.expect_at_peer(peer, answer);
        assert_eq!(stage.peer_reads(peer).expect("the end"), b"");
    }
    let mut closed: Vec<_> = tokens.iter().map(|_| stage.news()).collect();
    closed.sort_by_key(|news| match news {
        News::Closed(token) => *token,
        news => panic!("expected Closed, got {news:?}"),
    });
    assert_eq!(closed, tokens.into_iter().map(News::Closed).collect::<Vec<_>>());
}

/// Row 4.33: after our end the peer can still be heard.
pub fn shutdown_ends_our_direction_only<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    stage.send_whole(token, b"that is all");
    stage.driver.receive(token);
    stage.driver.shutdown(token);
    stage.expect_silence();
    stage.expect_at_peer(&mut peer, b"that is all");
    assert_eq!(stage.peer_reads(&mut peer).expect("the end"), b"");
    stage.peer_writes(&mut peer, b"I see");
    stage.expect(News::Received(token, b"I see".to_vec()));
    peer.shutdown();
    assert_eq!(stage.receive(token), News::Ended(token));
}

/// Row 5.1: wakes are not counted, but never lost.
pub fn several_wakes_before_a_turn_are_one<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let wake = stage.driver.wake_handle();
    for _ in 0..3 {
        wake.wake();
        wake.clone().wake();
        stage.expect(News::Woken);
        stage.expect_silence();
    }
}
