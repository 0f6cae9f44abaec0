//! Waits for readiness.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use stilling_engine::CloseReason;
use stilling_probe::allocations::thread_allocations;
use stilling_simulation::suite::system::SystemDriver;

use crate::harness::{Call, OwnerLoop, expect_read, write};

const EXCHANGES: u32 = 10_000;

/// Exchanges after which nothing is allocated any more.
const WARM_UP: u32 = 100;

/// Rows 3.12, 3.28: an exchange costs few turns, because the loop sleeps while there is nothing to do, and no allocation.
pub(crate) fn ten_thousand_exchanges_need_no_busy_loop<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (token, client) = owner.connection();
    let peer = std::thread::spawn(move || exchange(client));
    let mut into = [0; 64];
    let before = owner.shard.counters().turns.get();
    let mut allocations = 0;
    for exchange in 0..EXCHANGES {
        if exchange == WARM_UP {
            allocations = thread_allocations();
        }
        owner.with(token, |_, io| io.await_readable());
        owner.expect(Call::Readable(token));
        let count = owner.shard.receive_now(token, &mut into).expect("it is readable");
        assert_eq!(owner.shard.send_now(token, &into[..count]).expect("there is room"), count);
    }
    assert_eq!(thread_allocations(), allocations);
    peer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let counters = owner.shard.counters();
    let turns = counters.turns.get() - before;
    assert!(turns <= 4 * u64::from(EXCHANGES), "{turns} turns");
    let bytes = 4 * u64::from(EXCHANGES);
    assert_eq!((counters.received_bytes.get(), counters.sent_bytes.get()), (bytes, bytes));
}

fn exchange(mut client: TcpStream) {
    for number in 0..EXCHANGES {
        write(&mut client, &number.to_le_bytes());
        expect_read(&mut client, &number.to_le_bytes());
    }
}

/// Row 3.32: the next turn reports bytes that have arrived before the request.
pub(crate) fn readable_is_called_for_bytes_that_are_already_there<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (token, mut client) = owner.connection();
    owner.expect_silence();
    for _ in 0..3 {
        write(&mut client, b"here");
        owner.with(token, |_, io| io.await_readable());
        owner.turn();
        assert_eq!(std::mem::take(owner.calls()), [Call::Readable(token)]);
        assert_eq!(owner.receive_all(token), b"here");
    }
    owner.expect_silence();
}

/// Row 3.32: a request after all bytes were received waits for new ones, whatever was armed before.
pub(crate) fn readable_is_not_called_again_for_received_bytes<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (token, mut client) = owner.connection();
    for is_armed_before in [false, true] {
        if is_armed_before {
            owner.with(token, |_, io| io.await_readable());
            owner.expect_silence();
        }
        write(&mut client, b"once");
        // No turn in between: the armed wait has completed, and its event is outdated.
        assert_eq!(owner.receive_all(token), b"once");
        owner.with(token, |_, io| io.await_readable());
        owner.expect_silence();
        write(&mut client, b"again");
        owner.expect(Call::Readable(token));
        assert_eq!(owner.receive_all(token), b"again");
        owner.expect_silence();
    }
}

/// Row 3.32: what the owner leaves in the socket is reported on each request.
pub(crate) fn unread_bytes_are_reported_again<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (token, mut client) = owner.connection();
    write(&mut client, b"abc");
    for byte in b"abc" {
        owner.with(token, |_, io| io.await_readable());
        // A second request has no effect.
        owner.with(token, |_, io| io.await_readable());
        owner.expect(Call::Readable(token));
        owner.expect_silence();
        let mut into = [0];
        assert_eq!(owner.shard.receive_now(token, &mut into).expect("a byte is there"), 1);
        assert_eq!(into[0], *byte);
    }
    let error = owner.shard.receive_now(token, &mut [0]).expect_err("it was the last one");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    owner.with(token, |_, io| io.await_readable());
    owner.expect_silence();
}

pub(crate) fn an_ignored_wait_causes_no_call<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (token, mut client) = owner.connection();
    for settles in [false, true] {
        owner.with(token, |_, io| io.await_readable());
        owner.with(token, |_, io| io.await_writable());
        if settles {
            owner.run_until(|owner| !owner.calls().is_empty());
            assert_eq!(std::mem::take(owner.calls()), [Call::Writable(token)]);
        }
        write(&mut client, b"x");
        owner.with(token, |_, io| io.ignore_readable());
        owner.with(token, |_, io| io.ignore_writable());
        owner.expect_silence();
        assert_eq!(owner.receive_all(token), b"x");
    }
}

