//! The subscriptions of one shard: the shard registers each filter with the hub once, and sends a message that comes back to
//! all connections that are subscribed to it.
//!
//! ```text
//!   SUB, UNSUB, leave ─▶ ShardTable ─▶ InterestChange     only when a filter gets its first or second connection, or
//!                            │                            is left with one or none
//!   Routed ─▶ expand ────────┴───────▶ Deliveries         a line for each subscription
//! ```
//!
//! A message that was published before a SUB does not go to that subscription, and one that was published before an UNSUB
//! still does. So a subscription begins and ends with requests of the shard, and each message says how many the hub had
//! processed. Where a SUB or an UNSUB changes nothing for the hub, the shard asks it how many it has processed
//! ([`InterestChange::Sync`]); a subscription that has ended is removed with the answer.
//!
//! A connection that leaves may have ten thousand subscriptions. They get nothing more at once, and are removed some at a
//! time, so that no turn of the shard is long because of them:
//!
//! ```text
//!   each turn:              LEFT_SUBSCRIPTIONS_PER_TURN         (ShardTable::remove_some)
//!   each message:           those that it would have matched, and one more for each LEFT_MATCHES_PER_STEP such matches
//!   each new subscription:  one
//! ```
//!
//! A registration whose connections have all left ends in the hub with the first message or mark that comes for it.

use std::collections::hash_map::{self, Entry as MapEntry};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use stilling_ring::planted;

use crate::counters::ShardCounters;
use crate::hash_key::HashKey;
use crate::limits::{
    DEPARTED_REGISTRATIONS_PER_TURN, ENDED_SUBSCRIPTIONS_PER_SUB, FILTER_TOKENS_PER_CLIENT_MAX,
    SUBSCRIPTIONS_MAX,
};
use crate::publication_batch::{ClientOptions, HubRequest, InterestChange, PublicationBatch, RegistrationId};
use crate::registrations::tokens;
use crate::short_bytes::ShortBytes;

use self::filter_subscriptions::FilterSubscriptions;

mod expand;
mod filter_subscriptions;

/// The place of the connection of a subscription that has ended: its connection may be gone.
const NO_OWNER: u32 = u32::MAX;

/// Why there is no more room for a subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubscriptionLimit {
    /// Its connection has as many as it may have.
    PerClient,
    /// The shard has.
    PerShard,
}

/// A subscription of a connection.
#[derive(Debug)]
struct Subscription {
    token: u64,
    /// The place of its connection.
    owner: u32,
    /// The place of its registration.
    registered: u32,
    /// Each is younger than those before it.
    age: u64,
    sid: ShortBytes,
    takes_headers: bool,
    /// It gets messages for which the hub had processed at least so many requests of the shard, and fewer than so many.
    from: u64,
    until: u64,
    /// Messages that it has got, up to the maximum.
    delivered: u32,
    /// It ends after so many messages.
    ends_after: Option<u32>,
}

impl Subscription {
    /// Whether it has got as many messages as it was to get.
    fn is_satisfied(&self) -> bool {
        self.ends_after.is_some_and(|after| self.delivered >= after)
    }
}

/// A filter that is registered for its subscriptions, or one subscription of a queue. With very many filters each message finds
/// another one in cold memory, so it has one cache line.
#[derive(Debug)]
#[repr(align(64))]
struct FilterRegistration {
    filter: Arc<[u8]>,
    /// No other subscription is added: its only one is a member of a queue, or ends after so many messages, which the hub
    /// counts; or it [is detached](Self::is_detached).
    is_exclusive: bool,
    /// All its connections have left. The hub has forgotten it, and its subscriptions are to be removed.
    is_detached: bool,
    /// A second subscription was added at some time.
    has_had_others: bool,
    serial: u32,
    members: FilterSubscriptions,
    hub_view: ReportedSubscribers,
}

const _: () = assert!(size_of::<Option<FilterRegistration>>() == 64);

/// What the hub was told of the connections that are subscribed to a filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ReportedSubscribers {
    None,
    One(u64),
    Many,
}

/// A connection with subscriptions.
#[derive(Debug)]
struct SubscriptionOwner {
    sids: HashMap<ShortBytes, u32, HashKey>,
    /// Tokens of its filters.
    tokens: usize,
    has_left: bool,
}

#[derive(Debug)]
struct DepartedConnection {
    owner: u32,
    sids: hash_map::IntoIter<ShortBytes, u32>,
}

/// A change that is to be reported to the hub.
#[derive(Debug)]
struct PendingChange {
    token: u64,
    id: RegistrationId,
    kind: ChangeKind,
}

