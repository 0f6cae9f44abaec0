//! The streams on disk: their directories are opened before the hub runs, with the first record, or when the server before
//! this one has released them.
//!
//! ```text
//!   Open    at the start                               errors end the start
//!   Absent  no directory: opened with the first record ┐ on a thread that may wait for the disk; the hub takes
//!   Held    opened when the predecessor has released   ┘ each stream's numbers from what is found then
//! ```
//!
//! On that thread each stream is opened by itself: one that fails is tried again, and the others are used meanwhile.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Instant;

use stilling_hub::{
    Durability, HashKey, Hub, HubConfig, Recovered, Resumed, StreamConfig, Threads, UnixNanos,
};
use stilling_journal::disk::Disk;
use stilling_journal::disk::file::FileDisk;
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::{
    Config as LogConfig, Journal, JournalThread, Limits, Log, OpenError, Preview, Read, Recovery, Replay,
    ReplayThread, SpareThread,
};
use stilling_ring::{Full, Receiver, Sender, Wake, mailbox, planted};

use super::lazy_journal::{JournalState, LazyJournal};
use super::limits::{LOCK_WAIT, OPEN_LOOK, OPEN_RETRY, READ_ORDERS_MAX};
use super::runner::Mailboxes;
use crate::config::ServeError;
use crate::lifecycle::{Lifecycle, Stage};
use crate::settings::WriteMethodChoice;

/// Events of an opening that may be unread. Full: the opening thread waits.
const OPENING_EVENTS_MAX: usize = 4;

/// The name of the thread that opens streams after the start.
const OPENING_THREAD: &str = "opening";

/// What a record has beside its payload, at most: subject, headers, heads.
pub(crate) const RECORD_EXTRA_MAX: usize = 128 * 1024;

/// The streams of a hub that does not run yet.
pub(crate) struct Streams<D: Disk = FileDisk> {
    config: HubConfig,
    folder: StreamFolder,
    limits: Limits,
    directories: Directories<D>,
}

enum Directories<D: Disk> {
    Open { logs: Vec<Log<D>>, recoveries: Vec<Recovery> },
    Absent,
    Held,
}

/// Where streams on disk are kept, and how.
#[derive(Clone, Debug)]
pub(crate) struct StreamFolder {
    pub(crate) path: PathBuf,
    pub(crate) write_method: WriteMethodChoice,
}

/// Wakes the thread that waits for the predecessor's release.
pub(crate) type OpeningThread = Arc<OnceLock<Thread>>;

/// How the hub's runner and the rest of the server are reached.
pub(crate) struct Surroundings<'a> {
    /// Wakes the runner.
    pub(crate) wake: &'a Arc<Wake>,
    pub(crate) lifecycle: &'a Arc<Lifecycle>,
    /// Set when a thread waits for the predecessor.
    pub(crate) opening_thread: &'a OpeningThread,
    /// Reports a line to the operator.
    pub(crate) report: fn(&str),
}

impl Streams {
    /// Opens the streams of `config` in `folder`, if that is there. A batch takes a message of `message_size_max` bytes.
    /// `created_ns` is the creation time of streams that have none.
    pub(crate) fn open(
        config: HubConfig,
        folder: StreamFolder,
        message_size_max: usize,
        created_ns: UnixNanos,
    ) -> Result<Streams, OpenError> {
        let mut streams = Streams::new(config, folder, message_size_max);
        let on_disk = streams.on_disk();
        if fs::exists(&streams.folder.path).unwrap_or(true) && !on_disk.is_empty() {
            let (logs, recoveries) = open_all(&on_disk, &streams.folder, created_ns)?;
            streams.directories = Directories::Open { logs, recoveries };
        }
        Ok(streams)
    }

    /// Streams that another server still writes: format and permissions are checked, nothing is changed or locked.
    pub(crate) fn held(
        config: HubConfig,
        folder: StreamFolder,
        message_size_max: usize,
    ) -> Result<Streams, OpenError> {
        let mut streams = Streams::new(config, folder, message_size_max);
        for stream in streams.on_disk() {
            check(&streams.folder.path.join(&stream.name), &stream.name)?;
        }
        streams.directories = Directories::Held;
        Ok(streams)
    }

    fn new(config: HubConfig, folder: StreamFolder, message_size_max: usize) -> Streams {
        let batch_size = (message_size_max + RECORD_EXTRA_MAX).max(Limits::default().batch_size);
        let limits = Limits { batch_size, ..Limits::default() };
        Streams { config, folder, limits, directories: Directories::Absent }
    }
}

