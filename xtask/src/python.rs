//! Python programs used as real clients and apps: each is installed from PyPI into a build folder, in a pinned version.

use std::path::PathBuf;
use std::process::Command;

use crate::XtaskResult;
use crate::steps;
use crate::tree;

/// A package in its own virtual environment.
pub(crate) struct PythonPackage {
    /// Folder name, beside other build folders.
    folder: &'static str,
    /// Pinned version, used by tests and measurements.
    pub(crate) version: &'static str,
}

/// File in the folder that names the installed version, written last.
const INSTALLED_MARKER: &str = ".installed";

pub(crate) const GUNICORN: PythonPackage = PythonPackage { folder: "gunicorn", version: "gunicorn==27.0.1" };

pub(crate) const NATS_PY: PythonPackage = PythonPackage { folder: "nats-py", version: "nats-py==2.16.0" };

pub(crate) const AIOCOAP: PythonPackage = PythonPackage { folder: "aiocoap", version: "aiocoap==0.4.17" };

pub(crate) const WEBSOCKETS: PythonPackage =
    PythonPackage { folder: "websockets", version: "websockets==16.1.1" };

/// The test client on nats-py, which runs all cases.
pub(crate) const NATS_CASES: &str = "crates/cli/tests/serve/nats/foreign/conformance/client.py";

impl PythonPackage {
    /// Folder of the package; cargo passes its parent to tests as `CARGO_TARGET_TMPDIR`.
    pub(crate) fn directory(&self) -> PathBuf {
        tree::target().join("tmp").join(self.folder)
    }

    /// Installs the package unless this version is present.
    ///
    /// # Errors
    /// If Python cannot create a virtual environment or PyPI does not answer; the message gives the remedy.
    pub(crate) fn install(&self) -> XtaskResult {
        let directory = self.directory();
        let proof = directory.join(INSTALLED_MARKER);
        if std::fs::read_to_string(&proof).is_ok_and(|version| version == self.version) {
            println!("{} is installed", self.version);
            return Ok(());
        }
        let by_hand = "needs python3 with its venv module (Debian: python3-venv) and PyPI";
        let mut environment = Command::new("python3");
        environment.args(["-m", "venv"]).arg(&directory);
        steps::run(&mut environment).map_err(|error| format!("{error}\n{by_hand}"))?;
        let mut pip = Command::new(directory.join("bin/pip"));
        steps::run(pip.args(["install", "--quiet", self.version]))
            .map_err(|error| format!("{error}\n{by_hand}"))?;
        std::fs::write(proof, self.version)?;
        Ok(())
    }
}
