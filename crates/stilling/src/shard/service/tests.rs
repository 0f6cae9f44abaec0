//! Tests of replies of worker processes to the peers of datagram sockets; no process runs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use stilling_engine::driver::{Driver, poll::Poll, uring::Uring};
use stilling_engine::{Clock, DatagramPath, Recipient, Shard, Wake, net};

use super::session::MailKind;
use super::*;
use crate::shard::testing::service_of_one_shard;
use crate::upstream::tests::pool::pool_with_event;
use crate::upstream::{AppRoutes, PathPattern, UpstreamEvent, UpstreamPool};

fn service(pool: UpstreamPool) -> ShardService {
    let (service, _) = service_of_one_shard(
        Endpoint::Syslog(SyslogTransport::Udp),
        AppRoutes::new([PathPattern::Everything].iter()),
    );
    service.with_upstream(Some(UpstreamPools::new(vec![pool])))
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
