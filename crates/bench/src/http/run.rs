//! A run from plan to report: sends a first request, starts the threads, watches them, sums up.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use stilling_engine::counters::EngineCounters;
use stilling_engine::driver::choice::DriverKind;
use stilling_engine::driver::poll::Poll;
use stilling_engine::driver::uring::Uring;
use stilling_engine::driver::{Driver, WakeHandle};
use stilling_engine::{Shard, ShardConfig, net};
use stilling_ring::{Clock, Wake};
use stilling_wire::http1::HttpLimits;

use super::error::HttpBenchError;
use super::generator::{GeneratorShared, LoadGenerator};
use super::limits::BODY_SIZE_MAX;
use super::plan::HttpPlan;
use super::report::{DroppedRequests, HttpBenchReport, Traffic};
use super::start_barrier::StartBarrier;
use super::tally::{HttpTally, LiveCounters};
use super::{reference_request, request};
use crate::statistics::process_cpu;

/// Descriptors for other purposes than connections: standard streams, rings, epoll, wakes, files.
const DESCRIPTORS_RESERVED: u64 = 32;
/// The same, per thread.
const DESCRIPTORS_RESERVED_PER_THREAD: u64 = 8;

const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// Progress of a run, including the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HttpProgress {
    /// Correct answers.
    pub ok: u64,
    /// Answers with 503.
    pub shed: u64,
    /// Failures.
    pub failures: u64,
    /// Open connections.
    pub open: u64,
    /// All connections are answered and held idle.
    pub holding: bool,
}

/// Executes a plan.
///
/// # Errors
/// The plan contradicts itself, the server is unreachable, its first answer is not correct, or the machine lacks a
/// required resource. Later failures are in the report.
pub fn run(plan: &HttpPlan) -> Result<HttpBenchReport, HttpBenchError> {
    run_watched(plan, |_| {})
}

/// Executes a plan; calls `watch` on this thread ten times a second and at the end.
///
/// # Errors
/// As [`run`].
pub fn run_watched(
    plan: &HttpPlan,
    mut watch: impl FnMut(&HttpProgress),
) -> Result<HttpBenchReport, HttpBenchError> {
    plan.check()?;
    let driver = if plan.direct_descriptors {
        plan.driver.resolve_direct().map_err(HttpBenchError::DirectDescriptors)?
    } else {
        plan.driver.resolve().map_err(HttpBenchError::Driver)?
    };
    check_descriptors(plan)?;
    let handles: Vec<Arc<OnceLock<WakeHandle>>> = (0..plan.threads).map(|_| Arc::default()).collect();
    let wakes: Vec<Arc<Wake>> = handles.iter().map(|handle| Arc::new(wake_through(handle))).collect();
    let shared = Arc::new(prepare(plan, wakes.clone())?);
    let cpu_before = process_cpu();
    let (done, all_done) = mpsc::channel::<()>();
    let mut threads = Vec::new();
    for (number, (handle, wake)) in handles.into_iter().zip(wakes).enumerate() {
        let loader = LoadThread {
            number: number as u32,
            handle,
            wake,
            shared: Arc::clone(&shared),
            clock: Clock::real(),
        };
        let (kind, done) = (driver.kind, done.clone());
        let thread = std::thread::Builder::new().name(format!("load-{number}")).spawn(move || {
            let outcome = loader.load(kind);
            drop(done);
            outcome
        });
        match thread {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                shared.start.cancel();
                return Err(HttpBenchError::Threads(error));
            }
        }
    }
    drop(done);
    while all_done.recv_timeout(WATCH_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        watch(&progress(&shared.live));
    }
    // Even a short run reports its end.
    watch(&progress(&shared.live));
    let mut sum = ThreadResult {
        tally: HttpTally::new(),
        dropped: DroppedRequests::default(),
        traffic: Traffic::default(),
    };
    for thread in threads {
        let outcome = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        sum.absorb(&outcome.map_err(HttpBenchError::Engine)?);
    }
    let cpu = process_cpu().saturating_sub(cpu_before);
    Ok(HttpBenchReport::new(plan, &shared.expected_body, &driver, &sum.tally, sum.dropped, sum.traffic, cpu))
}

fn check_descriptors(plan: &HttpPlan) -> Result<(), HttpBenchError> {
    let (limit, _) = net::raise_descriptor_limit();
    let kept = DESCRIPTORS_RESERVED + u64::from(plan.threads) * DESCRIPTORS_RESERVED_PER_THREAD;
    let fits = if plan.direct_descriptors {
        // Each thread's connections use a table of their own; everything else uses that of the process.
        u64::from(plan.connections.div_ceil(plan.threads)) <= limit && kept <= limit
    } else {
        u64::from(plan.connections) + kept <= limit
    };
    if !fits {
        return Err(HttpBenchError::Descriptors { wanted: plan.connections, limit });
    }
    Ok(())
}

