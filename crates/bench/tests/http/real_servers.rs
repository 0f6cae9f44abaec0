//! The real server under real load: the counters of both sides must agree.

use std::net::SocketAddr;
use std::time::Duration;

use stilling::http::{Routes, Timeouts};
use stilling::{DriverChoice, RunningServer, ServeConfig, Server};
use stilling_bench::http::{self, HttpBenchReport, HttpPlan, RunLength};
use stilling_wire::http1::Status;

use crate::{DRIVERS, plan};

fn serve(driver: DriverChoice, direct_descriptors: bool) -> RunningServer {
    let config = ServeConfig {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        shards: 2,
        worker_threads: 2,
        slow_duration: Duration::from_millis(1),
        // On a busy machine ten clients of two workers may form a standing queue, and none of them may be rejected.
        queue_target: None,
        driver,
        direct_descriptors,
        timeouts: Timeouts::default(),
        ..ServeConfig::default()
    };
    Server::bind(config, Routes::new()).and_then(Server::start).expect("a server starts")
}

/// Loads a fresh server, stops it, and compares the counters of both sides.
fn check(path: &str, requests: u64, change: impl Fn(&mut HttpPlan)) {
    let ways = DRIVERS.map(|driver| (driver, false)).into_iter().chain([(DriverChoice::Uring, true)]);
    for (driver, direct_descriptors) in ways {
        let server = serve(driver, direct_descriptors);
        let mut plan = plan(server.addresses()[0], path, requests, driver);
        plan.direct_descriptors = direct_descriptors;
        // Without a first request both sides count the same.
        plan.expect_body = Some(Vec::new());
        (plan.connections, plan.threads) = (10, 2);
        change(&mut plan);
        let report = http::run(&plan).expect("a report");
        let overview = server.end().expect("the server ends well");
        assert!(report.is_good(), "{driver:?}: {:?}", report.evidence);
        let answered = overview.http(|http| http.responses(Status::Ok));
        assert_eq!((report.requests, report.ok, answered), (requests, requests, requests), "{driver:?}");
        assert_eq!(report.bytes_received, overview.engine(|engine| &engine.sent_bytes), "{driver:?}");
        assert_eq!(report.bytes_sent, overview.engine(|engine| &engine.received_bytes), "{driver:?}");
        assert_eq!((report.shed, report.dropped.total()), (0, 0));
        assert_eq!(report.statuses, [(200, requests)].into());
        check_spread(&report);
    }
}

fn check_spread(report: &HttpBenchReport) {
    let spread = report.latency;
    let rising = [spread.min_us, spread.p50_us, spread.p90_us, spread.p99_us, spread.p999_us, spread.max_us];
    assert!(rising.is_sorted() && spread.max_us > 0.0, "{spread:?}");
    assert!((spread.min_us..=spread.max_us).contains(&spread.mean_us), "{spread:?}");
    assert!(report.rate_per_s > 0.0 && report.elapsed_s > 0.0);
}

/// Row 4.15: kept connections.
#[test]
fn kept_connections_agree_with_the_server() {
    check("/test/fast", 5_001, |_| {});
}

/// Row 4.15: pipelined requests.
#[test]
fn pipelined_requests_agree_with_the_server() {
    check("/test/fast", 20_003, |plan| plan.pipeline = 16);
}

/// Row 4.21: a connection per request.
#[test]
fn a_connection_per_request_agrees_with_the_server() {
    check("/test/fast", 1_007, |plan| plan.keep_alive = false);
}

#[test]
fn slow_work_agrees_with_the_server() {
    check("/test/slow", 201, |_| {});
}

#[test]
fn an_open_loop_agrees_with_the_server() {
    check("/test/fast", 1_001, |plan| plan.rate = Some(5_000.0));
}

#[test]
fn an_open_loop_with_a_connection_per_request_agrees_with_the_server() {
    check("/test/fast", 501, |plan| (plan.rate, plan.keep_alive) = (Some(5_000.0), false));
}

#[test]
fn requests_with_a_body_agree_with_the_server() {
    check("/test/fast", 300, |plan| {
        (plan.method, plan.body_size) = ("POST".to_owned(), 20_000);
    });
}

/// Row 4.7: a run that holds idle connections for measurements holds all of them.
#[test]
fn held_connections_agree_with_the_server() {
    check("/test/fast", 300, |plan| {
        plan.connections = 300;
        plan.length = RunLength::Hold(Duration::from_millis(1));
    });
}

#[test]
fn an_answer_to_head_has_no_body_whatever_it_announces() {
    for driver in DRIVERS {
        let server = serve(driver, false);
        let mut plan = plan(server.addresses()[0], "/livez", 100, driver);
        plan.method = "HEAD".to_owned();
        let report = http::run(&plan).expect("a report");
        assert_eq!((report.ok, report.failures_total, report.parameters.expect_body_size), (100, 0, 0));
        server.end().expect("the server ends well");
    }
}

#[test]
fn a_body_is_learned_from_the_first_answer_and_a_report_is_one_json_object() {
    for driver in DRIVERS {
        let server = serve(driver, false);
        let mut plan = plan(server.addresses()[0], "/livez", 100, driver);
        plan.rate = Some(10_000.0);
        let report = http::run(&plan).expect("a report");
        assert!(report.is_good() && report.parameters.expect_body_size > 0);
        let json: serde_json::Value = serde_json::to_value(&report).expect("plain figures");
        assert_eq!(json["ok"], 100);
        assert_eq!(json["parameters"]["rate"], 10_000.0);
        assert_eq!(json["failures"]["wrong_body"], 0);
        assert!(json["latency"]["p999_us"].as_f64() > Some(0.0));
        assert!(json["service_time"]["mean_us"].as_f64() > Some(0.0));
        server.end().expect("the server ends well");
    }
}

/// A duration ends a run, and the callback receives its progress.
#[test]
fn a_run_for_a_time_reports_its_progress() {
    let server = serve(DriverChoice::Auto, false);
    let mut plan = plan(server.addresses()[0], "/test/fast", 1, DriverChoice::Auto);
    plan.length = RunLength::Duration(Duration::from_millis(500));
    plan.warmup = Duration::from_millis(100);
    let mut seen = Vec::new();
    let report = http::run_watched(&plan, |progress| seen.push(progress.ok)).expect("a report");
    assert!(report.is_good());
    assert!(seen.is_sorted() && seen.last().is_some_and(|last| *last > 0), "{seen:?}");
    // The first request is answered, too.
    let overview = server.end().expect("the server ends well");
    let answered = overview.http(|http| http.responses(Status::Ok));
    assert_eq!(report.statuses, [(200, answered - 1)].into());
    assert_eq!(report.elapsed_s, 0.5);
}
