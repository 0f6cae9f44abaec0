//! `cargo xtask restarts`: real hot restarts under load, with exact accounting.
//!
//! The servers of each driver take over from each other while clients publish over NATS, HTTP and syslog: every acknowledged
//! message and every datagram must be stored once, and no request may fail. It runs the end-to-end test named below for
//! longer.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use clap::Args;

use crate::XtaskResult;
use crate::steps::{StepRunner, cargo, command_text};

const TEST: &str = "published_messages_are_stored_once_and_no_datagram_is_lost";

/// Modules of the test, one per driver.
const DRIVERS: [&str; 3] = ["on_uring", "on_uring_direct", "on_poll"];

#[derive(Args)]
pub(crate) struct RestartsArguments {
    /// Total number of hot restarts, distributed over the drivers
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(3..=100_000))]
    count: u32,
}

impl RestartsArguments {
    pub(crate) fn run(self) -> XtaskResult {
        let each = self.count.div_ceil(DRIVERS.len() as u32);
        StepRunner::run_all(|steps| {
            for driver in DRIVERS {
                let name = format!("hand_over::streams::{driver}::{TEST}");
                let mut command = cargo(["test", "-p", "stilling-cli", "--test", "serve", "--", "--exact"]);
                command.arg(name).env("STILLING_RESTARTS", each.to_string());
                steps.run_step(&format!("{each} restarts {driver}"), || run_one_test(&mut command))?;
            }
            Ok(())
        })
    }
}

/// Runs a test command, passes its output on, and checks that it ran exactly one test: cargo does not report an unknown
/// test name as an error.
pub(crate) fn run_one_test(command: &mut Command) -> XtaskResult {
    let command_text = command_text(command);
    println!("$ {command_text}");
    let spawned = command.stdout(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| format!("`{command_text}` does not start: {error}"))?;
    let mut has_passed = false;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            has_passed |= is_one_passed(&line);
            println!("{line}");
        }
    }
    let status = child.wait()?;
    match (status.success(), has_passed) {
        (true, true) => Ok(()),
        (true, false) => Err(format!("no test ran; check its name in\n    {command_text}").into()),
        (false, _) => Err(format!("{status}; repeat it with\n    {command_text}").into()),
    }
}

/// Whether this is the summary of exactly one passed test.
fn is_one_passed(line: &str) -> bool {
    line.starts_with("test result: ok. 1 passed; 0 failed; 0 ignored;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_the_test_is_a_failure() {
        let summary = |passed: u32, ignored: u32| {
            format!(
                "echo 'test result: ok. {passed} passed; 0 failed; {ignored} ignored; 0 measured; 9 filtered out'"
            )
        };
        let run = |script: &str| run_one_test(Command::new("sh").args(["-c", script]));
        assert!(run(&summary(1, 0)).is_ok());
        for (script, reason) in [
            (summary(0, 0), "no test ran"),
            (summary(0, 1), "no test ran"),
            (summary(11, 0), "no test ran"),
            (summary(1, 0) + "; exit 3", "repeat it"),
        ] {
            let error = run(&script).expect_err("it is no success").to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
