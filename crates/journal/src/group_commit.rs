//! One round of the journal thread: collects requests, writes each stream's batches together, retries streams that wait
//! for space, and reports.
//!
//! All memory is allocated at the start: as many batches as exist, and a bounded number of notices per stream.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use stilling_ring::{Sender, Wake, planted};

use crate::batch::Batch;
use crate::batch_builder::RequestReceiver;
use crate::disk::Disk;
use crate::failure::{AppendError, Frozen};
use crate::format::snapshot::Snapshot;
use crate::limits::{NOTICES_PER_STREAM, RETRY_DELAY_MS_MAX, RETRY_DELAY_MS_MIN};
use crate::log::Log;
use crate::request::{JournalAnswer, JournalReply, JournalRequest, StreamIndex};

/// First delay before a stream that waits for space is retried.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(RETRY_DELAY_MS_MIN);
/// Largest delay between two retries.
const RETRY_DELAY_MAX: Duration = Duration::from_millis(RETRY_DELAY_MS_MAX);

struct PendingBatches {
    batches: Vec<Batch>,
    /// Start of the de-duplication window after the pending batches. Applied only when they are durable: a segment
    /// created before may be the last one after a crash, and its header must match the records before it.
    dedup_start: Option<u64>,
    /// When a stream that waits for space is retried, and the delay before that.
    retry: Option<(Instant, Duration)>,
    is_frozen: bool,
    /// Written once the records that it includes are durable.
    snapshot: Option<Snapshot>,
}

pub(crate) struct GroupCommit {
    streams: Vec<PendingBatches>,
    /// Streams with pending batches, in the order in which their first batches arrived.
    dirty: VecDeque<StreamIndex>,
    /// Number of unwritten snapshots.
    snapshots: usize,
    capacity: usize,
    done: Sender<JournalReply>,
    notices: Sender<JournalAnswer>,
    /// Notices for which there was no room yet.
    unsent: VecDeque<JournalAnswer>,
}

impl GroupCommit {
    pub(crate) fn new(
        streams: usize,
        capacity: usize,
        done: Sender<JournalReply>,
        notices: Sender<JournalAnswer>,
    ) -> GroupCommit {
        let pending = || PendingBatches {
            batches: Vec::new(),
            dedup_start: None,
            retry: None,
            is_frozen: false,
            snapshot: None,
        };
        GroupCommit {
            streams: (0..streams).map(|_| pending()).collect(),
            dirty: VecDeque::with_capacity(streams),
            snapshots: 0,
            capacity,
            done,
            notices,
            unsent: VecDeque::with_capacity(NOTICES_PER_STREAM * streams),
        }
    }

    pub(crate) fn receive_requests<D: Disk>(
        &mut self,
        requests: &mut RequestReceiver,
        logs: &mut [Log<D>],
    ) -> bool {
        let mut has_any = false;
        while let Some(request) = requests.pop() {
            has_any = true;
            match request {
                JournalRequest::Append { stream, batch, deduplicate_from } => {
                    let Some(pending) = self.streams.get_mut(stream as usize) else {
                        self.reply(unknown_stream(stream), Some(batch));
                        continue;
                    };
                    pending.dedup_start = deduplicate_from.or(pending.dedup_start);
                    if pending.batches.is_empty() {
                        pending.batches.reserve(self.capacity);
                        self.dirty.push_back(stream);
                    }
                    pending.batches.push(batch);
                }
                JournalRequest::Retain { stream, retention, now_ns, keep_from } => {
                    let (removed, first) = match logs.get_mut(stream as usize) {
                        Some(log) => {
                            let removed = log.retain(&retention, now_ns, keep_from);
                            (removed, log.source().first().unwrap_or_else(|| log.next()))
                        }
                        None => (Err(io::ErrorKind::NotFound.into()), 0),
                    };
                    self.reply(JournalAnswer::Retained { stream, removed, first }, None);
                }
                JournalRequest::Snapshot { stream, snapshot } => {
                    // The hub waits for the answer to one before it requests the next.
                    if let Some(pending) = self.streams.get_mut(stream as usize) {
                        self.snapshots += usize::from(pending.snapshot.replace(snapshot).is_none());
                    }
                }
            }
        }
        has_any
    }

