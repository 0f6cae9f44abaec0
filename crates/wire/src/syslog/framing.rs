//! Message framing on a connection (RFC 6587): octet counting or lines.
//!
//! ```text
//!   101 <13>1 2026-…      octet counting: a number, a blank, that many bytes
//!   <13>Nov 21 …\n        lines, ended by LF or NUL
//! ```
//!
//! The connection's first bytes determine the framing: digits, a blank and `<` are a count. A message above the limit
//! is returned up to the limit, marked as cut, and the rest of it is skipped. Where a count is missing, the line is
//! returned as a message, and a count is expected after it: a framing error must not end the connection.

use super::limits::{COUNT_DIGITS_MAX, SyslogLimits};
use crate::meter::Meter;

/// Why a message is incomplete or uncertain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// Longer than [`SyslogLimits::message_size_max`].
    TooLong,
    /// The connection ended before the counted bytes were received.
    ConnectionEnded,
    /// A count was expected here, so the text may be a part of another message.
    NoCount,
}

/// A message on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyslogFrame<'a> {
    /// The bytes, at least one; for [`super::parse`].
    pub message: &'a [u8],
    /// Why the message is not whole, if it is not.
    pub cut: Option<Truncation>,
}

/// Result of one decoding step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameStep<'a> {
    /// Bytes of the input to drop; the next input starts after them.
    pub consumed: usize,
    /// A message; `None`: more input is needed.
    pub frame: Option<SyslogFrame<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FramingMode {
    Unknown,
    Counted,
    Lines,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FramerState {
    /// At the start of a message, or in a line without an end in its first `scanned` bytes.
    Message { scanned: u32 },
    /// In a counted message of `size` bytes, with none consumed.
    Counted { size: u32 },
    /// After a message above the limit: `left` bytes are skipped.
    SkipBytes { left: u32 },
    /// After a line above the limit: everything up to its end is skipped.
    SkipLine,
}

/// Splits the bytes of one connection into messages. 16 bytes of plain state.
///
/// `input` starts at the first unconsumed byte; drop `consumed` bytes after each step, also after a step without a
/// frame. Call again until there is no frame, and call [`Framer::finish`] at the end of the connection.
///
/// ```
/// use stilling_wire::syslog::{Framer, SyslogLimits};
///
/// let (limits, mut framer) = (SyslogLimits::default(), Framer::default());
/// let step = framer.decode(&limits, b"9 <13>hello8 <13>");
/// assert_eq!(step.frame.map(|frame| frame.message), Some(&b"<13>hello"[..]));
/// assert_eq!(step.consumed, 11);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Framer {
    framing: FramingMode,
    state: FramerState,
}

const _: () = assert!(size_of::<Framer>() <= 16);

impl Default for Framer {
    fn default() -> Self {
        Self { framing: FramingMode::Unknown, state: FramerState::Message { scanned: 0 } }
    }
}

