//! Tests of bodies that are read while they are sent: framed for the client's version, delivered piece by piece.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use stilling::DriverChoice;
use stilling::http::{Method, Request, Response, Routes};

use crate::support::{CountedSource, HttpTestServer, TestPeer, channel_source, eventually, get, pattern};

on_both_drivers!(
    a_body_is_framed_as_the_client_understands_it,
    a_source_is_not_read_beyond_its_length,
    a_short_stream_has_a_content_length,
    each_piece_of_a_source_is_sent_at_once,
    a_source_is_dropped_with_its_client,
    a_drain_lets_a_stream_finish,
);

const LENGTH: usize = 300_000;

fn source() -> impl Read {
    std::io::Cursor::new(pattern(LENGTH))
}

/// RFC 9112 §6, §7.1: a known length for all clients; otherwise chunks, or until the end of the connection.
fn a_body_is_framed_as_the_client_understands_it(driver: DriverChoice) {
    fn sized(_: &Request<'_>) -> Response {
        Response::stream_sized("a/b", LENGTH as u64, source())
    }
    fn open(_: &Request<'_>) -> Response {
        Response::stream("a/b", source())
    }
    let routes = Routes::new()
        .worker(Method::Get, "/job/sized", sized)
        .worker(Method::Get, "/job/open", open)
        .inline(Method::Get, "/in/sized", sized)
        .inline(Method::Get, "/in/open", open)
        .inline(Method::Get, "/good", |_| "good");
    let expected = pattern(LENGTH);
    for workers in [0, 2] {
        let server = HttpTestServer::with(driver, routes.clone(), |config| config.worker_threads = workers);
        for route in ["job", "in"] {
            for (path, version, field, coding, connection) in [
                ("sized", "1.1", "", None, None),
                ("sized", "1.0", "Connection: keep-alive\r\n", None, Some("keep-alive")),
                ("sized", "1.0", "", None, Some("close")),
                ("open", "1.1", "", Some("chunked"), None),
                ("open", "1.1", "Connection: close\r\n", Some("chunked"), Some("close")),
                ("open", "1.0", "Connection: keep-alive\r\n", None, Some("close")),
                ("open", "1.0", "", None, Some("close")),
            ] {
                let mut peer = server.connect();
                let answer =
                    peer.ask(format!("GET /{route}/{path} HTTP/{version}\r\nHost: a\r\n{field}\r\n"));
                let what = format!("{route}, {path}, {version}, {field:?}: {}", answer.head);
                assert_eq!(answer.field("Transfer-Encoding"), coding, "{what}");
                assert_eq!(answer.field("Connection"), connection, "{what}");
                assert_eq!(answer.field("Content-Length").is_some(), path == "sized", "{what}");
                assert!(answer.body == expected, "another body of {} bytes: {what}", answer.body.len());
                if connection == Some("close") {
                    assert_eq!(peer.rest(), b"", "{what}");
                } else {
                    assert_eq!(peer.ask(get("/good")).text(), "good", "{what}");
                }
            }
        }
        server.finish();
    }
}

fn a_source_is_not_read_beyond_its_length(driver: DriverChoice) {
    /// Panics on a read beyond the announced length.
    struct GuardedSource(usize);
    impl Read for GuardedSource {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(into.len()).expect("read beyond what was announced");
            into.fill(b'g');
            Ok(into.len())
        }
    }
    let routes = Routes::new()
        .worker(Method::Get, "/job", |_| Response::stream_sized("a/b", 100_001, GuardedSource(100_001)))
        .inline(Method::Get, "/in", |_| Response::stream_sized("a/b", 100_001, GuardedSource(100_001)))
        .inline(Method::Get, "/empty", |_| Response::stream_sized("a/b", 0, GuardedSource(0)));
    let server = HttpTestServer::start(driver, routes);
    let mut peer = server.connect();
    for _ in 0..3 {
        for (path, length) in [("/job", 100_001), ("/in", 100_001), ("/empty", 0)] {
            let answer = peer.ask(get(path));
            assert!(answer.body == vec![b'g'; length], "{path}");
        }
    }
    drop(peer);
    server.finish();
}

