//! The bytes of a send: contiguous, or in several pieces that one call sends in order.
//!
//! ```text
//!  arena    │ head 1 │ tail 1, head 2 │        block    │ … payload 1 │ … │ payload 2 │
//!  chain      head 1 ─▶ payload 1 ─▶ tail 1, head 2 ─▶ payload 2
//! ```
//!
//! The pieces of all sends of a turn are in one list ([`PieceList`]), so that none costs an allocation; a
//! [`PieceChain`] links those of one send. The list holds a reference to each of its blocks, until
//! [`PieceList::clear`].

use std::fmt;
use std::ops::Range;

use stilling_ring::{SharedBlock, planted};

use crate::limits::PIECES_MAX;

/// No piece, or no block.
const NO_INDEX: u32 = u32::MAX;

/// Retained references that a new one is compared with, because messages of a few publishers alternate.
const BLOCKS_COMPARED: usize = 4;

/// The bytes of a send.
#[derive(Clone, Copy, Debug)]
pub enum Gather<'a> {
    /// Contiguous.
    One(&'a [u8]),
    /// In several pieces.
    Many(ChainedBytes<'a>),
}

/// A chain with the memory of its pieces.
#[derive(Clone, Copy)]
pub struct ChainedBytes<'a> {
    pieces: &'a PieceList,
    arena: &'a [u8],
    chain: PieceChain,
}

/// The pieces of one send, in order. At most [`PIECES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceChain {
    first: u32,
    last: u32,
    count: u32,
    len: u32,
}

/// The pieces of all sends of a turn.
#[derive(Debug, Default)]
pub struct PieceList {
    list: Vec<SendPiece>,
    blocks: Vec<SharedBlock>,
    shared_len: usize,
}

#[derive(Clone, Copy, Debug)]
struct SendPiece {
    start: usize,
    len: usize,
    /// Index of the block; [`NO_INDEX`]: the arena.
    block: u32,
    next: u32,
}

/// The slices of a [`Gather`] in order, none of them empty.
#[derive(Clone, Debug)]
pub struct GatherSlices<'a> {
    /// The only piece, until it is returned.
    one: &'a [u8],
    many: Option<ChainedBytes<'a>>,
    skipped: usize,
    remaining_len: usize,
}

impl Default for PieceChain {
    fn default() -> Self {
        PieceChain { first: NO_INDEX, last: NO_INDEX, count: 0, len: 0 }
    }
}

impl PieceChain {
    /// Bytes of all pieces.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of pieces.
    pub fn count(&self) -> usize {
        self.count as usize
    }
}

impl PieceList {
    /// An empty list with room for `count` pieces.
    pub fn with_capacity(count: usize) -> Self {
        PieceList { list: Vec::with_capacity(count), ..PieceList::default() }
    }

    /// Appends bytes of the arena to a chain. They extend its last piece if they are adjacent to it.
    pub fn push_private(&mut self, chain: &mut PieceChain, range: Range<usize>) {
        chain.len += range.len() as u32;
        match self.list.get_mut(chain.last as usize) {
            Some(last) if last.block == NO_INDEX && last.start + last.len == range.start => {
                last.len += range.len();
            }
            _ => self.push(chain, NO_INDEX, range),
        }
    }

    /// Appends a range of a block to a chain, and keeps a reference to the block.
    pub fn push_shared(&mut self, chain: &mut PieceChain, block: &SharedBlock, range: Range<usize>) {
        chain.len += range.len() as u32;
        self.shared_len += range.len();
        let block = self.retain_block(block);
        self.push(chain, block, range);
    }

    /// The bytes of a chain; its private pieces are in `arena`.
    pub fn gather<'a>(&'a self, chain: PieceChain, arena: &'a [u8]) -> Gather<'a> {
        debug_assert!(chain.count() <= PIECES_MAX, "{chain:?} has too many pieces");
        Gather::Many(ChainedBytes { pieces: self, arena, chain })
    }

    /// Bytes of all shared ranges.
    pub fn shared_len(&self) -> usize {
        self.shared_len
    }

