//! Multicast groups of UDP sockets (ip(7), ipv6(7)).

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use socket2::{InterfaceIndexOrAddress, SockRef};

use crate::tcl::{OptionError, Value, c_string};

/// A network interface as a script names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interface {
    /// The one that the system chooses by its routes.
    Any,
    /// That of a local IPv4 address.
    Address(Ipv4Addr),
    Index(u32),
}

impl Interface {
    /// A local IPv4 address, a name such as `eth0`, or an index.
    fn parse(text: &str) -> Option<Self> {
        if let Ok(address) = text.parse() {
            return Some(Interface::Address(address));
        }
        if let Ok(index) = text.parse() {
            return (index > 0).then_some(Interface::Index(index));
        }
        // SAFETY: a string.
        let index = unsafe { libc::if_nametoindex(c_string(text).as_ptr()) };
        (index > 0).then_some(Interface::Index(index))
    }
}

/// A group that a socket is a member of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Membership {
    group: IpAddr,
    interface: Interface,
    /// As the script gave it: the group, and the interface if it was given.
    pub(super) words: Vec<String>,
}

impl Membership {
    /// A value of `-mcastadd` or `-mcastdrop`: `group` or `{group interface}`.
    pub(super) fn parse(option: &str, value: &str) -> Result<Self, OptionError> {
        let bad_value = || {
            OptionError::Message(format!(
                "bad value \"{value}\" for option {option}: must be a multicast address, or a list of it and a local \
                 interface"
            ))
        };
        let words = Value::text(value).elements(None).map_err(|_| bad_value())?;
        let words: Vec<String> = words.iter().map(|word| word.to_text().into_owned()).collect();
        let (group, interface) = match &words[..] {
            [group] => (group, Interface::Any),
            [group, interface] => (group, Interface::parse(interface).ok_or_else(bad_value)?),
            _ => return Err(bad_value()),
        };
        let group: IpAddr = group.parse().map_err(|_| bad_value())?;
        let is_usable =
            group.is_multicast() && !(group.is_ipv6() && matches!(interface, Interface::Address(_)));
        if is_usable { Ok(Membership { group, interface, words }) } else { Err(bad_value()) }
    }

    pub(super) fn is_ipv4(&self) -> bool {
        self.group.is_ipv4()
    }

    /// Whether both name the same group on the same interface.
    pub(super) fn is_same(&self, other: &Membership) -> bool {
        (self.group, self.interface) == (other.group, other.interface)
    }

    pub(super) fn join(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let socket = SockRef::from(&socket);
        match self.group {
            IpAddr::V4(group) => socket.join_multicast_v4_n(&group, &self.interface_v4()),
            IpAddr::V6(group) => socket.join_multicast_v6(&group, self.interface_index()),
        }
    }

    pub(super) fn leave(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let socket = SockRef::from(&socket);
        match self.group {
            IpAddr::V4(group) => socket.leave_multicast_v4_n(&group, &self.interface_v4()),
            IpAddr::V6(group) => socket.leave_multicast_v6(&group, self.interface_index()),
        }
    }

    fn interface_v4(&self) -> InterfaceIndexOrAddress {
        match self.interface {
            Interface::Any => InterfaceIndexOrAddress::Address(Ipv4Addr::UNSPECIFIED),
            Interface::Address(address) => InterfaceIndexOrAddress::Address(address),
            Interface::Index(index) => InterfaceIndexOrAddress::Index(index),
        }
    }

    fn interface_index(&self) -> u32 {
        match self.interface {
            Interface::Index(index) => index,
            Interface::Any | Interface::Address(_) => 0,
        }
    }
}

/// A value of `-mcastif`.
pub(super) fn parse_interface(value: &str) -> Result<Interface, OptionError> {
    let bad_value = || {
        OptionError::Message(format!(
            "bad value \"{value}\" for option -mcastif: must be a local IPv4 address, or an interface's name or index"
        ))
    };
    match value {
        "" => Ok(Interface::Any),
        value => Interface::parse(value).ok_or_else(bad_value),
    }
}

/// Sets the interface of sent multicast datagrams over IPv4 (`IP_MULTICAST_IF`).
pub(super) fn set_interface_v4(socket: BorrowedFd<'_>, interface: Interface) -> io::Result<()> {
    let (address, index) = match interface {
        Interface::Any => (Ipv4Addr::UNSPECIFIED, 0),
        Interface::Address(address) => (address, 0),
        Interface::Index(index) => (Ipv4Addr::UNSPECIFIED, index),
    };
    let request = libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: 0 },
        imr_address: libc::in_addr { s_addr: u32::from(address).to_be() },
        imr_ifindex: index.cast_signed(),
    };
    // SAFETY: a value of the given size.
    let code = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_MULTICAST_IF,
            (&raw const request).cast(),
            size_of_val(&request) as libc::socklen_t,
        )
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The same over IPv6 (`IPV6_MULTICAST_IF`).
pub(super) fn set_interface_v6(socket: BorrowedFd<'_>, interface: Interface) -> io::Result<()> {
    let index = match interface {
        Interface::Any => 0,
        Interface::Index(index) => index,
        Interface::Address(_) => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
    };
    SockRef::from(&socket).set_multicast_if_v6(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_an_address_an_index_or_a_name() {
        assert_eq!(Interface::parse("127.0.0.1"), Some(Interface::Address(Ipv4Addr::LOCALHOST)));
        assert_eq!(Interface::parse("7"), Some(Interface::Index(7)));
        assert!(matches!(Interface::parse("lo"), Some(Interface::Index(_))));
        assert_eq!(Interface::parse("0"), None);
        assert_eq!(Interface::parse("no such interface"), None);
    }
}
