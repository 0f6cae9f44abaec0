//! Byte strings that are nearly always short, such as sids and filter tokens: short ones are stored inline, without a
//! pointer.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};

/// Maximum bytes stored inline.
pub(crate) const SHORT_MAX: usize = 14;

/// A byte string that compares and hashes as its bytes.
#[derive(Clone, Debug)]
pub(crate) enum ShortBytes {
    Short { size: u8, bytes: [u8; SHORT_MAX] },
    Long(Box<LongBytes>),
}

/// A longer string, behind one pointer to keep [`ShortBytes`] small.
#[derive(Clone, Debug)]
pub(crate) struct LongBytes(Box<[u8]>);

const _: () = assert!(size_of::<ShortBytes>() == 16);

impl ShortBytes {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            ShortBytes::Short { size, bytes } => &bytes[..usize::from(*size)],
            ShortBytes::Long(long) => &long.0,
        }
    }
}

impl From<&[u8]> for ShortBytes {
    fn from(all: &[u8]) -> ShortBytes {
        let mut bytes = [0; SHORT_MAX];
        match bytes.get_mut(..all.len()) {
            Some(part) => {
                part.copy_from_slice(all);
                ShortBytes::Short { size: all.len() as u8, bytes }
            }
            None => ShortBytes::Long(Box::new(LongBytes(all.into()))),
        }
    }
}

impl Default for ShortBytes {
    fn default() -> ShortBytes {
        ShortBytes::Short { size: 0, bytes: [0; SHORT_MAX] }
    }
}

impl PartialEq for ShortBytes {
    fn eq(&self, other: &ShortBytes) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for ShortBytes {}

impl Hash for ShortBytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes().hash(state);
    }
}

impl Borrow<[u8]> for ShortBytes {
    fn borrow(&self) -> &[u8] {
        self.bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn strings_of_any_length_keep_their_bytes_and_are_found_by_them() {
        let mut all = HashSet::new();
        for size in 0..40 {
            let bytes = vec![b'1'; size];
            let short = ShortBytes::from(&bytes[..]);
            assert_eq!(short.bytes(), bytes);
            assert!(all.insert(short.clone()) && !all.insert(short));
            assert!(all.contains(&bytes[..]));
        }
        assert_eq!((ShortBytes::default().bytes(), all.len()), (&b""[..], 40));
    }
}
