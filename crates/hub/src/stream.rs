//! A stream: its numbers, the batch that is being filled, and the answers that wait for batches under way.
//!
//! ```text
//!   durable (visible)         with the journal               being filled
//!   ────────────────────┬──────────────┬──────────────┬──────────────────┐
//!   1 … visible         │ batch        │ batch        │ open             │ next
//!   ────────────────────┴──────────────┴──────────────┴──────────────────┘
//!                         promises       promises       promises           answered when the batch is durable
//! ```

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use stilling_journal::limits::BLOCK_SIZE;
use stilling_journal::{
    Batch, BatchView, Chunk, Config as SegmentConfig, Extent, From, Frozen, ReadOrder, Record, Refused,
    Retention,
};
use stilling_wire::nats::{Headers, MESSAGE_ID};

use crate::counters::StreamCounters;
use crate::dedup::DedupWindow;
use crate::health::HealthLog;
use crate::hub::{Resumed, SteadyNanos, UnixNanos};
use crate::intake::{Client, Door};
use crate::key::HashKey;
use crate::ledger::Loss;
use crate::limits::{
    DEDUP_TIME_NS, DISK_PATIENCE_NS, DISK_SLOW_NS, MEMORY_STREAM_SIZE, MEMORY_TIME_STEP_NS, PENDING_MAX,
    PROMISES_KEPT_MAX, REPLIES_KEPT_SIZE_MAX, REPLIES_SIZE_MAX, SPARE_PROMISES_MAX,
};
use crate::stall::DiskStallTimer;

/// When a message counts as kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// When the disk has it. Nobody sees it before.
    #[default]
    Disk,
    /// When the server has it in memory; it is gone with the process.
    Memory,
    /// It is numbered and sent to those who listen, and not kept.
    None,
}

/// What a stream is.
#[derive(Clone, Debug)]
pub struct StreamConfig {
    /// Its name.
    pub name: String,
    /// The filters whose subjects belong to it. Those of two streams must not overlap.
    pub subjects: Vec<String>,
    /// When a message counts as kept.
    pub durability: Durability,
    /// What is kept of it. A stream in memory is bounded by bytes alone, 64 MiB unless told otherwise.
    pub retention: Retention,
    /// How long a message id is recognised, in nanoseconds; 0: not at all.
    pub dedup_time_ns: u64,
    /// Bytes of a message, headers and payload. Longer ones are refused.
    pub message_size_max: usize,
    /// Messages that may wait for the disk. As many: what the shards hand in waits in front of the hub until it has written,
    /// and connections that publish are not read.
    pub pending_max: usize,
}

impl Default for StreamConfig {
    fn default() -> Self {
        StreamConfig {
            name: "events".to_owned(),
            subjects: vec!["events.>".to_owned()],
            durability: Durability::Disk,
            retention: Retention::default(),
            dedup_time_ns: DEDUP_TIME_NS,
            message_size_max: usize::MAX,
            pending_max: PENDING_MAX,
        }
    }
}

/// Who is to be told what, when a batch is durable.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    /// Reply subjects, one behind the other.
    pub(crate) replies: Vec<u8>,
    pub(crate) entries: Vec<Promise>,
    /// How many records of the batch came by which door.
    pub(crate) records: [u64; Door::ALL.len()],
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    pub(crate) client: Client,
    pub(crate) sequence: u64,
    pub(crate) is_duplicate: bool,
    /// It does not want to get back what it published itself.
    pub(crate) no_echo: bool,
    pub(crate) to: PromisedTo,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PromisedTo {
    /// Its place among the replies; of no bytes where no answer is wanted, and only the sender is to be known.
    Reply(u32, u16),
    Ticket(u32),
    /// Its connection may be closed, as far as this stream is concerned.
    Farewell,
}

impl Promises {
    /// Forgets them; keeps their memory, but not that of an unusual burst.
    fn clear(&mut self) {
        self.replies.clear();
        self.replies.shrink_to(REPLIES_KEPT_SIZE_MAX);
        self.entries.clear();
        self.entries.shrink_to(PROMISES_KEPT_MAX);
        self.records = Default::default();
    }

    pub(crate) fn reply(&self, start: u32, size: u16) -> &[u8] {
        &self.replies[start as usize..][..usize::from(size)]
    }

