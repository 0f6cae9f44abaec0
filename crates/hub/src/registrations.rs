//! The hub's table of registrations: which shard has subscriptions to which filter.
//!
//! ```text
//!   (shard 0, orders.>)        single  client 17      one connection; its disconnect ends the registration
//!   (shard 1, orders.>)        shared                 several connections; only the shard knows them
//!   (shard 1, jobs, queue q)   single  client 9       each queue subscription is registered separately
//! ```
//!
//! A disconnecting client may have ten thousand registrations. They stop counting at once and are removed a few at a
//! time ([`Registrations::remove_next_stale`]), which bounds the length of a turn.

use std::collections::hash_map::{self, Entry};
use std::collections::{HashMap, VecDeque};

use stilling_wire::nats::{Filter, SubjectLimits};

use crate::filter_tree::{self, FilterTree};
use crate::free_list::FreeList;
use crate::hash_key::HashKey;
use crate::limits::{FILTER_TOKENS_MAX, SUBSCRIPTIONS_MAX};
use crate::publication_batch::{ClientId, RegistrationId};

/// First number of streams in the filter tree; lower numbers are slots of registrations.
pub(crate) const STREAMS: u32 = 1 << 31;

/// Token of the owner of registrations that several connections of a shard share. This owner never disconnects.
const SHARED: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Registration {
    /// Shard, and its only subscribed connection; [`SHARED`] for several.
    client: ClientId,
    pub(crate) id: RegistrationId,
    filter: Box<[u8]>,
    entry: Option<filter_tree::FilterHandle>,
    /// Index of its owner in `owners`.
    owner: u32,
    /// Streams with subjects that the filter may match.
    pub(crate) streams: MatchingStreams,
    pub(crate) queue: Option<u32>,
    delivered: u64,
    ends_after: Option<u32>,
}

/// Connections of a shard that receive a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SubscriberTarget {
    Single(ClientId),
    Shared { shard: u32, id: RegistrationId },
}

impl Registration {
    #[inline]
    pub(crate) fn shard(&self) -> u32 {
        self.client.shard
    }

    /// Returns the subscribed connection, or `None` for several.
    #[inline]
    pub(crate) fn single(&self) -> Option<ClientId> {
        (self.client.token != SHARED).then_some(self.client)
    }

    pub(crate) fn subscriber_target(&self) -> SubscriberTarget {
        let Registration { client: ClientId { shard, .. }, id, .. } = *self;
        self.single().map_or(SubscriberTarget::Shared { shard, id }, SubscriberTarget::Single)
    }

    /// Counts a sent message. Returns whether it was the last one.
    #[inline]
    pub(crate) fn count_delivery(&mut self) -> bool {
        self.delivered += 1;
        self.ends_after.is_some_and(|after| self.delivered >= u64::from(after))
    }

