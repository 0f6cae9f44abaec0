//! Makes the calls of a shard's CoAP endpoint in the hub, and returns what the hub sends.
//!
//! Each publication and each observed filter is a client of the hub of its own, so a full stream parks only its own
//! publications. Their tokens have indices that no connection has, and a number in place of the generation.

use std::collections::{HashMap, HashSet, VecDeque};

use stilling_engine::Token;
use stilling_hub::{
    ClientOptions, DeliveryItem, HubRequest, Ingress, MessageFormat, PayloadFrame, Publication,
    PublishOutcome, RefusalReason, StartFrom,
};
use stilling_wire::coap::{Code, ContentFormat};
use stilling_wire::nats::{Filter, PubAck, Subject};

use super::bridge::{BridgeAnswer, BridgeCall, BridgePublication};
use super::endpoint::CoapShard;
use super::http_mapping::answer_code;
use super::limits::INITIAL_RECORDS_READ;
use super::observations::ResourceId;
use super::pending::PendingId;
use crate::http::refusal_status;
use crate::hub::{FilterStreams, HubHandle, HubMail, RESERVED_SUBJECTS, SubscribeRequest};

const PUBLICATION_INDEX: u32 = u32::MAX - 1;

const SUBSCRIPTION_INDEX: u32 = u32::MAX - 2;

/// Numbers of publications and subscriptions: those of a token's generation. They repeat after 16,777,216, long after
/// the hub has answered.
const NUMBER_MASK: u32 = (1 << 24) - 1;

/// The endpoint's calls that the hub has not finished.
#[derive(Debug, Default)]
pub(crate) struct HubBridge {
    last_number: u32,
    /// Publications in the hub.
    publications: NumberedCalls<PendingId>,
    /// Numbers of withdrawn publications that the hub has not finished.
    withdrawn: HashSet<u32>,
    /// Publications that wait for room, the oldest first: their ids increase.
    waiting: VecDeque<(PendingId, Box<BridgePublication>)>,
    /// Whether the hub will report room.
    awaits_room: bool,
    /// Observed filters.
    subscriptions: NumberedCalls<ResourceId>,
}

/// Calls that the hub has not finished, by number and by id.
#[derive(Debug)]
struct NumberedCalls<Id> {
    ids: HashMap<u32, Id>,
    numbers: HashMap<Id, u32>,
}

impl<Id> Default for NumberedCalls<Id> {
    fn default() -> NumberedCalls<Id> {
        NumberedCalls { ids: HashMap::new(), numbers: HashMap::new() }
    }
}

impl<Id: Copy + Eq + std::hash::Hash> NumberedCalls<Id> {
    fn insert(&mut self, number: u32, id: Id) {
        self.ids.insert(number, id);
        self.numbers.insert(id, number);
    }

    fn contains(&self, number: u32) -> bool {
        self.ids.contains_key(&number)
    }

    fn id(&self, number: u32) -> Option<Id> {
        self.ids.get(&number).copied()
    }

    /// Removes what has a number.
    fn remove_number(&mut self, number: u32) -> Option<Id> {
        let id = self.ids.remove(&number)?;
        self.numbers.remove(&id);
        Some(id)
    }

    /// Removes an id. Returns its number.
    fn remove(&mut self, id: Id) -> Option<u32> {
        let number = self.numbers.remove(&id)?;
        self.ids.remove(&number);
        Some(number)
    }

    fn drain(&mut self) -> impl Iterator<Item = Id> {
        self.numbers.clear();
        self.ids.drain().map(|(_, id)| id)
    }
}

/// The client that waits for room for the next publication.
const ROOM_TOKEN: Token = Token::new(PUBLICATION_INDEX, 0);

impl HubBridge {
    /// Whether the hub's mail for this token is for [`receive`](Self::receive).
    pub(crate) fn is_own(token: Token) -> bool {
        matches!(token.index(), PUBLICATION_INDEX | SUBSCRIPTION_INDEX)
    }

