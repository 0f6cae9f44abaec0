//! A shard inside a foreign event loop: it runs a turn only on its own request, when its waitable descriptor polls
//! readable, or at its deadline.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use stilling_engine::driver::poll::Poll;
use stilling_engine::driver::uring::Uring;
use stilling_engine::driver::{Driver, Wait};
use stilling_engine::limits::SEND_MAX;
use stilling_engine::net::{self, ListenOptions};
use stilling_engine::{CloseReason, Io, Recipient, Service, Session, Shard, ShardConfig, Token};
use stilling_ring::{Clock, Wake};

const HANG_MS: i32 = 20_000;

/// Sleeps as a foreign loop does: until the descriptor polls readable.
#[allow(unsafe_code)]
fn wait_for(waitable: i32) {
    let mut waiting = libc::pollfd { fd: waitable, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    let ready = unsafe { libc::poll(&mut waiting, 1, HANG_MS) };
    assert_eq!(ready, 1, "the shard has an event, but the descriptor is not readable");
}

type TokenQueue = Arc<Mutex<VecDeque<Token>>>;

/// Echoes, and sends "mail" when mail arrives.
struct LoopEchoService {
    mailbox: TokenQueue,
    opened: Arc<Mutex<Option<Token>>>,
}

struct LoopEchoSession;

impl Service for LoopEchoService {
    type Session = LoopEchoSession;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> LoopEchoSession {
        LoopEchoSession
    }

    fn next_mail(&mut self) -> Option<(Recipient, ())> {
        Some((self.mailbox.lock().expect("no thread panicked").pop_front()?.into(), ()))
    }

    fn has_mail(&self) -> bool {
        !self.mailbox.lock().expect("no thread panicked").is_empty()
    }
}

impl Session for LoopEchoSession {
    type Service = LoopEchoService;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut LoopEchoService) {
        *service.opened.lock().expect("no thread panicked") = Some(io.token());
    }

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, _: &mut LoopEchoService) -> usize {
        io.send(bytes).expect("there is room");
        bytes.len()
    }

    fn delivered(&mut self, (): (), io: &mut Io<'_>, _: &mut LoopEchoService) {
        io.send(b"mail").expect("there is room");
        io.finish(CloseReason::Done);
    }
}

fn a_listener() -> (OwnedFd, SocketAddr) {
    let listener = net::listen_tcp("127.0.0.1:0".parse().expect("an address"), &ListenOptions::default())
        .expect("a free port");
    let address = net::local_addr(&listener).expect("it is bound");
    (listener, address)
}

fn a_foreign_loop_serves<D: Driver<Socket = OwnedFd>>(mut driver: D) {
    let (mailbox, opened) = (TokenQueue::default(), Arc::default());
    let handle = driver.wake_handle();
    let wake = Arc::new(Wake::new(move || handle.wake()));
    let waitable = driver.waitable().expect("both drivers have one");
    let service = LoopEchoService { mailbox: Arc::clone(&mailbox), opened: Arc::clone(&opened) };
    let mut shard =
        Shard::new(driver, service, ShardConfig::default(), Clock::real(), Arc::clone(&wake), Arc::default());
    // The second listener is added when the shard is idle, as in a program that runs its loop already.
    for round in 1..=2 {
        while shard.prepare_to_wait() == Wait::No {
            shard.turn(false).expect("the driver works");
        }
        let (listener, address) = a_listener();
        shard.listen(listener, false).expect("there is room for two");
        let client = run_client(address, Arc::clone(&mailbox), Arc::clone(&opened), Arc::clone(&wake));
        let mut waits = 0;
        while shard.counters().closed_total() < round * CONNECTIONS {
            // No deadline applies here: only events may end a wait.
            if shard.prepare_to_wait() != Wait::No {
                waits += 1;
                wait_for(waitable);
            }
            shard.turn(false).expect("the driver works");
        }
        assert!(waits > 0, "the loop never slept");
        client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
    assert_eq!(shard.counters().closed(CloseReason::Done).get(), 2 * CONNECTIONS);
}

fn turn_until_idle<D: Driver>(shard: &mut Shard<D, LoopEchoService>) {
    while shard.prepare_to_wait() == Wait::No {
        shard.turn(false).expect("the driver works");
    }
}

/// Requests of the shard's owner between two turns are carried out, although they are no events of the driver.
fn the_owner_acts_between_turns<D: Driver<Socket = OwnedFd>>(mut driver: D) {
    let opened: Arc<Mutex<Option<Token>>> = Arc::default();
    let handle = driver.wake_handle();
    let wake = Arc::new(Wake::new(move || handle.wake()));
    let waitable = driver.waitable().expect("both drivers have one");
    let service = LoopEchoService { mailbox: TokenQueue::default(), opened: Arc::clone(&opened) };
    let mut shard = Shard::new(driver, service, ShardConfig::default(), Clock::real(), wake, Arc::default());
    let (listener, address) = a_listener();
    shard.listen(listener, false).expect("there is room");
    let client = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket takes options");
        let mut read_bytes = Vec::new();
        stream.read_to_end(&mut read_bytes).expect("it closes in order");
        read_bytes
    });
    turn_until_idle(&mut shard);
    while shard.open_connections() == 0 {
        wait_for(waitable);
        shard.turn(false).expect("the driver works");
        turn_until_idle(&mut shard);
    }
    let token = opened.lock().expect("no thread panicked").expect("it is open");
    for number in 0..10_u8 {
        let outcome = shard.with(token, |_, io| io.send(&[number; 3]));
        assert_eq!(outcome, Some(Ok(())));
        turn_until_idle(&mut shard);
    }
    assert_eq!(shard.with(token, |_, io| io.finish(CloseReason::Done)), Some(()));
    turn_until_idle(&mut shard);
    let read_bytes = client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let written: Vec<u8> = (0..10).flat_map(|number| [number; 3]).collect();
    assert_eq!(read_bytes, written);
}