/// A request is served at once, also while an ignored wait is armed or has just completed.
pub(crate) fn an_ignored_wait_can_be_requested_again<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (token, mut client) = owner.connection();
    for round in 0..20 {
        owner.with(token, |_, io| io.await_readable());
        if round % 2 == 0 {
            owner.expect_silence();
        }
        if round % 3 == 0 {
            write(&mut client, b"early");
        }
        owner.with(token, |_, io| io.ignore_readable());
        if round % 5 == 0 {
            owner.turn();
        }
        owner.with(token, |_, io| io.await_readable());
        if round % 3 != 0 {
            owner.expect_silence();
            write(&mut client, b"later");
        }
        owner.turn();
        assert_eq!(std::mem::take(owner.calls()), [Call::Readable(token)], "round {round}");
        assert_eq!(owner.receive_all(token).len(), 5);
        owner.expect_silence();
    }
}

/// Row 3.32: an event for received bytes does not hide that more have arrived since.
pub(crate) fn a_wait_after_an_outdated_event_is_for_new_bytes<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (token, mut client) = owner.connection();
    owner.with(token, |_, io| io.await_readable());
    owner.expect_silence();
    write(&mut client, b"first");
    assert_eq!(owner.receive_all(token), b"first");
    write(&mut client, b"second");
    owner.turn();
    assert_eq!(std::mem::take(owner.calls()), [Call::Readable(token)]);
    assert_eq!(owner.receive_all(token), b"second");
    owner.expect_silence();
}

pub(crate) fn both_waits_are_independent<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (token, mut client) = owner.unix_connection();
    let sent = owner.fill(token);
    owner.with(token, |_, io| io.await_writable());
    owner.with(token, |_, io| io.await_readable());
    owner.expect_silence();
    let awaited =
        |owner: &mut OwnerLoop<S>| owner.with(token, |_, io| (io.awaits_readable(), io.awaits_writable()));
    assert_eq!(awaited(&mut owner), (true, true));
    client.write_all(b"x").expect("there is room");
    owner.expect(Call::Readable(token));
    owner.expect_silence();
    assert_eq!(awaited(&mut owner), (false, true));
    owner.with(token, |_, io| io.await_readable());
    owner.with(token, |_, io| io.ignore_readable());
    client.read_exact(&mut vec![0; sent]).expect("all bytes arrive");
    owner.expect(Call::Writable(token));
    owner.expect_silence();
    assert_eq!(awaited(&mut owner), (false, false));
    assert_eq!(owner.receive_all(token), b"x");
}

/// Row 3.31: sends stop short, `writable` is called once for each request, and no byte is lost or repeated.
pub(crate) fn partial_sends_continue_when_writable<S: SystemDriver>() {
    const LEN: usize = 8 << 20;
    let pattern = |at: usize| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0];
    let bytes: Vec<u8> = (0..LEN).map(pattern).collect();
    let mut owner = OwnerLoop::<S>::new();
    let (token, mut client) = owner.connection();
    let reader = std::thread::spawn(move || {
        let mut read = Vec::new();
        client.read_to_end(&mut read).map(|_| read)
    });
    let (mut sent, mut waits) = (0, 0);
    while sent < LEN {
        match owner.shard.send_now(token, &bytes[sent..]) {
            Ok(count) => sent += count,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                owner.with(token, |_, io| io.await_writable());
                owner.expect(Call::Writable(token));
                waits += 1;
            }
        }
    }
    owner.abort(token);
    assert!(waits > 0, "the sends never stopped");
    let read = reader.join().expect("no panic").expect("the end comes in order");
    assert!(read == bytes, "{} bytes arrived changed", read.len());
}

/// Row 3.31: an event from before the system accepted no more is outdated.
pub(crate) fn an_outdated_writable_is_not_reported<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (token, mut peer) = owner.unix_connection();
    let mut sent = owner.fill(token);
    owner.with(token, |_, io| io.await_writable());
    owner.expect_silence();
    for _ in 0..3 {
        peer.read_exact(&mut vec![0; sent]).expect("all bytes arrive");
        sent = owner.fill(token);
        assert!(sent > 0, "there is no room although the peer has read");
        owner.expect_silence();
    }
    peer.read_exact(&mut vec![0; sent]).expect("all bytes arrive");
    owner.expect(Call::Writable(token));
    owner.expect_silence();
}

pub(crate) fn a_closed_connection_is_refused<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (token, client) = owner.connection();
    owner.abort(token);
    let _next = owner.connection();
    for outcome in [owner.shard.receive_now(token, &mut [0]), owner.shard.send_now(token, b"x")] {
        assert_eq!(outcome.expect_err("it is closed").kind(), io::ErrorKind::NotConnected);
    }
    let error = owner.shard.descriptor(token).expect_err("it is closed");
    assert_eq!(error.kind(), io::ErrorKind::NotConnected);
    owner.shard.abort(token, CloseReason::Done);
    owner.expect_silence();
    drop(client);
}
