//! The open batch of a disk stream: records that the journal does not have yet, and payloads that they refer to.

use stilling_journal::limits::BLOCK_SIZE;
use stilling_journal::{Batch, BatchPushError, IdleBatches, Record, StreamIndex};

use super::ApplyError;
use crate::limits::{OPEN_REFERENCES_NS_MAX, SEAL_SIZE};
use crate::payload::Payload;
use crate::storage::Storage;
use crate::time::{Now, SteadyNanos, UnixNanos};

#[derive(Debug)]
pub(super) struct OpenBatch {
    batch: Option<Batch>,
    /// Time since which the batch refers to payloads in the blocks of shards.
    unbuilt_since: Option<SteadyNanos>,
    turn_ns: SteadyNanos,
    /// A record found no batch in this turn because deliveries refer to the idle ones.
    waits_for_references: bool,
    /// Maximum bytes of a filled batch: a batch fits into a segment, so that retention never removes more than a
    /// segment at once. A longer record gets its own batch.
    size_max: usize,
}

impl OpenBatch {
    pub(super) fn new(size_max: usize) -> OpenBatch {
        OpenBatch {
            batch: None,
            unbuilt_since: None,
            turn_ns: SteadyNanos::START,
            waits_for_references: false,
            size_max,
        }
    }

    /// Returns whether there is one; it may be empty.
    pub(super) fn is_some(&self) -> bool {
        self.batch.is_some()
    }

    pub(super) fn has_records(&self) -> bool {
        self.batch.as_ref().is_some_and(|batch| !batch.is_empty())
    }

    /// Returns whether it has reached [`SEAL_SIZE`].
    pub(super) fn is_long(&self) -> bool {
        self.batch.as_ref().is_some_and(|batch| batch.size() >= SEAL_SIZE)
    }

    /// Returns the time of its records.
    pub(super) fn time(&self) -> Option<UnixNanos> {
        self.batch.as_ref().map(|batch| UnixNanos::from_nanos(batch.time_ns()))
    }

    /// Returns whether a batch may hold several records of `size` bytes in total.
    pub(super) fn may_hold(&self, size: usize) -> bool {
        // The header of a batch is shorter than a block.
        size + BLOCK_SIZE <= self.size_max
    }

    /// Returns whether it has no room for records of `size` bytes in total, but another one may have.
    pub(super) fn is_full_for(&self, size: usize) -> bool {
        self.batch.as_ref().is_some_and(|batch| batch.check_room(size) == Err(BatchPushError::Full))
    }

    /// Begins a batch with record `next`.
    pub(super) fn begin<S: Storage>(
        &mut self,
        stream: StreamIndex,
        next: u64,
        storage: &mut S,
        now: Now,
    ) -> Result<(), ApplyError> {
        self.waits_for_references = false;
        let Some(mut batch) = storage.batch(stream) else {
            self.waits_for_references = storage.idle(stream) != IdleBatches::None;
            return Err(ApplyError::NoBatch);
        };
        batch.begin_within(next, now.unix_ns.as_nanos(), self.size_max);
        self.batch = Some(batch);
        Ok(())
    }

    /// Notes that no batch is free for the stream, whatever the storage has.
    pub(super) fn note_no_batch(&mut self) {
        self.waits_for_references = false;
    }

    /// Returns whether there is room for records of `size` bytes in total. Without it an empty batch is given back.
    pub(super) fn has_room<S: Storage>(&mut self, size: usize, stream: StreamIndex, storage: &mut S) -> bool {
        let has_room = self.batch.as_ref().is_some_and(|batch| batch.check_room(size).is_ok());
        if !has_room && let Some(empty) = self.batch.take_if(|batch| batch.is_empty()) {
            storage.return_batch(stream, empty);
        }
        has_room
    }

    /// Appends a record, for which [there is room](Self::has_room).
    pub(super) fn push(
        &mut self,
        record: &Record<'_, Payload<'_>>,
        now_ns: SteadyNanos,
    ) -> Result<(), ApplyError> {
        let Some(batch) = &mut self.batch else { return Err(ApplyError::NoBatch) };
        let plain = record.with_payload(record.payload.bytes());
        let outcome = match record.payload.block() {
            Some((block, range)) => batch.push_shared(&plain, block, range),
            None => batch.push(&plain),
        };
        debug_assert!(outcome.is_ok(), "there is room");
        if batch.unbuilt_size() > 0 {
            self.unbuilt_since.get_or_insert(now_ns);
        }
        outcome.map_or(Err(ApplyError::TooLarge), |_| Ok(()))
    }

    pub(super) fn take(&mut self) -> Option<Batch> {
        self.unbuilt_since = None;
        self.batch.take()
    }

    /// Begins a turn: copies payloads that the batch has referred to for too long.
    pub(super) fn begin_turn(&mut self, now_ns: SteadyNanos) {
        self.turn_ns = now_ns;
        self.waits_for_references = false;
        let is_due = |since| now_ns.since(since) >= OPEN_REFERENCES_NS_MAX;
        if self.unbuilt_since.is_some_and(is_due)
            && let Some(batch) = &mut self.batch
        {
            batch.build();
            self.unbuilt_since = None;
        }
    }

    /// Returns the nanoseconds from the begin of the turn until the batch must copy payloads from the blocks of shards,
    /// if it refers to some.
    pub(super) fn builds_in(&self) -> Option<u64> {
        let left = |since| OPEN_REFERENCES_NS_MAX.saturating_sub(self.turn_ns.since(since));
        self.unbuilt_since.map(left)
    }

    pub(super) fn waits_for_references(&self) -> bool {
        self.waits_for_references
    }
}
