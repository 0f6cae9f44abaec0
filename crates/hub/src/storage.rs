//! Storage of streams: the interface between the hub and the journal, or a simulation.

use std::sync::Arc;

use stilling_journal::{
    Batch, Chunk, IdleBatches, Journal, JournalAnswer, LogRetention, ReadRequest, Replay, Snapshot,
    StreamIndex,
};

use crate::recovered_stream::RecoveredStream;
use crate::time::UnixNanos;

/// Writes batches, reports when they are durable, and reads durable records.
pub trait Storage {
    /// Returns an empty batch for a stream, if one is free.
    fn batch(&mut self, stream: StreamIndex) -> Option<Batch>;

    /// Returns the state of a stream's batches that are not being written. [`Shared`](IdleBatches::Shared): deliveries
    /// refer to their records, and a batch becomes free when the shards have sent them.
    fn idle(&self, stream: StreamIndex) -> IdleBatches;

    /// Returns the index of the journal that writes a stream, below the number of streams; `None` while the stream is
    /// not open. Streams with the same index share batches and a disk.
    fn writer(&self, _: StreamIndex) -> Option<usize> {
        Some(0)
    }

    /// Returns a batch of that stream to the free ones. References to its records may exist.
    fn return_batch(&mut self, stream: StreamIndex, batch: Batch);

    /// Appends a batch of a stream, to be written after earlier ones. The batch came from [`batch`](Storage::batch) for
    /// this stream. Records from `deduplicate_from` on are needed for the de-duplication window after a restart.
    fn append(&mut self, stream: StreamIndex, batch: Batch, deduplicate_from: u64);

    /// Requests the removal of old records, of none from `keep_from` on. Returns whether there was room.
    fn retain(
        &mut self,
        stream: StreamIndex,
        retention: LogRetention,
        now_ns: UnixNanos,
        keep_from: u64,
    ) -> bool;

    /// Requests a snapshot, to be written once the records that it includes, all appended before, are durable. Returns
    /// whether there was room.
    fn write_snapshot(&mut self, _: StreamIndex, _: Snapshot) -> bool {
        false
    }

    /// Requests records. Returns whether there was room.
    fn read(&mut self, read_request: ReadRequest) -> bool;

    /// Submits the requests made since the last call; called once per turn.
    fn publish(&mut self);

    /// Takes an answer with its batch, if it is about one; the caller [returns](Storage::return_batch) the batch.
    fn next_answer(&mut self) -> Option<(JournalAnswer, Option<Batch>)>;

    /// Takes a chunk of requested records.
    fn next_chunk(&mut self) -> Option<Chunk>;

    /// Takes the result of opening a stream's directory after the hub's start. A stream has no free batch before it is
    /// open.
    fn next_opening(&mut self) -> Option<(StreamIndex, StreamOpening)> {
        None
    }

    /// Returns whether an answer or an opening is available. The hub receives these even if shards have no room.
    fn has_answer(&self) -> bool;

    /// Returns whether no answer, chunk or opening is available.
    fn is_quiet(&self) -> bool;
}

/// Result of opening a stream's directory.
#[derive(Debug)]
pub enum StreamOpening {
    /// The directory is open; the stream continues after the recovered records.
    Opened(RecoveredStream),
    /// The directory cannot be opened now, for this reason. The opening is retried.
    Failed(Arc<str>),
}

/// The journal and its reader; empty if no stream is on disk.
#[derive(Default)]
pub struct JournalStorage(Option<(Journal, Replay)>);

impl JournalStorage {
    /// Creates a storage that writes through `journal` and reads through `replay`.
    #[must_use]
    pub fn new(journal: Journal, replay: Replay) -> JournalStorage {
        JournalStorage(Some((journal, replay)))
    }
}

impl Storage for JournalStorage {
    fn batch(&mut self, _: StreamIndex) -> Option<Batch> {
        self.0.as_mut()?.0.batch()
    }

    fn idle(&self, _: StreamIndex) -> IdleBatches {
        self.0.as_ref().map_or(IdleBatches::None, |(journal, _)| journal.idle())
    }

    fn return_batch(&mut self, _: StreamIndex, batch: Batch) {
        if let Some((journal, _)) = &mut self.0 {
            journal.return_batch(batch);
        }
    }

    fn append(&mut self, stream: StreamIndex, batch: Batch, deduplicate_from: u64) {
        if let Some((journal, _)) = &mut self.0 {
            let refused = journal.append_with_dedup_start(stream, batch, deduplicate_from);
            debug_assert!(refused.is_ok(), "as many requests as batches have room");
        }
    }

    fn retain(
        &mut self,
        stream: StreamIndex,
        retention: LogRetention,
        now_ns: UnixNanos,
        keep_from: u64,
    ) -> bool {
        let Some((journal, _)) = &mut self.0 else { return false };
        journal.retain(stream, retention, now_ns.as_nanos(), keep_from)
    }

    fn write_snapshot(&mut self, stream: StreamIndex, snapshot: Snapshot) -> bool {
        self.0.as_mut().is_some_and(|(journal, _)| journal.write_snapshot(stream, snapshot))
    }

    fn read(&mut self, read_request: ReadRequest) -> bool {
        self.0.as_mut().is_some_and(|(_, replay)| replay.request_chunk(read_request))
    }

    fn publish(&mut self) {
        if let Some((journal, replay)) = &mut self.0 {
            journal.publish();
            replay.publish();
        }
    }

    fn next_answer(&mut self) -> Option<(JournalAnswer, Option<Batch>)> {
        self.0.as_mut()?.0.next_answer_and_batch()
    }

    fn next_chunk(&mut self) -> Option<Chunk> {
        self.0.as_mut()?.1.next_chunk()
    }

    fn has_answer(&self) -> bool {
        self.0.as_ref().is_some_and(|(journal, _)| !journal.is_quiet())
    }

    fn is_quiet(&self) -> bool {
        self.0.as_ref().is_none_or(|(journal, replay)| journal.is_quiet() && replay.is_quiet())
    }
}
