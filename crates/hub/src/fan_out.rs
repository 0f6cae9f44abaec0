//! What goes out: messages, bytes and verdicts for each shard, in order, and what had no room.
//!
//! ```text
//!                ┌─▶ shard 0: [ piece ]
//!   message ─────┼─▶ shard 1: [ piece ] [ piece ] …  waits for shard 1 alone
//!   verdict, … ──┴─▶ shard 2: [ piece ]
//!
//!   one record or question makes more than a queue may have ─▶ unsent: [ record, its last 7 consumers ] [ mark ]
//! ```
//!
//! A shard that has all its pieces holds up what goes to itself: that waits in a [queue](shard_queue) of this shard, bounded
//! by [`HubConfig::shard_queue_size_max`](crate::HubConfig). Over the bound the hub takes no publication that would add to
//! the queue, and none of the shard's own.
//!
//! One record may go to thousands of consumers with thousands of listeners each: what that makes must not stand in memory at
//! once. So it is handed out one consumer after the other. When a queue comes to twice its bound meanwhile, the rest is `unsent`,
//! and the hub takes nothing more before it has gone out.

use std::collections::VecDeque;

use stilling_journal::Record;

use self::shard_queue::ShardQueue;
pub(crate) use self::unsent::{UnsentItem, VisibleRecord};
use crate::deliveries::PublishOutcome;
use crate::message::OutboundMessage;
use crate::payload::Payload;
use crate::publication_batch::{ClientId, RegistrationId};
use crate::pull::EndedPull;
use crate::registrations::SubscriberTarget;
use crate::routed_batch::{MarkTarget, RoutedBatch};
use crate::router::Router;

mod shard_queue;
mod unsent;

/// Carries deliveries to shards.
pub trait Outlets {
    /// Takes a full piece for a shard and puts an empty one in its place. Returns whether there was an empty one.
    fn swap(&mut self, shard: usize, piece: &mut RoutedBatch) -> bool;

    /// Whether a shard has ended: nothing comes back from it, and what waits for it is dropped.
    fn is_gone(&self, _shard: usize) -> bool {
        false
    }
}

/// The connection that has published a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MessageSender {
    pub(crate) client: ClientId,
    /// It does not get the message back.
    pub(crate) no_echo: bool,
    /// How many requests its shard had made before the message, if that is sent in their order: subscriptions that the shard has
    /// made behind it do not get it.
    pub(crate) position: Option<u64>,
}

/// A message on its way to registrations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MessageDispatch {
    /// Numbers messages, so that each is in a shard's piece once.
    pub(crate) number: u64,
    /// The connection that does not get it.
    pub(crate) silent: Option<ClientId>,
    /// The shard of its publisher, and [the position](MessageSender::position).
    pub(crate) position: Option<(u32, u64)>,
}

/// What goes out to all shards.
#[derive(Debug)]
pub(crate) struct FanOut<O> {
    outlets: O,
    shards: Vec<ShardQueue>,
    /// Bytes that may wait for one shard.
    queue_size_max: usize,
    /// A shard that had no room has some since the last turn.
    has_regained_room: bool,
    /// What was begun when a queue came over its bound, in order.
    unsent: VecDeque<UnsentItem>,
    /// Numbers messages, so that each is in a shard's piece once.
    messages: u64,
    /// What takes a subject, what a message goes to, and which registrations end with it; memory that is used again.
    found: Vec<u32>,
    to: Vec<u32>,
    ended: Vec<u32>,
}

impl<O: Outlets> FanOut<O> {
    /// For so many shards, for each of which so many bytes may wait.
    pub(crate) fn new(outlets: O, shards: usize, queue_size_max: usize) -> FanOut<O> {
        FanOut {
            outlets,
            shards: (0..shards).map(ShardQueue::new).collect(),
            queue_size_max,
            has_regained_room: false,
            unsent: VecDeque::new(),
            messages: 0,
            found: Vec::new(),
            to: Vec::new(),
            ended: Vec::new(),
        }
    }

    pub(crate) fn outlets(&self) -> &O {
        &self.outlets
    }

    pub(crate) fn outlets_mut(&mut self) -> &mut O {
        &mut self.outlets
    }

    /// Messages that were sent, whether there was room or not.
    #[cfg(test)]
    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    /// Bytes that wait for shards.
    pub(crate) fn waiting_size(&self) -> usize {
        self.shards.iter().map(ShardQueue::size).sum()
    }

    /// Begins a turn: hands out what waits, and notes whether a shard has room again.
    pub(crate) fn begin_turn(&mut self) {
        self.advance();
        self.has_regained_room = false;
        for queue in &mut self.shards {
            self.has_regained_room |=
                std::mem::take(&mut queue.is_stalled) && queue.has_room(&mut self.outlets);
        }
    }

    /// Whether a shard that had no room had some when the turn began.
    pub(crate) fn has_regained_room(&self) -> bool {
        self.has_regained_room
    }

