//! Datagrams sent outside of a callback: at the end of a turn, on mail, and while the socket is being closed.

use std::collections::VecDeque;
use std::net::SocketAddr;

use stilling_engine::driver::Datagram;
use stilling_engine::limits::{ARENA_SIZE, SEND_MAX};
use stilling_engine::{
    DatagramDropReason, DatagramIo, DatagramPath, Io, OutputFull, PassedDatagram, Recipient, Service,
    Session, ShardConfig, ShardControl, Time,
};
use stilling_simulation::SimDatagramPeer;
use stilling_simulation::single_shard::SingleShard;

type DatagramTurn = fn(&mut ShardControl<'_, ObserverService>, DatagramPath) -> Vec<Result<(), OutputFull>>;

#[derive(Default)]
struct ObserverService {
    path: Option<DatagramPath>,
    turn: Option<DatagramTurn>,
    outcomes: Vec<Result<(), OutputFull>>,
    mail: VecDeque<(Recipient, Vec<u8>)>,
    delivered: usize,
    passed: Vec<(DatagramPath, bool, Vec<u8>)>,
}

struct ObserverSession;

impl Service for ObserverService {
    type Session = ObserverSession;
    type Mail = Vec<u8>;

    fn accepted(&mut self, _listener: u32) -> ObserverSession {
        ObserverSession
    }

    fn next_mail(&mut self) -> Option<(Recipient, Vec<u8>)> {
        self.mail.pop_front()
    }

    fn has_mail(&self) -> bool {
        !self.mail.is_empty()
    }

    fn datagram(&mut self, _: &Datagram<'_>, io: &mut DatagramIo<'_>) {
        self.path = Some(io.path());
    }

    fn datagram_passed(&mut self, _: Time, path: &DatagramPath, datagram: &PassedDatagram<'_>) {
        self.passed.push((*path, datagram.is_sent, datagram.payload.to_vec()));
    }

    fn delivered(&mut self, mail: Vec<u8>, io: &mut DatagramIo<'_>) {
        self.delivered += 1;
        self.outcomes.push(io.reply(&mail));
    }

    fn turn(&mut self, control: &mut ShardControl<'_, Self>) -> Option<Time> {
        if let Some(turn) = self.turn.take() {
            self.outcomes = turn(control, self.path.expect("the observer is registered"));
        }
        None
    }
}

impl Session for ObserverSession {
    type Service = ObserverService;

    fn received(&mut self, bytes: &[u8], _: &mut Io<'_>, _: &mut ObserverService) -> usize {
        bytes.len()
    }
}

fn observed() -> (SingleShard<ObserverService>, SimDatagramPeer) {
    observed_with(ShardConfig { capacity: 1, ..ShardConfig::default() })
}

fn observed_with(config: ShardConfig) -> (SingleShard<ObserverService>, SimDatagramPeer) {
    let mut world = SingleShard::new(ObserverService::default(), config, 1000);
    let address: SocketAddr = "10.0.0.1:5683".parse().expect("an address");
    let socket = world.network.bind(address);
    assert_eq!(world.shard.receive_datagrams(socket).expect("the driver accepts it"), 1);
    let observer = world.network.bind_as_peer("10.0.0.2:5683".parse().expect("an address"));
    observer.send(address, b"here").expect("it is short");
    world.run_turns();
    let path = world.service().path.expect("its datagram was received");
    assert_eq!(path, DatagramPath { socket: 1, peer: observer.local_addr(), local: None });
    (world, observer)
}

fn received_datagrams(observer: &SimDatagramPeer) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| Some(observer.receive()?.1)).collect()
}

/// Row 5.1: a service sends at the end of a turn, within the turn's remaining room; a datagram without room is not
/// sent, and a shorter one after it is.
#[test]
fn a_turn_has_room_for_datagrams_at_its_end() {
    let (mut world, observer) = observed();
    world.service().turn = Some(|control, path| {
        let long = vec![b'x'; SEND_MAX / 2 - 200];
        (0..40).map(|at| control.send_datagram(&path, if at < 39 { &long } else { b"!" })).collect()
    });
    world.run_turns();
    let sent = world.service().outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert_eq!((sent, world.service().outcomes.last()), (ARENA_SIZE / (SEND_MAX / 2) + 1, Some(&Ok(()))));
    let lens: Vec<usize> = received_datagrams(&observer).iter().map(Vec::len).collect();
    assert_eq!((lens.len(), lens.last()), (sent, Some(&1)));
    assert_eq!(world.shard.counters().datagrams_sent.get(), sent as u64);
}

