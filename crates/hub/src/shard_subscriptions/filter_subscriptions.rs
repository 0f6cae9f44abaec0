//! The subscriptions to one filter, ordered by age, their connections, and the feeds that some of them share.

use std::collections::HashMap;

use super::ReportedSubscribers;
use super::feeds::Encoding;
use crate::hash_key::HashKey;

/// Subscriptions by age and slot. Most filters have one.
#[derive(Debug, Default)]
pub(super) enum FilterSubscriptions {
    #[default]
    None,
    One {
        age: u64,
        slot: u32,
        token: u64,
        /// Ended; it still receives what the hub sent before its end.
        has_ended: bool,
    },
    Many(Box<SubscriptionList>),
}

#[derive(Debug)]
pub(super) struct SubscriptionList {
    /// Ascending by age. A removed slot is [`REMOVED_SLOT`] until the list is compacted.
    members: Vec<(u64, u32)>,
    removed_count: usize,
    /// Connections whose single subscription is in the list.
    single_clients: ClientCounter,
    /// Number of active subscriptions of each other connection.
    clients: HashMap<u64, u32, HashKey>,
    /// Number of subscriptions in feeds, which are not in `members`.
    shared: usize,
    feeds: Vec<u32>,
    /// Subscriptions that share a feed or may, by encoding.
    encodings: HashMap<Encoding, EncodingSharers, HashKey>,
}

/// Number of connections, without an entry for each.
#[derive(Default, Debug)]
struct ClientCounter {
    count: usize,
    /// Exclusive or of their tokens: the token of the only one.
    tokens: u64,
}

/// Subscriptions with one encoding: in a feed, or too few for one.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct EncodingSharers {
    pub(super) count: usize,
    pub(super) feed: Option<u32>,
}

const REMOVED_SLOT: u32 = u32::MAX;

/// Minimum number of removed slots for a compaction.
const COMPACTION_MIN: usize = 16;

impl FilterSubscriptions {
    /// Adds the latest subscription, of connection `token`. Before a connection gets a second one, to any filter, its
    /// single one is [counted in the table](Self::count_in_table).
    pub(super) fn add(&mut self, age: u64, slot: u32, (token, is_single): (u64, bool), key: HashKey) {
        if let FilterSubscriptions::One { age, slot, token, has_ended } = *self {
            let mut clients = HashMap::with_hasher(key);
            if !has_ended {
                clients.insert(token, 1);
            }
            *self = FilterSubscriptions::Many(Box::new(SubscriptionList {
                members: vec![(age, slot)],
                removed_count: 0,
                single_clients: ClientCounter::default(),
                clients,
                shared: 0,
                feeds: Vec::new(),
                encodings: HashMap::with_hasher(key),
            }));
        }
        match self {
            FilterSubscriptions::Many(list) => {
                list.members.push((age, slot));
                match is_single {
                    true => list.single_clients.add(token),
                    false => *list.clients.entry(token).or_insert(0) += 1,
                }
            }
            FilterSubscriptions::None | FilterSubscriptions::One { .. } => {
                *self = FilterSubscriptions::One { age, slot, token, has_ended: false };
            }
        }
    }

    /// Counts connection `token` in the table: its single subscription, in this list, is about to have company.
    pub(super) fn count_in_table(&mut self, token: u64) {
        if let FilterSubscriptions::Many(list) = self
            && !list.clients.contains_key(&token)
        {
            list.single_clients.remove(token);
            list.clients.insert(token, 1);
        }
    }

    /// Ends a subscription of connection `token`; its entry stays.
    pub(super) fn end(&mut self, token: u64) {
        match self {
            FilterSubscriptions::None => {}
            FilterSubscriptions::One { has_ended, .. } => *has_ended = true,
            FilterSubscriptions::Many(list) => list.end(token),
        }
    }

    /// Removes the subscription with this age, or one that was in a feed.
    pub(super) fn remove(&mut self, age: Option<u64>) {
        match self {
            FilterSubscriptions::None => {}
            FilterSubscriptions::One { .. } => *self = FilterSubscriptions::None,
            FilterSubscriptions::Many(list) => {
                match age {
                    Some(age) => list.remove(age),
                    None => list.shared -= 1,
                }
                if list.removed_count == list.members.len() && list.shared == 0 {
                    *self = FilterSubscriptions::None;
                }
            }
        }
    }

    pub(super) fn list_mut(&mut self) -> Option<&mut SubscriptionList> {
        match self {
            FilterSubscriptions::None | FilterSubscriptions::One { .. } => None,
            FilterSubscriptions::Many(list) => Some(list),
        }
    }

    /// Returns whether there are at least `sharers_min` subscriptions.
    pub(super) fn is_shareable(&self, sharers_min: usize) -> bool {
        match self {
            FilterSubscriptions::None | FilterSubscriptions::One { .. } => false,
            FilterSubscriptions::Many(list) => {
                list.shared + list.members.len() - list.removed_count >= sharers_min
            }
        }
    }

