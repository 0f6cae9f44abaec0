//! Promises about pipes, by which worker processes are fed and heard.

use std::io;

use stilling_engine::driver::{Driver, Kind};
use stilling_engine::limits::RECEIVE_BUFFER_SIZE;

use super::{News, Rig, Stage, pattern};

/// Row 5.1: a pipe is read to its end.
pub fn a_pipe_to_the_driver_ends_with_its_writer<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (socket, mut peer) = stage.rig.pipe_to_driver();
    let token = stage.attach(socket, Kind::Pipe);
    stage.driver.receive(token);
    stage.expect_silence();
    stage.peer_writes(&mut peer, b"output");
    stage.expect(News::Received(token, b"output".to_vec()));
    let bytes: Vec<u8> = (0..3 * RECEIVE_BUFFER_SIZE + 1).map(pattern).collect();
    stage.peer_writes(&mut peer, &bytes);
    drop(peer);
    assert!(stage.receive_bytes(token, bytes.len()) == bytes, "the bytes arrived changed");
    assert_eq!(stage.receive(token), News::Ended(token));
    stage.driver.close(token);
    stage.expect(News::Closed(token));
}

/// Row 4.36: a full pipe stops the send until its reader reads.
pub fn a_pipe_from_the_driver_stops_and_goes_on<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (socket, mut peer) = stage.rig.pipe_from_driver();
    let token = stage.attach(socket, Kind::Pipe);
    let sent = stage.fill(token, 0);
    stage.driver.writable(token);
    stage.expect_silence();
    let bytes: Vec<u8> = (0..sent).map(pattern).collect();
    stage.expect_at_peer(&mut peer, &bytes);
    stage.expect(News::Writable(token));
    assert!(stage.send(token, b"last", true).is_none());
    stage.expect(News::Closed(token));
    stage.expect_at_peer(&mut peer, b"last");
    assert_eq!(stage.peer_reads(&mut peer).expect("the end"), b"");
}

/// Row 4.36: a dead reader is an error of the send, not the end of the process.
pub fn a_pipe_without_a_reader_is_an_error<R: Rig>() {
    let mut stage = Stage::<R>::new();
    let (socket, peer) = stage.rig.pipe_from_driver();
    let token = stage.attach(socket, Kind::Pipe);
    stage.fill(token, 0);
    stage.driver.writable(token);
    stage.expect_silence();
    drop(peer);
    stage.expect(News::Writable(token));
    let stop = stage.send(token, b"x", false).expect("nobody takes it");
    assert_eq!(stop.error.expect("a failure").kind(), io::ErrorKind::BrokenPipe);
}
