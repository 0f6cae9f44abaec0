//! Installed programs as clients. A missing program is a failure, never a skip.

use std::process::{Command, Stdio};

pub(crate) struct Tool {
    name: &'static str,
    command: Command,
}

impl Tool {
    /// A call of `name` with arguments separated by blanks.
    pub(crate) fn new(name: &'static str, arguments: &str) -> Tool {
        let mut command = Command::new(name);
        command.args(arguments.split_whitespace());
        Tool { name, command }
    }

    /// Adds one argument, including its blanks.
    pub(crate) fn arg(mut self, argument: impl AsRef<std::ffi::OsStr>) -> Tool {
        self.command.arg(argument);
        self
    }

    /// Runs the program to its successful end. Returns its standard output.
    #[track_caller]
    pub(crate) fn output(mut self) -> String {
        let outcome = self.command.stdin(Stdio::null()).output().unwrap_or_else(|error| {
            panic!("cannot run {}: {error}; install it (`cargo xtask test` does)", self.name)
        });
        let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
        let stderr_text = String::from_utf8_lossy(&outcome.stderr);
        assert!(outcome.status.success(), "{}: {}\n{text}\n{stderr_text}", self.name, outcome.status);
        text
    }

    pub(crate) fn into_command(self) -> Command {
        self.command
    }
}
