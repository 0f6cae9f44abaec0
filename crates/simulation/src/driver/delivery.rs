//! From completion to event: at once, late, over several turns, or discarded as stale.
//!
//! A delayed completion belongs to its source: the source's `Closed` waits for it, and if the shard closes the source
//! in between, the completion is discarded and its buffer reclaimed. A *stale* completion has no source and may arrive
//! after the slot was reused. Real systems produce such completions; only the generation distinguishes them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use stilling_engine::Token;
use stilling_engine::driver::{BufferId, DriverEvent};
use stilling_ring::{Time, planted};

use super::SimDriver;
use super::source::ArmedRead;
use crate::faults::NetworkFault;
use crate::network::{SimSocket, SocketKind};

/// Content of a stale receive; no protocol accepts it.
const STALE_BYTES: &[u8] = b"\x00stale completion\x00";

/// Longest time until a stale completion arrives: long enough for the slot to be reused.
const STALE_WITHIN: Duration = Duration::from_millis(20);

/// Most events that an overflowing completion queue delivers in one turn.
const OVERFLOW_ROOM_MAX: u64 = 3;

/// The planted bug "lost completion" loses one in this many completions.
const LOST_ONE_IN: u64 = 32;

/// A completion delayed inside the driver.
#[derive(Debug)]
pub(super) struct DelayedCompletion {
    due: Time,
    event: DriverEvent<SimSocket>,
    /// Its source is closed, so it must be filtered.
    is_stale: bool,
}

impl SimDriver {
    /// Collects due delayed completions, new completions of the sources, and a wake.
    pub(super) fn collect(&mut self, events: &mut Vec<DriverEvent<SimSocket>>) {
        let overflows = self.network.state().injects(NetworkFault::Overflow);
        self.queue_room = match overflows {
            true => self.network.state().random.below(OVERFLOW_ROOM_MAX + 1) as usize,
            false => usize::MAX,
        };
        self.deliver_due(events);
        self.check_dirty_sources(events);
        let spurious = self.network.state().injects(NetworkFault::SpuriousWake);
        if self.wake.swap(false, Ordering::AcqRel) || spurious {
            self.deliver(DriverEvent::Woken, events);
        }
        self.counters.overflows += u64::from(overflows && self.queue_room == 0);
    }

    /// Delivers a completion now, unless a fault delays it.
    pub(super) fn complete(
        &mut self,
        event: DriverEvent<SimSocket>,
        events: &mut Vec<DriverEvent<SimSocket>>,
    ) {
        self.completions += 1;
        if planted!("lost completion") && self.completions.is_multiple_of(LOST_ONE_IN) {
            return;
        }
        let mut state = self.network.state();
        let due = if self.queue_room == 0 {
            state.now()
        } else if state.injects(NetworkFault::Late) {
            state.draw_delay_end()
        } else {
            drop(state);
            self.queue_room -= 1;
            return self.deliver(event, events);
        };
        drop(state);
        if let Some(source) = token_of(&event).and_then(|token| self.sources.of(token)) {
            source.in_flight += 1;
        }
        self.delay_event(due, event, false);
    }

    fn delay_event(&mut self, due: Time, event: DriverEvent<SimSocket>, is_stale: bool) {
        // Makes the shard turn when the completion is due.
        self.network.state().schedule_check(due, self.number, u32::MAX);
        self.delayed.push(DelayedCompletion { due, event, is_stale });
    }

    fn deliver_due(&mut self, events: &mut Vec<DriverEvent<SimSocket>>) {
        let (now, no_faults) = (self.network.now(), self.network.state().has_no_faults());
        let mut index = 0;
        while index < self.delayed.len() && self.queue_room > 0 {
            if self.delayed[index].due > now && !no_faults {
                index += 1;
                continue;
            }
            let DelayedCompletion { event, is_stale, .. } = self.delayed.remove(index);
            let Some(token) = token_of(&event) else {
                self.deliver(event, events);
                continue;
            };
            if !is_stale && let Some(source) = self.sources.of(token) {
                source.in_flight -= 1;
                let waits = source.closing || source.detaching;
                let last = matches!(event, DriverEvent::Closed { .. } | DriverEvent::Detached { .. });
                if waits && source.in_flight == 0 && !last {
                    self.mark(token.index());
                }
            }
            let is_deliverable = matches!(event, DriverEvent::Closed { .. } | DriverEvent::Detached { .. })
                || self
                    .sources
                    .of(token)
                    .is_some_and(|source| !source.closing && !source.failed && !is_stale);
            if is_deliverable {
                self.queue_room -= 1;
                self.deliver(event, events);
            } else {
                self.discard_event(event, events);
            }
        }
    }

    /// Discards a completion of a closed source or another generation.
    fn discard_event(&mut self, event: DriverEvent<SimSocket>, events: &mut Vec<DriverEvent<SimSocket>>) {
        self.counters.stale += 1;
        if planted!("stale generation")
            && let Some(slot) = token_of(&event).map(Token::index)
            && let Some(current) = self.sources.at(slot).filter(|current| !current.closing)
        {
            let token = current.token;
            return self.deliver(addressed_to(event, token), events);
        }
        if let Some(buffer) = buffer_of(&event) {
            self.buffers.reclaim(buffer);
            self.dirty.append(&mut self.starved);
        }
    }

