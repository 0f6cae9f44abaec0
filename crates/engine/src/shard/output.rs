//! The output of one turn: private bytes in an arena shared by all connections, and ranges of shared blocks, one item
//! per connection.
//!
//! Sessions append to the arena; the driver sends directly from it and from the blocks. After the turn the arena is
//! empty and the block references are dropped. Only unsent bytes are copied, into the connection's own stash.
//!
//! ```text
//!  arena   │ response of 7 │ responses of 12 … │ head of 3 │ tail of 3 │     block │ … payload … │
//!  items     0: (7, arena)  1: (12, arena)   2: (3, chain: head ─▶ payload ─▶ tail)   3: (9, stash)
//! ```

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use stilling_ring::{SharedBlock, planted};

use crate::driver::{Gather, PieceChain, PieceList};
use crate::limits::{ARENA_SIZE, PIECES_MAX, SEND_MAX, TURN_LIST_CAPACITY};
use crate::token::Token;

/// Initial capacity of the arena in bytes, touched on use.
const ARENA_CAPACITY: usize = ARENA_SIZE + 5 * SEND_MAX;

/// Largest capacity that an arena keeps after a turn, in bytes.
const ARENA_LARGEST_KEPT: usize = 4 * ARENA_SIZE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ItemLocation {
    Arena {
        start: usize,
        len: usize,
    },
    PieceChain(PieceChain),
    /// The connection's output stash, from its start.
    Stash,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterSend {
    Nothing,
    Close,
    /// Revisit the connection: it lingers, yields, or was blocked.
    Revisit,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct OutputItem {
    pub(super) token: Token,
    pub(super) location: ItemLocation,
    pub(super) after: AfterSend,
    pub(super) is_stopped: bool,
}

/// Bytes that a datagram counts for beside its payload: its entry in the list.
pub(super) const DATAGRAM_COST: usize = size_of::<DatagramItem>();

/// A datagram: bytes of the arena that are sent as one.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatagramItem {
    pub(super) token: Token,
    pub(super) to: SocketAddr,
    pub(super) from: Option<IpAddr>,
    /// The system did not accept it.
    pub(super) is_dropped: bool,
    start: usize,
    len: usize,
}

/// The stages of a turn that produce output, in this order. A stage with much output in every turn must not starve
/// later stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnStage {
    Events,
    Mail,
    Deadlines,
}

pub(super) struct Output {
    pub(super) arena: Vec<u8>,
    pub(super) items: Vec<OutputItem>,
    pieces: PieceList,
    /// Sent after the items.
    pub(super) datagrams: Vec<DatagramItem>,
}

impl Output {
    pub(super) fn new() -> Self {
        // Beyond the nominal size there is room for the last call of each stage, and the service's own.
        Output {
            arena: Vec::with_capacity(ARENA_CAPACITY),
            items: Vec::with_capacity(TURN_LIST_CAPACITY),
            pieces: PieceList::with_capacity(TURN_LIST_CAPACITY),
            datagrams: Vec::with_capacity(TURN_LIST_CAPACITY),
        }
    }

    pub(super) fn push_datagram(
        &mut self,
        token: Token,
        to: SocketAddr,
        from: Option<IpAddr>,
        payload: &[u8],
    ) {
        let to = match self.datagrams.last() {
            Some(before) if planted!("previous peer") => before.to,
            _ => to,
        };
        let start = self.arena.len();
        self.arena.extend_from_slice(payload);
        self.datagrams.push(DatagramItem { token, to, from, is_dropped: false, start, len: payload.len() });
    }

    pub(super) fn has_datagram_of(&self, socket: Token) -> bool {
        self.datagrams.iter().any(|item| item.token == socket)
    }

    pub(super) fn payload(&self, item: &DatagramItem) -> &[u8] {
        &self.arena[item.start..][..item.len]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.datagrams.is_empty()
    }

    /// Bytes to send in this turn so far; bytes moved within the arena count twice.
    pub(super) fn size(&self) -> usize {
        self.arena.len() + self.pieces.shared_len() + self.datagrams.len() * DATAGRAM_COST
    }

    /// Bytes of datagrams that the service may send at the end of the turn: the turn's remaining room, at least
    /// [`SEND_MAX`].
    pub(super) fn room_at_turn_end(&self) -> usize {
        ARENA_SIZE.saturating_sub(self.size()).max(SEND_MAX)
    }

