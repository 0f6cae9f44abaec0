//! Append-only memory: one thread fills a block, other threads hold references to parts of it.
//!
//! ```text
//!   block  │ committed by the writer                 │ spare: the writer's alone │
//!            ▲ reference: 0..4096   ▲ reference: 5000..9096
//! ```
//!
//! The writer shares the committed part and continues to fill the rest. Committed bytes never change while a
//! [`SharedBlock`] exists. After the last one is dropped the writer may [reset](BlockWriter::reset) the block.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use crate::sync::Arc;
#[cfg(loom)]
use crate::sync::UnsafeCell;

struct BlockMemory {
    /// Allocated as a `Box<[u8]>` of `size` bytes.
    start: NonNull<u8>,
    size: usize,
    /// One cell per byte, so that loom sees each access.
    #[cfg(loom)]
    accesses: Box<[UnsafeCell<()>]>,
}

// SAFETY: the bytes are plain memory that this struct owns exclusively.
unsafe impl Send for BlockMemory {}
// SAFETY: the writer writes only to bytes that are not committed. A `SharedBlock` reads only bytes below its
// `committed`, which comes from the writer, by reference, or from another `SharedBlock`; so the commit happens before
// the read.
unsafe impl Sync for BlockMemory {}

impl BlockMemory {
    fn new(bytes: Box<[u8]>) -> BlockMemory {
        let size = bytes.len();
        let start = NonNull::new(Box::into_raw(bytes).cast::<u8>()).expect("a box is not null");
        BlockMemory {
            start,
            size,
            #[cfg(loom)]
            accesses: (0..size).map(|_| UnsafeCell::new(())).collect(),
        }
    }

    /// # Safety
    /// `range` lies within the block, and nothing writes to it while the result is used.
    unsafe fn read(&self, range: Range<usize>) -> &[u8] {
        debug_assert!(range.start <= range.end && range.end <= self.size);
        #[cfg(loom)]
        self.accesses[range.clone()].iter().for_each(|access| access.with(|_| ()));
        // SAFETY: guaranteed by the caller; the memory is initialised and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(range.start), range.len()) }
    }

    /// # Safety
    /// `range` lies within the block, and nothing else reads or writes it while the result is used.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that it is the only one")]
    unsafe fn write(&self, range: Range<usize>) -> &mut [u8] {
        debug_assert!(range.start <= range.end && range.end <= self.size);
        #[cfg(loom)]
        self.accesses[range.clone()].iter().for_each(|access| access.with_mut(|_| ()));
        // SAFETY: guaranteed by the caller; the memory is initialised and lives as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len()) }
    }
}

impl Drop for BlockMemory {
    fn drop(&mut self) {
        let bytes = std::ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.size);
        // SAFETY: `new` took the memory out of a box of that size, and this is the last use.
        drop(unsafe { Box::from_raw(bytes) });
    }
}

/// The only writer of a block.
pub struct BlockWriter {
    /// A reference to the committed part.
    block: SharedBlock,
}

/// The committed part of a block, kept alive by this reference. Cheap to clone.
#[derive(Clone)]
pub struct SharedBlock {
    memory: Arc<BlockMemory>,
    committed: usize,
}

impl BlockWriter {
    /// A block of `size` bytes, none of them committed.
    #[must_use]
    pub fn new(size: usize) -> BlockWriter {
        // The system provides zeroed memory lazily: the block becomes resident as it is filled.
        let memory = BlockMemory::new(vec![0_u8; size].into_boxed_slice());
        BlockWriter { block: SharedBlock { memory: Arc::new(memory), committed: 0 } }
    }

    /// Number of committed bytes.
    #[must_use]
    pub fn committed(&self) -> usize {
        self.block.committed
    }

    /// Number of bytes after the committed part.
    #[must_use]
    pub fn spare_len(&self) -> usize {
        self.block.memory.size - self.block.committed
    }

    /// The memory after the committed part, to be filled and then [committed](Self::commit).
    pub fn spare(&mut self) -> &mut [u8] {
        // SAFETY: references read committed bytes only; `&mut self` excludes any other slice of this writer and any
        // borrow of its own reference.
        unsafe { self.block.memory.write(self.block.committed..self.block.memory.size) }
    }

