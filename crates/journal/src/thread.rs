//! The one thread that writes all streams.
//!
//! ```text
//!   hub ── batches ──▶ journal thread: takes all there are, writes those of one stream together, one after the other
//!   hub ◀── watermarks, and the batches to fill again ──┘        (one wake per round)
//! ```
//!
//! Group commit comes by itself: while one round is written, the next one gathers in the mailbox. All memory goes
//! round: a fixed number of batches exists, an empty hand is the writer's sign to stop reading its sources, and since each
//! answer carries one batch the way back can never be full.

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use stilling_ring::{Receiver, Sender, Wake, mailbox};

use crate::batch::Batch;
use crate::disk::Disk;
use crate::limits::{BATCH_SIZE_DEFAULT, STREAMS_MAX};
use crate::limits::{CHECK_INTERVAL_MS, NOTICES_PER_STREAM};
use crate::log::Log;
use crate::retention::{Removed, Retention};
use crate::rounds::Rounds;
use crate::spare_thread::SpareThread;
use crate::trouble::Frozen;

/// How much memory goes round between the writer and the journal thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Batches that exist, and requests that can wait. None left: the writer keeps what it has until one comes back.
    pub batches: usize,
    /// Bytes of a batch with its header. A record that does not fit into an empty one is refused.
    pub batch_size: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { batches: 64, batch_size: BATCH_SIZE_DEFAULT }
    }
}

/// Which of the streams given to [`Journal::start`], by its place among them.
pub type StreamIndex = u32;

/// What the journal thread answers.
#[derive(Debug)]
pub enum Answer {
    /// A batch is durable with all before it.
    Durable {
        /// The stream.
        stream: StreamIndex,
        /// The last sequence that is durable.
        watermark: u64,
    },
    /// The stream is frozen: nothing beyond the watermark is acknowledged until the next start. Comes with each batch that
    /// is not durable, and once without a batch if the trouble was noticed while nothing was to be written.
    Frozen {
        /// The stream.
        stream: StreamIndex,
        /// The last sequence that is durable.
        watermark: u64,
        /// Why.
        frozen: Frozen,
        /// Whether a batch is lost that does not come back with this answer: it went with a thread that panicked.
        is_batch_lost: bool,
    },
    /// Nothing can be written to the stream now, and nothing is lost: the journal keeps the batches and tries again, until
    /// it reports [`Resumed`](Answer::Resumed) or [`Frozen`](Answer::Frozen). Comes once, without a batch.
    Waiting {
        /// The stream.
        stream: StreamIndex,
        /// What was being done, to which file, and what the system reported.
        reason: Arc<str>,
        /// The kind of error, such as `StorageFull`.
        kind: io::ErrorKind,
    },
    /// A write failed, and what it had was or will be written again in a new segment: it is lost only if the stream is frozen.
    /// Comes without a batch, before the answers for the batches of that write's retry.
    WriteFailed {
        /// The stream.
        stream: StreamIndex,
        /// What was being done, to which file, and what the system reported.
        reason: Arc<str>,
    },
    /// A stream that was waiting is written again. Comes once, without a batch.
    Resumed {
        /// The stream.
        stream: StreamIndex,
    },
    /// What a round of retention removed.
    Retained {
        /// The stream.
        stream: StreamIndex,
        /// How much, or why not.
        removed: io::Result<Removed>,
        /// The first sequence that is kept now; the next one if there is none.
        first: u64,
    },
}

impl Answer {
    /// The stream that it is about.
    pub fn stream(&self) -> StreamIndex {
        match *self {
            Answer::Durable { stream, .. }
            | Answer::Frozen { stream, .. }
            | Answer::Waiting { stream, .. }
            | Answer::WriteFailed { stream, .. }
            | Answer::Resumed { stream }
            | Answer::Retained { stream, .. } => stream,
        }
    }
}

pub(crate) enum Request {
    Append { stream: StreamIndex, batch: Batch, deduplicate_from: Option<u64> },
    Retain { stream: StreamIndex, retention: Retention, now_ns: u64, keep_from: u64 },
}

pub(crate) struct Reply {
    pub(crate) answer: Answer,
    pub(crate) batch: Option<Batch>,
}

/// What the writer's end knows of a stream, so that it can say what became of it when the thread is no more.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The last sequence that is durable, as far as has been told.
    watermark: u64,
    /// Batches that are with the thread.
    unanswered: usize,
    /// It has been told that the stream is frozen, since the thread died.
    is_given_up: bool,
}

