//! Each program over real sockets: scripted, byte by byte, and with the load generator that measures it.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use stilling_bench::broadcast::{self, BroadcastPlan};
use stilling_bench::coap::{self, CoapPlan};
use stilling_bench::collect::{self, CollectPlan};
use stilling_probe::{HANG_TIMEOUT, TestPeer};

const MESSAGES: u64 = 3000;

/// A program that is stopped with its test.
struct PeerProgram {
    child: Child,
    address: SocketAddr,
}

impl PeerProgram {
    fn start(words: &[&str]) -> PeerProgram {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stilling-peer-bare"));
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut line).expect("it prints its address");
        let address = line.trim_end().rsplit_once('/').and_then(|(_, address)| address.parse().ok());
        PeerProgram { child, address: address.unwrap_or_else(|| panic!("no address in {line:?}")) }
    }

    fn durable(file: &Path) -> PeerProgram {
        PeerProgram::start(&["durable", "127.0.0.1:0", file.to_str().expect("the path is text")])
    }

    /// Connects a NATS client and reads the greeting.
    fn client(&self) -> TestPeer {
        let mut client = TestPeer::connect(self.address);
        assert!(client.line().starts_with("INFO {"));
        client
    }

    /// Runs a load without any failure.
    #[track_caller]
    fn load(&self, change: impl FnOnce(&mut CollectPlan)) {
        let mut plan = CollectPlan { messages: Some(MESSAGES), span: None, ..CollectPlan::new(self.address) };
        plan.timeout = HANG_TIMEOUT;
        change(&mut plan);
        let report = collect::run(&plan).expect("there is a report");
        assert!(report.is_good(), "{plan:?}: {:?} {:?}", report.evidence, report.accounting);
    }

    /// Sends malformed bytes: that connection closes, another one does not.
    fn check_malformed(&self) {
        let mut other = self.client();
        let long = "x".repeat(5000);
        for malformed in ["PUB a\r\n", "PUB a 70000\r\n", "PUB a 1\r\nxyz", "HPUB a 12 12\r\n", &long] {
            let mut client = self.client();
            client.send(malformed);
            assert_eq!(client.read_until_closed(), b"", "{malformed:?}");
        }
        other.send("PING\r\n");
        assert_eq!(other.line(), "PONG");
    }
}

impl Drop for PeerProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn requests_are_answered_in_turn_and_a_connection_closes_on_request() {
    let program = PeerProgram::start(&["http", "127.0.0.1:0", "2"]);
    let check = |requests: &[&str], expected: &str| {
        let mut peer = TestPeer::connect(program.address);
        for part in requests {
            peer.send(part);
        }
        assert_eq!(String::from_utf8_lossy(&peer.rest()), expected, "{requests:?}");
    };
    let kept = "GET /test/fast HTTP/1.1\r\nHost: a\r\n\r\n".repeat(15);
    let last = "GET /test/fast HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".repeat(15);
    let ok_close = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    check(&[last], ok_close);
    check(&[&kept, last], &(ok.clone() + ok_close));
    check(&[&kept[..5], &kept[5..100], &kept[100..], last], &(ok + ok_close));
    check(&["GET / HTTP/1.0\r\n\r\n"], ok_close);
    let ok_keep_alive = "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n";
    check(
        &["GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", "GET / HTTP/1.0\r\n\r\n"],
        &(ok_keep_alive.to_owned() + ok_close),
    );
    check(&["POST / HTTP/1.1\r\nHost: a\r\n\r\n"], "");
}

