//! When the pool grows and shrinks, and by how much: pure arithmetic, without threads and clocks.
//!
//! ```text
//!   threads ▲        ┌──────┐ shrink_after without need
//!   max ────│─ ─ ─ ─ ┤ hunk ├──────┐
//!           │   ┌────┘      └──────┤ a hunk at a time,
//!           │ ┌─┘ hunks             └──────┐ never below the
//!   base ───┴─┘ until enough are free      └───────── peak demand
//! ```
//!
//! *Growing.* A pool is short of threads when fewer than [`free_threshold`](PoolScaling::free_threshold) per cent of
//! them are free. Hunks are then added until it is no longer short, or until [`threads_max`](PoolScaling::threads_max).
//!
//! *Shrinking* is slower, otherwise a load at the threshold would start and end threads continually. A whole
//! [`shrink_after`](PoolScaling::shrink_after) must pass without growth, and the smaller pool must not be short at
//! 150 % of the peak demand of that span; at most one hunk is removed per span.

use std::time::Duration;

/// 100 % in millionths, the unit of hunk sizes: fine enough to keep small steps.
const WHOLE: u64 = 1_000_000;

/// The largest [`PoolScaling::free_threshold`] and [`PoolScaling::spawn_hunk`], in per cent.
const PERCENT_MAX: u8 = 50;

/// The largest [`PoolScaling::spawn_factor`], in per cent.
const SPAWN_FACTOR_MAX: u8 = 90;

/// Dynamic sizing of a pool. Off by default: all threads exist from the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolScaling {
    /// Minimum share of free threads in per cent, 0 to 50. Below it the pool grows. 0: it never does.
    pub free_threshold: u8,
    /// Threads added at a time, in per cent of the current number, 1 to 50; at least one thread.
    pub spawn_hunk: u8,
    /// Per cent by which each hunk is smaller than the one before, 0 to 90, until the pool is back at its initial size.
    /// 0: every hunk is the same share.
    pub spawn_factor: u8,
    /// Maximum number of threads. Reached: jobs wait in the queue, within its own limits.
    pub threads_max: usize,
    /// Time for which the pool must be larger than needed before it removes a hunk.
    pub shrink_after: Duration,
}

impl Default for PoolScaling {
    fn default() -> PoolScaling {
        PoolScaling {
            free_threshold: 0,
            spawn_hunk: 50,
            spawn_factor: 0,
            threads_max: 1000,
            shrink_after: Duration::from_secs(10),
        }
    }
}

impl PoolScaling {
    /// Whether the pool may grow.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.free_threshold > 0
    }

    /// Whether every field is in its range for a pool with `threads` initial threads.
    #[must_use]
    pub fn is_valid_for(&self, threads: usize) -> bool {
        !self.is_enabled()
            || (self.free_threshold <= PERCENT_MAX
                && (1..=PERCENT_MAX).contains(&self.spawn_hunk)
                && self.spawn_factor <= SPAWN_FACTOR_MAX
                && (1..=self.threads_max).contains(&threads))
    }

    pub(crate) fn is_short(&self, threads: u64, busy: u64) -> bool {
        threads.saturating_sub(busy) * 100 < u64::from(self.free_threshold) * threads
    }

    /// Returns the smallest pool size that leaves enough threads free at 150 % of `busy` jobs.
    fn threads_needed(&self, busy: u64) -> u64 {
        ((busy + busy.div_ceil(2)) * 100).div_ceil(u64::from(100 - self.free_threshold))
    }
}

/// The stateful part of the sizing decisions.
#[derive(Debug)]
pub(crate) struct ScalingSchedule {
    scaling: PoolScaling,
    base: u64,
    /// Share of the pool that the next hunk adds, in millionths.
    share: u64,
}

impl ScalingSchedule {
    pub(crate) fn new(scaling: PoolScaling, base: u64) -> ScalingSchedule {
        ScalingSchedule { scaling, base, share: full_share(&scaling) }
    }

    /// Returns the next target, one hunk more, if a pool of `threads` is short with `busy` jobs.
    pub(crate) fn next_larger(&mut self, threads: u64, busy: u64) -> Option<u64> {
        let threads_max = self.scaling.threads_max as u64;
        if threads >= threads_max || !self.scaling.is_short(threads, busy) {
            return None;
        }
        let hunk = hunk(threads, self.share);
        self.share = self.share * u64::from(100 - self.scaling.spawn_factor) / 100;
        Some((threads + hunk).min(threads_max))
    }

    /// Returns the next target, at most one hunk less, if a pool of `threads` with a peak of `busy_max` jobs is larger
    /// than needed.
    pub(crate) fn next_smaller(&mut self, threads: u64, busy_max: u64) -> Option<u64> {
        let enough = self.scaling.threads_needed(busy_max).max(self.base);
        let hunk = hunk(threads, full_share(&self.scaling));
        let next_smaller = threads.saturating_sub(hunk).max(enough);
        if next_smaller >= threads {
            return None;
        }
        if next_smaller == self.base {
            self.share = full_share(&self.scaling);
        }
        Some(next_smaller)
    }
}

fn full_share(scaling: &PoolScaling) -> u64 {
    u64::from(scaling.spawn_hunk) * WHOLE / 100
}

