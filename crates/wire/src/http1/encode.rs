//! Response heads, appended to a buffer the caller reuses: copies of prepared bytes, no formatting, no allocation while
//! the buffer's capacity suffices.

use super::Status;
use super::byte_class::{is_token, is_value};

/// The complete response to a plain request on `/test/*`: 57 bytes, then the connection closes. Byte-identical to
/// server-demo's response, hence without the `Date` that RFC 9110 §6.6.1 requires.
pub const OK_CLOSE: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
/// The interim response to `Expect: 100-continue` (RFC 9110 §10.1.1).
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The connection option of a response (RFC 9112 §9.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// HTTP/1.1 default: persistent without a field.
    #[default]
    Implicit,
    /// The connection closes after this response.
    Close,
    /// An HTTP/1.0 client requested persistence, which the response must confirm.
    Http10KeepAlive,
}

/// A field that would break the response's framing: its name is not a token, or its value has a control byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadField {
    /// Index into [`ResponseEncoder::extra`]; `None` is the content type.
    pub index: Option<usize>,
}

impl core::fmt::Display for BadField {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.index {
            Some(index) => {
                write!(f, "extra response field {index} has an invalid name or value")
            }
            None => f.write_str("the response's content type has an invalid byte"),
        }
    }
}

impl core::error::Error for BadField {}

/// A response head to encode. For `HEAD` the caller gives the length of the body it does not send.
#[derive(Clone, Copy, Debug)]
pub struct ResponseEncoder<'a> {
    /// The status.
    pub status: Status,
    /// The time, see [`super::Date`]; `None` without a clock.
    pub date: Option<&'a [u8; 29]>,
    /// The connection option.
    pub connection: Persistence,
    /// Bytes of the body; `None` when it is chunked, ends with the connection or does not exist. Omitted where RFC 9110
    /// §8.6 forbids it (1xx, 204).
    pub content_length: Option<u64>,
    /// The media type of the body.
    pub content_type: Option<&'a str>,
    /// Further fields, written unchanged.
    pub extra: &'a [(&'a str, &'a str)],
}

impl ResponseEncoder<'_> {
    /// Returns a head with a status and no fields.
    #[must_use]
    pub const fn new(status: Status) -> Self {
        Self {
            status,
            date: None,
            connection: Persistence::Implicit,
            content_length: None,
            content_type: None,
            extra: &[],
        }
    }

    /// Appends the head with its empty line to `out`.
    ///
    /// # Errors
    /// [`BadField`] when a text field would break the framing; `out` is then unchanged.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), BadField> {
        self.check()?;
        out.extend_from_slice(self.status.line());
        if let Some(date) = self.date {
            push_field(out, b"Date", date);
        }
        match self.connection {
            Persistence::Implicit => {}
            Persistence::Close => out.extend_from_slice(b"Connection: close\r\n"),
            Persistence::Http10KeepAlive => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        }
        if let Some(content_type) = self.content_type {
            push_field(out, b"Content-Type", content_type.as_bytes());
        }
        for (name, value) in self.extra {
            push_field(out, name.as_bytes(), value.as_bytes());
        }
        if let Some(length) = self.content_length
            && !self.status.forbids_length()
        {
            push_field(out, b"Content-Length", itoa::Buffer::new().format(length).as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        Ok(())
    }

    // RFC 9112 §11.1: a CR or LF in a field would split the response.
    fn check(&self) -> Result<(), BadField> {
        let value_is_good = |value: &str| value.bytes().all(is_value);
        if !self.content_type.is_none_or(value_is_good) {
            return Err(BadField { index: None });
        }
        for (index, (name, value)) in self.extra.iter().enumerate() {
            if name.is_empty() || !name.bytes().all(is_token) || !value_is_good(value) {
                return Err(BadField { index: Some(index) });
            }
        }
        Ok(())
    }
}

fn push_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(reply: ResponseEncoder<'_>, expected: &str) {
        let mut out = Vec::with_capacity(256);
        let place = out.as_ptr();
        reply.encode(&mut out).unwrap();
        assert_eq!(String::from_utf8(out.clone()).unwrap(), expected);
        assert_eq!(out.as_ptr(), place, "the buffer must not move");
    }

    /// Row 4.16: the exact 57 bytes.
    #[test]
    fn the_closing_answer_has_exactly_57_bytes() {
        assert_eq!(OK_CLOSE.len(), 57);
        let reply = ResponseEncoder {
            connection: Persistence::Close,
            content_length: Some(0),
            ..ResponseEncoder::new(Status::Ok)
        };
        check(reply, core::str::from_utf8(OK_CLOSE).unwrap());
        check(ResponseEncoder::new(Status::Continue), core::str::from_utf8(CONTINUE).unwrap());
    }

    /// Row 4.15: a persistent connection is announced exactly where the client's version needs it.
    #[test]
    fn a_response_contains_its_fields() {
        let date = super::super::Date::from_unix_seconds(784_111_777);
        let full = ResponseEncoder {
            status: Status::ServiceUnavailable,
            date: Some(date.as_bytes()),
            connection: Persistence::Http10KeepAlive,
            content_length: Some(u64::MAX),
            content_type: Some("text/plain"),
            extra: &[("Retry-After", "1"), ("X-A", "")],
        };
        check(
            full,
            "HTTP/1.1 503 Service Unavailable\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nConnection: keep-alive\r\n\
             Content-Type: text/plain\r\nRetry-After: 1\r\nX-A: \r\nContent-Length: 18446744073709551615\r\n\r\n",
        );
        let no_content =
            ResponseEncoder { content_length: Some(0), ..ResponseEncoder::new(Status::NoContent) };
        check(no_content, "HTTP/1.1 204 No Content\r\n\r\n");
    }

    #[test]
    fn a_field_that_would_split_the_response_is_rejected_and_nothing_is_written() {
        let rejected = |content_type, extra: &[(&str, &str)], index| {
            let mut out = b"before".to_vec();
            let reply = ResponseEncoder { content_type, extra, ..ResponseEncoder::new(Status::Found) };
            assert_eq!(reply.encode(&mut out), Err(BadField { index }));
            assert_eq!(out, b"before");
        };
        rejected(None, &[("A", "b"), ("Location", "/\r\nSet-Cookie: a=b")], Some(1));
        rejected(None, &[("A", "\n")], Some(0));
        rejected(None, &[("A", "\0")], Some(0));
        rejected(None, &[("A: b\r\nC", "d")], Some(0));
        rejected(None, &[("", "d")], Some(0));
        rejected(Some("text/html\r"), &[], None);
    }

    #[test]
    fn every_status_line_carries_its_code_and_reason() {
        for status in Status::ALL {
            let line = format!("HTTP/1.1 {} {}\r\n", status.code(), status.reason());
            assert_eq!(status.line(), line.as_bytes());
            assert!((100..600).contains(&status.code()));
        }
    }
}
