//! Watches TCP listeners: detects SYN floods, and raises and lowers backlogs.
//!
//! A SYN flood never reaches a program: the system keeps half-open connections outside the accept queue and answers with
//! SYN cookies when it has too many. So nothing of a shard is used per SYN, and the only traces are counters of the
//! network namespace and the queues of the listeners. A [`ListenWatch`] samples both in one thread, which runs while
//! listeners are registered. [`SynFloodDetector`] and [`BacklogControl`] decide; both are free of I/O.
//!
//! Hazards:
//! - **A registered listener stays open.** The watch has a descriptor of its own, so the system refuses connections only
//!   when the owner has closed its descriptors *and* dropped its [`WatchedListener`]. Drop it before the listener is
//!   closed or shut down: it waits for a sample in progress (some system calls that do not block), and when it returns
//!   the watch has closed its descriptor and never calls listen(2) on the socket again.
//! - The counters cover a network namespace: a flood at a listener of another process counts. They are those of the
//!   thread that registers the first listener, which should be in the namespace of the listeners.
//! - A flood shows only when a queue of half-open connections is full; until then it has no effect on other clients.

mod backlog;
mod flood;
mod netstat;
mod report;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use socket2::SockRef;

pub use self::backlog::{AcceptQueue, BacklogControl, ListenPressure};
pub use self::flood::{FloodChange, SynCounts, SynFloodDetector, SynSample};
pub use self::report::{
    BacklogChange, ListenEvent, ListenReport, ListenWatchCounters, ListenerCounters, ListenerReport,
};

use self::netstat::{ListenSettings, NetstatReader};
use crate::driver::signals::block_thread_signals;
use crate::driver::sockopt;
use crate::limits::LISTEN_SAMPLE_INTERVAL;
use crate::{Clock, Time, net};

/// Watches the listeners of a process; clones are the same watch.
///
/// ```
/// use stilling_engine::listen_watch::{ListenEvent, ListenWatch};
/// use stilling_engine::net::{ListenOptions, listen_tcp};
///
/// let watch = ListenWatch::new();
/// watch.on_change(|event| {
///     if let ListenEvent::FloodBegan { unanswered, .. } = event {
///         eprintln!("SYN flood: {unanswered} requests unanswered");
///     }
/// });
/// let options = ListenOptions { backlog: 128, ..ListenOptions::default() };
/// let listener = listen_tcp("127.0.0.1:0".parse().unwrap(), &options)?;
/// let watched = watch.register(&listener, 128)?;
/// assert_eq!(watch.report().listeners[0].backlog, 128);
/// drop(watched);
/// drop(listener);
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Default)]
pub struct ListenWatch {
    shared: Arc<WatchState>,
}

type ListenCallback = Box<dyn Fn(&ListenEvent) + Send>;

#[derive(Default)]
struct WatchState {
    counters: Arc<ListenWatchCounters>,
    callbacks: Mutex<ListenCallbacks>,
    registry: Mutex<ListenerRegistry>,
    /// Notified when the last listener is unregistered.
    is_empty: Condvar,
}

#[derive(Default)]
struct ListenerRegistry {
    listeners: Vec<RegisteredListener>,
    next_id: u64,
    /// The thread samples; reset by itself, under the lock.
    is_running: bool,
    thread: Option<JoinHandle<()>>,
}

struct RegisteredListener {
    id: u64,
    /// Device and inode: the same for all descriptors of a socket.
    identity: (u64, u64),
    registrations: usize,
    socket: OwnedFd,
    control: BacklogControl,
    counters: Arc<ListenerCounters>,
    /// The system's count of drops at the last sample.
    drops: u32,
}

impl ListenWatch {
    /// A watch without listeners and without a thread.
    #[must_use]
    pub fn new() -> ListenWatch {
        ListenWatch::default()
    }

