//! What a subscriber gets.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use stilling_wire::nats::{AckSubject, Headers, NatsDelivery};

/// A message.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReceivedMessage {
    /// Where it was published to.
    pub subject: String,
    /// Where an answer is expected.
    pub reply: Option<String>,
    /// The header block as it came, for [`ReceivedMessage::header`]; empty for none.
    pub headers: Vec<u8>,
    /// The payload.
    pub payload: Vec<u8>,
    /// Where it stands in a stream, if it comes from one.
    pub position: Option<StreamPosition>,
}

/// Where a message stands in a stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StreamPosition {
    /// The stream.
    pub stream: String,
    /// Its sequence.
    pub sequence: u64,
    /// When the stream took it, in nanoseconds since 1970.
    pub time_ns: u64,
    /// How many messages of the stream come behind it for this follower.
    pub pending: u64,
}

impl StreamPosition {
    /// When the stream took it.
    #[must_use]
    pub fn time(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.time_ns)
    }
}

impl ReceivedMessage {
    pub(crate) fn from_delivery(delivery: &NatsDelivery<'_>) -> ReceivedMessage {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        ReceivedMessage {
            subject: text(delivery.subject),
            reply: delivery.reply.map(text),
            headers: delivery.headers.to_vec(),
            payload: delivery.payload.to_vec(),
            position: None,
        }
    }

    /// The first value of a header, if it is there and text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(Headers::parse(&self.headers).ok()?.find(name)?).ok()
    }

    /// The number that a header's first line carries beside the version: how servers speak in between.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        Headers::parse(&self.headers).ok()?.status().map(|status| status.code)
    }

    /// The same message, its place taken from the reply subject of a stream's delivery.
    pub(crate) fn with_position(mut self) -> ReceivedMessage {
        let position =
            self.reply.as_deref().and_then(|reply| AckSubject::parse(reply.as_bytes())).map(|ack| {
                StreamPosition {
                    stream: ack.stream.to_owned(),
                    sequence: ack.stream_sequence,
                    time_ns: ack.time_ns,
                    pending: ack.pending,
                }
            });
        if position.is_some() {
            self.reply = None;
        }
        self.position = position;
        self
    }
}
