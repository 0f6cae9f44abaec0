//! Events of a connection while its session waits for the socket, and of a connection to be adopted: each case alone,
//! over the simulated network.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::counters::EngineCounters;
use stilling_engine::driver::Destination;
use stilling_engine::store::STASH_MAX;
use stilling_engine::{
    AdoptError, AdoptErrorKind, CloseReason, Detached, Io, Service, Session, Shard, ShardConfig, ShardControl,
};
use stilling_ring::{Time, Wake};
use stilling_simulation::{Address, Network, NetworkOptions, SimDriver, SimPeer, SimSocket};

/// Bytes per direction of a connection: more output than that is blocked until the peer reads.
const NETWORK_BUFFER: usize = 1000;

const CAPACITY: u32 = 2;

type Received = fn(&[u8], &mut Io<'_>, &mut DetachService) -> usize;
type DetachTurn = fn(&mut ShardControl<'_, DetachService>);

struct DetachSession {
    received: Received,
}

/// Shared by the sessions: the service's action in its next turn, and the recorded results.
struct DetachService {
    received: Received,
    turn: Option<DetachTurn>,
    ended: Vec<CloseReason>,
    /// The time in the last session's `opened`.
    opened_at: Option<Time>,
}

impl Service for DetachService {
    type Session = DetachSession;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> DetachSession {
        DetachSession { received: self.received }
    }

    fn turn(&mut self, control: &mut ShardControl<'_, Self>) -> Option<Time> {
        if let Some(act) = self.turn.take() {
            act(control);
        }
        None
    }
}

impl Session for DetachSession {
    type Service = DetachService;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut DetachService) {
        service.opened_at = Some(io.now());
    }

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, service: &mut DetachService) -> usize {
        (self.received)(bytes, io, service)
    }

    fn closed(&mut self, reason: CloseReason, service: &mut DetachService) {
        service.ended.push(reason);
    }
}

type DetachedConnection = Detached<SimSocket, DetachSession>;

struct DetachFixture {
    network: Network,
    shard: Shard<SimDriver, DetachService>,
    address: Address,
    detached_queue: Rc<RefCell<Vec<DetachedConnection>>>,
}

impl DetachFixture {
    fn new(received: Received) -> Self {
        let network = Network::new(1, NetworkOptions { buffer: NETWORK_BUFFER, ..NetworkOptions::default() });
        let listener = network.listen(Address::Tcp("10.0.0.1:80".parse().expect("an address")), 16, None);
        let address = listener.listening_at().expect("it listens");
        let mut shard = shard(&network, received);
        shard.listen(listener, false).expect("the first listener");
        let detached_queue = Rc::new(RefCell::new(Vec::new()));
        let queue = Rc::clone(&detached_queue);
        shard.on_detached(move |_, it| queue.borrow_mut().push(it));
        DetachFixture { network, shard, address, detached_queue }
    }

    fn client(&mut self, says: &[u8]) -> SimPeer {
        let mut peer = self.network.connect(self.address.clone(), None);
        self.turns();
        assert_eq!(peer.write(says).expect("there is room"), says.len());
        self.turns();
        peer
    }

    /// Runs turns until nothing more happens without the time advancing.
    fn turns(&mut self) {
        turns(&self.network, &mut self.shard);
    }

    fn ended(&mut self) -> Vec<CloseReason> {
        let counters = self.shard.counters();
        assert_eq!(counters.open.get(), u64::from(self.shard.open_connections()));
        let counted = CloseReason::ALL.map(|reason| counters.closed(reason).get());
        let ended = std::mem::take(&mut self.shard.service().ended);
        for reason in CloseReason::ALL {
            let reported = ended.iter().filter(|it| **it == reason).count();
            assert_eq!(counted[reason as usize], reported as u64, "{reason:?}");
        }
        ended
    }

    fn take(&mut self) -> Option<DetachedConnection> {
        self.detached_queue.borrow_mut().pop()
    }

