//! Byte searches over eight bytes per step in an ordinary u64.
//!
//! A test may wrongly mark a lane above the first hit, because its subtraction borrows from the next higher lane. The
//! lowest mark is always a hit.

pub(crate) const fn splat(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

pub(crate) const HIGH: u64 = splat(0x80);

/// Marks lanes below `byte`, which is at most 0x80.
pub(crate) const fn below(word: u64, byte: u8) -> u64 {
    word.wrapping_sub(splat(byte)) & !word & HIGH
}

pub(crate) const fn equal(word: u64, byte: u8) -> u64 {
    let difference = word ^ splat(byte);
    difference.wrapping_sub(splat(1)) & !difference & HIGH
}

/// Offset at or after `from` of the first byte that `stops` marks, or the length; `stop` is the same test for one byte.
#[inline(always)]
pub(crate) fn find(
    bytes: &[u8],
    from: usize,
    stops: impl Fn(u64) -> u64,
    stop: impl Fn(u8) -> bool,
) -> usize {
    let mut at = from;
    while let Some(chunk) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let marks = stops(u64::from_le_bytes(*chunk));
        if marks != 0 {
            return at + (marks.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while at < bytes.len() && !stop(bytes[at]) {
        at += 1;
    }
    at
}
