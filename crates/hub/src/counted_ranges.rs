//! Counted sequences: each counts once, however many readers reach it.

use std::collections::BTreeMap;

use crate::limits::DAMAGED_RANGES_MAX;

#[derive(Clone, Debug, Default)]
pub(crate) struct CountedRanges {
    /// Last sequence of each disjoint range, by its first.
    ranges: BTreeMap<u64, u64>,
}

impl CountedRanges {
    /// Adds a range. Returns the number of its sequences that are new.
    pub(crate) fn add(&mut self, first: u64, last: u64) -> u64 {
        let (mut start, mut end, mut known) = (first, last, 0);
        while let Some((&its_first, &its_last)) = self.ranges.range(..=last.saturating_add(1)).next_back()
            && its_last.saturating_add(1) >= first
        {
            known += (its_last.min(last) + 1).saturating_sub(its_first.max(first));
            (start, end) = (start.min(its_first), end.max(its_last));
            self.ranges.remove(&its_first);
        }
        if self.ranges.len() < DAMAGED_RANGES_MAX {
            self.ranges.insert(start, end);
        }
        (last + 1).saturating_sub(first + known)
    }

    pub(crate) fn forget_before(&mut self, first: u64) {
        while let Some(range) = self.ranges.first_entry()
            && *range.get() < first
        {
            range.remove();
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ranges.iter().map(|(&first, &last)| (first, last))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Compared with a set of single sequences.
    #[test]
    fn each_sequence_counts_once() {
        let (mut ranges, mut all, mut random) = (CountedRanges::default(), BTreeSet::new(), 7_u64);
        for _ in 0..2000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let first = 1 + (random >> 33) % 5000;
            let last = first + (random >> 20) % 40;
            let new = (first..=last).filter(|sequence| all.insert(*sequence)).count() as u64;
            assert_eq!(ranges.add(first, last), new, "{first} to {last}");
        }
        let kept: u64 = ranges.iter().map(|(first, last)| last + 1 - first).sum();
        assert_eq!(kept, all.len() as u64);
        ranges.forget_before(10_000);
        assert_eq!(ranges.iter().count(), 0);
    }

    #[test]
    fn beyond_the_maximum_a_range_is_counted_again() {
        let mut ranges = CountedRanges::default();
        for number in 0..DAMAGED_RANGES_MAX as u64 {
            assert_eq!(ranges.add(10 * number, 10 * number + 1), 2);
        }
        let beyond = 10 * DAMAGED_RANGES_MAX as u64;
        assert_eq!((ranges.add(beyond, beyond), ranges.add(beyond, beyond)), (1, 1));
        assert_eq!(ranges.add(0, 1), 0);
        ranges.forget_before(2);
        assert_eq!((ranges.add(beyond, beyond), ranges.add(beyond, beyond)), (1, 0));
    }
}
