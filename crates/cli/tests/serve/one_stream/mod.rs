//! One stream, followed by clients of all protocols at once: all see the same sequence, and publishers over NATS in a
//! page are acknowledged.
//!
//! Each client prints or notes a line `<sequence> <number>` per message, and what it was told was missing. It resumes by
//! its protocol's means: `Last-Event-ID` (curl, EventSource), `from=<epoch>-<sequence>` (WebSocket), an ordered consumer
//! (NATS). Its lines must be those of the stream: a gap, a duplicate or another order is a difference.

mod judge;
mod packages;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;

use judge::{ClientRecord, check_records};
use serde_json::Value;
use tempfile::TempDir;

use crate::nats::foreign::programs::{ClientProgram, installed};
use crate::nats::{address as nats_address, own_address, records};
use crate::support::{Browser, BrowserPage, DriverUnderTest, HANG_TIMEOUT, ServerUnderTest, eventually};

on_both_drivers!(
    a_page_publishes_and_subscribes_over_nats,
    a_page_of_another_port_uses_the_listener_of_its_own,
    all_clients_see_the_same_sequence_over_restarts,
);

/// Messages of the run; `cargo xtask clients` sets more.
const MESSAGES: u64 = 1500;

const SUBJECT: &str = "events.n";

/// A server with the stream `events` that can be restarted in place.
struct RestartableServer {
    server: ServerUnderTest,
    folder: TempDir,
    options: String,
}

impl RestartableServer {
    fn start(driver: DriverUnderTest) -> RestartableServer {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name| folder.path().join(name).display().to_string();
        let common =
            format!("--take-over {} --data {} --stream events=events.>", path("control"), path("streams"));
        let host = own_address();
        let first = format!("{common} --nats {host}:0 --nats-websocket {host}:0");
        let server = ServerUnderTest::listening(driver, &format!("{host}:0"), &first);
        let (nats, websocket) = (nats_address(&server), server.banner_line("listening ws://"));
        let options = format!("{common} --nats {nats} --nats-websocket {websocket}");
        RestartableServer { server, folder, options }
    }

    fn at(&self) -> SocketAddr {
        self.server.address()
    }

    fn hot_restart(self, driver: DriverUnderTest) -> RestartableServer {
        let next = ServerUnderTest::listening(driver, &self.at().to_string(), &self.options);
        let RestartableServer { server, folder, options } = self;
        server.expect_clean_end();
        RestartableServer { server: next, folder, options }
    }

    fn kill_and_restart(self, driver: DriverUnderTest) -> RestartableServer {
        let RestartableServer { server, folder, options } = self;
        let at = server.address();
        // The drop kills it.
        drop(server);
        let server = ServerUnderTest::listening(driver, &at.to_string(), &options);
        RestartableServer { server, folder, options }
    }
}

/// Publishes a number, under an id of its own. Returns whether it is stored.
fn publish(at: SocketAddr, number: u64) -> bool {
    let text = number.to_string();
    let request = format!(
        "POST /publish/{SUBJECT} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nNats-Msg-Id: {number}\r\nContent-Length: \
         {}\r\n\r\n{text}",
        text.len()
    );
    let answer = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(at)?;
        stream.set_read_timeout(Some(HANG_TIMEOUT))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    answer().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "))
}

/// Publishes the numbers up to `last`, each until it is stored, and reports its progress.
fn publisher(at: SocketAddr, last: u64, stored: &Arc<AtomicU64>) -> JoinHandle<()> {
    let stored = Arc::clone(stored);
    std::thread::spawn(move || {
        for number in 2..=last {
            eventually("it is stored", || publish(at, number).then_some(()));
            stored.store(number, Relaxed);
        }
    })
}

/// A client in a process of its own, which ends with it.
struct Follower {
    name: &'static str,
    program: ClientProgram,
    lines: Vec<String>,
}

impl Follower {
    fn program(name: &'static str, command: Command, url: &str, last: u64) -> Follower {
        let program = ClientProgram::spawn(command, url, &[&last.to_string()]);
        Follower { name, program, lines: Vec::new() }
    }

    fn has_begun(&mut self) -> bool {
        self.lines.extend(self.program.received());
        !self.lines.is_empty()
    }

    /// All lines, when the client has ended.
    fn finish(self) -> ClientRecord {
        let Follower { name, program, mut lines } = self;
        lines.extend(program.lines());
        ClientRecord { name, lines }
    }

    fn python(name: &'static str, environment: &str, file: &str, url: &str, last: u64) -> Follower {
        let mut command = Command::new(installed(&format!("{environment}/bin/python")));
        command.arg(format!("{}/tests/serve/one_stream/{file}", env!("CARGO_MANIFEST_DIR")));
        Follower::program(name, command, url, last)
    }

    /// `ws` for Node. The program lies beside its packages, where Node searches for them.
    fn node(url: &str, last: u64) -> Follower {
        let mut command = Command::new("node");
        command.arg(installed("nats-node/follow_websocket.mjs"));
        Follower::program("ws", command, url, last)
    }