/// Row 5.1: mail for a peer of a datagram socket is answered like a datagram.
#[test]
fn mail_reaches_a_peer() {
    let (mut world, observer) = observed();
    let path = world.service().path.expect("its datagram was received");
    for text in ["one", "two"] {
        world.service().mail.push_back((path.into(), text.into()));
    }
    world.run_turns();
    assert_eq!(received_datagrams(&observer), [b"one", b"two"]);
}

/// Row 1.13: with `reports_datagrams` the service sees every datagram that was received or sent, with its path, and none
/// that was not sent; without it none.
#[test]
fn datagrams_in_and_out_are_reported() {
    for reports_datagrams in [true, false] {
        let config = ShardConfig { capacity: 1, reports_datagrams, ..ShardConfig::default() };
        let (mut world, observer) = observed_with(config);
        let path = world.service().path.expect("its datagram was received");
        world.service().turn = Some(|control, path| {
            let closed = DatagramPath { socket: 7, ..path };
            vec![control.send_datagram(&path, b"there"), control.send_datagram(&closed, b"nowhere")]
        });
        world.run_turns();
        assert_eq!(received_datagrams(&observer), [b"there"]);
        let expected = match reports_datagrams {
            true => vec![(path, false, b"here".to_vec()), (path, true, b"there".to_vec())],
            false => Vec::new(),
        };
        assert_eq!(world.service().passed, expected);
    }
}

/// Row 4.37: a stopped socket leaves later datagrams to another holder, and still sends until it is closed.
#[test]
fn a_stopped_socket_only_sends() {
    let (mut world, observer) = observed();
    world.service().turn = Some(|control, _| {
        control.stop_datagram_sockets();
        Vec::new()
    });
    world.run_turns();
    let received = world.shard.counters().datagrams_received.get();
    let address = "10.0.0.1:5683".parse().expect("an address");
    observer.send(address, b"for another holder").expect("it is short");
    world.service().turn = Some(|control, path| {
        assert!(control.has_datagram_sockets() && !control.receives_datagrams());
        vec![control.send_datagram(&path, b"still sent")]
    });
    world.run_turns();
    assert_eq!(received_datagrams(&observer), [b"still sent"]);
    assert_eq!(world.shard.counters().datagrams_received.get(), received);
    world.service().turn = Some(|control, _| {
        control.close_datagram_sockets();
        Vec::new()
    });
    world.run_turns();
    world.service().turn = Some(|control, path| {
        assert!(!control.has_datagram_sockets());
        vec![control.send_datagram(&path, b"too late")]
    });
    world.run_turns();
    assert!(received_datagrams(&observer).is_empty());
}

/// Row 4.36: a turn's datagrams by a socket that is closed in the same turn are sent before the close; later ones are
/// dropped.
#[test]
fn a_socket_is_closed_after_its_last_datagram() {
    let (mut world, observer) = observed();
    world.service().turn = Some(|control, path| {
        let outcome = control.send_datagram(&path, b"the last word");
        control.close_datagram_sockets();
        vec![outcome]
    });
    world.run_turns();
    assert_eq!(received_datagrams(&observer), [b"the last word"]);
    assert_eq!((world.service().delivered, world.shard.counters().datagrams_dropped_total()), (0, 0));
    let path = world.service().path.expect("its datagram was received");
    world.service().mail.push_back((path.into(), b"too late".to_vec()));
    world.service().turn = Some(|control, path| {
        assert!(!control.has_datagram_sockets());
        vec![control.send_datagram(&path, b"too late")]
    });
    world.run_turns();
    assert_eq!((received_datagrams(&observer), world.service().delivered), (Vec::new(), 0));
    let dropped = world.shard.counters().datagrams_dropped(DatagramDropReason::SocketClosed);
    assert_eq!(dropped.get(), 2, "no loss is silent");
}
