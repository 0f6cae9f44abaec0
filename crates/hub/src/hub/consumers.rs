//! Consumers: those who follow a stream from a place in it, record by record.
//!
//! ```text
//!   asleep ──somebody listens──▶ reading ──chunk──▶ sending ──all of it──▶ gone ahead ──it has left──┐
//!                                   ▲                                                             │
//!                                   └──────────── more is visible ────────────────────────────────┤
//!                                following ◀───────────── nothing more is visible ────────────────┘
//! ```
//!
//! What lies behind is read in chunks, one at a time, and the next one is asked for when the last one has left the server:
//! so a consumer that reads slowly costs a chunk, however far it is behind. One that has caught up gets each record as it
//! becomes visible.

use std::sync::Arc;

use stilling_journal::{Chunk, From, Gap, GapCause, Kind, ReadOrder, Record};
use stilling_wire::nats::{
    AckSubject, FLOW_CONTROL, GAP_CAUSE, GAP_FIRST, GAP_LAST, IDLE_HEARTBEAT, strip_status,
};

use super::pulls::PullEnd;
use super::roster::{State, Ticket, Wanted};
use super::unsent::Visible;
use super::{Hub, Message, Outlets, SteadyNanos, UnixNanos};
use crate::intake::Client;
use crate::limits::{CHUNKS_PER_TURN, CONSUMERS_LOOKED_AT, FILTERS_COMPARED_PER_TURN, LEFT_PER_TURN};
use crate::storage::Storage;
use crate::stream::Durability;

/// The header that tells the payload's size where a consumer gets headers alone.
const MESSAGE_SIZE: &str = "Nats-Msg-Size";

/// Records of one read.
const RECORDS_PER_READ: u32 = 4096;

/// Bytes that a consumer with flow control may have ahead of its last answer.
const FLOW_WINDOW: usize = 1024 * 1024;

/// What became of a record that a consumer wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    /// It was sent, to this connection among others.
    To(Client),
    /// Nobody listens where it was to go. It is still the next one.
    Unheard,
}

/// How many messages of a consumer come behind one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Behind {
    /// So many, the next one included.
    Counted(u64),
    /// At most those up to this sequence.
    Sequences(u64),
}

impl Behind {
    /// What comes behind the next message, which has this sequence.
    fn pending(&mut self, sequence: u64) -> u64 {
        match self {
            Behind::Counted(count) => {
                *count = count.saturating_sub(1);
                *count
            }
            Behind::Sequences(last) => last.saturating_sub(sequence),
        }
    }
}

/// How often it is looked which consumers' time has come, in nanoseconds.
pub(super) const LOOK_EVERY_NS: u64 = 50_000_000;

impl<S: Storage, O: Outlets> Hub<S, O> {
    /// Has a consumer go on, if it can.
    pub(super) fn advance(&mut self, number: u32, now_ns: SteadyNanos) {
        self.consumers.catch_up(number);
        let Some(consumer) = self.consumers.get_mut(number) else { return };
        match consumer.state {
            State::Asleep | State::Following => {}
            State::Sending(..) => return self.send_chunk(number, now_ns),
            State::Reading(_) | State::Ahead(_) => return,
        }
        let stream = consumer.wanted.stream;
        let has_target = match consumer.target() {
            Some(target) => {
                let (target, is_pulled) = (target.to_vec(), consumer.wanted.deliver.is_none());
                is_pulled || self.is_heard(&target)
            }
            None => false,
        };
        let Some(consumer) = self.consumers.get_mut(number) else { return };
        if !has_target {
            consumer.state = State::Asleep;
            return;
        }
        consumer.active_ns = now_ns;
        if !self.send_gaps(number) {
            return self.doze(number);
        }
        let state = &self.streams[stream];
        let Some(consumer) = self.consumers.get_mut(number) else { return };
        let order = match consumer.next {
            Some(next) if next > state.visible => {
                self.consumers.follow_on(number);
                return self.end_pulls(number, now_ns);
            }
            Some(next) => From::Sequence(next.max(state.first)),
            None => consumer.wanted.from,
        };
        let records_max = match &consumer.wanted.deliver {
            Some(_) => RECORDS_PER_READ,
            None => consumer.pulls().front().map_or(1, |pull| pull.left.min(RECORDS_PER_READ)),
        };
        let order = ReadOrder {
            ticket: self.consumers.ticket(number),
            stream: stream as u32,
            from: order,
            records_max: if self.consumers.get(number).is_some_and(|c| c.wanted.filters.is_empty()) {
                records_max
            } else {
                RECORDS_PER_READ
            },
        };
        let visible = state.visible;
        let chunk = match state.config.durability {
            Durability::Disk => {
                if self.storage.read(order)
                    && let Some(consumer) = self.consumers.get_mut(number)
                {
                    consumer.state = State::Reading(visible);
                }
                return;
            }
            Durability::Memory => state.read_memory(&order),
            Durability::None => {
                let mut chunk = Chunk::empty(&order);
                chunk.next = state.next;
                chunk
            }
        };
        self.take_chunk(chunk, now_ns);
    }