impl Streams<SimulatedDisk> {
    /// Opens the streams of `config` that are on disk, each on one of `disks`.
    pub(crate) fn simulated(
        config: HubConfig,
        disks: &[SimulatedDisk],
        (log, limits): (LogConfig, Limits),
    ) -> Result<Streams<SimulatedDisk>, OpenError> {
        let folder = StreamFolder { path: PathBuf::new(), write_method: WriteMethodChoice::Auto };
        let mut streams = Streams { config, folder, limits, directories: Directories::Absent };
        let (mut logs, mut recoveries) = (Vec::new(), Vec::new());
        for (stream, disk) in streams.on_disk().iter().zip(disks) {
            let (log, recovery) = Log::open(disk.clone(), &stream.name, log)?;
            logs.push(log);
            recoveries.push(recovery);
        }
        streams.directories = Directories::Open { logs, recoveries };
        Ok(streams)
    }
}

impl<D: Disk> Streams<D> {
    /// What opening found that is not as it was written, by stream.
    pub(crate) fn findings(&self) -> impl Iterator<Item = String> {
        let recoveries = match &self.directories {
            Directories::Open { recoveries, .. } => recoveries.as_slice(),
            Directories::Absent | Directories::Held => &[],
        };
        recoveries.iter().zip(self.on_disk()).filter_map(|(recovery, stream)| finding(&stream.name, recovery))
    }

    /// How each stream is written, as far as that is known before its directory is opened.
    pub(crate) fn write_methods(&self) -> impl Iterator<Item = String> {
        let logs = match &self.directories {
            Directories::Open { logs, .. } => logs.as_slice(),
            Directories::Absent | Directories::Held => &[],
        };
        logs.iter().map(write_method)
    }

    /// Whether they are opened only when another server has released them.
    pub(crate) fn are_held(&self) -> bool {
        matches!(self.directories, Directories::Held)
    }

    fn on_disk(&self) -> Vec<StreamConfig> {
        let streams = self.config.streams.iter();
        streams.filter(|stream| stream.durability == Durability::Disk).cloned().collect()
    }

    /// Starts what is needed, and the hub. Streams that are new were created at `started_ns`.
    pub(crate) fn start(
        self,
        outlets: Mailboxes,
        shards: usize,
        (key, started_ns): (HashKey, UnixNanos),
        around: &Surroundings<'_>,
        start_journal: impl FnOnce(Vec<Log<D>>, Limits, &Arc<Wake>) -> io::Result<Threads>,
    ) -> Result<Hub<LazyJournal, Mailboxes>, ServeError> {
        let is_on_disk = |stream: &StreamConfig| stream.durability == Durability::Disk;
        let of_hub: Vec<usize> =
            (0..self.config.streams.len()).filter(|&at| is_on_disk(&self.config.streams[at])).collect();
        let mut job = OpeningJob {
            created_ns: started_ns,
            streams: self.on_disk(),
            folder: self.folder,
            limits: self.limits,
            key,
            wake: Arc::clone(around.wake),
            report: around.report,
            spare: SpareThreads::default(),
        };
        if !of_hub.is_empty() && !matches!(self.directories, Directories::Open { .. }) {
            job.spare = SpareThreads::start().map_err(ServeError::Threads)?;
        }
        let (mut recovered, mut threads) = (Vec::new(), None);
        let state = match self.directories {
            _ if of_hub.is_empty() => JournalState::Open,
            Directories::Absent => JournalState::Absent(Box::new(job)),
            Directories::Open { logs, recoveries } => {
                for ((stream, log), recovery) in job.streams.iter().zip(&logs).zip(&recoveries) {
                    recovered.push(job.recover(stream, log, recovery).map_err(ServeError::Streams)?);
                }
                threads = Some(start_journal(logs, job.limits, &job.wake).map_err(ServeError::Threads)?);
                JournalState::Open
            }
            Directories::Held => {
                let release = Release {
                    lifecycle: Arc::clone(around.lifecycle),
                    thread: Arc::clone(around.opening_thread),
                };
                JournalState::Opening(begin_opening(job, Some(release)).map_err(ServeError::Threads)?)
            }
        };
        let mut journal = LazyJournal::new(state, of_hub.clone(), self.config.streams.len());
        if let Some(threads) = threads {
            journal.add(threads, &(0..of_hub.len()).collect::<Vec<_>>());
        }
        let new = Resumed { created_ns: started_ns, ..Resumed::default() };
        let resumed = vec![new; self.config.streams.len()];
        let mut hub = Hub::new(self.config, &resumed, (journal, outlets), shards, (key, started_ns));
        for (number, recovered) in of_hub.into_iter().zip(recovered) {
            hub.open(number, recovered);
        }
        Ok(hub)
    }
}