    /// Makes a call. Without a hub it fails: a successor has the streams.
    pub(crate) fn call(&mut self, call: BridgeCall, hub: Option<&mut HubHandle>, coap: &mut CoapShard) {
        match (call, hub) {
            (BridgeCall::Publish { exchange, publication }, Some(hub)) => {
                self.publish(exchange, publication, hub, coap);
            }
            (BridgeCall::Publish { exchange, .. }, None) => {
                coap.publication_ended(exchange, handed_over());
            }
            (BridgeCall::Withdraw(exchange), hub) => self.withdraw(exchange, hub, coap),
            (BridgeCall::Subscribe { resource, filter }, Some(hub)) => {
                self.subscribe(resource, filter, hub, coap);
            }
            (BridgeCall::Subscribe { resource, .. }, None) => coap.fail_state(resource, handed_over),
            (BridgeCall::Unsubscribe(resource), hub) => self.unsubscribe(resource, hub),
        }
    }

    fn publish(
        &mut self,
        exchange: PendingId,
        publication: Box<BridgePublication>,
        hub: &mut HubHandle,
        coap: &mut CoapShard,
    ) {
        if let Err(answer) = check(&publication, hub) {
            return coap.publication_ended(exchange, answer);
        }
        hub.pending_coap_publications += 1;
        self.waiting.push_back((exchange, publication));
        self.publish_waiting(hub);
    }

    /// Passes on what waits, as far as there is room.
    fn publish_waiting(&mut self, hub: &mut HubHandle) {
        while !self.waiting.is_empty() {
            if !hub.port.has_room() {
                if !std::mem::replace(&mut self.awaits_room, true) {
                    hub.port.wait(ROOM_TOKEN);
                }
                return;
            }
            let Some((exchange, publication)) = self.waiting.pop_front() else { return };
            let number = self.next_number();
            self.publications.insert(number, exchange);
            let BridgePublication { subject, headers, payload, .. } = &*publication;
            let publication = Publication {
                ingress: Ingress::Coap,
                subject,
                reply: b"",
                headers,
                payload: payload[..].into(),
                ticket: Some(number),
            };
            let token = Token::new(PUBLICATION_INDEX, number);
            hub.port.push_request(token, ClientOptions::default(), &HubRequest::Publish(publication));
        }
    }

    /// Ends a publication whose outcome is late.
    fn withdraw(&mut self, exchange: PendingId, hub: Option<&mut HubHandle>, coap: &mut CoapShard) {
        let waiting = self.waiting.binary_search_by_key(&exchange, |(waiting, _)| *waiting).ok();
        let answer = if let Some(at) = waiting {
            self.waiting.remove(at);
            BridgeAnswer::error(Code::SERVICE_UNAVAILABLE, "the hub is busy: nothing was published")
        } else if let Some(number) = self.publications.remove(exchange) {
            self.withdrawn.insert(number);
            let reason = "the disk did not confirm in time: this may have been stored";
            BridgeAnswer::error(Code::GATEWAY_TIMEOUT, reason)
        } else {
            // Its outcome has arrived.
            return;
        };
        if let Some(hub) = hub {
            hub.pending_coap_publications = hub.pending_coap_publications.saturating_sub(1);
            match waiting {
                Some(_) => hub.counters.publications_shed.add(1),
                None => hub.counters.publications_unanswered.add(1),
            }
        }
        coap.publication_ended(exchange, answer);
    }

