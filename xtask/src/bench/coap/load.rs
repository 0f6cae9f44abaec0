//! A load of `stilling bench coap` on a server started for it.

use std::collections::BTreeMap;
use std::process::Command;

use serde::Deserialize;

use super::peers::{CoapPeer, CoapPrograms};
use crate::XtaskResult;
use crate::bench::sample::BenchSample;
use crate::steps::report;

/// Seconds for a whole response, and for Java to start.
const TIMEOUT_S: u32 = 30;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct CoapLoad {
    /// Bytes of the body.
    pub(super) size: u32,
    pub(super) requests: u32,
    pub(super) sockets: u32,
    pub(super) window: u32,
    /// Further options of the generator.
    pub(super) further: &'static [&'static str],
}

/// The part of a report that the tables show.
#[derive(Deserialize)]
struct CoapLoadReport {
    elapsed_s: f64,
    completed: u64,
    completed_per_s: f64,
    duplicates: u64,
    latency: LatencyFigures,
    failures: BTreeMap<String, u64>,
    server_cpu_s_per_million: Option<f64>,
}

impl CoapLoadReport {
    /// Requests without a correct answer, and repeated answers. With injected faults, only wrong answers: all transmissions
    /// of a request can be lost, and answers can be repeated.
    fn failures(&self, injects_faults: bool) -> u64 {
        let all: u64 = self.failures.values().sum();
        match injects_faults {
            true => all - self.failures.get("timeout").copied().unwrap_or(0),
            false => all + self.duplicates,
        }
    }
}

#[derive(Deserialize)]
struct LatencyFigures {
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
}

impl CoapLoad {
    fn options(&self) -> Vec<String> {
        let mut options = vec![
            format!("--requests={}", self.requests),
            format!("--sockets={}", self.sockets),
            format!("--window={}", self.window),
            format!("--timeout={TIMEOUT_S}"),
            format!("--wait={TIMEOUT_S}"),
        ];
        options.extend(self.further.iter().map(|option| (*option).to_owned()));
        options
    }

    pub(super) fn injects_faults(&self) -> bool {
        self.further.iter().any(|option| option.starts_with("--loss") || option.starts_with("--duplication"))
    }

    /// The command as a reader types it.
    pub(super) fn shown(&self) -> String {
        format!("stilling bench coap URL {}", self.options().join(" "))
    }

    /// Starts the server, runs the load, ends the server.
    ///
    /// # Errors
    /// If the server does not start or there is no report. Failures are figures.
    pub(super) fn measure(self, peer: CoapPeer, programs: &CoapPrograms) -> XtaskResult<BenchSample> {
        let running = peer.start(programs, self.size)?;
        let url = format!("coap://{}/{}", running.server.address, running.path);
        let mut command = Command::new(&programs.stilling);
        command.args(["bench", "coap", &url]).args(self.options());
        command.arg(format!("--pid={}", running.server.first_process())).arg("--json");
        let found: CoapLoadReport = report(&mut command)?;
        let ms = |us: f64| (found.completed > 0).then_some(us / 1e3);
        Ok(BenchSample {
            requests: found.completed,
            took_s: found.elapsed_s,
            rate: found.completed_per_s,
            p50_ms: ms(found.latency.p50_us),
            p99_ms: ms(found.latency.p99_us),
            p999_ms: ms(found.latency.p999_us),
            max_ms: ms(found.latency.max_us),
            failures: found.failures(self.injects_faults()),
            cpu_s: found.server_cpu_s_per_million.unwrap_or(f64::NAN),
            memory: Some(running.server.peak_memory()),
            ..BenchSample::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_injected_faults_only_wrong_answers_are_failures() {
        let text = r#"{"elapsed_s":1.0,"completed":1,"completed_per_s":1.0,"duplicates":4,
            "latency":{"p50_us":1.0,"p99_us":1.0,"p999_us":1.0,"max_us":1.0},
            "failures":{"timeout":2,"wrong_body":1},"server_cpu_s_per_million":null}"#;
        let report: CoapLoadReport = serde_json::from_str(text).expect("it is a report");
        assert_eq!((report.failures(true), report.failures(false)), (1, 7));
    }

    #[test]
    fn a_load_is_shown_as_it_is_typed() {
        let load = CoapLoad { size: 64, requests: 9, sockets: 2, window: 3, further: &["--loss=10"] };
        assert_eq!(
            load.shown(),
            "stilling bench coap URL --requests=9 --sockets=2 --window=3 --timeout=30 --wait=30 --loss=10"
        );
        assert!(load.injects_faults() && !CoapLoad { further: &[], ..load }.injects_faults());
    }
}
