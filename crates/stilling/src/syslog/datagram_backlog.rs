//! Datagrams that wait for room on the way to the hub. They cannot stay in the socket: a full socket drops the newest
//! regardless of severity, or blocks the senders on a Unix socket.
//!
//! ```text
//!   bytes free   0 ────────────────────────────── all
//!   emerg        ████████████████████████████████   8/8
//!   err          ████████████████████               5/8
//!   info         ████████                           2/8
//!   debug        ████                               1/8
//! ```
//!
//! The lower its severity, the earlier there is no room for a message: the least severe are shed first, without a
//! search, and held messages stay in order.
//!
//! Each stream has a lane: messages that wait for one stream do not delay those for another. A lane holds no more
//! bytes than are free, so a stream that hangs leaves room for the others. Within a lane the same shares apply to the
//! bytes of each source, so a source that floods sheds only its own messages.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct HeldDatagram {
    pub(super) subject: Vec<u8>,
    pub(super) message: Vec<u8>,
    source: IpAddr,
}

impl HeldDatagram {
    fn size(&self) -> usize {
        self.subject.len() + self.message.len() + size_of::<HeldDatagram>()
    }
}

pub(super) type SyslogLane = u32;

/// Waiting messages, in order within each lane.
#[derive(Debug)]
pub(super) struct DatagramBacklog {
    lanes: BTreeMap<SyslogLane, LaneQueue>,
    size: usize,
    size_max: usize,
    source_size_max: usize,
}

#[derive(Debug, Default)]
struct LaneQueue {
    waiting: VecDeque<HeldDatagram>,
    size: usize,
    /// Bytes of each source that has any.
    sizes_by_source: BTreeMap<IpAddr, usize>,
}

impl LaneQueue {
    fn push(&mut self, waiting: HeldDatagram) {
        let size = waiting.size();
        self.size += size;
        *self.sizes_by_source.entry(waiting.source).or_default() += size;
        self.waiting.push_back(waiting);
    }

    fn pop(&mut self) -> Option<HeldDatagram> {
        let oldest = self.waiting.pop_front()?;
        let size = oldest.size();
        self.size -= size;
        if let Some(left) = self.sizes_by_source.get_mut(&oldest.source) {
            *left -= size;
            if *left == 0 {
                self.sizes_by_source.remove(&oldest.source);
            }
        }
        Some(oldest)
    }
}

