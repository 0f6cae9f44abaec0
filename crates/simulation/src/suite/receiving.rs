//! Contract tests for receiving.

use std::io;

use stilling_engine::Token;
use stilling_engine::driver::{BufferId, Driver, DriverEvent, SourceKind};
use stilling_engine::limits::{RECEIVE_BUFFER_SIZE, RECEIVE_BUFFERS};

use super::{AddressKind, DriverFixture, DriverRig, ObservedEvent, Peer, pattern};

/// The two ways to wait for input.
fn both_ways<R: DriverRig>() -> [fn(&mut R::Driver, Token); 2] {
    [R::Driver::receive, R::Driver::await_readable]
}

/// Row 4.33: a request that arrives byte by byte.
pub fn a_request_split_at_every_byte_arrives_in_order<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    let request = b"GET /test/fast HTTP/1.1\r\n\r\n";
    for byte in request {
        fixture.driver.receive(token);
        fixture.peer_writes(&mut peer, &[*byte]);
        fixture.expect(ObservedEvent::Received(token, vec![*byte]));
    }
    fixture.expect_silence();
}

/// Row 4.33: input longer than a buffer arrives in several buffers.
pub fn input_longer_than_a_buffer_arrives_whole<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    for len in
        [RECEIVE_BUFFER_SIZE - 1, RECEIVE_BUFFER_SIZE, RECEIVE_BUFFER_SIZE + 1, 5 * RECEIVE_BUFFER_SIZE]
    {
        let bytes: Vec<u8> = (0..len).map(pattern).collect();
        fixture.peer_writes(&mut peer, &bytes);
        assert!(fixture.receive_bytes(token, len) == bytes, "{len} bytes arrived changed");
    }
    fixture.driver.receive(token);
    fixture.expect_silence();
    fixture.peer_writes(&mut peer, b"more");
    fixture.expect(ObservedEvent::Received(token, b"more".to_vec()));
}

/// Row 4.34: bytes and the end that arrive together are reported in this order, also after a full buffer.
pub fn the_end_of_a_stream_comes_after_its_last_byte<R: DriverRig>() {
    for len in [0, 1, RECEIVE_BUFFER_SIZE] {
        let mut fixture = DriverFixture::<R>::new();
        let (token, mut peer) = fixture.connection();
        let bytes: Vec<u8> = (0..len).map(pattern).collect();
        fixture.peer_writes(&mut peer, &bytes);
        peer.shutdown();
        assert_eq!(fixture.receive_bytes(token, len), bytes);
        assert_eq!(fixture.receive(token), ObservedEvent::Ended(token));
        fixture.expect_silence();
    }
}

/// Row 4.33: a client that closes its sending side gets its answer.
pub fn a_half_closed_peer_is_still_answered<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    fixture.driver.receive(token);
    fixture.expect_silence();
    fixture.peer_writes(&mut peer, b"last words");
    peer.shutdown();
    fixture.expect(ObservedEvent::Received(token, b"last words".to_vec()));
    assert_eq!(fixture.receive(token), ObservedEvent::Ended(token));
    fixture.send_whole(token, b"answer");
    fixture.expect_at_peer(&mut peer, b"answer");
    assert!(fixture.send(token, b"and close", true).is_none());
    fixture.expect(ObservedEvent::Closed(token));
    fixture.expect_at_peer(&mut peer, b"and close");
}

/// Row 4.34: reset while a receive is armed.
pub fn a_reset_fails_an_armed_receive<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, peer) = fixture.connection();
    fixture.driver.receive(token);
    fixture.expect_silence();
    peer.reset();
    fixture.expect(ObservedEvent::Failed(token, io::ErrorKind::ConnectionReset));
    fixture.driver.close(token);
    fixture.expect(ObservedEvent::Closed(token));
    assert_eq!(fixture.driver.buffers_lent(), 0);
}

/// Row 4.34: reset while waiting in `await_readable`.
pub fn a_reset_wakes_an_armed_readable<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, peer) = fixture.connection();
    fixture.driver.await_readable(token);
    fixture.expect_silence();
    peer.reset();
    fixture.expect(ObservedEvent::Readable(token));
    let error = fixture.driver.recv_now(token, &mut [0; 8]).expect_err("it was reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

/// Row 4.34: reset while a send is blocked.
pub fn a_reset_wakes_an_armed_writable<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, peer) = fixture.connection();
    fixture.fill_up(token, 0);
    peer.reset();
    fixture.expect(ObservedEvent::Writable(token));
    let stop = fixture.send(token, b"x", false).expect("the peer is gone");
    assert!(stop.error.is_some() && stop.sent == 0, "{stop:?}");
}

