//! Pull requests of a consumer: arrival and end.

use std::collections::VecDeque;

use super::ConsumerDelivery;
use crate::fan_out::ShardSenders;
use crate::publication_batch::ClientId;
use crate::pull::{EndedPull, Pull, PullEnd};
use crate::storage::Storage;
use crate::time::SteadyNanos;

impl<S: Storage, O: ShardSenders> ConsumerDelivery<'_, S, O> {
    /// Queues a pull request, or ends it at once if there is no room.
    pub(crate) fn pull(&mut self, number: u32, pull: Pull, now_ns: SteadyNanos) {
        let Some(consumer) = self.consumers.table.get_mut(number) else { return };
        consumer.active_ns = now_ns;
        match self.consumers.table.add_pull(number, pull) {
            Ok(()) => self.advance(number, now_ns),
            Err(pull) => self.send_pull_ends(VecDeque::from([EndedPull::new(pull, PullEnd::TooMany)])),
        }
    }

    pub(crate) fn delete(&mut self, number: u32) {
        let Some(consumer) = self.consumers.table.remove(number) else { return };
        let pulls = consumer.into_pulls().into_iter();
        self.send_pull_ends(pulls.map(|pull| EndedPull::new(pull, PullEnd::Deleted)).collect());
    }

    /// Ends expired requests, and requests with `no_wait` when there is no message for them.
    pub(super) fn end_pulls(&mut self, number: u32, now_ns: SteadyNanos) {
        self.end_pulls_if(number, |pull| {
            let is_late = pull.expires_ns.is_some_and(|at| at <= now_ns);
            match (is_late, pull.no_wait) {
                (true, _) => Some(PullEnd::Timeout),
                (false, true) => Some(PullEnd::NoMessages),
                (false, false) => None,
            }
        });
    }

    pub(super) fn end_pulls_if(&mut self, number: u32, why: impl Fn(&Pull) -> Option<PullEnd>) {
        let consumer = self.consumers.table.get(number);
        if !consumer.is_some_and(|consumer| consumer.pulls().iter().any(|pull| why(pull).is_some())) {
            return;
        }
        let ended = self.consumers.table.take_pulls(number, why);
        self.send_pull_ends(ended.into_iter().map(|(pull, why)| EndedPull::new(pull, why)).collect());
    }

    /// Ends the oldest requests while their remaining bytes are fewer than the next message's `size`.
    pub(super) fn end_pulls_too_small_for(&mut self, number: u32, size: usize) {
        let is_too_small = |pull: &Pull| pull.bytes_left.is_some_and(|left| left < size);
        while self.consumers.table.get(number).is_some_and(|c| c.pulls().front().is_some_and(is_too_small)) {
            let Some(pull) = self.consumers.table.take_pull(number) else { return };
            self.send_pull_ends(VecDeque::from([EndedPull::new(pull, PullEnd::TooLarge)]));
        }
    }

    /// Ends the requests of a client because the server drains. The client then asks another server or the successor.
    pub(crate) fn end_pulls_of(&mut self, client: ClientId) {
        let mut from = 0;
        while let Some(number) = self.consumers.table.next_attached(client, from) {
            from = number + 1;
            self.end_pulls_if(number, |pull| (pull.client == client).then_some(PullEnd::Shutdown));
        }
    }

    /// Answers ended requests with their reason, until a shard's queue reaches twice its bound (a reply subject may
    /// have many subscribers); the others are queued.
    pub(super) fn send_pull_ends(&mut self, mut ended: VecDeque<EndedPull>) {
        while !self.fan_out.has_unfinished()
            && !self.fan_out.is_any_far_over()
            && let Some(one) = ended.pop_front()
        {
            self.send_status(one.reply(), b"", &one.headers());
        }
        if !ended.is_empty() {
            self.fan_out.queue_statuses(ended);
        }
    }
}
