//! Node packages used by tests: installed from npm into a build folder, in versions pinned by a lock file.

use std::path::PathBuf;
use std::process::Command;

use crate::XtaskResult;
use crate::steps;
use crate::tree;

/// The test client on the NATS packages, with its `package.json` and `package-lock.json`.
pub(crate) const NATS: &str = "crates/cli/tests/serve/nats/foreign/node";

const FILES: [&str; 4] = ["package.json", "package-lock.json", "conformance.mjs", "follow_websocket.mjs"];

/// Copy of the installed lock file, written last.
const INSTALLED_MARKER: &str = ".installed";

/// Installs the test client and its packages in the folder that cargo passes to tests as `CARGO_TARGET_TMPDIR`.
///
/// # Errors
/// If there is no npm or its registry does not answer; the message gives the remedy.
pub(crate) fn install_nats() -> XtaskResult {
    let (from, directory) = (tree::root().join(NATS), directory());
    std::fs::create_dir_all(&directory)?;
    for file in FILES {
        std::fs::copy(from.join(file), directory.join(file))?;
    }
    let (lock, proof) =
        (std::fs::read_to_string(from.join("package-lock.json"))?, directory.join(INSTALLED_MARKER));
    if std::fs::read_to_string(&proof).is_ok_and(|installed| installed == lock) {
        println!("the Node packages are installed");
        return Ok(());
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--no-audit", "--no-fund"]).current_dir(&directory);
    steps::run(&mut npm).map_err(|error| {
        format!("{error}\nneeds Node 18 or newer, npm (Debian: npm) and its registry; folder: {NATS}")
    })?;
    std::fs::write(proof, lock)?;
    Ok(())
}

/// Folder of the installed client.
pub(crate) fn directory() -> PathBuf {
    tree::target().join("tmp/nats-node")
}
