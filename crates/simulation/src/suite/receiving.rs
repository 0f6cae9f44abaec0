//! Promises about the reading side.

use std::io;

use stilling_engine::Token;
use stilling_engine::driver::{BufferId, Driver, Event, Kind};
use stilling_engine::limits::{RECEIVE_BUFFER_SIZE, RECEIVE_BUFFERS};

use super::{News, Peer, Place, Rig, Stage, pattern};

/// The two ways to wait for input.
fn both_ways<R: Rig>() -> [fn(&mut R::Driver, Token); 2] {
    [R::Driver::receive, R::Driver::readable]
}

/// Row 4.33: a request that comes byte by byte.
pub fn a_request_split_at_every_byte_arrives_in_order<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    let request = b"GET /test/fast HTTP/1.1\r\n\r\n";
    for byte in request {
        stage.driver.receive(token);
        stage.peer_writes(&mut peer, &[*byte]);
        stage.expect(News::Received(token, vec![*byte]));
    }
    stage.expect_silence();
}

/// Row 4.33: what is longer than a buffer comes in several.
pub fn a_full_buffer_is_not_the_end_of_what_is_there<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    for len in
        [RECEIVE_BUFFER_SIZE - 1, RECEIVE_BUFFER_SIZE, RECEIVE_BUFFER_SIZE + 1, 5 * RECEIVE_BUFFER_SIZE]
    {
        let bytes: Vec<u8> = (0..len).map(pattern).collect();
        stage.peer_writes(&mut peer, &bytes);
        assert!(stage.receive_bytes(token, len) == bytes, "{len} bytes arrived changed");
    }
    stage.driver.receive(token);
    stage.expect_silence();
    stage.peer_writes(&mut peer, b"more");
    stage.expect(News::Received(token, b"more".to_vec()));
}

/// Row 4.34: bytes and the end that came together are told in this order, also after a full buffer.
pub fn the_end_of_a_stream_comes_after_its_last_byte<R: Rig>() {
    for len in [0, 1, RECEIVE_BUFFER_SIZE] {
        let mut stage = Stage::<R>::new();
        let (token, mut peer) = stage.connection();
        let bytes: Vec<u8> = (0..len).map(pattern).collect();
        stage.peer_writes(&mut peer, &bytes);
        peer.shutdown();
        assert_eq!(stage.receive_bytes(token, len), bytes);
        assert_eq!(stage.receive(token), News::Ended(token));
        stage.expect_silence();
    }
}

/// Row 4.33: a client that closes its sending side gets its answer.
pub fn a_half_closed_peer_is_still_answered<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    stage.driver.receive(token);
    stage.expect_silence();
    stage.peer_writes(&mut peer, b"last words");
    peer.shutdown();
    stage.expect(News::Received(token, b"last words".to_vec()));
    assert_eq!(stage.receive(token), News::Ended(token));
    stage.send_whole(token, b"answer");
    stage.expect_at_peer(&mut peer, b"answer");
    assert!(stage.send(token, b"and close", true).is_none());
    stage.expect(News::Closed(token));
    stage.expect_at_peer(&mut peer, b"and close");
}

/// Row 4.34: reset while a receive is armed.
pub fn a_reset_fails_an_armed_receive<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, peer) = stage.connection();
    stage.driver.receive(token);
    stage.expect_silence();
    peer.reset();
    stage.expect(News::Failed(token, io::ErrorKind::ConnectionReset));
    stage.driver.close(token);
    stage.expect(News::Closed(token));
    assert_eq!(stage.driver.buffers_lent(), 0);
}

/// Row 4.34: reset while parked on `readable`.
pub fn a_reset_wakes_an_armed_readable<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, peer) = stage.connection();
    stage.driver.readable(token);
    stage.expect_silence();
    peer.reset();
    stage.expect(News::Readable(token));
    let error = stage.driver.recv_now(token, &mut [0; 8]).expect_err("it was reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

/// Row 4.34: reset while a send is blocked.
pub fn a_reset_wakes_an_armed_writable<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, peer) = stage.connection();
    stage.fill_up(token, 0);
    peer.reset();
    stage.expect(News::Writable(token));
    let stop = stage.send(token, b"x", false).expect("nobody takes it");
    assert!(stop.error.is_some() && stop.sent == 0, "{stop:?}");
}

