//! Putting a server together before a thread of it runs: the sockets, the program behind it, what its shards share, and
//! the setup of each shard.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use stilling_engine::Config as EngineConfig;
use stilling_engine::driver::WakeHandle;
use stilling_engine::driver::choice::Chosen;
use stilling_engine::net;
use stilling_ring::{Clock, Wake};
use stilling_workers::processes::QueueLimits;
use stilling_workers::{Growth, Lane, Limits as PoolLimits, Pool};

use super::{Seat, Server, SharedSetup};
use crate::config::{Admin, ServeConfig, ServeError};
use crate::exposure::{self, ListeningAddress, is_loopback};
use crate::hand_over::limits::LISTENERS_HANDED_MAX;
use crate::hand_over::succession::Succession;
use crate::hand_over::{self, Arrival, Crew, HandOverError, Held, Porter};
use crate::http::{HttpConfig, HttpEndpoint, HttpScope, JobOutcome, Routes};
use crate::hub_plan::{HubPlan, Predecessor};
use crate::lifecycle::{Calendar, Lifecycle};
use crate::listeners::{self, Listener, Listeners, Protocol, When};
use crate::overview::Overview;
use crate::rates::Rates;
use crate::room::Room;
use crate::settings::UserConfig;
use crate::shard::Endpoint;
use crate::socket_file::SocketFile;
use crate::syslog::SyslogTransport;
use crate::upstream::{App, UpstreamPool};
use crate::volumes::Volumes;

type DriverHandle = Arc<OnceLock<WakeHandle>>;

impl Server {
    /// Opens the listeners of a server that answers `routes` and its own pages, those first that another server
    /// or the parent process hands to this one. No thread is started, so the process may still fork.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn bind(mut config: ServeConfig, routes: Routes) -> Result<Self, ServeError> {
        let driver = prepare(&mut config, !routes.is_empty())?;
        let mut sockets = Sockets::open(&mut config)?;
        let plan = HubPlan::make(&config, sockets.predecessor)?;
        let room = Room::fit(&mut config, sockets.count())?;
        let exposures = config.exposures_of(exposure::endpoints(&sockets.listeners).into_iter());
        let banner = banner(&config, &driver, &sockets, plan.as_ref(), room.reduced);
        let clock = Clock::real();
        let handles: Vec<DriverHandle> = (0..config.shards).map(|_| Arc::default()).collect();
        let shard_wakes: Vec<Arc<Wake>> = handles.iter().map(wake_through).collect();
        let upstream = Upstream::of(&mut config, &shard_wakes)?;
        let (pool, lanes) = Pool::new(pool_limits(&config), clock.clone(), shard_wakes.clone());
        let mut wakes = shard_wakes.clone();
        wakes.extend(sockets.arrival.as_ref().map(Arrival::wake));
        wakes.extend(plan.as_ref().map(HubPlan::wake));
        let lifecycle = Arc::new(Lifecycle::new(wakes.clone(), Calendar::System));
        let porter = sockets.porter(&config, upstream.app.as_ref(), &lifecycle)?;
        let demo = Demo::of(&config, &routes);
        let shared = SharedSetup {
            kind: driver.kind,
            slots: room.slots,
            shares_listeners: sockets.listeners.kept > 0,
            clock: clock.clone(),
            http: http_config(&config, routes, upstream.app.is_some()),
            engine: upstream.engine_config(&config),
            overview: overview(&config, driver, sockets.urls(), &pool, upstream.app, plan.is_some()),
            lifecycle: Arc::clone(&lifecycle),
        };
        let overview = Arc::clone(&shared.overview);
        let Listeners { addresses, admin, of_shards, files, .. } = sockets.listeners;
        let parts = ShardParts { lanes, of_shards, handles, wakes: &shard_wakes, pools: upstream.pools };
        let seats = parts.seats(&shared, |listener| endpoint(listener, &config, demo));
        let pin = config.pin;
        Ok(Server {
            addresses,
            admin,
            banner,
            exposures,
            seats,
            plan,
            shard_wakes,
            pin,
            wakes,
            pool,
            overview,
            lifecycle,
            clock,
            porter,
            files,
        })
    }
}

