//! Observations (RFC 7641): resources with their newest state, and the clients that are notified of it.
//!
//! ```text
//!   state ─▶ ObservedResources ─▶ changed ─▶ Observers ─▶ due ─┬─▶ non-confirmable notification
//!                                               ▲              └─▶ Transmissions ─▶ acknowledgement ─┐
//!                                               └────────── a newer state meanwhile? ◀───────────────┘
//! ```
//!
//! A resource has one state, the newest, and an observer has at most one notification in flight. So a slow client gets
//! fewer states and no queue, and a state costs the same for any number of slow clients.

mod notification_ids;
mod observers;
mod resources;

use std::time::Duration;

use stilling_engine::DatagramPath;
use stilling_hub::HashKey;
use stilling_ring::Time;
use stilling_wire::coap::{ContentFormat, MessageId, MessageType, ObserveSequence, Token};

pub(super) use self::observers::{Observer, ObserverSlot, Registration};
pub(super) use self::resources::{ObservableKey, ResourceId};

use self::observers::Observers;
use self::resources::{ObservedResource, ObservedResources, WaitingRequest};
use super::address_shares::ClientAddress;
use super::body_cache::{ETag, etag_of};
use super::limits::{OBSERVED_RESOURCES_MAX, OBSERVED_STATE_SIZE_MAX, OBSERVERS_MAX, STATE_OWNERS_TRIED_MAX};
use super::pending::PendingId;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Observations {
    resources: ObservedResources,
    observers: Observers,
}

impl Observations {
    pub(super) fn new(hash_key: HashKey, now: Time) -> Observations {
        Observations {
            resources: ObservedResources::new(hash_key, OBSERVED_RESOURCES_MAX),
            observers: Observers::new(hash_key, OBSERVERS_MAX, now),
        }
    }

    /// Sets the distance between the times of this endpoint and the system's clock. Sequences of notifications then also
    /// increase over a restart.
    pub(super) fn set_clock_offset(&mut self, offset: Duration) {
        self.observers.set_clock_offset(offset);
    }

    /// Observers now.
    pub(super) fn len(&self) -> usize {
        self.observers.len()
    }

    /// Observed resources now.
    pub(super) fn resources(&self) -> usize {
        self.resources.len()
    }

    /// Whether a client observes something under this token.
    pub(super) fn is_registered(&self, path: &DatagramPath, token: Token) -> bool {
        self.observers.find(path, token).is_some()
    }

    /// An observed resource.
    pub(super) fn find_resource(&self, key: &ObservableKey) -> Option<ResourceId> {
        self.resources.find(key)
    }

    /// Whether a resource has observers.
    pub(super) fn is_observed(&self, resource: ResourceId) -> bool {
        self.resources.get(resource).is_some_and(|resource| !resource.observers.is_empty())
    }

    /// The key of a resource.
    pub(super) fn key(&self, resource: ResourceId) -> Option<&ObservableKey> {
        Some(&self.resources.get(resource)?.key)
    }

    /// Gets a resource, which is added for a client if it is new. `None` without room for the client.
    pub(super) fn resource(&mut self, key: &ObservableKey, client: ClientAddress) -> Option<ResourceId> {
        self.resources.find_or_insert(key, client)
    }

    /// Adds an observer, or refreshes its registration. Returns the sequence of the response. `None` without
    /// room for the client.
    pub(super) fn register(
        &mut self,
        registration: Registration,
        resource: ResourceId,
        now: Time,
    ) -> Option<ObserveSequence> {
        let version = self.resources.get(resource)?.version();
        let known = self.observers.find(&registration.path, registration.token);
        let next = known.and_then(|slot| self.observers.next_sequence(slot, now));
        known.into_iter().for_each(|slot| self.remove(slot));
        let sequence = next.unwrap_or_else(|| self.observers.sequence_at(now));
        let replaces = known.is_some();
        let slot = self.observers.insert(registration, resource, (version, sequence), replaces, now)?;
        self.resources.get_mut(resource)?.observers.push(slot);
        self.update_owner(resource);
        Some(sequence)
    }

    /// Ends the observation of a client under this token.
    pub(super) fn deregister(&mut self, path: &DatagramPath, token: Token) {
        if let Some(slot) = self.observers.find(path, token) {
            self.remove(slot);
        }
    }

    /// Ends an observation. A resource without observers stays until [`release`](Self::release).
    pub(super) fn remove(&mut self, slot: ObserverSlot) {
        let Some(observer) = self.observers.remove(slot) else { return };
        if let Some(resource) = self.resources.get_mut(observer.resource()) {
            resource.observers.retain(|other| *other != slot);
            self.resources.note_unused(observer.resource());
            self.update_owner(observer.resource());
        }
    }