/// Row 4.34: reset of a connection that nobody is listening to.
pub fn a_reset_while_nothing_is_armed_fails_the_next_receive<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, peer) = stage.connection();
    peer.reset();
    stage.expect_silence();
    assert_eq!(stage.receive(token), News::Failed(token, io::ErrorKind::ConnectionReset));
}

/// Row 4.34: reset after the end of the stream.
pub fn a_reset_after_the_end_shows_in_the_next_send<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    peer.shutdown();
    assert_eq!(stage.receive(token), News::Ended(token));
    peer.reset();
    stage.expect_silence();
    let stop = stage.send(token, b"x", true).expect("nobody takes it");
    assert!(stop.error.is_some() && stop.sent == 0, "{stop:?}");
    stage.expect_silence();
    stage.driver.close(token);
    stage.expect(News::Closed(token));
}

/// Row 0.9: a parked connection owns no buffer and is read without blocking.
pub fn readable_takes_no_byte_and_tells_once<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    let mut into = [0; 64];
    stage.driver.readable(token);
    stage.expect_silence();
    let error = stage.driver.recv_now(token, &mut into).expect_err("nothing is there");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    for word in [&b"hello"[..], b"again"] {
        stage.peer_writes(&mut peer, word);
        stage.expect(News::Readable(token));
        assert_eq!(stage.driver.buffers_lent(), 0);
        assert_eq!(stage.driver.recv_now(token, &mut into).expect("it is readable"), word.len());
        assert_eq!(&into[..word.len()], word);
        stage.expect_silence();
        stage.driver.readable(token);
        stage.expect_silence();
    }
    peer.shutdown();
    stage.expect(News::Readable(token));
    assert_eq!(stage.driver.recv_now(token, &mut into).expect("the end"), 0);
}

/// Row 0.9: `readable` after everything was taken waits for more.
pub fn readable_is_not_told_when_everything_was_taken<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    let bytes: Vec<u8> = (0..RECEIVE_BUFFER_SIZE).map(pattern).collect();
    stage.peer_writes(&mut peer, &bytes);
    assert_eq!(stage.receive_bytes(token, bytes.len()), bytes);
    stage.driver.readable(token);
    stage.expect_silence();
    stage.peer_writes(&mut peer, b"x");
    stage.expect(News::Readable(token));
    assert_eq!(stage.receive(token), News::Received(token, b"x".to_vec()));
}

/// Row 4.39: the expectation that data is there may be wrong.
pub fn data_expected_in_vain_is_waited_for<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (listener, destination) = stage.listen(Place::V4);
    for armed in both_ways::<R>() {
        let mut peer = stage.rig.dial(&destination);
        let (socket, token) = (stage.accepted(listener), stage.token());
        stage.driver.attach(token, socket, Kind::Stream, true).expect("attach");
        armed(&mut stage.driver, token);
        stage.expect_silence();
        stage.peer_writes(&mut peer, b"late");
        match stage.news() {
            News::Readable(_) => assert_eq!(stage.receive_bytes(token, 4), b"late"),
            news => assert_eq!(news, News::Received(token, b"late".to_vec())),
        }
    }
}

/// Row 4.34: the expectation may also turn out to be wrong after a wait for a buffer: that somebody
/// announced data, or that a full buffer was not all there was.
pub fn data_expected_in_vain_while_starved_is_waited_for<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (keeper, mut keeping) = stage.connection();
    let (listener, destination) = stage.listen(Place::V4);
    let mut silent = stage.rig.dial(&destination);
    let (socket, announced) = (stage.accepted(listener), stage.token());
    let (uploading, mut upload) = stage.connection();
    let mut kept = keep_all_buffers(&mut stage, keeper, &mut keeping);
    stage.driver.attach(announced, socket, Kind::Stream, true).expect("attach");
    stage.driver.receive(announced);
    stage.expect_silence();
    stage.driver.release(kept.pop().expect("many are kept"));
    stage.expect_silence();
    stage.peer_writes(&mut silent, b"late");
    stage.expect(News::Received(announced, b"late".to_vec()));
    let bytes: Vec<u8> = (0..RECEIVE_BUFFER_SIZE).map(pattern).collect();
    stage.peer_writes(&mut upload, &bytes);
    stage.driver.receive(uploading);
    let full = match stage.next_event() {
        Event::Received { token, buffer, len } if token == uploading && len as usize == bytes.len() => buffer,
        event => panic!("expected a full buffer, got {event:?}"),
    };
    stage.driver.receive(uploading);
    stage.expect_silence();
    kept.push(full);
    kept.into_iter().for_each(|buffer| stage.driver.release(buffer));
    stage.expect_silence();
    stage.peer_writes(&mut upload, b"more");
    stage.expect(News::Received(uploading, b"more".to_vec()));
    assert_eq!(stage.driver.buffers_lent(), 0);
}

