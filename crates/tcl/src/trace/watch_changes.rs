//! What the watch of listeners changes, for the traces of all threads.

use std::cell::Cell;
use std::sync::Once;

use stilling_engine::listen_watch::{BacklogChange, ListenEvent, ListenWatch};

use super::{TraceEvent, record};
use crate::recent_events::RecentEvents;

/// Recent changes. A thread that has no events meanwhile misses older ones.
const WATCH_CHANGES_MAX: usize = 64;

static RECENT: RecentEvents<(TraceEvent, String)> = RecentEvents::new(WATCH_CHANGES_MAX);

thread_local! {
    /// Changes that this thread has recorded, or that were before its trace.
    static RECORDED: Cell<u64> = const { Cell::new(0) };
}

/// A trace begins in this thread.
pub(super) fn begin() {
    static SUBSCRIBED: Once = Once::new();
    SUBSCRIBED.call_once(|| ListenWatch::global().on_change(add_change));
    RECORDED.set(RECENT.count());
}

/// In the watch's thread.
fn add_change(event: &ListenEvent) {
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
    RECENT.push(change);
}

/// Records the changes since the last call, of those that are kept.
pub(crate) fn record_watch_changes() {
    for (event, text) in RECORDED.with(|recorded| RECENT.take_after(recorded)) {
        record(event, None, || text);
    }
}
