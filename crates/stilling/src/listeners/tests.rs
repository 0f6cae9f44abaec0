//! Tests of which listeners are kept, opened, distributed and dropped.

use std::collections::BTreeSet;

use super::*;

fn config(listen: &[SocketAddr], shards: usize) -> ServeConfig {
    ServeConfig { listen: listen.to_vec(), shards, ..ServeConfig::default() }
}

fn open(
    config: &ServeConfig,
    old: Vec<OwnedFd>,
    passed: Vec<PassedListener>,
) -> Result<Listeners, ServeError> {
    Listeners::open(config, old, passed, ListenTiming::Now)
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn passed(descriptor: impl Into<OwnedFd>) -> Vec<PassedListener> {
    vec![PassedListener { descriptor: descriptor.into(), name: "web".to_owned() }]
}

fn shape(listeners: &Listeners) -> Vec<usize> {
    listeners.by_shard.iter().map(Vec::len).collect()
}

fn identities(sockets: &[OwnedFd]) -> BTreeSet<u64> {
    sockets.iter().map(|socket| rustix::fs::fstat(socket).unwrap().st_ino).collect()
}

/// Row 4.37: from one shard to three to two: every listener is kept, and every shard has one.
#[test]
fn every_listener_keeps_a_shard_however_many_there_are() {
    let first = open(&config(&[any_port()], 1), Vec::new(), Vec::new()).unwrap();
    let address = first.addresses[0];
    let mut held = first.copies().unwrap();
    let mut before = identities(&held);
    for (shards, reused, expected) in
        [(3, 1, vec![1, 1, 1]), (2, 3, vec![2, 1]), (1, 3, vec![3]), (4, 3, vec![1; 4])]
    {
        let next = open(&config(&[address], shards), held, Vec::new()).unwrap();
        assert_eq!((next.reused, shape(&next), &next.addresses), (reused, expected, &vec![address]));
        held = next.copies().unwrap();
        let after = identities(&held);
        assert!(before.is_subset(&after), "{before:?} {after:?}");
        before = after;
    }
}

/// Row 4.37: connections in a listener's queue remain when it changes hands.
#[test]
fn a_queue_stays_with_its_listener() {
    use std::io::Write;
    let old = open(&config(&[any_port()], 2), Vec::new(), Vec::new()).unwrap();
    let clients: Vec<_> = (0..40)
        .map(|_| {
            let mut client = std::net::TcpStream::connect(old.addresses[0]).unwrap();
            client.write_all(b"GET").unwrap();
            client
        })
        .collect();
    let next = open(&config(&old.addresses, 3), old.copies().unwrap(), Vec::new()).unwrap();
    drop(old);
    let accept = |listener: &ListeningSocket| rustix::net::accept(&listener.socket).ok();
    let accepted: Vec<_> =
        next.by_shard.iter().flatten().flat_map(|listener| std::iter::from_fn(|| accept(listener))).collect();
    assert_eq!(accepted.len(), clients.len());
}

/// Row 4.37: a listener with an exclusive port is copied for every shard.
#[test]
fn an_exclusive_listener_is_copied_for_every_shard() {
    let exclusive = std::net::TcpListener::bind(any_port()).unwrap();
    let address = exclusive.local_addr().unwrap();
    let listeners = open(&config(&[], 3), Vec::new(), passed(exclusive)).unwrap();
    assert_eq!((listeners.addresses.as_slice(), shape(&listeners)), (&[address][..], vec![1, 1, 1]));
    assert_eq!(listeners.copies().unwrap().len(), 1);
}

/// Row 4.37: a successor receives datagrams from the queue of the handed-over socket.
#[test]
fn a_datagram_socket_is_handed_over_with_its_queue() {
    let with = |address: SocketAddr| {
        let mut config = config(&[], 2);
        config.hub.syslog_udp = vec![address, address];
        config
    };
    let old = open(&with(unused_port()), Vec::new(), Vec::new()).unwrap();
    assert_eq!((old.addresses.len(), old.protocols[0]), (1, ListenerProtocol::Syslog(SyslogTransport::Udp)));
    let sender = std::net::UdpSocket::bind(any_port()).unwrap();
    sender.send_to(b"<13>before", old.addresses[0]).unwrap();
    let copies = old.copies().unwrap();
    let error = open(&with(old.addresses[0]), Vec::new(), Vec::new()).unwrap_err();
    assert!(error.to_string().contains("another process listens there"), "{error}");
    let next = open(&with(old.addresses[0]), copies, Vec::new()).unwrap();
    drop(old);
    assert_eq!((next.reused, next.addresses.len(), shape(&next).iter().sum::<usize>()), (1, 1, 1));
    let listener = next.by_shard.into_iter().flatten().next().unwrap();
    let mut bytes = [0; 64];
    let count = std::net::UdpSocket::from(listener.socket).recv(&mut bytes).unwrap();
    assert_eq!(&bytes[..count], b"<13>before");
}

fn with_coap(coap: &[SocketAddr], shards: usize) -> ServeConfig {
    ServeConfig { coap: coap.to_vec(), ..config(&[], shards) }
}

fn any_v6_port() -> SocketAddr {
    "[::]:0".parse().unwrap()
}

/// Rows 1.12, 1.23: each shard has a socket of each CoAP address, also of a dual-stack one, and the system sends all
/// datagrams of a client to one of them.
#[test]
fn each_shard_has_a_coap_socket() {
    for wanted in [any_port(), any_v6_port()] {
        let listeners = open(&with_coap(&[wanted], 3), Vec::new(), Vec::new()).unwrap();
        assert_eq!((shape(&listeners), listeners.addresses.len()), (vec![1, 1, 1], 1), "{wanted}");
        let clients: Vec<_> = (0..64).map(|_| std::net::UdpSocket::bind(any_port()).unwrap()).collect();
        for client in clients.iter().chain(&clients) {
            client.send_to(b"!", ("127.0.0.1", listeners.addresses[0].port())).unwrap();
        }
        let mut ports = Vec::new();
        for listener in listeners.by_shard.into_iter().flatten() {
            let socket = std::net::UdpSocket::from(listener.socket);
            let received = std::iter::from_fn(|| Some(socket.recv_from(&mut [0; 8]).ok()?.1.port()));
            let of_socket: BTreeSet<u16> = received.collect();
            assert!(!of_socket.is_empty(), "{wanted}: a socket gets nothing");
            ports.extend(of_socket);
        }
        assert_eq!(ports.len(), clients.len(), "{wanted}: a client reaches one socket");
    }
}

/// Row 4.37: from two shards to three to one to two: all CoAP sockets and their queues stay, and none is added.
#[test]
fn coap_sockets_change_hands_however_many_shards_there_are() {
    let first = open(&with_coap(&[any_port()], 2), Vec::new(), Vec::new()).unwrap();
    let address = first.addresses[0];
    let mut held = first.copies().unwrap();
    let before = identities(&held);
    drop(first);
    let client = std::net::UdpSocket::bind(any_port()).unwrap();
    client.send_to(b"before", address).unwrap();
    for (shards, expected) in [(3, vec![0, 1, 1]), (1, vec![2]), (2, vec![1, 1])] {
        let next = open(&with_coap(&[address], shards), held, Vec::new()).unwrap();
        assert_eq!((next.reused, shape(&next), &next.addresses), (2, expected, &vec![address]));
        assert!(next.by_shard.iter().flatten().all(|socket| socket.from == HandoverStage::Released));
        held = next.copies().unwrap();
        assert_eq!(identities(&held), before);
    }
    let receive = |socket| std::net::UdpSocket::from(socket).recv(&mut [0; 8]).ok();
    assert_eq!(held.into_iter().filter_map(receive).collect::<Vec<_>>(), [6]);
}

/// Row 4.19: a CoAP address of another server is an error, with one shard and with several; a default one is only
/// reported.
#[test]
fn a_coap_address_in_use_is_not_shared() {
    let other = open(&with_coap(&[any_port()], 2), Vec::new(), Vec::new()).unwrap();
    let address = other.addresses[0];
    for shards in [1, 2] {
        let mut wanted = with_coap(&[address], shards);
        let error = open(&wanted, Vec::new(), Vec::new()).unwrap_err();
        assert!(matches!(error, ServeError::Listen(at, _) if at == address), "{error}");
        wanted.coap_is_optional = true;
        let listeners = open(&wanted, Vec::new(), Vec::new()).unwrap();
        assert_eq!((shape(&listeners), listeners.addresses.len()), (vec![0; shards], 0));
        assert_eq!(listeners.not_opened, [format!("coap not opened: {address}: address in use")]);
    }
}

/// Row 1.17: opened and received UDP sockets get the receive buffer of the configuration, and the granted size is known.
#[test]
fn the_receive_buffer_of_each_datagram_socket_is_set() {
    const SIZE: usize = 64 * 1024;
    let mut wanted = with_coap(&[any_port()], 2);
    wanted.hub.syslog_udp = vec![any_port()];
    let sizes = |listeners: &Listeners| -> Vec<u64> {
        listeners.receive_buffers().unwrap().into_iter().map(|(_, size)| size).collect()
    };
    let first = open(&wanted, Vec::new(), Vec::new()).unwrap();
    let url = format!("coap://{}", first.addresses[1]);
    assert!(first.receive_buffers().unwrap().iter().any(|(known, _)| *known == url));
    // As large as any setting of the system allows, and never less than the system's own default.
    let reference = net::bind_udp(any_port()).unwrap();
    net::set_receive_buffer(&reference, RECEIVE_BUFFER_DEFAULT).unwrap();
    let granted = net::receive_buffer(&reference).unwrap() as u64;
    assert_eq!(sizes(&first), [granted; 2]);
    assert_ne!(granted, SIZE as u64);
    wanted.datagram_receive_buffer = Some(SIZE);
    let next = open(&wanted, first.copies().unwrap(), Vec::new()).unwrap();
    assert_eq!((next.reused, sizes(&next)), (3, vec![SIZE as u64; 2]));
    let opened = open(&wanted, Vec::new(), Vec::new()).unwrap();
    assert_eq!((opened.reused, sizes(&opened)), (0, vec![SIZE as u64; 2]));
}

/// Row 4.37: a successor's Unix socket replaces the old one, which no longer touches the path.
#[test]
fn a_unix_socket_is_replaced_by_a_successor_alone() {
    use std::os::unix::net::UnixDatagram;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let mut wanted = config(&[], 1);
    wanted.hub.syslog_unix = vec![path.clone()];
    let old = open(&wanted, Vec::new(), Vec::new()).unwrap();
    assert!(old.copies().unwrap().is_empty());
    let sender = UnixDatagram::unbound().unwrap();
    sender.send_to(b"old", &path).unwrap();
    assert!(matches!(open(&wanted, Vec::new(), Vec::new()), Err(ServeError::SocketFile(..))));
    let failed = Listeners::open(&wanted, Vec::new(), Vec::new(), ListenTiming::BindOnly).unwrap();
    let mut name = failed.files[0].name();
    name.take_path().unwrap();
    drop(failed);
    assert!(!path.exists(), "it was the successor's");
    old.files[0].name().restore();
    let next = Listeners::open(&wanted, Vec::new(), Vec::new(), ListenTiming::BindOnly).unwrap();
    sender.send_to(b"old", &path).unwrap();
    let mut name = next.files[0].name();
    name.take_path().unwrap();
    sender.send_to(b"new", &path).unwrap();
    let receive = |listeners: &Listeners| {
        let socket = listeners.by_shard[0][0].socket.try_clone().unwrap();
        let mut bytes = [0; 8];
        let count = UnixDatagram::from(socket).recv(&mut bytes).unwrap();
        bytes[..count].to_vec()
    };
    assert_eq!(receive(&old), b"old");
    assert_eq!((receive(&old), receive(&next)), (b"old".to_vec(), b"new".to_vec()));
    old.files[0].name().restore();
    assert!(!socket_file::beside(&path).exists());
    let error = name.take_path().expect_err("the old server has its path back");
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    drop(old);
    drop(next);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Row 4.37: a server removes its predecessor's files, and none of its successor's.
#[test]
fn files_of_a_predecessor_are_removed_and_those_of_a_successor_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let mut wanted = config(&[], 1);
    wanted.hub.syslog_unix = vec![path.clone()];
    let first = open(&wanted, Vec::new(), Vec::new()).unwrap();
    let next = || Listeners::open(&wanted, Vec::new(), Vec::new(), ListenTiming::BindOnly).unwrap();
    let second = next();
    let mut second_name = second.files[0].name();
    second_name.take_path().unwrap();
    // Before the first server has released its socket.
    let third = next();
    second_name.forget_predecessor();
    assert!(socket_file::beside(&path).exists(), "it is the third server's");
    let mut third_name = third.files[0].name();
    third_name.take_path().unwrap();
    drop(first);
    assert!(socket_file::beside(&path).exists(), "it is the second server's");
    third_name.forget_predecessor();
    assert!(!socket_file::beside(&path).exists());
    drop(second);
    assert!(path.exists());
    drop(third);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Row 4.37: the configuration decides: addresses that it omits stay with the predecessor, further addresses are
/// opened, and a port that was chosen for port 0 is kept.
#[test]
fn addresses_follow_the_configuration() {
    let [one, other] = [[127, 0, 0, 1], [127, 0, 0, 2]].map(|host| SocketAddr::from((host, 0)));
    let old = open(&config(&[one, other], 1), Vec::new(), Vec::new()).unwrap();
    let third = SocketAddr::from(([127, 0, 0, 3], 0));
    let next = open(&config(&[third, other], 1), old.copies().unwrap(), Vec::new()).unwrap();
    assert_eq!((next.reused, next.addresses[1]), (1, old.addresses[1]));
    assert_eq!(next.addresses[0].ip(), third.ip());
    assert_eq!(
        identities(&next.copies().unwrap()).intersection(&identities(&old.copies().unwrap())).count(),
        1
    );
}

/// Row 4.37: a listener that a successor opens accepts no connection before the take-over, and comes behind the
/// received listeners.
#[test]
fn listeners_bound_beside_a_predecessor_do_not_listen() {
    let first = SocketAddr::from(([127, 0, 0, 2], 0));
    let old = open(&config(&[any_port()], 1), Vec::new(), Vec::new()).unwrap();
    let wanted = config(&[first, old.addresses[0]], 2);
    let next = Listeners::open(&wanted, old.copies().unwrap(), Vec::new(), ListenTiming::BindOnly).unwrap();
    let waits = |of: &Vec<ListeningSocket>| {
        of.iter().map(|listener| listener.from > HandoverStage::Overlapping).collect::<Vec<bool>>()
    };
    let waits: Vec<Vec<bool>> = next.by_shard.iter().map(waits).collect();
    assert_eq!(waits, [vec![true, true], vec![false, true]]);
    assert!(std::net::TcpStream::connect(next.addresses[0]).is_err(), "it listens already");
    let error = Listeners::open(&wanted, Vec::new(), Vec::new(), ListenTiming::BindOnly).unwrap_err();
    assert!(error.to_string().contains("another process listens there"), "{error}");
}

/// Row 4.37: the same listener from the predecessor and from the parent counts once.
#[test]
fn a_duplicate_listener_counts_once() {
    let old = open(&config(&[any_port()], 1), Vec::new(), Vec::new()).unwrap();
    let twice = passed(old.copies().unwrap().pop().unwrap());
    let next = open(&config(&old.addresses, 1), old.copies().unwrap(), twice).unwrap();
    assert_eq!((next.reused, shape(&next)), (1, vec![1]));
}

/// Row 4.37: an address that an ended server still holds is waited for, in bounded time.
#[test]
fn an_address_released_in_time_is_used() {
    let mut other_listener = Some(std::net::TcpListener::bind(any_port()).unwrap());
    let address = other_listener.as_ref().unwrap().local_addr().unwrap();
    let mut attempts = 0;
    let mut give_up_after_three = || {
        attempts += 1;
        attempts < 3
    };
    let wanted = config(&[address], 1);
    let error =
        Listeners::open(&wanted, Vec::new(), Vec::new(), ListenTiming::RetryWhile(&mut give_up_after_three))
            .unwrap_err();
    assert!(error.to_string().contains("another process listens there"), "{error}");
    assert_eq!(attempts, 3);
    let mut retry_until_closed = || other_listener.take().is_some();
    let listeners =
        Listeners::open(&wanted, Vec::new(), Vec::new(), ListenTiming::RetryWhile(&mut retry_until_closed))
            .unwrap();
    assert_eq!((listeners.addresses, other_listener.is_none()), (vec![address], true));
}

/// Rows 4.19, 4.37: addresses of one server may overlap: an unspecified address and one of a host with the same port,
/// opened or received; a repeated address is one.
#[test]
fn addresses_of_one_server_may_overlap() {
    for old_shards in [0, 1] {
        let local = open(&config(&[unused_port()], 1), Vec::new(), Vec::new()).unwrap();
        let address = local.addresses[0];
        let all = SocketAddr::from(([0, 0, 0, 0], address.port()));
        let old = local.copies().unwrap().into_iter().take(old_shards).collect();
        drop(local);
        let both = open(&config(&[all, address, all], 2), old, Vec::new()).unwrap();
        assert_eq!((both.addresses, both.reused), (vec![all, address], old_shards));
    }
}

/// An address with a port that is free on all hosts and outside the ephemeral range: a connection of another test
/// could otherwise block a listener on all addresses.
fn unused_port() -> SocketAddr {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let below: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
    let start = 20_000 + std::process::id() as u16 % 1000;
    let is_free = |port: &u16| std::net::TcpListener::bind(("0.0.0.0", *port)).is_ok();
    SocketAddr::from(([127, 0, 0, 1], (start..below).find(is_free).expect("a free port")))
}

/// Row 4.37: an overlap with the predecessor's address is an error that names both.
#[test]
fn an_overlapping_predecessor_address_is_reported() {
    let old = open(&config(&[any_port()], 1), Vec::new(), Vec::new()).unwrap();
    let address = old.addresses[0];
    let all = SocketAddr::from(([0, 0, 0, 0], address.port()));
    let error =
        Listeners::open(&config(&[all], 1), old.copies().unwrap(), Vec::new(), ListenTiming::BindOnly);
    let wanted = format!(
        "cannot listen on {all}: the predecessor listens on {address}, which overlaps it; configure both, or stop the predecessor first"
    );
    assert_eq!(error.unwrap_err().to_string(), wanted);
}

/// Row 4.37: a passed descriptor that cannot be served is an error that names it.
#[test]
fn a_passed_descriptor_that_is_no_listener_is_refused_by_name() {
    let datagrams = std::net::UdpSocket::bind(any_port()).unwrap();
    let error = open(&config(&[], 1), Vec::new(), passed(datagrams)).unwrap_err();
    assert!(error.to_string().starts_with("the parent process passed `web`"), "{error}");
}

/// Row 4.37: more listeners than a shard can hold are refused before anything changes hands.
#[test]
fn too_many_listeners_for_the_shards_are_refused() {
    stilling_engine::net::raise_descriptor_limit();
    let many = LISTENERS_MAX as usize + 1;
    let old = open(&config(&[any_port()], many), Vec::new(), Vec::new()).unwrap();
    let error = open(&config(&old.addresses, 1), old.copies().unwrap(), Vec::new()).unwrap_err();
    assert!(matches!(error, ServeError::TooManyListeners(count, LISTENERS_MAX) if count == many), "{error}");
}
