//! The network behaves like Linux as far as the user of a socket can observe. The driver suite shows that both sides
//! agree; these tests cover corners that a test over real sockets cannot reach at will: full backlogs, deferring
//! listeners, discarded bytes, lost datagrams.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use stilling_engine::Token;
use stilling_engine::driver::{
    Destination, Driver, DriverEvent, Gather, IncompleteSend, Outgoing, SourceKind, Wait,
};
use stilling_simulation::{
    Address, FaultRates, Network, NetworkFault, NetworkOptions, SimDriver, SimPeer, SimSocket,
};

const LISTENER: Token = Token::new(0, 1);
const SOCKET: Token = Token::new(1, 1);

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn network(faults: FaultRates, latency_ms: u64) -> Network {
    let latency = (Duration::from_millis(latency_ms), Duration::from_millis(latency_ms));
    Network::new(1, NetworkOptions { latency, buffer: 1000, faults })
}

/// A driver and the events of its last turn.
struct TestShard {
    network: Network,
    driver: SimDriver,
    incomplete_sends: Vec<IncompleteSend>,
    events: Vec<DriverEvent<SimSocket>>,
}

impl TestShard {
    fn new(network: &Network) -> Self {
        let driver = SimDriver::new(network);
        TestShard { network: network.clone(), driver, incomplete_sends: Vec::new(), events: Vec::new() }
    }

