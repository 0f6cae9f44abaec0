//! Clients of a process whose script blocks an event loop again and again.

use super::TclBench;
use super::exchanges::compared;
use super::peers::{COMPARED, OWN, TclPeer, TclServer};
use crate::XtaskResult;
use crate::bench::figures::{self, PageSection, Series};
use crate::bench::harness;
use crate::bench::targets::BenchTarget;

pub(super) const CONNECTS: &str = "Connects to a script that blocks";

pub(super) const OTHER_THREAD: &str = "Exchanges beside a script that blocks another thread";

const SCRIPT: &str = "xtask/src/bench/tcl/slow.tcl";

/// Row 3.28: most time of a client at the 99th percentile, in milliseconds.
const P99_MS_MAX: f64 = 10.0;

impl TclBench {
    /// Row 3.28: connects while the listener's own thread is blocked.
    pub(super) fn connects_to_blocked(&self) -> XtaskResult<PageSection> {
        let mut section = self.beside_slow_script(CONNECTS, "blocked", &["connect"])?;
        section.description += " One connect after another, with 2 ms between them; the times are those of connect(2), which the \
             system completes while the script blocks.";
        Ok(section)
    }

    /// Row 3.28: what another thread accepts and receives meanwhile.
    pub(super) fn beside_blocked_thread(&self) -> XtaskResult<PageSection> {
        let mut section = self.beside_slow_script(OTHER_THREAD, "other", &["exchange", "--close"])?;
        section.description +=
            " The other thread has a listener of its own; the times are those from a connect to the answer.";
        Ok(section)
    }

    fn beside_slow_script(
        &self,
        title: &'static str,
        listener: &'static str,
        load: &[&str],
    ) -> XtaskResult<PageSection> {
        let mut options: Vec<String> = load.iter().map(|word| (*word).to_owned()).collect();
        options.push(format!("--seconds={}", self.slow_script_seconds()));
        let peers = self.available(&COMPARED);
        let series = harness::series(self.options.rounds, title, &peers, |peer| {
            let server = self.programs.start(*peer, TclServer { script: SCRIPT, arguments: &[listener] })?;
            let (report, cpu_s) = self.programs.load(&server, &options)?;
            Ok(report.sample(cpu_s))
        })?;
        for name in OWN.map(TclPeer::name) {
            let Some(Series { samples, .. }) = series.iter().find(|series| series.server == name) else {
                continue;
            };
            let p99 = samples.iter().map(|sample| sample.p99_ms).collect::<Option<_>>().map(figures::median);
            let what = format!("row 3.28, p99, {name}: {title}");
            self.add_target(BenchTarget::at_most(what, P99_MS_MAX, p99, "ms"));
            let failures = samples.iter().map(|sample| sample.failures as f64).sum();
            let what = format!("failures, {name}: {title}");
            self.add_target(BenchTarget::at_most(what, 0.0, Some(failures), ""));
        }
        let description = format!(
            "`tcp {} ADDRESS` to `slow.tcl … {listener}`, a script that blocks its thread for 500 ms, then leaves 100 ms to other \
             events, again and again.",
            options.join(" ")
        );
        Ok(PageSection { title: title.to_owned(), description, table: compared(&series) })
    }

    /// Seconds of one load: several blocks, also in a reduced load.
    fn slow_script_seconds(&self) -> u32 {
        self.seconds().max(3)
    }
}
