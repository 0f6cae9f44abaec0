//! `stilling request` with libcoap's server: output, exit status, bodies in blocks, observation.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use stilling_probe::eventually;

/// A ping (RFC 7252 §4.3), answered with a reset.
const PING: [u8; 4] = [0x40, 0, 0x12, 0x34];
const PING_TIMEOUT: Duration = Duration::from_millis(50);

/// `coap-server-notls` on an address of its own.
struct LibcoapServer {
    child: Child,
    address: String,
}

impl LibcoapServer {
    fn start(options: &[&str]) -> LibcoapServer {
        static STARTED: AtomicU8 = AtomicU8::new(1);
        // A port of this loopback address is free of other tests.
        let [.., high, low] = std::process::id().to_be_bytes();
        let ip = Ipv4Addr::new(127, high, low, STARTED.fetch_add(1, Ordering::Relaxed));
        let port =
            UdpSocket::bind((ip, 0)).and_then(|socket| socket.local_addr()).expect("a free port").port();
        let child = Command::new("coap-server-notls")
            .args(["-A", &ip.to_string(), "-p", &port.to_string(), "-d", "10"])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("libcoap3-bin is installed by cargo xtask test");
        let server = LibcoapServer { child, address: format!("{ip}:{port}") };
        let probe = UdpSocket::bind((ip, 0)).expect("a free port");
        probe.connect(&server.address).expect("a valid address");
        probe.set_read_timeout(Some(PING_TIMEOUT)).expect("it can be set");
        eventually("libcoap's server answers a ping", || {
            probe.send(&PING).ok()?;
            probe.recv(&mut [0; 64]).ok()
        });
        server
    }

    fn url(&self, path: &str) -> String {
        format!("coap://{}{path}", self.address)
    }
}

impl Drop for LibcoapServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn stilling(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stilling"));
    command.arg("request").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

struct Printed {
    status: Option<i32>,
    out: Vec<u8>,
    errors: String,
}

impl Printed {
    fn of(output: Output) -> Printed {
        let errors = String::from_utf8(output.stderr).expect("it prints text");
        Printed { status: output.status.code(), out: output.stdout, errors }
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.out).expect("the body is text")
    }
}

fn run(arguments: &[&str]) -> Printed {
    Printed::of(stilling(arguments).output().expect("the binary runs"))
}

#[test]
fn a_response_goes_to_standard_output_and_its_code_to_standard_error() {
    let server = LibcoapServer::start(&[]);
    for options in [&[][..], &["--non-confirmable"], &["--block-size", "16"]] {
        let printed = run(&[&[server.url("/").as_str()][..], options].concat());
        assert_eq!((printed.status, printed.errors.as_str()), (Some(0), "2.05 Content\n"), "{options:?}");
        assert!(printed.text().starts_with("This is a test server made with libcoap"), "{options:?}");
    }
    let printed = run(&[&server.url("/time?ticks"), "--accept", "text"]);
    assert_eq!((printed.status, printed.errors.as_str()), (Some(0), "2.05 Content\n"));
    assert!(!printed.out.is_empty() && printed.out.iter().all(u8::is_ascii_digit), "{:?}", printed.text());
}

#[test]
fn an_error_code_is_the_exit_status() {
    let server = LibcoapServer::start(&[]);
    let printed = run(&[&server.url("/missing")]);
    assert_eq!((printed.status, printed.text()), (Some(4), ""));
    assert_eq!(printed.errors, "4.04 Not Found: Not Found\n");
    // libcoap answers a proxy option that it cannot serve with 5.05.
    let printed = run(&[&server.url("/"), "--option", "35=coap://192.0.2.1/"]);
    assert_eq!(printed.status, Some(5), "{}", printed.errors);
    assert!(printed.errors.starts_with("5.05 Proxying Not Supported"), "{}", printed.errors);
}

/// Row 1.11: bodies of many blocks, in both directions, from arguments, files and standard input.
#[test]
fn long_bodies_arrive_whole_in_both_directions() {
    let server = LibcoapServer::start(&[]);
    let url = server.url("/example_data");
    let folder = tempfile::tempdir().expect("a directory");
    let body: Vec<u8> = (0..30_000u32).flat_map(|at| [at as u8, (at >> 8) as u8]).collect();
    let file = folder.path().join("body");
    std::fs::write(&file, &body).expect("it is written");
    let file = file.to_str().expect("a name");
    for (size, body) in [("1024", &body[..]), ("64", &body[..5000])] {
        std::fs::write(file, body).expect("it is written");
        let printed =
            run(&[&url, "--file", file, "-m", "put", "--format", "octet-stream", "--block-size", size]);
        assert_eq!(printed.status, Some(0), "{}", printed.errors);
        assert!(printed.errors.starts_with("2.0"), "{}", printed.errors);
        let printed = run(&[&url, "--block-size", size]);
        assert_eq!((printed.status, printed.errors.as_str()), (Some(0), "2.05 Content\n"));
        assert!(printed.out == body, "{} of {} bytes, or wrong ones", printed.out.len(), body.len());
    }
    let mut child = stilling(&[&url, "-", "-m", "put"]).stdin(Stdio::piped()).spawn().expect("it starts");
    child.stdin.take().expect("it is piped").write_all(b"typed").expect("it reads");
    let printed = Printed::of(child.wait_with_output().expect("it ends"));
    assert_eq!(printed.status, Some(0), "{}", printed.errors);
    assert_eq!(run(&[&url]).text(), "typed");
}

