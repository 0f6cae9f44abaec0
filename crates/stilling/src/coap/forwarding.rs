//! Requests at worker processes: which pool answers a path, what was received of each response, and the load of each
//! pool.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::DatagramPath;
use stilling_ring::Time;
use stilling_wire::coap::Code;

use super::answer::Answer;
use super::call::CoapCall;
use super::counters::CoapCounters;
use super::http_mapping::{self, AnsweredRequest, TargetPath};
use super::limits::{BODY_SIZE_MAX, FORWARDED_SIZE_MAX, RESPONSES_SIZE_MAX, RETRY_AFTER_SECONDS, SLOW_TIME};
use super::overload::{Admission, Overload, OverloadReports, OverloadState, ShedReplies};
use super::pending::PendingId;
use super::request::CoapRequest;
use crate::memory::{MemoryReservation, MemoryUsage};
use crate::upstream::session_state::RequestSession;
use crate::upstream::{
    AppRoutes, PoolIndex, RequestId, ResponsePiece, UpstreamEvent, UpstreamFailure, UpstreamRequest,
};

/// Why a request is not answered by its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ForwardFailure {
    /// 5.03.
    NoWorker,
    /// 5.03: with affinity, no process is free for the client, or the client is beyond its share of the queue.
    Refused,
    /// 5.02: the process died, or its response is not HTTP or incomplete.
    WorkerFailed,
    /// 5.04.
    TimedOut,
    /// 5.02.
    ResponseTooLarge,
    /// 5.03: the shard holds too many bytes of responses.
    NoMemory,
}

/// What was received of a response.
#[derive(Debug)]
struct PartialResponse {
    status: u16,
    /// Status line and fields, then the body.
    bytes: Vec<u8>,
    head_len: usize,
    body_start: usize,
}

/// A request from its call to its answer.
#[derive(Debug)]
struct ForwardedExchange {
    pool: PoolIndex,
    client: SocketAddr,
    answered: AnsweredRequest,
    since: Time,
    /// Once it was submitted.
    request: Option<RequestId>,
    response: Option<PartialResponse>,
    reservation: MemoryReservation,
    failure: Option<ForwardFailure>,
    /// Its answer is ready.
    has_ended: bool,
}

/// A pool of worker processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForwardingPool {
    pub(crate) slots: usize,
    /// Each client has a process of its own, so its address must be proven.
    pub(crate) has_affinity: bool,
}

/// The load of a pool by this shard.
#[derive(Debug)]
struct PoolLoad {
    has_affinity: bool,
    overload: Overload,
    reports: OverloadReports,
    /// Requests without an answer.
    open: usize,
    /// Those of each client that has some.
    clients: HashMap<SocketAddr, usize>,
}

/// Whether a new request is shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShedDecision {
    Admitted,
    /// With this code and Max-Age.
    Reply(Code),
    Silence,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Forwarding {
    counters: Arc<CoapCounters>,
    routes: AppRoutes,
    pools: Vec<PoolLoad>,
    /// Average handling time beyond which a pool is slow (row 1.8).
    slow_time: Duration,
    calls: VecDeque<CoapCall>,
    /// The oldest first.
    exchanges: BTreeMap<PendingId, ForwardedExchange>,
    by_request: HashMap<RequestId, PendingId>,
    /// Exchanges with an answer, in the order in which they got it.
    ended: VecDeque<PendingId>,
    target: Box<TargetPath>,
    shed_replies: ShedReplies,
    requests_held: Arc<MemoryUsage>,
    responses_held: Arc<MemoryUsage>,
}

impl Forwarding {
    pub(super) fn new(counters: Arc<CoapCounters>, now: Time) -> Forwarding {
        Forwarding {
            counters,
            routes: AppRoutes::default(),
            pools: Vec::new(),
            slow_time: SLOW_TIME,
            calls: VecDeque::new(),
            exchanges: BTreeMap::new(),
            by_request: HashMap::new(),
            ended: VecDeque::new(),
            target: Box::new(TargetPath::new()),
            shed_replies: ShedReplies::new(now),
            requests_held: Arc::default(),
            responses_held: Arc::default(),
        }
    }

