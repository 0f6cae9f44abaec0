//! Decoding of what subscribers and publishers receive over SSE and WebSocket, independent of the server's codecs.

use crate::streams::wire::{ClientWire, find, number_of};

/// A message or notice of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SubscriberInput {
    Record {
        /// Of its id, over SSE.
        epoch: Option<u64>,
        sequence: u64,
        /// In JSON formats.
        subject: Option<String>,
        /// In JSON formats, nanoseconds since 1970.
        time_ns: Option<u64>,
        payload: Vec<u8>,
    },
    Gap {
        first: u64,
        last: u64,
        cause: String,
    },
    Reset {
        cause: String,
        epoch: u64,
        next: u64,
    },
    /// A start, or that the subscription is up to date.
    Position {
        epoch: u64,
        sequence: u64,
    },
    /// A comment, the retry time or a pong.
    Idle,
}

/// A frame of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerFrame {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong,
    Close(u16),
}

/// The head of an HTTP response once it is complete: its status. It is consumed.
pub(super) fn next_head(wire: &mut ClientWire) -> Result<Option<u16>, String> {
    let Some(end) = find(wire.received(), b"\r\n\r\n") else { return Ok(None) };
    let head = String::from_utf8_lossy(&wire.received()[..end]).into_owned();
    wire.consume(end + 4);
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    status.map(Some).ok_or_else(|| format!("no status: {head}"))
}

/// The next complete event of an event stream.
pub(super) fn next_event(wire: &mut ClientWire, is_json: bool) -> Result<Option<SubscriberInput>, String> {
    let Some(end) = find(wire.received(), b"\n\n") else { return Ok(None) };
    let text = String::from_utf8(wire.received()[..end].to_vec()).map_err(|error| error.to_string())?;
    wire.consume(end + 2);
    decode_event(&text, is_json).map(Some)
}

fn decode_event(text: &str, is_json: bool) -> Result<SubscriberInput, String> {
    let (mut id, mut event, mut data) = (None, "", None::<String>);
    for line in text.split('\n') {
        match line.split_once(": ").unwrap_or((line, "")) {
            ("id", value) => id = Some(event_id(value).ok_or_else(|| format!("id {value}"))?),
            ("event", value) => event = value,
            ("data", value) => match &mut data {
                Some(data) => *data = format!("{data}\n{value}"),
                None => data = Some(value.to_owned()),
            },
            ("retry", _) => {}
            _ if line.starts_with(':') => {}
            _ => return Err(format!("unexpected line {line:?}")),
        }
    }
    match (event, id, data) {
        ("", None, None) => Ok(SubscriberInput::Idle),
        ("", Some((epoch, sequence)), None) => Ok(SubscriberInput::Position { epoch, sequence }),
        ("", Some((epoch, sequence)), Some(data)) => {
            if !is_json {
                let payload = data.into_bytes();
                return Ok(SubscriberInput::Record {
                    epoch: Some(epoch),
                    sequence,
                    subject: None,
                    time_ns: None,
                    payload,
                });
            }
            match decode_object(&data, Some(epoch))? {
                SubscriberInput::Record { sequence: own, .. } if own != sequence => {
                    Err(format!("id {sequence} on {data}"))
                }
                record => Ok(record),
            }
        }
        ("gap" | "reset", None, Some(data)) => decode_notice(&data)?.ok_or(data),
        _ => Err(format!("unexpected event {text:?}")),
    }
}

/// Epoch and sequence of an id.
fn event_id(text: &str) -> Option<(u64, u64)> {
    let (epoch, sequence) = text.split_once('-')?;
    Some((epoch.parse().ok()?, sequence.parse().ok()?))
}

/// The text of a member.
pub(super) fn text_of<'a>(object: &'a str, key: &str) -> Option<&'a str> {
    let (_, behind) = object.split_once(&format!("\"{key}\":\""))?;
    behind.split('"').next()
}

