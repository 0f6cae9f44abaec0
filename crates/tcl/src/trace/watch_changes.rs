//! What the watch of listeners changes, for the traces of all threads.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use stilling_engine::listen_watch::{BacklogChange, ListenEvent, ListenWatch};

use super::{TraceEvent, record};

/// Recent changes. A thread that has no events meanwhile misses older ones.
const WATCH_CHANGES_MAX: usize = 64;

static CHANGES: Mutex<VecDeque<(TraceEvent, String)>> = Mutex::new(VecDeque::new());

/// The number of all changes so far.
static COUNT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Changes that this thread has recorded, or that were before its trace.
    static RECORDED: Cell<u64> = const { Cell::new(0) };
}

fn changes() -> MutexGuard<'static, VecDeque<(TraceEvent, String)>> {
    CHANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A trace begins in this thread.
pub(super) fn begin() {
    static SUBSCRIBED: Once = Once::new();
    SUBSCRIBED.call_once(|| ListenWatch::global().on_change(keep));
    RECORDED.set(COUNT.load(Ordering::Acquire));
}

/// In the watch's thread.
fn keep(event: &ListenEvent) {
    let backlog = |change: &BacklogChange| {
        (
            TraceEvent::Backlog,
            format!("{} at {}, by the watch: was {}", change.to, change.listener, change.from),
        )
    };
    let change = match event {
        ListenEvent::BacklogRaised(change) | ListenEvent::BacklogLowered(change) => backlog(change),
        ListenEvent::FloodBegan { unanswered, .. } => {
            (TraceEvent::Flood, format!("began: {unanswered} unanswered connection requests"))
        }
        ListenEvent::FloodEnded { lasted, .. } => {
            (TraceEvent::Flood, format!("ended after {} ms", lasted.as_millis()))
        }
        ListenEvent::CountersUnavailable { error } => (TraceEvent::Flood, format!("not watched: {error}")),
        _ => return,
    };
    let mut changes = changes();
    if changes.len() == WATCH_CHANGES_MAX {
        changes.pop_front();
    }
    changes.push_back(change);
    COUNT.fetch_add(1, Ordering::Release);
}

/// Records the changes since the last call, of those that are kept.
pub(crate) fn record_watch_changes() {
    if COUNT.load(Ordering::Acquire) == RECORDED.get() {
        return;
    }
    let new: Vec<(TraceEvent, String)> = {
        let changes = changes();
        let total = COUNT.load(Ordering::Acquire);
        let count = total - RECORDED.replace(total);
        let skipped = changes.len().saturating_sub(usize::try_from(count).unwrap_or(usize::MAX));
        changes.iter().skip(skipped).cloned().collect()
    };
    for (event, text) in new {
        record(event, None, || text);
    }
}
