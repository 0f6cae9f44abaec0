//! What the tests stand on: a server with a hub in this process, a client that speaks a little NATS, programs.

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

/// A server with a hub and a folder for its streams.
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

    /// The same with something changed.
    pub(crate) fn with(driver: DriverChoice, change: impl FnOnce(&mut ServeConfig)) -> HubTestServer {
        Self::answering(driver, Routes::new(), change)
    }

    /// The same beside routes.
    pub(crate) fn answering(
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
            hub_thread: HubThread::Own,
            ..ServeConfig::default()
        };
        change(&mut config);
        let server = Server::bind(config, routes).expect("free ports and the driver");
        let banner = server.banner().to_vec();
        HubTestServer { running: server.start().expect("a thread"), banner, folder }
    }

    /// Where the streams are, or will be.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("streams")
    }

    /// Has the hub stand still from the first record for the disk on, until it is let go.
    #[track_caller]
    pub(crate) fn stall_disk(&self) -> StalledDisk {
        // Whoever tries out whether this folder can be written waits until somebody reads.
        let folder = self.data().join("events");
        fs::create_dir_all(&folder).expect("a folder");
        let probe = folder.join(".probe");
        let made = Command::new("mkfifo").arg(&probe).status().expect("mkfifo runs");
        assert!(made.success());
        StalledDisk { probe }
    }

    /// The address in the banner's line that begins with this.
    #[track_caller]
    pub(crate) fn at(&self, scheme: &str) -> SocketAddr {
        *self.all_at(scheme).first().unwrap_or_else(|| panic!("no {scheme} in {:?}", self.banner))
    }

    /// The addresses in all of the banner's lines that begin with this.
    #[track_caller]
    pub(crate) fn all_at(&self, scheme: &str) -> Vec<SocketAddr> {
        let start = format!("listening {scheme}://");
        let lines = self.banner.iter().filter_map(|line| line.strip_prefix(&start));
        lines.map(|line| line.parse().expect("the banner tells an address")).collect()
    }

    /// Where the pages are that have a listener of their own.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.running.admin_address().expect("they have one")
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> TestPeer {
        TestPeer::connect(self.at("http"))
    }

    /// The URL of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.at("http"))
    }

    /// A page about the server.
    #[track_caller]
    pub(crate) fn page(&self, path: &str) -> TestResponse {
        self.connect().ask(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))
    }

    /// A metric.
    #[track_caller]
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let page = self.page("/metrics").into_text();
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let line = line.unwrap_or_else(|| panic!("no metric {name} in\n{page}"));
        line.parse().expect("a number")
    }

    /// A client of NATS that is sent what this filter takes.
    pub(crate) fn listen(&self, filter: &str) -> NatsSubscriber {
        NatsSubscriber::at(self.at("nats"), filter)
    }

    /// What there is to see.
    pub(crate) fn overview(&self) -> &Overview {
        self.running.overview()
    }

    /// Ends the server and checks that nothing is left: every connection has one reason for its end, nothing is held.
    #[track_caller]
    pub(crate) fn finish(self) -> Arc<Overview> {
        self.keep().0
    }

    /// The same, and keeps the folder for as long as the other half lives.
    #[track_caller]
    pub(crate) fn keep(self) -> (Arc<Overview>, tempfile::TempDir) {
        let overview = self.running.end().expect("no shard has failed");
        let came = overview.engine(|counters| &counters.accepted);
        let went: u64 =
            CloseReason::ALL.into_iter().map(|reason| overview.engine(|c| c.closed(reason))).sum();
        assert_eq!(came, went, "every connection ends for one reason");
        assert_eq!(overview.engine(|counters| &counters.input_held), 0);
        assert_eq!(overview.engine(|counters| &counters.output_held), 0);
        let held: u64 = overview.http.iter().map(|counters| counters.requests_held()).sum();
        assert_eq!(held, 0, "bytes of requests are held at the end");
        (overview, self.folder)
    }
}

/// What a hub stands still before.
pub(crate) struct StalledDisk {
    probe: PathBuf,
}

impl StalledDisk {
    /// Lets the hub go on. What is returned has to live until it has.
    #[track_caller]
    pub(crate) fn end(self) -> File {
        File::options().read(true).write(true).open(self.probe).expect("it is there")
    }
}

/// A client of NATS that listens.
pub(crate) struct NatsSubscriber {
    peer: TestPeer,
}

impl NatsSubscriber {
    /// One that is sent what this filter takes, at a server's address for clients of NATS.
    #[track_caller]
    pub(crate) fn at(server: SocketAddr, filter: &str) -> NatsSubscriber {
        let mut peer = TestPeer::connect(server);
        peer.send(format!("CONNECT {{\"headers\":true,\"verbose\":false}}\r\nSUB {filter} 1\r\nPING\r\n"));
        let mut listener = NatsSubscriber { peer };
        while listener.line() != "PONG" {}
        listener
    }

    /// Publishes, and wants the answer at a subject; none for none.
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

    /// The same of a payload that may be no text.
    #[track_caller]
    pub(crate) fn raw(&mut self) -> (String, Vec<u8>) {
        let line = self.line();
        let mut words = line.split(' ');
        let kind = words.next();
        let subject = words.next().expect("a subject").to_owned();
        let size: usize = words.next_back().expect("a size").parse().expect("a number");
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

/// All records of the stream on disk: kind, subject, payload.
pub(crate) fn records(data: &Path) -> Vec<(RecordKind, String, String)> {
    let disk = FileDisk::make(&data.join("events")).expect("the folder");
    let (log, _) = Log::open(disk, "events", LogConfig::default()).expect("the stream");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut reader = log.source().read_from(StartAt::Sequence(1));
    let mut found = Vec::new();
    loop {
        match reader.read().expect("it can be read") {
            ReadOutcome::Batch(batch) => {
                found.extend(
                    batch
                        .records
                        .map(|(_, record)| (record.kind, text(record.subject), text(record.payload))),
                );
            }
            ReadOutcome::Gap { .. } => panic!("nothing is missing"),
            ReadOutcome::End => return found,
        }
    }
}

/// Runs a program to its end, which must be a success. Returns what it wrote to standard output.
#[track_caller]
pub(crate) fn run(name: &str, arguments: &[&str]) -> String {
    let outcome =
        Command::new(name).args(arguments).stdin(Stdio::null()).output().unwrap_or_else(|error| {
            panic!("cannot run {name}: {error}; install it (`cargo xtask test` does)")
        });
    let said = String::from_utf8_lossy(&outcome.stderr);
    assert!(outcome.status.success(), "{name}: {}\n{said}", outcome.status);
    String::from_utf8_lossy(&outcome.stdout).into_owned()
}

pub(crate) fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}
