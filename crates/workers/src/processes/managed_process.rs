//! The state machine of one supervised process.
//!
//! ```text
//!   BackingOff ─► Starting ─► Serving ─► Draining ─► Stopping ─┐
//!      ▲             │ late      │ kill      │           │ late │
//!      │             │           │ requested │           │      │
//!      │             └───────►  Killed  ◄────┴───────────┘      │
//!      └── exited ◄─────────────────┴───────────────────────────┘   (or Ended, on stop)
//! ```
//!
//! The processes of a reload are in `Standby` between `Starting` and `Serving`, until all of them are ready.
//!
//! Every state except `Standby`, `Serving` and `Killed` has a time limit: no request, however long, prevents the
//! replacement of a process.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};

use super::WorkerProgram;
use super::backoff::Backoff;
use super::counters::{ProcessTally, count};
use super::limits::{ProcessLimits, READY_CHECK_FIRST, READY_CHECK_MAX};
use super::memory;
use super::output_relay::OutputRelay;
use super::process_slots::ProcessSlots;

pub(super) struct SupervisionContext<'a> {
    pub(super) now: Instant,
    pub(super) limits: &'a ProcessLimits,
    pub(super) tally: &'a ProcessTally,
    pub(super) relay: &'a OutputRelay,
    pub(super) program: &'a mut dyn WorkerProgram,
    /// When the remaining processes are killed, after a stop request.
    pub(super) kill_at: Option<Instant>,
}

/// A process that runs, or has ended and is not reaped yet.
#[derive(Debug)]
pub(super) struct RunningProcess {
    child: Child,
    pub(super) group: Pid,
    pub(super) pidfd: OwnedFd,
}

/// What follows the end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterEnd {
    /// It is started again.
    Restart,
    /// Nothing: it belongs to a reload that is not complete yet, or retires.
    Nothing,
}

/// Why a process is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecycleReason {
    /// The program was reloaded.
    Reload,
    /// It has reached its number of requests.
    Requests,
    /// It uses more memory than allowed; the resident bytes.
    Memory(u64),
}

#[derive(Debug)]
enum ProcessState {
    /// Not running; starts at `until`.
    BackingOff { until: Instant, backoff: Duration },
    /// Running, not ready yet.
    Starting { running: RunningProcess, ready_deadline: Instant, check_at: Instant, check_interval: Duration },
    /// Ready, but not [kept](ManagedProcess::keep) yet: the processes that it replaces serve.
    Standby { running: RunningProcess },
    /// Accepts requests.
    Serving { running: RunningProcess, since: Instant },
    /// Finishes its requests, to be replaced.
    Draining { running: RunningProcess, since: Instant, drain_deadline: Instant, reason: RecycleReason },
    /// Has been sent `SIGTERM`.
    Stopping { running: RunningProcess, kill_at: Instant },
    /// Has been killed, after serving for `uptime`.
    Killed { running: RunningProcess, uptime: Duration },
    /// Is not started again.
    Ended,
}

#[derive(Debug)]
pub(super) struct ManagedProcess {
    process_slots: Arc<ProcessSlots>,
    backoff: Backoff,
    /// Starts so far; identifies the current run.
    generation: u64,
    state: ProcessState,
    after_end: AfterEnd,
    /// The generation that was last measured, and its resident bytes.
    resident: (u64, u64),
}

impl ManagedProcess {
    /// A process that is not started yet.
    pub(super) fn new(process_slots: Arc<ProcessSlots>) -> ManagedProcess {
        ManagedProcess {
            process_slots,
            backoff: Backoff::default(),
            generation: 0,
            state: ProcessState::Ended,
            after_end: AfterEnd::Nothing,
            resident: (0, 0),
        }
    }

    /// Starts an ended process with the next step. It ends for good if it ends before [`keep`](Self::keep).
    pub(super) fn start_once(&mut self, now: Instant) {
        debug_assert!(self.is_ended(), "it has a state");
        self.backoff = Backoff::default();
        self.after_end = AfterEnd::Nothing;
        self.state = ProcessState::BackingOff { until: now, backoff: Duration::ZERO };
    }

