//! Tests of `POST /publish/<subject>`.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use stilling::engine::CloseReason;
use stilling::http::{Method, Routes, Status};
use stilling::settings::{Credential, MessagingConfig, Secret, StreamConfig, UserConfig};
use stilling::{Admin, DriverChoice, ServeConfig};
use stilling_hub::{Ingress, Loss};

use crate::support::{HubTestServer, TestPeer, TestResponse, any_port, eventually, run};

on_both_drivers!(
    one_message_is_acknowledged_with_its_sequence,
    each_line_is_a_message,
    a_message_without_a_stream_reaches_its_subscribers,
    a_message_sent_twice_is_stored_once,
    conditions_that_do_not_hold_are_refused,
    invalid_publications_are_refused_with_a_reason,
    many_lines_with_long_headers_are_refused,
    only_permitted_users_publish,
    pages_of_other_origins_are_refused,
    requests_in_a_row_are_answered_in_order,
    continue_is_sent_only_for_acceptable_bodies,
    a_frozen_stream_refuses,
    a_stalled_hub_is_waited_for_in_bounded_time,
    routes_take_precedence_and_admin_listeners_publish_nothing,
    without_users_only_loopback_listeners_accept_publications,
    without_a_hub_publish_is_not_found,
    curl_publishes,
    concurrent_publishers_lose_nothing,
);

fn post(path: &str, fields: &str, body: &str) -> String {
    let size = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: a\r\n{fields}Content-Length: {size}\r\n\r\n{body}")
}

fn lines(path: &str, body: &str) -> String {
    post(path, "Content-Type: application/x-ndjson\r\n", body)
}

#[track_caller]
fn assert_body(answer: &TestResponse, status: u16, text: &str) {
    assert_eq!((answer.status, answer.text().trim_end()), (status, text));
}

/// Checks the status and a part of the explanation.
#[track_caller]
fn assert_body_contains(answer: &TestResponse, status: u16, part: &str) {
    assert!(answer.status == status && answer.text().contains(part), "{status} {part}: {answer:?}");
}

fn one_message_is_acknowledged_with_its_sequence(driver: DriverChoice) {
    let hub_server = HubTestServer::start(driver);
    let mut subscriber = hub_server.subscribe("events.>");
    let mut peer = hub_server.connect();
    for sequence in 1..=3 {
        let answer = peer.ask(post("/publish/events.a%2Eb", "", &format!("number {sequence}")));
        assert_body(
            &answer,
            200,
            &format!("{{\"stream\":\"events\",\"first\":{sequence},\"last\":{sequence}}}"),
        );
        assert_eq!(answer.field("Content-Type"), Some("application/json"));
        assert_eq!(subscriber.next(), ("events.a.b".to_owned(), format!("number {sequence}")));
    }
    assert_body(
        &peer.ask(post("/publish/quick.x", "", "")),
        200,
        "{\"stream\":\"quick\",\"first\":1,\"last\":1}",
    );
    let chunked = "POST /publish/quick.x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    assert_body(&peer.ask(chunked), 200, "{\"stream\":\"quick\",\"first\":2,\"last\":2}");
    assert!(hub_server.data().join("events").exists(), "it is on disk");
    drop((peer, subscriber));
    hub_server.finish();
}

fn each_line_is_a_message(driver: DriverChoice) {
    let hub_server = HubTestServer::start(driver);
    let mut subscriber = hub_server.subscribe("events.>");
    let mut peer = hub_server.connect();
    let body = "{\"n\":1}\n\r\n  \n{\"n\":2}\r\n{\"n\":3}";
    assert_body(
        &peer.ask(lines("/publish/events.a", body)),
        200,
        "{\"stream\":\"events\",\"first\":1,\"last\":3}",
    );
    for number in 1..=3 {
        assert_eq!(subscriber.next(), ("events.a".to_owned(), format!("{{\"n\":{number}}}")));
    }
    let typed = post("/publish/events.a", "content-type: Application/X-NDJSON ; charset=utf-8\r\n", "x\ny\n");
    assert_body(&peer.ask(typed), 200, "{\"stream\":\"events\",\"first\":4,\"last\":5}");
    assert_body_contains(
        &peer.ask(lines("/publish/events.a", "\n \r\n")),
        400,
        "the body contains no message",
    );
    // The maximum number of messages, which takes several publication batches; then one more.
    let most = "x\n".repeat(10_000);
    assert_body(
        &peer.ask(lines("/publish/events.a", &most)),
        200,
        "{\"stream\":\"events\",\"first\":6,\"last\":10005}",
    );
    assert_body_contains(&peer.ask(lines("/publish/events.a", &format!("{most}x"))), 413, "10001 messages");
    let text = post("/publish/events.a", "Content-Type: text/plain\r\n", "x\ny\n");
    assert_body(&peer.ask(text), 200, "{\"stream\":\"events\",\"first\":10006,\"last\":10006}");
    drop((peer, subscriber));
    hub_server.finish();
}

