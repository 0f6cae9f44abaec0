//! One run of the server: shards, hub and journal over simulated disks, run step by step.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stilling::Overview;
use stilling::http::{Routes, Timeouts};
use stilling::parts::{
    Endpoint, HttpConfig, HttpEndpoint, HttpScope, JobOutcome, Lifecycle, ShardHub, ShardService,
    SimulatedStorage, SteppedJournal, WallClock, hub_on_simulated_disks,
};
use stilling::settings::StreamConfig;
use stilling_engine::driver::{Driver as _, Wait};
use stilling_engine::{CloseReason, Shard, ShardConfig};
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::{JournalLimits, LogConfig};
use stilling_ring::{Time, Wake};
use stilling_wire::http1::HttpLimits;
use stilling_workers::{JobSubmitter, Pool};

use crate::SplitMix64;
use crate::driver::SimDriver;
use crate::network::{Network, SimSocket};
use crate::overview;

/// Start of every world, in seconds since 1970.
const CALENDAR_START: u64 = 1_700_000_000;

pub(super) const HTTP: &str = "127.0.0.1:9000";
pub(super) const NATS: &str = "127.0.0.1:4222";

type StreamsSimShard = Shard<SimDriver, ShardService>;

/// Setup of a server, the same in all its runs.
pub(super) struct ServerPlan {
    pub(super) streams: Vec<StreamConfig>,
    pub(super) segment_size: u64,
    pub(super) journal: JournalLimits,
    pub(super) shards: usize,
    pub(super) buffers: u16,
    pub(super) drain: Duration,
    /// Longest time of a journal step.
    pub(super) disk_latency: Duration,
    /// Bytes of a batch of a memory stream; `None`: as in a server.
    pub(super) memory_batch_size: Option<usize>,
    /// Bytes of unsent output per shard; `None`: as in a server.
    pub(super) output_bytes_max: Option<usize>,
    /// The journal's clock at the start of the world.
    pub(super) origin: Instant,
}

/// Listening sockets: HTTP and NATS for each shard.
pub(super) type ListeningSockets = Vec<(SimSocket, SimSocket)>;

pub(super) struct StreamsServer {
    server_shards: Vec<ServerShard>,
    lifecycle: Arc<Lifecycle>,
    overview: Arc<Overview>,
    pub(super) journal: SteppedJournal,
    writes_at: Option<Time>,
    reads_at: Option<Time>,
    disk_latency: Duration,
    origin: Instant,
    /// The disks do not respond before this time.
    pub(super) hangs_until: Time,
    /// A shard whose thread does not run before this time.
    pub(super) stalled: Option<(usize, Time)>,
    /// Bytes of output that a shard held when it disconnected a slow consumer.
    slow_consumer_at: Option<u64>,
}

pub(super) struct ServerShard {
    shard: StreamsSimShard,
    sleeping_until: Option<Wait>,
}

/// Listening sockets for every shard of a future server.
pub(super) fn listen(network: &Network, shards: usize) -> ListeningSockets {
    let address = |text: &str| crate::network::Address::Tcp(text.parse().expect("an address"));
    let pair = |_| (network.listen(address(HTTP), 64, None), network.listen(address(NATS), 64, None));
    (0..shards).map(pair).collect()
}

/// HTTP and NATS, in the order of [`listen`].
fn endpoints() -> Vec<Endpoint> {
    let everything =
        HttpEndpoint { scope: HttpScope::Everything, demo: false, publishes: true, subscribes: true };
    vec![Endpoint::Http(everything), Endpoint::Nats]
}

/// Parts of a server except its hub.
pub(super) struct ServerBuilder {
    drivers: Vec<SimDriver>,
    submitters: Vec<JobSubmitter<JobOutcome>>,
    engine: ShardConfig,
    pub(super) wakes: Vec<Arc<Wake>>,
    pub(super) overview: Arc<Overview>,
    pub(super) lifecycle: Arc<Lifecycle>,
}

