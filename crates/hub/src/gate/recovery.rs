//! Recovery of a gate: the last usable snapshot, and the records behind it.

use std::io;

use stilling_journal::{Disk, FoundSnapshots, Gap, GapCause, Log, ReadOutcome, StartAt};

use super::{GateRegistry, StreamGate};
use crate::stream::StreamConfig;

impl StreamGate {
    /// Creates the gate of a stream with the state that the records of its log have produced; `None` if the stream has
    /// no gate. If a record is missing, the state is unknown: the gate has [failed](Self::failure).
    ///
    /// # Errors
    /// A snapshot or a record cannot be read; nothing is concluded from that.
    pub fn recover<D: Disk>(
        gates: &GateRegistry,
        stream: &StreamConfig,
        log: &Log<D>,
    ) -> io::Result<Option<StreamGate>> {
        let Some(mut gate) = StreamGate::new(gates, stream) else { return Ok(None) };
        if !gate.has_state() || gate.failure().is_some() {
            return Ok(Some(gate));
        }
        let FoundSnapshots { usable, mut unusable } = log.find_snapshot(gate.name())?;
        let mut from = 1;
        if let Some(snapshot) = usable {
            match gate.restore(&snapshot) {
                Ok(()) => from = snapshot.sequence + 1,
                Err(reason) => {
                    unusable.push(format!("the snapshot at {}: {reason}", snapshot.sequence));
                    gate = StreamGate::new(gates, stream).unwrap_or(gate);
                }
            }
        }
        let mut reader = log.source().read_from(StartAt::Sequence(from));
        loop {
            match reader.read()? {
                ReadOutcome::Batch(batch) => gate.replay(&batch),
                // Cut off by a crash before anything depended on them.
                ReadOutcome::Gap(Gap { cause: GapCause::Torn, .. }) => {}
                ReadOutcome::Gap(gap) => {
                    gate.fail(&describe(gap, &unusable));
                    break;
                }
                ReadOutcome::End => break,
            }
        }
        Ok(Some(gate))
    }
}

fn describe(Gap { first, last, cause }: Gap, unusable: &[String]) -> String {
    let what = if cause == GapCause::Removed { "have been removed" } else { "are damaged" };
    let others: String = unusable.iter().map(|reason| format!("; {reason}")).collect();
    format!("records {first} to {last} {what} and no snapshot includes them, so its state is unknown{others}")
}
