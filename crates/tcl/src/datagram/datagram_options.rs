//! The options of a UDP socket.

use std::ffi::CStr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use socket2::{SockAddr, SockRef};

use super::multicast::{Membership, parse_interface, set_interface_v4, set_interface_v6};
use super::open::to_canonical;
use super::{DatagramSocket, Remote};
use crate::addresses::{Family, host_number, look_up, name_elements};
use crate::datagram_command::udp_port;
use crate::dialect::Dialect;
use crate::options::parse_switch;
use crate::stream::stream_options::{append_elements, append_error};
use crate::system_errors::system_error;
use crate::tcl::{Interp, OptionError, OptionList, Value};
use crate::thread_sockets::ThreadSockets;

/// The options for the message about an unknown option to be read.
const READABLE_NAMES: &CStr = c"broadcast error mcastgroups mcastloop myport peer remote sockname ttl";

/// The options for the message about an unknown option to be set.
const SETTABLE_NAMES: &CStr = c"broadcast mcastadd mcastdrop mcastif mcastloop remote ttl";

/// The options in the list of all options.
const LISTED: [&str; 8] =
    ["-remote", "-peer", "-myport", "-broadcast", "-mcastgroups", "-mcastloop", "-ttl", "-sockname"];

/// An outcome whose error is that of a system call.
fn system<R>(outcome: io::Result<R>) -> Result<R, OptionError> {
    outcome.map_err(|error| OptionError::System("", system_error(&error)))
}

fn address_elements(address: Option<SocketAddr>) -> Vec<String> {
    match address.map(to_canonical) {
        Some(address) => vec![host_number(address), address.port().to_string()],
        None => Vec::new(),
    }
}

