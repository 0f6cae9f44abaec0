//! The hub's table of registrations: which shard has subscriptions to which filter.
//!
//! ```text
//!   (shard 0, orders.>)        single  client 17      one connection is subscribed; its leaving ends the registration
//!   (shard 1, orders.>)        shared                 several are; the shard alone knows which
//!   (shard 1, jobs, queue q)   single  client 9       each subscription of a queue is registered by itself
//! ```
//!
//! A connection that leaves may have ten thousand registrations. They stop counting at once and are removed some at a time
//! ([`Registrations::examine_left`]), so that no turn of the hub is long because of them.

use std::collections::hash_map::{self, Entry};
use std::collections::{HashMap, VecDeque};

use stilling_wire::nats::{Filter, SubjectLimits};

use crate::intake::{Client, RegistrationId};
use crate::interest::{self, Interest};
use crate::key::HashKey;
use crate::limits::{FILTER_TOKENS_MAX, SUBSCRIPTIONS_MAX};

/// A registration's place; in the interest's tree, those from here on are streams.
pub(crate) const STREAMS: u32 = 1 << 31;

/// What stands for a connection where several of a shard are subscribed to a filter. It never leaves.
const SHARED: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Registration {
    /// The shard, and the only connection there that is subscribed; [`SHARED`] if several are.
    client: Client,
    /// How the shard calls it.
    pub(crate) id: RegistrationId,
    filter: Box<[u8]>,
    /// Its filter in the tree.
    entry: Option<interest::Entry>,
    /// The place of its client.
    owner: u32,
    /// The streams whose subjects its filter may take.
    pub(crate) streams: ConcernedStreams,
    /// The queue's number.
    pub(crate) queue: Option<u32>,
    /// Messages that were sent.
    delivered: u64,
    /// It ends after so many of them.
    ends_after: Option<u32>,
}

/// The connections of a shard that a message goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Listener {
    /// This one.
    Client(Client),
    /// Several, which the shard knows.
    Shared { shard: u32, id: RegistrationId },
}

impl Registration {
    /// The shard that has the subscriptions.
    #[inline]
    pub(crate) fn shard(&self) -> u32 {
        self.client.shard
    }

    /// The connection that is subscribed; none if there are several.
    #[inline]
    pub(crate) fn single(&self) -> Option<Client> {
        (self.client.token != SHARED).then_some(self.client)
    }

    /// What is subscribed.
    pub(crate) fn listener(&self) -> Listener {
        let Registration { client: Client { shard, .. }, id, .. } = *self;
        self.single().map_or(Listener::Shared { shard, id }, Listener::Client)
    }

    /// Counts a message that was sent. Returns whether it was the last one.
    #[inline]
    pub(crate) fn count_delivery(&mut self) -> bool {
        self.delivered += 1;
        self.ends_after.is_some_and(|after| self.delivered >= u64::from(after))
    }

    /// Has it get so many messages in all. Returns whether it has got them.
    pub(crate) fn end_after(&mut self, after: u32) -> bool {
        self.ends_after = Some(after);
        self.delivered >= u64::from(after)
    }
}

/// Streams that a filter concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ConcernedStreams {
    #[default]
    None,
    One(u32),
    /// Those with an overlapping subject.
    Many,
}

/// A registration that was removed.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Removed {
    pub(crate) filter: Box<[u8]>,
    pub(crate) streams: ConcernedStreams,
}

/// There is no room for one more registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full;

/// All registrations of all shards.
#[derive(Debug)]
pub(crate) struct Registrations {
    key: HashKey,
    places: Vec<Option<Registration>>,
    free: Vec<u32>,
    clients: HashMap<Client, u32, HashKey>,
    owners: Vec<Owner>,
    free_owners: Vec<u32>,
    /// Clients that have left, and their registrations that are not removed yet.
    left: VecDeque<Left>,
    left_count: usize,
    /// Tokens of all filters.
    tokens: usize,
    queues: HashMap<Box<[u8]>, u32, HashKey>,
    /// How many members a queue has, its name, and its turn.
    groups: Vec<Group>,
    free_groups: Vec<u32>,
}

