//! Tests of routing: which handler answers, what it sees of the request, and the response without a handler.

use stilling::DriverChoice;
use stilling::http::{Method, Request, Response, Routes, Status};

use crate::support::{HttpTestServer, get};

on_both_drivers!(
    a_handler_runs_where_its_route_specifies,
    without_workers_the_shard_does_their_work,
    placeholders_are_decoded_and_the_exact_pattern_wins,
    a_query_is_decoded_as_forms_are,
    a_handler_sees_the_whole_request,
    a_head_request_gets_the_fields_of_a_get,
    requests_without_a_handler_are_404_or_405,
    results_are_responses,
    http_1_0_connections_persist_on_request,
    a_panic_costs_one_answer,
);

fn thread_name(_: &Request<'_>) -> String {
    std::thread::current().name().unwrap_or("nameless").to_owned()
}

/// Row 4.3: heavy work goes to a worker; quick work stays in the shard.
fn a_handler_runs_where_its_route_specifies(driver: DriverChoice) {
    let routes =
        Routes::new().inline(Method::Get, "/here", thread_name).worker(Method::Get, "/there", thread_name);
    let server = HttpTestServer::start(driver, routes);
    let mut peer = server.connect();
    for _ in 0..10 {
        let here = peer.ask(get("/here"));
        assert_eq!((here.status, here.field("Content-Type")), (200, Some("text/plain; charset=utf-8")));
        assert!(here.text().starts_with("shard-"), "{}", here.text());
        let there = peer.ask(get("/there"));
        assert_eq!((there.status, there.field("Content-Type")), (200, Some("text/plain; charset=utf-8")));
        assert!(there.text().starts_with("worker-"), "{}", there.text());
    }
    drop(peer);
    server.finish();
}

