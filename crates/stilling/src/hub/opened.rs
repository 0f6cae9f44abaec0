//! The streams on disk: their directories are opened before the hub runs, with the first record, or when the server before
//! this one has released them.
//!
//! ```text
//!   Open    at the start                               errors end the start
//!   Absent  no directory: opened with the first record ┐ on a thread that may wait for the disk; the hub takes
//!   Held    opened when the predecessor has released   ┘ each stream's numbers from what is found then
//! ```

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use stilling_hub::{
    Durability, HashKey, Hub, HubConfig, Recovered, Resumed, StreamConfig, Threads, UnixNanos,
};
use stilling_journal::disk::Disk;
use stilling_journal::disk::file::FileDisk;
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::{
    Config as LogConfig, Journal, Limits, Log, OpenError, Preview, Read, Recovery, Replay,
};
use stilling_ring::{Receiver, Sender, Wake, mailbox, planted};

use super::lazy_journal::{JournalState, LazyJournal};
use super::limits::{LOCK_WAIT, OPEN_LOOK, OPEN_RETRY, READ_ORDERS_MAX};
use super::runner::Mailboxes;
use crate::config::ServeError;
use crate::lifecycle::{Lifecycle, Stage};
use crate::settings::WriteMethodChoice;

/// Events of an opening that may be unread. Full: a changed reason for a failure is not reported to the hub.
const OPENING_EVENTS_MAX: usize = 4;

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
    pub(crate) fn open(
        config: HubConfig,
        folder: StreamFolder,
        message_size_max: usize,
    ) -> Result<Streams, OpenError> {
        let mut streams = Streams::new(config, folder, message_size_max);
        let on_disk = streams.on_disk();
        if fs::exists(&streams.folder.path).unwrap_or(true) && !on_disk.is_empty() {
            let (logs, recoveries) = open_all(&on_disk, &streams.folder, unix_now_ns())?;
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

    /// Starts what is needed, and the hub.
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
        let created_ns = unix_now_ns();
        let job = OpeningJob {
            created_ns,
            streams: self.on_disk(),
            folder: self.folder,
            limits: self.limits,
            key,
            wake: Arc::clone(around.wake),
            report: around.report,
        };
        let mut recovered = Vec::new();
        let state = match self.directories {
            _ if of_hub.is_empty() => JournalState::Open(Threads::default()),
            Directories::Absent => JournalState::Absent(job),
            Directories::Open { logs, recoveries } => {
                recovered = job.recover(&logs, &recoveries).map_err(ServeError::Streams)?;
                JournalState::Open(start_journal(logs, job.limits, &job.wake).map_err(ServeError::Threads)?)
            }
            Directories::Held => {
                let release = Release {
                    lifecycle: Arc::clone(around.lifecycle),
                    thread: Arc::clone(around.opening_thread),
                };
                JournalState::Opening(begin_opening(job, Some(release)).map_err(ServeError::Threads)?)
            }
        };
        let journal = LazyJournal { state, of_hub: of_hub.clone(), openings: VecDeque::new() };
        let resumed: Vec<_> =
            self.config.streams.iter().map(|_| Resumed { created_ns, ..Resumed::default() }).collect();
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

fn unix_now_ns() -> UnixNanos {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The directories of `streams`, each with segments that fit how much of it is kept.
fn open_all(
    streams: &[StreamConfig],
    folder: &StreamFolder,
    created_ns: UnixNanos,
) -> Result<(Vec<Log<FileDisk>>, Vec<Recovery>), OpenError> {
    let (mut logs, mut recoveries) = (Vec::new(), Vec::new());
    for StreamConfig { name, retention, .. } in streams {
        let path = folder.path.join(name);
        let disk = FileDisk::make(&path)
            .map_err(|source| OpenError::Disk { place: path.display().to_string(), source })?;
        let disk = match folder.write_method {
            WriteMethodChoice::Auto => disk,
            WriteMethodChoice::Buffered => disk.buffered("write-method = buffered"),
        };
        let config = LogConfig { created_ns, ..LogConfig::for_retention(retention.bytes_max) };
        let (log, recovery) = Log::open(disk, name, config)?;
        logs.push(log);
        recoveries.push(recovery);
    }
    Ok((logs, recoveries))
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
    let sources = logs.iter().map(Log::source).collect();
    let journal = Journal::start(logs, limits, Arc::clone(wake))?;
    let replay = Replay::start(sources, READ_ORDERS_MAX, Arc::clone(wake))?;
    Ok(Threads::new(journal, replay))
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
}

/// What is waited for before a directory is opened.
pub(super) struct Release {
    lifecycle: Arc<Lifecycle>,
    thread: OpeningThread,
}

/// What the opening thread reports.
pub(super) enum OpeningEvent {
    Opened(Box<Threads>, Vec<Recovered>),
    /// There is no directory: the first record makes it.
    Absent(Box<OpeningJob>),
    /// It is tried again.
    Failed(Arc<str>),
}

impl OpeningJob {
    /// Where each stream goes on, with the message ids that it knows.
    fn recover<D: Disk>(
        &self,
        logs: &[Log<D>],
        recoveries: &[Recovery],
    ) -> Result<Vec<Recovered>, OpenError> {
        let mut all = Vec::new();
        for ((stream, log), recovery) in self.streams.iter().zip(logs).zip(recoveries) {
            let (first, created_ns) = (recovery.first.max(1), log.created_ns());
            let resumed = Resumed { first, next: recovery.next, created_ns };
            let mut recovered = Recovered::new(stream, self.key, resumed);
            recovered.set_extent(log.extent());
            // Nothing before it was in the window when its segment was made; what is too old since is left out by time.
            let from =
                if stream.dedup_time_ns == 0 { recovery.next } else { recovery.deduplicate_from.max(1) };
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
            all.push(recovered);
        }
        Ok(all)
    }

    fn open(&self) -> Result<(Threads, Vec<Recovered>), String> {
        let (logs, recoveries) =
            open_all(&self.streams, &self.folder, self.created_ns).map_err(|error| error.to_string())?;
        let recovered = self.recover(&logs, &recoveries).map_err(|error| error.to_string())?;
        for (stream, recovery) in self.streams.iter().zip(&recoveries) {
            finding(&stream.name, recovery).into_iter().for_each(|line| (self.report)(&line));
        }
        logs.iter().for_each(|log| (self.report)(&write_method(log)));
        let threads = start_threads(logs, self.limits, &self.wake).map_err(|error| error.to_string())?;
        Ok((threads, recovered))
    }

    /// Opens the directories, again and again until that succeeds or the hub has gone.
    fn run(self, release: Option<&Release>, mut events: Sender<OpeningEvent>) {
        if let Some(Release { lifecycle, .. }) = release {
            while !lifecycle.has_reached(Stage::Released) {
                if events.is_closed() {
                    return;
                }
                thread::park_timeout(OPEN_LOOK);
            }
            if !fs::exists(&self.folder.path).unwrap_or(true) {
                let _ = events.push(OpeningEvent::Absent(Box::new(self)));
                events.publish();
                return;
            }
        }
        // A process that is ending may hold the locks a moment longer.
        let patient_until = release.map(|_| Instant::now() + LOCK_WAIT);
        let mut reported = String::new();
        while !events.is_closed() {
            let reason = match self.open() {
                Ok((threads, recovered)) => {
                    if !reported.is_empty() {
                        (self.report)("the streams are open now");
                    }
                    let _ = events.push(OpeningEvent::Opened(Box::new(threads), recovered));
                    events.publish();
                    return;
                }
                Err(reason) => reason,
            };
            if patient_until.is_some_and(|until| Instant::now() < until) {
                thread::park_timeout(OPEN_LOOK);
                continue;
            }
            if reason != reported {
                (self.report)(&format!("the streams cannot be opened, and are tried again: {reason}"));
                let _ = events.push(OpeningEvent::Failed(reason.as_str().into()));
                events.publish();
                self.wake.force();
                reported = reason;
            }
            thread::park_timeout(OPEN_RETRY);
        }
    }
}

/// Opens on a thread that may wait for the disk.
pub(super) fn begin_opening(job: OpeningJob, release: Option<Release>) -> io::Result<Receiver<OpeningEvent>> {
    let (events, opened) = mailbox(OPENING_EVENTS_MAX);
    let last_wake = ForceOnDrop(Arc::clone(&job.wake));
    let thread = release.as_ref().map(|release| Arc::clone(&release.thread));
    let work = move || {
        // Dropped behind the sender, so that the runner sees its end.
        let last_wake = last_wake;
        job.run(release.as_ref(), events);
        drop(last_wake);
    };
    let handle = thread::Builder::new().name("opening".to_owned()).spawn(work)?;
    if let Some(thread) = thread {
        let _ = thread.set(handle.thread().clone());
    }
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
