//! Where the server listens: listeners that are there already come first, the others are opened.
//!
//! A queue belongs to its listener, and one that nobody accepts from swallows its share of the connections: the
//! kernel spreads them over all listeners of an address, whoever holds them. So every listener that is kept has
//! a shard that accepts from it, and every shard has one of each address:
//!
//! ```text
//!  3 shards, 2 there already    a  b  +c      the third is opened beside them
//!  2 shards, 3 there already    a  b  a,c     shared out in turn
//!  3 shards, 1 that is alone    a  a  a       copies: the parent opened it without SO_REUSEPORT
//! ```
//!
//! What a successor opens beside the listeners that it has got is bound at once, so that errors are known, and
//! listens only when it is the server: connections that come to a listener are lost with the process that holds it,
//! and until then that process may fail.
//!
//! Of an old server's listeners those are kept whose address is wanted still. The copies of the others are
//! closed, which ends nothing: the old server has its own, and serves who waits there until it drains.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use stilling_engine::limits::LISTENERS_MAX;
use stilling_engine::net::{self, ListenOptions};

use crate::config::{ServeConfig, ServeError};
use crate::hand_over::{HandOverError, Passed};
use crate::http::Way;
use crate::socket_file::SocketFile;

/// How long the kernel holds back a connection that sends nothing, in seconds; the first-byte
/// timeout begins when it lets go.
const DEFER_ACCEPT_SECONDS: u32 = 1;

/// What is spoken to a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Nats,
    Syslog(Way),
}

impl Protocol {
    /// What begins the text of an address.
    pub(crate) const fn scheme(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Nats => "nats",
            Protocol::Syslog(Way::Tcp) => "syslog-tcp",
            Protocol::Syslog(Way::Udp) => "syslog-udp",
            Protocol::Syslog(Way::Unix) => "syslog-unix",
        }
    }
}

/// How long an address may still be in use at the start: a process that was killed has a ring that the system takes apart
/// a moment after its end.
const FREED_WITHIN: Duration = Duration::from_millis(500);
/// How often it is looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A listener of one shard.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: OwnedFd,
    /// Unspecified for a Unix socket.
    pub(crate) address: SocketAddr,
    pub(crate) speaks: Protocol,
    /// It is the listener of `admin` alone.
    pub(crate) is_admin: bool,
    /// The parent process passed it, and may have it still: who waits there is not lost with this server.
    pub(crate) is_parents: bool,
    /// It is bound, and is to listen when this server is the only one.
    pub(crate) waits: bool,
}

/// When what is opened listens.
pub(crate) enum When<'a> {
    /// At once, also if an address is free only in a moment.
    Now,
    /// At once, and an address in use is tried again for as long as this returns true.
    Free(&'a mut dyn FnMut() -> bool),
    /// Later; now it is bound.
    Alone,
}

/// All listeners of the server.
#[derive(Debug)]
pub(crate) struct Listeners {
    /// Where it listens, ports filled in; without `admin`.
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) protocols: Vec<Protocol>,
    /// The address of the pages, port filled in, if they have a listener of their own.
    pub(crate) admin: Option<SocketAddr>,
    /// For each shard its listeners, those that wait last.
    pub(crate) of_shards: Vec<Vec<Listener>>,
    /// How many came from the old server or the parent and are kept.
    pub(crate) kept: usize,
    /// Those of Unix sockets.
    pub(crate) files: Vec<SocketFile>,
}

/// One address with the listeners that there are for it.
struct Group {
    speaks: Protocol,
    is_admin: bool,
    wanted: SocketAddr,
    sockets: Vec<OwnedFd>,
}

