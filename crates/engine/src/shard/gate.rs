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
#[cfg(target_os = "linux")]
use crate::listen_watch::WatchedListener;
use crate::token::Token;

impl<D: Driver, V: Service> Shard<D, V> {
    /// Adds a listening socket and accepts from now on. `defer_accept`: its connections arrive with their first bytes
    /// (`TCP_DEFER_ACCEPT`). The caller must run a turn afterwards. Returns the listener's number: the lowest unused one,
    /// or that of a listener that is closed.
    ///
    /// # Errors
    /// `QuotaExceeded`: there are [`LISTENERS_MAX`] listeners and datagram sockets. Others: the driver cannot use the socket.
    pub fn listen(&mut self, socket: D::Socket, defer_accept: bool) -> io::Result<u32> {
        let listener = self.listen_paused(socket, defer_accept)?;
        self.listeners[listener].is_held = false;
        // The driver accepts with its next turn, which must not wait for another event.
        self.may_have_intents = true;
        self.resume_accepting();
        Ok(listener)
    }

    /// As [`listen`](Self::listen), but accepts from [`resume_listener`](Self::resume_listener) on.
    ///
    /// # Errors
    /// As for `listen`.
    pub fn listen_paused(&mut self, socket: D::Socket, defer_accept: bool) -> io::Result<u32> {
        let token = self.next_listener()?;
        self.driver.listen(token, socket)?;
        self.listeners.insert(token, ShardListener::of_streams(defer_accept));
        self.listeners[token.index()].is_held = true;
        Ok(token.index())
    }

    /// The token of the next listener or datagram socket.
    pub(super) fn next_listener(&self) -> io::Result<Token> {
        self.listeners.next_token().ok_or_else(|| {
            let text = format!("a shard has at most {LISTENERS_MAX} listeners and datagram sockets");
            io::Error::new(io::ErrorKind::QuotaExceeded, text)
        })
    }

    /// Leaves connections in this listener's backlog to its other holders, also in
    /// [`accept_backlogs_and_close_listeners`](crate::ShardControl::accept_backlogs_and_close_listeners).
    pub fn leave_backlog(&mut self, listener: u32) {
        self.listeners[listener].leaves_backlog = true;
    }

    /// Keeps the registration of this listener until the shard closes the listener, and drops it before.
    #[cfg(target_os = "linux")]
    pub fn keep_watched(&mut self, listener: u32, watched: WatchedListener) {
        self.listeners[listener].watched = Some(watched);
    }

