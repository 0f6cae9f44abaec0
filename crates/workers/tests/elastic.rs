//! A pool that grows and shrinks: in virtual time, and with real threads that are counted, never timed.
#![cfg(not(loom))]

use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use stilling_probe::eventually;
use stilling_ring::{Clock, ManualTime, Time, Wake};
use stilling_workers::{
    ClaimedJob, JobContext, JobResult, JobSubmitter, Pool, PoolLimits, PoolScaler, PoolScaling,
};

const SHRINK_AFTER: Duration = Duration::from_secs(10);

/// Only a hang reaches it.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

const QUARTER_FREE: PoolScaling = PoolScaling {
    free_threshold: 25,
    spawn_hunk: 50,
    spawn_factor: 0,
    threads_max: 16,
    shrink_after: SHRINK_AFTER,
};

/// A pool with the test as its workers and scaler.
struct ElasticFixture {
    pool: Pool<u64>,
    submitter: JobSubmitter<u64>,
    scaler: PoolScaler<u64>,
    manual_time: ManualTime,
    running: Vec<ClaimedJob<u64>>,
}

fn fixture(threads: usize, scaling: PoolScaling) -> ElasticFixture {
    let (clock, manual_time) = Clock::manual();
    let limits =
        PoolLimits { threads, queue_max: 10_000, age_max: Duration::MAX, scaling, ..PoolLimits::default() };
    let (pool, mut submitters) = Pool::new(limits, clock, vec![Arc::new(Wake::new(|| ()))]);
    let scaler = pool.scaler().expect("a pool that may grow has a scaler");
    ElasticFixture { pool, submitter: submitters.remove(0), scaler, manual_time, running: Vec::new() }
}

impl ElasticFixture {
    fn threads(&self) -> u64 {
        self.pool.counters().threads
    }

    fn submit(&mut self, jobs: u64) {
        for ticket in 0..jobs {
            self.submitter.submit(ticket, move |_| ticket).expect("it is below every limit");
        }
        self.submitter.publish();
    }

    /// Lets free workers take jobs and the scaler handle every request, until nothing changes.
    fn run_until_idle(&mut self) {
        loop {
            if self.scaler.is_scale_requested() {
                self.scaler.scale(|| Ok(()));
            }
            if self.running.len() as u64 >= self.threads() {
                return;
            }
            let Some(running) = self.pool.take_job() else { return };
            self.running.push(running);
        }
    }

    fn finish_all(&mut self) {
        for running in self.running.drain(..) {
            running.run(&mut JobContext::simulated()).deliver();
        }
    }

    /// Advances by one span, runs the scaler and retires surplus workers. Returns the number of threads.
    fn advance_span(&mut self) -> u64 {
        self.manual_time.advance(SHRINK_AFTER);
        self.scaler.scale(|| Ok(()));
        while self.running.len() as u64 <= self.threads() && self.pool.retire() {}
        self.threads()
    }
}

/// Rows 4.13 and 4.31: without a threshold there is no scaler.
#[test]
fn a_pool_without_a_threshold_has_no_scaler() {
    let limits = PoolLimits {
        threads: 2,
        scaling: PoolScaling { free_threshold: 0, ..QUARTER_FREE },
        ..PoolLimits::default()
    };
    let (pool, _submitters) = Pool::<()>::new(limits, Clock::real(), vec![Arc::new(Wake::new(|| ()))]);
    assert!(pool.scaler().is_none());
    assert_eq!(pool.counters().threads, 2);
}

/// Row 4.31, `--free-threshold`: the first job that leaves too few free threads requests scaling.
#[test]
fn the_threshold_decides_when_the_pool_grows() {
    for (free_threshold, calls_at) in [(1, 8), (25, 7), (50, 5)] {
        let mut fixture = fixture(8, PoolScaling { free_threshold, ..QUARTER_FREE });
        fixture.submit(8);
        for taken in 1..=8 {
            assert_eq!(
                fixture.scaler.is_scale_requested(),
                taken > calls_at,
                "{free_threshold} %, before job {taken}"
            );
            fixture.running.push(fixture.pool.take_job().expect("it was published"));
        }
        assert!(fixture.scaler.is_scale_requested());
    }
}

