//! Requests whose answers take longer: from their acceptance to their answer.

use stilling_engine::DatagramPath;
use stilling_engine::timer_wheel::TimerWheel;
use stilling_hub::HashKey;
use stilling_ring::Time;
use stilling_wire::coap::{BlockValue, MessageType, NoResponse, ObserveSequence};

use super::address_shares::{AddressShares, ClientAddress};
use super::exchange_cache::ExchangeKey;
use super::limits::{PENDING_EXCHANGES_MAX, PENDING_PUBLICATIONS_MAX, PENDING_READS_MAX, SEPARATE_AFTER};
use super::observations::ResourceId;

/// What an answer needs to know of its request.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestContext {
    pub(super) key: ExchangeKey,
    pub(super) kind: MessageType,
    pub(super) block1: Option<BlockValue>,
    pub(super) block2: Option<BlockValue>,
    pub(super) observe: Option<ObserveSequence>,
    pub(super) no_response: NoResponse,
    /// Bytes of the datagram.
    pub(super) size: usize,
}

impl RequestContext {
    pub(super) fn path(&self) -> &DatagramPath {
        &self.key.path
    }

    pub(super) fn is_confirmable(&self) -> bool {
        self.kind == MessageType::Confirmable
    }
}

/// What a pending request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AwaitedAnswer {
    /// The demo resource `separate`, until this time.
    Demo(Time),
    /// A worker process, at most until this time.
    Worker(Time),
    /// The outcome of a publication, at most until this time.
    Publication(Time),
    /// The newest message of a filter, which the client also observes if it `registers`.
    State { resource: ResourceId, registers: bool, until: Time },
}

/// Identifies a pending request. A reused slot has another generation, so an id is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PendingId {
    /// Ordered by it: later requests are greater.
    generation: u64,
    slot: u32,
}

impl AwaitedAnswer {
    fn deadline(self) -> Time {
        match self {
            AwaitedAnswer::Demo(at) | AwaitedAnswer::Worker(at) | AwaitedAnswer::Publication(at) => at,
            AwaitedAnswer::State { until, .. } => until,
        }
    }
}

/// A request without an answer.
#[derive(Debug)]
pub(super) struct PendingExchange {
    pub(super) context: RequestContext,
    pub(super) awaits: AwaitedAnswer,
    /// Its empty acknowledgement has been sent.
    pub(super) is_acknowledged: bool,
    pub(super) cache_key: Vec<u8>,
    generation: u64,
}

/// What a pending request needs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingEvent {
    /// It waits for too long without an acknowledgement.
    Acknowledge(u32),
    /// The time of its answer has come.
    Answer(u32),
}

/// The pending requests of a shard.
#[derive(Debug)]
pub(super) struct PendingExchanges {
    slots: Vec<Option<PendingExchange>>,
    free: Vec<u32>,
    wheel: TimerWheel,
    expired: Vec<u32>,
    generations: u64,
    publications: AddressShares,
    reads: AddressShares,
}

