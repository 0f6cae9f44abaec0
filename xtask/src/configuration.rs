//! `cargo xtask configuration`: all configuration options, as `docs/configuration.md`. The page is the output of the
//! command itself, so no second list is needed; a test of the command fails when the page differs.

use std::process::{Command, Stdio};

use clap::Args;

use crate::XtaskResult;
use crate::tree;

const PAGE: &str = "docs/configuration.md";

#[derive(Args)]
pub(crate) struct ConfigurationArguments {
    /// Write docs/configuration.md instead of printing it
    #[arg(long)]
    write: bool,
}

impl ConfigurationArguments {
    pub(crate) fn run(self) -> XtaskResult {
        let mut command = Command::new("cargo");
        command.args(["run", "--quiet", "--package", "stilling-cli", "--", "options"]);
        let output = command.current_dir(tree::root()).stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err("`cargo run --package stilling-cli -- options` failed".into());
        }
        let page = String::from_utf8(output.stdout)?;
        if self.write {
            tree::write(PAGE, &page)
        } else {
            print!("{page}");
            Ok(())
        }
    }
}
