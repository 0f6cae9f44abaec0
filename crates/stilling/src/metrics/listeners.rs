//! Metrics of TCP listeners: SYN floods, SYN cookies, accept queues.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{counter, family, gauge};
use crate::listener_monitor::{ListenerFigures, ListenerMonitor};

pub(super) fn encode(listen: &ListenerMonitor, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let counters = listen.counters();
    gauge(to, "syn_flood", "1 during a SYN flood in the network namespace", counters.is_flooded.get())?;
    counter(to, "syn_floods", "SYN floods detected", counters.floods.get())?;
    let cookies = [
        ("sent", counters.cookies_sent.get()),
        ("returned", counters.cookies_returned.get()),
        ("failed", counters.cookies_failed.get()),
    ];
    let help = "SYN cookies in the network namespace since the start, by event";
    family(to, "syn_cookies", help, "event", cookies)?;
    let drops = [
        ("queue_full", counters.overflows.get()),
        ("other", counters.drops.get().saturating_sub(counters.overflows.get())),
    ];
    let help = "Connection requests and connections dropped by listeners in the network namespace since the start, by reason";
    family(to, "listen_dropped", help, "reason", drops)?;
    let changes = [("raised", counters.raises.get()), ("lowered", counters.lowers.get())];
    family(
        to,
        "listen_backlog_changes",
        "Backlogs changed by the server, by direction",
        "direction",
        changes,
    )?;
    let help = "Samples of the listeners' queues and the system's counters";
    counter(to, "listen_samples", help, counters.samples.get())?;
    encode_queues(listen, to)
}

/// By address.
fn encode_queues(listen: &ListenerMonitor, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    if listen.figures().next().is_none() {
        return Ok(());
    }
    type Figure = fn(&ListenerFigures<'_>) -> u64;
    let gauges: [(&str, &str, Figure); 3] = [
        ("listen_queue", "Connections that wait to be accepted now, by listener", |of| of.queue),
        ("listen_queue_max", "Most connections that waited at once in one queue, by listener", |of| {
            of.queue_max
        }),
        ("listen_backlog", "Backlog now, the smallest of all sockets, by listener", |of| of.backlog),
    ];
    for (name, help, value) in gauges {
        let kind = ConstGauge::new(0_i64).metric_type();
        let mut family = to.encode_descriptor(name, help, None, kind)?;
        for of in listen.figures() {
            let value = ConstGauge::new(i64::try_from(value(&of)).unwrap_or(i64::MAX));
            value.encode(family.encode_family(&[("listener", of.url)])?)?;
        }
    }
    let kind = ConstCounter::new(0_u64).metric_type();
    let help = "Connection requests and connections dropped, by listener";
    let mut drops = to.encode_descriptor("listener_dropped", help, None, kind)?;
    for of in listen.figures() {
        ConstCounter::new(of.drops).encode(drops.encode_family(&[("listener", of.url)])?)?;
    }
    Ok(())
}
