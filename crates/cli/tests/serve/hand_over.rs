//! Hand-over from one server to another: under load, with other numbers of shards, and with either side dying.

mod auctions;
mod before_release;
mod chains;
mod coap;
mod hung_disks;
mod killed;
mod listeners;
mod load;
mod refusals;
mod streams;
mod websockets;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;

use rustix::process::{Signal, Uid};
use tempfile::TempDir;

use crate::clients::ab;
use crate::support::{ControlPeer, DriverUnderTest, ServerUnderTest, TestPeer, Tool, binary, eventually};

on_both_drivers!(
    ten_hand_overs_under_load_lose_no_connection,
    ten_hand_overs_lose_no_request_on_kept_connections,
    requests_in_flight_are_answered_by_the_old_server,
    a_supervisor_that_ends_the_old_server_cuts_no_connection_off,
    connections_before_a_full_server_are_served_by_its_successor,
    connections_before_a_full_server_that_ends_are_left_to_the_successor,
    connections_before_a_full_server_that_ends_are_left_to_the_parent,
    a_successor_that_dies_at_any_step_changes_nothing,
    an_old_server_that_dies_at_any_step_is_succeeded,
    servers_that_are_killed_leave_one_that_works,
    an_old_server_stopped_during_the_hand_over_yields_to_the_successor,
    an_old_server_that_refuses_late_ends_its_successor_also_during_its_hand_over,
    a_successor_of_a_just_succeeded_server_is_redirected,
    a_successor_that_is_too_late_cannot_take_the_path_any_more,
    a_successor_that_cannot_start_leaves_the_old_server_alone,
    only_one_successor_at_a_time,
    of_two_that_start_at_the_same_moment_one_is_left,
    a_draining_server_is_not_taken_over,
    the_parent_may_pass_listeners,
);

const FAST: &str = "GET /test/fast HTTP/1.1\r\nHost: a\r\n\r\n";
const SLOW: &str = "GET /test/slow HTTP/1.1\r\nHost: a\r\n\r\n";

struct ControlFolder {
    folder: TempDir,
    path: PathBuf,
}

impl ControlFolder {
    fn new() -> ControlFolder {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("control");
        ControlFolder { folder, path }
    }

    fn option(&self) -> String {
        format!("--take-over {}", self.path.display())
    }

    /// Starts a server on a free port.
    fn start_first(&self, driver: DriverUnderTest, options: &str) -> ServerUnderTest {
        ServerUnderTest::start(driver, &format!("{} {options}", self.option()))
    }

    /// Starts a server at that address, which takes over.
    fn start_successor(
        &self,
        driver: DriverUnderTest,
        address: SocketAddr,
        options: &str,
    ) -> ServerUnderTest {
        ServerUnderTest::listening(driver, &address.to_string(), &format!("{} {options}", self.option()))
    }

    fn start_failing(&self, driver: DriverUnderTest, options: &str) -> Output {
        let mut command = binary();
        command.args(["serve", "--driver", driver.name()]);
        command.args(options.split_whitespace()).args(self.option().split_whitespace());
        command.output().expect("the binary starts")
    }

    /// Checks that the socket is reachable and the only file in the folder.
    fn has_only_socket(&self) -> bool {
        let files = std::fs::read_dir(self.folder.path()).expect("our folder").count();
        files == 1 && std::fs::metadata(&self.path).is_ok_and(|file| file.mode() & 0o777 == 0o600)
    }
}

#[track_caller]
fn expect_failure(outcome: &Output, reason: &str) {
    let stderr_text = String::from_utf8_lossy(&outcome.stderr);
    assert_eq!(outcome.status.code(), Some(1), "{stderr_text}");
    assert!(stderr_text.contains(reason), "{stderr_text}");
}

#[track_caller]
fn expect_served(address: SocketAddr) {
    assert_eq!(TestPeer::connect(address).ask(FAST).status, 200);
}

