//! Content formats (RFC 7252 §12.3).

/// The number of a media type with its content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContentFormat(pub u16);

impl ContentFormat {
    /// `text/plain;charset=utf-8`
    pub const TEXT: Self = Self(0);
    /// `application/link-format`
    pub const LINK_FORMAT: Self = Self(40);
    /// `application/xml`
    pub const XML: Self = Self(41);
    /// `application/octet-stream`
    pub const OCTET_STREAM: Self = Self(42);
    /// `application/json`
    pub const JSON: Self = Self(50);
    /// `application/cbor`
    pub const CBOR: Self = Self(60);
}
