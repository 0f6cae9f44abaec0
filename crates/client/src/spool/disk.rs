//! The spool on disk: one journal stream.
//!
//! A message is a record with its subject, header block (with its `Nats-Msg-Id`) and payload. Completed messages are
//! recorded in the same stream: a checkpoint is a record without a subject that contains a position up to which all
//! messages are completed. So there is one file format and one recovery, and no second file that could disagree:
//!
//! ```text
//!   │ message 1 │ message 2 │ message 3 │ checkpoint: 2 │ message 5 │ …     opened again: 3 and 5 are to be sent
//! ```
//!
//! Checkpoints are delayed (written after a number of completed messages or a pause). Messages completed between the
//! last checkpoint and a crash are sent again under their old `Nats-Msg-Id`, and the server recognises them. A lost
//! checkpoint has the same effect; it loses no message.
//!
//! The position and cost of every message are kept in memory, 16 bytes each; the messages themselves are cached only up
//! to [`SPOOL_CACHE_SIZE`], and the others are read when they are due.

use std::collections::VecDeque;
use std::time::Instant;

use stilling_journal::{
    AppendError, Batch, BatchPushError, Disk, Findings, Gap, Log, LogConfig, LogRetention, OpenError,
    ReadOutcome, Reader, Record, StartAt,
};

use super::{Spool, extract_rejected};
use crate::limits::{
    CHECKPOINT_DELAY, CHECKPOINT_INTERVAL, SPOOL_CACHE_SIZE, SPOOL_SEGMENT_SIZES, SPOOLED_MESSAGE_SIZE_MAX,
};
use crate::outcome::{DropReason, PublishOutcome};
use crate::spool_entry::{OutgoingMessage, SpoolEntry};

const STREAM: &str = "spool";
const BLOCK: u64 = 4096;
/// Bytes of the headers of a batch and a record, rounded up.
const HEADERS_SIZE: u64 = 256;

/// The cost of a message: the blocks that it takes when it is written alone.
pub(crate) fn cost(message: &OutgoingMessage) -> u64 {
    (message.subject().len() as u64 + message.size() as u64 + HEADERS_SIZE).next_multiple_of(BLOCK)
}

pub(crate) struct DiskSpool<D: Disk> {
    /// `None` after `close`.
    log: Option<Log<D>>,
    reader: Option<Reader<D>>,
    batch: Batch,
    checkpoint: Batch,
    pushed: Vec<SpoolEntry>,
    /// Position and cost of each message that is committed and not popped.
    pending: VecDeque<(u64, u64)>,
    /// The first of these messages, with their bytes.
    cache: VecDeque<SpoolEntry>,
    cache_size: u64,
    last: u64,
    /// All positions below it are completed.
    released: u64,
    checkpointed: u64,
    checkpoint_at: Option<Instant>,
    lost: Vec<u64>,
}

pub(crate) struct OpenedSpool<D: Disk> {
    pub(crate) spool: DiskSpool<D>,
    /// Number and cost of the messages to be sent.
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) findings: Findings,
}

impl<D: Disk> DiskSpool<D> {
    /// Opens the stream in the directory; `bytes_max` is the bound of the spool.
    pub(crate) fn open(disk: D, bytes_max: u64) -> Result<OpenedSpool<D>, OpenError> {
        let (least, most) = SPOOL_SEGMENT_SIZES;
        let config = LogConfig { segment_size: (bytes_max / 8).clamp(least, most), ..LogConfig::default() };
        let (log, recovery) = Log::open(disk, STREAM, config)?;
        let (mut pending, mut checkpointed) = (VecDeque::new(), 0);
        let mut reader = log.source().read_from(StartAt::Sequence(recovery.first));
        loop {
            match reader.read() {
                Ok(ReadOutcome::Batch(view)) => {
                    for (sequence, record) in view.records.clone() {
                        match checkpoint_of(&record) {
                            Some(checkpoint) => checkpointed = checkpointed.max(checkpoint.min(sequence - 1)),
                            None => pending.push_back((sequence, cost(&message_of(&record)))),
                        }
                    }
                }
                Ok(ReadOutcome::Gap(_)) => {}
                Ok(ReadOutcome::End) => break,
                Err(source) => {
                    return Err(OpenError::Disk { location: STREAM.to_owned(), source });
                }
            }
        }
        pending.retain(|(sequence, _)| *sequence > checkpointed);
        let spool = DiskSpool {
            log: Some(log),
            reader: None,
            batch: Batch::new(SPOOLED_MESSAGE_SIZE_MAX + BLOCK as usize),
            checkpoint: Batch::new(BLOCK as usize),
            pushed: Vec::new(),
            cache: VecDeque::new(),
            cache_size: 0,
            last: pending.back().map_or(checkpointed, |(id, _)| *id),
            released: checkpointed + 1,
            checkpointed,
            checkpoint_at: None,
            lost: Vec::new(),
            pending,
        };
        let messages = spool.pending.len() as u64;
        let bytes = spool.pending.iter().map(|(_, cost)| cost).sum();
        Ok(OpenedSpool { spool, messages, bytes, findings: recovery.findings })
    }

