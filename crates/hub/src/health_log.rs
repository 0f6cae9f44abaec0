//! Log lines about a stream's condition, one per change.
//!
//! Each stream logs at most one line per kind within [`NOTICE_EVERY_NS`]. Of the changes in between, the latest of each
//! kind is logged afterwards, with the number of those omitted.

use std::fmt::Write;
use std::io;

use stilling_journal::{Gap, GapCause};

use crate::counted_ranges::CountedRanges;
use crate::counters::StreamCounters;
use crate::limits::NOTICE_EVERY_NS;
use crate::stream_health::{SharedHealth, StreamCondition, StreamHealth};
use crate::time::SteadyNanos;

#[derive(Clone, Copy, Debug)]
enum LogTopic {
    Freeze,
    Room,
    Write,
    Opening,
    Speed,
    Damage,
    Reading,
    Retention,
    Gate,
}

const LOG_TOPICS: usize = 9;

#[derive(Debug, Default)]
pub(crate) struct HealthLog {
    health: StreamHealth,
    is_changed: bool,
    lines: [LogLine; LOG_TOPICS],
    pending: u32,
    /// Damaged and torn sequences already counted.
    counted: CountedRanges,
    /// Failed reads, failed rounds of retention, damaged records and torn sequences (each counted once), writes slower
    /// than a second, waits for room.
    pub(crate) read_failures: u64,
    pub(crate) retention_failures: u64,
    pub(crate) damaged: u64,
    pub(crate) torn: u64,
    pub(crate) slow_writes: u64,
    pub(crate) waits: u64,
    /// Failed writes that were or will be repeated in a new segment.
    pub(crate) failed_writes: u64,
}

#[derive(Debug, Default)]
struct LogLine {
    sent_ns: Option<SteadyNanos>,
    text: Option<String>,
    /// Cause of a wait that no line has reported yet.
    wait: Option<String>,
    replaced: u64,
}

impl HealthLog {
    pub(crate) fn freeze(&mut self, reason: &str, kind: io::ErrorKind) {
        if self.health.condition == StreamCondition::Frozen {
            return;
        }
        let what_to_do = match kind {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free space on its volume",
            io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists => "check its directory",
            _ => "check its disk",
        };
        let reason = format!("{reason}; {what_to_do} and restart the server");
        self.log(LogTopic::Freeze, format!("is frozen and refuses messages until the next start: {reason}"));
        self.set(StreamCondition::Frozen, Some(reason));
    }

    /// Notes that the state of the stream's gate is unknown and publications are refused.
    pub(crate) fn freeze_for_gate(&mut self, reason: &str) {
        if self.health.condition == StreamCondition::Frozen {
            return;
        }
        self.log(LogTopic::Freeze, format!("is frozen and refuses messages until the next start: {reason}"));
        self.set(StreamCondition::Frozen, Some(reason.to_owned()));
    }

    /// Notes a failure of the stream's gate that changes nothing else.
    pub(crate) fn gate_failed(&mut self, what: String) {
        self.log(LogTopic::Gate, what);
    }

    /// Notes that the stream's directory is not open and publications are refused.
    pub(crate) fn close(&mut self, reason: &str) {
        if self.health.condition == StreamCondition::Closed && self.health.reason.as_deref() == Some(reason) {
            return;
        }
        self.log(LogTopic::Opening, format!("is not open yet and refuses messages: {reason}"));
        self.set(StreamCondition::Closed, Some(reason.to_owned()));
    }

    /// Notes that the stream's directory has been opened; `recovered` is the health found there.
    pub(crate) fn open(&mut self, recovered: HealthLog) {
        if self.health.condition == StreamCondition::Closed {
            self.log(LogTopic::Opening, "is open".to_owned());
            self.set(StreamCondition::Open, None);
        }
        if recovered.health.damage.is_some() {
            for (first, last) in recovered.counted.iter() {
                self.counted.add(first, last);
            }
            self.damaged += recovered.damaged;
            self.torn += recovered.torn;
            self.health.damage = recovered.health.damage;
            self.is_changed = true;
        }
        for (line, recovered) in self.lines.iter_mut().zip(recovered.lines) {
            if let Some(text) = recovered.text {
                line.replaced += recovered.replaced;
                match line.text.replace(text) {
                    Some(_) => line.replaced += 1,
                    None => self.pending += 1,
                }
            }
        }
    }

    pub(crate) fn wait(&mut self, reason: &str, kind: io::ErrorKind) {
        let what_to_do = match kind {
            io::ErrorKind::QuotaExceeded => "raise the quota of its user",
            io::ErrorKind::StorageFull => "free space on its volume",
            _ => "remove the cause",
        };
        self.waits += 1;
        let reason = format!("{reason}; {what_to_do}, no restart is needed");
        self.log(LogTopic::Room, format!("waits for disk space; publishers must retry later: {reason}"));
        self.lines[LogTopic::Room as usize].wait = Some(reason.clone());
        self.set(StreamCondition::Waiting, Some(reason));
    }

