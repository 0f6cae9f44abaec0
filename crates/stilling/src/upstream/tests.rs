//! Tests of a server with scripted worker processes that misbehave at chosen moments.

mod fixture;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::http::Status;
use crate::{DriverChoice, ServeConfig};

use self::fixture::*;

macro_rules! on_both_drivers {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        mod on_poll {
            $($(#[$doc])* #[test] fn $name() { super::$name(crate::DriverChoice::Poll) })*
        }
        mod on_uring {
            $($(#[$doc])* #[test] fn $name() { super::$name(crate::DriverChoice::Uring) })*
        }
    };
}

mod abandoned_requests;
pub(crate) mod pool;
mod slow;

on_both_drivers! {
    a_connection_is_reused_while_both_sides_keep_it_open,
    /// RFC 9110 §9.2.2: an idempotent request is sent again, once, when the first connection turns out to be dead.
    a_dead_idle_connection_fails_only_requests_that_cannot_be_repeated,
    a_request_without_a_delivered_byte_is_sent_again,
    /// RFC 9110 §9.2.2: a request that was sent in part is not repeated.
    a_partly_delivered_request_is_not_sent_again,
    /// Row 1.24.
    a_process_that_does_not_answer_in_time_is_killed,
    a_long_body_and_response_are_forwarded_in_pieces,
    /// Row 4.12.
    a_disconnected_client_ends_the_request_and_not_the_process,
    /// Row 4.12: a client resets before the response, or while the response is silent: the slot is free when the
    /// process has closed the connection.
    a_disconnected_client_frees_the_slot_before_the_deadline,
    /// Row 4.12: a client that leaves the queue frees its position.
    a_withdrawn_request_is_not_sent_to_the_process,
    /// Row 4.33.
    a_half_closed_client_is_answered,
    /// Row 1.24: a response that stops in the middle fails; the process's other requests do not.
    an_answer_that_stops_in_the_middle_ends_the_request_and_not_the_process,
    /// RFC 9112 §9.3: an early response, before the end of the body, is a valid response, also over a kept
    /// connection.
    an_early_answer_between_two_pieces_of_a_body_is_not_lost_on_a_reused_connection,
    /// Row 1.24: a live process that accepts no connections counts as dead.
    a_process_that_accepts_no_connections_is_replaced,
    /// Row 4.26.
    a_process_that_does_not_read_a_body_in_time_is_killed,
    /// Row 4.26: slow readers hold their slots but no memory of others; a server at capacity still reaches its
    /// process.
    slow_readers_stop_the_process_and_hold_no_more_than_their_slots,
    /// Row 4.26: a slow reader does not hold a slot forever.
    a_client_that_reads_a_response_too_slowly_is_disconnected,
    /// Row 4.26: the total of unsent response bytes is bounded, even if slots are free.
    a_long_answer_without_room_is_refused_before_it_begins,
}

fn a_connection_is_reused_while_both_sides_keep_it_open(driver: DriverChoice) {
    let scripts: Vec<ConnectionScript> = vec![
        Box::new(|stream| {
            for _ in 0..3 {
                read_head(stream);
                send_text(stream, OK);
            }
            read_head(stream);
            send_text(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
        }),
        Box::new(|stream| {
            read_head(stream);
            // More than a response: this connection must not be used again.
            send_text(stream, &format!("{OK}{OK}"));
        }),
        respond_ok(),
    ];
    let fixture = UpstreamFixture::new(driver, HANG_TIMEOUT, scripts);
    for _ in 0..6 {
        fixture.assert_ok(GET);
    }
    fixture.finish();
}

fn a_dead_idle_connection_fails_only_requests_that_cannot_be_repeated(driver: DriverChoice) {
    let closes_on_the_second = || -> ConnectionScript {
        Box::new(|stream| {
            read_head(stream);
            send_text(stream, OK);
            read_head(stream);
        })
    };
    let fixture = UpstreamFixture::new(driver, HANG_TIMEOUT, vec![closes_on_the_second(), respond_ok()]);
    fixture.assert_ok(GET);
    fixture.assert_ok(GET);
    fixture.finish();
    let fixture = UpstreamFixture::new(driver, HANG_TIMEOUT, vec![closes_on_the_second(), respond_ok()]);
    fixture.assert_ok(GET);
    fixture.assert_status(POST, Status::BadGateway);
    fixture.assert_ok(POST);
    fixture.finish();
    // The request is repeated once: a new connection that dies is the process's fault.
    let closes_early: fn() -> ConnectionScript = || Box::new(|stream| drop(read_head(stream)));
    let fixture = UpstreamFixture::new(
        driver,
        HANG_TIMEOUT,
        vec![closes_on_the_second(), closes_early(), closes_early()],
    );
    fixture.assert_ok(GET);
    fixture.assert_status(GET, Status::BadGateway);
    fixture.assert_status(GET, Status::BadGateway);
    fixture.finish();
}

fn a_request_without_a_delivered_byte_is_sent_again(driver: DriverChoice) {
    let (closed, wait_closed) = mpsc::channel();
    let scripts: Vec<ConnectionScript> = vec![
        Box::new(move |stream| {
            read_head(stream);
            send_text(stream, OK);
            stream.shutdown(std::net::Shutdown::Both).expect("it is open");
            closed.send(()).expect("the test waits");
        }),
        Box::new(|stream| {
            assert!(read_head(stream).contains("\r\nContent-Length: 0\r\n\r\n"));
            send_text(stream, OK);
        }),
    ];
    let fixture = UpstreamFixture::new(driver, HANG_TIMEOUT, scripts);
    fixture.assert_ok(GET);
    wait_closed.recv().expect("it is closed");
    fixture.assert_ok(POST);
    fixture.finish();
}

fn a_partly_delivered_request_is_not_sent_again(driver: DriverChoice) {
    // The close must happen between two sends, which needs several attempts.
    const ROUNDS: usize = 20;
    // With its head longer than one send.
    const BODY: usize = 65_500;
    let fixture = UpstreamFixture::with(driver, HANG_TIMEOUT, 1, |listener| {
        std::thread::spawn(move || {
            let mut has_seen_it = false;
            for _ in 0..=ROUNDS {
                let mut stream = accept(&listener);
                let mut head = read_head(&mut stream);
                if head.starts_with("POST") {
                    // The kept connection was too old for it.
                    assert!(!has_seen_it, "it is sent twice");
                    stream.read_exact(&mut [0; BODY]).expect("the body");
                    send_text(&mut stream, OK);
                    head = read_head(&mut stream);
                }
                assert!(head.starts_with("GET"), "{head}");
                send_text(&mut stream, OK);
                stream.set_nonblocking(true).expect("a socket takes options");
                let count = loop {
                    match stream.read(&mut [0]) {
                        Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                        count => break count.expect("a byte or the end"),
                    }
                };
                has_seen_it = count > 0;
                stream.shutdown(std::net::Shutdown::Both).expect("it is open");
            }
        })
    });
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {BODY}\r\n\r\n");
    let post = head + &"x".repeat(BODY);
    let is_done = AtomicBool::new(false);
    let answers: Vec<u16> = std::thread::scope(|scope| {
        // Slow pages widen the gap between the sends.
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_done.load(Relaxed) {
                    let page = "GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
                    assert_eq!(fixture.round_trip(page).0, 200);
                }
            });
        }
        let answers =
            (0..=ROUNDS).flat_map(|_| [GET, &post]).map(|request| fixture.round_trip(request).0).collect();
        is_done.store(true, Relaxed);
        answers
    });
    fixture.finish();
    for pair in answers.chunks(2) {
        assert!(matches!(pair, [200, 200 | 502]), "{answers:?}");
    }
}

fn a_process_that_does_not_answer_in_time_is_killed(driver: DriverChoice) {
    let waits: ConnectionScript = Box::new(|stream| {
        read_head(stream);
        let _ = stream.read(&mut [0]);
    });
    let drips: ConnectionScript = Box::new(|stream| {
        read_head(stream);
        send_text(stream, "HTTP/1.1 200 OK\r\n");
        // Constant progress without a complete head does not extend the deadline.
        while stream.write_all(b"X: y\r\n").is_ok() {
            std::thread::park_timeout(Duration::from_millis(5));
        }
    });
    let fixture = UpstreamFixture::with(driver, Duration::from_millis(50), 1, |listener| {
        std::thread::spawn(move || {
            // Keeps listening, so that the process is not killed for refusing connections.
            for script in [waits, drips] {
                script(&mut accept(&listener));
            }
            respond_ok()(&mut accept(&listener));
        })
    });
    fixture.assert_status(GET, Status::GatewayTimeout);
    fixture.assert_status(GET, Status::GatewayTimeout);
    fixture.assert_ok(GET);
    fixture.finish_after_killing(2);
}

fn a_long_body_and_response_are_forwarded_in_pieces(driver: DriverChoice) {
    const LONG: usize = 300_000;
    for chunked in [false, true] {
        let script: ConnectionScript = Box::new(move |stream| {
            let head = read_head(stream);
            let mut body = Vec::new();
            if chunked {
                assert!(head.contains("\r\nTransfer-Encoding: chunked\r\n"), "{head}");
                while !body.ends_with(b"\r\n0\r\n\r\n") {
                    let mut bytes = [0; 4096];
                    let count = stream.read(&mut bytes).expect("more");
                    body.extend_from_slice(&bytes[..count]);
                }
            } else {
                body.resize(LONG, 0);
                stream.read_exact(&mut body).expect("the body");
            }
            assert_eq!(body.iter().filter(|byte| **byte == b'y').count(), LONG);
            send_text(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            send_text(stream, &format!("{LONG:x}\r\n{}\r\n0\r\n\r\n", "x".repeat(LONG)));
        });
        let configure = |config: &mut ServeConfig| {
            (config.requests_held_max, config.responses_held_max) = (150_000, 150_000);
        };
        let fixture = UpstreamFixture::configured(driver, HANG_TIMEOUT, 1, configure, |listener| {
            run_scripts(listener, vec![script])
        });
        let (framing, body) = match chunked {
            true => ("Transfer-Encoding: chunked", format!("{LONG:x}\r\n{}\r\n0\r\n\r\n", "y".repeat(LONG))),
            false => ("Content-Length: 300000", "y".repeat(LONG)),
        };
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{framing}\r\n\r\n");
        let (status, answer) = fixture.round_trip(&(head + &body));
        assert_eq!(status, 200);
        assert!(answer.ends_with(b"\r\n0\r\n\r\n"));
        assert_eq!(answer.iter().filter(|byte| **byte == b'x').count(), LONG);
        fixture.finish();
    }
}

/// Closes with a reset, which the other side notices.
fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a socket takes options");
}

fn a_disconnected_client_ends_the_request_and_not_the_process(driver: DriverChoice) {
    let endless: ConnectionScript = Box::new(|stream| {
        read_head(stream);
        send_text(stream, "HTTP/1.1 200 OK\r\n\r\n");
        let piece = "x".repeat(1 << 20);
        while stream.write_all(piece.as_bytes()).is_ok() {}
    });
    let fixture = UpstreamFixture::new(driver, HANG_TIMEOUT, vec![endless, respond_ok()]);
    let mut client = fixture.send(GET);
    client.read_exact(&mut [0; 1000]).expect("its beginning");
    drop(client);
    fixture.assert_ok(GET);
    assert_eq!(fixture.finish(), (0, 0));
}

fn a_disconnected_client_frees_the_slot_before_the_deadline(driver: DriverChoice) {
    let (asked, is_asked) = mpsc::channel();
    let script = |text: &'static str| -> ConnectionScript {
        let asked = asked.clone();
        Box::new(move |stream| {
            read_head(stream);
            send_text(stream, text);
            asked.send(()).expect("the test waits");
            wait_closed(stream);
        })
    };
    let silent = script("");
    let begins = script("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    let fixture = UpstreamFixture::new(driver, HANG_TIMEOUT * 10, vec![silent, begins, respond_ok()]);
    for begins in [false, true] {
        let mut client = fixture.send(GET);
        is_asked.recv().expect("the process has it");
        if begins {
            client.read_exact(&mut [0; 10]).expect("its beginning");
        }
        reset(client);
    }
    fixture.assert_ok(GET);
    assert_eq!(fixture.finish(), (0, 0));
}

fn a_withdrawn_request_is_not_sent_to_the_process(driver: DriverChoice) {
    let (go, may_go) = mpsc::channel();
    let slow: ConnectionScript = Box::new(move |stream| {
        read_head(stream);
        may_go.recv().expect("the test continues");
        send_text(stream, OK);
        // The next request on this connection is not the withdrawn one.
        assert!(read_head(stream).starts_with("POST"));
        send_text(stream, OK);
    });
    let fixture = UpstreamFixture::new(driver, HANG_TIMEOUT * 10, vec![slow]);
    let first = fixture.send(GET);
    eventually("it is asked", || fixture.requests().busy == 1);
    let leaves = fixture.send(GET);
    eventually("it waits", || fixture.requests().queued == 1);
    reset(leaves);
    eventually("the queue is empty", || fixture.requests().queued == 0);
    assert_eq!(fixture.requests().cancelled, 1);
    go.send(()).expect("the process waits");
    assert_eq!(read(first), (200, b"ok".to_vec()));
    fixture.assert_ok(POST);
    assert_eq!(fixture.finish(), (0, 0));
}

fn a_half_closed_client_is_answered(driver: DriverChoice) {
    let (go, may_go) = mpsc::channel();
    let slow: ConnectionScript = Box::new(move |stream| {
        read_head(stream);
        may_go.recv().expect("the test continues");
        send_text(stream, OK);
    });
    let fixture = UpstreamFixture::new(driver, HANG_TIMEOUT, vec![slow]);
    let client = fixture.send(GET);
    client.shutdown(std::net::Shutdown::Write).expect("it is open");
    eventually("it is asked", || fixture.requests().busy == 1);
    // Longer than the interval at which the server checks the client.
    let begun = Instant::now();
    eventually("time passes", || begun.elapsed() > super::limits::CLIENT_CHECK_INTERVAL * 2);
    go.send(()).expect("the process waits");
    assert_eq!(read(client), (200, b"ok".to_vec()));
    fixture.finish();
}

fn an_answer_that_stops_in_the_middle_ends_the_request_and_not_the_process(driver: DriverChoice) {
    let stops = |text: &'static str| -> ConnectionScript {
        Box::new(move |stream| {
            read_head(stream);
            send_text(stream, text);
            wait_closed(stream);
        })
    };
    let sized = stops("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
    let chunked = stops("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    let fixture = UpstreamFixture::new(driver, Duration::from_millis(200), vec![sized, chunked]);
    fixture.assert_status(GET, Status::GatewayTimeout);
    let (status, body) = fixture.round_trip(GET);
    assert!(status == 200 && !body.ends_with(b"0\r\n\r\n"), "{}", body.escape_ascii());
    assert_eq!(fixture.finish(), (0, 0));
}

fn an_early_answer_between_two_pieces_of_a_body_is_not_lost_on_a_reused_connection(driver: DriverChoice) {
    let (answered, is_answered) = mpsc::channel();
    let script: ConnectionScript = Box::new(move |stream| {
        read_head(stream);
        send_text(stream, OK);
        read_head(stream);
        stream.read_exact(&mut [0; 70_000]).expect("the first piece");
        send_text(
            stream,
            "HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno",
        );
        stream.shutdown(std::net::Shutdown::Both).expect("it is open");
        answered.send(()).expect("the test waits");
    });
    let configure = |config: &mut ServeConfig| config.requests_held_max = 150_000;
    let fixture = UpstreamFixture::configured(driver, HANG_TIMEOUT, 1, configure, |listener| {
        run_scripts(listener, vec![script])
    });
    fixture.assert_ok(GET);
    let head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 500000\r\n\r\n";
    let mut client = fixture.send(&format!("{head}{}", "x".repeat(70_000)));
    is_answered.recv().expect("it closes");
    // The server may have sent its response and closed.
    let _ = client.write_all(&[0; 1000]);
    assert_eq!(read(client), (413, b"no".to_vec()));
    fixture.finish();
}

fn a_process_that_accepts_no_connections_is_replaced(driver: DriverChoice) {
    // Its socket is closed when the list of scripts ends.
    let fixture = UpstreamFixture::new(driver, HANG_TIMEOUT, Vec::new());
    eventually("the listener is closed", || fixture.script_thread.is_finished());
    fixture.assert_status(GET, Status::BadGateway);
    fixture.finish_after_killing(1);

    let (done, is_done) = mpsc::channel();
    let (full, is_full) = mpsc::channel();
    let fixture = UpstreamFixture::with(driver, Duration::from_millis(50), 1, |listener| {
        std::thread::spawn(move || {
            let address = listener.local_addr().expect("it has one");
            let path = address.as_pathname().expect("a path");
            // Accepts the supervisor's readiness checks, to empty the backlog.
            listener.set_nonblocking(true).expect("a socket takes options");
            while listener.accept().is_ok() {}
            rustix::net::listen(&listener, 0).expect("a smaller queue");
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

fn a_process_that_does_not_read_a_body_in_time_is_killed(driver: DriverChoice) {
    let (done, is_done) = mpsc::channel::<()>();
    let non_reading: ConnectionScript = Box::new(move |stream| {
        read_head(stream);
        is_done.recv().expect_err("the test sends nothing");
    });
    let fixture = UpstreamFixture::new(driver, Duration::from_millis(100), vec![non_reading]);
    let mut client = fixture.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    let mut sending = client.try_clone().expect("a descriptor");
    let sender = std::thread::spawn(move || {
        // The server closes the connection in the middle.
        let _ = sending.write_all(&vec![0; 1_000_000]);
    });
    let mut status = [0; 12];
    client.read_exact(&mut status).expect("an answer");
    assert_eq!(&status, b"HTTP/1.1 504");
    drop(client);
    sender.join().expect("it does not panic");
    drop(done);
    fixture.finish_after_killing(1);
}

/// Sends a response of that many bytes, as far as it is read.
fn respond_long(length: usize) -> ConnectionScript {
    Box::new(move |stream| {
        read_head(stream);
        send_text(
            stream,
            &format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"),
        );
        let piece = vec![b'x'; 1 << 20];
        let _ = (0..length >> 20).try_for_each(|_| stream.write_all(&piece));
    })
}

fn a_client_that_reads_a_response_too_slowly_is_disconnected(driver: DriverChoice) {
    const LONG: usize = 40 << 20;
    let configure = |config: &mut ServeConfig| {
        config.timeouts.body_grace = Duration::from_millis(100);
        config.timeouts.body_rate_min = u64::MAX;
        config.send_buffer = Some(16_384);
        // Only the pieces in flight are held.
        config.responses_held_max = 200_000;
    };
    let scripts = vec![respond_long(LONG), respond_ok()];
    let fixture = UpstreamFixture::configured(driver, HANG_TIMEOUT, 1, configure, |listener| {
        run_scripts(listener, scripts)
    });
    let mut client = fixture.send(GET);
    let mut seen = 0;
    loop {
        std::thread::park_timeout(Duration::from_millis(1));
        match client.read(&mut [0; 4096]) {
            Ok(0) => break,
            Ok(count) => seen += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                break;
            }
        }
    }
    assert!(seen < LONG, "it took its time for all of it");
    fixture.assert_ok(GET);
    assert_eq!(fixture.finish(), (0, 0));
}

fn a_long_answer_without_room_is_refused_before_it_begins(driver: DriverChoice) {
    let configure = |config: &mut ServeConfig| config.responses_held_max = 10_000;
    let scripts = vec![respond_long(1 << 20), respond_ok()];
    let fixture = UpstreamFixture::configured(driver, HANG_TIMEOUT, 1, configure, |listener| {
        run_scripts(listener, scripts)
    });
    fixture.assert_status(GET, Status::ServiceUnavailable);
    fixture.assert_ok(GET);
    assert_eq!(fixture.finish(), (0, 0));
}

fn slow_readers_stop_the_process_and_hold_no_more_than_their_slots(driver: DriverChoice) {
    const SLOTS: usize = 3;
    const READERS: usize = CLIENTS_MAX as usize;
    const LONG: usize = 40 << 20;
    let (taken, is_taken) = mpsc::channel();
    let configure = |config: &mut ServeConfig| config.timeouts.body_grace = HANG_TIMEOUT;
    let fixture = UpstreamFixture::configured(driver, HANG_TIMEOUT, SLOTS, configure, |listener| {
        std::thread::spawn(move || {
            let answers: Vec<_> = (0..READERS)
                .map(|_| {
                    let mut stream = accept(&listener);
                    read_head(&mut stream);
                    taken.send(()).expect("the test counts");
                    std::thread::spawn(move || {
                        send_text(
                            &mut stream,
                            &format!(
                                "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {LONG}\r\n\r\n"
                            ),
                        );
                        let piece = vec![b'x'; 1 << 20];
                        (0..LONG >> 20)
                            .for_each(|_| stream.write_all(&piece).expect("it is taken in the end"));
                    })
                })
                .collect();
            answers.into_iter().for_each(|answer| answer.join().expect("it does not panic"));
        })
    });
    let readers: Vec<TcpStream> = (0..READERS).map(|_| fixture.send(GET)).collect();
    (0..SLOTS).for_each(|_| is_taken.recv().expect("a slot each"));
    eventually("the others wait", || fixture.requests().queued == (READERS - SLOTS) as u64);
    assert_eq!(fixture.requests().busy, SLOTS as u64);
    assert!(is_taken.try_recv().is_err(), "no more connections than slots");
    for reader in readers {
        let (status, body) = read(reader);
        assert_eq!((status, body.len()), (200, LONG));
    }
    fixture.finish();
}