impl Framer {
    /// Decodes the next frame from `input`.
    #[inline]
    pub fn decode<'a>(&mut self, limits: &SyslogLimits, input: &'a [u8]) -> FrameStep<'a> {
        self.decode_counting(limits, input, &mut ())
    }

    pub(crate) fn decode_counting<'a, M: Meter>(
        &mut self,
        limits: &SyslogLimits,
        input: &'a [u8],
        meter: &mut M,
    ) -> FrameStep<'a> {
        let mut start = 0;
        loop {
            let rest = &input[start..];
            let waiting = FrameStep { consumed: start, frame: None };
            if rest.is_empty() {
                return waiting;
            }
            match self.state {
                FramerState::Message { scanned: 0 } if is_end(rest[0]) => {
                    // Empty lines are ignored; some senders also end counted messages with a line end.
                    meter.add(1);
                    start += 1;
                }
                FramerState::Message { scanned: 0 } if self.framing != FramingMode::Lines => {
                    meter.add(rest.len().min(COUNT_DIGITS_MAX + 2));
                    match count(rest, self.framing == FramingMode::Unknown) {
                        OctetCount::NeedMore => return waiting,
                        OctetCount::Is { size, end } => {
                            self.framing = FramingMode::Counted;
                            self.state = FramerState::Counted { size };
                            start += end;
                        }
                        OctetCount::None => {
                            if self.framing == FramingMode::Unknown {
                                self.framing = FramingMode::Lines;
                            }
                            match self.line(limits, rest, 0, meter) {
                                Some(step) => return step.shifted(start),
                                None => return waiting,
                            }
                        }
                    }
                }
                FramerState::Message { scanned } => match self.line(limits, rest, scanned as usize, meter) {
                    Some(step) => return step.shifted(start),
                    None => return waiting,
                },
                FramerState::Counted { size } => {
                    let wanted = size.min(limits.message_size_max) as usize;
                    let Some(message) = rest.get(..wanted) else { return waiting };
                    let left = size - wanted as u32;
                    self.state = if left > 0 {
                        FramerState::SkipBytes { left }
                    } else {
                        FramerState::Message { scanned: 0 }
                    };
                    let cut = (left > 0).then_some(Truncation::TooLong);
                    return FrameStep { consumed: start + wanted, frame: Some(SyslogFrame { message, cut }) };
                }
                FramerState::SkipBytes { left } => {
                    let length = rest.len().min(left as usize);
                    let left = left - length as u32;
                    self.state = if left > 0 {
                        FramerState::SkipBytes { left }
                    } else {
                        FramerState::Message { scanned: 0 }
                    };
                    start += length;
                }
                FramerState::SkipLine => {
                    let end = memchr::memchr2(b'\n', b'\0', rest);
                    meter.add(end.unwrap_or(rest.len()));
                    if end.is_some() {
                        self.state = FramerState::Message { scanned: 0 };
                    }
                    start += end.map_or(rest.len(), |end| end + 1);
                }
            }
        }
    }

    /// Returns the unterminated message at the end of the connection. A counted message shorter than its count is
    /// marked as cut. A line is complete, as in rsyslog.
    #[must_use]
    pub fn finish<'a>(&mut self, limits: &SyslogLimits, rest: &'a [u8]) -> Option<SyslogFrame<'a>> {
        let has_begun = self.has_begun(rest.len());
        self.state = FramerState::Message { scanned: 0 };
        let message = &rest[..rest.len().min(limits.message_size_max as usize)];
        let cut = (self.framing == FramingMode::Counted).then_some(Truncation::ConnectionEnded);
        (has_begun && !message.is_empty()).then_some(SyslogFrame { message, cut })
    }

    /// Whether a message has begun of which nothing has been returned; `rest` is the number of unconsumed input bytes.
    #[must_use]
    pub fn has_begun(&self, rest: usize) -> bool {
        match self.state {
            FramerState::Message { .. } => rest > 0,
            FramerState::Counted { .. } => true,
            FramerState::SkipBytes { .. } | FramerState::SkipLine => false,
        }
    }

    /// Returns a message up to the end of its line; its first `scanned` bytes hold no end.
    fn line<'a, M: Meter>(
        &mut self,
        limits: &SyslogLimits,
        rest: &'a [u8],
        scanned: usize,
        meter: &mut M,
    ) -> Option<FrameStep<'a>> {
        let lost = (self.framing == FramingMode::Counted).then_some(Truncation::NoCount);
        let size_max = limits.message_size_max as usize;
        // The line end counts, so that the unconsumed input never exceeds the message limit.
        let window = &rest[..rest.len().min(size_max)];
        let from = scanned.min(window.len());
        if let Some(at) = memchr::memchr2(b'\n', b'\0', &window[from..]) {
            meter.add(at + 1);
            self.state = FramerState::Message { scanned: 0 };
            let message = &window[..from + at];
            return Some(FrameStep {
                consumed: from + at + 1,
                frame: Some(SyslogFrame { message, cut: lost }),
            });
        }
        meter.add(window.len() - from);
        if window.len() == size_max {
            self.state = FramerState::SkipLine;
            let frame = SyslogFrame { message: window, cut: Some(Truncation::TooLong) };
            return Some(FrameStep { consumed: size_max, frame: Some(frame) });
        }
        self.state = FramerState::Message { scanned: window.len() as u32 };
        None
    }
}

impl FrameStep<'_> {
    /// The same step with an input that begins `bytes` earlier.
    fn shifted(self, bytes: usize) -> Self {
        Self { consumed: self.consumed + bytes, ..self }
    }
}

/// Whether `byte` is skipped between messages. [`super::parse`] strips the CR of a CR LF.
fn is_end(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\0' | b'\r')
}

enum OctetCount {
    /// `size` bytes follow at `end`.
    Is { size: u32, end: usize },
    /// Not a count.
    None,
    /// More input is needed.
    NeedMore,
}

/// Parses `MSG-LEN SP` (RFC 6587 §3.4.1). The first count of a connection must be followed by `<`, otherwise it is a
/// line that begins with a number.
fn count(input: &[u8], must_see_message: bool) -> OctetCount {
    let mut size = 0_u32;
    for (at, &byte) in input.iter().take(COUNT_DIGITS_MAX + 1).enumerate() {
        match byte {
            b'0'..=b'9' if at < COUNT_DIGITS_MAX && !(at == 0 && byte == b'0') => {
                size = size * 10 + u32::from(byte - b'0');
            }
            b' ' if at > 0 => {
                return match input.get(at + 1) {
                    None if must_see_message => OctetCount::NeedMore,
                    Some(&next) if must_see_message && next != b'<' => OctetCount::None,
                    _ => OctetCount::Is { size, end: at + 1 },
                };
            }
            _ => return OctetCount::None,
        }
    }
    OctetCount::NeedMore
}
