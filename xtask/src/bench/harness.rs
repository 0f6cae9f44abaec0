//! Shared parts of the `cargo xtask bench` commands: options, network and programs, interleaved rounds, and the written
//! section.

use std::fs;

use clap::Args;

use super::figures::{PageSection, Series};
use super::page::{PAGE, with_section};
use super::sample::BenchSample;
use super::server::BenchServer;
use super::targets::BenchTargets;
use super::{idle, isolation};
use crate::{XtaskResult, tree};

/// Options of the commands that measure in rounds.
#[derive(Args)]
pub(super) struct BenchOptions {
    /// Rounds of each measurement, in which the compared servers alternate
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) rounds: u32,
    /// Reduced load: shows that the benchmark works, not how fast
    #[arg(long)]
    pub(super) quick: bool,
    /// Write the results into docs/benchmarks.md
    #[arg(long)]
    pub(super) write: bool,
}

impl BenchOptions {
    /// The command that writes these results, as a reader types it.
    pub(super) fn command(&self, name: &str) -> String {
        let quick = if self.quick { " --quick" } else { "" };
        format!("cargo xtask bench {name} --rounds {}{quick} --write", self.rounds)
    }
}

/// Whether a part is selected; without words, all parts are.
pub(super) fn is_wanted(only: &[String], title: &str) -> bool {
    only.is_empty() || only.iter().any(|word| title.contains(word.as_str()))
}

/// Runs `prepare` on the system's network, then enters a network namespace and raises the limit of descriptors.
pub(crate) fn enter_namespace(prepare: impl FnOnce() -> XtaskResult) -> XtaskResult {
    if !isolation::is_in_namespace() {
        prepare()?;
    }
    isolation::enter_namespace()?;
    idle::raise_descriptors();
    Ok(())
}

pub(super) trait NamedServer {
    fn name(&self) -> &'static str;
}

impl NamedServer for BenchServer {
    fn name(&self) -> &'static str {
        self.name
    }
}

/// A server with the path requested from it.
impl NamedServer for (BenchServer, &str) {
    fn name(&self) -> &'static str {
        self.0.name
    }
}

/// Measures each of `all` once per round, in turn, so that changes of the machine affect all of them alike. Returns the
/// results of each, one per round.
pub(super) fn run_rounds<T, R>(
    rounds: u32,
    all: &[T],
    mut measure: impl FnMut(u32, &T) -> XtaskResult<R>,
) -> XtaskResult<Vec<Vec<R>>> {
    let mut results: Vec<Vec<R>> = all.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for (one, results) in all.iter().zip(&mut results) {
            results.push(measure(round, one)?);
        }
    }
    Ok(results)
}

/// Like [`run_rounds`] for samples, each printed as it arrives.
pub(super) fn series<T: NamedServer>(
    rounds: u32,
    title: &str,
    all: &[T],
    mut measure: impl FnMut(&T) -> XtaskResult<BenchSample>,
) -> XtaskResult<Vec<Series>> {
    let samples = run_rounds(rounds, all, |round, one| {
        let sample = measure(one)?;
        let BenchSample { rate, cpu_s, failures, .. } = sample;
        let name = one.name();
        println!(
            "{title}, round {round}, {name}: {rate:.0}/s, {cpu_s:.2} CPU s per million, {failures} failures"
        );
        Ok(sample)
    })?;
    Ok(all.iter().zip(samples).map(|(one, samples)| Series { server: one.name(), samples }).collect())
}

/// A section of parts, one heading level below it, after the table of targets.
pub(super) fn of_parts(
    title: &str,
    introduction: &str,
    targets: &BenchTargets,
    parts: Vec<PageSection>,
) -> String {
    let parts = std::iter::once(targets.section()).chain(parts);
    let parts: Vec<String> = parts.map(|part| format!("#{}", part.text())).collect();
    format!("## {title}\n\n{introduction}\n{}", parts.join("\n"))
}

/// Prints a section and, if `write` is set, writes it in place of the section with its title.
pub(super) fn publish(title: &str, text: &str, write: bool) -> XtaskResult {
    println!("\n{text}");
    if !write {
        return Ok(());
    }
    let page = fs::read_to_string(tree::root().join(PAGE))?;
    tree::write(PAGE, &with_section(&page, title, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_take_turns_and_the_first_error_ends_them() {
        let mut order = Vec::new();
        let results = run_rounds(2, &["a", "b"], |round, name| {
            order.push(format!("{name}{round}"));
            Ok(round)
        });
        assert_eq!(results.expect("nothing fails"), [[0, 1], [0, 1]]);
        assert_eq!(order, ["a0", "b0", "a1", "b1"]);
        let failed = run_rounds(2, &["a"], |_, _| -> XtaskResult { Err("no".into()) });
        assert_eq!(failed.expect_err("it fails").to_string(), "no");
    }

    #[test]
    fn an_argument_selects_titles_that_contain_it() {
        let only = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert!(is_wanted(&[], "any") && is_wanted(&only(&["x", "ny"]), "any"));
        assert!(!is_wanted(&only(&["x"]), "any"));
    }
}
