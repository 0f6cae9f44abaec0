//! What a driver does when the process may open no more descriptors, or its ring's own table is full.
//!
//! The limit is the whole process's, so each test runs its body in a process of its own: this binary
//! again, told by an environment variable.
#![cfg(target_os = "linux")]

use std::sync::Arc;

use rustix::process::{Resource, Rlimit, setrlimit};
use stilling_engine::driver::{Driver, Event, Kind, poll::Poll, uring::Uring};
use stilling_engine::{CloseReason, Config, Io, Service, Session, Shard};
use stilling_ring::{Clock, Wake};
use stilling_simulation::suite::system::{DirectUring, System, SystemDriver};
use stilling_simulation::suite::{News, Peer, Place, Rig, Stage};

const CHILD: &str = "STILLING_DESCRIPTORS_CHILD";

/// Open descriptors that the child may have (row 3.27 names this number).
const DESCRIPTORS_MAX: u64 = 100;

/// Clients: with their own ends they fill most of the limit, so that accepting all is impossible.
const CLIENTS: usize = 60;

fn in_a_process_of_its_own(test: &str, body: fn()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let outcome = std::process::Command::new(std::env::current_exe().expect("this binary"))
        .args([test, "--exact", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .expect("this binary runs again");
    let said = String::from_utf8_lossy(&outcome.stdout);
    assert!(outcome.status.success(), "{said}\n{}", String::from_utf8_lossy(&outcome.stderr));
    assert!(said.contains("1 passed"), "the child ran another test: {said}");
}

fn allow_few_descriptors() {
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS_MAX), maximum: Some(DESCRIPTORS_MAX) })
        .expect("a limit can be lowered");
}

fn running_out_of_descriptors_is_survived<D: SystemDriver>() {
    running_out_is_survived::<D>(libc::EMFILE, allow_few_descriptors);
}

/// Accepting stops with `errno` after `run_short`; whoever finds no room learns of it, and accepting goes on.
fn running_out_is_survived<D: SystemDriver>(errno: i32, run_short: fn()) {
    let mut stage = Stage::<System<D>>::new();
    let (socket, destination) = stage.rig.listener(Place::V4);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| stage.rig.dial(&destination)).collect();
    run_short();
    let listener = stage.token();
    stage.driver.listen(listener, socket).expect("listen");
    stage.driver.accept(listener);
    let (mut held, mut accepted, mut refused, mut stops) = (Vec::new(), 0, 0, 0);
    while accepted + refused < CLIENTS {
        match stage.next_event() {
            Event::Accepted { socket, .. } => {
                accepted += 1;
                held.push(socket);
            }
            Event::AcceptStopped { error: Some(error), refused: now, .. } => {
                assert_eq!(error.raw_os_error(), Some(errno));
                // Without a descriptor the system leaves them waiting.
                refused += now as usize + usize::from(now == 0 && stage.driver.refuse_one(listener));
                stops += 1;
                // Twice nothing changes and the next client is refused; then some room is made.
                if stops % 3 == 0 {
                    held.truncate(held.len() / 2);
                }
                stage.driver.accept(listener);
            }
            event => panic!("unexpected: {event:?}"),
        }
    }
    assert!(accepted > 0 && refused >= 3, "{accepted} accepted, {refused} refused");
    // Whoever was refused or whose connection was dropped knows it; the others are still connected.
    let mut into = [0; 1];
    let over = clients.iter_mut().filter_map(|client| match client.read(&mut into) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
        outcome => Some(outcome),
    });
    assert_eq!(over.count(), CLIENTS - held.len());
    // With room again, accepting goes on as if nothing had happened.
    held.clear();
    clients.clear();
    stage.driver.pause_accept(listener);
    while stage.news() != News::AcceptStopped(listener, false, 0) {}
    stage.driver.accept(listener);
    let _late = stage.rig.dial(&destination);
    drop(stage.accepted(listener));
}

