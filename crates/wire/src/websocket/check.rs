//! Checks shared by the property tests and the fuzz target: one input, every way to split it, and a naive decoder as the
//! oracle. Each function panics when a check fails.

use super::limits::{CONTROL_SIZE_MAX, HEADER_SIZE_MAX};
use super::{
    CloseCode, MessageKind, WebSocketDecodeError, WebSocketDecoder, WebSocketEvent, WebSocketFault,
    WebSocketLimits, WebSocketRole,
};

/// One decoder result, unmasked, with the pieces of a message joined so that two splits of one input compare equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebSocketObservation {
    /// A message.
    Message(MessageKind, Vec<u8>),
    /// A message without its end.
    Incomplete(MessageKind, Vec<u8>),
    /// A ping.
    Ping(Vec<u8>),
    /// A pong.
    Pong(Vec<u8>),
    /// A close frame.
    Close(Option<u16>, Vec<u8>),
    /// An error, which discards the unfinished message: whether its start was returned depends on the split.
    Error(WebSocketDecodeError),
    /// The input ended here with this many bytes unconsumed.
    Waiting(usize),
}

/// All results, and their cost.
pub struct Decoded {
    /// The results.
    pub seen: Vec<WebSocketObservation>,
    /// Bytes of payload that were scanned.
    pub work: u64,
    /// Bytes that were available when the error was returned.
    pub failed_at: Option<usize>,
}

/// Sorted, distinct offsets inside `length`, with the end added: how much input is available at each step.
fn arrivals(length: usize, cuts: &[usize]) -> Vec<usize> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (length + 1)).chain([length]).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// Decodes the bytes that `sender` sends, arriving in pieces that end at `cuts`.
pub fn decode(sender: WebSocketRole, limits: &WebSocketLimits, bytes: &[u8], cuts: &[usize]) -> Decoded {
    let (mut decoder, mut start, mut work) = (WebSocketDecoder::new(sender), 0, 0);
    let (mut seen, mut open) = (Vec::new(), None);
    for end in arrivals(bytes.len(), cuts) {
        loop {
            let step = match decoder.decode_counting(limits, &bytes[start..end], &mut work) {
                Ok(step) => step,
                Err(error) => {
                    assert_eq!(decoder.decode(limits, b"\x81\x80"), Err(error), "an error lasts");
                    seen.push(WebSocketObservation::Error(error));
                    return Decoded { seen, work, failed_at: Some(end) };
                }
            };
            start += step.consumed;
            assert!(start <= end, "more consumed than given");
            if step.event == WebSocketEvent::NeedMore {
                break;
            }
            record(step.event, &mut seen, &mut open, limits);
            assert_eq!(decoder.in_message(), open.is_some(), "in_message matches the open message");
            assert!(
                !seen.last().is_some_and(is_close) || decoder.is_closed(),
                "a close frame is the last event"
            );
        }
        let waits_most = (limits.whole_size_max as usize).max(HEADER_SIZE_MAX + CONTROL_SIZE_MAX);
        assert!(end - start <= waits_most, "unconsumed input exceeds what a message may wait for");
    }
    seen.extend(open.map(|(kind, bytes)| WebSocketObservation::Incomplete(kind, bytes)));
    seen.push(WebSocketObservation::Waiting(bytes.len() - start));
    Decoded { seen, work, failed_at: None }
}

fn is_close(seen: &WebSocketObservation) -> bool {
    matches!(seen, WebSocketObservation::Close(..))
}

fn record(
    event: WebSocketEvent<'_>,
    seen: &mut Vec<WebSocketObservation>,
    open: &mut Option<(MessageKind, Vec<u8>)>,
    limits: &WebSocketLimits,
) {
    match event {
        WebSocketEvent::NeedMore => {}
        WebSocketEvent::Message { kind, payload } => {
            assert!(open.is_none(), "a message ends before the next one begins");
            assert!(payload.len() <= limits.message_size_max as usize);
            seen.push(WebSocketObservation::Message(kind, payload.to_vec()));
        }
        WebSocketEvent::MessageStart { kind, size } => {
            let longer =
                size.is_none_or(|size| size > limits.whole_size_max && size <= limits.message_size_max);
            assert!(longer, "a short message is returned whole");
            let before = open.replace((kind, Vec::new()));
            assert!(before.is_none(), "a message ends before the next one begins");
        }
        WebSocketEvent::Piece(piece) => {
            assert!(!piece.is_empty(), "a piece has at least one byte");
            let (_, bytes) = open.as_mut().expect("pieces follow a start");
            piece.append_to(bytes);
            assert!(bytes.len() <= limits.message_size_max as usize);
        }
        WebSocketEvent::MessageEnd => {
            let (kind, bytes) = open.take().expect("an end follows a start");
            seen.push(WebSocketObservation::Message(kind, bytes));
        }
        WebSocketEvent::Ping(payload) => seen.push(WebSocketObservation::Ping(payload.to_vec())),
        WebSocketEvent::Pong(payload) => seen.push(WebSocketObservation::Pong(payload.to_vec())),
        WebSocketEvent::Close { code, reason } => {
            seen.push(WebSocketObservation::Close(code.map(CloseCode::get), reason.to_vec()));
        }
    }
}

