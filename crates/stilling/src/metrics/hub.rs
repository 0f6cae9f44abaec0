//! Metrics of the hub, its streams and its ingress protocols; none without a hub.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use stilling_hub::{FeedTotals, HubCounters, Ingress, Loss, StreamCounters, SubscriberProtocol};

use super::{counter, counter_with_unit, gauge};
use crate::hub::HubHandleCounters;
use crate::overview::Overview;
use crate::rates::Flow;
use crate::volume_monitor::DiskUsage;

pub(super) fn encode(overview: &Overview, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Some(hub) = overview.hub.get() else { return Ok(()) };
    counter(to, "hub_messages", "Messages received by the hub", hub.messages.get())?;
    counter_with_unit(
        to,
        "hub_received",
        "Bytes of headers and payloads received by the hub",
        &Unit::Bytes,
        hub.bytes.get(),
    )?;
    counter(to, "hub_delivered", "Messages sent to subscriptions", hub.delivered())?;
    counter(
        to,
        "hub_publish_outcomes",
        "Acknowledgements and refusals to publishers",
        hub.publish_outcomes.get(),
    )?;
    counter(to, "hub_duplicates", "Messages already stored in their stream", hub.duplicates.get())?;
    let undelivered = hub.undelivered.get();
    counter(to, "hub_undelivered", "Messages without a stream or subscription", undelivered)?;
    let dropped = hub.log_lines_dropped.get();
    counter(to, "hub_log_lines_dropped", "Log lines dropped because the log is written too slowly", dropped)?;
    gauge(to, "hub_subscriptions", "Subscriptions now", hub.subscriptions())?;
    encode_feeds(hub, to)?;
    let registrations = hub.registrations.get();
    gauge(
        to,
        "hub_registrations",
        "Filters and queue members that I/O threads have registered",
        registrations,
    )?;
    let refused = hub.registrations_refused.get();
    counter(to, "hub_registrations_refused", "Registrations refused at capacity", refused)?;
    gauge(
        to,
        "hub_paused_connections",
        "Connections that are not read because their stream is full",
        hub.parked.get(),
    )?;
    let requests = hub.parked_requests.get();
    counter(to, "hub_delayed_requests", "Requests that waited for a full stream", requests)?;
    gauge(
        to,
        "hub_queued_bytes",
        "Bytes of deliveries queued for I/O threads that are behind",
        hub.queued.get(),
    )?;
    gauge(to, "hub_consumers", "Consumers now", hub.consumers.get())?;
    let catch_ups = hub.catch_ups.get();
    gauge(to, "hub_catch_ups", "Subscriptions over WebSocket and SSE that catch up now", catch_ups)?;
    let help =
        "Times that a subscription over WebSocket or SSE began to catch up because its client was too slow";
    counter(to, "hub_fallen_behind", help, hub.fallen_behind())?;
    encode_subscribers(overview, to)?;
    encode_queue(hub, to)?;
    encode_rates(overview, to)?;
    encode_losses(overview, to)?;
    encode_hub_handles(overview, to)?;
    encode_streams(&hub.streams, to)?;
    encode_volumes(overview, to)?;
    let (name, help) = ("hub_stream_message_ids", "Message ids in the de-duplication window");
    gauge_per_stream(&hub.streams, (name, help), |stream| stream.ids.get(), to)?;
    counters_per_stream(&hub.streams, to)?;
    encode_skipped(&hub.streams, to)
}

/// Feeds in sums: a client's subscriptions decide how many there are, so none has a label of its own.
fn encode_feeds(hub: &HubCounters, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let FeedTotals { feeds, sharers, held_size, encoded_size, sent_size } = hub.feeds();
    gauge(to, "hub_feeds", "Feeds now: one copy of each message for several subscriptions", feeds)?;
    gauge(to, "hub_feed_subscriptions", "Subscriptions that read a feed now", sharers)?;
    let help = "Memory for feeds, not counting messages longer than its largest block";
    gauge(to, "hub_feed_held_bytes", help, held_size)?;
    let help = "Bytes encoded for feeds, once for all subscriptions";
    counter_with_unit(to, "hub_feed_encoded", help, &Unit::Bytes, encoded_size)?;
    let help = "Bytes sent from feeds to subscriptions, the same bytes counted for each";
    counter_with_unit(to, "hub_feed_sent", help, &Unit::Bytes, sent_size)
}

