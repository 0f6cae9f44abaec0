//! What the processes have executed, and the resource that changes.

use std::collections::BTreeMap;
use std::time::Duration;

use stilling_ring::Time;

use crate::SplitMix64;

/// Executions of an idempotent request at most: HTTP allows one repetition on a new connection (RFC 9110 §9.2.2).
const IDEMPOTENT_EXECUTIONS_MAX: u32 = 2;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Ledger {
    executions: BTreeMap<u64, u32>,
    version: u64,
    changes_at: Time,
    /// Longest time between two changes, in milliseconds; 0: it does not change.
    change_interval_ms: u64,
}

impl Ledger {
    pub(super) fn new(change_interval_ms: u64) -> Ledger {
        Ledger { change_interval_ms, ..Ledger::default() }
    }

    /// Counts the execution of an unsafe request.
    pub(super) fn execute(&mut self, id: u64, is_idempotent: bool) -> Result<(), String> {
        let count = self.executions.entry(id).or_default();
        *count += 1;
        let max = if is_idempotent { IDEMPOTENT_EXECUTIONS_MAX } else { 1 };
        if *count > max {
            return Err(format!("request {id:x} was executed {count} times"));
        }
        Ok(())
    }

    pub(super) fn is_executed(&self, id: u64) -> bool {
        self.executions.contains_key(&id)
    }

    /// Executions so far.
    pub(super) fn executions(&self) -> u64 {
        self.executions.values().map(|count| u64::from(*count)).sum()
    }

    /// The current version of the resource that changes.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// When the resource changes next.
    pub(super) fn changes_at(&self) -> Option<Time> {
        (self.change_interval_ms > 0).then_some(self.changes_at)
    }

    /// Changes the resource if it is time.
    pub(super) fn step(&mut self, now: Time, random: &mut SplitMix64) {
        if self.changes_at().is_some_and(|at| at <= now) {
            self.version += 1;
            let span = random.between(1, self.change_interval_ms);
            self.changes_at = now.after(Duration::from_millis(span));
        }
    }

    /// The resource changes no more.
    pub(super) fn stop_changes(&mut self) {
        self.change_interval_ms = 0;
    }
}
