//! The subscriptions of one shard: the shard registers each filter with the hub once, and delivers a routed message to
//! all subscribed connections.
//!
//! ```text
//!   SUB, UNSUB, disconnect ─▶ ShardSubscriptions ─▶ InterestChange   only when a filter gains its first or second
//!                                 │                                  connection, or is reduced to one or none
//!   RoutedBatch ─▶ expand ────────┴───────────────▶ DeliveryBatch    one line per subscription
//! ```
//!
//! A message published before a SUB does not reach that subscription; one published before an UNSUB still does. A
//! subscription therefore begins and ends with requests of the shard, and each message carries the number of requests
//! that the hub had processed. If a SUB or an UNSUB changes nothing in the hub, the shard requests that number
//! ([`InterestChange::Sync`]); an ended subscription is removed when the number arrives.
//!
//! A disconnecting client may have ten thousand subscriptions. From then on they receive nothing; they are removed a
//! few at a time, which bounds the length of a turn:
//!
//! ```text
//!   each turn:              STALE_REGISTRATIONS_PER_TURN        (ShardSubscriptions::remove_some)
//!   each message:           those it would have matched, and one more per STALE_MATCHES_PER_STEP such matches
//!   each new subscription:  one
//! ```
//!
//! After all its connections have disconnected, a registration ends in the hub with the next message or mark for it.
//!
//! Subscriptions of one filter that receive identical bytes, or the same but for the sid, share a [feed](feeds).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use stilling_ring::planted;

use crate::counters::ShardCounters;
use crate::encoding::MessageFormat;
use crate::free_list::FreeList;
use crate::hash_key::HashKey;
use crate::limits::{
    ENDED_SUBSCRIPTIONS_PER_SUB, FEED_SHARERS_MIN, FILTER_TOKENS_PER_CLIENT_MAX,
    STALE_REGISTRATIONS_PER_TURN, SUBSCRIPTIONS_MAX,
};
use crate::publication_batch::{ClientOptions, HubRequest, PublicationBatch, RegistrationId};
use crate::registrations::tokens;
use crate::short_bytes::ShortBytes;

use self::client_sids::ClientSids;
use self::delivery_counts::DeliveryCounts;
use self::feeds::Feeds;
use self::filter_subscriptions::FilterSubscriptions;
use self::pending_change::{ChangeKind, HubProgress, PendingChange};
use self::record_subscription::RecordSubscription;
use self::stale_matches::StaleMatches;
use self::subscription::{DisconnectedOwner, Sharing, Subscription, SubscriptionOwner};

mod client_sids;
mod delivery_counts;
mod expand;
mod feeds;
mod filter_subscriptions;
mod pending_change;
mod record_subscription;
mod sharing;
mod stale_matches;
mod subscription;

/// Owner of an ended subscription: its connection may be closed.
const NO_OWNER: u32 = u32::MAX;

/// Limit that a new subscription would exceed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubscriptionLimit {
    /// The maximum per connection.
    PerClient,
    /// The maximum per shard.
    PerShard,
}

/// A registered filter with its subscriptions, or one queue subscription. It occupies exactly one cache line, because
/// with very many filters each message reads another one from cold memory.
#[derive(Debug)]
#[repr(align(64))]
struct FilterRegistration {
    filter: Arc<[u8]>,
    /// No further subscriptions are added: its only one is a queue member or ends after a number of messages that the
    /// hub counts; or it [is detached](Self::is_detached).
    is_exclusive: bool,
    /// All its connections have disconnected: the hub has removed it, and its subscriptions are to be removed.
    is_detached: bool,
    was_shared: bool,
    serial: u32,
    members: FilterSubscriptions,
    hub_view: ReportedSubscribers,
}

const _: () = assert!(size_of::<Option<FilterRegistration>>() == 64);

/// Subscribed connections of a filter, as reported to the hub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ReportedSubscribers {
    None,
    One(u64),
    Many,
}