#[derive(Debug)]
enum ChangeKind {
    Register { filter: Arc<[u8]>, queue: Box<[u8]> },
    Share { filter: Arc<[u8]> },
    Unshare,
    Sync,
    Unregister { after: Option<u32>, is_shared: bool },
    Disconnect,
}

/// The subscriptions of one shard.
#[derive(Debug)]
pub struct ShardTable {
    key: HashKey,
    per_client_max: usize,
    clients: HashMap<u64, u32, HashKey>,
    owners: Vec<SubscriptionOwner>,
    free_owners: Vec<u32>,
    subscriptions: Vec<Option<Subscription>>,
    free: Vec<u32>,
    /// The registrations without a queue that further subscriptions are added to.
    filters: HashMap<Arc<[u8]>, u32, HashKey>,
    registered: Vec<Option<FilterRegistration>>,
    free_registered: Vec<u32>,
    /// Of the last registration. It wraps around after longer than anything is under way.
    serial: u32,
    /// Subscriptions that there have ever been.
    age: u64,
    /// Connections that have left, and their subscriptions that are not removed yet.
    left: VecDeque<DepartedConnection>,
    left_count: usize,
    changes: VecDeque<PendingChange>,
    /// Requests that were made of the hub.
    requests: u64,
    /// Messages that were expanded, and how many of them subscriptions have got.
    messages: u64,
    delivered: u64,
    /// Subscriptions that have ended, and get what the hub had sent before.
    ended: VecDeque<u32>,
    /// The hub was asked how many requests it has processed.
    is_syncing: bool,
    /// What it has answered last.
    processed: u64,
    /// Subscriptions that have got their last message, or were refused; memory that is used again.
    finished: Vec<u32>,
    /// Subscriptions of connections that have left which the present message would have matched; how many of these may be
    /// removed behind it, and matches of that kind that there have ever been.
    left_matches: Vec<u32>,
    left_match_steps: usize,
    left_match_count: u64,
    /// Registrations that something came for, and whose connections have all left; memory that is used again.
    without_subscriber: Vec<u32>,
    /// Marks without a connection that could answer them.
    unanswerable_marks: Vec<u64>,
}

impl ShardTable {
    /// A table whose connections may have so many subscriptions each.
    #[must_use]
    pub fn new(key: HashKey, per_client_max: usize) -> ShardTable {
        ShardTable {
            key,
            per_client_max,
            clients: HashMap::with_hasher(key),
            owners: Vec::new(),
            free_owners: Vec::new(),
            subscriptions: Vec::new(),
            free: Vec::new(),
            filters: HashMap::with_hasher(key),
            registered: Vec::new(),
            free_registered: Vec::new(),
            serial: 0,
            age: 0,
            left: VecDeque::new(),
            left_count: 0,
            changes: VecDeque::new(),
            requests: 0,
            messages: 0,
            delivered: 0,
            ended: VecDeque::new(),
            is_syncing: false,
            processed: 0,
            finished: Vec::new(),
            left_matches: Vec::new(),
            left_match_steps: 0,
            left_match_count: 0,
            without_subscriber: Vec::new(),
            unanswerable_marks: Vec::new(),
        }
    }

    /// Subscriptions of connections that are there.
    #[must_use]
    pub fn len(&self) -> usize {
        self.subscriptions.len() - self.free.len() - self.left_count - self.ended.len()
    }

    /// Whether no connection that is there has a subscription.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Registrations that the hub has been told of. Looks at all, for tests.
    #[must_use]
    pub fn registrations(&self) -> usize {
        let registered = self.registered.iter().flatten();
        registered.filter(|registered| registered.hub_view != ReportedSubscribers::None).count()
    }

    /// Whether a connection has a subscription.
    #[must_use]
    pub fn has_client(&self, token: u64) -> bool {
        self.clients.contains_key(&token)
    }

    /// Sets the figures of the shard.
    pub fn publish_figures(&self, counters: &ShardCounters) {
        counters.subscriptions.set(self.len() as u64);
        counters.delivered.set(self.delivered);
    }

    /// Puts a request into an intake. All requests of the shard have to go this way: the table counts them.
    #[inline]
    pub fn push(
        &mut self,
        publication_batch: &mut PublicationBatch,
        token: u64,
        client_options: ClientOptions,
        request: &HubRequest<'_>,
    ) {
        if publication_batch.is_empty() {
            publication_batch.set_first(self.requests);
        }
        publication_batch.push(token, client_options, request);
        self.requests += 1;
    }

