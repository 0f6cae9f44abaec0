//! Datagram sockets that their owner receives from and sends to by itself.

use std::io;
use std::net::UdpSocket;

use stilling_engine::driver::ReceivedDatagram;
use stilling_engine::{CloseReason, Detached, Token};
use stilling_simulation::suite::system::SystemDriver;

use crate::harness::{Call, OwnerLoop, OwnerSession};

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.set_nonblocking(true).expect("a socket takes options");
    socket
}

fn adopt<S: SystemDriver>(owner: &mut OwnerLoop<S>, socket: UdpSocket) -> Token {
    let adopted = owner.shard.adopt_datagram_socket(socket.into(), OwnerSession::default());
    let token = adopted.expect("there is a slot");
    owner.expect(Call::Opened(token));
    token
}

fn would_block<T: std::fmt::Debug>(outcome: io::Result<T>) {
    assert_eq!(outcome.expect_err("nothing is there").kind(), io::ErrorKind::WouldBlock);
}

/// Row 3.33: one datagram per receive, whatever the size of the memory; those that are left are reported again.
pub(crate) fn datagrams_are_whole_and_reported_until_received<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (socket, peer) = (socket(), socket());
    let (address, from) = (socket.local_addr().expect("bound"), peer.local_addr().expect("bound"));
    let token = adopt(&mut owner, socket);
    owner.with(token, |_, io| io.await_readable());
    owner.expect_silence();
    for size in [100_usize, 0, 30] {
        peer.send_to(&vec![7; size], address).expect("there is room");
    }
    let mut into = [0; 50];
    for size in [100_usize, 0, 30] {
        owner.expect(Call::Readable(token));
        let received = owner.shard.receive_from_now(token, &mut into).expect("a datagram is there");
        assert_eq!(received, ReceivedDatagram { len: size, from: Some(from) });
        owner.with(token, |_, io| io.await_readable());
    }
    owner.expect_silence();
    would_block(owner.shard.receive_from_now(token, &mut into));
    owner.shard.send_to_now(token, b"answer", Some(from)).expect("there is room");
    assert_eq!(peer.recv_from(&mut into).expect("loopback delivers at once"), (6, address));
    let error = owner.shard.send_to_now(token, &[0; 70_000], Some(from)).expect_err("it is too long");
    assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    owner.abort(token);
}

/// Row 3.33: the error of a sent datagram ends a wait, is received once, and ends nothing.
pub(crate) fn a_refused_datagram_is_reported_once<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (socket, peer) = (socket(), socket());
    let (address, to) = (socket.local_addr().expect("bound"), peer.local_addr().expect("bound"));
    socket.connect(to).expect("loopback is reachable");
    drop(peer);
    let token = adopt(&mut owner, socket);
    owner.with(token, |_, io| io.await_readable());
    owner.expect_silence();
    owner.shard.send_to_now(token, b"x", None).expect("there is room");
    owner.expect(Call::Readable(token));
    let error = owner.shard.receive_from_now(token, &mut [0; 8]).expect_err("it was refused");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    owner.with(token, |_, io| {
        io.await_readable();
        io.await_writable();
    });
    owner.expect(Call::Writable(token));
    owner.expect_silence();
    let peer = UdpSocket::bind(to).expect("the port is free again");
    peer.send_to(b"later", address).expect("there is room");
    owner.expect(Call::Readable(token));
    let received = owner.shard.receive_from_now(token, &mut [0; 8]).expect("a datagram is there");
    assert_eq!(received, ReceivedDatagram { len: 5, from: Some(to) });
    owner.abort(token);
}

/// Row 3.33: waiting datagrams move with their socket.
pub(crate) fn a_datagram_socket_moves_to_another_shard<S: SystemDriver>() {
    let mut owners = [OwnerLoop::<S>::new(), OwnerLoop::<S>::new()];
    let (socket, peer) = (socket(), socket());
    let address = socket.local_addr().expect("bound");
    let mut token = adopt(&mut owners[0], socket);
    for round in 0..4_u8 {
        let (from, to) = (usize::from(round % 2), usize::from((round + 1) % 2));
        owners[from].with(token, |_, io| io.await_readable());
        owners[from].settle();
        peer.send_to(&[round; 3], address).expect("there is room");
        owners[from].expect(Call::Readable(token));
        owners[from].with(token, |_, io| io.detach());
        owners[from].expect(Call::Closed(0, CloseReason::Detached));
        let Detached { socket, session, .. } =
            owners[from].shard.service().detached.pop().expect("it is detached");
        token = owners[to].shard.adopt_datagram_socket(socket, session).expect("there is a slot");
        owners[to].expect(Call::Opened(token));
        owners[to].with(token, |_, io| io.await_readable());
        owners[to].expect(Call::Readable(token));
        let mut into = [0; 8];
        assert_eq!(owners[to].shard.receive_from_now(token, &mut into).expect("it is there").len, 3);
        assert_eq!(into[..3], [round; 3]);
        would_block(owners[to].shard.receive_from_now(token, &mut into));
    }
    owners[0].abort(token);
}
