//! Catch-up of subscriptions over WebSocket and SSE: see [`catch_ups`](crate::catch_ups).

use stilling_journal::{Chunk, Gap, GapCause, ReadRequest, StartAt};
use stilling_ring::planted;
use stilling_wire::nats::strip_status;

use super::{Hub, OutboundMessage, ShardSenders};
use crate::catch_ups::{CATCH_UP_BIT, CatchUpState};
use crate::limits::{FILTERS_COMPARED_PER_TURN, RECORDS_PER_READ};
use crate::publication_batch::ClientId;
use crate::registrations::SubscriberTarget;
use crate::resume::{CatchUpRequest, ResetCause, StartFrom, SubscriptionNotice};
use crate::storage::Storage;
use crate::stream::{Durability, SlowSubscribers};
use crate::time::SteadyNanos;

use super::api::SINGLE_READ_BIT;

impl<S: Storage, O: ShardSenders> Hub<S, O> {
    pub(super) fn begin_catch_up(&mut self, client: ClientId, request: &CatchUpRequest<'_>) {
        let &CatchUpRequest { stream, filter, from } = request;
        let stream = stream as usize;
        if stream >= self.streams.len() {
            return self.fan_out.notice(client, SubscriptionNotice::Refused);
        }
        let writer = &self.streams[stream];
        let from = match from {
            // The catch-up may have to wait for room; what becomes visible meanwhile is new.
            StartFrom::New if writer.closed.is_none() => {
                StartFrom::Sequence(writer.visible.saturating_add(1))
            }
            from => from,
        };
        if !self.catch_ups.add(client, (stream, filter), from) {
            self.fan_out.notice(client, SubscriptionNotice::Refused);
        }
    }

    /// Continues those that can continue, within this turn's budget.
    pub(super) fn run_catch_ups(&mut self, now_ns: SteadyNanos) {
        if self.catch_ups.len() == 0 {
            return;
        }
        self.catch_ups.retry_if_due(now_ns);
        if self.fan_out.has_regained_room() {
            self.catch_ups.retry_all();
        }
        while let Some(number) = self.catch_ups.next_due() {
            self.advance_catch_up(number, now_ns);
        }
        self.catch_ups.resume_readers();
    }

    /// Returns whether a catch-up's shard has room. Without room the catch-up waits.
    fn has_room_for_catch_up(&mut self, number: u32) -> bool {
        let Some(catch_up) = self.catch_ups.get_mut(number) else { return false };
        let shard = catch_up.client.shard;
        if self.delivery().finish_unsent() && self.fan_out.has_room_in(shard) {
            return true;
        }
        self.catch_ups.wait(number);
        false
    }

    fn advance_catch_up(&mut self, number: u32, now_ns: SteadyNanos) {
        if !self.has_room_for_catch_up(number) {
            return;
        }
        let Some(catch_up) = self.catch_ups.get_mut(number) else { return };
        match catch_up.state {
            CatchUpState::Due => {}
            CatchUpState::Sending(..) => {
                self.catch_ups.use_chunk();
                return self.send_catch_up_chunk(number);
            }
            CatchUpState::Reading(_) | CatchUpState::AwaitingMark(_) => return,
        }
        let (client, stream) = (catch_up.client, catch_up.stream);
        let writer = &self.streams[stream];
        if writer.closed.is_some() {
            return self.catch_ups.wait(number);
        }
        if let Some(reset) = self.find_start(number) {
            self.fan_out.notice(client, reset);
        }
        if !self.check_progress(number, now_ns) {
            return;
        }
        let Some(catch_up) = self.catch_ups.get_mut(number) else { return };
        let writer = &self.streams[stream];
        let from = match (catch_up.next, catch_up.from) {
            (Some(next), _) if next > writer.visible => return self.finish_catch_up(client, stream),
            (Some(next), _) => StartAt::Sequence(next.max(writer.first)),
            (None, StartFrom::Time(time_ns)) => StartAt::Time(time_ns.as_nanos()),
            (None, _) => StartAt::Sequence(writer.first),
        };
        if let Some(next) = catch_up.next {
            // What retention has removed before the oldest record is no gap for a subscription from the beginning.
            let next = if catch_up.reports_removed { next } else { next.max(writer.first) };
            self.report_start(number, next);
        }
        self.read_for_catch_up(number, stream, from);
    }

