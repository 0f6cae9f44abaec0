//! Every bound of the WebSocket codec, with its unit and the effect of reaching it.

/// Longest message in bytes, all fragments together. Reached: the connection closes with 1009, at the header of the
/// frame that exceeds it.
pub const MESSAGE_SIZE_MAX: u32 = 1024 * 1024;
/// Longest message in bytes that a client accepts from a server. Reached: the client closes with 1009.
pub const SERVER_MESSAGE_SIZE_MAX: u32 = 64 * 1024 * 1024;
/// Longest unfragmented message in bytes that is always returned in one step. A longer message that is only partially
/// received, and every fragmented one, is returned in pieces.
pub const WHOLE_SIZE_MAX: u32 = 16 * 1024;
/// Longest payload of a control frame in bytes (RFC 6455 §5.5). Reached: the connection closes with 1002; a longer
/// reason of our own is cut.
pub const CONTROL_SIZE_MAX: usize = 125;
/// Longest header of a frame in bytes (RFC 6455 §5.2).
pub const HEADER_SIZE_MAX: usize = 14;

/// Upper bounds of a decoder, shared by all connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebSocketLimits {
    /// Bytes of a message, all fragments together; default 1 MiB. More: the connection closes with 1009.
    pub message_size_max: u32,
    /// Bytes of an unfragmented message that is always returned in one step; default 16 KiB.
    pub whole_size_max: u32,
}

impl Default for WebSocketLimits {
    fn default() -> Self {
        Self { message_size_max: MESSAGE_SIZE_MAX, whole_size_max: WHOLE_SIZE_MAX }
    }
}

impl WebSocketLimits {
    /// Returns a client's limits for server input: longer messages.
    #[must_use]
    pub fn for_client() -> Self {
        Self { message_size_max: SERVER_MESSAGE_SIZE_MAX, ..Self::default() }
    }
}
