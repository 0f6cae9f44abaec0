//! The pool compared with a simple model, over random histories in virtual time.
#![cfg(not(loom))]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use stilling_ring::{Clock, Wake};
use stilling_workers::{JobCompletion, JobContext, JobPosition, JobResult, Pool, PoolLimits, SubmitError};

const SUBMITTERS: usize = 2;
const THREADS: usize = 2;
const AGE_MAX: u64 = 100;

#[derive(Clone, Copy, Debug)]
enum PoolOp {
    Submit { submitter: usize, panics: bool },
    Publish { submitter: usize },
    Withdraw { submitter: usize, job: usize, is_late: bool },
    Advance { nanos: u64 },
    Take,
    Deliver { which: usize },
    Fetch { submitter: usize },
    Close,
}

fn op() -> impl Strategy<Value = PoolOp> {
    prop_oneof![
        12 => (0..SUBMITTERS, prop::bool::weighted(0.1)).prop_map(|(submitter, panics)| PoolOp::Submit { submitter, panics }),
        6 => (0..SUBMITTERS).prop_map(|submitter| PoolOp::Publish { submitter }),
        3 => (0..SUBMITTERS, 0_usize..12, prop::bool::ANY)
            .prop_map(|(submitter, job, is_late)| PoolOp::Withdraw { submitter, job, is_late }),
        6 => (1_u64..70).prop_map(|nanos| PoolOp::Advance { nanos }),
        8 => Just(PoolOp::Take),
        8 => (0..THREADS).prop_map(|which| PoolOp::Deliver { which }),
        8 => (0..SUBMITTERS).prop_map(|submitter| PoolOp::Fetch { submitter }),
        1 => prop::bool::weighted(0.05).prop_map(|close| if close { PoolOp::Close } else { PoolOp::Take }),
    ]
}

#[derive(Clone, Copy)]
struct ExpectedJob {
    ticket: u64,
    position: JobPosition,
    at: u64,
    panics: bool,
}

#[derive(Default)]
struct SubmitterModel {
    unpublished: VecDeque<ExpectedJob>,
    published: VecDeque<ExpectedJob>,
    results: VecDeque<JobCompletion<u64>>,
    accepted: Vec<JobPosition>,
    outstanding: usize,
}

