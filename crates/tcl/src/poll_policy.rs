//! How a thread waits for events of its sockets, and when it polls the other sources of events.
//!
//! A thread whose last cycles served sockets only waits for them itself, at most [`SOCKET_WAIT`]: the waiter's thread
//! would need two context switches to wake it. Other sources are not polled meanwhile: timers, messages of other threads
//! and files may be served that much late. A wait that times out, a cycle without an event of a socket, or an event of
//! a file ends this for [`CYCLES_BEFORE_WAIT`] cycles. Before such a wait, the thread polls its sockets for
//! [`BUSY_POLL`]: a client on the same machine answers sooner than a processor goes idle and wakes. After a few
//! polls without an event there are none for [`CYCLES_BEFORE_BUSY_POLL`] cycles.
//!
//! After its last queued event, a thread collects further events of its sockets at once, without a cycle of the event
//! loop, until the cycle has lasted [`POLL_INTERVAL`], unless files have events. A cycle calls all sources, and Tcl 8.6 polls the others as below
//! when a timer is due, such as that by which Tcl calls a script again for input that it has buffered. (A server of
//! HTTP that reads line by line, with 300 clients: 55 instead of 69 us of CPU per request.)
//!
//! A wait of zero is a round trip to the notifier's thread in Tcl 8.6, which costs more than an exchange on a socket;
//! to skip the wait costs nothing, but files and pipes are not polled. So they are polled in every cycle of the event
//! loop as long as they have events, which keeps turns fair, and every [`POLL_INTERVAL`] otherwise. The notifier of
//! Tcl 9 needs one system call, so it is always polled.

use std::cell::Cell;
use std::time::Duration;

use stilling_engine::Time;

use crate::tcl;

/// Longest wait for sockets alone.
pub(crate) const SOCKET_WAIT: Duration = Duration::from_millis(1);

/// Time for which a thread polls its sockets before it sleeps.
pub(crate) const BUSY_POLL: Duration = Duration::from_micros(20);

/// Busy polls in succession without an event, after which there is a pause.
const EMPTY_BUSY_POLLS_MAX: u32 = 4;

/// Cycles of that pause.
const CYCLES_BEFORE_BUSY_POLL: u32 = 256;

/// Cycles of the event loop in succession that had events of sockets, before a wait for sockets alone.
const CYCLES_BEFORE_WAIT: u32 = 64;

/// Time between two polls of files without events.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Cycles in which files are polled after one had an event.
const CYCLES_AFTER_EVENT: u32 = 64;

#[derive(Debug)]
pub(crate) struct PollPolicy {
    /// Cycles in which files are still polled.
    cycles_left: Cell<u32>,
    /// When the cycle began.
    cycle_at: Cell<Time>,
    polled_at: Cell<Time>,
    polls_now: Cell<bool>,
    /// Cycles in succession that had an event of a socket.
    socket_cycles: Cell<u32>,
    /// An event of a socket was handled in this cycle.
    had_socket_event: Cell<bool>,
    empty_busy_polls: Cell<u32>,
    /// Cycles until the next busy poll.
    cycles_before_busy_poll: Cell<u32>,
}

impl PollPolicy {
    pub(crate) fn new() -> Self {
        PollPolicy {
            cycles_left: Cell::new(CYCLES_AFTER_EVENT),
            cycle_at: Cell::new(Time::ZERO),
            polled_at: Cell::new(Time::ZERO),
            polls_now: Cell::new(false),
            socket_cycles: Cell::new(0),
            had_socket_event: Cell::new(false),
            empty_busy_polls: Cell::new(0),
            cycles_before_busy_poll: Cell::new(0),
        }
    }

    /// An event of a socket is handled.
    pub(crate) fn socket_event(&self) {
        self.had_socket_event.set(true);
    }

    /// Whether the thread may collect events of its sockets without another cycle.
    pub(crate) fn may_stay_in_cycle(&self, now: Time) -> bool {
        self.cycles_left.get() == 0 && now.since(self.cycle_at.get()) < POLL_INTERVAL
    }

    /// A cycle begins.
    pub(crate) fn begin_cycle(&self, now: Time) {
        self.cycle_at.set(now);
        let had_event = self.had_socket_event.replace(false);
        self.socket_cycles.set(if had_event { self.socket_cycles.get().saturating_add(1) } else { 0 });
    }

