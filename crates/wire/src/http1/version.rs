//! The HTTP version of a message.

/// HTTP version of a message (RFC 9112, section 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1, and every later 1.x
    Http11,
    /// None: the request line ends after its target.
    Absent,
}
