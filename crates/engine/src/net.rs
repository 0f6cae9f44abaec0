//! Listeners, datagram sockets and outgoing connections.
//!
//! Inheritable options are set on the listener, once. Linux copies `TCP_NODELAY`, the send buffer and the congestion
//! control of a listener to every connection it accepts, so an accepted connection costs no `setsockopt`.
//!
//! Hazard: with [`ListenOptions::reuse_port`], which shards and a hand-over need, two servers of the same user can
//! listen on one port and share its connections: the system does not reject a server started twice by mistake.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use crate::driver::{Destination, sockopt};

/// Default backlog: connections that may wait to be accepted. The system caps it at `net.core.somaxconn`. Full: it
/// drops the handshake, which the client retries. A draining server accepts waiting connections, as far as it has room,
/// before it closes the listener; the system resets one that arrives in between. A hand-over (`--take-over`) keeps the
/// listener open and loses no connection.
pub const DEFAULT_BACKLOG: i32 = 4096;

/// The file in which the system lists the allowed values of [`ListenOptions::congestion`].
const CONGESTION_LIST: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// Options of a TCP listener, which accepted connections inherit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Connections that may wait to be accepted. Default: [`DEFAULT_BACKLOG`].
    pub backlog: i32,
    /// Lets several listeners share the address; the system spreads connections over them. Default: on.
    pub reuse_port: bool,
    /// `TCP_DEFER_ACCEPT`: reports a connection only when its first bytes have arrived, or after about this many
    /// seconds. Only for protocols in which the client sends first. Default: none.
    pub defer_accept: Option<u32>,
    /// Rejects IPv4 on an IPv6 listener. Default: off, so that `[::]` serves both.
    pub only_v6: bool,
    /// Sends small segments at once. Default: on.
    pub nodelay: bool,
    /// Bytes of the kernel's send buffer per connection; the system doubles it. Default: tuned by the system.
    pub send_buffer: Option<usize>,
    /// Name of the congestion control, such as `reno`. Default: the system's.
    pub congestion: Option<String>,
}

impl Default for ListenOptions {
    fn default() -> Self {
        ListenOptions {
            backlog: DEFAULT_BACKLOG,
            reuse_port: true,
            defer_accept: None,
            only_v6: false,
            nodelay: true,
            send_buffer: None,
            congestion: None,
        }
    }
}

/// Listens on a TCP address; port 0 selects a free one, see [`local_addr`].
///
/// # Errors
/// System errors: the address is in use or not local, the congestion control is unknown, the descriptors ran out.
pub fn listen_tcp(address: SocketAddr, options: &ListenOptions) -> io::Result<OwnedFd> {
    let socket = bind_tcp(address, options)?;
    start_listening(&socket, options)?;
    Ok(socket)
}

/// First half of [`listen_tcp`]: binds the address and sets all options. Until [`start_listening`] the system refuses
/// connections, or passes them to other listeners of the address.
///
/// # Errors
/// Those of [`listen_tcp`].
pub fn bind_tcp(address: SocketAddr, options: &ListenOptions) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // Connections of a previous server linger in TIME_WAIT and must not prevent the bind.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(options.reuse_port)?;
    if address.is_ipv6() {
        socket.set_only_v6(options.only_v6)?;
    }
    set_inherited_options(&socket, options)?;
    socket.bind(&address.into())?;
    finish_listener(&socket, options)?;
    Ok(socket.into())
}

/// Second half of [`listen_tcp`], for a socket from [`bind_tcp`].
///
/// # Errors
/// `AddrInUse` if another socket listens on the address by now; else a system error.
pub fn start_listening(socket: &OwnedFd, options: &ListenOptions) -> io::Result<()> {
    SockRef::from(socket).listen(options.backlog)
}

/// Whether the socket is bound and listens.
///
/// # Errors
/// System errors; none is known for an open socket.
pub fn is_listening(socket: &OwnedFd) -> io::Result<bool> {
    SockRef::from(socket).is_listener()
}

/// Length and maximum of a TCP listener's accept queue: connections that wait to be accepted, and the effective backlog
/// (`TCP_INFO` of tcp(7)). `None` if the socket does not listen.
///
/// # Errors
/// The socket is no TCP socket.
#[cfg(target_os = "linux")]
pub fn accept_queue(socket: &impl AsFd) -> io::Result<Option<(u32, u32)>> {
    sockopt::accept_queue(socket)
}

