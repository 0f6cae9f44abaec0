//! Syslog in the house: datagrams, connections, and what becomes of them when the hub is busy.
//!
//! Nothing can be confirmed to a sender of syslog. So whatever does not get through is counted, and told in the stream that
//! it would have been in.

mod desk;
mod held;
pub(crate) mod limits;
mod session;

pub(crate) use desk::{Rules, SyslogDesk};
pub(crate) use limits::SETTLED_PER_TURN;
pub(crate) use session::SyslogSession;