    /// Writes the streams in turn, each in as few writes as possible; streams that wait for space only when their retry
    /// is due.
    pub(crate) fn write<D: Disk>(&mut self, logs: &mut [Log<D>], now: Instant, consumer: &Wake) {
        for _ in 0..self.dirty.len() {
            let Some(stream) = self.dirty.pop_front() else { break };
            let is_waiting = self.streams[stream as usize].retry.is_some_and(|(at, _)| now < at);
            let Some(log) = logs.get_mut(stream as usize) else { continue };
            if is_waiting || self.write_stream(stream, log, now) {
                self.dirty.push_back(stream);
                continue;
            }
            // Answers do not wait for the syncs of other streams.
            self.publish();
            consumer.notify();
        }
    }

    fn write_stream<D: Disk>(&mut self, stream: StreamIndex, log: &mut Log<D>, now: Instant) -> bool {
        let pending = &mut self.streams[stream as usize];
        let outcome = log.append(&mut pending.batches);
        let watermark = log.durable();
        let retry = pending.retry.take();
        if let Some(reason) = log.take_failed_write() {
            self.notify(JournalAnswer::WriteFailed { stream, reason });
        }
        let pending = &mut self.streams[stream as usize];
        match outcome {
            Ok(_) => {
                if let Some(from) = pending.dedup_start.take() {
                    log.deduplicate_from(from);
                }
                self.answer_durable(stream, watermark);
                if retry.is_some() {
                    self.notify(JournalAnswer::Resumed { stream });
                }
                false
            }
            Err(AppendError::Waiting { reason, kind }) => {
                let delay = retry.map_or(RETRY_DELAY_MIN, |(_, delay)| (delay * 2).min(RETRY_DELAY_MAX));
                pending.retry = Some((now + delay, delay));
                let unwritten = pending.batches.last().map_or(watermark, |batch| batch.next() - 1);
                let is_lost = planted!("lost retry");
                self.answer_durable(stream, if is_lost { unwritten } else { watermark });
                if retry.is_none() {
                    self.notify(JournalAnswer::Waiting { stream, reason, kind });
                }
                true
            }
            Err(AppendError::Frozen(frozen)) => {
                let unwritten = pending.batches.last().map_or(watermark, |batch| batch.next() - 1);
                let is_early = planted!("unsynced acknowledgement");
                self.answer_durable(stream, if is_early { unwritten } else { watermark });
                self.answer_frozen(stream, watermark, &frozen);
                false
            }
        }
    }

    /// Writes the snapshots whose records are durable. Those of frozen streams fail.
    pub(crate) fn write_snapshots<D: Disk>(&mut self, logs: &mut [Log<D>]) {
        if self.snapshots == 0 {
            return;
        }
        for (number, log) in logs.iter_mut().enumerate() {
            let Some(pending) = self.streams.get_mut(number) else { continue };
            let Some(snapshot) = pending.snapshot.take() else { continue };
            let sequence = snapshot.sequence;
            let outcome = match log.frozen() {
                _ if sequence <= log.durable() => log.write_snapshot(&snapshot),
                Some(frozen) => Err(io::Error::new(frozen.kind, frozen.reason.to_string())),
                None => {
                    pending.snapshot = Some(snapshot);
                    continue;
                }
            };
            self.snapshots -= 1;
            let stream = number as StreamIndex;
            self.reply(JournalAnswer::SnapshotWritten { stream, sequence, outcome }, None);
        }
    }