    /// Writes as many of `entries` as fit one batch; messages too large for any batch are added to `refused`.
    fn write(
        &mut self,
        entries: &mut VecDeque<SpoolEntry>,
        refused: &mut Vec<(SpoolEntry, DropReason)>,
        unix_ns: u64,
    ) -> Result<(), AppendError> {
        let Some(log) = &mut self.log else {
            refused.extend(entries.drain(..).map(|entry| (entry, DropReason::Closed)));
            return Ok(());
        };
        let mut written = VecDeque::new();
        self.batch.begin(log.next(), unix_ns);
        while let Some(mut entry) = entries.pop_front() {
            let record = Record {
                headers: entry.message.headers(),
                ..Record::new(entry.message.subject(), entry.message.payload())
            };
            match self.batch.push(&record) {
                Ok(sequence) => {
                    entry.id = sequence;
                    written.push_back(entry);
                }
                Err(BatchPushError::Full) => {
                    entries.push_front(entry);
                    break;
                }
                Err(BatchPushError::TooLarge) => {
                    let (size, size_max) = (entry.message.size(), SPOOLED_MESSAGE_SIZE_MAX);
                    refused.push((entry, DropReason::TooLarge { size, size_max }));
                }
            }
        }
        if let Err(error) = log.append(std::slice::from_mut(&mut self.batch)) {
            // Whether the messages are on disk is unknown. They are reported as dropped, so this publisher does not
            // send them; the next one may, unless a later write excludes them. The file is not truncated: a crash may
            // undo that, and recovery reports a file that is short without a clean end as torn.
            while let Some(entry) = written.pop_back() {
                entries.push_front(entry);
            }
            return Err(error);
        }
        for entry in written {
            self.add_written(entry);
        }
        Ok(())
    }

    /// Adds a written message to the pending ones, and to the cache if it fits and the cache holds all earlier ones.
    fn add_written(&mut self, mut entry: SpoolEntry) {
        if let Some(ticket) = &mut entry.ticket {
            ticket.mark_retained();
        }
        let is_next = self.cache.len() == self.pending.len();
        self.last = entry.id;
        self.pending.push_back((entry.id, entry.cost));
        if is_next && (self.cache.is_empty() || self.cache_size + entry.cost <= SPOOL_CACHE_SIZE) {
            self.cache_size += entry.cost;
            self.cache.push_back(entry);
        } else if let Some(ticket) = entry.ticket.take() {
            ticket.complete(PublishOutcome::Queued);
        }
    }

    fn fill(&mut self) {
        while self.cache.is_empty()
            && let Some(&(next, _)) = self.pending.front()
            && let Some(log) = &self.log
        {
            let is_before = self.reader.as_ref().is_some_and(|reader| reader.next_sequence() <= next);
            if !is_before {
                self.reader = Some(log.source().read_from(StartAt::Sequence(next)));
            }
            let Some(reader) = &mut self.reader else { return };
            match reader.read() {
                Ok(ReadOutcome::Batch(view)) => {
                    let behind = view.last;
                    // `pending` determines which records are messages still to be sent.
                    let mut pending = self.pending.iter().take_while(|(id, _)| *id <= behind).peekable();
                    for (sequence, record) in view.records.clone() {
                        if let Some(&(id, cost)) = pending.next_if(|(id, _)| *id == sequence) {
                            let mut entry = SpoolEntry::new(message_of(&record), cost);
                            entry.id = id;
                            self.cache_size += cost;
                            self.cache.push_back(entry);
                        }
                    }
                }
                Ok(ReadOutcome::Gap(Gap { last, .. })) => {
                    let lost_count = self.pending.partition_point(|(id, _)| *id <= last);
                    self.lost.extend(self.pending.drain(..lost_count).map(|(_, cost)| cost));
                }
                // The remaining pending messages are no longer readable: they are lost.
                Ok(ReadOutcome::End) => {
                    self.lost.extend(self.pending.drain(..).map(|(_, cost)| cost));
                }
                // A temporary failure; the next call retries.
                Err(_) => return,
            }
        }
    }
}

