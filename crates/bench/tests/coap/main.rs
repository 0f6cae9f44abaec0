//! The CoAP generator with servers that are correct, overloaded or faulty.
#![cfg(target_os = "linux")]

mod fake;

use std::time::Duration;

use fake::{BODY_SIZE, FakeServer, Fault};
use stilling_bench::coap::{self, CoapBenchError, CoapFaults, CoapPlan, CoapReport};
use stilling_bench::http::{HttpStepReport, RateStep};

fn plan(server: &FakeServer) -> CoapPlan {
    CoapPlan {
        path: vec!["body".to_owned()],
        query: vec!["n={n}".to_owned()],
        variants: 7,
        sockets: 4,
        window: 4,
        requests: Some(2000),
        span: None,
        timeout: Duration::from_secs(60),
        ..CoapPlan::new(server.address)
    }
}

fn load(fault: Fault, change: impl FnOnce(&mut CoapPlan)) -> CoapReport {
    let server = FakeServer::start(fault);
    let mut plan = plan(&server);
    change(&mut plan);
    coap::run(&plan).expect("there is a report")
}

#[test]
fn every_request_of_a_correct_server_is_completed() {
    for (is_confirmable, fault) in [(true, Fault::None), (false, Fault::None), (true, Fault::Separate)] {
        let report = load(fault, |plan| plan.is_confirmable = is_confirmable);
        assert!(report.is_good(), "{report:?}");
        assert_eq!((report.completed, report.started, report.duplicates), (2000, 2000, 0), "{report:?}");
        assert_eq!(report.parameters.body_bytes, (BODY_SIZE, BODY_SIZE + 6));
        // A body has several blocks.
        assert_eq!(report.blocks, 2000 * BODY_SIZE.div_ceil(64) as u64, "{report:?}");
    }
}

/// A message id identifies a message of one port for 247 seconds, so further requests need further ports.
#[test]
fn a_source_port_is_replaced_before_its_message_ids_repeat() {
    let report = load(Fault::None, |plan| {
        (plan.sockets, plan.window, plan.requests) = (1, 64, Some(30_000));
    });
    assert!(report.is_good(), "{report:?}");
    // Four messages per request: 120,000 ids.
    assert!((2..=4).contains(&report.ports), "{report:?}");
}

/// Row 1.12: an answer to another peer, to another request, or with other bytes is a failure of its own kind.
#[test]
fn each_wrong_answer_is_a_failure_of_its_kind() {
    for (fault, kind) in [
        (Fault::ToPreviousPeer, "misdirected"),
        (Fault::UnknownToken, "unknown_token"),
        (Fault::OtherId, "wrong_id"),
        (Fault::OtherVariant, "wrong_body"),
        (Fault::FlippedBit, "wrong_body"),
        (Fault::OtherBlock, "wrong_block"),
        (Fault::OtherETag, "wrong_block"),
        (Fault::ErrorCode, "unexpected_code"),
        (Fault::Reset, "reset"),
        (Fault::Garbage, "malformed"),
    ] {
        let report = load(fault, |plan| plan.timeout = Duration::from_millis(300));
        assert!(report.failures.contains_key(kind), "{fault:?}: {report:?}");
        assert!(!report.is_good() && report.completed > 0, "{fault:?}: {report:?}");
        assert!(report.evidence.contains_key(kind), "{fault:?}: {report:?}");
    }
}

#[test]
fn a_repeated_answer_is_counted_as_a_duplicate() {
    let report = load(Fault::Twice, |_| {});
    assert!(report.is_good() && report.duplicates > 0, "{report:?}");
}

#[test]
fn shed_requests_are_neither_correct_nor_failures() {
    let report = load(Fault::Shed, |_| {});
    assert!(report.is_good() && report.shed > 0, "{report:?}");
    assert_eq!(report.completed + report.shed, 2000, "{report:?}");
}

