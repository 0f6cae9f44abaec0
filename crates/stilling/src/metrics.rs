//! The metrics in OpenMetrics text form (<https://prometheus.io/docs/specs/om/open_metrics_spec/>) and in the text
//! format of Prometheus.

mod hub;
mod listeners;
mod text_format;

use std::fmt;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use stilling_engine::{CloseReason, DatagramDropReason};
use stilling_workers::processes::ProcessCounters;

use crate::coap::DatagramClass;
use crate::http::Status;
use crate::overview::Overview;

/// A text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricsFormat {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// The text format of Prometheus, version 0.0.4.
    Text,
}

impl MetricsFormat {
    /// The media type of the format.
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            MetricsFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            MetricsFormat::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// All metrics as OpenMetrics text.
pub fn render(overview: &Arc<Overview>) -> String {
    render_as(MetricsFormat::OpenMetrics, overview)
}

/// All metrics in a format.
pub(crate) fn render_as(format: MetricsFormat, overview: &Arc<Overview>) -> String {
    overview.volumes.request_measurement();
    let mut registry = Registry::with_prefix("stilling");
    registry.register_collector(Box::new(OverviewCollector(Arc::clone(overview))));
    let mut out = String::with_capacity(8 * 1024);
    // Writing to a string does not fail.
    let _ = text::encode(&mut out, &registry);
    match format {
        MetricsFormat::OpenMetrics => out,
        MetricsFormat::Text => text_format::from_openmetrics(&out),
    }
}

#[derive(Debug)]
struct OverviewCollector(Arc<Overview>);

impl Collector for OverviewCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let to = &mut encoder;
        self.encode_driver(to)?;
        self.encode_start(to)?;
        self.encode_connections(to)?;
        listeners::encode(&self.0.listen, to)?;
        self.encode_traffic(to)?;
        self.encode_event_loops(to)?;
        self.encode_answers(to)?;
        self.encode_http_memory(to)?;
        self.encode_jobs(to)?;
        self.encode_app(to)?;
        self.encode_coap(to)?;
        self.encode_packet_log(to)?;
        hub::encode(&self.0, to)
    }
}

impl OverviewCollector {
    fn encode_connections(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let overview = &*self.0;
        gauge(to, "connections", "Connections open now", overview.engine(|c| &c.open))?;
        gauge(to, "connections_max", "Most connections open at once in a shard", self.largest_open())?;
        self.encode_accepted(to)?;
        counter(to, "connected", "Connections opened by this side", overview.engine(|c| &c.connected))?;
        counter(
            to,
            "adopted",
            "Connections opened outside the shards and attached to one",
            overview.engine(|c| &c.adopted),
        )?;
        self.encode_closed(to)?;
        self.encode_refused(to)?;
        counter(to, "accept_pauses", "Pauses of accepting at capacity", overview.engine(|c| &c.gate_closed))?;
        counter(
            to,
            "accept_errors",
            "Pauses of accepting after an error",
            overview.engine(|c| &c.accept_errors),
        )
    }

