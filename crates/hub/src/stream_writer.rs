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
//! adds the id to the de-duplication window, and only it changes the state of the stream's gate: a rejected message
//! changes nothing.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use stilling_journal::limits::BLOCK_SIZE;
use stilling_journal::{
    Batch, BatchView, Chunk, Frozen, Gap, GapCause, LogConfig, LogStats, ReadRequest, Record, RecordKind,
};
use stilling_ring::{SharedBlock, planted};
use stilling_wire::nats::{EXPECTED_LAST_SEQUENCE, Headers, MESSAGE_ID};

use self::decision::is_unknown_condition;
pub(crate) use self::decision::{ApplyError, StoreDecision};
use self::memory_log::{MemoryLimits, MemoryLog};
use self::open_batch::OpenBatch;
use self::pending_acks::AckQueue;
pub(crate) use self::pending_acks::{AckTarget, AckedOutcome, PendingAck};
pub(crate) use self::release::Release;
use self::skipped::SkippedRecords;
use crate::counters::StreamCounters;
use crate::dedup::DedupWindow;
use crate::disk_stall::DiskStallTimer;
use crate::gate::{GateRecords, StreamGate, Verdict};
use crate::hash_key::HashKey;
use crate::health_log::HealthLog;
use crate::limits::{DISK_SLOW_NS, DISK_STALL_TIMEOUT_NS, MEMORY_STREAM_SIZE, REPLIES_SIZE_MAX};
use crate::message::RecordPosition;
use crate::payload::Payload;
use crate::publication_batch::{ClientId, Ingress, Publication};
use crate::publish_outcome::RefusalReason;
use crate::recovered_stream::RecoveredParts;
use crate::storage::Storage;
use crate::stream::{Durability, ResumePoint, StreamConfig};
use crate::time::{Now, SteadyNanos, UnixNanos};

