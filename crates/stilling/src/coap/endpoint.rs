//! The endpoint of one shard: classifies datagrams, and composes the parts that own the state of exchanges.

use std::hash::BuildHasher;
use std::sync::Arc;

use stilling_engine::DatagramPath;
use stilling_hub::HashKey;
use stilling_ring::Time;
use stilling_wire::coap::limits::{BLOCK_SIZE_MAX, HEADER_SIZE};
use stilling_wire::coap::{
    BlockSize, BlockValue, CoapMessage, Code, ContentFormat, MessageContent, MessageId, MessageType,
    Reaction, encode_empty,
};

use super::answer::{Answer, MessageHead, encode_block, encode_whole};
use super::assembly::{Assemblies, BlockOutcome};
use super::body_cache::{BodyCache, BodyHead};
use super::call::CoapCall;
use super::counters::{CoapCounters, DatagramClass};
use super::demo::{self, DemoOutcome, DemoResources};
use super::exchange_cache::{ExchangeCache, ExchangeKey, KnownExchange};
use super::forwarding::{Forwarding, ShedDecision};
use super::handed_exchanges::{HandedExchange, records};
use super::http_mapping::AnsweredRequest;
use super::limits::{
    AMPLIFICATION_MAX, BODIES_MAX, BODIES_SIZE_MAX, BODY_SIZE_MAX, EXCHANGE_LIFETIME, EXCHANGES_MAX,
    FORWARD_TIMEOUT, MESSAGE_SIZE_MAX, REPLIES_SIZE_MAX, REQUEST_BODY_SIZE_MAX, RETRY_AFTER_SECONDS,
    TRANSMISSIONS_MAX,
};
use super::peers::ProvenPeers;
use super::pending::{
    AwaitedAnswer, PendingEvent, PendingExchange, PendingExchanges, PendingId, RequestContext,
};
use super::request::{CacheKey, CoapRequest, PathBuffer, RequestError, is_safe};
use super::transmissions::Transmissions;
use super::unproven::{UnprovenBudget, UnprovenPeers};
use crate::upstream::{AppRoutes, PoolIndex, RequestId, UpstreamEvent};

/// The path of the links to all resources (RFC 6690 §4).
const LINKS_PATH: &[u8] = b".well-known/core";

/// What a socket serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoapEndpoint {
    /// The demo resources.
    pub demo: bool,
}

/// What the endpoints of all shards have in common.
#[derive(Clone, Debug, Default)]
pub(crate) struct CoapSettings {
    /// The addresses that have to prove themselves.
    pub(crate) unproven: UnprovenPeers,
    pub(crate) demo: DemoResources,
}

/// Whether a request has its answer.
enum Outcome {
    /// In the [`Answer`].
    Answered,
    Later(AwaitedAnswer),
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

/// The state of all exchanges.
#[derive(Debug)]
struct Exchanges {
    counters: Arc<CoapCounters>,
    cache: ExchangeCache,
    bodies: BodyCache,
    assemblies: Assemblies,
    pending: PendingExchanges,
    forwarding: Forwarding,
    transmissions: Transmissions,
    peers: ProvenPeers,
    demo: DemoResources,
    answer: Answer,
    next_id: MessageId,
    /// Acknowledgements can arrive.
    is_receiving: bool,
    unproven: UnprovenBudget,
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
            pending: PendingExchanges::new(now),
            transmissions: Transmissions::new(key, TRANSMISSIONS_MAX, now, seed),
            peers: ProvenPeers::new(key),
            demo: DemoResources::default(),
            answer: Answer::default(),
            next_id: seed as MessageId,
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
        self.exchange.demo = settings.demo;
        self
    }

    /// Sets the pools of worker processes: their routes, and the slots of each.
    pub(crate) fn with_pools(
        mut self,
        routes: AppRoutes,
        slots: impl Iterator<Item = usize>,
        now: Time,
    ) -> CoapShard {
        self.exchange.forwarding.set_pools(routes, slots, now);
        self
    }

