//! Datagram sockets, which have no connections and use no slots. The service receives every datagram. It may send to
//! any address while it handles one, when it gets mail for a peer, and at the end of each turn.
//!
//! A datagram for which the socket's send buffer has no room is dropped and counted, not stored.

use std::io;
use std::time::Duration;

use super::Shard;
use super::datagram_io::{DatagramIo, DatagramPath, DatagramSender, PassedDatagram};
use super::listener::{ListenerState, ShardListener};
use super::output::TurnStage;
use super::session::Service;
use crate::driver::{BufferId, Datagram, Driver, SourceKind};
use crate::limits::{DRAIN_BATCH_MIN, DRAIN_TURNS_MAX, SEND_MAX};
use crate::token::Token;

/// The difference of two values of a count modulo 2^32.
fn dropped_since(before: u32, now: u32) -> u64 {
    now.wrapping_sub(before).into()
}

impl<D: Driver, V: Service> Shard<D, V> {
    /// Adds a bound datagram socket; its datagrams are passed to [`Service::datagram`]. Returns its number among
    /// listeners and datagram sockets.
    ///
    /// # Errors
    /// There are [`LISTENERS_MAX`](crate::limits::LISTENERS_MAX) already, or the driver cannot use the socket.
    pub fn receive_datagrams(&mut self, socket: D::Socket) -> io::Result<u32> {
        self.add_datagram_socket(socket, false)
    }

    /// The same for a protocol whose work per datagram may exceed what arrives. The socket is drained at once into a
    /// ring of [`DATAGRAM_RING_SIZE`](crate::limits::DATAGRAM_RING_SIZE) bytes, and [`Service::datagram`] gets
    /// [`datagrams_served_per_turn`](super::ShardConfig::datagrams_served_per_turn) of them, oldest first. A full ring
    /// drops by [`datagram_drop`](super::ShardConfig::datagram_drop).
    ///
    /// # Errors
    /// Those of [`receive_datagrams`](Self::receive_datagrams).
    pub fn receive_paced_datagrams(&mut self, socket: D::Socket) -> io::Result<u32> {
        self.datagram_ring.reserve();
        self.add_datagram_socket(socket, true)
    }

    fn add_datagram_socket(&mut self, socket: D::Socket, is_paced: bool) -> io::Result<u32> {
        let token = self.next_listener()?;
        self.driver.attach(token, socket.into(), SourceKind::Datagram, false)?;
        // A socket from a hand-over has a count already.
        let dropped = self.driver.dropped_datagrams(token).unwrap_or(0);
        self.listeners.insert(token, ShardListener::of_datagrams(is_paced, dropped));
        self.may_have_intents = true;
        self.driver.receive(token);
        Ok(token.index())
    }

    pub(super) fn on_datagram(&mut self, token: Token, buffer: BufferId) {
        let datagram = self.driver.datagram(buffer);
        self.counters.datagrams_received.add(1);
        self.received_from.insert(token.index());
        let path = DatagramPath { socket: token.index(), peer: datagram.from, local: datagram.local };
        if self.config.reports_datagrams {
            let Datagram { payload, truncated: is_truncated, .. } = datagram;
            let passed = PassedDatagram { payload, is_sent: false, is_truncated };
            self.service.datagram_passed(self.now, &path, &passed);
        }
        if self.listeners[token.index()].is_paced {
            let dropped = self.datagram_ring.push(token.index(), &datagram, self.now);
            self.paced_in_turn += 1;
            self.counters.datagrams_shed.add(dropped);
            self.counters.datagrams_waiting_max.set_max(self.datagram_ring.len() as u64);
            return self.driver.release(buffer);
        }
        let sender = DatagramSender::new(&mut self.output, &self.listeners, &self.counters, SEND_MAX);
        self.service.datagram(&datagram, &mut DatagramIo { now: self.now, path, sender });
        self.driver.release(buffer);
    }

    /// Reports the datagrams of this turn's output that the system has accepted.
    pub(super) fn report_sent_datagrams(&mut self) {
        for item in self.output.datagrams.iter().filter(|item| !item.is_dropped) {
            let path = DatagramPath { socket: item.token.index(), peer: item.to, local: item.from };
            let payload = self.output.payload(item);
            let passed = PassedDatagram { payload, is_sent: true, is_truncated: false };
            self.service.datagram_passed(self.now, &path, &passed);
        }
    }

    /// Passes waiting datagrams to the service, unless the sockets probably have more: those are drained first, so that
    /// the ring and not the system decides which ones are dropped.
    pub(super) fn serve_paced_datagrams(&mut self) {
        let received = std::mem::take(&mut self.paced_in_turn);
        if received >= DRAIN_BATCH_MIN && self.drain_turns < DRAIN_TURNS_MAX {
            self.drain_turns += 1;
        } else {
            self.drain_turns = 0;
            if !self.datagram_ring.is_empty() {
                self.serve_waiting_datagrams();
            }
            self.stop_served_sockets();
        }
        self.counters.datagrams_waiting.set(self.datagram_ring.len() as u64);
    }

