//! How far a publishing client is ahead of those who read along. It bounds what lies in the server between them: else a
//! fast publisher measures which of memory and loss a server chooses, and nothing more.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::limits::{LEAD_MAX, LEAD_SIZE_MAX};
use super::plan::Plan;

/// One client's messages between publisher and subscribers.
#[derive(Debug)]
pub(super) struct Lead {
    /// For each subscriber, how far it has come.
    delivered: Vec<AtomicU64>,
    /// When each message was written; its place is `counter % begun.len()`.
    begun: Box<[AtomicU64]>,
    sent: AtomicU64,
    ended: AtomicBool,
}

impl Lead {
    pub(super) fn new(plan: &Plan) -> Lead {
        let size = u64::from(plan.size) * u64::from(plan.clients);
        let most = LEAD_MAX.min(LEAD_SIZE_MAX / size).max(1);
        Lead {
            delivered: (0..plan.subscribers).map(|_| AtomicU64::new(0)).collect(),
            begun: (0..most).map(|_| AtomicU64::new(0)).collect(),
            sent: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        }
    }

    fn at(&self, counter: u64) -> &AtomicU64 {
        &self.begun[(counter % self.begun.len() as u64) as usize]
    }

    /// How many messages may be written by now, all in all.
    pub(super) fn end(&self) -> u64 {
        let slowest = self.delivered.iter().map(|delivered| delivered.load(Ordering::Acquire)).min();
        slowest.map_or(u64::MAX, |slowest| slowest + self.begun.len() as u64)
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
    pub(super) fn all(&self) -> Option<u64> {
        self.ended.load(Ordering::Acquire).then(|| self.sent())
    }

    /// Messages written so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// A subscriber got a message: when it was written.
    pub(super) fn deliver(&self, subscriber: usize, counter: u64) -> u64 {
        let begun = self.at(counter).load(Ordering::Relaxed);
        self.delivered[subscriber].store(counter + 1, Ordering::Release);
        begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_subscriber_sets_the_pace() {
        let plan =
            Plan { clients: 2, subscribers: 2, size: 512 * 1024, ..Plan::new(([127, 0, 0, 1], 9).into()) };
        let lead = Lead::new(&plan);
        assert_eq!((lead.end(), lead.all()), (4, None));
        (0..4).for_each(|counter| lead.send(counter, 10 + counter));
        assert_eq!(lead.deliver(0, 3), 13);
        assert_eq!(lead.end(), 4);
        lead.deliver(1, 1);
        lead.finish();
        assert_eq!((lead.end(), lead.all()), (6, Some(4)));
        assert_eq!(Lead::new(&Plan { subscribers: 0, ..plan }).end(), u64::MAX);
    }
}