/// Row 4.31, `--spawn-hunk`, `--spawn-factor`: the resulting size when all threads are busy at once.
#[test]
fn hunks_decide_how_far_the_pool_grows() {
    for (spawn_hunk, spawn_factor, expected) in [
        // 15: a third is free.
        (50, 0, 15),
        // 11, 13, 15.
        (10, 0, 15),
        // 14: more than a quarter is free.
        (40, 0, 14),
        // 13 is too few; then 17, or 14 if the second hunk is a tenth of the first.
        (30, 0, 17),
        (30, 90, 14),
    ] {
        let scaling = PoolScaling { spawn_hunk, spawn_factor, threads_max: 100, ..QUARTER_FREE };
        let mut fixture = fixture(10, scaling);
        fixture.submit(10);
        fixture.run_until_idle();
        assert_eq!(fixture.threads(), expected, "{spawn_hunk} %, less {spawn_factor} %");
    }
}

/// Row 4.31: a burst of slow work grows the pool to its limit; further jobs wait; after the burst the pool shrinks hunk
/// by hunk to its initial size.
#[test]
fn a_burst_starts_threads_that_retire_afterwards() {
    let mut fixture = fixture(2, QUARTER_FREE);
    fixture.submit(20);
    fixture.run_until_idle();
    let counters = fixture.pool.counters();
    assert_eq!((counters.threads, counters.busy, counters.queued), (16, 16, 4));
    assert_eq!((counters.threads_started, counters.threads_ended), (14, 0));

    assert_eq!(fixture.advance_span(), 16, "all were busy");
    fixture.finish_all();
    fixture.run_until_idle();
    fixture.finish_all();
    assert_eq!(fixture.advance_span(), 16, "all were busy at the beginning of the span");
    assert_eq!([fixture.advance_span(), fixture.advance_span(), fixture.advance_span()], [8, 4, 2]);
    let counters = fixture.pool.counters();
    assert_eq!((counters.done, counters.threads_ended), (20, 14));
    assert_eq!(fixture.scaler.scale(|| Ok(())), None, "nothing is left to look for");
}

/// Row 4.31: a load at the threshold does not start and end threads continually.
#[test]
fn a_pool_that_is_needed_now_and_then_keeps_its_threads() {
    let mut fixture = fixture(2, QUARTER_FREE);
    fixture.submit(8);
    fixture.run_until_idle();
    let grown = fixture.threads();
    let started = fixture.pool.counters().threads_started;
    for _ in 0..20 {
        fixture.finish_all();
        assert_eq!(fixture.advance_span(), grown);
        fixture.submit(8);
        fixture.run_until_idle();
    }
    assert_eq!(fixture.pool.counters().threads_started, started);
}

/// Row 4.31: a shrinking pool keeps 150 % of the last span's peak demand.
#[test]
fn a_pool_shrinks_no_further_than_its_load_allows() {
    let mut fixture = fixture(1, PoolScaling { threads_max: 100, ..QUARTER_FREE });
    fixture.submit(60);
    fixture.run_until_idle();
    fixture.finish_all();
    fixture.submit(8);
    fixture.run_until_idle();
    fixture.advance_span();
    let shrunk: Vec<u64> = (0..5).map(|_| fixture.advance_span()).collect();
    assert_eq!(*shrunk.last().expect("five spans"), 16, "{shrunk:?}");
}

