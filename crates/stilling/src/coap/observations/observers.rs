//! The clients that observe resources, and when each is notified.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use stilling_engine::DatagramPath;
use stilling_engine::timer_wheel::TimerWheel;
use stilling_hub::HashKey;
use stilling_ring::Time;
use stilling_wire::coap::{BlockValue, ContentFormat, MessageId, MessageType, ObserveSequence, Token};

use super::super::address_shares::{AddressShares, ClientAddress};
use super::super::limits::{CONFIRMABLE_EVERY, CONFIRMABLE_INTERVAL_MAX, NOTIFICATION_INTERVAL};
use super::notification_ids::NotificationIds;
use super::resources::ResourceId;

/// Bits of nanoseconds per sequence (33 µs): sequences do not repeat within 256 s (RFC 7641 §4.4).
const SEQUENCE_TICK_BITS: u32 = 15;

/// The place of an observer in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct ObserverSlot(u32);

/// What a client has registered.
#[derive(Debug)]
pub(in super::super) struct Registration {
    pub(in super::super) path: DatagramPath,
    pub(in super::super) token: Token,
    /// The id of its first request.
    pub(in super::super) request: MessageId,
    /// The size of blocks that it wants.
    pub(in super::super) block2: Option<BlockValue>,
    /// The format of all its notifications.
    pub(in super::super) format: Option<ContentFormat>,
    /// Of the request, for later blocks.
    pub(in super::super) cache_key: Box<[u8]>,
}

#[derive(Debug)]
pub(in super::super) struct Observer {
    pub(in super::super) registration: Registration,
    resource: ResourceId,
    /// Of the state in its last notification.
    version: u64,
    sequence: ObserveSequence,
    last_message: Option<MessageId>,
    /// Its last notification is confirmable and not acknowledged.
    is_outstanding: bool,
    is_retransmitted: bool,
    is_queued: bool,
    /// Notifications since the last acknowledgement. `None` before the first.
    unconfirmed: Option<u32>,
    /// When it last showed that it exists.
    confirmed_at: Time,
    sent_at: Time,
    /// Least time between its notifications: that of a round trip.
    interval: Duration,
}

impl Observer {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn is_outstanding(&self) -> bool {
        self.is_outstanding
    }

    pub(in super::super) fn resource(&self) -> ResourceId {
        self.resource
    }

    pub(super) fn client(&self) -> ClientAddress {
        ClientAddress::of(&self.registration.path)
    }

    /// The first notification shows the time of a round trip; later, each tenth shows that the client exists.
    pub(super) fn is_confirmable_due(&self, now: Time) -> bool {
        self.unconfirmed.is_none_or(|count| count + 1 >= CONFIRMABLE_EVERY)
            || now.since(self.confirmed_at) >= CONFIRMABLE_INTERVAL_MAX
    }

