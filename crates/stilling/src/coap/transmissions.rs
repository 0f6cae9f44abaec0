//! Confirmable messages until they are acknowledged (RFC 7252 §4.2): retransmission with backoff, one in flight per
//! peer (`NSTART`), the others behind it in order.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use stilling_engine::DatagramPath;
use stilling_engine::timer_wheel::TimerWheel;
use stilling_hub::HashKey;
use stilling_ring::{SplitMix64, Time};
use stilling_wire::coap::MessageId;

use super::address_shares::{AddressShares, ClientAddress};
use super::limits::{ACK_TIMEOUT, MESSAGE_SIZE_MAX, RETRANSMISSIONS_MAX, TRANSMISSIONS_PER_PEER_MAX};

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Transmission {
    path: DatagramPath,
    id: MessageId,
    message: Vec<u8>,
    retransmissions: u8,
    timeout: Duration,
    /// The next message for the same peer.
    next: u32,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Transmissions {
    slots: Vec<Transmission>,
    free: Vec<u32>,
    shares: AddressShares,
    /// The message in flight to each peer.
    in_flight: HashMap<DatagramPath, u32, HashKey>,
    /// Messages to be sent now.
    due: VecDeque<u32>,
    wheel: TimerWheel,
    expired: Vec<u32>,
    random: SplitMix64,
}

impl Transmissions {
    pub(super) fn new(hash_key: HashKey, capacity: usize, now: Time, seed: u64) -> Transmissions {
        Transmissions {
            slots: Vec::with_capacity(capacity),
            free: Vec::with_capacity(capacity),
            shares: AddressShares::new(hash_key, capacity),
            in_flight: HashMap::with_capacity_and_hasher(capacity, hash_key),
            due: VecDeque::with_capacity(capacity),
            wheel: TimerWheel::new(now, capacity),
            expired: Vec::with_capacity(capacity),
            random: SplitMix64::new(seed),
        }
    }

    /// Messages that are not acknowledged.
    pub(super) fn len(&self) -> usize {
        self.shares.held()
    }

    /// Adds a message, to be sent by [`next_due`](Self::next_due). Returns whether there was room for its client.
    pub(super) fn push(&mut self, path: DatagramPath, id: MessageId, message: &[u8]) -> bool {
        let last = match self.in_flight.get(&path) {
            Some(&first) => match self.last_of(first) {
                Some(last) => Some(last),
                None => return false,
            },
            None => None,
        };
        if !self.shares.try_add(ClientAddress::of(&path), 1) {
            return false;
        }
        let slot = self.allocate();
        let transmission = &mut self.slots[slot as usize];
        (transmission.path, transmission.id) = (path, id);
        (transmission.retransmissions, transmission.next) = (0, NONE);
        transmission.message.clear();
        transmission.message.extend_from_slice(message);
        match last {
            Some(last) => self.slots[last as usize].next = slot,
            None => self.start(slot),
        }
        true
    }

    /// The last message of a peer's queue, if another fits behind it.
    fn last_of(&self, first: u32) -> Option<u32> {
        let mut last = first;
        for _ in 0..TRANSMISSIONS_PER_PEER_MAX {
            match self.slots[last as usize].next {
                NONE => return Some(last),
                next => last = next,
            }
        }
        None
    }

    /// A slot; the shares bound their number.
    fn allocate(&mut self) -> u32 {
        if let Some(slot) = self.free.pop() {
            return slot;
        }
        let path = DatagramPath { socket: 0, peer: ([0, 0, 0, 0], 0).into(), local: None };
        self.slots.push(Transmission {
            path,
            id: 0,
            message: Vec::with_capacity(MESSAGE_SIZE_MAX),
            retransmissions: 0,
            timeout: ACK_TIMEOUT,
            next: NONE,
        });
        self.slots.len() as u32 - 1
    }

    fn start(&mut self, slot: u32) {
        // ACK_RANDOM_FACTOR is 1.5.
        let jitter = self.random.below(ACK_TIMEOUT.as_nanos() as u64 / 2);
        let transmission = &mut self.slots[slot as usize];
        transmission.timeout = ACK_TIMEOUT + Duration::from_nanos(jitter);
        self.in_flight.insert(transmission.path, slot);
        self.due.push_back(slot);
    }

    /// Ends the message in flight to a peer, if it has this id: it is acknowledged or reset. Returns whether there was
    /// one.
    pub(super) fn end(&mut self, path: &DatagramPath, id: MessageId) -> bool {
        let slot = self.in_flight.get(path).copied().filter(|slot| self.slots[*slot as usize].id == id);
        slot.into_iter().for_each(|slot| self.finish(slot));
        slot.is_some()
    }

    fn finish(&mut self, slot: u32) {
        self.wheel.clear(slot);
        let transmission = &self.slots[slot as usize];
        let (path, next) = (transmission.path, transmission.next);
        self.in_flight.remove(&path);
        // It may be acknowledged while it waits for room in the output.
        self.due.retain(|due| *due != slot);
        self.free.push(slot);
        self.shares.release(ClientAddress::of(&path), 1);
        if next != NONE {
            self.start(next);
        }
    }

    /// The next message to be sent, with its id. The caller sends it and calls [`sent`](Self::sent).
    pub(super) fn next_due(&self) -> Option<(DatagramPath, MessageId, &[u8])> {
        let transmission = &self.slots[*self.due.front()? as usize];
        Some((transmission.path, transmission.id, &transmission.message))
    }

    /// Whether the next message to be sent was sent before.
    pub(super) fn is_retransmission(&self) -> bool {
        self.due.front().is_some_and(|slot| self.slots[*slot as usize].retransmissions > 0)
    }

    /// Replaces the next message to be sent. The number of its retransmissions stays (RFC 7641 §4.5.2).
    pub(super) fn replace_due(&mut self, id: MessageId, message: &[u8]) {
        let Some(slot) = self.due.front() else { return };
        let transmission = &mut self.slots[*slot as usize];
        transmission.id = id;
        transmission.message.clear();
        transmission.message.extend_from_slice(message);
    }

    /// The message of [`next_due`](Self::next_due) has been sent; its timer starts.
    pub(super) fn sent(&mut self, now: Time) {
        if let Some(slot) = self.due.pop_front() {
            let transmission = &mut self.slots[slot as usize];
            self.wheel.set(slot, now.after(transmission.timeout));
            transmission.timeout *= 2;
        }
    }

    /// Makes messages due whose acknowledgement is late. Returns the next one that was sent too often, which has
    /// ended; to be called until it returns `None`.
    pub(super) fn expire(&mut self, now: Time) -> Option<(DatagramPath, MessageId)> {
        if self.expired.is_empty() {
            self.wheel.expire(now, &mut self.expired);
        }
        while let Some(slot) = self.expired.pop() {
            let transmission = &mut self.slots[slot as usize];
            if transmission.retransmissions == RETRANSMISSIONS_MAX {
                let ended = (transmission.path, transmission.id);
                self.finish(slot);
                return Some(ended);
            }
            transmission.retransmissions += 1;
            self.due.push_back(slot);
        }
        None
    }

    /// When to call [`expire`](Self::expire) next.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.wheel.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(port: u16) -> DatagramPath {
        DatagramPath { socket: 0, peer: ([127, 0, 0, 1], port).into(), local: None }
    }

    fn drain(all: &mut Transmissions, now: Time) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        while let Some((_, _, message)) = all.next_due() {
            sent.push(message.to_vec());
            all.sent(now);
        }
        sent
    }

    fn transmissions(capacity: usize) -> Transmissions {
        Transmissions::new(HashKey(1, 2), capacity, Time::ZERO, 7)
    }

    /// RFC 7252 §4.8: five transmissions, the last within 45 seconds, the end within 93.
    #[test]
    fn a_message_is_sent_five_times_and_ends() {
        let mut all = transmissions(4);
        assert!(all.push(path(1), 7, b"m"));
        let (mut now, mut sent) = (Time::ZERO, Vec::new());
        let ended = loop {
            sent.extend(drain(&mut all, now).iter().map(|_| now.as_nanos() / 1_000_000_000));
            now = all.next_deadline().expect("it is not acknowledged");
            if let Some(ended) = all.expire(now) {
                break ended;
            }
        };
        assert_eq!(ended, (path(1), 7));
        assert_eq!(sent.len(), 5, "{sent:?}");
        assert!((30..=45).contains(&sent[4]) && (62..=93).contains(&(now.as_nanos() / 1_000_000_000)));
        assert!(sent.windows(3).all(|three| three[2] - three[1] >= three[1] - three[0]), "{sent:?}");
        assert_eq!((all.len(), all.next_deadline()), (0, None));
    }

    /// NSTART: the next message for a peer leaves when the one before it has ended.
    #[test]
    fn one_message_per_peer_is_in_flight() {
        let mut all = transmissions(32);
        let add = |all: &mut Transmissions, port, id: MessageId| all.push(path(port), id, &id.to_be_bytes());
        assert!(add(&mut all, 1, 1) && add(&mut all, 1, 2) && add(&mut all, 2, 3));
        assert_eq!(drain(&mut all, Time::ZERO), [[0, 1], [0, 3]]);
        assert!(!all.end(&path(1), 2), "it has not been sent");
        assert!(!all.end(&path(2), 1), "another peer");
        assert!(all.end(&path(1), 1));
        assert_eq!(drain(&mut all, Time::ZERO), [[0, 2]]);
        let accepted = (10..30).filter(|id| add(&mut all, 1, *id)).count();
        assert_eq!(accepted, TRANSMISSIONS_PER_PEER_MAX);
    }

    #[test]
    fn a_full_table_refuses_and_its_slots_are_reused() {
        let other = DatagramPath { socket: 0, peer: ([127, 0, 0, 2], 1).into(), local: None };
        let third = DatagramPath { socket: 0, peer: ([127, 0, 0, 3], 1).into(), local: None };
        let mut all = transmissions(2);
        for round in 0..10 {
            assert!(all.push(path(1), round, b"a"));
            assert!(all.push(other, round, b"b"));
            assert!(!all.push(third, round, b"c"));
            // One is acknowledged before it has left.
            assert!(all.end(&path(1), round));
            assert_eq!(drain(&mut all, Time::ZERO), [b"b"]);
            assert!(all.end(&other, round));
        }
        assert_eq!((all.len(), all.next_deadline()), (0, None));
        assert_eq!(all.slots.len(), 2);
    }

    /// A client with many ports that acknowledges nothing leaves room for others.
    #[test]
    fn a_client_with_many_ports_has_one_share() {
        let mut all = transmissions(64);
        let accepted = (1..=200).filter(|port| all.push(path(*port), *port, b"m")).count();
        assert_eq!(accepted, 32);
        let other = DatagramPath { socket: 0, peer: ([127, 0, 0, 2], 1).into(), local: None };
        assert!(all.push(other, 1, b"m"));
    }
}
