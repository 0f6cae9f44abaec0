//! Observed resources, each with its newest state.

use std::collections::{HashMap, VecDeque};

use stilling_hub::HashKey;

use super::super::address_shares::{AddressShares, ClientAddress};
use super::super::body_cache::ETag;
use super::super::demo_observables::DemoObservable;
use super::super::limits::{FILTER_READS_MAX, OBSERVED_STATE_SIZE_MAX, OBSERVED_STATES_SIZE_MAX};
use super::super::pending::PendingId;
use super::observers::ObserverSlot;

/// What can be observed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in super::super) enum ObservableKey {
    Demo(DemoObservable),
    /// The messages of a checked filter.
    Filter(Box<[u8]>),
}

impl ObservableKey {
    /// Whether all its notifications are confirmable.
    pub(super) fn is_always_confirmable(&self) -> bool {
        *self == ObservableKey::Demo(DemoObservable::Obs)
    }
}

/// Identifies a resource. A reused slot has another generation, so an id is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ResourceId {
    generation: u64,
    slot: u32,
}

/// A request that waits until a resource is complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingRequest {
    pub(super) exchange: PendingId,
    pub(super) client: ClientAddress,
}

#[derive(Debug)]
pub(super) struct ObservedResource {
    pub(super) key: ObservableKey,
    /// The client whose shares it counts towards; `None` for a demo resource.
    pub(super) owner: Option<ClientAddress>,
    generation: u64,
    version: u64,
    pub(super) state: Option<Vec<u8>>,
    /// Bytes of the longest state so far.
    state_size: usize,
    /// Of the state, if it has been asked for.
    pub(super) etag: Option<ETag>,
    is_complete: bool,
    /// The newest message is too long or has no room.
    is_newest_dropped: bool,
    pub(super) waiting: Vec<WaitingRequest>,
    pub(super) observers: Vec<ObserverSlot>,
    has_changed: bool,
}

