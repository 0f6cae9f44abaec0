//! Assembles the hub: opens its streams before the server reports its start, and starts it with the shards.

use std::io;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::Instant;

use stilling_engine::cores;
use stilling_hub::UnixNanos;
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::{JournalLimits, LockError, LogConfig, OpenError};
use stilling_ring::{Time, Wake};

use crate::config::{HubThread, ServeConfig, ServeError};
use crate::data_directory::DataDirectory;
use crate::hub::{
    self, HubCloser, HubEnvironment, HubHandle, LazyJournal, OpeningThread, PreparedStreams, Runner,
    SharedDisks, SimulatedStore, StartGate, SteppedHub, SteppedJournal, SteppedThreads, StreamDirectory,
    StreamFolder, StreamStore,
};
use crate::lifecycle::{FailureGuard, Lifecycle, ReleaseOnDrop, WallClock};
use crate::log::LogWriter;
use crate::nats::NatsShard;
use crate::overview::Overview;
use crate::settings::{self, StreamConfig};
use crate::shard::ShardHub;
use crate::syslog::{SyslogRules, SyslogShard};
use crate::users::Users;

/// A hub with its streams, opened, or only checked if a predecessor still has them.
pub(crate) struct HubPlan<S: StreamStore = StreamFolder> {
    opened: PreparedStreams<S>,
    /// The thread that opens the streams after the predecessor has released them.
    opening_thread: OpeningThread,
    report: fn(&str),
    users: Arc<Users>,
    directory: Arc<StreamDirectory>,
    syslog: Arc<SyslogRules>,
    payload_size_max: u32,
    has_thread: bool,
    streams: usize,
    /// Unpredictable numbers: the hash key for subjects, and the server's id.
    secret: [u64; 3],
    log: Option<fn(&str)>,
    /// The start, on the clock of the lifecycle.
    started: Time,
}

/// A hub in the first shard, for simulations: deterministic if its streams are in memory.
///
/// # Errors
/// See [`ServeError`].
pub fn hub_in_memory(
    streams: &[StreamConfig],
    shards: &[Arc<Wake>],
    overview: &Overview,
    lifecycle: &Arc<Lifecycle>,
) -> Result<Vec<ShardHub>, ServeError> {
    let hub = settings::MessagingConfig { streams: streams.to_vec(), ..settings::MessagingConfig::default() };
    let now_ns = lifecycle.unix_nanos(Time::ZERO);
    let plan = HubPlan::of(&hub, HubThread::Shard, PredecessorState::None, now_ns)?;
    let plan = HubPlan { secret: [1, 2, 3], ..plan };
    plan.start(shards, overview, lifecycle, None).map(|(hubs, _)| hubs)
}

/// Reason for refusing publications while the predecessor holds their streams for too long.
const NOT_RELEASED: &str = "the predecessor has not released it yet";

/// The predecessor, with respect to its streams.
#[derive(Clone, Copy, Debug)]
pub enum PredecessorState {
    /// None: a stream that another process holds is an error.
    None,
    /// It serves and will hand over. The function receives lines about the streams.
    Running(fn(&str)),
    /// None that hands over, but an earlier server may still be ending.
    Ending(fn(&str)),
}

/// Storage of the streams in a simulation.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedStorage<'a> {
    /// The disks, in the order of the streams on disk.
    pub disks: &'a [SimulatedDisk],
    /// Settings of their logs.
    pub log: LogConfig,
    /// Bounds of the memory between hub and journal.
    pub limits: JournalLimits,
    /// Initial time of the journal's clock.
    pub now: Instant,
    /// Virtual time of the start.
    pub started: Time,
    /// Bytes of a batch of a memory stream, at least those of its longest message; `None`: as in a server.
    pub memory_batch_size: Option<usize>,
}