    fn deliver(&mut self, event: DriverEvent<SimSocket>, events: &mut Vec<DriverEvent<SimSocket>>) {
        if let Some(buffer) = buffer_of(&event) {
            self.buffers.lend(buffer);
        }
        if let DriverEvent::Closed { token } | DriverEvent::Detached { token, .. } = event {
            self.sources.remove(token);
        }
        if let DriverEvent::Failed { token, .. } = event
            && let Some(source) = self.sources.of(token)
        {
            source.fail();
        }
        let (name, detail) = description(&event);
        let mut state = self.network.state();
        if let DriverEvent::Received { token, .. } = event
            && let Some(source) = self.sources.of(token)
            && let SocketKind::End(end) = source.socket_kind()
        {
            state.set_read_time(end);
        }
        state.note("shard", self.number, name, token_of(&event).map_or(0, Token::bits), detail);
        state.acted();
        events.push(event);
    }

    /// Sometimes schedules a stale completion of what was armed last, when a source is closed or detached: late
    /// readiness and cancelled operations cause them on real systems.
    pub(super) fn add_stale_completion(&mut self, token: Token, last: ArmedRead, writable: bool) {
        let anything = last != ArmedRead::No || writable;
        if !anything || !self.network.state().injects(NetworkFault::Stale) {
            return;
        }
        let mut state = self.network.state();
        let span = state.random.between(1, STALE_WITHIN.as_nanos() as u64);
        let due = state.now().after(Duration::from_nanos(span));
        drop(state);
        let event = match last {
            ArmedRead::Receive => {
                let Some((buffer, bytes)) = self.buffers.take() else { return };
                bytes[..STALE_BYTES.len()].copy_from_slice(STALE_BYTES);
                DriverEvent::Received { token, buffer, len: STALE_BYTES.len() as u32 }
            }
            ArmedRead::Readable => DriverEvent::Readable { token },
            ArmedRead::No => DriverEvent::Writable { token },
        };
        self.delay_event(due, event, true);
    }
}

fn token_of(event: &DriverEvent<SimSocket>) -> Option<Token> {
    match event {
        DriverEvent::Accepted { listener: token, .. }
        | DriverEvent::AcceptStopped { listener: token, .. }
        | DriverEvent::Connected { token }
        | DriverEvent::Received { token, .. }
        | DriverEvent::Ended { token }
        | DriverEvent::Failed { token, .. }
        | DriverEvent::Readable { token }
        | DriverEvent::Writable { token }
        | DriverEvent::ReceiveCancelled { token }
        | DriverEvent::Datagram { token, .. }
        | DriverEvent::Closed { token }
        | DriverEvent::Detached { token, .. } => Some(*token),
        DriverEvent::Woken => None,
    }
}

fn buffer_of(event: &DriverEvent<SimSocket>) -> Option<BufferId> {
    match event {
        DriverEvent::Received { buffer, .. } | DriverEvent::Datagram { buffer, .. } => Some(*buffer),
        _ => None,
    }
}

/// Readdresses an event to another source, as a driver without generations would.
fn addressed_to(event: DriverEvent<SimSocket>, token: Token) -> DriverEvent<SimSocket> {
    match event {
        DriverEvent::Received { buffer, len, .. } => DriverEvent::Received { token, buffer, len },
        DriverEvent::Readable { .. } => DriverEvent::Readable { token },
        DriverEvent::Writable { .. } => DriverEvent::Writable { token },
        DriverEvent::Ended { .. } => DriverEvent::Ended { token },
        DriverEvent::Failed { error, .. } => DriverEvent::Failed { token, error },
        DriverEvent::ReceiveCancelled { .. } => DriverEvent::ReceiveCancelled { token },
        other => other,
    }
}

/// Name of the event in the trace, and the number recorded with it.
fn description(event: &DriverEvent<SimSocket>) -> (&'static str, u64) {
    let errno = |error: &std::io::Error| u64::from(error.raw_os_error().unwrap_or(0).unsigned_abs());
    match event {
        DriverEvent::Accepted { .. } => ("Accepted", 0),
        DriverEvent::AcceptStopped { error, .. } => ("AcceptStopped", error.as_ref().map_or(0, errno)),
        DriverEvent::Connected { .. } => ("Connected", 0),
        DriverEvent::Received { len, .. } => ("Received", u64::from(*len)),
        DriverEvent::Ended { .. } => ("Ended", 0),
        DriverEvent::Failed { error, .. } => ("Failed", errno(error)),
        DriverEvent::Readable { .. } => ("Readable", 0),
        DriverEvent::Writable { .. } => ("Writable", 0),
        DriverEvent::ReceiveCancelled { .. } => ("ReceiveCancelled", 0),
        DriverEvent::Datagram { .. } => ("Datagram", 0),
        DriverEvent::Closed { .. } => ("Closed", 0),
        DriverEvent::Detached { .. } => ("Detached", 0),
        DriverEvent::Woken => ("Woken", 0),
    }
}
