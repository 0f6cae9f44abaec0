//! Ends of connections when several causes coincide: a drain with more work than one turn has room for, a timeout
//! beside an event, an abort beside a send. Each case alone, over the simulated network.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::counters::EngineCounters;
use stilling_engine::driver::Destination;
use stilling_engine::limits::{ACCEPTS_PER_TURN, ARENA_SIZE, SEND_MAX};
use stilling_engine::{CloseReason, Io, NO_FREE_SLOT, Service, Session, Shard, ShardConfig, ShardControl};
use stilling_ring::{Time, Wake};
use stilling_simulation::{Address, FaultRates, Network, NetworkFault, NetworkOptions, SimDriver, SimPeer};

/// More connections than one turn's output has room for, if each sends its maximum.
const MANY: usize = 2 * ARENA_SIZE / SEND_MAX;

/// Bytes per direction of a connection that has room for all output.
const ROOMY: usize = 2 * SEND_MAX;

const WRITE_TIMEOUT: Duration = Duration::from_secs(3);
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

type EndAction = fn(&mut Io<'_>);
type EndTurn = fn(&mut ShardControl<'_, EndService>);

#[derive(Clone, Copy)]
struct EndScript {
    received: EndAction,
    ended: EndAction,
    draining: EndAction,
}

const QUIET: EndScript = EndScript { received: |_| (), ended: |_| (), draining: |_| () };

struct EndService {
    script: EndScript,
    turn: Option<EndTurn>,
    drain_count: usize,
    ended: Vec<CloseReason>,
    connect_errors: Vec<ErrorKind>,
}

struct EndSession;

impl Service for EndService {
    type Session = EndSession;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> EndSession {
        EndSession
    }

    fn turn(&mut self, control: &mut ShardControl<'_, Self>) -> Option<Time> {
        if let Some(act) = self.turn.take() {
            act(control);
        }
        None
    }
}

impl Session for EndSession {
    type Service = EndService;

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, service: &mut EndService) -> usize {
        (service.script.received)(io);
        bytes.len()
    }

    fn ended(&mut self, io: &mut Io<'_>, service: &mut EndService) {
        (service.script.ended)(io);
    }

    fn draining(&mut self, io: &mut Io<'_>, service: &mut EndService) {
        service.drain_count += 1;
        (service.script.draining)(io);
    }

    fn connect_failed(&mut self, error: &io::Error, service: &mut EndService) {
        service.connect_errors.push(error.kind());
    }

    fn closed(&mut self, reason: CloseReason, service: &mut EndService) {
        service.ended.push(reason);
    }
}

struct EndFixture {
    network: Network,
    shard: Shard<SimDriver, EndService>,
    address: Address,
}

impl EndFixture {
    fn new(script: EndScript, options: NetworkOptions) -> Self {
        let network = Network::new(1, options);
        let listener =
            network.listen(Address::Tcp("10.0.0.1:80".parse().expect("an address")), 2 * MANY, None);
        let address = listener.listening_at().expect("it listens");
        let config = ShardConfig {
            capacity: MANY as u32,
            write_timeout: WRITE_TIMEOUT,
            linger_timeout: LINGER_TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            ..ShardConfig::default()
        };
        let service =
            EndService { script, turn: None, drain_count: 0, ended: Vec::new(), connect_errors: Vec::new() };
        let (wake, counters) = (Arc::new(Wake::new(|| ())), Arc::new(EngineCounters::default()));
        let driver = SimDriver::new(&network);
        let mut shard = Shard::new(driver, service, config, network.clock(), wake, counters);
        shard.listen(listener, false).expect("the first listener");
        EndFixture { network, shard, address }
    }

    fn clients(&mut self, count: usize) -> Vec<SimPeer> {
        let clients = (0..count).map(|_| self.network.connect(self.address.clone(), None)).collect();
        self.turns();
        assert_eq!(self.shard.open_connections() as usize, count);
        clients
    }

    fn turn(&mut self) {
        self.shard.turn(false).expect("turns");
        self.shard.audit().unwrap_or_else(|why| panic!("{why}"));
    }

    /// Runs turns until nothing more happens without the time advancing.
    fn turns(&mut self) {
        let (mut before, mut quiet) = (self.network.activity(), 0);
        while quiet < 2 {
            self.turn();
            quiet = if self.network.activity() == before { quiet + 1 } else { 0 };
            before = self.network.activity();
        }
    }

    /// Runs turns at intervals until `span` has passed.
    fn turn_for(&mut self, span: Duration) {
        let until = self.network.now().after(span);
        while self.network.now() < until {
            self.network.advance_to(self.network.now().after(Duration::from_millis(100)));
            for _ in 0..4 {
                self.turn();
            }
        }
    }

    fn ended(&mut self) -> Vec<CloseReason> {
        std::mem::take(&mut self.shard.service().ended)
    }
}

fn roomy() -> NetworkOptions {
    NetworkOptions { buffer: ROOMY, ..NetworkOptions::default() }
}

/// Everything that the peer can read now; the flag reports the end of the stream.
fn read(peer: &mut SimPeer) -> (usize, bool) {
    let (mut all, mut into) = (0, [0; 4096]);
    loop {
        match peer.read(&mut into) {
            Ok(0) => return (all, true),
            Ok(len) => all += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return (all, false),
            Err(error) => panic!("{error}"),
        }
    }
}

fn send_all(io: &mut Io<'_>) {
    io.send(&[b'x'; SEND_MAX]).expect("there is room");
}

/// Row 4.36: a received request is answered although the server drains and has much to do: its connection does not
/// count as idle.
#[test]
fn a_queued_request_survives_the_drain() {
    let received: EndAction = |io| {
        send_all(io);
        io.finish(CloseReason::Done);
    };
    let script = EndScript { received, draining: |io| io.finish(CloseReason::Drained), ..QUIET };
    let mut fixture = EndFixture::new(script, roomy());
    let mut clients = fixture.clients(MANY);
    for client in &mut clients {
        assert_eq!(client.write(b"?").expect("there is room"), 1);
    }
    fixture.shard.service().turn = Some(|control| {
        control.drain();
    });
    fixture.turns();
    for client in &mut clients {
        assert_eq!(read(client), (SEND_MAX, true));
    }
    assert_eq!(fixture.ended(), [CloseReason::Done; MANY]);
}

/// Row 4.36: the output of idle sessions on a drain is bounded per turn like any other, and all of it is sent.
#[test]
fn drain_replies_wait_for_room() {
    let draining: EndAction = |io| {
        send_all(io);
        io.finish(CloseReason::Drained);
    };
    let mut fixture = EndFixture::new(EndScript { draining, ..QUIET }, roomy());
    let mut clients = fixture.clients(MANY);
    fixture.shard.service().turn = Some(|control| {
        control.drain();
    });
    fixture.turn();
    let drain_count = fixture.shard.service().drain_count;
    assert!((1..=ARENA_SIZE / SEND_MAX).contains(&drain_count), "{drain_count} sessions sent in one turn");
    fixture.turns();
    assert_eq!(fixture.shard.service().drain_count, MANY);
    for client in &mut clients {
        assert_eq!(read(client), (SEND_MAX, true));
    }
    // Their connections linger.
    fixture.turn_for(2 * LINGER_TIMEOUT);
    assert_eq!(fixture.ended(), [CloseReason::Drained; MANY]);
}

/// Row 4.36: a peer that seems writable but receives nothing is closed at the timeout, whatever else happens at that
/// moment.
#[test]
fn a_falsely_writable_connection_times_out() {
    let send_last: EndAction = |io| {
        io.send(b"last bytes").expect("there is room");
        io.finish(CloseReason::Done);
    };
    let faults = FaultRates::NONE.with(NetworkFault::BlockedSend, 1000);
    let mut fixture =
        EndFixture::new(EndScript { ended: send_last, ..QUIET }, NetworkOptions { faults, ..roomy() });
    let mut clients = fixture.clients(1);
    clients[0].shutdown();
    fixture.turn_for(WRITE_TIMEOUT / 2);
    assert_eq!(fixture.ended(), []);
    fixture.turn_for(WRITE_TIMEOUT);
    assert_eq!(fixture.ended(), [CloseReason::WriteTimeout]);
}

/// Row 4.36: bytes sent in the turn in which the write timeout expires count as progress.
#[test]
fn progress_at_the_last_moment_counts() {
    let received: EndAction = |io| send_all(io);
    let mut fixture = EndFixture::new(
        EndScript { received, ..QUIET },
        NetworkOptions { buffer: SEND_MAX / 4, ..NetworkOptions::default() },
    );
    let mut clients = fixture.clients(1);
    assert_eq!(clients[0].write(b"?").expect("there is room"), 1);
    fixture.turns();
    let mut read_len = 0;
    while read_len < SEND_MAX {
        fixture.network.advance_to(fixture.network.now().after(WRITE_TIMEOUT));
        read_len += read(&mut clients[0]).0;
        fixture.turns();
        assert_eq!(fixture.ended(), [], "closed after {read_len} bytes");
    }
}

/// Row 4.37: an aborted connection has the reason of the abort; a finished one keeps its own.
#[test]
fn an_abort_keeps_the_reason_of_finished_connections() {
    let received: EndAction = |io| {
        io.send(b"answer").expect("there is room");
        io.finish_lingering(CloseReason::ProtocolError);
    };
    let mut fixture = EndFixture::new(EndScript { received, ..QUIET }, roomy());
    let mut clients = fixture.clients(2);
    assert_eq!(clients[0].write(b"?").expect("there is room"), 1);
    fixture.turns();
    assert_eq!(read(&mut clients[0]), (6, true));
    assert_eq!(fixture.ended(), [], "it lingers");
    fixture.shard.service().turn = Some(|control| control.abort_all(CloseReason::DrainTimeout));
    fixture.turns();
    assert_eq!(fixture.ended(), [CloseReason::ProtocolError, CloseReason::DrainTimeout]);
}

/// Row 4.37: an abort covers all connections: also after a last send that stops short in that turn, and later ones.
#[test]
fn an_abort_also_covers_later_connections() {
    let received: EndAction = |io| {
        send_all(io);
        io.finish(CloseReason::Done);
    };
    let script = EndScript { received, ..QUIET };
    let mut fixture =
        EndFixture::new(script, NetworkOptions { buffer: SEND_MAX / 4, ..NetworkOptions::default() });
    let mut clients = fixture.clients(1);
    clients.push(fixture.network.connect(fixture.address.clone(), None));
    assert_eq!(clients[0].write(b"?").expect("there is room"), 1);
    fixture.shard.service().turn = Some(|control| control.abort_all(CloseReason::DrainTimeout));
    fixture.turn();
    clients.push(fixture.network.connect(fixture.address.clone(), None));
    fixture.turns();
    let (open, refused) = (fixture.shard.open_connections(), fixture.shard.counters().refused_full.get());
    assert_eq!((open, fixture.shard.held_bytes()), (0, (0, 0)));
    let ended = fixture.ended();
    assert!(ended.iter().all(|reason| *reason == CloseReason::DrainTimeout), "{ended:?}");
    assert_eq!((ended.len() as u64 + refused, refused > 0), (3, true));
}

/// Row 4.37: lingering for a peer that continues to send after the last output is limited in time.
#[test]
fn lingering_ends() {
    let received: EndAction = |io| io.finish_lingering(CloseReason::Done);
    let mut fixture = EndFixture::new(EndScript { received, ..QUIET }, roomy());
    let mut clients = fixture.clients(1);
    assert_eq!(clients[0].write(b"?").expect("there is room"), 1);
    fixture.turn_for(LINGER_TIMEOUT / 2);
    assert_eq!((fixture.ended(), fixture.shard.open_connections()), (vec![], 1));
    fixture.turn_for(LINGER_TIMEOUT);
    assert_eq!((fixture.ended(), fixture.shard.open_connections()), (vec![CloseReason::Done], 0));
}

/// Row 4.33: a session that has ended its output still gets input, whether the last output was sent at once or blocked.
#[test]
fn ended_output_leaves_the_input_open() {
    let received: EndAction = |io| {
        if io.room() > 0 {
            send_all(io);
            io.end_output();
        }
    };
    let ended: EndAction = |io| io.abort(CloseReason::Done);
    for buffer in [ROOMY, SEND_MAX / 4] {
        let mut fixture = EndFixture::new(
            EndScript { received, ended, ..QUIET },
            NetworkOptions { buffer, ..NetworkOptions::default() },
        );
        let mut clients = fixture.clients(1);
        assert_eq!(clients[0].write(b"?").expect("there is room"), 1);
        let (mut read_len, mut has_ended) = (0, false);
        for _ in 0..SEND_MAX {
            fixture.turns();
            let (more, ended) = read(&mut clients[0]);
            read_len += more;
            if ended {
                has_ended = true;
                break;
            }
        }
        assert_eq!((read_len, has_ended, fixture.ended()), (SEND_MAX, true, vec![]));
        assert_eq!(clients[0].write(b"!").expect("there is room"), 1);
        fixture.turns();
        assert_eq!((fixture.ended(), read(&mut clients[0])), (vec![], (0, true)));
        clients[0].shutdown();
        fixture.turns();
        assert_eq!(fixture.ended(), [CloseReason::Done]);
    }
}

/// Row 4.37: a draining server serves connections that wait for a slot.
#[test]
fn the_backlog_is_served_before_the_end() {
    let received: EndAction = |io| {
        io.send(b"answer").expect("there is room");
        io.finish(CloseReason::Done);
    };
    let mut fixture = EndFixture::new(EndScript { received, ..QUIET }, roomy());
    let mut clients = fixture.clients(MANY);
    clients.extend((0..MANY).map(|_| fixture.network.connect(fixture.address.clone(), None)));
    fixture.turns();
    assert_eq!(fixture.shard.open_connections() as usize, MANY);
    fixture.shard.service().turn = Some(|control| {
        control.accept_backlogs_and_close_listeners();
        control.drain();
    });
    fixture.turns();
    for client in &mut clients {
        assert_eq!(client.write(b"?").expect("there is room"), 1);
        fixture.turns();
        assert_eq!(read(client), (6, true));
    }
    assert_eq!(fixture.ended(), [CloseReason::Done; 2 * MANY]);
}

/// Row 4.37: a shard with many listeners loses no connection that they accept before it can stop them.
#[test]
fn clients_of_many_listeners_wait_for_few_slots() {
    const LISTENERS: usize = 63;
    const CROWD: usize = LISTENERS * ACCEPTS_PER_TURN;
    let mut fixture = EndFixture::new(QUIET, roomy());
    let mut clients = Vec::with_capacity(CROWD);
    let mut sockets = Vec::new();
    for number in 0..LISTENERS {
        let address = Address::Tcp(format!("10.0.1.{number}:80").parse().expect("an address"));
        sockets.push(fixture.network.listen(address.clone(), ACCEPTS_PER_TURN, None));
        clients.extend((0..ACCEPTS_PER_TURN).map(|_| fixture.network.connect(address.clone(), None)));
    }
    fixture.turn_for(Duration::from_secs(1));
    for socket in sockets {
        fixture.shard.listen(socket, false).expect("there is room for listeners");
    }
    fixture.turns();
    let counters = fixture.shard.counters();
    assert_eq!((counters.accepted.get(), counters.refused_full.get()), (CROWD as u64, 0));
    drop(clients);
}

fn unreachable_destination() -> Destination {
    Destination::Tcp { to: "10.9.9.9:9".parse().expect("an address"), from: None }
}

/// Row 5.1: a connect without a free slot fails at once, with its own reason.
#[test]
fn a_connect_on_a_full_slab_fails() {
    let mut fixture = EndFixture::new(QUIET, roomy());
    let _clients = fixture.clients(MANY);
    fixture.shard.service().turn = Some(|control| control.connect(unreachable_destination(), EndSession));
    fixture.turns();
    assert_eq!(fixture.ended(), [CloseReason::ConnectFailed]);
    assert_eq!(fixture.shard.service().connect_errors, [NO_FREE_SLOT], "the error names the cause");
    assert_eq!(fixture.shard.counters().closed(CloseReason::ConnectFailed).get(), 1);
    assert_eq!(fixture.shard.open_connections() as usize, MANY);
}

/// Row 5.1: a connect without a response times out.
#[test]
fn a_connect_without_an_answer_ends() {
    let mut fixture = EndFixture::new(QUIET, roomy());
    // A full backlog: the connect is retried repeatedly.
    let listener = fixture.network.listen(Address::Tcp("10.0.0.2:80".parse().expect("an address")), 0, None);
    fixture.shard.service().turn = Some(|control| {
        let to = "10.0.0.2:80".parse().expect("an address");
        control.connect(Destination::Tcp { to, from: None }, EndSession);
    });
    fixture.turn_for(CONNECT_TIMEOUT / 2);
    assert_eq!((fixture.ended(), fixture.shard.open_connections()), (vec![], 1));
    fixture.turn_for(CONNECT_TIMEOUT);
    assert_eq!((fixture.ended(), fixture.shard.open_connections()), (vec![CloseReason::ConnectFailed], 0));
    drop(listener);
}

/// Row 5.1: a connect for which there is no socket fails at once, and its slot is free.
#[test]
fn a_connect_without_a_socket_fails() {
    let faults = FaultRates::NONE.with(NetworkFault::ConnectFails, 1000);
    let mut fixture = EndFixture::new(QUIET, NetworkOptions { faults, ..roomy() });
    fixture.shard.service().turn = Some(|control| control.connect(unreachable_destination(), EndSession));
    fixture.turns();
    assert_eq!((fixture.ended(), fixture.shard.open_connections()), (vec![CloseReason::ConnectFailed], 0));
}

/// Row 4.34: a socket that the driver cannot attach ends its connection with a reason; the slot and the gate are open.
#[test]
fn a_socket_that_cannot_be_attached_ends_its_connection() {
    let faults = FaultRates::NONE.with(NetworkFault::AttachFails, 1000);
    let mut fixture = EndFixture::new(QUIET, NetworkOptions { faults, ..roomy() });
    let mut clients: Vec<SimPeer> =
        (0..2 * MANY).map(|_| fixture.network.connect(fixture.address.clone(), None)).collect();
    fixture.turns();
    assert_eq!(
        (fixture.ended(), fixture.shard.open_connections()),
        (vec![CloseReason::SystemError; 2 * MANY], 0)
    );
    assert!(clients.iter_mut().all(|client| read(client) == (0, true)), "all clients see the end");
}

/// Row 3.27: a listener that fails temporarily pauses, and resumes.
#[test]
fn a_failed_listener_is_retried_after_a_pause() {
    let faults = FaultRates::NONE.with(NetworkFault::AcceptFails, 1000);
    let mut fixture = EndFixture::new(QUIET, NetworkOptions { faults, ..roomy() });
    let _client = fixture.network.connect(fixture.address.clone(), None);
    fixture.turns();
    assert_eq!((fixture.shard.open_connections(), fixture.shard.counters().accept_errors.get()), (0, 1));
    fixture.network.stop_faults();
    fixture.turn_for(Duration::from_secs(1));
    assert_eq!((fixture.shard.open_connections(), fixture.shard.counters().accept_errors.get()), (1, 1));
}

/// Row 0.9: a wait is counted from its start, also after a long turn.
#[test]
fn a_wait_begins_when_the_work_is_done() {
    let mut fixture = EndFixture::new(QUIET, roomy());
    let _clients = fixture.clients(1);
    // This time passes between two turns; the driver panics if the shard counts from before it.
    fixture.network.advance_to(fixture.network.now().after(Duration::from_millis(300)));
    fixture.shard.turn(true).expect("turns");
}