    /// Lets the process serve once it is ready, and starts it again from now on whenever it ends.
    pub(super) fn keep(&mut self, now: Instant) {
        self.after_end = AfterEnd::Restart;
        match std::mem::replace(&mut self.state, ProcessState::Ended) {
            ProcessState::Standby { running } => self.state = self.serve(running, now),
            state => self.state = state,
        }
    }

    /// Ends the process for good after its requests.
    pub(super) fn retire(&mut self, now: Instant, limits: &ProcessLimits) {
        self.after_end = AfterEnd::Nothing;
        self.process_slots.retire();
        match std::mem::replace(&mut self.state, ProcessState::Ended) {
            ProcessState::BackingOff { .. } => {}
            ProcessState::Starting { running, .. } | ProcessState::Standby { running } => {
                running.signal(Signal::TERM);
                self.state = ProcessState::Stopping { running, kill_at: now + limits.stop_timeout };
            }
            state => {
                self.state = state;
                self.replace(RecycleReason::Reload, now + limits.drain_timeout);
            }
        }
    }

    /// Performs all due transitions. Returns whether the process groups have changed.
    pub(super) fn step(&mut self, context: &mut SupervisionContext<'_>) -> bool {
        let before = self.running().map(|running| running.group);
        // Several transitions may be due at once. An exit soon after a start has a restart delay, which ends the loop.
        while let Some(next) = self.next_state(context) {
            self.state = next;
        }
        before != self.running().map(|running| running.group)
    }

