//! Server addresses and credentials: `nats://user:password@host:port`, `nats://token@host`, `host:port`,
//! `unix:///path`.
//!
//! Addresses are parsed once, at the start: a malformed address is an error at once, while an unreachable server is
//! retried.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::percent_decode_str;

/// Default port of the NATS protocol.
const PORT: u16 = 4222;

/// Credentials of a client.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum Credentials {
    /// No credentials.
    #[default]
    Anonymous,
    /// User and password.
    User {
        /// The user's name.
        name: String,
        /// The password.
        password: String,
    },
    /// A token.
    Token(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credentials::Anonymous => f.write_str("Anonymous"),
            Credentials::User { name, .. } => write!(f, "User({name})"),
            Credentials::Token(_) => f.write_str("Token"),
        }
    }
}

/// The transport address of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerAddress {
    /// TCP; the host is a name or an address, resolved at each connection attempt.
    Tcp {
        /// The host; an IPv6 address without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

/// A server and the credentials for it.
///
/// ```
/// use stilling_client::{Credentials, ServerUrl};
///
/// let server: ServerUrl = "nats://alice:a%40b@example.net".parse()?;
/// assert_eq!(server.to_string(), "nats://example.net:4222");
/// assert!(matches!(server.credentials, Credentials::User { ref password, .. } if password == "a@b"));
/// # Ok::<(), stilling_client::BadAddress>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerUrl {
    /// The transport address.
    pub address: ServerAddress,
    /// The credentials.
    pub credentials: Credentials,
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            ServerAddress::Tcp { host, port } if host.contains(':') => write!(f, "nats://[{host}]:{port}"),
            ServerAddress::Tcp { host, port } => write!(f, "nats://{host}:{port}"),
            ServerAddress::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

/// An address that cannot be parsed. The text is not repeated, because it may contain a password.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadAddress {
    /// A scheme that is neither `nats` nor `unix`.
    Scheme,
    /// TLS, which is not supported.
    Tls,
    /// No host.
    Host,
    /// A port that is not 1 to 65535.
    Port,
    /// User, password or token that are not UTF-8 after percent-decoding.
    Credentials,
    /// A path after the port.
    Path,
    /// The path of the Unix socket is not absolute.
    UnixPath,
}

impl fmt::Display for BadAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadAddress::Scheme => "an address begins with nats:// or unix://, or is host:port",
            BadAddress::Tls => "TLS is not supported: use nats:// on a trusted network or through a tunnel",
            BadAddress::Host => "the address has no host: nats://host:port",
            BadAddress::Port => "a port is 1 to 65535",
            BadAddress::Credentials => {
                "user, password and token are UTF-8, with %xx for each of / @ : % in them"
            }
            BadAddress::Path => "nothing follows the port of an address",
            BadAddress::UnixPath => "a Unix socket is named by its absolute path: unix:///run/stilling/nats",
        })
    }
}

impl std::error::Error for BadAddress {}

impl FromStr for ServerUrl {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<ServerUrl, BadAddress> {
        let rest = match text.split_once("://") {
            None => text,
            Some(("nats", rest)) => rest,
            Some(("tls", _)) => return Err(BadAddress::Tls),
            Some(("unix", path)) if path.starts_with('/') => {
                let address = ServerAddress::Unix(PathBuf::from(path));
                return Ok(ServerUrl { address, credentials: Credentials::Anonymous });
            }
            Some(("unix", _)) => return Err(BadAddress::UnixPath),
            Some(_) => return Err(BadAddress::Scheme),
        };
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((credentials, rest)) => (parse_credentials(credentials)?, rest),
            None => (Credentials::Anonymous, rest),
        };
        let (host, port) = split_port(rest.strip_suffix('/').unwrap_or(rest))?;
        Ok(ServerUrl { address: ServerAddress::Tcp { host: host.to_owned(), port }, credentials })
    }
}

fn parse_credentials(text: &str) -> Result<Credentials, BadAddress> {
    let decoded = |part: &str| {
        let text = percent_decode_str(part).decode_utf8().map_err(|_| BadAddress::Credentials)?;
        Ok(text.into_owned())
    };
    Ok(match text.split_once(':') {
        Some((name, password)) => Credentials::User { name: decoded(name)?, password: decoded(password)? },
        None => Credentials::Token(decoded(text)?),
    })
}

fn split_port(text: &str) -> Result<(&str, u16), BadAddress> {
    if text.contains('/') {
        return Err(BadAddress::Path);
    }
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, Some(rest.strip_prefix(':').ok_or(BadAddress::Port)?)),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err(BadAddress::Host);
    }
    let port = match port {
        None => PORT,
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            port.parse().ok().filter(|port| *port > 0).ok_or(BadAddress::Port)?
        }
        Some(_) => return Err(BadAddress::Port),
    };
    Ok((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_contains_server_and_credentials() {
        let check = |text: &str, shown: &str, credentials: Credentials| {
            let server: ServerUrl = text.parse().expect(text);
            assert_eq!(server.to_string(), shown, "{text}");
            assert_eq!(server.credentials, credentials, "{text}");
        };
        let user = |name: &str, password: &str| Credentials::User {
            name: name.to_owned(),
            password: password.to_owned(),
        };
        check("nats://127.0.0.1:4000", "nats://127.0.0.1:4000", Credentials::Anonymous);
        check("localhost", "nats://localhost:4222", Credentials::Anonymous);
        check("nats://[::1]:9", "nats://[::1]:9", Credentials::Anonymous);
        check("[::1]", "nats://[::1]:4222", Credentials::Anonymous);
        check("nats://a:b@h/", "nats://h:4222", user("a", "b"));
        check("nats://a:b%3A%2F@h", "nats://h:4222", user("a", "b:/"));
        check("nats://t0ken@h:1", "nats://h:1", Credentials::Token("t0ken".to_owned()));
        check("unix:///run/x", "unix:///run/x", Credentials::Anonymous);
    }

    #[test]
    fn a_mistake_in_an_address_is_named_and_no_secret_repeated() {
        let check = |text: &str, bad: BadAddress| {
            assert_eq!(text.parse::<ServerUrl>(), Err(bad), "{text}");
            assert!(!bad.to_string().contains("secret"));
        };
        check("http://h", BadAddress::Scheme);
        check("tls://h", BadAddress::Tls);
        check("nats://", BadAddress::Host);
        check("nats://secret@:1", BadAddress::Host);
        check("nats://h:0", BadAddress::Port);
        check("nats://h:65536", BadAddress::Port);
        check("nats://h:+1", BadAddress::Port);
        check("nats://h:", BadAddress::Port);
        check("nats://[::1]1", BadAddress::Port);
        check("nats://h:1/path", BadAddress::Path);
        check("nats://%ff@h", BadAddress::Credentials);
        check("unix://relative", BadAddress::UnixPath);
    }

    #[test]
    fn a_printed_server_keeps_its_secrets() {
        let printed = format!("{:?}", "nats://alice:secret@h".parse::<ServerUrl>());
        assert!(printed.contains("alice") && !printed.contains("secret"), "{printed}");
        assert!(!format!("{:?}", "nats://secret@h".parse::<ServerUrl>()).contains("secret"));
    }
}
