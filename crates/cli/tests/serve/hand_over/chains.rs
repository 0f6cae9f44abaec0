//! Hand-overs before the first server has ended, and hand-over steps that fail beside publishers.

use std::os::unix::net::UnixDatagram;

use super::load;
use super::streams::{FakePredecessor, at, unread_subscriber};
use super::*;
use crate::nats::{RawNatsClient, address as nats_address};

on_both_drivers!(
    a_socket_file_is_passed_on_while_the_first_server_still_drains,
    three_servers_at_a_time_store_everything_once,
    a_stream_that_cannot_be_opened_keeps_no_other_one_closed,
    datagram_sockets_are_free_while_a_server_drains,
    successors_that_die_at_any_step_cost_no_publication,
    worker_processes_and_streams_change_hands_together,
);

/// Holds the streams of a server for some hundred milliseconds at its hand-over.
fn silent_client(server: &ServerUnderTest) -> RawNatsClient {
    RawNatsClient::connect(nats_address(server))
}

/// Row 4.37: the second server is succeeded while the first one still drains: it removes the first one's file and not
/// the third one's.
fn a_socket_file_is_passed_on_while_the_first_server_still_drains(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let socket = data.path().join("log");
    let beside = data.path().join("log.next");
    let streams = data.path().join("streams");
    let common = format!("-A 1 --syslog-unix {} --data {}", socket.display(), streams.display());
    let inode = |path: &Path| std::fs::symlink_metadata(path).map(|file| file.ino()).ok();
    let first = control_folder.start_first(driver, &format!("--nats 127.0.0.1:0 {common}"));
    let (http, nats) = (first.address(), nats_address(&first));
    let client = silent_client(&first);
    let of_first = inode(&socket);
    let second = control_folder.start_successor(driver, http, &format!("--nats {nats} {common}"));
    eventually("the second server has the path", || (inode(&socket) != of_first).then_some(()));
    first.signal(Signal::STOP);
    first.wait_until_stopped();
    // The third server has bound its socket beside the path, and has not moved it yet.
    let (successor, _listeners) = ControlPeer::request_offer(&control_folder.path, 2);
    let _ = std::fs::remove_file(&beside);
    let third = UnixDatagram::bind(&beside).expect("our folder");
    let of_third = inode(&beside);
    first.signal(Signal::CONT);
    drop(client);
    first.expect_clean_end();
    expect_served(http);
    let answer = second.connect().ask(PUBLICATION);
    assert_eq!(answer.status, 200, "the first server has released the streams: {}", answer.text());
    assert_eq!(inode(&beside), of_third, "the file of the third server is left alone");
    successor.refuse();
    drop(third);
    // A real server replaces it.
    let third = control_folder.start_successor(driver, http, &format!("--nats {nats} {common}"));
    second.expect_clean_end();
    let sender = UnixDatagram::unbound().expect("a socket");
    sender.send_to(b"<13>app: x", &socket).expect("the third server reads there");
    third.finish();
    assert!(inode(&socket).is_none() && inode(&beside).is_none(), "files are left");
    assert_eq!(load::stored(&streams, "events").get("x"), Some(&1));
}

const PUBLICATION: &str = "POST /publish/events.a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\ny";

