//! One consumer: what it wants of its stream, and how far it is.

use std::collections::VecDeque;

use serde_json::value::RawValue;
use stilling_journal::{Chunk, Gap, Record, RecordKind, StartAt};

use crate::filter_tree::FilterHandle;
use crate::limits::INACTIVE_ORPHAN_NS_MAX;
use crate::publication_batch::ClientId;
use crate::pull::Pull;
use crate::registrations::{SubscriberTarget, overlap, tokens};
use crate::time::{SteadyNanos, UnixNanos};

/// What somebody wants of a stream.
#[derive(Clone, Debug)]
pub(crate) struct ConsumerSpec {
    pub(crate) name: String,
    pub(crate) stream: usize,
    /// The subject that messages are pushed to; without one they are asked for.
    pub(crate) deliver: Option<Vec<u8>>,
    /// Checked filters; without any it wants everything.
    pub(crate) filters: Vec<Box<[u8]>>,
    pub(crate) from: StartAt,
    pub(crate) heartbeat_ns: Option<u64>,
    pub(crate) has_flow_control: bool,
    pub(crate) headers_only: bool,
    pub(crate) pulls_max: usize,
    /// It goes when nobody has listened or asked for so long.
    pub(crate) inactive_ns: u64,
    /// Its configuration in JSON, to be told when asked.
    pub(crate) config: Box<RawValue>,
}

#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) spec: ConsumerSpec,
    /// The connection that made it, and, once that is gone, the place among those whose makers have left.
    pub(super) owner: ClientId,
    pub(super) left: Option<u64>,
    pub(crate) created_ns: UnixNanos,
    pub(crate) state: ConsumerState,
    /// The sequence that it looks at next, once it is known. One that follows may be further:
    /// [`ConsumerTable::catch_up`](super::ConsumerTable::catch_up).
    pub(crate) next: Option<u64>,
    /// How many it has got, and the sequence of the last; before the first, the one before that which it begins with.
    pub(crate) delivered: u64,
    pub(crate) last: u64,
    pub(super) pulls: VecDeque<Pull>,
    /// Gaps before its next record, not yet reported: at most what retention removed before a chunk, and the chunk's own.
    pub(crate) gaps: VecDeque<Gap>,
    /// Who got the last message of a chunk that waits for room.
    pub(super) sent_to: Option<SubscriberTarget>,
    pub(crate) active_ns: SteadyNanos,
    pub(crate) last_sent_ns: SteadyNanos,
    /// Bytes sent since the last flow control request, and whether it is unanswered.
    pub(crate) flow: usize,
    pub(crate) stalled: bool,
    /// It stands in the queue of those that can go on.
    pub(super) is_due: bool,
    /// Its filters in the index of those that follow its stream; it may have stopped meanwhile.
    pub(super) entries: Option<Vec<FilterHandle>>,
}

#[derive(Debug, Default)]
pub(crate) enum ConsumerState {
    /// Nobody listens, or asks.
    #[default]
    Idle,
    /// Records have been ordered; this sequence was the last visible one then.
    Reading(u64),
    /// So many records of the chunk have been looked at, which had everything up to that sequence if it says that it ends.
    Sending(Box<Chunk>, usize, u64),
    /// What was sent has not left the server by this connection, or one of these, which has to answer this mark.
    AwaitingMark(SubscriberTarget, u64),
    /// It has everything that is visible.
    Following,
}

impl ConsumerSpec {
    /// Tokens of its filters.
    pub(super) fn tokens(&self) -> usize {
        self.filters.iter().map(|filter| tokens(filter)).sum()
    }

    /// A consumer that is asked for messages, whatever their subjects.
    #[cfg(test)]
    pub(crate) fn of_everything(stream: usize, name: usize) -> ConsumerSpec {
        ConsumerSpec {
            name: name.to_string(),
            stream,
            deliver: None,
            filters: Vec::new(),
            from: StartAt::Sequence(1),
            heartbeat_ns: None,
            has_flow_control: false,
            headers_only: false,
            pulls_max: crate::limits::PULLS_PER_CONSUMER_MAX,
            inactive_ns: 1,
            config: RawValue::from_string("{}".to_owned()).expect("an object"),
        }
    }
}

impl Consumer {
    /// Whether it is sent a record of a chunk. Its filters were checked when it came, as the record's subject was, which has
    /// no wildcards.
    pub(crate) fn wants(&self, record: &Record<'_>) -> bool {
        let filters = &self.spec.filters;
        record.kind == RecordKind::Ordinary
            && (filters.is_empty() || filters.iter().any(|filter| overlap(filter, record.subject)))
    }

    /// Where its next message goes; nobody may want one.
    pub(crate) fn target(&self) -> Option<&[u8]> {
        match &self.spec.deliver {
            Some(deliver) => (!self.stalled).then_some(deliver),
            None => self.pulls.front().map(|pull| pull.reply.as_slice()),
        }
    }

    /// Whether it does nothing, and nothing is asked for.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, ConsumerState::Idle | ConsumerState::Following) && self.pulls.is_empty()
    }

    /// How long it stays when nobody listens.
    pub(crate) fn inactive_ns(&self) -> u64 {
        let most = if self.left.is_some() { INACTIVE_ORPHAN_NS_MAX } else { u64::MAX };
        self.spec.inactive_ns.min(most)
    }

    /// Those who ask for messages, in the order in which they came.
    pub(crate) fn pulls(&self) -> &VecDeque<Pull> {
        &self.pulls
    }

    pub(crate) fn first_pull(&mut self) -> Option<&mut Pull> {
        self.pulls.front_mut()
    }

    pub(crate) fn into_pulls(self) -> VecDeque<Pull> {
        self.pulls
    }
}
