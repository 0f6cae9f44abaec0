//! `serve`: listeners, shards and workers put together, from configuration to the last answer.
//!
//! The calling thread becomes shard 0; the other shards and the workers get threads of their own, all
//! at the start. So A shards and W workers make A + W − 1 new threads; one more each has a pool that may grow, its keeper,
//! which starts others later; a server that is to be succeeded, its porter; and one with worker processes, their
//! supervisor. `start` leaves the calling thread alone and makes one more.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use stilling_engine::cores;
use stilling_engine::counters::Counters;
use stilling_engine::driver::choice::{Chosen, DriverKind};
use stilling_engine::driver::poll::Poll;
use stilling_engine::driver::uring::Uring;
use stilling_engine::driver::{Driver, WakeHandle, signals};
use stilling_engine::net;
use stilling_engine::{Config as EngineConfig, Shard};
use stilling_ring::{Clock, Wake};
use stilling_workers::processes::QueueLimits;
use stilling_workers::{Growth, Lane, Limits as PoolLimits, Pool};

use crate::config::{Admin, ServeConfig, ServeError};
use crate::exposure::{self, Exposure, ListeningAddress, is_loopback};
use crate::hand_over::limits::{LISTENERS_HANDED_MAX, LOOK_AGAIN_FOR};
use crate::hand_over::succession::Succession;
use crate::hand_over::{self, Arrival, Bell, Crew, HandOverError, Held, Porter, Process};
use crate::http::{HttpConfig, HttpCounters, HttpEndpoint, HttpScope, JobOutcome, Routes};
use crate::hub::{Closers, HubHandleCounters};
use crate::hub_plan::{HubPlan, Predecessor};
use crate::lifecycle::{Calendar, EndUnless, Lifecycle, Phase, Stage};
use crate::listeners::{self, Listener, Listeners, Protocol, When};
use crate::overview::Overview;
use crate::rates::Rates;
use crate::room::Room;
use crate::running::RunningServer;
use crate::shard::{Endpoint, ShardHub, ShardService};
use crate::socket_file::SocketFile;
use crate::syslog::SyslogTransport;
use crate::upstream::{App, UpstreamPool};
use crate::volumes::Volumes;

/// A server that listens but does not serve yet: clients wait in the backlog.
pub struct Server {
    addresses: Vec<SocketAddr>,
    admin: Option<SocketAddr>,
    banner: Vec<String>,
    exposures: Vec<Exposure>,
    seats: Vec<Seat>,
    plan: Option<HubPlan>,
    shard_wakes: Vec<Arc<Wake>>,
    pin: bool,
    wakes: Vec<Arc<Wake>>,
    pool: Pool<JobOutcome>,
    overview: Arc<Overview>,
    lifecycle: Arc<Lifecycle>,
    clock: Clock,
    porter: Option<Porter>,
    /// They go with the server.
    files: Vec<SocketFile>,
}

