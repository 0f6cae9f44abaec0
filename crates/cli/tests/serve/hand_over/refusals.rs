//! What is refused at the control socket's door, by whom and with which words.

use super::*;

/// Row 4.37: another version is told which one this is, whoever speaks nonsense is told that, and the server goes
/// on.
#[test]
fn other_versions_and_nonsense_are_refused_with_their_reason() {
    let place = Place::new();
    let server = place.first(Driver::Poll, "");
    for (line, reason) in [
        (
            "hand-over 1",
            "this server speaks version 2 of the hand-over, the other version 1; stop the old server, then start the new one",
        ),
        (
            "hand-over one",
            "the other side should have said `hand-over` and said \"hand-over one\\n\" with 0 descriptors",
        ),
        ("ready", "the other side should have said `hand-over` and said `ready`"),
        ("refused changed my mind", "the other server refused: changed my mind"),
    ] {
        let successor = Control::knock(&place.path);
        successor.say(line);
        successor.expect(&format!("refused {reason}"));
        successor.expect_end();
        expect_served(server.address());
    }
    server.finish();
}

/// Row 4.37: the new server says what the old one has against it, and ends.
#[test]
fn an_old_server_that_refuses_is_quoted() {
    for (line, reason) in [
        ("refused this server speaks version 7", "the other server refused: this server speaks version 7"),
        ("listeners nats 1", "should have said `listeners` and said \"listeners nats 1\\n\""),
        ("end 1", "should have said `listeners` and said `end 1`"),
    ] {
        let place = Place::new();
        let door = Control::door(&place.path);
        let outcome = thread::scope(|scope| {
            let attempt = scope.spawn(|| place.attempt(Driver::Poll, "--listen 127.0.0.1:0"));
            let successor = Control::open(&door);
            successor.expect("hand-over 2");
            successor.say(line);
            attempt.join().expect("it ends")
        });
        expect_failure(&outcome, reason);
        assert!(place.path.exists(), "it took what is not its own");
    }
}

/// Row 4.37: listeners are for processes of the same user alone, even if the socket's mode lets others connect,
/// and a socket of another user is not asked.
#[test]
fn other_users_get_nothing_and_are_given_nothing() {
    let place = Place::new();
    let server = place.first(Driver::Poll, "");
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    open(place.folder.path(), 0o755);
    open(&place.path, 0o666);
    let other_place = Place::new();
    open(other_place.folder.path(), 0o1777);
    thread::scope(|scope| {
        scope.spawn(|| {
            let nobody = Uid::from_raw(NOBODY);
            // Of this thread alone.
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("these tests run as root");
            let successor = Control::knock(&place.path);
            successor
                .expect("refused the process at the other end runs as user 65534, and this server as user 0");
            successor.expect_end();
            Control::door(&other_place.path);
        });
    });
    expect_served(server.address());
    server.finish();
    let outcome = other_place.attempt(Driver::Poll, "--listen 127.0.0.1:0");
    expect_failure(
        &outcome,
        "belongs to user 65534, and this server runs as user 0; run it as the same user",
    );
}

/// Row 4.37: where nobody is and somebody is about to be, a second server says so, and who it is.
#[test]
fn a_path_at_which_another_server_is_starting_is_left_to_it() {
    let place = Place::new();
    let lock = std::fs::File::create(place.path.with_extension("lock")).expect("our folder");
    std::fs::write(place.path.with_extension("lock"), "77").expect("our folder");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("nobody holds it");
    let outcome = place.attempt(Driver::Poll, "--listen 127.0.0.1:0");
    let path = place.path.display();
    expect_failure(
        &outcome,
        &format!("another server (process 77) is starting with {path} at this moment; wait until it serves"),
    );
    assert!(!place.path.exists());
    drop(lock);
    let server = place.first(Driver::Poll, "");
    assert!(place.is_tidy());
    server.finish();
}

/// Row 4.37: the path is checked before anything is done: what is dead is replaced, what is not ours is left.
#[test]
fn the_path_must_be_a_socket_of_this_user_in_a_safe_folder() {
    let place = Place::new();
    drop(UnixListener::bind(&place.path).expect("a dead socket"));
    drop(UnixListener::bind(place.path.with_extension("next")).expect("another"));
    let server = place.first(Driver::Poll, "");
    assert!(place.is_tidy());
    let address = server.address();
    server.signal(Signal::KILL);
    server.wait();
    let server = place.next(Driver::Poll, address, "");
    assert!(place.is_tidy());
    server.finish();

    std::fs::write(&place.path, "precious").expect("our folder");
    let outcome = place.attempt(Driver::Poll, "--listen 127.0.0.1:0");
    expect_failure(&outcome, "exists and is no socket; choose another path or remove it");
    assert_eq!(std::fs::read_to_string(&place.path).expect("it is there"), "precious");
    std::fs::remove_file(&place.path).expect("our folder");
    std::fs::set_permissions(place.folder.path(), std::fs::Permissions::from_mode(0o777))
        .expect("our folder");
    let outcome = place.attempt(Driver::Poll, "--listen 127.0.0.1:0");
    expect_failure(&outcome, "others may put sockets into");
}
