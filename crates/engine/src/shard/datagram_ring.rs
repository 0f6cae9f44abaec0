//! Received datagrams that wait for the service: the sockets are drained at once, and the service gets a bounded number
//! per turn.
//!
//! Linux drops the newest datagram at a full socket. Under a standing overload the socket then holds requests whose
//! clients have given up. This ring can drop the oldest instead, so that the freshest are served.
//!
//! ```text
//!  bytes    │ … free … │ payload of 7 │ payload of 8 │ payload of 9 │ … free …
//!  entries                (7, start, len)  (8, …)        (9, …)
//! ```
//!
//! A payload is in one piece; where the end of the bytes has no room for it, it begins at their start.

use std::collections::VecDeque;

use stilling_ring::Time;

use super::datagram_io::DatagramPath;
use crate::driver::Datagram;
use crate::limits::{DATAGRAM_RING_ENTRIES, DATAGRAM_RING_SIZE, DATAGRAM_SIZE_MAX};

/// The datagram that a full ring drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DatagramDropPolicy {
    /// The oldest one in the ring: the freshest are served.
    #[default]
    Oldest,
    /// The arriving one, as a full socket does.
    Newest,
}

const _: () = assert!(DATAGRAM_SIZE_MAX <= DATAGRAM_RING_SIZE);

struct RingEntry {
    path: DatagramPath,
    start: usize,
    len: usize,
    /// Bytes from the end of the previous payload to the end of this one.
    used: usize,
    truncated: bool,
    /// The turn in which it was received.
    since: Time,
}

pub(super) struct DatagramRing {
    policy: DatagramDropPolicy,
    /// Allocated with the first datagram.
    bytes: Box<[u8]>,
    /// End of the newest payload.
    end: usize,
    used: usize,
    entries: VecDeque<RingEntry>,
}

impl DatagramRing {
    pub(super) fn new(policy: DatagramDropPolicy) -> Self {
        DatagramRing { policy, bytes: Box::default(), end: 0, used: 0, entries: VecDeque::new() }
    }