/// The subscriptions of one shard.
#[derive(Debug)]
pub struct ShardSubscriptions {
    key: HashKey,
    per_client_max: usize,
    clients: HashMap<u64, u32, HashKey>,
    owners: Vec<SubscriptionOwner>,
    free_owners: FreeList,
    subscriptions: Vec<Option<Subscription>>,
    free: FreeList,
    /// Registrations without a queue that accept further subscriptions.
    filters: HashMap<Arc<[u8]>, u32, HashKey>,
    registered: Vec<Option<FilterRegistration>>,
    free_registered: FreeList,
    /// Serial of the last registration. It wraps around only after everything with the same serial has left the hub.
    serial: u32,
    age: u64,
    /// Disconnected clients with subscriptions to remove, and the number of these.
    disconnected: VecDeque<DisconnectedOwner>,
    stale_count: usize,
    progress: HubProgress,
    /// Messages expanded.
    messages: u64,
    delivered: DeliveryCounts,
    /// Times that a subscription began to catch up because its client was too slow.
    fallen_behind: u64,
    /// Ended subscriptions, which still receive what the hub sends before it processes their end.
    ended: VecDeque<u32>,
    /// Subscriptions that received their last message or were refused; reused buffer.
    finished: Vec<u32>,
    stale_matches: StaleMatches,
    /// Registrations that received something while all their connections had disconnected; reused buffer.
    without_subscriber: Vec<u32>,
    unanswerable_marks: Vec<u64>,
    feeds: Feeds,
    /// Subscriptions with equal bytes from which they share a feed.
    sharers_min: usize,
    /// Subscriptions that may share a feed; reused buffer.
    joining: Vec<u32>,
    /// Members whose connections read another open feed; reused buffer.
    conflicting: Vec<u32>,
    /// Line of the current message; reused buffer.
    line: Vec<u8>,
}

impl ShardSubscriptions {
    /// Creates a table with at most `per_client_max` subscriptions per connection.
    #[must_use]
    pub fn new(key: HashKey, per_client_max: usize) -> ShardSubscriptions {
        ShardSubscriptions {
            key,
            per_client_max,
            clients: HashMap::with_hasher(key),
            owners: Vec::new(),
            free_owners: FreeList::new(),
            subscriptions: Vec::new(),
            free: FreeList::new(),
            filters: HashMap::with_hasher(key),
            registered: Vec::new(),
            free_registered: FreeList::new(),
            serial: 0,
            age: 0,
            disconnected: VecDeque::new(),
            stale_count: 0,
            progress: HubProgress::default(),
            messages: 0,
            delivered: DeliveryCounts::default(),
            fallen_behind: 0,
            ended: VecDeque::new(),
            finished: Vec::new(),
            stale_matches: StaleMatches::default(),
            without_subscriber: Vec::new(),
            unanswerable_marks: Vec::new(),
            feeds: Feeds::new(1),
            sharers_min: FEED_SHARERS_MIN,
            joining: Vec::new(),
            conflicting: Vec::new(),
            line: Vec::new(),
        }
    }

    /// Shares the bounds of feeds with the tables of the other shards, `shards` in total.
    #[must_use]
    pub fn with_shards(mut self, shards: usize) -> ShardSubscriptions {
        self.feeds = Feeds::new(shards);
        self
    }

    /// Returns the number of subscriptions of connected clients.
    #[must_use]
    pub fn len(&self) -> usize {
        self.subscriptions.len() - self.free.len() - self.stale_count - self.ended.len()
    }

    /// Returns whether no connected client has a subscription.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of registrations in the hub. For tests: visits all.
    #[must_use]
    pub fn registrations(&self) -> usize {
        let registered = self.registered.iter().flatten();
        registered.filter(|registered| registered.hub_view != ReportedSubscribers::None).count()
    }

    /// Returns whether a connection has a subscription.
    #[must_use]
    pub fn has_client(&self, token: u64) -> bool {
        self.clients.contains_key(&token)
    }

    /// Publishes the shard's counters.
    pub fn publish_metrics(&self, counters: &ShardCounters) {
        counters.subscriptions.set(self.len() as u64);
        counters.feeds.set(self.feeds.len() as u64);
        counters.feed_sharers.set(self.feeds.sharers() as u64);
        counters.feed_held_size.set(self.feeds.held_size());
        counters.feed_encoded_size.set(self.feeds.encoded_size());
        counters.feed_sent_size.set(self.feeds.sent_size());
        self.delivered.publish(counters);
        counters.fallen_behind.set(self.fallen_behind);
        counters.requested.set(self.progress.requests());
    }