/// The response to a message on a subject without a stream.
fn not_stored(subscriptions: u32) -> String {
    let note = "no stream has this subject: the message was not stored";
    format!("{{\"stream\":null,\"subscriptions\":{subscriptions},\"note\":\"{note}\"}}")
}

fn a_message_without_a_stream_reaches_its_subscribers(driver: DriverChoice) {
    let hub_server = HubTestServer::start(driver);
    let mut peer = hub_server.connect();
    assert_body(&peer.ask(post("/publish/news.eu", "", "unheard")), 200, &not_stored(0));
    let (mut one, mut other) = (hub_server.subscribe("news.*"), hub_server.subscribe("news.eu"));
    assert_body(&peer.ask(post("/publish/news.eu", "", "heard")), 200, &not_stored(2));
    assert_body(&peer.ask(lines("/publish/news.us", "a\nb\n")), 200, &not_stored(1));
    assert_eq!(other.next(), ("news.eu".to_owned(), "heard".to_owned()));
    for payload in ["heard", "a", "b"] {
        assert_eq!(one.next().1, payload);
    }
    drop((peer, one, other));
    hub_server.finish();
}

fn a_message_sent_twice_is_stored_once(driver: DriverChoice) {
    let hub_server = HubTestServer::start(driver);
    let mut peer = hub_server.connect();
    let request = post("/publish/events.a", "Nats-Msg-Id: one\r\n", "x");
    assert_body(&peer.ask(&request), 200, "{\"stream\":\"events\",\"first\":1,\"last\":1}");
    assert_body(
        &peer.ask(&request),
        200,
        "{\"stream\":\"events\",\"first\":1,\"last\":1,\"duplicate\":true}",
    );
    assert_body(
        &peer.ask(post("/publish/events.a", "", "x")),
        200,
        "{\"stream\":\"events\",\"first\":2,\"last\":2}",
    );
    drop(peer);
    hub_server.finish();
}

fn conditions_that_do_not_hold_are_refused(driver: DriverChoice) {
    let hub_server = HubTestServer::start(driver);
    let mut peer = hub_server.connect();
    let mut ask = |field: &str| peer.ask(post("/publish/events.a", &format!("{field}\r\n"), "x"));
    assert_body_contains(
        &ask("Nats-Expected-Last-Sequence: 7"),
        412,
        "the last sequence of the stream events is 0",
    );
    assert_body(
        &ask("Nats-Expected-Last-Sequence: 0"),
        200,
        "{\"stream\":\"events\",\"first\":1,\"last\":1}",
    );
    assert_body_contains(&ask("Nats-Expected-Last-Sequence: 0"), 412, "is 1, not");
    assert_body_contains(
        &ask("Nats-Expected-Stream: quick"),
        412,
        "the subject belongs to the stream events",
    );
    assert_body(&ask("nats-expected-stream: events"), 200, "{\"stream\":\"events\",\"first\":2,\"last\":2}");
    assert_body_contains(&ask("Nats-Rollup: all"), 400, "unknown header Nats-Rollup");
    // A request that is refused by its head is not read to its end.
    assert!(peer.rest().is_empty());
    let mut peer = hub_server.connect();
    let fields = "Content-Type: application/x-ndjson\r\nNats-Expected-Stream: quick\r\n";
    assert_body_contains(
        &peer.ask(post("/publish/events.a", fields, "a\nb\n")),
        412,
        "none of 2 messages were stored",
    );
    let losses = |loss| hub_server.overview().hub.get().expect("there is one").losses(Ingress::Http, loss);
    eventually("all are counted", || (losses(Loss::Condition) == 5).then_some(()));
    drop(peer);
    hub_server.finish();
}

