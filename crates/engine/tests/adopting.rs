//! A connection leaves its shard for another thread: to be served synchronously, or by an event loop of its own. On
//! both real drivers, with a real client, while the first shard continues.
#![cfg(target_os = "linux")]

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use stilling_engine::counters::EngineCounters;
use stilling_engine::driver::{Driver, poll::Poll, uring::Uring};
use stilling_engine::net::{self, ListenOptions};
use stilling_engine::{
    AdoptError, CloseReason, Detached, Io, Service, Session, Shard, ShardConfig, ShardControl,
};
use stilling_ring::{Clock, Time, Wake};
use stilling_simulation::suite::system::{DirectUring, SystemDriver};

const HANG_TIMEOUT: Duration = Duration::from_secs(20);

const CONNECTIONS: usize = 20;

type DetachedLines = Detached<OwnedFd, LineEchoSession>;

/// Sockets for a shard, from another thread.
type AdoptQueue = Arc<Mutex<VecDeque<DetachedLines>>>;

/// Echoes each line with a prefix.
struct LineEchoSession {
    prefix: &'static str,
}

/// A shard's service: the prefix of its sessions, and its queue of connections to adopt.
struct LineService {
    prefix: &'static str,
    adopt_queue: AdoptQueue,
    /// Set by the test: the loop ends when no connection is open.
    is_ending: Arc<Mutex<bool>>,
}

impl Service for LineService {
    type Session = LineEchoSession;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> LineEchoSession {
        LineEchoSession { prefix: self.prefix }
    }

    fn has_mail(&self) -> bool {
        *self.is_ending.lock().expect("no thread panicked")
            || !self.adopt_queue.lock().expect("no thread panicked").is_empty()
    }

    fn turn(&mut self, control: &mut ShardControl<'_, Self>) -> Option<Time> {
        let mut adopt_queue = self.adopt_queue.lock().expect("no thread panicked");
        while let Some(it) = adopt_queue.pop_front() {
            let prefix = self.prefix;
            if let Err(AdoptError { error_kind, .. }) =
                control.adopt(it.with_session(|_| LineEchoSession { prefix }))
            {
                panic!("there is room for all: {error_kind:?}");
            }
        }
        if *self.is_ending.lock().expect("no thread panicked") {
            control.close_listeners();
            if control.is_empty() {
                control.stop();
            }
        }
        None
    }
}

impl Session for LineEchoSession {
    type Service = LineService;

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, _: &mut LineService) -> usize {
        let mut done = 0;
        while let Some(len) = bytes[done..].iter().position(|byte| *byte == b'\n') {
            let line = &bytes[done..=done + len];
            done += line.len();
            io.send(self.prefix.as_bytes()).expect("there is room");
            io.send(line).expect("there is room");
            if line == b"leave\n" {
                io.detach();
                break;
            }
        }
        done
    }
}

/// A shard on a thread of its own, until the test ends it.
struct LoopThread {
    adopt_queue: AdoptQueue,
    is_ending: Arc<Mutex<bool>>,
    wake: Arc<Wake>,
    counters: Arc<EngineCounters>,
    thread: thread::JoinHandle<io::Result<()>>,
}

impl LoopThread {
    fn open<D: SystemDriver>(
        prefix: &'static str,
        listener: Option<OwnedFd>,
        to: mpsc::Sender<DetachedLines>,
    ) -> Self {
        let (adopt_queue, is_ending) = (AdoptQueue::default(), Arc::default());
        let counters = Arc::<EngineCounters>::default();
        let service =
            LineService { prefix, adopt_queue: Arc::clone(&adopt_queue), is_ending: Arc::clone(&is_ending) };
        let (wake_sender, wake_receiver) = mpsc::channel();
        let counting = Arc::clone(&counters);
        let thread = thread::spawn(move || {
            // A driver is created by the thread that runs it.
            let driver = D::start()?;
            let handle = driver.wake_handle();
            let wake = Arc::new(Wake::new(move || handle.wake()));
            wake_sender.send(Arc::clone(&wake)).expect("the test waits");
            let config = ShardConfig::default();
            let mut shard = Shard::new(driver, service, config, Clock::real(), wake, counting);
            shard.on_detached(move |_, it| to.send(it).expect("the queue has a receiver"));
            if let Some(listener) = listener {
                shard.listen(listener, false)?;
            }
            shard.run()
        });
        let wake = wake_receiver.recv().expect("the system grants the driver");
        LoopThread { adopt_queue, is_ending, wake, counters, thread }
    }