mod decision;
mod memory_log;
mod open_batch;
mod pending_acks;
mod release;
mod skipped;

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
    open: OpenBatch,
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
    pub(crate) skipped: SkippedRecords,
    /// The journal's counts of its records, once its directory is open.
    pub(crate) log_stats: Option<Arc<LogStats>>,
    memory: MemoryLog,
    gate: Option<Box<StreamGate>>,
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
            dedup: DedupWindow::new(key, config.dedup_time_ns()),
            config,
            next,
            first,
            visible: next - 1,
            newest_ns: None,
            // A segment is at most 64 MiB long, and its header takes one block.
            open: OpenBatch::new(segment_size as usize - BLOCK_SIZE),
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
            gate: None,
        }
    }

    /// Sets the gate. An unknown state freezes the stream.
    pub(crate) fn set_gate(&mut self, gate: Option<Box<StreamGate>>) {
        self.gate = gate;
        self.freeze_if_gate_failed();
    }

    /// Decides about a message without changing the stream.
    pub(crate) fn decide(&mut self, publication: &Publication<'_>, now: Now) -> StoreDecision {
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
        if let Some(sequence) = id.and_then(|id| self.dedup.find(id, now.steady_ns)) {
            return StoreDecision::Duplicate(sequence);
        }
        // After the duplicates: a repeated message names the last sequence of its first attempt.
        if let Some(refusal) = refusal {
            return StoreDecision::Reject(refusal);
        }
        // On the state that all earlier records have produced.
        let Some(gate) = &mut self.gate else { return StoreDecision::Accept(id) };
        match gate.judge(publication, &self.config, now.unix_ns) {
            Verdict::Accept => StoreDecision::Accept(id),
            Verdict::AcceptAs(records) => StoreDecision::AcceptAs(id, records),
            Verdict::Reject(reason) => {
                if planted!("rejected id remembered")
                    && let Some(id) = id
                {
                    self.dedup.note(id, self.next - 1, now.steady_ns);
                }
                StoreDecision::RejectByGate(reason)
            }
        }
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
        let time = match self.config.durability {
            Durability::Disk => {
                self.fill(record, storage, now)?;
                self.open.time().unwrap_or(now.unix_ns)
            }
            Durability::Memory => {
                let size_max = self.config.retention.bytes_max().unwrap_or(MEMORY_STREAM_SIZE) as usize;
                let limits = MemoryLimits { batch_size: self.limits.memory_batch_size, size_max };
                let record = record.with_payload(record.payload.bytes());
                let outcome = self.memory.push(self.next, &record, now.unix_ns, limits);
                self.first = self.memory.first().unwrap_or(self.next);
                outcome.map_err(|_| ApplyError::TooLarge)?
            }
            Durability::None => now.unix_ns,
        };
        let sequence = self.next;
        self.next += 1;
        if let Some(id) = id {
            self.dedup.note(id, sequence, now.steady_ns);
        }
        if self.config.durability != Durability::Disk {
            (self.visible, self.newest_ns) = (sequence, Some(time));
        }
        if let Some(gate) = &mut self.gate
            && record.kind == RecordKind::Ordinary
        {
            gate.apply(sequence, time, &record.with_payload(record.payload.bytes()));
            self.freeze_if_gate_failed();
        }
        Ok(sequence)
    }

    /// Stores the records of a gate instead of a message, consecutively in one batch: all or none. The last one, whose
    /// sequence is returned, gets the headers of the message.
    pub(crate) fn apply_all<S: Storage>(
        &mut self,
        records: &GateRecords,
        headers: &[u8],
        id: Option<u128>,
        storage: &mut S,
        now: Now,
    ) -> Result<u64, ApplyError> {
        let last = records.len() - 1;
        let all = || {
            records.iter().enumerate().map(|(at, (subject, payload))| {
                let headers = if at == last { headers } else { b"" };
                (at == last, Record { headers, ..Record::new(subject, payload) })
            })
        };
        let sizes = all().map(|(_, record)| record.size().ok_or(ApplyError::TooLarge));
        match self.config.durability {
            Durability::Disk => {
                let size = sizes.sum::<Result<usize, _>>()?;
                if last > 0 && !self.open.may_hold(size) {
                    return Err(ApplyError::TooLarge);
                }
                self.ensure_room(size, storage, now)?;
            }
            Durability::Memory => {
                let size_max = self.limits.memory_batch_size.saturating_sub(BLOCK_SIZE);
                if sizes.collect::<Result<Vec<usize>, _>>()?.iter().any(|size| *size > size_max) {
                    return Err(ApplyError::TooLarge);
                }
            }
            Durability::None => {}
        }
        let mut sequence = self.next;
        for (is_last, record) in all() {
            let record = record.with_payload(Payload::from(record.payload));
            sequence = self.apply(&record, id.filter(|_| is_last), storage, now)?;
        }
        Ok(sequence)
    }

    fn freeze_if_gate_failed(&mut self) {
        if let Some(reason) = self.gate.as_ref().and_then(|gate| gate.failure())
            && self.frozen.is_none()
        {
            self.health.freeze_for_gate(reason);
            self.frozen = Some(Arc::clone(reason));
        }
    }

    /// Adds a record to the open batch; a full batch goes to the journal.
    fn fill<S: Storage>(
        &mut self,
        record: &Record<'_, Payload<'_>>,
        storage: &mut S,
        now: Now,
    ) -> Result<(), ApplyError> {
        let size = record.with_payload(record.payload.bytes()).size().ok_or(ApplyError::TooLarge)?;
        self.ensure_room(size, storage, now)?;
        self.open.push(record, now.steady_ns)
    }

    /// Makes room in the open batch for records of `size` bytes in total; a full batch goes to the journal.
    fn ensure_room<S: Storage>(&mut self, size: usize, storage: &mut S, now: Now) -> Result<(), ApplyError> {
        if self.open.is_full_for(size) {
            self.seal(storage);
        }
        if !self.open.is_some() {
            if self.acks.under_way() + self.releases.len() >= self.limits.batches_max {
                self.open.note_no_batch();
                return Err(ApplyError::NoBatch);
            }
            self.open.begin(self.number, self.next, storage, now)?;
        }
        if self.open.has_room(size, self.number, storage) { Ok(()) } else { Err(ApplyError::TooLarge) }
    }

    /// Hands the open batch to the journal; its acknowledgements wait for the answer.
    fn seal<S: Storage>(&mut self, storage: &mut S) {
        if let Some(batch) = self.open.take() {
            self.acks.seal();
            storage.append(self.number, batch, self.dedup.first(self.next));
        }
    }

    /// Begins a turn: frees memory of expired message ids, and copies payloads that the open batch has referred to for
    /// too long.
    pub(crate) fn begin_turn(&mut self, now_ns: SteadyNanos) {
        self.dedup.sweep(now_ns);
        self.open.begin_turn(now_ns);
    }

    /// Returns the nanoseconds from the begin of the turn until the open batch must copy payloads from the blocks of
    /// shards, if it refers to some.
    pub(crate) fn builds_in(&self) -> Option<u64> {
        self.open.builds_in()
    }

    /// Returns whether a record found no batch in this turn because deliveries refer to the idle ones: it waits for
    /// shards, not for the disk.
    pub(crate) fn waits_for_references(&self) -> bool {
        self.open.waits_for_references()
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
        if self.open.has_records() && (self.acks.under_way() == 0 || self.open.is_long()) {
            self.seal(storage);
        }
        if self.gate.as_ref().is_some_and(|gate| gate.is_snapshot_due()) {
            self.write_snapshot(storage);
        }
    }

    /// Hands the state of the gate to the journal, behind the records that produced it.
    fn write_snapshot<S: Storage>(&mut self, storage: &mut S) {
        if self.config.durability != Durability::Disk || self.frozen.is_some() {
            return;
        }
        if self.open.has_records() {
            self.seal(storage);
        }
        let sequence = self.next - 1;
        let Some(gate) = &mut self.gate else { return };
        if let Some(snapshot) = gate.snapshot_at(sequence) {
            let is_requested = storage.write_snapshot(self.number, snapshot);
            gate.note_requested(is_requested.then_some(sequence));
        }
        self.freeze_if_gate_failed();
    }

    /// Hands the state of the gate to the journal if it has changed since the last snapshot: the last act of a stream.
    pub(crate) fn write_final_snapshot<S: Storage>(&mut self, storage: &mut S) {
        if self.gate.as_ref().is_some_and(|gate| gate.has_unwritten_state()) {
            self.write_snapshot(storage);
        }
    }

    pub(crate) fn note_snapshot(&mut self, sequence: u64, outcome: &io::Result<()>) {
        if let Some(gate) = &mut self.gate {
            gate.note_written(sequence, outcome);
        }
    }

    /// Returns the first sequence that retention must keep for the gate.
    pub(crate) fn keep_from(&self) -> u64 {
        self.gate.as_ref().map_or(u64::MAX, |gate| gate.keep_from())
    }

    /// Returns whether a further message may wait for the disk, with an answer of `answer_size` bytes: reply subject and
    /// reason. If not, its connection is parked.
    pub(crate) fn has_room_for(&self, answer_size: usize, now_ns: SteadyNanos) -> bool {
        self.pending() < self.config.pending_max as usize
            && self.acks.replies_size() + answer_size <= REPLIES_SIZE_MAX
            && !self.has_waited_too_long(now_ns)
    }

    /// Counts a message that the gate, if there is one, has accepted or rejected.
    pub(crate) fn count_judged(&mut self, is_accepted: bool) {
        if let Some(gate) = &mut self.gate {
            gate.count_judged(is_accepted);
        }
    }

    pub(crate) fn count_record(&mut self, ingress: Ingress) {
        self.acks.count_record(ingress);
    }

    /// Adds an acknowledgement, due when the last record is durable. Requires [room](Self::has_room_for).
    pub(crate) fn push_ack(&mut self, ack: PendingAck, reply: &[u8]) {
        self.acks.push(self.open.is_some(), ack, reply, "");
    }

    /// Returns whether a record is not durable yet, or releases wait: then its answers must wait too.
    pub(crate) fn is_pending(&self, sequence: u64) -> bool {
        sequence > self.visible || self.is_releasing()
    }

    /// Adds an answer that is not about a new record, due when record `ack.sequence` is durable and after the answers
    /// to that: of a duplicate, or of a rejection with its reason. Requires [room](Self::has_room_for) and a
    /// [pending](Self::is_pending) record.
    pub(crate) fn push_answer(&mut self, ack: PendingAck, reply: &[u8], reason: &str) {
        match self.releases.back_mut() {
            Some(last) if ack.sequence <= last.watermark => {
                self.acks.push_released(&mut last.acks, ack, reply, reason);
            }
            _ => self.acks.push(self.open.is_some(), ack, reply, reason),
        }
    }

    /// Closes a connection after all pending answers, except those of a disk that is [overdue](Self::is_overdue).
    /// Returns whether there are any.
    pub(crate) fn push_close(&mut self, client: ClientId, now_ns: SteadyNanos) -> bool {
        let ack = PendingAck::close(client);
        if self.has_unwritten() && !self.is_overdue(now_ns) {
            self.acks.push(self.open.is_some(), ack, b"", "");
        } else if let Some(last) = self.releases.back_mut() {
            self.acks.push_released(&mut last.acks, ack, b"", "");
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
            self.acks.push_released(&mut last.acks, PendingAck::close(client), b"", "");
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
    pub(crate) fn is_drained(&self) -> bool {
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
        let RecoveredParts { resumed, dedup, newest_ns, health, log_stats, gate } = recovered;
        self.log_stats = log_stats;
        self.closed = None;
        self.health.open(health);
        if self.next == 1 && self.is_drained() {
            let ResumePoint { first, next, created_ns } = resumed;
            (self.dedup, self.newest_ns, self.created_ns) = (dedup, newest_ns, created_ns);
            (self.first, self.next, self.visible) = (first, next, next - 1);
            if let Some(mut gate) = gate {
                // It may have rejected messages before the directory was open.
                gate.add_counts(self.gate.as_deref());
                self.set_gate(Some(gate));
            }
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

    pub(crate) fn note_skipped(&mut self, gap: Gap) {
        self.skipped.count_gap(gap);
        if gap.cause == GapCause::Removed {
            // A round of retention reports only its end: a reader may find earlier removals first.
            self.first = self.first.max(gap.last + 1);
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
        self.skipped.publish_metrics(to);
        to.frozen.set(self.frozen.is_some().into());
        to.closed.set(self.closed.is_some().into());
        to.waiting.set(self.waiting_since.is_some().into());
        if let Some(gate) = &mut self.gate {
            gate.publish_metrics(to);
            if let Some(notice) = gate.take_notice() {
                self.health.gate_failed(notice);
            }
        }
        self.health.publish_metrics(to);
    }
}

#[cfg(test)]
mod tests;
