//! Tests of syslog over UDP, TCP and Unix sockets.

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use stilling::engine::CloseReason;
use stilling::http::Routes;
use stilling::settings::StreamConfig;
use stilling::{DriverChoice, ServeConfig, Server};
use stilling_hub::{Ingress, Loss};
use stilling_journal::RecordKind;

use crate::support::{HubTestServer, TestPeer, any_port, eventually, records, run};

on_both_drivers!(
    logger_works_over_every_transport,
    rsyslog_forwards_over_udp_and_tcp,
    framings_are_detected_by_the_first_bytes,
    malformed_input_is_counted_and_harmless,
    long_messages_are_truncated_and_counted,
    messages_cut_by_the_end_of_a_connection_are_counted,
    only_allowed_sources_are_accepted,
    a_unix_socket_comes_and_goes_with_the_server,
    the_least_severe_is_shed_first_and_reported,
    a_connection_that_is_not_read_loses_nothing,
    the_subject_is_built_from_the_message,
);

/// A server with all three syslog transports.
fn with_all_ingresses(driver: DriverChoice, change: impl FnOnce(&mut ServeConfig)) -> HubTestServer {
    HubTestServer::with(driver, |config| {
        config.hub.syslog_udp = vec![any_port()];
        config.hub.syslog_tcp = vec![any_port()];
        config.hub.syslog_unix = vec![config.hub.data.with_file_name("log")];
        change(config);
    })
}

fn losses(hub_server: &HubTestServer, loss: Loss) -> u64 {
    hub_server.overview().hub.get().expect("there is one").losses(Ingress::Syslog, loss)
}

#[track_caller]
fn await_losses(hub_server: &HubTestServer, loss: Loss, count: u64) {
    eventually(loss.name(), || (losses(hub_server, loss) >= count).then_some(()));
    assert_eq!(losses(hub_server, loss), count);
}

fn unix_socket(hub_server: &HubTestServer) -> String {
    hub_server.data().with_file_name("log").display().to_string()
}

fn logger_works_over_every_transport(driver: DriverChoice) {
    let hub_server = with_all_ingresses(driver, |_| ());
    let mut subscriber = hub_server.subscribe("events.syslog.>");
    let (udp, tcp) =
        (hub_server.at("syslog-udp").port().to_string(), hub_server.at("syslog-tcp").port().to_string());
    let unix = unix_socket(&hub_server);
    for transport_arguments in [
        &["-d", "-n", "127.0.0.1", "-P", &udp][..],
        &["-d", "--rfc3164", "-n", "127.0.0.1", "-P", &udp],
        &["-T", "-n", "127.0.0.1", "-P", &tcp],
        &["-T", "--octet-count", "-n", "127.0.0.1", "-P", &tcp],
        &["-u", &unix],
    ] {
        run("logger", &[transport_arguments, &["-p", "auth.crit", "-t", "login", "a message"]].concat());
        let (subject, message) = subscriber.next();
        assert_eq!(subject, "events.syslog.auth.crit", "{transport_arguments:?}");
        assert!(
            message.starts_with("<34>") && message.ends_with("a message"),
            "{transport_arguments:?}: {message:?}"
        );
        assert!(message.contains("login"), "{transport_arguments:?}: {message:?}");
    }
    drop(subscriber);
    hub_server.finish();
}

/// A process that ends with its test.
struct RsyslogProcess(Child);

impl Drop for RsyslogProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// With direct descriptors, datagram sockets still use ordinary descriptors. Syslog over TCP is refused at the start,
/// since direct descriptors do not provide the peer's address.
#[test]
fn datagrams_come_beside_direct_descriptors() {
    let direct = |config: &mut ServeConfig| {
        config.direct_descriptors = true;
        config.hub.syslog_tcp.clear();
    };
    let hub_server = with_all_ingresses(DriverChoice::Uring, direct);
    let mut subscriber = hub_server.subscribe("events.syslog.>");
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    sender.send_to(b"<13>udp", hub_server.at("syslog-udp")).expect("it is sent");
    assert_eq!(subscriber.next().1, "<13>udp");
    let sender = UnixDatagram::unbound().expect("a socket");
    sender.send_to(b"<13>unix", unix_socket(&hub_server)).expect("it is sent");
    assert_eq!(subscriber.next().1, "<13>unix");
    drop(subscriber);
    hub_server.finish();
}