impl Listeners {
    /// Takes what is there and opens the rest. `old` comes from the server that is succeeded, `passed` from
    /// the parent process; the same listener may come from both.
    pub(crate) fn open(
        config: &ServeConfig,
        old: Vec<OwnedFd>,
        passed: Vec<Passed>,
        mut when: When<'_>,
    ) -> Result<Listeners, ServeError> {
        let options = |speaks| options(config, speaks);
        let Found { groups, left, datagrams, parents } = group(config, old, passed, &options)?;
        // All of them before the first one listens: this server's own addresses may overlap.
        for group in &groups {
            check_free(group, &groups, &left, &options(group.speaks), &mut when)?;
        }
        let mut kept: usize = groups.iter().map(|group| group.sockets.len()).sum();
        let mut of_shards: Vec<Vec<Listener>> = (0..config.shards).map(|_| Vec::new()).collect();
        let (mut addresses, mut protocols, mut admin) = (Vec::new(), Vec::new(), None);
        for (number, group) in groups.into_iter().enumerate() {
            let (wanted, speaks, is_admin) = (group.wanted, group.speaks, group.is_admin);
            let open = |error| ServeError::Listen(wanted, error);
            let sockets = complete(group, config.shards, &options(speaks), &when).map_err(open)?;
            let address = net::local_addr(&sockets[0]).map_err(open)?;
            if is_admin {
                admin = Some(address);
            } else {
                addresses.push(address);
                protocols.push(speaks);
            }
            for (at, socket) in sockets.into_iter().enumerate() {
                // Each address begins with another shard, so that the first does not get all of what is over.
                let waits = !net::is_listening(&socket).map_err(open)?;
                let is_parents = parents.contains(&identity(&socket).map_err(open)?);
                let listener = Listener { socket, address, speaks, is_admin, is_parents, waits };
                of_shards[(number + at) % config.shards].push(listener);
            }
        }
        let mut datagrams = datagrams;
        let mut taken = Vec::new();
        for wanted in &config.hub.syslog_udp {
            if wanted.port() != 0 && taken.contains(wanted) {
                continue;
            }
            let (socket, is_old) = datagram_socket(*wanted, &mut datagrams, &mut when)?;
            kept += usize::from(is_old);
            let address = net::local_addr(&socket).map_err(|error| ServeError::Listen(*wanted, error))?;
            taken.push(*wanted);
            addresses.push(address);
            let speaks = Protocol::Syslog(Way::Udp);
            protocols.push(speaks);
            // One reader for each, so that what a source sends stays in its order.
            of_shards[addresses.len() % config.shards].push(Listener {
                socket,
                address,
                speaks,
                is_admin: false,
                is_parents: false,
                waits: false,
            });
        }
        let mut files = Vec::new();
        for (number, path) in config.hub.syslog_unix.iter().enumerate() {
            let failed = |error| ServeError::SocketFile(path.clone(), error);
            let socket = net::bind_unix_datagrams(path, matches!(when, When::Alone)).map_err(failed)?;
            files.push(SocketFile::of(path).map_err(failed)?);
            let address = SocketAddr::from(([0, 0, 0, 0], 0));
            let speaks = Protocol::Syslog(Way::Unix);
            of_shards[number % config.shards].push(Listener {
                socket,
                address,
                speaks,
                is_admin: false,
                is_parents: false,
                waits: false,
            });
        }
        for listeners in &mut of_shards {
            listeners.sort_by_key(|listener| listener.waits);
        }
        match of_shards.iter().map(Vec::len).max() {
            Some(most) if most > LISTENERS_MAX as usize => Err(ServeError::Listeners(most, LISTENERS_MAX)),
            _ => Ok(Listeners { addresses, protocols, admin, of_shards, kept, files }),
        }
    }

    /// Descriptors of all shards together.
    pub(crate) fn count(&self) -> usize {
        self.of_shards.iter().map(Vec::len).sum()
    }

    /// A copy of every listener, each once even if several shards share it. Unix sockets stay: a successor has its own in
    /// the same place.
    pub(crate) fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        let mut seen = Vec::new();
        let mut copies = Vec::new();
        for listener in self.of_shards.iter().flatten() {
            if listener.speaks != Protocol::Syslog(Way::Unix) && is_new(&listener.socket, &mut seen)? {
                copies.push(listener.socket.try_clone()?);
            }
        }
        Ok(copies)
    }
}