/// A client with registrations.
#[derive(Debug)]
struct Owner {
    /// The places of its registrations, by their numbers in the shard.
    places: HashMap<u32, u32, HashKey>,
    /// Its registrations count no longer.
    has_left: bool,
}

#[derive(Debug)]
struct Left {
    owner: u32,
    places: hash_map::IntoIter<u32, u32>,
}

#[derive(Debug, Default)]
struct Group {
    name: Box<[u8]>,
    members: u32,
    turn: u32,
}

impl Registrations {
    pub(crate) fn new(key: HashKey) -> Registrations {
        Registrations {
            key,
            places: Vec::new(),
            free: Vec::new(),
            clients: HashMap::with_hasher(key),
            owners: Vec::new(),
            free_owners: Vec::new(),
            left: VecDeque::new(),
            left_count: 0,
            tokens: 0,
            queues: HashMap::with_hasher(key),
            groups: Vec::new(),
            free_groups: Vec::new(),
        }
    }

    /// Registrations of clients that are there.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len() - self.left_count
    }

    /// Whether registrations of clients that have left are to be removed.
    pub(crate) fn has_left(&self) -> bool {
        !self.left.is_empty()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, place: u32) -> Option<&mut Registration> {
        let registration = self.places.get_mut(place as usize)?.as_mut()?;
        let is_there = self.left.is_empty() || !self.owners[registration.owner as usize].has_left;
        is_there.then_some(registration)
    }

    #[inline]
    pub(crate) fn get(&self, place: u32) -> Option<&Registration> {
        let registration = self.places.get(place as usize)?.as_ref()?;
        let is_there = self.left.is_empty() || !self.owners[registration.owner as usize].has_left;
        is_there.then_some(registration)
    }

    fn is_full(&self, tokens: usize) -> bool {
        self.len() + self.left_count >= SUBSCRIPTIONS_MAX || self.tokens + tokens > FILTER_TOKENS_MAX
    }

    /// Whether one more with this filter fits as soon as some of the clients that have left are removed.
    pub(crate) fn waits_for_left(&self, filter: &[u8]) -> bool {
        self.has_left() && self.is_full(tokens(filter))
    }

    /// Adds a registration of a client, for a queue if that has a name. Returns its place; none if it is there already.
    pub(crate) fn add(
        &mut self,
        interest: &mut Interest,
        client: Client,
        id: RegistrationId,
        (filter, queue): (&[u8], &[u8]),
    ) -> Result<Option<u32>, Full> {
        let tokens = tokens(filter);
        if self.is_full(tokens) {
            return Err(Full);
        }
        let owner = self.owner(client);
        let Entry::Vacant(vacant) = self.owners[owner as usize].places.entry(id.number) else {
            return Ok(None);
        };
        self.tokens += tokens;
        let place = self.free.pop().unwrap_or(self.places.len() as u32);
        vacant.insert(place);
        let queue = (!queue.is_empty()).then(|| self.join(queue));
        let registration = Registration {
            client,
            id,
            filter: filter.into(),
            entry: checked(filter).map(|filter| interest.insert(filter, place)),
            owner,
            streams: ConcernedStreams::None,
            queue,
            delivered: 0,
            ends_after: None,
        };
        match self.places.get_mut(place as usize) {
            Some(free) => *free = Some(registration),
            None => self.places.push(Some(registration)),
        }
        Ok(Some(place))
    }

    /// The place of a client, which it gets with its first registration.
    fn owner(&mut self, client: Client) -> u32 {
        if let Some(&owner) = self.clients.get(&client) {
            return owner;
        }
        let new = Owner { places: HashMap::with_hasher(self.key), has_left: false };
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
        self.clients.insert(client, owner);
        owner
    }

    /// The place of a client's registration.
    pub(crate) fn find(&self, client: Client, id: RegistrationId) -> Option<u32> {
        let owner = *self.clients.get(&client)?;
        let place = *self.owners[owner as usize].places.get(&id.number)?;
        self.get(place).filter(|registration| registration.id == id).map(|_| place)
    }

    /// Passes a registration on from one owner in a shard to another. Returns whether it was there.
    fn pass_on(&mut self, from: Client, to: Client, id: RegistrationId) -> bool {
        let Some(place) = self.find(from, id) else { return false };
        self.release(from, id.number);
        let owner = self.owner(to);
        self.owners[owner as usize].places.insert(id.number, place);
        if let Some(registration) = self.places[place as usize].as_mut() {
            (registration.client, registration.owner) = (to, owner);
        }
        true
    }

    /// Several connections of the shard are subscribed now, of which `client` was the first. Returns whether the
    /// registration was there.
    pub(crate) fn share(&mut self, client: Client, id: RegistrationId) -> bool {
        self.pass_on(client, shared(client.shard), id)
    }

    /// `client` is the only connection of its shard that is subscribed still.
    pub(crate) fn unshare(&mut self, client: Client, id: RegistrationId) {
        self.pass_on(shared(client.shard), client, id);
    }

    /// Takes a registration out of its client's list.
    fn release(&mut self, client: Client, number: u32) {
        let Some(&owner) = self.clients.get(&client) else { return };
        let places = &mut self.owners[owner as usize].places;
        places.remove(&number);
        if places.is_empty() {
            self.clients.remove(&client);
            self.free_owners.push(owner);
        }
    }

    /// Removes a registration of a client that is there.
    pub(crate) fn remove(&mut self, interest: &mut Interest, place: u32) -> Option<Removed> {
        let &Registration { client, id, .. } = self.get(place)?;
        let Registration { filter, streams, .. } = self.take(interest, place)?;
        self.release(client, id.number);
        Some(Removed { filter, streams })
    }

    /// Takes a registration out of everything but its client's list.
    fn take(&mut self, interest: &mut Interest, place: u32) -> Option<Registration> {
        let registration = self.places.get_mut(place as usize)?.take()?;
        self.free.push(place);
        self.tokens -= tokens(&registration.filter);
        if let Some(queue) = registration.queue {
            self.part(queue);
        }
        if let Some((filter, entry)) = checked(&registration.filter).zip(registration.entry) {
            interest.remove(filter, entry);
        }
        Some(registration)
    }

    /// A client has left: what it alone was subscribed to counts no longer. It is removed by
    /// [`examine_left`](Self::examine_left).
    pub(crate) fn leave(&mut self, client: Client) {
        let Some(owner) = self.clients.remove(&client) else { return };
        let of_client = &mut self.owners[owner as usize];
        of_client.has_left = true;
        let places = std::mem::replace(&mut of_client.places, HashMap::with_hasher(self.key));
        self.left_count += places.len();
        self.left.push_back(Left { owner, places: places.into_iter() });
    }

    /// Looks at the next registration of the client that left first, and removes it unless it was removed already.
    pub(crate) fn examine_left(&mut self, interest: &mut Interest) -> Option<Removed> {
        let left = self.left.front_mut()?;
        let next = left.places.next();
        if left.places.len() == 0 {
            self.free_owners.push(left.owner);
            self.left.pop_front();
        }
        // Its place may be another client's by now.
        self.remove_if_left(interest, next?.1)
    }

    /// Removes a registration if its client has left.
    pub(crate) fn remove_if_left(&mut self, interest: &mut Interest, place: u32) -> Option<Removed> {
        let owner = self.places.get(place as usize)?.as_ref()?.owner;
        if !self.owners[owner as usize].has_left {
            return None;
        }
        self.left_count -= 1;
        let Registration { filter, streams, .. } = self.take(interest, place)?;
        Some(Removed { filter, streams })
    }

    /// Whose turn it is among `members` of a queue.
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
                let queue = self.free_groups.pop().unwrap_or(self.groups.len() as u32);
                let group = Group { name: name.into(), ..Group::default() };
                match self.groups.get_mut(queue as usize) {
                    Some(place) => *place = group,
                    None => self.groups.push(group),
                }
                self.queues.insert(name.into(), queue);
                queue
            }
        };
        self.groups[queue as usize].members += 1;
        queue
    }

    fn part(&mut self, queue: u32) {
        let Some(group) = self.groups.get_mut(queue as usize) else { return };
        group.members -= 1;
        if group.members == 0 {
            let Group { name, .. } = std::mem::take(group);
            self.queues.remove(&name);
            self.free_groups.push(queue);
        }
    }
}