fn rsyslog_forwards_over_udp_and_tcp(driver: DriverChoice) {
    let hub_server = with_all_ingresses(driver, |_| ());
    let mut subscriber = hub_server.subscribe("events.syslog.>");
    let folder = tempfile::tempdir().expect("a folder");
    let (input, file) = (folder.path().join("in"), folder.path().join("conf"));
    let text = format!(
        "global(workDirectory=\"{}\")\nmodule(load=\"imuxsock\" SysSock.Use=\"off\")\n\
         input(type=\"imuxsock\" Socket=\"{}\")\nuser.* @{}\ndaemon.* @@{}\n",
        folder.path().display(),
        input.display(),
        hub_server.at("syslog-udp"),
        hub_server.at("syslog-tcp"),
    );
    fs::write(&file, text).expect("a file");
    // /usr/sbin may be missing in PATH.
    let name = ["/usr/sbin/rsyslogd", "rsyslogd"].into_iter().find(|name| Path::new(name).exists());
    let mut command = Command::new(name.unwrap_or("rsyslogd"));
    command.arg("-n").arg("-f").arg(&file).arg("-i").arg(folder.path().join("pid")).stdin(Stdio::null());
    let rsyslog = RsyslogProcess(command.spawn().expect("rsyslog runs; `cargo xtask test` installs it"));
    let input = input.display().to_string();
    eventually("rsyslog listens", || UnixDatagram::unbound().ok()?.connect(&input).ok());
    for (priority, subject) in
        [("user.err", "events.syslog.user.err"), ("daemon.info", "events.syslog.daemon.info")]
    {
        run("logger", &["-u", &input, "-p", priority, "-t", "app", "by way of another"]);
        let (its, message) = subscriber.next();
        assert_eq!(its, subject);
        assert!(message.contains("app") && message.ends_with("by way of another"), "{message:?}");
    }
    drop((rsyslog, subscriber));
    hub_server.finish();
}

fn framings_are_detected_by_the_first_bytes(driver: DriverChoice) {
    let hub_server = with_all_ingresses(driver, |_| ());
    let mut subscriber = hub_server.subscribe("events.syslog.>");
    let connect = || TestPeer::connect(hub_server.at("syslog-tcp"));
    let (mut lines, mut counted) = (connect(), connect());
    lines.send("<13>one\r\n<13>two\n\n\n<13>thr");
    for expected in ["<13>one", "<13>two"] {
        assert_eq!(subscriber.next().1, expected);
    }
    lines.send("ee\0");
    assert_eq!(subscriber.next().1, "<13>three");
    counted.send("7 <13>o\nn8 <13>");
    assert_eq!(subscriber.next().1, "<13>o\nn");
    counted.send("four");
    assert_eq!(subscriber.next().1, "<13>four");
    // The last message is terminated only by the end of the connection.
    counted.send("99 <13>five");
    counted.half_close();
    assert_eq!(subscriber.next().1, "<13>five");
    assert!(counted.rest().is_empty(), "no answer is sent");
    lines.send("six");
    lines.half_close();
    assert_eq!(subscriber.next(), ("events.syslog.user.notice".to_owned(), "six".to_owned()));
    drop((lines, subscriber));
    hub_server.finish();
}

