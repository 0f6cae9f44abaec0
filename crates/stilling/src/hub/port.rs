//! A shard's side of the hub: gathers the requests of its sessions per turn, and hands out deliveries to them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use stilling_engine::Token;
use stilling_hub::limits::ROUTED_BATCHES;
use stilling_hub::{
    CatchUpRequest, ClientOptions, DeliveryBatch, DeliveryItem, HubCounters, HubRequest, PublicationBatch,
    RoutedBatch, ShardSubscriptions, StartFrom, SubscriptionLimit, UnixNanos,
};
use stilling_ring::{Receiver, Sender, Wake, mailbox, planted};

use super::control_request::{ControlRequest, push_control};
use super::subscribe::SubscribeRequest;
use super::wait_queue::WaitQueue;

/// The engine and the hub agree on the size from which a payload is passed by reference.
const _: () = assert!(stilling_engine::limits::SHARED_MIN == stilling_hub::limits::SHARED_PAYLOAD_SIZE_MIN);

/// A notification for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HubMail {
    /// A delivery: see [`HubPort::take_current`].
    Delivery,
    /// There may be room for its requests again.
    Room,
}

pub(crate) struct HubPort {
    publication_batch: Option<PublicationBatch>,
    /// Requests made while every publication batch is with the hub. This batch replaces the next one that comes back.
    overflow: Option<PublicationBatch>,
    publication_batches: Sender<PublicationBatch>,
    returned: Receiver<PublicationBatch>,
    routed: Receiver<RoutedBatch>,
    emptied: Sender<RoutedBatch>,
    /// The routed batch that is being expanded.
    routed_batch: Option<RoutedBatch>,
    /// Its deliveries. `None` while a session reads them.
    current: Option<DeliveryBatch>,
    /// Delivery batches that may still be made in this turn. Payloads for connections that do not read are copied, so
    /// expanding everything could make a turn long.
    expansions_left: usize,
    table: ShardSubscriptions,
    /// Destination of the table's figures, and the index of the shard.
    shard_counters: Option<(Arc<HubCounters>, usize)>,
    hub: Arc<Wake>,
    waiting: WaitQueue,
    /// Connections that the hub has parked because their stream is full, and whether each waits for room. The hub
    /// bounds them by their requests.
    parked: HashMap<Token, bool>,
    /// Deliveries have been handed out since a waiting connection was last notified of room.
    room_notice_due: bool,
    /// Requests that go into a publication batch before those of connections that wait for room.
    control: VecDeque<(Token, ControlRequest)>,
    /// Tokens under which the shard itself waits for room.
    shard_waiters: Vec<Token>,
    /// The end of the current turn, if it hands over requests.
    turn_end: Option<UnixNanos>,
    /// The hub has not begun: a publication batch is handed over only when full, so that the batches last.
    is_gathering: bool,
}

impl HubPort {
    pub(super) fn new(
        (publication_batches, returned): (Sender<PublicationBatch>, Receiver<PublicationBatch>),
        (routed, emptied): (Receiver<RoutedBatch>, Sender<RoutedBatch>),
        table: ShardSubscriptions,
        hub: Arc<Wake>,
    ) -> HubPort {
        HubPort {
            publication_batch: None,
            overflow: None,
            publication_batches,
            returned,
            routed,
            emptied,
            routed_batch: None,
            current: Some(DeliveryBatch::new()),
            expansions_left: ROUTED_BATCHES,
            table,
            shard_counters: None,
            hub,
            waiting: WaitQueue::default(),
            parked: HashMap::new(),
            room_notice_due: false,
            control: VecDeque::new(),
            shard_waiters: Vec::new(),
            turn_end: None,
            is_gathering: false,
        }
    }

    /// Sets the destination of the shard's figures, and the shard's index.
    pub(crate) fn set_counters(&mut self, counters: Arc<HubCounters>, shard: usize) {
        self.shard_counters = Some((counters, shard));
    }

    /// Whether there is room for a request. If not, [`wait`](HubPort::wait).
    #[inline]
    pub(crate) fn has_room(&mut self) -> bool {
        match &self.publication_batch {
            Some(publication_batch) if !publication_batch.is_full() => true,
            _ => self.next_publication_batch(),
        }
    }

    /// The same for a connection, which may be parked.
    #[inline]
    pub(crate) fn has_room_for(&mut self, token: Token) -> bool {
        (self.parked.is_empty() || !self.parked.contains_key(&token)) && self.has_room()
    }

