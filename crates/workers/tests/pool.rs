//! The pool with the test as its worker: order, bounds and closing, all in virtual time.
#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use stilling_ring::{Clock, ManualTime, Time, Wake};
use stilling_workers::{
    JobCompletion, JobContext, JobResult, JobSubmitter, Pool, PoolLimits, QueueTarget, SubmitError,
};

struct PoolFixture {
    pool: Pool<u64>,
    submitters: Vec<JobSubmitter<u64>>,
    manual_time: ManualTime,
    wakes: Vec<Arc<Wake>>,
}

fn fixture(submitters: usize, queue_max: usize, age_max: Duration) -> PoolFixture {
    let (clock, manual_time) = Clock::manual();
    let wakes: Vec<_> = (0..submitters).map(|_| Arc::new(Wake::new(|| ()))).collect();
    let (pool, submitters) = Pool::new(
        PoolLimits { threads: 1, queue_max, age_max, ..PoolLimits::default() },
        clock,
        wakes.clone(),
    );
    PoolFixture { pool, submitters, manual_time, wakes }
}

fn serve(pool: &Pool<u64>) -> Option<u64> {
    let running = pool.take_job()?;
    let ticket = running.ticket();
    running.run(&mut JobContext::simulated()).deliver();
    Some(ticket)
}

fn done(ticket: u64, value: u64) -> Option<(u64, JobResult<u64>)> {
    Some((ticket, JobResult::Done(value)))
}

fn next(submitter: &mut JobSubmitter<u64>) -> Option<(u64, JobResult<u64>)> {
    submitter.next_result().map(|JobCompletion { ticket, outcome, .. }| (ticket, outcome))
}

/// Row 4.3: first in, first out over all shards, independent of the submitter.
#[test]
fn the_oldest_job_of_all_shards_runs_first() {
    let mut fixture = fixture(3, 100, Duration::MAX);
    let order = [2, 0, 1, 1, 0, 2, 2, 2, 0, 1];
    for (ticket, submitter) in order.into_iter().enumerate() {
        fixture.submitters[submitter].submit(ticket as u64, move |_| ticket as u64).unwrap();
        fixture.manual_time.advance(Duration::from_nanos(1));
    }
    assert!(fixture.pool.take_job().is_none(), "nothing is visible before it is published");
    for submitter in &mut fixture.submitters {
        submitter.publish();
    }
    let served: Vec<_> = std::iter::from_fn(|| serve(&fixture.pool)).collect();
    assert_eq!(served, (0..order.len() as u64).collect::<Vec<_>>());
    for (ticket, submitter) in order.into_iter().enumerate() {
        assert_eq!(next(&mut fixture.submitters[submitter]), done(ticket as u64, ticket as u64));
    }
}

/// Row 4.3: the queue is bounded over all submitters together, and a rejected job is returned.
#[test]
fn a_full_queue_gives_the_job_back() {
    let mut fixture = fixture(2, 3, Duration::MAX);
    for ticket in 0..3 {
        fixture.submitters[ticket % 2].submit(ticket as u64, |_| 0).unwrap();
    }
    let job = |_: &mut JobContext| 77;
    let rejected = fixture.submitters[1].submit(3, job).unwrap_err();
    assert!(matches!(rejected, SubmitError::Full(_)));
    assert_eq!(rejected.into_job()(&mut JobContext::simulated()), 77);
    let counters = fixture.pool.counters();
    assert_eq!((counters.queued, counters.queued_max, counters.rejected), (3, 3, 1));

    fixture.submitters[0].publish();
    assert_eq!(serve(&fixture.pool), Some(0));
    assert!(fixture.submitters[1].submit(3, job).is_ok(), "one place became free");
}

/// Row 4.3: a shard that fetches no results blocks itself, not the workers.
#[test]
fn a_submitter_that_fetches_no_results_is_rejected_eventually() {
    let mut fixture = fixture(1, 2, Duration::MAX);
    let submitter = &mut fixture.submitters[0];
    let mut accepted = 0;
    while submitter.submit(accepted, move |_| accepted).is_ok() {
        accepted += 1;
        submitter.publish();
        assert!(serve(&fixture.pool).is_some());
        assert!(accepted < 1000, "no limit stopped the submitter");
    }
    assert_eq!(submitter.outstanding() as u64, accepted);
    for ticket in 0..accepted {
        assert_eq!(next(submitter), done(ticket, ticket));
    }
    assert!(submitter.submit(accepted, |_| 0).is_ok());
}

