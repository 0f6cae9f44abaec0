//! The hub on its way into a server: its streams are opened before anything is said, it runs when the shards do.

use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Instant;

use stilling_engine::cores;
use stilling_hub::{Now, Threads, UnixNanos};
use stilling_journal::disk::Disk;
use stilling_journal::disk::file::FileDisk;
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::{Config as LogConfig, Limits, LockError, Log as StreamLog, OpenError};
use stilling_ring::{Time, Wake};

use crate::config::{HubThread, ServeConfig, ServeError};
use crate::data_folder::DataFolder;
use crate::hub::{
    self, Closers, HubDesk, LazyJournal, OpeningThread, Runner, StartGate, SteppedJournal, StreamFolder,
    Streams, Surroundings,
};
use crate::lifecycle::{Calendar, EndUnless, Lifecycle, ReleaseOnDrop};
use crate::log::Log;
use crate::nats::Users;
use crate::overview::Overview;
use crate::settings::{self, StreamConfig};
use crate::syslog::Rules;

/// The hub, its streams opened, or checked if another server has them still.
pub(crate) struct HubPlan<D: Disk = FileDisk> {
    opened: Streams<D>,
    /// The thread that opens the streams when the predecessor has released them.
    opening_thread: OpeningThread,
    report: fn(&str),
    users: Arc<Users>,
    syslog: Arc<Rules>,
    payload_size_max: u32,
    has_thread: bool,
    streams: usize,
    /// Numbers that nobody outside can guess: what subjects are hashed with, and the server's id.
    secret: [u64; 3],
    log: Option<fn(&str)>,
}

/// A hub in the first shard that is the same each time, if its streams are in memory: for simulated worlds.
///
/// # Errors
/// See [`ServeError`].
pub fn hub_in_memory(
    streams: &[StreamConfig],
    shards: &[Arc<Wake>],
    overview: &Overview,
    lifecycle: &Arc<Lifecycle>,
) -> Result<Vec<HubDesk>, ServeError> {
    let hub = settings::HubConfig { streams: streams.to_vec(), ..settings::HubConfig::default() };
    let now_ns = lifecycle.unix_nanos(Time::ZERO);
    let plan = HubPlan::of(&hub, HubThread::Shard, Predecessor::None, now_ns)?;
    let plan = HubPlan { secret: [1, 2, 3], ..plan };
    plan.start(shards, overview, lifecycle, None).map(|(desks, _)| desks)
}

/// Why publications to streams are refused that the predecessor has not released in time.
const NOT_RELEASED: &str = "the server before this one has not released it yet";

/// The server before this one, as far as its streams are concerned.
#[derive(Clone, Copy)]
pub(crate) enum Predecessor {
    /// There is none: streams that another process has are an error.
    None,
    /// It serves, and hands over. What happens to the streams is reported by this function.
    Runs(fn(&str)),
    /// None that hands over; one may still be on its way to its end.
    Ends(fn(&str)),
}

/// What a simulated world keeps its streams on.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedStorage<'a> {
    /// A disk for each stream on disk, in their order.
    pub disks: &'a [SimulatedDisk],
    /// How each of them is kept.
    pub log: LogConfig,
    /// The memory between hub and journal.
    pub limits: Limits,
    /// What the journal's clock says at the beginning.
    pub now: Instant,
}

/// A hub in the first shard, with its streams on simulated disks. The caller runs the journal.
///
/// # Errors
/// See [`ServeError`].
pub fn hub_on_simulated_disks(
    streams: &[StreamConfig],
    storage: SimulatedStorage<'_>,
    shards: &[Arc<Wake>],
    overview: &Overview,
    lifecycle: &Arc<Lifecycle>,
) -> Result<(Vec<HubDesk>, SteppedJournal), ServeError> {
    let hub = settings::HubConfig { streams: streams.to_vec(), ..settings::HubConfig::default() };
    let log = LogConfig { created_ns: lifecycle.unix_nanos(Time::ZERO), ..storage.log };
    let open =
        |hub, _| Streams::simulated(hub, storage.disks, (log, storage.limits)).map_err(ServeError::Streams);
    let plan = HubPlan { secret: [1, 2, 3], ..HubPlan::with(&hub, HubThread::Shard, open)? };
    let mut stepped = None;
    let (desks, _) = plan.start_with(shards, overview, lifecycle, None, |logs, limits, wake| {
        let (threads, journal) = hub::start_stepped(logs, limits, (wake, storage.now))?;
        stepped = Some(journal);
        Ok(threads)
    })?;
    let journal = stepped.ok_or_else(|| ServeError::Threads(std::io::ErrorKind::NotFound.into()))?;
    Ok((desks, journal))
}

