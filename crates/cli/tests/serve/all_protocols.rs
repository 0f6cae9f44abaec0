//! One server under the load of all protocols at once.

use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::nats::NatsServerFixture;
use crate::support::{DriverUnderTest, HANG_TIMEOUT, ServerUnderTest, binary};

on_both_drivers!(one_process_serves_all_protocols_under_load);

/// Messages of each publisher over NATS.
const MESSAGES: u64 = 3000;
const SUBSCRIBERS: u64 = 10;
const HTTP_REQUESTS: u64 = 5000;
const COAP_REQUESTS: u64 = 5000;
const SYSLOG_DATAGRAMS: u64 = 500;
const SYSLOG_BURST: u64 = 50;

/// A load generator that verifies every answer or delivery.
struct Load {
    name: &'static str,
    child: Child,
}

impl Load {
    /// Starts `stilling bench` with options separated by blanks.
    fn start(name: &'static str, options: &str) -> Load {
        let mut command: Command = binary();
        command.arg("bench").args(options.split_whitespace()).arg("--json");
        command.args(["--timeout", &HANG_TIMEOUT.as_secs().to_string()]).stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        Load { name, child }
    }

    /// The report of a run without failures.
    #[track_caller]
    fn report(self) -> Value {
        let outcome = self.child.wait_with_output().expect("it is a child");
        let [out, stderr_text] = [&outcome.stdout, &outcome.stderr].map(|text| String::from_utf8_lossy(text));
        assert_eq!((outcome.status.code(), &*stderr_text), (Some(0), ""), "{}: {out}", self.name);
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{}: {error}: {out}", self.name))
    }
}

/// Sends messages of RFC 5424, each in a datagram, in bursts that fit into the queues of the system; waits until each
/// burst is stored.
fn send_syslog(server: &ServerUnderTest) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let (to, mut watcher) = (server.banner_line("listening syslog-udp://"), server.watch());
    for number in 1..=SYSLOG_DATAGRAMS {
        let message = format!("<14>1 2026-01-01T00:00:00Z host app {number} - - load");
        socket.send_to(message.as_bytes(), to).expect("it is sent");
        if number.is_multiple_of(SYSLOG_BURST) {
            watcher.until("every syslog message is stored", |metrics| {
                metrics.value("hub_stream_last_sequence{stream=\"log\"}") == number
            });
        }
    }
}

/// Row 1.25: HTTP, NATS, SSE, WebSocket, syslog and CoAP, all at once on the same shards: every answer and delivery is
/// verified, and every datagram is stored.
fn one_process_serves_all_protocols_under_load(driver: DriverUnderTest) {
    let streams = "--stream live=live.>:memory --stream kept=kept.>:disk --stream log=events.>:memory";
    let fixture = NatsServerFixture::start(
        driver,
        &format!(
            "-A 2 {streams} --syslog-udp 127.0.0.1:0 --coap 127.0.0.1:0 --datagram-receive-buffer 200000"
        ),
    );
    let (server, http, nats) = (&fixture.server, fixture.server.address(), fixture.nats());
    let coap = server.banner_line("listening coap://").to_owned();
    let follow = format!("--publish-to {nats} -n {MESSAGES} --subscribers {SUBSCRIBERS} --window 256");
    let broadcasts = [
        Load::start("NATS", &format!("broadcast {nats} -n {MESSAGES} --subscribers {SUBSCRIBERS}")),
        Load::start("SSE", &format!("broadcast {http} --protocol sse --subject live.events {follow}")),
        Load::start("WebSocket", &format!("broadcast {http} --protocol websocket --subject kept.a {follow}")),
    ];
    let requests = [
        Load::start("HTTP", &format!("http {} -n {HTTP_REQUESTS} -c 20", server.url("/test/fast"))),
        Load::start("CoAP", &format!("coap coap://{coap}/test -n {COAP_REQUESTS} -s 16 -w 4")),
        Load::start("CoAP blocks", &format!("coap coap://{coap}/large -n 500 -s 8 -w 2")),
        Load::start(
            "CoAP POST",
            &format!("coap coap://{coap}/executions --count-executions -n {COAP_REQUESTS} -s 16 -w 4"),
        ),
    ];
    send_syslog(server);
    for broadcast in broadcasts {
        let name = broadcast.name;
        let report = broadcast.report();
        assert_eq!(report["deliveries"], MESSAGES * SUBSCRIBERS, "{name}: {report}");
    }
    let [http, coap, _, posts] = requests.map(Load::report);
    assert_eq!(http["ok"], HTTP_REQUESTS, "{http}");
    assert_eq!((&coap["completed"], &coap["failures_total"]), (&COAP_REQUESTS.into(), &0.into()), "{coap}");
    assert_eq!(posts["executions"], serde_json::json!({"executed": COAP_REQUESTS, "repeated": 0}), "{posts}");
    let metrics = fixture.server.finish();
    assert_eq!(metrics.sum("datagrams_dropped_total", ""), 0);
}
