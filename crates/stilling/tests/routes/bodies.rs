//! Tests of request bodies: complete in the handler, however they arrive; bounded.

use stilling::DriverChoice;
use stilling::http::{Method, Request, Response, Routes};

use crate::support::{HttpTestServer, get, pattern};

on_both_drivers!(
    a_body_is_whole_when_the_handler_has_it,
    expect_continue_is_answered_100_or_refused,
    a_body_over_the_limit_is_refused,
);

fn echo(request: &Request<'_>) -> Response {
    Response::bytes("application/octet-stream", request.body())
}

fn echoes() -> Routes {
    Routes::new().inline(Method::Post, "/in", echo).worker(Method::Post, "/work", echo).inline(
        Method::Get,
        "/good",
        |_| "good",
    )
}

fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in body.chunks(size) {
        out.extend(format!("{:x};ext=1\r\n", chunk.len()).as_bytes());
        out.extend(chunk);
        out.extend(b"\r\n");
    }
    out.extend(b"0\r\nX-Trailer: t\r\n\r\n");
    out
}

fn a_body_is_whole_when_the_handler_has_it(driver: DriverChoice) {
    let server = HttpTestServer::with(driver, echoes(), |config| config.limits.body_size_max = 1 << 20);
    for path in ["/in", "/work"] {
        let mut peer = server.connect();
        for size in [0, 1, 100, 4096, 65_536, 1 << 20] {
            let body = pattern(size);
            let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\n");
            let sized = [format!("{head}Content-Length: {size}\r\n\r\n").as_bytes(), &body].concat();
            let mut hand = peer.clone_writer();
            // Sent from another thread: the server may answer before the last bytes arrive.
            let answer = std::thread::scope(|scope| {
                scope.spawn(|| hand.send(&sized));
                peer.answer()
            });
            assert!(answer.status == 200 && answer.body == body, "{path}, {size} bytes, sized");
            let head = format!("{head}Transfer-Encoding: chunked\r\n\r\n");
            let in_chunks = [head.as_bytes(), &chunked(&body, size / 7 + 1)].concat();
            let answer = std::thread::scope(|scope| {
                scope.spawn(|| hand.send(&in_chunks));
                peer.answer()
            });
            assert!(answer.status == 200 && answer.body == body, "{path}, {size} bytes, chunked");
        }
        // Byte by byte, then together with the next request.
        let trickle = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
        trickle.bytes().for_each(|byte| peer.send([byte]));
        assert_eq!(peer.answer().text(), "abc");
        peer.send(trickle + &get("/good"));
        assert_eq!((peer.answer().text(), peer.answer().text()), ("abc", "good"));
    }
    server.finish();
}

/// RFC 9110 §10.1.1: 100 if the body is needed, otherwise the final response.
fn expect_continue_is_answered_100_or_refused(driver: DriverChoice) {
    let server = HttpTestServer::with(driver, echoes(), |config| config.requests_held_max = 300);
    let ask = |path: &str, length: usize| {
        let mut peer = server.connect();
        peer.send(format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
        ));
        peer
    };
    for path in ["/in", "/work"] {
        let mut peer = ask(path, 5);
        assert_eq!(peer.head().status, 100);
        assert_eq!(peer.ask("hello").text(), "hello");
        assert_eq!(peer.ask(get("/good")).text(), "good");
    }
    for (path, length, status) in [("/nothing", 5, 404), ("/good", 5, 405), ("/in", 1 << 30, 413)] {
        let mut peer = ask(path, length);
        let answer = peer.answer();
        assert_eq!((answer.status, answer.field("Connection")), (status, Some("close")), "{path}");
        peer.half_close();
        assert_eq!(peer.rest(), b"", "{path}");
    }
    // There is no memory even for the head: the body is not requested.
    let mut peer = server.connect();
    let padding = "x".repeat(300);
    let head = "POST /in HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n";
    let answer = peer.ask(format!("{head}X-Padding: {padding}\r\n\r\n"));
    assert_eq!((answer.status, answer.field("Retry-After")), (503, Some("1")));
    drop(peer);
    server.finish();
}

fn a_body_over_the_limit_is_refused(driver: DriverChoice) {
    const MAX: usize = 10_000;
    let server = HttpTestServer::with(driver, echoes(), |config| config.limits.body_size_max = MAX as u64);
    for path in ["/in", "/work"] {
        let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\n");
        let body = pattern(MAX + 1);
        let declared = format!("{head}Content-Length: {}\r\n\r\n", MAX + 1).into_bytes();
        let chunks =
            [format!("{head}Transfer-Encoding: chunked\r\n\r\n").as_bytes(), &chunked(&body, 1000)].concat();
        for request in [declared, chunks] {
            let mut peer = server.connect();
            let answer = peer.ask(request);
            assert_eq!((answer.status, answer.field("Connection")), (413, Some("close")));
            peer.half_close();
            assert_eq!(peer.rest(), b"");
        }
        let mut peer = server.connect();
        let exact = [format!("{head}Content-Length: {MAX}\r\n\r\n").as_bytes(), &body[..MAX]].concat();
        assert!(peer.ask(exact).body == body[..MAX]);
    }
    server.finish();
}