impl HubPlan {
    /// Opens the streams, or checks those that another server still has, if there is a listener for them.
    pub(crate) fn make(
        config: &ServeConfig,
        predecessor: Predecessor,
    ) -> Result<Option<HubPlan>, ServeError> {
        let plan = || {
            let now_ns = Calendar::System.unix_nanos(Time::ZERO);
            HubPlan::of(&config.hub, config.hub_thread, predecessor, now_ns)
                .map(|plan| HubPlan { log: config.log, ..plan })
        };
        config.hub.has_listeners().then(plan).transpose()
    }

    fn of(
        config: &settings::HubConfig,
        hub_thread: HubThread,
        predecessor: Predecessor,
        now_ns: UnixNanos,
    ) -> Result<HubPlan, ServeError> {
        let report = match predecessor {
            Predecessor::None => |_: &str| (),
            Predecessor::Runs(report) | Predecessor::Ends(report) => report,
        };
        let plan = HubPlan::with(config, hub_thread, |hub, size_max| {
            let data = DataFolder::inspect(config).map_err(ServeError::Data)?;
            if let Some(shortage) = data.as_ref().and_then(DataFolder::shortage) {
                return Err(ServeError::Data(shortage));
            }
            let folder = StreamFolder { path: config.data.clone(), write_method: config.write_method };
            let opened = match predecessor {
                Predecessor::None => Streams::open(hub, folder, size_max, now_ns),
                Predecessor::Runs(_) => Streams::held(hub, folder, size_max),
                Predecessor::Ends(_) => match Streams::open(hub.clone(), folder.clone(), size_max, now_ns) {
                    Err(OpenError::Lock(LockError::Held { .. })) => Streams::held(hub, folder, size_max),
                    outcome => outcome,
                },
            };
            opened.map_err(ServeError::Streams)
        })?;
        Ok(HubPlan { report, ..plan })
    }

    /// Starts the hub: on a thread, which is returned, or at the desk of the first shard.
    pub(crate) fn start(
        self,
        shards: &[Arc<Wake>],
        overview: &Overview,
        lifecycle: &Arc<Lifecycle>,
        closers: Option<&Closers>,
    ) -> Result<(Vec<HubDesk>, Option<thread::JoinHandle<()>>), ServeError> {
        self.start_with(shards, overview, lifecycle, closers, hub::start_threads)
    }
}

impl<D: Disk> HubPlan<D> {
    /// A plan for streams that `open` opens; its second argument is the longest message.
    fn with(
        config: &settings::HubConfig,
        hub_thread: HubThread,
        open: impl FnOnce(stilling_hub::HubConfig, usize) -> Result<Streams<D>, ServeError>,
    ) -> Result<HubPlan<D>, ServeError> {
        let payload_size_max =
            config.streams.iter().map(|stream| stream.message_size_max).max().unwrap_or(1 << 20);
        let streams: Vec<_> = config.streams.iter().map(hub::stream_config).collect();
        let count = streams.len();
        let mut hub = stilling_hub::HubConfig { streams, ..stilling_hub::HubConfig::default() };
        let batch_size = payload_size_max as usize + hub::RECORD_EXTRA_MAX;
        hub.memory_batch_size = hub.memory_batch_size.max(batch_size);
        let opened = open(hub, payload_size_max as usize)?;
        let opening_thread = OpeningThread::default();
        let report: fn(&str) = |_| ();
        let has_thread = match hub_thread {
            HubThread::Auto => cores::usable_cores().len() > 2,
            HubThread::Shard => false,
            HubThread::Own => true,
        };
        let users = Arc::new(Users::new(config.users.clone()));
        let rules = Rules { sources: config.syslog_sources.clone(), subject: config.syslog_subject.clone() };
        let syslog = Arc::new(rules);
        let secret = std::array::from_fn(|_| hub::unpredictable());
        Ok(HubPlan {
            opened,
            opening_thread,
            report,
            users,
            syslog,
            payload_size_max,
            has_thread,
            streams: count,
            secret,
            log: None,
        })
    }

