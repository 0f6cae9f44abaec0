//! Slow work: its queue, its limits, its failures.

use crate::support::{DriverUnderTest, MetricsClient, ServerUnderTest, TestPeer};

on_both_drivers!(
    hung_workers_cost_their_own_requests_only,
    a_full_queue_sheds_at_once,
    a_standing_queue_is_shed,
    work_that_takes_too_long_is_given_up,
    the_time_for_work_counts_from_the_request,
    waiting_work_is_done_in_its_order,
    a_panic_costs_one_answer,
    a_peer_may_go_while_its_work_runs,
);

const FAST: &str = "GET /test/fast HTTP/1.1\r\nHost: a\r\n\r\n";
const SLOW: &str = "GET /test/slow HTTP/1.1\r\nHost: a\r\n\r\n";
const PANIC: &str = "GET /test/panic HTTP/1.1\r\nHost: a\r\n\r\n";

/// A connection with a slow request that is the `number`-th of the workers.
fn ask_slowly(server: &ServerUnderTest, watcher: &mut MetricsClient, number: u64) -> TestPeer {
    let mut peer = server.connect();
    peer.send(SLOW);
    watcher.until("the job is in", |metrics| {
        metrics.value("jobs_running") + metrics.value("jobs_queued") + metrics.jobs("done") >= number
    });
    peer
}

/// Row 4.26: a job that waits too long is answered 503 with a retry time; fast requests are unaffected.
fn hung_workers_cost_their_own_requests_only(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-w 1 -D 60000 --queue-timeout 0.3 --drain-timeout 0.2");
    let mut watcher = server.watch();
    let hung = ask_slowly(&server, &mut watcher, 1);
    watcher.until("the worker hangs", |metrics| metrics.value("jobs_running") == 1);
    let mut waiting: Vec<TestPeer> = (0..10).map(|_| server.connect()).collect();
    for peer in &mut waiting {
        peer.send(SLOW);
    }
    let mut honest = server.connect();
    watcher.until("all that wait are told", |metrics| {
        assert_eq!(honest.ask(FAST).status, 200);
        metrics.answers(503) == 10
    });
    for peer in &mut waiting {
        let answer = peer.answer();
        assert_eq!((answer.status, answer.field("Retry-After")), (503, Some("1")));
        assert_eq!(answer.text(), "503 Service Unavailable\n");
        // The connection stays usable.
        assert_eq!(peer.ask(FAST).status, 200);
    }
    assert!(hung.is_silent());
    assert_eq!(server.finish().closed("drain_timeout"), 1);
}

/// Row 4.26: the length of the queue is limited, too.
fn a_full_queue_sheds_at_once(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-w 1 -D 60000 --max-queue 2 --drain-timeout 0.2");
    let mut watcher = server.watch();
    let mut inside = vec![ask_slowly(&server, &mut watcher, 1)];
    watcher.until("the worker hangs", |metrics| metrics.value("jobs_running") == 1);
    inside.extend((2..=3).map(|number| ask_slowly(&server, &mut watcher, number)));
    let mut peer = server.connect();
    for _ in 0..5 {
        let answer = peer.ask(SLOW);
        assert_eq!((answer.status, answer.field("Retry-After")), (503, Some("1")));
    }
    assert_eq!(peer.ask(FAST).status, 200);
    assert_eq!(watcher.fetch().jobs("refused"), 5);
    assert!(inside.iter().all(TestPeer::is_silent));
    drop((inside, peer, watcher));
    server.finish();
}

/// Rows 4.26, 5.4: by default, a job that has waited long in a standing queue is answered 503, and the others are done.
fn a_standing_queue_is_shed(driver: DriverUnderTest) {
    const CLIENTS: u64 = 60;
    let server = ServerUnderTest::start(driver, "-w 1 -D 100");
    let mut watcher = server.watch();
    let mut waiting: Vec<TestPeer> = (0..CLIENTS).map(|_| server.connect()).collect();
    for peer in &mut waiting {
        peer.send(SLOW);
    }
    let answers: Vec<_> = waiting.iter_mut().map(TestPeer::answer).collect();
    let shed = answers.iter().filter(|answer| answer.status == 503).count() as u64;
    assert!(answers.iter().all(|answer| [200, 503].contains(&answer.status)));
    assert!(
        answers.iter().all(|answer| (answer.field("Retry-After") == Some("1")) == (answer.status == 503))
    );
    assert!(0 < shed && shed < CLIENTS, "{shed} were shed");
    let metrics = watcher.fetch();
    assert_eq!((metrics.jobs("shed"), metrics.jobs("done")), (shed, CLIENTS - shed));
    // The queue is short again, and no request is rejected.
    for peer in &mut waiting {
        assert_eq!(peer.ask(FAST).status, 200);
    }
    assert_eq!(waiting[0].ask(SLOW).status, 200);
    drop((waiting, watcher));
    server.finish();
}

