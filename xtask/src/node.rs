//! Node packages used by tests: installed from npm into a build folder, in versions pinned by a lock file.

use std::path::PathBuf;
use std::process::Command;

use crate::XtaskResult;
use crate::steps;
use crate::tree;

/// A test client with its `package.json` and `package-lock.json`.
pub(crate) struct NodeClient {
    /// Folder of the sources.
    pub(crate) sources: &'static str,
    /// Folder name of the installed client, beside other build folders.
    folder: &'static str,
    programs: &'static [&'static str],
}

/// The test client on the NATS packages.
pub(crate) const NATS: NodeClient = NodeClient {
    sources: "crates/cli/tests/serve/nats/foreign/node",
    folder: "nats-node",
    programs: &["conformance.mjs", "follow_websocket.mjs"],
};

/// The test client on `coap`.
pub(crate) const COAP: NodeClient = NodeClient {
    sources: "crates/cli/tests/serve/coap_clients/node",
    folder: "coap-node",
    programs: &["client.mjs"],
};

const MANIFEST: &str = "package.json";

const LOCK: &str = "package-lock.json";

/// Copy of the installed lock file, written last.
const INSTALLED_MARKER: &str = ".installed";

impl NodeClient {
    /// Installs the client and its packages in the folder that cargo passes to tests as `CARGO_TARGET_TMPDIR`.
    ///
    /// # Errors
    /// If there is no npm or its registry does not answer; the message gives the remedy.
    pub(crate) fn install(&self) -> XtaskResult {
        let (from, directory) = (tree::root().join(self.sources), self.directory());
        std::fs::create_dir_all(&directory)?;
        for file in [MANIFEST, LOCK].iter().chain(self.programs) {
            std::fs::copy(from.join(file), directory.join(file))?;
        }
        let (lock, proof) = (std::fs::read_to_string(from.join(LOCK))?, directory.join(INSTALLED_MARKER));
        if std::fs::read_to_string(&proof).is_ok_and(|installed| installed == lock) {
            println!("the Node packages are installed");
            return Ok(());
        }
        let mut npm = Command::new("npm");
        npm.args(["ci", "--no-audit", "--no-fund"]).current_dir(&directory);
        steps::run(&mut npm).map_err(|error| {
            let sources = self.sources;
            format!("{error}\nneeds Node 18 or newer, npm (Debian: npm) and its registry; folder: {sources}")
        })?;
        std::fs::write(proof, lock)?;
        Ok(())
    }

    /// Folder of the installed client.
    pub(crate) fn directory(&self) -> PathBuf {
        tree::target().join("tmp").join(self.folder)
    }
}