/// A hub in the first shard with its streams on simulated disks. The caller runs the journal.
///
/// # Errors
/// See [`ServeError`].
pub fn hub_on_simulated_disks(
    streams: &[StreamConfig],
    storage: SimulatedStorage<'_>,
    shards: &[Arc<Wake>],
    overview: &Overview,
    lifecycle: &Arc<Lifecycle>,
) -> Result<(Vec<ShardHub>, SteppedJournal), ServeError> {
    let threads = SteppedThreads::default();
    let hub = settings::MessagingConfig { streams: streams.to_vec(), ..settings::MessagingConfig::default() };
    let created_ns = lifecycle.unix_nanos(storage.started);
    let store = SimulatedStore {
        disks: SharedDisks::new(storage.disks.to_vec()),
        log: LogConfig { created_ns: created_ns.as_nanos(), ..storage.log },
        limits: storage.limits,
        threads: threads.clone(),
    };
    let open = |mut hub: stilling_hub::HubConfig, _| {
        hub.memory_batch_size = storage.memory_batch_size.unwrap_or(hub.memory_batch_size);
        PreparedStreams::open(hub, store, created_ns).map_err(ServeError::OpenStreams)
    };
    let plan = HubPlan::with(&hub, HubThread::Shard, open)?;
    let plan = HubPlan { secret: [1, 2, 3], started: storage.started, ..plan };
    let assembled = plan.assemble(shards, (overview, lifecycle), None, storage.now, None)?;
    let journal = threads.take_journals().pop();
    let journal = journal.ok_or_else(|| ServeError::Threads(std::io::ErrorKind::NotFound.into()))?;
    Ok((assembled.hubs, journal))
}

/// Parameters of the hub of a simulated server in a chain of hand-overs.
#[derive(Clone, Debug)]
pub struct SimulatedSuccession {
    /// The disks, in the order of the streams on disk; shared by all servers.
    pub disks: SharedDisks,
    /// Settings of their logs.
    pub log: LogConfig,
    /// Bounds of the memory between hub and journal.
    pub limits: JournalLimits,
    /// Initial time of the journal's clock.
    pub now: Instant,
    /// The predecessor.
    pub predecessor: PredecessorState,
    /// Wakes the hub if it is not in the first shard.
    pub hub_wake: Option<Arc<Wake>>,
}

/// The hub of a simulated server in a chain of hand-overs.
pub struct SimulatedHub {
    /// One handle per shard.
    pub shards: Vec<ShardHub>,
    /// The hub, if it is not in the first shard.
    pub hub: Option<SteppedHub>,
    /// The other threads of the server, as steps.
    pub threads: SteppedThreads,
}

/// A hub on simulated disks that can release its streams to a successor. The caller runs everything in steps.
///
/// # Errors
/// See [`ServeError`].
pub fn hub_in_succession(
    streams: &[StreamConfig],
    succession: SimulatedSuccession,
    shards: &[Arc<Wake>],
    overview: &Overview,
    lifecycle: &Arc<Lifecycle>,
) -> Result<SimulatedHub, ServeError> {
    let threads = SteppedThreads::default();
    let hub = settings::MessagingConfig { streams: streams.to_vec(), ..settings::MessagingConfig::default() };
    let created_ns = lifecycle.unix_nanos(Time::ZERO);
    let (log, limits, predecessor) = (succession.log, succession.limits, succession.predecessor);
    let store = SimulatedStore { disks: succession.disks, log, limits, threads: threads.clone() };
    let open = |hub, _| open_streams(predecessor, hub, store, created_ns).map_err(ServeError::OpenStreams);
    let plan = HubPlan { secret: [1, 2, 3], ..HubPlan::with(&hub, HubThread::Shard, open)? };
    let closer = HubCloser::Stepped { lifecycle: Arc::clone(lifecycle), threads: threads.clone() };
    let assembled = plan.assemble(
        shards,
        (overview, lifecycle),
        Some(&closer),
        succession.now,
        succession.hub_wake.as_ref(),
    )?;
    let hub = assembled.runner.map(|runner| SteppedHub::new(runner, Arc::clone(lifecycle)));
    Ok(SimulatedHub { shards: assembled.hubs, hub, threads })
}