    /// Counts a resource towards one of its observers' clients, if its owner observes it no longer.
    fn update_owner(&mut self, id: ResourceId) {
        let Some(resource) = self.resources.get(id) else { return };
        let clients =
            resource.observers.iter().filter_map(|slot| self.observers.get(*slot)).map(Observer::client);
        let first = clients.clone().next();
        let is_owned = clients.map(Some).any(|client| client == resource.owner);
        if let Some(client) = first.filter(|_| !is_owned) {
            self.resources.set_owner(id, client);
        }
    }

    /// The next resource that nothing needs any more; it has been removed.
    pub(super) fn release(&mut self) -> Option<(ResourceId, ObservableKey)> {
        self.resources.remove_unused()
    }

    /// Sets the version of a resource's state. Its observers of another version are notified.
    pub(super) fn set_version(&mut self, resource: ResourceId, version: u64) {
        self.resources.set_version(resource, version);
    }

    /// Sets the state of a resource. Returns whether there was room for it, in the share of any of its clients.
    pub(super) fn set_state(&mut self, resource: ResourceId, state: &[u8]) -> bool {
        let is_stored = self.resources.set_state(resource, state)
            || self.find_owner(resource, state.len()) && self.resources.set_state(resource, state);
        if !is_stored {
            self.resources.note_dropped(resource);
        }
        is_stored
    }

    /// Counts a resource towards a client that waits for it or observes it and has room for a state of this size.
    fn find_owner(&mut self, id: ResourceId, size: usize) -> bool {
        let Some(resource) = self.resources.get(id).filter(|_| size <= OBSERVED_STATE_SIZE_MAX) else {
            return false;
        };
        // The owner has no room.
        let mut tried: Vec<_> = resource.owner.into_iter().collect();
        let waiting = resource.waiting.iter().map(|request| request.client);
        let observing = resource.observers.iter().filter_map(|slot| self.observers.get(*slot));
        for client in waiting.chain(observing.map(Observer::client)) {
            if tried.len() > STATE_OWNERS_TRIED_MAX {
                break;
            }
            if !tried.contains(&client) {
                tried.push(client);
            }
        }
        tried.into_iter().skip(1).any(|client| self.resources.try_set_owner(id, client, size))
    }

    /// Notes that a resource has every state up to now.
    pub(super) fn set_complete(&mut self, resource: ResourceId) {
        self.resources.set_complete(resource);
    }

    /// Whether a resource has every state up to now.
    pub(super) fn is_complete(&self, resource: ResourceId) -> bool {
        self.resources.get(resource).is_some_and(ObservedResource::is_complete)
    }

    /// Whether a resource has no state because its messages are too long or have no room.
    pub(super) fn lacks_state(&self, resource: ResourceId) -> bool {
        self.resources.get(resource).is_some_and(ObservedResource::lacks_state)
    }

    /// The state of a resource.
    pub(super) fn state(&self, resource: ResourceId) -> Option<&[u8]> {
        self.resources.get(resource)?.state.as_deref()
    }

    /// The validator of a resource's state in this format.
    pub(super) fn etag(&mut self, resource: ResourceId, format: ContentFormat) -> Option<ETag> {
        let ObservedResource { state, etag, .. } = self.resources.get_mut(resource)?;
        let state = state.as_ref()?;
        Some(*etag.get_or_insert_with(|| etag_of(Some(format), state)))
    }

    /// Makes a client's request wait for a resource.
    pub(super) fn wait(&mut self, resource: ResourceId, exchange: PendingId, client: ClientAddress) {
        if let Some(resource) = self.resources.get_mut(resource) {
            resource.waiting.push(WaitingRequest { exchange, client });
        }
    }

    /// Takes the requests that wait for a resource.
    pub(super) fn take_waiting(&mut self, resource: ResourceId) -> Vec<PendingId> {
        self.resources.note_unused(resource);
        let waiting = self.resources.get_mut(resource).map(|resource| std::mem::take(&mut resource.waiting));
        waiting.into_iter().flatten().map(|request| request.exchange).collect()
    }

    /// Notes that a request no longer waits for a resource.
    pub(super) fn stop_waiting(&mut self, resource: ResourceId, exchange: PendingId) {
        if let Some(found) = self.resources.get_mut(resource) {
            found.waiting.retain(|waiting| waiting.exchange != exchange);
            self.resources.note_unused(resource);
        }
    }