/// Row 4.34: a receive that waits for a buffer can be taken back, without one.
pub fn a_starved_receive_can_be_cancelled<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (keeper, mut keeping) = stage.connection();
    let (token, mut peer) = stage.connection();
    let kept = keep_all_buffers(&mut stage, keeper, &mut keeping);
    stage.peer_writes(&mut peer, b"kept");
    for _ in 0..2 {
        stage.driver.receive(token);
        stage.expect_silence();
        stage.driver.cancel_receive(token);
        stage.expect(News::ReceiveCancelled(token));
    }
    kept.into_iter().for_each(|buffer| stage.driver.release(buffer));
    stage.expect_silence();
    assert_eq!(stage.receive(token), News::Received(token, b"kept".to_vec()));
    assert_eq!(stage.driver.buffers_lent(), 0);
}

/// Row 4.34: a receive that was taken back while it waited and asked for again is one receive, and those that are closed
/// meanwhile do not stand in the way.
pub fn a_starved_receive_that_is_asked_for_again_is_answered_once<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (keeper, mut keeping) = stage.connection();
    let (token, mut peer) = stage.connection();
    let closed: Vec<_> = (0..3).map(|_| stage.connection()).collect();
    let mut kept = keep_all_buffers(&mut stage, keeper, &mut keeping);
    stage.peer_writes(&mut peer, b"kept");
    for _ in 0..3 {
        stage.driver.receive(token);
        stage.expect_silence();
        stage.driver.cancel_receive(token);
        stage.expect(News::ReceiveCancelled(token));
    }
    for (token, _) in &closed {
        stage.driver.receive(*token);
    }
    stage.driver.receive(token);
    stage.expect_silence();
    for (token, _) in &closed {
        stage.driver.close(*token);
        stage.expect(News::Closed(*token));
    }
    stage.driver.release(kept.pop().expect("many are kept"));
    stage.expect(News::Received(token, b"kept".to_vec()));
    stage.expect_silence();
    kept.into_iter().for_each(|buffer| stage.driver.release(buffer));
    stage.expect_silence();
    assert_eq!(stage.driver.buffers_lent(), 0);
}

/// Row 4.34: whoever has failed has nothing more to say, whatever else was armed.
pub fn a_failure_answers_everything_that_is_armed<R: Rig>() {
    for receive_first in [true, false] {
        let mut stage = Stage::<R>::new();
        let (token, peer) = stage.connection();
        if receive_first {
            stage.driver.receive(token);
        }
        stage.fill_up(token, 0);
        if !receive_first {
            stage.driver.receive(token);
            stage.pass();
        }
        peer.reset();
        match stage.news() {
            // It may be told first; then the failure is still to come.
            News::Writable(of) if of == token => {
                stage.expect(News::Failed(token, io::ErrorKind::ConnectionReset));
            }
            news => assert_eq!(news, News::Failed(token, io::ErrorKind::ConnectionReset)),
        }
        stage.expect_silence();
        stage.driver.close(token);
        stage.expect(News::Closed(token));
        stage.expect_silence();
    }
}

/// Row 4.34: what was armed can be taken back, and armed again.
pub fn a_cancelled_receive_leaves_the_bytes_alone<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    for armed in both_ways::<R>() {
        armed(&mut stage.driver, token);
        stage.expect_silence();
        stage.driver.cancel_receive(token);
        stage.expect(News::ReceiveCancelled(token));
        stage.peer_writes(&mut peer, b"kept");
        stage.expect_silence();
        assert_eq!(stage.receive_bytes(token, 4), b"kept");
    }
}

/// Row 4.34: whichever wins, there is one answer and the byte is not lost.
pub fn a_cancel_that_races_with_data_loses_nothing<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    for round in 0..20 {
        stage.driver.receive(token);
        if round % 2 == 0 {
            stage.pass();
        }
        stage.peer_writes(&mut peer, &[round]);
        stage.driver.cancel_receive(token);
        match stage.news() {
            News::Received(_, bytes) => assert_eq!(bytes, [round]),
            news => {
                assert_eq!(news, News::ReceiveCancelled(token));
                assert_eq!(stage.receive_bytes(token, 1), [round]);
            }
        }
        stage.expect_silence();
    }
}

