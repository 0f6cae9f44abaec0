//! Redis publish and subscribe in RESP2. The answer to each `PUBLISH` is the number of its receivers.

use super::codec::{BroadcastCodec, PublicationCodec, ReceivedItem, Subscription, delivery_or, line, shown};
use super::limits::CONTROL_SIZE_MAX;

const CRLF: &[u8] = b"\r\n";

pub(super) struct Redis;

fn push_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    push_bulk_head(out, bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(CRLF);
}

fn push_bulk_head(out: &mut Vec<u8>, size: usize) {
    out.push(b'$');
    out.extend_from_slice(itoa::Buffer::new().format(size).as_bytes());
    out.extend_from_slice(CRLF);
}

/// Nothing but deliveries and answers is expected.
fn unexpected(input: &[u8]) -> Result<ReceivedItem, String> {
    match line(input) {
        Some((line, _)) => Err(shown(line)),
        None if input.len() > CONTROL_SIZE_MAX => Err("a line without an end".to_owned()),
        None => Ok(ReceivedItem::Incomplete),
    }
}

/// Size of an answer of so many lines, of which the first is known; `None`: it is incomplete.
fn answer_lines_size(input: &[u8], first: &[u8], lines: u32) -> Result<Option<usize>, String> {
    let mut size = 0;
    for number in 0..lines {
        let Some((line, line_size)) = line(&input[size..]) else { return Ok(None) };
        if number == 0 && line != first {
            return Err(shown(line));
        }
        size += line_size;
    }
    Ok(Some(size))
}

impl PublicationCodec for Redis {
    fn open_publisher(&self, _: u16, out: &mut Vec<u8>) {
        out.extend_from_slice(b"*1\r\n$4\r\nPING\r\n");
    }

    fn publisher_opening_size(&self, input: &[u8]) -> Result<Option<usize>, String> {
        answer_lines_size(input, b"+PONG", 1)
    }

    fn push_publication(&self, subject: &str, payload: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(b"*3\r\n$7\r\nPUBLISH\r\n");
        push_bulk(out, subject.as_bytes());
        push_bulk(out, payload);
    }

    fn publication_answer(&self, receivers: u32) -> Vec<u8> {
        format!(":{receivers}\r\n").into_bytes()
    }

    fn next_answer(&self, input: &[u8]) -> Result<ReceivedItem, String> {
        unexpected(input)
    }
}

impl BroadcastCodec for Redis {
    fn publications(&self) -> &dyn PublicationCodec {
        self
    }

    fn open_subscriber(&self, subscription: &Subscription, out: &mut Vec<u8>) {
        out.extend_from_slice(b"*2\r\n$9\r\nSUBSCRIBE\r\n");
        push_bulk(out, subscription.subject.as_bytes());
    }

    /// `*3`, `$9`, `subscribe`, `$N`, the channel, `:1`.
    fn opening_size(&self, input: &[u8]) -> Result<Option<usize>, String> {
        answer_lines_size(input, b"*3", 6)
    }

    fn push_delivery_head(&self, subscription: &Subscription, out: &mut Vec<u8>) {
        out.extend_from_slice(b"*3\r\n$7\r\nmessage\r\n");
        push_bulk(out, subscription.subject.as_bytes());
        push_bulk_head(out, subscription.payload_size);
    }

    fn delivery_tail(&self) -> &'static [u8] {
        CRLF
    }

    fn next_item(&self, subscription: &Subscription, input: &[u8]) -> Result<ReceivedItem, String> {
        delivery_or(subscription, CRLF, input, unexpected)
    }
}

#[cfg(test)]
mod tests {
    use super::super::codec::tests::check_codec;
    use super::super::plan::BroadcastProtocol;
    use super::*;

    #[test]
    fn deliveries_and_answers_are_decoded() {
        check_codec(&Redis, BroadcastProtocol::Redis);
        let subscribed = b"*3\r\n$9\r\nsubscribe\r\n$5\r\nbench\r\n:1\r\n";
        assert_eq!(Redis.opening_size(subscribed), Ok(Some(subscribed.len())));
        assert_eq!(Redis.opening_size(&subscribed[..20]), Ok(None));
        assert_eq!(Redis.publisher_opening_size(b"+PONG\r\n"), Ok(Some(7)));
        assert!(Redis.opening_size(b"-ERR max number of clients reached\r\n").is_err());
        assert_eq!(Redis.publication_answer(200), b":200\r\n");
        assert!(Redis.next_answer(b":199\r\n").is_err());
    }
}