    /// Bytes and datagrams of all protocols.
    fn encode_traffic(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let overview = &*self.0;
        let received = overview.engine(|c| &c.received_bytes);
        let help = "Bytes received, from clients and from worker processes";
        counter_with_unit(to, "received", help, &Unit::Bytes, received)?;
        let help = "Bytes sent, to clients and to worker processes";
        counter_with_unit(to, "sent", help, &Unit::Bytes, overview.engine(|c| &c.sent_bytes))?;
        let received = overview.engine(|c| &c.datagrams_received);
        counter(to, "datagrams_received", "Datagrams received", received)?;
        let missed = overview.engine(|c| &c.datagrams_dropped_by_kernel);
        let help =
            "Datagrams that the kernel dropped before they were received, as the receive buffer was full";
        counter(to, "datagrams_dropped_by_kernel", help, missed)?;
        let help = "Datagrams that wait for a protocol that paces them";
        gauge(to, "datagrams_waiting", help, overview.engine(|c| &c.datagrams_waiting))?;
        let most = overview.engines.iter().map(|c| c.datagrams_waiting_max.get()).max().unwrap_or(0);
        gauge(to, "datagrams_waiting_max", "Most datagrams that waited at once in a shard", most)?;
        let help = "Waiting datagrams that were dropped because too many waited";
        counter(to, "datagrams_shed", help, overview.engine(|c| &c.datagrams_shed))?;
        let help = "Receive buffer of the UDP sockets of a listener, as granted by the system";
        let kind = ConstGauge::new(0_i64).metric_type();
        if !overview.receive_buffers.is_empty() {
            let mut buffers =
                to.encode_descriptor("datagram_receive_buffer", help, Some(&Unit::Bytes), kind)?;
            for (listener, size) in &overview.receive_buffers {
                let size = ConstGauge::new(i64::try_from(*size).unwrap_or(i64::MAX));
                size.encode(buffers.encode_family(&[("listener", listener.as_str())])?)?;
            }
        }
        counter(to, "datagrams_sent", "Datagrams to be sent", overview.engine(|c| &c.datagrams_sent))?;
        let dropped = DatagramDropReason::ALL
            .map(|reason| (reason.name(), overview.engine(|c| c.datagrams_dropped(reason))));
        family(to, "datagrams_dropped", "Datagrams that were not sent, by reason", "reason", dropped)?;
        counter(
            to,
            "blocked_sends",
            "Sends that the kernel accepted only in part",
            overview.engine(|c| &c.blocked_sends),
        )
    }

    fn encode_coap(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let overview = &*self.0;
        let datagrams = DatagramClass::ALL
            .map(|class| (class.name(), overview.coap(|counters| counters.datagrams(class))));
        family(to, "coap_datagrams", "CoAP datagrams received, by class", "class", datagrams)?;
        let help = "Requests that would be recognised as duplicates now";
        gauge(to, "coap_exchanges", help, overview.coap(|c| c.exchanges.get()))?;
        let help = "Requests forgotten before their lifetime because the table was full";
        counter(to, "coap_exchanges_evicted", help, overview.coap(|c| c.exchanges_evicted.get()))?;
        let help = "Requests with an unknown critical option";
        counter(to, "coap_bad_options", help, overview.coap(|c| c.bad_options.get()))?;
        let help = "Requests that wait for their answers now";
        gauge(to, "coap_pending", help, overview.coap(|c| c.pending.get()))?;
        let help = "Request bodies now of which blocks are still to come";
        gauge(to, "coap_incomplete_bodies", help, overview.coap(|c| c.assemblies.get()))?;
        let help = "Requests acknowledged before their answers";
        counter(to, "coap_separate_responses", help, overview.coap(|c| c.separate_responses.get()))?;
        let help = "Requests answered 5.03 because a table was full";
        counter(to, "coap_refused_full", help, overview.coap(|c| c.refused_full.get()))?;
        let help = "Confirmable messages that wait for their acknowledgements now";
        gauge(to, "coap_transmissions", help, overview.coap(|c| c.transmissions.get()))?;
        let help = "Confirmable messages that no retransmission got an acknowledgement for";
        let timed_out = overview.coap(|c| c.transmissions_timed_out.get());
        counter(to, "coap_transmissions_timed_out", help, timed_out)?;
        let help = "Messages sent as non-confirmable ones for lack of room among confirmable ones";
        let refused = overview.coap(|c| c.transmissions_refused.get());
        counter(to, "coap_transmissions_refused", help, refused)?;
        let help = "Replies beyond what an address without proof may get, within the budget for them";
        counter(to, "coap_unproven_replies", help, overview.coap(|c| c.unproven_replies.get()))?;
        let help = "Answers withheld because they exceed what an address without proof may get";
        let limited = overview.coap(|c| c.amplification_limited.get());
        counter(to, "coap_amplification_limited", help, limited)?;
        let help = "Requests answered 4.01 with an Echo value";
        counter(to, "coap_echo_required", help, overview.coap(|c| c.echo_required.get()))?;
        let stages = overview.coap_stages();
        let help = "Time that CoAP datagrams spent in a stage, of those that were measured";
        let kind = ConstCounter::new(0.0).metric_type();
        let mut times = to.encode_descriptor("coap_stage", help, Some(&Unit::Seconds), kind)?;
        for (stage, time, _) in stages {
            ConstCounter::new(time.as_secs_f64()).encode(times.encode_family(&[("stage", stage)])?)?;
        }
        let help = "CoAP datagrams measured in a stage";
        let counts = stages.map(|(stage, _, count)| (stage, count));
        family(to, "coap_stage_datagrams", help, "stage", counts)?;
        self.encode_coap_observers(to)?;
        self.encode_coap_workers(to)
    }