/// How listeners are opened.
pub(crate) fn options(config: &ServeConfig, speaks: Protocol) -> ListenOptions {
    let defer_accept = match speaks {
        Protocol::Http => DEFER_ACCEPT_SECONDS,
        // The server speaks first, or nobody for long.
        Protocol::Nats | Protocol::Syslog(_) => 0,
    };
    ListenOptions {
        defer_accept: Some(defer_accept),
        send_buffer: config.send_buffer,
        congestion: config.congestion.clone(),
        ..ListenOptions::default()
    }
}

struct Found {
    groups: Vec<Group>,
    /// Where the old server listens, and this one is not to.
    left: Vec<SocketAddr>,
    /// Sockets for datagrams of the old server.
    datagrams: Vec<(SocketAddr, OwnedFd)>,
    /// What the parent has passed, by [`identity`].
    parents: Vec<(u64, u64)>,
}

/// Sorts what is there by the addresses that are wanted.
fn group(
    config: &ServeConfig,
    old: Vec<OwnedFd>,
    passed: Vec<Passed>,
    options: &impl Fn(Protocol) -> ListenOptions,
) -> Result<Found, ServeError> {
    let mut groups: Vec<Group> = Vec::new();
    let http = config.listen.iter().map(|wanted| (Protocol::Http, false, *wanted));
    let admin = config.admin.address().map(|wanted| (Protocol::Http, true, wanted));
    let nats = config.hub.nats.iter().map(|wanted| (Protocol::Nats, false, *wanted));
    let syslog = config.hub.syslog_tcp.iter().map(|wanted| (Protocol::Syslog(Way::Tcp), false, *wanted));
    for (speaks, is_admin, wanted) in http.chain(admin).chain(nats).chain(syslog) {
        // Port 0 takes another one each time; any other address that is asked for twice is one address.
        if wanted.port() == 0 || groups.iter().all(|group| group.wanted != wanted) {
            groups.push(Group { speaks, is_admin, wanted, sockets: Vec::new() });
        }
    }
    let (mut left, mut datagrams) = (Vec::new(), Vec::new());
    let mut seen = Vec::new();
    for Passed { descriptor, name } in passed {
        let failed = |error| ServeError::Passed(name, error);
        let address = net::adopt_listener(&descriptor, &options(Protocol::Http));
        let (address, is_new) =
            match address.and_then(|address| Ok((address, is_new(&descriptor, &mut seen)?))) {
                Ok(both) => both,
                Err(error) => return Err(failed(error)),
            };
        if !is_new {
            continue;
        }
        match place_for(address, &groups) {
            Some(at) => {
                net::adopt_listener(&descriptor, &options(groups[at].speaks))
                    .map_err(|error| ServeError::Listen(address, error))?;
                groups[at].sockets.push(descriptor);
            }
            // The parent decides where this server listens, besides what was asked for by name.
            None => {
                let (speaks, is_admin, sockets) = (Protocol::Http, false, vec![descriptor]);
                groups.push(Group { speaks, is_admin, wanted: address, sockets });
            }
        }
        settle_ports(&mut groups);
    }
    let parents = seen.clone();
    for socket in old {
        let doing = || "use a listener of the old server".to_owned();
        let address = net::local_addr(&socket)
            .map_err(|error| ServeError::HandOver(HandOverError::System { doing: doing(), error }))?;
        let is_datagrams = net::is_datagrams(&socket)
            .map_err(|error| ServeError::HandOver(HandOverError::System { doing: doing(), error }))?;
        if is_datagrams {
            datagrams.push((address, socket));
            continue;
        }
        let Some(at) = place_for(address, &groups) else {
            left.push(address);
            continue;
        };
        let options = options(groups[at].speaks);
        let adopted = net::adopt_listener(&socket, &options).and_then(|_| is_new(&socket, &mut seen));
        if adopted.map_err(|error| ServeError::Listen(address, error))? {
            groups[at].sockets.push(socket);
            settle_ports(&mut groups);
        }
    }
    Ok(Found { groups, left, datagrams, parents })
}

