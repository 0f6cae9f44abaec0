//! The replay thread: reads streams for consumers that are behind, so that the hub does not wait for reads.
//!
//! ```text
//!   hub ─ requests ─▶ replay thread: one reader per reader id, the most recently used ones kept open
//!   hub ◀── chunks ──┘                (one wake per round)
//! ```
//!
//! Memory is bounded: at most as many requests are unanswered as there is room for chunks, and a chunk has at most
//! [`CHUNK_SIZE`] bytes unless a single record is longer.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use stilling_ring::{Receiver, Sender, Wake, mailbox};

use crate::disk::Disk;
use crate::format::record::Record;
use crate::limits::{CHUNK_SIZE, OPEN_READERS_MAX};
use crate::reader::{Gap, LogSource, ReadOutcome, Reader, StartAt};
use crate::request::StreamIndex;
use crate::spare_thread::SpareThread;

/// A request for records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRequest {
    /// Identifies the reader; returned with the chunk. Consecutive requests of one reader are read without searching.
    pub reader_id: u64,
    /// The stream.
    pub stream: StreamIndex,
    /// Start position.
    pub from: StartAt,
    /// Maximum number of records.
    pub records_max: u32,
}

/// Consecutive records of a stream.
#[derive(Debug)]
pub struct Chunk {
    /// The request's reader.
    pub reader_id: u64,
    /// The request's stream.
    pub stream: StreamIndex,
    /// The sequence at which the next request continues. After a failure with no records, a request that started at a
    /// time is repeated unchanged instead.
    pub next: u64,
    /// Whether all durable records have been read.
    pub is_end: bool,
    /// The exact range of skipped sequences; it follows the records and ends the chunk. A chunk has at most one such
    /// range and no other hole between the request's start (or its first record, if the request started at a time)
    /// and `next`.
    pub gap: Option<Gap>,
    /// The I/O error that ended the read, with file and offset. The request is to be repeated later: this is neither
    /// a gap nor the end.
    pub failure: Option<io::Error>,
    bytes: Vec<u8>,
    entries: Vec<ChunkEntry>,
}

#[derive(Clone, Copy, Debug)]
struct ChunkEntry {
    sequence: u64,
    time_ns: u64,
    start: usize,
}

impl Chunk {
    /// A chunk for records that are not read from a log.
    #[must_use]
    pub fn empty(request: &ReadRequest) -> Chunk {
        Chunk {
            reader_id: request.reader_id,
            stream: request.stream,
            next: 0,
            is_end: false,
            gap: None,
            failure: None,
            bytes: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of its records.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has reached [`CHUNK_SIZE`].
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= CHUNK_SIZE
    }

    /// Whether it has no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The sequence, the time (Unix time in nanoseconds) and the record at `index`.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<(u64, u64, Record<'_>)> {
        let ChunkEntry { sequence, time_ns, start } = *self.entries.get(index)?;
        let (record, _) = Record::read(&self.bytes[start..])?;
        Some((sequence, time_ns, record))
    }

    /// Adds a record.
    pub fn push(&mut self, sequence: u64, time_ns: u64, record: &Record<'_>) {
        let Some(size) = record.size() else { return };
        let start = self.bytes.len();
        self.bytes.resize(start + size, 0);
        record.write(&mut self.bytes[start..]);
        self.entries.push(ChunkEntry { sequence, time_ns, start });
    }
}

/// Reads one chunk.
pub fn read_chunk<D: Disk>(reader: &mut Reader<D>, request: &ReadRequest) -> Chunk {
    let mut chunk = Chunk::empty(request);
    loop {
        chunk.next = reader.next_sequence();
        let room = chunk.bytes.len() < CHUNK_SIZE && chunk.entries.len() < request.records_max as usize;
        if !room {
            return chunk;
        }
        match reader.read() {
            Ok(ReadOutcome::Batch(batch)) => {
                for (sequence, record) in batch.records {
                    let is_first = chunk.entries.is_empty();
                    let fits = chunk.bytes.len() + record.size().unwrap_or(0) <= CHUNK_SIZE;
                    if chunk.entries.len() >= request.records_max as usize || !(is_first || fits) {
                        // The reader has advanced; the next request starts at this record and searches it again.
                        chunk.next = sequence;
                        return chunk;
                    }
                    chunk.push(sequence, batch.time_ns, &record);
                }
            }
            Ok(ReadOutcome::Gap(gap)) => {
                chunk.gap = Some(gap);
                chunk.next = reader.next_sequence();
                return chunk;
            }
            Ok(ReadOutcome::End) => {
                chunk.is_end = true;
                return chunk;
            }
            Err(error) => {
                chunk.failure = Some(error);
                return chunk;
            }
        }
    }
}