    /// Who sent the record `sequence`, if that was noted. Records are asked for in order: `from` is moved on behind those
    /// before it.
    pub(crate) fn sender(&self, sequence: u64, from: &mut usize) -> Option<&Promise> {
        // Duplicates and farewells stand between them, and are no records of the batch.
        let is_before = |entry: &&Promise| {
            entry.is_duplicate || entry.to == PromisedTo::Farewell || entry.sequence < sequence
        };
        *from += self.entries.get(*from..)?.iter().take_while(is_before).count();
        self.entries.get(*from).filter(|entry| entry.sequence == sequence)
    }
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) config: StreamConfig,
    pub(crate) dedup: DedupWindow,
    /// The sequence that the next record gets.
    pub(crate) next: u64,
    /// The first sequence that is kept.
    pub(crate) first: u64,
    /// The last sequence that anybody may see.
    pub(crate) visible: u64,
    /// When the last one came, in nanoseconds of Unix time, if that is known.
    pub(crate) newest_ns: Option<u64>,
    /// The batch that is being filled.
    pub(crate) open: Option<Batch>,
    /// Bytes up to which a batch is filled: it fits into a segment, so that retention never has to remove more than that at
    /// once. A longer record is a batch of its own.
    batch_limit: usize,
    /// What is promised for the open batch, or, without one, to be added to the last under way.
    pub(crate) promises: Promises,
    /// What is promised for the batches with the journal, in order.
    pub(crate) under_way: VecDeque<Promises>,
    spare: Vec<Promises>,
    /// How many promises there are in all, and the bytes of their replies.
    promised: (usize, usize),
    /// The most messages that ever waited for the disk.
    pending_most: usize,
    pub(crate) frozen: Option<Arc<str>>,
    /// Since when it waits for room, by the steady clock.
    pub(crate) waiting_since: Option<SteadyNanos>,
    was_overdue: bool,
    /// How long the oldest batch under way has been with the journal.
    pub(crate) stall: DiskStallTimer,
    pub(crate) health: HealthLog,
    /// When it was created, Unix time in nanoseconds.
    pub(crate) created_ns: UnixNanos,
    /// Why its directory has not been opened yet, if that is not waited for.
    pub(crate) closed: Option<Arc<str>>,
    pub(crate) passed_over: PassedOver,
    /// What it has on disk, once its directory is open.
    pub(crate) extent: Option<Arc<Extent>>,
    /// What is kept in memory.
    pub(crate) memory: VecDeque<Batch>,
    /// When records in memory came, in nanoseconds of Unix time: the sequence from which on each time holds. (A batch has
    /// one time for all its records, and may be filled for hours.)
    times: VecDeque<(u64, u64)>,
    /// Subscriptions whose filters may take a subject of the stream.
    pub(crate) listeners: u32,
    /// What was lost before it since the last marker.
    pub(crate) lost: Option<LostBefore>,
    /// When the last marker was written, in nanoseconds by the clock that nobody sets.
    pub(crate) marked_ns: Option<u64>,
}

/// Records that consumers did not get because they were not there any more.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PassedOver {
    pub(crate) removed: u64,
    pub(crate) damaged: u64,
}

/// Messages that would have been a stream's.
#[derive(Debug)]
pub(crate) struct LostBefore {
    /// That of the first of them.
    pub(crate) subject: Vec<u8>,
    pub(crate) loss: Loss,
    pub(crate) count: u64,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
}

impl Stream {
    pub(crate) fn new(config: StreamConfig, key: HashKey, resumed: Resumed) -> Stream {
        let Resumed { first, next, created_ns } = resumed;
        let segment_size = SegmentConfig::for_retention(config.retention.bytes_max).segment_size;
        Stream {
            // A segment is at most 64 MiB long, and its header takes one block.
            batch_limit: segment_size as usize - BLOCK_SIZE,
            dedup: DedupWindow::new(key, config.dedup_time_ns),
            config,
            next,
            first,
            visible: next - 1,
            newest_ns: None,
            open: None,
            promises: Promises::default(),
            under_way: VecDeque::new(),
            spare: Vec::new(),
            promised: (0, 0),
            pending_most: 0,
            frozen: None,
            waiting_since: None,
            was_overdue: false,
            stall: DiskStallTimer::default(),
            health: HealthLog::default(),
            created_ns,
            closed: None,
            passed_over: PassedOver::default(),
            extent: None,
            memory: VecDeque::new(),
            times: VecDeque::new(),
            listeners: 0,
            lost: None,
            marked_ns: None,
        }
    }