/// The old server's socket for this address, or one of our own. Whether it is the old one.
fn datagram_socket(
    wanted: SocketAddr,
    old: &mut Vec<(SocketAddr, OwnedFd)>,
    when: &mut When<'_>,
) -> Result<(OwnedFd, bool), ServeError> {
    let is_it = |at: SocketAddr| at == wanted || wanted.port() == 0 && at.ip() == wanted.ip();
    if let Some(place) = old.iter().position(|(at, _)| is_it(*at)) {
        return Ok((old.swap_remove(place).1, true));
    }
    loop {
        match net::bind_udp(wanted) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if let When::Free(wait) = when
                    && wait()
                {
                    continue;
                }
                return Err(ServeError::Listen(wanted, error));
            }
            outcome => {
                return outcome
                    .map(|socket| (socket, false))
                    .map_err(|error| ServeError::Listen(wanted, error));
            }
        }
    }
}

/// Which of the wanted addresses this is: the same one, or the same host with any port.
fn place_for(address: SocketAddr, groups: &[Group]) -> Option<usize> {
    let same = groups.iter().position(|group| group.wanted == address);
    let any_port =
        || groups.iter().position(|group| group.wanted.port() == 0 && group.wanted.ip() == address.ip());
    same.or_else(any_port)
}

/// Any port has become a certain one when the first listener for it was found.
fn settle_ports(groups: &mut [Group]) {
    for group in groups.iter_mut().filter(|group| group.wanted.port() == 0) {
        if let Some(Ok(address)) = group.sockets.first().map(net::local_addr) {
            group.wanted = address;
        }
    }
}

/// What all descriptors of one listener have in common.
fn identity(socket: &OwnedFd) -> io::Result<(u64, u64)> {
    let file = rustix::fs::fstat(socket)?;
    Ok((file.st_dev, file.st_ino))
}

/// Whether this listener has not been seen yet: another descriptor of one that was is the same listener.
fn is_new(socket: &OwnedFd, seen: &mut Vec<(u64, u64)>) -> io::Result<bool> {
    let identity = identity(socket)?;
    let is_new = !seen.contains(&identity);
    if is_new {
        seen.push(identity);
    }
    Ok(is_new)
}

/// Shared ports would let a second server start silently beside the first: asks once without.
fn check_free(
    group: &Group,
    groups: &[Group],
    left: &[SocketAddr],
    options: &ListenOptions,
    when: &mut When<'_>,
) -> Result<(), ServeError> {
    let Group { wanted, sockets, .. } = group;
    let overlaps = |other: &SocketAddr| overlap(*wanted, *other);
    let is_shared = || groups.iter().any(|other| !other.sockets.is_empty() && overlaps(&other.wanted));
    if !sockets.is_empty() || wanted.port() == 0 || is_shared() {
        return Ok(());
    }
    let begin = Instant::now();
    loop {
        match net::check_free(*wanted, options) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let waits = match when {
                    When::Now if begin.elapsed() < FREED_WITHIN => {
                        std::thread::sleep(LOOK_EVERY);
                        true
                    }
                    When::Free(wait) => wait(),
                    When::Now | When::Alone => false,
                };
                if waits {
                    continue;
                }
                return Err(match left.iter().find(|old| overlaps(old)) {
                    Some(&old) => ServeError::Overlap { wanted: *wanted, old },
                    None => ServeError::Listen(*wanted, error),
                });
            }
            outcome => return outcome.map_err(|error| ServeError::Listen(*wanted, error)),
        }
    }
}

/// Whether a connection could be meant for both: the same port, and one of them stands for all hosts.
pub(crate) fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let all = |address: SocketAddr| address.ip().is_unspecified();
    one.port() == other.port() && (one.ip() == other.ip() || all(one) || all(other))
}