impl Server {
    /// Opens the listeners of a server that answers `routes` and its own pages, those first that another server
    /// or the parent process hands to this one. No thread is started, so the process may still fork.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn bind(mut config: ServeConfig, routes: Routes) -> Result<Self, ServeError> {
        if config.app.is_some() {
            // The shards talk to the processes themselves.
            config.worker_threads = 0;
            config.accept_workers = 0;
            config.growth = Growth { free_threshold: 0, ..config.growth };
        }
        config.check(!routes.is_empty())?;
        config.shards = config.shards.max(1);
        let driver = if config.direct_descriptors {
            config.driver.resolve_direct().map_err(ServeError::DirectDescriptors)?
        } else {
            config.driver.resolve().map_err(ServeError::Driver)?
        };
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
        let names: Vec<String> = passed.iter().map(|passed| passed.name.clone()).collect();
        let listeners = match &arrival {
            Some(arrival) if arrival.has_old() => Listeners::open(&config, old, passed, When::Alone)?,
            Some(arrival) => Listeners::open(&config, old, passed, When::Free(&mut arrival.patience()))?,
            None => Listeners::open(&config, old, passed, When::Now)?,
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
        let plan = HubPlan::make(&config, predecessor)?;
        let room = Room::fit(&mut config, listeners.count() + copies.len())?;
        let admin = listeners.admin;
        let mut urls: Vec<String> = (listeners.protocols.iter().zip(&listeners.addresses))
            .map(|(protocol, address)| format!("{}://{address}", protocol.scheme()))
            .collect();
        let unix = Protocol::Syslog(SyslogTransport::Unix).scheme();
        urls.extend(listeners.files.iter().map(|file| format!("{unix}:{}", file.path().display())));
        let endpoints = exposure::endpoints(&listeners);
        let exposures = config.exposures_of(endpoints.iter().copied());
        let mut banner = banner(&config, &driver, (&urls, admin), room.reduced);
        if let Some(plan) = &plan {
            let last = banner.len() - 1;
            let taken = taken_from_app(&config, &endpoints);
            banner.splice(last..last, taken.into_iter().chain(plan.banner()));
        }
        let predecessor = arrival.as_ref().and_then(Arrival::predecessor);
        tell_where_from(&mut banner, listeners.kept, predecessor, &names);
        let clock = Clock::real();
        let handles: Vec<Arc<OnceLock<WakeHandle>>> = (0..config.shards).map(|_| Arc::default()).collect();
        let wakes: Vec<Arc<Wake>> = handles.iter().map(wake_through).collect();
        let queue = QueueLimits {
            queue_max: config.queue_max,
            age_max: config.queue_age_max,
            target: config.queue_target,
        };
        let (mut connects_kept, mut app_timeout) = (0, Duration::MAX);
        let (app, mut pools) = match config.app.take() {
            Some(app) => {
                (connects_kept, app_timeout) = (app.connects_kept(), app.timeout);
                let secrets = config
                    .hub
                    .users
                    .iter()
                    .filter_map(crate::settings::UserConfig::variable)
                    .map(str::to_owned);
                let (app, queues) =
                    App::new(app, secrets.collect(), queue, wakes.clone()).map_err(ServeError::App)?;
                let pools = app.pools(queues);
                (Some(Arc::new(app)), pools)
            }
            None => (None, Vec::new()),
        };
        let limits = PoolLimits {
            threads: config.worker_threads,
            queue_max: config.queue_max,
            age_max: config.queue_age_max,
            growth: config.growth,
            inline_max: config.accept_workers,
            queue_target: config.queue_target,
        };
        let (pool, lanes) = Pool::new(limits, clock.clone(), wakes.clone());
        let mut told = wakes.clone();
        told.extend(arrival.as_ref().map(Arrival::wake));
        told.extend(plan.as_ref().map(HubPlan::wake));
        let lifecycle = Arc::new(Lifecycle::new(told.clone(), Calendar::System));
        if arrival.as_ref().is_some_and(Arrival::has_old) {
            Succession::begin(&lifecycle, app.is_some());
        }
        let porter = match arrival {
            Some(arrival) => {
                let waiting = arrival.settle().map_err(ServeError::HandOver)?;
                let options = listeners::options(&config, Protocol::Http);
                let crew = app.as_ref().map(crew);
                let sockets = listeners.files.iter().map(SocketFile::name).collect();
                let held = Held { listeners: copies, options, sockets };
                Some(Porter::new(waiting, Arc::clone(&lifecycle), held, config.shards, crew))
            }
            None => None,
        };
        let Listeners { addresses, of_shards, kept, files, .. } = listeners;
        let hub_counters: Vec<Arc<HubHandleCounters>> = (0..config.shards).map(|_| Arc::default()).collect();
        let volumes = Arc::new(plan.as_ref().map_or_else(Volumes::default, |_| Volumes::of(&config.hub)));
        let overview = Arc::new(Overview {
            started: std::time::SystemTime::now(),
            driver: driver.kind.to_string(),
            driver_fallback: driver.fallback,
            listeners: urls,
            capacity: config.capacity,
            workers: config.worker_threads,
            engines: (0..config.shards).map(|_| Arc::default()).collect(),
            http: (0..config.shards).map(|_| Arc::default()).collect(),
            pool: pool.clone(),
            app,
            hub: OnceLock::new(),
            hub_handles: if plan.is_some() { hub_counters } else { Vec::new() },
            rates: Rates::default(),
            volumes,
        });
        // Who has routes has no use for the demonstration, unless asked for.
        let (demo, demo_on_loopback) = (config.demo, routes.is_empty());
        let http = HttpConfig {
            limits: config.limits,
            timeouts: config.timeouts.clone(),
            slow_duration: config.slow_duration,
            has_workers: config.worker_threads > 0,
            queue_age_max: config.queue_age_max,
            routes: Arc::new(routes),
            requests_held_max: config.requests_held_max,
            answers_held_max: config.answers_held_max,
            write_timeout: config.engine.write_timeout,
            has_app: overview.app.is_some(),
        };
        // Connects go to the processes, which have their time for that, too.
        let connect_timeout = config.engine.connect_timeout.min(app_timeout);
        let engine = EngineConfig {
            capacity: config.capacity,
            connects_kept,
            connect_timeout,
            connect_write_timeout: app_timeout,
            ..config.engine.clone()
        };
        let seats = (lanes.into_iter().zip(of_shards).zip(handles).enumerate())
            .map(|(number, ((lane, listeners), handle))| Seat {
                number,
                kind: driver.kind,
                slots: room.slots,
                lane,
                http: http.clone(),
                endpoints: listeners
                    .iter()
                    .map(|listener| {
                        let demo = demo || demo_on_loopback && is_loopback(listener.address);
                        endpoint(listener, &config, demo)
                    })
                    .collect(),
                listeners,
                shares_listeners: kept > 0,
                handle,
                upstream: (!pools.is_empty()).then(|| pools.remove(0)),
                wake: Arc::clone(&wakes[number]),
                clock: clock.clone(),
                engine: engine.clone(),
                overview: Arc::clone(&overview),
                lifecycle: Arc::clone(&lifecycle),
                hub: None,
            })
            .collect();
        Ok(Server {
            addresses,
            admin,
            banner,
            exposures,
            seats,
            plan,
            shard_wakes: wakes,
            pin: config.pin,
            wakes: told,
            pool,
            overview,
            lifecycle,
            clock,
            porter,
            files,
        })
    }