    /// Sets the average handling time beyond which the pools set later are slow.
    pub(super) fn set_slow_time(&mut self, slow_time: Duration) {
        self.slow_time = slow_time;
    }

    /// Sets the pools and their routes.
    pub(super) fn set_pools(
        &mut self,
        routes: AppRoutes,
        pools: impl Iterator<Item = ForwardingPool>,
        now: Time,
    ) {
        self.routes = routes;
        let load = |ForwardingPool { slots, has_affinity }| PoolLoad {
            has_affinity,
            overload: Overload::new(slots, self.slow_time, now),
            reports: OverloadReports::new(now),
            open: 0,
            clients: HashMap::new(),
        };
        self.pools = pools.map(load).collect();
    }

    /// Whether each client of a pool has a process of its own.
    pub(super) fn has_affinity(&self, pool: PoolIndex) -> bool {
        self.pools[pool.position()].has_affinity
    }

    /// The pool for a request, if one answers its path.
    ///
    /// # Errors
    /// The code of the answer to a path that is not forwarded.
    pub(super) fn route(&mut self, request: &CoapRequest<'_>) -> Result<Option<PoolIndex>, Code> {
        if self.routes.is_empty() {
            return Ok(None);
        }
        self.target.set(request)?;
        Ok(self.routes.find(self.target.bytes()))
    }

    /// Decides whether a new request is shed, before anything of it is copied.
    pub(super) fn shed(&mut self, pool: PoolIndex, client: SocketAddr, now: Time) -> ShedDecision {
        let PoolLoad { overload, open, clients, .. } = &self.pools[pool.position()];
        let client_open = clients.get(&client).copied().unwrap_or_default();
        let code = match overload.admit(*open, client_open, clients.len(), now) {
            Admission::Admitted => return ShedDecision::Admitted,
            Admission::TooMany => Code::TOO_MANY_REQUESTS,
            Admission::Unavailable => Code::SERVICE_UNAVAILABLE,
        };
        if !self.shed_replies.take(now) {
            self.counters.shed_silently.add(1);
            return ShedDecision::Silence;
        }
        match code {
            Code::TOO_MANY_REQUESTS => self.counters.shed_too_many.add(1),
            _ => self.counters.shed_unavailable.add(1),
        }
        ShedDecision::Reply(code)
    }

    /// The request in HTTP; its path is the one of the last [`route`](Self::route).
    ///
    /// # Errors
    /// The code of the answer to a request that cannot be forwarded.
    pub(super) fn upstream_request(
        &self,
        pool: PoolIndex,
        request: &CoapRequest<'_>,
        path: &DatagramPath,
    ) -> Result<Box<UpstreamRequest>, Code> {
        let mut reservation = MemoryReservation::new(&self.requests_held);
        let mut head = Vec::with_capacity(512);
        http_mapping::write_request_head(request, &self.target, path, &mut head)?;
        if !reservation.grow(head.len() + request.payload.len(), FORWARDED_SIZE_MAX) {
            self.counters.refused_full.add(1);
            return Err(Code::SERVICE_UNAVAILABLE);
        }
        let is_idempotent = http_mapping::is_idempotent(request.code);
        let body = request.payload.to_vec();
        let mut upstream_request = UpstreamRequest::translated(pool, head, body, is_idempotent, reservation);
        let name = http_mapping::session_name(request)?;
        upstream_request.set_session(RequestSession::named(name, path.peer.ip().to_canonical()));
        Ok(upstream_request)
    }

    /// Calls for a request to be submitted.
    pub(super) fn forward(
        &mut self,
        exchange: PendingId,
        pool: PoolIndex,
        answered: AnsweredRequest,
        path: DatagramPath,
        request: Box<UpstreamRequest>,
        now: Time,
    ) {
        self.counters.forwarded.add(1);
        let load = &mut self.pools[pool.position()];
        load.open += 1;
        *load.clients.entry(path.peer).or_default() += 1;
        let forwarded = ForwardedExchange {
            pool,
            client: path.peer,
            answered,
            since: now,
            request: None,
            response: None,
            reservation: MemoryReservation::new(&self.responses_held),
            failure: None,
            has_ended: false,
        };
        self.exchanges.insert(exchange, forwarded);
        self.calls.push_back(CoapCall::Forward { exchange, path, request });
    }

