//! Packages for Node that tests use: installed from npm into a folder of the build, in versions that a lock file pins.

use std::path::PathBuf;
use std::process::Command;

use crate::XtaskResult;
use crate::steps;
use crate::tree;

/// The test client on the NATS packages, with its `package.json` and `package-lock.json`.
pub(crate) const NATS: &str = "crates/cli/tests/serve/nats/foreign/node";

/// The files of the client.
const FILES: [&str; 3] = ["package.json", "package-lock.json", "conformance.mjs"];

/// A copy of the lock file that was installed, written last.
const PROOF: &str = ".installed";

/// Puts the test client beside its packages; cargo tells tests the folder as `CARGO_TARGET_TMPDIR`.
///
/// # Errors
/// If there is no npm, or its registry does not answer; the message says what to do.
pub(crate) fn install_nats() -> XtaskResult {
    let (from, place) = (tree::root().join(NATS), place());
    std::fs::create_dir_all(&place)?;
    for file in FILES {
        std::fs::copy(from.join(file), place.join(file))?;
    }
    let (lock, proof) = (std::fs::read_to_string(from.join("package-lock.json"))?, place.join(PROOF));
    if std::fs::read_to_string(&proof).is_ok_and(|installed| installed == lock) {
        println!("the packages for Node are there");
        return Ok(());
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--no-audit", "--no-fund"]).current_dir(&place);
    steps::run(&mut npm).map_err(|error| {
        format!(
            "{error}\nit takes Node 18 or newer, npm (Debian: npm) and its registry, in the folder {NATS}"
        )
    })?;
    std::fs::write(proof, lock)?;
    Ok(())
}

/// Where the client is installed.
pub(crate) fn place() -> PathBuf {
    tree::target().join("tmp/nats-node")
}
