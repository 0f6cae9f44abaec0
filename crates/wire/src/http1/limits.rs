//! Every bound of the HTTP/1.1 codec, with its unit and the effect of reaching it.

/// Longest head in bytes, from the first byte of the start line to the empty line inclusive.
/// Reached: 431, or 414 while still in the request line.
pub const HEAD_SIZE_MAX: u32 = 16 * 1024;
/// Most field lines in a head, and in a trailer section. Reached: 431.
pub const HEADERS_MAX: u16 = 100;
/// Longest body in bytes, declared or accumulated over chunks. Reached: 413.
pub const BODY_SIZE_MAX: u64 = 1024 * 1024;
/// Longest chunk-size line in bytes, CRLF included. Reached: 400.
pub const CHUNK_LINE_SIZE_MAX: u16 = 256;
/// Most bytes of all chunk extensions of one body. Reached: 400.
pub const CHUNK_EXTENSIONS_SIZE_MAX: u16 = 16 * 1024;
/// Longest trailer section in bytes, the last CRLF included. Reached: 431.
pub const TRAILERS_SIZE_MAX: u16 = 4 * 1024;
/// Most empty lines before a start line (RFC 9112 §2.2: a server ignores at least one). Reached: 400.
pub const EMPTY_LINES_MAX: u8 = 8;
/// Most hex digits of a chunk size, as many as a u64 has. Reached: 400.
pub const CHUNK_SIZE_DIGITS_MAX: u16 = 16;

/// Upper bounds of a decoder, shared by all connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Bytes of a head; default 16 KiB.
    pub head_size_max: u32,
    /// Field lines of a head; default 100.
    pub headers_max: u16,
    /// Bytes of a body; default 1 MiB.
    pub body_size_max: u64,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self { head_size_max: HEAD_SIZE_MAX, headers_max: HEADERS_MAX, body_size_max: BODY_SIZE_MAX }
    }
}

impl HttpLimits {
    pub(crate) fn head_window<'a>(&self, input: &'a [u8]) -> &'a [u8] {
        &input[..input.len().min(self.head_size_max as usize)]
    }

    pub(crate) fn head_is_full(&self, scanned: usize) -> bool {
        scanned >= self.head_size_max as usize
    }
}