fn malformed_input_is_counted_and_harmless(driver: DriverChoice) {
    let hub_server = with_all_ingresses(driver, |_| ());
    let mut subscriber = hub_server.subscribe("events.syslog.>");
    for bytes in [
        &b""[..],
        b"\n",
        b"\0\0\r\n",
        b"0",
        b"999999999 ",
        b"1 \n",
        b"\xff\xfe",
        b"<",
        b"<999>x\n",
        &[b'9'; 100],
    ] {
        let mut peer = TestPeer::connect(hub_server.at("syslog-tcp"));
        peer.send(bytes);
        peer.half_close();
        assert!(peer.rest().is_empty());
    }
    TestPeer::connect(hub_server.at("syslog-tcp")).reset();
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for bytes in [&b""[..], b"\n\0", b"\xff\xfe", b"<13>last"] {
        sender.send_to(bytes, hub_server.at("syslog-udp")).expect("it is sent");
    }
    while subscriber.raw().1 != b"<13>last" {}
    await_losses(&hub_server, Loss::Malformed, 2);
    drop(subscriber);
    hub_server.finish();
}

fn long_messages_are_truncated_and_counted(driver: DriverChoice) {
    let hub_server = with_all_ingresses(driver, |_| ());
    let mut subscriber = hub_server.subscribe("events.syslog.>");
    let mut peer = TestPeer::connect(hub_server.at("syslog-tcp"));
    let long = format!("<13>{}", "x".repeat(1 << 20));
    for piece in long.as_bytes().chunks(1000) {
        peer.send(piece);
    }
    peer.send("\n<13>behind it\n");
    assert_eq!(subscriber.next().1, long[..60 * 1024]);
    assert_eq!(subscriber.next().1, "<13>behind it");
    drop(peer);
    let sender = UnixDatagram::unbound().expect("a socket");
    sender.send_to(&long.as_bytes()[..8000], unix_socket(&hub_server)).expect("it is sent");
    let cut = subscriber.next().1;
    assert!(cut.len() < 8000 && long.starts_with(&cut), "{}", cut.len());
    await_losses(&hub_server, Loss::TooLarge, 2);
    drop(subscriber);
    hub_server.finish();
}

/// RFC 6587 does not define an end within a message. A line is complete if its sender ends the connection orderly; a
/// message shorter than its announced length is not, and neither is one cut by a reset.
fn messages_cut_by_the_end_of_a_connection_are_counted(driver: DriverChoice) {
    let hub_server = with_all_ingresses(driver, |_| ());
    let mut subscriber = hub_server.subscribe("events.syslog.>");
    for (bytes, stored, cut) in [
        ("<13>a line\n<13>its last", &["<13>a line", "<13>its last"][..], 0),
        ("9 <13>whole", &["<13>whole"], 0),
        ("9 <13>whole\n", &["<13>whole"], 0),
        ("9 <13>whole9 <13>wh", &["<13>whole", "<13>wh"], 1),
        // A length without a message.
        ("9 <13>whole9 ", &["<13>whole"], 2),
    ] {
        let mut peer = TestPeer::connect(hub_server.at("syslog-tcp"));
        peer.send(bytes);
        peer.half_close();
        assert!(peer.rest().is_empty());
        for message in stored {
            assert_eq!(subscriber.next().1, *message, "{bytes:?}");
        }
        await_losses(&hub_server, Loss::Truncated, cut);
    }
    for (bytes, cut) in [("<13>before\n<13>behind", 3), ("<13>before\n", 3), ("10 <13>before9 <13>wh", 4)] {
        let mut peer = TestPeer::connect(hub_server.at("syslog-tcp"));
        peer.send(bytes);
        assert_eq!(subscriber.next().1, "<13>before", "{bytes:?}");
        peer.reset();
        await_losses(&hub_server, Loss::Truncated, cut);
    }
    assert_eq!(hub_server.metric("stilling_hub_losses_total{ingress=\"syslog\",reason=\"truncated\"}"), 4);
    drop(subscriber);
    hub_server.finish();
}

