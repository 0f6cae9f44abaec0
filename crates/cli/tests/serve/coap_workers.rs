//! CoAP requests that worker processes answer, with libcoap's client and with datagrams.

use std::net::UdpSocket;
use std::time::Duration;

use rustix::process::Signal;

use crate::app::before_fakes;
use crate::support::{DriverUnderTest, ServerUnderTest, Tool};

on_both_drivers!(
    a_worker_answers_every_method,
    bodies_pass_through_a_worker_in_both_directions,
    a_killed_worker_costs_its_request_only,
    a_slow_worker_answers_separately,
    overload_sheds_new_requests_and_ends,
    a_reload_with_affinity_keeps_the_places_of_coap_clients,
);

const COAP: &str = "--coap 127.0.0.1:0 --accept-threads 1";

/// `coap-client-notls` with options separated by blanks; its response, without the final line feed that it adds.
pub(crate) fn ask(server: &ServerUnderTest, options: &str, path: &str) -> String {
    let url = format!("coap://{}{path}", server.banner_line("listening coap://"));
    let response = Tool::new("coap-client-notls", &format!("-B 60 {options}")).arg(url).output();
    response.strip_suffix('\n').unwrap_or(&response).to_owned()
}

pub(crate) fn socket(server: &ServerUnderTest) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.connect(server.banner_line("listening coap://")).expect("a valid address");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("it can be set");
    socket
}

/// A confirmable GET with a message id, without a token; segments are shorter than 13 bytes (RFC 7252 §3.1).
pub(crate) fn get(id: u16, segments: &[&str]) -> Vec<u8> {
    let mut datagram = vec![0x40, 1];
    datagram.extend_from_slice(&id.to_be_bytes());
    for (at, segment) in segments.iter().enumerate() {
        datagram.push(if at == 0 { 0xb0 } else { 0 } | segment.len() as u8);
        datagram.extend_from_slice(segment.as_bytes());
    }
    datagram
}

/// The code and the whole of the next message that is no empty acknowledgement.
pub(crate) fn receive(socket: &UdpSocket) -> (u8, Vec<u8>) {
    let mut message = [0; 2048];
    loop {
        let size = socket.recv(&mut message).expect("a message");
        if message[1] != 0 {
            return (message[1], message[..size].to_vec());
        }
    }
}

/// The process that answers a CoAP request with this message id; `None`: 5.03 with Max-Age.
#[track_caller]
pub(crate) fn process_over_coap(socket: &UdpSocket, id: u16) -> Option<u32> {
    socket.send(&get(id, &["pid"])).expect("it can be sent");
    receive_process(socket)
}

/// The process that has answered with its id; `None`: 5.03 with Max-Age.
#[track_caller]
fn receive_process(socket: &UdpSocket) -> Option<u32> {
    let (code, message) = receive(socket);
    if message[0] & 0x30 == 0 {
        // A separate response: acknowledged, so that it is not sent again.
        socket.send(&[0x60, 0, message[2], message[3]]).expect("it can be sent");
    }
    let payload = message.iter().position(|byte| *byte == 0xff).map(|at| &message[at + 1..]);
    match code {
        CONTENT => {
            let text = std::str::from_utf8(payload.expect("a payload")).expect("text");
            Some(text.parse().expect("a number"))
        }
        SERVICE_UNAVAILABLE => {
            // Max-Age is option 14, the only one.
            assert_eq!(message[4], 0xd1, "Max-Age: {message:?}");
            None
        }
        code => panic!("{code:#x}"),
    }
}

/// Requests a path on a socket of its own. Returns the code of the response.
pub(crate) fn code(server: &ServerUnderTest, segments: &[&str]) -> u8 {
    let socket = socket(server);
    socket.send(&get(1, segments)).expect("it can be sent");
    receive(&socket).0
}

pub(crate) const CONTENT: u8 = 0x45;
const TOO_MANY_REQUESTS: u8 = 0x9d;
pub(crate) const BAD_GATEWAY: u8 = 0xa2;
pub(crate) const SERVICE_UNAVAILABLE: u8 = 0xa3;

/// RFC 8075: methods, path, query and the client's address reach the worker; HTTP and CoAP share the pool.
fn a_worker_answers_every_method(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, COAP);
    for (method, name) in [("get", "GET"), ("post", "POST"), ("put", "PUT"), ("delete", "DELETE")] {
        let request = ask(&server, &format!("-m {method}"), "/echo/a%2Fb?x=1&y=2");
        assert!(request.starts_with(&format!("{name} /echo/a%2Fb?x=1&y=2 HTTP/1.1\r\n")), "{request}");
        assert!(request.contains("X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: coap\r\n"), "{request}");
    }
    let over_http = server.connect().ask("GET /pid HTTP/1.1\r\nHost: a\r\n\r\n").into_text();
    assert_eq!(ask(&server, "-m get", "/pid"), over_http);
    drop(watcher);
    let metrics = server.finish();
    assert_eq!(metrics.value("coap_forwarded_total"), 5);
}

/// Row 1.11: 20 KB to a worker in blocks, 50 KB back.
fn bodies_pass_through_a_worker_in_both_directions(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, COAP);
    let folder = tempfile::tempdir().expect("a folder");
    let [upload, download] = ["upload", "download"].map(|name| folder.path().join(name));
    let pattern = |size: usize| (0..size).map(|at| (at % 251) as u8).collect::<Vec<_>>();
    std::fs::write(&upload, pattern(20_000)).expect("a file");
    assert_eq!(ask(&server, &format!("-m put -b 1024 -f {}", upload.display()), "/put"), "20000 good");
    for path in ["/sized/50000", "/chunked/50000"] {
        ask(&server, &format!("-m get -b 512 -o {}", download.display()), path);
        let received = std::fs::read(&download).expect("the answer");
        assert!(received == pattern(50_000), "{path}: {} bytes", received.len());
    }
    drop(watcher);
    let metrics = server.finish();
    // All later blocks come from memory.
    assert_eq!(metrics.value("coap_forwarded_total"), 3);
}