    /// Commits the next `count` bytes.
    ///
    /// # Panics
    /// If fewer than `count` bytes are spare.
    pub fn commit(&mut self, count: usize) {
        assert!(count <= self.spare_len(), "{count} bytes exceed the {} spare bytes", self.spare_len());
        self.block.committed += count;
    }

    /// Appends a copy of `bytes` and commits it. Returns its range, or `None` if the block has no room.
    pub fn append(&mut self, bytes: &[u8]) -> Option<Range<usize>> {
        let start = self.block.committed;
        self.spare().get_mut(..bytes.len())?.copy_from_slice(bytes);
        self.commit(bytes.len());
        Some(start..self.block.committed)
    }

    /// Committed bytes.
    ///
    /// # Panics
    /// If `range` is not committed.
    #[must_use]
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.block.bytes(range)
    }

    /// Bytes of the block, committed or not. Bytes that were never written are zero.
    ///
    /// # Panics
    /// If `range` does not lie within the block.
    #[must_use]
    pub fn peek(&self, range: Range<usize>) -> &[u8] {
        assert!(
            range.start <= range.end && range.end <= self.block.memory.size,
            "{range:?} is not in the block"
        );
        // SAFETY: only this writer writes to the block, through `&mut self`, which the borrow of the result excludes.
        unsafe { self.block.memory.read(range) }
    }

    /// The position of `bytes` in the block, if they are a part of its committed memory (compared by address).
    #[must_use]
    pub fn position(&self, bytes: &[u8]) -> Option<Range<usize>> {
        let start = (bytes.as_ptr() as usize).checked_sub(self.block.memory.start.as_ptr() as usize)?;
        let end = start.checked_add(bytes.len())?;
        (end <= self.block.committed).then_some(start..end)
    }

    /// A reference to the committed part.
    #[must_use]
    pub fn share(&self) -> SharedBlock {
        self.block.clone()
    }

    /// The writer's own reference to the committed part, borrowed: it does not prevent a [reset](Self::reset).
    #[must_use]
    pub fn shared(&self) -> &SharedBlock {
        &self.block
    }

    /// Whether a reference other than the writer's own exists. If not, [`reset`](BlockWriter::reset) succeeds.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.block.memory) > 1
    }

    /// Resets the block: no byte is committed. Returns false, without effect, while a reference other than the writer's
    /// own exists.
    pub fn reset(&mut self) -> bool {
        self.reset_planted(crate::planted!("early reuse"))
    }

    /// The same; `is_planted`: in a build with planted bugs, although references exist.
    #[doc(hidden)]
    pub fn reset_planted(&mut self, is_planted: bool) -> bool {
        // Synchronises with the drop of the last other reference; `&mut self` excludes a borrow of the writer's own.
        let is_unused = Arc::get_mut(&mut self.block.memory).is_some();
        let can_reset = is_unused || crate::planted::AVAILABLE && is_planted;
        if can_reset {
            self.block.committed = 0;
        }
        can_reset
    }
}

impl SharedBlock {
    /// Bytes of the block.
    ///
    /// # Panics
    /// If this reference does not cover `range`.
    #[must_use]
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.committed, "{range:?} is not committed");
        // SAFETY: this reference covers `range`, so it was committed before, and the writer cannot reset the block
        // while it exists.
        unsafe { self.memory.read(range) }
    }

    /// Extends the reference to everything the writer has committed. Returns false, without effect, if `writer` writes
    /// another block.
    pub fn extend(&mut self, writer: &BlockWriter) -> bool {
        let is_same = self.is_same(&writer.block);
        if is_same {
            self.committed = writer.block.committed;
        }
        is_same
    }

    /// Extends the reference to everything `other` covers. Returns false, without effect, if `other` belongs to another
    /// block.
    pub fn merge(&mut self, other: &SharedBlock) -> bool {
        let is_same = self.is_same(other);
        if is_same {
            self.committed = self.committed.max(other.committed);
        }
        is_same
    }

    /// Whether both refer to the same block.
    #[must_use]
    pub fn is_same(&self, other: &SharedBlock) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory)
    }
}

/// A block of the vector's bytes, all committed. They are copied only if the vector has spare capacity.
impl From<Vec<u8>> for SharedBlock {
    fn from(bytes: Vec<u8>) -> SharedBlock {
        let memory = BlockMemory::new(bytes.into_boxed_slice());
        SharedBlock { committed: memory.size, memory: Arc::new(memory) }
    }
}

