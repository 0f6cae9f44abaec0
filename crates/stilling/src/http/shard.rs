//! What the HTTP sessions of one shard share: limits, the lane to the workers, the date, counters.

use std::sync::Arc;
use std::time::Duration;

use stilling_ring::Time;
use stilling_wire::http1::{Date, HttpLimits};
use stilling_workers::Lane;

use super::counters::HttpCounters;
use super::head_cache::{HeadCache, HeadKey};
use super::response::Response;
use super::routes::Routes;
use super::stream::BodyStream;
use crate::hub::HubHandle;
use crate::lifecycle::{Lifecycle, LifecyclePhase};
use crate::overview::Overview;
use crate::upstream::UpstreamHandle;
use crate::upstream::limits::{SPARE_BUFFERS_MAX, SPARE_SIZE_MAX};

/// How long a client may take for what; see `docs/limits.md`.
#[derive(Clone, Debug)]
pub struct Timeouts {
    /// From the connection to its first byte.
    pub first_byte: Duration,
    /// From the first byte of a head to its last: for the whole head, however it trickles in.
    pub head: Duration,
    /// Before the rate of a body counts.
    pub body_grace: Duration,
    /// The least rate of a body after that, in bytes per second; also of a client that takes the long answer of a worker
    /// process, while it is waited for. A client that a process waits for has to keep to
    /// [`SLOT_RATE_MIN`](crate::upstream::limits::SLOT_RATE_MIN), if that is more.
    pub body_rate_min: u64,
    /// Between two requests of a kept connection. Also between two receives of a connection of a custom protocol whose
    /// session has set no deadline.
    pub idle: Duration,
    /// For a job to be taken and done. Then 503, and the connection closes.
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

/// How a shard's HTTP service behaves.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// What the decoder accepts.
    pub limits: HttpLimits,
    /// How long clients may take.
    pub timeouts: Timeouts,
    /// How long slow work takes.
    pub slow_duration: Duration,
    /// Whether there are workers; without, slow work is answered like fast.
    pub has_workers: bool,
    /// How long a job may wait for a worker; then 503.
    pub queue_age_max: Duration,
    /// What is answered beside the server's own pages.
    pub routes: Arc<Routes>,
    /// How long a client that a worker serves may take none of its bytes.
    pub write_timeout: Duration,
    /// Bytes of requests that may wait for their bodies or for workers, or be with workers; then 503.
    pub requests_held_max: usize,
    /// Bytes of handlers' answers that may wait for their clients; then 503.
    pub answers_held_max: usize,
    /// All but the server's own pages is answered by worker processes.
    pub has_app: bool,
}

/// How far the date may lag behind, so that not every request asks for the time.
const DATE_STALE_MAX: Duration = Duration::from_millis(50);

/// What a worker returns.
#[derive(Debug)]
pub struct JobOutcome(pub(super) JobProduct);

/// What a worker has done.
#[derive(Debug)]
pub(super) enum JobProduct {
    /// The demo routes' pretended work.
    Demo,
    /// A handler's answer.
    Response(Box<Response>),
    /// The next piece of an answer.
    Piece(Box<BodyStream>),
    /// A connection was served that the shard does not have any more.
    DelegatedConnection,
}

/// What the HTTP sessions of one shard share.
pub(crate) struct HttpShard {
    pub(super) config: HttpConfig,
    pub(crate) lane: Lane<JobOutcome>,
    pub(crate) counters: Arc<HttpCounters>,
    pub(super) overview: Arc<Overview>,
    lifecycle: Arc<Lifecycle>,
    date: Date,
    /// The second for which `date` was made.
    second: u64,
    /// When the calendar is read again.
    date_until: Time,
    head_cache: HeadCache,
    /// Memory for short texts.
    pub(super) scratch: Vec<u8>,
    /// Buffers for requests to worker processes and their answers.
    spare_buffers: Vec<Vec<u8>>,
}

/// What an HTTP session sees of its shard.
pub(crate) struct HttpContext<'a> {
    /// The state that HTTP sessions share.
    pub(crate) http: &'a mut HttpShard,
    /// The hub, if this server has one.
    pub(crate) hub: Option<&'a mut HubHandle>,
    /// There was a hub, which a successor has now.
    pub(crate) has_left_hub: bool,
    /// The worker processes, if there are any.
    pub(crate) upstream: Option<UpstreamHandle<'a>>,
}

impl HttpShard {
    /// The state of one shard.
    pub(crate) fn new(
        config: HttpConfig,
        lane: Lane<JobOutcome>,
        counters: Arc<HttpCounters>,
        overview: Arc<Overview>,
        lifecycle: Arc<Lifecycle>,
    ) -> Self {
        let second = lifecycle.unix_seconds(Time::ZERO);
        HttpShard {
            config,
            lane,
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

    /// Whether sessions have to know where their connections come from.
    pub(crate) fn wants_peers(&self) -> bool {
        self.config.has_app || self.config.routes.wants_peers()
    }

    /// How long a connection may be idle.
    pub(crate) fn idle_timeout(&self) -> Duration {
        self.config.timeouts.idle
    }

    /// A buffer that may have been used before.
    pub(super) fn take_buffer(&mut self) -> Vec<u8> {
        self.spare_buffers.pop().unwrap_or_default()
    }

    /// Keeps a buffer for the next who needs one.
    pub(super) fn recycle_buffer(&mut self, buffer: Vec<u8>) {
        if self.spare_buffers.len() < SPARE_BUFFERS_MAX && (1..=SPARE_SIZE_MAX).contains(&buffer.capacity()) {
            self.spare_buffers.push(buffer);
        }
    }

    /// Whether the end has been asked for. Answers say so at once, also those of a shard that has not
    /// begun its drain yet.
    pub(crate) fn is_draining(&self) -> bool {
        !self.is_ready()
    }

    /// The date now.
    pub(super) fn date(&mut self, now: Time) -> Date {
        self.refresh(now);
        self.date
    }

    /// An encoded head with the date now; `None`: it cannot be kept.
    pub(super) fn head(&mut self, now: Time, key: &HeadKey) -> Option<&[u8]> {
        self.refresh(now);
        self.head_cache.get(key, self.second, &self.date)
    }

    /// Whether the hub takes requests now; it does not while a predecessor still has the streams.
    pub(crate) fn hub_has_begun(&self) -> bool {
        self.lifecycle.hub_has_begun()
    }

    /// Whether the hub never begins, because this server ends without having become the server.
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
