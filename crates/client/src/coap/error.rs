//! Errors of the CoAP client: what failed, which side is at fault, and a remedy.

use std::fmt;
use std::time::Duration;

use stilling_wire::coap::{CoapEncodeError, OptionNumber};

/// The reason why a request has no response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CoapClientError {
    /// The host's name has no address.
    Name {
        /// The server.
        server: String,
        /// The system's error text.
        detail: String,
    },
    /// The server's machine reports that the port is closed.
    Refused {
        /// The server.
        server: String,
    },
    /// The socket failed.
    Socket {
        /// The server.
        server: String,
        /// The system's error text.
        detail: String,
    },
    /// A message of the request does not fit: its path, query or options are too long.
    TooLong(CoapEncodeError),
    /// The body of the request has more blocks than a block number can count.
    TooManyBlocks,
    /// All message ids were used within the lifetime of an exchange.
    IdsExhausted,
    /// All transmissions of a confirmable message remained without an answer.
    Unanswered {
        /// Number of transmissions.
        transmissions: u32,
    },
    /// The request was not complete in time.
    TimedOut {
        /// The time it had.
        timeout: Duration,
        /// Whether the server had acknowledged the last message without a response.
        is_acknowledged: bool,
        /// Bytes of the response body received so far.
        received: usize,
    },
    /// The server rejected a message with a reset.
    Reset,
    /// The response has a critical option that the client does not know.
    UnrecognisedOption(OptionNumber),
    /// The response's body is longer than configured.
    ResponseTooLarge {
        /// The configured maximum in bytes.
        size_max: usize,
    },
    /// A block is not the one that was requested.
    WrongBlock {
        /// Offset of the requested block in bytes.
        expected: usize,
        /// Offset of the received block in bytes; `None` if its option is malformed or missing.
        received: Option<usize>,
    },
    /// A block has fewer or more bytes than its option says.
    BlockLength {
        /// Bytes of the block.
        expected: usize,
        /// Bytes received.
        received: usize,
    },
    /// The resource changed during each transfer.
    BodyChanged {
        /// Number of transfers.
        transfers: u32,
    },
}

impl fmt::Display for CoapClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CoapClientError::Name { server, detail } => {
                write!(f, "cannot resolve {server}: {detail}; check the name and the resolver")
            }
            CoapClientError::Refused { server } => {
                write!(f, "no CoAP server listens at {server}: start it, or check address and port")
            }
            CoapClientError::Socket { server, detail } => write!(f, "{server} cannot be reached: {detail}"),
            CoapClientError::TooLong(CoapEncodeError::Full) => {
                f.write_str("the path, query and options of the request do not fit a message: shorten them")
            }
            CoapClientError::TooLong(error) => write!(f, "the request cannot be written: {error}"),
            CoapClientError::TooManyBlocks => {
                f.write_str("the request body has more than 1048576 blocks: use larger blocks")
            }
            CoapClientError::IdsExhausted => f.write_str(
                "65536 messages were sent within 247 s, so their ids would repeat: use several clients",
            ),
            CoapClientError::Unanswered { transmissions } => write!(
                f,
                "no answer to {transmissions} transmissions: the server is down, or the network loses packets"
            ),
            CoapClientError::TimedOut { timeout, is_acknowledged, received } => {
                write!(f, "no complete response within {} s: ", timeout.as_secs_f64())?;
                match (is_acknowledged, received) {
                    (true, _) => f.write_str("the server received the request and did not respond"),
                    (false, 0) => f.write_str("nothing was received"),
                    (false, received) => write!(f, "{received} bytes were received"),
                }
            }
            CoapClientError::Reset => {
                f.write_str("the server rejected the message with a reset: it cannot process it")
            }
            CoapClientError::UnrecognisedOption(number) => {
                write!(f, "the response has the critical {number}, which this client does not know")
            }
            CoapClientError::ResponseTooLarge { size_max } => {
                write!(f, "the response has more than {size_max} bytes: raise the maximum")
            }
            CoapClientError::WrongBlock { expected, received: Some(received) } => {
                write!(f, "the server sent the block at byte {received} instead of the one at {expected}")
            }
            CoapClientError::WrongBlock { expected, received: None } => {
                write!(f, "the server did not send the block at byte {expected}")
            }
            CoapClientError::BlockLength { expected, received } => {
                write!(f, "the server sent a block of {expected} bytes with {received} bytes")
            }
            CoapClientError::BodyChanged { transfers } => {
                write!(f, "the resource changed during each of {transfers} transfers: try again later")
            }
        }
    }
}

impl std::error::Error for CoapClientError {}
