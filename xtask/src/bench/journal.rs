//! `cargo xtask bench journal`: the journal without a server, with each write method on the file system of this folder.
//! An example of the journal's crate measures; this command writes the section.

use std::fs;
use std::process::Stdio;

use clap::Args;

use super::harness::{self, BenchOptions};
use super::machine;
use crate::steps::{cargo, command_text};
use crate::{XtaskResult, tree};

pub(super) const TITLE: &str = "The journal alone";

#[derive(Args)]
pub(super) struct JournalBenchArguments {
    #[command(flatten)]
    options: BenchOptions,
}

impl JournalBenchArguments {
    pub(super) fn run(self) -> XtaskResult {
        // Not in the system's temporary folder, which may be in memory.
        let target = tree::target();
        fs::create_dir_all(&target)?;
        let BenchOptions { rounds, quick, write } = self.options;
        let (target, mebibytes) = (target.canonicalize()?, if quick { 16 } else { 512 });
        let mut command =
            cargo(["run", "--release", "-q", "-p", "stilling-journal", "--example", "append", "--"]);
        command.arg(target).args([mebibytes.to_string(), rounds.to_string()]).stderr(Stdio::inherit());
        let output = command.output().map_err(|error| format!("`{}`: {error}", command_text(&command)))?;
        if !output.status.success() {
            return Err(format!("`{}`: {}", command_text(&command), output.status).into());
        }
        let lines = machine::listed([]);
        let text = format!(
            "## {TITLE}\n\n\
             Row 2.6: records of 4 KiB are written to new segments, a \
             fixed number per write, each write durable before the next: through the page cache, and past it from the \
             memory of the batch (`O_DIRECT`), into a file that grows or into a segment that was zeroed in advance. CPU is the process's, user and system; \
             later write-back by the kernel is not counted. Opening is measured as after a crash. \
             `{}` writes this section; a cell is the median of \
             the rounds and, in brackets, the minimum and the maximum, {mebibytes} MiB each.\n\n{lines}\n{}",
            self.options.command("journal"),
            String::from_utf8_lossy(&output.stdout)
        );
        harness::publish(TITLE, &text, write)
    }
}
