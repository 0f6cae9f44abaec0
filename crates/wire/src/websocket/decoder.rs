//! The decoder of both directions.
//!
//! ```text
//!   Header ── message in one frame, complete or short ─► Whole ─► Header     one step: the whole message
//!     ├────── any other data frame ───────────────────► Fragment ─► Header  start, pieces, end
//!     ├────── control frame ──────────────────────────► Control ─► Header, Closed
//!     └────── fault ──────────────────────────────────► Failed
//! ```
//!
//! A text is validated once, when it arrives, so a fault is detected at its byte also in a message that waits for its
//! rest. An incomplete header, of at most 14 bytes, is parsed again when more of it arrives.

use super::close::CloseCode;
use super::error::{WebSocketDecodeError, WebSocketFault};
use super::frame::{self, Opcode, ParsedHeader, WebSocketRole};
use super::limits::{CONTROL_SIZE_MAX, WebSocketLimits};
use super::mask::{Mask, MaskedPayload};
use crate::meter::Meter;
use crate::utf8::Utf8Validator;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Valid UTF-8.
    Text,
    /// Any bytes.
    Binary,
}

/// Event of one decoding step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebSocketEvent<'a> {
    /// More input is needed.
    NeedMore,
    /// A whole message.
    Message {
        /// Its kind.
        kind: MessageKind,
        /// Its payload; may be empty.
        payload: MaskedPayload<'a>,
    },
    /// The start of a message whose payload follows in pieces.
    MessageStart {
        /// Its kind.
        kind: MessageKind,
        /// Its length in bytes; `None` if it is fragmented.
        size: Option<u32>,
    },
    /// A piece of the message's payload, at least one byte. The last piece of a text may end inside a sequence.
    Piece(MaskedPayload<'a>),
    /// The end of the message.
    MessageEnd,
    /// A ping, to be answered with a pong of the same payload. May come between the pieces of a message.
    Ping(MaskedPayload<'a>),
    /// A pong. May come between the pieces of a message.
    Pong(MaskedPayload<'a>),
    /// The peer's close frame, to be answered with one of the same code. All later input is skipped.
    Close {
        /// The code, if there is one.
        code: Option<CloseCode>,
        /// The reason, valid UTF-8; may be empty.
        reason: MaskedPayload<'a>,
    },
}

/// Result of one decoding step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebSocketStep<'a> {
    /// Bytes of the input to drop; the next input starts after them.
    pub consumed: usize,
    /// The decoded event.
    pub event: WebSocketEvent<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecoderState {
    Header,
    /// In the only frame of a message of `length` bytes, returned when complete; the first `validated` are valid text.
    Whole {
        length: u32,
        validated: u32,
        mask: Mask,
    },
    /// In a data frame with `left` bytes to come, returned as they arrive.
    Fragment {
        left: u32,
        mask: Mask,
        is_final: bool,
    },
    Control {
        opcode: Opcode,
        length: u8,
        mask: Mask,
    },
    Closed,
    Failed(WebSocketDecodeError),
}

/// A message with a returned start, or the one that waits to be returned whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OpenMessage {
    kind: MessageKind,
    /// Bytes that its frames have announced.
    size: u32,
}

/// Decodes the bytes sent by one side of a connection; see the [module](super) for the contract. At most 40 bytes of
/// plain state.
///
/// ```
/// use stilling_wire::websocket::{MessageKind, WebSocketDecoder, WebSocketEvent, WebSocketLimits};
///
/// let (limits, mut decoder) = (WebSocketLimits::default(), WebSocketDecoder::of_client());
/// // RFC 6455 §5.7: a masked text message.
/// let input = b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
/// let step = decoder.decode(&limits, input)?;
/// let WebSocketEvent::Message { kind: MessageKind::Text, payload } = step.event else { panic!("a text") };
/// let mut text = Vec::new();
/// payload.append_to(&mut text);
/// assert_eq!((&text[..], step.consumed), (&b"Hello"[..], input.len()));
/// # Ok::<(), stilling_wire::websocket::WebSocketDecodeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSocketDecoder {
    state: DecoderState,
    message: Option<OpenMessage>,
    utf8: Utf8Validator,
    sender: WebSocketRole,
}

const _: () = assert!(size_of::<WebSocketDecoder>() <= 40);

impl WebSocketDecoder {
    /// Creates the decoder of a client's frames, which must be masked (RFC 6455 §5.1).
    #[must_use]
    pub const fn of_client() -> Self {
        Self::new(WebSocketRole::Client)
    }

    /// Creates the decoder of a server's frames, which must not be masked (RFC 6455 §5.1).
    #[must_use]
    pub const fn of_server() -> Self {
        Self::new(WebSocketRole::Server)
    }

    /// Creates the decoder of the frames that `sender` sends.
    #[must_use]
    pub const fn new(sender: WebSocketRole) -> Self {
        Self { state: DecoderState::Header, message: None, utf8: Utf8Validator::EMPTY, sender }
    }