/// At least as many listeners as shards.
fn complete(
    group: Group,
    shards: usize,
    options: &ListenOptions,
    when: &When<'_>,
) -> io::Result<Vec<OwnedFd>> {
    let Group { wanted, mut sockets, .. } = group;
    let open = match when {
        When::Alone => net::bind_tcp,
        When::Now | When::Free(_) => net::listen_tcp,
    };
    if sockets.is_empty() {
        sockets.push(open(wanted, options)?);
    }
    let address = net::local_addr(&sockets[0])?;
    let shares = |socket: &OwnedFd| Ok::<bool, io::Error>(rustix::net::sockopt::socket_reuseport(socket)?);
    let there = sockets.len();
    for at in 0..shards.saturating_sub(there) {
        // One that another user opened is shared with that user's processes alone.
        let beside = shares(&sockets[0])?.then(|| open(address, options).ok()).flatten();
        let socket = match beside {
            Some(socket) => socket,
            None => sockets[at % there].try_clone()?,
        };
        sockets.push(socket);
    }
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn config(listen: &[SocketAddr], shards: usize) -> ServeConfig {
        ServeConfig { listen: listen.to_vec(), shards, ..ServeConfig::default() }
    }

    fn open(config: &ServeConfig, old: Vec<OwnedFd>, passed: Vec<Passed>) -> Result<Listeners, ServeError> {
        Listeners::open(config, old, passed, When::Now)
    }

    fn any_port() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    fn passed(descriptor: impl Into<OwnedFd>) -> Vec<Passed> {
        vec![Passed { descriptor: descriptor.into(), name: "web".to_owned() }]
    }

    fn shape(listeners: &Listeners) -> Vec<usize> {
        listeners.of_shards.iter().map(Vec::len).collect()
    }

    /// The distinct listeners.
    fn identities(sockets: &[OwnedFd]) -> BTreeSet<u64> {
        sockets.iter().map(|socket| rustix::fs::fstat(socket).unwrap().st_ino).collect()
    }

    /// Row 4.37: from one shard to three to two: no listener is lost on the way, and no shard is without one.
    #[test]
    fn every_listener_keeps_a_shard_however_many_there_are() {
        let first = open(&config(&[any_port()], 1), Vec::new(), Vec::new()).unwrap();
        let address = first.addresses[0];
        let mut held = first.copies().unwrap();
        let mut before = identities(&held);
        for (shards, kept, expected) in
            [(3, 1, vec![1, 1, 1]), (2, 3, vec![2, 1]), (1, 3, vec![3]), (4, 3, vec![1; 4])]
        {
            let next = open(&config(&[address], shards), held, Vec::new()).unwrap();
            assert_eq!((next.kept, shape(&next), &next.addresses), (kept, expected, &vec![address]));
            held = next.copies().unwrap();
            let after = identities(&held);
            assert!(before.is_subset(&after), "{before:?} {after:?}");
            before = after;
        }
    }

    /// Row 4.37: whoever is in the queue of a listener that changes hands is still in it.
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
        let accept = |listener: &Listener| rustix::net::accept(&listener.socket).ok();
        let accepted: Vec<_> = next
            .of_shards
            .iter()
            .flatten()
            .flat_map(|listener| std::iter::from_fn(|| accept(listener)))
            .collect();
        assert_eq!(accepted.len(), clients.len());
    }

    /// Row 4.37: a listener that shares its port with no other is shared among the shards.
    #[test]
    fn a_listener_that_is_alone_is_copied_for_every_shard() {
        let foreign = std::net::TcpListener::bind(any_port()).unwrap();
        let address = foreign.local_addr().unwrap();
        let listeners = open(&config(&[], 3), Vec::new(), passed(foreign)).unwrap();
        assert_eq!((listeners.addresses.as_slice(), shape(&listeners)), (&[address][..], vec![1, 1, 1]));
        assert_eq!(listeners.copies().unwrap().len(), 1);
    }

    /// Row 4.37: what is in the queue of a socket for datagrams is there for the successor.
    #[test]
    fn a_socket_for_datagrams_changes_hands_with_its_queue() {
        let with = |address: SocketAddr| {
            let mut config = config(&[], 2);
            config.hub.syslog_udp = vec![address, address];
            config
        };
        let old = open(&with(port_of_nobody()), Vec::new(), Vec::new()).unwrap();
        assert_eq!((old.addresses.len(), old.protocols[0]), (1, Protocol::Syslog(Way::Udp)));
        let sender = std::net::UdpSocket::bind(any_port()).unwrap();
        sender.send_to(b"<13>before", old.addresses[0]).unwrap();
        let copies = old.copies().unwrap();
        let error = open(&with(old.addresses[0]), Vec::new(), Vec::new()).unwrap_err();
        assert!(error.to_string().contains("another process listens there"), "{error}");
        let next = open(&with(old.addresses[0]), copies, Vec::new()).unwrap();
        drop(old);
        assert_eq!((next.kept, next.addresses.len(), shape(&next).iter().sum::<usize>()), (1, 1, 1));
        let listener = next.of_shards.into_iter().flatten().next().unwrap();
        let mut bytes = [0; 64];
        let count = std::net::UdpSocket::from(listener.socket).recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..count], b"<13>before");
    }

    /// Row 4.37: a successor's Unix socket takes the place of the old one, whose file it leaves alone from then on.
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
        let next = Listeners::open(&wanted, Vec::new(), Vec::new(), When::Alone).unwrap();
        sender.send_to(b"new", &path).unwrap();
        let receive = |listeners: &Listeners| {
            let socket = listeners.of_shards[0][0].socket.try_clone().unwrap();
            let mut bytes = [0; 8];
            let count = UnixDatagram::from(socket).recv(&mut bytes).unwrap();
            bytes[..count].to_vec()
        };
        assert_eq!((receive(&old), receive(&next)), (b"old".to_vec(), b"new".to_vec()));
        drop(old);
        assert!(path.exists(), "it is the successor's");
        drop(next);
        assert!(!path.exists());
    }

    /// Row 4.37: the configuration decides: what it does not ask for is left to the old server, what it asks for
    /// besides is opened, and a port that was free to choose stays chosen.
    #[test]
    fn addresses_come_and_go_as_the_configuration_says() {
        let [one, other] = [[127, 0, 0, 1], [127, 0, 0, 2]].map(|host| SocketAddr::from((host, 0)));
        let old = open(&config(&[one, other], 1), Vec::new(), Vec::new()).unwrap();
        let third = SocketAddr::from(([127, 0, 0, 3], 0));
        let next = open(&config(&[third, other], 1), old.copies().unwrap(), Vec::new()).unwrap();
        assert_eq!((next.kept, next.addresses[1]), (1, old.addresses[1]));
        assert_eq!(next.addresses[0].ip(), third.ip());
        assert_eq!(
            identities(&next.copies().unwrap()).intersection(&identities(&old.copies().unwrap())).count(),
            1
        );
    }

    /// Row 4.37: what a successor opens besides takes no connection before it is the server, and stands behind what
    /// it accepts from at once.
    #[test]
    fn what_is_opened_beside_an_old_server_waits() {
        let first = SocketAddr::from(([127, 0, 0, 2], 0));
        let old = open(&config(&[any_port()], 1), Vec::new(), Vec::new()).unwrap();
        let wanted = config(&[first, old.addresses[0]], 2);
        let next = Listeners::open(&wanted, old.copies().unwrap(), Vec::new(), When::Alone).unwrap();
        let waits = |of: &Vec<Listener>| of.iter().map(|listener| listener.waits).collect::<Vec<bool>>();
        let waits: Vec<Vec<bool>> = next.of_shards.iter().map(waits).collect();
        assert_eq!(waits, [vec![true, true], vec![false, true]]);
        assert!(std::net::TcpStream::connect(next.addresses[0]).is_err(), "somebody listens");
        let error = Listeners::open(&wanted, Vec::new(), Vec::new(), When::Alone).unwrap_err();
        assert!(error.to_string().contains("another process listens there"), "{error}");
    }

    /// Row 4.37: the same listener from the old server and from the parent is one listener.
    #[test]
    fn a_listener_that_comes_twice_counts_once() {
        let old = open(&config(&[any_port()], 1), Vec::new(), Vec::new()).unwrap();
        let twice = passed(old.copies().unwrap().pop().unwrap());
        let next = open(&config(&old.addresses, 1), old.copies().unwrap(), twice).unwrap();
        assert_eq!((next.kept, shape(&next)), (1, vec![1]));
    }

    /// Row 4.37: what a server that has ended still holds for a moment is waited for, and not for ever.
    #[test]
    fn an_address_that_becomes_free_in_time_is_taken() {
        let mut stranger = Some(std::net::TcpListener::bind(any_port()).unwrap());
        let address = stranger.as_ref().unwrap().local_addr().unwrap();
        let mut looks = 0;
        let mut in_vain = || {
            looks += 1;
            looks < 3
        };
        let wanted = config(&[address], 1);
        let error = Listeners::open(&wanted, Vec::new(), Vec::new(), When::Free(&mut in_vain)).unwrap_err();
        assert!(error.to_string().contains("another process listens there"), "{error}");
        assert_eq!(looks, 3);
        let mut until_it_leaves = || stranger.take().is_some();
        let listeners =
            Listeners::open(&wanted, Vec::new(), Vec::new(), When::Free(&mut until_it_leaves)).unwrap();
        assert_eq!((listeners.addresses, stranger.is_none()), (vec![address], true));
    }

    /// Rows 4.19, 4.37: a server is not in its own way: one address for all hosts and one of a host on the same port,
    /// one of them from the old server or both opened; the same address twice is one.
    #[test]
    fn addresses_of_one_server_may_overlap() {
        for old_shards in [0, 1] {
            let local = open(&config(&[port_of_nobody()], 1), Vec::new(), Vec::new()).unwrap();
            let address = local.addresses[0];
            let all = SocketAddr::from(([0, 0, 0, 0], address.port()));
            let old = local.copies().unwrap().into_iter().take(old_shards).collect();
            drop(local);
            let both = open(&config(&[all, address, all], 2), old, Vec::new()).unwrap();
            assert_eq!((both.addresses, both.kept), (vec![all, address], old_shards));
        }
    }

    /// An address whose port is free everywhere, and that the system gives to nobody who asks for any port: a connection
    /// of another test would be in the way of a listener on all addresses.
    fn port_of_nobody() -> SocketAddr {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let below: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
        let start = 20_000 + std::process::id() as u16 % 1000;
        let is_free = |port: &u16| std::net::TcpListener::bind(("0.0.0.0", *port)).is_ok();
        SocketAddr::from(([127, 0, 0, 1], (start..below).find(is_free).expect("a free port")))
    }

    /// Row 4.37: the old server's own listener in the way of an overlapping address is called by its name.
    #[test]
    fn an_old_address_in_the_way_of_a_new_one_is_named() {
        let old = open(&config(&[any_port()], 1), Vec::new(), Vec::new()).unwrap();
        let address = old.addresses[0];
        let all = SocketAddr::from(([0, 0, 0, 0], address.port()));
        let error = Listeners::open(&config(&[all], 1), old.copies().unwrap(), Vec::new(), When::Alone);
        let wanted = format!(
            "cannot listen on {all}: the server that is succeeded listens on {address}, which is a part of it; ask for both, or stop it first"
        );
        assert_eq!(error.unwrap_err().to_string(), wanted);
    }

    /// Row 4.37: what is passed and cannot be served is an error that names it.
    #[test]
    fn what_is_no_listener_is_refused_with_its_name() {
        let datagrams = std::net::UdpSocket::bind(any_port()).unwrap();
        let error = open(&config(&[], 1), Vec::new(), passed(datagrams)).unwrap_err();
        assert!(error.to_string().starts_with("the parent process passed `web`"), "{error}");
    }

    /// Row 4.37: more than a shard can hold is refused before anything has changed hands.
    #[test]
    fn too_many_listeners_for_the_shards_are_refused() {
        let many = LISTENERS_MAX as usize + 1;
        let old = open(&config(&[any_port()], many), Vec::new(), Vec::new()).unwrap();
        let error = open(&config(&old.addresses, 1), old.copies().unwrap(), Vec::new()).unwrap_err();
        assert!(matches!(error, ServeError::Listeners(65, 64)), "{error}");
    }
}
