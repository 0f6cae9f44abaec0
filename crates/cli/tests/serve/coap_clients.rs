//! Real CoAP clients, unmodified: aiocoap, go-coap and Node's `coap`. Each is a program that checks for itself: methods,
//! bodies in blocks in both directions, separate responses, empty bodies, conditions, wrong options, observation.

use std::process::Command;

use crate::app::before_fakes;
use crate::nats::foreign::programs::{ClientProgram, installed};
use crate::support::{DriverUnderTest, ServerUnderTest};

on_both_drivers!(
    aiocoap_is_served_in_all_its_ways,
    go_coap_is_served_in_all_its_ways,
    coap_for_node_is_served_in_all_its_ways,
);

/// Runs a client for a server with the demo resources and for one with a worker process, and checks that all it sent was
/// understood.
fn check(driver: DriverUnderTest, client: Command) {
    let demo = ServerUnderTest::start(driver, "--coap 127.0.0.1:0");
    let (app, watcher) = before_fakes(driver, "--coap 127.0.0.1:0");
    let [demo_url, app_url] =
        [&demo, &app].map(|server| format!("coap://{}", server.banner_line("listening coap://")));
    ClientProgram::spawn(client, &demo_url, &[&app_url]).expect_complete();
    drop(watcher);
    let (demo, app) = (demo.finish(), app.finish());
    for metrics in [&demo, &app] {
        assert_eq!(metrics.value("coap_datagrams_total{class=\"malformed\"}"), 0);
        assert!(metrics.value("coap_datagrams_total{class=\"next_block\"}") > 0);
    }
    assert_eq!(demo.value("coap_bad_options_total"), 1);
    let notifications = demo.value("coap_notifications_total{type=\"confirmable\"}")
        + demo.value("coap_notifications_total{type=\"non_confirmable\"}");
    assert!(notifications >= 2, "two states: {notifications}");
    assert!(app.value("coap_separate_responses_total") >= 1);
}

/// Rows 1.11 and 1.12 with aiocoap.
fn aiocoap_is_served_in_all_its_ways(driver: DriverUnderTest) {
    let mut client = Command::new(installed("aiocoap/bin/python"));
    client.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/serve/coap_clients/client.py"));
    check(driver, client);
}

/// Rows 1.11 and 1.12 with go-coap.
fn go_coap_is_served_in_all_its_ways(driver: DriverUnderTest) {
    check(driver, Command::new(installed("go-coap/client")));
}

/// Rows 1.11 and 1.12 with `coap` for Node. The program lies beside its packages, where Node searches for them.
fn coap_for_node_is_served_in_all_its_ways(driver: DriverUnderTest) {
    let mut client = Command::new("node");
    client.arg(installed("coap-node/client.mjs"));
    check(driver, client);
}