    /// Determines the first sequence. Returns a notice if the requested position does not exist.
    fn find_start(&mut self, number: u32) -> Option<SubscriptionNotice> {
        let catch_up = self.catch_ups.get_mut(number)?;
        if catch_up.next.is_some() {
            return None;
        }
        let writer = &self.streams[catch_up.stream];
        let (visible, current) = (writer.visible, writer.created_ns.as_nanos());
        let reset = |cause, next| Some(SubscriptionNotice::Reset { cause, epoch: current, next });
        let (next, notice) = match catch_up.from {
            StartFrom::New => (visible + 1, None),
            StartFrom::Last(records) => ((visible + 1).saturating_sub(records).max(1), None),
            StartFrom::Time(_) => return None,
            StartFrom::Sequence(sequence) if sequence > visible.saturating_add(1) => {
                (visible + 1, reset(ResetCause::Ahead, visible + 1))
            }
            StartFrom::Sequence(sequence) => {
                // 0 is the position of `all`.
                catch_up.reports_removed = sequence > 0;
                (sequence.max(1), None)
            }
            StartFrom::After { epoch, .. } if epoch != current => {
                catch_up.reports_start = true;
                (writer.first, reset(ResetCause::Epoch, writer.first))
            }
            StartFrom::After { sequence, .. } if sequence > visible => {
                (visible + 1, reset(ResetCause::Ahead, visible + 1))
            }
            StartFrom::After { sequence, .. } => {
                catch_up.reports_removed = true;
                (sequence + 1 + u64::from(planted!("late resume")), None)
            }
            StartFrom::Behind { next } => {
                catch_up.reports_removed = true;
                (next, None)
            }
        };
        catch_up.next = Some(next);
        if writer.config.first_slow_policy() == SlowSubscribers::Skip
            && matches!(catch_up.from, StartFrom::Behind { .. })
        {
            self.skip_to_newest(number);
        }
        notice
    }

    /// Ends a catch-up after the last visible record: the subscription gets later ones live.
    fn finish_catch_up(&mut self, client: ClientId, stream: usize) {
        let writer = &self.streams[stream];
        let (epoch, through) = (writer.created_ns.as_nanos(), writer.visible);
        self.catch_ups.remove(client);
        self.fan_out.notice(client, SubscriptionNotice::CaughtUp { epoch, through });
    }

    /// Applies the stream's policy if the subscription has not come nearer to the newest record in the time that the stream
    /// allows. Returns whether it continues.
    fn check_progress(&mut self, number: u32, now_ns: SteadyNanos) -> bool {
        let Some(catch_up) = self.catch_ups.get_mut(number) else { return false };
        let (client, writer) = (catch_up.client, &self.streams[catch_up.stream]);
        let Some(time_ns) = writer.config.catch_up_time_ns() else { return true };
        if !catch_up.has_stalled(writer.visible, time_ns, now_ns) {
            return true;
        }
        match writer.config.slow_subscribers {
            SlowSubscribers::CatchUp | SlowSubscribers::Skip => {
                self.skip_to_newest(number);
                true
            }
            SlowSubscribers::Disconnect => {
                self.catch_ups.remove(client);
                self.fan_out.notice(client, SubscriptionNotice::Disconnected);
                false
            }
        }
    }

    fn skip_to_newest(&mut self, number: u32) {
        let Some(catch_up) = self.catch_ups.get_mut(number) else { return };
        let (client, writer) = (catch_up.client, &mut self.streams[catch_up.stream]);
        let (Some(first), last) = (catch_up.next, writer.visible) else { return };
        catch_up.next = Some(first.max(last.saturating_add(1)));
        if first <= last {
            writer.skipped.count_slow(last - first + 1);
            self.fan_out.notice(client, SubscriptionNotice::Skipped { first, last });
        }
    }

    fn read_for_catch_up(&mut self, number: u32, stream: usize, from: StartAt) {
        let reader_id = self.catch_ups.reader_id(number);
        let request = ReadRequest { reader_id, stream: stream as u32, from, records_max: RECORDS_PER_READ };
        let writer = &self.streams[stream];
        let visible = writer.visible;
        if !self.catch_ups.may_hold() {
            return self.catch_ups.wait_for_read(number);
        }
        let chunk = match writer.config.durability {
            Durability::Disk => {
                if !self.catch_ups.may_read() {
                    return self.catch_ups.wait_for_read(number);
                }
                if !self.storage.read(request) {
                    self.catch_ups.note_storage_full();
                    return self.catch_ups.wait_for_read(number);
                }
                self.catch_ups.use_chunk();
                self.catch_ups.note_read();
                if let Some(catch_up) = self.catch_ups.get_mut(number) {
                    catch_up.state = CatchUpState::Reading(visible);
                }
                return;
            }
            Durability::Memory => writer.read_memory(&request),
            Durability::None => {
                let mut chunk = Chunk::empty(&request);
                chunk.next = writer.next;
                chunk
            }
        };
        self.catch_ups.use_chunk();
        self.receive_for_catch_up(number, chunk, visible);
    }

    /// Receives a chunk that a catch-up requested. Returns any other.
    pub(super) fn receive_catch_up_chunk(&mut self, chunk: Chunk) -> Option<Chunk> {
        if chunk.reader_id & SINGLE_READ_BIT != 0 || chunk.reader_id & CATCH_UP_BIT == 0 {
            return Some(chunk);
        }
        let health = &mut self.streams[chunk.stream as usize].health;
        match &chunk.failure {
            Some(failure) => health.read_failed(failure),
            None => health.read_succeeded(),
        }
        self.catch_ups.end_read();
        if let Some(number) = self.catch_ups.by_reader_id(chunk.reader_id)
            && let Some(catch_up) = self.catch_ups.get_mut(number)
            && let CatchUpState::Reading(visible) = catch_up.state
        {
            self.receive_for_catch_up(number, chunk, visible);
        }
        None
    }