    /// Metrics of the packet log, if there is one.
    fn encode_packet_log(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(log) = &self.0.packet_log else { return Ok(()) };
        let (recorded, dropped) = (log.sum(|c| &c.recorded), log.sum(|c| &c.dropped));
        counter(to, "packet_log_recorded", "Datagrams passed to the packet log", recorded)?;
        let lost = [("busy", dropped), ("error", log.discarded.get())];
        let help = "Datagrams that are missing in the packet log, by reason";
        family(to, "packet_log_lost", help, "reason", lost)?;
        let help = "Bytes written by the packet log";
        counter_with_unit(to, "packet_log_written", help, &Unit::Bytes, log.written.get())?;
        counter(to, "packet_log_files", "Files begun by the packet log", log.files.get())?;
        counter(to, "packet_log_errors", "Errors of the packet log's files", log.errors.get())
    }

    /// Observers of CoAP resources and their notifications.
    fn encode_coap_observers(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let overview = &*self.0;
        let help = "Observers of CoAP resources now";
        gauge(to, "coap_observers", help, overview.coap(|c| c.observers.get()))?;
        let help = "Observed CoAP resources now, summed over shards";
        gauge(to, "coap_observed_resources", help, overview.coap(|c| c.observed_resources.get()))?;
        let help = "Requests to observe answered without observation for lack of room";
        counter(to, "coap_observers_refused", help, overview.coap(|c| c.observers_refused.get()))?;
        let ended = [
            ("reset", overview.coap(|c| c.observers_reset.get())),
            ("gone", overview.coap(|c| c.observers_gone.get())),
        ];
        let help = "Observers ended by the server, by reason";
        family(to, "coap_observers_ended", help, "reason", ended)?;
        let sent = [
            ("confirmable", overview.coap(|c| c.confirmable_notifications.get())),
            ("non_confirmable", overview.coap(|c| c.notifications.get())),
        ];
        family(to, "coap_notifications", "Notifications of observers, by type", "type", sent)?;
        let help = "Messages not stored as states for CoAP observers: too long, or without room";
        counter(to, "coap_states_dropped", help, overview.coap(|c| c.states_dropped.get()))?;
        let help = "CoAP requests answered 5.04 because a stream did not return its newest record in time";
        counter(to, "coap_states_late", help, overview.coap(|c| c.states_late.get()))?;
        let help = "CoAP requests for streams from addresses without access";
        counter(to, "coap_bridge_forbidden", help, overview.coap(|c| c.bridge_forbidden.get()))
    }

