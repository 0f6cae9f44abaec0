//! Several pools of worker processes: which pool answers, and what they share.

use std::fmt::Write;

use tempfile::TempDir;

use super::{fake, get, number};
use crate::support::{DriverUnderTest, ServerUnderTest, binary};

on_both_drivers! {
    the_pool_with_the_longest_pattern_answers,
    a_flooded_pool_takes_nothing_from_another,
    a_pool_that_does_not_start_is_named_and_the_others_serve,
    paths_without_a_pool_are_not_found,
}

/// A server with a pool for each name, pattern and command, with further options, separated by blanks.
fn before_pools(driver: DriverUnderTest, pools: &[(&str, &str, &str)], options: &str) -> ServerUnderTest {
    let folder = TempDir::new().expect("a folder");
    let mut settings = String::new();
    for (name, pattern, command) in pools {
        let _ = writeln!(settings, "[[app]]\nname = '{name}'\nmatch = '{pattern}'\ncommand = {command:?}");
    }
    let path = folder.path().join("stilling.toml");
    std::fs::write(&path, settings).expect("it can be written");
    let mut server = binary();
    server.args(["serve", "--listen", "127.0.0.1:0", "--driver", driver.name(), "--config"]);
    server.arg(path).args(options.split_whitespace());
    ServerUnderTest::spawn(server)
}

fn processes(metrics: &crate::support::Metrics, pool: &str, state: &str) -> u64 {
    metrics.value(&format!("app_processes{{pool=\"{pool}\",state=\"{state}\"}}"))
}

fn requests(metrics: &crate::support::Metrics, pool: &str, outcome: &str) -> u64 {
    metrics.value(&format!("app_requests_total{{pool=\"{pool}\",outcome=\"{outcome}\"}}"))
}

/// Row 1.3: each pool has its own processes and counters; their sums are the server's.
fn the_pool_with_the_longest_pattern_answers(driver: DriverUnderTest) {
    let fake = fake();
    let pools = [("rest", "/*", &*fake), ("pids", "/pid/*", &fake), ("one", "/pid/1", &fake)];
    let server = before_pools(driver, &pools, "");
    let mut watcher = server.watch();
    watcher.until("all are ready", |metrics| super::ready(metrics) == 3);
    let mut peer = server.connect();
    let [rest, pids, one] = ["/pid", "/pid/0", "/pid/1"].map(|path| number(&mut peer, path));
    assert!(rest != pids && pids != one && one != rest, "{rest} {pids} {one}");
    assert_eq!(["/pid?/pid/1", "/pid/2", "/pid/1?x"].map(|path| number(&mut peer, path)), [rest, pids, one]);
    let answer = peer.ask(get("/readyz"));
    let each = "rest: 1 of 1 ready\npids: 1 of 1 ready\none: 1 of 1 ready\n";
    assert_eq!((answer.status, answer.into_text()), (200, format!("ready: 3 of 3 worker processes\n{each}")));
    let answer = peer.ask(get("/status")).into_text();
    assert!(answer.contains("Worker processes: pids at /pid/*"), "{answer}");
    drop((peer, watcher));
    let metrics = server.finish();
    assert_eq!(["rest", "pids", "one"].map(|pool| requests(&metrics, pool, "done")), [2, 2, 2]);
    assert_eq!(metrics.jobs("done"), 6);
}

/// Row 1.6: a full queue refuses the requests of its own pool only.
fn a_flooded_pool_takes_nothing_from_another(driver: DriverUnderTest) {
    let fake = fake();
    let pools = [("slow", "/hang", &*fake), ("rest", "/*", &fake)];
    let server = before_pools(driver, &pools, "--max-queue 1");
    let mut watcher = server.watch();
    watcher.until("all are ready", |metrics| super::ready(metrics) == 2);
    let mut flood: Vec<_> = (0..2).map(|_| server.connect()).collect();
    for (peer, state) in flood.iter_mut().zip(["running", "queued"]) {
        peer.send(get("/hang"));
        let name = format!("app_requests_now{{pool=\"slow\",state=\"{state}\"}}");
        watcher.until("it is in the pool", |metrics| metrics.value(&name) == 1);
    }
    let mut peer = server.connect();
    for _ in 0..10 {
        assert_eq!(peer.ask(get("/hang")).status, 503);
        assert_eq!(peer.ask(get("/pid")).status, 200);
    }
    drop((flood, peer));
    let metrics = watcher.fetch();
    assert_eq!(["slow", "rest"].map(|pool| requests(&metrics, pool, "refused")), [10, 0]);
    assert_eq!(["slow", "rest"].map(|pool| requests(&metrics, pool, "done")), [0, 10]);
    drop(watcher);
}

/// Row 1.24: a crash loop is visible in `/readyz` and the metrics with the name of its pool.
fn a_pool_that_does_not_start_is_named_and_the_others_serve(driver: DriverUnderTest) {
    let fake = fake();
    let pools = [("broken", "/broken/*", "exit 7"), ("rest", "/*", &*fake)];
    let server = before_pools(driver, &pools, "--queue-timeout 0.2");
    let mut watcher = server.watch();
    watcher.until("one is ready, the other waits for long", |metrics| {
        processes(metrics, "rest", "ready") == 1
            && processes(metrics, "broken", "backing_off") == 1
            && metrics.exact("app_backoff_seconds{pool=\"broken\"}") >= 0.4
    });
    let mut peer = server.connect();
    let answer = peer.ask(get("/readyz"));
    assert_eq!(answer.status, 503);
    let text = answer.into_text();
    assert!(text.starts_with("not ready: 1 of 2 worker processes\nbroken: 0 of 1 ready"), "{text}");
    assert!(text.ends_with("\nrest: 1 of 1 ready\n"), "{text}");
    assert_eq!(peer.ask(get("/broken/x")).status, 503);
    assert_eq!(peer.ask(get("/pid")).status, 200);
    drop((peer, watcher));
    let metrics = server.finish();
    assert_eq!(["broken", "rest"].map(|pool| requests(&metrics, pool, "expired")), [1, 0]);
}

/// Neither the demo nor a handler answers paths that no pool answers; the server's own pages stay.
fn paths_without_a_pool_are_not_found(driver: DriverUnderTest) {
    let fake = fake();
    let server = before_pools(driver, &[("pids", "/pid/*", &*fake)], "");
    let mut watcher = server.watch();
    watcher.until("it is ready", |metrics| super::ready(metrics) == 1);
    let mut peer = server.connect();
    for path in ["/pid", "/pids", "/test/fast", "/test/slow", "/%70id/0"] {
        assert_eq!(peer.ask(get(path)).status, 404, "{path}");
    }
    for path in ["/pid/0", "/status", "/metrics", "/livez"] {
        assert_eq!(peer.ask(get(path)).status, 200, "{path}");
    }
    drop((peer, watcher));
    assert_eq!(requests(&server.finish(), "pids", "done"), 1);
}
