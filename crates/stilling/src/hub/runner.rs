//! Runs the hub: moves publication batches in and routed batches out, turn by turn, on its own thread or in shard 0.

use std::sync::Arc;
use std::time::Duration;

use stilling_hub::limits::{PUBLICATION_BATCHES, ROUTED_BATCHES, SUBSCRIPTIONS_PER_CLIENT_MAX};
use stilling_hub::{
    HashKey, Hub, HubCounters, Now, PublicationBatch, RoutedBatch, ShardSenders, ShardSubscriptions,
    SteadyNanos, Storage,
};
use stilling_ring::{Receiver, Sender, Wake, mailbox};

use super::limits::{HUB_WAIT_MAX, OPEN_CHECK_INTERVAL};
use super::port::HubPort;
use super::queue_meter::QueueMeter;
use crate::lifecycle::{HandoverStage, Lifecycle};
use crate::log::LogWriter;

/// Routed batches on their way to the shards and back.
pub(crate) struct MailboxSenders {
    shard_senders: Vec<ShardSender>,
}

struct ShardSender {
    routed_batches: Sender<RoutedBatch>,
    emptied: Receiver<RoutedBatch>,
    wake: Arc<Wake>,
}

impl ShardSenders for MailboxSenders {
    fn swap(&mut self, shard: usize, routed_batch: &mut RoutedBatch) -> bool {
        let sender = &mut self.shard_senders[shard];
        let Some(empty) = sender.emptied.pop() else { return false };
        // The mailbox has room for every routed batch that exists.
        let _ = sender.routed_batches.push(std::mem::replace(routed_batch, empty));
        true
    }

    fn has_ended(&self, shard: usize) -> bool {
        self.shard_senders[shard].emptied.is_closed()
    }
}

/// What one shard sends.
struct ShardReceiver {
    publication_batches: Receiver<PublicationBatch>,
    returned: Sender<PublicationBatch>,
    /// The batch that is being processed, and the position in it.
    current: Option<(PublicationBatch, usize)>,
}

pub(crate) struct Runner<S: Storage> {
    hub: Hub<S, MailboxSenders>,
    shard_receivers: Vec<ShardReceiver>,
    /// The first shard of the next turn.
    first: usize,
    /// Set while the hub processes nothing yet.
    gate: Option<StartGate<S>>,
    log: Option<LogWriter>,
    queue: QueueMeter,
    counters: Arc<HubCounters>,
}

/// Delays the start of a hub until the predecessor releases the streams.
pub(crate) struct StartGate<S> {
    pub(crate) lifecycle: Arc<Lifecycle>,
    /// Whether the storage is open, or has an event.
    pub(crate) is_open: fn(&S) -> bool,
    /// Called when the hub begins without the storage: publications are refused instead of waiting.
    pub(crate) refuse_publications: fn(&mut S),
    /// When this process took over.
    pub(crate) since_ns: Option<SteadyNanos>,
}

impl<S> StartGate<S> {
    fn try_open(&mut self, storage: &mut S, now_ns: SteadyNanos) -> bool {
        if (self.is_open)(storage) {
            return true;
        }
        if !self.lifecycle.has_reached(HandoverStage::PathTaken) {
            return false;
        }
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        if u128::from(now_ns.since(since_ns)) < HUB_WAIT_MAX.as_nanos() {
            return false;
        }
        (self.refuse_publications)(storage);
        true
    }
}

/// Makes the mailboxes between a hub and its shards: each shard's port, and the parts of the runner.
pub(crate) fn connect(
    shards: &[Arc<Wake>],
    hub: &Arc<Wake>,
    key: HashKey,
) -> (Vec<HubPort>, MailboxSenders, ShardReceivers) {
    let mut ports = Vec::new();
    let (mut shard_senders, mut shard_receivers) = (Vec::new(), Vec::new());
    for wake in shards {
        let (publication_batches, to_hub) = mailbox(PUBLICATION_BATCHES);
        let (mut returned, from_hub) = mailbox(PUBLICATION_BATCHES);
        let (routed_batches, to_shard) = mailbox(ROUTED_BATCHES);
        let (mut emptied, from_shard) = mailbox(ROUTED_BATCHES);
        for _ in 0..PUBLICATION_BATCHES {
            let _ = returned.push(PublicationBatch::new());
        }
        returned.publish();
        for _ in 0..ROUTED_BATCHES {
            let _ = emptied.push(RoutedBatch::new());
        }
        emptied.publish();
        let table = ShardSubscriptions::new(key, SUBSCRIPTIONS_PER_CLIENT_MAX).with_shards(shards.len());
        ports.push(HubPort::new(
            (publication_batches, from_hub),
            (to_shard, emptied),
            table,
            Arc::clone(hub),
        ));
        shard_senders.push(ShardSender { routed_batches, emptied: from_shard, wake: Arc::clone(wake) });
        shard_receivers.push(ShardReceiver { publication_batches: to_hub, returned, current: None });
    }
    (ports, MailboxSenders { shard_senders }, ShardReceivers(shard_receivers))
}

pub(crate) struct ShardReceivers(Vec<ShardReceiver>);

impl<S: Storage> Runner<S> {
    pub(crate) fn new(
        hub: Hub<S, MailboxSenders>,
        ShardReceivers(shard_receivers): ShardReceivers,
        log: Option<LogWriter>,
    ) -> Runner<S> {
        let counters = hub.counters();
        Runner { hub, shard_receivers, first: 0, gate: None, log, queue: QueueMeter::default(), counters }
    }

