//! Bytes in fixed memory, in the order of their arrival: the oldest are released, or make room for the newest.
//!
//! Memory is used in chunks, those that were used before first, so that the system maps as many pages as the bytes that
//! are kept at a time need.

use std::collections::VecDeque;

/// Bytes of a chunk.
const CHUNK_SIZE: usize = 64 * 1024;

/// Position of stored bytes. It never refers to later bytes in the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuePosition {
    /// Number of the chunk since the start.
    chunk: u64,
    offset: u32,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct ByteQueue {
    bytes: Vec<u8>,
    /// Places of the chunks in use, the oldest first.
    chunks: VecDeque<u32>,
    /// Places of the others; the last one was used last.
    free: Vec<u32>,
    /// Number of the oldest chunk in use.
    first: u64,
    /// Bytes used of the newest chunk.
    used: usize,
}

impl ByteQueue {
    /// An empty queue of `size` bytes, at least one chunk.
    pub(super) fn new(size: usize) -> ByteQueue {
        let chunks = (size / CHUNK_SIZE).max(1);
        ByteQueue {
            // The system maps zeroed pages when they are first used.
            bytes: vec![0; chunks * CHUNK_SIZE],
            chunks: VecDeque::with_capacity(chunks),
            free: (0..chunks as u32).rev().collect(),
            first: 0,
            used: 0,
        }
    }

    /// Stores bytes, in place of the oldest chunk if there is no room; `None` if they exceed a chunk.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Option<QueuePosition> {
        if bytes.len() > CHUNK_SIZE {
            return None;
        }
        if self.chunks.is_empty() || self.used + bytes.len() > CHUNK_SIZE {
            if self.free.is_empty() {
                self.release_oldest();
            }
            self.chunks.push_back(self.free.pop()?);
            self.used = 0;
        }
        let position =
            QueuePosition { chunk: self.first + self.chunks.len() as u64 - 1, offset: self.used as u32 };
        let start = *self.chunks.back()? as usize * CHUNK_SIZE + self.used;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
        Some(position)
    }

    /// The `size` bytes at a position; `None` if they have been released.
    pub(super) fn get(&self, position: QueuePosition, size: usize) -> Option<&[u8]> {
        let place = *self.chunks.get(usize::try_from(position.chunk.checked_sub(self.first)?).ok()?)?;
        let start = place as usize * CHUNK_SIZE + position.offset as usize;
        self.bytes.get(start..start + size)
    }

    /// Releases the chunks before that of a position.
    pub(super) fn release_before(&mut self, position: QueuePosition) {
        while self.first < position.chunk && !self.chunks.is_empty() {
            self.release_oldest();
        }
    }

    fn release_oldest(&mut self) {
        if let Some(place) = self.chunks.pop_front() {
            self.free.push(place);
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 1.12: a position never yields bytes that were stored for another one.
    #[test]
    fn released_bytes_are_not_found() {
        let mut queue = ByteQueue::new(3 * CHUNK_SIZE);
        let mut stored = Vec::new();
        for number in 0..1000_u32 {
            let bytes = vec![number as u8; number as usize % 1281];
            stored.push((queue.push(&bytes).expect("it fits"), bytes));
            if number % 300 == 299 {
                queue.release_before(stored[number as usize - 10].0);
            }
            let mut has_found = false;
            for (position, bytes) in &stored {
                match queue.get(*position, bytes.len()) {
                    Some(found) => {
                        assert_eq!(found, bytes);
                        has_found = true;
                    }
                    None => assert!(!has_found, "the oldest are released first"),
                }
            }
            let newest = &stored[stored.len().saturating_sub(10)..];
            assert!(newest.iter().all(|(position, bytes)| queue.get(*position, bytes.len()).is_some()));
        }
        assert_eq!(queue.push(&vec![0; CHUNK_SIZE + 1]), None);
    }

    /// Row 1.2: bytes that are released in time use the same memory again.
    #[test]
    fn released_memory_is_used_first() {
        let mut queue = ByteQueue::new(100 * CHUNK_SIZE);
        let mut positions = VecDeque::new();
        let mut most = 0;
        for _ in 0..10_000 {
            positions.push_back(queue.push(&[1; 1000]).expect("it fits"));
            if positions.len() > 200 {
                positions.pop_front();
                queue.release_before(positions[0]);
            }
            most = most.max(queue.chunks.iter().max().map_or(0, |place| place + 1));
        }
        assert!(most <= 5, "200 kB need {most} chunks");
    }
}
