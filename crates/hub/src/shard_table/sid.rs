//! The names of subscriptions. Clients count them, so nearly all are short: these lie in place.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};

/// Bytes of a sid that lies in place.
const SHORT_MAX: usize = 14;

/// A sid.
#[derive(Clone, Debug)]
pub(super) enum Sid {
    Short { size: u8, bytes: [u8; SHORT_MAX] },
    Long(Box<Long>),
}

/// A longer one, behind one pointer so that a [`Sid`] stays small.
#[derive(Clone, Debug)]
pub(super) struct Long(Box<[u8]>);

const _: () = assert!(size_of::<Sid>() == 16);

impl Sid {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Sid::Short { size, bytes } => &bytes[..usize::from(*size)],
            Sid::Long(long) => &long.0,
        }
    }
}

impl From<&[u8]> for Sid {
    fn from(sid: &[u8]) -> Sid {
        let mut bytes = [0; SHORT_MAX];
        match bytes.get_mut(..sid.len()) {
            Some(part) => {
                part.copy_from_slice(sid);
                Sid::Short { size: sid.len() as u8, bytes }
            }
            None => Sid::Long(Box::new(Long(sid.into()))),
        }
    }
}

impl Default for Sid {
    fn default() -> Sid {
        Sid::Short { size: 0, bytes: [0; SHORT_MAX] }
    }
}

impl PartialEq for Sid {
    fn eq(&self, other: &Sid) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Sid {}

impl Hash for Sid {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes().hash(state);
    }
}

impl Borrow<[u8]> for Sid {
    fn borrow(&self) -> &[u8] {
        self.bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn sids_of_any_length_are_what_they_were_and_found_by_their_bytes() {
        let mut all = HashSet::new();
        for size in 0..40 {
            let bytes = vec![b'1'; size];
            let sid = Sid::from(&bytes[..]);
            assert_eq!(sid.bytes(), bytes);
            assert!(all.insert(sid.clone()) && !all.insert(sid));
            assert!(all.contains(&bytes[..]));
        }
        assert_eq!((Sid::default().bytes(), all.len()), (&b""[..], 40));
    }
}
