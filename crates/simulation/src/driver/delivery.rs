//! From completion to event: at once, late, over several turns, or not at all because it is stale.
//!
//! A completion that is held back belongs to its source: the source's `Closed` waits for it, and if the shard closes the
//! source meanwhile the completion is swallowed and its buffer taken back. A *stale* completion is worse: it is nobody's,
//! and comes after the slot may have got a new tenant. Real systems produce those; only the generation tells.

use std::sync::atomic::Ordering;
use std::time::Duration;

use stilling_engine::Token;
use stilling_engine::driver::{BufferId, Event};
use stilling_ring::{Time, planted};

use super::SimDriver;
use super::source::Armed;
use crate::faults::Fault;
use crate::network::{SimSocket, SocketKind};

/// What a stale receive has in its buffer: no protocol takes it for its own.
const STALE_BYTES: &[u8] = b"\x00stale completion\x00";

/// The longest time until a stale completion turns up: long enough for the slot to have been given away.
const STALE_WITHIN: Duration = Duration::from_millis(20);

/// The most events that an overflowing completion queue gives in one turn.
const OVERFLOW_ROOM_MAX: u64 = 3;

/// Of how many completions the planted bug "lost completion" loses one.
const LOST_ONE_OF: u64 = 32;

/// A completion that waits inside the driver.
#[derive(Debug)]
pub(super) struct Held {
    due: Time,
    event: Event<SimSocket>,
    /// Nobody waits for it: its source is closed.
    phantom: bool,
}

impl SimDriver {
    /// Gathers the news: held completions that are due, the sources', a wake.
    pub(super) fn collect(&mut self, events: &mut Vec<Event<SimSocket>>) {
        let overflows = self.network.state().strikes(Fault::Overflow);
        self.queue_room = match overflows {
            true => self.network.state().random.below(OVERFLOW_ROOM_MAX + 1) as usize,
            false => usize::MAX,
        };
        self.deliver_due(events);
        self.look_at_all(events);
        let spurious = self.network.state().strikes(Fault::SpuriousWake);
        if self.wake.swap(false, Ordering::AcqRel) || spurious {
            self.deliver(Event::Woken, events);
        }
        self.counters.overflows += u64::from(overflows && self.queue_room == 0);
    }

    /// Something has completed. It is delivered now unless a fault holds it back.
    pub(super) fn complete(&mut self, event: Event<SimSocket>, events: &mut Vec<Event<SimSocket>>) {
        self.completions += 1;
        if planted!("lost completion") && self.completions.is_multiple_of(LOST_ONE_OF) {
            return;
        }
        let mut state = self.network.state();
        let due = if self.queue_room == 0 {
            state.now()
        } else if state.strikes(Fault::Late) {
            state.put_off()
        } else {
            drop(state);
            self.queue_room -= 1;
            return self.deliver(event, events);
        };
        drop(state);
        if let Some(source) = token_of(&event).and_then(|token| self.sources.of(token)) {
            source.in_flight += 1;
        }
        self.hold(due, event, false);
    }

    fn hold(&mut self, due: Time, event: Event<SimSocket>, phantom: bool) {
        // A turn at that time brings it; the nudge makes sure that there is one.
        self.network.state().nudge(due, self.number, u32::MAX);
        self.held.push(Held { due, event, phantom });
    }

    fn deliver_due(&mut self, events: &mut Vec<Event<SimSocket>>) {
        let (now, kind) = (self.network.now(), self.network.state().is_kind());
        let mut place = 0;
        while place < self.held.len() && self.queue_room > 0 {
            if self.held[place].due > now && !kind {
                place += 1;
                continue;
            }
            let Held { event, phantom, .. } = self.held.remove(place);
            let Some(token) = token_of(&event) else {
                self.deliver(event, events);
                continue;
            };
            if !phantom && let Some(source) = self.sources.of(token) {
                source.in_flight -= 1;
                let waits = source.closing || source.detaching;
                let last = matches!(event, Event::Closed { .. } | Event::Detached { .. });
                if waits && source.in_flight == 0 && !last {
                    self.mark(token.index());
                }
            }
            let wanted = matches!(event, Event::Closed { .. } | Event::Detached { .. })
                || self.sources.of(token).is_some_and(|source| !source.closing && !source.failed && !phantom);
            if wanted {
                self.queue_room -= 1;
                self.deliver(event, events);
            } else {
                self.swallow(event, events);
            }
        }
    }

