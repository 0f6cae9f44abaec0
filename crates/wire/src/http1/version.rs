//! The HTTP version of a message.

/// The version a message is read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1, and every later 1.x
    Http11,
    /// A request line that ends behind its target.
    Absent,
}
