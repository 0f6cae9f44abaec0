//! Bytes in fixed memory: the newest overwrite the oldest.

/// Position of stored bytes. It never refers to later bytes in the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingPosition(u64);

/// Stores pieces of bytes, each contiguous. Its memory is reserved at once and used as it fills.
#[derive(Debug)]
pub(super) struct ByteRing {
    bytes: Vec<u8>,
    /// The number of bytes ever stored, with the gaps at wraps.
    end: u64,
}

impl ByteRing {
    /// An empty ring of `size` bytes.
    pub(super) fn new(size: usize) -> ByteRing {
        // The system maps zeroed pages when they are first used.
        ByteRing { bytes: vec![0; size], end: 0 }
    }

    /// Stores the concatenation of `pieces`; `None` if it exceeds the ring.
    pub(super) fn push(&mut self, pieces: &[&[u8]]) -> Option<RingPosition> {
        let size: usize = pieces.iter().map(|piece| piece.len()).sum();
        let capacity = self.bytes.len();
        if size > capacity {
            return None;
        }
        let mut at = (self.end % capacity as u64) as usize;
        if at + size > capacity {
            self.end += (capacity - at) as u64;
            at = 0;
        }
        let position = RingPosition(self.end);
        for piece in pieces {
            self.bytes[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        self.end += size as u64;
        Some(position)
    }

    /// The `size` bytes at a position; `None` if later ones have overwritten them.
    pub(super) fn get(&self, position: RingPosition, size: usize) -> Option<&[u8]> {
        let capacity = self.bytes.len() as u64;
        if self.end - position.0 > capacity {
            return None;
        }
        let at = (position.0 % capacity) as usize;
        self.bytes.get(at..at + size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 1.12: a position never yields bytes that were stored for another one.
    #[test]
    fn overwritten_bytes_are_not_found() {
        let mut ring = ByteRing::new(100);
        let mut stored = Vec::new();
        for number in 0..200_u8 {
            let size = usize::from(number % 31);
            let piece = vec![number; size];
            let (first, second) = piece.split_at(size / 2);
            stored.push((ring.push(&[first, second]).expect("it fits"), piece));
            let mut found = 0;
            for (position, piece) in stored.iter().filter(|(_, piece)| !piece.is_empty()) {
                match ring.get(*position, piece.len()) {
                    Some(bytes) => {
                        assert_eq!(bytes, piece);
                        found += piece.len();
                    }
                    None => assert_eq!(found, 0, "the oldest are overwritten first"),
                }
            }
        }
        assert_eq!(ring.push(&[&[0; 101]]), None);
    }
}
