//! Changes of a shard's registrations that are not reported to the hub yet.

use std::sync::Arc;

use crate::publication_batch::{HubRequest, InterestChange, RegistrationId};

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
