//! The pool under the model checker: the production worker loop, submitters and wakes, with loom's threads.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p stilling-workers --release --test loom`
//!
//! A lost wake in either direction, or a worker that misses the end, shows up as a deadlock.
#![cfg(loom)]

use std::time::Duration;

use loom::thread;
use stilling_ring::sync::{Arc, Condvar, Mutex};
use stilling_ring::{Clock, ManualTime, Wake};
use stilling_workers::{
    JobCompletion, JobContext, JobResult, JobSubmitter, Pool, PoolLimits, PoolScaler, PoolScaling,
    SubmitError,
};

fn model(preemptions: usize, scenario: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(scenario);
}

/// A stand-in for a driver's wait: one bit that ends the current sleep or the next one.
struct SleepFlag {
    is_woken: Mutex<bool>,
    woken: Condvar,
}

struct ShardSleep {
    sleep_flag: Arc<SleepFlag>,
    wake: Arc<Wake>,
}

impl ShardSleep {
    fn new() -> ShardSleep {
        let sleep_flag = Arc::new(SleepFlag { is_woken: Mutex::new(false), woken: Condvar::new() });
        let wake = Arc::new(Wake::new({
            let sleep_flag = Arc::clone(&sleep_flag);
            move || {
                let mut is_woken = sleep_flag.is_woken.lock().unwrap();
                *is_woken = true;
                sleep_flag.woken.notify_one();
            }
        }));
        ShardSleep { sleep_flag, wake }
    }

    fn next(&self, submitter: &mut JobSubmitter<u64>) -> JobCompletion<u64> {
        loop {
            if let Some(completed) = submitter.next_result() {
                return completed;
            }
            self.wake.set_parked();
            if !submitter.has_result() {
                let mut is_woken = self.sleep_flag.is_woken.lock().unwrap();
                while !*is_woken {
                    is_woken = self.sleep_flag.woken.wait(is_woken).unwrap();
                }
                *is_woken = false;
            }
            self.wake.clear_parked();
        }
    }
}

fn pool(shard_sleeps: &[&ShardSleep]) -> (Pool<u64>, Vec<JobSubmitter<u64>>) {
    let (clock, _) = Clock::manual();
    let wakes = shard_sleeps.iter().map(|shard_sleep| Arc::clone(&shard_sleep.wake)).collect();
    Pool::new(
        PoolLimits { threads: 1, queue_max: 2, age_max: Duration::MAX, ..PoolLimits::default() },
        clock,
        wakes,
    )
}

fn worker(pool: &Pool<u64>) -> thread::JoinHandle<()> {
    let pool = pool.clone();
    thread::spawn(move || pool.run_worker(&mut JobContext::simulated()))
}

/// Row 4.38: shard and worker sleep between two jobs, and neither misses the other.
#[test]
fn a_submitter_and_a_worker_lose_no_wake() {
    model(2, || {
        let shard_sleep = ShardSleep::new();
        let (pool, mut submitters) = pool(&[&shard_sleep]);
        let worker = worker(&pool);
        for ticket in 0..2 {
            submitters[0].submit(ticket, move |_| ticket).unwrap();
            submitters[0].publish();
            let completed = shard_sleep.next(&mut submitters[0]);
            assert_eq!((completed.ticket, completed.outcome), (ticket, JobResult::Done(ticket)));
        }
        pool.close();
        worker.join().unwrap();
    });
}

