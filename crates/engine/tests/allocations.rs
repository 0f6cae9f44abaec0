//! A warm driver allocates nothing, measured by a counting allocator.
#![cfg(target_os = "linux")]

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use stilling_engine::Token;
use stilling_engine::driver::{
    Destination, Driver, DriverEvent, Gather, IncompleteSend, Outgoing, PieceChain, PieceList, SourceKind,
    Wait, poll::Poll, uring::Uring,
};
use stilling_probe::allocations::{CountingAllocator, thread_allocations};
use stilling_simulation::suite::system::{DirectUring, SystemDriver, SystemRig};
use stilling_simulation::suite::{AddressKind, DatagramPeer, DriverRig, Peer, RigAccepted};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const CONNECTIONS: usize = 40;

/// A driver with a count of the allocations of its calls.
struct CountedDriver<D: SystemDriver> {
    rig: SystemRig<D>,
    driver: D::Driver,
    incomplete_sends: Vec<IncompleteSend>,
    events: Vec<DriverEvent<OwnedFd, RigAccepted<SystemRig<D>>>>,
    allocations: u64,
}

impl<D: SystemDriver> CountedDriver<D> {
    fn count_allocations<T>(&mut self, act: impl FnOnce(&mut D::Driver) -> T) -> T {
        let before = thread_allocations();
        let outcome = act(&mut self.driver);
        self.allocations += thread_allocations() - before;
        outcome
    }

    /// Runs turns until there are `enough` events, and returns them.
    fn turn_until(
        &mut self,
        enough: usize,
        outgoing: &[Outgoing<'_>],
    ) -> Vec<DriverEvent<OwnedFd, RigAccepted<SystemRig<D>>>> {
        let mut outgoing = outgoing;
        let (mut incomplete_sends, mut events) =
            (std::mem::take(&mut self.incomplete_sends), std::mem::take(&mut self.events));
        while events.len() < enough {
            assert!(self.rig.is_within_limit(), "it hangs with {events:?}");
            let now = self.rig.now();
            let soon = Wait::Until(now.after(std::time::Duration::from_millis(1)));
            self.count_allocations(|driver| {
                driver.turn(now, soon, outgoing.iter().copied(), &mut incomplete_sends, &mut events)
            })
            .expect("a turn");
            outgoing = &[];
        }
        assert!(incomplete_sends.is_empty(), "{incomplete_sends:?}");
        let turn_events = Vec::from_iter(events.drain(..));
        (self.incomplete_sends, self.events) = (incomplete_sends, events);
        turn_events
    }
}

/// Accept, receive, parked read, send, close, and datagrams both ways; returns the number of allocations.
fn round<D: SystemDriver>(
    counted: &mut CountedDriver<D>,
    destination: &Destination,
    datagrams: (Token, SocketAddr),
    generation: u32,
) -> u64 {
    counted.allocations = 0;
    let token = |at: usize| Token::new(10 + at as u32, generation);
    let mut peers: Vec<_> = (0..CONNECTIONS).map(|_| counted.rig.dial(destination)).collect();
    let accepted = counted.turn_until(CONNECTIONS, &[]);
    for (at, event) in accepted.into_iter().enumerate() {
        let DriverEvent::Accepted { socket, .. } = event else { panic!("{event:?}") };
        counted
            .count_allocations(|driver| driver.attach(token(at), socket, SourceKind::Stream, at % 2 == 0))
            .expect("attach");
        counted.count_allocations(|driver| driver.receive(token(at)));
    }
    for peer in &mut peers {
        peer.write(b"question").expect("room for a question");
    }
    for event in counted.turn_until(CONNECTIONS, &[]) {
        let DriverEvent::Received { token, buffer, .. } = event else { panic!("{event:?}") };
        counted.count_allocations(|driver| driver.release(buffer));
        counted.count_allocations(|driver| driver.await_readable(token));
    }
    for peer in &mut peers {
        peer.write(b"another").expect("room for another");
    }
    let mut into = [0; 16];
    for event in counted.turn_until(CONNECTIONS, &[]) {
        let DriverEvent::Readable { token } = event else { panic!("{event:?}") };
        let read =
            counted.count_allocations(|driver| driver.recv_now(token, &mut into)).expect("it is readable");
        assert_eq!(&into[..read], b"another");
        let is_readable = counted.count_allocations(|driver| driver.is_readable(token));
        assert!(!is_readable);
        counted.count_allocations(|driver| driver.send_now(token, b"now")).expect("there is room");
        counted.count_allocations(|driver| driver.descriptor(token).map(drop)).expect("it is open");
    }
    let (mut pieces, mut chain) = (PieceList::default(), PieceChain::default());
    pieces.push_private(&mut chain, 0..3);
    pieces.push_private(&mut chain, 6..9);
    let answers = [Gather::One(b"answer"), pieces.gather(chain, b"ans   wer")];
    let closing: Vec<_> =
        (0..CONNECTIONS).map(|at| Outgoing::stream(token(at), answers[at % 2], true)).collect();
    counted.turn_until(CONNECTIONS, &closing);

    let mut peer = counted.rig.datagram_peer(AddressKind::V4);
    for _ in 0..CONNECTIONS {
        DatagramPeer::send(&mut peer, datagrams.1, b"question");
    }
    for event in counted.turn_until(CONNECTIONS, &[]) {
        let DriverEvent::Datagram { buffer, .. } = event else { panic!("{event:?}") };
        counted.count_allocations(|driver| driver.release(buffer));
    }
    let to = Some(DatagramPeer::local_addr(&peer));
    let bytes = Gather::One(b"answer");
    let answers = vec![Outgoing { token: datagrams.0, bytes, to, from: None, close: false }; CONNECTIONS];
    // A wake handle is created once per thread, so its creation is not counted.
    counted.driver.wake_handle().wake();
    counted.turn_until(1, &answers);
    counted.allocations
}

fn a_warm_driver_allocates_nothing<D: SystemDriver>() {
    let mut rig = SystemRig::<D>::new();
    let driver = rig.driver();
    let (listener, destination) = rig.listener(AddressKind::V4);
    let (socket, address) = rig.datagram_socket(AddressKind::V4);
    let mut counted: CountedDriver<D> = CountedDriver {
        rig,
        driver,
        incomplete_sends: Vec::with_capacity(1024),
        events: Vec::with_capacity(1024),
        allocations: 0,
    };
    let (listening, datagrams) = (Token::new(0, 1), Token::new(1, 1));
    counted.driver.listen(listening, listener).expect("listen");
    counted.driver.accept(listening);
    counted.driver.attach(datagrams, socket.into(), SourceKind::Datagram, false).expect("attach");
    counted.driver.receive(datagrams);
    let warm_up =
        (1..4).map(|generation| round(&mut counted, &destination, (datagrams, address), generation));
    assert!(warm_up.sum::<u64>() > 0, "the allocator counts nothing");
    for generation in 4..10 {
        let allocations = round(&mut counted, &destination, (datagrams, address), generation);
        assert_eq!(allocations, 0, "in round {generation}");
    }
}

/// Row 4.6: nothing is allocated per turn, connection or datagram.
#[test]
fn a_warm_poll_driver_allocates_nothing() {
    a_warm_driver_allocates_nothing::<Poll>();
}

/// Row 4.6: the same on io_uring.
#[test]
fn a_warm_uring_driver_allocates_nothing() {
    a_warm_driver_allocates_nothing::<Uring>();
}

/// Row 4.6: the same with direct descriptors.
#[test]
fn a_warm_uring_driver_with_direct_descriptors_allocates_nothing() {
    a_warm_driver_allocates_nothing::<DirectUring>();
}
