//! Steps of a longer command: each is timed, the first failure ends the command and names the command to repeat it, and
//! a table of all durations is printed last.

use std::ffi::OsStr;
use std::process::Command;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use crate::XtaskResult;
use crate::tree;

#[derive(Default)]
pub(crate) struct StepRunner {
    done: Vec<FinishedStep>,
}

struct FinishedStep {
    name: String,
    duration: Duration,
    passed: bool,
}

impl StepRunner {
    /// Runs `stages`, prints the table even after a failure, and returns the result.
    pub(crate) fn run_all(stages: impl FnOnce(&mut StepRunner) -> XtaskResult) -> XtaskResult {
        let mut steps = StepRunner::default();
        let outcome = stages(&mut steps);
        println!("\n{}", steps.table());
        outcome
    }

    pub(crate) fn command(&mut self, name: &str, command: &mut Command) -> XtaskResult {
        self.run_step(name, || run(command))
    }

    pub(crate) fn run_step(&mut self, name: &str, step: impl FnOnce() -> XtaskResult) -> XtaskResult {
        println!("\n== {name}");
        let start = Instant::now();
        let outcome = step();
        self.done.push(FinishedStep {
            name: name.to_owned(),
            duration: start.elapsed(),
            passed: outcome.is_ok(),
        });
        outcome.map_err(|error| format!("the step `{name}` failed: {error}").into())
    }

    fn table(&self) -> String {
        let width = self.done.iter().map(|done| done.name.chars().count()).max().unwrap_or(0).max(5);
        let mut table = String::new();
        for FinishedStep { name, duration, passed } in &self.done {
            let verdict = if *passed { "passed" } else { "FAILED" };
            table += &format!("{name:width$}  {:>7.1} s  {verdict}\n", duration.as_secs_f64());
        }
        let total: Duration = self.done.iter().map(|done| done.duration).sum();
        table + &format!("{:width$}  {:>7.1} s", "total", total.as_secs_f64())
    }
}

/// A cargo command at the root.
pub(crate) fn cargo<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(tree::root()).args(arguments);
    command
}

/// Runs a command to its end and passes its output on.
///
/// # Errors
/// If it does not start or exits with a non-zero status; the message contains the command to repeat it.
pub(crate) fn run(command: &mut Command) -> XtaskResult {
    let command_text = command_text(command);
    println!("$ {command_text}");
    let status = command.status().map_err(|error| format!("`{command_text}` does not start: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{status}; repeat it with\n    {command_text}").into())
    }
}

/// Runs a command that prints a report as JSON. Its status is ignored: failures are figures of the report.
///
/// # Errors
/// If it does not start or prints no report.
pub(crate) fn report<T: DeserializeOwned>(command: &mut Command) -> XtaskResult<T> {
    let output = command.output().map_err(|error| format!("`{}`: {error}", command_text(command)))?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let stderr_text = String::from_utf8_lossy(&output.stderr);
        format!("`{}` printed no report: {stderr_text}", command_text(command)).into()
    })
}

/// The command as typed at the root.
pub(crate) fn command_text(command: &Command) -> String {
    let set = command.get_envs().filter_map(|(name, value)| {
        value.map(|value| format!("{}={}", name.to_string_lossy(), quoted(&value.to_string_lossy())))
    });
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    set.chain(words.map(|word| quoted(&word.to_string_lossy()))).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=+,@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_command_can_be_typed() {
        let mut command = Command::new("cargo");
        command.env("RUSTFLAGS", "--cfg loom").args(["test", "it's", ""]);
        assert_eq!(command_text(&command), r"RUSTFLAGS='--cfg loom' cargo test 'it'\''s' ''");
    }

    #[test]
    fn a_report_is_read_and_anything_else_is_an_error_that_names_the_command() {
        let echo = |text: &str| report::<Vec<u32>>(Command::new("echo").arg(text));
        assert_eq!(echo("[1, 2]").expect("a report"), [1, 2]);
        let error = echo("error").expect_err("no report").to_string();
        assert!(error.starts_with("`echo error` printed no report"), "{error}");
    }

    #[test]
    fn a_failed_step_ends_the_command_and_names_the_way_to_repeat_it() {
        let mut steps = StepRunner::default();
        steps.run_step("first", || Ok(())).expect("nothing fails");
        let error = steps.command("second", &mut Command::new("false")).expect_err("false fails").to_string();
        assert!(error.contains("`second`") && error.ends_with("    false"), "{error}");
        let table = steps.table();
        let verdicts: Vec<_> = table.lines().map(|line| line.rsplit("  ").next().unwrap_or("")).collect();
        assert_eq!(verdicts[..2], ["passed", "FAILED"], "{table}");
    }
}
