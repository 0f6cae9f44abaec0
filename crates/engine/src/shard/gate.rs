//! The accept gate: listeners accept connections while there are free slots.
//!
//! When all slots are in use, accepting pauses and connections wait in the kernel's backlog. Connections accepted
//! before the pause takes effect wait in a queue with room for all of them, for each of the shard's listeners (many
//! after a hand-over from a server with more shards). A closed connection opens the gate.

use std::io;
use std::time::Duration;

use super::Shard;
use super::listener::{BacklogPolicy, ListenerState, ShardListener};
use super::session::{Service, Session};
use crate::driver::accept::AcceptFailure;
use crate::driver::{Driver, SourceKind};
use crate::limits::{ACCEPT_RECHECK_INTERVAL, LISTENERS_MAX, WAITING_ACCEPTS_MAX};
use crate::token::Token;

impl<D: Driver, V: Service> Shard<D, V> {
    /// Adds a listening socket and accepts from now on. `defer_accept`: its connections arrive with their first bytes
    /// (`TCP_DEFER_ACCEPT`). The caller must run a turn afterwards. Returns the listener's number.
    pub fn listen(&mut self, socket: D::Socket, defer_accept: bool) -> io::Result<u32> {
        let number = self.listeners.len() as u32;
        if number == LISTENERS_MAX {
            return Err(io::Error::other(format!(
                "a shard has at most {LISTENERS_MAX} listeners and datagram sockets"
            )));
        }
        self.driver.listen(Token::new(number, 0), socket)?;
        let state = ListenerState::Paused;
        self.listeners.push(ShardListener {
            state,
            armed: false,
            defer_accept,
            leaves_backlog: false,
            dropped: 0,
            is_datagram_socket: false,
            is_paced: false,
            closes_when_stopped: false,
        });
        // The driver accepts with its next turn, which must not wait for another event.
        self.may_have_intents = true;
        self.resume_accepting();
        Ok(number)
    }

    /// Leaves connections in this listener's backlog to its other holders, also in
    /// [`accept_backlogs_and_close_listeners`](crate::ShardControl::accept_backlogs_and_close_listeners).
    pub fn leave_backlog(&mut self, listener: u32) {
        self.listeners[listener as usize].leaves_backlog = true;
    }

    pub(super) fn on_accepted(&mut self, listener: u32, socket: D::Accepted) {
        self.counters.accepted.add(1);
        if self.aborting.is_some() {
            return self.counters.refused_full.add(1);
        }
        if !self.waiting.is_empty() || self.slots.is_full() {
            if self.waiting.len() < self.waiting_max() {
                self.waiting.push_back((listener, socket));
            } else {
                // Dropping the socket closes it.
                self.counters.refused_full.add(1);
            }
            self.close_gate();
            return;
        }
        self.admit(listener, socket);
        if self.slots.is_full() {
            self.close_gate();
        }
    }

    fn waiting_max(&self) -> usize {
        WAITING_ACCEPTS_MAX * self.listeners.len()
    }

    fn admit(&mut self, listener: u32, socket: D::Accepted) {
        let driver = &self.driver;
        let session = self.service.accepted_from(listener, || driver.peer(&socket));
        let token = self.slots.insert(session).expect("the gate keeps a slot free");
        let defer_accept = self.listeners[listener as usize].defer_accept;
        self.update_open_counters();
        if self.driver.attach(token, socket, SourceKind::Stream, defer_accept).is_err() {
            return self.free_unattached(token);
        }
        self.call(token, Session::opened);
    }

    pub(super) fn update_open_counters(&mut self) {
        let open = u64::from(self.slots.open());
        self.counters.open.set(open);
        self.counters.open_max.set_max(open);
    }

    pub(super) fn close_gate(&mut self) {
        let mut was_open = false;
        for number in 0..self.listeners.len() {
            let listener = &mut self.listeners[number];
            if listener.state == ListenerState::Accepting {
                listener.state = ListenerState::Paused;
                was_open = true;
                self.driver.pause_accept(Token::new(number as u32, 0));
            }
        }
        if was_open {
            self.counters.gate_closed.add(1);
        }
    }

    /// Admits waiting connections and resumes accepting: a slot or a descriptor is free, or a pause is over.
    pub(super) fn resume_accepting(&mut self) {
        while !self.slots.is_full() {
            let Some((listener, socket)) = self.waiting.pop_front() else { break };
            self.admit(listener, socket);
        }
        if self.slots.is_full() {
            return;
        }
        for number in 0..self.listeners.len() {
            let listener = &mut self.listeners[number];
            if listener.state == ListenerState::Paused && !listener.armed {
                listener.state = ListenerState::Accepting;
                listener.armed = true;
                if self.now < self.recheck_until {
                    self.wheel.set(number as u32, self.now.after(ACCEPT_RECHECK_INTERVAL));
                } else {
                    self.wheel.clear(number as u32);
                }
                self.driver.accept(Token::new(number as u32, 0));
            }
        }
    }

