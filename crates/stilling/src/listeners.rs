//! The server's listeners: received listeners come first, the missing ones are opened.
//!
//! The kernel spreads the connections of an address over all its listeners, in any process, and a listener that no
//! shard accepts from never serves its share. So every reused listener gets a shard, and every shard gets a listener of each
//! address:
//!
//! ```text
//!  3 shards, 2 received            a  b  +c      the third is opened
//!  2 shards, 3 received            a  b  a,c     distributed in turn
//!  3 shards, 1 exclusive           a  a  a       copies: the parent opened it without SO_REUSEPORT
//! ```
//!
//! UDP sockets differ in one point: none is added to received ones, because each change of their number makes the
//! system send the datagrams of most clients to other sockets. A shard may then have none.
//!
//! A successor binds the missing listeners at once, so that errors show, but listens only after it has taken over:
//! connections in a listener's queue are lost with the process that holds it, and until then the hand-over may fail.
//!
//! Of a predecessor's listeners, those with a configured address are kept. The copies of the others are closed, which
//! has no effect: the predecessor has its own and serves their connections until it drains.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use stilling_engine::limits::LISTENERS_MAX;
use stilling_engine::listen_watch::WatchedListener;
use stilling_engine::net::{self, DatagramOptions, ListenOptions};

use crate::addresses::overlap;
use crate::config::{ServeConfig, ServeError};
use crate::hand_over::{HandOverError, PassedListener};
use crate::lifecycle::HandoverStage;
use crate::listener_monitor::is_tcp;
use crate::socket_file::{self, SocketFile};
use crate::syslog::SyslogTransport;

/// Seconds for which the kernel holds back a connection that sends nothing; the first-byte timeout begins afterwards.
const DEFER_ACCEPT_SECONDS: u32 = 1;

/// Protocol of a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenerProtocol {
    Http,
    Nats,
    /// NATS over WebSocket.
    NatsWebSocket,
    Syslog(SyslogTransport),
    /// CoAP over UDP.
    Coap,
    /// The custom protocol with this index.
    Custom(u16),
}

impl ListenerProtocol {
    /// Scheme in the text of an address.
    pub(crate) const fn scheme(self) -> &'static str {
        match self {
            ListenerProtocol::Http => "http",
            ListenerProtocol::Nats => "nats",
            ListenerProtocol::NatsWebSocket => "ws",
            ListenerProtocol::Syslog(SyslogTransport::Tcp) => "syslog-tcp",
            ListenerProtocol::Syslog(SyslogTransport::Udp) => "syslog-udp",
            ListenerProtocol::Syslog(SyslogTransport::Unix) => "syslog-unix",
            ListenerProtocol::Coap => "coap",
            ListenerProtocol::Custom(_) => "custom",
        }
    }

    /// Whether its sockets are UDP sockets.
    pub(crate) const fn is_udp(self) -> bool {
        matches!(self, ListenerProtocol::Syslog(SyslogTransport::Udp) | ListenerProtocol::Coap)
    }
}

/// Maximum wait at the start for an address in use: the system destroys the ring of a killed process a moment after
/// its end.
const ADDRESS_RELEASE_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval of checks meanwhile.
const ADDRESS_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Bytes that the kernel's receive buffer of a UDP socket has by default, as far as the system grants them: the memory
/// is used only while the thread of the socket does not run. A burst beyond it is dropped and counted.
pub(crate) const RECEIVE_BUFFER_DEFAULT: usize = 4 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct ListeningSocket {
    /// Dropped before the socket is closed. `None`: not watched.
    pub(crate) watched: Option<WatchedListener>,
    pub(crate) socket: OwnedFd,
    /// Unspecified for a Unix socket.
    pub(crate) address: SocketAddr,
    pub(crate) protocol: ListenerProtocol,
    /// It is the separate listener of `admin`.
    pub(crate) is_admin: bool,
    /// The parent process passed it and may still have it: connections in its queue survive this server.
    pub(crate) is_inherited: bool,
    /// The hand-over stage from which it is used.
    pub(crate) from: HandoverStage,
}

/// When opened listeners listen.
pub(crate) enum ListenTiming<'a> {
    /// At once. An address in use is tried again for `ADDRESS_RELEASE_TIMEOUT`.
    Now,
    /// At once. An address in use is tried again while this returns true.
    RetryWhile(&'a mut dyn FnMut() -> bool),
    /// Later; now they are only bound.
    BindOnly,
}