fn invalid_publications_are_refused_with_a_reason(driver: DriverChoice) {
    let hub_server = HubTestServer::with(driver, |config| {
        let small = StreamConfig { message_size_max: 2000, ..StreamConfig::new("events", ["events.>"]) };
        config.hub.streams = vec![small];
    });
    for (path, status, part) in [
        ("/publish/", 400, "empty token at byte 0 of the subject"),
        ("/publish/a..b", 400, "empty token at byte 2 of the subject"),
        ("/publish/a.*", 400, "wildcard at byte 2 of the subject"),
        ("/publish/a%20b", 400, "at byte 1 of the subject"),
        ("/publish/a%ffb", 400, "at byte 1 of the subject"),
        ("/publish/$JS.API.INFO", 400, "$JS. is reserved"),
        ("/publish", 404, "Not Found"),
    ] {
        assert_body_contains(&hub_server.connect().ask(post(path, "", "x")), status, part);
        assert_body_contains(&hub_server.connect().ask(post(path, "", "")), status, part);
    }
    let mut peer = hub_server.connect();
    for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"] {
        peer.send(format!("{method} /publish/events.a HTTP/1.1\r\nHost: a\r\n\r\n"));
        let answer = if method == "HEAD" { peer.head() } else { peer.answer() };
        assert_eq!((answer.status, answer.field("Allow")), (405, Some("POST")), "{method}");
    }
    assert_body(
        &peer.ask(post("/publish/events.a", "", &"x".repeat(2000))),
        200,
        "{\"stream\":\"events\",\"first\":1,\"last\":1}",
    );
    let long = "x".repeat(2001);
    assert_body_contains(
        &peer.ask(lines("/publish/events.a", &format!("a\n{long}\n"))),
        413,
        "on line 2 has 2001 bytes; the maximum is 2000",
    );
    let chunked = format!(
        "POST /publish/events.a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n7d1\r\n{long}\r\n0\r\n\r\n"
    );
    assert_body_contains(&peer.ask(chunked), 413, "the message has 2001 bytes");
    assert_body(
        &peer.ask(post("/publish/events.a", "", "x")),
        200,
        "{\"stream\":\"events\",\"first\":2,\"last\":2}",
    );
    assert_body_contains(
        &peer.ask(post("/publish/events.a", "", &long)),
        413,
        "the message has 2001 bytes; the maximum is 2000",
    );
    assert!(peer.rest().is_empty(), "its body was not waited for");
    hub_server.finish();
}