impl ObservedResource {
    /// The version of the state. A new state has a new version.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Whether it has every state up to now. Before, its filter is being read.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Whether it has no state because its messages are too long or have no room.
    pub(super) fn lacks_state(&self) -> bool {
        self.state.is_none() && self.is_newest_dropped
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct ObservedResources {
    slots: Vec<Option<ObservedResource>>,
    free: Vec<u32>,
    shares: AddressShares,
    /// Of the resources that are not complete.
    read_shares: AddressShares,
    by_key: HashMap<ObservableKey, u32, HashKey>,
    generations: u64,
    /// Resources with a new state.
    changed: VecDeque<ResourceId>,
    /// Resources to be checked for observers and waiting requests.
    unused: Vec<ResourceId>,
    /// Of the bytes of all states.
    state_shares: AddressShares,
}

impl ObservedResources {
    pub(super) fn new(hash_key: HashKey, capacity: usize) -> ObservedResources {
        ObservedResources {
            slots: Vec::new(),
            free: Vec::new(),
            shares: AddressShares::new(hash_key, capacity),
            read_shares: AddressShares::new(hash_key, FILTER_READS_MAX),
            by_key: HashMap::with_hasher(hash_key),
            generations: 0,
            changed: VecDeque::new(),
            unused: Vec::new(),
            state_shares: AddressShares::new(hash_key, OBSERVED_STATES_SIZE_MAX),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn get(&self, id: ResourceId) -> Option<&ObservedResource> {
        let resource = self.slots.get(id.slot as usize)?.as_ref()?;
        (resource.generation == id.generation).then_some(resource)
    }

    pub(super) fn get_mut(&mut self, id: ResourceId) -> Option<&mut ObservedResource> {
        let resource = self.slots.get_mut(id.slot as usize)?.as_mut()?;
        (resource.generation == id.generation).then_some(resource)
    }

    pub(super) fn find(&self, key: &ObservableKey) -> Option<ResourceId> {
        let slot = *self.by_key.get(key)?;
        let generation = self.slots[slot as usize].as_ref()?.generation;
        Some(ResourceId { generation, slot })
    }

    /// Finds a resource, or adds it for a client. `None` without room for the client.
    pub(super) fn find_or_insert(
        &mut self,
        key: &ObservableKey,
        client: ClientAddress,
    ) -> Option<ResourceId> {
        if let Some(id) = self.find(key) {
            return Some(id);
        }
        let owner = matches!(key, ObservableKey::Filter(_)).then_some(client);
        if let Some(owner) = owner {
            if !self.shares.try_add(owner, 1) {
                return None;
            }
            if !self.read_shares.try_add(owner, 1) {
                self.shares.release(owner, 1);
                return None;
            }
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.generations += 1;
        let id = ResourceId { generation: self.generations, slot };
        self.slots[slot as usize] = Some(ObservedResource {
            key: key.clone(),
            owner,
            generation: id.generation,
            version: 0,
            state: None,
            state_size: 0,
            etag: None,
            is_complete: false,
            is_newest_dropped: false,
            waiting: Vec::new(),
            observers: Vec::new(),
            has_changed: false,
        });
        self.by_key.insert(key.clone(), slot);
        // A resource that nothing uses before the next release is removed by it.
        self.unused.push(id);
        Some(id)
    }

    pub(super) fn set_version(&mut self, id: ResourceId, version: u64) {
        if let Some(resource) = self.get_mut(id).filter(|resource| resource.version != version) {
            resource.version = version;
            if !std::mem::replace(&mut resource.has_changed, true) {
                self.changed.push_back(id);
            }
        }
    }

    /// Notes that a resource has every state up to now.
    pub(super) fn set_complete(&mut self, id: ResourceId) {
        let Some(resource) = self.get_mut(id) else { return };
        let was_complete = std::mem::replace(&mut resource.is_complete, true);
        if let Some(owner) = resource.owner.filter(|_| !was_complete) {
            self.read_shares.release(owner, 1);
        }
    }

    /// Replaces the state. A state without room in the owner's share is not stored, and the older one stays.
    pub(super) fn set_state(&mut self, id: ResourceId, state: &[u8]) -> bool {
        let Some(resource) = self.get(id) else { return true };
        let (owner, old) = (resource.owner, resource.state_size);
        let growth = state.len().saturating_sub(old);
        if state.len() > OBSERVED_STATE_SIZE_MAX
            || owner.is_some_and(|owner| growth > 0 && !self.state_shares.try_add(owner, growth))
        {
            return false;
        }
        let Some(resource) = self.get_mut(id) else { return true };
        resource.state_size = old + growth;
        resource.is_newest_dropped = false;
        resource.etag = None;
        let stored = resource.state.get_or_insert_default();
        stored.clear();
        stored.reserve_exact(state.len());
        stored.extend_from_slice(state);
        let version = resource.version + 1;
        self.set_version(id, version);
        true
    }

    /// Notes that the newest message is not stored.
    pub(super) fn note_dropped(&mut self, id: ResourceId) {
        if let Some(resource) = self.get_mut(id) {
            resource.is_newest_dropped = true;
        }
    }

    /// Counts a resource towards another client, if that has room for a state of this size.
    pub(super) fn try_set_owner(&mut self, id: ResourceId, client: ClientAddress, size: usize) -> bool {
        let Some(resource) = self.get(id) else { return false };
        let (Some(owner), old) = (resource.owner, resource.state_size) else { return false };
        let new = old.max(size);
        self.state_shares.release(owner, old);
        if !self.state_shares.try_add(client, new) {
            self.state_shares.add(owner, old);
            return false;
        }
        self.move_resource(id, owner, client, new);
        true
    }

    /// Counts a resource towards another client, whatever its shares are.
    pub(super) fn set_owner(&mut self, id: ResourceId, client: ClientAddress) {
        let Some(resource) = self.get(id) else { return };
        let (Some(owner), size) = (resource.owner, resource.state_size) else { return };
        self.state_shares.release(owner, size);
        self.state_shares.add(client, size);
        self.move_resource(id, owner, client, size);
    }

    fn move_resource(&mut self, id: ResourceId, from: ClientAddress, to: ClientAddress, state_size: usize) {
        self.shares.release(from, 1);
        self.shares.add(to, 1);
        let Some(resource) = self.get_mut(id) else { return };
        (resource.owner, resource.state_size) = (Some(to), state_size);
        if !resource.is_complete {
            self.read_shares.release(from, 1);
            self.read_shares.add(to, 1);
        }
    }

    /// The next resource with a new state.
    pub(super) fn next_changed(&mut self) -> Option<ResourceId> {
        let id = self.changed.pop_front()?;
        if let Some(resource) = self.get_mut(id) {
            resource.has_changed = false;
        }
        Some(id)
    }

    /// Marks a resource without observers for [`remove_unused`](Self::remove_unused), which removes it unless requests wait
    /// for it.
    pub(super) fn note_unused(&mut self, id: ResourceId) {
        let is_unused = self.get(id).is_some_and(|resource| resource.observers.is_empty());
        if is_unused && !self.unused.contains(&id) {
            self.unused.push(id);
        }
    }

    /// Removes the next resource that nothing needs.
    pub(super) fn remove_unused(&mut self) -> Option<(ResourceId, ObservableKey)> {
        while let Some(id) = self.unused.pop() {
            let Some(resource) = self.get(id) else { continue };
            if resource.observers.is_empty() && resource.waiting.is_empty() {
                let resource = self.slots[id.slot as usize].take()?;
                if let Some(owner) = resource.owner {
                    self.shares.release(owner, 1);
                    self.state_shares.release(owner, resource.state_size);
                    self.read_shares.release(owner, usize::from(!resource.is_complete));
                }
                self.by_key.remove(&resource.key);
                self.free.push(id.slot);
                return Some((id, resource.key));
            }
        }
        None
    }
}
