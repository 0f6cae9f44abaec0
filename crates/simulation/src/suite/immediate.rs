//! Contract tests for operations that take effect between turns.

use std::io;

use stilling_engine::driver::Driver;

use super::{DriverFixture, DriverRig, ObservedEvent, Peer, pattern};

/// Row 3.12: bytes sent at once and bytes of a turn arrive in the order of the calls.
pub fn an_immediate_send_keeps_the_order<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    for round in 0..3 {
        assert_eq!(fixture.driver.send_now(token, b"now").expect("there is room"), 3);
        if round == 1 {
            fixture.driver.await_readable(token);
        }
        fixture.send_whole(token, b"later");
        assert_eq!(fixture.driver.send_now(token, b"again").expect("there is room"), 5);
        assert_eq!(fixture.driver.send_now(token, b"").expect("nothing is to be sent"), 0);
        fixture.expect_at_peer(&mut peer, b"nowlateragain");
    }
    fixture.expect_silence();
}

/// Row 4.36: immediate sends stop short, then accept nothing, until the peer reads.
pub fn immediate_sends_stop_and_continue_when_writable<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    let (mut sent, mut read) = (0, 0);
    for _ in 0..3 {
        sent = fill_up_now(&mut fixture, token, sent);
        fixture.peer_reads_until_event(&mut peer, |byte| {
            assert_eq!(byte, pattern(read), "byte {read}");
            read += 1;
        });
        fixture.expect(ObservedEvent::Writable(token));
    }
    fixture.driver.close(token);
    fixture.expect(ObservedEvent::Closed(token));
    while read < sent {
        for byte in fixture.peer_reads(&mut peer).expect("the peer reads") {
            assert_eq!(byte, pattern(read), "byte {read}");
            read += 1;
        }
    }
    assert_eq!(fixture.peer_reads(&mut peer).expect("the end"), b"");
}

/// Sends the suite's pattern from `sent` on until the connection stays blocked, and leaves `await_writable` armed.
fn fill_up_now<R: DriverRig>(
    fixture: &mut DriverFixture<R>,
    token: stilling_engine::Token,
    mut sent: usize,
) -> usize {
    loop {
        let bytes: Vec<u8> = (sent..sent + 64 * 1024).map(pattern).collect();
        match fixture.driver.send_now(token, &bytes) {
            Ok(count) => sent += count,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                fixture.driver.await_writable(token);
                for _ in 0..20 {
                    if fixture.events.is_empty() {
                        fixture.idle_turn();
                    }
                }
                if fixture.events.is_empty() {
                    return sent;
                }
                fixture.expect(ObservedEvent::Writable(token));
            }
        }
    }
}

/// Row 4.34: an immediate send returns the error of a dead connection, and reports no event.
pub fn an_immediate_send_to_a_reset_peer_fails<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, peer) = fixture.connection();
    peer.reset();
    fixture.expect_silence();
    let error = fixture.driver.send_now(token, b"x").expect_err("the peer is gone");
    assert!(matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe), "{error}");
    fixture.expect_silence();
    fixture.driver.close(token);
    fixture.expect(ObservedEvent::Closed(token));
}

/// Row 3.32: `await_readable` and `await_writable` armed at once complete independently.
pub fn both_waits_complete_independently<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (socket, mut peer) = fixture.rig.pair();
    let token = fixture.attach(socket, stilling_engine::driver::SourceKind::Stream);
    let sent = fill_up_now(&mut fixture, token, 0);
    fixture.driver.await_readable(token);
    fixture.expect_silence();
    fixture.peer_writes(&mut peer, b"x");
    fixture.expect(ObservedEvent::Readable(token));
    fixture.expect_silence();
    let bytes: Vec<u8> = (0..sent).map(pattern).collect();
    fixture.driver.recv_now(token, &mut [0; 4]).expect("a byte is there");
    fixture.driver.await_readable(token);
    fixture.expect_at_peer(&mut peer, &bytes);
    fixture.expect(ObservedEvent::Writable(token));
    fixture.expect_silence();
    fixture.driver.close(token);
    fixture.expect(ObservedEvent::Closed(token));
}

/// Row 3.32: the check for input consumes neither bytes, nor the end, nor a failure.
pub fn a_check_for_input_consumes_nothing<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (token, mut peer) = fixture.connection();
    let mut into = [0; 8];
    assert!(!fixture.driver.is_readable(token));
    fixture.peer_writes(&mut peer, b"abc");
    fixture.expect_silence();
    assert!(fixture.driver.is_readable(token) && fixture.driver.is_readable(token));
    assert_eq!(fixture.driver.recv_now(token, &mut into).expect("bytes are there"), 3);
    assert!(!fixture.driver.is_readable(token));
    peer.shutdown();
    fixture.expect_silence();
    assert!(fixture.driver.is_readable(token));
    assert_eq!(fixture.driver.recv_now(token, &mut into).expect("the end"), 0);
    peer.reset();
    let (token, peer) = fixture.connection();
    peer.reset();
    fixture.expect_silence();
    assert!(fixture.driver.is_readable(token) && fixture.driver.is_readable(token));
    let error = fixture.driver.recv_now(token, &mut into).expect_err("it was reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}