    /// Puts all changes that were not reported to the hub into an intake. To be called behind each call that may make some,
    /// before anything else is [pushed](Self::push).
    pub fn push_changes(&mut self, publication_batch: &mut PublicationBatch) {
        while let Some(PendingChange { token, id, kind }) = self.changes.pop_front() {
            let change = match &kind {
                ChangeKind::Disconnect => {
                    self.push(publication_batch, token, ClientOptions::default(), &HubRequest::Disconnect);
                    continue;
                }
                ChangeKind::Register { filter, queue } => InterestChange::Register { id, filter, queue },
                ChangeKind::Share { filter } => InterestChange::Share { id, filter },
                ChangeKind::Unshare => InterestChange::Unshare { id },
                ChangeKind::Sync => InterestChange::Sync,
                &ChangeKind::Unregister { after, is_shared } => {
                    InterestChange::Unregister { id, after, is_shared }
                }
            };
            self.push(publication_batch, token, ClientOptions::default(), &HubRequest::Interest(change));
        }
    }

    /// Whether there are changes to be [pushed](Self::push_changes).
    #[must_use]
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Adds a subscription of a connection to a checked filter, as a member of a queue if that has a name. One whose sid the
    /// connection uses already is left as it is, as nats-server does.
    ///
    /// # Errors
    /// There is no room for one more.
    pub fn subscribe(
        &mut self,
        token: u64,
        client_options: ClientOptions,
        (filter, queue, sid): (&[u8], &[u8], &[u8]),
    ) -> Result<(), SubscriptionLimit> {
        self.make_room()?;
        let tokens = tokens(filter);
        let owner = self.owner(token);
        let of_client = &mut self.owners[owner as usize];
        if of_client.sids.len() >= self.per_client_max
            || of_client.tokens + tokens > FILTER_TOKENS_PER_CLIENT_MAX
        {
            return Err(SubscriptionLimit::PerClient);
        }
        let MapEntry::Vacant(vacant) = of_client.sids.entry(sid.into()) else { return Ok(()) };
        let slot = self.free.pop().unwrap_or(self.subscriptions.len() as u32);
        vacant.insert(slot);
        of_client.tokens += tokens;
        let number = if queue.is_empty() { self.filters.get(filter).copied() } else { None };
        let number = number.unwrap_or_else(|| self.register(filter, !queue.is_empty()));
        self.age += 1;
        let subscription = Subscription {
            token,
            owner,
            registered: number,
            age: self.age,
            sid: sid.into(),
            takes_headers: client_options.headers,
            from: u64::MAX,
            until: u64::MAX,
            delivered: 0,
            ends_after: None,
        };
        match self.subscriptions.get_mut(slot as usize) {
            Some(free) => *free = Some(subscription),
            None => self.subscriptions.push(Some(subscription)),
        }
        if let Some(registered) = &mut self.registered[number as usize] {
            registered.has_had_others |= !registered.members.is_empty();
            registered.members.add(self.age, slot, token, self.key);
        }
        let changes = self.changes.len();
        self.queue_changes(number, queue);
        if self.changes.len() == changes {
            // Not one that was asked for before.
            self.is_syncing = false;
            self.sync();
        }
        if let Some(subscription) = &mut self.subscriptions[slot as usize] {
            subscription.from = self.requests + self.changes.len() as u64;
        }
        Ok(())
    }

    /// Prepares for a new subscription: removes some that get nothing more, so that subscriptions cannot be made and left, or
    /// ended, faster than they are removed, and as many as have to make room for it.
    fn make_room(&mut self) -> Result<(), SubscriptionLimit> {
        let is_full = |table: &ShardTable| table.subscriptions.len() - table.free.len() >= SUBSCRIPTIONS_MAX;
        self.remove_next_departed();
        self.remove_ended(ENDED_SUBSCRIPTIONS_PER_SUB);
        while !self.left.is_empty() && is_full(self) {
            self.remove_next_departed();
        }
        if is_full(self) { Err(SubscriptionLimit::PerShard) } else { Ok(()) }
    }

    /// The place of a connection, which it gets with its first subscription.
    fn owner(&mut self, token: u64) -> u32 {
        if let Some(&owner) = self.clients.get(&token) {
            return owner;
        }
        let new = SubscriptionOwner { sids: HashMap::with_hasher(self.key), tokens: 0, has_left: false };
        let owner = match self.free_owners.pop() {
            Some(owner) => {
                self.owners[owner as usize] = new;
                owner
            }
            None => {
                self.owners.push(new);
                (self.owners.len() - 1) as u32
            }
        };
        self.clients.insert(token, owner);
        owner
    }