/// Row 3.27: `EMFILE` is survived, the oldest waiting client is refused and counted, accepting resumes.
#[test]
fn poll_survives_running_out_of_descriptors() {
    in_a_process_of_its_own(
        "poll_survives_running_out_of_descriptors",
        running_out_of_descriptors_is_survived::<Poll>,
    );
}

/// Row 3.27: the same on io_uring.
#[test]
fn uring_survives_running_out_of_descriptors() {
    in_a_process_of_its_own(
        "uring_survives_running_out_of_descriptors",
        running_out_of_descriptors_is_survived::<Uring>,
    );
}

/// `uring` with room for few sockets in its ring's table.
struct SmallTable;

/// Fewer than clients, and enough that some get in before each stop.
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
    running_out_is_survived::<SmallTable>(libc::ENFILE, || {});
}

/// Row 0.2: a connect that finds no slot fails, and gets one when there is one again.
#[test]
fn a_connect_without_a_slot_fails_and_may_be_repeated() {
    let mut stage = Stage::<System<SmallTable>>::new();
    let (mut listener, destination) = stage.rig.peer_listener(Place::V4);
    let mut connected = Vec::new();
    for _ in 0..SLOTS {
        let token = stage.token();
        stage.driver.connect(token, &destination).expect("it is begun");
        stage.expect(News::Connected(token));
        connected.push((token, stage.rig.peer_accept(&mut listener).expect("the peer has it")));
    }
    let late = stage.token();
    stage.driver.connect(late, &destination).expect("it is begun");
    let news = stage.news();
    assert!(matches!(news, News::Failed(token, _) if token == late), "{news:?}");
    stage.driver.close(late);
    stage.expect(News::Closed(late));
    let (first, _peer) = connected.swap_remove(0);
    stage.driver.close(first);
    stage.expect(News::Closed(first));
    let again = stage.token();
    stage.driver.connect(again, &destination).expect("it is begun");
    stage.expect(News::Connected(again));
}

fn direct_descriptors_are_not_the_processs() {
    let mut stage = Stage::<System<DirectUring>>::new();
    let (socket, destination) = stage.rig.listener(Place::V4);
    let _clients: Vec<_> = (0..CLIENTS).map(|_| stage.rig.dial(&destination)).collect();
    allow_few_descriptors();
    let listener = stage.token();
    stage.driver.listen(listener, socket).expect("listen");
    stage.driver.accept(listener);
    let held: Vec<_> = (0..CLIENTS).map(|_| stage.accepted(listener)).collect();
    assert!(2 * CLIENTS as u64 > DESCRIPTORS_MAX && held.len() == CLIENTS);
}

/// Row 0.2: both ends of all connections are more than the process may open.
#[test]
fn uring_accepts_beyond_the_limit_of_open_files() {
    in_a_process_of_its_own(
        "uring_accepts_beyond_the_limit_of_open_files",
        direct_descriptors_are_not_the_processs,
    );
}

fn a_detach_without_a_descriptor_is_told() {
    let mut stage = Stage::<System<DirectUring>>::new();
    let (token, mut peer) = stage.connection();
    // Whatever is open has a higher number.
    setrlimit(Resource::Nofile, Rlimit { current: Some(1), maximum: Some(DESCRIPTORS_MAX) })
        .expect("a limit can be lowered");
    stage.driver.detach(token);
    match stage.next_event() {
        Event::Detached { token: of, socket: Err(error) } if of == token => {
            assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
        }
        event => panic!("unexpected: {event:?}"),
    }
    assert_eq!(stage.peer_reads(&mut peer).expect("the end"), b"");
    stage.expect_silence();
}

/// Rows 0.2, 3.27: a direct socket that cannot become an ordinary one is closed, and that is said.
#[test]
fn uring_tells_when_there_is_no_descriptor_to_detach_into() {
    in_a_process_of_its_own(
        "uring_tells_when_there_is_no_descriptor_to_detach_into",
        a_detach_without_a_descriptor_is_told,
    );
}

