//! Who is subscribed to what, by which name, and which subscription of a queue is next.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use stilling_wire::nats::{Filter, SubjectLimits};

use crate::intake::{Client, Traits};
use crate::interest::Interest;
use crate::key::HashKey;
use crate::limits::{FILTER_TOKENS_MAX, FILTER_TOKENS_PER_CLIENT_MAX, SUBSCRIPTIONS_MAX};

/// A subscription's number; in the interest's tree, those from here on are streams.
pub(crate) const STREAMS: u32 = 1 << 31;

#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) client: Client,
    pub(crate) traits: Traits,
    pub(crate) sid: Box<[u8]>,
    filter: Box<[u8]>,
    /// The queue's number.
    pub(crate) queue: Option<u32>,
    pub(crate) delivered: u64,
    /// It ends after so many messages.
    pub(crate) ends_after: Option<u32>,
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
    clients: HashMap<Client, OfClient, HashKey>,
    /// Tokens of all filters.
    tokens: usize,
    queues: HashMap<Box<[u8]>, u32, HashKey>,
    /// How many subscriptions a queue has, its name, and its turn.
    groups: Vec<Group>,
    free_groups: Vec<u32>,
}

#[derive(Debug)]
struct OfClient {
    sids: HashMap<Box<[u8]>, u32, HashKey>,
    /// Tokens of its filters.
    tokens: usize,
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
            clients: HashMap::with_hasher(key),
            tokens: 0,
            queues: HashMap::with_hasher(key),
            groups: Vec::new(),
            free_groups: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut Subscription> {
        self.places.get_mut(id as usize)?.as_mut()
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&Subscription> {
        self.places.get(id as usize)?.as_ref()
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
        if self.len() >= SUBSCRIPTIONS_MAX || self.tokens + tokens > FILTER_TOKENS_MAX {
            return Err(TooMany::InAll);
        }
        let new = || OfClient { sids: HashMap::with_hasher(self.key), tokens: 0 };
        let of_client = self.clients.entry(client).or_insert_with(new);
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
        let subscription = Subscription {
            client,
            traits,
            sid: sid.into(),
            filter: filter.into(),
            queue,
            delivered: 0,
            ends_after: None,
        };
        if let Some(filter) = checked(filter) {
            interest.insert(filter, id);
        }
        match self.places.get_mut(id as usize) {
            Some(place) => *place = Some(subscription),
            None => self.places.push(Some(subscription)),
        }
        Ok(Some(id))
    }

    /// The number of a client's subscription.
    pub(crate) fn find(&self, client: Client, sid: &[u8]) -> Option<u32> {
        self.clients.get(&client)?.sids.get(sid).copied()
    }

    /// Removes a subscription; returns its filter.
    pub(crate) fn remove(&mut self, interest: &mut Interest, id: u32) -> Option<Box<[u8]>> {
        let subscription = self.places.get_mut(id as usize)?.take()?;
        self.free.push(id);
        let tokens = tokens(&subscription.filter);
        self.tokens -= tokens;
        if let Some(of_client) = self.clients.get_mut(&subscription.client) {
            of_client.sids.remove(&subscription.sid);
            of_client.tokens -= tokens;
            if of_client.sids.is_empty() {
                self.clients.remove(&subscription.client);
            }
        }
        if let Some(queue) = subscription.queue {
            self.part(queue);
        }
        if let Some(filter) = checked(&subscription.filter) {
            interest.remove(filter, id);
        }
        Some(subscription.filter)
    }

    /// The numbers of all subscriptions of a client.
    pub(crate) fn of(&self, client: Client) -> Vec<u32> {
        let mut ids: Vec<u32> =
            self.clients.get(&client).map(|of| of.sids.values().copied().collect()).unwrap_or_default();
        // The table's order depends on its key.
        ids.sort_unstable();
        ids
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

fn tokens(filter: &[u8]) -> usize {
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
        for id in all.of(one) {
            assert!(all.remove(&mut interest, id).is_some());
        }
        assert_eq!(all.tokens, 1000);
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
        assert_eq!(all.of(client), [0, 1]);
        for id in all.of(client) {
            assert!(all.remove(&mut interest, id).is_some());
        }
        assert_eq!((all.len(), all.clients.len(), all.queues.len(), all.tokens), (0, 0, 0, 0));
        let mut found = Vec::new();
        interest.find(b"a.b", &mut found);
        assert!(found.is_empty());
    }
}
