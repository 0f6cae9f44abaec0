//! An open loop of more fast requests than can be answered: overload of a server that is as fast as its clients. The
//! generator shares the cores: beyond the capacity both lack CPU time, so the figures describe the pair: whether its
//! goodput holds, and when it recovers.

use super::HttpBench;
use super::figures::{self, PageSection};
use super::harness;
use super::load_generator::{LoadPlan, LoadReport, LoadShape, LoadStep};
use super::overload;
use crate::XtaskResult;

pub(super) const TITLE: &str = "Overload with fast requests";

const FAST: &str = "/test/fast";

/// Connections, enough that a pause on one of them delays few requests.
const CONNECTIONS: u32 = 256;

/// Timeout of a client, in seconds: requests due in this time fit into the generator's backlog and are soon worked off.
const TIMEOUT_S: f64 = 0.25;

/// The loads, in multiples of the capacity.
const MULTIPLES: [f64; 4] = [0.5, 1.0, 2.0, 0.5];

fn plan(capacity: f64, seconds: f64) -> LoadPlan {
    let steps = MULTIPLES.map(|multiple| LoadStep { rate: capacity * multiple, seconds });
    LoadPlan { connections: CONNECTIONS, timeout_s: TIMEOUT_S, manner: LoadShape::Steps(steps.to_vec()) }
}

impl HttpBench {
    /// Up to twice as many fast requests as a closed loop answers, and back.
    pub(super) fn flood(&self) -> XtaskResult<Vec<PageSection>> {
        let seconds = if self.options.quick { 1.0 } else { 3.0 };
        let servers = self.contenders()?;
        let runs = harness::run_rounds(self.options.rounds, &servers, |round, server| {
            println!("fast overload, round {round}, {}", server.name);
            let url = server.url(FAST);
            let manner = LoadShape::Closed { seconds, close: false, pipeline: 1 };
            let probe = LoadPlan { connections: CONNECTIONS, timeout_s: 30.0, manner };
            let capacity = probe.run(self.binary(), &url)?.rate_per_s;
            plan(capacity.max(1.0), seconds).run(self.binary(), &url)
        })?;
        let mut table = figures::table(
            "server | load | due/s | sent/s | goodput/s | p50 ms | p99 ms | timed out or failed | \
             recovered after s",
        );
        for (server, runs) in servers.iter().zip(&runs) {
            table.extend((0..MULTIPLES.len()).map(|at| row(server.name, runs, at)));
        }
        let description = format!(
            "`{}`: at {} times what the server answers in a closed loop over as many connections. At twice the capacity \
             the generator cannot keep up either (*sent/s*): it needs the same cores. Requests that found no free \
             connection for {TIMEOUT_S} s are not sent. No server refuses anything here; the queue is in the sockets.",
            plan(100_000.0, seconds).command_line(FAST),
            MULTIPLES.map(|multiple| multiple.to_string()).join(", "),
        );
        Ok(vec![PageSection { title: TITLE.to_owned(), description, table }])
    }
}

fn row(name: &str, runs: &[LoadReport], at: usize) -> Vec<String> {
    let spread =
        |of: &dyn Fn(&LoadReport) -> f64, show: fn(f64) -> String| figures::spread(runs.iter().map(of), show);
    let step = |report: &LoadReport| report.steps[at].clone();
    let again = if at + 1 == MULTIPLES.len() {
        overload::recovery(runs, at).map_or_else(|| "not".to_owned(), |seconds| format!("{seconds:.1}"))
    } else {
        String::new()
    };
    vec![
        name.to_owned(),
        format!("{} ×", MULTIPLES[at]),
        spread(&|report| step(report).rate, figures::thousands),
        spread(&|report| step(report).requests as f64 / step(report).span_s, figures::thousands),
        spread(&|report| step(report).goodput_per_s, figures::thousands),
        spread(&|report| step(report).latency.p50_us / 1e3, figures::two_places),
        spread(&|report| step(report).latency.p99_us / 1e3, figures::two_places),
        spread(&|report| (step(report).failed + step(report).shed) as f64, figures::thousands),
        again,
    ]
}

#[cfg(test)]
mod tests {
    use super::super::load_generator::{LoadStepFigures, LoadWindowFigures};
    use super::*;

    #[test]
    fn only_the_way_back_has_a_time_until_normal() {
        let window =
            |at: u32| LoadWindowFigures { at_s: f64::from(at) / 10.0, due: 2, ok: 2, mean_us: 100.0 };
        let steps = MULTIPLES.map(|multiple| LoadStepFigures {
            rate: multiple * 100.0,
            span_s: 1.0,
            requests: 40,
            goodput_per_s: 39.0,
            ..LoadStepFigures::default()
        });
        let report = LoadReport {
            steps: steps.to_vec(),
            windows: (0..40).map(window).collect(),
            ..LoadReport::default()
        };
        let rows: Vec<_> = (0..4).map(|at| row("one", std::slice::from_ref(&report), at)).collect();
        assert_eq!(rows[2][..5], ["one", "2 ×", "200", "40", "39"]);
        assert_eq!(rows.iter().map(|row| row[8].as_str()).collect::<Vec<_>>(), ["", "", "", "0.0"]);
    }
}