fn only_allowed_sources_are_accepted(driver: DriverChoice) {
    let hub_server = with_all_ingresses(driver, |config| {
        config.hub.syslog_sources = vec!["127.0.0.2".parse().expect("a range")];
    });
    let mut subscriber = hub_server.subscribe("events.syslog.>");
    let mut disallowed = TestPeer::connect(hub_server.at("syslog-tcp"));
    disallowed.try_send("<13>stranger\n");
    assert!(disallowed.read_until_closed().is_empty(), "it is closed");
    let send = |from: &str, text: &str| {
        let sender = UdpSocket::bind((from, 0)).expect("all of 127.0.0.0/8 is ours");
        sender.send_to(text.as_bytes(), hub_server.at("syslog-udp")).expect("it is sent");
    };
    send("127.0.0.1", "<13>stranger");
    send("127.0.0.2", "<13>friend");
    assert_eq!(subscriber.next().1, "<13>friend");
    let mut allowed = TestPeer::connect_from([127, 0, 0, 2].into(), hub_server.at("syslog-tcp"));
    allowed.send("<13>another\n");
    assert_eq!(subscriber.next().1, "<13>another");
    UnixDatagram::unbound()
        .and_then(|unix| unix.send_to(b"<13>local", unix_socket(&hub_server)))
        .expect("it is sent");
    assert_eq!(subscriber.next().1, "<13>local", "a process that can open the file may send");
    await_losses(&hub_server, Loss::Forbidden, 2);
    assert_eq!(hub_server.metric("stilling_hub_losses_total{ingress=\"syslog\",reason=\"forbidden\"}"), 2);
    assert_eq!(hub_server.overview().engine(|counters| counters.closed(CloseReason::Forbidden)), 1);
    drop((subscriber, allowed));
    hub_server.finish();
}

fn a_unix_socket_comes_and_goes_with_the_server(driver: DriverChoice) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log");
    let config = || {
        let mut config =
            ServeConfig { listen: vec![any_port()], shards: 1, driver, ..ServeConfig::default() };
        config.hub.syslog_unix = vec![path.clone()];
        config.hub.data = folder.path().join("streams");
        config
    };
    // The leftover socket of a killed process is replaced.
    drop(UnixDatagram::bind(&path).expect("a socket"));
    let server = Server::bind(config(), Routes::new()).expect("it is stale");
    let listening_line = format!("listening syslog-unix:{}", path.display());
    assert!(server.banner().contains(&listening_line), "{:?}", server.banner());
    assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o666);
    let error =
        Server::bind(config(), Routes::new()).err().expect("another process receives there").to_string();
    assert!(error.contains("another process receives there"), "{error}");
    let running = server.start().expect("a thread");
    running.end().expect("it ends well");
    assert!(!path.exists(), "the server removes the file");
    // A file that is not a socket is not replaced.
    fs::write(&path, "mine").expect("a file");
    assert!(Server::bind(config(), Routes::new()).is_err());
    assert_eq!(fs::read(&path).expect("it is there"), b"mine");
}

