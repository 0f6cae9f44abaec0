//! A successor between `taken` and `released`: it gets SIGTERM, or clients sign in and publish while its streams wait.

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use super::load;
use super::streams::{FakePredecessor, acknowledged, at};
use super::*;
use crate::nats::{RawNatsClient, address as nats_address};
use crate::support::HANG_TIMEOUT;

on_both_drivers!(
    a_successor_stopped_before_the_release_stores_what_waits,
    a_successor_that_ends_behind_the_release_reads_its_datagrams_to_the_end,
    clients_sign_in_while_no_publisher_is_read,
    a_message_whose_end_comes_while_no_publisher_is_read_is_stored_once,
);

const PUBLISH: &str = "PUB events.a inbox 1\r\nx\r\n";

/// Row 4.37: SIGTERM between `taken` and `released`: the successor drains until it has the streams, and messages of its
/// publishers are stored and acknowledged. The draining predecessor can still send `released`.
fn a_successor_stopped_before_the_release_stores_what_waits(driver: DriverUnderTest) {
    for hub in ["shard", "dedicated"] {
        let control_folder = ControlFolder::new();
        let data = tempfile::tempdir().expect("a folder");
        let mut old = FakePredecessor::new(&control_folder, data.path());
        let options = format!(
            "-A 1 --hub-thread {hub} --drain-timeout 300 --nats 127.0.0.1:0 --data {}",
            data.path().display()
        );
        let (new, successor) = old.hand_over(&control_folder, driver, &options);
        let mut client = RawNatsClient::connect(nats_address(&new));
        client.send(format!("SUB inbox 1\r\n{PUBLISH}"));
        new.signal(Signal::TERM);
        let info = client.line();
        assert!(info.starts_with("INFO ") && info.contains("\"ldm\":true"), "{info}");
        old.write(2);
        old.log.close().expect("it is closed");
        successor.send("released");
        assert_eq!(acknowledged(&mut client), 3);
        drop((client, successor, old.queue, old.control_socket));
        new.expect_clean_end();
    }
}

/// Row 4.37: after `released` only the successor reads its queues, although the predecessor has not ended: it reads all
/// datagrams sent before its own end.
fn a_successor_that_ends_behind_the_release_reads_its_datagrams_to_the_end(driver: DriverUnderTest) {
    const DATAGRAMS: u32 = 200;
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let old = FakePredecessor::new(&control_folder, data.path());
    let options = format!("-A 1 --syslog-udp 127.0.0.1:0 --data {}", data.path().display());
    let (new, successor) = old.hand_over(&control_folder, driver, &options);
    old.log.close().expect("it is closed");
    successor.send("released");
    let (socket, to) = (UdpSocket::bind("127.0.0.1:0").expect("a socket"), at(&new, "syslog-udp"));
    let mut watcher = new.watch();
    watcher.until("it reads datagrams", |metrics| {
        socket.send_to(b"<13>host app: first", to).expect("it is sent");
        metrics.value("hub_stream_visible_sequence") > 0
    });
    drop(watcher);
    new.signal(Signal::STOP);
    new.wait_until_stopped();
    for _ in 0..DATAGRAMS {
        socket.send_to(b"<13>host app: u", to).expect("it is sent");
    }
    new.signal(Signal::TERM);
    new.signal(Signal::CONT);
    new.expect_clean_end();
    drop((successor, old.queue, old.control_socket));
    assert_eq!(load::stored(data.path(), "events").get("u"), Some(&DATAGRAMS));
}

