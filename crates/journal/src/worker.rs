//! The work of the writer's thread, one round at a time.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use stilling_ring::Wake;

use crate::batch_builder::{BatchBuilder, RequestReceiver};
use crate::disk::Disk;
use crate::failure::Frozen;
use crate::group_commit::GroupCommit;
use crate::limits::CHECK_INTERVAL_MS;
use crate::log::Log;

/// Interval of file checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(CHECK_INTERVAL_MS);

pub(crate) fn run<D: Disk>(mut worker: JournalWorker<D>, wake: &Wake) -> Vec<Frozen> {
    loop {
        // Checked before the turn: once it is closed, no request can arrive after that turn.
        let is_last = worker.is_closed();
        let is_over = worker.requests.has_lost_builder();
        if worker.turn(Instant::now()) {
            continue;
        }
        if is_last {
            return worker.close();
        }
        if is_over {
            // Batches were lost with the builder. The streams end here, as after a panic of this thread.
            return Vec::new();
        }
        wake.set_parked();
        if !worker.has_work() && !worker.is_closed() && !worker.requests.has_lost_builder() {
            thread::park_timeout(worker.due_at().saturating_duration_since(Instant::now()));
        }
        wake.clear_parked();
    }
}

/// The work of the journal thread, one round at a time.
pub struct JournalWorker<D: Disk> {
    logs: Vec<Log<D>>,
    group_commit: GroupCommit,
    requests: RequestReceiver,
    /// Set if the builder has no thread.
    builder: Option<BatchBuilder>,
    consumer: Arc<Wake>,
    check_at: Instant,
}

impl<D: Disk> JournalWorker<D> {
    pub(crate) fn new(
        logs: Vec<Log<D>>,
        group_commit: GroupCommit,
        requests: RequestReceiver,
        consumer: Arc<Wake>,
        now: Instant,
    ) -> JournalWorker<D> {
        JournalWorker {
            logs,
            group_commit,
            requests,
            builder: None,
            consumer,
            check_at: now + CHECK_INTERVAL,
        }
    }

    pub(crate) fn with_builder(self, builder: BatchBuilder) -> JournalWorker<D> {
        JournalWorker { builder: Some(builder), ..self }
    }

    /// Builds the pending batches if the builder has no thread: the first step of [`turn`](JournalWorker::turn), which
    /// also continues while a disk hangs.
    pub fn build(&mut self) {
        while self.builder.as_mut().is_some_and(BatchBuilder::turn) {}
    }

    /// Receives all queued requests, writes the batches, and checks the files when that is due. Returns whether there
    /// was a request.
    pub fn turn(&mut self, now: Instant) -> bool {
        self.build();
        let has_any = self.group_commit.receive_requests(&mut self.requests, &mut self.logs);
        self.group_commit.write(&mut self.logs, now, &self.consumer);
        self.group_commit.write_snapshots(&mut self.logs);
        if now >= self.check_at {
            self.group_commit.check_files(&mut self.logs);
            self.check_at = now + CHECK_INTERVAL;
        }
        if self.group_commit.publish() {
            self.consumer.notify();
        }
        has_any
    }

    /// Whether there is a request.
    #[must_use]
    pub fn has_work(&mut self) -> bool {
        self.requests.has_next() || self.builder.as_ref().is_some_and(BatchBuilder::has_work)
    }

    /// When the next [`turn`](JournalWorker::turn) is due if no request arrives.
    #[must_use]
    pub fn due_at(&self) -> Instant {
        self.group_commit.retry_at().map_or(self.check_at, |at| at.min(self.check_at))
    }

    /// Whether the [`Journal`](crate::Journal) was dropped. Requests that it queued may still be pending.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        if self.builder.is_some() { self.requests.is_sender_closed() } else { self.requests.is_closed() }
    }

    /// Freezes streams that still cannot be written, and closes all streams. Returns the reasons of frozen streams.
    pub fn close(mut self) -> Vec<Frozen> {
        self.group_commit.stop_retrying(&mut self.logs);
        self.group_commit.write_snapshots(&mut self.logs);
        self.group_commit.publish();
        self.consumer.notify();
        self.logs.into_iter().filter_map(|log| log.close().err()).collect()
    }
}

impl<D: Disk> fmt::Debug for JournalWorker<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JournalWorker").field("logs", &self.logs).finish_non_exhaustive()
    }
}
