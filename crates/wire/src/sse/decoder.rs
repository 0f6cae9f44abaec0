//! The decoder of a client.
//!
//! An event ends at an empty line. The decoder searches it once, resuming where the search stopped, and returns the
//! lines of the event as a slice of the input.

use core::fmt;
use std::borrow::Cow;

use super::limits::SseLimits;
use crate::meter::Meter;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Result of one decoding step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SseStep<'a> {
    /// Bytes of the input to drop; the next input starts after them.
    pub consumed: usize,
    /// The next event; `None` if more input is needed.
    pub event: Option<SseFields<'a>>,
}

/// An event longer than `event_size_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SseEventTooLong;

impl fmt::Display for SseEventTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected the end of the event within event_size_max")
    }
}

impl core::error::Error for SseEventTooLong {}

/// Position of the search in the next line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinePosition {
    /// Before the first byte of the stream, which may be a byte order mark.
    Beginning,
    /// At the start of a line.
    Start,
    Inside,
    /// Behind a CR, whose LF may follow.
    AfterCr,
    /// Behind the CR of an empty line, which was consumed with its event.
    AfterEvent,
    Failed,
}

/// Decodes an event stream. 8 bytes of plain state.
///
/// - `input` starts at the first unconsumed byte; drop `consumed` bytes after each step.
/// - Call again until the event is `None`.
/// - Every split of the input yields the same events. An event that the end of the stream cuts off is not returned.
///
/// ```
/// use stilling_wire::sse::{SseDecoder, SseLimits};
///
/// let (limits, mut decoder) = (SseLimits::default(), SseDecoder::default());
/// let step = decoder.decode(&limits, b": hello\n\nid: 3-17\ndata: a\ndata: b\n\n")?;
/// assert_eq!(step.event.and_then(|event| event.data()), None);
/// let step = decoder.decode(&limits, b"id: 3-17\ndata: a\ndata: b\n\n")?;
/// let event = step.event.expect("the event is complete");
/// assert_eq!(event.id(), Some(&b"3-17"[..]));
/// assert_eq!(event.data().as_deref(), Some(&b"a\nb"[..]));
/// # Ok::<(), stilling_wire::sse::SseEventTooLong>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseDecoder {
    /// Bytes of the next event that were searched.
    scanned: u32,
    line: LinePosition,
}

const _: () = assert!(size_of::<SseDecoder>() <= 8);

impl Default for SseDecoder {
    fn default() -> Self {
        Self { scanned: 0, line: LinePosition::Beginning }
    }
}

