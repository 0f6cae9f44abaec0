//! Tests of slow clients: what the server buffers for them outside of a slot, and when it disconnects them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::Duration;

use socket2::SockRef;
use stilling_engine::CloseReason;

use super::fixture::{
    ConnectionScript, GET, HANG_TIMEOUT, OK, POST, UpstreamFixture, eventually, read, read_head, respond_ok,
    run_scripts, send_text,
};
use crate::http::{Method, Response, Routes, Status};
use crate::upstream::limits::{PIECE_SIZE_MAX, RESPONSE_HELD_MAX};
use crate::{DriverChoice, ServeConfig, Server};

on_both_drivers! {
    /// Row 4.26.
    a_slow_upload_holds_no_slot,
    /// Row 4.12: an incomplete upload never reaches a process.
    an_upload_that_breaks_off_reaches_no_process,
    /// Row 4.26.
    a_slow_reader_holds_no_slot,
    /// Row 4.26: the rest of a response longer than the buffer for one client is read as the client reads.
    a_very_long_response_is_received_as_the_client_reads,
    /// Row 4.26: without memory for it, an upload holds a slot, but not for long.
    an_upload_without_memory_is_bounded_by_the_rate_of_slots,
    /// Row 5.3: a 503 from the program or a handler is no refusal by the server.
    an_answer_503_of_a_program_or_handler_is_no_refusal,
    /// Row 4.26: the process has a timeout of its own.
    the_write_timeout_of_clients_is_not_that_of_processes,
}

const LONG: usize = 400_000;

fn held_request_bytes(fixture: &UpstreamFixture) -> u64 {
    fixture.server.overview().http.iter().map(|counters| counters.requests_held()).sum()
}

fn responses_held(fixture: &UpstreamFixture) -> u64 {
    fixture.server.overview().http.iter().map(|counters| counters.responses_held()).sum()
}

fn has_ended(fixture: &UpstreamFixture, reason: CloseReason) -> bool {
    fixture.server.overview().engine(|counters| counters.closed(reason)) > 0
}

fn a_slow_upload_holds_no_slot(driver: DriverChoice) {
    for chunked in [false, true] {
        let script: ConnectionScript = Box::new(move |stream| {
            for _ in 0..3 {
                assert!(read_head(stream).starts_with("GET"));
                send_text(stream, OK);
            }
            let head = read_head(stream);
            assert!(head.contains(&format!("\r\nContent-Length: {LONG}\r\n")), "{head}");
            let mut body = vec![0; LONG];
            stream.read_exact(&mut body).expect("the body");
            assert!(body.iter().all(|byte| *byte == b'y'));
            send_text(stream, OK);
        });
        let fixture = UpstreamFixture::new(driver, HANG_TIMEOUT, vec![script]);
        let (framing, begin, end) = match chunked {
            true => ("Transfer-Encoding: chunked".to_owned(), format!("{LONG:x}\r\n"), "\r\n0\r\n\r\n"),
            false => (format!("Content-Length: {LONG}"), String::new(), ""),
        };
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{framing}\r\n\r\n{begin}");
        let mut slow = fixture.send(&(head + &"y".repeat(LONG - 1)));
        eventually("all but one byte is held", || held_request_bytes(&fixture) >= LONG as u64 - 1);
        (0..3).for_each(|_| fixture.assert_ok(GET));
        slow.write_all(format!("y{end}").as_bytes()).expect("it is taken");
        assert_eq!(read(slow), (200, b"ok".to_vec()));
        assert_eq!(held_request_bytes(&fixture), 0);
        fixture.finish();
    }
}

fn an_upload_that_breaks_off_reaches_no_process(driver: DriverChoice) {
    let fixture = UpstreamFixture::new(driver, HANG_TIMEOUT, vec![respond_ok()]);
    for resets in [false, true] {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LONG}\r\n\r\n");
        let client = fixture.send(&(head + &"y".repeat(LONG - 1)));
        eventually("it is held", || held_request_bytes(&fixture) >= LONG as u64 - 1);
        if resets {
            SockRef::from(&client).set_linger(Some(Duration::ZERO)).expect("a socket takes options");
        }
        drop(client);
        eventually("its memory is free", || held_request_bytes(&fixture) == 0);
    }
    fixture.assert_ok(GET);
    assert_eq!(fixture.finish(), (0, 0));
}

