//! `cargo xtask autobahn`: the Autobahn test suite of WebSocket against `/test/echo`, on both drivers.
//!
//! The suite is its own client (`wstest`) and runs under CPython 2.7 only, so that this command is not a part of the
//! tests. Its groups 12 and 13 test `permessage-deflate`, which Stilling declines, and are left out.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use serde::Deserialize;

use crate::XtaskResult;
use crate::bench::server::{BenchDriver, BenchServer};
use crate::steps::{cargo, run};
use crate::tree;

/// The suite, in the version of PyPI whose results count.
const SUITE: &str = "autobahntestsuite==25.10.1";

/// File in the folder of the suite that names the installed version, written last.
const INSTALLED_MARKER: &str = ".installed";

/// Framing, pings, reserved bits, opcodes, fragmentation, UTF-8, closes, large messages, sizes of pieces.
const GROUPS: [&str; 9] = ["1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "9.*", "10.*"];

const DRIVERS: [BenchDriver; 2] = [BenchDriver::Uring, BenchDriver::Poll];

/// Starts `wstest` without its console script, which pip writes for another folder.
const WSTEST: &str = "import sys; sys.argv = ['wstest', '-m', 'fuzzingclient', '-s', sys.argv[1]]; \
                      from autobahntestsuite.wstest import run; run()";

#[derive(Args)]
pub(crate) struct AutobahnArguments {
    /// Only cases that match this pattern, such as `6.*`; repeatable
    #[arg(long, value_name = "PATTERN")]
    case: Vec<String>,
}

impl AutobahnArguments {
    pub(crate) fn run(self) -> XtaskResult {
        let python = find_python()?;
        let suite = install(&python)?;
        run(&mut cargo(["build", "--release", "-p", "stilling-cli"]))?;
        let stilling = tree::target().join("release/stilling");
        let cases = if self.case.is_empty() { GROUPS.map(str::to_owned).to_vec() } else { self.case };
        let mut bad = Vec::new();
        for driver in DRIVERS {
            let summary = CaseSummary::of(&judge_server(&python, &suite, &stilling, driver, &cases)?);
            println!("{}: {}", driver.option(), summary.line());
            bad.extend(summary.bad.iter().map(|case| format!("{}: {case}", driver.option())));
        }
        if bad.is_empty() {
            return Ok(());
        }
        Err(format!("these cases are not OK:\n    {}", bad.join("\n    ")).into())
    }
}

/// A CPython 2.7 that starts: in the path, or in the folders of pyenv.
fn find_python() -> XtaskResult<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let pyenv = std::env::var_os("PYENV_ROOT").map_or_else(|| home.join(".pyenv"), PathBuf::from);
    let versions = fs::read_dir(pyenv.join("versions")).into_iter().flatten().flatten();
    let versions = versions.filter(|version| version.file_name().to_string_lossy().starts_with("2.7"));
    let candidates = versions.map(|version| version.path().join("bin/python2.7"));
    // The shim of pyenv is in the path without a version that it could start.
    let starts = |python: &PathBuf| {
        let output = Command::new(python).args(["-c", "import sys; print(sys.version_info[:2])"]).output();
        output.is_ok_and(|output| output.stdout.trim_ascii() == b"(2, 7)")
    };
    std::iter::once("python2.7".into()).chain(candidates).find(starts).ok_or_else(|| {
        "autobahntestsuite needs CPython 2.7, which is neither in the path nor in the folders of pyenv; install it, \
         for instance with `pyenv install 2.7.18`"
            .into()
    })
}

/// Installs the suite in a build folder unless this version is present.
fn install(python: &Path) -> XtaskResult<PathBuf> {
    let folder = tree::target().join("tmp/autobahn");
    let marker = folder.join(INSTALLED_MARKER);
    if fs::read_to_string(&marker).is_ok_and(|version| version == SUITE) {
        println!("{SUITE} is installed");
        return Ok(folder.canonicalize()?);
    }
    fs::create_dir_all(&folder)?;
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--upgrade", "--target"]).arg(&folder).arg(SUITE);
    run(&mut pip).map_err(|error| format!("{error}\nneeds pip for CPython 2.7 and PyPI"))?;
    // pip leaves this file of a namespace package out with `--target`.
    fs::write(folder.join("zope/__init__.py"), "")?;
    fs::write(marker, SUITE)?;
    Ok(folder.canonicalize()?)
}

