//! The shared blocks of a shard: long reads receive into them, and payloads are referenced in place.
//!
//! ```text
//!  current   │ read 1 │ read 2 │ copied │ spare ◀─ the next long read                 full: retired
//!  retired   [ oldest ] [ … ] [ newest ]    each is reused when nothing refers to it
//! ```
//!
//! An unreferenced block is reset before each long read, so a shard without shared input stays in one block.

use std::collections::VecDeque;
use std::ops::Range;

use stilling_ring::{BlockWriter, SharedBlock, Time};

use crate::limits::{
    BLOCK_SIZE, BLOCK_TRIM_INTERVAL, BLOCKS_CHECKED_MAX, BLOCKS_MAX, LONG_READ_SIZE, SHARED_MIN,
    SPARE_BLOCKS_MAX,
};

const _: () = assert!(BLOCK_SIZE >= LONG_READ_SIZE && SPARE_BLOCKS_MAX < BLOCKS_MAX);

/// The blocks of a shard. None exists before the first long read or copy.
pub(super) struct InputBlocks {
    current: Option<BlockWriter>,
    /// Full blocks, the oldest in front. Each may still be referenced.
    retired: VecDeque<BlockWriter>,
    /// A session reads bytes of the current block: copies must not replace it.
    is_pinned: bool,
    /// Earliest time to release the next superfluous block.
    trim_at: Time,
}

impl InputBlocks {
    pub(super) fn new() -> InputBlocks {
        InputBlocks { current: None, retired: VecDeque::new(), is_pinned: false, trim_at: Time::ZERO }
    }

    /// Memory for a long read, to be [committed](Self::commit); `None` if all blocks are referenced.
    pub(super) fn long_read(&mut self) -> Option<&mut [u8]> {
        // An unreferenced block is probably in the processor's cache.
        let is_ready = self
            .current
            .as_mut()
            .is_some_and(|current| current.reset() || current.spare_len() >= LONG_READ_SIZE);
        if !is_ready && !self.replace_current() {
            return None;
        }
        self.current.as_mut().map(|current| &mut current.spare()[..LONG_READ_SIZE])
    }

    /// Commits the first bytes of a long read. Returns a reference to them.
    pub(super) fn commit(&mut self, count: usize) -> (SharedBlock, Range<usize>) {
        let current = self.current.as_mut().expect("a long read has a block");
        let start = current.committed();
        current.commit(count);
        (current.share(), start..start + count)
    }

    pub(super) fn set_pinned(&mut self, is_pinned: bool) {
        self.is_pinned = is_pinned;
    }

    /// A reference to bytes of at least [`SHARED_MIN`]: in place if they lie in the current block, else to a copy in
    /// it. `None` for fewer bytes, or if no block has room for a copy.
    #[inline]
    pub(super) fn share(&mut self, bytes: &[u8]) -> Option<(&SharedBlock, Range<usize>)> {
        if bytes.len() < SHARED_MIN {
            return None;
        }
        let position = self.current.as_ref().and_then(|current| current.position(bytes));
        let range = match position {
            Some(range) => range,
            None => self.copy(bytes)?,
        };
        Some((self.current.as_ref()?.shared(), range))
    }

    fn copy(&mut self, bytes: &[u8]) -> Option<Range<usize>> {
        let has_room = |current: &BlockWriter| current.spare_len() >= bytes.len();
        if !self.current.as_ref().is_some_and(has_room) {
            let is_impossible = bytes.len() > BLOCK_SIZE || self.is_pinned;
            if is_impossible
                || !(self.current.as_mut().is_some_and(BlockWriter::reset) || self.replace_current())
            {
                return None;
            }
        }
        self.current.as_mut()?.append(bytes)
    }

    /// Replaces the current block by an empty one. Returns false, without effect, if none can be had.
    fn replace_current(&mut self) -> bool {
        let Some(next) = self.reuse_retired().or_else(|| self.allocate()) else { return false };
        self.retired.extend(self.current.replace(next));
        true
    }

    /// Resets and returns a retired block that is not referenced.
    fn reuse_retired(&mut self) -> Option<BlockWriter> {
        for _ in 0..self.retired.len().min(BLOCKS_CHECKED_MAX) {
            let mut oldest = self.retired.pop_front()?;
            if oldest.reset() {
                return Some(oldest);
            }
            // To the end, so that the next call checks other blocks.
            self.retired.push_back(oldest);
        }
        None
    }

    fn allocate(&self) -> Option<BlockWriter> {
        (self.count() < BLOCKS_MAX).then(|| BlockWriter::new(BLOCK_SIZE))
    }

    pub(super) fn count(&self) -> usize {
        self.retired.len() + usize::from(self.current.is_some())
    }

