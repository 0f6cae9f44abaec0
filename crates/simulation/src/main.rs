//! Runs worlds by their seeds: `stilling-sim --seed 42 --verbose`, `stilling-sim --seeds 100000 --from 5000`.
#![allow(clippy::print_stdout, reason = "a program for people")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use stilling_simulation::streams::succession::{self, SuccessionCase};
use stilling_simulation::{SeedFailure, http, streams};

/// Which world is run.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum WorldArgument {
    /// HTTP clients, with a hub in memory in some.
    Http,
    /// Disk streams through crashes, restarts and disk trouble.
    Streams,
    /// Hot restarts: predecessor and successor at the same time, over every case of a matrix.
    Restarts,
    /// Disk streams through restarts of one server after the other.
    Sequential,
}

/// Runs a deterministic world.
#[derive(Debug, Parser)]
struct SimArguments {
    /// Run this one world.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Run so many worlds.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Which world.
    #[arg(long, value_enum, default_value = "http")]
    world: WorldArgument,
    /// Plant this bug, in a build with `--cfg stilling_planted`.
    #[arg(long)]
    planted: Option<String>,
    /// Print what happened, event by event.
    #[arg(long)]
    verbose: bool,
}

/// A world that went well.
struct RunSummary {
    text: Vec<String>,
    /// What was checked in it.
    checks: u64,
    details: String,
    /// The case of a matrix that it was.
    case: Option<SuccessionCase>,
}

impl WorldArgument {
    fn run(self, seed: u64, verbose: bool) -> Result<RunSummary, SeedFailure> {
        let bias = match self {
            WorldArgument::Http => {
                let report = http::run(seed, &http::HttpWorldOptions { verbose })?;
                let details = format!("{report:#?}");
                return Ok(RunSummary { checks: report.answers, details, text: report.text, case: None });
            }
            WorldArgument::Streams => streams::ScenarioBias::Mixed,
            WorldArgument::Sequential => streams::ScenarioBias::Restarts,
            WorldArgument::Restarts => {
                let report = succession::run(seed, verbose)?;
                let details = format!("{}\n{:#?}\n{:#?}", report.case, report.events, report.totals);
                let (checks, case) = (report.totals.acknowledged, Some(report.case));
                return Ok(RunSummary { checks, details, text: report.text, case });
            }
        };
        let report = streams::run(seed, &streams::StreamsOptions { bias, verbose })?;
        let details = format!("{:#?}\n{:#?}\n{:?}", report.events, report.totals, report.report);
        Ok(RunSummary { checks: report.totals.acknowledged, details, text: report.text, case: None })
    }

    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

fn main() -> ExitCode {
    let SimArguments { seed, seeds, from, world, planted, verbose } = SimArguments::parse();
    // A program that ends soon may leave the name to the end.
    stilling_ring::planted::choose(planted.map(|name| &*name.leak()));
    let (from, seeds) = seed.map_or((from, seeds), |seed| (seed, 1));
    // Worlds contain jobs that panic on purpose, and their failures are reported below.
    if seeds > 1 {
        std::panic::set_hook(Box::new(|_| ()));
    }
    let start = Instant::now();
    let mut checks = 0;
    let mut cases: BTreeMap<SuccessionCase, u64> = BTreeMap::new();
    for seed in from..from.saturating_add(seeds) {
        match world.run(seed, verbose) {
            Ok(run) => {
                run.text.iter().for_each(|line| println!("{line}"));
                checks += run.checks;
                run.case.into_iter().for_each(|case| *cases.entry(case).or_default() += 1);
                if seeds == 1 {
                    println!("{}", run.details);
                }
            }
            Err(failure) => {
                failure.text.iter().for_each(|line| println!("{line}"));
                let name = world.name();
                println!(
                    "{failure}\nreplay: cargo xtask sim --world {name} --seed {} --verbose",
                    failure.seed
                );
                return ExitCode::FAILURE;
            }
        }
    }
    cases.iter().for_each(|(case, count)| println!("{count} worlds: {case}"));
    println!("{seeds} worlds, {checks} checked answers, all well, in {:.1?}", start.elapsed());
    ExitCode::SUCCESS
}
