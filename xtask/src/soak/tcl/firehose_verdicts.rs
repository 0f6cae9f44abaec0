//! The figures of a firehose in one receive mode, and their limits.

use super::super::SoakVerdict;
use super::firehose::{CLIENTS, FirehoseMode, ScriptStats};
use crate::bench::figures::{mebibytes, thousands, unknown};

/// Resident memory beyond the bytes received ahead, in bytes: blocks and headers of the allocator, and the values of the
/// script that reads.
pub(super) const OVERHEAD_MAX: u64 = 2 * 1024 * 1024;

/// Resident memory after the load beyond that before it, in bytes: blocks that the allocator and Tcl keep for reuse.
pub(super) const KEPT_MAX: u64 = 1024 * 1024;

/// Row 3.24: longest time until one receive at once is outstanding per connection again.
const DECAY_MAX_S: f64 = 5.0;

/// Figures of one mode; memory is that of the process, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirehoseFigures {
    pub(super) mode: FirehoseMode,
    pub(super) span_s: f64,
    pub(super) sent: u64,
    /// Bytes that the script had read when the clients stopped.
    pub(super) read: u64,
    /// Bytes sent and not read then.
    pub(super) waiting: u64,
    /// Maxima.
    pub(super) most: ScriptStats,
    pub(super) idle: ScriptStats,
    pub(super) closed: ScriptStats,
    /// Time from the last read until all is as before the load; `None`: not in time.
    pub(super) decay_s: Option<f64>,
    pub(super) idle_resident: u64,
    pub(super) flooded_resident: u64,
    pub(super) returned_resident: u64,
    pub(super) closed_resident: u64,
    pub(super) ended_well: bool,
}

impl FirehoseFigures {
    /// The most bytes of all connections that may be received ahead.
    fn ahead_max(&self) -> u64 {
        self.mode.ahead_max * CLIENTS as u64
    }

    pub(super) fn verdicts(&self) -> Vec<SoakVerdict> {
        let judged = |what: &str, limit: String, holds: bool, measured: String| SoakVerdict {
            what: format!("{}: {what}", self.mode.option),
            limit,
            holds,
            measured,
        };
        let mut verdicts = vec![
            judged(
                "reads with wrong bytes",
                "0".to_owned(),
                self.closed.wrong == 0 && self.closed.received == self.sent && self.sent > 0,
                format!(
                    "{} in {}; {}/s while the clients sent",
                    self.closed.wrong,
                    mebibytes(self.sent),
                    mebibytes((self.read as f64 / self.span_s) as u64)
                ),
            ),
            self.took_place(judged),
            judged(
                "bytes received ahead of the script",
                format!("≤ {}", thousands(self.ahead_max() as f64)),
                self.most.special <= self.ahead_max(),
                format!("{} at most", thousands(self.most.special as f64)),
            ),
        ];
        verdicts.extend(self.burst_verdicts(judged));
        verdicts.extend(self.memory_verdicts(judged));
        verdicts.push(judged(
            "the script ends",
            "status 0".to_owned(),
            self.ended_well,
            if self.ended_well { "status 0" } else { "it did not" }.to_owned(),
        ));
        verdicts
    }

    /// The script reads too slowly only if more waits for it than it may receive ahead.
    fn took_place(&self, judged: impl Fn(&str, String, bool, String) -> SoakVerdict) -> SoakVerdict {
        judged(
            "took place: bytes that wait in the system, too",
            format!("> {}", mebibytes(self.ahead_max())),
            self.waiting > self.ahead_max(),
            mebibytes(self.waiting),
        )
    }

    fn burst_verdicts(&self, judged: impl Fn(&str, String, bool, String) -> SoakVerdict) -> Vec<SoakVerdict> {
        if !self.mode.has_bursts {
            return Vec::new();
        }
        let (idle, most) = (self.idle.outstanding, self.most.outstanding);
        vec![
            judged(
                "took place: receives at once",
                format!("> {idle}"),
                most > idle && idle == CLIENTS as u64,
                format!("{most} of {CLIENTS} connections; {} buffers waited", self.most.pending),
            ),
            judged(
                "one receive at once per connection again",
                format!("< {DECAY_MAX_S} s"),
                self.decay_s.is_some_and(|seconds| seconds < DECAY_MAX_S),
                self.decay_s.map_or_else(unknown, |seconds| format!("{seconds:.1} s after the last read")),
            ),
        ]
    }

