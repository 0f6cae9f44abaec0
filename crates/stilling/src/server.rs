//! `serve`: listeners, shards and workers put together, from configuration to the last answer.
//!
//! The calling thread becomes shard 0; the other shards and the workers get threads of their own, all
//! at the start. So A shards and W workers make A + W − 1 new threads; only a pool that may grow has one thread
//! more, its keeper, which starts others later.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use stilling_engine::cores;
use stilling_engine::counters::Counters;
use stilling_engine::driver::choice::{Chosen, DriverKind};
use stilling_engine::driver::poll::Poll;
use stilling_engine::driver::uring::Uring;
use stilling_engine::driver::{Driver, WakeHandle, signals};
use stilling_engine::net::{self, ListenOptions};
use stilling_engine::{Config as EngineConfig, Shard};
use stilling_ring::{Clock, Wake};
use stilling_workers::{Lane, Limits as PoolLimits, Pool};

use crate::config::{ServeConfig, ServeError};
use crate::http::{HttpConfig, HttpCounters, HttpService, JobOutcome, Routes};
use crate::lifecycle::{Calendar, Lifecycle};
use crate::overview::Overview;

/// Descriptors that are not for connections: standard streams, rings, epoll, wakes, listeners, files.
const DESCRIPTORS_KEPT: u64 = 64;
/// The same, for each shard.
const DESCRIPTORS_KEPT_PER_SHARD: u64 = 8;

/// How long the kernel holds back a connection that sends nothing, in seconds; the first-byte
/// timeout begins when it lets go.
const DEFER_ACCEPT_SECONDS: u32 = 1;

/// A server that listens but does not serve yet: clients wait in the backlog.
pub struct Server {
    addresses: Vec<SocketAddr>,
    banner: Vec<String>,
    seats: Vec<Seat>,
    pin: bool,
    wakes: Vec<Arc<Wake>>,
    pool: Pool<JobOutcome>,
    overview: Arc<Overview>,
    lifecycle: Arc<Lifecycle>,
    clock: Clock,
}

impl Server {
    /// Opens the listeners of a server that answers `routes` and its own pages. No thread is started, so the process may still fork.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn bind(mut config: ServeConfig, routes: Routes) -> Result<Self, ServeError> {
        let driver = config.driver.resolve().map_err(ServeError::Driver)?;
        let reduced = fit_capacity(&mut config)?;
        let (addresses, listeners) = open_listeners(&config)?;
        let banner = banner(&config, &driver, &addresses, reduced);
        let clock = Clock::real();
        let handles: Vec<Arc<OnceLock<WakeHandle>>> = (0..config.shards).map(|_| Arc::default()).collect();
        let wakes: Vec<Arc<Wake>> = handles.iter().map(wake_through).collect();
        let limits = PoolLimits {
            threads: config.worker_threads,
            queue_max: config.queue_max,
            age_max: config.queue_age_max,
            growth: config.growth,
            inline_max: config.accept_workers,
        };
        let (pool, lanes) = Pool::new(limits, clock.clone(), wakes.clone());
        let lifecycle = Arc::new(Lifecycle::new(wakes.clone(), Calendar::System));
        let overview = Arc::new(Overview {
            driver: driver.kind.to_string(),
            driver_fallback: driver.fallback,
            listeners: addresses.iter().map(|address| format!("http://{address}")).collect(),
            capacity: config.capacity,
            workers: config.worker_threads,
            engines: (0..config.shards).map(|_| Arc::default()).collect(),
            http: (0..config.shards).map(|_| Arc::default()).collect(),
            pool: pool.clone(),
        });
        let http = HttpConfig {
            limits: config.limits,
            timeouts: config.timeouts,
            slow_duration: config.slow_duration,
            has_workers: config.worker_threads > 0,
            queue_age_max: config.queue_age_max,
            // Who has routes has no use for the demonstration, unless asked for.
            demo: addresses
                .iter()
                .map(|address| config.demo || routes.is_empty() && address.ip().is_loopback())
                .collect(),
            routes: Arc::new(routes),
            requests_held_max: config.requests_held_max,
            write_timeout: config.engine.write_timeout,
        };
        let engine = EngineConfig { capacity: config.capacity, ..config.engine };
        let seats = (lanes.into_iter().zip(listeners).zip(handles).enumerate())
            .map(|(number, ((lane, listeners), handle))| Seat {
                number,
                kind: driver.kind,
                lane,
                listeners,
                handle,
                wake: Arc::clone(&wakes[number]),
                clock: clock.clone(),
                http: http.clone(),
                engine: engine.clone(),
                overview: Arc::clone(&overview),
                lifecycle: Arc::clone(&lifecycle),
            })
            .collect();
        Ok(Server { addresses, banner, seats, pin: config.pin, wakes, pool, overview, lifecycle, clock })
    }

    /// Where the server listens, ports filled in.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The lines that say what has started.
    pub fn banner(&self) -> &[String] {
        &self.banner
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
        let addresses = self.addresses.clone();
        let (lifecycle, overview) = (Arc::clone(&self.lifecycle), Arc::clone(&self.overview));
        let thread = std::thread::Builder::new()
            .name("shard-0".to_owned())
            .spawn(move || self.run().map(drop))
            .map_err(ServeError::Threads)?;
        Ok(RunningServer { addresses, lifecycle, overview, thread })
    }

    /// Serves until the end is asked for, then drains. Returns what there was to see.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn run(self) -> Result<Arc<Overview>, ServeError> {
        let Server { seats, pin, pool, overview, lifecycle, clock, .. } = self;
        // Threads inherit it: what sleeps wakes when it is due, not up to 50 us later (prctl(2),
        // PR_SET_TIMERSLACK). A system that refuses is served all the same.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        pool.start().map_err(ServeError::Threads)?;
        let usable = if pin { cores::usable_cores() } else { Vec::new() };
        let mut seats = seats.into_iter();
        let first = seats.next().expect("there is at least one shard");
        let mut threads = Vec::new();
        for seat in seats {
            let core = usable.get(seat.number % usable.len().max(1)).copied();
            let thread = std::thread::Builder::new()
                .name(format!("shard-{}", seat.number))
                .spawn(move || seat.serve(core))
                .map_err(ServeError::Threads)?;
            threads.push(thread);
        }
        let mut outcome = first.serve(usable.first().copied());
        if outcome.is_err() {
            lifecycle.end();
        }
        for thread in threads {
            let other = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcome = outcome.and(other);
        }
        pool.close();
        // Jobs of connections that are gone need not hold up the exit for long.
        let _ = pool.join(clock.now().after(WORKERS_LEAVE));
        outcome.map(|()| overview)
    }
}

