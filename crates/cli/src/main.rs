//! The `stilling` command: what a user types, and what they read when something is wrong.

#![forbid(unsafe_code)]

mod bench;
mod check;
mod hub;
mod journal;
mod publish;
mod serve;
mod settings;
mod settled;
mod subscribe;
mod warnings;

use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use settings::Stop;

/// `EX_USAGE` of sysexits(3): the command line is wrong.
const EXIT_USAGE: u8 = 64;
/// `EX_TEMPFAIL` of sysexits(3): it is not done yet, and nothing is lost.
const EXIT_WAITING: u8 = 75;

/// The server that stays calm when everyone talks at once.
#[derive(Parser)]
#[command(name = "stilling", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve HTTP: fast answers in the I/O threads, slow ones in workers
    Serve(Box<serve::Arguments>),
    /// Say what serve would open with these options and settings, and what is wrong or not wise; open nothing
    Check(Box<serve::Arguments>),
    /// Print everything that can be chosen, with its key, its variable and its default
    Options,
    /// Generate load and check what comes back
    Bench(bench::Arguments),
    /// Publish messages to a server that speaks the NATS protocol
    Pub(Box<publish::Arguments>),
    /// Print messages of such a server, as they come or from a stream
    Sub(Box<subscribe::Arguments>),
    /// Look at what a server has written: list, print, verify; only reads
    Journal(journal::Arguments),
}

/// Options that are each fine and contradict each other; the explanation has been printed.
#[derive(Debug)]
struct WrongUsage;

impl std::fmt::Display for WrongUsage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the options contradict each other")
    }
}

impl std::error::Error for WrongUsage {}

/// An argument that the command line's parser takes and the command cannot: a subject with an empty token.
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
    let (cli, sources) = match settings::gather(std::env::args_os().collect(), &variables) {
        Ok(gathered) => gathered,
        Err(Stop::Usage(error, notes)) => {
            // Help goes to stdout and is no error; everything else goes to stderr with the usage.
            let _ = error.print();
            let _ = std::io::stderr().write_all(notes.as_bytes());
            let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if asked { ExitCode::SUCCESS } else { ExitCode::from(EXIT_USAGE) };
        }
        Err(Stop::Settings(complaints)) => {
            let _ = writeln!(std::io::stderr(), "stilling: {complaints}{}", complaints.hint());
            return complaints.status();
        }
    };
    let outcome = match cli.command {
        Command::Serve(arguments) => arguments.run(sources),
        Command::Check(arguments) => check::run(*arguments, sources),
        Command::Options => print(&settings::page()),
        Command::Bench(arguments) => arguments.run(),
        Command::Pub(arguments) => arguments.run(),
        Command::Sub(arguments) => arguments.run(),
        Command::Journal(arguments) => arguments.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // It has been explained already.
        Err(error) if error.is::<WrongUsage>() => ExitCode::from(EXIT_USAGE),
        Err(error) if error.is::<journal::Stop>() => {
            let stop = error.downcast_ref::<journal::Stop>();
            if let Some(stop) = stop.filter(|stop| stop.has_words()) {
                let _ = writeln!(std::io::stderr(), "stilling: {stop}");
            }
            ExitCode::from(stop.map_or(1, journal::Stop::status))
        }
        Err(error) => {
            let hint = error.downcast_ref().map_or("", settings::Complaints::hint);
            let _ = writeln!(std::io::stderr(), "stilling: {error}{hint}");
            if error.is::<publish::Waiting>() {
                ExitCode::from(EXIT_WAITING)
            } else if error.is::<InvalidArgument>() {
                ExitCode::from(EXIT_USAGE)
            } else {
                error.downcast_ref().map_or(ExitCode::FAILURE, settings::Complaints::status)
            }
        }
    }
}
