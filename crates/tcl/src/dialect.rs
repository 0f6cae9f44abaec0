//! The two forms of the command: as the core's `socket`, and as `socket2` of IOCPSOCK.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::listener::Listener;
use crate::options::SEND_CAP_DEFAULT;
use crate::stream::Stream;
use crate::tcl::ChannelType;

/// A form of the command; a channel keeps that of its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// The command `socket` of the running Tcl version: same texts, option lists and channel names.
    Core,
    /// The command `socket2` of IOCPSOCK, with its options and channel names.
    Iocpsock,
}

impl Dialect {
    /// A name that no other channel of the process had.
    pub(crate) fn next_channel_name(self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        match self {
            Dialect::Core => format!("sock{number:x}"),
            Dialect::Iocpsock => format!("iocp{number:x}"),
        }
    }

    /// The default of `-sendcap`: that of IOCPSOCK; the core has no such limit.
    pub(crate) fn send_cap(self) -> u16 {
        match self {
            Dialect::Core => u16::MAX,
            Dialect::Iocpsock => SEND_CAP_DEFAULT,
        }
    }

    pub(crate) fn stream_type(self) -> ChannelType {
        static TYPES: [OnceLock<ChannelType>; 2] = [const { OnceLock::new() }; 2];
        *match self {
            Dialect::Core => TYPES[0].get_or_init(|| ChannelType::new::<Stream>(c"tcp")),
            Dialect::Iocpsock => TYPES[1].get_or_init(|| ChannelType::new::<Stream>(c"iocp")),
        }
    }

    pub(crate) fn listener_type(self) -> ChannelType {
        static TYPES: [OnceLock<ChannelType>; 2] = [const { OnceLock::new() }; 2];
        *match self {
            Dialect::Core => TYPES[0].get_or_init(|| ChannelType::new::<Listener>(c"tcp")),
            Dialect::Iocpsock => TYPES[1].get_or_init(|| ChannelType::new::<Listener>(c"iocp")),
        }
    }
}