/// A server on threads of its own. Dropping it lets it run on.
#[derive(Debug)]
pub struct RunningServer {
    addresses: Vec<SocketAddr>,
    lifecycle: Arc<Lifecycle>,
    overview: Arc<Overview>,
    thread: std::thread::JoinHandle<Result<(), ServeError>>,
}

impl RunningServer {
    /// Where the server listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What there is to see while it runs.
    pub fn overview(&self) -> &Arc<Overview> {
        &self.overview
    }

    /// Drains, waits for the end, and returns what there was to see.
    ///
    /// # Errors
    /// A shard had failed.
    pub fn end(self) -> Result<Arc<Overview>, ServeError> {
        self.lifecycle.end();
        let outcome = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        outcome.map(|()| self.overview)
    }
}

/// Lowers the capacity to what the descriptor limit allows. Returns whether it did.
fn fit_capacity(config: &mut ServeConfig) -> Result<bool, ServeError> {
    let (limit, _) = net::raise_descriptor_limit();
    config.shards = config.shards.max(1);
    let shards = config.shards as u64;
    let kept = DESCRIPTORS_KEPT + shards * (DESCRIPTORS_KEPT_PER_SHARD + config.listen.len() as u64);
    let available = u32::try_from(limit.saturating_sub(kept) / shards).unwrap_or(u32::MAX);
    if available == 0 {
        return Err(ServeError::Descriptors(limit));
    }
    let reduced = config.capacity > available;
    config.capacity = config.capacity.min(available);
    Ok(reduced)
}

/// For each shard, one listener per address; and the addresses with their ports.
fn open_listeners(config: &ServeConfig) -> Result<(Vec<SocketAddr>, Vec<Vec<OwnedFd>>), ServeError> {
    let options = ListenOptions {
        defer_accept: Some(DEFER_ACCEPT_SECONDS),
        send_buffer: config.send_buffer,
        congestion: config.congestion.clone(),
        ..ListenOptions::default()
    };
    let mut listeners: Vec<Vec<OwnedFd>> = (0..config.shards).map(|_| Vec::new()).collect();
    let mut addresses = Vec::new();
    for wanted in &config.listen {
        let address = bind_group(*wanted, &options, &mut listeners)
            .map_err(|error| ServeError::Listen(*wanted, error))?;
        addresses.push(address);
    }
    Ok((addresses, listeners))
}

fn banner(config: &ServeConfig, driver: &Chosen, addresses: &[SocketAddr], reduced: bool) -> Vec<String> {
    let mut lines: Vec<String> =
        addresses.iter().map(|address| format!("listening http://{address}")).collect();
    lines.push(match &driver.fallback {
        Some(reason) => format!("driver {} ({reason})", driver.kind),
        None => format!("driver {}", driver.kind),
    });
    let reduced = if reduced { " (limited by open files)" } else { "" };
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

/// One listener per shard on the same address.
fn bind_group(
    wanted: SocketAddr,
    options: &ListenOptions,
    listeners: &mut [Vec<OwnedFd>],
) -> io::Result<SocketAddr> {
    if wanted.port() != 0 {
        // Shared ports would let a second server start silently beside the first: ask once without.
        drop(net::listen_tcp(wanted, &ListenOptions { reuse_port: false, ..options.clone() })?);
    }
    let mut address = wanted;
    for of_shard in listeners {
        let listener = net::listen_tcp(address, options)?;
        address = net::local_addr(&listener)?;
        of_shard.push(listener);
    }
    Ok(address)
}

/// How long the process waits for its workers after the last connection has closed.
const WORKERS_LEAVE: Duration = Duration::from_secs(1);

/// What one shard's thread needs to begin.
struct Seat {
    number: usize,
    kind: DriverKind,
    lane: Lane<JobOutcome>,
    listeners: Vec<OwnedFd>,
    handle: Arc<OnceLock<WakeHandle>>,
    wake: Arc<Wake>,
    clock: Clock,
    http: HttpConfig,
    engine: EngineConfig,
    overview: Arc<Overview>,
    lifecycle: Arc<Lifecycle>,
}

/// Asks for the end when a shard's thread is left without having served to its end.
struct EndUnless {
    lifecycle: Arc<Lifecycle>,
    served: bool,
}

impl Drop for EndUnless {
    fn drop(&mut self) {
        if !self.served {
            self.lifecycle.end();
        }
    }
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
        let service = HttpService::new(self.http, self.lane, http, self.overview, self.lifecycle);
        let mut shard = Shard::new(driver, service, self.engine, self.clock, self.wake, counters);
        shard.on_detached(HttpService::delegate);
        for listener in self.listeners {
            shard.listen(listener, true)?;
        }
        shard.run()
    }
}