/// Rows 4.37, 0.4: hand-overs before the previous server has ended, with publishers all the time.
fn three_servers_at_a_time_store_everything_once(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let (streams, socket) = (data.path().join("streams"), data.path().join("log"));
    let common =
        format!("--drain-timeout 300 --syslog-unix {} --data {}", socket.display(), streams.display());
    let first = control_folder.start_first(driver, &format!("-A 2 --nats 127.0.0.1:0 {common}"));
    let (http, nats) = (first.address(), nats_address(&first));
    let done = AtomicBool::new(false);
    let (last, sent) = thread::scope(|scope| {
        let (done, socket) = (&done, &socket);
        let senders = [
            ("n", scope.spawn(move || load::nats(nats, "n", done))),
            ("m", scope.spawn(move || load::nats(nats, "m", done))),
            ("x", scope.spawn(move || load::unix(socket, "x", done))),
        ];
        let (mut servers, mut halves) = (vec![first], Vec::new());
        for life in ["-A 1", "-A 2", "-A 1 --hub-thread dedicated"] {
            // An unfinished request holds a server beyond the release of its streams.
            let mut half = TestPeer::connect(http);
            half.send(&FAST[..20]);
            halves.push(half);
            let next =
                control_folder.start_successor(driver, http, &format!("{life} --nats {nats} {common}"));
            eventually("the next server can be succeeded", || control_folder.has_only_socket().then_some(()));
            servers.push(next);
        }
        drop(halves);
        let last = servers.pop().expect("there are four");
        servers.into_iter().for_each(|server| drop(server.expect_clean_end()));
        last.watch().until("it takes messages", |metrics| metrics.value("hub_messages_total") > 20);
        done.store(true, Ordering::Release);
        (last, senders.map(|(name, thread)| (name, thread.join().expect("nobody fails"))))
    });
    let all: u64 = sent.iter().map(|(_, count)| count).sum();
    let mut watcher = last.watch();
    watcher.until("all is stored", |metrics| metrics.value("hub_stream_visible_sequence") >= all);
    drop(watcher);
    last.finish();
    load::expect_stored_once(&streams, &sent);
}

/// Row 4.37: after a hand-over each stream opens independently; a failed one reports the reason and is retried.
fn a_stream_that_cannot_be_opened_keeps_no_other_one_closed(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let mut old = FakePredecessor::new(&control_folder, data.path());
    old.write(2);
    let streams = "--stream broken=broken.>:disk --stream events=events.>:disk";
    let options = format!("-A 1 {streams} --nats 127.0.0.1:0 --data {}", data.path().display());
    let (new, successor) = old.hand_over(&control_folder, driver, &options);
    let in_the_way = data.path().join("broken");
    std::fs::write(&in_the_way, "a file").expect("our folder");
    old.log.close().expect("it is closed");
    successor.send("released");
    let answer = new.connect().ask(PUBLICATION);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let broken = PUBLICATION.replace("events.a", "broken.a");
    let answer = new.connect().ask(&broken);
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("the stream broken is not open yet"), "{}", answer.text());
    let ready = || new.connect().ask("GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = ready();
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("broken") && !answer.text().contains("events"), "{}", answer.text());
    std::fs::remove_file(&in_the_way).expect("our folder");
    eventually("it is open", || (new.connect().ask(&broken).status == 200).then_some(()));
    assert_eq!(ready().status, 200);
    assert_eq!(new.connect().ask(PUBLICATION).status, 200);
    drop((successor, old.queue, old.control_socket));
    new.finish();
    let records = |stream| load::stored(data.path(), stream).get("y").copied();
    assert_eq!(records("events"), Some(2));
    assert!(records("broken") >= Some(1));
}

/// Row 4.9: a server that ends without a successor and still has a client closes its datagram sockets with its
/// listeners, after it has read the queued datagrams.
fn datagram_sockets_are_free_while_a_server_drains(driver: DriverUnderTest) {
    const DATAGRAMS: u32 = 200;
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let socket = data.path().join("log");
    let streams = |number| data.path().join(format!("streams-{number}"));
    let common = |number: u32| {
        let (socket, streams) = (socket.display(), streams(number).display().to_string());
        format!("-A 1 --syslog-unix {socket} --data {streams}")
    };
    let patient = "--send-buffer 8192 --write-timeout 300 --drain-timeout 300";
    let any = "--nats 127.0.0.1:0 --syslog-udp 127.0.0.1:0";
    let old = control_folder.start_first(driver, &format!("{any} {} {patient}", common(1)));
    let (http, udp) = (old.address(), at(&old, "syslog-udp"));
    let unread = unread_subscriber(&old, "idle");
    let mut publisher = silent_client(&old);
    old.watch().until("output is held", |metrics| {
        publisher.send(format!("PUB idle 1000\r\n{}\r\n", "x".repeat(1000)).repeat(64));
        metrics.value("output_held_bytes") > 1 << 20
    });
    let (to_udp, to_unix) = (
        std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket"),
        UnixDatagram::unbound().expect("a socket"),
    );
    old.signal(Signal::STOP);
    old.wait_until_stopped();
    for _ in 0..DATAGRAMS {
        to_udp.send_to(b"<13>host app: u", udp).expect("it is sent");
    }
    to_unix.send_to(b"<13>app: x", &socket).expect("it is sent");
    old.signal(Signal::TERM);
    old.signal(Signal::CONT);
    eventually("the port is free", || std::net::UdpSocket::bind(udp).ok());
    eventually("the Unix socket is closed", || to_unix.send_to(b"<13>app: z", &socket).err());
    eventually("nobody listens", || TestPeer::try_connect(http).is_err().then_some(()));
    let new = control_folder.start_successor(
        driver,
        http,
        &format!("--nats 127.0.0.1:0 --syslog-udp {udp} {}", common(2)),
    );
    to_unix.send_to(b"<13>app: y", &socket).expect("the new server reads there");
    drop((unread, publisher));
    old.expect_clean_end();
    let found = load::stored(&streams(1), "events");
    assert_eq!((found.get("u"), found.get("x")), (Some(&DATAGRAMS), Some(&1)));
    new.watch().until("it is stored", |metrics| metrics.value("hub_stream_visible_sequence") >= 1);
    new.finish();
}

