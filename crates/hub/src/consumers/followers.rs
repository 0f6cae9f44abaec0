//! Caught-up consumers of one stream, indexed by filter: a record visits only the consumers that match it.
//!
//! A record does not update followers that it does not match, so a follower's position is the later of its own and that
//! of the index ([`Followers::position`]).

use stilling_wire::nats::Filter;

use crate::filter_tree::{FilterHandle, FilterTree};
use crate::hash_key::HashKey;
use crate::registrations::checked;

#[derive(Debug)]
pub(crate) struct Followers {
    interest: FilterTree,
    count: usize,
    /// Every record before this sequence has been offered to all followers.
    next: u64,
}

impl Followers {
    pub(crate) fn new(key: HashKey) -> Followers {
        Followers { interest: FilterTree::new(key), count: 0, next: 1 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a consumer with its checked filters; empty means everything.
    pub(crate) fn insert(&mut self, filters: &[Box<[u8]>], number: u32) -> Vec<FilterHandle> {
        self.count += 1;
        each(filters).map(|filter| self.interest.insert(filter, number)).collect()
    }

    /// Removes a consumer; `entries` are the handles that [`insert`](Self::insert) returned for these filters.
    pub(crate) fn remove(&mut self, filters: &[Box<[u8]>], entries: &[FilterHandle]) {
        self.count -= 1;
        for (filter, &entry) in each(filters).zip(entries) {
            self.interest.remove(filter, entry);
        }
    }

    /// Appends the consumers that match a subject, ascending and each once.
    pub(crate) fn find(&self, subject: &[u8], into: &mut Vec<u32>) {
        self.interest.find(subject, into);
        // Several filters of a consumer may match.
        into.sort_unstable();
        into.dedup();
    }

    /// Returns the next sequence of a follower with the position `own`.
    pub(crate) fn position(&self, own: Option<u64>) -> Option<u64> {
        own.map(|own| own.max(self.next))
    }

    pub(crate) fn has_unoffered_before(&self, sequence: u64) -> bool {
        self.next < sequence
    }

    pub(crate) fn advance(&mut self, sequence: u64) {
        self.next = self.next.max(sequence + 1);
    }
}

fn each(filters: &[Box<[u8]>]) -> impl Iterator<Item = Filter<'_>> {
    let everything = filters.is_empty().then_some(&b">"[..]);
    filters.iter().map(|filter| &**filter).chain(everything).filter_map(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filters(texts: &[&str]) -> Vec<Box<[u8]>> {
        texts.iter().map(|text| text.as_bytes().into()).collect()
    }

    #[test]
    fn a_record_finds_each_consumer_that_wants_it_once() {
        let mut followers = Followers::new(HashKey(1, 2));
        let lists = [filters(&["a.*", "a.>", "b"]), filters(&[]), filters(&["b"])];
        let entries: Vec<_> =
            (0..).zip(&lists).map(|(number, list)| followers.insert(list, number)).collect();
        let found = |followers: &Followers, subject: &str| {
            let mut into = Vec::new();
            followers.find(subject.as_bytes(), &mut into);
            into
        };
        assert_eq!(found(&followers, "a.x"), [0, 1]);
        assert_eq!(found(&followers, "b"), [0, 1, 2]);
        assert_eq!(found(&followers, "c"), [1]);
        followers.remove(&lists[1], &entries[1]);
        assert!(found(&followers, "c").is_empty());
        followers.remove(&lists[0], &entries[0]);
        followers.remove(&lists[2], &entries[2]);
        assert!(found(&followers, "b").is_empty());
        assert!(followers.is_empty());
    }

    #[test]
    fn a_follower_is_behind_what_was_offered_to_all() {
        let mut followers = Followers::new(HashKey(1, 2));
        assert_eq!((followers.position(Some(4)), followers.position(None)), (Some(4), None));
        followers.advance(6);
        followers.advance(5);
        assert_eq!((followers.position(Some(4)), followers.position(Some(9))), (Some(7), Some(9)));
        assert!(followers.has_unoffered_before(8) && !followers.has_unoffered_before(7));
    }
}
