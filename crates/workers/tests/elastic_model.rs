//! An elastic pool compared with a plain model, over random histories in virtual time.
#![cfg(not(loom))]

use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use stilling_ring::{Clock, Time, Wake};
use stilling_workers::{JobContext, Pool, PoolLimits, PoolScaling};

const START_RETRY_NANOS: u64 = 100_000_000;

#[derive(Clone, Copy, Debug)]
enum ScalerOp {
    Take,
    Deliver,
    Advance {
        nanos: u64,
    },
    /// The scaler runs, and the system grants it at most `granted` threads.
    Scale {
        granted: u64,
    },
    Retire,
}

fn op() -> impl Strategy<Value = ScalerOp> {
    prop_oneof![
        10 => Just(ScalerOp::Take),
        6 => Just(ScalerOp::Deliver),
        4 => prop_oneof![1_u64..200, START_RETRY_NANOS / 2..START_RETRY_NANOS + 10].prop_map(|nanos| ScalerOp::Advance { nanos }),
        6 => prop_oneof![4 => Just(u64::MAX), 1 => 0_u64..5].prop_map(|granted| ScalerOp::Scale { granted }),
        4 => Just(ScalerOp::Retire),
    ]
}

fn scaling() -> impl Strategy<Value = PoolScaling> {
    (1_u8..=50, 1_u8..=50, 0_u8..=90, 0_usize..40, 1_u64..400).prop_map(
        |(free_threshold, spawn_hunk, spawn_factor, threads_max, span)| PoolScaling {
            free_threshold,
            spawn_hunk,
            spawn_factor,
            threads_max,
            shrink_after: Duration::from_nanos(span),
        },
    )
}

struct ElasticModel {
    scaling: PoolScaling,
    base: u64,
    target: u64,
    threads: u64,
    busy: u64,
    busy_max: u64,
    /// Hunks added since the pool last had its initial size.
    hunks: usize,
    since: u64,
    retry_at: Option<u64>,
    scale_requested: bool,
    started: u64,
    ended: u64,
    failed: u64,
}

impl ElasticModel {
    fn new(scaling: PoolScaling, base: u64) -> ElasticModel {
        ElasticModel {
            scaling,
            base,
            target: base,
            threads: base,
            busy: 0,
            busy_max: 0,
            hunks: 0,
            since: 0,
            retry_at: None,
            scale_requested: false,
            started: 0,
            ended: 0,
            failed: 0,
        }
    }

    fn threads_max(&self) -> u64 {
        self.scaling.threads_max as u64
    }

    fn is_short(&self) -> bool {
        let free = self.target as f64 - self.busy as f64;
        self.target < self.threads_max()
            && free / self.target as f64 * 100.0 < f64::from(self.scaling.free_threshold)
    }

    /// A hunk in millionths of the pool: the first is `spawn_hunk` per cent.
    fn share(&self, hunks: usize) -> u64 {
        let first = u64::from(self.scaling.spawn_hunk) * 10_000;
        (0..hunks).fold(first, |share, _| share * u64::from(100 - self.scaling.spawn_factor) / 100)
    }

    fn hunk(&self, hunks: usize) -> u64 {
        let exact = self.target * self.share(hunks);
        (exact / 1_000_000 + u64::from(!exact.is_multiple_of(1_000_000))).max(1)
    }

    fn take(&mut self) {
        self.busy += 1;
        self.busy_max = self.busy_max.max(self.busy);
        self.scale_requested |= self.is_short();
    }

