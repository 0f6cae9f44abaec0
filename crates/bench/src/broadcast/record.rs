//! A record of a stream as its subscribers over WebSocket and SSE receive it.

use super::codec::{ReceivedItem, Subscription, shown};

/// Bytes of a time, such as `2026-01-31T12:00:00.000000000Z`.
const TIME_SIZE: usize = 30;

/// The JSON object of a record whose payload is a text without characters to escape.
pub(super) struct RecordText<'a> {
    pub(super) subscription: &'a Subscription,
    pub(super) sequence: u64,
    /// Bytes after the object.
    pub(super) end: &'static [u8],
}

impl RecordText<'_> {
    /// Decodes the record at the start of `input`, with its object after `start` bytes. Every byte must be right, except
    /// the time, which only the server knows.
    pub(super) fn item(&self, input: &[u8], start: usize) -> Result<ReceivedItem, String> {
        let RecordText { subscription, sequence, end } = self;
        let mut digits = itoa::Buffer::new();
        let sequence_text = digits.format(*sequence).as_bytes();
        let before_time: [&[u8]; 5] = [
            b"{\"seq\":",
            sequence_text,
            b",\"subject\":\"",
            subscription.subject.as_bytes(),
            b"\",\"time\":\"",
        ];
        let Some(at) = after_pieces(input, start, &before_time)? else { return Ok(ReceivedItem::Incomplete) };
        let Some(time) = input.get(at..at + TIME_SIZE) else { return Ok(ReceivedItem::Incomplete) };
        if time[TIME_SIZE - 1] != b'Z' {
            return Err(shown(&input[start..]));
        }
        let Some(payload) = after_pieces(input, at + TIME_SIZE, &[b"\",\"text\":\""])? else {
            return Ok(ReceivedItem::Incomplete);
        };
        let payload_end = payload + subscription.payload_size;
        if input.len() < payload_end {
            return Ok(ReceivedItem::Incomplete);
        }
        let Some(size) = after_pieces(input, payload_end, &[b"\"}", end])? else {
            return Ok(ReceivedItem::Incomplete);
        };
        Ok(ReceivedItem::Delivery { size, payload: payload..payload_end, sequence: Some(*sequence) })
    }
}

/// The position after these pieces, which must follow at `at`; `None`: incomplete.
fn after_pieces(input: &[u8], mut at: usize, pieces: &[&[u8]]) -> Result<Option<usize>, String> {
    for piece in pieces {
        let rest = &input[at.min(input.len())..];
        if !rest.starts_with(piece) {
            return if piece.starts_with(rest) { Ok(None) } else { Err(shown(rest)) };
        }
        at += piece.len();
    }
    Ok(Some(at))
}

/// Parses `<epoch>-<sequence>`.
pub(super) fn parse_position(text: &[u8]) -> Option<(u64, u64)> {
    let (epoch, rest) = take_number(text)?;
    let (sequence, rest) = take_number(rest.strip_prefix(b"-")?)?;
    rest.is_empty().then_some((epoch, sequence))
}

/// Parses the decimal digits at the start, at most 20.
pub(super) fn take_number(text: &[u8]) -> Option<(u64, &[u8])> {
    let size = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at(size);
    Some((std::str::from_utf8(digits).ok()?.parse().ok()?, rest))
}

/// Position of `pattern` in `input`.
pub(super) fn find(input: &[u8], pattern: &[u8]) -> Option<usize> {
    input.windows(pattern.len()).position(|window| window == pattern)
}

/// Size of the head of an HTTP response with this status; `None`: it is incomplete.
pub(super) fn head_size(input: &[u8], status: &[u8]) -> Result<Option<usize>, String> {
    let Some(end) = find(input, b"\r\n\r\n") else { return Ok(None) };
    if input.starts_with(status) { Ok(Some(end + 4)) } else { Err(shown(input)) }
}