    /// `curl -N`, run again with the last id whenever it ends.
    fn curl(url: &str, last: u64) -> Follower {
        let mut command = Command::new("sh");
        command.arg(format!("{}/tests/serve/one_stream/follow_events.sh", env!("CARGO_MANIFEST_DIR")));
        Follower::program("curl", command, url, last)
    }
}

const PAGES: [&str; 3] = ["followEvents", "followWebSocket", "followNats"];

/// Opens a page of the server with the NATS client and the functions of `page.js`.
fn page_with_clients(browser: &mut Browser, url: &str) -> BrowserPage {
    let page = browser.open(url);
    browser.wait_until(&page, "document.readyState === 'complete' && location.protocol === 'http:'");
    browser.evaluate(&page, &packages::script());
    browser.evaluate(&page, include_str!("page.js"));
    page
}

/// The NATS client for browsers publishes, subscribes, requests and replies from a page, and publishes
/// to a stream with acknowledgements.
fn a_page_publishes_and_subscribes_over_nats(driver: DriverUnderTest) {
    let server = RestartableServer::start(driver);
    let mut browser = Browser::start();
    let page = page_with_clients(&mut browser, &server.server.url("/livez"));
    browser.evaluate(&page, "checkNats(`ws://${location.host}/nats`)");
    assert_eq!(browser.faults(), <[String; 0]>::default());
    drop(browser);
    assert_eq!(records(nats_address(&server.server), "events", 3).1, 0);
    server.server.finish();
}

/// `--nats-websocket`, from a page that another server of the host has served.
fn a_page_of_another_port_uses_the_listener_of_its_own(driver: DriverUnderTest) {
    let data = tempfile::tempdir().expect("a folder");
    let options = format!("--nats-websocket 127.0.0.1:0 --data {}", data.path().display());
    let server = ServerUnderTest::start(driver, &options);
    let at = server.banner_line("listening ws://").to_owned();
    let mut browser = Browser::start();
    let page = page_with_clients(&mut browser, &server.url("/livez"));
    browser.evaluate(&page, &format!("checkNats('ws://{at}')"));
    assert_eq!(browser.faults(), <[String; 0]>::default());
    drop(browser);
    server.finish();
}

/// Chromium (EventSource, WebSocket, NATS), `websockets`, `ws`, `curl -N` and nats-py on one stream at once see
/// the same sequence over a hot restart and a kill.
fn all_clients_see_the_same_sequence_over_restarts(driver: DriverUnderTest) {
    let wanted = std::env::var("STILLING_CLIENTS_MESSAGES").ok();
    let last = wanted.map_or(MESSAGES, |count| count.parse().expect("STILLING_CLIENTS_MESSAGES is a number"));
    let mut server = RestartableServer::start(driver);
    let at = server.at();
    assert!(publish(at, 1));
    let nats = format!("nats://{}", nats_address(&server.server));
    let socket = format!("ws://{at}/subscribe/{SUBJECT}");
    let mut followers = [
        Follower::curl(&server.server.url(&format!("/subscribe/{SUBJECT}")), last),
        Follower::python("websockets", "websockets", "follow_websocket.py", &socket, last),
        Follower::node(&socket, last),
        Follower::python("nats-py", "nats-py", "follow_nats.py", &nats, last),
    ];
    let mut browser = Browser::start();
    let pages = PAGES.map(|function| {
        let page = page_with_clients(&mut browser, &server.server.url("/livez"));
        let websocket = server.server.banner_line("listening ws://");
        browser.evaluate(&page, &format!("{function}('{SUBJECT}', 'ws://{websocket}')"));
        browser.wait_until(&page, "lines.length > 0");
        page
    });
    for follower in &mut followers {
        eventually(follower.name, || follower.has_begun().then_some(()));
    }
    let stored = Arc::new(AtomicU64::new(0));
    let publisher = publisher(at, last, &stored);
    let reach = |count: u64| eventually("published", || (stored.load(Relaxed) >= count).then_some(()));
    reach(last / 3);
    server = server.hot_restart(driver);
    reach(last * 2 / 3);
    server = server.kill_and_restart(driver);
    publisher.join().expect("all is stored");

    let (all, behind) = records(nats_address(&server.server), "events", last as usize);
    let expected: Vec<String> =
        all.into_iter().map(|(sequence, text)| format!("{sequence} {text}")).collect();
    assert_eq!((expected.len() as u64, behind), (last, 0), "every message is stored once");
    let mut records: Vec<_> = followers.into_iter().map(Follower::finish).collect();
    for (page, name) in pages.iter().zip(PAGES) {
        browser.wait_until(page, &format!("lines.length >= {last}"));
        let lines = browser.evaluate(page, "lines");
        let lines = lines.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
        records.push(ClientRecord { name, lines: lines.collect() });
    }
    check_records(&records, &expected).unwrap_or_else(|difference| panic!("{difference}"));
    assert_eq!(browser.faults(), <[String; 0]>::default());
    drop(browser);
    server.server.finish();
}