/// Checks that every split yields the same results, that a text is scanned once, and that an error does not wait for
/// more than its byte. Returns the results.
pub fn splits(
    sender: WebSocketRole,
    limits: &WebSocketLimits,
    bytes: &[u8],
    cuts: &[usize],
) -> Vec<WebSocketObservation> {
    let escaped = || bytes.escape_ascii().to_string();
    let whole = decode(sender, limits, bytes, &[]);
    let pieces = decode(sender, limits, bytes, cuts);
    assert_eq!(pieces.seen, whole.seen, "cut at {cuts:?}: {:?}", escaped());
    assert!(pieces.work <= bytes.len() as u64, "{} bytes scanned: {:?}", pieces.work, escaped());
    for seen in &whole.seen {
        if let WebSocketObservation::Message(MessageKind::Text, text) | WebSocketObservation::Close(_, text) =
            seen
        {
            assert!(str::from_utf8(text).is_ok(), "invalid text: {:?}", escaped());
        }
    }
    whole.seen
}

/// Compares the decoder with a naive one that takes complete frames of the whole input.
pub fn oracle(sender: WebSocketRole, limits: &WebSocketLimits, bytes: &[u8]) {
    let ours = decode(sender, limits, bytes, &[]).seen;
    let mut naive = NaiveDecoder { sender, limits: *limits, seen: Vec::new(), open: None, is_closed: false };
    let fault = naive.frames(bytes).err();
    let escaped = bytes.escape_ascii().to_string();
    let common = naive.seen.len();
    assert_eq!(ours.get(..common), Some(&naive.seen[..]), "{escaped}");
    match (&ours[common..], fault) {
        ([WebSocketObservation::Error(error)], Some(fault)) => assert_eq!(error.fault(), fault, "{escaped}"),
        // The decoder may find a fault in an incomplete frame.
        ([.., WebSocketObservation::Error(_)], None) if common + 1 == ours.len() => {}
        ([WebSocketObservation::Waiting(_)], None) => {
            assert!(naive.open.is_none(), "the oracle has a message: {escaped}");
        }
        ([WebSocketObservation::Incomplete(kind, bytes), WebSocketObservation::Waiting(_)], None) => {
            if let Some((naive_kind, naive_bytes)) = naive.open {
                assert!(*kind == naive_kind && bytes.starts_with(&naive_bytes), "{escaped}");
            }
        }
        (more, fault) => panic!("decoder: {more:?}, oracle: {fault:?}: {escaped}"),
    }
}

/// A second decoder, written for clarity.
struct NaiveDecoder {
    sender: WebSocketRole,
    limits: WebSocketLimits,
    seen: Vec<WebSocketObservation>,
    open: Option<(MessageKind, Vec<u8>)>,
    is_closed: bool,
}

impl NaiveDecoder {
    fn frames(&mut self, mut rest: &[u8]) -> Result<(), WebSocketFault> {
        while !self.is_closed {
            let [first, second, ..] = *rest else { return Ok(()) };
            let length_size = match second & 0x7f {
                126 => 2,
                127 => 8,
                _ => 0,
            };
            let key_size = if second >= 0x80 { 4 } else { 0 };
            self.check_start(first, second)?;
            let header_size = 2 + length_size + key_size;
            if rest.len() < header_size {
                return Ok(());
            }
            let length = rest[2..2 + length_size].iter().fold(0_u64, |sum, &byte| sum << 8 | u64::from(byte));
            let length = if length_size == 0 { u64::from(second & 0x7f) } else { length };
            self.check_length(first, length, length_size)?;
            let key = &rest[2 + length_size..header_size];
            let Some(masked) = rest.get(header_size..header_size + length as usize) else { return Ok(()) };
            let unmask = |(at, byte): (usize, &u8)| byte ^ if key.is_empty() { 0 } else { key[at % 4] };
            let payload: Vec<u8> = masked.iter().enumerate().map(unmask).collect();
            rest = &rest[header_size + masked.len()..];
            self.frame(first, payload)?;
        }
        Ok(())
    }

