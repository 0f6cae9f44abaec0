//! Every bound of the syslog codec, with its unit and the effect of reaching it.

/// Longest message in bytes, including the end of a line. Reached: the rest is skipped, and the message is marked as
/// cut.
pub const MESSAGE_SIZE_MAX: u32 = 64 * 1024;
/// Most digits of an octet count. More: not a count, and the text is read as a line.
pub const COUNT_DIGITS_MAX: usize = 9;
/// Greatest priority: facility 23, severity 7 (RFC 5424 §6.2.1). Greater: not a priority, and the text is part of the
/// message.
pub const PRIORITY_MAX: u8 = 191;
/// Longest host, application, process id or message id in bytes, in every format. Longer: the word is part of the
/// message. RFC 5424 §6 allows 255 for hosts and less for the others.
pub const WORD_SIZE_MAX: usize = 255;

/// Upper bounds of a decoder, shared by all connections of a listener.
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
