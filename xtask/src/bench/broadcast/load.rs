//! A load of `stilling bench broadcast` on a server started for it.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde::Deserialize;

use super::peers::{BroadcastPeer, BroadcastStream};
use crate::XtaskResult;
use crate::bench::collect::CollectPrograms;
use crate::bench::sample::BenchSample;
use crate::steps::report;

/// Longest time without a delivery.
const TIMEOUT_S: u32 = 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FanOutLoad {
    pub(super) subscribers: u32,
    pub(super) size: u32,
    pub(super) window: u32,
    pub(super) seconds: u32,
    pub(super) subjects: Option<u32>,
    pub(super) distinct_sids: bool,
}

#[derive(Deserialize)]
struct FanOutReport {
    elapsed_s: f64,
    deliveries: u64,
    deliveries_per_s: f64,
    latency: LatencyFigures,
    failures_total: u64,
    evidence: BTreeMap<String, String>,
    server_cpu_s_per_million: Option<f64>,
}

#[derive(Deserialize)]
pub(super) struct LatencyFigures {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    p999_us: f64,
    max_us: f64,
}

impl FanOutLoad {
    fn options(&self) -> Vec<String> {
        let receivers = match self.subjects {
            Some(subjects) => format!("--subjects={subjects}"),
            None => format!("--subscribers={}", self.subscribers),
        };
        let mut options = vec![
            receivers,
            format!("--size={}", self.size),
            format!("--window={}", self.window),
            format!("--seconds={}", self.seconds),
            format!("--timeout={TIMEOUT_S}"),
        ];
        options.extend(self.distinct_sids.then(|| "--distinct-sids".to_owned()));
        options
    }

    /// The command as a reader types it.
    pub(super) fn shown(&self) -> String {
        format!("stilling bench broadcast ADDRESS {}", self.options().join(" "))
    }

    /// Starts the server, runs the load, ends the server.
    ///
    /// # Errors
    /// If the server does not start or there is no report. Failures are figures.
    pub(super) fn measure(self, peer: BroadcastPeer, place: &CollectPrograms) -> XtaskResult<BenchSample> {
        let folder = place.folder.join("data");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let server = peer.start(place, &folder, BroadcastStream::None)?;
        let mut command = Command::new(&place.stilling);
        command.args(["bench", "broadcast", &server.address.to_string()]).args(self.options());
        command.arg(format!("--protocol={}", peer.protocol()));
        command.arg(format!("--pid={}", server.first_process())).arg("--json");
        let report: FanOutReport = report(&mut command)?;
        for (kind, words) in &report.evidence {
            println!("  {}: {kind}: {words}", peer.name());
        }
        let memory = server.peak_memory();
        drop(server);
        fs::remove_dir_all(&folder)?;
        let ms = |us: f64| (report.deliveries > 0).then_some(us / 1e3);
        Ok(BenchSample {
            requests: report.deliveries,
            took_s: report.elapsed_s,
            rate: report.deliveries_per_s,
            p50_ms: ms(report.latency.p50_us),
            p99_ms: ms(report.latency.p99_us),
            p999_ms: ms(report.latency.p999_us),
            max_ms: ms(report.latency.max_us),
            failures: report.failures_total,
            cpu_s: report.server_cpu_s_per_million.unwrap_or(f64::NAN),
            memory: Some(memory),
            ..BenchSample::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_shown_as_it_is_typed() {
        let load = FanOutLoad {
            subscribers: 200,
            size: 64,
            window: 2048,
            seconds: 3,
            subjects: None,
            distinct_sids: true,
        };
        assert_eq!(
            load.shown(),
            "stilling bench broadcast ADDRESS --subscribers=200 --size=64 --window=2048 --seconds=3 --timeout=20 --distinct-sids"
        );
        let shown = FanOutLoad { subjects: Some(7), ..load }.shown();
        assert!(shown.contains("--subjects=7") && !shown.contains("--subscribers"), "{shown}");
    }
}
