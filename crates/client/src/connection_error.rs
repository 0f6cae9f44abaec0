//! Connection errors: which side failed, the evidence and a remedy.

use std::fmt;
use std::io;

use crate::limits::QUOTED_TEXT_SIZE_MAX;

/// The failure of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConnectionError {
    /// The host's name has no address.
    Name {
        /// The server.
        server: String,
        /// The system's error text.
        detail: String,
    },
    /// Connecting failed.
    Connect {
        /// The server.
        server: String,
        /// The kind of error.
        kind: io::ErrorKind,
        /// The system's error text.
        detail: String,
    },
    /// The connection was not established in time.
    ConnectTimeout {
        /// The server.
        server: String,
    },
    /// The handshake did not end in time.
    HandshakeTimeout {
        /// The server.
        server: String,
    },
    /// The server closed the connection.
    Closed,
    /// The connection failed with an I/O error.
    Broken {
        /// The kind of error.
        kind: io::ErrorKind,
        /// The system's error text.
        detail: String,
    },
    /// The peer does not speak the NATS protocol.
    Protocol(String),
    /// The server rejected the credentials.
    NotAuthorized(String),
    /// The server requires TLS.
    Tls,
    /// The server does not support headers.
    NoHeaders,
    /// The server closed the connection because the client did not read fast enough.
    SlowConsumer,
    /// Any other `-ERR`, with its text.
    ServerMessage(String),
    /// Nothing was received in time on an open connection.
    Hung,
    /// The server is shutting down (lame duck mode).
    LameDuck,
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectionError::Name { server, detail } => {
                write!(f, "cannot resolve {server}: {detail}; check the name and the resolver")
            }
            ConnectionError::Connect { server, kind: io::ErrorKind::ConnectionRefused, .. } => {
                write!(f, "no server listens at {server}: start it, or check address and port")
            }
            ConnectionError::Connect { server, detail, .. } => write!(f, "{server} cannot be reached: {detail}"),
            ConnectionError::ConnectTimeout { server } => {
                write!(
                    f,
                    "{server} does not accept connections in time: it is overloaded, or a firewall drops packets"
                )
            }
            ConnectionError::HandshakeTimeout { server } => {
                write!(f, "{server} accepts connections and sends no INFO: is it a NATS port?")
            }
            ConnectionError::Closed => f.write_str("the server closed the connection"),
            ConnectionError::Broken { detail, .. } => write!(f, "the connection failed: {detail}"),
            ConnectionError::Protocol(what) => {
                write!(f, "the peer does not speak the NATS protocol ({what}): is it a NATS port?")
            }
            ConnectionError::NotAuthorized(detail) => {
                write!(
                    f,
                    "the server rejected the credentials ({detail}): check user and password or token in the address"
                )
            }
            ConnectionError::Tls => f.write_str("the server requires TLS, which is not supported: use a port without it"),
            ConnectionError::NoHeaders => f.write_str(
                "the server does not support headers, which acknowledged messages need: update it, or use the one-way mode",
            ),
            ConnectionError::SlowConsumer => f.write_str("the server closed the connection: slow consumer"),
            ConnectionError::ServerMessage(detail) => write!(f, "the server sent -ERR {detail:?}"),
            ConnectionError::Hung => {
                f.write_str("nothing received on an open connection: the server hangs, or the network is down")
            }
            ConnectionError::LameDuck => f.write_str("the server is shutting down"),
        }
    }
}

impl std::error::Error for ConnectionError {}

impl ConnectionError {
    pub(crate) fn from_io(error: &io::Error) -> ConnectionError {
        ConnectionError::Broken { kind: error.kind(), detail: error.to_string() }
    }

    /// The meaning of a server's `-ERR` for the connection.
    pub(crate) fn from_server_text(text: &[u8]) -> ConnectionError {
        let detail = quote(text);
        let lower = detail.to_ascii_lowercase();
        if lower.starts_with("authorization") || lower.starts_with("user authentication") {
            ConnectionError::NotAuthorized(detail)
        } else if lower.starts_with("slow consumer") {
            ConnectionError::SlowConsumer
        } else {
            ConnectionError::ServerMessage(detail)
        }
    }
}

/// A server's bytes as printable text, cut to [`QUOTED_TEXT_SIZE_MAX`].
pub(crate) fn quote(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(QUOTED_TEXT_SIZE_MAX)];
    String::from_utf8_lossy(cut)
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}
