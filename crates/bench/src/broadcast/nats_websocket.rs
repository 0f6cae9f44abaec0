//! The NATS client protocol in WebSocket frames, as nats-server's own WebSocket port speaks it. Publishers use NATS.

use super::codec::{BroadcastCodec, PublicationCodec, ReceivedItem, Subscription, shown};
use super::frames::{BINARY, Framing, push_client_frame, whole_frames};
use super::nats::Nats;
use super::record::find;
use super::websocket::{handshake_size, push_handshake};

/// Any path but those of leaf nodes and of MQTT.
const TARGET: &str = "/nats";

pub(super) struct NatsWebSocket;

impl BroadcastCodec for NatsWebSocket {
    fn publications(&self) -> &dyn PublicationCodec {
        &Nats
    }

    fn open_subscriber(&self, _: &Subscription, out: &mut Vec<u8>) {
        push_handshake(TARGET, out);
    }

    fn opening_size(&self, input: &[u8]) -> Result<Option<usize>, String> {
        handshake_size(input)
    }

    fn framing(&self) -> Option<Framing> {
        Some(Framing::Stream)
    }

    fn subscribe_in_frames(&self, subscription: &Subscription, out: &mut Vec<u8>) {
        let mut lines = Vec::new();
        Nats.open_subscriber(subscription, &mut lines);
        push_client_frame(BINARY, &lines, out);
    }

    /// The answer ends with the frame of the PONG, in which further lines may follow; a message can not, because nothing is
    /// published before all have subscribed.
    fn framed_opening_size(&self, input: &[u8]) -> Result<Option<usize>, String> {
        let (lines, size) = whole_frames(input);
        if find(&lines, b"-ERR ").is_some() {
            return Err(shown(&lines));
        }
        Ok(find(&lines, b"PONG\r\n").map(|_| size))
    }

    fn push_delivery_head(&self, subscription: &Subscription, out: &mut Vec<u8>) {
        Nats.push_delivery_head(subscription, out);
    }

    fn delivery_tail(&self) -> &'static [u8] {
        Nats.delivery_tail()
    }

    fn next_item(&self, subscription: &Subscription, input: &[u8]) -> Result<ReceivedItem, String> {
        Nats.next_item(subscription, input)
    }
}

#[cfg(test)]
mod tests {
    use super::super::codec::tests::check_codec;
    use super::super::plan::BroadcastProtocol;
    use super::*;

    #[test]
    fn lines_in_frames_are_those_of_nats() {
        check_codec(&NatsWebSocket, BroadcastProtocol::NatsWebSocket);
        let whole = b"\x82\x09INFO {}\r\n\x82\x0cPONG\r\nPING\r\n";
        assert_eq!(NatsWebSocket.framed_opening_size(whole), Ok(Some(whole.len())));
        for size in 0..whole.len() {
            assert_eq!(NatsWebSocket.framed_opening_size(&whole[..size]), Ok(None));
        }
        assert!(NatsWebSocket.framed_opening_size(b"\x82\x0b-ERR 'no'\r\n").is_err());
    }
}
