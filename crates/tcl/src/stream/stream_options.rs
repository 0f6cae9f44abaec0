//! The options of a stream socket, of the core and of IOCPSOCK.

use std::net::SocketAddr;

use super::{Stream, StreamState};
use crate::addresses::{LookupError, name_elements};
use crate::dialect::Dialect;
use crate::options::{
    SocketOption, get_switch, parse_count, parse_receive_mode, parse_switch, set_switch, unsent_bytes,
};
use crate::read_ahead::ReceiveMode;
use crate::system_errors::system_error;
use crate::tcl::{Channel, EventSource, Interp, OptionError, OptionList};
use crate::thread_sockets::{ShardSocket, ThreadSockets};

impl Stream {
    /// The pending error of the socket; reading it clears it.
    fn take_error(&self) -> i32 {
        match &mut *self.state.borrow_mut() {
            StreamState::Failed(error) => std::mem::take(error),
            &mut StreamState::Connected(socket) => {
                let error = self
                    .sockets()
                    .with_descriptor(socket, |descriptor| rustix::net::sockopt::socket_error(descriptor));
                match error {
                    Ok(Ok(Err(error))) => error.raw_os_error(),
                    _ => 0,
                }
            }
            _ => 0,
        }
    }

    pub(super) fn socket(&self) -> Result<ShardSocket, i32> {
        match *self.state.borrow() {
            StreamState::Connected(socket) => Ok(socket),
            StreamState::Connecting(socket, _) => Ok(socket),
            _ => Err(libc::ENOTCONN),
        }
    }

    fn address(&self, is_peer: bool) -> Result<SocketAddr, i32> {
        let socket = self.socket()?;
        let sockets = self.sockets();
        let address = if is_peer { sockets.peer_address(socket) } else { sockets.local_address(socket) };
        address.map_err(|error| system_error(&error))
    }

    fn append_address(
        &self,
        interp: Option<Interp>,
        is_peer: bool,
        is_listed: bool,
        into: &mut OptionList,
    ) -> Result<(), OptionError> {
        let (name, prefix) = if is_peer {
            ("-peername", "can't get peername: ")
        } else {
            ("-sockname", "can't get sockname: ")
        };
        let has_no_socket = self.socket().is_err();
        if self.is_connecting() || has_no_socket && !is_peer {
            if is_listed {
                into.element(name);
                into.element("");
            }
            return Ok(());
        }
        let elements = match self.address(is_peer) {
            Ok(address) => name_elements(address, interp),
            // The list of all options leaves out the peer of a socket that has none.
            Err(_) if is_listed && is_peer => return Ok(()),
            Err(error) => return Err(OptionError::System(prefix, error)),
        };
        let fill = |into: &mut OptionList| elements.iter().for_each(|element| into.element(element));
        if is_listed {
            into.element(name);
            into.sublist(fill);
        } else {
            fill(into);
        }
        Ok(())
    }

    pub(super) fn append_option(
        &self,
        interp: Option<Interp>,
        name: &str,
        into: &mut OptionList,
    ) -> Result<(), OptionError> {
        self.continue_connect();
        if is_prefix(name, "-error") {
            append_error(self.dialect, self.take_error(), into);
            return Ok(());
        }
        if is_prefix(name, "-connecting") {
            into.append(if self.is_connecting() { "1" } else { "0" });
            return Ok(());
        }
        if is_prefix(name, "-peername") {
            return self.append_address(interp, true, false, into);
        }
        if is_prefix(name, "-sockname") {
            return self.append_address(interp, false, false, into);
        }
        match SocketOption::by_name(name).filter(|option| *option != SocketOption::Backlog) {
            Some(option) => self.append_value(option, into, false),
            None => Err(self.unknown_option()),
        }
    }

    pub(super) fn append_all_options(
        &self,
        interp: Option<Interp>,
        into: &mut OptionList,
    ) -> Result<(), OptionError> {
        self.continue_connect();
        let addresses_first = self.dialect == Dialect::Core;
        if addresses_first {
            self.append_address(interp, true, true, into)?;
            self.append_address(interp, false, true, into)?;
        }
        // A socket whose connect has failed has no values of IOCPSOCK's options, and its list is no error.
        let has_values = self.has_socket() || self.dialect == Dialect::Core;
        for &option in SocketOption::listed(self.dialect, false).iter().filter(|_| has_values) {
            into.element(option.name());
            self.append_value(option, into, true)?;
        }
        if !addresses_first {
            self.append_address(interp, true, true, into)?;
            self.append_address(interp, false, true, into)?;
        }
        Ok(())
    }

    /// False if the connect has failed.
    fn has_socket(&self) -> bool {
        self.socket().is_ok() || self.is_connecting()
    }