/// Row 0.20: each line is published with the request's subject and headers, so the total size is bounded too.
fn many_lines_with_long_headers_are_refused(driver: DriverChoice) {
    let hub_server = HubTestServer::start(driver);
    let body = "x\n".repeat(10_000);
    let post = |condition: &str| {
        format!(
            "POST /publish/quick.a HTTP/1.1\r\nHost: a\r\nNats-Expected-Stream: {condition}\r\n\
             Content-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let mut peer = hub_server.connect();
    assert_body_contains(
        &peer.ask(post(&"x".repeat(2000))),
        413,
        "10000 messages, each with a copy of subject and headers",
    );
    assert_body(&peer.ask(post("quick")), 200, "{\"stream\":\"quick\",\"first\":1,\"last\":10000}");
    drop(peer);
    hub_server.finish();
}

fn only_permitted_users_publish(driver: DriverChoice) {
    let hub_server = HubTestServer::with(driver, |config| {
        let sensor = UserConfig {
            publish: vec!["events.sensors.>".to_owned()],
            ..UserConfig::new("sensor", Credential::Password(Secret::new("s")))
        };
        let gauge = UserConfig::new("gauge", Credential::Token(Secret::new("token")));
        config.hub.users = vec![sensor, gauge];
    });
    let mut peer = hub_server.connect();
    let mut ask = |field: &str, subject: &str| {
        let answer = peer.ask(post(&format!("/publish/{subject}"), &format!("{field}\r\n"), "x"));
        if answer.status != 200 {
            peer = hub_server.connect();
        }
        answer
    };
    let sensor = "Authorization: Basic c2Vuc29yOnM=";
    assert_eq!(ask(sensor, "events.sensors.1").status, 200);
    assert_body_contains(&ask(sensor, "events.orders"), 403, "this user may not publish to this subject");
    assert_eq!(ask("Authorization: bearer token", "events.orders").status, 200);
    assert_eq!(ask("Origin: http://a\r\nAuthorization: Bearer token", "events.orders").status, 200);
    for field in
        ["X: y", "Authorization: Bearer s", "Authorization: Basic c2Vuc29yOng=", "Authorization: Basic"]
    {
        let answer = ask(field, "events.sensors.1");
        assert_body_contains(&answer, 401, "publishing needs a known name and password");
        assert!(answer.head.contains("WWW-Authenticate: Basic realm=\"stilling\""), "{answer:?}");
        assert!(answer.head.contains("WWW-Authenticate: Bearer"), "{answer:?}");
    }
    assert_eq!(hub_server.metric("stilling_hub_unauthorized_total"), 4);
    // A refused request without a body keeps the connection.
    let mut peer = hub_server.connect();
    assert_eq!(peer.ask(post("/publish/events.a", "", "")).status, 401);
    assert_eq!(peer.ask(post("/publish/events.a", "Authorization: Bearer token\r\n", "")).status, 200);
    drop(peer);
    hub_server.finish();
}

/// A browser may send requests from pages of other sites, which must not publish.
fn pages_of_other_origins_are_refused(driver: DriverChoice) {
    let hub_server = HubTestServer::start(driver);
    let ask = |field: &str| hub_server.connect().ask(post("/publish/quick.a", field, "x"));
    for origin in ["http://a:1", "http://b", "null", "a"] {
        assert_body_contains(&ask(&format!("Origin: {origin}\r\n")), 403, "Origin differs from Host");
    }
    // A page requested by address comes from this server; a page requested by name may come from any site with a name
    // that resolves to this address.
    let own = |host: &str| {
        let request = post("/publish/quick.a", &format!("Origin: http://{host}\r\n"), "x");
        hub_server.connect().ask(request.replace("Host: a\r\n", &format!("Host: {host}\r\n")))
    };
    assert_body_contains(&own("a"), 403, "a page at a host name may publish only if users are configured");
    assert_body(&own("127.0.0.1:80"), 200, "{\"stream\":\"quick\",\"first\":1,\"last\":1}");
    hub_server.finish();
}

/// Pipelining: a response waits for the disk, and the next response waits for it.
fn requests_in_a_row_are_answered_in_order(driver: DriverChoice) {
    let hub_server = HubTestServer::start(driver);
    let mut peer = hub_server.connect();
    let mut all = String::new();
    for number in 0..50 {
        all += &post("/publish/events.a", "", &number.to_string());
        all += "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n";
        all += &post("/publish/quick.a", "", "");
    }
    peer.send(&all);
    peer.half_close();
    for sequence in 1..=50 {
        assert_body(
            &peer.answer(),
            200,
            &format!("{{\"stream\":\"events\",\"first\":{sequence},\"last\":{sequence}}}"),
        );
        assert_body(&peer.answer(), 200, "alive");
        assert_body(
            &peer.answer(),
            200,
            &format!("{{\"stream\":\"quick\",\"first\":{sequence},\"last\":{sequence}}}"),
        );
    }
    assert!(peer.rest().is_empty());
    hub_server.finish();
}

fn continue_is_sent_only_for_acceptable_bodies(driver: DriverChoice) {
    let hub_server = HubTestServer::start(driver);
    let head = |path: &str, fields: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\n{fields}Content-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        )
    };
    let mut peer = hub_server.connect();
    assert_eq!(peer.ask(head("/publish/quick.a", "")).status, 100);
    assert_body(&peer.ask("abc"), 200, "{\"stream\":\"quick\",\"first\":1,\"last\":1}");
    for (path, fields, status) in [
        ("/publish/quick.*", "", 400),
        ("/publish/quick.a", "Origin: null\r\n", 403),
        ("/publish/quick.a", "Nats-TTL: 1\r\n", 400),
    ] {
        let mut peer = hub_server.connect();
        assert_eq!(peer.ask(head(path, fields)).status, status);
        assert!(peer.rest().is_empty(), "it is closed");
    }
    drop(peer);
    hub_server.finish();
}

fn a_frozen_stream_refuses(driver: DriverChoice) {
    let hub_server = HubTestServer::start(driver);
    fs::write(hub_server.data(), "no folder").expect("a file in the place of the folder");
    let mut peer = hub_server.connect();
    for _ in 0..2 {
        let answer = peer.ask(post("/publish/events.a", "", "x"));
        assert_body_contains(&answer, 503, "the stream events is not open yet");
        assert_eq!(answer.field("Retry-After"), Some("1"));
    }
    assert_body_contains(
        &peer.ask(lines("/publish/events.a", "a\nb")),
        503,
        "; none of 2 messages were stored",
    );
    assert_eq!(peer.ask(post("/publish/quick.a", "", "x")).status, 200, "the others go on");
    let losses = |ingress| hub_server.overview().hub.get().expect("there is one").losses(ingress, Loss::Hung);
    eventually("all are counted", || (losses(Ingress::Http) == 4).then_some(()));
    assert_eq!(losses(Ingress::Nats), 0);
    drop(peer);
    hub_server.finish();
}

