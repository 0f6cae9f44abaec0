//! A load of `stilling bench broadcast` on a server started for it.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde::Deserialize;

use super::clients::MeasuredClients;
use super::peers::RunningPeer;
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
    /// Further options of the generator.
    pub(super) further: &'static [&'static str],
    /// Further options of Stilling.
    pub(super) stilling_options: &'static [&'static str],
}

/// The part of a report that the tables show.
#[derive(Deserialize)]
pub(super) struct FanOutReport {
    elapsed_s: f64,
    pub(super) messages: u64,
    pub(super) deliveries: u64,
    pub(super) deliveries_per_s: f64,
    received_megabytes_per_s: f64,
    pub(super) latency: LatencyFigures,
    pub(super) failures_total: u64,
    pub(super) evidence: BTreeMap<String, String>,
    server_cpu_s_per_million: Option<f64>,
    pub(super) server_memory: Option<ServerMemoryFigures>,
    disturbance: Option<DisturbanceFigures>,
}

/// What disturbing subscribers did.
#[derive(Deserialize)]
pub(crate) struct DisturbanceFigures {
    pub(crate) elapsed_s: f64,
    pub(crate) joins: u64,
    pub(crate) reconnects: u64,
}

impl DisturbanceFigures {
    /// Subscriptions per second.
    fn rate(&self) -> f64 {
        (self.joins + self.reconnects) as f64 / self.elapsed_s
    }
}

/// Bytes of the server's own memory.
#[derive(Deserialize)]
pub(super) struct ServerMemoryFigures {
    pub(super) before: u64,
    /// Those that subscribed after `before`.
    subscribers: u32,
    pub(super) subscribed: u64,
    pub(super) delivered: u64,
}

#[derive(Deserialize)]
pub(super) struct LatencyFigures {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    p999_us: f64,
    pub(super) max_us: f64,
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
        options.extend(self.further.iter().map(|option| (*option).to_owned()));
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
    pub(super) fn measure(
        self,
        clients: &MeasuredClients,
        programs: &CollectPrograms,
    ) -> XtaskResult<BenchSample> {
        let folder = programs.folder.join("data");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let options = if clients.peer.is_stilling() { self.stilling_options } else { &[] };
        let running = clients.peer.start(programs, &folder, clients.stream, options)?;
        let report = self.generate(clients, programs, &running)?;
        let memory = running.server.peak_memory();
        drop(running);
        fs::remove_dir_all(&folder)?;
        Ok(report.sample(memory))
    }

    /// Runs the load on a started server.
    ///
    /// # Errors
    /// If there is no report.
    pub(super) fn generate(
        self,
        clients: &MeasuredClients,
        programs: &CollectPrograms,
        running: &RunningPeer,
    ) -> XtaskResult<FanOutReport> {
        let mut command = Command::new(&programs.stilling);
        command.args(["bench", "broadcast"]).args(clients.addresses(running)).args(self.options());
        command.arg(format!("--pid={}", running.server.first_process())).arg("--json");
        let report: FanOutReport = report(&mut command)?;
        for (kind, words) in &report.evidence {
            println!("  {}: {kind}: {words}", clients.name);
        }
        Ok(report)
    }
}

impl FanOutReport {
    fn sample(&self, memory: u64) -> BenchSample {
        let ms = |us: f64| (self.deliveries > 0).then_some(us / 1e3);
        let each = |memory: &ServerMemoryFigures| {
            (memory.subscribed as f64 - memory.before as f64) / f64::from(memory.subscribers)
        };
        BenchSample {
            requests: self.deliveries,
            took_s: self.elapsed_s,
            rate: self.deliveries_per_s,
            p50_ms: ms(self.latency.p50_us),
            p99_ms: ms(self.latency.p99_us),
            p999_ms: ms(self.latency.p999_us),
            max_ms: ms(self.latency.max_us),
            failures: self.failures_total,
            cpu_s: self.server_cpu_s_per_million.unwrap_or(f64::NAN),
            memory: Some(memory),
            memory_each: self.server_memory.as_ref().map(each),
            received_mb_s: Some(self.received_megabytes_per_s),
            disturbances_per_s: self.disturbance.as_ref().map(DisturbanceFigures::rate),
            ..BenchSample::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_a_disturbance_is_that_of_its_own_time() {
        let figures = |joins, reconnects| DisturbanceFigures { elapsed_s: 2.5, joins, reconnects }.rate();
        assert_eq!([figures(25_000, 0), figures(0, 2_000)], [10_000.0, 800.0]);
    }

    #[test]
    fn a_load_is_shown_as_it_is_typed() {
        let load = FanOutLoad {
            subscribers: 200,
            size: 64,
            window: 2048,
            seconds: 3,
            subjects: None,
            distinct_sids: true,
            further: &["--rate=5"],
            stilling_options: &["--max-output-held=70000"],
        };
        assert_eq!(
            load.shown(),
            "stilling bench broadcast ADDRESS --subscribers=200 --size=64 --window=2048 --seconds=3 --timeout=20 --distinct-sids --rate=5"
        );
        let shown = FanOutLoad { subjects: Some(7), ..load }.shown();
        assert!(shown.contains("--subjects=7") && !shown.contains("--subscribers"), "{shown}");
    }
}
