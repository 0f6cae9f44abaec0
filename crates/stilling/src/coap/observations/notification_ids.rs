//! Message ids of notifications. A server must not use an id twice for one peer within an exchange's lifetime (RFC 7252
//! §4.4): clients take the second message for a duplicate of the first and ignore it.
//!
//! A response has the id of its request, which its client uses once. The ids of notifications count up per peer, from a
//! place among the ids that is far from that of its request and that others cannot guess.

use std::collections::HashMap;
use std::hash::BuildHasher;

use stilling_engine::DatagramPath;
use stilling_hub::HashKey;
use stilling_ring::{Time, planted};
use stilling_wire::coap::MessageId;

/// Least distance of the first id of a peer to that of its request, in both directions.
const DISTANCE_MIN: MessageId = 1 << 14;

/// The ids of a peer that observes.
#[derive(Debug)]
struct PeerIds {
    observers: u32,
    next: MessageId,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct NotificationIds {
    hash_key: HashKey,
    peers: HashMap<DatagramPath, PeerIds, HashKey>,
    /// Peers without observers and their next ids, by the hash of the peer: one that comes back does not repeat ids.
    /// Another with the same place replaces it, and it then starts at another random place.
    former: Vec<Option<(DatagramPath, MessageId)>>,
}

impl NotificationIds {
    /// Ids that remember up to `capacity` former peers.
    pub(super) fn new(hash_key: HashKey, capacity: usize) -> NotificationIds {
        NotificationIds { hash_key, peers: HashMap::with_hasher(hash_key), former: vec![None; capacity] }
    }

    /// Counts an observer of a peer, registered by a request with this id.
    pub(super) fn add_observer(&mut self, peer: &DatagramPath, request: MessageId, now: Time) {
        let hash = self.hash_key.hash_one((peer, now));
        let place = self.place(peer);
        let entry = self.peers.entry(*peer).or_insert_with(|| {
            let former = self.former[place].take_if(|(former, _)| former == peer);
            let far = DISTANCE_MIN + hash as MessageId % (2 * DISTANCE_MIN);
            PeerIds { observers: 0, next: former.map_or(request.wrapping_add(far), |(_, next)| next) }
        });
        entry.observers += 1;
    }

    /// An observer of a peer has ended.
    pub(super) fn remove_observer(&mut self, peer: &DatagramPath) {
        let Some(ids) = self.peers.get_mut(peer) else { return };
        ids.observers -= 1;
        if ids.observers == 0 {
            let (next, place) = (ids.next, self.place(peer));
            self.peers.remove(peer);
            self.former[place] = Some((*peer, next));
        }
    }

    /// The id of the next notification for a peer; `None` without observers.
    pub(super) fn next(&mut self, peer: &DatagramPath) -> Option<MessageId> {
        let next = &mut self.peers.get_mut(peer)?.next;
        let id = *next;
        if !(planted!("repeated message id") && id.is_multiple_of(4)) {
            *next = id.wrapping_add(1);
        }
        Some(id)
    }

    fn place(&self, peer: &DatagramPath) -> usize {
        self.hash_key.hash_one(peer) as usize % self.former.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(port: u16) -> DatagramPath {
        DatagramPath { socket: 0, peer: ([192, 0, 2, 1], port).into(), local: None }
    }

    #[test]
    fn ids_of_a_peer_count_up_far_from_its_requests() {
        let mut ids = NotificationIds::new(HashKey(1, 2), 64);
        for (port, request) in [(1, 0), (2, 1), (3, MessageId::MAX), (4, 1 << 15)] {
            ids.add_observer(&peer(port), request, Time::ZERO);
            let first = ids.next(&peer(port)).expect("it observes");
            let distance = first.wrapping_sub(request).min(request.wrapping_sub(first));
            assert!(distance >= DISTANCE_MIN, "{distance}");
            // Neither another observer nor a pause repeats an id.
            ids.add_observer(&peer(port), request.wrapping_add(1), Time::ZERO);
            assert_eq!(ids.next(&peer(port)), Some(first.wrapping_add(1)));
            (0..2).for_each(|_| ids.remove_observer(&peer(port)));
            assert_eq!(ids.next(&peer(port)), None);
            ids.add_observer(&peer(port), request.wrapping_add(2), Time::ZERO);
            assert_eq!(ids.next(&peer(port)), Some(first.wrapping_add(2)));
        }
    }

    /// Peers that share a place among the former ones disturb no peer that observes.
    #[test]
    fn others_do_not_change_the_ids_of_an_observing_peer() {
        let mut ids = NotificationIds::new(HashKey(1, 2), 1);
        ids.add_observer(&peer(1), 0, Time::ZERO);
        let first = ids.next(&peer(1)).expect("it observes");
        for port in 2..100 {
            ids.add_observer(&peer(port), 0, Time::ZERO);
            ids.next(&peer(port));
            ids.remove_observer(&peer(port));
        }
        assert_eq!(ids.next(&peer(1)), Some(first.wrapping_add(1)));
        assert_eq!(ids.peers.len(), 1);
    }
}