    /// What there is to say before it runs.
    pub(crate) fn banner(&self) -> Vec<String> {
        let place = if self.has_thread { "on a thread of its own" } else { "in shard 0" };
        let mut lines: Vec<String> = self.opened.findings().chain(self.opened.write_methods()).collect();
        let when = if self.opened.are_held() { ", to be opened when they are released" } else { "" };
        lines.push(format!("streams {}, hub {place}{when}", self.streams));
        lines
    }

    /// Wakes what waits for a change of the server's life.
    pub(crate) fn wake(&self) -> Arc<Wake> {
        wake_of(&self.opening_thread)
    }

    /// As [`start`](HubPlan::start), with the journal started by `start_journal`.
    fn start_with(
        self,
        shards: &[Arc<Wake>],
        overview: &Overview,
        lifecycle: &Arc<Lifecycle>,
        closers: Option<&Closers>,
        start_journal: impl FnOnce(Vec<StreamLog<D>>, Limits, &Arc<Wake>) -> std::io::Result<Threads>,
    ) -> Result<(Vec<HubDesk>, Option<thread::JoinHandle<()>>), ServeError> {
        let HubPlan {
            opened,
            opening_thread,
            report,
            users,
            syslog,
            payload_size_max,
            has_thread,
            secret,
            log,
            ..
        } = self;
        let [key, other_key, id] = secret;
        let sleeper = Arc::new(OnceLock::<Thread>::new());
        let wake = if has_thread { wake_of(&sleeper) } else { Arc::clone(&shards[0]) };
        let (ports, mailboxes, inlets) = hub::connect(shards, &wake);
        let started_ns = lifecycle.unix_nanos(Time::ZERO);
        let key = stilling_hub::HashKey(key, other_key);
        let waits = opened.are_held();
        if waits {
            lifecycle.hub_waits();
        }
        lifecycle.hold_streams();
        let around = Surroundings { wake: &wake, lifecycle, opening_thread: &opening_thread, report };
        let hub = opened.start(mailboxes, shards.len(), (key, started_ns), &around, start_journal)?;
        // Nobody else sets it.
        let _ = overview.hub.set(hub.counters());
        let log = log.map(Log::start).transpose().map_err(ServeError::Threads)?;
        let mut runner = Runner::new(hub, inlets, log);
        if waits {
            runner = runner.behind(StartGate {
                lifecycle: Arc::clone(lifecycle),
                is_open: |journal| journal.is_open() || journal.has_opening_news(),
                give_up: |journal| journal.refuse_until_open(NOT_RELEASED),
                since_ns: None,
            });
        }
        let mut runner: Option<Runner<LazyJournal>> = Some(runner);
        let info = hub::info(id, users.are_any(), payload_size_max);
        let mut desks = Vec::new();
        for (number, port) in ports.into_iter().enumerate() {
            let runner = if has_thread { None } else { runner.take() };
            let counters = Arc::clone(&overview.desks[number]);
            let desk = HubDesk::new(port, Arc::clone(&users), (info.clone(), counters), runner, number);
            let desk = desk.with_syslog(&syslog);
            desks.push(match closers {
                Some(closers) => desk.with_closers(closers.clone()),
                None => desk,
            });
        }
        let Some(mut runner) = runner else { return Ok((desks, None)) };
        let lifecycle = Arc::clone(lifecycle);
        let run = move || {
            // Dropped last: the streams' locks go before.
            let _release = ReleaseOnDrop(Arc::clone(&lifecycle));
            // Without the hub all who publish would wait: the server ends, also when it panics.
            let mut guard = EndUnless { lifecycle: Arc::clone(&lifecycle), served: false };
            let began = Instant::now();
            runner.run(&wake, || Now {
                unix_ns: lifecycle.unix_nanos(Time::ZERO),
                steady_ns: u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
            });
            guard.served = true;
            drop(runner);
        };
        let thread = thread::Builder::new().name("hub".to_owned()).spawn(run).map_err(ServeError::Threads)?;
        let _ = sleeper.set(thread.thread().clone());
        Ok((desks, Some(thread)))
    }
}

/// Wakes a thread, as soon as it is known.
fn wake_of(thread: &Arc<OnceLock<Thread>>) -> Arc<Wake> {
    let thread = Arc::clone(thread);
    Arc::new(Wake::new(move || thread.get().into_iter().for_each(Thread::unpark)))
}
