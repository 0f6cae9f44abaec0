//! The streams on disk before the hub runs, and how their directories are opened.
//!
//! ```text
//!   Open                when  at the start                              errors end the start
//!   Absent              when  the first record comes         ┐ on a thread that may wait for the disk; each stream
//!   HeldByPredecessor   when  the predecessor releases them  ┘ resumes after the records that it holds then
//! ```
//!
//! On that thread each stream is opened independently: a stream that fails is tried again while the others are used.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::Instant;

use stilling_hub::{
    Durability, HashKey, Hub, HubConfig, JournalStorage, ResumePoint, StreamConfig, UnixNanos,
};
use stilling_journal::disk::Disk;
use stilling_journal::disk::file::FileDisk;
use stilling_journal::{
    Journal, JournalLimits, JournalThreads, Log, LogConfig, OpenError, Recovery, Replay, ReplayThread,
    SpareThread, StreamPreview,
};
use stilling_ring::Wake;

use super::lazy_journal::{JournalState, LazyJournal};
use super::limits::READ_REQUESTS_MAX;
use super::runner::MailboxSenders;
use super::stream_opener::{
    OpeningJob, OpeningThread, StreamOpener, StreamStore, begin_opening, deferred, finding, recover,
    write_method,
};
use crate::config::ServeError;
use crate::lifecycle::Lifecycle;
use crate::settings::WriteMethodChoice;

const OPENING_THREAD: &str = "opening";

/// Maximum bytes of a record beside its payload: subject, headers, record headers.
pub(crate) const RECORD_EXTRA_MAX: usize = 128 * 1024;

/// The streams of a hub that does not run yet.
pub(crate) struct PreparedStreams<S: StreamStore = StreamFolder> {
    config: HubConfig,
    store: S,
    directories: StreamDirectories<S::Disk>,
}

enum StreamDirectories<D: Disk> {
    Open { logs: Vec<Log<D>>, recoveries: Vec<Recovery> },
    Absent,
    HeldByPredecessor,
}

/// A directory with a subdirectory for each stream.
#[derive(Clone, Debug)]
pub(crate) struct StreamFolder {
    pub(crate) path: PathBuf,
    pub(crate) write_method: WriteMethodChoice,
    /// Bounds of the memory between hub and journal.
    pub(crate) limits: JournalLimits,
    spare: Arc<Mutex<SpareThreads>>,
}

/// Threads for streams that are opened after the start. They start with the server; streams that could not be opened
/// with the others get threads on demand.
#[derive(Debug, Default)]
struct SpareThreads {
    opening: Option<SpareThread<()>>,
    journal: Option<JournalThreads>,
    replay: Option<ReplayThread>,
}

impl StreamFolder {
    /// A folder with batches that fit a message of `message_size_max` bytes.
    pub(crate) fn new(
        path: PathBuf,
        write_method: WriteMethodChoice,
        message_size_max: usize,
    ) -> StreamFolder {
        let batch_size = (message_size_max + RECORD_EXTRA_MAX).max(JournalLimits::default().batch_size);
        let limits = JournalLimits { batch_size, ..JournalLimits::default() };
        StreamFolder { path, write_method, limits, spare: Arc::default() }
    }