    pub(crate) fn write_failed(&mut self, reason: &str) {
        self.failed_writes += 1;
        let what_follows = "its records are written again in a new segment; check its disk";
        self.log(LogTopic::Write, format!("a write failed: {reason}; {what_follows}"));
    }

    /// Notes that the stream is written again after a wait of `waited_ns`.
    pub(crate) fn resume(&mut self, waited_ns: u64) {
        if self.health.condition == StreamCondition::Waiting {
            let end = format!("has disk space and is written again after {}", seconds(waited_ns));
            // This line replaces the one about the beginning of the wait, so it includes the cause.
            let text = match self.lines[LogTopic::Room as usize].wait.take() {
                Some(cause) => format!("{end} of waiting for it: {cause}"),
                None => end,
            };
            self.log(LogTopic::Room, text);
            self.set(StreamCondition::Open, None);
        }
    }

    pub(crate) fn slow(&mut self, waited_ns: u64) {
        if self.health.condition == StreamCondition::Open {
            self.slow_writes += 1;
            let reason = format!("a write has not returned for {}; check its disk", seconds(waited_ns));
            self.log(LogTopic::Speed, reason.clone());
            self.set(StreamCondition::Slow, Some(reason));
        }
    }

    pub(crate) fn end_slow(&mut self, waited_ns: u64) {
        if self.health.condition == StreamCondition::Slow {
            self.log(LogTopic::Speed, format!("the slow write has returned after {}", seconds(waited_ns)));
            self.set(StreamCondition::Open, None);
        }
    }

    pub(crate) fn report_findings(&mut self, findings: &str) {
        let findings = findings.trim_end();
        let text = match &self.health.damage {
            Some(read) => format!("found at the start: {findings}; {read}"),
            None => format!("found at the start: {findings}"),
        };
        self.health.damage = Some(text.into());
        self.is_changed = true;
    }

    /// Notes records that a reader could not read. Removed records are not damage, and a range that another reader has
    /// reached is neither counted nor logged again.
    pub(crate) fn skipped(&mut self, gap: Gap) {
        let Gap { first, last, cause } = gap;
        if cause == GapCause::Removed {
            return;
        }
        let new = self.counted.add(first, last);
        if new == 0 {
            return;
        }
        let text = if cause == GapCause::Torn {
            self.torn += new;
            format!("records {first} to {last} were cut off by a crash")
        } else {
            self.damaged += new;
            format!("records {first} to {last} are damaged")
        };
        let text = format!("{text}; readers receive the range; `stilling journal verify` shows the location");
        self.log(LogTopic::Damage, text.clone());
        self.health.damage = Some(text.into());
        self.is_changed = true;
    }

    pub(crate) fn removed_before(&mut self, first: u64) {
        self.counted.forget_before(first);
    }

    pub(crate) fn read_failed(&mut self, error: &io::Error) {
        self.read_failures += 1;
        let text = format!("read failed, retrying: {error}; check its disk");
        self.log(LogTopic::Reading, text.clone());
        self.health.read_error = Some(text.into());
        self.is_changed = true;
    }

    pub(crate) fn read_succeeded(&mut self) {
        self.is_changed |= self.health.read_error.take().is_some();
    }

    pub(crate) fn retained(&mut self, error: Option<&io::Error>) {
        let Some(error) = error else {
            self.is_changed |= self.health.retention_error.take().is_some();
            return;
        };
        self.retention_failures += 1;
        let text =
            format!("old records could not be removed and still take space: {error}; check its directory");
        self.log(LogTopic::Retention, text.clone());
        self.health.retention_error = Some(text.into());
        self.is_changed = true;
    }

    pub(crate) fn publish_metrics(&mut self, to: &StreamCounters) {
        to.waits.set(self.waits);
        to.failed_writes.set(self.failed_writes);
        to.slow_writes.set(self.slow_writes);
        to.damaged.set(self.damaged);
        to.torn.set(self.torn);
        to.read_failures.set(self.read_failures);
        to.retention_failures.set(self.retention_failures);
        self.publish(&to.health);
    }

    fn publish(&mut self, to: &SharedHealth) {
        if self.is_changed && to.set(&self.health) {
            self.is_changed = false;
        }
    }

    pub(crate) fn has_lines(&self) -> bool {
        self.pending > 0
    }

