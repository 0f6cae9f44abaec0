//! Every bound of the NATS codec, with its unit and the effect of reaching it.

/// Longest line of an operation in bytes, its line end included. Reached: 'Maximum Control Line Exceeded', and the
/// connection closes.
pub const CONTROL_LINE_SIZE_MAX: u32 = 4096;
/// Longest line in bytes that a client accepts from a server: an INFO can list many addresses. Reached: the connection
/// closes.
pub const SERVER_LINE_SIZE_MAX: u32 = 64 * 1024;
/// Longest message in bytes, headers included. Reached: 'Maximum Payload Violation', and the connection closes.
pub const PAYLOAD_SIZE_MAX: u32 = 1024 * 1024;
/// Longest message in bytes that a client accepts from a server, the highest limit configurable on any server. Reached:
/// the connection closes.
pub const SERVER_PAYLOAD_SIZE_MAX: u32 = 64 * 1024 * 1024;
/// Longest message in bytes, from its operation to its last CR LF, that is always returned in one step. A longer
/// message that is only partially received is returned in pieces.
pub const WHOLE_SIZE_MAX: u32 = 16 * 1024;
/// Longest subject, filter, reply subject or queue name in bytes. Reached: 'Invalid Subject' or 'Invalid Publish
/// Subject', and the connection stays.
pub const SUBJECT_SIZE_MAX: u16 = 1024;
/// Most tokens of a subject or filter. Reached: as for the length.
pub const SUBJECT_TOKENS_MAX: u16 = 64;
/// Longest subscription id in bytes; clients use counters, which need at most twenty digits. Reached: 'Parser Error',
/// and the connection closes.
pub const SID_SIZE_MAX: usize = 64;
/// Most digits of a size or count in a line, as in other servers. Reached: 'Parser Error', and the connection closes.
pub const DIGITS_MAX: usize = 9;

/// Upper bounds of a decoder, shared by all connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatsLimits {
    /// Bytes of an operation's line; default 4096.
    pub control_line_size_max: u32,
    /// Bytes of a message, headers included; default 1 MiB. Sizes of more than nine digits are never accepted.
    pub payload_size_max: u32,
    /// Bytes of a message that is always returned in one step; default 16 KiB.
    pub whole_size_max: u32,
    /// Bounds of subjects.
    pub subject: SubjectLimits,
}

/// Upper bounds of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubjectLimits {
    /// Bytes; default 1024.
    pub size_max: u16,
    /// Tokens; default 64.
    pub tokens_max: u16,
}

impl Default for NatsLimits {
    fn default() -> Self {
        Self {
            control_line_size_max: CONTROL_LINE_SIZE_MAX,
            payload_size_max: PAYLOAD_SIZE_MAX,
            whole_size_max: WHOLE_SIZE_MAX,
            subject: SubjectLimits::default(),
        }
    }
}

impl Default for SubjectLimits {
    fn default() -> Self {
        Self { size_max: SUBJECT_SIZE_MAX, tokens_max: SUBJECT_TOKENS_MAX }
    }
}

impl NatsLimits {
    /// Returns a client's limits for server input: longer lines and messages.
    #[must_use]
    pub fn for_client() -> Self {
        Self {
            control_line_size_max: SERVER_LINE_SIZE_MAX,
            payload_size_max: SERVER_PAYLOAD_SIZE_MAX,
            ..Self::default()
        }
    }
}