    fn spare<T>(&self, take: impl FnOnce(&mut SpareThreads) -> T) -> T {
        take(&mut self.spare.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl StreamStore for StreamFolder {
    type Disk = FileDisk;

    fn exists(&self) -> bool {
        fs::exists(&self.path).unwrap_or(true)
    }

    fn check(&self, _: usize, stream: &StreamConfig) -> Result<(), OpenError> {
        check(&self.path.join(&stream.name), &stream.name)
    }

    /// Opens a stream. Its segment size depends on its retention.
    fn open(
        &self,
        _: usize,
        StreamConfig { name, retention, .. }: &StreamConfig,
        created_ns: UnixNanos,
    ) -> Result<(Log<FileDisk>, Recovery), OpenError> {
        let path = self.path.join(name);
        let disk = FileDisk::open_or_create(&path)
            .map_err(|source| OpenError::Disk { location: path.display().to_string(), source })?;
        let disk = match self.write_method {
            WriteMethodChoice::Auto => disk,
            WriteMethodChoice::Buffered => disk.buffered("write-method = buffered"),
        };
        let created_ns = created_ns.as_nanos();
        let config = LogConfig { created_ns, ..LogConfig::for_retention(retention.bytes_max()) };
        Log::open(disk, name, config)
    }

    fn prepare(&self) -> io::Result<()> {
        let threads = SpareThreads {
            opening: Some(SpareThread::start(OPENING_THREAD)?),
            journal: Some(Journal::spare_threads()?),
            replay: Some(Replay::spare_thread()?),
        };
        self.spare(|spare| *spare = threads);
        Ok(())
    }

    fn start(
        &self,
        logs: Vec<(usize, Log<FileDisk>)>,
        wake: &Arc<Wake>,
        _: Instant,
    ) -> io::Result<JournalStorage> {
        let logs: Vec<Log<FileDisk>> = logs.into_iter().map(|(_, log)| log).collect();
        let sources = logs.iter().map(Log::source).collect();
        let writing = self.spare(|spare| spare.journal.take()).map_or_else(Journal::spare_threads, Ok)?;
        let reading = self.spare(|spare| spare.replay.take()).map_or_else(Replay::spare_thread, Ok)?;
        let journal = Journal::start_on(writing, logs, self.limits, Arc::clone(wake))?;
        let replay = Replay::start_on(reading, sources, READ_REQUESTS_MAX, Arc::clone(wake));
        Ok(JournalStorage::new(journal, replay))
    }

    fn run(mut opening: StreamOpener<StreamFolder>) -> io::Result<Option<Thread>> {
        let last_wake = ForceOnDrop(opening.wake());
        let spare = opening.store().spare(|spare| spare.opening.take());
        let spare = spare.map_or_else(|| SpareThread::start(OPENING_THREAD), Ok)?;
        let handle = spare.thread().clone();
        spare.run(move || {
            // Dropped after the opening, so that the runner sees its end.
            let last_wake = last_wake;
            while let Some(span) = opening.step(Instant::now()) {
                thread::park_timeout(span);
            }
            drop(opening);
            drop(last_wake);
        });
        Ok(Some(handle))
    }
}

/// Wakes the hub's runner when dropped, also by a panic.
struct ForceOnDrop(Arc<Wake>);

impl Drop for ForceOnDrop {
    fn drop(&mut self) {
        self.0.force();
    }
}

/// Connects the hub with its runner and the rest of the server.
pub(crate) struct HubEnvironment<'a> {
    pub(crate) wake: &'a Arc<Wake>,
    pub(crate) lifecycle: &'a Arc<Lifecycle>,
    /// Set when a thread waits for the predecessor.
    pub(crate) opening_thread: &'a OpeningThread,
    /// Reports a line to the operator.
    pub(crate) report: fn(&str),
}

impl<S: StreamStore> PreparedStreams<S> {
    /// Opens the streams of `config` in `store`, if that exists. New streams get the creation time `created_ns`.
    pub(crate) fn open(
        config: HubConfig,
        store: S,
        created_ns: UnixNanos,
    ) -> Result<PreparedStreams<S>, OpenError> {
        let mut streams = PreparedStreams { config, store, directories: StreamDirectories::Absent };
        let on_disk = streams.on_disk();
        if streams.store.exists() && !on_disk.is_empty() {
            let opened = on_disk
                .iter()
                .enumerate()
                .map(|(number, stream)| streams.store.open(number, stream, created_ns))
                .collect::<Result<Vec<_>, OpenError>>()?;
            let (logs, recoveries) = opened.into_iter().unzip();
            streams.directories = StreamDirectories::Open { logs, recoveries };
        }
        Ok(streams)
    }

    /// Streams that a predecessor still writes: checks format and permissions, and neither changes nor locks
    /// anything.
    pub(crate) fn held_by_predecessor(config: HubConfig, store: S) -> Result<PreparedStreams<S>, OpenError> {
        let streams = PreparedStreams { config, store, directories: StreamDirectories::HeldByPredecessor };
        for (number, stream) in streams.on_disk().iter().enumerate() {
            streams.store.check(number, stream)?;
        }
        Ok(streams)
    }

    /// Damage that opening found, by stream.
    pub(crate) fn findings(&self) -> impl Iterator<Item = String> {
        let recoveries = match &self.directories {
            StreamDirectories::Open { recoveries, .. } => recoveries.as_slice(),
            StreamDirectories::Absent | StreamDirectories::HeldByPredecessor => &[],
        };
        recoveries.iter().zip(self.on_disk()).filter_map(|(recovery, stream)| finding(&stream.name, recovery))
    }

    /// How each opened stream is written.
    pub(crate) fn write_methods(&self) -> impl Iterator<Item = String> {
        let logs = match &self.directories {
            StreamDirectories::Open { logs, .. } => logs.as_slice(),
            StreamDirectories::Absent | StreamDirectories::HeldByPredecessor => &[],
        };
        logs.iter().map(write_method)
    }

    /// Whether they are opened only after a predecessor has released them.
    pub(crate) fn are_held_by_predecessor(&self) -> bool {
        matches!(self.directories, StreamDirectories::HeldByPredecessor)
    }

    fn on_disk(&self) -> Vec<StreamConfig> {
        let streams = self.config.streams.iter();
        streams.filter(|stream| stream.durability == Durability::Disk).cloned().collect()
    }

    /// Starts the threads and the hub. New streams get the creation time `started_ns`; `now` is the journal's time.
    pub(crate) fn start(
        self,
        shard_senders: MailboxSenders,
        shards: usize,
        (key, started_ns, now): (HashKey, UnixNanos, Instant),
        environment: &HubEnvironment<'_>,
    ) -> Result<Hub<LazyJournal, MailboxSenders>, ServeError> {
        let is_on_disk = |stream: &StreamConfig| stream.durability == Durability::Disk;
        let hub_numbers: Vec<usize> =
            (0..self.config.streams.len()).filter(|&at| is_on_disk(&self.config.streams[at])).collect();
        let job = OpeningJob {
            created_ns: started_ns,
            streams: self.on_disk(),
            gates: self.config.gates.clone(),
            store: self.store,
            key,
            wake: Arc::clone(environment.wake),
            thread: Arc::clone(environment.opening_thread),
            report: environment.report,
        };
        if !hub_numbers.is_empty() && !matches!(self.directories, StreamDirectories::Open { .. }) {
            job.store.prepare().map_err(ServeError::Threads)?;
        }
        let (mut recovered, mut threads) = (Vec::new(), None);
        let state = match self.directories {
            _ if hub_numbers.is_empty() => JournalState::Open,
            StreamDirectories::Absent => JournalState::Absent(deferred(job)),
            StreamDirectories::Open { logs, recoveries } => {
                for ((stream, log), recovery) in job.streams.iter().zip(&logs).zip(&recoveries) {
                    let found = recover(stream, (key, &job.gates), log, recovery);
                    recovered.push(found.map_err(ServeError::OpenStreams)?);
                }
                let logs = logs.into_iter().enumerate().collect();
                threads = Some(job.store.start(logs, &job.wake, now).map_err(ServeError::Threads)?);
                JournalState::Open
            }
            StreamDirectories::HeldByPredecessor => {
                let lifecycle = Arc::clone(environment.lifecycle);
                JournalState::OpeningStreams(
                    begin_opening(job, Some(lifecycle)).map_err(ServeError::Threads)?,
                )
            }
        };
        let mut journal = LazyJournal::new(state, hub_numbers.clone(), self.config.streams.len());
        if let Some(threads) = threads {
            journal.add(threads, &(0..hub_numbers.len()).collect::<Vec<_>>());
        }
        let new = ResumePoint { created_ns: started_ns, ..ResumePoint::default() };
        let resumed = vec![new; self.config.streams.len()];
        let mut hub = Hub::new(self.config, &resumed, (journal, shard_senders), shards, (key, started_ns));
        for (number, recovered) in hub_numbers.into_iter().zip(recovered) {
            hub.open(number, recovered);
        }
        Ok(hub)
    }
}

/// Tries to read a directory in which another process removes segments meanwhile.
const CHECK_TRIES: u32 = 3;

/// Checks that a stream's directory can be opened, as far as possible while another process writes it.
fn check(path: &Path, name: &str) -> Result<(), OpenError> {
    use rustix::fs::{Access, access};
    let failed = |path: &Path, source| OpenError::Disk { location: path.display().to_string(), source };
    // A missing directory is created later, so the nearest existing ancestor counts.
    let existing = path.ancestors().find(|path| fs::exists(path).unwrap_or(true));
    let existing = existing.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    access(existing, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| failed(existing, error.into()))?;
    if existing != path {
        return Ok(());
    }
    let mut tries = 1;
    loop {
        let disk = FileDisk::existing(path).map_err(|error| failed(path, error))?;
        match StreamPreview::of(disk, name) {
            Ok(_) => return Ok(()),
            Err(OpenError::Disk { source, .. })
                if source.kind() == io::ErrorKind::NotFound && tries < CHECK_TRIES =>
            {
                tries += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