    /// CoAP requests at worker processes.
    fn encode_coap_workers(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let overview = &*self.0;
        let help = "CoAP requests forwarded to worker processes";
        counter(to, "coap_forwarded", help, overview.coap(|c| c.forwarded.get()))?;
        let help = "Forwarded CoAP requests answered 5.03 because no worker was free in time";
        counter(to, "coap_no_worker", help, overview.coap(|c| c.no_worker.get()))?;
        let failures = [
            ("failed", overview.coap(|c| c.worker_failures.get())),
            ("timeout", overview.coap(|c| c.worker_timeouts.get())),
            ("too_large", overview.coap(|c| c.responses_too_large.get())),
        ];
        let help = "Forwarded CoAP requests without a usable response, by reason";
        family(to, "coap_worker_failures", help, "reason", failures)?;
        let shed = [
            ("unavailable", overview.coap(|c| c.shed_unavailable.get())),
            ("too_many", overview.coap(|c| c.shed_too_many.get())),
            ("silent", overview.coap(|c| c.shed_silently.get())),
        ];
        let help = "New CoAP requests shed because a pool of worker processes is overloaded, by reply";
        family(to, "coap_shed", help, "reply", shed)?;
        let help = "Pools of which a shard sheds new CoAP requests now, summed over shards";
        gauge(to, "coap_overloaded_pools", help, overview.coap(|c| c.overloaded_pools.get()))
    }

    /// Memory and activity of the shards and their drivers.
    fn encode_event_loops(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let overview = &*self.0;
        counter(
            to,
            "parked",
            "Idle connections parked: a wait for readability replaces their receive",
            overview.engine(|c| &c.parked),
        )?;
        gauge(to, "input_held_bytes", "Unfinished input held", overview.engine(|c| &c.input_held))?;
        gauge(to, "output_held_bytes", "Unsent output held", overview.engine(|c| &c.output_held))?;
        counter(to, "turns", "Iterations of the event loops", overview.engine(|c| &c.turns))?;
        counter(
            to,
            "driver_system_calls",
            "System calls of the drivers",
            overview.engine(|c| &c.system_calls),
        )?;
        counter(
            to,
            "driver_buffer_waits",
            "Receives that waited for a buffer",
            overview.engine(|c| &c.starved),
        )?;
        counter(
            to,
            "driver_stale_completions",
            "Completions for a closed connection",
            overview.engine(|c| &c.stale),
        )?;
        counter(to, "driver_overflows", "Completion queue overflows", overview.engine(|c| &c.overflows))
    }

    /// Memory of requests and responses, and refusals for lack of it.
    fn encode_http_memory(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let overview = &*self.0;
        let held = overview.http.iter().map(|counters| counters.requests_held()).sum();
        let help = "Requests that wait for bodies, workers or worker processes";
        gauge(to, "http_requests_held_bytes", help, held)?;
        let shed = overview.http(|c| &c.requests_shed);
        counter(to, "http_requests_shed", "Requests refused for lack of memory", shed)?;
        let held = overview.http.iter().map(|counters| counters.responses_held()).sum();
        let help = "Responses of handlers and worker processes that wait for slow clients";
        gauge(to, "http_responses_held_bytes", help, held)?;
        let delegated = overview.http.iter().map(|counters| counters.delegated()).sum();
        gauge(to, "http_delegated", "Connections that hold a worker now, or wait for one", delegated)?;
        let shed = overview.http(|c| &c.responses_shed);
        counter(to, "http_responses_shed", "Requests refused for lack of memory for responses", shed)?;
        let panics = overview.http(|c| &c.handler_panics);
        counter(to, "http_handler_panics", "Handlers that panicked in a shard", panics)
    }

    fn largest_open(&self) -> u64 {
        self.0.engines.iter().map(|counters| counters.open_max.get()).max().unwrap_or(0)
    }

    fn encode_driver(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let fallback = self.0.driver_fallback.as_deref().unwrap_or("");
        let labels = [("driver", self.0.driver.as_str()), ("fallback", fallback)];
        let one = ConstGauge::new(1_i64);
        let mut family = to.encode_descriptor(
            "driver",
            "The driver in use, and why not another",
            None,
            one.metric_type(),
        )?;
        one.encode(family.encode_family(&labels)?)
    }

