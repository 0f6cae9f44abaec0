//! Shared state of the threads of a run: plan, counters of the clients, clock, end of the run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::lag_window::LagWindow;
use super::pattern::Pattern;
use super::plan::CollectPlan;

pub(super) struct CollectRun {
    pub(super) plan: CollectPlan,
    pub(super) pattern: Arc<Pattern>,
    /// Unique per run, so that messages of other runs are ignored.
    pub(super) id: String,
    pub(super) lag_windows: Vec<LagWindow>,
    /// The publishing threads wait here until all connections are open.
    pub(super) gate: Barrier,
    start: OnceLock<Instant>,
    stop: Arc<AtomicBool>,
}

impl CollectRun {
    pub(super) fn new(plan: CollectPlan) -> CollectRun {
        CollectRun::until(plan, Arc::default())
    }

    pub(super) fn until(plan: CollectPlan, stop: Arc<AtomicBool>) -> CollectRun {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        CollectRun {
            pattern: Arc::new(Pattern::new(plan.size)),
            id: format!("{:x}{:x}", std::process::id(), since.as_nanos()),
            lag_windows: (0..plan.clients).map(|_| LagWindow::new(&plan)).collect(),
            gate: Barrier::new(plan.publishing_threads().into()),
            start: OnceLock::new(),
            stop,
            plan,
        }
    }

    /// Nanoseconds since the first call, which starts the run; an hour takes 42 bits.
    pub(super) fn now(&self) -> u64 {
        self.start.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }

    pub(super) fn is_over(&self, now: u64) -> bool {
        let is_late = self.plan.span.is_some_and(|span| Duration::from_nanos(now) >= span);
        is_late || self.stop.load(Ordering::Relaxed)
    }
}