    /// Limits the registration to `after` messages in total. Returns whether it has had them.
    pub(crate) fn end_after(&mut self, after: u32) -> bool {
        self.ends_after = Some(after);
        self.delivered >= u64::from(after)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum MatchingStreams {
    #[default]
    None,
    One(u32),
    /// Several streams; removal compares the filter with the subjects of all.
    Many,
}

#[derive(PartialEq, Eq, Debug)]
pub(crate) struct RemovedRegistration {
    pub(crate) filter: Box<[u8]>,
    pub(crate) streams: MatchingStreams,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RegistrationsFull;

#[derive(Debug)]
pub(crate) struct Registrations {
    key: HashKey,
    slots: Vec<Option<Registration>>,
    free: FreeList,
    clients: HashMap<ClientId, u32, HashKey>,
    owners: Vec<RegistrationOwner>,
    free_owners: FreeList,
    /// Disconnected clients with registrations to remove, and the number of these.
    disconnected: VecDeque<DisconnectedClient>,
    stale_count: usize,
    tokens: usize,
    queues: HashMap<Box<[u8]>, u32, HashKey>,
    groups: Vec<QueueGroup>,
    free_groups: FreeList,
}

#[derive(Debug)]
struct RegistrationOwner {
    /// Slots of its registrations, by their numbers in the shard.
    slots: HashMap<u32, u32, HashKey>,
    /// The client has disconnected; its registrations do not count.
    has_disconnected: bool,
}

#[derive(Debug)]
struct DisconnectedClient {
    owner: u32,
    slots: hash_map::IntoIter<u32, u32>,
}

#[derive(Debug, Default)]
struct QueueGroup {
    name: Box<[u8]>,
    members: u32,
    turn: u32,
}

impl Registrations {
    pub(crate) fn new(key: HashKey) -> Registrations {
        Registrations {
            key,
            slots: Vec::new(),
            free: FreeList::new(),
            clients: HashMap::with_hasher(key),
            owners: Vec::new(),
            free_owners: FreeList::new(),
            disconnected: VecDeque::new(),
            stale_count: 0,
            tokens: 0,
            queues: HashMap::with_hasher(key),
            groups: Vec::new(),
            free_groups: FreeList::new(),
        }
    }

    /// Number of registrations of connected clients.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len() - self.stale_count
    }

    pub(crate) fn has_disconnected(&self) -> bool {
        !self.disconnected.is_empty()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut Registration> {
        let registration = self.slots.get_mut(slot as usize)?.as_mut()?;
        let is_there =
            self.disconnected.is_empty() || !self.owners[registration.owner as usize].has_disconnected;
        is_there.then_some(registration)
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&Registration> {
        let registration = self.slots.get(slot as usize)?.as_ref()?;
        let is_there =
            self.disconnected.is_empty() || !self.owners[registration.owner as usize].has_disconnected;
        is_there.then_some(registration)
    }

    fn is_full(&self, tokens: usize) -> bool {
        self.len() + self.stale_count >= SUBSCRIPTIONS_MAX || self.tokens + tokens > FILTER_TOKENS_MAX
    }

    /// Returns whether a filter does not fit until registrations of disconnected clients are removed.
    pub(crate) fn waits_for_stale(&self, filter: &[u8]) -> bool {
        self.has_disconnected() && self.is_full(tokens(filter))
    }

    /// Adds a registration of a client, in a queue group if `queue` is not empty. Returns its slot, or `None` if it
    /// exists already.
    pub(crate) fn add(
        &mut self,
        interest: &mut FilterTree,
        client: ClientId,
        id: RegistrationId,
        (filter, queue): (&[u8], &[u8]),
    ) -> Result<Option<u32>, RegistrationsFull> {
        let tokens = tokens(filter);
        if self.is_full(tokens) {
            return Err(RegistrationsFull);
        }
        let owner = self.owner(client);
        let Entry::Vacant(vacant) = self.owners[owner as usize].slots.entry(id.number) else {
            return Ok(None);
        };
        self.tokens += tokens;
        let slot = self.free.next(&self.slots);
        vacant.insert(slot);
        let queue = (!queue.is_empty()).then(|| self.join(queue));
        let registration = Registration {
            client,
            id,
            filter: filter.into(),
            entry: checked(filter).map(|filter| interest.insert(filter, slot)),
            owner,
            streams: MatchingStreams::None,
            queue,
            delivered: 0,
            ends_after: None,
        };
        self.free.place(&mut self.slots, Some(registration));
        Ok(Some(slot))
    }

    /// Returns the index of an owner, adding it at its first registration.
    fn owner(&mut self, client: ClientId) -> u32 {
        if let Some(&owner) = self.clients.get(&client) {
            return owner;
        }
        let new = RegistrationOwner { slots: HashMap::with_hasher(self.key), has_disconnected: false };
        let owner = self.free_owners.place(&mut self.owners, new);
        self.clients.insert(client, owner);
        owner
    }

    pub(crate) fn find(&self, client: ClientId, id: RegistrationId) -> Option<u32> {
        let owner = *self.clients.get(&client)?;
        let slot = *self.owners[owner as usize].slots.get(&id.number)?;
        self.get(slot).filter(|registration| registration.id == id).map(|_| slot)
    }

    /// Transfers a registration between owners of a shard. Returns whether it was present.
    fn transfer(&mut self, from: ClientId, to: ClientId, id: RegistrationId) -> bool {
        let Some(slot) = self.find(from, id) else { return false };
        self.release(from, id.number);
        let owner = self.owner(to);
        self.owners[owner as usize].slots.insert(id.number, slot);
        if let Some(registration) = self.slots[slot as usize].as_mut() {
            (registration.client, registration.owner) = (to, owner);
        }
        true
    }

    /// Makes a registration of `client` shared by several connections. Returns whether it was present.
    pub(crate) fn share(&mut self, client: ClientId, id: RegistrationId) -> bool {
        self.transfer(client, shared(client.shard), id)
    }

    /// Makes `client` the only owner of a shared registration.
    pub(crate) fn unshare(&mut self, client: ClientId, id: RegistrationId) {
        self.transfer(shared(client.shard), client, id);
    }

    fn release(&mut self, client: ClientId, number: u32) {
        let Some(&owner) = self.clients.get(&client) else { return };
        let slots = &mut self.owners[owner as usize].slots;
        slots.remove(&number);
        if slots.is_empty() {
            self.clients.remove(&client);
            self.free_owners.push(owner);
        }
    }

    pub(crate) fn remove(&mut self, interest: &mut FilterTree, slot: u32) -> Option<RemovedRegistration> {
        let &Registration { client, id, .. } = self.get(slot)?;
        let Registration { filter, streams, .. } = self.take(interest, slot)?;
        self.release(client, id.number);
        Some(RemovedRegistration { filter, streams })
    }

    /// Removes a registration, except from its owner's list.
    fn take(&mut self, interest: &mut FilterTree, slot: u32) -> Option<Registration> {
        let registration = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        self.tokens -= tokens(&registration.filter);
        if let Some(queue) = registration.queue {
            self.leave_queue(queue);
        }
        if let Some((filter, entry)) = checked(&registration.filter).zip(registration.entry) {
            interest.remove(filter, entry);
        }
        Some(registration)
    }

    /// Handles a disconnect: the client's own registrations stop counting, and
    /// [`remove_next_stale`](Self::remove_next_stale) removes them.
    pub(crate) fn disconnect(&mut self, client: ClientId) {
        let Some(owner) = self.clients.remove(&client) else { return };
        let of_client = &mut self.owners[owner as usize];
        of_client.has_disconnected = true;
        let slots = std::mem::replace(&mut of_client.slots, HashMap::with_hasher(self.key));
        self.stale_count += slots.len();
        self.disconnected.push_back(DisconnectedClient { owner, slots: slots.into_iter() });
    }

    /// Removes the next registration of the client that disconnected first, unless it is removed already.
    pub(crate) fn remove_next_stale(&mut self, interest: &mut FilterTree) -> Option<RemovedRegistration> {
        let disconnected = self.disconnected.front_mut()?;
        let next = disconnected.slots.next();
        if disconnected.slots.len() == 0 {
            self.free_owners.push(disconnected.owner);
            self.disconnected.pop_front();
        }
        // The slot may have been reused by another client.
        self.remove_if_stale(interest, next?.1)
    }

    pub(crate) fn remove_if_stale(
        &mut self,
        interest: &mut FilterTree,
        slot: u32,
    ) -> Option<RemovedRegistration> {
        let owner = self.slots.get(slot as usize)?.as_ref()?.owner;
        if !self.owners[owner as usize].has_disconnected {
            return None;
        }
        self.stale_count -= 1;
        let Registration { filter, streams, .. } = self.take(interest, slot)?;
        Some(RemovedRegistration { filter, streams })
    }

    /// Returns the index of the next of `members` of a queue group, in rotation.
    #[inline]
    pub(crate) fn choose(&mut self, queue: u32, members: usize) -> usize {
        let Some(group) = self.groups.get_mut(queue as usize) else { return 0 };
        group.turn = group.turn.wrapping_add(1);
        group.turn as usize % members.max(1)
    }

    fn join(&mut self, name: &[u8]) -> u32 {
        let queue = match self.queues.get(name) {
            Some(&queue) => queue,
            None => {
                let group = QueueGroup { name: name.into(), ..QueueGroup::default() };
                let queue = self.free_groups.place(&mut self.groups, group);
                self.queues.insert(name.into(), queue);
                queue
            }
        };
        self.groups[queue as usize].members += 1;
        queue
    }

    fn leave_queue(&mut self, queue: u32) {
        let Some(group) = self.groups.get_mut(queue as usize) else { return };
        group.members -= 1;
        if group.members == 0 {
            let QueueGroup { name, .. } = std::mem::take(group);
            self.queues.remove(&name);
            self.free_groups.push(queue);
        }
    }
}

/// Owner of the registrations that several connections of a shard share.
pub(crate) const fn shared(shard: u32) -> ClientId {
    ClientId { shard, token: SHARED }
}

pub(crate) fn tokens(filter: &[u8]) -> usize {
    filter.iter().filter(|&&byte| byte == b'.').count() + 1
}

/// Parses a filter that a codec has already checked.
pub(crate) fn checked(filter: &[u8]) -> Option<Filter<'_>> {
    Filter::parse(filter, &SubjectLimits { size_max: u16::MAX, tokens_max: u16::MAX }).ok()
}

/// Returns whether some subject matches both filters, which are not checked again.
#[must_use]
pub fn overlap(one: &[u8], other: &[u8]) -> bool {
    let is_dot = |byte: &u8| *byte == b'.';
    let (mut ones, mut others) = (one.split(is_dot), other.split(is_dot));
    loop {
        return match (ones.next(), others.next()) {
            (None, None) => true,
            (None, Some(_)) | (Some(_), None) => false,
            (Some(b">"), Some(_)) | (Some(_), Some(b">")) => true,
            (Some(a), Some(b)) if a == b || a == b"*" || b == b"*" => continue,
            _ => false,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_overlap_if_a_subject_matches_both() {
        for (one, other, expected) in [
            ("a.b", "a.b", true),
            ("a.b", "a.c", false),
            ("a.*", "*.b", true),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            ("a.*", "a.b.c", false),
            ("*.b.>", "a.*.c", true),
            (">", "x", true),
        ] {
            let [a, b] = [one, other].map(str::as_bytes);
            let (filter, subject) = (checked(a).expect("a filter"), checked(b).expect("a filter").literal());
            assert!(subject.is_none_or(|subject| filter.matches(subject) == expected), "{one} {other}");
            assert_eq!(overlap(a, b), expected, "{one} {other}");
            assert_eq!(overlap(b, a), expected, "{other} {one}");
        }
    }

    const ALICE: ClientId = ClientId { shard: 0, token: 1 };

    fn id(number: u32) -> RegistrationId {
        RegistrationId { number, serial: 7 }
    }

    #[test]
    fn a_client_leaves_nothing_behind() {
        let key = HashKey(1, 2);
        let (mut interest, mut all) = (FilterTree::new(key), Registrations::new(key));
        assert_eq!(all.add(&mut interest, ALICE, id(1), (b"a.>", b"q")), Ok(Some(0)));
        assert_eq!(all.add(&mut interest, ALICE, id(1), (b"b", b"")), Ok(None), "it is there");
        assert_eq!(all.add(&mut interest, ALICE, id(2), (b"b", b"q")), Ok(Some(1)));
        assert_eq!(all.len(), 2);
        let removed = |filter: &[u8]| {
            Some(RemovedRegistration { filter: filter.into(), streams: MatchingStreams::None })
        };
        assert_eq!(all.remove(&mut interest, 0), removed(b"a.>"));
        all.disconnect(ALICE);
        assert_eq!((all.len(), all.find(ALICE, id(2))), (0, None), "at once");
        assert!(all.get(1).is_none() && all.remove(&mut interest, 1).is_none(), "at once");
        assert_eq!(all.remove_next_stale(&mut interest), removed(b"b"));
        assert_eq!((all.remove_next_stale(&mut interest), all.has_disconnected()), (None, false));
        assert_eq!((all.clients.len(), all.queues.len(), all.tokens), (0, 0, 0));
        assert_eq!(all.free_owners.len(), all.owners.len());
        let mut found = Vec::new();
        interest.find(b"a.b", &mut found);
        assert!(found.is_empty());
    }

    #[test]
    fn what_is_shared_outlives_the_connection_that_was_the_first() {
        let key = HashKey(1, 2);
        let (mut interest, mut all) = (FilterTree::new(key), Registrations::new(key));
        let bob = ClientId { token: 2, ..ALICE };
        assert!(!all.share(ALICE, id(1)), "it is not there");
        assert_eq!(all.add(&mut interest, ALICE, id(1), (b"a", b"")), Ok(Some(0)));
        assert!(all.share(ALICE, id(1)) && !all.share(ALICE, id(1)));
        all.disconnect(ALICE);
        let subscriber_target = SubscriberTarget::Shared { shard: 0, id: id(1) };
        assert_eq!(all.get(0).map(Registration::subscriber_target), Some(subscriber_target));
        assert_eq!(all.find(shared(0), RegistrationId { serial: 8, ..id(1) }), None, "another one");
        all.unshare(bob, id(1));
        assert_eq!(all.get(0).and_then(Registration::single), Some(bob));
        all.disconnect(bob);
        assert!(all.get(0).is_none() && all.remove_next_stale(&mut interest).is_some());
        assert_eq!((all.len(), all.clients.len(), all.free_owners.len()), (0, 0, all.owners.len()));
    }
}
