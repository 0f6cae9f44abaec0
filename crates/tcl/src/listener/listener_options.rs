//! The options of a listener, of the core and of IOCPSOCK.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use socket2::SockRef;

use super::Listener;
use crate::addresses::name_elements;
use crate::dialect::Dialect;
use crate::options::{
    BACKLOG_RECOMMENDED_MIN, SocketOption, accept_queue, get_switch, parse_count, parse_receive_mode,
    parse_switch, set_switch,
};
use crate::read_ahead::ReceiveMode;
use crate::stream::stream_options::{append_elements, append_error, is_prefix, receive_mode_name};
use crate::system_errors::system_error;
use crate::tcl::{Interp, OptionError, OptionList};
use crate::trace::TraceEvent;

impl Listener {
    fn addresses(&self) -> Result<Vec<SocketAddr>, i32> {
        let mut addresses = Vec::new();
        for &listening in self.listening.borrow().iter() {
            let with = self.sockets().with_listener(listening, &mut |descriptor| {
                addresses
                    .extend(SockRef::from(&descriptor).local_addr().ok().and_then(|local| local.as_socket()));
            });
            with.map_err(|error| system_error(&error))?;
        }
        if addresses.is_empty() { Err(libc::ENOTCONN) } else { Ok(addresses) }
    }

    /// Its addresses, for the trace.
    pub(super) fn listening_text(&self) -> String {
        let addresses = self.addresses().unwrap_or_default();
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        format!("listening at {}", addresses.join(" "))
    }

    fn append_addresses(
        &self,
        interp: Option<Interp>,
        is_listed: bool,
        into: &mut OptionList,
    ) -> Result<(), OptionError> {
        let addresses =
            self.addresses().map_err(|error| OptionError::System("can't get sockname: ", error))?;
        let fill = |into: &mut OptionList| {
            for address in addresses {
                name_elements(address, interp).iter().for_each(|element| into.element(element));
            }
        };
        if is_listed {
            into.element("-sockname");
            into.sublist(fill);
        } else {
            fill(into);
        }
        Ok(())
    }

    fn take_error(&self) -> i32 {
        let Some(&first) = self.listening.borrow().first() else { return self.error.take() };
        let mut error = 0;
        // A listener that cannot be asked has no error to report.
        let _ = self.sockets().with_listener(first, &mut |descriptor| {
            let taken = SockRef::from(&descriptor).take_error().ok().flatten();
            error = taken.and_then(|error| error.raw_os_error()).unwrap_or(0);
        });
        error
    }

    pub(super) fn append_option(
        &self,
        interp: Option<Interp>,
        name: &str,
        into: &mut OptionList,
    ) -> Result<(), OptionError> {
        if is_prefix(name, "-error") {
            append_error(self.dialect, self.take_error(), into);
            return Ok(());
        }
        if is_prefix(name, "-connecting") {
            into.append("0");
            return Ok(());
        }
        if is_prefix(name, "-peername") {
            return Err(OptionError::System("can't get peername: ", libc::ENOTCONN));
        }
        if is_prefix(name, "-sockname") {
            return self.append_addresses(interp, false, into);
        }
        match SocketOption::by_name(name) {
            Some(option) => self.append_value(option, into, false),
            None => Err(self.unknown_option()),
        }
    }

    pub(super) fn append_all_options(
        &self,
        interp: Option<Interp>,
        into: &mut OptionList,
    ) -> Result<(), OptionError> {
        let addresses_first = self.dialect == Dialect::Core;
        if addresses_first {
            self.append_addresses(interp, true, into)?;
        }
        for &option in SocketOption::listed(self.dialect, true) {
            into.element(option.name());
            self.append_value(option, into, true)?;
        }
        if !addresses_first {
            self.append_addresses(interp, true, into)?;
        }
        Ok(())
    }