/// Row 4.17's like: without workers, worker routes are still answered.
fn without_workers_the_shard_does_their_work(driver: DriverChoice) {
    let routes =
        Routes::new().worker(Method::Get, "/there", thread_name).worker(Method::Post, "/there", |request| {
            request.body().to_ascii_uppercase().escape_ascii().to_string()
        });
    let server = HttpTestServer::with(driver, routes, |config| config.worker_threads = 0);
    let mut peer = server.connect();
    assert!(peer.ask(get("/there")).text().starts_with("shard-"));
    let answer = peer.ask("POST /there HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
    assert_eq!(answer.text(), "BODY");
    drop(peer);
    server.finish();
}

fn placeholders_are_decoded_and_the_exact_pattern_wins(driver: DriverChoice) {
    let routes = Routes::new()
        .inline(Method::Get, "/hello/{name}", |request| {
            Ok::<_, Status>(format!("name {}", request.param("name").ok_or(Status::BadRequest)?))
        })
        .inline(Method::Get, "/hello/world", |_| "exact")
        .worker(Method::Get, "/all/{first}/{*rest}", |request| {
            let part = |name| request.param(name).unwrap_or("none".into()).into_owned();
            format!("{} then {}, no {}", part("first"), part("rest"), part("other"))
        });
    let server = HttpTestServer::start(driver, routes);
    let mut peer = server.connect();
    for (path, status, text) in [
        ("/hello/you", 200, "name you"),
        ("/hello/world", 200, "exact"),
        ("/hello/a%20b%C3%A4%2fc", 200, "name a bä/c"),
        ("/hello/%", 200, "name %"),
        ("/hello/%ff", 400, "400 Bad Request\n"),
        ("/hello/", 404, "404 Not Found\n"),
        ("/hello/a/b", 404, "404 Not Found\n"),
        ("/all/1/2/3%2e", 200, "1 then 2/3., no none"),
        ("/all/1//2", 200, "1 then /2, no none"),
        ("/hello/you?name=they", 200, "name you"),
    ] {
        let answer = peer.ask(get(path));
        assert_eq!((answer.status, answer.text()), (status, text), "{path}");
    }
    drop(peer);
    server.finish();
}

fn a_query_is_decoded_as_forms_are(driver: DriverChoice) {
    let routes = Routes::new().inline(Method::Get, "/q", |request| {
        let all: Vec<String> = request.queries().map(|(name, value)| format!("{name}={value}")).collect();
        format!("{:?} of {}", request.query("a").as_deref(), all.join("|"))
    });
    let server = HttpTestServer::start(driver, routes);
    let mut peer = server.connect();
    for (query, expected) in [
        ("", "None of "),
        ("?", "None of "),
        ("?a", "Some(\"\") of a="),
        ("?a=1&a=2&b=3", "Some(\"1\") of a=1|a=2|b=3"),
        ("?b=%20+x&a=%26", "Some(\"&\") of b=  x|a=&"),
        ("?a=%zz%ff", "Some(\"%zz\u{fffd}\") of a=%zz\u{fffd}"),
    ] {
        assert_eq!(peer.ask(get(&format!("/q{query}"))).text(), expected, "{query}");
    }
    drop(peer);
    server.finish();
}

fn a_handler_sees_the_whole_request(driver: DriverChoice) {
    fn describe_request(request: &Request<'_>) -> String {
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        let fields: Vec<String> =
            request.headers().map(|(name, value)| text(name) + "=" + &text(value)).collect();
        format!(
            "{request:?}; {}; {}; {:?}; {:?}; {}",
            text(request.method().as_bytes()),
            text(request.path()),
            request.header("X-TWICE").map(text),
            request.host().map(text),
            fields.join(","),
        )
    }
    let routes = Routes::new().inline(Method::Put, "/in/{x}", describe_request).worker(
        Method::Put,
        "/job/{x}",
        describe_request,
    );
    let server = HttpTestServer::start(driver, routes);
    let mut peer = server.connect();
    for path in ["/in/%41", "/job/%41"] {
        let head = format!(
            "PUT {path}?q HTTP/1.1\r\nHost: h:1\r\nX-Twice: one\r\nx-twice: two\r\nContent-Length: 3\r\n\r\n"
        );
        let expected = format!(
            "PUT {path}?q with 3 bytes of body; PUT; {path}; Some(\"one\"); Some(\"h:1\"); \
             Host=h:1,X-Twice=one,x-twice=two,Content-Length=3"
        );
        assert_eq!(peer.ask(head + "abc").text(), expected);
    }
    drop(peer);
    server.finish();
}

fn a_head_request_gets_the_fields_of_a_get(driver: DriverChoice) {
    let answer = |_: &Request<'_>| Response::json("{\"a\":1}").with_header("X-Mine", "yes");
    let stream = |_: &Request<'_>| Response::stream_sized("text/csv", 100_000, std::io::repeat(b'x'));
    let routes = Routes::new()
        .inline(Method::Get, "/in", answer)
        .worker(Method::Get, "/job", answer)
        .worker(Method::Get, "/sized", stream)
        .inline(Method::Get, "/both", |_| "of get")
        .inline(Method::Head, "/both", |_| Response::new(Status::Ok).with_header("X-Of", "head"));
    let server = HttpTestServer::start(driver, routes);
    let mut peer = server.connect();
    let without_date = |head: &str| -> Vec<String> {
        head.lines().filter(|line| !line.starts_with("Date")).map(str::to_owned).collect()
    };
    for path in ["/in", "/job", "/sized"] {
        let with_body = peer.ask(get(path));
        peer.send(get(path).replace("GET", "HEAD"));
        let head = peer.head();
        assert_eq!(without_date(&head.head), without_date(&with_body.head), "{path}");
        assert!(peer.is_silent(), "{path}: a body after HEAD");
    }
    peer.send(get("/both").replace("GET", "HEAD"));
    assert_eq!(peer.head().field("X-Of"), Some("head"));
    assert_eq!(peer.ask(get("/both")).text(), "of get");
    drop(peer);
    server.finish();
}

fn requests_without_a_handler_are_404_or_405(driver: DriverChoice) {
    let routes = Routes::new().inline(Method::Get, "/a", |_| "a").worker(Method::Post, "/a", |_| "a").worker(
        Method::Delete,
        "/d/{x}",
        |_| "d",
    );
    let server = HttpTestServer::start(driver, routes);
    let mut peer = server.connect();
    for (method, path, status, allow) in [
        ("GET", "/a", 200, None),
        ("PUT", "/a", 405, Some("GET, HEAD, POST")),
        ("DELETE", "/a", 405, Some("GET, HEAD, POST")),
        ("OPTIONS", "/a", 405, Some("GET, HEAD, POST")),
        ("PURGE", "/a", 405, Some("GET, HEAD, POST")),
        ("GET", "/d/1", 405, Some("DELETE")),
        ("GET", "/b", 404, None),
        ("GET", "/a/", 404, None),
        ("GET", "/A", 404, None),
        ("GET", "/%61", 404, None),
        ("GET", "/livez", 200, None),
        ("GET", "/metrics", 200, None),
        ("PUT", "/livez", 405, Some("GET, HEAD")),
        // With routes, `/test/*` is not answered.
        ("GET", "/test/fast", 404, None),
        ("PURGE", "/b", 501, None),
    ] {
        let answer = peer.ask(format!("{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!((answer.status, answer.field("Allow")), (status, allow), "{method} {path}");
    }
    drop(peer);
    server.finish();
}

fn results_are_responses(driver: DriverChoice) {
    let routes =
        Routes::new().worker(Method::Get, "/{what}", |request| match request.param("what").as_deref() {
            Some("good") => Ok("good"),
            Some("bad") => Err(Response::json("{}").with_status(Status::UnprocessableContent)),
            Some("busy") => Err(Status::ServiceUnavailable.into()),
            Some("later") => Err(Response::from(Status::ServiceUnavailable).with_header("retry-after", "77")),
            _ => Err(Status::NotFound.into()),
        });
    let server = HttpTestServer::start(driver, routes);
    let mut peer = server.connect();
    for (path, status, text, retry) in [
        ("/good", 200, "good", None),
        ("/bad", 422, "{}", None),
        ("/other", 404, "404 Not Found\n", None),
        ("/busy", 503, "503 Service Unavailable\n", Some("1")),
        ("/later", 503, "503 Service Unavailable\n", Some("77")),
    ] {
        let answer = peer.ask(get(path));
        assert_eq!(
            (answer.status, answer.text(), answer.field("Retry-After")),
            (status, text, retry),
            "{path}"
        );
    }
    drop(peer);
    server.finish();
}

fn http_1_0_connections_persist_on_request(driver: DriverChoice) {
    let routes = Routes::new().inline(Method::Get, "/in", |_| "in").worker(Method::Get, "/job", |_| "job");
    let server = HttpTestServer::start(driver, routes);
    for path in ["/in", "/job"] {
        let mut peer = server.connect();
        for _ in 0..3 {
            let answer = peer.ask(format!("GET {path} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
            assert_eq!((answer.text(), answer.field("Connection")), (&path[1..], Some("keep-alive")));
        }
        let last = peer.ask(format!("GET {path} HTTP/1.0\r\n\r\n"));
        assert_eq!((last.text(), last.field("Connection")), (&path[1..], Some("close")));
        assert_eq!(peer.rest(), b"");
    }
    server.finish();
}

/// Row 4.34: a panic in a handler is one 500; the connection, the shard and the worker go on.
fn a_panic_costs_one_answer(driver: DriverChoice) {
    fn panicking(_: &Request<'_>) -> Response {
        panic!("the demonstration of a panic in a handler")
    }
    let routes = Routes::new()
        .inline(Method::Get, "/in", panicking)
        .inline(Method::Post, "/in", panicking)
        .worker(Method::Get, "/job", panicking)
        .inline(Method::Get, "/good", |_| "good");
    for workers in [0, 1] {
        let server = HttpTestServer::with(driver, routes.clone(), |config| config.worker_threads = workers);
        let mut peer = server.connect();
        for _ in 0..3 {
            assert_eq!(peer.ask(get("/in")).status, 500);
            let with_body = "POST /in HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx";
            assert_eq!(peer.ask(with_body).status, 500);
            assert_eq!(peer.ask(get("/job")).status, 500);
            assert_eq!(peer.ask(get("/good")).text(), "good");
        }
        drop(peer);
        let overview = server.finish();
        let in_shards = overview.http(|counters| &counters.handler_panics);
        assert_eq!(in_shards, if workers == 0 { 9 } else { 6 });
    }
}
