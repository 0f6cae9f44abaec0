//! `cargo xtask configuration`: everything that can be chosen, as `docs/configuration.md`. The page is what the command
//! itself prints, so that no list is kept beside it; a test of the command fails when the page is another.

use std::process::{Command, Stdio};

use clap::Args;

use crate::XtaskResult;
use crate::tree;

/// The page.
const PAGE: &str = "docs/configuration.md";

#[derive(Args)]
pub(crate) struct ConfigurationArguments {
    /// Write docs/configuration.md instead of showing it
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
