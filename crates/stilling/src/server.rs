//! `serve`: assembles listeners, shards and workers, runs them, and ends them after the last response.
//!
//! The calling thread becomes shard 0; the other shards and the workers get their own threads at the start: A shards
//! and W workers create A + W − 1 threads. Further threads serve the parts in use: the hub and its journal, the log,
//! the watch of TCP listeners, the packet log, the volume monitor, the scaler of a pool that may grow, the hand-over, the reload, and the
//! supervisor of worker processes. `start` creates one more thread for shard 0. The end waits for all threads but the
//! one of the reload.

mod bind;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use stilling_engine::cores;
use stilling_engine::counters::EngineCounters;
use stilling_engine::driver::choice::DriverKind;
use stilling_engine::driver::poll::Poll;
use stilling_engine::driver::uring::Uring;
use stilling_engine::driver::{Driver, WakeHandle, signals};
use stilling_engine::{Shard, ShardConfig as EngineConfig};
use stilling_ring::{Clock, Wake};
use stilling_workers::{JobSubmitter, Pool};

use crate::coap::{CoapSettings, ExchangeHandover};
use crate::config::ServeError;
use crate::exposure::Exposure;
use crate::hand_over::limits::QUEUE_CHECK_SPAN;
use crate::hand_over::{HandOverError, HandoverThread, HandoverWaker};
use crate::http::{HttpConfig, HttpCounters, JobOutcome};
use crate::hub::HubCloser;
use crate::hub_plan::HubPlan;
use crate::lifecycle::{DatagramReader, FailureGuard, HandoverStage, Lifecycle, LifecyclePhase};
use crate::listeners::{self, ListenerProtocol, ListeningSocket};
use crate::overview::Overview;
use crate::packet_log::{PacketCapture, PacketLog, PacketLogThread};
use crate::reload::{ReloadThread, Reloader};
use crate::running_server::RunningServer;
use crate::shard::{Endpoint, ShardHub, ShardService};
use crate::socket_file::SocketFile;
use crate::syslog::SyslogTransport;
use crate::upstream::{App, AppConfig, UpstreamPools};

/// A server that listens but does not serve yet: clients wait in the backlog.
pub struct Server {
    addresses: Vec<SocketAddr>,
    admin: Option<SocketAddr>,
    banner: Vec<String>,
    exposures: Vec<Exposure>,
    shard_setups: Vec<ShardSetup>,
    plan: Option<HubPlan>,
    shard_wakes: Vec<Arc<Wake>>,
    pin: bool,
    wakes: Vec<Arc<Wake>>,
    pool: Pool<JobOutcome>,
    overview: Arc<Overview>,
    lifecycle: Arc<Lifecycle>,
    clock: Clock,
    handover_thread: Option<HandoverThread>,
    packet_log: Option<PacketLog>,
    reloader: Option<Reloader>,
    /// Removed with the server.
    files: Vec<SocketFile>,
}

impl Server {
    /// The addresses that the server listens on, with resolved ports.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The address of the admin pages, with resolved port, if they have their own listener.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Lines that describe the started server.
    pub fn banner(&self) -> &[String] {
        &self.banner
    }

    /// Everything that other machines can reach without credentials, at the open listeners.
    pub fn exposures(&self) -> &[Exposure] {
        &self.exposures
    }

    /// Makes SIGTERM and SIGINT drain the server, even before it serves. A second signal cuts off what has not
    /// finished.
    ///
    /// # Errors
    /// The system refuses the handlers.
    pub fn watch_signals(&self) -> Result<(), ServeError> {
        let signals = [libc_signal::TERM, libc_signal::INT];
        signals::count_signals(&signals, self.lifecycle.shutdown_requests(), &self.wakes)
            .map_err(ServeError::Threads)
    }

    /// Makes SIGHUP reload the worker processes: those of the pools that `read` returns, by name, replace the present
    /// ones without the loss of a request. Only commands may differ from the present pools; `report` gets a line about
    /// everything that prevents a reload or is not applied. Without pools the signal keeps its effect.
    ///
    /// # Errors
    /// The system refuses the handler.
    pub fn reload_on_hangup(
        &mut self,
        read: impl FnMut() -> Result<Vec<AppConfig>, String> + Send + 'static,
        report: fn(&str),
    ) -> Result<(), ServeError> {
        if !self.overview.apps.is_empty() {
            let reloader = Reloader::new(&self.overview.apps, Box::new(read), report);
            self.reloader = Some(reloader.map_err(ServeError::Threads)?);
        }
        Ok(())
    }

    /// Serves on a separate thread, for a program with other work.
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

