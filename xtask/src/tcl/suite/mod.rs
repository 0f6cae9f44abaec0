//! `cargo xtask tcl-suite`: the unedited tests of Tcl's own sockets, with `::socket` replaced in every interpreter of
//! every process, beside the same tests with Tcl's own sockets on the same machine.
//!
//! A test that passes with Tcl's sockets must pass with the extension.

mod environment;
mod files;
mod results;
mod table;

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};

use super::extension::has_crate;
use super::{PackageBuild, TclToolchain, TclVersion, install_programs};
use crate::XtaskResult;
use crate::packages;
use crate::steps::StepRunner;
use environment::{Sockets, SuiteEnvironment};
use files::SuiteFile;
use results::FileResults;
use table::SuiteRow;

#[derive(Args)]
pub(crate) struct TclSuiteArguments {
    /// Test with Tcl 9.0 instead of 8.6
    #[arg(long)]
    tcl9: bool,
    /// Only Tcl's own sockets
    #[arg(long, conflicts_with = "driver")]
    stock: bool,
    /// Runs of each file; Tcl's own sockets run once for the comparison
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Only these files, without their suffix, for example socket,io
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    files: Vec<String>,
    /// Driver of the extension [default: its own choice]
    #[arg(long, value_enum)]
    driver: Option<TclDriver>,
    /// Test a build without optimisation, which checks its assertions
    #[arg(long)]
    debug: bool,
    /// As an ordinary user and with `::1 localhost` in a private /etc/hosts, which other tests need
    #[arg(long)]
    ordinary_user: bool,
}

/// Value of `STILLING_TCL_DRIVER`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum TclDriver {
    /// `io_uring`
    Uring,
    /// epoll
    Poll,
    /// `io_uring`, sockets in the descriptor table of its ring
    Direct,
}

impl TclDriver {
    pub(crate) fn option(self) -> &'static str {
        match self {
            TclDriver::Uring => "uring",
            TclDriver::Poll => "poll",
            TclDriver::Direct => "direct",
        }
    }
}

impl TclSuiteArguments {
    pub(crate) fn run(self) -> XtaskResult {
        install_programs()?;
        packages::install(&packages::FOR_TCL_SOURCES)?;
        let toolchain = TclToolchain::find(TclVersion::selected(self.tcl9))?;
        let environment = SuiteEnvironment::prepare(&toolchain, self.ordinary_user)?;
        let files = self.selected(&environment)?;
        if self.stock {
            return self
                .run_rounds(&files, |file| Ok(SuiteRow::stock(environment.run(file, Sockets::Stock)?)));
        }
        let packages = toolchain.build_packages(PackageBuild::selected(self.debug))?;
        let library = environment.library_with(&packages)?;
        let sockets = Sockets::Extension { library: &library, driver: self.driver };
        environment.check_replacement(sockets)?;
        let mut stock: BTreeMap<&str, FileResults> = BTreeMap::new();
        self.run_rounds(&files, |file| {
            if !stock.contains_key(file.name) {
                stock.insert(file.name, environment.run(file, Sockets::Stock)?);
            }
            Ok(SuiteRow::compared(environment.run(file, sockets)?, stock[file.name].clone()))
        })
    }

    /// The chosen files, of those that the version has.
    fn selected(&self, environment: &SuiteEnvironment) -> XtaskResult<Vec<&'static SuiteFile>> {
        let available: Vec<_> = files::ALL.iter().filter(|file| environment.has(file)).collect();
        if self.files.is_empty() {
            return Ok(available);
        }
        let find = |name: &String| {
            let file = available.iter().find(|file| file.name == name.as_str()).copied();
            file.ok_or_else(|| {
                let names: Vec<_> = available.iter().map(|file| file.name).collect();
                format!("no test file `{name}`; there are: {}", names.join(", ")).into()
            })
        };
        self.files.iter().map(find).collect()
    }

    /// Runs all files in each round and prints what failed.
    fn run_rounds(
        &self,
        files: &[&'static SuiteFile],
        mut run_file: impl FnMut(&'static SuiteFile) -> XtaskResult<SuiteRow>,
    ) -> XtaskResult {
        let mut findings = 0;
        for round in 1..=self.rounds {
            let mut rows = Vec::new();
            for file in files {
                let row = run_file(file)?;
                print!("{}", row.report());
                findings += row.findings();
                rows.push(row);
            }
            println!("\nround {round} of {}\n{}", self.rounds, table::text(&rows));
        }
        match findings {
            0 => Ok(()),
            count => Err(format!("{count} tests failed or did not end").into()),
        }
    }
}

/// The steps of the ordinary tests: `socket.test` of Tcl 8.6 on each driver. None in a tree without the extension.
pub(crate) fn suite_stage(steps: &mut StepRunner) -> XtaskResult {
    if !has_crate() {
        return Ok(());
    }
    for driver in [TclDriver::Uring, TclDriver::Poll] {
        let arguments = TclSuiteArguments {
            tcl9: false,
            stock: false,
            rounds: 1,
            files: vec!["socket".to_owned()],
            driver: Some(driver),
            debug: true,
            ordinary_user: false,
        };
        steps.run_step(&format!("Tcl's socket tests on {}", driver.option()), || arguments.run())?;
    }
    Ok(())
}