    /// Gives a filter, or a member of a queue, its number.
    fn register(&mut self, filter: &[u8], is_exclusive: bool) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        let filter: Arc<[u8]> = filter.into();
        let new = FilterRegistration {
            filter: Arc::clone(&filter),
            is_exclusive,
            is_detached: false,
            has_had_others: false,
            serial: self.serial,
            members: FilterSubscriptions::default(),
            hub_view: ReportedSubscribers::None,
        };
        let number = match self.free_registered.pop() {
            Some(number) => {
                self.registered[number as usize] = Some(new);
                number
            }
            None => {
                self.registered.push(Some(new));
                (self.registered.len() - 1) as u32
            }
        };
        if !is_exclusive {
            self.filters.insert(filter, number);
        }
        number
    }

    /// Queues the changes of a registration's connections that the hub has to know, and forgets the registration if no
    /// subscription is left.
    fn queue_changes(&mut self, number: u32, queue: &[u8]) {
        let Some(registered) = &mut self.registered[number as usize] else { return };
        let id = RegistrationId { number, serial: registered.serial };
        let filter = &registered.filter;
        let is_there = |token: u64| self.clients.contains_key(&token);
        let now = match registered.members.clients() {
            _ if registered.is_detached => ReportedSubscribers::None,
            // What one connection alone was subscribed to ends in the hub with the connection.
            ReportedSubscribers::One(token) if !is_there(token) => ReportedSubscribers::None,
            now => now,
        };
        let before = std::mem::replace(&mut registered.hub_view, now);
        let mut change = |token, kind| self.changes.push_back(PendingChange { token, id, kind });
        match (before, now) {
            (ReportedSubscribers::None, ReportedSubscribers::One(token)) => {
                change(token, ChangeKind::Register { filter: Arc::clone(filter), queue: queue.into() });
            }
            // All others of them have left, and are not removed yet.
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

    /// Ends a subscription, at once or after so many messages in all.
    pub fn unsubscribe(&mut self, token: u64, sid: &[u8], after: Option<u32>) {
        let Some(&owner) = self.clients.get(&token) else { return };
        let Some(&slot) = self.owners[owner as usize].sids.get(sid) else { return };
        let Some(subscription) = &mut self.subscriptions[slot as usize] else { return };
        subscription.ends_after = after;
        if after.is_none() || subscription.is_satisfied() {
            return self.end(slot);
        }
        let (number, age) = (subscription.registered, subscription.age);
        let Some(registered) = &mut self.registered[number as usize] else { return };
        // Where it was the only one from the beginning the hub sends no more than that: what is sent to a subject on which
        // nothing listens any more goes elsewhere, or is refused.
        if registered.members.only() == Some(age) && !registered.has_had_others {
            if !std::mem::replace(&mut registered.is_exclusive, true) {
                self.filters.remove(&registered.filter);
            }
            let id = RegistrationId { number, serial: registered.serial };
            let kind = ChangeKind::Unregister { after, is_shared: false };
            self.changes.push_back(PendingChange { token, id, kind });
        }
    }

    /// Ends a subscription of a connection that is there: it gets what the hub had sent before it processes that.
    fn end(&mut self, slot: u32) {
        let until = self.requests;
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
            (subscription.sid, subscription.until) = (sid, until + self.changes.len() as u64);
        }
        self.ended.push_back(slot);
        self.sync();
    }

    /// Asks the hub how many requests it has processed, unless that is under way.
    fn sync(&mut self) {
        if !std::mem::replace(&mut self.is_syncing, true) {
            let id = RegistrationId::default();
            self.changes.push_back(PendingChange { token: 0, id, kind: ChangeKind::Sync });
        }
    }

    /// The hub had processed so many requests of the shard when it sent what comes next.
    fn synced(&mut self, processed: u64) {
        (self.is_syncing, self.processed) = (false, processed);
        self.remove_ended(DEPARTED_REGISTRATIONS_PER_TURN);
        if self.ended.back().is_some_and(|&slot| !self.gets_nothing_more(slot)) {
            self.sync();
        }
    }

    /// Whether the hub has processed the end of a subscription that has ended.
    fn gets_nothing_more(&self, slot: u32) -> bool {
        let subscription = self.subscriptions[slot as usize].as_ref();
        subscription.is_none_or(|subscription| subscription.until <= self.processed)
    }

    /// Removes up to so many of those that have ended and get nothing more.
    fn remove_ended(&mut self, count: usize) {
        for _ in 0..count {
            let Some(slot) = self.ended.front().copied().filter(|&slot| self.gets_nothing_more(slot)) else {
                return;
            };
            self.ended.pop_front();
            self.drop_ended(slot);
        }
    }

    /// Removes one that has ended.
    fn drop_ended(&mut self, slot: u32) {
        let Some(Subscription { registered, age, .. }) = self.subscriptions[slot as usize].take() else {
            return;
        };
        self.free.push(slot);
        if let Some(of) = &mut self.registered[registered as usize] {
            of.members.remove(age);
            self.queue_changes(registered, b"");
        }
    }

    /// Removes a subscription of a connection that is there, which gets nothing more.
    fn remove(&mut self, slot: u32) {
        let Some(subscription) = &mut self.subscriptions[slot as usize] else { return };
        let (number, token, owner) = (subscription.registered, subscription.token, subscription.owner);
        let sid = std::mem::take(&mut subscription.sid);
        if let Some(registered) = &mut self.registered[number as usize] {
            registered.members.end(token);
        }
        self.release(owner, token, number, &sid);
        self.drop_ended(slot);
    }

    /// Takes a subscription out of its connection's list.
    fn release(&mut self, owner: u32, token: u64, registered: u32, sid: &ShortBytes) {
        let size = self.registered[registered as usize].as_ref().map_or(0, |of| tokens(&of.filter));
        let of_client = &mut self.owners[owner as usize];
        of_client.sids.remove(sid);
        of_client.tokens -= size;
        if of_client.sids.is_empty() {
            self.clients.remove(&token);
            self.free_owners.push(owner);
        }
    }

    /// A connection has left: its subscriptions get nothing more. The hub is told so ([`HubRequest::Disconnect`]), also of a
    /// connection without subscriptions.
    pub fn leave(&mut self, token: u64) {
        self.changes.push_back(PendingChange {
            token,
            id: RegistrationId::default(),
            kind: ChangeKind::Disconnect,
        });
        let Some(owner) = self.clients.remove(&token) else { return };
        let of_client = &mut self.owners[owner as usize];
        of_client.has_left = true;
        let sids = std::mem::replace(&mut of_client.sids, HashMap::with_hasher(self.key));
        self.left_count += sids.len();
        self.left.push_back(DepartedConnection { owner, sids: sids.into_iter() });
    }

    /// Whether subscriptions are to be removed that get nothing more.
    #[must_use]
    pub fn has_removals(&self) -> bool {
        !self.left.is_empty() || self.ended.front().is_some_and(|&slot| self.gets_nothing_more(slot))
    }

    /// Removes some subscriptions that get nothing more.
    pub fn remove_some(&mut self) {
        for _ in 0..DEPARTED_REGISTRATIONS_PER_TURN {
            self.remove_next_departed();
        }
        self.remove_ended(DEPARTED_REGISTRATIONS_PER_TURN);
    }

    /// Looks at the next subscription of the connection that left first, and removes it unless it was removed already.
    fn remove_next_departed(&mut self) {
        let Some(left) = self.left.front_mut() else { return };
        let (owner, next) = (left.owner, left.sids.next());
        let is_last = left.sids.len() == 0;
        if let Some((_, slot)) = next {
            // Its place may be another connection's by now.
            self.remove_if_left(slot);
        }
        if is_last {
            self.free_owners.push(owner);
            self.left.pop_front();
        }
    }

    /// Removes a subscription if its connection has left.
    fn remove_if_left(&mut self, slot: u32) {
        let Some(Subscription { token, registered, owner, .. }) = self.subscriptions[slot as usize] else {
            return;
        };
        if !self.owners.get(owner as usize).is_some_and(|owner| owner.has_left) {
            return;
        }
        self.left_count -= 1;
        if let Some(registered) = &mut self.registered[registered as usize] {
            registered.members.end(token);
            if registered.hub_view == ReportedSubscribers::One(token) {
                // It has ended in the hub with the connection.
                registered.hub_view = ReportedSubscribers::None;
            }
        }
        self.drop_ended(slot);
    }

    /// All connections of a registration have left: it ends in the hub before its subscriptions are removed, and one that comes
    /// meanwhile has another.
    fn detach(&mut self, number: u32) {
        let Some(registered) = &mut self.registered[number as usize] else { return };
        if !std::mem::replace(&mut registered.is_exclusive, true) {
            self.filters.remove(&registered.filter);
        }
        registered.is_detached = true;
        if let ReportedSubscribers::One(_) = registered.hub_view {
            // It has ended in the hub with the connection.
            registered.hub_view = ReportedSubscribers::None;
        }
        self.queue_changes(number, b"");
    }
}

#[cfg(test)]
mod tests;
