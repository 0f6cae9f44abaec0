//! Target of the load. Plain `http` only; the host is resolved once, at the start.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};

/// An `http` URL with the addresses of its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    text: String,
    /// Index of `/` in `text`; the end if there is no path.
    target_start: usize,
    addresses: Vec<SocketAddr>,
}

const SCHEME: &str = "http://";

const PORT: u16 = 80;

/// An unsupported URL, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidUrl {
    url: String,
    why: String,
}

impl fmt::Display for InvalidUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a usable URL: {}", self.url, self.why)
    }
}

impl std::error::Error for InvalidUrl {}

impl Url {
    /// Parses `http://host[:port][/path][?query]` and resolves the host, which may query a name server.
    ///
    /// # Errors
    /// Another scheme, user names, fragments, bytes that need escaping, or an unknown host.
    pub fn parse(text: &str) -> Result<Url, InvalidUrl> {
        let bad = |why: &str| InvalidUrl { url: text.to_owned(), why: why.to_owned() };
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| bad("expected http://host[:port][/path]"))?;
        if let Some(byte) = text.bytes().find(|byte| !byte.is_ascii_graphic() || *byte == b'#') {
            return Err(bad(&format!("byte {:#04x} does not belong there", byte)));
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let authority = &rest[..end];
        if authority.is_empty() || authority.contains('@') {
            return Err(bad("expected a host, without a user"));
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        let addresses = if has_port {
            authority.to_socket_addrs()
        } else {
            // A bare IPv6 address has brackets in an authority but not in a lookup.
            (authority.trim_matches(['[', ']']), PORT).to_socket_addrs()
        };
        let addresses: Vec<SocketAddr> = addresses.map_err(|error| bad(&error.to_string()))?.collect();
        if addresses.is_empty() {
            return Err(bad("its host has no address"));
        }
        Ok(Url { text: text.to_owned(), target_start: SCHEME.len() + end, addresses })
    }

    /// The URL as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Host and port, for the `Host` field.
    pub fn authority(&self) -> &str {
        &self.text[SCHEME.len()..self.target_start]
    }

    /// Path and query after the host; may be empty or begin with `?`.
    pub(crate) fn after_authority(&self) -> &str {
        &self.text[self.target_start..]
    }

    /// The addresses of the host, at least one.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_gives_its_address_authority_and_target() {
        let check = |text: &str, address: &str, authority: &str, after: &str| {
            let url = Url::parse(text).unwrap();
            assert_eq!(url.addresses(), [address.parse().unwrap()], "{text}");
            assert_eq!((url.authority(), url.after_authority()), (authority, after), "{text}");
        };
        check("http://127.0.0.1:9000/test/fast", "127.0.0.1:9000", "127.0.0.1:9000", "/test/fast");
        check("http://127.0.0.1", "127.0.0.1:80", "127.0.0.1", "");
        check("http://127.0.0.1?q=1", "127.0.0.1:80", "127.0.0.1", "?q=1");
        check("http://[::1]:81/a?b=/c", "[::1]:81", "[::1]:81", "/a?b=/c");
        check("http://[::1]/", "[::1]:80", "[::1]", "/");
    }

    #[test]
    fn what_is_no_url_is_refused_with_the_reason() {
        for text in
            ["https://a/", "127.0.0.1:9000", "http:///x", "http://u@127.0.0.1/", "http://127.0.0.1/#a"]
        {
            let error = Url::parse(text).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
        assert!(Url::parse("http://127.0.0.1/a b").unwrap_err().to_string().contains("0x20"));
        assert!(Url::parse("http://127.0.0.1:70000/").is_err());
    }
}
