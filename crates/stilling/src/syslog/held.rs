//! Datagrams that wait for room on the way to the hub: what cannot be left in the socket, since there the newest would be
//! lost, whatever they say, and senders on a Unix socket would hang.
//!
//! ```text
//!   bytes held   0 ────────────────────────────── max
//!   emerg        ████████████████████████████████   8/8
//!   err          ████████████████████               5/8
//!   info         ████████                           2/8
//!   debug        ████                               1/8
//! ```
//!
//! The less a message says, the earlier there is no room for it: so the least severe are shed first, without a search, and
//! what is held stays in its order. The same shares hold for what each source has, so that one that floods sheds its own.
//!
//! Each stream has a lane: what waits for one stream delays nothing for another. All lanes share the bytes.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

/// A message that waits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) subject: Vec<u8>,
    pub(super) message: Vec<u8>,
    source: IpAddr,
}

impl Waiting {
    fn size(&self) -> usize {
        self.subject.len() + self.message.len() + size_of::<Waiting>()
    }
}

/// The datagrams of one stream, or of no stream.
pub(super) type Lane = u32;

/// Those that wait, in the order of each lane.
#[derive(Debug)]
pub(super) struct Held {
    /// Lanes with datagrams.
    queues: BTreeMap<Lane, VecDeque<Waiting>>,
    size: usize,
    /// Bytes of each source that has any.
    of_sources: BTreeMap<IpAddr, usize>,
    size_max: usize,
    source_size_max: usize,
}

impl Held {
    pub(super) fn new(size_max: usize, source_size_max: usize) -> Held {
        Held { queues: BTreeMap::new(), size: 0, of_sources: BTreeMap::new(), size_max, source_size_max }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Whether nothing waits in a lane.
    pub(super) fn is_lane_empty(&self, lane: Lane) -> bool {
        !self.queues.contains_key(&lane)
    }

    /// The lanes with datagrams, in order.
    pub(super) fn lanes(&self) -> impl Iterator<Item = Lane> {
        self.queues.keys().copied()
    }

    /// The first lane with datagrams from `from` on.
    pub(super) fn next_lane(&self, from: Lane) -> Option<Lane> {
        self.queues.range(from..).next().map(|(lane, _)| *lane)
    }

    /// Holds a message; false: it has to be shed.
    pub(super) fn push(
        &mut self,
        lane: Lane,
        (severity, source): (u8, IpAddr),
        subject: &[u8],
        message: &[u8],
    ) -> bool {
        let size = subject.len() + message.len() + size_of::<Waiting>();
        let share = |all: usize| all / 8 * usize::from(8 - severity.min(7));
        let of_source = self.of_sources.get(&source).copied().unwrap_or(0) + size;
        if self.size + size > share(self.size_max) || of_source > share(self.source_size_max) {
            return false;
        }
        self.of_sources.insert(source, of_source);
        self.size += size;
        let queue = self.queues.entry(lane).or_default();
        queue.push_back(Waiting { subject: subject.to_vec(), message: message.to_vec(), source });
        true
    }

    /// The oldest of a lane.
    pub(super) fn pop(&mut self, lane: Lane) -> Option<Waiting> {
        let queue = self.queues.get_mut(&lane)?;
        let oldest = queue.pop_front()?;
        if queue.is_empty() {
            // Overload is rare, and its memory is not kept.
            self.queues.remove(&lane);
        }
        let size = oldest.size();
        self.size -= size;
        if let Some(left) = self.of_sources.get_mut(&oldest.source) {
            *left -= size;
            if *left == 0 {
                self.of_sources.remove(&oldest.source);
            }
        }
        Some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn source(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    /// How many messages of a severity are held before one is shed.
    fn room(held: &mut Held, severity: u8, from: u8) -> usize {
        (0..).take_while(|_| held.push(0, (severity, source(from)), b"s", b"m")).count()
    }

    #[test]
    fn the_least_severe_is_shed_first() {
        let mut held = Held::new(80_000, 80_000);
        let mut before = 0;
        for severity in (0..8).rev() {
            let more = room(&mut held, severity, 1);
            assert!(more > 0, "severity {severity} has room that the ones below it have not");
            before += more;
        }
        assert_eq!(before, 80_000 / (size_of::<Waiting>() + 2));
        assert!(!held.push(1, (0, source(2)), b"s", b"m"), "full is full");
    }

    #[test]
    fn a_source_that_floods_leaves_room_for_the_others() {
        let mut held = Held::new(80_000, 20_000);
        let flood = room(&mut held, 6, 1);
        assert_eq!(room(&mut held, 6, 2), flood);
        assert!(held.push(0, (3, source(1)), b"s", b"m"), "what it has to say that is worse is heard");
    }

    proptest! {
        #[test]
        fn what_is_held_comes_out_in_order_and_is_bounded(
            steps in proptest::collection::vec((0_u8..9, 0_u8..3, 0_u32..2, 0_usize..300), 0..200),
        ) {
            let mut held = Held::new(4000, 2000);
            let mut expected = [VecDeque::new(), VecDeque::new()];
            for (number, (severity, from, lane, length)) in steps.into_iter().enumerate() {
                if severity == 8 {
                    prop_assert_eq!(held.pop(lane).map(|waiting| waiting.subject), expected[lane as usize].pop_front());
                    continue;
                }
                let subject = number.to_string().into_bytes();
                if held.push(lane, (severity, source(from)), &subject, &vec![b'x'; length]) {
                    expected[lane as usize].push_back(subject);
                }
                prop_assert!(held.size <= 4000);
                prop_assert!(held.of_sources.values().all(|size| *size <= 2000));
                prop_assert_eq!(held.of_sources.values().sum::<usize>(), held.size);
            }
            while let Some(lane) = held.next_lane(0) {
                let waiting = held.pop(lane).expect("the lane has some");
                prop_assert_eq!(Some(waiting.subject), expected[lane as usize].pop_front());
            }
            prop_assert!(expected.iter().all(VecDeque::is_empty) && held.is_empty());
            prop_assert!( held.size == 0 && held.of_sources.is_empty());
        }
    }
}
