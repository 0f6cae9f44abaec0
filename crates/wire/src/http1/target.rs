//! The request target's four forms (RFC 9112 §3.2) and the `host[:port]` of a `Host` field or an authority.

use super::Method;
use super::byte_class::{host_end, is_host, position};

/// The form of a request target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetForm {
    /// `/path?query`
    Origin,
    /// `http://host/path?query`, as sent to a proxy.
    Absolute,
    /// `host:port`, only with `CONNECT`.
    Authority,
    /// `*`, only with `OPTIONS`.
    Asterisk,
}

/// A request target split into its parts; nothing is decoded or normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTarget<'a> {
    /// The target as sent.
    pub raw: &'a [u8],
    /// The path, at least `/`; `*` for the asterisk form, empty for `CONNECT`.
    pub path: &'a [u8],
    /// The part after the first `?`.
    pub query: Option<&'a [u8]>,
    /// The form.
    pub form: TargetForm,
}

impl<'a> RequestTarget<'a> {
    fn with_path(raw: &'a [u8], from: &'a [u8], form: TargetForm) -> Self {
        match position(from, 0, b'?') {
            Some(mark) => Self { raw, path: &from[..mark], query: Some(&from[mark + 1..]), form },
            None => Self { raw, path: from, query: None, form },
        }
    }

    /// Returns the target and its authority, if present; `None` if `method` does not allow the form.
    #[inline]
    pub(crate) fn parse(method: Method<'_>, raw: &'a [u8]) -> Option<(Self, Option<&'a [u8]>)> {
        match method {
            Method::Connect => {
                // RFC 9112 §3.2.3: host and port are both required.
                let (_, port) = split_authority(raw)?;
                port.filter(|port| !port.is_empty())?;
                let target = Self { raw, path: b"", query: None, form: TargetForm::Authority };
                Some((target, Some(raw)))
            }
            _ if raw.first() == Some(&b'/') => Some((Self::with_path(raw, raw, TargetForm::Origin), None)),
            // RFC 9112 §3.2.4.
            Method::Options if raw == b"*" => {
                Some((Self { raw, path: b"*", query: None, form: TargetForm::Asterisk }, None))
            }
            _ => Self::absolute(method, raw),
        }
    }

    // RFC 9112 §3.2.2. Userinfo is rejected as RFC 9110 §4.2.4 advises.
    #[cold]
    fn absolute(method: Method<'_>, raw: &'a [u8]) -> Option<(Self, Option<&'a [u8]>)> {
        let scheme_end = position(raw, 0, b':')?;
        let scheme = &raw[..scheme_end];
        if !scheme.eq_ignore_ascii_case(b"http") && !scheme.eq_ignore_ascii_case(b"https") {
            return None;
        }
        let rest = raw[scheme_end..].strip_prefix(b"://")?;
        let authority_end = rest.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(authority_end);
        let (host, _) = split_authority(authority)?;
        if host.is_empty() {
            return None;
        }
        let mut target = Self::with_path(raw, tail, TargetForm::Absolute);
        if target.path.is_empty() {
            // RFC 9112 §3.2.4: an OPTIONS without path and query addresses the server itself.
            let of_server = method == Method::Options && target.query.is_none();
            target.path = if of_server { b"*" } else { b"/" };
        }
        Some((target, Some(authority)))
    }
}

/// Whether `bytes` is a valid `Host` value: empty (RFC 9110 §7.2), or a host and an optional port.
#[inline]
pub(crate) fn is_host_value(bytes: &[u8]) -> bool {
    bytes.is_empty() || split_authority(bytes).is_some_and(|(host, _)| !host.is_empty())
}

/// Splits `host[:port]` by RFC 3986 §3.2.2 and §3.2.3; `None` when the host is neither a name nor an address.
#[inline]
fn split_authority(bytes: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let mut at = 0;
    if bytes.first() == Some(&b'[') {
        at = position(bytes, 0, b']')? + 1;
        let address = &bytes[1..at - 1];
        if address.is_empty() || !address.iter().all(|&b| is_host(b) || b == b':') {
            return None;
        }
    } else {
        at = host_end(bytes, at);
        while bytes.get(at) == Some(&b'%') {
            if !bytes.get(at + 1..at + 3)?.iter().all(u8::is_ascii_hexdigit) {
                return None;
            }
            at = host_end(bytes, at + 3);
        }
    }
    let (host, rest) = bytes.split_at(at);
    match rest {
        [] => Some((host, None)),
        [b':', port @ ..] if port.iter().all(u8::is_ascii_digit) => Some((host, Some(port))),
        _ => None,
    }
}
