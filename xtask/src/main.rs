//! `cargo xtask …`: the one entry point to all that people do to this repository.
//!
//! Each command has a file of its own; every step is an ordinary command that is printed and can be
//! repeated by hand.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]
#![forbid(unsafe_code)]

mod bench;
mod ci;
mod configuration;
mod crash;
mod fuzz;
mod go;
mod limits;
mod node;
mod packages;
mod python;
mod restarts;
mod sim;
mod soak;
mod steps;
mod style;
mod test;
mod tree;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What a command comes to; the error is a message for the person who called it.
type XtaskResult<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// All that people do to this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", arg_required_else_help = true)]
struct XtaskCli {
    #[command(subcommand)]
    command: XtaskCommand,
}

#[derive(Subcommand)]
enum XtaskCommand {
    /// Install what the tests need, then run them all
    Test(test::TestArguments),
    /// Formatting, lints, documentation, house style, then all tests
    Ci,
    /// Check the house rules that no compiler checks
    Style,
    /// Show the table of every maximum, or write it to docs/limits.md
    Limits(limits::LimitsArguments),
    /// Show everything that can be chosen, or write it to docs/configuration.md
    Configuration(configuration::ConfigurationArguments),
    /// Run the deterministic world over seeds
    Sim(sim::SimCommandArguments),
    /// Run a fuzz target
    Fuzz(fuzz::FuzzArguments),
    /// Measure side by side with others
    Bench(bench::BenchArguments),
    /// Kill the server under load and compare what it acknowledged with what it has
    Crash(crash::CrashArguments),
    /// Restart the server under load and account for every message
    Restarts(restarts::RestartsArguments),
    /// Put a long load on and see that everything stays level
    Soak(soak::SoakArguments),
}

fn main() -> ExitCode {
    let outcome = match XtaskCli::parse().command {
        XtaskCommand::Test(arguments) => arguments.run(),
        XtaskCommand::Ci => ci::run(),
        XtaskCommand::Style => style::run(),
        XtaskCommand::Limits(arguments) => arguments.run(),
        XtaskCommand::Configuration(arguments) => arguments.run(),
        XtaskCommand::Sim(arguments) => arguments.run(),
        XtaskCommand::Fuzz(arguments) => arguments.run(),
        XtaskCommand::Bench(arguments) => arguments.run(),
        XtaskCommand::Crash(arguments) => arguments.run(),
        XtaskCommand::Restarts(arguments) => arguments.run(),
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
