//! The watch of listeners on a network of the test's own: a SYN flood, and a burst of connects.
#![cfg(target_os = "linux")]

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use stilling_engine::listen_watch::{ListenEvent, ListenWatch};
use stilling_engine::net::{self, ListenOptions};
use stilling_probe::network::{SERVER, TestNetwork, unused_addresses};
use stilling_probe::syn_flood::SynGenerator;
use stilling_probe::{HANG_TIMEOUT, eventually};

/// The configured backlog.
const BACKLOG: u32 = 64;

/// The backlog that the system grants at most.
const BACKLOG_MAX: u64 = 512;

struct WatchedServer {
    listener: std::net::TcpListener,
    address: SocketAddrV4,
    watch: ListenWatch,
    events: Receiver<ListenEvent>,
}

impl WatchedServer {
    fn start(network: &TestNetwork) -> WatchedServer {
        network.set_server_parameter("net/core/somaxconn", BACKLOG_MAX);
        let options = ListenOptions { backlog: BACKLOG.cast_signed(), ..ListenOptions::default() };
        let socket = net::listen_tcp((SERVER, 0).into(), &options).expect("the address is ours");
        let listener = std::net::TcpListener::from(socket);
        let address = SocketAddrV4::new(SERVER, listener.local_addr().expect("it is bound").port());
        let (sender, events) = channel();
        let watch = ListenWatch::new();
        watch.on_change(move |event| {
            let _ = sender.send(event.clone());
        });
        WatchedServer { listener, address, watch, events }
    }

    /// The next event that is no change of the backlog.
    fn next_flood_event(&self) -> ListenEvent {
        loop {
            let event = self.events.recv_timeout(HANG_TIMEOUT).expect("an event");
            if !matches!(event, ListenEvent::BacklogRaised(_) | ListenEvent::BacklogLowered(_)) {
                return event;
            }
        }
    }

    fn backlog(&self) -> u64 {
        self.watch.report().listeners[0].backlog
    }
}

/// Row 3.9: a flood is detected within eight samples of its first segment, the backlog is raised while it lasts, and
/// both end some time after it. Row 3.10: nothing of it reaches the program.
#[test]
fn a_flood_is_detected_within_eight_samples() {
    let Some(network) = TestNetwork::enter("a_flood_is_detected_within_eight_samples") else { return };
    let server = WatchedServer::start(&network);
    let _watched = server.watch.register(&server.listener, BACKLOG).expect("it is a listener");
    eventually("the watch runs", || (server.watch.report().samples >= 2).then_some(()));
    let before = server.watch.report();
    thread::scope(|scope| {
        scope.spawn(|| {
            network.enter_clients();
            SynGenerator::new(server.address, unused_addresses()).flood(40);
        });
        let event = server.next_flood_event();
        let ListenEvent::FloodBegan { sample, unanswered, has_cookies: true } = event else {
            panic!("{event:?}")
        };
        assert!(sample - before.samples <= 8, "{} samples", sample - before.samples);
        assert!(unanswered >= 64, "{unanswered}");
        assert!(server.watch.report().flood_since.is_some());
        eventually("the backlog is raised", || (server.backlog() == BACKLOG_MAX).then_some(()));
    });
    let refused = server.listener.accept().expect_err("no connection waits");
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    let event = server.next_flood_event();
    assert!(matches!(event, ListenEvent::FloodEnded { .. }), "{event:?}");
    eventually("the backlog is the configured one", || {
        (server.backlog() == u64::from(BACKLOG)).then_some(())
    });
    let report = server.watch.report();
    assert_eq!((report.floods, report.flood_since, report.lowers), (1, None, 1));
    assert_eq!((report.raises, report.listeners[0].queue_max), (3, 0));
    assert!(report.cookies_sent > 1000 && report.cookies_returned == 0, "{report:?}");
}

/// Clients of the burst.
const CLIENTS: usize = 2000;

/// Row 3.9: a burst of clients overflows the accept queue of a server that is busy. That is no flood, but raises the
/// backlog; all clients are served.
#[test]
fn a_burst_of_connects_raises_the_backlog_without_alarm() {
    let Some(network) = TestNetwork::enter("a_burst_of_connects_raises_the_backlog_without_alarm") else {
        return;
    };
    net::raise_descriptor_limit();
    let server = WatchedServer::start(&network);
    let _watched = server.watch.register(&server.listener, BACKLOG).expect("it is a listener");
    thread::scope(|scope| {
        let clients = scope.spawn(|| {
            network.enter_clients();
            connect_all(server.address);
        });
        eventually("the accept queue overflows", || (server.watch.report().overflows > 0).then_some(()));
        eventually("the backlog is raised", || (server.backlog() == BACKLOG_MAX).then_some(()));
        let served = serve(&server.listener, || clients.is_finished());
        clients.join().expect("all clients are served");
        assert_eq!(served, CLIENTS);
    });
    eventually("the backlog is the configured one", || {
        (server.backlog() == u64::from(BACKLOG)).then_some(())
    });
    let report = server.watch.report();
    assert_eq!((report.floods, report.flood_since), (0, None), "{report:?}");
    assert!(report.listeners[0].queue_max >= u64::from(BACKLOG), "{report:?}");
    let is_backlog =
        |event: &ListenEvent| matches!(event, ListenEvent::BacklogRaised(_) | ListenEvent::BacklogLowered(_));
    assert!(server.events.try_iter().all(|event| is_backlog(&event)));
}

/// Connects all clients at once; each sends a byte and waits for it.
fn connect_all(server: SocketAddrV4) {
    let connect = |_| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_nonblocking(true).expect("a socket can be nonblocking");
        let _in_progress = socket.connect(&server.into());
        TcpStream::from(socket)
    };
    let mut unsent: VecDeque<TcpStream> = (0..CLIENTS).map(connect).collect();
    let mut sent = Vec::new();
    while let Some(mut stream) = unsent.pop_front() {
        match stream.write(b"?") {
            Ok(_) => sent.push(stream),
            Err(error) if is_pending(&error) => {
                unsent.push_back(stream);
                thread::sleep(Duration::from_micros(20));
            }
            Err(error) => panic!("a client cannot connect: {error}"),
        }
    }
    for mut stream in sent {
        stream.set_nonblocking(false).expect("a socket can be blocking");
        stream.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes a timeout");
        stream.read_exact(&mut [0]).expect("each client is served");
    }
}

fn is_pending(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected)
}

/// Accepts connections and returns their bytes until the clients have ended. Returns the number of served ones.
fn serve(listener: &std::net::TcpListener, has_ended: impl Fn() -> bool) -> usize {
    let mut open = Vec::new();
    let mut served = 0;
    loop {
        let is_last = has_ended();
        let mut is_idle = true;
        while let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).expect("a socket can be nonblocking");
            open.push(stream);
            is_idle = false;
        }
        open.retain_mut(|stream| {
            let mut byte = [0];
            let has_asked = stream.read(&mut byte).is_ok_and(|count| count == 1);
            if has_asked {
                // The client is there, it waits for the answer.
                stream.write_all(&byte).expect("a socket has room for a byte");
                served += 1;
                is_idle = false;
            }
            !has_asked
        });
        if is_idle && is_last {
            return served;
        }
        if is_idle {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
