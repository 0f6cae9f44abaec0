//! The programs in `examples/tcl`, on Tcl's own command and on `socket2` with every driver.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use stilling_probe::HANG_TIMEOUT;

use crate::harness::{DRIVERS, library, tclsh};

/// Seconds until an example that hangs is ended.
const EXAMPLE_SECONDS: &str = "60";

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tcl").join(name)
}

/// A folder with an index of the package `Iocpsock`.
fn package_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let index = format!("package ifneeded Iocpsock 3.0 [list load {{{}}} Iocpsock]\n", library().display());
    std::fs::write(folder.path().join("pkgIndex.tcl"), index).expect("a file");
    folder
}

/// A running example; ends with this value.
struct RunningExample {
    child: Child,
    address: String,
    _packages: tempfile::TempDir,
}

impl RunningExample {
    fn start(name: &str, command: &str, driver: &str) -> RunningExample {
        RunningExample::start_with(name, command, driver, &[])
    }

    fn start_with(name: &str, command: &str, driver: &str, further: &[&str]) -> RunningExample {
        let packages = package_folder();
        let mut child = Command::new("timeout")
            .args(["--kill-after=5", EXAMPLE_SECONDS])
            .arg(tclsh())
            .arg(example(name))
            .args([command, "0"])
            .args(further)
            .env("STILLING_TCL_DRIVER", driver)
            .env("TCLLIBPATH", packages.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("timeout is installed");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("text");
        let address = line.trim().trim_start_matches("listening ").trim_start_matches("http://").to_owned();
        RunningExample { child, address, _packages: packages }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("the example listens");
        stream.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes a timeout");
        stream.set_write_timeout(Some(HANG_TIMEOUT)).expect("a socket takes a timeout");
        stream
    }
}

impl Drop for RunningExample {
    fn drop(&mut self) {
        // SIGTERM, so that `timeout` ends its child.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

/// Runs `check` with the example on Tcl's own command and on `socket2` with every driver.
fn on_each(name: &str, check: impl Fn(&RunningExample)) {
    check(&RunningExample::start(name, "socket", "poll"));
    for driver in DRIVERS {
        check(&RunningExample::start(name, "socket2", driver));
    }
}

/// Bytes that are more than all buffers between the two sides.
const ECHO_SIZE: usize = 16 * 1024 * 1024;

#[test]
fn echo_returns_every_byte() {
    on_each("echo.tcl", |server| {
        let stream = server.connect();
        let bytes: Vec<u8> = (0..ECHO_SIZE).map(|at| (at / 3) as u8).collect();
        let mut returned = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (&stream).write_all(&bytes).expect("the server reads");
                stream.shutdown(Shutdown::Write).expect("it is connected");
            });
            (&stream).read_to_end(&mut returned).expect("the server answers");
        });
        assert!(returned == bytes, "{} of {} bytes", returned.len(), bytes.len());
    });
}

fn read_line(reader: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).expect("a line");
    line.trim_end().to_owned()
}

#[test]
fn chat_delivers_lines_and_drops_clients_that_do_not_read() {
    on_each("chat.tcl", |server| {
        let mut first = BufReader::new(server.connect());
        assert!(read_line(&mut first).starts_with("* you are guest1;"));
        let mut second = BufReader::new(server.connect());
        assert!(read_line(&mut second).starts_with("* you are guest2;"));
        assert_eq!(read_line(&mut first), "* guest2 is here");
        second.get_mut().write_all("/name Zoë\nhello\n".as_bytes()).expect("the server reads");
        assert_eq!(read_line(&mut first), "* guest2 is now Zoë");
        assert_eq!(read_line(&mut first), "Zoë: hello");
        // The third one never reads.
        let _third = server.connect();
        assert_eq!(read_line(&mut first), "* guest3 is here");
        let mut lines = String::new();
        for _ in 0..20_000 {
            lines.push_str(&"x".repeat(900));
            lines.push('\n');
        }
        let mut writer = second.get_ref().try_clone().expect("a descriptor");
        std::thread::scope(|scope| {
            scope.spawn(move || writer.write_all(lines.as_bytes()).expect("the server reads"));
            while read_line(&mut first) != "* guest3 has left" {}
        });
        drop(first);
    });
}

#[test]
fn httpd_answers() {
    on_each("httpd.tcl", |server| {
        let mut stream = server.connect();
        stream.write_all(b"GET /hello HTTP/1.1\r\nConnection: close\r\n\r\n").expect("the server reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the server answers");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    });
}