    fn turn(&mut self, outgoing: &[Outgoing<'_>]) -> &[DriverEvent<SimSocket>] {
        self.incomplete_sends.clear();
        self.events.clear();
        let now = self.network.now();
        self.driver
            .turn(now, Wait::No, outgoing.iter().copied(), &mut self.incomplete_sends, &mut self.events)
            .expect("turns");
        &self.events
    }

    fn listen(&mut self, backlog: usize, defer: Option<Duration>) -> Address {
        let listener = self.network.listen(Address::Tcp(address("10.0.0.1:80")), backlog, defer);
        let at = listener.listening_at().expect("it listens");
        self.driver.listen(LISTENER, listener).expect("the slot is free");
        at
    }

    fn accept_and_attach(&mut self) {
        let Some(DriverEvent::Accepted { socket, .. }) = self.events.pop() else {
            panic!("nothing accepted")
        };
        self.driver.attach(SOCKET, socket, SourceKind::Stream, false).expect("the slot is free");
    }
}

fn after(network: &Network, ms: u64) {
    network.advance_to(network.now().after(Duration::from_millis(ms)));
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<i32> {
    result.expect_err("it fails").raw_os_error()
}

/// Row 0.8: the backlog holds clients; further clients retry and connect when there is room.
#[test]
fn a_full_backlog_makes_clients_retry() {
    let network = network(FaultRates::NONE, 1);
    let mut shard = TestShard::new(&network);
    let at = shard.listen(1, None);
    let first = network.connect(at.clone(), None);
    let second = network.connect(at, None);
    after(&network, 10);
    assert_eq!((first.connected().ok(), second.connected().ok()), (Some(true), Some(false)));
    shard.driver.accept(LISTENER);
    assert_eq!(shard.turn(&[]).len(), 1);
    after(&network, 1000);
    assert_eq!(second.connected().ok(), Some(true));
    assert_eq!(shard.turn(&[]).len(), 1);
}

#[test]
fn a_missing_listener_refuses_and_a_closed_listener_resets_its_queue() {
    let network = network(FaultRates::NONE, 1);
    let mut shard = TestShard::new(&network);
    let refused = network.connect(Address::Tcp(address("10.0.0.1:81")), None);
    let at = shard.listen(5, None);
    let mut queued = network.connect(at, None);
    after(&network, 5);
    assert_eq!(errno(refused.connected()), Some(libc::ECONNREFUSED));
    assert_eq!(queued.connected().ok(), Some(true));
    shard.driver.close(LISTENER);
    assert!(matches!(shard.turn(&[]), [DriverEvent::Closed { token: LISTENER }]));
    after(&network, 5);
    assert_eq!(errno(queued.read(&mut [0])), Some(libc::ECONNRESET));
}

#[test]
fn a_deferring_listener_reports_a_connection_with_its_first_bytes_or_after_its_timeout() {
    let network = network(FaultRates::NONE, 1);
    let mut shard = TestShard::new(&network);
    let at = shard.listen(5, Some(Duration::from_millis(100)));
    shard.driver.accept(LISTENER);
    shard.turn(&[]);
    let _silent = network.connect(at.clone(), None);
    let mut sender = network.connect(at, None);
    after(&network, 1);
    assert!(shard.turn(&[]).is_empty());
    sender.write(b"GET").expect("it is connected");
    after(&network, 1);
    let [DriverEvent::Accepted { socket, .. }] = shard.turn(&[]) else { panic!("a connection with data") };
    assert_eq!(socket.peer_addr(), sender.local_addr());
    after(&network, 100);
    assert!(matches!(shard.turn(&[]), [DriverEvent::Accepted { .. }]));
}

#[test]
fn bytes_before_a_close_arrive_unless_unread_bytes_make_it_a_reset() {
    for unread in [false, true] {
        let network = network(FaultRates::NONE, 1);
        let mut shard = TestShard::new(&network);
        let at = shard.listen(5, None);
        shard.driver.accept(LISTENER);
        let mut peer = network.connect(at, None);
        after(&network, 1);
        shard.turn(&[]);
        shard.accept_and_attach();
        if unread {
            peer.write(b"ignored").expect("it is connected");
            after(&network, 1);
        }
        shard.turn(&[Outgoing::stream(SOCKET, Gather::One(b"bye"), true)]);
        after(&network, 1);
        let mut into = [0; 10];
        match unread {
            false => {
                assert_eq!(peer.read(&mut into).ok(), Some(3));
                assert_eq!(peer.read(&mut into).ok(), Some(0));
            }
            true => assert_eq!(errno(peer.read(&mut into)), Some(libc::ECONNRESET)),
        }
    }
}

#[test]
fn writing_to_a_closed_peer_is_reset_on_tcp_and_fails_at_once_on_unix_sockets() {
    let network = network(FaultRates::NONE, 1);
    let mut shard = TestShard::new(&network);
    let at = shard.listen(5, None);
    shard.driver.accept(LISTENER);
    let peer = network.connect(at, None);
    after(&network, 1);
    shard.turn(&[]);
    shard.accept_and_attach();
    peer.close();
    after(&network, 1);
    let send = [Outgoing::stream(SOCKET, Gather::One(b"hello?"), false)];
    shard.turn(&send);
    assert!(shard.incomplete_sends.is_empty(), "the first send is taken");
    after(&network, 2);
    for expected in [libc::ECONNRESET, libc::EPIPE] {
        shard.turn(&send);
        let error = shard.incomplete_sends[0].error.as_ref().and_then(std::io::Error::raw_os_error);
        assert_eq!(error, Some(expected));
    }
    let (one, other) = network.pair();
    let mut one = SimPeer::new(one);
    drop(other);
    assert_eq!(errno(one.write(b"x")), Some(libc::EPIPE));
    assert_eq!(one.read(&mut [0]).ok(), Some(0));
}

#[test]
fn a_full_pipe_blocks_and_a_pipe_without_reader_breaks() {
    let network = network(FaultRates::NONE, 1);
    let (reader, writer) = network.pipe();
    let (mut reader, mut writer) = (SimPeer::new(reader), SimPeer::new(writer));
    assert_eq!(writer.write(&[7; 1500]).ok(), Some(1000));
    assert_eq!(writer.write(b"x").expect_err("full").kind(), ErrorKind::WouldBlock);
    assert_eq!(reader.read(&mut [0; 600]).ok(), Some(600));
    assert_eq!(writer.write(&[7; 1500]).ok(), Some(600));
    reader.close();
    assert_eq!(errno(writer.write(b"x")), Some(libc::EPIPE));
}

#[test]
fn a_discarding_reset_loses_unread_bytes_and_reports_it() {
    let network = network(FaultRates::NONE.with(NetworkFault::DiscardingReset, 1000), 1);
    let (one, other) = network.pair();
    let (mut one, other) = (SimPeer::new(one), SimPeer::new(other));
    let mut other = other;
    other.write(b"lost").expect("there is room");
    other.reset();
    assert_eq!(errno(one.read(&mut [0; 10])), Some(libc::ECONNRESET));
    assert!(one.is_damaged());
}

#[test]
fn a_shard_connects_from_its_configured_address() {
    let network = network(FaultRates::NONE, 1);
    let mut shard = TestShard::new(&network);
    let listener = network.listen_as_peer(Address::Tcp(address("[::1]:9")));
    let from = Some(address("[::2]:77"));
    let to = Destination::Tcp { to: address("[::1]:9"), from };
    shard.driver.connect(SOCKET, &to).expect("the slot is free");
    assert!(shard.turn(&[]).is_empty());
    after(&network, 1);
    assert!(matches!(shard.turn(&[]), [DriverEvent::Connected { token: SOCKET }]));
    let mut peer = listener.accept().expect("one waits");
    peer.write(b"welcome").expect("it is connected");
    after(&network, 1);
    assert_eq!(shard.driver.recv_now(SOCKET, &mut [0; 20]).ok(), Some(7));
}

#[test]
fn datagrams_are_lost_duplicated_and_truncated_as_configured() {
    for (fault, copies) in
        [(None, 1), (Some(NetworkFault::DatagramLost), 0), (Some(NetworkFault::DatagramTwice), 2)]
    {
        let faults = fault.map_or(FaultRates::NONE, |fault| FaultRates::NONE.with(fault, 1000));
        let network = network(faults, 1);
        let mut shard = TestShard::new(&network);
        let socket = network.bind(address("10.0.0.1:5683"));
        shard.driver.attach(SOCKET, socket, SourceKind::Datagram, false).expect("the slot is free");
        shard.driver.receive(SOCKET);
        let peer = network.bind_as_peer(address("10.0.0.2:0"));
        peer.send(address("10.0.0.1:5683"), &[9; 5000]).expect("it fits");
        after(&network, 1);
        let buffers: Vec<_> = shard
            .turn(&[])
            .iter()
            .map(|event| match event {
                DriverEvent::Datagram { buffer, .. } => *buffer,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(buffers.len(), copies, "{fault:?}");
        for buffer in buffers {
            let datagram = shard.driver.datagram(buffer);
            assert_eq!((datagram.from, datagram.payload.len()), (peer.local_addr(), 4096));
            assert!(datagram.truncated);
            shard.driver.release(buffer);
        }
        let (bytes, to) = (Gather::One(b"answer"), Some(peer.local_addr()));
        let answer = Outgoing { token: SOCKET, bytes, to, from: None, close: false };
        shard.turn(&[answer]);
        after(&network, 1);
        for _ in 0..copies {
            assert_eq!(peer.receive(), Some((address("10.0.0.1:5683"), b"answer".to_vec())));
        }
        assert_eq!(peer.receive(), None);
    }
}

#[test]
fn changed_peers_are_listed_once_and_only_after_a_change() {
    let network = network(FaultRates::NONE, 1);
    let (one, other) = network.pair();
    let (one, mut other) = (SimPeer::new(one), SimPeer::new(other));
    let mut changed = Vec::new();
    network.take_changed(&mut changed);
    changed.clear();
    for _ in 0..3 {
        other.write(b"x").expect("there is room");
    }
    network.take_changed(&mut changed);
    assert_eq!(changed, [one.key()]);
    changed.clear();
    network.take_changed(&mut changed);
    assert!(changed.is_empty());
}