    fn receive_for_catch_up(&mut self, number: u32, chunk: Chunk, visible: u64) {
        self.catch_ups.hold(number, Box::new(chunk), 0, visible);
        if self.has_room_for_catch_up(number) {
            self.send_catch_up_chunk(number);
        }
    }

    /// Tells a client without an id of the stream where its records begin, before the first of them.
    fn report_start(&mut self, number: u32, next: u64) {
        let Some(catch_up) = self.catch_ups.get_mut(number) else { return };
        if std::mem::take(&mut catch_up.reports_start) {
            let epoch = self.streams[catch_up.stream].created_ns.as_nanos();
            let started = SubscriptionNotice::Started { epoch, after: next.saturating_sub(1) };
            self.fan_out.notice(catch_up.client, started);
        }
    }

    /// Reports where a chunk begins, if the client does not know it, and the records before it that retention has removed.
    fn report_begin(&mut self, number: u32, chunk: &Chunk) {
        let begin = chunk.get(0).map(|(sequence, ..)| sequence).or(chunk.gap.map(|gap| gap.first));
        if let Some(begin) = begin {
            // The first record of a time is known now.
            self.report_start(number, begin);
        }
        let begin = begin.unwrap_or(chunk.next);
        let Some(catch_up) = self.catch_ups.get_mut(number) else { return };
        if let Some(first) = catch_up.next.filter(|&next| next < begin) {
            let gap = Gap { first, last: begin - 1, cause: GapCause::Removed };
            let (client, reports) = (catch_up.client, catch_up.reports_removed);
            catch_up.next = Some(begin);
            if reports {
                self.streams[chunk.stream as usize].skipped.count_removed(gap.count());
                self.fan_out.notice(client, SubscriptionNotice::Gap(gap));
            }
        }
        if let Some(catch_up) = self.catch_ups.get_mut(number) {
            catch_up.reports_removed = true;
        }
    }

    /// Sends the rest of a chunk. The caller has checked for room.
    fn send_catch_up_chunk(&mut self, number: u32) {
        let Some(catch_up) = self.catch_ups.get_mut(number) else { return };
        let client = catch_up.client;
        let Some((chunk, from, visible)) = self.catch_ups.take_held(number) else { return };
        if from == 0 && chunk.failure.is_none() {
            self.report_begin(number, &chunk);
        }
        let visible_now = self.streams[chunk.stream as usize].visible;
        for at in from..chunk.len() {
            if chunk.get(at).is_some_and(|(sequence, ..)| sequence > visible_now) {
                // Durable, but not visible yet.
                return self.finish_catch_up(client, chunk.stream as usize);
            }
            if !self.send_catch_up_record(number, &chunk, at) {
                return self.catch_ups.hold(number, chunk, at, visible);
            }
        }
        self.end_catch_up_chunk(number, &chunk, visible);
    }

    /// Sends a record of a chunk if the subscriber wants it. Returns `false` if the rest of the chunk waits.
    fn send_catch_up_record(&mut self, number: u32, chunk: &Chunk, at: usize) -> bool {
        if self.catch_ups.compared >= FILTERS_COMPARED_PER_TURN {
            self.catch_ups.make_due(number);
            return false;
        }
        if !self.has_room_for_catch_up(number) {
            return false;
        }
        self.catch_ups.compared += 1;
        let Some(catch_up) = self.catch_ups.get_mut(number) else { return true };
        let Some((sequence, time_ns, record)) = chunk.get(at) else { return true };
        let client = catch_up.client;
        catch_up.next = Some(sequence + 1);
        if catch_up.wants(&record) {
            let mut stripped = std::mem::take(&mut self.scratch.stripped);
            let message = OutboundMessage {
                subject: record.subject,
                reply: b"",
                headers: strip_status(record.headers, &mut stripped),
                payload: record.payload.into(),
                position: Some(self.streams[chunk.stream as usize].position(sequence, time_ns)),
            };
            self.fan_out.record(client, &message);
            self.scratch.stripped = stripped;
        }
        true
    }

    /// Continues after a whole chunk, when the connection has sent it; ends the catch-up if no more is visible.
    fn end_catch_up_chunk(&mut self, number: u32, chunk: &Chunk, visible: u64) {
        let Some(catch_up) = self.catch_ups.get_mut(number) else { return };
        let client = catch_up.client;
        if chunk.failure.is_some() {
            // Read again at the next check. After a failed read the next sequence may be unknown.
            return self.catch_ups.wait(number);
        }
        let mut next = chunk.next.max(catch_up.next.unwrap_or(0));
        if chunk.is_end {
            next = next.max(visible + 1);
        }
        catch_up.next = Some(next);
        if let Some(gap) = chunk.gap {
            self.streams[chunk.stream as usize].note_skipped(gap);
            self.fan_out.notice(client, SubscriptionNotice::Gap(gap));
        }
        if next > self.streams[chunk.stream as usize].visible {
            return self.finish_catch_up(client, chunk.stream as usize);
        }
        let mark = self.catch_ups.await_mark(number);
        self.fan_out.push_mark(SubscriberTarget::Single(client), mark);
    }
}
