//! Bounded stores for unfinished input and unsent output.
//!
//! A store allocates blocks of a few sizes within one budget. A connection without held bytes uses no block; one with a
//! few bytes uses 256.
//!
//! ```text
//!  256 B   [■■□□□…]   each size has an arena of its own, reserved once;
//!  1 KiB   [■□□…]     free blocks are chained through their own first bytes
//!  4 KiB   [□…]
//!  16 KiB  [□…]
//!  64 KiB  [□…]     input ends here
//! 256 KiB  [□…]     output only; then 1 MiB, 4 MiB, 16 MiB
//! ```

/// Block sizes in bytes.
const SIZES: [usize; 9] =
    [256, 1024, 4096, 16 * 1024, 64 * 1024, 256 * 1024, 1024 * 1024, 4 * 1024 * 1024, 16 * 1024 * 1024];

/// Maximum ratio of a block's size to the length it holds. (A block for less than 64 bytes exceeds it, but is small.)
pub(crate) const BLOCK_WASTE_MAX: usize = SIZES[1] / SIZES[0];

/// Longest byte string that a stash of input can hold.
pub const STASH_MAX: usize = 64 * 1024;

/// Longest byte string that a stash of output can hold.
pub const OUTPUT_STASH_MAX: usize = SIZES[SIZES.len() - 1];

/// A block longer than [`STASH_MAX`] is compacted only when a quarter of it is free at its start: the copy is then at
/// most three times the bytes consumed since the last one. Otherwise the bytes move to a block of the next size.
const COMPACT_FRACTION: usize = 4;

/// The same if no longer block can be allocated: with a sixteenth free, a block is compacted before its owner gets an
/// error. The copy is then at most 15 times the consumed bytes.
const LAST_COMPACT_FRACTION: usize = 16;

const NONE: u32 = u32::MAX;
const CLASS_BITS: u32 = 4;

#[derive(Debug)]
struct SizeClass {
    memory: Vec<u8>,
    /// Blocks from this index on were never used, so their memory is not resident.
    used_count: u32,
    /// Head of the list of free blocks that were used before.
    free: u32,
    /// Shared stores only: one entry per block that was ever used.
    links: Vec<BlockLink>,
    /// Shared stores only: the blocks in use, linked in order of allocation.
    oldest: u32,
    newest: u32,
}

/// A block's owner and its neighbours in the list of its size. Stale while the block is free.
#[derive(Clone, Copy, Debug)]
struct BlockLink {
    owner: u32,
    older: u32,
    newer: u32,
}

impl SizeClass {
    fn new(size: usize, blocks: usize, is_shared: bool) -> Self {
        SizeClass {
            // Zeroed memory of this size is mapped lazily: it is not touched here; nor are the links.
            memory: vec![0; blocks * size],
            links: Vec::with_capacity(if is_shared { blocks } else { 0 }),
            used_count: 0,
            free: NONE,
            oldest: NONE,
            newest: NONE,
        }
    }

    fn allocate(&mut self, size: usize) -> Option<u32> {
        match self.free {
            NONE if (self.used_count as usize + 1) * size > self.memory.len() => None,
            NONE => {
                self.used_count += 1;
                Some(self.used_count - 1)
            }
            free => {
                let at = free as usize * size;
                self.free = u32::from_le_bytes(self.memory[at..at + 4].try_into().expect("four bytes"));
                Some(free)
            }
        }
    }

    fn free_block(&mut self, index: usize, size: usize) {
        self.memory[index * size..index * size + 4].copy_from_slice(&self.free.to_le_bytes());
        self.free = index as u32;
    }

    fn link(&mut self, index: u32, owner: u32) {
        let link = BlockLink { owner, older: self.newest, newer: NONE };
        match self.links.get_mut(index as usize) {
            Some(entry) => *entry = link,
            // Blocks are first used in index order.
            None => self.links.push(link),
        }
        match self.newest {
            NONE => self.oldest = index,
            newest => self.links[newest as usize].newer = index,
        }
        self.newest = index;
    }