    /// Returns the only stream that has subjects of the filter of a connection over WebSocket or SSE, and the filter.
    #[must_use]
    pub fn stream_and_filter(&self, token: u64) -> Option<(u32, Arc<[u8]>)> {
        let subscription = self.subscriptions[self.record_slot(token)? as usize].as_ref()?;
        let stream = subscription.records.as_ref()?.stream?;
        let registered = self.registered[subscription.registered as usize].as_ref()?;
        Some((stream, Arc::clone(&registered.filter)))
    }

    /// Appends a request to a publication batch. All requests of the shard must pass through this method, which counts
    /// them.
    #[inline]
    pub fn push(
        &mut self,
        publication_batch: &mut PublicationBatch,
        token: u64,
        client_options: ClientOptions,
        request: &HubRequest<'_>,
    ) {
        if publication_batch.is_empty() {
            publication_batch.set_first(self.progress.requests());
        }
        publication_batch.push(token, client_options, request);
        self.progress.count_request();
    }

    /// Appends all unreported changes to a publication batch. Called after each call that may cause some, before
    /// anything else is [pushed](Self::push).
    pub fn push_changes(&mut self, publication_batch: &mut PublicationBatch) {
        while let Some(change) = self.progress.pop() {
            let request = change.request();
            self.push(publication_batch, change.token, ClientOptions::default(), &request);
        }
    }

    /// Returns whether there are changes to [push](Self::push_changes).
    #[must_use]
    pub fn has_changes(&self) -> bool {
        self.progress.has_changes()
    }

    /// Adds a connection's subscription to a checked filter, in a queue group if `queue` is not empty. A sid in use
    /// keeps its subscription, as in nats-server.
    ///
    /// # Errors
    /// A maximum is reached.
    pub fn subscribe(
        &mut self,
        token: u64,
        client_options: ClientOptions,
        subscription: (&[u8], &[u8], &[u8]),
    ) -> Result<(), SubscriptionLimit> {
        self.add(token, client_options, subscription, None)
    }

    /// Adds the only subscription of a connection, in another format than NATS'. With a `stream`, the only one that has
    /// subjects of the filter, records of the stream are ignored until the connection has caught up: the caller pushes
    /// a [`CatchUpRequest`](crate::CatchUpRequest) next.
    ///
    /// # Errors
    /// A maximum is reached.
    pub fn subscribe_in_format(
        &mut self,
        token: u64,
        filter: &[u8],
        format: MessageFormat,
        stream: Option<u32>,
    ) -> Result<(), SubscriptionLimit> {
        let records = RecordSubscription::new(format, stream);
        self.add(token, ClientOptions::default(), (filter, b"", b""), Some(records))
    }

    fn add(
        &mut self,
        token: u64,
        client_options: ClientOptions,
        (filter, queue, sid): (&[u8], &[u8], &[u8]),
        records: Option<RecordSubscription>,
    ) -> Result<(), SubscriptionLimit> {
        self.make_room()?;
        let tokens = tokens(filter);
        let owner = self.owner(token);
        let of_client = &mut self.owners[owner as usize];
        if of_client.sids.len() >= self.per_client_max
            || of_client.tokens as usize + tokens > FILTER_TOKENS_PER_CLIENT_MAX
        {
            return Err(SubscriptionLimit::PerClient);
        }
        if of_client.sids.get(sid).is_some() {
            return Ok(());
        }
        let slot = self.free.next(&self.subscriptions);
        let single = of_client.sids.insert(sid.into(), slot, self.key);
        of_client.tokens += tokens as u32;
        let is_single = of_client.sids.is_single();
        if let Some(single) = single {
            self.count_in_table(single);
        }
        let number = if queue.is_empty() { self.filters.get(filter).copied() } else { None };
        let number = number.unwrap_or_else(|| self.register(filter, !queue.is_empty()));
        self.age += 1;
        let subscription = Subscription {
            token,
            owner,
            registered: number,
            age: self.age,
            sid: sid.into(),
            supports_headers: client_options.headers,
            from: u64::MAX,
            until: u64::MAX,
            delivered: 0,
            ends_after: None,
            sharing: Sharing::New,
            received: 0,
            records,
        };
        self.free.place(&mut self.subscriptions, Some(subscription));
        if let Some(registered) = &mut self.registered[number as usize] {
            registered.was_shared |= !registered.members.is_empty();
            registered.members.add(self.age, slot, (token, is_single), self.key);
        }
        let before = self.progress.with_changes();
        self.queue_changes(number, queue);
        if self.progress.with_changes() == before {
            self.progress.sync_again();
        }
        if let Some(subscription) = &mut self.subscriptions[slot as usize] {
            subscription.from = self.progress.with_changes();
        }
        Ok(())
    }