    /// Whether it holds references to blocks.
    pub fn holds_blocks(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Drops all pieces and block references.
    pub fn clear(&mut self) {
        self.list.clear();
        self.blocks.clear();
        self.shared_len = 0;
    }

    /// Moves a chain's last piece to the end of the arena, if it is private, so that it can grow.
    pub(crate) fn move_last(&mut self, chain: PieceChain, arena: &mut Vec<u8>) {
        let end = arena.len();
        if let Some(last) = self.list.get_mut(chain.last as usize)
            && last.block == NO_INDEX
            && last.start + last.len != end
        {
            arena.extend_from_within(last.start..last.start + last.len);
            last.start = end;
        }
    }

    fn push(&mut self, chain: &mut PieceChain, block: u32, range: Range<usize>) {
        let number = self.list.len() as u32;
        self.list.push(SendPiece { start: range.start, len: range.len(), block, next: NO_INDEX });
        match self.list.get_mut(chain.last as usize) {
            Some(last) => last.next = number,
            None => chain.first = number,
        }
        chain.last = number;
        chain.count += 1;
    }

    fn retain_block(&mut self, block: &SharedBlock) -> u32 {
        for (number, retained) in self.blocks.iter_mut().enumerate().rev().take(BLOCKS_COMPARED) {
            if retained.merge(block) {
                return number as u32;
            }
        }
        if planted!("early block release") {
            // Replaces the previous block, although a part of it is still to be sent.
            self.blocks.pop();
        }
        self.blocks.push(block.clone());
        self.blocks.len() as u32 - 1
    }

    fn bytes<'a>(&'a self, piece: SendPiece, arena: &'a [u8]) -> &'a [u8] {
        let range = piece.start..piece.start + piece.len;
        match piece.block {
            NO_INDEX => &arena[range],
            block => self.blocks[block as usize].bytes(range),
        }
    }
}

impl<'a> Gather<'a> {
    /// Total number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Gather::One(bytes) => bytes.len(),
            Gather::Many(chained) => chained.chain.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of pieces.
    pub fn count(&self) -> usize {
        match self {
            Gather::One(_) => 1,
            Gather::Many(chained) => chained.chain.count(),
        }
    }

    /// The bytes, if they are contiguous.
    pub fn as_slice(&self) -> Option<&'a [u8]> {
        match *self {
            Gather::One(bytes) => Some(bytes),
            Gather::Many(_) => None,
        }
    }

    /// All bytes, slice by slice.
    pub fn slices(self) -> GatherSlices<'a> {
        self.part(0..self.len())
    }

    /// The bytes of `range`, as far as they exist.
    pub fn part(self, range: Range<usize>) -> GatherSlices<'a> {
        let end = range.end.min(self.len());
        let (one, many) = match self {
            Gather::One(bytes) => (bytes, None),
            Gather::Many(chained) => (<&[u8]>::default(), Some(chained)),
        };
        GatherSlices { one, many, skipped: range.start, remaining_len: end.saturating_sub(range.start) }
    }
}

impl GatherSlices<'_> {
    /// Bytes of the remaining slices.
    pub fn remaining(&self) -> usize {
        self.remaining_len
    }
}

impl<'a> Iterator for GatherSlices<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while self.remaining_len > 0 {
            let piece = match &mut self.many {
                Some(chained) => chained.pop_first()?,
                None => std::mem::take(&mut self.one),
            };
            let skipped = self.skipped.min(piece.len());
            self.skipped -= skipped;
            let slice = &piece[skipped..];
            let slice = &slice[..slice.len().min(self.remaining_len)];
            self.remaining_len -= slice.len();
            if !slice.is_empty() {
                return Some(slice);
            }
        }
        None
    }
}

impl<'a> ChainedBytes<'a> {
    fn pop_first(&mut self) -> Option<&'a [u8]> {
        let piece = *self.pieces.list.get(self.chain.first as usize)?;
        self.chain.first = piece.next;
        Some(self.pieces.bytes(piece, self.arena))
    }
}

impl fmt::Debug for ChainedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes in {} pieces", self.chain.len(), self.chain.count())
    }
}