    /// Returns the time of the next step, if nothing happens before.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.state {
            ProcessState::BackingOff { until, .. } => Some(*until),
            ProcessState::Starting { ready_deadline, check_at, .. } => Some(*check_at.min(ready_deadline)),
            ProcessState::Stopping { kill_at, .. } => Some(*kill_at),
            ProcessState::Draining { drain_deadline, .. } => Some(*drain_deadline),
            ProcessState::Standby { .. }
            | ProcessState::Serving { .. }
            | ProcessState::Killed { .. }
            | ProcessState::Ended => None,
        }
    }

    pub(super) fn running(&self) -> Option<&RunningProcess> {
        match &self.state {
            ProcessState::Starting { running, .. }
            | ProcessState::Standby { running }
            | ProcessState::Serving { running, .. }
            | ProcessState::Draining { running, .. }
            | ProcessState::Stopping { running, .. }
            | ProcessState::Killed { running, .. } => Some(running),
            ProcessState::BackingOff { .. } | ProcessState::Ended => None,
        }
    }

    pub(super) fn is_in_standby(&self) -> bool {
        matches!(self.state, ProcessState::Standby { .. })
    }

    pub(super) fn is_serving(&self) -> bool {
        matches!(self.state, ProcessState::Serving { .. })
    }

    /// Measures the memory of a process that accepts requests.
    pub(super) fn measure_memory(&mut self) {
        if let ProcessState::Serving { running, .. } = &self.state {
            let pid = running.group.as_raw_nonzero().get();
            self.resident = (self.generation, memory::resident_bytes(pid));
        }
    }

    /// Why the process is to be replaced, if it is.
    pub(super) fn recycle_reason(&self, limits: &ProcessLimits) -> Option<RecycleReason> {
        let (measured, resident) = self.resident;
        if !self.is_serving() {
            None
        } else if limits.memory_max > 0 && measured == self.generation && resident > limits.memory_max {
            Some(RecycleReason::Memory(resident))
        } else {
            self.process_slots.is_due_for_recycling().then_some(RecycleReason::Requests)
        }
    }

    pub(super) fn is_being_replaced(&self) -> bool {
        matches!(self.state, ProcessState::Draining { .. } | ProcessState::Stopping { .. })
    }

    pub(super) fn is_ended(&self) -> bool {
        matches!(self.state, ProcessState::Ended)
    }

    /// The current restart delay, while it waits.
    pub(super) fn backoff_delay(&self) -> Option<Duration> {
        match self.state {
            ProcessState::BackingOff { backoff, .. } if !backoff.is_zero() => Some(backoff),
            _ => None,
        }
    }

    /// Stops accepting requests; the process is replaced once its requests are done, at the latest at `drain_deadline`.
    pub(super) fn replace(&mut self, reason: RecycleReason, drain_deadline: Instant) {
        match std::mem::replace(&mut self.state, ProcessState::Ended) {
            ProcessState::Serving { running, since } => {
                self.process_slots.close();
                self.state = ProcessState::Draining { running, since, drain_deadline, reason };
            }
            other => self.state = other,
        }
    }

    fn next_state(&mut self, context: &mut SupervisionContext<'_>) -> Option<ProcessState> {
        if let Some(running) = self.running()
            && running.has_ended()
        {
            return Some(self.handle_exit(context));
        }
        let now = context.now;
        match std::mem::replace(&mut self.state, ProcessState::Ended) {
            ProcessState::BackingOff { .. } if context.kill_at.is_some() => Some(ProcessState::Ended),
            ProcessState::BackingOff { until, .. } if now >= until => Some(self.start_process(context)),
            ProcessState::Starting { running, .. }
            | ProcessState::Standby { running }
            | ProcessState::Serving { running, .. }
            | ProcessState::Draining { running, .. }
                if context.kill_at.is_some() =>
            {
                self.process_slots.close();
                running.signal(Signal::TERM);
                Some(ProcessState::Stopping { running, kill_at: context.kill_at.unwrap_or(now) })
            }
            ProcessState::Starting { running, ready_deadline, check_at, check_interval } => {
                let is_ready = if now >= check_at {
                    context.program.is_ready(self.process_slots.number)
                } else {
                    Ok(false)
                };
                match is_ready {
                    Ok(true) if self.after_end == AfterEnd::Nothing => {
                        return Some(ProcessState::Standby { running });
                    }
                    Ok(true) => return Some(self.serve(running, now)),
                    Ok(false) => {}
                    Err(reason) => return Some(self.kill(running, Duration::ZERO, &reason, context)),
                }
                if now >= ready_deadline {
                    let late = format!("was not ready within {:?}", context.limits.start_timeout);
                    return Some(self.kill(running, Duration::ZERO, &late, context));
                }
                let (check_at, check_interval) = if now >= check_at {
                    (now + check_interval, (check_interval * 2).min(READY_CHECK_MAX))
                } else {
                    (check_at, check_interval)
                };
                self.remain_in(ProcessState::Starting { running, ready_deadline, check_at, check_interval })
            }
            ProcessState::Serving { running, since } | ProcessState::Draining { running, since, .. }
                if self.process_slots.is_kill_requested(self.generation) =>
            {
                let uptime = now.saturating_duration_since(since);
                Some(self.kill(running, uptime, "is unusable", context))
            }
            ProcessState::Draining { running, drain_deadline, reason, .. }
                if self.process_slots.is_empty() || now >= drain_deadline =>
            {
                self.count_recycled(reason, context);
                running.signal(Signal::TERM);
                Some(ProcessState::Stopping { running, kill_at: now + context.limits.stop_timeout })
            }
            ProcessState::Stopping { running, kill_at } => {
                let kill_at = context.kill_at.map_or(kill_at, |stop_deadline| stop_deadline.min(kill_at));
                if now >= kill_at {
                    // No restart delay: the end was requested.
                    return Some(self.kill(running, Duration::MAX, "did not end in time", context));
                }
                self.remain_in(ProcessState::Stopping { running, kill_at })
            }
            state => self.remain_in(state),
        }
    }

    fn serve(&self, running: RunningProcess, now: Instant) -> ProcessState {
        self.process_slots.open(self.generation);
        ProcessState::Serving { running, since: now }
    }

    fn count_recycled(&self, reason: RecycleReason, context: &SupervisionContext<'_>) {
        match reason {
            RecycleReason::Reload => {}
            RecycleReason::Requests => count(&context.tally.recycled),
            RecycleReason::Memory(resident) => {
                count(&context.tally.recycled_memory);
                let line = format!(
                    "used {} KiB of memory, more than {} KiB; is replaced",
                    resident / 1024,
                    context.limits.memory_max / 1024
                );
                context.relay.notices().print_line(self.process_slots.number, &line);
            }
        }
    }

    fn remain_in(&mut self, state: ProcessState) -> Option<ProcessState> {
        self.state = state;
        None
    }

    fn start_process(&mut self, context: &mut SupervisionContext<'_>) -> ProcessState {
        self.generation += 1;
        match RunningProcess::start(self.process_slots.number, self.generation, context) {
            Ok(running) => {
                count(&context.tally.started);
                ProcessState::Starting {
                    running,
                    ready_deadline: context.now + context.limits.start_timeout,
                    check_at: context.now,
                    check_interval: READY_CHECK_FIRST,
                }
            }
            Err(error) => {
                count(&context.tally.exited);
                self.back_off(Duration::ZERO, &format!("does not start: {error}"), context)
            }
        }
    }

    fn kill(
        &mut self,
        running: RunningProcess,
        uptime: Duration,
        why: &str,
        context: &mut SupervisionContext<'_>,
    ) -> ProcessState {
        self.process_slots.close();
        count(&context.tally.killed);
        context.relay.notices().print_line(self.process_slots.number, &format!("{why}; killed"));
        running.signal(Signal::KILL);
        ProcessState::Killed { running, uptime }
    }

    /// Handles the end of the process: kills the rest of its group and reports the exit status.
    fn handle_exit(&mut self, context: &mut SupervisionContext<'_>) -> ProcessState {
        self.process_slots.close();
        let state = std::mem::replace(&mut self.state, ProcessState::Ended);
        let (running, uptime, is_unexpected) = match state {
            ProcessState::Starting { running, .. } | ProcessState::Standby { running } => {
                (running, Duration::ZERO, true)
            }
            ProcessState::Serving { running, since } | ProcessState::Draining { running, since, .. } => {
                (running, context.now.saturating_duration_since(since), true)
            }
            ProcessState::Stopping { running, .. } => (running, Duration::MAX, false),
            ProcessState::Killed { running, uptime } => (running, uptime, false),
            ProcessState::BackingOff { .. } | ProcessState::Ended => return state,
        };
        let status = running.reap();
        if is_unexpected {
            count(&context.tally.exited);
        }
        let how = status.map_or_else(
            |error| format!("ended with an unknown status: {error}"),
            |status| format!("ended ({status})"),
        );
        self.back_off(uptime, &how, context)
    }

    fn back_off(&mut self, uptime: Duration, how: &str, context: &SupervisionContext<'_>) -> ProcessState {
        if context.kill_at.is_some() {
            return ProcessState::Ended;
        }
        if self.after_end == AfterEnd::Nothing {
            context.relay.notices().print_line(self.process_slots.number, how);
            return ProcessState::Ended;
        }
        let backoff = self.backoff.delay_after_exit(uptime);
        context
            .relay
            .notices()
            .print_line(self.process_slots.number, &format!("{how}; starts again in {backoff:?}"));
        ProcessState::BackingOff { until: context.now + backoff, backoff }
    }
}

