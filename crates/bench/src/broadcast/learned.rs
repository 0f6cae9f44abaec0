//! The deliveries of a run whose bytes only the server knows, such as those with a time: each is decoded and verified
//! for its first subscriber, and its bytes are compared for all others.

use std::collections::VecDeque;

/// Verified deliveries, in order, as one row of bytes. Offsets count from the first delivery of the run.
#[derive(Debug, Default)]
pub(super) struct LearnedDeliveries {
    bytes: Vec<u8>,
    /// Offset of the first byte that is kept.
    base: u64,
    /// The deliveries that are kept.
    kept: VecDeque<LearnedDelivery>,
    /// Number of deliveries that are not kept any more.
    forgotten: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LearnedDelivery {
    /// Offset behind it.
    pub(super) end: u64,
    /// Its sequence in the stream; 0: none.
    pub(super) sequence: u64,
}

/// Bytes of forgotten deliveries at which the others move to the front.
const FORGOTTEN_SIZE_MAX: u64 = 16 << 20;

impl LearnedDeliveries {
    /// Number of learned deliveries.
    pub(super) fn len(&self) -> u64 {
        self.forgotten + self.kept.len() as u64
    }

    /// Offset behind the last learned delivery.
    pub(super) fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    /// The delivery of message `counter`, if it is kept.
    pub(super) fn get(&self, counter: u64) -> Option<LearnedDelivery> {
        self.kept.get(usize::try_from(counter.checked_sub(self.forgotten)?).ok()?).copied()
    }

    /// Whether the kept delivery of message `counter` ends with these bytes; true if it is not kept or not learned. After a
    /// missing message a subscriber may not know where the next delivery starts that others have learned.
    pub(super) fn ends_with(&self, counter: u64, bytes: &[u8]) -> bool {
        self.get(counter).is_none_or(|known| {
            let start = known.end.saturating_sub(bytes.len() as u64);
            self.range(start, known.end) == bytes
        })
    }

    /// Adds the delivery of the next message, and forgets those before the last `kept_max`.
    pub(super) fn push(&mut self, delivery: &[u8], sequence: u64, kept_max: u64) {
        self.bytes.extend_from_slice(delivery);
        self.kept.push_back(LearnedDelivery { end: self.end(), sequence });
        let mut start = self.base;
        while self.kept.len() as u64 > kept_max {
            start = self.kept.pop_front().map_or(start, |forgotten| forgotten.end);
            self.forgotten += 1;
        }
        if start - self.base >= FORGOTTEN_SIZE_MAX {
            self.bytes.drain(..(start - self.base) as usize);
            self.base = start;
        }
    }

    /// The bytes from one offset to another; empty if they are not kept.
    pub(super) fn range(&self, start: u64, end: u64) -> &[u8] {
        let from = start.checked_sub(self.base).and_then(|from| usize::try_from(from).ok());
        let to = end.checked_sub(self.base).and_then(|to| usize::try_from(to).ok());
        from.zip(to).and_then(|(from, to)| self.bytes.get(from..to)).unwrap_or_default()
    }

    /// Number of bytes at the start of `input` that equal those from `offset` on.
    pub(super) fn matching(&self, offset: u64, input: &[u8]) -> usize {
        let learned = self.range(offset, self.end());
        let size = learned.len().min(input.len());
        if learned[..size] == input[..size] {
            return size;
        }
        learned.iter().zip(input).take_while(|(learned, received)| learned == received).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_is_compared_without_its_start() {
        let mut learned = LearnedDeliveries::default();
        learned.push(b"first", 1, 10);
        learned.push(b"second", 2, 10);
        assert!(learned.ends_with(1, b"second") && learned.ends_with(2, b"third"));
        assert!(!learned.ends_with(1, b"sEcond") && !learned.ends_with(0, b"firs"));
    }

    #[test]
    fn deliveries_of_any_size_are_found_by_their_number() {
        let mut learned = LearnedDeliveries::default();
        for (delivery, sequence) in [(&b"one"[..], 7), (b"three", 8), (b"fifth", 11)] {
            learned.push(delivery, sequence, 2);
        }
        assert_eq!((learned.len(), learned.end()), (3, 13));
        let kept = |end, sequence| Some(LearnedDelivery { end, sequence });
        assert_eq!([0, 1, 2, 3].map(|counter| learned.get(counter)), [None, kept(8, 8), kept(13, 11), None]);
        assert_eq!(learned.range(8, 13), b"fifth");
        assert_eq!(learned.matching(3, b"threefi"), 7);
        assert_eq!(learned.matching(3, b"thrEe"), 3);
        assert_eq!(learned.matching(13, b"more"), 0);
    }

    #[test]
    fn old_deliveries_take_a_bounded_size() {
        let mut learned = LearnedDeliveries::default();
        let delivery = vec![7; 1 << 20];
        for _ in 0..100 {
            learned.push(&delivery, 1, 4);
        }
        assert!(learned.bytes.len() as u64 <= FORGOTTEN_SIZE_MAX + (5 << 20));
        assert_eq!(learned.end(), 100 << 20);
        assert_eq!(learned.matching(99 << 20, &delivery), delivery.len());
        assert_eq!(learned.range(0, 10), b"");
    }
}