    /// Records have come.
    pub(super) fn take_chunk(&mut self, chunk: Chunk, now_ns: SteadyNanos) {
        let health = &mut self.streams[chunk.stream as usize].health;
        match &chunk.failure {
            Some(failure) => health.read_failed(failure),
            None => health.read_succeeded(),
        }
        let Some(number) = self.consumers.by_ticket(chunk.ticket) else { return self.answer_read(chunk) };
        let removed = self.count_removed(number, &chunk);
        if let Some(removed) = removed {
            self.report_gap(number, removed);
        }
        if let Some(consumer) = self.consumers.get_mut(number) {
            let visible = match consumer.state {
                State::Reading(visible) => visible,
                // It was read from memory, just now.
                _ => self.streams[consumer.wanted.stream].visible,
            };
            consumer.state = State::Sending(Box::new(chunk), 0, visible);
        }
        self.send_chunk(number, now_ns);
    }

    /// Counts what was removed before a consumer came to it. As nats-server has it, the consumer goes on with what comes
    /// next, and whoever follows sees it by the sequences. Who begins with the oldest there is misses nothing.
    ///
    /// Returns what a consumer that had begun before has missed by it.
    fn count_removed(&mut self, number: u32, chunk: &Chunk) -> Option<Gap> {
        let consumer = self.consumers.get(number)?;
        let stream = &mut self.streams[consumer.wanted.stream];
        let next = consumer.next.filter(|&next| next > 1)?;
        if stream.config.durability == Durability::None {
            return None;
        }
        let first = chunk.get(0).map(|(sequence, ..)| sequence);
        let begin = first.or(chunk.gap.map(|gap| gap.first)).unwrap_or(chunk.next);
        stream.passed_over.removed += begin.saturating_sub(next);
        let has_begun = consumer.wanted.from != From::Sequence(next);
        (has_begun && begin > next).then_some(Gap { first: next, last: begin - 1, cause: GapCause::Removed })
    }

    /// Reports missing sequences to the consumer's subscribers, before its next record.
    fn report_gap(&mut self, number: u32, gap: Gap) {
        if let Some(consumer) = self.consumers.get_mut(number) {
            consumer.gaps.push_back(gap);
            self.send_gaps(number);
        }
    }