fn hunk(threads: u64, share: u64) -> u64 {
    (threads * share).div_ceil(WHOLE).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: PoolScaling = PoolScaling {
        free_threshold: 20,
        spawn_hunk: 50,
        spawn_factor: 0,
        threads_max: 1000,
        shrink_after: Duration::ZERO,
    };

    /// Pool sizes when all threads are busy again after each hunk.
    fn sizes(scaling: PoolScaling, base: u64, hunks: usize) -> Vec<u64> {
        let mut schedule = ScalingSchedule::new(scaling, base);
        let mut size = base;
        let next = || {
            size = schedule.next_larger(size, size)?;
            Some(size)
        };
        std::iter::from_fn(next).take(hunks).collect()
    }

    /// Row 4.31, `--free-threshold`: the pool is short below that share of free threads, and never at 0.
    #[test]
    fn a_pool_is_short_when_fewer_than_the_threshold_are_free() {
        for (free_threshold, threads, busy, short) in [
            (0, 4, 4, false),
            (1, 1, 0, false),
            (1, 1, 1, true),
            (25, 4, 3, false),
            (25, 4, 4, true),
            (20, 10, 8, false),
            (20, 10, 9, true),
            (50, 7, 3, false),
            (50, 7, 4, true),
            // A shrinking pool may have more busy threads than its target.
            (1, 2, 5, true),
        ] {
            let scaling = PoolScaling { free_threshold, ..ON };
            assert_eq!(
                scaling.is_short(threads, busy),
                short,
                "{free_threshold} % of {threads}, {busy} busy"
            );
        }
    }

    /// Row 4.31, `--spawn-hunk` and `--spawn-factor`: a hunk is a share of the current size, rounded up.
    #[test]
    fn hunks_are_shares_that_may_get_smaller() {
        for (spawn_hunk, spawn_factor, base, expected) in [
            (50, 0, 1, [2, 3, 5, 8, 12]),
            (50, 0, 10, [15, 23, 35, 53, 80]),
            (10, 0, 10, [11, 13, 15, 17, 19]),
            (1, 0, 10, [11, 12, 13, 14, 15]),
            // Shares of 50, 25, 12.5, 6.25, 3.125 per cent.
            (50, 50, 100, [150, 188, 212, 226, 234]),
            // Shares of 50, 5, 0.5, 0.05, 0.005 per cent: at least one thread each.
            (50, 90, 100, [150, 158, 159, 160, 161]),
        ] {
            let scaling = PoolScaling { spawn_hunk, spawn_factor, ..ON };
            assert_eq!(sizes(scaling, base, 5), expected, "{spawn_hunk} %, less {spawn_factor} %");
        }
    }

    /// Row 4.31, `--worker-limit`: the last hunk is cut, and no further one follows.
    #[test]
    fn a_pool_never_passes_its_limit() {
        assert_eq!(sizes(PoolScaling { threads_max: 20, ..ON }, 10, 5), [15, 20]);
        assert!(sizes(PoolScaling { threads_max: 10, ..ON }, 10, 5).is_empty());
    }

    /// Row 4.31: hunks are full again only once the pool is back at its initial size.
    #[test]
    fn the_first_size_makes_hunks_full_again() {
        let mut schedule = ScalingSchedule::new(PoolScaling { spawn_factor: 90, ..ON }, 10);
        assert_eq!((schedule.next_larger(10, 10), schedule.next_larger(15, 15)), (Some(15), Some(16)));
        assert_eq!(schedule.next_smaller(16, 8), Some(15));
        assert_eq!(schedule.next_larger(15, 15), Some(16));
        assert_eq!(schedule.next_smaller(16, 0), Some(10));
        assert_eq!(schedule.next_larger(10, 10), Some(15));
    }

    /// Row 4.31: shrinking removes at most one hunk, and keeps 150 % of the peak demand.
    #[test]
    fn a_pool_keeps_the_threads_of_its_peak_demand() {
        for (threads, busy_max, expected) in [
            (100, 0, Some(50)),
            (60, 0, Some(30)),
            (11, 0, Some(10)),
            (10, 0, None),
            (100, 40, Some(75)),
            (76, 40, Some(75)),
            (75, 40, None),
            (100, 53, None),
            (100, 100, None),
        ] {
            let next_smaller = ScalingSchedule::new(ON, 10).next_smaller(threads, busy_max);
            assert_eq!(next_smaller, expected, "{threads} threads, at most {busy_max} busy");
        }
    }

    /// Row 4.31: a shrunk pool does not grow again under the same load.
    #[test]
    fn a_shrunk_pool_is_not_short_under_the_load_it_had() {
        for free_threshold in 1..=PERCENT_MAX {
            let scaling = PoolScaling { free_threshold, ..ON };
            for (threads, busy) in (2..200).flat_map(|threads| (0..threads).map(move |busy| (threads, busy)))
            {
                if let Some(next_smaller) = ScalingSchedule::new(scaling, 1).next_smaller(threads, busy) {
                    assert!(next_smaller < threads && !scaling.is_short(next_smaller, busy + busy / 2));
                }
            }
        }
    }

    #[test]
    fn ranges_are_checked_only_for_a_pool_that_grows() {
        assert!(ON.is_valid_for(1) && ON.is_valid_for(1000));
        assert!(!ON.is_valid_for(0) && !ON.is_valid_for(1001));
        for wrong in [
            PoolScaling { free_threshold: 51, ..ON },
            PoolScaling { spawn_hunk: 0, ..ON },
            PoolScaling { spawn_hunk: 51, ..ON },
            PoolScaling { spawn_factor: 91, ..ON },
        ] {
            assert!(!wrong.is_valid_for(10), "{wrong:?}");
        }
        assert!(PoolScaling::default().is_valid_for(0) && PoolScaling::default().is_valid_for(5000));
    }
}
