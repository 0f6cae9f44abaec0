//! Tests of the embedding API: peer addresses, the fallback handler, and the end.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr};

use stilling::DriverChoice;
use stilling::http::{Method, Request, Response, Routes, Status};

use crate::support::{HttpTestServer, eventually, get};

on_both_drivers!(
    handlers_see_peer_addresses_on_request,
    unmatched_requests_go_to_the_fallback,
    another_thread_ends_the_server,
    delegated_connections_are_counted,
);

fn peer_of(request: &Request<'_>) -> String {
    format!("{:?}", request.peer())
}

fn handlers_see_peer_addresses_on_request(driver: DriverChoice) {
    let routes = Routes::new().inline(Method::Get, "/in", peer_of).worker(Method::Post, "/job", peer_of);
    let known = format!("{:?}", Some(IpAddr::from(Ipv4Addr::LOCALHOST)));
    for (routes, expected) in [(routes.clone(), "None"), (routes.with_peer_addresses(), known.as_str())] {
        let server = HttpTestServer::start(driver, routes);
        let mut peer = server.connect();
        for _ in 0..2 {
            assert_eq!(peer.ask(get("/in")).text(), expected);
            let answer = peer.ask("POST /job HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
            assert_eq!(answer.text(), expected);
        }
        drop(peer);
        server.finish();
    }
}

fn unmatched_requests_go_to_the_fallback(driver: DriverChoice) {
    fn nothing(request: &Request<'_>) -> Response {
        let body = String::from_utf8_lossy(request.body()).into_owned();
        Response::text(format!("no {:?} {body}", request.param("name"))).with_status(Status::NotFound)
    }
    let routes = Routes::new().inline(Method::Get, "/good/{name}", |_| "good");
    for routes in [routes.clone().fallback_inline(nothing), routes.fallback_worker(nothing)] {
        let server = HttpTestServer::start(driver, routes);
        let mut peer = server.connect();
        for (request, status, text) in [
            ("GET /good/a", 200, "good"),
            ("DELETE /good/a", 405, "405 Method Not Allowed\n"),
            ("GET /", 404, "no None "),
            ("GET /bad", 404, "no None "),
            ("PURGE /bad", 404, "no None "),
            ("GET /%ff", 404, "no None "),
            ("GET /livez", 200, "alive\n"),
        ] {
            let answer = peer.ask(format!("{request} HTTP/1.1\r\nHost: a\r\n\r\n"));
            assert_eq!((answer.status, answer.text()), (status, text), "{request}");
        }
        let answer = peer.ask("POST /bad HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
        assert_eq!(answer.text(), "no None abc");
        drop(peer);
        server.finish();
    }
}

/// Row 4.37: a request in flight is answered after a stop from another thread.
fn another_thread_ends_the_server(driver: DriverChoice) {
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let routes = Routes::new().worker(Method::Get, "/stuck", move |_| {
        let _ = wait.lock().expect("no panics").recv();
        "done"
    });
    let server = HttpTestServer::start(driver, routes);
    let address = server.address();
    let mut peer = server.connect();
    peer.send(get("/stuck"));
    eventually("the worker is busy", || (server.overview().pool.counters().busy == 1).then_some(()));
    let stopper = server.stopper();
    let waiting = std::thread::spawn(move || server.wait());
    std::thread::spawn(move || stopper.clone().stop()).join().expect("stopping does not panic");
    eventually("no connection is accepted any more", || std::net::TcpStream::connect(address).err());
    drop(release);
    let answer = peer.answer();
    assert_eq!((answer.text(), answer.field("Connection")), ("done", Some("close")));
    assert_eq!(peer.rest(), b"");
    drop(peer);
    let overview = waiting.join().expect("waiting does not panic");
    assert_eq!(overview.engine(|counters| &counters.open), 0);
}

/// Row 4.4: a delegated connection occupies a worker, so they are counted, including those that wait for one.
fn delegated_connections_are_counted(driver: DriverChoice) {
    let routes = Routes::new()
        .inline(Method::Get, "/raw", |_| {
            Response::delegate(|mut client| {
                let _ = client.write_all(b"yours");
                let _ = client.read(&mut [0]);
            })
        })
        .inline(Method::Get, "/panic", |_| {
            Response::delegate(|_| panic!("the demonstration of a panic with a connection"))
        });
    let server = HttpTestServer::start(driver, routes);
    let delegated = || server.overview().http.iter().map(|counters| counters.delegated()).sum::<u64>();
    let mut peers = [server.connect(), server.connect()];
    for peer in &mut peers {
        peer.send(get("/raw"));
        assert_eq!(peer.read_exactly(5), b"yours");
    }
    let mut third = server.connect();
    third.send(get("/raw"));
    eventually("the third waits for a worker", || (delegated() == 3).then_some(()));
    let metrics = server.connect().ask(get("/metrics"));
    assert!(metrics.text().contains("\nstilling_http_delegated 3\n"), "{}", metrics.text());
    let page = server.connect().ask(get("/status"));
    assert!(page.text().contains("<td>connections served by workers<td>3"), "{}", page.text());
    drop(peers);
    assert_eq!(third.read_exactly(5), b"yours");
    drop(third);
    let mut unlucky = server.connect();
    unlucky.send(get("/panic"));
    assert_eq!(unlucky.rest(), b"");
    eventually("no worker is held", || (delegated() == 0).then_some(()));
    server.finish();
}
