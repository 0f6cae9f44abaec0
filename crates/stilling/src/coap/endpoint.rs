//! The endpoint of one shard: classifies datagrams, and passes requests to the [exchanges](super::exchanges).

use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use stilling_engine::DatagramPath;
use stilling_hub::HashKey;
use stilling_ring::{Time, planted};
use stilling_wire::coap::{CoapMessage, MessageContent, MessageId, MessageType, Reaction, encode_empty};

use super::answer::Answer;
use super::assembly::Assemblies;
use super::body_cache::BodyCache;
use super::bridge::{AwaitedOutcome, Bridge, BridgeAccess, BridgeAnswer};
use super::call::CoapCall;
use super::counters::{CoapCounters, DatagramClass};
use super::demo::DemoResources;
use super::exchange_cache::{ExchangeCache, ExchangeKey, KnownExchange};
use super::exchanges::{Exchanges, RequestAdmission};
use super::forwarding::{Forwarding, ForwardingPool};
use super::handed_exchanges::{HandedExchange, records};
use super::limits::{
    BODIES_MAX, BODIES_SIZE_MAX, EXCHANGE_LIFETIME, EXCHANGES_MAX, MESSAGE_SIZE_MAX, REPLIES_SIZE_MAX,
    SLOW_TIME, TRANSMISSIONS_MAX,
};
use super::observations::{Observations, ResourceId};
use super::peers::ProvenPeers;
use super::pending::{PendingExchanges, PendingId, RequestContext};
use super::request::{CacheKey, CoapRequest, PathBuffer, is_safe};
use super::transmissions::Transmissions;
use super::unproven::{UnprovenBudget, UnprovenPeers};
use crate::upstream::{AppRoutes, RequestId, UpstreamEvent};

/// What a socket serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoapEndpoint {
    /// The demo resources.
    pub demo: bool,
}

/// What the endpoints of all shards have in common.
#[derive(Clone, Debug)]
pub(crate) struct CoapSettings {
    /// The addresses that have to prove themselves.
    pub(crate) unproven: UnprovenPeers,
    /// Average handling time of a pool beyond which its new requests are shed.
    pub(crate) slow_time: Duration,
    pub(crate) demo: DemoResources,
    pub(crate) bridge: BridgeAccess,
}

impl Default for CoapSettings {
    fn default() -> CoapSettings {
        CoapSettings {
            unproven: UnprovenPeers::default(),
            slow_time: SLOW_TIME,
            demo: DemoResources::default(),
            bridge: BridgeAccess::default(),
        }
    }
}

/// The endpoint of one shard.
#[derive(Debug)]
pub(crate) struct CoapShard {
    exchange: Exchanges,
    path: PathBuffer,
    cache_key: CacheKey,
    /// The assembled body of the current request.
    body: Vec<u8>,
    reply: Box<[u8]>,
    /// A message to be sent, with its size.
    staged: Option<(DatagramPath, usize)>,
    staged_bytes: Box<[u8]>,
}

impl CoapShard {
    /// An endpoint that starts at `now`. `key` protects its tables and Echo values, and must be unknown to clients.
    pub(crate) fn new(counters: Arc<CoapCounters>, key: HashKey, now: Time) -> CoapShard {
        let seed = key.hash_one(0_u64);
        let exchange = Exchanges {
            forwarding: Forwarding::new(Arc::clone(&counters), now),
            counters,
            cache: ExchangeCache::new(key, EXCHANGES_MAX, REPLIES_SIZE_MAX),
            bodies: BodyCache::new(key, BODIES_MAX, BODIES_SIZE_MAX),
            assemblies: Assemblies::new(key),
            pending: PendingExchanges::new(key, now),
            transmissions: Transmissions::new(key, TRANSMISSIONS_MAX, now, seed),
            peers: ProvenPeers::new(key),
            demo: DemoResources::default(),
            observations: Observations::new(key, now),
            bridge: Bridge::new(key),
            answer: Answer::default(),
            is_receiving: true,
            unproven: UnprovenBudget::new(UnprovenPeers::default(), now),
        };
        CoapShard {
            exchange,
            path: PathBuffer::new(),
            cache_key: CacheKey::new(),
            body: Vec::new(),
            reply: vec![0; MESSAGE_SIZE_MAX].into(),
            staged: None,
            staged_bytes: vec![0; MESSAGE_SIZE_MAX].into(),
        }
    }