/// Row 4.34: reset of a connection with nothing armed.
pub fn a_reset_while_nothing_is_armed_fails_the_next_receive<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, peer) = fixture.connection();
    peer.reset();
    fixture.expect_silence();
    assert_eq!(fixture.receive(token), ObservedEvent::Failed(token, io::ErrorKind::ConnectionReset));
}

/// Row 4.34: reset after the end of the stream.
pub fn a_reset_after_the_end_fails_the_next_send<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    peer.shutdown();
    assert_eq!(fixture.receive(token), ObservedEvent::Ended(token));
    peer.reset();
    fixture.expect_silence();
    let stop = fixture.send(token, b"x", true).expect("the peer is gone");
    assert!(stop.error.is_some() && stop.sent == 0, "{stop:?}");
    fixture.expect_silence();
    fixture.driver.close(token);
    fixture.expect(ObservedEvent::Closed(token));
}

/// Row 0.9: a connection in `await_readable` owns no buffer and is read without blocking.
pub fn readable_consumes_no_byte_and_completes_once<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    let mut into = [0; 64];
    fixture.driver.await_readable(token);
    fixture.expect_silence();
    let error = fixture.driver.recv_now(token, &mut into).expect_err("nothing is there");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    for word in [&b"hello"[..], b"again"] {
        fixture.peer_writes(&mut peer, word);
        fixture.expect(ObservedEvent::Readable(token));
        assert_eq!(fixture.driver.buffers_lent(), 0);
        assert_eq!(fixture.driver.recv_now(token, &mut into).expect("it is readable"), word.len());
        assert_eq!(&into[..word.len()], word);
        fixture.expect_silence();
        fixture.driver.await_readable(token);
        fixture.expect_silence();
    }
    peer.shutdown();
    fixture.expect(ObservedEvent::Readable(token));
    assert_eq!(fixture.driver.recv_now(token, &mut into).expect("the end"), 0);
}

/// Row 0.9: `await_readable` after all bytes were read waits for more.
pub fn readable_waits_when_everything_was_read<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    let bytes: Vec<u8> = (0..RECEIVE_BUFFER_SIZE).map(pattern).collect();
    fixture.peer_writes(&mut peer, &bytes);
    assert_eq!(fixture.receive_bytes(token, bytes.len()), bytes);
    fixture.driver.await_readable(token);
    fixture.expect_silence();
    fixture.peer_writes(&mut peer, b"x");
    fixture.expect(ObservedEvent::Readable(token));
    assert_eq!(fixture.receive(token), ObservedEvent::Received(token, b"x".to_vec()));
}

/// Row 4.39: the expectation of data may be wrong.
pub fn a_receive_waits_if_expected_data_is_missing<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (listener, destination) = fixture.listen(AddressKind::V4);
    for armed in both_ways::<R>() {
        let mut peer = fixture.rig.dial(&destination);
        let (socket, token) = (fixture.accepted(listener), fixture.token());
        fixture.driver.attach(token, socket, SourceKind::Stream, true).expect("attach");
        armed(&mut fixture.driver, token);
        fixture.expect_silence();
        fixture.peer_writes(&mut peer, b"late");
        match fixture.observed() {
            ObservedEvent::Readable(_) => assert_eq!(fixture.receive_bytes(token, 4), b"late"),
            observed => assert_eq!(observed, ObservedEvent::Received(token, b"late".to_vec())),
        }
    }
}

/// Row 4.34: the expectation of data (announced, or after a full buffer) may also be wrong after a wait for a buffer.
pub fn a_starved_receive_waits_if_expected_data_is_missing<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (holder, mut holder_peer) = fixture.connection();
    let (listener, destination) = fixture.listen(AddressKind::V4);
    let mut silent = fixture.rig.dial(&destination);
    let (socket, announced) = (fixture.accepted(listener), fixture.token());
    let (uploading, mut upload) = fixture.connection();
    let mut held = hold_all_buffers(&mut fixture, holder, &mut holder_peer);
    fixture.driver.attach(announced, socket, SourceKind::Stream, true).expect("attach");
    fixture.driver.receive(announced);
    fixture.expect_silence();
    fixture.driver.release(held.pop().expect("many are held"));
    fixture.expect_silence();
    fixture.peer_writes(&mut silent, b"late");
    fixture.expect(ObservedEvent::Received(announced, b"late".to_vec()));
    let bytes: Vec<u8> = (0..RECEIVE_BUFFER_SIZE).map(pattern).collect();
    fixture.peer_writes(&mut upload, &bytes);
    fixture.driver.receive(uploading);
    let full = match fixture.next_event() {
        DriverEvent::Received { token, buffer, len } if token == uploading && len as usize == bytes.len() => {
            buffer
        }
        event => panic!("expected a full buffer, got {event:?}"),
    };
    fixture.driver.receive(uploading);
    fixture.expect_silence();
    held.push(full);
    held.into_iter().for_each(|buffer| fixture.driver.release(buffer));
    fixture.expect_silence();
    fixture.peer_writes(&mut upload, b"more");
    fixture.expect(ObservedEvent::Received(uploading, b"more".to_vec()));
    assert_eq!(fixture.driver.buffers_lent(), 0);
}