impl HubPlan {
    /// Opens the streams, or checks those that a predecessor still has. `None` if nothing can publish to them.
    pub(crate) fn make(
        config: &ServeConfig,
        predecessor: PredecessorState,
    ) -> Result<Option<HubPlan>, ServeError> {
        let plan = || {
            let now_ns = WallClock::System.unix_nanos(Time::ZERO);
            HubPlan::of(&config.hub, config.hub_thread, predecessor, now_ns)
                .map(|plan| HubPlan { log: config.log, ..plan })
        };
        config.has_hub().then(plan).transpose()
    }

    fn of(
        config: &settings::MessagingConfig,
        hub_thread: HubThread,
        predecessor: PredecessorState,
        now_ns: UnixNanos,
    ) -> Result<HubPlan, ServeError> {
        let report = match predecessor {
            PredecessorState::None => |_: &str| (),
            PredecessorState::Running(report) | PredecessorState::Ending(report) => report,
        };
        let plan = HubPlan::with(config, hub_thread, |hub, size_max| {
            let data = DataDirectory::inspect_streams(config).map_err(ServeError::Data)?;
            if let Some(shortage) = data.as_ref().and_then(DataDirectory::shortage) {
                return Err(ServeError::Data(shortage));
            }
            let folder = StreamFolder::new(config.data.clone(), config.write_method, size_max);
            let opened = open_streams(predecessor, hub, folder, now_ns);
            opened.map_err(ServeError::OpenStreams)
        })?;
        Ok(HubPlan { report, ..plan })
    }

    /// Starts the hub on a thread, which is returned, or in the first shard.
    pub(crate) fn start(
        self,
        shards: &[Arc<Wake>],
        overview: &Overview,
        lifecycle: &Arc<Lifecycle>,
        closer: Option<&HubCloser>,
    ) -> Result<(Vec<ShardHub>, Option<JoinHandle<()>>), ServeError> {
        let sleeper = Arc::new(OnceLock::new());
        let wake = Arc::new(Wake::for_thread(&sleeper));
        let hub_wake = self.has_thread.then_some(&wake);
        let AssembledHub { hubs, runner } =
            self.assemble(shards, (overview, lifecycle), closer, Instant::now(), hub_wake)?;
        let Some(runner) = runner else { return Ok((hubs, None)) };
        let lifecycle = Arc::clone(lifecycle);
        let run = move || {
            let began = Instant::now();
            let now = || {
                let elapsed_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
                lifecycle.both_clocks(Time::from_nanos(elapsed_ns))
            };
            release_behind(runner, &lifecycle, |runner| runner.run(&wake, now));
        };
        let thread = spawn_hub(sleeper, run).map_err(ServeError::Threads)?;
        Ok((hubs, Some(thread)))
    }
}

/// Starts the hub's thread. Sets `sleeper` before `run` begins, so that no wake is lost: threads that open streams
/// may wake the hub before this function returns.
fn spawn_hub(
    sleeper: Arc<OnceLock<Thread>>,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("hub".to_owned()).spawn(move || {
        let _ = sleeper.set(thread::current());
        run();
    })
}

struct AssembledHub {
    hubs: Vec<ShardHub>,
    /// The hub, if it is not in the first shard.
    runner: Option<Runner<LazyJournal>>,
}

impl<S: StreamStore> HubPlan<S> {
    /// A plan for streams that `open` opens; its second argument is the longest message in bytes.
    fn with(
        config: &settings::MessagingConfig,
        hub_thread: HubThread,
        open: impl FnOnce(stilling_hub::HubConfig, usize) -> Result<PreparedStreams<S>, ServeError>,
    ) -> Result<HubPlan<S>, ServeError> {
        let payload_size_max =
            config.streams.iter().map(|stream| stream.message_size_max).max().unwrap_or(1 << 20);
        let (streams, count) = (config.streams.clone(), config.streams.len());
        let gates = config.gates.clone();
        let mut hub = stilling_hub::HubConfig { streams, gates, ..stilling_hub::HubConfig::default() };
        let batch_size = payload_size_max as usize + hub::RECORD_EXTRA_MAX;
        hub.memory_batch_size = hub.memory_batch_size.max(batch_size);
        let opened = open(hub, payload_size_max as usize)?;
        let opening_thread = OpeningThread::default();
        let report: fn(&str) = |_| ();
        let has_thread = match hub_thread {
            HubThread::Auto => cores::usable_cores().len() > 2 || config.has_custom_gate(),
            HubThread::Shard => false,
            HubThread::Dedicated => true,
        };
        let users = Arc::new(Users::new(config.users.clone()));
        let directory = Arc::new(StreamDirectory::new(&config.streams));
        let (sources, subject) = (config.syslog_sources.clone(), config.syslog_subject.clone());
        let key = stilling_hub::HashKey(hub::random_number(), hub::random_number());
        let syslog = Arc::new(SyslogRules::new(sources, subject, &config.streams, key));
        let secret = std::array::from_fn(|_| hub::random_number());
        Ok(HubPlan {
            opened,
            opening_thread,
            report,
            users,
            directory,
            syslog,
            payload_size_max,
            has_thread,
            streams: count,
            secret,
            log: None,
            started: Time::ZERO,
        })
    }

