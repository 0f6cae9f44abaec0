//! Every bound of the syslog codec in one place, with its unit and what happens when it is reached.

/// Longest message in bytes, on a line its end included. Reached: what comes beyond is skipped, and the message is told as
/// cut.
pub const MESSAGE_SIZE_MAX: u32 = 64 * 1024;
/// Most digits of an octet count. More are no count, and the connection is read by lines.
pub const COUNT_DIGITS_MAX: usize = 9;
/// Greatest priority: facility 23, severity 7 (RFC 5424 §6.2.1). A greater one is no priority.
pub const PRIORITY_MAX: u8 = 191;
/// Longest host, application, process id or message id in bytes, whatever the format: a longer word is a part of the
/// message. RFC 5424 §6 has 255 for hosts and less for the others.
pub const WORD_SIZE_MAX: usize = 255;

/// What a decoder accepts at most; shared by all connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyslogLimits {
    /// Bytes of a message, at least 1; default 64 KiB.
    pub message_size_max: u32,
}

impl Default for SyslogLimits {
    fn default() -> Self {
        Self { message_size_max: MESSAGE_SIZE_MAX }
    }
}
