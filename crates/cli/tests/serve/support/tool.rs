//! Programs of the machine that act as clients. One that is missing is a failure, never a skip.

use std::process::{Command, Stdio};

/// A call of a program.
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

    /// One more argument, blanks and all.
    pub(crate) fn arg(mut self, argument: impl AsRef<std::ffi::OsStr>) -> Tool {
        self.command.arg(argument);
        self
    }

    /// Runs it to its end, which must be a success. Returns what it wrote to standard output.
    #[track_caller]
    pub(crate) fn output(mut self) -> String {
        let outcome = self.command.stdin(Stdio::null()).output().unwrap_or_else(|error| {
            panic!("cannot run {}: {error}; install it (`cargo xtask test` does)", self.name)
        });
        let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
        let said = String::from_utf8_lossy(&outcome.stderr);
        assert!(outcome.status.success(), "{}: {}\n{text}\n{said}", self.name, outcome.status);
        text
    }

    /// The command, for a program that starts the server.
    pub(crate) fn into_command(self) -> Command {
        self.command
    }
}
