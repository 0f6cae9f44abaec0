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

/// Those that wait, in order.
#[derive(Debug)]
pub(super) struct Held {
    queue: VecDeque<Waiting>,
    size: usize,
    /// Bytes of each source that has any.
    of_sources: BTreeMap<IpAddr, usize>,
    size_max: usize,
    source_size_max: usize,
}

impl Held {
    pub(super) fn new(size_max: usize, source_size_max: usize) -> Held {
        Held { queue: VecDeque::new(), size: 0, of_sources: BTreeMap::new(), size_max, source_size_max }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Holds a message; false: it has to be shed.
    pub(super) fn push(&mut self, severity: u8, source: IpAddr, subject: &[u8], message: &[u8]) -> bool {
        let size = subject.len() + message.len() + size_of::<Waiting>();
        let share = |all: usize| all / 8 * usize::from(8 - severity.min(7));
        let of_source = self.of_sources.get(&source).copied().unwrap_or(0) + size;
        if self.size + size > share(self.size_max) || of_source > share(self.source_size_max) {
            return false;
        }
        self.of_sources.insert(source, of_source);
        self.size += size;
        self.queue.push_back(Waiting { subject: subject.to_vec(), message: message.to_vec(), source });
        true
    }

    /// The oldest.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let oldest = self.queue.pop_front()?;
        let size = oldest.size();
        self.size -= size;
        if let Some(left) = self.of_sources.get_mut(&oldest.source) {
            *left -= size;
            if *left == 0 {
                self.of_sources.remove(&oldest.source);
            }
        }
        if self.queue.is_empty() {
            // Overload is rare, and its memory is not kept.
            self.queue = VecDeque::new();
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
        (0..).take_while(|_| held.push(severity, source(from), b"s", b"m")).count()
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
        assert!(!held.push(0, source(2), b"s", b"m"), "full is full");
    }

    #[test]
    fn a_source_that_floods_leaves_room_for_the_others() {
        let mut held = Held::new(80_000, 20_000);
        let flood = room(&mut held, 6, 1);
        assert_eq!(room(&mut held, 6, 2), flood);
        assert!(held.push(3, source(1), b"s", b"m"), "what it has to say that is worse is heard");
    }

    proptest! {
        #[test]
        fn what_is_held_comes_out_in_order_and_is_bounded(
            steps in proptest::collection::vec((0_u8..9, 0_u8..3, 0_usize..300), 0..200),
        ) {
            let mut held = Held::new(4000, 2000);
            let mut expected = VecDeque::new();
            for (number, (severity, from, length)) in steps.into_iter().enumerate() {
                if severity == 8 {
                    prop_assert_eq!(held.pop().map(|waiting| waiting.subject), expected.pop_front());
                    continue;
                }
                let subject = number.to_string().into_bytes();
                if held.push(severity, source(from), &subject, &vec![b'x'; length]) {
                    expected.push_back(subject);
                }
                prop_assert!(held.size <= 4000);
                prop_assert!(held.of_sources.values().all(|size| *size <= 2000));
                prop_assert_eq!(held.of_sources.values().sum::<usize>(), held.size);
            }
            while let Some(waiting) = held.pop() {
                prop_assert_eq!(Some(waiting.subject), expected.pop_front());
            }
            prop_assert!(expected.is_empty() && held.size == 0 && held.of_sources.is_empty());
        }
    }
}
