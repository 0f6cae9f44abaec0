//! The other protocols: Redis (answers without a name, in order) and syslog (the server writes received messages to a
//! file).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;

use stilling_bench::collect::{self, CollectPlan, CollectProtocol, CollectRunReport, MessageFailure};

use crate::plan;

const MESSAGES: u64 = 20;

/// Serves a number of connections one after the other while `run` runs.
fn served(
    connections: usize,
    serve: impl Fn(TcpStream) + Sync,
    run: impl FnOnce(SocketAddr) -> CollectRunReport,
) -> CollectRunReport {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..connections {
                serve(listener.accept().expect("a client connects").0);
            }
        });
        run(address)
    })
}

/// Reads to the end of the connection; `piece` receives everything read so far.
fn read(stream: &mut TcpStream, mut piece: impl FnMut(&[u8], &mut TcpStream)) {
    let (mut all, mut bytes) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        all.extend_from_slice(&bytes[..count]);
        piece(&all, stream);
    }
}

/// A run against a Redis that gives `answer` to command number n of its connection.
fn redis(answer: impl Fn(u64) -> String + Sync) -> CollectRunReport {
    let serve = |mut stream: TcpStream| {
        let mut answered = 0;
        read(&mut stream, |all, stream| {
            let commands = all.windows(4).filter(|window| window == b"XADD").count() as u64;
            let answers: String = (answered..commands).map(&answer).collect();
            answered = commands;
            let _ = stream.write_all(answers.as_bytes());
        });
    };
    // The first connection only checks that the server is reachable.
    served(2, serve, |address| {
        let plan = CollectPlan { protocol: CollectProtocol::Redis, stream: None, ..plan(address, MESSAGES) };
        collect::run(&plan).expect("there is a report")
    })
}

#[test]
fn redis_acknowledges_in_order_with_rising_ids() {
    let report = redis(|number| format!("$15\r\n17000000000{number:02}-0\r\n"));
    assert!(report.is_good(), "{:?}", report.evidence);
    assert_eq!((report.accounting.sends, report.accounting.received), (MESSAGES, None));
    // Ids 0 to 9, repeated.
    let report = redis(|number| format!("$15\r\n1700000000000-{}\r\n", number % 10));
    assert_eq!((report.failed(MessageFailure::WrongSequence), report.failures_total), (10, 10));
    let report = redis(|number| match number {
        5 => "-OOM command not allowed\r\n".to_owned(),
        _ => format!("$4\r\n{}-0\r\n", number + 10),
    });
    assert_eq!(
        (report.failed(MessageFailure::Refused), report.failures_total),
        (1, 1),
        "{:?}",
        report.evidence
    );
    assert_eq!(report.accounting.sends, MESSAGES - 1);
}

/// A run against a syslog server that writes its messages to a file, each formatted by `write`.
fn syslog(write: impl Fn(usize, &str) -> String + Sync) -> CollectRunReport {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("messages");
    let serve = |mut stream: TcpStream| {
        let mut all = Vec::new();
        read(&mut stream, |read, _| read.clone_into(&mut all));
        append(&file, &all, &write);
    };
    served(2, serve, |address| {
        let plan = CollectPlan {
            protocol: CollectProtocol::Syslog,
            confirmed: false,
            stream: None,
            received_file: Some(file.clone()),
            timeout: std::time::Duration::from_secs(3),
            ..plan(address, MESSAGES)
        };
        collect::run(&plan).expect("there is a report")
    })
}

/// Splits the frames and writes their last words.
fn append(file: &Path, frames: &[u8], write: impl Fn(usize, &str) -> String) {
    let mut rest = std::str::from_utf8(frames).expect("text");
    let (mut lines, mut number) = (String::new(), 0);
    while let Some((size, behind)) = rest.split_once(' ') {
        let (frame, next) = behind.split_at(size.parse().expect("a size"));
        lines += &write(number, frame.rsplit(' ').next().expect("a payload"));
        (rest, number) = (next, number + 1);
    }
    std::fs::write(file, lines).expect("it is written");
}

#[test]
fn every_line_of_a_syslog_server_is_checked() {
    let report = syslog(|_, line| format!("{line}\n"));
    assert!(report.is_good(), "{:?} {:?}", report.evidence, report.accounting);
    assert_eq!(report.accounting.received, Some(MESSAGES));
    let check = |report: CollectRunReport, failure: MessageFailure, unexplained: u64| {
        assert_eq!((report.failed(failure), report.failures_total), (1, 1), "{:?}", report.evidence);
        assert_eq!(report.accounting.unexplained, unexplained, "{failure:?}");
        assert!(!report.is_good());
    };
    let changed = |at, line: &str| if at == 5 { line.replace('1', "2") + "x\n" } else { format!("{line}\n") };
    check(syslog(changed), MessageFailure::WrongPayload, 1);
    let twice = |at, line: &str| if at == 5 { format!("{line}\n{line}\n") } else { format!("{line}\n") };
    check(syslog(twice), MessageFailure::DeliveredTwice, 0);
    let report = syslog(|at, line| if at == 5 { String::new() } else { format!("{line}\n") });
    assert_eq!((report.failures_total, report.accounting.unexplained), (0, 1));
    assert!(!report.is_good());
}
