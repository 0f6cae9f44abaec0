//! A client that sends one request at a time with the shipped protocol core, and checks each message and each answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use stilling_client::coap::{CoapClientConfig, CoapClientCore, CoapClientEvent};
use stilling_ring::Time;
use stilling_wire::coap::{CoapMessage, MessageContent, MessageId, MessageType, encode_empty};

use super::CoapTotals;
use super::ledger::Ledger;
use super::operation::{Operation, OperationEnd};
use super::parameters::ClientParameters;
use crate::SplitMix64;
use crate::network::{Network, SimDatagramPeer};

/// Rate of requests that are abandoned for the next one, per thousand.
const ABANDONED_RATE: u16 = 60;
/// Distance of the ids of pings to those of requests, which the core counts up: a late reset that answers a ping must
/// not have the id of a request.
const PING_ID_DISTANCE: MessageId = 1 << 15;

/// Rate of pings, per thousand messages.
const PING_RATE: u16 = 20;
/// How long an id must not be used for another message.
const EXCHANGE_LIFETIME: Duration = Duration::from_secs(247);
/// Bytes of a message of the server at most.
const MESSAGE_SIZE_MAX: usize = 1280;
/// Pause after a refusal.
const REFUSED_PAUSE: Duration = Duration::from_secs(7);

/// What a client sees of the world during a step.
pub(super) struct CoapClientContext<'a> {
    pub(super) now: Time,
    pub(super) ledger: &'a Ledger,
    pub(super) totals: &'a mut CoapTotals,
    /// When the last requests begin: faults and their consequences have ended.
    pub(super) calm_from: Time,
}

/// See the [module](self).
pub(super) struct CoapWorldClient {
    number: u64,
    parameters: ClientParameters,
    random: SplitMix64,
    peer: SimDatagramPeer,
    core: CoapClientCore,
    /// The client's clock at the start of the world.
    origin: Instant,
    operation: Option<Operation>,
    /// When the current request is abandoned.
    abandons_at: Option<Time>,
    next_at: Time,
    requests: u64,
    /// Requests before the last one.
    remaining: u32,
    has_last_answer: bool,
    /// The token of each message that was sent.
    sent: BTreeMap<MessageId, Vec<u8>>,
    /// Id of the last request.
    last_id: MessageId,
    tokens: BTreeSet<Vec<u8>>,
    /// What the server sent with each of its message ids, and when.
    received: BTreeMap<MessageId, (Time, Vec<u8>)>,
}

impl CoapWorldClient {
    pub(super) fn new(
        number: u64,
        parameters: ClientParameters,
        network: &Network,
        random: &mut SplitMix64,
    ) -> CoapWorldClient {
        let mut random = random.fork();
        let config =
            CoapClientConfig { request_timeout: parameters.request_timeout, ..CoapClientConfig::default() };
        CoapWorldClient {
            number,
            parameters,
            peer: network.bind_as_peer(parameters.address),
            core: CoapClientCore::new(config, random.bits()),
            origin: Instant::now(),
            operation: None,
            abandons_at: None,
            next_at: Time::ZERO.after(Duration::from_millis(random.below(2000))),
            requests: 0,
            remaining: parameters.requests,
            has_last_answer: false,
            sent: BTreeMap::new(),
            last_id: 0,
            tokens: BTreeSet::new(),
            received: BTreeMap::new(),
            random,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.has_last_answer
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "client {}: {} requests remain, next at {:?}, {:?}",
            self.number, self.remaining, self.next_at, self.operation
        )
    }

    /// When [`step`](Self::step) is due.
    pub(super) fn wake_at(&self) -> Option<Time> {
        if self.operation.is_none() {
            return (!self.is_done()).then_some(self.next_at);
        }
        let timer = self.core.next_timer().map(|at| self.time(at));
        timer.into_iter().chain(self.abandons_at).min()
    }

    fn instant(&self, now: Time) -> Instant {
        self.origin + Duration::from_nanos(now.as_nanos())
    }

    fn time(&self, at: Instant) -> Time {
        Time::ZERO.after(at.saturating_duration_since(self.origin))
    }

    /// Receives and sends what is possible at this time. Returns whether there was anything.
    pub(super) fn step(&mut self, context: &mut CoapClientContext<'_>) -> Result<bool, String> {
        self.advance(context).map_err(|why| format!("{why}; {}", self.describe()))
    }

    fn advance(&mut self, context: &mut CoapClientContext<'_>) -> Result<bool, String> {
        let (now, mut any) = (self.instant(context.now), false);
        while let Some((from, datagram)) = self.peer.receive() {
            if from != self.parameters.server {
                return Err(format!("a datagram from {from}"));
            }
            self.check_datagram(&datagram, context.now)?;
            self.core.handle_datagram(&datagram, now);
            self.flush();
            self.poll_events(context)?;
            any = true;
        }
        if self.wake_at().is_some_and(|at| at <= context.now) {
            any = true;
            match self.operation {
                Some(_) if self.abandons_at.is_some_and(|at| at <= context.now) => {
                    context.totals.abandoned += 1;
                    self.end_operation(Duration::ZERO, context);
                }
                Some(_) => self.core.handle_timer(now),
                None => self.begin(context),
            }
            self.flush();
            self.poll_events(context)?;
        }
        Ok(any)
    }

