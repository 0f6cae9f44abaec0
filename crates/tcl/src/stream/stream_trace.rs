//! The events of a stream for `stilling::trace`.

use std::os::fd::BorrowedFd;

use super::{ConnectPair, Stream, StreamState};
use crate::addresses::LookupError;
use crate::options::tcp_info;
use crate::trace::{self, TraceEvent};

impl ConnectPair {
    pub(super) fn text(&self) -> String {
        match self.from.ip().is_unspecified() && self.from.port() == 0 {
            true => format!("to {}", self.to),
            false => format!("to {} from {}", self.to, self.from),
        }
    }
}

impl Stream {
    pub(super) fn trace(&self, event: TraceEvent, detail: impl FnOnce() -> String) {
        if trace::is_on() && self.is_traced.get() {
            trace::record(event, self.channel.get(), detail);
        }
    }

    pub(super) fn trace_connect_failed(&self, pair: Option<ConnectPair>, error: i32) {
        self.trace(TraceEvent::ConnectFailed, || {
            let attempt = pair.map_or_else(String::new, |pair| format!("{}: ", pair.text()));
            format!("{attempt}{}", LookupError(error).text())
        });
    }

    /// The script, an interpreter or Tcl closes the channel.
    pub(super) fn trace_close(&self) {
        self.trace(TraceEvent::Close, || {
            let text = match &*self.state.borrow() {
                &StreamState::Connected(socket) => {
                    self.sockets().with_descriptor(socket, tcp_end).unwrap_or("connected")
                }
                StreamState::Connecting(..) => "while connecting",
                StreamState::LookingUp(_) => "during the look-up of its host",
                StreamState::Failed(_) => "the connect had failed",
                StreamState::Idle | StreamState::Moving(..) => "between two threads",
                StreamState::Closed => "the socket was lost",
            };
            text.into()
        });
    }
}

/// The end of a connection as far as TCP knows.
fn tcp_end(descriptor: BorrowedFd<'_>) -> &'static str {
    // Of linux/tcp.h.
    const ESTABLISHED: u8 = 1;
    const CLOSED: u8 = 7;
    const CLOSE_WAIT: u8 = 8;
    match tcp_info(descriptor).map(|info| info.tcpi_state) {
        Ok(ESTABLISHED) => "by this side",
        Ok(CLOSE_WAIT) => "the peer had ended",
        Ok(CLOSED) => "the connection had ended or was reset",
        Ok(_) => "after a half-close",
        Err(_) => "connected",
    }
}
