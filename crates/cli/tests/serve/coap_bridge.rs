//! CoAP clients that publish to streams and observe them: libcoap's client, `stilling request`, and scripted ones.

use std::io::Read;
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};

use stilling_wire::coap::{CoapMessage, Code, MessageType};

use crate::support::{
    DiskFault, DriverUnderTest, HANG_TIMEOUT, RawWebSocket, ServerUnderTest, TestPeer, Tool,
};

on_both_drivers!(
    a_reading_passes_a_disk_stream_to_a_browser_and_observers,
    observers_of_a_demo_resource_get_its_changes,
    a_publication_waits_for_a_hung_disk_and_its_duplicates_are_not_stored,
    an_address_without_access_is_refused,
);

/// An observer whose states are read from its output.
struct ObserverProcess {
    child: Child,
    output: Vec<u8>,
}

impl ObserverProcess {
    fn start(mut command: Command) -> ObserverProcess {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let child = child.expect("it starts; install it (`cargo xtask test` does)");
        ObserverProcess { child, output: Vec::new() }
    }

    /// libcoap's client.
    fn libcoap(url: &str) -> ObserverProcess {
        // Seconds: it ends by itself long after the test.
        ObserverProcess::start(Tool::new("coap-client-notls", "-B 60 -s 60 -m get").arg(url).into_command())
    }

    /// This project's client.
    fn stilling(url: &str) -> ObserverProcess {
        let command = Tool::new(env!("CARGO_BIN_EXE_stilling"), "request --observe").arg(url);
        ObserverProcess::start(command.into_command())
    }

    /// Reads until the output contains `state`.
    #[track_caller]
    fn until(&mut self, state: &str) {
        let stdout = self.child.stdout.as_mut().expect("it is piped");
        while !String::from_utf8_lossy(&self.output).contains(state) {
            let mut buffer = [0; 1024];
            let size = stdout.read(&mut buffer).expect("the pipe can be read");
            assert!(size > 0, "it ended: {}", String::from_utf8_lossy(&self.output));
            self.output.extend_from_slice(&buffer[..size]);
        }
    }
}

impl Drop for ObserverProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn url(server: &ServerUnderTest, path: &str) -> String {
    format!("coap://{}{path}", server.banner_line("listening coap://"))
}

/// The output of libcoap's client, with the final line feed that it adds.
fn ask(server: &ServerUnderTest, options: &str, path: &str) -> String {
    Tool::new("coap-client-notls", &format!("-B 30 {options}")).arg(url(server, path)).output()
}

fn start(driver: DriverUnderTest, data: &std::path::Path, options: &str) -> ServerUnderTest {
    let options = format!("--coap 127.0.0.1:0 --nats 127.0.0.1:0 --data {} {options}", data.display());
    ServerUnderTest::start(driver, &options)
}

/// Reads lines of server-sent events until one contains `text`.
fn event_with(peer: &mut TestPeer, text: &str) {
    let mut line = String::new();
    while !(line.starts_with("data: ") && line.contains(text)) {
        let bytes = std::iter::repeat_with(|| peer.read_exactly(1)[0]).take_while(|byte| *byte != b'\n');
        line = String::from_utf8(bytes.collect()).expect("a line is text");
    }
}

/// Issue row of the bridge, as in docs/coap.md: a sensor's reading goes by libcoap's client through a stream on disk to an
/// event stream and a WebSocket as browsers open them, and to observers.
fn a_reading_passes_a_disk_stream_to_a_browser_and_observers(driver: DriverUnderTest) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(driver, folder.path(), "-A 2");
    let mut browser = server.connect();
    browser.send("GET /subscribe/events.> HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    assert_eq!(browser.head().status, 200);
    let address = server.banner_line("listening http://").parse().expect("an address");
    let mut websocket = RawWebSocket::open(address, "/subscribe/events.>", "");
    let published = ask(&server, "-m post -e 20.5", "/publish/events.roof");
    assert_eq!(published.trim_end(), r#"{"stream":"events","seq":1}"#);
    event_with(&mut browser, "20.5");
    let subscribe = url(&server, "/subscribe/events.roof");
    let mut observers = [ObserverProcess::libcoap(&subscribe), ObserverProcess::stilling(&subscribe)];
    observers.iter_mut().for_each(|observer| observer.until("20.5"));
    for reading in ["21.5", "22.5"] {
        ask(&server, &format!("-m post -e {reading}"), "/publish/events.roof");
        ask(&server, "-m post -e 9", "/publish/events.cellar");
        event_with(&mut browser, reading);
        while !websocket.text().contains(reading) {}
        observers.iter_mut().for_each(|observer| observer.until(reading));
    }
    assert_eq!(ask(&server, "-m get", "/subscribe/events.roof"), "22.5\n");
    let metrics = server.watch().fetch();
    assert_eq!(metrics.value("coap_observers"), 2);
    let notifications =
        ["confirmable", "non_confirmable"].map(|kind| format!("coap_notifications_total{{type=\"{kind}\"}}"));
    assert!(
        notifications.iter().map(|name| metrics.value(name)).sum::<u64>() >= 4,
        "two readings to two observers"
    );
    // Observers of one shard share its subscription.
    assert!(metrics.value("hub_subscribers_delivered_total{protocol=\"coap\"}") >= 2);
    drop(observers);
    drop((browser, websocket));
    server.finish();
}

/// Notifications of a demo resource, which clients of each shard may change.
fn observers_of_a_demo_resource_get_its_changes(driver: DriverUnderTest) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(driver, folder.path(), "-A 2");
    let links = ask(&server, "-m get", "/.well-known/core");
    assert!(links.contains("</obs>") && links.contains("obs;"), "{links}");
    for path in ["/obs", "/obs-non"] {
        let url = url(&server, path);
        let mut observers = [ObserverProcess::libcoap(&url), ObserverProcess::stilling(&url)];
        observers.iter_mut().for_each(|observer| observer.until("change "));
        ask(&server, "-m put -e stored", path);
        observers.iter_mut().for_each(|observer| observer.until("stored"));
    }
    let metrics = server.finish();
    assert!(metrics.value("coap_notifications_total{type=\"confirmable\"}") >= 4);
    assert_eq!(metrics.value("coap_observers_refused_total"), 0);
}