/// Sends a request with a receive buffer smaller than the response.
fn send_without_reading(fixture: &UpstreamFixture) -> TcpStream {
    let mut client = fixture.connect();
    SockRef::from(&client).set_recv_buffer_size(16_384).expect("a socket takes options");
    client.write_all(GET.as_bytes()).expect("it is taken");
    client
}

fn a_slow_reader_holds_no_slot(driver: DriverChoice) {
    const ANSWER: usize = 3 << 20;
    for chunked in [false, true] {
        let script: ConnectionScript = Box::new(move |stream| {
            assert!(read_head(stream).starts_with("GET"));
            let body = "x".repeat(ANSWER);
            match chunked {
                true => send_text(
                    stream,
                    &format!(
                        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{ANSWER:x}\r\n{body}\r\n0\r\n\r\n"
                    ),
                ),
                false => {
                    send_text(stream, &format!("HTTP/1.1 200 OK\r\nContent-Length: {ANSWER}\r\n\r\n{body}"));
                }
            }
            for _ in 0..3 {
                assert!(read_head(stream).starts_with("POST"));
                send_text(stream, OK);
            }
        });
        let configure = |config: &mut ServeConfig| config.send_buffer = Some(16_384);
        let fixture = UpstreamFixture::configured(driver, HANG_TIMEOUT, 1, configure, |listener| {
            run_scripts(listener, vec![script])
        });
        let slow = send_without_reading(&fixture);
        eventually("the process has finished it", || fixture.requests().done == 1);
        assert!(responses_held(&fixture) > ANSWER as u64 / 2, "{}", responses_held(&fixture));
        (0..3).for_each(|_| fixture.assert_ok(POST));
        let (status, body) = read(slow);
        assert_eq!((status, body.iter().filter(|byte| **byte == b'x').count()), (200, ANSWER));
        assert_eq!(responses_held(&fixture), 0);
        fixture.finish();
    }
}

fn a_very_long_response_is_received_as_the_client_reads(driver: DriverChoice) {
    const ANSWER: usize = 3 * RESPONSE_HELD_MAX;
    let script: ConnectionScript = Box::new(move |stream| {
        read_head(stream);
        send_text(stream, &format!("HTTP/1.1 200 OK\r\nContent-Length: {ANSWER}\r\n\r\n"));
        send_text(stream, &"x".repeat(ANSWER));
        read_head(stream);
        send_text(stream, OK);
    });
    let configure = |config: &mut ServeConfig| {
        config.send_buffer = Some(16_384);
        // The reader reads nothing for a while.
        config.timeouts.body_grace = HANG_TIMEOUT;
    };
    let fixture = UpstreamFixture::configured(driver, HANG_TIMEOUT, 1, configure, |listener| {
        run_scripts(listener, vec![script])
    });
    let slow = send_without_reading(&fixture);
    let least = (RESPONSE_HELD_MAX - PIECE_SIZE_MAX) as u64;
    eventually("as much is held as may be", || responses_held(&fixture) >= least);
    // The last piece was requested when there was room for it, and is counted before it arrives.
    let most = (RESPONSE_HELD_MAX + 2 * PIECE_SIZE_MAX) as u64;
    for _ in 0..20 {
        assert!(responses_held(&fixture) <= most, "{}", responses_held(&fixture));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!((fixture.requests().busy, fixture.requests().done), (1, 0), "it holds the slot");
    let (status, body) = read(slow);
    assert_eq!((status, body.len()), (200, ANSWER));
    assert!(body.iter().all(|byte| *byte == b'x'));
    assert_eq!(responses_held(&fixture), 0);
    fixture.assert_ok(POST);
    fixture.finish();
}

fn an_upload_without_memory_is_bounded_by_the_rate_of_slots(driver: DriverChoice) {
    let (seen, is_seen) = mpsc::channel();
    let asked: ConnectionScript = Box::new(move |stream| {
        read_head(stream);
        seen.send(()).expect("the test waits");
        let mut all = Vec::new();
        // The server has disconnected the client, and closed this connection.
        let _ = stream.read_to_end(&mut all);
        assert!(all.len() < LONG);
    });
    let configure = |config: &mut ServeConfig| {
        config.requests_held_max = 150_000;
        config.timeouts.body_grace = Duration::from_millis(100);
        // This rate alone would allow minutes.
        config.timeouts.body_rate_min = 1024;
    };
    let scripts = vec![asked, respond_ok()];
    let fixture = UpstreamFixture::configured(driver, HANG_TIMEOUT, 1, configure, |listener| {
        run_scripts(listener, scripts)
    });
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LONG}\r\n\r\n");
    let client = fixture.send(&(head + &"y".repeat(100_000)));
    is_seen.recv().expect("the process is asked before the body is there");
    assert_eq!(read(client).0, Status::RequestTimeout.code());
    fixture.assert_ok(GET);
    assert_eq!(fixture.finish(), (0, 0));
}

