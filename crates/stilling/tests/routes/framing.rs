//! For any response of a handler, the next response on the connection is framed correctly.

use stilling::DriverChoice;
use stilling::http::{Method, Request, Response, Routes, Status};

use crate::support::{HttpTestServer, TestPeer, get, pattern};

on_both_drivers!(
    an_answer_that_would_break_the_framing_is_a_500,
    statuses_without_a_body_have_none,
    answers_of_every_kind_come_in_order,
    many_fields_are_sent_and_too_many_refused,
);

#[track_caller]
fn assert_usable(peer: &mut TestPeer, after: &str) {
    assert_eq!(peer.ask(get("/good")).text(), "good", "after {after}");
}

fn an_answer_that_would_break_the_framing_is_a_500(driver: DriverChoice) {
    fn answer(request: &Request<'_>) -> Response {
        let ok = Response::text("text");
        match request.query("do").as_deref() {
            Some("value") => ok.with_header("X-A", "b\r\nSet-Cookie: c"),
            Some("line feed") => ok.with_header("X-A", "b\nc"),
            Some("nul") => ok.with_header("X-A", "b\0c"),
            Some("name") => ok.with_header("X-A: b\r\nX-C", "d"),
            Some("blank") => ok.with_header("X A", "b"),
            Some("nameless") => ok.with_header("", "b"),
            Some("type") => ok.with_type("text/plain\r\nX-A: b"),
            Some("second type") => ok.with_header("Content-Type", "text/html"),
            Some("length") => ok.with_header("content-length", "2"),
            Some("coding") => ok.with_header("Transfer-Encoding", "chunked"),
            Some("connection") => ok.with_header("Connection", "close"),
            Some("date") => ok.with_header("Date", "today"),
            Some("continue") => Response::new(Status::Continue),
            Some("switch") => Response::new(Status::SwitchingProtocols),
            _ => ok,
        }
    }
    let routes = Routes::new().inline(Method::Get, "/in", answer).worker(Method::Get, "/job", answer).inline(
        Method::Get,
        "/good",
        |_| "good",
    );
    let server = HttpTestServer::start(driver, routes);
    let mut peer = server.connect();
    for route in ["/in", "/job"] {
        for case in [
            "value",
            "line+feed",
            "nul",
            "name",
            "blank",
            "nameless",
            "type",
            "second+type",
            "length",
            "coding",
            "connection",
            "date",
            "continue",
            "switch",
        ] {
            let answer = peer.ask(get(&format!("{route}?do={case}")));
            assert_eq!((answer.status, answer.text()), (500, "500 Internal Server Error\n"), "{case}");
            assert!(answer.field("X-A").is_none() && !answer.head.contains("Set-Cookie"), "{}", answer.head);
            assert_usable(&mut peer, case);
        }
    }
    drop(peer);
    server.finish();
}

/// RFC 9110 §15.3.5, §15.4.5; RFC 9112 §6.1, §6.3.
fn statuses_without_a_body_have_none(driver: DriverChoice) {
    fn answer(request: &Request<'_>) -> Response {
        let status = match request.param("status").as_deref() {
            Some("204") => Status::NoContent,
            _ => Status::NotModified,
        };
        let source = std::io::Cursor::new(pattern(100_000));
        match request.param("body").as_deref() {
            Some("text") => Response::text("no one may see this"),
            Some("sized") => Response::stream_sized("a/b", 100_000, source),
            Some("unsized") => Response::stream("a/b", source),
            _ => Response::new(status),
        }
        .with_status(status)
    }
    let routes = Routes::new()
        .inline(Method::Get, "/in/{status}/{body}", answer)
        .worker(Method::Get, "/job/{status}/{body}", answer)
        .inline(Method::Get, "/good", |_| "good");
    let server = HttpTestServer::start(driver, routes);
    let mut peer = server.connect();
    for route in ["in", "job"] {
        for status in [204, 304] {
            for body in ["none", "text", "sized", "unsized"] {
                let answer = peer.ask(get(&format!("/{route}/{status}/{body}")));
                assert_eq!(answer.status, status);
                assert_eq!(answer.field("Content-Length"), None, "{}", answer.head);
                assert_eq!(answer.field("Transfer-Encoding"), None, "{}", answer.head);
                assert_usable(&mut peer, body);
            }
        }
    }
    drop(peer);
    server.finish();
}

