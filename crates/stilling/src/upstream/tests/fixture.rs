//! Whole servers with a worker process that a thread of the test simulates on a Unix socket, step by step.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::RecvFlags;
use stilling_workers::PoolCounters;

use crate::http::{Routes, Status};
use crate::upstream::AppConfig;
use crate::{DriverChoice, RunningServer, ServeConfig, Server};

/// An event that has not happened after this time never happens.
pub(super) use stilling_probe::HANG_TIMEOUT;

/// Clients that may be connected at once. Connections to the process have slots of their own.
pub(super) const CLIENTS_MAX: u32 = 8;

/// The script of one connection to the process, in the order of acceptance.
pub(super) type ConnectionScript = Box<dyn FnOnce(&mut UnixStream) + Send>;

pub(super) struct UpstreamFixture {
    _folder: tempfile::TempDir,
    pub(super) server: RunningServer,
    pub(super) script_thread: JoinHandle<()>,
}

/// Accepts the next connection that sends bytes or stays open: the supervisor's readiness checks close at once.
pub(super) fn accept(listener: &UnixListener) -> UnixStream {
    loop {
        let (stream, _) = listener.accept().expect("a connection");
        stream.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
        match rustix::net::recv(&stream, &mut [0; 1][..], RecvFlags::PEEK) {
            Ok((0, _)) => {}
            _ => return stream,
        }
    }
}

pub(super) fn run_scripts(listener: UnixListener, scripts: Vec<ConnectionScript>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let count = scripts.len();
        for (at, script) in scripts.into_iter().enumerate() {
            let mut stream = accept(&listener);
            script(&mut stream);
            if at + 1 == count {
                // The process accepts connections until here.
                drop(stream);
                return;
            }
        }
    })
}

impl UpstreamFixture {
    pub(super) fn new(
        driver: DriverChoice,
        timeout: Duration,
        scripts: Vec<ConnectionScript>,
    ) -> UpstreamFixture {
        UpstreamFixture::with(driver, timeout, 1, |listener| run_scripts(listener, scripts))
    }

    /// A process with this many slots, simulated by `start_scripts`; the real process only sleeps.
    pub(super) fn with(
        driver: DriverChoice,
        timeout: Duration,
        slots: usize,
        start_scripts: impl FnOnce(UnixListener) -> JoinHandle<()>,
    ) -> UpstreamFixture {
        UpstreamFixture::configured(driver, timeout, slots, |_| (), start_scripts)
    }

    pub(super) fn configured(
        driver: DriverChoice,
        timeout: Duration,
        slots: usize,
        configure: impl FnOnce(&mut ServeConfig),
        start_scripts: impl FnOnce(UnixListener) -> JoinHandle<()>,
    ) -> UpstreamFixture {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("app.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let command = format!("ln -s '{}' {{socket}} && exec sleep 1000", path.display());
        let mut app = AppConfig { timeout, ..AppConfig::new(command) };
        app.processes.slots = slots;
        let listen = vec!["127.0.0.1:0".parse().expect("an address")];
        let capacity = CLIENTS_MAX;
        // A slow test must not shed requests.
        let queue_target = None;
        let mut config = ServeConfig {
            listen,
            shards: 1,
            capacity,
            driver,
            apps: vec![app],
            queue_target,
            ..ServeConfig::default()
        };
        configure(&mut config);
        let server = Server::bind(config, Routes::new()).and_then(Server::start).expect("it starts");
        let app = server.overview().apps.first().expect("there is one");
        eventually("the process is ready", || app.counters().ready == 1);
        let script_thread = start_scripts(listener);
        UpstreamFixture { _folder: folder, server, script_thread }
    }

    pub(super) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.server.addresses()[0]).expect("it accepts");
        stream.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
        stream
    }

    pub(super) fn send(&self, request: &str) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).expect("it is taken");
        stream
    }

    /// Sends one request on a new connection, and returns the status and the received part of the body.
    #[track_caller]
    pub(super) fn round_trip(&self, request: &str) -> (u16, Vec<u8>) {
        read(self.send(request))
    }

    #[track_caller]
    pub(super) fn assert_ok(&self, request: &str) {
        assert_eq!(self.round_trip(request), (200, b"ok".to_vec()));
    }

    #[track_caller]
    pub(super) fn assert_status(&self, request: &str, status: Status) {
        assert_eq!(self.round_trip(request).0, status.code());
    }

    pub(super) fn requests(&self) -> PoolCounters {
        self.server.overview().work()
    }

    /// Requests that were abandoned while the process had them.
    pub(super) fn abandoned_requests(&self) -> u64 {
        self.server.overview().http(|counters| &counters.app_requests_abandoned)
    }

    /// Waits until this many processes were killed, then shuts down: a shutdown would let them end by themselves.
    pub(super) fn finish_after_killing(self, killed: u64) {
        let app = self.server.overview().apps[0].clone();
        eventually("they are killed", || app.counters().killed == killed);
        assert_eq!(self.finish(), (0, killed));
    }

    /// Returns how many processes died by themselves, and how many were killed.
    pub(super) fn finish(self) -> (u64, u64) {
        self.script_thread.join().expect("the scripts succeed");
        let overview = self.server.end().expect("it ends well");
        let counters = overview.apps[0].counters();
        assert_eq!((overview.work().busy, overview.work().queued), (0, 0), "every slot is given back");
        (counters.exited, counters.killed)
    }
}

#[track_caller]
pub(super) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    stilling_probe::eventually(what, || condition().then_some(()));
}

/// Reads the rest of a connection: the status and body of a response, if it is one.
pub(super) fn read(mut stream: TcpStream) -> (u16, Vec<u8>) {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => _ = other.expect("an end"),
    }
    let head = all.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a whole head") + 4;
    let status = std::str::from_utf8(&all[9..12]).expect("it is text").parse().expect("a number");
    (status, all.split_off(head))
}

/// Reads once; a read with a timeout may be interrupted by unrelated signals.
pub(super) fn read_some(stream: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(into) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

pub(super) fn read_head(stream: &mut UnixStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        assert!(
            read_some(stream, &mut byte).expect("more of the head") > 0,
            "it ends in {}",
            head.escape_ascii()
        );
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("it is text")
}

pub(super) fn send_text(stream: &mut UnixStream, text: &str) {
    stream.write_all(text.as_bytes()).expect("it is taken");
}

pub(super) fn wait_closed(stream: &mut UnixStream) {
    let count = read_some(stream, &mut [0]);
    assert!(matches!(count, Ok(0)), "the connection is closed: {count:?}");
}

pub(super) fn respond_ok() -> ConnectionScript {
    Box::new(|stream| {
        read_head(stream);
        send_text(stream, OK);
    })
}

pub(super) const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
pub(super) const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
pub(super) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
