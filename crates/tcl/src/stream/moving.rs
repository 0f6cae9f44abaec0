//! Streams that move to another thread.

use std::rc::Rc;

use super::{Stream, StreamState};
use crate::thread_sockets::{SocketChannel, ThreadSockets};
use crate::trace::TraceEvent;

impl Stream {
    pub(super) fn leave_thread(&self) {
        crate::fcopy::end_copies_of(self);
        self.trace(TraceEvent::Leave, String::new);
        if self.readiness.key().is_none() {
            // The thread could not take over the socket.
            return;
        }
        let sockets = self.sockets();
        if self.is_connecting() {
            sockets.turn_until_done();
        }
        let state = self.state.replace(StreamState::Idle);
        self.state.replace(match state {
            StreamState::Connected(socket) => StreamState::Moving(sockets.detach(socket).ok(), None),
            StreamState::Connecting(socket, attempts) => {
                sockets.close(socket);
                StreamState::Moving(None, Some(Self::take_attempts(attempts)))
            }
            StreamState::LookingUp(connect) => StreamState::LookingUp(connect.without_lookup()),
            other => other,
        });
        self.leave();
    }

    pub(super) fn enter_thread(self: Rc<Self>) {
        if self.readiness.key().is_some() {
            // A new channel: its socket is here already.
            return;
        }
        let Ok(sockets) = ThreadSockets::get() else { return self.on_lost() };
        self.readiness.enter(sockets.insert(SocketChannel::Stream(Rc::clone(&self))));
        crate::stats::socket_opened();
        self.trace(TraceEvent::Enter, String::new);
        let state = self.state.replace(StreamState::Idle);
        match state {
            StreamState::Moving(Some(descriptor), _) => match sockets.attach(descriptor, self.key()) {
                Ok(socket) => {
                    if self.is_shared.get() {
                        sockets.share_descriptor(socket);
                    }
                    self.state.replace(StreamState::Connected(socket));
                }
                Err(_) => self.on_lost(),
            },
            StreamState::Moving(None, Some(attempts)) => self.try_pairs(attempts, libc::EHOSTUNREACH),
            StreamState::Moving(None, None) => self.on_lost(),
            StreamState::LookingUp(connect) => self.look_up_again(connect, &sockets),
            other => {
                self.state.replace(other);
            }
        }
        if self.channel.get().is_some_and(|channel| channel.output_buffered() > 0) {
            // Tcl does not go on with a flush in the background by itself: it has cleared its interest.
            self.resumes_flush.set(true);
            self.readiness.queue_event();
        }
        self.interest_changed();
    }

    /// The socket could not be moved to another thread: reads and writes report that.
    fn on_lost(&self) {
        self.trace(TraceEvent::Error, || "lost in the move to another thread".into());
        self.state.replace(StreamState::Closed);
    }

    /// Makes a lost channel known to the thread, if that could not have sockets before, so that its scripts run.
    pub(super) fn enter_when_lost(self: &Rc<Self>) {
        let is_lost = self.readiness.key().is_none() && matches!(*self.state.borrow(), StreamState::Closed);
        if is_lost
            && !self.is_closing.get()
            && let Ok(sockets) = ThreadSockets::get()
        {
            self.readiness.enter(sockets.insert(SocketChannel::Stream(Rc::clone(self))));
            crate::stats::socket_opened();
        }
    }
}