    /// A completion for a source that is closed or was never this one.
    fn swallow(&mut self, event: Event<SimSocket>, events: &mut Vec<Event<SimSocket>>) {
        self.counters.stale += 1;
        if planted!("stale generation")
            && let Some(slot) = token_of(&event).map(Token::index)
            && let Some(tenant) = self.sources.at(slot).filter(|tenant| !tenant.closing)
        {
            let token = tenant.token;
            return self.deliver(addressed_to(event, token), events);
        }
        if let Some(buffer) = buffer_of(&event) {
            self.buffers.take_back(buffer);
            self.dirty.append(&mut self.starved);
        }
    }

    fn deliver(&mut self, event: Event<SimSocket>, events: &mut Vec<Event<SimSocket>>) {
        if let Some(buffer) = buffer_of(&event) {
            self.buffers.lend(buffer);
        }
        if let Event::Closed { token } | Event::Detached { token, .. } = event {
            self.sources.remove(token);
        }
        if let Event::Failed { token, .. } = event
            && let Some(source) = self.sources.of(token)
        {
            source.fail();
        }
        let (name, detail) = description(&event);
        let mut state = self.network.state();
        if let Event::Received { token, .. } = event
            && let Some(source) = self.sources.of(token)
            && let SocketKind::End(end) = source.socket_kind()
        {
            state.read_is_told(end);
        }
        state.note("shard", self.number, name, token_of(&event).map_or(0, Token::bits), detail);
        state.acted();
        events.push(event);
    }

    /// When a source is closed, a completion of what was armed last may haunt the slot later, as if it had been on its
    /// way twice: readiness and cancelled operations do that.
    pub(super) fn leave_something_stale(&mut self, token: Token, last: Armed, writable: bool) {
        let anything = last != Armed::No || writable;
        if !anything || !self.network.state().strikes(Fault::Stale) {
            return;
        }
        let mut state = self.network.state();
        let span = state.random.between(1, STALE_WITHIN.as_nanos() as u64);
        let due = state.now().after(Duration::from_nanos(span));
        drop(state);
        let event = match last {
            Armed::Receive => {
                let Some((buffer, bytes)) = self.buffers.take() else { return };
                bytes[..STALE_BYTES.len()].copy_from_slice(STALE_BYTES);
                Event::Received { token, buffer, len: STALE_BYTES.len() as u32 }
            }
            Armed::Readable => Event::Readable { token },
            Armed::No => Event::Writable { token },
        };
        self.hold(due, event, true);
    }
}

fn token_of(event: &Event<SimSocket>) -> Option<Token> {
    match event {
        Event::Accepted { listener: token, .. }
        | Event::AcceptStopped { listener: token, .. }
        | Event::Connected { token }
        | Event::Received { token, .. }
        | Event::Ended { token }
        | Event::Failed { token, .. }
        | Event::Readable { token }
        | Event::Writable { token }
        | Event::ReceiveCancelled { token }
        | Event::Datagram { token, .. }
        | Event::Closed { token }
        | Event::Detached { token, .. } => Some(*token),
        Event::Woken => None,
    }
}

fn buffer_of(event: &Event<SimSocket>) -> Option<BufferId> {
    match event {
        Event::Received { buffer, .. } | Event::Datagram { buffer, .. } => Some(*buffer),
        _ => None,
    }
}

/// The same news for another source: what a driver without generations would make of it.
fn addressed_to(event: Event<SimSocket>, token: Token) -> Event<SimSocket> {
    match event {
        Event::Received { buffer, len, .. } => Event::Received { token, buffer, len },
        Event::Readable { .. } => Event::Readable { token },
        Event::Writable { .. } => Event::Writable { token },
        Event::Ended { .. } => Event::Ended { token },
        Event::Failed { error, .. } => Event::Failed { token, error },
        Event::ReceiveCancelled { .. } => Event::ReceiveCancelled { token },
        other => other,
    }
}

/// The event's name in the trace, and the number that goes with it.
fn description(event: &Event<SimSocket>) -> (&'static str, u64) {
    let errno = |error: &std::io::Error| u64::from(error.raw_os_error().unwrap_or(0).unsigned_abs());
    match event {
        Event::Accepted { .. } => ("Accepted", 0),
        Event::AcceptStopped { error, .. } => ("AcceptStopped", error.as_ref().map_or(0, errno)),
        Event::Connected { .. } => ("Connected", 0),
        Event::Received { len, .. } => ("Received", u64::from(*len)),
        Event::Ended { .. } => ("Ended", 0),
        Event::Failed { error, .. } => ("Failed", errno(error)),
        Event::Readable { .. } => ("Readable", 0),
        Event::Writable { .. } => ("Writable", 0),
        Event::ReceiveCancelled { .. } => ("ReceiveCancelled", 0),
        Event::Datagram { .. } => ("Datagram", 0),
        Event::Closed { .. } => ("Closed", 0),
        Event::Detached { .. } => ("Detached", 0),
        Event::Woken => ("Woken", 0),
    }
}
