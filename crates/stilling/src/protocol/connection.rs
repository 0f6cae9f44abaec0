//! A connection of a custom protocol: its session, and around it the hub, the idle timeout, the drain and panics.

use std::fmt;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};

use stilling_engine::{CloseReason, Io};
use stilling_ring::Time;

use super::{CustomContext, CustomProtocol, CustomSession};
use crate::hub::quiet_wait::QuietWait;

pub(crate) struct CustomConnection {
    /// `None`: it has panicked, or is closed.
    session: Option<Box<dyn CustomSession>>,
    /// When the session last received input.
    last_input_at: Time,
    /// The deadline of the idle timeout, as long as the session has not set its own.
    idle_deadline: Option<Time>,
    /// Set when the connection is to finish once its peer is silent, or the drain's read time is used up.
    quiet_wait: Option<QuietWait>,
    awaits_room: bool,
    /// The session was notified of the drain.
    drain_notified: bool,
    /// Counted in `HubHandle::publisher_connections`.
    is_counted: bool,
}

impl fmt::Debug for CustomConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomConnection").finish_non_exhaustive()
    }
}

/// Runs code of the embedding program. `None`: it panicked, and the panic hook of the process has reported that.
fn catch_panic<T>(call: impl FnOnce() -> T) -> Option<T> {
    // Unwind safe: half-done state belongs to the session, which is discarded, or to the connection, which is
    // aborted.
    catch_unwind(AssertUnwindSafe(call)).ok()
}

impl CustomConnection {
    pub(crate) fn accept(protocol: &dyn CustomProtocol, peer: Option<IpAddr>) -> CustomConnection {
        CustomConnection {
            session: catch_panic(|| protocol.accept(peer)),
            last_input_at: Time::ZERO,
            idle_deadline: None,
            quiet_wait: None,
            awaits_room: false,
            drain_notified: false,
            is_counted: false,
        }
    }

    pub(crate) fn opened(&mut self, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        if self.session.is_none() {
            return io.abort(CloseReason::SessionPanicked);
        }
        if let Some(hub) = cx.hub.as_deref_mut() {
            hub.publisher_connections += 1;
            self.is_counted = true;
        }
        self.last_input_at = io.now();
        self.set_idle_deadline(io, cx);
        self.call(io, cx, CustomSession::opened);
        if cx.is_draining() {
            // The other connections may have been notified already.
            self.draining(io, cx);
        }
    }

    pub(crate) fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, cx: &mut CustomContext<'_>) -> usize {
        self.last_input_at = io.now();
        if self.idle_deadline.is_some() {
            self.set_idle_deadline(io, cx);
        }
        let consumed = self.call(io, cx, |session, io, cx| session.received(bytes, io, cx));
        consumed.min(bytes.len())
    }

    pub(crate) fn ended(&mut self, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        self.call(io, cx, CustomSession::ended);
    }

    pub(crate) fn flushed(&mut self, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        self.call(io, cx, CustomSession::flushed);
    }

    pub(crate) fn offer_sent(&mut self, count: usize, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        self.call(io, cx, |session, io, cx| session.offer_sent(count, io, cx));
    }

    pub(crate) fn room_available(&mut self, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        self.awaits_room = false;
        if let Some(wait) = &mut self.quiet_wait {
            wait.extend(self.last_input_at, io.now());
            self.last_input_at = io.now();
        }
        self.call(io, cx, CustomSession::room_available);
    }

    pub(crate) fn deadline(&mut self, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        if let Some(wait) = self.quiet_wait {
            return self.finish_if_quiet(wait, io, cx);
        }
        if self.idle_deadline.is_some() && self.waits_for_room(cx) {
            // It is not idle: its input is held back.
            return self.set_idle_deadline(io, cx);
        }
        self.call(io, cx, CustomSession::deadline);
    }

    pub(crate) fn draining(&mut self, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        if !std::mem::replace(&mut self.drain_notified, true) {
            self.call(io, cx, CustomSession::draining);
        }
    }

    pub(crate) fn slow_consumer(&mut self, cx: &mut CustomContext<'_>) {
        self.leave_hub(cx);
    }

    pub(crate) fn closed(&mut self, reason: CloseReason, cx: &mut CustomContext<'_>) {
        self.leave_hub(cx);
        if let Some(mut session) = self.session.take() {
            catch_panic(move || session.closed(reason));
        }
    }

    /// Calls the session, unless it has finished, and applies its requests.
    fn call<T: Default>(
        &mut self,
        io: &mut Io<'_>,
        cx: &mut CustomContext<'_>,
        method: impl FnOnce(&mut (dyn CustomSession + 'static), &mut Io<'_>, &mut CustomContext<'_>) -> T,
    ) -> T {
        if io.is_finishing() {
            return T::default();
        }
        let Some(session) = self.session.as_deref_mut() else { return T::default() };
        (cx.awaits_room, cx.finishes_when_quiet) = (self.awaits_room, false);
        let returned = catch_panic(|| method(session, io, cx));
        self.awaits_room = cx.awaits_room;
        if returned.is_none() {
            let session = self.session.take();
            catch_panic(move || drop(session));
            io.abort(CloseReason::SessionPanicked);
        }
        self.after_call(io, cx);
        returned.unwrap_or_default()
    }

    fn after_call(&mut self, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        if io.is_finishing() {
            // Unsent output delays only the connection's end, not the hub's release.
            return self.leave_hub(cx);
        }
        if cx.finishes_when_quiet && self.quiet_wait.is_none() {
            self.last_input_at = io.now();
            self.quiet_wait = Some(QuietWait::begin(io.now()));
            io.keep_deadline();
        }
        match self.quiet_wait {
            // Replaces the deadline of the session, if any.
            Some(wait) => {
                let at = wait.next_check(io.now(), self.last_input_at, self.waits_for_room(cx));
                io.set_deadline(Some(at.unwrap_or(io.now())));
            }
            None if io.deadline() != self.idle_deadline => self.idle_deadline = None,
            None => {}
        }
    }

    fn set_idle_deadline(&mut self, io: &mut Io<'_>, cx: &CustomContext<'_>) {
        self.idle_deadline = Some(io.now().after(cx.idle_timeout));
        io.set_deadline(self.idle_deadline);
    }

    /// Whether it waits for room in the queue to the hub; false if the hub never begins.
    fn waits_for_room(&self, cx: &CustomContext<'_>) -> bool {
        self.awaits_room && cx.hub.is_some() && !cx.lifecycle.hub_is_abandoned()
    }

    /// Finishes the connection if its peer is silent, or the drain's read time is used up.
    fn finish_if_quiet(&mut self, wait: QuietWait, io: &mut Io<'_>, cx: &mut CustomContext<'_>) {
        let now = io.now();
        let again = if io.is_input_blocked() {
            // Its input is held back: the peer may read the held output first.
            wait.end_after(now)
        } else {
            wait.next_check(now, self.last_input_at, self.waits_for_room(cx))
        };
        if again.is_some() {
            return io.set_deadline(again);
        }
        if io.is_paused() && wait.end_after(now).is_some() {
            // Only the session has paused it: there may be unread input.
            self.last_input_at = now;
            io.resume();
            return io.set_deadline(Some(wait.check_after(now)));
        }
        io.finish(CloseReason::Drained);
        self.leave_hub(cx);
    }

    /// Idempotent.
    fn leave_hub(&mut self, cx: &mut CustomContext<'_>) {
        if let Some(hub) = cx.hub.as_deref_mut()
            && std::mem::take(&mut self.is_counted)
        {
            hub.publisher_connections = hub.publisher_connections.saturating_sub(1);
        }
    }
}
