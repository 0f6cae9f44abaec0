//! One parsed message.

use super::limits::PRIORITY_MAX;

/// Facility and severity (RFC 5424 §6.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(u8);

impl Priority {
    /// Priority of a message without one: user-level, notice (RFC 3164 §4.3.3).
    pub const DEFAULT: Self = Self(13);

    /// The number between the angle brackets, 0 to 191.
    #[must_use]
    pub fn new(number: u8) -> Option<Self> {
        (number <= PRIORITY_MAX).then_some(Self(number))
    }

    /// The number between the angle brackets.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }

    /// The kind of program, 0 to 23.
    #[must_use]
    pub fn facility(self) -> u8 {
        self.0 >> 3
    }

    /// The severity, 0 (emergency) to 7 (debug).
    #[must_use]
    pub fn severity(self) -> u8 {
        self.0 & 7
    }
}

/// The recognised format of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyslogFormat {
    /// The header of RFC 5424.
    Ietf,
    /// A time in the form of BSD daemons or routers (RFC 3164).
    Bsd,
    /// No time: at most a priority and the name of a program.
    Plain,
}

/// A message. All texts are the sender's bytes, which need not be UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyslogRecord<'a> {
    /// Facility and severity; [`Priority::DEFAULT`] if absent.
    pub priority: Priority,
    /// Whether the message has a priority.
    pub has_priority: bool,
    /// The recognised format.
    pub format: SyslogFormat,
    /// The time, unparsed.
    pub timestamp: Option<&'a [u8]>,
    /// The sending host.
    pub host: Option<&'a [u8]>,
    /// The program.
    pub app: Option<&'a [u8]>,
    /// The program's process id.
    pub procid: Option<&'a [u8]>,
    /// The kind of message.
    pub msgid: Option<&'a [u8]>,
    /// The structured data with their brackets.
    pub structured_data: Option<&'a [u8]>,
    /// The text.
    pub message: &'a [u8],
}

impl<'a> SyslogRecord<'a> {
    pub(crate) fn plain(message: &'a [u8]) -> Self {
        Self {
            priority: Priority::DEFAULT,
            has_priority: false,
            format: SyslogFormat::Plain,
            timestamp: None,
            host: None,
            app: None,
            procid: None,
            msgid: None,
            structured_data: None,
            message,
        }
    }
}