/// Row 0.14: a publication to a stalled hub is neither refused at once nor delayed without bound; the response
/// distinguishes a message that was certainly not published from one that may have been.
fn a_stalled_hub_is_waited_for_in_bounded_time(driver: DriverChoice) {
    let hub_server = HubTestServer::with(driver, |config| {
        config.shards = 1;
        config.timeouts.work = Duration::from_millis(100);
    });
    let stalled_disk = hub_server.stall_disk();
    let mut first = hub_server.connect();
    let answer = first.ask(post("/publish/events.a", "", "x"));
    assert_body_contains(&answer, 503, "this may have been stored");
    assert!(first.rest().is_empty(), "its outcome cannot be confused with another");
    // A stalled stream delays no other.
    let answer = hub_server.connect().ask(post("/publish/quick.a", "", "x"));
    assert_body(&answer, 200, "{\"stream\":\"quick\",\"first\":1,\"last\":1}");
    // Waiting publications are bounded, first in the hub, then on the way to it: a full queue is reported in time.
    let long = "x".repeat(1_000_000);
    let mut unanswered = 1;
    let mut peer = hub_server.connect();
    loop {
        let answer = peer.ask(post("/publish/events.a", "", &long));
        assert_eq!((answer.status, answer.field("Retry-After")), (503, Some("1")));
        if answer.text().contains("nothing was published") {
            break;
        }
        assert_body_contains(&answer, 503, "this may have been stored");
        unanswered += 1;
        assert!(unanswered < 100, "it is bounded");
        peer = hub_server.connect();
    }
    assert_eq!(hub_server.metric("stilling_hub_publications_unanswered_total"), unanswered);
    assert_eq!(hub_server.metric("stilling_hub_publications_shed_total"), 1);
    // A publication that waits when the hub resumes is stored or gets one of these responses.
    peer.send(post("/publish/quick.b", "", "x"));
    let _open = stalled_disk.end();
    let answer = peer.answer();
    assert!([200, 503].contains(&answer.status), "{answer:?}");
    // All publications in between are processed.
    let stored = eventually("the hub resumes", || {
        let answer = hub_server.connect().ask(post("/publish/quick.c", "", "x"));
        (answer.status == 200).then(|| answer.into_text())
    });
    assert!(stored.starts_with("{\"stream\":\"quick\",\"first\":"), "{stored}");
    drop(peer);
    hub_server.finish();
}

fn routes_take_precedence_and_admin_listeners_publish_nothing(driver: DriverChoice) {
    let routes = Routes::new()
        .inline(Method::Post, "/publish/{own}", |request| format!("mine: {}", request.body().len()))
        .fallback_inline(|_| Status::Gone);
    let hub_server =
        HubTestServer::with_routes(driver, routes, |config| config.admin = Admin::At(any_port()));
    let mut peer = hub_server.connect();
    assert_body(&peer.ask(post("/publish/quick.a", "", "abc")), 200, "mine: 3");
    assert_body(
        &peer.ask(post("/publish/quick.a/b", "", "abc")),
        200,
        "{\"stream\":\"quick\",\"first\":1,\"last\":1}",
    );
    let admin = hub_server.overview().listeners.len();
    assert_eq!(admin, 2, "HTTP and NATS; the pages are beside them");
    drop(peer);
    hub_server.finish();

    let hub_server = HubTestServer::with(driver, |config| config.admin = Admin::At(any_port()));
    let mut admin = TestPeer::connect(hub_server.admin());
    assert_eq!(admin.ask(post("/publish/quick.a", "", "x")).status, 404);
    drop(admin);
    hub_server.finish();
}

/// Listens on loopback and on all addresses.
fn listen_on_all_addresses(config: &mut ServeConfig) {
    config.listen = vec![any_port(), SocketAddr::from(([0, 0, 0, 0], 0))];
}

