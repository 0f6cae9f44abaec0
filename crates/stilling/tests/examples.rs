//! Runs the examples as programs and checks with curl what their first lines describe.
//!
//! Cargo builds them together with the tests, into `examples` beside the folder of the test binaries.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Bound for answers that a test waits for.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// A running example.
struct Example {
    child: Child,
    /// The listening address from its first line.
    url: String,
}

impl Example {
    /// Starts an example on a free port, with further arguments.
    #[track_caller]
    fn start(name: &str, arguments: &[&str]) -> Example {
        Example::start_on("127.0.0.1:0", name, arguments, "listening ")
    }

    /// Starts an example on an address; its first line is `announcement` and the listening address.
    #[track_caller]
    fn start_on(address: &str, name: &str, arguments: &[&str], announcement: &str) -> Example {
        let binary = std::env::current_exe().expect("this test is a file");
        let profile =
            binary.parent().and_then(|deps| deps.parent()).expect("it lies in target/<profile>/deps");
        let mut child = Command::new(profile.join("examples").join(name))
            .arg(address)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("cargo builds the examples with the tests of the crate");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("a first line");
        let url = line.trim_end().strip_prefix(announcement).expect("it reports its address").to_owned();
        Example { child, url }
    }

    /// The output of curl: the body, then the status on its own line.
    #[track_caller]
    fn curl(&self, path: &str, arguments: &[&str]) -> (String, u16) {
        let outcome = Command::new("curl")
            .args(["--silent", "--show-error", "--max-time", "60", "--write-out", "\n%{http_code}"])
            .args(arguments)
            .arg(format!("{}{path}", self.url))
            .stdin(Stdio::null())
            .output()
            .expect("curl is installed");
        assert!(outcome.status.success(), "{path}: {outcome:?}");
        let text = String::from_utf8(outcome.stdout).expect("text");
        let (body, status) = text.rsplit_once('\n').expect("the status is written last");
        (body.to_owned(), status.parse().expect("a status"))
    }

    /// The address in the URL, or the plain address of an example without one.
    #[track_caller]
    fn address(&self) -> SocketAddr {
        self.url.trim_start_matches("http://").parse().expect("an address")
    }

    #[track_caller]
    fn connect(&self) -> TcpStream {
        connect(self.address()).expect("it listens")
    }

    /// Checks that SIGTERM ends the example with success.
    #[track_caller]
    fn finish(mut self) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a child has a number");
        kill_process(pid, Signal::TERM).expect("it runs");
        let status = self.child.wait().expect("a child can be waited for");
        assert!(status.success(), "{status}");
    }
}

fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(HANG_TIMEOUT))?;
    stream.set_write_timeout(Some(HANG_TIMEOUT))?;
    Ok(stream)
}

/// Sends `bytes` while reading as many, then ends this direction and returns what was read.
#[track_caller]
fn echoed(stream: TcpStream, bytes: &[u8]) -> Vec<u8> {
    let mut reader = stream.try_clone().expect("a socket has a copy");
    let (mut writer, mut answer) = (stream, vec![0; bytes.len()]);
    std::thread::scope(|scope| {
        scope.spawn(move || writer.write_all(bytes).expect("it reads"));
        reader.read_exact(&mut answer).expect("it answers");
    });
    reader.shutdown(Shutdown::Write).expect("the socket is open");
    assert_eq!(reader.read(&mut [0]).expect("the end"), 0, "nothing comes behind the echo");
    answer
}

/// Bytes in which no two positions within a long stretch are alike.
fn distinct(count: usize) -> Vec<u8> {
    (0..count as u32 / 4).flat_map(u32::to_be_bytes).collect()
}

