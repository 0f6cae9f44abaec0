//! Tests of requests that a process works on after their clients have left: the next request waits in the server, not
//! inside the process.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use stilling_engine::CloseReason;

use super::fixture::*;
use super::reset;
use crate::http::Status;
use crate::{DriverChoice, ServeConfig};

on_both_drivers! {
    /// Rows 1.24, 4.12: a single-threaded program does not notice that a client has left.
    an_abandoned_request_keeps_its_slot_while_the_process_works_on_it,
    /// Row 4.12: an unwanted response is not read to its end.
    a_response_to_an_abandoned_request_frees_the_slot_when_it_begins,
    /// Row 4.12: after an interim response, the process still works.
    an_interim_response_to_an_abandoned_request_frees_no_slot,
    /// Row 1.24: an abandoned request has the same timeout as any other.
    a_process_that_never_finishes_an_abandoned_request_is_killed,
    /// Row 1.24: the client is answered at once, the next request gets the slot when the process has finished.
    a_late_request_keeps_its_slot_while_the_process_works_on_it,
    /// Row 4.37: a drain does not wait for an abandoned request.
    a_drain_does_not_wait_for_abandoned_requests,
    /// Rows 1.24, 4.37: a drain does not send a queued request to a busy process.
    an_abandoned_request_keeps_its_slot_in_a_drain_while_others_wait,
    /// Row 4.26: a connection that is never established takes no longer than a response may.
    a_connection_that_is_never_made_is_answered_in_time,
    /// Row 1.24: refusals are tolerated no longer than a response may take.
    a_process_that_refuses_connections_gets_no_extra_time,
    /// Row 4.26: its events may still be in the mail when the next request arrives.
    events_of_an_abandoned_request_are_not_part_of_the_next_response,
}

/// Reads a request, reports it, waits until the connection is half-closed, reports that, and continues to work until
/// the test ends it.
fn work_after_disconnect(seen: mpsc::Sender<()>, go: mpsc::Receiver<()>) -> ConnectionScript {
    Box::new(move |stream| {
        read_head(stream);
        seen.send(()).expect("the test waits");
        wait_closed(stream);
        seen.send(()).expect("the test waits");
        // The sender is dropped when the test is over.
        let _ = go.recv();
    })
}

/// Sends a request and resets the connection once the process has it; returns when the process could notice.
fn send_and_reset(fixture: &UpstreamFixture, seen: &mpsc::Receiver<()>) {
    let client = fixture.send(GET);
    seen.recv().expect("the process has it");
    reset(client);
    seen.recv().expect("the process detects the disconnect");
}

fn an_abandoned_request_keeps_its_slot_while_the_process_works_on_it(driver: DriverChoice) {
    let ((seen, is_seen), (go, may_go)) = (mpsc::channel(), mpsc::channel());
    let fixture = UpstreamFixture::new(
        driver,
        HANG_TIMEOUT * 10,
        vec![work_after_disconnect(seen, may_go), respond_ok()],
    );
    send_and_reset(&fixture, &is_seen);
    let next = fixture.send(GET);
    eventually("it waits in the queue", || fixture.requests().queued == 1);
    assert_eq!(fixture.requests().busy, 1);
    go.send(()).expect("the process waits");
    assert_eq!(read(next), (200, b"ok".to_vec()));
    assert_eq!(fixture.abandoned_requests(), 1);
    assert_eq!(fixture.finish(), (0, 0));
}

