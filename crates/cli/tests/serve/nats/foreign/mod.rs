//! Third-party NATS clients: their use of the server, and their behavior when it is killed and restarted. A missing
//! client is a failure, never a skip.

mod async_nats;
mod conformance;
pub(crate) mod programs;
mod restart;

use super::NatsServerFixture;
use crate::support::DriverUnderTest;

on_both_drivers! {
    async_nats_does_everything_that_it_can,
    nats_go_does_everything_that_it_can,
    nats_py_does_everything_that_it_can,
    async_nats_comes_back_to_a_server_that_was_killed,
    nats_go_comes_back_to_a_server_that_was_killed,
    nats_py_comes_back_to_a_server_that_was_killed,
}

const STREAMS: &str = "--stream events=events.> --stream memory=memory.>:memory";

fn async_nats_does_everything_that_it_can(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, STREAMS);
    async_nats::everything(fixture.nats());
    fixture.server.finish();
}

fn nats_go_does_everything_that_it_can(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, STREAMS);
    programs::go("everything", fixture.nats()).expect_complete();
    fixture.server.finish();
}

fn nats_py_does_everything_that_it_can(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, STREAMS);
    programs::python("everything", fixture.nats()).expect_complete();
    fixture.server.finish();
}

/// Row 0.4.
fn async_nats_comes_back_to_a_server_that_was_killed(driver: DriverUnderTest) {
    let log = restart::live_through(driver, async_nats::restart);
    // It recreates its consumers by itself, both push and pull.
    assert_eq!(log.pulled, log.delivered);
    log.failed_only_by("timed out: didn't receive ack in time");
}

/// Row 0.4.
fn nats_go_comes_back_to_a_server_that_was_killed(driver: DriverUnderTest) {
    let log = restart::live_through(driver, |address| programs::go("restart", address).next_line());
    log.failed_only_by("nats: timeout");
}

/// Row 0.4.
fn nats_py_comes_back_to_a_server_that_was_killed(driver: DriverUnderTest) {
    let log = restart::live_through(driver, |address| programs::python("restart", address).next_line());
    log.failed_only_by("TimeoutError()");
}
