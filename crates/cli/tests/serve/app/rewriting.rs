//! The parts of a request that reach the process, and the parts of its response that reach the client.

use std::io::{Read, Write};

use super::{ask_alone, before_fakes, fake, get};
use crate::support::{DriverUnderTest, ServerUnderTest, TestPeer, binary};

on_both_drivers! {
    a_request_arrives_with_forwarding_headers_and_without_hop_by_hop_headers,
    an_answer_leaves_without_what_belongs_to_the_hop,
    an_answer_has_the_framing_that_its_client_understands,
    an_answer_that_pauses_is_passed_on_as_it_comes,
    answers_without_a_body_have_none,
    the_pages_about_the_server_stay_its_own,
    secrets_of_the_environment_do_not_reach_the_processes,
    publications_are_accepted_from_loopback_alone,
}

/// RFC 9110 §7.6.1 and §7.6.3, RFC 9112 §3.2.
fn a_request_arrives_with_forwarding_headers_and_without_hop_by_hop_headers(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, "");
    let mut peer = server.connect();
    let ours = |version: &str| {
        format!(
            "X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: shop.example\r\n\
             Via: {version} stilling\r\n\r\n"
        )
    };
    let mut check = |request: &str, expected: String| assert_eq!(peer.ask(request).text(), expected);
    check(
        "GET /echo?a=b&c HTTP/1.1\r\nHost: shop.example\r\nCookie: a=1\r\nCookie: b=2\r\n\r\n",
        "GET /echo?a=b&c HTTP/1.1\r\nHost: shop.example\r\nCookie: a=1\r\nCookie: b=2\r\n".to_owned()
            + &ours("1.1"),
    );
    check(
        "GET http://shop.example/echo HTTP/1.1\r\nHost: other.example\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: shop.example\r\n".to_owned() + &ours("1.1"),
    );
    check(
        "GET /echo HTTP/1.1\r\nHost: shop.example\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nTE: trailers\r\n\
         Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nUpgrade: h2c\r\nProxy: http://evil.example\r\n\
         X-Forwarded-For: 192.0.2.1\r\nX_Forwarded_For: 192.0.2.2\r\nX-Real-IP: 192.0.2.3\r\n\
         X-Forwarded-Port: 443\r\nForwarded: for=192.0.2.4\r\nAccept: */*\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: shop.example\r\nAccept: */*\r\n".to_owned() + &ours("1.1"),
    );
    check(
        "GET /echo HTTP/1.0\r\nHost: shop.example\r\nConnection: keep-alive\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: shop.example\r\n".to_owned() + &ours("1.0"),
    );
    check(
        "POST /echo HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 0\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: shop.example\r\n".to_owned()
            + ours("1.1").trim_end()
            + "\r\nContent-Length: 0\r\n\r\n",
    );
    check(
        "PURGE /echo HTTP/1.1\r\nHost: shop.example\r\n\r\n",
        "PURGE /echo HTTP/1.1\r\nHost: shop.example\r\n".to_owned() + &ours("1.1"),
    );
    let names: Vec<_> = (0..33).map(|number| format!("x-{number}")).collect();
    let too_many = format!("GET /echo HTTP/1.1\r\nHost: a\r\nConnection: {}\r\n\r\n", names.join(","));
    assert_eq!(peer.ask(too_many).status, 400, "Connection may name 32 fields");
    assert_eq!(peer.ask("CONNECT a.example:80 HTTP/1.1\r\nHost: a.example:80\r\n\r\n").status, 501);
    drop((peer, watcher));
    server.finish();
}

fn an_answer_leaves_without_what_belongs_to_the_hop(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, "");
    let mut peer = server.connect();
    let answer = peer.ask(get("/fields"));
    assert_eq!(
        answer.head,
        "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nX-End-To-End: 2\r\nContent-Length: 1\r\n\r\n"
    );
    // A response without a date gets one; RFC 9110 §6.6.1.
    let answer = peer.ask(get("/pid"));
    assert!(answer.field("Date").is_some_and(|date| date.ends_with(" GMT")), "{answer:?}");
    let answer = peer.ask(get("/interim"));
    assert_eq!((answer.status, answer.text()), (200, "final"));
    assert_eq!(peer.ask(get("/status/299")).head.lines().next(), Some("HTTP/1.1 299 Whatever"));
    let metrics = {
        let mut watcher = watcher;
        watcher.fetch()
    };
    assert_eq!(metrics.value("app_responses_other_total"), 1);
    drop(peer);
    server.finish();
}

