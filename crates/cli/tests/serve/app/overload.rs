//! More requests than the processes can answer: order of waiting, rejections, service of the rest.

use super::{before_fakes, get};
use crate::support::{DriverUnderTest, TestPeer};

on_both_drivers! {
    waiting_requests_are_served_in_order,
    a_full_queue_refuses_at_once_with_retry_after,
    a_request_that_waited_too_long_is_refused,
    slots_are_filled_before_a_request_waits,
}

/// Row 4.3: first come, first served.
fn waiting_requests_are_served_in_order(driver: DriverUnderTest) {
    const CLIENTS: u64 = 12;
    let (server, mut watcher) = before_fakes(driver, "-A 1 --queue-target off");
    // The process reports the order of its requests; on a busy machine the arrival of the responses is no measure of
    // it.
    let request = get("/turn/20");
    let mut waiting: Vec<TestPeer> = Vec::new();
    for number in 1..=CLIENTS {
        let mut peer = server.connect();
        peer.send(&request);
        watcher.until("the request is in", |metrics| {
            let known = ["jobs_queued", "jobs_running"].map(|name| metrics.value(name)).iter().sum::<u64>();
            known + metrics.jobs("done") >= number
        });
        waiting.push(peer);
    }
    let order: Vec<String> = waiting.iter_mut().map(|peer| peer.answer().into_text()).collect();
    assert_eq!(order, (1..=CLIENTS).map(|number| number.to_string()).collect::<Vec<_>>());
    drop((waiting, watcher));
    assert_eq!(server.finish().jobs("done"), CLIENTS);
}

/// Row 4.26: a fast 503 instead of a long wait.
fn a_full_queue_refuses_at_once_with_retry_after(driver: DriverUnderTest) {
    let (server, mut watcher) = before_fakes(driver, "--max-queue 3 --app-timeout 0.5");
    let mut busy = server.connect();
    busy.send(get("/hang"));
    watcher.until("the process is busy", |metrics| metrics.value("jobs_running") == 1);
    let mut waiting: Vec<TestPeer> = (0..3).map(|_| server.connect()).collect();
    for (number, peer) in waiting.iter_mut().enumerate() {
        peer.send(get("/pid"));
        watcher.until("it waits", |metrics| metrics.value("jobs_queued") == number as u64 + 1);
    }
    let mut refused = server.connect();
    for _ in 0..10 {
        let answer = refused.ask(get("/pid"));
        assert_eq!((answer.status, answer.field("Retry-After")), (503, Some("1")));
    }
    assert_eq!(busy.answer().status, 504);
    for peer in &mut waiting {
        assert_eq!(peer.answer().status, 200, "who has a place in the queue is served");
    }
    assert_eq!(refused.ask(get("/pid")).status, 200);
    drop((busy, waiting, refused, watcher));
    assert_eq!(server.finish().jobs("refused"), 10);
}

/// Row 4.26.
fn a_request_that_waited_too_long_is_refused(driver: DriverUnderTest) {
    let (server, mut watcher) = before_fakes(driver, "--queue-timeout 0.1 --app-timeout 1");
    let mut busy = server.connect();
    busy.send(get("/hang"));
    watcher.until("the process is busy", |metrics| metrics.value("jobs_running") == 1);
    let mut peer = server.connect();
    let answer = peer.ask(get("/pid"));
    assert_eq!((answer.status, answer.field("Retry-After")), (503, Some("1")));
    assert_eq!(busy.answer().status, 504);
    watcher.until("another process is there", |metrics| {
        super::lives(metrics, "started") == 2 && super::ready(metrics) == 1
    });
    assert_eq!(peer.ask(get("/pid")).status, 200);
    drop((busy, peer, watcher));
    server.finish();
}

/// Row 1.3: two processes with two slots each answer four at once, and the fifth waits.
fn slots_are_filled_before_a_request_waits(driver: DriverUnderTest) {
    let (server, mut watcher) = before_fakes(driver, "--processes 2 --app-concurrency 2 --app-timeout 2");
    let mut busy: Vec<TestPeer> = (0..4).map(|_| server.connect()).collect();
    for (number, peer) in busy.iter_mut().enumerate() {
        peer.send(get("/hang"));
        watcher.until("it is asked", |metrics| metrics.value("jobs_running") == number as u64 + 1);
    }
    let mut fifth = server.connect();
    fifth.send(get("/pid"));
    watcher.until("the fifth waits", |metrics| metrics.value("jobs_queued") == 1);
    for peer in &mut busy {
        let status = peer.answer().status;
        // The first late request of a process ends the process, and with it the other request.
        assert!(matches!(status, 502 | 504), "{status}");
    }
    assert_eq!(fifth.answer().status, 200);
    drop((busy, fifth, watcher));
    server.finish();
}
