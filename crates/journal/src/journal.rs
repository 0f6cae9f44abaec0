//! The journal's threads, as seen by the hub.
//!
//! ```text
//!   hub ── batches ──▶ builder ──▶ writer: takes all queued batches, writes those of each stream together
//!   hub ◀── watermarks, and the batches for reuse ──────┘        (one wake per round)
//! ```
//!
//! Group commit needs no timer: while one round is written, the next one collects in the mailbox. The number of batches
//! is fixed: the hub stops reading its sources when none is free, and the answer mailbox never overflows, because each
//! answer returns a batch. A batch is reused after all references to its records are dropped.

use std::io;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use stilling_ring::{Receiver, Wake, mailbox};

use crate::batch::Batch;
use crate::batch_builder::{BatchBuilder, RequestSender, request_channel};
use crate::disk::Disk;
use crate::failure::Frozen;
use crate::format::snapshot::Snapshot;
use crate::group_commit::GroupCommit;
use crate::limits::{
    BATCH_SIZE_DEFAULT, HUB_BUILD_BUSY_SIZE_MAX, HUB_BUILD_IDLE_SIZE_MAX, NOTICES_PER_STREAM, STREAMS_MAX,
};
use crate::log::{Log, LogRetention};
use crate::request::{JournalAnswer, JournalReply, JournalRequest, StreamIndex};
use crate::spare_thread::SpareThread;
use crate::worker::{JournalWorker, run};

/// Number and size of the batches that circulate between the hub and the journal thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalLimits {
    /// Batches in total, and queued requests. All in use: the hub waits until one returns.
    pub batches: usize,
    /// Bytes of a batch with its header. A record that does not fit into an empty one is rejected.
    pub batch_size: usize,
}

impl Default for JournalLimits {
    fn default() -> JournalLimits {
        JournalLimits { batches: 64, batch_size: BATCH_SIZE_DEFAULT }
    }
}

/// State of a stream at the hub's end, for the answers after a panic of the thread.
#[derive(Clone, Copy, Debug)]
struct StreamProgress {
    watermark: u64,
    unanswered: usize,
    /// The stream was reported as frozen after the thread's panic.
    is_reported_frozen: bool,
    /// A snapshot is with the thread.
    has_snapshot: bool,
}

impl StreamProgress {
    fn is_answer_due(&self) -> bool {
        self.unanswered > 0 || !self.is_reported_frozen
    }
}

/// Wakes another thread when this one ends, also on a panic. Create it first, so that it is dropped after all values
/// that the other thread checks.
struct WakeOnDrop(Arc<Wake>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.force();
    }
}

/// Started threads that do not have streams to write yet.
#[derive(Debug)]
pub struct JournalThreads {
    writer: SpareThread<Vec<Frozen>>,
    builder: SpareThread<()>,
}

struct JournalThreadHandles {
    writer: JoinHandle<Option<Vec<Frozen>>>,
    builder: JoinHandle<Option<()>>,
}

/// Batches that are not with the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdleBatches {
    /// None: all are with the journal, or being filled.
    None,
    /// The records of all of them are still referenced.
    Shared,
    /// At least one can be filled.
    Free,
}

/// The hub's end. Dropping it ends the threads, which first write all queued batches and close all streams.
pub struct Journal {
    requests: RequestSender,
    replies: Receiver<JournalReply>,
    notices: Receiver<JournalAnswer>,
    idle: Vec<Batch>,
    outstanding: usize,
    outstanding_max: usize,
    is_retaining: bool,
    streams: Vec<StreamProgress>,
    threads: Option<JournalThreadHandles>,
}

impl Journal {
    /// Starts threads for [`start_on`](Journal::start_on).
    ///
    /// # Errors
    /// The system provides no thread.
    pub fn spare_threads() -> io::Result<JournalThreads> {
        let (writer, builder) = (SpareThread::start("journal")?, SpareThread::start("journal-build")?);
        Ok(JournalThreads { writer, builder })
    }

    /// Starts the threads for these streams; they wake `consumer` after each round.
    ///
    /// # Errors
    /// If there are more than [`STREAMS_MAX`] streams, or the system provides no thread.
    pub fn start<D: Disk>(
        logs: Vec<Log<D>>,
        limits: JournalLimits,
        consumer: Arc<Wake>,
    ) -> io::Result<Journal> {
        Journal::start_on(Journal::spare_threads()?, logs, limits, consumer)
    }