    pub(super) fn on_accepted(&mut self, listener: u32, socket: D::Accepted) {
        self.counters.accepted.add(1);
        if self.aborting.is_some() || self.listeners[listener].drops_accepted {
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
        WAITING_ACCEPTS_MAX * self.listeners.end() as usize
    }

    fn admit(&mut self, listener: u32, socket: D::Accepted) {
        let driver = &self.driver;
        let session = self.service.accepted_from(listener, || driver.peer(&socket));
        let token = self.slots.insert(session).expect("the gate keeps a slot free");
        let defer_accept = self.listeners[listener].defer_accept;
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
        if self.listeners.counts().accepting == 0 {
            return;
        }
        for number in 0..self.listeners.end() {
            self.pause_accepting(number);
        }
        self.counters.gate_closed.add(1);
    }

    /// Stops accepting from a listener; it resumes when the driver has confirmed that and the gate is open.
    fn pause_accepting(&mut self, number: u32) {
        if self.listeners[number].state() == ListenerState::Accepting {
            self.listeners.set_state(number, ListenerState::Paused);
            self.driver.pause_accept(self.listeners.token(number));
        }
    }

    /// Admits waiting connections and resumes accepting: a slot or a descriptor is free, or a pause is over.
    pub(super) fn resume_accepting(&mut self) {
        while !self.slots.is_full() {
            let Some((listener, socket)) = self.waiting.pop_front() else { break };
            self.admit(listener, socket);
        }
        if self.slots.is_full() || self.listeners.counts().paused == 0 {
            return;
        }
        for number in 0..self.listeners.end() {
            let listener = &mut self.listeners[number];
            if listener.state() == ListenerState::Paused && !listener.armed && !listener.is_held {
                listener.armed = true;
                self.listeners.set_state(number, ListenerState::Accepting);
                if self.now < self.recheck_until {
                    self.wheel.set(number, self.now.after(ACCEPT_RECHECK_INTERVAL));
                } else {
                    self.wheel.clear(number);
                }
                self.driver.accept(self.listeners.token(number));
            }
        }
    }

    /// Checks every listener's backlog, now and every [`ACCEPT_RECHECK_INTERVAL`] for `span`, by restarting the accept.
    /// For listeners that other processes share or have shared: the system may wake only one of several waiting
    /// processes, and if that one stops or exits before it accepts the connection, no other one is woken. (A ring
    /// outlives its process for a moment and still receives wake-ups.)
    pub fn recheck_accept_queues(&mut self, span: Duration) {
        self.recheck_until = self.recheck_until.max(self.now.after(span));
        for number in 0..self.listeners.end() {
            self.pause_accepting(number);
        }
    }

    /// A listener's timer expired: its pause after an error is over, or a recheck of its backlog is due.
    pub(super) fn on_listener_timer(&mut self, number: u32) {
        let listener = &mut self.listeners[number];
        if listener.state() == ListenerState::Datagrams {
            listener.armed = true;
            self.driver.receive(self.listeners.token(number));
        } else {
            self.pause_accepting(number);
            self.resume_accepting();
        }
    }

    pub(super) fn on_accept_stopped(&mut self, number: u32, error: Option<&io::Error>, refused: u32) {
        self.counters.refused_descriptors.add(u64::from(refused));
        let listener = &mut self.listeners[number];
        listener.armed = false;
        match listener.state() {
            ListenerState::Stopping(backlog) => self.close_stopped_listener(number, backlog),
            ListenerState::StoppingDatagrams
            | ListenerState::SendingDatagrams
            | ListenerState::Closing
            | ListenerState::Closed => {}
            before => match error {
                // A requested stop; the gate may have opened since.
                None => self.resume_accepting(),
                // Connections that wait for a slot use the last descriptors: the gate is closed.
                Some(error) if self.slots.is_full() && AcceptFailure::is_descriptor_shortage(error) => {
                    self.listeners.set_state(number, ListenerState::Paused);
                    self.counters.gate_closed.add(u64::from(before == ListenerState::Accepting));
                }
                Some(error) => {
                    self.listeners.set_state(number, ListenerState::Paused);
                    let is_shortage = AcceptFailure::is_descriptor_shortage(error);
                    self.counters.accept_errors_descriptors.add(u64::from(is_shortage));
                    // One waiting client is refused, unless the driver has already done so.
                    if refused == 0 && is_shortage {
                        let refused = self.driver.refuse_one(self.listeners.token(number));
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
        self.waiting.len() + self.listeners.counts().open
    }

    /// Closes the listeners; datagram sockets stay.
    pub(super) fn close_listeners(&mut self, backlog: BacklogPolicy) {
        let mut idle = Vec::new();
        for number in 0..self.listeners.end() {
            let listener = &self.listeners[number];
            let backlog = if listener.leaves_backlog { BacklogPolicy::Leave } else { backlog };
            match listener.state() {
                ListenerState::Accepting | ListenerState::Paused => {
                    if listener.armed {
                        self.driver.pause_accept(self.listeners.token(number));
                    } else {
                        idle.push((number, backlog));
                    }
                    self.listeners.set_state(number, ListenerState::Stopping(backlog));
                    self.wheel.clear(number);
                }
                ListenerState::Datagrams
                | ListenerState::StoppingDatagrams
                | ListenerState::SendingDatagrams
                | ListenerState::Stopping(_)
                | ListenerState::Closing
                | ListenerState::Closed => {}
            }
        }
        // After all are stopped, because accepting from one may resume others.
        for (number, backlog) in idle {
            self.close_stopped_listener(number, backlog);
        }
    }

    /// Closes a listener that is not armed; with [`BacklogPolicy::Accept`] it accepts the waiting connections first, a
    /// bounded number, so that new connections cannot delay the close for ever.
    fn close_stopped_listener(&mut self, number: u32, backlog: BacklogPolicy) {
        let token = self.listeners.token(number);
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
        self.listeners.set_state(number, ListenerState::Closing);
        self.driver.close(token);
    }
}
