//! One turn of the shard: send and wait, then dispatch the events.

use std::io;
use std::time::Duration;

use stilling_ring::planted;

use super::Shard;
use super::connection::{
    CloseIntent, ConnectionState, ConnectionTimer, NO_ITEM, PendingCall, ReadState, UNKNOWN_REST,
};
use super::output::{AfterSend, ItemLocation, OutputItem, TurnStage};
use super::session::{Recipient, Service, Session};
use super::slots::ShardSlot;
use super::slow_consumer::message_rest_after;
use crate::close_reason::CloseReason;
use crate::datagram_drop::DatagramDropReason;
use crate::driver::{BufferId, Driver, DriverEvent, Gather, IncompleteSend, Outgoing, Wait};
use crate::limits::{LINGER_BYTES_MAX, LISTENERS_MAX, RECEIVE_BUFFER_SIZE};
use crate::token::Token;

impl<D: Driver, V: Service> Shard<D, V> {
    /// Handles all events that are ready. With `may_wait` it waits for an event or the next deadline.
    pub fn turn(&mut self, may_wait: bool) -> io::Result<()> {
        let wait = if may_wait { self.announce_wait() } else { Wait::No };
        if let Wait::Until(_) = wait {
            // The driver converts it to a span, relative to now and not to the start of the last turn.
            self.now = self.clock.now();
        }
        self.turn_with(wait)
    }

    /// The same with a wait of at most `span`, which the driver may round up to a millisecond.
    pub fn turn_within(&mut self, span: Duration) -> io::Result<()> {
        let wait = self.announce_wait();
        self.now = self.clock.now();
        let latest = self.now.after(span);
        self.turn_with(match wait {
            Wait::No => Wait::No,
            Wait::Until(at) => Wait::Until(at.min(latest)),
            Wait::Forever => Wait::Until(latest),
        })
    }

    fn turn_with(&mut self, wait: Wait) -> io::Result<()> {
        self.may_have_intents = false;
        let result = self.send(wait);
        if std::mem::take(&mut self.parked) {
            self.wake.clear_parked();
        }
        result?;
        self.now = self.clock.now();
        self.turn_number = self.turn_number.wrapping_add(1);
        // Also for intents made in `send`: the driver carries them out with the next turn.
        self.may_have_intents |= !self.events.is_empty() || !self.to_revisit.is_empty();
        self.revisit();
        self.dispatch();
        self.serve_paced_datagrams();
        let has_datagrams = !self.received_from.is_empty();
        self.count_dropped_datagrams();
        self.deliver();
        self.expire();
        self.run_service_turn(has_datagrams);
        self.resume_input_blocked();
        self.blocks.trim(self.now);
        self.counters.turns.add(1);
        self.counters.input_held.set(self.held_input.used() as u64);
        self.counters.output_held.set(self.held_output.used() as u64);
        self.counters.copy_driver_counters(&self.driver.counters());
        Ok(())
    }

    /// For a foreign event loop: how long it may wait for the driver's waitable descriptor before it calls
    /// `turn(false)`. `Wait::No`: run a turn now. Otherwise senders of mail wake the shard until its next turn.
    pub fn prepare_to_wait(&mut self) -> Wait {
        if self.may_have_intents || !self.output.is_empty() {
            return Wait::No;
        }
        self.announce_wait()
    }

    /// Decides how long to wait; before a wait, parks the wake and checks for mail once more (see
    /// [`stilling_ring::Wake`]).
    fn announce_wait(&mut self) -> Wait {
        let has_deferred_work = !self.to_revisit.is_empty() || self.drain_notify_from.is_some();
        // Block references must be dropped and sockets closed without a wait.
        let has_end_of_turn_work = self.output.holds_blocks() || !self.sockets_to_close.is_empty();
        let busy = self.dispatched < self.events.len() || has_deferred_work || has_end_of_turn_work;
        if busy
            || !self.datagram_ring.is_empty()
            || self.output.items.iter().any(|item| item.after == AfterSend::Revisit)
        {
            return Wait::No;
        }
        self.wake.set_parked();
        if self.service.has_mail() {
            self.wake.clear_parked();
            return Wait::No;
        }
        self.parked = true;
        self.next_deadline().map_or(Wait::Forever, Wait::Until)
    }