impl Drop for Example {
    fn drop(&mut self) {
        // After a failed test.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn hello_greets() {
    let example = Example::start("hello", &[]);
    assert_eq!(example.curl("/hello/you", &[]), ("Hello you\n".to_owned(), 200));
    assert_eq!(example.curl("/hello", &[]).1, 404);
    example.finish();
}

#[test]
fn constant_answers_as_the_demonstration_does() {
    let example = Example::start("constant", &["poll"]);
    for path in ["/constant", "/test/fast"] {
        assert_eq!(example.curl(path, &[]), (String::new(), 200), "{path}");
    }
    assert_eq!(example.curl("/text", &[]), ("A text that does not change.\n".to_owned(), 200));
    example.finish();
}

/// Row 4.3: workers do slow work, and quick requests do not wait for it.
#[test]
fn slow_work_counts_and_computes() {
    let example = Example::start("slow_work", &[]);
    assert_eq!(example.curl("/count/3", &["--no-buffer"]), ("1\n2\n3\n".to_owned(), 200));
    assert_eq!(example.curl("/count/many", &[]).1, 400);
    assert_eq!(example.curl("/digest", &["--data", "a"]), ("af63dc4c8601ec8c\n".to_owned(), 200));
    assert_eq!(example.curl("/quick", &[]), ("quick\n".to_owned(), 200));
    example.finish();
}

#[test]
fn json_api_keeps_items() {
    let example = Example::start("json_api", &[]);
    let is = |found: (String, u16), status: u16, text: &str| assert_eq!(found, (text.to_owned(), status));
    is(example.curl("/items", &[]), 200, "[]\n");
    let tea = r#"{"name":"tea","price":250}"#;
    is(example.curl("/items", &["--data", tea]), 201, "{\"id\":1,\"name\":\"tea\",\"price\":250}\n");
    is(example.curl("/items/1", &[]), 200, "{\"id\":1,\"name\":\"tea\",\"price\":250}\n");
    is(example.curl("/items", &[]), 200, "[{\"id\":1,\"name\":\"tea\",\"price\":250}]\n");
    for (data, status, why) in [
        (r#"{"name":""#, 400, "EOF"),
        (r#"{"name":"tea"}"#, 400, "missing field `price`"),
        (r#"{"name":"tea","price":-1}"#, 400, "invalid value"),
        (r#"{"name":"tea","price":1,"colour":2}"#, 400, "unknown field `colour`"),
        (r#"{"name":"","price":1}"#, 422, "1 to 100 bytes"),
    ] {
        let (text, found) = example.curl("/items", &["--data", data]);
        assert!(found == status && text.starts_with("{\"error\":\"") && text.contains(why), "{data}: {text}");
    }
    is(example.curl("/items/1", &["--request", "DELETE"]), 204, "");
    is(example.curl("/items/1", &["--request", "DELETE"]), 404, "{\"error\":\"no item 1\"}\n");
    is(example.curl("/items/x", &[]), 400, "{\"error\":\"`x` is not a number\"}\n");
    assert_eq!(example.curl("/items", &["--request", "PUT"]).1, 405);
    example.finish();
}

#[test]
fn files_serves_a_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("a.txt"), "0123456789").expect("a file");
    let example = Example::start("files", &[folder.path().to_str().expect("a path of text")]);
    assert_eq!(example.curl("/a.txt", &[]), ("0123456789".to_owned(), 200));
    assert_eq!(example.curl("/a.txt", &["--range", "2-4"]), ("234".to_owned(), 206));
    assert_eq!(example.curl("/old", &["--location"]), ("<p>Files, and this page.</p>\n".to_owned(), 200));
    assert_eq!(example.curl("/none", &[]).1, 404);
    example.finish();
}

/// Rows 4.4, 4.5: a worker serves a connection synchronously, or with its own event loop, while others are served.
#[test]
fn delegated_gives_connections_to_workers() {
    let example = Example::start("delegated", &[]);
    let upgrade = |path: &str, early: &str| {
        let mut stream = example.connect();
        // Bytes after the request reach the worker too.
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n{early}");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a head");
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 101 Switching Protocols\r\n"), "{}", head.escape_ascii());
        stream
    };
    let mut shouting = BufReader::new(upgrade("/shout", "early\n"));
    let mut expect = |line: &str| {
        let mut answer = String::new();
        shouting.read_line(&mut answer).expect("a line");
        assert_eq!(answer, line);
        shouting.get_mut().write_all(b"what is this?\n").expect("it reads");
    };
    expect("EARLY\n");
    expect("WHAT IS THIS?\n");
    // The other worker echoes meanwhile.
    let mut echoing = upgrade("/echo", "early");
    let mut early = [0; 5];
    echoing.read_exact(&mut early).expect("what came with the request");
    assert_eq!(&early, b"early");
    let bytes = distinct(1 << 20);
    assert!(echoed(echoing, &bytes) == bytes, "the echo differs");
    expect("WHAT IS THIS?\n");
    drop(shouting);
    assert_eq!(example.curl("/nothing", &[]).1, 404);
    example.finish();
}

/// Each core has a listener on the same port, so the port is fixed: a port that was free a moment ago.
#[test]
fn own_protocol_echoes_on_every_core() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = free.expect("a free port").to_string();
    let example = Example::start_on(&address, "own_protocol", &[], "echoing on ");
    assert_eq!(example.url, address);
    let bytes = distinct(1 << 20);
    // Each shard binds its own listener, maybe after the first line.
    let begun = std::time::Instant::now();
    let first = loop {
        match connect(example.address()) {
            Ok(stream) => break stream,
            Err(error) => assert!(begun.elapsed() < HANG_TIMEOUT, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(echoed(first, &bytes) == bytes, "the echo differs");
    // Several at once, on any shard.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert!(echoed(example.connect(), &bytes) == bytes, "the echo differs"));
        }
    });
}

#[test]
fn own_datagrams_counts() {
    let example = Example::start_on("127.0.0.1:0", "own_datagrams", &[], "counting on ");
    let client = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    client.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
    client.connect(example.address()).expect("an address");
    let ask = |question: &[u8]| {
        client.send(question).expect("a datagram leaves");
        let mut answer = [0; 512];
        let count = client.recv(&mut answer).expect("an answer");
        String::from_utf8_lossy(&answer[..count]).into_owned()
    };
    for (question, answer) in [
        (&b"read"[..], "0"),
        (b"add 5\n", "5"),
        (b"add 37", "42"),
        (b"read", "42"),
        (b"add many", "`many`: invalid digit found in string"),
        (b"add 18446744073709551615", "18446744073709551615"),
        (b"subtract 1", "send `add NUMBER` or `read`"),
        (b"", "send `add NUMBER` or `read`"),
        (b"\xff\xfe", "send `add NUMBER` or `read`"),
    ] {
        assert_eq!(ask(question), answer, "{}", question.escape_ascii());
    }
}

/// A gate of a program.
#[test]
fn gate_sells_no_more_than_there_is() {
    let example = Example::start("gate", &[]);
    let buy = |count: &str| example.curl("/publish/tickets.ann", &["--data", count]);
    assert_eq!(buy("60"), ("{\"stream\":\"tickets\",\"first\":1,\"last\":1}\n".to_owned(), 200));
    assert_eq!(buy("60"), ("40 tickets are left\n".to_owned(), 422));
    assert_eq!(buy("many"), ("send the number of tickets\n".to_owned(), 422));
    assert_eq!(buy("40").1, 200);
    assert_eq!(buy("1"), ("0 tickets are left\n".to_owned(), 422));
}
