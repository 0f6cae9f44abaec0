//! The table of subscriptions: by number, by client and sid, and whose turn it is in a queue.
//!
//! A client that leaves may have ten thousand subscriptions. They stop counting at once and are removed some at a time
//! ([`Subscriptions::examine_left`]), so that no turn of the hub is long because of them.

use std::collections::hash_map::{self, Entry};
use std::collections::{HashMap, VecDeque};

use stilling_wire::nats::{Filter, SubjectLimits};

use crate::intake::{Client, Traits};
use crate::interest::{self, Interest};
use crate::key::HashKey;
use crate::limits::{FILTER_TOKENS_MAX, FILTER_TOKENS_PER_CLIENT_MAX, SUBSCRIPTIONS_MAX};

/// A subscription's number; in the interest's tree, those from here on are streams.
pub(crate) const STREAMS: u32 = 1 << 31;

#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) client: Client,
    traits: Traits,
    sid: Box<[u8]>,
    filter: Box<[u8]>,
    /// Its filter in the tree.
    entry: Option<interest::Entry>,
    /// The place of its client.
    owner: u32,
    /// The streams whose subjects its filter may take.
    pub(crate) streams: ConcernedStreams,
    /// The queue's number.
    pub(crate) queue: Option<u32>,
    pub(crate) delivered: u64,
    /// It ends after so many messages.
    pub(crate) ends_after: Option<u32>,
    /// Tells it from others that had or will have its number.
    serial: u32,
}

/// A subscription that may be gone when it is looked up, and its number another's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SubscriptionId {
    pub(crate) number: u32,
    serial: u32,
}

/// A subscription as it is sent messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recipient<'a> {
    pub(crate) client: Client,
    pub(crate) sid: &'a [u8],
    /// Headers are left out otherwise.
    pub(crate) takes_headers: bool,
}

impl Subscription {
    /// What names the subscription `number`, this one, also when that is another's.
    #[inline]
    pub(crate) fn id(&self, number: u32) -> SubscriptionId {
        SubscriptionId { number, serial: self.serial }
    }

    /// The subscription as it is sent messages.
    #[inline]
    pub(crate) fn recipient(&self) -> Recipient<'_> {
        Recipient { client: self.client, sid: &self.sid, takes_headers: self.traits.headers }
    }

    /// Counts a message that was sent. Returns whether it was the last one.
    #[inline]
    pub(crate) fn count_delivery(&mut self) -> bool {
        self.delivered += 1;
        self.ends_after.is_some_and(|after| self.delivered >= u64::from(after))
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

/// A subscription that was removed.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Removed {
    pub(crate) filter: Box<[u8]>,
    pub(crate) streams: ConcernedStreams,
}

/// Why there is no more room for a subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TooMany {
    OfClient,
    InAll,
}

/// All subscriptions of all clients.
#[derive(Debug)]
pub(crate) struct Subscriptions {
    key: HashKey,
    per_client_max: usize,
    places: Vec<Option<Subscription>>,
    free: Vec<u32>,
    /// Of the newest subscription. Nothing waits for as long as it takes to come round.
    serial: u32,
    clients: HashMap<Client, u32, HashKey>,
    owners: Vec<Owner>,
    free_owners: Vec<u32>,
    /// Clients that have left, and their subscriptions that are not removed yet.
    left: VecDeque<Left>,
    left_count: usize,
    /// Tokens of all filters.
    tokens: usize,
    queues: HashMap<Box<[u8]>, u32, HashKey>,
    /// How many subscriptions a queue has, its name, and its turn.
    groups: Vec<Group>,
    free_groups: Vec<u32>,
}

/// A client with subscriptions.
#[derive(Debug)]
struct Owner {
    sids: HashMap<Box<[u8]>, u32, HashKey>,
    /// Tokens of its filters.
    tokens: usize,
    /// Its subscriptions count no longer.
    has_left: bool,
}

#[derive(Debug)]
struct Left {
    owner: u32,
    sids: hash_map::IntoIter<Box<[u8]>, u32>,
}

#[derive(Debug, Default)]
struct Group {
    name: Box<[u8]>,
    members: u32,
    turn: u32,
}

