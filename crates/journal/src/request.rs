//! Requests to the journal's threads, and their answers.

use std::io;
use std::sync::Arc;

use crate::batch::Batch;
use crate::failure::Frozen;
use crate::format::snapshot::Snapshot;
use crate::log::{LogRetention, RemovedSegments};

/// Index of a stream among those passed to [`Journal::start`](crate::Journal::start).
pub type StreamIndex = u32;

/// An answer of the journal thread.
#[derive(Debug)]
pub enum JournalAnswer {
    /// A batch and all before it are durable.
    Durable {
        /// The stream.
        stream: StreamIndex,
        /// The last durable sequence.
        watermark: u64,
    },
    /// The stream is frozen: nothing beyond the watermark is acknowledged until the next start. Sent for each batch
    /// that is not durable, and once without a batch if the error was noticed while no batch was pending.
    Frozen {
        /// The stream.
        stream: StreamIndex,
        /// The last durable sequence.
        watermark: u64,
        /// The reason.
        frozen: Frozen,
        /// Whether the batch does not return with this answer, because it was lost in the panic of a thread.
        is_batch_lost: bool,
    },
    /// The stream cannot be written now, and nothing is lost: the journal keeps the batches and retries, until it sends
    /// [`Resumed`](JournalAnswer::Resumed) or [`Frozen`](JournalAnswer::Frozen). Sent once, without a batch.
    Waiting {
        /// The stream.
        stream: StreamIndex,
        /// The operation, the file and the system's error.
        reason: Arc<str>,
        /// The kind of error, such as `StorageFull`.
        kind: io::ErrorKind,
    },
    /// A write failed, and its batches were or will be written again in a new segment: they are lost only if the stream
    /// is frozen. Sent without a batch, before the answers for the retried batches.
    WriteFailed {
        /// The stream.
        stream: StreamIndex,
        /// The operation, the file and the system's error.
        reason: Arc<str>,
    },
    /// A waiting stream is written again. Sent once, without a batch.
    Resumed {
        /// The stream.
        stream: StreamIndex,
    },
    /// The result of a round of retention.
    Retained {
        /// The stream.
        stream: StreamIndex,
        /// The segments removed, or the error.
        removed: io::Result<RemovedSegments>,
        /// The first stored sequence; the next one if there is none.
        first: u64,
    },
    /// The result of writing a snapshot.
    SnapshotWritten {
        /// The stream.
        stream: StreamIndex,
        /// The sequence of the snapshot.
        sequence: u64,
        /// The error, if it is not durable.
        outcome: io::Result<()>,
    },
}

impl JournalAnswer {
    /// The stream of the answer.
    pub fn stream(&self) -> StreamIndex {
        match *self {
            JournalAnswer::Durable { stream, .. }
            | JournalAnswer::Frozen { stream, .. }
            | JournalAnswer::Waiting { stream, .. }
            | JournalAnswer::WriteFailed { stream, .. }
            | JournalAnswer::Resumed { stream }
            | JournalAnswer::Retained { stream, .. }
            | JournalAnswer::SnapshotWritten { stream, .. } => stream,
        }
    }

    /// Replaces the number of the stream.
    #[must_use]
    pub fn with_stream(mut self, number: StreamIndex) -> JournalAnswer {
        let (JournalAnswer::Durable { stream, .. }
        | JournalAnswer::Frozen { stream, .. }
        | JournalAnswer::Waiting { stream, .. }
        | JournalAnswer::WriteFailed { stream, .. }
        | JournalAnswer::Resumed { stream }
        | JournalAnswer::Retained { stream, .. }
        | JournalAnswer::SnapshotWritten { stream, .. }) = &mut self;
        *stream = number;
        self
    }
}

pub(crate) enum JournalRequest {
    Append {
        stream: StreamIndex,
        batch: Batch,
        deduplicate_from: Option<u64>,
    },
    Retain {
        stream: StreamIndex,
        retention: LogRetention,
        now_ns: u64,
        keep_from: u64,
    },
    /// Written when all records up to its sequence are durable.
    Snapshot {
        stream: StreamIndex,
        snapshot: Snapshot,
    },
}

pub(crate) struct JournalReply {
    pub(crate) answer: JournalAnswer,
    pub(crate) batch: Option<Batch>,
}
