//! Syslog: datagrams, connections, and their handling when the hub is busy.
//!
//! Syslog has no acknowledgements, so every lost message is counted, and shed messages are reported in the stream of
//! their subject.

mod datagram_backlog;
pub(crate) mod limits;
mod session;
mod shard;
#[cfg(test)]
mod tests;

pub(crate) use session::SyslogSession;
pub(crate) use shard::{SyslogContext, SyslogRules, SyslogShard};

/// A transport of syslog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyslogTransport {
    /// TCP connections.
    Tcp,
    /// UDP datagrams.
    Udp,
    /// Datagrams on a Unix socket.
    Unix,
}