/// Checks that nothing listens on a TCP address, not even a listener with `reuse_port`. It only binds, so no client is
/// accepted and then reset.
///
/// # Errors
/// `AddrInUse` if a listener exists; else a system error.
pub fn check_address_free(address: SocketAddr, options: &ListenOptions) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(options.only_v6)?;
    }
    socket.bind(&address.into())
}

/// Applies the options of [`listen_tcp`] to a listener opened elsewhere, as far as they can change later. All holders
/// of the socket share its options.
///
/// # Errors
/// `InvalidInput` if it is no listening TCP socket; else a system error.
pub fn adopt_listener(listener: &OwnedFd, options: &ListenOptions) -> io::Result<SocketAddr> {
    let socket = SockRef::from(listener);
    let address = local_addr(listener)?;
    if socket.r#type()? != Type::STREAM || !socket.is_listener()? {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    set_inherited_options(&socket, options)?;
    finish_listener(&socket, options)?;
    Ok(address)
}

fn set_inherited_options(socket: &Socket, options: &ListenOptions) -> io::Result<()> {
    socket.set_tcp_nodelay(options.nodelay)?;
    if let Some(size) = options.send_buffer {
        socket.set_send_buffer_size(size)?;
    }
    if let Some(name) = &options.congestion {
        // The system's own message names a missing file.
        socket.set_tcp_congestion(name.as_bytes()).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("the system refuses the congestion control `{name}` ({error}); {CONGESTION_LIST} lists those that it allows"),
            )
        })?;
    }
    Ok(())
}

fn finish_listener(socket: &Socket, options: &ListenOptions) -> io::Result<()> {
    if let Some(seconds) = options.defer_accept {
        sockopt::set_defer_accept(socket, seconds)?;
    }
    socket.set_nonblocking(true)
}

