//! A burst of ten times the usual load and the way back: nothing is rejected below the limits, and resources are
//! released.

use std::process::Stdio;

use serde_json::Value;

use crate::support::{DriverUnderTest, ServerUnderTest, binary, eventually};

on_both_drivers!(a_burst_below_the_limits_is_answered_and_leaves_nothing);

/// Nominal load, the rise, ten times as much, nominal load: 60 requests per second and 600.
const STEPS: &str = "60:0.5,120:0.1,240:0.1,360:0.1,480:0.1,600:1,60:0.5";

/// Bytes of resident memory that may remain: tables of connections that were open for the first time. Less than 6 KiB
/// for each of the burst's requests.
const TOLERANCE: u64 = 4 * 1024 * 1024;

/// Requests that must wait at once: one worker with 5 ms per job does at most 200 per second.
const QUEUED_MIN: u64 = 100;

fn run(server: &ServerUnderTest, steps: &str) -> Value {
    let mut command = binary();
    command.args(["bench", "http", &server.url("/test/slow"), "--close", "-c", "1000", "--timeout", "60"]);
    command.args(["--steps", steps, "--json"]);
    let output = command.stdin(Stdio::null()).output().expect("the generator starts");
    let stderr_text = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr_text}"))
}

fn resident(server: &ServerUnderTest) -> u64 {
    let status = std::fs::read_to_string(server.proc("status")).expect("the process runs");
    let rest = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
    let kib: u64 = rest.split_whitespace().next().and_then(|word| word.parse().ok()).expect("KiB");
    kib * 1024
}

/// Row 5.4: fewer requests than the queue may hold, so none is rejected; afterwards queues and held bytes are at 0, and
/// resident memory is as before within the tolerance.
fn a_burst_below_the_limits_is_answered_and_leaves_nothing(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-A 1 -w 1 -D 5 --queue-target off");
    let mut watcher = server.watch();
    run(&server, "60:0.5");
    watcher.until_alone();
    let before = resident(&server);

    let report = run(&server, STEPS);
    let due: u64 =
        report["steps"].as_array().expect("steps").iter().filter_map(|step| step["due"].as_u64()).sum();
    assert!(due > 600, "{report}");
    assert_eq!(report["ok"], due, "{report}");
    assert_eq!((&report["shed"], &report["failures_total"]), (&0.into(), &0.into()), "{report}");

    let metrics = watcher.until_alone();
    assert!(metrics.value("jobs_queued_max") >= QUEUED_MIN, "no burst: {metrics:?}");
    for gauge in [
        "jobs_queued",
        "jobs_running",
        "http_requests_held_bytes",
        "http_responses_held_bytes",
        "input_held_bytes",
        "output_held_bytes",
    ] {
        assert_eq!(metrics.value(gauge), 0, "{gauge}");
    }
    for outcome in ["refused", "expired", "shed", "cancelled", "panicked"] {
        assert_eq!(metrics.jobs(outcome), 0, "{outcome}");
    }
    assert_eq!((metrics.answers(503), metrics.value("refused_total")), (0, 0));
    eventually("the memory is given back", || (resident(&server) <= before + TOLERANCE).then_some(()));
    drop(watcher);
    server.finish();
}
