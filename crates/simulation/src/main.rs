//! Runs simulated worlds by seed: `stilling-sim --seed 42 --verbose`, `stilling-sim --seeds 100000 --from 5000`.
#![allow(clippy::print_stdout, reason = "a command-line program")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use stilling_simulation::streams::broadcast;
use stilling_simulation::streams::succession::{self, SuccessionCase};
use stilling_simulation::{SeedFailure, coap, http, streams};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WorldArgument {
    /// HTTP clients; some worlds with a memory hub
    Http,
    /// Disk streams through crashes, restarts and disk faults
    Streams,
    /// Hot restarts: predecessor and successor at the same time, over all cases of a matrix
    Restarts,
    /// Disk streams through restarts of one server after the other
    Sequential,
    /// Subscribers over SSE, WebSocket and NATS that are slow, leave and resume, through crashes and restarts
    Broadcast,
    /// CoAP clients on a lossy network, and worker processes that misbehave
    Coap,
}

/// Runs deterministic simulated worlds
#[derive(Debug, Parser)]
struct SimArguments {
    /// Run only the world of this seed
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Number of worlds to run
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// Seed of the first world
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// World to run
    #[arg(long, value_enum, default_value = "http")]
    world: WorldArgument,
    /// Plant this bug (needs a build with `--cfg stilling_planted`)
    #[arg(long)]
    planted: Option<String>,
    /// Print the events (the last 50,000)
    #[arg(long)]
    verbose: bool,
}

struct RunSummary {
    text: Vec<String>,
    checks: u64,
    details: String,
    /// Matrix case of a hot-restart world.
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
            WorldArgument::Broadcast => {
                let report = broadcast::run(seed, verbose)?;
                let details = format!("{:#?}\n{:?}", report.totals, report.report);
                let checks = report.totals.delivered;
                return Ok(RunSummary { checks, details, text: report.text, case: None });
            }
            WorldArgument::Coap => {
                let report = coap::run(seed, verbose)?;
                let details = format!("{:#?}\n{:?}", report.totals, report.report);
                let checks = report.totals.answers;
                return Ok(RunSummary { checks, details, text: report.text, case: None });
            }
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
    // The process is short-lived: leaking the name is fine.
    stilling_ring::planted::choose(planted.map(|name| &*name.leak()));
    let (from, seeds) = seed.map_or((from, seeds), |seed| (seed, 1));
    // Worlds run jobs that panic on purpose; failures are reported below.
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
    println!("{seeds} worlds passed, {checks} answers checked, in {:.1?}", start.elapsed());
    ExitCode::SUCCESS
}