/// Row 4.34: taking back nothing is nothing.
pub fn a_cancel_without_anything_armed_is_silent<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (token, mut peer) = stage.connection();
    stage.driver.cancel_receive(token);
    stage.expect_silence();
    stage.peer_writes(&mut peer, b"x");
    assert_eq!(stage.receive(token), News::Received(token, b"x".to_vec()));
    stage.driver.cancel_receive(token);
    stage.expect_silence();
}

/// Keeps every receive buffer of the driver lent.
pub(super) fn keep_all_buffers<R: Rig>(
    stage: &mut Stage<R>,
    token: Token,
    peer: &mut R::Peer,
) -> Vec<BufferId> {
    let mut kept = Vec::new();
    while kept.len() < RECEIVE_BUFFERS as usize {
        stage.peer_writes(peer, &[kept.len() as u8]);
        stage.driver.receive(token);
        match stage.next_event() {
            Event::Received { buffer, len: 1, .. } => kept.push(buffer),
            event => panic!("expected one byte, got {event:?}"),
        }
    }
    assert_eq!(stage.driver.buffers_lent(), kept.len());
    for (at, buffer) in kept.iter().enumerate() {
        assert_eq!(stage.driver.buffer(*buffer)[0], at as u8, "a lent buffer was written to");
    }
    kept
}

/// Row 4.34: when all buffers are lent, receives wait, are counted, and go on; nothing is lost.
pub fn receives_without_a_buffer_wait_and_go_on<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (keeper, mut keeping) = stage.connection();
    let mut waiting = [stage.connection(), stage.connection(), stage.connection()];
    let mut kept = keep_all_buffers(&mut stage, keeper, &mut keeping);
    for (token, peer) in &mut waiting {
        stage.driver.receive(*token);
        stage.peer_writes(peer, b"patient");
    }
    stage.expect_silence();
    assert!(stage.driver.counters().starved >= 1);
    let mut served = Vec::new();
    for released in 1..=2 {
        stage.driver.release(kept.pop().expect("many are kept"));
        while served.len() < released {
            match stage.next_event() {
                Event::Received { token, buffer, len: 7 } => {
                    assert_eq!(&stage.driver.buffer(buffer)[..7], b"patient");
                    served.push((token, buffer));
                }
                event => panic!("expected the bytes that waited, got {event:?}"),
            }
        }
        stage.expect_silence();
    }
    kept.extend(served.iter().map(|(_, buffer)| *buffer));
    kept.into_iter().for_each(|buffer| stage.driver.release(buffer));
    let News::Received(last, _) = stage.news() else { panic!("the last one waits for ever") };
    let mut tokens: Vec<Token> = served.into_iter().map(|(token, _)| token).chain([last]).collect();
    tokens.sort();
    assert_eq!(tokens, waiting.each_ref().map(|(token, _)| *token));
    assert_eq!(stage.driver.buffers_lent(), 0);
}

/// Rows 4.34, 4.40: many receives that wait for few buffers are each counted once, and all go on.
pub fn many_receives_share_few_buffers<R: Rig>() {
    const WAITING: usize = 60;
    let mut stage = Stage::<R>::new();
    let (keeper, mut keeping) = stage.connection();
    let mut waiting: Vec<_> = (0..WAITING).map(|_| stage.connection()).collect();
    let mut kept = keep_all_buffers(&mut stage, keeper, &mut keeping);
    let before = stage.driver.counters().starved;
    for (number, (token, peer)) in waiting.iter_mut().enumerate() {
        stage.driver.receive(*token);
        stage.peer_writes(peer, &[number as u8]);
    }
    stage.expect_silence();
    let mut served = [false; WAITING];
    stage.driver.release(kept.pop().expect("many are kept"));
    for _ in 0..WAITING {
        // With one buffer for all of them: each has to be given back before the next can be filled.
        let News::Received(token, bytes) = stage.news() else { panic!("bytes are waiting") };
        let number = usize::from(bytes[0]);
        assert_eq!(token, waiting[number].0);
        assert!(!std::mem::replace(&mut served[number], true), "receive {number} was answered twice");
    }
    stage.expect_silence();
    assert_eq!(stage.driver.counters().starved - before, WAITING as u64);
    kept.into_iter().for_each(|buffer| stage.driver.release(buffer));
    assert_eq!(stage.driver.buffers_lent(), 0);
}
