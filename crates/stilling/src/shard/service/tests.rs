//! Tests of replies of worker processes to the peers of datagram sockets; no process runs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use stilling_engine::driver::{Driver, poll::Poll, uring::Uring};
use stilling_engine::{Clock, DatagramPath, Recipient, Shard, Wake, net};
use stilling_workers::{Pool, PoolLimits};

use super::session::MailKind;
use super::*;
use crate::config::ServeConfig;
use crate::lifecycle::WallClock;
use crate::rates::Rates;
use crate::upstream::UpstreamEvent;
use crate::upstream::tests::pool::pool_with_event;

fn service(pool: UpstreamPool) -> ShardService {
    let ServeConfig { limits, timeouts, .. } = ServeConfig::default();
    let config = HttpConfig {
        limits,
        timeouts,
        slow_duration: Default::default(),
        has_workers: false,
        queue_age_max: Default::default(),
        routes: Arc::default(),
        write_timeout: Default::default(),
        requests_held_max: 0,
        responses_held_max: 0,
        has_app: true,
        auction_filters: Vec::new(),
    };
    let wakes = vec![Arc::new(Wake::new(|| ()))];
    let limits = PoolLimits { threads: 0, ..PoolLimits::default() };
    let (workers, mut submitters) = Pool::new(limits, Clock::real(), wakes.clone());
    let overview = Overview {
        started: SystemTime::now(),
        driver: String::new(),
        driver_fallback: None,
        listeners: Vec::new(),
        capacity: 1,
        workers: 0,
        engines: vec![Arc::default()],
        http: vec![Arc::default()],
        pool: workers,
        app: None,
        hub: OnceLock::new(),
        hub_handles: Vec::new(),
        rates: Rates::default(),
        volumes: Arc::default(),
    };
    let counters = Arc::clone(&overview.http[0]);
    let lifecycle = Arc::new(Lifecycle::new(wakes, WallClock::System));
    let submitter = submitters.pop().expect("one for the shard");
    let endpoints = vec![Endpoint::Syslog(SyslogTransport::Udp)];
    ShardService::new(endpoints, config, submitter, counters, Arc::new(overview), lifecycle)
        .with_upstream(Some(pool))
}

/// The path to a peer whose request was sent to 127.0.0.2.
fn path() -> DatagramPath {
    let peer = SocketAddr::from(([127, 0, 0, 1], 9));
    DatagramPath { socket: 0, peer, local: Some(IpAddr::from([127, 0, 0, 2])) }
}

#[test]
fn an_event_for_a_datagram_is_mail_for_its_peer_from_the_receiving_address() {
    let (pool, id, _slot) = pool_with_event(Recipient::Peer(path()));
    let Some((recipient, ShardMail(mail))) = service(pool).next_mail() else { panic!("there is mail") };
    assert_eq!(recipient, Recipient::Peer(path()));
    assert!(matches!(mail, MailKind::UpstreamEvent(of, UpstreamEvent::BodyWanted) if of == id));
}

/// Dropping an event must also abandon its request: otherwise it would keep the process's slot.
fn an_unsupported_reply_is_counted_and_its_request_abandoned<D>(driver: D)
where
    D: Driver<Socket = OwnedFd>,
{
    let (pool, id, _slot) = pool_with_event(Recipient::Peer(path()));
    assert!(pool.is_queued(id));
    let handle = driver.wake_handle();
    let wake = Arc::new(Wake::new(move || handle.wake()));
    let counters = Arc::default();
    let mut shard = Shard::new(driver, service(pool), Default::default(), Clock::real(), wake, counters);
    let socket = net::bind_udp(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))).expect("a free port");
    assert_eq!(shard.receive_datagrams(socket).expect("the driver takes it"), path().socket);
    let dropped =
        |shard: &mut Shard<D, ShardService>| shard.service().http.counters.app_replies_dropped.get();
    let began = Instant::now();
    while dropped(&mut shard) == 0 {
        assert!(began.elapsed().as_secs() < 20, "the reply is counted");
        shard.turn(false).expect("the driver works");
    }
    assert_eq!(dropped(&mut shard), 1);
    assert!(!shard.service().upstream.as_ref().expect("it has one").is_queued(id));
}

#[test]
fn an_unsupported_reply_is_counted_with_uring() {
    let driver = Uring::new().expect("the system grants io_uring");
    an_unsupported_reply_is_counted_and_its_request_abandoned(driver);
}

#[test]
fn an_unsupported_reply_is_counted_with_poll() {
    let driver = Poll::new().expect("the system has epoll");
    an_unsupported_reply_is_counted_and_its_request_abandoned(driver);
}