    /// The start time, as Prometheus clients report it for processes; the uptime is the difference to now.
    fn encode_start(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let started = self.0.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let gauge = ConstGauge::new(started.as_secs_f64());
        let help = "Unix time of the server's start";
        gauge.encode(to.encode_descriptor("start_time", help, Some(&Unit::Seconds), gauge.metric_type())?)
    }

    /// By shard, to show whether the system spreads connections evenly.
    fn encode_accepted(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let kind = ConstCounter::new(0_u64).metric_type();
        let mut family = to.encode_descriptor("accepted", "Connections accepted, by shard", None, kind)?;
        for (shard, counters) in self.0.engines.iter().enumerate() {
            ConstCounter::new(counters.accepted.get()).encode(family.encode_family(&[("shard", shard)])?)?;
        }
        Ok(())
    }

    fn encode_closed(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        family(
            to,
            "closed",
            "Connections closed, by reason",
            "reason",
            CloseReason::ALL.map(|reason| (reason.name(), self.0.engine(|c| c.closed(reason)))),
        )
    }

    fn encode_refused(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let refused = [
            ("descriptors", self.0.engine(|c| &c.refused_descriptors)),
            ("capacity", self.0.engine(|c| &c.refused_full)),
        ];
        family(to, "refused", "Connections closed before they were served, by reason", "reason", refused)
    }

    fn encode_answers(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        // "HTTP/1.1 200 OK": the code is at a fixed offset.
        let code =
            |status: Status| std::str::from_utf8(&status.line()["HTTP/1.1 ".len()..][..3]).unwrap_or("");
        let responses =
            Status::ALL.iter().map(|status| (code(*status), self.0.http(|c| c.responses(*status))));
        family(to, "http_responses", "HTTP responses, by status", "status", responses)
    }

    fn encode_jobs(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let pool = self.0.work();
        gauge(to, "worker_threads", "Worker threads now", pool.threads)?;
        let (started, ended) = (pool.threads_started, pool.threads_ended);
        counter(to, "worker_threads_started", "Worker threads started", started)?;
        counter(to, "worker_threads_ended", "Worker threads ended because fewer were needed", ended)?;
        let failed = pool.threads_failed;
        counter(to, "worker_threads_failed", "Worker threads that the system refused to start", failed)?;
        gauge(to, "jobs_queued", "Jobs that wait for a worker now", pool.queued)?;
        gauge(to, "jobs_queued_max", "Most jobs that ever waited at once", pool.queued_max)?;
        gauge(to, "jobs_running", "Jobs that run now", pool.busy)?;
        counter(to, "jobs_inline", "Jobs that accept threads ran themselves", pool.inline)?;
        let waited = pool.waited.as_secs_f64();
        let total = ConstCounter::new(waited);
        let help = "Time that jobs spent in the queue";
        total.encode(to.encode_descriptor(
            "jobs_waited",
            help,
            Some(&Unit::Seconds),
            total.metric_type(),
        )?)?;
        let outcomes = [
            ("done", pool.done),
            ("panicked", pool.panicked),
            ("expired", pool.expired.saturating_sub(pool.shed)),
            ("shed", pool.shed),
            ("cancelled", pool.cancelled),
            ("refused", pool.rejected),
        ];
        family(to, "jobs", "Jobs, by outcome in the pool", "outcome", outcomes)?;
        let unanswered = [
            ("queue_full", self.0.http(|c| &c.jobs_refused)),
            ("queue_timeout", self.0.http(|c| &c.jobs_expired)),
            ("work_timeout", self.0.http(|c| &c.jobs_overdue)),
        ];
        family(to, "http_jobs_shed", "Requests for workers answered 503, by reason", "reason", unanswered)?;
        let late = self.0.http(|c| &c.late_results);
        counter(to, "http_results_late", "Results for requests already answered 503", late)
    }
}