proptest! {
    /// Rows 4.3, 4.12 and 4.26: order, both bounds, every outcome and every counter, step by step.
    #[test]
    fn the_pool_matches_its_model(queue_max in 1_usize..6, ops in prop::collection::vec(op(), 0..150)) {
        let (clock, manual_time) = Clock::manual();
        let wakes = (0..SUBMITTERS).map(|_| Arc::new(Wake::new(|| ()))).collect();
        let limits = PoolLimits {
            threads: THREADS,
            queue_max,
            age_max: Duration::from_nanos(AGE_MAX),
            ..PoolLimits::default()
        };
        let (pool, mut submitters) = Pool::<u64>::new(limits, clock, wakes);
        let outstanding_max = 2 * (queue_max + THREADS);

        let mut model: [SubmitterModel; SUBMITTERS] = Default::default();
        let mut busy = Vec::new();
        let (mut ticket, mut now, mut queued, mut closed) = (0_u64, 0_u64, 0_usize, false);
        let (mut rejected, mut done, mut panicked, mut expired, mut cancelled, mut waited) = (0, 0, 0, 0, 0, 0);
        // Upper bound of the withdrawn jobs still in the queue.
        let mut withdrawn = 0;

        for op in ops {
            match op {
                PoolOp::Submit { submitter, panics } => {
                    let outcome = submitters[submitter].submit(ticket, move |_| {
                        if panics { std::panic::resume_unwind(Box::new(())) } else { ticket * 3 }
                    });
                    let submitter = &mut model[submitter];
                    let has_room = queued < queue_max && submitter.outstanding < outstanding_max;
                    match outcome {
                        Ok(position) => {
                            prop_assert!(!closed && has_room);
                            submitter.accepted.push(position);
                            submitter.unpublished.push_back(ExpectedJob { ticket, position, at: now, panics });
                            submitter.outstanding += 1;
                            queued += 1;
                        }
                        Err(SubmitError::Closed(_)) => prop_assert!(closed),
                        Err(SubmitError::Full(_)) => {
                            // Withdrawn jobs that no worker has passed yet have as many slots of their own.
                            prop_assert!(!has_room || withdrawn >= queue_max);
                            rejected += 1;
                        }
                    }
                    ticket += 1;
                }
                PoolOp::Publish { submitter } => {
                    submitters[submitter].publish();
                    let SubmitterModel { unpublished, published, .. } = &mut model[submitter];
                    published.append(unpublished);
                }
                PoolOp::Withdraw { submitter, job, is_late } => {
                    let model = &mut model[submitter];
                    let Some(&position) = model.accepted.iter().rev().nth(job) else { continue };
                    let SubmitterModel { unpublished, published, .. } = model;
                    let waiting = unpublished.len() + published.len();
                    unpublished.retain(|job| job.position != position);
                    published.retain(|job| job.position != position);
                    let waits = unpublished.len() + published.len() < waiting;
                    prop_assert_eq!(submitters[submitter].is_waiting(position), waits);
                    prop_assert_eq!(submitters[submitter].withdraw(position, is_late), waits);
                    prop_assert!(!submitters[submitter].is_waiting(position));
                    if waits {
                        queued -= 1;
                        withdrawn += 1;
                        model.outstanding -= 1;
                        *if is_late { &mut expired } else { &mut cancelled } += 1;
                    }
                }
                PoolOp::Advance { nanos } => {
                    manual_time.advance(Duration::from_nanos(nanos));
                    now += nanos;
                }
                PoolOp::Take => {
                    if busy.len() == THREADS {
                        continue;
                    }
                    let oldest = (0..SUBMITTERS)
                        .filter_map(|submitter| Some((model[submitter].published.front()?.at, submitter)))
                        .min();
                    let taken = pool.take_job();
                    prop_assert_eq!(taken.is_some(), oldest.is_some());
                    if let (Some(running), Some((_, submitter))) = (taken, oldest) {
                        let job = model[submitter].published.pop_front().expect("it was the front");
                        prop_assert_eq!((running.submitter(), running.ticket()), (submitter, job.ticket));
                        queued -= 1;
                        waited += now - job.at;
                        let too_old = now - job.at > AGE_MAX;
                        busy.push((running, job, too_old));
                    }
                }
                PoolOp::Deliver { which } => {
                    if which >= busy.len() {
                        continue;
                    }
                    let (running, job, too_old) = busy.remove(which);
                    let submitter = running.submitter();
                    let outcome = match (too_old, job.panics) {
                        (true, _) => { expired += 1; JobResult::Expired }
                        (false, true) => { panicked += 1; JobResult::Panicked }
                        (false, false) => { done += 1; JobResult::Done(job.ticket * 3) }
                    };
                    running.run(&mut JobContext::simulated()).deliver();
                    model[submitter].results.push_back(JobCompletion { ticket: job.ticket, position: job.position, outcome });
                }
                PoolOp::Fetch { submitter } => {
                    let expected = model[submitter].results.pop_front();
                    prop_assert_eq!(submitters[submitter].next_result(), expected);
                    model[submitter].outstanding -= usize::from(expected.is_some());
                }
                PoolOp::Close => {
                    pool.close();
                    closed = true;
                }
            }
            let counters = pool.counters();
            prop_assert_eq!(counters.queued, queued as u64);
            prop_assert!(counters.queued <= counters.queued_max && counters.queued_max <= queue_max as u64);
            prop_assert_eq!(counters.busy, busy.len() as u64);
            prop_assert_eq!(counters.rejected, rejected);
            prop_assert_eq!((counters.done, counters.panicked, counters.expired), (done, panicked, expired));
            prop_assert_eq!(counters.cancelled, cancelled);
            prop_assert_eq!(counters.waited, Duration::from_nanos(waited));
            for (submitter, model) in submitters.iter().zip(&model) {
                prop_assert_eq!(submitter.outstanding(), model.outstanding);
                prop_assert_eq!(submitter.has_result(), !model.results.is_empty());
            }
        }
    }
}
