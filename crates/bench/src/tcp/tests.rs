//! The generator against right and wrong servers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::{ExchangePlan, HeldConnections, bulk_pattern, connect, receive, run, send};

const TIMEOUT: Duration = Duration::from_secs(10);

/// A server that handles each connection in its own thread until the process ends.
fn serve(handle: fn(TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || handle(stream));
        }
    });
    address
}

/// Sends everything back after a change.
fn echo_with(mut stream: TcpStream, change: fn(&mut Vec<u8>)) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        let mut answer = buffer[..count].to_vec();
        change(&mut answer);
        if stream.write_all(&answer).is_err() {
            return;
        }
    }
}

fn plan(to: SocketAddr, connections: usize) -> ExchangePlan {
    ExchangePlan { to, connections, size: 32, close: false, count: Some(40), span: None, timeout: TIMEOUT }
}

#[test]
fn all_exchanges_with_an_echo_server_are_right() {
    let to = serve(|stream| echo_with(stream, |_| ()));
    for connections in [1, 4] {
        for close in [false, true] {
            let report = run(&ExchangePlan { close, ..plan(to, connections) }).expect("a report");
            assert_eq!((report.exchanges, report.failures), (40, 0), "{report:?}");
            assert!(report.bytes == 40 * 32 && report.latency.max_us > 0.0, "{report:?}");
        }
    }
}

#[test]
fn a_changed_a_further_and_a_missing_byte_are_failures() {
    let changed = serve(|stream| echo_with(stream, |answer| answer[3] ^= 1));
    let further = serve(|stream| echo_with(stream, |answer| answer.push(0)));
    let missing = serve(|mut stream| {
        let mut buffer = [0; 32];
        if stream.read_exact(&mut buffer).is_ok() {
            let _ = stream.write_all(&buffer[..31]);
        }
    });
    for (to, evidence) in [(changed, "wrong bytes"), (further, "wrong bytes"), (missing, "closed after")] {
        for connections in [1, 4] {
            let report = run(&plan(to, connections)).expect("a report");
            assert_eq!((report.exchanges, report.failures), (0, 40), "{report:?}");
            assert!(report.evidence.as_ref().is_some_and(|text| text.contains(evidence)), "{report:?}");
        }
    }
}

#[test]
fn bulk_data_is_counted_and_compared() {
    let span = Duration::from_millis(50);
    let counting = serve(|mut stream| {
        let count = std::io::copy(&mut stream, &mut std::io::sink()).unwrap_or(0);
        let _ = writeln!(stream, "{count}");
    });
    let report = send(counting, span, TIMEOUT).expect("a report");
    assert!(report.failures == 0 && report.bytes > 0, "{report:?}");
    let wrong = serve(|mut stream| {
        let count = std::io::copy(&mut stream, &mut std::io::sink()).unwrap_or(0);
        let _ = writeln!(stream, "{}", count + 1);
    });
    assert_eq!(send(wrong, span, TIMEOUT).expect("a report").failures, 1);
    let writing = serve(|mut stream| {
        let block = bulk_pattern(1024);
        while stream.write_all(&block).is_ok() {}
    });
    let report = receive(writing, span, TIMEOUT).expect("a report");
    assert!(report.failures == 0 && report.bytes > 0, "{report:?}");
    let shifted = serve(|mut stream| {
        let block = bulk_pattern(1023);
        while stream.write_all(&block).is_ok() {}
    });
    let report = receive(shifted, span, TIMEOUT).expect("a report");
    assert!(report.evidence.as_ref().is_some_and(|text| text.starts_with("wrong bytes")), "{report:?}");
}

#[test]
fn connects_are_counted_and_refused_ones_are_failures() {
    let span = Duration::from_millis(50);
    let to = serve(|_| ());
    let report = connect(to, span, TIMEOUT);
    assert!(report.failures == 0 && report.exchanges > 0 && report.latency.max_us > 0.0, "{report:?}");
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let report = connect(closed, span, TIMEOUT);
    assert!(report.failures > 0 && report.exchanges == 0 && report.evidence.is_some(), "{report:?}");
}

#[test]
fn held_connections_exchange_when_asked() {
    let to = serve(|stream| echo_with(stream, |_| ()));
    let mut held = HeldConnections::open(to, Ipv4Addr::new(127, 0, 1, 1), 5, 32, TIMEOUT).expect("open");
    assert_eq!((held.exchange(), held.exchange()), (Ok(5), Ok(5)));
    let wrong = serve(|stream| echo_with(stream, |answer| answer[0] ^= 1));
    let mut held = HeldConnections::open(wrong, Ipv4Addr::LOCALHOST, 2, 32, TIMEOUT).expect("open");
    assert!(held.exchange().is_err_and(|error| error.starts_with("connection 1: wrong bytes")));
}