/// Outcome of a case.
#[derive(Clone, Deserialize)]
struct CaseResult {
    behavior: String,
    #[serde(rename = "behaviorClose")]
    behavior_close: String,
}

type CaseResults = BTreeMap<String, CaseResult>;

/// Starts a server and runs the cases against it.
fn judge_server(
    python: &Path,
    suite: &Path,
    stilling: &Path,
    driver: BenchDriver,
    cases: &[String],
) -> XtaskResult<CaseResults> {
    let server = BenchServer::stilling(stilling, driver, &[])?;
    let folder = tree::target().canonicalize()?.join("tmp/autobahn-reports").join(driver.option());
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let agent = format!("stilling-{}", driver.option());
    let settings = serde_json::json!({
        "outdir": folder,
        "servers": [{"agent": agent, "url": format!("ws://{}/test/echo", server.address)}],
        "cases": cases,
        "exclude-cases": [],
        "exclude-agent-cases": {},
    });
    let file = folder.join("settings.json");
    fs::write(&file, settings.to_string())?;
    let mut wstest = Command::new(python);
    wstest.args(["-W", "ignore", "-c", WSTEST]).arg(&file).env("PYTHONPATH", suite).current_dir(&folder);
    run(&mut wstest)?;
    println!("reports: {}", folder.join("index.html").display());
    parse(&fs::read_to_string(folder.join("index.json"))?, &agent)
}

fn parse(index: &str, agent: &str) -> XtaskResult<CaseResults> {
    let mut agents: BTreeMap<String, CaseResults> = serde_json::from_str(index)?;
    let results = agents.remove(agent).unwrap_or_default();
    if results.is_empty() { Err("no case ran".into()) } else { Ok(results) }
}

/// Counts of outcomes, and the cases that are neither OK nor informational.
struct CaseSummary {
    counts: BTreeMap<String, usize>,
    bad: Vec<String>,
}

impl CaseSummary {
    fn of(results: &CaseResults) -> CaseSummary {
        let mut summary = CaseSummary { counts: BTreeMap::new(), bad: Vec::new() };
        let is_good = |outcome: &str| matches!(outcome, "OK" | "INFORMATIONAL");
        let mut cases: Vec<_> = results.iter().collect();
        cases.sort_by_key(|(case, _)| {
            case.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>()
        });
        for (case, CaseResult { behavior, behavior_close }) in cases {
            *summary.counts.entry(behavior.clone()).or_default() += 1;
            if !is_good(behavior) || !is_good(behavior_close) {
                summary.bad.push(format!("case {case}: {behavior}, close {behavior_close}"));
            }
        }
        summary
    }

    fn line(&self) -> String {
        let count: usize = self.counts.values().sum();
        let counts = self.counts.iter().map(|(outcome, count)| format!("{count} {outcome}"));
        format!("{count} cases: {}; {} bad", counts.collect::<Vec<_>>().join(", "), self.bad.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_bad_if_its_behavior_or_its_close_is() {
        let index = r#"{"stilling-poll": {
            "1.1.1": {"behavior": "OK", "behaviorClose": "OK", "duration": 3},
            "7.1.6": {"behavior": "INFORMATIONAL", "behaviorClose": "INFORMATIONAL"},
            "10.1.1": {"behavior": "OK", "behaviorClose": "FAILED"},
            "6.4.2": {"behavior": "NON-STRICT", "behaviorClose": "OK"}
        }}"#;
        let summary = CaseSummary::of(&parse(index, "stilling-poll").expect("four cases ran"));
        assert_eq!(summary.line(), "4 cases: 1 INFORMATIONAL, 1 NON-STRICT, 2 OK; 2 bad");
        assert_eq!(summary.bad, ["case 6.4.2: NON-STRICT, close OK", "case 10.1.1: OK, close FAILED"]);
        assert_eq!(
            parse(index, "stilling-uring").err().map(|error| error.to_string()),
            Some("no case ran".into())
        );
    }
}
