//! Reading by consumers that are behind: chunk by chunk, at the pace of their connections.

use stilling_journal::{Chunk, Gap, GapCause, ReadRequest, StartAt};
use stilling_wire::nats::{GAP_CAUSE, GAP_FIRST, GAP_LAST};

use super::ConsumerDelivery;
use super::consumer::ConsumerState;
use super::deliver::SendResult;
use crate::fan_out::ShardSenders;
use crate::limits::{FILTERS_COMPARED_PER_TURN, RECORDS_PER_READ};
use crate::registrations::SubscriberTarget;
use crate::storage::Storage;
use crate::stream::Durability;
use crate::time::{SteadyNanos, UnixNanos};

/// Number of a consumer's pending messages after the current one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PendingCount {
    /// Exact number, the next message included.
    Counted(u64),
    /// Upper bound: the sequences up to this one.
    Sequences(u64),
}

impl PendingCount {
    /// Returns the number of messages after the next one, which has this sequence.
    fn pending(&mut self, sequence: u64) -> u64 {
        match self {
            PendingCount::Counted(count) => {
                *count = count.saturating_sub(1);
                *count
            }
            PendingCount::Sequences(last) => last.saturating_sub(sequence),
        }
    }
}

impl<S: Storage, O: ShardSenders> ConsumerDelivery<'_, S, O> {
    pub(crate) fn advance(&mut self, number: u32, now_ns: SteadyNanos) {
        self.consumers.table.catch_up(number);
        let Some(consumer) = self.consumers.table.get_mut(number) else { return };
        match consumer.state {
            ConsumerState::Idle | ConsumerState::Following => {}
            ConsumerState::Sending(..) => return self.send_chunk(number, now_ns),
            ConsumerState::Reading(_) | ConsumerState::AwaitingMark(..) => return,
        }
        let stream = consumer.spec.stream;
        let is_pulled = consumer.spec.deliver.is_none();
        let has_target =
            consumer.target().is_some_and(|target| is_pulled || self.router.has_subscriber(target));
        let Some(consumer) = self.consumers.table.get_mut(number) else { return };
        if !has_target {
            consumer.state = ConsumerState::Idle;
            return;
        }
        consumer.active_ns = now_ns;
        if !self.send_gaps(number) {
            return self.go_idle(number);
        }
        let state = &self.streams[stream];
        let Some(consumer) = self.consumers.table.get_mut(number) else { return };
        let from = match consumer.next {
            Some(next) if next > state.visible => {
                self.consumers.table.start_following(number);
                return self.end_pulls(number, now_ns);
            }
            Some(next) => StartAt::Sequence(next.max(state.first)),
            None => consumer.spec.from,
        };
        if !self.has_room_for(number) {
            self.go_idle(number);
            return self.consumers.table.wait_for_room(number);
        }
        let Some(consumer) = self.consumers.table.get(number) else { return };
        let records_max = match &consumer.spec.deliver {
            Some(_) => RECORDS_PER_READ,
            None => consumer.pulls().front().map_or(1, |pull| pull.messages_left.min(RECORDS_PER_READ)),
        };
        let read_request = ReadRequest {
            reader_id: self.consumers.table.reader_id(number),
            stream: stream as u32,
            from,
            records_max: if self.consumers.table.get(number).is_some_and(|c| c.spec.filters.is_empty()) {
                records_max
            } else {
                RECORDS_PER_READ
            },
        };
        let state = &self.streams[stream];
        let visible = state.visible;
        let chunk = match state.config.durability {
            Durability::Disk => {
                if self.storage.read(read_request)
                    && let Some(consumer) = self.consumers.table.get_mut(number)
                {
                    consumer.state = ConsumerState::Reading(visible);
                }
                return;
            }
            Durability::Memory => state.read_memory(&read_request),
            Durability::None => {
                let mut chunk = Chunk::empty(&read_request);
                chunk.next = state.next;
                chunk
            }
        };
        self.receive(number, chunk, now_ns);
    }

    /// Receives a chunk. Returns it if no consumer requested it.
    pub(crate) fn receive_chunk(&mut self, chunk: Chunk, now_ns: SteadyNanos) -> Option<Chunk> {
        let health = &mut self.streams[chunk.stream as usize].health;
        match &chunk.failure {
            Some(failure) => health.read_failed(failure),
            None => health.read_succeeded(),
        }
        let Some(number) = self.consumers.table.by_reader_id(chunk.reader_id) else { return Some(chunk) };
        self.receive(number, chunk, now_ns);
        None
    }

    fn receive(&mut self, number: u32, chunk: Chunk, now_ns: SteadyNanos) {
        let removed = self.count_removed(number, &chunk);
        if let Some(removed) = removed {
            self.report_gap(number, removed);
        }
        if let Some(consumer) = self.consumers.table.get_mut(number) {
            let visible = match consumer.state {
                ConsumerState::Reading(visible) => visible,
                // Read from memory just now.
                _ => self.streams[consumer.spec.stream].visible,
            };
            consumer.state = ConsumerState::Sending(Box::new(chunk), 0, visible);
        }
        self.send_chunk(number, now_ns);
    }

    /// Counts records that were removed before a consumer reached them. As in nats-server, the consumer continues with
    /// the next record, and clients detect the gap by the sequences. A consumer that starts with the oldest record
    /// misses nothing.
    ///
    /// Returns the gap of a consumer that had already started.
    fn count_removed(&mut self, number: u32, chunk: &Chunk) -> Option<Gap> {
        let consumer = self.consumers.table.get(number)?;
        let stream = &mut self.streams[consumer.spec.stream];
        let next = consumer.next.filter(|&next| next > 1)?;
        if stream.config.durability == Durability::None {
            return None;
        }
        let first = chunk.get(0).map(|(sequence, ..)| sequence);
        let begin = first.or(chunk.gap.map(|gap| gap.first)).unwrap_or(chunk.next);
        stream.skipped.count_removed(begin.saturating_sub(next));
        let has_unfinished = consumer.spec.from != StartAt::Sequence(next);
        (has_unfinished && begin > next).then_some(Gap {
            first: next,
            last: begin - 1,
            cause: GapCause::Removed,
        })
    }

    fn report_gap(&mut self, number: u32, gap: Gap) {
        if let Some(consumer) = self.consumers.table.get_mut(number) {
            consumer.gaps.push_back(gap);
            self.send_gaps(number);
        }
    }

    /// Sends gap reports, each with a heartbeat; without a target they wait. Pull requests without heartbeats get no
    /// report, because their clients might treat it as an error. Returns whether all reports are sent.
    fn send_gaps(&mut self, number: u32) -> bool {
        if self.consumers.table.get(number).is_none_or(|consumer| consumer.gaps.is_empty()) {
            return true;
        }
        if self.has_no_target(number) {
            return false;
        }
        let Some(consumer) = self.consumers.table.get_mut(number) else { return true };
        let target = consumer.target().map(<[u8]>::to_vec).unwrap_or_default();
        let is_pushed = consumer.spec.deliver.is_some();
        let takes_reports =
            is_pushed || consumer.pulls().front().is_some_and(|pull| pull.heartbeat_ns.is_some());
        let (delivered, last) = (consumer.delivered, consumer.last);
        let gaps = std::mem::take(&mut consumer.gaps);
        if is_pushed && !self.router.has_subscriber(&target) {
            if let Some(consumer) = self.consumers.table.get_mut(number) {
                consumer.gaps = gaps;
            }
            return false;
        }
        for gap in gaps.into_iter().filter(|_| takes_reports) {
            self.send_status(&target, b"", &gap_status(gap, delivered, last));
        }
        true
    }

    fn send_chunk(&mut self, number: u32, now_ns: SteadyNanos) {
        self.send_gaps(number);
        let mut last = self.consumers.table.take_sent(number);
        let Some(consumer) = self.consumers.table.get_mut(number) else { return };
        let ConsumerState::Sending(chunk, from, visible) = std::mem::take(&mut consumer.state) else {
            return;
        };
        let mut behind = self.count_pending(number, &chunk, from, visible);
        for at in from..chunk.len() {
            let Some((sequence, time_ns, record)) = chunk.get(at) else { break };
            let has_room = self.has_room_for(number);
            let Some(consumer) = self.consumers.table.get_mut(number) else { return };
            if !has_room || self.consumers.compared >= FILTERS_COMPARED_PER_TURN {
                consumer.state = ConsumerState::Sending(chunk, at, visible);
                self.consumers.table.note_sent(number, last);
                return if has_room {
                    self.consumers.table.make_due(number);
                } else {
                    self.consumers.table.wait_for_room(number);
                };
            }
            self.consumers.compared += consumer.spec.filters.len();
            if consumer.wants(&record) {
                if self.has_no_target(number) {
                    // The pull requests are satisfied, or a flow control request is unanswered.
                    self.go_idle_at(number, sequence);
                    return self.mark(number, last);
                }
                let (pending, time_ns) = (behind.pending(sequence), UnixNanos::from_nanos(time_ns));
                let record = record.with_payload(record.payload.into());
                match self.send_record(number, sequence, time_ns, &record, (pending, now_ns)) {
                    SendResult::SentTo(recipient) => last = Some(recipient),
                    // Without subscribers the rest of the chunk is read again for the next one.
                    SendResult::NoSubscriber => {
                        self.go_idle_at(number, sequence);
                        return self.mark(number, last);
                    }
                }
            } else {
                consumer.next = Some(sequence + 1);
            }
        }
        let Some(consumer) = self.consumers.table.get_mut(number) else { return };
        if chunk.failure.is_none() {
            // After a failed read the next sequence may be unknown; for a consumer that started at a time it always is.
            consumer.next = Some(chunk.next.max(consumer.next.unwrap_or(0)));
        }
        if chunk.is_end {
            // No further record was visible at the time of the read; records that have become visible since are read
            // next.
            consumer.next = consumer.next.max(Some(visible + 1));
        }
        consumer.state = ConsumerState::Idle;
        if let Some(gap) = chunk.gap {
            self.streams[consumer.spec.stream].note_skipped(gap);
            self.report_gap(number, gap);
        }
        if last.is_some() {
            return self.mark(number, last);
        }
        if chunk.failure.is_some() {
            // Requested again at the next check.
            return;
        }
        self.consumers.table.make_due(number);
    }

    /// Counts the pending messages of a chunk and after it. Within the chunk the count is exact if the filters can be
    /// compared within the turn's budget; otherwise, and after the chunk, every record counts, so it may be too high.
    fn count_pending(&mut self, number: u32, chunk: &Chunk, from: usize, visible: u64) -> PendingCount {
        let Some(consumer) = self.consumers.table.get(number) else {
            return PendingCount::Sequences(visible);
        };
        let now_visible = self.streams[consumer.spec.stream].visible;
        let cost = consumer.spec.filters.len() * (chunk.len() - from);
        let budget = FILTERS_COMPARED_PER_TURN.saturating_sub(self.consumers.compared) / 2;
        if consumer.spec.filters.is_empty() || cost > budget {
            return PendingCount::Sequences(now_visible);
        }
        self.consumers.compared += cost;
        let records = (from..chunk.len()).filter_map(|at| chunk.get(at));
        let matching = records.filter(|(_, _, record)| consumer.wants(record)).count() as u64;
        let end = if chunk.is_end { visible.max(chunk.next - 1) } else { chunk.next - 1 };
        PendingCount::Counted(matching + now_visible.saturating_sub(end))
    }

    /// Sends a mark after the last message: the shard reports it when the message has been sent.
    fn mark(&mut self, number: u32, recipient: Option<SubscriberTarget>) {
        if let Some(recipient) = recipient {
            let mark = self.consumers.table.wait_for(number, recipient);
            self.fan_out.mark(recipient, mark);
        }
    }

    /// Handles a reached mark: everything before it has been sent.
    pub(crate) fn reached(&mut self, mark: u64, now_ns: SteadyNanos) {
        if let Some(number) = self.consumers.table.reached(mark) {
            self.advance(number, now_ns);
        }
    }
}

/// Status that reports missing sequences. Clients that do not know its headers treat it as a heartbeat, so it contains
/// a heartbeat's fields.
fn gap_status(Gap { first, last, cause }: Gap, delivered: u64, last_sequence: u64) -> Vec<u8> {
    let cause = match cause {
        GapCause::Removed => "removed",
        GapCause::Damaged => "damaged",
        GapCause::Torn => "torn",
    };
    format!(
        "NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: {delivered}\r\nNats-Last-Stream: {last_sequence}\r\n\
         {GAP_FIRST}: {first}\r\n{GAP_LAST}: {last}\r\n{GAP_CAUSE}: {cause}\r\n\r\n"
    )
    .into_bytes()
}
