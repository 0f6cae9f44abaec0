//! The header block of `HPUB` and `HMSG` (NATS ADR-4).
//!
//! ```text
//!   NATS/1.0[ status[ description]] CR LF
//!   (name ":" value CR LF)*
//!   CR LF
//! ```
//!
//! Names are case-sensitive, as in nats-server and its clients. Parsing is lenient, because blocks are end-to-end
//! between clients: a line without a colon is skipped. Encoding validates its input.

use core::fmt;

use super::line::is_blank;

/// The block that reports "no responders" to a requester.
pub const NO_RESPONDERS: &[u8] = b"NATS/1.0 503\r\n\r\n";
/// The heartbeat block for a consumer without new messages.
pub const IDLE_HEARTBEAT: &[u8] = b"NATS/1.0 100 Idle Heartbeat\r\n\r\n";
/// The block that requests a flow control response from a consumer.
pub const FLOW_CONTROL: &[u8] = b"NATS/1.0 100 FlowControl Request\r\n\r\n";

/// Name of the header with the id for de-duplication.
pub const MESSAGE_ID: &str = "Nats-Msg-Id";
/// Name of the header with the expected last sequence of the stream.
pub const EXPECTED_LAST_SEQUENCE: &str = "Nats-Expected-Last-Sequence";

const VERSION: &[u8] = b"NATS/1.0";

/// Code and text of a status line: 503 no responders, 100 heartbeat or flow control, 404, 408, 409 for pull requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderStatus<'a> {
    /// Three digits.
    pub code: u16,
    /// The text after the code; may be empty.
    pub description: &'a [u8],
}

/// A block without `NATS/1.0` at its start or an empty line at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadHeaders;

impl fmt::Display for BadHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a header block from NATS/1.0 to an empty line")
    }
}

impl core::error::Error for BadHeaders {}

/// A received header block.
///
/// ```
/// use stilling_wire::nats::Headers;
///
/// let headers = Headers::parse(b"NATS/1.0\r\nNats-Msg-Id: a1\r\n\r\n")?;
/// assert_eq!(headers.find("Nats-Msg-Id"), Some(&b"a1"[..]));
/// assert_eq!(headers.find("nats-msg-id"), None);
/// # Ok::<(), stilling_wire::nats::BadHeaders>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers<'a> {
    status: Option<HeaderStatus<'a>>,
    /// The lines after the first, without the empty one.
    lines: &'a [u8],
}

impl<'a> Headers<'a> {
    /// Parses the first line of a block; the other lines are parsed on access.
    ///
    /// # Errors
    /// The block does not begin with `NATS/1.0` or does not end with an empty line.
    pub fn parse(block: &'a [u8]) -> Result<Self, BadHeaders> {
        let block = block.strip_prefix(VERSION).ok_or(BadHeaders)?;
        let block = block.strip_suffix(b"\r\n").filter(|rest| rest.ends_with(b"\r\n")).ok_or(BadHeaders)?;
        let (first, lines) = next_line(block).ok_or(BadHeaders)?;
        let status = match first.split_first() {
            None => None,
            Some((&byte, rest)) if is_blank(byte) => status(trim(rest))?,
            Some(_) => return Err(BadHeaders),
        };
        Ok(Self { status, lines })
    }

    /// Returns the status of the first line.
    #[must_use]
    pub fn status(&self) -> Option<HeaderStatus<'a>> {
        self.status
    }

    /// Returns the (name, value) pairs in wire order; values without surrounding blanks.
    #[must_use]
    pub fn iter(&self) -> HeaderFields<'a> {
        HeaderFields { lines: self.lines }
    }

    /// Returns the first value of the header `name`.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&'a [u8]> {
        self.iter().find(|(other, _)| *other == name.as_bytes()).map(|(_, value)| value)
    }
}

impl<'a> IntoIterator for Headers<'a> {
    type Item = (&'a [u8], &'a [u8]);
    type IntoIter = HeaderFields<'a>;

    fn into_iter(self) -> HeaderFields<'a> {
        self.iter()
    }
}

