//! Values of `Observe` (RFC 7641 §2, §3.4).

use super::uint::{UintValue, decode_uint};

/// Values are sequences modulo 2 ** 24.
const SEQUENCE_BITS: u32 = 24;
const SEQUENCE_MASK: u32 = (1 << SEQUENCE_BITS) - 1;

/// The sequence of a notification, of 24 bits. In a request 0 registers and 1 deregisters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObserveSequence(u32);

impl ObserveSequence {
    /// The value of a request that registers an observation.
    pub const REGISTER: Self = Self(0);
    /// The value of a request that ends an observation.
    pub const DEREGISTER: Self = Self(1);

    /// Returns the sequence of a counter; bits beyond 24 are dropped.
    #[must_use]
    pub const fn new(counter: u32) -> Self {
        Self(counter & SEQUENCE_MASK)
    }

    /// Decodes an option's value of at most 3 bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        decode_uint(bytes).filter(|value| value >> SEQUENCE_BITS == 0).map(Self)
    }

    /// Returns the encoded value.
    #[must_use]
    pub const fn encode(self) -> UintValue {
        UintValue::new(self.0)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the next sequence; 0 follows the greatest.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0 + 1)
    }

    /// Whether a notification is newer than an `earlier` one received at most 128 seconds before it (RFC 7641 §3.4).
    #[must_use]
    pub const fn is_newer_than(self, earlier: Self) -> bool {
        let ahead = self.0.wrapping_sub(earlier.0) & SEQUENCE_MASK;
        ahead != 0 && ahead < 1 << (SEQUENCE_BITS - 1)
    }
}
