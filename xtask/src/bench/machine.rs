//! Where figures were measured: without it they say nothing.

use std::fs;
use std::process::Command;

use crate::tree;

/// The lines that stand above all figures.
pub(super) fn describe() -> Vec<String> {
    let cpu = read("/proc/cpuinfo");
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown", |(_, model)| model);
    let memory = read("/proc/meminfo");
    let memory_kib: u64 = memory.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    let mut lines = vec![
        format!("Date: {}", said("date", &["-u", "+%Y-%m-%d"])),
        format!("Commit: {}", commit()),
        format!("Machine: {model}, {} cores, {:.0} GiB", cores(), memory_kib as f64 / (1024.0 * 1024.0)),
        format!("Kernel: Linux {}", read("/proc/sys/kernel/osrelease").trim()),
        format!(
            "TCP congestion control: {} (the system's own, for all servers and clients)",
            read("/proc/sys/net/ipv4/tcp_congestion_control").trim()
        ),
    ];
    let versions = [
        ("ab", said("ab", &["-V"])),
        ("wrk", said("wrk", &["-v"])),
        ("nginx", said("/usr/sbin/nginx", &["-v"])),
    ];
    lines.extend(versions.map(|(name, version)| format!("{name}: {}", short(&version))));
    lines
}

/// Cores that a server may use.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(tree::root()).args(arguments).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
    };
    let changed = if git(&["status", "--porcelain"]).is_empty() { "" } else { ", with changes" };
    format!("{}{changed}", git(&["rev-parse", "--short", "HEAD"]))
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The first line that a command prints, wherever it prints it.
fn said(program: &str, arguments: &[&str]) -> String {
    let Ok(output) = Command::new(program).args(arguments).output() else { return "unknown".to_owned() };
    let all = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&all).lines().next().unwrap_or_default().trim().to_owned()
}

/// The version alone, out of the sentence it stands in.
fn short(sentence: &str) -> &str {
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
}