/// Loads the server with ab during ten hand-overs. Returns the number of answered requests.
fn under_load(driver: DriverUnderTest, arguments: &str) -> u64 {
    let control_folder = ControlFolder::new();
    let mut server = control_folder.start_first(driver, "-A 2");
    let (address, url) = (server.address(), server.url("/test/fast"));
    let done = AtomicBool::new(false);
    let load = || {
        let mut answered = 0;
        while !done.load(Ordering::Acquire) {
            let (complete, failed, not_ok) = ab(arguments, &url);
            assert_eq!((failed, not_ok), (0, 0), "of {complete}");
            answered += complete;
        }
        answered
    };
    let (server, answered) = thread::scope(|scope| {
        let load = scope.spawn(load);
        for _ in 0..10 {
            // The server has load before the hand-over.
            server.watch().until("somebody is served", |metrics| metrics.answers(200) > 500);
            let next = control_folder.start_successor(driver, address, "-A 2");
            server.expect_clean_end();
            server = next;
        }
        done.store(true, Ordering::Release);
        (server, load.join().expect("ab has nothing to complain of"))
    });
    assert!(control_folder.has_only_socket());
    server.finish();
    answered
}

/// Row 4.37: no connection is refused, reset or lost during hand-overs.
fn ten_hand_overs_under_load_lose_no_connection(driver: DriverUnderTest) {
    assert!(under_load(driver, "-n 3000 -c 50") > 5000);
}

/// Row 4.37: the same with kept connections: none ends in the middle of a request.
fn ten_hand_overs_lose_no_request_on_kept_connections(driver: DriverUnderTest) {
    assert!(under_load(driver, "-k -n 10000 -c 50") > 5000);
}

/// Row 4.37: the old server finishes its requests, kept connections get `Connection: close`, and the new server serves
/// new connections.
fn requests_in_flight_are_answered_by_the_old_server(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let old = control_folder.start_first(driver, "-A 1 -w 1 -D 300");
    let mut watcher = old.watch();
    let mut idle = old.connect();
    assert_eq!(idle.ask(FAST).status, 200);
    let mut half = old.connect();
    half.send(&FAST[..20]);
    let mut slow = old.connect();
    slow.send(SLOW);
    watcher.until("the job runs", |metrics| metrics.value("jobs_running") == 1);
    let new = control_folder.start_successor(driver, old.address(), "");
    assert!(new.banner_line("taking over from process ").parse::<i32>().is_ok());
    // The old server drains.
    assert_eq!(idle.rest(), b"");
    half.send(&FAST[20..]);
    let answer = half.answer();
    assert_eq!((answer.status, answer.field("Connection")), (200, Some("close")));
    assert_eq!(half.rest(), b"");
    assert_eq!(slow.answer().status, 200);
    assert_eq!(slow.rest(), b"");
    old.expect_clean_end();
    expect_served(new.address());
    new.finish();
    assert_eq!(
        std::fs::read_dir(control_folder.folder.path()).expect("our folder").count(),
        0,
        "the socket is left"
    );
}

/// Row 4.37: SIGTERM from a supervisor during the drain of a hand-over does not count as a second signal.
fn a_supervisor_that_ends_the_old_server_cuts_no_connection_off(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let old = control_folder.start_first(driver, "-w 1 -D 300");
    let mut watcher = old.watch();
    let mut slow = old.connect();
    slow.send(SLOW);
    watcher.until("the job runs", |metrics| metrics.value("jobs_running") == 1);
    let mut idle = old.connect();
    assert_eq!(idle.ask(FAST).status, 200);
    let new = control_folder.start_successor(driver, old.address(), "");
    // The old server drains.
    assert_eq!(idle.rest(), b"");
    old.signal(Signal::TERM);
    assert_eq!(slow.answer().status, 200);
    old.expect_clean_end();
    new.finish();
}

