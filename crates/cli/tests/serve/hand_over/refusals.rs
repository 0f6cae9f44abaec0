//! Refusals of the control socket, with their reasons.

use super::*;

const NOBODY_UID: u32 = 65_534;

/// Row 4.37: another version is refused with both versions, a malformed line with its reason, and the server
/// continues.
#[test]
fn other_versions_and_malformed_messages_are_refused_with_their_reason() {
    let control_folder = ControlFolder::new();
    let server = control_folder.start_first(DriverUnderTest::Poll, "");
    for (line, reason) in [
        (
            "hand-over 1",
            "this server has hand-over version 2, the other one version 1; stop the old server, then start the new one",
        ),
        (
            "hand-over one",
            "the other side should have sent `hand-over` and sent \"hand-over one\\n\" with 0 descriptors",
        ),
        ("ready", "the other side should have sent `hand-over` and sent `ready`"),
        ("refused changed my mind", "the other server refused: changed my mind"),
    ] {
        let successor = ControlPeer::connect_to(&control_folder.path);
        successor.send(line);
        successor.expect(&format!("refused {reason}"));
        successor.expect_end();
        expect_served(server.address());
    }
    server.finish();
}

/// Row 4.37: the new server reports the refusal of the old one, and ends.
#[test]
fn an_old_server_that_refuses_is_quoted() {
    for (line, reason) in [
        ("refused this server speaks version 7", "the other server refused: this server speaks version 7"),
        ("listeners nats 1", "should have sent `listeners` and sent \"listeners nats 1\\n\""),
        ("end 1", "should have sent `listeners` and sent `end 1`"),
    ] {
        let control_folder = ControlFolder::new();
        let control_socket = ControlPeer::control_socket(&control_folder.path);
        let outcome = thread::scope(|scope| {
            let attempt =
                scope.spawn(|| control_folder.start_failing(DriverUnderTest::Poll, "--listen 127.0.0.1:0"));
            let successor = ControlPeer::accept(&control_socket);
            successor.expect("hand-over 2");
            successor.send(line);
            attempt.join().expect("it ends")
        });
        expect_failure(&outcome, reason);
        assert!(control_folder.path.exists(), "it took what is not its own");
    }
}

/// Row 4.37: only processes of the same user get listeners, even if the socket's mode lets others connect, and a socket
/// of another user is not used.
#[test]
fn other_users_get_nothing_and_are_given_nothing() {
    let control_folder = ControlFolder::new();
    let server = control_folder.start_first(DriverUnderTest::Poll, "");
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    open(control_folder.folder.path(), 0o755);
    open(&control_folder.path, 0o666);
    let other_folder = ControlFolder::new();
    open(other_folder.folder.path(), 0o1777);
    thread::scope(|scope| {
        scope.spawn(|| {
            let nobody = Uid::from_raw(NOBODY_UID);
            // Affects this thread only.
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("these tests run as root");
            let successor = ControlPeer::connect_to(&control_folder.path);
            successor
                .expect("refused the process at the other end runs as user 65534, and this server as user 0");
            successor.expect_end();
            ControlPeer::control_socket(&other_folder.path);
        });
    });
    expect_served(server.address());
    server.finish();
    let outcome = other_folder.start_failing(DriverUnderTest::Poll, "--listen 127.0.0.1:0");
    expect_failure(
        &outcome,
        "belongs to user 65534, and this server runs as user 0; run it as the same user",
    );
}

/// Row 4.37: at a path where another server is starting, a second server fails and names that process.
#[test]
fn a_path_at_which_another_server_is_starting_is_left_to_it() {
    let control_folder = ControlFolder::new();
    let lock = std::fs::File::create(control_folder.path.with_extension("lock")).expect("our folder");
    std::fs::write(control_folder.path.with_extension("lock"), "77").expect("our folder");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("nobody holds it");
    let outcome = control_folder.start_failing(DriverUnderTest::Poll, "--listen 127.0.0.1:0");
    let path = control_folder.path.display();
    expect_failure(
        &outcome,
        &format!("another server (process 77) is starting with {path}; wait until it serves"),
    );
    assert!(!control_folder.path.exists());
    drop(lock);
    let server = control_folder.start_first(DriverUnderTest::Poll, "");
    assert!(control_folder.has_only_socket());
    server.finish();
}

/// Row 4.37: the path is checked first: a dead socket is replaced, a file of another kind or user is left.
#[test]
fn the_path_must_be_a_socket_of_this_user_in_a_safe_folder() {
    let control_folder = ControlFolder::new();
    drop(UnixListener::bind(&control_folder.path).expect("a dead socket"));
    drop(UnixListener::bind(control_folder.path.with_extension("next")).expect("another"));
    let server = control_folder.start_first(DriverUnderTest::Poll, "");
    assert!(control_folder.has_only_socket());
    let address = server.address();
    server.signal(Signal::KILL);
    server.wait();
    let server = control_folder.start_successor(DriverUnderTest::Poll, address, "");
    assert!(control_folder.has_only_socket());
    server.finish();

    std::fs::write(&control_folder.path, "precious").expect("our folder");
    let outcome = control_folder.start_failing(DriverUnderTest::Poll, "--listen 127.0.0.1:0");
    expect_failure(&outcome, "exists and is not a socket; choose another path or remove it");
    assert_eq!(std::fs::read_to_string(&control_folder.path).expect("it is there"), "precious");
    std::fs::remove_file(&control_folder.path).expect("our folder");
    std::fs::set_permissions(control_folder.folder.path(), std::fs::Permissions::from_mode(0o777))
        .expect("our folder");
    let outcome = control_folder.start_failing(DriverUnderTest::Poll, "--listen 127.0.0.1:0");
    expect_failure(&outcome, "other users can replace files in");
}
