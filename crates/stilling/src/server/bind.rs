//! Assembles a server before any thread runs: sockets, worker processes, shared state, and the setup of each shard.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use stilling_engine::ShardConfig as EngineConfig;
use stilling_engine::driver::WakeHandle;
use stilling_engine::driver::choice::SelectedDriver;
use stilling_engine::net;
use stilling_ring::{Clock, Wake};
use stilling_workers::processes::QueueLimits;
use stilling_workers::{JobSubmitter, Pool, PoolLimits, PoolScaling};

use super::{Server, ShardSetup, SharedSetup};
use crate::coap::{CoapEndpoint, CoapSettings, ExchangeHandover};
use crate::config::{Admin, ServeConfig, ServeError};
use crate::descriptor_budget::DescriptorBudget;
use crate::exposure::{self, ListeningAddress, is_loopback};
use crate::hand_over::limits::LISTENERS_HANDED_OVER_MAX;
use crate::hand_over::succession::Succession;
use crate::hand_over::{self, AppReadiness, HandOverError, HandedSockets, HandoverThread, PendingTakeOver};
use crate::http::{HttpConfig, HttpEndpoint, HttpScope, JobOutcome, Routes, auction_filters};
use crate::hub_plan::{HubPlan, PredecessorState};
use crate::lifecycle::{Lifecycle, WallClock};
use crate::listener_monitor::ListenerMonitor;
use crate::listeners::{self, ListenTiming, ListenerProtocol, Listeners, ListeningSocket};
use crate::overview::Overview;
use crate::packet_log::{PacketCapture, PacketLog, PacketLogCounters};
use crate::rates::Rates;
use crate::settings::UserConfig;
use crate::shard::Endpoint;
use crate::socket_file::SocketFile;
use crate::syslog::SyslogTransport;
use crate::upstream::{App, AppConfig, AppRoutes, PathPattern, PoolIndex, UpstreamPools};
use crate::volume_monitor::VolumeMonitor;

type DriverHandle = Arc<OnceLock<WakeHandle>>;

impl Server {
    /// Opens the listeners of a server for `routes` and the admin pages. Listeners of a predecessor or the parent
    /// process come first. Starts no thread, so the process may still fork.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn bind(mut config: ServeConfig, routes: Routes) -> Result<Self, ServeError> {
        let driver = prepare(&mut config, !routes.is_empty())?;
        let mut sockets = ServerSockets::open(&mut config)?;
        let plan = HubPlan::make(&config, sockets.predecessor)?;
        let budget = DescriptorBudget::fit(&mut config, sockets.count())?;
        let exposures = config.exposures_of(exposure::endpoints(&sockets.listeners).into_iter());
        let banner = banner(&config, &driver, &sockets, plan.as_ref(), budget.reduced);
        let clock = Clock::real();
        let handles: Vec<DriverHandle> = (0..config.shards).map(|_| Arc::default()).collect();
        let shard_wakes: Vec<Arc<Wake>> = handles.iter().map(driver_wake).collect();
        let upstream = UpstreamSetup::of(&config, &shard_wakes)?;
        let (pool, submitters) = Pool::new(pool_limits(&config), clock.clone(), shard_wakes.clone());
        let mut wakes = shard_wakes.clone();
        wakes.extend(sockets.pending.as_ref().map(PendingTakeOver::wake));
        wakes.extend(plan.as_ref().map(HubPlan::wake));
        let lifecycle = Arc::new(Lifecycle::new(wakes.clone(), WallClock::System));
        let exchanges = Arc::<ExchangeHandover>::default();
        let handover_thread = sockets.handover_thread(&config, &upstream.apps, &lifecycle, &exchanges)?;
        let demo = DemoScope::of(&config, &routes);
        let (packet_log, captures, packet_counters) = packet_log(&config);
        let shared = SharedSetup {
            kind: driver.kind,
            slots: budget.slots,
            shares_listeners: sockets.listeners.reused > 0,
            clock: clock.clone(),
            http: http_config(&config, routes),
            engine: upstream.engine_config(&config),
            coap: CoapSettings {
                unproven: config.coap_unproven,
                slow_time: config.coap_slow_time,
                bridge: config.coap_access(),
                ..CoapSettings::default()
            },
            exchanges,
            overview: Arc::new(Overview {
                packet_log: packet_counters,
                ..overview(&config, driver, &sockets, &pool, upstream.apps, plan.is_some())?
            }),
            lifecycle: Arc::clone(&lifecycle),
        };
        let overview = Arc::clone(&shared.overview);
        log_differences(&config, &overview);
        let Listeners { addresses, admin, by_shard, files, .. } = sockets.listeners;
        let wakes_of_shards = &shard_wakes;
        let pools = upstream.pools;
        let parts = ShardParts { submitters, by_shard, handles, wakes: wakes_of_shards, pools, captures };
        let shard_setups = parts.shard_setups(&shared, |listener| endpoint(listener, &config, demo));
        let pin = config.pin;
        Ok(Server {
            addresses,
            admin,
            banner,
            exposures,
            shard_setups,
            plan,
            shard_wakes,
            pin,
            wakes,
            pool,
            overview,
            lifecycle,
            clock,
            handover_thread,
            packet_log,
            reloader: None,
            files,
        })
    }
}