    /// Hands out what waits for shards that have given pieces back.
    #[inline]
    pub(crate) fn advance(&mut self) {
        for queue in self.shards.iter_mut().filter(|queue| queue.is_waiting()) {
            queue.advance(&mut self.outlets);
        }
    }

    /// Sets how many requests of a shard are processed; what is sent to it says so.
    pub(crate) fn set_processed(&mut self, shard: u32, processed: u64) {
        self.shards[shard as usize].processed = processed;
    }

    /// Tells a shard how many of its requests are processed, behind everything that it was sent.
    pub(crate) fn sync(&mut self, shard: u32) {
        let queue = &mut self.shards[shard as usize];
        let processed = queue.processed;
        queue.open_piece(&mut self.outlets).processed(processed);
    }

    /// Tells a shard that there was no room for a registration.
    pub(crate) fn refuse_registration(&mut self, shard: u32, id: RegistrationId) {
        self.shards[shard as usize].open_piece(&mut self.outlets).refused(id);
    }

    /// Ends a turn: hands what there is to the shards.
    pub(crate) fn flush(&mut self) {
        self.advance();
        for queue in &mut self.shards {
            queue.flush(&mut self.outlets);
        }
    }

    /// Whether there is something for a shard that could not be handed out.
    pub(crate) fn has_piece_for(&self, shard: usize) -> bool {
        self.shards[shard].has_any()
    }

    /// Whether every shard can be handed more.
    #[inline]
    pub(crate) fn has_room(&mut self) -> bool {
        self.shards.iter_mut().all(|queue| queue.has_room(&mut self.outlets))
    }

    /// Whether every shard with subscriptions that take `subject` can be handed more.
    pub(crate) fn has_room_for(&mut self, router: &Router, subject: &[u8]) -> bool {
        if self.has_room() {
            return true;
        }
        let mut found = std::mem::take(&mut self.found);
        router.find(subject, &mut found);
        let has_room =
            router.registered(&found).all(|to| self.shards[to.shard() as usize].has_room(&mut self.outlets));
        self.found = found;
        has_room
    }

    /// Whether a shard that had no room has some by now.
    pub(crate) fn has_room_again(&self) -> bool {
        self.shards.iter().any(|queue| queue.is_stalled && queue.may_have_room())
    }

    /// Whether something waits for a shard.
    pub(crate) fn is_waiting(&self) -> bool {
        self.shards.iter().any(ShardQueue::is_waiting)
    }

    /// Whether the queue of a shard is over its bound.
    #[inline]
    pub(crate) fn is_over(&self, shard: u32) -> bool {
        self.shards[shard as usize].is_over(self.queue_size_max)
    }

    /// Whether the queue of any shard is over its bound.
    #[inline]
    pub(crate) fn is_any_over(&self) -> bool {
        self.shards.iter().any(|queue| queue.is_over(self.queue_size_max))
    }

    /// Whether the queue of any shard has twice its bound: what was begun within it does not go on.
    #[inline]
    pub(crate) fn is_any_far_over(&self) -> bool {
        self.shards.iter().any(|queue| queue.is_over(2 * self.queue_size_max))
    }

    /// Whether a message to the subscriptions `found` may add to a queue that is over its bound, those of the client `own`
    /// aside.
    pub(crate) fn is_over_for(&self, router: &Router, found: &[u32], own: Option<ClientId>) -> bool {
        router.registered(found).any(|to| {
            let is_own = own.is_some() && own == to.single();
            !is_own && self.is_over(to.shard())
        })
    }

    /// The same of a message to the subscriptions that take a subject.
    pub(crate) fn is_over_for_subject(
        &mut self,
        router: &Router,
        subject: &[u8],
        own: Option<ClientId>,
    ) -> bool {
        if subject.is_empty() || !self.is_any_over() {
            return false;
        }
        let mut found = std::mem::take(&mut self.found);
        router.find(subject, &mut found);
        let is_over = self.is_over_for(router, &found, own);
        self.found = found;
        is_over
    }

    #[inline]
    fn piece(&mut self, to: ClientId) -> &mut RoutedBatch {
        self.shards[to.shard as usize].open_piece(&mut self.outlets)
    }

    /// Appends bytes of the hub's own for a connection.
    pub(crate) fn bytes(&mut self, to: ClientId, write: impl FnOnce(&mut Vec<u8>)) {
        self.piece(to).bytes(to.token, write);
    }

    /// Appends a verdict.
    pub(crate) fn outcome(&mut self, to: ClientId, ticket: u32, outcome: PublishOutcome) {
        self.piece(to).outcome(to.token, ticket, outcome);
    }

    /// Has a connection's input not read until it is [resumed](Self::resume).
    pub(crate) fn pause(&mut self, client: ClientId) {
        self.piece(client).pause(client.token);
    }

    /// Has a connection's input read again.
    pub(crate) fn resume(&mut self, client: ClientId) {
        self.piece(client).resume(client.token);
    }

