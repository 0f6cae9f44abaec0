//! The shard's requests to the hub: their numbers, and changes of registrations that are not reported yet.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::publication_batch::{HubRequest, InterestChange, RegistrationId};

/// Numbers the shard's requests, which the hub reports as processed. Changes get the next numbers.
#[derive(Debug, Default)]
pub(super) struct HubProgress {
    changes: VecDeque<PendingChange>,
    /// Requests in publication batches so far.
    requests: u64,
    is_syncing: bool,
    /// Number of processed requests in the last answer.
    processed: u64,
}

impl HubProgress {
    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    pub(super) fn count_request(&mut self) {
        self.requests += 1;
    }

    pub(super) fn push(&mut self, change: PendingChange) {
        self.changes.push_back(change);
    }

    pub(super) fn pop(&mut self) -> Option<PendingChange> {
        self.changes.pop_front()
    }

    pub(super) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Number of requests when all changes so far are reported.
    pub(super) fn with_changes(&self) -> u64 {
        self.requests + self.changes.len() as u64
    }

    /// Requests the number of processed requests, unless a request is outstanding.
    pub(super) fn sync(&mut self) {
        if !std::mem::replace(&mut self.is_syncing, true) {
            let id = RegistrationId::default();
            self.push(PendingChange { token: 0, id, kind: ChangeKind::Sync });
        }
    }

    /// Requests the number of processed requests: an earlier request does not suffice.
    pub(super) fn sync_again(&mut self) {
        self.is_syncing = false;
        self.sync();
    }

    pub(super) fn synced(&mut self, processed: u64) {
        (self.is_syncing, self.processed) = (false, processed);
    }

    /// Returns whether the hub has reported as many requests as processed.
    pub(super) fn has_processed(&self, requests: u64) -> bool {
        requests <= self.processed
    }
}

#[derive(Debug)]
pub(super) struct PendingChange {
    pub(super) token: u64,
    pub(super) id: RegistrationId,
    pub(super) kind: ChangeKind,
}

#[derive(Debug)]
pub(super) enum ChangeKind {
    Register { filter: Arc<[u8]>, queue: Box<[u8]> },
    Share { filter: Arc<[u8]> },
    Unshare,
    Sync,
    Unregister { after: Option<u32>, is_shared: bool },
    Disconnect,
}

impl PendingChange {
    /// The request that reports the change.
    pub(super) fn request(&self) -> HubRequest<'_> {
        let id = self.id;
        HubRequest::Interest(match &self.kind {
            ChangeKind::Disconnect => return HubRequest::Disconnect,
            ChangeKind::Register { filter, queue } => InterestChange::Register { id, filter, queue },
            ChangeKind::Share { filter } => InterestChange::Share { id, filter },
            ChangeKind::Unshare => InterestChange::Unshare { id },
            ChangeKind::Sync => InterestChange::Sync,
            &ChangeKind::Unregister { after, is_shared } => {
                InterestChange::Unregister { id, after, is_shared }
            }
        })
    }
}