/// A worker that has the whole body sends its length, so that even an HTTP/1.0 connection can persist.
fn a_short_stream_has_a_content_length(driver: DriverChoice) {
    let routes = Routes::new()
        .worker(Method::Get, "/short", |_| Response::stream("a/b", std::io::empty()))
        .worker(Method::Get, "/sized", |_| Response::stream_sized("a/b", 3, std::io::Cursor::new("abcdef")));
    let server = HttpTestServer::start(driver, routes);
    let mut peer = server.connect();
    for (path, body) in [("/short", ""), ("/sized", "abc")] {
        let answer = peer.ask(format!("GET {path} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
        assert_eq!(answer.text(), body);
        assert_eq!(answer.field("Content-Length"), Some(body.len().to_string().as_str()));
        assert_eq!(answer.field("Connection"), Some("keep-alive"));
    }
    drop(peer);
    server.finish();
}

fn each_piece_of_a_source_is_sent_at_once(driver: DriverChoice) {
    let (source_sender, source) = channel_source();
    let source = Mutex::new(Some(source));
    let routes = Routes::new().worker(Method::Get, "/feed", move |_| {
        Response::stream("text/plain", source.lock().expect("no panics").take().expect("asked once"))
    });
    let server = HttpTestServer::start(driver, routes);
    let mut peer = server.connect();
    let feed = |piece: &[u8]| source_sender.send(Ok(piece.to_vec())).expect("the source is there");
    peer.send(get("/feed"));
    feed(b"first");
    let head = peer.head();
    assert_eq!(head.field("Transfer-Encoding"), Some("chunked"));
    assert_eq!(peer.chunk().as_deref(), Some(&b"first"[..]));
    for number in 0..50 {
        // The next piece does not exist yet.
        assert!(peer.is_silent());
        let piece = format!("piece {number}");
        feed(piece.as_bytes());
        assert_eq!(peer.chunk().as_deref(), Some(piece.as_bytes()));
    }
    drop(source_sender);
    assert_eq!(peer.chunk(), None);
    assert_eq!(peer.ask(get("/livez")).text(), "alive\n");
    drop(peer);
    server.finish();
}

/// Row 4.12: a source is dropped when its client has gone.
fn a_source_is_dropped_with_its_client(driver: DriverChoice) {
    let alive = Arc::new(AtomicUsize::new(0));
    let (of_worker, of_shard) = (Arc::clone(&alive), Arc::clone(&alive));
    let routes = Routes::new()
        .worker(Method::Get, "/job", move |_| {
            Response::stream("a/b", CountedSource::new(u64::MAX, &of_worker))
        })
        .inline(Method::Get, "/in", move |_| {
            Response::stream_sized("a/b", 1 << 40, CountedSource::new(u64::MAX, &of_shard))
        });
    for workers in [0, 2] {
        let server = HttpTestServer::with(driver, routes.clone(), |config| config.worker_threads = workers);
        for round in 0..10 {
            let mut peer = TestPeer::connect_with_small_buffer(server.address());
            peer.send(get(["/job", "/in"][round % 2]));
            peer.head();
            peer.read_exactly(10_000 * round);
            assert_eq!(alive.load(Ordering::SeqCst), 1);
            if round % 3 == 0 {
                peer.reset();
            } else {
                drop(peer);
            }
            eventually("the source is dropped", || (alive.load(Ordering::SeqCst) == 0).then_some(()));
        }
        // The body of a response to HEAD is not sent.
        let mut peer = server.connect();
        peer.send(get("/in").replace("GET", "HEAD"));
        assert_eq!(peer.head().status, 200);
        eventually("the source is dropped", || (alive.load(Ordering::SeqCst) == 0).then_some(()));
        drop(peer);
        server.finish();
    }
}

/// Row 4.37: a response in progress is finished, then the server ends.
fn a_drain_lets_a_stream_finish(driver: DriverChoice) {
    let (source_sender, source) = channel_source();
    let source = Mutex::new(Some(source));
    let routes = Routes::new()
        .worker(Method::Get, "/feed", move |_| {
            Response::stream("text/plain", source.lock().expect("no panics").take().expect("asked once"))
        })
        .worker(Method::Get, "/sized", |_| Response::stream_sized("a/b", 3_000_000, std::io::repeat(b's')));
    let server = HttpTestServer::start(driver, routes);
    let address = server.address();
    let (mut fed, mut sized) = (server.connect(), TestPeer::connect_with_small_buffer(address));
    fed.send(get("/feed"));
    source_sender.send(Ok(b"before".to_vec())).expect("the source is there");
    fed.head();
    assert_eq!(fed.chunk().as_deref(), Some(&b"before"[..]));
    sized.send(get("/sized"));
    sized.head();
    let end = std::thread::spawn(move || server.finish());
    eventually("no connection is accepted any more", || std::net::TcpStream::connect(address).err());
    source_sender.send(Ok(b"after".to_vec())).expect("the source is there");
    assert_eq!(fed.chunk().as_deref(), Some(&b"after"[..]));
    drop(source_sender);
    assert_eq!(fed.chunk(), None);
    assert!(sized.read_exactly(3_000_000).iter().all(|byte| *byte == b's'));
    assert_eq!((fed.rest(), sized.rest()), (Vec::new(), Vec::new()));
    end.join().expect("the server ends well");
}
