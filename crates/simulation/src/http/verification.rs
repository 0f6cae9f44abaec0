//! Checks at the end of a world: everything returned, free, counted and answered.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use stilling_engine::CloseReason;

use super::http_world::HttpWorld;
use super::{HttpReport, HttpSimShard};
use crate::report::RunReport;

/// Waits for remaining work, of one millisecond each.
const WAITS_MAX: u32 = 60_000;

fn check(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

pub(super) fn drain_and_check(
    mut first: HttpSimShard,
    http_world: &Rc<RefCell<HttpWorld>>,
) -> Result<HttpReport, String> {
    let network = http_world.borrow().network();
    network.stop_faults();
    let mut waits = 0;
    loop {
        first.turn(false).map_err(|error| error.to_string())?;
        let mut http_world = http_world.borrow_mut();
        http_world.after_turn()?;
        let second = http_world.second.as_mut();
        let tokens = second
            .map_or(0, |shard| if shard.is_stopped() { shard.driver().tokens_in_use() } else { usize::MAX });
        if first.driver().tokens_in_use() == 0 && tokens == 0 && http_world.is_done() {
            break;
        }
        if let Some(second) = http_world.second.as_mut() {
            second.turn(false).map_err(|error| error.to_string())?;
        }
        network.advance_to(network.now().after(Duration::from_millis(1)));
        waits += 1;
        check(waits < WAITS_MAX, || {
            let (pool, unfinished) = (http_world.pool.counters(), http_world.unfinished());
            format!("the server has stopped, but not everything has ended: {pool:?}, {unfinished}")
        })?;
    }
    let mut http_world = http_world.borrow_mut();
    check_shard(&mut first)?;
    if let Some(second) = &mut http_world.second {
        check_shard(second)?;
    }
    check_jobs(&http_world)?;
    let held_bytes: u64 = http_world.overview.http.iter().map(|counters| counters.requests_held()).sum();
    check(held_bytes == 0, || format!("{held_bytes} bytes of requests are held at the end"))?;
    let overview = &http_world.overview;
    let closed: BTreeMap<CloseReason, u64> = CloseReason::ALL
        .into_iter()
        .map(|reason| (reason, overview.engine(|counters| counters.closed(reason))))
        .collect();
    let (styles, hostile_styles) = http_world.styles();
    Ok(HttpReport {
        report: RunReport {
            trace_hash: network.trace_hash(),
            faults: network.fault_counts(),
            until: network.now(),
        },
        styles,
        hostile_styles,
        closed,
        answers: http_world.answers,
        retries: http_world.retries,
        broken: http_world.broken,
        messages_received: http_world.nats_tally.messages_received,
        records_audited: http_world.nats_tally.records_audited,
        text: network.take_text(),
    })
}

/// Checks that every connection ended with one reason and the shard holds nothing.
fn check_shard(shard: &mut HttpSimShard) -> Result<(), String> {
    shard.audit()?;
    shard.driver().assert_drained();
    let (open, held_bytes) = (shard.open_connections(), shard.held_bytes());
    check(open == 0 && held_bytes == (0, 0), || {
        format!("{open} slots in use, bytes held {held_bytes:?} at the end")
    })?;
    let counters = shard.counters();
    let (accepted, closed) = (counters.accepted.get(), counters.closed_total());
    let refused = counters.refused_full.get();
    check(accepted == closed + refused, || {
        format!("{accepted} connections accepted, {closed} closed with a reason, {refused} refused")
    })
}

/// Checks that every accepted job was answered or cancelled once, and that the queue never exceeded its limit.
fn check_jobs(http_world: &HttpWorld) -> Result<(), String> {
    let overview = &http_world.overview;
    let pool = http_world.pool.counters();
    let submitted =
        overview.http(|counters| &counters.jobs) - overview.http(|counters| &counters.jobs_refused);
    let answered = pool.done + pool.expired + pool.panicked + pool.cancelled;
    check(submitted == answered && pool.busy == 0, || {
        format!("{submitted} jobs accepted, {answered} answered: {pool:?}")
    })?;
    let threads_max = http_world.threads_max() as u64;
    check((1..=threads_max).contains(&pool.threads) || pool.threads == threads_max, || {
        format!("{} worker threads at the end, at most {threads_max} allowed", pool.threads)
    })?;
    check(pool.queued_max <= http_world.queue_max() as u64, || {
        format!("{} jobs waited, {} may", pool.queued_max, http_world.queue_max())
    })?;
    let late = overview.http(|counters| &counters.late_results);
    let given_up =
        overview.http(|counters| &counters.jobs_expired) + overview.http(|counters| &counters.jobs_overdue);
    check(late <= given_up, || format!("{late} answers came late, but only {given_up} jobs were given up"))
}