    /// Asserts that the connection has ended for `reason`, and its socket with it.
    #[track_caller]
    fn expect_end(&mut self, reason: CloseReason) {
        assert_eq!(self.ended(), [reason]);
        assert!(self.take().is_none(), "the socket was handed over");
        assert_eq!((self.shard.open_connections(), self.shard.held_bytes()), (0, (0, 0)));
    }
}

fn shard(network: &Network, received: Received) -> Shard<SimDriver, DetachService> {
    reserving_shard(network, received, 0)
}

fn reserving_shard(
    network: &Network,
    received: Received,
    reserved_connects: u32,
) -> Shard<SimDriver, DetachService> {
    let service = DetachService { received, turn: None, ended: Vec::new(), opened_at: None };
    let config = ShardConfig { capacity: CAPACITY, reserved_connects, ..ShardConfig::default() };
    let (wake, counters) = (Arc::new(Wake::new(|| ())), Arc::new(EngineCounters::default()));
    Shard::new(SimDriver::new(network), service, config, network.clock(), wake, counters)
}

fn turns(network: &Network, shard: &mut Shard<SimDriver, DetachService>) {
    let (mut before, mut quiet) = (network.activity(), 0);
    // Requests of one turn are carried out in the next, so one quiet turn is not the last.
    while quiet < 2 {
        shard.turn(false).expect("turns");
        shard.audit().unwrap_or_else(|why| panic!("{why}"));
        quiet = if network.activity() == before { quiet + 1 } else { 0 };
        before = network.activity();
    }
}