    fn unlink(&mut self, index: u32) {
        let BlockLink { older, newer, .. } = self.links[index as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer as usize].older = older,
        }
    }
}

/// The store of a shard.
///
/// A store of input is strict: an append that exceeds the budget fails. A store of output is shared: it may allocate
/// one block beyond the budget, and the shard then frees blocks of the largest size in use (`largest_owners`). With `n`
/// blocks in use these are longer than `budget / n`, and after shrinking at most `BLOCK_WASTE_MAX` times as long as
/// their content. So an owner that holds at most a quarter of that share is never disconnected.
#[derive(Debug)]
pub struct StashStore {
    size_classes: [SizeClass; SIZES.len()],
    longest: usize,
    budget: usize,
    used: usize,
    is_shared: bool,
}

impl StashStore {
    /// A store with at most `budget` bytes of blocks in total, for byte strings up to [`STASH_MAX`]. Used memory stays
    /// resident, so a changing load may make one budget per block size resident.
    pub fn new(budget: usize) -> Self {
        StashStore::with_limits(STASH_MAX, budget, false)
    }

    /// A shared store for byte strings up to [`OUTPUT_STASH_MAX`]. It may briefly exceed its budget by one block.
    pub fn for_output(budget: usize) -> Self {
        StashStore::with_limits(OUTPUT_STASH_MAX, budget, true)
    }

    fn with_limits(longest: usize, budget: usize, is_shared: bool) -> Self {
        let size_classes = SIZES.map(|size| {
            // All blocks but one are within the budget.
            let blocks = if size <= longest { budget / size } else { 0 };
            let beyond = usize::from(is_shared && blocks > 0);
            SizeClass::new(size, blocks + beyond, is_shared)
        });
        StashStore { size_classes, longest, budget, used: 0, is_shared }
    }

    pub(crate) fn budget(&self) -> usize {
        self.budget
    }

    pub(crate) fn is_over_budget(&self) -> bool {
        self.used > self.budget
    }

    /// Writes the owners of the blocks of the largest size in use to `owners`, oldest allocation first, until it is
    /// full. Returns how many.
    pub(crate) fn largest_owners(&self, owners: &mut [u32]) -> usize {
        let Some(size_class) = self.size_classes.iter().rev().find(|size_class| size_class.oldest != NONE)
        else {
            return 0;
        };
        let (mut count, mut at) = (0, size_class.oldest);
        while at != NONE && count < owners.len() {
            let link = size_class.links[at as usize];
            owners[count] = link.owner;
            (count, at) = (count + 1, link.newer);
        }
        count
    }

    /// Bytes that one more owner may hold before half of the store may be full.
    pub(crate) fn spare(&self) -> usize {
        (self.budget / 2).saturating_sub(self.used) / BLOCK_WASTE_MAX
    }

    /// Whether there is room for the bytes in flight to a connection that continues to be read.
    pub(crate) fn has_ample_room(&self) -> bool {
        self.spare() >= self.ample_room()
    }

    /// A quarter of the spare bytes of an empty store.
    fn ample_room(&self) -> usize {
        self.budget / 2 / BLOCK_WASTE_MAX / 4
    }

    /// Bytes in blocks that are in use.
    pub fn used(&self) -> usize {
        self.used
    }

    fn allocate(&mut self, len: usize, owner: u32) -> Option<u32> {
        let class = class_of(len)?;
        let size = SIZES[class];
        let fits = if self.is_shared { size <= self.budget } else { self.used + size <= self.budget };
        if size > self.longest || !fits {
            return None;
        }
        let size_class = &mut self.size_classes[class];
        let index = size_class.allocate(size)?;
        if self.is_shared {
            size_class.link(index, owner);
        }
        self.used += size;
        Some(index << CLASS_BITS | class as u32)
    }

    fn free_block(&mut self, block: u32) {
        let (class, index) = split(block);
        let size_class = &mut self.size_classes[class];
        size_class.free_block(index, SIZES[class]);
        if self.is_shared {
            size_class.unlink(index as u32);
        }
        self.used -= SIZES[class];
    }

