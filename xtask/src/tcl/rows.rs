//! `cargo xtask tcl-rows`: the extension's own tests with a selected version of Tcl.

use clap::Args;

use super::{TclToolchain, TclVersion, install_programs};
use crate::XtaskResult;
use crate::steps::{cargo, run};

/// Part of the names of tests that need the packages `tls` and `httpd`, which Debian has only for Tcl 8.6.
const TESTS_OF_TCL_8: [&str; 3] = ["encrypted_connections", "failed_handshakes", "the_server_of_tcllib"];

#[derive(Args)]
pub(crate) struct TclRowsArguments {
    /// Test with Tcl 9.0 instead of 8.6
    #[arg(long)]
    tcl9: bool,
    /// Only tests with this in their names
    filter: Option<String>,
}

impl TclRowsArguments {
    pub(crate) fn run(self) -> XtaskResult {
        install_programs()?;
        let toolchain = TclToolchain::find(TclVersion::selected(self.tcl9))?;
        let mut command = cargo(["test", "-p", super::extension::CRATE, "--test", "rows"]);
        toolchain.select_for_cargo(&mut command);
        command.env("STILLING_TCLSH", &toolchain.tclsh);
        if !toolchain.package_folders.is_empty() {
            command.env("TCLLIBPATH", toolchain.library_path());
        }
        command.arg("--").args(self.filter);
        if self.tcl9 {
            let left_out = TESTS_OF_TCL_8.join("*, ");
            println!("Tcl 9.0 has no packages `tls` and `httpd` here; without the tests {left_out}*");
            command.args(TESTS_OF_TCL_8.iter().flat_map(|test| ["--skip", test]));
        }
        run(&mut command)
    }
}