    /// The next call for the worker processes, to be made after each call of another method.
    pub(crate) fn next_call(&mut self) -> Option<CoapCall> {
        self.exchange.forwarding.next_call()
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
            return self.receive_control(path, &message);
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
    fn receive_control(&mut self, path: &DatagramPath, message: &CoapMessage<'_>) -> Option<&[u8]> {
        match message.kind {
            // A ping, or a response to a request that this side did not send.
            MessageType::Confirmable => return Some(self.reply_empty(MessageType::Reset, message.id)),
            MessageType::Acknowledgement | MessageType::Reset => {
                self.exchange.transmissions.end(path, message.id);
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
        match exchange.cache.find(&key, now) {
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
        if let Some(echo) = request.echo {
            exchange.peers.check(path.peer, echo, now);
        }
        let is_next_block =
            request.later_block().is_some() || request.block1.is_some_and(|block| block.number() > 0);
        let class = if is_next_block { DatagramClass::NextBlock } else { DatagramClass::New };
        exchange.counters.count(class);
        let pool = match exchange.route(&request) {
            Ok(pool) => pool,
            Err(code) => {
                exchange.answer.start(code);
                return exchange.reply(&context, cache_key.bytes(), now, reply);
            }
        };
        if let Some(pool) = pool.filter(|_| !is_next_block) {
            match exchange.forwarding.shed(pool, path.peer, now) {
                ShedDecision::Admitted => {}
                ShedDecision::Silence => return None,
                ShedDecision::Reply(code) => {
                    exchange.answer.start(code).max_age = Some(RETRY_AFTER_SECONDS);
                    return exchange.reply(&context, cache_key.bytes(), now, reply);
                }
            }
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
            if let Some(pool) = pool {
                if exchange.forward(pool, &request, context, cache_key.bytes(), now) {
                    return None;
                }
                return exchange.reply(&context, cache_key.bytes(), now, reply);
            }
            match exchange.execute(&request, endpoint, now) {
                Outcome::Answered => {}
                Outcome::Later(awaits) => {
                    if exchange.wait(context, awaits, cache_key.bytes(), now).is_some() {
                        return None;
                    }
                }
            }
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

    /// When to call [`poll_transmit`](Self::poll_transmit) next.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let Exchanges { pending, transmissions, .. } = &self.exchange;
        pending.next_deadline().into_iter().chain(transmissions.next_deadline()).min()
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

    /// Sets the gauges.
    pub(crate) fn publish_metrics(&mut self, now: Time) {
        let Exchanges { counters, cache, assemblies, pending, forwarding, transmissions, .. } =
            &mut self.exchange;
        counters.overloaded_pools.set(forwarding.overloaded_pools(now) as u64);
        counters.exchanges_evicted.add(cache.take_evicted());
        counters.exchanges.set(cache.len());
        counters.assemblies.set(assemblies.open(now));
        counters.pending.set(pending.len() as u64);
        counters.transmissions.set(transmissions.len() as u64);
    }
}

impl Exchanges {
    /// Bytes of a reply at most: an address that has not proved itself may be spoofed.
    fn reply_size_max(&self, path: &DatagramPath, request_size: usize, now: Time) -> usize {
        self.unproven.reply_size_max(path, request_size, &self.peers, now)
    }

    /// Answers a request whose options are invalid.
    fn refuse(
        &mut self,
        error: RequestError,
        context: &RequestContext,
        now: Time,
        reply: &mut [u8],
    ) -> Option<usize> {
        self.counters.count(DatagramClass::New);
        if let RequestError::BadOption(option) = error {
            self.counters.bad_options.add(1);
            if !context.is_confirmable() {
                // RFC 7252 §5.4.1: it is rejected.
                let reset = encode_empty(MessageType::Reset, context.key.id);
                reply[..reset.len()].copy_from_slice(&reset);
                return Some(reset.len());
            }
            use std::io::Write as _;
            // Writing to a vector does not fail.
            let _ = write!(self.answer.start(error.code()).body, "unknown critical option {}", option.0);
        } else {
            self.answer.start(error.code());
        }
        self.reply(context, None, now, reply)
    }

    /// Adds a block of a request. Returns whether `body` is now the whole body; otherwise the answer is ready.
    fn assemble(
        &mut self,
        request: &CoapRequest<'_>,
        block: BlockValue,
        context: &mut RequestContext,
        cache_key: Option<&[u8]>,
        now: Time,
        body: &mut Vec<u8>,
    ) -> bool {
        context.block1 = Some(block);
        let key = cache_key.unwrap_or_default();
        let outcome = self.assemblies.add(context.path(), key, now, block, request.size1, request.payload);
        match outcome {
            BlockOutcome::Complete(at) => {
                self.assemblies.take(at, body);
                return true;
            }
            BlockOutcome::Continue => _ = self.answer.start(Code::CONTINUE),
            BlockOutcome::Incomplete => {
                self.answer.error(Code::REQUEST_ENTITY_INCOMPLETE, "earlier blocks are missing: start again");
            }
            BlockOutcome::TooLarge => {
                self.answer.start(Code::REQUEST_ENTITY_TOO_LARGE).size1 = Some(REQUEST_BODY_SIZE_MAX as u32);
            }
            BlockOutcome::WrongSize => {
                self.answer.error(Code::BAD_REQUEST, "the block does not have the size that it states");
            }
            BlockOutcome::NoRoom => self.refuse_full(),
        }
        false
    }

    /// Answers 5.03: a table is full.
    fn refuse_full(&mut self) {
        self.counters.refused_full.add(1);
        self.answer.start(Code::SERVICE_UNAVAILABLE).max_age = Some(RETRY_AFTER_SECONDS);
    }

    /// Replies with a later block of a stored answer; `None` if there is none.
    fn next_block(
        &mut self,
        request: &CoapRequest<'_>,
        context: &RequestContext,
        cache_key: Option<&[u8]>,
        now: Time,
        reply: &mut [u8],
    ) -> Option<usize> {
        let block = request.later_block()?;
        let limit = self.reply_size_max(context.path(), context.size, now);
        let (head, body) = self.bodies.find(context.path(), cache_key?, now)?;
        if block.offset() >= body.len() {
            return None;
        }
        let message = reply_head(context);
        let size = encode_fitting_block(reply, &message, &head, body, block, limit)?;
        self.cache.insert(context.key, now, Some(&reply[..size]));
        Some(size)
    }

    /// The pool of worker processes that answers a request. As over HTTP, a pool has precedence over built-in
    /// resources.
    fn route(&mut self, request: &CoapRequest<'_>) -> Result<Option<PoolIndex>, Code> {
        if request.path == LINKS_PATH {
            return Ok(None);
        }
        self.forwarding.route(request)
    }

    /// Forwards a request to a worker process. Otherwise the answer is ready.
    fn forward(
        &mut self,
        pool: PoolIndex,
        request: &CoapRequest<'_>,
        context: RequestContext,
        cache_key: Option<&[u8]>,
        now: Time,
    ) -> bool {
        if self.refuse_lost_answer(request) {
            return false;
        }
        let path = context.key.path;
        let upstream = match self.forwarding.upstream_request(pool, request, &path) {
            Ok(upstream) => upstream,
            Err(code) => {
                let retry_after = (code == Code::SERVICE_UNAVAILABLE).then_some(RETRY_AFTER_SECONDS);
                self.answer.start(code).max_age = retry_after;
                return false;
            }
        };
        let awaits = AwaitedAnswer::Worker(now.after(FORWARD_TIMEOUT));
        let Some(exchange) = self.wait(context, awaits, cache_key, now) else { return false };
        let answered = AnsweredRequest { method: request.code, accept: request.accept };
        self.forwarding.forward(exchange, pool, answered, path, upstream, now);
        true
    }

    /// Refuses a request for a later block of an answer that is no longer stored, if its method has an effect.
    fn refuse_lost_answer(&mut self, request: &CoapRequest<'_>) -> bool {
        let is_lost = request.later_block().is_some() && !request.is_safe();
        if is_lost {
            self.answer.error(
                Code::REQUEST_ENTITY_INCOMPLETE,
                "the answer is no longer stored: repeat the request from its first block",
            );
        }
        is_lost
    }

    /// Asks the resource of a request.
    fn execute(&mut self, request: &CoapRequest<'_>, endpoint: CoapEndpoint, now: Time) -> Outcome {
        if self.refuse_lost_answer(request) {
            return Outcome::Answered;
        }
        if request.path == LINKS_PATH {
            self.answer.start(Code::CONTENT).format = Some(ContentFormat::LINK_FORMAT);
            match request.code {
                Code::GET if endpoint.demo => demo::links(request, &mut self.answer),
                Code::GET => {}
                _ => _ = self.answer.start(Code::METHOD_NOT_ALLOWED),
            }
            return Outcome::Answered;
        }
        if request.is_conditional && !DemoResources::has_conditions(request.path) {
            self.answer.error(Code::BAD_OPTION, "the resource has no conditions");
            return Outcome::Answered;
        }
        let outcome = match endpoint.demo {
            true => self.demo.respond(request, &mut self.answer),
            false => DemoOutcome::NotFound,
        };
        match outcome {
            DemoOutcome::Answered => {}
            DemoOutcome::Separate => {
                return Outcome::Later(AwaitedAnswer::Demo(now.after(demo::SEPARATE_DELAY)));
            }
            DemoOutcome::NotFound => _ = self.answer.start(Code::NOT_FOUND),
        }
        Outcome::Answered
    }

    /// Makes a request wait for its answer. `None`: there was no room, and the answer says so.
    fn wait(
        &mut self,
        context: RequestContext,
        awaits: AwaitedAnswer,
        cache_key: Option<&[u8]>,
        now: Time,
    ) -> Option<PendingId> {
        let exchange = self.pending.insert(context, awaits, cache_key, now);
        match exchange {
            Some(_) => self.cache.insert(context.key, now, None),
            None => self.refuse_full(),
        }
        exchange
    }

    /// Writes the answer as the reply to a request, and remembers it. Returns its size; `None` if nothing is sent.
    fn reply(
        &mut self,
        context: &RequestContext,
        cache_key: Option<&[u8]>,
        now: Time,
        reply: &mut [u8],
    ) -> Option<usize> {
        let size = self.write_answer(&reply_head(context), context, cache_key, now, reply);
        self.cache.insert(context.key, now, size.map(|size| &reply[..size]));
        size
    }

    /// Writes the answer as a message with this head, within the size that the peer may get. A long one is stored, and
    /// its first block is written.
    fn write_answer(
        &mut self,
        head: &MessageHead,
        context: &RequestContext,
        cache_key: Option<&[u8]>,
        now: Time,
        buffer: &mut [u8],
    ) -> Option<usize> {
        if context.no_response.suppresses(self.answer.code) {
            if head.kind != MessageType::Acknowledgement {
                return None;
            }
            return write_empty(buffer, MessageType::Acknowledgement, head.id);
        }
        if self.answer.body.len() > BODY_SIZE_MAX {
            self.answer.start(Code::INTERNAL_SERVER_ERROR);
        }
        let limit = self.reply_size_max(context.path(), context.size, now);
        let written = self.write_fitting(head, context, cache_key, now, buffer, limit);
        if written.is_some() {
            return written;
        }
        if let Some(extended) = self.unproven.extended(limit, now)
            && let Some(size) = self.write_fitting(head, context, cache_key, now, buffer, extended)
        {
            self.unproven.spend(size, limit);
            self.counters.unproven_replies.add(1);
            return Some(size);
        }
        // What does not fit without proof of the address is refused by Echo, if that fits.
        self.counters.amplification_limited.add(1);
        let echo = self.peers.echo(context.path().peer, now);
        self.answer.start(Code::UNAUTHORIZED);
        let size = encode_whole(buffer, head, &self.answer, Some(&echo)).ok()?.len();
        (size <= limit).then(|| {
            self.counters.echo_required.add(1);
            size
        })
    }

    fn write_fitting(
        &mut self,
        head: &MessageHead,
        context: &RequestContext,
        cache_key: Option<&[u8]>,
        now: Time,
        buffer: &mut [u8],
        limit: usize,
    ) -> Option<usize> {
        let Exchanges { answer, bodies, .. } = self;
        let largest = context.block2.map_or(BlockSize::MAX, |block| block.size);
        let is_success = answer.code.is_success();
        let block = context.block2.filter(|_| is_success);
        let fits_block = answer.body.len() <= largest.bytes().min(BLOCK_SIZE_MAX);
        if !is_success {
            // A diagnostic payload is optional.
            answer.body.truncate(BLOCK_SIZE_MAX);
        }
        if block.is_none() && (fits_block || !is_success) {
            let size = encode_whole(buffer, head, answer, None).ok()?.len();
            if size <= limit {
                return Some(size);
            }
            if !is_success {
                answer.body.clear();
                let size = encode_whole(buffer, head, answer, None).ok()?.len();
                return (size <= limit).then_some(size);
            }
        }
        let block = block.or_else(|| BlockValue::new(0, false, largest))?;
        if block.offset() > 0 && block.offset() >= answer.body.len() {
            answer.error(Code::BAD_REQUEST, "there is no such block");
            let size = encode_whole(buffer, head, answer, None).ok()?.len();
            return (size <= limit).then_some(size);
        }
        let body_head = answer.head();
        let size = encode_fitting_block(buffer, head, &body_head, &answer.body, block, limit)?;
        if let Some(cache_key) = cache_key {
            bodies.insert(context.path(), cache_key, now, body_head, &answer.body);
        }
        Some(size)
    }

    fn stage(&mut self, now: Time, buffer: &mut [u8]) -> Option<(DatagramPath, usize)> {
        while self.transmissions.expire(now).is_some() {
            self.counters.transmissions_timed_out.add(1);
        }
        while let Some(event) = self.pending.expire(now) {
            let staged = match event {
                PendingEvent::Acknowledge(slot) => self.acknowledge(slot, now, buffer),
                PendingEvent::Answer(slot) => self.answer_due(slot, now, buffer),
            };
            if staged.is_some() {
                return staged;
            }
        }
        while let Some(exchange) = self.forwarding.next_ended(&mut self.answer) {
            let pending = self.pending.take(exchange);
            let staged = pending.and_then(|pending| self.answer_late(&pending, now, buffer));
            if staged.is_some() {
                return staged;
            }
        }
        let (path, message) = self.transmissions.next_due()?;
        let size = message.len();
        buffer[..size].copy_from_slice(message);
        self.transmissions.sent(now);
        Some((path, size))
    }

    /// Answers a pending request whose time has come.
    fn answer_due(&mut self, slot: u32, now: Time, buffer: &mut [u8]) -> Option<(DatagramPath, usize)> {
        let exchange = self.pending.id(slot)?;
        match self.pending.awaits(slot)? {
            AwaitedAnswer::Demo(_) => {
                let pending = self.pending.take(exchange)?;
                demo::answer_separately(&mut self.answer);
                self.answer_late(&pending, now, buffer)
            }
            AwaitedAnswer::Worker(_) => {
                self.forwarding.expire(exchange, now);
                None
            }
        }
    }

    /// Acknowledges a pending request, so that its client does not repeat it.
    fn acknowledge(&mut self, slot: u32, now: Time, buffer: &mut [u8]) -> Option<(DatagramPath, usize)> {
        let context = self.pending.acknowledged(slot)?;
        let size = write_empty(buffer, MessageType::Acknowledgement, context.key.id)?;
        self.cache.insert(context.key, now, Some(&buffer[..size]));
        self.counters.separate_responses.add(1);
        Some((context.key.path, size))
    }

    /// Writes the answer of a request that was pending. Returns what is to be sent at once; a separate response goes to
    /// the transmissions.
    fn answer_late(
        &mut self,
        pending: &PendingExchange,
        now: Time,
        buffer: &mut [u8],
    ) -> Option<(DatagramPath, usize)> {
        let mut context = pending.context;
        let path = context.key.path;
        let cache_key = Some(&pending.cache_key[..]).filter(|key| !key.is_empty());
        if !pending.is_acknowledged {
            let size = self.reply(&context, cache_key, now, buffer)?;
            return Some((path, size));
        }
        // An address that may be spoofed has got an acknowledgement already, and gets no retransmissions.
        let is_proven = self.reply_size_max(&path, context.size, now) == MESSAGE_SIZE_MAX;
        context.size = context.size.saturating_sub(HEADER_SIZE.div_ceil(AMPLIFICATION_MAX));
        let context = &context;
        let id = self.take_id();
        let head = MessageHead { kind: MessageType::Confirmable, id, ..reply_head(context) };
        if self.is_receiving && is_proven {
            let size = self.write_answer(&head, context, cache_key, now, buffer)?;
            if self.transmissions.push(path, id, &buffer[..size]) {
                return None;
            }
            self.counters.transmissions_refused.add(1);
        }
        let head = MessageHead { kind: MessageType::NonConfirmable, ..head };
        let size = self.write_answer(&head, context, cache_key, now, buffer)?;
        Some((path, size))
    }

    fn take_id(&mut self) -> MessageId {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }
}

/// The head of the reply to a request. Message ids of the two directions are independent, so a non-confirmable reply
/// may have that of its request, which is unique for its peer.
fn reply_head(context: &RequestContext) -> MessageHead {
    let kind = match context.kind {
        MessageType::Confirmable => MessageType::Acknowledgement,
        _ => MessageType::NonConfirmable,
    };
    MessageHead {
        kind,
        id: context.key.id,
        token: context.key.token,
        observe: context.observe,
        block1: context.block1,
    }
}

fn write_empty(buffer: &mut [u8], kind: MessageType, id: MessageId) -> Option<usize> {
    let message = encode_empty(kind, id);
    buffer.get_mut(..message.len())?.copy_from_slice(&message);
    Some(message.len())
}

/// Writes a block of at most the requested size, within `limit` bytes for the message.
fn encode_fitting_block(
    buffer: &mut [u8],
    head: &MessageHead,
    answer: &BodyHead,
    body: &[u8],
    block: BlockValue,
    limit: usize,
) -> Option<usize> {
    let mut size = block.size;
    loop {
        if let Ok(message) = encode_block(buffer, head, answer, body, (block.offset(), size))
            && message.len() <= limit
        {
            return Some(message.len());
        }
        if size == BlockSize::MIN {
            return None;
        }
        size = BlockSize::at_most(size.bytes() / 2);
    }
}

#[cfg(test)]
mod tests;
