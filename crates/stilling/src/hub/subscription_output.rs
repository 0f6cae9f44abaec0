//! The output of a subscription over SSE or WebSocket, whose messages arrive encoded.

use stilling_engine::Io;
use stilling_hub::DeliveryItem;

use super::feed_output::{send_bytes, send_feed};
use super::slow_subscription::SlowSubscription;
use super::{DelayedMarks, HubHandle};

/// What a connection's subscription has waiting for its client.
#[derive(Debug, Default)]
pub(crate) struct SubscriptionOutput {
    /// Marks to report when the output has been sent.
    marks: DelayedMarks,
    slow: SlowSubscription,
}

impl SubscriptionOutput {
    /// Sends messages, reports marks in their order, and ends slow consumers. Returns any other delivery.
    pub(crate) fn handle<'a>(
        &mut self,
        delivery: DeliveryItem<'a>,
        io: &mut Io<'_>,
        hub: &mut HubHandle,
    ) -> Option<DeliveryItem<'a>> {
        match delivery {
            DeliveryItem::Bytes(first, second) => send_bytes(first, second, io),
            DeliveryItem::Feed(messages) => send_feed(messages, io),
            DeliveryItem::Mark(mark) if io.is_output_blocked() => self.marks.push(mark),
            DeliveryItem::Mark(mark) => hub.port.report_mark(io.token(), mark),
            DeliveryItem::SlowConsumer => io.end_slow_consumer(),
            other => return Some(other),
        }
        None
    }

    /// Applies the stream's policy if too much waits for the client. Called after each delivery.
    pub(crate) fn check(&mut self, io: &mut Io<'_>, hub: &mut HubHandle) {
        self.slow.check(io, hub);
    }

    /// Continues what has waited for the client to read all output. `is_subscribed`: the subscription has not ended.
    pub(crate) fn flushed(&mut self, is_subscribed: bool, io: &Io<'_>, hub: &mut HubHandle) {
        self.marks.take().for_each(|mark| hub.port.report_mark(io.token(), mark));
        if is_subscribed {
            self.slow.resume(io, hub);
        }
    }
}