impl ListenTiming<'_> {
    /// Sleeps briefly and returns whether to try an address in use again, of which the first attempt was at `begin`.
    fn tries_again(&mut self, begin: Instant) -> bool {
        match self {
            ListenTiming::Now if begin.elapsed() < ADDRESS_RELEASE_TIMEOUT => {
                std::thread::sleep(ADDRESS_CHECK_INTERVAL);
                true
            }
            ListenTiming::RetryWhile(wait) => wait(),
            ListenTiming::Now | ListenTiming::BindOnly => false,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Listeners {
    /// Their addresses with resolved ports; without `admin`.
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) protocols: Vec<ListenerProtocol>,
    /// The resolved address of the separate `admin` listener.
    pub(crate) admin: Option<SocketAddr>,
    /// The listeners of each shard, ordered by stage.
    pub(crate) by_shard: Vec<Vec<ListeningSocket>>,
    /// Number of kept listeners of the predecessor or the parent.
    pub(crate) reused: usize,
    /// The files of Unix sockets.
    pub(crate) files: Vec<SocketFile>,
    /// Lines about optional addresses that could not be opened.
    pub(crate) not_opened: Vec<String>,
}

/// One configured address with its listeners.
struct ListenerGroup {
    protocol: ListenerProtocol,
    is_admin: bool,
    wanted: SocketAddr,
    sockets: Vec<OwnedFd>,
}

impl Listeners {
    /// Keeps the received listeners and opens the rest. `old` comes from the predecessor, `passed` from the parent
    /// process; the same listener may come from both.
    pub(crate) fn open(
        config: &ServeConfig,
        old: Vec<OwnedFd>,
        passed: Vec<PassedListener>,
        mut when: ListenTiming<'_>,
    ) -> Result<Listeners, ServeError> {
        let options = |protocol| options(config, protocol);
        let SortedListeners { groups, unconfigured, mut datagrams, inherited, .. } =
            sort_listeners(config, old, passed, &options)?;
        // All checks before the first listener listens: this server's own addresses may overlap.
        for group in &groups {
            check_free(group, &groups, &unconfigured, &options(group.protocol), &mut when)?;
        }
        let mut listeners = Listeners {
            addresses: Vec::new(),
            protocols: Vec::new(),
            admin: None,
            by_shard: (0..config.shards).map(|_| Vec::new()).collect(),
            reused: groups.iter().map(|group| group.sockets.len()).sum(),
            files: Vec::new(),
            not_opened: Vec::new(),
        };
        for (number, group) in groups.into_iter().enumerate() {
            let options = options(group.protocol);
            listeners.open_group(number, group, &options, &inherited, &when)?;
        }
        listeners.open_syslog_udp(config, &mut datagrams, &mut when)?;
        listeners.open_coap(config, &mut datagrams, &mut when)?;
        listeners.open_syslog_unix(&config.hub.syslog_unix, &when)?;
        for listeners in &mut listeners.by_shard {
            listeners.sort_by_key(|listener| listener.from);
        }
        match listeners.by_shard.iter().map(Vec::len).max() {
            Some(most) if most > LISTENERS_MAX as usize => {
                Err(ServeError::TooManyListeners(most, LISTENERS_MAX))
            }
            _ => Ok(listeners),
        }
    }

    /// Gives every shard a listener of the address with this index.
    fn open_group(
        &mut self,
        number: usize,
        group: ListenerGroup,
        options: &ListenOptions,
        inherited: &[(u64, u64)],
        when: &ListenTiming<'_>,
    ) -> Result<(), ServeError> {
        let (wanted, protocol, is_admin) = (group.wanted, group.protocol, group.is_admin);
        let open = |error| ServeError::Listen(wanted, error);
        let shards = self.by_shard.len();
        let sockets = fill_group(group, shards, options, when).map_err(open)?;
        let address = net::local_addr(&sockets[0]).map_err(open)?;
        if is_admin {
            self.admin = Some(address);
        } else {
            self.addresses.push(address);
            self.protocols.push(protocol);
        }
        for (at, socket) in sockets.into_iter().enumerate() {
            let from = match protocol {
                ListenerProtocol::Http if net::is_listening(&socket).map_err(open)? => {
                    HandoverStage::Overlapping
                }
                // Listens after the take-over: no publisher connects to a server that may still fail.
                _ => HandoverStage::PathTaken,
            };
            let is_inherited = inherited.contains(&identity(&socket).map_err(open)?);
            let listener =
                ListeningSocket { watched: None, socket, address, protocol, is_admin, is_inherited, from };
            // Each address begins with another shard, so that the first shard does not get every surplus listener.
            self.by_shard[(number + at) % shards].push(listener);
        }
        Ok(())
    }

    /// Assigns each UDP address for syslog to one shard: a single reader keeps the order of a source's datagrams.
    fn open_syslog_udp(
        &mut self,
        config: &ServeConfig,
        old: &mut Vec<(SocketAddr, OwnedFd)>,
        when: &mut ListenTiming<'_>,
    ) -> Result<(), ServeError> {
        for wanted in distinct(&config.hub.syslog_udp) {
            let sockets = DatagramGroup::open(wanted, 1, config.datagram_receive_buffer, old, when)?;
            self.add_datagram_group(ListenerProtocol::Syslog(SyslogTransport::Udp), sockets);
        }
        Ok(())
    }

    /// Opens a socket of each CoAP address for every shard. The system sends all datagrams of a client to the same
    /// socket, and so to the shard that recognises its duplicates and has its blocks.
    fn open_coap(
        &mut self,
        config: &ServeConfig,
        old: &mut Vec<(SocketAddr, OwnedFd)>,
        when: &mut ListenTiming<'_>,
    ) -> Result<(), ServeError> {
        for wanted in distinct(&config.coap) {
            let count = self.by_shard.len();
            match DatagramGroup::open(wanted, count, config.datagram_receive_buffer, old, when) {
                Ok(sockets) => self.add_datagram_group(ListenerProtocol::Coap, sockets),
                Err(ServeError::Listen(_, error)) if config.coap_is_optional => {
                    let reason = match error.kind() {
                        io::ErrorKind::AddrInUse => "address in use".to_owned(),
                        _ => error.to_string(),
                    };
                    self.not_opened.push(format!("coap not opened: {wanted}: {reason}"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn add_datagram_group(&mut self, protocol: ListenerProtocol, group: DatagramGroup) {
        let DatagramGroup { address, sockets, is_old } = group;
        self.reused += if is_old { sockets.len() } else { 0 };
        self.addresses.push(address);
        self.protocols.push(protocol);
        for (at, socket) in sockets.into_iter().enumerate() {
            let shard = (self.addresses.len() + at) % self.by_shard.len();
            self.by_shard[shard].push(ListeningSocket {
                watched: None,
                socket,
                address,
                protocol,
                is_admin: false,
                is_inherited: false,
                // The predecessor reads its sockets until it has released them.
                from: if is_old { HandoverStage::Released } else { HandoverStage::PathTaken },
            });
        }
    }

    /// Assigns each Unix socket for syslog to one shard.
    fn open_syslog_unix(&mut self, paths: &[PathBuf], when: &ListenTiming<'_>) -> Result<(), ServeError> {
        for (number, path) in paths.iter().enumerate() {
            let failed = |error| ServeError::SocketFile(path.clone(), error);
            let (socket, file) = if matches!(when, ListenTiming::BindOnly) {
                net::check_unix_datagram_path(path).map_err(failed)?;
                let beside = socket_file::beside(path);
                let socket = net::bind_unix_datagram(&beside, true).map_err(failed)?;
                (socket, SocketFile::beside(path).map_err(failed)?)
            } else {
                let socket = net::bind_unix_datagram(path, false).map_err(failed)?;
                (socket, SocketFile::of(path).map_err(failed)?)
            };
            self.files.push(file);
            let shard = number % self.by_shard.len();
            self.by_shard[shard].push(ListeningSocket {
                watched: None,
                socket,
                address: SocketAddr::from(([0, 0, 0, 0], 0)),
                protocol: ListenerProtocol::Syslog(SyslogTransport::Unix),
                is_admin: false,
                is_inherited: false,
                from: HandoverStage::PathTaken,
            });
        }
        Ok(())
    }

    /// The UDP listeners, as URLs, each with the smallest receive buffer of its sockets in bytes.
    pub(crate) fn receive_buffers(&self) -> Result<Vec<(String, u64)>, ServeError> {
        let mut buffers: Vec<(String, u64)> = Vec::new();
        for listener in self.by_shard.iter().flatten().filter(|listener| listener.protocol.is_udp()) {
            let url = format!("{}://{}", listener.protocol.scheme(), listener.address);
            let size = net::receive_buffer(&listener.socket);
            let size = size.map_err(|error| ServeError::Listen(listener.address, error))? as u64;
            match buffers.iter_mut().find(|(known, _)| *known == url) {
                Some((_, smallest)) => *smallest = size.min(*smallest),
                None => buffers.push((url, size)),
            }
        }
        Ok(buffers)
    }

    /// Descriptors of all shards together, and those that watch TCP listeners.
    pub(crate) fn count(&self) -> usize {
        let descriptors = |listener: &ListeningSocket| 1 + usize::from(is_tcp(listener.protocol));
        self.by_shard.iter().flatten().map(descriptors).sum()
    }

    /// Copies of all distinct listeners, for a successor. Without Unix sockets: a successor opens its own at the same
    /// path.
    pub(crate) fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        let mut seen = Vec::new();
        let mut copies = Vec::new();
        for listener in self.by_shard.iter().flatten() {
            if listener.protocol != ListenerProtocol::Syslog(SyslogTransport::Unix)
                && is_new(&listener.socket, &mut seen)?
            {
                copies.push(listener.socket.try_clone()?);
            }
        }
        Ok(copies)
    }
}

pub(crate) fn options(config: &ServeConfig, protocol: ListenerProtocol) -> ListenOptions {
    let defer_accept = match protocol {
        ListenerProtocol::Http | ListenerProtocol::NatsWebSocket => DEFER_ACCEPT_SECONDS,
        // The server may send first, and clients may be silent for long.
        ListenerProtocol::Nats
        | ListenerProtocol::Syslog(_)
        | ListenerProtocol::Coap
        | ListenerProtocol::Custom(_) => 0,
    };
    ListenOptions {
        defer_accept: Some(defer_accept),
        send_buffer: config.send_buffer,
        congestion: config.congestion.clone(),
        ..ListenOptions::default()
    }
}

struct SortedListeners {
    groups: Vec<ListenerGroup>,
    /// Addresses of the predecessor that are not configured here.
    unconfigured: Vec<SocketAddr>,
    /// The predecessor's datagram sockets.
    datagrams: Vec<(SocketAddr, OwnedFd)>,
    /// Distinct listeners so far, by [`identity`].
    seen: Vec<(u64, u64)>,
    /// The listeners of the parent, by [`identity`].
    inherited: Vec<(u64, u64)>,
}

/// Sorts the received listeners by configured address.
fn sort_listeners(
    config: &ServeConfig,
    old: Vec<OwnedFd>,
    passed: Vec<PassedListener>,
    options: &impl Fn(ListenerProtocol) -> ListenOptions,
) -> Result<SortedListeners, ServeError> {
    let mut sorted = SortedListeners {
        groups: wanted_groups(config),
        unconfigured: Vec::new(),
        datagrams: Vec::new(),
        seen: Vec::new(),
        inherited: Vec::new(),
    };
    for passed in passed {
        sorted.add_passed(passed, options)?;
    }
    sorted.inherited.clone_from(&sorted.seen);
    for socket in old {
        sorted.add_old(socket, options)?;
    }
    Ok(sorted)
}

fn wanted_groups(config: &ServeConfig) -> Vec<ListenerGroup> {
    let http = config.listen.iter().map(|wanted| (ListenerProtocol::Http, false, *wanted));
    let admin = config.admin.address().map(|wanted| (ListenerProtocol::Http, true, wanted));
    let nats = config.hub.nats.iter().map(|wanted| (ListenerProtocol::Nats, false, *wanted));
    let websocket =
        config.hub.nats_websocket.iter().map(|wanted| (ListenerProtocol::NatsWebSocket, false, *wanted));
    let syslog = config
        .hub
        .syslog_tcp
        .iter()
        .map(|wanted| (ListenerProtocol::Syslog(SyslogTransport::Tcp), false, *wanted));
    let custom = (0..)
        .zip(&config.protocols)
        .map(|(number, listener)| (ListenerProtocol::Custom(number), false, listener.address));
    let mut groups: Vec<ListenerGroup> = Vec::new();
    for (protocol, is_admin, wanted) in
        http.chain(admin).chain(nats).chain(websocket).chain(syslog).chain(custom)
    {
        // Port 0 takes another port each time; any other repeated address is one address.
        if wanted.port() == 0 || groups.iter().all(|group| group.wanted != wanted) {
            groups.push(ListenerGroup { protocol, is_admin, wanted, sockets: Vec::new() });
        }
    }
    groups
}

impl SortedListeners {
    fn add_passed(
        &mut self,
        passed: PassedListener,
        options: &impl Fn(ListenerProtocol) -> ListenOptions,
    ) -> Result<(), ServeError> {
        let PassedListener { descriptor, name } = passed;
        let address = net::adopt_listener(&descriptor, &options(ListenerProtocol::Http));
        let checked = address.and_then(|address| Ok((address, is_new(&descriptor, &mut self.seen)?)));
        let (address, is_new) = checked.map_err(|error| ServeError::PassedListener(name, error))?;
        if !is_new {
            return Ok(());
        }
        match group_for(address, &self.groups) {
            Some(at) => {
                let group = &mut self.groups[at];
                net::adopt_listener(&descriptor, &options(group.protocol))
                    .map_err(|error| ServeError::Listen(address, error))?;
                group.sockets.push(descriptor);
            }
            // The parent may add addresses to the configured ones.
            None => {
                let (protocol, is_admin, sockets) = (ListenerProtocol::Http, false, vec![descriptor]);
                self.groups.push(ListenerGroup { protocol, is_admin, wanted: address, sockets });
            }
        }
        resolve_ports(&mut self.groups);
        Ok(())
    }

    fn add_old(
        &mut self,
        socket: OwnedFd,
        options: &impl Fn(ListenerProtocol) -> ListenOptions,
    ) -> Result<(), ServeError> {
        let unusable = |error| {
            let doing = "use a listener of the old server".to_owned();
            ServeError::HandOver(HandOverError::System { doing, error })
        };
        let address = net::local_addr(&socket).map_err(unusable)?;
        if net::is_datagram_socket(&socket).map_err(unusable)? {
            self.datagrams.push((address, socket));
            return Ok(());
        }
        let Some(at) = group_for(address, &self.groups) else {
            self.unconfigured.push(address);
            return Ok(());
        };
        let options = options(self.groups[at].protocol);
        let adopted = net::adopt_listener(&socket, &options).and_then(|_| is_new(&socket, &mut self.seen));
        if adopted.map_err(|error| ServeError::Listen(address, error))? {
            self.groups[at].sockets.push(socket);
            resolve_ports(&mut self.groups);
        }
        Ok(())
    }
}

/// The sockets of a UDP address.
struct DatagramGroup {
    address: SocketAddr,
    sockets: Vec<OwnedFd>,
    /// They are the predecessor's.
    is_old: bool,
}

impl DatagramGroup {
    /// The predecessor's sockets for this address, or `count` new ones. None is added to a predecessor's: each change of
    /// their number makes the system send the datagrams of most clients to other sockets.
    fn open(
        wanted: SocketAddr,
        count: usize,
        receive_buffer: Option<usize>,
        old: &mut Vec<(SocketAddr, OwnedFd)>,
        when: &mut ListenTiming<'_>,
    ) -> Result<DatagramGroup, ServeError> {
        let open = |error| ServeError::Listen(wanted, error);
        let is_match = |at: SocketAddr| at == wanted || wanted.port() == 0 && at.ip() == wanted.ip();
        if let Some(address) = old.iter().map(|(at, _)| *at).find(|at| is_match(*at)) {
            let mut sockets = Vec::new();
            for (at, socket) in std::mem::take(old) {
                match at == address {
                    true => sockets.push(socket),
                    false => old.push((at, socket)),
                }
            }
            set_receive_buffers(&sockets, receive_buffer).map_err(open)?;
            return Ok(DatagramGroup { address, sockets, is_old: true });
        }
        let mut options = DatagramOptions::default();
        // Not shared at first: another server at the address is an error.
        let first = bind_free_address(wanted, &options, when).map_err(open)?;
        let address = net::local_addr(&first).map_err(open)?;
        let mut sockets = vec![first];
        if count > 1 {
            net::share_datagram_address(&sockets[0]).map_err(open)?;
            options.reuse_port = true;
        }
        for _ in 1..count {
            sockets.push(net::bind_udp_with(address, &options).map_err(open)?);
        }
        set_receive_buffers(&sockets, receive_buffer).map_err(open)?;
        Ok(DatagramGroup { address, sockets, is_old: false })
    }
}

/// Sets the receive buffers to the requested size, by default to [`RECEIVE_BUFFER_DEFAULT`] unless they are larger. The
/// system may grant less.
fn set_receive_buffers(sockets: &[OwnedFd], requested: Option<usize>) -> io::Result<()> {
    for socket in sockets {
        let size = match requested {
            Some(size) => size,
            None => RECEIVE_BUFFER_DEFAULT.max(net::receive_buffer(socket)?),
        };
        net::set_receive_buffer(socket, size)?;
    }
    Ok(())
}

/// Each address once; port 0 takes another port each time.
fn distinct(addresses: &[SocketAddr]) -> impl Iterator<Item = SocketAddr> {
    let is_first =
        |(at, wanted): &(usize, &SocketAddr)| wanted.port() == 0 || !addresses[..*at].contains(wanted);
    addresses.iter().enumerate().filter(is_first).map(|(_, wanted)| *wanted)
}

/// Binds a UDP socket that shares its address with no other. An address in use is tried again as `when` tells.
fn bind_free_address(
    wanted: SocketAddr,
    options: &DatagramOptions,
    when: &mut ListenTiming<'_>,
) -> io::Result<OwnedFd> {
    let begin = Instant::now();
    loop {
        match net::bind_udp_with(wanted, options) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && when.tries_again(begin) => {}
            outcome => return outcome,
        }
    }
}

/// The configured address that matches: the same, or the same host with port 0.
fn group_for(address: SocketAddr, groups: &[ListenerGroup]) -> Option<usize> {
    let same = groups.iter().position(|group| group.wanted == address);
    let any_port =
        || groups.iter().position(|group| group.wanted.port() == 0 && group.wanted.ip() == address.ip());
    same.or_else(any_port)
}

/// Replaces port 0 by the port of the first listener.
fn resolve_ports(groups: &mut [ListenerGroup]) {
    for group in groups.iter_mut().filter(|group| group.wanted.port() == 0) {
        if let Some(Ok(address)) = group.sockets.first().map(net::local_addr) {
            group.wanted = address;
        }
    }
}

/// Identifies a listener: all its descriptors share this.
pub(crate) fn identity(socket: &OwnedFd) -> io::Result<(u64, u64)> {
    let file = rustix::fs::fstat(socket)?;
    Ok((file.st_dev, file.st_ino))
}

/// Whether this listener is new, and not another descriptor of a known listener.
fn is_new(socket: &OwnedFd, seen: &mut Vec<(u64, u64)>) -> io::Result<bool> {
    let identity = identity(socket)?;
    let is_new = !seen.contains(&identity);
    if is_new {
        seen.push(identity);
    }
    Ok(is_new)
}

/// Checks an address once without a shared port: with shared ports a second server would start silently beside the
/// first.
fn check_free(
    group: &ListenerGroup,
    groups: &[ListenerGroup],
    unconfigured: &[SocketAddr],
    options: &ListenOptions,
    when: &mut ListenTiming<'_>,
) -> Result<(), ServeError> {
    let ListenerGroup { wanted, sockets, .. } = group;
    let overlaps = |other: &SocketAddr| overlap(*wanted, *other);
    let is_shared = || groups.iter().any(|other| !other.sockets.is_empty() && overlaps(&other.wanted));
    if !sockets.is_empty() || wanted.port() == 0 || is_shared() {
        return Ok(());
    }
    let begin = Instant::now();
    loop {
        match net::check_address_free(*wanted, options) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if when.tries_again(begin) {
                    continue;
                }
                return Err(match unconfigured.iter().find(|old| overlaps(old)) {
                    Some(&predecessor_address) => {
                        ServeError::Overlap { address: *wanted, predecessor_address }
                    }
                    None => ServeError::Listen(*wanted, error),
                });
            }
            outcome => return outcome.map_err(|error| ServeError::Listen(*wanted, error)),
        }
    }
}

/// Opens or copies listeners until there are as many as shards.
fn fill_group(
    group: ListenerGroup,
    shards: usize,
    options: &ListenOptions,
    when: &ListenTiming<'_>,
) -> io::Result<Vec<OwnedFd>> {
    let ListenerGroup { wanted, mut sockets, .. } = group;
    let open = match when {
        ListenTiming::BindOnly => net::bind_tcp,
        ListenTiming::Now | ListenTiming::RetryWhile(_) => net::listen_tcp,
    };
    if sockets.is_empty() {
        sockets.push(open(wanted, options)?);
    }
    let address = net::local_addr(&sockets[0])?;
    let shares = |socket: &OwnedFd| Ok::<bool, io::Error>(rustix::net::sockopt::socket_reuseport(socket)?);
    let existing = sockets.len();
    for at in 0..shards.saturating_sub(existing) {
        // Fails if another user opened the first: only processes of that user share its port.
        let beside = shares(&sockets[0])?.then(|| open(address, options).ok()).flatten();
        let socket = match beside {
            Some(socket) => socket,
            None => sockets[at % existing].try_clone()?,
        };
        sockets.push(socket);
    }
    Ok(sockets)
}

#[cfg(test)]
mod tests;
