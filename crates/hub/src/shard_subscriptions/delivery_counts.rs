//! Counts of deliveries to subscriptions.

use crate::counters::ShardCounters;
use crate::encoding::{MessageFormat, SubscriberProtocol};

#[derive(PartialEq, Debug, Default)]
pub(super) struct DeliveryCounts {
    all: u64,
    /// Those over other protocols than NATS.
    by_protocol: [u64; SubscriberProtocol::COUNT],
}

impl DeliveryCounts {
    /// Counts deliveries in a format, or over NATS.
    #[inline]
    pub(super) fn add(&mut self, count: u64, format: Option<MessageFormat>) {
        self.all += count;
        if let Some(format) = format {
            self.by_protocol[format.protocol() as usize] += count;
        }
    }

    pub(super) fn publish(&self, counters: &ShardCounters) {
        counters.delivered.set(self.all);
        counters.set_delivered_by(self.by_protocol);
    }
}
