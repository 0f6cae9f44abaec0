//! CoAP over UDP: messages (RFC 7252), block-wise transfer (RFC 7959), Observe (RFC 7641), Echo and Request-Tag
//! (RFC 9175) and No-Response (RFC 7967), both directions.
//!
//! ```text
//!   datagram ─► CoapMessage ─► Options ─► CoapOption ─► uint, BlockValue, ObserveSequence, NoResponse
//!               └ CoapDecodeError ─► Reaction
//!
//!   MessageWriter ─► the caller's buffer
//! ```
//!
//! Contract:
//! - A datagram is one message. [`CoapMessage::parse`] checks it completely: options and payload are slices of it, and
//!   reading them cannot fail.
//! - An error names the broken rule and the reaction that RFC 7252 §4.2 and §4.3 require: silence or a reset.
//! - Options that are syntactically valid may still be wrong: [`Options::recognised`] applies the rules for unknown
//!   options, lengths and repetitions of RFC 7252 §5.4.
//! - Options are written in the order of their numbers. Nothing is written that does not fit the buffer.

mod block;
mod code;
mod content_format;
mod encode;
mod error;
pub mod limits;
mod message;
mod no_response;
mod observe;
mod option_number;
mod options;
mod token;
mod uint;

#[cfg(any(test, feature = "check"))]
#[doc(hidden)]
pub mod check;
#[cfg(test)]
mod tests;

pub use block::{BlockSize, BlockValue, ReservedBlockSize};
pub use code::Code;
pub use content_format::ContentFormat;
pub use encode::{CoapEncodeError, MessageWriter, encode_empty};
pub use error::{CoapDecodeError, CoapFault, Reaction};
pub use message::{CoapMessage, MessageContent, MessageId, MessageType};
pub use no_response::NoResponse;
pub use observe::ObserveSequence;
pub use option_number::{OptionDefinition, OptionFormat, OptionNumber};
pub use options::{CoapOption, Options, Recognised, UnrecognisedOption};
pub use token::Token;
pub use uint::{UintValue, decode_uint};
