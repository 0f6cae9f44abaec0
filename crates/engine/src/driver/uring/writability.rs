//! Waiting until a socket is writable.
//!
//! A poll of io_uring also reports the end of the peer's direction (`POLLRDHUP`), requested or not. A wait for room on a
//! socket whose peer has ended would complete at once, again and again. A multishot poll then replaces it: after its
//! first completion it reports changes only. The first one with room cancels it, and its last completion ends the wait.

use io_uring::{cqueue, opcode};

use super::Uring;
use super::completions::UringEvents;
use super::queue::{Completion, UringOp};
use super::source::ArmedOps;
use crate::driver::DriverEvent;
use crate::token::Token;

/// Events that end a wait: room, or a failure that the next send reports.
const ENDS_WAIT: i32 = (libc::POLLOUT | libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) as i32;

impl Uring {
    pub(super) fn complete_writable(
        &mut self,
        token: Token,
        completion: Completion,
        events: &mut UringEvents,
    ) {
        let Completion { result, flags, .. } = completion;
        let is_peers_end_only = result > 0 && result & ENDS_WAIT == 0;
        if cqueue::more(flags) {
            let source = self.sources.get_mut(token);
            if !is_peers_end_only && source.is_some_and(|source| source.set_mark(ArmedOps::WAIT_ENDS)) {
                self.cancel(UringOp::Writable, token);
            }
            return;
        }
        if let Some(source) = self.sources.get_mut(token) {
            source.clear_mark(ArmedOps::WAIT_ENDS);
            if is_peers_end_only && !source.closing && !source.detaching {
                let poll = |fd| opcode::PollAdd::new(fd, libc::POLLOUT as u32).multi(true).build();
                let entry = source.handle.entry(poll);
                return self.submit(&entry.user_data(UringOp::Writable.with(token)));
            }
        }
        if self.finish_operation(token, ArmedOps::WRITABLE, events) {
            events.push(DriverEvent::Writable { token });
        }
    }
}
