//! The connection slab: a fixed number of slots, touched on first use.

use super::connection::{Connection, ConnectionState};
use crate::limits::LISTENERS_MAX;
use crate::token::Token;

const NO_SLOT: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct ShardSlot<S> {
    pub(super) connection: Connection,
    pub(super) session: Option<S>,
}

/// Slots `LISTENERS_MAX..`; the indices below belong to listeners.
#[derive(Debug)]
pub(super) struct ShardSlots<S> {
    slots: Vec<ShardSlot<S>>,
    capacity: u32,
    /// Slots beyond the capacity, for outgoing connections.
    reserved: u32,
    outgoing: u32,
    free: u32,
    open: u32,
}

impl<S> ShardSlots<S> {
    /// Maximum size of a slot with its session, in bytes.
    const SLOT_SIZE_MAX: usize = 256;

    pub(super) fn new(capacity: u32, reserved: u32) -> Self {
        const { assert!(size_of::<ShardSlot<S>>() <= Self::SLOT_SIZE_MAX, "slot and session exceed 256 bytes") };
        // The memory is reserved, not touched: a slot becomes resident when it is first used.
        let slots = Vec::with_capacity(capacity.saturating_add(reserved) as usize);
        ShardSlots { slots, capacity, reserved, outgoing: 0, free: NO_SLOT, open: 0 }
    }

    pub(super) fn open(&self) -> u32 {
        self.open
    }

    /// Whether there is no slot for an incoming connection.
    pub(super) fn is_full(&self) -> bool {
        self.free_for_incoming() == 0
    }

    /// Free slots for incoming connections.
    pub(super) fn free_for_incoming(&self) -> u32 {
        self.capacity.saturating_sub(self.open - self.outgoing.min(self.reserved))
    }

    /// Free slots that only outgoing connections may use.
    pub(super) fn free_reserved(&self) -> u32 {
        self.reserved.saturating_sub(self.outgoing)
    }

    /// Marks an outgoing connection: it counts against the reserved slots first.
    pub(super) fn mark_outgoing(&mut self, token: Token) {
        if let Some(slot) = self.get(token) {
            slot.connection.outgoing = true;
            self.outgoing += 1;
        }
    }

    pub(super) fn is_exhausted(&self) -> bool {
        self.open >= self.capacity.saturating_add(self.reserved)
    }

    /// Allocates a free slot: the most recently used one, because its memory is in the cache.
    pub(super) fn insert(&mut self, session: S) -> Option<Token> {
        let at = match self.free {
            NO_SLOT if self.is_exhausted() => return None,
            NO_SLOT => {
                self.slots.push(ShardSlot { connection: Connection::open(0), session: None });
                self.slots.len() as u32 - 1
            }
            free => free,
        };
        let slot = &mut self.slots[at as usize];
        if at == self.free {
            self.free = slot.connection.link;
        }
        let generation = slot.connection.generation;
        slot.connection = Connection::open(generation);
        slot.session = Some(session);
        self.open += 1;
        Some(Token::new(at + LISTENERS_MAX, generation))
    }

    /// Frees the slot of a closed connection and advances its generation. Its stashes must be empty.
    pub(super) fn remove(&mut self, token: Token) -> Option<S> {
        let slot = self.get(token)?;
        let session = slot.session.take();
        let generation = slot.connection.generation.wrapping_add(1);
        let outgoing = slot.connection.outgoing;
        self.outgoing -= u32::from(outgoing);
        let at = token.index() - LISTENERS_MAX;
        self.slots[at as usize].connection = Connection::free(generation, self.free);
        self.free = at;
        self.open -= 1;
        session
    }

    /// The slot, if the token has its current generation.
    pub(super) fn get(&mut self, token: Token) -> Option<&mut ShardSlot<S>> {
        let slot = self.slots.get_mut(token.index().checked_sub(LISTENERS_MAX)? as usize)?;
        let same = Token::new(token.index(), slot.connection.generation) == token;
        (slot.connection.state != ConnectionState::Free && same).then_some(slot)
    }

    pub(super) fn peek(&self, token: Token) -> Option<&ShardSlot<S>> {
        self.slots.get(token.index().checked_sub(LISTENERS_MAX)? as usize)
    }

    pub(super) fn token_at(&self, at: usize) -> Option<Token> {
        let connection = &self.slots.get(at)?.connection;
        let token = Token::new(at as u32 + LISTENERS_MAX, connection.generation);
        (connection.state != ConnectionState::Free).then_some(token)
    }

    pub(super) fn used_slots(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 4.8: a freed block is reused by the next connection.
    #[test]
    fn a_freed_slot_is_reused_under_another_generation() {
        let mut slots = ShardSlots::new(4, 0);
        let first = slots.insert('a').expect("there is room");
        let second = slots.insert('b').expect("there is room");
        assert_eq!(slots.remove(first), Some('a'));
        let third = slots.insert('c').expect("there is room");
        assert_eq!(third.index(), first.index());
        assert_ne!(third, first);
        assert!(slots.get(first).is_none(), "the old token is stale");
        assert_eq!(slots.remove(first), None);
        assert!(slots.get(second).is_some() && slots.get(third).is_some());
        assert_eq!(slots.open(), 2);
    }

    /// Row 4.9: a full slab returns an error value.
    #[test]
    fn a_full_slab_refuses_and_every_slot_comes_back() {
        let mut slots = ShardSlots::new(3, 0);
        for round in 0..5 {
            let tokens: Vec<_> = (0..3).map(|at| slots.insert(at).expect("there is room")).collect();
            assert!(slots.is_full() && slots.insert(9).is_none(), "round {round}");
            assert_eq!(tokens.iter().filter_map(|token| slots.remove(*token)).sum::<i32>(), 3);
            assert_eq!((slots.open(), slots.used_slots()), (0, 3));
        }
    }

    /// Row 4.9: incoming and outgoing connections do not use each other's slots.
    #[test]
    fn outgoing_connections_have_slots_of_their_own() {
        let mut slots = ShardSlots::new(2, 1);
        let out = slots.insert('o').expect("there is room");
        slots.mark_outgoing(out);
        let first = slots.insert('a').expect("there is room");
        assert!(!slots.is_full());
        slots.insert('b').expect("there is room");
        assert!(slots.is_full() && slots.is_exhausted());
        assert_eq!(slots.remove(out), Some('o'));
        assert!(slots.is_full() && !slots.is_exhausted());
        assert_eq!(slots.remove(first), Some('a'));
        assert!(!slots.is_full());
    }

    #[test]
    fn tokens_of_listeners_have_no_slot() {
        let mut slots: ShardSlots<()> = ShardSlots::new(1, 0);
        slots.insert(()).expect("there is room");
        assert!((0..LISTENERS_MAX).all(|index| slots.get(Token::new(index, 0)).is_none()));
    }
}