    fn memory_verdicts(
        &self,
        judged: impl Fn(&str, String, bool, String) -> SoakVerdict,
    ) -> Vec<SoakVerdict> {
        let flooded_max = self.idle_resident + self.ahead_max() + OVERHEAD_MAX;
        let kept_max = self.idle_resident + KEPT_MAX;
        vec![
            judged(
                "resident memory, at most",
                format!("≤ {}", mebibytes(flooded_max)),
                self.flooded_resident <= flooded_max && self.flooded_resident > 0,
                format!("{}; {} before", mebibytes(self.flooded_resident), mebibytes(self.idle_resident)),
            ),
            judged(
                "resident memory after the last read",
                format!("≤ {}", mebibytes(kept_max)),
                self.returned_resident <= kept_max && self.decay_s.is_some(),
                format!(
                    "{}; {} with all connections closed",
                    mebibytes(self.returned_resident),
                    mebibytes(self.closed_resident)
                ),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::firehose::MODES;
    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn figures_of(mode: FirehoseMode) -> FirehoseFigures {
        let (count, ahead_max) = (CLIENTS as u64, mode.ahead_max * CLIENTS as u64);
        let idle = ScriptStats { open: count, outstanding: count, ..ScriptStats::default() };
        FirehoseFigures {
            mode,
            span_s: 10.0,
            sent: 400 * MIB,
            read: 300 * MIB,
            waiting: 100 * MIB,
            most: ScriptStats { outstanding: 20 * count, special: ahead_max, ..idle },
            idle,
            closed: ScriptStats { received: 400 * MIB, ..ScriptStats::default() },
            decay_s: Some(4.9),
            idle_resident: 8 * MIB,
            flooded_resident: 8 * MIB + ahead_max + OVERHEAD_MAX,
            returned_resident: 8 * MIB + KEPT_MAX,
            closed_resident: 8 * MIB,
            ended_well: true,
        }
    }

    fn missed(mode: FirehoseMode, change: fn(&mut FirehoseFigures)) -> Vec<String> {
        let mut figures = figures_of(mode);
        change(&mut figures);
        let missed = figures.verdicts().into_iter().filter(|verdict| !verdict.holds);
        missed.map(|verdict| verdict.what.split_once(": ").expect("the mode").1.to_owned()).collect()
    }

    /// Rows 3.15 and 3.23: in each mode, each criterion is checked.
    #[test]
    fn bytes_and_memory_are_checked_in_every_mode() {
        for mode in MODES {
            assert!(missed(mode, |_| ()).is_empty());
            assert_eq!(missed(mode, |found| found.closed.wrong = 1), ["reads with wrong bytes"]);
            assert_eq!(missed(mode, |found| found.closed.received -= 1), ["reads with wrong bytes"]);
            let took_place = ["took place: bytes that wait in the system, too"];
            assert_eq!(missed(mode, |found| found.waiting = found.ahead_max()), took_place);
            let ahead = ["bytes received ahead of the script"];
            assert_eq!(missed(mode, |found| found.most.special += 1), ahead);
            let most = ["resident memory, at most"];
            assert_eq!(missed(mode, |found| found.flooded_resident += 1), most);
            assert_eq!(missed(mode, |found| found.flooded_resident = 0), most);
            let after = ["resident memory after the last read"];
            assert_eq!(missed(mode, |found| found.returned_resident += 1), after);
            assert_eq!(missed(mode, |found| found.ended_well = false), ["the script ends"]);
        }
    }

    /// Row 3.24: the receives at once rise in a burst, and fall again in time.
    #[test]
    fn the_decay_of_a_burst_is_checked() {
        let mode = MODES[2];
        assert!(mode.has_bursts);
        let decay = ["one receive at once per connection again"];
        assert_eq!(missed(mode, |found| found.decay_s = Some(5.0)), decay);
        assert_eq!(missed(mode, |found| found.decay_s = None).len(), 2);
        let took_place = ["took place: receives at once"];
        assert_eq!(missed(mode, |found| found.most.outstanding = found.idle.outstanding), took_place);
    }
}