    fn send(&mut self, wait: Wait) -> io::Result<()> {
        self.events.drain(..self.dispatched);
        self.dispatched = 0;
        let (output, slots, held) = (&self.output, &self.slots, &self.held_output);
        let outgoing = output.items.iter().map(|item| Outgoing {
            token: item.token,
            bytes: output.gather(item.location, || {
                slots.peek(item.token).expect("its slot is in use").connection.output.bytes(held)
            }),
            to: None,
            from: None,
            close: item.after == AfterSend::Close,
        });
        let datagrams = output.datagrams.iter().map(|item| Outgoing {
            token: item.token,
            bytes: Gather::One(output.payload(item)),
            to: Some(item.to),
            from: item.from,
            close: false,
        });
        let outgoing = outgoing.chain(datagrams);
        self.driver.turn(self.now, wait, outgoing, &mut self.incomplete_sends, &mut self.events)?;
        self.counters.datagrams_sent.add(self.output.datagrams.len() as u64);
        let sent = self.process_sent();
        if self.config.reports_datagrams {
            self.report_sent_datagrams();
        }
        self.output.clear();
        self.counters.sent_bytes.add(sent);
        self.close_sent_sockets();
        Ok(())
    }

    /// Processes the results of this turn's output. Results that free memory come first, so that no connection is
    /// disconnected for bytes that are already sent. Returns the number of bytes sent.
    fn process_sent(&mut self) -> u64 {
        let mut sent = 0;
        if !self.incomplete_sends.is_empty() {
            for stop in &self.incomplete_sends {
                if let Some(item) = self.output.items.get_mut(stop.position as usize) {
                    item.is_stopped = true;
                }
            }
        }
        for at in 0..self.output.items.len() {
            if !self.output.items[at].is_stopped {
                sent += self.sent_item(at);
            }
        }
        let mut incomplete_sends = std::mem::take(&mut self.incomplete_sends);
        incomplete_sends.retain(|stop| {
            let item = self.output.items.get(stop.position as usize);
            let is_held = item.is_some_and(|item| item.location == ItemLocation::Stash);
            if is_held {
                self.store_unsent(stop);
            }
            sent += u64::from(stop.sent);
            !is_held
        });
        for stop in incomplete_sends.drain(..) {
            self.store_unsent(&stop);
        }
        self.incomplete_sends = incomplete_sends;
        sent
    }

    /// A send stopped short: the rest is kept until the connection is writable.
    fn store_unsent(&mut self, stop: &IncompleteSend) {
        let Some(OutputItem { token, location, .. }) = self.output.items.get(stop.position as usize).copied()
        else {
            let reason = DatagramDropReason::from_send_error(stop.error.as_ref());
            let at = stop.position as usize - self.output.items.len();
            if let Some(item) = self.output.datagrams.get_mut(at) {
                item.is_dropped = true;
            }
            return self.counters.datagrams_dropped(reason).add(1);
        };
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        connection.link = NO_ITEM;
        if connection.state == ConnectionState::Closing {
            // The close after this send has not happened.
            connection.state = ConnectionState::Open;
        }
        if let Some(error) = &stop.error {
            return self.send_failed(token, stop.sent, error);
        }
        let was_held_back = connection.is_input_blocked(&self.held_output);
        let was_blocked = std::mem::replace(&mut connection.blocked, true);
        if stop.sent > 0 || !was_blocked {
            let timeouts = [self.config.write_timeout, self.config.connect_write_timeout];
            let write_timeout = timeouts[usize::from(connection.outgoing)];
            connection.extend_write(was_blocked, stop.sent, self.now, write_timeout);
        }
        self.counters.blocked_sends.add(1);
        if !self.store_rest(token, location, stop.sent as usize) {
            return;
        }
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        let late = self.now >= connection.timer.at();
        if let Some(reason) = self.aborting.or(late.then_some(CloseReason::WriteTimeout)) {
            connection.finish = CloseIntent::Abort;
            connection.set_reason(reason);
            return self.to_revisit.push(token);
        }
        let waits_for_other_output = connection.waits_for_other_output(&self.held_output);
        let is_input_blocked = connection.is_input_blocked(&self.held_output) && !waits_for_other_output;
        if connection.reads_while_blocked && was_held_back && !is_input_blocked {
            // Input may be shown again, or waits only for others' output.
            self.to_revisit.push(token);
        }
        self.may_have_intents = true;
        self.driver.await_writable(token);
        self.wheel.set(token.index(), connection.earliest_deadline());
    }

