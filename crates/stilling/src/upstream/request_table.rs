//! A table of requests by id. Its slots have generations, so that ids are never reused.

/// A pool of worker processes, by its position in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PoolIndex(pub(super) u8);

impl PoolIndex {
    /// The indexes of the pools, in order.
    pub(crate) fn all() -> impl Iterator<Item = PoolIndex> {
        (0..=u8::MAX).map(PoolIndex)
    }

    /// The position.
    pub(crate) fn position(self) -> usize {
        usize::from(self.0)
    }
}

/// The id of a request, unique within its shard for all time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestId {
    index: u32,
    generation: u32,
    pub(super) pool: PoolIndex,
}

pub(super) struct RequestTable<T> {
    pool: PoolIndex,
    slots: Vec<RequestSlot<T>>,
    /// Slots without a value that can be reused.
    free: Vec<u32>,
}

struct RequestSlot<T> {
    generation: u32,
    value: Option<T>,
}

#[cfg(test)]
impl RequestId {
    /// An id of the first pool, for tests of other modules.
    pub(crate) fn for_test(index: u32) -> RequestId {
        RequestId { index, generation: 0, pool: PoolIndex(0) }
    }
}

impl<T> RequestTable<T> {
    pub(super) fn new(pool: PoolIndex) -> Self {
        RequestTable { pool, slots: Vec::new(), free: Vec::new() }
    }

    /// The id for the next [`insert`](Self::insert).
    pub(super) fn next_id(&mut self) -> RequestId {
        let index = self.free.last().copied().unwrap_or_else(|| {
            let index = self.slots.len() as u32;
            self.slots.push(RequestSlot { generation: 0, value: None });
            self.free.push(index);
            index
        });
        RequestId { index, generation: self.slots[index as usize].generation, pool: self.pool }
    }

    /// Adds a request under the id that [`next_id`](Self::next_id) has just returned.
    pub(super) fn insert(&mut self, id: RequestId, value: T) {
        let index = self.free.pop();
        debug_assert_eq!(index, Some(id.index), "the id is the next one");
        self.slots[id.index as usize].value = Some(value);
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&T> {
        let slot = self.slots.get(id.index as usize)?;
        slot.value.as_ref().filter(|_| slot.generation == id.generation)
    }

    pub(super) fn get_mut(&mut self, id: RequestId) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.index as usize)?;
        slot.value.as_mut().filter(|_| slot.generation == id.generation)
    }

    pub(super) fn remove(&mut self, id: RequestId) -> Option<T> {
        let slot = self.slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation)?;
        let value = slot.value.take()?;
        // A slot without unused generations is retired.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(id.index);
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(table: &mut RequestTable<u32>, value: u32) -> RequestId {
        let id = table.next_id();
        table.insert(id, value);
        id
    }

    #[test]
    fn the_id_of_a_removed_request_finds_nothing() {
        let mut table = RequestTable::new(PoolIndex(0));
        let (first, second) = (insert(&mut table, 1), insert(&mut table, 2));
        assert_eq!((table.get(first), table.get(second)), (Some(&1), Some(&2)));
        assert_eq!((table.remove(first), table.remove(first)), (Some(1), None));
        // Its slot is reused.
        let third = insert(&mut table, 3);
        assert!(third.index == first.index && third != first);
        assert_eq!(table.get(first), None);
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.get(third), Some(&3));
        assert_eq!(table.get_mut(second), Some(&mut 2));
    }

    #[test]
    fn an_unused_id_is_reused() {
        let mut table = RequestTable::new(PoolIndex(0));
        let id = table.next_id();
        assert_eq!((table.next_id(), table.get(id)), (id, None));
        table.insert(id, 1);
        assert_ne!(table.next_id(), id);
    }

    #[test]
    fn a_slot_without_generations_left_is_retired() {
        let mut table = RequestTable::new(PoolIndex(0));
        let id = insert(&mut table, 1);
        table.slots[id.index as usize].generation = u32::MAX;
        let last = RequestId { generation: u32::MAX, ..id };
        assert_eq!(table.remove(last), Some(1));
        assert_ne!(table.next_id().index, id.index);
    }
}