/// Rows 3.14, 3.16: the loop that connects many sockets and closes all of them; what an idle one costs.
#[test]
fn many_sockets_connects_and_closes_all() {
    for (driver, count) in [("poll", 10_000), ("uring", 1000), ("direct", 1000)] {
        let packages = package_folder();
        let outcome = Command::new("timeout")
            .args(["--kill-after=5", EXAMPLE_SECONDS])
            .args(["prlimit", "--nofile=11000"])
            .arg(tclsh())
            .arg(example("many_sockets.tcl"))
            .args([&count.to_string(), "0"])
            .env("STILLING_TCL_DRIVER", driver)
            .env("TCLLIBPATH", packages.path())
            .output()
            .expect("timeout is installed");
        let [output, errors] =
            [&outcome.stdout, &outcome.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        assert!(outcome.status.success(), "{output}\n{errors}");
        let counts = |key: &str| -> Vec<usize> {
            let lines = output.lines().filter_map(|line| line.strip_prefix(key));
            lines.map(|count| count.trim().parse().expect("a count")).collect()
        };
        assert_eq!(counts("Sockets open:"), [count, count + 1, 0], "on {driver}: {output}");
        let [general, special] =
            ["General pool bytes in use:", "Special pool bytes in use:"].map(|key| counts(key)[1]);
        let most = (774_472 + 1_800_516) * (count + 1) / 10_000;
        assert!(general + special <= most, "on {driver}: {output}");
    }
}

/// Row 3.4: Apache's client with 300 connections at a time.
#[test]
fn httpd_serves_300_clients_at_once() {
    for driver in DRIVERS {
        let server = RunningExample::start("httpd.tcl", "socket2", driver);
        let outcome = Command::new("ab")
            .args(["-q", "-s", "20", "-c", "300", "-n", "2000"])
            .arg(format!("http://{}/hello", server.address))
            .output()
            .expect("ab is installed: cargo xtask test installs it");
        let output = String::from_utf8_lossy(&outcome.stdout);
        let figure = |key: &str| output.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        assert_eq!(figure("Complete requests:"), Some("2000"), "on {driver}: {output}");
        assert_eq!(figure("Failed requests:"), Some("0"), "on {driver}: {output}");
        assert_eq!(figure("Non-2xx responses:"), None, "on {driver}: {output}");
    }
}

/// Status and body of the answer to a GET by curl.
fn get(server: &RunningExample, path: &str) -> (String, Vec<u8>) {
    let outcome = Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--max-time",
            EXAMPLE_SECONDS,
            "--write-out",
            "%{stderr}%{http_code}",
        ])
        .arg(format!("http://{}{path}", server.address))
        .output()
        .expect("curl is installed: cargo xtask test installs it");
    (String::from_utf8_lossy(&outcome.stderr).into_owned(), outcome.stdout)
}

/// Bytes of a file that the package copies in the background, in coroutines; it copies smaller ones at once.
const LARGE_SIZE: usize = 3_000_000;

/// Row 3.4: an HTTP server that is not ours, unmodified, with its `socket` replaced.
#[test]
fn the_server_of_tcllib_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let large: Vec<u8> = (0..LARGE_SIZE).map(|at| (at / 3) as u8).collect();
    let small = &large[..1000];
    std::fs::write(folder.path().join("large.bin"), &large).expect("a file");
    std::fs::write(folder.path().join("small.bin"), small).expect("a file");
    let root = folder.path().to_str().expect("text");
    let check = |command, driver| {
        let server = RunningExample::start_with("tcllib_httpd.tcl", command, driver, &[root]);
        let ok = |body: &[u8]| ("200".to_owned(), body.to_owned());
        let described = format!("{command} on {driver}");
        assert_eq!(get(&server, "/hello"), ok(b"Hello\n"), "{described}");
        assert_eq!(get(&server, "/small.bin"), ok(small), "{described}");
        assert!(get(&server, "/large.bin") == ok(&large), "{described}");
        assert_eq!(get(&server, "/missing").0, "404", "{described}");
        server
    };
    check("socket", "poll");
    for driver in DRIVERS {
        let server = check("socket2", driver);
        let (status, stats) = get(&server, "/stats");
        let stats = String::from_utf8_lossy(&stats).into_owned();
        let open = stats.lines().find(|line| line.contains("Sockets open:"));
        // The listener and this connection: the package's sockets are the extension's.
        assert_eq!(status, "200", "on {driver}: {stats}");
        assert!(open.is_some_and(|open| open.contains(">2<")), "on {driver}: {stats}");
    }
}
