//! Counts the messages of a server that sends no answers but writes lines to a file.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::thread;
use std::time::Instant;

use super::collect_run::CollectRun;
use super::error::CollectError;
use super::limits::CHECK_INTERVAL;
use super::tally::{CollectTally, MessageFailure};

/// Waits until the file has the length of all sent messages or stops growing, then checks every line; returns the
/// number of right lines.
pub(super) fn count_received_lines(
    run: &CollectRun,
    path: &Path,
    tally: &mut CollectTally,
) -> Result<u64, CollectError> {
    let local = |error: std::io::Error| CollectError::Local(format!("{}: {error}", path.display()));
    let wanted = tally.sends * (run.pattern.size() as u64 + 1);
    let (mut length, mut since) = (0, Instant::now());
    while length < wanted && since.elapsed() < run.plan.timeout {
        // The server may create the file with its first line.
        let now = path.metadata().map_or(0, |metadata| metadata.len());
        if now > length {
            (length, since) = (now, Instant::now());
            tally.last_ns = tally.last_ns.max(run.now());
        }
        thread::sleep(CHECK_INTERVAL);
    }
    let mut lines = BufReader::with_capacity(1 << 20, File::open(path).map_err(local)?);
    let mut received: Vec<ReceivedCounters> =
        (0..run.plan.clients).map(|_| ReceivedCounters::default()).collect();
    let mut line = Vec::new();
    let mut arrived = 0;
    while lines.read_until(b'\n', &mut line).map_err(local)? > 0 {
        let text = line.trim_ascii();
        let id = run.pattern.check(text).filter(|id| id.counter < tally.queued);
        let counter_slot = id.and_then(|id| Some((received.get_mut(usize::from(id.client))?, id.counter)));
        match counter_slot {
            None => tally.fault(MessageFailure::WrongPayload, 1, || {
                format!("a line of {} bytes in {}", text.len(), path.display())
            }),
            Some((received, counter)) => {
                let is_new = received.insert(counter);
                arrived += u64::from(is_new);
                let detail = || format!("message {counter} in {}", path.display());
                tally.fault(MessageFailure::DeliveredTwice, u64::from(!is_new), detail);
            }
        }
        line.clear();
    }
    Ok(arrived)
}

#[derive(Debug, Default)]
struct ReceivedCounters(Vec<u64>);

impl ReceivedCounters {
    /// Adds a counter; returns whether it is new.
    fn insert(&mut self, counter: u64) -> bool {
        let (at, bit) = ((counter / 64) as usize, 1 << (counter % 64));
        if at >= self.0.len() {
            self.0.resize(at + 1, 0);
        }
        let is_new = self.0[at] & bit == 0;
        self.0[at] |= bit;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_new_once() {
        let mut received = ReceivedCounters::default();
        let noted: Vec<bool> = [0, 63, 64, 0, 1000, 64].map(|counter| received.insert(counter)).into();
        assert_eq!(noted, [true, true, true, false, true, false]);
    }
}