fn an_answer_has_the_framing_that_its_client_understands(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, "");
    let field = |head: &str, name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    };
    for (word, size, length) in [
        ("sized", 1000, Some("1000")),
        ("sized", 300_000, Some("300000")),
        // A response that is complete at once gets a length, in whatever framing the process sends it.
        ("chunked", 1000, Some("1000")),
        ("close", 1000, Some("1000")),
        ("chunked", 300_000, None),
        ("close", 300_000, None),
        ("chunked", 0, Some("0")),
        ("close", 0, Some("0")),
    ] {
        let (head, body) = ask_alone(&server, &format!("/{word}/{size}"));
        assert_eq!(field(&head, "Content-Length").as_deref(), length, "{word} {size}: {head}");
        assert!(body.into_iter().eq(super::pattern(0, size)), "{word} {size}");
        // HTTP/1.0 has no chunks.
        let mut peer = server.connect();
        peer.send(format!("GET /{word}/{size} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
        let answer = peer.head();
        assert_eq!(answer.field("Transfer-Encoding"), None);
        let persists = length.is_some();
        assert_eq!(answer.field("Connection"), Some(if persists { "keep-alive" } else { "close" }));
        if persists {
            peer.half_close();
        }
        assert!(peer.rest().into_iter().eq(super::pattern(0, size)), "{word} {size} over HTTP/1.0");
    }
    drop(watcher);
    server.finish();
}

/// Received pieces are forwarded at once: the first one does not wait for the second.
fn an_answer_that_pauses_is_passed_on_as_it_comes(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, "--app-concurrency 2");
    let mut stream = super::bodies::stream(&server);
    stream.write_all(super::last("/drip").as_bytes()).expect("it is taken");
    let mut come = Vec::new();
    while !come.ends_with(b"first\r\n") {
        let mut bytes = [0; 1024];
        let count = stream.read(&mut bytes).expect("the first piece");
        assert!(count > 0, "{}", come.escape_ascii());
        come.extend_from_slice(&bytes[..count]);
    }
    assert_eq!(server.connect().ask(get("/release")).text(), "released");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the second piece");
    assert_eq!(super::without_chunks(&rest), b"second");
    drop(watcher);
    server.finish();
}

/// RFC 9112 §6.3; the connection continues after them.
fn answers_without_a_body_have_none(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, "");
    let mut peer = server.connect();
    let mut check = |request: &str, status: u16, length: Option<&str>| {
        peer.send(request);
        let answer = peer.head();
        assert_eq!((answer.status, answer.field("Content-Length")), (status, length), "{request}");
        assert_eq!(answer.field("Connection"), None);
    };
    check("HEAD /length HTTP/1.1\r\nHost: a\r\n\r\n", 200, Some("12345"));
    check(&get("/status/204"), 204, None);
    check(&get("/status/304"), 304, None);
    check(&get("/status/200"), 200, Some("0"));
    assert_eq!(peer.ask(get("/interim")).text(), "final");
    drop((peer, watcher));
    server.finish();
}

fn the_pages_about_the_server_stay_its_own(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, "--processes 2");
    let mut peer = server.connect();
    assert_eq!(peer.ask(get("/livez")).text(), "alive\n");
    assert_eq!(peer.ask(get("/readyz")).text(), "ready: 2 of 2 worker processes\n");
    let page = peer.ask(get("/status")).into_text();
    assert!(page.contains("Worker processes") && page.contains("<td>configured<td>2"), "{page}");
    assert_eq!(peer.ask(get("/")).text(), "0 good", "the process answers everything else");
    assert_eq!(peer.ask(get("/test/fast")).text(), "0 good");
    drop((peer, watcher));
    server.finish();
}

/// Row 1.3: the program behind the server does not get the passwords of its users.
fn secrets_of_the_environment_do_not_reach_the_processes(driver: DriverUnderTest) {
    let user = ["--nats", "127.0.0.1:0", "--user", "ann:password-env=ANN_PASSWORD"];
    for options in [&user[..], &user[..2]] {
        let mut command = binary();
        command.args(["serve", "--listen", "127.0.0.1:0", "--driver", driver.name(), "--app", &fake()]);
        command.args(options);
        // The command line overrides the variable.
        command.env("STILLING_USER", "bob:token-env=BOB_TOKEN");
        command.env("ANN_PASSWORD", "secret").env("BOB_TOKEN", "secret").env("ORDINARY", "1");
        let server = ServerUnderTest::spawn(command);
        let names = server.connect().ask(get("/environment")).into_text();
        let has = |name: &str| names.split(' ').any(|other| other == name);
        assert!(has("ORDINARY") && has("STILLING_SOCKET"), "{names}");
        assert!(!has("STILLING_USER"), "{names}");
        let secret = if options.len() == 4 { "ANN_PASSWORD" } else { "BOB_TOKEN" };
        assert!(!has(secret), "{names}");
        server.finish();
    }
}

/// A hub beside a program handles `/publish/*` where publications are allowed, and reports it; elsewhere the path
/// belongs to the program.
fn publications_are_accepted_from_loopback_alone(driver: DriverUnderTest) {
    let options = "--listen 0.0.0.0:0 --nats 127.0.0.1:0 --stream events=events.>:memory";
    let (server, watcher) = before_fakes(driver, options);
    let [own, programs] = server.addresses()[..] else { panic!("two listeners") };
    let publish = |port: u16| {
        let mut peer = TestPeer::connect(([127, 0, 0, 1], port).into());
        peer.ask("POST /publish/events.a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc").into_text()
    };
    assert_eq!(publish(own.port()).trim_end(), "{\"stream\":\"events\",\"first\":1,\"last\":1}");
    assert_eq!(publish(programs.port()), "3 bad", "the program's answer");
    let banner = server.banner_line("publish ");
    assert_eq!(banner, format!("http://{own}/publish/* (answered here, not by the app)"));
    drop(watcher);
    server.finish();
}
