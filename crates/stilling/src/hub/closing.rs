//! Finishes a hub that its shard has left after a hand-over: runs it beside the shards, then releases the streams.

use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use stilling_hub::Now;
use stilling_ring::Time;

use super::lazy_journal::LazyJournal;
use super::limits::CLOSE_CHECK_INTERVAL;
use super::runner::Runner;
use super::stepped::SteppedThreads;
use crate::lifecycle::{Lifecycle, LifecyclePhase, ReleaseOnDrop};

/// How to finish a hub after its shard has left.
#[derive(Clone)]
pub(crate) enum HubCloser {
    /// On a thread. The channel receives its handle.
    Threads { lifecycle: Arc<Lifecycle>, threads: mpsc::Sender<JoinHandle<()>> },
    /// In steps of a simulation.
    Stepped { lifecycle: Arc<Lifecycle>, threads: SteppedThreads },
}

impl HubCloser {
    pub(super) fn close(&self, runner: Runner<LazyJournal>, began: Now) {
        match self {
            HubCloser::Threads { lifecycle, threads } => {
                let mut hub = ClosingHub::new(runner, Arc::clone(lifecycle));
                let lifecycle = Arc::clone(lifecycle);
                let work = move || {
                    let from = Instant::now();
                    let now = || {
                        let elapsed_ns = u64::try_from(from.elapsed().as_nanos()).unwrap_or(u64::MAX);
                        let unix_ns = lifecycle.unix_nanos(Time::ZERO);
                        Now { unix_ns, steady_ns: began.steady_ns.after(elapsed_ns) }
                    };
                    while hub.turn(now()) {
                        if hub.runner.is_quiet() {
                            std::thread::park_timeout(CLOSE_CHECK_INTERVAL);
                        }
                    }
                };
                // Without a thread the hub ends here; nothing beyond what it has written was acknowledged.
                if let Ok(thread) = std::thread::Builder::new().name("hub-close".to_owned()).spawn(work) {
                    // The server joins the thread at its end.
                    let _ = threads.send(thread);
                }
            }
            HubCloser::Stepped { lifecycle, threads } => {
                threads.close(ClosingHub::new(runner, Arc::clone(lifecycle)));
            }
        }
    }
}

/// A hub beside the shards, and the release of the streams after its end.
pub(crate) struct ClosingHub {
    pub(super) runner: Runner<LazyJournal>,
    lifecycle: Arc<Lifecycle>,
    /// Dropped last, after the streams' locks.
    release: ReleaseOnDrop,
}

impl ClosingHub {
    pub(super) fn new(runner: Runner<LazyJournal>, lifecycle: Arc<Lifecycle>) -> ClosingHub {
        let release = ReleaseOnDrop(Arc::clone(&lifecycle));
        ClosingHub { runner, lifecycle, release }
    }

    /// Does the work due now. Returns whether there may be more.
    pub(super) fn turn(&mut self, now: Now) -> bool {
        let goes_on =
            |hub: &ClosingHub| !hub.runner.is_done() && hub.lifecycle.phase() != LifecyclePhase::Stopping;
        if goes_on(self) {
            self.runner.turn(now);
        }
        goes_on(self)
    }

    /// Ends the hub. Returns the release of the streams.
    pub(super) fn into_release(self) -> ReleaseOnDrop {
        self.release
    }
}
