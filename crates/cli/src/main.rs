//! The `stilling` command: arguments, output and exit status.

#![forbid(unsafe_code)]

mod bench;
mod check;
mod hub;
mod journal;
mod publish;
mod reload;
mod request;
mod resolved;
mod serve;
mod settings;
mod subscribe;
mod warnings;

use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ArgAction, Parser, Subcommand};
use settings::SettingsError;

/// `EX_USAGE` of sysexits(3): the command line is wrong.
const EXIT_USAGE: u8 = 64;
/// `EX_TEMPFAIL` of sysexits(3): not complete yet, nothing is lost.
const EXIT_SPOOLED: u8 = 75;

/// A server for bursts of messages and requests
#[derive(Parser)]
#[command(name = "stilling", version, arg_required_else_help = true, disable_help_flag = true)]
struct StillingArguments {
    /// Print help
    #[arg(short, long, global = true, action = ArgAction::HelpShort, display_order = 1000)]
    help: Option<bool>,
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand)]
enum CliCommand {
    /// Serve HTTP, NATS, CoAP and syslog
    Serve(Box<serve::ServeArguments>),
    /// Show what serve would open with these options and settings, with errors and warnings; opens nothing
    Check(Box<serve::ServeArguments>),
    /// Print all settings with their keys, variables and defaults
    Options,
    /// Generate load and check the results
    Bench(bench::BenchArguments),
    /// Publish messages to a NATS server
    Pub(Box<publish::PublishArguments>),
    /// Print messages of a NATS server, live or from a stream
    Sub(Box<subscribe::SubscribeArguments>),
    /// Send a request to a CoAP server and print its response
    Request(Box<request::RequestArguments>),
    /// Inspect the files of a server: list, print, verify; read-only
    Journal(journal::JournalArguments),
}

/// Valid options that contradict each other; the explanation is already printed.
#[derive(Debug)]
struct ConflictingOptions;

impl std::fmt::Display for ConflictingOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the options contradict each other")
    }
}

impl std::error::Error for ConflictingOptions {}

/// An argument that passes the parser but not the command, such as a subject with an empty token.
#[derive(Debug)]
struct InvalidArgument(String);

impl std::fmt::Display for InvalidArgument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidArgument {}

fn print(text: &str) -> Result<(), Box<dyn std::error::Error>> {
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn main() -> ExitCode {
    let variables: Vec<_> = std::env::vars_os().collect();
    let (cli, sources) = match settings::load_settings(std::env::args_os().collect(), &variables) {
        Ok(gathered) => gathered,
        Err(SettingsError::Usage(error, notes)) => {
            // Help is no error and goes to stdout; everything else goes to stderr with the usage.
            let _ = error.print();
            let _ = std::io::stderr().write_all(notes.as_bytes());
            let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if is_help { ExitCode::SUCCESS } else { ExitCode::from(EXIT_USAGE) };
        }
        Err(SettingsError::Settings(diagnostics)) => {
            let _ = writeln!(std::io::stderr(), "stilling: {diagnostics}{}", diagnostics.hint());
            return diagnostics.status();
        }
    };
    let outcome = match cli.command {
        CliCommand::Serve(arguments) => arguments.run(sources),
        CliCommand::Check(arguments) => check::run(*arguments, sources),
        CliCommand::Options => print(&settings::page()),
        CliCommand::Bench(arguments) => arguments.run(),
        CliCommand::Pub(arguments) => arguments.run(),
        CliCommand::Sub(arguments) => arguments.run(),
        CliCommand::Request(arguments) => arguments.run(),
        CliCommand::Journal(arguments) => arguments.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // The explanation is already printed.
        Err(error) if error.is::<ConflictingOptions>() => ExitCode::from(EXIT_USAGE),
        Err(error) if error.is::<request::ErrorResponse>() => {
            ExitCode::from(error.downcast_ref().map_or(1, request::ErrorResponse::status))
        }
        Err(error) if error.is::<journal::JournalError>() => {
            let stop = error.downcast_ref::<journal::JournalError>();
            if let Some(stop) = stop.filter(|stop| stop.has_message()) {
                let _ = writeln!(std::io::stderr(), "stilling: {stop}");
            }
            ExitCode::from(stop.map_or(1, journal::JournalError::status))
        }
        Err(error) => {
            let hint = error.downcast_ref().map_or("", settings::Diagnostics::hint);
            let _ = writeln!(std::io::stderr(), "stilling: {error}{hint}");
            if error.is::<publish::MessagesSpooled>() {
                ExitCode::from(EXIT_SPOOLED)
            } else if error.is::<InvalidArgument>() {
                ExitCode::from(EXIT_USAGE)
            } else {
                error.downcast_ref().map_or(ExitCode::FAILURE, settings::Diagnostics::status)
            }
        }
    }
}