    /// Takes the next line that may be logged.
    pub(crate) fn next_line(&mut self, stream: &str, now_ns: SteadyNanos) -> Option<String> {
        if self.pending == 0 {
            return None;
        }
        let is_due = |line: &&mut LogLine| {
            let may = line.sent_ns.is_none_or(|sent| now_ns >= sent.after(NOTICE_EVERY_NS));
            line.text.is_some() && may
        };
        let line = self.lines.iter_mut().find(is_due)?;
        self.pending -= 1;
        line.sent_ns = Some(now_ns);
        line.wait = None;
        let mut text = format!("stream {stream}: {}", line.text.take()?);
        let replaced = std::mem::take(&mut line.replaced);
        if replaced > 0 {
            // Writing to a string does not fail.
            let _ = write!(text, " ({replaced} earlier changes omitted)");
        }
        Some(text)
    }

    fn set(&mut self, condition: StreamCondition, reason: Option<String>) {
        (self.health.condition, self.health.reason) = (condition, reason.map(Into::into));
        self.is_changed = true;
    }

    fn log(&mut self, topic: LogTopic, text: String) {
        let line = &mut self.lines[topic as usize];
        match line.text.replace(text) {
            Some(_) => line.replaced += 1,
            None => self.pending += 1,
        }
    }
}

fn seconds(span_ns: u64) -> String {
    format!("{:.1} s", span_ns as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> SteadyNanos {
        SteadyNanos::from_nanos(nanos)
    }

    #[test]
    fn lines_of_one_kind_are_limited_and_the_latest_is_never_dropped() {
        let mut log = HealthLog::default();
        let full = io::ErrorKind::StorageFull;
        log.wait("no space", full);
        let line = log.next_line("events", at(5)).expect("the first is reported at once");
        assert!(
            line.starts_with("stream events: waits for disk space") && line.contains("no space"),
            "{line}"
        );
        assert!(line.contains("free space on its volume"), "{line}");
        for _ in 0..10 {
            log.resume(2_000_000_000);
            log.wait("no space", full);
        }
        log.resume(1_500_000_000);
        assert_eq!(log.next_line("events", at(5 + NOTICE_EVERY_NS - 1)), None);
        let line = log.next_line("events", at(5 + NOTICE_EVERY_NS)).expect("its time has come");
        assert_eq!(
            line,
            "stream events: has disk space and is written again after 1.5 s of waiting for it: no space; free space on \
             its volume, no restart is needed (20 earlier changes omitted)"
        );
        assert!(!log.has_lines() && log.waits == 11);
        // Another kind has its own limit.
        log.freeze("EIO", io::ErrorKind::Other);
        log.freeze("EIO", io::ErrorKind::Other);
        assert!(log.next_line("events", at(5)).is_some_and(|line| line.contains("is frozen")));
        assert!(!log.has_lines());
    }

    /// Damage found while a stream is opened is logged, and counts once together with later findings of readers.
    #[test]
    fn damage_met_at_the_opening_is_logged_and_counted_once() {
        let (mut log, mut recovered, shared) =
            (HealthLog::default(), HealthLog::default(), SharedHealth::default());
        let damaged = Gap { first: 5, last: 7, cause: GapCause::Damaged };
        recovered.skipped(damaged);
        recovered.skipped(Gap { first: 9, last: 10, cause: GapCause::Torn });
        recovered.report_findings("segment-1: 512 bytes at 4096\n");
        log.open(recovered);
        log.publish(&shared);
        let shown = shared.get().damage.expect("it is shown");
        assert!(shown.contains("512 bytes at 4096; records 9 to 10 were cut off"), "{shown}");
        let line = log.next_line("events", at(0)).expect("it is logged");
        assert!(line.contains("records 9 to 10") && line.contains("1 earlier change"), "{line}");
        assert_eq!((log.damaged, log.torn, log.next_line("events", at(NOTICE_EVERY_NS))), (3, 2, None));
        log.skipped(Gap { last: 8, ..damaged });
        log.skipped(damaged);
        assert_eq!((log.damaged, log.torn), (4, 2));
        log.removed_before(11);
        log.skipped(damaged);
        assert_eq!(log.damaged, 7, "sequences below what is kept are not remembered");
    }

    #[test]
    fn what_was_shown_as_failed_is_shown_until_it_succeeds() {
        let (mut log, shared) = (HealthLog::default(), SharedHealth::default());
        log.read_failed(&io::Error::other("EIO"));
        log.retained(Some(&io::Error::other("EACCES")));
        log.skipped(Gap { first: 5, last: 7, cause: GapCause::Damaged });
        log.skipped(Gap { first: 1, last: 4, cause: GapCause::Removed });
        log.publish(&shared);
        let details = shared.get().details().map(str::to_owned).collect::<Vec<_>>();
        assert!(details.len() == 3 && details[0].contains("records 5 to 7"), "{details:?}");
        assert_eq!((log.damaged, log.read_failures, log.retention_failures), (3, 1, 1));
        log.read_succeeded();
        log.retained(None);
        log.publish(&shared);
        assert_eq!(shared.get().details().count(), 1, "damage stays");
    }
}