/// Completes the configuration, checks it and decides for a driver.
fn prepare(config: &mut ServeConfig, has_routes: bool) -> Result<Chosen, ServeError> {
    if config.app.is_some() {
        // The shards talk to the processes themselves.
        config.worker_threads = 0;
        config.accept_workers = 0;
        config.growth = Growth { free_threshold: 0, ..config.growth };
    }
    config.check(has_routes)?;
    config.shards = config.shards.max(1);
    if config.direct_descriptors {
        config.driver.resolve_direct().map_err(ServeError::DirectDescriptors)
    } else {
        config.driver.resolve().map_err(ServeError::Driver)
    }
}

/// The server's listeners, where they come from, and what its successor gets of them.
struct Sockets {
    listeners: Listeners,
    /// For a successor; none if there cannot be one.
    copies: Vec<OwnedFd>,
    /// Names of the listeners that the parent process has passed.
    passed: Vec<String>,
    predecessor: Predecessor,
    /// Only of a server that can be succeeded.
    arrival: Option<Arrival>,
}

impl Sockets {
    fn open(config: &mut ServeConfig) -> Result<Sockets, ServeError> {
        // The listeners of an old server come as descriptors of this one.
        net::raise_descriptor_limit();
        let report = config.take_over.as_ref().map(|take_over| take_over.tell);
        let (arrival, old) = match config.take_over.take() {
            Some(take_over) => {
                let (arrival, old) = Arrival::ask(take_over).map_err(ServeError::HandOver)?;
                (Some(arrival), old)
            }
            None => (None, Vec::new()),
        };
        let passed = if config.passed_listeners {
            hand_over::take_passed().map_err(ServeError::Activation)?
        } else {
            Vec::new()
        };
        let names = passed.iter().map(|passed| passed.name.clone()).collect();
        let listeners = match &arrival {
            Some(arrival) if arrival.has_old() => Listeners::open(config, old, passed, When::Alone)?,
            Some(arrival) => Listeners::open(config, old, passed, When::Free(&mut arrival.patience()))?,
            None => Listeners::open(config, old, passed, When::Now)?,
        };
        let copies = arrival.as_ref().map(|_| listeners.copies()).transpose().map_err(ServeError::Copies)?;
        let copies = copies.unwrap_or_default();
        if copies.len() > LISTENERS_HANDED_MAX {
            return Err(ServeError::HandOver(HandOverError::TooMany(copies.len())));
        }
        let predecessor = match (&arrival, report) {
            (Some(arrival), Some(report)) if arrival.has_old() => Predecessor::Runs(report),
            (Some(_), Some(report)) => Predecessor::Ends(report),
            _ => Predecessor::None,
        };
        Ok(Sockets { listeners, copies, passed: names, predecessor, arrival })
    }

    /// Descriptors that are open.
    fn count(&self) -> usize {
        self.listeners.count() + self.copies.len()
    }

    /// Where the server listens, without `admin`.
    fn urls(&self) -> Vec<String> {
        let Listeners { protocols, addresses, files, .. } = &self.listeners;
        let mut urls: Vec<String> = (protocols.iter().zip(addresses))
            .map(|(protocol, address)| format!("{}://{address}", protocol.scheme()))
            .collect();
        let unix = Protocol::Syslog(SyslogTransport::Unix).scheme();
        urls.extend(files.iter().map(|file| format!("{unix}:{}", file.path().display())));
        urls
    }

    /// Begins the succession if there is an old server, and makes the control socket of a server that can be succeeded.
    fn porter(
        &mut self,
        config: &ServeConfig,
        app: Option<&Arc<App>>,
        lifecycle: &Arc<Lifecycle>,
    ) -> Result<Option<Porter>, ServeError> {
        let Some(arrival) = self.arrival.take() else { return Ok(None) };
        if arrival.has_old() {
            Succession::begin(lifecycle, app.is_some());
        }
        let waiting = arrival.settle().map_err(ServeError::HandOver)?;
        let held = Held {
            listeners: std::mem::take(&mut self.copies),
            options: listeners::options(config, Protocol::Http),
            sockets: self.listeners.files.iter().map(SocketFile::name).collect(),
        };
        Ok(Some(Porter::new(waiting, Arc::clone(lifecycle), held, config.shards, app.map(crew))))
    }
}

/// The program behind the server, if there is one.
struct Upstream {
    app: Option<Arc<App>>,
    /// One for each shard.
    pools: Vec<UpstreamPool>,
    connects_kept: u32,
    timeout: Duration,
}