/// Row 4.34: a receive waiting for a buffer can be cancelled without one.
pub fn a_starved_receive_can_be_cancelled<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (holder, mut holder_peer) = fixture.connection();
    let (token, mut peer) = fixture.connection();
    let held = hold_all_buffers(&mut fixture, holder, &mut holder_peer);
    fixture.peer_writes(&mut peer, b"kept");
    for _ in 0..2 {
        fixture.driver.receive(token);
        fixture.expect_silence();
        fixture.driver.cancel_receive(token);
        fixture.expect(ObservedEvent::ReceiveCancelled(token));
    }
    held.into_iter().for_each(|buffer| fixture.driver.release(buffer));
    fixture.expect_silence();
    assert_eq!(fixture.receive(token), ObservedEvent::Received(token, b"kept".to_vec()));
    assert_eq!(fixture.driver.buffers_lent(), 0);
}

/// Row 4.34: a receive cancelled while it waits and armed again completes once, and sources closed in between do not
/// block it.
pub fn a_starved_receive_armed_again_completes_once<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (holder, mut holder_peer) = fixture.connection();
    let (token, mut peer) = fixture.connection();
    let closed: Vec<_> = (0..3).map(|_| fixture.connection()).collect();
    let mut held = hold_all_buffers(&mut fixture, holder, &mut holder_peer);
    fixture.peer_writes(&mut peer, b"kept");
    for _ in 0..3 {
        fixture.driver.receive(token);
        fixture.expect_silence();
        fixture.driver.cancel_receive(token);
        fixture.expect(ObservedEvent::ReceiveCancelled(token));
    }
    for (token, _) in &closed {
        fixture.driver.receive(*token);
    }
    fixture.driver.receive(token);
    fixture.expect_silence();
    for (token, _) in &closed {
        fixture.driver.close(*token);
        fixture.expect(ObservedEvent::Closed(*token));
    }
    fixture.driver.release(held.pop().expect("many are held"));
    fixture.expect(ObservedEvent::Received(token, b"kept".to_vec()));
    fixture.expect_silence();
    held.into_iter().for_each(|buffer| fixture.driver.release(buffer));
    fixture.expect_silence();
    assert_eq!(fixture.driver.buffers_lent(), 0);
}

/// Row 4.34: a failure completes everything that is armed; nothing follows it.
pub fn a_failure_completes_all_armed_operations<R: DriverRig>() {
    for receive_first in [true, false] {
        let mut fixture = DriverFixture::<R>::new();
        let (token, peer) = fixture.connection();
        if receive_first {
            fixture.driver.receive(token);
        }
        fixture.fill_up(token, 0);
        if !receive_first {
            fixture.driver.receive(token);
            fixture.idle_turn();
        }
        peer.reset();
        match fixture.observed() {
            // `Writable` may come first; the failure then follows.
            ObservedEvent::Writable(of) if of == token => {
                fixture.expect(ObservedEvent::Failed(token, io::ErrorKind::ConnectionReset));
            }
            observed => assert_eq!(observed, ObservedEvent::Failed(token, io::ErrorKind::ConnectionReset)),
        }
        fixture.expect_silence();
        fixture.driver.close(token);
        fixture.expect(ObservedEvent::Closed(token));
        fixture.expect_silence();
    }
}

/// Row 4.34: an armed receive can be cancelled and armed again.
pub fn a_cancelled_receive_leaves_the_bytes_alone<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    for armed in both_ways::<R>() {
        armed(&mut fixture.driver, token);
        fixture.expect_silence();
        fixture.driver.cancel_receive(token);
        fixture.expect(ObservedEvent::ReceiveCancelled(token));
        fixture.peer_writes(&mut peer, b"kept");
        fixture.expect_silence();
        assert_eq!(fixture.receive_bytes(token, 4), b"kept");
    }
}

/// Row 4.34: whichever wins, there is one completion and the byte is not lost.
pub fn a_cancel_that_races_with_data_loses_nothing<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    for round in 0..20 {
        fixture.driver.receive(token);
        if round % 2 == 0 {
            fixture.idle_turn();
        }
        fixture.peer_writes(&mut peer, &[round]);
        fixture.driver.cancel_receive(token);
        match fixture.observed() {
            ObservedEvent::Received(_, bytes) => assert_eq!(bytes, [round]),
            observed => {
                assert_eq!(observed, ObservedEvent::ReceiveCancelled(token));
                assert_eq!(fixture.receive_bytes(token, 1), [round]);
            }
        }
        fixture.expect_silence();
    }
}