    /// Serves until the end is requested, then drains. Returns the final counters.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn run(self) -> Result<Arc<Overview>, ServeError> {
        let Server {
            mut shard_setups,
            plan,
            shard_wakes,
            pin,
            pool,
            overview,
            lifecycle,
            clock,
            handover_thread,
            packet_log,
            reloader,
            files,
            ..
        } = self;
        let _files = files;
        let mut thread_handles = ThreadHandles {
            lifecycle,
            pool,
            apps: overview.apps.clone(),
            clock,
            shards: Vec::new(),
            hub: None,
            closing: None,
            handover_thread: None,
            packet_log: None,
            reload: None,
            overview: Arc::clone(&overview),
        };
        // Threads inherit the timer slack: sleeps end when they are due, not up to 50 us later (prctl(2),
        // PR_SET_TIMERSLACK). The server works without it.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        for app in &overview.apps {
            app.start().map_err(ServeError::App)?;
        }
        thread_handles.reload = reloader.map(Reloader::start).transpose().map_err(ServeError::Threads)?;
        let listeners = shard_setups.iter_mut().flat_map(|setup| &mut setup.listeners);
        overview.listen.start(listeners);
        thread_handles.pool.start().map_err(ServeError::Threads)?;
        thread_handles.packet_log =
            packet_log.map(PacketLog::start).transpose().map_err(ServeError::Threads)?;
        if let Some(plan) = plan {
            let (threads, closing) = mpsc::channel();
            let closer = HubCloser::Threads { lifecycle: Arc::clone(&thread_handles.lifecycle), threads };
            thread_handles.closing = Some(closing);
            let (hubs, thread) =
                plan.start(&shard_wakes, &overview, &thread_handles.lifecycle, Some(&closer))?;
            shard_setups.iter_mut().zip(hubs).for_each(|(setup, hub)| setup.hub = Some(hub));
            thread_handles.hub = thread;
            start_volume_monitor(&overview)?;
        }
        thread_handles.handover_thread = handover_thread
            .map(|handover_thread| spawn_handover_thread(handover_thread, &thread_handles.lifecycle))
            .transpose()?;
        let usable = if pin { cores::usable_cores() } else { Vec::new() };
        let mut shard_setups = shard_setups.into_iter();
        let first = shard_setups.next().expect("there is at least one shard");
        for setup in shard_setups {
            let core = usable.get(setup.number % usable.len().max(1)).copied();
            let thread = std::thread::Builder::new()
                .name(format!("shard-{}", setup.number))
                .spawn(move || setup.serve(core))
                .map_err(ServeError::Threads)?;
            thread_handles.shards.push(thread);
        }
        let outcome = first.serve(usable.first().copied());
        outcome.and(thread_handles.join_all()).map(|()| overview)
    }
}

/// All threads beside shard 0. They have ended when `run` returns, also when it fails early.
struct ThreadHandles {
    lifecycle: Arc<Lifecycle>,
    pool: Pool<JobOutcome>,
    apps: Vec<Arc<App>>,
    clock: Clock,
    shards: Vec<std::thread::JoinHandle<Result<(), ServeError>>>,
    /// Ends after the shards.
    hub: Option<std::thread::JoinHandle<()>>,
    /// Threads that finish a hub after the shard that ran it has left.
    closing: Option<mpsc::Receiver<std::thread::JoinHandle<()>>>,
    handover_thread: Option<(Arc<HandoverWaker>, HandoverJoinHandle)>,
    /// Ends after the shards.
    packet_log: Option<PacketLogThread>,
    reload: Option<ReloadThread>,
    overview: Arc<Overview>,
}

impl ThreadHandles {
    /// Waits until all shards have drained, then ends the other threads. Safe to call again.
    fn join_all(&mut self) -> Result<(), ServeError> {
        let mut outcome = Ok(());
        let mut panicked = None;
        self.overview.volumes.end();
        for thread in self.shards.drain(..) {
            match thread.join() {
                Ok(other) => outcome = outcome.and(other),
                Err(panic) => panicked = Some(panic),
            }
        }
        self.packet_log = None;
        self.overview.listen.join();
        let closing = self.closing.take();
        let closing = closing.iter().flat_map(mpsc::Receiver::try_iter);
        for thread in self.hub.take().into_iter().chain(closing) {
            if let Err(panic) = thread.join() {
                panicked = Some(panic);
            }
        }
        if let Some((waker, thread)) = self.handover_thread.take() {
            waker.wake_to_end();
            match thread.join() {
                Ok(result) => outcome = outcome.and(result.map_err(ServeError::HandOver)),
                Err(panic) => panicked = Some(panic),
            }
        }
        self.pool.close();
        // Before the processes: a reload that is under way does not replace them any more.
        self.reload = None;
        let apps = std::mem::take(&mut self.apps);
        apps.iter().for_each(|app| app.begin_end());
        for app in &apps {
            app.wait_for_end(|| self.lifecycle.phase() == LifecyclePhase::Stopping);
        }
        // Remaining jobs belong to closed connections and may delay the exit only briefly.
        let _ = self.pool.join(self.clock.now().after(WORKERS_JOIN_TIMEOUT));
        match panicked {
            // A second panic would abort the process without a message about the first.
            Some(panic) if !std::thread::panicking() => std::panic::resume_unwind(panic),
            _ => outcome,
        }
    }
}