#[test]
fn a_head_without_an_end_closes_its_connection_alone() {
    let program = PeerProgram::start(&["http", "127.0.0.1:0", "1"]);
    let mut other = TestPeer::connect(program.address);
    let mut peer = TestPeer::connect(program.address);
    let _ = peer.try_send("x".repeat(1 << 20));
    assert_eq!(peer.read_until_closed(), b"");
    assert_eq!(other.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
}

#[test]
fn a_message_goes_to_every_subscriber_and_a_request_finds_no_responder() {
    let program = PeerProgram::start(&["relay", "127.0.0.1:0"]);
    let mut subscribers = ["7", "19"].map(|sid| {
        let mut subscriber = program.client();
        subscriber.send(format!("CONNECT {{}}\r\nSUB a.* {sid}\r\nPING\r\n"));
        assert_eq!(subscriber.line(), "PONG");
        (sid, subscriber)
    });
    let mut publisher = program.client();
    let long = "x".repeat(5000);
    publisher.send(format!("PUB a.b 5\r\nhello\r\nPUB a.c 5000\r\n{long}\r\nPUB a.d 0\r\n\r\nPING\r\n"));
    assert_eq!(publisher.line(), "PONG");
    for (sid, subscriber) in &mut subscribers {
        let lines = [format!("MSG a.b {sid} 5"), "hello".to_owned(), format!("MSG a.c {sid} 5000")];
        for line in lines.into_iter().chain([long.clone(), format!("MSG a.d {sid} 0"), String::new()]) {
            assert_eq!(subscriber.line(), line);
        }
    }
    publisher.send("SUB _INBOX.1.* 3\r\nPUB $JS.API.STREAM.INFO.events _INBOX.1.1 0\r\n\r\n");
    for line in ["HMSG _INBOX.1.1 3 16 16", "NATS/1.0 503", "", ""] {
        assert_eq!(publisher.line(), line);
    }
    program.check_malformed();
}

/// Row 2.4: a message is encoded once, whatever the number of subscribers.
#[test]
fn the_broadcast_sends_the_same_bytes_to_every_subscriber() {
    let program = PeerProgram::start(&["broadcast", "127.0.0.1:0"]);
    let mut subscribers = [(); 2].map(|()| {
        let mut subscriber = program.client();
        subscriber.send("CONNECT {}\r\nSUB a.b 7\r\nPING\r\n");
        assert_eq!(subscriber.line(), "PONG");
        subscriber
    });
    let mut publisher = program.client();
    let long = "x".repeat(60_000);
    publisher.send(format!("PUB a.b 5\r\nhello\r\nPUB a.b 60000\r\n{long}\r\nPUB a.b 0\r\n\r\nPING\r\n"));
    assert_eq!(publisher.line(), "PONG");
    for subscriber in &mut subscribers {
        for line in ["MSG a.b 7 5", "hello", "MSG a.b 7 60000", &long, "MSG a.b 7 0", ""] {
            assert_eq!(subscriber.line(), line);
        }
    }
    // Another subscription id needs other bytes.
    let mut other = program.client();
    other.send("SUB a.b 8\r\n");
    assert_eq!(other.read_until_closed(), b"");
    program.check_malformed();
}

#[test]
fn the_broadcast_stands_the_loads_of_the_benchmarks() {
    let program = PeerProgram::start(&["broadcast", "127.0.0.1:0"]);
    for (size, window) in [(64, 1), (64, 2048), (256, 64), (4096, 64)] {
        let plan = BroadcastPlan {
            size,
            window,
            subscribers: 20,
            messages: Some(MESSAGES),
            span: None,
            timeout: HANG_TIMEOUT,
            ..BroadcastPlan::new(program.address)
        };
        let report = broadcast::run(&plan).expect("there is a report");
        assert!(report.is_good(), "{plan:?}: {:?}", report.figures.evidence);
        assert_eq!(report.deliveries, 20 * MESSAGES);
    }
}

#[test]
fn the_relay_stands_the_loads_of_the_benchmarks() {
    let program = PeerProgram::start(&["relay", "127.0.0.1:0"]);
    for (stream, subject) in [(None, "alone"), (Some("events".to_owned()), "events")] {
        for size in [128, 1025, 4096] {
            let (stream, subject) = (stream.clone(), subject.to_owned());
            program.load(|plan| {
                *plan =
                    CollectPlan { size, stream, subject, confirmed: false, subscribers: 1, ..plan.clone() };
            });
        }
    }
}

#[test]
fn an_acknowledged_message_is_in_the_file() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let file = folder.path().join("log");
    let program = PeerProgram::durable(&file);
    let mut client = program.client();
    client.send(
        "CONNECT {}\r\nSUB in.* 3\r\nPUB events.0 in.1 5\r\nhello\r\nPUB events.0 6\r\nworld!\r\n\
         PUB $JS.API.STREAM.INFO.events in.2 0\r\n\r\nPING\r\n",
    );
    assert_eq!(client.line(), "MSG in.1 3 27");
    assert_eq!(client.line(), r#"{"stream":"events","seq":1}"#);
    assert_eq!(client.line(), "MSG in.2 3 51");
    assert_eq!(client.line(), r#"{"state":{"messages":2,"first_seq":1,"last_seq":2}}"#);
    assert_eq!(client.line(), "PONG");
    let mut start = [0; 20];
    File::open(&file).expect("it is there").read_exact(&mut start).expect("it is long enough");
    assert_eq!(&start, b"\x05\0\0\0hello\x06\0\0\0world!\0");
    // A client that cannot receive its acknowledgement.
    let mut deaf = program.client();
    deaf.send("PUB events.0 in.1 5\r\nhello\r\n");
    assert_eq!(deaf.read_until_closed(), b"");
    program.check_malformed();
}

#[test]
fn the_durable_writer_stands_the_loads_of_the_benchmarks() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let program = PeerProgram::durable(&folder.path().join("log"));
    for confirmed in [true, false] {
        for size in [128, 4096] {
            program.load(|plan| *plan = CollectPlan { size, confirmed, ..plan.clone() });
        }
        program.load(|plan| {
            let messages = Some(100);
            *plan = CollectPlan { messages, window: 1, per_message: true, confirmed, ..plan.clone() };
        });
    }
}

/// The generator compares token, message id and body of each answer.
#[test]
fn coap_answers_each_request() {
    let program = PeerProgram::start(&["coap", "127.0.0.1:0", "64"]);
    for is_confirmable in [true, false] {
        let plan = CoapPlan {
            requests: Some(MESSAGES),
            span: None,
            is_confirmable,
            timeout: HANG_TIMEOUT,
            ..CoapPlan::new(program.address)
        };
        let report = coap::run(&plan).expect("there is a report");
        assert!(report.is_good() && report.completed == MESSAGES, "{report:?}");
        assert_eq!((report.parameters.body_bytes, report.duplicates), ((64, 64), 0), "{report:?}");
    }
}

/// Row 1.21: the original's way, each request's work before the next request is received.
#[test]
fn coap_blocking_answers_one_after_the_other() {
    let program = PeerProgram::start(&["coap-blocking", "127.0.0.1:0", "64", "1"]);
    let plan = CoapPlan {
        sockets: 4,
        window: 1,
        requests: Some(50),
        span: None,
        timeout: HANG_TIMEOUT,
        ..CoapPlan::new(program.address)
    };
    let report = coap::run(&plan).expect("there is a report");
    assert!(report.is_good() && report.completed == 50, "{report:?}");
    assert!(report.latency.min_us >= 1000.0, "{report:?}");
}
