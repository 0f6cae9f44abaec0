//! One consumer: its specification and its progress.

use std::collections::VecDeque;

use serde_json::value::RawValue;
use stilling_journal::{Chunk, Gap, Record, RecordKind, StartAt};

use crate::filter_tree::FilterHandle;
use crate::limits::INACTIVE_ORPHAN_NS_MAX;
use crate::publication_batch::ClientId;
use crate::pull::Pull;
use crate::registrations::{SubscriberTarget, overlap, tokens};
use crate::time::{SteadyNanos, UnixNanos};

#[derive(Clone, Debug)]
pub(crate) struct ConsumerSpec {
    pub(crate) name: String,
    pub(crate) stream: usize,
    /// Subject that messages are pushed to; `None` for a pull consumer.
    pub(crate) deliver: Option<Vec<u8>>,
    /// Checked filters; empty means everything.
    pub(crate) filters: Vec<Box<[u8]>>,
    pub(crate) from: StartAt,
    pub(crate) heartbeat_ns: Option<u64>,
    pub(crate) has_flow_control: bool,
    pub(crate) headers_only: bool,
    pub(crate) pulls_max: usize,
    /// Nanoseconds without a subscriber or pull request after which the consumer is removed.
    pub(crate) inactive_ns: u64,
    /// Configuration in JSON, returned on request.
    pub(crate) config: Box<RawValue>,
}

#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) spec: ConsumerSpec,
    /// Connection that created it, and after its disconnect the consumer's number in the order of orphans.
    pub(super) owner: ClientId,
    pub(super) orphan_serial: Option<u64>,
    pub(crate) created_ns: UnixNanos,
    pub(crate) state: ConsumerState,
    /// Next sequence to deliver or skip, once known. A follower may be further:
    /// [`ConsumerTable::catch_up`](super::ConsumerTable::catch_up).
    pub(crate) next: Option<u64>,
    /// Number of delivered records, and the sequence of the last one; initially the sequence before the start position.
    pub(crate) delivered: u64,
    pub(crate) last: u64,
    pub(super) pulls: VecDeque<Pull>,
    /// Unreported gaps before its next record: at most one left by retention before a chunk, and the chunk's own.
    pub(crate) gaps: VecDeque<Gap>,
    /// Recipient of the last message of a chunk that waits for room.
    pub(super) sent_to: Option<SubscriberTarget>,
    pub(crate) active_ns: SteadyNanos,
    pub(crate) last_sent_ns: SteadyNanos,
    /// Bytes sent since the last flow control request, and whether the request is unanswered.
    pub(crate) flow: usize,
    pub(crate) stalled: bool,
    pub(super) is_due: bool,
    /// Its filters in the followers' index of its stream; the consumer may no longer follow.
    pub(super) entries: Option<Vec<FilterHandle>>,
}

#[derive(Debug, Default)]
pub(crate) enum ConsumerState {
    /// No subscriber or pull request.
    #[default]
    Idle,
    /// A read is outstanding; the value is the last visible sequence at its start.
    Reading(u64),
    /// Chunk, number of its processed records, and the last visible sequence at the start of the read: a chunk with
    /// `is_end` is complete up to there.
    Sending(Box<Chunk>, usize, u64),
    /// Waits until the connection (of a shared registration, one of the connections) has sent the messages and reports
    /// this mark.
    AwaitingMark(SubscriberTarget, u64),
    /// Has received everything visible.
    Following,
}

impl ConsumerSpec {
    pub(super) fn tokens(&self) -> usize {
        self.filters.iter().map(|filter| tokens(filter)).sum()
    }

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
    /// Returns whether a record of a chunk is delivered. Filters and subject were checked on arrival; the subject has
    /// no wildcards.
    pub(crate) fn wants(&self, record: &Record<'_>) -> bool {
        let filters = &self.spec.filters;
        record.kind == RecordKind::Ordinary
            && (filters.is_empty() || filters.iter().any(|filter| overlap(filter, record.subject)))
    }

    /// Returns the subject of its next message, if there is one.
    pub(crate) fn target(&self) -> Option<&[u8]> {
        match &self.spec.deliver {
            Some(deliver) => (!self.stalled).then_some(deliver),
            None => self.pulls.front().map(|pull| pull.reply.as_slice()),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, ConsumerState::Idle | ConsumerState::Following) && self.pulls.is_empty()
    }

    /// Nanoseconds that it is kept without subscribers.
    pub(crate) fn inactive_ns(&self) -> u64 {
        let most = if self.orphan_serial.is_some() { INACTIVE_ORPHAN_NS_MAX } else { u64::MAX };
        self.spec.inactive_ns.min(most)
    }

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