    fn adopt(&self, it: DetachedLines) {
        self.adopt_queue.lock().expect("no thread panicked").push_back(it);
        self.wake.notify();
    }

    /// Ends the loop after its last connection; returns its counters.
    fn close(self) -> Arc<EngineCounters> {
        *self.is_ending.lock().expect("no thread panicked") = true;
        self.wake.notify();
        self.thread.join().expect("it did not panic").expect("the driver works");
        self.counters
    }
}

fn listener() -> (OwnedFd, SocketAddr) {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = net::listen_tcp(any, &ListenOptions::default()).expect("a free port");
    let address = net::local_addr(&listener).expect("it is bound");
    (listener, address)
}

/// A client that sends lines and expects each back with a prefix.
struct LineClient(BufReader<TcpStream>);

impl LineClient {
    fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
        LineClient(BufReader::new(stream))
    }

    fn send_lines(&mut self, lines: &str) {
        self.0.get_mut().write_all(lines.as_bytes()).expect("it reads");
    }

    #[track_caller]
    fn expect_lines(&mut self, expected: &str) {
        let mut answer = String::new();
        self.0.read_line(&mut answer).expect("an answer");
        assert_eq!(answer, expected);
    }

    #[track_caller]
    fn expect_end(mut self) {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).expect("the end");
        assert_eq!(rest, "");
    }
}

/// Sends two lines before and two after the line that detaches its connection, all at once or in two pieces, then
/// alternates between `new_prefix` and the first shard.
fn run_migrating_client(address: SocketAddr, at_once: bool, new_prefix: &str) {
    let (mut client, mut other) = (LineClient::new(address), LineClient::new(address));
    client.send_lines(if at_once { "one\ntwo\nleave\nthree\nfour\n" } else { "one\ntwo\nleave\n" });
    for line in ["one", "two", "leave"] {
        client.expect_lines(&format!("first: {line}\n"));
    }
    if !at_once {
        client.send_lines("three\nfour\n");
    }
    for round in 0..3 {
        other.send_lines("hello\n");
        other.expect_lines("first: hello\n");
        if round == 0 {
            client.expect_lines(&format!("{new_prefix}three\n"));
            client.expect_lines(&format!("{new_prefix}four\n"));
        } else {
            client.send_lines("more\n");
            client.expect_lines(&format!("{new_prefix}more\n"));
        }
    }
    client.0.get_ref().shutdown(std::net::Shutdown::Write).expect("it is open");
    client.expect_end();
}

/// Serves a socket as user code in a worker does: with blocking reads and writes.
fn serve_synchronously(it: DetachedLines) -> io::Result<()> {
    net::set_blocking(&it.socket)?;
    let mut stream = TcpStream::from(it.socket);
    stream.set_read_timeout(Some(HANG_TIMEOUT))?;
    let mut lines = BufReader::new(it.unread.as_slice().chain(stream.try_clone()?));
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        stream.write_all(format!("worker: {line}").as_bytes())?;
        line.clear();
    }
    Ok(())
}

fn a_worker_serves_synchronously<D: SystemDriver>() {
    let (listener, address) = listener();
    let (to, from) = mpsc::channel();
    let first_loop = LoopThread::open::<D>("first: ", Some(listener), to);
    let worker = thread::spawn(move || from.into_iter().try_for_each(serve_synchronously));
    for at in 0..CONNECTIONS {
        run_migrating_client(address, at % 2 == 0, "worker: ");
    }
    let counters = first_loop.close();
    worker.join().expect("it did not panic").expect("every client is served to its end");
    assert_eq!(counters.accepted.get(), 2 * CONNECTIONS as u64);
    assert_eq!(counters.closed(CloseReason::Detached).get(), CONNECTIONS as u64);
    assert_eq!(counters.closed(CloseReason::PeerClosed).get(), CONNECTIONS as u64);
}

/// Row 4.4: a connection's socket goes to another thread, which serves it with blocking calls.
#[test]
fn a_worker_serves_a_connection_of_uring_synchronously() {
    a_worker_serves_synchronously::<Uring>();
}