#[test]
fn all_methods_reach_the_server() {
    let server = LibcoapServer::start(&[]);
    let url = server.url("/dynamic/a");
    let printed = run(&[&url, "first", "-m", "put"]);
    assert_eq!((printed.status, printed.errors.as_str()), (Some(0), "2.01 Created\n"));
    assert_eq!(run(&[&url]).text(), "first");
    assert_eq!(run(&[&url, "-m", "delete"]).errors, "2.02 Deleted\n");
    assert_eq!(run(&[&url]).status, Some(4));
    let refused = "4.05 Method Not Allowed: Method Not Allowed";
    let fetched = "2.05 Content";
    for (method, line) in [("post", refused), ("fetch", fetched), ("patch", refused), ("ipatch", refused)] {
        let printed = run(&[&server.url("/time"), "x", "-m", method]);
        assert_eq!(printed.errors.lines().next(), Some(line), "{method}");
    }
}

#[test]
fn a_separate_response_is_awaited() {
    let server = LibcoapServer::start(&[]);
    let printed = run(&[&server.url("/async?1")]);
    assert_eq!((printed.status, printed.text()), (Some(0), "done"), "{}", printed.errors);
}

/// A fifth of libcoap's datagrams is lost.
#[test]
fn lost_datagrams_are_sent_again() {
    let server = LibcoapServer::start(&["-l", "20%"]);
    for _ in 0..3 {
        let printed = run(&[&server.url("/")]);
        assert_eq!(printed.status, Some(0), "{}", printed.errors);
    }
}

#[test]
fn states_are_printed_until_the_count_is_reached() {
    let server = LibcoapServer::start(&[]);
    let url = server.url("/example_data");
    assert_eq!(run(&[&url, "0", "-m", "put"]).status, Some(0));
    let mut observer = stilling(&[&url, "--observe", "-n", "3"]).spawn().expect("the binary starts");
    let mut states = BufReader::new(observer.stdout.take().expect("it is piped")).lines();
    for state in ["0", "1", "2"] {
        if state != "0" {
            assert_eq!(run(&[&url, state, "-m", "put"]).status, Some(0));
        }
        assert_eq!(states.next().expect("a state").expect("text"), state);
    }
    assert!(observer.wait().expect("it ends").success());
}

#[test]
fn a_resource_that_cannot_be_observed_has_one_state() {
    let server = LibcoapServer::start(&[]);
    let printed = run(&[&server.url("/"), "--observe"]);
    assert_eq!(printed.status, Some(0), "{}", printed.errors);
    assert!(printed.errors.contains("the server does not send further states"), "{}", printed.errors);
    let printed = run(&[&server.url("/missing"), "--observe"]);
    assert_eq!(printed.status, Some(4), "{}", printed.errors);
    let printed = run(&[&server.url("/example_data"), "--observe", "-n", "9", "-t", "0.2"]);
    assert_eq!(printed.status, Some(1));
    assert!(printed.errors.contains("1 of 9 states arrived in time"), "{}", printed.errors);
}

#[test]
fn errors_name_the_cause_and_a_remedy() {
    let check = |arguments: &[&str], status: i32, words: &str| {
        let printed = run(arguments);
        assert_eq!(printed.status, Some(status), "{arguments:?}: {}", printed.errors);
        assert!(printed.errors.contains(words), "{arguments:?}: {}", printed.errors);
    };
    check(&[], 64, "required");
    check(&["http://h"], 64, "an address begins with coap://");
    check(&["coaps://h"], 64, "only coap:// over UDP is supported");
    check(&["coap://h", "--block-size", "100"], 64, "a block has 16, 32,");
    check(&["coap://h", "--format", "html"], 64, "expected a number from 0 to 65535");
    check(&["coap://h", "--option", "x"], 64, "an option is NUMBER=TEXT");
    check(&["coap://127.0.0.1:1", "-m", "put", "--observe"], 64, "only get and fetch can be observed");
    check(&["coap://127.0.0.1:1", "-n", "3"], 64, "--observe");
    check(&["coap://127.0.0.1:1", "--file", "missing"], 1, "cannot read missing");
    check(&["coap://127.0.0.1:1"], 1, "no CoAP server listens at 127.0.0.1:1: start it");
    check(&["coap://host.invalid"], 1, "cannot resolve host.invalid:5683");
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let url = format!("coap://{}", silent.local_addr().expect("it is bound"));
    check(&[&url, "-t", "0.1"], 1, "no complete response within 0.1 s: nothing was received");
}
