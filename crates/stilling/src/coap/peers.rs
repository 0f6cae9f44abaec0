//! Proof of addresses (RFC 9175): a client that returns an Echo value receives at the address that it names.
//!
//! Values are not stored: each is a keyed hash of the peer and the period of its making.

use std::hash::BuildHasher;
use std::net::SocketAddr;

use stilling_hub::HashKey;
use stilling_ring::Time;

use super::limits::{ECHO_LIFETIME, PROVEN_PEERS_MAX};

/// Bytes of an Echo value.
pub(super) const ECHO_SIZE: usize = 8;

/// Periods per lifetime of a value.
const PERIODS: u64 = 2;

/// Peers that have proved their address. See the [module](self).
#[derive(Debug)]
pub(super) struct ProvenPeers {
    hash_key: HashKey,
    peers: Vec<Option<(SocketAddr, Time)>>,
}

impl ProvenPeers {
    pub(super) fn new(hash_key: HashKey) -> ProvenPeers {
        ProvenPeers { hash_key, peers: vec![None; PROVEN_PEERS_MAX] }
    }

    /// The Echo value for a peer.
    pub(super) fn echo(&self, peer: SocketAddr, now: Time) -> [u8; ECHO_SIZE] {
        self.value(peer, period(now))
    }

    /// Checks a value that a peer returns. If it is fresh, the address is proved.
    pub(super) fn check(&mut self, peer: SocketAddr, value: &[u8], now: Time) -> bool {
        let latest = period(now);
        let is_fresh = (0..=PERIODS)
            .filter_map(|age| latest.checked_sub(age))
            .any(|period| self.value(peer, period) == value);
        if is_fresh {
            let at = self.index(peer);
            self.peers[at] = Some((peer, now));
        }
        is_fresh
    }

    /// Whether a peer has proved its address recently.
    pub(super) fn is_proven(&self, peer: SocketAddr, now: Time) -> bool {
        self.peers[self.index(peer)]
            .is_some_and(|(known, since)| known == peer && now.since(since) < ECHO_LIFETIME)
    }

    fn index(&self, peer: SocketAddr) -> usize {
        self.hash_key.hash_one(peer) as usize % self.peers.len()
    }

    fn value(&self, peer: SocketAddr, period: u64) -> [u8; ECHO_SIZE] {
        self.hash_key.hash_one((peer, period)).to_be_bytes()
    }
}

fn period(now: Time) -> u64 {
    now.as_nanos() / (ECHO_LIFETIME.as_nanos() as u64 / PERIODS)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_value_proves_one_address_for_a_time() {
        let mut peers = ProvenPeers::new(HashKey(1, 2));
        let [one, other]: [SocketAddr; 2] =
            ["192.0.2.1:5683", "192.0.2.1:5684"].map(|text| text.parse().expect("an address"));
        let now = Time::ZERO.after(Duration::from_secs(1000));
        let value = peers.echo(one, now);
        assert!(!peers.is_proven(one, now));
        assert!(!peers.check(other, &value, now) && !peers.check(one, b"", now));
        assert!(peers.check(one, &value, now.after(ECHO_LIFETIME)));
        assert!(peers.is_proven(one, now.after(ECHO_LIFETIME)) && !peers.is_proven(other, now));
        assert!(!peers.is_proven(one, now.after(2 * ECHO_LIFETIME)));
        assert!(!peers.check(one, &value, now.after(2 * ECHO_LIFETIME)));
    }
}
