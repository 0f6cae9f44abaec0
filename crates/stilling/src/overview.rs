//! The state behind the status page and the metrics: every shard's counters, the pool, the driver.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use stilling_engine::counters::{Counter, EngineCounters, StageTime};
use stilling_hub::{Ingress, Loss};
use stilling_ring::Time;
use stilling_workers::{Pool, PoolCounters};

use crate::coap::CoapCounters;
use crate::http::{HttpCounters, JobOutcome, Status};
use crate::hub::HubHandleCounters;
use crate::listener_monitor::ListenerMonitor;
use crate::packet_log::PacketLogCounters;
use crate::rates::{CounterTotals, RateWindow, Rates};
use crate::upstream::App;
use crate::volume_monitor::VolumeMonitor;

/// Observable state of a running server; shared by all threads.
pub struct Overview {
    /// When the server started.
    pub started: SystemTime,
    /// The active driver: `uring`, `poll` or `sim`.
    pub driver: String,
    /// Why the driver is not the first choice.
    pub driver_fallback: Option<String>,
    /// Listeners, as URLs.
    pub listeners: Vec<String>,
    /// The UDP listeners, as URLs, each with the smallest receive buffer of its sockets in bytes.
    pub receive_buffers: Vec<(String, u64)>,
    /// Lines about optional listeners that could not be opened.
    pub not_opened: Vec<String>,
    /// Maximum connections per shard.
    pub capacity: u32,
    /// Worker threads at the start.
    pub workers: usize,
    /// Engine counters of each shard.
    pub engines: Vec<Arc<EngineCounters>>,
    /// HTTP counters of each shard.
    pub http: Vec<Arc<HttpCounters>>,
    /// CoAP counters of each shard.
    pub coap: Vec<Arc<CoapCounters>>,
    /// The worker pool.
    pub pool: Pool<JobOutcome>,
    /// The pools of worker processes.
    pub apps: Vec<Arc<App>>,
    /// The hub's counters, once it runs.
    pub hub: OnceLock<Arc<stilling_hub::HubCounters>>,
    /// Counters of each shard's hub handle; empty without a hub.
    pub hub_handles: Vec<Arc<HubHandleCounters>>,
    /// Recent rates per second.
    pub rates: Rates,
    /// Disk usage of streams.
    pub volumes: Arc<VolumeMonitor>,
    /// The watch of TCP listeners: SYN floods and accept queues.
    pub listen: ListenerMonitor,
    /// Counters of the packet log, if there is one.
    pub packet_log: Option<Arc<PacketLogCounters>>,
}

impl Overview {
    /// Counters of requests for workers: of all pools of worker processes, if there are any, else of
    /// the worker threads.
    pub fn work(&self) -> stilling_workers::PoolCounters {
        match self.apps.as_slice() {
            [] => self.pool.counters(),
            apps => apps.iter().map(|app| app.requests()).fold(PoolCounters::default(), PoolCounters::plus),
        }
    }

    /// The sum of a counter over all shards' engines.
    pub fn engine(&self, counter: impl Fn(&EngineCounters) -> &Counter) -> u64 {
        self.engines.iter().map(|counters| counter(counters).get()).sum()
    }

    /// The sum of a counter over all shards' CoAP endpoints.
    pub fn coap(&self, counter: impl Fn(&CoapCounters) -> u64) -> u64 {
        self.coap.iter().map(|counters| counter(counters)).sum()
    }