/// A start, a gap, a reset or a position; `None` for other messages.
fn decode_notice(text: &str) -> Result<Option<SubscriberInput>, String> {
    let damaged = || format!("damaged notice {text}");
    let number = |key| number_of(text, key).ok_or_else(damaged);
    let word = |key| text_of(text, key).ok_or_else(damaged);
    let notice = if text.starts_with("{\"gap\":") {
        SubscriberInput::Gap {
            first: number("first")?,
            last: number("last")?,
            cause: word("cause")?.to_owned(),
        }
    } else if text.starts_with("{\"reset\":") {
        let epoch = word("epoch")?.parse().map_err(|_| damaged())?;
        SubscriberInput::Reset { cause: word("cause")?.to_owned(), epoch, next: number("next")? }
    } else if text.starts_with("{\"start\":") {
        let (epoch, sequence) = event_id(word("start")?).ok_or_else(damaged)?;
        SubscriberInput::Position { epoch, sequence }
    } else if text.starts_with("{\"position\":") {
        let (epoch, sequence) = event_id(word("position")?).ok_or_else(damaged)?;
        SubscriberInput::Position { epoch, sequence }
    } else {
        return Ok(None);
    };
    Ok(Some(notice))
}

/// A message's object. The payloads of the world need no escapes.
fn decode_object(text: &str, epoch: Option<u64>) -> Result<SubscriberInput, String> {
    let damaged = || format!("damaged object {text}");
    let sequence = number_of(text, "seq").ok_or_else(damaged)?;
    let subject = Some(text_of(text, "subject").ok_or_else(damaged)?.to_owned());
    let time_ns = Some(text_of(text, "time").and_then(parse_time).ok_or_else(damaged)?);
    let payload = match (text.split_once(",\"text\":\""), text.split_once(",\"data\":")) {
        (Some((_, payload)), None) => payload.strip_suffix("\"}"),
        (None, Some((_, payload))) => payload.strip_suffix('}'),
        _ => None,
    };
    let payload = payload.ok_or_else(damaged)?.as_bytes().to_vec();
    Ok(SubscriberInput::Record { epoch, sequence, subject, time_ns, payload })
}

/// The day of the worlds, and its begin in seconds since 1970. Each world ends on it.
const DAY: &str = "2023-11-14T";
const DAY_S: u64 = 1_699_920_000;

/// Nanoseconds since 1970 of a time on [`DAY`].
fn parse_time(text: &str) -> Option<u64> {
    let clock = text.strip_prefix(DAY)?.strip_suffix('Z')?;
    let (whole, fraction) = clock.split_once('.')?;
    let [hours, minutes, seconds] = whole.split(':').collect::<Vec<_>>()[..] else { return None };
    let number = |text: &str| text.parse::<u64>().ok();
    let seconds = DAY_S + (number(hours)? * 60 + number(minutes)?) * 60 + number(seconds)?;
    (fraction.len() == 9).then_some(seconds * 1_000_000_000 + number(fraction)?)
}

/// The time of [`parse_time`] as text.
pub(super) fn format_time(time_ns: u64) -> String {
    let (seconds, fraction) = (time_ns / 1_000_000_000 - DAY_S, time_ns % 1_000_000_000);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{DAY}{hours:02}:{minutes:02}:{seconds:02}.{fraction:09}Z")
}

/// Decodes a message over WebSocket.
pub(super) fn decode_message(frame: &ServerFrame, is_json: bool) -> Result<SubscriberInput, String> {
    match frame {
        ServerFrame::Text(text) => {
            if let Some(notice) = decode_notice(text)? {
                return Ok(notice);
            }
            if !is_json {
                return Err(format!("unexpected text {text}"));
            }
            decode_object(text, None)
        }
        ServerFrame::Binary(bytes) if !is_json => {
            let (sequence, payload) =
                bytes.split_first_chunk().ok_or("a binary message without a sequence")?;
            let sequence = u64::from_be_bytes(*sequence);
            let payload = payload.to_vec();
            Ok(SubscriberInput::Record { epoch: None, sequence, subject: None, time_ns: None, payload })
        }
        other => Err(format!("unexpected message {other:?}")),
    }
}