/// Rows 4.37, 4.9: all slots of the old server are in use, its gate is closed, and its backlog holds connections: none
/// of them is reset.
fn connections_before_a_full_server_are_served_by_its_successor(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let old = control_folder.start_first(driver, "-A 1 -C 3");
    let mut watcher = old.watch();
    let mut inside: Vec<TestPeer> = (0..2).map(|_| old.connect()).collect();
    for peer in &mut inside {
        assert_eq!(peer.ask(FAST).status, 200);
    }
    assert_eq!(watcher.fetch().value("accept_pauses_total"), 1);
    let mut crowd: Vec<TestPeer> = (0..40).map(|_| old.connect()).collect();
    for peer in &mut crowd {
        peer.send(FAST);
    }
    assert!(crowd.iter().all(TestPeer::is_silent));
    let new = control_folder.start_successor(driver, old.address(), "-A 2");
    for peer in &mut crowd {
        assert_eq!(peer.answer().status, 200);
    }
    drop((crowd, inside, watcher));
    old.expect_clean_end();
    new.finish();
}

/// Takes every slot of a server with `-A 1 -C 3`, and opens connections that wait in its backlog.
fn crowd_before(server: &ServerUnderTest) -> (Vec<TestPeer>, Vec<TestPeer>) {
    let mut inside: Vec<TestPeer> = (0..3).map(|_| server.connect()).collect();
    for peer in &mut inside {
        assert_eq!(peer.ask(FAST).status, 200);
    }
    let mut crowd: Vec<TestPeer> = (0..CROWD).map(|_| server.connect()).collect();
    for peer in &mut crowd {
        peer.send(FAST);
    }
    (inside, crowd)
}

const CROWD: usize = 10;

/// Checks that all waiting connections are still in this queue.
fn expect_crowd(queue: TcpListener) {
    queue.set_nonblocking(true).expect("a listener takes options");
    let waiting = (0..CROWD).filter(|_| queue.accept().is_ok()).count();
    assert_eq!(waiting, CROWD);
}

/// Row 4.37: a server that ends while its successor starts takes no connection out of the shared queue.
fn connections_before_a_full_server_that_ends_are_left_to_the_successor(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let old = control_folder.start_first(driver, "-A 1 -C 3");
    let (inside, crowd) = crowd_before(&old);
    let (successor, mut listeners) = ControlPeer::request_offer(&control_folder.path, 1);
    old.signal(Signal::TERM);
    inside.into_iter().for_each(|mut peer| assert_eq!(peer.rest(), b""));
    successor.expect_end();
    old.expect_clean_end();
    expect_crowd(TcpListener::from(listeners.pop().expect("it was offered")));
    drop(crowd);
}

/// Row 4.37: the same if the parent process also holds the listener and may start the next server with it.
fn connections_before_a_full_server_that_ends_are_left_to_the_parent(driver: DriverUnderTest) {
    let queue = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let raw = queue.as_fd().try_clone_to_owned().expect("a descriptor");
    // The listener is passed as a standard stream, which nothing closes before the program begins.
    let become_server = "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"";
    let mut command = Tool::new("bash", "-c").arg(become_server).arg(binary().get_program()).into_command();
    command.args(["serve", "--driver", driver.name(), "-A", "1", "-C", "3"]).stdin(Stdio::from(raw));
    let server = ServerUnderTest::spawn_with_stdin(command);
    assert_eq!(server.banner_line("kept "), "1 listeners");
    let (inside, crowd) = crowd_before(&server);
    server.signal(Signal::TERM);
    inside.into_iter().for_each(|mut peer| assert_eq!(peer.rest(), b""));
    server.expect_clean_end();
    expect_crowd(queue);
    drop(crowd);
}