/// Removes the status from a block's first line: only servers may send a status, and clients of a stream act on it.
/// Returns a block without a status unchanged, and an empty slice for a block with nothing else; other results are
/// built in `scratch`.
///
/// ```
/// use stilling_wire::nats::strip_status;
///
/// let block = b"NATS/1.0 409 Consumer Deleted\r\na: b\r\n\r\n";
/// assert_eq!(strip_status(block, &mut Vec::new()), b"NATS/1.0\r\na: b\r\n\r\n");
/// ```
#[must_use]
pub fn strip_status<'a>(block: &'a [u8], scratch: &'a mut Vec<u8>) -> &'a [u8] {
    // Clients treat anything after the version as a status, even if `Headers::parse` does not.
    let Some(rest) = block.strip_prefix(VERSION).filter(|rest| !rest.starts_with(b"\r\n")) else {
        return block;
    };
    let lines = next_line(rest).map_or(&b""[..], |(_, lines)| lines);
    if matches!(lines, b"" | b"\r\n") {
        return b"";
    }
    scratch.clear();
    scratch.extend_from_slice(VERSION);
    scratch.extend_from_slice(b"\r\n");
    scratch.extend_from_slice(lines);
    scratch
}

/// The (name, value) pairs of a header block.
#[derive(Clone, Debug)]
pub struct HeaderFields<'a> {
    lines: &'a [u8],
}

impl<'a> Iterator for HeaderFields<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (line, lines) = next_line(self.lines)?;
            self.lines = lines;
            if let Some(colon) = memchr::memchr(b':', line) {
                return Some((&line[..colon], trim(&line[colon + 1..])));
            }
        }
    }
}

impl core::iter::FusedIterator for HeaderFields<'_> {}

fn next_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memchr::memchr_iter(b'\n', bytes).find(|&at| at > 0 && bytes[at - 1] == b'\r')?;
    Some((&bytes[..end - 1], &bytes[end + 1..]))
}

fn status(text: &[u8]) -> Result<Option<HeaderStatus<'_>>, BadHeaders> {
    let (code, description) = match text {
        [] => return Ok(None),
        [a, b, c] => ([a, b, c], &[][..]),
        [a, b, c, blank, rest @ ..] if is_blank(*blank) => ([a, b, c], trim(rest)),
        _ => return Err(BadHeaders),
    };
    let mut number = 0;
    for digit in code {
        if !digit.is_ascii_digit() {
            return Err(BadHeaders);
        }
        number = number * 10 + u16::from(digit - b'0');
    }
    Ok(Some(HeaderStatus { code: number, description }))
}

fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = bytes
        && is_blank(*first)
    {
        bytes = rest;
    }
    while let [rest @ .., last] = bytes
        && is_blank(*last)
    {
        bytes = rest;
    }
    bytes
}

/// A header that would break its block: an empty name, a name with a colon or a blank, a value with a line break, or a
/// status that is not three digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadHeader {
    /// Index of the field; `None` is the status.
    pub index: Option<usize>,
}

impl fmt::Display for BadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "header {index} has an invalid name or value"),
            None => f.write_str("the header status is not three digits, or its description has a line break"),
        }
    }
}

impl core::error::Error for BadHeader {}

/// Appends a header block to `out`.
///
/// # Errors
/// [`BadHeader`] when a part would break the block; `out` is then unchanged.
pub fn encode_headers(
    out: &mut Vec<u8>,
    status: Option<HeaderStatus<'_>>,
    fields: &[(&str, &str)],
) -> Result<(), BadHeader> {
    let is_text = |text: &[u8]| memchr::memchr2(b'\r', b'\n', text).is_none();
    if let Some(status) = status
        && !((100..1000).contains(&status.code) && is_text(status.description))
    {
        return Err(BadHeader { index: None });
    }
    for (index, (name, value)) in fields.iter().enumerate() {
        let is_name =
            !name.is_empty() && name.bytes().all(|byte| byte > b' ' && byte != b':' && byte != 0x7f);
        if !is_name || !is_text(value.as_bytes()) {
            return Err(BadHeader { index: Some(index) });
        }
    }
    out.extend_from_slice(VERSION);
    if let Some(status) = status {
        out.push(b' ');
        out.extend_from_slice(itoa::Buffer::new().format(status.code).as_bytes());
        if !status.description.is_empty() {
            out.push(b' ');
            out.extend_from_slice(status.description);
        }
    }
    out.extend_from_slice(b"\r\n");
    for (name, value) in fields {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}
