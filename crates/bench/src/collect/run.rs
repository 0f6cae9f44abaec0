//! A run from plan to report: creates the stream, starts the threads, sums up, reads the server's figures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::api::JetStreamApi;
use super::collect_run::CollectRun;
use super::connection::connect;
use super::error::CollectError;
use super::limits::{ANSWER_TIME_MAX, CHECK_INTERVAL, CONNECT_PAUSE};
use super::monitor::CounterSource;
use super::plan::{CollectPlan, CollectProtocol};
use super::received_file;
use super::report::{CollectFindings, CollectRunReport};
use super::subscriber::SubscriberConnection;
use super::tally::{CollectTally, MessageFailure};
use super::{per_message, publisher};
use crate::statistics::process_cpu;

/// Waits until the server accepts connections, so that the start order does not matter.
fn wait_for_server(plan: &CollectPlan, stop: &AtomicBool) -> Result<(), CollectError> {
    let begun = Instant::now();
    loop {
        match connect(plan.to, plan.timeout) {
            Ok(_) => return Ok(()),
            Err(error) if begun.elapsed() >= plan.wait || stop.load(Ordering::Relaxed) => {
                return Err(CollectError::Connect(plan.to, error));
            }
            Err(_) => thread::sleep(CONNECT_PAUSE),
        }
    }
}

/// Executes a plan.
///
/// # Errors
/// The plan contradicts itself, the server is unreachable, or it does not create the stream. Later failures are in the
/// report.
pub fn run(plan: &CollectPlan) -> Result<CollectRunReport, CollectError> {
    run_until(plan, &Arc::default())
}

/// Executes a plan. When `stop` is set, no more messages start, those in flight finish, and the report covers the
/// messages so far.
///
/// # Errors
/// As [`run`].
pub fn run_until(plan: &CollectPlan, stop: &Arc<AtomicBool>) -> Result<CollectRunReport, CollectError> {
    plan.check()?;
    wait_for_server(plan, stop)?;
    let mut api = match (plan.protocol, &plan.stream) {
        (CollectProtocol::Nats, Some(_)) => Some(JetStreamApi::connect(plan.to, ANSWER_TIME_MAX)?),
        _ => None,
    };
    if let (Some(api), Some(storage), Some(name)) = (&mut api, plan.make_stream, &plan.stream) {
        api.make_stream(name, &format!("{}.>", plan.subject), storage)?;
    }
    // A server without stream requests is measured, too.
    let mut last_sequence = || {
        let (api, name) = (api.as_mut()?, plan.stream.as_deref()?);
        Some(api.stream_state(name).ok()?.last)
    };
    let before = last_sequence();
    let read_counters = || plan.monitor.as_ref().map(CounterSource::read_counters).transpose();
    let server_before = read_counters();
    let run = CollectRun::until(plan.clone(), Arc::clone(stop));
    let cpu_before = process_cpu();
    let mut tally = load(&run)?;
    let cpu = process_cpu().saturating_sub(cpu_before);
    let stored = before.map(|before| wait_until_stored(&run, before, &mut last_sequence, &mut tally));
    let stored = match &plan.received_file {
        Some(path) => Some(received_file::count_received_lines(&run, path, &mut tally)?),
        None => stored,
    };
    let stored_after = Duration::from_nanos(run.now().saturating_sub(tally.written_ns));
    let read = (plan.subscribers > 0).then(|| tally.deliveries / u64::from(plan.subscribers));
    let server = server_before
        .and_then(|before| Ok(read_counters()?.zip(before).map(|(now, before)| now.since(&before))));
    Ok(CollectRunReport::new(plan, &tally, CollectFindings { stored, stored_after, read, server }, cpu))
}

fn load(run: &CollectRun) -> Result<CollectTally, CollectError> {
    let plan = &run.plan;
    let subscribers: Result<Vec<_>, _> =
        (0..plan.subscribers).map(|number| SubscriberConnection::open(run, number.into())).collect();
    let subscribers = subscribers?;
    let threads = plan.publishing_threads();
    let first = |thread: u16| (u32::from(plan.clients) * u32::from(thread) / u32::from(threads)) as u16;
    thread::scope(|scope| {
        let mut all: Vec<ScopedJoinHandle<'_, CollectTally>> = Vec::new();
        // The barrier waits for a fixed number of threads, so all or none must start.
        for subscriber in subscribers {
            all.push(scope.spawn(move || subscriber.drive(run)));
        }
        for thread in 0..threads {
            let clients = first(thread)..first(thread + 1);
            all.push(scope.spawn(move || match plan.per_message {
                true => per_message::drive(run, clients.start),
                false => publisher::drive(run, clients),
            }));
        }
        let mut sum = CollectTally::new();
        for thread in all {
            let ended = thread.join();
            sum.absorb(
                ended.map_err(|_| CollectError::Local("a thread of the generator panicked".to_owned()))?,
            );
        }
        Ok(sum)
    })
}

/// Waits until the stream has grown by all sent messages, or stops growing; returns the growth.
fn wait_until_stored(
    run: &CollectRun,
    before: u64,
    last_sequence: &mut impl FnMut() -> Option<u64>,
    tally: &mut CollectTally,
) -> u64 {
    let mut arrived = 0;
    let mut since = Instant::now();
    loop {
        let Some(last) = last_sequence() else {
            tally.fault(MessageFailure::Protocol, 1, || {
                "the stream's state could not be read at the end".to_owned()
            });
            return arrived;
        };
        let growth = last.saturating_sub(before);
        if growth > arrived {
            (arrived, since) = (growth, Instant::now());
            if !run.plan.confirmed {
                tally.last_ns = tally.last_ns.max(run.now());
            }
        }
        if arrived >= tally.sends || since.elapsed() >= run.plan.timeout {
            return arrived;
        }
        thread::sleep(CHECK_INTERVAL);
    }
}
