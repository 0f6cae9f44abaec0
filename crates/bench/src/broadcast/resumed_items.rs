//! What a subscriber over WebSocket or SSE receives from Stilling's HTTP port, in each format.

use super::codec::shown;
use super::frames::{PONG, frame};
use super::record::{find, parse_position, take_number};

/// Format of a subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HttpFormat {
    WebSocketRaw,
    WebSocketJson,
    Sse,
}

impl HttpFormat {
    pub(super) const ALL: [HttpFormat; 3] =
        [HttpFormat::WebSocketRaw, HttpFormat::WebSocketJson, HttpFormat::Sse];

    /// Value of the parameter `format`.
    pub(super) const fn parameter(self) -> &'static str {
        match self {
            HttpFormat::WebSocketRaw => "raw",
            HttpFormat::WebSocketJson | HttpFormat::Sse => "json",
        }
    }
}

#[derive(PartialEq, Eq, Debug)]
pub(super) enum ResumedItem<'a> {
    Message {
        sequence: u64,
        payload: &'a [u8],
    },
    /// These sequences cannot be sent.
    Gap {
        first: u64,
        last: u64,
    },
    /// `<epoch>-<sequence>`.
    Position(&'a [u8]),
    /// A ping, with its answer.
    Answer(&'static [u8]),
    Nothing,
    /// The server ends the connection.
    Closed,
}

type Decoded<'a> = Result<Option<(ResumedItem<'a>, usize)>, String>;

/// The first item of `input` and its size; `None`: it is incomplete.
pub(super) fn next_item(format: HttpFormat, input: &[u8]) -> Decoded<'_> {
    match format {
        HttpFormat::Sse => next_event(input),
        HttpFormat::WebSocketRaw | HttpFormat::WebSocketJson => next_frame(input),
    }
}

fn next_frame(input: &[u8]) -> Decoded<'_> {
    let Some(frame) = frame(input) else { return Ok(None) };
    let payload = &input[frame.head_size..frame.size];
    let item = match (frame.first, payload.split_first_chunk()) {
        (0x81, _) => object(payload)?,
        (0x82, Some((sequence, payload))) => {
            ResumedItem::Message { sequence: u64::from_be_bytes(*sequence), payload }
        }
        (0x88, _) => ResumedItem::Closed,
        (0x89, _) if payload.is_empty() => ResumedItem::Answer(PONG),
        _ => return Err(shown(input)),
    };
    Ok(Some((item, frame.size)))
}

fn next_event(input: &[u8]) -> Decoded<'_> {
    let Some(end) = find(input, b"\n\n") else { return Ok(None) };
    let event = &input[..end];
    let fields = event.split(|byte| *byte == b'\n');
    let mut item = ResumedItem::Nothing;
    let mut id: &[u8] = b"";
    for field in fields {
        if let Some(text) = field.strip_prefix(b"id: ") {
            id = text;
        } else if let Some(data) = field.strip_prefix(b"data: ") {
            item = object(data)?;
        } else if !field.starts_with(b":") && !field.starts_with(b"retry: ") && !field.starts_with(b"event: ")
        {
            return Err(shown(event));
        }
    }
    match &item {
        ResumedItem::Nothing if !id.is_empty() => item = ResumedItem::Position(id),
        ResumedItem::Message { sequence, .. } if parse_position(id).is_none_or(|id| id.1 != *sequence) => {
            return Err(shown(event));
        }
        _ => {}
    }
    Ok(Some((item, end + 2)))
}

/// A message with a text without escapes, or a notice.
fn object(text: &[u8]) -> Result<ResumedItem<'_>, String> {
    let wrong = || shown(text);
    if let Some(position) = text.strip_prefix(b"{\"position\":\"") {
        return position.strip_suffix(b"\"}").map(ResumedItem::Position).ok_or_else(wrong);
    }
    if let Some(start) = text.strip_prefix(b"{\"start\":\"") {
        return start.strip_suffix(b"\"}").map(ResumedItem::Position).ok_or_else(wrong);
    }
    if let Some(first) = text.strip_prefix(b"{\"gap\":{\"first\":") {
        let (first, rest) = take_number(first).ok_or_else(wrong)?;
        let last = rest.strip_prefix(b",\"last\":").and_then(take_number).ok_or_else(wrong)?.0;
        return Ok(ResumedItem::Gap { first, last });
    }
    let (sequence, rest) = text.strip_prefix(b"{\"seq\":").and_then(take_number).ok_or_else(wrong)?;
    let member = b",\"text\":\"";
    let start = find(rest, member).ok_or_else(wrong)? + member.len();
    let payload = rest[start..].strip_suffix(b"\"}").ok_or_else(wrong)?;
    Ok(ResumedItem::Message { sequence, payload })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(format: HttpFormat, input: &[u8], expected: ResumedItem<'_>) {
        let size = input.len();
        assert_eq!(next_item(format, &input.repeat(2)), Ok(Some((expected, size))), "{}", shown(input));
        for cut in 0..size {
            assert_eq!(next_item(format, &input[..cut]), Ok(None), "{cut} bytes of {}", shown(input));
        }
    }

    fn text(object: &str) -> Vec<u8> {
        [&[0x81, object.len() as u8], object.as_bytes()].concat()
    }

    #[test]
    fn messages_and_notices_are_found_in_each_format() {
        let message = || ResumedItem::Message { sequence: 17, payload: b"abc" };
        let gap = || ResumedItem::Gap { first: 2, last: 5 };
        let object = "{\"seq\":17,\"subject\":\"a\",\"time\":\"2026-01-31T12:00:00Z\",\"text\":\"abc\"}";
        let notice = "{\"gap\":{\"first\":2,\"last\":5,\"cause\":\"removed\"}}";
        check(HttpFormat::WebSocketRaw, b"\x82\x0b\0\0\0\0\0\0\0\x11abc", message());
        check(HttpFormat::WebSocketJson, &text(object), message());
        check(HttpFormat::Sse, format!("id: 3-17\ndata: {object}\n\n").as_bytes(), message());
        check(HttpFormat::WebSocketRaw, &text(notice), gap());
        check(HttpFormat::Sse, format!("event: gap\ndata: {notice}\n\n").as_bytes(), gap());
        check(HttpFormat::WebSocketRaw, &text("{\"position\":\"3-4\"}"), ResumedItem::Position(b"3-4"));
        check(HttpFormat::WebSocketRaw, &text("{\"start\":\"3-4\"}"), ResumedItem::Position(b"3-4"));
        check(HttpFormat::Sse, b"id: 3-4\n\n", ResumedItem::Position(b"3-4"));
        check(HttpFormat::Sse, b":\n\n", ResumedItem::Nothing);
        check(HttpFormat::WebSocketRaw, b"\x89\0", ResumedItem::Answer(PONG));
        check(HttpFormat::WebSocketRaw, b"\x88\x02\x0f\xa8", ResumedItem::Closed);
        for wrong in [format!("id: 3-18\ndata: {object}\n\n"), "odd\n\n".to_owned()] {
            assert!(next_item(HttpFormat::Sse, wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
