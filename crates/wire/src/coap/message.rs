//! Messages (RFC 7252 §3).
//!
//! ```text
//!   version:2 type:2 token length:4 │ code: 8 bits │ message id: 16 bits │ token │ options │ 0xff payload
//! ```

use super::code::Code;
use super::error::{CoapDecodeError, CoapFault, Reaction};
use super::limits::{HEADER_SIZE, TOKEN_SIZE_MAX};
use super::options::Options;
use super::token::Token;

/// The version of the protocol in its place.
pub(crate) const VERSION: u8 = 0x40;
const VERSION_MASK: u8 = 0xc0;
pub(crate) const TYPE_SHIFT: u32 = 4;
const TOKEN_SIZE_MASK: u8 = 0x0f;

/// Matches acknowledgements and resets to messages, and reveals duplicates.
pub type MessageId = u16;

/// How a message is transmitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MessageType {
    /// Retransmitted until it is acknowledged or reset.
    Confirmable = 0,
    /// Sent once.
    NonConfirmable = 1,
    /// Acknowledges a confirmable message, with the response or without.
    Acknowledgement = 2,
    /// Rejects a message.
    Reset = 3,
}

impl MessageType {
    const fn from_bits(bits: u8) -> Self {
        match bits & 0x03 {
            0 => Self::Confirmable,
            1 => Self::NonConfirmable,
            2 => Self::Acknowledgement,
            _ => Self::Reset,
        }
    }

    /// Whether RFC 7252 §4.3, table 1, has messages of this type with this content.
    const fn admits(self, content: MessageContent) -> bool {
        match (self, content) {
            (Self::Confirmable, _)
            | (Self::NonConfirmable, MessageContent::Request | MessageContent::Response)
            | (Self::Acknowledgement, MessageContent::Response | MessageContent::Empty)
            | (Self::Reset, MessageContent::Empty) => true,
            (Self::NonConfirmable, MessageContent::Empty)
            | (Self::Acknowledgement, MessageContent::Request)
            | (Self::Reset, MessageContent::Request | MessageContent::Response) => false,
        }
    }
}

/// What a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageContent {
    /// Nothing; a confirmable one is a ping, answered with a reset.
    Empty,
    /// A request; its method may be unknown.
    Request,
    /// A response.
    Response,
}

/// A checked message that borrows from its datagram.
///
/// ```
/// use stilling_wire::coap::{CoapMessage, Code, OptionNumber};
///
/// let message = CoapMessage::parse(b"\x41\x01\x00\x07t\xb4test\xff!")?;
/// assert_eq!((message.code, message.id), (Code::GET, 7));
/// assert_eq!(message.token.as_bytes(), b"t");
/// assert!(message.options.values(OptionNumber::URI_PATH).eq([b"test"]));
/// assert_eq!(message.payload, b"!");
/// # Ok::<(), stilling_wire::coap::CoapDecodeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoapMessage<'a> {
    /// The type.
    pub kind: MessageType,
    /// The content; it follows from the code.
    pub content: MessageContent,
    /// The method or status code.
    pub code: Code,
    /// The message id.
    pub id: MessageId,
    /// The token.
    pub token: Token,
    /// The options.
    pub options: Options<'a>,
    /// The payload; empty without one.
    pub payload: &'a [u8],
}

impl<'a> CoapMessage<'a> {
    /// Checks a datagram.
    #[inline]
    pub fn parse(datagram: &'a [u8]) -> Result<Self, CoapDecodeError> {
        let error = |fault, at| Err(CoapDecodeError::new(fault, Reaction::Ignore, at));
        let Some((&[first, code, high, low], rest)) = datagram.split_first_chunk::<HEADER_SIZE>() else {
            return error(CoapFault::Header, datagram.len());
        };
        if first & VERSION_MASK != VERSION {
            return error(CoapFault::Version, 0);
        }
        let id = u16::from_be_bytes([high, low]);
        let kind = MessageType::from_bits(first >> TYPE_SHIFT);
        let reaction = match kind {
            MessageType::Confirmable => Reaction::Reset(id),
            _ => Reaction::Ignore,
        };
        let error = |fault, at| Err(CoapDecodeError::new(fault, reaction, at));
        let code = Code::from_byte(code);
        let token_size = usize::from(first & TOKEN_SIZE_MASK);
        let Some(content) = code.content() else { return error(CoapFault::CodeClass, 1) };
        if !kind.admits(content) {
            return error(CoapFault::TypeContent, 0);
        }
        if content == MessageContent::Empty && datagram.len() > HEADER_SIZE
            || code == Code::EMPTY && token_size > 0
        {
            return error(CoapFault::EmptyContent, HEADER_SIZE);
        }
        if token_size > TOKEN_SIZE_MAX {
            return error(CoapFault::TokenSize, 0);
        }
        let Some((token, rest)) = rest.split_at_checked(token_size) else {
            return error(CoapFault::TokenEnd, datagram.len());
        };
        let token = Token::new(token).unwrap_or_default();
        match Options::parse(rest) {
            Ok((options, payload)) => Ok(Self { kind, content, code, id, token, options, payload }),
            Err((fault, at)) => error(fault, HEADER_SIZE + token_size + at),
        }
    }
}
