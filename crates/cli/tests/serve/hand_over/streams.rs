//! Streams and their publishers during hand-overs.

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;

use stilling_journal::disk::file::FileDisk;
use stilling_journal::{Batch, Log, LogConfig, Record};

use stilling_probe::TestResponse;

use super::load;
use super::*;
use crate::nats::{RawNatsClient, address as nats_address};

on_both_drivers!(
    published_messages_are_stored_once_and_no_datagram_is_lost,
    publishers_wait_for_the_streams_and_everything_else_continues,
    a_predecessor_that_ends_without_a_message_releases_its_streams,
    a_predecessor_that_hangs_does_not_keep_its_successor,
    a_subscriber_that_never_reads_does_not_keep_the_streams,
    old_servers_that_are_killed_lose_nothing_that_was_acknowledged,
    a_successor_that_fails_leaves_the_socket_of_the_old_server,
    a_server_without_streams_waits_for_none,
);

mod on_uring_direct {
    #[test]
    fn published_messages_are_stored_once_and_no_datagram_is_lost() {
        super::published_messages_are_stored_once_and_no_datagram_is_lost(
            crate::support::DriverUnderTest::UringDirect,
        );
    }
}

const LIVES: [&str; 4] = [
    "-A 2 --hub-thread shard",
    "-A 1 --worker-threads 0 --hub-thread shard",
    "-A 2 --hub-thread dedicated",
    "-A 1 --hub-thread shard",
];

/// Number of hand-overs under load; `cargo xtask restarts` sets more.
fn restarts() -> usize {
    let count = std::env::var("STILLING_RESTARTS").ok().and_then(|count| count.parse().ok());
    count.unwrap_or(LIVES.len() - 1)
}

/// The address behind a scheme in the banner.
pub(super) fn at(server: &ServerUnderTest, scheme: &str) -> SocketAddr {
    server.banner_line(&format!("listening {scheme}://")).parse().expect("an address")
}

/// Rows 4.37, 0.4: from an empty folder on, over every protocol, with hubs in shards and on threads: publishers notice
/// nothing but a reconnect, and every acknowledged message and every datagram is stored once.
fn published_messages_are_stored_once_and_no_datagram_is_lost(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let (streams, socket) = (data.path().join("streams"), data.path().join("log"));
    // Direct descriptors do not provide the address of a peer.
    let has_tcp = driver != DriverUnderTest::UringDirect;
    let tcp = |address: &str| if has_tcp { format!("--syslog-tcp {address}") } else { String::new() };
    let common = format!("--syslog-unix {} --data {}", socket.display(), streams.display());
    let any = "127.0.0.1:0";
    let options = format!("{} --nats {any} --syslog-udp {any} {} {common}", LIVES[0], tcp(any));
    let mut server = control_folder.start_first(driver, &options);
    let (http, nats, udp) = (server.address(), nats_address(&server), at(&server, "syslog-udp"));
    let tcp_at = has_tcp.then(|| at(&server, "syslog-tcp"));
    let tcp = tcp_at.map(|address| tcp(&address.to_string())).unwrap_or_default();
    let done = AtomicBool::new(false);
    let (server, sent) = thread::scope(|scope| {
        let done = &done;
        let socket = &socket;
        let mut senders = vec![
            ("n", scope.spawn(move || load::nats(nats, "n", done))),
            ("m", scope.spawn(move || load::nats(nats, "m", done))),
            ("h", scope.spawn(move || load::http(http, "h", done))),
            ("u", scope.spawn(move || load::udp(udp, "u", done))),
            ("x", scope.spawn(move || load::unix(socket, "x", done))),
            ("c", scope.spawn(move || load::connected_unix(socket, "c", done))),
        ];
        senders.extend(tcp_at.map(|to| ("t", scope.spawn(move || load::tcp(to, "t", done)))));
        let requests = scope.spawn(move || load::requests(http, done));
        for life in LIVES.iter().cycle().skip(1).take(restarts()) {
            let options = format!("{life} --nats {nats} --syslog-udp {udp} {tcp} {common}");
            let next = control_folder.start_successor(driver, http, &options);
            server.expect_clean_end();
            server = next;
        }
        // The last one serves, too.
        server.watch().until("somebody is served", |metrics| metrics.answers(200) > 20);
        done.store(true, Ordering::Release);
        assert!(requests.join().expect("nobody fails") > 0);
        let joined = senders.into_iter().map(|(name, thread)| (name, thread.join().expect("nobody fails")));
        (server, joined.collect::<Vec<_>>())
    });
    // Datagrams in the socket queues are not lost at the end of the last server.
    let all: u64 = sent.iter().map(|(_, count)| count).sum();
    let mut watcher = server.watch();
    watcher.until("all is stored", |metrics| metrics.value("hub_stream_visible_sequence") >= all);
    drop(watcher);
    server.finish();
    load::expect_stored_once(&streams, &sent);
    let left: Vec<_> = std::fs::read_dir(data.path()).expect("our folder").flatten().collect();
    assert_eq!(left.len(), 1, "sockets are left: {left:?}");
}

