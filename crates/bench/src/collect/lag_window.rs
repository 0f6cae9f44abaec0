//! How far a publishing client is ahead of those who read along. It bounds what lies in the server between them: else a
//! fast publisher measures which of memory and loss a server chooses, and nothing more.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::limits::{LAG_MAX, LAG_SIZE_MAX};
use super::plan::CollectPlan;

/// One client's messages between publisher and subscribers.
#[derive(Debug)]
pub(super) struct LagWindow {
    /// For each subscriber, how far it has come.
    delivered: Vec<AtomicU64>,
    /// When each message was written; its place is `counter % started_at.len()`.
    started_at: Box<[AtomicU64]>,
    sent: AtomicU64,
    ended: AtomicBool,
}

impl LagWindow {
    pub(super) fn new(plan: &CollectPlan) -> LagWindow {
        let size = u64::from(plan.size) * u64::from(plan.clients);
        let capacity = LAG_MAX.min(LAG_SIZE_MAX / size).max(1);
        LagWindow {
            delivered: (0..plan.subscribers).map(|_| AtomicU64::new(0)).collect(),
            started_at: (0..capacity).map(|_| AtomicU64::new(0)).collect(),
            sent: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        }
    }

    fn at(&self, counter: u64) -> &AtomicU64 {
        &self.started_at[(counter % self.started_at.len() as u64) as usize]
    }

    /// How many messages may be written by now, all in all.
    pub(super) fn send_limit(&self) -> u64 {
        let slowest = self.delivered.iter().map(|delivered| delivered.load(Ordering::Acquire)).min();
        slowest.map_or(u64::MAX, |slowest| slowest + self.started_at.len() as u64)
    }

    /// A message is about to be written.
    pub(super) fn send(&self, counter: u64, now: u64) {
        if !self.delivered.is_empty() {
            self.at(counter).store(now, Ordering::Relaxed);
            self.sent.store(counter + 1, Ordering::Release);
        }
    }

    /// No more messages are written.
    pub(super) fn finish(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// All messages there are, once the publisher has finished.
    pub(super) fn total(&self) -> Option<u64> {
        self.ended.load(Ordering::Acquire).then(|| self.sent())
    }

    /// Messages written so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// A subscriber got a message: when it was written.
    pub(super) fn deliver(&self, subscriber: usize, counter: u64) -> u64 {
        let started_at = self.at(counter).load(Ordering::Relaxed);
        self.delivered[subscriber].store(counter + 1, Ordering::Release);
        started_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_subscriber_sets_the_pace() {
        let plan = CollectPlan {
            clients: 2,
            subscribers: 2,
            size: 512 * 1024,
            ..CollectPlan::new(([127, 0, 0, 1], 9).into())
        };
        let lag_window = LagWindow::new(&plan);
        assert_eq!((lag_window.send_limit(), lag_window.total()), (4, None));
        (0..4).for_each(|counter| lag_window.send(counter, 10 + counter));
        assert_eq!(lag_window.deliver(0, 3), 13);
        assert_eq!(lag_window.send_limit(), 4);
        lag_window.deliver(1, 1);
        lag_window.finish();
        assert_eq!((lag_window.send_limit(), lag_window.total()), (6, Some(4)));
        assert_eq!(LagWindow::new(&CollectPlan { subscribers: 0, ..plan }).send_limit(), u64::MAX);
    }
}
