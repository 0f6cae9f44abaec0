//! A status in headers comes from the server only: a published one stops no follower of a stream.

use std::process::{Command, Stdio};

use super::{NatsServerFixture, RawNatsClient};
use crate::support::DriverUnderTest;

on_both_drivers! {
    a_status_that_was_published_stops_no_follower,
    a_status_reaches_other_clients_where_no_stream_is,
}

/// Header blocks that a follower of a stream would treat as the server's own.
const STATUSES: [&str; 4] = [
    "NATS/1.0 409 Consumer Deleted\r\n\r\n",
    "NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 99\r\nNats-Last-Stream: 99\r\n\r\n",
    "NATS/1.0 100 FlowControl Request\r\n\r\n",
    "NATS/1.0 503\r\n\r\n",
];

fn publish_with(client: &mut RawNatsClient, subject: &str, headers: &str, payload: &str) {
    let (heads, size) = (headers.len(), headers.len() + payload.len());
    client.send(format!("HPUB {subject} {heads} {size}\r\n{headers}{payload}\r\n"));
}

fn consumers_of(client: &mut RawNatsClient, stream: &str) -> u64 {
    client.send(format!("SUB answer 9\r\nPUB $JS.API.STREAM.INFO.{stream} answer 0\r\n\r\nUNSUB 9\r\n"));
    let response = client.flush().concat();
    let (_, behind) = response.split_once("\"consumer_count\":").unwrap_or_else(|| panic!("{response}"));
    let digits: String = behind.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// A published status does not lock out the followers of its stream.
fn a_status_that_was_published_stops_no_follower(driver: DriverUnderTest) {
    let fixture =
        NatsServerFixture::start(driver, "--stream events=events.> --stream memory=memory.>:memory");
    for stream in ["events", "memory"] {
        let mut client = fixture.client();
        let subject = format!("{stream}.a");
        publish_with(&mut client, &subject, "NATS/1.0\r\n\r\n", "first");
        client.flush();
        let count = 2 * STATUSES.len() + 1;
        let follower = Command::new(env!("CARGO_BIN_EXE_stilling"))
            .args(["sub", &format!("{stream}.>"), "--stream", stream, "--raw", "--timeout", "30"])
            .args(["--server", &format!("nats://{}", fixture.nats()), "--count", &count.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        for (number, headers) in STATUSES.iter().enumerate() {
            publish_with(&mut client, &subject, headers, &format!("status {number}"));
            client.send(format!("PUB {subject} 5\r\nplain\r\n"));
        }
        client.flush();
        let outcome = follower.wait_with_output().expect("it ends");
        assert!(outcome.status.success(), "{stream}: {outcome:?}");
        let mut expected = "first\n".to_owned();
        for number in 0..STATUSES.len() {
            expected.push_str(&format!("status {number}\nplain\n"));
        }
        assert_eq!(String::from_utf8(outcome.stdout).expect("text"), expected, "{stream}");
        let consumers = consumers_of(&mut client, stream);
        assert!(consumers <= 2, "{stream}: {consumers} consumers");
    }
    fixture.server.finish();
}

/// A subscriber to a stream's subjects gets no status either; without a stream, a status is an ordinary message.
fn a_status_reaches_other_clients_where_no_stream_is(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "--stream events=events.>");
    let mut client = fixture.client();
    client.send("SUB events.> 1\r\nSUB answers.* 2\r\n");
    let block = "NATS/1.0 400 wrong question\r\na: b\r\n\r\n";
    for subject in ["answers.1", "events.1"] {
        publish_with(&mut client, subject, block, "x");
    }
    assert_eq!(client.lines(5), ["HMSG answers.1 2 37 38", "NATS/1.0 400 wrong question", "a: b", "", "x"]);
    assert_eq!(client.lines(5), ["HMSG events.1 1 18 19", "NATS/1.0", "a: b", "", "x"]);
    fixture.server.finish();
}
