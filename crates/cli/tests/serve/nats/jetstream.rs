//! The server's JetStream API, through restarts and a drain.

use rustix::process::Signal;

use super::{NatsServerFixture, RawNatsClient};
use crate::support::DriverUnderTest;

on_both_drivers! {
    a_stream_on_disk_reports_its_bytes_and_times_also_after_a_crash,
    a_drain_ends_requests_for_messages,
    an_attempt_to_make_a_stream_names_the_configuration,
}

/// Sends a request below `$JS.API`, and returns the answer.
fn ask(client: &mut RawNatsClient, question: &str, payload: &str) -> serde_json::Value {
    client.send(format!("SUB answer 9\r\nPUB $JS.API.{question} answer {}\r\n{payload}\r\n", payload.len()));
    let line = loop {
        let line = client.line();
        if line.starts_with('{') {
            break line;
        }
    };
    client.send("UNSUB 9\r\n");
    serde_json::from_str(&line).expect("JSON")
}

fn a_stream_on_disk_reports_its_bytes_and_times_also_after_a_crash(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let mut client = fixture.client();
    let state = |client: &mut RawNatsClient| ask(client, "STREAM.INFO.events", "")["state"].clone();
    let bytes = |state: &serde_json::Value| state["bytes"].as_u64().expect("a number");
    assert_eq!(bytes(&state(&mut client)), 0);
    client.send("SUB acks 1\r\n");
    let mut before = 0;
    for _ in 0..3 {
        client.send(format!("PUB events.a acks 5000\r\n{}\r\n", "x".repeat(5000)));
        while !client.line().contains("\"seq\"") {}
        let now = bytes(&state(&mut client));
        assert!(now >= before + 5000, "{now} after {before}");
        before = now;
    }
    let first = state(&mut client);
    drop(client);
    let fixture = fixture.crash(driver, "");
    let again = state(&mut fixture.client());
    assert!(bytes(&again) >= 15_000, "{again}");
    assert_eq!((&again["first_ts"], &again["last_ts"]), (&first["first_ts"], &first["last_ts"]));
    assert!(first["first_ts"].as_str().is_some_and(|time| time > "2024"), "{first}");
    fixture.server.finish();
}

/// The client then sends the request to the next server.
fn a_drain_ends_requests_for_messages(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let mut client = fixture.client();
    ask(&mut client, "CONSUMER.CREATE.events", r#"{"config":{"name":"c"}}"#);
    let request = r#"{"batch":7,"expires":60000000000}"#;
    client.send(format!(
        "SUB pulled 2\r\nPUB $JS.API.CONSUMER.MSG.NEXT.events.c pulled {}\r\n{request}\r\n",
        request.len()
    ));
    client.flush();
    fixture.server.signal(Signal::TERM);
    let rest = client.rest();
    let status = "NATS/1.0 409 Server Shutdown\r\nNats-Pending-Messages: 7\r\nNats-Pending-Bytes: 0\r\n\r\n";
    assert!(rest.contains("\"ldm\":true") && rest.contains(status), "{rest}");
    fixture.server.expect_clean_end();
}

/// The request of `nats stream add`.
fn an_attempt_to_make_a_stream_names_the_configuration(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let mut client = fixture.client();
    for (question, payload, word) in [
        (
            "STREAM.CREATE.orders",
            r#"{"name":"orders","subjects":["orders.>"]}"#,
            "configuration of this server",
        ),
        ("STREAM.CREATE.events", r#"{"name":"events","subjects":["events.>"],"max_msgs":9}"#, "max_msgs"),
        ("STREAM.UPDATE.events", r#"{"name":"events","storage":"memory"}"#, "storage"),
    ] {
        let answer = ask(&mut client, question, payload);
        let words = answer["error"]["description"].as_str().unwrap_or_default();
        assert!(words.contains(word) && words.contains("configuration of this server"), "{answer}");
    }
    drop(client);
    fixture.server.finish();
}
