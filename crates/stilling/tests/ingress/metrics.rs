//! Tests of the hub's metrics, status page and readiness.

use std::fs;
use std::sync::Mutex;

use stilling::DriverChoice;

use crate::support::{HubTestServer, eventually};

on_both_drivers!(
    the_rates_of_busy_flows_are_exported,
    the_metrics_count_what_the_hub_does,
    a_stream_that_is_not_open_makes_the_server_unready,
    without_a_hub_pages_omit_it,
);

fn publish(hub_server: &HubTestServer, subject: &str, fields: &str) -> u16 {
    let request =
        format!("POST /publish/{subject} HTTP/1.1\r\nHost: a\r\n{fields}Content-Length: 5\r\n\r\nhello");
    hub_server.connect().ask(request).status
}

/// Row 2.17: messages in and out per second, average and peak, are exported in the metrics and on the page. Their values
/// are tested with a stepped clock in `rates`.
fn the_rates_of_busy_flows_are_exported(driver: DriverChoice) {
    const BURST: u32 = 200;
    let hub_server = HubTestServer::start(driver);
    let rate = |kind: &str, flow: &str| -> f64 {
        let page = hub_server.page("/metrics").into_text();
        let name = format!("stilling_hub_per_second_{kind}{{flow=\"{flow}\"}} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&name)).expect("it is exported");
        value.parse().expect("a number")
    };
    assert!(rate("max", "received") == 0.0 && rate("mean", "received") == 0.0);
    let mut subscriber = hub_server.subscribe("events.*");
    let mut publisher = hub_server.connect();
    for _ in 0..BURST {
        let request = "POST /publish/events.a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(publisher.ask(request).status, 200);
        assert_eq!(subscriber.next().1, "hello");
    }
    for flow in ["received", "delivered"] {
        eventually(&format!("{flow} is sampled"), || {
            (rate("max", flow) > 0.0 && rate("mean", flow) > 0.0).then_some(())
        });
    }
    for flow in ["judged", "accepted", "rejected"] {
        assert!(rate("max", flow) == 0.0 && rate("mean", flow) == 0.0, "{flow}: no stream has a gate");
    }
    let page = hub_server.connect().ask("GET /status HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(page.text().contains("<th>mean<th>best second<tr><td>received<td>"), "{}", page.text());
    assert!(!page.text().contains("<td>judged<td>"), "{}", page.text());
    hub_server.finish();
}

/// Row 5.3: one page for all counters.
fn the_metrics_count_what_the_hub_does(driver: DriverChoice) {
    let hub_server = HubTestServer::start(driver);
    let mut subscriber = hub_server.subscribe("events.*");
    for fields in ["", "Nats-Msg-Id: a\r\n", "Nats-Msg-Id: a\r\n"] {
        assert_eq!(publish(&hub_server, "events.a", fields), 200);
    }
    assert_eq!(publish(&hub_server, "news", ""), 200);
    assert_eq!(publish(&hub_server, "events.a", "Nats-Expected-Stream: quick\r\n"), 412);
    for _ in 0..2 {
        assert_eq!(subscriber.next().1, "hello");
    }
    for (metric, expected) in [
        ("messages_total", 5),
        ("delivered_total", 2),
        ("publish_outcomes_total", 5),
        ("duplicates_total", 1),
        ("undelivered_total", 1),
        ("subscriptions", 1),
        ("consumers", 0),
        ("losses_total{ingress=\"http\",reason=\"condition\"}", 1),
        ("losses_total{ingress=\"nats\",reason=\"condition\"}", 0),
        ("losses_total{ingress=\"syslog\",reason=\"shed\"}", 0),
        ("stream_first_sequence{stream=\"events\"}", 1),
        ("stream_last_sequence{stream=\"events\"}", 2),
        ("stream_visible_sequence{stream=\"events\"}", 2),
        ("stream_last_sequence{stream=\"quick\"}", 0),
        ("stream_pending{stream=\"events\"}", 0),
        ("stream_frozen{stream=\"events\"}", 0),
        ("slow_consumers_total", 0),
        ("unauthorized_total", 0),
        ("publications_invalid_total", 0),
        ("publications_shed_total", 0),
        ("publications_unanswered_total", 0),
    ] {
        let name = format!("stilling_hub_{metric}");
        eventually(&format!("{name} is {expected}"), || (hub_server.metric(&name) == expected).then_some(()));
    }
    assert!(hub_server.metric("stilling_hub_stream_pending_max{stream=\"events\"}") >= 1);
    assert!(hub_server.metric("stilling_hub_received_bytes_total") >= 25);
    let page = hub_server.page("/status").into_text();
    assert!(page.contains("<tr><td>events<td>1<td>2<td>2<td>0<td>open<td>"), "{page}");
    assert!(page.contains("<tr class=refused><td>lost: condition<td>1"), "{page}");
    drop(subscriber);
    hub_server.finish();
}

/// Lines of the log; each driver's server appends its own.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn log(line: &str) {
    LOG.lock().expect("no writer panics").push(line.to_owned());
}

/// A server that cannot store messages is unready for load balancers; the log and the top of the page give the
/// reason.
fn a_stream_that_is_not_open_makes_the_server_unready(driver: DriverChoice) {
    let hub_server = HubTestServer::with(driver, |config| config.log = Some(log));
    let data_path = hub_server.data().display().to_string();
    assert_eq!(hub_server.page("/readyz").text(), "ready\n");
    fs::write(hub_server.data(), "no folder").expect("a file in the place of the folder");
    assert_eq!(publish(&hub_server, "events.a", ""), 503);
    let answer =
        eventually("it is known", || Some(hub_server.page("/readyz")).filter(|answer| answer.status == 503));
    assert!(
        answer.text().starts_with("not ready: the stream events is not open: ")
            && answer.text().contains(&data_path),
        "{answer:?}"
    );
    assert_eq!(answer.field("Retry-After"), Some("1"));
    assert_eq!(hub_server.page("/livez").status, 200, "liveness is unaffected");
    assert_eq!(hub_server.metric("stilling_hub_stream_closed{stream=\"events\"}"), 1);
    let page = hub_server.page("/status").into_text();
    assert!(page.contains("<td>not open"), "{page}");
    let alert = page.find("<p class=bad role=alert><b>Stream events: not open</b>").expect("it is shown");
    assert!(page.find("<h1>").is_some_and(|title| alert < title), "it is at the top: {page}");
    hub_server.finish();
    let lines = LOG.lock().expect("no writer panics").clone();
    let own: Vec<_> = lines.iter().filter(|line| line.contains(&data_path)).collect();
    assert!(own.len() == 1 && own[0].starts_with("stream events: is not open"), "{lines:?}");
}

fn without_a_hub_pages_omit_it(driver: DriverChoice) {
    let hub_server =
        HubTestServer::with(driver, |config| config.hub = stilling::settings::MessagingConfig::default());
    assert!(!hub_server.page("/metrics").text().contains("hub"));
    assert!(!hub_server.page("/status").text().contains("Streams"));
    hub_server.finish();
}