impl RunningProcess {
    fn start(
        number: usize,
        generation: u64,
        context: &mut SupervisionContext<'_>,
    ) -> io::Result<RunningProcess> {
        let [out, err] = context.relay.streams(number)?;
        let mut command = context.program.command(number, generation)?;
        if !context.program.sets_input_and_output() {
            command.stdin(Stdio::null()).stdout(out);
        }
        command.stderr(err).process_group(0);
        let mut child = command.spawn()?;
        let group = Pid::from_child(&child);
        match pidfd_open(group, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(RunningProcess { child, group, pidfd }),
            Err(error) => {
                let _ = kill_process_group(group, Signal::KILL);
                let _ = child.wait();
                Err(error.into())
            }
        }
    }

    /// Whether the process has ended. It stays a zombie, so its pid is not reused yet; but if this process has
    /// inherited an ignored `SIGCHLD`, no zombie remains, and there is no child to wait for (`ECHILD`).
    fn has_ended(&self) -> bool {
        use std::os::fd::AsFd;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(waitid(WaitId::PidFd(self.pidfd.as_fd()), options), Ok(Some(_)) | Err(Errno::CHILD))
    }

    fn signal(&self, signal: Signal) {
        // Fails only when the group no longer exists.
        let _ = kill_process_group(self.group, signal);
    }

    fn reap(mut self) -> io::Result<ExitStatus> {
        self.signal(Signal::KILL);
        self.child.wait()
    }
}