    /// Whether the thread may wait for sockets alone, for [`SOCKET_WAIT`].
    pub(crate) fn may_wait_for_sockets(&self) -> bool {
        self.socket_cycles.get() >= CYCLES_BEFORE_WAIT
    }

    /// Whether the thread may poll its sockets before it sleeps, for [`BUSY_POLL`].
    pub(crate) fn may_busy_poll(&self) -> bool {
        let cycles = self.cycles_before_busy_poll.get();
        self.cycles_before_busy_poll.set(cycles.saturating_sub(1));
        cycles == 0
    }

    /// A busy poll is over.
    pub(crate) fn busy_poll_ended(&self, has_event: bool) {
        let empty = if has_event { 0 } else { self.empty_busy_polls.get() + 1 };
        self.empty_busy_polls.set(empty % EMPTY_BUSY_POLLS_MAX);
        if empty == EMPTY_BUSY_POLLS_MAX {
            self.cycles_before_busy_poll.set(CYCLES_BEFORE_BUSY_POLL);
        }
    }

    /// A wait for sockets alone ended without an event.
    pub(crate) fn wait_timed_out(&self) {
        self.socket_cycles.set(0);
    }

    /// Ends the thread's coming wait at once, since there are events.
    pub(crate) fn end_wait(&self, now: Time) {
        let polls =
            tcl::is_tcl_9() || self.cycles_left.get() > 0 || now.since(self.polled_at.get()) >= POLL_INTERVAL;
        self.polls_now.set(polls);
        if polls {
            self.polled_at.set(now);
            tcl::limit_wait(Duration::ZERO);
        } else {
            tcl::skip_wait();
        }
    }

    /// The wait is over: learns whether files had events.
    pub(crate) fn wait_ended(&self) {
        if self.polls_now.replace(false) {
            let has_file = tcl::has_file_events();
            let left = if has_file { CYCLES_AFTER_EVENT } else { self.cycles_left.get().saturating_sub(1) };
            self.cycles_left.set(left);
            if has_file {
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
            policy.begin_cycle(Time::ZERO);
        }
        policy
    }

    #[test]
    fn only_a_thread_that_serves_sockets_waits_for_them_alone() {
        assert!(!after_cycles(CYCLES_BEFORE_WAIT - 1).may_wait_for_sockets());
        let policy = after_cycles(CYCLES_BEFORE_WAIT);
        assert!(policy.may_wait_for_sockets());
        // A cycle without an event of a socket: another source is active.
        policy.begin_cycle(Time::ZERO);
        assert!(!policy.may_wait_for_sockets());
        let policy = after_cycles(CYCLES_BEFORE_WAIT);
        policy.wait_timed_out();
        assert!(!policy.may_wait_for_sockets());
    }

    #[test]
    fn a_thread_stays_in_a_cycle_for_a_bounded_time() {
        let policy = PollPolicy::new();
        let begin = Time::ZERO.after(Duration::from_secs(1));
        policy.begin_cycle(begin);
        // Files may have events.
        assert!(!policy.may_stay_in_cycle(begin));
        policy.cycles_left.set(0);
        assert!(policy.may_stay_in_cycle(begin.after(POLL_INTERVAL - Duration::from_nanos(1))));
        assert!(!policy.may_stay_in_cycle(begin.after(POLL_INTERVAL)));
    }

    #[test]
    fn busy_polls_without_an_event_pause() {
        let policy = PollPolicy::new();
        for _ in 0..EMPTY_BUSY_POLLS_MAX {
            assert!(policy.may_busy_poll());
            policy.busy_poll_ended(false);
        }
        let pauses = (0..2 * CYCLES_BEFORE_BUSY_POLL).take_while(|_| !policy.may_busy_poll()).count();
        assert_eq!(pauses as u32, CYCLES_BEFORE_BUSY_POLL);
        // One in time begins the count anew.
        policy.busy_poll_ended(false);
        policy.busy_poll_ended(true);
        for _ in 0..EMPTY_BUSY_POLLS_MAX {
            assert!(policy.may_busy_poll());
            policy.busy_poll_ended(false);
        }
        assert!(!policy.may_busy_poll());
    }
}