    /// A send failed: the connection ends, unless its session continues to receive.
    fn send_failed(&mut self, token: Token, sent: u32, error: &io::Error) {
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        let nothing_sent = sent == 0 && !connection.blocked;
        let session = slot.session.as_mut().filter(|_| connection.finish == CloseIntent::No);
        if session.is_some_and(|session| session.send_error(nothing_sent)) {
            connection.output.clear(&mut self.held_output);
            (connection.blocked, connection.timer) = (false, ConnectionTimer::Never);
            connection.schedule_received();
        } else {
            connection.finish = CloseIntent::Abort;
            connection.set_reason(CloseReason::from_error(error));
        }
        self.to_revisit.push(token);
    }

    /// Stores the unsent rest of an item, and disconnects the connections that hold most if the store is full. Returns
    /// false if this connection is one of them.
    fn store_rest(&mut self, token: Token, location: ItemLocation, sent: usize) -> bool {
        let Some(ShardSlot { connection, session }) = self.slots.get(token) else { return false };
        let len_of = |bytes: &[u8]| session.as_ref().and_then(|session| session.message_len(bytes));
        if location == ItemLocation::Stash {
            let slices = Gather::One(connection.output.bytes(&self.held_output)).slices();
            connection.message_rest = message_rest_after(connection.message_rest, slices, sent, len_of);
            connection.output.consume(&mut self.held_output, sent);
            return true;
        }
        let gather = self.output.gather(location, || b"");
        // Offered bytes are at the end, and are not stored.
        let non_offered_len = gather.len() - usize::from(connection.offered);
        connection.offered = sent.saturating_sub(non_offered_len) as u16;
        let sent = sent.min(non_offered_len);
        connection.message_rest = message_rest_after(0, gather.part(0..non_offered_len), sent, len_of);
        let first = if planted!("range sent twice") { piece_start(gather, sent) } else { sent };
        let (owner, store) = (token.index(), &mut self.held_output);
        let unsent = gather.part(first..non_offered_len);
        let is_stored = connection.output.append_parts_owned(owner, store, unsent.remaining(), unsent);
        if !is_stored {
            // The rest is too long for the store, but the rest of the message may not be.
            let rest = connection.message_rest as usize;
            let is_there = rest <= non_offered_len - sent;
            let parts = gather.part(sent..sent.saturating_add(rest));
            if !is_there || !connection.output.append_parts_owned(owner, store, rest, parts) {
                connection.message_rest = UNKNOWN_REST;
            }
            self.end_slow_consumer(token);
        }
        self.enforce_output_budget(token);
        self.is_in_state(token, ConnectionState::Open)
    }

    /// All bytes of an item were sent. Returns their number.
    fn sent_item(&mut self, at: usize) -> u64 {
        let OutputItem { token, location, after, .. } = self.output.items[at];
        let Some(slot) = self.slots.get(token) else { return 0 };
        let connection = &mut slot.connection;
        connection.link = NO_ITEM;
        if after == AfterSend::Revisit {
            self.to_revisit.push(token);
        }
        let len = match location {
            ItemLocation::Arena { len: 0, .. } => return 0,
            ItemLocation::Arena { len, .. } => len,
            ItemLocation::PieceChain(chain) => chain.len(),
            ItemLocation::Stash => {
                let len = connection.output.len();
                connection.output.clear(&mut self.held_output);
                len
            }
        };
        if connection.blocked {
            connection.unblock(self.now.after(self.config.park_after));
            connection.flushed = true;
        }
        len as u64
    }