/// The requesting end. Dropping it ends the thread.
pub struct Replay {
    requests: Sender<ReadRequest>,
    chunks: Receiver<Chunk>,
    wake: Arc<Wake>,
    outstanding: usize,
    outstanding_max: usize,
    thread: Option<JoinHandle<Option<()>>>,
}

/// A started thread that does not have streams to read yet.
#[derive(Debug)]
pub struct ReplayThread(SpareThread<()>);

impl Replay {
    /// Starts the thread for these streams; it wakes `consumer` after each chunk.
    ///
    /// # Errors
    /// The system provides no thread.
    pub fn start<D: Disk>(
        sources: Vec<LogSource<D>>,
        requests_max: usize,
        consumer: Arc<Wake>,
    ) -> io::Result<Replay> {
        Ok(Replay::start_on(Replay::spare_thread()?, sources, requests_max, consumer))
    }

    /// Starts a thread for [`start_on`](Replay::start_on).
    ///
    /// # Errors
    /// The system provides no thread.
    pub fn spare_thread() -> io::Result<ReplayThread> {
        SpareThread::start("replay").map(ReplayThread)
    }

    /// Like [`start`](Replay::start), on a thread that was started before.
    pub fn start_on<D: Disk>(
        ReplayThread(thread): ReplayThread,
        sources: Vec<LogSource<D>>,
        requests_max: usize,
        consumer: Arc<Wake>,
    ) -> Replay {
        let sleeper = Arc::new(OnceLock::new());
        let wake = Arc::new(Wake::for_thread(&sleeper));
        let (mut replay, worker) = Replay::connect(sources, requests_max, consumer, Arc::clone(&wake));
        // Set before the first wake: only the returned end wakes it.
        let _ = sleeper.set(thread.thread().clone());
        replay.thread = Some(thread.run(move || run(worker, &wake)));
        replay
    }

    /// A replay without a thread: the caller runs the worker, request by request, whenever it [has
    /// work](ReplayWorker::has_work).
    #[must_use]
    pub fn stepped<D: Disk>(
        sources: Vec<LogSource<D>>,
        requests_max: usize,
        consumer: Arc<Wake>,
    ) -> (Replay, ReplayWorker<D>) {
        Replay::connect(sources, requests_max, consumer, Arc::new(Wake::new(|| ())))
    }

    /// Connects both ends. The requesting end notifies `wake` when there is work.
    fn connect<D: Disk>(
        sources: Vec<LogSource<D>>,
        requests_max: usize,
        consumer: Arc<Wake>,
        wake: Arc<Wake>,
    ) -> (Replay, ReplayWorker<D>) {
        let outstanding_max = requests_max.max(1);
        let (requests, request_receiver) = mailbox(outstanding_max);
        let (done, chunks) = mailbox(outstanding_max);
        let worker =
            ReplayWorker { sources, open_readers: OpenReaders::new(), request_receiver, done, consumer };
        (Replay { requests, chunks, wake, outstanding: 0, outstanding_max, thread: None }, worker)
    }

    /// Queues a request; it is sent with the next [`publish`](Replay::publish). Returns whether there was room.
    pub fn request_chunk(&mut self, request: ReadRequest) -> bool {
        let is_queued = self.outstanding < self.outstanding_max && self.requests.push(request).is_ok();
        self.outstanding += usize::from(is_queued);
        is_queued
    }

    /// Makes queued requests visible to the thread; call it once per turn.
    pub fn publish(&mut self) {
        if self.requests.publish() {
            self.wake.notify();
        }
    }

    /// The next chunk. Never blocks.
    pub fn next_chunk(&mut self) -> Option<Chunk> {
        let chunk = self.chunks.pop()?;
        self.outstanding -= 1;
        Some(chunk)
    }

    /// Whether no chunk is pending. To be called after [`Wake::set_parked`], so that no wake-up is lost.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.chunks.is_empty()
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        // The thread notices the end only after the sender is dropped.
        let (requests, _) = mailbox(1);
        drop(std::mem::replace(&mut self.requests, requests));
        self.wake.force();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run<D: Disk>(mut worker: ReplayWorker<D>, wake: &Wake) {
    loop {
        // Checked before the turn: once it is closed, no request can arrive after that turn.
        let is_last = worker.request_receiver.is_closed();
        if worker.turn() {
            continue;
        }
        if is_last {
            return;
        }
        wake.set_parked();
        if !worker.has_work() && !worker.request_receiver.is_closed() {
            thread::park();
        }
        wake.clear_parked();
    }
}

/// The work of the replay thread, one request at a time.
pub struct ReplayWorker<D: Disk> {
    sources: Vec<LogSource<D>>,
    open_readers: OpenReaders<D>,
    request_receiver: Receiver<ReadRequest>,
    done: Sender<Chunk>,
    consumer: Arc<Wake>,
}

impl<D: Disk> ReplayWorker<D> {
    /// Handles the oldest request. Returns whether there was one.
    pub fn turn(&mut self) -> bool {
        let Some(request) = self.request_receiver.pop() else { return false };
        let ReplayWorker { sources, open_readers, done, consumer, .. } = self;
        // There is room: the number of unanswered requests never exceeds the mailbox's capacity. A panic costs this
        // request and the open readers, not the other consumers.
        let outcome = catch_unwind(AssertUnwindSafe(|| open_readers.read(sources, &request)));
        let _ = done.push(outcome.unwrap_or_else(|_| {
            *open_readers = OpenReaders::new();
            Chunk { failure: Some(io::Error::other("reading panicked")), ..Chunk::empty(&request) }
        }));
        done.publish();
        consumer.notify();
        true
    }

