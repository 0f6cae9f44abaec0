//! The meaning of a complete request head: method, target, host, framing and persistence.
//!
//! [`FramingFields`] collects the relevant fields during the syntax scan. It stores its first error and reports it when
//! the head is complete, so the result does not depend on how the input was split.

use super::HttpLimits;
use super::byte_class::{is_token, trim};
use super::error::{HttpDecodeError, HttpFault};
use super::fields::{FieldSink, Fields};
use super::line::RequestLine;
use super::target::{RequestTarget, is_host_value};
use super::version::HttpVersion;

/// A request method (RFC 9110 §9). Methods are case-sensitive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the methods are RFC 9110's")]
pub enum Method<'a> {
    Get,
    Head,
    Post,
    Put,
    Delete,
    Options,
    Trace,
    Connect,
    Patch,
    /// Any other token.
    Other(&'a [u8]),
}

impl<'a> Method<'a> {
    #[inline]
    pub(crate) fn from_token(token: &'a [u8]) -> Self {
        match token {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"OPTIONS" => Self::Options,
            b"TRACE" => Self::Trace,
            b"CONNECT" => Self::Connect,
            b"PATCH" => Self::Patch,
            other => Self::Other(other),
        }
    }

    /// The method as sent.
    #[must_use]
    pub fn as_bytes(&self) -> &'a [u8] {
        match self {
            Self::Get => b"GET",
            Self::Head => b"HEAD",
            Self::Post => b"POST",
            Self::Put => b"PUT",
            Self::Delete => b"DELETE",
            Self::Options => b"OPTIONS",
            Self::Trace => b"TRACE",
            Self::Connect => b"CONNECT",
            Self::Patch => b"PATCH",
            Self::Other(token) => token,
        }
    }
}

/// Body framing of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// None, or `Content-Length: 0`.
    None,
    /// Length in bytes, at least one.
    Sized(u64),
    /// Unknown until the last chunk.
    Chunked,
}

/// A complete, checked request head. Everything borrows from the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead<'a> {
    /// The method.
    pub method: Method<'a>,
    /// The target and its parts.
    pub target: RequestTarget<'a>,
    /// The version.
    pub version: HttpVersion,
    /// The target's authority if present, else the `Host` field; may be empty.
    pub host: Option<&'a [u8]>,
    /// The body's framing.
    pub body: BodyLength,
    /// Whether the connection may carry another request (RFC 9112 §9.3).
    pub persistent: bool,
    /// HTTP/1.0 with `keep-alive`: a response that keeps the connection must confirm it.
    pub http10_keep_alive: bool,
    /// The client waits for `100 Continue` before it sends the body.
    pub expect_continue: bool,
    /// The first `Upgrade` field of an HTTP/1.1 request with `upgrade` in its `Connection` field.
    pub upgrade: Option<&'a [u8]>,
    section: &'a [u8],
}

impl<'a> RequestHead<'a> {
    /// Returns all fields in wire order.
    #[must_use]
    pub fn headers(&self) -> Fields<'a> {
        Fields::new(self.section)
    }

    /// Returns the first value of the field `name`, compared without case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers().value_of(name)
    }
}

/// The fields that frame and route a message, as far as scanned.
pub(crate) struct FramingFields<'a> {
    version: HttpVersion,
    host: Option<&'a [u8]>,
    upgrade: Option<&'a [u8]>,
    length: Option<u64>,
    chunked: bool,
    expects_continue: bool,
    close: bool,
    keep_alive: bool,
    upgrades: bool,
    first_error: Option<HttpDecodeError>,
}

impl<'a> FieldSink<'a> for FramingFields<'a> {
    const WANTED: bool = true;

    #[inline(always)]
    fn field(&mut self, name: &'a [u8], value: &'a [u8], offset: usize) {
        // The length alone excludes nearly every irrelevant field.
        let is = |wanted: &[u8]| name.eq_ignore_ascii_case(wanted);
        match name.len() {
            4 if is(b"host") => self.host(value, offset),
            6 if is(b"expect") => self.expect(value, offset),
            7 if is(b"upgrade") => self.upgrade = self.upgrade.or(Some(value)),
            10 if is(b"connection") => self.connection(value),
            14 if is(b"content-length") => self.content_length(value, offset),
            17 if is(b"transfer-encoding") => self.transfer_encoding(value, offset),
            _ => {}
        }
    }
}

impl<'a> FramingFields<'a> {
    pub(crate) fn new(version: HttpVersion) -> Self {
        Self {
            version,
            host: None,
            upgrade: None,
            length: None,
            chunked: false,
            expects_continue: false,
            close: false,
            keep_alive: false,
            upgrades: false,
            first_error: None,
        }
    }

    #[cold]
    fn record_error(&mut self, fault: HttpFault, offset: usize, found: Option<u8>) {
        if self.first_error.is_none() {
            self.first_error = Some(HttpDecodeError::head(fault, offset, found));
        }
    }

    // RFC 9112 §3.2: exactly one valid Host.
    #[inline(always)]
    fn host(&mut self, value: &'a [u8], offset: usize) {
        if self.host.is_some() {
            self.record_error(HttpFault::HostRepeated, offset, None);
        } else if !is_host_value(value) {
            self.record_error(HttpFault::HostInvalid, offset, None);
        }
        self.host = Some(value);
    }

    // RFC 9110 §10.1.1.
    fn expect(&mut self, value: &[u8], offset: usize) {
        if value.eq_ignore_ascii_case(b"100-continue") {
            self.expects_continue = true;
        } else {
            self.record_error(HttpFault::Expectation, offset, value.first().copied());
        }
    }