/// Publishes until the server stops reading, because no more may wait for the streams. Returns the number of sent
/// messages and the unsent rest of the last one.
fn fill(to: SocketAddr, sign_in: &str) -> (TcpStream, u32, Vec<u8>) {
    const BYTES: usize = 1000;
    let mut stream = TcpStream::connect(to).expect("the server listens");
    stream.set_write_timeout(Some(Duration::from_millis(500))).expect("a socket takes a timeout");
    stream.write_all(sign_in.as_bytes()).expect("there is room");
    let message = format!("PUB events.f {BYTES}\r\n{}\r\n", "f".repeat(BYTES));
    let mut left = Vec::new();
    let mut sent = 0;
    while left.is_empty() {
        sent += 1;
        left.extend_from_slice(message.as_bytes());
        while !left.is_empty()
            && let Ok(count) = stream.write(&left)
        {
            left.drain(..count);
        }
    }
    assert!(sent > 2000, "as much as may wait is sent: {sent}");
    (stream, sent, left)
}

/// Row 4.37: while publishers are not read because the streams wait, clients can still sign in, also in pieces, and a
/// client that does not sign in is disconnected as usual.
fn clients_sign_in_while_no_publisher_is_read(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let old = FakePredecessor::new(&control_folder, data.path());
    let options =
        format!("-A 1 --user root:password=all --nats 127.0.0.1:0 --data {}", data.path().display());
    let (new, successor) = old.hand_over(&control_folder, driver, &options);
    let nats = nats_address(&new);
    let sign_in = "CONNECT {\"verbose\":false,\"user\":\"root\",\"pass\":\"all\"}\r\n";
    let full = fill(nats, sign_in);
    let mut silent = RawNatsClient::connect_unauthenticated(nats);
    let mut pieces = RawNatsClient::connect_unauthenticated(nats);
    let (first, second) = sign_in.split_at(20);
    pieces.send(first);
    // The shard has read it by its next turns.
    (0..3).for_each(|_| expect_served(new.address()));
    pieces.send(format!("{second}PING\r\n"));
    assert_eq!(pieces.line(), "PONG");
    assert_eq!(silent.line(), "-ERR 'Authentication Timeout'");
    assert_eq!(silent.rest(), "");
    old.log.close().expect("it is closed");
    successor.send("released");
    drop((full, silent, pieces, successor, old.queue, old.control_socket));
    new.finish();
}

/// Rows 4.37, 0.4: a long message, partly received before publishers are not read any more, is stored once, with
/// everything sent before and after it.
fn a_message_whose_end_comes_while_no_publisher_is_read_is_stored_once(driver: DriverUnderTest) {
    const SIZE: usize = 300_000;
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let old = FakePredecessor::new(&control_folder, data.path());
    let options = format!("-A 1 --nats 127.0.0.1:0 --data {}", data.path().display());
    let (new, successor) = old.hand_over(&control_folder, driver, &options);
    let nats = nats_address(&new);
    let mut long = RawNatsClient::connect(nats);
    let payload = "l".repeat(SIZE);
    long.send(format!("SUB inbox 1\r\nPUB events.l inbox {SIZE}\r\n{}", &payload[..SIZE / 2]));
    (0..3).for_each(|_| expect_served(new.address()));
    let (mut stream, sent, left) = fill(nats, "");
    long.send(format!("{}\r\n{PUBLISH}", &payload[SIZE / 2..]));
    old.log.close().expect("it is closed");
    successor.send("released");
    stream.set_write_timeout(Some(HANG_TIMEOUT)).expect("a socket takes a timeout");
    stream.write_all(&left).expect("the server reads again");
    let (first, second) = (acknowledged(&mut long), acknowledged(&mut long));
    assert!(first < second, "{first} {second}");
    let mut watcher = new.watch();
    let all = u64::from(sent) + 2;
    watcher.until("all is stored", |metrics| metrics.value("hub_stream_visible_sequence") >= all);
    assert_eq!(watcher.fetch().value("hub_stream_visible_sequence"), all);
    drop((watcher, long, stream, successor, old.queue, old.control_socket));
    new.finish();
    let stored = load::stored(data.path(), "events");
    assert_eq!((stored.get(&payload), stored.get("x")), (Some(&1), Some(&1)));
}