impl ServerBuilder {
    pub(super) fn new(plan: &ServerPlan, network: &Network) -> ServerBuilder {
        let drivers: Vec<SimDriver> =
            (0..plan.shards).map(|_| SimDriver::with_buffers(network, plan.buffers)).collect();
        let wake = |driver: &SimDriver| {
            let handle = driver.wake_handle();
            Arc::new(Wake::new(move || handle.wake()))
        };
        let wakes: Vec<Arc<Wake>> = drivers.iter().map(wake).collect();
        let no_workers =
            stilling_workers::PoolLimits { threads: 0, ..stilling_workers::PoolLimits::default() };
        let (pool, submitters) = Pool::new(no_workers, network.clock(), wakes.clone());
        let lifecycle = Arc::new(Lifecycle::new(wakes.clone(), WallClock::StartingAt(CALENDAR_START)));
        let defaults = ShardConfig::default();
        let engine = ShardConfig {
            capacity: 64,
            write_timeout: Duration::from_secs(5),
            linger_timeout: Duration::from_millis(200),
            output_bytes_max: plan.output_bytes_max.unwrap_or(defaults.output_bytes_max),
            ..defaults
        };
        let overview = Arc::new(overview::simulated(plan.shards, engine.capacity, &pool, 0));
        ServerBuilder { drivers, submitters, engine, wakes, overview, lifecycle }
    }

    /// Builds the shards with these connections to the hub. They do not listen yet.
    pub(super) fn server_shards(
        self,
        plan: &ServerPlan,
        network: &Network,
        hubs: Vec<ShardHub>,
    ) -> Vec<ServerShard> {
        let parts = self.drivers.into_iter().zip(self.submitters).zip(self.wakes).zip(hubs).enumerate();
        let server_shard =
            |(number, (((driver, submitter), wake), hub)): (usize, (((SimDriver, _), _), _))| {
                let counters = Arc::clone(&self.overview.http[number]);
                let (see, life) = (Arc::clone(&self.overview), Arc::clone(&self.lifecycle));
                let service =
                    ShardService::new(endpoints(), plan.http(&self.engine), submitter, counters, see, life)
                        .with_hub(Some(hub));
                let counters = Arc::clone(&self.overview.engines[number]);
                let shard = Shard::new(driver, service, self.engine.clone(), network.clock(), wake, counters);
                ServerShard { shard, sleeping_until: None }
            };
        parts.map(server_shard).collect()
    }
}

impl StreamsServer {
    /// Opens the streams and starts. If they cannot be opened, the sockets stay with the caller.
    pub(super) fn start(
        plan: &ServerPlan,
        network: &Network,
        disks: &[SimulatedDisk],
        sockets: ListeningSockets,
    ) -> Result<StreamsServer, (ListeningSockets, String)> {
        let builder = ServerBuilder::new(plan, network);
        let log = LogConfig { segment_size: plan.segment_size, ..LogConfig::default() };
        let now = instant(plan.origin, network.now());
        let storage = SimulatedStorage {
            disks,
            log,
            limits: plan.journal,
            now,
            started: network.now(),
            memory_batch_size: plan.memory_batch_size,
        };
        let hub = hub_on_simulated_disks(
            &plan.streams,
            storage,
            &builder.wakes,
            &builder.overview,
            &builder.lifecycle,
        );
        let (hubs, journal) = match hub {
            Ok(opened) => opened,
            Err(error) => return Err((sockets, error.to_string())),
        };
        let (lifecycle, overview) = (Arc::clone(&builder.lifecycle), Arc::clone(&builder.overview));
        let mut server_shards = builder.server_shards(plan, network, hubs);
        for (server_shard, (http, nats)) in server_shards.iter_mut().zip(sockets) {
            for socket in [http, nats] {
                server_shard.listen(socket).map_err(|error| (Vec::new(), error))?;
            }
        }
        let (disk_latency, origin) = (plan.disk_latency, plan.origin);
        let (writes_at, reads_at, hangs_until) = (None, None, Time::ZERO);
        Ok(StreamsServer {
            server_shards,
            lifecycle,
            overview,
            journal,
            writes_at,
            reads_at,
            disk_latency,
            origin,
            hangs_until,
            stalled: None,
            slow_consumer_at: None,
        })
    }