/// The packet log, its part for each shard, and its counters.
fn packet_log(
    config: &ServeConfig,
) -> (Option<PacketLog>, Vec<PacketCapture>, Option<Arc<PacketLogCounters>>) {
    let Some(mut wanted) = config.packet_log.clone() else { return (None, Vec::new(), None) };
    // Daemonizing changes the current directory; without one the path is used as it is.
    wanted.directory = std::path::absolute(&wanted.directory).unwrap_or(wanted.directory);
    let (log, captures, counters) = PacketLog::new(wanted, config.shards, config.log);
    (Some(log), captures, Some(counters))
}

/// Completes and checks the configuration, and selects a driver.
fn prepare(config: &mut ServeConfig, has_routes: bool) -> Result<SelectedDriver, ServeError> {
    if !config.apps.is_empty() {
        // The shards forward to the processes themselves.
        config.worker_threads = 0;
        config.accept_workers = 0;
        config.scaling = PoolScaling { free_threshold: 0, ..config.scaling };
    }
    config.check(has_routes)?;
    config.shards = config.shards.max(1);
    if config.direct_descriptors {
        config.driver.resolve_direct().map_err(ServeError::DirectDescriptors)
    } else {
        config.driver.resolve().map_err(ServeError::Driver)
    }
}

/// The listeners, their origin, and the copies for a successor.
struct ServerSockets {
    listeners: Listeners,
    /// Copies for a successor; empty if there cannot be one.
    copies: Vec<OwnedFd>,
    /// Names of the listeners that the parent process has passed.
    passed: Vec<String>,
    predecessor: PredecessorState,
    /// Only if the server can be succeeded.
    pending: Option<PendingTakeOver>,
}

impl ServerSockets {
    fn open(config: &mut ServeConfig) -> Result<ServerSockets, ServeError> {
        // The predecessor's listeners become descriptors of this process.
        net::raise_descriptor_limit();
        let report = config.take_over.as_ref().map(|take_over| take_over.report);
        let (pending, old) = match config.take_over.take() {
            Some(take_over) => {
                let (pending, old) =
                    PendingTakeOver::request_listeners(take_over).map_err(ServeError::HandOver)?;
                (Some(pending), old)
            }
            None => (None, Vec::new()),
        };
        let passed = if config.passed_listeners {
            hand_over::take_passed_listeners().map_err(ServeError::Activation)?
        } else {
            Vec::new()
        };
        let names = passed.iter().map(|passed| passed.name.clone()).collect();
        let listeners = match &pending {
            Some(pending) if pending.has_predecessor() => {
                Listeners::open(config, old, passed, ListenTiming::BindOnly)?
            }
            Some(pending) => {
                Listeners::open(config, old, passed, ListenTiming::RetryWhile(&mut pending.address_retry()))?
            }
            None => Listeners::open(config, old, passed, ListenTiming::Now)?,
        };
        let copies =
            pending.as_ref().map(|_| listeners.copies()).transpose().map_err(ServeError::CopyListeners)?;
        let copies = copies.unwrap_or_default();
        if copies.len() > LISTENERS_HANDED_OVER_MAX {
            return Err(ServeError::HandOver(HandOverError::TooManyListeners(copies.len())));
        }
        let predecessor = match (&pending, report) {
            (Some(pending), Some(report)) if pending.has_predecessor() => PredecessorState::Running(report),
            (Some(_), Some(report)) => PredecessorState::Ending(report),
            _ => PredecessorState::None,
        };
        Ok(ServerSockets { listeners, copies, passed: names, predecessor, pending })
    }

    fn count(&self) -> usize {
        self.listeners.count() + self.copies.len()
    }