    fn owner(&self, block: u32) -> u32 {
        let (class, index) = split(block);
        self.size_classes[class].links.get(index).map_or(NONE, |link| link.owner)
    }

    fn block(&self, block: u32) -> &[u8] {
        let (class, index) = split(block);
        &self.size_classes[class].memory[index * SIZES[class]..][..SIZES[class]]
    }

    fn block_mut(&mut self, block: u32) -> &mut [u8] {
        let (class, index) = split(block);
        &mut self.size_classes[class].memory[index * SIZES[class]..][..SIZES[class]]
    }

    fn copy(&mut self, from: u32, start: usize, len: usize, to: u32) {
        let ((from_class, from_index), (to_class, to_index)) = (split(from), split(to));
        let [source, target] =
            self.size_classes.get_disjoint_mut([from_class, to_class]).expect("another size");
        let source = &source.memory[from_index * SIZES[from_class] + start..][..len];
        target.memory[to_index * SIZES[to_class]..][..len].copy_from_slice(source);
    }
}

fn class_of(len: usize) -> Option<usize> {
    SIZES.iter().position(|size| *size >= len)
}

fn split(block: u32) -> (usize, usize) {
    ((block & ((1 << CLASS_BITS) - 1)) as usize, (block >> CLASS_BITS) as usize)
}

