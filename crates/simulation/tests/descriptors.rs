//! What a driver does when the process may open no more descriptors.
//!
//! The limit is the whole process's, so each test runs its body in a process of its own: this binary
//! again, told by an environment variable.
#![cfg(target_os = "linux")]

use rustix::process::{Resource, Rlimit, setrlimit};
use stilling_engine::driver::{Event, poll::Poll, uring::Uring};
use stilling_simulation::suite::system::{System, SystemDriver};
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

fn running_out_of_descriptors_is_survived<D: SystemDriver>() {
    let mut stage = Stage::<System<D>>::new();
    let (socket, destination) = stage.rig.listener(Place::V4);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| stage.rig.dial(&destination)).collect();
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS_MAX), maximum: Some(DESCRIPTORS_MAX) })
        .expect("a limit can be lowered");
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
                assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
                refused += now as usize;
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
