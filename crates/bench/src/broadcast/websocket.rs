//! WebSockets (RFC 6455) of Stilling's HTTP port. Publishers use NATS.

use super::codec::{BroadcastCodec, PublicationCodec, ReceivedItem, Subscription, shown};
use super::frames::{PONG, ServerFrame, frame};
use super::limits::CONTROL_SIZE_MAX;
use super::nats::Nats;
use super::record::{RecordText, head_size, parse_position, take_number};

/// The format of the messages of a WebSocket.
pub(super) trait WebSocketFormat {
    /// Its name in the path.
    const FORMAT: &'static str;

    /// Decodes a complete frame at the start of `input`.
    fn item(subscription: &Subscription, input: &[u8], frame: &ServerFrame) -> Result<ReceivedItem, String>;
}

/// Binary frames: the sequence in eight bytes, then the payload.
pub(super) struct Raw;

/// Text frames: a message as a JSON object.
pub(super) struct Json;

pub(super) struct WebSocket<F>(pub(super) F);

const TEXT: u8 = 0x81;
const BINARY: u8 = 0x82;
const PING: u8 = 0x89;
const SEQUENCE_SIZE: usize = 8;

/// Decodes a frame that is no message.
fn other_frame(frame: &ServerFrame, input: &[u8]) -> Result<ReceivedItem, String> {
    let payload = &input[frame.head_size..frame.size];
    let position = payload.strip_prefix(b"{\"position\":\"").and_then(|rest| rest.strip_suffix(b"\"}"));
    let size = frame.size;
    match frame.first {
        PING if payload.is_empty() => Ok(ReceivedItem::Control { size, answer: PONG }),
        TEXT if position.and_then(parse_position).is_some() => {
            Ok(ReceivedItem::Control { size, answer: b"" })
        }
        _ => Err(shown(payload)),
    }
}

/// The answer ends with the frame that names the position: from it on, the subscription is live.
fn websocket_opening_size(input: &[u8]) -> Result<Option<usize>, String> {
    let Some(start) = handshake_size(input)? else { return Ok(None) };
    let Some(frame) = frame(&input[start..]) else { return Ok(None) };
    other_frame(&frame, &input[start..])?;
    Ok(Some(start + frame.size))
}

fn open_websocket(subscription: &Subscription, format: &str, out: &mut Vec<u8>) {
    push_handshake(&format!("/subscribe/{}?from=new&format={format}", subscription.subject), out);
}

/// Appends the request that turns a connection into a WebSocket.
pub(super) fn push_handshake(target: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("GET {target} HTTP/1.1\r\n").as_bytes());
    // The key of RFC 6455 §1.3: the generator measures servers of its own.
    out.extend_from_slice(
        b"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
          Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
}

/// Size of the answer to [`push_handshake`]; `None`: it is incomplete.
pub(super) fn handshake_size(input: &[u8]) -> Result<Option<usize>, String> {
    head_size(input, b"HTTP/1.1 101 ")
}

impl WebSocketFormat for Raw {
    const FORMAT: &'static str = "raw";

    fn item(subscription: &Subscription, input: &[u8], frame: &ServerFrame) -> Result<ReceivedItem, String> {
        let payload = frame.head_size + SEQUENCE_SIZE;
        if frame.first != BINARY || frame.size != payload + subscription.payload_size {
            return other_frame(frame, input);
        }
        let sequence = input[frame.head_size..payload].try_into().map_err(|_| shown(input))?;
        let sequence = Some(u64::from_be_bytes(sequence));
        Ok(ReceivedItem::Delivery { size: frame.size, payload: payload..frame.size, sequence })
    }
}

impl WebSocketFormat for Json {
    const FORMAT: &'static str = "json";

    fn item(subscription: &Subscription, input: &[u8], frame: &ServerFrame) -> Result<ReceivedItem, String> {
        let object = input[frame.head_size..].strip_prefix(b"{\"seq\":");
        let Some((sequence, _)) = object.filter(|_| frame.first == TEXT).and_then(take_number) else {
            return other_frame(frame, input);
        };
        let item =
            RecordText { subscription, sequence, end: b"" }.item(&input[..frame.size], frame.head_size)?;
        match item {
            ReceivedItem::Delivery { size, .. } if size == frame.size => Ok(item),
            _ => Err(shown(input)),
        }
    }
}

impl<F: WebSocketFormat> BroadcastCodec for WebSocket<F> {
    fn publications(&self) -> &dyn PublicationCodec {
        &Nats
    }

    fn open_subscriber(&self, subscription: &Subscription, out: &mut Vec<u8>) {
        open_websocket(subscription, F::FORMAT, out);
    }

    fn opening_size(&self, input: &[u8]) -> Result<Option<usize>, String> {
        websocket_opening_size(input)
    }

    fn has_known_deliveries(&self) -> bool {
        false
    }

    fn next_item(&self, subscription: &Subscription, input: &[u8]) -> Result<ReceivedItem, String> {
        match frame(input) {
            Some(frame) => F::item(subscription, input, &frame),
            None if input.len() > subscription.payload_size + CONTROL_SIZE_MAX => Err(shown(input)),
            None => Ok(ReceivedItem::Incomplete),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{BroadcastPlan, BroadcastProtocol};
    use super::*;

    fn subscription(codec: &dyn BroadcastCodec) -> Subscription {
        let to = ([127, 0, 0, 1], 9).into();
        let protocol = BroadcastProtocol::WebSocketRaw;
        Subscription::new(&BroadcastPlan { protocol, size: 16, ..BroadcastPlan::new(to) }, codec, 0)
    }

    fn check(codec: &dyn BroadcastCodec, whole: &[u8], tail: usize) {
        let subscription = subscription(codec);
        let end = whole.len() - tail;
        let expected =
            ReceivedItem::Delivery { size: whole.len(), payload: end - 16..end, sequence: Some(17) };
        assert_eq!(codec.next_item(&subscription, &whole.repeat(2)), Ok(expected));
        for size in 0..whole.len() {
            assert_eq!(codec.next_item(&subscription, &whole[..size]), Ok(ReceivedItem::Incomplete));
        }
        let ping = ReceivedItem::Control { size: 2, answer: PONG };
        assert_eq!(codec.next_item(&subscription, b"\x89\0"), Ok(ping));
        assert!(codec.next_item(&subscription, b"\x88\x02\x03\xe8").is_err());
    }

    #[test]
    fn messages_are_decoded_in_both_formats() {
        check(&WebSocket(Raw), b"\x82\x18\0\0\0\0\0\0\0\x110000000000000005", 0);
        let object = "{\"seq\":17,\"subject\":\"bench\",\"time\":\"2026-01-31T12:00:00.000000000Z\",\"text\":\"0000000000000005\"}";
        check(&WebSocket(Json), &[&[0x81, object.len() as u8], object.as_bytes()].concat(), 2);
    }

    #[test]
    fn an_opening_ends_with_the_position() {
        let whole = b"HTTP/1.1 101 Switching Protocols\r\n\r\n\x81\x12{\"position\":\"3-5\"}";
        assert_eq!(websocket_opening_size(whole), Ok(Some(whole.len())));
        for size in 0..whole.len() {
            assert_eq!(websocket_opening_size(&whole[..size]), Ok(None));
        }
    }
}