/// Row 4.38: a batch of two wakes two workers: each job here waits for the other.
#[test]
fn two_workers_share_a_batch() {
    model(2, || {
        let shard_sleep = ShardSleep::new();
        let (pool, mut submitters) = pool(&[&shard_sleep]);
        let workers = [worker(&pool), worker(&pool)];
        let meeting = Arc::new((Mutex::new(0), Condvar::new()));
        for ticket in 0..2 {
            let meeting = Arc::clone(&meeting);
            submitters[0]
                .submit(ticket, move |_| {
                    let (arrived, both) = &*meeting;
                    let mut arrived = arrived.lock().unwrap();
                    *arrived += 1;
                    both.notify_one();
                    while *arrived < 2 {
                        arrived = both.wait(arrived).unwrap();
                    }
                    ticket
                })
                .unwrap();
        }
        submitters[0].publish();
        let tickets =
            shard_sleep.next(&mut submitters[0]).ticket + shard_sleep.next(&mut submitters[0]).ticket;
        assert_eq!(tickets, 1);
        pool.close();
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

/// Row 4.37: taking the last job or closing the pool ends the workers; no worker misses both.
#[test]
fn every_worker_ends_when_the_pool_closes() {
    model(3, || {
        let shard_sleep = ShardSleep::new();
        let (pool, mut submitters) = pool(&[&shard_sleep]);
        let workers = [worker(&pool), worker(&pool)];
        submitters[0].submit(1, |_| 1).unwrap();
        submitters[0].publish();
        pool.close();
        for worker in workers {
            worker.join().unwrap();
        }
        assert_eq!(submitters[0].next_result().map(|completed| completed.ticket), Some(1));
    });
}

/// Row 4.38: two shards on their own threads, one worker.
#[test]
fn two_submitters_share_a_worker() {
    model(2, || {
        let (here, there) = (ShardSleep::new(), ShardSleep::new());
        let (pool, mut submitters) = pool(&[&here, &there]);
        let worker = worker(&pool);
        let mut other = submitters.pop().unwrap();
        let shard = thread::spawn(move || {
            other.submit(7, |_| 8).unwrap();
            other.publish();
            assert_eq!(there.next(&mut other).ticket, 7);
        });
        submitters[0].submit(5, |_| 6).unwrap();
        submitters[0].publish();
        assert_eq!(here.next(&mut submitters[0]).ticket, 5);
        shard.join().unwrap();
        pool.close();
        worker.join().unwrap();
    });
}

/// Row 4.37: a job is rejected or answered, whenever the pool is closed, and the worker always ends.
#[test]
fn closing_races_with_a_submission() {
    model(3, || {
        let shard_sleep = ShardSleep::new();
        let (pool, mut submitters) = pool(&[&shard_sleep]);
        let worker = worker(&pool);
        let closer = thread::spawn({
            let pool = pool.clone();
            move || pool.close()
        });
        match submitters[0].submit(1, |_| 1) {
            Ok(_) => {
                submitters[0].publish();
                assert_eq!(shard_sleep.next(&mut submitters[0]).ticket, 1);
            }
            Err(SubmitError::Closed(_)) => {}
            Err(SubmitError::Full(_)) => unreachable!("one job in a queue of two"),
        }
        closer.join().unwrap();
        worker.join().unwrap();
    });
}

/// Time without need after which a thread of an elastic pool may retire.
const SHRINK_AFTER: Duration = Duration::from_secs(1);

/// A pool of one thread that grows to two when that thread is busy.
fn elastic(shard_sleep: &ShardSleep) -> (Pool<u64>, JobSubmitter<u64>, PoolScaler<u64>, ManualTime) {
    let (clock, manual_time) = Clock::manual();
    let scaling = PoolScaling {
        free_threshold: 50,
        threads_max: 2,
        shrink_after: SHRINK_AFTER,
        ..PoolScaling::default()
    };
    let limits =
        PoolLimits { threads: 1, queue_max: 2, age_max: Duration::MAX, scaling, ..PoolLimits::default() };
    let (pool, mut submitters) = Pool::new(limits, clock, vec![Arc::clone(&shard_sleep.wake)]);
    let scaler = pool.scaler().unwrap();
    (pool, submitters.remove(0), scaler, manual_time)
}

/// The same pool, grown to two, ready to shrink at the scaler's next run.
fn grown(shard_sleep: &ShardSleep) -> (Pool<u64>, JobSubmitter<u64>, PoolScaler<u64>) {
    let (pool, mut submitter, mut scaler, manual_time) = elastic(shard_sleep);
    submitter.submit(9, |_| 9).unwrap();
    submitter.publish();
    let running = pool.take_job().unwrap();
    scaler.scale(|| Ok(()));
    assert_eq!(pool.counters().threads, 2);
    running.run(&mut JobContext::simulated()).deliver();
    assert!(submitter.next_result().is_some());
    // The job was in the first span.
    manual_time.advance(SHRINK_AFTER);
    scaler.scale(|| Ok(()));
    manual_time.advance(SHRINK_AFTER);
    (pool, submitter, scaler)
}

/// Rows 4.31 and 4.38: a worker that takes a job and finds the pool short wakes the scaler, whether asleep or about to
/// sleep; two concurrent requests wake it at least once.
#[test]
fn a_scaling_request_is_never_lost() {
    model(2, || {
        let shard_sleep = ShardSleep::new();
        let (pool, mut submitter, scaler, _) = elastic(&shard_sleep);
        let grown = Arc::new((Mutex::new(false), Condvar::new()));
        let scaler = thread::spawn({
            let grown = Arc::clone(&grown);
            move || {
                scaler.run(|| {
                    *grown.0.lock().unwrap() = true;
                    grown.1.notify_all();
                    Ok(())
                });
            }
        });
        for ticket in 0..2 {
            submitter.submit(ticket, move |_| ticket).unwrap();
        }
        submitter.publish();
        let take = {
            let pool = pool.clone();
            move || pool.take_job().unwrap()
        };
        let other = thread::spawn(take.clone());
        let here = take();
        let mut seen = grown.0.lock().unwrap();
        while !*seen {
            seen = grown.1.wait(seen).unwrap();
        }
        drop(seen);
        for running in [here, other.join().unwrap()] {
            running.run(&mut JobContext::simulated()).deliver();
        }
        pool.close();
        scaler.join().unwrap();
    });
}

/// Rows 4.31 and 4.38: one of two idle workers retires while a job arrives; the other worker or the retiring one takes
/// it.
#[test]
fn a_worker_that_retires_leaves_no_job_behind() {
    model(2, || {
        let shard_sleep = ShardSleep::new();
        let (pool, mut submitter, mut scaler) = grown(&shard_sleep);
        let workers = [worker(&pool), worker(&pool)];
        scaler.scale(|| Ok(()));
        let ran = Arc::new((Mutex::new(false), Condvar::new()));
        let ran_by_worker = Arc::clone(&ran);
        submitter
            .submit(1, move |_| {
                *ran_by_worker.0.lock().unwrap() = true;
                ran_by_worker.1.notify_one();
                1
            })
            .unwrap();
        submitter.publish();
        let mut seen = ran.0.lock().unwrap();
        while !*seen {
            seen = ran.1.wait(seen).unwrap();
        }
        drop(seen);
        pool.close();
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

/// Row 4.31: the scaler sees a worker that takes a job while the pool shrinks, or the worker requests scaling.
#[test]
fn a_pool_that_shrinks_is_not_short_unnoticed() {
    model(3, || {
        let shard_sleep = ShardSleep::new();
        let (pool, mut submitter, mut scaler) = grown(&shard_sleep);
        submitter.submit(1, |_| 1).unwrap();
        submitter.publish();
        let looking = thread::spawn(move || {
            scaler.scale(|| Ok(()));
            scaler
        });
        let running = pool.take_job().unwrap();
        let mut scaler = looking.join().unwrap();
        if scaler.is_scale_requested() {
            scaler.scale(|| Ok(()));
        }
        // The surplus worker of the smaller pool stays.
        assert!(!pool.retire());
        assert_eq!(pool.counters().threads, 2);
        running.run(&mut JobContext::simulated()).deliver();
    });
}

/// Row 4.26: a worker takes a job or its submitter withdraws it, never both and never neither.
#[test]
fn a_job_is_started_or_withdrawn() {
    model(3, || {
        let shard_sleep = ShardSleep::new();
        let (pool, mut submitters) = pool(&[&shard_sleep]);
        let worker = worker(&pool);
        let position = submitters[0].submit(1, |_| 1).unwrap();
        submitters[0].publish();
        let is_withdrawn = submitters[0].withdraw(position, false);
        if !is_withdrawn {
            assert_eq!(shard_sleep.next(&mut submitters[0]).position, position);
        }
        assert_eq!(submitters[0].outstanding(), 0);
        pool.close();
        worker.join().unwrap();
        let counters = pool.counters();
        assert_eq!((counters.done, counters.cancelled), (u64::from(!is_withdrawn), u64::from(is_withdrawn)));
        assert!(submitters[0].next_result().is_none());
    });
}
