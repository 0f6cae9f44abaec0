//! Cache of the matches of a client's recent subject, to avoid a filter tree lookup per message.
//!
//! A publisher often sends many messages to one subject. Its acknowledgements go to `_INBOX.<own>.<number>`, where all
//! subjects have the same matches unless a filter names the last token; a separate cache stores such subjects without
//! their last token. Inserting or removing any filter invalidates all entries.

use crate::publication_batch::ClientId;

/// Cache entries. Clients whose ids map to the same entry replace each other's.
const SLOTS: usize = 64;

const SUBJECT_SIZE: usize = 64;

/// Maximum streams and subscriptions that match a cached subject.
const MATCHES_MAX: usize = 2;

#[derive(Debug)]
pub(crate) struct MatchCache {
    slots: Box<[CacheSlot; SLOTS]>,
}

#[derive(Clone, Copy, Debug)]
struct CacheSlot {
    /// Version of the filters at insertion.
    version: u64,
    subject: [u8; SUBJECT_SIZE],
    size: usize,
    matches: [u32; MATCHES_MAX],
    count: usize,
}

impl MatchCache {
    pub(crate) fn new() -> MatchCache {
        let empty = CacheSlot {
            version: 0,
            subject: [0; SUBJECT_SIZE],
            size: 0,
            matches: [0; MATCHES_MAX],
            count: 0,
        };
        MatchCache { slots: Box::new([empty; SLOTS]) }
    }

    /// Returns the cached matches of a subject for this version of the filters.
    #[inline]
    pub(crate) fn get(&self, client: ClientId, subject: &[u8], version: u64) -> Option<&[u32]> {
        let slot = &self.slots[slot_of(client)];
        let is_known = slot.version == version && slot.subject[..slot.size] == *subject;
        is_known.then_some(&slot.matches[..slot.count])
    }

    /// Caches the matches if subject and list are short. No version is 0.
    pub(crate) fn put(&mut self, client: ClientId, subject: &[u8], version: u64, matches: &[u32]) {
        if subject.len() > SUBJECT_SIZE || matches.len() > MATCHES_MAX {
            return;
        }
        let slot = &mut self.slots[slot_of(client)];
        slot.version = version;
        (slot.size, slot.count) = (subject.len(), matches.len());
        slot.subject[..subject.len()].copy_from_slice(subject);
        slot.matches[..matches.len()].copy_from_slice(matches);
    }
}

fn slot_of(ClientId { shard, token }: ClientId) -> usize {
    // A token has an index in one half and a generation in the other.
    let mixed = token ^ (token >> 32);
    mixed.wrapping_add(u64::from(shard) * 29) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: ClientId = ClientId { shard: 0, token: 1 };

    #[test]
    fn what_was_found_is_known_until_a_filter_changes() {
        let mut cache = MatchCache::new();
        assert_eq!(cache.get(ALICE, b"", 1), None);
        cache.put(ALICE, b"inbox.1", 1, &[7]);
        assert_eq!(cache.get(ALICE, b"inbox.1", 1), Some(&[7][..]));
        assert_eq!((cache.get(ALICE, b"inbox.2", 1), cache.get(ALICE, b"inbox", 1)), (None, None));
        assert_eq!(cache.get(ALICE, b"inbox.1", 2), None);
        assert_eq!(cache.get(ClientId { token: 2, ..ALICE }, b"inbox.1", 1), None);
        cache.put(ALICE, b"inbox.2", 2, &[]);
        assert_eq!(cache.get(ALICE, b"inbox.2", 2), Some(&[][..]), "that nothing takes it is known, too");
    }

    #[test]
    fn what_is_too_long_is_not_remembered() {
        let mut cache = MatchCache::new();
        let long = [b'x'; SUBJECT_SIZE + 1];
        cache.put(ALICE, &long, 1, &[7]);
        cache.put(ALICE, b"inbox", 1, &[7; MATCHES_MAX + 1]);
        assert_eq!((cache.get(ALICE, &long, 1), cache.get(ALICE, b"inbox", 1)), (None, None));
        cache.put(ALICE, &long[1..], 1, &[7; MATCHES_MAX]);
        assert_eq!(cache.get(ALICE, &long[1..], 1), Some(&[7; MATCHES_MAX][..]));
    }
}
