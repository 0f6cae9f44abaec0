//! Checks of sources: turns the network's state into completions.
//!
//! Only marked sources are checked: the network marks a source that changed, an intent marks its own source, and a
//! scheduled check marks a source after a fault's delay.

use std::io;

use stilling_engine::Token;
use stilling_engine::driver::DriverEvent;
use stilling_engine::limits::{ACCEPTS_PER_TURN, DATAGRAMS_PER_TURN};

use super::SimDriver;
use super::source::{ArmedRead, SimSourceKind};
use crate::faults::NetworkFault;
use crate::network::{EndId, SimSocket};
use crate::trace::hash_bytes;

type SimEvents = Vec<DriverEvent<SimSocket>>;

impl SimDriver {
    /// Checks every marked source, starting at a random one: completions have no order.
    pub(super) fn check_dirty_sources(&mut self, events: &mut SimEvents) {
        self.network.state().take_dirty(self.number, &mut self.dirty);
        let mut slots = std::mem::take(&mut self.dirty);
        slots.sort_unstable();
        slots.dedup();
        if slots.len() > 1 {
            let first = self.network.state().random.index(slots.len());
            slots.rotate_left(first);
        }
        for &slot in &slots {
            self.check_source(slot, events);
        }
        slots.clear();
        // A check may mark sources again; they belong to the next turn.
        slots.append(&mut self.dirty);
        self.dirty = slots;
    }

    fn check_source(&mut self, slot: u32, events: &mut SimEvents) {
        let Some(source) = self.sources.at(slot) else { return };
        let token = source.token;
        if source.closing {
            self.finish_close(token, events);
            return;
        }
        if source.detaching {
            self.finish_detach(token, events);
            return;
        }
        match source.what {
            SimSourceKind::Listener { accepting, stopping } => {
                self.check_listener_source(token, accepting, stopping, events);
            }
            SimSourceKind::Stream { connecting: true } => self.check_connect(token, events),
            SimSourceKind::Stream { connecting: false } | SimSourceKind::Pipe => {
                self.check_stream_source(token, events);
            }
            SimSourceKind::Datagram => self.check_datagram_source(token, events),
        }
    }

    fn finish_close(&mut self, token: Token, events: &mut SimEvents) {
        let Some(source) = self.sources.of(token) else { return };
        if !source.is_released() {
            let (last, writable) = (source.last_armed, source.writable);
            (source.armed, source.writable) = (ArmedRead::No, false);
            source.release_socket();
            self.add_stale_completion(token, last, writable);
        }
        // `Closed` may be delayed too; it is then the last completion in flight.
        if self.sources.of(token).is_some_and(|source| source.in_flight == 0) {
            self.complete(DriverEvent::Closed { token }, events);
        }
    }

    fn finish_detach(&mut self, token: Token, events: &mut SimEvents) {
        let Some(source) = self.sources.of(token).filter(|source| !source.is_released()) else { return };
        // Cancels what is armed, possibly too late.
        match source.what {
            SimSourceKind::Listener { .. } => self.cancel_accept(token, events),
            _ => self.cancel_receive(token, events),
        }
        let Some(source) = self.sources.of(token).filter(|source| source.in_flight == 0) else { return };
        let last = source.last_armed;
        let Some(socket) = source.take_socket() else { return };
        self.add_stale_completion(token, last, false);
        self.complete(DriverEvent::Detached { token, socket: Ok(socket) }, events);
    }

    fn cancel_receive(&mut self, token: Token, events: &mut SimEvents) {
        let Some(source) = self.sources.of(token) else { return };
        let end = source.socket_kind().end();
        let armed = std::mem::replace(&mut source.armed, ArmedRead::No);
        source.writable = false;
        // A receive without a buffer is always cancelled in time.
        let ready = armed == ArmedRead::Receive && self.network.state().is_readable(end);
        if ready && self.network.state().random.chance(500) {
            self.receive_from(token, end, true, events);
        }
    }

    fn cancel_accept(&mut self, token: Token, events: &mut SimEvents) {
        let Some(source) = self.sources.of(token) else { return };
        let listener = source.socket_kind().listener();
        let SimSourceKind::Listener { stopping, .. } = &mut source.what else { return };
        if !std::mem::take(stopping) {
            return;
        }
        let is_late = self.network.state().random.chance(500);
        let end = is_late.then(|| self.network.state().take_connection(listener)).flatten();
        if let Some(end) = end {
            let socket = self.network.socket_of(end);
            self.complete(DriverEvent::Accepted { listener: token, socket }, events);
        }
        self.complete(DriverEvent::AcceptStopped { listener: token, error: None, refused: 0 }, events);
    }