    fn answer_durable(&mut self, stream: StreamIndex, watermark: u64) {
        let pending = &mut self.streams[stream as usize];
        let count = pending.batches.iter().take_while(|batch| batch.next() <= watermark + 1).count();
        for batch in pending.batches.drain(..count) {
            // There is room: the number of unanswered requests never exceeds the mailbox's capacity.
            let _ = self.done.push(JournalReply {
                answer: JournalAnswer::Durable { stream, watermark },
                batch: Some(batch),
            });
        }
    }

    fn answer_frozen(&mut self, stream: StreamIndex, watermark: u64, frozen: &Frozen) {
        let pending = &mut self.streams[stream as usize];
        pending.is_frozen = true;
        for batch in pending.batches.drain(..) {
            let answer =
                JournalAnswer::Frozen { stream, watermark, frozen: frozen.clone(), is_batch_lost: false };
            let _ = self.done.push(JournalReply { answer, batch: Some(batch) });
        }
    }

    pub(crate) fn check_files<D: Disk>(&mut self, logs: &mut [Log<D>]) {
        for (at, log) in logs.iter_mut().enumerate() {
            let Err(frozen) = log.check_files() else { continue };
            if !std::mem::replace(&mut self.streams[at].is_frozen, true) {
                let (stream, watermark) = (at as StreamIndex, log.durable());
                self.notify(JournalAnswer::Frozen { stream, watermark, frozen, is_batch_lost: false });
            }
        }
    }

    /// Retries streams that wait for space once more, and freezes those that fail.
    pub(crate) fn stop_retrying<D: Disk>(&mut self, logs: &mut [Log<D>]) {
        while let Some(stream) = self.dirty.pop_front() {
            let Some(log) = logs.get_mut(stream as usize) else { continue };
            let outcome = log.append(&mut self.streams[stream as usize].batches);
            self.answer_durable(stream, log.durable());
            if let Err(error) = outcome {
                let frozen = log.stop_retrying(error);
                self.answer_frozen(stream, log.durable(), &frozen);
            }
        }
    }

    pub(crate) fn retry_at(&self) -> Option<Instant> {
        let waiting = self.dirty.iter().filter_map(|stream| self.streams[*stream as usize].retry);
        waiting.map(|(at, _)| at).min()
    }

    /// Makes all answers visible. Returns whether there was one.
    pub(crate) fn publish(&mut self) -> bool {
        while let Some(notice) = self.unsent.pop_front() {
            if let Err(full) = self.notices.push(notice) {
                self.unsent.push_front(full.0);
                break;
            }
        }
        let has_noticed = self.notices.publish();
        self.done.publish() || has_noticed
    }

    /// Queues a notice. If many are unsent, `Resumed` removes the stream's `Waiting`, and a failed write replaces the
    /// previous one; so at most [`NOTICES_PER_STREAM`] per stream are queued.
    fn notify(&mut self, notice: JournalAnswer) {
        if self.unsent.len() >= 2 * self.streams.len() {
            let is_replaced = |other: &JournalAnswer| match (&notice, other) {
                (JournalAnswer::Resumed { stream }, JournalAnswer::Waiting { stream: its, .. })
                | (
                    JournalAnswer::WriteFailed { stream, .. },
                    JournalAnswer::WriteFailed { stream: its, .. },
                ) => its == stream,
                _ => false,
            };
            if let Some(at) = self.unsent.iter().rposition(is_replaced) {
                self.unsent.remove(at);
                if matches!(notice, JournalAnswer::Resumed { .. }) {
                    return;
                }
            }
        }
        self.unsent.push_back(notice);
    }

    fn reply(&mut self, answer: JournalAnswer, batch: Option<Batch>) {
        // There is room: the number of unanswered requests never exceeds the mailbox's capacity.
        let _ = self.done.push(JournalReply { answer, batch });
    }
}

fn unknown_stream(stream: StreamIndex) -> JournalAnswer {
    let reason = format!("no stream {stream}").into();
    let frozen = Frozen { reason, kind: io::ErrorKind::NotFound };
    JournalAnswer::Frozen { stream, watermark: 0, frozen, is_batch_lost: false }
}
