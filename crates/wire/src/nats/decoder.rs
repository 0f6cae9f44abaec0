//! The decoder of both directions: a line, followed for some operations by a payload of announced size and CR LF. A
//! [`Grammar`] defines the meaning of lines.
//!
//! ```text
//!   Line ── message, complete ────────────────► Line        one step: the whole message
//!     ├──── message, short, incomplete ─► Whole ─► Line     waits, then one step
//!     └──── message, long, incomplete ──► Payload ─► End ─► Line    start, pieces, end
//! ```
//!
//! A line is searched for its LF once, resuming where the search stopped, and parsed once, when it is complete; only an
//! unknown operation is detected at its first wrong byte. Input in single bytes thus costs linear work. Messages in the
//! usual form take a fast path, which parses the line while searching its end, or falls back to the general parser.

use std::marker::PhantomData;

use super::error::{NatsDecodeError, NatsElement, NatsFault};
use super::limits::NatsLimits;
use crate::meter::Meter;

/// Bytes that determine the operation: the longest name and the byte after it.
const OPERATION_SIZE: u32 = 8;

const LINE_END_SIZE: usize = 2;

/// One direction of the protocol: its lines and events.
pub trait Grammar<'a> {
    /// Result of a step.
    type Event;
    /// The parsed line of a message, sizes included.
    type Head;

    /// More input is needed.
    fn need_more() -> Self::Event;
    /// The end of a message returned in pieces.
    fn end() -> Self::Event;
    /// Parses the message that `input` begins with and returns its line's end, if the line is complete and in the usual
    /// form. `None`: use the general parser.
    fn parse_fast_path(limits: &NatsLimits, input: &'a [u8]) -> Option<(Self::Head, usize)>;
    /// Checks whether an incomplete `line` can become a valid one.
    fn check_prefix(line: &[u8]) -> Result<(), NatsDecodeError>;
    /// Parses a line, its end included.
    fn line(limits: &NatsLimits, line: &'a [u8]) -> Result<ParsedLine<'a, Self>, NatsDecodeError>;
    /// Bytes of the message's headers and payload together.
    fn size(head: &Self::Head) -> u32;
    /// A message with a complete body (headers and payload).
    fn whole(head: Self::Head, body: &'a [u8]) -> Self::Event;
    /// The start of a message with a body in pieces.
    fn start(head: Self::Head) -> Self::Event;
    /// A piece of a body.
    fn piece(piece: &'a [u8]) -> Self::Event;
}

/// The decoder's view of a parsed line.
pub enum ParsedLine<'a, G: Grammar<'a> + ?Sized> {
    /// No body follows.
    Command(G::Event),
    /// A body follows.
    Message(G::Head),
    /// A body of this many bytes follows, to be skipped.
    Rejected(G::Event, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecoderState {
    /// In a line without an LF in its first `scanned` bytes.
    Line {
        scanned: u32,
    },
    /// In a message that is returned once `needed` bytes are available.
    Whole {
        needed: u32,
    },
    /// In a body with `left` bytes to come, which are returned if `is_streamed`, else skipped.
    Payload {
        left: u32,
        is_streamed: bool,
    },
    /// In the CR LF after a body.
    End {
        seen_cr: bool,
        is_streamed: bool,
    },
    Failed(NatsDecodeError),
}

/// Result of one decoding step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeStep<E> {
    /// Bytes of the input to drop; the next input starts after them.
    pub consumed: usize,
    /// The decoded event.
    pub event: E,
}

/// Decodes the bytes sent by one side of a connection into events; see the [module](super) for the contract. 16 bytes
/// of plain state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoder<G> {
    state: DecoderState,
    grammar: PhantomData<G>,
}

const _: () = assert!(size_of::<DecoderState>() <= 16);

impl<G> Default for Decoder<G> {
    fn default() -> Self {
        Self { state: DecoderState::Line { scanned: 0 }, grammar: PhantomData }
    }
}

impl<G> Decoder<G> {
    /// Decodes the next event from `input`, which starts at the first unconsumed byte.
    ///
    /// # Errors
    /// The peer violated the protocol or a limit: close; a server first answers with [`NatsDecodeError::text`]. Every
    /// later call returns the same error.
    #[inline]
    pub fn decode<'a>(
        &mut self,
        limits: &NatsLimits,
        input: &'a [u8],
    ) -> Result<DecodeStep<G::Event>, NatsDecodeError>
    where
        G: Grammar<'a>,
    {
        self.decode_counting(limits, input, &mut ())
    }

    #[inline(always)]
    pub(crate) fn decode_counting<'a, M: Meter>(
        &mut self,
        limits: &NatsLimits,
        input: &'a [u8],
        meter: &mut M,
    ) -> Result<DecodeStep<G::Event>, NatsDecodeError>
    where
        G: Grammar<'a>,
    {
        match self.step(limits, input, meter) {
            Ok((consumed, event)) => Ok(DecodeStep { consumed, event }),
            Err(error) => {
                self.state = DecoderState::Failed(error);
                Err(error)
            }
        }
    }

    /// Whether the decoder is between two operations, with nothing scanned of the next.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state == DecoderState::Line { scanned: 0 }
    }

    /// Whether the start of a message has been returned and its end has not.
    #[must_use]
    pub fn in_body(&self) -> bool {
        matches!(
            self.state,
            DecoderState::Payload { is_streamed: true, .. } | DecoderState::End { is_streamed: true, .. }
        )
    }

    #[inline(always)]
    fn step<'a, M: Meter>(
        &mut self,
        limits: &NatsLimits,
        input: &'a [u8],
        meter: &mut M,
    ) -> Result<(usize, G::Event), NatsDecodeError>
    where
        G: Grammar<'a>,
    {
        let mut start = 0;
        loop {
            let rest = &input[start..];
            match self.state {
                DecoderState::Line { scanned } => {
                    if scanned == 0
                        && let Some((head, end)) = G::parse_fast_path(limits, rest)
                    {
                        meter.add(end);
                        let (consumed, event) = self.message(limits, head, rest, end)?;
                        return Ok((start + consumed, event));
                    }
                    let Some(end) = self.find_end(limits, rest, scanned, meter)? else {
                        return Ok((start, G::need_more()));
                    };
                    match G::line(limits, &rest[..end])? {
                        ParsedLine::Command(event) => {
                            self.state = DecoderState::Line { scanned: 0 };
                            return Ok((start + end, event));
                        }
                        ParsedLine::Message(head) => {
                            let (consumed, event) = self.message(limits, head, rest, end)?;
                            return Ok((start + consumed, event));
                        }
                        ParsedLine::Rejected(event, size) => {
                            self.state = DecoderState::body(size, false);
                            return Ok((start + end, event));
                        }
                    }
                }
                DecoderState::Whole { needed } => {
                    if rest.len() < needed as usize {
                        return Ok((start, G::need_more()));
                    }
                    self.state = DecoderState::Line { scanned: 0 };
                }
                DecoderState::Payload { left, is_streamed } => {
                    let length = rest.len().min(left as usize);
                    if length == 0 {
                        return Ok((start, G::need_more()));
                    }
                    meter.add(length);
                    self.state = DecoderState::body(left - length as u32, is_streamed);
                    start += length;
                    if is_streamed {
                        return Ok((start, G::piece(&rest[..length])));
                    }
                }
                DecoderState::End { seen_cr, is_streamed } => {
                    let Some(&byte) = rest.first() else { return Ok((start, G::need_more())) };
                    meter.add(1);
                    if byte != if seen_cr { b'\n' } else { b'\r' } {
                        let at = usize::from(seen_cr);
                        return Err(NatsDecodeError::new(
                            NatsFault::PayloadEnd,
                            NatsElement::PayloadEnd,
                            at,
                            Some(byte),
                        ));
                    }
                    start += 1;
                    if !seen_cr {
                        self.state = DecoderState::End { seen_cr: true, is_streamed };
                        continue;
                    }
                    self.state = DecoderState::Line { scanned: 0 };
                    if is_streamed {
                        return Ok((start, G::end()));
                    }
                }
                DecoderState::Failed(error) => return Err(error),
            }
        }
    }

    /// Returns the offset after the LF of the line that `rest` begins with.
    #[inline(always)]
    fn find_end<'a, M: Meter>(
        &mut self,
        limits: &NatsLimits,
        rest: &'a [u8],
        scanned: u32,
        meter: &mut M,
    ) -> Result<Option<usize>, NatsDecodeError>
    where
        G: Grammar<'a>,
    {
        let size_max = limits.control_line_size_max as usize;
        let window = &rest[..rest.len().min(size_max)];
        let from = (scanned as usize).min(window.len());
        if let Some(at) = memchr::memchr(b'\n', &window[from..]) {
            meter.add(at + 1);
            return Ok(Some(from + at + 1));
        }
        meter.add(window.len() - from);
        if scanned < OPERATION_SIZE {
            G::check_prefix(window)?;
        }
        if window.len() == size_max {
            return Err(NatsDecodeError::line(NatsFault::ControlLineSize, size_max, None));
        }
        self.state = DecoderState::Line { scanned: window.len() as u32 };
        Ok(None)
    }

    #[inline(always)]
    fn message<'a>(
        &mut self,
        limits: &NatsLimits,
        head: G::Head,
        rest: &'a [u8],
        line_end: usize,
    ) -> Result<(usize, G::Event), NatsDecodeError>
    where
        G: Grammar<'a>,
    {
        let size = G::size(&head);
        let body_end = line_end + size as usize;
        let needed = body_end + LINE_END_SIZE;
        if let Some(end) = rest.get(body_end..needed) {
            if end != b"\r\n" {
                let at = usize::from(end[0] == b'\r');
                return Err(NatsDecodeError::new(
                    NatsFault::PayloadEnd,
                    NatsElement::PayloadEnd,
                    at,
                    Some(end[at]),
                ));
            }
            self.state = DecoderState::Line { scanned: 0 };
            return Ok((needed, G::whole(head, &rest[line_end..body_end])));
        }
        if needed <= limits.whole_size_max as usize {
            self.state = DecoderState::Whole { needed: needed as u32 };
            return Ok((0, G::need_more()));
        }
        self.state = DecoderState::body(size, true);
        Ok((line_end, G::start(head)))
    }
}

impl DecoderState {
    fn body(left: u32, is_streamed: bool) -> Self {
        if left == 0 {
            Self::End { seen_cr: false, is_streamed }
        } else {
            Self::Payload { left, is_streamed }
        }
    }
}