    /// The watch for all listeners of the process.
    pub fn global() -> &'static ListenWatch {
        static GLOBAL: OnceLock<ListenWatch> = OnceLock::new();
        GLOBAL.get_or_init(ListenWatch::new)
    }

    /// Watches a TCP socket that listens, or will listen. `backlog` is the configured one, to which a raised backlog
    /// returns. The watch duplicates the descriptor. Further registrations of the same socket share the state of the
    /// first one, with its backlog. The first listener starts the thread.
    ///
    /// # Errors
    /// The socket is no TCP socket, descriptors ran out, or the thread could not be started.
    pub fn register(&self, listener: &impl AsFd, backlog: u32) -> io::Result<WatchedListener> {
        let status = rustix::fs::fstat(listener)?;
        let identity = (status.st_dev, status.st_ino);
        let mut registry = self.shared.lock();
        let known = registry.listeners.iter_mut().find(|listener| listener.identity == identity);
        let (id, counters) = if let Some(known) = known {
            known.registrations += 1;
            (known.id, Arc::clone(&known.counters))
        } else {
            let id = registry.next_id;
            let listener = RegisteredListener::new(id, identity, listener, backlog)?;
            let counters = Arc::clone(&listener.counters);
            self.shared.start(&mut registry)?;
            registry.next_id += 1;
            registry.listeners.push(listener);
            (id, counters)
        };
        drop(registry);
        Ok(WatchedListener { shared: Arc::clone(&self.shared), id, counters })
    }

    /// Calls `callback` with every change from now on, in the watch's thread; at once, and here, with an earlier
    /// [`ListenEvent::CountersUnavailable`]. It may register and drop listeners, and
    /// should return soon: no sample is taken meanwhile. It must not panic, nor add callbacks.
    pub fn on_change(&self, callback: impl Fn(&ListenEvent) + Send + 'static) {
        let mut callbacks = self.shared.callbacks();
        if let Some(event) = &callbacks.unavailable {
            callback(event);
        }
        callbacks.list.push(Box::new(callback));
    }

    /// The counters of the watch; readable without a lock.
    #[must_use]
    pub fn counters(&self) -> &Arc<ListenWatchCounters> {
        &self.shared.counters
    }

    /// All counters at the last sample.
    #[must_use]
    pub fn report(&self) -> ListenReport {
        let registry = self.shared.lock();
        let listeners = registry.listeners.iter().map(|listener| &*listener.counters);
        ListenReport::of(&self.shared.counters, listeners)
    }

    /// Waits for the end of the thread if no listener is registered. Not for callbacks.
    pub fn join(&self) {
        let mut registry = self.shared.lock();
        let thread = if registry.listeners.is_empty() { registry.thread.take() } else { None };
        drop(registry);
        if let Some(thread) = thread {
            // A callback has panicked; its message was printed.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for ListenWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenWatch").field("counters", &self.shared.counters).finish_non_exhaustive()
    }
}

/// A registered listener; dropping it unregisters the listener, at once. Drop it before the listener is closed.
pub struct WatchedListener {
    shared: Arc<WatchState>,
    id: u64,
    counters: Arc<ListenerCounters>,
}

impl WatchedListener {
    /// Changes the configured backlog. It takes effect at once, unless the backlog is raised beyond it at present:
    /// then it is what the backlog returns to. A socket that does not listen yet is not changed.
    ///
    /// # Errors
    /// System errors; none is known for a listener.
    pub fn set_backlog(&self, backlog: u32) -> io::Result<()> {
        let mut registry = self.shared.lock();
        let listener = registry.listeners.iter_mut().find(|listener| listener.id == self.id);
        listener.map_or(Ok(()), |listener| listener.set_backlog(backlog))
    }

    /// The accept queue now; empty before the socket listens.
    ///
    /// # Errors
    /// System errors; none is known for a listener.
    pub fn queue(&self) -> io::Result<AcceptQueue> {
        let registry = self.shared.lock();
        let listener = registry.listeners.iter().find(|listener| listener.id == self.id);
        Ok(listener.map_or(Ok(None), |listener| queue_of(&listener.socket))?.unwrap_or_default())
    }

    /// The counters of the listener; readable without a lock.
    #[must_use]
    pub fn counters(&self) -> &Arc<ListenerCounters> {
        &self.counters
    }
}

impl fmt::Debug for WatchedListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedListener").field("counters", &self.counters).finish_non_exhaustive()
    }
}

impl Drop for WatchedListener {
    fn drop(&mut self) {
        let mut registry = self.shared.lock();
        let Some(at) = registry.listeners.iter().position(|listener| listener.id == self.id) else { return };
        let listener = &mut registry.listeners[at];
        listener.registrations -= 1;
        let unregistered = (listener.registrations == 0).then(|| registry.listeners.remove(at));
        let is_last = registry.listeners.is_empty();
        drop(registry);
        if is_last {
            self.shared.is_empty.notify_all();
        }
        // Its descriptor is closed without the lock: the last one of a listener resets the connections in its queues.
        drop(unregistered);
    }
}