/// A byte string in a store: appended at its end, consumed at its start. It uses no block while it is empty. Must be
/// emptied with [`clear`](Stash::clear) before it is dropped.
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
    /// Number of bytes held.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes held.
    pub fn bytes<'a>(&self, store: &'a StashStore) -> &'a [u8] {
        match self.block {
            NONE => &[],
            block => &store.block(block)[self.start as usize..][..self.len as usize],
        }
    }

    /// Free bytes of its block.
    pub(crate) fn free(&self) -> usize {
        match self.block {
            NONE => 0,
            block => SIZES[split(block).0] - self.len(),
        }
    }

    /// Whether there is room for the bytes in flight to this stash, in its own block or in the store.
    pub(crate) fn has_ample_room(&self, store: &StashStore) -> bool {
        store.has_ample_room() || self.free() >= store.ample_room()
    }

    /// Appends `bytes`. Returns false, without effect, if the store has no room or the byte string would be too long.
    #[must_use]
    pub fn append(&mut self, store: &mut StashStore, bytes: &[u8]) -> bool {
        self.append_owned(NONE, store, bytes)
    }

    /// The same in a shared store, for one of its owners.
    #[must_use]
    pub(crate) fn append_owned(&mut self, owner: u32, store: &mut StashStore, bytes: &[u8]) -> bool {
        self.append_parts_owned(owner, store, bytes.len(), std::iter::once(bytes))
    }

    /// The same for `len` bytes in several parts.
    #[must_use]
    pub(crate) fn append_parts_owned<'b>(
        &mut self,
        owner: u32,
        store: &mut StashStore,
        len: usize,
        parts: impl Iterator<Item = &'b [u8]>,
    ) -> bool {
        if len == 0 {
            return true;
        }
        let needed = self.len() + len;
        if self.block == NONE {
            let Some(block) = store.allocate(needed, owner) else { return false };
            (self.block, self.start) = (block, 0);
        } else if self.start as usize + needed > SIZES[split(self.block).0] && !self.make_room(store, needed)
        {
            return false;
        }
        let (mut end, block) = (self.start as usize + self.len(), store.block_mut(self.block));
        for part in parts {
            block[end..end + part.len()].copy_from_slice(part);
            end += part.len();
        }
        debug_assert_eq!(end, self.start as usize + needed, "the parts are not {len} bytes");
        self.len += len as u32;
        true
    }

    /// Moves the bytes to the start of their block, or of a longer one, so that there is room for `needed` in total.
    fn make_room(&mut self, store: &mut StashStore, needed: usize) -> bool {
        let (start, size) = (self.start as usize, SIZES[split(self.block).0]);
        let fits_behind = |part: usize| needed <= size && start >= size / part;
        if fits_behind(COMPACT_FRACTION) || needed <= size && size <= STASH_MAX {
            self.compact(store);
            return true;
        }
        if self.move_to(store, needed.max(size + 1)) {
            return true;
        }
        if fits_behind(LAST_COMPACT_FRACTION) {
            self.compact(store);
            return true;
        }
        false
    }

    fn compact(&mut self, store: &mut StashStore) {
        let start = self.start as usize;
        store.block_mut(self.block).copy_within(start..start + self.len(), 0);
        self.start = 0;
    }

    /// Moves the bytes to a block for `needed` bytes, of another size.
    fn move_to(&mut self, store: &mut StashStore, needed: usize) -> bool {
        let Some(block) = store.allocate(needed, store.owner(self.block)) else { return false };
        store.copy(self.block, self.start as usize, self.len(), block);
        store.free_block(self.block);
        (self.block, self.start) = (block, 0);
        true
    }

    /// Drops `count` bytes from the start; an emptied stash frees its block. In a shared store the bytes move to the
    /// next smaller block if they fill at most half of that: the copy is then shorter than the consumed bytes.
    pub fn consume(&mut self, store: &mut StashStore, count: usize) {
        assert!(count <= self.len(), "consumed {count} of {} bytes", self.len);
        self.start += count as u32;
        self.len -= count as u32;
        if self.len == 0 {
            return self.clear(store);
        }
        let class = split(self.block).0;
        if store.is_shared && class > 0 && self.len() <= SIZES[class - 1] / 2 {
            self.shrink(store);
        }
    }

    pub(crate) fn truncate(&mut self, store: &mut StashStore, len: usize) {
        self.len = self.len.min(len as u32);
        match self.len {
            0 => self.clear(store),
            _ => _ = self.shrink(store),
        }
    }

    /// Moves the bytes to the smallest block that holds them. Returns false if they are already in it.
    pub(crate) fn shrink(&mut self, store: &mut StashStore) -> bool {
        match class_of(self.len()) {
            Some(class) if self.block != NONE && class < split(self.block).0 => {
                self.move_to(store, self.len())
            }
            _ => false,
        }
    }

    /// Drops all bytes.
    pub fn clear(&mut self, store: &mut StashStore) {
        if self.block != NONE {
            store.free_block(self.block);
        }
        *self = Stash::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum StashOp {
        Append(usize, Vec<u8>),
        Consume(usize, usize),
        Clear(usize),
    }

    fn stash_op() -> impl Strategy<Value = StashOp> {
        prop_oneof![
            (0usize..4, prop::collection::vec(any::<u8>(), 0..6000))
                .prop_map(|(at, bytes)| StashOp::Append(at, bytes)),
            (0usize..4, 0usize..9000).prop_map(|(at, count)| StashOp::Consume(at, count)),
            (0usize..4).prop_map(StashOp::Clear),
        ]
    }

    proptest! {
        #[test]
        fn stashes_agree_with_plain_vectors_and_free_all_blocks(stash_ops in prop::collection::vec(stash_op(), 1..60)) {
            let mut store = StashStore::new(128 * 1024);
            let mut stashes: [Stash; 4] = Default::default();
            let mut oracle: [Vec<u8>; 4] = Default::default();
            for stash_op in stash_ops {
                match stash_op {
                    StashOp::Append(at, bytes) => {
                        if stashes[at].append(&mut store, &bytes) {
                            oracle[at].extend(&bytes);
                        }
                    }
                    StashOp::Consume(at, count) => {
                        let count = count.min(oracle[at].len());
                        stashes[at].consume(&mut store, count);
                        oracle[at].drain(..count);
                    }
                    StashOp::Clear(at) => {
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
    fn a_full_store_rejects_and_recovers() {
        let mut store = StashStore::new(1024);
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
            [(StashStore::new(16 << 20), STASH_MAX), (StashStore::for_output(16 << 20), OUTPUT_STASH_MAX)]
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

    #[test]
    fn parts_are_appended_as_one_run() {
        let mut store = StashStore::for_output(4096);
        let mut stash = Stash::default();
        assert!(stash.append_owned(1, &mut store, b"before "));
        let parts = [b"one, ".as_slice(), b"", b"two"];
        assert!(stash.append_parts_owned(1, &mut store, 8, parts.into_iter()));
        assert_eq!((stash.bytes(&store), store.used()), (b"before one, two".as_slice(), 256));
        assert!(!stash.append_parts_owned(1, &mut store, 5000, [[0; 2500].as_slice(); 2].into_iter()));
        assert_eq!(stash.bytes(&store), b"before one, two", "nothing of it is added");
        stash.clear(&mut store);
    }

    /// Without a longer block, the longest one and the longest that the budget allows accept more once a sixteenth of
    /// them has been consumed.
    #[test]
    fn the_longest_block_is_compacted_before_an_append_fails() {
        for (budget, size) in [(64 << 20, OUTPUT_STASH_MAX), (1 << 20, 1 << 20), (3 << 20, 1 << 20)] {
            let mut store = StashStore::for_output(budget);
            let mut stash = Stash::default();
            let bytes: Vec<u8> = (0..size).map(|at| at as u8).collect();
            assert!(stash.append_owned(3, &mut store, &bytes));
            stash.consume(&mut store, size / 16 - 1);
            assert!(!stash.append_owned(3, &mut store, b"x"), "{size}: the copy is not paid for");
            stash.consume(&mut store, 1);
            assert!(stash.append_owned(3, &mut store, &bytes[..size / 16]));
            assert_eq!((stash.len(), store.used()), (size, size));
            let expected = bytes[size / 16..].iter().chain(&bytes[..size / 16]);
            assert!(stash.bytes(&store).iter().eq(expected), "{size}: the bytes have changed");
            stash.clear(&mut store);
        }
    }

    /// The owner that exceeds the budget is found among the largest blocks, in order of allocation.
    #[test]
    fn a_shared_store_lists_the_owners_of_its_largest_blocks() {
        let mut store = StashStore::for_output(8 * 1024);
        let mut stashes: [Stash; 5] = Default::default();
        for (owner, len) in [(0, 200), (1, 4000), (2, 900), (3, 3000)] {
            assert!(stashes[owner].append_owned(owner as u32, &mut store, &vec![0; len]));
        }
        assert!(store.is_over_budget());
        let mut owners = [9; 3];
        assert_eq!((store.largest_owners(&mut owners), owners), (2, [1, 3, 9]));
        assert_eq!((store.largest_owners(&mut owners[..1]), owners[0]), (1, 1));
        stashes[1].clear(&mut store);
        assert!(!store.is_over_budget());
        assert_eq!((store.largest_owners(&mut owners), owners[0]), (1, 3));
        stashes[3].truncate(&mut store, 900);
        assert_eq!((store.largest_owners(&mut owners), owners), (2, [2, 3, 9]));
        assert!(
            !stashes[4].append_owned(4, &mut store, &[0; 9000]),
            "one block is not longer than the budget"
        );
        stashes.iter_mut().for_each(|stash| stash.clear(&mut store));
        assert_eq!((store.used(), store.largest_owners(&mut owners)), (0, 0));
    }

    /// Bytes in a block that has become too long move to a smaller one, unchanged.
    #[test]
    fn a_consumed_run_moves_to_a_smaller_block() {
        let bytes: Vec<u8> = (0..60_000_u32).map(|at| at as u8).collect();
        let mut store = StashStore::for_output(1 << 20);
        let mut stash = Stash::default();
        assert!(stash.append_owned(7, &mut store, &bytes));
        for count in [40_000, 12_500, 5_000, 2_300, 100] {
            let before = bytes.len() - stash.len();
            stash.consume(&mut store, count);
            assert_eq!(stash.bytes(&store), &bytes[before + count..]);
            assert!(store.used() <= 8 * stash.len(), "{} for {}", store.used(), stash.len());
        }
        let mut owners = [0];
        assert_eq!((store.largest_owners(&mut owners), owners), (1, [7]));
    }
}