/// The next complete frame of the server.
pub(super) fn next_frame(wire: &mut ClientWire) -> Result<Option<ServerFrame>, String> {
    let bytes = wire.received();
    let &[first, second, ..] = bytes else { return Ok(None) };
    let (start, length) = match second {
        126 => match bytes.get(2..4) {
            Some(length) => (4, usize::from(u16::from_be_bytes([length[0], length[1]]))),
            None => return Ok(None),
        },
        127.. => return Err(format!("a frame of the server begins with {first} {second}")),
        length => (2, usize::from(length)),
    };
    let Some(payload) = bytes.get(start..start + length).map(<[u8]>::to_vec) else { return Ok(None) };
    let frame = match first {
        0x81 => ServerFrame::Text(String::from_utf8(payload).map_err(|error| error.to_string())?),
        0x82 => ServerFrame::Binary(payload),
        0x88 => ServerFrame::Close(payload.first_chunk().map_or(0, |code| u16::from_be_bytes(*code))),
        0x89 => ServerFrame::Ping(payload),
        0x8a => ServerFrame::Pong,
        _ => return Err(format!("a frame of the server begins with {first}")),
    };
    wire.consume(start + length);
    Ok(Some(frame))
}

/// Opcode of a client's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientOpcode {
    Continuation = 0,
    Text = 1,
    Pong = 10,
}

/// Sends a masked frame.
pub(super) fn send_frame(
    wire: &mut ClientWire,
    (opcode, is_final): (ClientOpcode, bool),
    payload: &[u8],
    mask: [u8; 4],
) {
    let mut frame = vec![opcode as u8 | if is_final { 0x80 } else { 0 }];
    match payload.len() {
        length @ 0..126 => frame.push(0x80 | length as u8),
        length => {
            frame.push(0x80 | 126);
            // Messages of the world are shorter than 64 KiB.
            frame.extend((length as u16).to_be_bytes());
        }
    }
    frame.extend(mask);
    frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    wire.bytes(&frame);
}

/// Sends the request for a WebSocket.
pub(super) fn request_websocket(wire: &mut ClientWire, target: &str) {
    wire.line(&format!("GET {target} HTTP/1.1"));
    wire.line("Host: localhost");
    wire.line("Connection: Upgrade");
    wire.line("Upgrade: websocket");
    wire.line("Sec-WebSocket-Version: 13");
    wire.line("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_and_messages_of_the_documentation() {
        let record = SubscriberInput::Record {
            epoch: Some(3),
            sequence: 17,
            subject: Some("a.b".to_owned()),
            time_ns: Some((DAY_S + 11 * 3600) * 1_000_000_000 + 5),
            payload: b"open".to_vec(),
        };
        let object = r#"{"seq":17,"subject":"a.b","time":"2023-11-14T11:00:00.000000005Z","text":"open"}"#;
        assert_eq!(decode_event(&format!("id: 3-17\ndata: {object}"), true), Ok(record));
        assert_eq!(format_time((DAY_S + 11 * 3600) * 1_000_000_000 + 5), "2023-11-14T11:00:00.000000005Z");
        let gap = SubscriberInput::Gap { first: 2, last: 5, cause: "removed".to_owned() };
        let object = r#"{"gap":{"first":2,"last":5,"cause":"removed"}}"#;
        assert_eq!(decode_event(&format!("event: gap\ndata: {object}"), false), Ok(gap.clone()));
        assert_eq!(decode_message(&ServerFrame::Text(object.to_owned()), false), Ok(gap));
        let reset = SubscriberInput::Reset { cause: "ahead".to_owned(), epoch: 3, next: 6 };
        let object = r#"{"reset":{"cause":"ahead","epoch":"3","next":6}}"#;
        assert_eq!(decode_message(&ServerFrame::Text(object.to_owned()), true), Ok(reset));
        let position = SubscriberInput::Position { epoch: 3, sequence: 5 };
        assert_eq!(decode_event("id: 3-5", true), Ok(position));
        assert_eq!(decode_event("retry: 1000", true), Ok(SubscriberInput::Idle));
        assert_eq!(decode_event(":", true), Ok(SubscriberInput::Idle));
        assert!(decode_event("data: without an id", false).is_err());
    }
}