impl WatchState {
    fn lock(&self) -> MutexGuard<'_, ListenerRegistry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn callbacks(&self) -> MutexGuard<'_, ListenCallbacks> {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread unless it runs.
    fn start(self: &Arc<Self>, registry: &mut ListenerRegistry) -> io::Result<()> {
        if registry.is_running {
            return Ok(());
        }
        let shared = Arc::clone(self);
        // Here, so that all changes after the registration count, and no descriptor is opened later.
        let mut sampler = ListenSampler::new();
        let unavailable = sampler.open_counters();
        let builder = std::thread::Builder::new().name("listen-watch".to_owned());
        registry.thread = Some(builder.spawn(move || shared.run(sampler, unavailable))?);
        registry.is_running = true;
        Ok(())
    }

    /// Samples until no listener is registered.
    fn run(&self, mut sampler: ListenSampler, unavailable: Option<ListenEvent>) {
        let _ending = EndGuard(self);
        block_thread_signals();
        unavailable.into_iter().for_each(|event| self.report(&[event]));
        while self.wait_for_sample() {
            let events = sampler.sample(self);
            self.report(&events);
        }
    }

    /// Waits for the interval of samples. Returns false when no listener is registered; then the thread must end.
    fn wait_for_sample(&self) -> bool {
        let has_listeners = |registry: &mut ListenerRegistry| !registry.listeners.is_empty();
        let registry = self.lock();
        let waited = self.is_empty.wait_timeout_while(registry, LISTEN_SAMPLE_INTERVAL, has_listeners);
        let (mut registry, _) = waited.unwrap_or_else(PoisonError::into_inner);
        // Under the lock: the next registration starts another thread.
        registry.is_running = has_listeners(&mut registry);
        registry.is_running
    }

    fn report(&self, events: &[ListenEvent]) {
        if !events.is_empty() {
            let mut callbacks = self.callbacks();
            events.iter().for_each(|event| callbacks.call(event));
        }
    }
}

#[derive(Default)]
struct ListenCallbacks {
    list: Vec<ListenCallback>,
    /// The event that later callbacks need, too.
    unavailable: Option<ListenEvent>,
}

impl ListenCallbacks {
    fn call(&mut self, event: &ListenEvent) {
        if let ListenEvent::CountersUnavailable { .. } = event {
            self.unavailable = Some(event.clone());
        }
        self.list.iter().for_each(|callback| callback(event));
    }
}

/// Resets the state of the thread when it ends, also by a panic of a callback.
struct EndGuard<'a>(&'a WatchState);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.counters.is_flooded.set(0);
        if std::thread::panicking() {
            self.0.lock().is_running = false;
        }
    }
}

/// State of the thread.
struct ListenSampler {
    clock: Clock,
    /// `None`: the counters cannot be read.
    netstat: Option<NetstatReader>,
    totals: SynCounts,
    detector: SynFloodDetector,
}

impl ListenSampler {
    fn new() -> ListenSampler {
        ListenSampler {
            clock: Clock::real(),
            netstat: None,
            totals: SynCounts::default(),
            detector: SynFloodDetector::new(),
        }
    }

    /// Opens the counters and reads their totals at the start.
    fn open_counters(&mut self) -> Option<ListenEvent> {
        let read = |mut reader: NetstatReader| reader.counts().map(|totals| (reader, totals));
        match NetstatReader::open().and_then(read) {
            Ok((reader, totals)) => {
                self.netstat = Some(reader);
                self.totals = totals;
                None
            }
            Err(error) => Some(ListenEvent::CountersUnavailable { error: error.to_string() }),
        }
    }

