//! Connections that move to another shard.

use stilling_engine::{CloseReason, Detached};
use stilling_simulation::suite::system::SystemDriver;

use crate::harness::{Call, OwnerLoop, expect_read, write};

/// Row 3.33: bytes that arrive before, during and after the move keep their order.
pub(crate) fn a_connection_moves_to_another_shard_mid_stream<S: SystemDriver>() {
    let mut owners = [OwnerLoop::<S>::new(), OwnerLoop::<S>::new()];
    let (mut token, mut client) = owners[0].connection();
    for round in 0..6_u8 {
        let (from, to) = (usize::from(round % 2), usize::from((round + 1) % 2));
        owners[from].with(token, |_, io| io.await_readable());
        if round % 3 == 0 {
            // A blocked sender waits for both.
            owners[from].with(token, |_, io| io.await_writable());
            owners[from].expect(Call::Writable(token));
        }
        write(&mut client, &[round; 3]);
        if round % 2 == 0 {
            owners[from].expect(Call::Readable(token));
            let mut into = [0];
            assert_eq!(owners[from].shard.receive_now(token, &mut into).expect("bytes are there"), 1);
        }
        owners[from].with(token, |_, io| io.detach());
        let call = owners[from].next_call();
        assert_eq!(call, Call::Closed(0, CloseReason::Detached));
        owners[from].expect_silence();
        let connection = owners[from].shard.service().detached.pop().expect("it is detached");
        assert_eq!(connection.unread, b"");
        write(&mut client, &[round + 100]);
        token = owners[to].shard.adopt(connection).expect("there is a slot");
        owners[to].expect(Call::Opened(token));
        owners[to].with(token, |_, io| io.await_readable());
        owners[to].expect(Call::Readable(token));
        let expected = [&vec![round; if round % 2 == 0 { 2 } else { 3 }][..], &[round + 100]].concat();
        assert_eq!(owners[to].receive_all(token), expected);
        owners[to].shard.send_now(token, &[round]).expect("there is room");
        expect_read(&mut client, &[round]);
    }
    owners[0].abort(token);
}

/// An adopted connection with unread bytes, such as one that was received from before: the owner gets them first.
pub(crate) fn unread_bytes_come_first<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (token, mut client) = owner.connection();
    owner.with(token, |_, io| io.detach());
    owner.expect(Call::Closed(0, CloseReason::Detached));
    let Detached { session, socket, .. } = owner.shard.service().detached.pop().expect("it is detached");
    let connection = Detached { session, socket, unread: b"before".to_vec() };
    write(&mut client, b"after");
    let token = owner.shard.adopt(connection).expect("there is a slot");
    owner.expect(Call::Opened(token));
    let mut into = [0; 4];
    for expected in [&b"befo"[..], b"re", b"afte", b"r"] {
        owner.with(token, |_, io| io.await_readable());
        owner.turn();
        assert_eq!(std::mem::take(owner.calls()), [Call::Readable(token)]);
        let count = owner.shard.receive_now(token, &mut into).expect("bytes are there");
        assert_eq!(&into[..count], expected);
    }
    owner.with(token, |_, io| io.await_readable());
    owner.expect_silence();
    assert_eq!(owner.shard.held_bytes(), (0, 0));
}
