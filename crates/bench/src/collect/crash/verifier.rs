//! Compares the content of a stream with the acknowledgements.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use super::super::api::{JetStreamApi, ReplayedMessage};
use super::super::collect_run::CollectRun;
use super::super::error::CollectError;
use super::super::limits::CHECK_INTERVAL;
use super::super::pattern::PayloadId;
use super::client::CrashClient;
use super::target;
use super::{CrashPlan, CrashReport, CrashViolation};

/// Maximum time to repeat a replay while the oldest records are removed: a retention pass removes one segment after the
/// other.
const REPLAY_WITHIN: Duration = Duration::from_secs(60);

/// Maximum time for a server to report the new start of a stream after it removed the oldest records.
const FIRST_KNOWN_WITHIN: Duration = Duration::from_secs(5);

/// Bytes of a segment: an eighth of the retention limit within these bounds, plus the block of its header. Retention
/// removes whole segments while the written bytes exceed the limit, so at most one segment less than the limit may
/// remain.
const SEGMENT_SIZE_MIN: u64 = 256 * 1024;
const SEGMENT_SIZE_MAX: u64 = 64 * 1024 * 1024;
const BLOCK_SIZE: u64 = 4096;

/// Results of earlier runs of the server.
#[derive(Default)]
pub(super) struct CrashVerifier {
    last: u64,
    /// First sequence of the stream at the last comparison.
    first: u64,
    /// Acknowledged messages in the stream, by sequence.
    known: BTreeMap<u64, PayloadId>,
}

impl CrashVerifier {
    /// Replays the new messages and compares them with the acknowledgements since the last comparison.
    pub(super) fn compare(
        &mut self,
        api: &mut JetStreamApi,
        plan: &CrashPlan,
        run: &CollectRun,
        clients: &mut [CrashClient],
        report: &mut CrashReport,
    ) -> Result<(), CollectError> {
        let stored = self.replay(api, plan, run, clients, report)?;
        report.stored += stored;
        self.verify_retention(plan, report)?;
        let mut acknowledged = 0;
        for client in clients {
            for detail in client.refusals.drain(..) {
                report.note(CrashViolation::Refused, || detail);
            }
            for (counter, sequence) in client.acknowledged.drain(..) {
                acknowledged += 1;
                let id = PayloadId { client: client.number, counter };
                let position = client.positions.get(usize::try_from(counter).unwrap_or(usize::MAX)).copied();
                self.verify_acknowledged(id, sequence, position.unwrap_or(0), plan, report);
            }
        }
        report.acknowledged += acknowledged;
        Ok(())
    }

    /// Replays from the last comparison on; returns the number of the clients' messages.
    fn replay(
        &mut self,
        api: &mut JetStreamApi,
        plan: &CrashPlan,
        run: &CollectRun,
        clients: &mut [CrashClient],
        report: &mut CrashReport,
    ) -> Result<u64, CollectError> {
        let mut stored_count = 0;
        let (first, last) = replay_behind(api, plan, self.last, |stored| {
            stored_count += u64::from(record_stored(stored, run, clients, report));
        })?;
        (self.first, self.last) = (first, last);
        Ok(stored_count)
    }

    /// Checks that retention was allowed to remove what is missing: it removes whole segments while the written bytes
    /// exceed the limit.
    fn verify_retention(&mut self, plan: &CrashPlan, report: &mut CrashReport) -> Result<(), CollectError> {
        let first = self.first;
        let rest = self.known.split_off(&first);
        let removed = std::mem::replace(&mut self.known, rest);
        let Some(bound) = plan.retention_bytes else {
            for (sequence, id) in removed {
                report.note(CrashViolation::Lost, || {
                    format!("{id:?} at {sequence}; the stream begins at {first}")
                });
            }
            return Ok(());
        };
        report.removed = first.saturating_sub(1);
        if first <= 1 {
            return Ok(());
        }
        let Some(folder) = &plan.stream_directory else { return Ok(()) };
        let bytes = target::written(folder)
            .map_err(|error| CollectError::Local(format!("{}: {error}", folder.display())))?;
        let segment_size = (bound / 8).clamp(SEGMENT_SIZE_MIN, SEGMENT_SIZE_MAX) + BLOCK_SIZE;
        let least = bound.saturating_sub(segment_size);
        if bytes < least {
            report.note(CrashViolation::Lost, || {
                format!(
                    "retention has removed everything before {first} and left {bytes} bytes; with its bound of {bound} it has to \
                     leave {least}"
                )
            });
        }
        Ok(())
    }

