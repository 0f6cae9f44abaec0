//! A shard whose listener is watched: a closed listener refuses, while its connections are still served.
#![cfg(target_os = "linux")]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use stilling_engine::driver::Driver;
use stilling_engine::driver::poll::Poll;
use stilling_engine::driver::uring::Uring;
use stilling_engine::listen_watch::ListenWatch;
use stilling_engine::net::{self, DEFAULT_BACKLOG, ListenOptions};
use stilling_engine::{Io, Service, Session, Shard, ShardConfig, ShardControl};
use stilling_ring::{Clock, Time, Wake};

#[derive(Default)]
struct ClosingService {
    closes: bool,
    are_closed: bool,
}

struct EchoSession;

impl Service for ClosingService {
    type Session = EchoSession;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> EchoSession {
        EchoSession
    }

    fn turn(&mut self, control: &mut ShardControl<'_, Self>) -> Option<Time> {
        if std::mem::take(&mut self.closes) {
            control.accept_backlogs_and_close_listeners();
        }
        self.are_closed = control.has_at_most(1);
        None
    }
}

impl Session for EchoSession {
    type Service = ClosingService;

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, _: &mut ClosingService) -> usize {
        io.send(bytes).expect("there is room");
        bytes.len()
    }
}

/// The client's byte comes back.
fn echo<D: Driver<Socket = OwnedFd>>(shard: &mut Shard<D, ClosingService>, client: &mut TcpStream) {
    client.write_all(b"x").expect("it is open");
    client.set_nonblocking(true).expect("a socket can be nonblocking");
    loop {
        match client.read(&mut [0; 2]) {
            Ok(count) => break assert_eq!(count, 1),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        shard.turn(false).expect("a turn");
    }
    client.set_nonblocking(false).expect("a socket can be blocking");
}

fn a_watched_listener_refuses_when_it_is_closed<D: Driver<Socket = OwnedFd>>(driver: D) {
    let handle = driver.wake_handle();
    let wake = Arc::new(Wake::new(move || handle.wake()));
    let config = ShardConfig { capacity: 10, ..ShardConfig::default() };
    let service = ClosingService::default();
    let mut shard = Shard::new(driver, service, config, Clock::real(), wake, Arc::default());
    let watch = ListenWatch::new();
    let options = ListenOptions::default();
    let listener = net::listen_tcp("127.0.0.1:0".parse().expect("an address"), &options).expect("a port");
    let address = net::local_addr(&listener).expect("it is bound");
    let watched = watch.register(&listener, DEFAULT_BACKLOG.cast_unsigned()).expect("it is a listener");
    let number = shard.listen(listener, false).expect("one listener");
    shard.keep_watched(number, watched);

    let mut client = TcpStream::connect(address).expect("it listens");
    echo(&mut shard, &mut client);
    assert_eq!(watch.report().listeners.len(), 1);
    shard.service().closes = true;
    while !shard.service().are_closed {
        shard.turn(false).expect("a turn");
    }
    let refused = TcpStream::connect(address).expect_err("it is closed");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(watch.report().listeners, []);
    echo(&mut shard, &mut client);
}

/// Row 3.9: on io_uring.
#[test]
fn a_watched_listener_refuses_when_it_is_closed_on_uring() {
    a_watched_listener_refuses_when_it_is_closed(Uring::new().expect("this system grants io_uring"));
}

/// Row 3.9: on io_uring with direct descriptors.
#[test]
fn a_watched_listener_refuses_when_it_is_closed_on_direct_descriptors() {
    let driver = Uring::with_direct_descriptors(100).expect("this system grants io_uring");
    a_watched_listener_refuses_when_it_is_closed(driver);
}

/// Row 3.9: on epoll.
#[test]
fn a_watched_listener_refuses_when_it_is_closed_on_poll() {
    a_watched_listener_refuses_when_it_is_closed(Poll::new().expect("descriptors"));
}