    /// Decodes the next event from `input`, which starts at the first unconsumed byte.
    ///
    /// # Errors
    /// The peer violated the protocol or a limit: send a close frame with [`WebSocketDecodeError::close_code`], and
    /// close. Every later call returns the same error.
    #[inline]
    pub fn decode<'a>(
        &mut self,
        limits: &WebSocketLimits,
        input: &'a [u8],
    ) -> Result<WebSocketStep<'a>, WebSocketDecodeError> {
        self.decode_counting(limits, input, &mut ())
    }

    #[inline]
    pub(crate) fn decode_counting<'a, M: Meter>(
        &mut self,
        limits: &WebSocketLimits,
        input: &'a [u8],
        meter: &mut M,
    ) -> Result<WebSocketStep<'a>, WebSocketDecodeError> {
        match self.step(limits, input, meter) {
            Ok((consumed, event)) => Ok(WebSocketStep { consumed, event }),
            Err(error) => {
                self.state = DecoderState::Failed(error);
                Err(error)
            }
        }
    }

    /// Whether the decoder is between two messages, with nothing consumed of the next frame.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state == DecoderState::Header && self.message.is_none()
    }

    /// Whether the start of a message has been returned and its end has not.
    #[must_use]
    pub fn in_message(&self) -> bool {
        self.message.is_some() && !matches!(self.state, DecoderState::Whole { .. })
    }

    /// Whether the peer's close frame has been returned.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == DecoderState::Closed
    }

    #[inline]
    fn step<'a, M: Meter>(
        &mut self,
        limits: &WebSocketLimits,
        input: &'a [u8],
        meter: &mut M,
    ) -> Result<(usize, WebSocketEvent<'a>), WebSocketDecodeError> {
        let mut start = 0;
        loop {
            let rest = &input[start..];
            let (consumed, event) = match self.state {
                DecoderState::Header => match frame::parse(self.sender, self.message.is_some(), rest)? {
                    Some(header) => (header.size, self.begin(limits, header, rest.len() - header.size)?),
                    None => (0, Some(WebSocketEvent::NeedMore)),
                },
                DecoderState::Whole { length, validated, mask } => {
                    self.whole(rest, length, validated, mask, meter)?
                }
                DecoderState::Fragment { left, mask, is_final } => {
                    self.fragment(rest, left, mask, is_final, meter)?
                }
                DecoderState::Control { opcode, length, mask } => self.control(rest, opcode, length, mask)?,
                DecoderState::Closed => (rest.len(), Some(WebSocketEvent::NeedMore)),
                DecoderState::Failed(error) => return Err(error),
            };
            start += consumed;
            if let Some(event) = event {
                return Ok((start, event));
            }
        }
    }

    /// Enters the frame of `header`, behind which `available` bytes are known.
    #[inline]
    fn begin<'a>(
        &mut self,
        limits: &WebSocketLimits,
        header: ParsedHeader,
        available: usize,
    ) -> Result<Option<WebSocketEvent<'a>>, WebSocketDecodeError> {
        let ParsedHeader { opcode, is_final, length, mask, .. } = header;
        let kind = match opcode {
            Opcode::Text => Some(MessageKind::Text),
            Opcode::Binary => Some(MessageKind::Binary),
            Opcode::Continuation => None,
            control => {
                self.state = DecoderState::Control { opcode: control, length: length as u8, mask };
                return Ok(None);
            }
        };
        let before = self.message.map_or(0, |message| message.size);
        let size = u64::from(before).saturating_add(length);
        if size > u64::from(limits.message_size_max) {
            return Err(WebSocketDecodeError::new(WebSocketFault::MessageSize, 1, None));
        }
        let (length, size) = (length as u32, size as u32);
        let kind_now = kind.or(self.message.map(|message| message.kind)).unwrap_or(MessageKind::Binary);
        self.message = Some(OpenMessage { kind: kind_now, size });
        if kind.is_some() && is_final && (available >= length as usize || length <= limits.whole_size_max) {
            self.state = DecoderState::Whole { length, validated: 0, mask };
            return Ok(None);
        }
        self.state = DecoderState::Fragment { left: length, mask, is_final };
        Ok(kind.map(|kind| WebSocketEvent::MessageStart { kind, size: is_final.then_some(length) }))
    }

    #[inline]
    fn whole<'a, M: Meter>(
        &mut self,
        rest: &'a [u8],
        length: u32,
        validated: u32,
        mask: Mask,
        meter: &mut M,
    ) -> Result<(usize, Option<WebSocketEvent<'a>>), WebSocketDecodeError> {
        let (whole, from) = (length as usize, validated as usize);
        let available = rest.len().min(whole);
        let new = MaskedPayload::new(rest.get(from..available).unwrap_or_default(), mask.after(from));
        self.validate(from, new, meter)?;
        if available < whole {
            self.state = DecoderState::Whole { length, validated: available.max(from) as u32, mask };
            return Ok((0, Some(WebSocketEvent::NeedMore)));
        }
        let kind = self.message.map_or(MessageKind::Binary, |message| message.kind);
        self.end_message(whole)?;
        let payload = MaskedPayload::new(&rest[..whole], mask);
        Ok((whole, Some(WebSocketEvent::Message { kind, payload })))
    }

    #[inline]
    fn fragment<'a, M: Meter>(
        &mut self,
        rest: &'a [u8],
        left: u32,
        mask: Mask,
        is_final: bool,
        meter: &mut M,
    ) -> Result<(usize, Option<WebSocketEvent<'a>>), WebSocketDecodeError> {
        let size = self.message.map_or(0, |message| message.size as usize);
        if left == 0 {
            self.state = DecoderState::Header;
            if !is_final {
                return Ok((0, None));
            }
            self.end_message(size)?;
            return Ok((0, Some(WebSocketEvent::MessageEnd)));
        }
        let length = rest.len().min(left as usize);
        if length == 0 {
            return Ok((0, Some(WebSocketEvent::NeedMore)));
        }
        let piece = MaskedPayload::new(&rest[..length], mask);
        self.validate(size - left as usize, piece, meter)?;
        self.state =
            DecoderState::Fragment { left: left - length as u32, mask: mask.after(length), is_final };
        Ok((length, Some(WebSocketEvent::Piece(piece))))
    }

    /// Validates a piece of the open message if it is a text; `offset` bytes of the message precede it.
    #[inline]
    fn validate<M: Meter>(
        &mut self,
        offset: usize,
        piece: MaskedPayload<'_>,
        meter: &mut M,
    ) -> Result<(), WebSocketDecodeError> {
        meter.add(piece.len());
        if !matches!(self.message, Some(OpenMessage { kind: MessageKind::Text, .. })) {
            return Ok(());
        }
        piece.try_for_each_part(|at, part| {
            self.utf8.check(part).map_err(|error| {
                WebSocketDecodeError::new(WebSocketFault::Text, offset + at + error.at, Some(error.found))
            })
        })
    }

    #[inline]
    fn end_message(&mut self, size: usize) -> Result<(), WebSocketDecodeError> {
        if !self.utf8.is_complete() {
            return Err(WebSocketDecodeError::new(WebSocketFault::TextEnd, size, None));
        }
        self.message = None;
        self.state = DecoderState::Header;
        Ok(())
    }

    fn control<'a>(
        &mut self,
        rest: &'a [u8],
        opcode: Opcode,
        length: u8,
        mask: Mask,
    ) -> Result<(usize, Option<WebSocketEvent<'a>>), WebSocketDecodeError> {
        let Some(bytes) = rest.get(..length.into()) else { return Ok((0, Some(WebSocketEvent::NeedMore))) };
        let payload = MaskedPayload::new(bytes, mask);
        self.state = DecoderState::Header;
        let event = match opcode {
            Opcode::Ping => WebSocketEvent::Ping(payload),
            Opcode::Close => {
                self.state = DecoderState::Closed;
                parse_close(payload)?
            }
            // Data frames have other states.
            Opcode::Pong | Opcode::Continuation | Opcode::Text | Opcode::Binary => {
                WebSocketEvent::Pong(payload)
            }
        };
        Ok((bytes.len(), Some(event)))
    }
}