/// The queue between the shards and the hub.
fn encode_queue(hub: &HubCounters, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    gauge(to, "hub_queue_length", "Requests that wait for the hub", hub.queue_length())?;
    let length_max = hub.queue_length_max.get();
    gauge(to, "hub_queue_length_max", "Most requests that waited for the hub at once", length_max)?;
    counter(to, "hub_requests", "Requests processed by the hub", hub.requests.get())?;
    let help = "Requests with a measured wait for the hub: those handed over at the end of a turn";
    counter(to, "hub_queue_timed_requests", help, hub.requests_timed.get())?;
    let help = "Time that these requests waited for the hub";
    let waited = ConstCounter::new(hub.queue_wait_ns.get() as f64 / 1e9);
    waited.encode(to.encode_descriptor(
        "hub_queue_wait",
        help,
        Some(&Unit::Seconds),
        waited.metric_type(),
    )?)?;
    let help = "Longest wait of a request for the hub";
    let longest = ConstGauge::new(hub.queue_wait_ns_max.get() as f64 / 1e9);
    let kind = longest.metric_type();
    longest.encode(to.encode_descriptor("hub_queue_wait_max", help, Some(&Unit::Seconds), kind)?)
}

/// Rates of messages received, delivered and judged by gates.
fn encode_rates(overview: &Overview, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let kind = ConstGauge::new(0_i64).metric_type();
    let help = "Messages in the best second since the start, by flow";
    let mut family = to.encode_descriptor("hub_per_second_max", help, None, kind)?;
    for flow in Flow::ALL {
        let peak = i64::try_from(overview.rates.flow(flow).peak).unwrap_or(i64::MAX);
        ConstGauge::new(peak).encode(family.encode_family(&[("flow", flow.name())])?)?;
    }
    let help = "Messages per second since the start without idle seconds, by flow";
    let mut family = to.encode_descriptor("hub_per_second_mean", help, None, kind)?;
    for flow in Flow::ALL {
        let mean = overview.rates.flow(flow).mean;
        ConstGauge::new(mean).encode(family.encode_family(&[("flow", flow.name())])?)?;
    }
    Ok(())
}

fn encode_streams(streams: &[StreamCounters], to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    type Gauge = fn(&StreamCounters) -> u64;
    let gauges: [(&str, &str, Gauge); 9] = [
        ("first_sequence", "First stored sequence", |stream| stream.first.get()),
        ("last_sequence", "Last assigned sequence", |stream| stream.last.get()),
        ("visible_sequence", "Last sequence visible to subscribers", |stream| stream.visible.get()),
        ("pending", "Messages that wait for the disk", |stream| stream.pending.get()),
        ("pending_max", "Most messages that waited for the disk at once", |stream| stream.pending_peak.get()),
        ("frozen", "1 for a stream that accepts nothing until the next start", |stream| stream.frozen.get()),
        ("closed", "1 for a stream that accepts nothing until its directory can be opened", |stream| {
            stream.closed.get()
        }),
        ("waiting", "1 for a stream that waits for room on its disk", |stream| stream.waiting.get()),
        ("gate_snapshot", "Last record in a durable snapshot of the gate's state", |stream| {
            stream.gate_snapshot.get()
        }),
    ];
    for (name, help, value_of) in gauges {
        gauge_per_stream(streams, (&format!("hub_stream_{name}"), help), value_of, to)?;
    }
    Ok(())
}