    pub(super) fn feeds(&self) -> &[u32] {
        match self {
            FilterSubscriptions::None | FilterSubscriptions::One { .. } => &[],
            FilterSubscriptions::Many(list) => &list.feeds,
        }
    }

    pub(super) fn only(&self) -> Option<u64> {
        match self {
            FilterSubscriptions::One { age, .. } => Some(*age),
            FilterSubscriptions::None | FilterSubscriptions::Many(_) => None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, FilterSubscriptions::None)
    }

    /// Returns the connections as reported to the hub.
    pub(super) fn clients(&self) -> ReportedSubscribers {
        match self {
            FilterSubscriptions::None => ReportedSubscribers::None,
            FilterSubscriptions::One { has_ended: true, .. } => ReportedSubscribers::None,
            FilterSubscriptions::One { token, .. } => ReportedSubscribers::One(*token),
            FilterSubscriptions::Many(list) => {
                match (list.single_clients.count + list.clients.len(), list.clients.keys().next()) {
                    (0, _) => ReportedSubscribers::None,
                    (1, Some(token)) => ReportedSubscribers::One(*token),
                    (1, None) => ReportedSubscribers::One(list.single_clients.tokens),
                    _ => ReportedSubscribers::Many,
                }
            }
        }
    }

    /// Returns age and slot of the subscriptions from `age` on, but for those in feeds.
    pub(super) fn from(&self, age: u64) -> impl Iterator<Item = (u64, u32)> {
        let one = match self {
            FilterSubscriptions::One { age: own, slot, .. } if *own >= age => Some((*own, *slot)),
            FilterSubscriptions::None | FilterSubscriptions::One { .. } | FilterSubscriptions::Many(_) => {
                None
            }
        };
        let list = match self {
            FilterSubscriptions::Many(list) => list.from(age),
            FilterSubscriptions::None | FilterSubscriptions::One { .. } => &[],
        };
        one.into_iter().chain(list.iter().copied().filter(|(_, slot)| *slot != REMOVED_SLOT))
    }
}

impl SubscriptionList {
    fn from(&self, age: u64) -> &[(u64, u32)] {
        // The usual start at 0 needs no search.
        let start = if age == 0 { 0 } else { self.members.partition_point(|(own, _)| *own < age) };
        &self.members[start..]
    }

    /// Returns whether a connection has several active subscriptions in the list.
    pub(super) fn has_several_of(&self, token: u64) -> bool {
        self.clients.get(&token).is_some_and(|count| *count > 1)
    }

    /// Counts a subscription that may share a feed.
    pub(super) fn count_sharer(&mut self, encoding: Encoding) {
        self.encodings.entry(encoding).or_default().count += 1;
    }

    pub(super) fn sharers(&self, encoding: &Encoding) -> EncodingSharers {
        self.encodings.get(encoding).copied().unwrap_or_default()
    }

    /// Counts a subscription no longer. If none remains of its encoding, removes the feed from the list and returns it.
    pub(super) fn uncount_sharer(&mut self, encoding: &Encoding) -> Option<u32> {
        let sharers = self.encodings.get_mut(encoding)?;
        sharers.count -= 1;
        if sharers.count > 0 {
            return None;
        }
        let feed = sharers.feed;
        self.encodings.remove(encoding);
        self.feeds.retain(|own| Some(*own) != feed);
        feed
    }

    pub(super) fn add_feed(&mut self, encoding: &Encoding, feed: u32) {
        if let Some(sharers) = self.encodings.get_mut(encoding) {
            sharers.feed = Some(feed);
            self.feeds.push(feed);
        }
    }

    /// Moves the subscription with this age into a feed.
    pub(super) fn move_into_feed(&mut self, age: u64) {
        self.remove(age);
        self.shared += 1;
    }

    /// Moves a subscription out of its feed, as the latest one.
    pub(super) fn move_out_of_feed(&mut self, age: u64, slot: u32) {
        self.members.push((age, slot));
        self.shared -= 1;
    }

    fn end(&mut self, token: u64) {
        match self.clients.get_mut(&token) {
            None => self.single_clients.remove(token),
            Some(1) => {
                self.clients.remove(&token);
            }
            Some(count) => *count -= 1,
        }
    }

    fn remove(&mut self, age: u64) {
        if let Ok(at) = self.members.binary_search_by_key(&age, |(own, _)| *own) {
            self.members[at].1 = REMOVED_SLOT;
            self.removed_count += 1;
        }
        if self.removed_count > COMPACTION_MIN && self.removed_count > self.members.len() / 2 {
            self.members.retain(|(_, slot)| *slot != REMOVED_SLOT);
            self.members.shrink_to(2 * self.members.len());
            self.removed_count = 0;
        }
    }
}

