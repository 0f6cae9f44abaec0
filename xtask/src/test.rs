//! `cargo xtask test`: all tests and models, in one command.

use std::process::Command;

use clap::Args;

use crate::XtaskResult;
use crate::go;
use crate::limits;
use crate::node;
use crate::packages;
use crate::python;
use crate::steps::{StepRunner, cargo};
use crate::tcl;
use crate::tree;

#[derive(Args)]
pub(crate) struct TestArguments {
    /// Only the ordinary tests: no models, no planted bugs
    #[arg(long)]
    quick: bool,
}

impl TestArguments {
    pub(crate) fn run(self) -> XtaskResult {
        StepRunner::run_all(|steps| stages(steps, self.quick))
    }
}

/// The steps of the tests; `ci` runs them after its own.
pub(crate) fn stages(steps: &mut StepRunner, quick: bool) -> XtaskResult {
    steps.run_step("programs", || packages::install(&packages::FOR_TESTS))?;
    steps.run_step("gunicorn", || python::GUNICORN.install())?;
    steps.run_step("nats-py", || python::NATS_PY.install())?;
    steps.run_step("websockets", || python::WEBSOCKETS.install())?;
    steps.run_step("aiocoap", || python::AIOCOAP.install())?;
    steps.run_step("nats.go", || go::NATS_GO.build())?;
    steps.run_step("go-coap", || go::GO_COAP.build())?;
    steps.run_step("nats for node", || node::NATS.install())?;
    steps.run_step("coap for node", || node::COAP.install())?;
    steps.run_step("Tcl", tcl::install_programs)?;
    steps.run_step("limits", limits::check)?;
    steps.command("tests", &mut cargo(["test", "--workspace", "--no-fail-fast"]))?;
    tcl::suite_stage(steps)?;
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

/// A cargo command for builds with a `--cfg`, with a separate target folder so that the builds do not replace each
/// other.
pub(crate) fn variant(cfg: &str, subcommand: &str) -> Command {
    let folder = tree::target().join(cfg.trim_start_matches("stilling_"));
    let mut command = cargo([subcommand]);
    command.env("RUSTFLAGS", format!("--cfg {cfg}")).arg("--target-dir").arg(folder);
    command
}
