//! The writer of one stream: what it takes, under which sequence, and what of it may be seen.
//!
//! ```text
//!   message ─▶ judge: duplicate, conditions, gate ─▶ apply: sequence, open batch ─▶ journal ─▶ visible, acknowledged
//!
//!   durable (visible)         with the journal               being filled
//!   ────────────────────┬──────────────┬──────────────┬──────────────────┐
//!   1 … visible         │ batch        │ batch        │ open             │ next
//!   ────────────────────┴──────────────┴──────────────┴──────────────────┘
//!                         acks           acks           acks               given when the batch is durable
//! ```
//!
//! [`decide`](StreamWriter::decide) decides what becomes of a message, and [`apply`](StreamWriter::apply) alone gives it a
//! sequence and an id in the de-duplication window: a message that was rejected leaves nothing behind.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use stilling_journal::limits::BLOCK_SIZE;
use stilling_journal::{
    Batch, BatchPushError, BatchView, Chunk, Extent, Frozen, Gap, GapCause, IdleBatches, LogConfig,
    ReadOrder, Record,
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
use crate::payload::Payload;
use crate::publication_batch::{ClientId, Ingress, Publication};
use crate::recovered_stream::RecoveredParts;
use crate::storage::Storage;
use crate::stream::{Durability, ResumePoint, StreamConfig};
use crate::time::{Now, SteadyNanos, UnixNanos};

mod memory_log;
mod pending_acks;
mod release;

/// What a stream does with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StoreDecision {
    /// It takes it, with this message id.
    Accept(Option<u128>),
    /// It has taken it before, under this sequence.
    Duplicate(u64),
    Reject(RefusalReason),
}

/// Why an accepted message was not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ApplyError {
    /// It has to wait until the disk has written.
    NoBatch,
    /// It is longer than a batch.
    TooLarge,
}

/// How much memory a stream may fill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriterLimits {
    /// Batches that it may have, open and with the journal.
    pub(crate) batches_max: usize,
    /// Bytes of a batch that is kept in memory.
    pub(crate) memory_batch_size: usize,
}

#[derive(Debug)]
pub(crate) struct StreamWriter {
    number: u32,
    pub(crate) config: StreamConfig,
    limits: WriterLimits,
    pub(crate) dedup: DedupWindow,
    /// The sequence that the next record gets.
    pub(crate) next: u64,
    /// The first sequence that is kept.
    pub(crate) first: u64,
    /// The last sequence that anybody may see.
    pub(crate) visible: u64,
    /// When the last one came, if that is known.
    pub(crate) newest_ns: Option<UnixNanos>,
    /// The batch that is being filled.
    open: Option<Batch>,
    /// Since when the open batch refers to payloads in the blocks of shards.
    unbuilt_since: Option<SteadyNanos>,
    /// When the turn began.
    turn_ns: SteadyNanos,
    /// A record found no batch in this turn because deliveries refer to those that are not under way.
    waits_for_references: bool,
    /// Bytes up to which a batch is filled: it fits into a segment, so that retention never has to remove more than that at
    /// once. A longer record is a batch of its own.
    batch_limit: usize,
    acks: AckQueue,
    /// Batches that the journal has answered for, and that are not handed out to their end.
    releases: VecDeque<Release>,
    /// The most messages that ever waited for the disk.
    pending_most: usize,
    pub(crate) frozen: Option<Arc<str>>,
    /// Since when it waits for room.
    pub(crate) waiting_since: Option<SteadyNanos>,
    was_overdue: bool,
    /// How long the oldest batch under way has been with the journal.
    stall: DiskStallTimer,
    pub(crate) health: HealthLog,
    /// When it was created.
    pub(crate) created_ns: UnixNanos,
    /// Why its directory has not been opened yet, if that is not waited for.
    pub(crate) closed: Option<Arc<str>>,
    skipped: SkippedRecords,
    /// What it has on disk, once its directory is open.
    pub(crate) extent: Option<Arc<Extent>>,
    memory: MemoryLog,
}

/// Records that consumers did not get because they were not there any more.
#[derive(Clone, Copy, Debug, Default)]
struct SkippedRecords {
    removed: u64,
    damaged: u64,
}

