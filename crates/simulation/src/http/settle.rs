//! The reckoning at the end of a world: what must be back, free, counted and answered.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use stilling_engine::CloseReason;

use super::outside::Outside;
use super::{HttpReport, SimShard};
use crate::report::Report;

/// How often the last things are waited for, a millisecond each.
const WAITS_MAX: u32 = 60_000;

fn check(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

/// Lets what is under way end, then checks everything.
pub(super) fn settle(mut first: SimShard, outside: &Rc<RefCell<Outside>>) -> Result<HttpReport, String> {
    let network = outside.borrow().network();
    network.stop_faults();
    let mut waits = 0;
    loop {
        first.turn(false).map_err(|error| error.to_string())?;
        let mut outside = outside.borrow_mut();
        outside.after_turn()?;
        let second = outside.second.as_mut();
        let tokens = second
            .map_or(0, |shard| if shard.is_stopped() { shard.driver().tokens_in_use() } else { usize::MAX });
        if first.driver().tokens_in_use() == 0 && tokens == 0 && outside.is_done() {
            break;
        }
        if let Some(second) = outside.second.as_mut() {
            second.turn(false).map_err(|error| error.to_string())?;
        }
        network.advance_to(network.now().after(Duration::from_millis(1)));
        waits += 1;
        check(waits < WAITS_MAX, || {
            let (pool, left) = (outside.pool.counters(), outside.unfinished());
            format!("the server has stopped, but not everything has ended: {pool:?}, {left}")
        })?;
    }
    let mut outside = outside.borrow_mut();
    check_shard(&mut first)?;
    if let Some(second) = &mut outside.second {
        check_shard(second)?;
    }
    check_jobs(&outside)?;
    let held: u64 = outside.overview.http.iter().map(|counters| counters.requests_held()).sum();
    check(held == 0, || format!("{held} bytes of requests are held at the end"))?;
    let overview = &outside.overview;
    let closed: BTreeMap<CloseReason, u64> = CloseReason::ALL
        .into_iter()
        .map(|reason| (reason, overview.engine(|counters| counters.closed(reason))))
        .collect();
    let (styles, manners) = outside.styles();
    Ok(HttpReport {
        report: Report {
            trace_hash: network.trace_hash(),
            faults: network.fault_counts(),
            until: network.now(),
        },
        styles,
        manners,
        closed,
        answers: outside.answers,
        retries: outside.retries,
        broken: outside.broken,
        heard: outside.board.heard,
        audited: outside.board.audited,
        text: network.take_text(),
    })
}

/// Every connection has ended with one reason, and nothing of it is left.
fn check_shard(shard: &mut SimShard) -> Result<(), String> {
    shard.audit()?;
    shard.driver().assert_drained();
    let (open, held) = (shard.open(), shard.held());
    check(open == 0 && held == (0, 0), || format!("{open} slots in use, bytes held {held:?} at the end"))?;
    let counters = shard.counters();
    let (accepted, closed) = (counters.accepted.get(), counters.closed_total());
    let refused = counters.refused_full.get();
    check(accepted == closed + refused, || {
        format!("{accepted} connections accepted, {closed} closed with a reason, {refused} refused")
    })
}

/// Every job that was accepted was answered or cancelled once, and never more than the limit waited.
fn check_jobs(outside: &Outside) -> Result<(), String> {
    let overview = &outside.overview;
    let pool = outside.pool.counters();
    let submitted =
        overview.http(|counters| &counters.jobs) - overview.http(|counters| &counters.jobs_refused);
    let answered = pool.done + pool.expired + pool.panicked + pool.cancelled;
    check(submitted == answered && pool.busy == 0, || {
        format!("{submitted} jobs accepted, {answered} answered: {pool:?}")
    })?;
    let threads_max = outside.threads_max() as u64;
    check((1..=threads_max).contains(&pool.threads) || pool.threads == threads_max, || {
        format!("{} worker threads at the end, {threads_max} may be", pool.threads)
    })?;
    check(pool.queued_max <= outside.queue_max() as u64, || {
        format!("{} jobs waited, {} may", pool.queued_max, outside.queue_max())
    })?;
    let late = overview.http(|counters| &counters.late_results);
    let given_up =
        overview.http(|counters| &counters.jobs_expired) + overview.http(|counters| &counters.jobs_overdue);
    check(late <= given_up, || format!("{late} answers came late, but only {given_up} jobs were given up"))
}
