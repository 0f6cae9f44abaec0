//! `stilling bench http`, this repository's generator: it checks every byte, times pipelined requests individually, and
//! can send requests on a schedule.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::XtaskResult;
use crate::steps::report;

/// A rate for a number of seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct LoadStep {
    pub(crate) rate: f64,
    pub(crate) seconds: f64,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum LoadShape {
    /// Closed loop: as fast as responses arrive, for `seconds`.
    Closed { seconds: f64, close: bool, pipeline: u32 },
    /// Open loop.
    Steps(Vec<LoadStep>),
    /// Open loop, each request over a new connection opened when the request is due.
    Clients(Vec<LoadStep>),
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct LoadPlan {
    pub(crate) connections: u32,
    /// Timeout of a client in seconds: for a connection, for a response, and before it begins.
    pub(crate) timeout_s: f64,
    pub(crate) manner: LoadShape,
}

/// A distribution in microseconds.
#[derive(Clone, Copy, Default, PartialEq, Debug, Deserialize)]
pub(crate) struct LatencySpread {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
}

#[derive(Clone, Default, PartialEq, Debug, Deserialize)]
pub(crate) struct LoadStepFigures {
    pub(crate) rate: f64,
    pub(crate) span_s: f64,
    pub(crate) due: u64,
    pub(crate) requests: u64,
    pub(crate) ok: u64,
    pub(crate) shed: u64,
    pub(crate) failed: u64,
    pub(crate) goodput_per_s: f64,
    pub(crate) latency: LatencySpread,
    pub(crate) refusal_latency: LatencySpread,
}

/// Figures of a tenth of a second.
#[derive(Clone, Copy, Default, PartialEq, Debug, Deserialize)]
pub(crate) struct LoadWindowFigures {
    pub(crate) at_s: f64,
    pub(crate) due: u64,
    pub(crate) ok: u64,
    pub(crate) mean_us: f64,
}

#[derive(Clone, Default, PartialEq, Debug, Deserialize)]
pub(crate) struct LoadReport {
    pub(crate) elapsed_s: f64,
    pub(crate) requests: u64,
    pub(crate) ok: u64,
    pub(crate) rate_per_s: f64,
    pub(crate) shed: u64,
    pub(crate) failures_total: u64,
    /// The first failure of each kind.
    pub(crate) evidence: std::collections::BTreeMap<String, String>,
    pub(crate) latency: LatencySpread,
    pub(crate) steps: Vec<LoadStepFigures>,
    pub(crate) windows: Vec<LoadWindowFigures>,
}

impl LoadPlan {
    fn options(&self) -> Vec<String> {
        let mut options = vec![format!("-c{}", self.connections), format!("--timeout={}", self.timeout_s)];
        match &self.manner {
            LoadShape::Closed { seconds, close, pipeline } => {
                options.push(format!("-d{seconds}"));
                if *close {
                    options.push("--close".to_owned());
                }
                if *pipeline > 1 {
                    options.push(format!("--pipeline={pipeline}"));
                }
            }
            LoadShape::Steps(steps) | LoadShape::Clients(steps) => {
                let steps: Vec<_> =
                    steps.iter().map(|step| format!("{:.0}:{}", step.rate, step.seconds)).collect();
                options.push(format!("--steps={}", steps.join(",")));
                if matches!(self.manner, LoadShape::Clients(_)) {
                    options.push("--close".to_owned());
                }
            }
        }
        options
    }

    pub(crate) fn command(&self, binary: &Path, url: &str) -> Command {
        let mut command = Command::new(binary);
        command.args(["bench", "http", url]).args(self.options()).arg("--json");
        command
    }

    /// The command as a reader types it.
    pub(crate) fn command_line(&self, path: &str) -> String {
        format!("stilling bench http URL{path} {}", self.options().join(" "))
    }

    /// Runs the generator to its end.
    ///
    /// # Errors
    /// If there is no report. Reported failures are figures, not errors.
    pub(crate) fn run(&self, binary: &Path, url: &str) -> XtaskResult<LoadReport> {
        report(&mut self.command(binary, url))
    }
}

pub(crate) fn read(printed: &str) -> Option<LoadReport> {
    serde_json::from_str(printed).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_shown_as_it_is_typed() {
        let plan = LoadPlan {
            connections: 9,
            timeout_s: 1.0,
            manner: LoadShape::Steps(vec![
                LoadStep { rate: 400.4, seconds: 2.5 },
                LoadStep { rate: 8000.0, seconds: 5.0 },
            ]),
        };
        assert_eq!(
            plan.command_line("/x"),
            "stilling bench http URL/x -c9 --timeout=1 --steps=400:2.5,8000:5"
        );
        let clients = LoadPlan {
            manner: LoadShape::Clients(vec![LoadStep { rate: 5.0, seconds: 1.0 }]),
            ..plan.clone()
        };
        assert_eq!(
            clients.command_line("/x"),
            "stilling bench http URL/x -c9 --timeout=1 --steps=5:1 --close"
        );
        let closed = |close, pipeline| LoadShape::Closed { seconds: 4.0, close, pipeline };
        let command_line = |manner| LoadPlan { manner, ..plan.clone() }.command_line("/x");
        assert!(
            command_line(closed(true, 1)).ends_with("-d4 --close")
                && command_line(closed(false, 16)).ends_with("--pipeline=16")
        );
    }

    #[test]
    fn a_report_is_read_and_anything_else_is_none() {
        let spread = r#"{"min_us":1,"p50_us":2,"p90_us":3,"p99_us":4,"p999_us":5,"max_us":6,"mean_us":2}"#;
        let text = format!(
            r#"{{"elapsed_s":1.5,"requests":3,"ok":2,"rate_per_s":2.0,"shed":1,"failures_total":0,"evidence":{{}},
                "latency":{spread},"windows":[{{"at_s":0.0,"due":3,"ok":2,"mean_us":2.5,"max_us":6}}],
                "steps":[{{"rate":2,"span_s":1.5,"due":3,"requests":3,"ok":2,"shed":1,"failed":0,
                "goodput_per_s":1.3,"latency":{spread},"refusal_latency":{spread}}}],"cpu_s":0.1}}"#
        );
        let report = read(&text).expect("it is whole");
        assert_eq!((report.ok, report.shed, report.latency.p999_us), (2, 1, 5.0));
        assert_eq!((report.steps[0].due, report.windows[0].mean_us), (3, 2.5));
        assert_eq!(read("error: connection refused"), None);
    }
}
