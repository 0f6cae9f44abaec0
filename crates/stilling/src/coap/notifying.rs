//! Registrations of observers, and the notifications that they get.

use stilling_engine::DatagramPath;
use stilling_ring::Time;
use stilling_wire::coap::limits::BLOCK_SIZE_MAX;
use stilling_wire::coap::{Code, MessageType, NoResponse, ObserveSequence};

use super::address_shares::ClientAddress;
use super::answer::MessageHead;
use super::bridge::BridgePath;
use super::bridging::{MESSAGE_FORMAT, filter_of};
use super::demo_observables::DemoObservable;
use super::exchange_cache::ExchangeKey;
use super::exchanges::{Exchanges, Target};
use super::limits::{DEMO_CHECK_INTERVAL, MESSAGE_SIZE_MAX, NOTIFICATION_RETRY_DELAY};
use super::observations::{ObservableKey, ObserverSlot, Registration, ResourceId};
use super::pending::RequestContext;
use super::request::CoapRequest;

impl Exchanges {
    /// Whether a request repeats the registration of an observer.
    pub(super) fn is_refresh(&self, request: &CoapRequest<'_>, context: &RequestContext) -> bool {
        request.registers() && self.observations.is_registered(context.path(), context.key.token)
    }

    /// Ends the observation that a request names.
    pub(super) fn deregister(&mut self, request: &CoapRequest<'_>, context: &RequestContext) {
        if request.observe == Some(ObserveSequence::DEREGISTER) {
            self.observations.deregister(context.path(), context.key.token);
        }
    }

    /// Whether a request asks for a later block of a state that is observed.
    pub(super) fn reads_observed_state(&self, target: Target, request: &CoapRequest<'_>) -> bool {
        if request.later_block().is_none() || !request.is_safe() {
            return false;
        }
        let key = match target {
            Target::Hub(BridgePath::Subscribe) => Some(filter_of(request)),
            Target::Resource => DemoObservable::of(request.path).map(ObservableKey::Demo),
            Target::Hub(BridgePath::Publish) | Target::Pool(_) => None,
        };
        let resource = key.and_then(|key| self.observations.find_resource(&key));
        resource.is_some_and(|resource| self.observations.is_observed(resource))
    }

    /// Registers the client of an answered request, if it asks for that and its resource is a demo resource that can be
    /// observed.
    pub(super) fn observe_demo(
        &mut self,
        request: &CoapRequest<'_>,
        context: &mut RequestContext,
        cache_key: Option<&[u8]>,
        now: Time,
    ) {
        if !request.registers() || !self.answer.code.is_success() {
            return;
        }
        let Some(observable) = DemoObservable::of(request.path) else { return };
        let client = ClientAddress::of(context.path());
        if !self.is_proven(context.path(), now) {
            return self.require_echo(context.path(), now);
        }
        let Some(resource) = self.observations.resource(&ObservableKey::Demo(observable), client) else {
            return self.counters.observers_refused.add(1);
        };
        self.observations.set_version(resource, self.demo.observables().version(observable, now));
        self.register(resource, context, cache_key, now);
    }

    /// Registers the client of a request whose answer has the state of the resource. Without room it is answered without
    /// observation.
    pub(super) fn register(
        &mut self,
        resource: ResourceId,
        context: &mut RequestContext,
        cache_key: Option<&[u8]>,
        now: Time,
    ) {
        let registration = Registration {
            path: *context.path(),
            token: context.key.token,
            request: context.key.id,
            block2: context.block2,
            format: self.answer.format,
            cache_key: cache_key.unwrap_or_default().into(),
        };
        context.observe = self.observations.register(registration, resource, now);
        self.counters.observers_refused.add(u64::from(context.observe.is_none()));
    }

    /// Writes the next notification. A confirmable one goes to the transmissions.
    pub(super) fn stage_notification(
        &mut self,
        now: Time,
        buffer: &mut [u8],
    ) -> Option<(DatagramPath, usize)> {
        self.check_demo_versions(now);
        self.release_resources();
        while let Some(slot) = self.observations.next_due(now) {
            // Without datagrams there are no acknowledgements.
            let is_confirmable = self.is_receiving && self.observations.is_confirmable_due(slot, now);
            let kind = if is_confirmable { MessageType::Confirmable } else { MessageType::NonConfirmable };
            let Some(written) = self.write_notification(slot, kind, now, buffer) else {
                self.observations.remove(slot);
                continue;
            };
            let Notification { path, head, size, is_last } = written;
            if is_confirmable && !self.transmissions.push(path, head.id, &buffer[..size]) {
                self.observations.postpone(slot, now.after(NOTIFICATION_RETRY_DELAY));
                continue;
            }
            match is_last {
                true => self.observations.remove(slot),
                false => self.observations.notified(slot, head.kind, head.id, now),
            }
            if !is_confirmable {
                self.counters.notifications.add(1);
                return Some((path, size));
            }
            self.counters.confirmable_notifications.add(1);
        }
        None
    }