/// A thread without a driver is not asleep and needs no wake.
fn wake_through(handle: &Arc<OnceLock<WakeHandle>>) -> Wake {
    let handle = Arc::clone(handle);
    Wake::new(move || {
        if let Some(handle) = handle.get() {
            handle.wake();
        }
    })
}

/// Connects to the server and records the expected answer.
fn prepare(plan: &HttpPlan, wakes: Vec<Arc<Wake>>) -> Result<GeneratorShared, HttpBenchError> {
    let request = request::encode(&plan.request());
    let reply_to = request::expected_reply(&plan.request());
    let limits = HttpLimits { body_size_max: BODY_SIZE_MAX, ..HttpLimits::default() };
    let (stream, to) = reference_request::connect(plan)?;
    let expected_body = match &plan.expect_body {
        Some(body) => body.clone(),
        None => reference_request::first_body(plan, stream, &request, reply_to, &limits)?,
    };
    let live = (0..plan.threads).map(|_| LiveCounters::default()).collect();
    let start = StartBarrier::new(wakes);
    Ok(GeneratorShared { plan: plan.clone(), to, request, reply_to, limits, expected_body, start, live })
}

fn progress(live: &[LiveCounters]) -> HttpProgress {
    let sum = |counter: fn(&LiveCounters) -> u64| live.iter().map(counter).sum();
    HttpProgress {
        ok: sum(|live| live.ok.get()),
        shed: sum(|live| live.shed.get()),
        failures: sum(|live| live.failures.get()),
        open: sum(|live| live.open.get()),
        holding: live.iter().all(|live| live.holding.get() > 0),
    }
}

/// Result of one thread, or the sum of all.
struct ThreadResult {
    tally: HttpTally,
    dropped: DroppedRequests,
    traffic: Traffic,
}

impl ThreadResult {
    fn absorb(&mut self, other: &ThreadResult) {
        self.tally.absorb(&other.tally);
        self.dropped.backlog_full += other.dropped.backlog_full;
        self.dropped.waited_too_long += other.dropped.waited_too_long;
        self.dropped.at_end += other.dropped.at_end;
        self.traffic.received += other.traffic.received;
        self.traffic.sent += other.traffic.sent;
        self.traffic.connected += other.traffic.connected;
    }
}

struct LoadThread {
    number: u32,
    handle: Arc<OnceLock<WakeHandle>>,
    wake: Arc<Wake>,
    shared: Arc<GeneratorShared>,
    clock: Clock,
}

impl LoadThread {
    fn load(self, kind: DriverKind) -> std::io::Result<ThreadResult> {
        let shared = Arc::clone(&self.shared);
        let outcome = match kind {
            DriverKind::Uring => Uring::new().and_then(|driver| self.load_on(driver)),
            DriverKind::UringDirect => {
                let slots = shared.plan.connections.div_ceil(shared.plan.threads);
                Uring::with_direct_descriptors(slots).and_then(|driver| self.load_on(driver))
            }
            DriverKind::Poll => Poll::new().and_then(|driver| self.load_on(driver)),
        };
        if outcome.is_err() {
            // The other threads must not wait for this one.
            shared.start.cancel();
        }
        outcome
    }

    fn load_on<D: Driver>(self, driver: D) -> std::io::Result<ThreadResult> {
        let _ = self.handle.set(driver.wake_handle());
        let generator = LoadGenerator::new(&self.shared, self.number, self.clock.clone());
        let config = engine_config(&self.shared.plan, &generator);
        let counters: Arc<EngineCounters> = Arc::default();
        let mut shard = Shard::new(driver, generator, config, self.clock, self.wake, Arc::clone(&counters));
        // The first turn must not block: it opens the connections, and later turns wait for their events.
        shard.turn(false)?;
        shard.run()?;
        Ok(thread_result(shard.service(), &counters))
    }
}

fn engine_config(plan: &HttpPlan, generator: &LoadGenerator) -> ShardConfig {
    ShardConfig {
        capacity: generator.connections(),
        write_timeout: plan.timeout,
        connect_timeout: plan.timeout,
        ..ShardConfig::default()
    }
}

fn thread_result(generator: &mut LoadGenerator, counters: &EngineCounters) -> ThreadResult {
    let (backlog_full, waited_too_long) = generator.dropped();
    let tally = std::mem::replace(&mut generator.tally, HttpTally::new());
    let dropped = DroppedRequests { backlog_full, waited_too_long, at_end: tally.unsent };
    let traffic = Traffic {
        received: counters.received_bytes.get(),
        sent: counters.sent_bytes.get(),
        connected: counters.connected.get(),
    };
    ThreadResult { tally, dropped, traffic }
}
