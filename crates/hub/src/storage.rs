//! Where streams are kept: the seam between the hub and the journal, or a simulation of it.

use std::sync::Arc;

use stilling_journal::{
    Batch, Chunk, IdleBatches, Journal, JournalAnswer, LogRetention, ReadOrder, Replay, StreamIndex,
};

use crate::recovered_stream::RecoveredStream;
use crate::time::UnixNanos;

/// Takes batches and says later that they are durable; reads what is.
pub trait Storage {
    /// An empty batch for a stream, if one is free.
    fn batch(&mut self, stream: StreamIndex) -> Option<Batch>;

    /// What batches there are for a stream beside those under way. [`Shared`](IdleBatches::Shared): deliveries refer to their
    /// records, and one is free when the shards have sent these.
    fn idle(&self, stream: StreamIndex) -> IdleBatches;

    /// Index of the journal that writes a stream, below the number of streams; `None` while the stream is not open. Streams
    /// with the same index share batches, so they wait together for its disk.
    fn writer(&self, _: StreamIndex) -> Option<usize> {
        Some(0)
    }

    /// Takes back one of that stream that is not needed any more. References to its records may exist.
    fn return_batch(&mut self, stream: StreamIndex, batch: Batch);

    /// Takes a batch of a stream, to be written after those before it. It came from [`batch`](Storage::batch) for this
    /// stream, so there is room. Records from `deduplicate_from` on have to be read for the de-duplication window after a restart.
    fn append(&mut self, stream: StreamIndex, batch: Batch, deduplicate_from: u64);

    /// Has old records removed, if there is room to ask.
    fn retain(&mut self, stream: StreamIndex, retention: LogRetention, now_ns: UnixNanos) -> bool;

    /// Asks for records. Returns whether there was room to ask.
    fn read(&mut self, order: ReadOrder) -> bool;

    /// Sends off what was asked for; once per turn.
    fn publish(&mut self);

    /// What has happened, and the batch it happened to, which is to be given back.
    fn next_answer(&mut self) -> Option<(JournalAnswer, Option<Batch>)>;

    /// Records that were asked for.
    fn next_chunk(&mut self) -> Option<Chunk>;

    /// A stream whose directory was opened, or could not be opened, after the hub began. Until it is open no batch is free for it.
    fn next_opening(&mut self) -> Option<(StreamIndex, StreamOpening)> {
        None
    }

    /// Whether there is an answer, or a stream that has been opened: what the hub takes in although shards have no room.
    fn has_answer(&self) -> bool;

    /// Whether there is neither an answer, a chunk nor a stream that has been opened.
    fn is_quiet(&self) -> bool;
}

/// What became of opening a stream's directory.
#[derive(Debug)]
pub enum StreamOpening {
    /// It is open; the stream goes on behind what was found.
    Opened(RecoveredStream),
    /// It cannot be opened now, for this reason. It is tried again.
    Failed(Arc<str>),
}

/// The journal with its two threads; nothing at all as long as no stream is on disk.
#[derive(Default)]
pub struct JournalStorage(Option<(Journal, Replay)>);

impl JournalStorage {
    /// Streams that are written by the one and read by the other.
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

    fn retain(&mut self, stream: StreamIndex, retention: LogRetention, now_ns: UnixNanos) -> bool {
        let Some((journal, _)) = &mut self.0 else { return false };
        journal.retain(stream, retention, now_ns.as_nanos(), u64::MAX)
    }

    fn read(&mut self, order: ReadOrder) -> bool {
        self.0.as_mut().is_some_and(|(_, replay)| replay.ask(order))
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