    pub(super) fn end(&self) {
        self.lifecycle.end();
    }

    pub(super) fn frozen(&self) -> u64 {
        let hub = self.overview.hub.get();
        hub.map_or(0, |hub| hub.streams.iter().map(|stream| stream.frozen.get()).sum())
    }

    /// Bytes of output that a shard held when it last disconnected a slow consumer, once.
    pub(super) fn take_slow_consumer(&mut self) -> Option<u64> {
        self.slow_consumer_at.take()
    }

    /// Slow consumers that a shard disconnected because of their output, and the bytes of output that it holds.
    fn slow_and_held(&self, shard: usize) -> (i64, u64) {
        let engine = &self.overview.engines[shard];
        // Subscribers that reached the write timeout count as slow, too; other connections reach it as well.
        let late = engine.closed(CloseReason::WriteTimeout).get() as i64;
        let slow = self.overview.hub_handles[shard].slow_consumers.get() as i64;
        (slow - late, engine.output_held.get())
    }

    /// Times that a slow subscriber fell behind.
    pub(super) fn fallen_behind(&self) -> u64 {
        self.overview.hub.get().map_or(0, |hub| hub.fallen_behind())
    }

    /// Runs everything with work at `now`. Returns whether there was any.
    pub(super) fn run(&mut self, now: Time, random: &mut SplitMix64) -> Result<bool, String> {
        let mut any = false;
        self.stalled = self.stalled.filter(|(_, until)| *until > now);
        for number in 0..self.server_shards.len() {
            if self.stalled.is_some_and(|(stalled, _)| stalled == number) {
                continue;
            }
            let before = self.slow_and_held(number);
            any |= self.server_shards[number].run(now, number > 0)?;
            let after = self.slow_and_held(number);
            if after.0 > before.0 {
                self.slow_consumer_at = Some(before.1.max(after.1));
            }
        }
        let journal = &mut self.journal;
        let at = instant(self.origin, now);
        // Blocks are built even while the disk hangs.
        journal.writer.build();
        any |= step(&mut self.writes_at, now, (self.hangs_until, self.disk_latency), random, |act| {
            if act {
                journal.writer.turn(at);
                return true;
            }
            journal.writer.has_work() || journal.writer.due_at() <= at
        });
        any |= step(&mut self.reads_at, now, (Time::ZERO, self.disk_latency), random, |act| {
            if act { journal.reader.turn() } else { journal.reader.has_work() }
        });
        Ok(any)
    }

    /// Time of the next work known to the server.
    pub(super) fn wakes_at(&self) -> Option<Time> {
        let span = self.journal.writer.due_at().saturating_duration_since(self.origin);
        let writes_at = self.writes_at.unwrap_or(Time::ZERO.after(span));
        let stalled = self.stalled.map(|(number, _)| number);
        let running = self.server_shards.iter().enumerate().filter(|(number, _)| Some(*number) != stalled);
        running
            .filter_map(|(_, server_shard)| server_shard.wakes_at())
            .chain(self.stalled.map(|(_, until)| until))
            .chain([writes_at])
            .chain(self.reads_at)
            .min()
    }

    /// Whether every shard has stopped and is empty.
    pub(super) fn has_stopped(&mut self) -> bool {
        self.server_shards.iter_mut().all(ServerShard::has_stopped)
    }

    /// Checks that every connection ended with one reason and nothing remains.
    pub(super) fn check_end(&mut self) -> Result<(), String> {
        self.server_shards.iter_mut().try_for_each(ServerShard::check_end)
    }

