//! Reasons for which a datagram of a service is not sent, counted in the metrics.

use std::io;

use rustix::io::Errno;

/// The reason for which a datagram was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DatagramDropReason {
    /// The socket's send buffer, or a queue of the network interface, was full.
    BufferFull,
    /// The datagram was longer than the path to its destination permits.
    TooLong,
    /// There is no route to the destination, or its host does not respond.
    Unreachable,
    /// A firewall rule, or the missing permission to broadcast, forbids the destination.
    Forbidden,
    /// The socket was closed (also mail for one of its peers).
    SocketClosed,
    /// Another operating system error.
    SystemError,
}

impl DatagramDropReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [DatagramDropReason; 6] = [
        DatagramDropReason::BufferFull,
        DatagramDropReason::TooLong,
        DatagramDropReason::Unreachable,
        DatagramDropReason::Forbidden,
        DatagramDropReason::SocketClosed,
        DatagramDropReason::SystemError,
    ];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            DatagramDropReason::BufferFull => "buffer_full",
            DatagramDropReason::TooLong => "too_long",
            DatagramDropReason::Unreachable => "unreachable",
            DatagramDropReason::Forbidden => "forbidden",
            DatagramDropReason::SocketClosed => "socket_closed",
            DatagramDropReason::SystemError => "system_error",
        }
    }

    /// The reason for a send that failed with this error; `None`: it would have blocked.
    pub(crate) fn from_send_error(error: Option<&io::Error>) -> DatagramDropReason {
        let Some(error) = error else { return DatagramDropReason::BufferFull };
        match Errno::from_io_error(error) {
            Some(Errno::NOBUFS) => DatagramDropReason::BufferFull,
            Some(Errno::MSGSIZE) => DatagramDropReason::TooLong,
            Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::NETDOWN | Errno::HOSTDOWN) => {
                DatagramDropReason::Unreachable
            }
            Some(Errno::PERM | Errno::ACCESS) => DatagramDropReason::Forbidden,
            Some(Errno::NOTCONN) => DatagramDropReason::SocketClosed,
            _ if error.kind() == io::ErrorKind::NotConnected => DatagramDropReason::SocketClosed,
            _ => DatagramDropReason::SystemError,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_positions() {
        for (at, reason) in DatagramDropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at, "{reason:?}");
        }
    }

    #[test]
    fn errors_of_sends_have_reasons() {
        let cases = [
            (Errno::NOBUFS, DatagramDropReason::BufferFull),
            (Errno::MSGSIZE, DatagramDropReason::TooLong),
            (Errno::NETUNREACH, DatagramDropReason::Unreachable),
            (Errno::PERM, DatagramDropReason::Forbidden),
            (Errno::NOTCONN, DatagramDropReason::SocketClosed),
            (Errno::INVAL, DatagramDropReason::SystemError),
        ];
        for (errno, reason) in cases {
            assert_eq!(DatagramDropReason::from_send_error(Some(&errno.into())), reason, "{errno}");
        }
        assert_eq!(DatagramDropReason::from_send_error(None), DatagramDropReason::BufferFull);
        let not_connected = io::ErrorKind::NotConnected.into();
        let reason = DatagramDropReason::from_send_error(Some(&not_connected));
        assert_eq!(reason, DatagramDropReason::SocketClosed);
    }
}