    /// Begins `batch` with the record that comes next.
    pub(crate) fn begin(&mut self, mut batch: Batch, now_ns: UnixNanos) {
        batch.begin_within(self.next, now_ns, self.batch_limit);
        self.open = Some(batch);
    }

    /// Notes a batch that was kept before the start, one after the other.
    pub(crate) fn remember(&mut self, batch: BatchView<'_>) {
        self.newest_ns = Some(batch.time_ns);
        self.dedup.replay_batch(batch.epoch, batch.time_ns);
        for (sequence, record) in batch.records {
            let id = Headers::parse(record.headers).ok().and_then(|headers| headers.find(MESSAGE_ID));
            if let Some(name) = id.and_then(|id| self.dedup.name(id)) {
                self.dedup.replay(name, sequence);
            }
        }
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
        to.passed_removed.set(self.passed_over.removed);
        to.passed_damaged.set(self.passed_over.damaged);
        to.frozen.set(self.frozen.is_some().into());
        to.closed.set(self.closed.is_some().into());
        to.waiting.set(self.waiting_since.is_some().into());
        self.health.publish_figures(to);
    }

    /// Whether nothing is on its way to the disk.
    pub(crate) fn is_settled(&self) -> bool {
        self.open.is_none() && self.under_way.is_empty()
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
            self.health.resume(now_ns.saturating_sub(since));
        }
    }

    /// Whether it has waited for room for so long that publishers are not kept waiting any more.
    pub(crate) fn has_waited_too_long(&self, now_ns: SteadyNanos) -> bool {
        self.waiting_since.is_some_and(|since| now_ns.saturating_sub(since) >= DISK_PATIENCE_NS)
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

    /// Times what is with the journal. Returns whether the stream has become [overdue](Stream::is_overdue) since the last call.
    pub(crate) fn watch_disk(&mut self, now_ns: SteadyNanos) -> bool {
        if !self.under_way.is_empty() && self.waiting_since.is_none() {
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

    /// How many batches it has, open and with the journal.
    pub(crate) fn batches(&self) -> usize {
        self.under_way.len() + usize::from(self.open.is_some())
    }

    /// Messages that wait for the disk, whether or not an answer is wanted; those sent again wait beside them.
    pub(crate) fn pending(&self) -> usize {
        let records = if self.is_settled() { 0 } else { self.next - 1 - self.visible };
        self.promised.0.max(records as usize)
    }

    /// Whether one more message may wait for the disk, with an answer to `reply`. If not, there is room as soon as the disk
    /// has written.
    pub(crate) fn has_room_for(&self, reply: &[u8]) -> bool {
        self.pending() < self.config.pending_max && self.promised.1 + reply.len() <= REPLIES_SIZE_MAX
    }

    /// Notes the most messages that ever waited.
    pub(crate) fn note_pending(&mut self) {
        self.pending_most = self.pending_most.max(self.pending());
    }

    /// Notes who is to be told when the last record is durable. There has to be [room](Stream::has_room_for); only the
    /// farewell of a connection, which has one, is noted without.
    pub(crate) fn promise(&mut self, promise: Promise, reply: &[u8]) {
        let promises = match (&self.open, self.under_way.back_mut()) {
            (None, Some(last)) => last,
            _ => &mut self.promises,
        };
        let to = match promise.to {
            PromisedTo::Reply(..) => PromisedTo::Reply(promises.replies.len() as u32, reply.len() as u16),
            other => other,
        };
        promises.replies.extend_from_slice(reply);
        promises.entries.push(Promise { to, ..promise });
        self.promised.0 += 1;
        self.promised.1 += reply.len();
    }

    /// Takes the batch that has been filled; its promises are under way from now on.
    pub(crate) fn seal(&mut self) -> Option<Batch> {
        let batch = self.open.take()?;
        let fresh = self.spare.pop().unwrap_or_default();
        self.under_way.push_back(std::mem::replace(&mut self.promises, fresh));
        Some(batch)
    }

    /// Takes the promises of the oldest batch under way.
    pub(crate) fn next_promises(&mut self) -> Promises {
        let promises = self.under_way.pop_front().unwrap_or_default();
        self.promised.0 -= promises.entries.len();
        self.promised.1 -= promises.replies.len();
        promises
    }

    /// Takes the farewells that wait for batches.
    pub(crate) fn take_farewells(&mut self) -> Vec<Client> {
        let mut clients = Vec::new();
        for promises in self.under_way.iter_mut().chain([&mut self.promises]) {
            promises.entries.retain(|entry| {
                let is_farewell = entry.to == PromisedTo::Farewell;
                if is_farewell {
                    clients.push(entry.client);
                }
                !is_farewell
            });
        }
        self.promised.0 -= clients.len();
        clients
    }

    /// Keeps the memory of promises that have been kept.
    pub(crate) fn recycle(&mut self, mut promises: Promises) {
        if self.spare.len() < SPARE_PROMISES_MAX {
            promises.clear();
            self.spare.push(promises);
        }
    }

    /// Reads what is kept in memory.
    pub(crate) fn read_memory(&self, order: &ReadOrder) -> Chunk {
        let mut chunk = Chunk::empty(order);
        let first = match order.from {
            From::Sequence(sequence) => sequence.max(self.first),
            From::Time(time_ns) => self.first_since(time_ns),
        };
        chunk.next = first;
        let mut times = self.times.partition_point(|(from, _)| *from <= first).saturating_sub(1);
        let begin = self.memory.partition_point(|batch| batch.next() <= first);
        for batch in self.memory.range(begin..) {
            for (sequence, record) in batch.records() {
                if sequence < first {
                    continue;
                }
                if chunk.is_full() || chunk.len() >= order.records_max as usize {
                    return chunk;
                }
                while self.times.get(times + 1).is_some_and(|(from, _)| *from <= sequence) {
                    times += 1;
                }
                let time_ns = self.times.get(times).map_or(batch.time_ns(), |(_, time_ns)| *time_ns);
                chunk.push(sequence, time_ns, &record);
                chunk.next = sequence + 1;
            }
        }
        (chunk.next, chunk.is_end) = (chunk.next.max(self.next), true);
        chunk
    }

    /// Bytes that are kept, and when the first and the last of it came, as far as that is known.
    pub(crate) fn kept(&self) -> (u64, Option<UnixNanos>, Option<UnixNanos>) {
        if let Some(extent) = &self.extent {
            return (extent.bytes(), extent.first_ns(), self.newest_ns.or(extent.last_ns()));
        }
        let bytes = self.memory.iter().map(|batch| batch.size() as u64).sum();
        let oldest = self.memory.front().and(self.times.front()).map(|(_, time_ns)| *time_ns);
        (bytes, oldest, self.newest_ns)
    }

    /// The first record in memory that may have come at a time or later.
    fn first_since(&self, time_ns: u64) -> u64 {
        // Those of a step have come after its beginning, and before its end.
        let may_be = |(_, begin): &&(u64, u64)| begin.saturating_add(MEMORY_TIME_STEP_NS) > time_ns;
        self.times.iter().find(may_be).map_or(self.next, |(from, _)| (*from).max(self.first))
    }

    /// Keeps a record in memory; the oldest go.
    ///
    /// # Errors
    /// It is longer than a batch.
    pub(crate) fn keep(
        &mut self,
        record: &Record<'_>,
        now_ns: u64,
        batch_size: usize,
    ) -> Result<(), Refused> {
        let mut outcome = Err(Refused::Full);
        if let Some(batch) = self.memory.back_mut() {
            outcome = batch.push(record);
        }
        if outcome == Err(Refused::Full) {
            let bytes_max = self.config.retention.bytes_max.unwrap_or(MEMORY_STREAM_SIZE) as usize;
            let is_full = (self.memory.len() + 1) * batch_size > bytes_max.max(2 * batch_size);
            let oldest = if is_full { self.memory.pop_front() } else { None };
            let mut batch = oldest.unwrap_or_else(|| Batch::new(batch_size));
            batch.begin(self.next, now_ns);
            outcome = batch.push(record);
            self.memory.push_back(batch);
            self.first = self.memory.front().map_or(self.next, Batch::first);
            while self.times.get(1).is_some_and(|(from, _)| *from <= self.first) {
                self.times.pop_front();
            }
        }
        let is_new = |(_, time_ns): &(u64, u64)| now_ns.abs_diff(*time_ns) >= MEMORY_TIME_STEP_NS;
        if outcome.is_ok() && self.times.back().is_none_or(is_new) {
            self.times.push_back((self.next, now_ns));
        }
        outcome.map(|_| ())
    }
}
