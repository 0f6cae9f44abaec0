//! The steps of a hand-over as they change the life of both servers: no sockets, no time. The thread of a server drives them
//! by messages, a simulation by its events.

use std::sync::Arc;

use stilling_ring::planted;

use crate::lifecycle::{Lifecycle, Stage};

/// What the predecessor says, or the end of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredecessorEvent {
    /// It waits for `taken`.
    Yours,
    /// It has sealed its streams, and reads no datagrams any more.
    Released,
    /// Its process has ended.
    Ended,
}

/// What the successor does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuccessionAction {
    /// Takes the path, listens on what it has opened besides, and calls [`Succession::taken`].
    TakeOver,
    /// Forgets the predecessor's files: the streams may be opened.
    Open,
    /// Nothing.
    Nothing,
    /// Ends: nothing of that kind is said at this step.
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SuccessionStep {
    /// `ready` is about to be said, or has been.
    Ready,
    /// It may take the path.
    Taking,
    /// It is the server.
    Alone,
    /// The predecessor holds nothing any more.
    Released,
}

/// The way of a server to its predecessor's place.
#[derive(Debug)]
pub struct Succession {
    lifecycle: Arc<Lifecycle>,
    step: SuccessionStep,
}

impl Succession {
    /// Called before anything else uses the lifecycle of a server with a predecessor. One that `has_workers` to wait for
    /// accepts nothing before [`serve_beside`](Succession::serve_beside).
    pub fn begin(lifecycle: &Lifecycle, has_workers: bool) {
        lifecycle.begin_succession(if has_workers { Stage::Before } else { Stage::Beside });
        lifecycle.accompany(true);
    }

    /// The succession of a server whose predecessor serves.
    pub fn new(lifecycle: Arc<Lifecycle>) -> Succession {
        Succession { lifecycle, step: SuccessionStep::Ready }
    }

    /// Requests could be answered now.
    pub fn serve_beside(&self) {
        self.lifecycle.reach(Stage::Beside);
    }

    /// The predecessor has said something, or has ended.
    pub fn receive(&mut self, event: PredecessorEvent) -> SuccessionAction {
        match (self.step, event) {
            (SuccessionStep::Ready, PredecessorEvent::Yours | PredecessorEvent::Ended) => {
                self.step = SuccessionStep::Taking;
                SuccessionAction::TakeOver
            }
            (SuccessionStep::Alone, PredecessorEvent::Released | PredecessorEvent::Ended) => {
                self.step = SuccessionStep::Released;
                self.lifecycle.reach(Stage::Released);
                SuccessionAction::Open
            }
            (SuccessionStep::Released, PredecessorEvent::Ended) => SuccessionAction::Nothing,
            _ => SuccessionAction::Fail,
        }
    }

    /// Whether the predecessor holds nothing any more, or there was none.
    pub(super) fn is_over(&self) -> bool {
        self.lifecycle.has_reached(Stage::Released)
    }

    /// The path is this server's: `taken` may be said.
    pub fn taken(&mut self) {
        self.step = SuccessionStep::Alone;
        self.lifecycle.reach(Stage::Alone);
    }
}

/// The way of a server that has been succeeded to its end.
#[derive(Debug)]
pub struct Retirement {
    lifecycle: Arc<Lifecycle>,
    has_released: bool,
}

impl Retirement {
    /// The successor has said `taken`: the server drains.
    pub fn begin(lifecycle: Arc<Lifecycle>) -> Retirement {
        lifecycle.hand_over();
        Retirement { lifecycle, has_released: false }
    }

    /// Whether `released` is to be said now; that is so once.
    pub fn releases(&mut self) -> bool {
        let holds = self.lifecycle.holds_streams() && !planted!("early release");
        !holds && !std::mem::replace(&mut self.has_released, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::{Calendar, Phase};

    fn life() -> Arc<Lifecycle> {
        Arc::new(Lifecycle::new(Vec::new(), Calendar::System))
    }

    /// Row 4.37: no step of a hand-over is left out, and the end of the predecessor stands for what it would have said.
    #[test]
    fn a_successor_takes_over_before_it_opens_whatever_it_hears() {
        for (first, second) in [
            (PredecessorEvent::Yours, PredecessorEvent::Released),
            (PredecessorEvent::Yours, PredecessorEvent::Ended),
            (PredecessorEvent::Ended, PredecessorEvent::Ended),
        ] {
            let lifecycle = life();
            Succession::begin(&lifecycle, false);
            let mut succession = Succession::new(Arc::clone(&lifecycle));
            assert_eq!(succession.receive(PredecessorEvent::Released), SuccessionAction::Fail);
            assert_eq!(succession.receive(first), SuccessionAction::TakeOver);
            assert!(!lifecycle.has_reached(Stage::Alone));
            succession.taken();
            assert!(lifecycle.has_reached(Stage::Alone) && !lifecycle.has_reached(Stage::Released));
            assert_eq!(succession.receive(second), SuccessionAction::Open);
            assert!(lifecycle.has_reached(Stage::Released));
            assert_eq!(succession.receive(PredecessorEvent::Ended), SuccessionAction::Nothing);
        }
    }

    /// Row 4.37: `released` is said once, when the streams are closed.
    #[test]
    fn a_server_that_was_succeeded_drains_and_releases_once() {
        let lifecycle = life();
        lifecycle.hold_streams();
        let mut retirement = Retirement::begin(Arc::clone(&lifecycle));
        assert_eq!(lifecycle.phase(), Phase::Draining);
        assert!(!retirement.releases());
        lifecycle.release_streams();
        assert!(retirement.releases());
        assert!(!retirement.releases());
    }
}