    fn next_publication_batch(&mut self) -> bool {
        loop {
            if let Some(full) = self.publication_batch.take() {
                self.send_batch(full);
                self.publish();
            }
            self.publication_batch = self.returned.pop().map(|empty| self.overflow.take().unwrap_or(empty));
            let Some(publication_batch) = &mut self.publication_batch else { return false };
            // Control requests are small and cannot wait. They go first: waiting connections would use all room.
            push_control(&mut self.table, publication_batch, &mut self.control);
            if !publication_batch.is_full() {
                return true;
            }
        }
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Registers the connection for a notification when there may be room again.
    pub(crate) fn wait(&mut self, token: Token) {
        match self.parked.get_mut(&token) {
            Some(waits) => *waits = true,
            None => self.waiting.push(token),
        }
    }

    /// Sets the tokens under which the shard itself waits for room. [`has_mail`](HubPort::has_mail) is true when there may
    /// be room for one of them.
    pub(crate) fn set_shard_waiters(&mut self, shard_waiters: impl Iterator<Item = Token>) {
        self.shard_waiters.clear();
        self.shard_waiters.extend(shard_waiters);
    }

    /// Sets whether the hub has not begun yet, so that nothing comes back for now.
    pub(crate) fn set_gathering(&mut self, is_gathering: bool) {
        if planted!("dropped wait") && self.is_gathering && !is_gathering {
            self.publication_batch.iter_mut().for_each(PublicationBatch::clear);
        }
        self.is_gathering = is_gathering;
    }

    /// Adds a request. Requires [room](HubPort::has_room).
    #[inline]
    pub(crate) fn push_request(
        &mut self,
        token: Token,
        client_options: ClientOptions,
        request: &HubRequest<'_>,
    ) {
        let has_room = self.has_room();
        debug_assert!(has_room, "no room for {request:?}");
        self.push_request_over_limit(token, client_options, request);
    }

    /// Adds a request that completes an operation begun with [room](HubPort::has_room), even if there is none now.
    #[inline]
    pub(crate) fn push_request_over_limit(
        &mut self,
        token: Token,
        client_options: ClientOptions,
        request: &HubRequest<'_>,
    ) {
        let (table, publication_batch) = self.writable_batch();
        table.push(publication_batch, token.bits(), client_options, request);
    }

    /// The publication batch for the next request, however full, and the table that counts requests.
    #[inline]
    fn writable_batch(&mut self) -> (&mut ShardSubscriptions, &mut PublicationBatch) {
        let publication_batch = match &mut self.publication_batch {
            Some(publication_batch) => publication_batch,
            None => self.overflow.get_or_insert_with(PublicationBatch::new),
        };
        (&mut self.table, publication_batch)
    }

    /// Adds a `subscription` (filter, queue group or an empty name, sid) of a connection. Like
    /// [`push_request_over_limit`](Self::push_request_over_limit).
    ///
    /// # Errors
    /// The connection has too many subscriptions.
    pub(crate) fn subscribe(
        &mut self,
        token: Token,
        client_options: ClientOptions,
        subscription: (&[u8], &[u8], &[u8]),
    ) -> Result<(), SubscriptionLimit> {
        self.prepare();
        let subscribed = self.table.subscribe(token.bits(), client_options, subscription);
        self.push_changes();
        subscribed
    }

    /// Whether a subscription over WebSocket or SSE may begin. Without room for requests, as before the hub's begin, one
    /// more batch of them may wait.
    pub(crate) fn may_subscribe(&mut self) -> bool {
        self.has_room() || self.overflow.as_ref().is_none_or(|overflow| !overflow.is_full())
    }

    /// Adds the only subscription of a connection, over WebSocket or SSE, if it [may](Self::may_subscribe).
    ///
    /// # Errors
    /// The shard has too many subscriptions.
    pub(crate) fn subscribe_to(
        &mut self,
        token: Token,
        request: &SubscribeRequest,
    ) -> Result<(), SubscriptionLimit> {
        let SubscribeRequest { filter, format, start } = request;
        self.prepare();
        let stream = start.map(|(stream, _)| stream);
        self.table.subscribe_in_format(token.bits(), filter, *format, stream)?;
        self.push_changes();
        if let &Some((stream, from)) = start {
            self.catch_up(token, CatchUpRequest { stream, filter, from });
        }
        Ok(())
    }

    /// Requests the records of a connection's subscription from a position on, whether there is room or not.
    fn catch_up(&mut self, token: Token, request: CatchUpRequest<'_>) {
        self.push_request_over_limit(token, ClientOptions::default(), &HubRequest::CatchUp(request));
    }

    /// Returns the stream of a connection's subscription over WebSocket or SSE.
    pub(crate) fn stream_of(&self, token: Token) -> Option<u32> {
        self.table.stream_and_filter(token.bits()).map(|(stream, _)| stream)
    }

    /// Requests the records of a slow connection's subscription from the sequence `next` on.
    pub(crate) fn catch_up_behind(&mut self, token: Token, next: u64) {
        if let Some((stream, filter)) = self.table.stream_and_filter(token.bits()) {
            let from = StartFrom::Behind { next };
            self.catch_up(token, CatchUpRequest { stream, filter: &filter, from });
        }
    }

    /// See [`ShardSubscriptions::fall_behind`].
    pub(crate) fn fall_behind(&mut self, token: Token) -> Option<u64> {
        self.table.fall_behind(token.bits())
    }

    /// Ends a subscription of a connection, at once or after a total of `after` messages.
    pub(crate) fn unsubscribe(&mut self, token: Token, sid: &[u8], after: Option<u32>) {
        self.prepare();
        self.table.unsubscribe(token.bits(), sid, after);
        self.push_changes();
    }

    /// Reports changes of the shard's subscriptions to the hub.
    fn push_changes(&mut self) {
        if self.table.has_changes() {
            let (table, publication_batch) = self.writable_batch();
            table.push_changes(publication_batch);
        }
    }

    /// Removes some finished subscriptions, if there is room to report that.
    fn remove_some(&mut self) {
        if self.table.has_removals() && self.has_room() {
            self.table.remove_some();
            self.push_changes();
        }
    }

    /// Whether finished subscriptions remain to be removed in the next turns.
    pub(crate) fn has_removals(&self) -> bool {
        self.table.has_removals()
    }

    /// Removes a connection. The hub receives this before any later request of the shard.
    pub(crate) fn disconnect(&mut self, token: Token) {
        self.prepare();
        self.table.disconnect(token.bits());
        self.push_changes();
    }

    /// Gets a returned publication batch, with the control requests in it, so that the table's changes are the next
    /// requests.
    fn prepare(&mut self) {
        if self.publication_batch.is_none() {
            self.next_publication_batch();
        }
    }

    /// Cancels the connection's pull requests, because the server drains.
    pub(crate) fn cancel_pulls(&mut self, token: Token) {
        self.control.push_back((token, ControlRequest::CancelPulls));
    }

    /// Closes the connection once the hub has sent all its pending acks.
    pub(crate) fn close_after_acks(&mut self, token: Token) {
        self.control.push_back((token, ControlRequest::CloseAfterAcks));
    }

    /// Reports that everything before a mark has been sent.
    pub(crate) fn report_mark(&mut self, token: Token, mark: u64) {
        self.control.push_back((token, ControlRequest::MarkReached(mark)));
    }

    /// Whether everything has been handed over, or the hub has ended.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.publication_batches.is_closed()
            || self.control.is_empty()
                && self.overflow.is_none()
                && self.publication_batch.as_ref().is_none_or(PublicationBatch::is_empty)
    }

