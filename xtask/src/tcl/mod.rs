//! `cargo xtask tcl`: builds the Tcl extension for Tcl 8.6 or 9.0 and lays it out as packages that `tclsh` finds.

mod extension;
mod foreign_packages;
mod rows;
mod suite;
mod tcl9;
mod toolchain;
mod valgrind;

use std::path::Path;
use std::process::Command;

use clap::Args;

pub(crate) use extension::{PackageBuild, copy_packages};
pub(crate) use rows::TclRowsArguments;
pub(crate) use suite::{TclSuiteArguments, suite_stage};
pub(crate) use toolchain::{TclToolchain, TclVersion};
pub(crate) use valgrind::TclValgrindArguments;

use crate::XtaskResult;
use crate::packages;
use crate::steps::run;

/// Prints the versions of both packages, in a fresh interpreter.
const REQUIRE_BOTH: &str =
    "puts \"Stilling [package require Stilling], Iocpsock [package require Iocpsock]\"\n";

#[derive(Args)]
pub(crate) struct TclArguments {
    /// Build for Tcl 9.0 instead of 8.6
    #[arg(long)]
    tcl9: bool,
    /// Build without optimisation
    #[arg(long)]
    debug: bool,
}

impl TclArguments {
    pub(crate) fn run(self) -> XtaskResult {
        install_programs()?;
        let toolchain = TclToolchain::find(TclVersion::selected(self.tcl9))?;
        let directory = toolchain.build_packages(PackageBuild::selected(self.debug))?;
        check_packages(&toolchain, &directory)?;
        println!("\nTry it:\n");
        println!("    TCLLIBPATH={} {}", directory.display(), toolchain.tclsh.display());
        println!("    % package require Stilling");
        println!("    % stilling::install          ;# replaces ::socket in this interpreter");
        println!("    % package require Iocpsock   ;# or: socket2 beside socket\n");
        Ok(())
    }
}

/// Installs the programs, headers and Tcl packages that builds and tests of the extension need.
pub(crate) fn install_programs() -> XtaskResult {
    packages::install(&packages::FOR_TCL)
}

/// Loads both packages in a fresh interpreter.
fn check_packages(toolchain: &TclToolchain, directory: &Path) -> XtaskResult {
    let script = tempfile::NamedTempFile::new()?;
    std::fs::write(script.path(), REQUIRE_BOTH)?;
    let mut command = Command::new(&toolchain.tclsh);
    command.arg(script.path()).env("TCLLIBPATH", directory);
    run(&mut command)
}