    /// Applies the settings of the server.
    pub(crate) fn with_settings(mut self, settings: CoapSettings, now: Time) -> CoapShard {
        self.exchange.unproven = UnprovenBudget::new(settings.unproven, now);
        self.exchange.forwarding.set_slow_time(settings.slow_time);
        self.exchange.demo = settings.demo;
        self.exchange.bridge.set_access(settings.bridge);
        self
    }

    /// Sets the distance between the times of this endpoint and the system's clock.
    pub(crate) fn with_clock_offset(mut self, offset: Duration) -> CoapShard {
        self.exchange.observations.set_clock_offset(offset);
        self
    }

    /// Sets the pools of worker processes and their routes.
    pub(crate) fn with_pools(
        mut self,
        routes: AppRoutes,
        pools: impl Iterator<Item = ForwardingPool>,
        now: Time,
    ) -> CoapShard {
        self.exchange.forwarding.set_pools(routes, pools, now);
        self
    }

    /// The next call for the worker processes or the hub, to be made after each call of another method.
    pub(crate) fn next_call(&mut self) -> Option<CoapCall> {
        let to_hub = self.exchange.bridge.next_call().map(CoapCall::Hub);
        to_hub.or_else(|| self.exchange.forwarding.next_call())
    }

    /// Sets the answer of a publication, which leaves by [`poll_transmit`](Self::poll_transmit).
    pub(crate) fn publication_ended(&mut self, exchange: PendingId, answer: BridgeAnswer) {
        self.exchange.bridge.end(exchange, AwaitedOutcome::Answer(answer));
    }

    /// Sets the newest message of a filter.
    pub(crate) fn set_state(&mut self, resource: ResourceId, state: &[u8]) {
        self.exchange.set_state(resource, state);
    }

    /// The newest message of a filter has been [set](Self::set_state), if there is one.
    pub(crate) fn complete_state(&mut self, resource: ResourceId) {
        self.exchange.complete_state(resource);
    }

    /// Ends a filter that cannot be observed, or no longer: requests that wait for it get the answer.
    pub(crate) fn fail_state(&mut self, resource: ResourceId, answer: impl Fn() -> BridgeAnswer) {
        self.exchange.fail_state(resource, answer);
    }

    /// The request of an exchange was submitted.
    pub(crate) fn submitted(&mut self, exchange: PendingId, request: RequestId) {
        self.exchange.forwarding.submitted(exchange, request);
    }

    /// There was no room for the request of an exchange.
    pub(crate) fn refused(&mut self, exchange: PendingId, now: Time) {
        self.exchange.forwarding.refused(exchange, now);
    }

    /// The oldest request of the same pool that waits for a worker.
    pub(crate) fn oldest_queued(
        &self,
        exchange: PendingId,
        is_queued: impl Fn(RequestId) -> bool,
    ) -> Option<(PendingId, RequestId)> {
        self.exchange.forwarding.oldest_queued(exchange, is_queued)
    }

    /// Processes an event of a submitted request. The answer leaves by [`poll_transmit`](Self::poll_transmit).
    pub(crate) fn worker_event(&mut self, request: RequestId, event: UpstreamEvent, now: Time) {
        self.exchange.forwarding.event(request, event, now);
    }

    /// Processes a datagram. Returns the reply to be sent along `path`, if there is one.
    pub(crate) fn receive(
        &mut self,
        now: Time,
        path: &DatagramPath,
        datagram: &[u8],
        is_truncated: bool,
        endpoint: CoapEndpoint,
    ) -> Option<&[u8]> {
        let counters = Arc::clone(&self.exchange.counters);
        let message = match CoapMessage::parse(datagram) {
            Ok(message) if !is_truncated => message,
            Ok(_) => {
                counters.count(DatagramClass::Malformed);
                return None;
            }
            Err(error) => {
                counters.count(DatagramClass::Malformed);
                let Reaction::Reset(id) = error.reaction() else { return None };
                return Some(self.reply_empty(MessageType::Reset, id));
            }
        };
        if message.content != MessageContent::Request {
            counters.count(DatagramClass::Control);
            return self.receive_control(now, path, &message);
        }
        let size = self.receive_request(now, path, &message, datagram.len(), endpoint)?;
        Some(&self.reply[..size])
    }

    fn reply_empty(&mut self, kind: MessageType, id: MessageId) -> &[u8] {
        let message = encode_empty(kind, id);
        self.reply[..message.len()].copy_from_slice(&message);
        &self.reply[..message.len()]
    }

