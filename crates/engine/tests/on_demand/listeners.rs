//! Listeners that their owner opens and closes.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;

use socket2::SockRef;
use stilling_engine::driver::Wait;
use stilling_engine::limits::LISTENERS_MAX;
use stilling_engine::{CloseReason, ShardConfig};
use stilling_simulation::suite::system::SystemDriver;

use crate::harness::{Call, OwnerLoop, client_of, is_ended_now, listening_socket, open_descriptors, write};

/// Listeners opened and closed one after the other.
const CYCLES: u32 = 10_000;

fn is_refused(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// Row 3.8: one turn closes the listener; accepted connections stay.
pub(crate) fn a_closed_listener_refuses_connections<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (socket, address) = listening_socket();
    let listener = owner.shard.listen(socket, false).expect("there is room");
    owner.settle();
    let first = client_of(address);
    let Call::Opened(token) = owner.next_call() else { panic!("a connection waits") };
    // These two are accepted with the close, or wait in the backlog.
    let mut late: Vec<_> = (0..2).map(|_| client_of(address)).collect();
    owner.shard.close_listener(listener);
    assert_eq!(owner.shard.prepare_to_wait(), Wait::No);
    owner.turn();
    assert!(is_refused(address));
    owner.expect_silence();
    for client in &mut late {
        assert!(is_ended_now(client));
    }
    assert_eq!(owner.shard.open_connections(), 1);
    assert!(owner.shard.listener_descriptor(listener).is_err());
    owner.shard.close_listener(listener);
    owner.expect_silence();
    owner.abort(token);
    drop(first);
    owner.connection();
}

/// Row 3.8.
pub(crate) fn connections_without_a_slot_are_closed_with_their_listener<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::with_config(ShardConfig { capacity: 1, ..ShardConfig::default() });
    let (socket, address) = listening_socket();
    let listener = owner.shard.listen(socket, false).expect("there is room");
    owner.settle();
    // Accepted together, before the gate closes.
    let mut clients: Vec<_> = (0..4).map(|_| client_of(address)).collect();
    let Call::Opened(token) = owner.next_call() else { panic!("connections wait") };
    owner.expect_silence();
    owner.shard.close_listener(listener);
    owner.settle();
    assert!(is_refused(address));
    for client in &mut clients[1..] {
        assert!(is_ended_now(client));
    }
    assert!(!is_ended_now(&mut clients[0]));
    owner.abort(token);
    owner.expect_silence();
    assert_eq!(owner.shard.open_connections(), 0);
    owner.connection();
}

/// Row 3.8: connections of a former listener do not reach the next one with its number.
pub(crate) fn a_number_is_reused_and_not_confused<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let mut number = None;
    for _ in 0..20 {
        let (socket, address) = listening_socket();
        let listener = owner.shard.listen(socket, false).expect("there is room");
        assert_eq!(*number.get_or_insert(listener), listener);
        owner.settle();
        let mut late = client_of(address);
        owner.shard.close_listener(listener);
        owner.settle();
        let (socket, address) = listening_socket();
        let next = owner.shard.listen(socket, false).expect("there is room");
        assert_eq!(next, listener);
        let mut client = client_of(address);
        let Call::Opened(token) = owner.next_call() else { panic!("a connection waits") };
        assert!(is_ended_now(&mut late));
        write(&mut client, b"x");
        owner.run_until(|owner| owner.shard.receive_now(token, &mut [0]).is_ok());
        owner.abort(token);
        owner.shard.close_listener(next);
        owner.settle();
    }
    owner.expect_silence();
    assert!(owner.shard.service().accepted_by.iter().all(|listener| Some(*listener) == number));
}

/// A listener that is detached arrives with its backlog, and with a connection that was accepted before, in another
/// place, where clients do not notice.
pub(crate) fn a_detached_listener_loses_no_connection<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (mut socket, address) = listening_socket();
    let mut clients = Vec::new();
    for _ in 0..20 {
        let listener = owner.shard.listen(socket, false).expect("there is room");
        owner.settle();
        // These are accepted with the stop, or stay in the backlog.
        clients.extend((0..3).map(|_| client_of(address)));
        assert!(owner.shard.detach_listener(listener));
        assert!(!owner.shard.detach_listener(listener));
        let mut detached = None;
        owner.run_until(|owner| {
            detached = owner.shard.take_detached_listener(listener);
            detached.is_some()
        });
        socket = detached.expect("it was awaited");
        assert!(owner.shard.listener_descriptor(listener).is_err());
        assert!(owner.shard.take_detached_listener(listener).is_none());
        clients.push(client_of(address));
    }
    owner.shard.listen(socket, false).expect("there is room");
    for client in &mut clients {
        let Call::Opened(_) = owner.next_call() else { panic!("a connection waits") };
        assert!(!is_ended_now(client));
    }
    owner.expect_silence();
    assert_eq!(owner.shard.open_connections() as usize, clients.len());
}

/// Row 3.8: neither descriptors nor numbers are used up.
pub(crate) fn ten_thousand_listeners_leave_nothing<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let mut before = 0;
    let mut numbers = std::collections::BTreeSet::new();
    let (first, address) = listening_socket();
    for cycle in 0..CYCLES {
        let socket = first.try_clone().expect("a descriptor");
        let listener = owner.shard.listen(socket, false).expect("there is room");
        numbers.insert(listener);
        if cycle % 1000 == 0 {
            let client = client_of(address);
            let Call::Opened(token) = owner.next_call() else { panic!("a connection waits") };
            owner.abort(token);
            drop(client);
        }
        owner.shard.close_listener(listener);
        owner.settle();
        if cycle == 1 {
            before = open_descriptors();
        }
    }
    assert_eq!(numbers.len(), 1, "{numbers:?}");
    // Other tests of this process have descriptors of their own.
    let after = open_descriptors();
    assert!(after < before + CYCLES as usize / 10, "{before} descriptors became {after}");
    for _ in 1..LISTENERS_MAX.min(100) {
        owner.shard.listen(first.try_clone().expect("a descriptor"), false).expect("there is room");
    }
}

/// Row 3.9: the owner can query and change its sockets.
pub(crate) fn addresses_and_descriptors_are_available<S: SystemDriver>() {
    let mut owner = OwnerLoop::<S>::new();
    let (token, client) = owner.connection();
    let address = owner.address;
    assert_eq!(owner.shard.local_address(token).expect("it has one"), address);
    let peer = client.local_addr().expect("it has one");
    assert_eq!(owner.shard.peer_address(token).expect("it has one"), peer);
    {
        let socket = owner.shard.descriptor(token).expect("it is open");
        SockRef::from(&socket).set_keepalive(true).expect("a socket takes options");
    }
    let socket = owner.shard.descriptor(token).expect("it is open");
    assert!(SockRef::from(&socket.as_fd()).keepalive().expect("a socket has options"));
    drop(socket);
    let socket = owner.shard.listener_descriptor(0).expect("it is open");
    let local = SockRef::from(&socket).local_addr().expect("it is bound");
    assert_eq!(local.as_socket(), Some(address));
    drop(socket);
    assert!(owner.shard.listener_descriptor(1).is_err());
    assert!(owner.shard.listener_descriptor(u32::MAX).is_err());
    owner.shard.abort(token, CloseReason::Done);
    assert!(owner.shard.descriptor(token).is_err(), "it is closing");
    owner.expect(Call::Closed(0, CloseReason::Done));
    owner.expect_silence();
}
