//! Receives that find no buffer: they wait in a list, the oldest first, and go on when buffers come back.
//!
//! Nobody looks for one in that list, which would make the end of thousands of waiting connections quadratic: a source
//! knows whether it waits ([`ArmedOps::WAITING`](super::source::ArmedOps::WAITING)), and what has been taken back or closed
//! meanwhile is passed over when its turn comes.

use super::Uring;
use super::completions::UringEvents;
use super::source::UringSource;
use crate::driver::DriverEvent;

impl Uring {
    /// Receives that waited for a buffer go on, the oldest first. True if more could, in the next turn.
    pub(super) fn rearm_starved(&mut self) -> bool {
        // More than there are buffers, because not all will take one; those that find none come back here.
        let mut room = 2 * self.buffers.free();
        if room == 0 {
            return false;
        }
        while room > 0
            && let Some(token) = self.starved.pop_front()
        {
            // One that was taken back meanwhile is not looked for in the list: it is passed over here.
            if self.sources.get_mut(token).is_some_and(UringSource::clear_waiting) {
                self.arm_receive(token);
                room -= 1;
            }
        }
        !self.starved.is_empty()
    }

    /// Answers the cancels of receives that nothing was in flight of.
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