/// Row 3.32: output that the system rejects at first leaves when the client reads, without any other event.
fn held_up_output_is_sent<D: Driver<Socket = OwnedFd>>(mut driver: D) {
    let opened: Arc<Mutex<Option<Token>>> = Arc::default();
    let handle = driver.wake_handle();
    let wake = Arc::new(Wake::new(move || handle.wake()));
    let waitable = driver.waitable().expect("both drivers have one");
    let service = LoopEchoService { mailbox: TokenQueue::default(), opened: Arc::clone(&opened) };
    let mut shard = Shard::new(driver, service, ShardConfig::default(), Clock::real(), wake, Arc::default());
    let (listener, address) = a_listener();
    shard.listen(listener, false).expect("there is room");
    let mut client = TcpStream::connect(address).expect("it listens");
    client.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket takes options");
    turn_until_idle(&mut shard);
    while shard.open_connections() == 0 {
        wait_for(waitable);
        shard.turn(false).expect("the driver works");
        turn_until_idle(&mut shard);
    }
    let token = opened.lock().expect("no test thread has panicked").expect("it is open");
    let chunk = vec![b'x'; SEND_MAX];
    let mut sent = 0;
    while shard.counters().blocked_sends.get() == 0 {
        assert_eq!(shard.with(token, |_, io| io.send(&chunk)), Some(Ok(())));
        sent += chunk.len();
        turn_until_idle(&mut shard);
    }
    let reader =
        std::thread::spawn(move || client.read_exact(&mut vec![0; sent]).expect("it sends all of it"));
    while shard.counters().closed_total() == 0 {
        wait_for(waitable);
        shard.turn(false).expect("the driver works");
        turn_until_idle(&mut shard);
    }
    reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    assert_eq!(shard.counters().closed(CloseReason::PeerClosed).get(), 1);
}

/// Connections one after the other, each with mail: the system may lose a later wake, not the first.
const CONNECTIONS: u64 = 20;

/// A client that receives echoes, then has mail sent to its connection, repeatedly.
fn run_client(
    address: SocketAddr,
    mailbox: TokenQueue,
    opened: Arc<Mutex<Option<Token>>>,
    wake: Arc<Wake>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for _ in 0..CONNECTIONS {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket takes options");
            for round in 0_u32..10 {
                let (written, mut read_bytes) = (round.to_le_bytes(), [0; 4]);
                stream.write_all(&written).expect("it reads");
                stream.read_exact(&mut read_bytes).expect("it answers");
                assert_eq!(read_bytes, written);
            }
            // From another thread: the shard may be asleep in the foreign loop now.
            let token = opened.lock().expect("no thread panicked").expect("it is open");
            mailbox.lock().expect("no thread panicked").push_back(token);
            wake.notify();
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).expect("it closes in order");
            assert_eq!(rest, b"mail");
        }
    })
}

/// Row 3.32.
#[test]
fn held_up_output_is_sent_in_a_foreign_loop_on_uring() {
    held_up_output_is_sent(Uring::new().expect("the system grants io_uring"));
}

#[test]
fn held_up_output_is_sent_in_a_foreign_loop_on_poll() {
    held_up_output_is_sent(Poll::new().expect("the system has epoll"));
}

#[test]
fn a_shard_on_uring_runs_in_a_foreign_loop() {
    a_foreign_loop_serves(Uring::new().expect("the system grants io_uring"));
}

#[test]
fn a_shard_on_uring_with_direct_descriptors_runs_in_a_foreign_loop() {
    a_foreign_loop_serves(Uring::with_direct_descriptors(16).expect("the system grants direct descriptors"));
}

#[test]
fn a_shard_on_poll_runs_in_a_foreign_loop() {
    a_foreign_loop_serves(Poll::new().expect("the system has epoll"));
}

#[test]
fn the_owner_of_a_shard_on_uring_acts_between_turns() {
    the_owner_acts_between_turns(Uring::new().expect("the system grants io_uring"));
}

#[test]
fn the_owner_of_a_shard_on_poll_acts_between_turns() {
    the_owner_acts_between_turns(Poll::new().expect("the system has epoll"));
}