    /// Processes a message that is no request.
    fn receive_control(
        &mut self,
        now: Time,
        path: &DatagramPath,
        message: &CoapMessage<'_>,
    ) -> Option<&[u8]> {
        match message.kind {
            // A ping, or a response to a request that this side did not send.
            MessageType::Confirmable => return Some(self.reply_empty(MessageType::Reset, message.id)),
            MessageType::Acknowledgement => {
                self.exchange.transmissions.end(path, message.id);
                self.exchange.observations.acknowledged(path, message.id, now);
            }
            MessageType::Reset => {
                self.exchange.transmissions.end(path, message.id);
                let is_observer = self.exchange.observations.rejected(path, message.id);
                self.exchange.counters.observers_reset.add(u64::from(is_observer));
            }
            MessageType::NonConfirmable => {}
        }
        None
    }

    /// Processes a request. Returns the size of the reply.
    fn receive_request(
        &mut self,
        now: Time,
        path: &DatagramPath,
        message: &CoapMessage<'_>,
        size: usize,
        endpoint: CoapEndpoint,
    ) -> Option<usize> {
        let CoapShard { exchange, path: path_buffer, cache_key, body, reply, .. } = self;
        let key = ExchangeKey { path: *path, id: message.id, token: message.token };
        match exchange.cache.find(&key, now).filter(|_| !planted!("executed duplicate")) {
            Some(KnownExchange::Replied(known)) => {
                exchange.counters.count(DatagramClass::Duplicate);
                // A duplicate may be shorter than the request that was answered.
                let limit = exchange.unproven.reply_size_max(path, size, &exchange.peers, now);
                if known.len() > limit {
                    let extended = exchange.unproven.extended(limit, now)?;
                    if known.len() > extended {
                        return None;
                    }
                    exchange.unproven.spend(known.len(), limit);
                    exchange.counters.unproven_replies.add(1);
                }
                reply[..known.len()].copy_from_slice(known);
                return Some(known.len());
            }
            Some(KnownExchange::ReplyOverwritten) if is_safe(message.code) => {}
            Some(KnownExchange::WithoutReply | KnownExchange::ReplyOverwritten) => {
                exchange.counters.count(DatagramClass::Duplicate);
                return None;
            }
            None => {}
        }
        let mut context = RequestContext {
            key,
            kind: message.kind,
            block1: None,
            block2: None,
            observe: None,
            no_response: Default::default(),
            size,
        };
        cache_key.set(message);
        let mut request = match CoapRequest::decode(message, path_buffer) {
            Ok(request) => request,
            Err(error) => return exchange.refuse(error, &context, now, reply),
        };
        (context.block2, context.no_response) = (request.block2, request.no_response);
        let is_fresh = request.echo.is_some_and(|echo| exchange.peers.check(path.peer, echo, now));
        exchange.counters.count(match request.is_next_block() {
            true => DatagramClass::NextBlock,
            false if exchange.is_refresh(&request, &context) => DatagramClass::ObserveRefresh,
            false => DatagramClass::New,
        });
        // A spoofed source must not end the observation of its owner.
        if exchange.is_proven(path, now) {
            exchange.deregister(&request, &context);
        }
        let target = match exchange.route(&request) {
            Ok(target) => target,
            Err(code) => {
                exchange.answer.start(code);
                return exchange.reply(&context, cache_key.bytes(), now, reply);
            }
        };
        match exchange.admit(target, &request, &context, is_fresh, now) {
            RequestAdmission::Admitted => {}
            RequestAdmission::Refused => return exchange.reply(&context, cache_key.bytes(), now, reply),
            RequestAdmission::Ignored => return None,
        }
        if exchange.needs_proof(&request, &context, now) {
            return exchange.require_proof(&context, now, reply);
        }
        let is_complete = match request.block1 {
            Some(block) => {
                let is_complete =
                    exchange.assemble(&request, block, &mut context, cache_key.bytes(), now, body);
                request.payload = body;
                is_complete
            }
            None => true,
        };
        if is_complete {
            if let Some(size) = exchange.next_block(&request, &context, cache_key.bytes(), now, reply) {
                return Some(size);
            }
            // Otherwise each observer of a long state would store it.
            let is_stored = !exchange.reads_observed_state(target, &request);
            let cache_key = cache_key.bytes().filter(|_| is_stored);
            if exchange.answer_or_wait(target, &request, &mut context, (cache_key, endpoint), now) {
                return None;
            }
            return exchange.reply(&context, cache_key, now, reply);
        }
        exchange.reply(&context, cache_key.bytes(), now, reply)
    }