impl Drop for ThreadHandles {
    /// Ends the threads that remain when `run` fails early.
    fn drop(&mut self) {
        if !self.shards.is_empty() || self.handover_thread.is_some() || !self.apps.is_empty() {
            self.lifecycle.fail();
        }
        // The caller already gets the first error.
        let _ = self.join_all();
    }
}

/// Starts the thread that measures the streams' volumes after they have grown.
fn start_volume_monitor(overview: &Arc<Overview>) -> Result<(), ServeError> {
    let weak = Arc::downgrade(overview);
    let progress = move || weak.upgrade().map_or(0, |overview| overview.stream_progress());
    overview.volumes.start(progress).map_err(ServeError::Threads)
}

/// Starts the hand-over thread. If it fails, the server drains.
fn spawn_handover_thread(
    handover_thread: HandoverThread,
    lifecycle: &Arc<Lifecycle>,
) -> Result<(Arc<HandoverWaker>, HandoverJoinHandle), ServeError> {
    let (waker, lifecycle) = (handover_thread.waker(), Arc::clone(lifecycle));
    let run = move || {
        let result = handover_thread.run();
        if result.is_err() {
            lifecycle.fail();
        }
        result
    };
    let thread =
        std::thread::Builder::new().name("hand-over".to_owned()).spawn(run).map_err(ServeError::Threads)?;
    Ok((waker, thread))
}

type HandoverJoinHandle = std::thread::JoinHandle<Result<(), HandOverError>>;

/// The signals that drain the server.
mod libc_signal {
    pub(super) const TERM: i32 = rustix::process::Signal::TERM.as_raw();
    pub(super) const INT: i32 = rustix::process::Signal::INT.as_raw();
}

/// Maximum wait of the process for its workers after the last connection has closed.
const WORKERS_JOIN_TIMEOUT: Duration = Duration::from_secs(1);

struct ShardSetup {
    number: usize,
    submitter: JobSubmitter<JobOutcome>,
    upstream: Option<UpstreamPools>,
    listeners: Vec<ListeningSocket>,
    endpoints: Vec<Endpoint>,
    handle: Arc<OnceLock<WakeHandle>>,
    wake: Arc<Wake>,
    hub: Option<ShardHub>,
    packets: Option<PacketCapture>,
    shared: SharedSetup,
}

/// The part of the setup that is the same for all shards.
#[derive(Clone)]
struct SharedSetup {
    kind: DriverKind,
    /// Slots of each shard's direct descriptor table, if it has one.
    slots: u32,
    /// Another process has used these listeners, or still does.
    shares_listeners: bool,
    clock: Clock,
    http: HttpConfig,
    engine: EngineConfig,
    coap: CoapSettings,
    exchanges: Arc<ExchangeHandover>,
    overview: Arc<Overview>,
    lifecycle: Arc<Lifecycle>,
}

impl ShardSetup {
    fn serve(self, core: Option<usize>) -> Result<(), ServeError> {
        let (number, lifecycle) = (self.number, Arc::clone(&self.shared.lifecycle));
        if let Some(core) = core {
            // Pinning only affects speed: the server works without it.
            let _ = cores::pin_to_core(core);
        }
        // If one shard ends, the clients of its listener would wait for ever: the server drains, also after a panic.
        let mut guard = FailureGuard { lifecycle, served: false };
        let outcome = match self.shared.kind {
            DriverKind::Uring => Uring::new().and_then(|driver| self.serve_on(driver)),
            DriverKind::UringDirect => {
                Uring::with_direct_descriptors(self.shared.slots).and_then(|driver| self.serve_on(driver))
            }
            DriverKind::Poll => Poll::new().and_then(|driver| self.serve_on(driver)),
        };
        guard.served = outcome.is_ok();
        outcome.map_err(|error| ServeError::Shard(number, error))
    }