/// Rows 4.3, 4.15: responses keep the order of their requests, whatever their duration.
fn answers_of_every_kind_come_in_order(driver: DriverChoice) {
    const ROUNDS: usize = 40;
    let long = pattern(150_000);
    let copy = move || std::io::Cursor::new(pattern(150_000));
    let (of_sized, of_unsized) = (copy, copy);
    let routes = Routes::new()
        .inline(Method::Get, "/in", |_| "in")
        .worker(Method::Get, "/job", |_| "job")
        .inline(Method::Post, "/echo", |request| Response::bytes("a/b", request.body()))
        .inline(Method::Get, "/long", {
            let long = long.clone();
            move |_| Response::bytes("a/b", &long[..])
        })
        .worker(Method::Get, "/sized", move |_| Response::stream_sized("a/b", 150_000, of_sized()))
        .inline(Method::Get, "/unsized", move |_| Response::stream("a/b", of_unsized()));
    let server = HttpTestServer::start(driver, routes);
    let mut peer = server.connect();
    let post = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
    let kinds: [(String, u16, &[u8]); 8] = [
        (get("/in"), 200, b"in"),
        (get("/job"), 200, b"job"),
        (get("/sized"), 200, &long),
        (post.to_owned(), 200, b"hello"),
        (get("/nothing"), 404, b"404 Not Found\n"),
        (get("/unsized"), 200, &long),
        (get("/long"), 200, &long),
        (get("/livez"), 200, b"alive\n"),
    ];
    let mut hand = peer.clone_writer();
    let all: String = kinds.iter().map(|(request, ..)| request.as_str()).collect();
    std::thread::scope(|scope| {
        scope.spawn(move || (0..ROUNDS).for_each(|_| hand.send(&all)));
        for round in 0..ROUNDS {
            for (request, status, body) in &kinds {
                let answer = peer.answer();
                assert_eq!(answer.status, *status, "round {round}, {request}");
                assert!(answer.body == *body, "round {round}, {request}: another body");
            }
        }
    });
    assert!(peer.is_silent(), "more than was asked for");
    drop(peer);
    server.finish();
}

fn many_fields_are_sent_and_too_many_refused(driver: DriverChoice) {
    let routes = Routes::new()
        .inline(Method::Get, "/{count}", |request| {
            let count: usize = request.param("count").and_then(|text| text.parse().ok()).unwrap_or(0);
            (0..count).fold(Response::text("t"), |response, at| response.with_header("X-N", at.to_string()))
        })
        .inline(Method::Get, "/type", |_| Response::text("t").with_type("x".repeat(100_000)))
        .inline(Method::Get, "/good", |_| "good");
    let server = HttpTestServer::start(driver, routes);
    let mut peer = server.connect();
    for (count, status) in [(0, 200), (11, 200), (12, 200), (13, 200), (500, 200), (5000, 500)] {
        let answer = peer.ask(get(&format!("/{count}")));
        assert_eq!(answer.status, status, "{count} fields");
        let expected: Vec<String> =
            (0..if status == 200 { count } else { 0 }).map(|at| at.to_string()).collect();
        let found: Vec<&str> = answer.head.lines().filter_map(|line| line.strip_prefix("X-N: ")).collect();
        assert_eq!(found, expected);
    }
    assert_eq!(peer.ask(get("/type")).status, 500);
    assert_usable(&mut peer, "a type without end");
    drop(peer);
    server.finish();
}
