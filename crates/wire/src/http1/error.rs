//! Decode errors: what was expected, what was found, and where. Eight bytes, so a decoder can store one; text is
//! formatted on demand.

use core::fmt;

use super::Status;

/// The element that offsets count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpElement {
    /// The head, from the first byte of its start line.
    Head,
    /// The size line of a chunk.
    ChunkLine,
    /// The CRLF after a chunk's data.
    ChunkEnd,
    /// The trailer section.
    Trailers,
    /// The end of the connection's input.
    Input,
}

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident: $status:ident, $expected:literal;)*) => {
        /// The broken rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum HttpFault { $($(#[$doc])* $name,)* }

        impl HttpFault {
            /// The status that answers a request with this fault. For a faulty response, a gateway sends 502.
            #[must_use]
            pub const fn status(self) -> Status {
                match self { $(Self::$name => Status::$status,)* }
            }

            /// The expected input, to follow the word "expected".
            #[must_use]
            pub const fn expected(self) -> &'static str {
                match self { $(Self::$name => $expected,)* }
            }
        }
    };
}

faults! {
    /// A byte not allowed in a method, or an empty method.
    Method: BadRequest, "a method made of token characters and one space";
    /// A byte not allowed in a request target, or an empty target.
    TargetByte: BadRequest, "a request target of visible ASCII without '#' and one space";
    /// The target has a form that its method does not allow.
    TargetForm: BadRequest, "a target form that the method allows";
    /// The version is malformed.
    VersionByte: BadRequest, "HTTP/1.1 and CR LF";
    /// A major version other than 1.
    VersionUnsupported: HttpVersionNotSupported, "HTTP/1.0 or HTTP/1.1";
    /// A request without a version that is not `GET` or has fields.
    VersionAbsent: BadRequest, "an HTTP version, or GET with no version and no fields";
    /// CR without LF.
    LineEnd: BadRequest, "LF after CR";
    /// More empty lines before the start line than [`EMPTY_LINES_MAX`](super::limits::EMPTY_LINES_MAX).
    EmptyLines: BadRequest, "a request line after a few empty lines";
    /// A byte not allowed in a field name, or an empty name.
    FieldName: BadRequest, "a field name made of token characters, directly followed by ':'";
    /// A field line that starts with a space or tab.
    FieldFolded: BadRequest, "a field line that does not start with a blank";
    /// A control byte in a field value, a bare LF among them.
    FieldValue: BadRequest, "visible characters, blanks or CR LF in a field value";
    /// No `Host` in HTTP/1.1.
    HostMissing: BadRequest, "a Host field";
    /// A second `Host`.
    HostRepeated: BadRequest, "a single Host field";
    /// `Host`, or the target's authority, is not `host[:port]`.
    HostInvalid: BadRequest, "host or host:port";
    /// `Content-Length` is not a decimal number below 2^64.
    ContentLength: BadRequest, "one decimal Content-Length";
    /// A second `Content-Length`.
    ContentLengthRepeated: BadRequest, "a single Content-Length field";
    /// `Content-Length` together with `Transfer-Encoding`.
    LengthConflict: BadRequest, "either Content-Length or Transfer-Encoding";
    /// `Transfer-Encoding` is malformed, repeated or does not end in chunked.
    TransferEncoding: BadRequest, "Transfer-Encoding: chunked";
    /// `Transfer-Encoding` names an unsupported coding.
    TransferUnknown: NotImplemented, "no transfer coding except chunked";
    /// `Transfer-Encoding` in HTTP/1.0.
    TransferVersion: BadRequest, "no Transfer-Encoding in HTTP/1.0";
    /// An expectation other than `100-continue`.
    Expectation: ExpectationFailed, "no expectation except 100-continue";
    /// The head is longer than `head_size_max`.
    HeadSize: RequestHeaderFieldsTooLarge, "the end of the head within head_size_max";
    /// The request line alone is longer than `head_size_max`.
    LineSize: UriTooLong, "the end of the request line within head_size_max";
    /// More field lines than `headers_max`.
    FieldCount: RequestHeaderFieldsTooLarge, "at most headers_max fields";
    /// The body is longer than `body_size_max`.
    BodySize: ContentTooLarge, "a body within body_size_max";
    /// A chunk size that is not 1 to 16 hex digits.
    ChunkSize: BadRequest, "1 to 16 hex digits, then ';' or CR LF";
    /// A control byte in a chunk extension.
    ChunkExtension: BadRequest, "visible characters in a chunk extension";
    /// A chunk line, or all chunk extensions together, longer than allowed.
    ChunkLineSize: BadRequest, "the end of the chunk line within its limit";
    /// Chunk data is not followed by CR LF.
    ChunkEnd: BadRequest, "CR LF after the chunk's data";
    /// The trailer section is longer than allowed.
    TrailersSize: RequestHeaderFieldsTooLarge, "the end of the trailers within their limit";
    /// A response's status line is malformed.
    StatusLine: BadGateway, "HTTP/1.x, a space and three digits from 100 to 599";
    /// The input ended inside a message.
    Truncated: BadRequest, "the rest of the message";
}