impl Upstream {
    fn of(config: &mut ServeConfig, wakes: &[Arc<Wake>]) -> Result<Upstream, ServeError> {
        let Some(app) = config.app.take() else {
            return Ok(Upstream { app: None, pools: Vec::new(), connects_kept: 0, timeout: Duration::MAX });
        };
        let (connects_kept, timeout) = (app.connects_kept(), app.timeout);
        let limits = QueueLimits {
            queue_max: config.queue_max,
            age_max: config.queue_age_max,
            target: config.queue_target,
        };
        let secrets = config.hub.users.iter().filter_map(UserConfig::variable).map(str::to_owned);
        let (app, queues) =
            App::new(app, secrets.collect(), limits, wakes.to_vec()).map_err(ServeError::App)?;
        let pools = app.pools(queues);
        Ok(Upstream { app: Some(Arc::new(app)), pools, connects_kept, timeout })
    }

    /// The shards' configuration: their connects go to the processes, which have their time for that, too.
    fn engine_config(&self, config: &ServeConfig) -> EngineConfig {
        EngineConfig {
            capacity: config.capacity,
            connects_kept: self.connects_kept,
            connect_timeout: config.engine.connect_timeout.min(self.timeout),
            connect_write_timeout: self.timeout,
            ..config.engine.clone()
        }
    }
}

fn pool_limits(config: &ServeConfig) -> PoolLimits {
    PoolLimits {
        threads: config.worker_threads,
        queue_max: config.queue_max,
        age_max: config.queue_age_max,
        growth: config.growth,
        inline_max: config.accept_workers,
        queue_target: config.queue_target,
    }
}

fn overview(
    config: &ServeConfig,
    driver: Chosen,
    listeners: Vec<String>,
    pool: &Pool<JobOutcome>,
    app: Option<Arc<App>>,
    has_hub: bool,
) -> Arc<Overview> {
    let handles = if has_hub { config.shards } else { 0 };
    let volumes = if has_hub { Volumes::of(&config.hub) } else { Volumes::default() };
    Arc::new(Overview {
        started: SystemTime::now(),
        driver: driver.kind.to_string(),
        driver_fallback: driver.fallback,
        listeners,
        capacity: config.capacity,
        workers: config.worker_threads,
        engines: (0..config.shards).map(|_| Arc::default()).collect(),
        http: (0..config.shards).map(|_| Arc::default()).collect(),
        pool: pool.clone(),
        app,
        hub: OnceLock::new(),
        hub_handles: (0..handles).map(|_| Arc::default()).collect(),
        rates: Rates::default(),
        volumes: Arc::new(volumes),
    })
}

fn http_config(config: &ServeConfig, routes: Routes, has_app: bool) -> HttpConfig {
    HttpConfig {
        limits: config.limits,
        timeouts: config.timeouts.clone(),
        slow_duration: config.slow_duration,
        has_workers: config.worker_threads > 0,
        queue_age_max: config.queue_age_max,
        routes: Arc::new(routes),
        requests_held_max: config.requests_held_max,
        answers_held_max: config.answers_held_max,
        write_timeout: config.engine.write_timeout,
        has_app,
    }
}

/// What each shard has of its own, in the order of the shards.
struct ShardParts<'a> {
    lanes: Vec<Lane<JobOutcome>>,
    of_shards: Vec<Vec<Listener>>,
    handles: Vec<DriverHandle>,
    wakes: &'a [Arc<Wake>],
    /// Empty without a program behind the server.
    pools: Vec<UpstreamPool>,
}

impl ShardParts<'_> {
    fn seats(self, shared: &SharedSetup, endpoint: impl Fn(&Listener) -> Endpoint) -> Vec<Seat> {
        let parts = self.lanes.into_iter().zip(self.of_shards).zip(self.handles.into_iter().zip(self.wakes));
        let mut pools = self.pools.into_iter();
        (parts.enumerate())
            .map(|(number, ((lane, listeners), (handle, wake)))| Seat {
                number,
                lane,
                upstream: pools.next(),
                endpoints: listeners.iter().map(&endpoint).collect(),
                listeners,
                handle,
                wake: Arc::clone(wake),
                hub: None,
                shared: shared.clone(),
            })
            .collect()
    }
}

/// Which listeners have the demonstration.
#[derive(Clone, Copy)]
struct Demo {
    everywhere: bool,
    on_loopback: bool,
}

