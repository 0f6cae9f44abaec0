//! Receives that find no buffer: they wait in a list, oldest first, and continue when buffers are released.
//!
//! Removing a cancelled or closed receive from the list would make closing thousands of connections quadratic. Instead
//! each source records whether it waits ([`ArmedOps::WAITING`](super::source::ArmedOps::WAITING)), and other entries
//! are skipped.

use super::Uring;
use super::completions::UringEvents;
use super::source::UringSource;
use crate::driver::DriverEvent;

impl Uring {
    /// Continues receives that waited for a buffer, oldest first. Returns whether more could continue in the next turn.
    pub(super) fn rearm_starved(&mut self) -> bool {
        // More receives than buffers, because not all of them need one; those that find none return to the list.
        let mut room = 2 * self.buffers.free();
        if room == 0 {
            return false;
        }
        while room > 0
            && let Some(token) = self.starved.pop_front()
        {
            if self.sources.get_mut(token).is_some_and(UringSource::clear_waiting) {
                self.arm_receive(token);
                room -= 1;
            }
        }
        !self.starved.is_empty()
    }

    /// Reports the cancellation of receives that waited for a buffer. Returns whether there were any.
    pub(super) fn report_cancelled(&mut self, events: &mut UringEvents) -> bool {
        let before = events.len();
        for token in self.cancelled.drain(..) {
            if self.sources.get_mut(token).is_some_and(|source| !source.closing) {
                events.push(DriverEvent::ReceiveCancelled { token });
            }
        }
        events.len() > before
    }
}
