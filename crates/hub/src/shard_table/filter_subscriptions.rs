//! The subscriptions to one filter, ordered by age, and their connections.

use std::collections::HashMap;

use super::ReportedSubscribers;
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
    /// Number of active subscriptions per connection.
    clients: HashMap<u64, u32, HashKey>,
}

const REMOVED_SLOT: u32 = u32::MAX;

/// Minimum number of removed slots for a compaction.
const COMPACTION_MIN: usize = 16;

impl FilterSubscriptions {
    /// Adds the latest subscription, of connection `token`.
    pub(super) fn add(&mut self, age: u64, slot: u32, token: u64, key: HashKey) {
        if let FilterSubscriptions::One { age, slot, token, has_ended } = *self {
            let mut clients = HashMap::with_hasher(key);
            if !has_ended {
                clients.insert(token, 1);
            }
            *self = FilterSubscriptions::Many(Box::new(SubscriptionList {
                members: vec![(age, slot)],
                removed_count: 0,
                clients,
            }));
        }
        match self {
            FilterSubscriptions::Many(list) => {
                list.members.push((age, slot));
                *list.clients.entry(token).or_insert(0) += 1;
            }
            FilterSubscriptions::None | FilterSubscriptions::One { .. } => {
                *self = FilterSubscriptions::One { age, slot, token, has_ended: false };
            }
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

    pub(super) fn remove(&mut self, age: u64) {
        match self {
            FilterSubscriptions::None => {}
            FilterSubscriptions::One { .. } => *self = FilterSubscriptions::None,
            FilterSubscriptions::Many(list) => {
                list.remove(age);
                if list.removed_count == list.members.len() {
                    *self = FilterSubscriptions::None;
                }
            }
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
            FilterSubscriptions::Many(list) => match list.clients.keys().next() {
                Some(token) if list.clients.len() == 1 => ReportedSubscribers::One(*token),
                Some(_) => ReportedSubscribers::Many,
                None => ReportedSubscribers::None,
            },
        }
    }

    /// Returns age and slot of the subscriptions from `age` on.
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

    fn end(&mut self, token: u64) {
        if let Some(count) = self.clients.get_mut(&token) {
            *count -= 1;
            if *count == 0 {
                self.clients.remove(&token);
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: HashKey = HashKey(1, 2);

    fn slots(members: &FilterSubscriptions, from: u64) -> Vec<u32> {
        members.from(from).map(|(_, slot)| slot).collect()
    }

    fn remove(members: &mut FilterSubscriptions, age: u64, token: u64) {
        members.end(token);
        members.remove(age);
    }

    #[test]
    fn members_stay_ordered_by_age_after_removals() {
        let mut members = FilterSubscriptions::default();
        assert!(members.is_empty() && slots(&members, 0).is_empty());
        for number in 0..100_u32 {
            members.add(u64::from(number) + 1, number, u64::from(number % 3), KEY);
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
        members.add(1, 7, 5, KEY);
        members.end(5);
        assert_eq!(
            (members.clients(), slots(&members, 0), members.only()),
            (ReportedSubscribers::None, vec![7], Some(1))
        );
        members.add(2, 8, 6, KEY);
        assert_eq!(
            (members.clients(), slots(&members, 0), members.only()),
            (ReportedSubscribers::One(6), vec![7, 8], None)
        );
        members.end(6);
        members.remove(1);
        assert_eq!((members.clients(), slots(&members, 0)), (ReportedSubscribers::None, vec![8]));
        members.remove(2);
        assert!(members.is_empty());
    }

    #[test]
    fn several_subscriptions_of_one_connection_are_one_to_the_hub() {
        let mut members = FilterSubscriptions::default();
        members.add(1, 7, 5, KEY);
        assert_eq!(
            (members.clients(), slots(&members, 0), slots(&members, 2)),
            (ReportedSubscribers::One(5), vec![7], vec![])
        );
        members.add(2, 8, 5, KEY);
        assert_eq!(members.clients(), ReportedSubscribers::One(5));
        members.add(3, 9, 6, KEY);
        assert_eq!(members.clients(), ReportedSubscribers::Many);
        remove(&mut members, 3, 6);
        remove(&mut members, 1, 5);
        assert_eq!((members.clients(), slots(&members, 0)), (ReportedSubscribers::One(5), vec![8]));
        remove(&mut members, 2, 5);
        assert!(members.is_empty());
    }
}
