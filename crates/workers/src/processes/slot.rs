//! The permission to ask a process one thing, and to have a connection to it.

use std::sync::Arc;

use stilling_ring::Time;

use super::door::Door;

/// The permission to ask the process one thing: one of its slots. Dropping it gives it back.
#[derive(Debug)]
pub struct Pass {
    door: Arc<Door>,
    life: u64,
    entered: Time,
    /// It got no answer in time.
    is_overdue: bool,
    has_left: bool,
}

/// The permission to have a connection to a process, of which there are as many as slots. Dropping it gives it back.
#[derive(Debug)]
pub struct Line {
    door: Arc<Door>,
}

/// The wish of a pass for a line while others keep them all. Dropping it takes it back.
#[derive(Debug)]
pub struct Claim {
    door: Arc<Door>,
}

impl Pass {
    pub(super) fn new(door: Arc<Door>, life: u64, entered: Time) -> Pass {
        Pass { door, life, entered, is_overdue: false, has_left: false }
    }

    /// The number of the process, from 0 on.
    #[must_use]
    pub fn process(&self) -> usize {
        self.door.number
    }

    /// Which life of the process this is for: another number means that no connection of before is any good.
    #[must_use]
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Whether this life takes no requests any more: it has died, is condemned or is to be replaced.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.door.life() != self.life
    }

    /// Room for a connection. `None`: others keep as many as there may be; see [`claim`](Pass::claim).
    #[must_use]
    pub fn line(&self) -> Option<Line> {
        self.door.try_connect().then(|| Line { door: Arc::clone(&self.door) })
    }

    /// Asks those who keep a connection that they do not use to close one. They knock when they have.
    #[must_use]
    pub fn claim(&self) -> Claim {
        self.door.claim();
        Claim { door: Arc::clone(&self.door) }
    }

    /// Prints a line about the process, among what it prints itself. Does not wait: with no room it is not printed.
    pub fn say(&self, text: &str) {
        self.door.say(text);
    }

    /// Something has come from the process: whatever else is late, it does not hang. Takes a lock only while there is
    /// a suspicion that it does.
    pub fn heard(&self) {
        self.door.hear(self.life);
    }

    /// Gives it back: the request is done, at `now`.
    pub fn leave(mut self, now: Time) {
        self.door.hall().tally.served(now.since(self.entered));
        self.go();
    }

    /// Gives it back unused: the request goes back to the queue.
    pub fn leave_unused(mut self) {
        debug_assert!(!self.is_overdue, "what was late has been asked");
        self.has_left = true;
        crate::counters::count(&self.door.hall().tally.lost);
        self.door.come_out();
    }

    /// There was no answer in time. The process is condemned if no request would be lost with it that is not late, too,
    /// or if a request before this one was late and nothing has been [heard](Pass::heard) since. Returns whether it
    /// is; once. The slot stays taken, because the process may work on the request still, until this is given back.
    /// Takes a lock for a moment.
    pub fn be_late(&mut self, now: Time) -> bool {
        !std::mem::replace(&mut self.is_overdue, true) && self.door.be_late(self.life, self.entered, now)
    }

    /// Whether there was no answer in time.
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        self.is_overdue
    }

    /// The process is of no use any more: it is killed, and started again.
    pub fn condemn(&self) {
        self.door.condemn(self.life);
    }

    fn go(&mut self) {
        if !std::mem::replace(&mut self.has_left, true) {
            crate::counters::count(&self.door.hall().tally.done);
            if self.is_overdue {
                self.door.leave_overdue(self.life);
            } else {
                self.door.leave(self.life);
            }
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.go();
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.door.disconnect();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.door.unclaim();
    }
}
