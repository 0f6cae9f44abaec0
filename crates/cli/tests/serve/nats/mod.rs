//! NATS clients, streams, and their state after a crash of the server.

mod auction_faults;
pub(crate) mod auctions;
mod bad_bids;
mod broadcast;
mod client_contract;
mod disks;
mod faults;
pub(crate) mod foreign;
mod generator;
mod jetstream;
mod lines;
mod mixed;
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

/// A server for NATS clients, with its streams in a folder of its own.
pub(crate) struct NatsServerFixture {
    pub(crate) server: ServerUnderTest,
    pub(crate) data: TempDir,
}

impl NatsServerFixture {
    /// Starts a server with further options, separated by blanks.
    pub(crate) fn start(driver: DriverUnderTest, options: &str) -> NatsServerFixture {
        Self::start_on(driver, "127.0.0.1:0", options)
    }

    /// Starts a server that can be restarted in the same place: it has an address of its own, with ports that no other
    /// test uses meanwhile.
    pub(crate) fn start_restartable(driver: DriverUnderTest, options: &str) -> NatsServerFixture {
        Self::start_on(driver, &format!("{}:0", own_address()), options)
    }

    fn start_on(driver: DriverUnderTest, place: &str, options: &str) -> NatsServerFixture {
        let data = tempfile::tempdir().expect("a folder");
        let server = serve(driver, data.path(), place, options);
        NatsServerFixture { server, data }
    }

    pub(crate) fn nats(&self) -> SocketAddr {
        address(&self.server)
    }

    pub(crate) fn client(&self) -> RawNatsClient {
        RawNatsClient::connect(self.nats())
    }

    /// Kills the server and starts another one on the same folder.
    pub(crate) fn crash(self, driver: DriverUnderTest, options: &str) -> NatsServerFixture {
        let NatsServerFixture { server, data } = self;
        // The drop kills it.
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

    /// The first `count` records of a stream, with their sequences, and the number of records behind them.
    pub(crate) fn records(&self, stream: &str, count: usize) -> (Vec<(u64, String)>, u64) {
        records(self.nats(), stream, count)
    }
}

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

/// The first `count` records of a stream, with their sequences, as delivered to a consumer; and the number of records
/// behind them.
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

pub(crate) struct RawNatsClient {
    peer: TestPeer,
}

impl RawNatsClient {
    pub(crate) fn connect(to: SocketAddr) -> RawNatsClient {
        let mut client = RawNatsClient::connect_unauthenticated(to);
        client.send("CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}\r\nPING\r\n");
        assert_eq!(client.line(), "PONG");
        client
    }

    /// Connects and reads the INFO only.
    pub(crate) fn connect_unauthenticated(to: SocketAddr) -> RawNatsClient {
        let mut client = RawNatsClient { peer: TestPeer::connect(to) };
        let info = client.line();
        assert!(info.starts_with("INFO {"), "{info}");
        client
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.peer.send(bytes);
    }

    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        self.peer.line()
    }

    #[track_caller]
    pub(crate) fn lines(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.line()).collect()
    }

    #[track_caller]
    pub(crate) fn rest(&mut self) -> String {
        String::from_utf8(self.peer.read_until_closed()).expect("text")
    }

    /// Sends PING and returns the lines before the PONG.
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