    fn subscribe(
        &mut self,
        resource: ResourceId,
        filter: Box<[u8]>,
        hub: &mut HubHandle,
        coap: &mut CoapShard,
    ) {
        if let Err(error) = Filter::parse(&filter, &hub.limits.subject) {
            let reason = format!("invalid filter: {error}");
            return coap.fail_state(resource, || BridgeAnswer::error(Code::BAD_REQUEST, &reason));
        }
        if filter.starts_with(RESERVED_SUBJECTS) {
            let reason = "reserved filter: $JS. is reserved for the hub's JetStream API";
            return coap.fail_state(resource, || BridgeAnswer::error(Code::BAD_REQUEST, reason));
        }
        let start = match hub.streams.find(&filter) {
            FilterStreams::One(stream) => Some((stream, StartFrom::Last(INITIAL_RECORDS_READ))),
            FilterStreams::None | FilterStreams::Several => None,
        };
        let request = SubscribeRequest { filter, format: MessageFormat::PayloadFrames, start };
        let number = self.next_number();
        let token = Token::new(SUBSCRIPTION_INDEX, number);
        if !hub.port.may_subscribe() || hub.port.subscribe_to(token, &request).is_err() {
            return coap.fail_state(resource, too_many_subscriptions);
        }
        hub.counters.coap.opened.add(1);
        self.subscriptions.insert(number, resource);
        if start.is_none() {
            coap.complete_state(resource);
        }
    }

    fn unsubscribe(&mut self, resource: ResourceId, hub: Option<&mut HubHandle>) {
        let Some(number) = self.subscriptions.remove(resource) else { return };
        if let Some(hub) = hub {
            hub.port.disconnect(Token::new(SUBSCRIPTION_INDEX, number));
            hub.counters.coap.closed.add(1);
        }
    }

    /// Receives the hub's mail for an [own](Self::is_own) token.
    pub(crate) fn receive(&mut self, token: Token, mail: HubMail, hub: &mut HubHandle, coap: &mut CoapShard) {
        if mail == HubMail::Room {
            self.awaits_room = false;
            return self.publish_waiting(hub);
        }
        let Some(deliveries) = hub.port.take_current() else { return };
        if let Some(delivery) = deliveries.current() {
            match token.index() {
                PUBLICATION_INDEX => self.receive_outcome(delivery, hub, coap),
                _ => self.receive_messages(token, delivery, hub, coap),
            }
        }
        hub.port.put_back(deliveries);
    }

    fn receive_outcome(&mut self, delivery: DeliveryItem<'_>, hub: &mut HubHandle, coap: &mut CoapShard) {
        let (ticket, answer) = match delivery {
            DeliveryItem::PublishOutcome { ticket, outcome } => (ticket, answer_of(outcome, "", hub)),
            DeliveryItem::Rejection { ticket, stream, reason } => {
                let outcome = PublishOutcome::Refused(RefusalReason::Gate { stream });
                (ticket, answer_of(outcome, &String::from_utf8_lossy(reason), hub))
            }
            _ => return,
        };
        if self.withdrawn.remove(&ticket) {
            // It has been answered.
            return;
        }
        if let Some(exchange) = self.publications.remove_number(ticket) {
            hub.pending_coap_publications = hub.pending_coap_publications.saturating_sub(1);
            coap.publication_ended(exchange, answer);
        }
    }

    fn receive_messages(
        &mut self,
        token: Token,
        delivery: DeliveryItem<'_>,
        hub: &mut HubHandle,
        coap: &mut CoapShard,
    ) {
        let Some(resource) = self.subscriptions.id(token.generation()) else { return };
        match delivery {
            DeliveryItem::Bytes(first, second) => {
                read_frames(first, resource, coap);
                read_frames(second, resource, coap);
            }
            DeliveryItem::Feed(messages) => read_frames(messages.bytes(), resource, coap),
            // The newest state replaces the others, so a subscription is never behind.
            DeliveryItem::Mark(mark) => hub.port.report_mark(token, mark),
            DeliveryItem::Refused => coap.fail_state(resource, too_many_subscriptions),
            DeliveryItem::SlowConsumer => coap.fail_state(resource, too_slow),
            _ => {}
        }
    }

    /// The hub has left for a successor: publications get no outcome any more.
    pub(crate) fn hub_left(&mut self, coap: &mut CoapShard) {
        for (exchange, _) in self.waiting.drain(..) {
            coap.publication_ended(exchange, handed_over());
        }
        for exchange in self.publications.drain() {
            let reason = "another server has taken over: this may have been stored";
            coap.publication_ended(exchange, BridgeAnswer::error(Code::GATEWAY_TIMEOUT, reason));
        }
        self.withdrawn.clear();
        for resource in self.subscriptions.drain() {
            coap.fail_state(resource, handed_over);
        }
    }

