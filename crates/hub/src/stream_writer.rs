//! The writer of one stream: decisions about messages, sequences, and visibility.
//!
//! ```text
//!   message ─▶ decide: duplicate, conditions, gate ─▶ apply: sequence, open batch ─▶ journal ─▶ visible, acknowledged
//!
//!   durable (visible)         with the journal               open batch
//!   ────────────────────┬──────────────┬──────────────┬──────────────────┐
//!   1 … visible         │ batch        │ batch        │ open             │ next
//!   ────────────────────┴──────────────┴──────────────┴──────────────────┘
//!                         acks           acks           acks               sent when the batch is durable
//! ```
//!
//! [`decide`](StreamWriter::decide) decides about a message; only [`apply`](StreamWriter::apply) assigns a sequence and
//! adds the id to the de-duplication window: a rejected message changes nothing.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use stilling_journal::limits::BLOCK_SIZE;
use stilling_journal::{
    Batch, BatchPushError, BatchView, Chunk, Frozen, Gap, GapCause, IdleBatches, LogConfig, LogStats,
    ReadRequest, Record,
};
use stilling_ring::SharedBlock;
use stilling_wire::nats::{EXPECTED_LAST_SEQUENCE, Headers, MESSAGE_ID};

use self::memory_log::{MemoryLimits, MemoryLog};
use self::pending_acks::AckQueue;
pub(crate) use self::pending_acks::{AckTarget, PendingAck};
pub(crate) use self::release::Release;
use crate::counters::StreamCounters;
use crate::dedup::DedupWindow;
use crate::deliveries::RefusalReason;
use crate::disk_stall::DiskStallTimer;
use crate::hash_key::HashKey;
use crate::health_log::HealthLog;
use crate::limits::{
    DISK_SLOW_NS, DISK_STALL_TIMEOUT_NS, MEMORY_STREAM_SIZE, OPEN_REFERENCES_NS_MAX, REPLIES_SIZE_MAX,
    SEAL_SIZE,
};
use crate::message::RecordPosition;
use crate::payload::Payload;
use crate::publication_batch::{ClientId, Ingress, Publication};
use crate::recovered_stream::RecoveredParts;
use crate::storage::Storage;
use crate::stream::{Durability, ResumePoint, StreamConfig};
use crate::time::{Now, SteadyNanos, UnixNanos};

