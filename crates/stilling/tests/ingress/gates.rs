//! Gates of the embedding program, over every ingress protocol.

use std::net::UdpSocket;

use stilling::DriverChoice;
use stilling::gate::{Gate, GateMessage, GateRecord, StatelessGate, UnixNanos, Verdict};
use stilling::settings::StreamConfig;
use stilling_hub::{Ingress, Loss};

use crate::support::{HubTestServer, NatsSubscriber, any_port, eventually, records};

on_both_drivers!(
    a_gate_of_the_program_decides_on_every_protocol,
    a_panic_of_a_gate_costs_one_message,
    the_queue_to_the_hub_is_measured,
);

/// Accepts at most this many records.
struct AtMost(u64);

impl Gate for AtMost {
    fn judge(&self, _: &GateMessage<'_>, _: UnixNanos) -> Verdict {
        if self.0 > 0 { Verdict::Accept } else { Verdict::reject("there are enough") }
    }

    fn apply(&mut self, _: &GateRecord<'_>) {
        self.0 -= 1;
    }

    fn snapshot(&self, into: &mut Vec<u8>) {
        into.extend(self.0.to_le_bytes());
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        self.0 = u64::from_le_bytes(snapshot.try_into().map_err(|_| "a snapshot has 8 bytes")?);
        Ok(())
    }
}

fn gated(driver: DriverChoice) -> HubTestServer {
    HubTestServer::with(driver, |config| {
        config.hub.syslog_udp = vec![any_port()];
        config.hub.gates.register("at-most", || AtMost(3));
        config.hub.gates.register("careful", || {
            StatelessGate(|message, _| match message.payload {
                b"panic" => panic!("on purpose"),
                _ => Verdict::Accept,
            })
        });
        let mut careful = StreamConfig::new("careful", ["careful.>"]);
        careful.gate = Some("careful".to_owned());
        config.hub.streams[0].gate = Some("at-most".to_owned());
        config.hub.streams.push(careful);
    })
}

fn post(server: &HubTestServer, subject: &str, body: &str) -> (u16, String) {
    let size = body.len();
    let request = format!(
        "POST /publish/{subject} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n{body}"
    );
    let answer = server.connect().ask(request);
    (answer.status, answer.text().trim_end().to_owned())
}

/// Row 2.19, issue 13: a rejection answers the publisher with the reason: NATS with an error object, HTTP with 422,
/// syslog with a count. Nothing of it is stored or delivered.
fn a_gate_of_the_program_decides_on_every_protocol(driver: DriverChoice) {
    let server = gated(driver);
    let mut observer = NatsSubscriber::at(server.at("nats"), "events.>");
    let mut client = NatsSubscriber::at(server.at("nats"), "answers.>");
    assert_eq!(post(&server, "events.a", "one").0, 200);
    client.publish("events.a", "answers.1", "two");
    assert_eq!(client.next().1, r#"{"stream":"events","seq":2}"#);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let to = server.at("syslog-udp");
    socket.send_to(b"<13>three", to).expect("it is sent");
    eventually("it is stored", || {
        (server.metric("stilling_hub_stream_last_sequence{stream=\"events\"}") == 3).then_some(())
    });
    assert_eq!(post(&server, "events.a", "four"), (422, "there are enough".to_owned()));
    client.publish("events.a", "answers.2", "five");
    let refused = client.next().1;
    assert!(refused.contains(r#""code":422,"err_code":20422,"description":"there are enough""#), "{refused}");
    socket.send_to(b"<13>six", to).expect("it is sent");
    let lines = "POST /publish/events.a HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/x-ndjson\r\nContent-Length: 3\r\n\r\n7\n8";
    let refused = server.connect().ask(lines);
    assert_eq!(
        (refused.status, refused.text().trim_end()),
        (422, "there are enough; none of 2 messages were stored")
    );
    eventually("all are counted", || {
        (server.metric("stilling_hub_stream_rejected_total{stream=\"events\"}") == 5).then_some(())
    });
    assert_eq!(server.metric("stilling_hub_stream_accepted_total{stream=\"events\"}"), 3);
    for flow in ["judged", "accepted", "rejected"] {
        // Row 2.17: it is exported; its value is tested with a stepped clock in `rates`.
        let peak = || server.metric(&format!("stilling_hub_per_second_max{{flow=\"{flow}\"}}"));
        eventually(&format!("the peak of {flow} is sampled"), || (peak() > 0).then_some(()));
    }
    let seen: Vec<String> = (0..3).map(|_| observer.next().1).collect();
    assert!(seen[..2] == ["one", "two"] && seen[2].contains("three"), "{seen:?}");
    let (overview, folder) = server.keep();
    let hub = overview.hub.get().expect("there is one");
    for (ingress, count) in [(Ingress::Http, 3), (Ingress::Nats, 1), (Ingress::Syslog, 1)] {
        assert_eq!(hub.losses(ingress, Loss::Rejected), count, "{ingress:?}");
    }
    assert_eq!(records(&folder.path().join("streams")).len(), 3);
    let snapshot = folder.path().join("streams/events/00000000000000000003.snapshot");
    assert!(snapshot.exists(), "a clean end writes the state");
}

/// A gate that panics rejects one message, and the server goes on.
fn a_panic_of_a_gate_costs_one_message(driver: DriverChoice) {
    let server = gated(driver);
    for _ in 0..3 {
        let (status, reason) = post(&server, "careful.a", "panic");
        assert_eq!((status, reason.as_str()), (422, "the gate failed on this message"));
        assert_eq!(post(&server, "careful.a", "fine").0, 200);
    }
    eventually("all are counted", || {
        (server.metric("stilling_hub_stream_gate_failures_total{stream=\"careful\"}") == 3).then_some(())
    });
    server.finish();
}

/// Row 2.10: length, maximum, rate and waiting time of the queue between I/O and logic.
fn the_queue_to_the_hub_is_measured(driver: DriverChoice) {
    let server = HubTestServer::start(driver);
    let mut client = NatsSubscriber::at(server.at("nats"), "answers.>");
    for number in 0..100 {
        client.publish("quick.a", "answers.1", &number.to_string());
    }
    for _ in 0..100 {
        client.next();
    }
    eventually("nothing waits", || (server.metric("stilling_hub_queue_length") == 0).then_some(()));
    let page = server.page("/metrics").into_text();
    let value = |name: &str| -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no metric {name} in\n{page}")).parse().expect("a number")
    };
    assert!(value("stilling_hub_requests_total") >= 100.0);
    assert!(value("stilling_hub_queue_length_max") >= 1.0);
    let (waited, longest) =
        (value("stilling_hub_queue_wait_seconds_total"), value("stilling_hub_queue_wait_max_seconds"));
    assert!(value("stilling_hub_queue_timed_requests_total") > 0.0 && waited > 0.0, "{page}");
    assert!(longest > 0.0 && longest < 60.0, "{longest}");
    let status = server.page("/status").into_text();
    for row in ["requests processed", "most requests waiting at once", "mean wait of requests"] {
        assert!(status.contains(row), "{row}");
    }
    drop(client);
    server.finish();
}