    /// Where the server listens, ports filled in.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where the pages about the server are answered, port filled in, if they have a listener of their own.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// The lines that say what has started.
    pub fn banner(&self) -> &[String] {
        &self.banner
    }

    /// Everything that is reachable from other machines without credentials, at the addresses that are listened on.
    pub fn exposures(&self) -> &[Exposure] {
        &self.exposures
    }

    /// From now on SIGTERM and SIGINT drain the server, also one that is not serving yet; a second
    /// one cuts off what has not finished.
    ///
    /// # Errors
    /// The system refuses the handlers.
    pub fn watch_signals(&self) -> Result<(), ServeError> {
        let signals = [libc_signal::TERM, libc_signal::INT];
        signals::count_signals(&signals, self.lifecycle.requests(), &self.wakes).map_err(ServeError::Threads)
    }

    /// Serves on a thread of its own, for a program that does other things beside.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(self) -> Result<RunningServer, ServeError> {
        let (addresses, admin) = (self.addresses.clone(), self.admin);
        let (lifecycle, overview) = (Arc::clone(&self.lifecycle), Arc::clone(&self.overview));
        let thread = std::thread::Builder::new()
            .name("shard-0".to_owned())
            .spawn(move || self.run().map(drop))
            .map_err(ServeError::Threads)?;
        Ok(RunningServer { addresses, admin, lifecycle, overview, thread })
    }

    /// Serves until the end is asked for, then drains. Returns what there was to see.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn run(self) -> Result<Arc<Overview>, ServeError> {
        let Server {
            mut seats, plan, shard_wakes, pin, pool, overview, lifecycle, clock, porter, files, ..
        } = self;
        let _files = files;
        let mut staff = Staff {
            lifecycle,
            pool,
            app: overview.app.clone(),
            clock,
            shards: Vec::new(),
            hub: None,
            closing: None,
            porter: None,
            volumes: Arc::clone(&overview.volumes),
        };
        // Threads inherit it: what sleeps wakes when it is due, not up to 50 us later (prctl(2),
        // PR_SET_TIMERSLACK). A system that refuses is served all the same.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        if let Some(app) = &overview.app {
            app.start().map_err(ServeError::App)?;
        }
        staff.pool.start().map_err(ServeError::Threads)?;
        if let Some(plan) = plan {
            let (threads, closing) = mpsc::channel();
            let closers = Closers::Threads { lifecycle: Arc::clone(&staff.lifecycle), threads };
            staff.closing = Some(closing);
            let (hubs, thread) = plan.start(&shard_wakes, &overview, &staff.lifecycle, Some(&closers))?;
            seats.iter_mut().zip(hubs).for_each(|(seat, hub)| seat.hub = Some(hub));
            staff.hub = thread;
            let see = Arc::downgrade(&overview);
            let progress = move || see.upgrade().map_or(0, |see| see.stream_progress());
            overview.volumes.start(progress).map_err(ServeError::Threads)?;
        }
        staff.porter = porter.map(|porter| keep(porter, &staff.lifecycle)).transpose()?;
        let usable = if pin { cores::usable_cores() } else { Vec::new() };
        let mut seats = seats.into_iter();
        let first = seats.next().expect("there is at least one shard");
        for seat in seats {
            let core = usable.get(seat.number % usable.len().max(1)).copied();
            let thread = std::thread::Builder::new()
                .name(format!("shard-{}", seat.number))
                .spawn(move || seat.serve(core))
                .map_err(ServeError::Threads)?;
            staff.shards.push(thread);
        }
        let outcome = first.serve(usable.first().copied());
        outcome.and(staff.leave()).map(|()| overview)
    }
}