impl Known {
    fn is_owed(&self) -> bool {
        self.unanswered > 0 || !self.is_given_up
    }
}

/// Wakes the writer when the thread ends, in whichever way. To be made before everything whose end is to be seen then.
struct LastWord(Arc<Wake>);

impl Drop for LastWord {
    fn drop(&mut self) {
        self.0.force();
    }
}

/// A thread that waits for streams to write.
#[derive(Debug)]
pub struct JournalThread(SpareThread<Vec<Frozen>>);

/// The writer's end. Dropping it ends the thread, which first writes what it was given and closes all streams.
pub struct Journal {
    requests: Sender<Request>,
    replies: Receiver<Reply>,
    /// Answers that belong to no batch.
    notices: Receiver<Answer>,
    wake: Arc<Wake>,
    idle: Vec<Batch>,
    /// Batches that have not come back.
    outstanding: usize,
    outstanding_max: usize,
    /// A round of retention has not been answered.
    is_retaining: bool,
    streams: Vec<Known>,
    thread: Option<JoinHandle<Option<Vec<Frozen>>>>,
}

impl Journal {
    /// Starts a thread of this name for [`start_on`](Journal::start_on).
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn spare_thread() -> io::Result<JournalThread> {
        SpareThread::start("journal").map(JournalThread)
    }

    /// Starts the thread for these streams; it wakes `consumer` after each round.
    ///
    /// # Errors
    /// If there are more than [`STREAMS_MAX`] streams, or the system gives no thread.
    pub fn start<D: Disk>(logs: Vec<Log<D>>, limits: Limits, consumer: Arc<Wake>) -> io::Result<Journal> {
        Journal::start_on(Journal::spare_thread()?, logs, limits, consumer)
    }

    /// The same on a thread that was started before.
    ///
    /// # Errors
    /// If there are more than [`STREAMS_MAX`] streams.
    pub fn start_on<D: Disk>(
        JournalThread(thread): JournalThread,
        logs: Vec<Log<D>>,
        limits: Limits,
        consumer: Arc<Wake>,
    ) -> io::Result<Journal> {
        let sleeper = Arc::new(OnceLock::new());
        let wake = Arc::new(Wake::of_thread(&sleeper));
        let (mut journal, worker) =
            Journal::connect(logs, limits, &consumer, (Arc::clone(&wake), Instant::now()))?;
        let work = move || {
            let _last_word = LastWord(consumer);
            run(worker, &wake)
        };
        // Set before the first wake: only the journal that is returned here wakes it.
        let _ = sleeper.set(thread.thread().clone());
        journal.thread = Some(thread.run(work));
        Ok(journal)
    }

    /// The same without a thread: the caller runs the worker, step by step, whenever it [has work](Worker::has_work) and
    /// when it is [due](Worker::due_at), from `now` on.
    ///
    /// # Errors
    /// If there are more than [`STREAMS_MAX`] streams.
    pub fn stepped<D: Disk>(
        logs: Vec<Log<D>>,
        limits: Limits,
        consumer: &Arc<Wake>,
        now: Instant,
    ) -> io::Result<(Journal, Worker<D>)> {
        Journal::connect(logs, limits, consumer, (Arc::new(Wake::new(|| ())), now))
    }