/// A fake predecessor of the server under test: it holds a stream and its listener.
pub(super) struct FakePredecessor {
    pub(super) control_socket: OwnedFd,
    pub(super) queue: TcpListener,
    pub(super) log: Log<FileDisk>,
}

impl FakePredecessor {
    pub(super) fn new(control_folder: &ControlFolder, data: &Path) -> FakePredecessor {
        let disk = FileDisk::open_or_create(&data.join("events")).expect("a folder");
        let (log, _) = Log::open(disk, "events", LogConfig::default()).expect("nobody else has it");
        let queue = TcpListener::bind("127.0.0.1:0").expect("a free port");
        FakePredecessor { control_socket: ControlPeer::control_socket(&control_folder.path), queue, log }
    }

    pub(super) fn write(&mut self, count: u32) {
        let mut batch = Batch::new(64 * 1024);
        batch.begin(self.log.next(), 1);
        for _ in 0..count {
            batch.push(&Record::new(b"events.a", b"before")).expect("there is room");
        }
        self.log.append(std::slice::from_mut(&mut batch)).expect("it is written");
    }

    /// Hands over, and keeps its stream. Returns the successor, and its control connection.
    pub(super) fn hand_over(
        &self,
        control_folder: &ControlFolder,
        driver: DriverUnderTest,
        options: &str,
    ) -> (ServerUnderTest, ControlPeer) {
        let address = self.queue.local_addr().expect("it is bound");
        thread::scope(|scope| {
            let next = scope.spawn(|| control_folder.start_successor(driver, address, options));
            let successor = ControlPeer::accept(&self.control_socket);
            successor.make_offer(&self.queue);
            successor.expect("ready");
            successor.send("yours");
            successor.expect("taken");
            (next.join().expect("it starts"), successor)
        })
    }
}

#[track_caller]
pub(super) fn acknowledged(client: &mut RawNatsClient) -> u64 {
    assert!(client.line().starts_with("MSG inbox "));
    let json = client.line();
    let sequence = json.split("\"seq\":").nth(1).and_then(|rest| rest.trim_end_matches('}').parse().ok());
    sequence.unwrap_or_else(|| panic!("no sequence in {json}"))
}

const PUBLISH: &str = "PUB events.a inbox 1\r\nx\r\n";

/// Row 4.37: between `taken` and `released` clients can connect, requests without the hub are answered, and the first
/// publication comes after the last record of the old server.
fn publishers_wait_for_the_streams_and_everything_else_continues(driver: DriverUnderTest) {
    for hub in ["--hub-thread shard", "--hub-thread dedicated", "--hub-thread shard --worker-threads 0"] {
        let control_folder = ControlFolder::new();
        let data = tempfile::tempdir().expect("a folder");
        let mut old = FakePredecessor::new(&control_folder, data.path());
        let options = format!("-A 1 {hub} --nats 127.0.0.1:0 --data {}", data.path().display());
        let (new, successor) = old.hand_over(&control_folder, driver, &options);
        let mut client = RawNatsClient::connect(nats_address(&new));
        client.send(format!("SUB inbox 1\r\n{PUBLISH}PING\r\n"));
        let mut publisher = new.connect();
        publisher.send("POST /publish/events.b HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\ny");
        expect_served(new.address());
        // Other clients can connect meanwhile, however many messages wait.
        drop(RawNatsClient::connect(nats_address(&new)));
        assert!(publisher.is_silent());
        old.write(5);
        old.log.close().expect("it is closed");
        successor.send("released");
        // The answer to a PING does not wait for the disk.
        assert_eq!(client.line(), "PONG");
        let sequence = acknowledged(&mut client);
        assert!(sequence > 5, "{sequence}");
        let answer = publisher.answer();
        assert_eq!(answer.status, 200, "{}", answer.text());
        drop((client, publisher, successor, old.queue, old.control_socket));
        new.finish();
    }
}