/// Row 4.4: the same on the readiness driver: its sockets are non-blocking at first.
#[test]
fn a_worker_serves_a_connection_of_poll_synchronously() {
    a_worker_serves_synchronously::<Poll>();
}

/// Row 4.4: the same out of a ring's own descriptor table.
#[test]
fn a_worker_serves_a_direct_connection_of_uring_synchronously() {
    a_worker_serves_synchronously::<DirectUring>();
}

fn a_worker_runs_an_event_loop<D: SystemDriver, E: SystemDriver>() {
    let (listener, address) = listener();
    let (to, from) = mpsc::channel();
    let (nowhere, never) = mpsc::channel();
    let first_loop = LoopThread::open::<D>("first: ", Some(listener), to);
    let second_loop = LoopThread::open::<E>("second: ", None, nowhere);
    let clients = thread::spawn(move || {
        for at in 0..CONNECTIONS {
            run_migrating_client(address, at % 2 == 0, "second: ");
        }
    });
    for _ in 0..CONNECTIONS {
        second_loop.adopt(from.recv_timeout(HANG_TIMEOUT).expect("a connection leaves"));
    }
    clients.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let (first, second) = (first_loop.close(), second_loop.close());
    assert_eq!(first.closed(CloseReason::Detached).get(), CONNECTIONS as u64);
    assert_eq!((second.accepted.get(), second.adopted.get()), (0, CONNECTIONS as u64));
    assert_eq!(second.closed(CloseReason::PeerClosed).get(), CONNECTIONS as u64);
    assert!(never.try_recv().is_err(), "no connection leaves twice");
}

/// Row 4.5: a connection's socket gets an event loop on another thread, while its shard continues.
#[test]
fn a_connection_of_uring_gets_a_loop_on_uring() {
    a_worker_runs_an_event_loop::<Uring, Uring>();
}

/// Row 4.5: the same from io_uring to readiness.
#[test]
fn a_connection_of_uring_gets_a_loop_on_poll() {
    a_worker_runs_an_event_loop::<Uring, Poll>();
}

/// Row 4.5: the same out of a ring's own descriptor table.
#[test]
fn a_direct_connection_of_uring_gets_a_loop_on_uring() {
    a_worker_runs_an_event_loop::<DirectUring, DirectUring>();
}

/// Row 4.5: the same from readiness to io_uring.
#[test]
fn a_connection_of_poll_gets_a_loop_on_uring() {
    a_worker_runs_an_event_loop::<Poll, Uring>();
}

/// Row 4.5: the same on readiness only.
#[test]
fn a_connection_of_poll_gets_a_loop_on_poll() {
    a_worker_runs_an_event_loop::<Poll, Poll>();
}

/// Row 4.5: a thread with one connection creates a shard for it: adopt, run turns until it has ended.
fn a_shard_for_one<D: SystemDriver>() {
    let (client, ours) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let loop_thread = thread::spawn(move || {
        let driver = D::start().expect("the system grants the driver");
        let handle = driver.wake_handle();
        let wake = Arc::new(Wake::new(move || handle.wake()));
        let service =
            LineService { prefix: "alone: ", adopt_queue: AdoptQueue::default(), is_ending: Arc::default() };
        let config = ShardConfig { capacity: 1, ..ShardConfig::default() };
        let mut shard = Shard::new(driver, service, config, Clock::real(), wake, Arc::default());
        let unread = b"to be".to_vec();
        let it =
            Detached { socket: OwnedFd::from(ours), session: LineEchoSession { prefix: "alone: " }, unread };
        assert!(shard.adopt(it).is_ok());
        while shard.open_connections() > 0 {
            shard.turn(true).expect("the driver works");
        }
        shard.counters().closed(CloseReason::PeerClosed).get()
    });
    let mut client = client;
    client.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
    client.write_all(b" continued\n").expect("it reads");
    client.shutdown(std::net::Shutdown::Write).expect("it is open");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer and the end");
    assert_eq!(answer, "alone: to be continued\n");
    assert_eq!(loop_thread.join().expect("it did not panic"), 1);
}

/// Row 4.5: on io_uring.
#[test]
fn a_connection_gets_a_shard_of_its_own_on_uring() {
    a_shard_for_one::<Uring>();
}

/// Row 4.5: on readiness.
#[test]
fn a_connection_gets_a_shard_of_its_own_on_poll() {
    a_shard_for_one::<Poll>();
}
