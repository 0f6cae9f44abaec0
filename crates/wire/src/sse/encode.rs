//! Events of a server, appended to a buffer the caller reuses: no allocation while the buffer's capacity suffices. The
//! bytes are the same for all subscribers.

use crate::message_object::MessageObject;
use crate::resume_position::EventId;

/// A comment that keeps a connection open; clients ignore it.
pub const HEARTBEAT: &[u8] = b":\n\n";

/// Name of the event that reports missing messages. Its data is a [`crate::message_object::GapObject`].
pub const GAP_EVENT: &str = "gap";

/// An event to send.
///
/// ```
/// use stilling_wire::resume_position::EventId;
/// use stilling_wire::sse::SseEvent;
///
/// let mut out = Vec::new();
/// let id = Some(EventId { epoch: 3, sequence: 17 });
/// SseEvent { id, event: Some("note"), data: b"two\nlines" }.encode(&mut out);
/// assert_eq!(out, b"id: 3-17\nevent: note\ndata: two\ndata: lines\n\n");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SseEvent<'a> {
    /// The id, which the client sends as `Last-Event-ID` when it reconnects.
    pub id: Option<EventId>,
    /// The type; `message` without one. Bytes that would end its line become blanks.
    pub event: Option<&'a str>,
    /// The data. Clients decode UTF-8, and receive LF for each line end (CR LF, LF, CR).
    pub data: &'a [u8],
}

impl SseEvent<'_> {
    /// Appends the event to `out`.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        push_id(out, self.id);
        if let Some(event) = self.event {
            push_line(out, b"event: ", event);
        }
        let mut rest = self.data;
        while let Some(end) = memchr::memchr2(b'\n', b'\r', rest) {
            push_data(out, &rest[..end]);
            let is_pair = rest[end..].starts_with(b"\r\n");
            rest = &rest[end + 1 + usize::from(is_pair)..];
        }
        push_data(out, rest);
        out.push(b'\n');
    }
}

/// Appends a message as an event with its id; the data is the message's JSON object.
#[inline]
pub fn encode_message(out: &mut Vec<u8>, epoch: u64, message: &MessageObject<'_>) {
    push_id(out, Some(EventId { epoch, sequence: message.sequence }));
    out.extend_from_slice(b"data: ");
    // The object is a single line.
    message.encode(out);
    out.extend_from_slice(b"\n\n");
}

/// Appends the time in milliseconds that a client waits before it reconnects.
pub fn encode_retry(out: &mut Vec<u8>, milliseconds: u32) {
    out.extend_from_slice(b"retry: ");
    out.extend_from_slice(itoa::Buffer::new().format(milliseconds).as_bytes());
    out.extend_from_slice(b"\n\n");
}

/// Appends a comment, which clients ignore. Bytes that would end its line become blanks.
pub fn encode_comment(out: &mut Vec<u8>, text: &str) {
    push_line(out, b": ", text);
    out.push(b'\n');
}

fn push_id(out: &mut Vec<u8>, id: Option<EventId>) {
    if let Some(id) = id {
        out.extend_from_slice(b"id: ");
        id.encode(out);
        out.push(b'\n');
    }
}

fn push_data(out: &mut Vec<u8>, line: &[u8]) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(line);
    out.push(b'\n');
}

fn push_line(out: &mut Vec<u8>, name: &[u8], text: &str) {
    out.extend_from_slice(name);
    out.extend(text.bytes().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }));
    out.push(b'\n');
}