/// Publishes at the listener that other machines reach.
fn publish_on_public_listener(hub_server: &HubTestServer) -> TestResponse {
    let address = hub_server.all_at("http")[1];
    let mut peer = TestPeer::connect(SocketAddr::from(([127, 0, 0, 1], address.port())));
    peer.ask(post("/publish/quick.a/b", "", "abc"))
}

/// Where other machines reach a listener, publishing needs credentials.
fn without_users_only_loopback_listeners_accept_publications(driver: DriverChoice) {
    let stored = "{\"stream\":\"quick\",\"first\":1,\"last\":1}";
    let hub_server = HubTestServer::with(driver, listen_on_all_addresses);
    assert_body_contains(
        &publish_on_public_listener(&hub_server),
        403,
        "requires users ([[user]]) or --open-publish",
    );
    assert_body(&hub_server.connect().ask(post("/publish/quick.a", "", "x")), 200, stored);
    hub_server.finish();
    let hub_server = HubTestServer::with(driver, |config| {
        listen_on_all_addresses(config);
        config.open_publish = true;
    });
    assert_body(&publish_on_public_listener(&hub_server), 200, stored);
    hub_server.finish();
    let hub_server = HubTestServer::with(driver, |config| {
        listen_on_all_addresses(config);
        config.hub.users = vec![UserConfig::new("ann", Credential::Password(Secret::new("x")))];
    });
    assert_eq!(publish_on_public_listener(&hub_server).status, 401);
    hub_server.finish();
    let routes = Routes::new().fallback_inline(|request| format!("mine: {}", request.body().len()));
    let hub_server = HubTestServer::with_routes(driver, routes, listen_on_all_addresses);
    assert_body(&publish_on_public_listener(&hub_server), 200, "mine: 3");
    hub_server.finish();
}

fn without_a_hub_publish_is_not_found(driver: DriverChoice) {
    let hub_server = HubTestServer::with(driver, |config| config.hub = MessagingConfig::default());
    assert_eq!(hub_server.connect().ask(post("/publish/events.a", "", "x")).status, 404);
    hub_server.finish();
}

fn curl_publishes(driver: DriverChoice) {
    let hub_server = HubTestServer::start(driver);
    let url = hub_server.url("/publish/events.a");
    let output = run("curl", &["-sS", "-d", "hello", &url]);
    assert_eq!(output.trim_end(), "{\"stream\":\"events\",\"first\":1,\"last\":1}");
    let lines = ["-sS", "--data-binary", "a\nb\nc\n", "-H", "Content-Type: application/x-ndjson", &url];
    assert_eq!(run("curl", &lines).trim_end(), "{\"stream\":\"events\",\"first\":2,\"last\":4}");
    // curl sends `Expect` by itself only above one megabyte; this body is smaller and is sent at once.
    let file = hub_server.data().join("body");
    fs::write(&file, vec![b'x'; 1_000_000]).expect("a file");
    let from = format!("@{}", file.display());
    let output = run("curl", &["-sS", "--data-binary", &from, "-H", "Expect: 100-continue", &url]);
    assert_eq!(output.trim_end(), "{\"stream\":\"events\",\"first\":5,\"last\":5}");
    assert_eq!(hub_server.overview().engine(|counters| counters.closed(CloseReason::ProtocolError)), 0);
    hub_server.finish();
}

fn concurrent_publishers_lose_nothing(driver: DriverChoice) {
    const CLIENTS: u64 = 16;
    const EACH: u64 = 50;
    let hub_server = HubTestServer::with(driver, |config| config.hub_thread = stilling::HubThread::Shard);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut peer = hub_server.connect();
            thread::spawn(move || {
                let mut seen = Vec::new();
                for _ in 0..EACH {
                    let answer = peer.ask(lines("/publish/events.a", "a\nb\n")).into_text();
                    let first = answer.split("\"first\":").nth(1).expect("a sequence");
                    let (first, rest) = first.split_once(',').expect("two");
                    let first: u64 = first.parse().expect("a number");
                    let last: u64 = rest
                        .trim_start_matches("\"last\":")
                        .trim_end()
                        .trim_end_matches('}')
                        .parse()
                        .expect("a number");
                    seen.extend([first, last]);
                }
                seen
            })
        })
        .collect();
    let mut all: Vec<u64> =
        clients.into_iter().flat_map(|client| client.join().expect("it does not panic")).collect();
    all.sort_unstable();
    assert_eq!(all, (1..=CLIENTS * EACH * 2).collect::<Vec<_>>());
    hub_server.finish();
}