fn an_answer_503_of_a_program_or_handler_is_no_refusal(driver: DriverChoice) {
    let unavailable: ConnectionScript = Box::new(|stream| {
        read_head(stream);
        send_text(stream, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\nno");
    });
    let fixture = UpstreamFixture::new(driver, HANG_TIMEOUT, vec![unavailable]);
    assert_eq!(fixture.round_trip(GET), (503, b"no".to_vec()));
    assert_eq!(fixture.server.overview().refused(), 0);
    fixture.finish();

    let routes = Routes::new()
        .inline(Method::Get, "/inline", |_| Response::new(Status::ServiceUnavailable))
        .worker(Method::Get, "/worker", |_| Response::new(Status::ServiceUnavailable))
        // The server answers 500 instead: `Date` is its own field.
        .inline(Method::Get, "/wrong", |_| {
            Response::new(Status::ServiceUnavailable).with_header("Date", "today")
        })
        // The server answers 503 itself: it has no memory for this.
        .inline(Method::Get, "/long", |_| {
            Response::text("x".repeat(300_000)).with_status(Status::ServiceUnavailable)
        });
    let config = ServeConfig {
        listen: vec![std::net::SocketAddr::from(([127, 0, 0, 1], 0))],
        driver,
        shards: 1,
        worker_threads: 1,
        responses_held_max: 10_000,
        ..ServeConfig::default()
    };
    let server = Server::bind(config, routes).expect("a free port").start().expect("a thread");
    for (path, status, refused) in
        [("/inline", 503, 0), ("/worker", 503, 0), ("/wrong", 500, 0), ("/long", 503, 1)]
    {
        let mut client = TcpStream::connect(server.addresses()[0]).expect("the server listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        client.write_all(request.as_bytes()).expect("it is taken");
        assert_eq!((read(client).0, server.overview().refused()), (status, refused), "{path}");
    }
    server.end().expect("it ends well");
}

fn the_write_timeout_of_clients_is_not_that_of_processes(driver: DriverChoice) {
    let (go, may_go) = mpsc::channel();
    let slow: ConnectionScript = Box::new(move |stream| {
        let head = read_head(stream);
        assert!(head.starts_with("POST"), "{head}");
        // The process reads the body long after any client would have been disconnected.
        may_go.recv().expect("the test continues");
        stream.read_exact(&mut vec![0; 4 * LONG]).expect("the body");
        send_text(stream, OK);
    });
    let answers: ConnectionScript = Box::new(|stream| {
        read_head(stream);
        let long = 64 << 20;
        let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {long}\r\n\r\n").as_bytes());
        let _ = stream.write_all(&vec![b'x'; long]);
    });
    let configure = |config: &mut ServeConfig| {
        config.engine.write_timeout = Duration::from_millis(100);
        config.limits.body_size_max = 4 * LONG as u64;
        config.send_buffer = Some(16_384);
    };
    let fixture = UpstreamFixture::configured(driver, HANG_TIMEOUT, 2, configure, |listener| {
        std::thread::spawn(move || {
            let mut scripts = vec![slow, answers].into_iter();
            let mut threads = Vec::new();
            for script in scripts.by_ref() {
                let mut stream = super::fixture::accept(&listener);
                threads.push(std::thread::spawn(move || script(&mut stream)));
            }
            threads.into_iter().for_each(|thread| thread.join().expect("the script succeeds"));
        })
    });
    let head =
        format!("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", 4 * LONG);
    let client = fixture.send(&(head + &"y".repeat(4 * LONG)));
    eventually("the process has it", || {
        fixture.requests().busy == 1 && held_request_bytes(&fixture) >= 4 * LONG as u64
    });
    // A client that comes later and reads nothing is disconnected first.
    let reader = send_without_reading(&fixture);
    eventually("its time is over", || has_ended(&fixture, CloseReason::WriteTimeout));
    go.send(()).expect("the process waits");
    assert_eq!(read(client), (200, b"ok".to_vec()));
    drop(reader);
    assert_eq!(fixture.finish(), (0, 0));
}
