//! Recognises duplicates: requests by path, message id and token for [`EXCHANGE_LIFETIME`], with their replies.
//!
//! ```text
//!   buckets    [ newest exchange with this hash ] ─▶ exchanges   oldest ──▶ newest, in the order of arrival
//!                                                     └ next with the same hash │ reply ─▶ ByteQueue
//! ```

use std::hash::BuildHasher;
use std::time::Duration;

use stilling_engine::DatagramPath;
use stilling_hub::HashKey;
use stilling_ring::Time;
use stilling_wire::coap::{MessageId, Token};

use super::byte_queue::{ByteQueue, QueuePosition};
use super::handed_exchanges::is_reply_to_safe;
use super::limits::EXCHANGE_LIFETIME;

/// Identifies a request. The token is part of it: an endpoint that has used all message ids starts again, and a
/// request with another token is never a retransmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ExchangeKey {
    pub(super) path: DatagramPath,
    pub(super) id: MessageId,
    pub(super) token: Token,
}

/// What is known of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KnownExchange<'a> {
    /// It has no reply yet, or gets none.
    WithoutReply,
    /// The reply, to be sent again.
    Replied(&'a [u8]),
    /// It has been executed, and its reply has been overwritten.
    ReplyOverwritten,
}

#[derive(Clone, Copy, Debug)]
struct Exchange {
    key: ExchangeKey,
    since: Time,
    reply: Option<(QueuePosition, u16)>,
    /// The older exchange with the same bucket: its number plus 1.
    older: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct ExchangeCache {
    hash_key: HashKey,
    /// The exchange with number n is at index n modulo the capacity.
    exchanges: Vec<Exchange>,
    capacity: usize,
    /// Number of the oldest exchange.
    first: u64,
    /// Number of the next exchange.
    end: u64,
    /// The newest exchange of each bucket: its number plus 1.
    buckets: Vec<u64>,
    replies: ByteQueue,
    /// Exchanges forgotten before [`EXCHANGE_LIFETIME`].
    evicted: u64,
}

impl ExchangeCache {
    /// A cache for `capacity` exchanges and `replies_size` bytes of replies.
    pub(super) fn new(hash_key: HashKey, capacity: usize, replies_size: usize) -> ExchangeCache {
        ExchangeCache {
            hash_key,
            exchanges: Vec::with_capacity(capacity),
            capacity,
            first: 0,
            end: 0,
            buckets: vec![0; capacity.next_power_of_two()],
            replies: ByteQueue::new(replies_size),
            evicted: 0,
        }
    }

    /// Exchanges that are remembered now.
    pub(super) fn len(&self) -> u64 {
        self.end - self.first
    }

    /// Takes the number of exchanges forgotten early since the last call.
    pub(super) fn take_evicted(&mut self) -> u64 {
        std::mem::take(&mut self.evicted)
    }

    /// What is known of a request.
    pub(super) fn find(&self, key: &ExchangeKey, now: Time) -> Option<KnownExchange<'_>> {
        let mut link = self.buckets[self.bucket(key)];
        // Numbers in a bucket decrease; those of forgotten exchanges end it.
        while link > self.first {
            let exchange = &self.exchanges[self.index(link - 1)];
            if exchange.key == *key {
                return self.known(exchange, now);
            }
            link = exchange.older;
        }
        None
    }

