//! What a subscriber gets.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use stilling_wire::nats::{AckSubject, Delivery, Headers};

/// A message.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Message {
    /// Where it was published to.
    pub subject: String,
    /// Where an answer is expected.
    pub reply: Option<String>,
    /// The header block as it came, for [`Message::header`]; empty for none.
    pub headers: Vec<u8>,
    /// The payload.
    pub payload: Vec<u8>,
    /// Where it stands in a stream, if it comes from one.
    pub place: Option<Place>,
}

/// Where a message stands in a stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// The stream.
    pub stream: String,
    /// Its sequence.
    pub sequence: u64,
    /// When the stream took it, in nanoseconds since 1970.
    pub time_ns: u64,
    /// How many messages of the stream come behind it for this follower.
    pub pending: u64,
}

impl Place {
    /// When the stream took it.
    #[must_use]
    pub fn time(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.time_ns)
    }
}

impl Message {
    pub(crate) fn of(delivery: &Delivery<'_>) -> Message {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Message {
            subject: text(delivery.subject),
            reply: delivery.reply.map(text),
            headers: delivery.headers.to_vec(),
            payload: delivery.payload.to_vec(),
            place: None,
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
    pub(crate) fn placed(mut self) -> Message {
        let place =
            self.reply.as_deref().and_then(|reply| AckSubject::parse(reply.as_bytes())).map(|ack| Place {
                stream: ack.stream.to_owned(),
                sequence: ack.stream_sequence,
                time_ns: ack.time_ns,
                pending: ack.pending,
            });
        if place.is_some() {
            self.reply = None;
        }
        self.place = place;
        self
    }
}