mod memory_log;
mod pending_acks;
mod release;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StoreDecision {
    /// Stores it, with this message id.
    Accept(Option<u128>),
    /// It is stored already, under this sequence.
    Duplicate(u64),
    Reject(RefusalReason),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ApplyError {
    /// No batch is free: the message must wait.
    NoBatch,
    /// It is longer than a batch.
    TooLarge,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct WriterLimits {
    /// Maximum batches: open, with the journal, or not completely released.
    pub(crate) batches_max: usize,
    pub(crate) memory_batch_size: usize,
}

#[derive(Debug)]
pub(crate) struct StreamWriter {
    number: u32,
    pub(crate) config: StreamConfig,
    limits: WriterLimits,
    pub(crate) dedup: DedupWindow,
    pub(crate) next: u64,
    pub(crate) first: u64,
    pub(crate) visible: u64,
    /// Time of the last visible record, if known.
    pub(crate) newest_ns: Option<UnixNanos>,
    open: Option<Batch>,
    /// Time since which the open batch refers to payloads in the blocks of shards.
    unbuilt_since: Option<SteadyNanos>,
    turn_ns: SteadyNanos,
    /// A record found no batch in this turn because deliveries refer to the idle ones.
    waits_for_references: bool,
    /// Maximum bytes of a filled batch: a batch fits into a segment, so that retention never removes more than a
    /// segment at once. A longer record gets its own batch.
    batch_limit: usize,
    acks: AckQueue,
    /// Batches answered by the journal and not yet completely released.
    releases: VecDeque<Release>,
    /// Maximum number of messages that waited for the disk so far.
    pending_peak: usize,
    pub(crate) frozen: Option<Arc<str>>,
    /// Time since which the stream waits for room.
    pub(crate) waiting_since: Option<SteadyNanos>,
    was_overdue: bool,
    /// Time for which the oldest batch has been with the journal.
    stall: DiskStallTimer,
    pub(crate) health: HealthLog,
    pub(crate) created_ns: UnixNanos,
    /// Reason why its directory is not open; until it is, publications are refused.
    pub(crate) closed: Option<Arc<str>>,
    skipped: SkippedRecords,
    /// The journal's counts of its records, once its directory is open.
    pub(crate) log_stats: Option<Arc<LogStats>>,
    memory: MemoryLog,
}

#[derive(Clone, Copy, Debug, Default)]
struct SkippedRecords {
    removed: u64,
    damaged: u64,
}

impl StreamWriter {
    /// Creates stream `number` of a hub, continuing at `resumed`.
    pub(crate) fn new(
        (number, config): (u32, StreamConfig),
        key: HashKey,
        resumed: ResumePoint,
        limits: WriterLimits,
    ) -> StreamWriter {
        let ResumePoint { first, next, created_ns } = resumed;
        let segment_size = LogConfig::for_retention(config.retention.bytes_max()).segment_size;
        StreamWriter {
            number,
            limits,
            // A segment is at most 64 MiB long, and its header takes one block.
            batch_limit: segment_size as usize - BLOCK_SIZE,
            dedup: DedupWindow::new(key, config.dedup_time_ns()),
            config,
            next,
            first,
            visible: next - 1,
            newest_ns: None,
            open: None,
            unbuilt_since: None,
            turn_ns: SteadyNanos::START,
            waits_for_references: false,
            acks: AckQueue::default(),
            releases: VecDeque::new(),
            pending_peak: 0,
            frozen: None,
            waiting_since: None,
            was_overdue: false,
            stall: DiskStallTimer::default(),
            health: HealthLog::default(),
            created_ns,
            closed: None,
            skipped: SkippedRecords::default(),
            log_stats: None,
            memory: MemoryLog::default(),
        }
    }

    /// Decides about a message without changing the stream.
    pub(crate) fn decide(&mut self, publication: &Publication<'_>, now_ns: SteadyNanos) -> StoreDecision {
        let &Publication { headers, payload, .. } = publication;
        let stream = self.number;
        if self.closed.is_some() {
            return StoreDecision::Reject(RefusalReason::Closed { stream });
        }
        if self.frozen.is_some() {
            return StoreDecision::Reject(RefusalReason::Frozen { stream });
        }
        if headers.len() + payload.len() > self.config.message_size_max as usize {
            return StoreDecision::Reject(RefusalReason::TooLarge { stream });
        }
        let (id, refusal) = if headers.is_empty() { (None, None) } else { self.conditions(headers) };
        if let Some(sequence) = id.and_then(|id| self.dedup.find(id, now_ns)) {
            return StoreDecision::Duplicate(sequence);
        }
        // After the duplicates: a repeated message names the last sequence of its first attempt.
        if let Some(refusal) = refusal {
            return StoreDecision::Reject(refusal);
        }
        // A gate decides here, on the state that all earlier records have produced.
        StoreDecision::Accept(id)
    }

    /// Evaluates the headers of a message: the hash of its id, and a refusal if a condition does not hold.
    fn conditions(&self, headers: &[u8]) -> (Option<u128>, Option<RefusalReason>) {
        let Ok(headers) = Headers::parse(headers) else { return (None, None) };
        let (mut id, mut refusal) = (None, None);
        let stream = self.number;
        for (name, value) in headers {
            let Some(rest) = name.strip_prefix(b"Nats-") else { continue };
            if name == MESSAGE_ID.as_bytes() {
                // The first id counts, as in a rebuild of the window.
                id.get_or_insert_with(|| self.dedup.name(value));
            } else if name == EXPECTED_LAST_SEQUENCE.as_bytes() {
                let last = self.next - 1;
                let expected = std::str::from_utf8(value).ok().and_then(|value| value.parse::<u64>().ok());
                if expected != Some(last) {
                    refusal = Some(RefusalReason::WrongLastSequence { stream, last });
                }
            } else if rest == b"Expected-Stream" {
                if value != self.config.name.as_bytes() {
                    refusal = Some(RefusalReason::WrongStream { stream });
                }
            } else if is_unknown_condition(rest) {
                refusal = Some(RefusalReason::UnknownCondition { stream });
            }
        }
        (id.flatten(), refusal)
    }

    /// Stores an accepted record under the next sequence, which is returned. Except in a disk stream, the record is
    /// visible at once.
    pub(crate) fn apply<S: Storage>(
        &mut self,
        record: &Record<'_, Payload<'_>>,
        id: Option<u128>,
        storage: &mut S,
        now: Now,
    ) -> Result<u64, ApplyError> {
        match self.config.durability {
            Durability::Disk => self.fill(record, storage, now)?,
            Durability::Memory => {
                let size_max = self.config.retention.bytes_max().unwrap_or(MEMORY_STREAM_SIZE) as usize;
                let limits = MemoryLimits { batch_size: self.limits.memory_batch_size, size_max };
                let record = record.with_payload(record.payload.bytes());
                let outcome = self.memory.push(self.next, &record, now.unix_ns, limits);
                self.first = self.memory.first().unwrap_or(self.next);
                outcome.map_err(|_| ApplyError::TooLarge)?;
            }
            Durability::None => {}
        }
        let sequence = self.next;
        self.next += 1;
        if let Some(id) = id {
            self.dedup.note(id, sequence, now.steady_ns);
        }
        if self.config.durability != Durability::Disk {
            (self.visible, self.newest_ns) = (sequence, Some(now.unix_ns));
        }
        Ok(sequence)
    }

    /// Adds a record to the open batch; a full batch goes to the journal.
    fn fill<S: Storage>(
        &mut self,
        record: &Record<'_, Payload<'_>>,
        storage: &mut S,
        now: Now,
    ) -> Result<(), ApplyError> {
        let plain = record.with_payload(record.payload.bytes());
        for _ in 0..2 {
            let batch = match &mut self.open {
                Some(batch) => batch,
                None => {
                    self.waits_for_references = false;
                    if self.acks.under_way() + self.releases.len() >= self.limits.batches_max {
                        return Err(ApplyError::NoBatch);
                    }
                    let Some(mut batch) = storage.batch(self.number) else {
                        self.waits_for_references = storage.idle(self.number) != IdleBatches::None;
                        return Err(ApplyError::NoBatch);
                    };
                    batch.begin_within(self.next, now.unix_ns.as_nanos(), self.batch_limit);
                    self.open.insert(batch)
                }
            };
            let outcome = match record.payload.block() {
                Some((block, range)) => batch.push_shared(&plain, block, range),
                None => batch.push(&plain),
            };
            match outcome {
                Ok(_) => {
                    if batch.unbuilt_size() > 0 {
                        self.unbuilt_since.get_or_insert(now.steady_ns);
                    }
                    return Ok(());
                }
                Err(BatchPushError::TooLarge) => return Err(ApplyError::TooLarge),
                Err(BatchPushError::Full) => self.seal(storage),
            }
        }
        Err(ApplyError::TooLarge)
    }

    /// Hands the open batch to the journal; its acknowledgements wait for the answer.
    fn seal<S: Storage>(&mut self, storage: &mut S) {
        if let Some(batch) = self.open.take() {
            self.unbuilt_since = None;
            self.acks.seal();
            storage.append(self.number, batch, self.dedup.first(self.next));
        }
    }

    /// Begins a turn: frees memory of expired message ids, and copies payloads that the open batch has referred to for
    /// too long.
    pub(crate) fn begin_turn(&mut self, now_ns: SteadyNanos) {
        self.turn_ns = now_ns;
        self.dedup.sweep(now_ns);
        self.waits_for_references = false;
        let is_due = |since| now_ns.since(since) >= OPEN_REFERENCES_NS_MAX;
        if self.unbuilt_since.is_some_and(is_due)
            && let Some(batch) = &mut self.open
        {
            batch.build();
            self.unbuilt_since = None;
        }
    }

    /// Returns the nanoseconds from the begin of the turn until the open batch must copy payloads from the blocks of
    /// shards, if it refers to some.
    pub(crate) fn builds_in(&self) -> Option<u64> {
        let left = |since| OPEN_REFERENCES_NS_MAX.saturating_sub(self.turn_ns.since(since));
        self.unbuilt_since.map(left)
    }

    /// Returns whether a record found no batch in this turn because deliveries refer to the idle ones: it waits for
    /// shards, not for the disk.
    pub(crate) fn waits_for_references(&self) -> bool {
        self.waits_for_references
    }

    /// Takes the payload of the last record in a memory stream's log, to be [put back](Self::put_stored_back). `None`
    /// for other streams.
    pub(crate) fn take_stored_payload(&mut self, size: usize) -> Option<(SharedBlock, Range<usize>)> {
        (self.config.durability == Durability::Memory).then(|| self.memory.take_last_payload(size)).flatten()
    }

    pub(crate) fn put_stored_back(&mut self, block: SharedBlock) {
        self.memory.put_block_back(block);
    }

    /// Ends a turn: hands over the open batch if the journal has none of this stream, or if it has reached
    /// [`SEAL_SIZE`]. While one batch is written the next one grows (group commit).
    pub(crate) fn flush<S: Storage>(&mut self, storage: &mut S) {
        let is_due =
            |batch: &Batch| !batch.is_empty() && (self.acks.under_way() == 0 || batch.size() >= SEAL_SIZE);
        if self.open.as_ref().is_some_and(is_due) {
            self.seal(storage);
        }
    }

    /// Returns whether a further message with an answer to `reply` may wait for the disk. If not, its connection is
    /// parked.
    pub(crate) fn has_room_for(&self, reply: &[u8], now_ns: SteadyNanos) -> bool {
        self.pending() < self.config.pending_max as usize
            && self.acks.replies_size() + reply.len() <= REPLIES_SIZE_MAX
            && !self.has_waited_too_long(now_ns)
    }

    pub(crate) fn count_record(&mut self, ingress: Ingress) {
        self.acks.count_record(ingress);
    }

    /// Adds an acknowledgement, due when the last record is durable. Requires [room](Self::has_room_for).
    pub(crate) fn push_ack(&mut self, ack: PendingAck, reply: &[u8]) {
        self.acks.push(self.open.is_some(), ack, reply);
    }

    /// Returns whether a record is not durable yet, or releases wait: then its answers must wait too.
    pub(crate) fn is_pending(&self, sequence: u64) -> bool {
        sequence > self.visible || self.is_releasing()
    }

    /// Adds an acknowledgement of a duplicate, after the first answer to the message. Requires
    /// [room](Self::has_room_for) and a [pending](Self::is_pending) record.
    pub(crate) fn push_duplicate(&mut self, ack: PendingAck, reply: &[u8]) {
        match self.releases.back_mut() {
            Some(last) if ack.sequence <= last.watermark => {
                self.acks.push_released(&mut last.acks, ack, reply);
            }
            _ => self.acks.push(self.open.is_some(), ack, reply),
        }
    }

    /// Closes a connection after all pending answers, except those of a disk that is [overdue](Self::is_overdue).
    /// Returns whether there are any.
    pub(crate) fn push_close(&mut self, client: ClientId, now_ns: SteadyNanos) -> bool {
        let ack = PendingAck::close(client);
        if self.has_unwritten() && !self.is_overdue(now_ns) {
            self.acks.push(self.open.is_some(), ack, b"");
        } else if let Some(last) = self.releases.back_mut() {
            self.acks.push_released(&mut last.acks, ack, b"");
        } else {
            return false;
        }
        true
    }

    pub(crate) fn note_pending(&mut self) {
        self.pending_peak = self.pending_peak.max(self.pending());
    }

    /// Takes the connections to be closed after unwritten batches. If releases wait, the connections are closed after
    /// the last release instead, and none is returned.
    pub(crate) fn take_closing(&mut self) -> Vec<ClientId> {
        let clients = self.acks.take_closing();
        let Some(last) = self.releases.back_mut() else { return clients };
        for client in clients {
            self.acks.push_released(&mut last.acks, PendingAck::close(client), b"");
        }
        Vec::new()
    }

    /// Takes the acknowledgements of the oldest batch, which the journal has written up to `watermark`. The caller
    /// [queues](Self::queue_release) the release.
    pub(crate) fn answered(&mut self, batch: Option<Batch>, watermark: u64) -> Release {
        Release::new(batch, self.acks.take_oldest(), watermark)
    }

    pub(crate) fn queue_release(&mut self, release: Release) {
        self.releases.push_back(release);
    }

    pub(crate) fn is_releasing(&self) -> bool {
        !self.releases.is_empty()
    }

    /// Takes the oldest release. Its records become visible now, because deliveries report the number of later visible
    /// records.
    pub(crate) fn take_release(&mut self) -> Option<Release> {
        let release = self.releases.pop_front()?;
        self.visible = self.visible.max(release.watermark);
        if let Some(batch) = release.batch.as_ref().filter(|batch| batch.first() <= release.last()) {
            self.newest_ns = Some(UnixNanos::from_nanos(batch.time_ns()));
        }
        Some(release)
    }

    pub(crate) fn put_release_back(&mut self, release: Release) {
        self.releases.push_front(release);
    }

    pub(crate) fn end_release(&mut self, release: Release) -> Option<Batch> {
        self.acks.finish(release.acks);
        release.batch
    }

    /// Number of messages, with or without an answer, that wait for the disk or whose answers wait for room; duplicates
    /// count as well.
    fn pending(&self) -> usize {
        let records = if self.has_unwritten() { self.next - 1 - self.visible } else { 0 };
        self.acks.count().max(records as usize)
    }

    fn has_unwritten(&self) -> bool {
        self.open.is_some() || self.acks.under_way() > 0
    }

    /// Returns whether nothing waits for the disk or for release.
    pub(crate) fn is_settled(&self) -> bool {
        !self.has_unwritten() && !self.is_releasing()
    }

    /// Restores a batch from before the start; called in order.
    pub(crate) fn restore_ids(&mut self, batch: BatchView<'_>) {
        self.newest_ns = Some(UnixNanos::from_nanos(batch.time_ns));
        self.dedup.restore_ids(batch);
    }

    /// Continues at the end of the opened directory. Any records stored before (none are expected) keep their
    /// sequences.
    pub(crate) fn open(&mut self, recovered: RecoveredParts) {
        let RecoveredParts { resumed, dedup, newest_ns, health, log_stats } = recovered;
        self.log_stats = log_stats;
        self.closed = None;
        self.health.open(health);
        if self.next == 1 && self.is_settled() {
            let ResumePoint { first, next, created_ns } = resumed;
            (self.dedup, self.newest_ns, self.created_ns) = (dedup, newest_ns, created_ns);
            (self.first, self.next, self.visible) = (first, next, next - 1);
        }
    }

    pub(crate) fn mark_closed(&mut self, reason: Arc<str>) {
        self.health.close(&reason);
        self.closed = Some(reason);
    }

    pub(crate) fn freeze(&mut self, frozen: Frozen) {
        self.health.freeze(&frozen.reason, frozen.kind);
        self.frozen = Some(frozen.reason);
        self.waiting_since = None;
        self.stall.end();
    }

    /// Notes that the journal holds the stream's batches until the disk has room.
    pub(crate) fn wait(&mut self, reason: &str, kind: io::ErrorKind, now_ns: SteadyNanos) {
        self.end_stall();
        self.health.wait(reason, kind);
        self.waiting_since.get_or_insert(now_ns);
    }

    /// Ends a [wait](Self::wait): the journal writes the stream's batches again.
    pub(crate) fn resume(&mut self, now_ns: SteadyNanos) {
        if let Some(since) = self.waiting_since.take() {
            self.health.resume(now_ns.since(since));
        }
    }

    /// Returns whether the stream has waited for room for the stall timeout.
    fn has_waited_too_long(&self, now_ns: SteadyNanos) -> bool {
        self.waiting_since.is_some_and(|since| now_ns.since(since) >= DISK_STALL_TIMEOUT_NS)
    }

    pub(crate) fn is_hung(&self) -> bool {
        self.stall.is_hung()
    }

    /// Returns whether closing connections no longer wait for its disk.
    pub(crate) fn is_overdue(&self, now_ns: SteadyNanos) -> bool {
        self.stall.is_hung() || self.has_waited_too_long(now_ns)
    }

    pub(crate) fn end_stall(&mut self) {
        let waited_ns = self.stall.end();
        self.health.end_slow(waited_ns);
    }

    /// Returns whether its disk needs periodic checks.
    pub(crate) fn is_watched(&self) -> bool {
        self.stall.is_running() || self.acks.under_way() > 0 || self.waiting_since.is_some()
    }

    /// Times the outstanding write. Returns whether the stream has become [overdue](Self::is_overdue) since the last
    /// call.
    pub(crate) fn watch_disk(&mut self, now_ns: SteadyNanos) -> bool {
        if self.acks.under_way() > 0 && self.waiting_since.is_none() {
            self.stall.begin(now_ns);
            self.stall.observe(now_ns);
            let waited_ns = self.stall.waited_ns();
            if waited_ns >= DISK_SLOW_NS {
                self.health.slow(waited_ns);
            }
        }
        let is_overdue = self.is_overdue(now_ns);
        let was_overdue = std::mem::replace(&mut self.was_overdue, is_overdue);
        is_overdue && !was_overdue
    }

    /// Notes that retention has removed everything before `first`.
    pub(crate) fn retained(&mut self, first: u64, error: Option<&io::Error>) {
        self.first = self.first.max(first);
        self.health.removed_before(self.first);
        self.health.retained(error);
    }

    pub(crate) fn count_removed(&mut self, count: u64) {
        self.skipped.removed += count;
    }

    pub(crate) fn note_skipped(&mut self, gap: Gap) {
        match gap.cause {
            GapCause::Removed => {
                self.skipped.removed += gap.count();
                // A round of retention reports only its end: a reader may find earlier removals first.
                self.first = self.first.max(gap.last + 1);
            }
            GapCause::Damaged => self.skipped.damaged += gap.count(),
            // Not counted: the crash cut off a write that had not been acknowledged.
            GapCause::Torn => {}
        }
        self.health.skipped(gap);
    }

    /// Returns the position of a record, whose time is in nanoseconds of Unix time.
    pub(crate) fn position(&self, sequence: u64, time_ns: u64) -> RecordPosition {
        RecordPosition {
            stream: self.number,
            epoch: self.created_ns.as_nanos(),
            sequence,
            time_ns: UnixNanos::from_nanos(time_ns),
        }
    }

    pub(crate) fn read_memory(&self, read_request: &ReadRequest) -> Chunk {
        self.memory.read(read_request, self.first, self.next)
    }

    /// Returns the kept bytes and the times of the first and last record, as far as known.
    pub(crate) fn size_and_times(&self) -> (u64, Option<UnixNanos>, Option<UnixNanos>) {
        let Some(log_stats) = &self.log_stats else {
            return (self.memory.size(), self.memory.oldest_ns(), self.newest_ns);
        };
        let [first_ns, last_ns] =
            [log_stats.first_ns(), log_stats.last_ns()].map(|known| known.map(UnixNanos::from_nanos));
        (log_stats.bytes(), first_ns, self.newest_ns.or(last_ns))
    }

    /// Publishes figures and health for other threads.
    pub(crate) fn publish_metrics(&mut self, to: &StreamCounters) {
        to.first.set(self.first);
        to.last.set(self.next - 1);
        to.visible.set(self.visible);
        to.pending.set(self.pending() as u64);
        to.pending_peak.set(self.pending_peak as u64);
        to.ids.set(self.dedup.len());
        to.ids_evicted.set(self.dedup.evicted());
        to.skipped_removed.set(self.skipped.removed);
        to.skipped_damaged.set(self.skipped.damaged);
        to.frozen.set(self.frozen.is_some().into());
        to.closed.set(self.closed.is_some().into());
        to.waiting.set(self.waiting_since.is_some().into());
        self.health.publish_metrics(to);
    }
}

/// Returns whether a header with prefix `Nats-` and this rest requests an unsupported feature. Such a message is
/// refused: storing it without the feature would not be what the client requested.
fn is_unknown_condition(rest: &[u8]) -> bool {
    let is_one_of = |all: [&[u8]; 3]| all.contains(&rest);
    [&b"Expected-"[..], b"Batch-", b"Schedule"].iter().any(|start| rest.starts_with(start))
        || is_one_of([b"Rollup", b"TTL", b"Incr"])
}

#[cfg(test)]
mod tests;
