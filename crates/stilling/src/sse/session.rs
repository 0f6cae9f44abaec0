//! A connection that receives server-sent events.
//!
//! ```text
//!   retry ─▶ events of the catch-up ─▶ id of the last visible record ─▶ live events, comments when there are none
//! ```

use stilling_engine::{CloseReason, Io, Token};
use stilling_hub::DeliveryItem;
use stilling_ring::Time;
use stilling_wire::sse;

use super::limits::{HEARTBEAT_INTERVAL, PENDING_MAX, RETRY_AFTER};
use crate::hub::{HubHandle, HubMail, SubscribeRequest, SubscriptionOutput};
use crate::lifecycle::Lifecycle;

/// The parts of its shard that an SSE session uses.
pub(crate) struct SseContext<'a> {
    /// The hub; `None` when a successor has it.
    pub(crate) hub: Option<&'a mut HubHandle>,
    pub(crate) lifecycle: &'a Lifecycle,
}

#[derive(Debug)]
pub(crate) struct SseSession {
    token: Token,
    last_sent: Time,
    output: SubscriptionOutput,
    is_subscribed: bool,
}

impl SseSession {
    /// Continues a connection whose response head has been sent.
    pub(crate) fn open(request: &SubscribeRequest, io: &mut Io<'_>, cx: &mut SseContext<'_>) -> SseSession {
        let mut session = SseSession {
            token: io.token(),
            last_sent: io.now(),
            output: SubscriptionOutput::default(),
            is_subscribed: false,
        };
        session.subscribe(request, io, cx);
        session
    }

    fn subscribe(&mut self, request: &SubscribeRequest, io: &mut Io<'_>, cx: &mut SseContext<'_>) {
        io.set_send_max(PENDING_MAX);
        let _ = io.send_with(|out| sse::encode_retry(out, RETRY_AFTER.as_millis() as u32));
        let Some(hub) = cx.hub.as_deref_mut() else { return io.finish(CloseReason::Drained) };
        if hub.port.subscribe_to(self.token, request).is_err() {
            // The client reconnects.
            return io.finish(CloseReason::Done);
        }
        self.is_subscribed = true;
        hub.counters.sse.opened.add(1);
        io.set_deadline(Some(io.now().after(HEARTBEAT_INTERVAL)));
        if cx.lifecycle.is_draining() {
            // The other connections may have been notified already.
            self.draining(io, cx);
        }
    }

    /// Discards input: a client has nothing more to send.
    pub(crate) fn received(&mut self, bytes: &[u8], _: &mut Io<'_>, _: &mut SseContext<'_>) -> usize {
        bytes.len()
    }

    pub(crate) fn ended(&mut self, io: &mut Io<'_>, cx: &mut SseContext<'_>) {
        self.finish(CloseReason::PeerClosed, io, cx);
    }

    pub(crate) fn flushed(&mut self, io: &mut Io<'_>, cx: &mut SseContext<'_>) {
        let Some(hub) = cx.hub.as_deref_mut() else { return };
        self.output.flushed(self.is_subscribed, io, hub);
    }

    pub(crate) fn delivered(&mut self, mail: HubMail, io: &mut Io<'_>, cx: &mut SseContext<'_>) {
        // The HTTP session may have waited for room.
        if mail == HubMail::Room {
            return;
        }
        let Some(hub) = cx.hub.as_deref_mut() else { return };
        let Some(deliveries) = hub.port.take_current() else { return };
        if let Some(delivery) = deliveries.current()
            && self.is_subscribed
        {
            self.send_delivery(delivery, io, hub);
            self.output.check(io, hub);
        }
        hub.port.put_back(deliveries);
    }

    fn send_delivery(&mut self, delivery: DeliveryItem<'_>, io: &mut Io<'_>, hub: &mut HubHandle) {
        if matches!(delivery, DeliveryItem::Bytes(..) | DeliveryItem::Feed(_)) {
            self.last_sent = io.now();
        }
        if let Some(DeliveryItem::Refused) = self.output.handle(delivery, io, hub) {
            self.unsubscribe(hub);
            io.finish(CloseReason::Done);
        }
    }

    pub(crate) fn deadline(&mut self, io: &mut Io<'_>, _: &mut SseContext<'_>) {
        let now = io.now();
        if now >= self.last_sent.after(HEARTBEAT_INTERVAL) {
            self.last_sent = now;
            let _ = io.send(sse::HEARTBEAT);
        }
        io.set_deadline(Some(self.last_sent.after(HEARTBEAT_INTERVAL)));
    }

    /// Closes the connection: the client reconnects, to a successor if there is one, and resumes.
    pub(crate) fn draining(&mut self, io: &mut Io<'_>, cx: &mut SseContext<'_>) {
        self.finish(CloseReason::Drained, io, cx);
    }

    pub(crate) fn slow_consumer(&mut self, cx: &mut SseContext<'_>) {
        if let Some(hub) = cx.hub.as_deref_mut() {
            hub.counters.slow_consumers.add(1);
            self.unsubscribe(hub);
        }
    }

    pub(crate) fn closed(&mut self, reason: CloseReason, cx: &mut SseContext<'_>) {
        if let Some(hub) = cx.hub.as_deref_mut() {
            hub.counters.slow_consumers.add(u64::from(reason == CloseReason::WriteTimeout));
            self.unsubscribe(hub);
        }
    }

    fn finish(&mut self, reason: CloseReason, io: &mut Io<'_>, cx: &mut SseContext<'_>) {
        if let Some(hub) = cx.hub.as_deref_mut() {
            self.unsubscribe(hub);
        }
        io.finish(reason);
    }

    /// Leaves the hub. Idempotent.
    fn unsubscribe(&mut self, hub: &mut HubHandle) {
        if std::mem::take(&mut self.is_subscribed) {
            hub.port.disconnect(self.token);
            hub.counters.sse.closed.add(1);
        }
    }
}
