//! Fan-out: messages, bytes and publish outcomes for each shard, in order, with bounded queues for full shards.
//!
//! ```text
//!                ┌─▶ shard 0: [ batch ]
//!   message ─────┼─▶ shard 1: [ batch ] [ batch ] …  waits for shard 1 alone
//!   outcome, … ──┴─▶ shard 2: [ batch ]
//!
//!   one record or API request produces more than a queue may hold ─▶ unsent: [ record, its last 7 consumers ] [ mark ]
//! ```
//!
//! A shard that holds all its routed batches delays only its own deliveries: they wait in the [queue](shard_queue) of
//! this shard, bounded by [`HubConfig::shard_queue_size_max`](crate::HubConfig). Over the bound the hub processes no
//! publication that would add to the queue, and no request of this shard.
//!
//! One record may go to thousands of consumers with thousands of subscribers each, too many messages to hold in memory.
//! It is therefore sent consumer by consumer. When a queue reaches twice its bound, the remaining consumers are kept as
//! `unsent`, and the hub processes nothing else until they have been served.

use std::collections::VecDeque;

use stilling_journal::Record;

use self::shard_queue::ShardQueue;
pub(crate) use self::unsent::{UnsentItem, VisibleRecord};
use crate::message::OutboundMessage;
use crate::payload::Payload;
use crate::publication_batch::{ClientId, RegistrationId};
use crate::publish_outcome::PublishOutcome;
use crate::pull::EndedPull;
use crate::registrations::SubscriberTarget;
use crate::resume::SubscriptionNotice;
use crate::routed_batch::{MarkTarget, RoutedBatch};
use crate::router::Router;

mod shard_queue;
mod unsent;

/// Sends routed batches to the shards.
pub trait ShardSenders {
    /// Hands a batch to a shard in exchange for an empty one. Returns `false`, and leaves the batch, if the shard holds
    /// all its batches.
    fn swap(&mut self, shard: usize, routed_batch: &mut RoutedBatch) -> bool;

