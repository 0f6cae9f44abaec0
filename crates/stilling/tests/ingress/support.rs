//! Support for the tests: a server with a hub in this process, a simple NATS client, and external programs.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use stilling::engine::CloseReason;
use stilling::http::Routes;
use stilling::settings::{Durability, MessagingConfig, StreamConfig};
use stilling::{DriverChoice, HubThread, Overview, RunningServer, ServeConfig, Server};
use stilling_journal::disk::file::FileDisk;
use stilling_journal::{Log, LogConfig, ReadOutcome, RecordKind, StartAt};
pub(crate) use stilling_probe::{TestPeer, TestResponse, eventually};

/// A server with a hub and a data folder.
pub(crate) struct HubTestServer {
    running: RunningServer,
    banner: Vec<String>,
    folder: tempfile::TempDir,
}

impl HubTestServer {
    /// A server with two shards and the streams `events` on disk and `quick` in memory.
    pub(crate) fn start(driver: DriverChoice) -> HubTestServer {
        Self::with(driver, |_| ())
    }

    /// The same with a changed configuration.
    pub(crate) fn with(driver: DriverChoice, change: impl FnOnce(&mut ServeConfig)) -> HubTestServer {
        Self::with_routes(driver, Routes::new(), change)
    }

    /// The same with routes.
    pub(crate) fn with_routes(
        driver: DriverChoice,
        routes: Routes,
        change: impl FnOnce(&mut ServeConfig),
    ) -> HubTestServer {
        let folder = tempfile::tempdir().expect("a folder");
        let quick =
            StreamConfig { durability: Durability::Memory, ..StreamConfig::new("quick", ["quick.>"]) };
        let mut config = ServeConfig {
            listen: vec![any_port()],
            shards: 2,
            worker_threads: 1,
            capacity: 1000,
            driver,
            hub: MessagingConfig {
                nats: vec![any_port()],
                data: folder.path().join("streams"),
                streams: vec![StreamConfig::new("events", ["events.>"]), quick],
                ..MessagingConfig::default()
            },
            hub_thread: HubThread::Dedicated,
            ..ServeConfig::default()
        };
        change(&mut config);
        let server = Server::bind(config, routes).expect("free ports and the driver");
        let banner = server.banner().to_vec();
        HubTestServer { running: server.start().expect("a thread"), banner, folder }
    }

    /// The data folder, which may not exist yet.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("streams")
    }

    /// Stalls the hub's disk from the first durable record on, until [`StalledDisk::end`].
    #[track_caller]
    pub(crate) fn stall_disk(&self) -> StalledDisk {
        // The write probe of this folder opens a pipe, which blocks until a reader opens it.
        let folder = self.data().join("events");
        fs::create_dir_all(&folder).expect("a folder");
        let probe = folder.join(".probe");
        let made = Command::new("mkfifo").arg(&probe).status().expect("mkfifo runs");
        assert!(made.success());
        StalledDisk { probe }
    }

    /// The first address of a scheme in the banner.
    #[track_caller]
    pub(crate) fn at(&self, scheme: &str) -> SocketAddr {
        *self.all_at(scheme).first().unwrap_or_else(|| panic!("no {scheme} in {:?}", self.banner))
    }

    /// All addresses of a scheme in the banner.
    #[track_caller]
    pub(crate) fn all_at(&self, scheme: &str) -> Vec<SocketAddr> {
        let start = format!("listening {scheme}://");
        let lines = self.banner.iter().filter_map(|line| line.strip_prefix(&start));
        lines.map(|line| line.parse().expect("the banner has an address")).collect()
    }

    /// The address of the separate `admin` listener.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.running.admin_address().expect("they have one")
    }

    pub(crate) fn connect(&self) -> TestPeer {
        TestPeer::connect(self.at("http"))
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.at("http"))
    }

    /// Requests an admin page.
    #[track_caller]
    pub(crate) fn page(&self, path: &str) -> TestResponse {
        self.connect().ask(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))
    }

    /// The value of a metric.
    #[track_caller]
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let page = self.page("/metrics").into_text();
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let line = line.unwrap_or_else(|| panic!("no metric {name} in\n{page}"));
        line.parse().expect("a number")
    }

    /// A NATS client that is subscribed to this filter.
    pub(crate) fn subscribe(&self, filter: &str) -> NatsSubscriber {
        NatsSubscriber::at(self.at("nats"), filter)
    }

    pub(crate) fn overview(&self) -> &Overview {
        self.running.overview()
    }

    /// Ends the server and checks for leaks: every connection has one close reason, and no memory is held.
    #[track_caller]
    pub(crate) fn finish(self) -> Arc<Overview> {
        self.keep().0
    }

    /// The same, and returns the folder, which is removed when dropped.
    #[track_caller]
    pub(crate) fn keep(self) -> (Arc<Overview>, tempfile::TempDir) {
        let overview = self.running.end().expect("no shard has failed");
        let accepted = overview.engine(|counters| &counters.accepted);
        let closed: u64 =
            CloseReason::ALL.into_iter().map(|reason| overview.engine(|c| c.closed(reason))).sum();
        assert_eq!(accepted, closed, "every connection ends for one reason");
        assert_eq!(overview.engine(|counters| &counters.input_held), 0);
        assert_eq!(overview.engine(|counters| &counters.output_held), 0);
        let held: u64 = overview.http.iter().map(|counters| counters.requests_held()).sum();
        assert_eq!(held, 0, "bytes of requests are held at the end");
        (overview, self.folder)
    }
}

