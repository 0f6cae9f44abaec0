//! `cargo xtask test`: everything that proves the code, in one command.

use std::process::Command;

use clap::Args;

use crate::Outcome;
use crate::go;
use crate::limits;
use crate::node;
use crate::packages;
use crate::python;
use crate::steps::{Steps, cargo};
use crate::tree;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Only the ordinary tests: no models, no planted bugs
    #[arg(long)]
    quick: bool,
}

impl Arguments {
    pub(crate) fn run(self) -> Outcome {
        Steps::through(|steps| stages(steps, self.quick))
    }
}

/// The steps; `ci` appends them to its own.
pub(crate) fn stages(steps: &mut Steps, quick: bool) -> Outcome {
    steps.act("programs", || packages::install(&packages::FOR_TESTS))?;
    steps.act("gunicorn", || python::GUNICORN.install())?;
    steps.act("nats-py", || python::NATS_PY.install())?;
    steps.act("nats.go", go::build_nats_go)?;
    steps.act("nats for node", node::install_nats)?;
    steps.act("limits", limits::check)?;
    steps.command("tests", &mut cargo(["test", "--workspace", "--no-fail-fast"]))?;
    if quick {
        return Ok(());
    }
    let mut models = variant("loom", "test");
    models.args(["--release", "-p", "stilling-ring", "-p", "stilling-workers", "--test", "loom"]);
    steps.command("loom models", &mut models)?;
    let mut planted = variant("stilling_planted", "test");
    planted.args([
        "--release",
        "-p",
        "stilling-ring",
        "-p",
        "stilling-workers",
        "-p",
        "stilling-journal",
        "-p",
        "stilling-hub",
    ]);
    planted.args(["-p", "stilling-simulation"]);
    steps.command("planted bugs", planted.args(["--test", "planted"]))
}

/// A cargo command for builds with a `--cfg` of their own, which get a folder of their own so that neither
/// kind of build throws the other away.
pub(crate) fn variant(cfg: &str, subcommand: &str) -> Command {
    let folder = tree::target().join(cfg.trim_start_matches("stilling_"));
    let mut command = cargo([subcommand]);
    command.env("RUSTFLAGS", format!("--cfg {cfg}")).arg("--target-dir").arg(folder);
    command
}