    /// Revisits connections after their output was sent. They get half of the arena, because fast readers of long
    /// responses would use all of it in every turn and starve events, mail and deadlines. Connections for which there
    /// is no room come first in the next turn.
    fn revisit(&mut self) {
        std::mem::swap(&mut self.to_revisit, &mut self.revisiting);
        let mut revisiting = std::mem::take(&mut self.revisiting);
        let mut seen = 0;
        while seen < revisiting.len() && self.output.has_room_in_half() {
            self.revisit_connection(revisiting[seen]);
            seen += 1;
        }
        revisiting.drain(..seen);
        revisiting.append(&mut self.to_revisit);
        self.revisiting = std::mem::replace(&mut self.to_revisit, revisiting);
    }

    /// Revisits connections that waited for others' output, once it is sent.
    fn resume_input_blocked(&mut self) {
        if self.input_blocked.is_empty() || !self.held_output.has_ample_room() {
            return;
        }
        for token in self.input_blocked.drain(..) {
            if let Some(slot) = self.slots.get(token) {
                slot.connection.is_in_input_blocked_list = false;
                self.to_revisit.push(token);
            }
        }
    }

    fn revisit_connection(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        if connection.pending_call == PendingCall::AfterOutput {
            connection.pending_call = PendingCall::Received;
        }
        let flushed = std::mem::take(&mut connection.flushed);
        if connection.state != ConnectionState::Open || connection.finish == CloseIntent::Abort {
            self.run_steps(token);
        } else if connection.readiness.is_on_demand() && !connection.input.is_empty() {
            self.on_demand_readable(token);
        } else if connection.finish == CloseIntent::No && connection.is_offer_finished() {
            let count = connection.finish_offer();
            self.call(token, |session, io, service| session.offer_sent(count, io, service));
        } else if flushed {
            self.call(token, Session::flushed);
        } else {
            self.run_steps(token);
        }
    }

    fn dispatch(&mut self) {
        while self.dispatched < self.events.len() && self.output.has_room_for(TurnStage::Events) {
            let event = std::mem::replace(&mut self.events[self.dispatched], DriverEvent::Woken);
            self.dispatched += 1;
            self.handle(event);
        }
    }

    fn handle(&mut self, event: DriverEvent<D::Socket, D::Accepted>) {
        match event {
            DriverEvent::Received { token, buffer, len } => {
                self.counters.received_bytes.add(u64::from(len));
                self.on_received(token, buffer, len);
                self.driver.release(buffer);
            }
            DriverEvent::Accepted { listener, socket } => {
                if let Some(number) = self.listeners.number_of(listener) {
                    self.on_accepted(number, socket);
                }
            }
            DriverEvent::Closed { token } => self.on_closed(token),
            DriverEvent::Detached { token, socket } => self.on_detached_event(token, socket),
            DriverEvent::Ended { token } => self.on_ended(token),
            DriverEvent::Failed { token, error } => self.on_failed(token, &error),
            DriverEvent::Writable { token } => {
                if self.is_on_demand(token) {
                    self.on_demand_writable(token);
                } else if self.is_in_state(token, ConnectionState::Open) {
                    self.on_writable(token);
                }
            }
            DriverEvent::Readable { token } => {
                self.set_reading(token, ReadState::Nothing);
                if self.is_on_demand(token) {
                    self.on_demand_readable(token);
                } else {
                    self.on_read_finished(token);
                }
            }
            DriverEvent::ReceiveCancelled { token } => self.on_receive_cancelled(token),
            DriverEvent::Connected { token } => {
                if self.is_in_state(token, ConnectionState::Connecting) {
                    let connection = &mut self.slots.get(token).expect("it is connecting").connection;
                    (connection.state, connection.timer) = (ConnectionState::Open, ConnectionTimer::Never);
                    self.counters.connected.add(1);
                    self.call(token, Session::opened);
                }
            }
            DriverEvent::AcceptStopped { listener, error, refused } => {
                if let Some(number) = self.listeners.number_of(listener) {
                    self.on_accept_stopped(number, error.as_ref(), refused);
                }
            }
            DriverEvent::Datagram { token, buffer } => self.on_datagram(token, buffer),
            DriverEvent::Woken => {}
        }
    }

    pub(super) fn is_in_state(&mut self, token: Token, state: ConnectionState) -> bool {
        self.slots.get(token).is_some_and(|slot| slot.connection.state == state)
    }

    fn is_on_demand(&mut self, token: Token) -> bool {
        self.slots.get(token).is_some_and(|slot| slot.connection.readiness.is_on_demand())
    }