    /// Allocates the memory, which the system backs when it is used.
    pub(super) fn reserve(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = vec![0; DATAGRAM_RING_SIZE].into();
            self.entries = VecDeque::with_capacity(DATAGRAM_RING_ENTRIES);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn has_datagram_of(&self, socket: u32) -> bool {
        self.entries.iter().any(|entry| entry.path.socket == socket)
    }

    /// Appends a datagram. Returns the number of datagrams dropped for lack of room, by the policy.
    pub(super) fn push(&mut self, socket: u32, datagram: &Datagram<'_>, now: Time) -> u64 {
        let len = datagram.payload.len();
        let mut dropped = 0;
        let (start, used) = loop {
            let (start, used) = self.next_range(len);
            if self.used + used <= self.bytes.len() && self.entries.len() < DATAGRAM_RING_ENTRIES {
                break (start, used);
            }
            dropped += 1;
            if self.policy == DatagramDropPolicy::Newest || !self.pop() {
                return dropped;
            }
        };
        self.bytes[start..start + len].copy_from_slice(datagram.payload);
        let path = DatagramPath { socket, peer: datagram.from, local: datagram.local };
        let truncated = datagram.truncated;
        self.entries.push_back(RingEntry { path, start, len, used, truncated, since: now });
        self.end = start + len;
        self.used += used;
        dropped
    }

    /// The start of the next payload, and the bytes it uses with those skipped at the end.
    fn next_range(&self, len: usize) -> (usize, usize) {
        if self.end + len <= self.bytes.len() {
            (self.end, len)
        } else {
            (0, self.bytes.len() - self.end + len)
        }
    }

    /// The oldest datagram and its path.
    pub(super) fn front(&self) -> Option<(DatagramPath, Datagram<'_>)> {
        let RingEntry { path, start, len, truncated, .. } = *self.entries.front()?;
        let payload = &self.bytes[start..start + len];
        Some((path, Datagram { from: path.peer, local: path.local, payload, truncated }))
    }

    /// When the oldest datagram was received.
    pub(super) fn front_since(&self) -> Option<Time> {
        self.entries.front().map(|entry| entry.since)
    }

    /// Removes the oldest datagram. Returns false if there is none.
    pub(super) fn pop(&mut self) -> bool {
        let Some(entry) = self.entries.pop_front() else { return false };
        self.used -= entry.used;
        if self.entries.is_empty() {
            // The same memory is used again, which is in the cache.
            (self.end, self.used) = (0, 0);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn push(ring: &mut DatagramRing, number: usize, len: usize) -> u64 {
        let payload = payload(number, len);
        let from = SocketAddr::from(([10, 0, 0, 1], number as u16));
        ring.push(
            3,
            &Datagram { from, local: None, payload: &payload, truncated: number.is_multiple_of(2) },
            Time::ZERO,
        )
    }

    fn payload(number: usize, len: usize) -> Vec<u8> {
        (0..len).map(|at| (number + at) as u8).collect()
    }

    fn pop_number(ring: &mut DatagramRing) -> Option<usize> {
        let (path, datagram) = ring.front()?;
        let number = usize::from(path.peer.port());
        assert_eq!((path.socket, datagram.truncated), (3, number.is_multiple_of(2)));
        assert_eq!(datagram.payload, payload(number, datagram.payload.len()));
        assert!(ring.pop());
        Some(number)
    }

    /// Row 1.16: a full ring keeps the newest or the oldest, whole and in order, and counts the others.
    #[test]
    fn a_full_ring_drops_by_its_policy() {
        const COUNT: usize = 3000;
        for (policy, lens) in [
            (DatagramDropPolicy::Oldest, 700..1500),
            (DatagramDropPolicy::Newest, 700..1500),
            (DatagramDropPolicy::Oldest, DATAGRAM_SIZE_MAX..DATAGRAM_SIZE_MAX + 1),
        ] {
            let mut ring = DatagramRing::new(policy);
            ring.reserve();
            let len_of = |number: usize| lens.start + number * 7919 % lens.len();
            let dropped: u64 = (0..COUNT).map(|number| push(&mut ring, number, len_of(number))).sum();
            assert_eq!(dropped as usize + ring.len(), COUNT);
            let kept: Vec<_> = std::iter::from_fn(|| pop_number(&mut ring)).collect();
            assert!(kept.is_sorted());
            let size: usize = kept.iter().map(|number| len_of(*number)).sum();
            assert!(size > DATAGRAM_RING_SIZE - 2 * DATAGRAM_SIZE_MAX, "only {size} bytes were kept");
            match policy {
                DatagramDropPolicy::Oldest => {
                    assert_eq!(kept, Vec::from_iter(COUNT - kept.len()..COUNT));
                }
                DatagramDropPolicy::Newest => assert_eq!(kept[..500], Vec::from_iter(0..500)),
            }
        }
    }

    #[test]
    fn empty_datagrams_are_bounded_in_number() {
        let mut ring = DatagramRing::new(DatagramDropPolicy::Oldest);
        ring.reserve();
        let dropped: u64 = (0..DATAGRAM_RING_ENTRIES + 5).map(|number| push(&mut ring, number, 0)).sum();
        assert_eq!((dropped, ring.len(), pop_number(&mut ring)), (5, DATAGRAM_RING_ENTRIES, Some(5)));
    }

    #[test]
    fn a_ring_in_use_wraps_without_a_loss() {
        let mut ring = DatagramRing::new(DatagramDropPolicy::Newest);
        ring.reserve();
        push(&mut ring, 0, 17);
        for number in 1..5000 {
            assert_eq!(push(&mut ring, number, number * 31 % DATAGRAM_SIZE_MAX), 0);
            assert_eq!(pop_number(&mut ring), Some(number - 1));
            assert!(ring.has_datagram_of(3) && !ring.has_datagram_of(2));
        }
    }
}