/// Row 0.2: a socket of one ring is refused by another; its own driver closes it.
#[test]
fn a_direct_socket_of_another_ring_is_refused() {
    let mut stage = Stage::<System<DirectUring>>::new();
    let mut other = DirectUring::start().expect("another ring");
    let (listener, destination) = stage.listen(Place::V4);
    let mut peer = stage.rig.dial(&destination);
    let socket = stage.accepted(listener);
    let token = stage.token();
    let outcome = other.attach(token, socket, Kind::Stream, false);
    assert_eq!(outcome.map_err(|error| error.kind()), Err(std::io::ErrorKind::InvalidInput));
    assert_eq!(stage.peer_reads(&mut peer).expect("the end"), b"");
}

/// A service whose connections each answer one byte and close.
struct Answers;

struct Answer;

impl Service for Answers {
    type Session = Answer;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> Answer {
        Answer
    }
}

impl Session for Answer {
    type Service = Answers;

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, _: &mut Answers) -> usize {
        io.send(&bytes[..1]).expect("there is room");
        io.finish(CloseReason::Done);
        bytes.len()
    }
}

/// Connections of the shard: less than the descriptors that are left.
const CAPACITY: u32 = 10;

fn a_full_shard_refuses_nobody<D: SystemDriver>() {
    let mut rig = System::<D>::new();
    let (socket, destination) = rig.listener(Place::V4);
    let driver = rig.driver();
    let handle = driver.wake_handle();
    let (wake, counters) = (Arc::new(Wake::new(move || handle.wake())), Arc::default());
    let config = Config { capacity: CAPACITY, ..Config::default() };
    let mut shard = Shard::new(driver, Answers, config, Clock::real(), wake, counters);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| rig.dial(&destination)).collect();
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS_MAX), maximum: Some(DESCRIPTORS_MAX) })
        .expect("a limit can be lowered");
    shard.listen(socket, false).expect("the first listener");
    // The burst comes first, so that it is accepted as far as descriptors go.
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
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => assert!(rig.is_patient()),
                outcome => break outcome,
            }
        };
        assert_eq!(answer.ok(), Some(1), "client {number} was turned away");
    }
    let counters = shard.counters();
    assert_eq!((counters.refused_descriptors.get(), counters.accepted.get()), (0, CLIENTS as u64));
    assert!(counters.gate_closed.get() > 0, "the capacity was never reached");
}

/// Rows 3.27, 4.9: a burst beyond the capacity waits, also when those that wait for a slot have all the
/// descriptors that are left: nobody is turned away.
#[test]
fn a_full_shard_on_poll_refuses_nobody_for_want_of_descriptors() {
    in_a_process_of_its_own(
        "a_full_shard_on_poll_refuses_nobody_for_want_of_descriptors",
        a_full_shard_refuses_nobody::<Poll>,
    );
}

/// Rows 3.27, 4.9: the same on io_uring.
#[test]
fn a_full_shard_on_uring_refuses_nobody_for_want_of_descriptors() {
    in_a_process_of_its_own(
        "a_full_shard_on_uring_refuses_nobody_for_want_of_descriptors",
        a_full_shard_refuses_nobody::<Uring>,
    );
}

/// Gives `SIGPIPE` the meaning it has in a program that took no care: death.
#[allow(unsafe_code)]
fn a_dead_pipe_kills_nobody<D: SystemDriver>() {
    // SAFETY: SIG_DFL is no handler, so no code of ours runs in signal context.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    stilling_simulation::suite::promises::a_pipe_without_a_reader_is_an_error::<System<D>>();
    stilling_simulation::suite::promises::a_reset_wakes_an_armed_writable::<System<D>>();
}

/// Row 4.36: an embedder need not have ignored the signal.
#[test]
fn poll_is_not_killed_by_a_dead_pipe() {
    in_a_process_of_its_own("poll_is_not_killed_by_a_dead_pipe", a_dead_pipe_kills_nobody::<Poll>);
}

/// Row 4.36: the same on io_uring.
#[test]
fn uring_is_not_killed_by_a_dead_pipe() {
    in_a_process_of_its_own("uring_is_not_killed_by_a_dead_pipe", a_dead_pipe_kills_nobody::<Uring>);
}
