//! Counts of deliveries to subscriptions.

use crate::counters::ShardCounters;
use crate::encoding::MessageFormat;

#[derive(PartialEq, Debug, Default)]
pub(super) struct DeliveryCounts {
    all: u64,
    sse: u64,
    websocket: u64,
}

impl DeliveryCounts {
    /// Counts deliveries in a format, or over NATS.
    #[inline]
    pub(super) fn add(&mut self, count: u64, format: Option<MessageFormat>) {
        self.all += count;
        match format {
            Some(format) if format.is_sse() => self.sse += count,
            Some(_) => self.websocket += count,
            None => {}
        }
    }

    pub(super) fn publish(&self, counters: &ShardCounters) {
        counters.delivered.set(self.all);
        counters.delivered_sse.set(self.sse);
        counters.delivered_websocket.set(self.websocket);
    }
}