fn finding(name: &str, recovery: &Recovery) -> Option<String> {
    (!recovery.findings.is_empty()).then(|| format!("stream {name}: {}", recovery.findings))
}

fn write_method<D: Disk>(log: &Log<D>) -> String {
    format!("stream {}: writes are {}", log.name(), log.write_method())
}

/// The directories of `streams`, each with segments that fit how much of it is kept.
fn open_all(
    streams: &[StreamConfig],
    folder: &StreamFolder,
    created_ns: UnixNanos,
) -> Result<(Vec<Log<FileDisk>>, Vec<Recovery>), OpenError> {
    streams.iter().map(|stream| open_one(stream, folder, created_ns)).collect()
}

fn open_one(
    StreamConfig { name, retention, .. }: &StreamConfig,
    folder: &StreamFolder,
    created_ns: UnixNanos,
) -> Result<(Log<FileDisk>, Recovery), OpenError> {
    let path = folder.path.join(name);
    let disk = FileDisk::make(&path)
        .map_err(|source| OpenError::Disk { place: path.display().to_string(), source })?;
    let disk = match folder.write_method {
        WriteMethodChoice::Auto => disk,
        WriteMethodChoice::Buffered => disk.buffered("write-method = buffered"),
    };
    let config = LogConfig { created_ns, ..LogConfig::for_retention(retention.bytes_max) };
    Log::open(disk, name, config)
}

/// Tries of a look at a directory in which another process removes segments meanwhile.
const CHECK_TRIES: u32 = 3;