/// Rows 4.37, 4.9: the successor ends after each step. The old server continues, and can still be succeeded.
fn a_successor_that_dies_at_any_step_changes_nothing(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let old = control_folder.start_first(driver, "-A 2");
    let address = old.address();
    for step in 0..6 {
        let mut listeners: Vec<OwnedFd> = Vec::new();
        let successor = match step {
            0 => ControlPeer::connect_to(&control_folder.path),
            _ => {
                let (successor, offered) = ControlPeer::request_offer(&control_folder.path, 2);
                listeners = offered;
                successor
            }
        };
        if step == 1 {
            // It has received everything and dies.
            listeners.clear();
        }
        if step >= 3 {
            successor.send("ready");
        }
        if step >= 4 {
            successor.expect("yours");
        }
        if step == 5 {
            // Its control socket is at the path, and it dies.
            let control_socket = ControlPeer::control_socket(&control_folder.path.with_extension("next"));
            std::fs::rename(control_folder.path.with_extension("next"), &control_folder.path)
                .expect("our folder");
            drop(control_socket);
        }
        let mut waiting = TestPeer::connect(address);
        drop((successor, listeners));
        waiting.send(FAST);
        assert_eq!(waiting.answer().status, 200, "after step {step}");
        expect_served(address);
        eventually("the old server can be succeeded again", || {
            control_folder.has_only_socket().then_some(())
        });
    }
    ControlPeer::request_offer(&control_folder.path, 2).0.refuse();
    let new = control_folder.start_successor(driver, address, "");
    old.expect_clean_end();
    expect_served(address);
    new.finish();
}

/// Row 4.37: the old server ends after each step. The successor then serves, with the connections that wait in the
/// queue.
fn an_old_server_that_dies_at_any_step_is_succeeded(driver: DriverUnderTest) {
    for step in 0..6 {
        let control_folder = ControlFolder::new();
        let control_socket = ControlPeer::control_socket(&control_folder.path);
        let queue = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = queue.local_addr().expect("it is bound");
        let mut waiting: Vec<TestPeer> = (0..20).map(|_| TestPeer::connect(address)).collect();
        for peer in &mut waiting {
            peer.send(FAST);
        }
        let (new, waiting) = thread::scope(|scope| {
            let new = scope.spawn(|| control_folder.start_successor(driver, address, "-A 2"));
            let successor = ControlPeer::accept(&control_socket);
            let mut received = true;
            match step {
                0 => received = false,
                1 => {
                    successor.expect("hand-over 2");
                    successor.send_descriptors("listeners http 1", &[std::os::fd::AsFd::as_fd(&queue)]);
                }
                2 => successor.make_offer(&queue),
                3 => {
                    successor.make_offer(&queue);
                    successor.expect("ready");
                }
                4 => {
                    successor.make_offer(&queue);
                    successor.expect("ready");
                    successor.send("yours");
                }
                _ => {
                    successor.make_offer(&queue);
                    successor.expect("ready");
                    successor.send("yours");
                    successor.expect("taken");
                }
            }
            // All descriptors of the old server close.
            drop((queue, control_socket, successor));
            // Connections that wait before the hand-over of the listener are lost with the server that died.
            let waiting = if received { waiting } else { Vec::new() };
            (new.join().expect("it starts"), waiting)
        });
        for mut peer in waiting {
            assert_eq!(peer.answer().status, 200, "after step {step}");
        }
        expect_served(address);
        eventually("the new server can be succeeded", || control_folder.has_only_socket().then_some(()));
        let last = control_folder.start_successor(driver, address, "");
        new.expect_clean_end();
        expect_served(address);
        last.finish();
    }
}

/// Row 4.37: the same with real processes and a real signal at any moment.
fn servers_that_are_killed_leave_one_that_works(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let mut server = control_folder.start_first(driver, "");
    for round in 0..6 {
        let address = server.address();
        let next = control_folder.start_successor(driver, address, "");
        if round % 2 == 0 {
            server.signal(Signal::KILL);
            server.wait();
            server = next;
        } else {
            next.signal(Signal::KILL);
            next.wait();
            // It was killed before or after its last message: the old server continues or has ended.
            let goes_on = eventually("the old server has decided", || {
                let gone = server.has_ended();
                (gone || ControlPeer::is_offered(&control_folder.path)).then_some(!gone)
            });
            if goes_on {
                expect_served(address);
                let another = control_folder.start_successor(driver, address, "");
                server.expect_clean_end();
                server = another;
            } else {
                // At another port: a killed process may keep its port for a moment.
                server = control_folder.start_first(driver, "");
            }
        }
        expect_served(server.address());
        eventually("the server can be succeeded", || control_folder.has_only_socket().then_some(()));
    }
    server.finish();
}