    fn serve_waiting_datagrams(&mut self) {
        let begin = self.clock.now();
        let (mut served, mut waited) = (0, Duration::ZERO);
        for _ in 0..self.config.datagrams_served_per_turn {
            if !self.output.has_room_for(TurnStage::Events) {
                break;
            }
            let Some(since) = self.datagram_ring.front_since() else { break };
            let Some((path, datagram)) = self.datagram_ring.front() else { break };
            let sender = DatagramSender::new(&mut self.output, &self.listeners, &self.counters, SEND_MAX);
            self.service.datagram(&datagram, &mut DatagramIo { now: self.now, path, sender });
            self.datagram_ring.pop();
            waited += self.now.since(since);
            served += 1;
        }
        self.counters.datagrams_waited.add(waited, served);
        self.counters.datagrams_served.add(self.clock.now().since(begin), served);
    }

    /// Closes stopped sockets of which no datagram waits any more.
    fn stop_served_sockets(&mut self) {
        if self.sockets_to_drain.is_empty() {
            return;
        }
        // Those that still wait are added again.
        let mut left = std::mem::take(&mut self.sockets_to_drain);
        while let Some(number) = left.pop() {
            self.on_datagrams_stopped(number);
        }
    }

    pub(super) fn deliver_to_peer(&mut self, path: DatagramPath, mail: V::Mail) {
        if self.listeners.get(path.socket).is_some_and(ShardListener::can_send_datagrams) {
            let sender = DatagramSender::new(&mut self.output, &self.listeners, &self.counters, SEND_MAX);
            self.service.delivered(mail, &mut DatagramIo { now: self.now, path, sender });
        } else {
            self.counters.count_datagram_without_socket();
        }
    }

    /// Counts the system's drops at the sockets that received datagrams in this turn. A socket drops only while its
    /// buffer is full, so datagrams of a later turn always follow the last drop.
    pub(super) fn count_dropped_datagrams(&mut self) {
        while let Some(number) = self.received_from.pop() {
            let token = self.listeners.token(number);
            let Some(dropped) = self.driver.dropped_datagrams(token) else { continue };
            let listener = &mut self.listeners[number];
            let new = dropped_since(listener.dropped, dropped);
            listener.dropped = dropped;
            self.counters.datagrams_dropped_by_kernel.add(new);
        }
    }

    /// Stops receiving datagrams and closes their sockets. A close alone would drop datagrams in receive buffers, so
    /// the receive is cancelled first.
    pub(super) fn close_datagram_sockets(&mut self) {
        self.stop_datagram_sockets();
        for number in 0..self.listeners.end() {
            let listener = &mut self.listeners[number];
            listener.closes_when_stopped |= listener.is_datagram_socket;
            if listener.state() == ListenerState::SendingDatagrams {
                self.close_datagram_socket(number);
            }
        }
    }

    /// Stops receiving datagrams. The sockets can still send.
    pub(super) fn stop_datagram_sockets(&mut self) {
        for number in 0..self.listeners.end() {
            let listener = &mut self.listeners[number];
            if listener.state() != ListenerState::Datagrams {
                continue;
            }
            let was_armed = std::mem::take(&mut listener.armed);
            self.listeners.set_state(number, ListenerState::StoppingDatagrams);
            self.wheel.clear(number);
            if was_armed {
                self.driver.cancel_receive(self.listeners.token(number));
            } else {
                self.on_datagrams_stopped(number);
            }
        }
    }

    /// No receive is armed any more. The service gets the socket's datagrams first.
    pub(super) fn on_datagrams_stopped(&mut self, number: u32) {
        if self.listeners[number].state() != ListenerState::StoppingDatagrams {
            return;
        }
        if self.datagram_ring.has_datagram_of(number) {
            return self.sockets_to_drain.insert(number);
        }
        self.listeners.set_state(number, ListenerState::SendingDatagrams);
        // The service may wait for this.
        self.may_have_intents = true;
        if self.listeners[number].closes_when_stopped {
            self.close_datagram_socket(number);
        }
    }

    /// Closes a socket that receives no more, when this turn's datagrams are sent.
    fn close_datagram_socket(&mut self, number: u32) {
        let token = self.listeners.token(number);
        self.listeners.set_state(number, ListenerState::Closing);
        self.may_have_intents = true;
        if self.output.has_datagram_of(token) {
            self.sockets_to_close.insert(number);
        } else {
            self.driver.close(token);
        }
    }

    pub(super) fn close_sent_sockets(&mut self) {
        while let Some(number) = self.sockets_to_close.pop() {
            self.may_have_intents = true;
            self.driver.close(self.listeners.token(number));
        }
    }

    /// Receiving failed; it is retried after a pause, because the error may be temporary.
    pub(super) fn on_datagrams_failed(&mut self, number: u32) {
        self.on_datagrams_stopped(number);
        let listener = &mut self.listeners[number];
        if listener.state() == ListenerState::Datagrams {
            listener.armed = false;
            self.counters.accept_errors.add(1);
            self.wheel.set(number, self.now.after(self.config.accept_retry));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::dropped_since;

    #[test]
    fn a_counter_that_restarts_keeps_growing() {
        for (before, now, new) in [(0, 0, 0), (3, 10, 7), (u32::MAX - 1, 3, 5), (u32::MAX, u32::MAX, 0)] {
            assert_eq!(dropped_since(before, now), new, "{before} {now}");
        }
    }
}
