//! A table with reusable keys that never name a former entry.

/// The key of an entry: its index, and how often the index was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlabKey {
    index: u32,
    generation: u32,
}

impl SlabKey {
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        SlabKey { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

#[derive(Debug)]
struct SlabEntry<T> {
    generation: u32,
    value: Option<T>,
}

#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<SlabEntry<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Adds a value; its key is known only afterwards.
    pub(crate) fn insert(&mut self, value: T) -> SlabKey {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(SlabEntry { generation: 0, value: None });
            (self.entries.len() - 1) as u32
        });
        let entry = &mut self.entries[index as usize];
        entry.value = Some(value);
        SlabKey { index, generation: entry.generation }
    }

    pub(crate) fn get(&self, key: SlabKey) -> Option<&T> {
        let entry = self.entries.get(key.index as usize)?;
        entry.value.as_ref().filter(|_| entry.generation == key.generation)
    }

    pub(crate) fn remove(&mut self, key: SlabKey) -> Option<T> {
        self.get(key)?;
        let entry = &mut self.entries[key.index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(key.index);
        entry.value.take()
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (SlabKey, &T)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| {
            let key = SlabKey { index: index as u32, generation: entry.generation };
            Some((key, entry.value.as_ref()?))
        })
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|entry| entry.value.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_key_finds_nothing() {
        let mut slab = Slab::default();
        let former = slab.insert('a');
        assert_eq!(slab.remove(former), Some('a'));
        let current = slab.insert('b');
        assert_eq!((slab.get(former), slab.get(current)), (None, Some(&'b')));
        assert_eq!(slab.remove(former), None);
        assert_eq!(slab.values().count(), 1);
        assert_eq!(SlabKey::from_bits(current.to_bits()), current);
    }
}