impl Demo {
    /// Routes leave no use for it, unless it is asked for.
    fn of(config: &ServeConfig, routes: &Routes) -> Demo {
        Demo { everywhere: config.demo, on_loopback: routes.is_empty() }
    }

    fn is_at(self, address: SocketAddr) -> bool {
        self.everywhere || self.on_loopback && is_loopback(address)
    }
}

/// What is spoken at a listener.
fn endpoint(listener: &Listener, config: &ServeConfig, demo: Demo) -> Endpoint {
    let scope = match listener.speaks {
        Protocol::Nats => return Endpoint::Nats,
        Protocol::Syslog(transport) => return Endpoint::Syslog(transport),
        Protocol::Custom(number) => {
            let protocol = &config.protocols[usize::from(number)].protocol;
            return Endpoint::Custom(Arc::clone(protocol));
        }
        Protocol::Http if listener.is_admin => HttpScope::Pages,
        Protocol::Http if config.admin == Admin::Everywhere => HttpScope::Everything,
        Protocol::Http => HttpScope::Routes,
    };
    let has_routes = scope != HttpScope::Pages;
    let publishes = has_routes && config.publishes_at(listener.address);
    Endpoint::Http(HttpEndpoint { scope, demo: has_routes && demo.is_at(listener.address), publishes })
}

/// The lines that say what has started.
fn banner(
    config: &ServeConfig,
    driver: &Chosen,
    sockets: &Sockets,
    plan: Option<&HubPlan>,
    reduced: bool,
) -> Vec<String> {
    let mut lines: Vec<String> = sockets.urls().iter().map(|url| format!("listening {url}")).collect();
    lines.extend(sockets.listeners.admin.map(|address| format!("admin http://{address}")));
    lines.push(match &driver.fallback {
        Some(reason) => format!("driver {} ({reason})", driver.kind),
        None => format!("driver {}", driver.kind),
    });
    if let Some(app) = &config.app {
        let (processes, slots) = (app.processes.processes, app.processes.slots);
        lines.push(format!("app {processes} processes with {slots} slots each: {}", app.command));
    }
    if let Some(plan) = plan {
        lines.extend(taken_from_app(config, &exposure::endpoints(&sockets.listeners)));
        lines.extend(plan.banner());
    }
    lines.extend(listener_origin(sockets));
    let up_to = match config.growth {
        growth if growth.is_enabled() => format!(" to {}", growth.threads_max),
        _ => String::new(),
    };
    let reduced = if reduced { " (limited by open files)" } else { "" };
    lines.push(format!(
        "shards {}, worker threads {}{up_to}, capacity {} connections per shard{reduced}",
        config.shards, config.worker_threads, config.capacity
    ));
    lines
}

/// The listeners whose publications do not reach the program behind the server.
fn taken_from_app(config: &ServeConfig, endpoints: &[ListeningAddress]) -> Vec<String> {
    let takes = |at: &&ListeningAddress| {
        config.app.is_some() && at.speaks == Protocol::Http && !at.is_admin && config.publishes_at(at.address)
    };
    let line = |at: &ListeningAddress| {
        format!("publish http://{}/publish/* (answered here, not by the app)", at.address)
    };
    endpoints.iter().filter(takes).map(line).collect()
}

/// Whose listeners these are, unless this server has opened them all.
fn listener_origin(sockets: &Sockets) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(process) = sockets.arrival.as_ref().and_then(Arrival::predecessor) {
        lines.push(format!("taking over from {process}"));
    }
    if !sockets.passed.is_empty() {
        lines.push(format!("passed by the parent: {}", sockets.passed.join(", ")));
    }
    if !lines.is_empty() {
        lines.push(format!("kept {} listeners", sockets.listeners.kept));
    }
    lines
}

/// The worker processes, as a hand-over sees them.
fn crew(app: &Arc<App>) -> Crew {
    let start_timeout = app.config().processes.start_timeout;
    let app = Arc::clone(app);
    Crew { is_ready: Box::new(move || app.counters().ready > 0), start_timeout }
}

/// Wakes the driver whose handle will be in `handle`. A shard that has not made its driver yet is not
/// asleep either.
fn wake_through(handle: &DriverHandle) -> Arc<Wake> {
    let handle = Arc::clone(handle);
    Arc::new(Wake::new(move || {
        if let Some(handle) = handle.get() {
            handle.wake();
        }
    }))
}
