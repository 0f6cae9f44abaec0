//! How a shard ends connections when several things come together: a drain with more to do than one turn has room for,
//! a timeout beside news, an abort beside a send. Each case alone, over the simulated network.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::counters::Counters;
use stilling_engine::driver::Destination;
use stilling_engine::limits::{ACCEPTS_PER_TURN, ARENA_SIZE, LISTENERS_MAX, SEND_MAX};
use stilling_engine::{CloseReason, Config, Control, Io, NO_PLACE, Service, Session, Shard};
use stilling_ring::{Time, Wake};
use stilling_simulation::{Address, Fault, Faults, Network, Options, Peer, SimDriver};

/// More connections than one turn's output has room for, if each says as much as it may.
const MANY: usize = 2 * ARENA_SIZE / SEND_MAX;

/// Bytes per direction of a connection that holds whatever is sent.
const ROOMY: usize = 2 * SEND_MAX;

const WRITE_TIMEOUT: Duration = Duration::from_secs(3);
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

type Act = fn(&mut Io<'_>);
type Turn = fn(&mut Control<'_, Stage>);

/// What the sessions of one test do.
#[derive(Clone, Copy)]
struct Script {
    received: Act,
    ended: Act,
    draining: Act,
}

const QUIET: Script = Script { received: |_| (), ended: |_| (), draining: |_| () };

struct Stage {
    script: Script,
    /// What the service does in its next turn.
    turn: Option<Turn>,
    /// Sessions told of the drain so far.
    told: usize,
    ended: Vec<CloseReason>,
    refused: Vec<ErrorKind>,
}

struct Actor;

impl Service for Stage {
    type Session = Actor;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> Actor {
        Actor
    }

    fn turn(&mut self, control: &mut Control<'_, Self>) -> Option<Time> {
        if let Some(act) = self.turn.take() {
            act(control);
        }
        None
    }
}

impl Session for Actor {
    type Service = Stage;

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, service: &mut Stage) -> usize {
        (service.script.received)(io);
        bytes.len()
    }

    fn ended(&mut self, io: &mut Io<'_>, service: &mut Stage) {
        (service.script.ended)(io);
    }

    fn draining(&mut self, io: &mut Io<'_>, service: &mut Stage) {
        service.told += 1;
        (service.script.draining)(io);
    }

    fn refused(&mut self, error: &io::Error, service: &mut Stage) {
        service.refused.push(error.kind());
    }

    fn closed(&mut self, reason: CloseReason, service: &mut Stage) {
        service.ended.push(reason);
    }
}

struct World {
    network: Network,
    shard: Shard<SimDriver, Stage>,
    address: Address,
}

impl World {
    fn new(script: Script, options: Options) -> Self {
        let network = Network::new(1, options);
        let listener =
            network.listen(Address::Tcp("10.0.0.1:80".parse().expect("an address")), 2 * MANY, None);
        let address = listener.listening_at().expect("it listens");
        let config = Config {
            capacity: MANY as u32,
            write_timeout: WRITE_TIMEOUT,
            linger_timeout: LINGER_TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            ..Config::default()
        };
        let service = Stage { script, turn: None, told: 0, ended: Vec::new(), refused: Vec::new() };
        let (wake, counters) = (Arc::new(Wake::new(|| ())), Arc::new(Counters::default()));
        let driver = SimDriver::new(&network);
        let mut shard = Shard::new(driver, service, config, network.clock(), wake, counters);
        shard.listen(listener, false).expect("the first listener");
        World { network, shard, address }
    }

    fn clients(&mut self, count: usize) -> Vec<Peer> {
        let clients = (0..count).map(|_| self.network.connect(self.address.clone(), None)).collect();
        self.turns();
        assert_eq!(self.shard.open() as usize, count);
        clients
    }

    fn turn(&mut self) {
        self.shard.turn(false).expect("turns");
        self.shard.audit().unwrap_or_else(|why| panic!("{why}"));
    }

    /// Lets everything happen that can without the time moving.
    fn turns(&mut self) {
        let (mut before, mut quiet) = (self.network.activity(), 0);
        while quiet < 2 {
            self.turn();
            quiet = if self.network.activity() == before { quiet + 1 } else { 0 };
            before = self.network.activity();
        }
    }

    /// Turns every now and then until `span` has passed.
    fn pass(&mut self, span: Duration) {
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

fn roomy() -> Options {
    Options { buffer: ROOMY, ..Options::default() }
}

/// All that the peer can read now; the flag says whether the end came behind it.
fn read(peer: &mut Peer) -> (usize, bool) {
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

fn say_all(io: &mut Io<'_>) {
    io.send(&[b'x'; SEND_MAX]).expect("there is room");
}

/// Row 4.36: a request that has come is answered although the server drains and has much to do: its connection is not
/// taken for an idle one.
#[test]
fn a_request_that_waits_for_its_turn_survives_the_drain() {
    let received: Act = |io| {
        say_all(io);
        io.finish(CloseReason::Done);
    };
    let script = Script { received, draining: |io| io.finish(CloseReason::Drained), ..QUIET };
    let mut world = World::new(script, roomy());
    let mut clients = world.clients(MANY);
    for client in &mut clients {
        assert_eq!(client.write(b"?").expect("there is room"), 1);
    }
    world.shard.service().turn = Some(|control| {
        control.drain();
    });
    world.turns();
    for client in &mut clients {
        assert_eq!(read(client), (SEND_MAX, true));
    }
    assert_eq!(world.ended(), [CloseReason::Done; MANY]);
}

/// Row 4.36: what idle sessions say to a drain is bounded per turn like everything else, and all of them say it.
#[test]
fn goodbyes_wait_for_room() {
    let draining: Act = |io| {
        say_all(io);
        io.finish(CloseReason::Drained);
    };
    let mut world = World::new(Script { draining, ..QUIET }, roomy());
    let mut clients = world.clients(MANY);
    world.shard.service().turn = Some(|control| {
        control.drain();
    });
    world.turn();
    let told = world.shard.service().told;
    assert!((1..=ARENA_SIZE / SEND_MAX).contains(&told), "{told} sessions spoke in one turn");
    world.turns();
    assert_eq!(world.shard.service().told, MANY);
    for client in &mut clients {
        assert_eq!(read(client), (SEND_MAX, true));
    }
    // Their peers are lingered on.
    world.pass(2 * LINGER_TIMEOUT);
    assert_eq!(world.ended(), [CloseReason::Drained; MANY]);
}

/// Row 4.36: a peer that seems to take bytes and takes none is given up, whatever else comes at that moment.
#[test]
fn a_connection_that_only_seems_writable_meets_its_write_timeout() {
    let say_it: Act = |io| {
        io.send(b"last words").expect("there is room");
        io.finish(CloseReason::Done);
    };
    let faults = Faults::NONE.with(Fault::BlockedSend, 1000);
    let mut world = World::new(Script { ended: say_it, ..QUIET }, Options { faults, ..roomy() });
    let mut clients = world.clients(1);
    clients[0].shutdown();
    world.pass(WRITE_TIMEOUT / 2);
    assert_eq!(world.ended(), []);
    world.pass(WRITE_TIMEOUT);
    assert_eq!(world.ended(), [CloseReason::WriteTimeout]);
}

/// Row 4.36: bytes that leave with the turn in which the write timeout passes are progress.
#[test]
fn progress_at_the_last_moment_counts() {
    let received: Act = |io| say_all(io);
    let mut world =
        World::new(Script { received, ..QUIET }, Options { buffer: SEND_MAX / 4, ..Options::default() });
    let mut clients = world.clients(1);
    assert_eq!(clients[0].write(b"?").expect("there is room"), 1);
    world.turns();
    let mut heard = 0;
    while heard < SEND_MAX {
        world.network.advance_to(world.network.now().after(WRITE_TIMEOUT));
        heard += read(&mut clients[0]).0;
        world.turns();
        assert_eq!(world.ended(), [], "given up after {heard} bytes");
    }
}

/// Row 4.37: what is cut off says so; a connection that has said everything keeps its own reason.
#[test]
fn an_abort_leaves_the_reason_of_those_that_have_said_everything() {
    let received: Act = |io| {
        io.send(b"answer").expect("there is room");
        io.finish_lingering(CloseReason::ProtocolError);
    };
    let mut world = World::new(Script { received, ..QUIET }, roomy());
    let mut clients = world.clients(2);
    assert_eq!(clients[0].write(b"?").expect("there is room"), 1);
    world.turns();
    assert_eq!(read(&mut clients[0]), (6, true));
    assert_eq!(world.ended(), [], "it lingers");
    world.shard.service().turn = Some(|control| control.abort_all(CloseReason::DrainTimeout));
    world.turns();
    assert_eq!(world.ended(), [CloseReason::ProtocolError, CloseReason::DrainTimeout]);
}

/// Row 4.37: nobody escapes an abort: neither whose last send stops short in that turn, nor who comes later.
#[test]
fn one_abort_is_enough() {
    let received: Act = |io| {
        say_all(io);
        io.finish(CloseReason::Done);
    };
    let script = Script { received, ..QUIET };
    let mut world = World::new(script, Options { buffer: SEND_MAX / 4, ..Options::default() });
    let mut clients = world.clients(1);
    clients.push(world.network.connect(world.address.clone(), None));
    assert_eq!(clients[0].write(b"?").expect("there is room"), 1);
    world.shard.service().turn = Some(|control| control.abort_all(CloseReason::DrainTimeout));
    world.turn();
    clients.push(world.network.connect(world.address.clone(), None));
    world.turns();
    let (open, refused) = (world.shard.open(), world.shard.counters().refused_full.get());
    assert_eq!((open, world.shard.held()), (0, (0, 0)));
    let ended = world.ended();
    assert!(ended.iter().all(|reason| *reason == CloseReason::DrainTimeout), "{ended:?}");
    assert_eq!((ended.len() as u64 + refused, refused > 0), (3, true));
}

/// Row 4.37: a peer that goes on sending behind our last word is lingered on for a while only.
#[test]
fn lingering_ends() {
    let received: Act = |io| io.finish_lingering(CloseReason::Done);
    let mut world = World::new(Script { received, ..QUIET }, roomy());
    let mut clients = world.clients(1);
    assert_eq!(clients[0].write(b"?").expect("there is room"), 1);
    world.pass(LINGER_TIMEOUT / 2);
    assert_eq!((world.ended(), world.shard.open()), (vec![], 1));
    world.pass(LINGER_TIMEOUT);
    assert_eq!((world.ended(), world.shard.open()), (vec![CloseReason::Done], 0));
}

/// Row 4.33: who has said everything still hears what the peer says, whether the last words went at once or were held up.
#[test]
fn ended_output_leaves_the_input_open() {
    let received: Act = |io| {
        if io.room() > 0 {
            say_all(io);
            io.end_output();
        }
    };
    let ended: Act = |io| io.abort(CloseReason::Done);
    for buffer in [ROOMY, SEND_MAX / 4] {
        let mut world =
            World::new(Script { received, ended, ..QUIET }, Options { buffer, ..Options::default() });
        let mut clients = world.clients(1);
        assert_eq!(clients[0].write(b"?").expect("there is room"), 1);
        let (mut heard, mut has_ended) = (0, false);
        for _ in 0..SEND_MAX {
            world.turns();
            let (more, ended) = read(&mut clients[0]);
            heard += more;
            if ended {
                has_ended = true;
                break;
            }
        }
        assert_eq!((heard, has_ended, world.ended()), (SEND_MAX, true, vec![]));
        assert_eq!(clients[0].write(b"!").expect("there is room"), 1);
        world.turns();
        assert_eq!((world.ended(), read(&mut clients[0])), (vec![], (0, true)));
        clients[0].shutdown();
        world.turns();
        assert_eq!(world.ended(), [CloseReason::Done]);
    }
}

/// Row 4.37: who waits for a place at a server that drains is not sent away.
#[test]
fn who_waits_in_the_backlog_is_served_before_the_end() {
    let received: Act = |io| {
        io.send(b"answer").expect("there is room");
        io.finish(CloseReason::Done);
    };
    let mut world = World::new(Script { received, ..QUIET }, roomy());
    let mut clients = world.clients(MANY);
    clients.extend((0..MANY).map(|_| world.network.connect(world.address.clone(), None)));
    world.turns();
    assert_eq!(world.shard.open() as usize, MANY);
    world.shard.service().turn = Some(|control| {
        control.empty_and_close_listeners();
        control.drain();
    });
    world.turns();
    for client in &mut clients {
        assert_eq!(client.write(b"?").expect("there is room"), 1);
        world.turns();
        assert_eq!(read(client), (6, true));
    }
    assert_eq!(world.ended(), [CloseReason::Done; 2 * MANY]);
}

/// Row 4.37: a shard that has got the listeners of many loses nobody whom they give before it can stop them.
#[test]
fn a_crowd_at_many_listeners_waits_for_few_places() {
    const LISTENERS: usize = LISTENERS_MAX as usize - 1;
    const CROWD: usize = LISTENERS * ACCEPTS_PER_TURN;
    let mut world = World::new(QUIET, roomy());
    let mut clients = Vec::with_capacity(CROWD);
    let mut sockets = Vec::new();
    for number in 0..LISTENERS {
        let address = Address::Tcp(format!("10.0.1.{number}:80").parse().expect("an address"));
        sockets.push(world.network.listen(address.clone(), ACCEPTS_PER_TURN, None));
        clients.extend((0..ACCEPTS_PER_TURN).map(|_| world.network.connect(address.clone(), None)));
    }
    world.pass(Duration::from_secs(1));
    for socket in sockets {
        world.shard.listen(socket, false).expect("there is room for listeners");
    }
    world.turns();
    let counters = world.shard.counters();
    assert_eq!((counters.accepted.get(), counters.refused_full.get()), (CROWD as u64, 0));
    drop(clients);
}

fn nowhere() -> Destination {
    Destination::Tcp { to: "10.9.9.9:9".parse().expect("an address"), from: None }
}

/// Row 5.1: a connect without a free slot fails at once, with its one reason.
#[test]
fn a_connect_on_a_full_slab_fails() {
    let mut world = World::new(QUIET, roomy());
    let _clients = world.clients(MANY);
    world.shard.service().turn = Some(|control| control.connect(nowhere(), Actor));
    world.turns();
    assert_eq!(world.ended(), [CloseReason::ConnectFailed]);
    assert_eq!(world.shard.service().refused, [NO_PLACE], "it is told whose want it was");
    assert_eq!(world.shard.counters().closed(CloseReason::ConnectFailed).get(), 1);
    assert_eq!(world.shard.open() as usize, MANY);
}

/// Row 5.1: a connect that nobody answers is given up in time.
#[test]
fn a_connect_without_an_answer_ends() {
    let mut world = World::new(QUIET, roomy());
    // A full backlog: the attempt knocks again and again.
    let listener = world.network.listen(Address::Tcp("10.0.0.2:80".parse().expect("an address")), 0, None);
    world.shard.service().turn = Some(|control| {
        let to = "10.0.0.2:80".parse().expect("an address");
        control.connect(Destination::Tcp { to, from: None }, Actor);
    });
    world.pass(CONNECT_TIMEOUT / 2);
    assert_eq!((world.ended(), world.shard.open()), (vec![], 1));
    world.pass(CONNECT_TIMEOUT);
    assert_eq!((world.ended(), world.shard.open()), (vec![CloseReason::ConnectFailed], 0));
    drop(listener);
}

/// Row 5.1: a connect for which there is no socket fails at once, and its slot is free.
#[test]
fn a_connect_without_a_socket_fails() {
    let faults = Faults::NONE.with(Fault::ConnectFails, 1000);
    let mut world = World::new(QUIET, Options { faults, ..roomy() });
    world.shard.service().turn = Some(|control| control.connect(nowhere(), Actor));
    world.turns();
    assert_eq!((world.ended(), world.shard.open()), (vec![CloseReason::ConnectFailed], 0));
}

/// Row 4.34: a socket that the driver cannot take ends its connection with a reason; the slot and the gate are open.
#[test]
fn a_socket_that_cannot_be_attached_ends_its_connection() {
    let faults = Faults::NONE.with(Fault::AttachFails, 1000);
    let mut world = World::new(QUIET, Options { faults, ..roomy() });
    let mut clients: Vec<Peer> =
        (0..2 * MANY).map(|_| world.network.connect(world.address.clone(), None)).collect();
    world.turns();
    assert_eq!((world.ended(), world.shard.open()), (vec![CloseReason::SystemError; 2 * MANY], 0));
    assert!(clients.iter_mut().all(|client| read(client) == (0, true)), "everybody learns of it");
}

/// Row 3.27: a listener that fails for a while rests, and goes on.
#[test]
fn a_listener_that_fails_is_tried_again_after_a_rest() {
    let faults = Faults::NONE.with(Fault::AcceptFails, 1000);
    let mut world = World::new(QUIET, Options { faults, ..roomy() });
    let _client = world.network.connect(world.address.clone(), None);
    world.turns();
    assert_eq!((world.shard.open(), world.shard.counters().accept_errors.get()), (0, 1));
    world.network.stop_faults();
    world.pass(Duration::from_secs(1));
    assert_eq!((world.shard.open(), world.shard.counters().accept_errors.get()), (1, 1));
}

/// Row 0.9: a wait is counted from when it begins, also when the turn before it took long.
#[test]
fn a_wait_begins_when_the_work_is_done() {
    let mut world = World::new(QUIET, roomy());
    let _clients = world.clients(1);
    // Between two turns, as far as the shard can tell, its own work takes this long; the driver objects if the
    // shard counts from before.
    world.network.advance_to(world.network.now().after(Duration::from_millis(300)));
    world.shard.turn(true).expect("turns");
}
