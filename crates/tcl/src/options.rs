//! Options of sockets that both forms of the command share: those of IOCPSOCK, and `-nodelay` of Tcl 9.
//!
//! The form that replaces the core's command has them too, but lists only those of the running Tcl version.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use socket2::SockRef;

use crate::dialect::Dialect;
use crate::read_ahead::ReceiveMode;
use crate::tcl::{OptionError, Value, is_tcl_9};

/// Sends of one socket that the system has not transmitted yet, at most, by default.
pub(crate) const SEND_CAP_DEFAULT: u16 = 20;

/// Shortest accept queue that `-backlog` sets without an error, as in IOCPSOCK.
pub(crate) const BACKLOG_RECOMMENDED_MIN: i32 = 20;

/// An option that is readable or settable by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketOption {
    KeepAlive,
    Nagle,
    NoDelay,
    Backlog,
    SendCap,
    ReceiveMode,
}

impl SocketOption {
    /// All options, with their names.
    const ALL: [(SocketOption, &str); 6] = [
        (SocketOption::KeepAlive, "-keepalive"),
        (SocketOption::Nagle, "-nagle"),
        (SocketOption::NoDelay, "-nodelay"),
        (SocketOption::Backlog, "-backlog"),
        (SocketOption::SendCap, "-sendcap"),
        (SocketOption::ReceiveMode, "-recvmode"),
    ];

    /// The option of this name, which may be abbreviated.
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        let found =
            Self::ALL.iter().find(|(_, full)| name.len() > 2 && full.starts_with(&name.to_ascii_lowercase()));
        found.map(|&(option, _)| option)
    }

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(option, _)| *option == self).map_or("", |&(_, name)| name)
    }

    /// The options in the list of all options of a socket.
    pub(crate) fn listed(dialect: Dialect, is_listener: bool) -> &'static [SocketOption] {
        use SocketOption::{Backlog, KeepAlive, Nagle, NoDelay, ReceiveMode, SendCap};
        match dialect {
            Dialect::Core if is_tcl_9() => &[KeepAlive, NoDelay],
            Dialect::Core => &[],
            Dialect::Iocpsock if is_listener => &[KeepAlive, Nagle, Backlog, SendCap, ReceiveMode],
            Dialect::Iocpsock => &[KeepAlive, Nagle, SendCap, ReceiveMode],
        }
    }

    /// The names for the message about an unknown option to be set.
    pub(crate) fn settable_names(dialect: Dialect, is_listener: bool) -> &'static CStr {
        match dialect {
            Dialect::Core if is_tcl_9() => c"keepalive nodelay",
            Dialect::Core => c"",
            Dialect::Iocpsock => Self::readable_names(dialect, is_listener),
        }
    }

    /// The names for the message about an unknown option to be read, as `Tcl_BadChannelOption` expects them.
    pub(crate) fn readable_names(dialect: Dialect, is_listener: bool) -> &'static CStr {
        match dialect {
            Dialect::Core if is_tcl_9() => c"connecting keepalive nodelay peername sockname",
            Dialect::Core => c"connecting peername sockname",
            Dialect::Iocpsock if is_listener => c"keepalive nagle backlog sendcap recvmode sockname",
            Dialect::Iocpsock => c"keepalive nagle sendcap recvmode peername sockname",
        }
    }
}

/// The value of a switch of the socket itself.
pub(crate) fn get_switch(option: SocketOption, descriptor: BorrowedFd<'_>) -> io::Result<bool> {
    let socket = SockRef::from(&descriptor);
    match option {
        SocketOption::KeepAlive => socket.keepalive(),
        SocketOption::NoDelay => socket.tcp_nodelay(),
        _ => socket.tcp_nodelay().map(|no_delay| !no_delay),
    }
}

pub(crate) fn set_switch(option: SocketOption, descriptor: BorrowedFd<'_>, is_on: bool) -> io::Result<()> {
    let socket = SockRef::from(&descriptor);
    match option {
        SocketOption::KeepAlive => socket.set_keepalive(is_on),
        SocketOption::NoDelay => socket.set_tcp_nodelay(is_on),
        _ => socket.set_tcp_nodelay(!is_on),
    }
}