/// A malformed message. The peer is at fault; the connection is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpDecodeError {
    fault: HttpFault,
    element: HttpElement,
    found: Option<u8>,
    offset: u32,
}

impl HttpDecodeError {
    #[cold]
    pub(crate) fn new(fault: HttpFault, element: HttpElement, offset: usize, found: Option<u8>) -> Self {
        Self { fault, element, found, offset: u32::try_from(offset).unwrap_or(u32::MAX) }
    }

    #[cold]
    pub(crate) fn head(fault: HttpFault, offset: usize, found: Option<u8>) -> Self {
        Self::new(fault, HttpElement::Head, offset, found)
    }

    /// Adds `bytes` to the offset, which then counts from the start of `element`.
    pub(crate) fn rebased(self, element: HttpElement, bytes: usize) -> Self {
        Self::new(self.fault, element, self.offset as usize + bytes, self.found)
    }

    /// The broken rule.
    #[must_use]
    pub fn fault(&self) -> HttpFault {
        self.fault
    }

    /// The status that answers a request with this error.
    #[must_use]
    pub fn status(&self) -> Status {
        self.fault.status()
    }

    /// Bytes from the start of [`HttpDecodeError::element`] to the offending byte.
    #[must_use]
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// The element that the offset counts from.
    #[must_use]
    pub fn element(&self) -> HttpElement {
        self.element
    }

    /// The offending byte, if a single byte is at fault.
    #[must_use]
    pub fn found(&self) -> Option<u8> {
        self.found
    }
}

/// `400 Bad Request: expected LF after CR at byte 17 of the head, found 0x41 'A'`
impl fmt::Display for HttpDecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status();
        write!(f, "{} {}: expected {} ", status.code(), status.reason(), self.fault.expected())?;
        let element = match self.element {
            HttpElement::Head => "head",
            HttpElement::ChunkLine => "chunk line",
            HttpElement::ChunkEnd => "chunk's end",
            HttpElement::Trailers => "trailers",
            HttpElement::Input => "input",
        };
        write!(f, "at byte {} of the {element}", self.offset)?;
        match self.found {
            Some(byte) if byte.is_ascii_graphic() => write!(f, ", found {byte:#04x} '{}'", byte as char),
            Some(byte) => write!(f, ", found {byte:#04x}"),
            None => Ok(()),
        }
    }
}

impl core::error::Error for HttpDecodeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_small_and_shows_its_evidence() {
        assert!(size_of::<Option<HttpDecodeError>>() <= 8);
        let error = HttpDecodeError::head(HttpFault::LineEnd, 17, Some(b'A'));
        assert_eq!(
            error.to_string(),
            "400 Bad Request: expected LF after CR at byte 17 of the head, found 0x41 'A'"
        );
    }
}
