//! Values of `Block1` and `Block2` (RFC 7959 §2.2).

use super::limits::{BLOCK_NUMBER_MAX, BLOCK_SIZE_MAX};
use super::uint::{UintValue, decode_uint};

/// Bit that tells whether further blocks follow.
const MORE: u32 = 0x08;
const EXPONENT_MASK: u32 = 0x07;
/// Reserved over UDP (RFC 8323 gives it a meaning over TCP).
const EXPONENT_RESERVED: u8 = 7;
/// Exponent of a block of one byte: sizes are `2 ** (exponent + 4)`.
const EXPONENT_OFFSET: u32 = 4;

/// Bytes of each block but the last: 16, 32, 64, 128, 256, 512 or 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize(u8);

impl BlockSize {
    /// Blocks of 16 bytes.
    pub const MIN: Self = Self(0);
    /// Blocks of 1,024 bytes.
    pub const MAX: Self = Self(EXPONENT_RESERVED - 1);

    /// Returns the largest size of at most `bytes`, at least 16.
    #[must_use]
    pub fn at_most(bytes: usize) -> Self {
        let exponent = bytes.clamp(1, BLOCK_SIZE_MAX).ilog2().saturating_sub(EXPONENT_OFFSET);
        Self(exponent as u8)
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        1 << (self.0 as u32 + EXPONENT_OFFSET)
    }

    /// Returns the exponent on the wire (`SZX`).
    #[must_use]
    pub const fn exponent(self) -> u8 {
        self.0
    }
}

/// The exponent 7, which a request must not have: answered with 4.00 (RFC 7959 §2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedBlockSize;

/// A block: its number, whether more follow, and the size that the number counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockValue {
    number: u32,
    /// Whether further blocks follow. Without meaning in a request's `Block2`.
    pub more: bool,
    /// The size of the block.
    pub size: BlockSize,
}

impl BlockValue {
    /// Returns the value; `None` if the number exceeds 20 bits.
    #[must_use]
    pub const fn new(number: u32, more: bool, size: BlockSize) -> Option<Self> {
        if number > BLOCK_NUMBER_MAX { None } else { Some(Self { number, more, size }) }
    }

    /// Returns the block that starts at `offset`; `None` if no block of this size does.
    #[must_use]
    pub fn at_offset(offset: usize, more: bool, size: BlockSize) -> Option<Self> {
        if !offset.is_multiple_of(size.bytes()) {
            return None;
        }
        Self::new(u32::try_from(offset / size.bytes()).ok()?, more, size)
    }

    /// Decodes an option's value of at most 3 bytes; longer ones have a length outside the option's range.
    pub fn decode(bytes: &[u8]) -> Result<Self, ReservedBlockSize> {
        let value = decode_uint(bytes).unwrap_or(u32::MAX);
        let exponent = (value & EXPONENT_MASK) as u8;
        let number = value >> EXPONENT_OFFSET;
        if exponent == EXPONENT_RESERVED || number > BLOCK_NUMBER_MAX {
            return Err(ReservedBlockSize);
        }
        Ok(Self { number, more: value & MORE != 0, size: BlockSize(exponent) })
    }

    /// Returns the encoded value.
    #[must_use]
    pub const fn encode(&self) -> UintValue {
        let more = if self.more { MORE } else { 0 };
        UintValue::new(self.number << EXPONENT_OFFSET | more | self.size.0 as u32)
    }

    /// Returns the number of the block.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the offset of its first byte in the body, below 1 GiB.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.number as usize * self.size.bytes()
    }
}
