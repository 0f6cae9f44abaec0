//! Syslog: datagrams, connections, and what becomes of them when the hub is busy.
//!
//! Nothing can be confirmed to a sender of syslog. So whatever does not get through is counted, and told in the stream that
//! it would have been in.

mod datagram_backlog;
pub(crate) mod limits;
mod session;
mod shard;

pub(crate) use session::SyslogSession;
pub(crate) use shard::{SyslogContext, SyslogRules, SyslogShard};

/// How syslog comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyslogTransport {
    /// On connections.
    Tcp,
    /// In datagrams.
    Udp,
    /// In datagrams on a Unix socket.
    Unix,
}