    /// Sends the reports of gaps, each with a heartbeat, unless the consumer's messages have nowhere to go now: then they wait
    /// until they have. Pull requests without heartbeats get no report: their clients might take it for an error. Returns
    /// whether none is left.
    fn send_gaps(&mut self, number: u32) -> bool {
        if self.consumers.get(number).is_none_or(|consumer| consumer.gaps.is_empty()) {
            return true;
        }
        if self.has_no_target(number) {
            return false;
        }
        let Some(consumer) = self.consumers.get_mut(number) else { return true };
        let target = consumer.target().map(<[u8]>::to_vec).unwrap_or_default();
        let is_pushed = consumer.wanted.deliver.is_some();
        let takes_reports =
            is_pushed || consumer.pulls().front().is_some_and(|pull| pull.heartbeat_ns.is_some());
        let (delivered, last) = (consumer.delivered, consumer.last);
        let gaps = std::mem::take(&mut consumer.gaps);
        if is_pushed && !self.is_heard(&target) {
            if let Some(consumer) = self.consumers.get_mut(number) {
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
        let mut last_client = self.consumers.take_sent(number);
        let Some(consumer) = self.consumers.get_mut(number) else { return };
        let State::Sending(chunk, from, visible) = std::mem::take(&mut consumer.state) else { return };
        let mut behind = self.count_behind(number, &chunk, from, visible);
        for at in from..chunk.len() {
            let Some((sequence, time_ns, record)) = chunk.get(at) else { break };
            let has_room = self.has_room();
            let Some(consumer) = self.consumers.get_mut(number) else { return };
            if !has_room || self.compared >= FILTERS_COMPARED_PER_TURN {
                consumer.state = State::Sending(chunk, at, visible);
                self.consumers.note_sent(number, last_client);
                return self.consumers.call(number, has_room);
            }
            self.compared += consumer.wanted.filters.len();
            if consumer.wants(&record) {
                if self.has_no_target(number) {
                    // The pulls are satisfied, or the flow is to be answered first.
                    self.sleep(number, sequence);
                    return self.mark(number, last_client);
                }
                let pending = behind.pending(sequence);
                match self.send_record(number, sequence, time_ns, &record, (pending, now_ns)) {
                    Sent::To(client) => last_client = Some(client),
                    // Nobody listens any more: what is left of the chunk is for who listens next.
                    Sent::Unheard => {
                        self.sleep(number, sequence);
                        return self.mark(number, last_client);
                    }
                }
            } else {
                consumer.next = Some(sequence + 1);
            }
        }
        let Some(consumer) = self.consumers.get_mut(number) else { return };
        if chunk.failure.is_none() {
            // Where reading failed it may not be known, and least of all for who began at a time.
            consumer.next = Some(chunk.next.max(consumer.next.unwrap_or(0)));
        }
        if chunk.is_end {
            // What lies between the last record and what comes next belongs to nobody.
            // Not what has become visible since: nobody has read that.
            consumer.next = consumer.next.max(Some(visible + 1));
        }
        consumer.state = State::Asleep;
        if let Some(gap) = chunk.gap {
            let stream = &mut self.streams[consumer.wanted.stream];
            let count = gap.count();
            match gap.cause {
                GapCause::Removed => {
                    stream.passed_over.removed += count;
                    // A round of retention reports its end only: a reader may meet before what it has removed so far.
                    stream.first = stream.first.max(gap.last + 1);
                }
                GapCause::Damaged => stream.passed_over.damaged += count,
                // A crash cut off a write that had not been acknowledged.
                GapCause::Torn => {}
            }
            stream.health.passed_over(gap);
            self.report_gap(number, gap);
        }
        if last_client.is_some() {
            return self.mark(number, last_client);
        }
        if chunk.failure.is_some() {
            // Asked for again when the next look comes.
            return;
        }
        self.consumers.call(number, true);
    }

    /// How many messages come behind each of a chunk. With a filter it is counted where that costs little; else, and beyond
    /// the chunk, every record counts, so it may be too many.
    fn count_behind(&mut self, number: u32, chunk: &Chunk, from: usize, visible: u64) -> Behind {
        let Some(consumer) = self.consumers.get(number) else { return Behind::Sequences(visible) };
        let now_visible = self.streams[consumer.wanted.stream].visible;
        let cost = consumer.wanted.filters.len() * (chunk.len() - from);
        let budget = FILTERS_COMPARED_PER_TURN.saturating_sub(self.compared) / 2;
        if consumer.wanted.filters.is_empty() || cost > budget {
            return Behind::Sequences(now_visible);
        }
        self.compared += cost;
        let records = (from..chunk.len()).filter_map(|at| chunk.get(at));
        let wanted = records.filter(|(_, _, record)| consumer.wants(record)).count() as u64;
        let end = if chunk.is_end { visible.max(chunk.next - 1) } else { chunk.next - 1 };
        Behind::Counted(wanted + now_visible.saturating_sub(end))
    }

    /// Has whoever got the last message say when it has left.
    fn mark(&mut self, number: u32, client: Option<Client>) {
        let ticket = self.consumers.ticket(number);
        if let Some(client) = client {
            self.consumers.wait_for(number, client);
            self.put_mark(client, ticket);
        }
    }

    /// What stood before a mark has left.
    pub(super) fn reached(&mut self, ticket: Ticket, now_ns: SteadyNanos) {
        let Some(number) = self.consumers.by_ticket(ticket) else { return };
        if self.consumers.has_left(number) {
            self.advance(number, now_ns);
        }
    }

    /// A connection is gone: a consumer is not to wait for it, and its requests for messages are dropped unless another
    /// connection listens for the answers. Returns how many requests were looked at.
    pub(super) fn stop_waiting_for(&mut self, client: Client, number: u32) -> usize {
        let Some(consumer) = self.consumers.get(number) else { return 0 };
        let is_awaited = matches!(consumer.state, State::Ahead(ahead) if ahead == client);
        let has_got_last = consumer.sent_to() == Some(client);
        let Hub { consumers, found_again, interest, subscriptions, .. } = self;
        let mut is_heard = |subject: &[u8]| {
            found_again.clear();
            interest.find(subject, found_again);
            found_again.iter().any(|&id| subscriptions.get(id).is_some())
        };
        if is_awaited {
            consumers.has_left(number);
        }
        if has_got_last {
            consumers.take_sent(number);
        }
        let mut count = 0;
        consumers.take_pulls(number, |pull| {
            count += 1;
            (pull.client == client && !is_heard(&pull.reply)).then_some(())
        });
        count
    }

    /// A record has become visible, and goes to the consumers that follow its stream and want it.
    pub(super) fn follow(&mut self, visible: Visible, record: &Record<'_>) {
        let Visible { stream, sequence, .. } = visible;
        if self.consumers.has_hole_before(stream, sequence) && self.consumers.has_following(stream) {
            self.read_again_before(stream, sequence);
        }
        let mut found = std::mem::take(&mut self.followers);
        found.clear();
        if record.kind == Kind::Ordinary && self.consumers.has_following(stream) {
            self.consumers.find_following(stream, record.subject, &mut found);
        }
        self.offer(visible, record, &found);
        self.followers = found;
    }

    /// Offers a record to consumers that want it. Without room the rest of them waits.
    pub(super) fn offer(&mut self, visible: Visible, record: &Record<'_>, to: &[u32]) {
        let Visible { stream, sequence, time_ns, now_ns } = visible;
        let pending = self.streams[stream].visible.saturating_sub(sequence);
        for (at, &number) in to.iter().enumerate() {
            if self.has_begun() {
                return self.keep_record(visible, record, &to[at..]);
            }
            self.work.offered += 1;
            let Some(consumer) = self.consumers.get(number) else { continue };
            if !matches!(consumer.state, State::Following) {
                self.consumers.unlist(number);
            } else if consumer.next.is_none_or(|next| next <= sequence)
                && (self.has_no_target(number)
                    || self.send_record(number, sequence, time_ns, record, (pending, now_ns))
                        == Sent::Unheard)
            {
                self.sleep(number, sequence);
            }
        }
        self.consumers.note_offered(stream, sequence);
    }

    /// Records before `sequence` became visible without being offered: the consumers that follow the stream read them.
    pub(super) fn read_again_before(&mut self, stream: usize, sequence: u64) {
        for number in self.consumers.of_stream(stream) {
            if self.consumers.next_of(number).is_some_and(|next| next < sequence)
                && self.consumers.get(number).is_some_and(|c| matches!(c.state, State::Following))
            {
                self.consumers.catch_up(number);
                if let Some(consumer) = self.consumers.get_mut(number) {
                    consumer.state = State::Asleep;
                }
                self.consumers.call(number, true);
            }
        }
    }

    /// Has a consumer wait for a listener or a request.
    fn doze(&mut self, number: u32) {
        if let Some(consumer) = self.consumers.get_mut(number) {
            consumer.state = State::Asleep;
        }
    }

    /// Has a consumer wait for somebody who wants the record `next`.
    fn sleep(&mut self, number: u32, next: u64) {
        if let Some(consumer) = self.consumers.get_mut(number) {
            (consumer.state, consumer.next) = (State::Asleep, Some(next));
        }
    }

    /// Whether a consumer's next message has nowhere to go. Pulls whose senders listen no more are forgotten.
    fn has_no_target(&mut self, number: u32) -> bool {
        loop {
            let Some(consumer) = self.consumers.get(number) else { return true };
            let Some(target) = consumer.target() else { return true };
            if consumer.wanted.deliver.is_some() {
                return false;
            }
            let mut found = std::mem::take(&mut self.found_again);
            found.clear();
            self.interest.find(target, &mut found);
            let is_heard = found.iter().any(|&id| self.subscriptions.get(id).is_some());
            self.found_again = found;
            if is_heard {
                return false;
            }
            self.consumers.take_pull(number);
        }
    }

    /// Sends a record to where the consumer's messages go, and moves the consumer on behind it if somebody listens there.
    /// `pending` is what the message says of how many come behind it.
    fn send_record(
        &mut self,
        number: u32,
        sequence: u64,
        time_ns: UnixNanos,
        record: &Record<'_>,
        (pending, now_ns): (u64, SteadyNanos),
    ) -> Sent {
        let Some(consumer) = self.consumers.get(number) else { return Sent::Unheard };
        let mut reply = Vec::with_capacity(128);
        let ack = AckSubject {
            stream: &self.streams[consumer.wanted.stream].config.name,
            consumer: &consumer.wanted.name,
            delivered: 1,
            stream_sequence: sequence,
            consumer_sequence: consumer.delivered + 1,
            time_ns,
            pending,
        };
        ack.encode(&mut reply);
        // Journals of former versions have records with a status.
        let mut stripped = std::mem::take(&mut self.stripped);
        let (mut headers, mut payload) = (strip_status(record.headers, &mut stripped), record.payload);
        let sized;
        if consumer.wanted.headers_only {
            sized = with_size(headers, payload.len());
            (headers, payload) = (&sized, b"");
        }
        let size = headers.len() + payload.len();
        let extra = record.subject.len() + reply.len();
        self.end_pulls_too_small_for(number, size + extra);
        let target = self.consumers.get(number).and_then(|consumer| consumer.target().map(<[u8]>::to_vec));
        let mut found = std::mem::take(&mut self.found_again);
        found.clear();
        if let Some(target) = &target {
            self.interest.find(target, &mut found);
        }
        let heard = found.iter().find_map(|&id| self.subscriptions.get(id)).map(|to| to.client);
        if heard.is_some() {
            self.send(&found, None, &Message { subject: record.subject, reply: &reply, headers, payload });
            self.was_sent(number, sequence, size + extra, now_ns);
        }
        (self.stripped, self.found_again) = (stripped, found);
        heard.map_or(Sent::Unheard, Sent::To)
    }

    /// Counts a record that a consumer's listeners got, and its bytes: subject, reply subject, headers and payload.
    fn was_sent(&mut self, number: u32, sequence: u64, size: usize, now_ns: SteadyNanos) {
        let Some(consumer) = self.consumers.get_mut(number) else { return };
        consumer.next = Some(sequence + 1);
        consumer.delivered += 1;
        consumer.last = sequence;
        (consumer.spoke_ns, consumer.active_ns) = (now_ns, now_ns);
        let mut is_satisfied = false;
        if let Some(pull) = consumer.first_pull() {
            pull.left = pull.left.saturating_sub(1);
            pull.spoke_ns = now_ns;
            let is_full = pull.bytes_left.as_mut().is_some_and(|left| {
                *left = left.saturating_sub(size);
                *left == 0
            });
            is_satisfied = pull.left == 0 || is_full;
        }
        if is_satisfied {
            self.consumers.take_pull(number);
        }
        let Some(consumer) = self.consumers.get_mut(number) else { return };
        consumer.flow += size;
        if consumer.wanted.has_flow_control && consumer.flow > FLOW_WINDOW / 2 {
            (consumer.flow, consumer.stalled) = (0, true);
            let Wanted { stream, name, deliver, .. } = &consumer.wanted;
            let reply = flow_subject(&self.streams[*stream].config.name, name);
            let target = deliver.clone().unwrap_or_default();
            self.send_status(&target, &reply, FLOW_CONTROL);
        }
    }

    /// The answer to a flow control request.
    pub(super) fn flow_answered(&mut self, stream: usize, name: &str, now_ns: SteadyNanos) {
        let Some(number) = self.consumers.find(stream, name) else { return };
        if let Some(consumer) = self.consumers.get_mut(number) {
            (consumer.stalled, consumer.active_ns) = (false, now_ns);
            self.advance(number, now_ns);
        }
    }

    /// Sends a message of the hub's own to whoever listens to its subject; to nobody, if it has none.
    pub(super) fn send_by_subject(&mut self, message: &Message<'_>) {
        if message.subject.is_empty() {
            return;
        }
        let mut found = std::mem::take(&mut self.found_again);
        found.clear();
        self.interest.find(message.subject, &mut found);
        self.send(&found, None, message);
        self.found_again = found;
    }

    /// Looks after consumers: those who can go on, and some of those whose time may have come.
    pub(super) fn look_after_consumers(&mut self, now_ns: SteadyNanos) {
        for _ in 0..self.consumers.due().min(CHUNKS_PER_TURN) {
            if !self.has_room() {
                break;
            }
            let Some(number) = self.consumers.next_due() else { break };
            self.advance(number, now_ns);
        }
        // Without room there is nothing to do until a shard gives deliveries back, which is told.
        self.consumers.go_on = self.consumers.due() > 0 && self.has_room();
        if now_ns < self.consumers.looked_ns.saturating_add(LOOK_EVERY_NS) {
            return;
        }
        self.consumers.looked_ns = now_ns;
        for _ in 0..self.consumers.places().min(CONSUMERS_LOOKED_AT) {
            if !self.has_room() {
                break;
            }
            let Some(number) = self.consumers.next_looked_at() else { continue };
            if self.consumers.get(number).is_some_and(|consumer| matches!(consumer.state, State::Asleep)) {
                self.advance(number, now_ns);
            }
            self.keep_time(number, now_ns);
        }
    }

    fn keep_time(&mut self, number: u32, now_ns: SteadyNanos) {
        // A client gets the whole threshold to ask again, however long its request was open.
        if let Some(consumer) = self.consumers.get_mut(number).filter(|one| !one.pulls().is_empty()) {
            consumer.active_ns = now_ns;
        }
        self.end_pulls_if(number, |pull| {
            pull.expires_ns.is_some_and(|at| at <= now_ns).then_some(PullEnd::Timeout)
        });
        let Some(consumer) = self.consumers.get_mut(number) else { return };
        let is_idle = consumer.is_idle();
        let is_unwanted = is_idle && now_ns > consumer.active_ns.saturating_add(consumer.inactive_ns());
        let is_heard = consumer.wanted.deliver.clone().is_some_and(|deliver| self.is_heard(&deliver));
        if is_unwanted && !is_heard {
            self.consumers.remove(number);
            return;
        }
        if is_idle && !is_heard {
            // A record that it wants would still visit it.
            self.consumers.catch_up(number);
        }
        let Some(consumer) = self.consumers.get_mut(number) else { return };
        if is_heard {
            consumer.active_ns = now_ns;
        } else if is_idle {
            consumer.state = State::Asleep;
        }
        let mut beats: Vec<(Arc<[u8]>, Vec<u8>)> = Vec::new();
        if let (Some(every), Some(deliver)) = (consumer.wanted.heartbeat_ns, &consumer.wanted.deliver)
            && now_ns >= consumer.spoke_ns.saturating_add(every)
        {
            consumer.spoke_ns = now_ns;
            let mut headers = b"NATS/1.0 100 Idle Heartbeat\r\n".to_vec();
            for (name, value) in
                [("Nats-Last-Consumer", consumer.delivered), ("Nats-Last-Stream", consumer.last)]
            {
                headers.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
            }
            if consumer.stalled {
                let stream = &self.streams[consumer.wanted.stream].config.name;
                let subject = flow_subject(stream, &consumer.wanted.name);
                headers.extend_from_slice(b"Nats-Consumer-Stalled: ");
                headers.extend_from_slice(&subject);
                headers.extend_from_slice(b"\r\n");
            }
            headers.extend_from_slice(b"\r\n");
            beats.push((deliver.as_slice().into(), headers));
        }
        if let Some(pull) = consumer.first_pull()
            && pull.heartbeat_ns.is_some_and(|every| now_ns >= pull.spoke_ns.saturating_add(every))
        {
            pull.spoke_ns = now_ns;
            beats.push((pull.reply.as_slice().into(), IDLE_HEARTBEAT.to_vec()));
        }
        for (to, headers) in beats {
            self.send_status(&to, b"", &headers);
        }
    }

    /// Makes room for a consumer where there is none: of those without a listener whose clients have left the oldest are
    /// removed. Returns how many were looked at.
    pub(super) fn make_room_for(&mut self, wanted: &Wanted) -> usize {
        for looked in 0..LEFT_PER_TURN {
            if !self.consumers.are_full(wanted) {
                return looked;
            }
            let Some(number) = self.consumers.first_left() else {
                // Those of a client that has just left are not noted yet.
                if !self.end_a_departure() {
                    return looked;
                }
                continue;
            };
            let Some(consumer) = self.consumers.get(number) else { return looked };
            let (is_idle, deliver) = (consumer.is_idle(), consumer.wanted.deliver.clone());
            if is_idle && !deliver.is_some_and(|deliver| self.is_heard(&deliver)) {
                self.consumers.remove(number);
            } else {
                // To the end of the line.
                self.consumers.note_left(number);
            }
        }
        LEFT_PER_TURN
    }

    /// Whether somebody is subscribed to a subject.
    pub(super) fn is_heard(&mut self, subject: &[u8]) -> bool {
        let mut found = std::mem::take(&mut self.found_again);
        found.clear();
        self.interest.find(subject, &mut found);
        let is_heard = found.iter().any(|&id| self.subscriptions.get(id).is_some());
        self.found_again = found;
        is_heard
    }
}

/// The status that tells of sequences which a consumer does not get. It is a heartbeat to clients that do not know the headers,
/// with what they check in one.
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

/// Headers that tell the size of a payload that is left out.
fn with_size(headers: &[u8], size: usize) -> Vec<u8> {
    let mut sized =
        headers.strip_suffix(b"\r\n").filter(|lines| !lines.is_empty()).unwrap_or(b"NATS/1.0\r\n").to_vec();
    sized.extend_from_slice(format!("{MESSAGE_SIZE}: {size}\r\n\r\n").as_bytes());
    sized
}

/// Where a flow control request is answered to.
fn flow_subject(stream: &str, consumer: &str) -> Vec<u8> {
    format!("$JS.FC.{stream}.{consumer}").into_bytes()
}
