//! The gate of one stream: contains its panics, and decides when its state is written to a snapshot.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use stilling_journal::{BatchView, Record, RecordKind, Snapshot};
use stilling_wire::nats::limits::SubjectLimits;
use stilling_wire::nats::{Filter, Subject};

use super::{Gate, GateMessage, GateRecord, GateRecords, GateRegistry, RejectReason, Verdict};
use crate::limits::{GATE_RECORDS_MAX, GATE_SNAPSHOT_EVERY_SIZE, GATE_SNAPSHOT_RATIO};
use crate::publication_batch::Publication;
use crate::stream::StreamConfig;
use crate::time::UnixNanos;

/// Reason that a publisher gets if the gate failed on its message.
const FAILED: &str = "the gate failed on this message";

/// The gate of a stream with its state.
pub struct StreamGate {
    name: String,
    gate: Box<dyn Gate>,
    has_state: bool,
    /// Why the state is unknown. The stream is frozen then.
    failure: Option<Arc<str>>,
    snapshots: SnapshotProgress,
    accepted: u64,
    rejected: u64,
    failed: u64,
    /// The message that was judged last was rejected because the gate failed.
    has_failed_to_judge: bool,
    /// Log line about the last failure.
    notice: Option<String>,
}

/// What is known about the snapshots of a gate.
#[derive(Clone, Copy, Debug, Default)]
struct SnapshotProgress {
    /// Sequence of the last durable snapshot; 0: none.
    durable: u64,
    /// Sequence of the snapshot that is being written.
    requested: Option<u64>,
    /// Sequence of the last applied record.
    applied: u64,
    /// Bytes of records applied since the last request.
    size_since: u64,
    /// Bytes of records between two snapshots, unless these are large.
    every_size: u64,
    last_size: u64,
    failures: u64,
}

impl SnapshotProgress {
    fn is_due(&self) -> bool {
        let due_at = self.every_size.max(self.last_size.saturating_mul(GATE_SNAPSHOT_RATIO));
        self.requested.is_none() && self.size_since >= due_at && self.applied > self.durable
    }
}

impl StreamGate {
    /// Creates the gate of a stream in its initial state; `None` if the stream has none. An unknown gate counts as
    /// [failed](Self::failure).
    #[must_use]
    pub fn new(gates: &GateRegistry, config: &StreamConfig) -> Option<StreamGate> {
        let name = config.gate.clone()?;
        let (made, failure) = match gates.make(&name) {
            Some(gate) => (gate, None),
            None => {
                let rejects: Box<dyn Gate> = Box::new(super::StatelessGate(|_, _| Verdict::reject(FAILED)));
                (rejects, Some(Arc::from(format!("there is no gate `{name}`"))))
            }
        };
        let eighth = config.retention.bytes_max().map_or(u64::MAX, |bytes| bytes / 8);
        let every_size = GATE_SNAPSHOT_EVERY_SIZE.min(eighth);
        Some(StreamGate {
            has_state: made.has_state(),
            gate: made,
            name,
            failure,
            snapshots: SnapshotProgress { every_size, ..SnapshotProgress::default() },
            accepted: 0,
            rejected: 0,
            failed: 0,
            has_failed_to_judge: false,
            notice: None,
        })
    }

    /// Returns the name of the gate.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the gate has a state, which records produce.
    #[must_use]
    pub fn has_state(&self) -> bool {
        self.has_state
    }

    /// Returns the reason why the state is unknown, if it is.
    #[must_use]
    pub fn failure(&self) -> Option<&Arc<str>> {
        self.failure.as_ref()
    }

    /// Notes that the state is unknown. The first reason is kept.
    pub fn fail(&mut self, reason: &str) {
        self.failure.get_or_insert_with(|| format!("the gate {}: {reason}", self.name).into());
    }

