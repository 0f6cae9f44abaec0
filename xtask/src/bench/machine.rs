//! Description of the machine, without which figures are meaningless.

use std::fs;
use std::process::Command;

use super::isolation;
use super::page::PAGE;
use crate::tree;

/// Versions of the programs used by and compared in the HTTP benchmarks.
pub(super) fn http_programs(hyper: &str) -> Vec<String> {
    let versions = [
        ("ab", command_output("ab", &["-V"])),
        ("wrk", command_output("wrk", &["-v"])),
        ("nginx", command_output("/usr/sbin/nginx", &["-v"])),
    ];
    let mut lines = Vec::from(versions.map(|(name, version)| format!("{name}: {}", short(&version))));
    lines.push(format!("hyper: {hyper}"));
    lines
}

/// The list above all figures: the machine, the date, and further lines.
pub(crate) fn listed(further: impl IntoIterator<Item = String>) -> String {
    where_and_when().into_iter().chain(further).map(|line| format!("- {line}\n")).collect()
}

fn where_and_when() -> Vec<String> {
    let cpu = read("/proc/cpuinfo");
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown", |(_, model)| model);
    let memory = read("/proc/meminfo");
    let memory_kib: u64 = memory.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    vec![
        format!("Date: {}", command_output("date", &["-u", "+%Y-%m-%d"])),
        format!("Commit: {}", commit()),
        format!("Machine: {model}, {} cores, {:.0} GiB", cores(), memory_kib as f64 / (1024.0 * 1024.0)),
        format!("Kernel: Linux {}", read("/proc/sys/kernel/osrelease").trim()),
        format!("TCP congestion control: {}", isolation::congestion()),
    ]
}

pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Versions of the peer's libraries, from the lock file.
pub(super) fn locked(lock: &str, packages: &[&str]) -> String {
    let version = |package: &&str| {
        let entry =
            lock.split("[[package]]").find(|entry| entry.contains(&format!("\nname = \"{package}\"\n")))?;
        let version = entry.lines().find_map(|line| line.strip_prefix("version = "))?;
        Some(format!("{package} {}", version.trim_matches('"')))
    };
    packages.iter().filter_map(version).collect::<Vec<_>>().join(", ")
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(tree::root()).args(arguments).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
    };
    // The page itself is excluded: the benchmarks write it, so that one commit can have several runs.
    let is_changed = !git(&["status", "--porcelain", "--", ".", &format!(":!{PAGE}")]).is_empty();
    let changed = if is_changed { ", with changes" } else { "" };
    format!("{}{changed}", git(&["rev-parse", "--short", "HEAD"]))
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The first line of a command's output, on stdout or stderr.
pub(super) fn command_output(program: &str, arguments: &[&str]) -> String {
    let Ok(output) = Command::new(program).args(arguments).output() else { return "unknown".to_owned() };
    let all = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&all).lines().next().unwrap_or_default().trim().to_owned()
}

/// The version number within a sentence.
pub(super) fn short(sentence: &str) -> &str {
    let is_version =
        |word: &&str| word.contains('.') && word.contains(|letter: char| letter.is_ascii_digit());
    sentence.split_whitespace().find(is_version).unwrap_or(sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_its_sentence() {
        assert_eq!(short("This is ApacheBench, Version 2.3 <$Revision$>"), "2.3");
        assert_eq!(short("nginx version: nginx/1.22.1"), "nginx/1.22.1");
        assert_eq!(short("unknown"), "unknown");
    }

    #[test]
    fn a_version_is_found_in_the_lock_file() {
        let lock = "version = 4\n\n[[package]]\nname = \"a-b\"\nversion = \"9.9\"\n\n[[package]]\nname = \"a\"\nversion = \"1.2\"\n";
        assert_eq!(locked(lock, &["a", "c", "a-b"]), "a 1.2, a-b 9.9");
    }
}
