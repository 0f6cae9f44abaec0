//! The supervisor's thread: waits for exits, deadlines and its waker, and steps each process.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::counters::{ProcessTally, count};
use super::limits::MEMORY_CHECK_INTERVAL;
use super::managed_process::ManagedProcess;
use super::output_relay::{OutputRelay, OutputSink, timespec};
use super::process_set::{ProcessSet, StepContext};
use super::process_slots::ProcessSlots;
use super::reaper::Reaper;
use super::waker::SupervisorWaker;
use super::{ProcessLimits, WorkerProgram};

/// The system's default timer slack, in nanoseconds.
const TIMER_SLACK: u64 = 50_000;

/// Delay before the next attempt to start the reaper after a failure.
const REAPER_RETRY: Duration = Duration::from_secs(1);

/// The state of the other set of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReloadPhase {
    /// It has no processes.
    Idle,
    /// It starts, and replaces the current one if all its processes become ready.
    Starting,
    /// It ends.
    Retiring,
}

pub(super) struct Supervisor {
    limits: ProcessLimits,
    current: ProcessSet,
    /// Used only by reloads.
    other: ProcessSet,
    reload_phase: ReloadPhase,
    tally: Arc<ProcessTally>,
    waker: Arc<SupervisorWaker>,
    relay: OutputRelay,
    reaper: Option<Reaper>,
    stop_requested_at: Option<Instant>,
    /// When the memory of the processes is measured next, if it is bounded.
    memory_check_at: Option<Instant>,
}

impl Supervisor {
    pub(super) fn new(
        name: &str,
        limits: ProcessLimits,
        slots_by_process: Vec<Arc<ProcessSlots>>,
        tally: Arc<ProcessTally>,
        waker: Arc<SupervisorWaker>,
        program: Box<dyn WorkerProgram>,
        sink: OutputSink,
    ) -> io::Result<Supervisor> {
        let relay = OutputRelay::start(name, slots_by_process.len(), sink)?;
        for process_slots in &slots_by_process {
            process_slots.set_notices(relay.notices());
        }
        let reaper = Some(Reaper::start(program.folder().as_deref())?);
        let now = Instant::now();
        let mut processes = slots_by_process.into_iter().map(ManagedProcess::new);
        let mut current = ProcessSet::new(processes.by_ref().take(limits.processes).collect());
        let other = ProcessSet::new(processes.collect());
        current.start(program, now);
        current.keep(now);
        let memory_check_at = (limits.memory_max > 0).then_some(now);
        Ok(Supervisor {
            limits,
            current,
            other,
            reload_phase: ReloadPhase::Idle,
            tally,
            waker,
            relay,
            reaper,
            stop_requested_at: None,
            memory_check_at,
        })
    }

    /// Runs until a stop is requested and all processes have ended.
    pub(super) fn run(mut self) {
        let _finished_guard = FinishedGuard(Arc::clone(&self.tally));
        // Child processes inherit the slack, and must not run with a server's finer one.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK));
        loop {
            self.waker.clear();
            let changed = self.step();
            self.reload();
            self.measure_memory();
            self.replace_one();
            self.count();
            if changed || self.reaper.is_none() {
                self.update_reaper();
            }
            if self.current.is_ended() && self.other.is_ended() {
                break;
            }
            self.wait();
        }
        self.relay.end();
    }

    fn step(&mut self) -> bool {
        let now = Instant::now();
        let kill_at = self.waker.stop_grace().map(|grace| *self.stop_requested_at.get_or_insert(now) + grace);
        let context =
            StepContext { now, limits: &self.limits, tally: &self.tally, relay: &self.relay, kill_at };
        // Both are stepped.
        self.current.step(&context) | self.other.step(&context)
    }