    /// Like [`start`](Journal::start), on threads that were started before.
    ///
    /// # Errors
    /// If there are more than [`STREAMS_MAX`] streams.
    pub fn start_on<D: Disk>(
        spare: JournalThreads,
        logs: Vec<Log<D>>,
        limits: JournalLimits,
        consumer: Arc<Wake>,
    ) -> io::Result<Journal> {
        let sleepers = [(); 2].map(|()| Arc::new(OnceLock::new()));
        let [writer_wake, builder_wake] = [0, 1].map(|at| Arc::new(Wake::for_thread(&sleepers[at])));
        let wakes = (Arc::clone(&writer_wake), Arc::clone(&builder_wake));
        let (mut journal, builder, worker) =
            Journal::connect(logs, limits, &consumer, (wakes, Instant::now()))?;
        // Set before the first wake: only the returned journal wakes them.
        let _ = sleepers[0].set(spare.writer.thread().clone());
        let _ = sleepers[1].set(spare.builder.thread().clone());
        let wakes_on_drop = (WakeOnDrop(consumer), WakeOnDrop(Arc::clone(&builder_wake)));
        let (wake, to_writer) = (Arc::clone(&writer_wake), WakeOnDrop(writer_wake));
        let writer = spare.writer.run(move || {
            let _wakes_on_drop = wakes_on_drop;
            run(worker, &wake)
        });
        let builder = spare.builder.run(move || {
            let _wake_on_drop = to_writer;
            builder.run(&builder_wake);
        });
        journal.threads = Some(JournalThreadHandles { writer, builder });
        Ok(journal)
    }

    /// A journal without threads: the caller runs the worker, step by step, whenever it [has
    /// work](JournalWorker::has_work) and when it is [due](JournalWorker::due_at), from `now` on.
    ///
    /// # Errors
    /// If there are more than [`STREAMS_MAX`] streams.
    pub fn stepped<D: Disk>(
        logs: Vec<Log<D>>,
        limits: JournalLimits,
        consumer: &Arc<Wake>,
        now: Instant,
    ) -> io::Result<(Journal, JournalWorker<D>)> {
        let wakes = (Arc::new(Wake::new(|| ())), Arc::new(Wake::new(|| ())));
        let (journal, builder, worker) = Journal::connect(logs, limits, consumer, (wakes, now))?;
        Ok((journal, worker.with_builder(builder)))
    }