    /// The next message to be sent that is no reply to a datagram. It is returned again until
    /// [`transmitted`](Self::transmitted) is called.
    pub(crate) fn poll_transmit(&mut self, now: Time) -> Option<(DatagramPath, &[u8])> {
        if self.staged.is_none() {
            self.staged = self.exchange.stage(now, &mut self.staged_bytes);
        }
        let (path, size) = self.staged?;
        Some((path, &self.staged_bytes[..size]))
    }

    /// The message of [`poll_transmit`](Self::poll_transmit) has been sent.
    pub(crate) fn transmitted(&mut self) {
        self.staged = None;
    }

    /// When to call [`poll_transmit`](Self::poll_transmit) and [`publish_metrics`](Self::publish_metrics) next.
    pub(crate) fn next_deadline(&self, now: Time) -> Option<Time> {
        let Exchanges { pending, transmissions, forwarding, .. } = &self.exchange;
        if self.exchange.bridge.has_ended() {
            return Some(now);
        }
        let observations = self.exchange.next_notification_at(now);
        [pending.next_deadline(), transmissions.next_deadline(), forwarding.next_report(), observations]
            .into_iter()
            .flatten()
            .min()
    }

    /// The exchanges that a successor has to know, at most `size_max` bytes. `socket_id` identifies a socket for both
    /// servers.
    pub(crate) fn handed_exchanges(
        &self,
        now: Time,
        size_max: usize,
        socket_id: impl Fn(u32) -> Option<u64>,
    ) -> Vec<u8> {
        let (mut newest_first, mut starts) = (Vec::new(), Vec::new());
        for (key, age, reply) in self.exchange.cache.unsafe_exchanges(now) {
            let DatagramPath { socket, peer, local } = key.path;
            let Some(socket) = socket_id(socket) else { continue };
            let start = newest_first.len();
            HandedExchange { socket, peer, local, id: key.id, token: key.token, age, reply }
                .write(&mut newest_first);
            if newest_first.len() > size_max {
                newest_first.truncate(start);
                break;
            }
            starts.push(start);
        }
        // The successor restores them in the order of their arrival.
        let ends = starts.iter().skip(1).copied().chain([newest_first.len()]);
        let ranges: Vec<_> = starts.iter().copied().zip(ends).collect();
        ranges.iter().rev().flat_map(|(start, end)| &newest_first[*start..*end]).copied().collect()
    }

    /// Restores exchanges of the predecessor at sockets that this shard has.
    pub(crate) fn restore_exchanges(
        &mut self,
        now: Time,
        handed: &[u8],
        socket_number: impl Fn(u64) -> Option<u32>,
    ) {
        for HandedExchange { socket, peer, local, id, token, age, reply } in records(handed) {
            let Some(socket) = socket_number(socket) else { continue };
            let key = ExchangeKey { path: DatagramPath { socket, peer, local }, id, token };
            if age < EXCHANGE_LIFETIME && reply.is_none_or(|reply| reply.len() <= MESSAGE_SIZE_MAX) {
                self.exchange.cache.insert_since(key, now.before(age), now, reply);
            }
        }
    }

    /// Requests that wait for their answers.
    pub(crate) fn pending(&self) -> usize {
        self.exchange.pending.len()
    }

    /// No more datagrams arrive: separate responses are not confirmable, because their acknowledgements are lost.
    pub(crate) fn stop_receiving(&mut self) {
        self.exchange.is_receiving = false;
    }

    /// Sets the gauges, and reports changes of overload.
    pub(crate) fn publish_metrics(&mut self, now: Time) {
        let Exchanges {
            counters, cache, assemblies, pending, forwarding, transmissions, observations, ..
        } = &mut self.exchange;
        forwarding.report_overload(now);
        counters.overloaded_pools.set(forwarding.overloaded_pools(now) as u64);
        counters.exchanges_evicted.add(cache.take_evicted());
        counters.exchanges.set(cache.len());
        counters.assemblies.set(assemblies.open(now));
        counters.pending.set(pending.len() as u64);
        counters.transmissions.set(transmissions.len() as u64);
        counters.observers.set(observations.len() as u64);
        counters.observed_resources.set(observations.resources() as u64);
    }
}

#[cfg(test)]
mod tests;
