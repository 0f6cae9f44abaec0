//! What the hub asks of the journal's threads, and what they answer.

use std::io;
use std::sync::Arc;

use crate::batch::Batch;
use crate::failure::Frozen;
use crate::log::{LogRetention, RemovedSegments};

/// Which of the streams given to [`Journal::start`](crate::Journal::start), by its place among them.
pub type StreamIndex = u32;

/// What the journal thread answers.
#[derive(Debug)]
pub enum JournalAnswer {
    /// A batch is durable with all before it.
    Durable {
        /// The stream.
        stream: StreamIndex,
        /// The last sequence that is durable.
        watermark: u64,
    },
    /// The stream is frozen: nothing beyond the watermark is acknowledged until the next start. Comes with each batch that
    /// is not durable, and once without a batch if the trouble was noticed while nothing was to be written.
    Frozen {
        /// The stream.
        stream: StreamIndex,
        /// The last sequence that is durable.
        watermark: u64,
        /// Why.
        frozen: Frozen,
        /// Whether a batch is lost that does not come back with this answer: it went with a thread that panicked.
        is_batch_lost: bool,
    },
    /// Nothing can be written to the stream now, and nothing is lost: the journal keeps the batches and tries again, until
    /// it reports [`Resumed`](JournalAnswer::Resumed) or [`Frozen`](JournalAnswer::Frozen). Comes once, without a batch.
    Waiting {
        /// The stream.
        stream: StreamIndex,
        /// What was being done, to which file, and what the system reported.
        reason: Arc<str>,
        /// The kind of error, such as `StorageFull`.
        kind: io::ErrorKind,
    },
    /// A write failed, and what it had was or will be written again in a new segment: it is lost only if the stream is frozen.
    /// Comes without a batch, before the answers for the batches of that write's retry.
    WriteFailed {
        /// The stream.
        stream: StreamIndex,
        /// What was being done, to which file, and what the system reported.
        reason: Arc<str>,
    },
    /// A stream that was waiting is written again. Comes once, without a batch.
    Resumed {
        /// The stream.
        stream: StreamIndex,
    },
    /// What a round of retention removed.
    Retained {
        /// The stream.
        stream: StreamIndex,
        /// How much, or why not.
        removed: io::Result<RemovedSegments>,
        /// The first sequence that is kept now; the next one if there is none.
        first: u64,
    },
}

impl JournalAnswer {
    /// The stream that it is about.
    pub fn stream(&self) -> StreamIndex {
        match *self {
            JournalAnswer::Durable { stream, .. }
            | JournalAnswer::Frozen { stream, .. }
            | JournalAnswer::Waiting { stream, .. }
            | JournalAnswer::WriteFailed { stream, .. }
            | JournalAnswer::Resumed { stream }
            | JournalAnswer::Retained { stream, .. } => stream,
        }
    }
}

pub(crate) enum JournalRequest {
    Append { stream: StreamIndex, batch: Batch, deduplicate_from: Option<u64> },
    Retain { stream: StreamIndex, retention: LogRetention, now_ns: u64, keep_from: u64 },
}

pub(crate) struct JournalReply {
    pub(crate) answer: JournalAnswer,
    pub(crate) batch: Option<Batch>,
}
