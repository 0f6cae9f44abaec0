//! `cargo xtask ci`: everything that must pass before a change is accepted.

use crate::XtaskResult;
use crate::steps::{StepRunner, cargo};
use crate::style;
use crate::tcl;
use crate::test;

/// Runs all checks, cheapest first.
pub(crate) fn run() -> XtaskResult {
    StepRunner::run_all(|steps| {
        steps.run_step("style", style::run)?;
        steps.command("format", &mut cargo(["fmt", "--all", "--check"]))?;
        // The Tcl extension does not compile without Tcl's headers.
        steps.run_step("headers of Tcl", tcl::install_programs)?;
        let strict = ["--", "-D", "warnings"];
        let mut lints = cargo(["clippy", "--workspace", "--all-targets"]);
        steps.command("lints", lints.args(strict))?;
        let mut models = test::variant("loom", "clippy");
        models.args(["-p", "stilling-ring", "-p", "stilling-workers", "--all-targets"]).args(strict);
        steps.command("lints of the loom models", &mut models)?;
        let mut planted = test::variant("stilling_planted", "clippy");
        planted
            .args([
                "-p",
                "stilling-journal",
                "-p",
                "stilling-hub",
                "-p",
                "stilling-simulation",
                "--all-targets",
            ])
            .args(strict);
        steps.command("lints of the planted bugs", &mut planted)?;
        let mut pages = cargo(["doc", "--workspace", "--no-deps"]);
        steps.command("documentation", pages.env("RUSTDOCFLAGS", "-D warnings"))?;
        test::stages(steps, false)
    })
}
