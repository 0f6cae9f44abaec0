//! `cargo xtask bench journal`: the journal without a server around it, each way of writing on the file system of this
//! folder. An example of the journal's measures; this gives its figures their section.

use std::fs;
use std::process::Stdio;

use clap::Args;

use super::machine;
use super::page::{PAGE, with_section};
use crate::steps::{cargo, shown};
use crate::{Outcome, tree};

/// The section of the page that this command writes.
pub(super) const TITLE: &str = "The journal alone";

#[derive(Args)]
pub(super) struct Arguments {
    /// Rounds of each way of writing, which take turns
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// 16 MiB instead of 512 for each: shows that it works, not how well
    #[arg(long)]
    quick: bool,
    /// Write the section into docs/benchmarks.md
    #[arg(long)]
    write: bool,
}

impl Arguments {
    pub(super) fn run(self) -> Outcome {
        // Not where the system keeps its temporary files: that may be memory.
        let target = tree::target();
        fs::create_dir_all(&target)?;
        let (target, mebibytes, rounds) =
            (target.canonicalize()?, if self.quick { 16 } else { 512 }, self.rounds);
        let mut command =
            cargo(["run", "--release", "-q", "-p", "stilling-journal", "--example", "append", "--"]);
        command.arg(target).args([mebibytes.to_string(), rounds.to_string()]).stderr(Stdio::inherit());
        let output = command.output().map_err(|error| format!("`{}`: {error}", shown(&command)))?;
        if !output.status.success() {
            return Err(format!("`{}`: {}", shown(&command), output.status).into());
        }
        let quick = if self.quick { " --quick" } else { "" };
        let lines: String = machine::where_and_when().iter().map(|line| format!("- {line}\n")).collect();
        let text = format!(
            "## {TITLE}\n\n\
             Row 2.6: records of 4 KiB into segments that grow from nothing, so many with each write, each write durable \
             before the next: through the page cache, and past it from the memory in which a batch was built (`O_DIRECT`), \
             into a file that grows as it is written or whose segment was zeroed ahead. CPU is the process's, user and system; \
             what the kernel writes back later on its own is nobody's. Opening is that of a start after a crash. \
             `cargo xtask bench journal --rounds {rounds}{quick} --write` writes this section; a cell is the median of \
             the rounds and, in brackets, the least and the greatest, {mebibytes} MiB each.\n\n{lines}\n{}",
            String::from_utf8_lossy(&output.stdout)
        );
        println!("\n{text}");
        if !self.write {
            return Ok(());
        }
        let page = fs::read_to_string(tree::root().join(PAGE))?;
        tree::write(PAGE, &with_section(&page, TITLE, &text))
    }
}
