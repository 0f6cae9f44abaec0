//! Two shards on one listener, as in a hand-over between two servers. The system may wake only one of several that wait
//! for a connection, so a shard must not depend on being woken.
#![cfg(target_os = "linux")]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use stilling_engine::driver::Driver;
use stilling_engine::driver::poll::Poll;
use stilling_engine::driver::uring::Uring;
use stilling_engine::net::{self, ListenOptions};
use stilling_engine::{Io, Service, Session, Shard, ShardConfig};
use stilling_ring::{Clock, Wake};

/// Time after which an unserved client counts as waiting for ever.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

struct SharedEchoService;
struct SharedEchoSession;

impl Service for SharedEchoService {
    type Session = SharedEchoSession;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> SharedEchoSession {
        SharedEchoSession
    }
}

impl Session for SharedEchoSession {
    type Service = SharedEchoService;

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, _: &mut SharedEchoService) -> usize {
        io.send(bytes).expect("there is room");
        bytes.len()
    }
}

/// A shard that accepts from a copy of `listener`, registered with the system; and its wake.
fn shard_on<D: Driver<Socket = OwnedFd>>(
    driver: D,
    listener: &OwnedFd,
) -> (Shard<D, SharedEchoService>, Arc<Wake>) {
    let handle = driver.wake_handle();
    let wake = Arc::new(Wake::new(move || handle.wake()));
    let config = ShardConfig { capacity: 100, ..ShardConfig::default() };
    let mut shard =
        Shard::new(driver, SharedEchoService, config, Clock::real(), Arc::clone(&wake), Arc::default());
    shard.listen(listener.try_clone().expect("a descriptor"), false).expect("one listener");
    for _ in 0..3 {
        shard.turn(false).expect("a turn");
    }
    (shard, wake)
}

/// Runs `act`, and wakes the shard if that takes too long, so that a shard that sleeps for ever fails the test.
fn with_watchdog(wake: &Wake, act: impl FnOnce(Instant)) {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let (done, is_done) = mpsc::channel::<()>();
        scope.spawn(move || {
            if is_done.recv_timeout(HANG_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                wake.force();
            }
        });
        act(begun);
        drop(done);
    });
}

fn serve<D: Driver<Socket = OwnedFd>>(
    shard: &mut Shard<D, SharedEchoService>,
    wake: &Wake,
    client: &mut TcpStream,
) {
    client.set_nonblocking(true).expect("a socket can be non-blocking");
    with_watchdog(wake, |begun| {
        loop {
            match client.read(&mut [0; 16]) {
                Ok(read) => return assert_eq!(read, 1, "the connection has ended"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
            assert!(begun.elapsed() < HANG_TIMEOUT, "the shard slept beside its client");
            shard.turn(true).expect("a turn");
        }
    });
}

/// Row 4.37: one of two shards crashes after it alone was woken, or after it was reported the client.
fn a_client_of_a_crashed_shard_is_served<D: Driver<Socket = OwnedFd>>(driver: fn() -> D) {
    let options = ListenOptions::default();
    let listener =
        net::listen_tcp("127.0.0.1:0".parse().expect("an address"), &options).expect("a free port");
    let address = net::local_addr(&listener).expect("it is bound");
    let (mut survivor, wake) = shard_on(driver(), &listener);
    survivor.recheck_accept_queues(HANG_TIMEOUT);
    for round in 0..40 {
        let (crashing, _) = shard_on(driver(), &listener);
        // The survivor restarts its accept, so the other one has waited longer and is woken first.
        survivor.turn(true).expect("a turn");
        let (mut client, crashing) = if round % 2 == 0 {
            (TcpStream::connect(address).expect("it listens"), Some(crashing))
        } else {
            drop(crashing);
            (TcpStream::connect(address).expect("it listens"), None)
        };
        drop(crashing);
        client.write_all(b"x").expect("the receiver exists");
        serve(&mut survivor, &wake, &mut client);
    }
}

/// Row 4.37: as above, on io_uring.
#[test]
fn a_client_of_a_crashed_shard_is_served_on_uring() {
    a_client_of_a_crashed_shard_is_served(|| Uring::new().expect("this system grants io_uring"));
}

/// Row 4.37: as above, on epoll.
#[test]
fn a_client_of_a_crashed_shard_is_served_on_poll() {
    a_client_of_a_crashed_shard_is_served(|| Poll::new().expect("descriptors"));
}

/// Row 4.37: rechecking queues ends after its time; an idle shard sleeps again.
#[test]
fn rechecks_end_and_the_shard_sleeps() {
    let options = ListenOptions::default();
    let listener =
        net::listen_tcp("127.0.0.1:0".parse().expect("an address"), &options).expect("a free port");
    let address = net::local_addr(&listener).expect("it is bound");
    let (mut shard, wake) = shard_on(Uring::new().expect("this system grants io_uring"), &listener);
    assert_eq!(shard.next_deadline(), None);
    shard.recheck_accept_queues(Duration::from_millis(1));
    with_watchdog(&wake, |begun| {
        let mut turns = 0;
        // The first turns pause and resume accepting.
        while turns < 10 || shard.next_deadline().is_some() {
            shard.turn(false).expect("a turn");
            turns += 1;
            assert!(begun.elapsed() < HANG_TIMEOUT, "it looks for ever");
        }
        let mut client = TcpStream::connect(address).expect("it listens");
        client.write_all(b"x").expect("it reads");
        while shard.open_connections() == 0 {
            shard.turn(true).expect("a turn");
            assert!(begun.elapsed() < HANG_TIMEOUT, "the shard slept beside its client");
        }
    });
}
