//! Tests that slow clients and long responses block nothing: no worker waits for a client, and a full queue refuses
//! only requests without a response in progress.

use std::io::Read;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use stilling::DriverChoice;
use stilling::http::{Method, Response, Routes, Status};

use crate::support::{HttpTestServer, TestPeer, channel_source, eventually, get};

on_both_drivers!(
    a_slow_reader_holds_no_worker,
    a_full_queue_delays_a_stream_and_does_not_break_it,
    many_streams_share_few_workers,
);

/// Row 4.29's like: one worker serves a slow download and all other requests.
fn a_slow_reader_holds_no_worker(driver: DriverChoice) {
    const LENGTH: usize = 20_000_000;
    let routes = Routes::new()
        .worker(Method::Get, "/long", |_| Response::stream_sized("a/b", LENGTH as u64, std::io::repeat(b'l')))
        .worker(Method::Get, "/open", |_| Response::stream("a/b", std::io::repeat(b'o').take(LENGTH as u64)))
        .worker(Method::Get, "/work", |_| "work");
    let server = HttpTestServer::with(driver, routes, |config| {
        config.worker_threads = 1;
        config.send_buffer = Some(16_384);
    });
    let (mut slow, mut open) = (
        TestPeer::connect_with_small_buffer(server.address()),
        TestPeer::connect_with_small_buffer(server.address()),
    );
    slow.send(get("/long"));
    open.send(get("/open"));
    slow.head();
    eventually("both outputs are blocked", || {
        (server.overview().engine(|counters| &counters.blocked_sends) >= 2).then_some(())
    });
    let mut other = server.connect();
    for _ in 0..100 {
        assert_eq!(other.ask(get("/work")).text(), "work");
    }
    let pool = server.overview().pool.counters();
    assert!(pool.done < 200, "nothing was read ahead of the slow readers: {pool:?}");
    assert!(slow.read_exactly(LENGTH).iter().all(|byte| *byte == b'l'));
    assert!(open.answer().body == vec![b'o'; LENGTH]);
    drop((slow, open, other));
    server.finish();
}

/// A response in progress is not refused: it continues when the queue has room.
fn a_full_queue_delays_a_stream_and_does_not_break_it(driver: DriverChoice) {
    let (release, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let (source_sender, source) = channel_source();
    let source = Mutex::new(Some(source));
    let routes = Routes::new()
        .worker(Method::Get, "/feed", move |_| {
            Response::stream("a/b", source.lock().expect("no panics").take().expect("asked once"))
        })
        .worker(Method::Get, "/stuck", move |_| {
            let _ = wait.lock().expect("no panics").recv();
            "done"
        });
    let server = HttpTestServer::with(driver, routes, |config| {
        (config.shards, config.worker_threads, config.queue_max) = (1, 1, 1);
    });
    let mut stream = server.connect();
    stream.send(get("/feed"));
    source_sender.send(Ok(b"first".to_vec())).expect("the source is there");
    stream.head();
    assert_eq!(stream.chunk().as_deref(), Some(&b"first"[..]));
    // The worker now waits for the next piece. One more job waits for the worker, and the queue is full.
    eventually("the worker reads", || (server.overview().pool.counters().busy == 1).then_some(()));
    let mut blocked = server.connect();
    blocked.send(get("/stuck"));
    eventually("the queue is full", || (server.overview().pool.counters().queued == 1).then_some(()));
    // The worker returns the piece and takes the stuck job; then the queue is filled again.
    source_sender.send(Ok(b"second".to_vec())).expect("the source is there");
    assert_eq!(stream.chunk().as_deref(), Some(&b"second"[..]));
    let mut others = Vec::new();
    eventually("a request is refused: the queue is full again", || {
        let mut other = server.connect();
        other.send(get("/stuck"));
        others.push(other);
        (server.answered(Status::ServiceUnavailable) > 0).then_some(())
    });
    let long = vec![b'x'; 1_000_000];
    source_sender.send(Ok(long.clone())).expect("the source is there");
    drop((source_sender, release));
    let mut body = Vec::new();
    while let Some(chunk) = stream.chunk() {
        body.extend(chunk);
    }
    assert!(body == long, "{} bytes", body.len());
    assert_eq!(blocked.answer().text(), "done");
    let kinds: Vec<u16> = others.iter_mut().map(|other| other.answer().status).collect();
    assert!(kinds.contains(&503) && kinds.iter().all(|status| [200, 503].contains(status)), "{kinds:?}");
    drop((stream, blocked, others));
    server.finish();
}

/// Row 4.3: a queue of one slot, two workers, many streams at once: all complete.
fn many_streams_share_few_workers(driver: DriverChoice) {
    const STREAMS: usize = 40;
    const LENGTH: u64 = 400_000;
    let routes = Routes::new()
        .inline(Method::Get, "/s", |_| Response::stream("a/b", std::io::repeat(b's').take(LENGTH)));
    let server = HttpTestServer::with(driver, routes, |config| config.queue_max = 1);
    let mut peers: Vec<TestPeer> = (0..STREAMS).map(|_| server.connect()).collect();
    for _ in 0..3 {
        peers.iter_mut().for_each(|peer| peer.send(get("/s")));
        for peer in &mut peers {
            assert!(peer.answer().body == vec![b's'; LENGTH as usize]);
        }
    }
    drop(peers);
    server.finish();
}