/// Unsent bytes below which there is room for another one of `cap` sends of this size.
pub(crate) fn unsent_mark(cap: u16, send_size: usize) -> u32 {
    let mark = (usize::from(cap).max(1) - 1) * send_size + 1;
    u32::try_from(mark).unwrap_or(u32::MAX)
}

/// Makes TCP report writability only while fewer bytes than this are accepted and not transmitted (`TCP_NOTSENT_LOWAT`,
/// tcp(7)).
pub(crate) fn set_unsent_mark(descriptor: BorrowedFd<'_>, mark: u32) -> io::Result<()> {
    SockRef::from(&descriptor).set_tcp_notsent_lowat(mark)
}

/// Bytes that TCP has accepted and not transmitted (`SIOCOUTQNSD`, tcp(7)).
pub(crate) fn unsent_bytes(descriptor: BorrowedFd<'_>) -> usize {
    const SIOCOUTQNSD: libc::Ioctl = 0x894b;
    let mut count: libc::c_int = 0;
    // SAFETY: the request writes one integer.
    let code = unsafe {
        libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&descriptor.as_fd()), SIOCOUTQNSD, &raw mut count)
    };
    if code == 0 { usize::try_from(count).unwrap_or(0) } else { 0 }
}

/// The length of a listener's accept queue, and its maximum.
pub(crate) fn accept_queue(descriptor: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    tcp_info(descriptor).map(|info| (info.tcpi_unacked, info.tcpi_sacked))
}

/// The state of a TCP socket (`TCP_INFO`, tcp(7)).
pub(crate) fn tcp_info(descriptor: BorrowedFd<'_>) -> io::Result<libc::tcp_info> {
    // SAFETY: all zeros is a valid value of this plain structure.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut size = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the buffer has the given size.
    let code = unsafe {
        libc::getsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&descriptor),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut size,
        )
    };
    if code == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
}

/// A boolean value of an option.
pub(crate) fn parse_switch(value: &str) -> Result<bool, OptionError> {
    let text = Value::text(value);
    text.to_boolean(None)
        .map_err(|_| OptionError::Message(format!("expected boolean value but got \"{value}\"")))
}

/// A value of `-backlog` or `-sendcap`.
pub(crate) fn parse_count(option: SocketOption, value: &str) -> Result<i32, OptionError> {
    match Value::text(value).to_integer(None) {
        Ok(count) if count >= 1 => Ok(count),
        Ok(_) => Err(OptionError::Message("only a positive integer is allowed".into())),
        Err(_) => Err(OptionError::Message(format!(
            "expected integer but got \"{value}\" for option {}",
            option.name()
        ))),
    }
}

/// A value of `-recvmode`.
pub(crate) fn parse_receive_mode(value: &str) -> Result<ReceiveMode, OptionError> {
    let bad_mode = || {
        OptionError::Message(format!(
            "bad value \"{value}\" for option -recvmode: must be zero-byte, flow-controlled, or \
             {{burst-detection cap bufcap}}"
        ))
    };
    let words = Value::text(value).elements(None).map_err(|_| bad_mode())?;
    let texts: Vec<String> = words.iter().map(|word| word.to_text().into_owned()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    match texts[..] {
        ["zero-byte"] => Ok(ReceiveMode::ZeroByte),
        ["flow-controlled"] => Ok(ReceiveMode::FlowControlled),
        ["burst-detection", cap, buffers_max] => {
            let positive = |text: &str| Value::text(text).to_integer(None).ok().filter(|&number| number >= 1);
            let (Some(cap), Some(buffers_max)) = (positive(cap), positive(buffers_max)) else {
                return Err(bad_mode());
            };
            Ok(ReceiveMode::BurstDetection { cap: cap as u32, buffers_max: buffers_max as u32 })
        }
        _ => Err(bad_mode()),
    }
}