impl StreamWriter {
    /// The stream `number` of a hub, which goes on where it was found.
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
            pending_most: 0,
            frozen: None,
            waiting_since: None,
            was_overdue: false,
            stall: DiskStallTimer::default(),
            health: HealthLog::default(),
            created_ns,
            closed: None,
            skipped: SkippedRecords::default(),
            extent: None,
            memory: MemoryLog::default(),
        }
    }

    /// Decides what becomes of a message.
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
        // Behind the duplicates: a message that is sent again after it was taken names what was the last sequence then.
        if let Some(refusal) = refusal {
            return StoreDecision::Reject(refusal);
        }
        // A gate decides here, on the state that all records before this one have made.
        StoreDecision::Accept(id)
    }

    /// What the headers of a message demand: the name of its id, and what does not hold.
    fn conditions(&self, headers: &[u8]) -> (Option<u128>, Option<RefusalReason>) {
        let Ok(headers) = Headers::parse(headers) else { return (None, None) };
        let (mut id, mut refusal) = (None, None);
        let stream = self.number;
        for (name, value) in headers {
            let Some(rest) = name.strip_prefix(b"Nats-") else { continue };
            if name == MESSAGE_ID.as_bytes() {
                // The first counts, as when the window is built again.
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

    /// Takes an accepted record: gives it the next sequence, which is returned, and puts it where the stream keeps records. It
    /// is visible at once, unless the stream is on disk.
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

    /// Puts a record into the open batch; a batch that is full goes to the journal.
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

    /// Hands the open batch to the journal; its acknowledgements are under way from now on.
    fn seal<S: Storage>(&mut self, storage: &mut S) {
        if let Some(batch) = self.open.take() {
            self.unbuilt_since = None;
            self.acks.seal();
            storage.append(self.number, batch, self.dedup.first(self.next));
        }
    }

    /// Begins a turn: frees memory of message ids whose time is over, and copies payloads into the open batch to which it has
    /// referred for too long.
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

    /// If its open batch refers to payloads in the blocks of shards: nanoseconds from the begin of the turn until they
    /// have to be copied.
    pub(crate) fn builds_in(&self) -> Option<u64> {
        let left = |since| OPEN_REFERENCES_NS_MAX.saturating_sub(self.turn_ns.since(since));
        self.unbuilt_since.map(left)
    }

    /// Whether a record found no batch in this turn because deliveries refer to those that are not under way: it waits for
    /// shards, not for the disk.
    pub(crate) fn waits_for_references(&self) -> bool {
        self.waits_for_references
    }

    /// The payload of the last record, where a stream in memory keeps it, to be [put back](Self::put_stored_back). `None` for
    /// other streams.
    pub(crate) fn take_stored_payload(&mut self, size: usize) -> Option<(SharedBlock, Range<usize>)> {
        (self.config.durability == Durability::Memory).then(|| self.memory.take_last_payload(size)).flatten()
    }

    /// Puts back what was taken of the memory.
    pub(crate) fn put_stored_back(&mut self, block: SharedBlock) {
        self.memory.put_block_back(block);
    }

    /// Ends a turn: hands the open batch over if the journal has none of this stream, or if it is long enough. While one is
    /// being written the next one gathers more: that is what makes commits cheap under load.
    pub(crate) fn flush<S: Storage>(&mut self, storage: &mut S) {
        let is_due =
            |batch: &Batch| !batch.is_empty() && (self.acks.under_way() == 0 || batch.size() >= SEAL_SIZE);
        if self.open.as_ref().is_some_and(is_due) {
            self.seal(storage);
        }
    }

    /// Whether one more message may wait for the disk, with an answer to `reply`. If not, it waits itself until the disk has
    /// written.
    pub(crate) fn has_room_for(&self, reply: &[u8], now_ns: SteadyNanos) -> bool {
        self.pending() < self.config.pending_max as usize
            && self.acks.replies_size() + reply.len() <= REPLIES_SIZE_MAX
            && !self.has_waited_too_long(now_ns)
    }

    /// Counts a record that waits for the disk.
    pub(crate) fn count_record(&mut self, ingress: Ingress) {
        self.acks.count_record(ingress);
    }

    /// Notes what a connection is told when the last record is durable. There has to be [room](Self::has_room_for).
    pub(crate) fn push_ack(&mut self, ack: PendingAck, reply: &[u8]) {
        self.acks.push(self.open.is_some(), ack, reply);
    }

    /// Whether a record is not durable yet, or an answer to it may not be given yet.
    pub(crate) fn is_pending(&self, sequence: u64) -> bool {
        sequence > self.visible || self.is_releasing()
    }

    /// Notes that a message that was taken before is acknowledged again, behind the first answer to it. There has to be
    /// [room](Self::has_room_for), and the record is [pending](Self::is_pending).
    pub(crate) fn push_duplicate(&mut self, ack: PendingAck, reply: &[u8]) {
        match self.releases.back_mut() {
            Some(last) if ack.sequence <= last.watermark => self.acks.push_taken(&mut last.acks, ack, reply),
            _ => self.acks.push(self.open.is_some(), ack, reply),
        }
    }

    /// Has a connection closed behind all answers that wait, but for those of a disk that has been waited for too long.
    /// Returns whether there are any.
    pub(crate) fn push_close(&mut self, client: ClientId, now_ns: SteadyNanos) -> bool {
        let ack = PendingAck::close(client);
        if self.has_unwritten() && !self.is_overdue(now_ns) {
            self.acks.push(self.open.is_some(), ack, b"");
        } else if let Some(last) = self.releases.back_mut() {
            self.acks.push_taken(&mut last.acks, ack, b"");
        } else {
            return false;
        }
        true
    }

    /// Notes the most messages that ever waited.
    pub(crate) fn note_pending(&mut self) {
        self.pending_most = self.pending_most.max(self.pending());
    }

    /// Takes the connections that are to be closed behind batches that the disk has not written. Those with answers that wait
    /// for room are closed behind these.
    pub(crate) fn take_closing(&mut self) -> Vec<ClientId> {
        let clients = self.acks.take_closing();
        let Some(last) = self.releases.back_mut() else { return clients };
        for client in clients {
            self.acks.push_taken(&mut last.acks, PendingAck::close(client), b"");
        }
        Vec::new()
    }

    /// The journal has answered for the oldest batch under way, which it has written up to `watermark`. What is returned is to
    /// be [queued](Self::queue_release).
    pub(crate) fn answered(&mut self, batch: Option<Batch>, watermark: u64) -> Release {
        Release::new(batch, self.acks.take_oldest(), watermark)
    }

    /// Adds a release behind the others.
    pub(crate) fn queue_release(&mut self, release: Release) {
        self.releases.push_back(release);
    }

    /// Whether answers wait behind a release that is not handed out to its end.
    pub(crate) fn is_releasing(&self) -> bool {
        !self.releases.is_empty()
    }

    /// Takes the oldest release, whose records are visible from now on: what is sent says how much comes behind it.
    pub(crate) fn take_release(&mut self) -> Option<Release> {
        let release = self.releases.pop_front()?;
        self.visible = self.visible.max(release.watermark);
        if let Some(batch) = release.batch.as_ref().filter(|batch| batch.first() <= release.last()) {
            self.newest_ns = Some(UnixNanos::from_nanos(batch.time_ns()));
        }
        Some(release)
    }

    /// Puts a release back that found no room.
    pub(crate) fn put_release_back(&mut self, release: Release) {
        self.releases.push_front(release);
    }

    /// A release has come to its end. Returns its batch.
    pub(crate) fn end_release(&mut self, release: Release) -> Option<Batch> {
        self.acks.finish(release.acks);
        release.batch
    }

    /// Messages that wait for the disk, or whose answers wait for room, whether or not an answer is wanted; those sent again
    /// wait beside them.
    fn pending(&self) -> usize {
        let records = if self.has_unwritten() { self.next - 1 - self.visible } else { 0 };
        self.acks.count().max(records as usize)
    }

    /// Whether something is on its way to the disk.
    fn has_unwritten(&self) -> bool {
        self.open.is_some() || self.acks.under_way() > 0
    }

    /// Whether nothing is on its way to the disk or from there.
    pub(crate) fn is_settled(&self) -> bool {
        !self.has_unwritten() && !self.is_releasing()
    }

    /// Notes a batch that was kept before the start, one after the other.
    pub(crate) fn restore_ids(&mut self, batch: BatchView<'_>) {
        self.newest_ns = Some(UnixNanos::from_nanos(batch.time_ns));
        self.dedup.restore_ids(batch);
    }

    /// Goes on as its directory was found. What was stored since, which nothing may have been, keeps its numbers.
    pub(crate) fn open(&mut self, found: RecoveredParts) {
        let RecoveredParts { resumed, dedup, newest_ns, health, extent } = found;
        self.extent = extent;
        self.closed = None;
        self.health.open(health);
        if self.next == 1 && self.is_settled() {
            let ResumePoint { first, next, created_ns } = resumed;
            (self.dedup, self.newest_ns, self.created_ns) = (dedup, newest_ns, created_ns);
            (self.first, self.next, self.visible) = (first, next, next - 1);
        }
    }

    /// Refuses messages with this reason until its directory is [opened](Self::open).
    pub(crate) fn keep_closed(&mut self, reason: Arc<str>) {
        self.health.close(&reason);
        self.closed = Some(reason);
    }

    /// Takes nothing any more.
    pub(crate) fn freeze(&mut self, frozen: Frozen) {
        self.health.freeze(&frozen.reason, frozen.kind);
        self.frozen = Some(frozen.reason);
        self.waiting_since = None;
        self.stall.end();
    }

    /// Notes that the journal keeps its batches until its disk has room.
    pub(crate) fn wait(&mut self, reason: &str, kind: io::ErrorKind, now_ns: SteadyNanos) {
        self.end_stall();
        self.health.wait(reason, kind);
        self.waiting_since.get_or_insert(now_ns);
    }

    /// Notes that it is written again.
    pub(crate) fn resume(&mut self, now_ns: SteadyNanos) {
        if let Some(since) = self.waiting_since.take() {
            self.health.resume(now_ns.since(since));
        }
    }

    /// Whether it has waited for room for so long that publishers are not kept waiting any more.
    fn has_waited_too_long(&self, now_ns: SteadyNanos) -> bool {
        self.waiting_since.is_some_and(|since| now_ns.since(since) >= DISK_STALL_TIMEOUT_NS)
    }

    /// Whether its disk counts as hung.
    pub(crate) fn is_hung(&self) -> bool {
        self.stall.is_hung()
    }

    /// Whether connections that are to be closed do not wait for its disk any more.
    pub(crate) fn is_overdue(&self, now_ns: SteadyNanos) -> bool {
        self.stall.is_hung() || self.has_waited_too_long(now_ns)
    }

    /// The journal has answered.
    pub(crate) fn end_stall(&mut self) {
        let waited_ns = self.stall.end();
        self.health.end_slow(waited_ns);
    }

    /// Whether its disk has to be looked at from time to time.
    pub(crate) fn is_watched(&self) -> bool {
        self.stall.is_running() || self.acks.under_way() > 0 || self.waiting_since.is_some()
    }

    /// Times what is with the journal. Returns whether the stream has become [overdue](Self::is_overdue) since the last call.
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

    /// Counts records that a consumer did not get because retention had removed them.
    pub(crate) fn count_removed(&mut self, count: u64) {
        self.skipped.removed += count;
    }

    /// Notes records that a reader came to and that are not there.
    pub(crate) fn note_skipped(&mut self, gap: Gap) {
        match gap.cause {
            GapCause::Removed => {
                self.skipped.removed += gap.count();
                // A round of retention reports its end only: a reader may meet before what it has removed so far.
                self.first = self.first.max(gap.last + 1);
            }
            GapCause::Damaged => self.skipped.damaged += gap.count(),
            // A crash cut off a write that had not been acknowledged.
            GapCause::Torn => {}
        }
        self.health.skipped(gap);
    }

    /// Reads what is kept in memory.
    pub(crate) fn read_memory(&self, order: &ReadOrder) -> Chunk {
        self.memory.read(order, self.first, self.next)
    }

    /// Bytes that are kept, and when the first and the last of it came, as far as that is known.
    pub(crate) fn kept(&self) -> (u64, Option<UnixNanos>, Option<UnixNanos>) {
        let Some(extent) = &self.extent else {
            return (self.memory.size(), self.memory.oldest_ns(), self.newest_ns);
        };
        let [first_ns, last_ns] =
            [extent.first_ns(), extent.last_ns()].map(|known| known.map(UnixNanos::from_nanos));
        (extent.bytes(), first_ns, self.newest_ns.or(last_ns))
    }

    /// Writes its figures and its health to where other threads see them.
    pub(crate) fn publish_figures(&mut self, to: &StreamCounters) {
        to.first.set(self.first);
        to.last.set(self.next - 1);
        to.visible.set(self.visible);
        to.pending.set(self.pending() as u64);
        to.pending_max.set(self.pending_most as u64);
        to.ids.set(self.dedup.len());
        to.ids_evicted.set(self.dedup.evicted());
        to.skipped_removed.set(self.skipped.removed);
        to.skipped_damaged.set(self.skipped.damaged);
        to.frozen.set(self.frozen.is_some().into());
        to.closed.set(self.closed.is_some().into());
        to.waiting.set(self.waiting_since.is_some().into());
        self.health.publish_figures(to);
    }
}

/// Whether a header that begins with `Nats-` and goes on like this asks for something that streams do not have here: it is
/// refused, since a message that is stored without it would not be what was asked for.
fn is_unknown_condition(rest: &[u8]) -> bool {
    let is_one_of = |all: [&[u8]; 3]| all.contains(&rest);
    [&b"Expected-"[..], b"Batch-", b"Schedule"].iter().any(|start| rest.starts_with(start))
        || is_one_of([b"Rollup", b"TTL", b"Incr"])
}

#[cfg(test)]
mod tests;