    fn append_value(
        &self,
        option: SocketOption,
        into: &mut OptionList,
        is_listed: bool,
    ) -> Result<(), OptionError> {
        let elements = match option {
            SocketOption::KeepAlive | SocketOption::Nagle | SocketOption::NoDelay => {
                let mut is_on = false;
                self.with_first_socket(|descriptor| {
                    is_on = get_switch(option, descriptor)?;
                    Ok(())
                })?;
                vec![i32::from(is_on).to_string()]
            }
            SocketOption::Backlog => {
                let (mut queued, mut cap) = (0, 0);
                self.with_sockets(|descriptor| {
                    let (length, max) = accept_queue(descriptor)?;
                    (queued, cap) = (queued + length, cap.max(max));
                    Ok(())
                })?;
                let in_use = queued as usize + self.accepted.borrow().len();
                vec![cap.to_string(), in_use.to_string()]
            }
            SocketOption::SendCap => vec![self.send_cap.get().to_string(), "0".into()],
            SocketOption::ReceiveMode => match self.receive_mode.get() {
                ReceiveMode::BurstDetection { cap, buffers_max } => {
                    let numbers = [cap, 1, buffers_max, 0].map(|number| number.to_string());
                    std::iter::once("burst-detection".into()).chain(numbers).collect()
                }
                mode => vec![receive_mode_name(mode).into()],
            },
        };
        append_elements(&elements, into, is_listed);
        Ok(())
    }

    pub(super) fn set_listener_option(&self, name: &str, value: &str) -> Result<(), OptionError> {
        let Some(option) = SocketOption::by_name(name) else { return Err(self.unknown_to_set()) };
        match option {
            SocketOption::KeepAlive | SocketOption::Nagle | SocketOption::NoDelay => {
                let is_on = parse_switch(value)?;
                self.with_sockets(|descriptor| set_switch(option, descriptor, is_on))
            }
            SocketOption::Backlog => self.set_backlog(parse_count(option, value)?),
            SocketOption::SendCap => {
                let cap = parse_count(option, value)?.min(i32::from(u16::MAX)) as u16;
                self.send_cap.set(cap);
                Ok(())
            }
            SocketOption::ReceiveMode => {
                self.receive_mode.set(parse_receive_mode(value)?);
                Ok(())
            }
        }
    }

    /// Changes the maximum length of the accept queue of a live listener: that to which a raised one returns. A short
    /// one is set, and reported as an error, as in IOCPSOCK.
    fn set_backlog(&self, backlog: i32) -> Result<(), OptionError> {
        let is_set = self.watched.borrow().set_backlog(backlog);
        if !is_set.map_err(|error| OptionError::System("", system_error(&error)))? {
            self.with_sockets(|descriptor| SockRef::from(&descriptor).listen(backlog))?;
        }
        self.backlog.set(backlog);
        self.trace(TraceEvent::Backlog, || format!("{backlog}, by the script"));
        if backlog < BACKLOG_RECOMMENDED_MIN {
            let message =
                format!("only a positive integer not less than {BACKLOG_RECOMMENDED_MIN} is recommended");
            return Err(OptionError::Message(message));
        }
        Ok(())
    }

    fn with_sockets(
        &self,
        mut act: impl FnMut(BorrowedFd<'_>) -> std::io::Result<()>,
    ) -> Result<(), OptionError> {
        let failed = |error: &std::io::Error| OptionError::System("", system_error(error));
        for &listening in self.listening.borrow().iter() {
            let mut outcome = Ok(());
            let found = self.sockets().with_listener(listening, &mut |descriptor| outcome = act(descriptor));
            found.and(outcome).map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    fn with_first_socket(
        &self,
        mut act: impl FnMut(BorrowedFd<'_>) -> std::io::Result<()>,
    ) -> Result<(), OptionError> {
        let mut is_first = true;
        self.with_sockets(|descriptor| if std::mem::take(&mut is_first) { act(descriptor) } else { Ok(()) })
    }

    fn unknown_option(&self) -> OptionError {
        OptionError::Unknown(SocketOption::readable_names(self.dialect, true))
    }

    fn unknown_to_set(&self) -> OptionError {
        OptionError::Unknown(SocketOption::settable_names(self.dialect, true))
    }
}