    /// When it is notified next, if its resource has this version.
    fn next_at(&self, version: u64) -> Time {
        let confirmable_at = self.confirmed_at.after(CONFIRMABLE_INTERVAL_MAX);
        match (version == self.version, self.unconfirmed) {
            (true, _) => confirmable_at,
            (false, None) => self.sent_at,
            (false, Some(_)) => self.sent_at.after(self.interval).min(confirmable_at),
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Observers {
    slots: Vec<Option<Observer>>,
    free: Vec<u32>,
    shares: AddressShares,
    by_token: HashMap<(DatagramPath, Token), u32, HashKey>,
    /// The last message of each.
    by_message: HashMap<(DatagramPath, MessageId), u32, HashKey>,
    message_ids: NotificationIds,
    /// Observers to be checked now.
    due: VecDeque<u32>,
    wheel: TimerWheel,
    expired: Vec<u32>,
    clock_offset: Duration,
}

impl Observers {
    pub(super) fn new(hash_key: HashKey, capacity: usize, now: Time) -> Observers {
        Observers {
            slots: Vec::new(),
            free: Vec::new(),
            shares: AddressShares::new(hash_key, capacity),
            by_token: HashMap::with_hasher(hash_key),
            by_message: HashMap::with_hasher(hash_key),
            message_ids: NotificationIds::new(hash_key, capacity),
            due: VecDeque::new(),
            wheel: TimerWheel::new(now, 0),
            expired: Vec::new(),
            clock_offset: Duration::ZERO,
        }
    }

    pub(super) fn set_clock_offset(&mut self, offset: Duration) {
        self.clock_offset = offset;
    }

    pub(super) fn len(&self) -> usize {
        self.shares.held()
    }

    pub(super) fn find(&self, path: &DatagramPath, token: Token) -> Option<ObserverSlot> {
        self.by_token.get(&(*path, token)).copied().map(ObserverSlot)
    }

    /// The observer whose last message has this id.
    pub(super) fn find_message(
        &self,
        path: &DatagramPath,
        id: MessageId,
    ) -> Option<(ObserverSlot, &Observer)> {
        let slot = *self.by_message.get(&(*path, id))?;
        Some((ObserverSlot(slot), self.slots[slot as usize].as_ref()?))
    }

    pub(super) fn slots_of(&self, path: &DatagramPath) -> Vec<ObserverSlot> {
        let of_path = self.by_token.iter().filter(|((other, _), _)| other == path);
        of_path.map(|(_, slot)| ObserverSlot(*slot)).collect()
    }

    pub(super) fn get(&self, slot: ObserverSlot) -> Option<&Observer> {
        self.slots.get(slot.0 as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: ObserverSlot) -> Option<&mut Observer> {
        self.slots.get_mut(slot.0 as usize)?.as_mut()
    }

    /// Adds an observer whose response has the state with this version, and this sequence. `None` without room for its
    /// client; one that `replaces` its own has room.
    pub(super) fn insert(
        &mut self,
        registration: Registration,
        resource: ResourceId,
        (version, sequence): (u64, ObserveSequence),
        replaces: bool,
        now: Time,
    ) -> Option<ObserverSlot> {
        let client = ClientAddress::of(&registration.path);
        if replaces {
            self.shares.add(client, 1);
        } else if !self.shares.try_add(client, 1) {
            return None;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.by_token.insert((registration.path, registration.token), slot);
        self.message_ids.add_observer(&registration.path, registration.request, now);
        let observer = Observer {
            registration,
            resource,
            version,
            sequence,
            last_message: None,
            is_outstanding: false,
            is_retransmitted: false,
            is_queued: false,
            unconfirmed: None,
            confirmed_at: now,
            sent_at: now,
            interval: NOTIFICATION_INTERVAL,
        };
        self.wheel.set(slot, observer.next_at(version));
        self.slots[slot as usize] = Some(observer);
        Some(ObserverSlot(slot))
    }

    pub(super) fn remove(&mut self, slot: ObserverSlot) -> Option<Observer> {
        let observer = self.slots.get_mut(slot.0 as usize)?.take()?;
        let Registration { path, token, .. } = &observer.registration;
        self.by_token.remove(&(*path, *token));
        self.message_ids.remove_observer(path);
        if let Some(id) = observer.last_message {
            self.by_message.remove(&(*path, id));
        }
        if observer.is_queued {
            self.due.retain(|other| *other != slot.0);
        }
        self.wheel.clear(slot.0);
        self.free.push(slot.0);
        self.shares.release(ClientAddress::of(path), 1);
        Some(observer)
    }

    /// Checks an observer in the next turn.
    pub(super) fn make_due(&mut self, slot: ObserverSlot) {
        if let Some(observer) = self.get_mut(slot)
            && !observer.is_outstanding
            && !std::mem::replace(&mut observer.is_queued, true)
        {
            self.due.push_back(slot.0);
        }
    }

    /// The next observer to be notified. `version`: that of a resource.
    pub(super) fn next_due(
        &mut self,
        now: Time,
        version: impl Fn(ResourceId) -> u64,
    ) -> Option<ObserverSlot> {
        self.wheel.expire(now, &mut self.expired);
        while let Some(slot) = self.due.pop_front().or_else(|| self.expired.pop()) {
            let Some(observer) = self.slots[slot as usize].as_mut() else { continue };
            observer.is_queued = false;
            if observer.is_outstanding {
                continue;
            }
            let at = observer.next_at(version(observer.resource));
            if now >= at {
                return Some(ObserverSlot(slot));
            }
            self.wheel.set(slot, at);
        }
        None
    }

    pub(super) fn next_sequence(&mut self, slot: ObserverSlot, now: Time) -> Option<ObserveSequence> {
        let clock = self.sequence_at(now);
        let observer = self.get_mut(slot)?;
        let is_newer = clock.is_newer_than(observer.sequence);
        observer.sequence = if is_newer { clock } else { observer.sequence.next() };
        Some(observer.sequence)
    }

    pub(super) fn next_message_id(&mut self, path: &DatagramPath) -> Option<MessageId> {
        self.message_ids.next(path)
    }

    pub(super) fn notified(
        &mut self,
        slot: ObserverSlot,
        (kind, id): (MessageType, MessageId),
        version: u64,
        now: Time,
    ) {
        let Some(observer) = self.slots.get_mut(slot.0 as usize).and_then(Option::as_mut) else { return };
        let path = observer.registration.path;
        if let Some(last) = observer.last_message.replace(id) {
            self.by_message.remove(&(path, last));
        }
        self.by_message.insert((path, id), slot.0);
        observer.version = version;
        observer.sent_at = now;
        observer.is_outstanding = kind == MessageType::Confirmable;
        if observer.is_outstanding {
            self.wheel.clear(slot.0);
        } else {
            observer.unconfirmed = observer.unconfirmed.map(|count| count + 1);
            self.wheel.set(slot.0, observer.next_at(version));
        }
    }

    pub(super) fn postpone(&mut self, slot: ObserverSlot, until: Time) {
        self.wheel.set(slot.0, until);
    }

    pub(super) fn retransmitted(&mut self, path: &DatagramPath, id: MessageId) {
        if let Some(&slot) = self.by_message.get(&(*path, id))
            && let Some(observer) = self.slots[slot as usize].as_mut()
        {
            observer.is_retransmitted = true;
        }
    }

    pub(super) fn acknowledged(&mut self, path: &DatagramPath, id: MessageId, now: Time) {
        let Some(&slot) = self.by_message.get(&(*path, id)) else { return };
        let Some(observer) = self.slots[slot as usize].as_mut() else { return };
        if !std::mem::take(&mut observer.is_outstanding) {
            return;
        }
        let round_trip = now.since(observer.sent_at);
        let is_measured = !std::mem::take(&mut observer.is_retransmitted);
        observer.interval = if is_measured { round_trip } else { NOTIFICATION_INTERVAL };
        (observer.unconfirmed, observer.confirmed_at) = (Some(0), now);
        self.make_due(ObserverSlot(slot));
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.wheel.next()
    }

    /// The sequence of a first response.
    pub(super) fn sequence_at(&self, now: Time) -> ObserveSequence {
        let nanos = now.after(self.clock_offset).as_nanos();
        ObserveSequence::new((nanos >> SEQUENCE_TICK_BITS) as u32)
    }
}
