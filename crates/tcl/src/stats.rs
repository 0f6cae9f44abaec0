//! Counts of the whole process.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use stilling_engine::counters::EngineCounters;

/// Listeners, outgoing and accepted sockets, and connections that wait for their script.
static OPEN: AtomicI64 = AtomicI64::new(0);

static COUNTERS: Mutex<Vec<Weak<EngineCounters>>> = Mutex::new(Vec::new());

pub(crate) fn socket_opened() {
    OPEN.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn socket_closed() {
    OPEN.fetch_sub(1, Ordering::Relaxed);
}

pub(crate) fn open_sockets() -> i64 {
    OPEN.load(Ordering::Relaxed)
}

fn counters() -> MutexGuard<'static, Vec<Weak<EngineCounters>>> {
    COUNTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds the counters of a shard, which count as long as it exists.
pub(crate) fn register(shard: &Arc<EngineCounters>) {
    let mut counters = counters();
    counters.retain(|other| other.strong_count() > 0);
    counters.push(Arc::downgrade(shard));
}

/// The sum of a counter over all shards.
pub(crate) fn sum(of: impl Fn(&EngineCounters) -> u64) -> u64 {
    counters().iter().filter_map(Weak::upgrade).map(|shard| of(&shard)).sum()
}

/// Bytes that the system has copied between files and sockets.
static FCOPY_BYTES: AtomicI64 = AtomicI64::new(0);

pub(crate) fn add_fcopy_bytes(count: usize) {
    FCOPY_BYTES.fetch_add(count as i64, Ordering::Relaxed);
}

pub(crate) fn fcopy_bytes() -> i64 {
    FCOPY_BYTES.load(Ordering::Relaxed)
}

/// Bytes of the process's sockets: their channels' drivers, tables, and the engine's slots.
pub(crate) fn general_bytes() -> i64 {
    open_sockets() * (size_of::<crate::stream::Stream>() + BYTES_BESIDE_STREAM) as i64
}

/// Bytes per socket beside its [`Stream`](crate::stream::Stream): the counts of its reference, its entry in the
/// thread's table, the engine's slot and session, and the driver's entry.
const BYTES_BESIDE_STREAM: usize = 16 + 24 + 112 + 16;
