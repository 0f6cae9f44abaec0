//! Operations of both sides, appended to a buffer the caller reuses: copies of prepared bytes, no formatting, no
//! allocation while the buffer's capacity suffices.
//!
//! Subjects, queue names and subscription ids are written unchanged: they come checked from a decoder or from the
//! caller's own code ([`super::Subject`], [`super::Filter`]).

/// A keep-alive request, sent by either side.
pub const PING: &[u8] = b"PING\r\n";
/// The response to [`PING`].
pub const PONG: &[u8] = b"PONG\r\n";
/// A server's response to each operation on a verbose connection.
pub const OK: &[u8] = b"+OK\r\n";

const LINE_END: &[u8] = b"\r\n";

/// A message to publish: `PUB`, or `HPUB` with headers.
#[derive(Clone, Copy, Debug)]
pub struct Pub<'a> {
    /// The destination.
    pub subject: &'a [u8],
    /// The reply subject.
    pub reply: Option<&'a [u8]>,
    /// The header block of [`super::encode_headers`]; empty for none.
    pub headers: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

impl Pub<'_> {
    /// Appends the operation to `out`.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Self { subject, reply, headers, payload } = *self;
        out.extend_from_slice(if headers.is_empty() { b"PUB " } else { b"HPUB " });
        out.extend_from_slice(subject);
        push_end(out, reply, headers.len(), payload.len());
        push_body(out, headers, payload);
    }
}

/// A message to deliver: `MSG`, or `HMSG` with headers.
#[derive(Clone, Copy, Debug)]
pub struct Msg<'a> {
    /// The subject it was published to.
    pub subject: &'a [u8],
    /// The matching subscription.
    pub sid: &'a [u8],
    /// The reply subject.
    pub reply: Option<&'a [u8]>,
    /// The header block; empty for none.
    pub headers: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

impl Msg<'_> {
    /// Appends the operation to `out`.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_line(out);
        push_body(out, self.headers, self.payload);
    }

    /// Appends the line alone, for callers that send headers, payload and CR LF from their own memory.
    #[inline(always)]
    pub fn encode_line(&self, out: &mut Vec<u8>) {
        let Self { subject, sid, reply, headers, payload } = *self;
        out.extend_from_slice(if headers.is_empty() { b"MSG " } else { b"HMSG " });
        out.extend_from_slice(subject);
        out.push(b' ');
        out.extend_from_slice(sid);
        push_end(out, reply, headers.len(), payload.len());
    }

    /// Returns where the subscription id begins in the encoded operation.
    #[must_use]
    pub fn sid_start(&self) -> usize {
        let name = if self.headers.is_empty() { b"MSG ".len() } else { b"HMSG ".len() };
        name + self.subject.len() + 1
    }

    /// Returns the number of bytes that [`Msg::encode`] appends.
    #[must_use]
    pub fn size(&self) -> usize {
        let Self { subject, sid, reply, headers, payload } = *self;
        let total = headers.len() + payload.len();
        let name = if headers.is_empty() { 4 } else { 6 + digits(headers.len()) };
        let reply = reply.map_or(0, |reply| 1 + reply.len());
        name + subject.len() + 1 + sid.len() + reply + 1 + digits(total) + 2 + total + 2
    }
}

/// Appends the rest of a line after subject and subscription id.
#[inline]
fn push_end(out: &mut Vec<u8>, reply: Option<&[u8]>, headers_size: usize, payload_size: usize) {
    if let Some(reply) = reply {
        out.push(b' ');
        out.extend_from_slice(reply);
    }
    if headers_size > 0 {
        push_number(out, headers_size);
    }
    push_number(out, headers_size + payload_size);
    out.extend_from_slice(LINE_END);
}

#[inline]
fn push_body(out: &mut Vec<u8>, headers: &[u8], payload: &[u8]) {
    out.extend_from_slice(headers);
    out.extend_from_slice(payload);
    out.extend_from_slice(LINE_END);
}

#[inline]
fn push_number(out: &mut Vec<u8>, number: usize) {
    out.push(b' ');
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn digits(number: usize) -> usize {
    number.checked_ilog10().map_or(1, |tens| tens as usize + 1)
}

/// Appends `SUB <filter> [queue] <sid>`.
pub fn encode_sub(out: &mut Vec<u8>, filter: &[u8], queue: Option<&[u8]>, sid: &[u8]) {
    out.extend_from_slice(b"SUB ");
    out.extend_from_slice(filter);
    if let Some(queue) = queue {
        out.push(b' ');
        out.extend_from_slice(queue);
    }
    out.push(b' ');
    out.extend_from_slice(sid);
    out.extend_from_slice(LINE_END);
}

/// Appends `UNSUB <sid> [max]`.
pub fn encode_unsub(out: &mut Vec<u8>, sid: &[u8], after: Option<u32>) {
    out.extend_from_slice(b"UNSUB ");
    out.extend_from_slice(sid);
    if let Some(after) = after {
        push_number(out, after as usize);
    }
    out.extend_from_slice(LINE_END);
}

/// Appends `-ERR '<text>'`. Bytes that would end the text or its line become blanks, so that `text` may quote a subject
/// sent by the peer.
pub fn encode_err(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(b"-ERR '");
    out.extend(text.bytes().map(|byte| if byte < b' ' || byte == b'\'' { b' ' } else { byte }));
    out.extend_from_slice(b"'\r\n");
}
