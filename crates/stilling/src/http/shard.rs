//! State that the HTTP sessions of one shard share: limits, the submitter of jobs, the date, counters.

use std::sync::Arc;
use std::time::Duration;

use stilling_ring::Time;
use stilling_wire::http1::{Date, HttpLimits};
use stilling_workers::JobSubmitter;

use super::counters::HttpCounters;
use super::head_cache::{HeadCache, HeadKey};
use super::response::Response;
use super::routes::Routes;
use super::stream::BodyStream;
use crate::hub::HubHandle;
use crate::lifecycle::{Lifecycle, LifecyclePhase};
use crate::overview::Overview;
use crate::upstream::limits::{SPARE_BUFFERS_MAX, SPARE_SIZE_MAX};
use crate::upstream::{AppRoutes, UpstreamHandle};

/// Timeouts for clients and jobs; see `docs/limits.md`.
#[derive(Clone, Debug)]
pub struct Timeouts {
    /// From the connection to its first byte.
    pub first_byte: Duration,
    /// From the first byte of a head to its last.
    pub head: Duration,
    /// Time before the minimum rate of a body applies.
    pub body_grace: Duration,
    /// The minimum average rate of a body after that, in bytes per second. It also applies to the client's reading of a
    /// long response of a worker process. While a process waits for the client, the minimum is at least
    /// [`SLOT_RATE_MIN`](crate::upstream::limits::SLOT_RATE_MIN).
    pub body_rate_min: u64,
    /// Between two requests of a persistent connection, and between two receives of a custom protocol's connection
    /// whose session has set no deadline.
    pub idle: Duration,
    /// From the submission of a job to its result, or of a publication to its outcome. Then 503, and the connection
    /// closes.
    pub work: Duration,
    /// For requests in flight when the server drains.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            first_byte: Duration::from_secs(10),
            head: Duration::from_secs(10),
            body_grace: Duration::from_secs(10),
            body_rate_min: 1024,
            idle: Duration::from_secs(60),
            work: Duration::from_secs(60),
            drain: Duration::from_secs(30),
        }
    }
}

/// Settings of a shard's HTTP sessions.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// Limits of the decoder.
    pub limits: HttpLimits,
    /// Timeouts for clients.
    pub timeouts: Timeouts,
    /// Duration of the simulated work of `/test/slow`.
    pub slow_duration: Duration,
    /// Whether there are worker threads. Without them, the shard runs all handlers, and `/test/slow` is as fast as
    /// `/test/fast`.
    pub has_workers: bool,
    /// How long a job may wait for a worker; then 503.
    pub queue_age_max: Duration,
    /// Handlers beside the server's own pages.
    pub routes: Arc<Routes>,
    /// Write timeout of connections that workers serve.
    pub write_timeout: Duration,
    /// Bytes of requests that may wait for their bodies or for workers, or that workers may process; then 503.
    pub requests_held_max: usize,
    /// Bytes of responses that may wait for their clients; then 503.
    pub responses_held_max: usize,
    /// The paths that worker processes answer. With any, there are no worker threads.
    pub apps: AppRoutes,
    /// Subject filters of streams with auctions. With one, there is the page `/auction`.
    pub auction_filters: Vec<String>,
}

/// Maximum age of the cached date: the clock is not read for every request.
const DATE_STALE_MAX: Duration = Duration::from_millis(50);

/// The result of a job.
#[derive(Debug)]
pub struct JobOutcome(pub(super) JobOutput);

#[derive(Debug)]
pub(super) enum JobOutput {
    /// The simulated work of the demo routes.
    Demo,
    Response(Box<Response>),
    Piece(Box<BodyStream>),
    /// A worker has finished serving a connection.
    DelegatedConnection,
}

pub(crate) struct HttpShard {
    pub(super) config: HttpConfig,
    pub(crate) submitter: JobSubmitter<JobOutcome>,
    pub(crate) counters: Arc<HttpCounters>,
    pub(super) overview: Arc<Overview>,
    lifecycle: Arc<Lifecycle>,
    date: Date,
    second: u64,
    /// When the clock is read again.
    date_until: Time,
    head_cache: HeadCache,
    /// Memory for short texts.
    pub(super) scratch: Vec<u8>,
    /// Buffers for requests to worker processes and their responses.
    spare_buffers: Vec<Vec<u8>>,
}

/// The parts of its shard that an HTTP session sees.
pub(crate) struct HttpContext<'a> {
    pub(crate) http: &'a mut HttpShard,
    pub(crate) hub: Option<&'a mut HubHandle>,
    /// There was a hub, which a successor has taken over.
    pub(crate) hub_handed_over: bool,
    pub(crate) upstream: Option<UpstreamHandle<'a>>,
}

impl HttpShard {
    pub(crate) fn new(
        config: HttpConfig,
        submitter: JobSubmitter<JobOutcome>,
        counters: Arc<HttpCounters>,
        overview: Arc<Overview>,
        lifecycle: Arc<Lifecycle>,
    ) -> Self {
        let second = lifecycle.unix_seconds(Time::ZERO);
        HttpShard {
            config,
            submitter,
            counters,
            overview,
            lifecycle,
            date: Date::from_unix_seconds(second),
            second,
            date_until: Time::ZERO,
            head_cache: HeadCache::new(),
            scratch: Vec::with_capacity(256),
            spare_buffers: Vec::new(),
        }
    }

    /// The routes to the pools of worker processes.
    pub(crate) fn app_routes(&self) -> &AppRoutes {
        &self.config.apps
    }

    pub(crate) fn needs_peer_addresses(&self) -> bool {
        !self.config.apps.is_empty() || self.config.routes.needs_peer_addresses()
    }

    pub(crate) fn idle_timeout(&self) -> Duration {
        self.config.timeouts.idle
    }

    pub(super) fn take_buffer(&mut self) -> Vec<u8> {
        self.spare_buffers.pop().unwrap_or_default()
    }

    pub(super) fn recycle_buffer(&mut self, buffer: Vec<u8>) {
        if self.spare_buffers.len() < SPARE_BUFFERS_MAX && (1..=SPARE_SIZE_MAX).contains(&buffer.capacity()) {
            self.spare_buffers.push(buffer);
        }
    }

    /// Whether the server drains, even if the drain of this shard has not begun: responses announce the close at once.
    pub(crate) fn is_draining(&self) -> bool {
        !self.is_ready()
    }

    pub(super) fn date(&mut self, now: Time) -> Date {
        self.refresh(now);
        self.date
    }

    /// An encoded head with the current date; `None`: it cannot be cached.
    pub(super) fn head(&mut self, now: Time, key: &HeadKey) -> Option<&[u8]> {
        self.refresh(now);
        self.head_cache.get(key, self.second, &self.date)
    }

    /// Whether the hub accepts requests; it does not while a predecessor still has the streams.
    pub(crate) fn hub_has_started(&self) -> bool {
        self.lifecycle.hub_has_started()
    }

    /// Whether the hub never begins, because this server ends before it has taken over.
    pub(crate) fn hub_is_abandoned(&self) -> bool {
        self.lifecycle.hub_is_abandoned()
    }

    /// Whether the server is ready for more work.
    pub(super) fn is_ready(&self) -> bool {
        self.lifecycle.phase() == LifecyclePhase::Running
    }

    fn refresh(&mut self, now: Time) {
        if now < self.date_until {
            return;
        }
        self.date_until = now.after(DATE_STALE_MAX);
        let second = self.lifecycle.unix_seconds(now);
        if second != self.second {
            self.second = second;
            self.date = Date::from_unix_seconds(second);
        }
    }
}