    /// Whether a request waits.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.request_receiver.is_empty()
    }
}

impl<D: Disk> fmt::Debug for ReplayWorker<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayWorker")
            .field("readers", &self.open_readers.readers.len())
            .finish_non_exhaustive()
    }
}

/// Readers kept open for their next request. New readers evict each other, not those used repeatedly:
///
/// ```text
///   ◀ evicted │ used once, or not recently │ used repeatedly, most recent last, at most half of all │
/// ```
struct OpenReaders<D: Disk> {
    readers: Vec<(u64, StreamIndex, Reader<D>)>,
    /// Number of readers at the end that were used repeatedly.
    reused: usize,
}

impl<D: Disk> OpenReaders<D> {
    fn new() -> OpenReaders<D> {
        OpenReaders { readers: Vec::new(), reused: 0 }
    }

    fn read(&mut self, sources: &[LogSource<D>], request: &ReadRequest) -> Chunk {
        let Some(source) = sources.get(request.stream as usize) else {
            return Chunk { failure: Some(io::ErrorKind::NotFound.into()), ..Chunk::empty(request) };
        };
        let known = |(reader_id, stream, _): &(u64, StreamIndex, Reader<D>)| {
            (*reader_id, *stream) == (request.reader_id, request.stream)
        };
        let at = self.readers.iter().position(known);
        let open_reader = at.map(|at| {
            self.reused -= usize::from(at >= self.readers.len() - self.reused);
            self.readers.remove(at).2
        });
        let is_at_start = |reader: &Reader<D>| StartAt::Sequence(reader.next_sequence()) == request.from;
        let mut reader = open_reader.filter(is_at_start).unwrap_or_else(|| source.read_from(request.from));
        let chunk = read_chunk(&mut reader, request);
        if self.readers.len() == OPEN_READERS_MAX {
            self.readers.remove(0);
        }
        let reader = (request.reader_id, request.stream, reader);
        if at.is_some() {
            self.readers.push(reader);
            self.reused = (self.reused + 1).min(OPEN_READERS_MAX / 2);
        } else {
            self.readers.insert(self.readers.len() - self.reused, reader);
        }
        chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::simulated::SimulatedDisk;
    use crate::{Batch, Log, LogConfig};

    /// A follower continues without searching, whatever the number of requests for single records meanwhile.
    #[test]
    fn single_requests_do_not_evict_readers_used_repeatedly() {
        let (mut log, _) = Log::open(SimulatedDisk::new(), "s", LogConfig::default()).expect("it opens");
        let mut batch = Batch::new(65_536);
        batch.begin(1, 0);
        for _ in 0..500 {
            batch.push(&Record::new(b"a", b"x")).expect("there is room");
        }
        log.append(&mut [batch]).expect("the disk works");
        let sources = [log.source()];
        let mut open_readers = OpenReaders::new();
        let mut request_chunk = |reader_id, from| {
            let request =
                ReadRequest { reader_id, stream: 0, from: StartAt::Sequence(from), records_max: 10 };
            assert_eq!(open_readers.read(&sources, &request).len(), 10);
            assert!(open_readers.readers.len() <= OPEN_READERS_MAX);
            open_readers.readers.iter().map(|(reader_id, ..)| *reader_id).collect::<Vec<_>>()
        };
        let followers = 0..OPEN_READERS_MAX as u64 / 2;
        for round in 0..10 {
            for reader_id in followers.clone() {
                request_chunk(reader_id, 1 + 10 * round);
            }
        }
        for single in 0..3 * OPEN_READERS_MAX as u64 {
            let reader_ids = request_chunk(1000 + single, 1);
            assert!(followers.clone().all(|reader_id| reader_ids.contains(&reader_id)), "{reader_ids:?}");
        }
        // A new reader that is used again stays, and the oldest is evicted.
        request_chunk(5000, 1);
        request_chunk(5000, 11);
        let mut reader_ids = Vec::new();
        for single in 0..3 * OPEN_READERS_MAX as u64 {
            reader_ids = request_chunk(9000 + single, 1);
        }
        assert!(reader_ids.contains(&5000) && !reader_ids.contains(&0), "{reader_ids:?}");
    }
}
