//! Runs against a correct server: every delivery counts, whatever its form.

use std::time::Duration;

use stilling_bench::broadcast::{self, BroadcastError, BroadcastPlan, BroadcastProtocol, BroadcastReport};

use crate::fake::{BroadcastFault, FakeBroadcastServer};
use crate::plan;

/// Protocols of the HTTP port.
const HTTP: [BroadcastProtocol; 3] =
    [BroadcastProtocol::Sse, BroadcastProtocol::WebSocketRaw, BroadcastProtocol::WebSocketJson];

/// Runs against a server, and checks that every message reached every subscriber.
fn check(fault: BroadcastFault, change: impl FnOnce(&mut BroadcastPlan)) -> BroadcastReport {
    let fake = FakeBroadcastServer::start(fault);
    let mut plan = plan(fake.address);
    change(&mut plan);
    if HTTP.contains(&plan.protocol) {
        (plan.to, plan.publish_to) = (fake.http, Some(fake.address));
    }
    let report = broadcast::run(&plan).expect("there is a report");
    assert!(report.is_good(), "{plan:?}: {:?}", report.figures.evidence);
    let receivers = if plan.subjects.is_some() { 1 } else { u64::from(plan.subscribers) };
    assert_eq!(report.deliveries, report.messages * receivers, "{plan:?}");
    assert_eq!(report.messages, plan.messages.unwrap_or(report.messages));
    report
}

#[test]
fn every_window_and_size_is_delivered() {
    for (window, size, messages) in [(1, 16, 40), (2, 64, 41), (8, 4096, 40), (2048, 64, 5000)] {
        let report = check(BroadcastFault::Nothing, |plan| {
            *plan = BroadcastPlan { window, size, messages: Some(messages), ..plan.clone() };
        });
        assert!(report.figures.latency.max_us > 0.0 && report.deliveries_per_s > 0.0);
        assert_eq!(report.figures.server_cpu_s, None);
    }
}

#[test]
fn deliveries_in_pieces_and_pings_change_nothing() {
    for distinct_sids in [false, true] {
        for fault in [BroadcastFault::Pieces, BroadcastFault::Ping(0), BroadcastFault::Ping(13)] {
            check(fault, |plan| plan.distinct_sids = distinct_sids);
        }
    }
}

#[test]
fn several_publishers_are_received_in_any_order() {
    for fault in [BroadcastFault::Nothing, BroadcastFault::Pieces] {
        check(fault, |plan| (plan.publishers, plan.messages) = (3, Some(100)));
    }
}

#[test]
fn subscribers_over_http_receive_records_of_a_stream() {
    for protocol in HTTP {
        for fault in [BroadcastFault::Nothing, BroadcastFault::Pieces] {
            for size in [16, 64, 4096] {
                check(fault, |plan| (plan.protocol, plan.size) = (protocol, size));
            }
        }
    }
}

#[test]
fn many_subjects_have_one_subscriber_each() {
    for (subjects, messages) in [(1, 40), (7, 100), (100, 40)] {
        let report = check(BroadcastFault::Pieces, |plan| {
            (plan.subjects, plan.messages) = (Some(subjects), Some(messages));
        });
        assert_eq!(report.parameters.subscribers, subjects);
    }
}

#[test]
fn a_run_ends_after_its_span() {
    let span = Some(Duration::from_millis(100));
    let report = check(BroadcastFault::Nothing, |plan| (plan.messages, plan.span) = (None, span));
    assert!(report.elapsed_s > 0.0 && report.messages > 0, "{report:?}");
}

#[test]
fn a_given_process_is_measured() {
    let report = check(BroadcastFault::Nothing, |plan| plan.server_pid = Some(std::process::id()));
    assert!(report.figures.server_cpu_s.is_some() && report.figures.server_cpu_s_per_million.is_some());
}

#[test]
fn a_server_that_does_not_listen_is_an_error_with_the_address() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    drop(listener);
    let plan = BroadcastPlan { wait: Duration::from_millis(1), ..plan(address) };
    let error = broadcast::run(&plan).expect_err("it does not listen");
    assert!(matches!(error, BroadcastError::Connect(to, _) if to == address), "{error}");
}
