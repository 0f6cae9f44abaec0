//! Alone in its process, so that every other thread is the pool's.
#![cfg(all(not(loom), target_os = "linux"))]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use stilling_ring::{Clock, Wake};
use stilling_workers::{Pool, PoolLimits};

fn threads() -> BTreeSet<OsString> {
    std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().file_name()).collect()
}

/// Rows 0.13 and 4.13: all threads exist after `start`, under any load.
#[test]
fn no_thread_is_created_after_start() {
    const THREADS: usize = 4;
    let shard = thread::current();
    let wake = Arc::new(Wake::new(move || shard.unpark()));
    let limits =
        PoolLimits { threads: THREADS, queue_max: 1024, age_max: Duration::MAX, ..PoolLimits::default() };
    let before = threads();
    let (pool, mut submitters) = Pool::<()>::new(limits, Clock::real(), vec![Arc::clone(&wake)]);
    assert_eq!(threads(), before, "a pool that is not started has no threads");
    pool.start().unwrap();
    let started = threads();
    assert_eq!(started.len(), before.len() + THREADS);

    let submitter = &mut submitters[0];
    let together = Arc::new(Barrier::new(THREADS));
    for round in 0..100 {
        for ticket in 0..THREADS as u64 {
            let together = Arc::clone(&together);
            // Needs every worker, otherwise no job proceeds.
            submitter
                .submit(ticket, move |_| {
                    together.wait();
                })
                .unwrap();
        }
        submitter.publish();
        for _ in 0..THREADS {
            while submitter.next_result().is_none() {
                wake.set_parked();
                if !submitter.has_result() {
                    thread::park();
                }
                wake.clear_parked();
            }
        }
        assert_eq!(threads(), started, "after round {round}");
    }
}