    fn verify_acknowledged(
        &mut self,
        id: PayloadId,
        sequence: u64,
        position: u64,
        plan: &CrashPlan,
        report: &mut CrashReport,
    ) {
        let (first, last) = (self.first, self.last);
        if position == sequence {
            if sequence >= first
                && let Some(other) = self.known.insert(sequence, id)
            {
                report.note(CrashViolation::Reordered, || {
                    format!("{sequence} was given to {other:?} and to {id:?}")
                });
            }
        } else if position != 0 {
            report.note(CrashViolation::Reordered, || {
                format!("{id:?} at {position}, acknowledged at {sequence}")
            });
        } else if plan.retention_bytes.is_none() || sequence >= first {
            report.note(CrashViolation::Lost, || {
                format!("{id:?}, acknowledged at {sequence}; the stream is from {first} to {last}")
            });
        }
    }

    /// Replays everything: messages found after an earlier kill must still exist.
    pub(super) fn compare_all(
        &mut self,
        api: &mut JetStreamApi,
        plan: &CrashPlan,
        run: &CollectRun,
        report: &mut CrashReport,
    ) -> Result<(), CollectError> {
        let mut missing = std::mem::take(&mut self.known);
        let (first, _) = replay_behind(api, plan, 0, |stored| {
            let acknowledged = missing.remove(&stored.sequence);
            if let Some(acknowledged) =
                acknowledged.filter(|id| run.pattern.check(stored.payload) != Some(*id))
            {
                let sequence = stored.sequence;
                report.note(CrashViolation::Lost, || {
                    format!("{acknowledged:?} at {sequence}, where there is something else now")
                });
            }
        })?;
        (self.first, self.known) = (first, missing);
        self.verify_retention(plan, report)?;
        for (sequence, id) in std::mem::take(&mut self.known) {
            report.note(CrashViolation::Lost, || {
                format!("{id:?} at {sequence}, which was there after an earlier kill")
            });
        }
        Ok(())
    }
}

/// Replays the messages behind `last`. If retention removes the next ones, the replay restarts at the start of the
/// stream. Returns the first sequence of the stream and the last replayed one.
fn replay_behind(
    api: &mut JetStreamApi,
    plan: &CrashPlan,
    mut last: u64,
    mut each: impl FnMut(&ReplayedMessage<'_>),
) -> Result<(u64, u64), CollectError> {
    let begun = Instant::now();
    loop {
        let first = api.stream_state(&plan.stream)?.first.max(1);
        let outcome = api.replay(&plan.stream, first.max(last + 1), |stored| {
            last = stored.sequence;
            each(stored);
            Ok(())
        });
        let Err(error) = outcome else { return Ok((first, last)) };
        if begun.elapsed() > REPLAY_WITHIN {
            return Err(error);
        }
        // A new connection does not receive the remaining deliveries of the failed replay.
        *api = JetStreamApi::connect(api.server(), plan.timeout)?;
        // If records were removed, the start of the stream moves; any other failure is an error.
        let (expected, failed) = (first.max(last + 1), Instant::now());
        while api.stream_state(&plan.stream)?.first <= expected {
            if failed.elapsed() > FIRST_KNOWN_WITHIN {
                return Err(error);
            }
            thread::sleep(CHECK_INTERVAL);
        }
    }
}

/// Records a message of the stream; returns whether a client sent it.
fn record_stored(
    stored: &ReplayedMessage<'_>,
    run: &CollectRun,
    clients: &mut [CrashClient],
    report: &mut CrashReport,
) -> bool {
    let sequence = stored.sequence;
    let id = run.pattern.check(stored.payload);
    let client = id.and_then(|id| clients.get_mut(usize::from(id.client)).map(|client| (id, client)));
    let Some((id, client)) = client.filter(|(id, client)| id.counter < client.sent) else {
        report.note(CrashViolation::Invented, || format!("a payload that no client sent, at {sequence}"));
        return false;
    };
    let position = &mut client.positions[usize::try_from(id.counter).unwrap_or(usize::MAX)];
    if *position != 0 {
        let first = *position;
        report.note(CrashViolation::StoredTwice, || format!("{id:?} at {first} and at {sequence}"));
        return false;
    }
    *position = sequence;
    if let Some(newest) = client.newest.filter(|newest| *newest > id.counter) {
        report.note(CrashViolation::Reordered, || {
            format!("{id:?} at {sequence}, behind number {newest} of its client")
        });
    }
    client.newest = client.newest.max(Some(id.counter));
    true
}