    /// Lines that describe the hub before it runs.
    pub(crate) fn banner(&self) -> Vec<String> {
        let location = if self.has_thread { "on a dedicated thread" } else { "in shard 0" };
        let mut lines: Vec<String> = self.opened.findings().chain(self.opened.write_methods()).collect();
        let when = if self.opened.are_held_by_predecessor() {
            ", opened when the predecessor releases them"
        } else {
            ""
        };
        lines.push(format!("streams {}, hub {location}{when}", self.streams));
        lines
    }

    /// Wakes the opening thread after a change of the lifecycle.
    pub(crate) fn wake(&self) -> Arc<Wake> {
        Arc::new(Wake::for_thread(&self.opening_thread))
    }

    /// Assembles the hub: for a thread that `hub_wake` wakes, or in the first shard. `now` is the journal's time.
    fn assemble(
        self,
        shards: &[Arc<Wake>],
        (overview, lifecycle): (&Overview, &Arc<Lifecycle>),
        closer: Option<&HubCloser>,
        now: Instant,
        hub_wake: Option<&Arc<Wake>>,
    ) -> Result<AssembledHub, ServeError> {
        let HubPlan {
            opened,
            opening_thread,
            report,
            users,
            directory,
            syslog,
            payload_size_max,
            secret,
            log,
            started,
            ..
        } = self;
        let [key, other_key, id] = secret;
        let wake = hub_wake.unwrap_or(&shards[0]);
        let key = stilling_hub::HashKey(key, other_key);
        let (ports, mailboxes, shard_receivers) = hub::connect(shards, wake, key);
        let started_ns = lifecycle.unix_nanos(started);
        let waits = opened.are_held_by_predecessor();
        if waits {
            lifecycle.defer_hub_start();
        }
        lifecycle.hold_streams();
        let environment = HubEnvironment { wake, lifecycle, opening_thread: &opening_thread, report };
        let hub = opened.start(mailboxes, shards.len(), (key, started_ns, now), &environment)?;
        // Set only here.
        let hub_counters = hub.counters();
        let _ = overview.hub.set(Arc::clone(&hub_counters));
        let log = log.map(LogWriter::start).transpose().map_err(ServeError::Threads)?;
        let mut runner = Runner::new(hub, shard_receivers, log);
        if waits {
            runner = runner.with_gate(StartGate {
                lifecycle: Arc::clone(lifecycle),
                is_open: |journal| journal.is_open() || journal.has_opening_event(),
                refuse_publications: |journal| journal.refuse_until_open(NOT_RELEASED),
                since_ns: None,
            });
        }
        let mut runner: Option<Runner<LazyJournal>> = Some(runner);
        let info = hub::info(id, users.requires_credentials(), payload_size_max);
        let mut hubs = Vec::new();
        for (number, mut port) in ports.into_iter().enumerate() {
            port.set_counters(Arc::clone(&hub_counters), number);
            let runner = if hub_wake.is_some() { None } else { runner.take() };
            let counters = Arc::clone(&overview.hub_handles[number]);
            let nats = NatsShard::new(info.clone()).with_counters(Arc::clone(&counters));
            let handle = HubHandle::new(port, Arc::clone(&users), payload_size_max, counters, runner, number);
            let handle = handle.with_streams(Arc::clone(&directory));
            let hub = match closer {
                Some(closer) => handle.with_closer(closer.clone()),
                None => handle,
            };
            let syslog = SyslogShard::new(Arc::clone(&syslog), payload_size_max);
            hubs.push(ShardHub { hub, nats, syslog });
        }
        Ok(AssembledHub { hubs, runner })
    }
}

