//! Message payloads: bytes, and the shared block that contains them, if any.

use std::ops::Range;

use stilling_ring::SharedBlock;

/// A payload: bytes that the hub copies, or a range of a shared block passed by reference.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    bytes: &'a [u8],
    block: Option<(&'a SharedBlock, usize)>,
}

impl<'a> Payload<'a> {
    /// Returns a range of a shared block as a payload.
    ///
    /// # Panics
    /// If the range is not a committed part of the block.
    #[must_use]
    pub fn shared(block: &'a SharedBlock, range: Range<usize>) -> Payload<'a> {
        Payload { bytes: block.bytes(range.clone()), block: Some((block, range.start)) }
    }

    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the block and range that contain the bytes; `None` for bytes outside of blocks.
    #[must_use]
    pub fn block(&self) -> Option<(&'a SharedBlock, Range<usize>)> {
        self.block.map(|(block, start)| (block, start..start + self.bytes.len()))
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether the payload has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Payload<'a> {
        Payload { bytes, block: None }
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Payload<'a> {
    fn from(bytes: &'a [u8; N]) -> Payload<'a> {
        Payload::from(&bytes[..])
    }
}

/// Compares the bytes, regardless of where they are stored.
impl PartialEq for Payload<'_> {
    fn eq(&self, other: &Payload<'_>) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Payload<'_> {}

impl std::fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Payload({} bytes{})", self.bytes.len(), if self.block.is_some() { ", shared" } else { "" })
    }
}

/// Returns the index of a block in `blocks`, appending it unless it is the last one: consecutive payloads of a
/// publisher share a block.
#[inline]
pub(crate) fn add_block(blocks: &mut Vec<SharedBlock>, block: &SharedBlock) -> u32 {
    if !blocks.last_mut().is_some_and(|last| last.merge(block)) {
        blocks.push(block.clone());
    }
    blocks.len() as u32 - 1
}

#[cfg(test)]
mod tests {
    use stilling_ring::BlockWriter;

    use super::*;

    #[test]
    fn a_payload_is_its_bytes_wherever_they_lie() {
        let mut writer = BlockWriter::new(16);
        writer.append(b"some bytes").expect("there is room");
        let shared = Payload::shared(writer.shared(), 5..10);
        let inline = Payload::from(b"bytes");
        assert_eq!(shared, inline);
        assert_eq!((shared.len(), shared.is_empty(), Payload::from(b"").is_empty()), (5, false, true));
        let (block, range) = shared.block().expect("it lies in one");
        assert!(block.is_same(writer.shared()) && range == (5..10));
        assert!(std::ptr::eq(shared.bytes(), block.bytes(range)));
        assert!(inline.block().is_none());
        assert_ne!(shared, Payload::from(b"other"));
    }

    #[test]
    #[should_panic(expected = "is not committed")]
    fn a_range_beyond_its_block_is_no_payload() {
        let _ = Payload::shared(BlockWriter::new(16).shared(), 0..1);
    }

    #[test]
    fn a_block_is_kept_once_for_payloads_in_a_row() {
        let (mut one, other) = (BlockWriter::new(8), BlockWriter::new(8));
        let mut blocks = Vec::new();
        assert_eq!(add_block(&mut blocks, one.shared()), 0);
        one.append(b"later").expect("there is room");
        assert_eq!(add_block(&mut blocks, one.shared()), 0);
        assert_eq!(blocks[0].bytes(0..5), b"later");
        assert_eq!(add_block(&mut blocks, other.shared()), 1);
        assert_eq!(add_block(&mut blocks, one.shared()), 2);
    }
}