// RFC 6455 §5.5.1: nothing, or a code of two bytes and a reason in UTF-8.
fn parse_close(payload: MaskedPayload<'_>) -> Result<WebSocketEvent<'_>, WebSocketDecodeError> {
    let mut unmasked = [0; CONTROL_SIZE_MAX];
    let unmasked = &mut unmasked[..payload.len()];
    unmasked.copy_from_slice(payload.masked_bytes());
    payload.mask().apply(unmasked);
    let error = |fault, at: usize, found| Err(WebSocketDecodeError::new(fault, at, found));
    let (code, reason) = match *unmasked {
        [] => return Ok(WebSocketEvent::Close { code: None, reason: payload }),
        [_] => return error(WebSocketFault::ClosePayload, 1, None),
        [high, low, ref reason @ ..] => (u16::from_be_bytes([high, low]), reason),
    };
    let Some(code) = CloseCode::new(code) else { return error(WebSocketFault::CloseCode, 0, None) };
    let mut utf8 = Utf8Validator::EMPTY;
    if let Err(invalid) = utf8.check(reason) {
        return error(WebSocketFault::CloseReason, 2 + invalid.at, Some(invalid.found));
    }
    if !utf8.is_complete() {
        return error(WebSocketFault::CloseReason, 2 + reason.len(), None);
    }
    let reason = MaskedPayload::new(&payload.masked_bytes()[2..], payload.mask().after(2));
    Ok(WebSocketEvent::Close { code: Some(code), reason })
}
