//! A payload on its way through the hub: its bytes, and the shared block they lie in, if they lie in one.

use std::ops::Range;

use stilling_ring::SharedBlock;

/// A payload: bytes that the hub copies, or a range of a shared block that it passes on by reference.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    bytes: &'a [u8],
    block: Option<(&'a SharedBlock, usize)>,
}

impl<'a> Payload<'a> {
    /// A range of a shared block.
    ///
    /// # Panics
    /// If the range is not a committed part of the block.
    #[must_use]
    pub fn shared(block: &'a SharedBlock, range: Range<usize>) -> Payload<'a> {
        Payload { bytes: block.bytes(range.clone()), block: Some((block, range.start)) }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The block and the range of it that the bytes are; `None` for bytes outside of blocks.
    #[must_use]
    pub fn block(&self) -> Option<(&'a SharedBlock, Range<usize>)> {
        self.block.map(|(block, start)| (block, start..start + self.bytes.len()))
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has no bytes.
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

/// Payloads are equal if their bytes are, wherever they lie.
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
