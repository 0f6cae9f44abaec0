//! `cargo xtask …`: the entry point to all tasks of this repository.
//!
//! Each command has its own file. Every step is an ordinary command that is printed and can be repeated by hand.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]
#![forbid(unsafe_code)]

mod autobahn;
mod bench;
mod ci;
mod clients;
mod configuration;
mod crash;
mod fuzz;
mod go;
mod limits;
mod node;
mod packages;
mod python;
mod recording;
mod restarts;
mod sim;
mod soak;
mod steps;
mod style;
mod style_warnings;
mod tcl;
mod test;
mod tree;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Result of a command; the error is a message for the user.
type XtaskResult<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Tasks of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", arg_required_else_help = true)]
struct XtaskCli {
    #[command(subcommand)]
    command: XtaskCommand,
}

#[derive(Subcommand)]
enum XtaskCommand {
    /// Install the programs that the tests need, then run all tests
    Test(test::TestArguments),
    /// Check formatting, lints, documentation and style, then run all tests
    Ci,
    /// Check the conventions that no compiler checks
    Style,
    /// Print the table of all limits, or write it to docs/limits.md
    Limits(limits::LimitsArguments),
    /// Print all configuration options, or write them to docs/configuration.md
    Configuration(configuration::ConfigurationArguments),
    /// Render the picture of the README from a real run
    Recording,
    /// Run deterministic simulated worlds over seeds
    Sim(sim::SimCommandArguments),
    /// Run a fuzz target
    Fuzz(fuzz::FuzzArguments),
    /// Measure side by side with other servers
    Bench(bench::BenchArguments),
    /// Follow one stream with clients of all protocols over restarts and kills of the server
    Clients(clients::ClientsArguments),
    /// Kill the server under load and compare acknowledged with stored messages
    Crash(crash::CrashArguments),
    /// Restart the server under load and account for every message
    Restarts(restarts::RestartsArguments),
    /// Run the Autobahn test suite of WebSocket against both drivers
    Autobahn(autobahn::AutobahnArguments),
    /// Build the Tcl extension and lay it out as packages for tclsh
    Tcl(tcl::TclArguments),
    /// Run the tests of Tcl's own sockets on the Tcl extension
    TclSuite(tcl::TclSuiteArguments),
    /// Run the Tcl extension's own tests with a selected version of Tcl
    TclRows(tcl::TclRowsArguments),
    /// Run scripts on the Tcl extension under Valgrind
    TclValgrind(tcl::TclValgrindArguments),
    /// Run a long load and check that resources return to their earlier level
    Soak(soak::SoakArguments),
}

fn main() -> ExitCode {
    let outcome = match XtaskCli::parse().command {
        XtaskCommand::Test(arguments) => arguments.run(),
        XtaskCommand::Ci => ci::run(),
        XtaskCommand::Style => style::run(),
        XtaskCommand::Limits(arguments) => arguments.run(),
        XtaskCommand::Configuration(arguments) => arguments.run(),
        XtaskCommand::Recording => recording::run_commands(),
        XtaskCommand::Sim(arguments) => arguments.run(),
        XtaskCommand::Fuzz(arguments) => arguments.run(),
        XtaskCommand::Bench(arguments) => arguments.run(),
        XtaskCommand::Clients(arguments) => arguments.run(),
        XtaskCommand::Crash(arguments) => arguments.run(),
        XtaskCommand::Restarts(arguments) => arguments.run(),
        XtaskCommand::Autobahn(arguments) => arguments.run(),
        XtaskCommand::Tcl(arguments) => arguments.run(),
        XtaskCommand::TclSuite(arguments) => arguments.run(),
        XtaskCommand::TclRows(arguments) => arguments.run(),
        XtaskCommand::TclValgrind(arguments) => arguments.run(),
        XtaskCommand::Soak(arguments) => arguments.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
