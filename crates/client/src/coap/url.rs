//! `coap` URIs (RFC 7252 §6): `coap://host:port/path?query`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use percent_encoding::percent_decode_str;

/// Default port (RFC 7252 §6.1).
const PORT: u16 = 5683;

/// Longest path segment, query argument and host name in bytes (RFC 7252 §5.10).
const COMPONENT_SIZE_MAX: usize = 255;

/// A parsed URI.
///
/// ```
/// use stilling_client::coap::CoapUrl;
///
/// let url: CoapUrl = "coap://[::1]/sensors/a%2Fb?unit=c".parse()?;
/// assert_eq!((url.host.as_str(), url.port), ("::1", 5683));
/// assert_eq!((&url.path[..], &url.query[..]), (&["sensors".to_owned(), "a/b".to_owned()][..], &["unit=c".to_owned()][..]));
/// assert_eq!(url.server(), "[::1]:5683");
/// # Ok::<(), stilling_client::coap::BadCoapUrl>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoapUrl {
    /// A name or an address; an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The decoded segments of the path.
    pub path: Vec<String>,
    /// The decoded arguments of the query.
    pub query: Vec<String>,
}

/// A malformed URI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadCoapUrl {
    /// The scheme is not `coap`.
    Scheme,
    /// DTLS or TCP, which are not supported.
    Transport,
    /// No host.
    Host,
    /// A port that is not 1 to 65535.
    Port,
    /// A fragment.
    Fragment,
    /// A component that is not UTF-8 after percent-decoding.
    Encoding,
    /// A host, path segment or query argument of more than 255 bytes.
    TooLong,
}

impl fmt::Display for BadCoapUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadCoapUrl::Scheme => "an address begins with coap://",
            BadCoapUrl::Transport => "only coap:// over UDP is supported: no DTLS, no TCP",
            BadCoapUrl::Host => "the address has no host: coap://host:port/path",
            BadCoapUrl::Port => "a port is 1 to 65535",
            BadCoapUrl::Fragment => "a coap address has no fragment: write # as %23",
            BadCoapUrl::Encoding => "host, path and query are UTF-8, with %xx for other bytes",
            BadCoapUrl::TooLong => "host, path segments and query arguments have at most 255 bytes each",
        })
    }
}

impl std::error::Error for BadCoapUrl {}

impl CoapUrl {
    /// `host:port`, with brackets around an IPv6 address.
    #[must_use]
    pub fn server(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The host if it is a name, which goes into the option `Uri-Host` (RFC 7252 §6.4).
    #[must_use]
    pub fn host_name(&self) -> Option<&str> {
        let is_address = self.host.parse::<IpAddr>().is_ok() || self.host.contains(':');
        (!is_address).then_some(&self.host)
    }
}

impl FromStr for CoapUrl {
    type Err = BadCoapUrl;

    fn from_str(text: &str) -> Result<CoapUrl, BadCoapUrl> {
        let rest = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("coap") => rest,
            Some((scheme, _)) if scheme.to_ascii_lowercase().starts_with("coap") => {
                return Err(BadCoapUrl::Transport);
            }
            _ => return Err(BadCoapUrl::Scheme),
        };
        if rest.contains('#') {
            return Err(BadCoapUrl::Fragment);
        }
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = parse_authority(authority)?;
        let path = if path.is_empty() { Ok(Vec::new()) } else { path.split('/').map(decode).collect() };
        let query = query.map_or(Ok(Vec::new()), |query| query.split('&').map(decode).collect());
        Ok(CoapUrl { host, port, path: path?, query: query? })
    }
}

fn parse_authority(text: &str) -> Result<(String, u16), BadCoapUrl> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host.to_owned(), None),
        Some((host, rest)) => (host.to_owned(), Some(rest.strip_prefix(':').ok_or(BadCoapUrl::Port)?)),
        None => match text.rsplit_once(':') {
            Some((host, port)) => (decode(host)?.to_lowercase(), Some(port)),
            None => (decode(text)?.to_lowercase(), None),
        },
    };
    if host.is_empty() || host.contains('@') {
        return Err(BadCoapUrl::Host);
    }
    let port = match port {
        None | Some("") => PORT,
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            port.parse().ok().filter(|port| *port > 0).ok_or(BadCoapUrl::Port)?
        }
        Some(_) => return Err(BadCoapUrl::Port),
    };
    Ok((host, port))
}

fn decode(part: &str) -> Result<String, BadCoapUrl> {
    let text = percent_decode_str(part).decode_utf8().map_err(|_| BadCoapUrl::Encoding)?;
    if text.len() > COMPONENT_SIZE_MAX { Err(BadCoapUrl::TooLong) } else { Ok(text.into_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_is_taken_apart_as_the_standard_says() {
        let check = |text: &str, server: &str, path: &[&str], query: &[&str]| {
            let url: CoapUrl = text.parse().expect(text);
            assert_eq!(url.server(), server, "{text}");
            assert_eq!((url.path, url.query), (path.map_owned(), query.map_owned()), "{text}");
        };
        check("coap://h", "h:5683", &[], &[]);
        check("COAP://EXAMPLE.com:5683/", "example.com:5683", &[], &[]);
        check("coap://h/%7Esensors/temp.xml", "h:5683", &["~sensors", "temp.xml"], &[]);
        // RFC 7252 §6.4: only a path of one slash is empty.
        check("coap://h//", "h:5683", &["", ""], &[]);
        check("coap://[fe80::1]:9/a?x=1&y&&z=%26", "[fe80::1]:9", &["a"], &["x=1", "y", "", "z=&"]);
        check("coap://127.0.0.1?q", "127.0.0.1:5683", &[], &["q"]);
    }

    trait MapOwned {
        fn map_owned(&self) -> Vec<String>;
    }

    impl MapOwned for [&str] {
        fn map_owned(&self) -> Vec<String> {
            self.iter().map(|part| (*part).to_owned()).collect()
        }
    }

    #[test]
    fn a_mistake_in_a_uri_is_named() {
        let check = |text: &str, bad: BadCoapUrl| assert_eq!(text.parse::<CoapUrl>(), Err(bad), "{text}");
        check("http://h", BadCoapUrl::Scheme);
        check("h/path", BadCoapUrl::Scheme);
        check("coaps://h", BadCoapUrl::Transport);
        check("coap+tcp://h", BadCoapUrl::Transport);
        check("coap:///path", BadCoapUrl::Host);
        check("coap://user@h", BadCoapUrl::Host);
        check("coap://h:0/", BadCoapUrl::Port);
        check("coap://[::1]9/", BadCoapUrl::Port);
        check("coap://h/a#b", BadCoapUrl::Fragment);
        check("coap://h/%ff", BadCoapUrl::Encoding);
        check(&format!("coap://h/{}", "a".repeat(256)), BadCoapUrl::TooLong);
    }

    #[test]
    fn only_a_name_is_sent_as_the_host() {
        let name = |text: &str| text.parse::<CoapUrl>().expect(text).host_name().map(str::to_owned);
        assert_eq!(name("coap://localhost/"), Some("localhost".to_owned()));
        assert_eq!(name("coap://127.0.0.1/"), None);
        assert_eq!(name("coap://[::1]/"), None);
    }
}