/// All that runs beside shard 0. However `run` is left, it has ended by then: with shard 0, or because something
/// could not be started.
struct Staff {
    lifecycle: Arc<Lifecycle>,
    pool: Pool<JobOutcome>,
    app: Option<Arc<App>>,
    clock: Clock,
    shards: Vec<std::thread::JoinHandle<Result<(), ServeError>>>,
    /// It ends when the shards have.
    hub: Option<std::thread::JoinHandle<()>>,
    /// Threads that bring a hub to its end that a shard ran.
    closing: Option<mpsc::Receiver<std::thread::JoinHandle<()>>>,
    porter: Option<(Arc<Bell>, PorterThread)>,
    volumes: Arc<Volumes>,
}

impl Staff {
    /// Waits until all shards have drained, then ends the others. What has ended already is not asked again.
    fn leave(&mut self) -> Result<(), ServeError> {
        let mut outcome = Ok(());
        let mut panicked = None;
        self.volumes.end();
        for thread in self.shards.drain(..) {
            match thread.join() {
                Ok(other) => outcome = outcome.and(other),
                Err(panic) => panicked = Some(panic),
            }
        }
        let closing = self.closing.take();
        let closing = closing.iter().flat_map(mpsc::Receiver::try_iter);
        for thread in self.hub.take().into_iter().chain(closing) {
            if let Err(panic) = thread.join() {
                panicked = Some(panic);
            }
        }
        if let Some((bell, thread)) = self.porter.take() {
            bell.ring_the_end();
            match thread.join() {
                Ok(kept) => outcome = outcome.and(kept.map_err(ServeError::HandOver)),
                Err(panic) => panicked = Some(panic),
            }
        }
        self.pool.close();
        if let Some(app) = self.app.take() {
            app.end(|| self.lifecycle.phase() == Phase::Stopping);
        }
        // Jobs of connections that are gone need not hold up the exit for long.
        let _ = self.pool.join(self.clock.now().after(WORKERS_LEAVE));
        match panicked {
            // A panic on top of another would end the process without a word on the first.
            Some(panic) if !std::thread::panicking() => std::panic::resume_unwind(panic),
            _ => outcome,
        }
    }
}

impl Drop for Staff {
    /// There is something left to end only when `run` was left early.
    fn drop(&mut self) {
        if !self.shards.is_empty() || self.porter.is_some() || self.app.is_some() {
            self.lifecycle.fail();
        }
        // The first error is on its way to the caller already.
        let _ = self.leave();
    }
}

/// What is spoken at a listener.
fn endpoint(listener: &Listener, config: &ServeConfig, demo: bool) -> Endpoint {
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
    Endpoint::Http(HttpEndpoint { scope, demo: demo && has_routes, publishes })
}

