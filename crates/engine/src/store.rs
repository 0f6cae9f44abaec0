//! Bounded room for what cannot leave at once: unfinished input, unsent output.
//!
//! Blocks of a few sizes out of lazily touched memory, together never more than a budget. A
//! connection that holds nothing costs nothing; one that holds a few bytes costs 256.
//!
//! ```text
//!  256 B   [■■□□□…]   each size has an arena of its own, reserved once;
//!  1 KiB   [■□□…]     free blocks are chained through their own first bytes
//!  4 KiB   [□…]
//!  16 KiB  [□…]
//!  64 KiB  [□…]     input ends here
//! 256 KiB  [□…]     output goes on: 1 MiB, 4 MiB, 16 MiB
//! ```

/// The sizes of blocks in bytes.
const SIZES: [usize; 9] =
    [256, 1024, 4096, 16 * 1024, 64 * 1024, 256 * 1024, 1024 * 1024, 4 * 1024 * 1024, 16 * 1024 * 1024];

/// How many times its bytes' length a block may take of the budget. (A block for less than 64 bytes takes
/// more than that, and little.)
pub(crate) const BLOCK_WASTE_MAX: usize = SIZES[1] / SIZES[0];

/// The longest run of bytes that a stash of input can hold.
pub const STASH_MAX: usize = 64 * 1024;

/// The longest run of bytes that a stash of output can hold.
pub const OUTPUT_STASH_MAX: usize = SIZES[SIZES.len() - 1];

const NONE: u32 = u32::MAX;
const CLASS_BITS: u32 = 4;

#[derive(Debug)]
struct Arena {
    memory: Vec<u8>,
    /// Blocks beyond this were never used, so their memory is not resident.
    fresh: u32,
    /// The first free block that was used before.
    free: u32,
}

/// The store of a shard.
#[derive(Debug)]
pub struct Store {
    arenas: [Arena; SIZES.len()],
    /// The longest run that is taken.
    longest: usize,
    budget: usize,
    used: usize,
}

impl Store {
    /// A store that holds blocks of at most `budget` bytes in all. A block that was used stays resident
    /// for the next one of its size, so a use that moves through all sizes may come to as many budgets
    /// of resident memory. It takes runs up to [`STASH_MAX`].
    pub fn new(budget: usize) -> Self {
        Store::taking(STASH_MAX, budget)
    }

    /// The same for runs up to [`OUTPUT_STASH_MAX`].
    pub fn of_output(budget: usize) -> Self {
        Store::taking(OUTPUT_STASH_MAX, budget)
    }

    fn taking(longest: usize, budget: usize) -> Self {
        // Zeroed memory of this size comes straight from the system and is not touched here.
        let arenas = SIZES.map(|size| {
            let size_of_all = if size <= longest { budget / size * size } else { 0 };
            Arena { memory: vec![0; size_of_all], fresh: 0, free: NONE }
        });
        Store { arenas, longest, budget, used: 0 }
    }

    /// Bytes that blocks may have in all.
    pub(crate) fn budget(&self) -> usize {
        self.budget
    }

    /// Bytes that one more may hold before half of the store may be full.
    pub(crate) fn spare(&self) -> usize {
        (self.budget / 2).saturating_sub(self.used) / BLOCK_WASTE_MAX
    }

    /// Whether there is room for what is on its way to one who is read on.
    pub(crate) fn has_plenty(&self) -> bool {
        self.spare() >= self.plenty()
    }

    /// A quarter of what is spare in an empty store.
    fn plenty(&self) -> usize {
        self.budget / 2 / BLOCK_WASTE_MAX / 4
    }

    /// Bytes in blocks that are in use.
    pub fn used(&self) -> usize {
        self.used
    }

    fn take(&mut self, len: usize) -> Option<u32> {
        let class = SIZES.iter().position(|size| *size >= len)?;
        let size = SIZES[class];
        if size > self.longest {
            return None;
        }
        if self.used + size > self.budget {
            return None;
        }
        let arena = &mut self.arenas[class];
        let index = match arena.free {
            NONE if (arena.fresh as usize + 1) * size > arena.memory.len() => return None,
            NONE => {
                arena.fresh += 1;
                arena.fresh - 1
            }
            free => {
                let at = free as usize * size;
                arena.free = u32::from_le_bytes(arena.memory[at..at + 4].try_into().expect("four bytes"));
                free
            }
        };
        self.used += size;
        Some(index << CLASS_BITS | class as u32)
    }

    fn put_back(&mut self, block: u32) {
        let (class, index) = split(block);
        let (size, arena) = (SIZES[class], &mut self.arenas[class]);
        arena.memory[index * size..index * size + 4].copy_from_slice(&arena.free.to_le_bytes());
        arena.free = index as u32;
        self.used -= size;
    }

    fn block(&self, block: u32) -> &[u8] {
        let (class, index) = split(block);
        &self.arenas[class].memory[index * SIZES[class]..][..SIZES[class]]
    }

    fn block_mut(&mut self, block: u32) -> &mut [u8] {
        let (class, index) = split(block);
        &mut self.arenas[class].memory[index * SIZES[class]..][..SIZES[class]]
    }

    /// Copies `len` bytes from the start of one block to the start of another.
    fn copy(&mut self, from: u32, start: usize, len: usize, to: u32) {
        let ((from_class, from_index), (to_class, to_index)) = (split(from), split(to));
        debug_assert!(from_class < to_class, "stashes only grow");
        let (low, high) = self.arenas.split_at_mut(to_class);
        let source = &low[from_class].memory[from_index * SIZES[from_class] + start..][..len];
        high[0].memory[to_index * SIZES[to_class]..][..len].copy_from_slice(source);
    }
}