    /// URLs of the listeners, without `admin`.
    fn urls(&self) -> Vec<String> {
        let Listeners { protocols, addresses, files, .. } = &self.listeners;
        let mut urls: Vec<String> = (protocols.iter().zip(addresses))
            .map(|(protocol, address)| format!("{}://{address}", protocol.scheme()))
            .collect();
        let unix = ListenerProtocol::Syslog(SyslogTransport::Unix).scheme();
        urls.extend(files.iter().map(|file| format!("{unix}:{}", file.path().display())));
        urls
    }

    /// Begins the succession if there is a predecessor. Makes the control socket of a server that can be succeeded.
    fn handover_thread(
        &mut self,
        config: &ServeConfig,
        apps: &[Arc<App>],
        lifecycle: &Arc<Lifecycle>,
        exchanges: &Arc<ExchangeHandover>,
    ) -> Result<Option<HandoverThread>, ServeError> {
        let Some(pending) = self.pending.take() else { return Ok(None) };
        if pending.has_predecessor() {
            Succession::begin(lifecycle, !apps.is_empty());
        }
        let prepared = pending.open_control_socket().map_err(ServeError::HandOver)?;
        let handed = HandedSockets {
            listeners: std::mem::take(&mut self.copies),
            options: listeners::options(config, ListenerProtocol::Http),
            sockets: self.listeners.files.iter().map(SocketFile::name).collect(),
            exchanges: Arc::clone(exchanges),
        };
        Ok(Some(HandoverThread::new(
            prepared,
            Arc::clone(lifecycle),
            handed,
            config.shards,
            (!apps.is_empty()).then(|| app_readiness(apps.to_vec())),
        )))
    }
}

struct UpstreamSetup {
    apps: Vec<Arc<App>>,
    /// One per shard, unless there is no pool.
    pools: Vec<UpstreamPools>,
    reserved_connects: u32,
    timeout: Duration,
}

impl UpstreamSetup {
    fn of(config: &ServeConfig, wakes: &[Arc<Wake>]) -> Result<UpstreamSetup, ServeError> {
        let limits = QueueLimits {
            queue_max: config.queue_max,
            age_max: config.queue_age_max,
            target: config.queue_target,
        };
        let secrets: Vec<_> =
            config.hub.users.iter().filter_map(UserConfig::variable).map(str::to_owned).collect();
        let mut apps = Vec::new();
        let mut by_shard: Vec<_> = wakes.iter().map(|_| Vec::new()).collect();
        for (app, index) in config.apps.iter().zip(PoolIndex::all()) {
            let (app, queues) =
                App::new(app.clone(), secrets.clone(), limits, wakes.to_vec()).map_err(ServeError::App)?;
            for (shard, pool) in by_shard.iter_mut().zip(app.pools(index, queues)) {
                shard.push(pool);
            }
            apps.push(Arc::new(app));
        }
        let pools = match apps.is_empty() {
            true => Vec::new(),
            false => by_shard.into_iter().map(UpstreamPools::new).collect(),
        };
        let reserved_connects =
            config.apps.iter().map(AppConfig::reserved_connects).fold(0, u32::saturating_add);
        // The pools apply their own timeouts as well.
        let timeout = config.apps.iter().map(|app| app.timeout).max().unwrap_or(Duration::MAX);
        Ok(UpstreamSetup { apps, pools, reserved_connects, timeout })
    }

    /// The shards' engine configuration. Outgoing connections go to the processes, so their timeout applies as well.
    fn engine_config(&self, config: &ServeConfig) -> EngineConfig {
        EngineConfig {
            capacity: config.capacity,
            reserved_connects: self.reserved_connects,
            connect_timeout: config.engine.connect_timeout.min(self.timeout),
            connect_write_timeout: self.timeout,
            reports_datagrams: config.packet_log.is_some(),
            ..config.engine.clone()
        }
    }
}

fn pool_limits(config: &ServeConfig) -> PoolLimits {
    PoolLimits {
        threads: config.worker_threads,
        queue_max: config.queue_max,
        age_max: config.queue_age_max,
        scaling: config.scaling,
        inline_max: config.accept_workers,
        queue_target: config.queue_target,
    }
}

fn overview(
    config: &ServeConfig,
    driver: SelectedDriver,
    sockets: &ServerSockets,
    pool: &Pool<JobOutcome>,
    apps: Vec<Arc<App>>,
    has_hub: bool,
) -> Result<Overview, ServeError> {
    let handles = if has_hub { config.shards } else { 0 };
    let volumes = if has_hub { VolumeMonitor::of(&config.hub) } else { VolumeMonitor::default() };
    let receive_buffers = sockets.listeners.receive_buffers()?;
    Ok(Overview {
        started: SystemTime::now(),
        driver: driver.kind.to_string(),
        driver_fallback: driver.fallback,
        listeners: sockets.urls(),
        receive_buffers,
        not_opened: sockets.listeners.not_opened.clone(),
        capacity: config.capacity,
        workers: config.worker_threads,
        engines: (0..config.shards).map(|_| Arc::default()).collect(),
        http: (0..config.shards).map(|_| Arc::default()).collect(),
        coap: (0..config.shards).map(|_| Arc::default()).collect(),
        pool: pool.clone(),
        apps,
        hub: OnceLock::new(),
        hub_handles: (0..handles).map(|_| Arc::default()).collect(),
        rates: Rates::default(),
        volumes: Arc::new(volumes),
        listen: ListenerMonitor::new(config.log),
        packet_log: None,
    })
}

