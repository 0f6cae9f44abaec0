//! Every call of the clients' core API, and of publishing to and reading from streams, by programs in the clients'
//! languages that print `ok NAME` or `FAIL NAME reason` for each case. The expectations are the results of the same
//! programs with nats-server.

mod async_nats;

use super::super::NatsServerFixture;
use super::programs;
use crate::support::DriverUnderTest;

on_both_drivers! {
    async_nats_gets_what_it_expects,
    nats_for_node_gets_what_it_expects,
    nats_for_node_gets_the_same_over_websocket,
    nats_go_gets_what_it_expects,
    nats_py_gets_what_it_expects,
}

const OPTIONS: &str = "--stream events=events.> --stream memory=memory.>:memory --user root:password=all \
                       --user sensor:password=s:publish=sensors.>:subscribe=_INBOX.>";

const CORE: &[&str] = &[
    "connect_describes_the_server",
    "connect_options",
    "wrong_password",
    "wildcards",
    "headers_and_reply",
    "queue_groups",
    "request_reply",
    "request_without_an_answer",
    "no_responders",
    "unsubscribe",
    "unsubscribe_after_a_number_of_messages",
    "drain_of_a_subscription",
    "drain_of_a_connection",
    "flush_and_rtt",
    "a_message_of_max_payload",
    "a_message_over_max_payload",
    "no_echo",
    "invalid_publish_subjects_leave_the_connection_open",
    "permissions",
    "publish",
    "publish_once_under_an_id",
    "publish_with_expectations",
    "publish_without_a_stream",
    "account_info",
    "stream_info",
    "stream_lists",
    "get_message",
    "ordered_push",
    "consumers",
    "api_errors",
    "refusals",
];

const OF_NATS_PY: &[&str] = &[
    "reconnect",
    "publish_async",
    "ordered_push_from_somewhere",
    "ordered_push_headers_only",
    "ordered_push_stays_idle",
    "pull_fetch",
    "pull_ends_with_what_was_asked_and_not_delivered",
];

const OF_NATS_GO: &[&str] = &[
    "subscriptions_in_channels_and_contexts",
    "events_of_a_connection",
    "publish_async",
    "stream_info_by_subject",
    "ordered_push_headers_only",
    "ordered_consume",
    "ordered_consume_by_bytes",
    "ordered_consume_stays_idle",
    "ordered_messages",
    "ordered_fetch",
    "fetch",
    "ordered_fetch_bytes",
    "next",
    "ordered_from_somewhere",
    "ordered_several_filters",
    "a_deleted_consumer_ends_its_requests",
    "an_identical_stream_is_there",
    "a_domain_that_is_not_there",
];

const OF_NODE: &[&str] = &[
    "reconnect",
    "ordered_consume",
    "ordered_consume_by_bytes",
    "ordered_consume_stays_idle",
    "ordered_fetch",
    "ordered_fetch_bytes",
    "ordered_next",
    "ordered_from_somewhere",
    "ordered_several_filters",
    "headers_only",
    "an_identical_stream_is_there",
    "a_domain_that_is_not_there",
];

const OF_ASYNC_NATS: &[&str] = &[
    "reconnect",
    "publish_async",
    "ordered_pull",
    "ordered_pull_stays_idle",
    "ordered_from_somewhere",
    "fetch",
    "headers_only",
    "an_identical_stream_is_there",
    "a_domain_that_is_not_there",
];

/// Compares the output of a program with its cases, all of which must succeed.
#[track_caller]
fn expect_all(output_lines: &[String], own: &[&str]) {
    let failed: Vec<_> =
        output_lines.iter().filter(|line| !line.starts_with("ok ") && *line != "done").collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let mut done: Vec<_> = output_lines.iter().filter_map(|line| line.strip_prefix("ok ")).collect();
    let mut expected = [CORE, own].concat();
    done.sort_unstable();
    expected.sort_unstable();
    assert_eq!(done, expected);
    assert_eq!(output_lines.last().map(String::as_str), Some("done"));
}

fn async_nats_gets_what_it_expects(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, OPTIONS);
    expect_all(&async_nats::all_cases(fixture.nats()), OF_ASYNC_NATS);
    fixture.server.finish();
}

fn nats_for_node_gets_what_it_expects(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, OPTIONS);
    expect_all(&programs::node(&format!("nats://{}", fixture.nats())).lines(), OF_NODE);
    fixture.server.finish();
}

/// `wsconnect` of the same client.
fn nats_for_node_gets_the_same_over_websocket(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, &format!("{OPTIONS} --nats-websocket 127.0.0.1:0"));
    let url = format!("ws://{}", fixture.server.banner_line("listening ws://"));
    expect_all(&programs::node(&url).lines(), OF_NODE);
    fixture.server.finish();
}

fn nats_go_gets_what_it_expects(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, OPTIONS);
    expect_all(&programs::go("conformance", fixture.nats()).lines(), OF_NATS_GO);
    fixture.server.finish();
}

fn nats_py_gets_what_it_expects(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, OPTIONS);
    expect_all(&programs::python_conformance(fixture.nats()).lines(), OF_NATS_PY);
    fixture.server.finish();
}