    pub(super) fn next_call(&mut self) -> Option<CoapCall> {
        self.calls.pop_front()
    }

    /// The pool has the request of an exchange under this id.
    pub(super) fn submitted(&mut self, exchange: PendingId, request: RequestId) {
        if let Some(forwarded) = self.exchanges.get_mut(&exchange) {
            forwarded.request = Some(request);
            self.by_request.insert(request, exchange);
        }
    }

    /// The pool has no room for the request of an exchange.
    pub(super) fn refused(&mut self, exchange: PendingId, now: Time) {
        self.fail(exchange, ForwardFailure::NoWorker, now);
    }

    /// The oldest request of the same pool that still waits for a worker: a full queue drops it for a newer one. `None`
    /// with affinity: no client loses a request to another one.
    pub(super) fn oldest_queued(
        &self,
        exchange: PendingId,
        is_queued: impl Fn(RequestId) -> bool,
    ) -> Option<(PendingId, RequestId)> {
        let pool = self.exchanges.get(&exchange)?.pool;
        if self.has_affinity(pool) {
            return None;
        }
        self.exchanges
            .iter()
            .filter(|(_, forwarded)| forwarded.pool == pool && !forwarded.has_ended)
            .filter_map(|(id, forwarded)| Some((*id, forwarded.request?)))
            .find(|(_, request)| is_queued(*request))
    }

    /// Processes an event of a request. One of a request that has ended is ignored.
    pub(super) fn event(&mut self, request: RequestId, event: UpstreamEvent, now: Time) {
        let Some(&exchange) = self.by_request.get(&request) else { return };
        let Some(forwarded) = self.exchanges.get_mut(&exchange) else { return };
        match event {
            UpstreamEvent::Response(response) => {
                let ResponsePiece { bytes, start, is_last } = response.piece;
                let size = bytes.len() - start;
                forwarded.response = Some(PartialResponse {
                    status: response.status,
                    bytes,
                    head_len: response.head_len,
                    body_start: start,
                });
                self.received(exchange, size, is_last, now);
            }
            UpstreamEvent::Piece(ResponsePiece { bytes, start, is_last }) => {
                let Some(response) = &mut forwarded.response else { return };
                response.bytes.extend_from_slice(&bytes[start..]);
                self.received(exchange, bytes.len() - start, is_last, now);
            }
            // The whole body is in the request.
            UpstreamEvent::BodyWanted => {}
            UpstreamEvent::Expired | UpstreamEvent::Failed(UpstreamFailure::Unavailable) => {
                self.fail(exchange, ForwardFailure::NoWorker, now);
            }
            UpstreamEvent::Refused => self.fail(exchange, ForwardFailure::Refused, now),
            UpstreamEvent::Failed(UpstreamFailure::BadGateway) | UpstreamEvent::Aborted => {
                self.fail(exchange, ForwardFailure::WorkerFailed, now);
            }
            UpstreamEvent::Failed(UpstreamFailure::Timeout) => {
                self.fail(exchange, ForwardFailure::TimedOut, now);
            }
        }
    }

    /// Continues after a piece of `size` bytes.
    fn received(&mut self, exchange: PendingId, size: usize, is_last: bool, now: Time) {
        let Some(forwarded) = self.exchanges.get_mut(&exchange) else { return };
        let Some(response) = &forwarded.response else { return };
        let body_size = response.bytes.len() - response.body_start;
        let has_room = is_last || forwarded.reservation.grow(size, RESPONSES_SIZE_MAX);
        let failure = match (body_size > BODY_SIZE_MAX, has_room) {
            (true, _) => Some(ForwardFailure::ResponseTooLarge),
            (false, false) => Some(ForwardFailure::NoMemory),
            (false, true) => None,
        };
        match (failure, forwarded.request) {
            (None, Some(request)) if !is_last => self.calls.push_back(CoapCall::Continue(request)),
            (Some(failure), Some(request)) => {
                if !is_last {
                    self.calls.push_back(CoapCall::Abandon { request, is_late: false });
                }
                self.fail(exchange, failure, now);
            }
            _ => {
                let time = now.since(forwarded.since);
                self.counters.worker.add(time, 1);
                self.pools[forwarded.pool.position()].overload.handled(time, now);
                self.end(exchange);
            }
        }
    }

