//! Drivers when the process may open no more descriptors, or the ring's own table is full.
//!
//! The limit is process-wide, so each test runs its body in a process of its own: this binary again, selected by an
//! environment variable.
#![cfg(target_os = "linux")]

use std::sync::Arc;

use rustix::process::{Resource, Rlimit, setrlimit};
use stilling_engine::driver::{Driver, DriverEvent, SourceKind, poll::Poll, uring::Uring};
use stilling_engine::limits::COMPLETION_QUEUE_SIZE;
use stilling_engine::net::raise_descriptor_limit;
use stilling_engine::{CloseReason, Io, Service, Session, Shard, ShardConfig};
use stilling_ring::{Clock, Wake};
use stilling_simulation::suite::system::{DirectUring, SystemDriver, SystemRig};
use stilling_simulation::suite::{AddressKind, DriverFixture, DriverRig, ObservedEvent, Peer};

const CHILD: &str = "STILLING_DESCRIPTORS_CHILD";

/// Maximum of open descriptors of the child (row 3.27 names this number).
const DESCRIPTORS_MAX: u64 = 100;

/// Number of clients: with their own ends they fill most of the limit, so that accepting all is impossible.
const CLIENTS: usize = 60;

fn in_child_process(test: &str, body: fn()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let outcome = std::process::Command::new(std::env::current_exe().expect("this binary"))
        .args([test, "--exact", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .expect("this binary runs again");
    let stdout = String::from_utf8_lossy(&outcome.stdout);
    assert!(outcome.status.success(), "{stdout}\n{}", String::from_utf8_lossy(&outcome.stderr));
    assert!(stdout.contains("1 passed"), "the child ran another test: {stdout}");
}

fn lower_descriptor_limit() {
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS_MAX), maximum: Some(DESCRIPTORS_MAX) })
        .expect("a limit can be lowered");
}

fn survives_descriptor_exhaustion<D: SystemDriver>() {
    survives_exhaustion::<D>(libc::EMFILE, lower_descriptor_limit);
}

/// Accepting stops with `errno` after `run_short`; clients without room are refused, and accepting resumes.
fn survives_exhaustion<D: SystemDriver>(errno: i32, run_short: fn()) {
    let mut fixture = DriverFixture::<SystemRig<D>>::new();
    let (socket, destination) = fixture.rig.listener(AddressKind::V4);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| fixture.rig.dial(&destination)).collect();
    run_short();
    let listener = fixture.token();
    fixture.driver.listen(listener, socket).expect("listen");
    fixture.driver.accept(listener);
    let (mut held, mut accepted, mut refused, mut stops) = (Vec::new(), 0, 0, 0);
    while accepted + refused < CLIENTS {
        match fixture.next_event() {
            DriverEvent::Accepted { socket, .. } => {
                accepted += 1;
                held.push(socket);
            }
            DriverEvent::AcceptStopped { error: Some(error), refused: now, .. } => {
                assert_eq!(error.raw_os_error(), Some(errno));
                // Without a descriptor the system leaves them waiting.
                refused += now as usize + usize::from(now == 0 && fixture.driver.refuse_one(listener));
                stops += 1;
                // Twice the next client is refused without a change; then some descriptors are freed.
                if stops % 3 == 0 {
                    held.truncate(held.len() / 2);
                }
                fixture.driver.accept(listener);
            }
            event => panic!("unexpected: {event:?}"),
        }
    }
    assert!(accepted > 0 && refused >= 3, "{accepted} accepted, {refused} refused");
    // Refused and dropped clients see the end; the others are still connected.
    let mut into = [0; 1];
    let ended = clients.iter_mut().filter_map(|client| match client.read(&mut into) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
        outcome => Some(outcome),
    });
    assert_eq!(ended.count(), CLIENTS - held.len());
    // With room again, accepting resumes.
    held.clear();
    clients.clear();
    fixture.driver.pause_accept(listener);
    while fixture.observed() != ObservedEvent::AcceptStopped(listener, false, 0) {}
    fixture.driver.accept(listener);
    let _late = fixture.rig.dial(&destination);
    drop(fixture.accepted(listener));
}