/// Row 1.11: with injected loss, duplication and reordering all requests are completed, by retransmission.
#[test]
fn injected_faults_delay_requests_and_change_nothing() {
    let faults = CoapFaults { loss: 2.0, duplication: 5.0, reordering: 5.0 };
    let report = load(Fault::None, |plan| {
        (plan.faults, plan.requests) = (faults, Some(100));
        (plan.sockets, plan.window) = (16, 16);
    });
    assert!(report.is_good(), "{report:?}");
    assert_eq!(report.completed, 100, "{report:?}");
    let (lost, duplicated, reordered) = report.injected;
    assert!(lost > 0 && duplicated > 0 && reordered > 0 && report.retransmissions > 0, "{report:?}");
    assert!(report.duplicates > 0, "the server answers a repeated request again: {report:?}");
}

#[test]
fn lost_non_confirmable_requests_are_counted() {
    let report = load(Fault::None, |plan| {
        plan.faults.loss = 10.0;
        plan.is_confirmable = false;
        plan.timeout = Duration::from_millis(200);
        (plan.requests, plan.window) = (Some(300), 64);
    });
    assert!(report.is_good() && report.lost > 0, "{report:?}");
    assert_eq!(report.completed + report.lost, 300, "{report:?}");
}

fn counted(plan: &mut CoapPlan) {
    plan.counts_executions = true;
    (plan.path, plan.query, plan.variants) = (vec!["executions".to_owned()], Vec::new(), 1);
    (plan.requests, plan.sockets, plan.window) = (Some(200), 16, 16);
}

/// Row 1.11: every request is executed once, and a server that executes duplicates fails the run.
#[test]
fn a_request_that_is_executed_twice_is_a_failure() {
    let report = load(Fault::None, counted);
    assert!(report.is_good(), "{report:?}");
    let executions = report.executions.expect("they are counted");
    assert_eq!((executions.executed, executions.repeated, report.completed), (200, 0, 200));
    let report = load(Fault::None, |plan| {
        counted(plan);
        plan.faults.duplication = 20.0;
    });
    let repeated = report.executions.expect("they are counted").repeated;
    assert!(repeated > 0 && !report.is_good(), "{report:?}");
    assert_eq!(report.failures.get("executed_twice"), Some(&repeated), "{report:?}");
}

#[test]
fn a_rate_beyond_the_window_is_not_sent_and_counted() {
    let report = load(Fault::SilentAfterFirst, |plan| {
        plan.rate = Some(5000.0);
        (plan.requests, plan.span) = (None, Some(Duration::from_millis(300)));
        plan.timeout = Duration::from_millis(500);
    });
    assert_eq!(report.started, 16, "the window has so many slots: {report:?}");
    assert!(report.not_sent > 0 && report.failures["timeout"] == 16, "{report:?}");
}

#[test]
fn a_server_that_does_not_answer_is_an_error() {
    let server = FakeServer::start(Fault::Silent);
    let change =
        CoapPlan { wait: Duration::from_millis(10), timeout: Duration::from_millis(50), ..plan(&server) };
    match coap::run(&change) {
        Err(error @ CoapBenchError::Server(..)) => {
            assert!(error.to_string().contains("is the server running?"), "{error}");
        }
        other => panic!("expected an error, found {other:?}"),
    }
}

/// Rows 1.2 and 1.21: a changing rate is one run with figures for each step, refusals apart from correct answers.
#[test]
fn steps_tell_correct_answers_from_refusals() {
    let step = |rate| RateStep { rate, span: Duration::from_millis(400) };
    let report = load(Fault::Shed, |plan| {
        (plan.requests, plan.steps) = (None, vec![step(500.0), step(1000.0)]);
    });
    assert!(report.is_good() && report.shed > 0, "{report:?}");
    let due: Vec<u64> = report.steps.iter().map(|step| step.due).collect();
    assert_eq!((due, report.windows.len()), (vec![200, 400], 8), "{report:?}");
    let of_steps = |of: fn(&HttpStepReport) -> u64| report.steps.iter().map(of).sum::<u64>();
    assert_eq!(of_steps(|step| step.ok), report.completed, "{report:?}");
    assert_eq!(of_steps(|step| step.shed), report.shed, "{report:?}");
    assert_eq!(of_steps(|step| step.failed), 0, "{report:?}");
    assert!(report.latency.stdev_us > 0.0 && report.refusal_latency.max_us > 0.0, "{report:?}");
}