    /// Begins a requested reload, or continues the one under way.
    fn reload(&mut self) {
        if self.stop_requested_at.is_some() {
            return;
        }
        let now = Instant::now();
        match self.reload_phase {
            ReloadPhase::Idle => {
                let Some(program) = self.waker.take_reload() else { return };
                self.other.start(program, now);
                self.reload_phase = ReloadPhase::Starting;
            }
            ReloadPhase::Starting if self.other.has_ended_process() => {
                self.other.retire(now, &self.limits);
                self.reload_phase = ReloadPhase::Retiring;
                count(&self.tally.reloads_failed);
                let line = "reload failed: a new process did not become ready; the present ones remain";
                self.relay.notices().print_line_of_all(line);
            }
            ReloadPhase::Starting if self.other.are_all_in_standby() => {
                std::mem::swap(&mut self.current, &mut self.other);
                // In this order: a process and its successor are never open at the same time, so that no other client
                // gets the successor of a client's process.
                self.other.retire(now, &self.limits);
                self.current.keep(now);
                self.reload_phase = ReloadPhase::Retiring;
                count(&self.tally.reloaded);
                self.relay.notices().print_line_of_all("reloaded: all new processes are ready");
            }
            ReloadPhase::Retiring if self.other.is_ended() => self.reload_phase = ReloadPhase::Idle,
            ReloadPhase::Starting | ReloadPhase::Retiring => return,
        }
        // The changed processes are stepped next.
        self.waker.wake();
    }

    fn processes(&self) -> impl Iterator<Item = &ManagedProcess> + Clone {
        self.current.processes.iter().chain(&self.other.processes)
    }

    fn measure_memory(&mut self) {
        let now = Instant::now();
        if self.memory_check_at.is_some_and(|check_at| check_at <= now) {
            self.current.processes.iter_mut().for_each(ManagedProcess::measure_memory);
            self.memory_check_at = Some(now + MEMORY_CHECK_INTERVAL);
        }
    }

    /// Replaces a process that has reached its number of requests or exceeds its memory: one at a time, and only while
    /// another process serves, if there is another.
    fn replace_one(&mut self) {
        let processes = &mut self.current.processes;
        let serving = processes.iter().filter(|process| process.is_serving()).count();
        if (serving > 1 || processes.len() == 1)
            && !processes.iter().any(ManagedProcess::is_being_replaced)
            && let Some((recycled, reason)) = processes
                .iter_mut()
                .find_map(|process| process.recycle_reason(&self.limits).map(|reason| (process, reason)))
        {
            recycled.replace(reason, Instant::now() + self.limits.drain_timeout);
            // The process may have no requests already.
            self.waker.wake();
        }
    }

    fn count(&self) {
        let number = |number: usize| number as u64;
        let serving = self.processes().filter(|process| process.is_serving()).count();
        self.tally.ready.store(number(serving), Relaxed);
        let backing_off = self.processes().filter_map(ManagedProcess::backoff_delay);
        let backoff = backing_off.clone().max().unwrap_or(Duration::ZERO);
        self.tally.backing_off.store(number(backing_off.count()), Relaxed);
        self.tally.backoff_nanos.store(backoff.as_nanos() as u64, Relaxed);
    }

    /// Ensures that a reaper runs and has the current groups.
    fn update_reaper(&mut self) {
        let (current, other) = (&self.current.processes, &self.other.processes);
        let groups = || current.iter().chain(other).filter_map(|process| Some(process.running()?.group));
        let is_updated = self.reaper.as_mut().is_some_and(|reaper| reaper.set_groups(groups()).is_ok());
        if !is_updated {
            let next = Reaper::start(self.current.folder().as_deref()).ok();
            if let Some(former) = std::mem::replace(&mut self.reaper, next) {
                former.detach();
            }
            // After a failure, the next round tries again.
            if let Some(reaper) = &mut self.reaper {
                let _ = reaper.set_groups(groups());
            }
        }
    }

    fn wait(&self) {
        let mut due = self.processes().filter_map(ManagedProcess::due).min();
        if self.reaper.is_none() {
            let retry = Instant::now() + REAPER_RETRY;
            due = Some(due.map_or(retry, |due| due.min(retry)));
        }
        if let Some(check_at) = self.memory_check_at {
            due = Some(due.map_or(check_at, |due| due.min(check_at)));
        }
        let wait = due.map(|due| timespec(due.saturating_duration_since(Instant::now())));
        let running =
            self.processes().filter_map(ManagedProcess::running).map(|running| running.pidfd.as_fd());
        let mut polled: Vec<PollFd<'_>> = std::iter::once(self.waker.as_fd())
            .chain(running)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        // An interrupted wait reports no events.
        let _ = poll(&mut polled, wait.as_ref());
    }
}

/// Marks the supervisor as finished when its thread ends, also by a panic: the reaper then kills the processes.
struct FinishedGuard(Arc<ProcessTally>);

impl Drop for FinishedGuard {
    fn drop(&mut self) {
        self.0.set_finished();
    }
}
