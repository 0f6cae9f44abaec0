//! The default queue under overload, in virtual time.
#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::time::Duration;

use stilling::ServeConfig;
use stilling::engine::{Clock, Wake};
use stilling_workers::{JobCompletion, JobContext, JobResult, Pool, PoolLimits};

/// Duration of a job.
const JOB: Duration = Duration::from_millis(5);
/// Maximum wait of a client for its response.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(1);
/// Slots of one job's duration: first with ten jobs each, then with one job in every other slot.
const OVERLOADED: u64 = 1000;
const NORMAL: u64 = 600;
/// Slots per second.
const SECOND: u64 = 200;

/// Rows 4.26, 5.4: with ten times a worker's capacity for five seconds, nearly all of its work is in time, and one
/// second later every client is answered at once.
#[test]
fn the_default_queue_keeps_its_goodput_in_an_overload() {
    let ServeConfig { queue_max, queue_age_max, queue_target, .. } = ServeConfig::default();
    let limits =
        PoolLimits { threads: 1, queue_max, age_max: queue_age_max, queue_target, ..PoolLimits::default() };
    let (clock, manual_time) = Clock::manual();
    let (pool, mut submitters) = Pool::new(limits, clock.clone(), vec![Arc::new(Wake::new(|| ()))]);
    let submitter = &mut submitters[0];
    // The time and slot of each submission, and the jobs answered in time.
    let (mut submitted, mut in_time) = (Vec::new(), Vec::new());
    for slot in 0..OVERLOADED + NORMAL {
        let end = clock.now().after(JOB);
        for _ in 0..if slot < OVERLOADED { 10 } else { slot % 2 } {
            let manual_time = manual_time.clone();
            let job = move |_: &mut JobContext| manual_time.advance(JOB);
            // A full queue refuses the job, which is an answer too.
            let _ = submitter.submit(submitted.len() as u64, job);
            submitted.push((slot, clock.now()));
        }
        submitter.publish();
        while clock.now() < end {
            let Some(running) = pool.take_job() else { break };
            running.run(&mut JobContext::simulated()).deliver();
        }
        while let Some(JobCompletion { ticket, outcome, .. }) = submitter.next_result() {
            let (slot, since) = submitted[ticket as usize];
            if matches!(outcome, JobResult::Done(())) && clock.now().since(since) <= CLIENT_TIMEOUT {
                in_time.push(slot);
            }
        }
        manual_time.advance(end.since(clock.now()));
    }
    let answered =
        |from: u64, to: u64| in_time.iter().filter(|slot| (from..to).contains(slot)).count() as u64;
    let good = answered(0, OVERLOADED);
    assert!(good * 10 >= OVERLOADED * 9, "{good} of {OVERLOADED} jobs that fit were done in time");
    let asked = (OVERLOADED + SECOND..OVERLOADED + NORMAL).filter(|slot| slot % 2 == 1).count() as u64;
    // The last job may be in progress.
    let late = answered(OVERLOADED + SECOND, OVERLOADED + NORMAL);
    assert!(asked - late <= 1, "{late} of {asked} were answered after the overload");
}