fn a_response_to_an_abandoned_request_frees_the_slot_when_it_begins(driver: DriverChoice) {
    let ((seen, is_seen), (go, may_go)) = (mpsc::channel(), mpsc::channel());
    let endless: ConnectionScript = Box::new(move |stream| {
        read_head(stream);
        seen.send(()).expect("the test waits");
        wait_closed(stream);
        seen.send(()).expect("the test waits");
        may_go.recv().expect("the test continues");
        send_text(stream, "HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    let fixture = UpstreamFixture::new(driver, HANG_TIMEOUT * 10, vec![endless, respond_ok()]);
    send_and_reset(&fixture, &is_seen);
    let next = fixture.send(GET);
    eventually("it waits in the queue", || fixture.requests().queued == 1);
    go.send(()).expect("the process waits");
    assert_eq!(read(next), (200, b"ok".to_vec()));
    assert_eq!(fixture.finish(), (0, 0));
}

fn an_interim_response_to_an_abandoned_request_frees_no_slot(driver: DriverChoice) {
    let ((seen, is_seen), (go, may_go)) = (mpsc::channel(), mpsc::channel());
    let sends_interims: ConnectionScript = Box::new(move |stream| {
        read_head(stream);
        seen.send(()).expect("the test waits");
        wait_closed(stream);
        for text in ["HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 10", "2 Processing\r\n\r\n"] {
            send_text(stream, text);
            seen.send(()).expect("the test waits");
            may_go.recv().expect("the test continues");
        }
        send_text(stream, OK);
    });
    let fixture = UpstreamFixture::new(driver, HANG_TIMEOUT * 10, vec![sends_interims, respond_ok()]);
    send_and_reset(&fixture, &is_seen);
    let next = fixture.send(GET);
    eventually("it waits in the queue", || fixture.requests().queued == 1);
    for round in 0..2 {
        if round > 0 {
            go.send(()).expect("the process waits");
            is_seen.recv().expect("the bytes are sent");
        }
        // The shard has processed these bytes before it answers this request.
        assert_eq!(fixture.round_trip("GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").0, 200);
        assert_eq!((fixture.requests().busy, fixture.requests().queued), (1, 1));
    }
    go.send(()).expect("the process waits");
    assert_eq!(read(next), (200, b"ok".to_vec()));
    assert_eq!(fixture.finish(), (0, 0));
}

fn a_process_that_never_finishes_an_abandoned_request_is_killed(driver: DriverChoice) {
    let ((seen, is_seen), (go, may_go)) = (mpsc::channel(), mpsc::channel());
    // The client is to leave before it is late.
    let timeout = super::super::limits::CLIENT_CHECK_INTERVAL * 8;
    let fixture =
        UpstreamFixture::new(driver, timeout, vec![work_after_disconnect(seen, may_go), respond_ok()]);
    let client = fixture.send(GET);
    is_seen.recv().expect("the process has it");
    reset(client);
    let app = fixture.server.overview().apps[0].clone();
    eventually("it is killed", || app.counters().killed == 1);
    is_seen.recv().expect("the process detects the disconnect");
    go.send(()).expect("the script waits");
    fixture.assert_ok(GET);
    fixture.finish_after_killing(1);
}

fn a_late_request_keeps_its_slot_while_the_process_works_on_it(driver: DriverChoice) {
    let ((seen, is_seen), (go, may_go)) = (mpsc::channel(), mpsc::channel());
    let (begun, has_begun) = mpsc::channel();
    let (end, may_end) = mpsc::channel::<()>();
    // Another request takes long but makes progress, so the process does not hang.
    let progressing: ConnectionScript = Box::new(move |stream| {
        read_head(stream);
        send_text(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n");
        begun.send(()).expect("the test waits");
        while may_end.recv_timeout(Duration::from_millis(5)).is_err() {
            send_text(stream, "1\r\nx\r\n");
        }
        send_text(stream, "0\r\n\r\n");
    });
    let late = work_after_disconnect(seen, may_go);
    let fixture = UpstreamFixture::with(driver, Duration::from_secs(2), 2, |listener| {
        std::thread::spawn(move || {
            let mut stream = accept(&listener);
            let progressing = std::thread::spawn(move || progressing(&mut stream));
            let mut stream = accept(&listener);
            let late = std::thread::spawn(move || late(&mut stream));
            respond_ok()(&mut accept(&listener));
            for script in [progressing, late] {
                script.join().expect("the script succeeds");
            }
        })
    });
    let other = fixture.send(GET);
    has_begun.recv().expect("it begins");
    fixture.assert_status(GET, Status::GatewayTimeout);
    is_seen.recv().expect("the process has it");
    is_seen.recv().expect("the process detects the disconnect");
    let next = fixture.send(GET);
    eventually("it waits in the queue", || fixture.requests().queued == 1);
    assert_eq!((fixture.requests().busy, fixture.abandoned_requests()), (2, 1));
    go.send(()).expect("the process waits");
    assert_eq!(read(next), (200, b"ok".to_vec()));
    end.send(()).expect("the script waits");
    let (status, body) = read(other);
    assert!(status == 200 && body.ends_with(b"0\r\n\r\n"), "{}", body.escape_ascii());
    assert_eq!(fixture.finish(), (0, 0));
}

fn a_drain_does_not_wait_for_abandoned_requests(driver: DriverChoice) {
    let ((seen, is_seen), (go, may_go)) = (mpsc::channel::<()>(), mpsc::channel());
    let configure = |config: &mut ServeConfig| config.timeouts.drain = HANG_TIMEOUT;
    let scripts = vec![work_after_disconnect(seen, may_go)];
    let fixture = UpstreamFixture::configured(driver, HANG_TIMEOUT * 10, 1, configure, |listener| {
        run_scripts(listener, scripts)
    });
    send_and_reset(&fixture, &is_seen);
    assert_eq!(fixture.requests().busy, 1);
    let overview = fixture.server.overview().clone();
    // The script runs until the server has ended.
    let UpstreamFixture { server, script_thread, .. } = fixture;
    server.end().expect("it ends well");
    let cut_off = overview.engine(|counters| counters.closed(CloseReason::DrainTimeout));
    assert_eq!((overview.work().busy, cut_off), (0, 0));
    drop(go);
    script_thread.join().expect("the scripts succeed");
}

fn an_abandoned_request_keeps_its_slot_in_a_drain_while_others_wait(driver: DriverChoice) {
    let ((seen, is_seen), (go, may_go)) = (mpsc::channel(), mpsc::channel());
    let fixture = UpstreamFixture::new(
        driver,
        HANG_TIMEOUT * 10,
        vec![work_after_disconnect(seen, may_go), respond_ok()],
    );
    send_and_reset(&fixture, &is_seen);
    let next = fixture.send(GET);
    eventually("it waits in the queue", || fixture.requests().queued == 1);
    let mut idle = fixture.connect();
    idle.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").expect("it is taken");
    let mut byte = [0];
    idle.read_exact(&mut byte).expect("it is answered");
    fixture.server.stopper().stop();
    idle.read_to_end(&mut Vec::new()).expect("the drain sends it away");
    assert_eq!((fixture.requests().busy, fixture.requests().queued), (1, 1));
    go.send(()).expect("the process waits");
    assert_eq!(read(next), (200, b"ok".to_vec()));
    assert_eq!(fixture.finish(), (0, 0));
}

fn a_connection_that_is_never_made_is_answered_in_time(driver: DriverChoice) {
    let ((full, is_full), (done, is_done)) = (mpsc::channel(), mpsc::channel());
    let configure = |config: &mut ServeConfig| {
        // A ring's own sockets wait for room in the listener's queue; others get an error.
        config.direct_descriptors = driver == DriverChoice::Uring;
        config.engine.connect_timeout = HANG_TIMEOUT * 10;
    };
    let fixture = UpstreamFixture::configured(driver, Duration::from_millis(50), 1, configure, |listener| {
        std::thread::spawn(move || {
            let address = listener.local_addr().expect("it has one");
            // Accepts the supervisor's readiness checks, to empty the backlog.
            listener.set_nonblocking(true).expect("a socket takes options");
            while listener.accept().is_ok() {}
            rustix::net::listen(&listener, 0).expect("a smaller queue");
            let path = address.as_pathname().expect("a path");
            let _queued = UnixStream::connect(path).expect("room for one");
            full.send(()).expect("the test waits");
            is_done.recv().expect("the test continues");
        })
    });
    is_full.recv().expect("it is full");
    fixture.assert_status(GET, Status::GatewayTimeout);
    done.send(()).expect("it waits");
    fixture.finish_after_killing(1);
}

fn a_process_that_refuses_connections_gets_no_extra_time(driver: DriverChoice) {
    let timeout = super::super::limits::CONNECT_REFUSED_MAX / 8;
    let fixture = UpstreamFixture::with(driver, timeout, 1, |listener| {
        // A child that another test forks may hold the listener for a moment.
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).expect("it is open");
        std::thread::spawn(|| ())
    });
    fixture.assert_status(GET, Status::GatewayTimeout);
    fixture.finish_after_killing(1);
}

fn events_of_an_abandoned_request_are_not_part_of_the_next_response(driver: DriverChoice) {
    // The last bytes arrive together with those that fill the first piece: both pieces are in the mail at once.
    let length = crate::upstream::limits::PIECE_SIZE_MAX + 50;
    let configure = |config: &mut ServeConfig| config.responses_held_max = 10_000;
    let answers: ConnectionScript = Box::new(move |stream| {
        read_head(stream);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        // The connection may be closed before the end.
        let _ = stream.write_all(&[head.as_bytes(), &vec![b'x'; length]].concat());
    });
    let scripts = vec![answers, respond_ok()];
    let fixture = UpstreamFixture::configured(driver, HANG_TIMEOUT, 1, configure, |listener| {
        run_scripts(listener, scripts)
    });
    let mut client = fixture.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut refusal = Vec::new();
    while !refusal.ends_with(b"503 Service Unavailable\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).expect("more of an answer");
        refusal.push(byte[0]);
    }
    client.write_all(GET.as_bytes()).expect("it is taken");
    let mut next = Vec::new();
    client.read_to_end(&mut next).expect("an answer and the end");
    assert!(
        next.starts_with(b"HTTP/1.1 200 OK\r\n") && next.ends_with(b"\r\n\r\nok"),
        "{}",
        next.escape_ascii()
    );
    assert_eq!(fixture.finish(), (0, 0));
}
