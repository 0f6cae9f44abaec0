//! Shares of a bounded table: a client holds no more of it than is free, so a client with many ports leaves room for
//! others.
//!
//! ```text
//!   clients that take all they get      first   second   third   free for the next
//!   at first                             1/2     1/4      1/8     1/8
//!   after entries have come and gone     1/4     1/4      1/4     1/4
//! ```
//!
//! A client that holds more than is free, because others came later, keeps what it has and gets nothing more.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use stilling_engine::DatagramPath;
use stilling_hub::HashKey;

/// The bits of an IPv6 address that identify a client: it may choose the others as it likes.
const IPV6_PREFIX: u128 = !0 << 64;

/// A client, as far as its address identifies it: an IPv4 address or a /64 of IPv6, with any port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ClientAddress(IpAddr);

impl ClientAddress {
    pub(super) fn of(path: &DatagramPath) -> ClientAddress {
        ClientAddress(match path.peer.ip().to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & IPV6_PREFIX).into(),
        })
    }
}

/// See the [module](self). The unit is that of the table: entries or bytes.
#[derive(Debug)]
pub(super) struct AddressShares {
    capacity: usize,
    held: usize,
    by_client: HashMap<ClientAddress, usize, HashKey>,
}

impl AddressShares {
    pub(super) fn new(hash_key: HashKey, capacity: usize) -> AddressShares {
        AddressShares { capacity, held: 0, by_client: HashMap::with_hasher(hash_key) }
    }

    /// What all clients hold.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Adds to what a client holds. Returns false and changes nothing if its share does not allow that.
    pub(super) fn try_add(&mut self, client: ClientAddress, amount: usize) -> bool {
        let held = self.by_client.get(&client).copied().unwrap_or_default();
        let is_allowed = held + amount <= self.capacity.saturating_sub(self.held);
        if is_allowed {
            self.add(client, amount);
        }
        is_allowed
    }

    /// Adds to what a client holds, whatever its share is: it held this before, or another client did.
    pub(super) fn add(&mut self, client: ClientAddress, amount: usize) {
        if amount > 0 {
            *self.by_client.entry(client).or_default() += amount;
            self.held += amount;
        }
    }

    /// Releases what a client held.
    pub(super) fn release(&mut self, client: ClientAddress, amount: usize) {
        let Some(held) = self.by_client.get_mut(&client) else { return };
        let amount = amount.min(*held);
        *held -= amount;
        self.held -= amount;
        if *held == 0 {
            self.by_client.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(address: &str, port: u16) -> ClientAddress {
        let peer = (address.parse::<IpAddr>().expect("an address"), port).into();
        ClientAddress::of(&DatagramPath { socket: 0, peer, local: None })
    }

    fn fill(shares: &mut AddressShares, client: ClientAddress) -> usize {
        (0..).take_while(|_| shares.try_add(client, 1)).count()
    }

    #[test]
    fn a_client_holds_no_more_than_is_free() {
        let mut shares = AddressShares::new(HashKey(1, 2), 64);
        let clients: Vec<_> = (0..10).map(|number| client(&format!("192.0.2.{number}"), 1)).collect();
        let held: Vec<_> = clients.iter().map(|client| fill(&mut shares, *client)).collect();
        assert_eq!(held, [32, 16, 8, 4, 2, 1, 1, 0, 0, 0]);
        assert_eq!(shares.held(), 64);
        // What one releases is for those that hold less.
        (0..16).for_each(|_| shares.release(clients[0], 1));
        assert_eq!(fill(&mut shares, clients[0]), 0);
        assert_eq!(fill(&mut shares, clients[9]), 8);
        clients.iter().for_each(|client| shares.release(*client, 64));
        assert_eq!((shares.held(), shares.by_client.len()), (0, 0));
    }

    #[test]
    fn a_client_is_an_ipv4_address_or_a_prefix_of_ipv6() {
        assert_eq!(client("192.0.2.1", 1), client("192.0.2.1", 2));
        assert_eq!(client("192.0.2.1", 1), client("::ffff:192.0.2.1", 1));
        assert_ne!(client("192.0.2.1", 1), client("192.0.2.2", 1));
        assert_eq!(client("2001:db8::1", 1), client("2001:db8::ffff:0:0:2", 2));
        assert_ne!(client("2001:db8::1", 1), client("2001:db8:0:1::1", 1));
    }
}
