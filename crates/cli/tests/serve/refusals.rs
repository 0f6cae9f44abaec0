//! Responses to wrong requests: a status, a text with the error, and the end of the connection.

use crate::support::{DriverUnderTest, ServerUnderTest, TestPeer};

on_both_drivers!(
    a_malformed_request_is_answered_with_its_fault_and_the_connection_ends,
    a_request_for_what_is_not_there_costs_no_connection,
    limits_can_be_set,
    demo_routes_are_closed_on_non_loopback_addresses,
);

const GOOD: &str = "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n";

/// A malformed request, its status, and a required part of the text.
fn wrong_requests() -> Vec<(String, u16, &'static str)> {
    let get = |fields: &str| format!("GET /test/fast HTTP/1.1\r\n{fields}\r\n");
    let post = |rest: &str| format!("POST /test/fast HTTP/1.1\r\nHost: a\r\n{rest}");
    let fill = |size: usize| "x".repeat(size);
    let row = |request: &str, status, text| (request.to_owned(), status, text);
    vec![
        row("hello\r\n\r\n", 400, "a method made of token characters"),
        row("\0\0\0\0", 400, "found 0x00"),
        row("\u{16}\u{3}\u{1}\u{2}\u{0}", 400, "found 0x16"),
        row("GET /test/fast HTTP/1.1\nHost: a\n\n", 400, "found 0x0a"),
        row("GET /test/fast\n\n", 400, "found 0x0a"),
        row("GET /test/\0fast HTTP/1.1\r\nHost: a\r\n\r\n", 400, "at byte 10 of the head, found 0x00"),
        row("GET /test/fast HTTP/1.1\rHost: a\r\n\r\n", 400, "expected LF after CR"),
        row("GET  /test/fast HTTP/1.1\r\nHost: a\r\n\r\n", 400, "one space"),
        row("POST /test/fast\r\n\r\n", 400, "an HTTP version"),
        row("GET /test/fast HTTP/2.0\r\n\r\n", 505, "HTTP/1.0 or HTTP/1.1"),
        row("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "HTTP/1.0 or HTTP/1.1"),
        (get(""), 400, "a Host field"),
        (get("Host: a\r\nHost: a\r\n"), 400, "a single Host field"),
        (get("Host: a b\r\n"), 400, "host or host:port"),
        (get("Host: a\r\nX : y\r\n"), 400, "directly followed by ':'"),
        (get("Host: a\r\nX: y\r\n z\r\n"), 400, "does not start with a blank"),
        (get("Host: a\r\nX: \0\r\n"), 400, "found 0x00"),
        (get("Host: a\r\nX: y\nZ: z\r\n"), 400, "found 0x0a"),
        (get("Host: a\r\nExpect: x\r\n"), 417, "no expectation except 100-continue"),
        (get(&format!("Host: a\r\nX: {}\r\n", fill(16_384))), 431, "within head_size_max"),
        (get(&format!("Host: a\r\n{}", "X: y\r\n".repeat(100))), 431, "at most headers_max fields"),
        (format!("GET /{} HTTP/1.1\r\n", fill(16_384)), 414, "within head_size_max"),
        (post("Content-Length: 1048577\r\n\r\n"), 413, "a body within body_size_max"),
        (post("Content-Length: -1\r\n\r\n"), 400, "one decimal Content-Length"),
        (post("Content-Length: 1\r\nContent-Length: 1\r\n\r\n"), 400, "a single Content-Length"),
        (post("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"), 400, "either Content-Length or"),
        (post("Transfer-Encoding: gzip, chunked\r\n\r\n"), 501, "no transfer coding except chunked"),
        (post("Transfer-Encoding: chunked\r\n\r\nx\r\n"), 400, "1 to 16 hex digits"),
        (post("Transfer-Encoding: chunked\r\n\r\n1\nx"), 400, "of the chunk line"),
        (post("Transfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n"), 400, "CR LF after the chunk's data"),
        (post("Transfer-Encoding: chunked\r\n\r\n100001\r\n"), 413, "a body within body_size_max"),
    ]
}

/// Rows 4.14, 4.16, 4.32: as soon as the error is detected, also behind good requests on one connection.
fn a_malformed_request_is_answered_with_its_fault_and_the_connection_ends(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "");
    let wrong = wrong_requests();
    for (request, status, text) in &wrong {
        for before in [0, 3] {
            let mut peer = server.connect();
            peer.send(GOOD.repeat(before) + request);
            for _ in 0..before {
                assert_eq!(peer.answer().text(), "alive\n");
            }
            let answer = peer.answer();
            let shown = request.escape_default().to_string();
            let shown = &shown[..80.min(shown.len())];
            assert_eq!((answer.status, answer.field("Connection")), (*status, Some("close")), "{shown}");
            let body_text = answer.text();
            let reason = answer.head["HTTP/1.1 ".len()..].lines().next().unwrap_or_default();
            assert!(body_text.starts_with(&format!("{reason}: expected ")), "{shown}: {body_text}");
            assert!(body_text.contains(text), "{shown}: {body_text}");
            assert_eq!(peer.rest(), b"", "{shown}");
        }
    }
    let metrics = server.watch().until_alone();
    assert_eq!(metrics.closed("protocol_error"), 2 * wrong.len() as u64);
    server.finish();
}