    /// Takes one sample of everything, and changes backlogs.
    fn sample(&mut self, shared: &WatchState) -> Vec<ListenEvent> {
        let counters = &*shared.counters;
        let number = counters.samples.get() + 1;
        let mut events = Vec::new();
        let counts = self.counts(&mut events);
        let unknown = ListenSettings { backlog_max: None, has_cookies: true };
        let settings = self.netstat.as_mut().map_or(unknown, NetstatReader::settings);
        counters.add(&counts);
        let at = self.clock.now();
        let sample = SynSample { at, counts, has_cookies: settings.has_cookies };
        let change = self.detector.sample(sample);
        let flood_since = self.detector.flood_since();
        counters.flood_since.set(flood_since.map_or(0, Time::as_nanos));
        counters.is_flooded.set(u64::from(flood_since.is_some()));
        events.extend(change.map(|change| match change {
            FloodChange::Began { unanswered } => {
                counters.floods.add(1);
                ListenEvent::FloodBegan { sample: number, unanswered, has_cookies: settings.has_cookies }
            }
            FloodChange::Ended { lasted } => ListenEvent::FloodEnded { sample: number, lasted },
        }));
        for listener in &mut shared.lock().listeners {
            let change = listener.sample(at, &counts, flood_since.is_some(), settings.backlog_max);
            let Some(change) = change else { continue };
            let is_raise = change.to > change.from;
            let (of_all, of_listener) = match is_raise {
                true => (&counters.raises, &listener.counters.raises),
                false => (&counters.lowers, &listener.counters.lowers),
            };
            of_all.add(1);
            of_listener.add(1);
            events.push(match is_raise {
                true => ListenEvent::BacklogRaised(change),
                false => ListenEvent::BacklogLowered(change),
            });
        }
        counters.samples.set(number);
        events
    }

    /// The counts since the previous sample.
    fn counts(&mut self, events: &mut Vec<ListenEvent>) -> SynCounts {
        let Some(reader) = &mut self.netstat else { return SynCounts::default() };
        match reader.counts() {
            Ok(totals) => totals.since(&std::mem::replace(&mut self.totals, totals)),
            Err(error) => {
                self.netstat = None;
                events.push(ListenEvent::CountersUnavailable { error: error.to_string() });
                SynCounts::default()
            }
        }
    }
}

impl RegisteredListener {
    fn new(
        id: u64,
        identity: (u64, u64),
        listener: &impl AsFd,
        backlog: u32,
    ) -> io::Result<RegisteredListener> {
        let queue = queue_of(listener)?;
        let address: SocketAddr = net::local_addr(listener)?;
        Ok(RegisteredListener {
            id,
            identity,
            registrations: 1,
            socket: listener.as_fd().try_clone_to_owned()?,
            control: BacklogControl::new(backlog),
            counters: Arc::new(ListenerCounters::new(address, backlog, queue)),
            drops: sockopt::dropped_by_socket(listener).unwrap_or_default(),
        })
    }

    /// Takes a sample of the queue and changes the backlog if necessary. Does nothing before the socket listens.
    fn sample(
        &mut self,
        at: Time,
        counts: &SynCounts,
        is_flooded: bool,
        backlog_max: Option<u32>,
    ) -> Option<BacklogChange> {
        let queue = queue_of(&self.socket).ok()??;
        self.counters.set_queue(queue);
        let total = sockopt::dropped_by_socket(&self.socket).unwrap_or(self.drops);
        let dropped = total.wrapping_sub(std::mem::replace(&mut self.drops, total));
        self.counters.drops.add(u64::from(dropped));
        // Half-open connections that end by an error of the network count as drops, too.
        let has_full_queue = counts.listen_overflows > 0 || counts.queue_full_drops > 0;
        let pressure = ListenPressure {
            is_flooded,
            has_dropped: dropped > 0 && has_full_queue,
            // The system caps it.
            backlog_max: backlog_max.unwrap_or(i32::MAX.cast_unsigned()),
        };
        let wanted = self.control.sample(at, queue, pressure)?;
        self.listen(wanted).ok()?;
        let to = u32::try_from(self.counters.backlog.get()).unwrap_or(u32::MAX);
        let change = BacklogChange { listener: self.counters.address, from: queue.max, to };
        (change.from != change.to).then_some(change)
    }

    fn set_backlog(&mut self, backlog: u32) -> io::Result<()> {
        let before = self.control.configured();
        self.control.set_configured(backlog);
        self.counters.configured.set(u64::from(backlog));
        let Some(queue) = queue_of(&self.socket)? else { return Ok(()) };
        let is_raised = queue.max > before;
        if is_raised && queue.max >= backlog {
            return Ok(());
        }
        self.listen(backlog)
    }

    /// Sets the backlog of the listener, which the system may cap.
    fn listen(&self, backlog: u32) -> io::Result<()> {
        SockRef::from(&self.socket).listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
        self.counters.set_queue(queue_of(&self.socket)?.unwrap_or_default());
        Ok(())
    }
}

fn queue_of(socket: &impl AsFd) -> io::Result<Option<AcceptQueue>> {
    Ok(net::accept_queue(socket)?.map(|(length, max)| AcceptQueue { length, max }))
}

#[cfg(test)]
mod tests;