    /// Makes room for a new subscription: removes some ended or stale ones, so that subscribing does not outpace
    /// removal, and further ones as needed.
    fn make_room(&mut self) -> Result<(), SubscriptionLimit> {
        let is_full =
            |table: &ShardSubscriptions| table.subscriptions.len() - table.free.len() >= SUBSCRIPTIONS_MAX;
        self.remove_next_stale();
        self.remove_ended(ENDED_SUBSCRIPTIONS_PER_SUB);
        while !self.disconnected.is_empty() && is_full(self) {
            self.remove_next_stale();
        }
        if is_full(self) { Err(SubscriptionLimit::PerShard) } else { Ok(()) }
    }

    /// Counts a connection in the table of its subscription's filter, before it gets a second subscription.
    fn count_in_table(&mut self, slot: u32) {
        let Some(Subscription { token, registered, .. }) = self.subscriptions[slot as usize] else { return };
        if let Some(registered) = &mut self.registered[registered as usize] {
            registered.members.count_in_table(token);
        }
    }

    /// Returns the index of a connection, adding it at its first subscription.
    fn owner(&mut self, token: u64) -> u32 {
        if let Some(&owner) = self.clients.get(&token) {
            return owner;
        }
        let new = SubscriptionOwner {
            sids: ClientSids::default(),
            tokens: 0,
            has_disconnected: false,
            position: None,
        };
        let owner = self.free_owners.place(&mut self.owners, new);
        self.clients.insert(token, owner);
        owner
    }

