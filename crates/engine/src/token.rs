//! The id of a source: an index and a generation in one word.
//!
//! The shard assigns the index (a slot of its slab); every event of a source has its token. The generation
//! distinguishes successive uses of a slot, so that a late completion for an earlier use is recognised as stale.
//!
//! ```text
//!  63        56 55                    32 31                                0
//! ┌────────────┬────────────────────────┬────────────────────────────────────┐
//! │ 0 (driver) │ generation, 24 bits    │ index, 32 bits                     │
//! └────────────┴────────────────────────┴────────────────────────────────────┘
//! ```
//!
//! The top byte stays zero: a driver stores its operation there.

/// Bits of a generation. It may wrap: a slot is not reused while one of its operations is in flight.
pub const GENERATION_BITS: u32 = 24;

/// The id of a listener, connection or datagram socket within one shard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(u64);

impl Token {
    /// The token of slot `index` in its `generation` (taken modulo 2^24).
    pub const fn new(index: u32, generation: u32) -> Self {
        let generation = generation & ((1 << GENERATION_BITS) - 1);
        Token((generation as u64) << 32 | index as u64)
    }

    /// The slot.
    pub const fn index(self) -> u32 {
        self.0 as u32
    }

    /// The generation of the slot.
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32 & ((1 << GENERATION_BITS) - 1)
    }

    /// The word itself; the top byte is zero.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The token in `bits`; the top byte is ignored.
    pub const fn from_bits(bits: u64) -> Self {
        Token(bits & !(0xff << 56))
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.index(), self.generation())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_the_round_trip_through_its_bits() {
        for (index, generation) in [(0, 0), (7, 1), (u32::MAX, (1 << 24) - 1)] {
            let token = Token::new(index, generation);
            let noisy = token.bits() | 0xab << 56;
            assert_eq!(Token::from_bits(noisy), token);
            assert_eq!((token.index(), token.generation()), (index, generation));
        }
    }

    #[test]
    fn a_generation_wraps_within_its_bits() {
        assert_eq!(Token::new(3, 1 << 24), Token::new(3, 0));
    }
}