/// Row 4.26: a job that waited too long is answered without being run.
#[test]
fn a_job_that_waited_too_long_expires_and_is_not_run() {
    let age_max = Duration::from_secs(30);
    for (waited, expires) in [(age_max, false), (age_max + Duration::from_nanos(1), true)] {
        let mut fixture = fixture(1, 10, age_max);
        let witness = Arc::new(());
        fixture.submitters[0]
            .submit(9, {
                let witness = Arc::clone(&witness);
                move |_| Arc::strong_count(&witness) as u64
            })
            .unwrap();
        fixture.submitters[0].publish();
        fixture.manual_time.advance(waited);
        assert_eq!(serve(&fixture.pool), Some(9));
        let outcome = if expires { JobResult::Expired } else { JobResult::Done(2) };
        assert_eq!(next(&mut fixture.submitters[0]), Some((9, outcome)));
        let counters = fixture.pool.counters();
        assert_eq!((counters.expired, counters.done), (u64::from(expires), u64::from(!expires)));
        assert_eq!(counters.waited, waited);
        assert_eq!(Arc::strong_count(&witness), 1, "the captures are gone either way");
    }
}

/// A response that has begun must be completed: the job that continues it is run however long it has waited.
#[test]
fn a_job_that_lasts_is_run_however_long_it_has_waited() {
    let (clock, manual_time) = Clock::manual();
    let limits = PoolLimits { threads: 1, queue_target: Some(QueueTarget::Service), ..PoolLimits::default() };
    let (pool, mut submitters) = Pool::new(limits, clock, vec![Arc::new(Wake::new(|| ()))]);
    let submitter = &mut submitters[0];
    for ticket in 0..40 {
        let job = move |_: &mut JobContext| ticket;
        let submitted = if ticket % 2 == 0 {
            submitter.submit_continuation(ticket, job)
        } else {
            submitter.submit(ticket, job)
        };
        submitted.unwrap();
    }
    submitter.publish();
    manual_time.advance(limits.age_max + Duration::from_secs(1));
    for ticket in 0..40 {
        assert_eq!(serve(&pool), Some(ticket));
        manual_time.advance(Duration::from_millis(10));
        let outcome = if ticket % 2 == 0 { JobResult::Done(ticket) } else { JobResult::Expired };
        assert_eq!(next(submitter), Some((ticket, outcome)));
    }
}

/// Row 4.26: in a standing queue only recent jobs are run; the rest is answered without being run. An overload thus
/// wastes no work, and it is over when the load is.
#[test]
fn a_standing_queue_is_shed_down_to_recent_jobs() {
    const SLOT: Duration = Duration::from_millis(5);
    let (clock, manual_time) = Clock::manual();
    let limits = PoolLimits { threads: 1, queue_target: Some(QueueTarget::Service), ..PoolLimits::default() };
    let (pool, mut submitters) = Pool::new(limits, clock.clone(), vec![Arc::new(Wake::new(|| ()))]);
    let submitter = &mut submitters[0];
    let mut submitted = Vec::new();
    // (slot, time since submission, whether it was run)
    let mut answers = Vec::new();
    for slot in 0..600 {
        // Ten times the capacity for two seconds, then half the capacity.
        let arrivals = if slot < 400 { 10 } else { slot % 2 };
        for _ in 0..arrivals {
            let manual_time = manual_time.clone();
            let job = move |_: &mut JobContext| {
                manual_time.advance(SLOT);
                0
            };
            submitter.submit(submitted.len() as u64, job).unwrap();
            submitted.push(clock.now());
        }
        submitter.publish();
        let end = clock.now().after(SLOT);
        while clock.now() < end && serve(&pool).is_some() {}
        while let Some(JobCompletion { ticket, outcome, .. }) = submitter.next_result() {
            let took = clock.now().since(submitted[ticket as usize]);
            answers.push((slot, took, matches!(outcome, JobResult::Done(_))));
        }
        manual_time.advance(end.since(clock.now()));
    }
    let run = |from: u64, to: u64| {
        answers
            .iter()
            .filter(move |(slot, _, run)| *run && (from..to).contains(slot))
            .map(|(_, took, _)| *took)
    };
    assert_eq!(run(0, 400).count(), 400, "the worker is never idle, and never works for nothing");
    assert_eq!(run(40, 400).filter(|took| *took > 3 * SLOT).count(), 0, "every served job is served soon");
    let shed_late = answers.iter().filter(|(slot, _, run)| !run && *slot >= 410).count();
    assert_eq!(shed_late, 0, "50 ms after the load has ended, no job is shed");
    let counters = pool.counters();
    assert_eq!((counters.shed, counters.queued), (counters.expired, 0));
    assert_eq!(counters.shed + counters.done, submitted.len() as u64);
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("from a destructor"));
    }
}