/// Row 4.16: a wrong path or method is answered, and the connection continues.
fn a_request_for_what_is_not_there_costs_no_connection(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "");
    let mut peer = server.connect();
    for (line, status, body, allow) in [
        ("GET /nothing", 404, "404 Not Found\n", None),
        ("GET /test/fast/", 404, "404 Not Found\n", None),
        ("DELETE /nothing", 404, "404 Not Found\n", None),
        ("DELETE /test/fast", 405, "405 Method Not Allowed\n", Some("GET, HEAD, POST")),
        ("POST /metrics", 405, "405 Method Not Allowed\n", Some("GET, HEAD")),
        ("BREW /test/fast", 501, "501 Not Implemented\n", None),
        ("CONNECT a:80", 501, "501 Not Implemented\n", None),
        ("GET /test/fast?a=b", 200, "", None),
        ("GET http://b/test/fast", 200, "", None),
    ] {
        let answer = peer.ask(format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!((answer.status, answer.text()), (status, body), "{line}");
        assert_eq!(answer.field("Allow"), allow, "{line}");
        assert_eq!(answer.field("Connection"), None, "{line}");
    }
    // A refusal before the body: the body may or may not follow, so the connection ends.
    let answer =
        peer.ask("POST /nothing HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!((answer.status, answer.field("Connection")), (404, Some("close")));
    assert_eq!(peer.rest(), b"");
    server.finish();
}

/// Row 4.32: larger and smaller requests than by default, up to the byte.
fn limits_can_be_set(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "--max-head-size 40000 --max-headers 2 --max-body-size 3");
    let check = |request: String, status| {
        let mut peer = server.connect();
        assert_eq!(peer.ask(&request).status, status, "{} bytes", request.len());
    };
    let sized = |size: usize| {
        let start = "GET /test/fast HTTP/1.1\r\nHost: a\r\nX: ";
        format!("{start}{}\r\n\r\n", "x".repeat(size - start.len() - 4))
    };
    check(sized(40_000), 200);
    check(sized(40_001), 431);
    let fields = |more: &str| format!("POST /test/fast HTTP/1.1\r\nHost: a\r\n{more}\r\n");
    check(fields("A: b\r\n"), 200);
    check(fields("A: b\r\nC: d\r\n"), 431);
    check(fields("Content-Length: 3\r\n") + "abc", 200);
    check(fields("Content-Length: 4\r\n") + "abcd", 413);
    check(fields("Transfer-Encoding: chunked\r\n") + "2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", 200);
    check(fields("Transfer-Encoding: chunked\r\n") + "2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n", 413);
    server.finish();
}

/// Row 4.16: `/test/*` is for loopback, unless `--demo` is given.
fn demo_routes_are_closed_on_non_loopback_addresses(driver: DriverUnderTest) {
    for (options, status) in [("", 404), ("--demo", 200)] {
        let server = ServerUnderTest::listening(driver, "0.0.0.0:0", options);
        let mut address = server.address();
        address.set_ip([127, 0, 0, 1].into());
        let mut peer = TestPeer::connect(address);
        assert_eq!(peer.ask("GET /test/fast HTTP/1.1\r\nHost: a\r\n\r\n").status, status, "{options}");
        assert_eq!(peer.ask(GOOD).status, 200);
        drop(peer);
        server.finish();
    }
}
