//! The header of a frame (RFC 6455 §5.2).
//!
//! ```text
//!   FIN RSV RSV RSV opcode:4 │ MASK length:7 │ length: 16 or 64 bits │ masking key: 32 bits
//! ```

use super::error::{WebSocketDecodeError, WebSocketFault};
use super::mask::Mask;

const FINAL: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;
const LENGTH_16: u8 = 126;
const LENGTH_64: u8 = 127;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// A further fragment of a message.
    Continuation = 0,
    /// A text message or its first fragment.
    Text = 1,
    /// A binary message or its first fragment.
    Binary = 2,
    /// The end of the sender's direction.
    Close = 8,
    /// A request for a pong with the same payload.
    Ping = 9,
    /// The response to a ping, or a heartbeat.
    Pong = 10,
}

impl Opcode {
    const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::Continuation),
            1 => Some(Self::Text),
            2 => Some(Self::Binary),
            8 => Some(Self::Close),
            9 => Some(Self::Ping),
            10 => Some(Self::Pong),
            _ => None,
        }
    }

    /// Whether it is the opcode of a control frame.
    #[must_use]
    pub const fn is_control(self) -> bool {
        self as u8 >= 8
    }
}

/// The side of a connection whose input is decoded by the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebSocketRole {
    /// Sends masked frames.
    Client,
    /// Sends unmasked frames.
    Server,
}

/// A complete, valid header. Its length may exceed every limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParsedHeader {
    pub(crate) opcode: Opcode,
    pub(crate) is_final: bool,
    pub(crate) length: u64,
    pub(crate) mask: Mask,
    /// Bytes of the header.
    pub(crate) size: usize,
}

/// Parses the header that `input` begins with; `None` if it is incomplete. `in_message` tells whether a fragmented
/// message is open. A fault in the first two bytes is an error as soon as its byte is available.
#[inline]
pub(crate) fn parse(
    sender: WebSocketRole,
    in_message: bool,
    input: &[u8],
) -> Result<Option<ParsedHeader>, WebSocketDecodeError> {
    let Some(&first) = input.first() else { return Ok(None) };
    let (opcode, is_final) = parse_first(first, in_message)?;
    let Some(&second) = input.get(1) else { return Ok(None) };
    let error = |fault, at: usize| Err(WebSocketDecodeError::new(fault, at, input.get(at).copied()));
    let is_masked = second & MASKED != 0;
    match sender {
        WebSocketRole::Client if !is_masked => return error(WebSocketFault::MaskMissing, 1),
        WebSocketRole::Server if is_masked => return error(WebSocketFault::MaskPresent, 1),
        _ => {}
    }
    let short = second & !MASKED;
    if opcode.is_control() && short >= LENGTH_16 {
        return error(WebSocketFault::ControlSize, 1);
    }
    let rest = &input[2..];
    let (length, length_min, length_size) = match short {
        LENGTH_16 => {
            let Some(bytes) = rest.first_chunk::<2>() else { return Ok(None) };
            (u64::from(u16::from_be_bytes(*bytes)), u64::from(LENGTH_16), 2)
        }
        LENGTH_64 => {
            let Some(bytes) = rest.first_chunk::<8>() else { return Ok(None) };
            (u64::from_be_bytes(*bytes), 1 << 16, 8)
        }
        short => (u64::from(short), 0, 0),
    };
    if length >> 63 != 0 {
        return error(WebSocketFault::LengthSign, 2);
    }
    if length < length_min {
        return error(WebSocketFault::LengthForm, 2);
    }
    let size = 2 + length_size;
    if !is_masked {
        return Ok(Some(ParsedHeader { opcode, is_final, length, mask: Mask::NONE, size }));
    }
    let Some(key) = rest[length_size..].first_chunk::<4>() else { return Ok(None) };
    Ok(Some(ParsedHeader { opcode, is_final, length, mask: Mask::new(*key), size: size + 4 }))
}

#[inline]
fn parse_first(first: u8, in_message: bool) -> Result<(Opcode, bool), WebSocketDecodeError> {
    let error = |fault| Err(WebSocketDecodeError::new(fault, 0, Some(first)));
    if first & RESERVED != 0 {
        return error(WebSocketFault::ReservedBits);
    }
    let Some(opcode) = Opcode::from_bits(first & 0x0f) else { return error(WebSocketFault::Opcode) };
    let is_final = first & FINAL != 0;
    match opcode {
        Opcode::Close | Opcode::Ping | Opcode::Pong if !is_final => error(WebSocketFault::ControlFragmented),
        Opcode::Continuation if !in_message => error(WebSocketFault::ContinuationUnexpected),
        Opcode::Text | Opcode::Binary if in_message => error(WebSocketFault::MessageUnfinished),
        opcode => Ok((opcode, is_final)),
    }
}

/// The header of a frame to send, for callers that send the payload from their own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebSocketFrameHeader {
    /// The kind of the frame.
    pub opcode: Opcode,
    /// Whether it is the last frame of its message; true for control frames.
    pub is_final: bool,
    /// Bytes of the payload: at most 63 bits, and at most 125 for control frames.
    pub length: u64,
    /// The masking key, in a client. The caller masks the payload with [`Mask::apply`].
    pub mask: Option<[u8; 4]>,
}

impl WebSocketFrameHeader {
    /// Appends the header to `out`.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        let masked = if self.mask.is_some() { MASKED } else { 0 };
        let first = self.opcode as u8 | if self.is_final { FINAL } else { 0 };
        match self.length {
            0..=125 => out.extend_from_slice(&[first, masked | self.length as u8]),
            126..=0xffff => {
                let [high, low] = (self.length as u16).to_be_bytes();
                out.extend_from_slice(&[first, masked | LENGTH_16, high, low]);
            }
            length => {
                out.extend_from_slice(&[first, masked | LENGTH_64]);
                out.extend_from_slice(&length.to_be_bytes());
            }
        }
        if let Some(key) = &self.mask {
            out.extend_from_slice(key);
        }
    }

    /// Returns the number of bytes that [`WebSocketFrameHeader::encode`] appends.
    #[must_use]
    pub const fn size(&self) -> usize {
        let length_size = match self.length {
            0..=125 => 0,
            126..=0xffff => 2,
            _ => 8,
        };
        2 + length_size + if self.mask.is_some() { 4 } else { 0 }
    }
}