    /// Adds a gate: the hub processes nothing before it opens.
    pub(crate) fn with_gate(mut self, gate: StartGate<S>) -> Runner<S> {
        self.gate = Some(gate);
        self
    }

    pub(crate) fn turn(&mut self, now: Now) {
        if let Some(gate) = &mut self.gate {
            if !gate.try_open(self.hub.storage_mut(), now.steady_ns) {
                return;
            }
            gate.lifecycle.set_hub_started();
            self.gate = None;
        }
        self.queue.observe_length(&self.counters);
        self.hub.poll_storage(now);
        let count = self.shard_receivers.len();
        // Bounded by the number of batches that exist, so that a turn inside a shard ends.
        for round in 0..PUBLICATION_BATCHES {
            let mut has_moved = false;
            for at in 0..count {
                let number = (self.first + round + at) % count;
                has_moved |= self.process_batch(number, now);
            }
            if !has_moved {
                break;
            }
        }
        self.first = (self.first + 1) % count.max(1);
        self.hub.flush();
        self.queue.publish_metrics(&self.counters);
        while let Some(line) = self.hub.next_notice() {
            if let Some(log) = &mut self.log {
                log.line(line);
                self.counters.log_lines_dropped.set(log.dropped());
            }
        }
        for (receiver, sender) in
            self.shard_receivers.iter_mut().zip(&mut self.hub.shard_senders_mut().shard_senders)
        {
            let has_returned = receiver.returned.publish();
            if sender.routed_batches.publish() || has_returned {
                sender.wake.notify();
            }
        }
    }

    /// Processes one publication batch of a shard. Returns whether it was completed.
    fn process_batch(&mut self, shard: usize, now: Now) -> bool {
        let receiver = &mut self.shard_receivers[shard];
        let (mut publication_batch, from) = match receiver.current.take() {
            Some(current) => current,
            None => {
                let Some(publication_batch) = receiver.publication_batches.pop() else { return false };
                self.queue.observe_wait(&publication_batch, now.unix_ns);
                (publication_batch, 0)
            }
        };
        let at = self.hub.process_requests(shard, &publication_batch, from, now);
        self.queue.count_processed(at - from);
        let receiver = &mut self.shard_receivers[shard];
        if at < publication_batch.len() {
            receiver.current = Some((publication_batch, at));
            return false;
        }
        publication_batch.clear();
        // The mailbox has room for every publication batch that exists.
        let _ = receiver.returned.push(publication_batch);
        true
    }

    /// The oldest publication batch that a shard has handed over and the hub has not begun.
    #[cfg(test)]
    pub(crate) fn next_publication_batch(&mut self, shard: usize) -> Option<&PublicationBatch> {
        self.shard_receivers[shard].publication_batches.peek()
    }

    /// Whether there is nothing to do until a wake. Called after [`Wake::set_parked`], it misses no work.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_blocked =
            |receiver: &ShardReceiver| receiver.current.is_some() || receiver.publication_batches.is_empty();
        if self.gate.is_some() {
            return self.hub.is_quiet();
        }
        let is_full =
            |(shard, sender): (usize, &ShardSender)| sender.emptied.is_empty() || !self.hub.has_unsent(shard);
        let shard_senders = &self.hub.shard_senders().shard_senders;
        self.hub.is_quiet()
            && self.shard_receivers.iter().all(is_blocked)
            && shard_senders.iter().enumerate().all(is_full)
    }

    /// Maximum sleep without a wake.
    pub(crate) fn next_check_in(&self) -> Option<Duration> {
        if self.gate.is_some() {
            return Some(OPEN_CHECK_INTERVAL);
        }
        self.hub.next_check_in()
    }

    /// Whether the hub never begins: pending requests need no processing.
    fn is_abandoned(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.lifecycle.hub_is_abandoned())
    }

    /// Whether all shards have ended, and all their requests are processed and durable.
    pub(crate) fn is_done(&self) -> bool {
        let has_ended = |receiver: &ShardReceiver| {
            receiver.current.is_none()
                && receiver.publication_batches.is_closed()
                && receiver.publication_batches.is_empty()
        };
        self.is_abandoned()
            || self.gate.is_none() && self.shard_receivers.iter().all(has_ended) && self.hub.is_drained()
    }

    /// The same, except that `shard`, which runs the hub, may not have ended.
    pub(crate) fn is_done_but_for(&self, shard: usize) -> bool {
        let has_ended = |(number, receiver): (usize, &ShardReceiver)| {
            // Closed before empty: after the close nothing more arrives.
            receiver.current.is_none()
                && (number == shard || receiver.publication_batches.is_closed())
                && receiver.publication_batches.is_empty()
        };
        self.is_abandoned()
            || self.gate.is_none()
                && self.shard_receivers.iter().enumerate().all(has_ended)
                && self.hub.is_drained()
    }

    /// Runs the hub on this thread until all shards have ended.
    pub(crate) fn run(&mut self, wake: &Wake, now: impl Fn() -> Now) {
        loop {
            self.turn(now());
            if !self.is_quiet() {
                continue;
            }
            if self.is_done() {
                return;
            }
            wake.set_parked();
            if self.is_quiet() && !self.is_done() {
                match self.next_check_in() {
                    Some(span) => std::thread::park_timeout(span),
                    None => std::thread::park(),
                }
            }
            wake.clear_parked();
        }
    }
}

/// Hands the states of the streams' gates to the journal, which writes them before it closes.
impl<S: Storage> Drop for Runner<S> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.hub.write_final_snapshots();
        }
    }
}

#[cfg(test)]
mod tests;
