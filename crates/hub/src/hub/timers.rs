//! What depends on time alone: when the hub has to look again, and retention.

use std::time::Duration;

use stilling_journal::Retention;

use super::{Hub, Now, Outlets, consumers};
use crate::limits::{
    AGES_EVERY_NS, DISK_LOOK_EVERY_NS, LEFT_SUBSCRIPTIONS_EVERY_NS, MARKER_EVERY_NS, NOTICE_EVERY_NS,
    RETAIN_EVERY_NS, SWEEP_EVERY_NS,
};
use crate::storage::Storage;
use crate::stream::{Durability, Stream};

impl<S: Storage, O: Outlets> Hub<S, O> {
    /// The longest time that the hub may sleep before something that depends on time has to be checked.
    pub fn looks_again_in(&self) -> Option<Duration> {
        let consumers = (!self.consumers.is_empty()).then_some(consumers::LOOK_EVERY_NS);
        let markers = self.streams.iter().any(|stream| stream.lost.is_some()).then_some(MARKER_EVERY_NS);
        let ages = |stream: &Stream| stream.config.retention.age_ns.is_some() && stream.first < stream.next;
        let ages = self.streams.iter().any(ages).then_some(AGES_EVERY_NS);
        let waits = |stream: &Stream| {
            stream.stall.is_running() || !stream.under_way.is_empty() || stream.waiting_since.is_some()
        };
        let is_watched = self.stalls.is_any_running() || self.streams.iter().any(waits);
        let disk = is_watched.then_some(DISK_LOOK_EVERY_NS);
        let lines = self.streams.iter().any(|stream| stream.health.has_lines()).then_some(NOTICE_EVERY_NS);
        let ids = self.streams.iter().filter_map(|stream| stream.dedup.sweep_in()).min();
        let ids = ids.map(|span_ns| span_ns.max(SWEEP_EVERY_NS));
        let left = self.subscriptions.has_left().then_some(LEFT_SUBSCRIPTIONS_EVERY_NS);
        consumers
            .into_iter()
            .chain(markers)
            .chain(ages)
            .chain(disk)
            .chain(ids)
            .chain(lines)
            .chain(left)
            .min()
            .map(Duration::from_nanos)
    }

    /// Starts retention, of one stream after the other.
    pub(super) fn retain(&mut self, now: Now) {
        if self.streams.is_empty() || now.steady_ns < self.retain_at_ns {
            return;
        }
        self.retain_at_ns = now.steady_ns.saturating_add(RETAIN_EVERY_NS);
        self.retained = (self.retained + 1) % self.streams.len();
        let config = &self.streams[self.retained].config;
        if config.durability == Durability::Disk && config.retention != Retention::default() {
            // Without room it is asked for again when its turn comes.
            self.storage.retain(self.retained as u32, config.retention, now.unix_ns);
        }
    }
}
