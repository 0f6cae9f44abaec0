//! Tests of the memory of waiting requests: bounded, and released by its holder.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use stilling::DriverChoice;
use stilling::http::{Method, Response, Routes, Status};

use crate::support::{HttpTestServer, TestPeer, eventually, get, pattern};

on_both_drivers!(
    requests_without_memory_get_503_with_retry_after,
    disconnected_clients_release_their_memory,
    an_expired_request_in_the_queue_holds_no_memory,
    responses_beyond_the_memory_limit_are_refused,
    pages_that_wait_for_slow_clients_count_like_answers,
);

const HEAD: &str = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 40000\r\n\r\n";

fn echoes() -> Routes {
    Routes::new().worker(Method::Post, "/echo", |request| Response::bytes("a/b", request.body())).inline(
        Method::Get,
        "/good",
        |_| "good",
    )
}

/// A server of one shard with memory for two and a half of these requests.
fn small(driver: DriverChoice, routes: Routes) -> HttpTestServer {
    HttpTestServer::with(driver, routes, |config| {
        (config.shards, config.worker_threads) = (1, 1);
        config.requests_held_max = 100_000;
    })
}

/// A client that has sent its body except for the last byte.
fn half(server: &HttpTestServer) -> TestPeer {
    let before = server.held();
    let mut peer = server.connect();
    peer.send(HEAD);
    peer.send(&pattern(40_000)[..39_999]);
    eventually("the body is held", || (server.held() >= before + 39_999 + HEAD.len() as u64).then_some(()));
    peer
}

/// Row 4.9's like, for memory: the request is shed with `Retry-After`, and the others are unaffected.
fn requests_without_memory_get_503_with_retry_after(driver: DriverChoice) {
    let server = small(driver, echoes());
    let mut others = [half(&server), half(&server)];
    let mut third = server.connect();
    third.send(HEAD);
    third.send(pattern(40_000));
    let answer = third.answer();
    assert_eq!((answer.status, answer.field("Retry-After")), (503, Some("1")));
    assert_eq!(answer.field("Connection"), Some("close"));
    third.half_close();
    assert_eq!(third.rest(), b"", "the connection ends in good order");
    assert!(server.held() <= 100_000);
    assert_eq!(server.overview().http(|counters| &counters.requests_shed), 1);
    // Requests without a need for memory are answered meanwhile.
    assert_eq!(server.connect().ask(get("/good")).text(), "good");
    let body = pattern(40_000);
    for peer in &mut others {
        assert!(peer.ask(&body[39_999..]).body == body);
    }
    eventually("all is given back", || (server.held() == 0).then_some(()));
    let mut again = half(&server);
    assert!(again.ask(&body[39_999..]).body == body);
    drop((others, again));
    server.finish();
}

/// Row 4.34: for any kind of disconnect.
fn disconnected_clients_release_their_memory(driver: DriverChoice) {
    let server = small(driver, echoes());
    for _ in 0..10 {
        let (reset, closed) = (half(&server), half(&server));
        reset.reset();
        drop(closed);
        eventually("all is given back", || (server.held() == 0).then_some(()));
    }
    assert_eq!(server.overview().http(|counters| &counters.requests_shed), 0);
    server.finish();
}

