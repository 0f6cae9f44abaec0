//! Tests of jobs that lose their request by timeout, or their client, before a worker takes them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stilling::DriverChoice;
use stilling::http::{Method, Request, Routes};

use crate::support::{HttpTestServer, TestPeer, eventually, get};

on_both_drivers!(
    an_answer_never_reaches_another_request,
    jobs_of_disconnected_clients_are_cancelled,
    a_stream_of_a_disconnected_client_leaves_the_queue,
);

/// Routes with a job that runs until the sender is dropped, and a counted job that returns its request's number.
fn gated() -> (Sender<()>, Arc<AtomicUsize>, Routes) {
    let (gate, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let routes = Routes::new()
        .worker(Method::Get, "/stuck", move |_: &Request<'_>| {
            let _ = wait.lock().expect("no test panics here").recv();
            "done"
        })
        .worker(Method::Get, "/number/{number}", move |request: &Request<'_>| {
            counted.fetch_add(1, Ordering::SeqCst);
            request.param("number").expect("it is in the pattern").into_owned()
        });
    (gate, runs, routes)
}

/// A client with a request that keeps the only worker busy.
fn blocked(server: &HttpTestServer) -> TestPeer {
    let mut blocked = server.connect();
    blocked.send(get("/stuck"));
    eventually("the worker is busy", || (server.overview().pool.counters().busy == 1).then_some(()));
    blocked
}

/// Row 4.26: a response belongs to its own request, whatever requests of the connection timed out before.
fn an_answer_never_reaches_another_request(driver: DriverChoice) {
    let (gate, runs, routes) = gated();
    let server = HttpTestServer::with(driver, routes, |config| {
        (config.shards, config.worker_threads) = (1, 1);
        config.timeouts.work = Duration::from_millis(20);
    });
    let mut first = blocked(&server);
    let mut peer = server.connect();
    // Twice the range of an eight-bit number, so that each number occurs twice.
    for number in 0..256 {
        assert_eq!(peer.ask(get(&format!("/number/{number}"))).status, 503);
    }
    assert_eq!((first.answer().status, runs.load(Ordering::SeqCst)), (503, 0));
    peer.send(get("/number/256"));
    drop(gate);
    let answer = peer.answer();
    assert!(answer.status == 503 || answer.text() == "256", "{}: {}", answer.status, answer.text());
    drop((peer, first));
    let overview = server.finish();
    assert_eq!(overview.http(|counters| &counters.late_results), 0);
    assert!(runs.load(Ordering::SeqCst) <= 1, "no job of a request that was answered otherwise is run");
}

/// Rows 4.12 and 4.26: these jobs leave the queue and release their memory while the workers are busy, and never run.
fn jobs_of_disconnected_clients_are_cancelled(driver: DriverChoice) {
    const CLIENTS: u64 = 50;
    let (gate, runs, routes) = gated();
    let server = HttpTestServer::with(driver, routes, |config| {
        (config.shards, config.worker_threads, config.queue_max) = (1, 1, CLIENTS as usize);
    });
    let mut first = blocked(&server);
    let (held, counters) = (server.held(), || server.overview().pool.counters());
    for round in 1..=2 {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let mut client = server.connect();
                client.send(get(&format!("/number/{number}")));
                client
            })
            .collect();
        eventually("all wait", || (counters().queued == CLIENTS).then_some(()));
        assert!(server.held() > held);
        clients.into_iter().for_each(TestPeer::reset);
        eventually("all are cancelled", || (counters().cancelled == round * CLIENTS).then_some(()));
        assert_eq!((counters().queued, counters().busy, server.held()), (0, 1, held));
    }
    drop(gate);
    assert_eq!(first.answer().text(), "done");
    assert_eq!(first.ask(get("/number/7")).text(), "7");
    assert_eq!(runs.load(Ordering::SeqCst), 1, "the one that was waited for");
    drop(first);
    server.finish();
}

/// Row 4.12: the same for a job that reads the next piece of a response in progress.
fn a_stream_of_a_disconnected_client_leaves_the_queue(driver: DriverChoice) {
    let (gate, _, routes) = gated();
    let alive = Arc::new(AtomicUsize::new(0));
    let sources = Arc::clone(&alive);
    let routes = routes.inline(Method::Get, "/stream", move |_| {
        stilling::http::Response::stream("a/b", crate::support::CountedSource::new(1 << 30, &sources))
    });
    let server =
        HttpTestServer::with(driver, routes, |config| (config.shards, config.worker_threads) = (1, 1));
    let mut first = blocked(&server);
    let mut client = server.connect();
    client.send(get("/stream"));
    eventually("its piece waits", || (server.overview().pool.counters().queued == 1).then_some(()));
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    client.reset();
    eventually("it is cancelled", || (server.overview().pool.counters().cancelled == 1).then_some(()));
    eventually("its source is gone", || (alive.load(Ordering::SeqCst) == 0).then_some(()));
    drop(gate);
    assert_eq!(first.answer().text(), "done");
    drop(first);
    server.finish();
}
