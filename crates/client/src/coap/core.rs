//! The protocol of the client for one server, without socket and clock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use stilling_wire::coap::{
    CoapMessage, Code, MessageContent, MessageId, MessageType, ObserveSequence, OptionNumber, Reaction,
    Token, encode_empty,
};

use super::error::CoapClientError;
use super::exchange::{MessageExchange, TimerOutcome};
use super::limits::{ACK_TIMEOUT, REQUEST_TIMEOUT, RESPONSE_SIZE_MAX};
use super::message_ids::MessageIds;
use super::observation::Observation;
use super::recent_ids::RecentIds;
use super::request::CoapRequest;
use super::response::CoapResponse;
use super::transaction::{Progress, Transaction};
use crate::backoff::JitterRng;

/// Settings of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoapClientConfig {
    /// Least wait before the first retransmission; default 2 s. Each further wait is twice as long.
    pub ack_timeout: Duration,
    /// Time for a request with all its blocks; default 90 s. Exceeded: the request fails.
    pub request_timeout: Duration,
    /// Maximum bytes of a response body; default 16 MiB. Longer: the request fails.
    pub response_size_max: usize,
}

impl Default for CoapClientConfig {
    fn default() -> CoapClientConfig {
        CoapClientConfig {
            ack_timeout: ACK_TIMEOUT,
            request_timeout: REQUEST_TIMEOUT,
            response_size_max: RESPONSE_SIZE_MAX,
        }
    }
}

/// A result for the caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CoapClientEvent {
    /// The response to the request. It ends an observation: the server does not, or no longer, notify the client.
    Response(CoapResponse),
    /// The state of the observed resource; further ones follow.
    Notification(CoapResponse),
    /// The request or observation failed and has ended.
    Failed(CoapClientError),
}

/// See the module's page. The caller sends what [`CoapClientCore::poll_transmit`] returns, passes received datagrams and
/// due timers, and takes events, after each call.
///
/// ```
/// use std::time::Instant;
/// use stilling_client::coap::{CoapClientConfig, CoapClientCore, CoapRequest, CoapUrl};
/// use stilling_wire::coap::{Code, MessageType};
///
/// let now = Instant::now();
/// let url: CoapUrl = "coap://127.0.0.1/test".parse()?;
/// let mut core = CoapClientCore::new(CoapClientConfig::default(), 1);
/// core.start(CoapRequest::new(Code::GET, &url), now);
/// let datagram = core.poll_transmit().expect("a message");
/// assert_eq!(datagram[1], Code::GET.byte());
/// assert!(core.next_timer().is_some());
/// # Ok::<(), stilling_client::coap::BadCoapUrl>(())
/// ```
#[derive(Debug)]
pub struct CoapClientCore {
    config: CoapClientConfig,
    random: JitterRng,
    ids: MessageIds,
    recent: RecentIds,
    transaction: Option<Transaction>,
    observation: Option<Observation>,
    output: VecDeque<Vec<u8>>,
    events: VecDeque<CoapClientEvent>,
}