    /// Both ends, connected. The journal notifies `wake` when there is work.
    fn connect<D: Disk>(
        logs: Vec<Log<D>>,
        limits: Limits,
        consumer: &Arc<Wake>,
        (wake, now): (Arc<Wake>, Instant),
    ) -> io::Result<(Journal, Worker<D>)> {
        if logs.len() > STREAMS_MAX {
            let what = format!("{} streams, and one journal writes at most {STREAMS_MAX}", logs.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let batches = limits.batches.max(1);
        let (requests, to_do) = mailbox(batches + 1);
        // At most `batches` batches and one round of retention are unanswered, so there is always room for one more answer.
        let (done, replies) = mailbox(batches + 1);
        let (told, notices) = mailbox(NOTICES_PER_STREAM * logs.len().max(1));
        let streams =
            logs.iter().map(|log| Known { watermark: log.durable(), unanswered: 0, is_given_up: false });
        let streams = streams.collect();
        let rounds = Rounds::new(logs.len(), batches, done, told);
        let check_at = now + CHECK_INTERVAL;
        let worker = Worker { logs, rounds, to_do, consumer: Arc::clone(consumer), check_at };
        let idle = (0..batches).map(|_| Batch::new(limits.batch_size)).collect();
        let journal = Journal {
            requests,
            replies,
            notices,
            wake,
            idle,
            outstanding: 0,
            outstanding_max: batches,
            is_retaining: false,
            streams,
            thread: None,
        };
        Ok((journal, worker))
    }

    /// An empty batch, if one is free.
    pub fn batch(&mut self) -> Option<Batch> {
        self.idle.pop()
    }

    /// Takes back a batch that will not be written.
    pub fn give_back(&mut self, batch: Batch) {
        self.idle.push(batch);
    }

    /// Hands a batch of a stream over; it goes out with the next [`publish`](Journal::publish).
    ///
    /// # Errors
    /// The batch, if as many are with the thread as there may be; that happens only to batches that did not come
    /// from here.
    pub fn append(&mut self, stream: StreamIndex, batch: Batch) -> Result<(), Batch> {
        self.hand_over(stream, batch, None)
    }

    /// The same, noting where the de-duplication window begins: [`Log::deduplicate_from`].
    ///
    /// # Errors
    /// As [`append`](Journal::append).
    pub fn append_noting(&mut self, stream: StreamIndex, batch: Batch, from: u64) -> Result<(), Batch> {
        self.hand_over(stream, batch, Some(from))
    }

    fn hand_over(&mut self, stream: StreamIndex, mut batch: Batch, from: Option<u64>) -> Result<(), Batch> {
        if self.outstanding == self.outstanding_max {
            return Err(batch);
        }
        if let Some(known) = self.streams.get_mut(stream as usize) {
            // Nothing from here on is durable, whatever the directory had: it might have been numbered by another.
            known.watermark = known.watermark.min(batch.first().saturating_sub(1));
        }
        if self.replies.is_closed() {
            // Nobody takes it any more; it is answered as if it had gone with the thread.
            self.idle.push(batch);
            self.outstanding += 1;
            if let Some(known) = self.streams.get_mut(stream as usize) {
                known.unanswered += 1;
            }
            return Ok(());
        }
        batch.take_sum();
        match self.requests.push(Request::Append { stream, batch, deduplicate_from: from }) {
            Ok(()) => {
                self.outstanding += 1;
                if let Some(known) = self.streams.get_mut(stream as usize) {
                    known.unanswered += 1;
                }
                Ok(())
            }
            Err(full) => match full.0 {
                Request::Append { batch, .. } => Err(batch),
                Request::Retain { .. } => Ok(()),
            },
        }
    }

    /// Asks for a round of retention, as [`Log::retain`]. Returns whether it could be asked: one round at a time.
    pub fn retain(&mut self, stream: StreamIndex, retention: Retention, now_ns: u64, keep_from: u64) -> bool {
        let request = Request::Retain { stream, retention, now_ns, keep_from };
        let is_asked = !self.is_retaining && self.requests.push(request).is_ok();
        self.is_retaining |= is_asked;
        is_asked
    }

    /// Makes everything handed over visible to the thread; call it once per turn.
    pub fn publish(&mut self) {
        if self.requests.publish() {
            self.wake.notify();
        }
    }

    /// The next answer. Never blocks.
    pub fn next_answer(&mut self) -> Option<Answer> {
        let (answer, batch) = self.next_answer_and_batch()?;
        self.idle.extend(batch);
        Some(answer)
    }

    /// The next answer with the batch it is about, for a writer that looks at its records once more before it
    /// [gives it back](Journal::give_back). Never blocks.
    ///
    /// If the thread has died of a panic, all streams are frozen: there is an answer for every batch that was with it, and
    /// has gone with it, and at least one for each stream.
    pub fn next_answer_and_batch(&mut self) -> Option<(Answer, Option<Batch>)> {
        // Asked first: what is there afterwards is all there will be.
        let is_dead = self.replies.is_closed();
        if let Some(notice) = self.notices.pop() {
            return Some((notice, None));
        }
        let Some(Reply { answer, batch }) = self.replies.pop() else {
            return if is_dead { self.give_up().map(|answer| (answer, None)) } else { None };
        };
        if let Answer::Durable { stream, watermark } | Answer::Frozen { stream, watermark, .. } = answer
            && let Some(known) = self.streams.get_mut(stream as usize)
        {
            known.watermark = known.watermark.max(watermark);
            known.unanswered = known.unanswered.saturating_sub(usize::from(batch.is_some()));
        }
        self.outstanding -= usize::from(batch.is_some());
        self.is_retaining &= !matches!(answer, Answer::Retained { .. });
        Some((answer, batch))
    }

    /// What the thread would have said, had it not died: whether its last batches are durable nobody knows.
    fn give_up(&mut self) -> Option<Answer> {
        let at = self.streams.iter().position(Known::is_owed)?;
        let known = &mut self.streams[at];
        known.is_given_up = true;
        let is_batch_lost = known.unanswered > 0;
        if known.unanswered > 0 {
            known.unanswered -= 1;
            self.outstanding -= 1;
        }
        let frozen = Frozen { reason: DIED.into(), kind: io::ErrorKind::Other };
        let stream = at as StreamIndex;
        Some(Answer::Frozen { stream, watermark: known.watermark, frozen, is_batch_lost })
    }

    /// Whether there is no answer to take; asked after [`Wake::park`], it misses none.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let is_dead = self.replies.is_closed();
        self.replies.is_empty()
            && self.notices.is_empty()
            && !(is_dead && self.streams.iter().any(Known::is_owed))
    }

    /// How many batches have not come back.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Ends the thread after what it was given, and waits for it. Returns why streams are frozen, if some are.
    pub fn close(mut self) -> Vec<Frozen> {
        self.end()
    }

    fn end(&mut self) -> Vec<Frozen> {
        self.requests.publish();
        // The thread sees that this end is gone only when it is.
        let (requests, _) = mailbox(1);
        drop(std::mem::replace(&mut self.requests, requests));
        self.wake.force();
        self.thread.take().and_then(|thread| thread.join().ok().flatten()).unwrap_or_default()
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end();
        }
    }
}