    /// Adds a registration for a filter or a queue member. Returns its number.
    fn register(&mut self, filter: &[u8], is_exclusive: bool) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        let filter: Arc<[u8]> = filter.into();
        let new = FilterRegistration {
            filter: Arc::clone(&filter),
            is_exclusive,
            is_detached: false,
            was_shared: false,
            serial: self.serial,
            members: FilterSubscriptions::default(),
            hub_view: ReportedSubscribers::None,
        };
        let number = self.free_registered.place(&mut self.registered, Some(new));
        if !is_exclusive {
            self.filters.insert(filter, number);
        }
        number
    }

    /// Queues the changes of a registration that the hub must know, and drops the registration without subscriptions.
    fn queue_changes(&mut self, number: u32, queue: &[u8]) {
        let Some(registered) = &mut self.registered[number as usize] else { return };
        let id = RegistrationId { number, serial: registered.serial };
        let filter = &registered.filter;
        let is_there = |token: u64| self.clients.contains_key(&token);
        let now = match registered.members.clients() {
            _ if registered.is_detached => ReportedSubscribers::None,
            // A single connection's registration ends in the hub with the connection.
            ReportedSubscribers::One(token) if !is_there(token) => ReportedSubscribers::None,
            now => now,
        };
        let before = std::mem::replace(&mut registered.hub_view, now);
        let mut change = |token, kind| self.progress.push(PendingChange { token, id, kind });
        match (before, now) {
            (ReportedSubscribers::None, ReportedSubscribers::One(token)) => {
                change(token, ChangeKind::Register { filter: Arc::clone(filter), queue: queue.into() });
            }
            // The other connections have disconnected and are not removed yet.
            (ReportedSubscribers::None, ReportedSubscribers::Many) => {
                change(0, ChangeKind::Share { filter: Arc::clone(filter) });
            }
            (ReportedSubscribers::One(token), ReportedSubscribers::Many) => {
                change(token, ChangeKind::Share { filter: Arc::clone(filter) });
            }
            (ReportedSubscribers::One(before), ReportedSubscribers::One(token)) if before != token => {
                change(before, ChangeKind::Unregister { after: None, is_shared: false });
                change(token, ChangeKind::Register { filter: Arc::clone(filter), queue: queue.into() });
            }
            (ReportedSubscribers::One(token), ReportedSubscribers::None) => {
                change(token, ChangeKind::Unregister { after: None, is_shared: false });
            }
            (ReportedSubscribers::Many, ReportedSubscribers::One(token)) => {
                change(token, ChangeKind::Unshare);
            }
            (ReportedSubscribers::Many, ReportedSubscribers::None) => {
                change(0, ChangeKind::Unregister { after: None, is_shared: true });
            }
            (ReportedSubscribers::None, ReportedSubscribers::None)
            | (ReportedSubscribers::One(_), ReportedSubscribers::One(_))
            | (ReportedSubscribers::Many, ReportedSubscribers::Many) => {}
        }
        if registered.members.is_empty() {
            if !registered.is_exclusive {
                self.filters.remove(filter);
            }
            self.registered[number as usize] = None;
            self.free_registered.push(number);
        }
    }

    /// Ends a subscription, at once or after `after` messages in total.
    pub fn unsubscribe(&mut self, token: u64, sid: &[u8], after: Option<u32>) {
        let Some(&owner) = self.clients.get(&token) else { return };
        let Some(slot) = self.owners[owner as usize].sids.get(sid) else { return };
        self.make_private(slot);
        let Some(subscription) = &mut self.subscriptions[slot as usize] else { return };
        subscription.ends_after = after;
        if after.is_none() || subscription.is_satisfied() {
            return self.end(slot);
        }
        let (number, age) = (subscription.registered, subscription.age);
        let Some(registered) = &mut self.registered[number as usize] else { return };
        // If it has always been the only subscription, the hub counts too and ends the registration: later messages go
        // to others or are answered as having no subscribers.
        if registered.members.only() == Some(age) && !registered.was_shared {
            if !std::mem::replace(&mut registered.is_exclusive, true) {
                self.filters.remove(&registered.filter);
            }
            let id = RegistrationId { number, serial: registered.serial };
            let kind = ChangeKind::Unregister { after, is_shared: false };
            self.progress.push(PendingChange { token, id, kind });
        }
    }

    /// Ends a subscription of a connected client; it still receives what the hub sends before it processes the end.
    fn end(&mut self, slot: u32) {
        let Some(subscription) = &mut self.subscriptions[slot as usize] else { return };
        if subscription.is_satisfied() || planted!("early unsubscription") {
            return self.remove(slot);
        }
        let (number, token) = (subscription.registered, subscription.token);
        let owner = std::mem::replace(&mut subscription.owner, NO_OWNER);
        let sid = std::mem::take(&mut subscription.sid);
        self.release(owner, token, number, &sid);
        if let Some(registered) = &mut self.registered[number as usize] {
            registered.members.end(token);
            self.queue_changes(number, b"");
        }
        if let Some(subscription) = &mut self.subscriptions[slot as usize] {
            (subscription.sid, subscription.until) = (sid, self.progress.with_changes());
        }
        self.ended.push_back(slot);
        self.progress.sync();
    }

    fn synced(&mut self, processed: u64) {
        self.progress.synced(processed);
        self.remove_ended(STALE_REGISTRATIONS_PER_TURN);
        if self.ended.back().is_some_and(|&slot| !self.is_end_processed(slot)) {
            self.progress.sync();
        }
    }

    /// Returns whether the hub has processed the end of an ended subscription.
    fn is_end_processed(&self, slot: u32) -> bool {
        let subscription = self.subscriptions[slot as usize].as_ref();
        subscription.is_none_or(|subscription| self.progress.has_processed(subscription.until))
    }

    /// Removes up to `count` ended subscriptions that receive nothing more.
    fn remove_ended(&mut self, count: usize) {
        for _ in 0..count {
            let Some(slot) = self.ended.front().copied().filter(|&slot| self.is_end_processed(slot)) else {
                return;
            };
            self.ended.pop_front();
            self.drop_ended(slot);
        }
    }

    fn drop_ended(&mut self, slot: u32) {
        self.stop_sharing(slot);
        let Some(Subscription { registered, age, sharing, .. }) = self.subscriptions[slot as usize].take()
        else {
            return;
        };
        self.free.push(slot);
        if let Some(of) = &mut self.registered[registered as usize] {
            let is_member = matches!(sharing, Sharing::Member { .. });
            of.members.remove((!is_member).then_some(age));
            self.queue_changes(registered, b"");
        }
    }

    /// Removes a subscription of a connected client that receives nothing more.
    fn remove(&mut self, slot: u32) {
        let Some(subscription) = &mut self.subscriptions[slot as usize] else { return };
        let (number, token, owner) = (subscription.registered, subscription.token, subscription.owner);
        let sid = subscription.sid.clone();
        if let Some(registered) = &mut self.registered[number as usize] {
            registered.members.end(token);
        }
        self.release(owner, token, number, &sid);
        self.drop_ended(slot);
    }

    fn release(&mut self, owner: u32, token: u64, registered: u32, sid: &ShortBytes) {
        let size = self.registered[registered as usize].as_ref().map_or(0, |of| tokens(&of.filter));
        let of_client = &mut self.owners[owner as usize];
        of_client.sids.remove(sid.bytes());
        of_client.tokens -= size as u32;
        if of_client.sids.is_empty() {
            self.clients.remove(&token);
            self.free_owners.push(owner);
        }
    }

    /// Handles a disconnect: the connection's subscriptions receive nothing more. Queues [`HubRequest::Disconnect`],
    /// also for a connection without subscriptions.
    pub fn disconnect(&mut self, token: u64) {
        self.progress.push(PendingChange {
            token,
            id: RegistrationId::default(),
            kind: ChangeKind::Disconnect,
        });
        let Some(owner) = self.clients.remove(&token) else { return };
        let of_client = &mut self.owners[owner as usize];
        of_client.has_disconnected = true;
        let sids = std::mem::take(&mut of_client.sids);
        self.stale_count += sids.len();
        self.disconnected.push_back(DisconnectedOwner { owner, slots: sids.into_slots() });
    }

    /// Returns whether subscriptions that receive nothing more remain to be removed.
    #[must_use]
    pub fn has_removals(&self) -> bool {
        !self.disconnected.is_empty() || self.ended.front().is_some_and(|&slot| self.is_end_processed(slot))
    }

    /// Removes some subscriptions that receive nothing more.
    pub fn remove_some(&mut self) {
        for _ in 0..STALE_REGISTRATIONS_PER_TURN {
            self.remove_next_stale();
        }
        self.remove_ended(STALE_REGISTRATIONS_PER_TURN);
    }

    /// Removes the next subscription of the client that disconnected first, unless it is removed already.
    fn remove_next_stale(&mut self) {
        let Some(disconnected) = self.disconnected.front_mut() else { return };
        let (owner, next) = (disconnected.owner, disconnected.slots.next());
        let is_last = disconnected.slots.is_empty();
        if let Some(slot) = next {
            // The slot may have been reused by another connection.
            self.remove_if_stale(slot);
        }
        if is_last {
            self.free_owners.push(owner);
            self.disconnected.pop_front();
        }
    }

    fn remove_if_stale(&mut self, slot: u32) {
        let Some(Subscription { token, registered, owner, .. }) = self.subscriptions[slot as usize] else {
            return;
        };
        if !self.owners.get(owner as usize).is_some_and(|owner| owner.has_disconnected) {
            return;
        }
        self.stale_count -= 1;
        if let Some(registered) = &mut self.registered[registered as usize] {
            registered.members.end(token);
            if registered.hub_view == ReportedSubscribers::One(token) {
                // Ended in the hub with the connection.
                registered.hub_view = ReportedSubscribers::None;
            }
        }
        self.drop_ended(slot);
    }

    /// Detaches a registration after all its connections have disconnected: it ends in the hub before its subscriptions
    /// are removed, and new subscriptions get a new registration.
    fn detach(&mut self, number: u32) {
        let Some(registered) = &mut self.registered[number as usize] else { return };
        if !std::mem::replace(&mut registered.is_exclusive, true) {
            self.filters.remove(&registered.filter);
        }
        registered.is_detached = true;
        if let ReportedSubscribers::One(_) = registered.hub_view {
            // Ended in the hub with the connection.
            registered.hub_view = ReportedSubscribers::None;
        }
        self.queue_changes(number, b"");
    }
}

#[cfg(test)]
mod tests;