    fn scale(&mut self, now: u64, mut granted: u64) -> Option<u64> {
        self.scale_requested = false;
        self.retry_at = self.retry_at.filter(|until| now < *until);
        let span = self.scaling.shrink_after.as_nanos() as u64;
        if self.target > self.base && now >= self.since + span {
            self.since = now;
            // The smallest pool in which 150 % of the peak demand leaves enough threads free.
            let wanted = self.busy_max + self.busy_max.div_ceil(2);
            let leaves_enough =
                |size: &u64| *size * u64::from(100 - self.scaling.free_threshold) >= wanted * 100;
            let enough = (self.base..).find(leaves_enough).expect("some size is enough");
            let smaller = self.target.saturating_sub(self.hunk(0)).max(enough).max(self.base);
            if smaller < self.target {
                self.target = smaller;
                self.hunks = if smaller == self.base { 0 } else { self.hunks };
            }
            self.busy_max = self.busy;
        }
        while self.retry_at.is_none() && self.is_short() {
            self.target = (self.target + self.hunk(self.hunks)).min(self.threads_max());
            self.hunks += 1;
            (self.since, self.busy_max) = (now, self.busy);
            while self.threads < self.target {
                if granted == 0 {
                    self.failed += 1;
                    self.target = self.threads;
                    self.retry_at = Some(now + START_RETRY_NANOS);
                    break;
                }
                granted -= 1;
                self.threads += 1;
                self.started += 1;
            }
        }
        let span_ends = (self.target > self.base).then_some(self.since + span);
        span_ends.into_iter().chain(self.retry_at).min()
    }

    fn retire(&mut self) -> bool {
        let retires = self.threads > self.target;
        self.threads -= u64::from(retires);
        self.ended += u64::from(retires);
        retires
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    /// Row 4.31: every option, step by step: requests, started and retired threads, and the time of the next run.
    #[test]
    fn the_pool_follows_its_work(
        base in 1_u64..12,
        scaling in scaling(),
        ops in prop::collection::vec(op(), 0..200),
    ) {
        let scaling = PoolScaling { threads_max: scaling.threads_max + base as usize, ..scaling };
        let (clock, manual_time) = Clock::manual();
        let limits = PoolLimits {
            threads: base as usize,
            queue_max: 1000,
            age_max: Duration::MAX,
            scaling,
            ..PoolLimits::default()
        };
        let (pool, mut submitters) = Pool::<u64>::new(limits, clock, vec![Arc::new(Wake::new(|| ()))]);
        let mut scaler = pool.scaler().expect("a pool that may grow has a scaler");
        let mut model = ElasticModel::new(scaling, base);
        let mut running = Vec::new();
        for (ticket, op) in ops.into_iter().enumerate() {
            match op {
                ScalerOp::Take => {
                    if model.busy < model.threads {
                        submitters[0].submit(ticket as u64, |_| 0).expect("it is below every limit");
                        submitters[0].publish();
                        running.push(pool.take_job().expect("it was published"));
                        model.take();
                    }
                }
                ScalerOp::Deliver => {
                    if let Some(running) = running.pop() {
                        running.run(&mut JobContext::simulated()).deliver();
                        submitters[0].next_result();
                        model.busy -= 1;
                    }
                }
                ScalerOp::Advance { nanos } => manual_time.advance(Duration::from_nanos(nanos)),
                ScalerOp::Scale { granted } => {
                    let mut left = granted;
                    let next = scaler.scale(|| {
                        left = left.checked_sub(1).ok_or_else(|| Error::from(ErrorKind::WouldBlock))?;
                        Ok(())
                    });
                    let expected = model.scale(manual_time.now().as_nanos(), granted);
                    prop_assert_eq!(next.map(Time::as_nanos), expected);
                }
                // Only an idle worker may retire.
                ScalerOp::Retire => {
                    if model.busy < model.threads {
                        prop_assert_eq!(pool.retire(), model.retire());
                    }
                }
            }
            let counters = pool.counters();
            prop_assert_eq!((counters.threads, counters.busy), (model.threads, model.busy));
            prop_assert_eq!(
                (counters.threads_started, counters.threads_ended, counters.threads_failed),
                (model.started, model.ended, model.failed)
            );
            prop_assert!((base..=scaling.threads_max as u64).contains(&counters.threads));
            prop_assert_eq!(scaler.is_scale_requested(), model.scale_requested && model.retry_at.is_none());
        }
    }
}