/// Row 4.3: a panic anywhere in a job costs one result.
#[test]
fn a_panic_in_a_job_is_one_answer() {
    let mut fixture = fixture(1, 10, Duration::from_secs(1));
    let submitter = &mut fixture.submitters[0];
    submitter.submit(1, |_| std::panic::resume_unwind(Box::new("plain"))).unwrap();
    submitter.submit(2, |_| std::panic::resume_unwind(Box::new(PanicsWhenDropped))).unwrap();
    submitter.submit(3, |_| 3).unwrap();
    submitter.publish();
    while serve(&fixture.pool).is_some() {}
    let outcomes: Vec<_> =
        std::iter::from_fn(|| submitter.next_result()).map(|completed| completed.outcome).collect();
    assert_eq!(outcomes, [JobResult::Panicked, JobResult::Panicked, JobResult::Done(3)]);

    let bomb = PanicsWhenDropped;
    submitter
        .submit(4, move |_| {
            let _bomb = bomb;
            4
        })
        .unwrap();
    submitter.publish();
    fixture.manual_time.advance(Duration::from_secs(2));
    assert_eq!(serve(&fixture.pool), Some(4));
    assert_eq!(next(submitter), Some((4, JobResult::Expired)));
    let counters = fixture.pool.counters();
    assert_eq!((counters.panicked, counters.done, counters.expired, counters.busy), (2, 1, 1, 0));
}

/// A worker that fails between taking and running a job, or before delivering, still answers it.
#[test]
fn a_started_job_is_answered_even_if_its_worker_gives_up() {
    let mut fixture = fixture(1, 10, Duration::MAX);
    let submitter = &mut fixture.submitters[0];
    for ticket in 0..2 {
        submitter.submit(ticket, |_| 5).unwrap();
    }
    submitter.publish();
    drop(fixture.pool.take_job());
    assert_eq!(next(submitter), Some((0, JobResult::Panicked)));
    drop(fixture.pool.take_job().map(|running| running.run(&mut JobContext::simulated())));
    assert_eq!(next(submitter), done(1, 5));
    assert_eq!(fixture.pool.counters().busy, 0);
}

/// Row 4.12: a shard may be dropped while its jobs wait or run; they run, and everything is dropped exactly once.
#[test]
fn a_submitter_may_be_dropped_with_outstanding_jobs() {
    let mut fixture = fixture(2, 10, Duration::MAX);
    let witness = Arc::new(());
    let ran = Arc::new(AtomicUsize::new(0));
    let mut gone = fixture.submitters.remove(0);
    for ticket in 0..4 {
        let (witness, ran) = (Arc::clone(&witness), Arc::clone(&ran));
        gone.submit(ticket, move |_| {
            ran.fetch_add(1, Ordering::Relaxed);
            Arc::strong_count(&witness) as u64
        })
        .unwrap();
        if ticket == 1 {
            gone.publish();
        }
    }
    serve(&fixture.pool);
    let running = fixture.pool.take_job();
    drop(gone);
    fixture.submitters[0].submit(9, |_| 9).unwrap();
    fixture.submitters[0].publish();
    running.unwrap().run(&mut JobContext::simulated()).deliver();
    while serve(&fixture.pool).is_some() {}
    assert_eq!(ran.load(Ordering::Relaxed), 4, "accepted jobs run, published or not");
    assert_eq!(Arc::strong_count(&witness), 1);
    assert_eq!(next(&mut fixture.submitters[0]), done(9, 9), "the other submitter is not affected");
}

