//! Measures the queue between the shards and the hub: length, maximum, rate, waiting time.

use stilling_hub::{HubCounters, PublicationBatch, UnixNanos};

/// Figures of the queue so far.
#[derive(Debug, Default)]
pub(crate) struct QueueMeter {
    processed: u64,
    length_max: u64,
    /// Requests of batches with a known time, and the nanoseconds that they waited.
    timed: u64,
    waited_ns: u64,
    wait_ns_max: u64,
}

impl QueueMeter {
    /// Notes the length of the queue before a turn of the hub.
    pub(super) fn observe_length(&mut self, counters: &HubCounters) {
        let requested: u64 = counters.shards.iter().map(|shard| shard.requested.get()).sum();
        self.length_max = self.length_max.max(requested.saturating_sub(self.processed));
    }

    /// Notes that the hub begins with a batch. The wait is measured by the calendar: a clock that is set shifts it once.
    pub(super) fn observe_wait(&mut self, publication_batch: &PublicationBatch, now: UnixNanos) {
        if let Some(sent) = publication_batch.sent() {
            let wait_ns = now.as_nanos().saturating_sub(sent.as_nanos());
            let count = publication_batch.len() as u64;
            self.timed += count;
            self.waited_ns += count * wait_ns;
            self.wait_ns_max = self.wait_ns_max.max(wait_ns);
        }
    }

    pub(super) fn count_processed(&mut self, count: usize) {
        self.processed += count as u64;
    }

    pub(super) fn publish_metrics(&self, counters: &HubCounters) {
        counters.requests.set(self.processed);
        counters.queue_length_max.set(self.length_max);
        counters.requests_timed.set(self.timed);
        counters.queue_wait_ns.set(self.waited_ns);
        counters.queue_wait_ns_max.set(self.wait_ns_max);
    }
}

#[cfg(test)]
mod tests {
    use stilling_hub::{ClientOptions, HubRequest};

    use super::super::testing::hub_of_one_shard;
    use super::*;

    /// Row 2.10: length, maximum, rate and waiting time of the queue between I/O and logic.
    #[test]
    fn the_queue_is_measured_in_requests() {
        let (_port, _runner, counters) = hub_of_one_shard();
        let mut meter = QueueMeter::default();
        let mut publication_batch = PublicationBatch::new();
        for _ in 0..3 {
            publication_batch.push(1, ClientOptions::default(), &HubRequest::Barrier);
        }
        counters.shards[0].requested.set(3);
        meter.observe_length(&counters);
        meter.observe_wait(&publication_batch, UnixNanos::from_nanos(9));
        publication_batch.set_sent(Some(UnixNanos::from_nanos(100)));
        meter.observe_wait(&publication_batch, UnixNanos::from_nanos(107));
        meter.observe_wait(&publication_batch, UnixNanos::from_nanos(99));
        meter.count_processed(3);
        meter.observe_length(&counters);
        meter.publish_metrics(&counters);
        assert_eq!((counters.requests.get(), counters.queue_length_max.get()), (3, 3));
        assert_eq!(counters.queue_length(), 0);
        assert_eq!((counters.requests_timed.get(), counters.queue_wait_ns.get()), (6, 21));
        assert_eq!(counters.queue_wait_ns_max.get(), 7);
    }
}
