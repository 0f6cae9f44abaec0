//! Programs of Python that people really use: each installed into a folder of the build, from PyPI, in a version that does
//! not change by itself.

use std::path::PathBuf;
use std::process::Command;

use crate::XtaskResult;
use crate::steps;
use crate::tree;

/// A package in an environment of its own.
pub(crate) struct PythonPackage {
    /// The folder, beside others of the build.
    folder: &'static str,
    /// The version that tests and measurements speak of.
    pub(crate) version: &'static str,
}

/// A file in the folder that says which version is there, written last.
const PROOF: &str = ".installed";

/// A worker process.
pub(crate) const GUNICORN: PythonPackage = PythonPackage { folder: "gunicorn", version: "gunicorn==27.0.1" };

/// A client of NATS.
pub(crate) const NATS_PY: PythonPackage = PythonPackage { folder: "nats-py", version: "nats-py==2.16.0" };

/// The program that runs all cases on it.
pub(crate) const NATS_CASES: &str = "crates/cli/tests/serve/nats/foreign/conformance/client.py";

impl PythonPackage {
    /// Where it is: cargo tells tests the folder as `CARGO_TARGET_TMPDIR`.
    pub(crate) fn place(&self) -> PathBuf {
        tree::target().join("tmp").join(self.folder)
    }

    /// Installs it unless this version is there.
    ///
    /// # Errors
    /// If Python cannot make an environment of its own, or PyPI does not answer; the message says what to do.
    pub(crate) fn install(&self) -> XtaskResult {
        let place = self.place();
        let proof = place.join(PROOF);
        if std::fs::read_to_string(&proof).is_ok_and(|version| version == self.version) {
            println!("{} is there", self.version);
            return Ok(());
        }
        let by_hand = "it takes python3 with its venv module (Debian: python3-venv) and PyPI";
        let mut environment = Command::new("python3");
        environment.args(["-m", "venv"]).arg(&place);
        steps::run(&mut environment).map_err(|error| format!("{error}\n{by_hand}"))?;
        let mut pip = Command::new(place.join("bin/pip"));
        steps::run(pip.args(["install", "--quiet", self.version]))
            .map_err(|error| format!("{error}\n{by_hand}"))?;
        std::fs::write(proof, self.version)?;
        Ok(())
    }
}
