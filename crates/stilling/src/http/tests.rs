//! HTTP sessions on a shard without worker threads: order, deadlines and the drain.

use std::io::Write;

use stilling_engine::CloseReason;

use super::{HttpEndpoint, HttpScope, Timeouts};
use crate::shard::Endpoint;
use crate::shard::testing::ShardFixture;

const FAST: &str = "GET /test/fast HTTP/1.1\r\nHost: a\r\n\r\n";

fn fixture() -> ShardFixture {
    let endpoint =
        HttpEndpoint { scope: HttpScope::Everything, demo: true, publishes: false, subscribes: false };
    ShardFixture::new(Endpoint::Http(endpoint), None)
}

fn statuses(text: &str) -> Vec<&str> {
    text.split("HTTP/1.1 ").skip(1).map(|response| &response[..3]).collect()
}

fn responses(count: usize) -> impl Fn(&str) -> bool {
    move |text| statuses(text).len() == count
}

/// Row 4.15: pipelined requests are answered in their order, also if a request arrives in pieces.
#[test]
fn pipelined_requests_are_answered_in_order() {
    let mut fixture = fixture();
    let mut client = fixture.connect();
    let missing = FAST.replace("/test/fast", "/missing");
    let (first, rest) = FAST.split_at(20);
    client.write_all(format!("{FAST}{missing}{first}").as_bytes()).expect("it is short");
    let text = fixture.read(&mut client, responses(2));
    assert_eq!(statuses(&text), ["200", "404"]);
    client.write_all(format!("{rest}{missing}").as_bytes()).expect("it is short");
    assert_eq!(statuses(&fixture.read(&mut client, responses(2))), ["200", "404"]);
}

/// Row 4.14: an invalid request is answered, and the requests behind it are not.
#[test]
fn nothing_is_answered_behind_an_invalid_request() {
    let mut fixture = fixture();
    let mut client = fixture.connect();
    client.write_all(format!("{FAST}no request\r\n\r\n{FAST}").as_bytes()).expect("it is short");
    let text = fixture.read(&mut client, |_| false);
    assert_eq!(statuses(&text), ["200", "400"]);
}

#[test]
fn each_phase_of_a_connection_has_its_deadline() {
    let Timeouts { first_byte, head, idle, .. } = Timeouts::default();
    let phases = [
        ("", first_byte, "", CloseReason::FirstByteTimeout),
        ("GET /test", head, "408", CloseReason::HeadTimeout),
        (FAST, idle, "200", CloseReason::IdleTimeout),
    ];
    for (input, timeout, status, reason) in phases {
        let mut fixture = fixture();
        let mut client = fixture.connect();
        client.write_all(input.as_bytes()).expect("it is short");
        fixture.turn_until_received(input.len() as u64);
        // What is sent now is flushed in the next turn, when the deadline starts.
        fixture.turn();
        fixture.time.advance(timeout - timeout / 100);
        fixture.turn();
        assert_eq!(fixture.engine_counters.open.get(), 1, "{reason:?}");
        fixture.time.advance(timeout / 50);
        let text = fixture.read(&mut client, |_| false);
        assert_eq!(statuses(&text).concat(), status);
        // The server waits for the client's end after an answer to an incomplete request.
        drop(client);
        fixture.turn_until("it is closed", |fixture| fixture.engine_counters.closed(reason).get() == 1);
    }
}

/// A drain ends idle connections at once, and others with their next response.
#[test]
fn a_drain_ends_connections_between_requests() {
    let mut fixture = fixture();
    let (mut idle, mut active) = (fixture.connect(), fixture.connect());
    let (first, rest) = FAST.split_at(20);
    for client in [&mut idle, &mut active] {
        client.write_all(FAST.as_bytes()).expect("it is short");
        fixture.read(client, responses(1));
    }
    active.write_all(first.as_bytes()).expect("it is short");
    fixture.turn_until_received((2 * FAST.len() + first.len()) as u64);
    fixture.lifecycle.end();
    assert_eq!(fixture.read(&mut idle, |_| false), "");
    active.write_all(rest.as_bytes()).expect("it is short");
    let text = fixture.read(&mut active, |_| false);
    assert!(statuses(&text) == ["200"] && text.contains("Connection: close\r\n"), "{text}");
}
