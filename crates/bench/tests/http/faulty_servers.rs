//! Wrong responses: each is detected and reported under its name.

use std::net::TcpListener;
use std::time::Duration;

use stilling::DriverChoice;
use stilling_bench::http::{self, HttpBenchError, HttpBenchReport, HttpPlan, RequestFailure, RunLength};

use crate::fake::{FakeHttpServer, FakeResponse};
use crate::{DRIVERS, plan};

const CORRECT_RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
const CORRECT_LAST_RESPONSE: &[u8] =
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello";

/// Short timeout, for responses that never come.
const SHORT_TIMEOUT: Duration = Duration::from_millis(200);

/// Longer timeout, for cases with an earlier response.
const RUN_TIME: Duration = Duration::from_secs(1);

/// The plan of this file: the expected body is known.
fn known(fake: &FakeHttpServer, requests: u64, driver: DriverChoice) -> HttpPlan {
    HttpPlan { expect_body: Some(b"hello".to_vec()), ..plan(fake.address(), "/", requests, driver) }
}

fn run(plan: &HttpPlan) -> HttpBenchReport {
    http::run(plan).expect("there is a report, whatever the answers are")
}

/// Checks that one request with this response causes exactly this failure, kept alive or not, on both drivers.
fn check(name: &str, answers: &[FakeResponse], expected: RequestFailure) {
    for driver in DRIVERS {
        for keep_alive in [true, false] {
            let fake = FakeHttpServer::start(answers);
            let mut plan = known(&fake, 1, driver);
            plan.keep_alive = keep_alive;
            if expected == RequestFailure::Timeout {
                plan.timeout = SHORT_TIMEOUT;
            }
            let report = run(&plan);
            let context = format!("{name}, {driver:?}, keep-alive {keep_alive}: {:?}", report.evidence);
            assert_eq!(report.failed(expected), 1, "{context}");
            assert_eq!((report.failures_total, report.requests), (1, 1), "{context}");
            // Extra bytes follow a right response.
            assert_eq!(report.ok, u64::from(expected == RequestFailure::ExtraBytes), "{context}");
            assert!(!report.is_good() && report.evidence.contains_key(expected.name()), "{context}");
        }
    }
}

