//! `cargo xtask soak`: a long load of many kinds at once, after which everything has to be as it was.
//!
//! `http.rs`, `parallel.rs` and `collect.rs` put load on the server; here is how it is watched and judged.

mod burst;
mod collect;
mod foes;
mod honest;
mod hostile;
mod http;
pub(crate) mod page;
mod parallel;
mod schedule;
mod side;
mod succession;
mod watch;

use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};

use crate::Outcome;
use crate::bench::server::Driver;
use crate::bench::{enter, figures};
use crate::packages;
use crate::steps::{cargo, run};
use watch::{Look, MEASURES};

/// Between two looks at the server.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long the server has after the load, to be as it was before it: longer than it waits for a head, and than it
/// lingers.
const AFTERWARDS: Duration = Duration::from_secs(20);

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The HTTP server
    Http(http::Http),
    /// Slow and fast requests in parallel and nothing else: server-demo's own hour
    Parallel(parallel::Parallel),
    /// Streams, with publishers faster than the server
    Collect(collect::Collect),
    /// Ten times the usual load within a second, and back
    Burst(burst::Burst),
    /// Harmful clients of every kind beside a valid load
    Hostile(hostile::Hostile),
}

/// The options of every long soak.
#[derive(Args)]
struct Options {
    /// How long the load lasts
    #[arg(long, value_name = "M", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    minutes: u32,
    /// How the server talks to the kernel
    #[arg(long, value_enum, default_value_t = Choice::Uring)]
    driver: Choice,
    /// Write the judgements into docs/benchmarks.md
    #[arg(long)]
    write: bool,
}

impl Options {
    fn driver(&self) -> Driver {
        self.driver.driver()
    }

    fn total_s(&self) -> f64 {
        f64::from(self.minutes) * 60.0
    }

    /// Writes the part, if asked to, and fails with everything that was missed.
    fn conclude(&self, name: &str, title: &str, words: String, verdicts: &[Verdict]) -> Outcome {
        if self.write {
            let driver = self.driver().option();
            let command =
                format!("cargo xtask soak {name} --minutes {} --driver {driver} --write", self.minutes);
            page::Part { title: format!("{title}, {driver}"), command, words }.write(verdicts)?;
        }
        conclude(verdicts)
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Choice {
    Uring,
    Poll,
}

impl Choice {
    fn driver(self) -> Driver {
        match self {
            Choice::Uring => Driver::Uring,
            Choice::Poll => Driver::Poll,
        }
    }
}

/// A judgement: what has to hold, its limit, and whether it does.
struct Verdict {
    what: String,
    limit: String,
    holds: bool,
    found: String,
}

impl Arguments {
    pub(crate) fn run(self) -> Outcome {
        enter(|| {
            packages::install(&packages::FOR_SOAK)?;
            run(&mut cargo(["build", "--release", "-p", "stilling-cli"]))
        })?;
        match self.what {
            What::Http(soak) => soak.soak(),
            What::Parallel(soak) => soak.soak(),
            What::Collect(soak) => soak.soak(),
            What::Burst(soak) => soak.soak(),
            What::Hostile(soak) => soak.soak(),
        }
    }
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Looks at the server until the time is over or it has gone, and says once a minute how it is, if it `talks`.
fn look_on(process: u32, start: Instant, total_s: f64, talks: bool) -> Vec<Look> {
    let mut looks = Vec::new();
    let mut minute = 0;
    loop {
        let at_s = start.elapsed().as_secs_f64();
        if at_s >= total_s {
            return looks;
        }
        let Some(look) = Look::at(process, at_s) else {
            println!("the server has gone after {at_s:.0} s");
            return looks;
        };
        if talks && at_s as u64 / 60 >= minute {
            let row: Vec<_> = MEASURES
                .iter()
                .map(|measure| format!("{} {}", measure.name, measure.shown((measure.of)(&look))))
                .collect();
            println!("minute {minute}: {}", row.join(", "));
            minute += 1;
        }
        looks.push(look);
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Waits until the server has no more descriptors than before the load, for a bounded time.
fn everybody_gone(process: u32, start: Instant, before: &Look) -> Option<Look> {
    let end = Instant::now() + AFTERWARDS;
    loop {
        let look = Look::at(process, start.elapsed().as_secs_f64())?;
        if look.descriptors <= before.descriptors || Instant::now() >= end {
            return Some(look);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Whether what a server has stays level.
fn level(whose: &str, looks: &[Look], total_s: f64) -> Vec<Verdict> {
    let (warm, end) = (schedule::warm(total_s), schedule::end(total_s));
    let judged = |measure: &watch::Measure| {
        let (warm, end) = (measure.middle(looks, warm), measure.middle(looks, end));
        let bound = measure.shown(measure.bound(warm));
        Verdict {
            what: format!("level{whose}: {}", measure.name),
            limit: format!("≤ {bound} at the end"),
            holds: measure.is_level(warm, end),
            found: format!("{} after the warm-up, {} at the end", measure.shown(warm), measure.shown(end)),
        }
    };
    MEASURES.iter().map(judged).collect()
}

/// What a server had, as a table.
fn looks_table(before: &Look, looks: &[Look], after: Option<&Look>, total_s: f64) -> String {
    let mut text = String::new();
    text += "\n| server | before | after the warm-up | at the end | most | when all had gone |\n|---|---|---|---|---|---|\n";
    let (warm, end) = (schedule::warm(total_s), schedule::end(total_s));
    for measure in MEASURES {
        let most = looks.iter().map(measure.of).fold(0.0, f64::max);
        let cells = [
            measure.shown((measure.of)(before)),
            measure.shown(measure.middle(looks, warm)),
            measure.shown(measure.middle(looks, end)),
            measure.shown(most),
            after.map_or_else(figures::unknown, |after| measure.shown((measure.of)(after))),
        ];
        text += &format!("| {} | {} |\n", measure.name, cells.join(" | "));
    }
    text
}

fn verdict_table(verdicts: &[Verdict]) -> String {
    let mut text = "\n| judgement | limit | found | verdict |\n|---|---|---|---|\n".to_owned();
    for Verdict { what, limit, holds, found } in verdicts {
        let verdict = if *holds { "met" } else { "**missed**" };
        text += &format!("| {what} | {limit} | {found} | {verdict} |\n");
    }
    text
}

/// Fails with everything that was missed.
fn conclude(verdicts: &[Verdict]) -> Outcome {
    let missed: Vec<&str> =
        verdicts.iter().filter(|verdict| !verdict.holds).map(|verdict| verdict.what.as_str()).collect();
    if missed.is_empty() { Ok(()) } else { Err(format!("missed: {}", missed.join("; ")).into()) }
}
