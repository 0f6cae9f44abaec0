//! Requests for the hub: their admission, and their answers.

use stilling_engine::DatagramPath;
use stilling_ring::Time;
use stilling_wire::coap::{Code, ContentFormat};

use super::address_shares::ClientAddress;
use super::bridge::{AwaitedOutcome, BridgeAnswer, BridgeCall, BridgePath, BridgeRejection, rest_of_path};
use super::exchanges::Exchanges;
use super::limits::{PUBLICATION_TIMEOUT, STATE_TIMEOUT};
use super::observations::{ObservableKey, ResourceId};
use super::pending::{AwaitedAnswer, PendingId, RequestContext};
use super::request::CoapRequest;

/// The format of a message: the hub does not know a better one.
pub(super) const MESSAGE_FORMAT: ContentFormat = ContentFormat::OCTET_STREAM;

impl Exchanges {
    /// Whether a request may reach the hub. If not, the answer is ready. `is_fresh`: it has a fresh Echo value.
    pub(super) fn admit_to_hub(
        &mut self,
        path: BridgePath,
        request: &CoapRequest<'_>,
        context: &RequestContext,
        is_fresh: bool,
        now: Time,
    ) -> bool {
        let peer = context.path().peer;
        // A later block continues a transfer that began with a fresh value.
        let is_later =
            request.block1.is_some_and(|block| block.number() > 0) || request.later_block().is_some();
        let is_fresh = is_fresh || is_later && self.peers.is_proven(peer, now);
        let registers_unproven = request.registers() && !self.is_proven(context.path(), now);
        match self.bridge.admit(path, request.code, peer.ip(), is_fresh) {
            Ok(()) if registers_unproven => self.require_echo(context.path(), now),
            Ok(()) => return true,
            Err(BridgeRejection::Method) => _ = self.answer.start(Code::METHOD_NOT_ALLOWED),
            Err(BridgeRejection::Source) => {
                self.counters.bridge_forbidden.add(1);
                self.answer.error(Code::FORBIDDEN, "this address may not use the hub (--coap-source)");
            }
            Err(BridgeRejection::Echo) => self.require_echo(context.path(), now),
        }
        false
    }

    /// Passes a complete request to the hub. Returns whether it waits; otherwise the answer is ready.
    pub(super) fn ask_hub(
        &mut self,
        path: BridgePath,
        request: &CoapRequest<'_>,
        context: &mut RequestContext,
        cache_key: Option<&[u8]>,
        now: Time,
    ) -> bool {
        match path {
            BridgePath::Publish => self.publish(request, *context, cache_key, now),
            BridgePath::Subscribe => self.read_filter(request, context, cache_key, now),
        }
    }

    fn publish(
        &mut self,
        request: &CoapRequest<'_>,
        context: RequestContext,
        cache_key: Option<&[u8]>,
        now: Time,
    ) -> bool {
        if self.refuse_lost_answer(request) {
            return false;
        }
        let client = ClientAddress::of(context.path());
        let publication = match self.bridge.publication(request, client) {
            Ok(publication) => publication,
            Err(answer) => {
                answer.write(&mut self.answer);
                return false;
            }
        };
        let awaits = AwaitedAnswer::Publication(now.after(PUBLICATION_TIMEOUT));
        let Some(exchange) = self.wait(context, awaits, cache_key, now) else { return false };
        self.bridge.call(BridgeCall::Publish { exchange, publication });
        true
    }

    /// Answers with the state of a filter, or waits for it.
    fn read_filter(
        &mut self,
        request: &CoapRequest<'_>,
        context: &mut RequestContext,
        cache_key: Option<&[u8]>,
        now: Time,
    ) -> bool {
        if request.accept.is_some_and(|accept| accept != MESSAGE_FORMAT) {
            self.answer.start(Code::NOT_ACCEPTABLE);
            return false;
        }
        let key = filter_of(request);
        let is_new = self.observations.find_resource(&key).is_none();
        let client = ClientAddress::of(context.path());
        let Some(resource) = self.observations.resource(&key, client) else {
            self.refuse_full();
            return false;
        };
        let registers = request.registers();
        if self.observations.is_complete(resource) {
            self.answer_filter(resource, registers, context, cache_key, now);
            return false;
        }
        let awaits = AwaitedAnswer::State { resource, registers, until: now.after(STATE_TIMEOUT) };
        let Some(exchange) = self.wait(*context, awaits, cache_key, now) else {
            // A new one has no subscription yet.
            self.release_resources();
            return false;
        };
        self.observations.wait(resource, exchange, client);
        if let ObservableKey::Filter(filter) = key
            && is_new
        {
            self.bridge.call(BridgeCall::Subscribe { resource, filter });
        }
        true
    }

