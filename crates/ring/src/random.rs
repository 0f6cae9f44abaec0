//! The pseudo-random number generator.
//!
//! SplitMix64: one word of state, no weak seeds, a few instructions per draw. Not cryptographic. Its draws are the same
//! on every machine and in every version, which a library's generator does not guarantee.

/// A seeded generator. Equal seeds give equal draws.
///
/// ```
/// use stilling_ring::SplitMix64;
///
/// let (mut one, mut other) = (SplitMix64::new(7), SplitMix64::new(7));
/// assert_eq!(one.bits(), other.bits());
/// assert!(one.below(10) < 10);
/// ```
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator with `seed`; all values are equally good.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        SplitMix64(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        Self::mix(self.0)
    }

    /// A number below `bound`; 0 if `bound` is 0. The bias is below 2^-32 for bounds below 2^32.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included; `low` if `high` is below it.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// An index below `len`; 0 if `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True with a probability of `rate` per thousand.
    pub fn chance(&mut self, rate: u16) -> bool {
        self.below(1000) < u64::from(rate)
    }

    /// A generator seeded by the next draw: from then on the two are independent.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        SplitMix64(self.bits())
    }

    /// Spreads every bit of `word` over the whole result.
    #[must_use]
    pub const fn mix(word: u64) -> u64 {
        let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_draws_are_those_of_the_published_algorithm() {
        // First outputs of the reference implementation (Vigna, public domain) for seed 1234567.
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.bits(), 6_457_827_717_110_365_317);
        assert_eq!(random.bits(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn draws_stay_within_their_bounds_and_reach_both_ends() {
        let mut random = SplitMix64::new(1);
        let mut seen = [0_u32; 4];
        for _ in 0..1000 {
            seen[random.between(0, 3) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| count > 150), "{seen:?}");
        assert_eq!((random.below(0), random.below(1), random.between(5, 5)), (0, 0, 5));
        assert!(!random.chance(0) && random.chance(1000));
    }
}
