//! How a NATS connection ends: closed by the client, by the drain of the server, or as a slow consumer.

use stilling_engine::{CloseReason, Io};

use super::{NatsContext, NatsPhase, NatsSession, QuietWait};

impl NatsSession {
    /// Closes the connection after its output, and leaves the hub now: a peer that does not read keeps only the
    /// connection.
    pub(super) fn finish(&mut self, reason: CloseReason, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        self.leave_hub(cx);
        self.close_frames(reason, io);
        io.finish(reason);
    }

    /// The same, with input discarded for a while before the close.
    pub(super) fn finish_lingering(
        &mut self,
        reason: CloseReason,
        io: &mut Io<'_>,
        cx: &mut NatsContext<'_>,
    ) {
        self.leave_hub(cx);
        self.close_frames(reason, io);
        io.finish_lingering(reason);
    }

    /// Leaves the hub. Idempotent.
    pub(super) fn leave_hub(&mut self, cx: &mut NatsContext<'_>) {
        if let Some(assembly) = self.assembly.take() {
            assembly.release_memory(self.token, cx.nats);
        }
        if let Some(frames) = self.frames.as_deref_mut() {
            frames.release_memory(cx.nats);
        }
        if let Some(hub) = cx.hub.as_deref_mut()
            && std::mem::take(&mut self.is_counted)
        {
            hub.port.disconnect(self.token);
            // After `disconnect`, so that nothing more is sent to it.
            for mark in self.marks.take() {
                hub.port.report_mark(self.token, mark);
            }
            hub.publisher_connections = hub.publisher_connections.saturating_sub(1);
        }
    }

    pub(super) fn finish_after_acks(
        &mut self,
        reason: CloseReason,
        io: &mut Io<'_>,
        cx: &mut NatsContext<'_>,
    ) {
        let token = io.token();
        self.phase = NatsPhase::AwaitingAcks(reason);
        // Further input would not be answered before the close.
        io.pause();
        if let Some(hub) = cx.hub.as_deref_mut() {
            hub.port.close_after_acks(token);
        }
    }

    /// Closes the connection after its last ack. A client that may still be sending first receives the end of output.
    pub(super) fn handle_acks_done(&mut self, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        match self.phase {
            // Unread output must not be overtaken by a reset.
            NatsPhase::Serving | NatsPhase::Draining(_) => {
                self.finish_lingering(CloseReason::ProtocolError, io, cx);
            }
            NatsPhase::AwaitingAcks(CloseReason::Drained) if !self.has_peer_ended(io) => {
                let token = io.token();
                let wait = QuietWait::begin(io.now());
                self.phase = NatsPhase::OutputEnded(wait);
                if let Some(hub) = cx.hub.as_deref_mut() {
                    // Messages of its subscriptions go to others from now on.
                    hub.port.disconnect(token);
                }
                self.close_frames(CloseReason::Drained, io);
                io.end_output();
                self.last_input = io.now();
                io.set_deadline(Some(wait.check_after(io.now())));
                io.resume();
            }
            NatsPhase::AwaitingAcks(CloseReason::ProtocolError) => {
                self.finish_lingering(CloseReason::ProtocolError, io, cx);
            }
            NatsPhase::AwaitingAcks(reason) => self.finish(reason, io, cx),
            NatsPhase::OutputEnded(_) | NatsPhase::Disconnected => {}
        }
    }

    /// Continues the drain, or ends it once the client is silent.
    pub(super) fn continue_draining(&mut self, wait: QuietWait, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        let now = io.now();
        if let Some(end) = wait.end_after(now).filter(|_| io.is_input_blocked()) {
            // Not silent, but not read: the client may read the held output first.
            return io.set_deadline(Some(end));
        }
        if let Some(at) = wait.next_check(now, self.last_input, self.waits_for_room) {
            if self.assembly.is_some() && !self.waits_for_room {
                // It may be paused because there was no room for a long message.
                io.resume();
            }
            return io.set_deadline(Some(at));
        }
        match self.phase {
            NatsPhase::OutputEnded(_) => self.finish(CloseReason::Drained, io, cx),
            NatsPhase::Serving
            | NatsPhase::Draining(_)
            | NatsPhase::AwaitingAcks(_)
            | NatsPhase::Disconnected => {
                self.finish_after_acks(CloseReason::Drained, io, cx);
            }
        }
    }

    /// Sends INFO with `ldm`, and closes the connection once everything published by then is read and answered.
    pub(crate) fn draining(&mut self, io: &mut Io<'_>, cx: &mut NatsContext<'_>) {
        if !matches!(self.phase, NatsPhase::Serving) {
            return;
        }
        if cx.lifecycle.hub_is_abandoned() {
            return self.finish(CloseReason::Drained, io, cx);
        }
        let token = io.token();
        if let Some(hub) = cx.hub.as_deref_mut() {
            self.send_info(true, io, cx.nats);
            hub.port.cancel_pulls(token);
        }
        let wait = QuietWait::begin(io.now());
        self.phase = NatsPhase::Draining(wait);
        self.last_input = io.now();
        io.set_deadline(Some(wait.check_after(io.now())));
    }

    pub(crate) fn closed(&mut self, reason: CloseReason, cx: &mut NatsContext<'_>) {
        if let Some(hub) = cx.hub.as_deref()
            && reason == CloseReason::WriteTimeout
        {
            hub.counters.slow_consumers.add(1);
        }
        self.leave_hub(cx);
    }

    /// Ends the session of a slow consumer. Returns its last line. The unsent messages are dropped; the client must
    /// detect the gap itself.
    pub(crate) fn slow_consumer(&mut self, cx: &mut NatsContext<'_>) -> &'static [u8] {
        self.phase = NatsPhase::Disconnected;
        if let Some(hub) = cx.hub.as_deref_mut() {
            hub.counters.slow_consumers.add(1);
        }
        self.leave_hub(cx);
        self.slow_consumer_message()
    }
}