/// The owner of what several connections of a shard are subscribed to.
pub(crate) const fn shared(shard: u32) -> Client {
    Client { shard, token: SHARED }
}

/// How many tokens a filter has.
pub(crate) fn tokens(filter: &[u8]) -> usize {
    filter.iter().filter(|&&byte| byte == b'.').count() + 1
}

/// What came through a codec once is a filter.
pub(crate) fn checked(filter: &[u8]) -> Option<Filter<'_>> {
    Filter::parse(filter, &SubjectLimits { size_max: u16::MAX, tokens_max: u16::MAX }).ok()
}

/// Whether some subject is taken by both filters, which are not checked again.
pub(crate) fn overlap(one: &[u8], other: &[u8]) -> bool {
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
    fn filters_overlap_where_a_subject_is_taken_by_both() {
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
            assert!(subject.is_none_or(|subject| filter.takes(subject) == expected), "{one} {other}");
            assert_eq!(overlap(a, b), expected, "{one} {other}");
            assert_eq!(overlap(b, a), expected, "{other} {one}");
        }
    }

    const ALICE: Client = Client { shard: 0, token: 1 };

    fn id(number: u32) -> RegistrationId {
        RegistrationId { number, serial: 7 }
    }

    #[test]
    fn a_client_leaves_nothing_behind() {
        let key = HashKey(1, 2);
        let (mut interest, mut all) = (Interest::new(key), Registrations::new(key));
        assert_eq!(all.add(&mut interest, ALICE, id(1), (b"a.>", b"q")), Ok(Some(0)));
        assert_eq!(all.add(&mut interest, ALICE, id(1), (b"b", b"")), Ok(None), "it is there");
        assert_eq!(all.add(&mut interest, ALICE, id(2), (b"b", b"q")), Ok(Some(1)));
        assert_eq!(all.len(), 2);
        let removed =
            |filter: &[u8]| Some(Removed { filter: filter.into(), streams: ConcernedStreams::None });
        assert_eq!(all.remove(&mut interest, 0), removed(b"a.>"));
        all.leave(ALICE);
        assert_eq!((all.len(), all.find(ALICE, id(2))), (0, None), "at once");
        assert!(all.get(1).is_none() && all.remove(&mut interest, 1).is_none(), "at once");
        assert_eq!(all.examine_left(&mut interest), removed(b"b"));
        assert_eq!((all.examine_left(&mut interest), all.has_left()), (None, false));
        assert_eq!((all.clients.len(), all.queues.len(), all.tokens), (0, 0, 0));
        assert_eq!(all.free_owners.len(), all.owners.len());
        let mut found = Vec::new();
        interest.find(b"a.b", &mut found);
        assert!(found.is_empty());
    }

    #[test]
    fn what_is_shared_outlives_the_connection_that_was_the_first() {
        let key = HashKey(1, 2);
        let (mut interest, mut all) = (Interest::new(key), Registrations::new(key));
        let bob = Client { token: 2, ..ALICE };
        assert!(!all.share(ALICE, id(1)), "it is not there");
        assert_eq!(all.add(&mut interest, ALICE, id(1), (b"a", b"")), Ok(Some(0)));
        assert!(all.share(ALICE, id(1)) && !all.share(ALICE, id(1)));
        all.leave(ALICE);
        let listener = Listener::Shared { shard: 0, id: id(1) };
        assert_eq!(all.get(0).map(Registration::listener), Some(listener));
        assert_eq!(all.find(shared(0), RegistrationId { serial: 8, ..id(1) }), None, "another one");
        all.unshare(bob, id(1));
        assert_eq!(all.get(0).and_then(Registration::single), Some(bob));
        all.leave(bob);
        assert!(all.get(0).is_none() && all.examine_left(&mut interest).is_some());
        assert_eq!((all.len(), all.clients.len(), all.free_owners.len()), (0, 0, all.owners.len()));
    }
}
