//! The pool with real threads: no job lost, no thread left over.
#![cfg(not(loom))]

use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use stilling_ring::{Clock, Wake};
use stilling_workers::{JobCompletion, JobResult, JobSubmitter, Pool, PoolLimits, SubmitError};

/// Only a hang reaches it.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

fn wake_for(thread: thread::Thread) -> Arc<Wake> {
    Arc::new(Wake::new(move || thread.unpark()))
}

/// Returns the next result, sleeping as a shard does.
fn next(submitter: &mut JobSubmitter<u64>, wake: &Wake) -> JobCompletion<u64> {
    loop {
        if let Some(completed) = submitter.next_result() {
            return completed;
        }
        wake.set_parked();
        if !submitter.has_result() {
            thread::park();
        }
        wake.clear_parked();
    }
}

/// Submits `jobs` jobs in uneven batches and checks that every ticket comes back once with its own result.
fn drive(mut submitter: JobSubmitter<u64>, wake: &Wake, jobs: u64) {
    let mut answered = vec![false; usize::try_from(jobs).expect("fits")];
    let (mut submitted, mut fetched, mut batch) = (0, 0, 1);
    while fetched < jobs {
        for _ in 0..batch {
            if submitted == jobs {
                break;
            }
            match submitter.submit(submitted, move |_| submitted ^ 0xABCD) {
                Ok(_) => submitted += 1,
                Err(SubmitError::Full(_)) => break,
                Err(SubmitError::Closed(_)) => panic!("the pool is open"),
            }
        }
        submitter.publish();
        batch = batch % 61 + 1;
        // Sometimes everything is fetched before more is submitted, so that both sides sleep often.
        while fetched < submitted && (batch % 3 == 0 || submitter.has_result() || submitted == jobs) {
            let JobCompletion { ticket, outcome, .. } = next(&mut submitter, wake);
            assert_eq!(outcome, JobResult::Done(ticket ^ 0xABCD));
            let seen = &mut answered[usize::try_from(ticket).expect("fits")];
            assert!(!std::mem::replace(seen, true), "ticket {ticket} was answered twice");
            fetched += 1;
        }
    }
    assert!(submitter.next_result().is_none());
    assert_eq!(submitter.outstanding(), 0);
}

/// Rows 4.3 and 4.38: two shards, four workers, 100,000 jobs each; every ticket is answered exactly once.
#[test]
fn every_ticket_is_answered_exactly_once() {
    const JOBS: u64 = 100_000;
    let (give_wake, take_wake) = mpsc::channel();
    let (lane_givers, shards): (Vec<_>, Vec<_>) = (0..2)
        .map(|_| {
            let (give_submitter, take_submitter) = mpsc::channel::<(JobSubmitter<u64>, Arc<Wake>)>();
            let give_wake = give_wake.clone();
            let shard = thread::spawn(move || {
                give_wake.send(wake_for(thread::current())).unwrap();
                let (submitter, wake) = take_submitter.recv().unwrap();
                drive(submitter, &wake, JOBS);
            });
            // The wakes arrive one by one, so that each belongs to the shard just created.
            ((give_submitter, take_wake.recv().unwrap()), shard)
        })
        .unzip();
    let wakes = lane_givers.iter().map(|(_, wake)| Arc::clone(wake)).collect();
    let clock = Clock::real();
    let limits = PoolLimits { threads: 4, queue_max: 256, age_max: Duration::MAX, ..PoolLimits::default() };
    let (pool, submitters) = Pool::new(limits, clock.clone(), wakes);
    pool.start().unwrap();
    for (submitter, (give_submitter, wake)) in submitters.into_iter().zip(lane_givers) {
        give_submitter.send((submitter, wake)).unwrap();
    }
    for shard in shards {
        shard.join().unwrap();
    }
    pool.close();
    pool.join(clock.now().after(HANG_TIMEOUT)).unwrap();
    let counters = pool.counters();
    assert_eq!((counters.done, counters.queued, counters.busy), (2 * JOBS, 0, 0));
    assert!(counters.queued_max <= 256);
}

/// Row 4.3: threads survive panics.
#[test]
fn workers_survive_the_panics_of_their_jobs() {
    let wake = wake_for(thread::current());
    let limits = PoolLimits { threads: 2, queue_max: 64, age_max: Duration::MAX, ..PoolLimits::default() };
    let (pool, mut submitters) = Pool::<u64>::new(limits, Clock::real(), vec![Arc::clone(&wake)]);
    pool.start().unwrap();
    let submitter = &mut submitters[0];
    for ticket in 0..40 {
        submitter
            .submit(ticket, move |_| match ticket % 2 {
                0 => std::panic::resume_unwind(Box::new(())),
                _ => ticket,
            })
            .unwrap();
    }
    submitter.publish();
    let panicked = (0..40).filter(|_| next(submitter, &wake).outcome == JobResult::Panicked).count();
    assert_eq!(panicked, 20);
}

/// Row 4.37: an unfinished job is reported at the deadline, and once it ends the pool is joined.
#[test]
fn joining_reports_the_threads_still_running() {
    let wake = wake_for(thread::current());
    let clock = Clock::real();
    let limits = PoolLimits { threads: 3, queue_max: 64, age_max: Duration::MAX, ..PoolLimits::default() };
    let (pool, mut submitters) = Pool::<u64>::new(limits, clock.clone(), vec![Arc::clone(&wake)]);
    pool.start().unwrap();
    // Two workers are certainly in a job; the third has ended or will.
    let inside = Arc::new(Barrier::new(3));
    let leave = Arc::new(Barrier::new(3));
    for ticket in 0..2 {
        let (inside, leave) = (Arc::clone(&inside), Arc::clone(&leave));
        submitters[0]
            .submit(ticket, move |_| {
                inside.wait();
                leave.wait();
                ticket
            })
            .unwrap();
    }
    submitters[0].publish();
    inside.wait();
    pool.close();
    let unfinished = pool.join(clock.now()).unwrap_err();
    assert!((2..=3).contains(&unfinished.threads), "{unfinished}");
    leave.wait();
    pool.join(clock.now().after(HANG_TIMEOUT)).unwrap();
    assert!(submitters[0].next_result().is_some() && submitters[0].next_result().is_some());
    pool.join(clock.now()).unwrap();
}

#[test]
fn dropping_the_last_handle_ends_the_threads() {
    let wake = wake_for(thread::current());
    let limits = PoolLimits { threads: 2, queue_max: 64, age_max: Duration::MAX, ..PoolLimits::default() };
    let (pool, mut submitters) = Pool::<u64>::new(limits, Clock::real(), vec![Arc::clone(&wake)]);
    pool.start().unwrap();
    let copy = pool.clone();
    drop(pool);
    submitters[0].submit(1, |_| 1).unwrap();
    submitters[0].publish();
    assert_eq!(next(&mut submitters[0], &wake).ticket, 1);
    drop(copy);
    assert!(matches!(submitters[0].submit(2, |_| 2), Err(SubmitError::Closed(_))));
}
