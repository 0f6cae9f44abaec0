//! What was begun when the queue of a shard came far over its bound, as it is kept meanwhile.

use std::collections::VecDeque;
use std::ops::Range;

use stilling_journal::{Kind, Record};
use stilling_ring::SharedBlock;

use super::{Message, Sending};
use crate::payload::Payload;
use crate::pull::EndedPull;
use crate::registrations::Listener;
use crate::time::{SteadyNanos, UnixNanos};

/// Something that could not be handed out to its end.
#[derive(Debug)]
pub(crate) enum Unsent {
    /// A message behind what has waited before it.
    Message { sending: Sending, message: KeptMessage, to: Vec<u32> },
    /// A record for the rest of the consumers that want it.
    Record { visible: Visible, kind: Kind, record: KeptMessage, to: Vec<u32> },
    /// Ends of requests for messages, which their clients are told.
    Statuses(VecDeque<EndedPull>),
    /// A mark behind what waits.
    Mark { to: Listener, mark: u64 },
}

/// Which record has become visible, when it came, and what time it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visible {
    pub(crate) stream: usize,
    pub(crate) sequence: u64,
    pub(crate) time_ns: UnixNanos,
    pub(crate) now_ns: SteadyNanos,
}

/// A message's parts, one behind the other; a payload that lies in a shared block stays there.
#[derive(Debug)]
pub(crate) struct KeptMessage {
    bytes: Vec<u8>,
    /// Where its reply subject, its headers and its payload begin.
    starts: [usize; 3],
    block: Option<(SharedBlock, Range<usize>)>,
}

impl Unsent {
    pub(super) fn of_message(sending: Sending, message: &Message<'_>, to: &[u32]) -> Unsent {
        Unsent::Message { sending, message: KeptMessage::new(message), to: to.to_vec() }
    }

    pub(super) fn of_record(visible: Visible, record: &Record<'_, Payload<'_>>, to: &[u32]) -> Unsent {
        let &Record { kind, subject, headers, payload } = record;
        let record = KeptMessage::new(&Message { subject, reply: b"", headers, payload });
        Unsent::Record { visible, kind, record, to: to.to_vec() }
    }
}

impl KeptMessage {
    pub(super) fn new(message: &Message<'_>) -> KeptMessage {
        let Message { subject, reply, headers, payload } = *message;
        let (headers_at, payload_at) =
            (subject.len() + reply.len(), subject.len() + reply.len() + headers.len());
        let block = payload.block().map(|(block, range)| (block.clone(), range));
        let copied = if block.is_some() { b"" } else { payload.bytes() };
        KeptMessage {
            bytes: [subject, reply, headers, copied].concat(),
            starts: [subject.len(), headers_at, payload_at],
            block,
        }
    }

    pub(crate) fn message(&self) -> Message<'_> {
        let [reply_at, headers_at, payload_at] = self.starts;
        Message {
            subject: &self.bytes[..reply_at],
            reply: &self.bytes[reply_at..headers_at],
            headers: &self.bytes[headers_at..payload_at],
            payload: match &self.block {
                Some((block, range)) => Payload::shared(block, range.clone()),
                None => self.bytes[payload_at..].into(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use stilling_ring::BlockWriter;

    use super::*;

    #[test]
    fn a_message_that_waits_keeps_a_reference_to_its_payload() {
        let mut writer = BlockWriter::new(16);
        let range = writer.append(b"payload").expect("there is room");
        let message = Message {
            subject: b"a",
            reply: b"r",
            headers: b"h",
            payload: Payload::shared(writer.shared(), range.clone()),
        };
        let kept = KeptMessage::new(&message);
        assert_eq!((kept.message(), kept.bytes.len()), (message, 3));
        assert!(std::ptr::eq(kept.message().payload.bytes(), writer.bytes(range)));
        assert!(!writer.renew());
        drop(kept);
        assert!(writer.renew());
        let inline = Message { subject: b"a", reply: b"", headers: b"", payload: b"payload".into() };
        assert_eq!(KeptMessage::new(&inline).message(), inline);
    }
}
