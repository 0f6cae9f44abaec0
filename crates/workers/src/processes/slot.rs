//! One request at a time to one process: what a pool's thread brings with it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::door::Door;
use crate::seat::Seat;

/// A slot of a process; see the [module](super).
#[derive(Debug)]
pub struct ProcessSlot {
    door: Arc<Door>,
}

/// The permission to ask the process one thing. Dropping it gives it back.
#[derive(Debug)]
pub struct Pass {
    door: Arc<Door>,
    life: u64,
    entered: Instant,
    has_left: bool,
}

impl ProcessSlot {
    pub(super) fn new(door: Arc<Door>) -> ProcessSlot {
        ProcessSlot { door }
    }

    /// The number of the process, from 0 on.
    #[must_use]
    pub fn number(&self) -> usize {
        self.door.number
    }

    /// Waits until the process takes requests, but not beyond `until`. `None`: it takes none.
    #[must_use]
    pub fn enter(&self, until: Instant) -> Option<Pass> {
        let life = self.door.enter(until)?;
        Some(Pass { door: Arc::clone(&self.door), life, entered: Instant::now(), has_left: false })
    }
}

impl Pass {
    /// Which life of the process this is for: another number means that no connection of before is any good.
    #[must_use]
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Waits for the supervisor to hear of the process's death, for those who have reason to believe in it, at most
    /// for `patience`. Returns whether it was right. Who asks the process again without waiting may meet one that is
    /// half gone.
    #[must_use]
    pub fn has_died(&self, patience: Duration) -> bool {
        self.door.wait_for_close(self.life, Instant::now() + patience)
    }

    /// Prints a line about the process, among what it prints itself. Does not wait: with no room it is not printed.
    pub fn say(&self, text: &str) {
        self.door.say(text);
    }

    /// Something has come from the process: whatever else is late, it does not hang.
    pub fn heard(&self) {
        self.door.hear(self.life);
    }

    /// Gives it back because there was no answer in time. The process is condemned if no other request would be lost
    /// with it, or if a request before this one was late, too, and nothing has been [heard](Pass::heard) since.
    /// Returns whether it is.
    #[must_use]
    pub fn leave_late(mut self) -> bool {
        self.has_left = true;
        self.door.leave_late(self.life, self.entered, Instant::now())
    }

    /// The process is of no use any more: it is killed, and started again.
    pub fn condemn(&self) {
        self.door.condemn(self.life);
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if !self.has_left {
            self.door.leave(self.life);
        }
    }
}

impl Seat for ProcessSlot {
    fn wait(&mut self) {
        self.door.wait(None);
    }

    fn is_ready(&self) -> bool {
        self.door.answers()
    }
}
