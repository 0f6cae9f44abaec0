//! Delivery of records: live to followers, and the sending shared by all consumers.

use stilling_journal::{Record, RecordKind};
use stilling_wire::nats::{AckSubject, FLOW_CONTROL, strip_status};

use super::consumer::{Consumer, ConsumerSpec, ConsumerState};
use super::{ConsumerDelivery, flow_subject};
use crate::fan_out::{ShardSenders, VisibleRecord};
use crate::message::OutboundMessage;
use crate::payload::Payload;
use crate::registrations::SubscriberTarget;
use crate::storage::Storage;
use crate::time::{SteadyNanos, UnixNanos};

/// Header with the payload's size, for consumers that get only headers.
const MESSAGE_SIZE: &str = "Nats-Msg-Size";

/// Flow control window of a push consumer in bytes. After half of it the hub sends a flow control request and delivers
/// nothing more until the client answers.
const FLOW_WINDOW: usize = 1024 * 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendResult {
    /// Sent, to this subscriber among others.
    SentTo(SubscriberTarget),
    /// The target has no subscriber. The record remains the next one.
    NoSubscriber,
}

impl<S: Storage, O: ShardSenders> ConsumerDelivery<'_, S, O> {
    pub(crate) fn follow(&mut self, visible: VisibleRecord, record: &Record<'_, Payload<'_>>) {
        let VisibleRecord { stream, sequence, .. } = visible;
        let table = &self.consumers.table;
        if table.has_unoffered_before(stream, sequence) && table.has_following(stream) {
            self.reread_before(stream, sequence);
        }
        let mut matches = std::mem::take(&mut self.consumers.matches);
        matches.clear();
        if record.kind == RecordKind::Ordinary && self.consumers.table.has_following(stream) {
            self.consumers.table.find_following(stream, record.subject, &mut matches);
        }
        self.offer(visible, record, &matches);
        self.consumers.matches = matches;
    }

    /// Offers a record to matching consumers. When a shard's queue reaches twice its bound, the remaining consumers are
    /// queued.
    pub(super) fn offer(&mut self, visible: VisibleRecord, record: &Record<'_, Payload<'_>>, to: &[u32]) {
        let VisibleRecord { stream, sequence, time_ns, now_ns } = visible;
        let pending = self.streams[stream].visible.saturating_sub(sequence);
        for (at, &number) in to.iter().enumerate() {
            if self.fan_out.has_unfinished() || self.fan_out.is_any_far_over() {
                return self.fan_out.queue_record(visible, record, &to[at..]);
            }
            self.consumers.offered += 1;
            let Some(consumer) = self.consumers.table.get(number) else { continue };
            if !matches!(consumer.state, ConsumerState::Following) {
                self.consumers.table.unlist(number);
            } else if consumer.next.is_none_or(|next| next <= sequence)
                && (self.has_no_target(number)
                    || self.send_record(number, sequence, time_ns, record, (pending, now_ns))
                        == SendResult::NoSubscriber)
            {
                self.go_idle_at(number, sequence);
            }
        }
        self.consumers.table.note_offered(stream, sequence);
    }

    /// Makes followers read records before `sequence` that became visible without being offered.
    pub(crate) fn reread_before(&mut self, stream: usize, sequence: u64) {
        for number in self.consumers.table.of_stream(stream) {
            if self.consumers.table.next_of(number).is_some_and(|next| next < sequence)
                && self
                    .consumers
                    .table
                    .get(number)
                    .is_some_and(|c| matches!(c.state, ConsumerState::Following))
            {
                self.consumers.table.catch_up(number);
                if let Some(consumer) = self.consumers.table.get_mut(number) {
                    consumer.state = ConsumerState::Idle;
                }
                self.consumers.table.make_due(number);
            }
        }
    }

    pub(super) fn go_idle(&mut self, number: u32) {
        if let Some(consumer) = self.consumers.table.get_mut(number) {
            consumer.state = ConsumerState::Idle;
        }
    }

    pub(super) fn go_idle_at(&mut self, number: u32, next: u64) {
        if let Some(consumer) = self.consumers.table.get_mut(number) {
            (consumer.state, consumer.next) = (ConsumerState::Idle, Some(next));
        }
    }

    /// Returns whether a consumer's next message has no target. Drops pull requests without subscribers to their reply
    /// subjects.
    pub(super) fn has_no_target(&mut self, number: u32) -> bool {
        loop {
            let Some(consumer) = self.consumers.table.get(number) else { return true };
            let Some(target) = consumer.target() else { return true };
            if consumer.spec.deliver.is_some() {
                return false;
            }
            if self.router.has_subscriber(target) {
                return false;
            }
            self.consumers.table.take_pull(number);
        }
    }

    /// Sends a record to the consumer's target, and advances the consumer if the target has a subscriber. The message
    /// reports `pending` as the number of later ones.
    pub(super) fn send_record(
        &mut self,
        number: u32,
        sequence: u64,
        time_ns: UnixNanos,
        record: &Record<'_, Payload<'_>>,
        (pending, now_ns): (u64, SteadyNanos),
    ) -> SendResult {
        let Some(consumer) = self.consumers.table.get(number) else { return SendResult::NoSubscriber };
        let mut reply = Vec::with_capacity(128);
        let ack = AckSubject {
            stream: &self.streams[consumer.spec.stream].config.name,
            consumer: &consumer.spec.name,
            delivered: 1,
            stream_sequence: sequence,
            consumer_sequence: consumer.delivered + 1,
            time_ns: time_ns.as_nanos(),
            pending,
        };
        ack.encode(&mut reply);
        // Journals of earlier versions contain records with a status.
        let mut stripped = std::mem::take(&mut self.consumers.stripped);
        let (mut headers, mut payload) = (strip_status(record.headers, &mut stripped), record.payload);
        let sized;
        if consumer.spec.headers_only {
            sized = with_size(headers, payload.len());
            (headers, payload) = (&sized, b"".into());
        }
        let size = headers.len() + payload.len();
        let extra = record.subject.len() + reply.len();
        self.end_pulls_too_small_for(number, size + extra);
        let message =
            OutboundMessage { subject: record.subject, reply: &reply, headers, payload, position: None };
        let target = self.consumers.table.get(number).and_then(Consumer::target);
        let recipient = target.and_then(|target| self.fan_out.send_to_subject(self.router, target, &message));
        if recipient.is_some() {
            self.note_delivery(number, sequence, size + extra, now_ns);
        }
        self.consumers.stripped = stripped;
        recipient.map_or(SendResult::NoSubscriber, SendResult::SentTo)
    }

    /// Counts a delivered record and its bytes: subject, reply subject, headers and payload.
    fn note_delivery(&mut self, number: u32, sequence: u64, size: usize, now_ns: SteadyNanos) {
        let Some(consumer) = self.consumers.table.get_mut(number) else { return };
        consumer.next = Some(sequence + 1);
        consumer.delivered += 1;
        consumer.last = sequence;
        (consumer.last_sent_ns, consumer.active_ns) = (now_ns, now_ns);
        let mut is_satisfied = false;
        if let Some(pull) = consumer.first_pull() {
            pull.messages_left = pull.messages_left.saturating_sub(1);
            pull.last_sent_ns = now_ns;
            let is_full = pull.bytes_left.as_mut().is_some_and(|left| {
                *left = left.saturating_sub(size);
                *left == 0
            });
            is_satisfied = pull.messages_left == 0 || is_full;
        }
        if is_satisfied {
            self.consumers.table.take_pull(number);
        }
        let Some(consumer) = self.consumers.table.get_mut(number) else { return };
        consumer.flow += size;
        if consumer.spec.has_flow_control && consumer.flow > FLOW_WINDOW / 2 {
            (consumer.flow, consumer.stalled) = (0, true);
            let ConsumerSpec { stream, name, deliver, .. } = &consumer.spec;
            let reply = flow_subject(&self.streams[*stream].config.name, name);
            let target = deliver.clone().unwrap_or_default();
            self.send_status(&target, &reply, FLOW_CONTROL);
        }
    }

    pub(crate) fn note_flow_ack(&mut self, stream: usize, name: &str, now_ns: SteadyNanos) {
        let Some(number) = self.consumers.table.find(stream, name) else { return };
        if let Some(consumer) = self.consumers.table.get_mut(number) {
            (consumer.stalled, consumer.active_ns) = (false, now_ns);
            self.advance(number, now_ns);
        }
    }
}

fn with_size(headers: &[u8], size: usize) -> Vec<u8> {
    let mut sized =
        headers.strip_suffix(b"\r\n").filter(|lines| !lines.is_empty()).unwrap_or(b"NATS/1.0\r\n").to_vec();
    sized.extend_from_slice(format!("{MESSAGE_SIZE}: {size}\r\n\r\n").as_bytes());
    sized
}