    fn check_listener_source(
        &mut self,
        token: Token,
        accepting: bool,
        stopping: bool,
        events: &mut SimEvents,
    ) {
        if stopping {
            *self.sources.listener(token, "check it").1 = false;
            self.complete(DriverEvent::AcceptStopped { listener: token, error: None, refused: 0 }, events);
        }
        let Some(source) = self.sources.of(token).filter(|_| accepting) else { return };
        let listener = source.socket_kind().listener();
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(end) = self.network.state().take_connection(listener) else { return };
            if self.network.state().injects(NetworkFault::AbortedAccept) {
                let mut state = self.network.state();
                state.set_damaged(end);
                state.reset(end);
                continue;
            }
            let failures =
                [(NetworkFault::NoDescriptor, libc::EMFILE), (NetworkFault::AcceptFails, libc::ENOMEM)];
            if let Some((_, errno)) =
                failures.into_iter().find(|(fault, _)| self.network.state().injects(*fault))
            {
                self.network.state().requeue_connection(listener, end);
                *self.sources.listener(token, "check it").0 = false;
                let error = Some(io::Error::from_raw_os_error(errno));
                self.complete(DriverEvent::AcceptStopped { listener: token, error, refused: 0 }, events);
                return;
            }
            let socket = self.network.socket_of(end);
            self.complete(DriverEvent::Accepted { listener: token, socket }, events);
        }
        self.mark(token.index());
    }

    fn check_connect(&mut self, token: Token, events: &mut SimEvents) {
        let Some(source) = self.sources.of(token) else { return };
        let Some(result) = self.network.state().connected(source.socket_kind().end()) else { return };
        source.what = SimSourceKind::Stream { connecting: false };
        let event = match result {
            Ok(()) => DriverEvent::Connected { token },
            Err(errno) => DriverEvent::Failed { token, error: io::Error::from_raw_os_error(errno) },
        };
        self.complete(event, events);
    }

    fn check_stream_source(&mut self, token: Token, events: &mut SimEvents) {
        let Some(source) = self.sources.of(token) else { return };
        let end = source.socket_kind().end();
        let (armed, cancelling) = (source.armed, std::mem::take(&mut source.cancelling));
        if source.writable && self.network.state().is_writable(end) {
            source.writable = false;
            self.complete(DriverEvent::Writable { token }, events);
        }
        if armed == ArmedRead::No {
            return;
        }
        let ready = self.network.state().is_readable(end);
        // A cancel that races with data may win or lose.
        if cancelling && !(ready && self.network.state().random.chance(500)) {
            self.disarm(token);
            self.complete(DriverEvent::ReceiveCancelled { token }, events);
            return;
        }
        match armed {
            ArmedRead::Readable if ready => {
                self.disarm(token);
                self.complete(DriverEvent::Readable { token }, events);
            }
            ArmedRead::Receive if ready => self.receive_from(token, end, cancelling, events),
            ArmedRead::Receive if self.sources.of(token).is_some_and(|source| source.expects_data) => {
                // An immediate attempt to receive needs a buffer too.
                if !self.is_starved(token)
                    && let Some(source) = self.sources.of(token)
                {
                    source.expects_data = false;
                }
            }
            _ => {}
        }
    }

    fn receive_from(&mut self, token: Token, end: EndId, cancelling: bool, events: &mut SimEvents) {
        let arrived = self.network.state().arrived(end);
        if arrived > 0 && self.is_starved(token) {
            if cancelling {
                self.disarm(token);
                self.complete(DriverEvent::ReceiveCancelled { token }, events);
            }
            return;
        }
        self.disarm(token);
        let mut state = self.network.state();
        if arrived == 0 {
            let result = state.read(end, &mut [0]);
            drop(state);
            let event = match result {
                Ok(_) => DriverEvent::Ended { token },
                Err(errno) => DriverEvent::Failed { token, error: io::Error::from_raw_os_error(errno) },
            };
            return self.complete(event, events);
        }
        let Some((buffer, bytes)) = self.buffers.take() else { return };
        let most = arrived.min(bytes.len());
        let split = most > 1 && state.injects(NetworkFault::SplitReceive);
        let len = if split { state.random.between(1, most as u64 - 1) as usize } else { most };
        let len = state.read(end, &mut bytes[..len]).expect("bytes have arrived");
        state.note("shard", self.number, "arrived", token.bits(), hash_bytes(&bytes[..len]));
        drop(state);
        self.complete(DriverEvent::Received { token, buffer, len: len as u32 }, events);
    }

    fn check_datagram_source(&mut self, token: Token, events: &mut SimEvents) {
        let Some(source) = self.sources.of(token) else { return };
        let socket = source.socket_kind().datagram();
        let (armed, cancelling) = (source.armed, std::mem::take(&mut source.cancelling));
        if std::mem::take(&mut source.writable) {
            self.complete(DriverEvent::Writable { token }, events);
        }
        if cancelling {
            self.disarm(token);
            self.complete(DriverEvent::ReceiveCancelled { token }, events);
            return;
        }
        let waiting = self.network.state().has_datagram(socket);
        match armed {
            ArmedRead::Readable if waiting => {
                self.disarm(token);
                self.complete(DriverEvent::Readable { token }, events);
            }
            ArmedRead::Receive => {
                for _ in 0..DATAGRAMS_PER_TURN {
                    if !self.network.state().has_datagram(socket) || self.is_starved(token) {
                        return;
                    }
                    let Some(datagram) = self.network.state().take_datagram(socket) else { return };
                    let Some((buffer, _)) = self.buffers.take() else { return };
                    self.buffers.fill(buffer, datagram.from, datagram.local, &datagram.payload);
                    self.note("arrived", token, hash_bytes(&datagram.payload));
                    self.complete(DriverEvent::Datagram { token, buffer }, events);
                }
                self.mark(token.index());
            }
            ArmedRead::No | ArmedRead::Readable => {}
        }
    }

    fn disarm(&mut self, token: Token) {
        if let Some(source) = self.sources.of(token) {
            (source.armed, source.cancelling) = (ArmedRead::No, false);
        }
    }

    /// Whether no buffer is available, really or by a fault. If so, another check of the source follows.
    fn is_starved(&mut self, token: Token) -> bool {
        let slot = token.index();
        if !self.buffers.has_free() {
            self.starved.push(slot);
        } else if self.network.state().injects(NetworkFault::NoBuffer) {
            let mut state = self.network.state();
            let again = state.draw_delay_end();
            state.schedule_check(again, self.number, slot);
        } else {
            return false;
        }
        if let Some(source) = self.sources.of(token)
            && !std::mem::replace(&mut source.starving, true)
        {
            self.counters.starved += 1;
        }
        true
    }
}
