//! CoAP with libcoap's client: methods, blocks in both directions, separate responses, bad datagrams.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use stilling_ring::SplitMix64;

use crate::support::{DriverUnderTest, ServerUnderTest, TestPeer, Tool, binary, eventually};

on_both_drivers!(
    a_client_reads_and_changes_resources,
    bodies_pass_in_blocks_in_both_directions,
    replies_leave_from_the_address_that_was_asked,
    malformed_datagrams_cost_other_clients_nothing,
    a_burst_waits_in_the_ring_and_is_answered,
    what_the_kernel_drops_is_counted,
    datagrams_that_wait_at_the_drain_are_answered,
    an_unproven_client_gets_at_most_three_times_its_bytes,
    hostile_datagrams_are_survived_and_not_amplified,
    an_address_in_use_is_an_error_only_if_it_is_named,
    the_packet_log_has_every_datagram_with_both_addresses,
    a_packet_log_that_cannot_be_written_costs_no_answer,
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
    let server = start(driver, "--coap 127.0.0.1:0 --accept-threads 2");
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

/// Row 1.23: IPv6 and dual stack, and row 1.12: a response comes from the address that its request was sent to, as connected sockets
/// require.
fn replies_leave_from_the_address_that_was_asked(driver: DriverUnderTest) {
    let server = start(driver, "--coap 0.0.0.0:0 --coap [::1]:0 --coap [::]:0 --demo");
    let listening = server.banner_lines("listening coap://");
    let port = |at: usize| listening[at].rsplit(':').next().expect("a port");
    for address in [
        format!("127.0.0.1:{}", port(0)),
        format!("127.0.0.2:{}", port(0)),
        listening[1].to_owned(),
        format!("[::1]:{}", port(2)),
        format!("127.0.0.2:{}", port(2)),
    ] {
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

/// Bytes of a receive buffer that the system grants without privileges.
const RECEIVE_BUFFER: u64 = 200_000;

fn client_of(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(if address.starts_with('[') { "[::1]:0" } else { "127.0.0.1:0" });
    let socket = socket.expect("a free port");
    socket.connect(address).expect("a valid address");
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("it can be set");
    socket
}

/// A non-confirmable GET of `/test`.
fn non_get(id: u16) -> Vec<u8> {
    [&[0x50, 0x01][..], &id.to_be_bytes(), b"\xb4test"].concat()
}

/// Rows 1.7, 1.16: a burst is drained into the ring at once and answered whole; the gauge shows it and returns to 0.
fn a_burst_waits_in_the_ring_and_is_answered(driver: DriverUnderTest) {
    const BURST: u16 = 200;
    let options = format!("--coap 127.0.0.1:0 -A 1 --datagram-receive-buffer {RECEIVE_BUFFER}");
    let server = start(driver, &options);
    let address = server.banner_line("listening coap://").to_owned();
    let client = client_of(&address);
    server.signal(Signal::STOP);
    server.wait_until_stopped();
    for id in 0..BURST {
        client.send(&non_get(id)).expect("it is sent");
    }
    server.signal(Signal::CONT);
    let ids: BTreeSet<u16> = (0..BURST)
        .map(|_| {
            let mut response = [0; 256];
            client.recv(&mut response).expect("a response to each");
            u16::from_be_bytes([response[2], response[3]])
        })
        .collect();
    assert_eq!(ids.len(), usize::from(BURST));
    let metrics = server.finish();
    assert_eq!(
        metrics.value(&format!("datagram_receive_buffer_bytes{{listener=\"coap://{address}\"}}")),
        RECEIVE_BUFFER
    );
    let most = metrics.value("datagrams_waiting_max");
    assert!((2..=4096).contains(&most), "{most} waited at once");
    for name in ["datagrams_waiting", "datagrams_shed_total", "datagrams_dropped_by_kernel_total"] {
        assert_eq!(metrics.value(name), 0, "{name}");
    }
}

/// Rows 1.17, 1.18: datagrams that the kernel drops at a full receive buffer are counted, so that none is missing.
fn what_the_kernel_drops_is_counted(driver: DriverUnderTest) {
    const FLOOD: u64 = 1000;
    let server =
        start(driver, "--coap 127.0.0.1:0 -A 1 --datagram-receive-buffer 8192 --datagram-drop newest");
    let client = client_of(server.banner_line("listening coap://"));
    let mut watcher = server.watch();
    server.signal(Signal::STOP);
    server.wait_until_stopped();
    for _ in 0..FLOOD {
        // Of another version: it is ignored.
        client.send(&[0xff; 1000]).expect("it is sent");
    }
    server.signal(Signal::CONT);
    watcher.until("all are counted", |metrics| {
        let received = metrics.value("datagrams_received_total");
        received + metrics.value("datagrams_dropped_by_kernel_total") == FLOOD
    });
    client.send(GET_TEST).expect("it is sent");
    client.recv(&mut [0; 256]).expect("a response");
    let metrics = server.finish();
    assert!(metrics.value("datagrams_dropped_by_kernel_total") > 0);
    assert_eq!(metrics.value("datagrams_dropped_total{reason=\"buffer_full\"}"), 0);
}

/// Row 1.7: at SIGTERM the requests in the kernel's queue, more than a turn receives, are answered before the sockets
/// close.
fn datagrams_that_wait_at_the_drain_are_answered(driver: DriverUnderTest) {
    const CLIENTS: usize = 4;
    const REQUESTS: u16 = 80;
    let options = format!("--coap 127.0.0.1:0 -A 1 --datagram-receive-buffer {RECEIVE_BUFFER}");
    let server = start(driver, &options);
    let clients = [(); CLIENTS].map(|()| client_of(server.banner_line("listening coap://")));
    // It has started to receive.
    clients[0].send(GET_TEST).expect("it is sent");
    clients[0].recv(&mut [0; 256]).expect("a response");
    server.signal(Signal::STOP);
    server.wait_until_stopped();
    for client in &clients {
        for id in 0..REQUESTS {
            client.send(&non_get(id)).expect("it is sent");
        }
    }
    server.signal(Signal::TERM);
    server.signal(Signal::CONT);
    for client in &clients {
        for _ in 0..REQUESTS {
            client.recv(&mut [0; 256]).expect("a response to each");
        }
    }
    let metrics = server.expect_clean_end();
    let requests = 1 + CLIENTS as u64 * u64::from(REQUESTS);
    assert_eq!(metrics.value("coap_datagrams_total{class=\"new\"}"), requests);
}

fn packet_files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("the server has created it");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort_unstable();
    paths
}

/// Row 1.13: tshark reads every datagram in and out, each with both addresses, whichever address was asked.
fn the_packet_log_has_every_datagram_with_both_addresses(driver: DriverUnderTest) {
    let folder = tempfile::tempdir().expect("a folder");
    let directory = folder.path().join("packets");
    let options = format!("--coap 0.0.0.0:0 --coap [::1]:0 --demo --packet-log {}", directory.display());
    let server = start(driver, &options);
    let listening = server.banner_lines("listening coap://");
    let port = |address: &str| address.rsplit(':').next().expect("a port").to_owned();
    let (v4, v6) = (port(listening[0]), port(listening[1]));
    let mut expected = BTreeSet::new();
    for (ip, port) in [("127.0.0.1", &v4), ("127.0.0.2", &v4), ("::1", &v6)] {
        let server_address = if ip == "::1" { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") };
        let client = client_of(&server_address);
        let own = client.local_addr().expect("it is bound");
        for id in 0..20 {
            client.send(&non_get(id)).expect("it is sent");
            client.recv(&mut [0; 256]).expect("a response");
        }
        expected.insert(format!("{}\t{}\t{ip}\t{port}", own.ip(), own.port()));
        expected.insert(format!("{ip}\t{port}\t{}\t{}", own.ip(), own.port()));
    }
    let metrics = server.finish();
    for lost in ["busy", "error"] {
        assert_eq!(metrics.value(&format!("packet_log_lost_total{{reason=\"{lost}\"}}")), 0, "{lost}");
    }
    assert_eq!(metrics.value("packet_log_recorded_total"), 120);
    let files = packet_files(&directory);
    assert_eq!(files.len(), 1, "{files:?}");
    let metadata = std::fs::metadata(&files[0]).expect("the file");
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    let fields = "-e ip.src -e ipv6.src -e udp.srcport -e ip.dst -e ipv6.dst -e udp.dstport -e udp.checksum.status -e coap.code";
    let listed = Tool::new(
        "tshark",
        &format!(
            "-o udp.check_checksum:TRUE -d udp.port=={v4},coap -d udp.port=={v6},coap -T fields {fields} -r"
        ),
    )
    .arg(&files[0])
    .output();
    let mut counts = std::collections::BTreeMap::<String, u32>::new();
    for line in listed.lines() {
        let [v4_from, v6_from, from_port, v4_to, v6_to, to_port, checksum, code] =
            line.split('\t').collect::<Vec<_>>()[..]
        else {
            panic!("{line}")
        };
        // 1: tshark finds the checksum right.
        assert_eq!(checksum, "1", "{line}");
        assert!(code == "1" || code == "69", "{line}");
        *counts.entry(format!("{v4_from}{v6_from}\t{from_port}\t{v4_to}{v6_to}\t{to_port}")).or_default() +=
            1;
    }
    assert_eq!(counts.keys().cloned().collect::<BTreeSet<_>>(), expected);
    assert!(counts.values().all(|count| *count == 20), "{counts:?}");
}

/// Row 1.13: while the packet log cannot be written, the server answers, counts what is missing, and shows the reason;
/// the log continues afterwards.
fn a_packet_log_that_cannot_be_written_costs_no_answer(driver: DriverUnderTest) {
    let folder = tempfile::tempdir().expect("a folder");
    let directory = folder.path().join("packets");
    std::fs::write(&directory, b"a file").expect("our folder");
    let server = start(driver, &format!("--coap 127.0.0.1:0 --packet-log {}", directory.display()));
    let client = client_of(server.banner_line("listening coap://"));
    let mut watcher = server.watch();
    let mut id = 0;
    let mut ask = || {
        id += 1;
        client.send(&non_get(id)).expect("it is sent");
        client.recv(&mut [0; 256]).expect("a response");
    };
    ask();
    let lost = |metrics: &crate::support::Metrics| metrics.value("packet_log_lost_total{reason=\"error\"}");
    watcher.until("the error is counted", |metrics| {
        lost(metrics) > 0 && metrics.value("packet_log_errors_total") > 0
    });
    let status = "GET /status HTTP/1.1\r\nHost: a\r\n\r\n";
    let page = |server: &ServerUnderTest| {
        String::from_utf8_lossy(&TestPeer::connect(server.address()).ask(status).body).into_owned()
    };
    assert!(page(&server).contains("cannot write the packet log in"));
    std::fs::remove_file(&directory).expect("our folder");
    eventually("the log continues", || {
        ask();
        directory.is_dir().then_some(())
    });
    eventually("the page shows no error", || {
        ask();
        (!page(&server).contains("cannot write the packet log in")).then_some(())
    });
    let metrics = server.finish();
    assert_eq!(metrics.value("packet_log_files_total"), 1);
    assert_eq!(packet_files(&directory).len(), 1);
}

/// A datagram that is random, cut, changed, or longer than any that the server accepts.
fn hostile_datagram(random: &mut SplitMix64) -> Vec<u8> {
    const REQUESTS: [&[u8]; 4] = [
        GET_TEST,
        b"\x40\x01\x00\x01\xb5large",
        b"\x51\x03\x00\x02\x77\xbclarge-update\xd1\x03\x0e\xffbody",
        b"\x40\x01\x00\x03\xbb.well-known\x04core",
    ];
    let request = REQUESTS[random.below(4) as usize];
    let mut bytes = match random.below(4) {
        0 => (0..random.below(64)).map(|_| random.bits() as u8).collect(),
        1 => request[..random.below(request.len() as u64) as usize].to_vec(),
        2 => [request, &vec![b'x'; random.below(60_000) as usize]].concat(),
        _ => request.to_vec(),
    };
    if !bytes.is_empty() && random.below(2) == 0 {
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= random.bits() as u8;
    }
    // Another message id, else most are duplicates.
    let id = (random.bits() as u16).to_be_bytes();
    bytes.iter_mut().skip(2).zip(id).for_each(|(byte, of)| *byte = of);
    bytes
}

/// Invariant 10: hostile datagrams end nothing, and a client gets at most three times its bytes for them; another one is
/// served afterwards.
fn hostile_datagrams_are_survived_and_not_amplified(driver: DriverUnderTest) {
    const DATAGRAMS: u32 = 5000;
    let server = start(driver, "--coap 127.0.0.1:0 -A 1 --coap-unproven all");
    let address = server.banner_line("listening coap://");
    let client = client_of(address);
    client.set_nonblocking(true).expect("it can be set");
    let (mut random, mut buffer) = (SplitMix64::new(7), vec![0; 65_536]);
    let (mut sent, mut received, mut replies) = (0, 0, 0);
    let mut drain = |replies: &mut u32, received: &mut usize| {
        while let Ok(size) = client.recv(&mut buffer) {
            (*replies, *received) = (*replies + 1, *received + size);
        }
    };
    let (mut datagrams, other) = (0_u64, client_of(address));
    let ask = |datagrams: &mut u64| {
        *datagrams += 1;
        other.send(&non_get(*datagrams as u16)).expect("it is sent");
        // The receive buffer may be full.
        let _ = other.recv(&mut [0; 256]);
    };
    other.set_read_timeout(Some(Duration::from_millis(500))).expect("it can be set");
    for number in 0..DATAGRAMS {
        // A full send buffer refuses it.
        if let Ok(size) = client.send(&hostile_datagram(&mut random)) {
            (datagrams, sent) = (datagrams + 1, sent + size);
        }
        drain(&mut replies, &mut received);
        // A longer burst may exceed the queue of the loopback interface, which counts nothing.
        if number % 50 == 0 {
            ask(&mut datagrams);
        }
    }
    // The last datagrams that the kernel dropped are counted with the next one that it delivers.
    let mut watcher = server.watch();
    eventually("all are received or counted", || {
        ask(&mut datagrams);
        let metrics = watcher.fetch();
        let dropped =
            metrics.value("datagrams_dropped_by_kernel_total") + metrics.value("datagrams_shed_total");
        (metrics.sum("coap_datagrams_total", "class=") + dropped == datagrams).then_some(())
    });
    drain(&mut replies, &mut received);
    assert!(
        replies > DATAGRAMS / 100 && received <= 3 * sent,
        "{received} bytes for {sent}, {replies} replies"
    );
    drop(watcher);
    let metrics = server.finish();
    assert!(metrics.value("coap_datagrams_total{class=\"malformed\"}") > u64::from(DATAGRAMS / 100));
}

/// With `--coap-unproven all` a client on loopback gets at most three times its bytes too, until it returns the Echo value
/// of a response, as aiocoap and this project's client do.
fn an_unproven_client_gets_at_most_three_times_its_bytes(driver: DriverUnderTest) {
    let server = start(driver, "--coap 127.0.0.1:0 --coap-unproven all");
    let address = server.banner_line("listening coap://").to_owned();
    let client = client_of(&address);
    client.send(GET_TEST).expect("it is sent");
    let size = client.recv(&mut [0; 256]).expect("a response");
    assert!(size <= 3 * GET_TEST.len(), "{size}");
    let url = format!("coap://{address}/large");
    let body = Tool::new(env!("CARGO_BIN_EXE_stilling"), "request").arg(url).output();
    assert_eq!(body.trim_end().len(), 1700);
    server.finish();
}

/// Row 4.19: a named CoAP address in use ends the start; the default one is logged and shown on `/status`. In a network of
/// its own, where the default ports are free.
fn an_address_in_use_is_an_error_only_if_it_is_named(driver: DriverUnderTest) {
    let in_use = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let address = in_use.local_addr().expect("it is bound").to_string();
    let outcome = binary()
        .args(["serve", "--driver", driver.name(), "--listen", "127.0.0.1:0", "--coap", &address])
        .output()
        .expect("the binary starts");
    let text = String::from_utf8_lossy(&outcome.stderr);
    assert_eq!(outcome.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("cannot listen on {address}: another process listens there")), "{text}");

    let folder = tempfile::tempdir().expect("a folder");
    let script = format!(
        "ip link set lo up && exec python3 -c 'if 1:
            import socket, subprocess, sys, time, urllib.request
            taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            taken.bind((\"127.0.0.1\", 5683))
            server = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
            while not server.stdout.readline().startswith(b\"shards \"): pass
            print(urllib.request.urlopen(\"http://127.0.0.1:9000/status\").read().decode())
            server.terminate()
            sys.exit(server.wait())' \"$0\" serve --driver {} --data {}",
        driver.name(),
        folder.path().display()
    );
    let mut command = Tool::new("unshare", "--user --map-root-user --net bash -c").arg(script).into_command();
    let outcome = command.arg(binary().get_program()).output().expect("util-linux is installed");
    let (page, log) = (String::from_utf8_lossy(&outcome.stdout), String::from_utf8_lossy(&outcome.stderr));
    assert!(outcome.status.success(), "{page} {log}");
    let line = "coap not opened: 127.0.0.1:5683: address in use";
    assert!(log.contains(&format!("stilling: {line}")), "{log}");
    assert!(page.contains(&format!("role=alert>{line}")) && !page.contains("<h2>CoAP</h2>"), "{page}");
}
