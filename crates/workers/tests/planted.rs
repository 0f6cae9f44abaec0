//! Effects of this crate's planted bugs, in builds that contain them. A single test, because the choice is per process.
#![cfg(all(stilling_planted, not(loom)))]

use std::sync::Arc;
use std::time::Duration;

use stilling_ring::{Clock, Wake, planted};
use stilling_workers::{JobContext, Pool, PoolLimits};

#[test]
fn answers_are_doubled_or_lost_only_when_chosen() {
    let answers = |bug| {
        planted::choose(bug);
        let limits =
            PoolLimits { threads: 1, queue_max: 32, age_max: Duration::MAX, ..PoolLimits::default() };
        let wake = Arc::new(Wake::new(|| ()));
        let (pool, mut submitters) = Pool::<u64>::new(limits, Clock::real(), vec![wake]);
        for ticket in 0..32 {
            submitters[0].submit(ticket, move |_| ticket).unwrap();
        }
        submitters[0].publish();
        while let Some(running) = pool.take_job() {
            running.run(&mut JobContext::simulated()).deliver();
        }
        planted::choose(None);
        std::iter::from_fn(|| submitters[0].next_result()).count()
    };
    assert_eq!(answers(None), 32);
    assert_eq!(answers(Some("double answer")), 36);
    assert_eq!(answers(Some("lost job")), 30);
    assert_eq!(answers(Some("another")), 32);
}
