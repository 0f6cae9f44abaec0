//! Slow work: the known figures of server-demo, and whether fast requests disturb slow ones.

use std::net::SocketAddr;

use super::figures::{self, PageSection, Series};
use super::harness;
use super::load::{BenchEnvironment, HttpLoad};
use super::sample::BenchSample;
use super::server::{BenchDriver, BenchServer};
use super::targets::BenchTarget;
use super::{HttpBench, machine};
use crate::XtaskResult;

pub(super) const KNOWN_TITLE: &str = "The figures of server-demo";

pub(super) const BESIDE_FAST_TITLE: &str = "Slow requests beside fast ones";

/// Requests of a background load, which is ended before it completes them. No more, because `ab` reserves 32 bytes for
/// each.
const WITHOUT_END: u64 = 20_000_000;

/// Row 4.29: most growth of the slow requests' p99, in milliseconds; compared with nginx, most growth beyond nginx's.
const SLOW_EXTRA_MS: f64 = 1.0;

/// A line of server-demo's report, repeated.
struct ReferenceRow {
    /// The row of the requirements, and the reported figures.
    row: &'static str,
    reported: &'static str,
    options: &'static [&'static str],
    path: &'static str,
    requests: u64,
    connections: u32,
    goal: Option<ReferenceTarget>,
}

#[derive(Clone, Copy)]
enum ReferenceTarget {
    /// Most milliseconds of the median.
    MedianMs(f64),
    /// Most seconds for all requests.
    TookS(f64),
    /// Least requests per second.
    Rate(f64),
}

impl ReferenceTarget {
    fn target(self, what: String, samples: &[BenchSample]) -> BenchTarget {
        let all = |of: fn(&BenchSample) -> Option<f64>| samples.iter().map(of).collect::<Option<Vec<f64>>>();
        let median = |of| all(of).filter(|all| !all.is_empty()).map(figures::median);
        match self {
            ReferenceTarget::MedianMs(most) => {
                BenchTarget::at_most(format!("{what}: median"), most, median(|sample| sample.p50_ms), "ms")
            }
            ReferenceTarget::TookS(most) => {
                BenchTarget::at_most(format!("{what}: time"), most, median(|sample| Some(sample.took_s)), "s")
            }
            ReferenceTarget::Rate(least) => BenchTarget::at_least(
                format!("{what}: requests/s"),
                least,
                median(|sample| Some(sample.rate)),
                "",
            ),
        }
    }
}

const FAST: &str = "/test/fast";
const SLOW: &str = "/test/slow";

const KNOWN: [ReferenceRow; 8] = [
    ReferenceRow {
        row: "4.20",
        reported: "0.250 ms",
        options: &[],
        path: FAST,
        requests: 1,
        connections: 1,
        goal: Some(ReferenceTarget::MedianMs(0.250)),
    },
    ReferenceRow {
        row: "4.20",
        reported: "30.389 ms",
        options: &[],
        path: SLOW,
        requests: 1,
        connections: 1,
        goal: Some(ReferenceTarget::MedianMs(30.389)),
    },
    ReferenceRow {
        row: "4.21",
        reported: "28,212/s",
        options: &[],
        path: FAST,
        requests: 100_000,
        connections: 1,
        goal: Some(ReferenceTarget::Rate(28_212.0)),
    },
    ReferenceRow {
        row: "4.22",
        reported: "3.035 s",
        options: &["--queue-target", "off"],
        path: SLOW,
        requests: 100,
        connections: 1,
        goal: Some(ReferenceTarget::TookS(3.04)),
    },
    ReferenceRow {
        row: "4.23",
        reported: "39,432/s",
        options: &["-A", "10"],
        path: FAST,
        requests: 100_000,
        connections: 10,
        goal: Some(ReferenceTarget::Rate(39_432.0)),
    },
    ReferenceRow {
        row: "4.24",
        reported: "0.307 s",
        options: &["-A", "10", "--queue-target", "off"],
        path: SLOW,
        requests: 100,
        connections: 10,
        goal: Some(ReferenceTarget::Rate(326.0)),
    },
    ReferenceRow {
        row: "4.25",
        reported: "15.053 s, median 3,008 ms",
        options: &["-C", "1000", "-A", "100", "-w", "1", "--queue-target", "off"],
        path: SLOW,
        requests: 500,
        connections: 100,
        goal: Some(ReferenceTarget::TookS(15.1)),
    },
    ReferenceRow {
        row: "4.26",
        reported: "(without a limit) 3,008 ms",
        options: &["-C", "1000", "-A", "100", "-w", "1", "--queue-target", "off", "--queue-timeout", "0.3"],
        path: SLOW,
        requests: 500,
        connections: 100,
        goal: None,
    },
];