    #[cfg(test)]
    pub(crate) fn parked(&self) -> usize {
        self.parked.len()
    }

    #[cfg(test)]
    pub(super) fn has_control(&self) -> bool {
        !self.control.is_empty() || self.overflow.is_some()
    }

    /// The next connection with mail. One waiting connection is notified of room after each delivery batch, so that
    /// endless deliveries do not starve it. A turn expands a bounded number of delivery batches.
    pub(crate) fn next_mail(&mut self) -> Option<(Token, HubMail)> {
        loop {
            if let Some(mail) = self.next_delivery() {
                return Some(mail);
            }
            if std::mem::take(&mut self.room_notice_due)
                && let Some(token) = self.next_with_room()
            {
                return Some((token, HubMail::Room));
            }
            if self.expansions_left == 0 || !self.expand() {
                return self.next_with_room().map(|token| (token, HubMail::Room));
            }
        }
    }

    fn next_delivery(&mut self) -> Option<(Token, HubMail)> {
        let current = self.current.as_mut()?;
        while let Some(to) = current.advance() {
            let token = Token::from_bits(to);
            match current.current() {
                Some(DeliveryItem::Pause) => {
                    self.parked.insert(token, false);
                }
                Some(DeliveryItem::Resume) if self.parked.remove(&token) == Some(true) => {
                    // The connection also needs room in a publication batch, like any other.
                    return Some((token, HubMail::Room));
                }
                Some(DeliveryItem::Resume) => {}
                // The connection has left and cannot report the mark.
                Some(DeliveryItem::Mark(mark)) if !self.table.has_client(to) => {
                    self.control.push_back((token, ControlRequest::MarkReached(mark)));
                }
                _ => return Some((token, HubMail::Delivery)),
            }
        }
        None
    }