/// Why streams are frozen whose thread is no more.
const DIED: &str = "the thread that writes the journal has died of a panic";

/// How often the files are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(CHECK_INTERVAL_MS);

/// The thread's life.
fn run<D: Disk>(mut worker: Worker<D>, wake: &Wake) -> Vec<Frozen> {
    loop {
        // Asked first: what is there afterwards is all there will be.
        let is_last = worker.is_closed();
        if worker.turn(Instant::now()) {
            continue;
        }
        if is_last {
            return worker.close();
        }
        wake.park();
        if !worker.has_work() && !worker.is_closed() {
            thread::park_timeout(worker.due_at().saturating_duration_since(Instant::now()));
        }
        wake.unpark();
    }
}

/// What the journal thread does, one step at a time.
pub struct Worker<D: Disk> {
    logs: Vec<Log<D>>,
    rounds: Rounds,
    to_do: Receiver<Request>,
    consumer: Arc<Wake>,
    check_at: Instant,
}

impl<D: Disk> Worker<D> {
    /// Takes all requests that are there, writes what can be written, and checks the files when that is due. Returns whether
    /// there was a request.
    pub fn turn(&mut self, now: Instant) -> bool {
        let has_any = self.rounds.gather(&mut self.to_do, &mut self.logs);
        self.rounds.write(&mut self.logs, now, &self.consumer);
        if now >= self.check_at {
            self.rounds.check_files(&mut self.logs);
            self.check_at = now + CHECK_INTERVAL;
        }
        if self.rounds.publish() {
            self.consumer.notify();
        }
        has_any
    }

    /// Whether there is a request.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.to_do.is_empty()
    }

    /// When the next [`turn`](Worker::turn) is due although there is no request.
    #[must_use]
    pub fn due_at(&self) -> Instant {
        self.rounds.retry_at().map_or(self.check_at, |at| at.min(self.check_at))
    }

    /// Whether the [`Journal`] is gone. Requests that it left may still be there.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.to_do.is_closed()
    }

    /// Gives up what waits for room, and ends all streams. Returns why streams are frozen, if some are.
    pub fn close(mut self) -> Vec<Frozen> {
        self.rounds.give_up(&mut self.logs);
        self.rounds.publish();
        self.consumer.notify();
        self.logs.into_iter().filter_map(|log| log.close().err()).collect()
    }
}

impl<D: Disk> fmt::Debug for Worker<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("logs", &self.logs).finish_non_exhaustive()
    }
}