    /// Connects both ends. The journal notifies the wakes of writer and builder when there is work.
    fn connect<D: Disk>(
        logs: Vec<Log<D>>,
        limits: JournalLimits,
        consumer: &Arc<Wake>,
        (wakes, now): ((Arc<Wake>, Arc<Wake>), Instant),
    ) -> io::Result<(Journal, BatchBuilder, JournalWorker<D>)> {
        if logs.len() > STREAMS_MAX {
            let what = format!("{} streams, the maximum of one journal is {STREAMS_MAX}", logs.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let batches = limits.batches.max(1);
        // At most `batches` batches, one retention request, and one snapshot per stream are unanswered, so there is
        // always room for one more answer.
        let unanswered_max = batches + 1 + logs.len();
        let (requests, builder, request_receiver) = request_channel(unanswered_max, wakes);
        let (done, replies) = mailbox(unanswered_max);
        let (notice_sender, notices) = mailbox(NOTICES_PER_STREAM * logs.len().max(1));
        let streams = logs.iter().map(|log| StreamProgress {
            watermark: log.durable(),
            unanswered: 0,
            is_reported_frozen: false,
            has_snapshot: false,
        });
        let streams = streams.collect();
        let group_commit = GroupCommit::new(logs.len(), batches, done, notice_sender);
        let worker = JournalWorker::new(logs, group_commit, request_receiver, Arc::clone(consumer), now);
        let idle = (0..batches).map(|_| Batch::new(limits.batch_size)).collect();
        let journal = Journal {
            requests,
            replies,
            notices,
            idle,
            outstanding: 0,
            outstanding_max: batches,
            is_retaining: false,
            streams,
            threads: None,
        };
        Ok((journal, builder, worker))
    }

    /// An empty batch, if one is [free](IdleBatches::Free).
    pub fn batch(&mut self) -> Option<Batch> {
        // The last one returned is still in the CPU caches.
        let at = self.idle.iter_mut().rposition(Batch::reset)?;
        Some(self.idle.swap_remove(at))
    }

    /// The state of the batches available to [`batch`](Journal::batch).
    #[must_use]
    pub fn idle(&self) -> IdleBatches {
        if self.idle.is_empty() {
            IdleBatches::None
        } else if self.idle.iter().all(Batch::is_shared) {
            IdleBatches::Shared
        } else {
            IdleBatches::Free
        }
    }

    /// Returns a batch that will not be written any more. Its records may still be referenced.
    pub fn return_batch(&mut self, mut batch: Batch) {
        // Unbuilt payloads hold blocks.
        batch.reset();
        self.idle.push(batch);
    }

    /// Queues a batch of a stream; it is sent with the next [`publish`](Journal::publish).
    ///
    /// # Errors
    /// The batch, if the maximum number is with the thread; only possible for batches that did not come from
    /// [`batch`](Journal::batch).
    pub fn append(&mut self, stream: StreamIndex, batch: Batch) -> Result<(), Batch> {
        self.enqueue(stream, batch, None)
    }

    /// Like [`append`](Journal::append), with the start of the de-duplication window: [`Log::deduplicate_from`].
    ///
    /// # Errors
    /// As [`append`](Journal::append).
    pub fn append_with_dedup_start(
        &mut self,
        stream: StreamIndex,
        batch: Batch,
        from: u64,
    ) -> Result<(), Batch> {
        self.enqueue(stream, batch, Some(from))
    }

    fn enqueue(&mut self, stream: StreamIndex, mut batch: Batch, from: Option<u64>) -> Result<(), Batch> {
        if self.outstanding == self.outstanding_max {
            return Err(batch);
        }
        if let Some(progress) = self.streams.get_mut(stream as usize) {
            // Sequences from here on are not durable, whatever the directory contained: another writer may have
            // assigned them.
            progress.watermark = progress.watermark.min(batch.first().saturating_sub(1));
        }
        if self.replies.is_closed() {
            // The thread has ended: the batch is answered like those lost with it.
            self.return_batch(batch);
            self.outstanding += 1;
            if let Some(progress) = self.streams.get_mut(stream as usize) {
                progress.unanswered += 1;
            }
            return Ok(());
        }
        let at_once = if self.outstanding == 0 { HUB_BUILD_IDLE_SIZE_MAX } else { HUB_BUILD_BUSY_SIZE_MAX };
        let is_built = batch.unbuilt_size() <= at_once;
        if is_built {
            batch.build();
        }
        let request = JournalRequest::Append { stream, batch, deduplicate_from: from };
        let outcome =
            if is_built { self.requests.push(request) } else { self.requests.push_unbuilt(request) };
        match outcome {
            Ok(()) => {
                self.outstanding += 1;
                if let Some(progress) = self.streams.get_mut(stream as usize) {
                    progress.unanswered += 1;
                }
                Ok(())
            }
            Err(JournalRequest::Append { batch, .. }) => Err(batch),
            Err(JournalRequest::Retain { .. } | JournalRequest::Snapshot { .. }) => Ok(()),
        }
    }

    /// Requests a round of retention, as [`Log::retain`]. Returns whether it was queued: one round at a time.
    pub fn retain(
        &mut self,
        stream: StreamIndex,
        retention: LogRetention,
        now_ns: u64,
        keep_from: u64,
    ) -> bool {
        let request = JournalRequest::Retain { stream, retention, now_ns, keep_from };
        let is_queued = !self.is_retaining && self.requests.push(request).is_ok();
        self.is_retaining |= is_queued;
        is_queued
    }

    /// Requests a snapshot, to be written once the records that it includes, all queued before, are durable. Returns
    /// whether it was queued: one per stream at a time.
    pub fn write_snapshot(&mut self, stream: StreamIndex, snapshot: Snapshot) -> bool {
        let Some(progress) = self.streams.get_mut(stream as usize) else { return false };
        if progress.has_snapshot || self.replies.is_closed() {
            return false;
        }
        progress.has_snapshot = self.requests.push(JournalRequest::Snapshot { stream, snapshot }).is_ok();
        progress.has_snapshot
    }

    /// Makes all queued requests visible to the thread; call it once per turn.
    pub fn publish(&mut self) {
        self.requests.publish();
    }

    /// The next answer. Never blocks.
    pub fn next_answer(&mut self) -> Option<JournalAnswer> {
        let (answer, batch) = self.next_answer_and_batch()?;
        self.idle.extend(batch);
        Some(answer)
    }

    /// The next answer with its batch, for a writer that uses the batch's records before it [returns
    /// it](Journal::return_batch). Never blocks.
    ///
    /// If the thread has panicked, all streams are frozen: there is one answer for each batch that was lost with it,
    /// and at least one for each stream.
    pub fn next_answer_and_batch(&mut self) -> Option<(JournalAnswer, Option<Batch>)> {
        // Checked before the mailbox is read, so that an answer sent just before the end is not missed.
        let has_thread_ended = self.replies.is_closed();
        if let Some(notice) = self.notices.pop() {
            return Some((notice, None));
        }
        let Some(JournalReply { answer, batch }) = self.replies.pop() else {
            return if has_thread_ended {
                self.answer_after_panic().map(|answer| (answer, None))
            } else {
                None
            };
        };
        if let JournalAnswer::Durable { stream, watermark } | JournalAnswer::Frozen { stream, watermark, .. } =
            answer
            && let Some(progress) = self.streams.get_mut(stream as usize)
        {
            progress.watermark = progress.watermark.max(watermark);
            progress.unanswered = progress.unanswered.saturating_sub(usize::from(batch.is_some()));
        }
        self.outstanding -= usize::from(batch.is_some());
        self.is_retaining &= !matches!(answer, JournalAnswer::Retained { .. });
        if let JournalAnswer::SnapshotWritten { stream, .. } = answer
            && let Some(progress) = self.streams.get_mut(stream as usize)
        {
            progress.has_snapshot = false;
        }
        Some((answer, batch))
    }

    /// Answers on behalf of a thread that has panicked: whether its last batches are durable is unknown.
    fn answer_after_panic(&mut self) -> Option<JournalAnswer> {
        self.requests.lose_builder();
        let at = self.streams.iter().position(StreamProgress::is_answer_due)?;
        let progress = &mut self.streams[at];
        progress.is_reported_frozen = true;
        let is_batch_lost = progress.unanswered > 0;
        if progress.unanswered > 0 {
            progress.unanswered -= 1;
            self.outstanding -= 1;
        }
        let frozen = Frozen { reason: THREAD_PANICKED.into(), kind: io::ErrorKind::Other };
        let stream = at as StreamIndex;
        Some(JournalAnswer::Frozen { stream, watermark: progress.watermark, frozen, is_batch_lost })
    }

    /// Whether no answer is pending. To be called after [`Wake::set_parked`], so that no wake-up is lost.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let has_thread_ended = self.replies.is_closed();
        self.replies.is_empty()
            && self.notices.is_empty()
            && !(has_thread_ended && self.streams.iter().any(StreamProgress::is_answer_due))
    }

    /// Number of batches that have not returned.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Ends the threads after the queued requests and waits for them. Returns the reasons of frozen streams.
    pub fn close(mut self) -> Vec<Frozen> {
        self.end()
    }

    fn end(&mut self) -> Vec<Frozen> {
        self.requests.close();
        let Some(JournalThreadHandles { writer, builder }) = self.threads.take() else { return Vec::new() };
        // The thread itself has reported its panic.
        let _ = builder.join();
        writer.join().ok().flatten().unwrap_or_default()
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if self.threads.is_some() {
            self.end();
        }
    }
}

const THREAD_PANICKED: &str = "a thread of the journal has panicked";

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::disk::simulated::SimulatedDisk;
    use crate::format::record::Record;
    use crate::log::LogConfig;