/// Row 4.35: a job that a worker does not finish is answered anyway.
fn work_that_takes_too_long_is_given_up(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-w 1 -D 60000 --queue-timeout 0.1 --work-timeout 0.2");
    let mut peer = server.connect();
    let answer = peer.ask(SLOW);
    assert_eq!((answer.status, answer.field("Connection")), (503, Some("close")));
    assert_eq!(peer.rest(), b"");
    assert_eq!(server.finish().closed("work_timeout"), 1);
}

/// Row 4.35: however long a job may wait for a worker, the answer comes at the work timeout. A connection with its job
/// in a worker closes; one with a waiting job stays open.
fn the_time_for_work_counts_from_the_request(driver: DriverUnderTest) {
    let server =
        ServerUnderTest::start(driver, "-A 1 -w 1 -D 600000 --queue-timeout 3600 --work-timeout 0.3");
    let mut watcher = server.watch();
    let mut running = ask_slowly(&server, &mut watcher, 1);
    watcher.until("the worker has it", |metrics| metrics.value("jobs_running") == 1);
    let mut waiting = server.connect();
    let answer = waiting.ask(SLOW);
    assert_eq!((answer.status, answer.field("Connection")), (503, None));
    assert_eq!(waiting.ask(FAST).status, 200);
    let answer = running.answer();
    assert_eq!((answer.status, answer.field("Connection")), (503, Some("close")));
    assert_eq!(running.rest(), b"");
    // The server lingers until its peer has gone, too.
    watcher.until("the connection is counted", |metrics| metrics.closed("work_timeout") == 1);
    drop((waiting, watcher));
    server.finish();
}

/// Row 4.3: first come, first served.
fn waiting_work_is_done_in_its_order(driver: DriverUnderTest) {
    const CLIENTS: u64 = 20;
    // One shard: it queues received requests before it answers the metrics request.
    let server = ServerUnderTest::start(driver, "-A 1 -w 1 -D 20 --queue-target off");
    let mut watcher = server.watch();
    let mut waiting: Vec<TestPeer> = Vec::new();
    for number in 1..=CLIENTS {
        let mut peer = server.connect();
        peer.send(SLOW);
        watcher.until_received("the request is in", |received| received == number * SLOW.len() as u64);
        waiting.push(peer);
    }
    let mut answered = vec![false; waiting.len()];
    while answered.contains(&false) {
        // From the last to the first: when a later one has its answer, the earlier ones had theirs before.
        for at in (0..waiting.len()).rev() {
            answered[at] = !waiting[at].is_silent();
        }
        let first_open = answered.iter().position(|done| !done).unwrap_or(answered.len());
        assert!(!answered[first_open..].contains(&true), "out of order: {answered:?}");
        // Its answer ends the wait for this round.
        if let Some(peer) = waiting.get_mut(first_open) {
            peer.wait_for_bytes();
        }
    }
    drop((waiting, watcher));
    assert_eq!(server.finish().jobs("done"), CLIENTS);
}

/// Row 4.12: a job that panics is answered 500; the worker, the connection and the server continue.
fn a_panic_costs_one_answer(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-w 1 -D 1");
    let mut peer = server.connect();
    for _ in 0..3 {
        let answer = peer.ask(PANIC);
        assert_eq!((answer.status, answer.text()), (500, "500 Internal Server Error\n"));
        assert_eq!(peer.ask(SLOW).status, 200);
        assert_eq!(peer.ask(FAST).status, 200);
    }
    drop(peer);
    let metrics = server.finish();
    assert_eq!((metrics.jobs("panicked"), metrics.jobs("done")), (3, 3));
}

/// Row 4.12: results for closed connections are dropped and never reach their successors in the slot.
fn a_peer_may_go_while_its_work_runs(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-A 1 -w 1 -D 50 -C 3");
    let mut watcher = server.watch();
    for round in 1..=10 {
        let gone = ask_slowly(&server, &mut watcher, 2 * round - 1);
        if round % 2 == 0 {
            gone.reset();
        } else {
            drop(gone);
        }
        // There are three slots: this connection soon reuses a freed one.
        let mut heir = server.connect();
        assert_eq!(heir.ask(FAST.to_owned() + FAST).status, 200);
        assert_eq!(heir.answer().status, 200);
        assert_eq!(heir.ask(SLOW).status, 200);
        assert!(heir.is_silent());
        watcher.until("both jobs are done", |metrics| metrics.jobs("done") == 2 * round);
    }
    watcher.until_alone();
    drop(watcher);
    server.finish();
}