    fn append_value(
        &self,
        option: SocketOption,
        into: &mut OptionList,
        is_listed: bool,
    ) -> Result<(), OptionError> {
        let elements = match option {
            SocketOption::KeepAlive | SocketOption::Nagle | SocketOption::NoDelay => {
                let is_on = match self.early_switch(option) {
                    Some(is_on) => is_on,
                    None if self.dialect == Dialect::Core && !self.has_socket() => false,
                    None => self.with_socket(|descriptor| get_switch(option, descriptor))?,
                };
                vec![i32::from(is_on).to_string()]
            }
            SocketOption::Backlog => Vec::new(),
            SocketOption::SendCap => {
                let unsent = match self.is_connecting() {
                    true => 0,
                    false => self.with_socket(|descriptor| Ok(unsent_bytes(descriptor)))?,
                };
                let in_use = unsent.div_ceil(self.send_size());
                vec![self.send_cap.get().to_string(), in_use.to_string()]
            }
            SocketOption::ReceiveMode => self.receive_mode_elements(),
        };
        append_elements(&elements, into, is_listed);
        Ok(())
    }

    fn receive_mode_elements(&self) -> Vec<String> {
        // `None`: the thread has no sockets, and has lost that of this channel.
        let now = ThreadSockets::current().map(|sockets| sockets.now());
        self.with_read_ahead(|read_ahead| {
            let Some(ahead) = read_ahead else { return vec!["zero-byte".into()] };
            match now.and_then(|now| ahead.burst_state(now)) {
                Some(state) => {
                    let numbers = [state.cap, state.in_use, state.buffers_max, state.pending];
                    let numbers = numbers.iter().map(ToString::to_string);
                    std::iter::once("burst-detection".into()).chain(numbers).collect()
                }
                None => vec![receive_mode_name(ahead.mode()).into()],
            }
        })
    }

    pub(super) fn set_socket_option(&self, name: &str, value: &str) -> Result<(), OptionError> {
        let option = SocketOption::by_name(name).filter(|option| *option != SocketOption::Backlog);
        let Some(option) = option else { return Err(self.unknown_to_set()) };
        match option {
            SocketOption::KeepAlive | SocketOption::Nagle | SocketOption::NoDelay => {
                let is_on = parse_switch(value)?;
                self.continue_connect();
                if self.set_early_switch(option, is_on) {
                    return Ok(());
                }
                self.with_socket(|descriptor| set_switch(option, descriptor, is_on))
            }
            SocketOption::SendCap => {
                let cap = parse_count(option, value)?.min(i32::from(u16::MAX)) as u16;
                self.send_cap.set(cap);
                if self.unsent_mark.get() != 0
                    && let Ok(socket) = self.socket()
                {
                    self.limit_unsent(socket);
                }
                Ok(())
            }
            SocketOption::ReceiveMode => {
                self.set_receive_mode(parse_receive_mode(value)?);
                Ok(())
            }
            SocketOption::Backlog => Err(self.unknown_to_set()),
        }
    }

    /// Bytes of one send: what Tcl passes to the driver at once.
    pub(super) fn send_size(&self) -> usize {
        self.channel.get().map_or(1, Channel::buffer_size).max(1)
    }

    fn continue_connect(&self) {
        if self.is_connecting() {
            self.sockets().turn_until_done();
        }
    }

    fn with_socket<R>(
        &self,
        act: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> std::io::Result<R>,
    ) -> Result<R, OptionError> {
        let failed = |error: &std::io::Error| OptionError::System("", system_error(error));
        let socket = self.socket().map_err(|error| OptionError::System("", error))?;
        let outcome = self.sockets().with_descriptor(socket, act).map_err(|error| failed(&error))?;
        outcome.map_err(|error| failed(&error))
    }

    fn unknown_option(&self) -> OptionError {
        OptionError::Unknown(SocketOption::readable_names(self.dialect, false))
    }

    fn unknown_to_set(&self) -> OptionError {
        OptionError::Unknown(SocketOption::settable_names(self.dialect, false))
    }
}

/// Whether an option is meant by a name, which may be abbreviated.
pub(crate) fn is_prefix(name: &str, option: &str) -> bool {
    name.len() > 1 && option.starts_with(name)
}

/// The name of a receive mode.
pub(crate) fn receive_mode_name(mode: ReceiveMode) -> &'static str {
    match mode {
        ReceiveMode::ZeroByte => "zero-byte",
        ReceiveMode::FlowControlled => "flow-controlled",
        ReceiveMode::BurstDetection { .. } => "burst-detection",
    }
}

/// Appends a value of one or more elements.
pub(crate) fn append_elements(elements: &[String], into: &mut OptionList, is_listed: bool) {
    match elements {
        [single] if is_listed => into.element(single),
        [single] => into.append(single),
        elements if is_listed => into.sublist(|into| elements.iter().for_each(|each| into.element(each))),
        elements => elements.iter().for_each(|each| into.element(each)),
    }
}

/// Appends the value of `-error`: the text, for `socket2` with number and symbol before it.
pub(crate) fn append_error(dialect: Dialect, error: i32, into: &mut OptionList) {
    if error == 0 {
        return;
    }
    // The same numbers, with those of the resolver.
    let described = LookupError(error);
    match dialect {
        Dialect::Core => into.append(&described.text()),
        Dialect::Iocpsock => {
            into.element(&error.to_string());
            into.element(&described.name());
            into.element(&described.text());
        }
    }
}