/// Row 4.37: SIGTERM to the old server between any two steps: the connection to the successor ends without a refusal,
/// the successor owns the queue, and the path is free.
fn an_old_server_stopped_during_the_hand_over_yields_to_the_successor(driver: DriverUnderTest) {
    for step in 0..4 {
        let control_folder = ControlFolder::new();
        let old = control_folder.start_first(driver, "-A 1");
        let address = old.address();
        let (successor, listeners) = match step {
            0 => (ControlPeer::connect_to(&control_folder.path), Vec::new()),
            _ => ControlPeer::request_offer(&control_folder.path, 1),
        };
        if step >= 2 {
            successor.send("ready");
            successor.expect("yours");
        }
        if step >= 3 {
            successor.send("taken");
        }
        old.signal(Signal::TERM);
        successor.expect_end_perhaps_after("released");
        old.expect_clean_end();
        if step > 0 {
            let mut peer = TestPeer::connect(address);
            peer.send(FAST);
            let queue = TcpListener::from(listeners.into_iter().next().expect("it was offered"));
            queue.set_nonblocking(false).expect("a listener can be blocking");
            queue.accept().expect("the queue has survived");
        }
        let next = control_folder.start_successor(driver, "127.0.0.1:0".parse().expect("an address"), "");
        assert!(control_folder.has_only_socket(), "after step {step}");
        next.finish();
    }
}

/// Row 4.37: two servers never run beside each other: the refused one ends, whatever its state.
fn an_old_server_that_refuses_late_ends_its_successor_also_during_its_hand_over(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let control_socket = ControlPeer::control_socket(&control_folder.path);
    let queue = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = queue.local_addr().expect("it is bound");
    let (new, old) = thread::scope(|scope| {
        let new = scope.spawn(|| control_folder.start_successor(driver, address, "-A 1"));
        let old = ControlPeer::accept(&control_socket);
        old.make_offer(&queue);
        old.expect("ready");
        old.send("yours");
        old.expect("taken");
        (new.join().expect("it starts"), old)
    });
    let (another, _listeners) = ControlPeer::request_offer(&control_folder.path, 1);
    old.send("refused too late");
    another.expect("refused the predecessor continues, so this server must end: too late");
    another.expect_end();
    let (status, _) = new.wait();
    assert_eq!(status.code(), Some(1));
}

/// Row 4.37: a successor that connects to the old server before the path changes owners neither waits for the drain nor
/// fails: it connects again, once.
fn a_successor_of_a_just_succeeded_server_is_redirected(driver: DriverUnderTest) {
    const REPLACED_REASON: &str = "refused another server has just taken over; it is at the path now";
    let control_folder = ControlFolder::new();
    let old = control_folder.start_first(driver, "-A 1 -w 1 -D 300");
    let (first, _listeners) = ControlPeer::request_offer(&control_folder.path, 1);
    first.send("ready");
    first.expect("yours");
    old.signal(Signal::STOP);
    old.wait_until_stopped();
    first.send("taken");
    let late = ControlPeer::connect_to(&control_folder.path);
    old.signal(Signal::CONT);
    late.expect(REPLACED_REASON);
    late.expect_end();
    old.expect_clean_end();

    let control_folder = ControlFolder::new();
    let control_socket = ControlPeer::control_socket(&control_folder.path);
    let outcome = thread::scope(|scope| {
        let attempt = scope.spawn(|| control_folder.start_failing(driver, "--listen 127.0.0.1:0"));
        ControlPeer::accept(&control_socket).send(REPLACED_REASON);
        ControlPeer::accept(&control_socket).send(REPLACED_REASON);
        attempt.join().expect("it ends")
    });
    expect_failure(&outcome, "the other server refused: another server has just taken over");
}

