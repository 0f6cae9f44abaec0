//! Every bound of the SSE codec, with its unit and the effect of reaching it.

/// Longest event in bytes that a client accepts, its empty line excluded: a message of 1 MiB whose text is escaped.
/// Reached: the decoder fails.
pub const EVENT_SIZE_MAX: u32 = 8 * 1024 * 1024;

/// Upper bounds of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SseLimits {
    /// Bytes of an event; default 8 MiB. More: the decoder fails.
    pub event_size_max: u32,
}

impl Default for SseLimits {
    fn default() -> Self {
        Self { event_size_max: EVENT_SIZE_MAX }
    }
}