/// Row 3.27: `EMFILE` is survived, the oldest waiting client is refused and counted, accepting resumes.
#[test]
fn poll_survives_running_out_of_descriptors() {
    in_child_process("poll_survives_running_out_of_descriptors", survives_descriptor_exhaustion::<Poll>);
}

/// Row 3.27: the same on io_uring.
#[test]
fn uring_survives_running_out_of_descriptors() {
    in_child_process("uring_survives_running_out_of_descriptors", survives_descriptor_exhaustion::<Uring>);
}

/// `uring` with room for few sockets in its ring's table.
struct SmallTable;

/// Fewer than clients, and enough that some are accepted before each stop.
const SLOTS: u32 = 20;

impl SystemDriver for SmallTable {
    type Driver = Uring;

    fn start() -> std::io::Result<Uring> {
        Uring::with_direct_descriptors(SLOTS)
    }
}

/// Rows 0.2, 3.27: a full table of direct descriptors is survived as `EMFILE` is.
#[test]
fn a_full_table_of_direct_descriptors_is_survived() {
    survives_exhaustion::<SmallTable>(libc::ENFILE, || {});
}

/// `uring` with room for as many sockets as one multishot accept can take in a turn, and a few more.
struct LargeTable;

/// Slots beyond those.
const SLOTS_BEFORE: u32 = 10;

impl SystemDriver for LargeTable {
    type Driver = Uring;

    fn start() -> std::io::Result<Uring> {
        raise_descriptor_limit();
        Uring::with_direct_descriptors(COMPLETION_QUEUE_SIZE + SLOTS_BEFORE)
    }
}

/// Lets clients connect in bursts; returns how many of them each turn accepted.
fn accepted_per_turn<D: SystemDriver>(bursts: [usize; 2]) -> [Vec<usize>; 2] {
    let mut fixture = DriverFixture::<SystemRig<D>>::new();
    let (listener, destination) = fixture.listen(AddressKind::V4);
    let (mut clients, mut held) = (Vec::new(), Vec::new());
    bursts.map(|burst| {
        clients.extend((0..burst).map(|_| fixture.rig.dial(&destination)));
        let until = held.len() + burst;
        let mut counts = Vec::new();
        while held.len() < until {
            fixture.idle_turn();
            let events = std::mem::take(&mut fixture.events);
            counts.push(events.len());
            for event in events {
                match event {
                    DriverEvent::Accepted { listener: of, socket } if of == listener => held.push(socket),
                    event => panic!("unexpected: {event:?}"),
                }
            }
        }
        counts
    })
}

/// Row 3.11: a ring whose table is nearly full accepts one connection per turn, so its owner can stop it before the
/// kernel closes connections for lack of a slot.
#[test]
fn a_nearly_full_table_is_filled_one_connection_per_turn() {
    for counts in accepted_per_turn::<SmallTable>([5, 5]) {
        assert!(counts.iter().all(|count| *count <= 1), "{counts:?}");
    }
    // The first burst crosses the threshold in one turn; the accept is limited after that.
    let [first, second] = accepted_per_turn::<LargeTable>([SLOTS_BEFORE as usize + 5, 20]);
    assert!(first.iter().any(|count| *count > 1), "{first:?}");
    assert!(second.iter().all(|count| *count <= 1), "{second:?}");
}