/// Row 4.12: a request that no worker took in time leaves the queue and releases its memory at once, however long the
/// workers are busy.
fn an_expired_request_in_the_queue_holds_no_memory(driver: DriverChoice) {
    let (release, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let routes = echoes().worker(Method::Get, "/stuck", move |_| {
        let _ = wait.lock().expect("no test panics here").recv();
        "done"
    });
    let server = HttpTestServer::with(driver, routes, |config| {
        (config.shards, config.worker_threads) = (1, 1);
        config.requests_held_max = 100_000;
        config.queue_age_max = Duration::from_millis(20);
    });
    let mut blocked = server.connect();
    blocked.send(get("/stuck"));
    eventually("the worker is busy", || (server.overview().pool.counters().busy == 1).then_some(()));
    let held = server.held();
    let request = [HEAD.as_bytes(), &pattern(40_000)].concat();
    let mut peer = server.connect();
    for expired in 1..=5 {
        assert_eq!(peer.ask(&request).status, 503);
        let counters = server.overview().pool.counters();
        assert_eq!((counters.queued, counters.expired, server.held()), (0, expired, held));
    }
    assert_eq!(server.overview().http(|counters| &counters.requests_shed), 0);
    assert_eq!(server.overview().http(|counters| &counters.jobs_expired), 5);
    drop((peer, release));
    assert_eq!(blocked.answer().text(), "done");
    drop(blocked);
    assert_eq!(server.finish().http(|counters| &counters.late_results), 0);
}

/// Rows 4.7, 4.9: unread responses of slow clients are bounded; later requests get `Retry-After`, and earlier ones
/// are answered completely.
fn responses_beyond_the_memory_limit_are_refused(driver: DriverChoice) {
    const LONG: usize = 600_000;
    const MOST: usize = 1_000_000;
    let routes = Routes::new()
        .inline(Method::Get, "/in", |_| Response::bytes("a/b", pattern(LONG)))
        .worker(Method::Get, "/job", |_| Response::bytes("a/b", pattern(LONG)))
        .worker(Method::Get, "/open", |_| Response::stream("a/b", std::io::Cursor::new(pattern(LONG))))
        .inline(Method::Get, "/sized", |_| {
            Response::stream_sized("a/b", LONG as u64, std::io::Cursor::new(pattern(LONG)))
        })
        .inline(Method::Get, "/good", |_| "good");
    let server = HttpTestServer::with(driver, routes, |config| {
        (config.shards, config.worker_threads) = (1, 1);
        (config.send_buffer, config.responses_held_max) = (Some(16_384), MOST);
    });
    let shed = || server.overview().http(|counters| &counters.responses_shed);
    let mut slow = TestPeer::connect_with_small_buffer(server.address());
    slow.send(get("/in"));
    eventually("the answer waits", || (server.responses_held() == LONG as u64).then_some(()));
    // A stream counts as one piece, however long it is; streams use the remaining memory.
    let mut streams = Vec::new();
    while shed() == 0 {
        let mut stream = TestPeer::connect_with_small_buffer(server.address());
        stream.send(get(["/open", "/sized"][streams.len() % 2]));
        let head = stream.head();
        streams.push((stream, head));
        assert!(server.responses_held() <= MOST as u64);
    }
    let (mut last, refused) = streams.pop().expect("one was refused");
    assert_eq!((refused.status, refused.field("Retry-After")), (503, Some("1")));
    assert!(streams.len() >= 8, "{}", streams.len());
    assert_eq!(last.read_exactly("503 Service Unavailable\n".len()), b"503 Service Unavailable\n");
    // On the same connection: requests without a need for memory are answered, others are refused again.
    for (path, status) in [("/good", 200), ("/job", 503), ("/in", 503), ("/metrics", 200), ("/sized", 503)] {
        assert_eq!(last.ask(get(path)).status, status, "{path}");
    }
    assert_eq!((shed(), server.answered(Status::ServiceUnavailable)), (4, 4));
    // The body of a response to HEAD is not sent, so nothing waits.
    last.send(get("/in").replace("GET", "HEAD"));
    assert_eq!(last.head().status, 200);
    assert!(slow.answer().body == pattern(LONG));
    assert_eq!(last.ask(get("/job")).status, 200);
    let (mut open, head) = streams.swap_remove(0);
    assert_eq!(head.field("Transfer-Encoding"), Some("chunked"));
    let mut body = Vec::new();
    while let Some(chunk) = open.chunk() {
        body.extend(chunk);
    }
    assert!(body == pattern(LONG));
    drop((slow, open, last, streams));
    eventually("all is given back", || (server.responses_held() == 0).then_some(()));
    server.finish();
}

/// Rows 4.7, 4.9: admin pages count as responses and are bounded with them.
fn pages_that_wait_for_slow_clients_count_like_answers(driver: DriverChoice) {
    const MOST: usize = 60_000;
    let routes = Routes::new().inline(Method::Get, "/good", |_| "good");
    let server = HttpTestServer::with(driver, routes, |config| {
        (config.shards, config.worker_threads) = (1, 1);
        (config.send_buffer, config.responses_held_max) = (Some(4096), MOST);
        // Output in the engine's store is not counted here, so the store is minimal.
        config.engine.output_bytes_max = 65_536;
    });
    let shed = || server.overview().http(|counters| &counters.responses_shed);
    let mut slow = Vec::new();
    while shed() == 0 {
        assert!(slow.len() < 100, "pages wait and are not counted");
        let mut peer = TestPeer::connect_with_small_buffer(server.address());
        peer.send(get(["/metrics", "/status"][slow.len() % 2]).repeat(20));
        let head = peer.head();
        assert!(server.responses_held() <= MOST as u64, "{} bytes are held", server.responses_held());
        slow.push((peer, head));
    }
    assert!(slow.iter().any(|(_, head)| head.status == 200), "none was answered");
    assert_eq!(server.connect().ask(get("/good")).status, 200);
    drop(slow);
    eventually("all is given back", || (server.responses_held() == 0).then_some(()));
    assert_eq!(server.connect().ask(get("/metrics")).status, 200);
    server.finish();
}
