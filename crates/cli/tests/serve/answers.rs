//! Responses to valid requests, byte for byte.

use std::time::{Duration, Instant};

use crate::support::{DriverUnderTest, ServerUnderTest};

on_both_drivers!(
    a_plain_request_gets_exactly_57_bytes_and_the_end,
    a_kept_connection_is_answered_again_and_again,
    pipelined_requests_are_answered_in_their_order,
    an_answer_to_head_has_no_body,
    bodies_are_read_to_their_end,
    slow_work_takes_its_time_in_a_worker,
    without_workers_slow_is_fast,
);

/// The whole response of the demo routes to a connection that closes.
const OK_CLOSE: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// Rows 4.16, 4.40: the 57 bytes, then the end; also without a version.
fn a_plain_request_gets_exactly_57_bytes_and_the_end(driver: DriverUnderTest) {
    assert_eq!(OK_CLOSE.len(), 57);
    let server = ServerUnderTest::start(driver, "-D 1");
    let mut asked = 0;
    for route in ["fast", "slow"] {
        for rest in [
            " HTTP/1.0\r\n\r\n",
            " HTTP/1.0\r\nHost: a\r\nUser-Agent: ApacheBench/2.3\r\nAccept: */*\r\n\r\n",
            " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            " HTTP/1.1\r\nHost: a\r\nconnection: Close, x\r\n\r\n",
            "\r\n\r\n",
        ] {
            for method in ["GET", "HEAD", "POST"] {
                let sized = if method == "POST" { "Content-Length: 0\r\n\r\n" } else { "\r\n" };
                // Without a version GET is the only method.
                if rest == "\r\n\r\n" && method != "GET" {
                    continue;
                }
                let request = format!("{method} /test/{route}{rest}");
                let request = match request.strip_suffix("\r\n") {
                    Some(head) if rest != "\r\n\r\n" => format!("{head}{sized}"),
                    _ => request,
                };
                let mut peer = server.connect();
                peer.send(&request);
                let answer = peer.rest();
                assert_eq!(
                    answer.escape_ascii().to_string(),
                    OK_CLOSE.escape_ascii().to_string(),
                    "{request}"
                );
                asked += 1;
            }
        }
    }
    let metrics = server.finish();
    assert_eq!((metrics.closed("done"), metrics.answers(200)), (asked, asked));
}

/// Row 4.15: a connection serves many requests; responses carry the fields that the client's version needs.
fn a_kept_connection_is_answered_again_and_again(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-D 1");
    let mut peer = server.connect();
    for route in ["fast", "slow"].repeat(20) {
        let answer = peer.ask(format!("GET /test/{route} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!((answer.status, answer.field("Connection")), (200, None));
        assert_eq!(answer.field("Content-Length"), Some("0"));
        assert!(answer.field("Date").is_some_and(|date| date.ends_with(" GMT")), "{answer:?}");
    }
    let mut old = server.connect();
    for route in ["fast", "slow"].repeat(5) {
        let answer = old.ask(format!("GET /test/{route} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
        assert_eq!((answer.status, answer.field("Connection")), (200, Some("keep-alive")));
    }
    drop((peer, old));
    assert_eq!(server.finish().value("accepted_total"), 2);
}

/// Row 4.15: answers keep the order of the requests, although slow requests are among fast ones.
fn pipelined_requests_are_answered_in_their_order(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-D 1");
    let round = [
        ("GET /livez", 200, "alive\n"),
        ("GET /test/slow", 200, ""),
        ("GET /nothing", 404, "404 Not Found\n"),
        ("GET /test/fast", 200, ""),
        ("DELETE /livez", 405, "405 Method Not Allowed\n"),
        ("GET /readyz", 200, "ready\n"),
    ];
    let mut requests = String::new();
    for (line, ..) in round.repeat(50) {
        requests += &format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    let mut peer = server.connect();
    peer.send(&requests);
    for (line, status, body) in round.repeat(50) {
        let answer = peer.answer();
        assert_eq!((answer.status, answer.text()), (status, body), "to {line}");
    }
    drop(peer);
    server.finish();
}

/// Row 4.15: a response to HEAD has the length of the GET response and no body.
fn an_answer_to_head_has_no_body(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "");
    let mut peer = server.connect();
    for (path, status, length) in [("/livez", 200, "6"), ("/nothing", 404, "14"), ("/test/fast", 200, "0")] {
        peer.send(format!("HEAD {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let answer = peer.head();
        assert_eq!((answer.status, answer.field("Content-Length")), (status, Some(length)), "{path}");
    }
    // An erroneous body would be read here instead.
    assert_eq!(peer.ask("GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").text(), "alive\n");
    drop(peer);
    server.finish();
}

/// Row 4.15: the next request begins behind a body of any form.
fn bodies_are_read_to_their_end(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-D 1");
    let mut peer = server.connect();
    let long = "b".repeat(100_000);
    for route in ["fast", "slow"] {
        for body in [
            "Content-Length: 0\r\n\r\n".to_owned(),
            "Content-Length: 5\r\n\r\nGET /".to_owned(),
            format!("Content-Length: {}\r\n\r\n{long}", long.len()),
            "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
            "Transfer-Encoding: chunked\r\n\r\n5;a=b\r\nGET /\r\n1\r\n\n\r\n0\r\nX: y\r\n\r\n".to_owned(),
            format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{long}\r\n0\r\n\r\n", long.len()),
        ] {
            let request = format!("POST /test/{route} HTTP/1.1\r\nHost: a\r\n{body}");
            assert_eq!(peer.ask(&request).status, 200, "{}", &request[..80.min(request.len())]);
        }
    }
    drop(peer);
    server.finish();
}

/// Row 4.18: slow work takes the configured duration.
fn slow_work_takes_its_time_in_a_worker(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-w 1");
    let mut peer = server.connect();
    let begun = Instant::now();
    assert_eq!(peer.ask("GET /test/slow HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    assert!(begun.elapsed() >= Duration::from_millis(30), "{:?}", begun.elapsed());
    drop(peer);
    assert_eq!(server.finish().jobs("done"), 1);
}

/// Row 4.17: without workers slow requests are answered like fast ones.
fn without_workers_slow_is_fast(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-w 0 -D 4000000000");
    let mut peer = server.connect();
    for _ in 0..10 {
        assert_eq!(peer.ask("GET /test/slow HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    }
    assert_eq!(peer.ask("GET /test/panic HTTP/1.1\r\nHost: a\r\n\r\n").status, 500);
    drop(peer);
    let metrics = server.finish();
    assert_eq!((metrics.value("worker_threads"), metrics.jobs("done")), (0, 0));
}
