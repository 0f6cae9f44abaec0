//! The header block of `HPUB` and `HMSG` (ADR-4 of NATS).
//!
//! ```text
//!   NATS/1.0[ status[ description]] CR LF
//!   (name ":" value CR LF)*
//!   CR LF
//! ```
//!
//! Names are compared with regard to case, as nats-server and its clients do. Reading is forgiving, because what a block
//! says is between two clients: a line without a colon is passed over. What we write is checked.

use core::fmt;

use super::line::is_blank;

/// The block that tells a requester that nobody listens to its subject.
pub const NO_RESPONDERS: &[u8] = b"NATS/1.0 503\r\n\r\n";
/// The block that tells a follower of a stream that nothing new has come.
pub const IDLE_HEARTBEAT: &[u8] = b"NATS/1.0 100 Idle Heartbeat\r\n\r\n";
/// The block that asks a follower of a stream to answer when it has come so far.
pub const FLOW_CONTROL: &[u8] = b"NATS/1.0 100 FlowControl Request\r\n\r\n";

/// The name of the header by which a stream recognises a message sent twice.
pub const MESSAGE_ID: &str = "Nats-Msg-Id";
/// The name of the header with the sequence that a stream's last message must have.
pub const EXPECTED_LAST_SEQUENCE: &str = "Nats-Expected-Last-Sequence";

const VERSION: &[u8] = b"NATS/1.0";

/// A status line's number and words: 503 no responders, 100 heartbeat or flow control, 404, 408, 409 of pulling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderStatus<'a> {
    /// Three digits.
    pub code: u16,
    /// The words behind it; may be empty.
    pub description: &'a [u8],
}

/// A block that does not begin with `NATS/1.0` and end with an empty line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadHeaders;

impl fmt::Display for BadHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a header block from NATS/1.0 to an empty line")
    }
}

impl core::error::Error for BadHeaders {}

/// A header block that somebody sent.
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
    /// The lines behind the first, without the empty one.
    lines: &'a [u8],
}

impl<'a> Headers<'a> {
    /// Reads the first line of a block; the others are read when they are asked for.
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

    /// What the first line says beside the version.
    #[must_use]
    pub fn status(&self) -> Option<HeaderStatus<'a>> {
        self.status
    }

    /// The (name, value) pairs in the order sent; values without surrounding blanks.
    #[must_use]
    pub fn iter(&self) -> HeaderFields<'a> {
        HeaderFields { lines: self.lines }
    }

    /// The first value of the header `name`.
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

/// A block without the status of its first line: a status is what a server says, and clients that follow a stream take it for
/// that. A block without a status comes back as it is, one that has nothing else as no block at all; the rest is put
/// together in `scratch`.
///
/// ```
/// use stilling_wire::nats::strip_status;
///
/// let block = b"NATS/1.0 409 Consumer Deleted\r\na: b\r\n\r\n";
/// assert_eq!(strip_status(block, &mut Vec::new()), b"NATS/1.0\r\na: b\r\n\r\n");
/// ```
#[must_use]
pub fn strip_status<'a>(block: &'a [u8], scratch: &'a mut Vec<u8>) -> &'a [u8] {
    // Clients read whatever stands behind the version as a status, also what `Headers::parse` does not take for one.
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

/// The bytes before the first CR LF, and those behind it.
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
    /// Which of the fields it is; `None` is the status.
    pub index: Option<usize>,
}

impl fmt::Display for BadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "header {index} holds a byte that would break its block"),
            None => {
                f.write_str("the status of the headers is not three digits, or its words hold a line break")
            }
        }
    }
}

impl core::error::Error for BadHeader {}

/// Appends a header block to `out`.
///
/// # Errors
/// [`BadHeader`] when a part would break the block; `out` is then as before.
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
