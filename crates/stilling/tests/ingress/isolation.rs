//! Tests of isolation between servers of one process, and between stages of one server.

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};

use stilling::DriverChoice;
use stilling::http::{Method, Routes};
use stilling_probe::HANG_TIMEOUT;

use crate::support::{HubTestServer, NatsSubscriber, TestPeer, any_port, eventually};

on_both_drivers!(
    two_servers_of_a_process_share_nothing,
    handlers_that_block_all_workers_stop_neither_accepting_nor_receiving,
);

/// Publishes messages over one connection and reads their acknowledgements; returns the last. Calls for the same
/// server use different counts: it may not have noticed the end of the previous client yet.
#[track_caller]
fn publish(server: SocketAddr, count: usize, payload: &str) -> String {
    let inbox = format!("_INBOX.{count}");
    let mut client = NatsSubscriber::at(server, &inbox);
    for _ in 0..count {
        client.publish("events.a", &inbox, payload);
    }
    (0..count).map(|_| client.next().1).last().expect("at least one")
}

/// Row 0.1: two servers of one process have their own listeners, threads, folders and counters. A message to one
/// server does not reach the other, and the end of one does not affect the other.
fn two_servers_of_a_process_share_nothing(driver: DriverChoice) {
    let start = || HubTestServer::with(driver, |config| config.hub.nats = vec![any_port(), any_port()]);
    let (one, other) = (start(), start());
    let mut addresses = [&one, &other]
        .map(|hub_server| [hub_server.all_at("nats"), hub_server.all_at("http")])
        .concat()
        .concat();
    let ports = addresses.len();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!((addresses.len(), ports), (6, 6), "{addresses:?}");
    assert_ne!(one.data(), other.data());

    let (mut subscriber_of_one, mut subscriber_of_other) =
        (one.subscribe("events.>"), other.subscribe("events.>"));
    let accepted = |hub_server: &HubTestServer| hub_server.overview().engine(|counters| &counters.accepted);
    let before = (accepted(&one), accepted(&other));
    // All listeners of a server lead to its hub.
    for (server, count) in [(one.all_at("nats")[0], 10), (one.all_at("nats")[1], 20)] {
        let last = publish(server, count, "to one");
        assert!(last.contains("\"stream\":\"events\""), "{last}");
    }
    assert_eq!((accepted(&one), accepted(&other)), (before.0 + 2, before.1));
    publish(other.all_at("nats")[1], 7, "to the other");
    assert_eq!((accepted(&one), accepted(&other)), (before.0 + 2, before.1 + 1));
    for _ in 0..30 {
        assert_eq!(subscriber_of_one.next().1, "to one");
    }
    for _ in 0..7 {
        assert_eq!(subscriber_of_other.next().1, "to the other");
    }
    let check = |hub_server: &HubTestServer, count: u64| {
        for metric in ["stream_last_sequence{stream=\"events\"}", "messages_total", "delivered_total"] {
            // Each message went to the subscriber, and its acknowledgement to the publisher.
            let expected = if metric == "delivered_total" { 2 * count } else { count };
            let name = format!("stilling_hub_{metric}");
            eventually(&format!("{name} is {expected}"), || {
                (hub_server.metric(&name) == expected).then_some(())
            });
        }
    };
    check(&one, 30);
    check(&other, 7);

    drop(subscriber_of_one);
    one.finish();
    publish(other.at("nats"), 1, "still there");
    assert_eq!(subscriber_of_other.next().1, "still there");
    check(&other, 8);
    drop(subscriber_of_other);
    other.finish();
}

/// Blocks handlers until the test opens it.
#[derive(Default)]
struct HandlerGate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl HandlerGate {
    /// Blocks the thread until the gate opens.
    fn pass(&self) -> &'static str {
        let closed = self.is_open.lock().expect("no thread panics");
        let waited = self
            .opened
            .wait_timeout_while(closed, HANG_TIMEOUT, |is_open| !*is_open)
            .expect("no thread panics");
        if *waited.0 { "let go\n" } else { "forgotten\n" }
    }

    fn open(&self) {
        *self.is_open.lock().expect("no thread panics") = true;
        self.opened.notify_all();
    }
}

/// Row 0.15: while all workers hang in handlers, connections are accepted, requests without a worker are answered,
/// and messages are acknowledged once they are on disk; when the handlers resume, their requests are answered too.
fn handlers_that_block_all_workers_stop_neither_accepting_nor_receiving(driver: DriverChoice) {
    const WORKERS: usize = 3;
    const CONNECTIONS: usize = 200;
    const HANGING_REQUEST: &str = "GET /hangs HTTP/1.1\r\nHost: a\r\n\r\n";
    const INLINE_REQUEST: &str = "GET /lives HTTP/1.1\r\nHost: a\r\n\r\n";
    let gate = Arc::<HandlerGate>::default();
    let hangs = Arc::clone(&gate);
    let routes = Routes::new().worker(Method::Get, "/hangs", move |_| hangs.pass()).inline(
        Method::Get,
        "/lives",
        |_| "alive\n",
    );
    let hub_server = HubTestServer::with_routes(driver, routes, |config| {
        config.worker_threads = WORKERS;
        // Neither the jobs nor their requests time out.
        config.timeouts.work = 2 * HANG_TIMEOUT;
        config.queue_age_max = 2 * HANG_TIMEOUT;
    });
    // More than there are workers: some wait in the queue.
    let mut hung: Vec<TestPeer> = (0..2 * WORKERS).map(|_| hub_server.connect()).collect();
    hung.iter_mut().for_each(|peer| peer.send(HANGING_REQUEST));
    let jobs = || (hub_server.metric("stilling_jobs_running"), hub_server.metric("stilling_jobs_queued"));
    let all_hang = (WORKERS as u64, WORKERS as u64);
    eventually("all workers hang", || (jobs() == all_hang).then_some(()));

    let accepted = || hub_server.overview().engine(|counters| &counters.accepted);
    let before = accepted();
    // All connections stay open: none is accepted in the place of a closed one.
    let mut clients = Vec::new();
    for number in 0..CONNECTIONS {
        let mut client = hub_server.subscribe(&format!("_INBOX.{number}"));
        client.publish("events.a", &format!("_INBOX.{number}"), "hello");
        let sequence = format!("\"seq\":{}", number + 1);
        let (_, ack) = client.next();
        assert!(ack.contains(&sequence), "{ack}");
        let mut asking = hub_server.connect();
        assert_eq!(asking.ask(INLINE_REQUEST).text(), "alive\n");
        clients.push((client, asking));
    }
    assert_eq!(accepted() - before, 2 * CONNECTIONS as u64);
    assert!(hung.iter().all(TestPeer::is_silent));
    assert_eq!(jobs(), all_hang, "they hung all the time");

    gate.open();
    for peer in &mut hung {
        assert_eq!(peer.answer().text(), "let go\n");
    }
    drop((hung, clients));
    hub_server.finish();
}