    /// Writes the state of a filter as the answer, and registers the client if it wants that.
    fn answer_filter(
        &mut self,
        resource: ResourceId,
        registers: bool,
        context: &mut RequestContext,
        cache_key: Option<&[u8]>,
        now: Time,
    ) {
        if self.observations.lacks_state(resource) {
            if registers {
                // An error ends the observation that the request refreshes (RFC 7641 §4.2).
                self.observations.deregister(context.path(), context.key.token);
            }
            let reason = "the newest message is too long, or there is no room for it";
            return BridgeAnswer::error(Code::SERVICE_UNAVAILABLE, reason).write(&mut self.answer);
        }
        if !registers && self.observations.state(resource).is_none() {
            return self.answer.error(Code::NOT_FOUND, "there is no message for this filter");
        }
        self.write_state(resource, now);
        if registers {
            self.register(resource, context, cache_key, now);
        }
    }

    /// Sets the newest message of a filter.
    pub(super) fn set_state(&mut self, resource: ResourceId, state: &[u8]) {
        let is_stored = self.observations.set_state(resource, state);
        self.counters.states_dropped.add(u64::from(!is_stored));
    }

    /// A filter's newest message is known: requests that wait for it are answered.
    pub(super) fn complete_state(&mut self, resource: ResourceId) {
        self.observations.set_complete(resource);
        for exchange in self.observations.waiting(resource) {
            self.bridge.end(exchange, AwaitedOutcome::State(resource));
        }
    }

    /// A filter cannot be observed, or no longer: all its requests get the answer, and its observers no more states.
    pub(super) fn fail_state(&mut self, resource: ResourceId, answer: impl Fn() -> BridgeAnswer) {
        for exchange in self.observations.take_waiting(resource) {
            self.bridge.end(exchange, AwaitedOutcome::Answer(answer()));
        }
        self.observations.remove_observers(resource);
        self.release_resources();
    }

    /// Writes the next answer of a request that waited for the hub.
    pub(super) fn stage_from_hub(&mut self, now: Time, buffer: &mut [u8]) -> Option<(DatagramPath, usize)> {
        while let Some((exchange, outcome)) = self.bridge.next_ended() {
            if let AwaitedOutcome::State(resource) = outcome
                && self.observations.key(resource).is_none()
            {
                // The filter has failed since, and the answer that says so follows.
                continue;
            }
            let Some(mut pending) = self.pending.take(exchange) else { continue };
            match (outcome, pending.awaits) {
                (AwaitedOutcome::State(resource), AwaitedAnswer::State { registers, .. }) => {
                    let cache_key = std::mem::take(&mut pending.cache_key);
                    let key = Some(&cache_key[..]).filter(|key| !key.is_empty());
                    self.answer_filter(resource, registers, &mut pending.context, key, now);
                    pending.cache_key = cache_key;
                    self.observations.stop_waiting(resource, exchange);
                }
                (AwaitedOutcome::Answer(answer), _) => answer.write(&mut self.answer),
                (AwaitedOutcome::State(_), _) => continue,
            }
            let staged = self.answer_late(&pending, now, buffer);
            if staged.is_some() {
                return staged;
            }
        }
        None
    }

    /// A request has waited for too long for the hub.
    pub(super) fn expire_in_hub(&mut self, exchange: PendingId, awaits: AwaitedAnswer) {
        match awaits {
            AwaitedAnswer::State { resource, .. } => {
                self.observations.stop_waiting(resource, exchange);
                self.counters.states_late.add(1);
                let answer = BridgeAnswer::error(Code::GATEWAY_TIMEOUT, "the stream did not answer in time");
                self.bridge.end(exchange, AwaitedOutcome::Answer(answer));
            }
            AwaitedAnswer::Publication(_) => self.bridge.call(BridgeCall::Withdraw(exchange)),
            AwaitedAnswer::Demo(_) | AwaitedAnswer::Worker(_) => {}
        }
    }

    /// Removes resources without observers and requests.
    pub(super) fn release_resources(&mut self) {
        while let Some((resource, key)) = self.observations.release() {
            if matches!(key, ObservableKey::Filter(_)) {
                self.bridge.call(BridgeCall::Unsubscribe(resource));
            }
        }
    }
}

/// The filter that a request names, not checked.
pub(super) fn filter_of(request: &CoapRequest<'_>) -> ObservableKey {
    ObservableKey::Filter(rest_of_path(request).into())
}