    /// Returns whether a shard has ended: it returns no more batches, and the deliveries queued for it are dropped.
    fn has_ended(&self, _shard: usize) -> bool {
        false
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MessageSender {
    pub(crate) client: ClientId,
    /// The publisher does not get the message back.
    pub(crate) no_echo: bool,
    /// Number of its shard's requests before the publication, for a message sent in the order of these requests: later
    /// subscriptions of the shard do not get it. `None` for records released later.
    pub(crate) position: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MessageDispatch {
    /// Message number; a routed batch contains each message once.
    pub(crate) number: u64,
    pub(crate) excluded: Option<ClientId>,
    /// Shard and [position](MessageSender::position) of the publisher.
    pub(crate) position: Option<(u32, u64)>,
}

#[derive(Debug)]
pub(crate) struct FanOut<O> {
    shard_senders: O,
    shards: Vec<ShardQueue>,
    queue_size_max: usize,
    /// A shard without room has room again since the last turn.
    has_regained_room: bool,
    /// Unfinished work from when a queue exceeded its bound, in order.
    unsent: VecDeque<UnsentItem>,
    /// Last message number; a routed batch contains each message once.
    messages: u64,
    /// Matches of a subject, recipients of a message, and registrations that end with it; reused buffers.
    matches: Vec<u32>,
    to: Vec<u32>,
    ended: Vec<u32>,
}

impl<O: ShardSenders> FanOut<O> {
    /// Creates the fan-out for `shards` shards with at most `queue_size_max` bytes waiting for each.
    pub(crate) fn new(shard_senders: O, shards: usize, queue_size_max: usize) -> FanOut<O> {
        FanOut {
            shard_senders,
            shards: (0..shards).map(ShardQueue::new).collect(),
            queue_size_max,
            has_regained_room: false,
            unsent: VecDeque::new(),
            messages: 0,
            matches: Vec::new(),
            to: Vec::new(),
            ended: Vec::new(),
        }
    }

    pub(crate) fn shard_senders(&self) -> &O {
        &self.shard_senders
    }

    pub(crate) fn shard_senders_mut(&mut self) -> &mut O {
        &mut self.shard_senders
    }

    #[cfg(test)]
    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    pub(crate) fn waiting_size(&self) -> usize {
        self.shards.iter().map(ShardQueue::size).sum()
    }

    /// Begins a turn: hands out waiting batches, and checks whether a shard without room has room again.
    pub(crate) fn begin_turn(&mut self) {
        self.advance();
        self.has_regained_room = false;
        for queue in &mut self.shards {
            self.has_regained_room |=
                std::mem::take(&mut queue.is_stalled) && queue.has_room(&mut self.shard_senders);
        }
    }

    /// Returns whether a shard without room had room at the beginning of the turn.
    pub(crate) fn has_regained_room(&self) -> bool {
        self.has_regained_room
    }

    #[inline]
    pub(crate) fn advance(&mut self) {
        for queue in self.shards.iter_mut().filter(|queue| queue.is_waiting()) {
            queue.advance(&mut self.shard_senders);
        }
    }

    /// Sets the number of processed requests of a shard, which later batches report.
    pub(crate) fn set_processed(&mut self, shard: u32, processed: u64) {
        self.shards[shard as usize].processed = processed;
    }

    /// Sends a shard the number of its processed requests, after everything sent before.
    pub(crate) fn sync(&mut self, shard: u32) {
        let queue = &mut self.shards[shard as usize];
        let processed = queue.processed;
        queue.open_batch(&mut self.shard_senders).processed(processed);
    }

    pub(crate) fn refuse_registration(&mut self, shard: u32, id: RegistrationId) {
        self.shards[shard as usize].open_batch(&mut self.shard_senders).refused(id);
    }

    pub(crate) fn flush(&mut self) {
        self.advance();
        for queue in &mut self.shards {
            queue.flush(&mut self.shard_senders);
        }
    }

    pub(crate) fn has_batch_for(&self, shard: usize) -> bool {
        self.shards[shard].has_any()
    }

    #[inline]
    pub(crate) fn has_room(&mut self) -> bool {
        self.shards.iter_mut().all(|queue| queue.has_room(&mut self.shard_senders))
    }

    /// Returns whether every shard with subscriptions that match `subject` has room.
    pub(crate) fn has_room_for(&mut self, router: &Router, subject: &[u8]) -> bool {
        if self.has_room() {
            return true;
        }
        let mut matches = std::mem::take(&mut self.matches);
        router.find(subject, &mut matches);
        let has_room = router
            .registered(&matches)
            .all(|to| self.shards[to.shard() as usize].has_room(&mut self.shard_senders));
        self.matches = matches;
        has_room
    }

    /// Returns whether a shard without room may have room now.
    pub(crate) fn has_room_again(&self) -> bool {
        self.shards.iter().any(|queue| queue.is_stalled && queue.may_have_room())
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.shards.iter().any(ShardQueue::is_waiting)
    }

    #[inline]
    pub(crate) fn is_over(&self, shard: u32) -> bool {
        self.shards[shard as usize].is_over(self.queue_size_max)
    }

    #[inline]
    pub(crate) fn is_any_over(&self) -> bool {
        self.shards.iter().any(|queue| queue.is_over(self.queue_size_max))
    }

    /// Returns whether any shard's queue has reached twice its bound: unfinished work then stops.
    #[inline]
    pub(crate) fn is_any_far_over(&self) -> bool {
        self.shards.iter().any(|queue| queue.is_over(2 * self.queue_size_max))
    }

    /// Returns whether a message to the registrations `matches`, except those of client `own`, may add to a queue over
    /// its bound.
    pub(crate) fn is_over_for(&self, router: &Router, matches: &[u32], own: Option<ClientId>) -> bool {
        router.registered(matches).any(|to| {
            let is_own = own.is_some() && own == to.single();
            !is_own && self.is_over(to.shard())
        })
    }

    /// As [`is_over_for`](Self::is_over_for), for the registrations that match a subject.
    pub(crate) fn is_over_for_subject(
        &mut self,
        router: &Router,
        subject: &[u8],
        own: Option<ClientId>,
    ) -> bool {
        if subject.is_empty() || !self.is_any_over() {
            return false;
        }
        let mut matches = std::mem::take(&mut self.matches);
        router.find(subject, &mut matches);
        let is_over = self.is_over_for(router, &matches, own);
        self.matches = matches;
        is_over
    }

    #[inline]
    fn routed_batch(&mut self, to: ClientId) -> &mut RoutedBatch {
        self.shards[to.shard as usize].open_batch(&mut self.shard_senders)
    }

    pub(crate) fn bytes(&mut self, to: ClientId, write: impl FnOnce(&mut Vec<u8>)) {
        self.routed_batch(to).bytes(to.token, write);
    }

    pub(crate) fn outcome(&mut self, to: ClientId, ticket: u32, outcome: PublishOutcome) {
        self.routed_batch(to).outcome(to.token, ticket, outcome);
    }

    /// Sends the rejection of a message by a gate to the publisher with that ticket.
    pub(crate) fn rejection(&mut self, to: ClientId, (ticket, stream): (u32, u32), reason: &[u8]) {
        self.routed_batch(to).rejection(to.token, (ticket, stream), reason);
    }

    /// Stops reading a connection until it is [resumed](Self::resume).
    pub(crate) fn pause(&mut self, client: ClientId) {
        self.routed_batch(client).pause(client.token);
    }

    pub(crate) fn resume(&mut self, client: ClientId) {
        self.routed_batch(client).resume(client.token);
    }

    pub(crate) fn close(&mut self, client: ClientId) {
        self.routed_batch(client).close(client.token);
    }

    /// Returns whether there is no unfinished work and a shard has room.
    pub(crate) fn has_room_in(&mut self, shard: u32) -> bool {
        !self.has_unfinished() && self.shards[shard as usize].has_room(&mut self.shard_senders)
    }

    /// Sends a record to a connection that catches up. The caller has checked for [room](Self::has_room_in).
    pub(crate) fn record(&mut self, to: ClientId, message: &OutboundMessage<'_>) {
        self.routed_batch(to).record(to.token, message);
    }

    /// Sends a notice to a subscription. The caller has checked for [room](Self::has_room_in).
    pub(crate) fn notice(&mut self, to: ClientId, notice: SubscriptionNotice) {
        self.routed_batch(to).notice(to.token, notice);
    }

    /// Appends a mark, after unfinished work.
    pub(crate) fn mark(&mut self, to: SubscriberTarget, mark: u64) {
        if self.has_unfinished() {
            self.unsent.push_back(UnsentItem::Mark { to, mark });
        } else {
            self.push_mark(to, mark);
        }
    }

    pub(crate) fn push_mark(&mut self, to: SubscriberTarget, mark: u64) {
        let (shard, target) = match to {
            SubscriberTarget::Single(ClientId { shard, token }) => (shard, MarkTarget::Connection(token)),
            SubscriberTarget::Shared { shard, id } => (shard, MarkTarget::Registration(id)),
        };
        self.shards[shard as usize].open_batch(&mut self.shard_senders).mark(target, mark);
    }

    /// Sends a message to the registrations `matches`, one per queue group; without room it waits for its shard. Returns
    /// a lower bound of the number of connections.
    pub(crate) fn send(
        &mut self,
        router: &mut Router,
        matches: &[u32],
        from: Option<MessageSender>,
        message: &OutboundMessage<'_>,
    ) -> u32 {
        self.messages += 1;
        let mut to = std::mem::take(&mut self.to);
        to.clear();
        let dispatch = MessageDispatch {
            number: self.messages,
            excluded: from.filter(|from| from.no_echo).map(|from| from.client),
            position: from.and_then(|from| Some((from.client.shard, from.position?))),
        };
        let count = router.choose(matches, dispatch.excluded, &mut to);
        if self.has_unfinished() {
            self.unsent.push_back(UnsentItem::of_message(dispatch, message, &to));
        } else {
            self.send_to_all(router, &dispatch, message, &to);
        }
        self.to = to;
        count
    }

    /// Sends the hub's own message to the subscriptions that match its subject; to none if that is empty.
    pub(crate) fn send_by_subject(&mut self, router: &mut Router, message: &OutboundMessage<'_>) {
        if message.subject.is_empty() {
            return;
        }
        let mut matches = std::mem::take(&mut self.matches);
        router.find(message.subject, &mut matches);
        self.send(router, &matches, None, message);
        self.matches = matches;
    }

    /// Sends the hub's own message to the reply subject of a client.
    pub(crate) fn send_reply(
        &mut self,
        router: &mut Router,
        client: ClientId,
        message: &OutboundMessage<'_>,
    ) {
        let mut matches = std::mem::take(&mut self.matches);
        router.find_reply(client, message.subject, &mut matches);
        self.send(router, &matches, None, message);
        self.matches = matches;
    }

    /// Sends a message to the subscriptions that match `subject`, which may differ from the message's own. Returns one
    /// recipient, or `None` without any.
    pub(crate) fn send_to_subject(
        &mut self,
        router: &mut Router,
        subject: &[u8],
        message: &OutboundMessage<'_>,
    ) -> Option<SubscriberTarget> {
        let mut matches = std::mem::take(&mut self.matches);
        router.find(subject, &mut matches);
        let recipient = router.first_subscriber(&matches);
        if recipient.is_some() {
            self.send(router, &matches, None, message);
        }
        self.matches = matches;
        recipient
    }

    /// Sends a message to registrations that may have been removed.
    pub(crate) fn send_to_all(
        &mut self,
        router: &mut Router,
        dispatch: &MessageDispatch,
        message: &OutboundMessage<'_>,
        to: &[u32],
    ) {
        for &slot in to {
            let Some(registration) = router.get_mut(slot) else { continue };
            let queue = &mut self.shards[registration.shard() as usize];
            queue.message(dispatch, message, registration.id, &mut self.shard_senders);
            if registration.count_delivery() {
                self.ended.push(slot);
            }
        }
        self.ended.drain(..).for_each(|slot| router.forget(slot));
    }

    pub(crate) fn has_unfinished(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub(crate) fn queue_record(
        &mut self,
        visible: VisibleRecord,
        record: &Record<'_, Payload<'_>>,
        to: &[u32],
    ) {
        self.unsent.push_back(UnsentItem::of_record(visible, record, to));
    }

    pub(crate) fn queue_statuses(&mut self, ended: VecDeque<EndedPull>) {
        self.unsent.push_back(UnsentItem::Statuses(ended));
    }

    /// Takes the first unfinished item and, separately, the others, which the caller [puts back](Self::put_back) behind
    /// the unfinished part of the first.
    pub(crate) fn take_unsent(&mut self) -> Option<(UnsentItem, VecDeque<UnsentItem>)> {
        let first = self.unsent.pop_front()?;
        Some((first, std::mem::take(&mut self.unsent)))
    }

    /// Queues the others again. Returns whether the first was sent completely.
    pub(crate) fn put_back(&mut self, mut others: VecDeque<UnsentItem>) -> bool {
        let is_sent = !self.has_unfinished();
        self.unsent.append(&mut others);
        is_sent
    }
}

#[cfg(test)]
mod tests;