    /// The requests that wait for a resource.
    pub(super) fn waiting(&self, resource: ResourceId) -> impl Iterator<Item = PendingId> {
        let waiting = self.resources.get(resource).map(|resource| &resource.waiting);
        waiting.into_iter().flatten().map(|request| request.exchange)
    }

    /// Ends all observations of a resource, without a notification.
    pub(super) fn remove_observers(&mut self, resource: ResourceId) {
        let observers =
            self.resources.get_mut(resource).map(|resource| std::mem::take(&mut resource.observers));
        for slot in observers.into_iter().flatten() {
            self.observers.remove(slot);
        }
        self.resources.note_unused(resource);
    }

    /// The next observer to be notified now. The caller calls [`notified`](Self::notified),
    /// [`postpone`](Self::postpone) or [`remove`](Self::remove).
    pub(super) fn next_due(&mut self, now: Time) -> Option<ObserverSlot> {
        while let Some(changed) = self.resources.next_changed() {
            let Some(resource) = self.resources.get(changed) else { continue };
            resource.observers.iter().for_each(|slot| self.observers.make_due(*slot));
        }
        let resources = &self.resources;
        let version = |resource| resources.get(resource).map_or(0, ObservedResource::version);
        self.observers.next_due(now, version)
    }

    /// An observer.
    pub(super) fn observer(&mut self, slot: ObserverSlot) -> Option<&mut Observer> {
        self.observers.get_mut(slot)
    }

    /// Whether the next notification of an observer is confirmable.
    pub(super) fn is_confirmable_due(&self, slot: ObserverSlot, now: Time) -> bool {
        let Some(observer) = self.observers.get(slot) else { return false };
        let resource = self.resources.get(observer.resource());
        resource.is_some_and(|resource| resource.key.is_always_confirmable())
            || observer.is_confirmable_due(now)
    }

    /// The sequence of an observer's next notification.
    pub(super) fn next_sequence(&mut self, slot: ObserverSlot, now: Time) -> Option<ObserveSequence> {
        self.observers.next_sequence(slot, now)
    }

    /// The id of the next notification for a client; `None` if it observes nothing.
    pub(super) fn next_message_id(&mut self, path: &DatagramPath) -> Option<MessageId> {
        self.observers.next_message_id(path)
    }

    /// A notification with the current state has been sent, or passed to the transmissions.
    pub(super) fn notified(&mut self, slot: ObserverSlot, kind: MessageType, id: MessageId, now: Time) {
        let Some(resource) = self.observers.get_mut(slot).map(|observer| observer.resource()) else { return };
        let version = self.resources.get(resource).map_or(0, ObservedResource::version);
        self.observers.notified(slot, (kind, id), version, now);
    }

    /// Notifies an observer later: there is no room for its notification.
    pub(super) fn postpone(&mut self, slot: ObserverSlot, until: Time) {
        self.observers.postpone(slot, until);
    }

    /// The observer whose unacknowledged notification has this id and an older state than its resource.
    pub(super) fn outdated(&self, path: &DatagramPath, id: MessageId) -> Option<ObserverSlot> {
        let (slot, observer) = self.observers.find_message(path, id)?;
        let resource = self.resources.get(observer.resource())?;
        (observer.is_outstanding() && observer.version() != resource.version()).then_some(slot)
    }

    /// A notification is sent again, so its acknowledgement does not show the time of a round trip.
    pub(super) fn retransmitted(&mut self, path: &DatagramPath, id: MessageId) {
        self.observers.retransmitted(path, id);
    }

    /// A message is acknowledged.
    pub(super) fn acknowledged(&mut self, path: &DatagramPath, id: MessageId, now: Time) {
        self.observers.acknowledged(path, id, now);
    }

    /// A message is rejected. If it is the last notification of an observer, the observation ends. Returns whether it is.
    pub(super) fn rejected(&mut self, path: &DatagramPath, id: MessageId) -> bool {
        let found = self.observers.find_message(path, id).map(|(slot, _)| slot);
        found.into_iter().for_each(|slot| self.remove(slot));
        found.is_some()
    }

    /// A message was not acknowledged in time. If it is a notification, all observations of its client end. Returns
    /// their number.
    pub(super) fn timed_out(&mut self, path: &DatagramPath, id: MessageId) -> u64 {
        if self.observers.find_message(path, id).is_none() {
            return 0;
        }
        let of_client = self.observers.slots_of(path);
        let count = of_client.len() as u64;
        of_client.into_iter().for_each(|slot| self.remove(slot));
        count
    }

    /// When an observer must be notified next.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.observers.next_deadline()
    }
}

#[cfg(test)]
mod tests;
