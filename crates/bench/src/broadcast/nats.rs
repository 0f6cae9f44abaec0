//! The NATS client protocol.

use stilling_wire::nats::{PING, PONG, Pub, encode_sub};

use super::codec::{BroadcastCodec, PublicationCodec, ReceivedItem, Subscription, delivery_or, line, shown};
use super::limits::CONTROL_SIZE_MAX;
use crate::collect::encode_nats_connect;

const CRLF: &[u8] = b"\r\n";

pub(super) struct Nats;

/// Decodes a line that is no message.
pub(super) fn control(input: &[u8]) -> Result<ReceivedItem, String> {
    let Some((line, size)) = line(input) else {
        return if input.len() <= CONTROL_SIZE_MAX {
            Ok(ReceivedItem::Incomplete)
        } else {
            Err("a line without an end".to_owned())
        };
    };
    let answer: &'static [u8] = if line == b"PING" { PONG } else { b"" };
    if matches!(line, b"PING" | b"PONG" | b"+OK") || line.starts_with(b"INFO ") {
        return Ok(ReceivedItem::Control { size, answer });
    }
    Err(shown(line))
}

/// Size of the input up to the answer to the first PING.
pub(super) fn opening_size(input: &[u8]) -> Result<Option<usize>, String> {
    let mut start = 0;
    loop {
        match control(&input[start..])? {
            ReceivedItem::Control { size, .. } => {
                let is_pong = input[start..].starts_with(PONG);
                start += size;
                if is_pong {
                    return Ok(Some(start));
                }
            }
            _ => return Ok(None),
        }
    }
}

impl PublicationCodec for Nats {
    fn open_publisher(&self, _: u16, out: &mut Vec<u8>) {
        encode_nats_connect(out);
        out.extend_from_slice(PING);
    }

    fn publisher_opening_size(&self, input: &[u8]) -> Result<Option<usize>, String> {
        opening_size(input)
    }

    fn push_publication(&self, subject: &str, payload: &[u8], out: &mut Vec<u8>) {
        Pub { subject: subject.as_bytes(), reply: None, headers: b"", payload }.encode(out);
    }

    fn next_answer(&self, input: &[u8]) -> Result<ReceivedItem, String> {
        control(input)
    }
}

impl BroadcastCodec for Nats {
    fn publications(&self) -> &dyn PublicationCodec {
        self
    }

    fn open_subscriber(&self, subscription: &Subscription, out: &mut Vec<u8>) {
        encode_nats_connect(out);
        let sid = itoa::Buffer::new().format(subscription.sid).to_owned();
        encode_sub(out, subscription.subject.as_bytes(), None, sid.as_bytes());
        out.extend_from_slice(PING);
    }

    fn opening_size(&self, input: &[u8]) -> Result<Option<usize>, String> {
        opening_size(input)
    }

    fn push_delivery_head(&self, subscription: &Subscription, out: &mut Vec<u8>) {
        let Subscription { subject, sid, payload_size, .. } = subscription;
        out.extend_from_slice(format!("MSG {subject} {sid} {payload_size}\r\n").as_bytes());
    }

    fn delivery_tail(&self) -> &'static [u8] {
        CRLF
    }

    fn next_item(&self, subscription: &Subscription, input: &[u8]) -> Result<ReceivedItem, String> {
        delivery_or(subscription, CRLF, input, control)
    }
}

#[cfg(test)]
mod tests {
    use super::super::codec::tests::check_codec;
    use super::super::plan::BroadcastProtocol;
    use super::*;

    #[test]
    fn deliveries_are_decoded_and_other_lines_are_no_deliveries() {
        check_codec(&Nats, BroadcastProtocol::Nats);
        let ping = ReceivedItem::Control { size: 6, answer: PONG };
        assert_eq!(control(b"PING\r\nMSG"), Ok(ping));
        assert_eq!(control(b"PIN"), Ok(ReceivedItem::Incomplete));
        for wrong in [&b"-ERR 'Slow Consumer'\r\n"[..], b"HMSG bench 1 12 12\r\n", b"MSG other 1 1\r\n"] {
            assert!(control(wrong).is_err(), "{}", shown(wrong));
        }
    }

    #[test]
    fn an_opening_ends_with_the_pong() {
        let whole = b"INFO {}\r\nPING\r\nPONG\r\n";
        assert_eq!(opening_size(whole), Ok(Some(whole.len())));
        for size in 0..whole.len() {
            assert_eq!(opening_size(&whole[..size]), Ok(None));
        }
        let refused = opening_size(b"INFO {}\r\n-ERR 'Authorization Violation'\r\n");
        assert!(refused.unwrap_err().contains("Authorization"));
    }
}