    /// Drops the shards and the hub with their memory; what the hub has handed over stays with the journal.
    pub(super) fn kill(self) -> SteppedJournal {
        drop(self.server_shards);
        self.journal
    }
}

pub(super) fn instant(origin: Instant, now: Time) -> Instant {
    origin + Duration::from_nanos(now.as_nanos())
}

/// Runs a step of a journal worker when it is due, and schedules the next.
pub(super) fn step(
    due: &mut Option<Time>,
    now: Time,
    (not_before, latency): (Time, Duration),
    random: &mut SplitMix64,
    mut work: impl FnMut(bool) -> bool,
) -> bool {
    if due.is_some_and(|at| at.max(not_before) <= now) {
        *due = None;
        return work(true);
    }
    if due.is_none_or(|at| at < not_before) && work(false) {
        let span = Duration::from_micros(random.between(10, latency.as_micros() as u64));
        *due = Some(now.after(span).max(not_before));
    }
    false
}

impl ServerShard {
    pub(super) fn listen(&mut self, socket: SimSocket) -> Result<(), String> {
        self.shard.listen(socket, false).map(|_| ()).map_err(|error| error.to_string())
    }

    /// Time at which it wakes, if it sleeps and the time is known.
    pub(super) fn wakes_at(&self) -> Option<Time> {
        match self.sleeping_until {
            Some(Wait::Until(at)) => Some(at),
            _ => None,
        }
    }

    pub(super) fn has_stopped(&mut self) -> bool {
        self.shard.is_stopped() && self.shard.driver().tokens_in_use() == 0
    }

    /// Checks that every connection ended with one reason and nothing remains.
    pub(super) fn check_end(&mut self) -> Result<(), String> {
        self.shard.audit()?;
        self.shard.driver().assert_drained();
        let counters = self.shard.counters();
        let (accepted, closed) = (counters.accepted.get(), counters.closed_total());
        if accepted != closed + counters.refused_full.get() {
            return Err(format!("{accepted} connections accepted, {closed} closed with a reason"));
        }
        Ok(())
    }

    /// Turns the shard if it is awake, its deadline has come, or its driver has events.
    pub(super) fn run(&mut self, now: Time, leaves_hub: bool) -> Result<bool, String> {
        if self.shard.is_stopped() && self.shard.driver().tokens_in_use() == 0 {
            self.sleeping_until = Some(Wait::Forever);
            return Ok(false);
        }
        let wait = *self.sleeping_until.get_or_insert_with(|| self.shard.prepare_to_wait());
        let is_due = match wait {
            Wait::No => true,
            Wait::Until(at) => at <= now,
            Wait::Forever => false,
        };
        if !is_due && !self.shard.driver().has_pending_events() {
            return Ok(false);
        }
        self.sleeping_until = None;
        self.shard.turn(false).map_err(|error| error.to_string())?;
        self.shard.audit()?;
        if self.shard.is_stopped() && leaves_hub {
            self.shard.service().leave_hub();
        }
        Ok(true)
    }
}

impl ServerPlan {
    fn http(&self, engine: &ShardConfig) -> HttpConfig {
        HttpConfig {
            limits: HttpLimits::default(),
            timeouts: Timeouts {
                first_byte: Duration::from_secs(1000),
                head: Duration::from_secs(100),
                body_grace: Duration::from_secs(100),
                body_rate_min: 1,
                idle: Duration::from_secs(1000),
                work: Duration::from_secs(30),
                drain: self.drain,
            },
            slow_duration: Duration::ZERO,
            has_workers: false,
            queue_age_max: Duration::from_secs(1),
            routes: Arc::new(Routes::new()),
            responses_held_max: 1 << 30,
            requests_held_max: 1 << 20,
            write_timeout: engine.write_timeout,
            apps: Default::default(),
            auction_filters: Vec::new(),
        }
    }
}
