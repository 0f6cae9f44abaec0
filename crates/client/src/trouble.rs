//! What can be wrong with a connection: who is at fault, the evidence, and what helps.

use std::fmt;
use std::io;

use crate::limits::EVIDENCE_SIZE_MAX;

/// What is wrong with a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The host's name has no address.
    Name {
        /// The server.
        server: String,
        /// What the system says.
        said: String,
    },
    /// The system could not connect.
    Connect {
        /// The server.
        server: String,
        /// The kind of error.
        kind: io::ErrorKind,
        /// What the system says.
        said: String,
    },
    /// The connection was not there in time.
    ConnectTimeout {
        /// The server.
        server: String,
    },
    /// The server did not greet in time.
    GreetingTimeout {
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
        said: String,
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
    Said(String),
    /// Nothing came in time on a connection that is open.
    Hung,
    /// The server is about to stop.
    LameDuck,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Name { server, said } => {
                write!(f, "{server} has no address: {said}; check the name and the resolver")
            }
            Trouble::Connect { server, kind: io::ErrorKind::ConnectionRefused, .. } => {
                write!(f, "no server listens at {server}: start it, or check address and port")
            }
            Trouble::Connect { server, said, .. } => write!(f, "{server} cannot be reached: {said}"),
            Trouble::ConnectTimeout { server } => {
                write!(
                    f,
                    "{server} does not accept connections in time: it is overloaded, or a firewall is between"
                )
            }
            Trouble::GreetingTimeout { server } => {
                write!(f, "{server} accepts connections and says nothing: is it a NATS port?")
            }
            Trouble::Closed => f.write_str("the server closed the connection"),
            Trouble::Broken { said, .. } => write!(f, "the connection broke: {said}"),
            Trouble::Protocol(what) => {
                write!(f, "the other side does not speak the NATS protocol ({what}): is it a NATS port?")
            }
            Trouble::NotAuthorized(said) => {
                write!(
                    f,
                    "the server does not let us in ({said}): check user and password or token in the address"
                )
            }
            Trouble::Tls => f.write_str("the server wants TLS, which is not spoken: use a port without it"),
            Trouble::NoHeaders => f.write_str(
                "the server does not understand headers, which acknowledged messages need: update it, or send one-way",
            ),
            Trouble::SlowConsumer => f.write_str("the server closed the connection: slow consumer"),
            Trouble::Said(said) => write!(f, "the server says {said:?}"),
            Trouble::Hung => {
                f.write_str("the connection is open and nothing comes: the server hangs, or the network is gone")
            }
            Trouble::LameDuck => f.write_str("the server is about to stop"),
        }
    }
}

impl std::error::Error for Trouble {}

impl Trouble {
    pub(crate) fn broken(error: &io::Error) -> Trouble {
        Trouble::Broken { kind: error.kind(), said: error.to_string() }
    }

    /// What a server's `-ERR` means for the connection.
    pub(crate) fn said(text: &[u8]) -> Trouble {
        let said = evidence(text);
        let lower = said.to_ascii_lowercase();
        if lower.starts_with("authorization") || lower.starts_with("user authentication") {
            Trouble::NotAuthorized(said)
        } else if lower.starts_with("slow consumer") {
            Trouble::SlowConsumer
        } else {
            Trouble::Said(said)
        }
    }
}

/// What a server said, as text that can be printed, cut to a length that can be read.
pub(crate) fn evidence(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(EVIDENCE_SIZE_MAX)];
    String::from_utf8_lossy(cut)
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}
