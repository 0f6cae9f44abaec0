//! How a thread waits for its sockets, and asks for events of other sources.
//!
//! A thread that serves its sockets only, and whose next event is near, waits for them itself: to be woken by way of
//! the waiter would take two changes of threads. Other sources are not asked meanwhile: timers, messages of other threads
//! and files may be served up to [`SOCKET_WAIT`] late. A wait in vain, a cycle without an event of a socket, or (in Tcl
//! 8.6) an event of a file ends this for [`CYCLES_BEFORE_WAIT`] cycles. Before it sleeps, the thread asks repeatedly for
//! [`BUSY_POLL`]: a client on the same machine answers sooner than a processor falls asleep and wakes. That stops for
//! [`CYCLES_BEFORE_BUSY_POLL`] cycles after a few attempts in vain.
//!
//! Tcl 8.6 answers a wait of zero by a round trip to its notifier's thread, which costs more than an exchange on a
//! socket; to skip the wait costs nothing, but files and pipes are not asked. So they are asked in every cycle of the
//! event loop as long as they have events, which keeps turns fair, and every [`ASK_INTERVAL`] otherwise. The notifier
//! of Tcl 9 needs one system call, so it is always asked.

use std::cell::Cell;
use std::time::Duration;

use stilling_engine::Time;

use crate::tcl;

/// Longest wait for sockets alone.
pub(crate) const SOCKET_WAIT: Duration = Duration::from_millis(1);

/// Time for which a thread asks repeatedly before it sleeps.
pub(crate) const BUSY_POLL: Duration = Duration::from_micros(20);

/// Busy polls in succession without an event, after which no more are made for a while.
const BUSY_POLLS_IN_VAIN_MAX: u32 = 4;

/// Cycles without busy polls after some were in vain.
const CYCLES_BEFORE_BUSY_POLL: u32 = 256;

/// Cycles of the event loop in succession that had events of sockets, before a wait for sockets alone.
const CYCLES_BEFORE_WAIT: u32 = 64;

/// Time in which sources without events are not asked.
const ASK_INTERVAL: Duration = Duration::from_millis(1);

/// Cycles in which other sources are asked after they had an event.
const CYCLES_AFTER_EVENT: u32 = 64;

#[derive(Debug)]
pub(crate) struct PollPolicy {
    cycles_left: Cell<u32>,
    asked_at: Cell<Time>,
    asks_now: Cell<bool>,
    /// Cycles in succession that had an event of a socket.
    socket_cycles: Cell<u32>,
    /// An event of a socket was handled in this cycle.
    had_socket_event: Cell<bool>,
    busy_polls_in_vain: Cell<u32>,
    /// Cycles until the next busy poll.
    cycles_before_busy_poll: Cell<u32>,
}

impl PollPolicy {
    pub(crate) fn new() -> Self {
        PollPolicy {
            cycles_left: Cell::new(CYCLES_AFTER_EVENT),
            asked_at: Cell::new(Time::ZERO),
            asks_now: Cell::new(false),
            socket_cycles: Cell::new(0),
            had_socket_event: Cell::new(false),
            busy_polls_in_vain: Cell::new(0),
            cycles_before_busy_poll: Cell::new(0),
        }
    }

    /// An event of a socket is handled.
    pub(crate) fn socket_event(&self) {
        self.had_socket_event.set(true);
    }

    /// A cycle begins.
    pub(crate) fn begin_cycle(&self) {
        let had_event = self.had_socket_event.replace(false);
        self.socket_cycles.set(if had_event { self.socket_cycles.get().saturating_add(1) } else { 0 });
    }

    /// Whether the thread may wait for sockets alone, for [`SOCKET_WAIT`].
    pub(crate) fn may_wait_for_sockets(&self) -> bool {
        self.socket_cycles.get() >= CYCLES_BEFORE_WAIT
    }

    /// Whether the thread may ask repeatedly before it sleeps, for [`BUSY_POLL`].
    pub(crate) fn may_poll_busily(&self) -> bool {
        let cycles = self.cycles_before_busy_poll.get();
        self.cycles_before_busy_poll.set(cycles.saturating_sub(1));
        cycles == 0
    }

    /// A busy poll is over.
    pub(crate) fn polled_busily(&self, has_event: bool) {
        let in_vain = if has_event { 0 } else { self.busy_polls_in_vain.get() + 1 };
        self.busy_polls_in_vain.set(in_vain % BUSY_POLLS_IN_VAIN_MAX);
        if in_vain == BUSY_POLLS_IN_VAIN_MAX {
            self.cycles_before_busy_poll.set(CYCLES_BEFORE_BUSY_POLL);
        }
    }

    /// A wait for sockets alone was in vain.
    pub(crate) fn wait_was_in_vain(&self) {
        self.socket_cycles.set(0);
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
            let has_other = tcl::has_other_events();
            let left = if has_other { CYCLES_AFTER_EVENT } else { self.cycles_left.get().saturating_sub(1) };
            self.cycles_left.set(left);
            if has_other {
                self.socket_cycles.set(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_cycles(count: u32) -> PollPolicy {
        let policy = PollPolicy::new();
        for _ in 0..count {
            policy.socket_event();
            policy.begin_cycle();
        }
        policy
    }

    #[test]
    fn only_a_thread_that_serves_sockets_waits_for_them_alone() {
        assert!(!after_cycles(CYCLES_BEFORE_WAIT - 1).may_wait_for_sockets());
        let policy = after_cycles(CYCLES_BEFORE_WAIT);
        assert!(policy.may_wait_for_sockets());
        // A cycle without an event of a socket: another source is active.
        policy.begin_cycle();
        assert!(!policy.may_wait_for_sockets());
        let policy = after_cycles(CYCLES_BEFORE_WAIT);
        policy.wait_was_in_vain();
        assert!(!policy.may_wait_for_sockets());
    }

    #[test]
    fn busy_polls_in_vain_stop_for_a_while() {
        let policy = PollPolicy::new();
        for _ in 0..BUSY_POLLS_IN_VAIN_MAX {
            assert!(policy.may_poll_busily());
            policy.polled_busily(false);
        }
        let pauses = (0..2 * CYCLES_BEFORE_BUSY_POLL).take_while(|_| !policy.may_poll_busily()).count();
        assert_eq!(pauses as u32, CYCLES_BEFORE_BUSY_POLL);
        // One in time begins the count anew.
        policy.polled_busily(false);
        policy.polled_busily(true);
        for _ in 0..BUSY_POLLS_IN_VAIN_MAX {
            assert!(policy.may_poll_busily());
            policy.polled_busily(false);
        }
        assert!(!policy.may_poll_busily());
    }
}