    // RFC 9110 §7.6.1: a list of case-insensitive tokens.
    #[inline(always)]
    fn connection(&mut self, value: &[u8]) {
        // ab and browsers send a single token.
        if value.eq_ignore_ascii_case(b"keep-alive") {
            self.keep_alive = true;
        } else {
            self.connection_list(value);
        }
    }

    fn connection_list(&mut self, value: &[u8]) {
        for option in value.split(|&b| b == b',') {
            let option = trim(option);
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
            self.upgrades |= option.eq_ignore_ascii_case(b"upgrade");
        }
    }

    // RFC 9110 §8.6 and RFC 9112 §6.3: lists and repetitions are rejected even when their members agree.
    fn content_length(&mut self, value: &[u8], offset: usize) {
        let mut length = (!value.is_empty()).then_some(0u64);
        for &byte in value {
            let digit = byte.wrapping_sub(b'0');
            length = length
                .filter(|_| digit < 10)
                .and_then(|length| length.checked_mul(10))
                .and_then(|length| length.checked_add(u64::from(digit)));
        }
        if length.is_none() {
            let culprit = value.iter().copied().find(|b| !b.is_ascii_digit());
            self.record_error(HttpFault::ContentLength, offset, culprit);
        } else if self.length.is_some() {
            self.record_error(HttpFault::ContentLengthRepeated, offset, None);
        } else if self.chunked {
            self.record_error(HttpFault::LengthConflict, offset, None);
        }
        self.length = length;
    }

    // RFC 9112 §6.1 and §6.3. Only a single `chunked` is supported.
    fn transfer_encoding(&mut self, value: &[u8], offset: usize) {
        if self.version != HttpVersion::Http11 {
            self.record_error(HttpFault::TransferVersion, offset, None);
        } else if self.chunked {
            self.record_error(HttpFault::TransferEncoding, offset, None);
        } else if self.length.is_some() {
            self.record_error(HttpFault::LengthConflict, offset, None);
        } else if !value.eq_ignore_ascii_case(b"chunked") {
            self.record_error(unknown_coding(value), offset, value.first().copied());
        }
        self.chunked = true;
    }

    pub(crate) fn first_error(&self) -> Option<HttpDecodeError> {
        self.first_error
    }

    pub(crate) fn length(&self) -> Option<u64> {
        self.length
    }

    pub(crate) fn is_chunked(&self) -> bool {
        self.chunked
    }

    // RFC 9112 §9.3.
    pub(crate) fn is_persistent(&self) -> bool {
        !self.close
            && match self.version {
                HttpVersion::Http11 => true,
                HttpVersion::Http10 => self.keep_alive,
                HttpVersion::Absent => false,
            }
    }

    /// Validates a request head that ends at `end` of the window.
    #[inline(always)]
    pub(crate) fn build_head(
        &self,
        line: RequestLine,
        window: &'a [u8],
        end: usize,
        limits: &HttpLimits,
    ) -> Result<RequestHead<'a>, HttpDecodeError> {
        if let Some(first_error) = self.first_error {
            return Err(first_error);
        }
        let method = Method::from_token(&window[..line.method_end]);
        let target_start = line.method_end + 1;
        let Some((target, authority)) = RequestTarget::parse(method, &window[target_start..line.target_end])
        else {
            return Err(HttpDecodeError::head(
                HttpFault::TargetForm,
                target_start,
                window.get(target_start).copied(),
            ));
        };
        let is_11 = self.version == HttpVersion::Http11;
        if is_11 && self.host.is_none() {
            return Err(HttpDecodeError::head(HttpFault::HostMissing, end, None));
        }
        let body = match self.length {
            _ if self.chunked => BodyLength::Chunked,
            None | Some(0) => BodyLength::None,
            Some(length) if length > limits.body_size_max => {
                return Err(HttpDecodeError::head(HttpFault::BodySize, end, None));
            }
            Some(length) => BodyLength::Sized(length),
        };
        let persistent = self.is_persistent();
        Ok(RequestHead {
            method,
            target,
            version: self.version,
            // RFC 9112 §3.2.2: the target's authority overrides Host.
            host: authority.or(self.host),
            body,
            persistent,
            http10_keep_alive: persistent && self.version == HttpVersion::Http10,
            // RFC 9110 §10.1.1: ignored from HTTP/1.0 and without content.
            expect_continue: self.expects_continue && is_11 && body != BodyLength::None,
            // RFC 9110 §7.8: ignored from HTTP/1.0 and when Connection does not name it.
            upgrade: self.upgrade.filter(|_| is_11 && self.upgrades),
            section: &window[line.end..end],
        })
    }
}

/// A well-formed list of codings without chunked is merely unsupported (RFC 9112 §6.1: 501); with chunked before
/// another coding the length is unknowable (§6.3: 400).
#[cold]
fn unknown_coding(value: &[u8]) -> HttpFault {
    let mut chunked = false;
    for coding in value.split(|&b| b == b',') {
        let name = trim(coding.split(|&b| b == b';').next().unwrap_or_default());
        if chunked || name.is_empty() || !name.iter().all(|&b| is_token(b)) {
            return HttpFault::TransferEncoding;
        }
        chunked = name.eq_ignore_ascii_case(b"chunked");
    }
    let first = trim(value.split(|&b| b == b',' || b == b';').next().unwrap_or_default());
    if first.eq_ignore_ascii_case(b"chunked") {
        HttpFault::TransferEncoding
    } else {
        HttpFault::TransferUnknown
    }
}
