//! One message and what was recognised of it.

use super::limits::PRIORITY_MAX;

/// Facility and severity (RFC 5424 §6.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(u8);

impl Priority {
    /// What a message without priority has: user-level, notice (RFC 3164 §4.3.3).
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

    /// What kind of program speaks, 0 to 23.
    #[must_use]
    pub fn facility(self) -> u8 {
        self.0 >> 3
    }

    /// How bad it is, 0 (emergency) to 7 (debug).
    #[must_use]
    pub fn severity(self) -> u8 {
        self.0 & 7
    }
}

/// How much of a message was recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyslogFormat {
    /// The header of RFC 5424.
    Ietf,
    /// A time as BSD's daemons, routers and their imitators put it (RFC 3164).
    Bsd,
    /// No time: at most a priority and the name of a program.
    Plain,
}

/// A message. All texts are the sender's bytes, which need not be UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyslogRecord<'a> {
    /// Facility and severity; [`Priority::DEFAULT`] when none was given.
    pub priority: Priority,
    /// Whether the sender gave a priority.
    pub priority_is_given: bool,
    /// How much was recognised.
    pub form: SyslogFormat,
    /// When, in the sender's words.
    pub timestamp: Option<&'a [u8]>,
    /// Whence.
    pub host: Option<&'a [u8]>,
    /// From which program.
    pub app: Option<&'a [u8]>,
    /// From which of its processes.
    pub procid: Option<&'a [u8]>,
    /// Which kind of message.
    pub msgid: Option<&'a [u8]>,
    /// The structured data with their brackets.
    pub structured_data: Option<&'a [u8]>,
    /// The rest.
    pub message: &'a [u8],
}

impl<'a> SyslogRecord<'a> {
    pub(crate) fn plain(message: &'a [u8]) -> Self {
        Self {
            priority: Priority::DEFAULT,
            priority_is_given: false,
            form: SyslogFormat::Plain,
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