/// Row 4.31: threads that do not start are counted and tolerated, the next attempt is delayed, and later the pool grows
/// all the same.
#[test]
fn threads_that_cannot_be_started_are_counted_and_survived() {
    let mut fixture = fixture(4, QUARTER_FREE);
    fixture.submit(5);
    for _ in 0..4 {
        fixture.running.push(fixture.pool.take_job().expect("it was published"));
    }
    let mut granted = 1;
    let mut start = || match granted {
        0 => Err(std::io::ErrorKind::WouldBlock.into()),
        _ => {
            granted -= 1;
            Ok(())
        }
    };
    let again = fixture.scaler.scale(&mut start).expect("it will try again");
    let counters = fixture.pool.counters();
    assert_eq!((counters.threads, counters.threads_started, counters.threads_failed), (5, 1, 1));
    assert!(again > fixture.manual_time.now());

    // The started thread takes the last job; its request is suppressed until the retry delay is over.
    fixture.running.push(fixture.pool.take_job().expect("it waits"));
    assert!(!fixture.scaler.is_scale_requested());
    assert_eq!(fixture.scaler.scale(|| panic!("it is too early")), Some(again));
    fixture.manual_time.set(again);
    fixture.scaler.scale(|| Ok(()));
    let counters = fixture.pool.counters();
    assert_eq!((counters.threads, counters.threads_failed), (8, 1));
    fixture.finish_all();
    assert_eq!(fixture.pool.counters().done, 5);
}

/// Rows 4.31 and 4.37: a pool that is being closed starts no threads.
#[test]
fn a_closed_pool_does_not_grow() {
    let mut fixture = fixture(1, QUARTER_FREE);
    fixture.submit(1);
    fixture.running.push(fixture.pool.take_job().expect("it was published"));
    assert!(fixture.scaler.is_scale_requested());
    fixture.pool.close();
    fixture.scaler.scale(|| panic!("no thread is to be started"));
    assert_eq!(fixture.threads(), 1);
    fixture.finish_all();
}

#[test]
#[should_panic(expected = "cannot grow")]
fn a_pool_that_begins_above_its_limit_is_rejected() {
    fixture(17, QUARTER_FREE);
}

#[derive(Default)]
struct JobBarrier {
    arrived: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl JobBarrier {
    fn wait_open(&self) {
        let mut arrived = self.arrived.lock().unwrap();
        arrived.0 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(arrived, |(_, open)| !*open).unwrap());
    }

    fn wait_for(&self, jobs: u64) {
        let arrived = self.arrived.lock().unwrap();
        let (arrived, timeout) =
            self.changed.wait_timeout_while(arrived, HANG_TIMEOUT, |(arrived, _)| *arrived < jobs).unwrap();
        assert!(!timeout.timed_out(), "only {} of {jobs} jobs run at once", arrived.0);
    }