    /// Restores the state of a snapshot.
    ///
    /// # Errors
    /// The reason why that is not possible. The state is unspecified then.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<(), String> {
        let gate = &mut self.gate;
        let restored = catch_unwind(AssertUnwindSafe(|| gate.restore(&snapshot.state)));
        restored.unwrap_or_else(|panic| Err(format!("restore panicked: {}", panic_text(&*panic))))?;
        let sequence = snapshot.sequence;
        (self.snapshots.durable, self.snapshots.applied) = (sequence, sequence);
        self.snapshots.last_size = snapshot.state.len() as u64;
        Ok(())
    }

    /// Applies the records of a batch from before the start, in order.
    pub fn replay(&mut self, batch: &BatchView<'_>) {
        let time = UnixNanos::from_nanos(batch.time_ns);
        for (sequence, record) in batch.records.clone() {
            if record.kind == RecordKind::Ordinary {
                self.apply(sequence, time, &record);
            }
        }
    }

    /// Returns the state as in a snapshot.
    ///
    /// # Errors
    /// The gate panicked: the state is unknown.
    pub fn state(&mut self) -> Result<Vec<u8>, Arc<str>> {
        let mut state = Vec::new();
        let gate = &self.gate;
        let outcome = catch_unwind(AssertUnwindSafe(|| gate.snapshot(&mut state)));
        if let Err(panic) = outcome {
            self.fail(&format!("snapshot panicked: {}", panic_text(&*panic)));
        }
        self.failure.clone().map_or(Ok(state), Err)
    }

    /// Decides about a message. Changes nothing but the count of failures.
    pub(crate) fn judge(
        &mut self,
        publication: &Publication<'_>,
        config: &StreamConfig,
        now: UnixNanos,
    ) -> Verdict {
        let &Publication { subject, headers, payload, .. } = publication;
        let message = GateMessage { subject: text(subject), headers, payload: payload.bytes() };
        self.has_failed_to_judge = false;
        let gate = &self.gate;
        match catch_unwind(AssertUnwindSafe(|| gate.judge(&message, now))) {
            Ok(Verdict::AcceptAs(records)) => match check(&records, headers, config) {
                Ok(()) => Verdict::AcceptAs(records),
                Err(reason) => self.note_failure(&reason),
            },
            Ok(verdict) => verdict,
            Err(panic) => self.note_failure(&format!("judge panicked: {}", panic_text(&*panic))),
        }
    }

    /// Counts a message when its records are stored or its rejection is answered: one that waits for room is judged again.
    pub(crate) fn count_judged(&mut self, is_accepted: bool) {
        *(if is_accepted { &mut self.accepted } else { &mut self.rejected }) += 1;
        self.failed += u64::from(!is_accepted && self.has_failed_to_judge);
    }

    fn note_failure(&mut self, reason: &str) -> Verdict {
        self.has_failed_to_judge = true;
        self.notice = Some(format!("the gate {} failed, and a message was rejected: {reason}", self.name));
        Verdict::Reject(RejectReason::new(FAILED))
    }

    /// Changes the state by a stored record, unless it is unknown.
    pub(crate) fn apply(&mut self, sequence: u64, time: UnixNanos, record: &Record<'_>) {
        if !self.has_state || self.failure.is_some() {
            return;
        }
        let &Record { subject, headers, payload, .. } = record;
        let record = GateRecord { sequence, time, subject: text(subject), headers, payload };
        let gate = &mut self.gate;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| gate.apply(&record))) {
            self.failed += 1;
            let what = panic_text(&*panic);
            return self
                .fail(&format!("apply panicked at record {sequence}, so its state is unknown: {what}"));
        }
        self.snapshots.applied = sequence;
        self.snapshots.size_since += (subject.len() + headers.len() + payload.len()) as u64;
    }

    /// Returns the first sequence that retention must keep.
    pub(crate) fn keep_from(&self) -> u64 {
        if self.has_state { self.snapshots.durable + 1 } else { u64::MAX }
    }

    /// Returns whether a snapshot should be written now.
    pub(crate) fn is_snapshot_due(&self) -> bool {
        self.failure.is_none() && self.snapshots.is_due()
    }

    /// Returns whether records have been applied since the last snapshot, and none is being written.
    pub(crate) fn has_unwritten_state(&self) -> bool {
        let SnapshotProgress { durable, requested, applied, .. } = self.snapshots;
        self.failure.is_none() && requested.is_none() && applied > durable
    }

    /// Returns a snapshot of the state after all records up to `sequence`, which are with the journal; `None` if the
    /// gate panics.
    pub(crate) fn snapshot_at(&mut self, sequence: u64) -> Option<Snapshot> {
        let state = self.state().ok()?;
        self.snapshots.last_size = state.len() as u64;
        Some(Snapshot { sequence, gate: self.name.clone(), state })
    }

    /// Notes that a snapshot was handed to the journal, or had no room there: the next one is due as usual.
    pub(crate) fn note_requested(&mut self, sequence: Option<u64>) {
        self.snapshots.requested = sequence;
        self.snapshots.size_since = 0;
    }

    /// Notes the result of writing a snapshot. After an error the next one is due as usual.
    pub(crate) fn note_written(&mut self, sequence: u64, outcome: &std::io::Result<()>) {
        self.snapshots.requested = None;
        match outcome {
            Ok(()) => self.snapshots.durable = self.snapshots.durable.max(sequence),
            Err(error) => {
                self.snapshots.failures += 1;
                self.notice = Some(format!(
                    "the state of the gate {} could not be written; a restart replays more records, and retention keeps them: {error}",
                    self.name
                ));
            }
        }
    }

    /// Adds the counts of the gate that it replaces.
    pub(crate) fn add_counts(&mut self, replaced: Option<&StreamGate>) {
        if let Some(StreamGate { accepted, rejected, failed, .. }) = replaced {
            self.accepted += accepted;
            (self.rejected, self.failed) = (self.rejected + rejected, self.failed + failed);
        }
    }

    /// Takes a log line about a failure.
    pub(crate) fn take_notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    pub(crate) fn publish_metrics(&self, to: &crate::counters::StreamCounters) {
        to.accepted.set(self.accepted);
        to.rejected.set(self.rejected);
        to.gate_failures.set(self.failed);
        to.gate_snapshot.set(self.snapshots.durable);
        to.gate_snapshot_failures.set(self.snapshots.failures);
    }
}