impl PendingExchanges {
    pub(super) fn new(hash_key: HashKey, now: Time) -> PendingExchanges {
        PendingExchanges {
            slots: Vec::new(),
            free: Vec::new(),
            wheel: TimerWheel::new(now, 0),
            expired: Vec::new(),
            generations: 0,
            publications: AddressShares::new(hash_key, PENDING_PUBLICATIONS_MAX),
            reads: AddressShares::new(hash_key, PENDING_READS_MAX),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= PENDING_EXCHANGES_MAX
    }

    /// The shares of requests that wait for the hub, which may hang.
    fn shares(&mut self, awaits: AwaitedAnswer) -> Option<&mut AddressShares> {
        match awaits {
            AwaitedAnswer::Publication(_) => Some(&mut self.publications),
            AwaitedAnswer::State { .. } => Some(&mut self.reads),
            AwaitedAnswer::Demo(_) | AwaitedAnswer::Worker(_) => None,
        }
    }

    /// Adds a request; `None` if there is no room for it.
    pub(super) fn insert(
        &mut self,
        context: RequestContext,
        awaits: AwaitedAnswer,
        cache_key: Option<&[u8]>,
        now: Time,
    ) -> Option<PendingId> {
        if self.is_full() {
            return None;
        }
        let client = ClientAddress::of(context.path());
        if self.shares(awaits).is_some_and(|shares| !shares.try_add(client, 1)) {
            return None;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        let cache_key = cache_key.unwrap_or_default().to_vec();
        let is_acknowledged = false;
        self.generations += 1;
        let generation = self.generations;
        self.slots[slot as usize] =
            Some(PendingExchange { context, awaits, is_acknowledged, cache_key, generation });
        let first = if context.is_confirmable() {
            awaits.deadline().min(now.after(SEPARATE_AFTER))
        } else {
            awaits.deadline()
        };
        self.wheel.set(slot, first);
        Some(PendingId { slot, generation })
    }

    /// The id of the request in a slot.
    pub(super) fn id(&self, slot: u32) -> Option<PendingId> {
        let pending = self.slots.get(slot as usize)?.as_ref()?;
        Some(PendingId { slot, generation: pending.generation })
    }

    /// What the request in a slot waits for.
    pub(super) fn awaits(&self, slot: u32) -> Option<AwaitedAnswer> {
        Some(self.slots.get(slot as usize)?.as_ref()?.awaits)
    }

    /// Removes the request with this id, unless it has ended before.
    pub(super) fn take(&mut self, id: PendingId) -> Option<PendingExchange> {
        if self.id(id.slot) != Some(id) {
            return None;
        }
        self.remove(id.slot)
    }

    /// Notes that the request has been acknowledged.
    pub(super) fn acknowledged(&mut self, slot: u32) -> Option<RequestContext> {
        let pending = self.slots.get_mut(slot as usize)?.as_mut()?;
        pending.is_acknowledged = true;
        self.wheel.set(slot, pending.awaits.deadline());
        Some(pending.context)
    }

    fn remove(&mut self, slot: u32) -> Option<PendingExchange> {
        let pending = self.slots.get_mut(slot as usize)?.take()?;
        self.wheel.clear(slot);
        self.free.push(slot);
        let client = ClientAddress::of(pending.context.path());
        if let Some(shares) = self.shares(pending.awaits) {
            shares.release(client, 1);
        }
        Some(pending)
    }

    /// The next request whose time has come; to be called until it returns `None`.
    pub(super) fn expire(&mut self, now: Time) -> Option<PendingEvent> {
        if self.expired.is_empty() {
            self.wheel.expire(now, &mut self.expired);
        }
        while let Some(slot) = self.expired.pop() {
            let Some(pending) = self.slots[slot as usize].as_ref() else { continue };
            if now >= pending.awaits.deadline() {
                return Some(PendingEvent::Answer(slot));
            }
            return Some(PendingEvent::Acknowledge(slot));
        }
        None
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.wheel.next()
    }
}

#[cfg(test)]
mod tests {
    use stilling_wire::coap::Token;

    use super::*;

    fn context(address: [u8; 4], id: u16) -> RequestContext {
        let path = DatagramPath { socket: 0, peer: (address, 1 + id).into(), local: None };
        RequestContext {
            key: ExchangeKey { path, id, token: Token::EMPTY },
            kind: MessageType::Confirmable,
            block1: None,
            block2: None,
            observe: None,
            no_response: NoResponse::default(),
            size: 100,
        }
    }

    /// Publications that wait for a hung disk leave room for other requests, and those of one client for others'.
    #[test]
    fn publications_have_a_part_of_the_table() {
        let mut all = PendingExchanges::new(HashKey(1, 2), Time::ZERO);
        let publication = AwaitedAnswer::Publication(Time::ZERO.after(SEPARATE_AFTER));
        let worker = AwaitedAnswer::Worker(Time::ZERO.after(SEPARATE_AFTER));
        let mut accepted = Vec::new();
        for address in 1..=20 {
            let added = (0..=PENDING_PUBLICATIONS_MAX as u16)
                .map_while(|id| all.insert(context([192, 0, 2, address], id), publication, None, Time::ZERO));
            accepted.push(added.collect::<Vec<_>>());
        }
        assert_eq!(accepted[0].len(), PENDING_PUBLICATIONS_MAX / 2);
        assert_eq!(accepted[1].len(), PENDING_PUBLICATIONS_MAX / 4);
        assert_eq!(all.len(), PENDING_PUBLICATIONS_MAX);
        let others =
            (0..).take_while(|id| all.insert(context([1; 4], *id), worker, None, Time::ZERO).is_some());
        assert_eq!(others.count(), PENDING_EXCHANGES_MAX - PENDING_PUBLICATIONS_MAX);
        // An answer returns the room.
        assert!(all.take(accepted[0][0]).is_some() && all.take(accepted[1][0]).is_some());
        assert!(all.insert(context([3; 4], 1), publication, None, Time::ZERO).is_some());
    }
}