    fn open(&self) {
        self.arrived.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

fn started(threads: usize, scaling: PoolScaling) -> (Pool<u64>, JobSubmitter<u64>, Clock) {
    let clock = Clock::real();
    let limits =
        PoolLimits { threads, queue_max: 1000, age_max: Duration::MAX, scaling, ..PoolLimits::default() };
    let (pool, mut submitters) = Pool::new(limits, clock.clone(), vec![Arc::new(Wake::new(|| ()))]);
    pool.start().expect("the system has threads");
    (pool, submitters.remove(0), clock)
}

fn submit_behind(barrier: &Arc<JobBarrier>, submitter: &mut JobSubmitter<u64>, jobs: u64) {
    for ticket in 0..jobs {
        let barrier = Arc::clone(barrier);
        submitter
            .submit(ticket, move |_| {
                barrier.wait_open();
                ticket
            })
            .expect("it is below every limit");
    }
    submitter.publish();
}

/// Row 4.31 with real threads: sixteen jobs run at once in a pool of two, because it grew; it never exceeds its limit;
/// and when all is done it returns to two, repeatedly.
#[test]
fn real_threads_start_and_retire_with_the_load() {
    let scaling = PoolScaling { shrink_after: Duration::from_millis(1), ..QUARTER_FREE };
    let (pool, mut submitter, clock) = started(2, scaling);
    for round in 1..=3 {
        let barrier = Arc::new(JobBarrier::default());
        submit_behind(&barrier, &mut submitter, 24);
        barrier.wait_for(16);
        let counters = pool.counters();
        assert_eq!((counters.threads, counters.busy, counters.queued), (16, 16, 8));
        barrier.open();
        eventually("all jobs are answered", || (pool.counters().done == 24 * round).then_some(()));
        // A thread leaves before it counts itself as ended.
        eventually("the pool has its first size", || {
            let counters = pool.counters();
            (counters.threads == 2 && counters.threads_started == 2 + counters.threads_ended).then_some(())
        });
        while let Some(completed) = submitter.next_result() {
            assert_eq!(completed.outcome, JobResult::Done(completed.ticket));
        }
    }
    pool.close();
    pool.join(clock.now().after(HANG_TIMEOUT)).expect("all threads end");
    assert_eq!(pool.join(Time::ZERO), Ok(()), "no thread is left");
}

/// Rows 4.31 and 4.37: whenever growth races with closing, every accepted job is answered and every thread ends.
#[test]
fn a_pool_may_be_closed_while_it_grows() {
    for round in 0..50 {
        let scaling = PoolScaling { free_threshold: 50, threads_max: 40, ..QUARTER_FREE };
        let (pool, mut submitter, clock) = started(1, scaling);
        for ticket in 0..60 {
            submitter.submit(ticket, move |_| ticket).expect("it is below every limit");
            if ticket == round {
                submitter.publish();
            }
        }
        let closer = thread::spawn({
            let pool = pool.clone();
            move || pool.close()
        });
        submitter.publish();
        closer.join().expect("closing does not panic");
        pool.join(clock.now().after(HANG_TIMEOUT)).expect("all threads end");
        assert_eq!(std::iter::from_fn(|| submitter.next_result()).count(), 60);
    }
}

/// Row 4.31: dropping an elastic pool ends its workers and its scaler; the last of them drops the submitter's wake.
#[test]
fn dropping_the_last_handle_ends_the_scaler() {
    let wake = Arc::new(Wake::new(|| ()));
    let limits = PoolLimits { threads: 1, scaling: QUARTER_FREE, ..PoolLimits::default() };
    let (pool, mut submitters) = Pool::<u64>::new(limits, Clock::real(), vec![Arc::clone(&wake)]);
    pool.start().expect("the system has threads");
    submitters[0].submit(1, |_| 1).expect("it is below every limit");
    submitters[0].publish();
    drop(pool);
    eventually("the job is answered", || submitters[0].has_result().then_some(()));
    assert!(submitters[0].submit(2, |_| 2).is_err(), "the pool is closed");
    drop(submitters);
    eventually("all threads are gone", || (Arc::strong_count(&wake) == 1).then_some(()));
}

/// Row 4.31, `--accept-workers`: at most `inline_max` submitters run a job themselves, each one job at a time and one
/// per turn.
#[test]
fn submitters_run_jobs_inline_up_to_the_limit() {
    for (inline_max, expected) in [(0, [false, false]), (1, [true, false]), (2, [true, true])] {
        let (clock, _) = Clock::manual();
        let wakes = (0..2).map(|_| Arc::new(Wake::new(|| ()))).collect();
        let limits = PoolLimits { threads: 1, inline_max, ..PoolLimits::default() };
        let (pool, submitters) = Pool::<u64>::new(limits, clock, wakes);
        let [mut first, mut second] =
            <[JobSubmitter<u64>; 2]>::try_from(submitters).ok().expect("two submitters");
        let mut inner = None;
        let outer = first.run_inline(|context| {
            context.sleep(HANG_TIMEOUT);
            inner = Some(second.run_inline(|_| 7).is_ok());
            5
        });
        let ran = [outer.ok() == Some(JobResult::Done(5)), inner.unwrap_or(false)];
        assert_eq!(ran, expected, "{inline_max} may");
        assert!(first.run_inline(|_| 6).is_err(), "one job a turn");
        first.publish();
        let ran_again = first.run_inline(|_| -> u64 { std::panic::resume_unwind(Box::new(())) });
        assert_eq!(ran_again.ok(), (inline_max > 0).then_some(JobResult::Panicked));
        let counters = pool.counters();
        let ran = ran.iter().filter(|ran| **ran).count() as u64;
        assert_eq!((counters.done, counters.panicked), (ran, u64::from(inline_max > 0)));
        assert_eq!((counters.inline, counters.busy), (counters.done + counters.panicked, 0));
        pool.close();
        first.publish();
        assert!(first.run_inline(|_| 8).is_err(), "the pool is closed");
    }
}
