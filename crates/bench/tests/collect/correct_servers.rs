//! Runs against a correct server, in every mode of sending.

use std::net::TcpListener;
use std::time::Duration;

use stilling_bench::collect::{self, CollectError, CollectPlan, CollectRunReport};

use crate::fake::{CollectFault, FakeCollectServer};
use crate::plan;

/// Runs against a correct server: everything must be right and accounted for.
fn check(messages: u64, change: impl FnOnce(&mut CollectPlan)) -> CollectRunReport {
    let fake = FakeCollectServer::start(CollectFault::Nothing);
    let mut plan = plan(fake.address(), messages);
    change(&mut plan);
    let report = collect::run(&plan).expect("there is a report");
    let accounting = report.accounting;
    assert!(report.is_good(), "{:?} {accounting:?}", report.evidence);
    assert_eq!((accounting.queued, accounting.sends, accounting.fails), (messages, messages, 0));
    assert_eq!(fake.records() as u64, messages);
    report
}

/// Rows 0.23 and 0.32: queued messages = sends = receives.
#[test]
fn every_send_mode_is_accounted_for() {
    for confirmed in [true, false] {
        for (clients, threads, size, window) in [(1, 1, 16, 1), (4, 1, 4096, 256), (9, 2, 128, 7)] {
            let report = check(500, |plan| {
                *plan = CollectPlan { clients, threads, size, window, confirmed, ..plan.clone() };
            });
            assert_eq!((report.accounting.received, report.connects), (Some(500), u64::from(clients)));
            assert!(report.send_time.max_us > 0.0 && report.rate_per_s > 0.0);
        }
    }
}

/// Row 0.23: a connection for each message, as in BBQ's client.
#[test]
fn a_connection_for_each_message_loses_none() {
    for confirmed in [true, false] {
        let report = check(60, |plan| {
            *plan = CollectPlan { clients: 4, per_message: true, confirmed, ..plan.clone() };
        });
        assert_eq!((report.connects, report.accounting.received), (60, Some(60)));
    }
}

#[test]
fn subscribers_read_every_message_once_and_in_order() {
    for (confirmed, stream) in [(true, Some("events".to_owned())), (false, None)] {
        let report = check(3000, |plan| {
            *plan = CollectPlan { clients: 3, subscribers: 2, confirmed, stream, window: 64, ..plan.clone() };
        });
        assert_eq!((report.deliveries, report.accounting.received), (6000, Some(3000)));
        assert!(report.delivery_time.p50_us > 0.0);
    }
}

#[test]
fn a_ping_of_the_server_is_answered_and_changes_nothing() {
    let fake = FakeCollectServer::start(CollectFault::Ping(3));
    let report = collect::run(&plan(fake.address(), 20)).expect("there is a report");
    assert!(report.is_good(), "{:?}", report.evidence);
}

/// Row 0.30: a time limit ends a run as well as a number of messages does.
#[test]
fn a_run_ends_after_its_span() {
    let fake = FakeCollectServer::start(CollectFault::Nothing);
    let span = Some(Duration::from_millis(100));
    let report =
        collect::run(&CollectPlan { messages: None, span, ..plan(fake.address(), 1) }).expect("a report");
    let accounting = report.accounting;
    assert!(report.failures_total == 0 && accounting.is_balanced(), "{:?} {accounting:?}", report.evidence);
    assert_eq!(accounting.queued, fake.records() as u64);
}

/// Row 0.31: the client may start before the server.
#[test]
fn a_client_waits_for_the_server_to_exist() {
    let address = {
        let reserved = TcpListener::bind("127.0.0.1:0").expect("a free port");
        reserved.local_addr().expect("it is bound")
    };
    std::thread::scope(|scope| {
        let client = scope.spawn(|| collect::run(&plan(address, 20)));
        let fake = FakeCollectServer::listening(
            CollectFault::Nothing,
            TcpListener::bind(address).expect("it was free"),
        );
        let report = client.join().expect("it ends").expect("there is a report");
        assert!(report.is_good() && fake.records() == 20);
    });
}

#[test]
fn a_refused_connection_is_an_error_with_the_address() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    drop(listener);
    let plan = CollectPlan { wait: Duration::from_millis(1), ..plan(address, 1) };
    let error = collect::run(&plan).expect_err("nobody listens");
    assert!(matches!(error, CollectError::Connect(to, _) if to == address), "{error}");
}