    /// Releases a superfluous block, if one is due and not referenced.
    #[inline]
    pub(super) fn trim(&mut self, now: Time) {
        if self.retired.len() > SPARE_BLOCKS_MAX && now >= self.trim_at {
            self.trim_at = now.after(BLOCK_TRIM_INTERVAL);
            drop(self.reuse_retired());
        }
    }

    pub(super) fn next_trim(&self) -> Option<Time> {
        (self.retired.len() > SPARE_BLOCKS_MAX).then_some(self.trim_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(blocks: &mut InputBlocks, value: u8, count: usize) -> Option<(SharedBlock, Range<usize>)> {
        blocks.long_read()?[..count].fill(value);
        Some(blocks.commit(count))
    }

    #[test]
    fn an_unreferenced_block_is_filled_anew_from_its_start() {
        let mut blocks = InputBlocks::new();
        assert_eq!(blocks.count(), 0, "no memory before the first read");
        for _ in 0..100 {
            let (_, range) = read(&mut blocks, 1, LONG_READ_SIZE).expect("there is room");
            assert_eq!(range, 0..LONG_READ_SIZE);
        }
        assert_eq!(blocks.count(), 1);
    }

    #[test]
    fn a_referenced_block_is_filled_to_its_end_and_used_again_when_the_references_end() {
        let mut blocks = InputBlocks::new();
        let mut references = Vec::new();
        for value in 0..2 * (BLOCK_SIZE / LONG_READ_SIZE) as u8 {
            references.push(read(&mut blocks, value, LONG_READ_SIZE).expect("there is room"));
        }
        assert_eq!(blocks.count(), 2);
        for (value, (block, range)) in (0_u8..).zip(&references) {
            assert!(block.bytes(range.clone()).iter().all(|byte| *byte == value), "read {value} has changed");
        }
        let first = references[0].0.bytes(0..1).as_ptr();
        let (_, second_half) = references.split_at(BLOCK_SIZE / LONG_READ_SIZE);
        references = second_half.to_vec();
        let (block, range) = read(&mut blocks, 9, 10).expect("the first block is free");
        assert_eq!((block.bytes(range).as_ptr(), blocks.count()), (first, 2));
        drop(references);
    }

    #[test]
    fn bytes_of_the_current_block_are_shared_where_they_lie() {
        let mut blocks = InputBlocks::new();
        let (block, range) = read(&mut blocks, 7, 2 * SHARED_MIN).expect("there is room");
        let shown = block.bytes(range);
        let (shared, range) = blocks.share(&shown[5..5 + SHARED_MIN]).expect("it is long enough");
        assert!(shared.is_same(&block));
        assert_eq!(range, 5..5 + SHARED_MIN);
        assert!(blocks.share(&shown[..SHARED_MIN - 1]).is_none());
    }

    #[test]
    fn other_bytes_are_copied_but_never_replace_a_pinned_block() {
        let mut blocks = InputBlocks::new();
        let bytes = [3; SHARED_MIN];
        let (shared, range) = blocks.share(&bytes).expect("there is room");
        assert_eq!((shared.bytes(range.clone()), range), (&bytes[..], 0..SHARED_MIN));
        assert!(blocks.share(&vec![0; BLOCK_SIZE + 1]).is_none());
        let (shown, _) = read(&mut blocks, 1, 10).expect("there is room");
        blocks.set_pinned(true);
        assert!(blocks.share(&vec![0; BLOCK_SIZE]).is_none() && blocks.count() == 1);
        blocks.set_pinned(false);
        let (shared, range) = blocks.share(&vec![5; BLOCK_SIZE]).expect("another block has room");
        assert!(!shared.is_same(&shown));
        assert_eq!((range, blocks.count()), (0..BLOCK_SIZE, 2));
    }

    #[test]
    fn without_free_blocks_nothing_is_shared_and_memory_shrinks_when_they_are_free() {
        let mut blocks = InputBlocks::new();
        let mut references = Vec::new();
        while let Some((block, _)) = read(&mut blocks, 1, LONG_READ_SIZE) {
            references.push(block);
            assert!(references.len() <= BLOCKS_MAX * BLOCK_SIZE / LONG_READ_SIZE);
        }
        assert_eq!(blocks.count(), BLOCKS_MAX);
        assert!(blocks.share(&[0; SHARED_MIN]).is_none());
        let mut now = Time::ZERO;
        blocks.trim(now);
        assert_eq!((blocks.count(), blocks.next_trim()), (BLOCKS_MAX, Some(now.after(BLOCK_TRIM_INTERVAL))));
        references.clear();
        assert!(blocks.share(&[0; SHARED_MIN]).is_some(), "the current block begins anew");
        while let Some(at) = blocks.next_trim() {
            now = at;
            blocks.trim(now);
        }
        assert_eq!(blocks.count(), SPARE_BLOCKS_MAX + 1);
        assert!(now <= Time::ZERO.after(BLOCK_TRIM_INTERVAL * BLOCKS_MAX as u32));
    }
}