    /// Expands the next routed batch, or the rest of one, into one delivery batch. Returns whether there was one.
    fn expand(&mut self) -> bool {
        self.prepare();
        let Some(current) = &mut self.current else { return false };
        // Even if no batch follows: delivered items hold references to batches of streams.
        current.clear();
        let Some(mut routed_batch) = self.routed_batch.take().or_else(|| self.routed.pop()) else {
            return false;
        };
        let is_done = self.table.expand(&mut routed_batch, current);
        current.group();
        self.expansions_left -= 1;
        self.room_notice_due = true;
        if is_done {
            routed_batch.clear();
            // The mailbox has room for every routed batch that exists.
            let _ = self.emptied.push(routed_batch);
        } else {
            self.routed_batch = Some(routed_batch);
        }
        self.push_changes();
        while let Some(mark) = self.table.next_unanswerable_mark() {
            self.control.push_back((Token::from_bits(0), ControlRequest::MarkReached(mark)));
        }
        true
    }

    /// The connection that has waited longest for room, if there is room.
    fn next_with_room(&mut self) -> Option<Token> {
        if self.waiting.is_empty() || !self.has_room() {
            return None;
        }
        self.waiting.pop()
    }

    /// Whether [`next_mail`](HubPort::next_mail) would find something.
    pub(crate) fn has_mail(&self) -> bool {
        let has_room = || {
            self.publication_batch.as_ref().is_some_and(|publication_batch| !publication_batch.is_full())
                || !self.returned.is_empty()
        };
        let has_shard_waiter = self.shard_waiters.iter().any(|token| !self.parked.contains_key(token));
        let is_behind = !self.control.is_empty() || self.overflow.is_some();
        let wants_room = !self.waiting.is_empty() || is_behind || has_shard_waiter;
        let has_deliveries = self.current.as_ref().is_some_and(|current| !current.is_empty());
        has_deliveries || self.routed_batch.is_some() || !self.routed.is_empty() || wants_room && has_room()
    }

    /// Takes the current deliveries for reading. The caller returns them with [`put_back`](HubPort::put_back).
    pub(crate) fn take_current(&mut self) -> Option<DeliveryBatch> {
        self.current.take()
    }

    pub(crate) fn put_back(&mut self, current: DeliveryBatch) {
        self.current = Some(current);
    }

    /// Whether there are requests to hand over at the end of the turn.
    pub(super) fn has_requests(&self) -> bool {
        let has_any = |publication_batch: &PublicationBatch| !publication_batch.is_empty();
        !self.control.is_empty() || self.publication_batch.as_ref().is_some_and(has_any)
    }

    /// Sets the time of the turn's end, from which requests count as waiting.
    pub(super) fn set_turn_end(&mut self, now: UnixNanos) {
        self.turn_end = Some(now);
    }

    /// Ends a turn: sends the requests to the hub.
    pub(crate) fn flush(&mut self) {
        self.expansions_left = ROUTED_BATCHES;
        self.remove_some();
        while (!self.control.is_empty() || self.overflow.is_some()) && self.has_room() {
            if let Some(publication_batch) = &mut self.publication_batch {
                push_control(&mut self.table, publication_batch, &mut self.control);
            }
        }
        let gathers =
            |publication_batch: &PublicationBatch| self.is_gathering && !publication_batch.is_full();
        if self
            .publication_batch
            .as_ref()
            .is_some_and(|publication_batch| !publication_batch.is_empty() && !gathers(publication_batch))
            && let Some(publication_batch) = self.publication_batch.take()
        {
            self.send_batch(publication_batch);
        }
        self.turn_end = None;
        // Before the hub gets the requests: it compares the number of requests with those that it has processed.
        if let Some((counters, shard)) = &self.shard_counters
            && let Some(shard_counters) = counters.shards.get(*shard)
        {
            self.table.publish_metrics(shard_counters);
        }
        self.publish();
    }

    fn send_batch(&mut self, mut publication_batch: PublicationBatch) {
        publication_batch.set_sent(self.turn_end);
        // The mailbox has room for every publication batch that exists.
        let _ = self.publication_batches.push(publication_batch);
    }

    fn publish(&mut self) {
        let has_published = self.publication_batches.publish();
        if self.emptied.publish() || has_published {
            self.hub.notify();
        }
    }
}

impl Drop for HubPort {
    /// Closes the mailbox and wakes the runner, which detects by the closed mailbox that its shard has ended.
    fn drop(&mut self) {
        let (publication_batches, _) = mailbox(1);
        drop(std::mem::replace(&mut self.publication_batches, publication_batches));
        self.hub.force();
    }
}

#[cfg(test)]
mod tests;