    fn next_number(&mut self) -> u32 {
        // 0 is that of ROOM_TOKEN.
        loop {
            self.last_number = (self.last_number % NUMBER_MASK) + 1;
            let number = self.last_number;
            // Subscriptions may last for longer than it takes to use all numbers, and so may publications that wait for a
            // hung disk.
            let is_used = self.subscriptions.contains(number)
                || self.publications.contains(number)
                || self.withdrawn.contains(&number);
            if !is_used {
                return number;
            }
        }
    }
}

/// Checks what the hub requires of a publication.
fn check(publication: &BridgePublication, hub: &HubHandle) -> Result<(), BridgeAnswer> {
    let BridgePublication { subject, payload, .. } = publication;
    let refuse = |code, reason: &str| Err(BridgeAnswer::error(code, reason));
    if let Err(error) = Subject::parse(subject, &hub.limits.subject) {
        return refuse(Code::BAD_REQUEST, &format!("invalid subject: {error}"));
    }
    if subject.starts_with(RESERVED_SUBJECTS) {
        let reason = "reserved subject: $JS. is reserved for the hub's JetStream API";
        return refuse(Code::BAD_REQUEST, reason);
    }
    if hub.streams.find(subject) == FilterStreams::None {
        return refuse(Code::NOT_FOUND, "no stream has this subject: nothing was published");
    }
    let most = hub.limits.payload_size_max;
    if payload.len() as u64 > u64::from(most) {
        let reason = format!("the message has {} bytes; the maximum is {most}", payload.len());
        return refuse(Code::REQUEST_ENTITY_TOO_LARGE, &reason);
    }
    Ok(())
}

/// The answer for an outcome; `reason`: that of a gate.
fn answer_of(outcome: PublishOutcome, reason: &str, hub: &HubHandle) -> BridgeAnswer {
    let (stream, sequence, duplicate) = match outcome {
        PublishOutcome::Stored { stream, sequence, duplicate } => (stream, sequence, duplicate),
        PublishOutcome::Forwarded { .. } => {
            // Its stream stores nothing.
            return BridgeAnswer { code: Code::CHANGED, format: None, body: Vec::new() };
        }
        PublishOutcome::Refused(refusal) => {
            let (status, reason) = refusal_status(refusal, hub.streams.name(refusal.stream()), reason);
            return BridgeAnswer::error(answer_code(Code::POST, status.code()), &reason);
        }
    };
    let mut body = Vec::new();
    PubAck { stream: hub.streams.name(stream).into(), sequence, duplicate }.encode(&mut body);
    BridgeAnswer { code: Code::CHANGED, format: Some(ContentFormat::JSON), body }
}

/// Sets the state of a resource to the last message in `frames`.
fn read_frames(mut frames: &[u8], resource: ResourceId, coap: &mut CoapShard) {
    let (mut newest, mut is_complete) = (None, false);
    while let Some((frame, rest)) = PayloadFrame::decode(frames) {
        match frame {
            PayloadFrame::Payload(payload) => newest = Some(payload),
            PayloadFrame::CaughtUp => is_complete = true,
        }
        frames = rest;
    }
    if let Some(payload) = newest {
        coap.set_state(resource, payload);
    }
    if is_complete {
        coap.complete_state(resource);
    }
}

fn handed_over() -> BridgeAnswer {
    let reason = "another server has taken over: nothing was done; send it again";
    BridgeAnswer::error(Code::SERVICE_UNAVAILABLE, reason)
}

fn too_slow() -> BridgeAnswer {
    BridgeAnswer::error(Code::SERVICE_UNAVAILABLE, "the stream's records could not be read in time")
}

fn too_many_subscriptions() -> BridgeAnswer {
    BridgeAnswer::error(Code::SERVICE_UNAVAILABLE, "the hub has no room for another subscription")
}

#[cfg(test)]
mod tests;