/// Row 0.2: a connect without a free slot fails, and succeeds when there is one again.
#[test]
fn a_connect_without_a_slot_fails_and_may_be_repeated() {
    let mut fixture = DriverFixture::<SystemRig<SmallTable>>::new();
    let (mut listener, destination) = fixture.rig.peer_listener(AddressKind::V4);
    let mut connected = Vec::new();
    for _ in 0..SLOTS {
        let token = fixture.token();
        fixture.driver.connect(token, &destination).expect("it is begun");
        fixture.expect(ObservedEvent::Connected(token));
        connected.push((token, fixture.rig.peer_accept(&mut listener).expect("the peer has it")));
    }
    let late = fixture.token();
    fixture.driver.connect(late, &destination).expect("it is begun");
    let observed = fixture.observed();
    assert!(matches!(observed, ObservedEvent::Failed(token, _) if token == late), "{observed:?}");
    fixture.driver.close(late);
    fixture.expect(ObservedEvent::Closed(late));
    let (first, _peer) = connected.swap_remove(0);
    fixture.driver.close(first);
    fixture.expect(ObservedEvent::Closed(first));
    let again = fixture.token();
    fixture.driver.connect(again, &destination).expect("it is begun");
    fixture.expect(ObservedEvent::Connected(again));
}

fn direct_descriptors_use_none_of_the_process() {
    let mut fixture = DriverFixture::<SystemRig<DirectUring>>::new();
    let (socket, destination) = fixture.rig.listener(AddressKind::V4);
    let _clients: Vec<_> = (0..CLIENTS).map(|_| fixture.rig.dial(&destination)).collect();
    lower_descriptor_limit();
    let listener = fixture.token();
    fixture.driver.listen(listener, socket).expect("listen");
    fixture.driver.accept(listener);
    let held: Vec<_> = (0..CLIENTS).map(|_| fixture.accepted(listener)).collect();
    assert!(2 * CLIENTS as u64 > DESCRIPTORS_MAX && held.len() == CLIENTS);
}

/// Row 0.2: both ends of all connections exceed the process's limit of open files.
#[test]
fn uring_accepts_beyond_the_limit_of_open_files() {
    in_child_process(
        "uring_accepts_beyond_the_limit_of_open_files",
        direct_descriptors_use_none_of_the_process,
    );
}

fn a_detach_without_a_descriptor_reports_the_error() {
    let mut fixture = DriverFixture::<SystemRig<DirectUring>>::new();
    let (token, mut peer) = fixture.connection();
    // All open descriptors have higher numbers.
    setrlimit(Resource::Nofile, Rlimit { current: Some(1), maximum: Some(DESCRIPTORS_MAX) })
        .expect("a limit can be lowered");
    fixture.driver.detach(token);
    match fixture.next_event() {
        DriverEvent::Detached { token: of, socket: Err(error) } if of == token => {
            assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
        }
        event => panic!("unexpected: {event:?}"),
    }
    assert_eq!(fixture.peer_reads(&mut peer).expect("the end"), b"");
    fixture.expect_silence();
}

/// Rows 0.2, 3.27: a direct socket that cannot become an ordinary one is closed, and the error is reported.
#[test]
fn uring_reports_a_detach_without_a_descriptor() {
    in_child_process(
        "uring_reports_a_detach_without_a_descriptor",
        a_detach_without_a_descriptor_reports_the_error,
    );
}

/// Row 0.2: a ring rejects a direct socket of another ring; its own driver closes it.
#[test]
fn a_direct_socket_of_another_ring_is_rejected() {
    let mut fixture = DriverFixture::<SystemRig<DirectUring>>::new();
    let mut other = DirectUring::start().expect("another ring");
    let (listener, destination) = fixture.listen(AddressKind::V4);
    let mut peer = fixture.rig.dial(&destination);
    let socket = fixture.accepted(listener);
    let token = fixture.token();
    let outcome = other.attach(token, socket, SourceKind::Stream, false);
    assert_eq!(outcome.map_err(|error| error.kind()), Err(std::io::ErrorKind::InvalidInput));
    assert_eq!(fixture.peer_reads(&mut peer).expect("the end"), b"");
}

/// A service with connections that each answer one byte and close.
struct OneByteService;

