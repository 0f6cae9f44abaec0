//! `cargo xtask sim`: runs the deterministic simulation in an optimised build.

use clap::Args;

use crate::XtaskResult;
use crate::steps::{cargo, run};

#[derive(Args)]
pub(crate) struct SimCommandArguments {
    /// Number of worlds to run
    #[arg(long, value_name = "N", default_value_t = 1000, conflicts_with = "seed")]
    seeds: u64,
    /// Seed of the first world
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "seed")]
    from: u64,
    /// Run only the world of this seed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// World: `http`, `streams` (disk streams through crashes), `broadcast` (subscribers that are slow, leave and
    /// resume, through crashes), `restarts` (hot restarts, two servers at a time), `sequential` (restarts of one
    /// server after the other) or `coap` (a lossy network, worker processes that misbehave)
    #[arg(long, value_name = "NAME", default_value = "http")]
    world: String,
    /// Print the events (the last 50,000)
    #[arg(long)]
    verbose: bool,
}

impl SimCommandArguments {
    pub(crate) fn run(self) -> XtaskResult {
        let mut command = cargo([
            "run",
            "--quiet",
            "--release",
            "-p",
            "stilling-simulation",
            "--bin",
            "stilling-sim",
            "--",
        ]);
        match self.seed {
            Some(seed) => command.args(["--seed", &seed.to_string()]),
            None => command.args(["--seeds", &self.seeds.to_string(), "--from", &self.from.to_string()]),
        };
        command.args(["--world", &self.world]);
        if self.verbose {
            command.arg("--verbose");
        }
        run(&mut command)
    }
}
