//! The subscriptions of one connection by sid. Most connections have one, which needs no table.

use std::collections::{HashMap, hash_map};

use crate::hash_key::HashKey;
use crate::short_bytes::ShortBytes;

/// Slots of a connection's subscriptions, by sid.
#[derive(Debug, Default)]
pub(super) enum ClientSids {
    #[default]
    None,
    One(ShortBytes, u32),
    /// The connection has or had several.
    Many(Box<SidTable>),
}

#[derive(Debug)]
pub(super) struct SidTable(HashMap<ShortBytes, u32, HashKey>);

const _: () = assert!(size_of::<ClientSids>() == 24);

impl ClientSids {
    pub(super) fn len(&self) -> usize {
        match self {
            ClientSids::None => 0,
            ClientSids::One(..) => 1,
            ClientSids::Many(table) => table.0.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the connection has one subscription and has had no other at the same time.
    pub(super) fn is_single(&self) -> bool {
        matches!(self, ClientSids::One(..))
    }

    pub(super) fn get(&self, sid: &[u8]) -> Option<u32> {
        match self {
            ClientSids::One(only, slot) if only.bytes() == sid => Some(*slot),
            ClientSids::None | ClientSids::One(..) => None,
            ClientSids::Many(table) => table.0.get(sid).copied(),
        }
    }

    /// Adds a sid that is not in use. Returns the slot of the subscription that has been the single one so far.
    pub(super) fn insert(&mut self, sid: ShortBytes, slot: u32, key: HashKey) -> Option<u32> {
        match std::mem::take(self) {
            ClientSids::None => {
                *self = ClientSids::One(sid, slot);
                None
            }
            ClientSids::One(first_sid, first) => {
                let mut table = HashMap::with_hasher(key);
                table.insert(first_sid, first);
                table.insert(sid, slot);
                *self = ClientSids::Many(Box::new(SidTable(table)));
                Some(first)
            }
            ClientSids::Many(mut table) => {
                table.0.insert(sid, slot);
                *self = ClientSids::Many(table);
                None
            }
        }
    }

    pub(super) fn remove(&mut self, sid: &[u8]) {
        match self {
            ClientSids::One(only, _) if only.bytes() == sid => *self = ClientSids::None,
            ClientSids::None | ClientSids::One(..) => {}
            ClientSids::Many(table) => {
                table.0.remove(sid);
            }
        }
    }

    /// Returns the slots of all subscriptions.
    pub(super) fn into_slots(self) -> ClientSlots {
        match self {
            ClientSids::None => ClientSlots::One(None),
            ClientSids::One(_, slot) => ClientSlots::One(Some(slot)),
            ClientSids::Many(table) => ClientSlots::Many(table.0.into_iter()),
        }
    }
}

/// The slots of a connection's subscriptions.
#[derive(Debug)]
pub(super) enum ClientSlots {
    One(Option<u32>),
    Many(hash_map::IntoIter<ShortBytes, u32>),
}

impl ClientSlots {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            ClientSlots::One(slot) => slot.is_none(),
            ClientSlots::Many(slots) => slots.len() == 0,
        }
    }

    pub(super) fn next(&mut self) -> Option<u32> {
        match self {
            ClientSlots::One(slot) => slot.take(),
            ClientSlots::Many(slots) => slots.next().map(|(_, slot)| slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: HashKey = HashKey(1, 2);

    fn slots(sids: ClientSids) -> Vec<u32> {
        let mut slots = sids.into_slots();
        let mut all: Vec<_> = std::iter::from_fn(|| slots.next()).collect();
        assert!(slots.is_empty());
        all.sort_unstable();
        all
    }

    #[test]
    fn one_sid_and_several_are_found_and_removed() {
        for count in 0..4_u32 {
            let mut sids = ClientSids::default();
            for slot in 0..count {
                let sid = slot.to_string();
                let single = sids.insert(sid.as_bytes().into(), slot, KEY);
                assert_eq!(single, (slot == 1).then_some(0));
                assert_eq!(sids.get(sid.as_bytes()), Some(slot));
            }
            assert_eq!((sids.len(), sids.is_single()), (count as usize, count == 1));
            assert_eq!(sids.get(b"9"), None);
            sids.remove(b"9");
            sids.remove(b"0");
            assert_eq!((sids.len(), sids.get(b"0")), (count.saturating_sub(1) as usize, None));
            assert_eq!(sids.is_empty(), count < 2);
            assert_eq!(slots(sids), (1..count).collect::<Vec<_>>());
        }
    }
}