    /// Checks every listener's backlog, now and every [`ACCEPT_RECHECK_INTERVAL`] for `span`, by restarting the accept.
    /// For listeners that other processes share or have shared: the system may wake only one of several waiting
    /// processes, and if that one stops or exits before it accepts the connection, no other one is woken. (A ring
    /// outlives its process for a moment and still receives wake-ups.)
    pub fn recheck_accept_queues(&mut self, span: Duration) {
        self.recheck_until = self.recheck_until.max(self.now.after(span));
        for number in 0..self.listeners.len() {
            self.pause_to_recheck(number);
        }
    }

    /// A listener's timer expired: its pause after an error is over, or a recheck of its backlog is due.
    pub(super) fn on_listener_timer(&mut self, number: u32) {
        let listener = &mut self.listeners[number as usize];
        if listener.state == ListenerState::Datagrams {
            listener.armed = true;
            self.driver.receive(Token::new(number, 0));
        } else {
            self.pause_to_recheck(number as usize);
            self.resume_accepting();
        }
    }

    /// Stops accepting; when the driver confirms, the listener resumes as after any pause.
    fn pause_to_recheck(&mut self, number: usize) {
        if let Some(listener) = self.listeners.get_mut(number)
            && listener.state == ListenerState::Accepting
        {
            listener.state = ListenerState::Paused;
            self.driver.pause_accept(Token::new(number as u32, 0));
        }
    }

    pub(super) fn on_accept_stopped(&mut self, number: u32, error: Option<&io::Error>, refused: u32) {
        self.counters.refused_descriptors.add(u64::from(refused));
        let listener = &mut self.listeners[number as usize];
        listener.armed = false;
        match listener.state {
            ListenerState::Stopping(backlog) => self.close_listener(number, backlog),
            ListenerState::StoppingDatagrams
            | ListenerState::SendingDatagrams
            | ListenerState::Closing
            | ListenerState::Closed => {}
            before => match error {
                // A requested stop; the gate may have opened since.
                None => self.resume_accepting(),
                // Connections that wait for a slot use the last descriptors: the gate is closed.
                Some(error) if self.slots.is_full() && AcceptFailure::is_descriptor_shortage(error) => {
                    listener.state = ListenerState::Paused;
                    self.counters.gate_closed.add(u64::from(before == ListenerState::Accepting));
                }
                Some(error) => {
                    listener.state = ListenerState::Paused;
                    // One waiting client is refused, unless the driver has already done so.
                    if refused == 0 && AcceptFailure::is_descriptor_shortage(error) {
                        let refused = self.driver.refuse_one(Token::new(number, 0));
                        self.counters.refused_descriptors.add(u64::from(refused));
                    }
                    self.counters.accept_errors.add(1);
                    self.wheel.set(number, self.now.after(self.config.accept_retry));
                }
            },
        }
    }

    /// Accepted connections without a slot, and listeners that are not closed.
    pub(super) fn pending_arrivals(&self) -> usize {
        let listeners = self.listeners.iter().filter(|listener| listener.state != ListenerState::Closed);
        self.waiting.len() + listeners.count()
    }

    /// Closes the listeners; datagram sockets stay.
    pub(super) fn close_listeners(&mut self, backlog: BacklogPolicy) {
        let mut idle = Vec::new();
        for number in 0..self.listeners.len() as u32 {
            let listener = &mut self.listeners[number as usize];
            let backlog = if listener.leaves_backlog { BacklogPolicy::Leave } else { backlog };
            match listener.state {
                ListenerState::Accepting | ListenerState::Paused if listener.armed => {
                    listener.state = ListenerState::Stopping(backlog);
                    self.driver.pause_accept(Token::new(number, 0));
                }
                ListenerState::Accepting | ListenerState::Paused => {
                    listener.state = ListenerState::Stopping(backlog);
                    idle.push((number, backlog));
                }
                ListenerState::Datagrams
                | ListenerState::StoppingDatagrams
                | ListenerState::SendingDatagrams => continue,
                ListenerState::Stopping(_) | ListenerState::Closing | ListenerState::Closed => continue,
            }
            self.wheel.clear(number);
        }
        // After all are stopped, because accepting from one may resume others.
        for (number, backlog) in idle {
            self.close_listener(number, backlog);
        }
    }

    /// Closes a listener that is not armed; with [`BacklogPolicy::Accept`] it accepts the waiting connections first, a
    /// bounded number, so that new connections cannot delay the close for ever.
    fn close_listener(&mut self, number: u32, backlog: BacklogPolicy) {
        let token = Token::new(number, 0);
        for _ in 0..WAITING_ACCEPTS_MAX {
            if backlog == BacklogPolicy::Leave || self.waiting.len() >= self.waiting_max() {
                break;
            }
            match self.driver.accept_now(token) {
                Ok(Some(socket)) => self.on_accepted(number, socket),
                // Waiting clients are refused one by one, so that they do not wait in vain.
                Err(error) if AcceptFailure::is_descriptor_shortage(&error) => {
                    if !self.driver.refuse_one(token) {
                        break;
                    }
                    self.counters.refused_descriptors.add(1);
                }
                Ok(None) | Err(_) => break,
            }
        }
        self.listeners[number as usize].state = ListenerState::Closing;
        self.driver.close(token);
    }
}