/// Logs what differs from the configuration.
fn log_differences(config: &ServeConfig, overview: &Overview) {
    let Some(log) = config.log else { return };
    overview.not_opened.iter().for_each(|line| log(line));
    let requested = config.datagram_receive_buffer.unwrap_or(0) as u64;
    for (listener, granted) in &overview.receive_buffers {
        if *granted < requested {
            log(&format!(
                "the receive buffer of {listener} has {granted} bytes, not the requested {requested}: raise \
                 net.core.rmem_max, or give the server CAP_NET_ADMIN"
            ));
        }
    }
}

fn http_config(config: &ServeConfig, routes: Routes) -> HttpConfig {
    HttpConfig {
        limits: config.limits,
        timeouts: config.timeouts.clone(),
        slow_duration: config.slow_duration,
        has_workers: config.worker_threads > 0,
        queue_age_max: config.queue_age_max,
        routes: Arc::new(routes),
        requests_held_max: config.requests_held_max,
        responses_held_max: config.responses_held_max,
        write_timeout: config.engine.write_timeout,
        apps: AppRoutes::new(config.apps.iter().map(|app| &app.paths)),
        auction_filters: auction_filters(&config.hub.streams),
    }
}

/// The parts of each shard, in the order of the shards.
struct ShardParts<'a> {
    submitters: Vec<JobSubmitter<JobOutcome>>,
    by_shard: Vec<Vec<ListeningSocket>>,
    handles: Vec<DriverHandle>,
    wakes: &'a [Arc<Wake>],
    /// Empty without worker processes.
    pools: Vec<UpstreamPools>,
    /// Empty without a packet log.
    captures: Vec<PacketCapture>,
}

impl ShardParts<'_> {
    fn shard_setups(
        self,
        shared: &SharedSetup,
        endpoint: impl Fn(&ListeningSocket) -> Endpoint,
    ) -> Vec<ShardSetup> {
        let parts =
            self.submitters.into_iter().zip(self.by_shard).zip(self.handles.into_iter().zip(self.wakes));
        let mut pools = self.pools.into_iter();
        let mut captures = self.captures.into_iter();
        (parts.enumerate())
            .map(|(number, ((submitter, listeners), (handle, wake)))| ShardSetup {
                number,
                submitter,
                upstream: pools.next(),
                endpoints: listeners.iter().map(&endpoint).collect(),
                listeners,
                handle,
                wake: Arc::clone(wake),
                hub: None,
                packets: captures.next(),
                shared: shared.clone(),
            })
            .collect()
    }
}

/// The listeners that answer `/test/*`.
#[derive(Clone, Copy)]
struct DemoScope {
    everywhere: bool,
    on_loopback: bool,
}

impl DemoScope {
    /// With routes or worker processes, only on request.
    fn of(config: &ServeConfig, routes: &Routes) -> DemoScope {
        DemoScope { everywhere: config.demo, on_loopback: routes.is_empty() && config.apps.is_empty() }
    }

    fn is_at(self, address: SocketAddr) -> bool {
        self.everywhere || self.on_loopback && is_loopback(address)
    }
}

fn endpoint(listener: &ListeningSocket, config: &ServeConfig, demo: DemoScope) -> Endpoint {
    let scope = match listener.protocol {
        ListenerProtocol::Nats => return Endpoint::Nats,
        ListenerProtocol::NatsWebSocket => {
            let is_open = config.subscribes_at(listener.address);
            let scope = HttpScope::NatsWebSocket;
            return Endpoint::Http(HttpEndpoint {
                scope,
                demo: false,
                publishes: is_open,
                subscribes: is_open,
            });
        }
        ListenerProtocol::Syslog(transport) => return Endpoint::Syslog(transport),
        ListenerProtocol::Coap => {
            return Endpoint::Coap(CoapEndpoint { demo: demo.is_at(listener.address) });
        }
        ListenerProtocol::Custom(number) => {
            let protocol = &config.protocols[usize::from(number)].protocol;
            return Endpoint::Custom(Arc::clone(protocol));
        }
        ListenerProtocol::Http if listener.is_admin => HttpScope::Pages,
        ListenerProtocol::Http if config.admin == Admin::Everywhere => HttpScope::Everything,
        ListenerProtocol::Http => HttpScope::Routes,
    };
    let has_routes = scope != HttpScope::Pages;
    let publishes = has_routes && config.publishes_at(listener.address);
    let subscribes = has_routes && config.subscribes_at(listener.address);
    let demo = has_routes && demo.is_at(listener.address);
    Endpoint::Http(HttpEndpoint { scope, demo, publishes, subscribes })
}

