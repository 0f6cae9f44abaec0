//! Checks at the end of a world.

use std::time::Duration;

use stilling::parts::{CoapCounters, DatagramClass};
use stilling_engine::counters::EngineCounters;

use super::world::CoapWorld;
use super::{CoapReport, CoapSimShard};
use crate::report::RunReport;

/// Waits of a millisecond for the last connections to end.
const WAITS_MAX: u32 = 100_000;

/// Transmissions of a confirmable message at most, beside the acknowledgement of its request.
const TRANSMISSIONS_MAX: u64 = 5;

fn check(condition: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(why()) }
}

/// Lets everything end after the shard has stopped, and checks what remains.
pub(super) fn drain_and_check(mut shard: CoapSimShard, world: &mut CoapWorld) -> Result<CoapReport, String> {
    let network = world.network();
    network.stop_faults();
    let mut waits = 0;
    while shard.driver().tokens_in_use() > 0 {
        shard.turn(false).map_err(|error| error.to_string())?;
        world.step()?;
        network.advance_to(network.now().after(Duration::from_millis(1)));
        waits += 1;
        check(waits < WAITS_MAX, || format!("the shard has stopped, but not all: {}", world.unfinished()))?;
    }
    shard.audit()?;
    shard.driver().assert_drained();
    let (open, held) = (shard.open_connections(), shard.held_bytes());
    check(open == 0 && held == (0, 0), || format!("{open} slots in use, bytes held {held:?} at the end"))?;
    let overview = &world.parts.overview;
    let (coap, engine) = (&overview.coap[0], &overview.engines[0]);
    check_datagrams(coap, engine)?;
    check_requests(coap)?;
    // The requests of a drain that was cut off end with the shard.
    drop(shard);
    let requests = world.parts.slots.requests();
    check(requests.busy == 0, || format!("slots are in use: {requests:?}"))?;
    let mut totals = world.totals;
    totals.executions = world.ledger.executions();
    totals.versions = world.ledger.version();
    totals.duplicates = coap.datagrams(DatagramClass::Duplicate);
    totals.separate_responses = coap.separate_responses.get();
    totals.echo_required = coap.echo_required.get();
    totals.overloads = coap.no_worker.get() + coap.shed_unavailable.get() + coap.shed_too_many.get();
    totals.worker_failures = coap.worker_failures.get();
    totals.worker_timeouts = coap.worker_timeouts.get();
    Ok(CoapReport {
        report: RunReport {
            trace_hash: network.trace_hash(),
            faults: network.fault_counts(),
            until: network.now(),
        },
        totals,
        text: network.take_text(),
    })
}

/// Rows 1.14, 1.18: each datagram is in one class, and the datagrams that leave are bounded by those that arrive.
fn check_datagrams(coap: &CoapCounters, engine: &EngineCounters) -> Result<(), String> {
    let classes: u64 = DatagramClass::ALL.into_iter().map(|class| coap.datagrams(class)).sum();
    let received = engine.datagrams_received.get() - engine.datagrams_shed.get();
    check(classes == received, || format!("{received} datagrams received, {classes} in a class"))?;
    let sent = engine.datagrams_sent.get();
    let confirmable = coap.separate_responses.get() + coap.confirmable_notifications.get();
    let sent_max = received + TRANSMISSIONS_MAX * confirmable + coap.notifications.get();
    check(sent <= sent_max, || format!("{sent} datagrams sent, {sent_max} may be"))
}

/// Each forwarded request ended with one result, and nothing is pending.
fn check_requests(coap: &CoapCounters) -> Result<(), String> {
    let results = [
        &coap.worker.count,
        &coap.no_worker,
        &coap.worker_failures,
        &coap.worker_timeouts,
        &coap.responses_too_large,
    ];
    let results = results.map(stilling_engine::counters::Counter::get);
    let (forwarded, pending) = (coap.forwarded.get(), coap.pending.get());
    check(forwarded == results.iter().sum::<u64>() + pending, || {
        format!("{forwarded} requests forwarded, results {results:?}, {pending} pending")
    })
}