/// Listens on a Unix stream socket. A socket file without a listener, as after a crash, is replaced; any other file is
/// not touched.
///
/// # Errors
/// `AddrInUse` if a listener exists or the path is no socket; else a system error.
pub fn listen_unix(path: &Path) -> io::Result<OwnedFd> {
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    match socket.bind(&address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale_socket(&address) => {
            std::fs::remove_file(path)?;
            socket.bind(&address)?;
        }
        outcome => outcome?,
    }
    socket.listen(DEFAULT_BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Binds a Unix datagram socket with mode 0666, like `/dev/log`: every local user may send. A socket file that no
/// process has open is replaced; with `replace` also one in use, whose queued datagrams stay with its reader. Any other
/// file is not touched.
///
/// # Errors
/// `AddrInUse` if the socket is in use or the path is no socket; else a system error.
pub fn bind_unix_datagram(path: &Path, replace: bool) -> io::Result<OwnedFd> {
    use std::os::unix::fs::PermissionsExt;
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
    match socket.bind(&address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_replaceable(path, &address, replace) => {
            std::fs::remove_file(path)?;
            socket.bind(&address)?;
        }
        outcome => outcome?,
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Checks that a Unix datagram socket may use this path: it is a socket or does not exist.
///
/// # Errors
/// `AddrInUse` if it is another kind of file.
pub fn check_unix_datagram_path(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn is_replaceable(path: &Path, address: &SockAddr, replace: bool) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    let refused = || Socket::new(Domain::UNIX, Type::DGRAM, None)?.connect(address);
    is_socket && (replace || refused().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused))
}

/// Whether a socket is a datagram socket.
///
/// # Errors
/// System errors; none is known for an open socket.
pub fn is_datagram_socket(socket: &OwnedFd) -> io::Result<bool> {
    Ok(SockRef::from(socket).r#type()? == Type::DGRAM)
}

/// Whether a Unix address is a socket without a listener. The type is checked because a plain file refuses connections
/// as well.
fn is_stale_socket(address: &SockAddr) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = address
        .as_pathname()
        .and_then(|path| std::fs::symlink_metadata(path).ok())
        .is_some_and(|metadata| metadata.file_type().is_socket());
    let refused = || {
        let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        probe.set_nonblocking(true)?;
        probe.connect(address)
    };
    is_socket && refused().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Options of a UDP socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramOptions {
    /// Lets several sockets of one user share the address. The system sends all datagrams of a flow (source and
    /// destination address and port) to the same socket, as long as no socket is added or closed. Default: off.
    pub reuse_port: bool,
    /// Rejects IPv4 on an IPv6 socket. Default: off, so that `[::]` serves both.
    pub only_v6: bool,
}

/// Binds a UDP socket with default options; port 0 selects a free one. `[::]` serves IPv4 as well.
///
/// # Errors
/// System errors, mostly that the address is in use or not local.
pub fn bind_udp(address: SocketAddr) -> io::Result<OwnedFd> {
    bind_udp_with(address, &DatagramOptions::default())
}

/// Binds a UDP socket; port 0 selects a free one.
///
/// # Errors
/// Those of [`bind_udp`].
pub fn bind_udp_with(address: SocketAddr, options: &DatagramOptions) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(options.only_v6)?;
    }
    socket.set_reuse_port(options.reuse_port)?;
    if address.ip().is_unspecified() {
        // Before any datagram arrives: the system records the address when it queues a datagram.
        sockopt::report_local_addresses(&socket, address)?;
    }
    socket.bind(&address.into())?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Lets further sockets share the address of a UDP socket, as [`DatagramOptions::reuse_port`] does. A socket that was
/// bound without sharing and shares afterwards proves that no other process had the address.
///
/// # Errors
/// System errors; none is known for an open socket.
pub fn share_datagram_address(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_reuse_port(true)
}

/// Requests a receive buffer of `size` bytes for a socket. Without `CAP_NET_ADMIN` the system caps it at
/// `net.core.rmem_max`. Returns the effective size, as [`receive_buffer`].
///
/// # Errors
/// System errors; none is known for an open socket.
pub fn set_receive_buffer(socket: &impl AsFd, size: usize) -> io::Result<usize> {
    if sockopt::force_receive_buffer(socket, size).is_err() {
        SockRef::from(socket).set_recv_buffer_size(size)?;
    }
    receive_buffer(socket)
}

/// Bytes of payload that a socket's receive buffer is dimensioned for: half of the system's figure, which includes its
/// bookkeeping. (A datagram uses at least some 400 of them.)
///
/// # Errors
/// System errors; none is known for an open socket.
pub fn receive_buffer(socket: &impl AsFd) -> io::Result<usize> {
    Ok(SockRef::from(socket).recv_buffer_size()? / 2)
}

/// The address a socket is bound to.
///
/// # Errors
/// `InvalidInput` if it is not an internet socket; else a system error.
pub fn local_addr(socket: &impl AsFd) -> io::Result<SocketAddr> {
    let address = SockRef::from(socket).local_addr()?;
    address.as_socket().ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// The address of the peer of a connected socket.
///
/// # Errors
/// `InvalidInput` if it is not an internet socket; else a system error.
pub fn peer_addr(socket: &impl AsFd) -> io::Result<SocketAddr> {
    let address = SockRef::from(socket).peer_addr()?;
    address.as_socket().ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// The peer address of a connected internet socket; an IPv4-mapped IPv6 address becomes an IPv4 address.
pub(crate) fn peer_ip(socket: &impl AsFd) -> Option<IpAddr> {
    let address = SockRef::from(socket).peer_addr().ok()?.as_socket()?;
    Some(address.ip().to_canonical())
}

/// A non-blocking stream socket for `to`, bound to the requested source address, and the address to connect to.
///
/// # Errors
/// The descriptors ran out, the source address is not local, or the path is too long for an address.
pub fn outgoing_socket(to: &Destination) -> io::Result<(OwnedFd, SockAddr)> {
    let (socket, address) = match to {
        Destination::Tcp { to, from } => {
            let socket = Socket::new(Domain::for_address(*to), Type::STREAM, None)?;
            socket.set_tcp_nodelay(true)?;
            if let Some(from) = from {
                // A fixed source port may belong to earlier connections that are waiting for their end.
                socket.set_reuse_address(from.port() != 0)?;
                socket.bind(&SockAddr::from(*from))?;
            }
            (socket, SockAddr::from(*to))
        }
        Destination::Unix(path) => (Socket::new(Domain::UNIX, Type::STREAM, None)?, SockAddr::unix(path)?),
    };
    socket.set_nonblocking(true)?;
    Ok((socket.into(), address))
}

/// Makes the socket of a detached connection blocking, for a thread that serves it synchronously. A shard may adopt a
/// blocking socket.
///
/// # Errors
/// System errors; none is known for an open socket.
pub fn set_blocking(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_nonblocking(false)
}

/// Raises the soft limit of open descriptors to the hard limit, if the system permits it. Returns both afterwards;
/// `u64::MAX` means unlimited.
pub fn raise_descriptor_limit() -> (u64, u64) {
    let before = getrlimit(Resource::Nofile);
    // After a failure (in a sandbox, for example) the second read returns the old limit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum });
    let after = getrlimit(Resource::Nofile);
    (after.current.unwrap_or(u64::MAX), after.maximum.unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::net::UdpSocket;
    use std::os::unix::net::{UnixListener, UnixStream};

    fn any_v4() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    /// Row 1.17: a socket that is not read queues as much as its receive buffer holds.
    #[test]
    fn a_receive_buffer_bounds_a_flood() {
        let queued_with = |size| {
            let socket = bind_udp(any_v4()).unwrap();
            let granted = set_receive_buffer(&socket, size).unwrap();
            assert_eq!(granted, size, "both sizes are below any rmem_max");
            let (client, to) = (UdpSocket::bind(any_v4()).unwrap(), local_addr(&socket).unwrap());
            const FLOOD: usize = 1000;
            for _ in 0..FLOOD {
                client.send_to(&[b'f'; 1000], to).unwrap();
            }
            let (socket, mut into) = (UdpSocket::from(socket), [0; 1000]);
            let queued = std::iter::from_fn(|| socket.recv(&mut into).ok()).count();
            let dropped = sockopt::dropped_by_socket(&socket).expect("the system counts drops") as usize;
            assert_eq!(queued + dropped, FLOOD, "no drop is silent");
            queued
        };
        let (small, large) = (queued_with(8 * 1024), queued_with(96 * 1024));
        assert!(small * 4 < large, "{small} and {large} datagrams were queued");
    }

    /// Row 1.17: the effective size of a receive buffer is reported, capped or not.
    #[test]
    fn the_effective_receive_buffer_is_reported() {
        const WANTED: usize = 64 * 1024 * 1024;
        let socket = bind_udp(any_v4()).unwrap();
        let before = receive_buffer(&socket).unwrap();
        let effective = set_receive_buffer(&socket, WANTED).unwrap();
        assert_eq!(effective, receive_buffer(&socket).unwrap());
        assert!(effective <= WANTED && effective >= before.min(WANTED), "{before} {effective}");
    }

    /// Row 1.23: sockets that share an address each get whole flows, over IPv4, IPv6 and a dual-stack address.
    #[test]
    fn sockets_share_an_address_by_flow() {
        for (bound, host) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")] {
            let options = DatagramOptions { reuse_port: true, ..DatagramOptions::default() };
            let first = bind_udp(bound.parse().unwrap()).unwrap();
            share_datagram_address(&first).unwrap();
            let address = local_addr(&first).unwrap();
            let second = bind_udp_with(address, &options).unwrap();
            assert!(bind_udp(address).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse));
            let host: IpAddr = host.parse().unwrap();
            let clients: Vec<_> = (0..64).map(|_| UdpSocket::bind((host, 0)).unwrap()).collect();
            for _ in 0..3 {
                for client in &clients {
                    client.send_to(b"!", (host, address.port())).unwrap();
                }
            }
            let flows = [first, second].map(|socket| {
                let (socket, mut into) = (UdpSocket::from(socket), [0; 8]);
                let mut ports: Vec<u16> =
                    std::iter::from_fn(|| Some(socket.recv_from(&mut into).ok()?.1.port())).collect();
                ports.sort_unstable();
                ports.chunk_by(|a, b| a == b).for_each(|flow| assert_eq!(flow.len(), 3, "{bound}"));
                ports.len() / 3
            });
            assert_eq!(flows.iter().sum::<usize>(), clients.len(), "{bound}");
            assert!(flows.iter().all(|count| *count > 0), "{bound}: {flows:?}");
        }
    }

    /// Row 4.1: each shard has a listener of its own on the same port.
    #[test]
    fn several_listeners_share_one_port() {
        let first = listen_tcp(any_v4(), &ListenOptions::default()).unwrap();
        let address = local_addr(&first).unwrap();
        let free = || check_address_free(address, &ListenOptions::default()).map_err(|error| error.kind());
        assert_eq!(free(), Err(io::ErrorKind::AddrInUse));
        let second = listen_tcp(address, &ListenOptions::default()).unwrap();
        assert_eq!(local_addr(&second).unwrap(), address);
    }

    /// Row 4.37: a bound socket that does not listen gets no connection, with or without another listener on the port.
    #[test]
    fn a_bound_socket_gets_connections_only_once_it_listens() {
        let options = ListenOptions { defer_accept: None, ..ListenOptions::default() };
        let bound = bind_tcp(any_v4(), &options).unwrap();
        let address = local_addr(&bound).unwrap();
        let connect = || std::net::TcpStream::connect(address);
        assert_eq!(connect().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let other = listen_tcp(address, &options).unwrap();
        let early: Vec<_> = (0..30).map(|_| connect().unwrap()).collect();
        let accepted = |socket: &OwnedFd| std::iter::from_fn(|| rustix::net::accept(socket).ok()).count();
        assert_eq!((accepted(&other), is_listening(&bound).unwrap()), (early.len(), false));
        start_listening(&bound, &options).unwrap();
        drop(other);
        let late: Vec<_> = (0..30).map(|_| connect().unwrap()).collect();
        assert_eq!((accepted(&bound), is_listening(&bound).unwrap()), (late.len(), true));
    }

    /// Row 4.37: of two sockets bound to one port without sharing only one may listen.
    #[test]
    fn a_late_listen_on_an_exclusive_port_fails() {
        let alone = ListenOptions { reuse_port: false, ..ListenOptions::default() };
        let first = bind_tcp(any_v4(), &alone).unwrap();
        let second = bind_tcp(local_addr(&first).unwrap(), &alone).unwrap();
        start_listening(&second, &alone).unwrap();
        assert_eq!(start_listening(&first, &alone).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn an_exclusive_port_is_rejected_for_others() {
        let alone = ListenOptions { reuse_port: false, ..ListenOptions::default() };
        let first = listen_tcp(any_v4(), &alone).unwrap();
        let error = listen_tcp(local_addr(&first).unwrap(), &alone).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn accepted_connections_inherit_the_options_of_their_listener() {
        let options = ListenOptions {
            send_buffer: Some(16 * 1024),
            congestion: Some("reno".into()),
            ..ListenOptions::default()
        };
        let listener = listen_tcp(any_v4(), &options).unwrap();
        let _client = std::net::TcpStream::connect(local_addr(&listener).unwrap()).unwrap();
        let accepted = rustix::net::accept(&listener).unwrap();
        let accepted = SockRef::from(&accepted);
        assert!(accepted.tcp_nodelay().unwrap());
        assert_eq!(accepted.send_buffer_size().unwrap(), 2 * 16 * 1024);
        let congestion = accepted.tcp_congestion().unwrap();
        assert_eq!(congestion.split(|byte| *byte == 0).next(), Some(&b"reno"[..]));
    }

    /// Row 4.37: an adopted listener behaves like one opened here; nothing else is adopted.
    #[test]
    fn a_foreign_listener_is_adopted_with_our_options_and_nothing_else_is() {
        let foreign = std::net::TcpListener::bind(any_v4()).unwrap();
        let address = foreign.local_addr().unwrap();
        let foreign = OwnedFd::from(foreign);
        let options = ListenOptions { defer_accept: Some(30), ..ListenOptions::default() };
        assert_eq!(adopt_listener(&foreign, &options).unwrap(), address);
        let _silent = std::net::TcpStream::connect(address).unwrap();
        assert_eq!(rustix::net::accept(&foreign).unwrap_err(), Errno::AGAIN);
        let unconnected = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let datagrams = std::net::UdpSocket::bind(any_v4()).unwrap();
        let (unix, _other) = UnixStream::pair().unwrap();
        for wrong in [OwnedFd::from(unconnected), datagrams.into(), unix.into()] {
            assert_eq!(adopt_listener(&wrong, &options).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn a_deferring_listener_reports_a_connection_only_with_its_first_bytes() {
        use std::io::Write;
        let options = ListenOptions { defer_accept: Some(30), ..ListenOptions::default() };
        let listener = bind_tcp(any_v4(), &options).unwrap();
        start_listening(&listener, &options).unwrap();
        let mut client = std::net::TcpStream::connect(local_addr(&listener).unwrap()).unwrap();
        assert_eq!(rustix::net::accept(&listener).unwrap_err(), Errno::AGAIN);
        client.write_all(b"GET").unwrap();
        let accepted = rustix::net::accept(&listener).unwrap();
        let mut start = [0; 8];
        let (received, _) =
            rustix::net::recv(&accepted, &mut start, rustix::net::RecvFlags::DONTWAIT).unwrap();
        assert_eq!(&start[..received], b"GET");
    }

    #[test]
    fn a_stale_unix_socket_is_replaced_and_one_in_use_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        let listener = listen_unix(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        assert_eq!(listen_unix(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        assert_eq!(listen_unix(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_dual_stack_listener_serves_both_families() {
        let options = ListenOptions::default();
        let listener = listen_tcp(SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, 0)), &options).unwrap();
        let port = local_addr(&listener).unwrap().port();
        for host in ["127.0.0.1", "::1"] {
            let client = std::net::TcpStream::connect((host, port)).unwrap();
            drop(client);
            rustix::net::accept(&listener).unwrap();
        }
    }

    #[test]
    fn the_descriptor_limit_ends_at_its_maximum() {
        let (soft, hard) = raise_descriptor_limit();
        assert_eq!(soft, hard);
        assert_eq!(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), soft);
    }
}