impl SseDecoder {
    /// Decodes the next event from `input`.
    ///
    /// # Errors
    /// The event is too long; every later call returns the same error.
    pub fn decode<'a>(
        &mut self,
        limits: &SseLimits,
        input: &'a [u8],
    ) -> Result<SseStep<'a>, SseEventTooLong> {
        self.decode_counting(limits, input, &mut ())
    }

    pub(crate) fn decode_counting<'a, M: Meter>(
        &mut self,
        limits: &SseLimits,
        input: &'a [u8],
        meter: &mut M,
    ) -> Result<SseStep<'a>, SseEventTooLong> {
        let Some(mut skipped) = self.skip_first(input) else {
            return Ok(SseStep { consumed: 0, event: None });
        };
        let size_max = limits.event_size_max as usize;
        loop {
            let rest = &input[skipped..];
            let searched = self.scanned as usize;
            let end = self.find_end(rest, size_max);
            meter.add(end.map_or(self.scanned as usize, |end| end + 1) - searched);
            match end {
                // Empty lines between events are no events.
                Some(0) => skipped += self.end_event(rest, 0),
                Some(end) if end <= size_max => {
                    let consumed = skipped + self.end_event(rest, end);
                    return Ok(SseStep { consumed, event: Some(SseFields { lines: &rest[..end] }) });
                }
                None if self.line != LinePosition::Failed && self.scanned as usize <= size_max => {
                    return Ok(SseStep { consumed: skipped, event: None });
                }
                _ => {
                    self.line = LinePosition::Failed;
                    return Err(SseEventTooLong);
                }
            }
        }
    }

    /// Returns the bytes before the next event: a byte order mark, or the LF of the last empty line. `None` if more
    /// input decides.
    fn skip_first(&mut self, input: &[u8]) -> Option<usize> {
        let skipped = match self.line {
            LinePosition::Beginning if BYTE_ORDER_MARK.starts_with(input) && input.len() < 3 => return None,
            LinePosition::Beginning if input.starts_with(BYTE_ORDER_MARK) => BYTE_ORDER_MARK.len(),
            LinePosition::AfterEvent if input.is_empty() => return None,
            LinePosition::AfterEvent => usize::from(input[0] == b'\n'),
            LinePosition::Beginning => 0,
            _ => return Some(0),
        };
        self.line = LinePosition::Start;
        Some(skipped)
    }

    /// Returns the offset of the empty line that ends the event, searching on from `scanned`.
    fn find_end(&mut self, rest: &[u8], size_max: usize) -> Option<usize> {
        // One byte more tells an event that is too long.
        let window = &rest[..rest.len().min(size_max.saturating_add(1))];
        let mut at = self.scanned as usize;
        while let Some(&byte) = window.get(at) {
            match self.line {
                LinePosition::AfterCr if byte == b'\n' => {
                    at += 1;
                    self.line = LinePosition::Start;
                }
                LinePosition::Start | LinePosition::AfterCr if matches!(byte, b'\n' | b'\r') => {
                    return Some(at);
                }
                LinePosition::Failed => return None,
                _ => {
                    let end = memchr::memchr2(b'\n', b'\r', &window[at..]);
                    let Some(length) = end else {
                        (at, self.line) = (window.len(), LinePosition::Inside);
                        break;
                    };
                    at += length + 1;
                    let is_cr = window[at - 1] == b'\r';
                    self.line = if is_cr { LinePosition::AfterCr } else { LinePosition::Start };
                }
            }
        }
        self.scanned = at as u32;
        None
    }

    /// Prepares for the next event; returns the bytes of this one and of the empty line at `end`.
    fn end_event(&mut self, rest: &[u8], end: usize) -> usize {
        self.scanned = 0;
        self.line = LinePosition::Start;
        if rest[end] == b'\n' {
            return end + 1;
        }
        match rest.get(end + 1) {
            Some(b'\n') => end + 2,
            Some(_) => end + 1,
            None => {
                self.line = LinePosition::AfterEvent;
                end + 1
            }
        }
    }
}

/// The lines of an event. One without data is not shown to applications, but its id and retry time count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SseFields<'a> {
    lines: &'a [u8],
}

impl<'a> SseFields<'a> {
    /// Returns the fields in order, with names and values; a comment has an empty name.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut rest = self.lines;
        core::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let end = memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
            let line = &rest[..end];
            let is_pair = rest[end..].starts_with(b"\r\n");
            rest = rest.get(end + 1 + usize::from(is_pair)..).unwrap_or_default();
            let Some(colon) = memchr::memchr(b':', line) else { return Some((line, &b""[..])) };
            let value = &line[colon + 1..];
            Some((&line[..colon], value.strip_prefix(b" ").unwrap_or(value)))
        })
    }

    /// Returns the data: all lines, joined with LF. Borrows if it is a single line.
    #[must_use]
    pub fn data(&self) -> Option<Cow<'a, [u8]>> {
        let mut lines = self.values(b"data");
        let first = lines.next()?;
        let mut data = Cow::Borrowed(first);
        for line in lines {
            let joined = data.to_mut();
            joined.push(b'\n');
            joined.extend_from_slice(line);
        }
        Some(data)
    }

    /// Returns the type; `None` is `message`.
    #[must_use]
    pub fn event(&self) -> Option<&'a [u8]> {
        self.values(b"event").last().filter(|event| !event.is_empty())
    }

    /// Returns the id; an empty one resets the last id. Ids with NUL are ignored.
    #[must_use]
    pub fn id(&self) -> Option<&'a [u8]> {
        self.values(b"id").filter(|id| !id.contains(&0)).last()
    }

    /// Returns the time in milliseconds before the next reconnect. Values that are not digits are ignored.
    #[must_use]
    pub fn retry(&self) -> Option<u64> {
        let is_number = |value: &&[u8]| !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let last = self.values(b"retry").filter(is_number).last()?;
        str::from_utf8(last).ok()?.parse().ok()
    }

    fn values(&self, name: &'static [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.iter().filter(move |(other, _)| *other == name).map(|(_, value)| value)
    }
}
