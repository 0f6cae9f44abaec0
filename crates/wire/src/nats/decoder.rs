//! The decoder of both directions: a line, and behind some lines a payload of announced size and CR LF. What lines mean is
//! a [`Grammar`]'s.
//!
//! ```text
//!   Line ── message, all there ────────────────► Line        one step: the whole message
//!     ├──── message, short, not all there ─► Whole ─► Line   waits, then one step
//!     └──── message, long, not all there ──► Payload ─► End ─► Line    start, pieces, end
//! ```
//!
//! A line is searched for its LF once, from where the search stopped, and judged once, when it is complete; only an
//! operation that cannot be one is found out at its first wrong byte. So input in single bytes costs linear work.
//! A message as nearly all are takes a short cut: its line is judged while its end is searched, or left to the ordinary way.

use std::marker::PhantomData;

use super::error::{NatsDecodeError, NatsElement, NatsFault};
use super::limits::NatsLimits;
use crate::meter::Meter;

/// The bytes that decide about an operation: the longest name and what follows it.
const OPERATION_SIZE: u32 = 8;

/// CR LF.
const LINE_END_SIZE: usize = 2;

/// One direction of the protocol: what its lines mean, and how its events are called.
pub trait Grammar<'a> {
    /// What a step finds.
    type Event;
    /// What the line of a message says, its sizes included.
    type Head;

    /// Nothing more without further input.
    fn need_more() -> Self::Event;
    /// The end of a message that came in pieces.
    fn end() -> Self::Event;
    /// The message that `input` begins with, and where its line ends, if its line is there and as most are. `None` says
    /// nothing: the line is then searched for its end and judged as any other.
    fn parse_fast_path(limits: &NatsLimits, input: &'a [u8]) -> Option<(Self::Head, usize)>;
    /// Whether `line`, of which the end is still to come, can become one.
    fn check_prefix(line: &[u8]) -> Result<(), NatsDecodeError>;
    /// What a line, its end included, means.
    fn line(limits: &NatsLimits, line: &'a [u8]) -> Result<ParsedLine<'a, Self>, NatsDecodeError>;
    /// Headers and payload of the message together, in bytes.
    fn size(head: &Self::Head) -> u32;
    /// A message whose body, headers and payload, is there.
    fn whole(head: Self::Head, body: &'a [u8]) -> Self::Event;
    /// A message whose body comes in pieces.
    fn start(head: Self::Head) -> Self::Event;
    /// A piece of a body.
    fn piece(piece: &'a [u8]) -> Self::Event;
}

/// What a line means for the decoder.
pub enum ParsedLine<'a, G: Grammar<'a> + ?Sized> {
    /// Nothing follows.
    Command(G::Event),
    /// A body follows.
    Message(G::Head),
    /// A body of so many bytes follows, which nobody wants.
    Rejected(G::Event, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecoderState {
    /// In a line, of which so many bytes hold no LF.
    Line {
        scanned: u32,
    },
    /// In a message that will be told when so many bytes are there.
    Whole {
        needed: u32,
    },
    /// In a body with so many bytes to come; `is_streamed` to the caller, or skipped.
    Payload {
        left: u32,
        is_streamed: bool,
    },
    /// In the CR LF behind a body.
    End {
        seen_cr: bool,
        is_streamed: bool,
    },
    Failed(NatsDecodeError),
}

/// What a step consumed and found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeStep<E> {
    /// Bytes of the input that are done with; the next input starts behind them.
    pub consumed: usize,
    /// What was found.
    pub event: E,
}

/// Turns the bytes that one side of a connection sent into events; see the [module](super) for the contract. 16 bytes of
/// plain state.
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
    /// Takes one step over `input`, which starts at the first byte not yet consumed.
    ///
    /// # Errors
    /// The peer broke the protocol or a limit: close; a server answers with [`NatsDecodeError::text`] first. Every later call
    /// returns the same error.
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

    /// [`Decoder::decode`], adding the bytes looked at to `meter`.
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

    /// Between two operations, with nothing scanned of the next one.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state == DecoderState::Line { scanned: 0 }
    }

    /// A message has been begun and its end has not been told.
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
                    // Not more than `left`, which is a u32.
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

    /// The offset behind the LF of the line that `rest` begins with.
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
        // Below control_line_size_max, which is a u32.
        self.state = DecoderState::Line { scanned: window.len() as u32 };
        Ok(None)
    }

    /// A message whose line ends at `line_end` of `rest`.
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
            // Not above whole_size_max, which is a u32.
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
