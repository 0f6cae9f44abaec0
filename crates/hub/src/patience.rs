//! For how long everybody waits for a disk that does not answer.
//!
//! When a stream on disk can take no more, what is handed in waits in front of the hub, in order, and publishers are slowed
//! down: nothing is lost to a disk that is slow. But behind it waits what has nothing to do with that disk: streams in memory,
//! plain messages, questions. So a disk that has not answered at all for a while is taken to hang; until it answers, its
//! streams refuse what they cannot take, as one does that is frozen, and everything else goes on.

use crate::hub::SteadyNanos;
use crate::limits::{DISK_LOOK_EVERY_NS, DISK_PATIENCE_NS};

/// The waiting so far.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    wait: Option<Wait>,
}

#[derive(Debug)]
struct Wait {
    waited_ns: u64,
    looked_ns: SteadyNanos,
}

impl Patience {
    /// Something could not be taken before the disk has written.
    pub(crate) fn begin(&mut self, now_ns: SteadyNanos) {
        self.wait.get_or_insert(Wait { waited_ns: 0, looked_ns: now_ns });
    }

    /// The disk has answered.
    pub(crate) fn end(&mut self) {
        self.wait = None;
    }

    /// Lets time pass. What passed while nobody looked, because the process stood still, was no waiting.
    pub(crate) fn look(&mut self, now_ns: SteadyNanos) {
        if let Some(wait) = &mut self.wait {
            wait.waited_ns += now_ns.saturating_sub(wait.looked_ns).min(2 * DISK_LOOK_EVERY_NS);
            wait.looked_ns = now_ns;
        }
    }

    /// Whether somebody waits.
    pub(crate) fn is_tried(&self) -> bool {
        self.wait.is_some()
    }

    /// Whether it has been too long.
    pub(crate) fn is_over(&self) -> bool {
        self.wait.as_ref().is_some_and(|wait| wait.waited_ns >= DISK_PATIENCE_NS)
    }
}
