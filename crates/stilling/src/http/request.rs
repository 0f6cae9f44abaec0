//! A request as a handler sees it, and how one is kept until a worker has it.
//!
//! A handler in the shard looks at the receive buffer itself. Whoever waits, for a body or for a worker,
//! is copied once: the head as it came, the body as it comes. The worker reads the head again, which
//! costs it less than keeping the parts of it beside its bytes would cost the shard.

use std::borrow::Cow;
use std::net::IpAddr;

use stilling_wire::http1::{Fields, Method, RequestHead};

use super::patterns::Patterns;

/// A request: head and, where there is one, whole body.
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

    /// What the placeholder `name` of the route's pattern stands for in this path, percent-decoded
    /// (RFC 3986 §2.1). `None`: the pattern has no such placeholder, or the text is not UTF-8.
    pub fn param(&self, name: &str) -> Option<Cow<'a, str>> {
        let raw = self.patterns.param(self.path(), name)?;
        percent_encoding::percent_decode_str(raw).decode_utf8().ok()
    }

    /// Whether the route's pattern has such a placeholder.
    pub(super) fn has_param(&self, name: &str) -> bool {
        self.patterns.param(self.path(), name).is_some()
    }

    /// The first value of `name` in the query, decoded as HTML forms are; what is not UTF-8 is replaced.
    pub fn query(&self, name: &str) -> Option<Cow<'a, str>> {
        self.queries().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// All names and values of the query, in their order, decoded as HTML forms are.
    pub fn queries(&self) -> impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)> + use<'a> {
        form_urlencoded::parse(self.head.target.query.unwrap_or_default())
    }

    /// The first value of the field `name`, compared without case.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.head.header(name)
    }

    /// All fields, in the order sent.
    pub fn headers(&self) -> Fields<'a> {
        self.head.headers()
    }

    /// The host that the client asked for, with its port if it named one.
    pub fn host(&self) -> Option<&'a [u8]> {
        self.head.host
    }

    /// The address from which the client's connection comes, which may be that of a proxy. `None` unless the routes ask
    /// for it with [`Routes::with_peers`](super::Routes::with_peers), and where the system does not tell: with direct
    /// descriptors.
    pub fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// The body; empty without one. At most `Limits::body_size_max` bytes.
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// The whole head, for those who need what has no name here.
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
