//! Memory that requests and answers hold, counted against a bound that all of one kind in a shard share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that all reservations of one kind hold in one shard. Workers release bytes too, so it has cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct MemoryUsage(AtomicU64);

impl MemoryUsage {
    /// Bytes that are held now.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Bytes held for one request or one answer until this is dropped, on whichever thread: a request whose client has gone
/// may still lie in the workers' queue, and the source of an answer may be with a worker. Only the shard adds bytes.
#[derive(Debug)]
pub(crate) struct MemoryReservation {
    usage: Arc<MemoryUsage>,
    bytes: u64,
}

impl MemoryReservation {
    /// A reservation of no bytes yet.
    pub(crate) fn new(usage: &Arc<MemoryUsage>) -> Self {
        MemoryReservation { usage: Arc::clone(usage), bytes: 0 }
    }

    /// Holds more bytes; false, and nothing changes, if all together would be more than `max`.
    pub(crate) fn grow(&mut self, bytes: usize, max: usize) -> bool {
        // Bytes that other threads release meanwhile only make more room.
        let fits = self.has_room(bytes, max);
        if fits {
            self.add(bytes);
        }
        fits
    }

    /// Whether all together could hold so many bytes more without being more than `max`.
    pub(crate) fn has_room(&self, bytes: usize, max: usize) -> bool {
        self.usage.bytes().saturating_add(bytes as u64) <= max as u64
    }

    /// Holds more bytes, for which there was [room](Self::has_room).
    pub(crate) fn add(&mut self, bytes: usize) {
        self.usage.0.fetch_add(bytes as u64, Ordering::Relaxed);
        self.bytes += bytes as u64;
    }

    /// Gives bytes back.
    pub(crate) fn release(&mut self, bytes: usize) {
        let bytes = self.bytes.min(bytes as u64);
        self.usage.0.fetch_sub(bytes, Ordering::Relaxed);
        self.bytes -= bytes;
    }

    /// Bytes that this reservation holds.
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
    fn reservations_share_one_bound_and_give_back_what_they_hold() {
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
