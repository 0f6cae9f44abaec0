//! How a thread that has events of its sockets asks for events of other sources.
//!
//! Tcl 8.6 answers a wait of zero by a round trip to its notifier's thread, which costs more than an exchange on a
//! socket; to skip the wait costs nothing, but files and pipes are not asked. So they are asked in every cycle of the
//! event loop as long as they have events, which keeps turns fair, and every [`ASK_INTERVAL`] otherwise. The notifier
//! of Tcl 9 needs one system call, so it is always asked.

use std::cell::Cell;
use std::time::Duration;

use stilling_engine::Time;

use crate::tcl;

/// Time in which sources without events are not asked.
const ASK_INTERVAL: Duration = Duration::from_millis(1);

/// Cycles in which other sources are asked after they had an event.
const CYCLES_AFTER_EVENT: u32 = 64;

#[derive(Debug)]
pub(crate) struct PollPolicy {
    cycles_left: Cell<u32>,
    asked_at: Cell<Time>,
    asks_now: Cell<bool>,
}

impl PollPolicy {
    pub(crate) fn new() -> Self {
        PollPolicy {
            cycles_left: Cell::new(CYCLES_AFTER_EVENT),
            asked_at: Cell::new(Time::ZERO),
            asks_now: Cell::new(false),
        }
    }

    /// Ends the thread's coming wait at once, since there are events.
    pub(crate) fn end_wait(&self, now: Time) {
        let asks =
            tcl::is_tcl_9() || self.cycles_left.get() > 0 || now.since(self.asked_at.get()) >= ASK_INTERVAL;
        self.asks_now.set(asks);
        if asks {
            self.asked_at.set(now);
            tcl::limit_wait(Duration::ZERO);
        } else {
            tcl::skip_wait();
        }
    }

    /// The wait is over: learns whether other sources had events.
    pub(crate) fn wait_ended(&self) {
        if self.asks_now.replace(false) && !tcl::is_tcl_9() {
            let left = if tcl::has_other_events() {
                CYCLES_AFTER_EVENT
            } else {
                self.cycles_left.get().saturating_sub(1)
            };
            self.cycles_left.set(left);
        }
    }
}