    /// Replaces a confirmable notification that is about to be sent, perhaps again, if there is a newer state.
    pub(super) fn renew_due_notification(&mut self, now: Time, buffer: &mut [u8]) {
        let Some((path, id, _)) = self.transmissions.next_due() else { return };
        if self.transmissions.is_retransmission() {
            self.observations.retransmitted(&path, id);
        }
        let Some(slot) = self.observations.outdated(&path, id) else { return };
        let kind = MessageType::Confirmable;
        let Some(written) = self.write_notification(slot, kind, now, buffer) else { return };
        let Notification { head, size, is_last, .. } = written;
        self.transmissions.replace_due(head.id, &buffer[..size]);
        match is_last {
            true => self.observations.remove(slot),
            false => self.observations.notified(slot, kind, head.id, now),
        }
    }

    /// Writes the state of an observer's resource as its next notification.
    fn write_notification(
        &mut self,
        slot: ObserverSlot,
        kind: MessageType,
        now: Time,
        buffer: &mut [u8],
    ) -> Option<Notification> {
        let sequence = self.observations.next_sequence(slot, now)?;
        let observer = self.observations.observer(slot)?;
        let (resource, registration) = (observer.resource(), &mut observer.registration);
        let Registration { path, token, block2, format, .. } = *registration;
        let cache_key = std::mem::take(&mut registration.cache_key);
        self.write_state(resource, now);
        if self.answer.code.is_success() && self.answer.format != format {
            // RFC 7641 §4.2: the format stays as it was.
            self.answer.start(Code::NOT_ACCEPTABLE);
        }
        let id = self.observations.next_message_id(&path)?;
        let is_last = !self.answer.code.is_success();
        let observe = (!is_last).then_some(sequence);
        let head = MessageHead { kind, id, token, observe, block1: None };
        let context = RequestContext {
            key: ExchangeKey { path, id, token },
            kind,
            block1: None,
            block2,
            observe,
            no_response: NoResponse::default(),
            size: MESSAGE_SIZE_MAX,
        };
        let key = Some(&*cache_key).filter(|key| !key.is_empty());
        let size = self.write_fitting(&head, &context, key, now, buffer, MESSAGE_SIZE_MAX);
        if let Some(observer) = self.observations.observer(slot) {
            observer.registration.cache_key = cache_key;
        }
        Some(Notification { path, head, size: size?, is_last })
    }

    /// Writes the state of a resource as an answer.
    pub(super) fn write_state(&mut self, resource: ResourceId, now: Time) {
        match self.observations.key(resource) {
            Some(&ObservableKey::Demo(observable)) => {
                self.demo.observables().write_state(observable, now, &mut self.answer);
            }
            Some(ObservableKey::Filter(_)) => {
                let answer = self.answer.start(Code::CONTENT);
                answer.format = Some(MESSAGE_FORMAT);
                answer.body.extend_from_slice(self.observations.state(resource).unwrap_or_default());
                if answer.body.len() > BLOCK_SIZE_MAX {
                    // The state is hashed once, not for each of its blocks.
                    answer.etag = self.observations.etag(resource, MESSAGE_FORMAT);
                }
            }
            None => _ = self.answer.start(Code::NOT_FOUND),
        }
    }

    /// Checks whether the observed demo resources have changed, here or in another shard.
    fn check_demo_versions(&mut self, now: Time) {
        if self.observations.resources() == 0 {
            return;
        }
        for observable in DemoObservable::ALL {
            if let Some(resource) = self.observations.find_resource(&ObservableKey::Demo(observable)) {
                let version = self.demo.observables().version(observable, now);
                self.observations.set_version(resource, version);
            }
        }
    }

    /// When to look for notifications next.
    pub(super) fn next_notification_at(&self, now: Time) -> Option<Time> {
        let is_observed =
            |observable| self.observations.find_resource(&ObservableKey::Demo(observable)).is_some();
        let observes_demo = DemoObservable::ALL.into_iter().any(is_observed);
        let check = observes_demo.then(|| now.after(DEMO_CHECK_INTERVAL));
        self.observations.next_deadline().into_iter().chain(check).min()
    }
}

/// A written notification.
#[derive(Clone, Copy, Debug)]
struct Notification {
    path: DatagramPath,
    head: MessageHead,
    size: usize,
    /// It is an error, so the observation ends.
    is_last: bool,
}
