//! What addresses get before they have proved themselves: replies of at most three times their requests, and beyond
//! that a budget that all of them share, because not all clients answer Echo by themselves.

use std::time::Duration;

use stilling_engine::DatagramPath;
use stilling_ring::Time;

use super::limits::{
    AMPLIFICATION_MAX, MESSAGE_SIZE_MAX, UNPROVEN_BUDGET_MAX, UNPROVEN_BUDGET_PER_SECOND,
    UNPROVEN_REPLY_SIZE_MAX,
};
use super::peers::ProvenPeers;

/// The addresses whose replies are limited to three times their requests until they prove themselves by Echo
/// (RFC 9175).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnprovenPeers {
    /// All but loopback addresses. A budget of bytes per second allows somewhat longer replies, so that clients without
    /// Echo are served.
    #[default]
    Remote,
    /// All, without exception.
    All,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct UnprovenBudget {
    peers: UnprovenPeers,
    /// Bytes beyond the limit that may be sent now.
    bytes: usize,
    refilled_at: Time,
}

impl UnprovenBudget {
    pub(super) fn new(peers: UnprovenPeers, now: Time) -> UnprovenBudget {
        UnprovenBudget { peers, bytes: UNPROVEN_BUDGET_MAX, refilled_at: now }
    }

    /// Whether a peer receives at its address: it has returned an Echo value, or is trusted.
    pub(super) fn is_proven(&self, path: &DatagramPath, proven: &ProvenPeers, now: Time) -> bool {
        let is_trusted = self.peers == UnprovenPeers::Remote && path.peer.ip().to_canonical().is_loopback();
        is_trusted || proven.is_proven(path.peer, now)
    }

    /// Bytes of a reply at most, without the budget.
    pub(super) fn reply_size_max(
        &self,
        path: &DatagramPath,
        request_size: usize,
        proven: &ProvenPeers,
        now: Time,
    ) -> usize {
        match self.is_proven(path, proven, now) {
            true => MESSAGE_SIZE_MAX,
            false => (AMPLIFICATION_MAX * request_size).min(MESSAGE_SIZE_MAX),
        }
    }

    /// Bytes of a reply at most, if more than `limit` are allowed by the budget.
    pub(super) fn extended(&mut self, limit: usize, now: Time) -> Option<usize> {
        if self.peers == UnprovenPeers::All {
            return None;
        }
        self.refill(now);
        let extended = (limit + self.bytes).min(UNPROVEN_REPLY_SIZE_MAX);
        (extended > limit).then_some(extended)
    }

    /// Spends the bytes of a reply beyond `limit`.
    pub(super) fn spend(&mut self, size: usize, limit: usize) {
        self.bytes = self.bytes.saturating_sub(size.saturating_sub(limit));
    }

    fn refill(&mut self, now: Time) {
        let elapsed = now.since(self.refilled_at).min(Duration::from_secs(1));
        let bytes = elapsed.as_micros() as usize * UNPROVEN_BUDGET_PER_SECOND / 1_000_000;
        if bytes > 0 {
            self.bytes = (self.bytes + bytes).min(UNPROVEN_BUDGET_MAX);
            self.refilled_at = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_spent_and_refilled() {
        let now = Time::ZERO.after(Duration::from_secs(10));
        let mut budget = UnprovenBudget::new(UnprovenPeers::Remote, now);
        let mut spent = 0;
        while let Some(size) = budget.extended(20, now) {
            assert!(size <= UNPROVEN_REPLY_SIZE_MAX);
            budget.spend(size, 20);
            spent += size - 20;
        }
        assert_eq!(spent, UNPROVEN_BUDGET_MAX);
        let later = now.after(Duration::from_millis(1));
        assert_eq!(budget.extended(20, later), Some(20 + UNPROVEN_BUDGET_PER_SECOND / 1000));
        assert_eq!(budget.extended(UNPROVEN_REPLY_SIZE_MAX, later.after(Duration::from_secs(100))), None);
        let mut strict = UnprovenBudget::new(UnprovenPeers::All, now);
        assert_eq!(strict.extended(20, now), None);
    }
}
