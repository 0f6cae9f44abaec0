//! What the service orders at the end of a turn: connects, adoptions, the drain, the end.

use super::Shard;
use super::connection::{Due, State};
use super::datagram_io::DatagramSender;
use super::output::Stage;
use super::session::{Adopting, Control, NO_PLACE, Order, Service, Session};
use crate::close_reason::CloseReason;
use crate::driver::{Destination, Driver};

impl<D: Driver, V: Service> Shard<D, V> {
    pub(super) fn take_service_turn(&mut self) {
        let coming = self.coming();
        let open = self.slots.open();
        let datagram_sockets = self.datagram_sockets();
        let adopting = Adopting {
            sockets: &mut self.adopted,
            store: &mut self.held_input,
            slots: self.config.capacity.saturating_sub(open),
        };
        let room = self.output.room_at_the_end();
        let datagrams = DatagramSender::new(&mut self.output, &self.listeners, &self.counters, room);
        let mut control = Control {
            now: self.now,
            open,
            coming,
            datagram_sockets,
            orders: &mut self.orders,
            adopting,
            datagrams,
        };
        self.service_deadline = self.service.turn(&mut control);
        self.acted |= !self.orders.is_empty();
        let mut orders = std::mem::take(&mut self.orders);
        for order in orders.drain(..) {
            match order {
                Order::Connect(to, session) => self.dial(&to, session),
                Order::Adopt(session, input) => {
                    let socket = self.adopted.pop_front().expect("one for each order");
                    self.settle_in(socket, session, input);
                }
                Order::CloseListeners(backlog) => self.close_listeners(backlog),
                Order::CloseDatagramSockets => self.close_datagram_sockets(),
                Order::Drain => self.untold_from = Some(0),
                Order::AbortAll(reason) => self.abort_all(reason),
                Order::Stop => self.is_over = true,
            }
        }
        self.orders = orders;
        self.tell_of_drain();
    }

    /// Tells the sessions that the server drains, slot by slot, in as many turns as it takes: while events
    /// wait to be handed out, a connection whose request is among them looks idle and would be closed with
    /// it; and what the sessions say to that needs room like everything else.
    fn tell_of_drain(&mut self) {
        while let Some(at) = self.untold_from {
            if self.dispatched < self.events.len() || !self.output.has_room_for(Stage::Events) {
                return;
            }
            self.untold_from = (at + 1 < self.slots.touched()).then_some(at + 1);
            self.acted = true;
            if let Some(token) = self.slots.tenant(at)
                && self.is_in(token, State::Open)
            {
                self.call(token, Session::draining);
            }
        }
    }

    /// Closes all connections, drops those that wait for a slot, and lets nobody in any more.
    fn abort_all(&mut self, reason: CloseReason) {
        self.aborting = Some(reason);
        self.counters.refused_full.add(self.waiting.len() as u64);
        self.waiting.clear();
        for at in 0..self.slots.touched() {
            if let Some(token) = self.slots.tenant(at) {
                self.abort(token, reason);
            }
        }
    }

    fn dial(&mut self, to: &Destination, mut session: V::Session) {
        if self.slots.has_no_place() || self.aborting.is_some() {
            self.counters.closed(CloseReason::ConnectFailed).add(1);
            session.refused(&NO_PLACE.into(), &mut self.service);
            return session.closed(CloseReason::ConnectFailed, &mut self.service);
        }
        let token = self.slots.insert(session).expect("there is a free slot");
        self.slots.goes_out(token);
        let connection = &mut self.slots.get(token).expect("just inserted").connection;
        connection.state = State::Connecting;
        let deadline = self.now.after(self.config.connect_timeout);
        connection.due = Due::Connect(deadline);
        self.note_open();
        self.wheel.set(token.index(), deadline);
        if let Err(error) = self.driver.connect(token, to) {
            let slot = self.slots.get(token).expect("just inserted");
            slot.connection.reason = CloseReason::ConnectFailed;
            if let Some(session) = &mut slot.session {
                session.refused(&error, &mut self.service);
            }
            self.on_closed(token);
        }
    }
}
