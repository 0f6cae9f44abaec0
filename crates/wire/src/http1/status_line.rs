//! The status line (RFC 9112 §4), up to the first byte of the field section.
//!
//! The space after the code may be missing when the reason is empty: the clause requires it, many servers omit it, and
//! the line stays unambiguous.

use super::byte_class::value_end;
use super::error::{HttpDecodeError, HttpFault};
use super::version::HttpVersion;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusPhase {
    /// Bytes of `HTTP/1.1 200` scanned so far.
    HttpVersion(u8),
    AfterCode,
    Reason,
    Lf,
}

/// A status line's parts; offsets count in the window.
#[derive(Clone, Copy)]
pub(crate) struct StatusLine {
    pub(crate) version: HttpVersion,
    pub(crate) status: u16,
    pub(crate) reason_start: usize,
    pub(crate) end: usize,
}

/// The required byte at each position up to the code; '0' stands for a digit.
const STATUS_LINE_PATTERN: &[u8; 12] = b"HTTP/1.0 000";

/// Scans `window` from `start`; `None` when the window is used up.
#[inline(always)]
pub(crate) fn scan(
    phase: &mut StatusPhase,
    window: &[u8],
    start: usize,
) -> Result<Option<StatusLine>, HttpDecodeError> {
    let mut at = start;
    loop {
        let Some(&byte) = window.get(at) else { return Ok(None) };
        let reject = |fault, at, byte| Err(HttpDecodeError::head(fault, at, Some(byte)));
        match *phase {
            StatusPhase::HttpVersion(seen) => {
                let wanted = STATUS_LINE_PATTERN[usize::from(seen)];
                let good = if wanted == b'0' { byte.is_ascii_digit() } else { byte == wanted };
                // RFC 9110 §15: codes from 100 to 599.
                if !good || (seen == 9 && !(b'1'..=b'5').contains(&byte)) {
                    return reject(HttpFault::StatusLine, at, byte);
                }
                at += 1;
                *phase = if seen == 11 { StatusPhase::AfterCode } else { StatusPhase::HttpVersion(seen + 1) };
            }
            StatusPhase::AfterCode => {
                *phase = match byte {
                    b' ' => StatusPhase::Reason,
                    b'\r' => StatusPhase::Lf,
                    _ => return reject(HttpFault::StatusLine, at, byte),
                };
                at += 1;
            }
            StatusPhase::Reason => {
                at = value_end(window, at);
                match window.get(at) {
                    Some(b'\r') => {
                        at += 1;
                        *phase = StatusPhase::Lf;
                    }
                    Some(b'\t') => at += 1,
                    Some(&other) => return reject(HttpFault::StatusLine, at, other),
                    None => {}
                }
            }
            StatusPhase::Lf => {
                if byte != b'\n' {
                    return reject(HttpFault::LineEnd, at, byte);
                }
                return Ok(Some(parts(window, at + 1)));
            }
        }
    }
}

fn parts(window: &[u8], end: usize) -> StatusLine {
    let digit = |at: usize| u16::from(window[at].wrapping_sub(b'0'));
    StatusLine {
        version: if window[7] == b'0' { HttpVersion::Http10 } else { HttpVersion::Http11 },
        status: digit(9) * 100 + digit(10) * 10 + digit(11),
        reason_start: (STATUS_LINE_PATTERN.len() + 1).min(end - 2),
        end,
    }
}
