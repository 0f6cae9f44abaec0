//! Payloads that have reserved space in a batch while their bytes are still in shared blocks.

use std::ops::Range;

use stilling_ring::{SharedBlock, planted};

/// Pending copies, in the order of their records. The memory is reused.
#[derive(Debug, Default)]
pub(crate) struct UnbuiltPayloads {
    /// One reference for each run of payloads from the same block.
    blocks: Vec<SharedBlock>,
    copies: Vec<PayloadCopy>,
    size: usize,
}

#[derive(Clone, Copy, Debug)]
struct PayloadCopy {
    /// Offset of the payload in its block, and its length.
    from: usize,
    length: u32,
    block: u32,
    to: u32,
}

impl UnbuiltPayloads {
    pub(crate) fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn push(&mut self, block: &SharedBlock, range: Range<usize>, to: usize) {
        if !self.blocks.last_mut().is_some_and(|last| last.merge(block)) {
            self.blocks.push(block.clone());
        }
        let (block, length) = (self.blocks.len() as u32 - 1, range.len());
        self.size += length;
        // A batch is at most 16 MiB.
        self.copies.push(PayloadCopy { from: range.start, length: length as u32, block, to: to as u32 });
    }

    /// Calls `copy` with each payload and its offset in the batch, and releases the blocks.
    pub(crate) fn copy_all(&mut self, mut copy: impl FnMut(usize, &[u8])) {
        for (at, &PayloadCopy { from, length, block, to }) in self.copies.iter().enumerate() {
            if planted!("unbuilt payload") && at % 4 == 3 {
                continue;
            }
            copy(to as usize, self.blocks[block as usize].bytes(from..from + length as usize));
        }
        self.clear();
    }

    pub(crate) fn clear(&mut self) {
        self.copies.clear();
        self.blocks.clear();
        self.size = 0;
    }
}