#[test]
fn a_body_of_another_length_is_wrong() {
    check(
        "shorter",
        &[FakeResponse::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhell")],
        RequestFailure::WrongBody,
    );
    check(
        "longer",
        &[FakeResponse::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello!")],
        RequestFailure::WrongBody,
    );
    check(
        "none",
        &[FakeResponse::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")],
        RequestFailure::WrongBody,
    );
}

#[test]
fn a_body_with_another_byte_is_wrong() {
    check(
        "last",
        &[FakeResponse::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhellO")],
        RequestFailure::WrongBody,
    );
    check(
        "first",
        &[FakeResponse::Slowly(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHello")],
        RequestFailure::WrongBody,
    );
}

#[test]
fn a_byte_too_many_is_a_failure_beside_the_right_answer() {
    check(
        "kept",
        &[FakeResponse::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello!")],
        RequestFailure::ExtraBytes,
    );
    let behind_the_last = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello\n";
    check("last", &[FakeResponse::AndClose(behind_the_last)], RequestFailure::ExtraBytes);
}

#[test]
fn another_status_is_a_failure() {
    let answer = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 5\r\n\r\nhello";
    check("500", &[FakeResponse::Bytes(answer)], RequestFailure::UnexpectedStatus);
}

#[test]
fn a_connection_that_closes_in_the_middle_is_cut_off() {
    check("at once", &[FakeResponse::AndClose(b"")], RequestFailure::CutOff);
    check("in the head", &[FakeResponse::AndClose(b"HTTP/1.1 200 OK\r\nContent-Le")], RequestFailure::CutOff);
    check(
        "in the body",
        &[FakeResponse::AndClose(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell")],
        RequestFailure::CutOff,
    );
    let without_last_chunk = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
    check("in the chunks", &[FakeResponse::AndClose(without_last_chunk)], RequestFailure::CutOff);
}

#[test]
fn a_reset_is_called_a_reset() {
    check("reset", &[FakeResponse::Reset], RequestFailure::Reset);
}

#[test]
fn an_answer_or_an_end_that_never_comes_is_a_timeout() {
    check("silence", &[FakeResponse::Never], RequestFailure::Timeout);
    check(
        "half an answer",
        &[FakeResponse::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel")],
        RequestFailure::Timeout,
    );
}

#[test]
fn an_announced_end_that_never_comes_is_a_timeout_beside_the_right_answer() {
    for driver in DRIVERS {
        let fake = FakeHttpServer::start(&[FakeResponse::Bytes(CORRECT_LAST_RESPONSE)]);
        let plan = HttpPlan { keep_alive: false, timeout: RUN_TIME, ..known(&fake, 1, driver) };
        let report = run(&plan);
        assert_eq!((report.ok, report.failed(RequestFailure::Timeout), report.failures_total), (1, 1, 1));
    }
}

#[test]
fn what_is_no_http_is_a_bad_response() {
    check(
        "another protocol",
        &[FakeResponse::Bytes(b"220 mail.example ESMTP\r\n")],
        RequestFailure::BadResponse,
    );
    check(
        "two lengths",
        &[FakeResponse::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello")],
        RequestFailure::BadResponse,
    );
    let bad_chunk = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n";
    check("chunks", &[FakeResponse::Bytes(bad_chunk)], RequestFailure::BadResponse);
}

/// Row 4.26: shed requests are neither failures nor successes.
#[test]
fn shed_answers_have_their_own_line() {
    for driver in DRIVERS {
        let shed = FakeResponse::Bytes(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy");
        let fake = FakeHttpServer::start(&[shed, shed, FakeResponse::Bytes(CORRECT_RESPONSE)]);
        let report = run(&known(&fake, 5, driver));
        assert_eq!((report.ok, report.shed, report.failures_total, report.requests), (3, 2, 0, 5));
        assert_eq!(report.statuses, [(200, 3), (503, 2)].into());
        assert!(report.is_good());
        let all_shed =
            FakeHttpServer::start(&[FakeResponse::Bytes(b"HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n")]);
        assert!(!run(&known(&all_shed, 5, driver)).is_good());
    }
}

#[test]
fn right_answers_are_right_in_whatever_form_they_come() {
    let forms: [&[FakeResponse]; 6] = [
        &[FakeResponse::Bytes(CORRECT_RESPONSE)],
        &[FakeResponse::Slowly(CORRECT_RESPONSE)],
        &[FakeResponse::Bytes(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nA: b\r\n\r\n")],
        &[FakeResponse::AndClose(b"HTTP/1.1 200 OK\r\n\r\nhello")],
        &[FakeResponse::AndClose(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello")],
        &[FakeResponse::Bytes(b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")],
    ];
    for driver in DRIVERS {
        for answers in forms {
            for keep_alive in [true, false] {
                let fake = FakeHttpServer::start(answers);
                let report = run(&HttpPlan { keep_alive, ..known(&fake, 3, driver) });
                let context = format!("{answers:?} {driver:?} {keep_alive} {:?}", report.evidence);
                assert_eq!((report.ok, report.requests, report.failures_total), (3, 3, 0), "{context}");
            }
        }
    }
}

#[test]
fn one_wrong_answer_among_many_is_found() {
    let mut answers = [FakeResponse::Bytes(CORRECT_RESPONSE); 201];
    answers[100] = FakeResponse::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhellp");
    for driver in DRIVERS {
        let fake = FakeHttpServer::start(&answers);
        // The first response provides the expected body.
        let mut plan = plan(fake.address(), "/", 200, driver);
        plan.connections = 4;
        let report = run(&plan);
        assert_eq!((report.ok, report.failed(RequestFailure::WrongBody), report.failures_total), (199, 1, 1));
        assert_eq!(report.parameters.expect_body_size, 5);
    }
}

#[test]
fn a_first_answer_that_is_not_right_ends_the_run_with_its_name() {
    let cases: [(&[FakeResponse], RequestFailure); 7] = [
        (
            &[FakeResponse::Bytes(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")],
            RequestFailure::UnexpectedStatus,
        ),
        (
            &[FakeResponse::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello!")],
            RequestFailure::ExtraBytes,
        ),
        (
            &[FakeResponse::AndClose(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell")],
            RequestFailure::CutOff,
        ),
        (&[FakeResponse::AndClose(b"")], RequestFailure::CutOff),
        (&[FakeResponse::Bytes(b"garbage\r\n\r\n")], RequestFailure::BadResponse),
        (&[FakeResponse::Never], RequestFailure::Timeout),
        (&[FakeResponse::Reset], RequestFailure::Reset),
    ];
    for (answers, expected) in cases {
        let fake = FakeHttpServer::start(answers);
        let mut plan = plan(fake.address(), "/", 10, DriverChoice::Poll);
        plan.timeout = if expected == RequestFailure::Timeout { SHORT_TIMEOUT } else { plan.timeout };
        match http::run(&plan) {
            Err(HttpBenchError::FirstAnswer(failure, _)) => assert_eq!(failure, expected, "{answers:?}"),
            other => panic!("{answers:?}: {other:?}"),
        }
    }
}

#[test]
fn a_refused_connection_is_reported_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    drop(listener);
    for expect_body in [None, Some(Vec::new())] {
        let plan = HttpPlan { expect_body, ..plan(address, "/", 10, DriverChoice::Auto) };
        let Err(error) = http::run(&plan) else { panic!("no server listens there") };
        assert!(matches!(error, HttpBenchError::Connect(..)), "{error:?}");
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }
}

#[test]
fn held_connections_that_the_server_loses_are_counted() {
    for driver in DRIVERS {
        let fake = FakeHttpServer::start(&[
            FakeResponse::Bytes(CORRECT_RESPONSE),
            FakeResponse::AndClose(CORRECT_RESPONSE),
            FakeResponse::Bytes(CORRECT_RESPONSE),
        ]);
        let mut plan = known(&fake, 1, driver);
        plan.connections = 4;
        plan.length = RunLength::Hold(RUN_TIME);
        let report = run(&plan);
        assert_eq!((report.ok, report.held, report.failed(RequestFailure::CutOff)), (4, 3, 1));
    }
}

#[test]
fn connections_come_from_all_the_sources() {
    for driver in DRIVERS {
        let fake = FakeHttpServer::start(&[FakeResponse::Bytes(CORRECT_RESPONSE)]);
        let mut plan = known(&fake, 60, driver);
        (plan.connections, plan.threads) = (6, 2);
        plan.sources = Some("127.0.1.254/3".parse().expect("sources"));
        assert!(run(&plan).is_good());
        for source in ["127.0.1.254", "127.0.1.255", "127.0.2.0"] {
            let count = fake.sources().iter().filter(|ip| ip.to_string() == source).count();
            assert_eq!(count, 2, "{source} of {:?}", fake.sources());
        }
    }
}
