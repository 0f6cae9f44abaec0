//! A message that arrives in pieces, and its memory.

use stilling_ring::Time;
use stilling_wire::websocket::MessageKind;

#[derive(Debug)]
pub(super) struct Assembly {
    pub(super) kind: MessageKind,
    pub(super) bytes: Vec<u8>,
    pub(super) until: Time,
}

/// The shard has no room for a longer message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NoAssemblyRoom;

impl Assembly {
    pub(super) fn new(kind: MessageKind, until: Time) -> Assembly {
        Assembly { kind, bytes: Vec::new(), until }
    }

    /// Bytes of its memory.
    pub(super) fn size(&self) -> usize {
        self.bytes.capacity()
    }

    /// Makes room for `size` further bytes of a message of at most `size_max`. `held` are the bytes of memory of the shard's
    /// incomplete messages, at most `held_max`.
    pub(super) fn reserve(
        &mut self,
        size: usize,
        size_max: usize,
        (held, held_max): (&mut usize, usize),
    ) -> Result<(), NoAssemblyRoom> {
        let (before, needed) = (self.size(), self.bytes.len() + size);
        if needed > before {
            // Doubled, so that pieces of one byte are not copied each time.
            let capacity = (2 * before).min(size_max).max(needed);
            if *held + (capacity - before) > held_max {
                return Err(NoAssemblyRoom);
            }
            self.bytes.reserve_exact(capacity - self.bytes.len());
            *held += self.size() - before;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes counted are those allocated, however the message is cut.
    #[test]
    fn memory_counts_in_full_and_is_bounded() {
        const SIZE: usize = 100_000;
        for piece_size in [1, 3, 1000, SIZE] {
            let mut held = 7;
            let mut assembly = Assembly::new(MessageKind::Text, Time::ZERO);
            for _ in 0..SIZE / piece_size {
                assembly.reserve(piece_size, SIZE, (&mut held, 2 * SIZE)).expect("there is room");
                assembly.bytes.resize(assembly.bytes.len() + piece_size, b'x');
                assert_eq!(held, 7 + assembly.bytes.capacity());
            }
            assert!(assembly.size() <= SIZE, "{piece_size}: {}", assembly.size());
            let before = held;
            let refused = assembly.reserve(SIZE, 4 * SIZE, (&mut held, 7 + SIZE));
            assert_eq!((refused, held), (Err(NoAssemblyRoom), before), "{piece_size}");
        }
    }
}
