//! What can be wrong with a connection: who is at fault, the evidence, and what helps.

use std::fmt;
use std::io;

use crate::limits::QUOTED_TEXT_SIZE_MAX;

/// What is wrong with a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConnectionError {
    /// The host's name has no address.
    Name {
        /// The server.
        server: String,
        /// What the system says.
        detail: String,
    },
    /// The system could not connect.
    Connect {
        /// The server.
        server: String,
        /// The kind of error.
        kind: io::ErrorKind,
        /// What the system says.
        detail: String,
    },
    /// The connection was not there in time.
    ConnectTimeout {
        /// The server.
        server: String,
    },
    /// The server did not greet in time.
    HandshakeTimeout {
        /// The server.
        server: String,
    },
    /// The server closed the connection.
    Closed,
    /// The connection broke.
    Broken {
        /// The kind of error.
        kind: io::ErrorKind,
        /// What the system says.
        detail: String,
    },
    /// The other side does not speak the NATS protocol.
    Protocol(String),
    /// The server does not know who we say we are, or does not let us in.
    NotAuthorized(String),
    /// The server wants TLS.
    Tls,
    /// The server does not understand headers.
    NoHeaders,
    /// The server closed the connection because too much had not been read.
    SlowConsumer,
    /// The server refused something else; its words.
    ServerMessage(String),
    /// Nothing came in time on a connection that is open.
    Hung,
    /// The server is about to stop.
    LameDuck,
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectionError::Name { server, detail } => {
                write!(f, "{server} has no address: {detail}; check the name and the resolver")
            }
            ConnectionError::Connect { server, kind: io::ErrorKind::ConnectionRefused, .. } => {
                write!(f, "no server listens at {server}: start it, or check address and port")
            }
            ConnectionError::Connect { server, detail, .. } => write!(f, "{server} cannot be reached: {detail}"),
            ConnectionError::ConnectTimeout { server } => {
                write!(
                    f,
                    "{server} does not accept connections in time: it is overloaded, or a firewall is between"
                )
            }
            ConnectionError::HandshakeTimeout { server } => {
                write!(f, "{server} accepts connections and says nothing: is it a NATS port?")
            }
            ConnectionError::Closed => f.write_str("the server closed the connection"),
            ConnectionError::Broken { detail, .. } => write!(f, "the connection broke: {detail}"),
            ConnectionError::Protocol(what) => {
                write!(f, "the other side does not speak the NATS protocol ({what}): is it a NATS port?")
            }
            ConnectionError::NotAuthorized(detail) => {
                write!(
                    f,
                    "the server does not let us in ({detail}): check user and password or token in the address"
                )
            }
            ConnectionError::Tls => f.write_str("the server wants TLS, which is not spoken: use a port without it"),
            ConnectionError::NoHeaders => f.write_str(
                "the server does not understand headers, which acknowledged messages need: update it, or send one-way",
            ),
            ConnectionError::SlowConsumer => f.write_str("the server closed the connection: slow consumer"),
            ConnectionError::ServerMessage(detail) => write!(f, "the server says {detail:?}"),
            ConnectionError::Hung => {
                f.write_str("the connection is open and nothing comes: the server hangs, or the network is gone")
            }
            ConnectionError::LameDuck => f.write_str("the server is about to stop"),
        }
    }
}

impl std::error::Error for ConnectionError {}

impl ConnectionError {
    pub(crate) fn from_io(error: &io::Error) -> ConnectionError {
        ConnectionError::Broken { kind: error.kind(), detail: error.to_string() }
    }

    /// What a server's `-ERR` means for the connection.
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

/// What a server said, as text that can be printed, cut to a length that can be read.
pub(crate) fn quote(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(QUOTED_TEXT_SIZE_MAX)];
    String::from_utf8_lossy(cut)
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}
