//! Tests of the watch with real listeners on loopback.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use std::time::Instant;

use super::*;
use crate::net::{ListenOptions, bind_tcp, listen_tcp, start_listening};

fn options(backlog: i32) -> ListenOptions {
    ListenOptions { backlog, ..ListenOptions::default() }
}

fn any_port() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

fn listener(backlog: i32) -> OwnedFd {
    listen_tcp(any_port(), &options(backlog)).unwrap()
}

/// Waits for a condition, at most a minute.
#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed().as_secs() < 60, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// A closed listener refuses at once, whatever the watch does meanwhile.
#[test]
fn a_listener_refuses_when_it_is_unregistered_and_closed() {
    let watch = ListenWatch::new();
    let _other = watch.register(&listener(8), 8).unwrap();
    for _ in 0..200 {
        let listener = listener(8);
        let address = net::local_addr(&listener).unwrap();
        let watched = watch.register(&listener, 8).unwrap();
        drop(TcpStream::connect(address).unwrap());
        drop(watched);
        drop(listener);
        let refused = TcpStream::connect(address).map(drop).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
    assert_eq!(watch.report().listeners.len(), 1);
}

/// The thread runs while listeners are registered, and starts again.
#[test]
fn the_thread_ends_with_the_last_listener() {
    let watch = ListenWatch::new();
    let listener = listener(8);
    for _ in 0..3 {
        let watched = watch.register(&listener, 8).unwrap();
        let before = watch.report().samples;
        until("samples are taken", || watch.report().samples > before);
        drop(watched);
        watch.join();
        assert!(!watch.shared.lock().is_running);
        assert_eq!(Arc::strong_count(&watch.shared), 1, "the thread has gone");
    }
}

/// A registration just after the last one was dropped finds or starts a thread.
#[test]
fn registrations_race_with_the_end_of_the_thread() {
    let watch = ListenWatch::new();
    let listener = listener(8);
    let address = net::local_addr(&listener).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..300 {
                    let watched = watch.register(&listener, 8).unwrap();
                    assert_eq!(watched.counters().address, address);
                }
            });
        }
    });
    let _watched = watch.register(&listener, 8).unwrap();
    let before = watch.report().samples;
    until("samples are taken", || watch.report().samples > before);
}

/// Row 3.8: the configured backlog changes live; connections beyond it wait outside.
#[test]
fn the_backlog_changes_live() {
    let watch = ListenWatch::new();
    let listener = listener(16);
    let watched = watch.register(&listener, 16).unwrap();
    let max = || net::accept_queue(&listener).unwrap().unwrap().1;
    for backlog in [5, 100, 1, 16] {
        watched.set_backlog(backlog).unwrap();
        assert_eq!(max(), backlog);
        let report = watch.report().listeners[0];
        assert_eq!((report.configured, report.backlog), (u64::from(backlog), u64::from(backlog)));
    }
    assert_eq!(watched.queue().unwrap(), AcceptQueue { length: 0, max: 16 });
    let _client = TcpStream::connect(net::local_addr(&listener).unwrap()).unwrap();
    assert_eq!(watched.queue().unwrap(), AcceptQueue { length: 1, max: 16 });
}

/// Row 3.9: connections that wait raise the backlog, and the callback gets each change.
#[test]
fn a_full_accept_queue_raises_the_backlog() {
    let watch = ListenWatch::new();
    let (sender, events) = channel();
    watch.on_change(move |event| sender.send(event.clone()).unwrap());
    let listener = listener(4);
    let address = net::local_addr(&listener).unwrap();
    let watched = watch.register(&listener, 4).unwrap();
    let clients: Vec<_> = (0..4).map(|_| TcpStream::connect(address).unwrap()).collect();
    let event = events.recv().unwrap();
    assert_eq!(event, ListenEvent::BacklogRaised(BacklogChange { listener: address, from: 4, to: 8 }));
    let report = watch.report();
    assert_eq!((report.raises, report.listeners[0].raises, report.listeners[0].queue_max), (1, 1, 4));
    // While it is raised, a lower configured backlog waits.
    watched.set_backlog(2).unwrap();
    assert_eq!(watched.queue().unwrap(), AcceptQueue { length: 4, max: 8 });
    watched.set_backlog(10).unwrap();
    assert_eq!(watched.queue().unwrap(), AcceptQueue { length: 4, max: 10 });
    drop(clients);
}

/// Descriptors of one socket share a registration.
#[test]
fn a_socket_is_watched_once() {
    let watch = ListenWatch::new();
    let first = listener(8);
    let second = first.try_clone().unwrap();
    let watched = [watch.register(&first, 8).unwrap(), watch.register(&second, 8).unwrap()];
    assert_eq!(watch.report().listeners.len(), 1);
    let [one, other] = watched;
    drop(one);
    other.set_backlog(9).unwrap();
    assert_eq!(other.queue().unwrap().max, 9);
    drop(other);
    assert_eq!(watch.report().listeners.len(), 0);
}

/// A bound socket is watched from the time that it listens, and the watch never makes it listen.
#[test]
fn a_socket_that_does_not_listen_is_left_alone() {
    let watch = ListenWatch::new();
    let bound = bind_tcp(any_port(), &options(8)).unwrap();
    let watched = watch.register(&bound, 8).unwrap();
    watched.set_backlog(12).unwrap();
    let samples = watch.report().samples;
    until("a sample was taken", || watch.report().samples > samples);
    assert!(!net::is_listening(&bound).unwrap());
    assert_eq!(watched.queue().unwrap(), AcceptQueue::default());
    start_listening(&bound, &options(8)).unwrap();
    until("it is sampled", || watch.report().listeners[0].backlog == 8);
}

#[test]
fn other_sockets_are_refused() {
    let watch = ListenWatch::new();
    let datagrams = std::net::UdpSocket::bind(any_port()).unwrap();
    let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(watch.register(&datagrams, 8).is_err());
    assert!(watch.register(&unix, 8).is_err());
    assert!(!watch.shared.lock().is_running);
}

/// An operator learns that floods are not detected, whenever the callback was added.
#[test]
fn a_later_callback_gets_the_failure_of_the_counters() {
    let watch = ListenWatch::new();
    let event = ListenEvent::CountersUnavailable { error: "denied".to_owned() };
    watch.shared.report(std::slice::from_ref(&event));
    let (sender, received) = channel();
    watch.on_change(move |event| sender.send(event.clone()).unwrap());
    assert_eq!(received.try_recv(), Ok(event));
    assert!(received.try_recv().is_err(), "once");
}
