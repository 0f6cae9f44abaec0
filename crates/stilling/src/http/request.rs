//! A request as a handler sees it.
//!
//! An inline handler reads the receive buffer directly. A request that waits for its body or for a worker is copied:
//! the head when it is complete, the body as it arrives. The worker decodes the head again, which is cheaper than
//! storing the decoded parts in the shard.

use std::borrow::Cow;
use std::net::IpAddr;

use stilling_wire::http1::{Fields, Method, RequestHead};

use super::patterns::Patterns;

/// A request: head and, if there is one, the whole body.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    head: RequestHead<'a>,
    body: &'a [u8],
    patterns: &'a Patterns,
    peer: Option<IpAddr>,
}

impl<'a> Request<'a> {
    pub(super) fn new(
        head: RequestHead<'a>,
        body: &'a [u8],
        patterns: &'a Patterns,
        peer: Option<IpAddr>,
    ) -> Self {
        Request { head, body, patterns, peer }
    }

    /// The method.
    pub fn method(&self) -> Method<'a> {
        self.head.method
    }

    /// The path as sent, at least `/`; not decoded.
    pub fn path(&self) -> &'a [u8] {
        self.head.target.path
    }

    /// The value of the placeholder `name` of the route's pattern, percent-decoded (RFC 3986 §2.1). `None`: the
    /// pattern has no such placeholder, or the text is not UTF-8.
    pub fn param(&self, name: &str) -> Option<Cow<'a, str>> {
        let raw = self.patterns.param(self.path(), name)?;
        percent_encoding::percent_decode_str(raw).decode_utf8().ok()
    }

    pub(super) fn has_param(&self, name: &str) -> bool {
        self.patterns.param(self.path(), name).is_some()
    }

    /// The first value of `name` in the query, decoded like an HTML form; invalid UTF-8 is replaced.
    pub fn query(&self, name: &str) -> Option<Cow<'a, str>> {
        self.queries().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// All names and values of the query, in order, decoded like an HTML form.
    pub fn queries(&self) -> impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)> + use<'a> {
        form_urlencoded::parse(self.head.target.query.unwrap_or_default())
    }

    /// The first value of the field `name`, which is case-insensitive.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.head.header(name)
    }

    /// All fields, in the order sent.
    pub fn headers(&self) -> Fields<'a> {
        self.head.headers()
    }

    /// The host that the client requests, with its port if given.
    pub fn host(&self) -> Option<&'a [u8]> {
        self.head.host
    }

    /// The client's address, which may be that of a proxy. `None` without
    /// [`Routes::with_peer_addresses`](super::Routes::with_peer_addresses), and with direct descriptors, for which the system reports no
    /// address.
    pub fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// The body; empty without one. At most [`HttpLimits::body_size_max`](super::HttpLimits::body_size_max) bytes.
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// The whole head.
    pub fn head(&self) -> &RequestHead<'a> {
        &self.head
    }
}

impl std::fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RequestHead { method, target, .. } = &self.head;
        let (method, target) = (method.as_bytes().escape_ascii(), target.raw.escape_ascii());
        write!(f, "{method} {target} with {} bytes of body", self.body.len())
    }
}