fn banner(
    config: &ServeConfig,
    driver: &Chosen,
    (urls, admin): (&[String], Option<SocketAddr>),
    reduced: bool,
) -> Vec<String> {
    let mut lines: Vec<String> = urls.iter().map(|url| format!("listening {url}")).collect();
    lines.extend(admin.map(|address| format!("admin http://{address}")));
    lines.push(match &driver.fallback {
        Some(reason) => format!("driver {} ({reason})", driver.kind),
        None => format!("driver {}", driver.kind),
    });
    let reduced = if reduced { " (limited by open files)" } else { "" };
    if let Some(app) = &config.app {
        let (processes, slots) = (app.processes.processes, app.processes.slots);
        lines.push(format!("app {processes} processes with {slots} slots each: {}", app.command));
    }
    let up_to = match config.growth {
        growth if growth.is_enabled() => format!(" to {}", growth.threads_max),
        _ => String::new(),
    };
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

/// Before the last line, whose listeners these are.
fn tell_where_from(banner: &mut Vec<String>, kept: usize, predecessor: Option<Process>, names: &[String]) {
    let mut lines = Vec::new();
    if let Some(process) = predecessor {
        lines.push(format!("taking over from {process}"));
    }
    if !names.is_empty() {
        lines.push(format!("passed by the parent: {}", names.join(", ")));
    }
    if !lines.is_empty() {
        lines.push(format!("kept {kept} listeners"));
    }
    let last = banner.len() - 1;
    banner.splice(last..last, lines);
}

/// The worker processes, as a hand-over sees them.
fn crew(app: &Arc<App>) -> Crew {
    let start_timeout = app.config().processes.start_timeout;
    let app = Arc::clone(app);
    Crew { is_ready: Box::new(move || app.counters().ready > 0), start_timeout }
}

/// Starts the porter on a thread of its own. If it fails the server must not go on.
fn keep(porter: Porter, lifecycle: &Arc<Lifecycle>) -> Result<(Arc<Bell>, PorterThread), ServeError> {
    let (bell, lifecycle) = (porter.bell(), Arc::clone(lifecycle));
    let keep = move || {
        let kept = porter.keep();
        if kept.is_err() {
            lifecycle.fail();
        }
        kept
    };
    let thread =
        std::thread::Builder::new().name("porter".to_owned()).spawn(keep).map_err(ServeError::Threads)?;
    Ok((bell, thread))
}

type PorterThread = std::thread::JoinHandle<Result<(), HandOverError>>;

/// Wakes the driver whose handle will be in `handle`. A shard that has not made its driver yet is not
/// asleep either.
fn wake_through(handle: &Arc<OnceLock<WakeHandle>>) -> Arc<Wake> {
    let handle = Arc::clone(handle);
    Arc::new(Wake::new(move || {
        if let Some(handle) = handle.get() {
            handle.wake();
        }
    }))
}

/// The signals that end the server politely.
mod libc_signal {
    pub(super) const TERM: i32 = rustix::process::Signal::TERM.as_raw();
    pub(super) const INT: i32 = rustix::process::Signal::INT.as_raw();
}

/// How long the process waits for its workers after the last connection has closed.
const WORKERS_LEAVE: Duration = Duration::from_secs(1);

/// What one shard's thread needs to begin.
struct Seat {
    number: usize,
    kind: DriverKind,
    slots: u32,
    lane: Lane<JobOutcome>,
    upstream: Option<UpstreamPool>,
    listeners: Vec<Listener>,
    /// Another process has had its hand in them, or still has.
    shares_listeners: bool,
    handle: Arc<OnceLock<WakeHandle>>,
    wake: Arc<Wake>,
    clock: Clock,
    http: HttpConfig,
    endpoints: Vec<Endpoint>,
    engine: EngineConfig,
    overview: Arc<Overview>,
    lifecycle: Arc<Lifecycle>,
    hub: Option<ShardHub>,
}

impl Seat {
    fn serve(self, core: Option<usize>) -> Result<(), ServeError> {
        let (number, lifecycle) = (self.number, Arc::clone(&self.lifecycle));
        if let Some(core) = core {
            // Pinning is a matter of speed: a system that refuses it is served all the same.
            let _ = cores::pin_to_core(core);
        }
        // One shard less would leave its listener's clients waiting: the server ends, also when it panics.
        let mut guard = EndUnless { lifecycle, served: false };
        let outcome = match self.kind {
            DriverKind::Uring => Uring::new().and_then(|driver| self.serve_on(driver)),
            DriverKind::UringDirect => {
                Uring::with_direct_descriptors(self.slots).and_then(|driver| self.serve_on(driver))
            }
            DriverKind::Poll => Poll::new().and_then(|driver| self.serve_on(driver)),
        };
        guard.served = outcome.is_ok();
        outcome.map_err(|error| ServeError::Shard(number, error))
    }

    fn serve_on<D: Driver<Socket = OwnedFd>>(self, driver: D) -> io::Result<()> {
        // Whoever asked for the end before this found no handle: the first turn must not wait.
        self.handle.get_or_init(|| driver.wake_handle()).wake();
        let counters: Arc<Counters> = Arc::clone(&self.overview.engines[self.number]);
        let http: Arc<HttpCounters> = Arc::clone(&self.overview.http[self.number]);
        let lifecycle = Arc::clone(&self.lifecycle);
        let addresses = self.listeners.iter().map(|listener| listener.address).collect();
        let has_hub = self.hub.is_some();
        let service =
            ShardService::new(self.endpoints, self.http, self.lane, http, self.overview, self.lifecycle)
                .with_upstream(self.upstream)
                .with_hub(self.hub)
                .with_addresses(addresses);
        let mut shard = Shard::new(driver, service, self.engine, self.clock, self.wake, counters);
        shard.on_detached(ShardService::delegate);
        let mut listeners = VecDeque::from(self.listeners);
        for listener in listeners.iter().filter(|_| has_hub) {
            // Before this server is ready: behind `taken` a failure would cost the service.
            match listener.speaks {
                Protocol::Syslog(transport @ (SyslogTransport::Unix | SyslogTransport::Udp)) => {
                    shard.service().keep_datagram_socket(transport, listener.socket.try_clone()?);
                }
                Protocol::Syslog(SyslogTransport::Tcp)
                | Protocol::Http
                | Protocol::Nats
                | Protocol::Custom(_) => {}
            }
        }
        let shares_listeners = self.shares_listeners;
        let mut looks = lifecycle.looks();
        let mut has_begun = false;
        while !shard.is_stopped() {
            let has_more = accept_from(&mut shard, &mut listeners, &lifecycle)?;
            if has_more && has_begun && shares_listeners {
                shard.accept_anew(LOOK_AGAIN_FOR);
            }
            if !has_begun && lifecycle.has_reached(Stage::Beside) {
                has_begun = true;
                if shares_listeners {
                    shard.accept_anew(LOOK_AGAIN_FOR);
                }
                // The system accepts from here on.
                shard.turn(false)?;
                lifecycle.shard_began();
            }
            shard.turn(true)?;
            if lifecycle.looks() != looks {
                looks = lifecycle.looks();
                shard.accept_anew(LOOK_AGAIN_FOR);
            }
        }
        Ok(())
    }
}

/// Accepts from those listeners whose time has come; they are in front. A server that drains begins with none. Returns whether
/// there were some.
fn accept_from<D: Driver<Socket = OwnedFd>>(
    shard: &mut Shard<D, ShardService>,
    listeners: &mut VecDeque<Listener>,
    lifecycle: &Lifecycle,
) -> io::Result<bool> {
    let before = listeners.len();
    while let Some(listener) = listeners.front()
        && lifecycle.has_reached(listener.from)
        && lifecycle.phase() == Phase::Running
        && let Some(listener) = listeners.pop_front()
    {
        match listener.speaks {
            Protocol::Syslog(SyslogTransport::Udp | SyslogTransport::Unix) => {
                shard.receive_datagrams(listener.socket)?;
            }
            Protocol::Http
            | Protocol::Nats
            | Protocol::Syslog(SyslogTransport::Tcp)
            | Protocol::Custom(_) => {
                let number = shard.listen(listener.socket, true)?;
                if listener.is_parents {
                    shard.leave_backlog(number);
                }
            }
        }
    }
    Ok(listeners.len() < before)
}