impl fmt::Debug for StreamGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamGate")
            .field("name", &self.name)
            .field("failure", &self.failure)
            .field("snapshots", &self.snapshots)
            .finish_non_exhaustive()
    }
}

/// Checks that the records of a gate may be stored in its stream.
fn check(records: &GateRecords, headers: &[u8], config: &StreamConfig) -> Result<(), String> {
    if records.is_empty() || records.len() > GATE_RECORDS_MAX {
        let count = records.len();
        return Err(format!("it returned {count} records; 1 to {GATE_RECORDS_MAX} are allowed"));
    }
    let limits = SubjectLimits::default();
    for (subject, payload) in records.iter() {
        let shown = String::from_utf8_lossy(subject);
        let parsed = Subject::parse(subject, &limits).map_err(|error| format!("`{shown}`: {error}"))?;
        let is_own = |filter: &String| {
            Filter::parse(filter.as_bytes(), &limits).is_ok_and(|filter| filter.matches(parsed))
        };
        if !config.subjects.iter().any(is_own) {
            return Err(format!("the subject `{shown}` does not belong to the stream"));
        }
        let size = headers.len() + payload.len();
        if size > config.message_size_max as usize {
            return Err(format!("a record of {size} bytes is longer than max-message-size"));
        }
    }
    Ok(())
}

/// A checked subject as text.
fn text(subject: &[u8]) -> &str {
    std::str::from_utf8(subject).unwrap_or_default()
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a value without text")
}
