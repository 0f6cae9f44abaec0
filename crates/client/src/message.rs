//! Messages that a subscriber receives.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use stilling_wire::nats::{AckSubject, Headers, NatsDelivery};

/// A received message.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReceivedMessage {
    /// The subject that it was published to.
    pub subject: String,
    /// The reply subject.
    pub reply: Option<String>,
    /// The header block as received, for [`ReceivedMessage::header`]; empty without headers.
    pub headers: Vec<u8>,
    /// The payload.
    pub payload: Vec<u8>,
    /// Its position in a stream, if it was delivered from one.
    pub position: Option<StreamPosition>,
}

/// The position of a message in a stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StreamPosition {
    /// The stream's name.
    pub stream: String,
    /// Its sequence in the stream.
    pub sequence: u64,
    /// When the stream stored it, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Number of later messages in the stream for this follower.
    pub pending: u64,
}

impl StreamPosition {
    /// When the stream stored it.
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

    /// The first value of a header, if it is present and UTF-8.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(Headers::parse(&self.headers).ok()?.find(name)?).ok()
    }

    /// The status code in the header block's first line, used for control messages.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        Headers::parse(&self.headers).ok()?.status().map(|status| status.code)
    }

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