fn split(block: u32) -> (usize, usize) {
    ((block & ((1 << CLASS_BITS) - 1)) as usize, (block >> CLASS_BITS) as usize)
}

/// A run of bytes in a store: appended at its end, consumed at its start. Twelve bytes, and none in
/// the store while it is empty. Must be emptied with [`clear`](Stash::clear) before it is forgotten.
#[derive(Debug, PartialEq, Eq)]
pub struct Stash {
    block: u32,
    start: u32,
    len: u32,
}

impl Default for Stash {
    fn default() -> Self {
        Stash { block: NONE, start: 0, len: 0 }
    }
}

impl Stash {
    /// Bytes held.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes held.
    pub fn bytes<'a>(&self, store: &'a Store) -> &'a [u8] {
        match self.block {
            NONE => &[],
            block => &store.block(block)[self.start as usize..][..self.len as usize],
        }
    }

    /// Bytes that it can hold beyond these without taking more of the store.
    pub(crate) fn free(&self) -> usize {
        match self.block {
            NONE => 0,
            block => SIZES[split(block).0] - self.len(),
        }
    }

    /// Whether there is room for what is on its way here, in its own block or in the store.
    pub(crate) fn has_plenty(&self, store: &Store) -> bool {
        store.has_plenty() || self.free() >= store.plenty()
    }

    /// Adds `bytes` at the end; false (and nothing added) if the store has no room, or takes no runs that long.
    #[must_use]
    pub fn append(&mut self, store: &mut Store, bytes: &[u8]) -> bool {
        if bytes.is_empty() {
            return true;
        }
        let needed = self.len() + bytes.len();
        if self.block == NONE {
            let Some(block) = store.take(needed) else { return false };
            (self.block, self.start) = (block, 0);
        } else if self.start as usize + needed > SIZES[split(self.block).0] {
            if needed <= SIZES[split(self.block).0] {
                let (start, len) = (self.start as usize, self.len());
                store.block_mut(self.block).copy_within(start..start + len, 0);
            } else {
                let Some(larger) = store.take(needed) else { return false };
                store.copy(self.block, self.start as usize, self.len(), larger);
                store.put_back(self.block);
                self.block = larger;
            }
            self.start = 0;
        }
        let end = self.start as usize + self.len();
        store.block_mut(self.block)[end..end + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u32;
        true
    }

    /// Drops `count` bytes from the start; an emptied stash gives its block back.
    pub fn consume(&mut self, store: &mut Store, count: usize) {
        assert!(count <= self.len(), "consumed {count} of {} bytes", self.len);
        self.start += count as u32;
        self.len -= count as u32;
        if self.len == 0 {
            self.clear(store);
        }
    }

    /// Drops everything.
    pub fn clear(&mut self, store: &mut Store) {
        if self.block != NONE {
            store.put_back(self.block);
        }
        *self = Stash::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Append(usize, Vec<u8>),
        Consume(usize, usize),
        Clear(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0usize..4, prop::collection::vec(any::<u8>(), 0..6000))
                .prop_map(|(at, bytes)| Step::Append(at, bytes)),
            (0usize..4, 0usize..9000).prop_map(|(at, count)| Step::Consume(at, count)),
            (0usize..4).prop_map(Step::Clear),
        ]
    }

    proptest! {
        #[test]
        fn stashes_agree_with_plain_vectors_and_give_all_blocks_back(steps in prop::collection::vec(step(), 1..60)) {
            let mut store = Store::new(128 * 1024);
            let mut stashes: [Stash; 4] = Default::default();
            let mut oracle: [Vec<u8>; 4] = Default::default();
            for step in steps {
                match step {
                    Step::Append(at, bytes) => {
                        if stashes[at].append(&mut store, &bytes) {
                            oracle[at].extend(&bytes);
                        }
                    }
                    Step::Consume(at, count) => {
                        let count = count.min(oracle[at].len());
                        stashes[at].consume(&mut store, count);
                        oracle[at].drain(..count);
                    }
                    Step::Clear(at) => {
                        stashes[at].clear(&mut store);
                        oracle[at].clear();
                    }
                }
                for (stash, oracle) in stashes.iter().zip(&oracle) {
                    prop_assert_eq!(stash.bytes(&store), &oracle[..]);
                }
                prop_assert!(store.used() <= 128 * 1024);
            }
            stashes.iter_mut().for_each(|stash| stash.clear(&mut store));
            prop_assert_eq!(store.used(), 0);
        }
    }

    #[test]
    fn a_full_store_refuses_and_recovers() {
        let mut store = Store::new(1024);
        let mut stashes: [Stash; 5] = Default::default();
        for stash in &mut stashes[..4] {
            assert!(stash.append(&mut store, b"x"));
        }
        assert!(!stashes[4].append(&mut store, b"x"), "the budget of four blocks is used up");
        stashes[0].clear(&mut store);
        assert!(stashes[4].append(&mut store, b"x"));
    }

    #[test]
    fn a_run_longer_than_the_largest_block_is_refused() {
        for (mut store, longest) in
            [(Store::new(16 << 20), STASH_MAX), (Store::of_output(16 << 20), OUTPUT_STASH_MAX)]
        {
            let mut stash = Stash::default();
            assert!(!stash.append(&mut store, &vec![0; longest + 1]));
            assert!(stash.append(&mut store, &vec![0; longest]));
            assert!(!stash.append(&mut store, b"x"));
            assert_eq!(stash.len(), longest);
            stash.clear(&mut store);
            assert_eq!(store.used(), 0);
        }
    }
}