    /// Time and number of datagrams of each stage of CoAP: in the queue, in a worker, in the endpoint, on the way to the
    /// system (as far as the driver measures it).
    pub fn coap_stages(&self) -> [(&'static str, Duration, u64); 4] {
        let engine = |stage: fn(&EngineCounters) -> &StageTime| {
            let sum = |counter: fn(&StageTime) -> &Counter| {
                self.engines.iter().map(|shard| counter(stage(shard)).get()).sum::<u64>()
            };
            (sum(|stage| &stage.nanos), sum(|stage| &stage.count))
        };
        let worker = (self.coap(|c| c.worker.nanos.get()), self.coap(|c| c.worker.count.get()));
        [
            ("queue", engine(|shard| &shard.datagrams_waited)),
            ("worker", worker),
            ("encode", engine(|shard| &shard.datagrams_served)),
            ("send", engine(|shard| &shard.datagram_sends)),
        ]
        .map(|(name, (nanos, count))| (name, Duration::from_nanos(nanos), count))
    }

    /// The sum of a counter over all shards' HTTP sessions.
    pub fn http(&self, counter: impl Fn(&HttpCounters) -> &Counter) -> u64 {
        self.http.iter().map(|counters| counter(counters).get()).sum()
    }
}

impl Overview {
    /// Refused connections, requests and messages; each counts once.
    pub(crate) fn refused(&self) -> u64 {
        let connections = self.engine(|c| &c.refused_descriptors) + self.engine(|c| &c.refused_full);
        connections + self.requests_refused() + self.messages_lost()
    }

    /// Refusals by kind: the sum, its parts, and below the requests their counted reasons.
    pub(crate) fn refusals(&self) -> [(&'static str, u64); 11] {
        let work = self.work();
        let publications = self.hub_handles.iter().map(|handle| handle.publications_shed.get()).sum();
        [
            ("all", self.refused()),
            ("connections: no descriptors left", self.engine(|c| &c.refused_descriptors)),
            ("connections: server full", self.engine(|c| &c.refused_full)),
            ("requests: answered 503", self.requests_refused()),
            ("\u{2003}queue full", work.rejected),
            ("\u{2003}too long in the queue", work.expired),
            ("\u{2003}no answer in time, or cut off", self.http(|c| &c.jobs_overdue)),
            ("\u{2003}no memory for requests", self.http(|c| &c.requests_shed)),
            ("\u{2003}no memory for responses", self.http(|c| &c.responses_shed)),
            ("\u{2003}publications: no room in time", publications),
            (
                "messages by NATS, syslog, WebSocket, CoAP and custom protocols: refused, shed or lost",
                self.messages_lost(),
            ),
        ]
    }

    /// Requests that the server itself answered with 503.
    fn requests_refused(&self) -> u64 {
        let all = self.http(|c| c.responses(Status::ServiceUnavailable));
        all.saturating_sub(self.http(|c| &c.unavailable))
    }

    /// Refused, shed or lost messages. Those by HTTP count as requests.
    fn messages_lost(&self) -> u64 {
        let Some(hub) = self.hub.get() else { return 0 };
        let losses_of =
            |ingress| Loss::ALL.into_iter().map(move |loss| hub.losses(ingress, loss)).sum::<u64>();
        let counted = Ingress::ALL.into_iter().filter(|ingress| *ingress != Ingress::Http);
        counted.map(losses_of).sum()
    }

    /// A number that changes with the contents of streams.
    pub(crate) fn stream_progress(&self) -> u64 {
        let streams = self.hub.get().into_iter().flat_map(|hub| &hub.streams);
        streams.fold(0, |sum, stream| sum.wrapping_add(stream.visible.get()).wrapping_add(stream.first.get()))
    }

    /// Current totals of everything that has a rate.
    pub(crate) fn totals(&self) -> CounterTotals {
        let work = self.work();
        let hub = self.hub.get();
        let responses = |counters: &Arc<HttpCounters>| counters.all_responses();
        CounterTotals {
            requests: self.http.iter().map(responses).sum(),
            messages: hub.map_or(0, |hub| hub.messages.get()),
            delivered: hub.map_or(0, |hub| hub.delivered()),
            refused: self.refused(),
            jobs: work.done + work.expired + work.panicked + work.busy,
            waited_ns: u64::try_from(work.waited.as_nanos()).unwrap_or(u64::MAX),
            accepted: hub.map_or(0, |hub| hub.streams.iter().map(|stream| stream.accepted.get()).sum()),
            rejected: hub.map_or(0, |hub| hub.streams.iter().map(|stream| stream.rejected.get()).sum()),
        }
    }

    /// The counts of the recent window.
    pub(crate) fn recent(&self, now: Time) -> RateWindow {
        self.rates.recent(now, self.totals())
    }
}

impl std::fmt::Debug for Overview {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Overview").field("driver", &self.driver).finish_non_exhaustive()
    }
}