/// Row 4.37: the end of the old process counts as `released`, also if its locks are released a moment later.
fn a_predecessor_that_ends_without_a_message_releases_its_streams(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let mut old = FakePredecessor::new(&control_folder, data.path());
    old.write(2);
    let options = format!("-A 1 --nats 127.0.0.1:0 --data {}", data.path().display());
    let (new, successor) = old.hand_over(&control_folder, driver, &options);
    let mut client = RawNatsClient::connect(nats_address(&new));
    client.send(format!("SUB inbox 1\r\n{PUBLISH}"));
    drop((successor, old.queue, old.control_socket));
    expect_served(new.address());
    old.log.close().expect("it is closed");
    assert_eq!(acknowledged(&mut client), 3);
    drop(client);
    new.finish();
}

/// Row 4.37: a hung disk in the old server: after a timeout its successor serves everything but the streams, reports
/// the reason, and opens them as soon as they are released.
fn a_predecessor_that_hangs_does_not_keep_its_successor(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let mut old = FakePredecessor::new(&control_folder, data.path());
    old.write(2);
    let streams = "--stream events=events.>:disk --stream mem=mem.>:memory";
    let options = format!("-A 1 {streams} --nats 127.0.0.1:0 --data {}", data.path().display());
    let (new, successor) = old.hand_over(&control_folder, driver, &options);
    let mut client = RawNatsClient::connect(nats_address(&new));
    let healthy = "PUB mem.a inbox 1\r\nx\r\n";
    client.send(format!("SUB inbox 1\r\n{healthy}PING\r\n{PUBLISH}PING\r\n{healthy}PING\r\n"));
    assert_eq!(acknowledged(&mut client), 1);
    assert_eq!(client.line(), "PONG");
    assert!(client.line().starts_with("MSG inbox "));
    let refusal = client.line();
    assert!(refusal.contains("\"code\":503") && refusal.contains("has not released it yet"), "{refusal}");
    assert_eq!(client.line(), "PONG");
    assert_eq!(acknowledged(&mut client), 2);
    assert_eq!(client.line(), "PONG");
    let publication = "POST /publish/events.b HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\ny";
    let answer = new.connect().ask(publication);
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("the stream events is not open yet"), "{}", answer.text());
    old.log.close().expect("it is closed");
    successor.send("released");
    eventually("the stream is open", || (new.connect().ask(publication).status == 200).then_some(()));
    client.send(PUBLISH);
    assert_eq!(acknowledged(&mut client), 4);
    drop((client, successor, old.queue, old.control_socket));
    new.finish();
}

