//! Contract tests for pipes, which connect worker processes.

use std::io;

use stilling_engine::driver::{Driver, SourceKind};
use stilling_engine::limits::RECEIVE_BUFFER_SIZE;

use super::{DriverFixture, DriverRig, ObservedEvent, pattern};

/// Row 5.1: a pipe is read to its end.
pub fn a_pipe_to_the_driver_ends_with_its_writer<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (socket, mut peer) = fixture.rig.pipe_to_driver();
    let token = fixture.attach(socket, SourceKind::Pipe);
    fixture.driver.receive(token);
    fixture.expect_silence();
    fixture.peer_writes(&mut peer, b"output");
    fixture.expect(ObservedEvent::Received(token, b"output".to_vec()));
    let bytes: Vec<u8> = (0..3 * RECEIVE_BUFFER_SIZE + 1).map(pattern).collect();
    fixture.peer_writes(&mut peer, &bytes);
    drop(peer);
    assert!(fixture.receive_bytes(token, bytes.len()) == bytes, "the bytes arrived changed");
    assert_eq!(fixture.receive(token), ObservedEvent::Ended(token));
    fixture.driver.close(token);
    fixture.expect(ObservedEvent::Closed(token));
}

/// Row 4.36: a full pipe stops the send until its reader reads.
pub fn a_full_pipe_from_the_driver_blocks_and_continues<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (socket, mut peer) = fixture.rig.pipe_from_driver();
    let token = fixture.attach(socket, SourceKind::Pipe);
    let sent = fixture.fill(token, 0);
    fixture.driver.await_writable(token);
    fixture.expect_silence();
    let bytes: Vec<u8> = (0..sent).map(pattern).collect();
    fixture.expect_at_peer(&mut peer, &bytes);
    fixture.expect(ObservedEvent::Writable(token));
    assert!(fixture.send(token, b"last", true).is_none());
    fixture.expect(ObservedEvent::Closed(token));
    fixture.expect_at_peer(&mut peer, b"last");
    assert_eq!(fixture.peer_reads(&mut peer).expect("the end"), b"");
}

/// Row 4.36: a closed reader is an error of the send, not the end of the process.
pub fn a_pipe_without_a_reader_is_an_error<R: DriverRig>() {
    let mut fixture = DriverFixture::<R>::new();
    let (socket, peer) = fixture.rig.pipe_from_driver();
    let token = fixture.attach(socket, SourceKind::Pipe);
    fixture.fill(token, 0);
    fixture.driver.await_writable(token);
    fixture.expect_silence();
    drop(peer);
    fixture.expect(ObservedEvent::Writable(token));
    let stop = fixture.send(token, b"x", false).expect("the peer is gone");
    assert_eq!(stop.error.expect("a failure").kind(), io::ErrorKind::BrokenPipe);
}
