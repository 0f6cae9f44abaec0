//! Tests of responses that are longer than a session may send at once, and of slow clients.

use std::time::Duration;

use stilling::DriverChoice;
use stilling::engine::CloseReason;
use stilling::http::{Method, Response, Routes};

use crate::support::{HttpTestServer, TestPeer, eventually, get, pattern};

on_both_drivers!(
    a_slow_reader_gets_every_byte,
    a_client_that_stops_reading_is_disconnected,
    every_length_around_a_bound_is_whole,
    a_client_that_disconnects_midway_leaks_nothing,
);

/// Bytes of a long response.
const LONG: usize = 10_000_000;

fn long_answers() -> Routes {
    let fixed: &'static [u8] = pattern(LONG).leak();
    let text: &'static str = "0123456789\n".repeat(LONG / 11).leak();
    Routes::new()
        .inline(Method::Get, "/in", move |_| Response::bytes("a/b", fixed))
        .worker(Method::Get, "/work", move |_| Response::bytes("a/b", fixed))
        .inline(Method::Get, "/static", move |_| text)
        .inline(Method::Get, "/good", |_| "good")
}

/// Row 4.36: no byte is lost or repeated, however few the system takes at a time.
fn a_slow_reader_gets_every_byte(driver: DriverChoice) {
    let server = HttpTestServer::with(driver, long_answers(), |config| config.send_buffer = Some(16_384));
    let expected = pattern(LONG);
    let mut peer = TestPeer::connect_with_small_buffer(server.address());
    // The next request waits behind the long response.
    peer.send(get("/in") + &get("/work") + &get("/static") + &get("/good"));
    for path in ["/in", "/work"] {
        let answer = peer.head();
        assert_eq!(answer.field("Content-Length"), Some("10000000"), "{path}");
        for (at, piece) in expected.chunks(9973).enumerate() {
            assert!(peer.read_exactly(piece.len()) == piece, "{path}: another piece {at}");
        }
    }
    let text = peer.answer();
    assert!(text.text().as_bytes().chunks(11).all(|line| line == b"0123456789\n"));
    assert_eq!(peer.answer().text(), "good");
    drop(peer);
    let overview = server.finish();
    assert!(overview.engine(|counters| &counters.blocked_sends) > 100, "the reader was not slow");
}

/// Row 4.35: unread output is bounded, then the connection times out.
fn a_client_that_stops_reading_is_disconnected(driver: DriverChoice) {
    const SLOW_CLIENTS: u64 = 8;
    let server = HttpTestServer::with(driver, long_answers(), |config| {
        config.send_buffer = Some(16_384);
        config.engine.write_timeout = Duration::from_millis(500);
    });
    let mut slow_clients: Vec<TestPeer> =
        (0..SLOW_CLIENTS).map(|_| TestPeer::connect_with_small_buffer(server.address())).collect();
    for (peer, path) in slow_clients.iter_mut().zip(["/in", "/work", "/static"].iter().cycle()) {
        peer.send(get(path));
    }
    eventually("all are cut off", || {
        assert!(server.unsent() <= SLOW_CLIENTS * 64 * 1024, "{} bytes are held", server.unsent());
        (server.closed(CloseReason::WriteTimeout) == SLOW_CLIENTS).then_some(())
    });
    assert!(slow_clients.iter_mut().all(|peer| peer.read_until_closed().len() < LONG));
    assert_eq!(server.connect().ask(get("/good")).text(), "good");
    server.finish();
}

fn every_length_around_a_bound_is_whole(driver: DriverChoice) {
    let answer = |request: &stilling::http::Request<'_>| {
        let length = request.param("length").and_then(|text| text.parse().ok()).unwrap_or(0);
        (length, std::io::Cursor::new(pattern(length)))
    };
    let routes = Routes::new()
        .inline(Method::Get, "/bytes/{length}", move |request| {
            Response::bytes("a/b", answer(request).1.into_inner())
        })
        .worker(Method::Get, "/sized/{length}", move |request| {
            let (length, source) = answer(request);
            Response::stream_sized("a/b", length as u64, source)
        })
        .inline(Method::Get, "/sized-in/{length}", move |request| {
            let (length, source) = answer(request);
            Response::stream_sized("a/b", length as u64, source)
        })
        .worker(Method::Get, "/unsized/{length}", move |request| Response::stream("a/b", answer(request).1))
        .inline(Method::Get, "/unsized-in/{length}", move |request| {
            Response::stream("a/b", answer(request).1)
        });
    for workers in [0, 2] {
        let server = HttpTestServer::with(driver, routes.clone(), |config| config.worker_threads = workers);
        let mut peer = server.connect();
        for bound in [0, 16_384, 32_768, 65_536, 131_072] {
            for length in [bound.max(2) - 2, bound.max(1) - 1, bound, bound + 1] {
                for kind in ["bytes", "sized", "sized-in", "unsized", "unsized-in"] {
                    let found = peer.ask(get(&format!("/{kind}/{length}")));
                    assert!(found.status == 200 && found.body == pattern(length), "{kind}, {length} bytes");
                }
            }
        }
        drop(peer);
        server.finish();
    }
}

/// Row 4.34.
fn a_client_that_disconnects_midway_leaks_nothing(driver: DriverChoice) {
    let server = HttpTestServer::with(driver, long_answers(), |config| config.send_buffer = Some(16_384));
    for round in 0..10 {
        let mut peer = TestPeer::connect_with_small_buffer(server.address());
        peer.send(get(["/in", "/work", "/static"][round % 3]));
        peer.read_exactly(1000 * round);
        if round % 2 == 0 {
            peer.reset();
        }
    }
    eventually("all are gone", || (server.overview().engine(|counters| &counters.open) == 0).then_some(()));
    assert_eq!(server.unsent(), 0);
    server.finish();
}
