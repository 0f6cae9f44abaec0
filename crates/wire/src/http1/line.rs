//! The request line (RFC 9112 §3), up to the first byte of the field section.
//!
//! The form without a version, `GET /test/fast CRLF CRLF`, has no fields: it is recognised at its first CR, after which
//! only `LF CR LF` may follow.

use super::byte_class::{is_target, is_token, target_end, token_end};
use super::error::{HttpDecodeError, HttpFault};
use super::version::HttpVersion;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinePhase {
    Start,
    Method,
    TargetStart,
    Target,
    /// Bytes of `HTTP/1.1` scanned so far.
    HttpVersion(u8),
    Lf,
    AbsentLf,
    AbsentCr,
    AbsentEndLf,
}

/// Offsets of a request line's parts in the window; valid only if the scan began at its first byte.
#[derive(Clone, Copy)]
pub(crate) struct RequestLine {
    pub(crate) method_end: usize,
    pub(crate) target_end: usize,
    pub(crate) version: HttpVersion,
    /// First byte of the field section, or the first byte after the head when the version is absent.
    pub(crate) end: usize,
}

const VERSION: &[u8; 8] = b"HTTP/1.1";
/// The version and line end of all but old clients.
const VERSION_LINE: &[u8; 10] = b"HTTP/1.1\r\n";

/// Returns the phase after the byte at `at`, with `seen` bytes of the version before it.
#[inline]
fn version_byte(
    seen: u8,
    window: &[u8],
    at: usize,
    version: &mut HttpVersion,
) -> Result<LinePhase, HttpDecodeError> {
    let reject = |fault, at: usize| Err(HttpDecodeError::head(fault, at, Some(window[at])));
    let byte = window[at];
    let Some(&wanted) = VERSION.get(usize::from(seen)) else {
        if byte != b'\r' {
            return reject(HttpFault::VersionByte, at);
        }
        // RFC 9110 §2.5: a higher minor version is read as the highest known.
        *version = if window[at - 1] == b'0' { HttpVersion::Http10 } else { HttpVersion::Http11 };
        return Ok(LinePhase::Lf);
    };
    let is_good = if seen == 5 || seen == 7 { byte.is_ascii_digit() } else { byte == wanted };
    if !is_good {
        return reject(HttpFault::VersionByte, at);
    }
    // RFC 9110 §2.5: only the major version must match. HTTP/2's preface (RFC 9113 §3.4) fails here.
    if seen == 7 && window[at - 2] != b'1' {
        return reject(HttpFault::VersionUnsupported, at - 2);
    }
    Ok(LinePhase::HttpVersion(seen + 1))
}

/// Scans `window` from `start`; `None` when the window is used up.
#[inline(always)]
pub(crate) fn scan(
    phase: &mut LinePhase,
    window: &[u8],
    start: usize,
) -> Result<Option<RequestLine>, HttpDecodeError> {
    let mut at = start;
    let mut line =
        RequestLine { method_end: start, target_end: start, version: HttpVersion::Http11, end: start };
    let mut now = *phase;
    loop {
        let Some(&byte) = window.get(at) else {
            *phase = now;
            return Ok(None);
        };
        let reject = |fault, at, byte| Err(HttpDecodeError::head(fault, at, Some(byte)));
        match now {
            LinePhase::Start => {
                if !is_token(byte) {
                    return reject(HttpFault::Method, at, byte);
                }
                at += 1;
                now = LinePhase::Method;
            }
            LinePhase::Method => {
                at = token_end(window, at);
                match window.get(at) {
                    Some(b' ') => {
                        line.method_end = at;
                        at += 1;
                        now = LinePhase::TargetStart;
                    }
                    Some(&other) => return reject(HttpFault::Method, at, other),
                    None => {}
                }
            }
            LinePhase::TargetStart => {
                if !is_target(byte) {
                    return reject(HttpFault::TargetByte, at, byte);
                }
                now = LinePhase::Target;
            }
            LinePhase::Target => {
                at = target_end(window, at);
                line.target_end = at;
                match window.get(at) {
                    Some(b' ') => {
                        at += 1;
                        if window.get(at..).and_then(<[u8]>::first_chunk) == Some(VERSION_LINE) {
                            line.end = at + VERSION_LINE.len();
                            return Ok(Some(line));
                        }
                        now = LinePhase::HttpVersion(0);
                    }
                    Some(b'\r') => now = LinePhase::HttpVersion(0),
                    Some(&other) => return reject(HttpFault::TargetByte, at, other),
                    None => {}
                }
            }
            LinePhase::HttpVersion(0) if byte == b'\r' => {
                if !window.starts_with(b"GET ") {
                    return reject(HttpFault::VersionAbsent, at, byte);
                }
                at += 1;
                now = LinePhase::AbsentLf;
            }
            LinePhase::HttpVersion(seen) => {
                now = version_byte(seen, window, at, &mut line.version)?;
                at += 1;
            }
            LinePhase::Lf | LinePhase::AbsentLf | LinePhase::AbsentEndLf => {
                if byte != b'\n' {
                    return reject(HttpFault::LineEnd, at, byte);
                }
                at += 1;
                if now == LinePhase::AbsentLf {
                    now = LinePhase::AbsentCr;
                    continue;
                }
                if now == LinePhase::AbsentEndLf {
                    line.version = HttpVersion::Absent;
                }
                line.end = at;
                return Ok(Some(line));
            }
            LinePhase::AbsentCr => {
                if byte != b'\r' {
                    return reject(HttpFault::VersionAbsent, at, byte);
                }
                at += 1;
                now = LinePhase::AbsentEndLf;
            }
        }
    }
}
