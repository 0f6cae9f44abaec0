//! Memory held by requests and responses, counted against a shared bound per kind and shard.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes held by all reservations of one kind in one shard. Aligned to its own cache lines, because workers release
/// bytes too.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct MemoryUsage(AtomicU64);

impl MemoryUsage {
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Bytes held for one request or response until this is dropped, on any thread: a request may outlive its client in
/// the workers' queue, and a worker may have the source of a response. Only the shard adds bytes.
#[derive(Debug)]
pub(crate) struct MemoryReservation {
    usage: Arc<MemoryUsage>,
    bytes: u64,
}

impl MemoryReservation {
    /// A reservation of no bytes.
    pub(crate) fn new(usage: &Arc<MemoryUsage>) -> Self {
        MemoryReservation { usage: Arc::clone(usage), bytes: 0 }
    }

    /// Adds bytes. Returns false and changes nothing if the usage would exceed `max`.
    pub(crate) fn grow(&mut self, bytes: usize, max: usize) -> bool {
        // Concurrent releases only make more room.
        let fits = self.has_room(bytes, max);
        if fits {
            self.add(bytes);
        }
        fits
    }

    /// Whether the usage plus these bytes stays within `max`.
    pub(crate) fn has_room(&self, bytes: usize, max: usize) -> bool {
        self.usage.bytes().saturating_add(bytes as u64) <= max as u64
    }

    /// Adds bytes that have [room](Self::has_room).
    pub(crate) fn add(&mut self, bytes: usize) {
        self.usage.0.fetch_add(bytes as u64, Ordering::Relaxed);
        self.bytes += bytes as u64;
    }

    /// Releases bytes, at most as many as are held.
    pub(crate) fn release(&mut self, bytes: usize) {
        let bytes = self.bytes.min(bytes as u64);
        self.usage.0.fetch_sub(bytes, Ordering::Relaxed);
        self.bytes -= bytes;
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.usage.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_share_one_bound_and_are_released_on_drop() {
        let usage = Arc::default();
        let (mut first, mut second) = (MemoryReservation::new(&usage), MemoryReservation::new(&usage));
        assert!(first.grow(60, 100) && second.grow(40, 100) && !second.grow(1, 100));
        assert_eq!((first.bytes(), second.bytes(), usage.bytes()), (60, 40, 100));
        first.release(1000);
        assert_eq!((first.bytes(), usage.bytes()), (0, 40));
        assert!(first.has_room(60, 100) && !first.has_room(61, 100));
        drop(second);
        assert_eq!(usage.bytes(), 0);
    }
}
