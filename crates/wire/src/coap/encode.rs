//! Messages of both sides, written into the caller's buffer.

use core::fmt;

use super::code::Code;
use super::limits::{EXTENDED_MAX, HEADER_SIZE};
use super::message::{MessageId, MessageType, TYPE_SHIFT, VERSION};
use super::option_number::OptionNumber;
use super::options::{EXTENDED_8, EXTENDED_16, EXTENDED_16_MIN, PAYLOAD_MARKER};
use super::token::Token;
use super::uint::UintValue;

/// Bytes of an option before its value, at most.
const OPTION_HEAD_SIZE_MAX: usize = 5;

/// A part of a message that cannot be written. The buffer and the writer are unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoapEncodeError {
    /// The buffer has no room.
    Full,
    /// The option belongs before one that was already written.
    Order,
    /// The value has more bytes than an option can have.
    ValueSize,
}

impl fmt::Display for CoapEncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "no room in the buffer of the message",
            Self::Order => "options must be written in the order of their numbers",
            Self::ValueSize => "the value of the option is too long",
        })
    }
}

impl core::error::Error for CoapEncodeError {}

/// Returns an empty message: a ping, an acknowledgement or a reset.
#[must_use]
pub const fn encode_empty(kind: MessageType, id: MessageId) -> [u8; HEADER_SIZE] {
    let [high, low] = id.to_be_bytes();
    [VERSION | (kind as u8) << TYPE_SHIFT, Code::EMPTY.byte(), high, low]
}

/// Writes one message: its options in the order of their numbers, then its payload.
///
/// ```
/// use stilling_wire::coap::{Code, MessageType, MessageWriter, OptionNumber, Token};
///
/// let mut buffer = [0; 64];
/// let mut writer = MessageWriter::new(&mut buffer, MessageType::Confirmable, Code::GET, 7, Token::EMPTY)?;
/// writer.option(OptionNumber::URI_PATH, b"test")?;
/// writer.uint(OptionNumber::ACCEPT, 50)?;
/// assert_eq!(writer.finish(), b"\x40\x01\x00\x07\xb4test\x61\x32");
/// # Ok::<(), stilling_wire::coap::CoapEncodeError>(())
/// ```
#[derive(Debug)]
pub struct MessageWriter<'b> {
    buffer: &'b mut [u8],
    size: usize,
    last: OptionNumber,
}

impl<'b> MessageWriter<'b> {
    /// Starts a message in `buffer`.
    #[inline]
    pub fn new(
        buffer: &'b mut [u8],
        kind: MessageType,
        code: Code,
        id: MessageId,
        token: Token,
    ) -> Result<Self, CoapEncodeError> {
        let mut writer = Self { buffer, size: 0, last: OptionNumber(0) };
        let [high, low] = id.to_be_bytes();
        let first = VERSION | (kind as u8) << TYPE_SHIFT | token.size() as u8;
        writer.append(&[&[first, code.byte(), high, low], token.as_bytes()])?;
        Ok(writer)
    }

    /// Writes an option.
    #[inline]
    pub fn option(&mut self, number: OptionNumber, value: &[u8]) -> Result<(), CoapEncodeError> {
        let delta = number.0.checked_sub(self.last.0).ok_or(CoapEncodeError::Order)?;
        if value.len() > EXTENDED_MAX {
            return Err(CoapEncodeError::ValueSize);
        }
        let mut head = [0; OPTION_HEAD_SIZE_MAX];
        let mut size = 1;
        let delta = extend(usize::from(delta), &mut head, &mut size);
        let length = extend(value.len(), &mut head, &mut size);
        head[0] = delta << 4 | length;
        self.append(&[&head[..size], value])?;
        self.last = number;
        Ok(())
    }

    /// Writes an option with a number as its value.
    pub fn uint(&mut self, number: OptionNumber, value: u32) -> Result<(), CoapEncodeError> {
        self.option(number, UintValue::new(value).as_bytes())
    }

    /// Returns the bytes left for a payload.
    #[must_use]
    pub fn payload_room(&self) -> usize {
        (self.buffer.len() - self.size).saturating_sub(1)
    }

    /// Writes the payload and returns the message. An empty payload has no marker.
    pub fn payload(mut self, payload: &[u8]) -> Result<&'b [u8], CoapEncodeError> {
        if !payload.is_empty() {
            self.append(&[&[PAYLOAD_MARKER], payload])?;
        }
        Ok(self.finish())
    }

    /// Returns the message without a payload.
    #[must_use]
    pub fn finish(self) -> &'b [u8] {
        &self.buffer[..self.size]
    }

    #[inline]
    fn append(&mut self, parts: &[&[u8]]) -> Result<(), CoapEncodeError> {
        let size: usize = parts.iter().map(|part| part.len()).sum();
        let end = self.size + size;
        let mut room = self.buffer.get_mut(self.size..end).ok_or(CoapEncodeError::Full)?;
        for part in parts {
            let (place, rest) = room.split_at_mut(part.len());
            place.copy_from_slice(part);
            room = rest;
        }
        self.size = end;
        Ok(())
    }
}

/// Returns the nibble of a delta or length; bytes that extend it go to `head` at `size`.
#[inline]
fn extend(value: usize, head: &mut [u8; OPTION_HEAD_SIZE_MAX], size: &mut usize) -> u8 {
    if value < usize::from(EXTENDED_8) {
        return value as u8;
    }
    if value < EXTENDED_16_MIN {
        head[*size] = (value - usize::from(EXTENDED_8)) as u8;
        *size += 1;
        return EXTENDED_8;
    }
    let bytes = ((value - EXTENDED_16_MIN) as u16).to_be_bytes();
    head[*size..*size + 2].copy_from_slice(&bytes);
    *size += 2;
    EXTENDED_16
}