impl<D: Disk> Spool for DiskSpool<D> {
    fn push(&mut self, entry: SpoolEntry) {
        self.pushed.push(entry);
    }

    fn commit(&mut self, unix_ns: u64) -> Vec<(SpoolEntry, DropReason)> {
        let mut refused = Vec::new();
        let mut entries: VecDeque<SpoolEntry> = std::mem::take(&mut self.pushed).into();
        while !entries.is_empty() {
            if let Err(error) = self.write(&mut entries, &mut refused, unix_ns) {
                let reason = error.reason().to_string();
                refused
                    .extend(entries.drain(..).map(|entry| (entry, DropReason::SpoolFailed(reason.clone()))));
            }
        }
        refused
    }

    fn pop(&mut self) -> Option<SpoolEntry> {
        if self.cache.is_empty() {
            self.fill();
        }
        let entry = self.cache.pop_front()?;
        self.cache_size -= entry.cost;
        self.pending.pop_front();
        Some(entry)
    }

    fn next_id(&self) -> u64 {
        self.pending.front().map_or(u64::MAX, |(id, _)| *id)
    }

    fn retain(&mut self, keep: &mut dyn FnMut(&mut SpoolEntry) -> bool) -> Vec<SpoolEntry> {
        let out = extract_rejected(&mut self.cache, keep);
        for entry in &out {
            self.cache_size -= entry.cost;
            if let Ok(at) = self.pending.binary_search_by_key(&entry.id, |(id, _)| *id) {
                self.pending.remove(at);
            }
        }
        out
    }

    fn release_below(&mut self, id: u64, now: Instant) {
        // Only checkpoints follow the last message, and they do not need one themselves.
        let id = id.min(self.last + 1);
        if id > self.released {
            self.released = id;
            let is_interval_reached = self.released - 1 - self.checkpointed >= CHECKPOINT_INTERVAL;
            self.checkpoint_at = Some(if is_interval_reached { now } else { now + CHECKPOINT_DELAY });
        }
    }

    fn checkpoint_at(&self) -> Option<Instant> {
        self.checkpoint_at
    }

    fn checkpoint(&mut self, unix_ns: u64) {
        self.checkpoint_at = None;
        let checkpointed = self.released - 1;
        let Some(log) =
            self.log.as_mut().filter(|log| checkpointed > self.checkpointed && log.frozen().is_none())
        else {
            return;
        };
        self.checkpoint.begin(log.next(), unix_ns);
        let is_pushed = self.checkpoint.push(&Record::new(b"", &checkpointed.to_le_bytes())).is_ok();
        // A failed checkpoint only causes duplicates, and the next message finds the log frozen.
        if is_pushed && log.append(std::slice::from_mut(&mut self.checkpoint)).is_ok() {
            self.checkpointed = checkpointed;
            // Space that is not freed now is freed with the next checkpoint.
            let _ = log.retain(
                &LogRetention { records: Some(0), ..LogRetention::default() },
                unix_ns,
                self.released,
            );
        }
    }

    fn lost(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.lost)
    }

    fn close(&mut self, unix_ns: u64) {
        self.checkpoint(unix_ns);
        self.reader = None;
        if let Some(log) = self.log.take() {
            // Everything needed is durable; a clean close only saves the next opening a scan.
            let _ = log.close();
        }
    }
}

fn message_of(record: &Record<'_>) -> OutgoingMessage {
    OutgoingMessage::new(record.subject, record.headers, record.payload)
}

/// The position in a checkpoint; `None` for a message.
fn checkpoint_of(record: &Record<'_>) -> Option<u64> {
    if !record.subject.is_empty() {
        return None;
    }
    // A checkpoint of another length has no effect, and is not a message.
    Some(<[u8; 8]>::try_from(record.payload).map_or(0, u64::from_le_bytes))
}

#[cfg(test)]
mod tests;