impl CoapClientCore {
    /// A client without a request. The seed determines ids, tokens and waits; it must be unpredictable outside of tests.
    #[must_use]
    pub fn new(config: CoapClientConfig, seed: u64) -> CoapClientCore {
        let mut random = JitterRng::new(seed);
        let first = random.next_u64() as MessageId;
        CoapClientCore {
            config,
            random,
            ids: MessageIds::new(first),
            recent: RecentIds::default(),
            transaction: None,
            observation: None,
            output: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Starts a request. One in progress, or an observation, is abandoned: later messages for it are rejected.
    pub fn start(&mut self, request: CoapRequest, now: Instant) {
        self.observation = None;
        self.begin(request, None, now);
    }

    /// Starts an observation of the resource of a GET or FETCH request; otherwise like [`CoapClientCore::start`].
    pub fn observe(&mut self, request: CoapRequest, now: Instant) {
        self.observation = None;
        self.begin(request, Some(ObserveSequence::REGISTER), now);
    }

    /// Ends the observation with a message to the server, whose response is an event. Returns whether there was one.
    pub fn end_observation(&mut self, now: Instant) -> bool {
        let Some(observation) = self.observation.take() else { return false };
        let (size_max, timeout) = (self.config.response_size_max, self.config.request_timeout);
        let observe = Some(ObserveSequence::DEREGISTER);
        self.transaction = Some(Transaction::new(observation.request, observe, size_max, timeout, now));
        self.send_next(Some(observation.token), now);
        true
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.output.pop_front()
    }

    /// The next result.
    pub fn poll_event(&mut self) -> Option<CoapClientEvent> {
        self.events.pop_front()
    }

    /// When [`CoapClientCore::handle_timer`] is due.
    #[must_use]
    pub fn next_timer(&self) -> Option<Instant> {
        match &self.transaction {
            Some(transaction) => {
                let retransmission = transaction.exchange.as_ref().and_then(MessageExchange::next_timer);
                Some(retransmission.map_or(transaction.deadline(), |next| next.min(transaction.deadline())))
            }
            None => self.observation.as_ref().map(Observation::registers_at),
        }
    }

    /// Processes due timers: retransmission, timeout, renewed registration.
    pub fn handle_timer(&mut self, now: Instant) {
        let Some(transaction) = &mut self.transaction else {
            if self.observation.as_ref().is_some_and(|observation| observation.registers_at() <= now) {
                self.register_again(now);
            }
            return;
        };
        if transaction.deadline() <= now {
            let error = transaction.timed_out();
            return self.fail(error);
        }
        let Some(exchange) = &mut transaction.exchange else { return };
        match exchange.handle_timer(now) {
            TimerOutcome::Idle => {}
            TimerOutcome::Retransmit => self.output.push_back(exchange.datagram().to_vec()),
            TimerOutcome::Expired { transmissions } => {
                self.fail(CoapClientError::Unanswered { transmissions });
            }
        }
    }

    /// Processes a datagram of the server.
    pub fn handle_datagram(&mut self, datagram: &[u8], now: Instant) {
        let message = match CoapMessage::parse(datagram) {
            Ok(message) => message,
            Err(error) => {
                if let Reaction::Reset(id) = error.reaction() {
                    self.send_empty(MessageType::Reset, id);
                }
                return;
            }
        };
        match (message.content, message.kind) {
            (MessageContent::Response, MessageType::Acknowledgement) => {
                self.handle_piggybacked(&message, now);
            }
            (MessageContent::Response, _) => self.handle_separate(&message, now),
            (MessageContent::Empty, MessageType::Acknowledgement) => {
                if let Some(exchange) = self.exchange_with_id(message.id) {
                    exchange.acknowledge();
                }
            }
            (MessageContent::Empty, MessageType::Reset) if self.exchange_with_id(message.id).is_some() => {
                self.fail(CoapClientError::Reset);
            }
            // A ping, or a request to a client (RFC 7252 §4.2, §4.3).
            (_, MessageType::Confirmable) => self.send_empty(MessageType::Reset, message.id),
            _ => {}
        }
    }

    /// Ends the request or observation with an error of the socket.
    pub fn fail(&mut self, error: CoapClientError) {
        self.transaction = None;
        self.observation = None;
        self.events.push_back(CoapClientEvent::Failed(error));
    }

    fn begin(&mut self, request: CoapRequest, observe: Option<ObserveSequence>, now: Instant) {
        let (size_max, timeout) = (self.config.response_size_max, self.config.request_timeout);
        if observe.is_some() {
            let token = self.new_token();
            self.observation = Some(Observation::new(request.clone(), token, now));
        }
        self.transaction = Some(Transaction::new(request, observe, size_max, timeout, now));
        self.send_next(None, now);
    }

    fn register_again(&mut self, now: Instant) {
        let Some(observation) = &self.observation else { return };
        let (size_max, timeout) = (self.config.response_size_max, self.config.request_timeout);
        let (request, observe) = (observation.request.clone(), Some(ObserveSequence::REGISTER));
        self.transaction = Some(Transaction::new(request, observe, size_max, timeout, now));
        self.send_next(None, now);
    }

    fn new_token(&mut self) -> Token {
        Token::new(&self.random.next_u64().to_be_bytes()).unwrap_or_default()
    }

    /// Sends the transaction's next message. Messages of a registration have the observation's token, all others one of
    /// their own, so that a late response to an earlier message is not mistaken for theirs.
    fn send_next(&mut self, token: Option<Token>, now: Instant) {
        let fresh = self.new_token();
        let Some(transaction) = &mut self.transaction else { return };
        let registered = self.observation.as_ref().filter(|_| transaction.is_registering());
        let token = token.or(registered.map(|observation| observation.token)).unwrap_or(fresh);
        let Ok(id) = self.ids.next(now) else { return self.fail(CoapClientError::IdsExhausted) };
        match transaction.encode(id, token) {
            Ok(datagram) => {
                self.output.push_back(datagram.clone());
                transaction.exchange = Some(MessageExchange::new(
                    datagram,
                    (id, token),
                    transaction.is_confirmable(),
                    self.config.ack_timeout,
                    &mut self.random,
                    now,
                ));
            }
            Err(error) => self.fail(error),
        }
    }

    fn send_empty(&mut self, kind: MessageType, id: MessageId) {
        self.output.push_back(encode_empty(kind, id).to_vec());
    }

    fn exchange(&mut self) -> Option<&mut MessageExchange> {
        self.transaction.as_mut()?.exchange.as_mut()
    }

    fn exchange_with_id(&mut self, id: MessageId) -> Option<&mut MessageExchange> {
        self.exchange().filter(|exchange| exchange.has_id(id))
    }

    fn handle_piggybacked(&mut self, message: &CoapMessage<'_>, now: Instant) {
        if self.exchange().is_some_and(|exchange| exchange.is_answered_by(message)) {
            self.handle_response(message, now);
        }
    }

    /// Processes a confirmable or non-confirmable response: of a request, a notification, or unknown.
    fn handle_separate(&mut self, message: &CoapMessage<'_>, now: Instant) {
        let is_confirmable = message.kind == MessageType::Confirmable;
        let is_answer = self.exchange().is_some_and(|exchange| exchange.is_answered_by(message));
        let is_notification = self.observation.as_ref().is_some_and(|of| of.token == message.token);
        let is_duplicate = !self.recent.insert(message.id, now);
        if !(is_answer || is_notification || is_duplicate) {
            // A reset also ends an observation that this client has abandoned (RFC 7641 §3.6).
            let has_observe = message.options.values(OptionNumber::OBSERVE).next().is_some();
            if is_confirmable || has_observe {
                self.send_empty(MessageType::Reset, message.id);
            }
            return;
        }
        if is_confirmable {
            self.send_empty(MessageType::Acknowledgement, message.id);
        }
        match (is_duplicate, is_answer) {
            (true, _) => {}
            (false, true) => self.handle_response(message, now),
            (false, false) => self.handle_notification(message, now),
        }
    }

    fn handle_response(&mut self, message: &CoapMessage<'_>, now: Instant) {
        let Some(transaction) = &mut self.transaction else { return };
        if transaction.is_registering() {
            self.note_registration(message, now);
        }
        let Some(transaction) = &mut self.transaction else { return };
        transaction.exchange = None;
        let progress = transaction.handle_response(message);
        self.follow(progress, now);
    }

    /// Notes the response to a registration.
    fn note_registration(&mut self, message: &CoapMessage<'_>, now: Instant) {
        let has_echo = message.options.values(OptionNumber::ECHO).next().is_some();
        if message.code == Code::UNAUTHORIZED && has_echo {
            // The registration is repeated.
            return;
        }
        let Some(observation) = &mut self.observation else { return };
        let response = CoapResponse::of(message).ok().filter(|response| response.code.is_success());
        match response.and_then(|response| Some((response.observe_sequence()?, response.max_age()))) {
            // An older sequence also answers the registration: it is the state that the server has.
            Some((sequence, max_age)) => {
                observation.advance(sequence, max_age, &mut self.random, now);
            }
            None => self.observation = None,
        }
    }

    fn handle_notification(&mut self, message: &CoapMessage<'_>, now: Instant) {
        let Some(observation) = &mut self.observation else { return };
        let response = match CoapResponse::of(message) {
            Ok(response) => response,
            Err(unknown) => return self.fail(CoapClientError::UnrecognisedOption(unknown.0)),
        };
        let sequence = response.observe_sequence().filter(|_| response.code.is_success());
        let (size_max, timeout) = (self.config.response_size_max, self.config.request_timeout);
        let request = observation.request.clone();
        match sequence {
            Some(sequence) => {
                let max_age = response.max_age();
                if !observation.advance(sequence, max_age, &mut self.random, now) {
                    return;
                }
            }
            // The server ends the observation (RFC 7641 §3.2).
            None => self.observation = None,
        }
        // An older state whose blocks are being fetched is of no interest any more.
        let mut transaction = Transaction::of_notification(request, size_max, timeout, now);
        let progress = transaction.append(response, message.payload);
        self.transaction = Some(transaction);
        self.follow(progress, now);
    }

    fn follow(&mut self, progress: Result<Progress, CoapClientError>, now: Instant) {
        match progress {
            Ok(Progress::Send) => self.send_next(None, now),
            Ok(Progress::Complete(response)) => {
                self.transaction = None;
                let is_notification = self.observation.is_some();
                self.events.push_back(if is_notification {
                    CoapClientEvent::Notification(response)
                } else {
                    CoapClientEvent::Response(response)
                });
            }
            Err(error) => self.fail(error),
        }
    }
}