/// Lines that describe the started server.
fn banner(
    config: &ServeConfig,
    driver: &SelectedDriver,
    sockets: &ServerSockets,
    plan: Option<&HubPlan>,
    reduced: bool,
) -> Vec<String> {
    let mut lines: Vec<String> = sockets.urls().iter().map(|url| format!("listening {url}")).collect();
    lines.extend(sockets.listeners.admin.map(|address| format!("admin http://{address}")));
    lines.push(match &driver.fallback {
        Some(reason) => format!("driver {} ({reason})", driver.kind),
        None => format!("driver {}", driver.kind),
    });
    for app in &config.apps {
        let (processes, slots) = (app.processes.processes, app.processes.slots);
        let pool = match app.paths {
            PathPattern::Everything => String::new(),
            PathPattern::Below(_) | PathPattern::Exactly(_) => format!("{} at {}, ", app.name, app.paths),
        };
        lines.push(format!("app {pool}{processes} processes with {slots} slots each: {}", app.command));
    }
    if let Some(plan) = plan {
        lines.extend(hub_path_lines(config, &exposure::endpoints(&sockets.listeners)));
        lines.extend(plan.banner());
    }
    lines.extend(listener_origin(sockets));
    let up_to = match config.scaling {
        scaling if scaling.is_enabled() => format!(" to {}", scaling.threads_max),
        _ => String::new(),
    };
    let reduced = if reduced { " (limited by open files)" } else { "" };
    lines.push(format!(
        "shards {}, worker threads {}{up_to}, capacity {} connections per shard{reduced}",
        config.shards, config.worker_threads, config.capacity
    ));
    lines
}

/// Paths of the hub that are answered here instead of by the worker processes.
fn hub_path_lines(config: &ServeConfig, endpoints: &[ListeningAddress]) -> Vec<String> {
    let is_app = |at: &&ListeningAddress| {
        !config.apps.is_empty() && at.protocol == ListenerProtocol::Http && !at.is_admin
    };
    let lines = |at: &ListeningAddress| {
        let publish = config.publishes_at(at.address).then_some("publish");
        let subscribe = config.subscribes_at(at.address).then_some("subscribe");
        let address = at.address;
        let prefixes = [publish, subscribe].into_iter().flatten().map(|path| (path, "/*"));
        let nats = config.serves_nats_at(address).then_some(("nats", ""));
        let page = config.has_auction_page_at(address).then_some(("auction", ""));
        prefixes.chain(nats).chain(page).map(move |(path, rest)| {
            format!("{path} http://{address}/{path}{rest} (answered here, not by the app)")
        })
    };
    endpoints.iter().filter(is_app).flat_map(lines).collect()
}

/// The origin of the listeners, unless this server has opened all of them.
fn listener_origin(sockets: &ServerSockets) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(process) = sockets.pending.as_ref().and_then(PendingTakeOver::predecessor) {
        lines.push(format!("taking over from {process}"));
    }
    if !sockets.passed.is_empty() {
        lines.push(format!("passed by the parent: {}", sockets.passed.join(", ")));
    }
    if !lines.is_empty() {
        lines.push(format!("kept {} listeners", sockets.listeners.reused));
    }
    lines
}

/// Ready when every pool has a process.
fn app_readiness(apps: Vec<Arc<App>>) -> AppReadiness {
    let start_timeout = apps.iter().map(|app| app.config().processes.start_timeout).max().unwrap_or_default();
    let is_ready = move || apps.iter().all(|app| app.counters().ready > 0);
    AppReadiness { is_ready: Box::new(is_ready), start_timeout }
}

/// Wakes the driver in `handle`. Before a shard has made its driver it does not sleep.
fn driver_wake(handle: &DriverHandle) -> Arc<Wake> {
    let handle = Arc::clone(handle);
    Arc::new(Wake::new(move || {
        if let Some(handle) = handle.get() {
            handle.wake();
        }
    }))
}
