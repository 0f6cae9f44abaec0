//! `cargo xtask soak parallel`: server-demo's own hour, only slow and fast requests in parallel (rows 4.27 and 4.28).
//!
//! Each generator runs once over the whole time, so that its percentiles cover all requests.

use std::time::Instant;

use clap::Args;

use super::watch::ResourceSample;
use super::{
    SoakOptions, SoakVerdict, joined, level, resource_table, sample_until, verdict_table, wait_for_release,
};
use crate::XtaskResult;
use crate::bench::figures;
use crate::bench::load::{BenchEnvironment, HttpLoad};
use crate::bench::sample::BenchSample;
use crate::bench::server::BenchServer;
use crate::bench::{copy_binary, isolation};

/// The server's options in rows 4.27 and 4.28.
const OPTIONS: [&str; 4] = ["-C", "1000", "-w", "300"];

/// One row of the requirements: a path and the figures that server-demo reached on its author's machine.
struct ParallelTarget {
    number: &'static str,
    path: &'static str,
    rate_min: f64,
    max_ms: f64,
    p99_ms: Option<f64>,
}

/// A slow request takes 30 ms, the default.
const ROWS: [ParallelTarget; 2] = [
    ParallelTarget { number: "4.27", path: "/test/slow", rate_min: 3_313.0, max_ms: 49.0, p99_ms: None },
    ParallelTarget {
        number: "4.28",
        path: "/test/fast",
        rate_min: 40_184.0,
        max_ms: 22.0,
        p99_ms: Some(3.0),
    },
];

#[derive(Args)]
pub(super) struct ParallelSoak {
    #[command(flatten)]
    options: SoakOptions,
}

impl ParallelSoak {
    pub(super) fn soak(&self) -> XtaskResult {
        let folder = tempfile::tempdir()?;
        let binary = copy_binary("stilling", folder.path())?;
        let server = BenchServer::stilling(&binary, self.options.driver(), &OPTIONS)?;
        let (command, total_s) = (server.command.clone(), self.options.total_s());
        let environment =
            BenchEnvironment { folder: folder.path().to_owned(), binary, counts_instructions: false };
        println!(
            "`{command}` for {} min; TCP congestion control {}",
            self.options.minutes,
            isolation::congestion()
        );
        let load =
            HttpLoad::Own { seconds: self.options.minutes * 60, connections: 100, close: true, pipeline: 1 };
        let process = server.first_process();
        let before = ResourceSample::at(process, 0.0).ok_or("the server ended before the load began")?;
        let start = Instant::now();
        let (resource_samples, samples) = std::thread::scope(|threads| {
            let generators = ROWS.map(|row| {
                let (load, environment, url) = (&load, &environment, server.url(row.path));
                threads.spawn(move || load.run(&url, environment).map_err(|error| error.to_string()))
            });
            let resource_samples = sample_until(process, start, total_s, true);
            (resource_samples, generators.map(joined))
        });
        let [slow, fast] = samples;
        let samples = [slow?, fast?];
        let after = wait_for_release(process, start, &before);
        let ended_well = server.end();
        let mut verdicts: Vec<SoakVerdict> =
            ROWS.iter().zip(&samples).flat_map(|(row, sample)| row.verdicts(sample)).collect();
        verdicts.extend(level("", &resource_samples, total_s));
        verdicts.push(SoakVerdict::of_stop(ended_well));
        print!(
            "{}{}",
            resource_table(&before, &resource_samples, after.as_ref(), total_s),
            verdict_table(&verdicts)
        );
        let description = format!(
            "Rows 4.27 and 4.28: server-demo's own test, whose figures are the limits. 100 clients send a slow request \
             (30 ms) and 100 others for a fast one, each request over a connection of its own \
             (`{}`, and the same for {}), on `{command}`. The server and both generators share this machine's cores.",
            load.command_line(ROWS[0].path),
            ROWS[1].path
        );
        self.options.conclude("parallel", "Slow and fast requests in parallel", description, &verdicts)
    }
}

impl ParallelTarget {
    fn verdicts(&self, sample: &BenchSample) -> Vec<SoakVerdict> {
        let name = format!("row {}, {}", self.number, self.path);
        let judged = |what: &str, limit: String, holds: bool, measured: String| SoakVerdict {
            what: format!("{name}: {what}"),
            limit,
            holds,
            measured,
        };
        let at_most = |what: &str, limit_ms: f64, measured: Option<f64>| {
            let holds = measured.is_some_and(|ms| ms <= limit_ms);
            let measured =
                measured.map_or_else(figures::unknown, |ms| format!("{} ms", figures::two_places(ms)));
            judged(what, format!("≤ {limit_ms} ms"), holds, measured)
        };
        let bad = sample.failures + sample.refused;
        let mut verdicts = vec![
            judged(
                "failed or refused",
                "0".to_owned(),
                bad == 0 && sample.requests > 0,
                format!("{bad} of {}", figures::thousands(sample.requests as f64)),
            ),
            judged(
                "rate",
                format!("≥ {}/s", figures::thousands(self.rate_min)),
                sample.rate >= self.rate_min,
                format!("{}/s", figures::thousands(sample.rate)),
            ),
            at_most("longest", self.max_ms, sample.max_ms),
        ];
        verdicts.extend(self.p99_ms.map(|limit_ms| at_most("p99", limit_ms, sample.p99_ms)));
        verdicts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows 4.27 and 4.28: each figure of the row is judged separately, and a generator without figures misses all.
    #[test]
    fn every_figure_of_a_row_is_checked() {
        let good = BenchSample {
            requests: 9,
            rate: 40_184.0,
            p99_ms: Some(3.0),
            max_ms: Some(22.0),
            ..BenchSample::default()
        };
        let missed = |row: &ParallelTarget, change: fn(&mut BenchSample)| -> Vec<String> {
            let mut sample = good.clone();
            change(&mut sample);
            let missed = row.verdicts(&sample).into_iter().filter(|verdict| !verdict.holds);
            missed.map(|verdict| verdict.what.rsplit(": ").next().unwrap_or_default().to_owned()).collect()
        };
        let [slow, fast] = &ROWS;
        for row in &ROWS {
            assert!(missed(row, |_| ()).is_empty());
            assert_eq!(missed(row, |sample| sample.failures = 1), ["failed or refused"]);
            assert_eq!(missed(row, |sample| sample.refused = 1), ["failed or refused"]);
        }
        assert_eq!(missed(slow, |sample| sample.rate = 3_312.9), ["rate"]);
        assert_eq!(missed(slow, |sample| sample.max_ms = Some(49.1)), ["longest"]);
        assert_eq!(missed(fast, |sample| sample.rate = 40_183.0), ["rate"]);
        assert_eq!(missed(fast, |sample| sample.max_ms = Some(22.1)), ["longest"]);
        assert_eq!(missed(fast, |sample| sample.p99_ms = Some(3.1)), ["p99"]);
        assert_eq!(missed(fast, |sample| *sample = BenchSample::default()).len(), 4);
    }
}
