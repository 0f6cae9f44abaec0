//! Message ids of notifications. A server must not use an id twice for one peer within an exchange's lifetime (RFC 7252
//! §4.4): clients take the second message for a duplicate of the first and ignore it.
//!
//! A response has the id of its request, which its client uses once. The ids of notifications count up per peer, from a
//! place among the ids that is far from those of the peer's requests and that others cannot guess.

use std::hash::BuildHasher;
use std::net::SocketAddr;

use stilling_hub::HashKey;
use stilling_ring::Time;
use stilling_wire::coap::MessageId;

/// Least distance of the first id of a peer to that of its request, in both directions.
const DISTANCE_MIN: MessageId = 1 << 14;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct NotificationIds {
    hash_key: HashKey,
    /// Peers and their next ids, by the hash of the peer.
    peers: Vec<Option<(SocketAddr, MessageId)>>,
}

impl NotificationIds {
    /// Ids of up to `capacity` peers. Of two with the same place, one starts again with each of its registrations.
    pub(super) fn new(hash_key: HashKey, capacity: usize) -> NotificationIds {
        NotificationIds { hash_key, peers: vec![None; capacity] }
    }

    /// Prepares the ids of a peer that registers an observer by a request with this id.
    pub(super) fn prepare(&mut self, peer: SocketAddr, request: MessageId, now: Time) {
        let place = self.place(peer);
        if self.peers[place].is_none_or(|(other, _)| other != peer) {
            let far = DISTANCE_MIN + self.random(peer, now) % (2 * DISTANCE_MIN);
            self.peers[place] = Some((peer, request.wrapping_add(far)));
        }
    }

    /// The id of the next notification for a peer.
    pub(super) fn next(&mut self, peer: SocketAddr, now: Time) -> MessageId {
        let place = self.place(peer);
        match &mut self.peers[place] {
            Some((other, next)) if *other == peer => {
                let id = *next;
                *next = id.wrapping_add(1);
                id
            }
            // Another peer has the place.
            _ => self.random(peer, now),
        }
    }

    fn place(&self, peer: SocketAddr) -> usize {
        self.hash_key.hash_one(peer) as usize % self.peers.len()
    }

    fn random(&self, peer: SocketAddr, now: Time) -> MessageId {
        self.hash_key.hash_one((peer, now)) as MessageId
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn peer(port: u16) -> SocketAddr {
        ([192, 0, 2, 1], port).into()
    }

    #[test]
    fn ids_of_a_peer_count_up_far_from_its_requests() {
        let mut ids = NotificationIds::new(HashKey(1, 2), 64);
        for (port, request) in [(1, 0), (2, 1), (3, MessageId::MAX), (4, 1 << 15)] {
            ids.prepare(peer(port), request, Time::ZERO);
            let first = ids.next(peer(port), Time::ZERO);
            let distance = first.wrapping_sub(request).min(request.wrapping_sub(first));
            assert!(distance >= DISTANCE_MIN, "{distance}");
            // A later registration of the peer does not repeat ids.
            ids.prepare(peer(port), request.wrapping_add(1), Time::ZERO);
            assert_eq!(ids.next(peer(port), Time::ZERO), first.wrapping_add(1));
        }
    }

    #[test]
    fn a_peer_without_a_place_has_ids_that_depend_on_the_time() {
        let mut ids = NotificationIds::new(HashKey(1, 2), 1);
        ids.prepare(peer(1), 0, Time::ZERO);
        let times = (0..100).map(|ms| Time::ZERO.after(Duration::from_millis(ms)));
        let others: std::collections::HashSet<MessageId> = times.map(|now| ids.next(peer(2), now)).collect();
        assert!(others.len() > 90, "{}", others.len());
        let first = ids.next(peer(1), Time::ZERO);
        assert_eq!(ids.next(peer(1), Time::ZERO), first.wrapping_add(1), "that of the first stays");
    }
}