impl fmt::Debug for BlockWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockWriter({} of {} bytes)", self.committed(), self.block.memory.size)
    }
}

impl fmt::Debug for SharedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBlock({} of {} bytes)", self.committed, self.memory.size)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_committed_stays_while_more_is_written() {
        let mut writer = BlockWriter::new(16);
        assert_eq!(writer.append(b"first"), Some(0..5));
        let mut shared = writer.share();
        assert_eq!(writer.append(b"second"), Some(5..11));
        writer.spare().fill(b'x');
        assert_eq!(shared.bytes(0..5), b"first");
        assert!(shared.extend(&writer));
        assert_eq!(shared.bytes(5..11), b"second");
        assert_eq!(writer.append(b"too long"), None);
        assert_eq!((writer.committed(), writer.spare_len()), (11, 5));
    }

    #[test]
    #[should_panic(expected = "is not committed")]
    fn a_reference_does_not_see_what_was_committed_later() {
        let mut writer = BlockWriter::new(16);
        let shared = writer.share();
        writer.commit(4);
        let _ = shared.bytes(0..4);
    }

    #[test]
    fn a_block_begins_anew_when_the_last_reference_is_gone() {
        let mut writer = BlockWriter::new(8);
        writer.commit(8);
        let (one, other) = (writer.share(), writer.share());
        assert!(one.is_same(&other) && !one.is_same(&BlockWriter::new(8).share()));
        drop(one);
        assert!(writer.is_shared() && !writer.reset());
        drop(other);
        assert!(!writer.is_shared() && writer.reset());
        assert_eq!(writer.spare_len(), 8);
    }

    #[test]
    fn merged_references_see_what_either_has_seen() {
        let mut writer = BlockWriter::new(8);
        assert_eq!(writer.append(b"ab"), Some(0..2));
        let early = writer.share();
        assert_eq!(writer.append(b"cd"), Some(2..4));
        let late = writer.share();
        for (mut one, other) in [(early.clone(), &late), (late.clone(), &early)] {
            assert!(one.merge(other));
            assert_eq!(one.bytes(0..4), b"abcd");
        }
        let mut early = early;
        assert!(!early.merge(&BlockWriter::new(8).share()));
    }

    #[test]
    fn the_writers_own_reference_is_up_to_date_and_keeps_nothing() {
        let mut writer = BlockWriter::new(8);
        writer.append(b"abc").expect("there is room");
        assert_eq!(writer.shared().bytes(0..3), b"abc");
        let kept = writer.shared().clone();
        writer.append(b"de").expect("there is room");
        assert_eq!(writer.shared().bytes(3..5), b"de");
        assert!(kept.is_same(writer.shared()) && !writer.reset());
        drop(kept);
        assert!(writer.reset());
        assert_eq!(writer.append(b"12345678"), Some(0..8));
    }

    #[test]
    fn a_vector_becomes_a_block_where_it_lies() {
        let bytes = b"payload".to_vec();
        let at = bytes.as_ptr();
        let block = SharedBlock::from(bytes);
        assert_eq!((block.bytes(0..7), block.bytes(0..7).as_ptr()), (&b"payload"[..], at));
        assert!(SharedBlock::from(Vec::new()).bytes(0..0).is_empty());
        let mut spacious = Vec::with_capacity(100);
        spacious.extend_from_slice(b"short");
        assert_eq!(SharedBlock::from(spacious).clone().bytes(1..5), b"hort");
    }

    #[test]
    fn the_writer_reads_what_is_not_committed_yet() {
        let mut writer = BlockWriter::new(8);
        assert_eq!(writer.append(b"ab"), Some(0..2));
        writer.spare()[..2].copy_from_slice(b"cd");
        assert_eq!((writer.peek(0..5), writer.committed()), (&b"abcd\0"[..], 2));
    }

    #[test]
    fn bytes_of_the_block_are_found_in_it() {
        let mut writer = BlockWriter::new(8);
        writer.commit(6);
        assert_eq!(writer.position(writer.bytes(2..5)), Some(2..5));
        assert_eq!(writer.position(b"abc"), None);
        assert_eq!(writer.position(writer.bytes(0..0)), Some(0..0));
    }
}