    fn known(&self, exchange: &Exchange, now: Time) -> Option<KnownExchange<'_>> {
        if now.since(exchange.since) >= EXCHANGE_LIFETIME {
            return None;
        }
        Some(match exchange.reply {
            None => KnownExchange::WithoutReply,
            Some((position, size)) => match self.replies.get(position, size.into()) {
                Some(reply) => KnownExchange::Replied(reply),
                None => KnownExchange::ReplyOverwritten,
            },
        })
    }

    /// Exchanges of requests that may have changed something, with their age and reply, newest first.
    pub(super) fn unsafe_exchanges(
        &self,
        now: Time,
    ) -> impl Iterator<Item = (&ExchangeKey, Duration, Option<&[u8]>)> {
        let exchanges = (self.first..self.end).rev().map(|number| &self.exchanges[self.index(number)]);
        exchanges.filter_map(move |exchange| {
            let reply = match self.known(exchange, now)? {
                KnownExchange::Replied(reply) if is_reply_to_safe(reply) => return None,
                KnownExchange::Replied(reply) => Some(reply),
                KnownExchange::WithoutReply | KnownExchange::ReplyOverwritten => None,
            };
            Some((&exchange.key, now.since(exchange.since), reply))
        })
    }

    /// Remembers a request, or replaces what is known of it.
    pub(super) fn insert(&mut self, key: ExchangeKey, now: Time, reply: Option<&[u8]>) {
        self.insert_since(key, now, now, reply);
    }

    /// The same for a request that was received at `since`.
    pub(super) fn insert_since(&mut self, key: ExchangeKey, since: Time, now: Time, reply: Option<&[u8]>) {
        self.forget_expired(now);
        if self.len() == self.capacity as u64 {
            self.forget_oldest();
            self.evicted += 1;
        }
        let reply = reply.and_then(|bytes| {
            let size = u16::try_from(bytes.len()).ok()?;
            Some((self.replies.push(bytes)?, size))
        });
        let bucket = self.bucket(&key);
        let older = std::mem::replace(&mut self.buckets[bucket], self.end + 1);
        let exchange = Exchange { key, since, reply, older };
        let index = self.index(self.end);
        match self.exchanges.get_mut(index) {
            Some(slot) => *slot = exchange,
            None => self.exchanges.push(exchange),
        }
        self.end += 1;
    }

    /// Forgets at most two expired exchanges: each call adds one, so they never pile up.
    fn forget_expired(&mut self, now: Time) {
        for _ in 0..2 {
            if self.first == self.end
                || now.since(self.exchanges[self.index(self.first)].since) < EXCHANGE_LIFETIME
            {
                return;
            }
            self.forget_oldest();
        }
    }

    /// Forgets an exchange, and releases the replies before that of the next one.
    fn forget_oldest(&mut self) {
        self.first += 1;
        if self.first < self.end
            && let Some((position, _)) = self.exchanges[self.index(self.first)].reply
        {
            self.replies.release_before(position);
        }
    }

    fn bucket(&self, key: &ExchangeKey) -> usize {
        self.hash_key.hash_one(key) as usize & (self.buckets.len() - 1)
    }

    fn index(&self, number: u64) -> usize {
        (number % self.capacity as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16, id: MessageId, token: &[u8]) -> ExchangeKey {
        let peer = ([127, 0, 0, 1], port).into();
        let path = DatagramPath { socket: 0, peer, local: None };
        ExchangeKey { path, id, token: Token::new(token).expect("a short token") }
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO.after(Duration::from_secs(seconds))
    }

    fn cache(capacity: usize, replies_size: usize) -> ExchangeCache {
        ExchangeCache::new(HashKey(1, 2), capacity, replies_size)
    }

    /// Row 1.14: a duplicate is recognised by peer and message id, for the whole lifetime and no longer.
    #[test]
    fn a_request_is_known_for_its_lifetime() {
        let mut cache = cache(8, 4096);
        cache.insert(key(1, 7, b"a"), at(10), None);
        cache.insert(key(1, 8, b"a"), at(10), Some(b"reply"));
        assert_eq!(cache.find(&key(1, 7, b"a"), at(256)), Some(KnownExchange::WithoutReply));
        assert_eq!(cache.find(&key(1, 8, b"a"), at(256)), Some(KnownExchange::Replied(b"reply")));
        for other in [key(2, 7, b"a"), key(1, 9, b"a"), key(1, 7, b"b"), key(1, 7, b"")] {
            assert_eq!(cache.find(&other, at(11)), None, "{other:?}");
        }
        assert_eq!(cache.find(&key(1, 8, b"a"), at(257)), None);
        cache.insert(key(1, 7, b"a"), at(20), Some(b"late"));
        assert_eq!(cache.find(&key(1, 7, b"a"), at(20)), Some(KnownExchange::Replied(b"late")));
    }

    /// Row 1.1: memory is fixed; a full cache forgets the oldest and counts it.
    #[test]
    fn a_full_cache_forgets_the_oldest() {
        let mut cache = cache(100, 0);
        for id in 0..1000 {
            cache.insert(key(1, id, b""), at(0), Some(&[0; 1280]));
        }
        assert_eq!((cache.len(), cache.take_evicted(), cache.take_evicted()), (100, 900, 0));
        assert_eq!(cache.find(&key(1, 899, b""), at(0)), None);
        assert_eq!(cache.find(&key(1, 900, b""), at(0)), Some(KnownExchange::ReplyOverwritten));
        assert_eq!(cache.find(&key(1, 999, b""), at(0)), Some(KnownExchange::Replied(&[0; 1280])));
        for id in 0..60 {
            cache.insert(key(2, id, b""), at(300), None);
        }
        assert_eq!((cache.len(), cache.take_evicted()), (60, 0), "the others have expired");
    }
}