    fn set_reading(&mut self, token: Token, reading: ReadState) {
        if let Some(slot) = self.slots.get(token) {
            slot.connection.reading = reading;
        }
    }

    fn on_received(&mut self, token: Token, buffer: BufferId, len: u32) {
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        connection.reading = ReadState::Nothing;
        // A buffer that is not full holds all there was.
        let emptied = (len as usize) < RECEIVE_BUFFER_SIZE;
        connection.emptied_turn = emptied.then_some(self.turn_number);
        match connection.state {
            ConnectionState::Open if matches!(connection.finish, CloseIntent::No | CloseIntent::Detach) => {
                self.receive_buffer(token, buffer, len as usize);
            }
            ConnectionState::Detaching => self.receive_buffer(token, buffer, len as usize),
            ConnectionState::Open | ConnectionState::Lingering => self.discard(token, len),
            ConnectionState::Free | ConnectionState::Connecting | ConnectionState::Closing => {}
        }
    }

    fn discard(&mut self, token: Token, len: u32) {
        let connection = &mut self.slots.get(token).expect("the caller looked it up").connection;
        connection.lingered = connection.lingered.saturating_add(len);
        if connection.lingered > LINGER_BYTES_MAX {
            self.begin_close(token);
        } else {
            self.on_read_finished(token);
        }
    }

    /// Arms the next read operation, if needed, after the previous one.
    fn on_read_finished(&mut self, token: Token) {
        if self.is_in_state(token, ConnectionState::Lingering) {
            self.set_reading(token, ReadState::Receive);
            self.driver.receive(token);
        } else {
            self.run_steps(token);
        }
    }

    fn on_receive_cancelled(&mut self, token: Token) {
        if token.index() < LISTENERS_MAX {
            return self.on_datagrams_stopped(token.index());
        }
        let Some(slot) = self.slots.get(token) else { return };
        let connection = &mut slot.connection;
        let parking = connection.reading == ReadState::Parking && connection.state == ConnectionState::Open;
        connection.reading = ReadState::Nothing;
        if parking && !connection.paused && !connection.blocked && connection.finish == CloseIntent::No {
            connection.reading = ReadState::Parked;
            self.counters.parked.add(1);
            self.driver.await_readable(token);
        } else {
            self.on_read_finished(token);
        }
    }

    /// Delivers mail while the arena has room for the responses, but at least one piece: earlier stages may fill the
    /// arena in every turn.
    fn deliver(&mut self) {
        let mut is_first = true;
        while std::mem::take(&mut is_first) || self.output.has_room_for(TurnStage::Mail) {
            let Some((recipient, mail)) = self.service.next_mail() else { break };
            self.may_have_intents = true;
            let token = match recipient {
                Recipient::Connection(token) => token,
                Recipient::Peer(path) => {
                    self.deliver_to_peer(path, mail);
                    continue;
                }
            };
            let token = if planted!("stale mail") { self.current_token(token) } else { token };
            if self.is_in_state(token, ConnectionState::Open) {
                self.call(token, |session, io, service| session.delivered(mail, io, service));
            }
        }
    }

    /// The connection that uses the token's slot now.
    fn current_token(&self, token: Token) -> Token {
        let at = token.index().checked_sub(LISTENERS_MAX);
        at.and_then(|at| self.slots.token_at(at as usize)).unwrap_or(token)
    }

    fn expire(&mut self) {
        let mut expired = std::mem::take(&mut self.expired);
        self.wheel.expire(self.now, &mut expired);
        self.may_have_intents |= !expired.is_empty();
        let mut is_first = true;
        for id in expired.drain(..) {
            if !std::mem::take(&mut is_first) && !self.output.has_room_for(TurnStage::Deadlines) {
                // It expires again with the wheel's next tick.
                self.wheel.set(id, self.now);
            } else if id < LISTENERS_MAX {
                self.on_listener_timer(id);
            } else {
                self.expire_connection(id);
            }
        }
        self.expired = expired;
    }
}

fn piece_start(gather: Gather<'_>, sent: usize) -> usize {
    let mut start = 0;
    for piece in gather.slices() {
        if start + piece.len() > sent {
            break;
        }
        start += piece.len();
    }
    start
}
