//! Timed work of consumers: continuing, heartbeats, expiry.

use std::sync::Arc;

use stilling_wire::nats::IDLE_HEARTBEAT;

use super::consumer::{Consumer, ConsumerState};
use super::{CONSUMER_CHECK_EVERY_NS, ConsumerDelivery, flow_subject};
use crate::fan_out::ShardSenders;
use crate::limits::{CHUNKS_PER_TURN, CONSUMERS_CHECKED_PER_TICK};
use crate::pull::PullEnd;
use crate::storage::Storage;
use crate::time::SteadyNanos;

impl<S: Storage, O: ShardSenders> ConsumerDelivery<'_, S, O> {
    /// Advances consumers that can continue, and checks the timers of some consumers in rotation.
    pub(crate) fn run_maintenance(&mut self, now_ns: SteadyNanos) {
        let is_time = now_ns >= self.consumers.table.checked_ns.after(CONSUMER_CHECK_EVERY_NS);
        if is_time || self.fan_out.has_regained_room() {
            self.consumers.table.end_wait_for_room();
        }
        for _ in 0..self.consumers.table.due().min(CHUNKS_PER_TURN) {
            if !self.finish_unsent() {
                break;
            }
            let Some(number) = self.consumers.table.next_due() else { break };
            self.advance(number, now_ns);
        }
        // Consumers without room are queued when a shard returns a batch, which wakes the hub.
        self.consumers.table.can_resume = self.consumers.table.due() > 0;
        if !is_time {
            return;
        }
        self.consumers.table.checked_ns = now_ns;
        for _ in 0..self.consumers.table.slots().min(CONSUMERS_CHECKED_PER_TICK) {
            if !self.finish_unsent() {
                break;
            }
            let Some(number) = self.consumers.table.next_checked() else { continue };
            let consumer = self.consumers.table.get(number);
            if consumer.is_some_and(|consumer| matches!(consumer.state, ConsumerState::Idle)) {
                self.advance(number, now_ns);
            }
            self.check_timers(number, now_ns);
        }
    }

    fn check_timers(&mut self, number: u32, now_ns: SteadyNanos) {
        // The inactive time starts at the end of a pull request, however long that was open.
        if let Some(consumer) = self.consumers.table.get_mut(number).filter(|one| !one.pulls().is_empty()) {
            consumer.active_ns = now_ns;
        }
        self.end_pulls_if(number, |pull| {
            pull.expires_ns.is_some_and(|at| at <= now_ns).then_some(PullEnd::Timeout)
        });
        let Some(consumer) = self.consumers.table.get_mut(number) else { return };
        let is_idle = consumer.is_idle();
        let is_unwanted = is_idle && now_ns > consumer.active_ns.after(consumer.inactive_ns());
        let has_subscriber =
            consumer.spec.deliver.clone().is_some_and(|deliver| self.router.has_subscriber(&deliver));
        if is_unwanted && !has_subscriber {
            self.consumers.table.remove(number);
            return;
        }
        if is_idle && !has_subscriber {
            // Idle consumers stay in the index, so a matching record still visits them.
            self.consumers.table.catch_up(number);
        }
        let Some(consumer) = self.consumers.table.get_mut(number) else { return };
        if has_subscriber {
            consumer.active_ns = now_ns;
        } else if is_idle {
            consumer.state = ConsumerState::Idle;
        }
        let mut statuses: Vec<(Arc<[u8]>, Vec<u8>)> = Vec::new();
        if let (Some(every), Some(deliver)) = (consumer.spec.heartbeat_ns, &consumer.spec.deliver)
            && now_ns >= consumer.last_sent_ns.after(every)
        {
            consumer.last_sent_ns = now_ns;
            let headers = push_heartbeat(consumer, &self.streams[consumer.spec.stream].config.name);
            statuses.push((deliver.as_slice().into(), headers));
        }
        if let Some(pull) = consumer.first_pull()
            && pull.heartbeat_ns.is_some_and(|every| now_ns >= pull.last_sent_ns.after(every))
        {
            pull.last_sent_ns = now_ns;
            statuses.push((pull.reply.as_slice().into(), IDLE_HEARTBEAT.to_vec()));
        }
        for (to, headers) in statuses {
            // A shard over its bound gets no heartbeats.
            if self.fan_out.is_over_for_subject(self.router, &to, None) {
                continue;
            }
            self.send_status(&to, b"", &headers);
        }
    }
}

/// Returns the header block of an idle heartbeat to a push consumer.
fn push_heartbeat(consumer: &Consumer, stream: &str) -> Vec<u8> {
    let mut headers = b"NATS/1.0 100 Idle Heartbeat\r\n".to_vec();
    for (name, value) in [("Nats-Last-Consumer", consumer.delivered), ("Nats-Last-Stream", consumer.last)] {
        headers.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    if consumer.stalled {
        headers.extend_from_slice(b"Nats-Consumer-Stalled: ");
        headers.extend_from_slice(&flow_subject(stream, &consumer.spec.name));
        headers.extend_from_slice(b"\r\n");
    }
    headers.extend_from_slice(b"\r\n");
    headers
}
