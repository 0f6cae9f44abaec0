//! Syslog: RFC 5424, what is known as RFC 3164, and the framing of both on connections (RFC 6587).
//!
//! Nothing here fails. Syslog has no answer by which a sender could be told, and a message that is not understood is still a
//! message: what is not recognised stays in its text, and [`SyslogRecord::form`] says so.
//!
//! ```text
//!   datagram ──────────────────────► parse ─► Record
//!   connection ─► Framer ─► Frame ───►
//! ```

mod bsd;
mod framing;
mod ietf;
pub mod limits;
mod parse;
mod record;
mod timestamp;

#[cfg(any(test, feature = "check"))]
#[doc(hidden)]
pub mod check;
#[cfg(test)]
mod tests;

pub use framing::{FrameStep, Framer, SyslogFrame, Truncation};
pub use limits::SyslogLimits;
pub use parse::parse;
pub use record::{Priority, SyslogFormat, SyslogRecord};