/// A stalled disk of a hub.
pub(crate) struct StalledDisk {
    probe: PathBuf,
}

impl StalledDisk {
    /// Lets the disk resume. Keep the result open until it has.
    #[track_caller]
    pub(crate) fn end(self) -> File {
        File::options().read(true).write(true).open(self.probe).expect("it is there")
    }
}

/// A subscribed NATS client.
pub(crate) struct NatsSubscriber {
    peer: TestPeer,
}

impl NatsSubscriber {
    /// Connects to a server's NATS address and subscribes to this filter.
    #[track_caller]
    pub(crate) fn at(server: SocketAddr, filter: &str) -> NatsSubscriber {
        let mut peer = TestPeer::connect(server);
        peer.send(format!("CONNECT {{\"headers\":true,\"verbose\":false}}\r\nSUB {filter} 1\r\nPING\r\n"));
        let mut subscriber = NatsSubscriber { peer };
        while subscriber.line() != "PONG" {}
        subscriber
    }

    /// Publishes with a reply subject; an empty one requests no answer.
    pub(crate) fn publish(&mut self, subject: &str, reply: &str, payload: &str) {
        self.peer.send(format!("PUB {subject} {reply} {}\r\n{payload}\r\n", payload.len()));
    }

    #[track_caller]
    fn line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.extend(self.peer.read_exactly(1));
        }
        line.truncate(line.len() - 2);
        String::from_utf8(line).expect("a line is text")
    }

    /// The next message: its subject and payload.
    #[track_caller]
    pub(crate) fn next(&mut self) -> (String, String) {
        let (subject, payload) = self.raw();
        (subject, String::from_utf8(payload).expect("text"))
    }

    /// The same with a payload of any bytes.
    #[track_caller]
    pub(crate) fn raw(&mut self) -> (String, Vec<u8>) {
        let line = self.line();
        let mut fields = line.split(' ');
        let kind = fields.next();
        let subject = fields.next().expect("a subject").to_owned();
        let size: usize = fields.next_back().expect("a size").parse().expect("a number");
        let header_size = match kind {
            Some("MSG") => 0,
            Some("HMSG") => line.split(' ').rev().nth(1).expect("a size").parse().expect("a number"),
            _ => panic!("no message: {line:?}"),
        };
        let mut payload = self.peer.read_exactly(size + 2);
        payload.truncate(size);
        (subject, payload.split_off(header_size))
    }
}

/// All records of the stream `events` on disk: kind, subject, payload.
pub(crate) fn records(data: &Path) -> Vec<(RecordKind, String, String)> {
    let disk = FileDisk::open_or_create(&data.join("events")).expect("the folder");
    let (log, _) = Log::open(disk, "events", LogConfig::default()).expect("the stream");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut reader = log.source().read_from(StartAt::Sequence(1));
    let mut found_records = Vec::new();
    loop {
        match reader.read().expect("it can be read") {
            ReadOutcome::Batch(batch) => {
                found_records.extend(
                    batch
                        .records
                        .map(|(_, record)| (record.kind, text(record.subject), text(record.payload))),
                );
            }
            ReadOutcome::Gap { .. } => panic!("nothing is missing"),
            ReadOutcome::End => return found_records,
        }
    }
}

/// Runs a program, which must succeed. Returns its standard output.
#[track_caller]
pub(crate) fn run(name: &str, arguments: &[&str]) -> String {
    let outcome =
        Command::new(name).args(arguments).stdin(Stdio::null()).output().unwrap_or_else(|error| {
            panic!("cannot run {name}: {error}; install it (`cargo xtask test` does)")
        });
    let diagnostics = String::from_utf8_lossy(&outcome.stderr);
    assert!(outcome.status.success(), "{name}: {}\n{diagnostics}", outcome.status);
    String::from_utf8_lossy(&outcome.stdout).into_owned()
}

pub(crate) fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}