/// Row 4.12: jobs left in the queue are dropped with the pool.
#[test]
fn jobs_left_in_a_dropped_pool_are_dropped_once() {
    let mut fixture = fixture(1, 10, Duration::MAX);
    let witness = Arc::new(());
    for ticket in 0..3 {
        let witness = Arc::clone(&witness);
        fixture.submitters[0].submit(ticket, move |_| Arc::strong_count(&witness) as u64).unwrap();
    }
    assert_eq!(Arc::strong_count(&witness), 4);
    drop(fixture);
    assert_eq!(Arc::strong_count(&witness), 1);
}

/// Row 4.37: closing rejects new jobs and finishes accepted ones, including unpublished ones.
#[test]
fn a_closed_pool_finishes_what_it_accepted() {
    let mut fixture = fixture(1, 10, Duration::MAX);
    let submitter = &mut fixture.submitters[0];
    submitter.submit(1, |_| 1).unwrap();
    fixture.pool.close();
    assert!(fixture.pool.is_closed());
    assert!(matches!(submitter.submit(2, |_| 2), Err(SubmitError::Closed(_))));
    assert_eq!(fixture.pool.counters().queued, 1);
    submitter.publish();
    fixture.pool.run_worker(&mut JobContext::simulated());
    assert_eq!(next(submitter), done(1, 1));
    assert_eq!(next(submitter), None);
}

#[test]
fn a_position_shows_whether_its_job_still_waits() {
    let mut fixture = fixture(1, 10, Duration::MAX);
    let submitter = &mut fixture.submitters[0];
    let first = submitter.submit(1, |_| 1).unwrap();
    let second = submitter.submit(2, |_| 2).unwrap();
    submitter.publish();
    assert!(submitter.is_waiting(first) && submitter.is_waiting(second));
    let running = fixture.pool.take_job().unwrap();
    assert!(!submitter.is_waiting(first) && submitter.is_waiting(second));
    assert_eq!(fixture.pool.counters().busy, 1);
    running.run(&mut JobContext::simulated()).deliver();
    assert_eq!(fixture.pool.counters().busy, 0);
}

/// Row 4.18: in the simulator a slow job costs virtual time, returned to the caller.
#[test]
fn a_simulated_job_sleeps_in_virtual_time() {
    let mut fixture = fixture(1, 10, Duration::MAX);
    let submitter = &mut fixture.submitters[0];
    submitter
        .submit(1, |context| {
            context.sleep(Duration::from_millis(30));
            context.sleep(Duration::from_millis(12));
            1
        })
        .unwrap();
    submitter.publish();
    let mut context = JobContext::simulated();
    let finished = fixture.pool.take_job().unwrap().run(&mut context);
    assert_eq!((finished.ticket(), finished.submitter()), (1, 0));
    assert_eq!(context.take_slept(), Duration::from_millis(42));
    assert_eq!(context.take_slept(), Duration::ZERO);
    assert!(!submitter.has_result(), "the result is there when it is delivered, not before");
    finished.deliver();
    assert!(submitter.has_result());
}

#[test]
fn a_result_wakes_the_shard_it_belongs_to() {
    let mut fixture = fixture(2, 10, Duration::MAX);
    for wake in &fixture.wakes {
        wake.set_parked();
    }
    fixture.submitters[1].submit(1, |_| 1).unwrap();
    fixture.submitters[1].publish();
    serve(&fixture.pool);
    assert_eq!((fixture.wakes[0].wake_count(), fixture.wakes[1].wake_count()), (0, 1));
}

