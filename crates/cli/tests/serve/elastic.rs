//! Elastic options of `serve`: worker threads that follow the load, and accept threads that do slow work.

use crate::support::{DriverUnderTest, MetricsClient, ServerUnderTest, TestPeer, eventually};

on_both_drivers!(
    a_burst_of_slow_work_is_served_by_grown_threads,
    the_pool_shrinks_after_the_burst,
    hunks_and_their_factor_reach_the_pool,
    accept_threads_do_slow_work_themselves,
);

const FAST: &str = "GET /test/fast HTTP/1.1\r\nHost: a\r\n\r\n";
const SLOW: &str = "GET /test/slow HTTP/1.1\r\nHost: a\r\n\r\n";
const PANIC: &str = "GET /test/panic HTTP/1.1\r\nHost: a\r\n\r\n";

/// Sends that many slow requests, each on a connection of its own.
fn crowd(server: &ServerUnderTest, clients: usize) -> Vec<TestPeer> {
    let mut peers: Vec<TestPeer> = (0..clients).map(|_| server.connect()).collect();
    peers.iter_mut().for_each(|peer| peer.send(SLOW));
    peers
}

fn threads(watcher: &mut MetricsClient) -> u64 {
    watcher.fetch().value("worker_threads")
}

/// Row 4.31, `--free-threshold` and `--worker-limit`: a server of two workers runs twelve endless jobs and no more;
/// without a threshold it runs two.
fn a_burst_of_slow_work_is_served_by_grown_threads(driver: DriverUnderTest) {
    for (options, running) in [("", 2), ("--free-threshold 20 --worker-limit 12", 12)] {
        let options = format!("-w 2 -D 600000 --drain-timeout 0.1 {options}");
        let server = ServerUnderTest::start(driver, &options);
        let mut watcher = server.watch();
        let crowd = crowd(&server, 20);
        let metrics = watcher.until("all jobs are in, and all workers busy", |metrics| {
            let (runs, waits) = (metrics.value("jobs_running"), metrics.value("jobs_queued"));
            runs == running && runs + waits == 20
        });
        assert_eq!(metrics.value("worker_threads"), running);
        assert_eq!(metrics.value("worker_threads_failed_total"), 0);
        // Fast requests are unaffected.
        assert_eq!(server.connect().ask(FAST).status, 200);
        let tasks = || std::fs::read_dir(server.proc("task")).expect("the server runs").count() as u64;
        eventually("the started threads are there", || (tasks() >= running).then_some(()));
        assert!(crowd.iter().all(TestPeer::is_silent));
        drop((crowd, watcher));
        server.finish();
    }
}

/// Row 4.31: grown threads answer, and end after the burst; the metrics and the status page show both.
fn the_pool_shrinks_after_the_burst(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(
        driver,
        "-w 1 -D 100 --free-threshold 10 --worker-limit 8 --shrink-after 0.05 --queue-target off",
    );
    let mut watcher = server.watch();
    for round in 1..=2 {
        for mut peer in crowd(&server, 16) {
            assert_eq!(peer.answer().status, 200);
        }
        let metrics = watcher.until("the pool has its first size", |metrics| {
            metrics.value("worker_threads") == 1 && metrics.jobs("done") == 16 * round
        });
        let (started, ended) =
            (metrics.value("worker_threads_started_total"), metrics.value("worker_threads_ended_total"));
        assert_eq!(started, 1 + ended);
        assert!(ended >= round, "nobody was started in round {round}");
    }
    let page = server.connect().ask("GET /status HTTP/1.1\r\nHost: a\r\n\r\n").into_text();
    for row in
        ["worker threads now<td>1", "worker threads started<td>", "worker threads ended, not needed<td>"]
    {
        assert!(page.contains(row), "{row} is not in {page}");
    }
    drop(watcher);
    server.finish();
}

/// Row 4.31, `--spawn-hunk` and `--spawn-factor`: ten endless jobs in a pool of ten.
fn hunks_and_their_factor_reach_the_pool(driver: DriverUnderTest) {
    for (options, expected) in [
        ("", 15),
        ("--spawn-hunk 40", 14),
        ("--spawn-hunk 30", 17),
        ("--spawn-hunk 30 --spawn-factor 90", 14),
    ] {
        let options = format!("-w 10 -D 600000 --free-threshold 25 --drain-timeout 0.1 {options}");
        let server = ServerUnderTest::start(driver, &options);
        let mut watcher = server.watch();
        let crowd = crowd(&server, 10);
        watcher.until("the pool has grown", |metrics| metrics.value("worker_threads") >= expected);
        watcher.until("all jobs run", |metrics| metrics.value("jobs_running") == 10);
        assert_eq!(threads(&mut watcher), expected, "{options}");
        drop((crowd, watcher));
        server.finish();
    }
}

/// Row 4.31, `--accept-workers`: the accept thread does the work itself, one job a turn, and a panic costs one answer;
/// without the option it does none.
fn accept_threads_do_slow_work_themselves(driver: DriverUnderTest) {
    for (options, inline) in [("", 0), ("--accept-workers 1", 20)] {
        let server = ServerUnderTest::start(driver, &format!("-A 1 -w 1 -D 1 {options}"));
        let mut peer = server.connect();
        for _ in 0..10 {
            // The answer shows that the turn is over.
            assert_eq!(peer.ask(SLOW).status, 200);
            assert_eq!(peer.ask(PANIC).status, 500);
        }
        drop(peer);
        let metrics = server.finish();
        assert_eq!((metrics.jobs("done"), metrics.jobs("panicked")), (10, 10));
        assert_eq!(metrics.value("jobs_inline_total"), inline);
    }
}