/// Row 4.37: late actions of a refused successor at the path change nothing: there is no file to rename.
fn a_successor_that_is_too_late_cannot_take_the_path_any_more(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let old = control_folder.start_first(driver, "-A 1");
    let next = control_folder.path.with_extension("next");
    let (successor, listeners) = ControlPeer::request_offer(&control_folder.path, 1);
    let _door = ControlPeer::control_socket(&next);
    successor.send("ready");
    successor.expect("yours");
    successor.send("ready");
    successor.expect("refused the other side should have sent `taken` and sent `ready`");
    let error = std::fs::rename(&next, &control_folder.path).expect_err("it was to be taken away");
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert!(control_folder.has_only_socket());
    drop(listeners);
    let new = control_folder.start_successor(driver, old.address(), "");
    old.expect_clean_end();
    new.finish();
}

/// Row 4.37: the successor reports its own error; the old server is unaffected.
fn a_successor_that_cannot_start_leaves_the_old_server_alone(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let old = control_folder.start_first(driver, "-A 3");
    let address = old.address();
    let stranger = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = stranger.local_addr().expect("it is bound");
    let outcome = control_folder.start_failing(driver, &format!("--listen {address} --listen {taken}"));
    expect_failure(&outcome, &format!("cannot listen on {taken}: another process listens there"));
    let outcome = control_folder.start_failing(driver, &format!("--listen {address} --congestion nonsense"));
    expect_failure(&outcome, &format!("cannot listen on {address}"));
    expect_served(address);
    // Without a hand-over this is a server started twice by mistake.
    let outcome = binary().args(["serve", "--listen", &address.to_string()]).output().expect("it starts");
    expect_failure(&outcome, "another process listens there");
    let new = control_folder.start_successor(driver, address, "");
    old.expect_clean_end();
    new.finish();
}

/// Row 4.37: a second successor is refused with the reason; the first one can continue.
fn only_one_successor_at_a_time(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let old = control_folder.start_first(driver, "-A 1");
    let address = old.address();
    let (first, listeners) = ControlPeer::request_offer(&control_folder.path, 1);
    let outcome = control_folder.start_failing(driver, &format!("--listen {address}"));
    expect_failure(&outcome, "the other server refused: another server is taking over now");
    first.send("ready");
    first.expect("yours");
    first.send("taken");
    first.expect_end_perhaps_after("released");
    old.expect_clean_end();
    // The test holds the listener, so new connections wait in its queue.
    let queue = TcpListener::from(listeners.into_iter().next().expect("it was offered"));
    queue.set_nonblocking(false).expect("a listener can be blocking");
    let mut peer = TestPeer::connect(address);
    peer.send(FAST);
    queue.accept().expect("the queue has survived");
}

/// Row 4.37: two servers start at a free path: one of them is the first, and the other one is refused or takes over
/// from it. Files of killed servers change nothing.
fn of_two_that_start_at_the_same_moment_one_is_left(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let start = || {
        let mut command = binary();
        command.args(["serve", "--listen", "127.0.0.1:0", "-A", "1", "--driver", driver.name()]);
        command.args(control_folder.option().split_whitespace());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("the binary starts")
    };
    for round in 0..20 {
        let mut both = [start(), start()];
        let ended = eventually("one has ended", || {
            both.iter_mut().position(|one| one.try_wait().expect("a child can be waited for").is_some())
        });
        let [first, second] = both;
        let (ended, mut left) = if ended == 0 { (first, second) } else { (second, first) };
        let ended = ended.wait_with_output().expect("it has ended");
        let stderr_text = String::from_utf8_lossy(&ended.stderr).into_owned();
        match ended.status.code() {
            Some(0) => {
                assert!(
                    stderr_text.contains(&format!("handed over to process {}: draining", left.id())),
                    "{stderr_text}"
                );
            }
            // Includes the process id if the other process has announced it in time.
            code => {
                let about =
                    format!("is starting with {}; wait until it serves\n", control_folder.path.display());
                assert!(
                    stderr_text.starts_with("stilling: cannot take over: another server ")
                        && stderr_text.ends_with(&about),
                    "{stderr_text}"
                );
                assert_eq!(code, Some(1));
            }
        }
        eventually("the other one is the server", || {
            ControlPeer::is_offered(&control_folder.path).then_some(())
        });
        assert!(control_folder.has_only_socket());
        let killed = round % 3 == 0;
        let signal = if killed { Signal::KILL } else { Signal::TERM };
        rustix::process::kill_process(rustix::process::Pid::from_child(&left), signal).expect("it runs");
        let status = left.wait().expect("it ends");
        assert_eq!(status.success(), !killed, "{status}");
        // A file that a process killed at its start would leave.
        std::fs::write(control_folder.path.with_extension("lock"), "1").expect("our folder");
    }
}

