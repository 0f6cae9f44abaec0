//! The bytes that subscribers must receive: a ring of the deliveries within the window of one publisher.

/// Ring of encoded deliveries of equal size, one for each message that not all subscribers have received.
#[derive(Debug)]
pub(super) struct ExpectedDeliveries {
    size: usize,
    /// Capacity in deliveries.
    capacity: u64,
    ring: Vec<u8>,
    sent: u64,
}

impl ExpectedDeliveries {
    /// Creates a ring for `capacity` deliveries of `size` bytes.
    pub(super) fn new(size: usize, capacity: u64) -> ExpectedDeliveries {
        let ring = vec![0; size * capacity as usize];
        ExpectedDeliveries { size, capacity, ring, sent: 0 }
    }

    /// Number of messages whose deliveries are known.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Number of deliveries in the ring.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes of one delivery.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Adds the delivery of the next message; it replaces the oldest one of a full ring.
    pub(super) fn push(&mut self, pieces: [&[u8]; 3]) {
        let start = self.start(self.sent);
        let mut slot = &mut self.ring[start..start + self.size];
        for piece in pieces {
            let (to, rest) = slot.split_at_mut(piece.len());
            to.copy_from_slice(piece);
            slot = rest;
        }
        self.sent += 1;
    }

    fn start(&self, counter: u64) -> usize {
        (counter % self.capacity) as usize * self.size
    }

    /// The delivery of a message; `None` if the message was not sent, or if its delivery has been replaced.
    pub(super) fn delivery(&self, counter: u64) -> Option<&[u8]> {
        let is_known = counter < self.sent && self.sent - counter <= self.capacity;
        let start = self.start(counter);
        is_known.then(|| &self.ring[start..start + self.size])
    }

    /// Number of bytes at the start of `input` that are right after `matched` bytes of message `counter`.
    pub(super) fn matching(&self, counter: u64, matched: usize, input: &[u8]) -> usize {
        let Some(ahead) = self.sent.checked_sub(counter).filter(|ahead| *ahead <= self.capacity) else {
            return 0;
        };
        // The deliveries are in the ring.
        let end = input.len().min((ahead as usize * self.size).saturating_sub(matched));
        let mut position = (self.start(counter) + matched) % self.ring.len();
        let mut same = 0;
        while same < end {
            let size = (end - same).min(self.ring.len() - position);
            let (received, expected) = (&input[same..same + size], &self.ring[position..position + size]);
            if received != expected {
                let pairs = received.iter().zip(expected);
                return same + pairs.take_while(|(received, expected)| received == expected).count();
            }
            same += size;
            position = 0;
        }
        same
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_compared_across_the_end_of_the_ring_and_not_beyond_what_was_sent() {
        let mut expected = ExpectedDeliveries::new(3, 4);
        let mut all = Vec::new();
        for counter in 0..6 {
            let piece = [b'a' + counter];
            expected.push([b"<", &piece, b">"]);
            all.extend_from_slice(&[b'<', b'a' + counter, b'>']);
        }
        assert_eq!((expected.sent(), expected.delivery(1), expected.delivery(6)), (6, None, None));
        assert_eq!(expected.delivery(2), Some(&b"<c>"[..]));
        assert_eq!(expected.matching(2, 0, &all[6..]), 12);
        assert_eq!(expected.matching(2, 1, &all[7..]), 11);
        assert_eq!(expected.matching(2, 0, &all[6..10]), 4);
        assert_eq!(expected.matching(5, 2, b"><g>"), 1);
        assert_eq!(expected.matching(6, 0, b"<g>"), 0);
        // Replaced.
        assert_eq!(expected.matching(1, 0, &all[3..]), 0);
        for wrong in 0..12 {
            let mut input = all[6..].to_vec();
            input[wrong] ^= 1;
            assert_eq!(expected.matching(2, 0, &input), wrong);
        }
    }
}
