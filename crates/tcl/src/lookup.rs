//! Look-ups of host names on threads of their own, because the system's resolver waits for servers.
//!
//! ```text
//!  a thread's channel ─▶ queue ─▶ look-up thread ─▶ inbox of the channel's thread ─▶ wakes its shard
//! ```
//!
//! Equal queries that are under way share one look-up. A channel that closes or moves leaves its look-up, and a thread
//! that ends leaves its inbox: nothing else of either is known here.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stilling_engine::driver::WakeHandle;
use stilling_engine::driver::signals::block_thread_signals;

use crate::addresses::{Family, LookupError, host_number, is_numeric, look_up};
use crate::slab::SlabKey;
use crate::stream::ConnectPair;

/// Look-ups at once in this process.
const LOOKUP_THREADS_MAX: usize = 4;

/// Different queries that wait for a look-up thread. More: the command fails.
const LOOKUP_QUEUE_MAX: usize = 1_000;

/// Time without a query after which a look-up thread ends.
const LOOKUP_THREAD_IDLE: Duration = Duration::from_secs(5);

/// The host names of a connect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HostQuery {
    pub(crate) host: String,
    pub(crate) port: i32,
    /// `None`: the system chooses the address.
    pub(crate) local_host: Option<String>,
    pub(crate) local_port: i32,
    pub(crate) family: Family,
}

impl HostQuery {
    /// Whether the resolver answers without files and servers.
    pub(crate) fn is_numeric(&self) -> bool {
        is_numeric(&self.host) && self.local_host.as_deref().is_none_or(is_numeric)
    }

    /// All pairs of a remote and a local address of the same family, in the resolver's order. Waits for the resolver.
    pub(crate) fn run(&self) -> LookupOutcome {
        let remote = look_up(Some(&self.host), self.port, self.family, false)?;
        let local = look_up(self.local_host.as_deref(), self.local_port, self.family, true)?;
        let pairs = remote.iter().flat_map(|&to| {
            let same_family = local.iter().filter(move |from| from.is_ipv4() == to.is_ipv4());
            same_family.map(move |&from| ConnectPair { to, from })
        });
        Ok(pairs.collect())
    }

    /// The remote addresses of an outcome, each once.
    pub(crate) fn remote_addresses(pairs: &[ConnectPair]) -> Vec<SocketAddr> {
        let mut addresses = Vec::new();
        for pair in pairs {
            if !addresses.contains(&pair.to) {
                addresses.push(pair.to);
            }
        }
        addresses
    }
}

pub(crate) type LookupOutcome = Result<Vec<ConnectPair>, LookupError>;

/// The host and its addresses, or the error.
pub(crate) fn outcome_text(host: &str, outcome: &LookupOutcome) -> String {
    match outcome {
        Ok(pairs) => {
            let addresses = HostQuery::remote_addresses(pairs);
            let addresses: Vec<String> = addresses.into_iter().map(host_number).collect();
            format!("{host}: {}", addresses.join(" "))
        }
        Err(error) => format!("{host}: {}", error.text()),
    }
}

/// Why a look-up was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupRefusal {
    QueueFull,
    /// There is no look-up thread, and none can be started.
    NoThread,
}

impl LookupRefusal {
    pub(crate) fn text(self) -> String {
        match self {
            LookupRefusal::QueueFull => {
                format!("{LOOKUP_QUEUE_MAX} look-ups of other host names are waiting")
            }
            LookupRefusal::NoThread => "no thread can be started for the look-up of a host name".into(),
        }
    }
}

/// The finished look-ups of one interpreter thread.
pub(crate) struct LookupInbox {
    finished: Mutex<Vec<(SlabKey, LookupOutcome)>>,
    /// Cheap to ask in every turn.
    has_finished: AtomicBool,
    wake: WakeHandle,
}

impl LookupInbox {
    /// `wake` ends the wait of the thread's shard, from any thread, also when the shard is gone.
    pub(crate) fn new(wake: WakeHandle) -> Arc<Self> {
        Arc::new(LookupInbox { finished: Mutex::default(), has_finished: AtomicBool::new(false), wake })
    }

    fn add(&self, key: SlabKey, outcome: LookupOutcome) {
        lock(&self.finished).push((key, outcome));
        self.has_finished.store(true, Ordering::Release);
        self.wake.wake();
    }

    /// Takes all finished look-ups.
    pub(crate) fn take(&self) -> Vec<(SlabKey, LookupOutcome)> {
        if !self.has_finished.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut finished = lock(&self.finished);
        self.has_finished.store(false, Ordering::Release);
        std::mem::take(&mut finished)
    }
}

/// A look-up under way for one channel; dropping it leaves the look-up.
pub(crate) struct Lookup {
    query: Arc<HostQuery>,
    recipient: LookupRecipient,
}

