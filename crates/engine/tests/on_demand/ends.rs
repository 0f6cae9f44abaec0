//! Ends, resets and closes.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::AsFd;

use stilling_engine::CloseReason;
use stilling_engine::driver::Wait;
use stilling_simulation::suite::system::SystemDriver;

use crate::harness::{Call, OwnerLoop, SILENCE_MS, expect_read, is_ended_now, reset, write};

const WOULD_BLOCK: io::ErrorKind = io::ErrorKind::WouldBlock;

/// Rows 3.32, 3.33: the end is reported on each request, and closes nothing.
pub(crate) fn the_peers_end_is_found_by_the_owner<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (token, mut client) = owner.connection();
    write(&mut client, b"last");
    drop(client);
    owner.expect_silence();
    for expected in [&b"last"[..], b"", b""] {
        owner.with(token, |_, io| io.await_readable());
        owner.expect(Call::Readable(token));
        let mut into = [0; 16];
        let count = owner.shard.receive_now(token, &mut into).expect("no error");
        assert_eq!(&into[..count], expected);
        owner.expect_silence();
    }
    owner.abort(token);
}

/// Row 3.33: each direction ends by itself.
pub(crate) fn a_half_closed_connection_still_carries_bytes<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (token, mut client) = owner.connection();
    owner.shard.send_now(token, b"all").expect("there is room");
    owner.with(token, |_, io| io.end_output());
    assert_eq!(owner.shard.prepare_to_wait(), Wait::No);
    owner.expect_silence();
    expect_read(&mut client, b"all");
    assert_eq!(client.read(&mut [0]).expect("no error"), 0);
    assert!(owner.shard.send_now(token, b"more").is_err(), "the direction has ended");
    write(&mut client, b"answer");
    owner.with(token, |_, io| io.await_readable());
    owner.expect(Call::Readable(token));
    assert_eq!(owner.receive_all(token), b"answer");
    client.shutdown(Shutdown::Write).expect("it is open");
    owner.with(token, |_, io| io.await_readable());
    owner.expect(Call::Readable(token));
    assert_eq!(owner.shard.receive_now(token, &mut [0]).expect("no error"), 0);
    owner.abort(token);
}

/// Row 3.30: without a request nothing happens, and the owner gets the error.
pub(crate) fn a_reset_while_idle_is_found_by_the_owner<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (token, client) = owner.connection();
    let (sender, sender_client) = owner.connection();
    reset(client);
    reset(sender_client);
    owner.expect_silence();
    let error = owner.shard.receive_now(token, &mut [0]).expect_err("it was reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let error = owner.shard.send_now(sender, b"x").expect_err("it was reset");
    assert!(matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe), "{error}");
    owner.expect_silence();
    owner.abort(token);
    owner.abort(sender);
}

/// Row 3.30.
pub(crate) fn a_reset_is_readable<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (token, client) = owner.connection();
    owner.with(token, |_, io| io.await_readable());
    owner.expect_silence();
    reset(client);
    owner.expect(Call::Readable(token));
    owner.expect_silence();
    let error = owner.shard.receive_now(token, &mut [0]).expect_err("it was reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    owner.with(token, |_, io| io.await_readable());
    owner.expect(Call::Readable(token));
    assert_eq!(owner.shard.receive_now(token, &mut [0]).expect("the error is consumed"), 0);
    owner.abort(token);
}

/// Row 3.30: a blocked sender learns that its peer is gone, also if it does not wait for input.
pub(crate) fn a_reset_is_writable_if_only_that_is_awaited<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (token, client) = owner.connection();
    owner.fill(token);
    owner.with(token, |_, io| io.await_writable());
    owner.settle();
    reset(client);
    let error = loop {
        owner.expect(Call::Writable(token));
        // TCP may have made room before the reset.
        let error =
            owner.shard.send_now(token, &[0; 1 << 20]).map_or_else(|error| error, |_| WOULD_BLOCK.into());
        if error.kind() != WOULD_BLOCK {
            break error;
        }
        owner.with(token, |_, io| io.await_writable());
    };
    owner.expect_silence();
    assert!(matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe), "{error}");
    owner.abort(token);
}

/// Row 3.17: the peer sees the end after one turn; unread bytes make it a reset, as with close(2).
pub(crate) fn a_close_takes_one_turn<S: SystemDriver>() {
    for (has_unread, aborts) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut owner = OwnerLoop::<S>::new();
        let (token, mut client) = owner.connection();
        if has_unread {
            write(&mut client, b"unread");
        }
        owner.expect_silence();
        match aborts {
            true => owner.with(token, |_, io| io.abort(CloseReason::Done)),
            false => owner.with(token, |_, io| io.finish(CloseReason::Done)),
        }
        assert_eq!(owner.shard.prepare_to_wait(), Wait::No);
        owner.turn();
        assert!(is_ended_now(&mut client), "has_unread: {has_unread}, aborts: {aborts}");
        owner.expect(Call::Closed(0, CloseReason::Done));
    }
}

/// The same while the driver waits for the connection.
pub(crate) fn a_close_with_armed_waits_takes_one_turn<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    for _ in 0..3 {
        let (token, mut client) = owner.unix_connection();
        let sent = owner.fill(token);
        owner.with(token, |_, io| io.await_writable());
        owner.with(token, |_, io| io.await_readable());
        owner.expect_silence();
        owner.abort(token);
        client.set_nonblocking(true).expect("a socket takes options");
        client.read_exact(&mut vec![0; sent]).expect("all bytes arrive");
        assert_eq!(client.read(&mut [0]).expect("the end"), 0);
        owner.expect_silence();
    }
}

/// A session that leaves the drain to the default closes without lingering.
pub(crate) fn a_drain_closes_at_once<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (token, mut client) = owner.connection();
    owner.with(token, |_, io| io.finish_lingering(CloseReason::Drained));
    owner.turn();
    assert!(is_ended_now(&mut client));
    owner.expect(Call::Closed(0, CloseReason::Drained));
}

/// A closed connection whose descriptor a child process still has wakes the shard no more.
pub(crate) fn a_shared_descriptor_is_silent_after_the_close<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (token, mut client) = owner.connection();
    owner.with(token, |_, io| io.await_readable());
    write(&mut client, b"first");
    owner.expect(Call::Readable(token));
    let child = owner.shard.descriptor(token).expect("it is open").as_fd().try_clone_to_owned();
    let child = child.expect("a descriptor is free");
    owner.shard.share_descriptor(token);
    owner.with(token, |_, io| io.finish(CloseReason::Done));
    owner.run_until(|owner| owner.calls().pop().is_some());
    for _ in 0..3 {
        write(&mut client, b"for the child");
        assert!(!owner.wait(SILENCE_MS), "an event of a closed connection");
    }
    drop(child);
}