/// Whether a stream's directory could be opened, as far as that can be known while another process writes it.
fn check(path: &Path, name: &str) -> Result<(), OpenError> {
    use rustix::fs::{Access, access};
    let failed = |path: &Path, source| OpenError::Disk { place: path.display().to_string(), source };
    // What is not there is made later: then the first directory above it counts.
    let existing = path.ancestors().find(|path| fs::exists(path).unwrap_or(true));
    let existing = existing.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    access(existing, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| failed(existing, error.into()))?;
    if existing != path {
        return Ok(());
    }
    let mut tries = 1;
    loop {
        let disk = FileDisk::existing(path).map_err(|error| failed(path, error))?;
        match Preview::of(disk, name) {
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

/// Starts the journal's two threads.
pub(crate) fn start_threads(
    logs: Vec<Log<FileDisk>>,
    limits: Limits,
    wake: &Arc<Wake>,
) -> io::Result<Threads> {
    SpareThreads::default().run(logs, limits, wake)
}

/// Threads for streams that are opened after the start, started with the server. One that is missing is started when it is
/// needed: for streams that could not be opened with the others.
#[derive(Debug, Default)]
struct SpareThreads {
    opening: Option<SpareThread<()>>,
    journal: Option<JournalThread>,
    replay: Option<ReplayThread>,
}

impl SpareThreads {
    fn start() -> io::Result<SpareThreads> {
        Ok(SpareThreads {
            opening: Some(SpareThread::start(OPENING_THREAD)?),
            journal: Some(Journal::spare_thread()?),
            replay: Some(Replay::spare_thread()?),
        })
    }

    /// Starts the journal's two threads.
    fn run(&mut self, logs: Vec<Log<FileDisk>>, limits: Limits, wake: &Arc<Wake>) -> io::Result<Threads> {
        let sources = logs.iter().map(Log::source).collect();
        let writing = self.journal.take().map_or_else(Journal::spare_thread, Ok)?;
        let reading = self.replay.take().map_or_else(Replay::spare_thread, Ok)?;
        let journal = Journal::start_on(writing, logs, limits, Arc::clone(wake))?;
        let replay = Replay::start_on(reading, sources, READ_ORDERS_MAX, Arc::clone(wake));
        Ok(Threads::new(journal, replay))
    }
}

/// Everything that opening needs, wherever it happens.
pub(super) struct OpeningJob {
    /// Those on disk.
    pub(super) streams: Vec<StreamConfig>,
    folder: StreamFolder,
    /// The creation time of streams that are new.
    pub(super) created_ns: UnixNanos,
    limits: Limits,
    pub(super) key: HashKey,
    wake: Arc<Wake>,
    report: fn(&str),
    spare: SpareThreads,
}

/// What is waited for before a directory is opened.
pub(super) struct Release {
    lifecycle: Arc<Lifecycle>,
    thread: OpeningThread,
}

/// What the opening thread reports.
pub(super) enum OpeningEvent {
    /// What became of the streams that were not open yet. Streams are numbered as on disk.
    Round {
        /// Those that write and read what was opened, in that order.
        threads: Option<Box<Threads>>,
        opened: Vec<OpenedStream>,
        /// These are tried again. Only those whose reason is new.
        failed: Vec<(usize, Arc<str>)>,
    },
    /// There is no directory: the first record makes it.
    Absent(Box<OpeningJob>),
}

/// A stream that was opened.
pub(super) struct OpenedStream {
    pub(super) stream: usize,
    pub(super) recovered: Recovered,
}

/// Streams that are not open yet, and what is open without threads.
struct Rounds {
    /// Those that are not open, with the reason that was reported last.
    closed: Vec<(usize, Option<Arc<str>>)>,
    logs: Vec<Log<FileDisk>>,
    opened: Vec<OpenedStream>,
}

impl OpeningJob {
    /// Where a stream goes on, with the message ids that it knows.
    fn recover<D: Disk>(
        &self,
        stream: &StreamConfig,
        log: &Log<D>,
        recovery: &Recovery,
    ) -> Result<Recovered, OpenError> {
        let (first, created_ns) = (recovery.first.max(1), log.created_ns());
        let resumed = Resumed { first, next: recovery.next, created_ns };
        let mut recovered = Recovered::new(stream, self.key, resumed);
        recovered.set_extent(log.extent());
        // Nothing before it was in the window when its segment was made; what is too old since is left out by time.
        let from = if stream.dedup_time_ns == 0 { recovery.next } else { recovery.deduplicate_from.max(1) };
        let mut reader = log.source().read_from(stilling_journal::From::Sequence(from));
        loop {
            // With a part of the window missing, messages sent again would be stored again, unnoticed.
            let read = reader.read().map_err(|source| {
                let place = self.folder.path.join(&stream.name).display().to_string();
                OpenError::Disk { place, source }
            })?;
            match read {
                Read::Batch(_) if planted!("forgotten window") => {}
                Read::Batch(batch) => recovered.remember(batch),
                Read::Gap(gap) => recovered.report_unreadable(gap),
                Read::End => break,
            }
        }
        if !recovery.findings.is_empty() {
            recovered.report_findings(&recovery.findings.to_string());
        }
        Ok(recovered)
    }

    fn open(&self, stream: &StreamConfig) -> Result<(Log<FileDisk>, Recovered), OpenError> {
        let (log, recovery) = open_one(stream, &self.folder, self.created_ns)?;
        let recovered = self.recover(stream, &log, &recovery)?;
        finding(&stream.name, &recovery).into_iter().for_each(|line| (self.report)(&line));
        (self.report)(&write_method(&log));
        Ok((log, recovered))
    }

    /// Opens those that are closed, each by itself. Returns the failures, and whether all of them are locks.
    fn try_all(&self, rounds: &mut Rounds) -> (Vec<(usize, Arc<str>)>, bool) {
        let (mut failures, mut are_locks) = (Vec::new(), true);
        let (logs, opened) = (&mut rounds.logs, &mut rounds.opened);
        rounds.closed.retain(|&(stream, _)| match self.open(&self.streams[stream]) {
            Ok((log, recovered)) => {
                logs.push(log);
                opened.push(OpenedStream { stream, recovered });
                false
            }
            Err(error) => {
                are_locks &= matches!(error, OpenError::Lock(_));
                failures.push((stream, error.to_string().into()));
                true
            }
        });
        (failures, are_locks)
    }

    /// What the hub is to know of a round; nothing if it knows everything.
    fn conclude(
        &mut self,
        rounds: &mut Rounds,
        mut failures: Vec<(usize, Arc<str>)>,
    ) -> Option<OpeningEvent> {
        let (logs, mut opened) = (std::mem::take(&mut rounds.logs), std::mem::take(&mut rounds.opened));
        let mut threads = None;
        if !opened.is_empty() {
            match self.spare.run(logs, self.limits, &self.wake) {
                Ok(started) => threads = Some(Box::new(started)),
                Err(error) => {
                    let reason: Arc<str> = format!("cannot start a thread: {error}").into();
                    for OpenedStream { stream, .. } in opened.drain(..) {
                        rounds.closed.push((stream, None));
                        failures.push((stream, Arc::clone(&reason)));
                    }
                }
            }
        }
        failures.retain(|(stream, reason)| {
            let closed = rounds.closed.iter_mut().find(|(closed, _)| closed == stream);
            let is_new = closed
                .is_some_and(|(_, reported)| reported.replace(Arc::clone(reason)).as_ref() != Some(reason));
            if is_new {
                let name = &self.streams[*stream].name;
                (self.report)(&format!("the stream {name} cannot be opened, and is tried again: {reason}"));
            }
            is_new
        });
        let is_news = threads.is_some() || !failures.is_empty();
        is_news.then_some(OpeningEvent::Round { threads, opened, failed: failures })
    }

    /// Opens the directories, each by itself, again and again until all are open or the hub has gone.
    fn run(mut self, release: Option<&Release>, mut events: Sender<OpeningEvent>) {
        if let Some(Release { lifecycle, .. }) = release {
            while !lifecycle.has_reached(Stage::Released) {
                if events.is_closed() {
                    return;
                }
                thread::park_timeout(OPEN_LOOK);
            }
            if !fs::exists(&self.folder.path).unwrap_or(true) {
                // The first record is opened on another thread than this one.
                self.spare.opening = SpareThread::start(OPENING_THREAD).ok();
                let wake = Arc::clone(&self.wake);
                return send(&mut events, OpeningEvent::Absent(Box::new(self)), &wake);
            }
        }
        // A process that is ending may hold the locks a moment longer.
        let patient_until = release.map(|_| Instant::now() + LOCK_WAIT);
        let closed = (0..self.streams.len()).map(|stream| (stream, None)).collect();
        let mut rounds = Rounds { closed, logs: Vec::new(), opened: Vec::new() };
        while !rounds.closed.is_empty() && !events.is_closed() {
            let (failures, are_locks) = self.try_all(&mut rounds);
            if !failures.is_empty() && are_locks && patient_until.is_some_and(|until| Instant::now() < until)
            {
                thread::park_timeout(OPEN_LOOK);
                continue;
            }
            if let Some(event) = self.conclude(&mut rounds, failures) {
                send(&mut events, event, &self.wake);
            }
            if !rounds.closed.is_empty() {
                thread::park_timeout(OPEN_RETRY);
            }
        }
    }
}

/// Hands an event to the hub, and waits while there is no room.
fn send(events: &mut Sender<OpeningEvent>, event: OpeningEvent, wake: &Wake) {
    let mut event = Some(event);
    while let Some(unsent) = event.take()
        && !events.is_closed()
    {
        if let Err(Full(unsent)) = events.push(unsent) {
            event = Some(unsent);
            thread::park_timeout(OPEN_LOOK);
        }
    }
    events.publish();
    wake.force();
}

/// Opens on a thread that may wait for the disk.
pub(super) fn begin_opening(
    mut job: OpeningJob,
    release: Option<Release>,
) -> io::Result<Receiver<OpeningEvent>> {
    let (events, opened) = mailbox(OPENING_EVENTS_MAX);
    let last_wake = ForceOnDrop(Arc::clone(&job.wake));
    let thread = release.as_ref().map(|release| Arc::clone(&release.thread));
    let spare = job.spare.opening.take().map_or_else(|| SpareThread::start(OPENING_THREAD), Ok)?;
    if let Some(thread) = thread {
        let _ = thread.set(spare.thread().clone());
    }
    spare.run(move || {
        // Dropped behind the sender, so that the runner sees its end.
        let last_wake = last_wake;
        job.run(release.as_ref(), events);
        drop(last_wake);
    });
    Ok(opened)
}

/// Wakes the hub's runner when it is dropped, also by a panic.
struct ForceOnDrop(Arc<Wake>);

impl Drop for ForceOnDrop {
    fn drop(&mut self) {
        self.0.force();
    }
}

#[cfg(test)]
mod tests;
