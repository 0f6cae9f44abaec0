//! NATS clients, streams, and what is there after the server has died.

mod client_promises;
mod disks;
mod faults;
mod foreign;
mod generator;
mod jetstream;
mod lines;
mod pages;
mod replaced_folder;
mod slow_links;
mod slow_readers;
mod statuses;
mod users;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use stilling_probe::TestPeer;
use tempfile::TempDir;

use crate::support::{DriverUnderTest, ServerUnderTest};

/// A server for NATS clients, its streams in a folder of its own.
pub(crate) struct NatsServerFixture {
    pub(crate) server: ServerUnderTest,
    pub(crate) data: TempDir,
}

impl NatsServerFixture {
    /// With further options, separated by blanks.
    pub(crate) fn start(driver: DriverUnderTest, options: &str) -> NatsServerFixture {
        Self::start_on(driver, "127.0.0.1:0", options)
    }

    /// One that can be started again in the same place: it has an address of its own, whose ports nobody else is given while
    /// it is away.
    pub(crate) fn start_restartable(driver: DriverUnderTest, options: &str) -> NatsServerFixture {
        Self::start_on(driver, &format!("{}:0", own_address()), options)
    }

    fn start_on(driver: DriverUnderTest, place: &str, options: &str) -> NatsServerFixture {
        let data = tempfile::tempdir().expect("a folder");
        let server = serve(driver, data.path(), place, options);
        NatsServerFixture { server, data }
    }

    /// Where it listens for NATS clients.
    pub(crate) fn nats(&self) -> SocketAddr {
        address(&self.server)
    }

    /// A connection that has said who it is.
    pub(crate) fn client(&self) -> RawNatsClient {
        RawNatsClient::connect(self.nats())
    }

    /// Kills the server and starts another one on the same folder.
    pub(crate) fn crash(self, driver: DriverUnderTest, options: &str) -> NatsServerFixture {
        let NatsServerFixture { server, data } = self;
        // What is left of it dies without a word.
        drop(server);
        let server = serve(driver, data.path(), "127.0.0.1:0", options);
        NatsServerFixture { server, data }
    }

    /// Kills the server, and starts another one in its place when `meanwhile` has returned.
    pub(crate) fn crash_in_place(
        self,
        driver: DriverUnderTest,
        options: &str,
        meanwhile: impl FnOnce(),
    ) -> NatsServerFixture {
        let place = self.nats().to_string();
        let NatsServerFixture { server, data } = self;
        drop(server);
        meanwhile();
        let server = serve(driver, data.path(), &place, options);
        NatsServerFixture { server, data }
    }

    /// The first `count` records of a stream, with their sequences, and how many are behind them.
    pub(crate) fn records(&self, stream: &str, count: usize) -> (Vec<(u64, String)>, u64) {
        records(self.nats(), stream, count)
    }
}

/// Where a server listens for NATS clients.
pub(crate) fn address(server: &ServerUnderTest) -> SocketAddr {
    server.banner_line("listening nats://").parse().expect("an address")
}

/// An address of this machine that no other test uses.
pub(crate) fn own_address() -> Ipv4Addr {
    static USED: AtomicU8 = AtomicU8::new(0);
    let number = USED.fetch_add(1, Relaxed);
    assert!(number < 250, "there are no more");
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, number + 1, high, low)
}

fn serve(driver: DriverUnderTest, data: &Path, place: &str, options: &str) -> ServerUnderTest {
    let data = data.join("streams");
    let options = format!("--nats {place} --data {} {options}", data.display());
    ServerUnderTest::start(driver, &options)
}

/// The first `count` records of a stream, with their sequences, as a consumer gets them; and how many are behind them.
pub(crate) fn records(server: SocketAddr, stream: &str, count: usize) -> (Vec<(u64, String)>, u64) {
    let mut client = RawNatsClient::connect(server);
    let config = r#"{"ack_policy":"none","deliver_policy":"all","deliver_subject":"push"}"#;
    let question = format!(r#"{{"stream_name":"{stream}","config":{config}}}"#);
    client.send("SUB push 1\r\nSUB answer 2\r\n");
    client.send(format!("PUB $JS.API.CONSUMER.CREATE.{stream} answer {}\r\n{question}\r\n", question.len()));
    let (mut records, mut behind) = (Vec::new(), 0);
    while records.len() < count {
        let line = client.line();
        // A record with headers has its payload behind them.
        let headers = line.starts_with("HMSG ").then(|| while !client.line().is_empty() {});
        let payload = client.line();
        let Some((_, place)) = line.split_once("$JS.ACK.") else {
            assert!(headers.is_none(), "{line}");
            continue;
        };
        // `<stream>.<consumer>.<delivered>.<stream sequence>.<consumer sequence>.<time>.<pending>`, and sizes.
        let mut tokens = place.split_whitespace().next().expect("a place").split('.').skip(3);
        let mut number = |at| tokens.nth(at).and_then(|token| token.parse().ok()).expect("a number");
        records.push((number(0), payload));
        behind = number(2);
    }
    (records, behind)
}

/// A client that says what the test says.
pub(crate) struct RawNatsClient {
    peer: TestPeer,
}

impl RawNatsClient {
    /// A connection that has said that it can everything.
    pub(crate) fn connect(to: SocketAddr) -> RawNatsClient {
        let mut client = RawNatsClient::connect_unauthenticated(to);
        client.send("CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}\r\nPING\r\n");
        assert_eq!(client.line(), "PONG");
        client
    }

    /// A connection that has been greeted and has said nothing.
    pub(crate) fn connect_unauthenticated(to: SocketAddr) -> RawNatsClient {
        let mut client = RawNatsClient { peer: TestPeer::connect(to) };
        let info = client.line();
        assert!(info.starts_with("INFO {"), "{info}");
        client
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.peer.send(bytes);
    }

    /// The next line, without its end.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        self.peer.line()
    }

    /// The next lines.
    #[track_caller]
    pub(crate) fn lines(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.line()).collect()
    }

    /// Everything up to the end of the connection.
    #[track_caller]
    pub(crate) fn rest(&mut self) -> String {
        String::from_utf8(self.peer.read_until_closed()).expect("text")
    }

    /// Asks whether all has been processed, and returns what came before the answer.
    #[track_caller]
    pub(crate) fn flush(&mut self) -> Vec<String> {
        self.send("PING\r\n");
        let mut lines = Vec::new();
        loop {
            match self.line() {
                line if line == "PONG" => return lines,
                line => lines.push(line),
            }
        }
    }
}