impl Subscriptions {
    pub(crate) fn new(key: HashKey, per_client_max: usize) -> Subscriptions {
        Subscriptions {
            key,
            per_client_max,
            places: Vec::new(),
            free: Vec::new(),
            serial: 0,
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

    /// Subscriptions of clients that are there.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len() - self.left_count
    }

    /// Whether subscriptions of clients that have left are to be removed.
    pub(crate) fn has_left(&self) -> bool {
        !self.left.is_empty()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut Subscription> {
        let subscription = self.places.get_mut(id as usize)?.as_mut()?;
        let is_there = self.left.is_empty() || !self.owners[subscription.owner as usize].has_left;
        is_there.then_some(subscription)
    }

    /// The very subscription, unless it is gone.
    pub(crate) fn get_exact_mut(&mut self, id: SubscriptionId) -> Option<&mut Subscription> {
        self.get_mut(id.number).filter(|subscription| subscription.serial == id.serial)
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&Subscription> {
        let subscription = self.places.get(id as usize)?.as_ref()?;
        let is_there = self.left.is_empty() || !self.owners[subscription.owner as usize].has_left;
        is_there.then_some(subscription)
    }

    fn is_full(&self, tokens: usize) -> bool {
        self.len() + self.left_count >= SUBSCRIPTIONS_MAX || self.tokens + tokens > FILTER_TOKENS_MAX
    }

    /// Whether one more with this filter fits as soon as some of the clients that have left are removed.
    pub(crate) fn waits_for_left(&self, filter: &[u8]) -> bool {
        self.has_left() && self.is_full(tokens(filter))
    }

    /// Adds a subscription. One whose sid the client uses already is left as it is, as nats-server does.
    pub(crate) fn add(
        &mut self,
        interest: &mut Interest,
        client: Client,
        traits: Traits,
        (filter, queue, sid): (&[u8], &[u8], &[u8]),
    ) -> Result<Option<u32>, TooMany> {
        let tokens = tokens(filter);
        if self.is_full(tokens) {
            return Err(TooMany::InAll);
        }
        let owner = self.owner(client);
        let of_client = &mut self.owners[owner as usize];
        if of_client.sids.len() >= self.per_client_max
            || of_client.tokens + tokens > FILTER_TOKENS_PER_CLIENT_MAX
        {
            return Err(TooMany::OfClient);
        }
        let Entry::Vacant(place) = of_client.sids.entry(sid.into()) else { return Ok(None) };
        of_client.tokens += tokens;
        self.tokens += tokens;
        let id = self.free.pop().unwrap_or(self.places.len() as u32);
        place.insert(id);
        let queue = (!queue.is_empty()).then(|| self.join(queue));
        self.serial = self.serial.wrapping_add(1);
        let subscription = Subscription {
            client,
            traits,
            sid: sid.into(),
            filter: filter.into(),
            entry: checked(filter).map(|filter| interest.insert(filter, id)),
            owner,
            streams: ConcernedStreams::None,
            queue,
            delivered: 0,
            ends_after: None,
            serial: self.serial,
        };
        match self.places.get_mut(id as usize) {
            Some(place) => *place = Some(subscription),
            None => self.places.push(Some(subscription)),
        }
        Ok(Some(id))
    }

    /// The place of a client, which it gets with its first subscription.
    fn owner(&mut self, client: Client) -> u32 {
        if let Some(&owner) = self.clients.get(&client) {
            return owner;
        }
        let new = Owner { sids: HashMap::with_hasher(self.key), tokens: 0, has_left: false };
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

    /// The number of a client's subscription.
    pub(crate) fn find(&self, client: Client, sid: &[u8]) -> Option<u32> {
        let owner = *self.clients.get(&client)?;
        self.owners[owner as usize].sids.get(sid).copied()
    }

    /// Removes a subscription of a client that is there.
    pub(crate) fn remove(&mut self, interest: &mut Interest, id: u32) -> Option<Removed> {
        let Subscription { client, owner, .. } = *self.get(id)?;
        let removed = self.take(interest, id)?;
        let of_client = &mut self.owners[owner as usize];
        of_client.sids.remove(&removed.sid);
        of_client.tokens -= tokens(&removed.filter);
        if of_client.sids.is_empty() {
            self.clients.remove(&client);
            self.free_owners.push(owner);
        }
        Some(Removed { filter: removed.filter, streams: removed.streams })
    }

    /// Takes a subscription out of everything but its client's list.
    fn take(&mut self, interest: &mut Interest, id: u32) -> Option<Subscription> {
        let subscription = self.places.get_mut(id as usize)?.take()?;
        self.free.push(id);
        self.tokens -= tokens(&subscription.filter);
        if let Some(queue) = subscription.queue {
            self.part(queue);
        }
        if let Some((filter, entry)) = checked(&subscription.filter).zip(subscription.entry) {
            interest.remove(filter, entry);
        }
        Some(subscription)
    }

    /// A client has left: from now on it has no subscriptions. They are removed by [`examine_left`](Self::examine_left).
    pub(crate) fn leave(&mut self, client: Client) {
        let Some(owner) = self.clients.remove(&client) else { return };
        let of_client = &mut self.owners[owner as usize];
        of_client.has_left = true;
        let sids = std::mem::replace(&mut of_client.sids, HashMap::with_hasher(self.key));
        self.left_count += sids.len();
        self.left.push_back(Left { owner, sids: sids.into_iter() });
    }

    /// Looks at the next subscription of the client that left first, and removes it unless it was removed already.
    pub(crate) fn examine_left(&mut self, interest: &mut Interest) -> Option<Removed> {
        let left = self.left.front_mut()?;
        let next = left.sids.next();
        if left.sids.len() == 0 {
            self.free_owners.push(left.owner);
            self.left.pop_front();
        }
        // Its number may be another client's by now.
        self.remove_if_left(interest, next?.1)
    }

    /// Removes a subscription if its client has left.
    pub(crate) fn remove_if_left(&mut self, interest: &mut Interest, id: u32) -> Option<Removed> {
        let owner = self.places.get(id as usize)?.as_ref()?.owner;
        if !self.owners[owner as usize].has_left {
            return None;
        }
        self.left_count -= 1;
        let Subscription { filter, streams, .. } = self.take(interest, id)?;
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

    #[test]
    fn a_client_has_as_many_tokens_as_it_may() {
        let key = HashKey(1, 2);
        let (mut interest, mut all) = (Interest::new(key), Subscriptions::new(key, usize::MAX));
        let (one, other) = (Client { shard: 0, token: 1 }, Client { shard: 0, token: 2 });
        let long = vec!["a"; 1000].join(".");
        let mut add = |client, sid: usize| {
            let sid = sid.to_string();
            all.add(&mut interest, client, Traits::default(), (long.as_bytes(), b"", sid.as_bytes()))
        };
        let most = FILTER_TOKENS_PER_CLIENT_MAX / 1000;
        for sid in 0..most {
            assert!(add(one, sid).is_ok());
        }
        assert_eq!(add(one, most), Err(TooMany::OfClient));
        assert!(add(other, 0).is_ok(), "another client's share");
        all.leave(one);
        for _ in 0..most {
            assert!(all.examine_left(&mut interest).is_some());
        }
        assert_eq!((all.tokens, all.examine_left(&mut interest)), (1000, None));
    }

    #[test]
    fn a_client_leaves_nothing_behind() {
        let key = HashKey(1, 2);
        let (mut interest, mut all) = (Interest::new(key), Subscriptions::new(key, 2));
        let client = Client { shard: 0, token: 1 };
        let traits = Traits::default();
        let first = all.add(&mut interest, client, traits, (b"a.>", b"q", b"1"));
        assert_eq!(first, Ok(Some(0)));
        assert_eq!(all.add(&mut interest, client, traits, (b"b", b"", b"1")), Ok(None), "the sid is in use");
        assert_eq!(all.add(&mut interest, client, traits, (b"b", b"q", b"2")), Ok(Some(1)));
        assert_eq!(all.add(&mut interest, client, traits, (b"b", b"", b"3")), Err(TooMany::OfClient));
        assert_eq!(all.len(), 2);
        let removed =
            |filter: &[u8]| Some(Removed { filter: filter.into(), streams: ConcernedStreams::None });
        assert_eq!(all.remove(&mut interest, 0), removed(b"a.>"));
        all.leave(client);
        assert_eq!((all.len(), all.find(client, b"2")), (0, None), "at once");
        assert!(all.get(1).is_none() && all.remove(&mut interest, 1).is_none(), "at once");
        assert_eq!(all.examine_left(&mut interest), removed(b"b"));
        assert_eq!((all.examine_left(&mut interest), all.has_left()), (None, false));
        assert_eq!((all.clients.len(), all.queues.len(), all.tokens), (0, 0, 0));
        assert_eq!(all.free_owners.len(), all.owners.len());
        let mut found = Vec::new();
        interest.find(b"a.b", &mut found);
        assert!(found.is_empty());
    }
}
