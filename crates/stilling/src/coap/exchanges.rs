//! The state of all exchanges of one shard: composes the parts that own it, and writes answers.

use std::sync::Arc;

use stilling_engine::DatagramPath;
use stilling_ring::Time;
use stilling_wire::coap::limits::{BLOCK_SIZE_MAX, HEADER_SIZE};
use stilling_wire::coap::{BlockSize, BlockValue, Code, ContentFormat, MessageId, MessageType, encode_empty};

use super::answer::{Answer, MessageHead, encode_block, encode_whole};
use super::assembly::{Assemblies, BlockOutcome};
use super::body_cache::{BodyCache, BodyHead};
use super::bridge::{Bridge, BridgePath};
use super::counters::{CoapCounters, DatagramClass};
use super::demo::{self, DemoOutcome, DemoResources};
use super::endpoint::CoapEndpoint;
use super::exchange_cache::ExchangeCache;
use super::forwarding::{Forwarding, ShedDecision};
use super::http_mapping::AnsweredRequest;
use super::limits::{
    AMPLIFICATION_MAX, BODY_SIZE_MAX, EFFECT_REPLY_SIZE_MIN, FORWARD_TIMEOUT, REQUEST_BODY_SIZE_MAX,
    RETRY_AFTER_SECONDS,
};
use super::observations::Observations;
use super::peers::ProvenPeers;
use super::pending::{
    AwaitedAnswer, PendingEvent, PendingExchange, PendingExchanges, PendingId, RequestContext,
};
use super::request::{CoapRequest, RequestError};
use super::transmissions::Transmissions;
use super::unproven::UnprovenBudget;
use crate::upstream::PoolIndex;

/// The path of the links to all resources (RFC 6690 §4).
pub(super) const LINKS_PATH: &[u8] = b".well-known/core";

/// Whether a request has its answer.
pub(super) enum Outcome {
    /// In the [`Answer`].
    Answered,
    Later(AwaitedAnswer),
}

/// What answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Hub(BridgePath),
    Pool(PoolIndex),
    /// One of the server's own.
    Resource,
}

/// Whether a request goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestAdmission {
    Admitted,
    /// The answer is ready.
    Refused,
    /// It gets no answer.
    Ignored,
}

/// The state of all exchanges.
#[derive(Debug)]
pub(super) struct Exchanges {
    pub(super) counters: Arc<CoapCounters>,
    pub(super) cache: ExchangeCache,
    pub(super) bodies: BodyCache,
    pub(super) assemblies: Assemblies,
    pub(super) pending: PendingExchanges,
    pub(super) forwarding: Forwarding,
    pub(super) transmissions: Transmissions,
    pub(super) peers: ProvenPeers,
    pub(super) demo: DemoResources,
    pub(super) observations: Observations,
    pub(super) bridge: Bridge,
    pub(super) answer: Answer,
    /// Acknowledgements can arrive.
    pub(super) is_receiving: bool,
    pub(super) unproven: UnprovenBudget,
}

impl Exchanges {
    /// Whether a client receives at its address. If not, what it asks for could flood another or be in its name.
    pub(super) fn is_proven(&self, path: &DatagramPath, now: Time) -> bool {
        self.unproven.is_proven(path, &self.peers, now)
    }

    /// Bytes of a reply at most: an address that has not proved itself may be spoofed.
    pub(super) fn reply_size_max(&self, path: &DatagramPath, request_size: usize, now: Time) -> usize {
        self.unproven.reply_size_max(path, request_size, &self.peers, now)
    }