    fn fail(&mut self, exchange: PendingId, failure: ForwardFailure, now: Time) {
        let Some(forwarded) = self.exchanges.get_mut(&exchange) else { return };
        if forwarded.has_ended {
            return;
        }
        forwarded.failure = Some(failure);
        let overload = &mut self.pools[forwarded.pool.position()].overload;
        match failure {
            ForwardFailure::NoWorker => {
                self.counters.no_worker.add(1);
                overload.no_worker(now);
            }
            // It concerns this client only: the others have their own processes.
            ForwardFailure::Refused => self.counters.no_worker.add(1),
            ForwardFailure::TimedOut => {
                self.counters.worker_timeouts.add(1);
                overload.timed_out(now.since(forwarded.since), now);
            }
            ForwardFailure::WorkerFailed => self.counters.worker_failures.add(1),
            ForwardFailure::ResponseTooLarge => self.counters.responses_too_large.add(1),
            ForwardFailure::NoMemory => self.counters.refused_full.add(1),
        }
        self.end(exchange);
    }

    /// The exchange is no longer open: its answer is ready.
    fn end(&mut self, exchange: PendingId) {
        let Some(forwarded) = self.exchanges.get_mut(&exchange) else { return };
        forwarded.has_ended = true;
        if let Some(request) = forwarded.request.take() {
            self.by_request.remove(&request);
        }
        let load = &mut self.pools[forwarded.pool.position()];
        load.open -= 1;
        if let Some(open) = load.clients.get_mut(&forwarded.client) {
            *open -= 1;
            if *open == 0 {
                load.clients.remove(&forwarded.client);
            }
        }
        self.ended.push_back(exchange);
    }

    /// An exchange has waited too long: its request is abandoned.
    pub(super) fn expire(&mut self, exchange: PendingId, now: Time) {
        if let Some(request) = self.exchanges.get(&exchange).and_then(|forwarded| forwarded.request) {
            self.calls.push_back(CoapCall::Abandon { request, is_late: true });
        }
        self.fail(exchange, ForwardFailure::TimedOut, now);
    }

    /// The next exchange with an answer, which is written.
    pub(super) fn next_ended(&mut self, answer: &mut Answer) -> Option<PendingId> {
        let exchange = self.ended.pop_front()?;
        let forwarded = self.exchanges.remove(&exchange)?;
        match (forwarded.failure, &forwarded.response) {
            (Some(ForwardFailure::NoWorker | ForwardFailure::Refused | ForwardFailure::NoMemory), _) => {
                answer.start(Code::SERVICE_UNAVAILABLE).max_age = Some(RETRY_AFTER_SECONDS);
            }
            (Some(ForwardFailure::TimedOut), _) => _ = answer.start(Code::GATEWAY_TIMEOUT),
            (Some(ForwardFailure::ResponseTooLarge), _) => {
                answer.error(Code::BAD_GATEWAY, "the response is too large");
            }
            (Some(ForwardFailure::WorkerFailed), _) | (None, None) => _ = answer.start(Code::BAD_GATEWAY),
            (None, Some(PartialResponse { status, bytes, head_len, body_start })) => {
                let (head, body) = (&bytes[..*head_len], &bytes[*body_start..]);
                http_mapping::write_answer(forwarded.answered, *status, head, body, answer);
            }
        }
        Some(exchange)
    }

    /// Calls for a line in the log for each pool whose state has changed.
    pub(super) fn report_overload(&mut self, now: Time) {
        let Forwarding { pools, calls, .. } = self;
        for (pool, load) in PoolIndex::all().zip(pools) {
            let state = load.overload.state(now);
            if load.reports.is_due(state, now) {
                calls.push_back(CoapCall::Report { pool, line: state.report() });
            }
        }
    }

    /// When to call [`report_overload`](Self::report_overload) at the latest.
    pub(super) fn next_report(&self) -> Option<Time> {
        self.pools.iter().filter_map(|load| load.reports.next_check()).min()
    }

    /// Pools that shed new requests now.
    pub(super) fn overloaded_pools(&self, now: Time) -> usize {
        self.pools.iter().filter(|load| load.overload.state(now) != OverloadState::Normal).count()
    }
}