impl OverviewCollector {
    /// Metrics of the worker processes, if there are any.
    fn encode_app(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.0.apps.is_empty() {
            return Ok(());
        }
        self.encode_processes(to)?;
        self.encode_pool_requests(to)?;
        self.encode_sessions(to)?;
        counter(
            to,
            "app_responses_other",
            "Responses with a status without a counter of its own",
            self.0.http(|c| &c.responses_other),
        )?;
        counter(
            to,
            "app_requests_abandoned",
            "Requests that a worker process still had after their clients had left",
            self.0.http(|c| &c.app_requests_abandoned),
        )?;
        counter(
            to,
            "app_replies_dropped",
            "Replies of worker processes to datagrams whose protocol accepts none",
            self.0.http(|c| &c.app_replies_dropped),
        )
    }
}

impl OverviewCollector {
    /// Processes and their starts and ends, by pool.
    fn encode_processes(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Worker processes now, by pool and state (changing: starting, draining or stopping)";
        let kind = ConstGauge::new(0_i64).metric_type();
        let mut processes = to.encode_descriptor("app_processes", help, None, kind)?;
        for (pool, of) in self.pools() {
            let changing = of.configured.saturating_sub(of.ready + of.backing_off);
            for (state, value) in
                [("ready", of.ready), ("backing_off", of.backing_off), ("changing", changing)]
            {
                let value = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
                value.encode(processes.encode_family(&[("pool", pool), ("state", state)])?)?;
            }
        }
        let help = "Worker process starts and ends, by pool and kind";
        let kind = ConstCounter::new(0_u64).metric_type();
        let mut events = to.encode_descriptor("app_process_events", help, None, kind)?;
        for (pool, of) in self.pools() {
            for (event, value) in [
                ("started", of.started),
                ("exited", of.exited),
                ("killed", of.killed),
                ("recycled", of.recycled),
                ("recycled_memory", of.recycled_memory),
                ("reloaded", of.reloaded),
                ("reload_failed", of.reloads_failed),
            ] {
                let labels = [("pool", pool), ("event", event)];
                ConstCounter::new(value).encode(events.encode_family(&labels)?)?;
            }
        }
        let help = "Longest wait of a worker process until it is started again, by pool";
        let kind = ConstGauge::new(0.0).metric_type();
        let mut backoff = to.encode_descriptor("app_backoff", help, Some(&Unit::Seconds), kind)?;
        for (pool, of) in self.pools() {
            let value = ConstGauge::new(of.backoff.as_secs_f64());
            value.encode(backoff.encode_family(&[("pool", pool)])?)?;
        }
        Ok(())
    }

    /// Requests for worker processes, by pool; the sums over all pools are `jobs` and `jobs_queued`.
    fn encode_pool_requests(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let pools = || self.0.apps.iter().map(|app| (app.config().name.as_str(), app.affinity()));
        let apps = || self.0.apps.iter().map(|app| (app.config().name.as_str(), app.requests()));
        let kind = ConstGauge::new(0_i64).metric_type();
        let help = "Requests for worker processes now, by pool and state";
        let mut now = to.encode_descriptor("app_requests_now", help, None, kind)?;
        for (pool, of) in apps() {
            for (state, value) in [("queued", of.queued), ("running", of.busy)] {
                let value = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
                value.encode(now.encode_family(&[("pool", pool), ("state", state)])?)?;
            }
        }
        let help = "Most requests that ever waited at once, by pool";
        let mut peak = to.encode_descriptor("app_requests_queued_max", help, None, kind)?;
        for (pool, of) in apps() {
            let value = ConstGauge::new(i64::try_from(of.queued_max).unwrap_or(i64::MAX));
            value.encode(peak.encode_family(&[("pool", pool)])?)?;
        }
        let kind = ConstCounter::new(0_u64).metric_type();
        let help = "Requests for worker processes, by pool and outcome in the queue";
        let mut outcomes = to.encode_descriptor("app_requests", help, None, kind)?;
        for ((pool, of), (_, affinity)) in apps().zip(pools()) {
            for (outcome, value) in [
                ("done", of.done),
                ("expired", of.expired.saturating_sub(of.shed)),
                ("shed", of.shed),
                ("cancelled", of.cancelled),
                ("refused", of.rejected.saturating_sub(affinity.no_worker)),
                ("no_worker", affinity.no_worker),
            ] {
                let labels = [("pool", pool), ("outcome", outcome)];
                ConstCounter::new(value).encode(outcomes.encode_family(&labels)?)?;
            }
        }
        let kind = ConstGauge::new(0_i64).metric_type();
        let help = "Clients with a worker process of their own now, by pool";
        let mut assigned = to.encode_descriptor("app_clients_assigned", help, None, kind)?;
        for (pool, affinity) in pools() {
            let value = ConstGauge::new(i64::try_from(affinity.assigned).unwrap_or(i64::MAX));
            value.encode(assigned.encode_family(&[("pool", pool)])?)?;
        }
        Ok(())
    }

