//! The field section of a head or of trailers (RFC 9112 §5): an automaton that can stop at any byte, and the iterator
//! over a validated section.
//!
//! ```text
//!   Start ── token ─► Name ── ':' ─► Blank ─► Value ── CR ─► ValueLf ── LF ─► Start
//!     └───── CR ────► EndLf ── LF ─► done
//! ```
//!
//! Anything else is an error at that byte: a blank in Start is obs-fold (§5.2) or a blank before the first field
//! (§2.2), a blank in Name is a space before the colon (§5.1), a bare CR or LF is never a line end (§2.2).

use super::byte_class::{is_blank, is_token, token_end, trim, trim_end, value_end};
use super::error::{HttpDecodeError, HttpFault};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldPhase {
    Start,
    Name,
    Blank,
    Value,
    ValueLf,
    EndLf,
}

pub(crate) trait FieldSink<'a> {
    /// Whether [`FieldSink::field`] is called. Only a scan that began at the section's start can return whole fields.
    const WANTED: bool;

    /// Receives a field; its trimmed value begins near `offset` of the window.
    fn field(&mut self, name: &'a [u8], value: &'a [u8], offset: usize);
}

impl FieldSink<'_> for () {
    const WANTED: bool = false;
    fn field(&mut self, _: &[u8], _: &[u8], _: usize) {}
}

/// Scans a line that begins with a token character. Returns the phase and the offset after it: the next line, or the
/// byte that the automaton must handle.
#[inline(always)]
fn whole_line<'a, S: FieldSink<'a>>(
    window: &'a [u8],
    name_start: usize,
    name_end: &mut usize,
    sink: &mut S,
) -> (FieldPhase, usize) {
    let mut at = token_end(window, name_start + 1);
    if window.get(at) != Some(&b':') {
        return (FieldPhase::Name, at);
    }
    *name_end = at;
    at += 1;
    if window.get(at) == Some(&b' ') {
        at += 1;
    }
    if window.get(at).is_none_or(|&byte| is_blank(byte)) {
        return (FieldPhase::Blank, at);
    }
    let value_start = at;
    at = value_end(window, at);
    let Some([b'\r', b'\n', ..]) = window.get(at..) else {
        return (FieldPhase::Value, at);
    };
    if S::WANTED {
        let value = trim_end(&window[value_start..at]);
        sink.field(&window[name_start..*name_end], value, *name_end + 1);
    }
    (FieldPhase::Start, at + 2)
}

/// Scans `window` from `start`. Returns the offset after the section's empty line, or `None` when the window is used
/// up.
#[inline(always)]
pub(crate) fn scan<'a, S: FieldSink<'a>>(
    phase: &mut FieldPhase,
    lines: &mut u16,
    lines_max: u16,
    window: &'a [u8],
    start: usize,
    sink: &mut S,
) -> Result<Option<usize>, HttpDecodeError> {
    let mut at = start;
    let (mut name_start, mut name_end) = (start, start);
    let mut now = *phase;
    loop {
        let Some(&byte) = window.get(at) else {
            *phase = now;
            return Ok(None);
        };
        match now {
            FieldPhase::Start => {
                if byte == b'\r' {
                    at += 1;
                    now = FieldPhase::EndLf;
                    continue;
                }
                if !is_token(byte) {
                    let fault = if is_blank(byte) { HttpFault::FieldFolded } else { HttpFault::FieldName };
                    return Err(HttpDecodeError::head(fault, at, Some(byte)));
                }
                if *lines >= lines_max {
                    return Err(HttpDecodeError::head(HttpFault::FieldCount, at, None));
                }
                *lines += 1;
                name_start = at;
                (now, at) = whole_line(window, name_start, &mut name_end, sink);
            }
            FieldPhase::Name => {
                at = token_end(window, at);
                match window.get(at) {
                    Some(b':') => {
                        name_end = at;
                        at += 1;
                        now = FieldPhase::Blank;
                    }
                    Some(&other) => return Err(HttpDecodeError::head(HttpFault::FieldName, at, Some(other))),
                    None => {}
                }
            }
            FieldPhase::Blank => {
                if is_blank(byte) {
                    at += 1;
                } else {
                    now = FieldPhase::Value;
                }
            }
            FieldPhase::Value => {
                at = value_end(window, at);
                match window.get(at) {
                    Some(b'\r') => {
                        at += 1;
                        now = FieldPhase::ValueLf;
                    }
                    Some(b'\t') => at += 1,
                    Some(&other) => {
                        return Err(HttpDecodeError::head(HttpFault::FieldValue, at, Some(other)));
                    }
                    None => {}
                }
            }
            FieldPhase::ValueLf => {
                if byte != b'\n' {
                    return Err(HttpDecodeError::head(HttpFault::LineEnd, at, Some(byte)));
                }
                if S::WANTED {
                    let value = trim(&window[name_end + 1..at - 1]);
                    sink.field(&window[name_start..name_end], value, name_end + 1);
                }
                at += 1;
                now = FieldPhase::Start;
            }
            FieldPhase::EndLf => {
                if byte != b'\n' {
                    return Err(HttpDecodeError::head(HttpFault::LineEnd, at, Some(byte)));
                }
                return Ok(Some(at + 1));
            }
        }
    }
}

/// The (name, value) pairs of a validated section in wire order; values without surrounding blanks.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Creates the iterator. `section` must have passed [`scan`]; its empty line may be included.
    pub(crate) fn new(section: &'a [u8]) -> Self {
        Self { rest: section }
    }

    pub(crate) fn value_of(mut self, name: &str) -> Option<&'a [u8]> {
        self.find(|(other, _)| other.eq_ignore_ascii_case(name.as_bytes())).map(|(_, value)| value)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let name_end = token_end(self.rest, 0);
        if self.rest.get(name_end) != Some(&b':') {
            return None;
        }
        let mut value_stop = value_end(self.rest, name_end + 1);
        while self.rest.get(value_stop) == Some(&b'\t') {
            value_stop = value_end(self.rest, value_stop + 1);
        }
        let field = (&self.rest[..name_end], trim(&self.rest[name_end + 1..value_stop]));
        self.rest = self.rest.get(value_stop + 2..).unwrap_or_default();
        Some(field)
    }
}

impl core::iter::FusedIterator for Fields<'_> {}