impl DatagramBacklog {
    pub(super) fn new(size_max: usize, source_size_max: usize) -> DatagramBacklog {
        DatagramBacklog { lanes: BTreeMap::new(), size: 0, size_max, source_size_max }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    pub(super) fn is_lane_empty(&self, lane: SyslogLane) -> bool {
        !self.lanes.contains_key(&lane)
    }

    pub(super) fn lanes(&self) -> impl Iterator<Item = SyslogLane> {
        self.lanes.keys().copied()
    }

    /// The first lane with datagrams from `from` on.
    pub(super) fn next_lane(&self, from: SyslogLane) -> Option<SyslogLane> {
        self.lanes.range(from..).next().map(|(lane, _)| *lane)
    }

    /// Holds a message. Returns false if it must be shed.
    pub(super) fn push(
        &mut self,
        lane: SyslogLane,
        (severity, source): (u8, IpAddr),
        subject: &[u8],
        message: &[u8],
    ) -> bool {
        let size = subject.len() + message.len() + size_of::<HeldDatagram>();
        let share = |all: usize| all / 8 * usize::from(8 - severity.min(7));
        let (lane_size, source_size) = self
            .lanes
            .get(&lane)
            .map_or((0, 0), |queue| (queue.size, queue.sizes_by_source.get(&source).copied().unwrap_or(0)));
        let free = self.size_max - self.size;
        if lane_size + size > share(free) || source_size + size > share(self.source_size_max) {
            return false;
        }
        self.size += size;
        let waiting = HeldDatagram { subject: subject.to_vec(), message: message.to_vec(), source };
        self.lanes.entry(lane).or_default().push(waiting);
        true
    }

    pub(super) fn pop(&mut self, lane: SyslogLane) -> Option<HeldDatagram> {
        let queue = self.lanes.get_mut(&lane)?;
        let oldest = queue.pop()?;
        if queue.waiting.is_empty() {
            // Overload is rare, so its memory is not kept.
            self.lanes.remove(&lane);
        }
        self.size -= oldest.size();
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

    /// Bytes that a message of the tests occupies.
    const SIZE: usize = size_of::<HeldDatagram>() + 2;

    /// How many messages of a severity a lane holds before one is shed.
    fn room_in(backlog: &mut DatagramBacklog, lane: SyslogLane, severity: u8, from: u8) -> usize {
        (0..).take_while(|_| backlog.push(lane, (severity, source(from)), b"s", b"m")).count()
    }

    fn room(backlog: &mut DatagramBacklog, severity: u8, from: u8) -> usize {
        room_in(backlog, 0, severity, from)
    }

    #[test]
    fn the_least_severe_is_shed_first() {
        let mut backlog = DatagramBacklog::new(80_000, 80_000);
        let mut before = 0;
        for severity in (0..8).rev() {
            let more = room(&mut backlog, severity, 1);
            assert!(more > 0, "severity {severity} has room that the ones below it have not");
            before += more;
        }
        assert_eq!(before, (40_000 + SIZE / 2) / SIZE, "a lane holds as much as it leaves free");
        assert!(!backlog.push(0, (0, source(2)), b"s", b"m"), "full is full");
    }

    /// A hung stream, with any messages and sources.
    #[test]
    fn a_full_lane_leaves_room_for_messages_of_any_severity_in_the_others() {
        for severity in 0..8 {
            let mut backlog = DatagramBacklog::new(160_000, 40_000);
            for lane in 0..3 {
                let some = room_in(&mut backlog, lane, severity, 1);
                assert!(some >= 5, "severity {severity} in lane {lane}: {some}");
                for (worse, from) in (0..8).rev().flat_map(|worse| (1..9).map(move |from| (worse, from))) {
                    room_in(&mut backlog, lane, worse, from);
                }
                let (left, half) = (160_000 - backlog.size, 160_000 >> (lane + 1));
                assert!(left.abs_diff(half) <= 2 * SIZE, "lane {lane}: {left} are left, not {half}");
            }
        }
    }

    #[test]
    fn a_source_that_floods_leaves_room_for_the_others() {
        let mut backlog = DatagramBacklog::new(80_000, 20_000);
        let flood = room(&mut backlog, 6, 1);
        assert_eq!(room(&mut backlog, 6, 2), flood);
        assert!(backlog.push(0, (3, source(1)), b"s", b"m"), "its more severe messages are held");
    }

    proptest! {
        #[test]
        fn held_datagrams_are_ordered_and_bounded(
            steps in proptest::collection::vec((0_u8..9, 0_u8..3, 0_u32..2, 0_usize..300), 0..200),
        ) {
            let mut backlog = DatagramBacklog::new(4000, 2000);
            let mut expected = [VecDeque::new(), VecDeque::new()];
            for (number, (severity, from, lane, length)) in steps.into_iter().enumerate() {
                if severity == 8 {
                    prop_assert_eq!(backlog.pop(lane).map(|waiting| waiting.subject), expected[lane as usize].pop_front());
                    continue;
                }
                let subject = number.to_string().into_bytes();
                if backlog.push(lane, (severity, source(from)), &subject, &vec![b'x'; length]) {
                    expected[lane as usize].push_back(subject);
                }
                prop_assert!(backlog.size <= 4000);
                prop_assert_eq!(backlog.lanes.values().map(|queue| queue.size).sum::<usize>(), backlog.size);
                for queue in backlog.lanes.values() {
                    prop_assert!(queue.sizes_by_source.values().all(|size| *size <= 2000));
                    prop_assert_eq!(queue.sizes_by_source.values().sum::<usize>(), queue.size);
                }
            }
            while let Some(lane) = backlog.next_lane(0) {
                let waiting = backlog.pop(lane).expect("the lane has some");
                prop_assert_eq!(Some(waiting.subject), expected[lane as usize].pop_front());
            }
            prop_assert!(expected.iter().all(VecDeque::is_empty) && backlog.is_empty());
            prop_assert_eq!(backlog.size, 0);
        }
    }
}
