//! `cargo xtask fuzz TARGET`: runs one fuzz target for a while, with the dictionary of its protocol.

use std::fs;
use std::process::Stdio;

use clap::Args;

use crate::XtaskResult;
use crate::steps::{cargo, run};
use crate::tree;

#[derive(Args)]
pub(crate) struct FuzzArguments {
    /// Fuzz target: a file of fuzz/fuzz_targets without `.rs`
    target: String,
    /// Duration in seconds
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
}

impl FuzzArguments {
    pub(crate) fn run(self) -> XtaskResult {
        let targets = targets()?;
        if !targets.contains(&self.target) {
            return Err(format!("no fuzz target `{}`; there are: {}", self.target, targets.join(", ")).into());
        }
        let mut asked = cargo(["+nightly", "fuzz", "--version"]);
        if !asked.stdout(Stdio::null()).stderr(Stdio::null()).status()?.success() {
            run(&mut cargo(["install", "--locked", "cargo-fuzz"]))?;
        }
        let mut command = cargo(["+nightly", "fuzz", "run", &self.target, "--"]);
        command.arg(format!("-max_total_time={}", self.seconds));
        let dictionary = dictionary(&self.target);
        if tree::root().join(&dictionary).is_file() {
            command.arg(format!("-dict={dictionary}"));
        }
        run(&mut command)
    }
}

fn targets() -> XtaskResult<Vec<String>> {
    let mut targets = Vec::new();
    for entry in fs::read_dir(tree::root().join("fuzz/fuzz_targets"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        targets.extend(name.strip_suffix(".rs").map(str::to_owned));
    }
    targets.sort();
    Ok(targets)
}

/// Dictionary of a target's protocol, named by the part of the target before the first `_`.
fn dictionary(target: &str) -> String {
    format!("fuzz/{}.dict", target.split('_').next().unwrap_or(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_uses_the_dictionary_of_its_protocol_and_is_listed() {
        assert_eq!(dictionary("http1_request"), "fuzz/http1.dict");
        assert!(targets().expect("a folder").contains(&"http1_request".to_owned()));
    }
}