/// Publishes at an additional address of the successor, which listens once the successor is the server.
fn publish_at(own: SocketAddr) -> TestResponse {
    let mut peer = eventually("the successor is the server", || TestPeer::try_connect(own).ok());
    peer.ask("POST /publish/events.a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
}

/// A subscriber to `subject` with small buffers that never reads again.
pub(super) fn unread_subscriber(server: &ServerUnderTest, subject: &str) -> TestPeer {
    let mut peer = TestPeer::connect_with_small_buffer(nats_address(server));
    peer.line();
    peer.send(format!("CONNECT {{\"verbose\":false}}\r\nSUB {subject} 1\r\nPING\r\n"));
    assert_eq!(peer.line(), "PONG");
    peer
}

fn flood(to: SocketAddr, subject: &str) {
    let mut stream = TcpStream::connect(to).expect("the server listens");
    let text = format!("PUB {subject} 1000\r\n{}\r\n", "x".repeat(1000)).repeat(64);
    while stream.write_all(text.as_bytes()).is_ok() {
        thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Row 4.37: the streams are released while output for subscribers that never read is still held, with and without
/// further output. Otherwise the publication would be refused.
fn a_subscriber_that_never_reads_does_not_keep_the_streams(driver: DriverUnderTest) {
    for hub in ["shard", "dedicated"] {
        let control_folder = ControlFolder::new();
        let data = tempfile::tempdir().expect("a folder");
        let common = format!("-A 1 --hub-thread {hub} --data {}", data.path().display());
        let patient = "--send-buffer 8192 --write-timeout 300 --drain-timeout 300";
        let old = control_folder.start_first(driver, &format!("--nats 127.0.0.1:0 {common} {patient}"));
        let nats = nats_address(&old);
        let mut watcher = old.watch();
        let unread = [unread_subscriber(&old, "idle"), unread_subscriber(&old, "flood")];
        let mut publisher = RawNatsClient::connect(nats);
        watcher.until("output is held", |metrics| {
            publisher.send(format!("PUB idle 1000\r\n{}\r\n", "x".repeat(1000)).repeat(64));
            metrics.value("output_held_bytes") > 1 << 20
        });
        let flood = thread::spawn(move || flood(nats, "flood"));
        let held = watcher.fetch().value("output_held_bytes");
        watcher.until("the flood comes", |metrics| metrics.value("output_held_bytes") > held + (1 << 20));
        drop(watcher);
        let new = control_folder.start_successor(
            driver,
            old.address(),
            &format!("--listen 127.0.0.1:0 --nats {nats} {common}"),
        );
        let answer = publish_at(new.addresses()[1]);
        assert_eq!(answer.status, 200, "{}", answer.text());
        flood.join().expect("it ends");
        drop((publisher, unread));
        old.expect_clean_end();
        new.finish();
    }
}

/// Rows 4.37, 0.4: killed before `released`, and after it during the drain.
fn old_servers_that_are_killed_lose_nothing_that_was_acknowledged(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let common = format!("--data {}", data.path().display());
    let mut server = control_folder.start_first(driver, &format!("--nats 127.0.0.1:0 {common} {}", LIVES[0]));
    let (http, nats) = (server.address(), nats_address(&server));
    let done = AtomicBool::new(false);
    let (server, sent) = thread::scope(|scope| {
        let senders = ["n", "m"].map(|name| {
            let done = &done;
            (name, scope.spawn(move || load::nats(nats, name, done)))
        });
        let inode = || std::fs::metadata(&control_folder.path).map(|file| file.ino()).unwrap_or(0);
        for round in 0..6 {
            let before = inode();
            let next = control_folder.start_successor(
                driver,
                http,
                &format!("--nats {nats} {common} {}", LIVES[round % 4]),
            );
            if round % 2 == 0 {
                eventually("the successor has the path", || (inode() != before).then_some(()));
            }
            server.signal(Signal::KILL);
            server.wait();
            server = next;
            expect_served(http);
            eventually("it can be succeeded", || control_folder.has_only_socket().then_some(()));
        }
        done.store(true, Ordering::Release);
        (server, senders.map(|(name, thread)| (name, thread.join().expect("nobody fails"))))
    });
    server.finish();
    load::expect_stored_once(data.path(), &sent);
}

/// Row 4.37: whatever fails in a successor before `taken`, senders still reach the old server's socket.
fn a_successor_that_fails_leaves_the_socket_of_the_old_server(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let socket = data.path().join("log");
    let streams = data.path().join("streams");
    let common = format!("--syslog-unix {} --data {}", socket.display(), streams.display());
    let old =
        control_folder.start_first(driver, &format!("--nats 127.0.0.1:0 --syslog-udp 127.0.0.1:0 {common}"));
    let (http, nats, udp) = (old.address(), nats_address(&old), at(&old, "syslog-udp"));
    let sender = UnixDatagram::unbound().expect("a socket");
    let identity = || std::fs::metadata(&socket).expect("the socket is there").ino();
    let before = identity();
    let listen = format!("--listen {http} --nats {nats} --syslog-udp {udp} {common}");
    let stranger = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = stranger.local_addr().expect("it is bound");
    for (options, reason) in [
        (format!("--listen {taken}"), "another process listens there".to_owned()),
        (
            "--app sleep_is_not_a_server --app-start-timeout 0.3".to_owned(),
            "no worker process (--app) became ready".to_owned(),
        ),
        ("--data /proc/1/status".to_owned(), "/proc/1/status".to_owned()),
    ] {
        let listen = match options.strip_prefix("--data ") {
            Some(_) => listen.split(" --data").next().expect("a part"),
            None => &listen,
        };
        expect_failure(&control_folder.start_failing(driver, &format!("{listen} {options}")), &reason);
        assert_eq!(identity(), before, "after {options}");
        sender.send_to(b"<13>app: x", &socket).expect("the old server reads there");
        expect_served(http);
    }
    let new =
        control_folder.start_successor(driver, http, &format!("--nats {nats} --syslog-udp {udp} {common}"));
    old.expect_clean_end();
    assert_ne!(identity(), before);
    sender.send_to(b"<13>app: x", &socket).expect("the new server reads there");
    new.finish();
    assert!(!socket.exists());
    assert_eq!(load::stored(&streams, "events").get("x"), Some(&4));
}

/// Row 4.37: an old server without streams releases at once, and a successor with new streams opens them.
fn a_server_without_streams_waits_for_none(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let old = control_folder.start_first(driver, "");
    let options = format!("--nats 127.0.0.1:0 --data {}", data.path().join("streams").display());
    let new = control_folder.start_successor(driver, old.address(), &options);
    old.expect_clean_end();
    let mut client = RawNatsClient::connect(nats_address(&new));
    client.send(format!("SUB inbox 1\r\n{PUBLISH}"));
    assert_eq!(acknowledged(&mut client), 1);
    drop(client);
    let last = control_folder.start_successor(driver, new.address(), "");
    new.expect_clean_end();
    last.finish();
}
