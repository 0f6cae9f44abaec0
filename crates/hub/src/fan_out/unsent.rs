//! Unfinished work, kept while a shard's queue is far over its bound.

use std::collections::VecDeque;
use std::ops::Range;

use stilling_journal::{Record, RecordKind};
use stilling_ring::SharedBlock;

use super::{MessageDispatch, OutboundMessage};
use crate::message::RecordPosition;
use crate::payload::Payload;
use crate::pull::EndedPull;
use crate::registrations::SubscriberTarget;
use crate::time::{SteadyNanos, UnixNanos};

#[derive(Debug)]
pub(crate) enum UnsentItem {
    /// A message behind other unfinished work.
    Message { dispatch: MessageDispatch, message: UnsentMessage, to: Vec<u32> },
    /// A record with its remaining consumers.
    Record { visible: VisibleRecord, kind: RecordKind, record: UnsentMessage, to: Vec<u32> },
    /// Statuses that end pull requests.
    Statuses(VecDeque<EndedPull>),
    /// A mark behind other unfinished work.
    Mark { to: SubscriberTarget, mark: u64 },
}

/// A newly visible record: its stream and sequence, its time, and the current time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VisibleRecord {
    pub(crate) stream: usize,
    pub(crate) sequence: u64,
    pub(crate) time_ns: UnixNanos,
    pub(crate) now_ns: SteadyNanos,
}

/// A message's parts, contiguous; a payload in a shared block stays there.
#[derive(Debug)]
pub(crate) struct UnsentMessage {
    bytes: Vec<u8>,
    /// Offsets of reply subject, headers and payload.
    starts: [usize; 3],
    block: Option<(SharedBlock, Range<usize>)>,
    position: Option<RecordPosition>,
}

impl UnsentItem {
    pub(super) fn of_message(
        dispatch: MessageDispatch,
        message: &OutboundMessage<'_>,
        to: &[u32],
    ) -> UnsentItem {
        UnsentItem::Message { dispatch, message: UnsentMessage::new(message), to: to.to_vec() }
    }

    pub(super) fn of_record(
        visible: VisibleRecord,
        record: &Record<'_, Payload<'_>>,
        to: &[u32],
    ) -> UnsentItem {
        let &Record { kind, subject, headers, payload } = record;
        let record =
            UnsentMessage::new(&OutboundMessage { subject, reply: b"", headers, payload, position: None });
        UnsentItem::Record { visible, kind, record, to: to.to_vec() }
    }
}

impl UnsentMessage {
    pub(super) fn new(message: &OutboundMessage<'_>) -> UnsentMessage {
        let OutboundMessage { subject, reply, headers, payload, position } = *message;
        let (headers_at, payload_at) =
            (subject.len() + reply.len(), subject.len() + reply.len() + headers.len());
        let block = payload.block().map(|(block, range)| (block.clone(), range));
        let copied = if block.is_some() { b"" } else { payload.bytes() };
        UnsentMessage {
            bytes: [subject, reply, headers, copied].concat(),
            starts: [subject.len(), headers_at, payload_at],
            block,
            position,
        }
    }

    pub(crate) fn message(&self) -> OutboundMessage<'_> {
        let [reply_at, headers_at, payload_at] = self.starts;
        OutboundMessage {
            subject: &self.bytes[..reply_at],
            reply: &self.bytes[reply_at..headers_at],
            headers: &self.bytes[headers_at..payload_at],
            payload: match &self.block {
                Some((block, range)) => Payload::shared(block, range.clone()),
                None => self.bytes[payload_at..].into(),
            },
            position: self.position,
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
        let message = OutboundMessage {
            subject: b"a",
            reply: b"r",
            headers: b"h",
            payload: Payload::shared(writer.shared(), range.clone()),
            position: None,
        };
        let kept = UnsentMessage::new(&message);
        assert_eq!((kept.message(), kept.bytes.len()), (message, 3));
        assert!(std::ptr::eq(kept.message().payload.bytes(), writer.bytes(range)));
        assert!(!writer.reset());
        drop(kept);
        assert!(writer.reset());
        let inline = OutboundMessage {
            subject: b"a",
            reply: b"",
            headers: b"",
            payload: b"payload".into(),
            position: None,
        };
        assert_eq!(UnsentMessage::new(&inline).message(), inline);
    }
}
