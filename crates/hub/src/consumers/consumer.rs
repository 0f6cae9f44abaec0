//! One consumer: what it wants of its stream, and how far it is.

use std::collections::VecDeque;

use serde_json::value::RawValue;
use stilling_journal::{Chunk, From, Gap, Kind, Record};

use crate::intake::Client;
use crate::interest::Entry;
use crate::limits::INACTIVE_LEFT_NS_MAX;
use crate::pull::Pull;
use crate::registrations::{Listener, overlap, tokens};
use crate::time::{SteadyNanos, UnixNanos};

/// What somebody wants of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) stream: usize,
    /// The subject that messages are pushed to; without one they are asked for.
    pub(crate) deliver: Option<Vec<u8>>,
    /// Checked filters; without any it wants everything.
    pub(crate) filters: Vec<Box<[u8]>>,
    pub(crate) from: From,
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
    pub(crate) wanted: Wanted,
    /// The connection that made it, and, once that is gone, the place among those whose makers have left.
    pub(super) owner: Client,
    pub(super) left: Option<u64>,
    pub(crate) created_ns: UnixNanos,
    pub(crate) state: State,
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
    pub(super) sent_to: Option<Listener>,
    pub(crate) active_ns: SteadyNanos,
    pub(crate) spoke_ns: SteadyNanos,
    /// Bytes sent since the last flow control request, and whether it is unanswered.
    pub(crate) flow: usize,
    pub(crate) stalled: bool,
    /// It stands in the queue of those that can go on.
    pub(super) is_due: bool,
    /// Its filters in the index of those that follow its stream; it may have stopped meanwhile.
    pub(super) entries: Option<Vec<Entry>>,
}

#[derive(Debug, Default)]
pub(crate) enum State {
    /// Nobody listens, or asks.
    #[default]
    Asleep,
    /// Records have been ordered; this sequence was the last visible one then.
    Reading(u64),
    /// So many records of the chunk have been looked at, which had everything up to that sequence if it says that it ends.
    Sending(Box<Chunk>, usize, u64),
    /// What was sent has not left the server by this connection, or one of these, which has to answer this mark.
    Ahead(Listener, u64),
    /// It has everything that is visible.
    Following,
}

impl Wanted {
    /// Tokens of its filters.
    pub(super) fn tokens(&self) -> usize {
        self.filters.iter().map(|filter| tokens(filter)).sum()
    }

    /// A consumer that is asked for messages, whatever their subjects.
    #[cfg(test)]
    pub(crate) fn of_everything(stream: usize, name: usize) -> Wanted {
        Wanted {
            name: name.to_string(),
            stream,
            deliver: None,
            filters: Vec::new(),
            from: From::Sequence(1),
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
        let filters = &self.wanted.filters;
        record.kind == Kind::Ordinary
            && (filters.is_empty() || filters.iter().any(|filter| overlap(filter, record.subject)))
    }

    /// Where its next message goes; nobody may want one.
    pub(crate) fn target(&self) -> Option<&[u8]> {
        match &self.wanted.deliver {
            Some(deliver) => (!self.stalled).then_some(deliver),
            None => self.pulls.front().map(|pull| pull.reply.as_slice()),
        }
    }

    /// Whether it does nothing, and nothing is asked for.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Asleep | State::Following) && self.pulls.is_empty()
    }

    /// How long it stays when nobody listens.
    pub(crate) fn inactive_ns(&self) -> u64 {
        let most = if self.left.is_some() { INACTIVE_LEFT_NS_MAX } else { u64::MAX };
        self.wanted.inactive_ns.min(most)
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
