//! The parser of one message: its priority, then either format.

use super::record::{Priority, SyslogRecord};
use super::{bsd, ietf};

/// Parses a message: a datagram, or a frame of a [`super::Framer`]. Scans each byte at most a few times.
///
/// ```
/// use stilling_wire::syslog::{SyslogFormat, parse};
///
/// let record = parse(b"<34>Oct 11 22:14:15 mymachine su[7]: failed");
/// assert_eq!((record.format, record.priority.facility(), record.priority.severity()), (SyslogFormat::Bsd, 4, 2));
/// assert_eq!((record.host, record.app), (Some(&b"mymachine"[..]), Some(&b"su"[..])));
/// assert_eq!(record.message, b"failed");
/// ```
#[must_use]
pub fn parse(input: &[u8]) -> SyslogRecord<'_> {
    let input = strip_line_end(input);
    let Some((priority, rest)) = priority(input) else {
        return SyslogRecord::plain(input);
    };
    let record = ietf::parse(rest).unwrap_or_else(|| bsd::parse(rest));
    SyslogRecord { priority, has_priority: true, ..record }
}

/// Parses `<0>` to `<191>`, also padded with zeros.
fn priority(input: &[u8]) -> Option<(Priority, &[u8])> {
    let rest = input.strip_prefix(b"<")?;
    let end = rest.iter().take(4).position(|&byte| byte == b'>')?;
    if end == 0 {
        return None;
    }
    let mut number = 0_u16;
    for digit in &rest[..end] {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number * 10 + u16::from(digit - b'0');
    }
    let priority = u8::try_from(number).ok().and_then(Priority::new)?;
    Some((priority, &rest[end + 1..]))
}

/// Strips line ends, and the NUL that some libraries append.
fn strip_line_end(mut input: &[u8]) -> &[u8] {
    while let [rest @ .., b'\n' | b'\r' | b'\0'] = input {
        input = rest;
    }
    input
}