    fn serve_on<D: Driver<Socket = OwnedFd>>(self, driver: D) -> io::Result<()> {
        // A request to end before this point found no handle: the first turn must not wait.
        self.handle.get_or_init(|| driver.wake_handle()).wake();
        let SharedSetup {
            shares_listeners, clock, http, engine, coap, exchanges, overview, lifecycle, ..
        } = self.shared;
        let counters: Arc<EngineCounters> = Arc::clone(&overview.engines[self.number]);
        let http_counters: Arc<HttpCounters> = Arc::clone(&overview.http[self.number]);
        let addresses = self.listeners.iter().map(|listener| listener.address).collect();
        let ids = self.listeners.iter().map(|listener| listeners::identity(&listener.socket));
        let socket_ids = ids.map(|id| id.map(|(_, inode)| inode)).collect::<io::Result<Vec<u64>>>()?;
        let has_hub = self.hub.is_some();
        let receives_datagrams = self.listeners.iter().any(|listener| listener.protocol.is_udp());
        // Before this shard is ready for a successor.
        let reader = receives_datagrams.then(|| DatagramReader::new(&lifecycle));
        let coap_counters = Arc::clone(&overview.coap[self.number]);
        let service = ShardService::new(
            self.endpoints,
            http,
            self.submitter,
            http_counters,
            overview,
            Arc::clone(&lifecycle),
        )
        .with_upstream(self.upstream)
        .with_coap(coap_counters, coap, clock.now())
        .with_datagram_reader(reader)
        .with_exchange_handover(exchanges, socket_ids)
        .with_hub(self.hub)
        .with_packets(self.packets)
        .with_addresses(addresses);
        let mut shard = Shard::new(driver, service, engine, clock.clone(), self.wake, counters);
        shard.on_detached(ShardService::delegate);
        let mut listeners = VecDeque::from(self.listeners);
        for listener in listeners.iter().filter(|_| has_hub) {
            // Before this server is ready: after `taken` a failure would leave no server.
            match listener.protocol {
                ListenerProtocol::Syslog(transport @ (SyslogTransport::Unix | SyslogTransport::Udp)) => {
                    shard.service().keep_datagram_socket(transport, listener.socket.try_clone()?);
                }
                ListenerProtocol::Syslog(SyslogTransport::Tcp)
                | ListenerProtocol::Http
                | ListenerProtocol::Nats
                | ListenerProtocol::NatsWebSocket
                | ListenerProtocol::Coap
                | ListenerProtocol::Custom(_) => {}
            }
        }
        let mut queue_checks = lifecycle.queue_checks();
        let (mut has_begun, mut has_restored) = (false, false);
        while !shard.is_stopped() {
            let has_more = accept_from(&mut shard, &mut listeners, &lifecycle, &clock, &mut has_restored)?;
            if has_more && has_begun && shares_listeners {
                shard.recheck_accept_queues(QUEUE_CHECK_SPAN);
            }
            if !has_begun && lifecycle.has_reached(HandoverStage::Overlapping) {
                has_begun = true;
                if shares_listeners {
                    shard.recheck_accept_queues(QUEUE_CHECK_SPAN);
                }
                // This turn starts to accept.
                shard.turn(false)?;
                lifecycle.add_accepting_shard();
            }
            shard.turn(true)?;
            if lifecycle.queue_checks() != queue_checks {
                queue_checks = lifecycle.queue_checks();
                shard.recheck_accept_queues(QUEUE_CHECK_SPAN);
            }
        }
        Ok(())
    }
}

/// Accepts from the listeners that the hand-over stage permits; they are in front. A draining server starts none.
/// Returns whether any were started.
fn accept_from<D: Driver<Socket = OwnedFd>>(
    shard: &mut Shard<D, ShardService>,
    listeners: &mut VecDeque<ListeningSocket>,
    lifecycle: &Lifecycle,
    clock: &Clock,
    has_restored: &mut bool,
) -> io::Result<bool> {
    let before = listeners.len();
    while let Some(listener) = listeners.front()
        && lifecycle.has_reached(listener.from)
        && lifecycle.phase() == LifecyclePhase::Running
        && let Some(listener) = listeners.pop_front()
    {
        match listener.protocol {
            ListenerProtocol::Syslog(SyslogTransport::Udp | SyslogTransport::Unix) => {
                shard.receive_datagrams(listener.socket)?;
            }
            ListenerProtocol::Coap => {
                if listener.from == HandoverStage::Released && !std::mem::replace(has_restored, true) {
                    shard.service().restore_exchanges(clock.now());
                }
                shard.receive_paced_datagrams(listener.socket)?;
            }
            ListenerProtocol::Http
            | ListenerProtocol::Nats
            | ListenerProtocol::NatsWebSocket
            | ListenerProtocol::Syslog(SyslogTransport::Tcp)
            | ListenerProtocol::Custom(_) => {
                let number = shard.listen(listener.socket, true)?;
                if let Some(watched) = listener.watched {
                    shard.keep_watched(number, watched);
                }
                if listener.is_inherited {
                    shard.leave_backlog(number);
                }
            }
        }
    }
    Ok(listeners.len() < before)
}