/// Rows 4.37, 0.4: the successor ends after each step, beside publishers to a stream on disk.
fn successors_that_die_at_any_step_cost_no_publication(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let common = format!("--data {}", data.path().display());
    let old = control_folder.start_first(driver, &format!("-A 1 --nats 127.0.0.1:0 {common}"));
    let (http, nats) = (old.address(), nats_address(&old));
    let done = AtomicBool::new(false);
    let (new, sent) = thread::scope(|scope| {
        let senders = ["n", "m"].map(|name| {
            let done = &done;
            (name, scope.spawn(move || load::nats(nats, name, done)))
        });
        let mut watcher = old.watch();
        for step in 0..4 {
            let before = watcher.fetch().value("hub_messages_total");
            let (successor, listeners) = match step {
                0 => (ControlPeer::connect_to(&control_folder.path), Vec::new()),
                _ => ControlPeer::request_offer(&control_folder.path, 2),
            };
            if step >= 2 {
                successor.send("ready");
            }
            if step >= 3 {
                successor.expect("yours");
            }
            watcher.until("messages come", |metrics| metrics.value("hub_messages_total") > before + 20);
            drop((successor, listeners));
            eventually("the old server can be succeeded again", || {
                control_folder.has_only_socket().then_some(())
            });
        }
        drop(watcher);
        ControlPeer::request_offer(&control_folder.path, 2).0.refuse();
        let new = control_folder.start_successor(driver, http, &format!("-A 1 --nats {nats} {common}"));
        old.expect_clean_end();
        new.watch().until("messages come", |metrics| metrics.value("hub_messages_total") > 20);
        done.store(true, Ordering::Release);
        (new, senders.map(|(name, thread)| (name, thread.join().expect("nobody fails"))))
    });
    new.finish();
    load::expect_stored_once(data.path(), &sent);
}

/// Rows 4.37, 0.4: hand-over of a server with worker processes and streams: processes of either server answer requests,
/// and every message is stored once.
fn worker_processes_and_streams_change_hands_together(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let start = |nats: &str| {
        let options =
            format!("-A 1 --nats {nats} --data {} {}", data.path().display(), control_folder.option());
        crate::app::before_fakes(driver, &options).0
    };
    let mut server = start("127.0.0.1:0");
    let (http, nats) = (server.address(), nats_address(&server));
    let served = || TestPeer::connect(http).ask("GET /pid HTTP/1.1\r\nHost: a\r\n\r\n");
    let done = AtomicBool::new(false);
    let (server, sent) = thread::scope(|scope| {
        let done = &done;
        let sender = scope.spawn(move || load::nats(nats, "n", done));
        for _ in 0..2 {
            let next = start(&nats.to_string());
            eventually("the old server has ended", || {
                assert_eq!(served().status, 200);
                server.has_ended().then_some(())
            });
            server.expect_clean_end();
            server = next;
        }
        assert_eq!(served().status, 200);
        done.store(true, Ordering::Release);
        (server, [("n", sender.join().expect("nobody fails"))])
    });
    server.finish();
    load::expect_stored_once(data.path(), &sent);
}
