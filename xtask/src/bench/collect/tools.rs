//! Programs measured beside Stilling that Debian does not package, or not in a recent version.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::XtaskResult;
use crate::bench::machine;
use crate::go::go;
use crate::steps::run;
use crate::tree;

const NATS_SERVER: &str = "github.com/nats-io/nats-server/v2@v2.15.2";

/// The first version that can sync before it acknowledges.
const SYNCS_FROM: (u32, u32) = (2, 10);

fn built() -> PathBuf {
    tree::target().join("tools/nats-server")
}

/// nats-server: the built one, else the system's.
pub(crate) fn nats_server() -> PathBuf {
    let built = built();
    if built.is_file() { built.canonicalize().unwrap_or(built) } else { "nats-server".into() }
}

/// Builds nats-server into `target/tools` if it is missing. Debian's own predates `sync_interval: always`; it is used
/// without Go, and that row is then left out.
///
/// # Errors
/// If neither is available.
pub(crate) fn install_nats_server() -> XtaskResult {
    if built().is_file() {
        return Ok(());
    }
    let tools = tree::target().join("tools");
    std::fs::create_dir_all(&tools)?;
    let mut go = go(["install", NATS_SERVER]);
    // An older Go downloads the toolchain that the module requires.
    go.env("GOBIN", tools.canonicalize()?).env("GOTOOLCHAIN", "auto");
    match run(&mut go) {
        Ok(()) => Ok(()),
        Err(error) if version(Path::new("nats-server")).is_some() => {
            println!("{error}\nusing the system's nats-server");
            Ok(())
        }
        Err(error) => Err(format!(
            "{error}\nnats-server is built with Go 1.21 or newer (Debian: golang-go); or install the package nats-server"
        )
        .into()),
    }
}

/// The version of a nats-server, as a line of the list above the figures.
pub(in crate::bench) fn nats_server_version(program: &Path) -> String {
    let command_output = machine::command_output(&program.to_string_lossy(), &["-v"]);
    format!("nats-server: {}", command_output.trim_start_matches("nats-server: "))
}

fn version(program: &Path) -> Option<(u32, u32)> {
    let output = Command::new(program).arg("-v").output().ok()?;
    parse(&String::from_utf8_lossy(&output.stdout))
}

/// Parses `nats-server: v2.15.2`.
fn parse(command_output: &str) -> Option<(u32, u32)> {
    let mut numbers = command_output.trim().rsplit_once('v')?.1.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether this nats-server supports `sync_interval: always`.
pub(super) fn syncs_always(program: &Path) -> bool {
    version(program).is_some_and(|version| version >= SYNCS_FROM)
}

/// Whether this build of Stilling supports NATS.
pub(super) fn collects(stilling: &Path) -> bool {
    let help = Command::new(stilling).args(["serve", "--help"]).output();
    help.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("--nats "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_and_compared_as_numbers() {
        assert_eq!(parse("nats-server: v2.15.2\n"), Some((2, 15)));
        assert_eq!(parse("nats-server: v2.9.10"), Some((2, 9)));
        assert!(parse("nats-server: v2.9.10") < Some(SYNCS_FROM));
        assert_eq!(parse("no"), None);
    }
}