/// A confirmable POST of `/publish/events.a` with the token `t`.
fn publication(id: u16) -> Vec<u8> {
    [&[0x41, 2][..], &id.to_be_bytes(), b"t\xb7publish\x08events.a\xffreading"].concat()
}

fn receive(client: &UdpSocket) -> (MessageType, Code, Vec<u8>) {
    let mut buffer = [0; 1500];
    let size = client.recv(&mut buffer).expect("a message");
    let message = CoapMessage::parse(&buffer[..size]).expect("it is valid");
    if message.kind == MessageType::Confirmable {
        let acknowledgement = [&[0x60, 0][..], &message.id.to_be_bytes()].concat();
        client.send(&acknowledgement).expect("it is sent");
    }
    (message.kind, message.code, message.payload.to_vec())
}

/// Publication × hung disk × duplicate: nothing is answered before the sync, and a repeated request is stored once.
fn a_publication_waits_for_a_hung_disk_and_its_duplicates_are_not_stored(driver: DriverUnderTest) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(driver, folder.path(), "");
    assert!(ask(&server, "-m post -e first", "/publish/events.a").contains(r#""seq":1"#));
    let client = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    client.connect(server.banner_line("listening coap://")).expect("an address");
    client.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
    let disk = DiskFault::hang(&server);
    client.send(&publication(7)).expect("it is sent");
    disk.hangs();
    let (kind, code, _) = receive(&client);
    assert_eq!((kind, code), (MessageType::Acknowledgement, Code::EMPTY), "the answer takes longer");
    let mut watcher = server.watch();
    for count in 1..=3 {
        client.send(&publication(7)).expect("it is sent");
        let (kind, code, _) = receive(&client);
        assert_eq!((kind, code), (MessageType::Acknowledgement, Code::EMPTY), "the same reply");
        watcher.until("it is a duplicate", |metrics| {
            metrics.value("coap_datagrams_total{class=\"duplicate\"}") == count
        });
    }
    drop(disk);
    let (kind, code, payload) = receive(&client);
    assert_eq!((kind, code), (MessageType::Confirmable, Code::CHANGED));
    assert_eq!(payload, br#"{"stream":"events","seq":2}"#);
    assert!(ask(&server, "-m post -e last", "/publish/events.a").contains(r#""seq":3"#));
    server.finish();
}

/// Invariant 13: with users, CoAP clients on loopback need `--coap-source` as well, because CoAP has no credentials.
fn an_address_without_access_is_refused(driver: DriverUnderTest) {
    let folder = tempfile::tempdir().expect("a folder");
    let user = "--user root:password=x";
    let closed = start(driver, folder.path(), user);
    let client = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let answer = |server: &ServerUnderTest, id| {
        client.connect(server.banner_line("listening coap://")).expect("an address");
        client.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
        client.send(&publication(id)).expect("it is sent");
        receive(&client).1
    };
    assert_eq!(answer(&closed, 1), Code::NOT_FOUND, "the path does not exist");
    closed.finish();
    let other = start(driver, folder.path(), &format!("{user} --coap-source 192.0.2.0/24"));
    assert_eq!(answer(&other, 2), Code::FORBIDDEN);
    assert_eq!(other.finish().value("coap_bridge_forbidden_total"), 1);
    let open = start(driver, folder.path(), &format!("{user} --coap-source 127.0.0.1"));
    assert_eq!(answer(&open, 3), Code::CHANGED);
    open.finish();
}
