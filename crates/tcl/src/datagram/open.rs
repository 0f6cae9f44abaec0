//! Opening UDP sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use socket2::{Domain, Socket, Type};

use crate::addresses::{Family, LookupError, look_up};
use crate::system_errors::system_error;

/// Options of the command.
#[derive(Debug, Default)]
pub(crate) struct DatagramOptions {
    pub(crate) local_host: Option<String>,
    pub(crate) local_port: u16,
    pub(crate) reuse_address: bool,
    /// The host and port to connect to.
    pub(crate) remote: Option<(String, u16)>,
    pub(crate) family: Family,
}

/// Why no socket was opened.
#[derive(Debug)]
pub(crate) enum DatagramOpenError {
    Lookup(LookupError),
    System(i32),
}

/// The addresses that a socket can send to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressScope {
    V4,
    V6,
    /// An IPv6 socket with both; IPv4 addresses are mapped.
    Both,
}

impl AddressScope {
    pub(super) fn has_v4(self) -> bool {
        self != AddressScope::V6
    }

    pub(super) fn has_v6(self) -> bool {
        self != AddressScope::V4
    }

    /// The address in the socket's own family, if it can be reached.
    pub(super) fn to_socket_family(self, address: SocketAddr) -> Option<SocketAddr> {
        match (self, address) {
            (AddressScope::V4, SocketAddr::V4(_))
            | (AddressScope::V6 | AddressScope::Both, SocketAddr::V6(_)) => Some(address),
            (AddressScope::Both, SocketAddr::V4(v4)) => {
                Some(SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()))
            }
            (AddressScope::V4, SocketAddr::V6(_)) | (AddressScope::V6, SocketAddr::V4(_)) => None,
        }
    }
}

/// An open socket.
pub(super) struct BoundSocket {
    pub(super) descriptor: OwnedFd,
    pub(super) scope: AddressScope,
    pub(super) peer: Option<SocketAddr>,
}

/// Addresses to try.
struct OpenAttempt {
    from: SocketAddr,
    to: Option<SocketAddr>,
    scope: AddressScope,
}

impl OpenAttempt {
    fn new(from: SocketAddr, to: Option<SocketAddr>) -> Self {
        let scope = if from.is_ipv4() { AddressScope::V4 } else { AddressScope::V6 };
        OpenAttempt { from, to, scope }
    }
}

/// Opens a socket with the first addresses for which that is possible.
pub(super) fn open(options: &DatagramOptions) -> Result<BoundSocket, DatagramOpenError> {
    let mut last_error = libc::EAFNOSUPPORT;
    for attempt in attempts(options).map_err(DatagramOpenError::Lookup)? {
        match try_open(&attempt, options.reuse_address) {
            Ok(descriptor) => {
                return Ok(BoundSocket { descriptor, scope: attempt.scope, peer: attempt.to });
            }
            Err(error) => last_error = system_error(&error),
        }
    }
    Err(DatagramOpenError::System(last_error))
}

fn attempts(options: &DatagramOptions) -> Result<Vec<OpenAttempt>, LookupError> {
    let (port, family) = (options.local_port, options.family);
    if options.local_host.is_none() && options.remote.is_none() {
        return Ok(wildcard_attempts(port, family));
    }
    let local = look_up(options.local_host.as_deref(), port.into(), family, true)?;
    let Some((host, port)) = &options.remote else {
        return Ok(local.into_iter().map(|from| OpenAttempt::new(from, None)).collect());
    };
    let remote = look_up(Some(host), (*port).into(), family, false)?;
    let pairs = remote.iter().flat_map(|&to| {
        let same_family = local.iter().filter(move |from| from.is_ipv4() == to.is_ipv4());
        same_family.map(move |&from| OpenAttempt::new(from, Some(to)))
    });
    Ok(pairs.collect())
}

/// One socket for both families, or without IPv6 for IPv4.
fn wildcard_attempts(port: u16, family: Family) -> Vec<OpenAttempt> {
    let v4 = OpenAttempt::new(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port), None);
    let v6 = OpenAttempt::new(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port), None);
    match family {
        Family::Any => vec![OpenAttempt { scope: AddressScope::Both, ..v6 }, v4],
        Family::V4 => vec![v4],
        Family::V6 => vec![v6],
    }
}

fn try_open(attempt: &OpenAttempt, reuse_address: bool) -> std::io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(attempt.from), Type::DGRAM, None)?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(reuse_address)?;
    if attempt.from.is_ipv6() {
        socket.set_only_v6(attempt.scope == AddressScope::V6)?;
    }
    let is_chosen_by_connect =
        attempt.to.is_some() && attempt.from.ip().is_unspecified() && attempt.from.port() == 0;
    if !is_chosen_by_connect {
        socket.bind(&attempt.from.into())?;
    }
    if let Some(to) = attempt.to {
        socket.connect(&to.into())?;
    }
    Ok(socket.into())
}

/// An address as scripts see it: a mapped IPv4 address as such.
pub(super) fn to_canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::new(v4.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}
