//! Parts of a simulated server that run in steps instead of on threads: the journal on simulated disks, the opening
//! of streams, and a hub beside the shards.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use stilling_hub::{JournalStorage, StreamConfig, UnixNanos};
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::{
    Journal, JournalLimits, JournalWorker, Log, LogConfig, OpenError, Recovery, Replay, ReplayWorker,
    StreamPreview,
};
use stilling_ring::{Time, Wake};

use super::limits::READ_REQUESTS_MAX;
use super::stream_opener::{StreamOpener, StreamStore};
use super::{ClosingHub, LazyJournal, Runner};
use crate::lifecycle::{Lifecycle, ReleaseOnDrop};

/// The journal's two threads as steps, for a simulation.
#[derive(Debug)]
pub struct SteppedJournal {
    /// Its streams, numbered as on disk.
    pub streams: Vec<usize>,
    /// Writes batches.
    pub writer: JournalWorker<SimulatedDisk>,
    /// Reads records.
    pub reader: ReplayWorker<SimulatedDisk>,
}

/// The other threads of a simulated server. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct SteppedThreads(Arc<Mutex<StartedThreads>>);

/// Threads started since they were last taken.
#[derive(Default)]
struct StartedThreads {
    journals: Vec<SteppedJournal>,
    opening: Option<SteppedOpening>,
    closing: Option<SteppedHub>,
}

impl fmt::Debug for StartedThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartedThreads").field("journals", &self.journals).finish_non_exhaustive()
    }
}

impl SteppedThreads {
    fn with_started<R>(&self, act: impl FnOnce(&mut StartedThreads) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The journals started since the last call.
    #[must_use]
    pub fn take_journals(&self) -> Vec<SteppedJournal> {
        self.with_started(|started| std::mem::take(&mut started.journals))
    }

    /// The opening begun since the last call.
    #[must_use]
    pub fn take_opening(&self) -> Option<SteppedOpening> {
        self.with_started(|started| started.opening.take())
    }

    /// The hub to finish after its shard has left.
    #[must_use]
    pub fn take_closing(&self) -> Option<SteppedHub> {
        self.with_started(|started| started.closing.take())
    }

    pub(super) fn close(&self, hub: ClosingHub) {
        self.with_started(|started| started.closing = Some(SteppedHub(hub)));
    }
}

/// The thread that opens streams, as steps.
pub struct SteppedOpening(StreamOpener<SimulatedStore>);

impl SteppedOpening {
    /// Does the work due at `now`. Returns the time until the next step, or `None` at the end.
    pub fn step(&mut self, now: Instant) -> Option<Duration> {
        self.0.step(now)
    }
}

/// A hub beside the shards, as steps.
pub struct SteppedHub(ClosingHub);

impl SteppedHub {
    pub(crate) fn new(runner: Runner<LazyJournal>, lifecycle: Arc<Lifecycle>) -> SteppedHub {
        SteppedHub(ClosingHub::new(runner, lifecycle))
    }

    /// Does the work due at `now`. Returns whether the hub goes on.
    pub fn turn(&mut self, lifecycle: &Lifecycle, now: Time) -> bool {
        self.0.turn(lifecycle.both_clocks(now))
    }

    /// Whether there is nothing to do until the hub is woken.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.0.runner.is_quiet()
    }

    /// Maximum sleep without a wake.
    #[must_use]
    pub fn next_check_in(&self) -> Option<Duration> {
        self.0.runner.next_check_in()
    }

    /// Ends the hub. Drop the result after closing the journals: that releases the streams.
    #[must_use]
    pub fn end(self) -> SteppedRelease {
        SteppedRelease { _release: self.0.into_release() }
    }
}

/// Releases the streams when dropped.
pub struct SteppedRelease {
    _release: ReleaseOnDrop,
}

/// Streams on simulated disks, one per stream.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedStore {
    pub(crate) disks: SharedDisks,
    pub(crate) log: LogConfig,
    pub(crate) limits: JournalLimits,
    pub(crate) threads: SteppedThreads,
}

/// The disks of all servers of a simulated machine; a crash replaces a disk. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct SharedDisks(Arc<Mutex<Vec<SimulatedDisk>>>);

impl SharedDisks {
    /// The disks, in the order of the streams on disk.
    #[must_use]
    pub fn new(disks: Vec<SimulatedDisk>) -> SharedDisks {
        SharedDisks(Arc::new(Mutex::new(disks)))
    }

    /// The current disks.
    #[must_use]
    pub fn all(&self) -> Vec<SimulatedDisk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces all of them.
    pub fn replace(&self, disks: Vec<SimulatedDisk>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = disks;
    }

    fn one(&self, number: usize) -> Result<SimulatedDisk, OpenError> {
        self.all().get(number).cloned().ok_or_else(|| OpenError::Disk {
            location: format!("simulated disk {number}"),
            source: io::ErrorKind::NotFound.into(),
        })
    }
}

impl StreamStore for SimulatedStore {
    type Disk = SimulatedDisk;

    fn exists(&self) -> bool {
        true
    }

    fn check(&self, number: usize, stream: &StreamConfig) -> Result<(), OpenError> {
        StreamPreview::of(self.disks.one(number)?, &stream.name).map(|_| ())
    }

    fn open(
        &self,
        number: usize,
        stream: &StreamConfig,
        created_ns: UnixNanos,
    ) -> Result<(Log<SimulatedDisk>, Recovery), OpenError> {
        let created_ns = created_ns.as_nanos();
        Log::open(self.disks.one(number)?, &stream.name, LogConfig { created_ns, ..self.log })
    }

    fn start(
        &self,
        logs: Vec<(usize, Log<SimulatedDisk>)>,
        wake: &Arc<Wake>,
        now: Instant,
    ) -> io::Result<JournalStorage> {
        let (streams, logs): (Vec<usize>, Vec<Log<SimulatedDisk>>) = logs.into_iter().unzip();
        let sources = logs.iter().map(Log::source).collect();
        let (journal, writer) = Journal::stepped(logs, self.limits, wake, now)?;
        let (replay, reader) = Replay::stepped(sources, READ_REQUESTS_MAX, Arc::clone(wake));
        self.threads
            .with_started(|started| started.journals.push(SteppedJournal { streams, writer, reader }));
        Ok(JournalStorage::new(journal, replay))
    }

    fn run(opening: StreamOpener<SimulatedStore>) -> io::Result<Option<Thread>> {
        let threads = opening.store().threads.clone();
        threads.with_started(|started| started.opening = Some(SteppedOpening(opening)));
        Ok(None)
    }
}
