//! Limit of a publishing client's lead over the subscribers. It bounds the messages inside the server: without it, a
//! fast publisher would only show whether the server buffers or drops messages.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::limits::{LAG_MAX, LAG_SIZE_MAX};
use super::plan::CollectPlan;

/// One client's messages between publisher and subscribers.
#[derive(Debug)]
pub(super) struct LagWindow {
    delivered: Vec<AtomicU64>,
    /// Write time of each message; its index is `counter % started_at.len()`.
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

    /// Number of messages that may be sent: those that the slowest subscriber has received, plus the limit.
    pub(super) fn send_limit(&self) -> u64 {
        let slowest = self.delivered.iter().map(|delivered| delivered.load(Ordering::Acquire)).min();
        slowest.map_or(u64::MAX, |slowest| slowest + self.started_at.len() as u64)
    }

    /// Registers a message before it is written.
    pub(super) fn send(&self, counter: u64, now: u64) {
        if !self.delivered.is_empty() {
            self.at(counter).store(now, Ordering::Relaxed);
            self.sent.store(counter + 1, Ordering::Release);
        }
    }

    pub(super) fn finish(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// The total messages, once the publisher has finished.
    pub(super) fn total(&self) -> Option<u64> {
        self.ended.load(Ordering::Acquire).then(|| self.sent())
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// Registers a delivery to a subscriber; returns the write time of the message.
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
