//! A client that sends one request at a time with the shipped protocol core, and checks each message and each answer.

use std::time::{Duration, Instant};

use stilling_client::coap::{CoapClientConfig, CoapClientCore, CoapClientEvent};
use stilling_ring::Time;
use stilling_wire::coap::{MessageType, encode_empty};

use super::CoapTotals;
use super::conversation::Conversation;
use super::ledger::Ledger;
use super::operation::{Operation, OperationEnd};
use super::parameters::ClientParameters;
use crate::SplitMix64;
use crate::network::{Network, SimDatagramPeer};

/// Rate of requests that are abandoned for the next one, per thousand.
const ABANDONED_RATE: u16 = 60;
/// Rate of pings, per thousand messages.
const PING_RATE: u16 = 20;
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
    conversation: Conversation,
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
            conversation: Conversation::default(),
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
            self.conversation.check(&datagram, context.now)?;
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
            self.conversation.note_sent(&datagram);
            // A datagram of the core is never too long for the network.
            let _ = self.peer.send(self.parameters.server, &datagram);
            if self.random.chance(PING_RATE)
                && let Some(id) = self.conversation.add_ping()
            {
                let ping = encode_empty(MessageType::Confirmable, id);
                let _ = self.peer.send(self.parameters.server, &ping);
            }
        }
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