/// Opens or checks the streams, depending on the predecessor.
fn open_streams<S: StreamStore>(
    predecessor: PredecessorState,
    hub: stilling_hub::HubConfig,
    store: S,
    created_ns: UnixNanos,
) -> Result<PreparedStreams<S>, OpenError> {
    match predecessor {
        PredecessorState::None => PreparedStreams::open(hub, store, created_ns),
        PredecessorState::Running(_) => PreparedStreams::held_by_predecessor(hub, store),
        PredecessorState::Ending(_) => match PreparedStreams::open(hub.clone(), store.clone(), created_ns) {
            Err(OpenError::Lock(LockError::Held { .. })) => PreparedStreams::held_by_predecessor(hub, store),
            outcome => outcome,
        },
    }
}

/// Runs the holder of the streams. It is dropped, with the streams' locks, before they count as released, also after
/// a panic. After a panic the server drains: without the hub every publication would wait.
fn release_behind<R>(holder: R, lifecycle: &Arc<Lifecycle>, run: impl FnOnce(&mut R)) {
    let _release = ReleaseOnDrop(Arc::clone(lifecycle));
    // Declared after `_release`, hence dropped before it. Captured variables of a closure would be dropped later.
    let mut holder = holder;
    let mut guard = FailureGuard { lifecycle: Arc::clone(lifecycle), served: false };
    run(&mut holder);
    guard.served = true;
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::lifecycle::LifecyclePhase;

    /// Stands in for the hub: records whether the streams count as held when it is dropped.
    struct DropProbe<'a>(&'a Lifecycle, &'a AtomicBool);

    impl Drop for DropProbe<'_> {
        fn drop(&mut self) {
            self.1.store(self.0.holds_streams(), Ordering::Relaxed);
        }
    }

    /// The hub parks first and is woken at once: the wake ends its sleep however late the starting function returns.
    #[test]
    fn a_hub_that_parks_before_its_thread_is_returned_can_be_woken() {
        for _ in 0..1000 {
            let sleeper = Arc::new(OnceLock::new());
            let wake = Arc::new(Wake::for_thread(&sleeper));
            let (known, was_woken) = (Arc::clone(&sleeper), Arc::new(AtomicBool::new(false)));
            let outcome = Arc::clone(&was_woken);
            let run = move || {
                if known.get().map(Thread::id) == Some(thread::current().id()) {
                    wake.set_parked();
                    wake.notify();
                    thread::park();
                    outcome.store(true, Ordering::Relaxed);
                }
            };
            spawn_hub(sleeper, run).expect("the system gives a thread").join().expect("it does not panic");
            assert!(was_woken.load(Ordering::Relaxed), "a wake would be lost");
        }
    }

    /// Row 4.37: the hub drops the streams before they are released, also when it panics.
    #[test]
    fn streams_are_released_behind_the_hub_also_when_it_panics() {
        for panics in [false, true] {
            let lifecycle = Arc::new(Lifecycle::new(Vec::new(), WallClock::System));
            lifecycle.hold_streams();
            let held_at_drop = AtomicBool::new(false);
            let holder = DropProbe(&lifecycle, &held_at_drop);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                release_behind(holder, &lifecycle, |_| assert!(!panics, "on purpose"));
            }));
            assert_eq!(outcome.is_err(), panics);
            assert!(held_at_drop.load(Ordering::Relaxed), "released before the hub had gone");
            assert!(!lifecycle.holds_streams());
            let phase = if panics { LifecyclePhase::Draining } else { LifecyclePhase::Running };
            assert_eq!(lifecycle.phase(), phase);
        }
    }
}
