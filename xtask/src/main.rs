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
type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// All that people do to this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what the tests need, then run them all
    Test(test::Arguments),
    /// Formatting, lints, documentation, house style, then all tests
    Ci,
    /// Check the house rules that no compiler checks
    Style,
    /// Show the table of every maximum, or write it to docs/limits.md
    Limits(limits::Arguments),
    /// Show everything that can be chosen, or write it to docs/configuration.md
    Configuration(configuration::Arguments),
    /// Run the deterministic world over seeds
    Sim(sim::Arguments),
    /// Run a fuzz target
    Fuzz(fuzz::Arguments),
    /// Measure side by side with others
    Bench(bench::Arguments),
    /// Kill the server under load and compare what it acknowledged with what it has
    Crash(crash::Arguments),
    /// Restart the server under load and account for every message
    Restarts(restarts::Arguments),
    /// Put a long load on and see that everything stays level
    Soak(soak::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Test(arguments) => arguments.run(),
        Command::Ci => ci::run(),
        Command::Style => style::run(),
        Command::Limits(arguments) => arguments.run(),
        Command::Configuration(arguments) => arguments.run(),
        Command::Sim(arguments) => arguments.run(),
        Command::Fuzz(arguments) => arguments.run(),
        Command::Bench(arguments) => arguments.run(),
        Command::Crash(arguments) => arguments.run(),
        Command::Restarts(arguments) => arguments.run(),
        Command::Soak(arguments) => arguments.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