/// Row 0.14: a stalled hub sheds the least severe messages first; no sender hangs, and every message is stored or
/// counted.
fn the_least_severe_is_shed_first_and_reported(driver: DriverChoice) {
    const FLOOD: usize = 20_000;
    const ERRORS: usize = 100;
    let hub_server = with_all_ingresses(driver, |config| config.shards = 1);
    let stalled_disk = hub_server.stall_disk();
    let sender = UnixDatagram::unbound().expect("a socket");
    sender.set_write_timeout(Some(Duration::from_secs(60))).expect("a socket takes options");
    sender.connect(unix_socket(&hub_server)).expect("it listens");
    // The system does not restart an interrupted send on a socket with a timeout.
    let send = |text: String| {
        while let Err(error) = sender.send(text.as_bytes()) {
            assert_eq!(error.kind(), ErrorKind::Interrupted, "no sender hangs");
        }
    };
    for number in 0..FLOOD {
        send(format!("<14>info {number} {}", "x".repeat(300)));
    }
    for number in 0..ERRORS {
        send(format!("<11>error {number}"));
    }
    // Everything has been read.
    let received = FLOOD + ERRORS;
    let counted = || hub_server.overview().engine(|counters| &counters.datagrams_received);
    eventually("all is read", || (counted() == received as u64).then_some(()));
    assert_eq!(losses(&hub_server, Loss::Shed), 0, "the hub has not received it");
    let _open = stalled_disk.end();
    let shed =
        eventually("the hub counts it", || Some(losses(&hub_server, Loss::Shed)).filter(|shed| *shed > 0));
    let folder = hub_server.data();
    let keep = hub_server.keep();
    let all = records(&folder);
    let count = |severity: &str| {
        all.iter()
            .filter(|(kind, subject, _)| *kind == RecordKind::Ordinary && subject.ends_with(severity))
            .count()
    };
    assert_eq!(count(".err"), ERRORS, "more severe messages are stored");
    assert_eq!(count(".info") as u64 + shed, FLOOD as u64, "stored or counted");
    let markers: Vec<_> = all.iter().filter(|(kind, ..)| *kind == RecordKind::Loss).collect();
    let [(_, subject, text)] = markers[..] else { panic!("one marker: {markers:?}") };
    assert_eq!(subject, "events.syslog.user.info");
    assert!(text.starts_with(&format!("{{\"lost\":{shed},\"reason\":\"shed\",\"from\":\"20")), "{text}");
    drop(keep);
}

/// TCP slows its sender down instead.
fn a_connection_that_is_not_read_loses_nothing(driver: DriverChoice) {
    const LINES: usize = 100_000;
    let hub_server = with_all_ingresses(driver, |config| config.shards = 1);
    let stalled_disk = hub_server.stall_disk();
    let mut peer = TestPeer::connect(hub_server.at("syslog-tcp"));
    let mut sending_half = peer.clone_writer();
    let writer = thread::spawn(move || {
        for number in 0..LINES / 100 {
            let lines: String =
                (0..100).map(|at| format!("<14>line {}{}\n", number * 100 + at, "x".repeat(200))).collect();
            sending_half.send(lines);
        }
        sending_half.half_close();
    });
    let bytes = || hub_server.overview().engine(|counters| &counters.received_bytes);
    // The connection is read while there is room, and then no more.
    let mut before = 0;
    eventually("it is not read any more", || {
        let now = bytes();
        thread::park_timeout(Duration::from_millis(200));
        let is_idle = now > 0 && now == before;
        before = now;
        is_idle.then_some(())
    });
    assert!(bytes() < 4_000_000, "what waits is bounded");
    let _open = stalled_disk.end();
    writer.join().expect("all is taken");
    assert!(peer.rest().is_empty());
    let folder = hub_server.data();
    let keep = hub_server.keep();
    let all = records(&folder);
    assert_eq!(all.len(), LINES);
    assert!(
        all.iter().enumerate().all(|(at, (_, _, text))| text.starts_with(&format!("<14>line {at}x"))),
        "in order"
    );
    drop(keep);
}

fn the_subject_is_built_from_the_message(driver: DriverChoice) {
    let hub_server = with_all_ingresses(driver, |config| {
        config.hub.syslog_subject = "logs.{host}.{app}.{severity}".parse().expect("a template");
        config.hub.streams = vec![StreamConfig::new("logs", ["logs.>"])];
    });
    let mut subscriber = hub_server.subscribe("logs.>");
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let to: SocketAddr = hub_server.at("syslog-udp");
    let text = "<165>1 2026-11-21T22:14:15.003Z web.1 su>. - ID47 - hello";
    sender.send_to(text.as_bytes(), to).expect("it is sent");
    assert_eq!(subscriber.next(), ("logs.web_1.su__.notice".to_owned(), text.to_owned()));
    let mut peer = TestPeer::connect(hub_server.at("syslog-tcp"));
    peer.send("<13>no host\n");
    assert!(subscriber.next().0.ends_with(".notice"));
    drop((peer, subscriber));
    hub_server.finish();
}
