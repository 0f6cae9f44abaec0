//! The steps of a hand-over and their effect on both lifecycles: no sockets, no time. A server's hand-over thread
//! drives them by messages, a simulation by its events.

use std::sync::Arc;

use stilling_ring::planted;

use crate::lifecycle::{HandoverStage, Lifecycle};

/// A message of the predecessor, or the end of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredecessorEvent {
    /// The predecessor waits for `taken`.
    PathGranted,
    /// The predecessor has closed its streams and reads no more datagrams.
    Released,
    /// The predecessor's process has ended.
    Ended,
}

/// What the successor does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuccessionAction {
    /// Take the path, listen on the remaining addresses, and call [`Succession::path_taken`].
    TakeOver,
    /// Open the streams, and remove the predecessor's remaining socket files.
    Open,
    /// Nothing.
    Nothing,
    /// End: the event is not valid in this step.
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SuccessionStep {
    /// `ready` is about to be sent, or has been.
    Ready,
    ClaimingPath,
    PathTaken,
    /// The predecessor has released streams and sockets.
    Released,
}

/// The steps of a server that takes over from its predecessor.
#[derive(Debug)]
pub struct Succession {
    lifecycle: Arc<Lifecycle>,
    step: SuccessionStep,
}

impl Succession {
    /// Prepares the lifecycle of a server with a predecessor, before anything else uses it. A server that
    /// `has_workers` accepts nothing before [`begin_overlap`](Succession::begin_overlap).
    pub fn begin(lifecycle: &Lifecycle, has_workers: bool) {
        lifecycle.begin_succession(if has_workers {
            HandoverStage::Preparing
        } else {
            HandoverStage::Overlapping
        });
        lifecycle.set_listeners_shared(true);
    }

    /// A succession, while the predecessor serves.
    pub fn new(lifecycle: Arc<Lifecycle>) -> Succession {
        Succession { lifecycle, step: SuccessionStep::Ready }
    }

    /// The server can answer requests now: both servers serve until the predecessor drains.
    pub fn begin_overlap(&self) {
        self.lifecycle.reach(HandoverStage::Overlapping);
    }

    /// Handles a message of the predecessor, or its end.
    pub fn receive(&mut self, event: PredecessorEvent) -> SuccessionAction {
        match (self.step, event) {
            (SuccessionStep::Ready, PredecessorEvent::PathGranted | PredecessorEvent::Ended) => {
                self.step = SuccessionStep::ClaimingPath;
                SuccessionAction::TakeOver
            }
            (SuccessionStep::PathTaken, PredecessorEvent::Released | PredecessorEvent::Ended) => {
                self.step = SuccessionStep::Released;
                self.lifecycle.reach(HandoverStage::Released);
                SuccessionAction::Open
            }
            (SuccessionStep::Released, PredecessorEvent::Ended) => SuccessionAction::Nothing,
            _ => SuccessionAction::Fail,
        }
    }

    /// Whether the predecessor has released streams and sockets, or there was none.
    pub(super) fn is_over(&self) -> bool {
        self.lifecycle.has_reached(HandoverStage::Released)
    }

    /// The path is this server's: `taken` may be sent.
    pub fn path_taken(&mut self) {
        self.step = SuccessionStep::PathTaken;
        self.lifecycle.reach(HandoverStage::PathTaken);
    }
}

/// The steps of a server that has been replaced, until its end.
#[derive(Debug)]
pub struct PredecessorDrain {
    lifecycle: Arc<Lifecycle>,
    has_released: bool,
}

impl PredecessorDrain {
    /// The successor has sent `taken`: the server drains.
    pub fn begin(lifecycle: Arc<Lifecycle>) -> PredecessorDrain {
        lifecycle.hand_over();
        PredecessorDrain { lifecycle, has_released: false }
    }

    /// Whether to send `released` now; true once.
    pub fn poll_released(&mut self) -> bool {
        let holds = self.lifecycle.holds_streams() && !planted!("early release");
        !holds && !std::mem::replace(&mut self.has_released, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::{LifecyclePhase, WallClock};

    fn new_lifecycle() -> Arc<Lifecycle> {
        Arc::new(Lifecycle::new(Vec::new(), WallClock::System))
    }

    /// Row 4.37: no step is skipped, and the end of the predecessor replaces its messages.
    #[test]
    fn a_successor_takes_over_before_it_opens_after_any_messages() {
        for (first, second) in [
            (PredecessorEvent::PathGranted, PredecessorEvent::Released),
            (PredecessorEvent::PathGranted, PredecessorEvent::Ended),
            (PredecessorEvent::Ended, PredecessorEvent::Ended),
        ] {
            let lifecycle = new_lifecycle();
            Succession::begin(&lifecycle, false);
            let mut succession = Succession::new(Arc::clone(&lifecycle));
            assert_eq!(succession.receive(PredecessorEvent::Released), SuccessionAction::Fail);
            assert_eq!(succession.receive(first), SuccessionAction::TakeOver);
            assert!(!lifecycle.has_reached(HandoverStage::PathTaken));
            succession.path_taken();
            assert!(
                lifecycle.has_reached(HandoverStage::PathTaken)
                    && !lifecycle.has_reached(HandoverStage::Released)
            );
            assert_eq!(succession.receive(second), SuccessionAction::Open);
            assert!(lifecycle.has_reached(HandoverStage::Released));
            assert_eq!(succession.receive(PredecessorEvent::Ended), SuccessionAction::Nothing);
        }
    }

    /// Row 4.37: `released` is sent once, when the streams are closed.
    #[test]
    fn a_server_that_was_succeeded_drains_and_releases_once() {
        let lifecycle = new_lifecycle();
        lifecycle.hold_streams();
        let mut predecessor_drain = PredecessorDrain::begin(Arc::clone(&lifecycle));
        assert_eq!(lifecycle.phase(), LifecyclePhase::Draining);
        assert!(!predecessor_drain.poll_released());
        lifecycle.release_streams();
        assert!(predecessor_drain.poll_released());
        assert!(!predecessor_drain.poll_released());
    }
}
