//! Runs worlds by their seeds: `stilling-sim --seed 42 --verbose`, `stilling-sim --seeds 100000 --from 5000`.
#![allow(clippy::print_stdout, reason = "a program for people")]

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use stilling_simulation::http::{self, Options};

/// Runs the deterministic HTTP world.
#[derive(Debug, Parser)]
struct Arguments {
    /// Run this one world.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Run so many worlds.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Print what happened, event by event.
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let Arguments { seed, seeds, from, verbose } = Arguments::parse();
    let (from, seeds) = seed.map_or((from, seeds), |seed| (seed, 1));
    // Worlds contain jobs that panic on purpose, and their failures are reported below.
    std::panic::set_hook(Box::new(|_| ()));
    let start = Instant::now();
    let mut answers = 0;
    for seed in from..from.saturating_add(seeds) {
        match http::run(seed, &Options { verbose }) {
            Ok(report) => {
                report.text.iter().for_each(|line| println!("{line}"));
                answers += report.answers;
                if seeds == 1 {
                    println!("{report:#?}");
                }
            }
            Err(failure) => {
                failure.text.iter().for_each(|line| println!("{line}"));
                println!("{failure}\nreplay: cargo xtask sim --seed {} --verbose", failure.seed);
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{seeds} worlds, {answers} checked answers, all well, in {:.1?}", start.elapsed());
    ExitCode::SUCCESS
}
