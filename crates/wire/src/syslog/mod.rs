//! Syslog: RFC 5424, the format known as RFC 3164, and the framing of both on connections (RFC 6587).
//!
//! Parsing never fails: syslog has no response that could report an error, and an unrecognised message is still a
//! message. Unrecognised parts stay in its text; [`SyslogRecord::format`] is the recognised format.
//!
//! ```text
//!   datagram ─────────────────────────► parse ─► SyslogRecord
//!   connection ─► Framer ─► SyslogFrame ──►
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