#[cfg(test)]
mod tests {
    use stilling_ring::BlockWriter;

    use super::*;

    fn all(slices: GatherSlices<'_>) -> Vec<u8> {
        slices.flatten().copied().collect()
    }

    /// Two messages, each with a head in the arena and a payload in a block.
    fn two_messages() -> (PieceList, PieceChain, &'static [u8]) {
        let mut writer = BlockWriter::new(16);
        writer.append(b"payload1payload2").expect("there is room");
        let (block, mut pieces, mut chain) = (writer.share(), PieceList::default(), PieceChain::default());
        pieces.push_private(&mut chain, 0..2);
        pieces.push_shared(&mut chain, &block, 0..8);
        pieces.push_private(&mut chain, 2..3);
        pieces.push_private(&mut chain, 3..5);
        pieces.push_shared(&mut chain, &block, 8..16);
        (pieces, chain, b"h1\nh2")
    }

    #[test]
    fn slices_are_in_order_and_adjacent_private_pieces_are_merged() {
        let (pieces, chain, arena) = two_messages();
        let gather = pieces.gather(chain, arena);
        let slices: Vec<&[u8]> = gather.slices().collect();
        assert_eq!(slices, [b"h1" as &[u8], b"payload1", b"\nh2", b"payload2"]);
        assert_eq!((gather.len(), gather.count(), pieces.shared_len()), (21, 4, 16));
        assert_eq!(pieces.blocks.len(), 1);
        assert_eq!(format!("{gather:?}"), "Many(21 bytes in 4 pieces)");
    }

    #[test]
    fn a_part_of_a_gather_equals_that_range_of_the_bytes() {
        let (pieces, chain, arena) = two_messages();
        let many = pieces.gather(chain, arena);
        let whole = all(many.slices());
        for gather in [many, Gather::One(&whole)] {
            for start in 0..=whole.len() {
                for end in start..=whole.len() + 1 {
                    let part = gather.part(start..end);
                    let expected = &whole[start..end.min(whole.len())];
                    assert_eq!(part.remaining(), expected.len());
                    assert!(part.clone().all(|slice| !slice.is_empty()));
                    assert_eq!(all(part), expected, "{start}..{end}");
                }
            }
        }
    }

    #[test]
    fn chains_of_one_list_do_not_mix() {
        let mut writers = [BlockWriter::new(4), BlockWriter::new(4)];
        writers[0].append(b"aaaa").expect("there is room");
        writers[1].append(b"bbbb").expect("there is room");
        let (mut pieces, mut chains) = (PieceList::with_capacity(8), [PieceChain::default(); 2]);
        for at in 0..4 {
            for (number, chain) in chains.iter_mut().enumerate() {
                pieces.push_private(chain, number..number + 1);
                pieces.push_shared(chain, &writers[number].share(), at..at + 1);
            }
        }
        assert_eq!(all(pieces.gather(chains[0], b"01").slices()), b"0a0a0a0a");
        assert_eq!(all(pieces.gather(chains[1], b"01").slices()), b"1b1b1b1b");
        assert_eq!(pieces.blocks.len(), 2, "one reference for each block");
        assert!(pieces.holds_blocks() && !writers[0].reset());
        pieces.clear();
        assert!(!pieces.holds_blocks() && writers.iter_mut().all(BlockWriter::reset));
        assert_eq!(pieces.shared_len(), 0);
    }

    #[test]
    fn the_last_private_piece_can_move_and_grow() {
        let (mut arena, mut pieces, mut chain) =
            (b"onetwo".to_vec(), PieceList::default(), PieceChain::default());
        pieces.push_private(&mut chain, 0..3);
        pieces.move_last(chain, &mut arena);
        assert_eq!(arena, b"onetwoone");
        pieces.move_last(chain, &mut arena);
        assert_eq!(arena, b"onetwoone", "it is at the end already");
        arena.extend_from_slice(b"more");
        pieces.push_private(&mut chain, 9..13);
        assert_eq!((chain.count(), all(pieces.gather(chain, &arena).slices())), (1, b"onemore".to_vec()));
    }
}
