//! What one turn sends: private bytes in an arena that all connections share, one item each.
//!
//! Sessions append to the arena; the driver sends straight from it; when the turn is over it is
//! empty again. Only what the system did not take is copied, into the connection's own stash.
//!
//! ```text
//!  arena   │ answer of 7 │ answers of 12 … │ answer of 3 │        │
//!  items     0: (7, arena)  1: (12, arena)   2: (3, arena)  3: (9, stash)
//! ```

use std::net::SocketAddr;

use crate::limits::{ARENA_SIZE, SEND_MAX, TURN_LIST};
use crate::token::Token;

/// Bytes for which the arena has room from the start. They are touched when they are needed.
const ARENA_CAPACITY: usize = ARENA_SIZE + 4 * SEND_MAX;

/// Bytes of an arena that is kept as it is.
const ARENA_LARGEST_KEPT: usize = 4 * ARENA_SIZE;

/// Where the bytes of an item lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Arena {
        start: usize,
        len: usize,
    },
    /// The connection's output stash, from its start.
    Stash,
}

/// What follows a complete send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Nothing,
    /// The driver closes the connection.
    Close,
    /// The shard looks at the connection again: it lingers, yields, or was held up.
    LookAgain,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) token: Token,
    pub(super) place: Place,
    pub(super) after: After,
    /// The system has not taken all of it.
    pub(super) is_stopped: bool,
}

/// A datagram: bytes of the arena that go out as one.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatagramItem {
    pub(super) token: Token,
    pub(super) to: SocketAddr,
    start: usize,
    len: usize,
}

/// Who may say something in a turn, in this order. Whoever has much to say, turn after turn, must not keep those behind
/// waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Events,
    Mail,
    Deadlines,
}

/// The output of one turn.
pub(super) struct Output {
    pub(super) arena: Vec<u8>,
    pub(super) items: Vec<Item>,
    /// They are sent behind the items.
    pub(super) datagrams: Vec<DatagramItem>,
}

impl Output {
    pub(super) fn new() -> Self {
        // Room beyond the nominal size, so that the last calls of a turn, one of each stage, still find their maximum.
        Output {
            arena: Vec::with_capacity(ARENA_CAPACITY),
            items: Vec::with_capacity(TURN_LIST),
            datagrams: Vec::new(),
        }
    }

    pub(super) fn push_datagram(&mut self, token: Token, to: SocketAddr, payload: &[u8]) {
        let start = self.arena.len();
        self.arena.extend_from_slice(payload);
        self.datagrams.push(DatagramItem { token, to, start, len: payload.len() });
    }

    /// The payload of a datagram.
    pub(super) fn payload(&self, item: &DatagramItem) -> &[u8] {
        &self.arena[item.start..][..item.len]
    }

    /// Whether there is nothing to send.
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.datagrams.is_empty()
    }

    /// Whether one more call of a session finds room for its maximum, and so does what it moves. Each stage of a turn has
    /// some room that those before it leave alone.
    pub(super) fn has_room_for(&self, stage: Stage) -> bool {
        let left_alone = match stage {
            Stage::Events => SEND_MAX,
            Stage::Mail => SEND_MAX / 2,
            Stage::Deadlines => 0,
        };
        self.arena.len() + 2 * SEND_MAX + left_alone <= ARENA_SIZE + SEND_MAX
    }

    /// The same within half of the arena: the other half is for news, however much those have to say who were promised
    /// another look.
    pub(super) fn has_room_in_half(&self) -> bool {
        self.arena.len() + 2 * SEND_MAX <= ARENA_SIZE / 2
    }

    /// Bytes of the item that `link` names, if it is one of the arena.
    pub(super) fn unsent(&self, link: u32) -> usize {
        match self.items.get(link as usize) {
            Some(Item { place: Place::Arena { len, .. }, .. }) => *len,
            _ => 0,
        }
    }

    /// The item that `link` names, moved to the end of the arena so that it can grow; or a new one.
    /// Returns its number.
    pub(super) fn open_item(&mut self, link: u32, token: Token) -> u32 {
        let end = self.arena.len();
        let Some(item) = self.items.get_mut(link as usize) else {
            self.items.push(Item {
                token,
                place: Place::Arena { start: end, len: 0 },
                after: After::Nothing,
                is_stopped: false,
            });
            return self.items.len() as u32 - 1;
        };
        if let Place::Arena { start, len } = item.place
            && start + len != end
        {
            // Two answers of one connection in a turn with another's in between: rare, so a copy.
            item.place = Place::Arena { start: end, len };
            self.arena.extend_from_within(start..start + len);
        }
        link
    }

    /// Makes everything that was appended to the arena since the item ended part of it.
    pub(super) fn extend_item(&mut self, number: u32) {
        let end = self.arena.len();
        if let Place::Arena { start, len } = &mut self.items[number as usize].place {
            *len = end - *start;
        }
    }

    pub(super) fn clear(&mut self) {
        self.arena.clear();
        // A turn with unusually long messages; the next one needs no such memory.
        if self.arena.capacity() > ARENA_LARGEST_KEPT {
            self.arena.shrink_to(ARENA_CAPACITY);
        }
        self.items.clear();
        self.datagrams.clear();
    }
}