    /// Has a connection closed behind what it was sent.
    pub(crate) fn close(&mut self, client: ClientId) {
        self.piece(client).close(client.token);
    }

    /// Appends a mark, behind what waits.
    pub(crate) fn mark(&mut self, to: SubscriberTarget, mark: u64) {
        if self.has_unfinished() {
            self.unsent.push_back(UnsentItem::Mark { to, mark });
        } else {
            self.push_mark(to, mark);
        }
    }

    /// Appends a mark that has waited.
    pub(crate) fn push_mark(&mut self, to: SubscriberTarget, mark: u64) {
        let (shard, target) = match to {
            SubscriberTarget::ClientId(ClientId { shard, token }) => (shard, MarkTarget::Connection(token)),
            SubscriberTarget::Shared { shard, id } => (shard, MarkTarget::Registration(id)),
        };
        self.shards[shard as usize].open_piece(&mut self.outlets).mark(target, mark);
    }

    /// Sends a message to the registrations `found`, one of each queue; what there is no room for waits for
    /// its shard. Returns to how many connections, at least.
    pub(crate) fn send(
        &mut self,
        router: &mut Router,
        found: &[u32],
        from: Option<MessageSender>,
        message: &OutboundMessage<'_>,
    ) -> u32 {
        self.messages += 1;
        let mut to = std::mem::take(&mut self.to);
        to.clear();
        let dispatch = MessageDispatch {
            number: self.messages,
            silent: from.filter(|from| from.no_echo).map(|from| from.client),
            position: from.and_then(|from| Some((from.client.shard, from.position?))),
        };
        let count = router.choose(found, dispatch.silent, &mut to);
        if self.has_unfinished() {
            self.unsent.push_back(UnsentItem::of_message(dispatch, message, &to));
        } else {
            self.send_to_all(router, &dispatch, message, &to);
        }
        self.to = to;
        count
    }

    /// Sends a message of the hub's own to the subscriptions that take its subject; to none if it has none.
    pub(crate) fn send_by_subject(&mut self, router: &mut Router, message: &OutboundMessage<'_>) {
        if message.subject.is_empty() {
            return;
        }
        let mut found = std::mem::take(&mut self.found);
        router.find(message.subject, &mut found);
        self.send(router, &found, None, message);
        self.found = found;
    }

    /// Sends a message of the hub's own to the reply subject that a client has given.
    pub(crate) fn send_reply(
        &mut self,
        router: &mut Router,
        client: ClientId,
        message: &OutboundMessage<'_>,
    ) {
        let mut found = std::mem::take(&mut self.found);
        router.find_reply(client, message.subject, &mut found);
        self.send(router, &found, None, message);
        self.found = found;
    }

    /// Sends a message to the subscriptions that take `subject`, which may differ from its own. Returns one of those that it
    /// goes to; none if there are none.
    pub(crate) fn send_to_subject(
        &mut self,
        router: &mut Router,
        subject: &[u8],
        message: &OutboundMessage<'_>,
    ) -> Option<SubscriberTarget> {
        let mut found = std::mem::take(&mut self.found);
        router.find(subject, &mut found);
        let recipient = router.first_listener(&found);
        if recipient.is_some() {
            self.send(router, &found, None, message);
        }
        self.found = found;
        recipient
    }

    /// Sends a message to registrations that may be gone.
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
            queue.message(dispatch, message, registration.id, &mut self.outlets);
            if registration.count_delivery() {
                self.ended.push(slot);
            }
        }
        self.ended.drain(..).for_each(|slot| router.forget(slot));
    }

    /// Whether something that was begun waits for room.
    pub(crate) fn has_unfinished(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Has a record wait for the rest of the consumers that want it.
    pub(crate) fn queue_record(
        &mut self,
        visible: VisibleRecord,
        record: &Record<'_, Payload<'_>>,
        to: &[u32],
    ) {
        self.unsent.push_back(UnsentItem::of_record(visible, record, to));
    }

    /// Has statuses wait, behind what waits already.
    pub(crate) fn queue_statuses(&mut self, ended: VecDeque<EndedPull>) {
        self.unsent.push_back(UnsentItem::Statuses(ended));
    }

    /// Takes the first that waits, and the others behind it. What the first leaves behind when it is sent waits before the
    /// others, which are to be [put back](Self::put_back).
    pub(crate) fn take_unsent(&mut self) -> Option<(UnsentItem, VecDeque<UnsentItem>)> {
        let first = self.unsent.pop_front()?;
        Some((first, std::mem::take(&mut self.unsent)))
    }

    /// Has the others wait again. Returns whether the first was sent to its end.
    pub(crate) fn put_back(&mut self, mut others: VecDeque<UnsentItem>) -> bool {
        let is_sent = !self.has_unfinished();
        self.unsent.append(&mut others);
        is_sent
    }
}

#[cfg(test)]
mod tests;