    /// Bytes that a call between turns may send: the turn's remaining room.
    pub(super) fn room_between_turns(&self) -> usize {
        (ARENA_SIZE + SEND_MAX).saturating_sub(self.size())
    }

    /// Whether it holds references to blocks: the turn must not wait, because no reference may outlive a wait.
    pub(super) fn holds_blocks(&self) -> bool {
        self.pieces.holds_blocks()
    }

    /// Whether there is room for the maximum output of one more call of a session, and for as many moved bytes. Each
    /// stage leaves room for later ones.
    pub(super) fn has_room_for(&self, stage: TurnStage) -> bool {
        let reserved = match stage {
            TurnStage::Events => SEND_MAX,
            TurnStage::Mail => SEND_MAX / 2,
            TurnStage::Deadlines => 0,
        };
        self.size() + 2 * SEND_MAX + reserved <= ARENA_SIZE + SEND_MAX
    }

    /// The same within half of the arena: the other half stays free for new events.
    pub(super) fn has_room_in_half(&self) -> bool {
        self.size() + 2 * SEND_MAX <= ARENA_SIZE / 2
    }

    /// Bytes of item `link` outside of a stash.
    pub(super) fn unsent(&self, link: u32) -> usize {
        match self.items.get(link as usize) {
            Some(OutputItem { location: ItemLocation::Arena { len, .. }, .. }) => *len,
            Some(OutputItem { location: ItemLocation::PieceChain(chain), .. }) => chain.len(),
            Some(OutputItem { location: ItemLocation::Stash, .. }) | None => 0,
        }
    }

    /// The bytes of an item; `held` returns those of its connection's stash.
    pub(super) fn gather<'a>(
        &'a self,
        location: ItemLocation,
        held: impl FnOnce() -> &'a [u8],
    ) -> Gather<'a> {
        match location {
            ItemLocation::Arena { start, len } => Gather::One(&self.arena[start..start + len]),
            ItemLocation::PieceChain(chain) => self.pieces.gather(chain, &self.arena),
            ItemLocation::Stash => Gather::One(held()),
        }
    }

    /// Returns `link` if it is the number of an item, else the number of a new one.
    pub(super) fn item(&mut self, link: u32, token: Token) -> u32 {
        if (link as usize) < self.items.len() {
            return link;
        }
        let location = ItemLocation::Arena { start: self.arena.len(), len: 0 };
        self.items.push(OutputItem { token, location, after: AfterSend::Nothing, is_stopped: false });
        self.items.len() as u32 - 1
    }

    /// The same item, with its private bytes moved to the end of the arena if they have to be there to grow.
    pub(super) fn open_item(&mut self, link: u32, token: Token) -> u32 {
        let number = self.item(link, token);
        let (item, end) = (&mut self.items[number as usize], self.arena.len());
        match item.location {
            // Another connection's output lies in between: rare, so the bytes are moved.
            ItemLocation::Arena { start, len } if start + len != end => {
                item.location = ItemLocation::Arena { start: end, len };
                self.arena.extend_from_within(start..start + len);
            }
            // The last piece is private, because `share` leaves room for one.
            ItemLocation::PieceChain(chain) if chain.count() == PIECES_MAX => {
                self.pieces.move_last(chain, &mut self.arena);
            }
            ItemLocation::Arena { .. } | ItemLocation::PieceChain(_) | ItemLocation::Stash => {}
        }
        number
    }

    /// Adds all bytes appended to the arena to an item; `before` is the arena's length when the item was opened.
    pub(super) fn extend_item(&mut self, number: u32, before: usize) {
        let end = self.arena.len();
        match &mut self.items[number as usize].location {
            ItemLocation::Arena { start, len } => *len = end - *start,
            ItemLocation::PieceChain(chain) if end > before => self.pieces.push_private(chain, before..end),
            ItemLocation::PieceChain(_) | ItemLocation::Stash => {}
        }
    }

    /// Appends a shared range to an item. Returns false, without effect, if the item can have no more pieces.
    #[must_use]
    pub(super) fn share(&mut self, number: u32, block: &SharedBlock, range: Range<usize>) -> bool {
        let location = &mut self.items[number as usize].location;
        let mut chain = match *location {
            ItemLocation::Arena { start, len } => {
                let mut chain = PieceChain::default();
                if len > 0 {
                    self.pieces.push_private(&mut chain, start..start + len);
                }
                chain
            }
            // Leaves room for a piece of private bytes behind it.
            ItemLocation::PieceChain(chain) if chain.count() + 2 <= PIECES_MAX => chain,
            ItemLocation::PieceChain(_) | ItemLocation::Stash => return false,
        };
        self.pieces.push_shared(&mut chain, block, range);
        *location = ItemLocation::PieceChain(chain);
        true
    }

    pub(super) fn clear(&mut self) {
        self.arena.clear();
        // After a turn with unusually long messages.
        if self.arena.capacity() > ARENA_LARGEST_KEPT {
            self.arena.shrink_to(ARENA_CAPACITY);
        }
        self.items.clear();
        self.pieces.clear();
        self.datagrams.clear();
    }
}