impl HttpBench {
    /// The `ab` commands of server-demo's report.
    pub(super) fn reference_figures(&self) -> XtaskResult<Vec<PageSection>> {
        let mut table = figures::table(
            "row | command | options | server-demo reported | server | took s | requests/s | p50 ms | \
             max ms | not 2xx | failed",
        );
        for known in &KNOWN {
            let mut servers = vec![
                self.stilling(BenchDriver::Uring, known.options)?,
                self.stilling(BenchDriver::Poll, known.options)?,
            ];
            if known.path == FAST {
                servers.push(BenchServer::nginx(self.folder(), machine::cores(), None, None)?);
            }
            if !known.options.contains(&"-A") {
                servers.push(self.hyper(machine::cores() as u64, 30)?);
            }
            // Slow requests have a fixed duration; only the fast ones are many.
            let requests =
                if known.requests > 1000 { self.quick_or_full(known.requests) } else { known.requests };
            let load = HttpLoad::Ab { requests, connections: known.connections, keep: false };
            let title = format!("row {}", known.row);
            let series = harness::series(self.options.rounds, &title, &servers, |server| {
                load.measure(server, known.path, &self.environment)
            })?;
            for series in &series {
                if let Some(goal) = known.goal.filter(|_| series.server.starts_with("stilling")) {
                    let what =
                        format!("row {}, `{}`, {}", known.row, load.command_line(known.path), series.server);
                    self.add_target(goal.target(what, &series.samples));
                }
                table.push(reference_row(known, &load, series));
            }
        }
        let description = "The `ab` commands of the report of server-demo, whose figures come from another, older \
                     machine; they are targets here too (in the table of targets, by their \
             rows). nginx has no slow work and is compared for the fast ones only, hyper for those with one client. server-demo never refuses, so rows 4.22 to 4.26 are \
                     measured with `--queue-target off`; by default, a load like that of 4.25 is answered 503. Row 4.26 repeats 4.25 with a maximum wait: requests that \
             waited longer are answered 503, and the times are those of all answers, 503 or not.";
        Ok(vec![PageSection { title: KNOWN_TITLE.to_owned(), description: description.to_owned(), table }])
    }

    /// Slow requests alone, and beside as many fast ones as the server can answer.
    pub(super) fn slow_beside_fast(&self) -> XtaskResult<Vec<PageSection>> {
        let workers: &[&str] = &["-w", "300"];
        let backend = self.stilling(BenchDriver::Uring, workers)?;
        let behind_nginx: Option<SocketAddr> = Some(backend.address);
        let servers = [
            self.stilling(BenchDriver::Uring, workers)?,
            self.stilling(BenchDriver::Poll, workers)?,
            BenchServer::nginx(self.folder(), machine::cores(), behind_nginx, None)?,
            self.hyper(300, 30)?,
        ];
        let slow = HttpLoad::Ab { requests: self.quick_or_full(20_000), connections: 100, keep: false };
        let fast = HttpLoad::Ab { requests: WITHOUT_END, connections: 100, keep: false };
        let beside = BenchEnvironment { folder: self.folder().join("beside"), ..self.environment.clone() };
        std::fs::create_dir_all(&beside.folder)?;
        let measurements = harness::run_rounds(self.options.rounds, &servers, |round, server| {
            println!("slow beside fast, round {round}, {}", server.name);
            let alone = slow.measure(server, SLOW, &self.environment)?;
            let mut saturating = fast.run_in_background(server, FAST, &beside)?;
            let together = slow.measure(server, SLOW, &self.environment)?;
            if !saturating.is_running() {
                return Err(format!("{}: the fast load ended before the slow one", server.name).into());
            }
            Ok((alone, together))
        })?;
        let mut table = figures::table(
            "server | p50 ms alone | p99 ms alone | p50 ms beside | p99 ms beside | added to p99 | failures",
        );
        let mut all = Vec::new();
        for (server, measurements) in servers.iter().zip(measurements) {
            let (alone, together) = measurements.into_iter().unzip();
            let [alone, together] = [alone, together].map(|samples| Series { server: server.name, samples });
            table.push(beside_row(&alone, &together));
            all.push(added_ms(&alone, &together));
        }
        let mut all = all.into_iter();
        let mut added = || all.next().flatten();
        let (uring, poll, nginx) = (added(), added(), added());
        for (name, measured) in [("uring", uring), ("poll", poll)] {
            let what = format!("row 4.29: what fast requests add to the p99 of slow ones, stilling {name}");
            self.add_target(BenchTarget::at_most(what, SLOW_EXTRA_MS, measured, "ms"));
            if let Some(nginx) = nginx {
                let what = format!(
                    "what fast requests add to the p99 of slow ones, stilling {name}, as nginx + 1 ms"
                );
                self.add_target(BenchTarget::at_most(what, nginx + SLOW_EXTRA_MS, measured, "ms"));
            }
        }
        let description = format!(
            "`{}` of 30 ms each: alone, and while `ab -q -c 100 URL{FAST}` (a connection per request) sends as fast \
             as it is answered. The servers have 300 worker threads (`-w 300`). nginx has no slow work, so it \
             passes these requests on to a `stilling serve --driver uring -w 300` of its own, which costs it a \
             second hop. hyper blocks 300 threads of `spawn_blocking`. Both generators run on the cores that the server runs on, so the added latency includes their own wait for a core.",
            slow.command_line(SLOW)
        );
        Ok(vec![PageSection { title: BESIDE_FAST_TITLE.to_owned(), description, table }])
    }
}