struct OneByteSession;

impl Service for OneByteService {
    type Session = OneByteSession;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> OneByteSession {
        OneByteSession
    }
}

impl Session for OneByteSession {
    type Service = OneByteService;

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, _: &mut OneByteService) -> usize {
        io.send(&bytes[..1]).expect("there is room");
        io.finish(CloseReason::Done);
        bytes.len()
    }
}

/// Capacity of the shard: less than the remaining descriptors.
const CAPACITY: u32 = 10;

fn a_full_shard_keeps_waiting_clients<D: SystemDriver>() {
    let mut rig = SystemRig::<D>::new();
    let (socket, destination) = rig.listener(AddressKind::V4);
    let driver = rig.driver();
    let handle = driver.wake_handle();
    let (wake, counters) = (Arc::new(Wake::new(move || handle.wake())), Arc::default());
    let config = ShardConfig { capacity: CAPACITY, ..ShardConfig::default() };
    let mut shard = Shard::new(driver, OneByteService, config, Clock::real(), wake, counters);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| rig.dial(&destination)).collect();
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS_MAX), maximum: Some(DESCRIPTORS_MAX) })
        .expect("a limit can be lowered");
    shard.listen(socket, false).expect("the first listener");
    // The burst comes first, so that it is accepted as far as descriptors permit.
    for _ in 0..10 {
        shard.turn(false).expect("the driver works");
    }
    for client in &mut clients {
        assert_eq!(client.write(b"?").expect("there is room"), 1);
    }
    let mut into = [0; 2];
    for (number, client) in clients.iter_mut().enumerate() {
        let answer = loop {
            shard.turn(false).expect("the driver works");
            match client.read(&mut into) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    assert!(rig.is_within_limit());
                }
                outcome => break outcome,
            }
        };
        assert_eq!(answer.ok(), Some(1), "client {number} was refused");
    }
    let counters = shard.counters();
    assert_eq!((counters.refused_descriptors.get(), counters.accepted.get()), (0, CLIENTS as u64));
    assert!(counters.gate_closed.get() > 0, "the capacity was never reached");
}

/// Rows 3.27, 4.9: a burst beyond the capacity waits, also when the connections that wait for a slot have all the
/// remaining descriptors: no client is refused.
#[test]
fn a_full_shard_on_poll_keeps_clients_waiting_without_descriptors() {
    in_child_process(
        "a_full_shard_on_poll_keeps_clients_waiting_without_descriptors",
        a_full_shard_keeps_waiting_clients::<Poll>,
    );
}

/// Rows 3.27, 4.9: the same on io_uring.
#[test]
fn a_full_shard_on_uring_keeps_clients_waiting_without_descriptors() {
    in_child_process(
        "a_full_shard_on_uring_keeps_clients_waiting_without_descriptors",
        a_full_shard_keeps_waiting_clients::<Uring>,
    );
}

/// Restores the default action of `SIGPIPE`, which ends the process.
#[allow(unsafe_code)]
fn a_broken_pipe_raises_no_signal<D: SystemDriver>() {
    // SAFETY: SIG_DFL is no handler, so no code of ours runs in signal context.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    stilling_simulation::suite::contracts::a_pipe_without_a_reader_is_an_error::<SystemRig<D>>();
    stilling_simulation::suite::contracts::a_reset_wakes_an_armed_writable::<SystemRig<D>>();
}

/// Row 4.36: an embedder need not ignore `SIGPIPE`.
#[test]
fn poll_survives_a_broken_pipe() {
    in_child_process("poll_survives_a_broken_pipe", a_broken_pipe_raises_no_signal::<Poll>);
}

/// Row 4.36: the same on io_uring.
#[test]
fn uring_survives_a_broken_pipe() {
    in_child_process("uring_survives_a_broken_pipe", a_broken_pipe_raises_no_signal::<Uring>);
}