#[cfg(test)]
mod tests {
    use stilling_ring::BlockWriter;

    use super::*;
    use crate::shard::connection::NO_ITEM;

    const ONE: Token = Token::new(100, 0);
    const OTHER: Token = Token::new(101, 0);

    fn append_private(output: &mut Output, link: u32, token: Token, bytes: &[u8]) -> u32 {
        let number = output.open_item(link, token);
        let before = output.arena.len();
        output.arena.extend_from_slice(bytes);
        output.extend_item(number, before);
        number
    }

    fn bytes(output: &Output, number: u32) -> Vec<u8> {
        let location = output.items[number as usize].location;
        output.gather(location, || b"").slices().flatten().copied().collect()
    }

    /// Row 4.35: the bytes of a connection in a turn leave in order, private or shared, with another connection's in
    /// between.
    #[test]
    fn the_bytes_of_an_item_keep_their_order() {
        let mut writer = BlockWriter::new(8);
        writer.append(b"ABCDEFGH").expect("there is room");
        let (block, mut output) = (writer.share(), Output::new());
        let one = append_private(&mut output, NO_ITEM, ONE, b"a");
        let other = append_private(&mut output, NO_ITEM, OTHER, b"x");
        assert_eq!(append_private(&mut output, one, ONE, b"b"), one);
        assert_eq!(output.items[one as usize].location, ItemLocation::Arena { start: 2, len: 2 });
        assert!(output.share(one, &block, 0..4) && output.share(other, &block, 4..8));
        append_private(&mut output, one, ONE, b"c");
        append_private(&mut output, one, ONE, b"d");
        append_private(&mut output, other, OTHER, b"");
        assert!(output.share(one, &block, 6..8));
        assert_eq!((bytes(&output, one), bytes(&output, other)), (b"abABCDcdGH".to_vec(), b"xEFGH".to_vec()));
        assert_eq!((output.unsent(one), output.unsent(other), output.unsent(NO_ITEM)), (10, 5, 0));
        // Five private bytes, one of them twice because it has moved, and ten shared ones.
        assert_eq!((output.arena.len(), output.size()), (6, 16));
        assert!(output.holds_blocks() && !writer.reset());
        output.clear();
        assert!(!output.holds_blocks() && output.size() == 0);
        drop(block);
        assert!(writer.reset());
    }

    /// Row 4.35: an item with the maximum of pieces still accepts private bytes.
    #[test]
    fn an_item_without_room_for_pieces_grows_at_its_end() {
        let mut writer = BlockWriter::new(2);
        writer.append(b"ab").expect("there is room");
        let (block, mut output) = (writer.share(), Output::new());
        let one = output.item(NO_ITEM, ONE);
        let (mut expected, mut shared) = (Vec::new(), 0);
        while output.share(one, &block, 0..2) {
            append_private(&mut output, one, ONE, b"-");
            expected.extend_from_slice(b"ab-");
            shared += 1;
        }
        assert_eq!(shared, PIECES_MAX / 2);
        let other = append_private(&mut output, NO_ITEM, OTHER, b"between");
        for _ in 0..3 {
            append_private(&mut output, one, ONE, b"more");
            append_private(&mut output, other, OTHER, b".");
            expected.extend_from_slice(b"more");
        }
        assert_eq!((bytes(&output, one), bytes(&output, other)), (expected, b"between...".to_vec()));
        let ItemLocation::PieceChain(chain) = output.items[one as usize].location else {
            panic!("it has shared pieces")
        };
        assert_eq!(chain.count(), PIECES_MAX);
    }
}
