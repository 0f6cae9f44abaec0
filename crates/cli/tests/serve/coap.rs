//! CoAP with libcoap's client: methods, blocks in both directions, separate responses, bad datagrams.

use std::net::UdpSocket;
use std::time::Duration;

use crate::support::{DriverUnderTest, ServerUnderTest, Tool};

on_both_drivers!(
    a_client_reads_and_changes_resources,
    bodies_pass_in_blocks_in_both_directions,
    replies_leave_from_the_address_that_was_asked,
    malformed_datagrams_cost_other_clients_nothing,
);

/// Seconds until the client gives up: far above any response time.
const CLIENT_TIMEOUT: &str = "-B 30";

/// A confirmable GET of `/test`: version 1, no token, message id 0x4d21 (RFC 7252 §3).
const GET_TEST: &[u8] = b"\x40\x01\x4d\x21\xb4test";

const WELCOME: &str = "welcome to the plugtest\n";

fn start(driver: DriverUnderTest, addresses: &str) -> ServerUnderTest {
    ServerUnderTest::start(driver, addresses)
}

/// `coap-client-notls` with options separated by blanks; its response, with the final line feed that it adds.
fn ask(server: &ServerUnderTest, options: &str, path: &str) -> String {
    let url = format!("coap://{}{path}", server.banner_line("listening coap://"));
    Tool::new("coap-client-notls", &format!("{CLIENT_TIMEOUT} {options}")).arg(url).output()
}

/// Requests with and without confirmation, a separate response, links, errors.
fn a_client_reads_and_changes_resources(driver: DriverUnderTest) {
    let server = start(driver, "--coap 127.0.0.1:0");
    assert_eq!(ask(&server, "-m get", "/test"), WELCOME);
    assert_eq!(ask(&server, "-N -m get", "/test"), WELCOME);
    assert_eq!(ask(&server, "-m get", "/separate"), "separate\n");
    assert_eq!(ask(&server, "-m get", "/query?a=1&b=2"), "a=1&b=2\n");
    assert!(ask(&server, "-m get", "/.well-known/core").contains("</test>"));
    for method in ["put", "post", "delete"] {
        let options = format!("-m {method} -e text");
        assert_eq!(ask(&server, &options, "/test").trim_end(), "", "{method}");
    }
    let metrics = server.finish();
    assert_eq!(metrics.value("coap_datagrams_total{class=\"malformed\"}"), 0);
    assert_eq!(metrics.value("coap_datagrams_total{class=\"duplicate\"}"), 0);
}

/// Rows 1.11 and 1.12: a body longer than a datagram arrives whole, whatever the size of its blocks.
fn bodies_pass_in_blocks_in_both_directions(driver: DriverUnderTest) {
    // What one shard stores is read by the same shard.
    let server = start(driver, "--coap 127.0.0.1:0 --accept-threads 1");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("body");
    for size in [16, 64, 512, 1024] {
        let body: String = (0..5000).map(|at| char::from(b'a' + (at / 16 % 26) as u8)).collect();
        std::fs::write(&file, &body).expect("a file");
        let options = format!("-m put -b {size} -f {}", file.display());
        ask(&server, &options, "/large-update");
        assert_eq!(ask(&server, &format!("-m get -b {size}"), "/large-update").trim_end(), body, "{size}");
    }
    let metrics = server.finish();
    assert!(metrics.value("coap_datagrams_total{class=\"next_block\"}") > 5000 / 16);
}

/// Row 1.23: IPv6, and row 1.12: a response comes from the address that its request was sent to, as connected sockets
/// require.
fn replies_leave_from_the_address_that_was_asked(driver: DriverUnderTest) {
    let server = start(driver, "--coap 0.0.0.0:0 --coap [::1]:0 --demo");
    let listening = server.banner_lines("listening coap://");
    let port = listening[0].rsplit(':').next().expect("a port");
    for address in [format!("127.0.0.1:{port}"), format!("127.0.0.2:{port}"), listening[1].to_owned()] {
        let socket = UdpSocket::bind(if address.starts_with('[') { "[::1]:0" } else { "127.0.0.1:0" });
        let socket = socket.expect("a free port");
        socket.connect(&address).expect("a valid address");
        socket.set_read_timeout(Some(Duration::from_secs(30))).expect("it can be set");
        socket.send(GET_TEST).expect("it can be sent");
        let mut response = [0; 256];
        let size = socket.recv(&mut response).expect("the response comes from the connected address");
        // 2.05 Content in an acknowledgement with the id of the request.
        assert_eq!(response[..4], [0x60, 0x45, 0x4d, 0x21], "{address}");
        assert!(response[..size].ends_with(b"welcome to the plugtest"), "{address}");
    }
    server.finish();
}

/// Row 1.14: malformed datagrams are counted and other clients are answered; a repeated request is answered from memory.
fn malformed_datagrams_cost_other_clients_nothing(driver: DriverUnderTest) {
    let server = start(driver, "--coap 127.0.0.1:0");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.connect(server.banner_line("listening coap://")).expect("a valid address");
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("it can be set");
    // Shorter than a header; a token of 9 bytes; an option beyond the end; a payload marker without a payload.
    for bytes in
        [&b"\x40"[..], b"\x49\x01\x00\x01123456789", b"\x50\x01\x00\x02\xb9te", b"\x50\x01\x00\x03\xff"]
    {
        socket.send(bytes).expect("it can be sent");
    }
    let mut first = None;
    for _ in 0..2 {
        socket.send(GET_TEST).expect("it can be sent");
        let mut response = [0; 256];
        // Resets of malformed confirmable messages may come first (RFC 7252 §4.2).
        let size = loop {
            let size = socket.recv(&mut response).expect("a response");
            if response[2..4] == GET_TEST[2..4] {
                break size;
            }
        };
        let response = response[..size].to_vec();
        assert_eq!(*first.get_or_insert_with(|| response.clone()), response);
    }
    assert_eq!(ask(&server, "-m get", "/test"), WELCOME);
    let metrics = server.finish();
    assert_eq!(metrics.value("coap_datagrams_total{class=\"malformed\"}"), 4);
    assert_eq!(metrics.value("coap_datagrams_total{class=\"duplicate\"}"), 1);
}
