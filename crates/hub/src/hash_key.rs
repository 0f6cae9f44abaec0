//! Keyed hashing: peers cannot choose colliding names, and a simulation can fix the key.

use std::hash::{BuildHasher, Hasher as _};

use siphasher::sip::SipHasher13;
use siphasher::sip128::{Hasher128 as _, SipHasher13 as SipHasher13Wide};

/// Key of a hub's hash tables.
#[derive(Clone, Copy, Debug)]
pub struct HashKey(pub u64, pub u64);

impl HashKey {
    /// Returns a 128-bit hash of `bytes`; two different inputs collide with a probability of 2⁻¹²⁸.
    #[must_use]
    pub fn hash_128(&self, bytes: &[u8]) -> u128 {
        let mut hasher = SipHasher13Wide::new_with_keys(self.0, self.1);
        hasher.write(bytes);
        hasher.finish128().as_u128()
    }
}

impl BuildHasher for HashKey {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }
}
