//! Clients of NATS that we did not write: what they do with a server, and what becomes of them when it is killed and started
//! again in the middle. One that is missing is a failure, never a skip.

mod async_nats;
mod conformance;
mod programs;
mod restart;

use super::Hub;
use crate::support::Driver;

on_both_drivers! {
    async_nats_does_everything_that_it_can,
    nats_go_does_everything_that_it_can,
    nats_py_does_everything_that_it_can,
    async_nats_comes_back_to_a_server_that_was_killed,
    nats_go_comes_back_to_a_server_that_was_killed,
    nats_py_comes_back_to_a_server_that_was_killed,
}

/// The streams that all of them want.
const STREAMS: &str = "--stream events=events.> --stream memory=memory.>:memory";

fn async_nats_does_everything_that_it_can(driver: Driver) {
    let hub = Hub::start(driver, STREAMS);
    async_nats::everything(hub.nats());
    hub.server.finish();
}

fn nats_go_does_everything_that_it_can(driver: Driver) {
    let hub = Hub::start(driver, STREAMS);
    programs::go("everything", hub.nats()).does_all_of_it();
    hub.server.finish();
}

fn nats_py_does_everything_that_it_can(driver: Driver) {
    let hub = Hub::start(driver, STREAMS);
    programs::python("everything", hub.nats()).does_all_of_it();
    hub.server.finish();
}

/// Row 0.4.
fn async_nats_comes_back_to_a_server_that_was_killed(driver: Driver) {
    let life = restart::live_through(driver, async_nats::restart);
    // It asks for its consumers again by itself, those that it is pushed to and those that it pulls from.
    assert_eq!(life.pulled, life.delivered);
    life.failed_only_by("timed out: didn't receive ack in time");
}

/// Row 0.4.
fn nats_go_comes_back_to_a_server_that_was_killed(driver: Driver) {
    let life = restart::live_through(driver, |address| programs::go("restart", address).tells());
    life.failed_only_by("nats: timeout");
}

/// Row 0.4.
fn nats_py_comes_back_to_a_server_that_was_killed(driver: Driver) {
    let life = restart::live_through(driver, |address| programs::python("restart", address).tells());
    life.failed_only_by("TimeoutError()");
}