    /// Session state of worker processes, by pool.
    fn encode_sessions(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let pools = || self.0.apps.iter().map(|app| (app.config().name.as_str(), app.sessions()));
        let kind = ConstGauge::new(0_i64).metric_type();
        let help = "Sessions whose state the server keeps now, by pool";
        let mut sessions = to.encode_descriptor("app_sessions", help, None, kind)?;
        for (pool, of) in pools() {
            let value = ConstGauge::new(i64::try_from(of.sessions).unwrap_or(i64::MAX));
            value.encode(sessions.encode_family(&[("pool", pool)])?)?;
        }
        let help = "Memory of sessions now, by pool";
        let mut bytes = to.encode_descriptor("app_sessions_held", help, Some(&Unit::Bytes), kind)?;
        for (pool, of) in pools() {
            let value = ConstGauge::new(i64::try_from(of.bytes).unwrap_or(i64::MAX));
            value.encode(bytes.encode_family(&[("pool", pool)])?)?;
        }
        let kind = ConstCounter::new(0_u64).metric_type();
        let help = "Changes of sessions, lookups of unknown ones, and states that were not stored, by pool";
        let mut events = to.encode_descriptor("app_session_events", help, None, kind)?;
        for (pool, of) in pools() {
            for (event, value) in [
                ("created", of.created),
                ("deleted", of.deleted),
                ("expired", of.expired),
                ("evicted", of.evicted),
                ("unknown", of.unknown),
                ("too_large", of.too_large),
                ("lost", of.lost),
            ] {
                let labels = [("pool", pool), ("event", event)];
                ConstCounter::new(value).encode(events.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn pools(&self) -> impl Iterator<Item = (&str, ProcessCounters)> {
        self.0.apps.iter().map(|app| (app.config().name.as_str(), app.counters()))
    }
}

fn gauge(to: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    gauge.encode(to.encode_descriptor(name, help, None, gauge.metric_type())?)
}

fn counter(to: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let counter = ConstCounter::new(value);
    counter.encode(to.encode_descriptor(name, help, None, counter.metric_type())?)
}

fn counter_with_unit(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: &Unit,
    value: u64,
) -> fmt::Result {
    let counter = ConstCounter::new(value);
    counter.encode(to.encode_descriptor(name, help, Some(unit), counter.metric_type())?)
}

fn family<'a>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &str,
    values: impl IntoIterator<Item = (&'a str, u64)>,
) -> fmt::Result {
    let kind = ConstCounter::new(0_u64).metric_type();
    let mut family = to.encode_descriptor(name, help, None, kind)?;
    for (value_of_label, value) in values {
        ConstCounter::new(value).encode(family.encode_family(&[(label, value_of_label)])?)?;
    }
    Ok(())
}