impl ClientCounter {
    fn add(&mut self, token: u64) {
        self.count += 1;
        self.tokens ^= token;
    }

    fn remove(&mut self, token: u64) {
        debug_assert!(self.count > 0, "connection {token} is not counted");
        self.count = self.count.saturating_sub(1);
        self.tokens ^= token;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: HashKey = HashKey(1, 2);

    fn slots(members: &FilterSubscriptions, from: u64) -> Vec<u32> {
        members.from(from).map(|(_, slot)| slot).collect()
    }

    fn remove(members: &mut FilterSubscriptions, age: u64, token: u64) {
        members.end(token);
        members.remove(Some(age));
    }

    #[test]
    fn members_stay_ordered_by_age_after_removals() {
        let mut members = FilterSubscriptions::default();
        assert!(members.is_empty() && slots(&members, 0).is_empty());
        for number in 0..100_u32 {
            members.add(u64::from(number) + 1, number, (u64::from(number % 3), false), KEY);
        }
        assert_eq!(members.clients(), ReportedSubscribers::Many);
        assert_eq!(slots(&members, 99), [98, 99]);
        for number in (0..100_u32).filter(|number| number % 3 != 1) {
            remove(&mut members, u64::from(number) + 1, u64::from(number % 3));
        }
        let expected: Vec<_> = (0..100).filter(|number| number % 3 == 1).collect();
        assert_eq!((slots(&members, 0), members.clients()), (expected, ReportedSubscribers::One(1)));
        assert_eq!(slots(&members, 96), [97], "the rest of a message that was begun");
        for number in (0..100_u32).filter(|number| number % 3 == 1) {
            remove(&mut members, u64::from(number) + 1, 1);
        }
        assert!(members.is_empty() && members.clients() == ReportedSubscribers::None);
    }

    #[test]
    fn one_that_has_ended_stays_until_it_is_removed() {
        let mut members = FilterSubscriptions::default();
        members.add(1, 7, (5, false), KEY);
        members.end(5);
        assert_eq!(
            (members.clients(), slots(&members, 0), members.only()),
            (ReportedSubscribers::None, vec![7], Some(1))
        );
        members.add(2, 8, (6, false), KEY);
        assert_eq!(
            (members.clients(), slots(&members, 0), members.only()),
            (ReportedSubscribers::One(6), vec![7, 8], None)
        );
        members.end(6);
        members.remove(Some(1));
        assert_eq!((members.clients(), slots(&members, 0)), (ReportedSubscribers::None, vec![8]));
        members.remove(Some(2));
        assert!(members.is_empty());
    }

    #[test]
    fn several_subscriptions_of_one_connection_are_one_to_the_hub() {
        let mut members = FilterSubscriptions::default();
        members.add(1, 7, (5, false), KEY);
        assert_eq!(
            (members.clients(), slots(&members, 0), slots(&members, 2)),
            (ReportedSubscribers::One(5), vec![7], vec![])
        );
        members.add(2, 8, (5, false), KEY);
        assert_eq!(members.clients(), ReportedSubscribers::One(5));
        members.add(3, 9, (6, false), KEY);
        assert_eq!(members.clients(), ReportedSubscribers::Many);
        remove(&mut members, 3, 6);
        remove(&mut members, 1, 5);
        assert_eq!((members.clients(), slots(&members, 0)), (ReportedSubscribers::One(5), vec![8]));
        remove(&mut members, 2, 5);
        assert!(members.is_empty());
    }

    #[test]
    fn connections_with_a_single_subscription_are_counted_without_an_entry() {
        let mut members = FilterSubscriptions::default();
        for token in 1..=100_u32 {
            members.add(token.into(), token, (token.into(), true), KEY);
        }
        let entries = |members: &mut FilterSubscriptions| members.list_mut().map(|list| list.clients.len());
        assert_eq!((entries(&mut members), members.clients()), (Some(1), ReportedSubscribers::Many));
        // One gets a second subscription to the same filter, and ends the first.
        members.count_in_table(50);
        members.count_in_table(50);
        members.add(101, 101, (50, false), KEY);
        assert!(members.list_mut().is_some_and(|list| list.has_several_of(50) && !list.has_several_of(51)));
        remove(&mut members, 50, 50);
        for token in (1..=100).filter(|token| ![50, 77].contains(token)) {
            remove(&mut members, token, token);
        }
        assert_eq!(members.clients(), ReportedSubscribers::Many);
        remove(&mut members, 101, 50);
        assert_eq!((entries(&mut members), members.clients()), (Some(0), ReportedSubscribers::One(77)));
        remove(&mut members, 77, 77);
        assert!(members.is_empty() && members.clients() == ReportedSubscribers::None);
    }
}