impl std::fmt::Debug for Lookup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.query.fmt(f)
    }
}

#[derive(Clone)]
struct LookupRecipient {
    inbox: Arc<LookupInbox>,
    key: SlabKey,
}

impl LookupRecipient {
    fn is_same(&self, other: &LookupRecipient) -> bool {
        Arc::ptr_eq(&self.inbox, &other.inbox) && self.key == other.key
    }
}

impl Lookup {
    /// Starts a look-up, or joins one of the same query. Its outcome comes to the inbox, with this key.
    pub(crate) fn start(
        query: &Arc<HostQuery>,
        inbox: &Arc<LookupInbox>,
        key: SlabKey,
    ) -> Result<Self, LookupRefusal> {
        let recipient = LookupRecipient { inbox: Arc::clone(inbox), key };
        let mut pool = LookupPool::get();
        let query = match pool.pending.get_key_value(&**query) {
            Some((pending, _)) => Arc::clone(pending),
            None => {
                pool.add(query)?;
                Arc::clone(query)
            }
        };
        pool.pending.entry(Arc::clone(&query)).or_default().push(recipient.clone());
        drop(pool);
        Ok(Lookup { query, recipient })
    }
}

impl Lookup {
    pub(crate) fn host(&self) -> &str {
        &self.query.host
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        let mut pool = LookupPool::get();
        let Some(recipients) = pool.pending.get_mut(&self.query) else { return };
        recipients.retain(|other| !other.is_same(&self.recipient));
        if !recipients.is_empty() {
            return;
        }
        // A running look-up goes on: nothing can end it.
        if let Some(at) = pool.queue.iter().position(|waiting| *waiting == self.query) {
            pool.queue.remove(at);
            pool.pending.remove(&self.query);
        }
    }
}

/// The process's look-ups.
#[derive(Default)]
struct LookupPool {
    /// Queries that no thread has begun.
    queue: VecDeque<Arc<HostQuery>>,
    /// The recipients of all queries that are waiting or running.
    pending: HashMap<Arc<HostQuery>, Vec<LookupRecipient>>,
    threads: usize,
    idle: usize,
}

static POOL: Mutex<Option<LookupPool>> = Mutex::new(None);

/// Signalled for every query that is added.
static QUERY_ADDED: Condvar = Condvar::new();

/// The locked pool.
struct LockedPool(MutexGuard<'static, Option<LookupPool>>);

impl std::ops::Deref for LockedPool {
    type Target = LookupPool;

    fn deref(&self) -> &LookupPool {
        self.0.as_ref().expect("created by `get`")
    }
}

impl std::ops::DerefMut for LockedPool {
    fn deref_mut(&mut self) -> &mut LookupPool {
        self.0.as_mut().expect("created by `get`")
    }
}

impl LookupPool {
    fn get() -> LockedPool {
        let mut pool = lock(&POOL);
        pool.get_or_insert_default();
        LockedPool(pool)
    }

    /// Adds a query to the queue, and starts a thread for it if all are busy.
    fn add(&mut self, query: &Arc<HostQuery>) -> Result<(), LookupRefusal> {
        if self.queue.len() == LOOKUP_QUEUE_MAX {
            return Err(LookupRefusal::QueueFull);
        }
        let needs_thread = self.queue.len() >= self.idle && self.threads < LOOKUP_THREADS_MAX;
        if needs_thread {
            let started = std::thread::Builder::new().name("stilling-lookup".into()).spawn(run_thread);
            match started {
                Ok(_) => self.threads += 1,
                Err(_) if self.threads == 0 => return Err(LookupRefusal::NoThread),
                // A busy thread takes it.
                Err(_) => {}
            }
        }
        self.queue.push_back(Arc::clone(query));
        QUERY_ADDED.notify_one();
        Ok(())
    }
}

/// Runs look-ups until there are none for a while.
fn run_thread() {
    block_thread_signals();
    while let Some(query) = next_query() {
        let outcome = query.run();
        let recipients = LookupPool::get().pending.remove(&query).unwrap_or_default();
        for LookupRecipient { inbox, key } in recipients {
            inbox.add(key, outcome.clone());
        }
    }
}

/// Waits for a query; `None`: the thread is to end, and is no longer counted.
fn next_query() -> Option<Arc<HostQuery>> {
    let mut pool = LookupPool::get();
    loop {
        if let Some(query) = pool.queue.pop_front() {
            return Some(query);
        }
        pool.idle += 1;
        let waited = QUERY_ADDED.wait_timeout(pool.0, LOOKUP_THREAD_IDLE);
        let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        pool = LockedPool(guard);
        pool.idle -= 1;
        if timeout.timed_out() && pool.queue.is_empty() {
            pool.threads -= 1;
            return None;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
