//! MQTT 3.1.1 at QoS 0 (OASIS standard, October 2014).

use super::codec::{BroadcastCodec, PublicationCodec, ReceivedItem, Subscription, delivery_or, shown};

/// First bytes of packets, §2.2.1.
const CONNECT: u8 = 0x10;
const CONNACK: u8 = 0x20;
const PUBLISH: u8 = 0x30;
const SUBSCRIBE: u8 = 0x82;
const SUBACK: u8 = 0x90;

pub(super) struct Mqtt;

/// Appends a length in groups of seven bits, §2.2.3.
fn push_remaining_length(out: &mut Vec<u8>, mut length: usize) {
    while length > 127 {
        out.push(length as u8 & 127 | 128);
        length >>= 7;
    }
    out.push(length as u8);
}

/// Appends a string with its length, §1.5.3. Texts of a run are shorter than 64 KiB.
fn push_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn push_connect(out: &mut Vec<u8>, client: &str) {
    out.push(CONNECT);
    push_remaining_length(out, 10 + 2 + client.len());
    push_text(out, "MQTT");
    // Level 4, clean session, no keep-alive: §3.1.2.
    out.extend_from_slice(&[4, 2, 0, 0]);
    push_text(out, client);
}

fn push_publish_head(out: &mut Vec<u8>, topic: &str, payload_size: usize) {
    out.push(PUBLISH);
    push_remaining_length(out, 2 + topic.len() + payload_size);
    push_text(out, topic);
}

fn unexpected(input: &[u8]) -> Result<ReceivedItem, String> {
    if input.is_empty() { Ok(ReceivedItem::Incomplete) } else { Err(format!("packet {}", shown(input))) }
}

/// Size of the only right answer; `None`: it is incomplete.
fn answer_size(input: &[u8], expected: &[u8]) -> Result<Option<usize>, String> {
    if input.starts_with(expected) {
        return Ok(Some(expected.len()));
    }
    if expected.starts_with(input) { Ok(None) } else { Err(format!("refused: {input:?}")) }
}

impl PublicationCodec for Mqtt {
    fn open_publisher(&self, number: u16, out: &mut Vec<u8>) {
        push_connect(out, &format!("publisher{number}"));
    }

    fn publisher_opening_size(&self, input: &[u8]) -> Result<Option<usize>, String> {
        answer_size(input, &[CONNACK, 2, 0, 0])
    }

    fn push_publication(&self, subject: &str, payload: &[u8], out: &mut Vec<u8>) {
        push_publish_head(out, subject, payload.len());
        out.extend_from_slice(payload);
    }

    fn next_answer(&self, input: &[u8]) -> Result<ReceivedItem, String> {
        unexpected(input)
    }
}

impl BroadcastCodec for Mqtt {
    fn publications(&self) -> &dyn PublicationCodec {
        self
    }

    fn open_subscriber(&self, subscription: &Subscription, out: &mut Vec<u8>) {
        push_connect(out, &format!("subscriber{}", subscription.number));
        out.push(SUBSCRIBE);
        push_remaining_length(out, 2 + 2 + subscription.subject.len() + 1);
        // Packet identifier 1, and QoS 0 after the filter: §3.8.
        out.extend_from_slice(&[0, 1]);
        push_text(out, &subscription.subject);
        out.push(0);
    }

    fn opening_size(&self, input: &[u8]) -> Result<Option<usize>, String> {
        answer_size(input, &[CONNACK, 2, 0, 0, SUBACK, 3, 0, 1, 0])
    }

    fn push_delivery_head(&self, subscription: &Subscription, out: &mut Vec<u8>) {
        push_publish_head(out, &subscription.subject, subscription.payload_size);
    }

    fn delivery_tail(&self) -> &'static [u8] {
        b""
    }

    fn next_item(&self, subscription: &Subscription, input: &[u8]) -> Result<ReceivedItem, String> {
        delivery_or(subscription, b"", input, unexpected)
    }
}

#[cfg(test)]
mod tests {
    use super::super::codec::tests::check_codec;
    use super::super::plan::BroadcastProtocol;
    use super::*;

    #[test]
    fn packets_have_the_bytes_of_the_standard() {
        check_codec(&Mqtt, BroadcastProtocol::Mqtt);
        let mut out = Vec::new();
        Mqtt.push_publication("a/b", b"hi", &mut out);
        assert_eq!(out, b"\x30\x07\x00\x03a/bhi");
        out.clear();
        push_remaining_length(&mut out, 321);
        assert_eq!(out, [65 + 128, 2]);
        assert_eq!(Mqtt.opening_size(b"\x20\x02\x00\x00\x90\x03\x00\x01\x00"), Ok(Some(9)));
        assert_eq!(Mqtt.opening_size(b"\x20\x02\x00\x00"), Ok(None));
        assert!(Mqtt.opening_size(b"\x20\x02\x00\x05").is_err());
    }
}