#[test]
fn a_pool_without_threads_is_legal() {
    let (pool, submitters) =
        Pool::<()>::new(PoolLimits { threads: 0, ..PoolLimits::default() }, Clock::real(), Vec::new());
    assert!(submitters.is_empty());
    pool.start().unwrap();
    assert_eq!(pool.start().unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    assert!(!pool.is_closed());
    pool.close();
    pool.join(Time::ZERO).unwrap();
}

/// Rows 4.3 and 4.26: a withdrawn job is neither run nor answered, leaves the queue's length at once, and its position
/// is never reused.
#[test]
fn a_withdrawn_job_is_not_run_and_makes_room_at_once() {
    let mut fixture = fixture(1, 2, Duration::MAX);
    let submitter = &mut fixture.submitters[0];
    let first = submitter.submit(1, |_| 1).unwrap();
    let second = submitter.submit(2, |_| 2).unwrap();
    submitter.publish();
    assert!(submitter.is_full() && submitter.submit(3, |_| 3).is_err());
    assert!(submitter.withdraw(first, false) && !submitter.withdraw(first, false), "it is withdrawn once");
    assert_eq!((fixture.pool.counters().queued, submitter.outstanding()), (1, 1));
    let third = submitter.submit(3, |_| 3).unwrap();
    submitter.publish();
    assert!(!submitter.is_waiting(first) && submitter.is_waiting(second) && submitter.is_waiting(third));
    assert_eq!(serve(&fixture.pool), Some(2));
    assert!(!submitter.withdraw(second, false), "a worker has it");
    assert!(submitter.withdraw(third, true));
    assert_eq!(serve(&fixture.pool), None);
    assert_eq!(next(submitter), done(2, 2));
    assert_eq!((next(submitter), submitter.outstanding()), (None, 0));
    let counters = fixture.pool.counters();
    assert_eq!((counters.cancelled, counters.expired, counters.done), (1, 1, 1));
    assert_eq!((counters.queued, counters.busy), (0, 0));
}

/// Rows 4.3 and 4.26: a queue full of withdrawn jobs accepts as many others. Beyond that, jobs are rejected until a
/// worker passes the withdrawn ones, and then a whole queue fits again.
#[test]
fn a_queue_full_of_withdrawn_jobs_accepts_others() {
    const QUEUE_MAX: usize = 8;
    let mut fixture = fixture(1, QUEUE_MAX, Duration::MAX);
    let submitter = &mut fixture.submitters[0];
    for round in 0..2 {
        let positions: Vec<_> = (0..QUEUE_MAX as u64)
            .map(|ticket| {
                submitter.submit(ticket, |_| 0).unwrap_or_else(|_| panic!("round {round} is rejected"))
            })
            .collect();
        submitter.publish();
        assert!(positions.iter().all(|position| submitter.withdraw(*position, false)));
        assert_eq!((fixture.pool.counters().queued, submitter.outstanding()), (0, 0));
    }
    assert!(submitter.is_full() && submitter.submit(1, |_| 0).is_err(), "all slots are in use");
    assert_eq!((fixture.pool.counters().queued, submitter.outstanding()), (0, 0));
    assert_eq!(serve(&fixture.pool), None, "only withdrawn jobs are passed");
    for ticket in 0..QUEUE_MAX as u64 {
        submitter.submit(ticket, |_| 0).unwrap();
    }
    submitter.publish();
    for ticket in 0..QUEUE_MAX as u64 {
        assert_eq!(serve(&fixture.pool), Some(ticket));
    }
    assert_eq!(fixture.pool.counters().cancelled, 2 * QUEUE_MAX as u64);
}

/// Row 4.26: results are identified by position, which is unique within a submitter.
#[test]
fn positions_are_not_used_again() {
    let mut fixture = fixture(1, 2, Duration::MAX);
    let submitter = &mut fixture.submitters[0];
    let old = submitter.submit(7, |_| 0).unwrap();
    submitter.publish();
    let running = fixture.pool.take_job().unwrap();
    for _ in 0..1000 {
        let position = submitter.submit(7, |_| 1).unwrap();
        submitter.publish();
        assert_eq!(serve(&fixture.pool), Some(7));
        assert_eq!(submitter.next_result().map(|completed| completed.position), Some(position));
        assert_ne!(position, old);
    }
    running.run(&mut JobContext::simulated()).deliver();
    assert_eq!(submitter.next_result().map(|completed| completed.position), Some(old));
}