    fn begin(&mut self, context: &mut CoapClientContext<'_>) {
        let is_last = self.remaining == 0;
        if is_last && context.now < context.calm_from {
            self.next_at = context.calm_from;
            return;
        }
        self.remaining = self.remaining.saturating_sub(1);
        self.requests += 1;
        let id = (self.number + 1) << 32 | self.requests;
        let is_reader = self.parameters.is_reader;
        let operation = Operation::draw(id, is_reader, is_last, context.ledger, &mut self.random);
        context.totals.long_requests += u64::from(operation.is_long());
        self.core.start(operation.request(), self.instant(context.now));
        let is_abandoned = !is_last && self.random.chance(ABANDONED_RATE);
        let span = Duration::from_millis(self.random.between(1, 5000));
        self.abandons_at = is_abandoned.then(|| context.now.after(span));
        self.operation = Some(operation);
    }

    fn end_operation(&mut self, pause: Duration, context: &CoapClientContext<'_>) {
        self.operation = None;
        self.abandons_at = None;
        let drawn = Duration::from_millis(self.random.between(0, self.parameters.pause_ms_max));
        self.next_at = context.now.after(drawn + pause);
    }

    /// Sends the messages of the core, and pings.
    fn flush(&mut self) {
        while let Some(datagram) = self.core.poll_transmit() {
            if let Ok(message) = CoapMessage::parse(&datagram)
                && message.content == MessageContent::Request
            {
                let token = message.token.as_bytes().to_vec();
                self.sent.insert(message.id, token.clone());
                self.last_id = message.id;
                self.tokens.insert(token);
            }
            // A datagram of the core is never too long for the network.
            let _ = self.peer.send(self.parameters.server, &datagram);
            if self.random.chance(PING_RATE) {
                let id = self.last_id.wrapping_add(PING_ID_DISTANCE);
                if let std::collections::btree_map::Entry::Vacant(entry) = self.sent.entry(id) {
                    entry.insert(Vec::new());
                    let ping = encode_empty(MessageType::Confirmable, id);
                    let _ = self.peer.send(self.parameters.server, &ping);
                }
            }
        }
    }

    /// Checks that a message is for this client, and answers what it sent.
    fn check_datagram(&mut self, datagram: &[u8], now: Time) -> Result<(), String> {
        if datagram.len() > MESSAGE_SIZE_MAX {
            return Err(format!("a message of {} bytes", datagram.len()));
        }
        let message =
            CoapMessage::parse(datagram).map_err(|error| format!("a malformed message: {error}"))?;
        if matches!(message.kind, MessageType::Confirmable | MessageType::NonConfirmable) {
            // RFC 7252 §4.4: an id has one message within this time, or clients ignore the second.
            let is_other =
                |&(at, ref other): &(Time, Vec<u8>)| now.since(at) < EXCHANGE_LIFETIME && other != datagram;
            if self.received.get(&message.id).is_some_and(is_other) {
                return Err(format!("message id {} was used twice", message.id));
            }
            self.received.insert(message.id, (now, datagram.to_vec()));
        }
        let sent = self.sent.get(&message.id);
        let is_known = match (message.content, message.kind) {
            (MessageContent::Response, MessageType::Acknowledgement) => {
                sent.is_some_and(|token| token == message.token.as_bytes())
            }
            (MessageContent::Response, _) => self.tokens.contains(message.token.as_bytes()),
            (MessageContent::Empty, MessageType::Acknowledgement | MessageType::Reset) => sent.is_some(),
            _ => false,
        };
        if is_known { Ok(()) } else { Err(format!("a message for another client or request: {message:?}")) }
    }

    fn poll_events(&mut self, context: &mut CoapClientContext<'_>) -> Result<(), String> {
        while let Some(event) = self.core.poll_event() {
            // The core finishes what was abandoned, until the next request begins.
            let Some(operation) = &self.operation else { continue };
            let end = match &event {
                CoapClientEvent::Response(response) => {
                    context.totals.long_answers += u64::from(response.payload.len() > 64);
                    operation.check(response, context.ledger)?
                }
                CoapClientEvent::Failed(error) => Operation::check_failure(error)?,
                CoapClientEvent::Notification(_) => return Err("a notification".to_owned()),
            };
            self.finish(end, &event, context)?;
        }
        Ok(())
    }

    fn finish(
        &mut self,
        end: OperationEnd,
        event: &CoapClientEvent,
        context: &mut CoapClientContext<'_>,
    ) -> Result<(), String> {
        let Some(operation) = &self.operation else { return Ok(()) };
        match end {
            OperationEnd::Answered => {
                context.totals.answers += 1;
                self.has_last_answer |= operation.is_last;
            }
            OperationEnd::Refused | OperationEnd::Failed => context.totals.failures += 1,
        }
        if operation.is_last && end == OperationEnd::Failed {
            return Err(format!("a failure without faults: {event:?}"));
        }
        let pause = if end == OperationEnd::Refused { REFUSED_PAUSE } else { Duration::ZERO };
        self.end_operation(pause, context);
        Ok(())
    }
}
