//! The queue of one shard: the routed batch being filled, and full ones that wait for the shard to return batches.
//!
//! ```text
//!   waiting: [ full batch ] [ full batch ] │ open batch
//!                └─ to the shard, when it  └─ messages, outcomes, marks, PONG
//!                   returns a batch
//! ```
//!
//! The order of all entries for the shard is kept.

use std::collections::VecDeque;

use stilling_ring::planted;

use super::{MessageDispatch, OutboundMessage, ShardSenders};
use crate::publication_batch::RegistrationId;
use crate::routed_batch::RoutedBatch;

#[derive(Debug, Default)]
pub(super) struct ShardQueue {
    shard: usize,
    pub(super) routed_batch: RoutedBatch,
    /// Full batches, with the bytes that each counts for.
    waiting: VecDeque<(RoutedBatch, usize)>,
    size: usize,
    /// An empty batch with allocated memory.
    spare: RoutedBatch,
    /// There was no room at the last check or insertion.
    pub(super) is_stalled: bool,
    pub(super) processed: u64,
}

impl ShardQueue {
    pub(super) fn new(shard: usize) -> ShardQueue {
        ShardQueue { shard, ..ShardQueue::default() }
    }

    pub(super) fn has_any(&self) -> bool {
        !self.routed_batch.is_empty() || self.is_waiting()
    }

    /// Returns whether full batches wait for the shard to return one.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    #[inline]
    pub(super) fn is_over(&self, size_max: usize) -> bool {
        self.is_waiting() && self.size >= size_max
    }

    /// Returns whether there is room without a batch from the shard.
    pub(super) fn may_have_room(&self) -> bool {
        !self.is_waiting() && !self.routed_batch.is_full()
    }

    /// Returns whether there is room, using a returned batch if needed.
    #[inline]
    pub(super) fn has_room(&mut self, shard_senders: &mut impl ShardSenders) -> bool {
        let has_room = !self.is_waiting()
            && (!self.routed_batch.is_full() || shard_senders.swap(self.shard, &mut self.routed_batch));
        self.is_stalled |= !has_room;
        has_room
    }

    /// Returns the open batch, with room for one more entry.
    #[inline]
    pub(super) fn open_batch(&mut self, shard_senders: &mut impl ShardSenders) -> &mut RoutedBatch {
        if self.routed_batch.is_full() && !self.has_room(shard_senders) {
            self.enqueue_batch();
        }
        &mut self.routed_batch
    }

    fn enqueue_batch(&mut self) {
        if planted!("dropped delivery") {
            return self.routed_batch.clear();
        }
        let routed_batch = std::mem::replace(&mut self.routed_batch, std::mem::take(&mut self.spare));
        let size = routed_batch.size();
        self.size += size;
        self.waiting.push_back((routed_batch, size));
    }

    /// Adds a message for a registration of the shard; consecutive registrations share it.
    #[inline]
    pub(super) fn message(
        &mut self,
        dispatch: &MessageDispatch,
        message: &OutboundMessage<'_>,
        target: RegistrationId,
        shard_senders: &mut impl ShardSenders,
    ) {
        let &MessageDispatch { number, excluded, position } = dispatch;
        let shard = self.shard as u32;
        let excluded = excluded.filter(|client| client.shard == shard).map(|client| client.token);
        let own_position = position.filter(|(of, _)| *of == shard).map(|(_, position)| position);
        let processed = own_position.unwrap_or(self.processed);
        let routed_batch = if self.routed_batch.ends_with(number) {
            &mut self.routed_batch
        } else {
            self.open_batch(shard_senders)
        };
        routed_batch.message((number, processed), excluded, message, target);
    }

    /// Hands out as many waiting batches as the shard has returned.
    pub(super) fn advance(&mut self, shard_senders: &mut impl ShardSenders) {
        while let Some((mut routed_batch, size)) = self.waiting.pop_front() {
            if !shard_senders.swap(self.shard, &mut routed_batch) {
                self.is_stalled = true;
                self.waiting.push_front((routed_batch, size));
                if shard_senders.has_ended(self.shard) {
                    self.drop_all();
                }
                return;
            }
            self.size -= size;
            self.spare = routed_batch;
        }
    }

    /// Drops everything for a shard that has ended: its connections are closed.
    fn drop_all(&mut self) {
        self.waiting.clear();
        self.routed_batch.clear();
        (self.size, self.is_stalled) = (0, false);
    }

    /// Ends a turn: hands out the open batch if the shard has room.
    pub(super) fn flush(&mut self, shard_senders: &mut impl ShardSenders) {
        if !self.is_waiting() && !self.routed_batch.is_empty() {
            shard_senders.swap(self.shard, &mut self.routed_batch);
        }
    }
}