    /// Answers a request whose options are invalid.
    pub(super) fn refuse(
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
    pub(super) fn assemble(
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
    pub(super) fn refuse_full(&mut self) {
        self.counters.refused_full.add(1);
        self.answer.start(Code::SERVICE_UNAVAILABLE).max_age = Some(RETRY_AFTER_SECONDS);
    }

    /// Replies with a later block of a stored answer; `None` if there is none.
    pub(super) fn next_block(
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

    /// What answers a request. As over HTTP, the hub has precedence over pools of worker processes, and these over
    /// built-in resources.
    pub(super) fn route(&mut self, request: &CoapRequest<'_>) -> Result<Target, Code> {
        if let Some(path) = self.bridge.path(request) {
            return Ok(Target::Hub(path));
        }
        if request.path == LINKS_PATH {
            return Ok(Target::Resource);
        }
        Ok(self.forwarding.route(request)?.map_or(Target::Resource, Target::Pool))
    }

    /// Decides whether a request goes on, before anything of it is stored. `is_fresh`: it has a fresh Echo value.
    pub(super) fn admit(
        &mut self,
        target: Target,
        request: &CoapRequest<'_>,
        context: &RequestContext,
        is_fresh: bool,
        now: Time,
    ) -> RequestAdmission {
        match target {
            Target::Resource => RequestAdmission::Admitted,
            // One request of a spoofed address would occupy a process until it is idle.
            Target::Pool(pool)
                if self.forwarding.has_affinity(pool) && !self.is_proven(context.path(), now) =>
            {
                self.require_echo(context.path(), now);
                RequestAdmission::Refused
            }
            Target::Pool(_) if request.is_next_block() => RequestAdmission::Admitted,
            Target::Pool(pool) => match self.forwarding.shed(pool, context.path().peer, now) {
                ShedDecision::Admitted => RequestAdmission::Admitted,
                ShedDecision::Silence => RequestAdmission::Ignored,
                ShedDecision::Reply(code) => {
                    self.answer.start(code).max_age = Some(RETRY_AFTER_SECONDS);
                    RequestAdmission::Refused
                }
            },
            Target::Hub(path) if self.admit_to_hub(path, request, context, is_fresh, now) => {
                RequestAdmission::Admitted
            }
            Target::Hub(_) => RequestAdmission::Refused,
        }
    }

    /// Answers a complete request. Returns whether it waits for its answer; otherwise the answer is ready.
    pub(super) fn answer_or_wait(
        &mut self,
        target: Target,
        request: &CoapRequest<'_>,
        context: &mut RequestContext,
        (cache_key, endpoint): (Option<&[u8]>, CoapEndpoint),
        now: Time,
    ) -> bool {
        match target {
            Target::Hub(path) => self.ask_hub(path, request, context, cache_key, now),
            Target::Pool(pool) => self.forward(pool, request, *context, cache_key, now),
            Target::Resource => match self.execute(request, endpoint, now) {
                Outcome::Answered => {
                    self.observe_demo(request, context, cache_key, now);
                    false
                }
                Outcome::Later(awaits) => self.wait(*context, awaits, cache_key, now).is_some(),
            },
        }
    }

    /// Forwards a request to a worker process. Otherwise the answer is ready.
    pub(super) fn forward(
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
    pub(super) fn refuse_lost_answer(&mut self, request: &CoapRequest<'_>) -> bool {
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
    pub(super) fn execute(
        &mut self,
        request: &CoapRequest<'_>,
        endpoint: CoapEndpoint,
        now: Time,
    ) -> Outcome {
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
            true => self.demo.respond(request, now, &mut self.answer),
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
    pub(super) fn wait(
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
    pub(super) fn reply(
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
    pub(super) fn write_answer(
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
        let observe = head.observe.filter(|_| self.answer.code.is_success());
        let head = &MessageHead { observe, ..*head };
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
        self.write_echo(head, context, now, buffer, limit)
    }

    /// Writes a refusal with an Echo value, if it fits `limit`.
    fn write_echo(
        &mut self,
        head: &MessageHead,
        context: &RequestContext,
        now: Time,
        buffer: &mut [u8],
        limit: usize,
    ) -> Option<usize> {
        self.counters.amplification_limited.add(1);
        self.require_echo(context.path(), now);
        let head = MessageHead { observe: None, ..*head };
        let size = encode_whole(buffer, &head, &self.answer).ok()?.len();
        (size <= limit).then_some(size)
    }

    /// Answers 4.01 with an Echo value, with which the client repeats the request.
    pub(super) fn require_echo(&mut self, path: &DatagramPath, now: Time) {
        self.counters.echo_required.add(1);
        self.answer.start(Code::UNAUTHORIZED).echo = Some(self.peers.echo(path.peer, now));
    }

    /// Whether the answer of a request with an effect might not fit what its address may get without proof. After the
    /// execution that would be too late: the client repeats the request with its Echo value.
    pub(super) fn needs_proof(
        &mut self,
        request: &CoapRequest<'_>,
        context: &RequestContext,
        now: Time,
    ) -> bool {
        let limit = self.reply_size_max(context.path(), context.size, now);
        !request.is_safe()
            && limit < EFFECT_REPLY_SIZE_MIN
            && self.unproven.extended(limit, now).is_none_or(|extended| extended < EFFECT_REPLY_SIZE_MIN)
    }

    /// Replies that the address is to be proved first.
    pub(super) fn require_proof(
        &mut self,
        context: &RequestContext,
        now: Time,
        reply: &mut [u8],
    ) -> Option<usize> {
        let limit = self.reply_size_max(context.path(), context.size, now);
        let size = self.write_echo(&reply_head(context), context, now, reply, limit);
        self.cache.insert(context.key, now, size.map(|size| &reply[..size]));
        size
    }

    pub(super) fn write_fitting(
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
            let size = encode_whole(buffer, head, answer).ok()?.len();
            if size <= limit {
                return Some(size);
            }
            if !is_success {
                answer.body.clear();
                let size = encode_whole(buffer, head, answer).ok()?.len();
                return (size <= limit).then_some(size);
            }
        }
        let block = block.or_else(|| BlockValue::new(0, false, largest))?;
        if block.offset() > 0 && block.offset() >= answer.body.len() {
            answer.error(Code::BAD_REQUEST, "there is no such block");
            let size = encode_whole(buffer, head, answer).ok()?.len();
            return (size <= limit).then_some(size);
        }
        let body_head = answer.head();
        let size = encode_fitting_block(buffer, head, &body_head, &answer.body, block, limit)?;
        match (cache_key, head.observe) {
            // The further blocks come from the state, one copy for all observers.
            (Some(cache_key), Some(_)) => bodies.remove(context.path(), cache_key),
            (Some(cache_key), None) => {
                bodies.insert(context.path(), cache_key, now, body_head, &answer.body);
            }
            (None, _) => {}
        }
        Some(size)
    }

    pub(super) fn stage(&mut self, now: Time, buffer: &mut [u8]) -> Option<(DatagramPath, usize)> {
        while let Some((path, id)) = self.transmissions.expire(now) {
            self.counters.transmissions_timed_out.add(1);
            self.counters.observers_gone.add(self.observations.timed_out(&path, id));
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
        if let Some(staged) = self.stage_from_hub(now, buffer) {
            return Some(staged);
        }
        if let Some(staged) = self.stage_notification(now, buffer) {
            return Some(staged);
        }
        self.renew_due_notification(now, buffer);
        let (path, _, message) = self.transmissions.next_due()?;
        let size = message.len();
        buffer[..size].copy_from_slice(message);
        self.transmissions.sent(now);
        Some((path, size))
    }

    /// Answers a pending request whose time has come.
    pub(super) fn answer_due(
        &mut self,
        slot: u32,
        now: Time,
        buffer: &mut [u8],
    ) -> Option<(DatagramPath, usize)> {
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
            awaits @ (AwaitedAnswer::Publication(_) | AwaitedAnswer::State { .. }) => {
                self.expire_in_hub(exchange, awaits);
                None
            }
        }
    }

    /// Acknowledges a pending request, so that its client does not repeat it.
    pub(super) fn acknowledge(
        &mut self,
        slot: u32,
        now: Time,
        buffer: &mut [u8],
    ) -> Option<(DatagramPath, usize)> {
        let context = self.pending.acknowledged(slot)?;
        let size = write_empty(buffer, MessageType::Acknowledgement, context.key.id)?;
        self.cache.insert(context.key, now, Some(&buffer[..size]));
        self.counters.separate_responses.add(1);
        Some((context.key.path, size))
    }

    /// Writes the answer of a request that was pending. Returns what is to be sent at once; a separate response goes to
    /// the transmissions.
    pub(super) fn answer_late(
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
        let is_proven = self.is_proven(&path, now);
        context.size = context.size.saturating_sub(HEADER_SIZE.div_ceil(AMPLIFICATION_MAX));
        let context = &context;
        let head = MessageHead { kind: MessageType::Confirmable, ..reply_head(context) };
        if self.is_receiving && is_proven {
            let size = self.write_answer(&head, context, cache_key, now, buffer)?;
            if self.transmissions.push(path, head.id, &buffer[..size]) {
                return None;
            }
            self.counters.transmissions_refused.add(1);
        }
        let head = MessageHead { kind: MessageType::NonConfirmable, ..head };
        let size = self.write_answer(&head, context, cache_key, now, buffer)?;
        Some((path, size))
    }
}

/// The head of the reply to a request. Message ids of the two directions are independent, so a reply that is not an
/// acknowledgement may have that of its request, which is unique for its peer.
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

pub(super) fn write_empty(buffer: &mut [u8], kind: MessageType, id: MessageId) -> Option<usize> {
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
