//! Connects whose host name is looked up in the background, and options that are set before a connection is open.

use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

use super::{ConnectAttempts, Stream, StreamState};
use crate::dialect::Dialect;
use crate::lookup::{HostQuery, Lookup, LookupOutcome, LookupRefusal, outcome_text};
use crate::options::{SocketOption, set_switch};
use crate::thread_sockets::ThreadSockets;
use crate::trace::TraceEvent;

/// Switches for a connection that is not open: each attempt has a socket of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlySwitches {
    keep_alive: bool,
    /// The engine switches Nagle's algorithm off for outgoing connections; Tcl's default is on.
    nagle: bool,
}

impl Default for EarlySwitches {
    fn default() -> Self {
        EarlySwitches { keep_alive: false, nagle: true }
    }
}

impl EarlySwitches {
    fn get(self, option: SocketOption) -> bool {
        match option {
            SocketOption::KeepAlive => self.keep_alive,
            SocketOption::NoDelay => !self.nagle,
            _ => self.nagle,
        }
    }

    fn set(&mut self, option: SocketOption, is_on: bool) {
        match option {
            SocketOption::KeepAlive => self.keep_alive = is_on,
            SocketOption::NoDelay => self.nagle = !is_on,
            _ => self.nagle = is_on,
        }
    }

    /// Sets the switches of the open connection.
    pub(super) fn apply(self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        set_switch(SocketOption::Nagle, descriptor, self.nagle)?;
        if self.keep_alive {
            set_switch(SocketOption::KeepAlive, descriptor, true)?;
        }
        Ok(())
    }
}

/// A connect that waits for the look-up of its host.
#[derive(Debug)]
pub(super) struct HostConnect {
    query: Arc<HostQuery>,
    /// `None`: on the way to another thread, which looks up again.
    lookup: Option<Lookup>,
    switches: EarlySwitches,
}

impl HostConnect {
    pub(super) fn without_lookup(mut self: Box<Self>) -> Box<Self> {
        self.lookup = None;
        self
    }
}

impl Stream {
    /// Starts a look-up in the background, and then the connect.
    pub(crate) fn look_up_and_connect(
        dialect: Dialect,
        sockets: &Rc<ThreadSockets>,
        query: HostQuery,
    ) -> Result<Rc<Self>, LookupRefusal> {
        let stream = Self::new(dialect, sockets);
        let query = Arc::new(query);
        match Lookup::start(&query, sockets.lookup_inbox(), stream.key()) {
            Ok(lookup) => {
                stream.trace(TraceEvent::LookUp, || query.host.clone());
                let connect = HostConnect { query, lookup: Some(lookup), switches: EarlySwitches::default() };
                stream.state.replace(StreamState::LookingUp(Box::new(connect)));
                Ok(stream)
            }
            Err(refusal) => {
                stream.leave();
                Err(refusal)
            }
        }
    }

    /// Looks up in the thread that the channel has moved to.
    pub(super) fn look_up_again(&self, mut connect: Box<HostConnect>, sockets: &Rc<ThreadSockets>) {
        match Lookup::start(&connect.query, sockets.lookup_inbox(), self.key()) {
            Ok(lookup) => {
                connect.lookup = Some(lookup);
                self.state.replace(StreamState::LookingUp(connect));
            }
            Err(_) => {
                self.state.replace(StreamState::Failed(libc::EAI_AGAIN));
            }
        }
    }

    /// The look-up is over.
    pub(crate) fn on_looked_up(&self, outcome: LookupOutcome) {
        let state = self.state.replace(StreamState::Idle);
        let StreamState::LookingUp(connect) = state else {
            self.state.replace(state);
            return;
        };
        self.trace(TraceEvent::LookedUp, || outcome_text(&connect.query.host, &outcome));
        let (mut pairs, error) = match outcome {
            Ok(pairs) => (pairs, libc::EHOSTUNREACH),
            Err(error) => (Vec::new(), error.0),
        };
        pairs.reverse();
        let attempts = ConnectAttempts { rest: pairs, current: None, switches: connect.switches };
        self.try_pairs(Box::new(attempts), error);
    }

    /// The value of a switch of a connection that is not open yet.
    pub(super) fn early_switch(&self, option: SocketOption) -> Option<bool> {
        match &*self.state.borrow() {
            StreamState::Connecting(_, attempts) => Some(attempts.switches.get(option)),
            StreamState::LookingUp(connect) => Some(connect.switches.get(option)),
            _ => None,
        }
    }

    /// Sets a switch of a connection that is not open yet; false: it is open, or has failed.
    pub(super) fn set_early_switch(&self, option: SocketOption, is_on: bool) -> bool {
        match &mut *self.state.borrow_mut() {
            StreamState::Connecting(_, attempts) => attempts.switches.set(option, is_on),
            StreamState::LookingUp(connect) => connect.switches.set(option, is_on),
            _ => return false,
        }
        true
    }
}