/// Row 4.34: a cancel without an armed receive has no effect.
pub fn a_cancel_without_anything_armed_is_silent<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    fixture.driver.cancel_receive(token);
    fixture.expect_silence();
    fixture.peer_writes(&mut peer, b"x");
    assert_eq!(fixture.receive(token), ObservedEvent::Received(token, b"x".to_vec()));
    fixture.driver.cancel_receive(token);
    fixture.expect_silence();
}

/// Keeps every receive buffer of the driver lent.
pub(super) fn hold_all_buffers<R: DriverRig>(
    fixture: &mut DriverFixture<R>,
    token: Token,
    peer: &mut R::Peer,
) -> Vec<BufferId> {
    let mut held = Vec::new();
    while held.len() < RECEIVE_BUFFERS as usize {
        fixture.peer_writes(peer, &[held.len() as u8]);
        fixture.driver.receive(token);
        match fixture.next_event() {
            DriverEvent::Received { buffer, len: 1, .. } => held.push(buffer),
            event => panic!("expected one byte, got {event:?}"),
        }
    }
    assert_eq!(fixture.driver.buffers_lent(), held.len());
    for (at, buffer) in held.iter().enumerate() {
        assert_eq!(fixture.driver.buffer(*buffer)[0], at as u8, "a lent buffer was written to");
    }
    held
}

/// Row 4.34: when all buffers are lent, receives wait, are counted, and continue; nothing is lost.
pub fn receives_without_a_buffer_wait_and_continue<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (holder, mut holder_peer) = fixture.connection();
    let mut waiting = [fixture.connection(), fixture.connection(), fixture.connection()];
    let mut held = hold_all_buffers(&mut fixture, holder, &mut holder_peer);
    for (token, peer) in &mut waiting {
        fixture.driver.receive(*token);
        fixture.peer_writes(peer, b"patient");
    }
    fixture.expect_silence();
    assert!(fixture.driver.counters().starved >= 1);
    let mut served = Vec::new();
    for released in 1..=2 {
        fixture.driver.release(held.pop().expect("many are held"));
        while served.len() < released {
            match fixture.next_event() {
                DriverEvent::Received { token, buffer, len: 7 } => {
                    assert_eq!(&fixture.driver.buffer(buffer)[..7], b"patient");
                    served.push((token, buffer));
                }
                event => panic!("expected the bytes that waited, got {event:?}"),
            }
        }
        fixture.expect_silence();
    }
    held.extend(served.iter().map(|(_, buffer)| *buffer));
    held.into_iter().for_each(|buffer| fixture.driver.release(buffer));
    let ObservedEvent::Received(last, _) = fixture.observed() else { panic!("the last one waits for ever") };
    let mut tokens: Vec<Token> = served.into_iter().map(|(token, _)| token).chain([last]).collect();
    tokens.sort();
    assert_eq!(tokens, waiting.each_ref().map(|(token, _)| *token));
    assert_eq!(fixture.driver.buffers_lent(), 0);
}

/// Rows 4.34, 4.40: many receives waiting for few buffers are each counted once, and all continue.
pub fn many_receives_share_few_buffers<R: DriverRig>() {
    const WAITING: usize = 60;
    let mut fixture = DriverFixture::<R>::new();
    let (holder, mut holder_peer) = fixture.connection();
    let mut waiting: Vec<_> = (0..WAITING).map(|_| fixture.connection()).collect();
    let mut held = hold_all_buffers(&mut fixture, holder, &mut holder_peer);
    let before = fixture.driver.counters().starved;
    for (number, (token, peer)) in waiting.iter_mut().enumerate() {
        fixture.driver.receive(*token);
        fixture.peer_writes(peer, &[number as u8]);
    }
    fixture.expect_silence();
    let mut served = [false; WAITING];
    fixture.driver.release(held.pop().expect("many are held"));
    for _ in 0..WAITING {
        // One buffer is free for all of them: each must be released before the next can be filled.
        let ObservedEvent::Received(token, bytes) = fixture.observed() else { panic!("bytes are waiting") };
        let number = usize::from(bytes[0]);
        assert_eq!(token, waiting[number].0);
        assert!(!std::mem::replace(&mut served[number], true), "receive {number} was answered twice");
    }
    fixture.expect_silence();
    assert_eq!(fixture.driver.counters().starved - before, WAITING as u64);
    held.into_iter().for_each(|buffer| fixture.driver.release(buffer));
    assert_eq!(fixture.driver.buffers_lent(), 0);
}