/// Everything that the peer can read now; the flag reports the end of the stream.
fn read(peer: &mut SimPeer) -> (Vec<u8>, bool) {
    let (mut all, mut into) = (Vec::new(), [0; 4096]);
    loop {
        match peer.read(&mut into) {
            Ok(0) => return (all, true),
            Ok(len) => all.extend_from_slice(&into[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return (all, false),
            Err(error) => panic!("{error}"),
        }
    }
}

fn drain(control: &mut ShardControl<'_, DetachService>) {
    control.drain();
}

fn stop(control: &mut ShardControl<'_, DetachService>) {
    control.stop();
}

fn detach_after_five(_: &[u8], io: &mut Io<'_>, _: &mut DetachService) -> usize {
    io.send(b"bye").expect("there is room");
    io.detach();
    5
}

/// Detaches after more output than the network holds.
fn detach_behind_output(bytes: &[u8], io: &mut Io<'_>, _: &mut DetachService) -> usize {
    io.send(&[b'x'; 5 * NETWORK_BUFFER]).expect("there is room");
    io.detach();
    bytes.len()
}

/// Row 4.4: output is sent first, and unconsumed input leaves with the socket.
#[test]
fn output_is_sent_and_unread_input_is_handed_over() {
    let mut fixture = DetachFixture::new(detach_after_five);
    let mut peer = fixture.client(b"leaveand more");
    let it = fixture.take().expect("it has left");
    assert_eq!(it.unread, b"and more");
    assert_eq!(fixture.ended(), [CloseReason::Detached]);
    assert_eq!((fixture.shard.open_connections(), fixture.shard.held_bytes()), (0, (0, 0)));
    assert_eq!(read(&mut peer), (b"bye".to_vec(), false));
    drop(it);
    assert_eq!(read(&mut peer), (Vec::new(), true));
}

/// Row 4.4: without a handler the socket is closed, and the session is notified.
#[test]
fn a_detached_socket_without_a_receiver_is_closed() {
    let mut fixture = DetachFixture::new(detach_after_five);
    let mut alone = shard(&fixture.network, detach_after_five);
    let socket = fixture.network.listen(Address::Tcp("10.0.0.1:81".parse().expect("an address")), 1, None);
    fixture.address = socket.listening_at().expect("it listens");
    alone.listen(socket, false).expect("the first listener");
    fixture.shard = alone;
    let mut peer = fixture.client(b"leave");
    assert_eq!(read(&mut peer), (b"bye".to_vec(), true));
    fixture.expect_end(CloseReason::Detached);
}

/// Row 4.4: the first request to end a connection counts.
#[test]
fn detaching_twice_and_then_finishing_changes_nothing() {
    let mut fixture = DetachFixture::new(|bytes, io, _| {
        io.detach();
        io.detach();
        io.finish(CloseReason::Done);
        io.finish_lingering(CloseReason::Done);
        bytes.len()
    });
    let _peer = fixture.client(b"leave");
    assert!(fixture.take().is_some());
    assert_eq!(fixture.ended(), [CloseReason::Detached]);
    fixture.shard.service().received = |bytes, io, _| {
        io.finish(CloseReason::Done);
        io.detach();
        bytes.len()
    };
    let mut peer = fixture.client(b"leave");
    assert!(fixture.take().is_none());
    assert_eq!(read(&mut peer), (Vec::new(), true));
}

/// Row 4.4: a session may abort after its request.
#[test]
fn an_abort_after_a_detach_request_ends_the_connection() {
    let mut fixture = DetachFixture::new(|bytes, io, _| {
        io.detach();
        io.abort(CloseReason::ProtocolError);
        bytes.len()
    });
    let _peer = fixture.client(b"leave");
    fixture.expect_end(CloseReason::ProtocolError);
}

/// Row 4.36: blocked output is sent first, however long the peer takes, and its input meanwhile is kept.
#[test]
fn a_slow_reader_gets_all_output_before_the_detach() {
    let mut fixture = DetachFixture::new(detach_behind_output);
    let mut peer = fixture.client(b"leave");
    let mut all = Vec::new();
    peer.write(b"meanwhile").expect("there is room");
    while fixture.detached_queue.borrow().is_empty() {
        let (some, end) = read(&mut peer);
        assert!(!some.is_empty() && !end, "after {} bytes", all.len());
        all.extend(some);
        fixture.turns();
    }
    assert!(all.len() >= 4 * NETWORK_BUFFER, "it left before its output was with the network");
    all.extend(read(&mut peer).0);
    assert_eq!(all, [b'x'; 5 * NETWORK_BUFFER]);
    let it = fixture.take().expect("just seen");
    // The input was received before, or is still in the socket: attached elsewhere, it is shown.
    fixture.shard.service().received = |bytes, io, _| {
        io.send(bytes).expect("there is room");
        bytes.len()
    };
    let received = fixture.shard.service().received;
    let it = it.with_session(|_| DetachSession { received });
    assert!(fixture.shard.adopt(it).is_ok());
    fixture.turns();
    assert_eq!(read(&mut peer), (b"meanwhile".to_vec(), false));
}

/// Row 4.36: the write timeout ends a connection whose peer never reads.
#[test]
fn the_write_timeout_ends_a_connection_being_detached() {
    let mut fixture = DetachFixture::new(detach_behind_output);
    let _peer = fixture.client(b"leave");
    assert_eq!(fixture.shard.open_connections(), 1);
    fixture.network.advance_to(fixture.network.now().after(ShardConfig::default().write_timeout));
    fixture.turns();
    fixture.expect_end(CloseReason::WriteTimeout);
}

/// Row 4.34: a reset while output is blocked.
#[test]
fn a_reset_ends_a_connection_being_detached() {
    let mut fixture = DetachFixture::new(detach_behind_output);
    let peer = fixture.client(b"leave");
    peer.reset();
    fixture.turns();
    fixture.expect_end(CloseReason::PeerReset);
}

/// Row 4.33: a peer that has ended its sending direction can still be answered.
#[test]
fn a_half_closed_connection_is_detached() {
    let mut fixture = DetachFixture::new(detach_behind_output);
    let mut peer = fixture.client(b"leave");
    peer.shutdown();
    fixture.turns();
    let mut read_len = 0;
    while fixture.detached_queue.borrow().is_empty() {
        read_len += read(&mut peer).0.len();
        fixture.turns();
    }
    read_len += read(&mut peer).0.len();
    assert_eq!(read_len, 5 * NETWORK_BUFFER);
    assert_eq!(fixture.ended(), [CloseReason::Detached]);
    let it = fixture.take().expect("just seen");
    assert!(fixture.shard.adopt(it).is_ok());
    fixture.turns();
    // The end is still in the socket, and the default session finishes at it.
    assert_eq!(read(&mut peer), (Vec::new(), true));
    assert_eq!(fixture.shard.service().ended, [CloseReason::PeerClosed]);
}

/// Row 4.4: a connection that waits to be detached is detached also when the server drains.
#[test]
fn a_drain_does_not_delay_a_detach() {
    let mut fixture = DetachFixture::new(detach_behind_output);
    let mut peer = fixture.client(b"leave");
    fixture.shard.service().turn = Some(drain);
    fixture.turns();
    assert_eq!(fixture.shard.open_connections(), 1);
    while fixture.detached_queue.borrow().is_empty() {
        assert!(!read(&mut peer).0.is_empty(), "it was cut off");
        fixture.turns();
    }
    assert_eq!(fixture.ended(), [CloseReason::Detached]);
}

/// Row 4.4: an abort of all connections ends it before its output is sent.
#[test]
fn an_abort_includes_connections_being_detached() {
    let mut fixture = DetachFixture::new(detach_behind_output);
    let _peer = fixture.client(b"leave");
    fixture.shard.service().turn = Some(|control| control.abort_all(CloseReason::DrainTimeout));
    fixture.turns();
    fixture.expect_end(CloseReason::DrainTimeout);
}

/// Row 4.4: an abort ends it while the driver is about to return the socket.
#[test]
fn a_late_socket_is_closed() {
    let mut fixture = DetachFixture::new(|bytes, io, service| {
        io.detach();
        // At this call the driver has the request, but has not returned the socket.
        service.turn = Some(|control| control.abort_all(CloseReason::DrainTimeout));
        bytes.len()
    });
    let mut peer = fixture.client(b"leave");
    fixture.expect_end(CloseReason::DrainTimeout);
    assert_eq!(read(&mut peer), (Vec::new(), true));
}

/// Row 4.34: a stopped shard leaves no connection behind.
#[test]
fn a_stopped_shard_closes_connections_being_detached() {
    let mut fixture = DetachFixture::new(|bytes, io, service| {
        io.detach();
        service.turn = Some(stop);
        bytes.len()
    });
    let mut peer = fixture.network.connect(fixture.address.clone(), None);
    peer.write(b"leave").expect("there is room");
    while !fixture.shard.is_stopped() {
        fixture.shard.turn(false).expect("turns");
    }
    assert_eq!((fixture.shard.open_connections(), read(&mut peer).1), (1, false));
    fixture.shard = shard(&fixture.network, detach_after_five);
    assert_eq!(read(&mut peer), (Vec::new(), true));
}

/// Two ends of a connection that belongs to no shard.
fn open_connection(network: &Network) -> (DetachedConnection, SimPeer) {
    let (here, there) = network.pair();
    (Detached::new(here, DetachSession { received: detach_after_five }), SimPeer::new(there))
}

/// Row 4.9: a full shard returns an error with the whole connection, which can be adopted when there is room.
#[test]
fn a_full_shard_returns_the_connection() {
    let mut fixture = DetachFixture::new(detach_after_five);
    let (first, mut peer) = open_connection(&fixture.network);
    let (second, _second_peer) = open_connection(&fixture.network);
    let (third, mut third_peer) = open_connection(&fixture.network);
    assert!(fixture.shard.adopt(first).is_ok() && fixture.shard.adopt(second).is_ok());
    let Err(AdoptError { error_kind, connection }) = fixture.shard.adopt(third) else {
        panic!("three in two slots")
    };
    assert_eq!(error_kind, AdoptErrorKind::NoFreeSlot);
    fixture.turns();
    peer.write(b"leave").expect("there is room");
    fixture.turns();
    assert!(fixture.take().is_some());
    assert!(fixture.shard.adopt(connection).is_ok());
    third_peer.write(b"leave").expect("there is room");
    fixture.turns();
    assert!(!fixture.detached_queue.borrow().is_empty());
    assert_eq!(read(&mut third_peer), (b"bye".to_vec(), false));
    assert_eq!(fixture.shard.counters().adopted.get(), 3);
}

/// Row 4.9: the same in a service's turn, where pending connects count as well.
#[test]
fn a_full_shard_returns_connections_to_its_service() {
    thread_local!(static WAITING: RefCell<Vec<DetachedConnection>> = const { RefCell::new(Vec::new()) });
    let mut fixture = DetachFixture::new(detach_after_five);
    let (connections, mut peers): (Vec<_>, Vec<_>) =
        (0..3).map(|_| open_connection(&fixture.network)).unzip();
    WAITING.set(connections);
    fixture.shard.service().turn = Some(|control| {
        let foreign =
            Detached::new("no socket of this driver", DetachSession { received: detach_after_five });
        let Err(AdoptError { error_kind, .. }) = control.adopt(foreign) else { panic!("what is that?") };
        assert_eq!(error_kind, AdoptErrorKind::ForeignSocket);
        let refused = WAITING.take().into_iter().filter_map(|it| control.adopt(it).err());
        let refused: Vec<_> =
            refused.map(|AdoptError { error_kind, connection }| (error_kind, connection)).collect();
        assert_eq!(refused.iter().map(|it| it.0).collect::<Vec<_>>(), [AdoptErrorKind::NoFreeSlot]);
        WAITING.set(refused.into_iter().map(|it| it.1).collect());
    });
    fixture.turns();
    assert_eq!((fixture.shard.open_connections(), WAITING.take().len()), (2, 1));
    for peer in &mut peers[..2] {
        peer.write(b"leave").expect("there is room");
    }
    fixture.turns();
    assert_eq!(fixture.ended(), [CloseReason::Detached; 2]);
    assert_eq!(read(&mut peers[2]), (Vec::new(), true));
}

/// Row 4.9: connects claim their reserved slots before those that a service may adopt into.
#[test]
fn connects_in_reserved_slots_leave_the_capacity_to_adoptions() {
    /// Connects and adoptions of the next turn; afterwards the refused ones.
    type Commands = (usize, Vec<DetachedConnection>);
    thread_local!(static COMMANDS: RefCell<Commands> = const { RefCell::new((0, Vec::new())) });
    const TARGET: &str = "10.0.0.2:80";
    let act: DetachTurn = |control| {
        let (connects, connections) = COMMANDS.take();
        for _ in 0..connects {
            let to = Destination::Tcp { to: TARGET.parse().expect("an address"), from: None };
            control.connect(to, DetachSession { received: detach_after_five });
        }
        let refused = connections.into_iter().filter_map(|it| control.adopt(it).err());
        let refused = refused.map(|AdoptError { error_kind, connection }| {
            assert_eq!(error_kind, AdoptErrorKind::NoFreeSlot);
            connection
        });
        COMMANDS.set((0, refused.collect()));
    };
    for (connected, connects, adopted) in
        [(0, 0, 2), (0, 1, 2), (1, 0, 2), (0, 2, 1), (1, 1, 1), (2, 0, 1), (0, 3, 0), (3, 0, 0), (0, 4, 0)]
    {
        let case = format!("{connected} connected, {connects} connects");
        let network = Network::new(1, NetworkOptions::default());
        let _listener = network.listen(Address::Tcp(TARGET.parse().expect("an address")), 16, None);
        let mut shard = reserving_shard(&network, detach_after_five, 1);
        let (connections, _peers): (Vec<_>, Vec<_>) = (0..3).map(|_| open_connection(&network)).unzip();
        for commands in [(connected, Vec::new()), (connects, connections)] {
            COMMANDS.set(commands);
            shard.service().turn = Some(act);
            turns(&network, &mut shard);
        }
        let mut refused = COMMANDS.take().1;
        assert_eq!(3 - refused.len(), adopted, "{case}");
        assert_eq!(shard.open_connections() as usize, (connected + connects).min(3) + adopted, "{case}");
        let Err(AdoptError { error_kind, .. }) = shard.adopt(refused.pop().expect("one is refused")) else {
            panic!("{case}: the shard has a slot")
        };
        assert_eq!(error_kind, AdoptErrorKind::NoFreeSlot, "{case}");
    }
}

/// Row 4.9: an open socket that becomes an outgoing connection has a reserved slot, like a connect; without a slot it is
/// closed.
#[test]
fn an_open_socket_becomes_an_outgoing_connection() {
    thread_local!(static OPEN: RefCell<Vec<DetachedConnection>> = const { RefCell::new(Vec::new()) });
    let act: DetachTurn = |control| {
        for connection in OPEN.take() {
            control.connect_open(connection.socket, DetachSession { received: detach_after_five });
        }
    };
    let network = Network::new(1, NetworkOptions::default());
    let mut shard = reserving_shard(&network, detach_after_five, 1);
    let (mut connections, mut peers): (Vec<_>, Vec<_>) = (0..4).map(|_| open_connection(&network)).unzip();
    let last = connections.pop().expect("there are four");
    OPEN.set(vec![connections.pop().expect("there are three")]);
    shard.service().turn = Some(act);
    turns(&network, &mut shard);
    for connection in connections {
        assert!(shard.adopt(connection).is_ok(), "the capacity is free");
    }
    OPEN.set(vec![last]);
    shard.service().turn = Some(act);
    turns(&network, &mut shard);
    assert_eq!(shard.open_connections(), 3);
    assert_eq!(read(&mut peers[3]), (Vec::new(), true));
    peers[2].write(b"hello").expect("there is room");
    turns(&network, &mut shard);
    assert_eq!(read(&mut peers[2]).0, b"bye");
}

/// Row 4.9: unread bytes that the shard cannot hold are returned with their connection.
#[test]
fn unread_bytes_without_room_come_back() {
    let mut fixture = DetachFixture::new(detach_after_five);
    let (mut it, mut peer) = open_connection(&fixture.network);
    it.unread = vec![b'u'; STASH_MAX + 1];
    let Err(AdoptError { error_kind, mut connection }) = fixture.shard.adopt(it) else {
        panic!("it fits nowhere")
    };
    assert_eq!((error_kind, connection.unread.len()), (AdoptErrorKind::InputFull, STASH_MAX + 1));
    connection.unread.truncate(STASH_MAX);
    assert!(fixture.shard.adopt(connection).is_ok());
    fixture.turns();
    assert_eq!(read(&mut peer), (b"bye".to_vec(), false));
    assert_eq!(fixture.take().expect("it has left again").unread.len(), STASH_MAX - 5);
    assert_eq!(fixture.shard.held_bytes(), (0, 0));
}

/// Row 4.5: a shard that slept for long gives an adopted session the time of its adoption.
#[test]
fn an_adopted_session_has_the_current_time() {
    let mut fixture = DetachFixture::new(detach_after_five);
    fixture.turns();
    let later = fixture.network.now().after(Duration::from_secs(3600));
    fixture.network.advance_to(later);
    let (it, _peer) = open_connection(&fixture.network);
    assert!(fixture.shard.adopt(it).is_ok());
    assert_eq!(fixture.shard.service().opened_at, Some(later));
}