impl DatagramSocket {
    fn with_socket<R>(&self, act: impl FnOnce(BorrowedFd<'_>) -> io::Result<R>) -> Result<R, OptionError> {
        let socket = self.socket().map_err(|error| OptionError::System("", error))?;
        system(system(ThreadSockets::of_channel().with_descriptor(socket, act))?)
    }

    fn local_address(&self) -> Result<SocketAddr, OptionError> {
        let socket = self.socket().map_err(|error| OptionError::System("can't get sockname: ", error))?;
        system(ThreadSockets::of_channel().local_address(socket))
    }

    /// Its addresses, for the trace.
    pub(super) fn address_text(&self) -> String {
        let local = self.local_address().map_or_else(|_| "-".into(), |local| to_canonical(local).to_string());
        match self.remote.get() {
            Some(remote) => format!("at {local}, connected to {}", to_canonical(remote.address())),
            None => format!("at {local}"),
        }
    }

    pub(super) fn append_option(
        &self,
        interp: Option<Interp>,
        name: &str,
        into: &mut OptionList,
    ) -> Result<(), OptionError> {
        if name == "-error" {
            append_error(Dialect::Iocpsock, self.take_error(), into);
            return Ok(());
        }
        let elements = self.option_elements(interp, name)?;
        match &elements[..] {
            // A group is a list.
            [_] if name == "-mcastgroups" => elements.iter().for_each(|element| into.element(element)),
            _ => append_elements(&elements, into, false),
        }
        Ok(())
    }

    pub(super) fn append_all_options(
        &self,
        interp: Option<Interp>,
        into: &mut OptionList,
    ) -> Result<(), OptionError> {
        for name in LISTED {
            into.element(name);
            let elements = self.option_elements(interp, name)?;
            match &elements[..] {
                [single] if name != "-mcastgroups" => into.element(single),
                elements => into.sublist(|into| elements.iter().for_each(|element| into.element(element))),
            }
        }
        Ok(())
    }

    /// The elements of an option's value.
    fn option_elements(&self, interp: Option<Interp>, name: &str) -> Result<Vec<String>, OptionError> {
        let switch = |is_on: bool| vec![i32::from(is_on).to_string()];
        Ok(match name {
            "-remote" => address_elements(self.remote.get().map(Remote::address)),
            "-peer" => address_elements(self.sender.get()),
            "-myport" => vec![self.local_address()?.port().to_string()],
            "-sockname" => name_elements(to_canonical(self.local_address()?), interp).into(),
            "-broadcast" => switch(self.with_socket(|socket| SockRef::from(&socket).broadcast())?),
            "-mcastloop" => switch(self.with_socket(|socket| self.multicast_loop(&SockRef::from(&socket)))?),
            "-ttl" => vec![self.with_socket(|socket| self.ttl(&SockRef::from(&socket)))?.to_string()],
            "-mcastgroups" => self.memberships.borrow().iter().map(membership_text).collect(),
            _ => return Err(OptionError::Unknown(READABLE_NAMES)),
        })
    }

    pub(super) fn set_datagram_option(&self, name: &str, value: &str) -> Result<(), OptionError> {
        match name {
            "-remote" => self.set_remote(value),
            "-broadcast" => {
                let is_on = parse_switch(value)?;
                self.with_socket(|socket| SockRef::from(&socket).set_broadcast(is_on))
            }
            "-mcastadd" => self.join(&Membership::parse(name, value)?),
            "-mcastdrop" => self.drop_membership(&Membership::parse(name, value)?),
            "-mcastif" => self.set_multicast_interface(value),
            "-mcastloop" => {
                let is_on = parse_switch(value)?;
                self.with_socket(|socket| self.set_multicast_loop(&SockRef::from(&socket), is_on))
            }
            "-ttl" => {
                let ttl = parse_ttl(value)?;
                self.with_socket(|socket| self.set_ttl(&SockRef::from(&socket), ttl))
            }
            _ => Err(OptionError::Unknown(SETTABLE_NAMES)),
        }
    }

    // ---- The remote address ----

    /// Sets the destination; a connected socket is connected to it.
    fn set_remote(&self, value: &str) -> Result<(), OptionError> {
        let is_connected = matches!(self.remote.get(), Some(Remote::Connected(_)));
        let Some(address) = self.parse_remote(value)? else {
            if is_connected {
                self.with_socket(disconnect)?;
            }
            self.remote.set(None);
            return Ok(());
        };
        if is_connected {
            self.with_socket(|socket| SockRef::from(&socket).connect(&SockAddr::from(address)))?;
            self.remote.set(Some(Remote::Connected(address)));
        } else {
            self.remote.set(Some(Remote::Destination(address)));
        }
        Ok(())
    }

    /// An address in the socket's family; `None` for an empty value.
    fn parse_remote(&self, value: &str) -> Result<Option<SocketAddr>, OptionError> {
        let bad_value = || {
            OptionError::Message(format!(
                "bad value \"{value}\" for option -remote: must be {{host port}} or empty"
            ))
        };
        let words = Value::text(value).elements(None).map_err(|_| bad_value())?;
        let (host, port) = match &words[..] {
            [] => return Ok(None),
            [host, port] => (host.to_text(), udp_port(&port.to_text(), 1).map_err(OptionError::Message)?),
            _ => return Err(bad_value()),
        };
        let cannot_set = |text: &str| OptionError::Message(format!("can't set remote: {text}"));
        let family = match (self.scope.has_v4(), self.scope.has_v6()) {
            (true, false) => Family::V4,
            (false, true) => Family::V6,
            _ => Family::Any,
        };
        let found = look_up(Some(&host), port.into(), family, false);
        let found = found.map_err(|error| cannot_set(&error.text()))?;
        let usable = found.into_iter().find_map(|address| self.scope.to_socket_family(address));
        usable.map(Some).ok_or(OptionError::System("can't set remote: ", libc::EAFNOSUPPORT))
    }

    // ---- Multicast and the time to live ----

    fn join(&self, membership: &Membership) -> Result<(), OptionError> {
        self.check_family(membership)?;
        self.with_socket(|socket| membership.join(socket))?;
        self.memberships.borrow_mut().push(membership.clone());
        Ok(())
    }

    fn drop_membership(&self, membership: &Membership) -> Result<(), OptionError> {
        self.check_family(membership)?;
        self.with_socket(|socket| membership.leave(socket))?;
        self.memberships.borrow_mut().retain(|other| !other.is_same(membership));
        Ok(())
    }

    fn check_family(&self, membership: &Membership) -> Result<(), OptionError> {
        let has_family = if membership.is_ipv4() { self.scope.has_v4() } else { self.scope.has_v6() };
        if has_family { Ok(()) } else { Err(OptionError::System("", libc::EAFNOSUPPORT)) }
    }

    fn set_multicast_interface(&self, value: &str) -> Result<(), OptionError> {
        let interface = parse_interface(value)?;
        self.with_socket(|socket| {
            if self.scope.has_v4() {
                set_interface_v4(socket, interface)?;
            }
            let is_of_v4_only = matches!(interface, super::multicast::Interface::Address(_));
            if self.scope.has_v6() && !(is_of_v4_only && self.scope.has_v4()) {
                set_interface_v6(socket, interface)?;
            }
            Ok(())
        })
    }

    fn multicast_loop(&self, socket: &SockRef<'_>) -> io::Result<bool> {
        if self.scope.has_v6() { socket.multicast_loop_v6() } else { socket.multicast_loop_v4() }
    }

    fn set_multicast_loop(&self, socket: &SockRef<'_>, is_on: bool) -> io::Result<()> {
        if self.scope.has_v4() {
            socket.set_multicast_loop_v4(is_on)?;
        }
        if self.scope.has_v6() {
            socket.set_multicast_loop_v6(is_on)?;
        }
        Ok(())
    }

    fn ttl(&self, socket: &SockRef<'_>) -> io::Result<u32> {
        if self.scope.has_v6() { socket.unicast_hops_v6() } else { socket.ttl_v4() }
    }

    fn set_ttl(&self, socket: &SockRef<'_>, ttl: u32) -> io::Result<()> {
        if self.scope.has_v4() {
            socket.set_ttl_v4(ttl)?;
            socket.set_multicast_ttl_v4(ttl)?;
        }
        if self.scope.has_v6() {
            socket.set_unicast_hops_v6(ttl)?;
            socket.set_multicast_hops_v6(ttl)?;
        }
        Ok(())
    }
}

/// The group, or a list of the group and its interface.
fn membership_text(membership: &Membership) -> String {
    Value::list(membership.words.iter().map(|word| Value::text(word))).to_text().into_owned()
}

/// A value of `-ttl`.
fn parse_ttl(value: &str) -> Result<u32, OptionError> {
    let number = Value::text(value).to_integer(None).ok().filter(|number| (1..=255).contains(number));
    let number = number.and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| {
        OptionError::Message(format!(
            "bad value \"{value}\" for option -ttl: must be an integer from 1 to 255"
        ))
    })
}

/// Makes a connected socket receive from all addresses again, at the same port (connect(2) with `AF_UNSPEC`).
fn disconnect(socket: BorrowedFd<'_>) -> io::Result<()> {
    let socket_ref = SockRef::from(&socket);
    let local = || Ok::<_, io::Error>(socket_ref.local_addr()?.as_socket());
    let before = local()?;
    rustix::net::connect_unspec(socket)?;
    // The system releases a port that it chose itself.
    if let (Some(before), Some(mut after)) = (before, local()?)
        && after.port() == 0
    {
        after.set_port(before.port());
        socket_ref.bind(&after.into())?;
    }
    Ok(())
}
