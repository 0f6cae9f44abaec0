//! The processes of one program. A reload starts a second set beside the first and retires one of them.

use std::path::PathBuf;
use std::time::Instant;

use super::WorkerProgram;
use super::counters::ProcessTally;
use super::limits::ProcessLimits;
use super::managed_process::{ManagedProcess, SupervisionContext};
use super::output_relay::OutputRelay;

pub(super) struct ProcessSet {
    pub(super) processes: Vec<ManagedProcess>,
    /// `None`: all processes have ended.
    program: Option<Box<dyn WorkerProgram>>,
}

/// The parts of the supervisor that a step of a set uses.
pub(super) struct StepContext<'a> {
    pub(super) now: Instant,
    pub(super) limits: &'a ProcessLimits,
    pub(super) tally: &'a ProcessTally,
    pub(super) relay: &'a OutputRelay,
    pub(super) kill_at: Option<Instant>,
}

impl ProcessSet {
    /// A set without a program.
    pub(super) fn new(processes: Vec<ManagedProcess>) -> ProcessSet {
        ProcessSet { processes, program: None }
    }

    /// Starts the processes of `program`; each ends for good if it ends before [`keep`](Self::keep).
    pub(super) fn start(&mut self, program: Box<dyn WorkerProgram>, now: Instant) {
        self.program = Some(program);
        self.processes.iter_mut().for_each(|process| process.start_once(now));
    }

    pub(super) fn keep(&mut self, now: Instant) {
        self.processes.iter_mut().for_each(|process| process.keep(now));
    }

    pub(super) fn retire(&mut self, now: Instant, limits: &ProcessLimits) {
        self.processes.iter_mut().for_each(|process| process.retire(now, limits));
    }

    /// Performs all due transitions. Returns whether the process groups have changed.
    pub(super) fn step(&mut self, context: &StepContext<'_>) -> bool {
        let StepContext { now, limits, tally, relay, kill_at } = *context;
        let Some(program) = &mut self.program else { return false };
        let mut context = SupervisionContext { now, limits, tally, relay, program: &mut **program, kill_at };
        let mut changed = false;
        for process in &mut self.processes {
            changed |= process.step(&mut context);
        }
        changed
    }

    pub(super) fn are_all_in_standby(&self) -> bool {
        self.processes.iter().all(ManagedProcess::is_in_standby)
    }

    pub(super) fn has_ended_process(&self) -> bool {
        self.processes.iter().any(ManagedProcess::is_ended)
    }

    pub(super) fn is_ended(&self) -> bool {
        self.processes.iter().all(ManagedProcess::is_ended)
    }

    /// The folder that the processes use.
    pub(super) fn folder(&self) -> Option<PathBuf> {
        self.program.as_ref()?.folder()
    }
}
