//! Centrifugo: subscribers use its JSON protocol over WebSocket; a publisher sends each batch as one request of the HTTP
//! API, which is its fastest publication that adds nothing to the deliveries. (A client that publishes over its
//! WebSocket sends one command per message, and each delivery then names the client.)

use super::codec::{BroadcastCodec, PublicationCodec, ReceivedItem, Subscription, delivery_or, shown};
use super::frames::{Framing, TEXT, push_client_frame, whole_frames};
use super::limits::CONTROL_SIZE_MAX;
use super::record::find;
use super::websocket::{handshake_size, push_handshake};

const TARGET: &str = "/connection/websocket";

const DELIVERY_TAIL: &[u8] = b"\"}}}\n";

const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";

/// An empty command, which answers the empty reply that is the server's ping.
const PONG: &[u8] = b"\x81\x82\0\0\0\0{}";

pub(super) struct Centrifugo;

/// A reply that is no message.
fn other_reply(input: &[u8]) -> Result<ReceivedItem, String> {
    match input.iter().position(|byte| *byte == b'\n') {
        None if input.len() > CONTROL_SIZE_MAX => Err("a line without an end".to_owned()),
        None => Ok(ReceivedItem::Incomplete),
        Some(2) if input.starts_with(b"{}") => Ok(ReceivedItem::Control { size: 3, answer: PONG }),
        Some(end) => Err(shown(&input[..end])),
    }
}

/// Size of the response to a request of the HTTP API; `None`: it is incomplete.
fn response_size(input: &[u8]) -> Result<Option<usize>, String> {
    let Some(end) = find(input, b"\r\n\r\n") else { return Ok(None) };
    let head = String::from_utf8_lossy(&input[..end]).to_ascii_lowercase();
    if !head.starts_with("http/1.1 200 ") {
        return Err(shown(input));
    }
    let (start, rest) = (end + 4, &input[end + 4..]);
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    let size: Option<usize> = match length {
        Some(length) => Some(length),
        // A long answer comes in chunks, and has no text with an empty one.
        None => find(rest, LAST_CHUNK).map(|at| at + LAST_CHUNK.len()),
    };
    let Some(body) = size.and_then(|size| rest.get(..size)) else { return Ok(None) };
    match find(body, b"\"error\"") {
        Some(_) => Err(shown(body)),
        None => Ok(Some(start + body.len())),
    }
}

impl PublicationCodec for Centrifugo {
    /// A request without commands, so that the publisher is known to be accepted.
    fn open_publisher(&self, _: u16, out: &mut Vec<u8>) {
        self.finish_batch(0, out);
    }

    fn publisher_opening_size(&self, input: &[u8]) -> Result<Option<usize>, String> {
        response_size(input)
    }

    fn push_publication(&self, subject: &str, payload: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"publish\":{\"channel\":\"");
        out.extend_from_slice(subject.as_bytes());
        out.extend_from_slice(b"\",\"data\":\"");
        out.extend_from_slice(payload);
        out.extend_from_slice(b"\"}},");
    }

    fn finish_batch(&self, start: usize, out: &mut Vec<u8>) {
        let commands = out.split_off(start);
        let commands = commands.strip_suffix(b",").unwrap_or(&commands);
        let (begin, end) = (b"{\"commands\":[", b"]}");
        let head = format!(
            "POST /api/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            begin.len() + commands.len() + end.len()
        );
        for piece in [head.as_bytes(), begin, commands, end] {
            out.extend_from_slice(piece);
        }
    }

    fn next_answer(&self, input: &[u8]) -> Result<ReceivedItem, String> {
        let item = |size| ReceivedItem::Control { size, answer: b"" };
        Ok(response_size(input)?.map_or(ReceivedItem::Incomplete, item))
    }
}

impl BroadcastCodec for Centrifugo {
    fn publications(&self) -> &dyn PublicationCodec {
        self
    }

    fn open_subscriber(&self, _: &Subscription, out: &mut Vec<u8>) {
        push_handshake(TARGET, out);
    }

    fn opening_size(&self, input: &[u8]) -> Result<Option<usize>, String> {
        handshake_size(input)
    }

    fn framing(&self) -> Option<Framing> {
        Some(Framing::Lines)
    }

    fn subscribe_in_frames(&self, subscription: &Subscription, out: &mut Vec<u8>) {
        let commands = format!(
            "{{\"id\":1,\"connect\":{{}}}}\n{{\"id\":2,\"subscribe\":{{\"channel\":\"{}\"}}}}",
            subscription.subject
        );
        push_client_frame(TEXT, commands.as_bytes(), out);
    }

    fn framed_opening_size(&self, input: &[u8]) -> Result<Option<usize>, String> {
        let (replies, size) = whole_frames(input);
        if find(&replies, b"\"error\"").is_some() {
            return Err(shown(&replies));
        }
        Ok(find(&replies, b"{\"id\":2,\"subscribe\"").map(|_| size))
    }

    fn push_delivery_head(&self, subscription: &Subscription, out: &mut Vec<u8>) {
        let subject = &subscription.subject;
        out.extend_from_slice(
            format!("{{\"push\":{{\"channel\":\"{subject}\",\"pub\":{{\"data\":\"").as_bytes(),
        );
    }

    fn delivery_tail(&self) -> &'static [u8] {
        DELIVERY_TAIL
    }

    fn next_item(&self, subscription: &Subscription, input: &[u8]) -> Result<ReceivedItem, String> {
        // A ping begins as a delivery does.
        if input.starts_with(b"{}") {
            return other_reply(input);
        }
        delivery_or(subscription, DELIVERY_TAIL, input, other_reply)
    }
}

#[cfg(test)]
mod tests {
    use super::super::codec::tests::check_codec;
    use super::super::plan::BroadcastProtocol;
    use super::*;

    #[test]
    fn pushes_are_deliveries_and_a_ping_is_answered() {
        check_codec(&Centrifugo, BroadcastProtocol::Centrifugo);
        assert_eq!(other_reply(b"{}\n{"), Ok(ReceivedItem::Control { size: 3, answer: PONG }));
        assert!(other_reply(b"{\"push\":{\"channel\":\"other\"}}\n").is_err());
    }

    #[test]
    fn a_batch_is_one_request_and_an_error_in_its_answer_is_a_failure() {
        let mut out = b"before".to_vec();
        Centrifugo.push_publication("bench", b"a", &mut out);
        Centrifugo.push_publication("bench", b"b", &mut out);
        Centrifugo.finish_batch(6, &mut out);
        let text = String::from_utf8(out).expect("text");
        assert!(text.starts_with("beforePOST /api/batch HTTP/1.1\r\n"), "{text}");
        let body = "{\"commands\":[{\"publish\":{\"channel\":\"bench\",\"data\":\"a\"}},{\"publish\":{\"channel\":\"bench\",\"data\":\"b\"}}]}";
        assert!(text.ends_with(&format!("Content-Length: {}\r\n\r\n{body}", body.len())), "{text}");
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{\"replies\":[]}";
        assert_eq!(response_size(answer), Ok(Some(answer.len())));
        assert_eq!(response_size(&answer[..answer.len() - 1]), Ok(None));
        let refused = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{\"error\":1";
        assert!(response_size(refused).is_err());
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
        assert_eq!(response_size(&chunked.repeat(2)), Ok(Some(chunked.len())));
        assert_eq!(response_size(&chunked[..chunked.len() - 1]), Ok(None));
        assert!(response_size(b"HTTP/1.1 401 Unauthorized\r\n\r\n").is_err());
    }
}