fn reference_row(known: &ReferenceRow, load: &HttpLoad, series: &Series) -> Vec<String> {
    let Series { server, samples } = series;
    let spread =
        |of: fn(&BenchSample) -> f64, show: fn(f64) -> String| figures::spread(samples.iter().map(of), show);
    let latency = |of: fn(&BenchSample) -> Option<f64>| reference_spread(samples, of);
    vec![
        known.row.to_owned(),
        format!("`{}`", load.command_line(known.path)),
        if server.starts_with("stilling") { known.options.join(" ") } else { String::new() },
        known.reported.to_owned(),
        (*server).to_owned(),
        spread(|sample| sample.took_s, |seconds| format!("{seconds:.3}")),
        spread(|sample| sample.rate, figures::thousands),
        latency(|sample| sample.p50_ms),
        latency(|sample| sample.max_ms),
        spread(|sample| sample.refused as f64, figures::thousands),
        samples.iter().map(|sample| sample.failures).sum::<u64>().to_string(),
    ]
}

fn reference_spread(samples: &[BenchSample], of: fn(&BenchSample) -> Option<f64>) -> String {
    figures::spread_of_measured(samples.iter().map(of), figures::two_places)
}

/// Median growth of the 99th percentile within each round, in milliseconds.
fn added_ms(alone: &Series, together: &Series) -> Option<f64> {
    let rounds = alone.samples.iter().zip(&together.samples);
    let added: Option<Vec<_>> =
        rounds.map(|(alone, together)| Some(together.p99_ms? - alone.p99_ms?)).collect();
    added.map(figures::median)
}

fn beside_row(alone: &Series, together: &Series) -> Vec<String> {
    let p50 = |series: &Series| reference_spread(&series.samples, |sample| sample.p50_ms);
    let p99 = |series: &Series| reference_spread(&series.samples, |sample| sample.p99_ms);
    let added = added_ms(alone, together).map_or_else(figures::unknown, |added| format!("{added:+.2} ms"));
    let both = alone.samples.iter().chain(&together.samples);
    let failures = both.map(|sample| sample.failures + sample.refused).sum::<u64>();
    vec![
        alone.server.to_owned(),
        p50(alone),
        p99(alone),
        p50(together),
        p99(together),
        added,
        failures.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_of_slow_requests_by_fast_ones_is_computed_within_rounds() {
        let series = |p99s: [f64; 3]| Series {
            server: "one",
            samples: p99s
                .map(|p99_ms| BenchSample { p99_ms: Some(p99_ms), failures: 1, ..BenchSample::default() })
                .to_vec(),
        };
        let row = beside_row(&series([30.0, 31.0, 40.0]), &series([31.0, 33.0, 41.0]));
        assert_eq!(row[5..], ["+1.00 ms", "6"]);
    }

    #[test]
    fn options_are_shown_only_beside_the_server_that_has_them() {
        let load = HttpLoad::Ab { requests: 1, connections: 1, keep: false };
        let series = |server| Series { server, samples: vec![BenchSample::default()] };
        assert_eq!(reference_row(&KNOWN[4], &load, &series("nginx"))[2], "");
        assert_eq!(reference_row(&KNOWN[4], &load, &series("stilling poll"))[2], "-A 10");
    }

    #[test]
    fn known_figures_are_compared_by_the_medians_of_their_rounds() {
        let sample = |took_s, rate, p50_ms| BenchSample {
            took_s,
            rate,
            p50_ms: Some(p50_ms),
            ..BenchSample::default()
        };
        let samples = [sample(1.0, 30.0, 0.2), sample(3.0, 10.0, 0.3), sample(2.0, 20.0, 9.0)];
        let what = || "row".to_owned();
        assert_eq!(
            ReferenceTarget::MedianMs(0.25).target(what(), &samples),
            BenchTarget::at_most("row: median", 0.25, Some(0.3), "ms")
        );
        assert_eq!(
            ReferenceTarget::TookS(2.5).target(what(), &samples),
            BenchTarget::at_most("row: time", 2.5, Some(2.0), "s")
        );
        assert_eq!(
            ReferenceTarget::Rate(15.0).target(what(), &samples),
            BenchTarget::at_least("row: requests/s", 15.0, Some(20.0), "")
        );
        assert_eq!(
            ReferenceTarget::Rate(15.0).target(what(), &[]),
            BenchTarget::at_least("row: requests/s", 15.0, None, "")
        );
    }
}
