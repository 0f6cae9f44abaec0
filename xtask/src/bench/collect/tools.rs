//! Programs measured beside Stilling that Debian does not package, or not in a recent version.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::XtaskResult;
use crate::bench::machine;
use crate::go::go;
use crate::steps::run;
use crate::tree;

/// A program that is built from the Go module proxy into `target/tools`.
pub(crate) struct GoTool {
    name: &'static str,
    module: &'static str,
    /// Package and version that the system may have instead.
    is_in_debian: bool,
}

pub(crate) const NATS_SERVER: GoTool =
    GoTool { name: "nats-server", module: "github.com/nats-io/nats-server/v2@v2.15.2", is_in_debian: true };

pub(crate) const CENTRIFUGO: GoTool =
    GoTool { name: "centrifugo", module: "github.com/centrifugal/centrifugo/v6@v6.9.1", is_in_debian: false };

/// The first version that can sync before it acknowledges.
const SYNCS_FROM: (u32, u32) = (2, 10);

impl GoTool {
    fn built(&self) -> PathBuf {
        tree::target().join("tools").join(self.name)
    }

    /// The built program, else the system's.
    pub(crate) fn path(&self) -> PathBuf {
        let built = self.built();
        if built.is_file() { built.canonicalize().unwrap_or(built) } else { self.name.into() }
    }

    /// Builds the program if it is missing. Debian's own nats-server predates `sync_interval: always`; it is used without
    /// Go, and that row is then left out.
    ///
    /// # Errors
    /// If neither is available.
    pub(crate) fn install(&self) -> XtaskResult {
        if self.built().is_file() {
            return Ok(());
        }
        let tools = tree::target().join("tools");
        std::fs::create_dir_all(&tools)?;
        let mut go = go(["install", self.module]);
        // An older Go downloads the toolchain that the module requires.
        go.env("GOBIN", tools.canonicalize()?).env("GOTOOLCHAIN", "auto");
        match run(&mut go) {
            Ok(()) => Ok(()),
            Err(error) if self.is_in_debian && version(Path::new(self.name)).is_some() => {
                println!("{error}\nusing the system's {}", self.name);
                Ok(())
            }
            Err(error) => {
                let name = self.name;
                Err(format!("{error}\n{name} is built with Go 1.21 or newer (Debian: golang-go)").into())
            }
        }
    }

    /// Name and version in the list above the figures.
    pub(in crate::bench) fn version_line(&self) -> String {
        let version = self.module.rsplit_once('@').map_or("", |(_, version)| version);
        format!("{}: {version}", self.name)
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