    /// Invariant 5 for the builder's thread: batches lost with it are answered as not durable, and the streams are
    /// frozen.
    #[test]
    fn a_builder_that_panics_freezes_all_streams_and_leaves_nothing_unanswered() {
        for others in 0..3 {
            let open =
                || Log::open(SimulatedDisk::new(), "events", LogConfig::default()).expect("it opens").0;
            let limits = JournalLimits { batches: 6, batch_size: 8192 };
            let wake = Arc::new(Wake::new(|| ()));
            let mut journal = Journal::start(vec![open(), open()], limits, wake).expect("threads");
            for number in 0..=2 * others {
                let mut batch = journal.batch().expect("one is free");
                batch.begin(number + 1, 1);
                batch.push(&Record::new(b"a", b"x")).expect("there is room");
                if number == others {
                    batch.push_panicking(HUB_BUILD_IDLE_SIZE_MAX + 1);
                }
                journal.append(0, batch).expect("it came from here");
            }
            journal.publish();
            let (mut durable, mut frozen) = (0, [false; 2]);
            while frozen != [true; 2] || journal.outstanding() > 0 {
                match journal.next_answer() {
                    Some(JournalAnswer::Durable { watermark, .. }) => durable = watermark,
                    Some(JournalAnswer::Frozen { stream, frozen: why, .. }) => {
                        assert!(why.reason.contains("panicked"), "{}", why.reason);
                        frozen[stream as usize] = true;
                    }
                    Some(other) => panic!("{other:?}"),
                    None => thread::yield_now(),
                }
            }
            assert_eq!(durable, others, "what was handed over before it is written");
            assert!(journal.is_quiet() && journal.next_answer().is_none());
            let batch = Batch::new(8192);
            journal.append(1, batch).expect("it is answered as the others");
            assert!(matches!(journal.next_answer(), Some(JournalAnswer::Frozen { stream: 1, .. })));
        }
    }
}