    fn check_start(&self, first: u8, second: u8) -> Result<(), WebSocketFault> {
        let (opcode, is_final) = (first & 0x0f, first >= 0x80);
        let checks = [
            (first & 0x70 != 0, WebSocketFault::ReservedBits),
            (!matches!(opcode, 0..=2 | 8..=10), WebSocketFault::Opcode),
            (opcode >= 8 && !is_final, WebSocketFault::ControlFragmented),
            (opcode == 0 && self.open.is_none(), WebSocketFault::ContinuationUnexpected),
            (matches!(opcode, 1 | 2) && self.open.is_some(), WebSocketFault::MessageUnfinished),
            (second < 0x80 && self.sender == WebSocketRole::Client, WebSocketFault::MaskMissing),
            (second >= 0x80 && self.sender == WebSocketRole::Server, WebSocketFault::MaskPresent),
            (opcode >= 8 && second & 0x7f > 125, WebSocketFault::ControlSize),
        ];
        checks.iter().find(|(is_broken, _)| *is_broken).map_or(Ok(()), |(_, fault)| Err(*fault))
    }

    fn check_length(&self, first: u8, length: u64, length_size: usize) -> Result<(), WebSocketFault> {
        let minimum = [(2, 126), (8, 65_536)].into_iter().find(|(size, _)| *size == length_size);
        if length >= 1 << 63 {
            return Err(WebSocketFault::LengthSign);
        }
        if minimum.is_some_and(|(_, minimum)| length < minimum) {
            return Err(WebSocketFault::LengthForm);
        }
        let before = self.open.as_ref().map_or(0, |(_, bytes)| bytes.len() as u64);
        let is_data = first & 0x0f < 8;
        if is_data && before + length > u64::from(self.limits.message_size_max) {
            return Err(WebSocketFault::MessageSize);
        }
        Ok(())
    }

    fn frame(&mut self, first: u8, payload: Vec<u8>) -> Result<(), WebSocketFault> {
        match first & 0x0f {
            9 => self.seen.push(WebSocketObservation::Ping(payload)),
            10 => self.seen.push(WebSocketObservation::Pong(payload)),
            8 => {
                self.is_closed = true;
                let close = naive_close(&payload)?;
                self.seen.push(close);
            }
            opcode => {
                let kind = if opcode == 1 { MessageKind::Text } else { MessageKind::Binary };
                let (_, bytes) = self.open.get_or_insert((kind, Vec::new()));
                bytes.extend(payload);
                self.end_frame(first >= 0x80)?;
            }
        }
        Ok(())
    }

    fn end_frame(&mut self, is_final: bool) -> Result<(), WebSocketFault> {
        let Some((kind, bytes)) = self.open.take() else { return Ok(()) };
        if kind == MessageKind::Text
            && let Err(error) = str::from_utf8(&bytes)
        {
            if error.error_len().is_some() {
                return Err(WebSocketFault::Text);
            }
            if is_final {
                return Err(WebSocketFault::TextEnd);
            }
        }
        if is_final {
            self.seen.push(WebSocketObservation::Message(kind, bytes));
        } else {
            self.open = Some((kind, bytes));
        }
        Ok(())
    }
}

fn naive_close(payload: &[u8]) -> Result<WebSocketObservation, WebSocketFault> {
    let [high, low, ref reason @ ..] = *payload else {
        let is_empty = payload.is_empty();
        let empty = WebSocketObservation::Close(None, Vec::new());
        return is_empty.then_some(empty).ok_or(WebSocketFault::ClosePayload);
    };
    let code = u16::from(high) * 256 + u16::from(low);
    let is_reserved = (1004..=1006).contains(&code) || (1015..3000).contains(&code);
    if !(1000..5000).contains(&code) || is_reserved {
        return Err(WebSocketFault::CloseCode);
    }
    str::from_utf8(reason).map_err(|_| WebSocketFault::CloseReason)?;
    Ok(WebSocketObservation::Close(Some(code), reason.to_vec()))
}