fn encode_skipped(streams: &[StreamCounters], to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Sequences that readers missed, by reason: records removed or damaged, or skipped for a slow subscriber";
    let kind = ConstCounter::new(0_u64).metric_type();
    let mut family = to.encode_descriptor("hub_stream_skipped", help, None, kind)?;
    for stream in streams {
        for (reason, count) in [
            ("removed", stream.skipped_removed.get()),
            ("damaged", stream.skipped_damaged.get()),
            ("slow", stream.skipped_slow.get()),
        ] {
            let labels = [("stream", stream.name.as_str()), ("reason", reason)];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// The last measured disk usage of streams; none before the first measurement.
fn encode_volumes(overview: &Overview, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    type UsageValue = fn(&DiskUsage) -> u64;
    let Some(hub) = overview.hub.get() else { return Ok(()) };
    let names = || hub.streams.iter().map(|stream| stream.name.as_str());
    let usages: Vec<_> = names().filter_map(|name| Some((name, overview.volumes.usage(name)?))).collect();
    let kind = ConstGauge::new(0_i64).metric_type();
    let gauges: [(&str, &str, UsageValue); 2] = [
        ("hub_stream_disk_bytes", "Bytes that the files of a stream occupy", |usage| usage.bytes),
        ("hub_stream_volume_free_bytes", "Bytes that are free on a stream's volume", |usage| usage.free),
    ];
    for (name, help, value_of) in gauges {
        let mut family = to.encode_descriptor(name, help, None, kind)?;
        for (stream, usage) in &usages {
            let value = ConstGauge::new(i64::try_from(value_of(usage)).unwrap_or(i64::MAX));
            value.encode(family.encode_family(&[("stream", *stream)])?)?;
        }
    }
    Ok(())
}

/// Exports all combinations of ingress and reason, so that rates are defined before the first loss.
fn encode_losses(overview: &Overview, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Some(hub) = overview.hub.get() else { return Ok(()) };
    let help = "Messages refused, shed or lost, by ingress and reason";
    let kind = ConstCounter::new(0_u64).metric_type();
    let mut family = to.encode_descriptor("hub_losses", help, None, kind)?;
    for ingress in Ingress::ALL {
        for loss in Loss::ALL {
            let labels = [("ingress", ingress.name()), ("reason", loss.name())];
            ConstCounter::new(hub.losses(ingress, loss)).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// Connections and messages of the protocols for subscribers beside NATS.
fn encode_subscribers(overview: &Overview, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Some(hub) = overview.hub.get() else { return Ok(()) };
    let handles = &overview.hub_handles;
    let sum = |value: fn(&HubHandleCounters) -> u64| handles.iter().map(|handle| value(handle)).sum::<u64>();
    let delivered = |protocol| hub.shards.iter().map(|shard| shard.delivered_by(protocol)).sum::<u64>();
    let protocols = [
        (
            "sse",
            sum(|handle| handle.sse.open()),
            sum(|handle| handle.sse.opened.get()),
            delivered(SubscriberProtocol::Sse),
        ),
        (
            "websocket",
            sum(|handle| handle.websocket.open()),
            sum(|handle| handle.websocket.opened.get()),
            delivered(SubscriberProtocol::WebSocket),
        ),
        (
            "coap",
            sum(|handle| handle.coap.open()),
            sum(|handle| handle.coap.opened.get()),
            delivered(SubscriberProtocol::Coap),
        ),
    ];
    let kind = ConstGauge::new(0_i64).metric_type();
    let mut family = to.encode_descriptor("hub_subscribers", "Subscribers now, by protocol", None, kind)?;
    for (protocol, open, ..) in protocols {
        let value = ConstGauge::new(i64::try_from(open).unwrap_or(i64::MAX));
        value.encode(family.encode_family(&[("protocol", protocol)])?)?;
    }
    let counter_kind = ConstCounter::new(0_u64).metric_type();
    let help = "Subscribers so far, by protocol";
    let mut family = to.encode_descriptor("hub_subscribers_opened", help, None, counter_kind)?;
    for (protocol, _, opened, _) in protocols {
        ConstCounter::new(opened).encode(family.encode_family(&[("protocol", protocol)])?)?;
    }
    let help = "Messages sent to subscribers, by protocol; also counted in hub_delivered";
    let mut family = to.encode_descriptor("hub_subscribers_delivered", help, None, counter_kind)?;
    for (protocol, .., sent) in protocols {
        ConstCounter::new(sent).encode(family.encode_family(&[("protocol", protocol)])?)?;
    }
    Ok(())
}

fn encode_hub_handles(overview: &Overview, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let handles = &overview.hub_handles;
    let sum = |which: fn(&HubHandleCounters) -> u64| handles.iter().map(|handle| which(handle)).sum();
    let slow = sum(|handle| handle.slow_consumers.get());
    counter(to, "hub_slow_consumers", "Clients disconnected as slow consumers", slow)?;
    let unauthorized = sum(|handle| handle.unauthorized.get());
    counter(to, "hub_unauthorized", "Clients refused for lack of credentials or permission", unauthorized)?;
    let invalid = sum(|handle| handle.publications_invalid.get());
    let help = "Publications over NATS that were dropped because of an invalid subject or reply subject";
    counter(to, "hub_publications_invalid", help, invalid)?;
    let undecoded = sum(|handle| handle.nats_undecoded.get());
    let help = "Undecoded input held for NATS clients over WebSocket";
    gauge(to, "hub_nats_undecoded_bytes", help, undecoded)?;
    let shed = sum(|handle| handle.publications_shed.get());
    counter(
        to,
        "hub_publications_shed",
        "Publications by HTTP shed because the hub had no room in time",
        shed,
    )?;
    let unanswered = sum(|handle| handle.publications_unanswered.get());
    let help = "Publications by HTTP not confirmed in time";
    counter(to, "hub_publications_unanswered", help, unanswered)
}

fn counters_per_stream(streams: &[StreamCounters], to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    type Count = fn(&StreamCounters) -> u64;
    let counts: [(&str, &str, Count); 12] = [
        ("accepted", "Messages accepted by the stream's gate", |stream| stream.accepted.get()),
        ("rejected", "Messages rejected by the stream's gate", |stream| stream.rejected.get()),
        ("gate_failures", "Panics and invalid decisions of the stream's gate", |stream| {
            stream.gate_failures.get()
        }),
        ("gate_snapshot_failures", "Snapshots of the gate's state that could not be written", |stream| {
            stream.gate_snapshot_failures.get()
        }),
        ("waits", "Times that the stream waited for room on its disk", |stream| stream.waits.get()),
        ("failed_writes", "Failed writes, retried in a new segment", |stream| stream.failed_writes.get()),
        ("slow_writes", "Writes that took longer than a second", |stream| stream.slow_writes.get()),
        ("damaged_records", "Damaged records, each counted once", |stream| stream.damaged.get()),
        (
            "torn_records",
            "Records possibly lost in last writes that a crash interrupted, each counted once",
            |stream| stream.torn.get(),
        ),
        ("read_failures", "Failed reads, to be retried", |stream| stream.read_failures.get()),
        ("retention_failures", "Retention passes that could not remove everything", |stream| {
            stream.retention_failures.get()
        }),
        ("message_ids_evicted", "Message ids evicted early from a full de-duplication window", |stream| {
            stream.ids_evicted.get()
        }),
    ];
    let kind = ConstCounter::new(0_u64).metric_type();
    for (name, help, count) in counts {
        let name = format!("hub_stream_{name}");
        let mut family = to.encode_descriptor(&name, help, None, kind)?;
        for stream in streams {
            let labels = [("stream", stream.name.as_str())];
            ConstCounter::new(count(stream)).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn gauge_per_stream(
    streams: &[StreamCounters],
    (name, help): (&str, &str),
    value: impl Fn(&StreamCounters) -> u64,
    to: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let kind = ConstGauge::new(0_i64).metric_type();
    let mut family = to.encode_descriptor(name, help, None, kind)?;
    for stream in streams {
        let value = ConstGauge::new(i64::try_from(value(stream)).unwrap_or(i64::MAX));
        value.encode(family.encode_family(&[("stream", stream.name.as_str())])?)?;
    }
    Ok(())
}