/// Row 4.37: a draining server hands over nothing: the next one starts by itself.
fn a_draining_server_is_not_taken_over(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let old = control_folder.start_first(driver, "-w 1 -D 300");
    let mut watcher = old.watch();
    let mut slow = old.connect();
    slow.send(SLOW);
    watcher.until("the job runs", |metrics| metrics.value("jobs_running") == 1);
    old.signal(Signal::TERM);
    eventually("the control socket is gone", || (!control_folder.path.exists()).then_some(()));
    eventually("nobody listens", || TestPeer::try_connect(old.address()).is_err().then_some(()));
    let new = control_folder.start_successor(driver, old.address(), "");
    assert_eq!(slow.answer().status, 200);
    old.expect_clean_end();
    expect_served(new.address());
    new.finish();
}

/// A service supervisor: opens listeners and becomes the server.
const PARENT: &str = "
import os, socket, sys
count, names, arguments = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
sockets = []
for number in range(count):
    listener = socket.socket()
    listener.bind(('127.0.0.1', 0))
    listener.listen(100)
    sockets.append(listener)
# Out of the way of the numbers that they are to have.
spare = [os.dup(listener.fileno()) for listener in sockets for _ in range(5)]
for number, listener in enumerate(sockets):
    os.dup2(listener.fileno() if listener.fileno() > 2 + count else spare[-1 - 5 * (count - 1 - number)], 3 + number)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(count), LISTEN_FDNAMES=names)
os.execv(arguments[0], arguments)
";

/// Row 4.37: sd_listen_fds(3): the parent's listeners replace the default address, add to named ones, and are handed
/// over like any other.
fn the_parent_may_pass_listeners(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let start = |count: &str, names: &str, options: &str| {
        let tool = Tool::new("python3", "-c").arg(PARENT).arg(count).arg(names).arg(binary().get_program());
        let mut command = tool.into_command();
        command.args(["serve", "--driver", driver.name()]).args(options.split_whitespace());
        command
    };
    let server =
        ServerUnderTest::spawn(start("2", "web:admin", &format!("-A 3 {}", control_folder.option())));
    assert_eq!(server.banner_line("passed by the parent: "), "web, admin");
    assert_eq!(server.banner_line("kept "), "2 listeners");
    let addresses = server.addresses();
    assert_eq!(addresses.len(), 2);
    for address in &addresses {
        for _ in 0..20 {
            expect_served(*address);
        }
    }
    let listen = format!("--listen {} {}", addresses[1], control_folder.option());
    let next = ServerUnderTest::listening(driver, &addresses[0].to_string(), &listen);
    server.expect_clean_end();
    assert_eq!(next.banner_line("kept "), "2 listeners");
    for address in &addresses {
        expect_served(*address);
    }
    next.finish();

    let server = ServerUnderTest::spawn(start("1", "", "--listen 127.0.0.2:0"));
    assert_eq!(server.addresses().len(), 2);
    for address in server.addresses() {
        expect_served(address);
    }
    server.finish();

    let outcome = start("1", "a:b", "").output().expect("python runs");
    expect_failure(&outcome, "the parent process set LISTEN_FDNAMES to \"a:b\"");
}