/// Row 1.24: the crash of a worker costs the request that it served, which is answered 5.02; the worker is started
/// again.
fn a_killed_worker_costs_its_request_only(driver: DriverUnderTest) {
    let (server, mut watcher) = before_fakes(driver, &format!("{COAP} --processes 2"));
    let [victim, other] = [(); 2].map(|()| socket(&server));
    other.send(&get(1, &["sleep", "300"])).expect("it can be sent");
    victim.send(&get(2, &["die"])).expect("it can be sent");
    assert_eq!(receive(&victim).0, BAD_GATEWAY);
    assert_eq!(receive(&other).0, CONTENT);
    watcher.until("both are ready again", |metrics| {
        metrics.sum("app_processes", "state=\"ready\"") == 2
            && metrics.sum("app_process_events_total", "event=\"started\"") == 3
    });
    victim.send(&get(3, &["pid"])).expect("it can be sent");
    assert_eq!(receive(&victim).0, CONTENT);
    drop(watcher);
    let metrics = server.finish();
    assert_eq!(metrics.value("coap_worker_failures_total{reason=\"failed\"}"), 1);
}

/// An answer after more than a second is a message of its own.
fn a_slow_worker_answers_separately(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, COAP);
    assert!(ask(&server, "-m get", "/sleep/1500").parse::<u32>().is_ok_and(|pid| pid > 0));
    drop(watcher);
    assert_eq!(server.finish().value("coap_separate_responses_total"), 1);
}

/// Rows 1.6, 1.9 and 1.10: with workers that are too slow, new requests are shed and counted, each with a reply;
/// duplicates get the same reply; when the load ends, requests are answered again.
fn overload_sheds_new_requests_and_ends(driver: DriverUnderTest) {
    let (server, mut watcher) = before_fakes(driver, &format!("{COAP} --queue-timeout 0.1"));
    let sockets: Vec<_> = (0..12).map(|_| socket(&server)).collect();
    for (id, socket) in sockets.iter().enumerate() {
        socket.send(&get(id as u16, &["sleep", "400"])).expect("it can be sent");
    }
    let mut shed = 0;
    for (id, socket) in sockets.iter().enumerate() {
        let (code, first) = receive(socket);
        assert!([CONTENT, SERVICE_UNAVAILABLE, TOO_MANY_REQUESTS].contains(&code), "{code:#x}");
        shed += u64::from(code != CONTENT);
        socket.send(&get(id as u16, &["sleep", "400"])).expect("it can be sent");
        let (_, second) = receive(socket);
        assert_eq!(first, second, "the duplicate gets the same reply");
    }
    assert!(shed > 0);
    let status = server.connect().ask("GET /status HTTP/1.1\r\nHost: a\r\n\r\n").into_text();
    assert!(status.contains("<td>refused: no worker free in time<td>"), "{status}");
    watcher.until("the overload ends", |metrics| metrics.value("coap_overloaded_pools") == 0);
    let last = socket(&server);
    last.send(&get(99, &["pid"])).expect("it can be sent");
    assert_eq!(receive(&last).0, CONTENT);
    drop(watcher);
    let metrics = server.finish();
    let counted = metrics.value("coap_no_worker_total")
        + metrics.value("coap_shed_total{reply=\"unavailable\"}")
        + metrics.value("coap_shed_total{reply=\"too_many\"}");
    assert_eq!(counted, shed);
    assert_eq!(metrics.value("coap_datagrams_total{class=\"duplicate\"}"), 12);
}

/// Rows 1.4, 1.24: after a reload each CoAP client with a process has a new one, and a further client is answered 5.03 as
/// before; a request that the former process has is finished by it.
fn a_reload_with_affinity_keeps_the_places_of_coap_clients(driver: DriverUnderTest) {
    let options = "--coap 127.0.0.1:0 --accept-threads 2 --processes 2 --app-affinity";
    let (server, mut watcher) = before_fakes(driver, options);
    let [busy, idle, further] = [(); 3].map(|()| socket(&server));
    let former = [&busy, &idle].map(|client| process_over_coap(client, 1).expect("a free process"));
    assert_ne!(former[0], former[1]);
    assert_eq!(process_over_coap(&further, 1), None);
    busy.send(&get(2, &["sleep", "600"])).expect("it can be sent");
    watcher.until("it runs", |metrics| metrics.sum("app_requests_now", "state=\"running\"") == 1);
    server.signal(Signal::HUP);
    watcher.until("the processes are replaced", |metrics| {
        metrics.sum("app_process_events_total", "event=\"reloaded\"") == 1
    });
    assert_eq!(process_over_coap(&further, 2), None, "the new processes are those of the present clients");
    assert_eq!(receive_process(&busy), Some(former[0]));
    let new = [&busy, &idle].map(|client| process_over_coap(client, 3).expect("it has a new process"));
    assert!(new[0] != new[1] && new.iter().all(|process| !former.contains(process)), "{former:?} {new:?}");
    for id in 4..6 {
        assert_eq!(process_over_coap(&further, id), None);
        assert_eq!([&busy, &idle].map(|client| process_over_coap(client, id)), new.map(Some));
    }
    drop(watcher);
    let metrics = server.finish();
    assert_eq!(metrics.sum("app_requests_total", "outcome=\"no_worker\""), 4);
    assert_eq!(metrics.sum("coap_shed_total", "reply="), 0, "a refused client is no overload");
}
